"""Draws of the cells that a model leaves unobserved, given draws of its factors."""

from __future__ import annotations

import numpy as np

from nmf_zoo.structure import Array, Factorisation


def impute(structure: Factorisation, factors: list[Array], key: np.uint64) -> Array:
    """(draws, cells), one of every missing cell at each draw of the factors, W (draws, F, K) and H (draws, N, K)."""
    assert structure.imputed is not None
    generator = np.random.Generator(np.random.Philox(key=int(key)))
    rows, cols = structure.imputed.rows, structure.imputed.cols
    draws = []
    for W, Ht in zip(*factors, strict=True):
        mean = structure.mean_at(W, Ht.T, rows, cols)
        structure.likelihood.require_drawable(mean)
        draws.append(structure.likelihood.draw(mean, {}, generator))
    return np.stack(draws)
