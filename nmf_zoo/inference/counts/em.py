"""Expectation-maximisation: Poisson (Kullback-Leibler) and squared-error NMF, maximum likelihood or a posteriori.

Poisson (Lee and Seung; Cemgil 2009, eq. 10-11, 20-21, 30-31; Paisley eq. 19-20), M the mask times the exposure::

    E[c_fkn] = x_fn w_fk h_kn / ((W H)_fn + background / exposure)
    w_fk = (a_w - 1 + sum_n E[C]) / (r_w + sum_n M h_kn)      then H alike, at the new W

with a = 1, r = 0 for a factor without a prior, and a in the place of a - 1 for the mode in the logarithms (Cemgil's
ICM). Under a normal likelihood the same loop runs on :mod:`nmf_zoo.inference.counts.em_losses`.

Under a half-normal prior of precision q, which takes q w^2 / 2 off the log density, w_fk is the root of a quadratic
(:mod:`nmf_zoo.inference.shared.multiplicative`).

GaP (Filstroff 2018, eq. 3-6: W without a prior, H gamma): where W could grow and H shrink for ever (a shape of 1, or a
free rate or mean), the columns of the factor without a prior sum to one, a constraint inside its update. A free rate is
then sum a / sum h over the cells that share it. Columns of known components, and those beside known rows of the other
factor, can't grow so, and have no constraint.

A rate or precision with a gamma prior, a mean or variance with an inverse-gamma prior is maximised with the factors, in
closed form after each of their updates (:mod:`nmf_zoo.inference.shared.conjugate`). With a relevance for each component
(``prior="ard"``) that is the algorithm of Tan and Fevotte (2013), l1-ARD of exponential cells and l2-ARD of half-normal
ones: components that the data don't need go to 0.

Slopes of covariates of samples are maximised with the factors, too, by damped Newton steps after each update: given H
their log density is concave (:mod:`nmf_zoo.inference.counts.slopes`). The highest density that a cell of H has at given
slopes is log-linear in these, and their prior is normal, so that there is a mode wherever there is one at known slopes.

By default factors are not updated so, but by Newton steps of a Poisson and exact steps of a normal likelihood
(:mod:`nmf_zoo.inference.counts.newton`), and either gets momentum (:mod:`nmf_zoo.inference.shared.acceleration`): the
fixed points are the same, the iterations far fewer.

The objective is -log p(X, factors), everything included, in nats; it never rises. Of counts it is the Kullback-Leibler
divergence of X from its mean plus sum log x! + x - x log x, which only the data decide, less the log priors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.counts.duality import is_refit
from nmf_zoo.inference.counts.em_losses import LOSSES, Loss, LossView, PoissonLoss
from nmf_zoo.inference.counts.newton import Newton, penalty_of
from nmf_zoo.inference.counts.slopes import at_base, climb_slopes, effects_of, has_covariates, log_prior_of_slopes
from nmf_zoo.inference.shared.acceleration import Momentum, ahead, ahead_by_ratio, is_no_worse, push_or_retreat
from nmf_zoo.inference.shared.conjugate import (
    Conjugate,
    at_modes,
    conjugates,
    log_hyperprior,
    update_conjugates,
    why_not,
)
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, flat_and_other, sum_to, two_sides
from nmf_zoo.inference.shared.hyperparameters import moments_of
from nmf_zoo.inference.shared.multiplicative import FLOOR, to_one, update, update_with_held
from nmf_zoo.inference.shared.requirements import takes_priors, takes_scale
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, HalfNormalPrior, Known, LogLinearGammaPrior, Unknown
from nmf_zoo.structure.parameters import log_half_normal_density

NOTHING = np.zeros((0, 0))
FAR = 1e4  # of a column, in one step: means that followed it have four digits less


class EMState(NamedTuple):
    """W (F, K), Ht (N, K), free parameters by name, and what the data say at these factors (None for Newton steps).

    objective : at these factors; momentum : how hard the next step is pushed; and what it is pushed from: ``other``
    is the point ahead, where the next Newton steps start, or the last update, which led to W and Ht by a push
    """

    W: Array
    Ht: Array
    values: dict[str, Array]
    view: Any
    objective: float = np.inf
    momentum: Momentum = Momentum()
    other: tuple[Array, Array] | None = None


class EMInfo(NamedTuple):
    """objective: -log p at the new factors; residual: the KKT residual, 0 at a stationary point."""

    objective: float
    residual: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class EM:
    """Options of EM.

    Attributes
    ----------
    mode : what a prior means: "density" seeks the mode of the density of W and H, "log" that of log W and log H
    accelerate : "newton" takes Newton steps with momentum for Poisson data in float64, for squared error coordinate
        descent to the minimum over each row, and "momentum" where there are none, which is for powers, for listed cells
        of squared error, in float32 and for GaP with columns that sum to one; "momentum" pushes EM's own updates; None
        leaves these alone. The objective never rises, and stationary points are the same
    inner : of EM's own updates: the expected sources are frozen for so many rounds of W and H; None refreshes them
        between W and H too, as Lee and Seung do (1.5 times the work for a slightly longer step). Squared error and
        powers have none and always refresh
    start : where ``initvals`` say nothing: "random", "nndsvd" (singular vectors of X) or "kmeans++" (samples far apart)
    precision : "float32" rounds what is computed at the cells of Poisson data, factors and sums, to six to seven
        digits, in up to half the time. The factors themselves and the objective stay float64; the objective is off
        by a relative 1e-6 at the most and may rise by as much, and the residual does not get much below 1e-6
    update : of exponential data (Itakura-Saito; :mod:`nmf_zoo.inference.powers.em`): "monotone" minimises a
        majoriser, "heuristic" goes about twice as far, to where that is as high as before, and "sage" is EM of the
        composite model, component by component; "auto" is monotone for ten iterations, then heuristic. It is proven of
        each that the objective never rises
    """

    mode: Literal["density", "log"] = "density"
    accelerate: Literal["newton", "momentum"] | None = "newton"
    inner: int | None = 1
    start: Literal["random", "nndsvd", "kmeans++"] = "random"
    precision: Literal["float64", "float32"] = "float64"
    update: Literal["auto", "monotone", "heuristic", "sage"] = "auto"

    def __post_init__(self):
        check_types(self)
        check_least(self, inner=1)


@dataclass(frozen=True)
class EMProblem:
    """What all restarts share.

    ``constrained`` : the side whose columns sum to one, as far as nothing of their components is known, or None;
    ``newton`` : what takes Newton steps, or None; ``conjugates`` : hyperparameters with conjugate priors, which go to
    their modes
    """

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    loss: Loss
    constrained: Side | None
    newton: Newton | None
    workers: Workers
    conjugates: dict[str, Conjugate]


# -- what it can run -------------------------------------------------------------------------------------------------


SCALES = 1e-120, 1e120  # of the largest cell


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson or normal data with hyperparameters known or with conjugate priors, or the free rate of a GaP model."""
    if structure.data is None:
        return has_data(structure)
    checks = (
        *(_check_update, _check_families, _check_hyperparameters, _check_shapes, _check_free_rates),
        *(_check_loss, _check_scale),
    )
    return next((verdict for verdict in (check(structure, options) for check in checks) if not verdict), CAN_RUN)


