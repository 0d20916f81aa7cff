"""One factor's multiplicative update, and how far from stationary it found the factor.

Both likelihoods of EM give, for each factor, a ``numerator`` and a ``denominator`` such that w = numerator /
denominator maximises a minorant that touches the objective at the old w (Poisson: numerator = sum E[C],
denominator = sum weight h). A gamma prior adds to both::

    w = (numerator + a - 1) / (denominator + r)        mode of the density
    w = (numerator + a) / (denominator + r)            mode of the density of log w (Cemgil 2009, eq. 20 and 21)

A half-normal prior of precision q leads to the root of a quadratic, with p = 0, and 1 of log w::

    w = 2 (numerator + p) / (denominator + sqrt(denominator^2 + 4 q (numerator + p)))

Of squared error they belong to a minorant that is quadratic itself, and this lies between the old w and its peak.
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
    numerator: Array,
    denominator: Array,
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
        parts = old[:, free], numerator[:, free], denominator[:, free]
        new, residual = _update(side, mode, *parts, values, workers, largest)
        return side.with_free(old, new), residual
    return _update(side, mode, old, numerator, denominator, values, workers, largest)


def _update(
    side: Side,
    mode: str,
    old: Array,
    numerator: Array,
    denominator: Array,
    values: Mapping[str, Array],
    workers: Workers,
    largest: Array | None,
) -> tuple[Array, float]:
    if old.size == 0:
        return old.copy(), 0.0
    power, rate, curve = side.terms(mode, values)
    denominator = denominator + rate
    if side.is_half_normal:
        new = np.maximum(root_of_quadratic(numerator + power, denominator, curve), FLOOR)
        return new, stationarity(old, new)
    row, new = np.zeros((1, old.shape[1])), np.empty(old.shape)
    top = largest_of_columns(old) if largest is None else largest
    denominator, power = np.ascontiguousarray(denominator + row), np.ascontiguousarray(power + row)
    old, numerator = np.ascontiguousarray(old), np.ascontiguousarray(numerator)
    residuals = workers.map_rows(lambda *rows: update_rows(new, old, numerator, denominator, power, top, *rows), old)
    return new, max(residuals)


def root_of_quadratic(numerator: Array, denominator: Array, curve: Array) -> Array:
    """Where numerator log w - denominator w - curve w^2 / 2 is highest, of curves > 0."""
    bottom = denominator + np.hypot(denominator, 2.0 * np.sqrt(curve * numerator))
    return 2.0 * _ratio(numerator, np.broadcast_to(bottom, numerator.shape))


def peak_on_simplex(old: Array, numerator: Array, denominator: Array) -> Array:
    """The update of a flat factor whose columns sum to one: maximise sum numerator log w - denominator w.

    w = numerator / (denominator + m) with m the Lagrange multiplier of each column: the root of sum w = 1, by Newton
    from its left, where this convex falling function can't be overshot. Cells of numerator 0 stay 0, unless the root
    would fall below -min denominator: then what is missing from one goes to the cell of least denominator.
    """
    denominator = np.broadcast_to(denominator, old.shape)
    total = numerator.sum(axis=0)
    least = -denominator.min(axis=0)
    root = np.maximum((numerator - denominator).max(axis=0), least)
    for _ in range(200):
        parts = _ratio(numerator, denominator + root)
        slope = _ratio(parts, denominator + root).sum(axis=0)
        step = _ratio(parts.sum(axis=0) - 1.0, slope)
        root = np.maximum(root + step, least)
        if np.all(np.abs(step) <= 1e-15 * np.maximum(np.abs(root), total)):
            break
    new = _ratio(numerator, denominator + root)
    columns = np.arange(old.shape[1])
    missing = np.where(root <= least, np.maximum(1.0 - new.sum(axis=0), 0.0), 0.0)
    new[np.argmin(np.where(numerator > 0, np.inf, denominator), axis=0), columns] += missing
    new = np.where(total > 0, new / new.sum(axis=0), old)
    return np.maximum(new, FLOOR)


def update_with_held(
    side: Side,
    held: Array,
    mode: str,
    old: Array,
    numerator: Array,
    denominator: Array,
    values: Mapping[str, Array],
    workers: Workers,
) -> tuple[Array, float]:
    """As :func:`update`, of a flat factor whose ``held`` columns, (K,) bool, sum to one."""
    if held.all():
        new = peak_on_simplex(old, numerator, denominator)
        return new, stationarity(old, new)
    new, _ = update(side, mode, old, numerator, denominator, values, workers)
    new[:, held] = peak_on_simplex(old[:, held], numerator[:, held], denominator[:, held])
    return new, stationarity(*(np.ascontiguousarray(array[:, side.free]) for array in (old, new)))


def to_one(factor: Array, held: Array) -> Array:
    """(K,): what the ``held`` columns of a factor are divided by so that they sum to one; 1 for the others."""
    return np.where(held, factor.sum(axis=0), 1.0)


def _ratio(top: Array, bottom: Array) -> Array:
    """top / bottom where top > 0, else 0."""
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=(top > 0) & (bottom > 0))


def stationarity(old: Array, new: Array) -> float:
    """The KKT residual of a factor that another update moved; as of :func:`update`."""
    return largest_slope(old, new) if old.size else 0.0
