"""EM and VB against independent formulas, exact evidence and numerical optima; planted wrong updates must be seen."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import optimize
from scipy.special import gammaln, logsumexp

from nmf_zoo.inference.counts import em, vb
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Cells, Normal
from tests.naive.counts import sources as naive
from tests.planted import plant
from tests.registered import ORDERS
from tests.runs import fit, largest_loss, numerical_gradient
from tests.structures import beside, gamma, half_normal, model, parameter, unknown, weight_of

RNG = np.random.default_rng(7)
F, N, K = 8, 7, 3
X = RNG.poisson(3.0 * RNG.gamma(1.0, 1.0, (F, K)) @ RNG.gamma(1.0, 1.0, (K, N))).astype(float)
X[2], X[:, 4] = 0.0, 0.0
MASK = RNG.random((F, N)) < 0.8
EXPOSURE, BACKGROUND = RNG.random((F, N)) + 0.5, 0.3 * RNG.random((1, N))
START = {"W": RNG.random((F, K)) + 0.1, "H": RNG.random((K, N)) + 0.1}
SHAPES = np.array([[1.0, 1.5, 3.0]])

SETTINGS = {
    "plain": {},
    "mask": {"mask": MASK},
    "exposure": {"exposure": EXPOSURE},
    "background": {"background": BACKGROUND},
    "all": {"mask": MASK, "exposure": EXPOSURE, "background": BACKGROUND},
}
PRIORS = {
    "flat, flat": (None, None),
    "gamma, gamma": (gamma(SHAPES, 0.7), gamma(1.2, mean=RNG.random((K, 1)) + 0.5)),
    "flat, gamma": (None, gamma(2.0, 0.7)),
    "gamma, flat": (gamma(2.0, 0.7), None),
    "gap, shape 1": (None, gamma(1.0, 0.7)),
    "gap, free rate": (None, gamma(2.0, unknown("b", "flat"))),
    "gap, free mean": (None, gamma(SHAPES.T, mean=unknown("m", "flat", variable_shape=(N,), shape=(1, N)))),
    "fixed, gamma": (START["W"], gamma(1.0, 0.7)),
    "gamma, fixed": (gamma(2.0, 0.7), START["H"]),
}


def as_cells(structure, drop_zeros):
    """The same data as a list of cells: all but the zeros, or those observed."""
    listed = structure.data.values != 0 if drop_zeros else structure.data.mask
    rows, cols = np.nonzero(listed)
    cells = Cells(rows=rows, cols=cols, values=structure.data.values[rows, cols], shape=(F, N), is_complete=drop_zeros)
    return dataclasses.replace(structure, data=cells)


def as_normal(structure, sigma):
    likelihood = Normal(
        exposure=structure.likelihood.exposure, background=structure.likelihood.background, sigma=parameter(sigma)
    )
    return dataclasses.replace(structure, likelihood=likelihood)


def offset_of(structure):
    likelihood = structure.likelihood
    background = 0.0 if likelihood.background is None else likelihood.background
    return background / (1.0 if likelihood.exposure is None else likelihood.exposure)


PLAIN = em.EM(accelerate=None)  # EM's own updates: Newton steps differ between dense and listed data


# -- EM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize(
    "options", [em.EM(), em.EM(inner=1), em.EM(inner=5), em.EM(mode="log"), em.EM(mode="log", inner=2)], ids=str
)
def test_em_never_rises_and_reports_the_log_joint(setting, priors, options):
    structure = model(X, K, *PRIORS[priors], **SETTINGS[setting])
    problem, state, _, objective = fit(em.ENGINE, structure, options, 40)
    assert largest_loss(objective, maximise=False) <= 1e-9
    values = {"W": state.W, "H": state.Ht.T, **state.values}
    log_joint = structure.log_joint(values)
    if options.mode == "log":
        log_joint += sum(
            np.sum(np.log(a)) for side, a in zip(problem.sides, (state.W, state.Ht), strict=True) if side.is_gamma
        )
    np.testing.assert_allclose(-objective[-1], log_joint, rtol=1e-9)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("inner", [None, 1, 3])
@pytest.mark.parametrize("mode", ["density", "log"])
def test_em_follows_the_formula_step_by_step(setting, inner, mode):
    structure = model(X, K, gamma(SHAPES, 0.7), gamma(1.2, 0.4), **SETTINGS[setting])
    problem = em.prepare(structure, em.EM(mode=mode, inner=inner, accelerate=None), Workers())
    state = em.init(problem, np.uint64(0), START)
    W, H = START["W"], START["H"]
    less = 1.0 if mode == "density" else 0.0
    for _ in range(4):
        state, _ = em.step(problem, state)
        priors = (SHAPES - less, 0.7), (1.2 - less, 0.4)
        W, H = naive.em_step(structure.data.values, weight_of(structure), W, H, *priors, offset_of(structure), inner)
        np.testing.assert_allclose(state.W, W, rtol=1e-10, atol=FLOOR)
        np.testing.assert_allclose(state.Ht, H.T, rtol=1e-10, atol=FLOOR)


@pytest.mark.parametrize("sigma", [0.8, unknown("sigma", "flat")], ids=["known", "free"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "priors",
    [(None, None), (gamma(1.0, 0.7), gamma(1.0, 0.2)), (START["W"], gamma(1.0, 0.7))],
    ids=["flat", "gamma", "fixed"],
)
def test_squared_error_never_rises_and_reports_the_log_joint(sigma, setting, priors):
    structure = as_normal(model(X, K, *priors, **SETTINGS[setting]), sigma)
    _, state, _, objective = fit(em.ENGINE, structure, em.EM(), 60)
    assert largest_loss(objective, maximise=False) <= 1e-9
    np.testing.assert_allclose(
        -objective[-1], structure.log_joint({"W": state.W, "H": state.Ht.T, **state.values}), rtol=1e-9
    )


def test_a_free_sigma_that_is_off_is_seen(monkeypatch):
    """A planted error: sigma is the root of the sum of squares over fewer cells than there are."""

    def wrong(right):
        def look(loss, W, Ht, values, both):
            view = right(loss, W, Ht, values, both)
            values["sigma"] = 1.05 * values["sigma"]
            return view

        return look

    plant(monkeypatch, "EM: looks at squared errors", wrong)
    with pytest.raises(AssertionError):
        test_squared_error_never_rises_and_reports_the_log_joint(
            unknown("sigma", "flat"), next(iter(SETTINGS)), (None, None)
        )


@pytest.mark.parametrize("mask", [None, MASK], ids=["complete", "masked"])
def test_squared_error_follows_the_formula(mask):
    structure = as_normal(model(X + 0.5, K, None, None, mask=mask), 2.0)
    problem = em.prepare(structure, em.EM(accelerate=None), Workers())
    state = em.init(problem, np.uint64(0), START)
    W, H = START["W"], START["H"]
    for _ in range(4):
        state, _ = em.step(problem, state)
        W, H = naive.squared_error_step(X + 0.5, weight_of(structure), W, H)
        np.testing.assert_allclose(state.W, W, rtol=1e-10)
        np.testing.assert_allclose(state.Ht, H.T, rtol=1e-10)


def test_squared_error_takes_negative_data():
    structure = as_normal(model(X - 2.0, K, None, None, mask=MASK), 1.0)
    _, state, _, objective = fit(em.ENGINE, structure, em.EM(), 200)
    assert largest_loss(objective, maximise=False) <= 1e-9
    assert np.all(state.W > 0)


@pytest.mark.parametrize("kind", ["poisson", "normal"])
@pytest.mark.parametrize("drop_zeros", [True, False], ids=["sparse", "listed"])
def test_dense_and_listed_data_give_the_same_iterates(kind, drop_zeros):
    dense = model(X, K, None, None, mask=None if drop_zeros else MASK)
    dense = dense if kind == "poisson" else as_normal(dense, 1.5)
    one, other = (fit(em.ENGINE, s, PLAIN, 20, start=START) for s in (dense, as_cells(dense, drop_zeros)))
    np.testing.assert_allclose(one[1].W, other[1].W, rtol=1e-9, atol=1e-50)
    np.testing.assert_allclose(one[3], other[3], rtol=1e-10)


@pytest.mark.parametrize(
    ("engine", "options", "prior"), [(em, em.EM(), None), (vb, vb.VB(), gamma(0.5, 1.0))], ids=["em", "vb"]
)
def test_a_full_mask_changes_nothing_and_threads_not_a_bit(engine, options, prior):
    plain, full = (model(X, K, prior, prior, mask=mask) for mask in (None, np.ones((F, N), dtype=bool)))
    _, _, _, alone = fit(engine.ENGINE, plain, options, 15, start=START)
    _, _, _, masked = fit(engine.ENGINE, full, options, 15, start=START)
    np.testing.assert_allclose(alone, masked, rtol=1e-12)
    workers = Workers(2)
    for structure in (plain, as_cells(plain, True)):
        one, two = (fit(engine.ENGINE, structure, options, 15, start=START, **w)[3] for w in ({}, {"workers": workers}))
        np.testing.assert_array_equal(one, two)
    workers.close()


@pytest.mark.parametrize("inner", [None, 2])
def test_rank_one_is_the_outer_product_of_the_margins(inner):
    _, state, _, _ = fit(em.ENGINE, model(X, 1, None, None), em.EM(inner=inner), 300, tol=1e-12)
    expected = np.outer(X.sum(axis=1), X.sum(axis=0)) / X.sum()
    np.testing.assert_allclose(state.W @ state.Ht.T, expected, rtol=1e-9, atol=1e-60)


def test_scaling_w_up_and_h_down_leaves_the_path_of_the_product():
    c = np.array([10.0, 0.1, 3.0])
    scaled = {"W": START["W"] * c, "H": START["H"] / c[:, None]}
    one, other = (fit(em.ENGINE, model(X, K, None, None), em.EM(), 25, start=start)[1] for start in (START, scaled))
    np.testing.assert_allclose(one.W * c, other.W, rtol=1e-9, atol=10 * FLOOR)


@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("setting", ["plain", "all"])
def test_the_residual_vanishes_only_where_the_gradient_does(mode, setting):
    structure = model(X, 2, gamma(1.5, 0.7), gamma(2.0, 0.4), **SETTINGS[setting])
    _, state, info, _ = fit(em.ENGINE, structure, em.EM(mode=mode), 20_000, tol=1e-9)
    assert info.residual < 1e-9

    def density(W, Ht):
        logs = np.sum(np.log(W)) + np.sum(np.log(Ht)) if mode == "log" else 0.0
        return structure.log_joint({"W": W, "H": Ht.T}) + logs

    assert np.max(np.abs(numerical_gradient(lambda W: density(W, state.Ht), state.W))) < 1e-4
    assert np.max(np.abs(numerical_gradient(lambda Ht: density(state.W, Ht), state.Ht))) < 1e-4
    moved = {"W": state.W * np.exp(0.01 * RNG.normal(size=state.W.shape)), "H": state.Ht.T}
    _, _, info, _ = fit(em.ENGINE, structure, em.EM(mode=mode), 1, start=moved)
    assert info.residual > 1e-4


@pytest.mark.parametrize("prior_h", [gamma(1.0, 0.7), gamma(2.0, unknown("b", "flat"))], ids=["shape 1", "free rate"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["complete", "masked"])
def test_constrained_gap_ends_at_a_maximum_on_the_simplex(prior_h, mask):
    structure = model(X, 2, None, prior_h, mask=mask)
    _, state, info, _ = fit(em.ENGINE, structure, em.EM(), 20_000, tol=1e-8)
    np.testing.assert_allclose(state.W.sum(axis=0), 1.0, rtol=1e-12)
    assert info.residual < 1e-8

    def density(W, H, **values):
        return structure.log_joint({"W": W, "H": H, **(values or state.values)})

    best = density(state.W, state.Ht.T)
    for seed in range(50):
        noise = np.random.default_rng(seed)
        W = state.W * np.exp(1e-3 * noise.normal(size=state.W.shape))
        H = state.Ht.T * np.exp(1e-3 * noise.normal(size=state.Ht.T.shape))
        values = {name: value * np.exp(1e-3 * noise.normal()) for name, value in state.values.items()}
        assert density(W / W.sum(axis=0), H, **values) < best


GAPS = {
    "of W": ((1, 3), None, gamma(1.0, 0.7)),
    "of H": (None, (0, 2), gamma(1.0, 0.7)),
    "of both": ((1, 3), (0, 2), gamma(np.array([[1.0], [2.0]]), 0.7)),
    "of W, a free rate": ((0, 1), None, gamma(2.0, unknown("b", "flat"))),
    "of H, half-normal": (None, (1, 3), half_normal(1.5)),
}


def gap_beside_known(name, **more):
    """GaP of X + 1 of whose components some are known, and which of them are free in W, and in H."""
    free_w, free_h, prior_h = GAPS[name]
    structure = model(X + 1.0, K, None, prior_h, **more)
    W = structure.W if free_w is None else beside(structure.W, START["W"], free_w)
    H = structure.H if free_h is None else beside(structure.H, 5.0 * START["H"], free_h)
    structure = dataclasses.replace(structure, W=W, H=H)
    return structure, *(np.ones(K, bool) if own.known is None else own.known.are_free for own in (W, H))


@pytest.mark.parametrize("setting", ["plain", "all"])
@pytest.mark.parametrize("name", [name for name in GAPS if name.count(",") == 0])
def test_gap_beside_known_components_follows_the_formula(name, setting):
    structure, free_w, free_h = gap_beside_known(name, **SETTINGS[setting])
    problem = em.prepare(structure, em.EM(accelerate=None), Workers())
    state = em.init(problem, np.uint64(0), START)
    W, H = state.W, state.Ht.T
    shape, rate = (np.ones((K, 1)) * own for own in (1.0, 0.7))
    shape[free_h] = structure.H.prior.shape.value
    for _ in range(4):
        state, _ = em.step(problem, state)
        given = structure.data.values, weight_of(structure), W, H, free_w & free_h, free_w, free_h
        W, H = naive.gap_step(*given, (shape - 1.0, rate), offset_of(structure))
        np.testing.assert_allclose(state.W, W, rtol=1e-9, atol=FLOOR)
        np.testing.assert_allclose(state.Ht, H.T, rtol=1e-9, atol=FLOOR)


@pytest.mark.parametrize("name", GAPS)
def test_gap_beside_known_components_ends_at_a_maximum(name):
    """New columns of W sum to one, all that is known is as it was, and no other point nearby is better."""
    structure, free_w, free_h = gap_beside_known(name, mask=MASK)
    held = free_w & free_h
    _, state, info, objective = fit(em.ENGINE, structure, em.EM(), 20_000, tol=1e-8)
    assert info.residual < 1e-8
    assert largest_loss(objective, maximise=False) <= 1e-9
    np.testing.assert_allclose(state.W[:, held].sum(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(state.W[:, ~free_w], START["W"][:, ~free_w])
    np.testing.assert_array_equal(state.Ht.T[~free_h], 5.0 * START["H"][~free_h])

    def density(W, H, **values):
        return structure.log_joint({"W": W, "H": H, **(values or state.values)})

    best = density(state.W, state.Ht.T)
    np.testing.assert_allclose(-objective[-1], best, rtol=1e-9)
    for seed in range(50):
        noise = np.random.default_rng(seed)
        W = state.W * np.exp(1e-3 * free_w * noise.normal(size=state.W.shape))
        W[:, held] /= W[:, held].sum(axis=0)
        H = state.Ht.T * np.exp(1e-3 * free_h[:, None] * noise.normal(size=state.Ht.T.shape))
        values = {name: value * np.exp(1e-3 * noise.normal()) for name, value in state.values.items()}
        assert density(W, H, **values) < best


def test_sums_of_one_beside_known_rows_are_seen(monkeypatch):
    """A column of W whose row of H is known would be held as if nothing of it were."""
    plant(
        monkeypatch,
        "EM: columns that sum to one",
        lambda right: lambda side, held, *rest: right(side, np.ones_like(held), *rest),
    )
    with pytest.raises(AssertionError):
        test_gap_beside_known_components_ends_at_a_maximum("of H")
    with pytest.raises(AssertionError):
        test_gap_beside_known_components_follows_the_formula("of H", "plain")


# -- VB ------------------------------------------------------------------------------------------------------------

GAMMAS = {
    "known": (gamma(SHAPES, 0.7), gamma(0.3, mean=RNG.random((K, 1)) + 0.5)),
    "small shapes": (gamma(1e-3, 1.0), gamma(1e-4, 1.0)),
    "fixed": (START["W"], gamma(0.5, 0.7)),
    "free, (shape, rate)": (gamma(unknown("a", "flat"), unknown("b", "flat")), gamma(0.3, unknown("r", "flat"))),
    "free, (shape, mean)": (
        gamma(unknown("a", "flat", variable_shape=(K,), shape=(1, K)), mean=unknown("m", "flat")),
        gamma(unknown("c", "flat"), mean=unknown("d", "flat", variable_shape=(K,), shape=(K, 1))),
    ),
    "free shapes only": (
        gamma(unknown("a", "flat", variable_shape=(F, 1)), 0.7),
        gamma(unknown("c", "flat", variable_shape=(1, N)), mean=np.ones((K, 1))),
    ),
    "shared by both": (gamma(unknown("a", "flat"), unknown("r", "flat")), gamma(unknown("a", "flat"), mean=2.0)),
    "shape is rate": (gamma(unknown("a", "flat"), unknown("a", "flat")), gamma(1.0, 1.0)),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("priors", GAMMAS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_never_falls(setting, priors, order):
    structure = model(X, K, *GAMMAS[priors], **SETTINGS[setting])
    _, state, _, bound = fit(vb.ENGINE, structure, vb.VB(order=order), 50)
    assert np.all(np.isfinite(bound))
    assert np.all(np.isfinite(state.W.mean))
    assert largest_loss(bound, maximise=True) <= 1e-9


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_vb_and_its_bound_follow_the_formulas(setting, order):
    structure = model(X, K, gamma(SHAPES, 0.7), gamma(0.3, 0.4), **SETTINGS[setting])
    problem = vb.prepare(structure, vb.VB(order=order, accelerate=None), Workers())
    state = vb.init(problem, np.uint64(0), START)
    x, weight, offset = structure.data.values, weight_of(structure), offset_of(structure)
    priors = (SHAPES, 0.7), (0.3, 0.4)
    q_w, q_h = (START["W"], START["W"]), (START["H"], START["H"])
    for _ in range(4):
        new_w, new_h = naive.vb_step(x, weight, q_w, q_h, *priors, offset, order)
        state, info = vb.step(problem, state)
        np.testing.assert_allclose(state.W.shape, new_w[0], rtol=1e-10)
        np.testing.assert_allclose(state.H.mean, (new_h[0] / new_h[1]).T, rtol=1e-10)
        exposure = SETTINGS[setting].get("exposure", 1.0)
        background = SETTINGS[setting].get("background", 0.0)
        expected = naive.bound(x, weight, new_w, new_h, *priors, exposure, background)
        np.testing.assert_allclose(info.objective, expected, rtol=1e-10)
        q_w, q_h = ((s / r, naive.geometric(s, r)) for s, r in (new_w, new_h))


def test_both_orders_end_at_the_same_fixed_point():
    structure = model(X, 2, gamma(1.0, 1.0), gamma(1.0, 1.0))
    _, one, _, first = fit(
        vb.ENGINE,
        structure,
        vb.VB(),
        20_000,
        tol=1e-11,
        start={k: v[:, :2] if k == "W" else v[:2] for k, v in START.items()},
    )
    start = {"W": one.W.mean * np.exp(0.05 * RNG.normal(size=(F, 2))), "H": one.H.mean.T}
    _, other, _, second = fit(vb.ENGINE, structure, vb.VB(order="paisley"), 20_000, tol=1e-11, start=start)
    np.testing.assert_allclose(first[-1], second[-1], rtol=1e-12)
    np.testing.assert_allclose(one.W.mean, other.W.mean, rtol=1e-6)


LOG_V = np.linspace(-60.0, 12.0, 1441)  # trapezoid in log v: exact to rounding for these integrands


def log_evidence(x, prior_w, prior_h):
    """log p(x) of a 1 x N matrix: H integrated out exactly, each w on a grid, the allocations enumerated."""
    (a_w, r_w), (a_h, r_h) = prior_w, prior_h
    rank = a_w.shape[1]
    v, step = np.exp(LOG_V), LOG_V[1] - LOG_V[0]
    total = []
    for allocation in itertools.product(*(_compositions(int(value), rank) for value in x[0])):
        counts = np.array(allocation)  # (N, K)
        log_p = 0.0
        for k in range(rank):
            c = counts[:, k]
            log_h = np.sum(
                gammaln(a_h + c)
                - gammaln(a_h)
                - gammaln(c + 1)
                + a_h * np.log(r_h)
                - (a_h + c) * np.log(r_h + v[:, None]),
                axis=1,
            )
            log_w = a_w[0, k] * np.log(r_w) - gammaln(a_w[0, k]) + (a_w[0, k] + c.sum()) * LOG_V - r_w * v
            log_p += logsumexp(log_h + log_w) + np.log(step)
        total.append(log_p)
    return logsumexp(total)


def _compositions(total, parts):
    return [c for c in itertools.product(range(total + 1), repeat=parts) if sum(c) == total]


TINY = [([[3]], 1, 0.8), ([[0]], 1, 0.8), ([[3, 1]], 1, 0.5), ([[2, 1]], 2, 1.5), ([[4]], 3, 0.7)]


@pytest.mark.parametrize(("x", "rank", "shape"), TINY)
def test_the_bound_stays_below_exact_evidence(x, rank, shape):
    x = np.array(x, dtype=float)
    exact = log_evidence(x, (np.full((1, rank), shape), 0.9), (1.2, 0.6))
    structure = model(x, rank, gamma(shape, 0.9), gamma(1.2, 0.6))
    for seed in range(5):
        _, _, _, bound = fit(vb.ENGINE, structure, vb.VB(), 500, seed=seed, tol=1e-10)
        assert np.all(bound <= exact + 1e-9)
        assert bound[-1] > exact - 3.0


def test_the_bound_is_the_evidence_where_q_is_exact():
    W = RNG.random((F, 1)) + 0.1
    structure = model(X, 1, W, gamma(0.7, 0.9), mask=MASK)
    _, _, _, bound = fit(vb.ENGINE, structure, vb.VB(), 2)
    x, seen = structure.data.values, MASK
    counts, rate = x.sum(axis=0), 0.9 + (seen * W).sum(axis=0)
    exact = np.sum(0.7 * np.log(0.9) - gammaln(0.7) + gammaln(0.7 + counts) - (0.7 + counts) * np.log(rate))
    exact += np.sum(x * np.log(W)) - np.sum(gammaln(x + 1))
    np.testing.assert_allclose(bound[-1], exact, rtol=1e-12)


@pytest.mark.parametrize("priors", [name for name in GAMMAS if name.startswith(("free", "shared", "shape is"))])
def test_free_hyperparameters_end_where_the_bound_is_highest(priors):
    structure = model(X, K, *GAMMAS[priors])
    problem, state, _, bound = fit(vb.ENGINE, structure, vb.VB(), 30)
    names = list(state.values)

    def negative(log_values):
        parts = np.split(np.exp(log_values), np.cumsum([state.values[n].size for n in names])[:-1])
        values = {n: part.reshape(state.values[n].shape) for n, part in zip(names, parts, strict=True)}
        return -vb.bound(problem, state._replace(values=values))

    moments = [vb.moments_of(side, q.mean, q.log) for side, q in zip(problem.sides, (state.W, state.H), strict=True)]
    for _ in range(200):  # coordinate by coordinate, until nothing moves
        values = vb.update_hyperparameters(moments, state.values)
        state = state._replace(values=values)
    at = np.log(np.concatenate([state.values[n].ravel() for n in names]))
    best = optimize.minimize(negative, at + 0.3, method="BFGS", options={"gtol": 1e-8})
    assert negative(at) <= best.fun + 1e-8 * abs(best.fun)
    assert -negative(at) >= bound[-1] - 1e-12 * abs(bound[-1])


def test_a_converged_bound_is_stationary_in_every_parameter_of_q():
    structure = model(X, 2, gamma(0.8, 0.7), gamma(1.1, 0.4), mask=MASK)
    _, state, info, _ = fit(vb.ENGINE, structure, vb.VB(), 20_000, tol=1e-11)
    assert info.residual < 1e-11
    x, weight = structure.data.values, weight_of(structure)
    priors = (np.full((1, 1), 0.8), 0.7), (np.full((1, 1), 1.1), 0.4)
    q_h = state.H.shape.T, np.broadcast_to(state.H.rate, state.H.shape.shape).T
    rate = np.array(np.broadcast_to(state.W.rate, state.W.shape.shape))
    by_shape = numerical_gradient(lambda shape: naive.bound(x, weight, (shape, rate), q_h, *priors), state.W.shape)
    by_rate = numerical_gradient(lambda r: naive.bound(x, weight, (state.W.shape, r), q_h, *priors), rate)
    assert max(np.max(np.abs(by_shape)), np.max(np.abs(by_rate))) < 1e-4


# -- tests of the tests: a planted wrong update is seen ---------------------------------------------------------------


def test_both_factors_from_old_values_is_not_monotone():
    problem = em.prepare(model(X, K, None, None), em.EM(inner=1, accelerate=None), Workers())
    state = em.init(problem, np.uint64(0), START)
    wrong = dataclasses.replace(problem, loss=_OldDrag(problem.loss, state))
    objective = []
    for _ in range(30):
        wrong.loss.state = state
        state, info = em.step(wrong, state)
        objective.append(info.objective)
    assert largest_loss(np.array(objective), maximise=False) > 1e-9


class _OldDrag:
    """A loss whose denominator on H is that of the old W."""

    def __init__(self, loss, state):
        self.loss, self.state = loss, state

    def __getattr__(self, name):
        return getattr(self.loss, name)

    def denominator_H(self, W):
        return self.loss.denominator_H(self.state.W)


@pytest.mark.parametrize("wrong", ["rate dropped", "mask inverted"])
def test_a_wrong_prior_or_mask_is_seen(wrong):
    structure = model(X, K, gamma(0.5, 0.7), gamma(0.5, 0.7), mask=MASK)
    right = vb.prepare(structure, vb.VB(), Workers())
    if wrong == "rate dropped":
        bad = dataclasses.replace(
            right, sides=vb.prepare(model(X, K, gamma(0.5, 1e-3), gamma(0.5, 1e-3)), vb.VB(), Workers()).sides
        )
    else:
        bad = dataclasses.replace(
            right, weights=vb.prepare(model(X, K, None, None, mask=~MASK), vb.VB(), Workers()).weights
        )
    state = vb.init(right, np.uint64(0), START)
    for _ in range(50):
        state, _ = vb.step(right, state)
    bounds = [vb.bound(right, state)]
    for _ in range(20):
        state, _ = vb.step(bad, state)
        bounds.append(vb.bound(right, state))
    assert largest_loss(np.array(bounds), maximise=True) > 1e-9


def test_a_bound_without_its_rate_term_exceeds_the_evidence(monkeypatch):
    structure = model([[3.0]], 1, gamma(0.8, 0.9), gamma(1.2, 0.6))
    exact = log_evidence(np.array([[3.0]]), (np.full((1, 1), 0.8), 0.9), (1.2, 0.6))
    plant(
        monkeypatch,
        "VB: divergence from the prior",
        lambda right: lambda q, shape, rate, free: right(q, shape, rate, free) - float(np.sum(q.mean * rate)),
    )
    _, _, _, bound = fit(vb.ENGINE, structure, vb.VB(), 200)
    assert bound[-1] > exact + 1e-9
