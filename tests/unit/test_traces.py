"""What a run keeps of its chains: the same whatever the blocks, and whatever stops it; drawn, stored or as moments."""

from __future__ import annotations

import copy
import errno
import json
import shutil

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.kernels.numerics.moments import add_draws, standard_deviation
from nmf_zoo.results import stores
from nmf_zoo.results.stores import CHUNK_BYTES, Column, Store, StoredTraces, chunk_shape
from nmf_zoo.results.trace_storage import chain_groups, finish_store
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.runtime.traces import MomentTraces, Traces, fullest
from tests.naive.numerics.moments import naive_moments
from tests.structures import gamma, model

pytest.importorskip("zarr")
F, K, N = 4, 2, 3
STRUCTURE = model(np.ones((F, N)), K, gamma(1.0, 1.0), gamma(1.0, 1.0))
KINDS = ("memory", "moments", "store")
CHAINS, WARMUP, DRAWS = 3, 5, 23


def make(kind, tmp_path, run_id=None, draws=DRAWS):
    if kind == "store":
        return StoredTraces(STRUCTURE, Store(tmp_path / "x.zarr", run_id, CHAINS), CHAINS, WARMUP, draws)
    return {"memory": Traces, "moments": MomentTraces}[kind](CHAINS, WARMUP, draws)


def record(chain, part, first, stop):
    """Variables and statistics of some draws, a formula of where they stand."""
    at = np.random.default_rng([chain, part == "draws"])
    W, H, lp = at.random((DRAWS, F, K)), at.random((DRAWS, K, N)), at.random(DRAWS)
    values = {"W": W[first:stop], "H": H[first:stop], "y": np.arange(10 * chain + first, 10 * chain + stop)}
    return values, {"lp": lp[first:stop], "mean": at.random((DRAWS, F * N))[first:stop]}


def fill(traces, blocks=(1, 3, 2), lengths=(DRAWS,) * CHAINS, firsts=None):
    """Give every chain its warm-up, and draws up to its length, in blocks of these sizes."""
    for chain, length in enumerate(lengths):
        for part, stop in (("warmup", WARMUP), ("draws", length)):
            trace, turn = getattr(traces.chains[chain], part), 0
            while trace.filled < stop:
                upto = min(trace.filled + blocks[turn % len(blocks)], stop)
                trace.extend(*record(chain, part, trace.filled, upto))
                turn += 1


def groups_of(traces):
    traces.level()
    groups = chain_groups(STRUCTURE, traces)
    finish_store(traces, {"status": "complete"}, {})
    return {name: group.compute() for name, group in groups.items()}


def assert_same_groups(one, other):
    assert one.keys() == other.keys()
    for name in one:
        xr.testing.assert_identical(one[name].drop_attrs(), other[name].drop_attrs())


# -- running moments -----------------------------------------------------------------------------------------------


@pytest.mark.engines
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_running_moments_are_the_moments(offset):
    draws = np.random.default_rng(1).gamma(2.0, size=(1000, 6)) + offset
    mean, squares = np.zeros(6), np.zeros(6)
    add_draws(mean, squares, draws[:300], 0)
    add_draws(mean, squares, draws[300:], 300)
    expected_mean, expected_squares = naive_moments(draws)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-12)
    np.testing.assert_allclose(squares, expected_squares, rtol=1e-10 if offset == 0 else 1e-6)


def test_the_kernel_is_its_own_python():
    draws, start = np.random.default_rng(2).random((7, 5)), np.random.default_rng(3).random((2, 5))
    compiled, interpreted = start.copy(), start.copy()
    add_draws(*compiled, draws, 4)
    add_draws.py_func(*interpreted, draws, 4)
    np.testing.assert_allclose(compiled, interpreted, rtol=1e-12)


def test_moments_of_integers():
    traces = MomentTraces(1, 0, 4)
    traces.chains[0].draws.extend({"x": np.array([[1], [2], [3], [6]])}, {"lp": np.zeros(4)})
    group = chain_groups(STRUCTURE, traces)["posterior_moments"]
    assert group["x_mean"].item() == 3.0
    np.testing.assert_allclose(group["x_sd"].item(), np.std([1, 2, 3, 6], ddof=1))


def test_the_deviation_of_one_draw_is_unknown():
    traces = MomentTraces(1, 0, 1)
    traces.chains[0].draws.extend({"x": np.ones((1, 2))}, {"lp": np.zeros(1)})
    assert np.all(np.isnan(chain_groups(STRUCTURE, traces)["posterior_moments"]["x_sd"]))


# -- all kinds -----------------------------------------------------------------------------------------------------


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [(1,), (7,), (DRAWS,), (2, 1, 9)])
def test_blocks_do_not_matter(kind, blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)  # chunks of 5 draws of W
    (tmp_path / "other").mkdir()
    one, other = make(kind, tmp_path), make(kind, tmp_path / "other")
    fill(one)
    fill(other, blocks)
    assert_same_groups(groups_of(one), groups_of(other))


