"""A power spectrogram as the engines for exponential data see it: frame by frame, exposure divided out.

With p = x / exposure and b = background / exposure, an observed x ~ Exponential(mean exposure (W H) + background) is
p ~ Exponential(mean l), l = W H + b, and

    log p(x) = -log l - p / l - log exposure
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.structure import Array, Cells, Factorisation

NOWHERE = np.empty((0, 0))


class Spectra(NamedTuple):
    """Frames (columns of X) as rows, so that the frequencies of a frame are contiguous.

    Attributes
    ----------
    power : (N, F) float64, 0 at missing cells
    seen : (N, F) bool, True = observed; (0, 0) when every cell is
    background : (N, F) float64, >= 0; (0, 0) when there is none
    """

    power: Array
    seen: Array
    background: Array

    @property
    def n_seen(self) -> tuple[Array, Array]:
        """How many cells were observed of each frequency, (F,), and of each frame, (N,); float64."""
        n_frames, n_frequencies = self.power.shape
        if not self.seen.size:
            return np.full(n_frequencies, float(n_frames)), np.full(n_frames, float(n_frequencies))
        return self.seen.sum(axis=0).astype(np.float64), self.seen.sum(axis=1).astype(np.float64)


def read_spectra(structure: Factorisation) -> tuple[Spectra, float]:
    """The spectra, and the constant that log p(X | W, H) has beside -sum (log l + p / l) over observed cells."""
    return spectra_of(structure), constant_of_powers(structure)


def spectra_of(structure: Factorisation) -> Spectra:
    """The spectra."""
    values, seen = _dense(structure)
    power = np.array(values.T, order="C")
    if structure.likelihood.exposure is not None:
        power /= structure.exposure_table().T
    ratio = structure.background_ratio()
    background = NOWHERE if ratio is None else np.array(ratio.T, dtype=np.float64, order="C")
    mask = np.empty((0, 0), np.bool_) if seen is None else np.array(seen.T, order="C")
    return Spectra(power, mask, background)


def constant_of_powers(structure: Factorisation) -> float:
    """Minus the sum of the logarithms of the observed cells' exposures."""
    if structure.likelihood.exposure is None:
        return 0.0
    seen = _dense(structure)[1]
    return -float(np.sum(np.log(structure.exposure_table().T), where=True if seen is None else seen.T))


def _dense(structure: Factorisation) -> tuple[Array, Array | None]:
    """(values (F, N), 0 at missing cells; mask or None)"""
    data = structure.data
    if not isinstance(data, Cells):
        return data.values, data.mask
    values, seen = np.zeros(structure.shape), np.zeros(structure.shape, dtype=bool)
    values[data.rows, data.cols], seen[data.rows, data.cols] = data.values, True
    return values, None if data.is_complete or seen.all() else seen
