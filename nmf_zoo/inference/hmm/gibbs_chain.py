"""Draws of the hyperparameters given W and H: in closed form where the prior allows, else by slice sampling.

Given their paths the chains depend on their parameters through few sums (z = log h, z' the step after it)::

    basis        n(0->0), n(0->1), n(1->0), n(1->1), and whether it begins on
    unit         steps towards the nearer end, steps away from it
    log-normal   z_1, and sums of z, z', z z, z z', z' z', all taken from the row's mean, where nothing cancels

In closed form go probabilities with beta or whole uniform priors, where the chain does not begin from its stationary
law, and the mean of a log-normal chain with a normal prior; one number for all components, or one for each. Everything
else is drawn on the real line, by the logit, artanh or logarithm that its role asks for, entry by entry: whatever the
prior, and also where one variable serves several roles, those of W's prior among them.

Moves of log-normal chains along what the data cannot see: w_k -> c w_k, h_k -> h_k / c leaves W H alone.

With s = log c the logarithms of a chain's row fall by s and those of W's column rise by it, volumes stay, and s has
the density::

    prod_f p(w_fk e^s) e^s  p(log h_k - s)

of which the last is the chain's own. Where the chain returns to an unknown mean, a second move takes the mean along,
so that only the priors of W, of the mean, and of the first time hold it back. Both are by slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import expit, logit

from nmf_zoo.inference.shared.factor_view import PriorCells, prior_cells, sum_to
from nmf_zoo.inference.shared.slice_sampling import log_prior_of_groups, slice_draw, sum_groups
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.structure import (
    Array,
    BasisChainPrior,
    ChainPrior,
    Factor,
    Factorisation,
    GammaPrior,
    LogNormalARPrior,
    UnitChainPrior,
    Unknown,
)
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SYMMETRIC, supports_of

INSIDE = 1e-300, 1.0 - 2.0**-53  # where a beta draw has rounded to an end


class Coordinate(NamedTuple):
    """A support's way to the real line and back, and log |d value / d coordinate|."""

    to_real: Callable[[Array], Array]
    back: Callable[[Array], Array]
    log_jacobian: Callable[[Array], Array]


COORDINATES = {
    PROBABILITY: Coordinate(logit, expit, lambda v: np.log(v) + np.log1p(-v)),
    SYMMETRIC: Coordinate(np.arctanh, np.tanh, lambda v: np.log1p(-v) + np.log1p(v)),
    POSITIVE: Coordinate(np.log, np.exp, np.log),
    REAL: Coordinate(np.asarray, np.asarray, np.zeros_like),
}


def chain_of(structure: Factorisation) -> ChainPrior:
    """The prior of an H that is a chain."""
    return cast(ChainPrior, structure.H.prior)


class ChainSums(NamedTuple):
    """What the parameters of a chain see of its paths.

    first : (K, 1) of the first time; steps : (S, K, 1) sums over the transitions; n_steps; centre : (K, 1) that
    logarithms are taken from
    """

    first: Array
    steps: Array
    n_steps: int
    centre: Array


def sum_paths(prior: ChainPrior, h: Array, aux: Array) -> ChainSums:
    """The sums of paths (K, T) and their exact companions (see :class:`nmf_zoo.kernels.hmm.particles.laws.Cloud`)."""
    n_steps, centre = h.shape[1] - 1, np.zeros((len(h), 1))
    before, after = h[:, :-1], h[:, 1:]
    if isinstance(prior, BasisChainPrior):
        steps = [(before == a) & (after == b) for a in (0, 1) for b in (0, 1)]
    elif isinstance(prior, LogNormalARPrior):
        centre = aux.mean(axis=1, keepdims=True)
        before, after = aux[:, :-1] - centre, aux[:, 1:] - centre
        pairs = (before, after, before * before, before * after, after * after)
        return ChainSums(aux[:, :1].copy(), _row_sums(pairs), n_steps, centre)
    else:
        is_low = before <= aux[:, :-1]
        towards = np.where(is_low, after <= before, aux[:, 1:] <= aux[:, :-1])
        steps = [towards, ~towards]
    return ChainSums(h[:, :1].copy(), _row_sums(steps), n_steps, centre)


def _row_sums(parts: Sequence[Array]) -> Array:
    return np.stack([part.sum(axis=1, keepdims=True, dtype=np.float64) for part in parts])


def log_paths(prior: ChainPrior, sums: ChainSums, values: Mapping[str, Array]) -> Array:
    """log p(paths | parameters) of every component, (K, 1), up to a constant."""
    if isinstance(prior, BasisChainPrior):
        p, q, initial = prior.law(values)
        stay_off, turn_on, turn_off, stay_on = sums.steps
        steps = stay_off * np.log(p) + turn_on * np.log1p(-p) + turn_off * np.log1p(-q) + stay_on * np.log(q)
        return steps + np.log(np.where(sums.first > 0.5, initial, 1.0 - initial))
    if isinstance(prior, LogNormalARPrior):
        mean, persistence, scale, *begins = prior.law(values)
        squares = _squares(sums, mean - sums.centre, persistence)
        steps = -0.5 * squares / scale**2 - sums.n_steps * np.log(scale)
        return steps - 0.5 * ((sums.first - begins[0]) / begins[1]) ** 2 - np.log(begins[1])
    assert isinstance(prior, UnitChainPrior)
    alpha = prior.alpha.resolve(values)
    return sums.steps[0] * np.log(alpha) + sums.steps[1] * np.log1p(-alpha)


