"""Every engine on every declaration: what comes back, and what is said where an engine can't run one."""

import os
import signal
import threading
from itertools import product

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning, UnsupportedModel
from nmf_zoo.inference.registry import is_maximised, verb_of, verdict
from nmf_zoo.runtime.driver import STATUS
from tests.registered import OF_CHAINS, OF_POWERS, OURS, VERBS

F, K, N = 4, 2, 5
RNG = np.random.default_rng(3)
X = RNG.poisson(RNG.gamma(2.0, size=(F, K)) @ RNG.gamma(2.0, size=(K, N))) + np.eye(F, N, dtype=int)
TABLE = pd.DataFrame(X, index=list("abcd"), columns=[f"s{i}" for i in range(N)])
POWER = TABLE + 0.25
MASK = np.ones((F, N), dtype=bool)
MASK[[0, 2], [1, 3]] = False
LABELS = {"feature": list("abcd"), "component": ["u", "v"], "obs": list(TABLE.columns)}
COVARIATES = np.column_stack([np.linspace(-1.0, 1.0, N), np.arange(N) % 2])
one, two = np.float64(1), np.float64(2)


def users_own():
    """Other names, both factors transposed, an exposure and a background."""
    with pm.Model(coords={"word": list("abcd"), "topic": ["x", "y"], "text": range(10, 10 + N)}) as model:
        theta = pm.Gamma("theta", two, one, dims=("topic", "word"))
        phi = pm.Gamma("phi", two, one, dims=("text", "topic"))
        pm.Poisson("counts", np.linspace(1, 2, N) * (theta.T @ phi.T) + 0.5, observed=X, dims=("word", "text"))
    return model


def with_hyperpriors():
    with pm.Model() as model:
        alpha, mean = pm.Gamma("a", two, one), pm.LogNormal("m", np.float64(0), one, shape=(K, 1))
        nz.gamma_nmf(X, K, alpha_h=alpha, mean_h=mean)
    return model


def pymc_masked_array():
    with pm.Model() as model:
        W, H = pm.Gamma("W", two, one, shape=(F, K)), pm.Gamma("H", two, one, shape=(K, N))
        with pytest.warns(UserWarning, match="mask|missing|impute"):
            pm.Poisson("X", W @ H, observed=np.ma.masked_array(X, ~MASK))
    return model


def with_silent_frames():
    with pytest.warns(NmfZooWarning, match="2 samples have no positive observed cell"):
        return nz.is_nmf(POWER * (np.arange(N) > 1), K)


def powers_with_hyperpriors():
    with pm.Model() as model:
        alpha, beta = pm.Gamma("a", two, one), pm.LogNormal("b", np.float64(0), one, shape=(K, 1))
        nz.is_nmf(POWER, K, alpha_h=alpha, beta_h=beta, alpha_w=2.0)
    return model


def powers_with_priors(of_w, of_h, counts=False):
    with pm.Model() as model:
        W, H = of_w("W", two, one, shape=(F, K)), of_h("H", two, one, shape=(K, N))
        if counts:
            pm.Poisson("X", W @ H, observed=X)
        else:
            pm.Exponential("X", one / (W @ H), observed=POWER.to_numpy())
    return model


def powers_masked_array():
    with pm.Model() as model:
        W, H = pm.InverseGamma("W", two, one, shape=(F, K)), pm.InverseGamma("H", two, one, shape=(K, N))
        with pytest.warns(UserWarning, match="mask|missing|impute"):
            pm.Exponential("X", scale=W @ H, observed=np.ma.masked_array(POWER, ~MASK))
    return model


