"""What the data say at given factors, for EM: one class per likelihood, with the same methods.

Of the class: ``check`` says what EM refuses of the likelihood's models, ``has_sources`` whether there are expected
sources to freeze and to round, ``estimates_rates`` whether free rates of GaP have a joint maximum. Of its objects:
``look`` gives the log-likelihood and the numerator of W's update (and of H's where sources are frozen), ``for_H`` both
parts of H's at a new W, ``denominator_W`` and ``denominator_H`` the rest: numerators and denominators as
:mod:`nmf_zoo.inference.shared.multiplicative` has them.

Squared error under a normal likelihood, for multiplicative updates (Lee and Seung; Paisley eq. 1).

With y = x - background, e the exposure and M the mask, split y = y+ - y-::

    W = numerator / denominator,    numerator = W o ((M e y+) H^T),    denominator = (M e^2 (W H)) H^T + (M e y-) H^T

and alike for H; both are divided by sigma^2, so that prior and noise are on one scale. Known errors that differ between
cells are taken into X and its exposure (:mod:`nmf_zoo.inference.shared.whitening`), so that squares are weighted. The
mean is built in blocks of columns, and for sparse data, all of whose other cells are 0, not at all: Gram matrices hold
all there is to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.counts.duality import has_normal_gap, normal_gap, poisson_gap
from nmf_zoo.inference.counts.newton import CellWeights, LeastSquares, Newton, newton, penalty_of
from nmf_zoo.inference.shared.factor_view import Side, flat_and_other, two_sides
from nmf_zoo.inference.shared.layout import BLOCK_CELLS, SumsOfWeights, expected_sources, likelihood_constant, weigh
from nmf_zoo.inference.shared.whitening import whitened
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    CHUNK,
    Array,
    Cells,
    Dense,
    Factorisation,
    Likelihood,
    Normal,
    Poisson,
    Unknown,
    is_shared,
    slices,
)

NOISE_FLOOR = 1e-10  # of a free sigma, relative to the data: a perfect fit would send it to 0
MOST_VALUES = 1 << 16  # counts below it are counted and looked up
LEAST_WEIGHT = 1e-12  # of a row, relative to the largest: rows without observed cells can be divided by


class LossView(NamedTuple):
    """The log-likelihood and parts of the updates: of W (F, K), of H (N, K) or None.

    ``denominator_W`` is there where it depends on W, else None.
    """

    log_likelihood: float
    numerator_W: Array
    numerator_H: Any = None
    denominator_W: Any = None


class Asked(Protocol):
    """Options of EM that depend on the likelihood."""

    mode: str
    inner: int | None
    precision: str


class PoissonLoss:
    """Poisson counts, or non-negative real data under the same density."""

    has_sources = True
    estimates_rates = True

    @staticmethod
    def check(structure: Factorisation, options: Asked) -> Verdict:
        return CAN_RUN

    def __init__(self, structure: Factorisation, workers: Workers, precision: str):
        self.sources = expected_sources(structure, workers, precision)
        self.weights: SumsOfWeights = weigh(structure)
        self.constant = likelihood_constant(structure)
        self.structure = structure

    def with_weights(self, weights: SumsOfWeights) -> PoissonLoss:
        """The same data under other exposures, whose constant is left out."""
        other = copy(self)
        other.weights = weights
        return other

    def look(self, W: Array, Ht: Array, values: dict[str, Array], both: bool) -> LossView:
        statistics = self.sources.gather(W, Ht, "WH" if both else "W")
        return LossView(self.log_likelihood(statistics.log_mean, W, Ht), statistics.of_W, statistics.of_H)

    def log_likelihood(self, log_mean: float, W: Array, Ht: Array) -> float:
        """log p(X | W, H) from sum x log mean."""
        return log_mean - self.weights.total(W, Ht) + self.constant

    def for_H(self, W: Array, Ht: Array, values: dict[str, Array]) -> tuple[Array, Array]:
        return self.sources.gather(W, Ht, "H").of_H, self.denominator_H(W)

    def denominator_W(self, view: LossView, Ht: Array) -> Array:
        return self.weights.over_samples(Ht)

    def denominator_H(self, W: Array) -> Array:
        return self.weights.over_features(W)

    def newton(self, structure: Factorisation, workers: Workers, is_refit: bool) -> Newton | None:
        """Steps in place of updates."""
        return newton(structure, workers, self.sources, is_refit)

    def zeros(self, which: int, other: Array) -> Array:
        """What cells without counts, and the parts of the others' means, say of W (``which`` 0) or Ht, linear in it."""
        return self.weights.over_features(other) if which else self.weights.over_samples(other)

    def noise(self, values: Mapping[str, Array]) -> float:
        return 1.0

    def gap(
        self, sides: tuple[Side, Side], mode: str, W: Array, Ht: Array, values: Mapping[str, Array]
    ) -> float | None:
        """What a fit of one factor beside a known one lacks to the optimum at most; None where nothing bounds it."""
        which = int(sides[0].is_fixed)
        u, v = (Ht, W) if which else (W, Ht)
        penalty = penalty_of(sides[which], mode, self.zeros(which, v), values)
        return poisson_gap(self.structure, which, u, v, penalty)

    def at_data(self, values: Mapping[str, Array]) -> float:
        """The log-likelihood if the mean were X itself: no factors have a higher one."""
        return log_at_data(self.structure)


