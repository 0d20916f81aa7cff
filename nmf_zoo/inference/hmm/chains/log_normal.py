"""Chains whose logarithm is an autoregression: z = log h, z' the step after it, and sums of z, z', z z, z z', z' z'.

The M-step. The chain has a mean, a persistence, a scale and a law of the first time. With z = log h, the expected
log-density of the steps is that of a regression of z_t on z_{t-1}::

    - n log s - 1 / (2 s^2) sum (z_t - m - phi (z_{t-1} - m))^2,      n transitions

and a first time with a law of its own is a regression on nothing: mean and scale of one sample for each component. A
stationary one ties them: z_1 ~ N(m, s^2 / (1 - phi^2)) adds (1 - phi^2) (z_1 - m)^2 to the squares. Where mean and
persistence are tied alike the maximum has a closed form; otherwise the three are maximised in turn until they stand
still (`nmf_zoo.kernels.hmm.chain_updates`). Other priors than uniform, normal, beta (of a persistence) and gamma,
inverse-gamma, half-normal and log-normal (of a scale), and variables in two roles, are left to a numerical search.

Gibbs takes the sums from the row's mean, where nothing cancels. It moves along what the data cannot see: w_k -> c w_k,
h_k -> h_k / c leaves W H alone. With s = log c the logarithms of a chain's row fall by s and those of W's column rise
by it, volumes stay, and s has the density::

    prod_f p(w_fk e^s) e^s  p(log h_k - s)

of which the last is the chain's own. Where the chain returns to an unknown mean, a second move takes the mean along,
so that only the priors of W, of the mean, and of the first time hold it back. Both are by slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import numpy as np

from nmf_zoo.inference.hmm.chains.base import ChainFormulas, ChainSums, Values, entries, roles_of, row_sums
from nmf_zoo.inference.hmm.m_step import ChainCounts, Entries, as_variable, climb, log_priors, rules_of, why_not
from nmf_zoo.inference.shared.factor_view import PriorCells, prior_cells, sum_to
from nmf_zoo.inference.shared.slice_sampling import slice_draw
from nmf_zoo.kernels.hmm.chain_updates import ChainRules, update_regression
from nmf_zoo.kernels.hmm.particles.laws import LOG_NORMAL, Law
from nmf_zoo.kernels.random.chain_draws import SMALLEST, log_normal_path
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.structure import Array, ChainPrior, Factorisation, Known, LogNormalARPrior, Unknown

STEP, FIRST = ("mean", "persistence", "scale"), ("initial_mean", None, "initial_scale")
LARGEST_NUMBER = float(np.finfo(float).max)
MOST_SWEEPS = 20_000  # a fifth of a microsecond each; few where the chain returns to its mean within the series


class LogNormalFormulas(ChainFormulas):
    """Of positive chains whose logarithm is an autoregression of order one."""

    code: ClassVar[int] = LOG_NORMAL
    learned: ClassVar[tuple[str, ...]] = STEP
    moves_levels: ClassVar[bool] = True

    def law_rows(self, prior: LogNormalARPrior, values: Values) -> tuple[Sequence[Array], Sequence[Array]]:
        mean, persistence, scale, *first = prior.law(values)
        return (mean, persistence, scale), first

    def in_the_middle(self, law: Law) -> Law:
        mean, persistence, scale = law.parameters
        return law._replace(initial=np.stack([mean, scale / np.sqrt(1.0 - persistence**2)]))

    def with_companion(self, h: Array) -> tuple[Array, Array]:
        h = np.maximum(h, SMALLEST)
        return h, np.log(h)

    def inside(self, h: Array) -> Array:
        return np.clip(h, SMALLEST, LARGEST_NUMBER)

    def start_path(self, law: Law, k: int, n_times: int, generator: np.random.Generator) -> Array:
        mean, persistence, scale = map(float, law.parameters[:, k])
        first = float(law.initial[0, k]), float(law.initial[1, k])
        return log_normal_path(generator.standard_normal(n_times), mean, persistence, scale, first)

    def sum_paths(self, h: Array, aux: Array) -> ChainSums:
        centre = aux.mean(axis=1, keepdims=True)
        before, after = aux[:, :-1] - centre, aux[:, 1:] - centre
        pairs = (before, after, before * before, before * after, after * after)
        return ChainSums(aux[:, :1].copy(), row_sums(pairs), h.shape[1] - 1, centre)

    def log_paths(self, prior: LogNormalARPrior, sums: ChainSums, values: Values) -> Array:
        mean, persistence, scale, *begins = prior.law(values)
        squares = _squares(sums, mean - sums.centre, persistence)
        steps = -0.5 * squares / scale**2 - sums.n_steps * np.log(scale)
        return steps - 0.5 * ((sums.first - begins[0]) / begins[1]) ** 2 - np.log(begins[1])

    def update(
        self, prior: LogNormalARPrior, unknowns: Mapping[str, Unknown], counts: ChainCounts, old: Values
    ) -> dict[str, Array]:
        """The values of the hyperparameters, those of the chain at their best.

        Of ``counts``: pairs (K, 5), expected sums of z, z', z z, z z', z' z'; first (K, 2), of z_1 and z_1^2.
        """
        pairs, first, transitions = counts
        if why_not(prior):
            return climb(
                lambda values: log_normal_chain(prior, unknowns, pairs, first, transitions, values),
                prior,
                unknowns,
                (old,),
            )
        values, none = dict(old), np.zeros((len(pairs), 3))
        with_first = np.column_stack([np.ones(len(first)), first]) if prior.is_stationary else none
        _regress(prior, STEP, values, pairs, transitions, with_first)
        if not prior.is_stationary:
            alone = np.column_stack([none, first])[:, [0, 3, 1, 2, 4]]  # z' is z_1, and z is 0
            _regress(prior, FIRST, values, alone, 1.0, none)
        return values

    def rules(self, prior: ChainPrior, rank: int) -> tuple[ChainRules, Entries]:
        return rules_of(prior, self.learned, rank, joint=_has_closed_form(cast(LogNormalARPrior, prior)))

    def draw(
        self, prior: LogNormalARPrior, unknown: Unknown, sums: ChainSums, values: Values, generator: np.random.Generator
    ) -> Array | None:
        """The level that the chain returns to, where its prior is normal."""
        if unknown.prior.kind != "normal" or roles_of(prior, unknown) != ["mean"]:
            return None
        return draw_mean(prior, unknown, sums, values, generator)

    def fixes_scale(self, prior: LogNormalARPrior) -> bool:
        return isinstance(prior.mean, Known)

    def move_levels(
        self,
        structure: Factorisation,
        W: Array,
        z: Array,
        sums: ChainSums,
        values: dict[str, Array],
        generator: np.random.Generator,
    ) -> ChainSums:
        """Also the mean's entry of ``values``."""
        priors = prior_cells(structure, values)  # the chain's mean has no part in them where it moves
        weights = _density_of_weights(priors, W)
        slope, bend = slope_of_level(_chain(structure), sums, values)

        def of_level(s: Array) -> Array:
            return weights(s) + (slope - 0.5 * bend * s) * s

        sums = _apply(slice_draw(of_level, np.zeros(sums.first.shape), generator), W, z, sums)
        mean = _free_mean(structure)
        if mean is None:
            return sums
        return _move_with_mean(_chain(structure), mean, _density_of_weights(priors, W), (W, z), sums, values, generator)


