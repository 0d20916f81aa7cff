"""Streams: what they take and refuse, what they give, and that nothing but the columns decides it."""

from __future__ import annotations

import os
import random
import signal
import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import online_em
from nmf_zoo.kernels.counts import column_sweeps as clock
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.state_io import write_tree
from nmf_zoo.streaming.stream import OWNER, tree_of
from tests.naive.counts.column_sweeps import running_means
from tests.runs import assert_same_stream, feed

F, K = 6, 3
LABELS = list("abcdef")
RNG = np.random.default_rng(5)
TRUE = RNG.gamma(1.0, size=(F, K))
X = RNG.poisson(2 * TRUE @ RNG.gamma(1.0, size=(K, 60)))
COORDS = {"feature": LABELS, "component": ["u", "v", "w"]}


def declared(**arguments):
    return nz.gap(None, K, shape=(F, F), coords={"feature": LABELS, "component": COORDS["component"]}, **arguments)


def begun(seed=1, model=None, cores=1, **options):
    model = declared() if model is None else model
    return nz.stream(model, engine=nz.OnlineEM(**{"start_columns": 5, **options}), random_seed=seed, cores=cores)


def fed(blocks, **options):
    return feed(begun(**options), blocks)


# -- what it takes -------------------------------------------------------------------------------------------------