def log_at_data(structure: Factorisation) -> float:
    """The log-likelihood of counts if their mean were X itself."""
    values = structure.data.observed_values
    return sum(_log_at(values[part]) for part in slices(values.size, CHUNK))


def _log_at(x: Array) -> float:
    """Of small whole numbers, how often each is there."""
    whole = x.astype(np.int64) if x.size and x.max() < MOST_VALUES else np.empty(0, np.int64)
    if x.size and np.array_equal(whole, x):
        often = np.bincount(whole)
        return float(often @ _of_each(np.arange(len(often), dtype=np.float64)))
    return float(np.sum(_of_each(x)))


def _of_each(x: Array) -> Array:
    return xlogy(x, x) - x - gammaln(x + 1.0)


class NormalLoss:
    """A normal likelihood, sigma known or free; in float64 whatever ``precision`` is.

    ``structure`` : the model whose squares are weighed alike; ``log_sigma`` : what log-likelihoods lose beside its own
    """

    has_sources = False
    estimates_rates = False

    @staticmethod
    def check(structure: Factorisation, options: Asked) -> Verdict:
        if options.inner not in (None, 1):
            return Verdict("inner= freezes expected sources, and a normal likelihood has none: leave it out")
        if options.precision != "float64":
            return Verdict("precision= rounds expected sources, and a normal likelihood has none: leave it out")
        checks = (_check_priors_of_squares(structure, options.mode), _check_sigma(structure))
        return next((verdict for verdict in checks if not verdict), CAN_RUN)

    def __init__(self, structure: Factorisation, workers: Workers, precision: str):
        structure, self.log_sigma = whitened(structure)
        self.structure = structure
        self.squares, self.sigma = squares(structure), structure.likelihood.parameters["sigma"]
        x = structure.data.observed_values
        self.least_sigma = max(NOISE_FLOOR * float(np.sqrt(np.mean(np.square(x)))), 1e-150) if x.size else 1.0

    def look(self, W: Array, Ht: Array, values: dict[str, Array], both: bool) -> LossView:
        numerator, denominator, error = self.squares.for_W(W, Ht)
        size = max(self.squares.size, 1)
        if isinstance(self.sigma, Unknown):
            values[self.sigma.name] = np.array(max(np.sqrt(error / size), self.least_sigma)).reshape(
                self.sigma.variable_shape
            )
        variance = self.noise(values)
        log_likelihood = -0.5 * (error / variance + self.squares.size * np.log(2.0 * np.pi * variance))
        total = float(log_likelihood) - self.log_sigma
        return LossView(total, W * numerator / variance, None, denominator / variance)

    def for_H(self, W: Array, Ht: Array, values: dict[str, Array]) -> tuple[Array, Array]:
        numerator, denominator = self.squares.for_H(W, Ht)
        return Ht * numerator / self.noise(values), denominator / self.noise(values)

    def denominator_W(self, view: LossView, Ht: Array) -> Array:
        return view.denominator_W

    def denominator_H(self, W: Array) -> Array:
        raise NotImplementedError("squared error has no sources to freeze")

    def newton(self, structure: Factorisation, workers: Workers, is_refit: bool) -> Newton | None:
        """Steps in place of updates; None for listed cells, where rows have little in common."""
        return None if isinstance(self.squares, ListedCells) else LeastSquares(self.squares, workers, is_refit)

    def zeros(self, which: int, other: Array) -> Array:
        """Nothing apart from the squares."""
        return np.zeros((1, other.shape[1]))

    def gap(
        self, sides: tuple[Side, Side], mode: str, W: Array, Ht: Array, values: Mapping[str, Array]
    ) -> float | None:
        """What a fit of one factor beside a known one lacks to the optimum at most; None where nothing bounds it."""
        if not has_normal_gap(self.structure):
            return None
        terms = sides[1].terms(mode, values)
        curve = terms.curve.T if sides[1].is_half_normal else None
        return normal_gap(self.structure, Ht.T, terms.rate.T, values, curve)

    def at_data(self, values: Mapping[str, Array]) -> float:
        """The log-likelihood if the mean were X itself."""
        return float(-0.5 * self.squares.size * np.log(2.0 * np.pi * self.noise(values))) - self.log_sigma

    def noise(self, values: Mapping[str, Array]) -> float:
        return float(np.square(self.sigma.resolve(values)).reshape(()))