# -- the M-step ------------------------------------------------------------------------------------------------------


def _regress(
    prior: LogNormalARPrior,
    roles: tuple[str | None, ...],
    values: dict[str, Array],
    pairs: Array,
    transitions: float,
    first: Array,
) -> None:
    """Overwrite the values of the unknowns among three roles; a role without a name is 0."""
    found, parameters = np.zeros((3, len(pairs))), prior.parameters
    for row, role in enumerate(roles):
        if role is not None:
            found[row] = np.broadcast_to(parameters[role].resolve(values), (len(pairs), 1))[:, 0]
    joint = roles == STEP and _has_closed_form(prior)
    rules, unknowns = rules_of(prior, roles, len(pairs), joint)
    update_regression(found, np.ascontiguousarray(pairs), float(transitions), first, rules, 1.0, MOST_SWEEPS)
    for name, (row, unknown) in unknowns.items():
        values[name] = as_variable(found[row], unknown)


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


def _has_closed_form(prior: LogNormalARPrior) -> bool:
    """Mean and persistence are free and tied alike, and so is what each of their steps weighs."""
    mean, slope, scale = prior.mean, prior.persistence, prior.scale
    if not isinstance(mean, Unknown) or not isinstance(slope, Unknown):
        return False
    is_free = mean.prior.is_flat and slope.prior.kind in ("flat", "uniform")
    return is_free and mean.shape == slope.shape and (mean.shape != () or scale.shape == ())


