"""What engines hold against what docs/guide/large.md says they do, and that fits leave nothing behind."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmf_zoo.inference.counts import em, gibbs, mcem, online_em, vb
from nmf_zoo.inference.hmm import exact, online, particle_em, particle_filter, particle_gibbs, particle_online
from nmf_zoo.inference.hmm.recursions import block_length
from nmf_zoo.inference.hmm.support import cloud_memory
from nmf_zoo.inference.powers import em as power_em
from nmf_zoo.inference.powers import gibbs as power_gibbs
from nmf_zoo.inference.powers import online_em as online_powers
from nmf_zoo.inference.powers import vb as power_vb
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.streaming.columns import block_of_data
from nmf_zoo.structure import BasisChainPrior, Cells, UnitChainPrior
from tests.sizes import size
from tests.structures import gamma, inverse_gamma, model, parameter, unknown

SHAPES = [(900, 1200, 4), (400, 500, 60)]
ROOM = 2e6  # bytes of blocks that stay in cache
WITHIN = 8.0  # the peak is no less than the formula over this, or it would say nothing
FIRST, LAST = 300, size(700, 2_000)  # fits; the allocator may take a few MiB once, a leak grows in both halves
GROWTH = """
import ctypes, gc, pathlib, sys
import numpy as np
import nmf_zoo as nz

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) / 1024

