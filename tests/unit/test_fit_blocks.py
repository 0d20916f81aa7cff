"""``nz.fit(..., data=...)``: with one block the iterates in memory, with many the same sums in another order."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, NmfZooWarning, UnsupportedModel
from nmf_zoo.results import loading
from nmf_zoo.structure import Outer
from nmf_zoo.verbs.block_source import CutArray, as_data, as_source
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0  # no sample and no feature is empty
X[:, 0] += 1.0
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
EXPOSURE = RNG.gamma(5.0, 0.2, N)
OF_FEATURES = RNG.gamma(5.0, 0.2, (F, 1))
OF_W = np.ones((F, K))
KNOWN = RNG.gamma(1.0, 1.0, (F, 1))
RUN = {"tol": 0, "random_seed": 1, "quiet": True, "cores": 1}
ENGINES = {
    "vb": nz.VB(accelerate=None),
    "vb, momentum": nz.VB(),
    "vb, single": nz.VB(precision="float32"),
    "em": nz.EM(accelerate=None),
    "em, momentum": nz.EM(accelerate="momentum"),
    "em, log": nz.EM(accelerate="momentum", mode="log"),
}


Given = partial(CutSamples, block=17)
TABLE = np.random.default_rng(2).gamma(1.0, 0.5, (F, N))
BACKGROUNDS = {"row": TABLE[:1], "pair": (OF_FEATURES, TABLE[:1]), "table": TABLE}
LISTED, OF_LISTED = (sp.csc_array(np.where(MASK, own, 0)) for own in (X + 1, TABLE))


def gamma(X, **more):
    return nz.gamma_nmf(X, K, alpha_w=1.2, beta_w=0.5, alpha_h=[[1.1], [1.3], [1.5]], beta_h=0.7, **more)


def flat(X, **more):
    return nz.gap(X, K, alpha_h=1.0, beta_h=0.5, **more)


def weights(idata):
    fit = group(idata, "fit")
    for name in ("W", "W_new"):  # of VB, whose posterior in memory is draws
        if f"{name}_shape" in fit:
            return (fit[f"{name}_shape"] / fit[f"{name}_rate"]).to_numpy()[0]
    return group(idata, "posterior")["W"].to_numpy()[0, 0]


def objective(idata):
    return group(idata, "fit")["objective"].to_numpy()[0]


def declared(make=gamma, **more):
    return make(None, shape=(F, 1), **more)


def in_memory(X, engine, make=gamma, **more):
    return nz.fit(model=make(X, **more), engine=engine, max_iter=25, search=None, draws=1, **RUN)


def over(data, engine, model=None, **more):
    return nz.fit(model=model or declared(), data=data, engine=engine, **{"max_iter": 25, **RUN, **more})


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("form", [sp.csc_array, np.asarray], ids=["sparse", "dense"])
def test_one_block_is_the_run_in_memory(engine, form):
    whole, one = in_memory(form(X), engine), over(CutArray(form(X), N), engine)
    np.testing.assert_array_equal(weights(one), weights(whole))
    np.testing.assert_allclose(objective(one), objective(whole), rtol=1e-6 if "single" in str(engine) else 1e-13)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("form", [sp.csc_array, np.asarray], ids=["sparse", "dense"])
def test_many_blocks_add_up(engine, form):
    is_single = engine.precision == "float32"
    whole, many = in_memory(form(X), engine), over(CutArray(form(X), 7), engine)
    rtol = 1e-4 if is_single else 1e-10
    np.testing.assert_allclose(weights(many), weights(whole), rtol=rtol, atol=rtol * weights(whole).max())
    gains = np.diff(objective(many)) * (1 if isinstance(engine, nz.VB) else -1)
    assert gains.min() >= -(1e-6 if is_single else 1e-12) * abs(objective(many)[-1])
    point = group(many, "posterior")
    assert point["H"].shape == (1, 1, K, N)
    values = {name: point[name].to_numpy()[0, 0] for name in ("W", "H")}
    lp = nz.read(gamma(form(X))).log_joint(values)
    np.testing.assert_allclose(group(many, "sample_stats")["lp"].to_numpy(), lp, rtol=1e-10)


@pytest.mark.parametrize("engine", ["vb", "em, momentum"])
@pytest.mark.parametrize("form", [sp.csc_array, np.asarray], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", BACKGROUNDS)
def test_one_block_with_a_background_is_the_run_in_memory(engine, form, name):
    engine, background = ENGINES[engine], BACKGROUNDS[name]
    whole = in_memory(form(X), engine, background=background)
    one = over(CutSamples(form(X), N, background=background), engine)
    np.testing.assert_array_equal(weights(one), weights(whole))
    np.testing.assert_allclose(objective(one), objective(whole), rtol=1e-13)


def test_a_pair_is_never_multiplied_out(monkeypatch):
    """Of sparse blocks, whatever goes over them."""
    monkeypatch.setattr(Outer, "table", None)
    data = Given(sp.csc_array(X), exposure=EXPOSURE, background=BACKGROUNDS["pair"])
    for engine in ("em", "vb", nz.VB(batch_size=9)):
        found = over(data, engine, max_iter=2, restarts=2)
    assert nz.predict(found, declared(), random_seed=1).shape[-2:] == (F, N)
    nz.fit(model=declared(flat), data=data, engine="mcem", max_iter=2, **RUN)
    nz.sample(2, tune=1, chains=1, model=declared(), data=data, random_seed=1, quiet=True)
    held_out, how = nz.Holdout(engine="vb", max_iter=2, tol=0), {"restarts": 1, "random_seed": 1, "quiet": True}
    nz.select_rank(lambda rank: nz.gamma_nmf(None, rank, shape=(F, 1)), [1], method=held_out, data=data, **how)


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_the_background_of_another_block_is_seen(name):
    """A table goes by its columns: none of the forms is blind to which samples they are."""
    source, turned = Given(X, background=BACKGROUNDS[name]), Given(X, background=BACKGROUNDS[name])
    turned.read = lambda number: source.read(number)._replace(background=source.read((number + 1) % 2).background)
    turned.bounds = source.bounds = [0, 30, 60]
    found, wrong = (over(own, "vb") for own in (source, turned))
    expected = in_memory(X, nz.VB(), background=BACKGROUNDS[name])
    np.testing.assert_allclose(objective(found), objective(expected), rtol=1e-11)
    assert not np.allclose(objective(wrong), objective(expected), rtol=1e-6)


MODELS = {
    "exposure of samples": (Given(sp.csc_array(X), exposure=EXPOSURE), gamma, {"exposure": EXPOSURE[None]}, {}),
    "exposure of features": (Given(X), gamma, {"exposure": OF_FEATURES}, {"exposure": OF_FEATURES}),
    "background": (Given(sp.csc_array(X)), gamma, {"background": OF_FEATURES}, {"background": OF_FEATURES}),
    "mask": (Given(X, mask=MASK), gamma, {"mask": MASK}, {}),
    "NaN": (Given(np.where(MASK, X, np.nan)), gamma, {"mask": MASK}, {}),
    "stored": (
        Given(sp.csc_array(np.where(MASK, X + 1, 0)), observed="stored"),
        lambda X, **more: gamma(None if X is None else sp.csc_array(np.where(MASK, X + 1, 0)), **more),
        {"observed": "stored"},
        {},
    ),
    **{
        f"background, {name}": (Given(X, background=own), gamma, {"background": own}, {})
        for name, own in BACKGROUNDS.items()
    },
    "sparse, background, pair": (
        Given(sp.csc_array(X), exposure=EXPOSURE, background=BACKGROUNDS["pair"]),
        lambda X, **more: gamma(None if X is None else sp.csc_array(X), **more),
        {"exposure": EXPOSURE[None], "background": BACKGROUNDS["pair"]},
        {},
    ),
    "mask, background": (Given(X, mask=MASK, background=TABLE), gamma, {"mask": MASK, "background": TABLE}, {}),
    "stored, background": (
        Given(LISTED, observed="stored", background=OF_LISTED),
        lambda X, **more: gamma(None if X is None else LISTED, **more),
        {"observed": "stored", "background": OF_LISTED},
        {},
    ),
    "flat W": (Given(X), flat, {}, {}),
    "known component": (Given(X), gamma, {"known": KNOWN}, {"known": KNOWN}),
    "flat W beside a known component": (Given(X), flat, {"known": KNOWN}, {"known": KNOWN}),
    "real numbers": (Given(X / 3), lambda X, **more: gamma(None if X is None else X / 3, **more), {}, {}),
}


@pytest.mark.parametrize("engine", ["em", "vb"])
@pytest.mark.parametrize("name", MODELS)
def test_what_models_and_data_may_have(name, engine):
    data, make, whole, apart = MODELS[name]
    if engine == "vb" and make is flat:
        pytest.skip("VB takes no W without a prior")
    options = nz.EM(accelerate="momentum") if engine == "em" else nz.VB()
    expected = in_memory(X, options, make, **whole)
    found = over(data, options, declared(make, **apart))
    np.testing.assert_allclose(weights(found), weights(expected), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(objective(found), objective(expected), rtol=1e-11)


NEWTON = ["exposure of samples", "background", "background, pair", "mask", "stored", "known component"]


@pytest.mark.parametrize("name", NEWTON)
def test_newton_steps_come_to_an_optimum_of_those_in_memory(name):
    """From where nothing is left to gain in memory; which of its optima that is the start says."""
    data, make, whole, apart = MODELS[name]
    found = over(data, "em", declared(make, **apart), max_iter=150)
    assert_never_rises(found)
    there, own = {"search": None, "draws": 1, "max_iter": 50, **RUN}, group(found, "posterior")
    start = {name: own[name].to_numpy()[0, 0] for name in ("W_new" if "W_new" in own else "W", "H")}
    further = nz.fit(model=make(X, **whole), engine="em", initvals=start, **there)
    np.testing.assert_allclose(objective(further)[-1], objective(found)[-1], rtol=1e-6)


def nearby(idata):
    """W of a result but for some percent: runs from there see its optimum."""
    W = group(idata, "posterior")["W"].to_numpy()[0, 0]
    return {"W": W * np.random.default_rng(2).uniform(0.9, 1.1, W.shape)}


def assert_never_rises(idata):
    assert np.all(np.diff(objective(idata)) <= 1e-12 * np.abs(objective(idata)[1:]))


@pytest.mark.parametrize(
    ("of_model", "of_samples"),
    [({}, {}), ({"background": OF_FEATURES}, {}), ({}, {"background": OF_FEATURES})],
    ids=["alone", "beside a background", "beside a background of samples"],
)
def test_sizes_of_rows_are_found_at_once(of_model, of_samples):
    """Where means are W H alone; a background does not scale with W."""
    sizes = 10.0 ** np.linspace(-3, 3, F)[:, None]
    first = [
        objective(over(Given(X, **of_samples), "em", declared(**of_model), initvals={"W": W}, max_iter=1))
        for W in (OF_W, sizes * OF_W)
    ]
    assert np.allclose(*first, rtol=1e-10) == (not of_model | of_samples)


def test_newton_steps_of_few_components_come_to_the_same_optimum(monkeypatch):
    """With second derivatives of some components as with those of all. Long: fits to the optimum."""
    there = over(CutArray(X, 7), "em", max_iter=200)
    start = {"initvals": nearby(there), "max_iter": 200}
    runs = {name: over(CutArray(X, 7), nz.EM(accelerate=name), **start) for name in ("newton", "momentum")}
    monkeypatch.setattr("nmf_zoo.inference.counts.curvature.MOST_ACTIVE", 2)
    runs["few"] = over(CutArray(X, 7), "em", **start)
    for name, found in runs.items():
        assert_never_rises(found)
        np.testing.assert_allclose(objective(found)[-1], objective(there)[-1], rtol=1e-6, err_msg=name)
    paths = [objective(found)[:20] for found in runs.values()]
    assert not any(np.allclose(one, other) for one, other in zip(paths, [*paths[1:], paths[0]], strict=True))


def test_samples_are_folded_in_where_w_is_known():
    W = RNG.gamma(1.0, 1.0, (F, K))
    whole = nz.fit(
        model=pm.do(gamma(X), {"W": W}), engine=nz.EM(accelerate="momentum"), search=None, max_iter=60, **RUN
    )
    found = over(CutArray(X, 7), "em", pm.do(declared(), {"W": W}), max_iter=60)
    np.testing.assert_allclose(group(found, "posterior")["H"], group(whole, "posterior")["H"], rtol=1e-8)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_where_h_lies_makes_no_difference(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "MOST_READ", 8 * K * N - 1)  # bytes: all that has a number for each sample is more
    path = tmp_path / "result.zarr"
    inside, outside = (over(CutArray(X, 7), engine, store=store) for store in (None, path))
    again = nz.load(path)
    for found in (outside, again):
        for name in ("posterior", "fit", "sample_stats"):
            assert set(group(found, name).data_vars) == set(group(inside, name).data_vars)
            for variable, array in group(inside, name).data_vars.items():
                there = group(found, name)[variable]
                assert there.variable._in_memory == (name == "fit" and "obs" not in there.dims), variable
                np.testing.assert_array_equal(there, array, err_msg=variable)
        assert found.attrs["blocks"] == 9
    part = group(outside, "posterior")["H"].sel(obs=slice(10, 12))
    np.testing.assert_array_equal(part, group(inside, "posterior")["H"][..., 10:13])
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.zarr"]  # what the run kept on the way is gone


def test_where_the_blocks_lie_makes_no_difference(tmp_path):
    pytest.importorskip("zarr")
    nz.write_blocks(tmp_path / "x.zarr", X)
    np.save(tmp_path / "x.npy", X)
    stored, mapped = (nz.open_blocks(tmp_path / name, block=7) for name in ("x.zarr", "x.npy"))
    for inside, outside in ((sp.csc_array(X), stored), (X, mapped)):
        found, expected = over(outside, "vb"), over(CutArray(inside, 7), "vb")
        np.testing.assert_array_equal(weights(found), weights(expected))


def test_results_do_not_depend_on_the_threads():
    one, two = (over(CutArray(sp.csc_array(X), 7), "vb", cores=cores) for cores in (1, 2))
    np.testing.assert_array_equal(weights(one), weights(two))


def test_a_run_that_is_stopped_keeps_what_it_has(tmp_path):
    found = over(CutArray(X, 7), "em", on_step=lambda step: step.number == 3, store=tmp_path / "r.zarr")
    assert len(objective(found)) == 3
    assert group(found, "fit")["status"].item() == "stopped by on_step"


def test_the_end_is_told():
    with pytest.warns(NmfZooWarning, match="did not converge"):
        over(CutArray(X, 7), "em", quiet=False, progressbar=False, tol=1e-9)


REFUSED = {
    "model with data": (lambda: over(X, "em", gamma(X)), InputError, "declare the model with X=None, shape=(12, 1)"),
    "engine": (
        lambda: over(X, "hmm_exact", declared(flat)),
        UnsupportedModel,
        "holds all of X in memory: data= is for",
    ),
    "path": (lambda: over("x.zarr", "em"), InputError, "nz.open_blocks"),
    "features": (lambda: over(X[:5], "em"), InputError, "got 5 features; expected 12"),
    "turned": (lambda: over(X.T, "em"), InputError, "transpose it"),
    "inner": (lambda: over(X, nz.EM(inner=2)), UnsupportedModel, "inner=2 takes more than one pass"),
    "start": (lambda: over(X, nz.VB(start="nndsvd")), UnsupportedModel, "use 'random'"),
    "order": (lambda: over(X, nz.VB(order="paisley")), UnsupportedModel, "use 'cemgil'"),
    "minibatches of no sample": (
        lambda: over(X, nz.VB(batch_size=0)),
        InputError,
        "batch_size: got 0; expected an integer >= 1",
    ),
    "steps without minibatches": (
        lambda: over(X, nz.VB(exponent=0.6)),
        InputError,
        "exponent: got 0.6 without batch_size; expected batch_size=n beside exponent; or leave it out",
    ),
    "minibatches in memory": (lambda: in_memory(X, nz.VB(batch_size=9)), UnsupportedModel, "batch_size=9 is for data="),
    "minibatches of a known W": (
        lambda: over(X, nz.VB(batch_size=9), pm.do(declared(), {"W": OF_W})),
        UnsupportedModel,
        "W is known, and minibatches are steps of its q",
    ),
    "minibatches of powers": (
        lambda: over(X + 1, nz.VB(batch_size=9), nz.is_nmf(None, K, alpha_w=2.0, shape=(F, 1))),
        UnsupportedModel,
        "batch_size=9 is for counts",
    ),
    "minibatches on a cluster": (lambda: over(X, nz.VB(batch_size=9), executor=object()), InputError, "one another"),
    "unknown": (
        lambda: over(X, "vb", nz.gamma_nmf(None, K, mean_h=nz.free(tie="all"), shape=(F, 1))),
        UnsupportedModel,
        "mean_h is unknown",
    ),
    "restarts": (lambda: over(X, "em", restarts=2, search=nz.Search()), InputError, "say how many begin anew"),
    "search": (lambda: over(X, "em", search="long"), InputError, "None, 'auto' or nz.Search"),
    "search and start": (lambda: over(X, "em", search=nz.Search(), initvals={"W": OF_W}), InputError, "initvals say"),
    "variables": (lambda: over(X, "em", var_names=["W"]), InputError, "var_names: got ['W'] with data="),
    "initvals": (lambda: over(X, "em", initvals={"H": np.ones((K, N))}), InputError, "samples come with data="),
    "store": (lambda: over(X, "em", store="x.nc"), InputError, "a new name that ends in .zarr"),
    "store alone": (lambda: nz.fit(model=gamma(X), store="x.zarr"), InputError, "None without data="),
    "negative": (lambda: over(-X, "em"), InputError, "the first at feature 0, sample 0"),
    "infinite": (lambda: over(np.where(X > 20, np.inf, X), "em"), InputError, "not finite"),
    "zeros": (lambda: over(0 * X, "em"), InputError, "no positive cell"),
    "two exposures": (
        lambda: over(Given(X, exposure=EXPOSURE), "em", declared(exposure=OF_FEATURES)),
        InputError,
        "beside those of the model",
    ),
    "bad exposure": (lambda: over(Given(X, exposure=-EXPOSURE), "em"), InputError, "one per sample"),
    "two backgrounds": (
        lambda: over(Given(X, background=TABLE), "em", declared(background=OF_FEATURES)),
        InputError,
        "backgrounds of samples beside those of the model; expected one of both; add them up",
    ),
    "backgrounds of some blocks": (
        lambda: over(OfFirst(X, 17, background=TABLE), "em"),
        InputError,
        "data.read(1): got backgrounds of some blocks only; expected backgrounds of all or of none",
    ),
    "negative background": (
        lambda: over(Given(X, background=np.where(np.arange(N) == 20, -1.0, TABLE)), "em"),
        InputError,
        "data.read(1), background: got values from -1.0 to",
    ),
    "background that is no number": (
        lambda: over(Given(X, background=np.where(np.arange(N) == 40, np.nan, TABLE[:1])), "vb"),
        InputError,
        "data.read(2), background: got values that are NaN or infinite (1 of them); expected finite numbers >= 0",
    ),
    "background of other features": (
        lambda: over(Given(X, background=TABLE[1:]), "em"),
        InputError,
        "data.read(0), background: got shape (11, 17); expected a shape that broadcasts to (12, 17)",
    ),
    "sparse background of all cells": (
        lambda: over(Given(sp.csc_array(X), background=sp.csc_array(TABLE)), "em"),
        InputError,
        "data.read(0), background: got a sparse matrix; expected one for a sparse X of which only stored cells",
    ),
}


class OfFirst(CutSamples):
    """What comes with samples comes with those of the first block alone."""

    def read(self, number):
        found = super().read(number)
        return found if number == 0 else found._replace(background=None)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bounds_of_a_source_are_checked():
    source = Given(X)
    source.bounds = [0, 5, 5, N]
    with pytest.raises(InputError, match="integers that rise from 0 to 60"):
        as_source(source)


def test_a_block_of_another_size_is_refused():
    source = Given(X)
    source.read = CutArray(X, 30).read
    with pytest.raises(InputError, match=r"data\.read\(0\): got a table of shape \(12, 30\)"):
        over(source, "em")


def test_labels_in_a_block_are_those_of_its_place():
    table = pd.DataFrame(X, [f"f{row}" for row in range(F)], [f"s{column}" for column in range(N)])
    exposure, source = (
        pd.Series(EXPOSURE, table.columns),
        Given(X, coords={"feature": table.index, "obs": table.columns}),
    )

    def cells(samples):
        source.read = lambda number: samples
        return as_data(source, 0)

    first = table.iloc[:, :17]
    data, found = cells(nz.Samples(first, exposure[:17]))
    np.testing.assert_array_equal(data.values, X[:, :17])
    np.testing.assert_array_equal(found.exposure, EXPOSURE[:17])
    background = pd.DataFrame(TABLE, table.index, table.columns).iloc[:, :17]
    np.testing.assert_array_equal(cells(nz.Samples(first, background=background))[1].background, TABLE[:, :17])
    of_features = pd.DataFrame(OF_FEATURES, table.index)
    for turned, words in (
        (nz.Samples(first[::-1]), "'feature' that differ from the source's"),
        (nz.Samples(first[first.columns[::-1]]), "'obs' that differ from the source's"),
        (nz.Samples(X[:, :17], exposure[:17][::-1]), "'obs' that differ from X's"),
        (nz.Samples(first, mask=pd.DataFrame(MASK, table.index)[::-1].iloc[:, :17]), "'feature' that differ from X's"),
        (nz.Samples(first, background=background[::-1]), "'feature' that differ from X's"),
        (nz.Samples(X[:, :17], background=background[background.columns[::-1]]), "'obs' that differ from X's"),
        (nz.Samples(first, background=(of_features[::-1], TABLE[:1, :17])), "'feature' that differ from X's"),
    ):
        with pytest.raises(InputError, match=rf"data\.read\(0\)(, background)?: got labels of {words}"):
            cells(turned)


class Busy(CutArray):
    """Notes when one reading begins before another has ended."""

    inside, overlaps = 0, 0

    def read(self, number):
        self.inside += 1
        self.overlaps += self.inside > 1
        time.sleep(0.02)
        found = super().read(number)
        self.inside -= 1
        return found


def test_a_source_is_read_by_one_thread_at_a_time():
    """Of a run the last pass has read the first block in advance when the next run looks at all of them."""
    source = Busy(X, 17)
    for _ in range(3):
        over(source, nz.VB(), max_iter=2)
    assert source.overlaps == 0
