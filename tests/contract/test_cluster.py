"""Runs over blocks by the workers of a Dask cluster: the bits of one process, whoever dies."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from benchmarks import same_bits
from nmf_zoo import _compat
from nmf_zoo.interfaces.cli import fit, main
from nmf_zoo.runtime import cluster as clusters
from tests.cut_samples import CutSamples
from tests.sizes import at_full_size

dask = pytest.importorskip("dask", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pytest.importorskip("zarr", reason="Zarr is not installed")

RUN = {"random_seed": 1, "max_iter": 12, "tol": 0.0, "quiet": True}
TWO_WORKERS = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
LOADED = [f"nmf_zoo.inference.counts.{engine}_blocks" for engine in ("em", "vb", "gibbs")]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """40 features of 120 samples in six blocks of a store, with a background."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, 2.0, (40, 3)) @ rng.gamma(0.3, 2.0, (3, 120)))
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    nz.write_blocks(path, CutSamples(sp.csc_array(counts), 30, background=rng.gamma(1.0, 0.1, counts.shape)))
    return nz.open_blocks(path, block=20)


@pytest.fixture(scope="module")
def client():
    """Two workers, each a process, forked from one that has imported what they need: those from a shell begin empty."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        distributed.utils.get_mp_context().set_forkserver_preload(["distributed", "zarr", *LOADED])
        with distributed.LocalCluster(**TWO_WORKERS) as local, distributed.Client(local) as client:
            yield client


@pytest.fixture(scope="module")
def alone(blocks):
    """The results of this process, by engine."""
    return {engine: nz.fit(model=model(), data=blocks, engine=engine, **RUN) for engine in ("em", "vb")}


def model():
    return nz.gamma_nmf(X=None, shape=(40, 1), rank=3)


def assert_same_bits(one, other):
    for group, names in {"posterior": ("W", "H"), "fit": ("objective",), "sample_stats": ("lp",)}.items():
        for name in names:
            arrays = (np.asarray(_compat.group(result, group)[name]) for result in (one, other))
            np.testing.assert_array_equal(*arrays, err_msg=name)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_same_bits_as_one_process(engine, blocks, client, alone, tmp_path):
    """Long: workers compile or load kernels of their own."""
    found = nz.fit(model=model(), data=blocks, engine=engine, executor=client, store=tmp_path / "o.zarr", **RUN)
    assert_same_bits(found, alone[engine])
    with pytest.raises(AssertionError):  # the comparison sees another result
        assert_same_bits(found, alone["vb" if engine == "em" else "em"])


def test_draws_have_the_bits_of_one_process(blocks, client, tmp_path):
    """Long: workers load kernels of their own."""
    run = {"draws": 4, "tune": 2, "chains": 2, "random_seed": 1, "quiet": True, "kept_samples": [70]}
    found = nz.sample(model=model(), data=blocks, executor=client, store=tmp_path / "o.zarr", **run)
    alone = nz.sample(model=model(), data=blocks, **run)
    for group in ("posterior", "posterior_moments", "sample_stats"):
        for name, array in _compat.group(alone, group).data_vars.items():
            np.testing.assert_array_equal(_compat.group(found, group)[name], array, err_msg=name)


@pytest.mark.parametrize("room", [clusters.ROOM, 0.0])
def test_workers_read_a_block_once_while_they_have_room(room, blocks, client, tmp_path):
    """And once more for the density of the result; without room in each pass. Long: workers load kernels."""
    data, was = NotedReads(blocks, tmp_path / "reads"), clusters.ROOM
    client.run(set_room, room)
    try:
        run = {"engine": "em", "max_iter": 3, "tol": 0.0, "random_seed": 1, "quiet": True, "search": None}
        found = nz.fit(model=model(), data=data, executor=client, store=tmp_path / "o.zarr", **run)
    finally:
        client.run(set_room, was)
    read = [path.name.split("-") for path in data.notes.iterdir()]
    by_workers = [int(number) for number, process, _ in read if int(process) != os.getpid()]
    times = np.bincount(by_workers)
    assert np.all(times == 2) if room else np.all(times >= 5)
    assert_same_bits(found, nz.fit(model=model(), data=blocks, **run))


class NotedReads:
    """Blocks of another source; each read leaves a file."""

    def __init__(self, source, notes):
        self.source, self.notes, self.shape, self.bounds = source, notes, source.shape, source.bounds
        notes.mkdir()

    def read(self, number):
        (self.notes / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return self.source.read(number)


@pytest.mark.parametrize("verb", [nz.fit, nz.sample])
def test_what_workers_keep_goes_with_the_run(verb, blocks, client, tmp_path):
    """Not when the garbage of this process is collected."""
    few = {"max_iter": 2, "search": None, "engine": "em"} if verb is nz.fit else {"draws": 2, "tune": 1, "chains": 1}
    gc.collect()
    gc.disable()
    try:
        verb(model=model(), data=blocks, executor=client, store=tmp_path / "o.zarr", random_seed=1, quiet=True, **few)
        ends = time.monotonic() + 10.0
        while client.futures and time.monotonic() < ends:
            time.sleep(0.01)
        assert not client.futures
    finally:
        gc.enable()


def set_room(room):
    clusters.ROOM = room


def test_what_is_kept_has_the_bytes_of_its_arrays():
    array = np.zeros(1000)
    kept = clusters.KeptByWorker([{"one": array, "again": array}, np.zeros((10, 10), np.int32), "text"])
    assert sys.getsizeof(kept) == pytest.approx(8000 + 400, abs=64)


class KilledWorker(Exception):
    """As Dask says it of a piece."""


class Losing:
    """A client in this process; the first ``lost`` pieces that are asked for have ended their workers."""

    status = "running"

    def __init__(self, lost: int):
        self.lost = lost

    def scheduler_info(self):
        return {"address": "tcp://nowhere"}

    def submit(self, function, *given, pure):
        return SimpleNamespace(result=lambda: self.result(*given))

    def result(self, work, shared, own, item, here):
        if self.lost:
            self.lost -= 1
            raise KilledWorker
        return work(item)

    def cancel(self, futures):
        pass


def losing(lost):
    """What a pass over three pieces gives."""
    return list(clusters.Cluster(Losing(lost)).map(lambda item: 2 * item, "shared", "own", [1, 2, 3]))


def test_pieces_whose_workers_end_are_done_again():
    assert losing(0) == losing(2) == losing(clusters.MOST_LOST) == [2, 4, 6]


def test_pieces_that_end_their_workers_end_the_run():
    with pytest.raises(nz.RunFailed, match="workers end while they work on a piece"):
        losing(clusters.MOST_LOST + 1)


@at_full_size
@pytest.mark.campaign
def test_workers_that_die_at_any_moment_change_nothing(blocks, tmp_path):
    """Twenty die by SIGKILL at random moments, and one more joins late. Long: each is started anew."""
    rng, over, killed, joined = np.random.default_rng(7), threading.Event(), [], []
    run = {**RUN, "max_iter": 2_000, "tol": 1e-9}
    alone = nz.fit(model=model(), data=blocks, engine="vb", **run)

    def kill():
        while len(killed) < 20 and not over.wait(rng.uniform(0.5, 3.0)):
            pids = [worker.pid for worker in local.workers.values() if worker.pid and worker.pid not in killed]
            if pids:
                killed.append(pids[rng.integers(len(pids))])
                os.kill(killed[-1], signal.SIGKILL)

    def look(step):
        time.sleep(0.05)  # so that there are moments enough
        if step.number == 100:
            local.scale(3)
        joined.append(len(client.scheduler_info()["workers"]))

    with distributed.LocalCluster(**TWO_WORKERS) as local, distributed.Client(local) as client:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            found = nz.fit(
                model=model(), data=blocks, engine="vb", executor=client, store=tmp_path / "o.zarr", on_step=look, **run
            )
        finally:
            over.set()
            killer.join()
    assert len(killed) == 20
    assert max(joined) == 3
    assert_same_bits(found, alone)


def test_from_the_command_line(blocks, client, alone, tmp_path, capsys, monkeypatch):
    """As the call, where a scheduler answers; else one line."""
    monkeypatch.setattr(fit, "PATIENCE", 2.0)
    address = client.scheduler_info()["address"]
    line = f"fit {blocks.path} --model gamma-nmf --rank 3 --engine vb --random-seed 1 --tol 0 --max-iter 12 --quiet"
    assert main([*line.split(), "-o", str(tmp_path / "o.zarr"), "--scheduler", address]) == 0
    found = nz.load(tmp_path / "o.zarr")
    assert found.attrs["blocks"] == 1  # the store is cut as the command cuts it
    np.testing.assert_allclose(
        _compat.group(found, "fit")["objective"], _compat.group(alone["vb"], "fit")["objective"], rtol=1e-12
    )
    for output, where, expected in (
        ("p.nc", address, "an output that ends in .zarr"),
        ("p.zarr", "tcp://127.0.0.1:9", "where no scheduler answers"),
    ):
        capsys.readouterr()
        assert main([*line.split(), "-o", str(tmp_path / output), "--scheduler", where]) == 2
        said = capsys.readouterr().err
        assert expected in said
        assert said.count("\n") == 1
        assert not (tmp_path / output).exists()


@contextmanager
def from_the_shell(folder):
    """(the scheduler's process, its file) of ``dask scheduler`` with a ``dask worker``."""
    file = folder / f"scheduler-{time.monotonic_ns()}.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [*dask, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)], **quiet
    )
    worker = subprocess.Popen([*dask, "worker", "--no-nanny", "--no-dashboard", "--scheduler-file", str(file)], **quiet)
    try:
        yield scheduler, str(file)
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


