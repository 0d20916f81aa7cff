"""Parameters of priors: known arrays, or unknown hyperparameters with priors of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaln, gammaln, log_ndtr, xlog1py, xlogy

Array = np.ndarray
HALF_LOG_2_PI = 0.5 * np.log(2 * np.pi)


def broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """As ``np.broadcast_to``: a view that can't be written to.

    Parameters of priors are mostly one number or one for each cell. Of these it takes a quarter of NumPy's time, which
    sweeps of small tables spend on it as they spend it on their kernels.
    """
    if array.shape == shape:
        view = array.view()
    elif array.size == 1 and array.ndim <= len(shape):
        view = np.ndarray(shape, array.dtype, array, 0, (0,) * len(shape))
    else:
        return np.broadcast_to(array, shape)
    view.flags.writeable = False
    return view


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


def log_gamma_density(v, shape, rate):
    return xlogy(shape - 1, v) - rate * v + xlogy(shape, rate) - gammaln(shape)


def log_inverse_gamma_density(v, shape, scale):
    return -(shape + 1) * np.log(v) - scale / v + shape * np.log(scale) - gammaln(shape)


def _log_lognormal_density(v, mu, sigma):
    return -0.5 * ((np.log(v) - mu) / sigma) ** 2 - np.log(v * sigma) - HALF_LOG_2_PI


def log_half_normal_density(v, sigma):
    return -0.5 * (v / sigma) ** 2 - np.log(sigma) + 0.5 * np.log(2 / np.pi)


def log_truncated_normal_density(v, mu, sigma):
    """Of [0, inf)."""
    return -0.5 * ((v - mu) / sigma) ** 2 - np.log(sigma) - HALF_LOG_2_PI - log_ndtr(mu / sigma)


def _log_uniform_density(v, lower, upper):
    return np.where((v >= lower) & (v <= upper), -np.log(upper - lower), -np.inf)


def _log_normal_density(v, mu, sigma):
    return -0.5 * ((v - mu) / sigma) ** 2 - np.log(sigma) - HALF_LOG_2_PI


def _log_beta_density(v, a, b):
    return xlogy(a - 1, v) + xlog1py(b - 1, -v) - betaln(a, b)


HYPER_PRIORS: dict[str, Callable[..., Array]] = {
    "flat": lambda v: np.zeros_like(v),
    "gamma": log_gamma_density,
    "inverse_gamma": log_inverse_gamma_density,
    "lognormal": _log_lognormal_density,
    "half_normal": log_half_normal_density,
    "uniform": _log_uniform_density,
    "beta": _log_beta_density,
    "normal": _log_normal_density,
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

    Notes
    -----
    tied : of the class: what has one of its entries, in words; empty where ``shape`` says so
    """

    tied: ClassVar[str] = ""

    name: str
    variable_shape: tuple[int, ...]
    shape: tuple[int, ...]
    prior: HyperPrior

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """The array to compute with, given the values of the unknowns."""
        return np.asarray(values[self.name], dtype=np.float64).reshape(self.shape)

    def whole(self, draws: Array) -> Array:
        """Draws (..., *variable_shape) as arrays to compute with, (..., *shape)."""
        return draws.reshape((*draws.shape[: draws.ndim - len(self.variable_shape)], *self.shape))

    def entries(self, array: Array) -> Array:
        """What arrays (..., *shape) have for the variable's entries, (..., *variable_shape)."""
        return array.reshape((*array.shape[: array.ndim - len(self.shape)], *self.variable_shape))


@dataclass(frozen=True, kw_only=True)
class PartlyKnown(Unknown):
    """A hyperparameter that is known of some components, and of the others a variable, which holds them in order.

    Attributes
    ----------
    known : of ``shape``, what is known; 1 at the variable's entries
    are_free : of ``shape``, bool, which these are
    """

    known: Array
    are_free: Array

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """The array to compute with, given the values of the unknowns."""
        return self.whole(np.asarray(values[self.name], dtype=np.float64))

    def whole(self, draws: Array) -> Array:
        """Draws (..., *variable_shape) beside what is known, (..., *shape)."""
        lead = draws.shape[: draws.ndim - len(self.variable_shape)]
        out = np.array(np.broadcast_to(self.known, (*lead, *self.shape)))
        out[..., self.are_free] = draws.reshape((*lead, -1))
        return out

    def entries(self, array: Array) -> Array:
        """What arrays (..., *shape) have for the variable's entries, (..., *variable_shape)."""
        return array[..., self.are_free].reshape((*array.shape[: array.ndim - len(self.shape)], *self.variable_shape))


Parameter = Known | Unknown
