"""What a factorisation model is once it has been read: frozen dataclasses that know nothing of PyMC.

Shapes, used everywhere in this package::

    X  (F, N)   data: F features, N samples
    W  (F, K)   weights: K components (``rank``)
    H  (K, N)   activations
    mean of X = exposure * (W @ H) + background

A :class:`Factorisation` can be built by hand (to test an engine without PyMC) or read from a ``pm.Model`` by
:func:`nmf_zoo.read`. Engines read it and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import gammaln, xlogy

Array = np.ndarray
CHUNK = 1 << 16  # cells handled at once: bounds the temporary (cells, rank) arrays


# -- hyperparameters ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HyperPrior:
    """Prior of an unknown hyperparameter, independent over its entries.

    Attributes
    ----------
    kind : one of :data:`HYPER_PRIORS`, or ``"flat"`` (density 1 on the support: free, to be estimated)
    args : the distribution's parameters, each an array that broadcasts to the variable's shape
    """

    kind: str
    args: tuple[Array, ...] = ()

    @property
    def is_flat(self) -> bool:
        return self.kind == "flat"

    def log_density(self, value: Array) -> Array:
        """Elementwise log-density at ``value`` (same shape as the variable)."""
        return HYPER_PRIORS[self.kind](value, *self.args)


def _log_gamma_density(v, shape, rate):
    return xlogy(shape - 1, v) - rate * v + xlogy(shape, rate) - gammaln(shape)


def _log_inverse_gamma_density(v, shape, scale):
    return -(shape + 1) * np.log(v) - scale / v + shape * np.log(scale) - gammaln(shape)


def _log_lognormal_density(v, mu, sigma):
    return -0.5 * ((np.log(v) - mu) / sigma) ** 2 - np.log(v * sigma) - 0.5 * np.log(2 * np.pi)


def _log_half_normal_density(v, sigma):
    return -0.5 * (v / sigma) ** 2 - np.log(sigma) + 0.5 * np.log(2 / np.pi)


def _log_uniform_density(v, lower, upper):
    return np.where((v >= lower) & (v <= upper), -np.log(upper - lower), -np.inf)


HYPER_PRIORS: dict[str, Callable[..., Array]] = {
    "flat": lambda v: np.zeros_like(v),
    "gamma": _log_gamma_density,
    "inverse_gamma": _log_inverse_gamma_density,
    "lognormal": _log_lognormal_density,
    "half_normal": _log_half_normal_density,
    "uniform": _log_uniform_density,
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A known hyperparameter: ``value`` broadcasts to the factor it belongs to, e.g. (), (1, K), (F, 1), (F, K)."""

    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """The array to compute with, given the values of the unknowns."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """An unknown hyperparameter: the model variable ``name``. Tying is shape.

    Attributes
    ----------
    name : the model's variable
    variable_shape : its shape in the model, e.g. () or (K,)
    shape : the same entries as they broadcast against the factor, e.g. () or (K, 1)
    prior : its prior; flat means free
    """

    name: str
    variable_shape: tuple[int, ...]
    shape: tuple[int, ...]
    prior: HyperPrior

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """The array to compute with, given the values of the unknowns."""
        return np.asarray(values[self.name], dtype=np.float64).reshape(self.shape)


Parameter = Known | Unknown


# -- factors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flat:
    """No prior: density 1 on [0, inf). Optimisers maximise it."""


@dataclass(frozen=True, kw_only=True)
class GammaPrior:
    """Independent Gamma(shape, rate) cells, with the rate given directly or as shape / mean.

    Attributes
    ----------
    shape : Parameter
    rate : Parameter or None, in the (shape, rate) parametrisation
    mean : Parameter or None, in the (shape, mean) parametrisation; exactly one of ``rate`` and ``mean`` is given
    """

    shape: Parameter
    rate: Parameter | None = None
    mean: Parameter | None = None

    def __post_init__(self):
        if (self.rate is None) == (self.mean is None):
            raise ValueError("GammaPrior: got rate and mean both given or both missing; expected exactly one of them")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by role: shape and rate, or shape and mean."""
        if self.mean is not None:
            return {"shape": self.shape, "mean": self.mean}
        assert self.rate is not None
        return {"shape": self.shape, "rate": self.rate}

    def shape_and_rate(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, rate) as arrays that broadcast to the factor, given the values of the unknowns."""
        shape = self.shape.resolve(values)
        if self.mean is None:
            return shape, self.rate.resolve(values)
        return shape, shape / self.mean.resolve(values)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        shape, rate = self.shape_and_rate(values)
        return float(np.sum(_log_gamma_density(factor, shape, rate)))


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A factor whose value is known (plain data, or ``pm.do``)."""

    value: Array