def _squares(sums: ChainSums, mean: Array, persistence: Array) -> Array:
    """sum (z' - c - persistence z)^2, c = (1 - persistence) mean, (K, 1)."""
    z, after, zz, product, afters = sums.steps
    c = (1.0 - persistence) * mean
    linear = after - persistence * z
    return afters - 2.0 * persistence * product + persistence**2 * zz - 2.0 * c * linear + sums.n_steps * c**2


def draw_parameters(
    structure: Factorisation, W: Array, sums: ChainSums, values: dict[str, Array], generator: np.random.Generator
) -> None:
    """Draw every unknown hyperparameter in turn, in place of its entry in ``values``."""
    groups = sum_groups(structure.W, W) if structure.W.unknowns else None
    for name, unknown in structure.unknowns.items():
        drawn = None
        if _use(structure.W, name) is None:
            drawn = _draw_in_closed_form(structure, unknown, sums, values, generator)
        values[name] = _draw_by_slice(structure, unknown, groups, sums, values, generator) if drawn is None else drawn


def _use(factor: Factor, name: str) -> Unknown | None:
    """The hyperparameter as the factor's prior uses it, if it does."""
    return next((unknown for unknown in factor.unknowns if unknown.name == name), None)


def _draw_in_closed_form(
    structure: Factorisation, unknown: Unknown, sums: ChainSums, values: Mapping[str, Array], generator
) -> Array | None:
    """A draw from its conditional if that is a beta or a normal one, else None."""
    prior = chain_of(structure)
    roles = [role for role, parameter in prior.parameters.items() if _is(parameter, unknown)]
    kind, args = unknown.prior.kind, unknown.prior.args
    if kind == "uniform" and np.all(args[0] <= 0.0) and np.all(args[1] >= 1.0):
        kind, args = "beta", (np.ones(()), np.ones(()))
    if kind == "beta" and not (isinstance(prior, LogNormalARPrior) or getattr(prior, "is_stationary", False)):
        stays, leaves = _stays_and_leaves(prior, roles, sums)
        a, b = (_entries(count, unknown) + arg for count, arg in zip((stays, leaves), args, strict=True))
        return np.asarray(np.clip(generator.beta(a, b), *INSIDE))
    if kind == "normal" and roles == ["mean"] and isinstance(prior, LogNormalARPrior):
        return _draw_mean(prior, unknown, sums, values, generator)
    return None


def _is(parameter: Any, unknown: Unknown) -> bool:
    return isinstance(parameter, Unknown) and parameter.name == unknown.name


def _entries(of_components: Array, unknown: Unknown) -> Array:
    """(K, 1) summed over the components that share an entry, in the variable's shape."""
    return sum_to(of_components, unknown.shape).reshape(unknown.variable_shape)


def _stays_and_leaves(prior: ChainPrior, roles: list[str], sums: ChainSums) -> tuple[Array, Array]:
    """(K, 1) each: how often the probability's event came about, and how often it did not."""
    counts = {"alpha": sums.steps}
    if isinstance(prior, BasisChainPrior):
        begins = np.stack([sums.first, 1.0 - sums.first])
        counts = {"p": sums.steps[:2], "q": sums.steps[:1:-1], "initial": begins}
    stays, leaves = np.sum([counts[role] for role in roles], axis=0)
    return stays, leaves


def _draw_mean(
    prior: LogNormalARPrior, unknown: Unknown, sums: ChainSums, values: Mapping[str, Array], generator
) -> Array:
    """The normal conditional of the level that a log-normal chain returns to."""
    _, persistence, scale, *begins = prior.law(values)
    room = 1.0 - persistence
    precision = sums.n_steps * room**2 / scale**2 + np.zeros_like(sums.first)
    pull = room * (sums.steps[1] - persistence * sums.steps[0]) / scale**2
    pull = pull + sums.n_steps * room**2 / scale**2 * sums.centre
    if prior.is_stationary:
        precision, pull = precision + 1.0 / begins[1] ** 2, pull + sums.first / begins[1] ** 2
    mu, sigma = unknown.prior.args
    total = _entries(precision, unknown) + 1.0 / sigma**2
    centre = (_entries(pull, unknown) + mu / sigma**2) / total
    return np.asarray(generator.normal(centre, 1.0 / np.sqrt(total)))


