"""``checkpoint=`` of fits over blocks: killed at any moment, the same call gives the same bits."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, NotWritten
from nmf_zoo.inference.shared import sample_blocks
from nmf_zoo.interfaces.cli import main
from nmf_zoo.runtime import block_arrays
from nmf_zoo.runtime import checkpoint as checkpoints
from nmf_zoo.runtime.block_arrays import OnDisk
from nmf_zoo.verbs.block_source import CutArray
from tests.at_once import AtLast, AtOnce
from tests.cut_samples import CutSamples
from tests.forked import Forked

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0
RUN = {"max_iter": 12, "tol": 0, "random_seed": 1, "quiet": True, "cores": 1}
ENGINES = {
    "em": nz.EM(accelerate="momentum"),
    "em, plain": nz.EM(accelerate=None),
    "em, newton": nz.EM(),
    "vb": nz.VB(),
}


@pytest.fixture(autouse=True)
def saves_at_every_step(monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)


def over(data=None, engine="vb", **more):
    model = nz.gamma_nmf(None, K, alpha_w=1.2, alpha_h=1.2, shape=(F, 1))
    return nz.fit(model=model, data=CutArray(X, 17) if data is None else data, engine=engine, **RUN | more)


@cache
def undisturbed(engine="vb"):
    return over(engine=engine)


def assert_same(found, expected):
    for name in ("posterior", "fit", "sample_stats", "components"):
        for variable, array in group(expected, name).data_vars.items():
            np.testing.assert_array_equal(group(found, name)[variable], array, err_msg=variable)
    assert found.attrs["coverage"] == expected.attrs["coverage"]


class Photographed(CutArray):
    """Copies a folder at each reading: what a kill at that moment would leave."""

    def __init__(self, folder, copies):
        super().__init__(X, 17)
        self.folder, self.copies, self.count = folder, copies, 0

    def read(self, number):
        self.count += 1
        if self.folder.exists() and self.count % 3 == 0:
            partial = shutil.ignore_patterns(".*")  # written, and not renamed yet
            shutil.copytree(self.folder, self.copies / str(self.count), ignore=partial)
        return super().read(number)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_killed_at_any_moment_a_run_goes_on_to_the_same_bits(name, is_stored, tmp_path, monkeypatch):
    """In steps of three readings, of which a pass has four: before, within and between saves.

    With arrays of blocks written as soon as they are there, or as late as may be.
    """
    monkeypatch.setattr(sample_blocks, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(block_arrays, "ThreadPoolExecutor", AtLast if is_stored else AtOnce)
    engine, (run, copies) = ENGINES[name], (tmp_path / "run", tmp_path / "copies")
    copies.mkdir()
    expected = undisturbed(engine)
    assert_same(over(Photographed(run, copies), engine, checkpoint=run), expected)
    moments = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(moments) > 10
    moments = moments[::3] if is_stored else moments
    begun = set()
    for moment in moments:
        steps = []
        store = {"store": tmp_path / f"{moment.name}.zarr"} if is_stored else {}
        again = over(engine=engine, checkpoint=moment, on_step=lambda step, to=steps: to.append(step.number), **store)
        assert_same(again, expected)
        begun.add(steps[0] if steps else None)
    assert len(begun) > (2 if is_stored else 5)  # they went on, and from where they were


def test_minibatches_go_on_to_the_same_bits(tmp_path):
    """Where the run is stopped all blocks are looked at, and it goes on from where the last pass has left it."""
    run = {"engine": nz.VB(batch_size=9), "checkpoint": tmp_path / "run"}
    over(on_step=lambda step: step.number == 5, **run)
    expected, steps = over(engine=nz.VB(batch_size=9)), []
    assert_same(over(on_step=lambda step: steps.append(step.number), **run), expected)
    assert steps == [*range(6, 13)]
    assert_same(over(**run), expected)


@pytest.mark.parametrize("executor", [AtOnce, AtLast])
def test_arrays_are_those_that_were_put_last(executor, tmp_path, monkeypatch):
    """Read in advance or not, written already or not: a pass that is made again writes its arrays again."""
    monkeypatch.setattr(block_arrays, "ThreadPoolExecutor", executor)
    arrays, values = OnDisk(tmp_path / "arrays"), [np.full(2, float(number)) for number in range(3)]
    for turn, value in ((1, 0), (1, 1), (2, 2)):
        arrays.put(turn, 0, {"a": values[value], "b": values[0]})
        np.testing.assert_array_equal(arrays.get(turn, 0, "a"), [values[value]])
        arrays.expect(turn, 0)
    arrays.put(2, 1, {"a": values[1]})
    np.testing.assert_array_equal(arrays.get(2, 0, "b", "a"), [values[0], values[2]])  # more than was expected
    assert arrays.names(2) == ["a", "b"]
    arrays.expect(2, 7)  # in vain
    arrays.drop(1)
    for place in ((2, 7), (1, 0)):
        arrays.flush()
        with pytest.raises(FileNotFoundError):
            arrays.get(*place, "a")
    arrays.close()
    assert not arrays.folder.exists()


def test_pieces_side_by_side_read_and_write_for_themselves(tmp_path, monkeypatch):
    """As threads of a worker do; nobody goes on before what is its own is in files, and all are told of an error."""
    reader = sample_blocks.BlockReader()
    pieces = [reader.read(lambda number: number, numbers, goes_on=False) for numbers in ([0, 2], [1, 3])]
    assert [next(piece) for _ in range(2) for piece in pieces] == [0, 1, 2, 3]
    monkeypatch.setattr(np, "save", lambda path, array: (path / "none").write_bytes(b""))
    arrays = OnDisk(tmp_path / "arrays")
    arrays.put(0, 0, {"a": np.zeros(2)})
    for _ in range(2):
        with pytest.raises(NotWritten):
            arrays.flush()
    arrays.close()


def test_what_a_pass_asks_for_is_read_in_advance(tmp_path, monkeypatch):
    """But for the first look at what is asked for, and at the end."""
    load, read, computes = OnDisk._load, [], set()

    def watched(self, turn, *where):
        read.append((turn, threading.get_ident()))
        return load(self, turn, *where)

    monkeypatch.setattr(OnDisk, "_load", watched)
    engine, stored = nz.VB(accelerate=None), {"store": tmp_path / "r.zarr"}
    over(engine=engine, on_step=lambda step: computes.add(threading.get_ident()), **stored)
    turns = range(1, RUN["max_iter"])
    assert {thread for turn, thread in read if turn in turns}.isdisjoint(computes)
    assert [turn for turn, _ in read if turn in turns] == [turn for turn in turns for _ in range(4 * 3)]


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_disk_that_is_full_ends_the_run_at_once(is_saved, tmp_path, monkeypatch):
    """Of the third pass the second block can't be written; with a checkpoint the same call goes on."""
    save, steps = np.save, []

    def full(path, array):
        if Path(path).parent.name == "3" and Path(path).name.startswith(".1."):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, array)

    run = {"checkpoint": tmp_path / "run"} if is_saved else {"store": tmp_path / "r.zarr"}
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(NotWritten) as caught:
            over(on_step=lambda step: steps.append(step.number), **run)
    assert "the disk is full" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert steps == [1, 2]
    if is_saved:
        assert_same(over(**run), undisturbed())
    else:
        assert list(tmp_path.iterdir()) == []


