"""``nz.Gibbs(temperatures=)``: what it takes, what it reports, and that neither threads nor a stop change a draw."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import judge, verdict_on
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.evidence.replicas import equal_steps
from tests.statistical.test_smc_posterior import case

X = np.random.default_rng(1).poisson(3.0, (3, 4))
RUN = {"random_seed": 1, "quiet": True, "start": "random"}
ENGINE = nz.Gibbs(temperatures=3)


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, 2)


@pytest.fixture(scope="module")
def result(model):
    return nz.sample(30, tune=60, chains=2, cores=1, engine=ENGINE, model=model, **RUN)


def stats_of(idata):
    return _compat.group(idata, "sample_stats")


def W_of(idata):
    return _compat.group(idata, "posterior")["W"].to_numpy()


@pytest.mark.parametrize(
    "wrong", [1, 0, True, (1.0,), (0.9, 0.5), (1, 1, 0), (1, 0.5, -0.1), (1, 0, 0.5), "many", 2.5, [[1, 0]], ("1", "a")]
)
def test_what_is_no_ladder(wrong):
    with pytest.raises(InputError, match=r"temperatures: got .*; expected an integer >= 2, or numbers that fall from"):
        nz.Gibbs(temperatures=wrong)


def test_what_is_a_ladder():
    assert nz.Gibbs(temperatures=np.int64(4)).temperatures == 4
    assert nz.Gibbs(temperatures=[1, 0.5, 0]).temperatures == (1.0, 0.5, 0.0)
    assert nz.Gibbs().temperatures is None


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: nz.gap(X, 1), "temperatures= needs priors, and W has none"),
        (lambda: nz.gamma_nmf(X, 2, prior="hpf"), "temperatures= needs known hyperparameters, and .* unknown"),
        (lambda: nz.gamma_nmf(X, 2, known=np.ones((3, 1))), "temperatures= moves whole factors"),
        (lambda: nz.is_nmf(X + 1.0, 2), "temperatures= is for counts"),
    ],
)
def test_models_that_are_refused(declare, message):
    with pytest.raises(UnsupportedModel, match=message):
        nz.sample(2, tune=2, engine=ENGINE, model=declare(), **RUN)


def test_what_is_reported(result):
    stats = stats_of(result)
    assert stats["temperature"].dims == ("chain", "draw", "replica")
    assert stats["exchange_rate"].dims == ("chain", "draw", "pair")
    ladder = stats["temperature"].to_numpy()
    assert np.all(ladder == ladder[:, :1])  # the warm-up is over
    assert np.all(ladder[..., 0] == 1.0)
    assert np.all(ladder[..., -1] == 0.0)
    assert np.all(np.diff(ladder) < 0.0)
    rates = stats["exchange_rate"].to_numpy()
    turns = np.isfinite(rates)
    assert np.all(turns.sum(axis=2) == 1)  # of two pairs, one in turn
    np.testing.assert_array_equal(turns[:, 1:, 0], turns[:, :-1, 1])
    assert np.all((rates[turns] >= 0.0) & (rates[turns] <= 1.0))
    assert np.all(np.diff(stats["round_trips"].to_numpy()) >= 0)
    expected = np.nansum(1.0 - np.nanmean(rates, axis=1), axis=1)
    np.testing.assert_allclose(stats["barrier"].isel(draw=-1), expected)
    lp = _compat.group(nz.sample(5, tune=5, chains=1, model=nz.gamma_nmf(X, 2), **RUN), "sample_stats")["lp"]
    assert abs(float(stats["lp"].mean()) - float(lp.mean())) < 40.0


def test_threads_change_nothing(model, result):
    again = nz.sample(30, tune=60, chains=2, cores=4, engine=ENGINE, model=model, **RUN)
    np.testing.assert_array_equal(W_of(again), W_of(result))
    np.testing.assert_array_equal(stats_of(again)["exchange_rate"], stats_of(result)["exchange_rate"])


def test_a_run_that_was_stopped_goes_on(model, result, tmp_path):
    run = {"tune": 60, "chains": 2, "cores": 1, "engine": ENGINE, "model": model, "checkpoint": tmp_path / "c", **RUN}
    part = nz.sample(30, on_step=lambda step: step.number >= 75, **run)
    assert str(part.attrs["status"]).startswith("stopped by on_step")
    whole = nz.sample(30, **run)
    np.testing.assert_array_equal(W_of(whole), W_of(result))
    np.testing.assert_array_equal(stats_of(whole)["round_trips"], stats_of(result)["round_trips"])


def test_missing_cells_a_known_factor_and_a_store(tmp_path):
    holes = np.where(np.arange(12).reshape(3, 4) == 5, np.nan, X)
    path = tmp_path / "draws.zarr"
    idata = nz.sample(5, tune=3, chains=2, engine=ENGINE, model=nz.gamma_nmf(holes, 2), store=path, **RUN)
    assert stats_of(idata)["temperature"].dims == ("chain", "draw", "replica")
    known = pm.do(nz.gamma_nmf(X, 2), {"W": np.full((3, 2), 0.5)})
    idata = nz.sample(5, tune=3, chains=1, engine=ENGINE, model=known, **RUN)
    assert "W" not in _compat.group(idata, "posterior")


def test_temperatures_of_ones_own_keep_their_ends(model):
    engine = nz.Gibbs(temperatures=(1.0, 0.6, 0.2))
    idata = nz.sample(3, tune=50, chains=1, engine=engine, model=model, **RUN)
    ladder = stats_of(idata)["temperature"].to_numpy()[0, 0]
    assert (ladder[0], ladder[-1]) == (1.0, 0.2)
    assert ladder[1] != 0.6  # was adapted
    untuned = nz.sample(3, tune=0, chains=1, engine=engine, model=model, **RUN)
    np.testing.assert_array_equal(stats_of(untuned)["temperature"][0, 0], [1.0, 0.6, 0.2])


def test_equal_steps():
    ladder = np.array([1.0, 0.5, 0.0])
    np.testing.assert_allclose(equal_steps(ladder, np.array([0.3, 0.3])), ladder)
    np.testing.assert_allclose(equal_steps(ladder, np.array([0.2, 0.6])), [1.0, 1.0 / 3.0, 0.0])
    flat = equal_steps(np.array([1.0, 0.9, 0.1, 0.0]), np.zeros(3))
    assert np.all(np.diff(flat) < 0.0)


def test_modes_are_visited_and_said():
    """Two modes of comparable mass: every chain is in both, and began in one; the verdict does not call it one mode."""
    of = case()
    model = nz.gamma_nmf(
        of.x, 2, alpha_w=of.shape_w, beta_w=of.rate_w, alpha_h=of.shape_h, beta_h=of.rate_h, exposure=of.exposure
    )
    engine = nz.Gibbs(temperatures=5, trajectories="always")
    idata = nz.sample(400, tune=200, chains=2, engine=engine, model=model, random_seed=1, quiet=True)
    posterior = _compat.group(idata, "posterior")
    share = of.statistics({name: posterior[name].to_numpy() for name in "WH"})["share"]
    assert np.all((share.mean(axis=1) > 0.05) & (share.mean(axis=1) < 0.95))
    found = judge(idata, "W", "H")
    assert "round trips or more in each chain" in " ".join(one.text for one in found.advice)
    assert not any("round trip" in text for text in found.warnings)
    assert idata.attrs["start"] == "search"
    assert "the mode that the search found" not in verdict_on(idata).text


def test_replicas_that_do_not_go_round_are_said(result):
    stats = stats_of(result).copy(deep=True)
    stats["round_trips"][:] = 0
    verdict = verdict_on(_compat.with_groups(result, {"sample_stats": stats}))
    texts = [one.text for one in judge(_compat.with_groups(result, {"sample_stats": stats}), "W", "H").advice]
    assert verdict.is_warning
    assert any("no replica went from the posterior to the hottest temperature and back" in text for text in texts)