def _draw_by_slice(
    structure: Factorisation, unknown: Unknown, groups, sums: ChainSums, values: Mapping[str, Array], generator
) -> Array:
    """One slice-sampling step for every entry."""
    name, own, prior = unknown.name, COORDINATES[_support(structure, unknown)], chain_of(structure)
    use_H, use_W = _use(structure.H, name), _use(structure.W, name)

    def log_density(u: Array) -> Array:
        value = own.back(u)
        proposed = {**values, name: value}
        total = unknown.prior.log_density(value) + own.log_jacobian(value)
        if use_H is not None:
            total = total + _entries(log_paths(prior, sums, proposed), use_H)
        if use_W is not None:
            total = total + _entries(log_prior_of_groups(groups, proposed), use_W)
        return np.where(np.isnan(total), -np.inf, total)

    return np.asarray(own.back(slice_draw(log_density, own.to_real(values[name]), generator)))


def _support(structure: Factorisation, unknown: Unknown) -> tuple[float, float]:
    """What all its roles allow."""
    low, high = supports_of(chain_of(structure)).get(unknown.name, REAL)
    if isinstance(structure.W.prior, GammaPrior) and _use(structure.W, unknown.name) is not None:
        low = max(low, POSITIVE[0])
    return low, high


# -- moves of levels and scales --------------------------------------------------------------------------------------


def move_levels(
    structure: Factorisation,
    W: Array,
    z: Array,
    sums: ChainSums,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> ChainSums:
    """Move W (F, K), z = log h (K, T) and the mean's entry of ``values``, in place; returns the sums of the new z."""
    priors = prior_cells(structure, values)  # the chain's mean has no part in them where it moves
    weights = _density_of_weights(priors, W)
    slope, bend = pull_of_level(_chain(structure), sums, values)

    def of_level(s: Array) -> Array:
        return weights(s) + (slope - 0.5 * bend * s) * s

    sums = _apply(slice_draw(of_level, np.zeros(sums.first.shape), generator), W, z, sums)
    mean = _free_mean(structure)
    if mean is None:
        return sums
    return _move_with_mean(_chain(structure), mean, _density_of_weights(priors, W), (W, z), sums, values, generator)


def _move_with_mean(
    prior: LogNormalARPrior,
    mean: Unknown,
    weights: Callable[[Array], Array],
    moved: tuple[Array, Array],
    sums: ChainSums,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> ChainSums:
    """The levels of all chains that share a mean move with it: a stationary chain does not notice.

    ``weights`` is the density of W; ``moved`` are W and z.
    """
    slope, bend = pull_of_first(prior, sums, values)
    old = values[mean.name]

    def of_mean(s: Array) -> Array:
        by_row = s.reshape(mean.shape)
        rows = weights(by_row) + (slope - 0.5 * bend * by_row) * by_row
        return sum_to(rows, mean.shape).reshape(mean.variable_shape) + mean.prior.log_density(old - s)

    s = slice_draw(of_mean, np.zeros(mean.variable_shape), generator)
    values[mean.name] = old - s
    return _apply(np.broadcast_to(s.reshape(mean.shape), sums.first.shape), *moved, sums)


def pull_of_level(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(slope, bend), (K, 1): log p(z - s) = log p(z) + slope s - bend s^2 / 2."""
    mean, persistence, scale, first, spread = prior.law(values)
    room, away = 1.0 - persistence, sums.centre - mean
    residuals = sums.steps[1] - persistence * sums.steps[0] + sums.n_steps * room * away
    slope = room * residuals / scale**2 + (sums.first - first) / spread**2
    return slope, np.broadcast_to(sums.n_steps * room**2 / scale**2 + 1.0 / spread**2, slope.shape)


def pull_of_first(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """The same where the chain's mean falls with it: only a first time with a mean of its own notices."""
    _, _, _, first, spread = prior.law(values)
    if prior.is_stationary:
        return np.zeros_like(sums.first), np.zeros_like(sums.first)
    return (sums.first - first) / spread**2, np.broadcast_to(1.0 / spread**2, sums.first.shape)


def _density_of_weights(priors: PriorCells, W: Array) -> Callable[[Array], Array]:
    """log of prod_f p(w_fk e^s) e^s as a function of s (K, 1)."""
    shape, pull = (part.sum(axis=0)[:, None] for part in (priors.shape_w, priors.rate_w * W))
    return lambda s: shape * s - pull * np.exp(s)


def _chain(structure: Factorisation) -> LogNormalARPrior:
    return cast(LogNormalARPrior, structure.H.prior)


def _free_mean(structure: Factorisation) -> Unknown | None:
    """The unknown that is the chain's mean, if it is that and nothing else."""
    mean = _chain(structure).mean
    if not isinstance(mean, Unknown):
        return None
    uses = [own for own in structure.W.unknowns + structure.H.unknowns if own.name == mean.name]
    return mean if len(uses) == 1 else None


def _apply(s: Array, W: Array, z: Array, sums: ChainSums) -> ChainSums:
    """Move by s (K, 1)."""
    np.maximum(W * np.exp(s[:, 0]), TINY, out=W)
    z -= s
    return sums._replace(first=sums.first - s, centre=sums.centre - s)
