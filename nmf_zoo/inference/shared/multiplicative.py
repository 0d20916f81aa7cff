"""One factor's multiplicative update, and how far from stationary it found the factor.

Both likelihoods of EM give, for each factor, a ``pull`` and a ``drag`` such that w = pull / drag maximises a minorant
that touches the objective at the old w (Poisson: pull = sum E[C], drag = sum weight h). A gamma prior adds to both::

    w = (pull + a - 1) / (drag + r)        mode of the density
    w = (pull + a) / (drag + r)            mode of the density of log w (Cemgil 2009, eq. 20 and 21)

A half-normal prior of precision q leads to the root of a quadratic, with p = 0, and 1 of log w::

    w = 2 (pull + p) / (drag + sqrt(drag^2 + 4 q (pull + p)))

Of squared error pull and drag belong to a minorant that is quadratic itself, and this lies between the old w and its
peak.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.kernels.numerics.multiplicative import FLOOR, largest_of_columns, largest_slope, update_rows
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array


def update(
    side: Side,
    mode: str,
    old: Array,
    pull: Array,
    drag: Array,
    values: Mapping[str, Array],
    workers: Workers,
    largest: Array | None = None,
) -> tuple[Array, float]:
    """(update, KKT residual of the old) of a flat, gamma or half-normal factor (rows, K); known columns stay.

    A cell where nothing is observed and there is no prior stays. The residual is 0 at a stationary point:
    max |min(w / its column's largest, 1 - w_new / w)|, where 1 - w_new / w is the gradient, scaled by w's denominator.
    ``largest`` (K,) : of the columns, where ``old`` is only some rows of a factor.
    """
    if side.factor.known is not None:
        free = side.free
        new, residual = _update(side, mode, old[:, free], pull[:, free], drag[:, free], values, workers, largest)
        return side.with_free(old, new), residual
    return _update(side, mode, old, pull, drag, values, workers, largest)


def _update(
    side: Side,
    mode: str,
    old: Array,
    pull: Array,
    drag: Array,
    values: Mapping[str, Array],
    workers: Workers,
    largest: Array | None,
) -> tuple[Array, float]:
    if old.size == 0:
        return old.copy(), 0.0
    power, rate, curve = side.terms(mode, values)
    drag = drag + rate
    if side.is_half_normal:
        new = np.maximum(root_of_quadratic(pull + power, drag, curve), FLOOR)
        return new, stationarity(old, new)
    row, new = np.zeros((1, old.shape[1])), np.empty(old.shape)
    top = largest_of_columns(old) if largest is None else largest
    drag, power = np.ascontiguousarray(drag + row), np.ascontiguousarray(power + row)
    old, pull = np.ascontiguousarray(old), np.ascontiguousarray(pull)
    residuals = workers.map_rows(lambda *rows: update_rows(new, old, pull, drag, power, top, *rows), old)
    return new, max(residuals)


def root_of_quadratic(pull: Array, drag: Array, curve: Array) -> Array:
    """Where pull log w - drag w - curve w^2 / 2 is highest, of curves > 0."""
    bottom = drag + np.hypot(drag, 2.0 * np.sqrt(curve * pull))
    return 2.0 * _ratio(pull, np.broadcast_to(bottom, pull.shape))


def peak_on_simplex(old: Array, pull: Array, drag: Array) -> Array:
    """The update of a flat factor whose columns sum to one: maximise sum pull log w - drag w.

    w = pull / (drag + m) with m the Lagrange multiplier of each column: the root of sum w = 1, by Newton from its left,
    where this convex falling function can't be overshot. Cells without pull stay 0, unless the root would fall below
    -min drag: then what is missing from one goes to the cell of least drag.
    """
    drag = np.broadcast_to(drag, old.shape)
    total = pull.sum(axis=0)
    least = -drag.min(axis=0)
    root = np.maximum((pull - drag).max(axis=0), least)
    for _ in range(200):
        parts = _ratio(pull, drag + root)
        slope = _ratio(parts, drag + root).sum(axis=0)
        step = _ratio(parts.sum(axis=0) - 1.0, slope)
        root = np.maximum(root + step, least)
        if np.all(np.abs(step) <= 1e-15 * np.maximum(np.abs(root), total)):
            break
    new = _ratio(pull, drag + root)
    columns = np.arange(old.shape[1])
    missing = np.where(root <= least, np.maximum(1.0 - new.sum(axis=0), 0.0), 0.0)
    new[np.argmin(np.where(pull > 0, np.inf, drag), axis=0), columns] += missing
    new = np.where(total > 0, new / new.sum(axis=0), old)
    return np.maximum(new, FLOOR)


def _ratio(top: Array, bottom: Array) -> Array:
    """top / bottom where top > 0, else 0."""
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=(top > 0) & (bottom > 0))


def stationarity(old: Array, new: Array) -> float:
    """The KKT residual of a factor that another update moved; as of :func:`update`."""
    return largest_slope(old, new) if old.size else 0.0