MAKERS = {
    "poisson_nmf": lambda: nz.poisson_nmf(TABLE, K),
    "poisson_nmf, real data": lambda: nz.poisson_nmf(X + 0.25, K),
    "normal_nmf": lambda: nz.normal_nmf(TABLE, K),
    "normal_nmf, free sigma": lambda: nz.normal_nmf(X, K, sigma=nz.free(), mask=MASK),
    "gamma_nmf": lambda: nz.gamma_nmf(TABLE, K, alpha_w=1.5, alpha_h=1.5, mean_h=3.0, coords={"component": ["u", "v"]}),
    "gamma_nmf, small shape": lambda: nz.gamma_nmf(X, K, alpha_h=0.3),
    "gamma_nmf, mask": lambda: nz.gamma_nmf(TABLE, K, mask=MASK),
    "gamma_nmf, offsets": lambda: nz.gamma_nmf(X, K, exposure=np.linspace(1, 2, N), background=0.5),
    "gamma_nmf, sparse": lambda: nz.gamma_nmf(sp.csr_array(X), K),
    "gamma_nmf, ratings": lambda: nz.gamma_nmf(sp.csr_array(X), K, observed="stored"),
    "gamma_nmf, free": lambda: nz.gamma_nmf(X, K, alpha_h=nz.free(), mean_h=nz.free(tie="obs")),
    "gamma_nmf, hyperpriors": with_hyperpriors,
    "gamma_nmf, known W": lambda: pm.do(nz.gamma_nmf(TABLE, K), {"W": np.full((F, K), 0.5)}),
    "gamma_nmf, nothing observed": lambda: nz.gamma_nmf(None, K, shape=(F, N)),
    "gamma_nmf, batches": lambda: nz.gamma_nmf(TABLE, K, batch=np.arange(N) % 2, mean_h=3.0),
    "gamma_nmf, batches and a reference": lambda: nz.gamma_nmf(
        X, K, batch=nz.Batches(labels=np.arange(N) % 3, reference=1), mask=MASK, exposure=np.linspace(1, 2, N)
    ),
    "gamma_nmf, batches, sparse": lambda: nz.gamma_nmf(sp.csr_array(X), K, batch=np.arange(N) % 2, background=0.5),
    "gamma_nmf, covariates": lambda: nz.gamma_nmf(TABLE, K, design=COVARIATES, slopes=0.5),
    "gamma_nmf, covariates, sparse": lambda: nz.gamma_nmf(
        sp.csr_array(X), K, design=COVARIATES[:, :1], alpha_h=1.5, mean_h=2.0, exposure=np.linspace(1, 2, N)
    ),
    "negative_binomial_nmf": lambda: nz.negative_binomial_nmf(TABLE, K, mean_h=3.0),
    "negative_binomial_nmf, known alpha": lambda: nz.negative_binomial_nmf(
        X, K, alpha=np.linspace(1.0, 3.0, F)[:, None], alpha_h=0.5, exposure=np.linspace(1, 2, N), background=0.5
    ),
    "negative_binomial_nmf, free alpha": lambda: nz.negative_binomial_nmf(X, K, alpha=nz.free(tie="obs"), mask=MASK),
    "negative_binomial_nmf, ratings": lambda: nz.negative_binomial_nmf(sp.csr_array(X), K, observed="stored"),
    "gap": lambda: nz.gap(TABLE, K, alpha_h=2.0),
    "gap, sparse": lambda: nz.gap(sp.csr_array(X), K, alpha_h=2.0),
    "gap, mask": lambda: nz.gap(TABLE, K, alpha_h=2.0, mask=MASK),
    "gap, improper": lambda: nz.gap(TABLE, K, alpha_h=0.5),
    "gap, free rate": lambda: nz.gap(X, K, alpha_h=2.0, beta_h=nz.free()),
    "hmm_nmf": lambda: nz.hmm_nmf(TABLE, K, background=0.5),
    "hmm_nmf, sparse": lambda: nz.hmm_nmf(sp.csr_array(X), K, alpha_w=2.0),
    "hmm_nmf, mask": lambda: nz.hmm_nmf(TABLE, K, mask=MASK, background=0.5, chain=nz.BasisChain(0.9, [0.7, 0.8])),
    "hmm_nmf, log-normal": lambda: nz.hmm_nmf(TABLE, K, alpha_w=2.0, chain=nz.LogNormalAR(0.0, 0.5, 1.0)),
    "hmm_nmf, bayes": lambda: nz.hmm_nmf(TABLE, K, alpha_w=2.0, background=0.5, chain=nz.BasisChain(0.9, 0.8)),
    "hmm_nmf, bayes, mask": lambda: nz.hmm_nmf(
        TABLE, K, alpha_w=2.0, mask=MASK, background=0.5, chain=nz.UnitChain([0.9, 0.8])
    ),
    "hmm_nmf, bayes, sparse": lambda: nz.hmm_nmf(sp.csr_array(X), K, alpha_w=2.0, chain=nz.UnitChain(0.9)),
    "is_nmf": lambda: nz.is_nmf(POWER, K, alpha_h=2.0, alpha_w=[[1.5], [2.0], [1.0], [3.0]]),
    "is_nmf, W free": lambda: nz.is_nmf(POWER, K, beta_h=np.ones((K, 1))),
    "is_nmf, mask": lambda: nz.is_nmf(POWER, K, alpha_w=2.0, mask=MASK),
    "is_nmf, offsets": lambda: nz.is_nmf(POWER, K, alpha_w=2.0, exposure=np.linspace(1, 2, N), background=0.5),
    "is_nmf, zeros": lambda: nz.is_nmf(np.where(MASK, POWER, 0.0), K, alpha_w=2.0),
    "is_nmf, silence": with_silent_frames,
    "is_nmf, free scale": lambda: nz.is_nmf(POWER, K, alpha_w=2.0, beta_h=nz.free(tie="obs")),
    "is_nmf, hyperpriors": powers_with_hyperpriors,
    "is_nmf, known W": lambda: pm.do(nz.is_nmf(POWER, K), {"W": np.full((F, K), 0.5)}),
    "is_nmf, nothing observed": lambda: nz.is_nmf(None, K, shape=(F, N), alpha_w=2.0),
    "powers, masked array": powers_masked_array,
    "powers, gamma priors": lambda: powers_with_priors(pm.Gamma, pm.Gamma),
    "powers, one of each": lambda: powers_with_priors(pm.Gamma, pm.InverseGamma),
    "counts, inverse-gamma priors": lambda: powers_with_priors(pm.InverseGamma, pm.InverseGamma, counts=True),
    "user's own": users_own,
    "PyMC's masked array": pymc_masked_array,
}
POINTS = ("em", "mcem")  # give one draw
MAXIMISES_W = ("mcem",)  # and integrates H out: with gamma priors of both there is nothing to maximise


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MAKERS.items()}


