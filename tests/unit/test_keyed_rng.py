"""Streams and draws as functions: twins, pinned values, edges of parameters, independence of keys and words."""

import math

import numpy as np
import pytest
from numba import njit
from scipy import stats

from nmf_zoo.kernels.random import counts, draws, keyed_rng
from nmf_zoo.kernels.random.keyed_rng import child, children, fold, generator_of, random_bits, seed_key, uniform
from nmf_zoo.kernels.simd.unowned_views import borrowed
from tests.naive.random import draws as naive_draws

P_BOUND = 1e-6  # per test; about 60 of them here: a false alarm has probability below 1e-4
KEY = seed_key(20)
SIDE = 500


# -- twins and pinned values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_generators_are_philox_of_the_key(key):
    ours, numpys = generator_of(np.uint64(key)), np.random.Generator(np.random.Philox(key=key))
    assert ours.random(5).tolist() == numpys.random(5).tolist()
    assert ours.standard_gamma([0.3, 4.0]).tolist() == numpys.standard_gamma([0.3, 4.0]).tolist()


def some_keys(n):
    return [child(KEY, i) for i in range(n)]


@pytest.mark.parametrize("name", ["fold", "random_bits", "uniform"])
def test_streams_equal_naive(name):
    for key in some_keys(20):
        for word in (0, 1, 2, 1000, 2**31, 2**40):
            assert getattr(keyed_rng, name)(key, word) == getattr(naive_draws, name)(key, word)


@pytest.mark.parametrize("mean", [1e-3, 0.5, 3.0, 9.9])
def test_small_poisson_is_inversion(mean):
    assert [counts.draw_poisson(mean, k) for k in some_keys(200)] == [
        naive_draws.draw_poisson(mean, k) for k in some_keys(200)
    ]


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (7, 0.2), (7, 0.9), (3000, 0.003), (10**9, 5e-9)])
def test_small_binomial_is_inversion(n, p):
    keys = some_keys(200)
    assert [counts.draw_binomial(n, p, k) for k in keys] == [naive_draws.draw_binomial(n, p, k) for k in keys]


@pytest.mark.parametrize(("n", "p"), [(17, 0.5), (64, 0.3), (65, 0.125), (100, 0.4875), (128, 0.8)])
def test_binomials_of_few_trials_are_tossed(n, p):
    keys = some_keys(100)
    less = min(p, 1 - p)
    tossed = [naive_draws.toss_binomial(n, less, k) for k in keys]
    assert [counts.draw_binomial(n, p, k) for k in keys] == [k if less == p else n - k for k in tossed]


def test_rare_coins_are_decided_by_late_digits():
    """Digits beyond the sure ones: at p = 2^-20 each coin that begins like p is followed until it differs."""
    p = 2.0**-20 * 1.75
    keys = some_keys(20_000)
    heads = sum(counts._toss_binomial(64, p, k) for k in keys)
    assert stats.poisson.sf(heads - 1, 64 * p * len(keys)) > P_BOUND
    assert stats.poisson.cdf(heads, 64 * p * len(keys)) > P_BOUND
    assert [counts._ones(np.uint64(bits)) for bits in (0, 1, 2**63, 2**64 - 1)] == [0, 1, 1, 64]


@pytest.mark.parametrize("rank", [1, 2, 5, 10, 33])
def test_small_allocation_is_categorical(rank):
    weights = np.random.default_rng(rank).gamma(0.5, size=rank)
    for x, key in enumerate(some_keys(16)):
        assert_same_allocation(x, weights, key)


def assert_same_allocation(x, weights, key):
    out = np.full(len(weights), -1)
    if x <= counts.SPLIT * (len(weights) - 1):
        assert counts.allocate(x, weights, np.empty(len(weights)), out, key)
        np.testing.assert_array_equal(out, naive_draws.allocate(x, weights, key))


