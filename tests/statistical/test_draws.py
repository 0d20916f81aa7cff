"""Every draw against its law, on the whole range and in both tails; and every check against a planted error."""

from itertools import combinations

import numpy as np
import pytest
from numba import njit
from scipy import special, stats

from nmf_zoo.kernels.random.counts import allocate, draw_binomial, draw_poisson
from nmf_zoo.kernels.random.draws import draw_exponential, draw_gamma, draw_gig, draw_log_gamma, draw_normal
from nmf_zoo.kernels.random.keyed_rng import child, fold, seed_key, uniform
from tests.sizes import size
from tests.statistical.distributions_check import (
    check,
    continuous_p_values,
    discrete_p_values,
    gig_cdf,
    log_gamma_cdf,
    pooled_chi_square,
)

pytestmark = pytest.mark.statistical
N = size(300_000, 3_000_000)
KEY = seed_key(2)


# -- drawing many --------------------------------------------------------------------------------------------------


def many(draw):
    """A loop that fills an array from n children of a key; ``draw(key, *parameters)``."""

    @njit
    def fill(n, key, *parameters):
        out = np.empty(n)
        for i in range(n):
            out[i] = draw(fold(key, i), *parameters)
        return out

    return fill


exponentials = many(njit(lambda key: draw_exponential(key)))
normals = many(njit(lambda key: draw_normal(key)))
uniforms = many(njit(lambda key: uniform(key, 3)))
gammas = many(njit(lambda key, shape: draw_gamma(shape, key)))
log_gammas = many(njit(lambda key, shape: draw_log_gamma(shape, key)))
poissons = many(njit(lambda key, mean: draw_poisson(mean, key)))
binomials = many(njit(lambda key, n, p: draw_binomial(n, p, key)))
gigs = many(njit(lambda key, p, a, b: draw_gig(p, a, b, key)))


@njit
def allocations(n, key, x, weights):
    """(n, K) counts."""
    out, scratch = np.empty((n, len(weights)), dtype=np.int64), np.empty(len(weights))
    for i in range(n):
        allocate(x, weights, scratch, out[i], fold(key, i))
    return out


# -- continuous ----------------------------------------------------------------------------------------------------


def test_uniform():
    check(continuous_p_values(uniforms(4 * N, KEY), stats.uniform.cdf))


def test_exponential():
    check(continuous_p_values(exponentials(4 * N, KEY), stats.expon.cdf))


def test_normal():
    check(continuous_p_values(normals(4 * N, KEY), special.ndtr))


def test_normal_far_tail():
    """Beyond 4.04 the ziggurat uses another method: the law of the excess."""
    draws = np.abs(normals(100 * N, child(KEY, 1)))
    far = draws[draws > 3.8]
    check(continuous_p_values(far, lambda x: 1 - stats.norm.sf(x) / stats.norm.sf(3.8)))


def test_exponential_far_tail():
    """Beyond 9.26 the ziggurat starts again: the law of the excess over 9."""
    draws = exponentials(100 * N, child(KEY, 11))
    check(continuous_p_values(draws[draws > 9.0] - 9.0, stats.expon.cdf))


@pytest.mark.parametrize("shape", [0.05, 0.5, 0.999, 1.0, 1.7, 5.0, 100.0, 1e6, 1e12])
def test_gamma(shape):
    check(continuous_p_values(gammas(N, child(KEY, 2), shape), lambda x: special.gammainc(shape, x)))


@pytest.mark.parametrize("shape", [1e-6, 1e-3, 0.02, 0.7, 1.0, 30.0])
def test_log_gamma(shape):
    check(continuous_p_values(log_gammas(N, child(KEY, 3), shape), log_gamma_cdf(shape)))


GIG_CASES = [
    *[(p, a, b) for p in (-2.0, 0.0, 0.3, 1.0, 7.0) for a, b in ((1.0, 1.0), (1e-8, 3.0), (20.0, 900.0))],
    *[(p, 1e-8, 1e-8) for p in (-1.0, -1e-3, 0.0, 1e-3, 1.0)],
    *[(p, a, b) for p in (-500.0, 500.0) for a, b in ((1.0, 1.0), (1e-8, 1e8), (1e6, 1e6))],
    *[(p, a, b) for p in (-1e5, 1e5, 1e6) for a, b in ((1.0, 1.0), (1e8, 1e8), (1e5, 1e-8))],
    (0.5, 1e8, 1e8),
]


