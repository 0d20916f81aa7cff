"""

The M-step of any chain: its parameters at their best given the expected statistics of its paths.

What each chain counts over its transitions (z = h_{t-1} and z' = h_t, or their logarithms), for every component:

    basis        0->0, 0->1, 1->0, 1->1                                                `update_basis`
    unit         moves towards the nearer end, moves away from it                      `update_unit`
    log-normal   z, z', z z, z z', z' z'                                               `update_log_normal`

Any of the parameters may be known; the others may be one number for all components or one for each, free or with a
prior, which then adds its log-density to the chains' own. :func:`update_chain` is for whole series, where the step may
search; `nmf_zoo.kernels.hmm.chain_updates` is its compiled twin for streams.

**The basis chain.** Of p, its stays and its leaves are the expected transitions 0->0 and 0->1; of q, 1->1 and 1->0; of
the initial law, on and off at the first time. Where the initial law is a number (Yildirim, Cemgil, Singh 2012, section
4.1, with the states *left* in the denominators), each is a share of its own: stays / (stays + leaves), with the counts
of a beta prior added, over all components and roles that the unknown serves. A stationary initial law ties p and q
together::

    sum stays log p + leaves log(1 - p) + ... + on log r + off log(1 - r),   r = (1 - p) / (2 - p - q)

whose maximum is found numerically.

**The unit chain.** alpha is the share of moves towards the nearer end,
alpha = towards / (towards + away), summed over the components that share it (Yildirim, Cemgil, Singh 2012, section 4.2,
which leaves out that sum), with the counts of a beta prior added. The first time says nothing of alpha.

**The log-normal chain** has a mean, a persistence, a scale and a law of the first time. With z = log h, the expected
log-density of the steps is that of a regression of z_t on z_{t-1}::

    - n log s - 1 / (2 s^2) sum (z_t - m - phi (z_{t-1} - m))^2,      n transitions

and a first time with a law of its own is a regression on nothing: mean and scale of one sample for each component. A
stationary one ties them: z_1 ~ N(m, s^2 / (1 - phi^2)) adds (1 - phi^2) (z_1 - m)^2 to the squares. Where mean and
persistence are tied alike the maximum has a closed form; otherwise the three are maximised in turn until they stand
still (`nmf_zoo.kernels.hmm.chain_updates`). Other priors than uniform, normal, beta (of a persistence) and gamma,
inverse-gamma, half-normal and log-normal (of a scale), and variables in two roles, are left to a numerical search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.kernels.hmm.chain_updates import EDGE, KNOWN, Rules, update_regression
from nmf_zoo.structure import (
    Array,
    BasisChainPrior,
    ChainPrior,
    Factor,
    HyperPrior,
    LogNormalARPrior,
    Parameter,
    UnitChainPrior,
    Unknown,
)
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SUPPORTS, SYMMETRIC, supports_of

__all__ = ["ChainCounts", "bounds", "keep_inside", "update_chain"]


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


def update_chain(factor: Factor, counts: ChainCounts, values: Mapping[str, Array]) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best."""
    prior, unknowns = factor.prior, {unknown.name: unknown for unknown in factor.unknowns}
    if not unknowns:
        return dict(values)
    if isinstance(prior, BasisChainPrior):
        return update_basis(prior, unknowns, counts.pairs, counts.first, values)
    if isinstance(prior, UnitChainPrior):
        return update_unit(prior, unknowns, counts.pairs, values)
    assert isinstance(prior, LogNormalARPrior)
    return update_log_normal(prior, unknowns, *counts, values)


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


# -- basis chain -----------------------------------------------------------------------------------------------------


def count(pairs: Array, first: Array) -> Shares:
    """From the expected transitions (K, 4) and P(on) at the first time (K, 1)."""
    stay_off, turn_on, turn_off, stay_on = pairs.T[:, :, None]
    return {"p": (stay_off, turn_on), "q": (stay_on, turn_off), "initial": (first, 1.0 - first)}


