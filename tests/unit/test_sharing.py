"""Data are not copied on their way from the model to the kernels and to the result, and nobody writes into them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import newton
from nmf_zoo.inference.shared.layout import compress, turn
from nmf_zoo.runtime import memory
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import CHUNK, Dense, Factorisation, is_rising
from tests.structures import gamma, model

COUNTS = sp.csr_array(np.random.default_rng(3).poisson(0.3, (30, 20)))
QUIET = {"random_seed": 1, "quiet": True}


@pytest.fixture(scope="module")
def declared():
    return nz.gamma_nmf(COUNTS, 2)


def observed(declared):
    return declared.rvs_to_values[declared["X"]].data


def test_reading_shares_the_cells_of_the_model(declared):
    cells = nz.read(declared).data
    assert np.shares_memory(cells.values, observed(declared))
    assert np.shares_memory(cells.rows, declared["cell_feature"].get_value(borrow=True))
    assert cells.rows.dtype == cells.cols.dtype == np.int32


def test_cells_in_the_order_of_the_longer_side_are_not_copied(declared):
    cells = nz.read(declared).data
    layout = compress(nz.read(declared))
    assert np.shares_memory(layout.values, cells.values)
    assert np.shares_memory(layout.indices, cells.cols)


@pytest.mark.parametrize("run", ["em", "vb", "gibbs"])
def test_no_engine_writes_into_them(declared, run):
    before = observed(declared).copy()
    if run == "gibbs":
        nz.sample(3, tune=2, chains=2, model=declared, **QUIET)
    else:
        nz.fit(engine=run, max_iter=3, model=declared, **QUIET)
    np.testing.assert_array_equal(observed(declared), before)


def test_the_result_shows_them_without_a_copy_and_read_only(declared):
    result = nz.fit(engine="em", max_iter=2, model=declared, **QUIET)
    shown, constants = (_compat.group(result, name) for name in ("observed_data", "constant_data"))
    X = shown["X"].values
    assert np.shares_memory(X, observed(declared))
    assert np.shares_memory(constants["cell_obs"].values, declared["cell_obs"].get_value(borrow=True))
    with pytest.raises(ValueError, match="read-only"):
        X[0] = 1.0


def test_cells_show_labels_of_their_own_where_there_are_some():
    names = [f"gene {i}" for i in range(30)]
    result = nz.fit(engine="em", max_iter=2, model=nz.gamma_nmf(COUNTS, 2, coords={"feature": names}), **QUIET)
    shown, rows = _compat.group(result, "observed_data"), COUNTS.tocoo().coords[0]
    assert shown["feature"].values.tolist() == [names[row] for row in rows]
    np.testing.assert_array_equal(shown["obs"], COUNTS.tocoo().coords[1])


def test_turned_cells_are_those_of_a_stable_sort(declared):
    layout = compress(nz.read(declared))
    order = np.argsort(layout.indices, kind="stable")
    major = np.repeat(np.arange(30), np.diff(layout.indptr))
    turned = turn(layout, 20)
    np.testing.assert_array_equal(turned.indices, major[order])
    np.testing.assert_array_equal(turned.values, layout.values[order])
    np.testing.assert_array_equal(turned.indptr, np.r_[0, np.cumsum(np.bincount(layout.indices, minlength=20))])
    assert turned.indices.dtype == np.int32
    assert turned.indptr.dtype == np.int64


def test_the_second_side_is_narrow_only_where_that_loses_nothing(declared):
    counts, fractions = COUNTS.astype(float), COUNTS.astype(float)
    fractions.data += 0.1
    for X, dtype in ((counts, np.float32), (fractions, np.float64)):
        structure = nz.read(nz.gamma_nmf(X, 2))
        steps = newton.CoordinateDescent(structure, SERIAL, compress(structure))
        assert steps.layouts[1].values.dtype == dtype


def test_narrow_values_give_the_same_bits(declared, monkeypatch):
    narrow = nz.fit(engine="em", max_iter=5, model=declared, **QUIET)
    monkeypatch.setattr(newton, "narrow", lambda values: values)
    wide = nz.fit(engine="em", max_iter=5, model=declared, **QUIET)
    for name in ("W", "H"):
        np.testing.assert_array_equal(*(_compat.group(result, "posterior")[name] for result in (narrow, wide)))


def test_integers_are_checked_to_the_last_part():
    values = np.ones((2, CHUNK))
    assert whole(values).is_integer
    values[-1, -1] = 0.5
    assert not whole(values).is_integer


def whole(values) -> Factorisation:
    structure = model(np.ones((2, 3)), 1, gamma(1.0, 1.0), gamma(1.0, 1.0))
    return type(structure)(likelihood=structure.likelihood, W=structure.W, H=structure.H, data=Dense(values=values))


def test_rising_cells():
    assert is_rising(np.array([0, 0, 1]), np.array([1, 2, 0]))
    assert not is_rising(np.array([0, 0, 1]), np.array([2, 1, 0]))
    assert not is_rising(np.array([0, 0]), np.array([1, 1]))
    assert is_rising(np.array([], np.int32), np.array([], np.int32))


def test_freed_memory_goes_back_between_the_stages_of_a_large_run(declared, monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "_trim", asked.append)
    nz.fit(engine="em", max_iter=2, model=declared, **QUIET)
    assert not asked, "a search of the heap costs more than a small run leaves behind"
    monkeypatch.setattr(memory, "WORTHWHILE", 1)
    nz.fit(engine="em", max_iter=2, model=declared, **QUIET)
    assert asked == [0]
    monkeypatch.setattr(memory, "_trim", None)  # another C library
    nz.fit(engine="em", max_iter=2, model=declared, **QUIET)
