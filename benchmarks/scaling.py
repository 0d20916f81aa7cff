"""How cost grows with non-zeros, components and samples: exponents of a ladder of sizes, beside the machine's roofline.

The roofline of some work is the time that its floating-point operations take at the rate of a matrix product, or its
bytes at the rate of a long sum of arrays, whichever is longer, both measured in the same run on one core. Operations
and bytes are the least that the algorithm needs: those of random draws are not counted. An exponent is the slope of log
seconds against log size over the ladder's upper half, so that what a call costs beside its data does not count.

``python -m benchmarks.scaling --plot scaling.png`` draws the ladders.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.clusters import FEATURES, seconds_of_iteration, texts
from benchmarks.hmm import simulate
from benchmarks.iterations import PLAIN, Stepper
from benchmarks.rows import Row, at_most, cpu_of, medians, note
from nmf_zoo.distributions import BasisChain

WITHIN = 2.0  # times the roofline
PER_CELL = {"EM": 6, "VB": 6, "Gibbs": 3}  # operations of a non-zero and component: a mean and what goes to either side
EXPONENTIAL, DIGAMMA = 20, 40  # operations that one is taken for
CHAINS, STREAMED = 5, 20  # binary chains of the filter; features of the stream


class Machine(NamedTuple):
    """Of one core: bytes and floating-point operations a second."""

    bytes: float
    flops: float

    def roofline(self, flops: float, moved: float) -> float:
        """Seconds at the least."""
        return max(flops / self.flops, moved / self.bytes)


class Rung(NamedTuple):
    """A size, the seconds that it took, and those of the roofline."""

    size: float
    seconds: float
    least: float


class Ladder(NamedTuple):
    """One kind of work at several sizes of ``what``."""

    work: str
    what: str
    rungs: list[Rung]

    @property
    def exponent(self) -> float:
        """Over the upper half."""
        size, seconds = np.log([rung[:2] for rung in self.rungs[len(self.rungs) // 2 - 1 :]]).T
        return float(np.polyfit(size, seconds, 1)[0])

    @property
    def over_roofline(self) -> float:
        """At the largest size."""
        return self.rungs[-1].seconds / self.rungs[-1].least

    def row(self) -> Row:
        first, last = self.rungs[0], self.rungs[-1]
        work = f"{self.work}: {self.what} {first.size:,.0f} to {last.size:,.0f}, at most {WITHIN:g} times the roofline"
        found = f"exponent {self.exponent:.2f}; {1e3 * last.seconds:.3g} ms at the largest"
        return at_most(work, found, self.over_roofline, WITHIN, f"{WITHIN:g} times", f"{1e3 * last.least:.3g} ms")


def rows(quick: bool) -> Iterator[Row]:
    """Of every ladder its exponent, and how far the largest size is from the roofline."""
    with threadpool_limits(1):
        machine = measure(quick)
        yield note("one core of this machine", f"{machine.bytes / 1e9:.1f} GB/s, {machine.flops / 1e9:.1f} Gflop/s")
        for ladder in ladders(machine, quick):
            yield ladder.row()


def measure(quick: bool) -> Machine:
    """The rate of a long sum of arrays, and that of a matrix product."""
    n, side = (1 << 20, 200) if quick else (1 << 25, 1500)
    a, b, c = np.ones((3, n))
    left = np.random.default_rng(0).random((side, side))
    of_sum, of_product = medians([cpu_of(lambda: np.add(a, b, out=c)), cpu_of(lambda: left @ left)], 1 if quick else 5)
    return Machine(4 * 8 * n / of_sum, 2.0 * side**3 / of_product)  # what is overwritten is read first


def ladders(machine: Machine, quick: bool) -> Iterator[Ladder]:
    """Non-zeros in memory and on disk, components, and samples of chains and streams."""
    of_cells = [1_000, 3_000] if quick else [1_000, 3_000, 10_000, 30_000, 100_000]
    of_ranks = [5, 10] if quick else [5, 10, 20, 50, 100, 200]
    of_samples = [100, 300, 1_000] if quick else [100, 1_000, 10_000, 100_000, 1_000_000]
    of_disk = [1_000, 3_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    for name in PER_CELL:
        yield Ladder(
            f"one {name} iteration or sweep, texts, K=10",
            "non-zeros",
            [of_table(machine, name, texts(n), 10) for n in of_cells],
        )
    for engine in ("em", "vb"):
        yield from over_blocks(machine, engine, of_disk)
    X = texts(300 if quick else 11_000)
    for name in PER_CELL:
        ranks = [of_table(machine, name, X, rank)._replace(size=rank) for rank in of_ranks]
        yield Ladder(f"one {name} iteration or sweep, {X.nnz:,} non-zeros", "components", ranks)
    filters = [of_filter(machine, n) for n in of_samples[:-1]]
    yield Ladder(f"exact filter of {CHAINS} binary chains", "samples", filters)
    yield Ladder(f"stream of GaP, {STREAMED} features, K=10", "samples", [of_stream(machine, n) for n in of_samples])


def of_table(machine: Machine, name: str, X: Any, rank: int) -> Rung:
    """One iteration or sweep of sparse counts."""
    if name == "Gibbs":
        stepper = Stepper(nz.read(nz.gamma_nmf(X, rank)), nz.Gibbs(trajectories="never"), "sample")
    else:
        declare = nz.poisson_nmf if name == "EM" else nz.gamma_nmf
        stepper = Stepper(nz.read(declare(X, rank)), PLAIN[name.lower()])
    (seconds,) = medians([cpu_of(stepper, calls=max(1, 1_000_000 // X.nnz))], 3)
    return Rung(X.nnz, seconds, machine.roofline(*needed(name, X.nnz, sum(X.shape) * rank, rank)))


def needed(name: str, n_cells: float, n_entries: float, rank: int) -> tuple[float, float]:
    """(operations, bytes): cells of 12 bytes are read once, the entries of the factors are read, summed and written."""
    of_factors = {"EM": 2.0, "VB": DIGAMMA + EXPONENTIAL, "Gibbs": 2.0}[name]
    return PER_CELL[name] * n_cells * rank + of_factors * n_entries, 12.0 * n_cells + 3 * 8.0 * n_entries


def over_blocks(machine: Machine, engine: str, sizes: list[int]) -> Iterator[Ladder]:
    """One iteration over blocks of a store, compressed as it is by default, in the page cache."""
    rungs = []
    with tempfile.TemporaryDirectory() as folder:
        for n_samples in sizes:
            X, path = texts(n_samples), Path(folder, f"{n_samples}.zarr")
            nz.write_blocks(path, X)
            n_cells = X.nnz
            del X
            blocks = nz.open_blocks(path, block=min(n_samples, 20_000))
            seconds = seconds_of_iteration(
                blocks, engine, time.process_time, Path(folder, f"{engine}-{n_samples}.zarr")
            )
            least = machine.roofline(*needed(engine.upper(), n_cells, (FEATURES + n_samples) * 10, 10))
            rungs.append(Rung(n_cells, seconds, least))
    yield Ladder(f"one {engine.upper()} iteration over a store, K=10", "non-zeros", rungs)


def of_filter(machine: Machine, n_times: int) -> Rung:
    """A call of `nz.filter`: K steps of three operations a state, log densities, and an exponential a state."""
    X, W = simulate(CHAINS, n_times)
    model = nz.hmm_nmf(X, CHAINS, chain=BasisChain(0.8571, 0.6926), background=0.1)
    (seconds,) = medians([cpu_of(partial(nz.filter, model=model, W=W))], 3)
    flops = n_times * 2**CHAINS * (3 * CHAINS + 2 * len(X) + EXPONENTIAL)
    return Rung(n_times, seconds, machine.roofline(flops, 8.0 * X.size))


def of_stream(machine: Machine, n_samples: int) -> Rung:
    """One update of a new stream by all samples: ten sweeps of each column's activations."""
    rng = np.random.default_rng(1)
    X = rng.poisson(rng.gamma(0.3, 10.0, (STREAMED, 10)) @ rng.gamma(0.5, size=(10, n_samples)))
    model = nz.gap(None, 10, shape=(STREAMED, 1))

    def update() -> None:
        nz.stream(model, random_seed=1).update(X)

    (seconds,) = medians([cpu_of(update)], 1 if n_samples > 100_000 else 3)
    return Rung(n_samples, seconds, machine.roofline(10 * PER_CELL["Gibbs"] * 10.0 * np.count_nonzero(X), 8.0 * X.size))


