"""Variational Bayes for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 1; Paisley, eq. 28-36).

q(W) q(H) q(C) is gamma, gamma, multinomial. With E = E_q[.], L = exp(E_q[log .]) and M the mask times the exposure::

    S_w = sum_n E[C], S_h = sum_f E[C]       E[c_fkn] = x_fn L_w L_h / (L_w . L_h + background / exposure)
    q(w) = Gamma(a_w + S_w, r_w + sum_n M E_h)
    q(h) = Gamma(a_h + S_h, r_h + sum_f M E_w)      with the new E_w
    free hyperparameters to the bound's peak, q of those with a prior as in inference/shared/conjugate.py,
    then L = exp(psi(shape)) / rate

Cemgil shares the counts among the components once per iteration, Paisley again between W and H: other paths, same fixed
points. The bound, exact and tight at the newest L (its log X! and all constants included), never falls::

    B = sum M (x log(mean of L_w L_h) - log x!) - sum M E_w E_h - KL(q_w || p_w) - KL(q_h || p_h)

For shapes far below 1, L underflows: log L = psi(shape) - log rate is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.inference.shared.acceleration import Momentum, ahead_by_ratio, raise_bound
from nmf_zoo.inference.shared.conjugate import (
    Conjugate,
    conjugate_bound,
    conjugates,
    draw_conjugates,
    update_conjugates,
    why_not,
)
from nmf_zoo.inference.shared.factor_view import Side, impute, two_sides
from nmf_zoo.inference.shared.hyperparameters import LARGE, gamma_divergence, moments_of, untied, update_hyperparameters
from nmf_zoo.inference.shared.layout import (
    MOST_CHUNKS,
    DenseSources,
    Logs,
    SparseSources,
    Statistics,
    SumsOfWeights,
    expected_sources,
    likelihood_constant,
    weigh,
)
from nmf_zoo.inference.shared.requirements import (
    takes_likelihood,
    takes_priors,
    takes_scale,
)
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.inference.shared.step_options import check_steps
from nmf_zoo.kernels.counts.variational import fill_moments
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.kernels.numerics.multiplicative import column_changes
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.options import check_types, names_checked
from nmf_zoo.runtime.engine import Engine, Verdict, has_data
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson, even_bounds

SCALES = 1e-250, 1e250  # of the largest cell
W_DRAWS, H_DRAWS, IMPUTED, HYPERPARAMETERS = range(4)  # children of the stream of the final draws


class VBState(NamedTuple):
    """q of W and of H, hyperparameters by name (free ones, and what stands for q of others), and the expected sources.

    bound : of this q; momentum : how hard the next update is pushed; updated : (shape, rate) of W and of H where the
    last update led, before it was pushed
    """

    W: GammaApproximation
    H: GammaApproximation
    values: dict[str, Array]
    sources: Statistics
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


class VBInfo(NamedTuple):
    """objective: the bound, in nats; residual: 0 at a fixed point.

    The residual is the largest change of an expected cell, relative to its column's largest, or of a hyperparameter,
    relative to itself.
    """

    objective: float
    residual: float


OF_MINIBATCHES = ("exponent", "offset", "inner")  # options that minibatches alone read


@names_checked
@dataclass(frozen=True, kw_only=True)
class VB:
    """Options of variational Bayes.

    Attributes
    ----------
    order : "cemgil" shares the counts once per iteration, "paisley" again between W and H (1.5 times the work); powers
        are always shared out again between W and H, and take the default only
    accelerate : "momentum" pushes each update on in the direction in which it led, unless the bound would fall; None
        leaves it alone, as all updates for normal data are
    start : where ``initvals`` say nothing: "random", "nndsvd" (singular vectors of X) or "kmeans++" (samples far apart)
    precision : "float32" rounds what is computed at the cells, factors and sums, to six to seven digits, in up to half
        the time. q and the bound stay float64; the bound is off by a relative 1e-6 at the most and may fall by as much,
        and the residual does not get much below 1e-6. Powers take "float64" only
    batch_size : samples of a minibatch, of counts over ``data=``: an iteration is a pass over these in random order,
        with a step of q(W) after each (stochastic VB, without momentum); the last objective is the bound of all data,
        those before are estimates of it. None: all samples at once
    exponent, offset : the n-th minibatch makes a step of size (n + offset)^-exponent, 1/2 < exponent <= 1; a larger
        offset holds on to the start
    inner : updates of a minibatch's q(H) before each step; it, ``exponent`` and ``offset`` need a ``batch_size``
    """

    order: Literal["cemgil", "paisley"] = "cemgil"
    accelerate: Literal["momentum"] | None = "momentum"
    start: Literal["random", "nndsvd", "kmeans++"] = "random"
    precision: Literal["float64", "float32"] = "float64"
    batch_size: int | None = None
    exponent: float = 0.7
    offset: float = 0.0
    inner: int = 8

    def __post_init__(self):
        check_types(self)
        check_steps(self)
        for name in () if self.batch_size else OF_MINIBATCHES:
            if (found := getattr(self, name)) != getattr(VB, name):
                raise InputError(
                    name, f"{found!r} without batch_size", f"batch_size=n beside {name}", "or leave it out"
                )


@dataclass(frozen=True)
class VBProblem:
    """What all restarts share."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    sources: DenseSources | SparseSources
    weights: SumsOfWeights
    constant: float
    conjugates: dict[str, Conjugate]


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Poisson data; each factor with a gamma prior or known; hyperparameters known, free or with a conjugate prior."""
    if structure.data is None:
        return has_data(structure)
    asked = takes_likelihood(structure, (Poisson,)) and takes_priors(structure, GammaPrior)
    if not asked:
        return asked
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"without a prior of {' and '.join(flat)} there is no proper distribution to approximate")
    reason = why_not(structure) or why_not_in_batches(options)
    if reason:
        return Verdict(reason)
    return takes_scale(structure, "VB", *SCALES, options.precision)


def why_not_in_batches(options: VB) -> str:
    """The reason to refuse minibatches of a model that holds its data; "" where none are asked for."""
    if options.batch_size is None:
        return ""
    given = f"batch_size={options.batch_size}"
    return f"{given} is for data=: declare the model without data, and give them to nz.fit(data=...)"


def prepare(structure: Factorisation, options: VB, workers: Workers) -> VBProblem:
    """Lay out the data; warn of hyperparameters that nothing holds back."""
    loose = [name for side in two_sides(structure) for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warn_caller(f"{', '.join(loose)}: {message}")
    sources, weights = expected_sources(structure, workers, options.precision), weigh(structure)
    sides, constant = two_sides(structure), likelihood_constant(structure)
    return VBProblem(structure, options, sides, sources, weights, constant, conjugates(structure))


def init(problem: VBProblem, key: np.uint64, start: Mapping[str, Array]) -> VBState:
    """E = L = the start given, or a random one at the scale of the data."""
    W, H = (point(array) for array in start_factors(problem.structure, key, start, problem.options.start))
    return VBState(W, H, start_hyperparameters(problem.structure, start), _gather(problem, W, H, "WH"))


def step(problem: VBProblem, state: VBState, key: np.uint64 | None = None) -> tuple[VBState, VBInfo]:
    """One iteration."""
    new = raise_gammas(problem, state, _update_both(problem, state), _at)
    return new, VBInfo(new.bound, _residual(state, new))


def raise_gammas(problem: Any, state: Any, updated: list[Gamma], at: Callable[[Any, list[Gamma], Any], Any]) -> Any:
    """The next state: ``at`` shapes and rates of both factors beyond an update, or at the update."""

    def pushed() -> Any:
        pairs = zip(updated, state.updated, strict=True)
        return at(problem, [ahead(new, old, state.momentum.push) for new, old in pairs], state)

    pushes = problem.options.accelerate is not None
    return raise_bound(state, updated, pushes, pushed, lambda: at(problem, updated, state))


def _at(problem: VBProblem, gammas: list[Gamma], state: VBState) -> VBState:
    """The state at new shapes and rates, q of hyperparameters and the free ones at the bound's peak."""
    workers = problem.sources.workers
    sides = zip(problem.sides, gammas, (state.W, state.H), strict=True)
    W, H = (moments_at(gamma, q, workers, side.free) for side, gamma, q in sides)
    values = state.values
    if problem.structure.unknowns:
        pairs = zip(problem.sides, (W, H), strict=True)
        moments = [moments_of(side, q.mean, q.log) for side, q in pairs if side.is_gamma]
        values = update_conjugates(problem.conjugates, moments, update_hyperparameters(moments, values))
    new = VBState(W, H, values, _gather(problem, W, H, "WH" if problem.options.order == "cemgil" else "W"))
    total = bound(problem, new)
    if problem.options.order == "cemgil":  # nothing asks for them again: "paisley" alone gathers a second time
        W, H = (
            q if side.is_fixed else q._replace(geometric=None) for side, q in zip(problem.sides, (W, H), strict=True)
        )
    return new._replace(W=W, H=H, bound=total)


