"""Binary chains that switch components on and off (Yildirim, Cemgil, Singh 2012, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Discrete
from pymc.logprob.abstract import _logprob
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from nmf_zoo.distributions.chains.chain import (
    CACHE_VERSION,
    STATIONARY,
    ChainDistribution,
    as_tensor,
    size_of,
    times_like,
)
from nmf_zoo.kernels.random.chain_draws import basis_path
from nmf_zoo.structure.chains import BasisChainPrior, ChainPrior


class BasisChainRV(RandomVariable):
    """Random variable of :class:`BasisChain`: inputs (rng, size, p, q, initial, times).

    ``stationary``: the first time has the chain's own law and ``initial`` is ignored.
    """

    name = "basis_chain"
    signature = "(),(),(),(t)->(t)"
    dtype = "int64"
    _print_name = ("BasisChain", "\\operatorname{BasisChain}")
    __props__ = (*RandomVariable.__props__, "stationary")  # type: ignore[assignment]

    def __init__(self, *args, stationary: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.stationary = stationary

    def __call__(self, *params, stationary: bool | None = None, **kwargs):
        if stationary is None or stationary == self.stationary:
            return super().__call__(*params, **kwargs)
        return type(self)(dtype=self.dtype, inplace=self.inplace, stationary=stationary)(*params, **kwargs)

    def rng_fn(self, rng, p, q, initial, times, size):
        initial = (1 - p) / (2 - p - q) if self.stationary else initial
        batch = np.broadcast_shapes(*map(np.shape, (p, q, initial))) if size is None else tuple(size)
        uniforms = rng.random((*batch, times.shape[-1]))
        return np.vectorize(basis_path, otypes=[np.int64], signature="(t),(),(),()->(t)")(uniforms, p, q, initial)


class BasisChain(ChainDistribution, Discrete):
    r"""Rows that are 0 or 1, each a Markov chain in time: which components are on.

    .. math:: P(h_{kt} = 0 \mid h_{k,t-1} = 0) = p, \qquad P(h_{kt} = 1 \mid h_{k,t-1} = 1) = q

    Parameters
    ----------
    p, q : number or (K,) tensor
        Probabilities of staying off and of staying on, inside (0, 1).
    initial : number or (K,) tensor, or "stationary"
        P(on) at the first time, inside (0, 1); "stationary" is (1 - p) / (2 - p - q).

    References
    ----------
    S. Yildirim, A. T. Cemgil, S. S. Singh (2012), An online expectation-maximisation algorithm for nonnegative matrix
    factorisation models, section 4.1.

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> pm.draw(nz.BasisChain.dist(0.9, 0.8, shape=(3, 100)), random_seed=1).shape
    (3, 100)
    """

    prior: ClassVar[type[ChainPrior]] = BasisChainPrior
    word: ClassVar[str] = "basis"
    stationary: ClassVar[Mapping[str, str | None]] = {"initial": STATIONARY}
    example: ClassVar[tuple[float, ...]] = (0.9, 0.8)
    rv_op = BasisChainRV()

    @classmethod
    def arguments(cls, p: Any, q: Any, initial: Any = 0.5) -> dict[str, Any]:
        return {"p": p, "q": q, "initial": initial}

    @classmethod
    def of_roles(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"initial": STATIONARY, **values}

    @classmethod
    def dist(cls, p, q, initial=0.5, *, n_times=None, **kwargs):
        stationary = isinstance(initial, str) and initial == STATIONARY
        first = np.float64(0.5) if stationary else initial
        params = [as_tensor(part) for part in (p, q, first)]
        times = times_like(kwargs.get("shape"), n_times)
        return super().dist([*params, times], stationary=stationary, **kwargs)

    def support_point(rv, size, p, q, initial, times):
        """All components on: the one path under which no count is impossible."""
        return size_of(size, pt.ones(rv.shape, dtype="int64"))


# Not a ``logp`` method: PyMC hands those the parameters only, and ``stationary`` belongs to the operation.
@_logprob.register(BasisChainRV)
def basis_chain_logprob(op, values, rng, size, p, q, initial, times, **kwargs):
    """Log-density of each row (batch,): counts of the four transitions are all that it needs."""
    (value,) = values
    first, before, after = value[..., 0], value[..., :-1], value[..., 1:]
    stay_on = (before * after).sum(axis=-1)
    left_on, entered_on = before.sum(axis=-1), after.sum(axis=-1)
    turn_on, turn_off = entered_on - stay_on, left_on - stay_on
    stay_off = before.shape[-1] - stay_on - turn_on - turn_off
    start = (1 - p) / (2 - p - q) if op.stationary else initial
    log_p = stay_off * pt.log(p) + turn_on * pt.log1p(-p) + stay_on * pt.log(q) + turn_off * pt.log1p(-q)
    log_p += pt.switch(pt.eq(first, 1), pt.log(start), pt.log1p(-start))
    is_binary = pt.all(pt.eq(value, 0) | pt.eq(value, 1), axis=-1)
    is_open = [(parameter > 0) & (parameter < 1) for parameter in (p, q, initial)]
    return check_parameters(pt.switch(is_binary, log_p, -np.inf), *is_open, msg="0 < p, q, initial < 1")


@numba_core_rv_funcify.register(BasisChainRV)
def numba_basis_chain(op, node):
    """Native draws for PyTensor's numba backend."""
    stationary = op.stationary

    @numba_njit
    def basis_chain(rng, p, q, initial, times):
        first = (1.0 - p) / (2.0 - p - q) if stationary else np.float64(initial)
        return basis_path(rng.random(times.size), np.float64(p), np.float64(q), first)

    return basis_chain, CACHE_VERSION
