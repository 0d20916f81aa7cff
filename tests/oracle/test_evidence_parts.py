"""The exact evidence against brute force, and the parts of the estimates against plain formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, xlogy

from nmf_zoo.inference.evidence import bridging, chib, enumeration
from nmf_zoo.inference.evidence.posterior_runs import (
    FactorPair,
    LogJoints,
    flatten,
    nearness,
    sharpen,
    unflatten,
)
from nmf_zoo.inference.shared.layout import compress
from nmf_zoo.kernels.counts.joint import sum_log_means
from tests.statistical.enumeration import Case, Problem, compositions, log_gamma_density, log_weights
from tests.structures import beside, gamma, model

X = np.array([[2.0, 0.0, 1.0]])
TALL = np.array([[2.0, 0.0], [1.0, 1.0]])
GRID = np.arange(-60.0, 8.0, 0.25)
CASES = {
    "one rate": (model(X, 2, gamma(0.7, 1.3), gamma(1.4, 0.6)), (0.7, 1.3, 1.4, 0.6)),
    "shapes by cell": (
        model(X, 2, gamma([[0.7, 2.0]], [[1.3, 0.4]]), gamma([[1.0, 2.0, 0.5], [0.4, 1.0, 1.5]], [[0.6], [2.0]])),
        ([[0.7, 2.0]], [[1.3, 0.4]], [[1.0, 2.0, 0.5], [0.4, 1.0, 1.5]], [[0.6], [2.0]]),
    ),
    "exposure": (
        model(TALL, 1, gamma(0.8, [[1.0], [2.5]]), gamma(1.1, 0.7), exposure=[[0.5], [2.0]]),
        (0.8, [[1.0], [2.5]], 1.1, 0.7),
    ),
    "rates follow exposures": (
        model(TALL, 1, gamma(0.8, [[1.0], [3.0]]), gamma(1.1, [[0.7, 1.9]]), exposure=[[0.5], [1.5]]),
        (0.8, [[1.0], [3.0]], 1.1, [[0.7, 1.9]]),
    ),
    "background": (
        model(X, 2, gamma(0.7, 1.3), gamma(1.4, 0.6), background=[[0.3, 0.2, 0.1]], exposure=2.0),
        (0.7, 1.3, 1.4, 0.6),
    ),
    "known W": (
        model(TALL, 2, [[0.5, 1.0], [2.0, 0.1]], gamma(1.4, 0.6), mask=[[1, 1], [1, 0]]),
        (1.0, 1.0, 1.4, 0.6),
    ),
}


def brute_force(structure, priors):
    """log p(X) on a grid of log W, over every allocation, with H integrated out; nothing of the package's."""
    case = Case(structure=structure, priors=lambda values: tuple(map(np.asarray, priors)), w_grid=GRID)
    problem = Problem(case)
    W, log_volume = problem.grid()
    shape_w, rate_w, shape_h, rate_h = problem.priors({})
    total = log_weights(problem, W, shape_h, rate_h)[0] + log_volume
    if problem.fixed is None:
        total = total + log_gamma_density(W, shape_w, rate_w).sum(axis=(1, 2)) + W[0].size * np.log(GRID[1] - GRID[0])
    background = structure.likelihood.background
    return logsumexp(total) - (0.0 if background is None else np.sum(np.broadcast_to(background, structure.shape)))


@pytest.mark.parametrize("name", CASES)
def test_exact_evidence_is_that_of_brute_force(name):
    structure, priors = CASES[name]
    assert enumeration.log_evidence(structure) == pytest.approx(brute_force(structure, priors), abs=1e-9)


@pytest.mark.parametrize("shapes", [(1.0, 2.0), (0.05, 0.3), (20.0, 0.5)])
def test_exact_evidence_from_either_side(shapes):
    a, b = shapes
    x = np.array([[3, 0, 1], [2, 2, 5]])
    one = enumeration.log_evidence(model(x, 2, gamma(a, 1.5), gamma(b, 0.4)))
    other = enumeration.log_evidence(model(x.T, 2, gamma(b, 0.4), gamma(a, 1.5)))
    assert one == pytest.approx(other, abs=1e-11)


