"""EM by particles: what it takes and refuses, what it returns, and that nothing depends on threads or restarts."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import RunFailed, UnsupportedModel
from nmf_zoo.inference.hmm import particle_em
from nmf_zoo.inference.hmm.particle_em import WINDOW, ParameterWindow, combine, look_back
from nmf_zoo.inference.hmm.particle_expectations import SMOOTHERS
from nmf_zoo.inference.registry import verdict
from nmf_zoo.interfaces.cli import main
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL

F, K, T = 4, 2, 30
RNG = np.random.default_rng(8)
W = RNG.gamma(2.0, 3.0, (F, K))
X = RNG.poisson(W @ (RNG.random((K, T)) < 0.5) + 0.5)
GAPS = np.where(RNG.random((F, T)) < 0.8, X, np.nan)
GAPS[:, 3] = np.nan  # a missing time
CHAINS = {"basis": "basis", "unit": "unit", "log-normal": nz.LogNormalAR(0.0, nz.free(), nz.free(), initial=(0.0, 1.0))}
KNOWN = {
    "basis": nz.BasisChain(0.8, 0.7),
    "unit": nz.UnitChain(0.9),
    "log-normal": nz.LogNormalAR(0.0, 0.8, 0.5, initial="stationary"),
}
TABLES = {
    "gaps": {"X": GAPS},
    "sparse": {"X": scipy.sparse.csr_array(X), "background": None, "alpha_w": 2.0},
    "mask of stored cells": {"X": scipy.sparse.csr_array(X), "observed": "stored", "background": None},
    "exposure": {"X": X, "exposure": RNG.uniform(0.5, 2.0, T)},
    "exposure of cells": {"X": X, "exposure": RNG.uniform(0.5, 2.0, (F, T))},
    "background of cells": {"X": X, "background": RNG.uniform(0.1, 0.3, (F, T))},
    "one time": {"X": X[:, :1]},
    "labels": {"X": X, "coords": {"feature": list("abcd"), "obs": [f"day {t}" for t in range(T)]}},
}
pytestmark = pytest.mark.filterwarnings("ignore:rank. got [26]")


def declare(chain="basis", **arguments):
    return nz.hmm_nmf(**{"X": X, "rank": K, "chain": chain, "background": 0.2, **arguments})


def fit(model, seed=1, **arguments):
    options = {key: arguments.pop(key) for key in list(arguments) if key in particle_em.ParticleEM.__annotations__}
    for key in ("particles", "proposal", "resampling", "ess"):
        if key in arguments:
            options[key] = arguments.pop(key)
    engine = nz.ParticleEM(**{"particles": 60, **options})
    run = {"max_iter": 3, "draws": 4, "random_seed": seed, "quiet": True, "engine": engine}
    return nz.fit(model=model, **run | arguments)


def group(idata, name):
    return _compat.group(idata, name)


def assert_finite(idata):
    for name in ("posterior", "fit"):
        for variable, array in group(idata, name).data_vars.items():
            if array.dtype.kind == "f" and variable != "residual":  # inf before the second window
                assert np.all(np.isfinite(array)), variable


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("table", TABLES)
def test_every_chain_on_every_table(name, table):
    fitted = fit(declare(CHAINS[name], **TABLES[table]))
    n_times = TABLES[table]["X"].shape[1]
    assert_finite(fitted)
    H, said = group(fitted, "posterior")["H"], group(fitted, "fit")
    assert H.shape == (1, 4, K, n_times)
    assert said["ess"].shape == (1, n_times)
    assert np.all((said["ess"] >= 1) & (said["ess"] <= 60 * (1 + 1e-9)))
    assert said["H_filtered"].dims == said["H_filtered_sd"].dims == said["H_mean"].dims == ("chain", *H.dims[2:])
    np.testing.assert_allclose(said["H_mean"][0], H[0].mean("draw"))
    if name != "log-normal":
        assert np.all((H >= 0) & (H <= 1))
    if name == "basis":
        assert set(np.unique(H)) <= {0, 1}


@pytest.mark.parametrize("smoother", SMOOTHERS)
def test_a_map_estimate_with_every_smoother(smoother):
    """Priors on W and on the chain's parameters; W fixed and only the chain unknown."""
    with pm.Model() as model:
        alpha = pm.Beta("alpha", 200.0, 2.0, shape=K)
        nz.hmm_nmf(X, K, chain=nz.UnitChain(alpha), background=0.2, alpha_w=1e5, mean_w=2.0)
    found = group(fit(model, smoother=smoother), "posterior")
    assert np.all(np.abs(found["W"] - 2.0) < 0.3)
    assert np.all(found["alpha"] > 0.95)
    for exposure in (None, np.arange(1.0, 1.0 + F)[:, None]):
        known = pm.do(declare("unit", exposure=exposure), {"W": W})
        assert set(group(fit(known, smoother=smoother), "posterior").data_vars) == {"H", "alpha"}


