"""What a pass over blocks costs on a cluster, on paper: measured costs of this machine, a stated network, simulated.

Measured are the seconds of a non-zero in one process, and of an empty piece of work on a Dask cluster of two processes
here, and the effective draws of Gibbs there and in one process. From the first two a pass is played through, event by
event: W goes out from worker to worker, the scheduler hands out one piece after another, a worker that is free takes
it, sums come back to the client one after the other, of as many bytes as they have here. A pass of two workers here,
measured beside it, says how far that can be believed: they share this machine's memory, not a network.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips, used_words
from benchmarks.effective import bulk_ess
from benchmarks.rows import Row, note
from nmf_zoo._compat import group
from nmf_zoo.inference.shared.sample_blocks import SHARDS
from nmf_zoo.runtime.cluster import Cluster

FEATURES, RANK = 12_000, 10
RUNS: dict[str, Any] = {"EM": nz.EM(), "EM with momentum": nz.EM(accelerate="momentum"), "VB": nz.VB()}
SIZES, WORKERS = (10**6, 10**8, 10**10), (1, 10, 100)
EMPTY = 512  # pieces of nothing
PIECES, TUNE, DRAWS = 6, 50, 200  # of the NIPS counts; sweeps


class Network(NamedTuple):
    """Bytes a second of every machine's link, and seconds before the first byte."""

    rate: float
    latency: float


class Costs(NamedTuple):
    """Seconds: of a non-zero in a worker, and of a piece in the scheduler."""

    cell: float
    piece: float


NETWORK = Network(1.25e9, 1e-4)  # 10 Gbit a second


def seconds_of_pass(
    cells: float, pieces: int, workers: int, costs: Costs, network: Network, sent: int, back: int
) -> float:
    """One pass: ``sent`` bytes go to every worker, ``back`` bytes come from every piece."""
    rounds = int(np.ceil(np.log2(workers + 1)))  # who has W passes it on
    start = rounds * (network.latency + sent / network.rate)
    free = [start] * workers
    arrived = start
    for number in range(pieces):
        given = max(heapq.heappop(free), start + (number + 1) * costs.piece)
        done = given + cells / pieces * costs.cell
        heapq.heappush(free, done)
        arrived = max(arrived, done + network.latency) + back / network.rate
    return arrived


def rows(quick: bool) -> Iterator[Row]:
    """Costs measured, a pass of two workers beside its simulation, and passes on paper."""
    if not find_spec("distributed") or not find_spec("zarr"):
        yield note("passes over blocks on a cluster", "skipped: Dask or Zarr is not installed")
        return
    import distributed

    n_samples, block = (2_000, 250) if quick else (60_000, 2_000)
    with tempfile.TemporaryDirectory() as folder:
        X, own = texts(n_samples), Path(folder)
        nz.write_blocks(own / "x.zarr", X)
        blocks = nz.open_blocks(own / "x.zarr", block=block)
        alone = {
            name: seconds_of_iteration(blocks, engine, time.process_time, own / f"{name}.zarr")
            for name, engine in RUNS.items()
        }
        how = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
        with distributed.LocalCluster(**how) as local, distributed.Client(local, direct_to_workers=True) as client:
            piece = seconds_of_a_piece(client)
            shared = {
                name: seconds_of_iteration(blocks, engine, time.perf_counter, own / f"{name}-2.zarr", client)
                for name, engine in RUNS.items()
            }
            sizes = {
                name: sizes_of_pass(blocks, engine, own / f"{name}-3.zarr", client) for name, engine in RUNS.items()
            }
            drawn = [*draws_beside_one_process(own, client, quick)]
    yield from drawn
    yield note("an empty piece of work, two workers here", f"{1e3 * piece:.2f} ms")
    here, n_pieces = Network(2e9, 1e-4), len(blocks.bounds) - 1
    for name in RUNS:
        costs = Costs(alone[name] / X.nnz, piece)
        cost = f"{1e9 * costs.cell:.1f} ns a non-zero"
        yield note(f"one iteration of {name} over blocks, one process, {FEATURES:,} features, K={RANK}", cost)
        work = f"the same, {X.nnz:,} non-zeros in {n_pieces} pieces, two workers here"
        expected = seconds_of_pass(X.nnz, n_pieces, 2, costs, here, *sizes[name])
        yield note(work, f"{1e3 * shared[name]:.0f} ms", f"{1e3 * expected:.0f} ms (simulated)")
        yield from on_paper(name, costs, *sizes[name])


