"""Variational Bayes for powers: verdicts, updates and bound against definitions, edge cases, results."""

import dataclasses
import warnings

import numpy as np
import pytest
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.powers import vb
from nmf_zoo.inference.powers.spectra import read_spectra
from nmf_zoo.inference.shared.joint import log_joints
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Cells, GammaPrior, Imputed, InverseGammaPrior
from tests.naive.powers import composite_bound as naive
from tests.pairs import pairs
from tests.planted import plant, put
from tests.runs import fit, largest_loss
from tests.structures import gamma, inverse_gamma, model, unknown

RNG = np.random.default_rng(11)
F, N, K = 8, 7, 2
X = RNG.exponential(RNG.gamma(1.0, 1.0, (F, K)) @ RNG.gamma(1.0, 1.0, (K, N)))
X[0, 0] = 0.0
MASK = RNG.random((F, N)) < 0.8
MASK[:, :2] = True
EXPOSURE, BACKGROUND = RNG.random((F, N)) + 0.5, 0.3 * RNG.random((1, N)) + 0.01
START = {"W": RNG.random((F, K)) + 0.1, "H": RNG.random((K, N)) + 0.1}
PLAIN = inverse_gamma(1.5, 0.8)
SETTINGS = {
    "plain": {},
    "mask": {"mask": MASK},
    "exposure": {"exposure": EXPOSURE},
    "background": {"background": BACKGROUND},
    "all": {"mask": MASK, "exposure": EXPOSURE, "background": BACKGROUND},
}


def known(rows, cols):
    return np.random.default_rng(rows).random((rows, cols)) + 0.1


def priors(name, rank=K):
    return {
        "flat, inverse gamma": (None, inverse_gamma(1.0, 0.7)),
        "both inverse gamma": (inverse_gamma(2.0, 1.0), inverse_gamma(0.6, 0.7)),
        "by component": (inverse_gamma(np.linspace(1.0, 3.0, rank)[None], 0.4), inverse_gamma(1.5, known(rank, 1))),
        "every cell its own": (inverse_gamma(known(F, rank) + 0.3, known(F, rank)), PLAIN),
        "gamma, inverse gamma": (gamma(1.4, 0.7), PLAIN),
        "both gamma": (gamma(1.4, 0.7), gamma(0.8, 0.5)),
        "fixed, inverse gamma": (known(F, rank), PLAIN),
        "gamma, fixed": (gamma(2.0, 0.7), known(rank, N)),
    }[name]


PRIORS = [
    "flat, inverse gamma",
    "both inverse gamma",
    "by component",
    "every cell its own",
    "gamma, inverse gamma",
    "both gamma",
    "fixed, inverse gamma",
    "gamma, fixed",
]


def powers(*prior_pair, x=X, rank=K, **setting):
    return model(x, rank, *prior_pair, kind="exponential", **setting)


# -- verdicts ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "order": (powers(PLAIN, PLAIN), VB(order="paisley"), "order='paisley' is for counts"),
    "precision": (powers(PLAIN, PLAIN), VB(precision="float32"), "precision='float32' is for counts"),
    "no data": (dataclasses.replace(powers(PLAIN, PLAIN), data=None), VB(), "nothing is observed in X"),
    "hyperprior": (powers(PLAIN, inverse_gamma(1.0, unknown("b", "gamma", 1.0, 1.0))), VB(), "b has a prior"),
    "free shape": (powers(PLAIN, inverse_gamma(unknown("a", "flat"), 1.0)), VB(), "hyperparameter a is free"),
    "free rate": (powers(PLAIN, gamma(1.0, unknown("r", "flat"))), VB(), "hyperparameter r is free"),
    "shape and scale in one": (
        powers(inverse_gamma(unknown("a", "flat"), 1.0), inverse_gamma(1.0, unknown("a", "flat"))),
        VB(),
        "hyperparameter a is free",
    ),
    "nothing pins the scale": (powers(None, inverse_gamma(1.0, unknown("b", "flat"))), VB(), "nothing pins the scale"),
    "both flat": (powers(None, None), VB(), "their posterior is improper"),
    "too few frames": (powers(None, PLAIN, rank=N), VB(), "more than 7 observed cells, the rank"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case):
    structure, options, message = REFUSED[case]
    verdict = vb.supports(structure, options)
    assert not verdict
    assert message in verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize("name", sorted(set(PRIORS) - {"both gamma"}))