@pytest.mark.parametrize("name", KNOWN)
def test_where_nothing_is_unknown_one_pass_is_the_fit(name):
    known = pm.do(declare(KNOWN[name]), {"W": W})
    fitted = fit(known, max_iter=100, restarts=2, repeats=3, particles=1000)
    said = group(fitted, "fit")
    assert said["status"].to_numpy().tolist() == ["converged"] * 2
    assert np.all(said["iterations"] == 1)
    assert np.all(said["log_likelihood_error"] > 0)
    assert np.isnan(group(fit(known, repeats=1), "fit")["log_likelihood_error"]).all()
    assert said["objective"][0, 0] != said["objective"][1, 0]  # runs of their own


def test_log_likelihood_is_the_exact_one():
    known = pm.do(declare(KNOWN["basis"], X=GAPS), {"W": W})
    exact = group(nz.fit(model=known, engine="hmm_exact", max_iter=1, tol=0, quiet=True), "fit")
    said = group(fit(known, particles=5000, draws=400, repeats=8), "fit")
    off = float(said["log_likelihood"][0]) - float(exact["objective"][0, 0])
    assert abs(off) < 5 * float(said["log_likelihood_error"][0])
    assert np.max(np.abs(said["H_mean"] - exact["H_mean"])) < 5 * 0.5 / np.sqrt(400) + 0.05


def test_em_climbs_to_what_exact_em_finds():
    """The same model, started alike: the objective of the particles' solution under the exact likelihood."""
    model = declare("basis", X=GAPS)
    start = {"W": W, "p": np.array(0.5), "q": np.array(0.5)}
    exact = nz.fit(model=model, engine="hmm_exact", max_iter=60, initvals=start, random_seed=1, quiet=True)
    found = fit(model, particles=500, max_iter=60, initvals=start)
    solved = {name: group(found, "posterior")[name].to_numpy()[0, 0] for name in ("W", "p", "q")}
    at = nz.fit(model=model, engine="hmm_exact", max_iter=1, tol=0, initvals=solved, random_seed=1, quiet=True)
    best = float(group(exact, "fit")["objective"][0].max())
    assert float(group(at, "fit")["objective"][0, 0]) > best - 0.5
    first = float(
        group(nz.fit(model=model, engine="hmm_exact", max_iter=1, tol=0, initvals=start, quiet=True), "fit")[
            "objective"
        ][0, 0]
    )
    assert best > first + 2  # there was something to climb


@pytest.mark.parametrize("name", CHAINS)
def test_results_do_not_depend_on_threads(name):
    runs = [fit(declare(CHAINS[name], X=GAPS), restarts=3, cores=cores) for cores in (1, 2)]
    for variable in ("objective", "ess", "H_filtered", "log_likelihood"):
        np.testing.assert_array_equal(*(group(run, "fit")[variable] for run in runs))
    for variable in group(runs[0], "posterior").data_vars:
        np.testing.assert_array_equal(*(group(run, "posterior")[variable] for run in runs))


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    """Bit for bit as one that was not stopped, past the end of a window."""
    model, run = declare("unit", X=GAPS), {"tol": 0, "restarts": 2}
    whole = fit(model, max_iter=WINDOW + 3, cores=2, **run)
    for length in (4, WINDOW + 1, WINDOW + 3):
        stopped = fit(model, max_iter=length, cores=1, checkpoint=tmp_path / "run", **run)
    np.testing.assert_array_equal(group(stopped, "fit")["objective"], group(whole, "fit")["objective"])
    for variable in ("W", "H", "alpha"):
        np.testing.assert_array_equal(group(stopped, "posterior")[variable], group(whole, "posterior")[variable])


