"""What results of ``nz.fit(..., data=...)`` say, and what is done with them: as of results in memory."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.results.block_store import as_fitted
from nmf_zoo.results.component_order import component_order
from nmf_zoo.results.posterior import open_posterior
from nmf_zoo.verbs.block_source import CutArray
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0  # no sample and no feature is empty
EXPOSURE = RNG.gamma(5.0, 0.2, N)
TABLE = np.random.default_rng(2).gamma(1.0, 0.5, (F, N))
RUN = {"max_iter": 25, "tol": 0, "random_seed": 1, "quiet": True, "cores": 1}
EM = nz.EM(accelerate="momentum")


LABELS = {"feature": [f"f{n}" for n in range(F)], "obs": [f"s{n}" for n in range(N)]}
with_exposure = partial(CutSamples, exposure=EXPOSURE, coords=LABELS)


def declared(**more):
    return nz.gamma_nmf(None, K, shape=(F, 1), **more)


def over(data=None, engine=EM, model=None, **more):
    return nz.fit(model=model or declared(), data=CutArray(X, 7) if data is None else data, engine=engine, **RUN | more)


def in_memory(engine=EM, **more):
    return nz.fit(model=nz.gamma_nmf(X, K, **more), engine=engine, search=None, **RUN)


def test_the_declaration_is_that_of_all_samples():
    found, whole = (idata.attrs["model"].splitlines() for idata in (over(), in_memory()))
    assert found[0] == f"{whole[0]}, in 9 blocks of samples"
    assert found[1:] == whole[1:]
    missing = np.where(RNG.random(X.shape) < 0.1, np.nan, X / 3)
    told = over(missing).attrs["model"].splitlines()
    assert "real values" in told[0]
    assert f"{np.isnan(missing).sum()} cells missing" in told[0]
    told = over(with_exposure(sp.csc_array(X), 7)).attrs["model"].splitlines()
    assert told[1] == "X ~ Poisson(exposure * (W @ H)), rank 3"
    assert told[-1].startswith("exposure: array 1 x 60 in [")


@pytest.mark.parametrize("form", [sp.csc_array, np.asarray], ids=["sparse", "dense"])
@pytest.mark.parametrize("size", [N, 7])
def test_coverage_of_a_point_is_that_in_memory(form, size):
    whole, found = in_memory().attrs["coverage"], over(CutArray(form(X), size)).attrs["coverage"]
    if size == N:
        assert found == whole
    else:  # W and H differ in their last digits, and a draw of a count by one
        assert json.loads(found)["inside"] == pytest.approx(json.loads(whole)["inside"], abs=0.01)


def test_coverage_of_q_takes_its_draws_and_observed_cells_alone():
    """The share of cells inside is near that in memory; missing cells do not count."""
    hidden = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
    found = json.loads(over(hidden, "vb").attrs["coverage"])
    whole = nz.fit(model=nz.gamma_nmf(X, K, mask=~np.isnan(hidden)), engine="vb", search=None, **RUN)
    expected = json.loads(whole.attrs["coverage"])
    assert found["cells"] == expected["cells"] == np.sum(~np.isnan(hidden))
    assert found["inside"] == pytest.approx(expected["inside"], abs=0.03)
    assert found["expected"] == pytest.approx(expected["expected"], abs=0.03)


def test_data_that_vary_more_than_the_model_expects_are_told():
    spread = RNG.poisson(np.outer(np.ones(F), np.full(N, 40.0)) * RNG.gamma(2.0, 0.5, (F, N))).astype(float)
    told = json.loads(over(CutArray(sp.csc_array(spread), 7), "vb").attrs["coverage"])
    assert told["inside"] < told["expected"] - 0.05


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("engine", [EM, nz.VB()], ids=["em", "vb"])
def test_components_are_in_the_order_that_their_sizes_have(engine, is_stored, tmp_path):
    found = over(engine=engine, store=tmp_path / "r.zarr" if is_stored else None)
    order = group(found, "components")
    (H,) = group(found, "posterior")["H"].to_numpy()[0]
    (W,) = group(found, "posterior")["W"].to_numpy()[0]
    sizes = W.sum(axis=0) * H.sum(axis=1)
    np.testing.assert_array_equal(order["order"].to_numpy()[0, 0], np.argsort(-sizes))
    np.testing.assert_allclose(order["share"], np.sort(sizes)[::-1] / sizes.sum(), rtol=1e-12)
    assert component_order(found).equals(order)  # it is taken as it is, and not made again


def test_predictions_need_the_model_that_was_fitted_and_no_data(tmp_path):
    found = over(with_exposure(X, 7), store=tmp_path / "r.zarr")
    whole = nz.gamma_nmf(X, K, exposure=EXPOSURE[None], coords=LABELS)
    expected = nz.predict(found, whole, random_seed=1)
    drawn = nz.predict(found, declared(), random_seed=1)
    assert drawn.equals(expected)
    parts = nz.predict_blocks(found, declared(), width=11, random_seed=1)
    np.testing.assert_array_equal(np.concatenate(list(parts), axis=-1), expected)
    some = ["s40", "s3", "s41"]
    assert nz.predict(found, declared(), samples=some, random_seed=1).equals(expected.sel(obs=some))
    rows, cols = np.array([3, 0, 3]), np.array([41, 2, 40])
    cells = nz.predict(found, declared(), cells=(rows, cols), random_seed=1)
    np.testing.assert_array_equal(cells, expected.to_numpy()[..., rows, cols])
    with pytest.raises(InputError, match="H of 3 components; expected 2, as in the model"):
        nz.predict(found, nz.gamma_nmf(None, 2, shape=(F, 1)))


FORMS = {"row": TABLE[:1], "column": TABLE[:, :1], "pair": (TABLE[:, :1], TABLE[:1]), "table": TABLE}


@pytest.mark.parametrize("name", FORMS)
def test_predictions_have_the_background_that_came_with_the_samples(name, tmp_path):
    data = CutSamples(X, 7, EXPOSURE, coords=LABELS, background=FORMS[name])
    found = over(data, store=tmp_path / "r.zarr")
    whole = nz.gamma_nmf(X, K, exposure=EXPOSURE[None], background=FORMS[name], coords=LABELS)
    expected = nz.predict(found, whole, random_seed=1)
    for result in (found, nz.load(tmp_path / "r.zarr")):
        assert nz.predict(result, declared(), random_seed=1).equals(expected)
        parts = nz.predict_blocks(result, declared(), width=11, random_seed=1)
        np.testing.assert_array_equal(np.concatenate(list(parts), axis=-1), expected)
    some = ["s40", "s3", "s41"]
    assert nz.predict(found, declared(), samples=some, random_seed=1).equals(expected.sel(obs=some))
    told, of_memory = found.attrs["model"].splitlines()[-1], nz.describe(nz.read(whole)).splitlines()
    words = next(line for line in of_memory if line.startswith("background: "))
    assert told == (words if name != "pair" else words.replace("array", "column times row,"))
    table = FORMS[name] if name != "pair" else FORMS[name][0] * FORMS[name][1]
    as_table = over(CutSamples(X, 7, EXPOSURE, background=np.broadcast_to(table, X.shape)))
    assert found.attrs["coverage"] == as_table.attrs["coverage"]
    without = over(CutSamples(X, 7, EXPOSURE), initvals=found)
    assert found.attrs["coverage"] != without.attrs["coverage"]


def test_what_a_result_lacks_of_a_background_is_told(tmp_path):
    """A table without a store, and listed cells of which alone it is known."""
    found = over(CutSamples(X, 7, background=TABLE))
    with pytest.raises(InputError, match=r"model: got a model without the background of X, .* expected one with it"):
        nz.predict(found, declared())
    with_it = nz.gamma_nmf(None, K, shape=(F, N), background=TABLE)
    expected = nz.predict(found, nz.gamma_nmf(X, K, background=TABLE), random_seed=1)
    np.testing.assert_array_equal(nz.predict(found, with_it, random_seed=1), expected)
    assert nz.report(found, tmp_path / "r.html", declared()).exists()
    cells = sp.csc_array(np.where(X > 0, X, 0.0))
    listed = sp.csc_array(np.where(X > 0, TABLE, 0.0))
    stored = over(CutSamples(cells, 7, observed="stored", background=listed), store=tmp_path / "s.zarr")
    with pytest.raises(InputError, match="without the background"):
        next(nz.predict_blocks(stored, declared()))


def test_of_activations_on_disk_those_of_the_samples_are_read(tmp_path):
    found = over(store=tmp_path / "r.zarr")
    H = group(found, "posterior")["H"].to_numpy()[0, 0]
    posterior = open_posterior(found, as_fitted(nz.read(declared()), found))
    for cols in (np.arange(10, 14), np.array([30, 2, 31])):
        (draw,) = posterior.of_samples(cols)
        np.testing.assert_array_equal(draw.H, H[:, cols])


def test_reports_take_the_model_that_was_fitted(tmp_path):
    found = over()
    for number, model in enumerate((None, declared())):
        text = nz.report(found, tmp_path / f"{number}.html", model).read_text(encoding="utf-8")
        assert "in 9 blocks of samples. The result holds none of them" in text
        assert "lie inside their 90 % predictive" in text
        assert "the data came in blocks" in text
    with pytest.raises(InputError, match="W of shape"):
        nz.report(found, tmp_path / "x.html", nz.gamma_nmf(None, K, shape=(F + 1, 1)))


@pytest.mark.parametrize("engine", [EM, nz.VB()], ids=["em", "vb"])
def test_a_fit_begins_with_the_weights_of_a_result(engine):
    some = nz.fit(model=nz.gamma_nmf(X[:, :30], K), engine=EM, search=None, **RUN)
    W = group(some, "posterior")["W"].to_numpy()[0, 0]
    found, expected = (over(engine=engine, initvals=start) for start in (some, {"W": W}))
    np.testing.assert_array_equal(group(found, "posterior")["W"], group(expected, "posterior")["W"])
    assert over(initvals=over(), engine=engine).attrs["blocks"] == 9


def test_ctrl_c_in_what_follows_a_fit_leaves_the_fit():
    class Stops(CutArray):
        is_over = False

        def read(self, number):
            if self.is_over:
                raise KeyboardInterrupt
            return super().read(number)

    source = Stops(X, 7)

    def last(step):
        source.is_over = step.number == RUN["max_iter"]

    with pytest.warns(NmfZooWarning, match="stopped by the user and left out; the result is kept") as told:
        found = over(source, on_step=last)
    assert [str(warning.message).partition(":")[0] for warning in told] == [
        "lp",
        "the share of cells inside predictive intervals",
    ]
    assert np.isnan(group(found, "sample_stats")["lp"].item())
    assert "coverage" not in found.attrs
    assert group(found, "fit")["objective"].shape == (1, RUN["max_iter"])