CALLS = {
    "fold": (keyed_rng.fold, (KEY, 5)),
    "random_bits": (keyed_rng.random_bits, (KEY, 5)),
    "uniform": (keyed_rng.uniform, (KEY, 5)),
    "exponential": (draws.draw_exponential, (KEY,)),
    "normal": (draws.draw_normal, (KEY,)),
    "gamma": (draws.draw_gamma, (2.5, KEY)),
    "gamma below 1": (draws.draw_gamma, (0.1, KEY)),
    "log gamma": (draws.draw_log_gamma, (1e-6, KEY)),
    "poisson": (counts.draw_poisson, (3.0, KEY)),
    "large poisson": (counts.draw_poisson, (1e6, KEY)),
    "binomial": (counts.draw_binomial, (20, 0.3, KEY)),
    "tossed binomial": (counts.draw_binomial, (100, 0.7, KEY)),
    "large binomial": (counts.draw_binomial, (10**9, 0.3, KEY)),
    "gig": (draws.draw_gig, (0.5, 2.0, 3.0, KEY)),
    "large gig": (draws.draw_gig, (-1e5, 2.0, 3.0, KEY)),
}
PINNED = {
    "fold": 18149849953509258792,
    "random_bits": 14790135213248762297,
    "uniform": 0.8017748364779335,
    "exponential": 0.7987177758313151,
    "normal": -1.3156166628867685,
    "gamma": 0.749783916761524,
    "gamma below 1": 2.8952107230508786e-06,
    "log gamma": -1335762.972072746,
    "poisson": 3,
    "large poisson": 1000111,
    "binomial": 6,
    "tossed binomial": 72,
    "large binomial": 300001604,
    "gig": 2.2962289332229746,
    "large gig": 1.4972846920343916e-05,
}


@pytest.mark.parametrize("name", CALLS)
def test_values_are_pinned(name):
    """The same numbers on every version of Python, NumPy and numba."""
    function, arguments = CALLS[name]
    assert function(*arguments) == pytest.approx(PINNED[name], rel=1e-12, abs=0)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_equals_python(name):
    function, arguments = CALLS[name]
    for i in range(50):
        key = child(KEY, i)
        swapped = (
            (key, *arguments[1:]) if function in (keyed_rng.fold, random_bits, uniform) else (*arguments[:-1], key)
        )
        with np.errstate(over="ignore"):
            assert function(*swapped) == pytest.approx(function.py_func(*swapped), rel=1e-12, abs=0)


def test_compiled_allocation_equals_python():
    weights = np.array([0.3, 0.0, 2.0, 1.0])
    for x in (0, 3, 30, 3000):
        out, expected = np.empty(4, dtype=np.int64), np.empty(4, dtype=np.int64)
        counts.allocate(x, weights, np.empty(4), out, KEY)
        with np.errstate(over="ignore"):
            counts.allocate.py_func(x, weights, np.empty(4), expected, KEY)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, 2**200, np.random.SeedSequence(5)])
def test_seed_key(seed):
    assert isinstance(seed_key(seed), np.uint64)
    assert seed_key(seed) == seed_key(seed)
    assert seed_key(seed) != seed_key(7)


def test_signed_key_is_the_same_stream():
    """A key that went through Python comes back as an int, which numba takes for int64: never float64 arithmetic."""
    assert fold(5, 3) == fold(np.uint64(5), np.uint64(3))
    assert uniform(np.int64(-5), 3) == uniform(np.uint64(2**64 - 5), 3)
    assert child(5, 1, 2) == naive_draws.fold(naive_draws.fold(5, 1), 2)


def test_children_are_each_child():
    keys = children(seed_key(3), 5)
    assert keys.dtype == np.uint64
    assert keys.tolist() == [int(child(seed_key(3), word)) for word in range(5)]


@njit
def allocate_borrowed(x, weights, cumulative, out, key):
    return counts.allocate(x, borrowed(weights), borrowed(cumulative), borrowed(out), key)