def constrained(structure: Factorisation, mode: str) -> Side | None:
    """The factor without a prior of which columns would grow for ever while the other shrinks, or None."""
    if not structure.free_in_both.any():
        return None
    for flat, other in flat_and_other(structure):
        if other.is_half_normal:
            if mode == "density":
                return flat
            continue
        shape = other.gamma.shape
        has_free = any(unknown.prior.is_flat for unknown in other.factor.unknowns)
        if has_free or (mode == "density" and isinstance(shape, Known) and np.any(shape.value <= 1.0)):
            return flat
    return None


def _check_update(structure: Factorisation, options: Any) -> Verdict:
    if options.update == "auto":
        return CAN_RUN
    family = structure.likelihood.family
    return Verdict(f'update={options.update!r} is for exponential data, and these are {family}: leave it at "auto"')


def _check_families(structure: Factorisation, options: Any) -> Verdict:
    if not has_covariates(structure) or not LOSSES[type(structure.likelihood)].has_sources:
        return takes_priors(structure, GammaPrior, HalfNormalPrior)
    if not structure.W.is_fixed and two_sides(structure)[0].is_flat:
        return Verdict(f"{structure.W.name} has no prior, so it can grow while {structure.H.name} shrinks: give it one")
    return takes_priors(structure, GammaPrior, HalfNormalPrior, LogLinearGammaPrior)


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    """Free rates and means are estimated in GaP only, shapes nowhere: with the factors they have no joint maximum.

    With a conjugate prior that is proper they have one wherever the factors have.
    """
    allowed = set()
    if LOSSES[type(structure.likelihood)].estimates_rates:
        for _, other in flat_and_other(structure):
            if other.is_half_normal:
                continue
            second = [p for role, p in other.gamma.parameters.items() if role != "shape" and isinstance(p, Unknown)]
            allowed = {p.name for p in second if p.prior.is_flat and p != other.gamma.shape}
    allowed |= {unknown.name for unknown in structure.likelihood.unknowns if unknown.prior.is_flat}
    of_factors = {unknown.name for factor in (structure.W, structure.H) for unknown in factor.unknowns}
    allowed |= {name for name in of_factors if not structure.unknowns[name].prior.is_flat}
    refused = [name for name in structure.unknowns if name not in allowed]
    if refused:
        return Verdict(
            f"hyperparameter {', '.join(refused)} is unknown, and estimated jointly with the factors it has no maximum"
        )
    reason = why_not(at_base(structure))
    return Verdict(reason) if reason else CAN_RUN


