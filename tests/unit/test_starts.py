"""Starts read off the data: positive, at the data's scale, near the data, deterministic; initial values still win."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.inference.counts import em, vb
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.structure import Cells, Normal, Poisson
from tests.registered import STARTS
from tests.structures import gamma, model, parameter

RNG = np.random.default_rng(2)
F, N, K = 40, 25, 3
PARTS = np.kron(np.eye(K), np.ones((F // K + 1, 1)))[:F] + 0.01
X = RNG.poisson(20.0 * PARTS @ RNG.dirichlet(np.full(K, 0.2), N).T).astype(float)
X[4], X[:, 6] = 0.0, 0.0
MASK = RNG.random((F, N)) < 0.7
KEY = seed_key(4)


def listed(mask):
    rows, cols = np.nonzero(X if mask is None else mask)
    cells = Cells(rows=rows, cols=cols, values=X[rows, cols], shape=X.shape, is_complete=mask is None)
    return model(X, K, None, None, data=cells)


NORMAL = Normal(sigma=parameter(1.0))
STRUCTURES = {
    "dense": model(X, K, None, None),
    "missing": model(X, K, None, None, mask=MASK),
    "sparse": listed(None),
    "listed": listed(MASK),
    "exposure": model(X, K, gamma(0.5, 2.0), gamma(0.5, 1.0), exposure=RNG.random((F, 1)) + 0.5),
    "background": model(X, K, None, None, background=np.full((1, N), 0.1)),
    "rank above the sides": model(X[:5, :4], 6, None, None),
    "nothing but zeros": model(np.zeros((4, 5)), 2, None, None),
    "one cell": model([[3.0]], 1, None, None),
    "normal": dataclasses.replace(model(X - 3.0, K, None, None), likelihood=NORMAL),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("method", STARTS)
def test_starts_are_positive_at_the_scale_of_the_data_and_repeat(name, method):
    structure = STRUCTURES[name]
    W, Ht = start_factors(structure, KEY, {}, method)
    assert W.shape == structure.W.shape
    assert Ht.shape == structure.H.shape[::-1]
    assert min(W.min(), Ht.min()) > 0.0
    if isinstance(structure.likelihood, Poisson) and method != "random":
        total = max(structure.data.observed_values.sum(), 1.0)
        np.testing.assert_allclose(weigh(structure).total(W, Ht), total, rtol=1e-9)
    again = start_factors(structure, KEY, {}, method)
    np.testing.assert_array_equal(W, again[0])
    np.testing.assert_array_equal(Ht, again[1])
    if structure.rank > 1:
        assert not np.array_equal(W, start_factors(structure, seed_key(5), {}, method)[0])
        assert not np.array_equal(W[:, 0], W[:, 1])


@pytest.mark.parametrize("name", ["dense", "missing", "sparse", "listed", "exposure", "background"])
@pytest.mark.parametrize("method", ["nndsvd", "kmeans++"])
def test_starts_read_off_the_data_are_nearer_to_them(name, method):
    structure = STRUCTURES[name]
    values = {"W": None, "H": None}

    def fit_of(method, key):
        W, Ht = start_factors(structure, key, {}, method)
        return structure.log_joint({**values, "W": W, "H": Ht.T})

    assert min(fit_of(method, seed_key(s)) for s in range(4)) > max(fit_of("random", seed_key(s)) for s in range(4))


@pytest.mark.parametrize("method", ["nndsvd", "kmeans++"])
def test_dense_and_sparse_data_start_alike(method):
    for one, other in (("dense", "sparse"), ("missing", "listed")):
        for a, b in zip(*(start_factors(STRUCTURES[name], KEY, {}, method) for name in (one, other)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("method", ["nndsvd", "kmeans++"])
@pytest.mark.parametrize("size", [3, 12, 40])
def test_data_of_rank_one_start_the_same_in_every_call(method, size):
    """Where a matrix has fewer singular vectors than are asked for, ARPACK goes on in directions that it draws."""
    structure = model(np.outer(np.arange(1.0, size + 1), np.ones(size)), 2, None, None)
    first = start_factors(structure, KEY, {}, method)
    for _ in range(8):
        for one, other in zip(first, start_factors(structure, KEY, {}, method), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", STARTS)
def test_zeros_with_rows_that_nobody_saw(method):
    seen = np.arange(5)[:, None] > np.zeros((1, 4))
    structure = model(np.zeros((5, 4)), 2, gamma(1.0, 1.0), gamma(1.0, 1.0), mask=seen)
    assert all(np.all(np.isfinite(factor)) for factor in start_factors(structure, KEY, {}, method))


@pytest.mark.parametrize("method", STARTS)
def test_what_is_given_or_known_wins(method):
    given = {"W": RNG.random((F, K)) + 0.1}
    W, _ = start_factors(STRUCTURES["dense"], KEY, given, method)
    np.testing.assert_array_equal(W, given["W"])
    W, Ht = start_factors(model(X, K, given["W"], None), KEY, {}, method)
    np.testing.assert_array_equal(W, given["W"])
    np.testing.assert_allclose(W.sum(axis=0) @ Ht.sum(axis=0), X.sum(), rtol=0.2)


@pytest.mark.parametrize("engine", [em, vb])
def test_engines_take_the_option(engine):
    options = em.EM if engine is em else vb.VB
    with pytest.raises(ValueError, match="start: got 'svd'; expected one of"):
        options(start="svd")
    structure = model(X, K, gamma(1.0, 1.0), gamma(1.0, 1.0))
    problem = engine.prepare(structure, options(start="nndsvd"), engine.Workers())
    state = engine.init(problem, KEY, {})
    W = state.W if engine is em else state.W.mean
    np.testing.assert_array_equal(W, start_factors(structure, KEY, {}, "nndsvd")[0])


# -- initial values with labels -----------------------------------------------------------------------------------

NAMES, DAYS = ["b", "a", "c"], pd.period_range("2026-01", periods=4, freq="M")
TABLE = pd.DataFrame(RNG.poisson(5.0, (3, 4)), index=NAMES, columns=DAYS)
W_TABLE = pd.DataFrame(RNG.random((3, 2)) + 0.1, index=NAMES)
H_TABLE = pd.DataFrame(RNG.random((2, 4)) + 0.1, columns=DAYS)
QUICK = {"max_iter": 3, "tol": 0.0, "search": None, "random_seed": 1, "quiet": True}
HERE = {"gamma_nmf": nz.gamma_nmf(TABLE, 2), "gap": nz.gap(TABLE, 2)}


def xarrays(W, H):
    return {"W": xr.DataArray(W, dims=("feature", "component")), "H": xr.DataArray(H, dims=("component", "obs"))}


@pytest.mark.parametrize("kind", [lambda W, H: {"W": W, "H": H}, lambda W, H: [xarrays(W, H)], lambda W, H: {"H": H}])
def test_initial_values_with_labels_are_those_without(kind):
    own = kind(W_TABLE, H_TABLE)
    plain = kind(W_TABLE.to_numpy(), H_TABLE.to_numpy())
    found, expected = (
        nz.fit(engine="em", model=HERE["gamma_nmf"], initvals=start, **QUICK).posterior for start in (own, plain)
    )
    xr.testing.assert_equal(found, expected)


@pytest.mark.parametrize(
    ("start", "dim"),
    [
        ({"W": W_TABLE.sort_index()}, "feature"),
        ([{"W": xr.DataArray(W_TABLE, dims=("feature", "component")).isel(feature=[1, 0, 2])}], "feature"),
        ({"H": xr.DataArray(H_TABLE.iloc[:, ::-1].T, dims=("obs", "component"))}, "obs"),
    ],
)
def test_initial_values_in_another_order_are_refused(start, dim):
    said = rf"initvals\['[WH]'\]: got labels of '{dim}' that differ from the model's; expected .*; reindex it"
    with pytest.raises(nz.InputError, match=said):
        nz.fit(engine="em", model=HERE["gamma_nmf"], initvals=start, **QUICK)


def test_so_are_those_of_streams_blocks_and_results():
    said = r"initvals\['W'\]: got labels of 'feature' that differ"
    other = W_TABLE.sort_index()
    with pytest.raises(nz.InputError, match=said):
        nz.stream(HERE["gap"], initvals={"W": other})
    empty = nz.gamma_nmf(None, 2, shape=(3, 4), coords={"feature": NAMES})
    with pytest.raises(nz.InputError, match=said):
        nz.fit(engine="em", model=empty, data=TABLE.to_numpy(), initvals={"W": other}, **QUICK)
    result = nz.fit(engine="em", model=HERE["gamma_nmf"], **QUICK)
    for table in (TABLE.sort_index(), TABLE.iloc[:, ::-1]):
        with pytest.raises(nz.InputError, match=r"initvals: got labels of '(feature|obs)' that differ"):
            nz.fit(engine="em", model=nz.gamma_nmf(table, 2), initvals=result, **QUICK)
    W = nz.stream(HERE["gap"], initvals=result).W  # of which the samples are others
    np.testing.assert_allclose(W / W.sum("feature"), (own := result.posterior["W"][0, 0]) / own.sum("feature"))
