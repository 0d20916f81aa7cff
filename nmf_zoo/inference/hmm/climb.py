"""Maxima over unknowns without a closed form, found numerically in coordinates that keep them in their supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from nmf_zoo.kernels.chain_updates import EDGE
from nmf_zoo.structure import Array, HyperPrior, Unknown
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SYMMETRIC, supports_of

MOST_PERSISTENT = 1.0 - 1e-6  # |persistence|
SMALLEST_SCALE = 1e-8
# What the updates can hold: the supports without their ends.
INSIDE = {
    PROBABILITY: (EDGE, 1.0 - EDGE),
    SYMMETRIC: (-MOST_PERSISTENT, MOST_PERSISTENT),
    POSITIVE: (SMALLEST_SCALE, 1e8),
    REAL: REAL,
}
TO_FREE: dict[tuple[float, float], tuple[Callable, Callable]] = {
    PROBABILITY: (logit, expit),
    SYMMETRIC: (np.arctanh, np.tanh),
    POSITIVE: (np.log, np.exp),
    REAL: (np.asarray, np.asarray),
}
Values = Mapping[str, Array]


def bounds(prior: HyperPrior, support: tuple[float, float] = PROBABILITY) -> tuple[Array, Array]:
    """Where a parameter with this support and prior may lie."""
    low, high = INSIDE[support]
    if prior.kind == "uniform":
        return np.maximum(low, prior.args[0]), np.minimum(high, prior.args[1])
    if prior.kind == "beta":
        return np.maximum(low, EDGE), np.minimum(high, 1.0 - EDGE)
    if prior.kind not in ("flat", "normal"):
        low = max(low, SMALLEST_SCALE)
    return np.asarray(low), np.asarray(high)


def climb(objective: Callable[[Values], float], prior, unknowns: Mapping[str, Unknown], starts: tuple[Values, ...]):
    """From the best of the starts to a maximum, all unknowns of the chain at once; never lower than the start."""
    supports = supports_of(prior)
    values = max(starts, key=objective)
    ways = {name: TO_FREE[supports[name]] for name in unknowns}
    start = np.concatenate([ways[name][0](values[name]).ravel() for name in unknowns])
    box = np.concatenate([_box(own, supports[name], ways[name][0]) for name, own in unknowns.items()])
    sizes = np.cumsum([values[name].size for name in unknowns])[:-1]

    def unpack(free: Array) -> dict[str, Array]:
        parts = zip(unknowns, np.split(free, sizes), strict=True)
        return dict(values) | {name: ways[name][1](part).reshape(values[name].shape) for name, part in parts}

    found = minimize(lambda u: -objective(unpack(u)), start, method="L-BFGS-B", bounds=box, tol=1e-12)
    return unpack(found.x) if found.fun <= -objective(values) else dict(values)


def _box(unknown: Unknown, support: tuple[float, float], to_free: Callable) -> Array:
    """The bounds of its entries in free coordinates, (entries, 2)."""
    edges = [np.broadcast_to(to_free(edge), unknown.variable_shape) for edge in bounds(unknown.prior, support)]
    return np.stack([edge.ravel() for edge in edges], axis=1)


def keep_inside(prior, values: Values) -> dict[str, Array]:
    """The values, those of the chain moved to where the updates can hold them: off the ends of their supports."""
    found, supports = dict(values), supports_of(prior)
    for parameter in prior.parameters.values():
        if isinstance(parameter, Unknown):
            edges = bounds(parameter.prior, supports[parameter.name])
            found[parameter.name] = np.asarray(np.clip(found[parameter.name], *edges))
    return found


def log_priors(unknowns: Mapping[str, Unknown], values: Values) -> float:
    """Log-density of the chain's unknowns under their own priors."""
    return sum(float(np.sum(own.prior.log_density(values[name]))) for name, own in unknowns.items())
