"""A chain's unknowns and their priors as the compiled M-step takes them: entries, bounds and six numbers each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nmf_zoo.inference.hmm.climb import bounds
from nmf_zoo.kernels.chain_updates import KNOWN, Rules
from nmf_zoo.structure import Array, BasisChainPrior, LogNormalARPrior, Parameter, UnitChainPrior, Unknown
from nmf_zoo.structure.chains import PROBABILITY, SUPPORTS

Chain = BasisChainPrior | UnitChainPrior | LogNormalARPrior
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


def why_not(prior: Chain) -> str:
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
