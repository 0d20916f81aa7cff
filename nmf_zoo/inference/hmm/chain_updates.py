"""The M-step of the basis chain: p, q and the initial law from the expected transitions.

Of p, its stays and its leaves are the expected transitions 0->0 and 0->1; of q, 1->1 and 1->0; of the initial law, on
and off at the first time. Where the initial law is a number (Yildirim, Cemgil, Singh 2012, section 4.1, with
the states *left* in the denominators), each is a share of its own: stays / (stays + leaves), with the counts of a beta
prior added, over all components and roles that the unknown serves. A stationary initial law ties p and q together::

    sum stays log p + leaves log(1 - p) + ... + on log r + off log(1 - r),   r = (1 - p) / (2 - p - q)

whose maximum is found numerically.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from nmf_zoo.inference.sides import sum_to
from nmf_zoo.kernels.basis_online import EDGE
from nmf_zoo.structure import Array, BasisChainPrior, Factor, HyperPrior, Unknown

Counts = dict[str, tuple[Array, Array]]  # role -> (stays, leaves), (K, 1) each


def count(pairs: Array, first: Array) -> Counts:
    """From the expected transitions (K, 4) and P(on) at the first time (K,)."""
    stay_off, turn_on, turn_off, stay_on = pairs.T[:, :, None]
    return {"p": (stay_off, turn_on), "q": (stay_on, turn_off), "initial": (first[:, None], 1.0 - first[:, None])}


def update_chain(factor: Factor, counts: Counts, values: Mapping[str, Array]) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best."""
    prior, old, values = factor.prior, values, dict(values)
    assert isinstance(prior, BasisChainPrior)
    unknowns = {unknown.name: unknown for unknown in factor.unknowns}
    for unknown in unknowns.values():
        stays, leaves = (np.zeros(unknown.shape) for _ in range(2))
        for role, parameter in prior.parameters.items():
            if isinstance(parameter, Unknown) and parameter.name == unknown.name:
                stays = stays + sum_to(counts[role][0], unknown.shape)
                leaves = leaves + sum_to(counts[role][1], unknown.shape)
        values[unknown.name] = _share(stays, leaves, unknown, values[unknown.name])
    return _climb(prior, unknowns, counts, (old, values)) if prior.is_stationary and unknowns else values


def _share(stays: Array, leaves: Array, unknown: Unknown, old: Array) -> Array:
    """Where stays log v + leaves log(1 - v) + log prior is highest, in the variable's shape; the old without counts."""
    if unknown.prior.kind == "beta":
        a, b = (np.broadcast_to(arg, unknown.variable_shape).reshape(unknown.shape) for arg in unknown.prior.args)
        stays, leaves = stays + a - 1.0, leaves + b - 1.0
    total = stays + leaves
    with np.errstate(invalid="ignore", divide="ignore"):
        best = np.where(total > 0, stays / total, old.reshape(unknown.shape))
    return np.asarray(np.clip(best.reshape(unknown.variable_shape), *bounds(unknown.prior)))


def bounds(prior: HyperPrior) -> tuple[Array, Array]:
    """Where a probability with this prior may lie."""
    low, high = prior.args if prior.kind == "uniform" else (np.zeros(()), np.ones(()))
    return np.maximum(low, EDGE), np.minimum(high, 1.0 - EDGE)


def log_chain(prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: Counts, values) -> float:
    """What the M-step maximises: the expected log-density of the chains and the priors of their parameters."""
    total = 0.0
    for (stays, leaves), v in zip(counts.values(), prior.law(values), strict=True):
        total += float(np.sum(stays * np.log(v) + leaves * np.log1p(-v)))
    return total + sum(float(np.sum(own.prior.log_density(values[name]))) for name, own in unknowns.items())


def _climb(
    prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: Counts, starts: tuple[Mapping[str, Array], ...]
) -> dict[str, Array]:
    """From the best of the starts to the maximum of :func:`log_chain`, in the log-odds of all unknowns at once."""
    values = max(starts, key=lambda start: log_chain(prior, unknowns, counts, start))
    start = np.concatenate([logit(values[name]).ravel() for name in unknowns])
    box = np.concatenate([_box(own) for own in unknowns.values()])
    unpack = _unpacker(unknowns, values)
    found = minimize(
        lambda u: -log_chain(prior, unknowns, counts, unpack(u)), start, method="L-BFGS-B", bounds=box, tol=1e-12
    )
    return unpack(found.x) if found.fun <= -log_chain(prior, unknowns, counts, values) else dict(values)


def _box(unknown: Unknown) -> Array:
    """The bounds of its entries in log-odds, (entries, 2)."""
    edges = [np.broadcast_to(logit(edge), unknown.variable_shape) for edge in bounds(unknown.prior)]
    return np.stack([edge.ravel() for edge in edges], axis=1)


def _unpacker(unknowns: Mapping[str, Unknown], values: Mapping[str, Array]) -> Callable[[Array], dict[str, Array]]:
    sizes = np.cumsum([values[name].size for name in unknowns])[:-1]

    def unpack(log_odds: Array) -> dict[str, Array]:
        parts = zip(unknowns, np.split(expit(log_odds), sizes), strict=True)
        return dict(values) | {name: part.reshape(values[name].shape) for name, part in parts}

    return unpack
