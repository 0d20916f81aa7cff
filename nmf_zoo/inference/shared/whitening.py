"""Known errors that differ between cells, taken into the data: X / sigma is normal with standard deviation one.

Its exposure is e / sigma and its background b / sigma. What is written for exposures and one sigma is then weighted
least squares, and the log-likelihoods differ by sum log sigma.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from nmf_zoo.structure import (
    Array,
    CellParameter,
    Cells,
    Dense,
    Factorisation,
    Known,
    KnownAtCells,
    Listed,
    Normal,
    is_shared,
    offset_at,
    offset_table,
)

ONE = Known(value=np.ones(()))


def whitened(structure: Factorisation) -> tuple[Factorisation, float]:
    """(the same model with sigma 1, sum of log sigma over observed cells); itself and 0 where all cells share one."""
    sigma = sigma_of(structure)
    if is_shared(sigma) or not isinstance(sigma, Known | KnownAtCells):
        return structure, 0.0
    data = structure.data
    return _listed(structure, data) if isinstance(data, Cells) else _dense(structure)


def sigma_of(structure: Factorisation) -> CellParameter:
    """That of a normal likelihood."""
    return cast(Normal, structure.likelihood).sigma


def _dense(structure: Factorisation) -> tuple[Factorisation, float]:
    likelihood, data = structure.likelihood, cast(Dense, structure.data)
    sigma = np.atleast_2d(sigma_of(structure).resolve({}))
    sigma = np.where(np.isfinite(sigma), sigma, 1.0)  # of missing cells
    values = data.values / sigma
    exposure = _over(likelihood.exposure, sigma, structure.shape, 1.0)
    background = None if likelihood.background is None else _over(likelihood.background, sigma, structure.shape, 0.0)
    logs = np.broadcast_to(np.log(sigma), structure.shape)
    own = Normal(name=likelihood.name, exposure=exposure, background=background, sigma=ONE)
    plain = replace(structure, likelihood=own, data=replace(data, values=values), imputed=None)
    return plain, float(np.sum(logs if data.mask is None else logs[data.mask]))


def _over(offset, sigma: Array, shape: tuple[int, int], none: float) -> Array:
    """offset / sigma; as small as sigma where there is no offset."""
    return none / sigma if offset is None else np.asarray(offset_table(offset, shape, none) / sigma)


def _listed(structure: Factorisation, data: Cells) -> tuple[Factorisation, float]:
    likelihood, rows, cols = structure.likelihood, data.rows, data.cols
    sigma = cast(Normal, structure.likelihood_at(rows, cols)).sigma.resolve({})

    def listed(offset, none: float) -> Listed:
        values = offset_at(offset, rows, cols, structure.shape, none) / sigma
        return Listed(rows=rows, cols=cols, values=values, shape=structure.shape, elsewhere=none)

    background = None if likelihood.background is None else listed(likelihood.background, 0.0)
    own = Normal(name=likelihood.name, exposure=listed(likelihood.exposure, 1.0), background=background, sigma=ONE)
    plain = replace(structure, likelihood=own, data=replace(data, values=data.values / sigma), imputed=None)
    return plain, float(np.sum(np.log(sigma)))
