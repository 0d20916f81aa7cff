"""What a likelihood is: the law of X's cells given their means, in one class that is asked for all of it.

Reading, simulation, prediction, pointwise log-likelihoods, plots and starts ask the object, and compare nothing. An
engine names the classes that it has updates for, and is refused everything else. A likelihood of one's own is such a
class, with a recogniser of its PyMC distribution (:func:`nmf_zoo.register_likelihood`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.predictions import draw_uniforms_at
from nmf_zoo.structure.cell_parameters import CellParameter, Places, is_shared, part_of
from nmf_zoo.structure.multipliers import Multipliers
from nmf_zoo.structure.offsets import Offset, Shape
from nmf_zoo.structure.parameters import Array, Unknown

Values = Mapping[str, Array]  # of the model's unknowns, by name


@dataclass(frozen=True, kw_only=True)
class Likelihood(ABC):
    """How a cell of X is distributed about its mean, exposure * (W @ H) + background.

    Attributes
    ----------
    name : the observed variable
    exposure : positive, as :mod:`nmf_zoo.structure.offsets` has it, or None (ones)
    background : non-negative, alike, or None (zeros)

    Notes
    -----
    Of the class:

    family : its word in texts, "poisson"
    is_discrete : X holds integers: its draws are int64, and no gradient-based sampler takes a missing cell
    has_free_zeros : log p(0 | m) = -m, so that zeros enter through the sum of the means alone, and need not be stored;
        such a class defines :meth:`nonzero_part`
    is_log_concave : the log density is a concave function of the mean
    varies_as_redrawn : counts drawn anew from X, with replacement, vary as X does
    is_spectral : X is a power spectrogram: drawn in decades, low frequencies below
    least_total : of X, for the scale of a random start: a table of zeros still needs one
    largest_mean : of a count that is to be drawn: 64-bit integers hold all that is likely
    """

    family: ClassVar[str]
    is_discrete: ClassVar[bool] = False
    has_free_zeros: ClassVar[bool] = False
    is_log_concave: ClassVar[bool] = False
    varies_as_redrawn: ClassVar[bool] = False
    is_spectral: ClassVar[bool] = False
    least_total: ClassVar[float] = 1.0
    largest_mean: ClassVar[float] = 2.0**62

    name: str = "X"
    exposure: Offset | None = None
    background: Offset | None = None

    @property
    def parameters(self) -> dict[str, CellParameter]:
        """Those beside the mean, by role: known, or unknowns of the model.

        A role is the name of a field. Each broadcasts to (F, N): one for all cells, per feature, sample or cell.
        """
        return {}

    def at(self, size: Shape, places: Places) -> Self:
        """The same law at some cells of an (F, N) matrix, of which it has the parameters: what densities and draws ask.

        Itself where all cells have the same parameters.
        """
        own: dict[str, Any] = {
            role: part_of(found, size, places) for role, found in self.parameters.items() if not is_shared(found)
        }
        return replace(self, **own) if own else self

    @property
    def unknowns(self) -> list[Unknown]:
        """Those of them that are unknown."""
        return [parameter for parameter in self.parameters.values() if isinstance(parameter, Unknown)]

    @property
    def of_batches(self) -> Multipliers | None:
        """Of the whole matrix, what multiplies the means of a feature in a batch of samples, where there is such."""
        return None

    def expected(self, mean: Array, values: Values) -> Array:
        """E[x | mean], elementwise."""
        return mean

    @property
    def known_scales(self) -> list[tuple[str, float]]:
        """What engines divide X by beside its exposure, and its name, where there are such numbers, and known ones."""
        return []

    def end_of(self, values: Values) -> str:
        """Of a fit's values of its unknowns: which of them went to an end of what they may be, and what that means."""
        return ""

    @property
    def more_spread(self) -> str:
        """What lets the data vary more about the same means."""
        return "a likelihood with more spread (nz.register_likelihood)"

    # -- densities ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        """log p(x | mean) without what :meth:`log_constant` has, elementwise."""

    def log_constant(self, x: Array) -> Array | float:
        """What a log-density subtracts whatever the mean is, elementwise."""
        return 0.0

    def log_density(self, x: Array, mean: Array, values: Values, constant: Array | float | None = None) -> Array:
        """log p(x | mean), elementwise; ``constant`` where the caller has it: it may take most of the time."""
        return self.log_kernel(x, mean, values) - (self.log_constant(x) if constant is None else constant)

    def nonzero_part(self, x: Array, mean: Array) -> Array:
        """log_kernel + mean, which is 0 at x = 0; of a likelihood with free zeros."""
        raise NotImplementedError(f"{type(self).__name__} has no free zeros")

    def slopes(self, x: Array, mean: Array, values: Values) -> tuple[Array, Array]:
        """(positive, negative), both >= 0: d log p(x | mean) / d mean = positive - negative."""
        raise NotImplementedError(f"the slopes of {type(self).__name__} are not written")

    # -- draws -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        """X given its mean, elementwise."""

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        """Overwrite out (cells,): each cell from its own stream of ``key``, whichever other cells are drawn.

        By default the quantile function at a uniform of the cell's own.
        """
        uniforms = np.empty(len(mean))
        draw_uniforms_at(uniforms, rows, cols, key)
        out[:] = self.quantile(uniforms, mean, values)

    def quantile(self, share: Array, mean: Array, values: Values) -> Array:
        """x with P(X <= x | mean) = share, elementwise; needed where :meth:`draw_cells` is not written."""
        raise NotImplementedError(f"{type(self).__name__} has neither draw_cells nor quantile")

    def interval(self, shares: tuple[float, float], mean: Array, values: Values) -> tuple[Array, Array, Array] | None:
        """(low, high, P(low <= X <= high | mean)), the quantiles at both shares; None where they are not written."""
        return None

    @property
    def dtype(self) -> type:
        """Of draws."""
        return np.int64 if self.is_discrete else np.float64

    def require_drawable(self, mean: Array) -> None:
        """InputError where a mean is above ``largest_mean``: counts are 64-bit integers."""
        largest = float(np.max(mean, initial=0.0))
        if largest <= self.largest_mean or not self.is_discrete:
            return
        most = f"2^{np.log2(self.largest_mean):g} = {self.largest_mean:.2g}"
        expected = f"means up to {most}, counts being 64-bit integers"
        do = "declare the model in a larger unit: divide the data, or the exposure, by a constant"
        raise InputError(self.name, f"a mean of {largest:.2g} to draw a count from", expected, do)

    # -- moments -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def sd(self, mean: Array, values: Values) -> Array:
        """Of a cell, given its mean."""

    def point(self, mean: Array) -> Array:
        """What a missing cell is set to where a point stands for a posterior: E[x], or the count next to it.

        ``mean`` : E[x], as :meth:`expected` has it
        """
        return mean

    # -- data --------------------------------------------------------------------------------------------------------

    @classmethod
    def refusal_of(cls, values: Array) -> tuple[str, str, str] | None:
        """(found, expected, what to do) of finite data that it can't have; None when all is well."""
        if np.any(values < 0):
            return f"the value {values.min():g}", "data >= 0", "check the data you gave"
        return None

    def data_words(self, is_integer: bool) -> str:
        """What such data are called."""
        return "real values"

    def needs_mean(self, x: Array) -> tuple[Array, str] | None:
        """(which cells are impossible under a mean of 0, what they are called); None when all are possible."""
        return np.ones(np.shape(x), dtype=bool), "observed"
