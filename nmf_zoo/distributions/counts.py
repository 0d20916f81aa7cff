"""Poisson densities that PyMC lacks: for real-valued data, and for the listed cells of a large matrix.

Both have log-density x log lambda - lambda - log Gamma(x + 1) per cell, for any real x >= 0. On integers that is the
Poisson distribution. On other values it is no normalised density but the objective of the Kullback-Leibler
factorisation (Lee & Seung 2001); random draws are Poisson draws, hence integers.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Distribution
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Variable
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorConstant

from nmf_zoo.distributions.cell_rates import CACHE_VERSION, cell_rates
from nmf_zoo.kernels.numerics import cells

NO_EXPOSURE, NO_BACKGROUND = np.float64(1.0), np.float64(0.0)
LARGEST = 2.0**62  # mean of a Poisson draw that an integer holds


def log_cell_density(value, mu):
    """x log mu - log Gamma(x + 1) elementwise; 0 log 0 = 0, and -inf at x < 0."""
    # The inner switch, not the outer one, keeps the gradient finite at x = mu = 0.
    log_mu = pt.log(pt.switch(pt.eq(value, 0), 1.0, mu))
    safe = pt.switch(pt.lt(value, 0), 0.0, value)
    return pt.switch(pt.lt(value, 0), -np.inf, value * log_mu - pt.gammaln(safe + 1))


def draw_counts(rng, mean, size) -> np.ndarray:
    """Poisson draws as float64. Above `LARGEST`, where integers end, the normal law is the same to all its digits."""
    is_huge = np.asarray(mean) > LARGEST
    draws = np.asarray(rng.poisson(np.where(is_huge, 0.0, mean), size=size), dtype=np.float64)
    if np.any(is_huge):
        draws = np.where(is_huge, np.floor(rng.normal(mean, np.sqrt(mean), size=size)), draws)
    return draws


@numba_njit
def draw_count(rng, mean):
    """One of :func:`draw_counts`."""
    return np.float64(rng.poisson(mean)) if mean <= LARGEST else np.floor(rng.normal(mean, np.sqrt(mean)))


class RealPoissonRV(RandomVariable):
    """Random variable of :class:`RealPoisson`: elementwise, float64."""

    name = "real_poisson"
    signature = "()->()"
    dtype = "float64"
    _print_name = ("RealPoisson", "\\operatorname{RealPoisson}")

    def rng_fn(self, rng, mu, size):
        return draw_counts(rng, mu, size)


class RealPoisson(Distribution):
    """Real-valued data x >= 0 with log-density x log mu - mu - log Gamma(x + 1). Random draws are Poisson draws.

    Parameters
    ----------
    mu : non-negative tensor, the mean
    """

    rv_op = RealPoissonRV()

    @classmethod
    def dist(cls, mu, **kwargs):
        return super().dist([pt.as_tensor_variable(mu)], **kwargs)

    def support_point(rv, size, mu):
        return mu if pm.distributions.shape_utils.rv_size_is_none(size) else pt.full(size, mu)

    def logp(value, mu):
        return check_parameters(log_cell_density(value, mu) - mu, mu >= 0, msg="mu >= 0")


class SparsePoissonRV(RandomVariable):
    """Random variable of :class:`SparsePoisson`: one vector over the listed cells, float64.

    Inputs (rng, size, W (F, K), H (K, N), rows (cells,), cols (cells,), exposure (F or 1, N or 1), background alike);
    ``complete`` as in :class:`SparsePoisson`.
    """

    name = "sparse_poisson"
    signature = "(f,k),(k,n),(c),(c),(e,d),(b,a)->(c)"
    dtype = "float64"
    _print_name = ("SparsePoisson", "\\operatorname{SparsePoisson}")
    __props__ = (*RandomVariable.__props__, "complete")  # type: ignore[assignment]

    def __init__(self, *args, complete: bool, **kwargs):
        super().__init__(*args, **kwargs)
        self.complete = complete

    def __call__(self, *params, complete: bool | None = None, **kwargs):
        if complete is None or complete == self.complete:
            return super().__call__(*params, **kwargs)
        return type(self)(dtype=self.dtype, inplace=self.inplace, complete=complete)(*params, **kwargs)

    def rng_fn(self, rng, *params):
        *params, size = params
        means = np.vectorize(cells.cell_means, otypes=[np.float64], signature=self.signature)(*params)
        shape = means.shape if size is None else (*size, means.shape[-1])
        return draw_counts(rng, means, shape)


class SparsePoisson(Distribution):
    r"""Counts (or real values) at listed cells of a matrix with a mean of e (W @ H) + b, without ever building it.

    .. math::

        \sum_c x_c \log \lambda_c - \log\Gamma(x_c + 1) \;-\; T,
        \qquad \lambda_c = e_c \sum_k W_{r_c k} H_{k s_c} + b_c

    ``complete=True``: all other cells were observed and are 0, :math:`T = \sum_{fn} e_{fn} (W H)_{fn} + b_{fn}`;
    ``complete=False``: all other cells are missing, :math:`T = \sum_c \lambda_c`.
    Value and gradient cost O(cells * rank), but with an exposure of its own for every cell of a complete matrix
    O(F * N * rank). Random draws are Poisson draws at the listed cells.

    Parameters
    ----------
    W, H : tensors (feature, component) and (component, obs)
    rows, cols : integer tensors (cells,), without repeated cells
    exposure, background : e > 0 and b >= 0, which broadcast to (feature, obs), axes of length 1 known as such; by
        default 1 and 0. An exposure of one number per feature and one per sample is
        ``SparsePoisson("X", per_feature * W, H, rows, cols, exposure=per_sample)``
    complete : bool
    """

    rv_op = SparsePoissonRV(complete=True)

    @classmethod
    def dist(cls, W, H, rows, cols, *, exposure=None, background=None, complete=True, **kwargs):
        params = [pt.as_tensor_variable(param) for param in (W, H, rows, cols)]
        offsets = (
            as_table(NO_EXPOSURE if exposure is None else exposure),
            as_table(NO_BACKGROUND if background is None else background),
        )
        return super().dist([*params, *offsets], complete=bool(complete), **kwargs)

    def support_point(rv, size, W, H, rows, cols, exposure, background):
        return at_cells(exposure, rows, cols) * cell_rates(W, H, rows, cols) + at_cells(background, rows, cols)


# Not a ``logp`` method: PyMC hands those the parameters only, and ``complete`` belongs to the operation.
@_logprob.register(SparsePoissonRV)
def sparse_poisson_logprob(op, values, rng, size, W, H, rows, cols, exposure, background, **kwargs):
    """Log-density of all listed cells together, a scalar."""
    means = cell_rates(W, H, rows, cols)
    has_exposure, has_background = not is_constant(exposure, NO_EXPOSURE), not is_constant(background, NO_BACKGROUND)
    if has_exposure:
        means = at_cells(exposure, rows, cols) * means
    if has_background:
        means = means + at_cells(background, rows, cols)
    if not op.complete:
        return log_cell_density(values[0], means).sum() - means.sum()
    total = exposed_total(W, H, exposure) if has_exposure else pt.dot(W.sum(axis=0), H.sum(axis=1))
    if has_background:
        of_rows, of_cols = background.broadcastable
        total = total + background.sum() * (W.shape[0] if of_rows else 1) * (H.shape[1] if of_cols else 1)
    return log_cell_density(values[0], means).sum() - total


def as_table(offset):
    """A tensor with two axes; what is constant stays so."""
    return pt.atleast_2d(offset) if isinstance(offset, Variable) else pt.as_tensor_variable(np.atleast_2d(offset))


def is_constant(offset, number: float) -> bool:
    """Whether it stands for none."""
    return isinstance(offset, TensorConstant) and offset.data.size == 1 and offset.data.item() == number


def at_cells(offset, rows, cols):
    """Values of an (F or 1, N or 1) tensor at listed cells, (cells,)."""
    first, second = (0 if is_one else at for at, is_one in zip((rows, cols), offset.broadcastable, strict=True))
    return offset[first, second]


def exposed_total(W, H, exposure):
    """The sum of exposure * (W @ H) over all cells."""
    of_rows, of_cols = exposure.broadcastable
    if of_rows:
        return pt.dot(W.sum(axis=0), (H * exposure).sum(axis=1))
    return pt.dot((W * exposure).sum(axis=0), H.sum(axis=1)) if of_cols else (W * pt.dot(exposure, H.T)).sum()


@numba_core_rv_funcify.register(RealPoissonRV)
def numba_real_poisson(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def real_poisson(rng, mu):
        return draw_count(rng, mu)

    return real_poisson


@numba_core_rv_funcify.register(SparsePoissonRV)
def numba_sparse_poisson(op, node):
    """Native draws for PyTensor's numba backend."""

    @numba_njit
    def sparse_poisson(rng, W, H, rows, cols, exposure, background):
        draws = cells.cell_means(W, H, rows, cols, exposure, background)
        for c in range(draws.size):
            draws[c] = draw_count(rng, draws[c])
        return draws

    return sparse_poisson, CACHE_VERSION
