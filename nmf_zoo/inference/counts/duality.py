"""How far a fit of activations to a known factor is from the optimum at most, by Fenchel duality.

With one factor V known the objective in the rows u of the other is convex: Poisson data, the cells' x and offset o::

    P(u) = d . u - p . log u - sum_c x_c log(u . v_c + o_c)

(d, p as :class:`nmf_zoo.inference.counts.newton.Penalty` has them: linear, power). For any theta >= 0 with
s = d - sum_c theta_c v_c >= 0 it is at least::

    D(theta) = sum_c (x_c - x_c log(x_c / theta_c)) - theta . o + sum_k (p_k - p_k log(p_k / s_k))

(the last sum over p_k > 0 alone). At the optimum theta = x / m, and D = P. Of squared error, with A the rows e v, y the
data less the background, r the prior's rate::

    P(u) = |A u - y|^2 / (2 sigma^2) + r . u,    D(l) = -sigma^2 |l|^2 / 2 - l . y    for r + A' l >= 0

theta is scaled, and l moved along the ones, until they are feasible: whatever the fit, the gap P - D is an upper bound
of what it lacks to the optimum, in nats. With half-normal priors, q u^2 / 2 in P, all theta >= 0 and all l are: then D
has, in the place of the constraint and of the last sum, the least over u >= 0 of::

    s u + q u^2 / 2 - p log u,      at u = (sqrt(s^2 + 4 q p) - s) / (2 q)

with s = d - sum_c theta_c v_c, or r + A' l and p = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import xlogy

from nmf_zoo.inference.counts.newton import Penalty
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import nonzero_cells
from nmf_zoo.kernels.numerics.cells import cell_rates
from nmf_zoo.structure import Array, Dense, Factorisation, Known

INSIDE = 1.0 - 1e-9  # of the way to where a cell with a shape above 1 has no slack left


def poisson_gap(structure: Factorisation, which: int, u: Array, v: Array, penalty: Penalty) -> float:
    """Of u (rows, K), W (``which`` 0) or Ht (1), at the known v (cols, K)."""
    rows, cols, x = nonzero_cells(structure)
    offset = structure.background_at(rows, cols) / structure.exposure_at(rows, cols)
    own, other = (cols, rows) if which else (rows, cols)
    mean = cell_rates(np.ascontiguousarray(u), v.T, own, other) + offset
    slopes = sp.csr_array((x / mean, (own, other)), shape=(len(u), len(v))) @ v
    linear, power = (np.broadcast_to(part, u.shape) for part in (penalty.linear, penalty.power))
    primal = np.sum(linear * u) - np.sum(xlogy(power, u)) - np.sum(xlogy(x, mean))
    if penalty.curve is not None:
        dual = np.sum(x - xlogy(x, mean)) - np.sum(x / mean * offset) + _least(linear - slopes, penalty.curve, power)
        return float(primal + np.sum(penalty.curve * u**2) / 2 - dual)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        limits = np.where(slopes > 0, linear * np.where(power > 0, INSIDE, 1.0) / slopes, np.inf)
    scale = np.minimum(limits.min(axis=1), 1.0)
    slack = linear - scale[:, None] * slopes
    theta = scale[own] * x / mean
    dual = np.sum(x - xlogy(x, x / theta)) - theta @ offset
    dual += np.sum(power - xlogy(power, np.divide(power, slack, out=np.ones_like(slack), where=power > 0)))
    return float(primal - dual)


def _least(slope: Array, curve: Array, power: Array | float = 0.0) -> float:
    """The sum over cells of the least that slope u + curve u^2 / 2 - power log u is for u >= 0."""
    root = np.hypot(slope, 2.0 * np.sqrt(curve * power))
    away = slope > 0  # where the difference of the two would lose digits
    u = np.where(away, 2.0 * power / np.where(away, root + slope, 1.0), (root - slope) / (2.0 * curve))
    return float(np.sum(slope * u + curve * u**2 / 2 - xlogy(power, u)))


class SquareSums(NamedTuple):
    """Sums of a squared error's columns, of the errors e = A u - y and the data y at the cells that are seen.

    errors, products : e . e and e . y, (N,); sums, totals : of e and of y, (N,); cells : (N,)
    slopes, along : A' e and A' 1, (K, N)
    """

    errors: Array
    products: Array
    sums: Array
    totals: Array
    cells: Array
    slopes: Array
    along: Array


def normal_gap(
    structure: Factorisation, H: Array, rate: Array, values: Mapping[str, Array], curve: Array | None = None
) -> float:
    """Of H (K, N) at a known W; ``rate`` broadcasts to H, zeros without a prior. Listed cells stay a list.

    ``curve`` : precisions of a half-normal prior, which broadcast to H
    """
    W = structure.W.value(values)
    variance = float(np.square(structure.likelihood.parameters["sigma"].resolve(values)))
    found = (_dense if isinstance(structure.data, Dense) else _listed)(structure, W, H)
    primal = float(np.sum(found.errors)) / (2 * variance) + float(np.sum(rate * H))
    short = rate + found.slopes / variance
    along, of_squares = found.along, 0.0
    step = np.max(np.divide(-short, along, out=np.zeros_like(along), where=along > 0), axis=0, initial=0.0)
    if curve is not None:
        step, of_squares = np.zeros_like(step), float(np.sum(curve * H**2)) / 2 - _least(short, curve)
    squares = found.errors / variance**2 + 2.0 * step * found.sums / variance + step**2 * found.cells
    of_data = found.products / variance + step * found.totals
    return primal + variance * float(np.sum(squares)) / 2 + float(np.sum(of_data)) + of_squares


def _dense(structure: Factorisation, W: Array, H: Array) -> SquareSums:
    data = structure.data
    seen = np.ones(structure.shape) if data.mask is None else data.mask.astype(np.float64)
    weight = seen * structure.exposure_table()
    y = seen * (data.values - structure.background_table())
    error = weight * (W @ H) - y
    sums = [part.sum(axis=0) for part in (error**2, error * y, error, y, seen)]
    return SquareSums._make([*sums, W.T @ (weight * error), W.T @ weight])


def _listed(structure: Factorisation, W: Array, H: Array) -> SquareSums:
    """Of the cells that are listed, the only ones that were observed."""
    rows, cols, x = structure.observed_cells()
    weight, background = structure.exposure_at(rows, cols), structure.background_at(rows, cols)
    y, N = x - background, structure.shape[1]
    error = structure.mean_at(W, H, rows, cols) - x

    def over(cells: Array) -> Array:
        """W' times the cells."""
        return np.asarray((sp.csr_array((cells, (cols, rows)), shape=structure.shape[::-1]) @ W).T)

    sums = [np.bincount(cols, part, N) for part in (error**2, error * y, error, y, np.ones(len(x)))]
    return SquareSums._make([*sums, over(weight * error), over(weight)])


def has_normal_gap(structure: Factorisation) -> bool:
    """Normal data, of a table or of listed cells alone, with a known sigma, W known and H not."""
    data, is_known = structure.data, isinstance(structure.likelihood.parameters["sigma"], Known)
    return (
        is_known and (isinstance(data, Dense) or not data.is_complete) and structure.W.is_fixed and structure.H.is_free
    )


def is_refit(sides: tuple[Side, Side]) -> bool:
    """One factor is known and nothing of the other."""
    return sides[0].is_fixed != sides[1].is_fixed and any(side.factor.is_free for side in sides)