class Kills(CutArray):
    """SIGKILL at the thirtieth reading."""

    count = 0

    def read(self, number):
        self.count += 1
        if self.count == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(number)


def test_killed_by_the_system(tmp_path):
    process = Forked(lambda: over(Kills(X, 17), checkpoint=tmp_path / "run", store=tmp_path / "r.zarr"))
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "r.zarr").exists()
    steps = []
    found = over(checkpoint=tmp_path / "run", store=tmp_path / "r.zarr", on_step=lambda step: steps.append(step.number))
    assert steps[0] > 3
    assert_same(found, undisturbed())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.zarr", "run"]


def test_a_run_that_is_over_is_made_longer(tmp_path):
    path, steps = tmp_path / "run", []
    over(checkpoint=path)
    again = over(checkpoint=path, on_step=lambda step: steps.append(step.number))
    assert steps == []
    assert_same(again, undisturbed())
    assert_same(over(checkpoint=path, max_iter=20), over(max_iter=20))
    turns = [entry.name for entry in (path / "blocks").iterdir()]
    assert len(turns) == 1  # those of the last save


def test_a_run_that_ended_early_says_how_to_go_on(tmp_path):
    path = tmp_path / "run"
    found = over(checkpoint=path, on_step=lambda step: step.number == 4)
    assert found.attrs["status"] == f"stopped by on_step: the same call goes on from {path}"
    assert group(found, "fit")["objective"].shape == (1, 4)
    assert_same(over(checkpoint=path), undisturbed())


