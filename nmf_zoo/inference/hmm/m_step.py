"""What M-steps of chains share: shares of events, rules for compiled updates, and a search where neither serves.

What each chain counts over its transitions (z = h_{t-1} and z' = h_t, or their logarithms), for every component, and
how its parameters are maximised given that, is in its file in :mod:`nmf_zoo.inference.hmm.chains`:

    basis        0->0, 0->1, 1->0, 1->1
    unit         moves towards the nearer end, moves away from it
    log-normal   z, z', z z, z z', z' z'

Any of the parameters may be known; the others may be one number for all components or one for each, free or with a
prior, which then adds its log-density to the chains' own. These M-steps are for whole series, where the step may
search; `nmf_zoo.kernels.hmm.chain_updates` is their compiled twin for streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.kernels.hmm.chain_updates import EDGE, KNOWN, ChainRules
from nmf_zoo.structure import (
    Array,
    ChainPrior,
    HyperPrior,
    Unknown,
)
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SYMMETRIC, supports_of


class ChainCounts(NamedTuple):
    """Expected statistics of a chain's paths.

    Attributes
    ----------
    pairs : (K, 4), (K, 2) or (K, 5) sums over the transitions, as above
    first : of the first time: (K, 1) P(on) of a basis chain, (K, 0) of a unit one, (K, 2) z and z^2 of a log-normal one
    transitions : how many there are, T - 1
    """

    pairs: Array
    first: Array
    transitions: float


# -- shares ----------------------------------------------------------------------------------------------------------


Shares = dict[str, tuple[Array, Array]]  # role -> (stays, leaves), (K, 1) each
CLOSED_FORM = ("flat", "uniform", "beta")  # priors


def update_shares(prior, unknowns: Mapping[str, Unknown], counts: Shares, values: Mapping[str, Array]):
    """The values, every unknown probability at stays / (stays + leaves), over all roles and components it serves."""
    values = dict(values)
    for unknown in unknowns.values():
        stays, leaves = (np.zeros(unknown.shape) for _ in range(2))
        for role, parameter in prior.parameters.items():
            if isinstance(parameter, Unknown) and parameter.name == unknown.name:
                stays = stays + sum_to(counts[role][0], unknown.shape)
                leaves = leaves + sum_to(counts[role][1], unknown.shape)
        values[unknown.name] = _share(stays, leaves, unknown, values[unknown.name])
    return values


def _share(stays: Array, leaves: Array, unknown: Unknown, old: Array) -> Array:
    """Where stays log v + leaves log(1 - v) + log prior is highest, in the variable's shape; the old without counts."""
    if unknown.prior.kind == "beta":
        a, b = (np.broadcast_to(arg, unknown.variable_shape).reshape(unknown.shape) for arg in unknown.prior.args)
        stays, leaves = stays + a - 1.0, leaves + b - 1.0
    total = stays + leaves
    with np.errstate(invalid="ignore", divide="ignore"):
        best = np.where(total > 0, stays / total, old.reshape(unknown.shape))
    return np.asarray(np.clip(best.reshape(unknown.variable_shape), *bounds(unknown.prior)))


def log_shares(counts: Shares, probabilities: tuple[Array, ...]) -> float:
    """sum stays log v + leaves log(1 - v)"""
    total = 0.0
    for (stays, leaves), v in zip(counts.values(), probabilities, strict=True):
        total += float(np.sum(stays * np.log(v) + leaves * np.log1p(-v)))
    return total


def as_variable(row: Array, unknown: Unknown) -> Array:
    """One number for each component (K,) in the variable's own shape."""
    return np.array((row if unknown.shape else row[:1]).reshape(unknown.variable_shape))


# -- which parameters are updated how --------------------------------------------------------------------------------


Entries = dict[str, tuple[int, Unknown]]  # name -> (a row of the parameters that it serves, the unknown)

