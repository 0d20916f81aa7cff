"""How far the variational bound lies below the evidence, estimated from the curvature of the posterior.

The bound is log p(X) - KL(q || posterior), and the posterior it is about is that of sources and cells together. Take
that for a normal distribution in S and in the logarithms of the cells of W and H. If q has the same mean, with S as one
block and every cell on its own, each at its own conditional precision, as mean-field has it, then

    KL = (log det D - log det P) / 2

D is diagonal: what a cell's precision would be if it were known which component each count came from. That is E_q of
the second derivative, rate_q * E[v], the gamma shape of q. P is the precision of all cells with the sources summed out:
complete information less what the sources hide (Louis 1982, JRSS B 44). Its expectation, counts at their mean m, is
the Fisher information of the logarithms plus the prior's curvature::

    P = sum_fn mask exposure^2 / m  grad(wh) grad(wh)' + diag(rate v),      m the mean of X at E[W], E[H]

(Expected curvature, as the best normal q would have it, Opper & Archambeau 2009; that at a point, with X for m, is
further off.) Cells to which no count went are as q has them: there diag(rate v) is D.

Every invertible K x K matrix A leaves (W A) (A^-1 H) as it is, and in these K^2 directions only the prior says
anything: the bound loses about K^2 times half the log of the counts per cell, and so prefers ranks that are far too
small where counts are large. q also stays with one of the modes that differ in the order of the components, which
costs log K!.

Limits. The logarithm of a gamma variable of shape a is normal where a is large. Of q itself it is known what this
approximation gets wrong, the error of Stirling's formula, 1 / (12 a) a cell; with many cells of few counts, or prior
shapes below 1, the estimate is off by up to some 4 times the sum of these, upwards or downwards. In the K^2 directions
the posterior is normal at best on the whole. Other modes than the orders are not counted. `shortfall_error` allows for
both, as far as it was measured (docs/design.md).

With free hyperparameters there is no correction: those at the bound's peak, which suit mean-field q, are others for
each rank than the evidence would choose.

P has blocks K x K for every row and column; the longer side is eliminated, the other's matrix factorised.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaln

from nmf_zoo.inference.shared.factor_view import Side, two_sides
from nmf_zoo.structure import Array, Dense, Factorisation

LARGEST = 1500  # rows of the matrix that is factorised: a second and 18 MB
EMPTY = 0.5  # counts: a cell, or a whole component, with fewer has none
RELATIVE, OF_STIRLING = 0.08, 4.0  # of the shortfall; of the error of Stirling's formula. Measured against SMC


Pair = tuple[Array, Array]


class VariationalPosterior(NamedTuple):
    """q of the two factors: mean and gamma shape, (F, K) and (N, K).

    The shapes of a known factor are None; beside known components they are those of the others alone.
    """

    mean_w: Array
    mean_h: Array
    shape_w: Array | None
    shape_h: Array | None


def can_estimate(structure: Factorisation) -> bool:
    """Of Poisson counts: a dense table, known hyperparameters, and a matrix that is not too large."""
    is_dense = isinstance(structure.data, Dense)
    return is_dense and not structure.unknowns and min(structure.shape) * structure.rank <= LARGEST


def shortfall(structure: Factorisation, q: VariationalPosterior, values: dict[str, Array]) -> float:
    """log p(X) minus the bound, in nats; NaN where it can't be estimated."""
    if not can_estimate(structure):
        return np.nan
    known = sum(float(np.sum(np.log(shape))) for shape in (q.shape_w, q.shape_h) if shape is not None)
    gap = 0.5 * (known - log_det_precision(structure, q, values))
    return gap + log_orders(structure, q, values)


def shortfall_error(q: VariationalPosterior, estimated: float) -> float:
    """How far the estimate may be off, in nats. Ranks of the same data are off alike: compare by the difference."""
    shapes = [shape.ravel() for shape in (q.shape_w, q.shape_h) if shape is not None]
    return RELATIVE * abs(estimated) + OF_STIRLING * sum(float(np.sum(stirling_error(shape))) for shape in shapes)


def stirling_error(shape: Array) -> Array:
    """log Gamma less its approximation by a normal distribution, about 1 / (12 shape)."""
    return gammaln(shape) - ((shape - 0.5) * np.log(shape) - shape + 0.5 * np.log(2.0 * np.pi))


