"""Our own stores of counts by sample (``nz.write_blocks``, ``nmf-zoo convert``), read whole: a table like any other.

What a store is, is told from its attributes alone; reading it takes the rest of the library along.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.sparse import issparse

from nmf_zoo.interfaces.tables.arrays import Matrix
from nmf_zoo.memory import require_memory

DENSE = 0.5  # of the cells
BYTES = 24.0  # of a cell that is read: as the store has it, and as a sparse matrix
LAYOUT = "nmf_zoo_blocks"  # the attribute that names the layout, and its version


def is_ours(path: Path) -> bool:
    """Whether a folder is such a store."""
    attributes = path / ".zattrs"
    try:
        return attributes.is_file() and LAYOUT in json.loads(attributes.read_bytes())
    except ValueError:
        return False


def read_blocks(path: Path, suffix: str) -> Matrix:
    """All blocks, with labels, exposures and backgrounds of samples, and whether cells that are not listed are missing.

    An array where most cells are listed: laws that see zeros take no sparse matrix.
    """
    from nmf_zoo.interfaces.blocks.store import ZarrBlocks
    from nmf_zoo.sparse import by_sample

    store = ZarrBlocks(path)
    do = "go over it block by block: --engine vb, --kept-samples none, or nz.fit(data=nz.open_blocks(...))"
    require_memory(str(path), f"{store.n_cells:,} cells", BYTES * store.n_cells, do)
    store.bounds = [0, store.shape[1]]
    samples = store.read(0)
    rows, columns = (None if labels is None else list(labels) for labels in map(store.coords.get, ("feature", "obs")))
    matrix = by_sample(str(path), samples.X)
    if store.n_cells < DENSE * store.shape[0] * store.shape[1]:
        return Matrix(matrix, rows, columns, samples.exposure, samples.observed, samples.background)
    values = np.full(matrix.shape, 0.0 if samples.observed is None else np.nan)
    values[matrix.indices, np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))] = matrix.data
    background = samples.background.toarray() if issparse(samples.background) else samples.background
    return Matrix(values, rows, columns, samples.exposure, background=background)