def test_what_it_takes(name):
    assert vb.supports(powers(*priors(name)), VB()), name
    assert vb.supports(powers(PLAIN, inverse_gamma(1.0, unknown("b", "flat"))), VB())


# -- updates and bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "setting", "accelerate"), pairs(PRIORS, SETTINGS, ["momentum", None]))
def test_the_bound_never_falls(name, setting, accelerate):
    for rank in (1, 3, 6):
        structure = powers(*priors(name, rank), rank=rank, **SETTINGS[setting])
        _, _, info, bound = fit(vb.ENGINE, structure, VB(accelerate=accelerate), 300 if rank == 3 else 40, seed=rank)
        assert np.all(np.isfinite(bound))
        assert largest_loss(bound, maximise=True) <= 1e-12
        assert info.residual < (1e-3 if rank == 3 else 1.0)


def definition_parts(structure):
    """x, seen, background (all (F, N), exposure divided out), constant, and (p, rate, scale) of W and of H."""
    spectra, constant = read_spectra(structure)
    seen = spectra.seen.T if spectra.seen.size else np.ones((F, N), bool)
    background = spectra.background.T if spectra.background.size else np.zeros((F, N))
    return spectra.power.T, seen, background, constant, [_terms(f) for f in (structure.W, structure.H)]


def _terms(factor):
    """(p, rate, scale) of a prior in the factor's own orientation."""
    if isinstance(factor.prior, GammaPrior):
        shape, rate = factor.prior.shape_and_rate({})
        return np.broadcast_to(shape, factor.shape), rate, np.zeros((1, 1))
    if isinstance(factor.prior, InverseGammaPrior):
        shape, scale = factor.prior.shape_and_scale({})
        return -np.broadcast_to(shape, factor.shape), np.zeros((1, 1)), scale
    return np.ones(factor.shape), np.zeros((1, 1)), np.zeros((1, 1))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", PRIORS[:6])
def test_iterations_follow_the_formulas(name, setting):
    structure = powers(*priors(name), **SETTINGS[setting])
    problem = vb.prepare(structure, VB(accelerate=None), SERIAL)
    state = vb.init(problem, np.uint64(0), START)
    x, seen, background, _, terms = definition_parts(structure)
    W, H = ([START[factor]] * 2 for factor in "WH")
    for _ in range(3):
        state, _ = vb.step(problem, state)
        laws, (W, H) = naive.step(x, seen, W, H, background, terms)
        for found, expected in zip((state.W.rho, state.W.tau), laws[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10)
        for found, expected in zip((state.H.rho.T, state.H.tau.T), laws[1], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10)
        np.testing.assert_allclose((state.W.mean, state.W.harmonic), W, rtol=1e-10)
        np.testing.assert_allclose((state.H.mean.T, state.H.harmonic.T), H, rtol=1e-10)


def bound_by_definition(structure, state):
    """Every expectation by quadrature, auxiliary variables written out."""
    x, seen, background, constant, terms = definition_parts(structure)
    W, H = (state.W.mean, state.W.harmonic), (state.H.mean.T, state.H.harmonic.T)
    total = constant + naive.cells_bound(x, seen, W, H, background, *naive.auxiliary(W, H, background))
    for factor, q, (p, *_), turned in zip(
        (structure.W, structure.H), (state.W, state.H), terms, (False, True), strict=True
    ):
        laws = (q.rho.T, q.tau.T) if turned else (q.rho, q.tau)
        total += naive.factor_bound(p, *laws, _log_prior(factor))
    return total


def _log_prior(factor):
    if isinstance(factor.prior, GammaPrior):
        return naive.log_gamma(*(float(part) for part in factor.prior.shape_and_rate({})))
    if isinstance(factor.prior, InverseGammaPrior):
        return naive.log_inverse_gamma(*(float(part) for part in factor.prior.shape_and_scale({})))
    return lambda v: 0.0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["flat, inverse gamma", "both inverse gamma", "gamma, inverse gamma", "both gamma"])
