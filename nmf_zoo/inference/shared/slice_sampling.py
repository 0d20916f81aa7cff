"""Draws of hyperparameters of gamma, inverse-gamma and half-normal priors, all entries of a variable at once.

Given the factors, the entries of one hyperparameter are independent, and each depends on its cells only through their
number, their sum and the sum of their logarithms; of an inverse-gamma prior, those of the cells' inverses, which are
gamma (the Jacobian does not depend on hyperparameters), and of a half-normal prior the sum of squares. A rate or
precision with a gamma prior and a mean or variance with an inverse-gamma prior have conditionals of the same kind, with
A and B of :mod:`nmf_zoo.inference.shared.conjugate` at the cells, and are drawn from them. All others are slice sampled
on the log scale, by stepping out and shrinking (Neal 2003, Slice sampling, figures 3 and 5), exact for every prior
density.

Unknown scales of a prior, moved together with the factor that has it.

Given H, its prior mean m can only take a step as small as H's many cells allow, and given m neither can H: together
they creep. But W H stays as it is on the line m -> c m, H -> c H, W -> W / c, and so does H's prior density against the
change of volume; what is left is the prior of W, and that of m. This move draws c from there: log c is slice sampled,
one for each component where m has one, one for all where m is common. So it goes for a rate (m -> m / c) and for the
scale of an inverse-gamma or half-normal prior, of W as of H. It is a partial resampling in the sense of Liu and Sabatti
(2000), Generalised Gibbs sampler and multigrid Monte Carlo, Biometrika 87(2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.shared.conjugate import CONJUGATE
from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.structure import (
    Array,
    Factor,
    Factorisation,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
    PartlyKnown,
    TruncatedNormalPrior,
    Unknown,
)

WIDTH = 1.0  # of the first bracket, in log units
NARROWEST = 1e-14  # bracket, beside 1 + |start|, from which nothing else is tried
FEW = 8  # entries
MAX_STEPS = 200  # of stepping out, split at random between the two sides, without which a limit would not be exact


class PriorSums(NamedTuple):
    """What a gamma prior sees of a factor (or of its inverses), per group of cells that share shape and rate.

    Of a half-normal prior ``total`` is that of half the squares, and there are no logarithms.
    """

    prior: GammaPrior | HalfNormalPrior
    n_cells: Array
    total: Array
    log_total: Array


def sum_groups(factor: Factor, value: Array) -> PriorSums:
    """Reduce a factor (our orientation) to its groups' sums: arrays of the prior parameters' joint shape."""
    prior, value = factor.prior, value if factor.known is None else factor.known.part(value)
    if isinstance(prior, InverseGammaPrior):
        prior, value = prior.of_inverses, 1.0 / value
    assert isinstance(prior, GammaPrior | HalfNormalPrior)
    ties = np.broadcast_shapes((1, 1), *(p.shape for p in prior.parameters.values()))
    n_cells = np.full(ties, value.size / prod(ties))
    if isinstance(prior, HalfNormalPrior):
        return PriorSums(prior, n_cells, sum_to(np.square(value) / 2, ties), np.zeros(ties))
    return PriorSums(prior, n_cells, sum_to(value, ties), sum_to(np.log(value), ties))


def log_prior_of_groups(sums: PriorSums, values: Mapping[str, Array]) -> Array:
    """log p(factor | hyperparameters), summed over the cells of each group, up to the Jacobian of inverses."""
    if isinstance(sums.prior, HalfNormalPrior):
        precision = sums.prior.precision_of(values)
        return sums.n_cells * np.log(precision) / 2 - precision * sums.total
    shape, rate = sums.prior.shape_and_rate(values)
    constant = shape * np.log(rate) - gammaln(shape)
    return sums.n_cells * constant + (shape - 1) * sums.log_total - rate * sums.total


def draw_hyperparameters(
    structure: Factorisation, W: Array, H: Array, values: dict[str, Array], generator: np.random.Generator
) -> None:
    """Draw every unknown hyperparameter of the factors' priors in turn, in place of its entry in ``values``."""
    groups = [
        (factor, sum_groups(factor, value)) for factor, value in ((structure.W, W), (structure.H, H)) if factor.unknowns
    ]
    for name, unknown in {own.name: own for factor, _ in groups for own in factor.unknowns}.items():
        drawn = draw_conjugate(unknown, [sums for _, sums in groups], values, generator)
        if drawn is not None:
            values[name] = drawn
            continue

        # the groups' density holds every use within one factor: of each the first
        named = [(sums, [own for own in factor.unknowns if own.name == name]) for factor, sums in groups]
        uses = [(sums, own[0]) for sums, own in named if own]

        def log_density(log_value: Array, name: str = name, unknown: Unknown = unknown, uses=uses) -> Array:
            proposed = {**values, name: np.exp(log_value)}
            density = unknown.prior.log_density(proposed[name]) + log_value
            for sums, use in uses:
                of_entries = sum_to(log_prior_of_groups(sums, proposed), use.shape)
                density = density + use.entries(of_entries)
            return density

        values[name] = np.exp(slice_draw(log_density, np.log(values[name]), generator))


