"""Gamma Markov chains (Cemgil and Dikmen 2007), their auxiliary variables integrated out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import betaln, check_parameters
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import _default_transform
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from nmf_zoo.distributions.chains.chain import (
    CACHE_VERSION,
    ChainDistribution,
    RowLog,
    as_tensor,
    in_time,
    size_of,
    times_like,
)
from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.chain_draws import gamma_path
from nmf_zoo.structure.chains import ChainPrior, GammaChainPrior


class GammaChainRV(RandomVariable):
    """Random variable of :class:`GammaChain`.

    Inputs (rng, size, alpha_z, alpha_h, beta_z, shape and rate of the first time, times).
    """

    name = "gamma_chain"
    signature = "(),(),(),(),(),(t)->(t)"
    dtype = "float64"
    _print_name = ("GammaChain", "\\operatorname{GammaChain}")

    def rng_fn(self, rng, alpha_z, alpha_h, beta_z, shape, rate, times, size):
        parameters = np.broadcast_arrays(alpha_z, alpha_h, beta_z, shape, rate)
        batch = parameters[0].shape if size is None else tuple(size)
        gammas = rng.standard_gamma(
            np.stack([_over_times(alpha_z, alpha_z, batch, times), _over_times(shape, alpha_h, batch, times)], axis=-2)
        )
        uniforms = rng.random(gammas.shape)
        path = np.vectorize(gamma_path, otypes=[np.float64], signature="(two,t),(two,t),(two),(),(two)->(t)")
        pairs = (np.stack(np.broadcast_arrays(*pair), axis=-1) for pair in ((alpha_z, alpha_h), (shape, rate)))
        shapes, initial = pairs
        return path(gammas, uniforms, shapes, beta_z, initial)


def _over_times(first, others, batch, times):
    """(*batch, T) of shape + 1: that of the first time, and of the others."""
    out = np.empty((*batch, times.shape[-1]))
    out[..., 1:] = np.asarray(others)[..., None] + 1.0
    out[..., 0] = np.asarray(first) + 1.0
    return out


class GammaChain(ChainDistribution, Continuous):
    r"""Positive rows that change smoothly: a gamma draw z, and a gamma draw h of rate z, at every time.

    .. math:: z_{kt} \mid h_{k,t-1} \sim \mathrm{Gamma}(\alpha_z, \; \beta_z h_{k,t-1}), \qquad
        h_{kt} \mid z_{kt} \sim \mathrm{Gamma}(\alpha_h, \; z_{kt})

    with rates as second parameters. z is integrated out: given the time before h is a scaled beta prime,

    .. math:: p(h \mid h') = \frac{1}{B(\alpha_h, \alpha_z)} \frac{h^{\alpha_h - 1} (\beta_z h')^{\alpha_z}}
        {(h + \beta_z h')^{\alpha_h + \alpha_z}}

    so that h / h' has the mean beta_z alpha_h / (alpha_z - 1) for alpha_z > 1, and log h takes steps of variance
    trigamma(alpha_h) + trigamma(alpha_z) and mean digamma(alpha_h) - digamma(alpha_z) + log beta_z. It is a random walk
    and has no proper stationary law: forecasts spread without a bound. :class:`~nmf_zoo.BGAR` has one.

    Parameters
    ----------
    alpha_z, alpha_h : number or (K,) tensor
        Shapes of the two draws, > 0. The larger, the smoother the chain.
    beta_z : number or (K,) tensor
        The ratio beta_z / beta_h of the rates in the reference, > 0: H's law depends on them through it alone.
    initial : (shape, rate) of the gamma law of the first time, > 0

    References
    ----------
    A. T. Cemgil, O. Dikmen (2007), Conjugate gamma Markov random fields for modelling nonstationary sources. In the
    notation of L. Filstroff, O. Gouvert, C. Fevotte, O. Cappe (2021), A comparative study of gamma Markov chains for
    temporal non-negative matrix factorization, section III-C.

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> pm.draw(nz.GammaChain.dist(20.0, 20.0, shape=(3, 100)), random_seed=1).shape
    (3, 100)
    """

    prior: ClassVar[type[ChainPrior]] = GammaChainPrior
    word: ClassVar[str] = "gamma"
    stationary: ClassVar[Mapping[str, str | None]] = {}
    example: ClassVar[tuple[float, ...]] = (3.0, 2.0)
    transform: ClassVar[type | None] = RowLog
    rv_op = GammaChainRV()

    @classmethod
    def arguments(cls, alpha_z: Any, alpha_h: Any, beta_z: Any = 1.0, initial: Any = (1.0, 1.0)) -> dict[str, Any]:
        shape, rate = first_gamma(initial)
        own = {"alpha_z": alpha_z, "alpha_h": alpha_h, "beta_z": beta_z}
        return own | {"initial_shape": shape, "initial_rate": rate}

    @classmethod
    def of_roles(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The two of the first time as a pair."""
        first = values["initial_shape"], values["initial_rate"]
        return {role: own for role, own in values.items() if role not in cls.prior.of_first} | {"initial": first}

    @classmethod
    def dist(cls, alpha_z, alpha_h, beta_z=1.0, initial=(1.0, 1.0), *, n_times=None, **kwargs):
        params = [as_tensor(part) for part in (alpha_z, alpha_h, beta_z, *first_gamma(initial))]
        times = times_like(kwargs.get("shape"), n_times)
        return super().dist([*params, times], **kwargs)

    def support_point(rv, size, alpha_z, alpha_h, beta_z, shape, rate, times):
        """The chain at the mean of its first time."""
        return size_of(size, pt.full(rv.shape, in_time(shape / rate)))

    def logp(value, alpha_z, alpha_h, beta_z, shape, rate, times):
        """Log-density of each row (batch,)."""
        is_positive = pt.all(value > 0, axis=-1)
        log_value = pt.log(value)
        before = log_value[..., :-1] + in_time(pt.log(beta_z))
        steps = in_time(alpha_h - 1.0) * log_value[..., 1:] + in_time(alpha_z) * before
        steps -= in_time(alpha_z + alpha_h) * pt.logaddexp(log_value[..., 1:], before)
        first = (shape - 1.0) * log_value[..., 0] - rate * value[..., 0] + shape * pt.log(rate) - pt.gammaln(shape)
        log_p = first + pt.sum(steps - in_time(betaln(alpha_h, alpha_z)), axis=-1)
        limits = alpha_z > 0, alpha_h > 0, beta_z > 0, shape > 0, rate > 0
        return check_parameters(pt.switch(is_positive, log_p, -np.inf), *limits, msg="all parameters > 0")


def first_gamma(initial: Any) -> tuple[Any, Any]:
    """The shape and the rate of h at the first time."""
    is_row = isinstance(initial, tuple | list) or (isinstance(initial, np.ndarray) and initial.ndim > 0)
    if not is_row or len(initial) != 2:
        do = "a gamma chain has no stationary law" if initial == "stationary" else ""
        raise InputError("initial", repr(initial), "two numbers (shape, rate) of h at the first time", do)
    return initial[0], initial[1]


@_default_transform.register(GammaChainRV)
def gamma_chain_transform(op, rv):
    return RowLog()


@numba_core_rv_funcify.register(GammaChainRV)
def numba_gamma_chain(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def gamma_chain(rng, alpha_z, alpha_h, beta_z, shape, rate, times):
        gammas = np.empty((2, times.size))
        for t in range(times.size):
            gammas[0, t] = rng.standard_gamma(np.float64(alpha_z) + 1.0)
            gammas[1, t] = rng.standard_gamma((np.float64(shape) if t == 0 else np.float64(alpha_h)) + 1.0)
        uniforms = np.empty((2, times.size))
        for row in range(2):
            uniforms[row] = rng.random(times.size)
        shapes, initial = np.array([alpha_z, alpha_h]), (np.float64(shape), np.float64(rate))
        return gamma_path(gammas, uniforms, shapes, np.float64(beta_z), initial)

    return gamma_chain, CACHE_VERSION