def test_other_seeds_give_other_draws():
    first, second = (group(fit(declare("unit"), seed=seed), "posterior") for seed in (1, 2))
    assert np.any(first["H"].to_numpy() != second["H"].to_numpy())


def test_what_the_result_is_for():
    """Prediction, imputation, pointwise log-likelihood, projection."""
    model = declare(CHAINS["unit"], X=GAPS)
    fitted = fit(model, idata_kwargs={"log_likelihood": True})
    assert nz.predict(fitted, model, random_seed=1).shape == (1, 4, F, T)
    assert nz.impute(fitted, model, random_seed=1).shape == (1, 4, np.isnan(GAPS).sum())
    assert np.all(np.isfinite(group(nz.log_likelihood(fitted, model), "log_likelihood")["X"]))
    assert "log_likelihood" in _compat.group_names(fitted)
    new = nz.project(
        fitted, X[:, :5], model=model, engine="particle_em", random_seed=1, draws=3, quiet=True, max_iter=5
    )
    assert group(new, "posterior")["H"].shape == (1, 3, K, 5)
    assert group(new, "fit")["status"][0] == "converged"


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ["--model", "hmm-nmf", "--rank", "2", "--chain", "unit:alpha=0.95"]
    simulate = ["simulate", *model, "--alpha-w", "2", "--shape", "6x30", "-o", "x.csv", "--random-seed", "3"]
    assert main(simulate) == 0
    fit = ["fit", "x.csv", *model, "--engine", "particle_em", "--quiet", "--max-iter", "3", "-o", "fit.nc"]
    assert main([*fit, "--background", "0.1"]) == 0
    assert group(nz.load("fit.nc"), "posterior")["H"].shape[-1] == 30


def test_all_particles_at_zero_weight():
    """One clear line: where, and what to do; never NaN."""
    counts = np.where(np.arange(T) == 7, X + 1, 0)
    impossible = declare(nz.BasisChain(1 - 1e-7, 0.5, 1e-7), background=None, X=counts)
    with pytest.raises(RunFailed) as failure:
        fit(impossible)
    message = str(failure.value)
    assert "\n" not in message
    assert "particle_em: no particle can make the counts of obs 7" in message
    for what in ("background", "W with a positive entry", "more than particles=60"):
        assert what in message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"particles": 1}, "particles: got 1; expected an integer >= 2"),
        ({"particles": 1e3}, r"particles: got 1000.0; expected an integer"),
        ({"particles": True}, "particles: got True"),
        ({"proposal": "optimal"}, "proposal: got 'optimal'; expected one of .'auto', 'bootstrap'"),
        ({"resampling": "none"}, "resampling: got 'none'; expected one of .'systematic'"),
        ({"ess": 1.5}, "ess: got 1.5; expected a number from 0 to 1"),
        ({"ess": np.nan}, "ess: got nan"),
        ({"ess": "half"}, "ess: got 'half'"),
        ({"smoother": "sideways"}, "smoother: got 'sideways'; expected one of .'backward', 'forward', 'path'"),
        ({"repeats": 0}, "repeats: got 0; expected an integer >= 1"),
        ({"average": 1}, "average: got 1; expected True or False"),
    ],
)
def test_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        nz.ParticleEM(**wrong)


def test_verdicts():
    for name in CHAINS:
        assert verdict(read(declare(CHAINS[name])), "particle_em")
    assert "nothing is observed" in verdict(read(declare("unit", X=None, shape=(F, T))), "particle_em").reason
    assert "no chain in time" in verdict(read(nz.gap(X + 1, K, alpha_h=2.0)), "particle_em").reason
    with pytest.raises(UnsupportedModel, match=r"nz\.fit\(engine='particle_em'\)"):
        nz.sample(model=declare("unit", alpha_w=2.0), engine="gibbs")
    too_many = read(nz.hmm_nmf(X, 20, chain=nz.BasisChain(0.9, 0.8)))
    refusal = verdict(too_many, "hmm_exact").reason
    assert "2^20 states, which take" in refusal
    assert "GB: lower rank, or engine='particle_em' draws from them, in" in refusal
    assert verdict(too_many, "particle_em")
    huge = verdict(read(declare("unit")), "particle_em", nz.ParticleEM(particles=10_000_000))
    assert "10000000 particles would take" in huge.reason