def test_exact_evidence_sums_to_one_over_all_data():
    """Of 1 x 1 tables with a light tail: the sum over x of p(x) is 1."""
    total = [enumeration.log_evidence(model([[x]], 2, gamma(1.0, 4.0), gamma(2.0, 4.0))) for x in range(40)]
    assert np.exp(logsumexp(total)) == pytest.approx(1.0, abs=1e-9)


def test_ways_to_share_out():
    structure = model([[2, 1], [0, 3]], 2, gamma(1.0, 1.0), gamma(1.0, 1.0))
    shared = enumeration.share_out(structure)
    naive: dict[tuple, float] = {}
    cells = [(0, 0, 2), (0, 1, 1), (1, 1, 3)]
    for parts in product(*(compositions(x, 2) for _, _, x in cells)):
        sums = np.zeros((2, 4), int)
        ways = 1.0
        for (row, column, x), part in zip(cells, parts, strict=True):
            sums[:, row] += part
            sums[:, 2 + column] += part
            ways *= np.exp(gammaln(x + 1) - gammaln(np.array(part) + 1.0).sum())
        naive[tuple(sums.ravel())] = naive.get(tuple(sums.ravel()), 0.0) + ways
    found = {tuple(sums.ravel()): np.exp(log) for sums, log in zip(shared.sums, shared.log_ways, strict=True)}
    assert found.keys() == naive.keys()
    assert all(found[key] == pytest.approx(naive[key], rel=1e-12) for key in naive)
    assert len(found) <= enumeration.count_allocations(structure)


def test_compositions():
    for total, parts in product(range(5), (1, 2, 3)):
        assert sorted(map(tuple, enumeration.compositions(total, parts))) == sorted(compositions(total, parts))


# -- estimates ---------------------------------------------------------------------------------------------------------


def stack(structure, n=6, seed=0):
    rng = np.random.default_rng(seed)
    (features, samples), rank = structure.shape, structure.rank
    return FactorPair(rng.gamma(1.0, size=(n, features, rank)), rng.gamma(1.0, size=(n, samples, rank)))


@pytest.fixture
def structure():
    x = np.random.default_rng(1).poisson(2.0, (4, 5))
    mask = np.ones((4, 5), bool)
    mask[0, 0] = mask[2, 3] = False
    return model(x, 3, gamma(0.7, 1.3), gamma(1.4, 0.6), mask=mask, exposure=[[0.5], [1.0], [2.0], [1.0]])


def test_log_joints_are_the_structures(structure):
    pair = stack(structure)
    expected = [structure.log_joint({"W": W, "H": Ht.T}) for W, Ht in zip(*pair, strict=True)]
    np.testing.assert_allclose(LogJoints(structure)(pair), expected, rtol=1e-12)


def test_sum_log_means(structure):
    pair, out = stack(structure), np.empty(6)
    sum_log_means(out, compress(structure), *pair)
    x = np.where(structure.data.mask, structure.data.values, 0.0)
    expected = [np.sum(xlogy(x, W @ Ht.T)) for W, Ht in zip(*pair, strict=True)]
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_sharper_priors_add_what_they_say(structure):
    """log p_s = log p + s T, but for one constant."""
    pair, point = stack(structure), FactorPair(*(array[0] for array in stack(structure, seed=5)))
    gained = LogJoints(sharpen(structure, point, 7.5))(pair) - LogJoints(structure)(pair)
    rest = gained - 7.5 * nearness(structure, pair, point)
    np.testing.assert_allclose(rest, rest[0], rtol=1e-9)
    assert nearness(structure, FactorPair(point.W[None], point.Ht[None]), point) == pytest.approx(0.0)