first, last = map(int, sys.argv[1:])
model = nz.poisson_nmf(np.random.default_rng(1).poisson(3.0, (4, 5)), 2)
halves, found = (first, (first + last) // 2, last), []
for seed in range(last + 1):
    if seed in halves:
        found.append(resident())
    nz.fit(engine=nz.EM(), model=model, max_iter=3, search=None, random_seed=seed, quiet=True)
print(2.0 * min(found[1] - found[0], found[2] - found[1]))
"""


class Held(NamedTuple):
    """Of an engine: copies of a dense X, bytes for a stored cell, pairs of factors (W and H in float64)."""

    engine: Engine
    options: object
    kind: str
    copies: float
    per_cell: float
    pairs: float
    of_masses: float = 0.0  # pairs times the rank
    of_table: float = 0.0  # bytes for each cell of the table where X is a list of a tenth of them or more

    def bytes(self, shape: tuple[int, int, int], cells: int | None) -> float:
        F, N, K = shape
        dense = 8.0 * self.copies * F * N
        data = dense if cells is None else self.per_cell * cells + self.of_table * F * N
        return data + (self.pairs + self.of_masses * K) * 8.0 * K * (F + N) + ROOM


NEVER, ALWAYS = (gibbs.Gibbs(trajectories=word) for word in ("never", "always"))
ENGINES = {
    "em": Held(em.ENGINE, em.EM(), "poisson", 1.5, 20, 10),
    "em, momentum": Held(em.ENGINE, em.EM(accelerate="momentum"), "poisson", 1, 20, 36),
    "em, squared error": Held(em.ENGINE, em.EM(), "normal", 1, 12, 16),
    "vb": Held(vb.ENGINE, vb.VB(), "poisson", 1, 20, 16),
    "mcem": Held(mcem.ENGINE, mcem.MCEM(sweeps=3, burn_in=1, exact=False), "poisson", 7, 20, 20),
    "gibbs": Held(gibbs.ENGINE, NEVER, "poisson", 7, 20, 8),
    "gibbs, trajectories": Held(gibbs.ENGINE, ALWAYS, "poisson", 7, 40, 36, of_table=16),
    "em, powers": Held(power_em.ENGINE, em.EM(), "exponential", 1, 12, 32),
    "vb, powers": Held(power_vb.ENGINE, vb.VB(), "exponential", 1, 12, 32),
    "gibbs, powers": Held(power_gibbs.ENGINE, NEVER, "exponential", 1, 12, 12),
    "gibbs, powers, trajectories": Held(power_gibbs.ENGINE, gibbs.Gibbs(), "exponential", 4, 12, 32, 2),
}
CASES = [(name, shape, sparse) for name in ENGINES for shape in SHAPES for sparse in (False, True)]
CASES = [case for case in CASES if not case[2] or ENGINES[case[0]].kind == "poisson"]


def structure_of(kind: str, shape: tuple[int, int, int], sparse: bool, priors: tuple[Any, Any] | None = None):
    F, N, K = shape
    x = np.random.default_rng(1).poisson(0.3 if sparse else 2.0, (F, N)).astype(float)
    prior = inverse_gamma(2.0, 1.0) if kind == "exponential" else gamma(1.5 if kind == "poisson" else 1.0, 1.0)
    of_W, of_H = priors or (prior, prior)
    structure = model(x + (kind != "poisson"), K, of_W, of_H, kind=kind, sigma=1.0 if kind == "normal" else None)
    if not sparse:
        return structure
    rows, columns = np.nonzero(x)
    cells = Cells(
        rows=rows.astype(np.int32), cols=columns.astype(np.int32), values=x[rows, columns], shape=x.shape,
        is_complete=True,
    )  # fmt: skip
    return dataclasses.replace(structure, data=cells)


def run(held: Held | Chained, structure) -> Any:
    problem, key = held.engine.prepare(structure, held.options, SERIAL), seed_key(1)
    state = held.engine.init(problem, child(key, 0), {})
    for number in range(2):
        state, _ = (held.engine.tune or held.engine.step)(problem, state, child(key, 1, number))
    return problem, state


def run_to_the_end(held: Held | Chained, structure, draws: int) -> None:
    """With what a fit says of its solution, and draws at it: of a chain whole paths."""
    problem, state = run(held, structure)
    if held.engine.finish is not None:
        held.engine.finish(problem, state, seed_key(3), draws)


@pytest.mark.parametrize(("name", "shape", "sparse"), CASES)
def test_the_peak_is_what_the_guide_says(name, shape, sparse):
    held = ENGINES[name]
    structure = structure_of(held.kind, shape, sparse)
    run(held, structure_of(held.kind, shape, sparse))  # code is compiled before, that of large tables too
    stated = held.bytes(shape, len(structure.data.values) if sparse else None)
    require_peak(stated, lambda: run_to_the_end(held, structure, draws=1))


def require_peak(stated: float, work: Callable[[], None]) -> None:
    tracemalloc.start()
    try:
        work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stated / WITHIN < peak <= stated, f"{peak / 1e6:.1f} MB, stated {stated / 1e6:.1f} MB"


# -- chains and streams: what grows with states, particles and mini-batches --------------------------------------------


class Chained(NamedTuple):
    """Of an engine for chains: ``numbers`` of 8 bytes beside the data and the factors, by (F, N, K)."""

    engine: Engine
    options: object
    prior: object
    numbers: Callable[[int, int, int], float]
    copies: float
    per_cell: float
    pairs: float

    def bytes(self, shape: tuple[int, int, int], cells: int | None) -> float:
        held = Held(self.engine, self.options, "poisson", self.copies, self.per_cell, self.pairs)
        return held.bytes(shape, cells) + 8.0 * self.numbers(*shape)


def numbers_of_states(F: int, N: int, K: int) -> float:
    """Of all 2^K states: tables and sums of the features, the rows of a block of times, and an end of each block."""
    block = block_length(N, 1 << K)
    return 2.0**K * (6 * F + 2 * block + N / block + K)


def numbers_of_particles(F: int, N: int, K: int) -> float:
    """Sums of every particle; for paths, all particles of a block of times, and those that each block begins with."""
    block = max(N**0.5 + 1, min(N, particle_filter.KEPT / (PARTICLES * (2 * K + 3))))
    return PARTICLES * (K * (F + 20) + 16 + (2 * K + 3) * (block + 2 * N / block))


PARTICLES = 400
BINARY = BasisChainPrior(p=unknown("p", "uniform", 0.0, 1.0), q=parameter(0.6), initial=None)
UNIT = UnitChainPrior(alpha=parameter(0.8))
CHAINS = {
    "hmm_exact": Chained(exact.ENGINE, exact.HMMExact(), BINARY, numbers_of_states, 7, 20, 10),
    "particle_em": Chained(
        particle_em.ENGINE, particle_em.ParticleEM(particles=PARTICLES, proposal="bootstrap"), UNIT,
        numbers_of_particles, 7, 20, 10,
    ),
    "particle_gibbs": Chained(
        particle_gibbs.ENGINE, particle_gibbs.ParticleGibbs(particles=PARTICLES, block=2), UNIT,
        lambda F, N, K: PARTICLES * N * (2 * 2 + 0.5), 9, 60, 12,
    ),
}  # fmt: skip
OF_PARTICLES = [(100, 600, 4), (300, 60, 8)]
OF_CHAINS = {"hmm_exact": [(60, 3000, 6), (200, 400, 9)], "particle_em": OF_PARTICLES, "particle_gibbs": OF_PARTICLES}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in CHAINS for shape in OF_CHAINS[name]])
def test_the_peak_of_chains_is_what_the_guide_says(name, shape, sparse):
    held = CHAINS[name]
    priors = gamma(1.5, 1.0), held.prior
    structure = structure_of("poisson", shape, sparse, priors)
    run_to_the_end(held, structure_of("poisson", (30, 20, 3), sparse, priors), draws=10)
    stated = held.bytes(shape, len(structure.data.values) if sparse else None)
    require_peak(stated, lambda: run_to_the_end(held, structure, draws=10))


def test_particles_are_refused_by_what_they_take(monkeypatch):
    """The estimate that a run is refused by, at long series of few features, where the paths take most."""
    monkeypatch.setattr(particle_filter, "KEPT", 1)
    held = CHAINS["particle_em"]._replace(
        options=particle_em.ParticleEM(particles=2000, proposal="bootstrap", repeats=1)
    )
    structure = structure_of("poisson", (2, 900, 2), False, (gamma(1.5, 1.0), UNIT))
    run_to_the_end(held, structure_of("poisson", (2, 20, 2), False, (gamma(1.5, 1.0), UNIT)), draws=10)
    require_peak(1.2 * cloud_memory(structure, 2000), lambda: run_to_the_end(held, structure, draws=10))


class Streamed(NamedTuple):
    """Of a stream: ``numbers`` of 8 bytes beside the block that is given, by (F, K), its columns and its cells."""

    engine: Any
    options: Any
    kind: str
    priors: tuple[Any, Any]
    numbers: Callable[[int, int, int, int], float]


def numbers_of_powers(F: int, K: int, n: int, cells: int) -> float:
    """Statistics of every chunk of frames, and the frames that wait for the start of W."""
    chunks = n / max(1, online_powers.CHUNK_WORK // (F * K * SWEEPS))
    return F * K * (24 + chunks) + 12 * F * n


SWEEPS = 20
STREAMS = {
    "online_em, counts": Streamed(
        online_em.STREAM, online_em.OnlineEM(), "poisson", (None, gamma(1.5, 1.0)),
        lambda F, K, n, cells: 12 * F * K + 4 * K * n + 2 * cells + min(2 * K * cells, 1.2e6),
    ),
    "online_em, powers": Streamed(
        online_powers.STREAM, online_powers.SimulatedOnlineEM(sweeps=SWEEPS), "exponential",
        (None, inverse_gamma(2.0, 1.0)), numbers_of_powers,
    ),
    "online_em, binary chains": Streamed(
        online.STREAM, online.ChainOnlineEM(), "poisson", (gamma(1.5, 1.0), BINARY),
        lambda F, K, n, cells: 2.0**K * (2 * K * (F + 6) + 4 * F) + 8 * cells + 10 * F * K,
    ),
    "online_em, particles": Streamed(
        particle_online.STREAM, particle_online.ParticleOnlineEM(particles=PARTICLES, proposal="bootstrap"), "poisson",
        (gamma(1.5, 1.0), UNIT), lambda F, K, n, cells: PARTICLES * (K * (2 * F + 40) + 30) + 8 * cells + 10 * F * K,
    ),
}  # fmt: skip


def stream(held: Streamed, structure, block) -> None:
    problem = held.engine.prepare(structure, held.options, SERIAL)
    state = held.engine.init(problem, block, seed_key(1), {})
    for _ in range(2):
        state, _ = held.engine.update(problem, state, block, seed_key(2))


@pytest.mark.parametrize("shape", [(600, 300, 4), (200, 150, 9)])
@pytest.mark.parametrize("name", STREAMS)
def test_the_peak_of_a_stream_is_what_the_guide_says(name, shape):
    held = STREAMS[name]
    small, structure = (structure_of(held.kind, each, False, held.priors) for each in ((30, 120, shape[2]), shape))
    stream(held, small, block_of_data(small, held.engine))
    block, (F, N, K) = block_of_data(structure, held.engine), shape
    stated = 8.0 * held.numbers(F, K, N, np.count_nonzero(structure.data.values)) + ROOM
    require_peak(stated, lambda: stream(held, structure, block))


# -- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_fits_leave_nothing_behind():
    """Long: hundreds of fits."""
    command = [sys.executable, "-W", "ignore", "-c", GROWTH, str(FIRST), str(LAST)]
    grown = float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    allowed = min(1.0, (LAST - FIRST) * 1.7 / 1024)  # MiB, of 1.7 KiB a fit
    assert grown <= allowed, f"{grown:.2f} MiB between fits {FIRST} and {LAST}"
