"""Solutions as sets of components, which can be paired, pooled and merged.

A component is a profile over features, one over samples, and a size.
The likeness of two profiles is their Bhattacharyya coefficient, sum sqrt(p q). It is 1 for equal profiles, and bounds
from below how well one Poisson source can stand for both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from nmf_zoo.structure import Array

LEAST = 1e-300


class SearchComponents(NamedTuple):
    """W (F, K) and Ht (N, K), both at scales of their own."""

    W: Array
    Ht: Array

    @property
    def rank(self) -> int:
        """K"""
        return self.W.shape[1]

    @property
    def sizes(self) -> Array:
        """The totals of the components' parts of W H, (K,)."""
        return self.W.sum(axis=0) * self.Ht.sum(axis=0)

    def take(self, chosen: Array) -> SearchComponents:
        """These components."""
        return SearchComponents(self.W[:, chosen], self.Ht[:, chosen])

    def replaced(self, places: Array, others: SearchComponents) -> SearchComponents:
        """With ``others`` in these places."""
        W, Ht = self.W.copy(), self.Ht.copy()
        W[:, places], Ht[:, places] = others.W, others.Ht
        return SearchComponents(W, Ht)


def likeness(a: SearchComponents, b: SearchComponents) -> Array:
    """Of every component of ``a`` with every one of ``b``, (K, L): the product of that of both profiles."""
    return (_roots(a.W).T @ _roots(b.W)) * (_roots(a.Ht).T @ _roots(b.Ht))


def paired(a: SearchComponents, b: SearchComponents) -> SearchComponents:
    """``b`` in the order in which it is most alike ``a``."""
    return b.take(linear_sum_assignment(-likeness(a, b))[1])


def pooled(parts: list[SearchComponents]) -> SearchComponents:
    """The components of several solutions of the same data side by side, with the total of one."""
    share = 1.0 / len(parts)
    return SearchComponents(np.hstack([part.W for part in parts]), np.hstack([part.Ht * share for part in parts]))


def merged(components: SearchComponents, rank: int) -> SearchComponents:
    """Merge pairs until ``rank`` are left, each time the pair that costs least.

    A pair of sizes s and t costs s t / (s + t) times the squared Hellinger distances of its profiles: Ward's rule
    (1963) for profiles in that distance.
    """
    sizes = components.sizes
    exponent = int(
        np.frexp(np.max(sizes))[1]
    )  # products of two sizes may be beyond all numbers; powers of 2 round nothing
    sizes = np.ldexp(sizes, -exponent)
    profiles = [_profiles(components.W), _profiles(components.Ht)]
    roots = [np.sqrt(profile) for profile in profiles]
    cost = _cost(sizes, sum(2.0 - 2.0 * root.T @ root for root in roots))
    alive = np.ones(len(sizes), dtype=bool)
    for _ in range(len(sizes) - rank):
        i, j = np.unravel_index(np.argmin(cost), cost.shape)
        total = max(sizes[i] + sizes[j], LEAST)
        for profile, root in zip(profiles, roots, strict=True):
            profile[:, i] = (sizes[i] * profile[:, i] + sizes[j] * profile[:, j]) / total
            root[:, i] = np.sqrt(profile[:, i])
        sizes[i], sizes[j], alive[j] = total, 0.0, False
        distances = sum(2.0 - 2.0 * root[:, i] @ root for root in roots)
        row = np.where(alive, sizes[i] * sizes / np.maximum(sizes[i] + sizes, LEAST) * distances, np.inf)
        row[i] = np.inf
        cost[i], cost[:, i], cost[j], cost[:, j] = row, row, np.inf, np.inf
    scale = np.sqrt(np.ldexp(sizes[alive], exponent))
    return SearchComponents(profiles[0][:, alive] * scale, profiles[1][:, alive] * scale)


def _cost(sizes: Array, distances: Array) -> Array:
    """(K, K), infinite on the diagonal."""
    sums = np.maximum(sizes[:, None] + sizes, LEAST)
    cost = sizes[:, None] * sizes / sums * distances
    np.fill_diagonal(cost, np.inf)
    return cost


def _profiles(array: Array) -> Array:
    return array / np.maximum(array.sum(axis=0), LEAST)


def _roots(array: Array) -> Array:
    return np.sqrt(_profiles(array))
