"""Variational Bayes on small dense tables by one compiled loop (:mod:`nmf_zoo.kernels.counts.small_bound`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.hyperparameters import LARGE
from nmf_zoo.kernels.counts.small_bound import BOUND, PUSH, PUSH_BOUND, RESIDUAL, Cells, Led, Table, climb
from nmf_zoo.structure import Array, Dense
from nmf_zoo.workbench.bound_correction import Posterior

MOST_WORK = 1 << 15  # cells of X times components: above, BLAS is faster
BLOCK = 250  # iterations of one call: an interruption waits for one


def is_small(problem: vb.Problem) -> bool:
    """Whether the loop can do it, and fast: a small dense table, gamma priors of known hyperparameters."""
    structure = problem.structure
    if not isinstance(structure.data, Dense) or np.prod(structure.shape) * structure.rank > MOST_WORK:
        return False
    if structure.unknowns or not all(side.is_gamma for side in problem.sides) or problem.options != vb.VB():
        return False
    return all(np.max(side.prior({})[0]) <= LARGE for side in problem.sides)


def climb_small(problem: vb.Problem, state: vb.VBState, max_iter: int, tol: float, job: Any):
    """(q, bound, residual) of a climb from a starting state; None where a mean underflows."""
    table, pair = _table(problem), (state.W.mean, state.H.mean)
    sources = (state.sources.of_W, state.sources.of_H)
    W, H = (_cells(*each) for each in zip(problem.sides, pair, sources, strict=True))
    spares = tuple(Cells(*(np.copy(array) for array in side)) for side in (W, H))
    led = tuple(Led(*(np.ones_like(side.mean) for _ in Led._fields)) for side in (W, H))
    numbers = np.array([-np.inf, vb.GENTLE, 1.0, np.inf, 0.0])
    numbers[PUSH], numbers[PUSH_BOUND] = state.momentum
    done = 0
    while done < max_iter and numbers[RESIDUAL] >= tol and not job.is_stopped():
        more = climb(table, W, H, spares, led, numbers, min(BLOCK, max_iter - done), tol)
        if more < 0:
            return None
        done += more
        if not np.isfinite(numbers[BOUND]):
            raise RunFailed(f"the bound became {numbers[BOUND]} within {done} iterations")
        job.report(done, f"bound {numbers[BOUND]:.6g}")
    return Posterior(W.mean, H.mean, W.shape, H.shape), float(numbers[BOUND]), float(numbers[RESIDUAL])


def _table(problem: vb.Problem) -> Table:
    structure = problem.structure
    data, exposure, background = structure.data, structure.exposure_table(), structure.background_table()
    weight = np.array(exposure if data.mask is None else data.mask * exposure, dtype=np.float64)
    priors = sum(_prior_constant(*(_full(each, side) for each in side.prior({}))) for side in problem.sides)
    return Table(np.ascontiguousarray(data.values), weight, background / exposure, problem.constant - priors)


def _prior_constant(shape: Array, rate: Array) -> float:
    return float(np.sum(gammaln(shape) - shape * np.log(rate)))


def _full(prior: Array, side: Side) -> Array:
    return np.array(np.broadcast_to(prior, side.turn(np.empty(side.factor.shape)).shape), dtype=np.float64)


def _cells(side: Side, start: Array, sources: Array) -> Cells:
    shape, rate = (_full(each, side) for each in side.prior({}))
    mean = np.array(start, dtype=np.float64)
    empty = [np.ones_like(mean) for _ in range(4)]
    q_shape, q_rate, log, geometric = empty
    return Cells(shape, rate, q_shape, q_rate, mean, log, geometric, np.array(sources, dtype=np.float64))