def draw_conjugate(
    unknown: Unknown, groups: list[PriorSums], values: Mapping[str, Array], generator: np.random.Generator
) -> Array | None:
    """A draw of a hyperparameter whose conditional is gamma or inverse-gamma; None of one whose isn't."""
    uses = [
        (sums, role, own)
        for sums in groups
        for role, own in sums.prior.parameters.items()
        if isinstance(own, Unknown) and own.name == unknown.name
    ]
    if {CONJUGATE.get(role) for _, role, _ in uses} != {unknown.prior.kind}:
        return None
    shape, rate = (np.broadcast_to(arg, unknown.variable_shape) for arg in unknown.prior.args)
    for sums, role, own in uses:
        cells = sums.prior.shape.resolve(values) if isinstance(sums.prior, GammaPrior) else 0.5
        for_rate = cells * sums.total if role == "mean" else sums.total
        shape = shape + own.entries(sum_to(cells * sums.n_cells, own.shape))
        rate = rate + own.entries(sum_to(for_rate, own.shape))
    u = generator.gamma(shape) / rate
    return u if unknown.prior.kind == "gamma" else 1.0 / u


def slice_draw(log_density: Callable[[Array], Array], start: Array, generator: np.random.Generator) -> Array:
    """One slice-sampling step for each entry of ``start``, whose densities are independent of each other."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return (_draw_few if np.size(start) <= FEW else _draw_many)(log_density, start, generator)


def _draw_few(log_density, start: Array, generator: np.random.Generator) -> Array:
    """The same draws as by :func:`_draw_many`, entry by entry: operations on whole arrays cost more than a few."""
    entries = np.array(start, dtype=np.float64)
    flat, n = entries.reshape(-1), entries.size
    old = flat.tolist()

    def density(values: list[float]) -> list[float]:
        flat[:] = values
        return np.asarray(log_density(entries)).ravel().tolist()

    def step_out(end: list[float], by: float, steps: list[int]) -> None:
        for step in range(MAX_STEPS):
            found = density(end)
            inside = [i for i in range(n) if found[i] > level[i] and step < steps[i]]
            if not inside:
                return
            for i in inside:
                end[i] += by

    level = [top - fall for top, fall in zip(density(old), generator.exponential(size=n).tolist(), strict=True)]
    lower = [own - WIDTH * u for own, u in zip(old, generator.random(n).tolist(), strict=True)]
    upper = [own + WIDTH for own in lower]
    steps_down = [int(MAX_STEPS * u) for u in generator.random(n).tolist()]
    step_out(lower, -WIDTH, steps_down)
    step_out(upper, WIDTH, [MAX_STEPS - 1 - steps for steps in steps_down])
    drawn, pending = list(old), list(range(n))
    while pending:
        u, tried = generator.random(n).tolist(), list(drawn)
        for i in pending:
            tried[i] = lower[i] + (upper[i] - lower[i]) * u[i]
        found, left = density(tried), []
        for i in pending:
            if found[i] >= level[i]:
                drawn[i] = tried[i]
            elif upper[i] - lower[i] > NARROWEST * (1 + abs(old[i])):
                left.append(i)
                (lower if tried[i] < old[i] else upper)[i] = tried[i]
        pending = left
    flat[:] = drawn
    return entries


def _draw_many(log_density, start: Array, generator: np.random.Generator) -> Array:
    shape = np.shape(start)
    start = np.array(start, dtype=np.float64).ravel()

    def density(entries: Array) -> Array:
        return np.asarray(log_density(entries.reshape(shape))).ravel()

    level = density(start) - generator.exponential(size=start.shape)
    lower = start - WIDTH * generator.random(start.shape)
    upper = lower + WIDTH
    steps_down = np.floor(MAX_STEPS * generator.random(start.shape))
    _step_out(density, level, lower, -WIDTH, steps_down)
    _step_out(density, level, upper, WIDTH, MAX_STEPS - 1 - steps_down)
    return _shrink(density, level, start, lower, upper, generator).reshape(shape)


def _step_out(density, level: Array, end: Array, by: float, steps: Array) -> None:
    """Move each end outwards, in place, until it leaves the slice or its steps are used up."""
    for step in range(MAX_STEPS):
        inside = (density(end) > level) & (step < steps)
        if not np.count_nonzero(inside):  # a fifth of any()'s time where entries are few
            return
        np.add(end, by, out=end, where=inside)


def _shrink(density, level, start, lower, upper, generator) -> Array:
    current, pending, narrowest = start, np.True_, NARROWEST * (1 + np.abs(start))
    while True:
        width = upper - lower
        proposal = np.where(pending, lower + width * generator.random(start.shape), current)
        accepted = density(proposal) >= level
        if np.count_nonzero(accepted) == accepted.size:  # those that were before among them
            return proposal
        current = np.where(pending & accepted, proposal, current)
        pending = pending & ~accepted & (width > narrowest)
        if not np.count_nonzero(pending):
            return current
        below = proposal < start
        np.copyto(lower, proposal, where=pending & below)
        np.copyto(upper, proposal, where=pending & ~below)


# -- a prior's scale together with its factor ------------------------------------------------------------------------


# how a parameter follows its factor, as powers of it
DIRECTIONS = {"mean": 1.0, "scale": 1.0, "rate": -1.0, "sigma": 1.0, "variance": 2.0, "precision": -2.0}


class Scale(NamedTuple):
    """An unknown that is the scale of a factor: of which (0 is W, 1 is H), and how it follows it."""

    unknown: Unknown
    of: int
    direction: float


def scales_of(structure: Factorisation) -> list[Scale]:
    """The unknowns that scale one factor and do nothing else, where the other factor can make up for it.

    Beside known components none, nor one that is known of some components: what is known can't follow.
    """
    factors, found = (structure.W, structure.H), []
    if not structure.free_in_both.all():
        return []
    names = [unknown.name for factor in factors for unknown in factor.unknowns]
    for of, factor in enumerate(factors):
        for role, parameter in factor.prior.parameters.items() if factor.unknowns else ():
            if role not in DIRECTIONS or not isinstance(parameter, Unknown) or not _is_by_component(parameter, of):
                continue
            if names.count(parameter.name) == 1 and not isinstance(parameter, PartlyKnown):
                found.append(Scale(parameter, of, DIRECTIONS[role]))
    return found


def _is_by_component(unknown: Unknown, of: int) -> bool:
    """One value, or one for each component."""
    shape = (1,) * (2 - len(unknown.shape)) + tuple(unknown.shape)
    return shape[of] == 1


def draw_scale_moves(
    structure: Factorisation, W: Array, H: Array, values: dict[str, Array], generator: np.random.Generator
) -> Iterator[Array]:
    """Move each unknown scale, in ``values``; yields (K,) by which W (F, K) is to be multiplied and H (K, N) divided.

    W and H are read again for the next one, so that the caller has to have moved them by then.
    """
    for scale in scales_of(structure):
        name, start = scale.unknown.name, np.zeros(scale.unknown.variable_shape)
        log_c = slice_draw(log_density_along(structure, scale, W, H, values), start, generator)
        values[name] = values[name] * np.exp(scale.direction * log_c)
        c = np.broadcast_to(np.exp(log_c).ravel(), structure.rank)
        yield c if scale.of == 0 else 1.0 / c


def draw_orbit_scales(
    structure: Factorisation, W: Array, H: Array, values: Mapping[str, Array], generator: np.random.Generator
) -> Array:
    """(K,) by which W is to be multiplied and H divided: W H stays, and the priors say how likely each is."""
    of_W, of_H = log_prior_scaled(structure.W, W, 0, values), log_prior_scaled(structure.H, H, 1, values)
    return np.exp(slice_draw(lambda s: of_W(s) + of_H(-s), np.zeros(structure.rank), generator))


def log_density_along(
    structure: Factorisation, scale: Scale, W: Array, H: Array, values: dict[str, Array]
) -> Callable[[Array], Array]:
    """Log density of log c, entry by entry of the unknown, up to a constant."""
    unknown, of, direction = scale
    other, value = ((structure.H, H), (structure.W, W))[of]
    of_components = log_prior_scaled(other, value, 1 - of, values)

    def log_density(log_c: Array) -> Array:
        cells = of_components(-log_c.ravel())
        cells = cells.reshape(log_c.shape) if log_c.size == structure.rank else cells.sum()
        return unknown.prior.log_density(values[unknown.name] * np.exp(direction * log_c)) + direction * log_c + cells

    return log_density


def log_prior_scaled(factor: Factor, value: Array, axis: int, values: Mapping[str, Array]) -> Callable[[Array], Array]:
    """log p(e^s v), with the change of volume, of each component's cells v, which lie along ``axis``.

    s is (K,), or (1,) for all components; the densities are (K,).
    """
    n_cells = np.full(factor.shape[1 - axis], float(factor.shape[axis]))
    if isinstance(factor.prior, GammaPrior | LogLinearGammaPrior):
        shape, rate = factor.prior.shape_and_rate(values)
        shapes, total = np.broadcast_to(shape, factor.shape).sum(axis=axis), (rate * value).sum(axis=axis)
        return lambda s: shapes * s - total * np.exp(s)
    if isinstance(factor.prior, InverseGammaPrior):
        shape, scale = factor.prior.shape_and_scale(values)
        shapes, total = np.broadcast_to(shape, factor.shape).sum(axis=axis), (scale / value).sum(axis=axis)
        return lambda s: -shapes * s - total * np.exp(-s)
    if isinstance(factor.prior, HalfNormalPrior):
        halves = (factor.prior.precision_of(values) * np.square(value) / 2).sum(axis=axis)
        return lambda s: n_cells * s - halves * np.exp(2 * s)
    if isinstance(factor.prior, TruncatedNormalPrior):
        mu, precision = factor.prior.mu.value, factor.prior.sigma.value**-2.0
        linear = (mu * precision * value).sum(axis=axis)
        halves = (precision * np.square(value) / 2).sum(axis=axis)
        return lambda s: n_cells * s + linear * np.exp(s) - halves * np.exp(2 * s)
    return lambda s: n_cells * s