def test_sharper_priors_leave_a_known_factor_alone():
    structure = model(TALL, 2, [[0.5, 1.0], [2.0, 0.1]], gamma(1.4, 0.6))
    pair = FactorPair(np.array([structure.W.prior.value] * 2), np.ones((2, 2, 2)))
    sharper = sharpen(structure, FactorPair(pair.W[0], pair.Ht[0]), 3.0)
    assert sharper.W is structure.W
    np.testing.assert_array_equal(unflatten(structure, flatten(structure, pair)).Ht, pair.Ht)
    assert flatten(structure, pair).shape == (2, 4)


def test_flatten_and_back(structure):
    pair = stack(structure)
    for one, other in zip(unflatten(structure, flatten(structure, pair)), pair, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def partly(structure):
    """The first component of W is known, one of its cells 0, and the last of H; with draws."""
    W = beside(structure.W, [[0.0, 0, 0], [2.0, 0, 0], [0.3, 0, 0], [1.0, 0, 0]], (1, 3))
    H = beside(structure.H, np.full((3, 5), 0.7), (0, 2))
    pair = stack(structure)
    return replace(structure, W=W, H=H), FactorPair(W.known.whole(pair.W[:, :, 1:]), pair.Ht * [1, 1, 0] + [0, 0, 0.7])


def test_sharper_priors_leave_known_components_alone(partly):
    """log p_s = log p + s T, but for one constant, T over the cells that are not known."""
    structure, pair = partly
    point = FactorPair(pair.W[3], pair.Ht[3])
    sharper = sharpen(structure, point, 7.5)
    gained = LogJoints(sharper)(pair) - LogJoints(structure)(pair)
    ratios = [(own / own[3]).reshape(6, -1) for own in (pair.W[:, :, 1:], pair.Ht[:, :, :2])]
    expected = sum(np.sum(np.log(ratio) + 1.0 - ratio, axis=1) for ratio in ratios)
    np.testing.assert_allclose(nearness(structure, pair, point), expected, atol=1e-12)
    rest = gained - 7.5 * expected
    np.testing.assert_allclose(rest, rest[0], rtol=1e-9)
    assert sharper.W.known is structure.W.known


def test_flatten_and_back_beside_known_components(partly):
    structure, pair = partly
    cells = flatten(structure, pair)
    assert cells.shape == (6, 4 * 2 + 5 * 2)
    for one, other in zip(unflatten(structure, cells), pair, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("classes", [[0, 0, 0], [0, 1, 0], [0, 1, 2]])
def test_permanents_and_best_orders(classes):
    classes = np.array(classes)
    tables = np.random.default_rng(2).normal(scale=30.0, size=(5, 3, 3))
    allowed = [order for order in permutations(range(3)) if np.array_equal(classes[list(order)], classes)]
    scores = np.array([[table[range(3), order].sum() for order in allowed] for table in tables])
    np.testing.assert_allclose(bridging.log_permanents(tables, classes), logsumexp(scores, axis=1), rtol=1e-12)
    best = bridging.orders_of_best(tables, classes)
    assert [tuple(order) for order in best] == [allowed[i] for i in scores.argmax(axis=1)]
    assert np.exp(bridging.log_exchanges(classes)) == pytest.approx(len(allowed))


def test_orders_put_exchanged_components_back():
    structure = model(np.ones((6, 7)), 4, gamma(1.0, 1.0), gamma(1.0, 1.0))
    pair, rng = stack(structure, 1), np.random.default_rng(3)
    reference = FactorPair(pair.W[0], pair.Ht[0])
    for _ in range(10):
        exchange = rng.permutation(4)
        moved = FactorPair(pair.W[:, :, exchange], pair.Ht[:, :, exchange])
        orders = bridging.orders_like(moved, reference, bridging.exchangeable(structure))
        np.testing.assert_array_equal(moved.ordered(orders).W, pair.W)


def test_components_with_other_priors_are_not_exchangeable():
    equal = model(np.ones((2, 2)), 3, gamma(1.0, 1.0), gamma(1.0, 1.0))
    unequal = model(np.ones((2, 2)), 3, gamma(1.0, 1.0), gamma([[1.0], [2.0], [1.0]], 1.0))
    known = model(np.ones((2, 2)), 3, np.ones((2, 3)), gamma(1.0, 1.0))
    partly = replace(equal, W=beside(equal.W, np.ones((2, 3)), (0, 2)))
    mostly = replace(equal, W=beside(equal.W, np.ones((2, 3)), (0, 1)))
    all_of_them = (equal, unequal, known, partly, mostly)
    sizes = [np.exp(bridging.log_exchanges(bridging.exchangeable(each))) for each in all_of_them]
    assert sizes == pytest.approx([6.0, 2.0, 1.0, 2.0, 1.0])


def test_bridge_of_two_normals():
    """p = N(0, 1) times 5, q = N(1, 2): log(Z_p / Z_q) = log 5, within four of its own standard errors."""
    rng = np.random.default_rng(4)

    def log_density_ratio(v):
        return np.log(5.0) - 0.5 * v**2 + 0.5 * (v - 1.0) ** 2 / 4.0 + np.log(2.0)

    at_p, at_q = log_density_ratio(rng.normal(size=4000)), log_density_ratio(rng.normal(1.0, 2.0, size=4000))
    of_p, of_q = bridging.error_of_ratio(at_p, at_q)
    error = np.sqrt(np.sum(of_p**2) + np.sum(of_q**2))
    assert 0.005 < error < 0.05
    assert abs(bridging.log_ratio(at_p, at_q) - np.log(5.0)) < 4 * error
    assert bridging.log_ratio(at_p, np.full(10, -np.inf)) == -np.inf


def test_independent_size_of_a_slow_series():
    rng, series = np.random.default_rng(5), np.empty(40_000)
    series[0] = 0.0
    for i in range(1, len(series)):
        series[i] = 0.9 * series[i - 1] + rng.normal()
    assert 1000 < bridging.independent_size(series) < 5000  # 40,000 / 19
    assert bridging.independent_size(np.ones(100)) == 100


def test_counts_are_rounded_to_whole_shares():
    counts, rates = np.array([5.0, 1.0, 0.0]), np.array([[1.0, 1.0, 1.2], [0.1, 0.2, 0.3], [1.0, 1.0, 1.0]])
    shares = chib.round_shares(counts, rates)
    np.testing.assert_array_equal(shares.sum(axis=1), counts)
    assert np.all(np.abs(shares - counts[:, None] * rates / rates.sum(axis=1, keepdims=True)) < 1.0)


def test_densities_of_sources_are_multinomial():
    """p(C~ | W, H, X) summed over all exchanges, but for x! / prod C~!, against the multinomial itself."""
    structure = model([[2, 1], [0, 3]], 2, gamma(1.0, 1.0), gamma(1.0, 1.0))
    draws, point = stack(structure), FactorPair(*(array[0] for array in stack(structure, seed=7)))
    layout = compress(structure)
    sums = chib.share_sources(layout, point)
    C = np.zeros((2, 2, 2))
    for f, n in np.argwhere(structure.data.values > 0):
        C[f, n] = chib.round_shares(structure.data.values[f, n][None], (point.W[f] * point.Ht[n])[None])[0]
    found = chib.log_densities_of_sources(layout, sums, draws, np.zeros(2, int))
    expected = []
    for W, Ht in zip(*draws, strict=True):
        rates = W[:, None, :] * Ht[None]
        shares = np.log(rates / rates.sum(axis=2, keepdims=True))
        expected.append(np.logaddexp(np.sum(C * shares), np.sum(C[:, :, ::-1] * shares)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