def suited(name, engine):
    """The declaration of this kind that the engine is for."""
    if engine in OF_CHAINS:
        return name.replace("gamma_nmf", "hmm_nmf, bayes" if OURS[engine] == "sample" else "hmm_nmf")
    return name.replace("gamma_nmf", "gap") if engine in MAXIMISES_W else name


def run(engine, model, **arguments):
    """A few draws of two chains, or a few iterations of two restarts."""
    short = {"random_seed": 1, "quiet": True, "model": model, "engine": engine}
    if verb_of(engine) == "sample":
        return nz.sample(**{"draws": 6, "tune": 3, "chains": 2, **short, **arguments})
    return nz.fit(**{"max_iter": 5, "draws": 6, "restarts": 2, "search": None, **short, **arguments})


def posterior(idata):
    return _compat.group(idata, "posterior")


def assert_same(first, second, names=None):
    for name in names or posterior(first).data_vars:
        np.testing.assert_array_equal(posterior(first)[name], posterior(second)[name])


# -- engines x models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("engine", OURS)
def test_each_engine_on_each_declaration(engine, name, models):
    model = models[name]
    structure = nz.read(model)
    able = verdict(structure, engine)
    if not able:
        with pytest.raises(UnsupportedModel) as refusal:
            run(engine, model)
        check_refusal(str(refusal.value), engine, able.reason, structure)
        return
    check_result(run(engine, model), model, structure, n_draws=1 if engine in POINTS else 6)


