"""Sparse counts of samples in batches, each feature with a multiplier of its own in each batch."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Distribution
from pymc.logprob.abstract import _logprob
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from nmf_zoo.distributions.cell_rates import CACHE_VERSION, cell_rates
from nmf_zoo.distributions.counts import (
    NO_BACKGROUND,
    NO_EXPOSURE,
    SparsePoissonRV,
    as_table,
    at_cells,
    draw_count,
    draw_counts,
    is_constant,
    log_cell_density,
)
from nmf_zoo.kernels.numerics import cells


class SparseBatchedPoissonRV(SparsePoissonRV):
    """Random variable of :class:`SparseBatchedPoisson`: one vector over the listed cells, float64.

    Inputs (rng, size, W (F, K), H (K, N), rows (cells,), cols (cells,), multipliers (F, B), batch (N,), exposure,
    background), the last two as of `SparsePoissonRV`.
    """

    name = "sparse_batched_poisson"
    signature = "(f,k),(k,n),(c),(c),(f,j),(n),(e,d),(b,a)->(c)"
    _print_name = ("SparseBatchedPoisson", "\\operatorname{SparseBatchedPoisson}")

    def rng_fn(self, rng, *params):
        *params, size = params
        means = np.vectorize(cell_means, otypes=[np.float64], signature=self.signature)(*params)
        return draw_counts(rng, means, means.shape if size is None else (*size, means.shape[-1]))


def cell_means(W, H, rows, cols, multipliers, batch, exposure, background):
    """(cells,) array of multiplier * (exposure * rate + background)."""
    return multipliers[rows, batch[cols]] * cells.cell_means(W, H, rows, cols, exposure, background)


class SparseBatchedPoisson(Distribution):
    r"""Counts (or real values) at listed cells of a matrix with a mean of u (e (W @ H) + b), u from its sample's batch.

    .. math::

        \sum_c x_c \log \lambda_c - \log\Gamma(x_c + 1) \;-\; T,
        \qquad \lambda_c = u_{r_c j(s_c)} \Big(e_c \sum_k W_{r_c k} H_{k s_c} + b_c\Big)

    T is as in :class:`SparsePoisson`. Of complete data it costs O(features * batches * rank) beside a sum of H over the
    samples of each batch, which is why neither needs a table of features x samples.

    Parameters
    ----------
    W, H, rows, cols, exposure, background, complete : as in :class:`SparsePoisson`
    multipliers : tensor (feature, batch)
    batch : integer tensor (obs,), its column that each sample has
    """

    rv_op = SparseBatchedPoissonRV(complete=True)

    @classmethod
    def dist(cls, W, H, rows, cols, *, multipliers, batch, exposure=None, background=None, complete=True, **kwargs):
        params = [pt.as_tensor_variable(param) for param in (W, H, rows, cols, multipliers, batch)]
        offsets = (
            as_table(NO_EXPOSURE if exposure is None else exposure),
            as_table(NO_BACKGROUND if background is None else background),
        )
        return super().dist([*params, *offsets], complete=bool(complete), **kwargs)

    def support_point(rv, size, W, H, rows, cols, multipliers, batch, exposure, background):
        return means_at_cells(W, H, rows, cols, multipliers, batch, exposure, background)


def means_at_cells(W, H, rows, cols, multipliers, batch, exposure, background):
    """Symbolic :func:`cell_means`."""
    means = cell_rates(W, H, rows, cols)
    if not is_constant(exposure, NO_EXPOSURE):
        means = at_cells(exposure, rows, cols) * means
    if not is_constant(background, NO_BACKGROUND):
        means = means + at_cells(background, rows, cols)
    return multipliers[rows, batch[cols]] * means


# Not a ``logp`` method: PyMC hands those the parameters only, and ``complete`` belongs to the operation.
@_logprob.register(SparseBatchedPoissonRV)
def sparse_batched_poisson_logprob(op, values, rng, size, *params, **kwargs):
    """Log-density of all listed cells together, a scalar."""
    means = means_at_cells(*params)
    total = batched_total(*params) if op.complete else means.sum()
    return log_cell_density(values[0], means).sum() - total


def batched_total(W, H, rows, cols, multipliers, batch, exposure, background):
    """The sum of the mean over all cells, samples of a batch at a time; of an exposure per cell as if X were dense."""
    of_rows, of_cols = exposure.broadcastable
    if of_rows or of_cols:
        W, H = (W if of_rows else W * exposure), (H * exposure if of_rows else H)
        sums = pt.dot(W, sum_by_batch(H.T, batch, multipliers.shape[1]).T)
    else:
        sums = sum_by_batch((exposure * pt.dot(W, H)).T, batch, multipliers.shape[1]).T
    total = (multipliers * sums).sum()
    if is_constant(background, NO_BACKGROUND):
        return total
    if background.broadcastable[1]:
        sizes = sum_by_batch(pt.ones((H.shape[1], 1)), batch, multipliers.shape[1]).T
        return total + (multipliers * sizes * background).sum()
    return total + (multipliers * sum_by_batch(background.T, batch, multipliers.shape[1]).T).sum()


def sum_by_batch(array, batch, n_batches):
    """(n_batches, columns): sums of the rows of each batch of (samples, columns)."""
    return pt.inc_subtensor(pt.zeros((n_batches, array.shape[1]))[batch], array)


@numba_core_rv_funcify.register(SparseBatchedPoissonRV)
def numba_sparse_batched_poisson(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def sparse_batched_poisson(rng, W, H, rows, cols, multipliers, batch, exposure, background):
        draws = cells.cell_means(W, H, rows, cols, exposure, background)
        for c in range(draws.size):
            draws[c] = draw_count(rng, multipliers[rows[c], batch[cols[c]]] * draws[c])
        return draws

    return sparse_batched_poisson, CACHE_VERSION