def test_the_bound_is_its_definition(name, setting):
    """Also at pushed laws, which are no update's."""
    structure = powers(*priors(name), **SETTINGS[setting])
    for accelerate in ("momentum", None):
        _, state, _, bound = fit(vb.ENGINE, structure, VB(accelerate=accelerate), 6)
        np.testing.assert_allclose(bound[-1], bound_by_definition(structure, state), rtol=1e-10)


def test_auxiliary_variables_are_the_best():
    """What the pass over the cells takes for granted."""
    x, seen = X, MASK
    W, H = ([v, v * RNG.random(v.shape)] for v in (START["W"], START["H"]))
    background = np.broadcast_to(BACKGROUND, X.shape)
    omega, phi = naive.auxiliary(W, H, background)
    best = naive.cells_bound(x, seen, W, H, background, omega, phi)
    for _ in range(20):
        other = phi * np.exp(0.1 * RNG.normal(size=phi.shape))
        moved = omega * np.exp(0.1 * RNG.normal(size=omega.shape))
        assert naive.cells_bound(x, seen, W, H, background, moved, phi) < best
        assert naive.cells_bound(x, seen, W, H, background, omega, other / other.sum(axis=0)) < best


@pytest.mark.parametrize("name", ["flat, inverse gamma", "both inverse gamma", "gamma, inverse gamma"])
def test_it_ends_at_a_peak(name):
    structure = powers(*priors(name), **SETTINGS["all"])
    problem, state, info, _ = fit(vb.ENGINE, structure, VB(), 5000, tol=1e-13)
    assert info.residual < 1e-13
    for size in (1e-3, 0.1):
        for _ in range(10):
            laws = [
                vb.GIGParameters(*(part * np.exp(size * RNG.normal(size=part.shape)) for part in q[2:4]))
                for q in state[:2]
            ]
            assert vb._at(problem, laws, state).bound < state.bound


def test_an_unseen_model_has_its_prior_and_evidence_one():
    structure = powers(inverse_gamma(1.5, 0.8), inverse_gamma(0.7, 2.0), mask=np.zeros((F, N), bool))
    _, state, _, bound = fit(vb.ENGINE, structure, VB(), 3)
    np.testing.assert_allclose(bound[-1], 0.0, atol=1e-10)
    np.testing.assert_allclose(state.W.tau, 1.6)
    np.testing.assert_allclose(state.W.mean, 0.8 / 0.5, rtol=1e-10)
    np.testing.assert_allclose(state.W.rho, 0.0, atol=1e-300)


def test_a_concentrated_prior_makes_the_bound_exact():
    """W known, H all but known: the first order of the gap vanishes like 1 / shape."""
    W, shape = known(F, 1), 1e9
    x = RNG.exponential(2.0 * W @ np.ones((1, N)))
    _, _, _, bound = fit(vb.ENGINE, powers(W, inverse_gamma(shape, 2.0 * shape), x=x, rank=1), VB(), 50)
    exact = np.sum(-np.log(2.0 * W) - x / (2.0 * W))
    np.testing.assert_allclose(bound[-1], exact, rtol=1e-6)


def test_one_known_column_leaves_the_gap_of_the_linear_logarithm():
    """K = 1 and W known: the posterior of h is inverse gamma, and its evidence in closed form."""
    W, shape, scale = known(F, 1), 2.0, 1.5
    x = RNG.exponential(W @ RNG.gamma(1.0, 1.0, (1, N)))
    _, _, _, bound = fit(vb.ENGINE, powers(W, inverse_gamma(shape, scale), x=x, rank=1), VB(), 200)
    later_shape, later_scale = shape + F, scale + (x / W).sum(axis=0)
    exact = N * (shape * np.log(scale) - gammaln(shape) + gammaln(later_shape) - np.sum(np.log(W)))
    exact -= later_shape * np.sum(np.log(later_scale))
    assert 0.0 < exact - bound[-1] < 0.35 * N  # (log 2) / 2 a frame, that of half the variance


