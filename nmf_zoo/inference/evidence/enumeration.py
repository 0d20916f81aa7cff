"""The exact evidence of tiny problems: the sum over every way to share out the counts, with W and H integrated out.

Given the sources C the components are independent, and a component's integral depends on its C through the sums
A_f = sum_n C and B_n = sum_f C alone. With an exposure e_f g_n its activations integrate in closed form::

    Z(A, B) = integral of prod_f p(w_f) w_f^A_f  prod_n r_n^a_n Gamma(a_n + B_n) / Gamma(a_n)
                          / (r_n + g_n s)^(a_n + B_n)  dw               s = sum_f e_f w_f

Where rate_f / e_f of W is one number for all features, the sum s of gamma variables is one again, and one integral over
s remains. The trapezoid rule in log s has it to 1e-12. Otherwise the sides may be exchanged; a component that is known
in one factor leaves closed forms, and where each one is, any mask or exposure will do.

So p(X) is the sum over all (A, B) of the number of ways to share X out so, times prod_k Z_k. The ways are counted cell
by cell, merging those with the same sums; a background is one more source, whose sums nobody asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import comb, gammaln, logsumexp, xlogy

from nmf_zoo.errors import InputError
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Method, has_evidence
from nmf_zoo.inference.shared.factor_view import PriorCells, prior_cells, two_sides
from nmf_zoo.inference.shared.layout import Weights, likelihood_constant, nonzero_cells, weigh
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Array, Factor, Factorisation, Fixed, Poisson

EQUAL = 1e-12  # relative difference of rates that count as one
DECAY = 45.0  # the integrand at the ends of the grid is e^-45 of its peak
WIDEST_STEP, STEPS_PER_SPREAD = 0.25, 2.0  # of the grid in log s
ODD = np.uint64(1)
GRID_CELLS = 1 << 22  # of the table of integrands held at once


@names_checked
@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """Options of exact enumeration.

    Attributes
    ----------
    most_allocations : refuse problems with more ways to share out the counts, of those that sums tell apart
    """

    most_allocations: int = 1_000_000

    def __post_init__(self):
        check_types(self)
        check_least(self, most_allocations=1)


def supports(structure: Factorisation, options: Enumeration) -> Verdict:
    """Few counts, and integrals that are one-dimensional at the most."""
    verdict = has_evidence(structure)
    if not verdict:
        return verdict
    if integrals(structure) is None:
        return Verdict(
            "its integrals are one-dimensional only if each component is known in a factor, or nothing is masked and a "
            "factor has one rate per component"
        )
    allocations = count_allocations(structure)
    if allocations > options.most_allocations:
        return Verdict(
            f"there are up to {allocations:.3g} ways to share out the counts, and most_allocations is "
            f"{options.most_allocations}"
        )
    return CAN_RUN


def count_allocations(structure: Factorisation) -> float:
    """An upper bound of how many ways to share out the counts have different sums."""
    rows, columns, x = nonzero_cells(structure)
    parts = structure.rank + (structure.likelihood.background is not None)
    return min(
        float(np.prod(comb(x + parts - 1, parts - 1))),
        float(np.prod([comb(total + parts - 1, parts - 1) for at in (rows, columns) for total in np.bincount(at, x)])),
    )


def estimate(structure: Factorisation, options: Enumeration, run: EvidenceRun) -> Estimate:
    """One chain, without error."""
    value = np.array([log_evidence(structure)])
    return Estimate(log_evidence=value, standard_error=np.zeros(1))


def log_evidence(structure: Factorisation) -> float:
    """log p(X)"""
    found = integrals(structure)
    if found is None:
        raise InputError(
            "model", "rates or a mask that leave no one-dimensional integral", "a known factor or one rate"
        )
    shared = share_out(structure)
    total = shared.log_ways
    for k, integral in enumerate(found):
        _, first, place = np.unique(shared.keys[:, k], return_index=True, return_inverse=True)
        own = shared.sums[first, k].astype(np.float64)
        total = total + integral.log_integral(k, own)[place.ravel()]
    return float(logsumexp(total)) + likelihood_constant(structure)


# -- sharing out -------------------------------------------------------------------------------------------------------


class Shared(NamedTuple):
    """The ways to share out X that sums tell apart.

    Attributes
    ----------
    sums : (ways, K, F + N), A then B of every component
    keys : (ways, K) of each component's sums, 64 random bits for each of them, added up: equal when they are
    log_ways : (ways,) log of the sum of prod x! / prod C!, with background / exposure to the power of its share
    """

    sums: Array
    keys: Array
    log_ways: Array


def share_out(structure: Factorisation) -> Shared:
    """Count the ways, cell by cell."""
    (n_features, n_samples), rank = structure.shape, structure.rank
    generator = np.random.default_rng(0)
    words, mixers = (generator.integers(2**64, size=n, dtype=np.uint64) | ODD for n in (n_features + n_samples, rank))
    shared = Shared(np.zeros((1, rank, n_features + n_samples), np.int32), np.zeros((1, rank), np.uint64), np.zeros(1))
    rows, columns, x = nonzero_cells(structure)
    ratio = structure.background_ratio()
    for row, column, count in zip(rows, columns, x.astype(int), strict=True):
        parts = compositions(count, rank + (ratio is not None))
        log_ways = gammaln(count + 1) - gammaln(parts + 1).sum(axis=1)
        if ratio is not None:
            log_ways = log_ways + xlogy(parts[:, -1], ratio[row, column])
        shared = _merge(_extend(shared, parts[:, :rank], log_ways, (row, n_features + column), words), mixers)
    return shared


def compositions(total: int, parts: int) -> Array:
    """All ways to write ``total`` as an ordered sum of ``parts`` whole numbers, (ways, parts)."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)), dtype=np.int64)
    ends = np.full((len(bars), 1), total + parts - 1)
    return np.diff(np.hstack([-np.ones_like(ends), bars.reshape(len(ends), parts - 1), ends]), axis=1) - 1


