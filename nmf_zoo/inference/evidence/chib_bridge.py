"""The evidence by tightening the posterior around a point, step by step, until its integral is plain.

Chib's identity asks for the posterior density of one point (W~, H~). Averages of conditional densities cannot give it
when the counts are large: a conditional is then far narrower than the posterior, in all of its dimensions. Here the
point's density is approached from the other side. With the C of Gibbs sampling summed out, the densities::

    p_s(W, H) = p(X, W, H) prod_v (v / v~)^s exp(s (1 - v / v~))       v all unknown cells of W and H

are 's' times sharper around the point. Each is the model itself with gamma priors Gamma(a + s, r + s / v~), but for a
constant, so that the Gibbs sampler and its trajectories draw from it; and log p_s - log p_0 = s T with one number T
for each draw. From s = 0, whose integral is p(X), s rises as fast as neighbours overlap; their ratios come from bridge
sampling. At the last s the cube roots of the cells are nearly normal (Wilson & Hilferty), and one more bridge to a
fitted normal density, which is known, ends the chain of ratios.

At s = 0 the posterior has one copy for each of the n exchanges of alike components, and at a small s a chain still
wanders among many. Every draw is put into the labelling of the point, the set D of states that no exchange brings
nearer. What p_s puts into all n labellings then lies in D, with the density::

    n q_s(W, H) = p(X, W, H) sum over exchanges of exp(s T(exchanged))                    (W, H) in D

as p(X, W, H) is the same in all of them. T is a sum over components, and the sum over exchanges a permanent. At s = 0
the integral of q_s is p(X) / n, exactly, and no draw is lost at any s. With more alike components than permanents can
be summed for, draws that were not in D are left out instead, and q_s is p_s there.

Chib & Jeliazkov (2001), JASA 96; Mira & Nicholls (2004), Bridge estimation of the probability density at a point,
Statistica Sinica 14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts.gibbs import GibbsState
from nmf_zoo.inference.evidence.bridging import (
    BATCHES,
    are_summable,
    effective_share,
    error_of_ratio,
    exchangeable,
    independent_size,
    likeness,
    log_exchanges,
    log_mean_over_exchanges,
    log_ratio,
    orders_like,
)
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.inference.evidence.curvature import at_mode
from nmf_zoo.inference.evidence.posterior_runs import (
    Draws,
    FactorPair,
    LogJoints,
    draw_posterior,
    flatten,
    nearness,
    sharpen,
    typical_point,
    unflatten,
)
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.structure import Array, Factorisation

FIRST, LEVELS, NORMAL = range(3)  # children of a chain's stream
TINY = 1e-300
SPREAD = 3.0  # of a step's log density ratio, standard deviations: neighbours overlap well
MOST_SPREAD = 1.2 * SPREAD  # the same, where exchanges bend it
THINNED = 5  # draws, for a guess at the next step
MOST_LEVELS = 400  # 150 for the 18,610 cells of the digits
LEAST = 2 * BATCHES  # draws of a level
RISE = 1.5
ENOUGH = 0.05  # effective share of the normal's draws at which the last bridge stands


class Tightened(NamedTuple):
    """log p(X), its standard error, how many sharper posteriors it took, the last s, and draws at s = 0."""

    log_evidence: float
    error: float
    levels: int
    sharpness: float
    draws: FactorPair


# A bridge from a level to a known density: (log of the level's integral, its standard error), or None.
End = Callable[[Factorisation, "Level", FactorPair, Array, np.uint64], tuple[float, float] | None]


class Level(NamedTuple):
    """Draws of q_s, and T of each, (draws,), with its parts by exchanged components, (draws, K, K).

    The draws are let go once the next level has been begun.
    """

    sharpness: float
    draws: Draws | None
    nearness: Array
    tables: Array

    @property
    def pair(self) -> FactorPair:
        """Both factors at the draws of the level that is worked on."""
        assert self.draws is not None, "the draws of an earlier level"
        return self.draws.pair

    def log_rise(self, to: float, classes: Array, every: int = 1) -> Array:
        """log q at another sharpness - log q at this one, at every so many draws."""
        tables = self.tables[::every]
        rise = (to - self.sharpness) * self.nearness[::every]
        return rise + log_tilt(tables, to, classes) - log_tilt(tables, self.sharpness, classes)


def log_tilt(tables: Array, sharpness: float, classes: Array) -> Array:
    """log q_s - log p_s in D, (draws,)."""
    if not are_summable(classes):
        return np.zeros(len(tables))
    return log_mean_over_exchanges(tables, sharpness, classes)


def _level(structure: Factorisation, sharpness: float, found: Draws, point: FactorPair, classes: Array) -> Level:
    """Draws of p_s, in the labelling of the point."""
    pair = found.pair
    if sharpness == 0.0 or are_summable(classes):
        pair = pair.ordered(orders_like(pair, point, classes))
    else:
        pair = pair.take(is_labelled(pair, point, classes))
    return Level(sharpness, found._replace(pair=pair), nearness(structure, pair, point), likeness(pair, point))


def tighten(structure: Factorisation, draws: int, tune: int, job: Job) -> Tightened:
    """The evidence from one chain that is led from the posterior to a point of it."""
    posterior = draw_posterior(structure, child(job.key, FIRST), None, tune, draws, job)
    point = typical_point(structure, posterior)
    return tighten_from(structure, posterior, point, draws, tune, job, (bridge_to_normal,))


def tighten_from(
    structure: Factorisation, posterior: Draws, point: FactorPair, draws: int, tune: int, job: Job, ends: Sequence[End]
) -> Tightened:
    """The integral over the part of the posterior that these draws of it are in, and over its copies by exchanges.

    Of draws of the whole posterior that is the evidence; of chains that stay in one mode, the evidence within the mode.
    ``draws`` and ``tune`` are sweeps from each sharper density, ``ends`` the bridges to a known density, the first one
    that stands is taken.
    """
    classes = exchangeable(structure)
    levels, total = [_level(structure, 0.0, posterior, point, classes)], log_exchanges(classes)
    while True:
        last, key = levels[-1], child(job.key, NORMAL)
        tried = (end(structure, last, point, classes, key) for end in ends)
        final = next((found for found in tried if found is not None), None)
        if final is not None:
            break
        if len(levels) > MOST_LEVELS:
            raise RunFailed("chib: the posterior did not come close to a normal density: raise draws, or use 'smc'")
        levels.append(_next_level(structure, point, classes, levels, draws, tune, job))
        levels[-2] = last._replace(draws=None)  # none of a large table could be kept at every level
    deviations = np.zeros((len(levels), BATCHES))
    for at, (lower, upper) in enumerate(pairwise(levels)):
        ratio, of_lower, of_upper = _bridge(lower, upper, classes)
        total += ratio
        deviations[at] += of_lower
        deviations[at + 1] += of_upper
    error = np.sqrt(np.sum(deviations**2) + final[1] ** 2)
    return Tightened(total + final[0], float(error), len(levels), levels[-1].sharpness, posterior.pair)


def _next_level(structure, point, classes, levels, draws, tune, job) -> Level:
    """Draws of the next sharper density: as far away as the last one's overlap allows."""
    last, number = levels[-1], len(levels)
    sharpness = _next_sharpness(last, classes)
    sharper, key = sharpen(structure, point, sharpness), child(job.key, LEVELS, number)
    start = FactorPair(*(array[-1] for array in last.pair))
    exchange = Exchange(point, sharpness, classes)
    found = draw_posterior(sharper, key, start, tune, draws, job, number * (tune + draws), exchange)
    level = _level(structure, sharpness, found, point, classes)
    if len(level.nearness) < LEAST:
        raise RunFailed(
            f"chib: {len(level.nearness)} of {draws} draws are in the point's labelling: raise draws, or use 'smc'"
        )
    return level


