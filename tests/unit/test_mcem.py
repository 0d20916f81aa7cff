"""Monte-Carlo EM: the chains against their slow twin, the updates against their equations, and what it refuses."""

import warnings
from math import lgamma

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat, memory
from nmf_zoo.errors import InputError, NmfZooWarning, UnsupportedModel
from nmf_zoo.inference.counts import mcem as mcem
from nmf_zoo.inference.counts.mcem_expectations import GivenW
from nmf_zoo.inference.counts.mcem_updates import best_shapes, has_no_root
from nmf_zoo.inference.marginal.exact import marginal_log_likelihoods
from nmf_zoo.inference.shared.layout import compress, turn
from nmf_zoo.kernels.counts.mcem_sweeps import Chains, make_plan, make_workspace, run_chains
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import HyperPrior, Unknown
from tests.naive.counts import mcem_sweeps as naive_mcem

pytestmark = [
    pytest.mark.filterwarnings("ignore:X. .* no positive observed cell"),
    pytest.mark.filterwarnings("ignore:rank. got"),
]
RNG = np.random.default_rng(5)
W_TRUE = np.array([[0.638, 0.075], [0.009, 0.568], [0.044, 0.126], [0.309, 0.231]])  # Filstroff 2018, eq. 50
X = RNG.poisson(W_TRUE @ RNG.gamma(1.0, 2.0, (2, 40)))
KEY = seed_key(2)


def fit(model, max_iter=10, **options):
    return nz.fit(engine=nz.MCEM(**options), model=model, max_iter=max_iter, tol=0, random_seed=1, quiet=True, cores=1)


def stepper(model, **options):
    """(problem, first state)"""
    structure = nz.read(model)
    chosen = nz.MCEM(**options)
    assert mcem.supports(structure, chosen)
    problem = mcem.prepare(structure, chosen, SERIAL)
    return problem, mcem.init(problem, child(KEY, 0), {})


def posterior(idata, name):
    return _compat.group(idata, "posterior")[name].to_numpy()[0, 0]


def reported(idata, name):
    return _compat.group(idata, "fit")[name].to_numpy()[0]


# -- chains ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 5, 9])
@pytest.mark.parametrize("background", [None, 0.4])
def test_chains_equal_their_twin(rank, background):
    x = np.minimum(RNG.poisson(RNG.gamma(1.0, 2.0, (6, 7))), 14 * max(rank - 1, 1))
    x[2] = x[:, 3] = 0
    structure = nz.read(nz.gap(x, rank, background=background))
    layout = compress(structure)
    layout = turn(layout, 7) if layout.by_features else layout
    W, h = RNG.gamma(1.0, size=(6, rank)), RNG.gamma(1.0, size=(7, rank))
    shape, rate, centre = (RNG.gamma(3.0, size=(7, rank)) + 0.5 for _ in range(3))
    offset = np.full(6, 0.0 if background is None else background)
    for expects, first in ((False, 0), (True, 3)):
        here, mean, log = h.copy(), np.empty_like(h), np.empty_like(h)
        chains = Chains(here, shape, rate, np.empty_like(h), mean, log, centre, np.empty((7, 2)))
        plan, found, reached = make_plan(layout, rank, 5, 2, expects, expects), np.zeros_like(W), np.zeros((rank, 200))
        workspace_and_keys = make_workspace(layout, rank), KEY, first
        assert run_chains(layout, W, chains, plan, (0, 7), found, reached, workspace_and_keys) == 0
        total = np.zeros_like(W)
        for n in range(7):
            drawn, expected, before, shapes, last = naive_mcem.run_chain(
                x[:, n], offset, W, h[n], shape[n], rate[n], 5, 2, KEY, first + n
            )
            total += expected if expects else drawn
            np.testing.assert_allclose(mean[n], (shapes / rate[n] if expects else before).mean(axis=0), rtol=1e-10)
            np.testing.assert_allclose(here[n], last, rtol=1e-10)
            log_p = np.sum(np.log(centre[n]) * (shapes - 1) - rate[n] * centre[n] + shapes * np.log(rate[n]), axis=1)
            log_p -= np.array([sum(map(lgamma, row)) for row in shapes])
            np.testing.assert_allclose(chains.density[n, 0], np.log(np.mean(np.exp(log_p))), rtol=1e-9)
        np.testing.assert_allclose(found, total, rtol=1e-10)
        assert reached.sum() == 3 * 7 * rank


