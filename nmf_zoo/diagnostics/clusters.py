"""Components of many fits of one rank, in clusters that have one of each fit.

Columns of W are compared by their cosine. The fit that the others match best is the first reference, then the means of
the clusters are, until nothing moves: k-means under the constraint that a fit gives each cluster one component
(Alexandrov et al. 2013, Deciphering signatures of mutational processes operative in human cancer, Cell Reports 3).
The silhouette is that of Rousseeuw (1987), of distances 1 - cosine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.results.components_in_use import LEAST
from nmf_zoo.results.matching import ALIKE, CLEARER, Components, cosines, match

Array = np.ndarray
MOST_ROUNDS = 20


class Clusters(NamedTuple):
    """What R fits of K components have in common.

    order : (R, K) which component of each fit is in each cluster
    centre : (F, K) means of the columns, of unit sum
    share : (K,) of all components, means over the fits
    cosine : (R, K) of each member to its cluster's centre
    silhouette : (K,) how much nearer members are to one another than to the next cluster; NaN of one component
    reproducibility : (K,) share of the fits in which the component came again: its member is in use, has a cosine of
        0.9 to the centre, and one that is 0.05 less to every other. Empty components, which look alike, never do
    """

    order: Array
    centre: Array
    share: Array
    cosine: Array
    silhouette: Array
    reproducibility: Array


def cluster_components(W: Array) -> Clusters:
    """Clusters of the components of several fits, the most reproducible first.

    Parameters
    ----------
    W : (R, F, K) columns that add up to the components' sizes; R >= 1
    """
    sizes = W.sum(axis=1)
    fits = Components(W / np.where(sizes > 0, sizes, 1.0)[:, None, :], None)
    centre = fits.W[int(np.argmax([match(fits, Components(own, None)).cosine.sum() for own in fits.W]))]
    order = np.empty((0, 0), dtype=np.int64)
    for _ in range(MOST_ROUNDS):
        before, (order, cosine) = order, match(fits, Components(centre, None))
        if np.array_equal(before, order):
            break
        centre = fits.reordered(order).W.mean(axis=0)
    silhouette = _silhouettes(fits.reordered(order).W)
    sizes = np.take_along_axis(sizes, order, axis=1)
    share = np.mean(sizes / np.maximum(sizes.sum(axis=1, keepdims=True), np.finfo(float).tiny), axis=0)
    is_used = sizes >= LEAST * sizes.max(axis=1, keepdims=True)
    is_own = cosine - _nearest_other(fits.reordered(order), centre) >= CLEARER
    reproducibility = np.mean(is_used & (cosine >= ALIKE) & is_own, axis=0)
    first = np.lexsort((-share, -reproducibility))
    by_component = (share[first], cosine[:, first], silhouette[first], reproducibility[first])
    return Clusters(order[:, first], centre[:, first], *by_component)


def _nearest_other(fits: Components, centre: Array) -> Array:
    """(R, K) the cosine of each member to the nearest centre that is not its own; -1 where there is none."""
    to_centres = cosines(fits, Components(centre, None))
    own = np.arange(centre.shape[1])
    to_centres[:, own, own] = -1.0
    return to_centres.max(axis=2)


def _silhouettes(W: Array) -> Array:
    """(K,) means over the members of each cluster; W (R, F, K) in the order of the clusters."""
    n_fits, _, rank = W.shape
    if rank < 2 or n_fits < 2:
        return np.full(rank, np.nan)
    columns = W / np.maximum(np.linalg.norm(W, axis=1, keepdims=True), np.finfo(float).tiny)
    flat = columns.transpose(2, 0, 1).reshape(rank * n_fits, -1)
    distance = np.maximum(1.0 - flat @ flat.T, 0.0).reshape(rank, n_fits, rank, n_fits)
    to_clusters = distance.sum(axis=3)  # (rank, fits, cluster)
    own = np.einsum("krk->kr", to_clusters) / (n_fits - 1)
    others = to_clusters / n_fits
    others[np.arange(rank), :, np.arange(rank)] = np.inf
    nearest = others.min(axis=2)
    return np.mean((nearest - own) / np.maximum(np.maximum(nearest, own), np.finfo(float).tiny), axis=1)
