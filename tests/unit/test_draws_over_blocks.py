"""``nz.sample(..., data=...)``: draws of W, moments of H, the same wherever data and arrays lie."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group, group_names
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed, UnsupportedModel
from nmf_zoo.interfaces.cli.show import summary_lines
from nmf_zoo.reports.source import Source
from nmf_zoo.results.block_store import as_fitted
from nmf_zoo.results.component_order import component_order
from nmf_zoo.results.components import component_shares
from nmf_zoo.results.posterior import best_chain
from nmf_zoo.runtime import blocks as sweeps_at_once
from nmf_zoo.runtime import checkpoint as checkpoints
from nmf_zoo.verbs.block_source import CutArray
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0  # no sample and no feature is empty
X[:, 0] += 1.0
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
EXPOSURE = RNG.gamma(5.0, 0.2, N)
BACKGROUND = RNG.gamma(5.0, 0.2, (F, 1))
OF_W = RNG.gamma(1.0, 1.0, (F, K))
TABLE = np.random.default_rng(2).gamma(1.0, 0.5, (F, N))
ALL = list(range(N))
RUN = {"draws": 6, "tune": 4, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
Given = partial(CutSamples, block=17)


def gamma(X, **more):
    return nz.gamma_nmf(X, K, **{"alpha_w": 1.2, "beta_w": 0.5, "alpha_h": [[1.1], [1.3], [1.5]], "beta_h": 0.7} | more)


def learned(X, shape=None):
    """With unknown scales of both factors, one by component, and a shape of both."""
    with pm.Model() as model:
        a, mean = pm.Gamma("a", 4.0, 4.0), pm.InverseGamma("mean", 3.0, 3.0, shape=K)
        W = pm.Gamma("W", a, pm.HalfNormal("rate", 1.0), shape=(F, K))
        H = pm.Gamma("H", a, a / mean[:, None], shape=(K, N if X is not None else 1))
        pm.Poisson("X", W @ H, observed=X, shape=(F, 1) if X is None else None)
    return model


def relevant(X, **more):
    return nz.gamma_nmf(X, K, prior=nz.ARD(scale=3.0), **more)


def over(data=None, model=None, **more):
    model = gamma(None, shape=(F, 1)) if model is None else model
    return nz.sample(model=model, data=CutArray(X, 17) if data is None else data, **RUN | more)


@cache
def undisturbed():
    return over()


def assert_same(found, expected):
    for name in ("posterior", "posterior_moments", "sample_stats", "components"):
        for variable, array in group(expected, name).data_vars.items():
            np.testing.assert_array_equal(group(found, name)[variable], array, err_msg=variable)


MODELS = {
    "sparse": (CutArray(sp.csc_array(X), 17), gamma, {}, {}),
    "exposure of samples": (Given(sp.csc_array(X), exposure=EXPOSURE), gamma, {"exposure": EXPOSURE[None]}, {}),
    "background": (Given(X), gamma, {"background": BACKGROUND}, {"background": BACKGROUND}),
    "background of samples": (
        Given(sp.csc_array(X), exposure=EXPOSURE, background=(BACKGROUND, EXPOSURE[None])),
        gamma,
        {"exposure": EXPOSURE[None], "background": (BACKGROUND, EXPOSURE[None])},
        {},
    ),
    "table of backgrounds": (Given(X, background=TABLE), gamma, {"background": TABLE}, {}),
    "mask": (Given(X, mask=MASK), gamma, {"mask": MASK}, {}),
    "known component": (Given(X), gamma, {"known": OF_W[:, :1]}, {"known": OF_W[:, :1]}),
    "hyperparameters": (Given(X), learned, {}, {}),
    "relevances": (Given(X), relevant, {}, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_lp_and_moments_are_those_of_the_draws(name):
    data, make, whole, apart = MODELS[name]
    found = over(data, make(None, shape=(F, 1), **apart), kept_samples=ALL)
    posterior, stats = group(found, "posterior"), group(found, "sample_stats")
    structure = nz.read(make(X, **whole))
    for at in np.ndindex(2, 6):
        values = {str(own): posterior[own].to_numpy()[at] for own in posterior}
        np.testing.assert_allclose(stats["lp"].to_numpy()[at], structure.log_joint(values), rtol=1e-10)
        mean = structure.W.value(values) @ structure.H.value(values)
        followed = mean[stats["checked_row"], stats["checked_col"]]
        np.testing.assert_allclose(stats["mean"].to_numpy()[at], followed, rtol=1e-12)
    moments = nz.moments(found)
    for own in posterior:
        np.testing.assert_allclose(moments[f"{own}_mean"], posterior[own].mean("draw"), rtol=1e-10)
        np.testing.assert_allclose(moments[f"{own}_sd"], posterior[own].std("draw", ddof=1), rtol=1e-8, atol=1e-12)


def test_the_same_bits_wherever_data_and_arrays_lie(tmp_path):
    pytest.importorskip("zarr")
    nz.write_blocks(tmp_path / "x.zarr", sp.csc_array(X))
    stored = over(nz.open_blocks(tmp_path / "x.zarr", block=17), store=tmp_path / "o.zarr", cores=2)
    here = over(CutArray(sp.csc_array(X), 17))
    assert_same(stored, here)
    assert_same(nz.load(tmp_path / "o.zarr"), here)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.zarr", "x.zarr"]
    with pytest.raises(AssertionError):
        assert_same(over(CutArray(X, 20)), here)


def test_draws_of_chosen_samples():
    kept = [40, 3]
    found = over(kept_samples=kept)
    H = group(found, "posterior")["H"]
    np.testing.assert_array_equal(H["obs"], kept)
    np.testing.assert_allclose(H.mean("draw"), group(found, "posterior_moments")["H_mean"].sel(obs=kept), rtol=1e-10)
    np.testing.assert_array_equal(group(found, "posterior")["W"], group(undisturbed(), "posterior")["W"])


def test_chains_and_what_is_kept():
    whole = group(undisturbed(), "posterior")["W"].to_numpy()
    one = group(over(chains=1), "posterior")["W"].to_numpy()
    np.testing.assert_array_equal(one[0], whole[0])
    thinned = over(thin=2)
    np.testing.assert_array_equal(group(thinned, "posterior")["W"], whole[:, ::2])
    np.testing.assert_array_equal(group(thinned, "posterior_moments")["sweeps"], [6, 6])
    moments = over(keep="moments")
    assert "posterior" not in group_names(moments)
    np.testing.assert_allclose(nz.moments(moments)["W_mean"], whole.mean(axis=1), rtol=1e-10)
    warm = over(discard_tuned_samples=False)
    assert group(warm, "warmup_posterior")["W"].shape == (2, 4, F, K)
    assert_same(warm, undisturbed())


def test_watching_changes_nothing():
    seen = []
    assert_same(over(on_step=lambda step: seen.append((step.chain, step.number)), thin=1), undisturbed())
    assert {chain for chain, _ in seen} == {0, 1}


@pytest.fixture
def saves_at_every_step(monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(sweeps_at_once, "SHORT", 0.0)  # a fast machine would make several steps between two looks


@pytest.mark.parametrize("last", [(0, 3), (0, 8), (1, 7)])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(last, tmp_path, saves_at_every_step):
    stop = lambda step: (step.chain, step.number) >= last  # noqa: E731
    if last == (0, 3):
        with pytest.raises(RunFailed, match="no draw was made"):
            over(checkpoint=tmp_path / "c", on_step=stop)
    else:
        part = over(checkpoint=tmp_path / "c", on_step=stop)
        assert part.attrs["status"].startswith("stopped by on_step: the same call goes on from")
    assert_same(over(checkpoint=tmp_path / "c"), undisturbed())
    assert_same(over(checkpoint=tmp_path / "c"), undisturbed())


def test_a_checkpoint_knows_its_data(tmp_path):
    over(checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="blocks"):
        over(CutArray(X + 1, 17), checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="kept_samples"):
        over(checkpoint=tmp_path / "c", kept_samples=[1])


def test_activations_of_known_weights():
    found = over(model=pm.do(gamma(None, shape=(F, 1)), {"W": OF_W}), chains=1, draws=300)
    whole = nz.sample(300, tune=50, chains=1, random_seed=1, quiet=True, model=pm.do(gamma(X), {"W": OF_W}))
    mean, sd = (group(found, "posterior_moments")[f"H_{word}"].to_numpy()[0] for word in ("mean", "sd"))
    z = (mean - group(whole, "posterior")["H"].mean("draw").to_numpy()[0]) / (sd / np.sqrt(300))
    assert np.sqrt(np.mean(z**2)) < 6  # sources of H are allocated anew, so that draws are not independent


def test_tables_and_pictures_read_the_draws_that_there_are(tmp_path):
    """Of W, where H has means alone; the same as of all draws in memory."""
    found, whole = undisturbed(), over(kept_samples=ALL)
    best = group(found, "posterior")["chain"].to_numpy()[best_chain(found)]
    top, expected = (nz.top_features(own, 3, chain=best) for own in (found, whole))
    pd.testing.assert_frame_equal(top, expected)
    assert (top["share_low"] < top["share_high"]).all()
    assert component_shares(found).sizes["draw"] in (6, 12)  # of the chains in the mode of the best one
    table = pd.read_csv(nz.export(found, tmp_path / "t", chain=best) / "W.csv")
    order = component_order(found)["order"].sel(chain=best).to_numpy()[0]
    draws = group(found, "posterior")["W"].sel(chain=best).to_numpy()[..., order]
    np.testing.assert_allclose(table["sd"], draws.std(axis=0, ddof=1).T.ravel())
    readme = (tmp_path / "t" / "README.md").read_text()
    assert "of chain 0: 6 draws in all of W, and means of H" in readme.replace(f"chain {best}", "chain 0")
    assert pd.read_csv(tmp_path / "t" / "H.csv")[["sd", "q05"]].isna().all(axis=None)
    lines = "\n".join(summary_lines(found, 0))
    assert f"posterior   2 chains x 6 draws of W (feature {F}, component {K})\nmean, sd    of H (" in lines
    page = nz.report(found, tmp_path / "r.html").read_text()
    assert "2 chains x 6 draws" in page
    shown = Source(found, None, None, "W", "H", None)
    assert group(shown.shown_weights, "posterior")["W"].sizes["draw"] in (6, 12)
    in_page = nz.top_features(shown.shown_weights, 3)
    assert (in_page["share_low"] < in_page["share_high"]).all()
    pd.testing.assert_frame_equal(in_page, nz.top_features(found, 3))


def test_chains_begin_at_a_fit():
    fitted = nz.fit(model=gamma(None, shape=(F, 1)), data=CutArray(X, 17), engine="vb", max_iter=5, quiet=True)
    found = over(initvals=fitted, draws=1, tune=0)
    assert found.attrs["start"] != "random"


REFUSED = {
    "engine": (lambda: over(engine="nuts"), UnsupportedModel, "nz.sample(engine='gibbs') of poisson data"),
    "trajectories": (lambda: over(engine=nz.Gibbs(trajectories="always")), UnsupportedModel, 'leave it at "auto"'),
    "temperatures": (lambda: over(engine=nz.Gibbs(temperatures=3)), UnsupportedModel, "leave it out"),
    "flat": (lambda: over(model=nz.gap(None, K, shape=(F, 1))), UnsupportedModel, "W has no prior"),
    "half-normal": (
        lambda: over(model=nz.gamma_nmf(None, K, prior=nz.ARD(cells="half-normal"), shape=(F, 1))),
        UnsupportedModel,
        "half-normal prior",
    ),
    "rates of samples": (
        lambda: over(model=nz.gamma_nmf(None, K, prior=nz.HPF(), shape=(F, 1))),
        UnsupportedModel,
        "beta_h has an entry for each sample",
    ),
    "free hyperparameter": (
        lambda: over(model=nz.gamma_nmf(None, K, mean_h=nz.free(), shape=(F, 1))),
        UnsupportedModel,
        "mean_h is free",
    ),
    "fractions": (lambda: over(CutArray(X / 3, 17)), UnsupportedModel, "can't run block 0"),
    "start": (lambda: over(start="search"), InputError, "search=nz.Search()"),
    "samples": (lambda: over(kept_samples=[1, 1]), InputError, "different integers from 0 to 59"),
    "samples and moments": (lambda: over(kept_samples=[1], keep="moments"), InputError, "keep='draws'"),
    "samples alone": (lambda: nz.sample(model=gamma(X), kept_samples=[1]), InputError, "without data="),
    "executor alone": (lambda: nz.sample(model=gamma(X), executor=1), InputError, "got int; expected a conc"),
    "variables": (lambda: over(var_names=["W"]), InputError, "with data="),
    "initvals": (lambda: over(initvals={"H": np.ones((K, N))}), InputError, "samples come with data="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unit_sums_leave_moments_out_which_have_other_units():
    found = nz.unit_sum(over(kept_samples=[3, 40]))
    assert "posterior_moments" not in group_names(found)
    top = nz.top_features(found, F)
    np.testing.assert_allclose(top.groupby("component")["weight"].sum(), 1.0)
    assert np.all(top["share_low"] < top["share_high"])


def test_results_are_read_as_those_in_memory(tmp_path):
    found, model = over(kept_samples=[3, 40], draws=20), gamma(None, shape=(F, 1))
    assert nz.predict(found, model).shape == (2, 20, F, 2)
    assert group(nz.align(found), "posterior")["W"].shape == (2, 20, F, K)
    with pytest.warns(NmfZooWarning, match="too few to judge"):
        assert len(nz.check_convergence(found))
    assert set(nz.top_features(found, 1)["component"]) == set(range(K))
    assert nz.report(found, tmp_path / "r.html", model).exists()
    labels = {"obs": [f"s{n}" for n in range(N)]}
    rows, cols = np.divmod(np.arange(2 * F), 2)
    for background in (TABLE, (BACKGROUND, TABLE[:1])):
        source = Given(X, exposure=EXPOSURE, background=background, coords=labels)
        exposed = over(source, kept_samples=[40, 3], draws=2, store=tmp_path / f"{len(background)}.zarr")
        assert list(nz.predict(exposed, gamma(None, shape=(F, 1)))["obs"]) == ["s40", "s3"]
        fitted = as_fitted(nz.read(gamma(None, shape=(F, 1))), exposed)
        np.testing.assert_array_equal(fitted.likelihood.exposure, EXPOSURE[[[40, 3]]])
        table = background if background is TABLE else BACKGROUND * TABLE[:1]
        np.testing.assert_array_equal(fitted.background_at(rows, cols), table[:, [40, 3]].ravel())
    with pytest.raises(InputError, match="expected one that holds H"):
        nz.predict(undisturbed(), model)
