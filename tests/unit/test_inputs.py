"""What declarations accept as X, mask, coords and sizes, and how they refuse the rest."""

import datetime as dt
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.models import MODELS, gamma_nmf, gap, negative_binomial_nmf, normal_nmf, poisson_nmf
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.matrices import in_order_of_samples

F, N = 3, 4
X = np.arange(1, 13).reshape(F, N)
GENES, CELLS = ["g1", "g2", "g3"], ["c1", "c2", "c3", "c4"]
FRAME = pd.DataFrame(X, index=GENES, columns=CELLS)
SEEN = np.ones((F, N), dtype=bool)
SEEN[1, 2] = False


def changed(row, col, value, dtype=float):
    out = X.astype(dtype)
    out[row, col] = value
    return out


def check(given, rank=2, **arguments):
    return check_inputs(given, rank, **arguments)


# -- accepted ----------------------------------------------------------------------------------------------------

SAME = {
    "ints": X,
    "unsigned": X.astype(np.uint8),
    "floats": X.astype(np.float32),
    "list": X.tolist(),
    "objects": X.astype(object),
    "fortran": np.asfortranarray(X),
    "frame": FRAME,
    "nullable frame": FRAME.astype("Int64"),
    "array": xr.DataArray(X, dims=("feature", "obs")),
    "other dims": xr.DataArray(X, dims=("word", "document")),
    "transposed by name": xr.DataArray(X.T, dims=("obs", "feature")),
    "one name": xr.DataArray(X.T, dims=("obs", "word")),
    "former name": xr.DataArray(X.T, dims=("sample", "word")),
    "former name of rows": xr.DataArray(X, dims=("sample", "obs")),
    "masked array without gaps": np.ma.array(X),
}


@pytest.mark.parametrize("kind", SAME)
def test_every_table_gives_the_same_matrix(kind):
    inputs = check(SAME[kind])
    assert inputs.shape == (F, N)
    assert inputs.observed.cells is None
    assert inputs.observed.values.dtype == np.int64
    np.testing.assert_array_equal(inputs.observed.values, X)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("family", ["array", "matrix"])
def test_every_sparse_format_gives_the_same_cells(kind, family):
    inputs = check(getattr(scipy.sparse, f"{kind}_{family}")(X))
    rows, cols = np.nonzero(X)
    np.testing.assert_array_equal(inputs.observed.cells, [rows, cols])
    np.testing.assert_array_equal(inputs.observed.values, X.ravel())
    assert inputs.observed.is_complete
    assert inputs.observed.is_integer


def test_booleans_are_counts():
    inputs = check([[True, True], [True, True]])
    assert inputs.observed.values.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_every_float_type_gives_the_same_counts(dtype):
    """The largest count is not held against X in X's own type, which float16 hasn't got."""
    np.testing.assert_array_equal(check(X.astype(dtype)).observed.values, X)


def test_duplicates_are_summed_and_stored_zeros_dropped():
    cells = [0, 0, 1, 2], [0, 0, 1, 3]
    given = scipy.sparse.coo_array((np.array([200, 100, 1, 0], dtype=np.uint8), cells), shape=(F, N))
    with pytest.warns(NmfZooWarning):
        inputs = check(given)
    np.testing.assert_array_equal(inputs.observed.values, [300, 1])
    assert given.nnz == 4
    with pytest.warns(NmfZooWarning):
        stored = check(given, observed="stored")
    np.testing.assert_array_equal(stored.observed.values, [300, 1, 0])
    assert not stored.observed.is_complete


def test_sparse_input_is_left_alone():
    given = scipy.sparse.csr_array((np.array([1.0, 2.0, 3.0, 4.0]), [1, 0, 0, 1], [0, 2, 4]), shape=(2, 2))
    check(given, 1)
    np.testing.assert_array_equal(given.indices, [1, 0, 0, 1])


