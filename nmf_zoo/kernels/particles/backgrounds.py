"""What the components that stand still add to the rates of the listed cells."""

from __future__ import annotations

from nmf_zoo.kernels.basis_states import summing


@summing
def add_components(out, counts, W, Ht):
    """out (non-zeros,) += sum_k w_fk h_kt at the listed cells; W (F, K), Ht (T, K)."""
    for t in range(Ht.shape[0]):
        for c in range(counts.indptr[t], counts.indptr[t + 1]):
            f, total = counts.indices[c], 0.0
            for k in range(W.shape[1]):
                total += W[f, k] * Ht[t, k]
            out[c] += total