Prior = Flat | GammaPrior | Fixed


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of the product.

    Attributes
    ----------
    name : the model's variable (of a fixed factor: its data's name, or "")
    shape : (F, K) for the left factor, (K, N) for the right one
    prior : Flat, GammaPrior or Fixed; parameter arrays broadcast to ``shape``
    transposed : the model's variable is the transpose of this factor
    """

    name: str
    shape: tuple[int, int]
    prior: Prior
    transposed: bool = False

    @property
    def is_fixed(self) -> bool:
        return isinstance(self.prior, Fixed)

    @property
    def variable_shape(self) -> tuple[int, int]:
        return self.shape[::-1] if self.transposed else self.shape

    def orient(self, array: Array) -> Array:
        """Turn the last two axes from our orientation to the model variable's, or back."""
        return np.swapaxes(array, -1, -2) if self.transposed else array

    def orient_dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The model variable's dims in our orientation."""
        return dims[::-1] if self.transposed else dims

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        """Log prior density at ``factor`` (our orientation); 0 where there is no prior."""
        return self.prior.log_density(factor, values) if isinstance(self.prior, GammaPrior) else 0.0

    @property
    def unknowns(self) -> list[Unknown]:
        if not isinstance(self.prior, GammaPrior):
            return []
        return [p for p in self.prior.parameters.values() if isinstance(p, Unknown)]


# -- data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense data matrix.

    Attributes
    ----------
    values : (F, N) float64, 0 at missing cells
    mask : (F, N) bool, True = observed; None when every cell is
    """

    values: Array
    mask: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def observed_values(self) -> Array:
        """The observed cells' values, (cells,)."""
        return self.values.ravel() if self.mask is None else self.values[self.mask]

    @property
    def is_complete(self) -> bool:
        return self.mask is None


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Data as a list of cells, without repeats: sparse counts, or the observed cells of an incomplete matrix.

    Attributes
    ----------
    rows, cols : (cells,) int64
    values : (cells,) float64
    shape : (F, N)
    is_complete : True: all other cells were observed and are 0. False: all other cells are missing.
    """

    rows: Array
    cols: Array
    values: Array
    shape: tuple[int, int]
    is_complete: bool

    @property
    def observed_values(self) -> Array:
        """The listed cells' values, (cells,)."""
        return self.values


Data = Dense | Cells


@dataclass(frozen=True, kw_only=True)
class Imputed:
    """Missing cells that the model itself declares as a free variable (PyMC's masked arrays).

    Attributes
    ----------
    name : the model's variable, e.g. "X_unobserved"
    rows, cols : (missing,) int64, the cells in the variable's order
    """

    name: str
    rows: Array
    cols: Array


