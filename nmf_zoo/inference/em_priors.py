"""What EM's gamma priors say: their part of the objective, of a Newton step, and their free rates or means."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.newton import Pull
from nmf_zoo.inference.sides import Side, sum_to
from nmf_zoo.structure import Array, Unknown


def pull_of(side: Side, mode: str, drag: Array, values: Mapping[str, Array]) -> Pull:
    """The linear and the logarithmic term of a factor's objective: what the zeros and the prior say."""
    if not side.is_gamma:
        return Pull(np.ascontiguousarray(drag), np.zeros((1, drag.shape[1])))
    shape, rate = side.prior(values)
    power, linear = np.broadcast_arrays(shape - 1.0 if mode == "density" else shape, drag + rate, subok=False)
    return Pull(np.ascontiguousarray(linear), np.ascontiguousarray(power))


def update_rates(sides: tuple[Side, Side], W: Array, Ht: Array, values: dict[str, Array]) -> dict[str, Array]:
    """Free rates or means in closed form: sum a / sum h, or sum a h / sum a, over the cells that share one."""
    values = dict(values)
    for side, array in zip(sides, (W, Ht), strict=True):
        for role, unknown in side.gamma.parameters.items() if side.is_gamma else ():
            if isinstance(unknown, Unknown):
                cells = side.turn(array)
                a = np.broadcast_to(side.gamma.shape.resolve(values), cells.shape)
                top, bottom = (a, cells) if role == "rate" else (a * cells, a)
                best = sum_to(top, unknown.shape) / sum_to(bottom, unknown.shape)
                values[unknown.name] = best.reshape(unknown.variable_shape)
    return values


def log_prior(sides: tuple[Side, Side], mode: str, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
    """Log prior density of the factors, or of their logarithms."""
    total = 0.0
    for side, array in zip(sides, (W, Ht), strict=True):
        if side.is_gamma:
            shape, rate = side.prior(values)
            power = shape - 1.0 if mode == "density" else shape
            constant = np.broadcast_to(xlogy(shape, rate) - gammaln(shape), array.shape)
            logs = float(np.sum(power * np.log(array))) if np.any(power) else 0.0
            total += logs - float(np.sum(rate * array)) + float(np.sum(constant))
    return total