@pytest.mark.campaign
def test_a_lost_scheduler_leaves_a_checkpoint(blocks, client, alone, tmp_path):
    """The same call goes on from it with another cluster. Long: two processes start, and a client waits in vain."""
    run = {**RUN, "checkpoint": tmp_path / "run", "store": tmp_path / "o.zarr"}
    patience = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
    with patience, from_the_shell(tmp_path) as (scheduler, file), distributed.Client(scheduler_file=file) as lost:
        lost.wait_for_workers(1)

        def lose(step):
            if step.number == 5:
                scheduler.kill()

        with pytest.raises(nz.RunFailed, match="same call goes on"):
            nz.fit(model=model(), data=blocks, engine="em", executor=lost, on_step=lose, **run)
    found = nz.fit(model=model(), data=blocks, engine="em", executor=client, **run)
    assert_same_bits(found, alone["em"])


@pytest.mark.campaign
def test_killed_workers_change_nothing(blocks, client, alone, tmp_path):
    """Two of the two processes die in turn by SIGKILL; lost pieces are done again."""
    killed = []

    def kill(step):
        if step.number in (3, 7):
            workers = client.cluster.workers.values()
            killed.append(next(worker.pid for worker in workers if worker.pid and worker.pid not in killed))
            os.kill(killed[-1], signal.SIGKILL)

    run = {**RUN, "executor": client, "store": tmp_path / "o.zarr", "on_step": kill}
    found = nz.fit(model=model(), data=blocks, engine="vb", **run)
    assert len(set(killed)) == 2
    assert_same_bits(found, alone["vb"])