def _extend(shared: Shared, parts: Array, log_ways: Array, places: tuple[int, int], words: Array) -> Shared:
    """Every way with every way to share out one more cell, whose row and column have these places among the sums."""
    n, rank = len(shared.log_ways) * len(parts), parts.shape[1]
    sums = np.repeat(shared.sums, len(parts), axis=0)
    own = np.tile(parts, (len(shared.log_ways), 1))
    for place in places:
        sums[:, :, place] += own.astype(np.int32)
    keys = shared.keys[:, None] + (parts.astype(np.uint64) * np.sum(words[list(places)]))[None]
    return Shared(sums, keys.reshape(n, rank), (shared.log_ways[:, None] + log_ways).ravel())


def _merge(shared: Shared, mixers: Array) -> Shared:
    """Add up the ways with equal sums."""
    _, first, place = np.unique(shared.keys @ mixers, return_index=True, return_inverse=True)
    top = shared.log_ways.max()
    ways = np.bincount(place.ravel(), np.exp(shared.log_ways - top))
    with np.errstate(divide="ignore"):
        return Shared(shared.sums[first], shared.keys[first], top + np.log(ways))


# -- integrals ---------------------------------------------------------------------------------------------------------


class Integral(Protocol):
    """Of one component, in closed form or by quadrature."""

    def log_integral(self, k: int, sums: Array) -> Array:
        """log Z_k of every row of ``sums`` (ways, F + N)."""


@dataclass(frozen=True)
class OneKnown:
    """Integrals of components whose cells in one factor are known.

    Attributes
    ----------
    shape : (rows, K) of the unknown factor's prior; rate : (2, rows, K), the prior's, and with the likelihood's
    other : (cells, K) the known factor
    first : the unknown factor's sums come first
    """

    shape: Array
    rate: Array
    other: Array
    first: bool

    def log_integral(self, k: int, sums: Array) -> Array:
        halves = np.split(sums, [len(self.shape if self.first else self.other)], axis=1)
        own, across = halves if self.first else halves[::-1]
        shape, (rate, posterior_rate) = self.shape[:, k], self.rate[:, :, k]
        closed = gammaln(shape + own) - gammaln(shape) + shape * np.log(rate) - (shape + own) * np.log(posterior_rate)
        return closed.sum(axis=1) + xlogy(across, self.other[:, k]).sum(axis=1)


@dataclass(frozen=True)
class BothKnown:
    """No integral: components of which W (F, K) and Ht (N, K) are known; ``weight`` (F, K) is the sum of M e h."""

    W: Array
    Ht: Array
    weight: Array

    def log_integral(self, k: int, sums: Array) -> Array:
        A, B = np.split(sums, [len(self.W)], axis=1)
        logs = xlogy(A, self.W[:, k]).sum(axis=1) + xlogy(B, self.Ht[:, k]).sum(axis=1)
        return logs - float(self.W[:, k] @ self.weight[:, k])