def _check_shapes(structure: Factorisation, options: Any) -> Verdict:
    for side in two_sides(structure):
        if not side.has_gamma_cells or options.mode == "log":
            continue
        least = float(np.min(side.prior(start_hyperparameters(structure, {}))[0]))
        if least < 1.0:
            name = side.factor.name
            return Verdict(f'the density of {name} has shape {least:g} < 1 and is unbounded at 0: use EM(mode="log")')
    of_rates = at_modes(conjugates(at_base(structure)), options.mode)
    unbounded = [name for name, own in of_rates.items() if np.any(own.shape <= 0.0)]
    if unbounded:
        return Verdict(f'the density of {", ".join(unbounded)} is unbounded at 0: use EM(mode="log")')
    return CAN_RUN


def _check_free_rates(structure: Factorisation, options: Any) -> Verdict:
    """As a component empties, its own free rate rises, and the density of its cells with it, whatever the data say.

    New components may all empty beside known ones, which have no part in their rates.
    """
    for side in two_sides(structure):
        for unknown in side.factor.unknowns:
            if not unknown.prior.is_flat:
                continue
            per_component = side.turn(np.empty(np.broadcast_shapes(unknown.shape, (1, 1)))).shape[1] > 1
            if options.mode == "density" and per_component:
                return Verdict(
                    f"{unknown.name} is free for each component, and as one empties, the density of {side.factor.name} "
                    'has no bound: share it among the components or use EM(mode="log")'
                )
            if options.mode == "density" and side.factor.known is not None:
                return Verdict(
                    f"{unknown.name} is free, and as components beside the known ones empty, the density of "
                    f'{side.factor.variable} has no bound: give it or use EM(mode="log")'
                )
    return CAN_RUN


def _check_loss(structure: Factorisation, options: Any) -> Verdict:
    return LOSSES[type(structure.likelihood)].check(structure, options)


def _check_scale(structure: Factorisation, options: Any) -> Verdict:
    """Factors are at least FLOOR, and squares have to be finite."""
    return takes_scale(structure, "EM", *SCALES, options.precision)


# -- how it runs -----------------------------------------------------------------------------------------------------


def prepare(structure: Factorisation, options: EM, workers: Workers) -> EMProblem:
    """Lay out the data for the updates."""
    loss = LOSSES[type(structure.likelihood)](structure, workers, options.precision)
    if not loss.has_sources:  # to freeze
        options = replace(options, inner=None)
    simplex = constrained(structure, options.mode)
    steps = _newton(structure, options, loss, simplex, workers)
    release(structure)
    own = at_modes(conjugates(at_base(structure)), options.mode)
    return EMProblem(structure, options, two_sides(structure), loss, simplex, steps, workers, own)


