"""One fit of a table in memory, on disk, and by two processes of a cluster: the digest of W, which is the same.

At equal algorithm and blocks: with one block also that of a model that was declared with the table. Other blocks add up
in another order, so that digests of one algorithm differ between them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import nmf_zoo as nz
from benchmarks.datasets import gamma_counts
from benchmarks.rows import Row, note, verdict
from nmf_zoo import _compat

RANK = 5
ENGINES = {"EM": nz.EM(accelerate="momentum"), "VB": nz.VB()}
RUN = {"max_iter": 12, "tol": 0.0, "random_seed": 1, "search": None, "quiet": True}


def rows(quick: bool) -> Iterator[Row]:
    """A row for each algorithm, number of blocks and place."""
    if find_spec("distributed") is None or find_spec("zarr") is None:
        yield note("the same bits", "skipped: neither Dask nor Zarr may be missing")
        return
    import distributed

    how = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as local, distributed.Client(local) as client:
        yield from places(client, (40, 120) if quick else (400, 6000))


def places(client: Any, shape: tuple[int, int]) -> Iterator[Row]:
    """By the workers of a Dask client, and in this process."""
    X = sp.csc_array(gamma_counts(*shape, RANK, 0.5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zarr"
        nz.write_blocks(path, X)
        for name, engine in ENGINES.items():
            for n_blocks in (1, 6):
                block = -(-shape[1] // n_blocks)
                store = Path(folder) / f"{name}-{n_blocks}.zarr"
                found = {} if n_blocks > 1 else {"the model's own": digest_of(nz.gamma_nmf(X, RANK), engine)}
                for place, data, where in (
                    ("in memory", X, {}),
                    ("on disk", path, {}),
                    ("two processes", path, {"executor": client, "store": store}),
                ):
                    model = nz.gamma_nmf(None, RANK, shape=(shape[0], 1))
                    found[place] = digest_of(model, engine, data=nz.open_blocks(data, block=block), **where)
                yield from rows_of(f"{name}, {n_blocks} {'block' if n_blocks == 1 else 'blocks'}", found)


def digest_of(model: Any, engine: Any, **where: Any) -> str:
    """Of the bits of W: of EM's point, of the parameters of VB's q, of which a run in memory keeps draws."""
    idata = nz.fit(model, engine=engine, **where, **RUN)
    fitted = _compat.group(idata, "fit")
    of_q = [fitted[name] for name in ("W_shape", "W_rate") if name in fitted]
    summed = hashlib.sha256()
    for array in of_q or [_compat.group(idata, "posterior")["W"]]:
        summed.update(np.ascontiguousarray(array.to_numpy()).tobytes())
    return summed.hexdigest()[:16]


def rows_of(work: str, found: dict[str, str]) -> Iterator[Row]:
    """Each digest beside that of the table in memory."""
    expected = found["in memory"]
    for place, digest in found.items():
        met = {"must reach": "the same bits", "met?": verdict(digest == expected)}
        yield note(f"W of {work}, {place}", digest, f"{expected} (in memory)") | met