def test_a_free_scale_is_at_the_peak_and_the_bound_never_falls():
    for name, shape in (("one", ()), ("of frames", (1, N)), ("of components", (K, 1))):
        free = unknown("b", "flat", variable_shape=shape)
        structure = powers(inverse_gamma(1.5, 0.8), inverse_gamma(1.2, free), **SETTINGS["all"])
        problem, state, _, bound = fit(vb.ENGINE, structure, VB(), 300)
        assert largest_loss(bound, maximise=True) <= 1e-12, name
        own = vb.own_part(problem.sides[1], state.H, state.values)
        for factor in (0.99, 1.01):
            assert vb.own_part(problem.sides[1], state.H, {"b": state.values["b"] * factor}) < own


def test_a_scale_shared_by_both_factors():
    b = unknown("b", "flat")
    structure = powers(inverse_gamma(1.5, b), inverse_gamma(1.2, b))
    _, state, _, bound = fit(vb.ENGINE, structure, VB(), 100)
    assert largest_loss(bound, maximise=True) <= 1e-12
    inverse = np.sum(1.0 / state.W.harmonic) + np.sum(1.0 / state.H.harmonic)
    np.testing.assert_allclose(state.values["b"], (1.5 * F * K + 1.2 * N * K) / inverse)


def test_a_scale_for_every_cell_is_warned_of():
    structure = powers(PLAIN, inverse_gamma(1.5, unknown("b", "flat", variable_shape=(K, N))))
    with pytest.warns(NmfZooWarning, match="b: one free value per cell"):
        vb.prepare(structure, VB(), SERIAL)


# -- planted errors ---------------------------------------------------------------------------------------------------


def _prior_forgotten(side, q, sums, values):
    return vb.GIGParameters(2.0 * sums.arithmetic, 2.0 * q.harmonic * sums.harmonic * q.harmonic + 1e-12)


def _harmonic_once(side, q, sums, values):
    rate, scale = vb.prior_terms(side, values)
    return vb.GIGParameters(2.0 * (rate + sums.arithmetic), 2.0 * (scale + q.harmonic * sums.harmonic))


def _without_the_half(side, q, sums, values):
    rate, scale = vb.prior_terms(side, values)
    return vb.GIGParameters(rate + sums.arithmetic, scale + q.harmonic * sums.harmonic * q.harmonic)


@pytest.mark.parametrize("wrong", [_prior_forgotten, _harmonic_once, _without_the_half])
def test_wrong_updates_are_seen(wrong, monkeypatch):
    put(monkeypatch, "VB of powers: updates", wrong)
    with pytest.raises(AssertionError):
        test_iterations_follow_the_formulas("both inverse gamma", "plain")
    with pytest.raises(AssertionError):
        test_it_ends_at_a_peak("both inverse gamma")


def test_a_stale_look_at_the_cells_is_seen(monkeypatch):
    """H's update from W before it moved: no step of coordinate ascent."""
    structure = powers(*priors("both inverse gamma"))
    problem = vb.prepare(structure, VB(accelerate=None), SERIAL)
    first = vb.init(problem, np.uint64(0), START)
    plant(monkeypatch, "VB of powers: sums over frames", lambda right: lambda problem, W, H: right(problem, first.W, H))
    with pytest.raises(AssertionError):
        test_iterations_follow_the_formulas("both inverse gamma", "plain")


# -- edge cases -------------------------------------------------------------------------------------------------------


def test_silent_rows_and_columns():
    x = X.copy()
    x[3], x[:, 2] = 0.0, 0.0
    for prior_w in (inverse_gamma(1.0, 0.5), gamma(20.0, 1.0)):
        _, state, info, bound = fit(vb.ENGINE, powers(prior_w, inverse_gamma(1.0, 0.5), x=x), VB(), 300)
        assert np.all(np.isfinite(bound))
        assert largest_loss(bound, maximise=True) <= 1e-12
        assert np.all(state.W.mean > 0)
        assert np.all(state.H.mean > 0)
        assert np.all(state.W.mean[3] < np.median(state.W.mean, axis=0))
        assert np.isfinite(info.residual)


