"""The M-step of the log-normal chain: mean, persistence, scale and the law of the first time.

With z = log h, the expected log-density of the steps is that of a regression of z_t on z_{t-1}::

    - n log s - 1 / (2 s^2) sum (z_t - m - phi (z_{t-1} - m))^2,      n transitions

and a first time with a law of its own is a regression on nothing: mean and scale of one sample for each component. A
stationary one ties them: z_1 ~ N(m, s^2 / (1 - phi^2)) adds (1 - phi^2) (z_1 - m)^2 to the squares. Where mean and
persistence are tied alike the maximum has a closed form; otherwise the three are maximised in turn until they stand
still (`nmf_zoo.kernels.chain_updates`). Other priors than uniform, normal, beta (of a persistence) and gamma,
inverse-gamma, half-normal and log-normal (of a scale), and variables in two roles, are left to a numerical search.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.hmm.climb import climb, log_priors
from nmf_zoo.inference.hmm.update_rules import rules_of, why_not
from nmf_zoo.kernels.chain_updates import update_regression
from nmf_zoo.structure import Array, LogNormalARPrior, Parameter, Unknown

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
            lambda values: log_chain(prior, unknowns, pairs, first, transitions, values), prior, unknowns, (old,)
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


def log_chain(
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
