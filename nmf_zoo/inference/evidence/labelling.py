"""Which component is which: components with equal priors can be exchanged, and the posterior has as many copies.

A draw is in the labelling of a reference when no exchange of components would bring it nearer. The share of the
posterior with that labelling is exactly 1 / (number of exchanges), whether or not a chain ever changes labels.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from nmf_zoo.inference.evidence.posterior_runs import Pair
from nmf_zoo.inference.prior_cells import prior_cells
from nmf_zoo.structure import Array, Factorisation

APART = -1e300
LARGEST_CLASS = 12  # over whose exchanges permanents are summed: K 2^K terms


def exchangeable(structure: Factorisation) -> Array:
    """The class of every component, (K,): those of one class have equal priors in both factors."""
    if structure.W.is_fixed or structure.H.is_fixed:
        return np.arange(structure.rank)
    cells = np.concatenate(prior_cells(structure, {})[:4])
    return np.unique(cells, axis=1, return_inverse=True)[1].ravel()


def log_exchanges(classes: Array) -> float:
    """log of the number of exchanges: the product of the factorials of the classes' sizes."""
    return float(np.sum(gammaln(np.bincount(classes) + 1.0)))


def orders_like(draws: Pair, reference: Pair, classes: Array) -> Array:
    """The order of every draw's components, (draws, K), in which they are nearest to the reference.

    Nearest by the sum of v / v~ over all cells, the one part of the tightened posterior's tilt T that an order changes.
    Any rule keeps one labelling in K!. By this one it is the labelling that a tightened posterior favours most, so that
    few of its draws fall outside: with other rules none may be left where components are alike.
    """
    if len(np.unique(classes)) == len(classes):
        return np.tile(np.arange(len(classes)), (len(draws.W), 1))
    return orders_of_best(likeness(draws, reference), classes)


def likeness(draws: Pair, reference: Pair) -> Array:
    """- sum v / v~ of every draw's component k where it stands for the reference's j, (draws, K, K)."""
    table = np.zeros((len(draws.W), draws.W.shape[-1], draws.W.shape[-1]))
    for array, centre in zip(draws, reference, strict=True):
        table -= np.swapaxes(1.0 / centre, 0, 1) @ array
    return table


def are_summable(classes: Array) -> bool:
    """Whether the classes are small enough for sums over all exchanges."""
    return bool(np.bincount(classes).max() <= LARGEST_CLASS)


def log_mean_over_exchanges(tables: Array, sharpness: float, classes: Array) -> Array:
    """log of the mean over exchanges of exp(s (likeness so exchanged - likeness as it is)), (tables,).

    It is a product over the classes, so that the largest one alone limits it.
    """
    total = np.zeros(len(tables))
    if sharpness == 0.0:
        return total
    for members in (np.flatnonzero(classes == one) for one in np.unique(classes)):
        if len(members) > 1:
            own = tables[:, members[:, None], members]
            own = sharpness * (own - np.diagonal(own, axis1=1, axis2=2)[:, :, None])
            alike = np.zeros(len(members), np.int64)
            total += log_permanents(own, alike) - log_exchanges(alike)
    return total


def orders_of_best(tables: Array, classes: Array) -> Array:
    """The exchange s of which sum_j table[j, s(j)] is largest, (tables, K), for each of tables (tables, K, K)."""
    allowed = np.where(classes[:, None] == classes, tables, APART)
    return np.array([linear_sum_assignment(table, maximize=True)[1] for table in allowed])


def log_permanents(log_tables: Array, classes: Array) -> Array:
    """log sum over exchanges s of exp(sum_j table[j, s(j)]), (tables,), of tables (tables, K, K), over all exchanges.

    By adding one row after the other to the sum over subsets of columns: K 2^K sums of positive terms.
    """
    tables, rank = np.where(classes[:, None] == classes, log_tables, -np.inf), len(classes)
    sums = np.full((1 << rank, len(tables)), -np.inf)
    sums[0] = 0.0
    for subset in range(1, 1 << rank):
        row = subset.bit_count() - 1
        columns = [k for k in range(rank) if subset >> k & 1]
        terms = [sums[subset ^ (1 << k)] + tables[:, row, k] for k in columns]
        sums[subset] = np.logaddexp.reduce(terms, axis=0)
    return sums[-1]