MISSING = {
    "nan": np.where(SEEN, X, np.nan),
    "frame": pd.DataFrame(np.where(SEEN, X, np.nan)),
    "nullable frame": FRAME.astype("Int64").where(SEEN),
    "masked array": np.ma.array(X, mask=~SEEN),
    "None": np.where(SEEN, X, None),
    "negative behind a mask": np.ma.array(changed(1, 2, -1), mask=~SEEN),
    "text behind a mask": np.ma.array(changed(1, 2, "?", object), mask=~SEEN),
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_cells(kind):
    inputs = check(MISSING[kind])
    np.testing.assert_array_equal(inputs.observed.cells, np.nonzero(SEEN))
    np.testing.assert_array_equal(inputs.observed.values, X[SEEN])
    assert inputs.observed.is_integer


@pytest.mark.parametrize("mask", [SEEN, SEEN.tolist(), pd.DataFrame(SEEN), scipy.sparse.csr_array(SEEN)])
def test_nan_and_mask_combine(mask):
    inputs = check(changed(0, 0, np.nan), mask=mask)
    np.testing.assert_array_equal(inputs.observed.cells, np.nonzero(SEEN & (np.arange(F * N).reshape(F, N) > 0)))


def test_a_mask_hides_bad_cells():
    assert check(changed(1, 2, np.inf), mask=SEEN).observed.values.max() == 12


def test_a_full_mask_is_no_mask():
    assert check(X, mask=np.ones((F, N), bool)).observed.cells is None
    assert check(scipy.sparse.csr_array(X), mask=np.ones((F, N), bool)).observed.is_complete


def test_nan_among_stored_cells_is_missing():
    given = scipy.sparse.csr_array(changed(1, 2, np.nan))
    np.testing.assert_array_equal(check(given, observed="stored").observed.cells, np.nonzero(SEEN))


# -- labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        FRAME,
        xr.DataArray(X, dims=("gene", "cell"), coords={"gene": GENES, "cell": CELLS}),
        xr.DataArray(X.T, dims=("obs", "feature"), coords={"feature": GENES, "obs": CELLS}),
    ],
)
def test_labels_become_coords(given):
    coords = poisson_nmf(given, 2).coords
    assert list(coords["feature"]) == GENES
    assert list(coords["obs"]) == CELLS
    assert list(coords["component"]) == [0, 1]


def test_labels_of_the_former_dim():
    """A DataArray has them, coords= doesn't; those of the enclosing model are somebody's own, and nothing silent."""
    given = xr.DataArray(X, dims=("feature", "sample"), coords={"sample": CELLS})
    assert list(poisson_nmf(given, 2).coords["obs"]) == CELLS
    with pm.Model(coords={"sample": CELLS}), pytest.warns(NmfZooWarning, match="labels of 'sample' .*; use 'obs'"):
        assert list(poisson_nmf(X, 2).coords["obs"]) == list(range(N))
    with pm.Model(coords={"sample": [*CELLS, "another"]}):
        poisson_nmf(X, 2)


def test_given_coords_win_and_repeats_are_allowed():
    with pytest.warns(NmfZooWarning, match="repeated labels: 1 label of 'feature'"):
        coords = check(FRAME, coords={"feature": ["a", "a", "b"]}).coords
    assert list(coords["feature"]) == ["a", "a", "b"]
    assert list(coords["obs"]) == CELLS


def test_levels_become_one_label():
    index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    assert list(check(pd.DataFrame(X, index=index)).coords["feature"]) == ["a / 1", "a / 2", "b / 1"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([dt.date(2020, 1, 1), dt.date(1020, 1, 2), "later"], ["2020-01-01", "1020-01-02", "later"]),
        (pd.interval_range(0, 3), ["(0, 1]", "(1, 2]", "(2, 3]"]),
        (pd.Index([("a", 1), ("b", 2), "c"], tupleize_cols=False), ["('a', 1)", "('b', 2)", "c"]),
        ([2**70, 1, 2], [str(2**70), "1", "2"]),
        ([1, "a", 2.5], ["1", "a", "2.5"]),
        (["\ttabs", "and\nlines", "are text"], ["\ttabs", "and\nlines", "are text"]),
        ([None, "b", 2.5], ["None", "b", "2.5"]),
    ],
)
def test_labels_that_no_file_holds_become_text(labels, expected):
    assert list(check(pd.DataFrame(X, index=labels)).coords["feature"]) == expected