def test_borrowed_arrays_are_the_same_arrays():
    weights, out, expected = np.array([0.3, 0.0, 2.0]), np.empty(3, dtype=np.int64), np.empty(3, dtype=np.int64)
    for call in (allocate_borrowed, allocate_borrowed.py_func):
        for x in (5, 500):
            assert call(x, weights, np.empty(3), out, KEY)
            counts.allocate(x, weights, np.empty(3), expected, KEY)
            np.testing.assert_array_equal(out, expected)


# -- edges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "expected"), [(0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)])
def test_uniform_is_open_at_both_ends(bits, expected):
    key = naive_draws.key_with_bits(bits)
    assert random_bits(key, 0) == bits
    assert uniform(key, 0) == expected
    assert 0 < draws.draw_exponential(key) < math.inf


def test_ziggurat_layers_have_equal_areas():
    tables = (draws._EDGES, draws._HEIGHTS, lambda x: 0.5 * x**2), (draws._EXP_EDGES, draws._EXP_HEIGHTS, lambda x: x)
    for edges, heights, energy in tables:
        np.testing.assert_allclose(edges[:-1] * np.diff(heights), edges[0] * heights[1], rtol=1e-10)
        np.testing.assert_allclose(heights[1:], np.exp(-energy(edges[1:])), rtol=1e-12)


@pytest.mark.parametrize("name", ["exponential", "normal"])
def test_ziggurats_equal_naive(name):
    """The words of one key in a row: inside layers, at their edges, in the tail; and how many words each draw took."""
    draw, naive = getattr(draws, f"{name}_from"), getattr(naive_draws, f"{name}_from")
    i, longest = 0, 0
    for _ in range(150_000):  # about 14 of them in the tail
        expected, following = naive(KEY, i)
        found, next_word = draw(KEY, np.uint64(i))
        assert next_word == following
        assert found == pytest.approx(expected, rel=1e-9, abs=0)
        longest = max(longest, following - i)
        i = following
    assert longest > 2


def log_ratios_to_mode(n, p, most):
    """{k: log of the binomial probability of k over the mode's} for k up to ``most`` from the mode, step by step."""
    mode = math.floor((n + 1) * p)
    up, down = np.arange(mode + 1, min(n, mode + most) + 1), np.arange(mode, max(0, mode - most), -1)
    steps = np.log((n - up + 1) / up) + math.log(p / (1 - p)), -np.log((n - down + 1) / down) - math.log(p / (1 - p))
    return mode, dict(zip([*up, *(down - 1)], np.concatenate([np.cumsum(s) for s in steps]), strict=True))


BINOMIALS = [(40, 0.5), (400, 0.25), (3000, 0.3), (10**5, 0.01), (10**6, 0.5), (10**9, 1e-6)]


@pytest.mark.parametrize(("n", "p"), BINOMIALS)
def test_bounds_of_the_binomial_hold(n, p):
    """The squeeze that spares the exact probability."""
    variance = n * p * (1 - p)
    mode, exact = log_ratios_to_mode(n, p, math.ceil(min(0.5 * variance - 2, 40 * math.sqrt(variance))))
    checked = [k for k in exact if abs(k - mode) > counts.NEAR]
    assert checked or variance < 50
    for k in checked:
        middle, slack = counts._log_ratio_bounds(abs(float(k - mode)), variance)
        assert abs(exact[k] - middle) <= slack


@pytest.mark.parametrize(("n", "p"), BINOMIALS)
def test_ratio_to_the_mode(n, p):
    mode, exact = log_ratios_to_mode(n, p, counts.NEAR)
    for k, log_ratio in exact.items():
        assert counts._ratio_to_mode(float(k), float(mode), float(n), p) == pytest.approx(
            math.exp(log_ratio), rel=1e-12
        )