Loss = PoissonLoss | NormalLoss
LOSSES: dict[type[Likelihood], type[Loss]] = {
    Poisson: PoissonLoss,
    Normal: NormalLoss,
}


# -- squared error ---------------------------------------------------------------------------------------------------


class CompleteSparse:
    """Sparse data whose other cells are 0."""

    def __init__(self, structure: Factorisation):
        data = structure.data
        self.X = sp.csr_array((data.values, (data.rows, data.cols)), shape=data.shape)
        self.XT = sp.csr_array(self.X.T)
        self.size, self.norm = data.shape[0] * data.shape[1], float(data.values @ data.values)

    def for_W(self, W: Array, Ht: Array) -> tuple[Array, Array, float]:
        """(numerator / W, denominator, squared error)"""
        numerator, gram = self.X @ Ht, Ht.T @ Ht
        error = self.norm - 2.0 * float(np.sum(W * numerator)) + float(np.sum((W.T @ W) * gram))
        return numerator, W @ gram, max(error, 0.0)

    def for_H(self, W: Array, Ht: Array) -> tuple[Array, Array]:
        """(numerator / H, denominator)"""
        return self.XT @ W, Ht @ (W.T @ W)

    def ratio_parts(self, which: int, factor: Array, other: Array) -> tuple[Array, Array]:
        """(numerator / factor, denominator) of W (``which`` 0) or Ht (1)."""
        return (self.XT if which else self.X) @ other, factor @ (other.T @ other)

    def weights(self, which: int) -> None:
        """All cells weigh one."""


