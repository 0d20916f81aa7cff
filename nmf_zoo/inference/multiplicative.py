"""One factor's multiplicative update, and how far from stationary it found the factor.

Both likelihoods of EM give, for each factor, a ``pull`` and a ``drag`` such that w = pull / drag maximises a minorant
that touches the objective at the old w (Poisson: pull = sum E[C], drag = sum weight h). A gamma prior adds to both::

    w = (pull + a - 1) / (drag + r)        mode of the density
    w = (pull + a) / (drag + r)            mode of the density of log w (Cemgil 2009, eq. 20 and 21)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.sides import Side
from nmf_zoo.kernels.residuals import largest_slope
from nmf_zoo.structure import Array

FLOOR = 1e-100  # an exact zero could never be left again and would forbid its counts; two floors still multiply safely


def peak(side: Side, mode: str, old: Array, pull: Array, drag: Array, values: Mapping[str, Array]) -> Array:
    """The update of a flat or gamma factor (rows, K); where nothing is observed and there is no prior it stays."""
    if side.is_gamma:
        shape, rate = side.prior(values)
        pull, drag = pull + (shape - 1.0 if mode == "density" else shape), drag + rate
    is_held = drag > 0
    if np.all(is_held):
        new = np.divide(pull, drag)
    else:
        new = np.divide(pull, drag, out=old.copy(), where=np.broadcast_to(is_held, old.shape))
    return np.maximum(new, FLOOR, out=new)


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
    """The KKT residual of a factor: the largest |min(w / its column's largest, 1 - w_new / w)|; 0 where stationary."""
    if old.size == 0:
        return 0.0
    return largest_slope(old, new)  # 1 - w_new / w is the gradient, scaled by w's denominator