@pytest.mark.parametrize("shape", [1.0, 1.3, 4.0, 1e3])
def test_gamma_proposals_accepted_at_once_would_be_anyway(shape):
    """The squeeze of Marsaglia and Tsang lies below the exact bound of the uniform, and not far below."""
    d = shape - 1 / 3
    c, x = 1 / math.sqrt(9 * d), np.linspace(-2.3, 2.3, 2001)
    x = x[1 + c * x > 0.01]
    v = (1 + c * x) ** 3
    exact = np.exp(0.5 * x * x + d * (1 - v + np.log(v)))
    found = []
    for key in some_keys(30_000):
        v_found, accepted, x_found, u, _ = draws._propose_gamma(d, c, key, np.uint64(0))
        assert v_found == pytest.approx((1 + c * x_found) ** 3, rel=1e-12)
        if accepted:
            found.append((x_found, u))
    found = np.array(found)
    bound = np.interp(found[:, 0], x, exact)
    inside = (found[:, 0] > x[0]) & (found[:, 0] < x[-1])
    assert np.all(found[inside, 1] <= bound[inside] + 1e-6)
    assert len(found) > 0.9 * 30_000


@pytest.mark.parametrize("shape", [1e-300, 1e-12, 1e-6, 0.3, 1.0, 1e6, 1e15])
def test_log_gamma_is_finite(shape):
    assert all(math.isfinite(draws.draw_log_gamma(shape, k)) for k in some_keys(200))


@pytest.mark.parametrize("shape", [0.0, -1.0, -0.1, math.nan])
def test_impossible_shape_is_nan(shape):
    assert math.isnan(draws.draw_gamma(shape, KEY))
    assert math.isnan(draws.draw_log_gamma(shape, KEY))


def test_poisson_edges():
    assert counts.draw_poisson(0.0, KEY) == 0
    assert [counts.draw_poisson(m, KEY) for m in (-1.0, math.nan, math.inf)] == [-1, -1, -1]
    assert abs(counts.draw_poisson(1e12, KEY) - 1e12) < 1e7


def test_binomial_edges():
    for n in (0, 1, 3000, 2**40):
        assert counts.draw_binomial(n, 0.0, KEY) == counts.draw_binomial(n, -1e-17, KEY) == 0
        assert counts.draw_binomial(n, 1.0, KEY) == counts.draw_binomial(n, 1.0 + 1e-15, KEY) == n
    assert counts.draw_binomial(5, math.nan, KEY) == -1
    assert abs(counts.draw_binomial(2**50, 0.25, KEY) - 2**48) < 2**28


@pytest.mark.parametrize("x", [0, 1, 15, 400, 2**31, 2**40])
@pytest.mark.parametrize("weights", [[2.0], [0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 3.0, 0.0, 1e-9, 0.0], [1e-200] * 20])
def test_allocation_sums_and_zero_weights(x, weights):
    weights = np.array(weights)
    out = np.full(len(weights), -1)
    for key in some_keys(20):
        assert counts.allocate(x, weights, np.empty(len(weights)), out, key)
        assert out.sum() == x
        assert out.min() >= 0
        assert not out[weights == 0].any()


@pytest.mark.parametrize("bad", [0.0, 1e-310, math.inf, math.nan])
@pytest.mark.parametrize("x", [3, 300])
def test_allocation_refuses_unusable_weights(bad, x):
    out = np.full(3, -1)
    assert not counts.allocate(x, np.array([0.0, bad, 0.0]), np.empty(3), out, KEY)
    assert not out.any()