def draws_beside_one_process(folder: Path, client: Any, quick: bool) -> Iterator[Row]:
    """Effective draws a second, of two processes of one thread each beside one: of cells of W H, the median, and lp."""
    X, label = nips()
    X = used_words(sp.csc_array(X))
    nz.write_blocks(folder / "counts.zarr", X)
    blocks = nz.open_blocks(folder / "counts.zarr", block=-(-X.shape[1] // PIECES))
    model = nz.gamma_nmf(X=None, shape=(X.shape[0], 1), rank=RANK, alpha_w=0.3, alpha_h=0.3)
    how = {"model": model, "data": blocks, "random_seed": 1, "quiet": True, "cores": 1}
    with threadpool_limits(1):
        start = nz.fit(engine="vb", max_iter=2 if quick else 60, tol=0.0, search=None, **how)
        how |= {"chains": 1, "initvals": start}
        found = {}
        for name, executor in (("two", client), ("one", None)):
            own = {"store": folder / f"draws-{name}.zarr", "executor": executor}
            nz.sample(1, tune=1, **how, **own | {"store": folder / f"first-{name}.zarr"})  # compiles
            began, used = time.perf_counter(), cpu_of_all(executor)
            idata = nz.sample(20 if quick else DRAWS, tune=2 if quick else TUNE, **how, **own)
            seconds, cpu = time.perf_counter() - began, cpu_of_all(executor) - used
            stats = group(idata, "sample_stats")
            found[name] = Drawn(stats["lp"].to_numpy(), stats["mean"].to_numpy(), seconds, cpu)
    two, one = found["two"], found["one"]
    same = "the same draws" if np.array_equal(two.lp, one.lp) else "**other draws**"
    work = f"Gibbs over {PIECES} blocks, {label}, K={RANK}, {TUNE} + {DRAWS} sweeps from W of VB"
    yield note(f"{work}, two workers here beside one process", f"{two.rates()}; {same}", one.rates())


class Drawn(NamedTuple):
    """lp (chain, draw) and cells of W H (chain, draw, cell) of a run; its seconds by the clock, and of CPU in all."""

    lp: Any
    cells: Any
    seconds: float
    cpu: float

    def rates(self) -> str:
        """Effective draws a second."""
        cells, lp = np.median(bulk_ess(self.cells)), bulk_ess(self.lp[..., None])[0]
        clock, cpu = (f"{cells / spent:.2g} and {lp / spent:.2g}" for spent in (self.seconds, self.cpu))
        return f"{clock} effective draws a second of cells of W H (median) and lp, {cpu} a second of CPU"


def cpu_of_all(client: Any) -> float:
    """CPU seconds of this process so far, and of the workers'."""
    workers = {} if client is None else client.run(time.process_time)
    return time.process_time() + sum(workers.values())


def on_paper(name: str, costs: Costs, sent: int, back: int) -> Iterator[Row]:
    """Of tables that no single machine here holds; ``sent`` and ``back`` as of :func:`seconds_of_pass`."""
    rate = 8 * NETWORK.rate / 1e9
    for n_cells in SIZES:
        n_pieces = min(SHARDS, max(1, n_cells // 1_000_000))
        found = [seconds_of_pass(n_cells, n_pieces, own, costs, NETWORK, sent, back) for own in WORKERS]
        work = f"on paper: one iteration of {name}, {n_cells:.0e} non-zeros, {n_pieces} pieces, {rate:g} Gbit/s"
        times = ", ".join(f"{own} worker{'s' * (own > 1)} {one:.3g} s" for own, one in zip(WORKERS, found, strict=True))
        to_client = f"{n_pieces * back / 1e6:,.0f} MB and {n_pieces} messages come back"
        yield note(work, times, f"{sent / 1e6:.1f} MB go to each worker, {to_client}")
    least = 9 * (costs.piece + back / NETWORK.rate)
    label = f"on paper: least piece that loses a tenth to the scheduler and the client's link, {name}"
    yield note(label, f"{1e3 * least:.0f} ms, {least / costs.cell:,.0f} non-zeros")


def sizes_of_pass(blocks: Any, engine: Any, store: Path, client: Any) -> tuple[int, int]:
    """Bytes that go to every worker, and that come from every piece, as they are pickled; of the largest pass."""
    sizes: list[tuple[int, int]] = []
    pieces = Cluster.map

    def weighed(self: Cluster, work: Any, shared: Any, own: Any, *of_pieces: Any) -> Iterator[Any]:
        for found in pieces(self, work, shared, own, *of_pieces):
            sizes.append((len(pickle.dumps(own)), len(pickle.dumps(found))))
            yield found

    with patch.object(Cluster, "map", weighed):
        seconds_of_iteration(blocks, engine, time.perf_counter, store, client, max_iter=3)
    return max(sizes)


def texts(n_samples: int) -> sp.csc_array:
    """Counts like those of texts: some 90 words a sample, of frequencies that fall as one over the rank."""
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, FEATURES + 1)
    words = rng.choice(FEATURES, (n_samples, 100), p=weights / weights.sum())
    cols = np.repeat(np.arange(n_samples), 100)
    return sp.csc_array((np.ones(words.size), (words.ravel(), cols)), shape=(FEATURES, n_samples))


def seconds_of_iteration(
    blocks: Any, engine: Any, clock: Callable[[], float], store: Path, client: Any = None, max_iter: int = 8
) -> float:
    """The median of some iterations, by the given clock."""
    ends: list[float] = []
    model = nz.gamma_nmf(X=None, shape=(FEATURES, 1), rank=RANK)
    how = {
        "max_iter": max_iter,
        "tol": 0.0,
        "random_seed": 1,
        "quiet": True,
        "on_step": lambda step: ends.append(clock()),
    }
    with threadpool_limits(1):
        nz.fit(model=model, data=blocks, engine=engine, cores=1, executor=client, search=None, store=store, **how)
    return float(np.median(np.diff(ends)))


def seconds_of_a_piece(client: Any) -> float:
    """Of one of many that do nothing."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in Cluster(client).map(_nothing, None, None, range(EMPTY)):
            pass
        found.append((time.perf_counter() - began) / EMPTY)
    return min(found)


def _nothing(shared: Any, own: Any, item: int) -> None:
    return None


if __name__ == "__main__":
    for row in rows(False):
        print(" | ".join(row.values()), flush=True)