def _newton(structure: Factorisation, options: EM, loss: Loss, simplex: Side | None, workers: Workers) -> Newton | None:
    """What takes Newton steps, where they were asked for and there are any."""
    asked = options.accelerate == "newton" and options.precision == "float64"
    return loss.newton(structure, workers, has_active_sets(structure, options.mode)) if asked and not simplex else None


def has_active_sets(structure: Factorisation, mode: str) -> bool:
    """Whether rows may be brought to their optimum at once: one factor is known, and no prior holds cells off 0."""
    sides, values = two_sides(structure), start_hyperparameters(structure, {})
    return is_refit(sides) and not any(np.any(side.terms(mode, values).power) for side in sides)


def init(problem: EMProblem, key: np.uint64, start: Mapping[str, Array]) -> EMState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start, problem.options.start)
    for side, array in zip(problem.sides, (W, Ht), strict=True):
        if not side.is_fixed:
            np.maximum(array[:, side.free], FLOOR, out=array[:, side.free])
    if problem.constrained is not None:
        inside, outside = (Ht, W) if problem.constrained.is_right else (W, Ht)
        total = to_one(inside, problem.structure.free_in_both)
        inside /= total
        outside *= total
    values = start_hyperparameters(problem.structure, start)
    view = None if problem.newton is not None else _look(problem, W, Ht, values)
    return EMState(W, Ht, values, view)


def step(problem: EMProblem, state: EMState, key: np.uint64 | None = None) -> tuple[EMState, EMInfo]:
    """One iteration: W, then H, then the free parameters."""
    if problem.newton is not None:
        return _newton_step(problem, problem.newton, state)
    W, Ht, residual = _step_factors(problem, state)
    new, momentum = push_or_retreat(
        state.momentum,
        None if state.other is None else lambda: _pushed(problem, W, Ht, state),
        lambda: _at(problem, W, Ht, state.values),
        lambda new: new.objective <= state.objective,
    )
    other = None if problem.options.accelerate is None else (W, Ht)
    return new._replace(momentum=momentum, other=other), EMInfo(new.objective, residual)


def _pushed(problem: EMProblem, W: Array, Ht: Array, state: EMState) -> EMState:
    """Beyond the update W, Ht, as seen from the one before."""
    factors = []
    for side, new, old in zip(problem.sides, (W, Ht), state.other or (), strict=True):
        beyond = new if side.is_fixed else _beyond(ahead_by_ratio, side, new, old, state.momentum.push)
        is_held = side == problem.constrained
        factors.append(beyond / to_one(beyond, problem.structure.free_in_both) if is_held else beyond)
    return _at(problem, factors[0], factors[1], state.values)


def _beyond(ahead_of: Callable[[Array, Array, float], Array], side: Side, new: Array, old: Array, push: float) -> Array:
    """Ahead of ``new``, seen from ``old``, where components are not known."""
    return side.with_free(new, ahead_of(new[:, side.free], old[:, side.free], push))


def _newton_step(problem: EMProblem, steps: Newton, state: EMState) -> tuple[EMState, EMInfo]:
    """Newton steps from the point ahead; if that loses, from where we are; and EM's own update if rounding spoils both.

    A base step can lose only to rounding, in extreme data.
    """
    beyond = state.other
    (new, residual), momentum = push_or_retreat(
        state.momentum,
        None if beyond is None else lambda: _descend(problem, steps, *beyond, state.values),
        lambda: _descend(problem, steps, state.W, state.Ht, state.values),
        lambda found: found[0].objective <= state.objective,
    )
    if not is_no_worse(new.objective, state.objective):
        W, Ht, residual = _step_factors(problem, _at(problem, state.W, state.Ht, state.values))
        new = _at(problem, W, Ht, state.values)
    left, right = problem.sides
    W = new.W if left.is_fixed else _beyond(ahead, left, new.W, state.W, momentum.push)
    Ht = new.Ht if right.is_fixed else _beyond(ahead, right, new.Ht, state.Ht, momentum.push)
    return new._replace(view=None, momentum=momentum, other=(W, Ht)), EMInfo(new.objective, residual)