FORMS = {
    "list": lambda x: x.tolist(),
    "floats": lambda x: x.astype(float),
    "frame": lambda x: pd.DataFrame(x, index=LABELS),
    "array": lambda x: xr.DataArray(x, dims=("feature", "obs"), coords={"feature": LABELS}),
    "turned": lambda x: xr.DataArray(x.T, dims=("obs", "feature"), coords={"feature": LABELS}),
    "csc": sp.csc_array,
    "csr": sp.csr_matrix,
    "coo": sp.coo_array,
    "masked": lambda x: np.ma.masked_array(x, np.zeros_like(x, dtype=bool)),
    "with a mask": lambda x: x,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_columns_is_the_same(form):
    stream = begun()
    mask = {"mask": np.ones((F, 30), dtype=bool)} if form == "with a mask" else {}
    stream.update(FORMS[form](X[:, :30]), **mask)
    assert_same_stream(stream, fed([X[:, :30]]))


@pytest.mark.parametrize("one", [list, pd.Series, "labels", "xarray", sp.csc_array])
def test_single_columns(one):
    makers = {
        "labels": lambda x: pd.Series(x, index=LABELS),
        "xarray": lambda x: xr.DataArray(x, dims="feature", coords={"feature": LABELS}),
        sp.csc_array: lambda x: sp.csc_array(x[:, None]),
    }
    assert_same_stream(fed([makers.get(one, one)(x) for x in X[:, :8].T]), fed([X[:, :8]]))


def test_a_declaration_with_data_begins_with_them():
    for first in (X[:, :20], sp.csr_array(X[:, :20]), pd.DataFrame(X[:, :20], index=LABELS)):
        stream = begun(model=nz.gap(first, K))
        assert stream.columns_seen == 20
        stream.update(X[:, 20:])
        assert_same_stream(stream, fed([X]))
    holes = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
    listed = sp.csr_array(np.where(np.isnan(holes), 0.0, holes + 1))  # stored cells, zeros among them
    listed.data -= 1
    stream = begun(complete="CH")
    stream.update(listed, observed="stored")
    assert_same_stream(begun(model=nz.gap(holes, K)), fed([holes]))
    assert_same_stream(stream, fed([holes]))


def test_columns_of_zeros_are_data_and_empty_ones_are_nothing():
    """A zero column makes W smaller; one without an observed cell leaves W as it is."""
    stream = fed([X])
    before = stream.W.values
    stream.update(np.zeros(F))
    gain = 61**-0.6
    np.testing.assert_allclose(stream.W.values, (1 - gain) * before, rtol=1e-12)
    stream = fed([X], complete="CH")
    before = stream.W.values
    stream.update(np.full(F, np.nan))
    np.testing.assert_allclose(stream.W.values, before, rtol=1e-12)
    assert stream.columns_seen == 61
    assert np.all(np.isfinite(fed([np.zeros((F, 30)), X]).W.values))


def test_a_stream_without_missing_cells_is_c_and_goes_on_as_ch():
    """The statistics are those of both; before the first missing cell they are maximised as "C", after it as "CH"."""
    assert_same_stream(fed([X]), fed([X], complete="C"))
    assert np.any(fed([X]).W.values != fed([X], complete="CH").W.values)
    found = fed([LATE_HOLES, LATE_HOLES])
    assert found._state.complete == "CH"
    assert_same_stream(fed([HOLES], start_columns=60), fed([HOLES], complete="CH", start_columns=60))


def test_the_norms_are_those_of_w_where_features_were_never_observed():
    unseen = X.astype(float)
    unseen[2] = np.nan
    stream = fed([unseen])
    assert stream.W.values[2].sum() > 0  # the start
    fit = _compat.group(stream.result(), "fit")
    np.testing.assert_allclose(fit["column_norm"][0, -1], stream.norms, rtol=1e-12)


def test_features_that_come_late():
    late = X.copy()
    late[2, :40] = 0
    W = fed([late]).W.values
    assert W[2].sum() > 0
    never = late * (np.arange(F) != 2)[:, None]
    np.testing.assert_array_equal(fed([never]).W.values[2], 0.0)


# -- what it gives -------------------------------------------------------------------------------------------------


def test_result():
    stream = fed([X])
    result = stream.result()
    W = _compat.group(result, "posterior")["W"]
    assert W.dims == ("chain", "draw", "feature", "component")
    assert list(W["feature"].values) == LABELS
    assert list(W["component"].values) == COORDS["component"]
    np.testing.assert_array_equal(W[0, 0], stream.W)
    fit = _compat.group(result, "fit")
    assert int(fit["columns"][0]) == int(fit["steps"][0]) == stream.columns_seen == 60
    np.testing.assert_allclose(fit["column_norm"][0, -1], stream.W.sum("feature"), rtol=1e-12)
    assert list(stream.norms["component"].values) == COORDS["component"]
    assert result.attrs["engine"] == "online_em"
    model = nz.gap(pd.DataFrame(X, index=LABELS), K, coords={"component": COORDS["component"]})
    H = nz.project(result, X[:, :4], model=model, draws=20, tune=10, chains=1, quiet=True, random_seed=1)
    assert _compat.group(H, "posterior")["H"].shape == (1, 20, K, 4)


def test_it_says_what_it_is():
    assert repr(fed([X])) == "<Stream of online_em: 6 features, 3 components, 60 columns seen>"


def test_result_is_saved_and_read(tmp_path):
    pytest.importorskip("h5netcdf")
    result = fed([X]).result()
    nz.save(result, tmp_path / "stream.nc")
    back = nz.load(tmp_path / "stream.nc")
    np.testing.assert_array_equal(
        _compat.group(back, "fit")["column_norm"], _compat.group(result, "fit")["column_norm"]
    )


def test_the_trace_is_thinned(monkeypatch):
    monkeypatch.setattr("nmf_zoo.streaming.stream.MOST_RECORDS", 16)
    fit = _compat.group(fed([X, X]).result(), "fit")
    assert 8 <= fit.sizes["record"] < 16
    assert list(fit["record"].values) == list(range(16, 121, 16))[: fit.sizes["record"]] or np.all(
        np.diff(fit["record"]) == np.diff(fit["record"])[0]
    )


def test_with_c_the_mean_is_that_of_the_weighted_columns():
    """Eq. 49, whatever the draws: sum_k (alpha_k / beta_k) w_fk is the mean of x_f, weighted as the statistics are."""
    alpha, beta = np.array([[0.5], [1.0], [3.0]]), np.array([[2.0], [1.0], [0.7]])
    model = declared(alpha_h=alpha, beta_h=beta)
    for options, sizes in (
        ({}, np.arange(1, 61) ** -0.6),
        ({"exponent": 0.9, "offset": 4.0}, np.arange(5, 65) ** -0.9),
        ({"average_after": 20}, np.arange(1, 61) ** -0.6),
    ):
        W = fed([X], model=model, **options).W.values
        path, mean = running_means(X.T, sizes, 20)
        expected = mean if "average_after" in options else path[-1]
        np.testing.assert_allclose(W @ (alpha / beta)[:, 0], expected, rtol=1e-11)


def test_w_of_a_transposed_declaration_comes_in_its_own_orientation():
    import pymc as pm

    with pm.Model(coords={"word": LABELS, "topic": ["x", "y", "z"], "text": range(60)}) as model:
        theta = pm.HalfFlat("theta", dims=("topic", "word"))
        phi = pm.Gamma("phi", np.float64(1), np.float64(1), dims=("text", "topic"))
        pm.Poisson("counts", theta.T @ phi.T, observed=X, dims=("word", "text"))
    stream = begun(model=model)
    assert stream.W.dims == ("topic", "word")
    np.testing.assert_array_equal(stream.W.values.T, fed([X]).W.values)
    assert stream.norms.dims == ("topic",)
    stream.result()


# -- the same bits -------------------------------------------------------------------------------------------------

HOLES = np.where(np.random.default_rng(2).random(X.shape) < 0.1, np.nan, X)
LATE_HOLES = np.where(np.arange(60) > 25, HOLES, X)
CASES = {
    "C": ({}, X),
    "C, then CH": ({}, LATE_HOLES),
    "C, then CH, averaged": ({"average_after": 10}, LATE_HOLES),
    "CH": ({"complete": "CH"}, HOLES),
    "averaged": ({"average_after": 10}, X),
    "averaged, CH": ({"average_after": 10, "complete": "CH"}, HOLES),
    "batches": ({"batch": 4}, X),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_do_not_matter(case):
    options, data = CASES[case]
    whole = fed([data], **options)
    for size in (4, 12, 20):
        assert_same_stream(fed([data[:, n : n + size] for n in range(0, 60, size)], **options), whole)
    other = fed([data], seed=2, **options)
    assert np.any(other.W.values != whole.W.values)


@pytest.mark.parametrize("data", [X, HOLES], ids=["complete", "holes"])
def test_threads_do_not_matter(data, monkeypatch):
    monkeypatch.setattr(online_em, "CHUNK_NUMBERS", 40)
    options = {"batch": 30, "complete": "CH", "average_after": 10}
    whole = fed([data], **options)
    for cores in (2, 4):
        assert_same_stream(fed([data], cores=cores, **options), whole)


def test_chunks_do_not_matter_much(monkeypatch):
    """Sums in another order: the same up to rounding."""
    whole = fed([HOLES], batch=30, complete="CH", average_after=10).W.values
    monkeypatch.setattr(online_em, "CHUNK_NUMBERS", 40)
    np.testing.assert_allclose(fed([HOLES], batch=30, complete="CH", average_after=10).W.values, whole, rtol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_a_file_is_going_on(case, tmp_path):
    options, data = CASES[case]
    whole, path, size = fed([data], **options), tmp_path / "run.stream", options.get("batch", 1)
    stream, seen = begun(**options), 0
    while True:
        stream.save(path)
        stream = nz.resume_stream(path, cores=1)
        assert stream.columns_seen == seen
        if seen == 60:
            break
        last = min(60, seen + size * random.randrange(1, 9))
        stream.update(data[:, seen:last])
        seen = last
    assert_same_stream(stream, whole)
    found, expected = (_compat.group(one.result(), "fit") for one in (stream, whole))
    xr.testing.assert_equal(found, expected)
    assert list(stream.W["feature"].values) == LABELS


def test_the_number_of_samples_of_a_stream_without_data_means_nothing():
    """No warning of a rank above it, either."""
    stream = begun(model=nz.gap(None, K, shape=(F, 1), coords=COORDS))
    stream.update(X)
    assert_same_stream(stream, fed([X]))


def test_labels_of_other_kinds_survive_a_file(tmp_path):
    times = pd.date_range("2020-01-01", periods=F)
    for labels in (times.to_numpy(), np.arange(F) * 0.5, np.array([1, "b", "c", "d", "e", 2.5], dtype=object)):
        stream = begun(model=nz.gap(None, K, shape=(F, F), coords={"feature": labels}))
        stream.update(X)
        stream.save(tmp_path / "s")
        np.testing.assert_array_equal(nz.resume_stream(tmp_path / "s").W["feature"], stream.W["feature"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the process that it kills")
def test_after_kills_while_saving(tmp_path):
    """SIGKILL at random moments of a process that saves after every column: what is there is whole, and goes on."""
    whole, path = fed([X], average_after=10), tmp_path / "run.stream"
    begun(average_after=10).save(path)
    kills = 0
    for _ in range(6):
        number = os.fork()
        if number == 0:
            stream = nz.resume_stream(path, cores=1)
            for n in range(stream.columns_seen, 60):
                stream.update(X[:, n])
                for _ in range(10):
                    stream.save(path)
            os._exit(0)
        time.sleep(random.uniform(0.0, 0.1))
        os.kill(number, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == -signal.SIGKILL
    assert kills
    stream = nz.resume_stream(path)
    stream.update(X[:, stream.columns_seen :]) if stream.columns_seen < 60 else None
    assert_same_stream(stream, whole)


def test_a_save_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    path, stream = tmp_path / "run.stream", fed([X[:, :30]])
    stream.save(path)
    stream.update(X[:, 30:])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        nz.InputError, match=r"^path: got .*No space left on device.*; make room, or give another path$"
    ):
        stream.save(path)
    monkeypatch.undo()
    assert nz.resume_stream(path).columns_seen == 30
    assert list(tmp_path.iterdir()) == [path]
    stream.save(path)
    assert nz.resume_stream(path).columns_seen == 60


@pytest.mark.parametrize("moment", range(1, 40, 6))
def test_interruptions_leave_whole_steps(moment, monkeypatch):
    """Ctrl-C between any two kernels: the stream is as after some number of columns, and goes on."""
    options = {"complete": "CH", "average_after": 10, "batch": 10}
    monkeypatch.setattr(online_em, "CHUNK_NUMBERS", 40)
    expected, stream, calls = fed([HOLES], **options), begun(**options), 0

    def interrupting(kernel):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt
            return kernel(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("expect_columns", "add_columns", "end_step"):
            patch.setattr(online_em, name, interrupting(getattr(online_em, name)))
        with pytest.raises(KeyboardInterrupt):
            stream.update(HOLES)
    assert stream.columns_seen % 10 == 0
    assert stream.columns_seen < 60
    stream.update(HOLES[:, stream.columns_seen :])
    assert_same_stream(stream, expected)


def test_memory_does_not_grow():
    """What is allocated after many columns is what was after some; only the trace of 512 records may fill up."""
    stream, sizes = fed([X] * 20), []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(20):
                stream.update(X)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) - min(sizes) < 100_000, sizes
    state = stream._state.running
    assert sum(array.nbytes for array in state) < 10 * F * K * 8 + 400


# -- what it refuses -----------------------------------------------------------------------------------------------

BAD = {
    "other features": (X[:4], r"^x: got 4 features; expected 6, as the model has; give every feature"),
    "turned": (X[:, :5].T, r"^x: got 5 features; expected 6, as the model has; transpose it"),
    "negative": (
        X - 9.0,
        r"^x: got the negative cell -\S+ at feature 'a', obs 10 \(and \d+ more\); expected numbers",
    ),
    "real": (X + 0.5, r"^x: got the non-integer cell \S+ at feature 'a', obs 10 .*expected counts"),
    "infinite": (np.where(X.max() == X, np.inf, X), r"^x: got the infinite cell inf at feature "),
    "too large": (X * 10.0**12, r"^x: got the count \S+ at feature "),
    "words": ([["one"]] * F, r"^x: got the non-numeric cell .*'one'.* at"),
    "nothing": (np.empty((F, 0)), r"^x: got shape \(6, 0\); expected at least one feature and one sample"),
    "three axes": (X[None], r"^x: got 3 axes"),
    "ragged": ([[1, 2], [3]], r"^x: got rows of different lengths"),
    "a number": (3, r"^x: got 3; expected one column \(features,\) or a block"),
    "no data": (None, r"^x: got None; expected one column"),
    "letters": (list("abcdef"), r"^x: got the non-numeric cell 'a' at feature 0"),
    "order": (pd.DataFrame(X, index=LABELS[::-1]), r"^x: got labels of 'feature' that differ from the model's"),
    "one in order": (
        pd.Series(X[:, 0], index=LABELS[::-1]),
        r"^x: got labels of 'feature' .* reindex it like the model$",
    ),
    "sparse, negative": (sp.csr_array(X - 9.0), r"^x: got the negative cell -\S+ at feature .*, obs 10 "),
    "sparse, real": (sp.csr_array(X * 0.3), r"^x: got the non-integer cell \S+ at feature '.', obs 1\d "),
    "sparse, NaN": (sp.csr_array(np.where(X.max() == X, np.nan, X)), r"^x: got \d+ NaN cells in a sparse x"),
    "sparse, nothing": (sp.csr_array((F, 0)), r"^x: got a sparse array of shape \(6, 0\)"),
    "sparse, features": (sp.csr_array(X[:4]), r"^x: got 4 features"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_columns_change_nothing(case):
    x, message = BAD[case]
    stream = fed([X[:, :10]])
    with pytest.raises(nz.InputError, match=message) as refusal:
        stream.update(x)
    assert "\n" not in str(refusal.value)
    assert_same_stream(stream, fed([X[:, :10]]))
    stream.update(X[:, 10:])
    assert_same_stream(stream, fed([X]))


def test_missing_cells_where_c_was_asked_for():
    stream = fed([X[:, :10]], complete="C")
    with pytest.raises(
        nz.InputError, match=r"^x: got missing cells in column 11; expected every cell observed, .*'auto'"
    ):
        stream.update(np.where(np.arange(5) == 1, np.nan, X[:, 10:15]))
    assert_same_stream(stream, fed([X[:, :10]], complete="C"))


def test_a_bad_first_column_leaves_the_stream_unbegun():
    stream = begun(complete="C")
    with pytest.raises(nz.InputError, match="missing cells in column 0"):
        stream.update([np.nan] * F)
    with pytest.raises(nz.InputError, match=r"^stream: got no column yet; expected at least one; call update first"):
        stream.result()
    stream.update(X)
    assert_same_stream(stream, fed([X]))


MODELS = {
    "gamma_nmf": (lambda: nz.gamma_nmf(X, K), "a free W, as in nz.gap; here it has a prior"),
    "normal_nmf": (lambda: nz.normal_nmf(X, K), "X is normal, and its updates are for poisson data"),
    "poisson_nmf": (lambda: nz.poisson_nmf(X, K), "which has no gamma prior"),
    "real": (lambda: nz.gap(X + 0.5, K), "values that are not integers"),
    "free": (lambda: nz.gap(X, K, beta_h=nz.free()), "are unknown"),
    "untied": (lambda: nz.gap(X, K, alpha_h=np.arange(1.0, 61.0)), "differ between samples"),
    "background": (lambda: nz.gap(X, K, background=2.0), "X has a background"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_can_not_be_streamed(name):
    make, message = MODELS[name]
    with pytest.raises(nz.UnsupportedModel, match=f"^engine 'online_em' can't stream this model: .*{message}"):
        nz.stream(make())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"engine": "gibs"},
            r"^engine: got 'gibs'; expected one of \['online_em'\], or options of \['OnlineEM', 'Simulated",
        ),
        ({"random_seed": -1}, "^random_seed: got -1"),
        ({"cores": 0}, "^cores: got 0"),
        ({"initvals": {"H": np.ones((K, F))}}, r"^initvals: got a value of H; expected none"),
        ({"initvals": {"W": np.ones((K, F))}}, r"^initvals\['W'\]: got shape"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(nz.InputError, match=message):
        nz.stream(declared(), **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exponent": 0.5}, "exponent: got 0.5; expected a number in"),
        ({"exponent": 1.1}, "exponent"),
        ({"exponent": "slow"}, "exponent: got 'slow'; expected a number"),
        ({"offset": None}, "offset: got None; expected a number"),
        ({"offset": -1.0}, "offset"),
        ({"batch": 0}, "batch: got 0; expected an integer >= 1"),
        ({"sweeps": 5, "keep": 6}, "keep: got 6; expected at most sweeps=5"),
        ({"complete": "H"}, "complete: got 'H'; expected one of"),
        ({"average_after": -1}, "average_after"),
        ({"start_columns": 1.5}, "start_columns"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        nz.OnlineEM(**options)


def test_a_stream_of_the_format_before(tmp_path):
    path = tmp_path / "s"
    fed([X]).save(path)
    path.write_bytes(b"nmf3" + path.read_bytes()[4:])
    with pytest.raises(nz.InputError, match=r"^path: got .*, not of the format 'nmf5', which this version writes; exp"):
        nz.resume_stream(path)


def test_files_that_are_no_stream(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(nz.InputError, match="No such file"):
        nz.resume_stream(path)
    for call in (nz.resume_stream, fed([X]).save):
        with pytest.raises(nz.InputError, match=r"^path: got 3; expected the path of a file"):
            call(3)
    fed([X]).save(path)
    content = path.read_bytes()
    for damaged in (b"", b"hello", content[: len(content) // 2], content[:-9] + b"x" * 9):
        path.write_bytes(damaged)
        with pytest.raises(nz.InputError, match=r"^path: got '.*', (damaged|not of the form).*; expected a file"):
            nz.resume_stream(path)
    with pytest.raises(nz.InputError, match="expected a folder that exists"):
        fed([X]).save(tmp_path / "missing" / "s")


def test_initvals_are_the_start():
    stream = nz.stream(declared(), engine=nz.OnlineEM(start_columns=99), initvals={"W": TRUE + 0.1}, random_seed=1)
    stream.update(X)
    np.testing.assert_array_equal(stream.W.values, TRUE + 0.1)
    assert stream._state.running.clock[clock.COLUMNS] == 60


# -- files that were made up -------------------------------------------------------------------------------------------


def at(tree, *path):
    """The part of a tree that a path leads to."""
    for name in path:
        tree = tree[name]
    return tree


def put(value, *path):
    """Changes a tree there."""
    return lambda tree: at(tree, *path[:-1]).__setitem__(path[-1], value)


PRIOR = ("structure", "fields", "H", "fields", "prior", "fields", "shape", "fields")
MADE_UP = {
    "no dict": ([1, 2], "the stream is list"),
    "other keys": (put(1, "more"), r"the stream is \['version'"),
    "engine": (put("Popen", "engine"), "engine 'Popen'"),
    "option": (put(1, "options", "no_such"), "no_such"),
    "value of an option": (put("fast", "options", "exponent"), "exponent"),
    "entropy": (put([-1], "entropy"), "random_seed"),
    "text for entropy": (put("1", "entropy"), "the stream.entropy is str"),
    "start": (put({"W": np.ones((2, 2))}, "start"), "initvals"),
    "seconds": (put("5", "seconds"), "the stream.seconds is str"),
    "trace": (put({"columns": []}, "trace"), "the stream.trace is"),
    "no structure": (put({"map": {}}, "structure"), "no factorisation"),
    "a class that is none": (put({"class": "system", "fields": {}}, "structure"), "a class 'system'"),
    "a function for a class": (put({"class": "is_rising", "fields": {}}, "structure"), "a class 'is_rising'"),
    "fields": (put({"class": "Factorisation", "fields": {"W": 1}}, "structure"), r"Factorisation is \['W'\]"),
    "no factor": (put(5, "structure", "fields", "W"), "Factorisation.W is int '5'"),
    "likelihood": (
        put("Cauchy", "structure", "fields", "likelihood", "class"),
        "a class 'Cauchy'",
    ),
    "negative": (put((-6, 3), "structure", "fields", "W", "fields", "shape"), "factors of shapes"),
    "rank": (put((F, K + 1), "structure", "fields", "W", "fields", "shape"), "factors of shapes"),
    "features": (put((F + 1, K), "structure", "fields", "W", "fields", "shape"), "labels of 'feature'"),
    "three axes": (put((F, K, 1), "structure", "fields", "W", "fields", "shape"), "Factor.shape is tuple"),
    "prior's shape": (put(np.ones((7, 7)), *PRIOR, "value"), r"prior of H of shape \(7, 7\)"),
    "prior's text": (put(np.full((1, 1), "a"), *PRIOR, "value"), "could not convert"),
    "W": (put(np.ones((2, 2)), "start", "W"), "initvals"),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_streams_that_were_made_up(tmp_path, name):
    """Right checksums, and content that is of no stream: one line that names the file."""
    change, message = MADE_UP[name]
    tree = tree_of(fed([X]))
    if callable(change):
        change(tree)
    else:
        tree = change
    path = tmp_path / "run.stream"
    with open(path, "wb") as file:
        write_tree(file, tree, OWNER)
    with pytest.raises(nz.InputError, match=rf"^path: got '.*run.stream', damaged: .*{message}") as refusal:
        nz.resume_stream(path)
    assert "\n" not in str(refusal.value)


def test_more_features_than_memory(tmp_path):
    tree = tree_of(begun(model=nz.gap(None, K, shape=(F, F))))
    put((10**13, K), "structure", "fields", "W", "fields", "shape")(tree)
    put({"map": {}}, "structure", "fields", "coords")(tree)
    with open(tmp_path / "s", "wb") as file:
        write_tree(file, tree, OWNER)
    with pytest.raises(nz.InputError, match=r"path: got '.*s', damaged: stream: got weights of shape .*of the memory"):
        nz.resume_stream(tmp_path / "s")


@pytest.mark.parametrize("change", ["W", "class", "shape", "dtype", "missing"])
def test_states_of_other_streams(tmp_path, change):
    tree = tree_of(fed([X]))
    state = tree["state"]
    running = state.running
    tree["state"] = {
        "W": state._replace(start=np.ones((F + 1, K))),
        "class": tuple(state),
        "shape": state._replace(running=running._replace(sources=np.ones((2, K)))),
        "dtype": state._replace(running=running._replace(clock=running.clock.astype(np.float32))),
        "missing": {"W": np.ones((F, K))},
    }[change]
    with open(tmp_path / "s", "wb") as file:
        write_tree(file, tree, OWNER)
    with pytest.raises(nz.InputError, match=r"path: got '.*s', damaged: (the )?state"):
        nz.resume_stream(tmp_path / "s")


def test_a_checkpoint_s_state_is_no_stream(tmp_path):
    part = RunFiles(tmp_path, "0123", 0)
    part.save({"a": 1}, {})
    with pytest.raises(nz.InputError, match=r"'.*0.state', another's: of kind 'state', not 'stream'"):
        nz.resume_stream(tmp_path / "0.state")


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_a_stream_that_is_no_file(tmp_path, kind):
    path = tmp_path / "s"
    path.mkdir() if kind == "folder" else path.symlink_to(path)
    with pytest.raises(nz.InputError, match=r"^path: got '.*s' \(.*\); expected a file that Stream.save wrote"):
        nz.resume_stream(path)


def test_a_mask_of_one_column_has_its_labels_looked_at():
    stream, seen = begun(), pd.Series(np.arange(F) > 0, index=LABELS)
    stream.update(pd.Series(X[:, 0], index=LABELS), mask=seen)
    with pytest.raises(nz.InputError, match="mask: got labels of 'feature' that differ from X's"):
        stream.update(pd.Series(X[:, 0], index=LABELS), mask=seen[::-1])
    other = begun()
    other.update(X[:, 0], mask=seen.to_numpy())
    np.testing.assert_array_equal(stream.W, other.W)
