"""New samples of batches that a model with multipliers knows: its multipliers are exposures of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.multiplied import multipliers_of
from nmf_zoo.models.batches import batches_in_order
from nmf_zoo.models.matrices import COLUMNS, read_labels
from nmf_zoo.models.offsets import is_pair, read_array
from nmf_zoo.structure import Array, Factorisation

REFERENCE = "batch"  # the dim that labels the batches with the reference, of a declaration of ours


def batches_of_new(structure: Factorisation, given: Any, X_new: Any) -> Array:
    """(new,) the column of the table of multipliers that each new sample has."""
    labels = batch_labels(structure)
    known = f"labels of batches, one for each new sample, among {labels[:8]}{' and others' * (len(labels) > 8)}"
    if given is None:
        raise InputError(
            "batch", "None", known, "a sample of a new batch has no multipliers yet: run the model with it"
        )
    samples = read_labels(X_new)[1].get(COLUMNS, np.arange(np.shape(X_new)[1]))
    wanted = np.atleast_1d(np.asarray(batches_in_order(given, samples))).tolist()
    unknown = [label for label in wanted if label not in labels]
    if unknown:
        raise InputError("batch", repr(unknown[0]), known, "of a new batch run the model with its samples")
    return np.array([labels.index(label) for label in wanted], dtype=np.int64)


def batch_labels(structure: Factorisation) -> list[Any]:
    """Of the table's columns: the model's, or 0, 1, 2, ...; a reference of which no label is known is "reference"."""
    multipliers, coords = multipliers_of(structure), structure.coords
    dims = structure.dims.get(multipliers.variable.name, ())
    dim = dims[0 if multipliers.transposed else 1] if len(dims) == 2 else ""
    own = list(np.asarray(coords.get(dim, np.arange(multipliers.n_batches))).tolist())
    if not multipliers.has_reference:
        return own
    whole = np.asarray(coords.get(REFERENCE, ())).tolist()
    return whole if whole[:-1] == own else [*own, "reference"]


def with_middle_multipliers(structure: Factorisation, draws: xr.Dataset) -> xr.Dataset:
    """Draws of one chain in which each feature's multipliers have the geometric mean 1, and W what they had.

    Along this line the mean of X stays as it is, and draws wander as far as the priors let them: a product of two means
    would be more than the mean of the products. With a reference, and beside a background, there is no such line.
    """
    multipliers = structure.likelihood.of_batches
    if multipliers is None or multipliers.has_reference or structure.likelihood.background is not None:
        return draws
    M, W = draws[multipliers.variable.name], draws[structure.W.name]
    if structure.W.known is not None:
        return draws
    of_feature, of_batch = M.dims[::-1][:2] if multipliers.transposed else M.dims[-2:]
    middle = xr.DataArray(np.exp(xr.DataArray(np.log(M)).mean(str(of_batch))))
    as_rows = middle.transpose(..., of_feature).to_numpy()[..., None]  # of W, (chain, draw, feature, component)
    return draws.assign({M.name: (M / middle).transpose(*M.dims), W.name: W * as_rows})


def multiplied_offsets(
    structure: Factorisation, values: Mapping[str, Array], batch: Array, X_new: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """``exposure`` and ``background`` of new samples, times their multipliers: (features, new)."""
    table = multipliers_of(structure).table(values)[:, batch]
    exposure, background = (as_array(name, inputs[name], X_new) for name in ("exposure", "background"))
    return {
        "exposure": table if exposure is None else exposure * table,
        "background": None if background is None else background * table,
    }


def as_array(name: str, given: Any, X_new: Any) -> Array | None:
    """What broadcasts to (features, new)."""
    if given is None:
        return None
    if scipy.sparse.issparse(given):
        raise InputError(name, "a sparse matrix", "an array, or a tuple (one per feature, one per sample)")
    n_features, n_samples = np.shape(X_new)
    parts = given if is_pair(given) else (given,)
    arrays = [read_array(name, part, (n_features, n_samples), read_labels(X_new)[1]) for part in parts]
    return arrays[0] * arrays[1] if len(arrays) == 2 else arrays[0]