def test_a_frame_that_was_not_seen_has_its_prior():
    mask = np.ones((F, N), bool)
    mask[:, 3] = False
    start = {"W": START["W"], "H": START["H"]}
    seen, rest = X, np.delete(X, 3, axis=1)
    ends = []
    for x, setting, at in ((seen, {"mask": mask}, start), (rest, {}, {**start, "H": np.delete(START["H"], 3, axis=1)})):
        ends.append(fit(vb.ENGINE, powers(PLAIN, inverse_gamma(0.8, 0.4), x=x, **setting), VB(), 500, start=at))
    (_, state, _, bound), (_, _, _, bound_rest) = ends
    np.testing.assert_allclose(state.H.harmonic[3], 0.4 / 0.8, rtol=1e-12)
    assert np.all(np.isfinite(state.H.mean))
    np.testing.assert_allclose(bound[-1], bound_rest[-1], rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_units_of_the_data_shift_the_bound_alone(scale):
    one, other = (
        fit(
            vb.ENGINE,
            powers(PLAIN, inverse_gamma(1.2, s), x=s * X),
            VB(),
            100,
            start={"W": START["W"], "H": s * START["H"]},
        )
        for s in (1.0, scale)
    )
    np.testing.assert_allclose(other[3], one[3] - X.size * np.log(scale), rtol=1e-9)
    np.testing.assert_allclose(other[1].H.mean, scale * one[1].H.mean, rtol=1e-6)


def test_listed_cells_are_the_masked_matrix():
    dense = powers(PLAIN, PLAIN, mask=MASK)
    rows, cols = np.nonzero(MASK)
    cells = Cells(rows=rows, cols=cols, values=X[rows, cols], shape=(F, N), is_complete=False)
    one, other = (fit(vb.ENGINE, s, VB(), 20, start=START)[3] for s in (dense, dataclasses.replace(dense, data=cells)))
    np.testing.assert_array_equal(one, other)


def test_threads_change_nothing():
    rng = np.random.default_rng(2)
    x = rng.exponential(rng.gamma(1.0, 1.0, (64, 3)) @ rng.gamma(1.0, 1.0, (3, 2100)))
    structure = powers(None, inverse_gamma(1.0, 1.0), x=x, rank=4)
    ends = []
    for threads in (1, 3):
        workers = Workers(threads)
        problem, state, _, bound = fit(vb.ENGINE, structure, VB(), 6, workers=workers)
        assert len(problem.chunks) > 3
        ends.append((bound, state.W.rho, state.H.tau, state.H.mean))
        workers.close()
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def test_permuted_components_stay_permuted():
    turned = {"W": START["W"][:, ::-1], "H": START["H"][::-1]}
    one, other = (fit(vb.ENGINE, powers(PLAIN, PLAIN), VB(), 30, start=s)[1] for s in (START, turned))
    np.testing.assert_allclose(one.W.mean, other.W.mean[:, ::-1], rtol=1e-10)


# -- results ----------------------------------------------------------------------------------------------------------


def test_draws_are_those_of_q_and_its_parameters_are_reported():
    structure = dataclasses.replace(
        powers(None, inverse_gamma(3.0, 0.7), **SETTINGS["all"]),
        imputed=Imputed(name="X_unobserved", rows=np.nonzero(~MASK)[0], cols=np.nonzero(~MASK)[1]),
    )
    problem, state, *_ = fit(vb.ENGINE, structure, VB(), 200)
    draws = 4000
    values, parameters = vb.finish(problem, state, seed_key(5), draws)
    assert values["W"].shape == (draws, F, K)
    assert values["H"].shape == (draws, K, N)
    assert set(parameters) == {f"{f}_{word}" for f in "WH" for word in ("order", "rho", "tau", "mean")}
    np.testing.assert_array_equal(parameters["H_order"], -3.0)
    np.testing.assert_array_equal(parameters["W_order"], 1.0)
    for name, q in (("W", state.W), ("H", state.H)):
        draw = values[name] if name == "W" else np.swapaxes(values[name], 1, 2)
        for power, expected in ((draw, q.mean), (1.0 / draw, 1.0 / q.harmonic)):
            error = power.std(axis=0) / np.sqrt(draws)
            assert np.max(np.abs(power.mean(axis=0) - expected) / error) < 6.0
    mean = EXPOSURE * (np.einsum("dfk,dkn->fn", values["W"], values["H"]) / draws) + BACKGROUND
    np.testing.assert_allclose(values["X_unobserved"].mean(axis=0), mean[~MASK], rtol=0.15)


def test_a_fit_has_labels_and_goes_on_from_a_checkpoint(tmp_path):
    import pandas as pd

    table = pd.DataFrame(X, index=[f"{50 * f} Hz" for f in range(F)], columns=[f"t{n}" for n in range(N)])
    table.iloc[2, 3] = np.nan
    declared = nz.is_nmf(table, K, alpha_h=1.5, beta_h=0.5, alpha_w=2.0)

    def run(**options):
        return nz.fit(
            engine="vb",
            model=declared,
            tol=0,
            restarts=2,
            search=None,
            draws=3,
            quiet=True,
            random_seed=1,
            cores=2,
            **options,
        )

    once = run(max_iter=30)
    run(max_iter=10, checkpoint=tmp_path / "run")
    twice = run(max_iter=30, checkpoint=tmp_path / "run")
    for group in ("posterior", "fit"):
        one, other = (_compat.group(idata, group) for idata in (once, twice))
        assert set(one.data_vars) == set(other.data_vars)
        for name in one.data_vars:
            np.testing.assert_array_equal(one[name].values, other[name].values)
    posterior, results = _compat.group(once, "posterior"), _compat.group(once, "fit")
    assert posterior["W"].dims[2:] == results["W_rho"].dims[1:]
    assert list(posterior["H"].coords[posterior["H"].dims[-1]].values) == list(table.columns)
    assert np.all(np.diff(results["objective"].values, axis=-1) >= -1e-9)


def test_options_of_counts_are_refused_in_one_line():
    with pytest.raises(nz.UnsupportedModel, match="precision='float32' is for counts"):
        nz.fit(engine=nz.VB(precision="float32"), model=nz.is_nmf(X, K, alpha_w=1.0), quiet=True)


MIXED = X.copy()
MIXED[0, 1], MIXED[1, 1], MIXED[2, 2] = 1e300, 1e-300, 5e-324


@pytest.mark.parametrize(
    ("x", "setting", "scale"),
    [(MIXED, {}, 1.0), (MIXED, {}, 1e-150), (X, {"exposure": np.where(X > 1, 1e-200, 1e200)}, 1.0)],
    ids=["powers", "powers and scale", "exposure"],
)
def test_nothing_absurd_ends_in_nan(x, setting, scale):
    _, state, info, bound = fit(vb.ENGINE, powers(inverse_gamma(2.0, scale), PLAIN, x=x, **setting), VB(), 50)
    for q in (state.W, state.H):
        assert np.all(np.isfinite(q.mean) & (q.mean > 0))
    assert np.all(np.isfinite(bound))
    assert np.isfinite(info.residual)


def test_a_long_run_makes_no_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.where(RNG.random(X.shape) < 0.2, 0.0, X)
        fit(vb.ENGINE, powers(inverse_gamma(0.5, 1e-8), inverse_gamma(0.5, 1e-8), x=x, rank=6), VB(), 500)


def test_a_draw_whose_mean_no_number_holds_has_a_density_of_0():
    structure = model(np.ones((2, 3)), 1, inverse_gamma(0.001, 1.0), inverse_gamma(0.001, 1.0), kind="exponential")
    draws = {"W": np.full((1, 2, 1), 1e300), "H": np.full((1, 1, 3), 1e300)}
    np.testing.assert_array_equal(log_joints(structure, draws), [-np.inf])


def test_a_step_from_the_smallest_numbers_to_the_largest_has_a_residual():
    """Without an overflow on the way."""
    model_ = nz.is_nmf(np.full((3, 5), 5e-200), 3, exposure=1e12, background=1e-3)
    start = {"W": np.full((3, 3), 1e-8)}
    found = nz.fit(engine="vb", max_iter=2, tol=0, draws=3, random_seed=77, quiet=True, initvals=start, model=model_)
    assert np.all(np.isfinite(_compat.group(found, "fit")["residual"]))