def _next_sharpness(last: Level, classes: Array) -> float:
    """Where log q has risen by amounts that differ by ``SPREAD`` over the last level's draws, or somewhat before."""
    step = SPREAD / max(_half_width(last.nearness), TINY)
    while _half_width(last.log_rise(last.sharpness + step, classes, THINNED)) > MOST_SPREAD:
        step *= 0.7
    return last.sharpness + step


def _half_width(values: Array) -> float:
    """Half of the middle 68%: a standard deviation that tails do not move."""
    low, high = np.quantile(values, [0.16, 0.84])
    return max(0.5 * float(high - low), 0.0)


class Exchange:
    """Metropolis exchanges of two components: p_s leaves labellings far apart, and this goes between them at once.

    Exchanging changes T alone, the sum over components of how near each is to that of the point which it stands for.
    """

    def __init__(self, point: FactorPair, sharpness: float, classes: Array):
        self.point, self.sharpness, self.classes = point, sharpness, classes

    def __call__(self, state: GibbsState, key: np.uint64) -> None:
        rank, generator = len(self.classes), generator_of(key)
        table = self.sharpness * likeness(FactorPair(state.W[None], state.Ht[None]), self.point)[0].T
        order = np.arange(rank)
        for j, k in combinations(range(rank), 2):
            a, b = order[j], order[k]
            gain = table[a, k] + table[b, j] - table[a, j] - table[b, k]
            if self.classes[j] == self.classes[k] and np.log(generator.random()) < gain:
                order[j], order[k] = b, a
        for array in (state.W, state.Ht, state.of_features, state.of_samples):
            array[:] = array[:, order]


