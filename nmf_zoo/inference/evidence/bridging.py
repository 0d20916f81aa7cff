"""Ratios of normalising constants by bridge sampling, and their Monte-Carlo error.

With draws of two unnormalised densities p and q, the log ratios l = log p - log q at draws of each, and s the share of
p's draws among all (counted as independent ones), the optimal bridge r = log(Z_p / Z_q) solves::

    mean over q's draws of  e^l / (s e^l + (1 - s) e^r)  =  e^r  mean over p's draws of  1 / (s e^l + (1 - s) e^r)

Its error comes from the spread over batches of consecutive draws, each left out in turn, which knows about the
dependence between neighbouring draws.

Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica 6, eq. 4.1.

**Labels.** Components with equal priors can be exchanged, and the posterior has as many copies; those of which anything
is known are told apart by that. A draw is in the labelling of a reference when no exchange of components would bring it
nearer. The share of the posterior with that labelling is exactly 1 / (number of exchanges), whether or not a chain ever
changes labels.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, logsumexp

from nmf_zoo.inference.evidence.posterior_runs import FactorPair
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.structure import Array, Factorisation

BATCHES = 20
MOST_ROUNDS, SETTLED = 500, 1e-7


def log_ratio(at_p: Array, at_q: Array, share: float = 0.5, start: float | None = None) -> float:
    """log(Z_p / Z_q) from l = log p - log q at p's draws and at q's; -inf where p is 0. ``start``: a guess."""
    if not np.isfinite(at_q).any():
        return -np.inf
    log_share, log_rest = np.log(share), np.log1p(-share)
    estimate = float(np.median(at_p)) if start is None else start
    for _ in range(MOST_ROUNDS):
        over_q = logsumexp(at_q - np.logaddexp(log_share + at_q, log_rest + estimate)) - np.log(len(at_q))
        over_p = logsumexp(-np.logaddexp(log_share + at_p, log_rest + estimate)) - np.log(len(at_p))
        before, estimate = estimate, float(over_q - over_p)
        if abs(estimate - before) < SETTLED:
            break
    return estimate


def batch_deviations(estimates: Array) -> Array:
    """Deviations of leave-one-batch-out estimates (batches,), scaled so that their sum of squares is the variance."""
    n = len(estimates)
    return (estimates - estimates.mean()) * np.sqrt((n - 1) / n)


def without_batch(draws: Array, batch: int) -> Array:
    """The draws but for one of ``BATCHES`` runs of consecutive ones."""
    edges = np.linspace(0, len(draws), BATCHES + 1).astype(int)
    return np.delete(draws, np.s_[edges[batch] : edges[batch + 1]], axis=0)


def error_of_ratio(at_p: Array, at_q: Array, share: float = 0.5) -> tuple[Array, Array]:
    """The batch deviations of :func:`log_ratio` owed to p's draws and to q's."""
    start = log_ratio(at_p, at_q, share)
    of_p = np.array([log_ratio(without_batch(at_p, b), at_q, share, start) for b in range(BATCHES)])
    of_q = np.array([log_ratio(at_p, without_batch(at_q, b), share, start) for b in range(BATCHES)])
    return batch_deviations(of_p), batch_deviations(of_q)


def independent_size(series: Array) -> float:
    """How many independent draws a series is worth, by the spread of its batches' means."""
    edges = np.linspace(0, len(series), BATCHES + 1).astype(int)
    means = np.array([series[a:b].mean() for a, b in itertools.pairwise(edges)])
    spread, of_means = series.var(), means.var(ddof=1)
    if not of_means > 0:
        return float(len(series))
    return float(np.clip(BATCHES * spread / of_means, 1.0, len(series)))


def effective_share(log_weights: Array) -> float:
    """The effective share of importance weights, 1 / (1 + squared coefficient of variation)."""
    top = log_weights.max()
    if not np.isfinite(top):
        return 0.0
    weights = np.exp(log_weights - top)
    return float(weights.sum() ** 2 / np.sum(weights**2) / len(weights))


# -- labels ----------------------------------------------------------------------------------------------------------


APART = -1e300
LARGEST_CLASS = 12  # over whose exchanges permanents are summed: K 2^K terms


def exchangeable(structure: Factorisation) -> Array:
    """The class of every component, (K,): those of one class have equal priors in both factors and no known cells."""
    if structure.W.is_fixed or structure.H.is_fixed:
        return np.arange(structure.rank)
    cells = np.concatenate(prior_cells(structure, {})[:4])
    classes = np.unique(cells, axis=1, return_inverse=True)[1].ravel()
    return np.where(structure.free_in_both, classes, structure.rank + np.arange(structure.rank))


def log_exchanges(classes: Array) -> float:
    """log of the number of exchanges: the product of the factorials of the classes' sizes."""
    return float(np.sum(gammaln(np.bincount(classes) + 1.0)))


def orders_like(draws: FactorPair, reference: FactorPair, classes: Array) -> Array:
    """The order of every draw's components, (draws, K), in which they are nearest to the reference.

    Nearest by the sum of v / v~ over all cells, the one part of the tightened posterior's tilt T that an order changes.
    Any rule keeps one labelling in K!. By this one it is the labelling that a tightened posterior favours most, so that
    few of its draws fall outside: with other rules none may be left where components are alike.
    """
    if len(np.unique(classes)) == len(classes):
        return np.tile(np.arange(len(classes)), (len(draws.W), 1))
    return orders_of_best(likeness(draws, reference), classes)


def likeness(draws: FactorPair, reference: FactorPair) -> Array:
    """- sum v / v~ of every draw's component k where it stands for the reference's j, (draws, K, K).

    Zeros of the reference are cells of known components, which stand for themselves alone.
    """
    table = np.zeros((len(draws.W), draws.W.shape[-1], draws.W.shape[-1]))
    for array, centre in zip(draws, reference, strict=True):
        table -= np.swapaxes(_inverse(centre), 0, 1) @ array
    return table


def _inverse(cells: Array) -> Array:
    """1 / cells, 0 where they are 0."""
    return np.divide(1.0, cells, out=np.zeros_like(cells), where=cells > 0)


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