@dataclass(frozen=True)
class OneRate:
    """Integrals of both factors, where rate / exposure of one of them (the left) is one number per component.

    Attributes
    ----------
    left, right : (shape, rate), (rows, K) each
    of_left, of_right : (rows,) exposures
    first : the left factor's sums come first
    """

    left: tuple[Array, Array]
    right: tuple[Array, Array]
    of_left: Array
    of_right: Array
    first: bool

    def log_integral(self, k: int, sums: Array) -> Array:
        sizes = len(self.of_left), len(self.of_right)
        halves = np.split(sums, [sizes[0] if self.first else sizes[1]], axis=1)
        A, B = halves if self.first else halves[::-1]
        (a, rate), (b, right_rate) = ((shape[:, k], rate[:, k]) for shape, rate in (self.left, self.right))
        rate = rate[0] / self.of_left[0]
        closed = gammaln(a + A) - gammaln(a) - xlogy(A, self.of_left)
        others = gammaln(b + B) - gammaln(b) + b * np.log(right_rate)
        total = np.sum(a + A, axis=1)
        constant = closed.sum(axis=1) + others.sum(axis=1) + a.sum() * np.log(rate) - gammaln(total)
        return constant + log_trapezoid(total, rate, b + B, right_rate, self.of_right)


def log_trapezoid(alpha: Array, rate: float, powers: Array, offsets: Array, slopes: Array) -> Array:
    """log of the integral of s^(alpha - 1) exp(-rate s) prod_n (offset_n + slope_n s)^-power_n over s > 0, (ways,).

    In t = log s the integrand is log-concave and analytic, and falls at least as fast as exp(alpha t) on the left.
    """
    top, most = float(alpha.max()), powers.max(axis=0)
    last = np.log((top + 10.0 * np.sqrt(top) + 60.0) / rate)
    peak = np.log(alpha / (rate + powers @ (slopes / offsets)))  # not above the integrand's own
    begin = float(np.min(peak - 1.0 - DECAY / alpha))
    step = min(WIDEST_STEP, 1.0 / (STEPS_PER_SPREAD * np.sqrt(top + most.sum() / 4.0)))
    t = np.linspace(begin, last, int(np.ceil((last - begin) / step)) + 1)
    logs = np.log(offsets[:, None] + slopes[:, None] * np.exp(t))
    height, out = max(1, GRID_CELLS // len(t)), np.empty(len(alpha))
    for start in range(0, len(alpha), height):
        part = slice(start, start + height)
        out[part] = logsumexp(alpha[part, None] * t - rate * np.exp(t) - powers[part] @ logs, axis=1)
    return out + np.log(t[1] - t[0])


def integrals(structure: Factorisation) -> list[Integral] | None:
    """Of each component, or None when one of them is not one-dimensional."""
    priors, weights = prior_cells(structure, {}), weigh(structure)
    sides = two_sides(structure)
    W, Ht = (np.ascontiguousarray(side.turn(known_values(side.factor))) for side in sides)
    over_W = np.broadcast_to(weights.over_features(W), Ht.shape)
    over_H = np.broadcast_to(weights.over_samples(Ht), W.shape)
    kinds: dict[tuple[bool, bool], Integral] = {
        (False, False): BothKnown(W, Ht, over_H),
        (False, True): OneKnown(priors.shape_h, np.stack([priors.rate_h, priors.rate_h + over_W]), W, first=False),
        (True, False): OneKnown(priors.shape_w, np.stack([priors.rate_w, priors.rate_w + over_H]), Ht, first=True),
    }
    of_W, of_H = (side.are_free.tolist() for side in sides)
    free = list(zip(of_W, of_H, strict=True))
    if (True, True) in free:
        both = one_rate(structure, priors, weights, structure.free_in_both)
        if both is None:
            return None
        kinds[True, True] = both
    return [kinds[own] for own in free]


def known_values(factor: Factor) -> Array:
    """In our orientation, 0 where nothing is known."""
    if isinstance(factor.prior, Fixed):
        return factor.prior.value
    return np.zeros(factor.shape) if factor.known is None else factor.known.values


def one_rate(structure: Factorisation, priors: PriorCells, weights: Weights, free: Array) -> OneRate | None:
    """Of the components that are ``free`` (K,) in both factors."""
    if weights.matrix is not None:
        return None
    n_features, n_samples = structure.shape
    of_features = np.broadcast_to(weights.of_features[:, 0], (n_features,))
    of_samples = np.broadcast_to(weights.of_samples[:, 0], (n_samples,))
    left, right = (priors.shape_w, priors.rate_w), (priors.shape_h, priors.rate_h)
    if _is_one_rate(priors.rate_w[:, free], of_features):
        return OneRate(left, right, of_features, of_samples, first=True)
    if _is_one_rate(priors.rate_h[:, free], of_samples):
        return OneRate(right, left, of_samples, of_features, first=False)
    return None


def _is_one_rate(rate: Array, exposure: Array) -> bool:
    ratio = rate / exposure[:, None]
    return bool(np.all(np.ptp(ratio, axis=0) <= EQUAL * ratio.max(axis=0)))


METHOD: Method = Method(
    name="enumeration",
    likelihoods=(Poisson,),
    takes_known=True,
    options=Enumeration,
    supports=supports,
    estimate=estimate,
    runs=1,
    in_pieces=False,
)