# -- likelihood and model ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """How X depends on W @ H.

    Attributes
    ----------
    kind : "poisson" or "normal"
    name : the observed variable
    integer : PyMC's Poisson (integers only); False for the density x log m - m - log Gamma(x + 1) on real x >= 0
    sigma : standard deviation of a normal likelihood (Parameter of shape ()); None for Poisson
    exposure : positive array that broadcasts to (F, N), or None (ones)
    background : non-negative array that broadcasts to (F, N), or None (zeros)
    """

    kind: Literal["poisson", "normal"]
    name: str = "X"
    integer: bool = True
    sigma: Parameter | None = None
    exposure: Array | None = None
    background: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Factorisation:
    """A model X ~ likelihood(exposure * (W @ H) + background), as engines see it.

    Attributes
    ----------
    likelihood, W, H : see their classes
    data : Dense, Cells, or None when nothing is observed
    imputed : missing cells the model declares as a free variable, or None
    cells : (rows, cols) when the model's observed variable is a list of cells, in its order; else None
    dims : variable name -> its dims in the model (names as in the InferenceData)
    coords : dim -> labels, for the dims that have some
    """

    likelihood: Likelihood
    W: Factor
    H: Factor
    data: Data | None = None
    imputed: Imputed | None = None
    cells: tuple[Array, Array] | None = None
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Array] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(F, N)"""
        return self.W.shape[0], self.H.shape[1]

    @property
    def rank(self) -> int:
        return self.W.shape[1]

    @cached_property
    def unknowns(self) -> dict[str, Unknown]:
        """The unknown hyperparameters (sigma included) by name, in the order shape, rate or mean; W before H."""
        found = {u.name: u for u in self.W.unknowns + self.H.unknowns}
        if isinstance(self.likelihood.sigma, Unknown):
            found[self.likelihood.sigma.name] = self.likelihood.sigma
        return found

    @cached_property
    def is_integer(self) -> bool:
        """All observed values are integers."""
        return self.data is None or bool(np.all(self.data.observed_values == np.floor(self.data.observed_values)))

    def at_cells(self, array: Array | None, rows: Array, cols: Array, default: float) -> Array:
        """Values of an array that broadcasts to (F, N) at the given cells; ``default`` everywhere when it is None."""
        if array is None:
            return np.full(len(rows), default)
        full = np.broadcast_to(array, self.shape)
        return np.asarray(full[rows, cols], dtype=np.float64)

    def mean_at(self, W: Array, H: Array, rows: Array, cols: Array) -> Array:
        """exposure * (W @ H) + background at the given cells, (cells,)."""
        mean = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            mean[part] = np.einsum("ck,kc->c", W[rows[part]], H[:, cols[part]])
        exposure = self.at_cells(self.likelihood.exposure, rows, cols, 1.0)
        return exposure * mean + self.at_cells(self.likelihood.background, rows, cols, 0.0)

    def total_mean(self, W: Array, H: Array) -> float:
        """Sum of the mean over all (F, N) cells, without building them unless the exposure needs it."""
        exposure, background = self.likelihood.exposure, self.likelihood.background
        total = 0.0 if background is None else float(np.sum(np.broadcast_to(background, self.shape)))
        if exposure is None:
            return total + float(W.sum(axis=0) @ H.sum(axis=1))
        for columns in self.column_blocks():
            part = np.broadcast_to(exposure, self.shape)[:, columns]
            total += float(np.sum(part * (W @ H[:, columns])))
        return total

    def column_blocks(self) -> Iterator[slice]:
        """Slices of samples, each holding about 16 chunks of cells: for work that must see every cell."""
        width = max(1, 16 * CHUNK // max(1, self.shape[0]))
        for start in range(0, self.shape[1], width):
            yield slice(start, min(start + width, self.shape[1]))

    def observed_cells(self) -> tuple[Array, Array, Array]:
        """(rows, cols, values) of the listed or observed cells, in row-major order for dense data."""
        if isinstance(self.data, Cells):
            return self.data.rows, self.data.cols, self.data.values
        seen = np.ones(self.shape, dtype=bool) if self.data.mask is None else self.data.mask
        rows, cols = np.nonzero(seen)
        return rows, cols, self.data.values[rows, cols]

    def cell_log_likelihood(self, x: Array, mean: Array, values: Mapping[str, Array]) -> Array:
        """log p(x | mean), elementwise."""
        if self.likelihood.kind == "normal":
            sigma = self.likelihood.sigma.resolve(values)
            return -0.5 * ((x - mean) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
        return xlogy(x, mean) - mean - gammaln(x + 1)

    def log_likelihood(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """log p(observed data | W, H)."""
        if self.data is None:
            return 0.0
        rows, cols, x = self.observed_cells()
        mean = self.mean_at(W, H, rows, cols)
        listed = float(np.sum(self.cell_log_likelihood(x, mean, values)))
        zeros_too = isinstance(self.data, Cells) and self.data.is_complete
        return listed - (self.total_mean(W, H) - float(np.sum(mean))) if zeros_too else listed

    def log_joint(self, values: Mapping[str, Array]) -> float:
        """Log joint density at ``values`` (model variables by name, in the model's own orientation).

        Equals ``model.compile_logp(jacobian=False)`` of the model it was read from.
        """
        W, H = self.factor_value(self.W, values), self.factor_value(self.H, values)
        total = self.log_likelihood(W, H, values)
        total += self.W.log_density(W, values) + self.H.log_density(H, values)
        for unknown in self.unknowns.values():
            total += float(np.sum(unknown.prior.log_density(np.asarray(values[unknown.name], dtype=np.float64))))
        return total + self.log_imputed(W, H, values) + self.log_unobserved(W, H, values)

    def log_unobserved(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """Log-density of an X without data, which is a free variable of its model; 0 when there are data."""
        if self.data is not None:
            return 0.0
        rows, cols = (index.ravel() for index in np.indices(self.shape))
        x = np.asarray(values[self.likelihood.name], dtype=np.float64).ravel()
        return float(np.sum(self.cell_log_likelihood(x, self.mean_at(W, H, rows, cols), values)))

    def log_imputed(self, W: Array, H: Array, values: Mapping[str, Array]) -> float:
        """Log-density of the missing cells that the model itself declares as a variable; 0 when it does not."""
        if self.imputed is None:
            return 0.0
        mean = self.mean_at(W, H, self.imputed.rows, self.imputed.cols)
        imputed = np.asarray(values[self.imputed.name], dtype=np.float64)
        return float(np.sum(self.cell_log_likelihood(imputed, mean, values)))

    @cached_property
    def cell_labels(self) -> dict[str, Array]:
        """Feature and sample label of every listed cell, by the dims' names; empty for data without such a list."""
        left, right = self.dims.get(self.W.name), self.dims.get(self.H.name)
        if self.cells is None or not left or not right:
            return {}
        feature, sample = self.W.orient_dims(left)[0], self.H.orient_dims(right)[1]
        rows, cols = self.cells
        return {dim: self.coords[dim][at] for dim, at in ((feature, rows), (sample, cols)) if dim in self.coords}

    @staticmethod
    def factor_value(factor: Factor, values: Mapping[str, Array]) -> Array:
        """The factor's value in our orientation."""
        if isinstance(factor.prior, Fixed):
            return factor.prior.value
        return factor.orient(np.asarray(values[factor.name], dtype=np.float64))