# -- Gibbs -----------------------------------------------------------------------------------------------------------


def _squares(sums: ChainSums, mean: Array, persistence: Array) -> Array:
    """sum (z' - c - persistence z)^2, c = (1 - persistence) mean, (K, 1)."""
    z, after, zz, product, afters = sums.steps
    c = (1.0 - persistence) * mean
    linear = after - persistence * z
    return afters - 2.0 * persistence * product + persistence**2 * zz - 2.0 * c * linear + sums.n_steps * c**2


def draw_mean(
    prior: LogNormalARPrior, unknown: Unknown, sums: ChainSums, values: Mapping[str, Array], generator
) -> Array:
    """The normal conditional of the level that a log-normal chain returns to."""
    _, persistence, scale, *begins = prior.law(values)
    rest = 1.0 - persistence
    precision = sums.n_steps * rest**2 / scale**2 + np.zeros_like(sums.first)
    linear = rest * (sums.steps[1] - persistence * sums.steps[0]) / scale**2
    linear = linear + sums.n_steps * rest**2 / scale**2 * sums.centre
    if prior.is_stationary:
        precision, linear = precision + 1.0 / begins[1] ** 2, linear + sums.first / begins[1] ** 2
    mu, sigma = unknown.prior.args
    total = entries(precision, unknown) + 1.0 / sigma**2
    centre = (entries(linear, unknown) + mu / sigma**2) / total
    return np.asarray(generator.normal(centre, 1.0 / np.sqrt(total)))


# -- moves of levels and scales --------------------------------------------------------------------------------------


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
    slope, bend = slope_of_first(prior, sums, values)
    old = values[mean.name]

    def of_mean(s: Array) -> Array:
        by_row = s.reshape(mean.shape)
        rows = weights(by_row) + (slope - 0.5 * bend * by_row) * by_row
        return sum_to(rows, mean.shape).reshape(mean.variable_shape) + mean.prior.log_density(old - s)

    s = slice_draw(of_mean, np.zeros(mean.variable_shape), generator)
    values[mean.name] = old - s
    return _apply(np.broadcast_to(s.reshape(mean.shape), sums.first.shape), *moved, sums)


def slope_of_level(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(slope, bend), (K, 1): log p(z - s) = log p(z) + slope s - bend s^2 / 2."""
    mean, persistence, scale, first, spread = prior.law(values)
    rest, away = 1.0 - persistence, sums.centre - mean
    residuals = sums.steps[1] - persistence * sums.steps[0] + sums.n_steps * rest * away
    slope = rest * residuals / scale**2 + (sums.first - first) / spread**2
    return slope, np.broadcast_to(sums.n_steps * rest**2 / scale**2 + 1.0 / spread**2, slope.shape)


def slope_of_first(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """The same where the chain's mean falls with it: only a first time with a mean of its own notices."""
    _, _, _, first, spread = prior.law(values)
    if prior.is_stationary:
        return np.zeros_like(sums.first), np.zeros_like(sums.first)
    return (sums.first - first) / spread**2, np.broadcast_to(1.0 / spread**2, sums.first.shape)


def _density_of_weights(priors: PriorCells, W: Array) -> Callable[[Array], Array]:
    """log of prod_f p(w_fk e^s) e^s as a function of s (K, 1)."""
    shape, linear = (part.sum(axis=0)[:, None] for part in (priors.shape_w, priors.rate_w * W))
    return lambda s: shape * s - linear * np.exp(s)


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