@pytest.mark.engines  # its results are those of test_results.py
@pytest.mark.parametrize("name", MAKERS)
def test_smc_on_each_declaration(name, models):
    structure = nz.read(models[name])
    able, few = verdict(structure, "smc"), nz.SMC(particles=40, length=4)
    if able:
        first, second = (run(few, models[name], cores=cores) for cores in (1, 3))
        check_result(first, models[name], structure, n_draws=6)
        assert_same(first, second)
        return
    with pytest.raises(UnsupportedModel) as refusal:
        run(few, models[name])
    check_refusal(str(refusal.value), "smc", able.reason, structure)


@pytest.mark.parametrize("name", MAKERS)
def test_what_nuts_refuses(name, models):
    structure = nz.read(models[name])
    able = verdict(structure, "nuts")
    if able:
        return
    with pytest.raises(UnsupportedModel) as refusal:
        run("nuts", models[name])
    check_refusal(str(refusal.value), "nuts", able.reason, structure)


def check_refusal(message, engine, reason, structure):
    assert "\n" not in message
    assert message.startswith(f"engine {engine!r} can't run this model: {reason}")
    for other, verb in VERBS.items():
        assert (f"nz.{verb}(engine={other!r})" in message) == bool(verdict(structure, other))


def check_result(idata, model, structure, n_draws):
    draws = posterior(idata)
    assert set(draws.data_vars) == {variable.name for variable in model.free_RVs}
    shapes = model.eval_rv_shapes()
    for name, values in draws.items():
        assert values.shape == (2, n_draws, *shapes[name])
        assert np.all(np.isfinite(values))
        dims = model.named_vars_to_dims.get(name)
        assert dims is None or values.dims == ("chain", "draw", *dims)
        for dim in dims or ():
            assert list(values[dim].to_numpy()) == list(model.coords[dim])
    lp = _compat.group(idata, "sample_stats")["lp"].to_numpy()
    for at in np.ndindex(lp.shape):
        values = {name: variable.to_numpy()[at] for name, variable in draws.items()}
        np.testing.assert_allclose(lp[at], structure.log_joint(values), rtol=1e-10)
    assert list(_compat.group(idata, "observed_data").data_vars) == [variable.name for variable in model.observed_RVs]


def test_every_engine_runs_some_model_and_every_model_with_data_is_run_by_some(models):
    structures = {name: nz.read(model) for name, model in models.items()}
    for engine in VERBS:
        assert any(verdict(structure, engine) for structure in structures.values())
    for name, structure in structures.items():
        nobody = name in ("gamma_nmf, nothing observed", "is_nmf, nothing observed")
        assert any(verdict(structure, engine) for engine in VERBS) != nobody


def test_labels_come_back(models):
    draws = posterior(run("gibbs", models["gamma_nmf"]))
    for dim, labels in LABELS.items():
        assert list(draws[dim].to_numpy()) == labels
    followed = _compat.group(run("gibbs", models["gamma_nmf"]), "sample_stats")["mean"]
    assert followed.dims == ("chain", "draw", "checked_cell")


@pytest.mark.parametrize("name", ["gamma_nmf, ratings", "gamma_nmf, sparse", "gamma_nmf, mask"])
def test_observed_cells_have_their_labels(name, models):
    data = _compat.group(run("gibbs", models[name]), "observed_data")
    rows, cols = nz.read(models[name]).cells
    feature, sample = (models[name].coords[dim] for dim in ("feature", "obs"))
    assert list(data["feature"].to_numpy()) == [feature[f] for f in rows]
    assert list(data["obs"].to_numpy()) == [sample[n] for n in cols]
    np.testing.assert_array_equal(data["X"], X[rows, cols])


# -- seeds and threads -------------------------------------------------------------------------------------------


