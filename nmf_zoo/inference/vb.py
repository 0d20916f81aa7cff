"""Variational Bayes for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 1; Paisley, eq. 28-36).

q(W) q(H) q(C) is gamma, gamma, multinomial. With E = E_q[.], L = exp(E_q[log .]) and M the mask times the exposure::

    S_w = sum_n E[C], S_h = sum_f E[C]       E[c_fkn] = x_fn L_w L_h / (L_w . L_h + background / exposure)
    q(w) = Gamma(a_w + S_w, r_w + sum_n M E_h)
    q(h) = Gamma(a_h + S_h, r_h + sum_f M E_w)      with the new E_w
    free hyperparameters to the bound's peak, then L = exp(psi(shape)) / rate

Cemgil shares the counts among the components once per iteration, Paisley again between W and H: other paths, same fixed
points. The bound, exact and tight at the newest L (its log X! and all constants included), never falls::

    B = sum M (x log(mean of L_w L_h) - log x!) - sum M E_w E_h - KL(q_w || p_w) - KL(q_h || p_h)

For shapes far below 1, L underflows: log L = psi(shape) - log rate is kept beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference.acceleration import Momentum
from nmf_zoo.inference.engine import Engine, Verdict, has_data
from nmf_zoo.inference.families import takes_likelihood, takes_priors
from nmf_zoo.inference.gamma_factors import (
    Approximation,
    Gamma,
    ahead,
    divergence,
    draw_from,
    moments_at,
    point,
    total_mean,
    update,
    weigh_W,
)
from nmf_zoo.inference.heap import release
from nmf_zoo.inference.hyperparameters import moments_of, untied, update_hyperparameters
from nmf_zoo.inference.imputation import impute
from nmf_zoo.inference.layout import Weights, likelihood_constant, weigh
from nmf_zoo.inference.scale import takes_scale
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.sources import (
    DenseSources,
    Logs,
    SparseSources,
    Statistics,
    check_precision,
    expected_sources,
)
from nmf_zoo.inference.start import check_start, start_factors, start_hyperparameters
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.options import check_types
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson

ORDERS = ("cemgil", "paisley")
ACCELERATIONS = ("momentum", None)
SCALES = 1e-250, 1e250  # of the largest cell
GENTLE = 0.05  # the first push: a hard one early on leads to worse optima (NIPS counts, held-out words)
W_DRAWS, H_DRAWS, IMPUTED = range(3)  # children of the stream of the final draws


class VBState(NamedTuple):
    """q of W and of H, the free hyperparameters by name, and the expected sources at the newest L.

    bound : of this q; momentum : how hard the next update is pushed; updated : (shape, rate) of W and of H where the
    last update led, before it was pushed
    """

    W: Approximation
    H: Approximation
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


@dataclass(frozen=True, kw_only=True)
class VB:
    """Options of variational Bayes.

    Attributes
    ----------
    order : "cemgil" shares the counts once per iteration, "paisley" again between W and H (1.5 times the work); powers
        are always shared out again between W and H, and take the default only
    accelerate : "momentum" pushes each update on in the direction in which it led, unless the bound would fall; None
        leaves it alone
    start : where ``initvals`` say nothing: "random", "nndsvd" (singular vectors of X) or "kmeans++" (samples far apart)
    precision : "float32" rounds what is computed at the cells, factors and sums, to six to seven digits, in up to half
        the time. q and the bound stay float64; the bound is off by a relative 1e-6 at the most and may fall by as much,
        and the residual does not get much below 1e-6. Powers take "float64" only
    """

    order: Literal["cemgil", "paisley"] = "cemgil"
    accelerate: Literal["momentum"] | None = "momentum"
    start: Literal["random", "nndsvd", "kmeans++"] = "random"
    precision: Literal["float64", "float32"] = "float64"

    def __post_init__(self):
        check_types(self)
        if self.order not in ORDERS:
            raise InputError("order", repr(self.order), f"one of {list(ORDERS)}")
        if self.accelerate not in ACCELERATIONS:
            raise InputError("accelerate", repr(self.accelerate), f"one of {list(ACCELERATIONS)}")
        check_start(self.start)
        check_precision(self.precision)


@dataclass(frozen=True)
class Problem:
    """What all restarts share."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    sources: DenseSources | SparseSources
    weights: Weights
    constant: float


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Poisson data; each factor with a gamma prior or known; hyperparameters known or free."""
    if structure.data is None:
        return has_data(structure)
    asked = takes_likelihood(structure, (Poisson,)) and takes_priors(structure, GammaPrior)
    if not asked:
        return asked
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"without a prior of {' and '.join(flat)} there is no proper distribution to approximate")
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: VB takes known or free hyperparameters")
    return takes_scale(structure, "VB", *SCALES, options.precision)


def prepare(structure: Factorisation, options: VB, workers: Workers) -> Problem:
    """Lay out the data; warn of hyperparameters that nothing holds back."""
    loose = [name for side in two_sides(structure) for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warnings.warn(f"{', '.join(loose)}: {message}", NmfZooWarning, stacklevel=5)  # the caller of fit()
    sources, weights = expected_sources(structure, workers, options.precision), weigh(structure)
    return Problem(structure, options, two_sides(structure), sources, weights, likelihood_constant(structure))


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> VBState:
    """E = L = the start given, or a random one at the scale of the data."""
    W, H = (point(array) for array in start_factors(problem.structure, key, start, problem.options.start))
    return VBState(W, H, start_hyperparameters(problem.structure, start), _gather(problem, W, H, "WH"))


def step(problem: Problem, state: VBState, key: np.uint64 | None = None) -> tuple[VBState, VBInfo]:
    """One iteration."""
    updated, new, momentum = _update_both(problem, state), None, state.momentum
    if problem.options.accelerate is not None and state.updated is not None:
        new, momentum = _at(problem, _push(updated, state), state), momentum.faster()
        if not new.bound >= state.bound:
            new, momentum = None, state.momentum.slower()
    new = _at(problem, updated, state) if new is None else new
    return new._replace(momentum=momentum, updated=updated), VBInfo(new.bound, _residual(state, new))


def _push(updated: list[Gamma], state: VBState) -> list[Gamma]:
    """Shapes and rates beyond an update, as seen from the one before."""
    return [ahead(new, old, state.momentum.push) for new, old in zip(updated, state.updated, strict=True)]


def _at(problem: Problem, gammas: list[Gamma], state: VBState) -> VBState:
    """The state at new shapes and rates, free hyperparameters at the bound's peak."""
    workers = problem.sources.workers
    W, H = (moments_at(gamma, q, workers) for gamma, q in zip(gammas, (state.W, state.H), strict=True))
    values = state.values
    if problem.structure.unknowns:
        free = zip(problem.sides, (W, H), strict=True)
        values = update_hyperparameters([moments_of(side, q.mean, q.log) for side, q in free if side.is_gamma], values)
    new = VBState(W, H, values, _gather(problem, W, H, "WH" if problem.options.order == "cemgil" else "W"))
    new = new._replace(bound=_bound(problem, new))
    if problem.options.order == "cemgil":  # nothing asks for them again: "paisley" alone gathers a second time
        W, H = (
            q if side.is_fixed else q._replace(geometric=None) for side, q in zip(problem.sides, (W, H), strict=True)
        )
    return new._replace(W=W, H=H)