def _descend(problem: EMProblem, steps: Newton, W: Array, Ht: Array, values: dict[str, Array]) -> tuple[EMState, float]:
    """(where Newton steps of W and then of H lead, KKT residual on the way)"""
    factors, loss, residual, log_mean = [W, Ht], problem.loss, 0.0, None
    before = W, Ht
    for which, side in enumerate(problem.sides):
        if not side.is_fixed:
            other = factors[1 - which]
            factors[which] = np.array(factors[which], order="C")
            penalty = penalty_of(side, problem.options.mode, loss.zeros(which, other), values)
            penalty = penalty._replace(noise=loss.noise(values))
            at_side, log_mean = steps.improve(which, factors[which], other, penalty, side.free)
            residual = max(residual, at_side)
    W, Ht = factors
    if log_mean is None or _is_far((W, Ht), before):  # nobody knows it, or the means on the way have lost digits
        return _at(problem, W, Ht, values), residual
    values = _update_priors(problem, W, Ht, values)
    objective = -cast(PoissonLoss, loss).log_likelihood(log_mean, W, Ht) - log_priors(problem, W, Ht, values)
    return EMState(W, Ht, values, None, objective), residual


def _is_far(factors: tuple[Array, Array], before: tuple[Array, Array]) -> bool:
    """A column's total fell or rose by more than FAR: means that follow it keep the rounding of what they were."""
    ends = [(new.sum(axis=0), old.sum(axis=0)) for new, old in zip(factors, before, strict=True)]
    return any(bool(((new > FAR * old) | (old > FAR * new)).any()) for new, old in ends)


def _step_factors(problem: EMProblem, state: EMState) -> tuple[Array, Array, float]:
    """(W, Ht, KKT residual) of EM's own update"""
    loss, values, view = problem.loss, state.values, state.view
    W, at_W = _update(problem, 0, state.W, view.numerator_W, loss.denominator_W(view, state.Ht), values)
    numerator_H, denominator_H = (
        loss.for_H(W, state.Ht, values) if problem.options.inner is None else (view.numerator_H, loss.denominator_H(W))
    )
    Ht, at_H = _update(problem, 1, state.Ht, numerator_H, denominator_H, values)
    for _ in range(1, problem.options.inner or 1):
        W, _unused = _update(problem, 0, W, view.numerator_W, loss.denominator_W(view, Ht), values)
        Ht, _unused = _update(problem, 1, Ht, view.numerator_H, loss.denominator_H(W), values)
    return W, Ht, max(at_W, at_H)


def _at(problem: EMProblem, W: Array, Ht: Array, values: dict[str, Array]) -> EMState:
    """The state at these factors, free parameters at their best."""
    values = _update_priors(problem, W, Ht, update_rates(problem.sides, W, Ht, values))
    view = _look(problem, W, Ht, values)
    return EMState(W, Ht, values, view, -view.log_likelihood - log_priors(problem, W, Ht, values))


def _update_priors(problem: EMProblem, W: Array, Ht: Array, values: dict[str, Array]) -> dict[str, Array]:
    """Slopes of covariates at their mode given the factors, then hyperparameters with conjugate priors at theirs."""
    structure = problem.structure
    if has_covariates(structure):
        values = climb_slopes(structure, Ht.T, values)
        Ht = Ht / effects_of(structure, values)
    if not problem.conjugates:
        return values
    pairs = zip(two_sides(at_base(structure)), (W, Ht), strict=True)
    moments = [moments_of(side, array, NOTHING) for side, array in pairs if side.has_terms]
    return update_conjugates(problem.conjugates, moments, values)


