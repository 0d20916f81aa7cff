"""The log joint density of counts and factors, in O(non-zeros * K), and what each cell of a factor weighs in it.

The weight of a cell in the total mean, sum_fn weight (W H), is the denominator of its conditional. The weights are mask
times exposure, an outer product, a dense matrix, or the rows of a sparse one; an outer product may have one number for
each feature and batch of samples beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing
from nmf_zoo.kernels.counts.sources import SMALLEST
from nmf_zoo.kernels.numerics.arrays import flat
from nmf_zoo.kernels.numerics.special import fast_log


class WeightArrays(NamedTuple):
    """weight_fn as a kernel sees it: ``matrix`` if it has cells, else the sparse rows if any, else the outer product.

    Attributes
    ----------
    of_features : (F,) or (1,); of_samples : (N,) or (1,)
    matrix : (F, N) or (0, 0)
    indptr : (F + 1,) or (0,); indices, values : (cells,)
    of_batches : (F, B), which multiplies the outer product, or (0, 0); batch : (N,) its column for each sample, or (0,)
    sums : (B, K) scratch of whoever made the weights, or (0, 0)
    """

    of_features: np.ndarray
    of_samples: np.ndarray
    matrix: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    of_batches: np.ndarray
    batch: np.ndarray
    sums: np.ndarray


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
    elif weights.batch.size > 0:
        _weigh_samples_of_batches(out, weights, Ht)
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
    elif weights.batch.size > 0:
        _weigh_features_of_batches(out, weights, W)
    else:
        _outer(out, weights.of_samples, weights.of_features, W)


@kernel
def _weigh_samples_of_batches(out, weights, Ht):
    """out_fk = features_f sum_b batches_fb sum over its samples of samples_n h_nk"""
    of_batches, batch, sums = weights.of_batches, weights.batch, weights.sums
    sums[:] = 0.0
    for n in range(Ht.shape[0]):
        weight = weights.of_samples[n if weights.of_samples.size > 1 else 0]
        for k in range(out.shape[1]):
            sums[batch[n], k] += weight * Ht[n, k]
    out[:] = 0.0
    for f in range(out.shape[0]):
        weight = weights.of_features[f if weights.of_features.size > 1 else 0]
        for b in range(of_batches.shape[1]):
            for k in range(out.shape[1]):
                out[f, k] += weight * of_batches[f, b] * sums[b, k]


@kernel
def _weigh_features_of_batches(out, weights, W):
    """out_nk = samples_n sum_f features_f batches_fb w_fk, b the batch of n"""
    of_batches, batch, sums = weights.of_batches, weights.batch, weights.sums
    sums[:] = 0.0
    for f in range(W.shape[0]):
        weight = weights.of_features[f if weights.of_features.size > 1 else 0]
        for b in range(of_batches.shape[1]):
            for k in range(out.shape[1]):
                sums[b, k] += weight * of_batches[f, b] * W[f, k]
    for n in range(out.shape[0]):
        weight = weights.of_samples[n if weights.of_samples.size > 1 else 0]
        for k in range(out.shape[1]):
            out[n, k] = weight * sums[batch[n], k]


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
    total = out[0]  # scratch for the sum until the rows are written, the first one last
    total[:] = 0.0
    for j in range(factor.shape[0]):
        weight = others[j if others.size > 1 else 0]
        for k in range(out.shape[1]):
            total[k] += weight * factor[j, k]
    for i in range(out.shape[0] - 1, -1, -1):
        weight = own[i if own.size > 1 else 0]
        for k in range(out.shape[1]):
            out[i, k] = weight * total[k]


# -- log joint density -----------------------------------------------------------------------------------------------


@kernel
def log_joint(layout, weights, priors, W, Ht, scratch):
    """log p(X, W, H) up to a constant: sum x log(W H + offset) - sum weight W H + log p(W) + log p(H).

    ``scratch`` is a pair of arrays, (non-zeros,) and (F, K).
    """
    means, rates = scratch
    total = _log_means(layout, W, Ht, means)
    weigh_samples(rates, weights, Ht)
    total -= dot(flat(W), flat(rates))
    total += _log_prior(flat(W), flat(priors.shape_w), flat(priors.rate_w))
    return total + _log_prior(flat(Ht), flat(priors.shape_h), flat(priors.rate_h))


@kernel
def _log_means(layout, W, Ht, means):
    """sum x log(W H + offset) over the non-zero cells."""
    major, minor = (W, Ht) if layout.by_features else (Ht, W)
    has_offset, rescued = layout.offset.size > 0, 0.0
    for i in range(major.shape[0]):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            j, mean = layout.indices[cell], 0.0
            for k in range(major.shape[1]):
                mean += major[i, k] * minor[j, k]
            offset = layout.offset[cell] if has_offset else 0.0
            means[cell] = mean + offset
            if not means[cell] >= SMALLEST:
                rescued += layout.values[cell] * _log_of_small_mean(major[i], minor[j], offset)
                means[cell] = 1.0
    return rescued + dot_log(layout.values, means)


@kernel
def _log_of_small_mean(u, v, offset):
    """log(u . v + offset) where the products underflow."""
    peak = math.log(offset)
    for k in range(u.size):
        peak = max(peak, math.log(u[k]) + math.log(v[k]))
    if not peak > -np.inf:
        return peak
    total = math.exp(math.log(offset) - peak)
    for k in range(u.size):
        total += math.exp(math.log(u[k]) + math.log(v[k]) - peak)
    return peak + math.log(total)


@summing
def dot(x, y):
    """sum of x y"""
    total = 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@summing
def dot_log(x, y):
    """sum of x log y, of normal y"""
    total = 0.0
    for i in range(x.size):
        total += x[i] * fast_log(y[i])
    return total


@summing
def _log_prior(v, shape, rate):
    """Sum of (shape - 1) log v - rate v; what it lacks depends on shapes and rates alone."""
    total = 0.0
    for i in range(v.size):
        total += (shape[i] - 1.0) * fast_log(v[i]) - rate[i] * v[i]
    return total


# -- at a stack of draws: what a loop over draws in Python is too slow for -------------------------------------------


@kernel
def log_joints(out, layout, weights, priors, Ws, Hts):
    """Overwrite out (draws,): :func:`nmf_zoo.kernels.counts.joint.log_joint` at Ws (draws, F, K), Hts (draws, N, K)."""
    means, rates = np.empty(layout.values.size), np.empty(Ws.shape[1:])
    for draw in range(out.size):
        out[draw] = log_joint(layout, weights, priors, Ws[draw], Hts[draw], (means, rates))


@kernel
def sum_log_means(out, layout, Ws, Hts):
    """Overwrite out (draws,): sum x log(W H + offset) over the non-zero cells."""
    means = np.empty(layout.values.size)
    for draw in range(out.size):
        out[draw] = _log_means(layout, Ws[draw], Hts[draw], means)