def _update_both(problem: VBProblem, state: VBState) -> list[Gamma]:
    """q of W and of H, by their shapes and rates; a known factor's are None."""
    weights, (left, right) = problem.weights, problem.sides
    W = update(left, state.sources.of_W, weights.over_samples(state.H.mean), state.values)
    of_H = state.sources.of_H
    if problem.options.order == "paisley":
        at_W = moments_at(W, state.W, problem.sources.workers, left.free)
        of_H = _gather(problem, at_W, state.H, "H").of_H
    return [W, update(right, of_H, weigh_W(weights, W, state.W.mean, left), state.values)]


def _gather(problem: VBProblem, W: GammaApproximation, H: GammaApproximation, sides: str) -> Statistics:
    return problem.sources.gather(W.geometric, H.geometric, sides, Logs(W.log, H.log))


def bound(problem: VBProblem, state: VBState) -> float:
    """The evidence lower bound at the newest L."""
    fit = state.sources.log_mean - total_mean(problem.weights, state.W, state.H) + problem.constant
    parts = zip(problem.sides, (state.W, state.H), strict=True)
    fit -= sum(divergence(q, *side.prior(state.values), side.free) for side, q in parts if side.is_gamma)
    return fit + conjugate_bound(problem.conjugates, state.values)


def _residual(old: VBState, new: VBState) -> float:
    changes = [new.W.change, new.H.change]
    changes += [np.abs(value / old.values[name] - 1.0).max(initial=0.0) for name, value in new.values.items()]
    return float(max(changes))