def log_priors(problem: EMProblem, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
    """Of the factors and of the hyperparameters that have one, or of their logarithms; of slopes themselves."""
    mode = problem.options.mode
    of_factors = log_prior(problem.sides, mode, (W, Ht), values) + log_prior_of_slopes(problem.structure, values)
    return of_factors + log_hyperprior(problem.structure, problem.conjugates, mode, values)


def _look(problem: EMProblem, W: Array, Ht: Array, values: dict[str, Array]) -> LossView:
    """What the data say at new factors; a free sigma moves to its best value there."""
    return problem.loss.look(W, Ht, values, both=problem.options.inner is not None)


def _update(
    problem: EMProblem, which: int, old: Array, numerator: Array, denominator: Array, values
) -> tuple[Array, float]:
    """(the factor's new value, how far from stationary the old one was)"""
    side = problem.sides[which]
    if side.is_fixed:
        return old, 0.0
    given = problem.options.mode, old, numerator, denominator, values, problem.workers
    if side == problem.constrained:
        return update_with_held(side, problem.structure.free_in_both, *given)
    return update(side, *given)


def finish(problem: EMProblem, state: EMState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw, whatever ``draws`` is; missing cells at their likelihood's point.

    ``divergence`` is that of X from its mean, over the observed cells: of counts sum x log(x / mean) - x + mean, after
    Kullback and Leibler, under a normal likelihood sum (x - mean)^2 / 2, of errors that differ
    between cells sum ((x - mean) / sigma)^2 / 2. With one factor known also ``duality_gap``:
    what the objective lacks to the optimum at most, in nats.
    """
    values = as_one_draw(problem.structure, state.W, state.Ht, state.values)
    return values, {"divergence": _divergence(problem, state), **_gap(problem, state)}


def _divergence(problem: EMProblem, state: EMState) -> np.float64:
    """What the log-likelihood lacks to that of a mean that is X itself, times the variance of the noise."""
    log_likelihood = -state.objective - log_priors(problem, state.W, state.Ht, state.values)
    lacks = problem.loss.at_data(state.values) - log_likelihood
    return np.float64(max(lacks, 0.0) * problem.loss.noise(state.values))


def _gap(problem: EMProblem, state: EMState) -> dict[str, Any]:
    """Of a convex problem: see :mod:`nmf_zoo.inference.counts.duality`."""
    loss, sides = problem.loss, problem.sides
    if problem.structure.unknowns or problem.constrained or not is_refit(sides):
        return {}
    gap = loss.gap(sides, problem.options.mode, state.W, state.Ht, state.values)
    return {} if gap is None else {"duality_gap": np.float64(gap)}


# -- priors ----------------------------------------------------------------------------------------------------------


def update_rates(sides: tuple[Side, Side], W: Array, Ht: Array, values: dict[str, Array]) -> dict[str, Array]:
    """Free rates or means in closed form: sum a / sum h, or sum a h / sum a, over the cells that share one."""
    values = dict(values)
    for side, array in zip(sides, (W, Ht), strict=True):
        for role, unknown in side.gamma.parameters.items() if side.is_gamma else ():
            if isinstance(unknown, Unknown) and unknown.prior.is_flat:
                cells = side.turn(array[:, side.free])
                a = np.broadcast_to(side.gamma.shape.resolve(values), cells.shape)
                top, bottom = (a, cells) if role == "rate" else (a * cells, a)
                best = sum_to(top, unknown.shape) / sum_to(bottom, unknown.shape)
                values[unknown.name] = best.reshape(unknown.variable_shape)
    return values


def log_prior(sides: Sequence[Side], mode: str, factors: Sequence[Array], values: Mapping[str, Array]) -> float:
    """Log prior density of the factors, (rows, K) each, or of their logarithms."""
    total = 0.0
    for side, array in zip(sides, factors, strict=True):
        if side.is_half_normal:
            own, curve = array[:, side.free], side.curve(values)
            total += float(np.sum(log_half_normal_density(own, curve**-0.5)))
            total += float(np.sum(np.log(own))) if mode == "log" else 0.0
        if side.has_gamma_cells:
            array, (shape, rate) = array[:, side.free], side.prior(values)
            power = shape - 1.0 if mode == "density" else shape
            constant = np.broadcast_to(xlogy(shape, rate) - gammaln(shape), array.shape)
            logs = float(np.sum(power * np.log(array))) if np.any(power) else 0.0
            total += logs - float(np.sum(rate * array)) + float(np.sum(constant))
    return total


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=tuple(LOSSES),
    takes_known=True,
    projects=4,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
