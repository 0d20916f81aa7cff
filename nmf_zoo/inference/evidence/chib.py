"""The evidence by Chib's identity: log p(X) = log p(X, point) - log p(point | X), for any point of the posterior.

Two ways to the density of the point::

    "tightening"  the sources summed out, point (W~, H~): :mod:`nmf_zoo.inference.evidence.chib_bridge`
    "sources"     Cemgil's, point (W~, H~, C~): below

Cemgil's needs few counts: p(C~ | W, H, X) is averaged over the posterior of W and H, and with more than a few counts in
a cell one draw in astronomically many is near enough to C~ to matter. Its error bar cannot show that, but
``effective_draws`` can.

Chib (1995), Marginal likelihood from the Gibbs output, JASA 90; Cemgil (2009), section 3.4.1.

**At a point (W~, H~, C~)** of factors and sources::

    log p(X) = log p(X, C~, W~, H~) - log p(C~ | X) - log p(W~ | C~) - log p(H~ | W~, C~)

p(C~ | X) is the average of p(C~ | W, H, X) over the posterior's draws. Exchanging components changes neither p(X) nor
the posterior, so the average is taken over all exchanges too, which one permanent of a K x K matrix does: Cemgil's
own estimate is low by up to log K! when the chain stays in one labelling.
p(W~ | C~) is the average of p(W~ | H, C~) over a run with the sources clamped to C~, where the components are
independent: the product of the components' averages, not the average of their product. p(H~ | W~, C~) is known.

The factorials of C~ and the background's share cancel, so that C~ enters through its sums over samples and over
features alone: A_fk = sum_n C~_fkn and B_nk = sum_f C~_fkn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp, xlogy

from nmf_zoo.errors import warn_caller
from nmf_zoo.inference.evidence.bridging import (
    BATCHES,
    batch_deviations,
    effective_share,
    exchangeable,
    independent_size,
    log_exchanges,
    log_permanents,
    orders_of_best,
    without_batch,
)
from nmf_zoo.inference.evidence.chib_bridge import tighten
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method, has_evidence
from nmf_zoo.inference.evidence.posterior_runs import FactorPair, LogJoints, as_variables, draw_posterior, typical_point
from nmf_zoo.inference.shared.factor_view import PriorCells, prior_cells, two_sides
from nmf_zoo.inference.shared.layout import Layout, Weights, compress, weigh
from nmf_zoo.kernels.counts.joint import sum_log_means
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.runtime.engine import Verdict
from nmf_zoo.structure import CHUNK, Array, Factorisation, Poisson, slices
from nmf_zoo.structure.parameters import log_gamma_density

RUN, CLAMPED = range(2)  # children of a chain's stream
TENTH = 10  # of the clamped run is warm-up
LARGEST_RANK = 10  # of which the permanents are summed


class Clamped(NamedTuple):
    """log p(X), its standard error, how many draws p(C~ | X) rests on, and posterior draws."""

    log_evidence: float
    error: float
    effective_draws: float
    draws: FactorPair


def clamp(structure: Factorisation, draws: int, tune: int, job: Job) -> Clamped:
    """The evidence from one chain and one with clamped sources."""
    classes, layout = exchangeable(structure), compress(structure)
    posterior = draw_posterior(structure, child(job.key, RUN), None, tune, draws, job)
    sums = share_sources(layout, typical_point(structure, posterior))
    of_sources = log_densities_of_sources(layout, sums, posterior.pair, classes)
    point, of_weights, of_activations = clamped_run(structure, sums, draws, child(job.key, CLAMPED))
    log_sources = _log_mean_exp(of_sources) - log_exchanges(classes)
    log_factors = sum(_log_mean_exp(series) for series in of_weights.T) + of_activations
    joint = log_joint_with_sources(structure, layout, sums, point)
    spread = _deviations(of_sources), sum(_deviations(series) for series in of_weights.T)
    share = effective_share(of_sources) * independent_size(of_sources)
    error = np.sqrt(np.sum(np.square(spread[0])) + np.sum(np.square(spread[1])))
    return Clamped(joint - log_sources - log_factors, float(error), share, posterior.pair)


def share_sources(layout: Layout, point: FactorPair) -> FactorPair:
    """(A, B) of whole counts shared out as they are expected at a point, by largest remainders."""
    A, B = np.zeros_like(point.W), np.zeros_like(point.Ht)
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    for part in slices(len(major), CHUNK):
        rows, columns = layout.sides(major[part], layout.indices[part])
        rates = point.W[rows] * point.Ht[columns]
        if layout.offset.size:
            rates = np.column_stack([rates, layout.offset[part]])
        own = round_shares(layout.values[part], rates)[:, : A.shape[1]]
        np.add.at(A, rows, own)
        np.add.at(B, columns, own)
    return FactorPair(A, B)


def round_shares(counts: Array, rates: Array) -> Array:
    """Whole numbers (cells, sources) that sum to the counts and are nearest to shares by these rates."""
    expected = counts[:, None] * rates / rates.sum(axis=1, keepdims=True)
    whole = np.floor(expected)
    missing = np.rint(counts - whole.sum(axis=1))
    rank_of = np.argsort(np.argsort(whole - expected, axis=1, kind="stable"), axis=1)
    return whole + (rank_of < missing[:, None])


def log_densities_of_sources(layout: Layout, sums: FactorPair, draws: FactorPair, classes: Array) -> Array:
    """log of the sum of p(C~ | W, H, X) over all exchanges, at every draw: (draws,), but for the factorials of C~.

    With more components than permanents can be summed for, the largest term stands for the sum.
    """
    tables = _products(sums.W, _logs(draws.W)) + _products(sums.Ht, _logs(draws.Ht))
    means = np.empty(len(tables))
    sum_log_means(means, layout, *map(np.ascontiguousarray, draws))
    if len(classes) <= LARGEST_RANK:
        return log_permanents(tables, classes) - means
    orders = orders_of_best(tables, classes)
    return np.take_along_axis(tables, orders[:, :, None], axis=2)[:, :, 0].sum(axis=1) - means


def _logs(cells: Array) -> Array:
    """Of cells that are known and 0, which have no counts, 0."""
    return np.log(np.where(cells > 0, cells, 1.0))


def _products(counts: Array, logs: Array) -> Array:
    """sum_i counts_ij logs_ik, (draws, K, K)."""
    return counts.T @ logs


def clamped_run(
    structure: Factorisation, sums: FactorPair, draws: int, key: np.uint64
) -> tuple[FactorPair, Array, float]:
    """A point (W~, H~), log p(W~ | H, C~) by draw and component (draws, K), and log p(H~ | W~, C~)."""
    priors, weights = prior_cells(structure, {}), weigh(structure)
    of_W, of_H = priors.shape_w + sums.W, priors.shape_h + sums.Ht
    left, right = two_sides(structure)
    if structure.W.is_fixed:
        W, densities = structure.W.prior.value, np.zeros((1, structure.rank))
    else:
        rates, free = _rates_of_weights(structure, priors, weights, (of_W, of_H), draws, key), left.free
        own, rates = of_W[:, free], rates[:, :, free]
        new = np.mean(own / rates, axis=0)
        W, densities = left.whole(new), np.stack([log_gamma_density(new, own, rate).sum(axis=0) for rate in rates])
    if structure.H.is_fixed:
        return FactorPair(W, np.ascontiguousarray(structure.H.prior.value.T)), densities, 0.0
    rate, own = (priors.rate_h + weights.over_features(W))[:, right.free], of_H[:, right.free]
    Ht = own / rate
    return FactorPair(W, right.whole(Ht)), densities, float(np.sum(log_gamma_density(Ht, own, rate)))


def _rates_of_weights(
    structure: Factorisation, priors: PriorCells, weights: Weights, shapes: tuple[Array, Array], draws: int, key
) -> Array:
    """The rates of W's gamma conditional at draws of H given C~, (draws, F, K); one when H is known."""
    if structure.H.is_fixed:
        return (priors.rate_w + weights.over_samples(structure.H.prior.value.T))[None]
    of_W, of_H = shapes
    left, right = two_sides(structure)
    Ht, W = right.whole(of_H[:, right.free] / priors.rate_h[:, right.free]), np.empty(of_W.shape)
    rates = np.empty((draws, *of_W.shape))
    for sweep in range(-(draws // TENTH), draws):
        rate = priors.rate_w + weights.over_samples(Ht)
        draw_factor(W, of_W, rate, 0, len(W), child(key, sweep + draws, 0))
        W = left.whole(W[:, left.free])
        draw_factor(Ht, of_H, priors.rate_h + weights.over_features(W), 0, len(Ht), child(key, sweep + draws, 1))
        Ht = right.whole(Ht[:, right.free])
        if sweep >= 0:
            rates[sweep] = rate
    return rates


def log_joint_with_sources(structure: Factorisation, layout: Layout, sums: FactorPair, point: FactorPair) -> float:
    """log p(X, C~, W~, H~), but for the factorials of C~ and the background's share, which p(C~ | W, H, X) lacks too.

    That is p(X, W~, H~) with sum c log(w h) in place of sum x log(W H + offset).
    """
    stack = FactorPair(*(np.ascontiguousarray(array)[None] for array in point))
    means = np.empty(1)
    sum_log_means(means, layout, *stack)
    return float(
        LogJoints(structure)(stack)[0] - means[0] + sum(np.sum(xlogy(c, v)) for c, v in zip(sums, point, strict=False))
    )


def _log_mean_exp(series: Array) -> float:
    return float(logsumexp(series) - np.log(len(series)))


def _deviations(series: Array) -> Array:
    """Batch deviations of the log of the mean of exp(series)."""
    if len(series) < 2 * BATCHES:
        return np.zeros(BATCHES)
    return batch_deviations(np.array([_log_mean_exp(without_batch(series, batch)) for batch in range(BATCHES)]))


# -- the method ------------------------------------------------------------------------------------------------------


FEW = 100  # effective draws: below it, the average over sources is not to be trusted
TYPICAL_LEVELS = 20  # for the progress bar


@names_checked
@dataclass(frozen=True, kw_only=True)
class Chib:
    """Options of Chib's method.

    By tightening, every draw counts for up to 12 components with equal priors. With more, draws outside the point's
    labelling are left out, and where too few are left the run fails: use :class:`nmf_zoo.SMC` there.

    Attributes
    ----------
    ordinate : how the point's posterior density is found: "tightening", or "sources" as Cemgil has it
    draws : Gibbs sweeps from the posterior, and again from each sharper one, or with the sources clamped
    tune : warm-up sweeps before each of these
    """

    ordinate: Literal["tightening", "sources"] = "tightening"
    draws: int = 4000
    tune: int = 500

    def __post_init__(self):
        check_types(self)
        check_least(self, draws=100, tune=0)


def supports(structure: Factorisation, options: Chib) -> Verdict:
    """Counts with gamma priors of known hyperparameters; a factor may be known, or some components of each."""
    return has_evidence(structure)


def estimate(structure: Factorisation, options: Chib, run: EvidenceRun) -> Estimate:
    """One estimate per chain."""
    if options.ordinate == "sources":
        return _by_sources(structure, options, run)
    total = TYPICAL_LEVELS * (options.draws + options.tune)

    def one(job: Job):
        return tighten(structure, options.draws, options.tune, job)

    found = run.each(one, total)
    return Estimate(
        log_evidence=np.array([each.log_evidence for each in found]),
        standard_error=np.array([each.error for each in found]),
        draws=_stack(structure, [each.draws for each in found]),
        statistics={
            "levels": np.array([each.levels for each in found]),
            "sharpness": np.array([each.sharpness for each in found]),
        },
    )


def _by_sources(structure: Factorisation, options: Chib, run: EvidenceRun) -> Estimate:
    def one(job: Job):
        return clamp(structure, options.draws, options.tune, job)

    found = run.each(one, options.draws + options.tune)
    effective = np.array([each.effective_draws for each in found])
    if effective.min() < FEW:
        message = (
            f"p(C~ | X) rests on {effective.min():.3g} effective draws, so that neither it nor its error is to be "
            "trusted: use nz.Chib(ordinate='tightening')"
        )
        warn_caller(message)
    return Estimate(
        log_evidence=np.array([each.log_evidence for each in found]),
        standard_error=np.array([each.error for each in found]),
        draws=_stack(structure, [each.draws for each in found]),
        statistics={"effective_draws": effective},
    )


def _stack(structure: Factorisation, pairs: list[FactorPair]) -> dict[str, Array]:
    return as_variables(structure, FactorPair(*(np.stack(arrays) for arrays in zip(*pairs, strict=True))))


METHOD: Method = Method(
    name="chib",
    likelihoods=(Poisson,),
    takes_known=True,
    options=Chib,
    supports=supports,
    estimate=estimate,
)
