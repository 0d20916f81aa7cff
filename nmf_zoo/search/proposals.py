"""Where the next local fit begins: anew, or at components of fits that are done.

Every proposal takes its randomness from the stream it is given. Components that come from elsewhere stand in the places
of those they are most alike, so that priors, exposures and hyperparameters of a component stay with it. A component of
which something is known stays in its place, with what belongs to it in the best solution; proposals are about others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.search.components import SearchComponents, likeness, merged, paired, pooled
from nmf_zoo.search.optima import Point
from nmf_zoo.structure import Factorisation

FRESH = ("random", "kmeans++", "random", "random")  # how those that begin anew do, in turn
NNDSVD = 3  # number of the one that begins at singular vectors, of which there is one set
TRIED = 16  # fits after which samples far apart must have led to one of the best to go on
PARENTS = 6  # the best solutions, which starts are made of
POOLED = 3, PARENTS  # of them whose components are pooled: three do best on texts, more on faces
UNEVEN = (0.1, 0.9)  # shares of a sample's part in the halves of a component that is split


def fresh_start(structure: Factorisation, number: int, key: np.uint64, ways: Collection[str] = ()) -> tuple[str, Point]:
    """The way in which the fit of this number begins anew, and its start: empty for the engine's own random one.

    ``ways`` : those that led to the best optima
    """
    way = "nndsvd" if number == NNDSVD else FRESH[number % len(FRESH)]
    is_tried = number >= TRIED and way not in ways
    if way == "random" or is_tried or not structure.free_in_both.all():
        return "random", {}
    return way, point_of(structure, SearchComponents(*start_factors(structure, key, {}, way)), {})


def next_start(structure: Factorisation, best: Sequence[Point], number: int, key: np.uint64) -> tuple[str, Point]:
    """A start made of the best solutions, which differ and stand best first."""
    free = np.flatnonzero(structure.free_in_both)
    if not len(free):
        return fresh_start(structure, number, key)
    ways = IN_TURN if len(best) > 1 else [way for way in IN_TURN if way not in OF_SEVERAL]
    way = ways[number % len(ways)]
    found = [components_of(structure, point) for point in best]
    if len(free) == structure.rank:
        made = PROPOSALS[way](structure, found, key)
    else:
        made = found[0].replaced(free, PROPOSALS[way](structure, [one.take(free) for one in found], key))
    return way, point_of(structure, made, best[0])


def components_of(structure: Factorisation, point: Point) -> SearchComponents:
    """The components of a solution."""
    return SearchComponents(structure.W.value(point), structure.H.value(point).T)


def point_of(structure: Factorisation, components: SearchComponents, others: Point) -> Point:
    """Components as values of the model's variables; the rest as in ``others``. A chain's states follow from W."""
    W, H = structure.W, structure.H
    rest = {name: others[name] for name in structure.unknowns if name in others}
    of_samples = {} if H.is_chain else {H.name: H.orient(components.Ht.T)}
    return {**rest, W.name: W.orient(components.W), **of_samples}


def exchange(structure: Factorisation, best: list[SearchComponents], key: np.uint64) -> SearchComponents:
    """Two solutions, paired; of every pair one, by a coin."""
    rng = generator_of(key)
    one, other = (best[i] for i in rng.choice(len(best), 2, replace=False))
    taken = np.flatnonzero(rng.random(one.rank) < 0.5)
    return one.replaced(taken, paired(one, other).take(taken))


def pool(structure: Factorisation, best: list[SearchComponents], key: np.uint64) -> SearchComponents:
    """Several solutions side by side, the cheapest pairs merged until the rank is reached."""
    rng = generator_of(key)
    count = int(rng.integers(POOLED[0], POOLED[1] + 1))
    chosen = rng.choice(len(best), min(count, len(best)), replace=False)
    return paired(best[chosen[0]], merged(pooled([best[i] for i in chosen]), best[0].rank))


def split(structure: Factorisation, best: list[SearchComponents], key: np.uint64) -> SearchComponents:
    """Two components of the best merged, the more alike the likelier; another, the larger the likelier, split."""
    rng, found = generator_of(key), best[0]
    rank = found.rank
    if rank < 2:
        return found
    pairs = np.array(np.triu_indices(rank, 1)).T
    alike = likeness(found, found)[pairs[:, 0], pairs[:, 1]] + 1.0 / rank
    i, j = pairs[rng.choice(len(pairs), p=alike / alike.sum())]
    whole = merged(found.take(np.array([i, j])), 1)
    found = found.replaced(np.array([i]), whole)
    sizes = np.where(np.arange(rank) == j, 0.0, found.sizes)
    at = int(rng.choice(rank, p=sizes / sizes.sum())) if sizes.sum() > 0 else int(i)
    share = rng.choice(UNEVEN, len(found.Ht))
    halves = np.stack([found.Ht[:, at] * share, found.Ht[:, at] * (1.0 - share)], axis=1)
    apart = np.exp(0.3 * rng.standard_normal((len(found.W), 2)))
    return found.replaced(np.array([at, j]), SearchComponents(found.W[:, [at, at]] * apart, halves))


def redraw(structure: Factorisation, best: list[SearchComponents], key: np.uint64) -> SearchComponents:
    """From two components of the best to half of them drawn anew: a fit gets one alone back to where it was."""
    rng, found = generator_of(key), best[0]
    count = int(rng.integers(2, max(3, found.rank // 2 + 1)))
    places = rng.choice(found.rank, min(count, found.rank), replace=False)
    fresh = SearchComponents(*start_factors(structure, child(key, 1), {}))
    return found.replaced(places, fresh.take(np.flatnonzero(structure.free_in_both)[places]))


PROPOSALS: dict[str, Callable[[Factorisation, list[SearchComponents], np.uint64], SearchComponents]] = {
    "pool": pool,
    "redraw": redraw,
    "exchange": exchange,
    "split": split,
}
IN_TURN = ("pool", "redraw", "pool", "exchange", "pool", "split")  # pools of texts beat their parents most often
OF_SEVERAL = ("pool", "exchange")
