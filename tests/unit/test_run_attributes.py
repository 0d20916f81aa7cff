"""A result says what model it is of: as text and as a graph, in memory, in files and in a report without the data."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.reading.drawing import graph_from_text, make_graph
from nmf_zoo.results import run_attributes
from nmf_zoo.results.run_attributes import GRAPH, MODEL, model_attributes

X = np.random.default_rng(0).poisson(3.0, (5, 8))
RUN = {"draws": 20, "tune": 5, "chains": 2, "random_seed": 1, "quiet": True}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, rank=2, alpha_h=nz.free(tie="obs"), exposure=np.full(X.shape, 2.0))


@pytest.fixture(scope="module")
def result(model):
    return nz.fit(model=model, engine="vb", max_iter=20, draws=3, random_seed=1, quiet=True)


def check(idata, model):
    assert idata.attrs[MODEL] == nz.describe(model)
    assert graph_from_text(idata.attrs[GRAPH]) == make_graph(nz.read(model))


def test_in_memory(result, model):
    check(result, model)
    drawn = nz.gamma_nmf(X, rank=2)
    check(nz.sample(model=drawn, **RUN), drawn)
    boxes = {box.lines[0]: box for row in make_graph(nz.read(model)).rows for box in row}
    assert list(boxes) == ["alpha_h", "W", "H", "exposure", "X"]
    assert [boxes[name].kind for name in boxes] == ["unknown", "unknown", "unknown", "known", "observed"]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_in_files(result, model, suffix, tmp_path):
    if suffix == ".zarr":
        pytest.importorskip("zarr")
    nz.save(result, tmp_path / f"posterior{suffix}")
    check(nz.load(tmp_path / f"posterior{suffix}"), model)


def test_in_a_store_and_after_a_checkpoint(tmp_path):
    pytest.importorskip("zarr")
    model = nz.gamma_nmf(X, rank=2)
    how = {**RUN, "model": model, "checkpoint": tmp_path / "run"}
    first = nz.sample(store=tmp_path / "draws.zarr", **how)
    again = nz.sample(store=tmp_path / "draws.zarr", **how | {"draws": 30})
    for idata in (first, again, nz.load(tmp_path / "draws.zarr")):
        check(idata, model)
    whole = nz.sample(model=model, **RUN | {"draws": 30})
    np.testing.assert_array_equal(_compat.group(again, "posterior")["W"], _compat.group(whole, "posterior")["W"])


def test_a_report_needs_no_data_for_the_model(result, model, tmp_path):
    pytest.importorskip("matplotlib")
    nz.save(result, tmp_path / "posterior.nc")
    loaded = nz.load(tmp_path / "posterior.nc")
    page = nz.report(loaded, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Graph of the model: X ~ Poisson(exposure * (W @ H)), rank 2" in page
    assert nz.describe(model).splitlines()[2] in page
    assert "model_graph" not in page
    loaded.attrs[GRAPH] = "something else"
    page = nz.report(loaded, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "rank 2" in page


def test_very_long_ones_are_left_out(model, monkeypatch):
    structure = nz.read(model)
    assert set(model_attributes(structure)) == {MODEL, GRAPH}
    monkeypatch.setattr(run_attributes, "MOST_TEXT", len(nz.describe(model)))
    assert set(model_attributes(structure)) == {MODEL}
