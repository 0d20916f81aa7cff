"""``nz.weigh_modes``, ``nz.plot_modes`` and ``nz.pool``: what they return, what is decided, and what they refuse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import judge_components, verdict_on
from nmf_zoo.diagnostics.modes import split_labellings
from nmf_zoo.interfaces.cli.show import summary_lines
from nmf_zoo.reports import source
from nmf_zoo.results.component_order import component_order
from nmf_zoo.results.matching import Components
from nmf_zoo.results.modes import describe_modes
from nmf_zoo.results.posterior import best_chain
from nmf_zoo.workbench.modes import judge
from nmf_zoo.workbench.pooling import apportion
from tests import two_modes

QUICK = {"random_seed": 1, "quiet": True, "cores": 1}


@pytest.fixture(scope="module")
def model():
    return two_modes.merged_model()


@pytest.fixture(scope="module")
def idata(model):
    """Chains 0 and 3 in one mode, 1 and 2 in two others."""
    starts = [*two_modes.MERGED_STARTS, two_modes.MERGED_STARTS[0]]
    return nz.sample(1000, tune=300, chains=4, initvals=starts, model=model, **QUICK)


@pytest.fixture(scope="module")
def weighed(idata, model):
    return nz.weigh_modes(idata, model, **QUICK)


def modes_of(result):
    return _compat.group(result, "modes")


def test_the_group(weighed):
    modes = modes_of(weighed)
    assert modes["log_evidence"].dims == modes["share"].dims == ("mode",)
    assert modes["cosine"].dims == ("mode", "component")
    np.testing.assert_array_equal(modes["mode_of_chain"], [0, 1, 2, 0])
    assert list(modes["verdict"].to_numpy()) == ["decided"] * 3
    assert np.all(np.diff(modes["log_evidence"]) < 0)
    assert float(modes["share"].sum()) == pytest.approx(1.0)
    assert np.all((modes["share_low"] < modes["share"]) & (modes["share"] < modes["share_high"]))
    np.testing.assert_allclose(modes["cosine"][0], 1.0)
    assert float(modes["cosine"][1:].max()) < 0.9
    assert modes.attrs["log_exchanges"] == pytest.approx(np.log(2.0))
    lp = _compat.group(weighed, "sample_stats")["lp"].to_numpy()
    np.testing.assert_allclose(modes["lp"], [lp[[0, 3]].mean(), lp[1].mean(), lp[2].mean()], rtol=1e-9)


def test_one_mode_beside_a_known_component_weighs_what_the_model_does():
    model = nz.gamma_nmf([[3, 0, 1], [1, 2, 0]], rank=2, known=[[0.7], [0.0]])
    idata = nz.sample(1000, tune=100, chains=2, engine="gibbs", model=model, **QUICK)
    modes = modes_of(nz.weigh_modes(idata, model, modes=[[0, 1]], **QUICK))
    exact = nz.evidence(model, "enumeration").attrs["log_evidence"]
    assert modes.attrs["log_exchanges"] == 0.0
    assert abs(float(modes["log_evidence"][0]) - exact) < 4.0 * float(modes["log_evidence_error"][0]) < 0.4


def test_what_was_there_stays(idata, weighed):
    assert "modes" not in _compat.group_names(idata)
    assert set(_compat.group_names(weighed)) == {*_compat.group_names(idata), "modes"}
    np.testing.assert_array_equal(_compat.group(weighed, "posterior")["W"], _compat.group(idata, "posterior")["W"])


def test_same_seed_same_weights_on_any_number_of_cores(idata, model, weighed):
    xr.testing.assert_equal(modes_of(weighed), modes_of(nz.weigh_modes(idata, model, **{**QUICK, "cores": 3})))
    other = nz.weigh_modes(idata, model, random_seed=2, quiet=True)
    assert not modes_of(weighed)["log_evidence"].equals(modes_of(other)["log_evidence"])


def test_the_model_of_the_context_and_modes_of_ones_own(idata, model):
    with model:
        found = modes_of(nz.weigh_modes(idata, modes=[[2], [0, 3]], **QUICK))
    np.testing.assert_array_equal(found["mode_of_chain"], [0, -1, 1, 0])
    assert found.sizes["mode"] == 2


def test_one_mode_has_all_of_it(model):
    start = two_modes.MERGED_STARTS[1]
    idata = nz.sample(300, tune=300, chains=2, initvals=start, model=model, **QUICK)
    weighed = nz.weigh_modes(idata, model, **QUICK)
    found = modes_of(weighed)
    np.testing.assert_array_equal(found["share"], [1.0])
    assert describe_modes(found).startswith("One mode: chains 0, 1 (log evidence -85.")
    assert _compat.group(nz.pool(weighed, random_seed=1), "posterior").sizes["draw"] == 300


def test_aligned_results_are_weighed_as_they_were_drawn(idata, model, weighed):
    aligned = nz.weigh_modes(nz.align(idata), model, **QUICK)
    xr.testing.assert_allclose(modes_of(aligned), modes_of(weighed))


@pytest.mark.parametrize("name", ["modes.nc", "modes.zarr"])
def test_saved_and_loaded(weighed, tmp_path, name):
    nz.save(weighed, tmp_path / name)
    again = nz.load(tmp_path / name)
    xr.testing.assert_equal(modes_of(again), modes_of(weighed))
    assert nz.pool(again, random_seed=1).attrs["pooled"] == describe_modes(modes_of(weighed))
    nz.plot_modes(again)


# -- what is decided -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "errors", "shares", "words"),
    [
        ([-5.0], [9.0], [1.0], ["decided"]),
        ([np.nan], [np.inf], [1.0], ["decided"]),
        ([-5.0, -5.0 - np.log(3.0)], [0.1, 0.1], [0.75, 0.25], ["decided"] * 2),
        ([-5.0, -6.0], [0.8, 0.8], [np.nan] * 2, ["undecided"] * 2),
        ([-5.0, -30.0], [0.1, 0.1], [1.0, 0.0], ["decided", "left out"]),
        ([-5.0, -30.0], [1.5, 1.5], [np.nan] * 2, ["undecided"] * 2),  # 25 < 20 + 3 * 2.1
        ([-5.0, -32.0], [1.5, 1.5], [1.0, 0.0], ["decided", "left out"]),
        ([-5.0, -24.9], [0.0, 0.0], [1.0, np.exp(-19.9)], ["decided"] * 2),
        ([-5.0, -6.0, -90.0], [0.8, 0.8, 2.0], [np.nan, np.nan, 0.0], ["undecided", "undecided", "left out"]),
        ([-5.0, np.nan], [0.1, np.inf], [np.nan] * 2, ["undecided"] * 2),
    ],
)
def test_the_rule(values, errors, shares, words):
    found, verdicts = judge(np.array(values), np.array(errors))
    np.testing.assert_allclose(found, shares, rtol=1e-6)
    assert list(verdicts) == words


def test_undecided_modes_have_no_shares_and_are_not_pooled(idata, model, monkeypatch):
    monkeypatch.setattr("nmf_zoo.workbench.modes.MOST_ERROR", 1e-3)
    with pytest.warns(nz.NmfZooWarning, match=r"3 modes: .*undecided.*errors leave the shares open\. Raise draws="):
        found = nz.weigh_modes(idata, model, random_seed=1, progressbar=False)
    assert np.all(np.isnan(modes_of(found)["share"]))
    with pytest.raises(nz.InputError, match=r"idata: got modes that are undecided; expected .*shares; weigh them"):
        nz.pool(found)


def test_a_table_without_any_way_is_undecided(idata, model, monkeypatch):
    monkeypatch.setattr("nmf_zoo.workbench.modes.MOST_FITTED", 1)
    monkeypatch.setattr("nmf_zoo.inference.evidence.curvature.LARGEST", 1)
    found = modes_of(nz.weigh_modes(idata, model, **QUICK))
    assert set(found["verdict"].to_numpy()) == {"undecided"}
    assert "too large" in str(found["reason"].to_numpy()[0])
    assert np.all(np.isinf(found["log_evidence_error"]))


def test_unlike_components_in_another_order_are_another_mode():
    rng = np.random.default_rng(1)
    W, H = rng.gamma(0.3, size=(1, 20, 3)), rng.gamma(0.3, size=(1, 3, 20))
    orders = [[0, 1, 2], [1, 0, 2], [0, 1, 2], [0, 2, 1]]
    means = Components(*(np.concatenate(each) for each in zip(*((W[..., o], H[:, o]) for o in orders), strict=True)))
    one = [[0, 1, 2, 3]]
    assert split_labellings(one, means, np.array([0, 0, 0])) == one
    assert split_labellings(one, means, np.array([0, 0, 1])) == [[0, 1, 2], [3]]
    assert split_labellings(one, means, np.array([0, 1, 2])) == [[0, 2], [1], [3]]
    assert split_labellings([[0, 1], [2, 3]], means, np.array([0, 1, 2])) == [[0], [1], [2], [3]]


# -- refusals --------------------------------------------------------------------------------------------------------

X = np.array([[1, 0, 2], [2, 1, 0]])
UNSUPPORTED = {
    "flat W": (lambda: nz.gap(X, rank=2), "no prior"),
    "unknown mean": (lambda: nz.gamma_nmf(X, rank=2, mean_h=nz.free("all")), "mean_h is unknown"),
    "normal": (lambda: nz.normal_nmf(X * 1.0, rank=1), "normal"),
    "powers": (lambda: nz.is_nmf(X + 0.5, rank=1), "exponential"),
    "fractions": (lambda: nz.gamma_nmf(X + 0.5, rank=1), "not integers"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_other_models_are_refused_in_one_line(idata, case):
    declare, match = UNSUPPORTED[case]
    with pytest.raises(nz.UnsupportedModel, match=match) as refusal:
        nz.weigh_modes(idata, declare())
    assert "\n" not in str(refusal.value)


def test_other_results_are_refused(idata, model):
    with pytest.raises(nz.InputError, match=r"got a fit; expected the result of nz\.sample"):
        nz.weigh_modes(nz.fit(engine="vb", draws=200, max_iter=5, tol=0, model=model, **QUICK), model)
    with pytest.raises(nz.InputError, match=r"which the model puts at .*give the model they came from"):
        nz.weigh_modes(idata, nz.gamma_nmf(two_modes.MERGED, 2, alpha_w=0.6, alpha_h=0.5, mean_h=5.0))
    with pytest.raises(nz.InputError, match="give the model it came from"):
        nz.weigh_modes(idata, nz.gamma_nmf(two_modes.MERGED, 3))
    with pytest.raises(nz.InputError, match="means and variances only"):
        nz.weigh_modes(nz.sample(100, tune=50, chains=1, keep="moments", model=model, **QUICK), model)
    with pytest.raises(nz.InputError, match=r"got 60 draws in a mode; expected 100 or more; raise draws="):
        nz.weigh_modes(nz.sample(60, tune=50, chains=1, model=model, **QUICK), model, modes=[[0]])
    with pytest.raises(nz.InputError, match=r"expected the result of nz\.sample"):
        nz.weigh_modes(X, model)


def test_chains_on_their_way_are_named(idata, model):
    stats = _compat.group(idata, "sample_stats")
    drift = xr.DataArray(np.outer([0, 1, 0, 0], np.linspace(0, 50, 1000)), dims=("chain", "draw"))
    drifting = _compat.with_groups(idata, {"sample_stats": stats.assign(lp=stats["lp"] + drift)})
    with pytest.raises(nz.InputError, match=r"still on their way \(1\); expected .*settled; draw longer .*modes="):
        nz.weigh_modes(drifting, model)


@pytest.mark.parametrize("modes", [[], [[]], [[0], [0, 1]], [[7]], [0, 1], 3, "ab"])
def test_wrong_modes(idata, model, modes):
    with pytest.raises(nz.InputError, match=r"modes: got .*expected lists of chains"):
        nz.weigh_modes(idata, model, modes=modes)


def test_wrong_numbers(idata, model):
    with pytest.raises(nz.InputError, match="draws"):
        nz.weigh_modes(idata, model, draws=10)
    with pytest.raises(nz.InputError, match="cores"):
        nz.weigh_modes(idata, model, cores=0)


# -- one posterior ---------------------------------------------------------------------------------------------------


def test_pooled_draws_have_the_shares(idata, weighed):
    pooled = nz.pool(weighed, random_seed=1)
    posterior, modes = _compat.group(pooled, "posterior"), modes_of(weighed)
    of_draw = _compat.group(pooled, "sample_stats")["mode"].to_numpy()
    found = np.bincount(of_draw.ravel()) / of_draw.size
    np.testing.assert_allclose(found, modes["share"], atol=1.0 / of_draw.size)
    assert posterior.sizes["chain"] == 4
    assert of_draw.shape == (4, posterior.sizes["draw"])
    W = posterior["W"].to_numpy().reshape(of_draw.size, -1)
    assert len(np.unique(W, axis=0)) == len(W)  # by default no draw is taken twice
    kept = _compat.group(idata, "posterior")["W"].to_numpy()
    source = {row.tobytes(): chain for chain, rows in enumerate(kept.reshape(4, 1000, -1)) for row in rows}
    from_chain = np.array([source[row.tobytes()] for row in W])
    np.testing.assert_array_equal(modes["mode_of_chain"].to_numpy()[from_chain], of_draw.ravel())


def test_pooled_draws_belong_together(weighed):
    """lp goes with its W and H, and the order is chance alone: chains agree."""
    pooled = nz.pool(weighed, draws=2000, random_seed=3)
    posterior, stats = _compat.group(pooled, "posterior"), _compat.group(pooled, "sample_stats")
    model = two_modes.merged_model()
    point = {name: posterior[name].to_numpy()[2, 17] for name in ("W", "H")}
    assert float(stats["lp"][2, 17]) == pytest.approx(lp_of(model, point))
    assert nz.summarise(pooled)["rhat"].max() < 1.02
    assert not {"modes", "warmup_posterior"} & set(_compat.group_names(pooled))
    assert "observed_data" in _compat.group_names(pooled)


@pytest.mark.parametrize("is_aligned", [False, True])
def test_pooled_draws_keep_the_order_of_their_components(weighed, is_aligned):
    """Each draw has the order, and the names, that it had before; none is matched again."""
    names = ["most", "least"]
    before = nz.name_components(weighed, names)
    before = nz.align(before) if is_aligned else before
    pooled = nz.pool(before, draws=100, random_seed=1)
    found = component_order(pooled)
    assert found.identical(_compat.group(pooled, "components"))
    assert list(nz.top_features(pooled, 1)["component"]) == names
    assert found["shown"].all()
    kept, posterior = _compat.group(before, "posterior")["W"].to_numpy(), _compat.group(pooled, "posterior")
    of_draw = {W.tobytes(): own for W, own in zip(_flat(kept), _flat(component_order(before)["order"]), strict=True)}
    expected = [of_draw[W.tobytes()] for W in _flat(posterior["W"])]
    np.testing.assert_array_equal(_flat(found["order"]), expected)
    totals = _flat(posterior["W"]).sum(axis=1) * _flat(posterior["H"]).sum(axis=2)
    sizes = np.take_along_axis(totals / totals.max(), _flat(found["order"]), -1).mean(axis=0)
    np.testing.assert_allclose(found["share"], sizes / sizes.sum(), rtol=0.05)
    assert found["share"].sum() == pytest.approx(1.0)


def _flat(array):
    return np.asarray(array).reshape(-1, *array.shape[2:])


@pytest.mark.parametrize("reference", [None, {"W": np.eye(3)[:, :2], "H": np.eye(3)[:2]}])
def test_pooled_draws_keep_their_alignment(weighed, reference):
    before = nz.align(weighed, reference)
    pooled = nz.pool(before, draws=400, random_seed=1)
    report, was = (_compat.group(one, "alignment") for one in (pooled, before))
    assert set(report) == set(was) - {"mode"}  # which is of draws then, not of chains
    for name in ("W_reference", "H_reference"):
        xr.testing.assert_equal(report[name], was[name])
    order = report["order"].to_numpy()
    changes = [sum(np.any(a != b) for a, b in pairwise(one)) for one in order]
    np.testing.assert_array_equal(report["switches"], changes)
    assert len(nz.summarise_components(pooled)) == 4
    if reference is not None:  # no mode has what it says
        assert "matched" not in report["became"].to_numpy()[:, 1]


def test_components_are_judged_by_the_heaviest_mode(weighed):
    """Chain 1, of a lighter mode, has the highest lp; tables and the verdict take the same reference."""
    stats = _compat.group(weighed, "sample_stats")
    higher = stats["lp"] + xr.DataArray([0.0, 500.0, 0.0, 0.0], dims="chain")
    changed = _compat.with_groups(weighed, {"sample_stats": stats.assign(lp=higher)})
    found = judge_components(changed, "W", "H")
    assert found.attrs["modes"] == describe_modes(modes_of(weighed))
    pd.testing.assert_frame_equal(found, nz.summarise_components(nz.align(changed)))


def test_a_large_report_shows_the_chain_that_tables_do(weighed, monkeypatch):
    """Chain 1, of a lighter mode, has the highest lp."""
    monkeypatch.setattr(source, "MOST_BYTES", 0)
    stats = _compat.group(weighed, "sample_stats")
    higher = stats["lp"] + xr.DataArray([0.0, 500.0, 0.0, 5.0], dims="chain")
    changed = _compat.with_groups(weighed, {"sample_stats": stats.assign(lp=higher)})
    assert source.Source(changed, None, None, "W", "H", None).shown_chain == best_chain(changed) == 3
    chosen = changed.sel(chain=[1, 3])
    assert source.Source(chosen, None, None, "W", "H", None).shown_chain == 3


def lp_of(model, point):
    names = {model.rvs_to_values[variable].name: point[variable.name] for variable in model.free_RVs}
    logs = {name: np.log(point[name.removesuffix("_log__")]) for name in names}
    return float(model.compile_logp(jacobian=False, mode="FAST_COMPILE")(logs))


def test_pooling_is_refused_before_weighing(idata):
    match = r"idata: got a result whose modes have not been weighed; .*call nz\.weigh_modes\(idata, model\) first"
    for refusing in (nz.pool, nz.plot_modes):
        with pytest.raises(nz.InputError, match=match):
            refusing(idata)
    with pytest.raises(nz.InputError):
        nz.pool(X)


@pytest.mark.parametrize("total", [1, 7, 100])
def test_sizes_are_nearest_to_shares(total):
    shares = np.array([0.5, 0.3, 0.2, 0.0])
    sizes = apportion(shares, total)
    assert sizes.sum() == total
    assert np.all(np.abs(sizes - shares * total) < 1.0)


# -- where it is told ------------------------------------------------------------------------------------------------


def made_up(n, verdicts=None, spread=1.0):
    """A result with n modes of one chain each."""
    rng = np.random.default_rng(n)
    values = -100.0 - spread * np.arange(n)
    shares, words = judge(values, np.full(n, 0.1))
    words = words if verdicts is None else np.array(verdicts)
    shares = np.where(words == "undecided", np.nan, shares)
    columns = {"log_evidence": values, "log_evidence_error": np.full(n, 0.1), "share": shares, "verdict": words}
    columns |= {"share_low": 0.9 * shares, "share_high": 1.1 * shares, "lp": values + 5.0}
    modes = xr.Dataset(
        {
            **{name: ("mode", column) for name, column in columns.items()},
            "cosine": (("mode", "component"), rng.uniform(size=(n, 3))),
            "mode_of_chain": ("chain", np.arange(n)),
        },
        coords={"mode": np.arange(n), "chain": np.arange(n)},
    )
    lp = xr.Dataset({"lp": (("chain", "draw"), values[:, None] + rng.normal(size=(n, 50)))}, {"chain": np.arange(n)})
    return _compat.inference_data({"sample_stats": lp, "modes": modes}, {})


def test_the_picture_shows_every_mode(weighed):
    figure = nz.plot_modes(weighed)
    of_lp, of_evidence, of_cosine, of_share = figure.axes[:4]
    assert len(of_lp.containers) == 8  # two halves of four chains
    assert len(of_evidence.containers) == 3
    assert "85" in of_evidence.get_title(loc="left") or "84" in of_evidence.get_title(loc="left")
    assert of_cosine.images[0].get_array().shape == (3, 2)
    widths = [patch.get_width() for patch in of_share.patches]
    np.testing.assert_allclose(widths, modes_of(weighed)["share"])


def test_the_picture_has_words_where_there_are_no_shares():
    figure = nz.plot_modes(made_up(3, ["undecided", "undecided", "left out"]))
    assert [text.get_text() for text in figure.axes[3].texts] == ["undecided", "undecided", "left out"]
    assert not figure.axes[3].patches


@pytest.mark.parametrize("n", [1, 2, 30])
def test_the_picture_has_room(n):
    figure = nz.plot_modes(made_up(n, spread=0.3))
    figure.canvas.draw()
    assert len(figure.axes[1].get_yticklabels()) == n


def test_summaries_and_reports_tell_of_modes(weighed, model, tmp_path):
    sentence = describe_modes(modes_of(weighed))
    assert sentence.startswith("3 modes: chains 0, 3 (log evidence -84.")
    table = nz.summarise_components(nz.align(weighed))
    assert table.attrs["modes"] == sentence
    assert f"modes       {sentence}" in list(summary_lines(weighed, 0))
    page = nz.report(weighed, tmp_path / "report.html", model).read_text(encoding="utf-8")
    assert sentence in page
    assert "The modes that chains are in" in page


def test_another_library_s_group_of_that_name_is_passed_over(idata, tmp_path):
    foreign = _compat.with_groups(idata, {"modes": xr.Dataset({"a": ("b", [1.0])})})
    assert "modes" not in nz.summarise_components(nz.align(foreign)).attrs
    assert not [line for line in summary_lines(foreign, 0) if line.startswith("modes")]
    nz.report(foreign, tmp_path / "report.html")


# -- chains that began by a search -------------------------------------------------------------------------------


def test_chains_begin_in_all_modes_that_bounds_call_near(model):
    """Three modes of comparable mass: by default there is a chain in each, and what found it is told."""
    run = {"draws": 600, "tune": 300, "model": model, **QUICK}
    idata = nz.sample(chains=4, **run)
    search = _compat.group(idata, "search")
    np.testing.assert_array_equal(search["optimum_of_chain"], [0, 1, 2, 0])
    verdict = verdict_on(idata)
    assert "in a mode of its own" in verdict.text
    assert "the mode that the search found" not in verdict.text
    assert verdict.do.startswith("weigh the modes")
    assert "start=" not in verdict.do
    weighed = nz.weigh_modes(idata, model, **QUICK)
    modes = modes_of(weighed)
    np.testing.assert_array_equal(modes["mode_of_chain"], [0, 1, 2, 0])
    np.testing.assert_array_equal(modes["found"], search["found"][:3])
    np.testing.assert_array_equal(modes["way"], search["way"][:3])
    first = int(search["found"][0])
    assert f"share 0.5{str(float(modes['share'][0]))[3]}" in verdict_on(weighed).text
    assert f"found by {first} of {search.attrs['fits'] - search.attrs['left']} fits" in describe_modes(modes)
    one = _compat.group(nz.sample(chains=1, **run), "search")
    np.testing.assert_array_equal(one["optimum_of_chain"], [0])


def test_one_optimum_is_where_all_begin():
    idata = nz.sample(10, tune=20, chains=3, model=nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1), **QUICK)
    np.testing.assert_array_equal(_compat.group(idata, "search")["optimum_of_chain"], [0, 0, 0])


def test_alignment_is_to_the_heaviest_mode(weighed):
    aligned = nz.align(weighed)
    np.testing.assert_array_equal(_compat.group(aligned, "alignment")["mode"], [0, 1, 2, 0])
    modes = modes_of(weighed)
    turned = modes.assign(mode_of_chain=("chain", [2, 0, 1, 2]))
    other = _compat.with_groups(weighed, {"modes": turned})
    assert best_chain(weighed) in (0, 3)
    assert best_chain(other) == 1
    assert "mode" not in _compat.group(nz.align(_without_modes(weighed)), "alignment")


def _without_modes(result):
    groups = {name: _compat.group(result, name) for name in _compat.group_names(result) if name != "modes"}
    return _compat.inference_data(groups, result.attrs)