@pytest.mark.parametrize(("p", "a", "b"), GIG_CASES)
def test_gig(p, a, b):
    check(continuous_p_values(gigs(N // 3, child(KEY, 4), p, a, b), gig_cdf(p, a, b)))


def test_gig_limits_are_gammas():
    check(continuous_p_values(gigs(N, child(KEY, 5), 2.0, 3.0, 0.0), stats.gamma(2.0, scale=2 / 3).cdf))
    check(continuous_p_values(gigs(N, child(KEY, 6), -2.0, 0.0, 3.0), stats.invgamma(2.0, scale=3 / 2).cdf))


@pytest.mark.parametrize(("p", "w"), [(0.5, 1.0), (-3.0, 0.5), (20.0, 5.0)])
def test_integrated_gig_law_equals_scipy(p, w):
    x = np.exp(np.linspace(-4, 4, 50))
    np.testing.assert_allclose(gig_cdf(p, w, w)(x), stats.geninvgauss(p, w).cdf(x), atol=1e-7)


# -- discrete ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [1e-3, 0.7, 2.5, 9.99, 10.0, 17.3, 19.99, 20.0, 300.0, 1e6])
def test_poisson(mean):
    check(discrete_p_values(poissons(N, child(KEY, 7), mean), stats.poisson(mean)))


def test_huge_poisson():
    """A count of 1e12 is as good as continuous, and SciPy has no quantiles there."""
    check(continuous_p_values(poissons(N, child(KEY, 7), 1e12), lambda k: special.gammaincc(k + 1, 1e12)))


BINOMIAL_CASES = [
    (1, 0.3),
    (5, 0.5),
    (40, 0.1),
    (40, 0.25),
    (40, 0.75),
    (39, 0.5),
    (40, 0.5),
    (100, 0.3),
    (2000, 0.02),
    (100, 0.5),
    (3000, 0.3),
    (3000, 0.999),
    (10**9, 1e-9),
]
BINOMIAL_CASES += [(10**9, 0.3), (2**31 + 9, 0.97), (10**12, 0.5)]


@pytest.mark.parametrize(("n", "p"), BINOMIAL_CASES)
def test_binomial(n, p):
    check(discrete_p_values(binomials(N, child(KEY, 8), n, p), stats.binom(n, p)))


def allocation_p_values(table, x, weights):
    """Each category is binomial, and so is the sum of each two: that fixes all means, variances and covariances."""
    q = weights / weights.sum()
    sets = [*combinations(np.flatnonzero(q), 1), *combinations(np.flatnonzero(q), 2)]
    found = {k: discrete_p_values(table[:, k].sum(axis=1), stats.binom(x, q[list(k)].sum())) for k in sets}
    return {f"categories {k}, {part}": p for k, parts in found.items() for part, p in parts.items()}


ALLOCATION_WEIGHTS = {
    "two": [0.3, 0.7],
    "uneven": [5.0, 0.01, 0.0, 1.0, 0.3],
    "ten": [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 1.0, 0.5, 0.1],
}


@pytest.mark.parametrize("x", [1, 2, 7, 60, 150, 3000])
@pytest.mark.parametrize("name", ALLOCATION_WEIGHTS)
def test_allocation(x, name):
    weights = np.array(ALLOCATION_WEIGHTS[name])
    table = allocations(N // 4, child(KEY, 9), x, weights)
    assert (table.sum(axis=1) == x).all()
    assert not table[:, weights == 0].any()
    check(allocation_p_values(table, x, weights))


@pytest.mark.parametrize("rank", [33, 50])
def test_units_of_one_cell_are_independent(rank):
    """Pairs of units: x = 2 over many categories, against the exact probabilities of all outcomes."""
    weights = np.linspace(1, 2, rank)
    q = weights / weights.sum()
    table = allocations(2 * N, child(KEY, 10), 2, weights)
    low, high = np.argmax(table > 0, axis=1), rank - 1 - np.argmax(table[:, ::-1] > 0, axis=1)
    found = np.bincount(low * rank + high, minlength=rank**2).reshape(rank, rank)
    expected = 2 * N * np.triu(np.outer(q, q) * (2 - np.eye(rank)))
    upper = np.triu_indices(rank)
    check({"pairs": pooled_chi_square(found[upper], expected[upper])})


# -- planted errors ------------------------------------------------------------------------------------------------


def failed(p_values):
    with pytest.raises(AssertionError, match="expected all above"):
        check(p_values)


def test_planted_continuous_errors_are_seen():
    failed(continuous_p_values(gammas(N, KEY, 2.0 * 1.05), lambda x: special.gammainc(2.0, x)))
    failed(continuous_p_values(np.clip(normals(4 * N, KEY), -3.5, 3.5), special.ndtr))
    failed(continuous_p_values(-np.log(np.maximum(uniforms(4 * N, KEY), 2e-4)), stats.expon.cdf))
    failed(continuous_p_values(np.maximum(log_gammas(N, KEY, 1e-3), -745.0), log_gamma_cdf(1e-3)))
    failed(continuous_p_values(gigs(N, KEY, -500.0, 1.0, 1.0), gig_cdf(-501.0, 1.0, 1.0)))
    failed(continuous_p_values(np.full(10, np.nan), special.ndtr))


def test_planted_discrete_errors_are_seen():
    failed(discrete_p_values(binomials(N, KEY, 3000, 0.301), stats.binom(3000, 0.3)))
    failed(discrete_p_values(binomials(N, KEY, 3000, 0.3) + 1, stats.binom(3000, 0.3)))
    failed(discrete_p_values(np.minimum(poissons(N, KEY, 300.0), 360), stats.poisson(300.0)))
    failed(discrete_p_values(poissons(N, KEY, 0.0011 * 1.2), stats.poisson(0.001)))


def test_planted_allocation_errors_are_seen():
    weights = np.array([1.0, 2.0, 3.0])
    table = allocations(N // 4, KEY, 60, weights)
    independent = np.stack([np.random.default_rng(k).permutation(table[:, k]) for k in range(3)], axis=1)
    failed(allocation_p_values(independent, 60, weights))
    failed(allocation_p_values(table, 60, weights[::-1]))
    failed(allocation_p_values(table, 60, weights + np.array([0.1, 0.0, 0.0])))