def test_windows_end_and_average():
    """A straight line: the mean of a window, and the move per iteration whatever its length."""
    window, ends = ParameterWindow(), []
    for iteration in range(1, 80):
        window = look_back(window, iteration, np.full((2, 2), 10.0 + iteration), np.array([0.5]))
        if window.total is None:
            ends.append(iteration)
            if len(ends) > 1:
                assert window.residual == pytest.approx(1.0 / window.last_mean[0])
                assert window.last_mean[0] == 10 + (ends[-2] + 1 + ends[-1]) / 2
    assert ends[:3] == [10, 20, 30]
    assert np.diff(ends)[-1] > WINDOW
    many = look_back(ParameterWindow(end=1), 1, np.empty(0), np.array([2.0]))
    assert look_back(many._replace(end=2), 2, np.empty(0), np.array([2.5])).residual == pytest.approx(0.5)


def test_estimates_are_combined_on_their_own_scale():
    log_p, error = combine(np.log([1.0, 3.0]) - 1000.0)
    assert log_p == pytest.approx(np.log(2.0) - 1000.0)
    assert error == pytest.approx(np.log(3.0) / 2)
    close = combine(np.array([0.0, 1e-4]) - 1000.0)
    assert close[1] == pytest.approx(0.5e-4, rel=1e-6)
    assert combine(np.array([-50.0, 0.0]))[1] == pytest.approx(25.0)  # not 1, where the spread of ratios stops
    assert combine(np.array([-5.0]))[0] == -5.0
    assert combine(np.array([-5e300, -1e300]))[1] == pytest.approx(2e300)  # whose squares are no numbers


def test_a_mean_that_lags_is_not_the_solution():
    """After 14 iterations the mean of the first ten is far behind; once it is not, it is taken."""
    model, run = declare("basis", X=GAPS), {"max_iter": 14, "tol": 0, "particles": 500}
    mean, last = (group(fit(model, average=average, **run), "posterior")["W"] for average in (True, False))
    np.testing.assert_array_equal(mean, last)
    near = {"W": mean[0, 0].to_numpy()}
    mean, last = (fit(model, average=average, initvals=near, **run | {"max_iter": 40}) for average in (True, False))
    assert np.any(group(mean, "posterior")["W"].to_numpy() != group(last, "posterior")["W"].to_numpy())
    said = [float(group(one, "fit")["log_likelihood"][0]) for one in (mean, last)]
    assert said[0] > said[1] - 2.0


@pytest.mark.parametrize(
    ("chain", "rank", "scale", "proposal"),
    [
        ("unit", 2, 1, "bootstrap"),
        ("unit", 2, 100, "auxiliary"),
        ("unit", 6, 1, "auxiliary"),
        ("basis", 3, 100, "bootstrap"),
        ("basis", 4, 100, "auxiliary"),
        ("log-normal", 1, 1, "auxiliary"),
    ],
)
def test_the_proposal_suits_the_chain_and_the_counts(chain, rank, scale, proposal):
    model = declare(CHAINS[chain], X=scale * X, rank=rank)
    assert nz.ParticleEM().proposal_for(read(model)) == proposal
    assert nz.ParticleEM(proposal="guided").proposal_for(read(model)) == "guided"


def test_a_step_alone():
    structure = read(declare("unit"))
    problem = particle_em.prepare(structure, particle_em.ParticleEM(particles=50), SERIAL)
    state = particle_em.init(problem, seed_key(1), {"W": W})
    np.testing.assert_array_equal(state.W, W)
    new, info = particle_em.step(problem, state, seed_key(2))
    assert info.objective == new.objective
    assert new.iterations == 1
    assert not np.array_equal(new.W, state.W)


@pytest.mark.filterwarnings("ignore:rank::")
def test_activations_that_round_to_one_have_a_density():
    """At 1e12 counts, real ones, the particles that are left are 1 but for less than a double holds."""
    x = np.random.default_rng(703).gamma(5.0, 1e12, (1, 7))
    idata = nz.fit(
        engine=nz.ParticleEM(particles=50, repeats=1),
        model=nz.hmm_nmf(x, 3, chain="unit", alpha_w=30.0, exposure=1e-12),
        max_iter=2,
        draws=8,
        search=None,
        random_seed=10,
        quiet=True,
    )
    assert np.all(np.isfinite(_compat.group(idata, "sample_stats")["lp"]))