def _bridge(lower: Level, upper: Level, classes: Array) -> tuple[float, Array, Array]:
    """log of the ratio of the integrals of two neighbours, and its batch deviations owed to either's draws."""
    at_lower, at_upper = -lower.log_rise(upper.sharpness, classes), upper.log_rise(lower.sharpness, classes)
    sizes = independent_size(at_lower), independent_size(at_upper)
    share = sizes[0] / sum(sizes)
    return log_ratio(at_lower, at_upper, share), *error_of_ratio(at_lower, at_upper, share)


def is_labelled(pair: FactorPair, point: FactorPair, classes: Array) -> Array:
    """Which draws are in the point's labelling, (draws,)."""
    return np.all(orders_like(pair, point, classes) == np.arange(len(classes)), axis=1)


# -- the last bridge ---------------------------------------------------------------------------------------------------


class CubeRootNormal(NamedTuple):
    """A normal density of the cube roots of the unknown cells: mean (d,) and the root of the covariance (d, d)."""

    mean: Array
    root: Array

    def log_density(self, cells: Array) -> Array:
        """Of the cells (draws, d) themselves."""
        roots = np.cbrt(cells)
        scaled = solve_triangular(self.root, (roots - self.mean).T, lower=True)
        constant = np.sum(np.log(np.diag(self.root))) + 0.5 * len(self.mean) * np.log(2.0 * np.pi)
        return -0.5 * np.sum(scaled**2, axis=0) - constant - np.sum(np.log(3.0 * roots**2), axis=1)

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        return (self.mean + generator.standard_normal((n, len(self.mean))) @ self.root.T) ** 3


def fit_normal(roots: Array, n: float) -> CubeRootNormal:
    """The normal density of draws (draws, d), its correlations shrunk as far as chance alone could make them.

    ``n``: how many independent draws they are worth; chance makes more of a chain that moves slowly.

    Schaefer & Strimmer (2005), A shrinkage approach to large-scale covariance matrix estimation.
    """
    scale = roots.std(axis=0, ddof=1)
    correlation = np.corrcoef(roots.T).reshape(2 * roots.shape[1:])
    off = correlation - np.eye(len(scale))
    by_chance = np.sum((1.0 - off**2) ** 2 / n) - len(scale) / n
    shrunk = (1.0 - np.clip(by_chance / max(np.sum(off**2), TINY), 0.0, 1.0)) * off + np.eye(len(scale))
    return CubeRootNormal(roots.mean(axis=0), scale[:, None] * np.linalg.cholesky(shrunk))