def finish(problem: VBProblem, state: VBState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, free hyperparameters as they are; the parameters of q for ``fit``."""
    release(problem.structure)
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    drawn, parameters = draw_conjugates(problem.conjugates, state.values, draws, child(key, HYPERPARAMETERS))
    values |= drawn
    drawn, factors, of_q = draw_factors(problem.sides, (state.W, state.H), draws, key)
    values |= drawn
    if problem.structure.imputed is not None:
        generators = repeat(generator_of(child(key, IMPUTED)))
        values[problem.structure.imputed.name] = impute(problem.structure, *factors, generators)
    return values, parameters | of_q


def draw_factors(
    sides: tuple[Side, Side], approximations: tuple[GammaApproximation, GammaApproximation], draws: int, key: np.uint64
) -> tuple[dict[str, Array], tuple[Array, Array], dict[str, Any]]:
    """(variables, whole factors (draws, rows, K), shape and rate of q of what is free) of independent draws from q."""
    values: dict[str, Array] = {}
    factors: list[Array] = []
    parameters: dict[str, Any] = {}
    for side, q, child_of in zip(sides, approximations, (W_DRAWS, H_DRAWS), strict=True):
        if side.is_fixed:
            factors.append(np.broadcast_to(q.mean, (draws, *q.mean.shape)))
            continue
        drawn, known = draw_from(q, draws, child(key, child_of)), side.factor.known
        factors.append(drawn if known is None else side.turn(known.whole(side.turn(drawn))))
        name = side.factor.variable
        values |= side.factor.variables(side.turn(factors[-1]))
        parameters |= {
            f"{name}_shape": side.as_variable(q.shape),
            f"{name}_rate": side.as_variable(np.array(np.broadcast_to(q.rate, q.shape.shape))),
        }
    return values, (factors[0], factors[1]), parameters


# -- q of one factor -------------------------------------------------------------------------------------------------


SMALL = 1 << 14  # cells of a factor that are not worth sharing out among threads
SMALLEST_MEAN = 1e-300  # of a start: its logarithm must exist


class GammaApproximation(NamedTuple):
    """q of one factor, (rows, K) each; a known factor has mean and the logarithm of its value only.

    Beside known components shape and rate are those of the others, in order.

    shape, rate : of the gammas, rate (1, K) when it is the same for all rows; mean, log : E[v], E[log v];
    geometric : exp(log), between iterations None where nothing asks for it again; own : what the divergence from any
    prior owes to the shapes alone; sums : (2, K), of mean and of log over the rows; change : the largest of a mean from
    the one before, relative to its column's largest
    """

    mean: Array
    log: Array
    geometric: Any
    shape: Any = None
    rate: Any = None
    own: float = 0.0
    sums: Any = None
    change: float = 0.0


class Gamma(NamedTuple):
    """Shape (rows, K) and rate (rows or 1, K) of q of a factor."""

    shape: Any
    rate: Any


def point(value: Array) -> GammaApproximation:
    """All mass at one value."""
    with np.errstate(divide="ignore"):
        return GammaApproximation(value, np.log(value), value)


def update(side: Side, counts: Array, weight: Array, values: Mapping[str, Array]) -> Gamma:
    """q = Gamma(prior shape + counts, prior rate + weight)"""
    if side.is_fixed:
        return Gamma(None, None)
    prior_shape, prior_rate = side.prior(values)
    return Gamma(prior_shape + counts[:, side.free], prior_rate + weight[:, side.free])


def ahead(new: Gamma, old: Gamma, push: float) -> Gamma:
    """Beyond the new law, as seen from the old one."""
    return new if new.shape is None else Gamma(*(ahead_by_ratio(a, b, push) for a, b in zip(new, old, strict=True)))


def moments_at(
    gamma: Gamma, before: GammaApproximation, workers: Workers, free: slice = slice(None)
) -> GammaApproximation:
    """q of a factor with its moments, and how far its means are from those before, in its ``free`` columns."""
    if gamma.shape is None:
        return before
    if gamma.shape.shape[1] < before.mean.shape[1]:
        return _beside_known(gamma, before, workers, free)
    q, (steps, tops) = moments_and_changes(gamma, workers, partial(column_changes, before.mean))
    return q._replace(change=float((steps / np.maximum(tops, SMALLEST_MEAN)).max()))


def moments_and_changes(
    gamma: Gamma, workers: Workers, changes: Callable[[Array, int, int], Array]
) -> tuple[GammaApproximation, Array]:
    """q with its moments, and ``changes`` of its mean, as :func:`column_changes` has them of some rows, over all."""
    shape, rate = gamma
    log_rate = np.log(rate)
    mean, log, geometric = (np.empty_like(shape) for _ in range(3))

    def fill(first: int, last: int) -> tuple[float, Array, Array]:
        own = fill_moments(mean, log, geometric, shape, rate, log_rate, first, last)
        np.exp(log[first:last], out=geometric[first:last])
        ones, sums = np.ones(last - first), np.empty((2, mean.shape[1]))
        np.dot(ones, mean[first:last], out=sums[0])
        np.dot(ones, log[first:last], out=sums[1])
        return own, sums, changes(mean, first, last)

    bounds = even_bounds(len(shape), min(max(shape.size // SMALL, 1), MOST_CHUNKS))
    owns, sums, largest = zip(*workers.map(fill, bounds[:-1], bounds[1:]), strict=True)
    return GammaApproximation(mean, log, geometric, shape, rate, sum(owns), sum(sums)), reduce(np.maximum, largest)


def _beside_known(gamma: Gamma, before: GammaApproximation, workers: Workers, free: slice) -> GammaApproximation:
    """q whose other columns are known: they stay as they were."""
    part = GammaApproximation(np.ascontiguousarray(before.mean[:, free]), before.log, None)
    part = moments_at(gamma, part, workers, slice(None))
    mean, log = before.mean.copy(), before.log.copy()
    mean[:, free], log[:, free] = part.mean, part.log
    sums = np.stack([mean.sum(axis=0), log.sum(axis=0)])
    return part._replace(mean=mean, log=log, geometric=np.exp(log), sums=sums)


def weigh_W(weights: SumsOfWeights, W: Gamma, before: Array, side: Side) -> Array:
    """sum_f weight E[w]; a rate shared by all rows divides their sum. What is known is as ``before``."""
    if W.shape is None:
        return weights.over_features(before)
    if side.factor.known is not None:
        return weights.over_features(side.with_free(before, W.shape / W.rate))
    return weights.over_features(W.shape) / W.rate if len(W.rate) == 1 else weights.over_features(W.shape / W.rate)


def total_mean(weights: SumsOfWeights, W: GammaApproximation, H: GammaApproximation) -> float:
    """sum weight E[w] E[h]"""
    if weights.are_ones and W.sums is not None and H.sums is not None:
        return float(W.sums[0] @ H.sums[0])
    return weights.total(W.mean, H.mean)


def divergence(q: GammaApproximation, shape: Array, rate: Array, free: slice = slice(None)) -> float:
    """KL(q || Gamma(shape, rate)), summed over the cells of the ``free`` columns."""
    if (shape > LARGE).any():
        return float(np.sum(gamma_divergence(q.shape, q.rate, shape, rate)))
    constants = gammaln(shape) - shape * np.log(rate)
    repeats = q.shape.size / constants.size
    means, logs = (
        _sum_product(rate, q.mean[:, free], q.sums[0][free]),
        _sum_product(shape, q.log[:, free], q.sums[1][free]),
    )
    products = means - logs
    return q.own + products + float(constants.sum()) * repeats


def _sum_product(prior: Array, cells: Array, sums: Array) -> float:
    """The sum of prior * cells, of (1 or rows, 1 or K) and (rows, K); ``sums`` (K,) are those of the cells' rows."""
    if len(prior) == 1:
        return float((prior[0] * sums).sum())
    return float((prior[:, 0] @ cells).sum()) if prior.shape[1] == 1 else float(np.sum(prior * cells))


def draw_from(q: GammaApproximation, draws: int, key: np.uint64) -> Array:
    """Independent draws, (draws, rows, K)."""
    rate = np.broadcast_to(q.rate, q.shape.shape)
    out = np.empty((draws, *q.shape.shape))
    for draw in range(draws):
        draw_factor(out[draw], q.shape, rate, 0, len(q.shape), child(key, draw))
    return out


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Poisson,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