@pytest.mark.parametrize("p", [-1e6, -500.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 30.0, 1e6])
@pytest.mark.parametrize("a", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("b", [1e-8, 1.0, 1e8])
def test_gig_is_positive_and_finite(p, a, b):
    assert all(0 < draws.draw_gig(p, a, b, k) < math.inf for k in some_keys(20))


@pytest.mark.parametrize(
    ("p", "a", "b"), [(1e-3, 1e-200, 1e-200), (0.0, 1e-300, 1e-300), (1e-9, 1.0, 0.0), (-1e-9, 0.0, 1.0)]
)
def test_gig_ends_where_products_underflow(p, a, b):
    assert all(0 < draws.draw_gig(p, a, b, k) < math.inf for k in some_keys(20))


@pytest.mark.parametrize(
    ("p", "a", "b"),
    [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (-1.0, 1.0, 0.0), (1.0, -1.0, 1.0), (math.nan, 1.0, 1.0), (1.0, math.inf, 1.0)],
)
def test_impossible_gig_is_nan(p, a, b):
    assert math.isnan(draws.draw_gig(p, a, b, KEY))


def test_gig_reciprocal_symmetry():
    for key in some_keys(50):
        assert draws.draw_gig(-2.5, 3.0, 0.7, key) == pytest.approx(1 / draws.draw_gig(2.5, 0.7, 3.0, key), rel=1e-12)


is_below = njit(lambda level, t, c, p: draws._is_below(level, t, c, p))


@pytest.mark.parametrize("size", [1e-9, 0.1, 3.0, 1e3, 1e9, 1e200])
def test_chords_of_the_gig_decide_as_its_density(size):
    """At levels on psi, a step beside it, and further and further away."""
    rng, apart = np.random.default_rng(1), np.concatenate([[0.0], 10.0 ** np.arange(-16.0, 1.0)])
    for t in rng.uniform(-4.4, 4.4, 100) * rng.choice([1.0, 0.1, 1e-3], 100):
        c, p = size * rng.uniform(size=2) * rng.choice([0.0, 1.0], 2, p=(0.2, 0.8))
        psi = draws._psi(t, c, p)
        levels = [np.nextafter(psi, -np.inf), np.nextafter(psi, np.inf), *(psi + (1 + c + p) * apart)]
        levels += list(psi - (1 + c + p) * apart)
        assert [is_below(level, t, c, p) for level in levels] == [level <= psi for level in levels]


def test_known_tangents_of_the_gig_are_those_of_its_density():
    """Where they touch at 1 and -1 psi and its slope are numbers that are known: the same bits."""
    touches = 0
    for c, p in np.random.default_rng(1).gamma(0.5, size=(300, 2)):
        for sign, (t, psi, slope) in zip((1.0, -1.0), draws._tangents(c, p), strict=True):
            touches += t == 1.0
            assert (psi, -sign * slope) == draws._psi_and_slope(sign * t, c, p)
    assert 100 < touches < 500


# -- independence of keys and words --------------------------------------------------------------------------------


@njit
def words_of_cells(key, side, swap, word):
    """(side, side) uint64: the word of each cell (f, n), or of (n, f) when swapped."""
    out = np.empty((side, side), dtype=np.uint64)
    for f in range(side):
        for n in range(side):
            out[f, n] = random_bits(fold(fold(key, n), f) if swap else fold(fold(key, f), n), word)
    return out


@njit
def words_of_stream(key, n):
    out = np.empty(n, dtype=np.uint64)
    for i in range(n):
        out[i] = random_bits(key, i)
    return out


@njit
def childs(key, n):
    out = np.empty(n, dtype=np.uint64)
    for i in range(n):
        out[i] = fold(key, i)
    return out


def pair_p_value(x, y, bits=5):
    """Chi-square of the joint law of the top ``bits`` bits of two arrays against independent uniforms."""
    shift = np.uint64(64 - bits)
    cells = ((x.ravel() >> shift) << np.uint64(bits)) | (y.ravel() >> shift)
    return stats.chisquare(np.bincount(cells.astype(np.int64), minlength=4**bits)).pvalue


def low_bits(words, bits=5):
    """The lowest bits that a uniform uses (12 and up), moved to the top."""
    return words << np.uint64(64 - 12 - bits)


def single_bits_p_value(x, y):
    """Do the 64 bits of x ^ y have frequency 1/2? The smallest of 64 p-values, times 64."""
    different = x.ravel() ^ y.ravel()
    ones = [int(np.count_nonzero(different >> np.uint64(b) & np.uint64(1))) for b in range(64)]
    return min(1.0, 64 * min(stats.binomtest(k, different.size).pvalue for k in ones))


def neighbours():
    """Pairs of arrays of words that a run uses side by side and that must look independent."""
    here = words_of_cells(KEY, SIDE, False, 0)
    stream = words_of_stream(KEY, SIDE * SIDE)
    upper = np.triu_indices(SIDE, 1)
    return {
        "cell (f, n) and (n, f)": (here[upper], here.T[upper]),
        "cell (f, n) and (f, n + 1)": (here[:, :-1], here[:, 1:]),
        "cell (f, n) and (f + 1, n)": (here[:-1], here[1:]),
        "cell (f, n) keyed in either order": (here[upper], words_of_cells(KEY, SIDE, True, 0)[upper]),
        "words 0 and 1 of a cell": (here, words_of_cells(KEY, SIDE, False, 1)),
        "sweeps 0 and 1": (
            words_of_cells(child(KEY, 0), SIDE, False, 0),
            words_of_cells(child(KEY, 1), SIDE, False, 0),
        ),
        "chains 0 and 1": tuple(words_of_cells(child(KEY, c, 9), SIDE, False, 0) for c in (0, 1)),
        "seeds 0 and 1": (words_of_cells(seed_key(0), SIDE, False, 0), words_of_cells(seed_key(1), SIDE, False, 0)),
        "words i and i + 1 of one stream": (stream[:-1], stream[1:]),
        "words i and i + 2 of one stream": (stream[:-2], stream[2:]),
        "words and child keys of one key": (stream, childs(KEY, SIDE * SIDE)),
        "raw keys 0, 1, 2, ...": (
            np.array([random_bits(np.uint64(i), 0) for i in range(20_000)], dtype=np.uint64),
            np.array([random_bits(np.uint64(i + 1), 0) for i in range(20_000)], dtype=np.uint64),
        ),
    }


NEIGHBOURS = neighbours()


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_independent(name):
    x, y = NEIGHBOURS[name]
    assert pair_p_value(x, y) > P_BOUND
    assert pair_p_value(low_bits(x), low_bits(y)) > P_BOUND
    assert pair_p_value(low_bits(x), y) > P_BOUND
    assert single_bits_p_value(x, y) > P_BOUND


def test_cells_have_different_keys():
    keys = np.concatenate([childs(child(KEY, f), 1000) for f in range(1000)])
    assert len(np.unique(keys)) == len(keys)


def test_birthday_spacings():
    """Marsaglia: repeated spacings among 2^14 points of 2^36 are Poisson(2^42 / 2^38); a lattice repeats more."""
    repeats = 0
    for i in range(16):
        points = np.sort(words_of_cells(child(KEY, i), 128, False, 0).ravel() >> np.uint64(28))
        spacings = np.sort(np.diff(points))
        repeats += int(np.count_nonzero(np.diff(spacings) == 0))
    tail = min(stats.poisson.cdf(repeats, 256), stats.poisson.sf(repeats - 1, 256))
    assert 2 * tail > P_BOUND


@pytest.mark.parametrize("fault", ["sum of words", "one low bit stuck", "xor of words", "shared stream"])
def test_neighbour_checks_see_planted_faults(fault):
    f, n = np.indices((SIDE, SIDE))
    faulty = {
        "sum of words": lambda: (words_of_stream(KEY, 2 * SIDE)[f + n], words_of_stream(KEY, 2 * SIDE)[n + f]),
        "one low bit stuck": lambda: tuple(w | np.uint64(1 << 13) for w in NEIGHBOURS["sweeps 0 and 1"]),
        "xor of words": lambda: (words_of_stream(KEY, 512)[f ^ n], words_of_stream(KEY, 512)[n ^ f]),
        "shared stream": lambda: (words_of_stream(KEY, SIDE), words_of_stream(KEY, SIDE)),
    }[fault]()
    smallest = min(pair_p_value(*faulty), pair_p_value(*map(low_bits, faulty)), single_bits_p_value(*faulty))
    assert smallest < P_BOUND