def bridge_to_normal(
    structure: Factorisation, level: Level, point: FactorPair, classes: Array, key: np.uint64
) -> tuple[float, float] | None:
    """(log of a level's integral, its standard error); None where a normal density fits its draws too badly.

    Half of the draws fit the normal density and the other half take part in the bridge, and the other way round.
    """
    cells, worth = flatten(structure, level.pair), independent_size(level.nearness) / 2.0
    half, generator = len(cells) // 2, generator_of(key)
    density = _LevelDensity(structure, level, point, classes)
    estimates, variances = [], []
    for fitted, used in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        normal = fit_normal(np.cbrt(cells[fitted]), worth)
        proposed = normal.draw(half, generator)
        at_normal = density(proposed) - normal.log_density(proposed)
        if effective_share(at_normal) < ENOUGH:
            return None
        at_level = density(cells[used]) - normal.log_density(cells[used])
        size = independent_size(at_level)
        share = size / (size + half)
        estimates.append(log_ratio(at_level, at_normal, share))
        variances.append(sum(float(np.sum(part**2)) for part in error_of_ratio(at_level, at_normal, share)))
    return float(np.mean(estimates)), float(np.sqrt(np.sum(variances)) / 2.0)


class CurvatureBridge:
    """The same with the normal density that the curvature at the mode gives, for which no draws are needed.

    Its mode takes as long to find as a level takes sweeps, so that it is tried again only where ``RISE`` times sharper.
    """

    def __init__(self) -> None:
        self.tried = 0.0

    def __call__(
        self, structure: Factorisation, level: Level, point: FactorPair, classes: Array, key: np.uint64
    ) -> tuple[float, float] | None:
        if level.sharpness < RISE * self.tried:
            return None
        self.tried, generator = level.sharpness, generator_of(key)
        start = FactorPair(*(array.mean(axis=0) for array in level.pair))
        normal = at_mode(sharpen(structure, point, level.sharpness), start, generator)
        return None if normal is None else _bridge_to(normal, structure, level, point, classes, generator)


def _bridge_to(normal, structure, level, point, classes, generator) -> tuple[float, float] | None:
    """From a level to as many draws of the density."""
    density, pair = _LevelDensity(structure, level, point, classes), level.pair
    proposed = normal.draw(len(pair.W), generator)
    cells = flatten(structure, proposed)
    if not np.all(cells > 0):  # a normal density that reaches 0 fits badly
        return None
    at_normal = density(cells)
    inside = np.isfinite(at_normal)
    if not inside.any():
        return None
    at_normal[inside] -= normal.log_density(proposed.take(inside))
    if effective_share(at_normal) < ENOUGH:
        return None
    at_level = density(flatten(structure, pair)) - normal.log_density(pair)
    size = independent_size(at_level)
    share = size / (size + len(at_normal))
    parts = error_of_ratio(at_level, at_normal, share)
    return log_ratio(at_level, at_normal, share), float(np.sqrt(sum(np.sum(part**2) for part in parts)))


class _LevelDensity:
    """log q_s at flat cells (draws, d): -inf outside of D."""

    def __init__(self, structure: Factorisation, level: Level, point: FactorPair, classes: Array):
        self.structure, self.level, self.point, self.classes = structure, level, point, classes
        self.log_joint = LogJoints(structure)

    def __call__(self, cells: Array) -> Array:
        out, inside = np.full(len(cells), -np.inf), np.all(cells > 0, axis=1)
        pair, sharpness = unflatten(self.structure, cells[inside]), self.level.sharpness
        labelled = is_labelled(pair, self.point, self.classes)
        inside[inside], pair = labelled, pair.take(labelled)
        tilt = log_tilt(likeness(pair, self.point), sharpness, self.classes)
        out[inside] = self.log_joint(pair) + sharpness * nearness(self.structure, pair, self.point) + tilt
        return out