def update_basis(
    prior: BasisChainPrior, unknowns: Mapping[str, Unknown], pairs: Array, first: Array, old: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best."""
    counts = count(pairs, first)
    values = update_shares(prior, unknowns, counts, old)
    if not prior.is_stationary and all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
        return values
    return climb(lambda v: log_basis_chain(prior, unknowns, counts, v), prior, unknowns, (old, values))


def log_basis_chain(prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values) -> float:
    """What the M-step maximises: the expected log-density of the chains and the priors of their parameters."""
    return log_shares(counts, prior.law(values)) + log_priors(unknowns, values)


# -- unit chain ------------------------------------------------------------------------------------------------------


def update_unit(
    prior: UnitChainPrior, unknowns: Mapping[str, Unknown], pairs: Array, old: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of the hyperparameters, alpha at its best given pairs (K, 2): towards the nearer end, or away."""
    counts: Shares = {"alpha": (pairs[:, :1], pairs[:, 1:])}
    values = update_shares(prior, unknowns, counts, old)
    if all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
        return values
    return climb(lambda v: log_unit_chain(prior, unknowns, counts, v), prior, unknowns, (old, values))


def log_unit_chain(prior: UnitChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values) -> float:
    """What the M-step maximises, up to what does not depend on alpha."""
    return log_shares(counts, (prior.alpha.resolve(values),)) + log_priors(unknowns, values)


# -- log-normal chain ------------------------------------------------------------------------------------------------


STEP, FIRST = ("mean", "persistence", "scale"), ("initial_mean", None, "initial_scale")
MOST_SWEEPS = 20_000  # a fifth of a microsecond each; few where the chain returns to its mean within the series


def update_log_normal(
    prior: LogNormalARPrior,
    unknowns: Mapping[str, Unknown],
    pairs: Array,
    first: Array,
    transitions: float,
    old: Mapping[str, Array],
) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best.

    ``pairs`` (K, 5) expected sums of z, z', z z, z z', z' z' over the transitions; ``first`` (K, 2) of z_1 and z_1^2.
    """
    if why_not(prior):
        return climb(
            lambda values: log_normal_chain(prior, unknowns, pairs, first, transitions, values), prior, unknowns, (old,)
        )
    values, none = dict(old), np.zeros((len(pairs), 3))
    with_first = np.column_stack([np.ones(len(first)), first]) if prior.is_stationary else none
    _regress(prior.parameters, STEP, values, pairs, transitions, with_first)
    if not prior.is_stationary:
        alone = np.column_stack([none, first])[:, [0, 3, 1, 2, 4]]  # z' is z_1, and z is 0
        _regress(prior.parameters, FIRST, values, alone, 1.0, none)
    return values


def _regress(
    parameters: Mapping[str, Parameter],
    roles: tuple[str | None, ...],
    values: dict[str, Array],
    pairs: Array,
    transitions: float,
    first: Array,
) -> None:
    """Overwrite the values of the unknowns among three roles; a role without a name is 0."""
    found = np.zeros((3, len(pairs)))
    for row, role in enumerate(roles):
        if role is not None:
            found[row] = np.broadcast_to(parameters[role].resolve(values), (len(pairs), 1))[:, 0]
    rules, entries = rules_of(parameters, roles, len(pairs))
    update_regression(found, np.ascontiguousarray(pairs), float(transitions), first, rules, 1.0, MOST_SWEEPS)
    for name, (row, unknown) in entries.items():
        values[name] = as_variable(found[row], unknown)


def as_variable(row: Array, unknown: Unknown) -> Array:
    """One number for each component (K,) in the variable's own shape."""
    return np.array((row if unknown.shape else row[:1]).reshape(unknown.variable_shape))


def log_normal_chain(
    prior: LogNormalARPrior,
    unknowns: Mapping[str, Unknown],
    pairs: Array,
    first: Array,
    transitions: float,
    values: Mapping[str, Array],
) -> float:
    """What the M-step maximises, up to a constant: the expected log-density of log h and of the parameters."""
    rank = len(pairs)
    m, phi, s, first_m, first_s = (np.broadcast_to(part, (rank, 1))[:, 0] for part in prior.law(values))
    z, after, squares, products, squares_after = pairs.T
    c = m * (1.0 - phi)
    left = squares_after - 2.0 * phi * products + phi**2 * squares
    left = left + transitions * c**2 - 2.0 * c * (after - phi * z)
    total = -transitions * np.log(s) - left / (2.0 * s**2)
    total = total - np.log(first_s) - (first[:, 1] - 2.0 * first_m * first[:, 0] + first_m**2) / (2.0 * first_s**2)
    return float(np.sum(total)) + log_priors(unknowns, values)


# -- which parameters are updated how --------------------------------------------------------------------------------


Entries = dict[str, tuple[int, Unknown]]  # name -> (a row of the parameters that it serves, the unknown)

# The six numbers that a prior adds, by kind of role and kind of prior: see Rules.
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
TERMS = {
    "p": SHARE,
    "q": SHARE,
    "initial": SHARE,
    "alpha": SHARE,
    "mean": LEVEL,
    "persistence": SLOPE,
    "scale": SIZE,
    "initial_mean": LEVEL,
    "initial_scale": SIZE,
}
ROLES: dict[type, tuple[str, ...]] = {
    BasisChainPrior: ("p", "q"),
    UnitChainPrior: ("alpha",),
    LogNormalARPrior: ("mean", "persistence", "scale"),
}


def why_not(prior: ChainPrior) -> str:
    """Why the compiled M-step can't serve this chain; "" where it can."""
    served: dict[str, str] = {}
    for role, parameter in prior.parameters.items():
        if not isinstance(parameter, Unknown):
            continue
        kind, name = parameter.prior.kind, parameter.name
        if kind not in TERMS[role]:
            words = ", ".join(sorted(TERMS[role]))
            return f"{name} has a {kind} prior: as a chain's {role.replace('_', ' ')} it takes {words}"
        if role == "persistence" and kind == "beta" and any(np.any(arg < 1) for arg in parameter.prior.args):
            return f"{name} has a beta prior with a parameter below 1, whose density has no peak"
        if name in served and not SUPPORTS[role] == SUPPORTS[served[name]] == PROBABILITY:
            return f"{name} is both {served[name]} and {role} of the chain"
        served[name] = role
    return ""


def rules_of(parameters: Mapping[str, Parameter], roles: Sequence[str | None], rank: int) -> tuple[Rules, Entries]:
    """The rules for these roles' parameters, row by row, and where each unknown is."""
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
                edges.append([_entry(edge, unknown, e) for edge in bounds(unknown.prior, SUPPORTS[role])])
                args = [_entry(arg, unknown, e) for arg in unknown.prior.args]
                terms.append(TERMS[role][unknown.prior.kind](*args))
        group[row] = starts[unknown.name] + (np.arange(rank) if unknown.shape else 0)
    n = len(edges)
    rules = Rules(
        group=group,
        bounds=np.array(edges, dtype=np.float64).reshape(n, 2),
        priors=np.array(terms, dtype=np.float64).reshape(n, 6),
        joint=int(_has_closed_form(parameters, roles)),
        sums=np.zeros((n, 2)),
    )
    return rules, entries


def _entry(array: Array, unknown: Unknown, e: int) -> float:
    return float(np.broadcast_to(array, unknown.variable_shape).ravel()[e])


def _has_closed_form(parameters: Mapping[str, Parameter], roles: Sequence[str | None]) -> bool:
    """Mean and persistence are free and tied alike, and so is what each of their steps weighs."""
    if tuple(roles) != ROLES[LogNormalARPrior]:
        return False
    mean, slope, scale = (parameters[role] for role in ROLES[LogNormalARPrior])
    if not isinstance(mean, Unknown) or not isinstance(slope, Unknown):
        return False
    is_free = mean.prior.is_flat and slope.prior.kind in ("flat", "uniform")
    return is_free and mean.shape == slope.shape and (mean.shape != () or scale.shape == ())


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