@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_a_store_holds_what_memory_holds(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK_BYTES", chunk * 8 * F * K)
    memory, store = make("memory", tmp_path), make("store", tmp_path)
    for traces in (memory, store):
        fill(traces)
    assert_same_groups(groups_of(memory), groups_of(store))


def test_moments_are_those_of_the_draws(tmp_path):
    memory, moments = make("memory", tmp_path), make("moments", tmp_path)
    for traces in (memory, moments):
        fill(traces)
    draws, group = groups_of(memory)["posterior"], groups_of(moments)["posterior_moments"]
    for name in ("W", "H", "y"):
        np.testing.assert_allclose(group[f"{name}_mean"], draws[name].mean("draw"), rtol=1e-12)
        np.testing.assert_allclose(group[f"{name}_sd"], draws[name].std("draw", ddof=1), rtol=1e-12)
    assert group["W_mean"].dims == ("chain", *draws["W"].dims[2:])
    np.testing.assert_array_equal(group["draws"], [DRAWS] * CHAINS)


def test_the_result_is_the_memory_that_the_chains_filled(tmp_path):
    traces = make("memory", tmp_path)
    fill(traces)
    before = traces.chains[0].draws.values["W"]
    traces.level()
    after = chain_groups(STRUCTURE, traces)["posterior"]["W"].variable.data
    assert np.shares_memory(before, after)


# -- interruption --------------------------------------------------------------------------------------------------


def test_the_fullest_chains():
    assert fullest([10, 10, 10]) == [0, 1, 2]
    assert fullest([0, 9, 10]) == [1, 2]
    assert fullest([2, 100, 0]) == [1]
    assert fullest([0, 0]) == [0, 1]


@pytest.mark.engines
@pytest.mark.parametrize("run_id", [None, "a1"])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_chains_are_cut_and_laggards_dropped(kind, run_id, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    traces, whole = make(kind, tmp_path, run_id), make("memory", tmp_path)
    fill(traces, lengths=(2, 17, 19))
    fill(whole)
    found, expected = groups_of(traces), groups_of(whole)
    for prefix, length in (("", 17), ("warmup_", WARMUP)):
        lp = expected[f"{prefix}sample_stats"]["lp"][1:, :length]
        np.testing.assert_array_equal(found[f"{prefix}sample_stats"]["lp"], lp)
        assert found[f"{prefix}sample_stats"]["chain"].to_numpy().tolist() == [0, 1]
    if kind == "moments":
        np.testing.assert_array_equal(found["posterior_moments"]["draws"], [17, 19])
        W = expected["posterior"]["W"][2, :19].mean("draw")
        np.testing.assert_allclose(found["posterior_moments"]["W_mean"][1], W, rtol=1e-12)
    else:
        np.testing.assert_array_equal(found["posterior"]["W"], expected["posterior"]["W"][1:, :17])
        assert found["posterior"]["draw"].to_numpy().tolist() == list(range(17))


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS)
def test_no_draw_at_all_is_an_interruption(kind, tmp_path):
    traces = make(kind, tmp_path)
    fill(traces, lengths=(0, 0, 0))
    traces.level()
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        chain_groups(STRUCTURE, traces)


# -- checkpoints ---------------------------------------------------------------------------------------------------


def save(traces, firsts):
    """As a checkpoint does: the rows since the last save, the state and the length of every trace."""
    saved = []
    for number, chain in enumerate(traces.chains):
        for part in ("warmup", "draws"):
            trace = getattr(chain, part)
            rows = {name: array.copy() for name, array in trace.rows(firsts.get((number, part), 0)).items()}
            state = copy.deepcopy(trace.state())
            saved.append((number, part, rows, state, trace.filled))
            firsts[number, part] = trace.filled
    return saved


def go_on(traces, saves):
    for at in range(len(saves[-1])):
        number, part, _, state, filled = saves[-1][at]
        trace = getattr(traces.chains[number], part)
        values, stats = ({name: array[0] for name, array in arrays.items()} for arrays in record(0, part, 0, 1))
        for rows in (saved[at][2] for saved in saves):
            if rows:
                trace.add_rows(rows, values, stats)
        trace.restore(filled, state, values)


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kill_at", [(1, 2), (4, 11), (10, 22)])
def test_a_run_that_was_killed_goes_on_to_the_same(kind, kill_at, tmp_path, monkeypatch):
    """Two saves, some draws more that are lost, and new traces that begin at the second save."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    (tmp_path / "whole").mkdir()
    whole = make(kind, tmp_path / "whole")
    fill(whole)
    killed, saves, firsts = make(kind, tmp_path, "a1"), [], {}
    for stop in kill_at:
        fill(killed, lengths=(stop, max(stop - 1, 0), stop))
        saves.append(save(killed, firsts))
    fill(killed, lengths=(kill_at[-1] + 1,) * CHAINS)
    again = make(kind, tmp_path, "a1")
    go_on(again, saves)
    assert again.chains[0].draws.filled == kill_at[-1]
    fill(again, blocks=(4,))
    assert_same_groups(groups_of(again), groups_of(whole))


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS)
def test_more_draws_after_the_end(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    (tmp_path / "whole").mkdir()
    whole = make(kind, tmp_path / "whole")
    fill(whole)
    short = make(kind, tmp_path, "a1", draws=12)
    fill(short, lengths=(12,) * CHAINS)
    saves = [save(short, {})]
    groups_of(short)
    longer = make(kind, tmp_path, "a1")
    go_on(longer, saves)
    fill(longer)
    assert_same_groups(groups_of(longer), groups_of(whole))


def test_a_store_that_is_gone_is_missed(tmp_path):
    traces = make("store", tmp_path, "a1")
    fill(traces)
    saves = [save(traces, {})]
    (tmp_path / "x.zarr").rename(tmp_path / "elsewhere.zarr")
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"^store: got .*x.zarr' without the 5 draws.*; expected .*; bring it back"
        ):
            go_on(make("store", tmp_path, "a1"), saves)


# -- the store -----------------------------------------------------------------------------------------------------


def test_an_existing_store_is_left_alone_unless_it_is_this_run_s(tmp_path):
    Store(tmp_path / "x.zarr", "a1", CHAINS)
    (tmp_path / "folder.zarr").mkdir()
    (tmp_path / "folder.zarr" / "thesis.tex").touch()
    (tmp_path / "file.zarr").write_text("mine")
    Store(tmp_path / "x.zarr", "a1", CHAINS)
    for name, run_id in (("x", None), ("x", "b2"), ("folder", "a1"), ("file", "a1"), ("folder", None)):
        with pytest.raises(InputError, match=r"^store: got .*which exists; expected a new name"):
            Store(tmp_path / f"{name}.zarr", run_id, CHAINS)
    assert (tmp_path / "file.zarr").read_text() == "mine"


@pytest.mark.parametrize(
    "shape",
    [(4, 1000), (4, 10), (2, 5000, 3), (2, 500, 100, 20), (2, 500, 12419, 50), (1, 3, 3_000_000), (1, 9, 2, 10**6)],
)
def test_chunks_are_of_some_mebibytes(shape):
    chunks = chunk_shape(shape, 8)
    size = 8 * np.prod(chunks)
    assert chunks[0] == 1
    assert all(1 <= part <= whole for part, whole in zip(chunks, shape, strict=True))
    assert size <= max(CHUNK_BYTES, 8 * np.prod(shape[3:]))
    assert size > CHUNK_BYTES / 2 or chunks[1:] == shape[1:] or chunks[2:] == shape[2:] or chunks[1] == 1


class Recorder:
    """A Zarr array as a column sees it, that counts what is written."""

    def __init__(self, length, per_chunk):
        self.shape, self.chunks, self.dtype = (1, length, 2), (1, per_chunk, 2), np.dtype(float)
        self.data, self.written = np.full(self.shape, np.nan), []

    def __setitem__(self, at, value):
        self.data[at] = value
        self.written.append((at[1].start, at[1].stop))

    def __getitem__(self, at):
        return self.data[at].copy()


def test_a_column_writes_whole_chunks_once():
    array = Recorder(10, 4)
    column, draws = Column(array, 0), np.random.default_rng(0).random((10, 2))
    for first, stop in ((0, 3), (3, 9), (9, 10)):
        column.append(draws[first:stop])
    column.flush()
    assert array.written == [(0, 4), (4, 8), (8, 10)]
    np.testing.assert_array_equal(array.data[0], draws)


def test_what_a_column_has_not_drawn_is_missing():
    array = Recorder(10, 4)
    column, draws = Column(array, 0), np.random.default_rng(0).random((10, 2))
    column.append(draws[:6])
    column.flush()
    np.testing.assert_array_equal(array.data[0, :6], draws[:6])
    assert np.all(np.isnan(array.data[0, 6:]))


def test_the_run_knows_what_it_keeps():
    run = SampleRun(draws=7, tune=5, thin=2, keep_warmup=True, cores=1, progressbar=False)
    assert (run.keep, run.kept_draws, run.kept_warmup) == ("draws", 4, 3)


# -- stores of others --------------------------------------------------------------------------------------------------


def killed_store(tmp_path, name="x"):
    """A store and what its checkpoint holds, after 13 draws in chunks of 5."""
    traces = StoredTraces(STRUCTURE, Store(tmp_path / f"{name}.zarr", "a1", CHAINS), CHAINS, WARMUP, DRAWS)
    fill(traces, lengths=(13,) * CHAINS)
    return save(traces, {})


def edit(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


STORE_DAMAGES = {
    "chunks of another chain": lambda p: swap(p / "posterior/W/0.0.0.0", p / "posterior/W/1.0.0.0"),
    "chunks in another order": lambda p: swap(p / "posterior/W/0.0.0.0", p / "posterior/W/0.1.0.0"),
    "of another variable": lambda p: swap(p / "sample_stats/lp/0.0", p / "sample_stats/lp/1.0"),
    "a chunk that is gone": lambda p: (p / "posterior/H/2.1.0.0").unlink(),
    "a chunk that was cut": lambda p: (p / "posterior/H/2.1.0.0").write_bytes(b"123"),
    "another shape": lambda p: edit(p / "posterior/W/.zarray", lambda d: d | {"shape": [3, 23, 5, 2]}),
    "another dtype": lambda p: edit(p / "posterior/W/.zarray", lambda d: d | {"dtype": "<f4"}),
    "an array that is none": lambda p: (p / "posterior/W/.zarray").write_text("{"),
    "no array": lambda p: shutil.rmtree(p / "posterior/W"),
    "drawn is text": lambda p: edit(p / ".zattrs", lambda d: d | {"drawn": "13"}),
    "drawn of two chains": lambda p: edit(
        p / ".zattrs", lambda d: d | {"drawn": {"draws": [13, 13], "warmup": [5, 5]}}
    ),
    "a group that is a file": lambda p: (shutil.rmtree(p / "posterior"), (p / "posterior").write_text("")),
}


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory):
    """(its folder, what its checkpoint holds), for copies to be damaged."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
        return folder, killed_store(folder)


@pytest.mark.parametrize("name", STORE_DAMAGES)
def test_a_store_that_is_not_what_was_written(name, whole_store, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    folder, saved = whole_store
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    STORE_DAMAGES[name](tmp_path / "x.zarr")
    with pytest.raises(InputError, match=r"^store: got '.*x.zarr', which is damaged or another's \(.*; bring") as error:
        go_on(make("store", tmp_path, "a1"), [saved])
    assert "\n" not in str(error.value)


def test_what_a_kill_leaves_of_a_new_store_is_begun_anew(tmp_path):
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "x.zarr" / ".zattrs.0.partial").touch()
    fill(make("store", tmp_path, "a1"))


def test_what_a_kill_leaves_of_groups_and_arrays_is_written_anew(tmp_path, monkeypatch):
    """Arrays without attributes, coords without cells."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    (tmp_path / "whole").mkdir()
    whole, killed = make("store", tmp_path / "whole"), make("store", tmp_path, "a1")
    fill(whole)
    data = {"observed_data": xr.Dataset({"X": (("f", "n"), np.ones((F, N)))})}
    for store in (whole.store, killed.store):
        store.add_groups(data)
    saved = save(killed, {})
    path = tmp_path / "x.zarr"
    killed.make_array("posterior", "W", np.zeros((CHAINS, DRAWS, F, K)))
    for attributes in (path / "posterior/W/.zattrs", path / "observed_data/X/.zattrs"):
        attributes.unlink()
    (path / "posterior/chain/0").unlink()
    again = make("store", tmp_path, "a1")
    again.store.add_groups(data)
    go_on(again, [saved])
    fill(again)
    assert_same_groups(groups_of(again), groups_of(whole))


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    """And what was written can be read, with a warning that the run has not ended."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 5 * 8 * F * K)
    traces = make("store", tmp_path)
    fill(traces, lengths=(12,) * CHAINS)
    for chain in traces.chains:
        chain.warmup.flush()
        chain.draws.flush()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Column, "flush", full)
    with pytest.raises(InputError, match=r"^store: got .*x.zarr.* \(the disk is full: No space.*; make room") as error:
        fill(traces)
    assert isinstance(error.value, OSError)
    with pytest.warns(NmfZooWarning, match="x.zarr is of an unfinished run: 12 draws of 3 chains"):
        assert nz.load(tmp_path / "x.zarr").posterior.sizes["draw"] == 12


@pytest.mark.parametrize("scale", [1.0, 1e200, 1e300])
def test_deviations_whose_squares_are_beyond_all_numbers(scale):
    draws = np.random.default_rng(2).normal(size=(50, 3))
    np.testing.assert_allclose(standard_deviation(scale * draws, ddof=1), scale * draws.std(axis=0, ddof=1), rtol=1e-12)


def test_deviations_of_usual_size_keep_their_bits():
    draws = np.random.default_rng(2).normal(size=(50, 3))
    np.testing.assert_array_equal(standard_deviation(draws), draws.std(axis=0))
