"""Itakura-Saito updates against slow formulas, numerical optima and scikit-learn; planted errors must be seen."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import optimize
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.powers import em
from nmf_zoo.inference.powers.spectra import Spectra
from nmf_zoo.kernels.powers import factor_steps, itakura_saito, sage
from nmf_zoo.kernels.simd import lanes
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.powers import itakura_saito as naive_is
from tests.planted import put
from tests.runs import fit, largest_loss, numerical_gradient
from tests.structures import gamma, inverse_gamma, model

RNG = np.random.default_rng(5)
F, N, K = 11, 14, 3
X = RNG.exponential(RNG.gamma(1.0, 1.0, (F, K)) @ RNG.gamma(1.0, 1.0, (K, N)))
MASK = RNG.random((F, N)) < 0.8
EXPOSURE, BACKGROUND = RNG.random((F, N)) + 0.5, 0.3 * RNG.random((1, N))
START = {"W": RNG.random((F, K)) + 0.1, "H": RNG.random((K, N)) + 0.1}
SHAPES = RNG.random((1, K)) + 0.5

SETTINGS = {
    "plain": {},
    "mask": {"mask": MASK},
    "background": {"background": BACKGROUND},
    "all": {"mask": MASK, "exposure": EXPOSURE, "background": BACKGROUND},
}
PRIORS = {
    "free, free": (None, None),
    "free, inverse gamma": (None, inverse_gamma(1.0, 0.7)),
    "inverse gammas": (inverse_gamma(SHAPES, 0.2), inverse_gamma(2.0, RNG.random((K, N)) + 0.5)),
    "gammas": (gamma(1.5, 0.3), gamma(1.0, 0.5)),
    "known, inverse gamma": (START["W"], inverse_gamma(1.0, 0.7)),
    "inverse gamma, known": (inverse_gamma(1.0, 0.7), START["H"]),
}
RULES = ("monotone", "heuristic", "sage")


def powers(priors="free, free", setting="plain", x=X, rank=K):
    return model(x, rank, *PRIORS[priors], kind="exponential", **SETTINGS[setting])


def as_arrays(structure):
    """(power, seen, background) (F, N) of a structure, exposure divided out."""
    exposure = 1.0 if structure.likelihood.exposure is None else structure.likelihood.exposure
    background = 0.0 if structure.likelihood.background is None else structure.likelihood.background
    shape, mask = structure.shape, structure.data.mask
    seen = np.ones(shape, bool) if mask is None else mask
    return structure.data.values / exposure, seen, np.broadcast_to(background / exposure, shape)


def naive_terms(priors):
    """power, scale and rate of W's and H's prior densities, as they are defined."""
    found = []
    for prior in PRIORS[priors]:
        terms = (0.0, 0.0, 0.0)
        if hasattr(prior, "scale"):
            terms = prior.shape.value + 1.0, prior.scale.value, 0.0
        elif hasattr(prior, "rate"):
            terms = 1.0 - prior.shape.value, 0.0, prior.rate.value
        found.append([np.atleast_2d(part) for part in terms])
    return found


# -- kernels ---------------------------------------------------------------------------------------------------------


def spectra_of(F, N, is_masked, has_background, seed=0):
    rng = np.random.default_rng(seed)
    seen = rng.random((N, F)) < 0.7 if is_masked else np.ones((N, F), bool)
    power = np.where(seen, rng.exponential(1.0, (N, F)) * 10.0 ** rng.integers(-9, 3, (N, 1)), 0.0)
    background = rng.random((N, F)) if has_background else np.zeros((N, F))
    nothing = np.empty((0, 0))
    return (
        Spectra(power, seen if is_masked else nothing.astype(bool), background if has_background else nothing),
        seen,
        background,
    )


@pytest.mark.parametrize(("F", "N", "K"), [(1, 1, 1), (5, 3, 2), (48, 9, 4), (64, 8, 1), (130, 5, 9)])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("has_background", [False, True])
def test_passes_over_frames_give_what_the_formulas_give(F, N, K, is_masked, has_background):
    spectra, seen, background = spectra_of(F, N, is_masked, has_background)
    rng = np.random.default_rng(1)
    Wt, Ht = rng.gamma(1.0, 1.0, (K, F)), rng.gamma(1.0, 1.0, (N, K))
    workspace, tiles = itakura_saito.make_workspace(K, F), itakura_saito.tile_spectra(Wt)
    arrays = spectra.power.T, seen.T
    for _ in range(2):  # a workspace can be used again
        sums = itakura_saito.sums_of_W(K, F)
        found = itakura_saito.gather(spectra, tiles, Ht, sums, workspace, 0, N)
        np.testing.assert_allclose(found, naive_is.divergence(*arrays, Wt.T, Ht.T, background.T), rtol=1e-11)
        for table, expected in zip(
            sums, naive_is.numerator_and_denominator(*arrays, Wt.T, Ht.T, background.T), strict=True
        ):
            np.testing.assert_allclose(itakura_saito.untile(table, K, F), expected.T, rtol=1e-11)
    terms = itakura_saito.PriorTerms(np.full((1, K), 2.0), rng.random((1, K)), np.zeros((1, K)))
    new, out, before = np.empty((N, K)), np.empty((N, K)), rng.gamma(1.0, 1.0, (N, K))
    moves = itakura_saito.Moves(Ht, new, out, before, terms, 0.5, False)
    sums = itakura_saito.sums_of_W(K, F)
    found, squares = itakura_saito.advance(spectra, tiles, moves, sums, workspace, 0, N)
    expected = naive_is.updated(spectra.power, seen, Ht, Wt, background, terms, "monotone")
    np.testing.assert_allclose(new, expected, rtol=1e-9)
    np.testing.assert_allclose(out, new * np.clip(new / before, 0.01, 100.0) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(found, naive_is.divergence(*arrays, Wt.T, out.T, background.T), rtol=1e-11)
    for table, expected in zip(
        sums, naive_is.numerator_and_denominator(*arrays, Wt.T, out.T, background.T), strict=True
    ):
        np.testing.assert_allclose(itakura_saito.untile(table, K, F), expected.T, rtol=1e-11)
    numerator, denominator = naive_is.numerator_and_denominator(spectra.power, seen, Ht, Wt, background)
    slopes = (denominator - numerator) * Ht - terms.scale / Ht + terms.power
    np.testing.assert_allclose(squares, np.sum(slopes**2), rtol=1e-9)


def test_many_frames_and_many_decades_do_not_overflow_the_product_of_the_means():
    rng = np.random.default_rng(2)
    scale = 10.0 ** rng.integers(-60, 60, (9001, 1))
    spectra = Spectra(rng.exponential(scale, (9001, 7)), np.empty((0, 0), bool), np.empty((0, 0)))
    Wt, sums = rng.random((1, 7)) + 0.5, itakura_saito.sums_of_W(0, 7)
    found = itakura_saito.gather(
        spectra, itakura_saito.tile_spectra(Wt), scale, sums, itakura_saito.make_workspace(1, 7), 0, 9001
    )
    expected = naive_is.divergence(spectra.power, np.ones((9001, 7), bool), scale, Wt, 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_rows_of_products_are_what_they_look_like():
    one, other, sums = np.random.default_rng(3).random((3, 16))
    np.testing.assert_array_equal(lanes.add_product(sums, one, other), sums + one * other)
    assert lanes.total(sums) == sums.sum()


@pytest.mark.parametrize(
    ("a", "b", "c", "w"), [(2.0, 0.0, 8.0, 2.0), (0.0, 2.0, 8.0, 4.0), (2.0, -4.0, 0.0, 2.0), (1.0, 3.0, 0.0, 0.0)]
)
def test_positive_roots(a, b, c, w):
    assert factor_steps.positive_root.py_func(a, b, c, 7.0) == pytest.approx(w)


@pytest.mark.parametrize("b", [0.0, -1.0])
def test_where_nothing_is_known_a_cell_stays(b):
    assert factor_steps.positive_root.py_func(0.0, b, 0.0, 7.0) == 7.0


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("priors", ["free, free", "free, inverse gamma", "inverse gammas", "gammas"])
@pytest.mark.parametrize("rule", RULES)
def test_steps_follow_the_formulas(rule, priors, setting):
    structure, terms = powers(priors, setting), naive_terms(priors)
    problem = em.prepare(structure, EM(update=rule, accelerate=None), SERIAL)
    state = em.init(problem, np.uint64(0), START)
    W, H, arrays = START["W"], START["H"], as_arrays(structure)
    for _ in range(4):
        state, _ = em.step(problem, state)
        x, seen, background = arrays
        if rule == "sage":
            W, H = naive_is.sage_step(x, seen, W, H, background, terms)
        else:
            W, H = naive_is.step(x, seen, W, H, background, terms, rule)
        np.testing.assert_allclose(state.Wt, W.T, rtol=1e-9)
        np.testing.assert_allclose(state.Ht, H.T, rtol=1e-9)


@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("accelerate", [None, "newton"])  # which is momentum here
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("rule", RULES)
def test_the_objective_is_the_log_joint_and_never_rises(rule, priors, setting, accelerate, mode):
    structure = powers(priors, setting)
    options = EM(update=rule, accelerate=accelerate, mode=mode)
    problem, state, _, objective = fit(em.ENGINE, structure, options, 60, seed=4)
    assert largest_loss(objective, maximise=False) <= 1e-12
    expected = structure.log_joint({"W": state.Wt.T, "H": state.Ht.T})
    if mode == "log":
        factors = zip(problem.sides, (state.Wt, state.Ht), strict=True)
        expected += sum(np.sum(np.log(a)) for side, a in factors if side.is_gamma or side.is_inverse_gamma)
    np.testing.assert_allclose(-objective[-1], expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", RULES)
def test_long_runs_from_bad_starts_never_rise(rule, seed):
    rng = np.random.default_rng(seed)
    x = rng.exponential(10.0 ** rng.uniform(-12, 2, (F, N)))
    structure = model(x, 5, None, (None, inverse_gamma(0.5, 1e-3))[seed % 2], kind="exponential", mask=MASK)
    start = {"W": 10.0 ** rng.uniform(-6, 6, (F, 5)), "H": 10.0 ** rng.uniform(-6, 6, (5, N))}
    for accelerate in (None, "momentum"):
        options = EM(update=rule, accelerate=accelerate)
        *_, objective = fit(em.ENGINE, structure, options, 200, start=start)
        assert largest_loss(objective, maximise=False) <= 1e-12


@pytest.mark.parametrize("rule", ["monotone", "heuristic"])
def test_no_single_step_of_w_loses(rule):
    """Many tiny problems over many decades; an exponent of 1.5 does lose."""
    rng, losses = np.random.default_rng(0), {1.0: 0.0, 1.5: 0.0}
    for _ in range(400):
        x, h = 10.0 ** rng.uniform(-6, 2, (1, 3)), 10.0 ** rng.uniform(-4, 3, (2, 3))
        w, background = 10.0 ** rng.uniform(-4, 3, (1, 2)), 10.0 ** rng.uniform(-6, 2, (1, 3))
        seen = np.ones(x.shape, bool)
        power, scale, rate = 10.0 ** rng.uniform(-2, 2, (3, 1, 1)) * rng.integers(0, 2, (3, 1, 1))
        power *= rng.choice([-1.0, 1.0])

        def objective(w, x=x, h=h, seen=seen, background=background, terms=(power, scale, rate)):
            cost = terms[0] * np.log(w) + terms[1] / w + terms[2] * w
            return naive_is.divergence(x, seen, w, h, background) + cost.sum()

        new = naive_is.updated(x, seen, w, h, background, (power, scale, rate), rule)
        for exponent in losses:
            lost = objective(w * (new / w) ** exponent) - objective(w)
            losses[exponent] = max(losses[exponent], lost / max(abs(objective(w)), 1.0))
    assert losses[1.0] <= 1e-12
    assert rule == "monotone" or losses[1.5] > 1e-3


def test_auto_is_monotone_at_first_and_heuristic_from_then_on():
    def states(rule, steps, state=None):
        problem = em.prepare(powers(), EM(update=rule, accelerate=None), SERIAL)
        state = em.init(problem, np.uint64(0), START) if state is None else state
        for _ in range(steps):
            state, _ = em.step(problem, state)
        return state

    early = states("monotone", em.CAUTIOUS)
    np.testing.assert_array_equal(states("auto", em.CAUTIOUS).Wt, early.Wt)
    np.testing.assert_array_equal(states("auto", em.CAUTIOUS + 3).Wt, states("heuristic", 3, early).Wt)
    assert np.any(states("auto", em.CAUTIOUS + 1).Wt != states("monotone", 1, early).Wt)


def test_a_planted_error_is_seen(monkeypatch):
    """Steps of W with an exponent of 2: a loss a million times what the tests allow."""

    def squared(new, old, slopes, first, size, heuristic):
        new[first : first + size] = old[first : first + size] * slopes.ratios[:size] ** 2

    put(monkeypatch, "EM of powers: steps", squared)
    *_, objective = fit(em.ENGINE, powers(), EM(update="monotone", accelerate=None), 30, start=START)
    assert largest_loss(objective, maximise=False) > 1e-6


# -- where they lead -------------------------------------------------------------------------------------------------


def converged(structure, options, start=None, iterations=20000):
    return fit(em.ENGINE, structure, options, iterations, start=start or START, tol=1e-9)


@pytest.mark.parametrize("setting", ["plain", "all"])
@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("rule", RULES)
def test_they_stop_at_the_same_stationary_point(rule, mode, setting):
    """A known factor leaves one mode, or nearly so: from one start all rules reach it. The gradient is 0 there."""
    structure = powers("known, inverse gamma", setting)
    _, state, info, objective = converged(structure, EM(update=rule, mode=mode))
    assert info.residual < 1e-9
    reference = converged(structure, EM(update="monotone", mode=mode, accelerate=None))[3][-1]
    np.testing.assert_allclose(objective[-1], reference, rtol=1e-10)

    def density(H):
        return structure.log_joint({"H": H}) + (np.log(H).sum() if mode == "log" else 0.0)

    assert np.abs(numerical_gradient(density, state.Ht.T.copy())).max() < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_both_factors_are_stationary(rule):
    structure = powers("inverse gammas", "all")
    _, state, info, _ = converged(structure, EM(update=rule))
    assert info.residual < 1e-9
    W, H = state.Wt.T.copy(), state.Ht.T.copy()
    at_W = numerical_gradient(lambda cells: structure.log_joint({"W": cells, "H": H}), W)
    at_H = numerical_gradient(lambda cells: structure.log_joint({"W": W, "H": cells}), H)
    assert max(np.abs(at_W).max(), np.abs(at_H).max()) < 1e-5


@pytest.mark.parametrize(
    ("priors", "name", "meets"), [("inverse gamma, known", "W", N), ("known, inverse gamma", "H", F)]
)
def test_the_residual_is_the_slope_in_the_logarithms(priors, name, meets):
    """Its root mean square over the cells of a factor before it moves, per cell of X; the other factor is known."""
    structure = powers(priors, "all")
    problem = em.prepare(structure, EM(accelerate=None), SERIAL)
    _, info = em.step(problem, em.init(problem, np.uint64(0), {name: START[name]}))
    slopes = numerical_gradient(lambda cells: structure.log_joint({name: cells}), START[name].copy())
    np.testing.assert_allclose(info.residual, np.sqrt(np.mean(slopes**2)) / meets, rtol=1e-6)


def test_the_gradient_check_can_fail():
    structure = powers("inverse gammas")
    _, state, _, _ = converged(structure, EM(), iterations=20)
    gradient = numerical_gradient(lambda cells: structure.log_joint({"W": cells, "H": state.Ht.T}), state.Wt.T.copy())
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_the_mode_is_what_a_general_optimiser_finds(rule):
    x = np.random.default_rng(1).exponential(2.0, (3, 4))
    structure = model(x, 2, inverse_gamma(2.0, 1.0), inverse_gamma(1.5, 0.5), kind="exponential")

    def loss(logs):
        cells = np.exp(logs)
        return -structure.log_joint({"W": cells[:6].reshape(3, 2), "H": cells[6:].reshape(2, 4)})

    best = min(
        optimize.minimize(loss, np.random.default_rng(seed).normal(size=14), options={"gtol": 1e-8}).fun
        for seed in range(6)
    )
    ours = min(fit(em.ENGINE, structure, EM(update=rule), 3000, seed=seed, tol=1e-9)[3][-1] for seed in range(6))
    np.testing.assert_allclose(ours, best, rtol=1e-8)


def test_a_free_factor_and_an_inverse_gamma_one_have_a_mode():
    """H's prior says how large H is: the objective is bounded, and scaling W up and H down raises it."""
    structure = powers("free, inverse gamma")
    _, state, _, objective = converged(structure, EM(), iterations=3000)
    for factor in (0.5, 0.9, 1.1, 2.0, 1e3):
        values = {"W": state.Wt.T * factor, "H": state.Ht.T / factor}
        assert -structure.log_joint(values) > objective[-1] - 1e-6


