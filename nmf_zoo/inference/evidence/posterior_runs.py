"""Draws of both factors from a model's posterior, and the same with sharper priors, for estimates of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.counts.sweeps import weight_arrays
from nmf_zoo.inference.shared.factor_view import prior_cells, two_sides
from nmf_zoo.inference.shared.joint import LogJoint
from nmf_zoo.inference.shared.layout import compress, weigh
from nmf_zoo.kernels.counts.joint import log_joints
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.engine import START, STEPS
from nmf_zoo.runtime.jobs import Job
from nmf_zoo.runtime.run_one import Sweeps, run_one
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Array, Factorisation, Fixed, GammaPrior, Known

SWEEPS = 50  # of a block
BETWEEN = STEPS + 1  # child of a chain's stream, beside those of the engine


class FactorPair(NamedTuple):
    """W (..., F, K) and Ht (..., N, K): one state of both factors, or a stack of draws."""

    W: Array
    Ht: Array

    def take(self, rows: Any) -> FactorPair:
        """Some draws of a stack."""
        return FactorPair(self.W[rows], self.Ht[rows])

    def ordered(self, order: Array) -> FactorPair:
        """The components of every draw in a new order, (draws, K)."""
        return FactorPair(*(np.take_along_axis(array, order[:, None, :], axis=2) for array in self))


class Draws(NamedTuple):
    """Posterior draws and their log joint density."""

    pair: FactorPair
    lp: Array


def draw_posterior(
    structure: Factorisation,
    key: np.uint64,
    start: FactorPair | None,
    tune: int,
    draws: int,
    job: Job,
    done: int = 0,
    between: Callable[[gibbs.GibbsState, np.uint64], None] | None = None,
) -> Draws:
    """Gibbs sweeps, ``tune`` of them to warm up; ``done`` steps of the job's progress came before.

    ``between`` changes the state, in place and with the posterior as it was, after every ``SWEEPS`` sweeps.
    """
    problem = gibbs.prepare(structure, gibbs.Gibbs(), job.workers)
    state = gibbs.init(problem, child(key, START), {} if start is None else as_variables(structure, start))
    length, kept, sweeps = Sweeps(tune=tune, draws=draws, block=SWEEPS), [], 0
    for at in run_one(gibbs.ENGINE, problem, state, length, replace(job, key=key)):
        sweeps = at.step.number
        if at.stats:
            kept.append((as_pair(structure, at.values), at.stats["lp"]))
        if between is not None:
            between(at.state, child(key, BETWEEN, sweeps))
        job.report(done + sweeps, "")
    if sweeps < length.total:
        raise KeyboardInterrupt
    pairs, lp = zip(*kept, strict=True)
    return Draws(FactorPair(*(np.concatenate(parts) for parts in zip(*pairs, strict=True))), np.concatenate(lp))


def as_pair(structure: Factorisation, values: Mapping[str, Array]) -> FactorPair:
    """A stack of draws from the unknown factors' values by name, (draws, ...) in the model's orientation."""
    n = len(next(iter(values.values())))
    arrays = []
    for side in two_sides(structure):
        if side.is_fixed:
            known = side.turn(side.factor.prior.value)
            arrays.append(np.broadcast_to(known, (n, *known.shape)))
        else:
            arrays.append(np.ascontiguousarray(side.as_variable(values[side.factor.name])))
    return FactorPair(*arrays)


def as_variables(structure: Factorisation, pair: FactorPair) -> dict[str, Array]:
    """The unknown factors by name, in the model's orientation; of known components the new ones beside the whole."""
    found: dict[str, Array] = {}
    for side, array in zip(two_sides(structure), pair, strict=True):
        found |= side.factor.variables(side.turn(array))
    return found


def typical_point(structure: Factorisation, posterior: Draws) -> FactorPair:
    """The draw of the highest density on the logarithms of the cells: in the bulk also where cells crowd at 0."""
    density = posterior.lp.copy()
    for side, array in zip(two_sides(structure), posterior.pair, strict=True):
        if not side.is_fixed:
            density += np.sum(np.log(array[:, :, side.free]), axis=(1, 2))
    return FactorPair(*(np.array(array[np.argmax(density)]) for array in posterior.pair))


def sharpen(structure: Factorisation, point: FactorPair, sharpness: float) -> Factorisation:
    """The model with every prior density times (v / point)^s exp(s (1 - v / point)), which peaks at the point.

    A gamma density again, Gamma(shape + s, rate + s / point), but for its constant.
    """
    priors = prior_cells(structure, {})
    cells = ((priors.shape_w, priors.rate_w), (priors.shape_h, priors.rate_h))
    factors = []
    for side, (shape, rate), centre in zip(two_sides(structure), cells, point, strict=True):
        if isinstance(side.factor.prior, Fixed):
            factors.append(side.factor)
            continue
        shape, rate, centre = (array[:, side.free] for array in (shape, rate, centre))
        sharper = (side.turn(array) for array in (shape + sharpness, rate + sharpness / centre))
        known = [Known(value=np.ascontiguousarray(array)) for array in sharper]
        factors.append(replace(side.factor, prior=GammaPrior(shape=known[0], rate=known[1])))
    return replace(structure, W=factors[0], H=factors[1], imputed=None)


def nearness(structure: Factorisation, pair: FactorPair, point: FactorPair) -> Array:
    """sum log(v / point) + 1 - v / point over the unknown cells of every draw, 0 at the point: (draws,)."""
    total = np.zeros(len(pair.W))
    for side, draws, centre in zip(two_sides(structure), pair, point, strict=True):
        if not side.is_fixed:
            ratio = draws[:, :, side.free] / centre[:, side.free]
            total += np.sum(np.log(ratio) + 1.0 - ratio, axis=(1, 2))
    return total


def flatten(structure: Factorisation, pair: FactorPair) -> Array:
    """The unknown cells of every draw in one row, (draws, d)."""
    sides = zip(two_sides(structure), pair, strict=True)
    own = [array[:, :, side.free] for side, array in sides if not side.is_fixed]
    return np.concatenate([array.reshape(len(array), -1) for array in own], axis=1)


def unflatten(structure: Factorisation, cells: Array) -> FactorPair:
    """The inverse."""
    arrays, first = [], 0
    for side in two_sides(structure):
        if side.is_fixed:
            known = side.turn(side.factor.prior.value)
            arrays.append(np.broadcast_to(known, (len(cells), *known.shape)))
            continue
        shape = side.turn(np.empty(side.factor.free_shape)).shape
        size = shape[0] * shape[1]
        arrays.append(side.whole(cells[:, first : first + size].reshape(-1, *shape)))
        first += size
    return FactorPair(*arrays)


class LogJoints:
    """log p(X, W, H) of stacks of draws."""

    def __init__(self, structure: Factorisation):
        layout, weights, priors = compress(structure), weigh(structure), prior_cells(structure, {})
        own = type(priors)(*(np.array(array, order="C") for array in priors))
        self._arrays = layout, weight_arrays(weights), own
        self._constant = LogJoint(structure, layout, weights, SERIAL)

    def __call__(self, pair: FactorPair) -> Array:
        out = np.empty(len(pair.W))
        log_joints(out, *self._arrays, *map(np.ascontiguousarray, pair))
        return out + (self._constant.constant + self._constant.prior_constant)