def test_labels_of_the_enclosing_model():
    with pm.Model(coords={"feature": GENES}) as model:
        poisson_nmf(X, 2)
    assert model.coords["feature"] == tuple(GENES)
    with pm.Model(coords={"feature": ["x", "y", "z"]}), pytest.raises(InputError, match="differ from the model's"):
        poisson_nmf(FRAME, 2)
    with pm.Model(coords={"component": ["only"]}), pytest.raises(InputError, match="1 label for 'component'"):
        poisson_nmf(X, 2)


def test_size_without_data():
    assert check(None, shape=(7, 3)).shape == (7, 3)
    assert check(None, coords={"feature": GENES, "obs": CELLS}).shape == (F, N)


DAYS = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[ns]")


@pytest.mark.parametrize(
    "labels",
    [
        [dt.date(2020, 1, day) for day in (1, 2, 3)],
        [dt.datetime(2020, 1, day) for day in (1, 2, 3)],
        list(pd.period_range("2020-01-01", periods=3, freq="D")),
        DAYS,
    ],
    ids=["dates", "datetimes", "periods", "times"],
)
def test_dates_and_times_stay_what_they_are(labels):
    found = check(FRAME, coords={"feature": labels}).coords["feature"]
    assert found.dtype.kind == "M"
    np.testing.assert_array_equal(found, DAYS)


