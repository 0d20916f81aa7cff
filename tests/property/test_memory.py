"""What engines hold against what docs/guide/large.md says they do, and that fits leave nothing behind."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest

from nmf_zoo.inference import em, gibbs, mcem, vb
from nmf_zoo.inference.engine import Engine
from nmf_zoo.inference.itakura_saito import em as power_em
from nmf_zoo.inference.itakura_saito import gibbs as power_gibbs
from nmf_zoo.inference.itakura_saito import vb as power_vb
from nmf_zoo.inference.workers import SERIAL
from nmf_zoo.kernels.streams import child, seed_key
from nmf_zoo.structure import Cells
from tests.sizes import size
from tests.structures import gamma, inverse_gamma, model

SHAPES = [(900, 1200, 4), (400, 500, 60)]
ROOM = 2e6  # bytes of blocks that stay in cache
WITHIN = 8.0  # the peak is no less than the formula over this, or it would say nothing
FIRST, LAST = size(100, 500), size(400, 2000)  # fits
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
for seed in range(last):
    if seed == first:
        before = resident()
    nz.fit(engine=nz.EM(), model=model, max_iter=3, random_seed=seed, quiet=True)
print(resident() - before)
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

    def bytes(self, shape: tuple[int, int, int], cells: int | None) -> float:
        F, N, K = shape
        data = self.per_cell * cells if cells is not None else 8.0 * self.copies * F * N
        return data + (self.pairs + self.of_masses * K) * 8.0 * K * (F + N) + ROOM


NEVER, ALWAYS = (gibbs.Gibbs(trajectories=word) for word in ("never", "always"))
ENGINES = {
    "em": Held(em.ENGINE, em.EM(), "poisson", 1.5, 20, 10),
    "em, momentum": Held(em.ENGINE, em.EM(accelerate="momentum"), "poisson", 1, 20, 36),
    "em, squared error": Held(em.ENGINE, em.EM(), "normal", 1, 12, 16),
    "vb": Held(vb.ENGINE, vb.VB(), "poisson", 1, 20, 16),
    "mcem": Held(mcem.ENGINE, mcem.MCEM(sweeps=3, burn_in=1, exact=False), "poisson", 7, 20, 20),
    "gibbs": Held(gibbs.ENGINE, NEVER, "poisson", 7, 20, 8),
    "gibbs, trajectories": Held(gibbs.ENGINE, ALWAYS, "poisson", 7, 20, 36),
    "em, powers": Held(power_em.ENGINE, em.EM(), "exponential", 1, 12, 32),
    "vb, powers": Held(power_vb.ENGINE, vb.VB(), "exponential", 1, 12, 32),
    "gibbs, powers": Held(power_gibbs.ENGINE, NEVER, "exponential", 1, 12, 12),
    "gibbs, powers, trajectories": Held(power_gibbs.ENGINE, gibbs.Gibbs(), "exponential", 4, 12, 32, 2),
}
CASES = [(name, shape, sparse) for name in ENGINES for shape in SHAPES for sparse in (False, True)]
CASES = [case for case in CASES if not case[2] or ENGINES[case[0]].kind == "poisson"]


def structure_of(kind: str, shape: tuple[int, int, int], sparse: bool):
    F, N, K = shape
    x = np.random.default_rng(1).poisson(0.3 if sparse else 2.0, (F, N)).astype(float)
    prior = inverse_gamma(2.0, 1.0) if kind == "exponential" else gamma(1.5 if kind == "poisson" else 1.0, 1.0)
    structure = model(x + (kind != "poisson"), K, prior, prior, kind=kind, sigma=1.0 if kind == "normal" else None)
    if not sparse:
        return structure
    rows, columns = np.nonzero(x)
    cells = Cells(
        rows=rows.astype(np.int32), cols=columns.astype(np.int32), values=x[rows, columns], shape=x.shape,
        is_complete=True,
    )  # fmt: skip
    return dataclasses.replace(structure, data=cells)


def run(held: Held, structure) -> None:
    problem, key = held.engine.prepare(structure, held.options, SERIAL), seed_key(1)
    state = held.engine.init(problem, child(key, 0), {})
    for number in range(2):
        state, _ = (held.engine.tune or held.engine.step)(problem, state, child(key, 1, number))


@pytest.mark.parametrize(("name", "shape", "sparse"), CASES)
def test_the_peak_is_what_the_guide_says(name, shape, sparse):
    held = ENGINES[name]
    structure = structure_of(held.kind, shape, sparse)
    run(held, structure_of(held.kind, (30, 20, 3), sparse))  # code is compiled before
    tracemalloc.start()
    try:
        run(held, structure)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    stated = held.bytes(shape, len(structure.data.values) if sparse else None)
    assert stated / WITHIN < peak <= stated, f"{peak / 1e6:.1f} MB, stated {stated / 1e6:.1f} MB"


@pytest.mark.statistical
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_fits_leave_nothing_behind():
    command = [sys.executable, "-W", "ignore", "-c", GROWTH, str(FIRST), str(LAST)]
    grown = float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert grown <= 1.0, f"{grown:.2f} MiB between fits {FIRST} and {LAST}"