SEEDED = [*product(OURS, ["gamma_nmf", "gamma_nmf, sparse", "gamma_nmf, mask"])]
SEEDED += [*product(OF_POWERS, ["is_nmf", "is_nmf, mask"])]


@pytest.mark.parametrize(("engine", "name"), SEEDED)
def test_the_seed_decides_and_the_threads_do_not(engine, name, models):
    name = suited(name, engine)
    first = run(engine, models[name], cores=1)
    for cores in (1, 2, 5):
        assert_same(first, run(engine, models[name], cores=cores))
    other = run(engine, models[name], random_seed=2)
    assert np.any(posterior(first)["W"].to_numpy() != posterior(other)["W"].to_numpy())
    W = posterior(first)["W"].to_numpy()
    assert np.any(W[0] != W[1])


def test_a_run_without_a_seed_records_one_that_repeats_it(models):
    for engine in OURS:
        model = models[suited("gamma_nmf", engine)]
        first = run(engine, model, random_seed=None)
        assert_same(first, run(engine, model, random_seed=int(first.attrs["random_seed"])))


def test_seeds_of_several_words_and_generators(models):
    several = run("gibbs", models["gamma_nmf"], random_seed=[1, 2])
    assert several.attrs["random_seed"] == "[1, 2]"
    assert_same(several, run("gibbs", models["gamma_nmf"], random_seed=np.array([1, 2])))
    assert run("gibbs", models["gamma_nmf"], random_seed=np.int64(7)).attrs["random_seed"] == "7"
    generators = [np.random.default_rng(0) for _ in range(2)]
    assert_same(*(run("gibbs", models["gamma_nmf"], random_seed=generator) for generator in generators))


def test_more_chains_leave_the_first_alone(models):
    few, many = (posterior(run("gibbs", models["gamma_nmf"], chains=chains)) for chains in (1, 3))
    np.testing.assert_array_equal(few["W"], many["W"][:1])


# -- run arguments -----------------------------------------------------------------------------------------------


def test_thin_keeps_every_second_draw(models):
    whole, thinned = (posterior(run("gibbs", models["gamma_nmf"], draws=5, thin=thin)) for thin in (1, 2))
    assert thinned.sizes["draw"] == 3
    np.testing.assert_array_equal(thinned["W"], whole["W"][:, ::2])


@pytest.mark.parametrize("engine", OURS)
def test_var_names_select(engine, models):
    model = models[suited("gamma_nmf", engine)]
    result = run(engine, model, var_names=["H"])
    assert list(posterior(result).data_vars) == ["H"]
    assert "lp" in _compat.group(result, "sample_stats")
    assert_same(result, run(engine, model), names=["H"])


def test_the_model_of_the_context_is_the_default(models):
    with models["gamma_nmf"]:
        assert_same(run("gibbs", None), run("gibbs", models["gamma_nmf"]))
        assert_same(run("em", None), run("em", models["gamma_nmf"]))


def test_warmup_is_kept_when_asked_for(models):
    kept = run("gibbs", models["gamma_nmf"], discard_tuned_samples=False)
    assert _compat.group(kept, "warmup_posterior")["W"].shape == (2, 3, F, K)
    assert _compat.group(kept, "warmup_sample_stats")["lp"].shape == (2, 3)
    discarded = run("gibbs", models["gamma_nmf"])
    assert "warmup_posterior" not in _compat.group_names(discarded)
    assert_same(kept, discarded)


