"""AnnData on disk, read block by block through anndata's own reader of sparse matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.tables.annotated import matrix_of, names_of, require_anndata
from nmf_zoo.labels import WRITABLE, find_unwritable
from nmf_zoo.verbs.block_source import bounds_of, samples_of_block


class AnnotatedBlocks:
    """Rows of X, or of a layer, as columns."""

    def __init__(self, path: Path, matrix: Any, coords: dict[str, Any], block: int | None, layer: str | None):
        self.path, self._matrix, self.coords, self._given = path, matrix, coords, (block, layer)
        samples, features = (int(size) for size in matrix.shape)
        self.shape = (features, samples)
        stored = matrix.group["data"].shape[0] if hasattr(matrix, "group") else samples * features
        size = samples_of_block(self.shape, stored) if block is None else block
        self.bounds = bounds_of(samples, size)

    def __reduce__(self) -> Any:
        """Another process opens it for itself."""
        return open_annotated, (self.path.absolute(), *self._given)

    def read(self, number: int) -> Any:
        """Samples of a block."""
        return self._matrix[self.bounds[number] : self.bounds[number + 1]].T


def open_annotated(path: Path, block: int | None, layer: str | None) -> AnnotatedBlocks:
    """The X of a file or store, or a layer."""
    require_anndata(str(path), "an AnnData file without anndata installed")
    from anndata.io import read_elem, sparse_dataset

    store = _open(path)
    group = matrix_of(path, store, layer)
    kind = group.attrs.get("encoding-type")
    if kind == "csc_matrix":
        do = "write it again with X as CSR, or nz.fit in memory"
        raise InputError(str(path), "a matrix stored by variable (CSC)", "one stored by sample (CSR)", do)
    matrix = sparse_dataset(group) if kind == "csr_matrix" else group
    coords = {}
    for dim, axis in (("obs", "obs"), ("feature", "var")):
        labels = names_of(store[axis], read_elem)
        bad = find_unwritable(labels)
        if bad is not None:
            raise InputError(f"{path}, label {bad + 1} of {axis}", repr(labels[bad]), WRITABLE)
        coords[dim] = labels
    return AnnotatedBlocks(path, matrix, coords, block, layer)


def _open(path: Path) -> Any:
    """The file stays open as long as its blocks are read."""
    try:
        if path.is_dir():
            import zarr

            return zarr.open_group(str(path), mode="r")
        import h5py

        return h5py.File(path, "r")
    except Exception as error:  # HDF5 and Zarr raise all sorts
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(str(path), f"a file that can't be read ({problem})", "AnnData, or nz.write_blocks'") from error