def declare(rank):
    """Sent by name: no function of the prompt."""
    return nz.gamma_nmf(np.random.default_rng(2).poisson(3.0, (6, 12)), rank)


def test_many_runs_go_to_a_client_as_to_threads(client):
    """Ranks, each a piece of its own; the client stays open."""
    run = {"restarts": 1, "search": None, "random_seed": 1, "quiet": True}
    there, here = (nz.select_rank(declare, [1, 2], executor=executor, **run) for executor in (client, None))
    np.testing.assert_array_equal(there["estimate"], here["estimate"])
    there, here = (nz.fit(declare(2), search=nz.Search(fits=4), executor=own, **RUN) for own in (client, None))
    assert_same_bits(there, here)
    assert client.status == "running"


def test_one_table_in_memory_on_disk_and_on_a_cluster_has_the_same_digests(client):
    """The script that prints them. Long: it compiles a fit of each engine, in each process."""
    found = list(same_bits.places(client, (40, 120)))
    assert [row["met?"] for row in found] == ["yes"] * 14
    assert len({row["ours"] for row in found}) == 4  # algorithms and blocks


def test_workers_that_differ_are_refused(blocks, client, tmp_path, monkeypatch):
    found = clusters.fingerprint()
    monkeypatch.setattr(clusters, "fingerprint", lambda: {**found, "NumPy": "1.0"})
    with pytest.raises(nz.InputError, match=r"executor: got a worker with NumPy .*; expected 1\.0") as error:
        nz.fit(model=model(), data=blocks, executor=client, store=tmp_path / "o.zarr", **RUN)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["2024.12.1", "2027.1.0"])
def test_other_versions_of_dask_are_refused(version, blocks, client, tmp_path, monkeypatch):
    """Those that the extra does not install: over blocks, and on data in memory."""
    monkeypatch.setattr(clusters, "version", lambda package: version)
    over_blocks = {"model": model(), "data": blocks, "store": tmp_path / "o.zarr"}
    for run in (over_blocks, {"model": declare(2)}):
        with pytest.raises(nz.InputError, match=f"a Client of distributed {version}; expected one of 2025.1") as error:
            nz.fit(executor=client, **run, **RUN)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_extra_installs_these_versions():
    with open(Path(nz.__file__).parents[1] / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (first, last), beyond = clusters.FIRST, clusters.BEYOND[0]
    assert extras["dask"] == [f"distributed>={first}.{last},<{beyond}"]
    assert extras["dask"][0] in extras["test"]


def test_what_is_refused(blocks, client, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    where = {"store": tmp_path / "o.zarr"}
    for given, line in (
        ({"executor": client}, "store: got None with a cluster; expected a new .zarr"),
        ({"executor": ThreadPoolExecutor(1), **where}, "executor: got ThreadPoolExecutor with data="),
        ({"executor": client, "data": np.ones((40, 6)), **where}, "data: got an array in memory"),
    ):
        with pytest.raises(nz.InputError, match=line):
            nz.fit(model=model(), **{"data": blocks, **given}, **RUN)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("order", ["C", "F"])
def test_maps_are_opened_by_their_file(order, tmp_path):
    import pickle

    X = np.asarray(np.arange(24.0).reshape(4, 6), order=order)
    np.save(tmp_path / "x.npy", X)
    for transpose in (False, True):
        source = nz.open_blocks(tmp_path / "x.npy", block=2, transpose=transpose)
        copy = pickle.loads(pickle.dumps(source))
        assert len(pickle.dumps(source)) < 1000
        for number in range(len(source.bounds) - 1):
            np.testing.assert_array_equal(copy.read(number), source.read(number))
    with pytest.raises(nz.InputError, match="an array in memory"):
        pickle.dumps(nz.open_blocks(tmp_path / "x.npy").__class__(np.load(tmp_path / "x.npy", mmap_mode="r")[1:]))
