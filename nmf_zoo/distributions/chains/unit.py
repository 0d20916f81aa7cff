"""Chains on the unit interval that spend their time near its ends (Yildirim, Cemgil, Singh 2012, section 4.2)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import _default_transform
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from nmf_zoo.distributions.chains.chain import (
    CACHE_VERSION,
    ChainDistribution,
    RowLogOdds,
    as_tensor,
    in_time,
    size_of,
    times_like,
)
from nmf_zoo.kernels.random.chain_draws import unit_path
from nmf_zoo.structure.chains import ChainPrior, UnitChainPrior


class UnitChainRV(RandomVariable):
    """Random variable of :class:`UnitChain`: inputs (rng, size, alpha, times)."""

    name = "unit_chain"
    signature = "(),(t)->(t)"
    dtype = "float64"
    _print_name = ("UnitChain", "\\operatorname{UnitChain}")

    def rng_fn(self, rng, alpha, times, size):
        batch = np.shape(alpha) if size is None else tuple(size)
        uniforms = rng.random((*batch, 2, times.shape[-1]))
        return np.vectorize(unit_path, otypes=[np.float64], signature="(two,t),()->(t)")(uniforms, alpha)


class UnitChain(ChainDistribution, Continuous):
    r"""Rows between 0 and 1, each a Markov chain in time: how far components are on.

    .. math::

        h_{k1} \sim U(0, 1), \qquad h_{kt} \mid (h_{k,t-1} = x) \sim \rho(x) U(0, x) + (1 - \rho(x)) U(x, 1),

    :math:`\rho(x) = \alpha` for x <= 1/2 and :math:`1 - \alpha` above. With alpha near 1 the chain stays near an end
    and seldom changes over. The density jumps where the chain turns, so that NUTS has no right to it: use slice or
    Metropolis steps. Values nearer to 1 than 2^-53 can't be held and are given as 1 - 2^-53.

    Parameters
    ----------
    alpha : number or (K,) tensor
        Probability of a move towards the nearer end, inside (0, 1).

    References
    ----------
    S. Yildirim, A. T. Cemgil, S. S. Singh (2012), section 4.2.

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> pm.draw(nz.UnitChain.dist(0.95, shape=(3, 100)), random_seed=1).shape
    (3, 100)
    """

    prior: ClassVar[type[ChainPrior]] = UnitChainPrior
    word: ClassVar[str] = "unit"
    example: ClassVar[tuple[float, ...]] = (0.9,)
    transform: ClassVar[type | None] = RowLogOdds
    rv_op = UnitChainRV()

    @classmethod
    def arguments(cls, alpha: Any) -> dict[str, Any]:
        return {"alpha": alpha}

    @classmethod
    def dist(cls, alpha, *, n_times=None, **kwargs):
        times = times_like(kwargs.get("shape"), n_times)
        return super().dist([as_tensor(alpha), times], **kwargs)

    def support_point(rv, size, alpha, times):
        return size_of(size, pt.full(rv.shape, 0.5))

    def logp(value, alpha, times):
        """Log-density of each row (batch,)."""
        is_inside = pt.all((value > 0) & (value < 1), axis=-1)
        before, after = value[..., :-1], value[..., 1:]
        towards_0 = pt.switch(before <= 0.5, in_time(alpha), 1 - in_time(alpha))
        is_down = after < before
        chance = pt.switch(is_down, towards_0, 1 - towards_0)
        rest = pt.switch(is_down, before, 1 - before)
        log_p = pt.sum(pt.log(chance) - pt.log(rest), axis=-1)
        return check_parameters(pt.switch(is_inside, log_p, -np.inf), alpha > 0, alpha < 1, msg="0 < alpha < 1")


@_default_transform.register(UnitChainRV)
def unit_chain_transform(op, rv):
    return RowLogOdds()


@numba_core_rv_funcify.register(UnitChainRV)
def numba_unit_chain(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def unit_chain(rng, alpha, times):
        return unit_path(rng.random((2, times.size)), np.float64(alpha))

    return unit_chain, CACHE_VERSION
