"""Sequential Monte Carlo as a sampler: what it hands back, what it refuses, one seed for both verbs, interruption."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import verdict_on
from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import EvidenceRun

RNG = np.random.default_rng(5)
X = RNG.poisson(4.0, (4, 5))
FEW = nz.SMC(particles=200, length=5)
RUN = {"chains": 3, "random_seed": 4, "quiet": True}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, 2, alpha_w=1.5, alpha_h=1.2)


@pytest.fixture(scope="module")
def idata(model):
    return nz.sample(150, engine=FEW, model=model, **RUN)


def group(idata, name):
    return _compat.group(idata, name)


def test_chains_are_runs_and_draws_particles(model, idata):
    stats, drawn = group(idata, "sample_stats"), group(idata, "posterior")
    assert dict(drawn["W"].sizes) == {"chain": 3, "draw": 150, "feature": 4, "component": 2}
    assert stats["log_marginal_likelihood"].dims == stats["log_marginal_likelihood_error"].dims == ("chain",)
    for name in smc.Stage._fields:
        assert stats[name].dims == ("chain", "stage")
    assert stats["temperature"].max("stage").to_numpy().tolist() == [1.0, 1.0, 1.0]
    structure = nz.read(model)
    values = {name: drawn[name].to_numpy()[1, 7] for name in ("W", "H")}
    np.testing.assert_allclose(stats["lp"].to_numpy()[1, 7], structure.log_joint(values), rtol=1e-12)
    at = stats["mean"].isel(chain=1, draw=7)
    product = (values["W"] @ values["H"])[at["checked_row"].to_numpy(), at["checked_col"].to_numpy()]
    np.testing.assert_allclose(at.to_numpy(), product, rtol=1e-12)
    assert idata.attrs["engine"] == "smc"
    assert idata.attrs["status"] == "complete"


def test_one_seed_gives_the_evidence_of_the_other_verb(model, idata):
    found = nz.evidence(model, nz.SMC(particles=200, length=5, draws=150), **RUN)
    for name in ("log_marginal_likelihood", "log_marginal_likelihood_error", "temperature"):
        np.testing.assert_array_equal(group(found, "sample_stats")[name], group(idata, "sample_stats")[name])
    for name in ("W", "H"):
        np.testing.assert_array_equal(group(found, "posterior")[name], group(idata, "posterior")[name])


def test_draws_do_not_depend_on_threads(model, idata):
    for cores in (1, 5):
        again = nz.sample(150, engine=FEW, model=model, cores=cores, **RUN)
        for name in ("W", "H"):
            np.testing.assert_array_equal(group(again, "posterior")[name], group(idata, "posterior")[name])
        np.testing.assert_array_equal(group(again, "sample_stats")["lp"], group(idata, "sample_stats")["lp"])


def test_some_variables(model):
    idata = nz.sample(20, engine=FEW, model=model, var_names=["H"], **RUN)
    assert list(group(idata, "posterior").data_vars) == ["H"]
    assert "mean" in group(idata, "sample_stats")


def test_what_follows_a_run(model, idata, tmp_path):
    nz.save(idata, tmp_path / "x.nc")
    loaded = nz.load(tmp_path / "x.nc")
    name = "log_marginal_likelihood"
    np.testing.assert_array_equal(group(loaded, "sample_stats")[name], group(idata, "sample_stats")[name])
    assert nz.predict(idata, model, random_seed=1, n_draws=3).sizes["draw"] == 3
    nz.align(idata)
    with_cells = nz.sample(20, engine=FEW, model=model, idata_kwargs={"log_likelihood": True}, **RUN)
    assert "log_likelihood" in _compat.group_names(with_cells)


def test_overdispersed_counts():
    """A draw has a dispersion of its own, and missing cells that are drawn under it."""
    with pm.Model(coords={"feature": range(4), "obs": range(5), "component": range(2)}) as model:
        W = pm.Gamma("W", 1.5, 1.0, dims=("feature", "component"))
        H = pm.Gamma("H", 1.2, 0.5, dims=("component", "obs"))
        alpha = pm.LogNormal("alpha", 0.5, 1.0, dims="feature")
        with warnings.catch_warnings(action="ignore"):
            cells = np.ma.masked_array(X, (X[0, 1] == X) & (np.arange(5) == 1))
            pm.NegativeBinomial("X", mu=W @ H, alpha=alpha[:, None], observed=cells)
    few = nz.sample(40, engine=FEW, model=model, **RUN)
    drawn = group(few, "posterior")
    values = {name: drawn[name].to_numpy()[2, 5] for name in drawn.data_vars}
    assert values["alpha"].shape == (4,)
    assert values["X_unobserved"].dtype.kind == "i"
    np.testing.assert_allclose(
        group(few, "sample_stats")["lp"].to_numpy()[2, 5], nz.read(model).log_joint(values), rtol=1e-9
    )


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"draws": 201},
            r"^draws: got 201 with smc; expected 200 at the most, .*; e.g. engine=nz.SMC\(particles=205\)$",
        ),
        ({"engine": nz.SMC(draws=10)}, r"^draws: got SMC\(draws=10\); expected None there"),
        ({"thin": 2}, "^thin: got 2 with smc; expected 1: "),
        ({"discard_tuned_samples": False}, "^discard_tuned_samples: got False with smc; expected True"),
        ({"initvals": {"W": np.ones((4, 2))}}, "^initvals: got values with smc; expected None"),
        ({"start": "search"}, "^start: got 'search' with smc; expected 'auto' or 'random'"),
        ({"start": nz.Search(fits=2)}, "^start: got Search.* with smc; expected 'auto' or 'random'"),
        ({"keep": "moments"}, "^keep: got 'moments' with smc; expected draws in memory"),
        ({"store": "x.zarr"}, "^store: got 'x.zarr' with smc; expected draws in memory"),
        ({"checkpoint": "here"}, "^checkpoint: got 'here' with smc; expected None"),
        ({"on_step": print}, "^on_step: got .* with smc; expected None"),
        ({"max_seconds": 1.0}, "^max_seconds: got 1.0 with smc; expected None"),
    ],
)
def test_what_it_has_no_use_for(arguments, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nz.InputError, match=message) as refusal:
        nz.sample(**{"draws": 20, "engine": FEW, "model": model, **RUN, **arguments})
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_a_flat_factor_has_nothing_to_begin_with():
    with pytest.raises(nz.UnsupportedModel, match="W has no prior, and its particles begin as draws of the prior"):
        nz.sample(engine="smc", model=nz.gap(X, rank=2))


def test_a_free_dispersion_has_nothing_to_begin_with():
    with pytest.raises(
        nz.UnsupportedModel, match="alpha has no prior, and its particles begin as draws of the prior: "
    ):
        nz.sample(engine="smc", model=nz.negative_binomial_nmf(X, 2, alpha=nz.free()))


def test_the_other_verb_says_where_it_is(model):
    with pytest.raises(
        nz.InputError, match=r"engine: got 'smc'; .*; it is now 'particle_em', or use nz.sample\(engine='smc'\)$"
    ):
        nz.fit(engine="smc", model=model)


# -- interruption and advice -----------------------------------------------------------------------------------------


def test_runs_that_ctrl_c_cut_short_are_left_out(model, monkeypatch):
    """The first run ends, the other two do not."""
    right = smc.one_run
    monkeypatch.setattr(smc, "one_run", lambda *run: None if run[2].number else right(*run))
    monkeypatch.setattr(EvidenceRun, "each", _stopped(EvidenceRun.each))
    idata = nz.sample(20, engine=FEW, model=model, **RUN)
    assert group(idata, "posterior").sizes["chain"] == 1
    assert idata.attrs["status"] == "interrupted"


def _stopped(each):
    def stopped(self, work, total):
        found = each(self, work, total)
        self.stopped = True
        return found

    return stopped


def test_nothing_finished(model, monkeypatch):
    monkeypatch.setattr(smc, "one_run", lambda problem, options, job: None)
    with pytest.raises(nz.RunFailed, match="smc: stopped before a run had ended"):
        nz.sample(20, engine=FEW, model=model, **RUN)


def test_a_run_without_an_end_in_sight_ends(model, monkeypatch):
    monkeypatch.setattr(smc, "MOST_STAGES", 2)
    with pytest.raises(RunFailed, match=r"^smc: temperature .* after 2 stages: the counts are too large for it"):
        nz.sample(10, engine=FEW, model=model, **RUN)


def test_the_advice_is_more_particles(model):
    """Runs that disagree are not settled in modes of their own, and take no initvals."""
    idata = nz.sample(100, engine=nz.SMC(particles=100, ess=0.05), model=model, **{**RUN, "chains": 4})
    with pytest.warns(nz.NmfZooWarning, match=r"Take more particles \(engine=nz.SMC\(particles=\)\)"):
        nz.check_convergence(idata)
    found = verdict_on(idata)
    assert found.do.startswith("run again with more particles (engine=nz.SMC(particles=200))")


def test_in_a_comparison_and_a_calibration(model):
    length = {"draws": 50, "tune": 20, "chains": 2}
    assert len(nz.compare_engines(model, [FEW, "gibbs"], **length, random_seed=1, progressbar=False).table) == 2
    declare = lambda: nz.gamma_nmf(None, rank=1, shape=(2, 3))  # noqa: E731
    short = {"simulations": 20, "draws": 9, "random_seed": 1, "progressbar": False}
    one, two = (nz.calibrate(declare, FEW, cores=cores, **short)["rank"] for cores in (1, 2))
    np.testing.assert_array_equal(one, two)
