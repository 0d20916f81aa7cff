"""Beta-gamma autoregressions of order one (Lewis, McKenzie and Hugus 1989)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import _default_transform
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
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
from nmf_zoo.kernels.hmm import bgar
from nmf_zoo.kernels.random.chain_draws import bgar_path
from nmf_zoo.structure.chains import BGARPrior, ChainPrior

DENSITY_VERSION = zlib.crc32(Path(bgar.__file__).read_bytes())


class BGARRV(RandomVariable):
    """Random variable of :class:`BGAR`: inputs (rng, size, alpha, beta, rho, times)."""

    name = "bgar"
    signature = "(),(),(),(t)->(t)"
    dtype = "float64"
    _print_name = ("BGAR", "\\operatorname{BGAR}")

    def rng_fn(self, rng, alpha, beta, rho, times, size):
        alpha, beta, rho = np.broadcast_arrays(alpha, beta, rho)
        batch = alpha.shape if size is None else tuple(size)
        shapes = np.stack([alpha * rho, alpha * (1 - rho), alpha * (1 - rho)], axis=-1)[..., None] + 1.0
        gammas = rng.standard_gamma(np.broadcast_to(shapes, (*batch, 3, times.shape[-1])))
        uniforms = rng.random(gammas.shape)
        path = np.vectorize(bgar_path, otypes=[np.float64], signature="(three,t),(three,t),(),(),()->(t)")
        return path(gammas, uniforms, alpha, beta, rho)


class LogBGAR(Op):
    """(values (K, T), alpha (K,), beta (K,), rho (K,)) -> log density of each row, (K,). It has no gradient."""

    __props__ = ()
    gufunc_signature = "(k,t),(k),(k),(k)->(k)"

    def make_node(self, value, *parameters):
        inputs = [pt.cast(pt.as_tensor_variable(part), "float64") for part in (value, *parameters)]
        return Apply(self, inputs, [pt.vector(shape=inputs[0].type.shape[:1], dtype="float64")])

    def perform(self, node, inputs, output_storage):
        out = np.empty(len(inputs[0]))
        bgar.log_bgar_rows(out, *map(np.ascontiguousarray, inputs))
        output_storage[0][0] = out


@register_funcify_default_op_cache_key(LogBGAR)
def numba_log_bgar(op, node, **kwargs):
    """Native code for PyTensor's numba backend."""

    @numba_njit
    def log_bgar(value, alpha, beta, rho):
        out = np.empty(value.shape[0])
        bgar.log_bgar_rows(out, value, alpha, beta, rho)
        return out

    return log_bgar, DENSITY_VERSION


class BGAR(ChainDistribution, Continuous):
    r"""Positive rows that change smoothly about a gamma law: a share of h stays, and a gamma draw is added.

    .. math:: h_{kt} = b_{kt} h_{k,t-1} + \epsilon_{kt}, \qquad
        b_{kt} \sim \mathrm{Beta}(\alpha \rho, \; \alpha (1 - \rho)), \quad
        \epsilon_{kt} \sim \mathrm{Gamma}(\alpha (1 - \rho), \; \beta)

    with rates as second parameters. The chain begins from its stationary law, Gamma(alpha, beta), and keeps it at every
    time; values n steps apart have the correlation rho^n. Its density is an integral over b for every step, which is
    computed to some 1e-12; where alpha (1 - rho) is at most 1 / 2 it has a pole at a value that stays the same. It has
    no gradient: Gibbs sampling draws from its posteriors, with the shares that stay as auxiliary variables.

    Parameters
    ----------
    alpha, beta : number or (K,) tensor
        Shape and rate of the stationary gamma law, > 0.
    rho : number or (K,) tensor
        Correlation of neighbours, inside (0, 1).

    References
    ----------
    P. A. W. Lewis, E. McKenzie, D. K. Hugus (1989), Gamma processes. As a prior of activations: L. Filstroff,
    O. Gouvert, C. Fevotte, O. Cappe (2021), A comparative study of gamma Markov chains for temporal non-negative matrix
    factorization, section IV.

    Examples
    --------
    >>> import pymc as pm, nmf_zoo as nz
    >>> pm.draw(nz.BGAR.dist(2.0, 1.0, 0.9, shape=(3, 100)), random_seed=1).shape
    (3, 100)
    """

    prior: ClassVar[type[ChainPrior]] = BGARPrior
    word: ClassVar[str] = "bgar"
    stationary: ClassVar[Mapping[str, str | None]] = {}
    example: ClassVar[tuple[float, ...]] = (2.0, 1.0, 0.6)
    transform: ClassVar[type | None] = RowLog
    rv_op = BGARRV()

    @classmethod
    def arguments(cls, alpha: Any, beta: Any, rho: Any) -> dict[str, Any]:
        return {"alpha": alpha, "beta": beta, "rho": rho}

    @classmethod
    def dist(cls, alpha, beta, rho, *, n_times=None, **kwargs):
        params = [as_tensor(part) for part in (alpha, beta, rho)]
        return super().dist([*params, times_like(kwargs.get("shape"), n_times)], **kwargs)

    def support_point(rv, size, alpha, beta, rho, times):
        """The chain at its mean, where neighbours are not equal: there the density may have a pole."""
        nearly = pt.exp(0.1 * pt.cos(np.pi * pt.cumsum(pt.ones_like(times, dtype="float64"))))
        return size_of(size, pt.full(rv.shape, in_time(alpha / beta) * nearly))

    def logp(value, alpha, beta, rho, times):
        """Log-density of each row (batch,)."""
        batch, n_times = value.shape[:-1], value.shape[-1]
        parameters = [pt.broadcast_to(own, batch).ravel() for own in (alpha, beta, rho)]
        log_p = LogBGAR()(value.reshape((-1, n_times)), *parameters).reshape(batch, ndim=value.ndim - 1)
        limits = alpha > 0, beta > 0, rho > 0, rho < 1
        return check_parameters(log_p, *limits, msg="alpha > 0, beta > 0, 0 < rho < 1")


@_default_transform.register(BGARRV)
def bgar_transform(op, rv):
    return RowLog()


@numba_core_rv_funcify.register(BGARRV)
def numba_bgar(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def draw_bgar(rng, alpha, beta, rho, times):
        stays, comes = np.float64(alpha) * np.float64(rho) + 1.0, np.float64(alpha) * (1.0 - np.float64(rho)) + 1.0
        gammas, uniforms = np.empty((3, times.size)), np.empty((3, times.size))
        for t in range(times.size):
            for row in range(3):
                gammas[row, t] = rng.standard_gamma(stays if row == 0 else comes)
                uniforms[row, t] = rng.random()
        return bgar_path(gammas, uniforms, np.float64(alpha), np.float64(beta), np.float64(rho))

    return draw_bgar, CACHE_VERSION