# The six numbers that a prior adds, by kind of role and kind of prior: see ChainRules.
SHARE: dict[str, Callable[..., tuple]] = {
    "flat": lambda: (0, 0, 0, 0, 0, 0),
    "uniform": lambda low, high: (0, 0, 0, 0, 0, 0),
    "beta": lambda a, b: (a - 1, b - 1, 0, 0, 0, 0),
}
LEVEL: dict[str, Callable[..., tuple]] = {
    "flat": SHARE["flat"],
    "uniform": SHARE["uniform"],
    "normal": lambda mu, sigma: (0, 0, 0, 0, 1 / sigma**2, mu),
}
SLOPE = LEVEL | {"beta": SHARE["beta"]}
SIZE: dict[str, Callable[..., tuple]] = {
    "flat": SHARE["flat"],
    "uniform": SHARE["uniform"],
    "gamma": lambda a, r: (a - 1, 0, r, 0, 0, 0),
    "inverse_gamma": lambda a, b: (-a - 1, b, 0, 0, 0, 0),
    "half_normal": lambda sigma: (0, 0, 0, 1 / sigma**2, 0, 0),
    "lognormal": lambda mu, sigma: (-1, 0, 0, 0, 1 / sigma**2, mu),
}
TERMS = {PROBABILITY: SHARE, REAL: LEVEL, SYMMETRIC: SLOPE, POSITIVE: SIZE}  # by where a parameter lies


def why_not(prior: ChainPrior) -> str:
    """Why the compiled M-step can't serve this chain; "" where it can."""
    served: dict[str, str] = {}
    for role, parameter in prior.parameters.items():
        if not isinstance(parameter, Unknown):
            continue
        kind, name, support = parameter.prior.kind, parameter.name, prior.supports[role]
        if kind not in TERMS[support]:
            words = ", ".join(sorted(TERMS[support]))
            return f"{name} has a {kind} prior: as a chain's {role.replace('_', ' ')} it takes {words}"
        if support == SYMMETRIC and kind == "beta" and any(np.any(arg < 1) for arg in parameter.prior.args):
            return f"{name} has a beta prior with a parameter below 1, whose density has no peak"
        if name in served and not support == prior.supports[served[name]] == PROBABILITY:
            return f"{name} is both {served[name]} and {role} of the chain"
        served[name] = role
    return ""


def rules_of(
    prior: ChainPrior, roles: Sequence[str | None], rank: int, joint: bool = False
) -> tuple[ChainRules, Entries]:
    """The rules for these roles' parameters, row by row, and where each unknown is.

    ``joint``: the first two have a maximum in closed form together
    """
    parameters = prior.parameters
    group = np.full((3, rank), KNOWN)
    edges: list[list[float]] = []
    terms: list[tuple] = []
    entries: Entries = {}
    starts: dict[str, int] = {}
    for row, role in enumerate(roles):
        unknown = parameters[role] if role is not None else None
        if role is None or not isinstance(unknown, Unknown):
            continue
        if unknown.name not in starts:
            starts[unknown.name], entries[unknown.name] = len(edges), (row, unknown)
            for e in range(int(np.prod(unknown.shape, dtype=int))):
                edges.append([_entry(edge, unknown, e) for edge in bounds(unknown.prior, prior.supports[role])])
                args = [_entry(arg, unknown, e) for arg in unknown.prior.args]
                terms.append(TERMS[prior.supports[role]][unknown.prior.kind](*args))
        group[row] = starts[unknown.name] + (np.arange(rank) if unknown.shape else 0)
    n = len(edges)
    rules = ChainRules(
        group=group,
        bounds=np.array(edges, dtype=np.float64).reshape(n, 2),
        priors=np.array(terms, dtype=np.float64).reshape(n, 6),
        joint=int(joint),
        sums=np.zeros((n, 2)),
    )
    return rules, entries


def _entry(array: Array, unknown: Unknown, e: int) -> float:
    return float(np.broadcast_to(array, unknown.variable_shape).ravel()[e])


# -- numerical search ------------------------------------------------------------------------------------------------


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
