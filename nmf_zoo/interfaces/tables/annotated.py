"""AnnData files, HDF5 (``.h5ad``) and Zarr: of these X or a layer is read, and names of samples and variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.interfaces.tables.arrays import Matrix, check_numbers


def read_annotated(path: Path, suffix: str, layer: str | None = None) -> Matrix:
    """X, or a layer, as variables in rows and samples in columns: of AnnData samples are rows."""
    require_anndata(str(path), "an AnnData file without anndata installed")
    from anndata.io import read_elem

    with _opened(path, suffix) as store:
        group = matrix_of(path, store, layer)
        values = read_elem(group)
        samples, variables = (names_of(store[axis], read_elem) for axis in ("obs", "var"))
    if not isinstance(values, np.ndarray) and not hasattr(values, "tocsc"):
        raise InputError(str(path), f"a {type(values).__name__}", "an array or a sparse matrix")
    return Matrix(check_numbers(str(path), values.T), variables, samples)


def require_anndata(name: str, got: str) -> None:
    """Refuse what can't be done without the library."""
    if find_spec("anndata") is None:
        raise InputError(name, got, "anndata", "pip install 'nmf_zoo[anndata]'")


@contextmanager
def _opened(path: Path, suffix: str) -> Iterator[Any]:
    if suffix == ".h5ad":
        import h5py

        with h5py.File(path, "r") as store:
            yield store
    else:
        import zarr

        yield zarr.open_group(str(path), mode="r")


def matrix_of(path: Path, store: Any, layer: str | None) -> Any:
    missing = [name for name in ("obs", "var") if name not in store]
    if missing:
        raise InputError(str(path), f"no {missing[0]}", "an AnnData file, of obs, var, and X or layers")
    layers = list(store["layers"]) if "layers" in store else []
    if layer is None:
        if "X" not in store or _is_none(store["X"]):
            raise InputError(str(path), "no X", f"a layer, one of {layers}", "choose with layer=")
        return store["X"]
    if layer not in layers:
        raise not_one_of("layer", layer, layers, " (X is taken without it)")
    return store["layers"][layer]


def _is_none(element: Any) -> bool:
    """Newer files say so of a missing X."""
    return element.attrs.get("encoding-type") == "null"


def names_of(frame: Any, read: Any) -> list[str]:
    return [str(name) for name in read(frame[frame.attrs["_index"]])]