def test_the_first_seed_is_kept(tmp_path):
    first = over(checkpoint=tmp_path / "run", random_seed=None, max_iter=3)
    again = over(checkpoint=tmp_path / "run", random_seed=None)
    assert again.attrs["random_seed"] == first.attrs["random_seed"]
    assert_same(again, over(random_seed=int(first.attrs["random_seed"])))


CHANGED = X.copy()
CHANGED[3, 40] += 1.0
SWAPPED = X.copy()
SWAPPED[:, [1, 2]] = X[:, [2, 1]]  # its sums are the same
WITH_BACKGROUND = CutSamples(X, 17, background=X[:1])
OTHERS = {
    "a background": (lambda path: over(WITH_BACKGROUND, checkpoint=path), "data.blocks has other cells"),
    "a cell": (lambda path: over(CutArray(CHANGED, 17), checkpoint=path), "data.blocks has other cells"),
    "two samples": (lambda path: over(CutArray(SWAPPED, 17), checkpoint=path), "data.blocks has other cells"),
    "another cut": (lambda path: over(CutArray(X, 16), checkpoint=path), "data.bounds has other cells"),
    "engine": (lambda path: over(engine="em", checkpoint=path), "engine was 'vb', now 'em'"),
    "seed": (lambda path: over(checkpoint=path, random_seed=2), "random_seed was 1, now 2"),
    "tol": (lambda path: over(checkpoint=path, tol=1e-3), "tol was 0, now 0.001"),
    "start": (lambda path: over(checkpoint=path, initvals={"W": np.ones((F, K))}), "initvals[0].W"),
    "shorter": (lambda path: over(checkpoint=path, max_iter=3), "at least the 12 that the checkpoint holds"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused(name, tmp_path):
    call, words = OTHERS[name]
    over(checkpoint=tmp_path / "run")
    with pytest.raises(InputError) as caught:
        call(tmp_path / "run")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_same(over(checkpoint=tmp_path / "run"), undisturbed())  # nothing was lost by it


def test_a_run_with_a_background_goes_on_to_the_same_bits(tmp_path):
    def source(table):
        return CutSamples(X, 17, background=table)

    over(source(X / 9), max_iter=5, checkpoint=tmp_path / "run")
    with pytest.raises(InputError, match=r"data\.blocks has other cells"):
        over(source(SWAPPED / 9), checkpoint=tmp_path / "run")
    assert_same(over(source(X / 9), checkpoint=tmp_path / "run"), over(source(X / 9)))


def changed(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


DAMAGES = {
    "missing": (lambda path: path.unlink(), "without the array shape of block 1"),
    "changed": (changed, "damaged: the array shape of block 1"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-8]), "without the array shape of block 1"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_arrays_are_told(name, tmp_path):
    damage, words = DAMAGES[name]
    over(checkpoint=tmp_path / "run")
    (turn,) = (tmp_path / "run" / "blocks").iterdir()
    damage(turn / "1.shape.npy")
    with pytest.raises(InputError) as caught:
        over(checkpoint=tmp_path / "run")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_that_is_there_is_not_written_again(tmp_path):
    run = {"checkpoint": tmp_path / "run", "store": tmp_path / "r.zarr"}
    first = over(**run)
    with pytest.raises(InputError, match="delete it, and the checkpoint makes it again"):
        over(**run)
    shutil.rmtree(run["store"])
    assert_same(over(**run), undisturbed())
    assert first.attrs["blocks"] == 4


def test_the_shell_does_so_too(tmp_path, monkeypatch, capsys):
    pytest.importorskip("zarr")
    monkeypatch.chdir(tmp_path)
    nz.write_blocks("table.zarr", X)
    line = "fit table.zarr --model gamma-nmf --rank 2 --engine vb --tol 0 --random-seed 1 --checkpoint run --quiet"
    for output, more in (("a.zarr", "--max-iter 4"), ("b.zarr", "--max-iter 9"), ("c.nc", "--max-iter 9")):
        assert main(f"{line} {more} -o {output}".split()) == 0
    found, again = nz.load("b.zarr"), nz.load("c.nc")
    assert group(found, "fit")["objective"].shape == (1, 9)
    np.testing.assert_array_equal(group(again, "posterior")["H"], group(found, "posterior")["H"])
