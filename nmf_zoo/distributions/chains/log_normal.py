"""Positive chains whose logarithm is an AR(1) (Yildirim, Cemgil, Singh 2012, section 5: a log-Gaussian process)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import _logprob
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from nmf_zoo.distributions.chains.chain import (
    CACHE_VERSION,
    STATIONARY,
    ChainDistribution,
    RowLog,
    as_tensor,
    in_time,
    size_of,
    times_like,
)
from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.chain_draws import log_normal_path
from nmf_zoo.structure.chains import ChainPrior, LogNormalARPrior

HALF_LOG_2_PI = np.float64(0.5 * np.log(2 * np.pi))


class LogNormalARRV(RandomVariable):
    """Random variable of :class:`LogNormalAR`.

    Inputs (rng, size, mean, persistence, scale, mean and scale of the first logarithm, times). ``stationary``: the
    first time has the chain's own law and its two parameters are ignored.
    """

    name = "log_normal_ar"
    signature = "(),(),(),(),(),(t)->(t)"
    dtype = "float64"
    _print_name = ("LogNormalAR", "\\operatorname{LogNormalAR}")
    __props__ = (*RandomVariable.__props__, "stationary")  # type: ignore[assignment]

    def __init__(self, *args, stationary: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.stationary = stationary

    def __call__(self, *params, stationary: bool | None = None, **kwargs):
        if stationary is None or stationary == self.stationary:
            return super().__call__(*params, **kwargs)
        return type(self)(dtype=self.dtype, inplace=self.inplace, stationary=stationary)(*params, **kwargs)

    def rng_fn(self, rng, mean, persistence, scale, first_mean, first_scale, times, size):
        if self.stationary:
            first_mean, first_scale = mean, scale / np.sqrt(1 - persistence**2)
        first = np.stack(np.broadcast_arrays(first_mean, first_scale), axis=-1)
        batch = np.broadcast_shapes(*map(np.shape, (mean, persistence, scale, first[..., 0])))
        normals = rng.standard_normal((*(batch if size is None else tuple(size)), times.shape[-1]))
        path = np.vectorize(log_normal_path, otypes=[np.float64], signature="(t),(),(),(),(two)->(t)")
        return path(normals, mean, persistence, scale, first)


class LogNormalAR(ChainDistribution, Continuous):
    r"""Positive rows, each the exponential of an autoregression of order one.

    .. math:: \log h_{kt} \sim N(m_k + \phi_k (\log h_{k,t-1} - m_k), \; s_k^2)

    Parameters
    ----------
    mean : number or (K,) tensor
        m, the mean of log h that the chain returns to.
    persistence : number or (K,) tensor
        phi, inside (-1, 1).
    scale : number or (K,) tensor
        s, the standard deviation of a step, > 0.
    initial : (mean, standard deviation) of log h at the first time, or "stationary"
        "stationary" is (m, s / sqrt(1 - phi^2)).

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> pm.draw(nz.LogNormalAR.dist(0.0, 0.9, 0.3, shape=(3, 100)), random_seed=1).shape
    (3, 100)
    """

    prior: ClassVar[type[ChainPrior]] = LogNormalARPrior
    word: ClassVar[str] = "log-normal"
    stationary: ClassVar[Mapping[str, str | None]] = {"initial_mean": None, "initial_scale": None}
    example: ClassVar[tuple[float, ...]] = (0.0, 0.5, 1.0)
    transform: ClassVar[type | None] = RowLog
    rv_op = LogNormalARRV()

    @classmethod
    def arguments(cls, mean: Any, persistence: Any, scale: Any, initial: Any = STATIONARY) -> dict[str, Any]:
        first_mean, first_scale = (None, None) if is_stationary(initial) else first_law(initial)
        own = {"mean": mean, "persistence": persistence, "scale": scale}
        return own | {"initial_mean": first_mean, "initial_scale": first_scale}

    @classmethod
    def of_roles(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The two of the first time as a pair."""
        others = dict(values)
        first = others.pop("initial_mean", None), others.pop("initial_scale", None)
        return {**others, "initial": STATIONARY if first[0] is None else first}

    @classmethod
    def dist(cls, mean, persistence, scale, initial=STATIONARY, *, n_times=None, **kwargs):
        stationary = is_stationary(initial)
        first = (np.float64(0.0), np.float64(1.0)) if stationary else first_law(initial)
        params = [as_tensor(part) for part in (mean, persistence, scale, *first)]
        times = times_like(kwargs.get("shape"), n_times)
        return super().dist([*params, times], stationary=stationary, **kwargs)

    def support_point(rv, size, mean, persistence, scale, first_mean, first_scale, times):
        """The chain at its mean."""
        return size_of(size, pt.full(rv.shape, in_time(pt.exp(mean))))


def is_stationary(initial: Any) -> bool:
    return isinstance(initial, str) and initial == STATIONARY


def first_law(initial: Any) -> tuple[Any, Any]:
    """The mean and the standard deviation of log h at the first time."""
    is_row = isinstance(initial, tuple | list) or (isinstance(initial, np.ndarray) and initial.ndim > 0)
    if not is_row or len(initial) != 2:
        raise InputError("initial", repr(initial), 'two numbers (mean, standard deviation) of log h, or "stationary"')
    return initial[0], initial[1]


# Not a ``logp`` method: PyMC hands those the parameters only, and ``stationary`` belongs to the operation.
@_logprob.register(LogNormalARRV)
def log_normal_ar_logprob(op, values, rng, size, mean, persistence, scale, first_mean, first_scale, times, **kwargs):
    """Log-density of each row (batch,)."""
    (value,) = values
    is_positive = pt.all(value > 0, axis=-1)
    log_value = pt.log(value)
    if op.stationary:
        first_mean, first_scale = mean, scale / pt.sqrt(1 - persistence**2)
    expected = in_time(mean) + in_time(persistence) * (log_value[..., :-1] - in_time(mean))
    steps = (log_value[..., 1:] - expected) / in_time(scale)
    first = (log_value[..., 0] - first_mean) / first_scale
    n_steps = steps.shape[-1]
    log_p = -0.5 * (pt.sum(steps**2, axis=-1) + first**2) - pt.sum(log_value, axis=-1)
    log_p -= n_steps * pt.log(scale) + pt.log(first_scale) + (n_steps + 1) * HALF_LOG_2_PI
    limits = scale > 0, first_scale > 0, persistence > -1, persistence < 1
    return check_parameters(
        pt.switch(is_positive, log_p, -np.inf), *limits, msg="scale > 0, initial scale > 0, -1 < persistence < 1"
    )


@_default_transform.register(LogNormalARRV)
def log_normal_ar_transform(op, rv):
    return RowLog()


@numba_core_rv_funcify.register(LogNormalARRV)
def numba_log_normal_ar(op, node):
    """Native draws for PyTensor's numba backend."""
    stationary = op.stationary

    @numba_njit
    def log_normal_ar(rng, mean, persistence, scale, first_mean, first_scale, times):
        first = np.float64(first_mean), np.float64(first_scale)
        if stationary:
            first = np.float64(mean), scale / np.sqrt(1.0 - persistence**2)
        normals = rng.standard_normal(times.size)
        return log_normal_path(normals, np.float64(mean), np.float64(persistence), np.float64(scale), first)

    return log_normal_ar, CACHE_VERSION