@pytest.mark.parametrize("accelerate", [None, "newton"])
def test_scikit_learn_goes_no_further_from_the_same_start(accelerate):
    x, iterations = 100.0 * (X + 1e-3), 150
    peer = NMF(K, init="custom", solver="mu", beta_loss="itakura-saito", tol=0, max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        W = peer.fit_transform(x, W=START["W"].copy(), H=START["H"].copy())
    everything = np.ones(x.shape, bool)
    theirs = naive_is.divergence(x, everything, W, peer.components_, 0.0)
    structure = model(x, K, None, None, kind="exponential")
    options = EM(update="monotone", accelerate=accelerate)
    *_, objective = fit(em.ENGINE, structure, options, iterations, start=START)
    if accelerate is None:  # the same update
        np.testing.assert_allclose(objective[-1], theirs, rtol=1e-7)
    else:
        assert objective[-1] < theirs


def test_sage_survives_means_that_lose_all_their_digits():
    """One component holds nearly all of the mean and drops by many orders of magnitude."""
    x = np.full((4, 6), 1e-18)
    start = {"W": np.array([[1.0, 1e-9]] * 4), "H": np.array([[1.0] * 6, [1e-9] * 6])}
    *_, objective = fit(em.ENGINE, model(x, 2, None, None, kind="exponential"), EM(update="sage"), 50, start=start)
    assert np.all(np.isfinite(objective))
    assert largest_loss(objective, maximise=False) <= 1e-12


def test_sages_means_are_kept_up_to_date():
    rng = np.random.default_rng(0)
    Wt, Ht = rng.random((2, 5)), rng.random((6, 2))
    means, background = np.empty((6, 5)), rng.random((6, 5))
    spectra = Spectra(rng.random((6, 5)), np.empty((0, 0), bool), background)
    sage.fill_means(means, background, Wt, Ht, 0, 6)
    np.testing.assert_allclose(means, Ht @ Wt + background)
    new_w, new_h = rng.random(5), rng.random(6)
    change = sage.Change(Ht[:, 0].copy(), Wt[0], new_h, new_w)
    still = sage.Component(Wt[1], Ht[:, 1].copy(), np.empty(6), *np.zeros((3, 6)), True)
    sage.move_component(spectra, means, still, change, np.zeros((3, 5)), 0, 6)
    np.testing.assert_allclose(means, np.outer(new_h, new_w) + np.outer(Ht[:, 1], Wt[1]) + background)