INDEXES = {
    "dates": pd.Index([dt.date(2020, month, 1) for month in (3, 1, 2, 4)]),
    "periods": pd.period_range("2020-01", periods=N, freq="M"),
    "times in a zone": pd.date_range("2020-01-01", periods=N, tz="Europe/Berlin"),
    "intervals": pd.interval_range(0, N),
    "levels": pd.MultiIndex.from_tuples([("a", 2), ("a", 1), ("b", 1), ("b", 2)]),
    "several kinds": pd.Index([1, "a", 2.5, "b"], dtype=object),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_labels_of_every_kind_are_those_of_x_in_other_arguments(kind):
    """What stands beside X with its very labels is not refused, and goes by them where any order does."""
    index, order, numbers = INDEXES[kind], [2, 0, 3, 1], np.array([1.0, -1.0, 2.0, 5.0])
    table = FRAME.set_axis(index, axis=1)
    design, batch = pd.DataFrame({"u": numbers}, index=index), pd.Series(list("pqqp"), index=index)
    model = gamma_nmf(table, 2, design=design.iloc[order], batch=batch.iloc[order], exposure=design["u"] ** 2)
    read = nz.read(model)
    np.testing.assert_array_equal(read.H.prior.covariates.design[:, 0], numbers)
    np.testing.assert_array_equal(read.likelihood.of_batches.batch, [0, 1, 1, 0])
    errors = normal_nmf(table, 2, sigma=table + 0.5, known_h=pd.DataFrame([numbers**2], columns=index).iloc[:, order])
    np.testing.assert_array_equal(errors["sigma"].get_value(), X + 0.5)
    np.testing.assert_array_equal(nz.read(errors).H.known.values[0], numbers**2)
    known = pd.DataFrame({"k": numbers**2}, index=index)
    turned = nz.read(poisson_nmf(table.T, 2, known=known.iloc[order]))
    np.testing.assert_array_equal(turned.W.known.values[:, 0], numbers**2)


# -- said once ---------------------------------------------------------------------------------------------------


def test_times_that_are_not_in_order_are_said_of_chains():
    days = pd.to_datetime(["2020-01-01", "2020-01-04", "2020-01-02", "2020-01-05"])
    check(FRAME.set_axis(days, axis=1))  # of samples that are no times of a chain any order will do
    with pytest.warns(NmfZooWarning, match="times that are not in order, and a chain goes from column to column"):
        nz.hmm_nmf(FRAME.set_axis(days, axis=1), 1, chain=nz.GammaChain(5.0, 5.0), alpha_w=1.0)
    nz.hmm_nmf(FRAME.set_axis(days.sort_values(), axis=1), 1, chain=nz.GammaChain(5.0, 5.0), alpha_w=1.0)


def test_empty_rows_and_columns_are_said_once():
    given = X.copy()
    given[0], given[:, 1:3] = 0, 0
    for table in (given, scipy.sparse.csr_array(given), given.astype(float)):
        with pytest.warns(NmfZooWarning, match="X: 1 feature and 2 samples have no positive observed cell") as seen:
            poisson_nmf(table, 2)
        assert len(seen) == 1
        assert seen[0].filename == __file__


def test_only_what_is_empty_is_said():
    given = X.copy()
    given[0] = 0
    with pytest.warns(NmfZooWarning, match=r"^X: 1 feature has no positive observed cell; its factors go towards 0$"):
        poisson_nmf(given, 2)
    with pytest.warns(NmfZooWarning, match=r"^X: 1 sample has no positive observed cell; its factors go towards 0$"):
        poisson_nmf(given.T, 2)


def test_what_nobody_observed_is_no_zero():
    seen, given = np.ones((F, N), bool), X.copy()
    seen[0], given[1] = False, 0
    for table in (given, scipy.sparse.csr_array(given)):
        with pytest.warns(NmfZooWarning) as said:
            poisson_nmf(table, 2, mask=seen)
        assert [str(one.message) for one in said] == [
            "X: 1 feature has no positive observed cell; its factors go towards 0",
            "X: 1 feature has no observed cell; the data say nothing of its factors",
        ]
        assert {one.filename for one in said} == {__file__}


@pytest.mark.parametrize(("dim", "axis"), [("feature", "index"), ("obs", "columns")])
def test_labels_that_repeat_are_said_once(dim, axis):
    table = FRAME.copy()
    labels = list(getattr(table, axis))
    labels[2] = labels[1]
    setattr(table, axis, labels)
    with pytest.warns(NmfZooWarning, match=rf"^coords: .*1 label of '{dim}' \(the first is '{labels[1]}'\)") as seen:
        model = poisson_nmf(table, 2)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert list(model.coords[dim]) == labels


def test_a_large_rank_is_allowed_with_a_note():
    with pytest.warns(NmfZooWarning, match=r"rank: got 4, above min\(features, samples\) = 3") as seen:
        poisson_nmf(X, 4)
    assert seen[0].filename == __file__


# -- refused -----------------------------------------------------------------------------------------------------

SPARSE = scipy.sparse.csr_array(X)
NON_NUMERIC = FRAME.astype(object)
NON_NUMERIC.loc["g2", "c3"] = "many"
REFUSALS = {
    "negative": (
        {"X": changed(1, 2, -3)},
        "X: got the negative cell -3.0 at feature 1, obs 2; expected numbers >= 0",
    ),
    "negative int": ({"X": changed(0, 1, -3, int)}, "X: got the negative cell -3 at feature 0, obs 1;"),
    "several": ({"X": -X}, r"X: got the negative cell -1 at feature 0, obs 0 \(and 11 more\)"),
    "labels": ({"X": -FRAME}, "negative cell -1 at feature 'g1', obs 'c1'"),
    "infinite": ({"X": changed(2, 0, np.inf)}, "X: got the infinite cell inf at feature 2, obs 0; expected finite"),
    "minus infinite": ({"X": changed(2, 0, -np.inf)}, "infinite cell -inf"),
    "text": ({"X": [["1", "2"], ["3", "4"]]}, "X: got the non-numeric cell .*'1'.* at feature 0, obs 0"),
    "text column": ({"X": NON_NUMERIC}, "X: got the non-numeric cell 'many' at feature 'g2', obs 'c3'; .*column"),
    "complex": ({"X": X + 1j}, "non-numeric cell"),
    "dates": ({"X": np.full((2, 2), np.datetime64("2020-01-01"))}, "non-numeric cell"),
    "a path": ({"X": "counts.csv"}, r"X: got the text 'counts.csv'; expected a matrix .*; read the file first"),
    "no array": (
        {"X": SimpleNamespace(shape=(3, 4), obsm={})},
        "X: got an object of type SimpleNamespace; .*nz.tl.nmf",
    ),
    "scalar": ({"X": 3}, r"X: got 0 axes, shape \(\); expected 2"),
    "vector": ({"X": X[0]}, r"X: got 1 axes, shape \(4,\); expected 2: \(feature, obs\); .*X\[:, None\]"),
    "cube": ({"X": X[None]}, "X: got 3 axes"),
    "empty": ({"X": np.ones((0, 4))}, r"X: got shape \(0, 4\); expected at least one feature"),
    "empty list": ({"X": []}, "X: got 1 axes"),
    "empty sparse": ({"X": scipy.sparse.csr_array((3, 0))}, r"X: got shape \(3, 0\)"),
    "ragged": ({"X": [[1, 2], [3]]}, "X: got rows of different lengths"),
    "large count": (
        {"X": changed(1, 1, 2**31, np.int64)},
        "X: got the count 2147483648 at feature 1, obs 1; .*2147483647",
    ),
    "large unsigned": ({"X": np.full((2, 2), 2**63, np.uint64)}, "X: got the count 9223372036854775808"),
    "large float": ({"X": changed(0, 0, 3e9)}, "X: got the count 3000000000.0"),
    "large float32": (
        {"X": np.full((2, 2), 2**31, np.float32)},
        "X: got the count 2147483648.0 at feature 0, obs 0",
    ),
    "only zeros": ({"X": 0 * FRAME}, "X: got no positive cell among those that were observed; expected at least one"),
    "zeros among the observed": (
        {"X": changed(0, slice(None), 0), "mask": np.arange(F)[:, None] + 0 * X < 1},
        "X: got no p",
    ),
    "sparse zeros": ({"X": scipy.sparse.csr_array((3, 4))}, "X: got no positive cell"),
    "all missing": ({"X": np.full((2, 2), np.nan)}, "X: got only missing cells"),
    "nothing left": ({"X": X, "mask": ~np.ones((F, N), bool)}, "X: got only missing cells"),
    "no size": ({"X": None}, r"X: got None without a size; expected shape=\(F, N\)"),
    "mask of nothing": ({"X": None, "shape": (3, 4), "mask": SEEN}, "X: got None with mask="),
    "bad size": ({"X": None, "shape": (3, 0)}, r"shape: got \(3, 0\); expected two positive integers"),
    "size": ({"X": None, "shape": 3}, "shape: got 3"),
    "other size": ({"X": X, "shape": (4, 3)}, r"shape: got \(4, 3\); expected \(3, 4\), the shape of X"),
    "mask shape": ({"X": X, "mask": SEEN.T}, r"mask: got shape \(4, 3\); expected \(3, 4\)"),
    "mask vector": ({"X": X, "mask": SEEN[0]}, "mask: got 1 axes"),
    "mask type": ({"X": X, "mask": SEEN.astype(int)}, r"mask: got dtype int64; expected bool, True = observed"),
    "sparse mask type": ({"X": SPARSE, "mask": SPARSE}, "mask: got dtype int64"),
    "observed": ({"X": SPARSE, "observed": "some"}, "observed: got 'some'; expected None or 'stored'"),
    "stored dense": ({"X": X, "observed": "stored"}, "observed: got 'stored' with a dense X"),
    "sparse negative": ({"X": -SPARSE}, r"X: got the negative cell -1.0 at feature 0, obs 0 \(and 11 more\)"),
    "sparse infinite": (
        {"X": scipy.sparse.csr_array(changed(1, 1, np.inf))},
        "infinite cell inf at feature 1, obs 1",
    ),
    "sparse nan": ({"X": scipy.sparse.csr_array(changed(1, 1, np.nan))}, "X: got 1 NaN cells in a sparse X"),
    "sparse count": ({"X": scipy.sparse.csr_array(changed(1, 1, 2**31))}, "X: got the count 2147483648.0"),
    "sparse complex": ({"X": scipy.sparse.csr_array(X + 1j)}, "X: got dtype complex128"),
    "sparse exposure": ({"X": SPARSE, "exposure": SPARSE}, "exposure: got a sparse matrix; .*observed='stored'"),
    "sparse exposure of a dense X": ({"X": X, "exposure": SPARSE}, "exposure: got a sparse matrix; .*a sparse X"),
    "exposure of cells that are not stored": (
        {"X": SPARSE, "observed": "stored", "exposure": scipy.sparse.csr_array(SPARSE.shape)},
        "exposure: got values from 0.0 to 0.0; expected finite numbers > 0",
    ),
    "shape of a sparse exposure": (
        {"X": SPARSE, "observed": "stored", "exposure": SPARSE.T},
        r"exposure: got shape \(4, 3\); expected \(3, 4\), the shape of X",
    ),
    "a pair of the wrong shapes": (
        {"X": X, "exposure": (np.ones((N, 1)), np.ones((1, F)))},
        r"exposure: got shape \(4, 1\); expected a shape that broadcasts to \(3, 4\)",
    ),
    "a pair with a zero": ({"X": X, "exposure": (np.zeros((F, 1)), np.ones((1, N)))}, "exposure: got values from 0.0"),
    "exposure shape": ({"X": X, "exposure": np.ones(F)}, r"exposure: got shape \(3,\); .*use shape \(3, 1\)"),
    "exposure zero": ({"X": X, "exposure": 0.0}, "exposure: got values from 0.0 to 0.0; expected finite numbers > 0"),
    "background": ({"X": X, "background": -1.0}, "background: got values from -1.0 to -1.0; .*>= 0"),
    "exposure text": ({"X": X, "exposure": "big"}, "exposure: got str 'big'"),
    "coords": (
        {"X": X, "coords": {"gene": GENES}},
        "coords: got the keys .*expected a dict with some of the keys feature",
    ),
    "former dim": ({"X": X, "coords": {"sample": CELLS}}, r"coords: got the keys \['sample'\]; .*, obs; use 'obs'"),
    "coords type": ({"X": X, "coords": GENES}, "coords: got list"),
    "coords length": ({"X": X, "coords": {"feature": ["a"]}}, "coords: got 1 label for 'feature'; expected 3"),
    "NUL": (
        {"X": FRAME.set_axis(["a", "b\0", "c"])},
        r"coords: got the label 'b\\x00' of 'feature' at place 1; .*control",
    ),
    "half a pair": (
        {"X": X, "coords": {"obs": ["a", "b", "\ud800", "d"]}},
        "coords: got the label .* of 'obs' at",
    ),
    "bytes": ({"X": X, "coords": {"component": np.array([b"a", b"b\0c"], object)}}, "of 'component' at place 1"),
    "rank 0": ({"X": X, "rank": 0}, "rank: got 0; expected a positive integer"),
    "rank negative": ({"X": X, "rank": -2}, "rank: got -2"),
    "rank float": ({"X": X, "rank": 2.0}, "rank: got 2.0"),
    "rank bool": ({"X": X, "rank": True}, "rank: got True"),
    "rank text": ({"X": X, "rank": "2"}, "rank: got '2'"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(case):
    arguments, message = REFUSALS[case]
    with pytest.raises(InputError, match=message) as caught:
        gap(**{"rank": 2} | arguments)
    assert "\n" not in str(caught.value)


def test_errors_carry_their_parts():
    with pytest.raises(InputError) as caught:
        gap(X, 0)
    assert (caught.value.name, caught.value.got, caught.value.expected) == ("rank", "0", "a positive integer")


def test_squared_error_takes_no_sparse_and_no_negative():
    with pytest.raises(InputError, match=r"X: got a sparse matrix; expected a dense one.*X.toarray\(\)"):
        normal_nmf(SPARSE, 2)
    with pytest.raises(InputError, match="X: got the negative cell -1"):
        normal_nmf(-X, 2)


def test_squared_error_takes_integers_of_any_size():
    model = normal_nmf(X * 10**12, 2)
    np.testing.assert_array_equal(model.rvs_to_values[model["X"]].data, X * 1e12)


def test_integers_beyond_int64_stay_floats():
    model = normal_nmf(X * 1e100, 2)
    np.testing.assert_array_equal(model.rvs_to_values[model["X"]].data, X * 1e100)


def test_a_mask_with_the_labels_of_x_must_be_in_its_order():
    table = pd.DataFrame(X, index=GENES)
    mask = pd.DataFrame(SEEN, index=GENES)
    for given in (mask, mask.reset_index(drop=True)):
        assert gap(table, 2, mask=given).dim_lengths["cell"].eval() == SEEN.sum()
    with pytest.raises(InputError, match=r"mask: got labels of 'feature' that differ from X's; .*reindex"):
        gap(table, 2, mask=mask[::-1])
    for cells in (X, SPARSE):
        with pytest.raises(InputError, match=r"mask: got labels of 'feature' that differ from X's; .*reindex"):
            gap(cells, 2, mask=mask[::-1], coords={"feature": GENES})
    assert gap(table, 2, mask=mask, coords={"feature": ["p", "q", "r"]}).coords["feature"] == ("p", "q", "r")


def test_labelled_exposures_must_be_in_the_order_of_x():
    table = pd.DataFrame(X, index=GENES, columns=CELLS)
    depth, width = pd.Series([1.0, 2.0, 3.0, 4.0], index=CELLS), pd.DataFrame({"width": [1.0, 2.0, 3.0]}, index=GENES)
    for given, dim in ((depth, "obs"), (width, "feature")):
        np.testing.assert_array_equal(check_inputs(table, 2, exposure=given).exposure, given)
        with pytest.raises(InputError, match=f"exposure: got labels of '{dim}' that differ from X's"):
            gap(table, 2, exposure=given[::-1])
    for given, dim in ((depth, "obs"), (width["width"], "feature")):
        line = xr.DataArray(given, dims=dim)
        np.testing.assert_array_equal(np.ravel(check_inputs(table, 2, exposure=line).exposure), given)
        with pytest.raises(InputError, match=f"exposure: got labels of '{dim}' that differ from X's"):
            gap(table, 2, exposure=line[::-1])


def test_labelled_hyperparameters_must_be_in_the_order_of_x():
    table = pd.DataFrame(X, index=GENES, columns=CELLS)
    shapes = pd.DataFrame({"shape": [1.0, 2.0, 3.0]}, index=GENES)
    for declare, name in ((gamma_nmf, "alpha_w"), (negative_binomial_nmf, "alpha")):
        declare(table, 2, **{name: shapes})
        with pytest.raises(InputError, match=f"{name}: got labels of 'feature' that differ from (X|the model)'s"):
            declare(table, 2, **{name: shapes[::-1]})
        line = xr.DataArray(shapes["shape"], dims="feature")
        declare(table, 2, **{name: line})
        with pytest.raises(InputError, match=f"{name}: got labels of 'feature' that differ from (X|the model)'s"):
            declare(table, 2, **{name: line[::-1]})


def test_an_exposure_of_one_axis_goes_along_the_dim_that_it_names():
    table = pd.DataFrame(np.ones((3, 3)), index=GENES, columns=CELLS[:3])
    of_genes = xr.DataArray([1.0, 2.0, 3.0], dims="feature", coords={"feature": GENES})
    of_cells = xr.DataArray([1.0, 2.0, 3.0], dims="obs", coords={"obs": CELLS[:3]})
    assert check_inputs(table, 2, exposure=of_genes).exposure.shape == (3, 1)
    assert check_inputs(table, 2, exposure=of_cells).exposure.shape == (3,)
    for given, dim in ((of_genes, "feature"), (of_cells, "obs")):
        with pytest.raises(InputError, match=f"exposure: got labels of '{dim}' that differ from X's"):
            gap(table, 2, exposure=given[::-1])


def test_labelled_hyperparameters_must_be_in_the_order_of_the_model():
    table = pd.DataFrame(X, index=GENES, columns=pd.period_range("2020", periods=X.shape[1], freq="M"))
    of_genes = pd.DataFrame({"shape": [1.0, 2.0, 3.0]}, index=GENES)
    of_cells = pd.Series(np.arange(1.0, X.shape[1] + 1), index=table.columns)
    for declare, name, given, dim in (
        (gamma_nmf, "alpha_w", of_genes, "feature"),
        (gamma_nmf, "mean_h", of_cells, "obs"),
        (normal_nmf, "mu_w", of_genes, "feature"),
        (negative_binomial_nmf, "alpha", of_genes, "feature"),
    ):
        more = {"sigma": 1.0, "sigma_w": 1.0} if declare is normal_nmf else {}
        declare(table, 2, **more | {name: given})
        with pytest.raises(InputError, match=f"{name}: got labels of '{dim}' that differ from the model's"):
            declare(table, 2, **more | {name: given[::-1]})


@pytest.mark.parametrize("name", MODELS)
def test_every_declaration_checks_its_input(name):
    with pytest.raises(InputError, match="X: got the negative cell"):
        MODELS[name](-X, 2)


# -- by labels -----------------------------------------------------------------------------------------------------


OF_GENES = pd.Series([0.5, 1.0, 2.0], index=GENES)
OF_CELLS = pd.Series([0.5, 1.0, 2.0, 3.0], index=CELLS)


@pytest.mark.parametrize("rank", [2, 3])  # 3 is the number of features, too
def test_a_series_goes_where_its_labels_are(rank):
    structure = nz.read(gamma_nmf(FRAME, rank, alpha_w=OF_GENES, alpha_h=OF_CELLS))
    assert np.array_equal(np.broadcast_to(structure.W.prior.shape.value, (F, rank)), np.tile(OF_GENES, (rank, 1)).T)
    assert np.array_equal(np.broadcast_to(structure.H.prior.shape.value, (rank, N)), np.tile(OF_CELLS, (rank, 1)))
    exposed = nz.read(poisson_nmf(FRAME, rank, exposure=OF_GENES))
    assert np.array_equal(exposed.exposure_at(*np.indices((F, N)).reshape(2, -1)), np.repeat(OF_GENES, N))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha_w": OF_GENES[::-1]}, "alpha_w: got labels of 'feature' that differ from the model's"),
        ({"alpha_h": OF_CELLS[::-1]}, "alpha_h: got labels of 'obs' that differ from the model's"),
        ({"alpha_h": OF_GENES}, "alpha_h: got a Series labelled g1, g2, g3; expected labels of 'obs', the model's"),
        ({"exposure": OF_GENES[::-1]}, "exposure: got labels of 'feature' that differ from X's"),
        ({"exposure": OF_GENES.rename(str.upper)}, "got a Series labelled G1, G2, G3; expected labels of 'feature' or"),
    ],
)
def test_a_series_with_other_labels_is_refused_by_what_they_are_of(arguments, message):
    with pytest.raises(InputError, match=message):
        gamma_nmf(FRAME, 3, **arguments)


def test_numbers_in_another_order_say_something():
    """0, 1, 2, ... of a table without labels say nothing, but a mask that was sorted otherwise does."""
    mask = pd.DataFrame(SEEN)
    assert nz.read(gamma_nmf(X, 2, mask=mask)).data.observed_values.size == SEEN.sum()
    with pytest.raises(InputError, match="mask: got labels of 'feature' that differ from X's"):
        gamma_nmf(pd.DataFrame(X), 2, mask=mask[::-1])
    with pytest.raises(InputError, match="exposure: got labels of 'obs'"):
        gamma_nmf(pd.DataFrame(X), 2, exposure=pd.Series(np.ones(N), index=range(N)[::-1]))


def test_a_design_whose_rows_count_down_goes_by_them():
    """As ``frame[::-1]`` does, whose index pandas calls a range."""
    own = np.arange(N)[::-1]
    table = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0]})[::-1]
    assert in_order_of_samples("design", table, own)["age"].tolist() == [4.0, 3.0, 2.0, 1.0]
    assert in_order_of_samples("design", table, np.arange(N))["age"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert in_order_of_samples("design", table.reset_index(drop=True), own)["age"].tolist() == [4.0, 3.0, 2.0, 1.0]
