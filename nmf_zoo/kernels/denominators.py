"""Denominators of the factors' conditionals: what each cell of a factor weighs in the total mean, sum_fn weight (W H).

The weights are mask times exposure, an outer product, a dense matrix, or the rows of a sparse one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.streams import kernel


class WeightArrays(NamedTuple):
    """weight_fn as a kernel sees it: ``matrix`` if it has cells, else the sparse rows if any, else the outer product.

    Attributes
    ----------
    of_features : (F,) or (1,); of_samples : (N,) or (1,)
    matrix : (F, N) or (0, 0)
    indptr : (F + 1,) or (0,); indices, values : (cells,)
    """

    of_features: np.ndarray
    of_samples: np.ndarray
    matrix: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


@kernel
def weigh_samples(out, weights, Ht):
    """Overwrite out (F, K): sum_n weight_fn h_kn."""
    if weights.matrix.size > 0:
        _times(out, weights.matrix, Ht)
    elif weights.indptr.size > 0:
        out[:] = 0.0
        for f in range(out.shape[0]):
            for cell in range(weights.indptr[f], weights.indptr[f + 1]):
                for k in range(out.shape[1]):
                    out[f, k] += weights.values[cell] * Ht[weights.indices[cell], k]
    else:
        _outer(out, weights.of_features, weights.of_samples, Ht)


@kernel
def weigh_features(out, weights, W):
    """Overwrite out (N, K): sum_f weight_fn w_fk."""
    if weights.matrix.size > 0:
        _times(out, weights.matrix.T, W)
    elif weights.indptr.size > 0:
        out[:] = 0.0
        for f in range(W.shape[0]):
            for cell in range(weights.indptr[f], weights.indptr[f + 1]):
                for k in range(out.shape[1]):
                    out[weights.indices[cell], k] += weights.values[cell] * W[f, k]
    else:
        _outer(out, weights.of_samples, weights.of_features, W)


@kernel
def _times(out, matrix, factor):
    out[:] = 0.0
    for i in range(out.shape[0]):
        for j in range(factor.shape[0]):
            for k in range(out.shape[1]):
                out[i, k] += matrix[i, j] * factor[j, k]


@kernel
def _outer(out, own, others, factor):
    """out_ik = own_i sum_j others_j factor_jk; own and others have one entry when it is the same for all."""
    total = out[0]  # room for the sum until the rows are written, the first one last
    total[:] = 0.0
    for j in range(factor.shape[0]):
        weight = others[j if others.size > 1 else 0]
        for k in range(out.shape[1]):
            total[k] += weight * factor[j, k]
    for i in range(out.shape[0] - 1, -1, -1):
        weight = own[i if own.size > 1 else 0]
        for k in range(out.shape[1]):
            out[i, k] = weight * total[k]