def plot(found: list[Ladder], path: Path) -> None:
    """Seconds against size, and the roofline below, a panel for each kind of ladder."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(ladder.what for ladder in found))
    figure, panels = plt.subplots(1, len(kinds), figsize=(5 * len(kinds), 4.5), squeeze=False, layout="constrained")
    for panel, kind in zip(panels[0], kinds, strict=True):
        for ladder in (own for own in found if own.what == kind):
            size, seconds, least = np.array(ladder.rungs).T
            (line,) = panel.loglog(size, seconds, marker="o", label=f"{ladder.work} ({ladder.exponent:.2f})")
            panel.loglog(size, least, ls=":", color=line.get_color())
        panel.set_xlabel(kind)
        panel.legend(fontsize=7, loc="upper left", title="work (exponent); dotted: roofline", title_fontsize=7)
    panels[0, 0].set_ylabel("CPU seconds")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ladders")
    given = parser.parse_args()
    found = []
    with threadpool_limits(1):
        machine = measure(given.quick)
        print(f"{machine.bytes / 1e9:.1f} GB/s, {machine.flops / 1e9:.1f} Gflop/s")
        for ladder in ladders(machine, given.quick):
            found.append(ladder)
            print(" | ".join(ladder.row().values()), flush=True)
    if given.plot:
        plot(found, given.plot)


if __name__ == "__main__":
    main()