def sklearn_factors():
    """Factors as scikit-learn's NMF returns them, with exact zeros."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    fitted = decomposition.NMF(K, init="nndsvd", alpha_W=0.1, l1_ratio=1.0, max_iter=50, tol=0)
    W = fitted.fit_transform(X.astype(float))
    assert np.any(W == 0) or np.any(fitted.components_ == 0)
    return {"W": W, "H": fitted.components_}


@pytest.mark.parametrize("name", ["gamma_nmf", "gamma_nmf, sparse", "poisson_nmf"])
@pytest.mark.parametrize("engine", OURS)
def test_runs_start_from_factors_of_scikit_learn(engine, name, models):
    if not verdict(nz.read(models[name]), engine):
        pytest.skip(f"{engine} can't run {name}")
    start = sklearn_factors()
    arguments = {"max_iter": 1} if OURS[engine] == "fit" else {"draws": 1, "tune": 0}
    result = run(engine, models[name], initvals=start, **arguments)
    assert np.all(np.isfinite(_compat.group(result, "sample_stats")["lp"]))
    if engine == "em":  # one iteration from one start: no randomness is left
        W = posterior(result)["W"].to_numpy()
        np.testing.assert_array_equal(W[0], W[1])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_start_per_chain_and_partial_starts(models):
    W, H = RNG.gamma(2.0, size=(F, K)), RNG.gamma(2.0, size=(K, N))
    starts = [{"W": W}, {"W": W, "H": H}]
    result = run("em", models["gamma_nmf"], initvals=starts, max_iter=1)
    swapped = run("em", models["gamma_nmf"], initvals=[starts[1], {"W": 2 * W, "H": 2 * H}], max_iter=1)
    objectives = [set(np.round(_compat.group(r, "fit")["objective"].to_numpy()[:, 0], 8)) for r in (result, swapped)]
    assert len(objectives[0] & objectives[1]) == 1


def test_log_likelihood_comes_when_asked_for(models):
    for engine in OURS:
        result = run(engine, models[suited("gamma_nmf, mask", engine)], idata_kwargs={"log_likelihood": True})
        assert _compat.group(result, "log_likelihood")["X"].dims == ("chain", "draw", "cell")


# -- optimisers --------------------------------------------------------------------------------------------------

FITS = [name for name, verb in OURS.items() if verb == "fit"]


@pytest.mark.parametrize("engine", FITS)
def test_restarts_come_best_first(engine, models):
    fit = _compat.group(run(engine, models[suited("gamma_nmf", engine)], restarts=6, max_iter=8, tol=0), "fit")
    last = fit["objective"].to_numpy()[:, -1]
    assert np.all(np.diff(last) <= 0) if is_maximised(engine) else np.all(np.diff(last) >= 0)
    assert len(np.unique(last)) > 1


@pytest.mark.parametrize("engine", FITS)
def test_statuses(engine, models):
    model = models[suited("gamma_nmf", engine)]
    tol = 1e-3 if engine in MAXIMISES_W else 1e-4
    converged = run(engine, model, max_iter=20_000, tol=tol)
    stopped = run(engine, model, max_iter=2, tol=1e-12)
    ran = run(engine, model, max_iter=7, tol=0)
    for result, status in ((converged, "converged"), (stopped, "max_iter"), (ran, "all_iterations")):
        fit = _compat.group(result, "fit")
        assert list(fit["status"].to_numpy()) == [status] * 2
        assert list(fit["reason"].to_numpy()) == [STATUS[status]] * 2
        assert list(fit["converged"].to_numpy()) == [status == "converged"] * 2
        assert result.attrs["status"] == status
    assert np.all(_compat.group(converged, "fit")["residual"] < tol)
    assert list(_compat.group(ran, "fit")["iterations"].to_numpy()) == [7, 7]
    assert _compat.group(ran, "fit")["objective"].shape == (2, 7)


@pytest.mark.parametrize("engine", FITS)
def test_more_iterations_continue_the_same_path(engine, models):
    model = models[suited("gamma_nmf", engine)]
    short, long = (_compat.group(run(engine, model, max_iter=n, tol=0, restarts=1), "fit") for n in (4, 9))
    np.testing.assert_array_equal(short["objective"], long["objective"][:, :4])


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", OURS)
def test_ctrl_c_keeps_what_was_done(engine, models):
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    endless = {"draws": 1_000_000, "tune": 1} if OURS[engine] == "sample" else {"max_iter": 100_000_000, "tol": 0}
    timer.start()
    result = run(engine, models[suited("gamma_nmf", engine)], **endless)
    timer.join()
    assert result.attrs["status"] == "interrupted"
    draws = posterior(result)
    assert 1 <= draws.sizes["draw"] < 1_000_000
    assert np.all(np.isfinite(draws["W"]))
    assert draws.sizes["chain"] in (1, 2)  # a chain that had hardly begun may have been dropped
    assert _compat.group(result, "sample_stats")["lp"].shape == (draws.sizes["chain"], draws.sizes["draw"])


# -- bad arguments -----------------------------------------------------------------------------------------------

BAD = {
    "no such engine": ({"engine": "gibs"}, r"engine: got 'gibs'; expected one of \["),
    "an optimiser": ({"engine": "em"}, r"engine: got 'em'; expected one of \[.*use nz.fit\(engine='em'\)"),
    "draws": ({"draws": 0}, "draws: got 0; expected an integer >= 1"),
    "draws of a wrong type": ({"draws": 2.5}, "draws: got 2.5"),
    "draws that are too many": ({"draws": 10**12}, "draws: got .* GiB"),
    "warm-up that is too much": ({"tune": 10**12, "discard_tuned_samples": False}, "draws: got .* GiB"),
    "tune": ({"tune": -1}, "tune: got -1; expected an integer >= 0"),
    "chains": ({"chains": True}, "chains: got True"),
    "cores": ({"cores": 0}, "cores: got 0"),
    "thin": ({"thin": 0}, "thin: got 0"),
    "seed": ({"random_seed": -1}, "random_seed: got -1"),
    "seed of a wrong type": ({"random_seed": "one"}, "random_seed: got 'one'"),
    "var_names": ({"var_names": ["W", "Z"]}, r"var_names: got \['W', 'Z'\]; expected a selection of \['W', 'H'\]"),
    "no var_names": ({"var_names": []}, r"var_names: got \[\]"),
    "idata_kwargs": ({"idata_kwargs": {"dims": {}}}, r"idata_kwargs: got \{'dims': \{\}\}; expected a dict"),
    "idata_kwargs of a wrong type": ({"idata_kwargs": ["log_likelihood"]}, r"idata_kwargs: got \['log_likelihood'\]"),
    "one var_name": ({"var_names": "W"}, "var_names: got 'W'; expected a selection"),
    "var_names of a wrong type": ({"var_names": 3}, "var_names: got 3"),
    "an engine of a wrong type": ({"engine": np.zeros(2)}, "engine: got array"),
    "initvals of a wrong type": ({"initvals": 3}, "initvals: got int; expected a mapping"),
    "initvals without names": ({"initvals": (np.ones((F, K)), np.ones((K, 3)))}, "initvals: got tuple; expected"),
    "initvals that are text": ({"initvals": {"W": "random"}}, r"initvals\['W'\]: got 'random'; expected numbers"),
    "initvals of no variable": ({"initvals": {"Z": 1.0}}, "initvals: got a value for 'Z'"),
    "initvals of a wrong shape": ({"initvals": {"W": np.ones((K, F))}}, r"shape \(2, 4\); expected shape \(4, 2\)"),
    "negative initvals": ({"initvals": {"W": -np.ones((F, K))}}, "initvals"),
    "NaN in initvals": ({"initvals": {"W": np.full((F, K), np.nan)}}, "initvals"),
    "initvals of another number of chains": ({"initvals": [{}]}, "initvals: got a list of 1; expected .* 2"),
}
BAD_FIT = {
    "a sampler": ({"engine": "gibbs"}, r"use nz.sample\(engine='gibbs'\)"),
    "max_iter": ({"max_iter": 0}, "max_iter: got 0"),
    "tol": ({"tol": -1.0}, "tol: got -1.0"),
    "tol that is no number": ({"tol": float("nan")}, "tol: got nan"),
    "tol that is text": ({"tol": "1e-4"}, "tol: got '1e-4'"),
    "draws of VB that are too many": ({"engine": "vb", "draws": 10**12}, "draws: got .* GiB"),
    "restarts": ({"restarts": 0}, "restarts: got 0"),
    "cores of a fit": ({"cores": -2}, "cores: got -2"),
    "var_names of a fit": ({"var_names": ["X"]}, "var_names"),
}


@pytest.mark.parametrize(("verb", "name"), [("gibbs", name) for name in BAD] + [("em", name) for name in BAD_FIT])
def test_bad_arguments_are_refused_in_one_line(verb, name, models):
    arguments, message = (BAD if verb == "gibbs" else BAD_FIT)[name]
    call = {"sample": nz.sample, "fit": nz.fit}[OURS[verb]]
    own = {"chains": 2} if verb == "gibbs" else {}
    with pytest.raises(InputError, match=message) as refusal:
        call(**{"engine": verb, "model": models["gamma_nmf"], "quiet": True, **own, **arguments})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("engine", OURS)
@pytest.mark.parametrize("factor", ["W", "H"])
def test_counts_that_a_known_factor_forbids_are_found_before_the_run(engine, factor, models):
    known = np.ones((F, K) if factor == "W" else (K, N))
    (known if factor == "W" else known.T)[0] = 0.0
    model = pm.do(models["gamma_nmf"], {factor: known})
    if not verdict(nz.read(model), engine):
        pytest.skip(f"{engine} can't run gamma_nmf with known hyperparameters")
    with pytest.raises(InputError, match=f"X: got .* positive cells, the first at .* 0, where {factor} is 0; expected"):
        run(engine, model)


@pytest.mark.statistical  # it compiles for seconds
def test_nuts_starts_where_it_is_told_to(models):
    """Exact zeros, which have no logarithm, are raised a little; nutpie would ignore the start. Nothing is warned of"""
    start = {"W": np.eye(F, K), "H": np.ones((K, N))}
    with pytest.raises(InputError, match="initvals: got values; expected None with nutpie"):
        run(nz.NUTS(sampler="nutpie"), models["gamma_nmf"], initvals=start)
    near = run("nuts", models["gamma_nmf"], initvals=start, draws=3, tune=3)
    assert np.all(np.isfinite(posterior(near)["W"]))


def test_too_few_draws_are_said_once(models):
    with pytest.warns(NmfZooWarning, match="Only 2 draws per chain") as said:
        nz.sample(2, tune=1, chains=1, progressbar=False, model=models["gamma_nmf"])
    assert len(said) == 1
    assert said[0].filename == __file__


def test_unknown_arguments_are_not_swallowed(models):
    for call in (nz.sample, nz.fit):
        with pytest.raises(TypeError, match="step"):
            call(model=models["gamma_nmf"], step=1)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (nz.Gibbs, {"moves": ("scale", "jump")}),
        (nz.Gibbs, {"moves": None}),
        (nz.NUTS, {"target_accept": 1.5}),
        (nz.NUTS, {"target_accept": "high"}),
        (nz.EM, {"inner": float("nan")}),
        (nz.NUTS, {"sampler": "stan"}),
        (nz.EM, {"mode": "mean"}),
        (nz.EM, {"inner": 0}),
    ],
)
def test_bad_options_are_refused_in_one_line(options, arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: got .*expected") as refusal:
        options(**arguments)
    assert "\n" not in str(refusal.value)


def test_a_cell_that_is_no_count_is_placed():
    table = pd.DataFrame([[1.0, 2.0], [0.5, 3.0]], index=["sun", "rain"], columns=["mon", "tue"])
    told = r"not integers \(1 of them\), the first 0.5 at feature 'rain', obs 'mon'"
    with pytest.raises(UnsupportedModel, match=told):
        nz.sample(model=nz.gamma_nmf(table, 1), quiet=True)