def log_orders(structure: Factorisation, q: VariationalPosterior, values: dict[str, Array]) -> float:
    """log of the number of modes that differ by the order of components alone; 0 where the priors tell them apart.

    Of K components that are free in both factors the e without counts are as one: K! / e! orders.
    """
    sides = two_sides(structure)
    in_both = structure.free_in_both
    if not in_both.any():
        return 0.0
    counts = np.full(int(in_both.sum()), np.inf)
    for side, shape in zip(sides, (q.shape_w, q.shape_h), strict=True):
        assert shape is not None
        own = in_both[side.are_free]
        priors = [np.broadcast_to(prior, shape.shape)[:, own] for prior in side.prior(values)]
        if any(np.ptp(prior, axis=1).max() > 0 for prior in priors):
            return 0.0
        counts = np.minimum(counts, np.sum(shape[:, own] - priors[0], axis=0))
    return float(gammaln(len(counts) + 1.0) - gammaln(np.sum(counts <= EMPTY) + 1.0))


def log_det_precision(structure: Factorisation, q: VariationalPosterior, values: dict[str, Array]) -> float:
    """log det P over the cells that are not known."""
    left, right = two_sides(structure)
    weight, W, Ht = _fisher(structure, q), q.mean_w, q.mean_h
    curve_w, curve_h = _curvature(left, W, q.shape_w, values), _curvature(right, Ht, q.shape_h, values)
    of_w, of_h = (W[:, left.free], Ht[:, left.free]), (Ht[:, right.free], W[:, right.free])
    if curve_h is None:
        return 0.0 if curve_w is None else float(np.sum(np.linalg.slogdet(_blocks(weight, *of_w, curve_w))[1]))
    if curve_w is None:
        return float(np.sum(np.linalg.slogdet(_blocks(weight.T, *of_h, curve_h))[1]))
    if len(W) >= len(Ht):
        return _log_det(weight, of_w, of_h, curve_w, curve_h)
    return _log_det(weight.T, of_h, of_w, curve_h, curve_w)


def _fisher(structure: Factorisation, q: VariationalPosterior) -> Array:
    """mask exposure^2 / m, (F, N); 0 where the mean is."""
    data = structure.data
    mean = structure.mean_of(q.mean_w, q.mean_h.T, slice(None))
    seen = mean > 0 if data.mask is None else data.mask & (mean > 0)
    return np.where(seen, np.square(structure.exposure_table()), 0.0) / np.where(mean > 0, mean, 1.0)


def _curvature(side: Side, mean: Array, shape: Array | None, values: dict[str, Array]) -> Array | None:
    """The diagonal beside the Fisher information, (rows, K) or of what is free; None for a known factor."""
    if shape is None:
        return None
    prior_shape, prior_rate = side.prior(values)
    return np.where(shape - prior_shape < EMPTY, shape, prior_rate * mean[:, side.free])


def _blocks(weight: Array, U: Array, V: Array, curve: Array) -> Array:
    """P's blocks of the rows of U, (rows, K, K)."""
    squares = np.einsum("ij,jk,jl->ikl", weight, V, V, optimize=True)
    blocks = U[:, :, None] * U[:, None, :] * squares
    blocks[:, np.arange(U.shape[1]), np.arange(U.shape[1])] += curve
    return blocks


def _log_det(weight: Array, own: Pair, others: Pair, curve: Array, of_others: Array) -> float:
    """log det P by eliminating the rows of the first factor.

    ``own`` : its free columns, and the other factor's of the same components; ``others`` : that factor's free columns,
    and the first one's of the same components.
    """
    (U, beside_U), (V, beside_V) = own, others
    rank = V.shape[1]
    whole, total = np.zeros((len(V), rank, len(V), rank)), 0.0
    whole[np.arange(len(V)), :, np.arange(len(V)), :] = _blocks(weight.T, V, beside_V, of_others)
    rest = whole.reshape(len(V) * rank, -1)
    for i, block in enumerate(_blocks(weight, U, beside_U, curve)):
        # P between (i, k) and (j, l): weight_ij u_ik v_jk u_il v_jl
        cross = np.einsum("j,k,jk,l,jl->kjl", weight[i], U[i], beside_U, beside_V[i], V, optimize=True)
        cross = cross.reshape(U.shape[1], -1)
        factor = cho_factor(block, lower=True)
        rest -= cross.T @ cho_solve(factor, cross)
        total += 2.0 * float(np.sum(np.log(np.diag(factor[0]))))
    return total + float(np.linalg.slogdet(rest)[1])
