"""Sparse overdispersed counts: negative binomial cells of a large matrix, most of them zeros that are not listed."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Distribution
from pymc.logprob.abstract import _logprob
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from nmf_zoo.distributions.cell_rates import CACHE_VERSION, cell_rates
from nmf_zoo.distributions.counts import (
    NO_BACKGROUND,
    NO_EXPOSURE,
    as_table,
    at_cells,
    draw_count,
    draw_counts,
    log_cell_density,
)
from nmf_zoo.kernels.numerics import cells

LARGE = 1e4  # inverse dispersions from which on Stirling's series has all digits of log Gamma's differences


class SparseNegativeBinomialRV(RandomVariable):
    """Random variable of :class:`SparseNegativeBinomial`: one vector over the listed cells, float64.

    Inputs (rng, size, W (F, K), H (K, N), rows (cells,), cols (cells,), alpha (F or 1, N or 1), exposure and background
    alike).
    """

    name = "sparse_negative_binomial"
    signature = "(f,k),(k,n),(c),(c),(p,q),(e,d),(b,a)->(c)"
    dtype = "float64"
    _print_name = ("SparseNegativeBinomial", "\\operatorname{SparseNegativeBinomial}")
    complete = True  # the cells that are not listed are zeros

    def rng_fn(self, rng, *params):
        *params, size = params
        means, alphas = (
            np.vectorize(of_cells, otypes=[np.float64], signature=self.signature)(*params)
            for of_cells in (cell_means, cell_dispersions)
        )
        shape = means.shape if size is None else (*size, means.shape[-1])
        return draw_counts(rng, means * (rng.gamma(alphas, size=shape) / alphas), shape)


def cell_means(W, H, rows, cols, alpha, exposure, background):
    """(cells,)"""
    return cells.cell_means(W, H, rows, cols, exposure, background)


def cell_dispersions(W, H, rows, cols, alpha, exposure, background):
    """(cells,)"""
    return np.broadcast_to(alpha, (W.shape[0], H.shape[1]))[rows, cols]


class SparseNegativeBinomial(Distribution):
    r"""Overdispersed counts at listed cells of a matrix with the mean m = e (W @ H) + b; all other cells are zeros.

    .. math::

        \sum_c \log \frac{\Gamma(\alpha + x_c)}{\Gamma(\alpha)\, x_c!} + x_c \log \frac{m_c}{\alpha + m_c}
        \;-\; \sum_{fn} \alpha \log(1 + m_{fn} / \alpha)

    The last sum is over all cells: value and gradient take time in features x samples x components, and the memory of a
    table while they last. Random draws are of the listed cells.

    Parameters
    ----------
    W, H, rows, cols, exposure, background : as in :class:`SparsePoisson`
    alpha : inverse dispersion, > 0, which broadcasts to (feature, obs), axes of length 1 known as such
    """

    rv_op = SparseNegativeBinomialRV()

    @classmethod
    def dist(cls, W, H, rows, cols, *, alpha, exposure=None, background=None, **kwargs):
        params = [pt.as_tensor_variable(param) for param in (W, H, rows, cols)]
        tables = (
            alpha,
            NO_EXPOSURE if exposure is None else exposure,
            NO_BACKGROUND if background is None else background,
        )
        return super().dist([*params, *map(as_table, tables)], **kwargs)

    def support_point(rv, size, W, H, rows, cols, alpha, exposure, background):
        return at_cells(exposure, rows, cols) * cell_rates(W, H, rows, cols) + at_cells(background, rows, cols)


@_logprob.register(SparseNegativeBinomialRV)
def sparse_negative_binomial_logprob(op, values, rng, size, W, H, rows, cols, alpha, exposure, background, **kwargs):
    """Log-density of all cells together, a scalar."""
    means = at_cells(exposure, rows, cols) * cell_rates(W, H, rows, cols) + at_cells(background, rows, cols)
    own = at_cells(alpha, rows, cols)
    listed = log_cell_density(values[0], means) - values[0] * pt.log1p(means / own) + log_rising(own, values[0])
    return listed.sum() - sum_of_zeros(W, H, alpha, exposure, background)


def log_rising(alpha, x):
    """log Gamma(alpha + x) - log Gamma(alpha) - x log alpha, by Stirling's series where alpha is large."""
    large, small = pt.maximum(alpha, LARGE), pt.minimum(alpha, LARGE)
    total = large + x
    by_series = (total - 0.5) * pt.log1p(x / large) - x + (1.0 / total - 1.0 / large) / 12.0
    return pt.switch(alpha > LARGE, by_series, pt.gammaln(small + x) - pt.gammaln(small) - x * pt.log(small))


def sum_of_zeros(W, H, alpha, exposure, background):
    """The sum of alpha log(1 + mean / alpha) over all cells."""
    return (alpha * pt.log1p((exposure * pt.dot(W, H) + background) / alpha)).sum()


@numba_core_rv_funcify.register(SparseNegativeBinomialRV)
def numba_sparse_negative_binomial(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def sparse_negative_binomial(rng, W, H, rows, cols, alpha, exposure, background):
        draws = cells.cell_means(W, H, rows, cols, exposure, background)
        for c in range(draws.size):
            own = alpha[rows[c] if alpha.shape[0] > 1 else 0, cols[c] if alpha.shape[1] > 1 else 0]
            draws[c] = draw_count(rng, draws[c] * (rng.standard_gamma(own) / own))
        return draws

    return sparse_negative_binomial, CACHE_VERSION
