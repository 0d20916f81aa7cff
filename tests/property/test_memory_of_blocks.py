"""A fit, and chains, over blocks within a limit on private memory that the table itself would break.

``NMF_ZOO_TEST_SIZE=full`` takes 10^8 counts and 1 GiB, libraries included.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.large_table import GIVES_BACK
from tests.sizes import FULL, size

pytest.importorskip("zarr")
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(sys.platform != "linux", reason="limits and private memory are Linux's"),
]
SAMPLES, CELLS, FEATURES, RANK = size(120_000, 1_000_000), 100, size(3000, 20_000), 10
# Bytes of writable memory beside what the process has. BLAS maps 32 MiB for each thread. Stacks are of 2 MiB: of the
# usual 8 a thread touches some pages, while the limit counts all, and a dozen threads begin when they are needed.
ROOM = size(256, 800) << 20
LIMITED = """
import resource, sys, threading
threading.stack_size(1 << 21)
import nmf_zoo as nz
from benchmarks.large_table import LargeTable, PeakOfMemory, private_memory

path, how, features, room = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
run = dict(engine=nz.VB(accelerate=None), tol=0, random_seed=1, quiet=True, cores=2)

def model(X, **more):
    return nz.gamma_nmf(X, int(sys.argv[5]), alpha_w=0.3, alpha_h=0.3, **more)

small = nz.open_blocks(LargeTable(50, 400, 20, 400).read(0), block=200)
drawn = dict(tune=1, chains=1, random_seed=1, quiet=True, cores=2)
if how == "draws":
    nz.sample(2, model=model(None, shape=(50, 1)), data=small, **drawn)
nz.fit(model=model(None, shape=(50, 1)), data=small, max_iter=2, **run)  # compiled, threads and libraries there
lines = open("/proc/self/status").read().splitlines()
now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
base = private_memory()
resource.setrlimit(resource.RLIMIT_DATA, (now + room, resource.RLIM_INFINITY))
blocks = nz.open_blocks(path)
try:
    declared = model(None, shape=(features, 1))
    if how == "draws":
        with PeakOfMemory() as peak:
            found = nz.sample(2, model=declared, data=blocks, store=path + ".draws.zarr", **drawn)
        means = found.posterior_moments["H_mean"].sel(obs=slice(0, 1))
        print("done", means.shape[-1], (peak.peak - base) >> 20, peak.peak >> 20)
    elif how == "blocks":
        with PeakOfMemory() as peak:
            found = nz.fit(model=declared, data=blocks, max_iter=2, store=path + ".fit.zarr", **run)
        print("done", found.posterior["H"].sel(obs=slice(0, 1)).shape[-1], (peak.peak - base) >> 20, peak.peak >> 20)
    else:
        whole = nz.open_blocks(path, block=blocks.shape[1]).read(0).X
        nz.fit(model=model(whole), max_iter=2, search=None, **run)
        print("done")
except MemoryError:
    print("out of memory")
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The path of a table, written by a process that has time for it."""
    path = tmp_path_factory.mktemp("large") / "table.zarr"
    text = (
        "import sys; import nmf_zoo as nz; from benchmarks.large_table import LargeTable; "
        "F, N, C = map(int, sys.argv[2:]); "
        "nz.write_blocks(sys.argv[1], LargeTable(F, N, C, 10_000), compress=False)"
    )
    sizes = map(str, (FEATURES, SAMPLES, CELLS))
    subprocess.run([sys.executable, "-c", text, str(path), *sizes], check=True)
    return path


def run(table, how):
    words = [sys.executable, "-W", "ignore", "-c", LIMITED, str(table), how, str(FEATURES), str(ROOM), str(RANK)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | GIVES_BACK)


@pytest.mark.parametrize("how", ["blocks", "draws"])
def test_over_blocks_the_limit_holds(how, table):
    """Long: the limit is of a process of its own, which reads ten million stored cells in every pass."""
    found = run(table, how)
    assert found.stdout.startswith("done"), found.stdout + found.stderr[-2000:]
    _, samples, more, private = map(str, found.stdout.split())
    assert int(samples) == 2
    assert int(more) << 20 < ROOM
    if FULL:
        assert int(private) < 1024


def test_in_memory_it_breaks(table):
    """The limit that holds over blocks is too small for the table in memory.

    Long: processes of their own, with all that they import.
    """
    found = run(table, "memory")
    assert "out of memory" in found.stdout or "MemoryError" in found.stderr, found.stdout + found.stderr[-2000:]
