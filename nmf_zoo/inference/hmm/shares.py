"""The M-step of probabilities that are shares of moves: p and q of binary chains, the alpha of unit chains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.hmm.climb import bounds
from nmf_zoo.inference.sides import sum_to
from nmf_zoo.structure import Array, Unknown

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
