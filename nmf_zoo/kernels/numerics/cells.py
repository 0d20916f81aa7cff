"""W @ H at listed cells only, and its gradients: O(cells * rank) time, no (F, N) and no (cells, K) array."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.compile import kernel


@kernel
def rates_at_cells(out, weights, activations, rows, cols):
    """Overwrite out (cells,): out_c = sum_k weights[rows_c, k] activations[cols_c, k].

    ``weights`` is (F, K), ``activations`` (N, K), transposed so that both are read along memory.
    """
    for c in range(out.size):
        w, h = weights[rows[c]], activations[cols[c]]
        total = 0.0
        for k in range(w.size):
            total += w[k] * h[k]
        out[c] = total


@kernel
def scatter_to_factors(out_weights, out_activations, weights, activations, rows, cols, upstream):
    """Add the gradients of sum_c upstream_c rate_c to out_weights (F, K) and out_activations (N, K).

    Shapes as in :func:`rates_at_cells`; ``upstream`` is (cells,).
    """
    for c in range(upstream.size):
        row, col, u = rows[c], cols[c], upstream[c]
        into, source = out_weights[row], activations[col]
        for k in range(into.size):
            into[k] += u * source[k]
        into, source = out_activations[col], weights[row]
        for k in range(into.size):
            into[k] += u * source[k]


@kernel
def are_cells_inside(rows, cols, n_features, n_samples):
    """True when every (row, col) is a cell of an (n_features, n_samples) matrix."""
    for c in range(rows.size):
        if rows[c] < 0 or rows[c] >= n_features or cols[c] < 0 or cols[c] >= n_samples:
            return False
    return True


@kernel
def cell_rates(weights, activations, rows, cols):
    """(cells,) array of sum_k weights[rows, k] activations[k, cols], for weights (F, K) and activations (K, N)."""
    out = np.empty(rows.size)
    rates_at_cells(out, weights, np.ascontiguousarray(activations.T), rows, cols)
    return out


@kernel
def cell_means(weights, activations, rows, cols, exposure, background):
    """(cells,) array of exposure * rate + background; either is (F or 1, N or 1)."""
    out = cell_rates(weights, activations, rows, cols)
    for c in range(out.size):
        e = exposure[rows[c] if exposure.shape[0] > 1 else 0, cols[c] if exposure.shape[1] > 1 else 0]
        b = background[rows[c] if background.shape[0] > 1 else 0, cols[c] if background.shape[1] > 1 else 0]
        out[c] = e * out[c] + b
    return out


@kernel
def cell_rate_gradients(weights, activations, rows, cols, upstream):
    """Gradients of sum_c upstream_c rate_c: (F, K) in the weights and (K, N) in the activations."""
    by_sample = np.ascontiguousarray(activations.T)
    out_weights = np.zeros(weights.shape)
    out_activations = np.zeros(by_sample.shape)
    scatter_to_factors(out_weights, out_activations, weights, by_sample, rows, cols, upstream)
    return out_weights, np.ascontiguousarray(out_activations.T)