class DenseMatrix:
    """A dense matrix, in blocks of columns."""

    def __init__(self, structure: Factorisation):
        likelihood, data = structure.likelihood, structure.data
        seen = 1.0 if data.mask is None else data.mask
        y = data.values if likelihood.background is None else seen * (data.values - structure.background_table())
        self.exposure = None if likelihood.exposure is None else structure.exposure_table()
        self.weight = None if self.exposure is None and data.mask is None else seen * _square(self.exposure, data.shape)
        self.y, self.seen = y, data.mask
        self.positive = _scale(np.maximum(y, 0.0) if y.min(initial=0.0) < 0 else y, self.exposure)
        self.negative = _scale(np.maximum(-y, 0.0), self.exposure) if y.min(initial=0.0) < 0 else None
        self.size = y.size if data.mask is None else int(data.mask.sum())
        self.width = max(16, BLOCK_CELLS // max(1, y.shape[0]))

    def for_W(self, W: Array, Ht: Array) -> tuple[Array, Array, float]:
        """(numerator / W, denominator, squared error)"""
        denominator = W @ (Ht.T @ Ht) if self.weight is None else np.zeros_like(W)
        error = 0.0
        for block, mean in self._blocks(W, Ht):
            if self.weight is not None:
                denominator += (self.weight[:, block] * mean) @ Ht[block]
            rest = self.y[:, block] - _scale(mean, self.exposure, block)
            error += float(np.sum(np.square(rest), where=True if self.seen is None else self.seen[:, block]))
        return self.positive @ Ht, denominator if self.negative is None else denominator + self.negative @ Ht, error

    def for_H(self, W: Array, Ht: Array) -> tuple[Array, Array]:
        """(numerator / H, denominator)"""
        denominator = Ht @ (W.T @ W) if self.weight is None else np.empty_like(Ht)
        if self.weight is not None:
            for block, mean in self._blocks(W, Ht):
                denominator[block] = (self.weight[:, block] * mean).T @ W
        return self.positive.T @ W, denominator if self.negative is None else denominator + self.negative.T @ W

    def ratio_parts(self, which: int, factor: Array, other: Array) -> tuple[Array, Array]:
        """(numerator / factor, denominator) of W (``which`` 0) or Ht (1)."""
        if which:
            return self.for_H(other, factor)
        denominator = factor @ (other.T @ other) if self.weight is None else np.zeros_like(factor)
        if self.weight is not None:
            for block, mean in self._blocks(factor, other):
                denominator += (self.weight[:, block] * mean) @ other[block]
        return self.positive @ other, denominator if self.negative is None else denominator + self.negative @ other

    def weights(self, which: int) -> CellWeights | None:
        """Of the cells, W's features (``which`` 0) or H's samples in the rows; None where all weigh one."""
        if self.weight is None:
            return None
        weight = self.weight.T if which else self.weight
        of_rows, total = weight.sum(axis=1), weight.sum() or 1.0
        return CellWeights(weight, np.maximum(of_rows, LEAST_WEIGHT * total), weight.sum(axis=0) / total)

    def _blocks(self, W: Array, Ht: Array):
        for block in slices(len(Ht), self.width):
            yield block, W @ Ht[block].T


class ListedCells:
    """A list of observed cells; all others are missing."""

    def __init__(self, structure: Factorisation):
        data = structure.data
        self.rows, self.cols, self.shape, self.size = data.rows, data.cols, data.shape, len(data.rows)
        self.exposure = structure.exposure_at(data.rows, data.cols)
        self.y = data.values - structure.background_at(data.rows, data.cols)
        self.positive = self._matrix(self.exposure * np.maximum(self.y, 0.0))
        self.negative = self._matrix(self.exposure * np.maximum(-self.y, 0.0))

    def _matrix(self, values: Array) -> sp.csr_array:
        return sp.csr_array((values, (self.rows, self.cols)), shape=self.shape)

    def _mean(self, W: Array, Ht: Array) -> Array:
        mean = np.empty(self.size)
        rates_at_cells(mean, W, Ht, self.rows, self.cols)
        return self.exposure * mean

    def for_W(self, W: Array, Ht: Array) -> tuple[Array, Array, float]:
        """(numerator / W, denominator, squared error)"""
        mean = self._mean(W, Ht)
        denominator = (self._matrix(self.exposure * mean) + self.negative) @ Ht
        return self.positive @ Ht, denominator, float(np.sum(np.square(self.y - mean)))

    def for_H(self, W: Array, Ht: Array) -> tuple[Array, Array]:
        """(numerator / H, denominator)"""
        denominator = (self._matrix(self.exposure * self._mean(W, Ht)) + self.negative).T @ W
        return self.positive.T @ W, denominator


def squares(structure: Factorisation) -> CompleteSparse | DenseMatrix | ListedCells:
    """The way to the squared error that suits the data."""
    if isinstance(structure.data, Cells):
        return CompleteSparse(structure) if structure.data.is_complete else ListedCells(structure)
    return DenseMatrix(structure)


def can_square(structure: Factorisation) -> bool:
    """Sparse data keep their zeros out of memory only without an exposure or a background."""
    likelihood = structure.likelihood
    plain = likelihood.exposure is None and likelihood.background is None
    return isinstance(structure.data, Dense) or not structure.data.is_complete or plain


def _check_priors_of_squares(structure: Factorisation, mode: str) -> Verdict:
    for side in two_sides(structure):
        if (side.has_terms and mode == "log") or (side.is_gamma and np.any(side.gamma.shape.resolve({}) != 1.0)):
            return Verdict(
                f"squared-error updates take {side.factor.name} without a prior, or with a half-normal prior or a "
                'gamma prior of shape 1 and mode="density"'
            )
    for flat, other in flat_and_other(structure):
        return Verdict(
            f"{flat.factor.name} has no prior, so it can grow while {other.factor.name} shrinks to 0: give both a prior"
        )
    if not can_square(structure):
        return Verdict("sparse data with an exposure or a background would have to be made dense: pass X as an array")
    return CAN_RUN


def _check_sigma(structure: Factorisation) -> Verdict:
    sigma = structure.likelihood.parameters["sigma"]
    if not isinstance(sigma, Unknown):
        return CAN_RUN
    if not is_shared(sigma):
        each = "feature" if sigma.shape[1] == 1 else "sample" if sigma.shape[0] == 1 else "cell"
        return Verdict(
            f"{sigma.name} is free for each {each}, and a component can fit one {each} exactly, where the density has "
            f"no bound: give {sigma.name}, share it among all cells, or sample it with a prior"
        )
    if structure.rank >= min(structure.shape) and not (structure.W.is_fixed or structure.H.is_fixed):
        return Verdict(
            f"{sigma.name} is free and rank {structure.rank} can fit X exactly, where the density has no bound: "
            f"lower the rank below {min(structure.shape)} or give {sigma.name}"
        )
    return CAN_RUN


def _scale(array: Array, exposure: Array | None, block: slice | None = None) -> Array:
    if exposure is None:
        return array
    exposure = np.atleast_2d(exposure)
    return array * (exposure if block is None or exposure.shape[1] == 1 else exposure[:, block])


def _square(exposure: Array | None, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(1.0 if exposure is None else np.square(exposure), shape)