def _update_both(problem: Problem, state: VBState) -> list[Gamma]:
    """q of W and of H, by their shapes and rates; a known factor's are None."""
    weights, (left, right) = problem.weights, problem.sides
    W = update(left, state.sources.of_W, weights.over_samples(state.H.mean), state.values)
    of_H = state.sources.of_H
    if problem.options.order == "paisley":
        of_H = _gather(problem, moments_at(W, state.W, problem.sources.workers), state.H, "H").of_H
    return [W, update(right, of_H, weigh_W(weights, W, state.W.mean), state.values)]


def _gather(problem: Problem, W: Approximation, H: Approximation, sides: str) -> Statistics:
    return problem.sources.gather(W.geometric, H.geometric, sides, Logs(W.log, H.log))


def _bound(problem: Problem, state: VBState) -> float:
    """The evidence lower bound at the newest L."""
    fit = state.sources.log_mean - total_mean(problem.weights, state.W, state.H) + problem.constant
    parts = zip(problem.sides, (state.W, state.H), strict=True)
    return fit - sum(divergence(q, *side.prior(state.values)) for side, q in parts if side.is_gamma)


def _residual(old: VBState, new: VBState) -> float:
    changes = [new.W.change, new.H.change]
    changes += [np.max(np.abs(value / old.values[name] - 1.0), initial=0.0) for name, value in new.values.items()]
    return float(max(changes))


def finish(problem: Problem, state: VBState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, free hyperparameters as they are; the parameters of q for ``fit``."""
    release(problem.structure)
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    parameters: dict[str, Array] = {}
    factors = []
    for side, q, child_of in zip(problem.sides, (state.W, state.H), (W_DRAWS, H_DRAWS), strict=True):
        if side.is_fixed:
            factors.append(np.broadcast_to(q.mean, (draws, *q.mean.shape)))
            continue
        factors.append(draw_from(q, draws, child(key, child_of)))
        name = side.factor.name
        values[name] = side.as_variable(factors[-1])
        parameters |= {
            f"{name}_shape": side.as_variable(q.shape),
            f"{name}_rate": side.as_variable(np.array(np.broadcast_to(q.rate, q.shape.shape))),
        }
    if problem.structure.imputed is not None:
        cells = impute(problem.structure, factors, child(key, IMPUTED))
        values[problem.structure.imputed.name] = cells
    return values, parameters


ENGINE = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Poisson,),
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