def test_large_counts_are_shared_out_whole():
    x = np.array([[5000, 0], [3, 400]])
    problem, state = stepper(nz.gap(x, 3), rao_blackwell=False, sweeps=4, burn_in=0)
    for iteration in range(3):
        state, _ = mcem.step(problem, state, child(KEY, 2, iteration))
        np.testing.assert_allclose(state.statistics["sources"].sum(axis=1), x.sum(axis=1), rtol=1e-12)


def test_results_do_not_depend_on_the_threads():
    model = nz.gap(np.random.default_rng(1).poisson(1.5, (60, 900)), 4)
    runs = []
    for threads in (1, 3):
        structure, options = nz.read(model), nz.MCEM(sweeps=3, burn_in=1)
        problem = mcem.prepare(structure, options, Workers(threads))
        assert problem.expect.layout.n_chunks > 1
        state = mcem.init(problem, child(KEY, 0), {})
        for iteration in range(2):
            state, info = mcem.step(problem, state, child(KEY, 2, iteration))
        runs.append((state.W, info.objective))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


# -- updates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rao_blackwell", [True, False])
@pytest.mark.parametrize("sweeps", [1, 2, 7])
@pytest.mark.parametrize("step", [None, 0.7])
def test_eq_49_holds_exactly_after_every_step_of_c(rao_blackwell, sweeps, step):
    alpha, beta = np.array([[0.5], [1.0], [3.0]]), np.array([[2.0], [1.0], [0.3]])
    model = nz.gap(X, 3, alpha_h=alpha, beta_h=beta)
    problem, state = stepper(
        model, complete="C", sweeps=sweeps, burn_in=sweeps // 2, step=step, explore=2, rao_blackwell=rao_blackwell
    )
    for iteration in range(6):
        state, _ = mcem.step(problem, state, child(KEY, 2, iteration))
        np.testing.assert_allclose(state.W @ (alpha / beta)[:, 0], X.mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize(("complete", "holds"), [("CH", False), ("H", False), ("C", True)])
def test_only_c_keeps_the_means(complete, holds):
    W = posterior(fit(nz.gap(X, 3), complete=complete, sweeps=3, burn_in=1), "W")
    assert np.allclose(W.sum(axis=1), X.mean(axis=1), rtol=1e-9) == holds


def test_the_result_of_c_keeps_the_means_too():
    idata = fit(nz.gap(X, 3), max_iter=60)
    assert np.any(posterior(idata, "W").sum(axis=0) != reported(idata, "norms")[-1])  # a mean over iterations
    np.testing.assert_allclose(posterior(idata, "W").sum(axis=1), X.mean(axis=1), rtol=1e-12)


def test_an_exposure_of_features_divides_the_update_of_c():
    exposure = np.array([[1.0], [2.0], [0.5], [3.0]])
    problem, state = stepper(nz.gap(X, 2, exposure=exposure), complete="C")
    state, _ = mcem.step(problem, state, child(KEY, 2, 0))
    np.testing.assert_allclose((exposure * state.W).sum(axis=1), X.mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize("complete", ["H", "CH"])
def test_updates_with_h_are_eq_41_and_42(complete):
    """With one sweep the draw of h is the one that the chains start from: where the iteration before left them."""
    drawn = {"rao_blackwell": False, "sweeps": 1, "burn_in": 0}
    problem, state = stepper(nz.gap(X, 2, alpha_h=1.5), complete=complete, **drawn)
    for iteration in range(3):
        W, Ht = state.W.copy(), state.Ht.copy()
        state, _ = mcem.step(problem, state, child(KEY, 2, iteration))
        assert np.all(state.Ht != Ht)
        if complete == "H":
            sources = W * ((X / (W @ Ht.T)) @ Ht)
            np.testing.assert_allclose(state.W, sources / Ht.sum(axis=0), rtol=1e-12)
        else:
            sources = state.W * Ht.sum(axis=0)
            np.testing.assert_allclose(sources, np.round(sources), atol=1e-9)
            np.testing.assert_allclose(sources.sum(axis=1), X.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("rao_blackwell", [True, False])
def test_the_sweeps_of_the_burn_in_are_left_out(rao_blackwell):
    """The first 2 sweeps and the last 3 are all 5."""

    def means(sweeps, burn_in):
        problem, state = stepper(nz.gap(X, 2), sweeps=sweeps, burn_in=burn_in, rao_blackwell=rao_blackwell)
        return mcem.step(problem, state, KEY)[0].statistics

    first, last, whole = means(2, 0), means(5, 2), means(5, 0)
    for name in ("sources", "H"):
        np.testing.assert_allclose(5 * whole[name], 2 * first[name] + 3 * last[name], rtol=1e-12)


def test_stochastic_approximation_averages_the_iterations_after_the_first(monkeypatch):
    """With step 1 it is their plain mean: weights 1, 1/2, 1/3, ... from the last iteration of ``explore`` on."""
    kept, expect = [], GivenW.__call__

    def recorded(self, *arguments):
        found = expect(self, *arguments)
        kept.append({name: array.copy() for name, array in found.statistics.items()})
        return found

    monkeypatch.setattr(GivenW, "__call__", recorded)
    problem, state = stepper(nz.gap(X, 2), step=1.0, explore=2, sweeps=3, burn_in=1)
    for iteration in range(6):
        state, _ = mcem.step(problem, state, child(KEY, 2, iteration))
        averaged = kept[2:] if iteration >= 2 else kept[-1:]
        for name in ("sources", "H"):
            mean = np.mean([statistics[name] for statistics in averaged], axis=0)
            np.testing.assert_allclose(state.statistics[name], mean, rtol=1e-12)


def test_missing_cells_are_weighed_by_what_is_observed():
    mask = RNG.random(X.shape) < 0.7
    problem, state = stepper(nz.gap(X, 2, mask=mask), rao_blackwell=False, sweeps=1, burn_in=0)
    assert problem.complete == "CH"
    Ht = state.Ht.copy()
    new, _ = mcem.step(problem, state, child(KEY, 2, 0))
    sources = new.W * (mask @ Ht)
    np.testing.assert_allclose(sources.sum(axis=1), (X * mask).sum(axis=1), rtol=1e-12)
    assert reported(fit(nz.gap(X, 2, mask=mask)), "complete") == "CH"


def test_the_deterministic_start_is_eq_51_and_the_random_one_keeps_its_sums():
    alpha, beta = np.array([[0.5], [2.0]]), np.array([[1.0], [3.0]])
    model = nz.gap(X, 2, alpha_h=alpha, beta_h=beta)
    _, equal = stepper(model, start="deterministic")
    np.testing.assert_allclose(equal.W, X.mean(axis=1)[:, None] * (beta / alpha).T / 2, rtol=1e-12)
    _, random = stepper(model)
    np.testing.assert_allclose(random.W @ (alpha / beta)[:, 0], X.mean(axis=1), rtol=1e-12)
    assert np.all(random.W != equal.W)


@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_a_free_shape_goes_to_the_root_of_its_slope(shape):
    L = RNG.negative_binomial(1.7, 0.3, (3, 500))
    reached = np.array([np.bincount(row, minlength=L.max() + 1) for row in L], dtype=float)
    unknown = Unknown(name="a", variable_shape=shape, shape=shape, prior=HyperPrior(kind="flat"))
    found = np.ones(shape)
    for _ in range(3):  # a step is at most by a factor
        found = best_shapes(unknown, found, reached, 500)

    def profile(value):
        a = np.broadcast_to(value, (3, 1))
        mean = L.mean(axis=1, keepdims=True)
        terms = np.vectorize(lgamma)(a + L) - np.vectorize(lgamma)(np.broadcast_to(a, L.shape))
        return np.sum(terms + a * np.log(a / (a + mean)) + L * np.log(mean / (a + mean)))

    for factor in (0.999, 1.001):
        assert profile(found) > profile(found * factor)


def test_shapes_without_a_root_are_said():
    even = np.full((1, 9), 0.0)
    even[0, 4] = 50
    unknown = Unknown(name="a", variable_shape=(), shape=(), prior=HyperPrior(kind="flat"))
    assert has_no_root(unknown, even, 50)
    with pytest.warns(NmfZooWarning, match="alpha_h is at .*no best shape"):
        fit(nz.gap(np.full((2, 30), 4), 1, alpha_h=nz.free()), max_iter=15)


# -- runs --------------------------------------------------------------------------------------------------------


def test_the_objective_is_exact_where_that_is_cheap():
    model = nz.gap(X, 2)
    idata = fit(model, max_iter=7, average=False)
    exact = -marginal_log_likelihoods(nz.read(model), posterior(idata, "W")).sum()
    np.testing.assert_allclose(reported(idata, "objective")[-1], exact, rtol=1e-12)
    assert np.all(reported(idata, "objective_error") == 0)


def test_what_fit_reports():
    idata = nz.fit(engine="mcem", model=nz.gap(X, 3), max_iter=25, tol=0, restarts=2, random_seed=1, quiet=True)
    group = _compat.group(idata, "fit")
    assert group["norms"].dims == ("chain", "iteration", "component")
    assert group["norms"].shape == (2, 25, 3)
    assert group["objective_error"].shape == group["objective"].shape == (2, 25)
    assert group["pruned"].dims == ("chain", "component")
    assert np.all(group["residual"] > 0)


def test_restarts_that_end_apart_are_filled_up():
    idata = nz.fit(engine="mcem", model=nz.gap(X, 2), max_iter=300, tol=2e-3, restarts=3, random_seed=3, quiet=True)
    group = _compat.group(idata, "fit")
    for norms, n in zip(group["norms"].to_numpy(), group["iterations"].to_numpy(), strict=True):
        assert np.all(np.isfinite(norms[:n]))
        assert np.all(np.isnan(norms[n:]))


def test_a_checkpoint_goes_on_where_it_was(tmp_path):
    model, options = nz.gap(X, 3, alpha_h=nz.free()), {"step": 0.8, "explore": 5}

    def run(max_iter, path=None):
        return nz.fit(
            engine=nz.MCEM(**options), model=model, max_iter=max_iter, tol=0, random_seed=1, quiet=True, checkpoint=path
        )

    run(23, tmp_path / "run")
    resumed, whole = run(60, tmp_path / "run"), run(60)
    for name in ("W", "H", "alpha_h"):
        np.testing.assert_array_equal(posterior(resumed, name), posterior(whole, name))
    np.testing.assert_array_equal(reported(resumed, "norms"), reported(whole, "norms"))


def test_surplus_columns_and_empty_rows_and_columns():
    x = np.zeros((5, 60), int)
    x[1:, :50] = RNG.poisson(np.outer([5, 1, 2, 0.5], RNG.gamma(0.5, 2.0, 50)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NmfZooWarning)
        idata = fit(nz.gap(x, 4, alpha_h=0.5), max_iter=300, sweeps=20, burn_in=5)
    W = posterior(idata, "W")
    assert np.all(W[0] == 0)
    assert np.all(np.isfinite(posterior(idata, "H")))
    assert np.sum(reported(idata, "pruned")) >= 1


def test_hyperparameters_of_both_factors_move():
    model = nz.gamma_nmf(X, 2, alpha_w=nz.free(), alpha_h=nz.free(), mean_h=nz.free())
    for rao_blackwell in (True, False):
        idata = fit(model, rao_blackwell=rao_blackwell)
        assert all(posterior(idata, name) != 1.0 for name in ("alpha_w", "alpha_h", "mean_h"))


def test_hyperparameters_with_w_known_move():
    model = pm.do(nz.gamma_nmf(X, 2, alpha_h=nz.free(), beta_h=nz.free()), {"W": W_TRUE})
    idata = fit(model, max_iter=30)
    assert posterior(idata, "beta_h") != 1.0
    assert reported(idata, "complete") == ""


def test_joint_maximum_likelihood_holds_the_columns_of_w_to_one():
    """Without that it has no maximum for alpha <= 1: W grows and H shrinks for ever."""
    idata = nz.fit(engine="em", model=nz.gap(X, 4), max_iter=300, tol=0, random_seed=1, quiet=True)
    np.testing.assert_allclose(posterior(idata, "W").sum(axis=0), 1.0, rtol=1e-9)


# -- refusals ----------------------------------------------------------------------------------------------------

REFUSED = {
    "flat factors": (lambda: nz.poisson_nmf(X, 2), {}, "nothing can be integrated out: nz.gap"),
    "known priors": (lambda: nz.gamma_nmf(X, 2), {}, "W without a prior, as in nz.gap, or over free hyperparameters"),
    "real data": (lambda: nz.gap(X + 0.5, 2), {}, "not integers"),
    "normal": (lambda: nz.normal_nmf(X, 2), {}, "X is normal, and its updates are for poisson data"),
    "free rate": (lambda: nz.gap(X, 2, beta_h=nz.free()), {}, "only their ratio matters .*give beta_h a value"),
    "free mean": (lambda: nz.gap(X, 2, mean_h=nz.free()), {}, "only their ratio matters .*give mean_h a value"),
    "C, missing cells": (lambda: nz.gap(X, 2, mask=X < 4), {"complete": "C"}, 'does not hold.*use complete="CH"'),
    "C, exposure": (lambda: nz.gap(X, 2, exposure=np.linspace(1, 2, 40)), {"complete": "C"}, 'use complete="CH"'),
    "C, rates": (
        lambda: nz.gap(X, 2, beta_h=np.linspace(1, 2, 40)[None]),
        {"complete": "C"},
        'differs from sample to sample.*use complete="CH"',
    ),
    "complete, W with a prior": (lambda: nz.gamma_nmf(X, 2, alpha_h=nz.free()), {"complete": "C"}, "leave it out"),
    "H without a prior": (lambda: _flat_h(), {}, "pass the transpose of X to nz.gap"),
}


def _flat_h():
    with pm.Model() as model:
        W = pm.Gamma("W", np.float64(1), np.float64(1), shape=(4, 2))
        pm.Poisson("X", W @ pm.HalfFlat("H", shape=(2, 40)), observed=X)
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_fits(name):
    make, options, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        fit(make(), **options)
    assert "\n" not in str(refusal.value)


BAD = {
    "complete": ({"complete": "W"}, "complete: got 'W'; expected one of"),
    "start": ({"start": "zeros"}, "start: got 'zeros'"),
    "sweeps": ({"sweeps": 0}, "sweeps: got 0; expected an integer >= 1"),
    "sweeps of a wrong type": ({"sweeps": 2.0}, "sweeps: got 2.0"),
    "burn_in": ({"sweeps": 5, "burn_in": 5}, "burn_in: got 5 of 5 sweeps"),
    "step": ({"step": 0.5}, "step: got 0.5; expected None or a number above 0.5"),
    "step that is text": ({"step": "saem"}, "step: got 'saem'"),
    "explore": ({"explore": -1}, "explore: got -1"),
    "rao_blackwell": ({"rao_blackwell": 1}, "rao_blackwell: got 1"),
    "average": ({"average": "yes"}, "average: got 'yes'"),
    "exact": ({"exact": "no"}, "exact: got 'no'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        nz.MCEM(**options)


@pytest.mark.parametrize("values", [{"alpha_h": 0.0}, {"alpha_h": -1.0}, {"beta_h": 0.0}, {"beta_h": np.nan}])
def test_hyperparameters_must_be_positive(values):
    with pytest.raises(nz.InputError, match=next(iter(values))):
        nz.gap(X, 2, **values)


def test_exact_values_that_do_not_fit_into_memory(monkeypatch):
    """In seconds they may be affordable: a table of choose(n + K, K) cells for each core."""
    monkeypatch.setattr(memory, "_physical_memory", lambda: 1e8)
    model = nz.gap(np.full((5, 2), 60), 4)
    with pytest.raises(InputError, match=r"exact: got exact values, .* expected less than 80% .* use exact"):
        nz.fit(engine=nz.MCEM(exact=True), max_iter=1, quiet=True, model=model)


def test_counts_whose_table_does_not_fit_into_memory(monkeypatch):
    """Unknown shapes need to know how often each count was reached: components x counts."""
    monkeypatch.setattr(memory, "_physical_memory", lambda: 1e10)
    model = nz.gap(np.array([[2**31 - 1, 3]]), 4, alpha_h=nz.free(), mean_h=2.0)
    with pytest.raises(InputError, match=r"X: got 2147483647 counts in a sample, .* use MCEM\(complete=.H"):
        nz.fit(engine="mcem", max_iter=2, quiet=True, model=model)


@pytest.mark.filterwarnings("ignore:alpha_w. one free value per cell")
def test_known_activations_prune_nothing():
    """They have no prior whose mean would tell."""
    model = pm.do(
        nz.gamma_nmf(np.arange(1, 11).reshape(2, 5), 1, alpha_w=nz.free(tie="component")), {"H": np.ones((1, 5))}
    )
    found = nz.fit(engine=nz.MCEM(sweeps=10, exact=False), max_iter=3, tol=0, random_seed=1, quiet=True, model=model)
    assert not np.any(_compat.group(found, "fit")["pruned"])


def test_the_error_of_a_density_that_all_sweeps_agree_on_is_a_number():
    """One count: the estimate's variance is 0, and a little less by rounding."""
    options = nz.MCEM(sweeps=10, burn_in=5, explore=3, start="deterministic", rao_blackwell=False)
    start = {"W": np.ones((1, 3))}
    model = nz.gap(np.ones((1, 1), dtype=int), 3, mean_h=2.0)
    result = nz.fit(engine=options, max_iter=15, tol=0, random_seed=46, quiet=True, initvals=start, model=model)
    assert np.all(np.isfinite(result.fit["objective"]))
