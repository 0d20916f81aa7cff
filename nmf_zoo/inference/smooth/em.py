"""EM where H is a gamma chain, beside Poisson counts: a mode of W and H, the auxiliaries z integrated out.

With M the mask times the exposure and C the sources, at the old W and H::

    E[c_fkn] = x_fn w_fk h_kn / ((W H)_fn + background / exposure)
    E[z_n] = (alpha_z + alpha_h) / (beta_z h_{n-1} + h_n)
    w = (sum_n E[C] + a_w) / (r_w + sum_n M h)
    h_n = (sum_f E[C] + alpha_h + alpha_z) / (sum_f M w + E[z_n] + beta_z E[z_{n+1}])           at the new W

and at the ends as in :mod:`nmf_zoo.inference.smooth.gamma_chain`. Then w_k -> c w_k, h_k -> h_k / c with the best c,
the root of a quadratic, as only the priors of W and of the first time can see it. Momentum pushes the updates on, and
is dropped where the objective would rise.

That is the mode in the logarithms (``mode="log"``): every power is one less for that of the density. The density of H
has no maximum, unless its shapes are larger than a series is long: a row that falls to 0 with the ratios of its times
as they are multiplies it by one over its size for each time after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.em import EM, EMInfo, log_prior
from nmf_zoo.inference.hmm.gibbs_chain import chain_of
from nmf_zoo.inference.shared.acceleration import Momentum, ahead_by_ratio, is_no_worse, push_or_retreat
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, two_sides
from nmf_zoo.inference.shared.layout import (
    DenseSources,
    SparseSources,
    Statistics,
    Weights,
    expected_sources,
    likelihood_constant,
    weigh,
)
from nmf_zoo.inference.shared.multiplicative import FLOOR, update
from nmf_zoo.inference.shared.requirements import takes_scale
from nmf_zoo.inference.smooth.gamma_chain import bound_of_rows, law_of_activations, law_of_auxiliary
from nmf_zoo.inference.smooth.requirements import is_smooth, takes_defaults_of_chains, takes_weights
from nmf_zoo.inference.smooth.start import start_of_chain
from nmf_zoo.inference.smooth.terms import best_scale, terms_of_weights
from nmf_zoo.kernels.numerics.multiplicative import largest_of_columns, update_rows
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaChainPrior, Poisson

SCALES = 1e-120, 1e120  # of the largest cell


class SmoothEMState(NamedTuple):
    """W (F, K), Ht (N, K), the expected sources and -log p there, and where the last update led."""

    W: Array
    Ht: Array
    sources: Statistics
    objective: float
    momentum: Momentum = Momentum()
    updated: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class SmoothEMProblem:
    """What all restarts share."""

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    sources: DenseSources | SparseSources
    weights: Weights
    constant: float
    workers: Workers

    @property
    def prior(self) -> GammaChainPrior:
        """That of H."""
        return cast(GammaChainPrior, chain_of(self.structure))

    @property
    def less(self) -> float:
        """What is taken off the powers of the logarithms' density."""
        return float(self.options.mode == "density")


def supports(structure: Factorisation, options: EM) -> Verdict:
    """W gamma, known or without a prior, a gamma chain of known hyperparameters; a mode that exists."""
    asked = has_data(structure) and is_smooth(structure) and takes_weights(structure)
    asked = asked and takes_defaults_of_chains(structure, options, "inner", "start", "precision", "update")
    asked = asked and takes_known_parameters(structure) and has_maximum(structure, options)
    return asked and takes_scale(structure, "EM", *SCALES)


def takes_known_parameters(structure: Factorisation) -> Verdict:
    """CAN_RUN without unknown hyperparameters."""
    if not structure.unknowns:
        return CAN_RUN
    name = next(iter(structure.unknowns))
    return Verdict(
        f"hyperparameter {name} is unknown, and with H and the shapes of its chain both free the density has no "
        "maximum: a chain that does not change, and shapes that grow without a bound, raise it. VB and Gibbs take it"
    )


def has_maximum(structure: Factorisation, options: EM) -> Verdict:
    """CAN_RUN where the mode that is asked for exists, whatever the data."""
    if options.mode == "log":
        return CAN_RUN
    W, prior, n_times = structure.W, cast(GammaChainPrior, chain_of(structure)), structure.shape[1]
    (side, _) = two_sides(structure)
    if side.is_gamma and float(np.min(side.gamma.shape.resolve({}))) < 1.0:
        return Verdict(f'the density of {W.name} is unbounded at 0: use EM(mode="log")')
    _, alpha_h, _, shape, _ = (float(np.min(own)) for own in prior.law({}))
    if shape < n_times + side.is_flat or alpha_h < n_times - 1:
        return Verdict(
            f"the density of {structure.H.name} has no maximum: it rises without a bound as a row falls to 0 at all "
            f'times alike, but for shapes as large as the {n_times} times of the series; use EM(mode="log")'
        )
    return CAN_RUN


def prepare(structure: Factorisation, options: EM, workers: Workers) -> SmoothEMProblem:
    """Lay out the data."""
    sources, weights = expected_sources(structure, workers), weigh(structure)
    constant = likelihood_constant(structure)
    return SmoothEMProblem(structure, options, two_sides(structure), sources, weights, constant, workers)


def init(problem: SmoothEMProblem, key: np.uint64, start: Mapping[str, Array]) -> SmoothEMState:
    """The start given, or a random one at the scale of the data."""
    W, Ht, _ = start_of_chain(problem.structure, problem.weights, key, start)
    return _at(problem, W, np.maximum(Ht, FLOOR))


def step(problem: SmoothEMProblem, state: SmoothEMState, key: np.uint64 | None = None) -> tuple[SmoothEMState, EMInfo]:
    """One iteration: W, H, the scales between them."""
    return step_with_momentum(problem, state, _update_both, _at)


def step_with_momentum(problem: Any, state: Any, update_both: Callable[..., Any], at: Callable[..., Any]) -> Any:
    """(new state, its info): the updates of W and Ht, or both beyond them unless the objective rises.

    ``update_both(problem, state)`` gives both and the residual, ``at(problem, W, Ht)`` the state there.
    """
    updated, residual = update_both(problem, state)
    pushed = None
    if problem.options.accelerate is not None and state.updated is not None:
        triples = zip(problem.sides, updated, state.updated, strict=True)
        pushed = tuple(
            new if side.is_fixed else ahead_by_ratio(new, old, state.momentum.push) for side, new, old in triples
        )
    new, momentum = push_or_retreat(
        state.momentum,
        None if pushed is None else lambda: at(problem, *pushed),
        lambda: at(problem, *updated),
        lambda new: is_no_worse(new.objective, state.objective),
    )
    return new._replace(momentum=momentum, updated=updated), EMInfo(new.objective, residual)


def _update_both(problem: SmoothEMProblem, state: SmoothEMState) -> tuple[tuple[Array, Array], float]:
    """(W, Ht; the larger KKT residual)"""
    side, weights, W, residual = problem.sides[0], problem.weights, state.W, 0.0
    if not side.is_fixed:
        denominator = np.broadcast_to(weights.over_samples(state.Ht), W.shape)
        given = problem.options.mode, W, state.sources.of_W, denominator
        W, residual = update(side, *given, {}, problem.workers)
    power, rate = terms_of_chain(problem.prior, problem.options.mode, state.Ht)
    numerator, denominator = state.sources.of_H, rate + weights.over_features(W)
    Ht, top = np.empty_like(state.Ht), largest_of_columns(state.Ht)
    of_H = problem.workers.map_rows(
        lambda *rows: update_rows(Ht, state.Ht, numerator, denominator, power, top, *rows), state.Ht
    )
    if not side.is_fixed:
        W, Ht = balanced(problem, W, Ht)
    return (W, Ht), max(residual, *of_H)


def terms_of_chain(prior: GammaChainPrior, mode: str, Ht: Array) -> tuple[Array, Array]:
    """(power, rate), (N, K), that the chain adds to each activation, E[z] at Ht."""
    shape_z, rate_z = law_of_auxiliary(prior, Ht, {})
    shape, rate = law_of_activations(prior, shape_z / rate_z, {})
    return shape - float(mode == "density"), rate


def balanced(problem: SmoothEMProblem, W: Array, Ht: Array) -> tuple[Array, Array]:
    """W times c and H over c, where the priors are highest, of each component."""
    *_, shape, rate = (np.broadcast_to(np.ravel(own), W.shape[1]) for own in problem.prior.law({}))
    of_W = terms_of_weights(problem.sides[0], {}, problem.options.mode).over_rows(W)
    c = best_scale(of_W, shape - problem.less * len(Ht), rate * Ht[0])
    return np.maximum(W * c, FLOOR), np.maximum(Ht / c, FLOOR)


def _at(problem: SmoothEMProblem, W: Array, Ht: Array) -> SmoothEMState:
    sources = problem.sources.gather(W, Ht, "WH")
    return SmoothEMState(W, Ht, sources, _objective(problem, sources, W, Ht))


def _objective(problem: SmoothEMProblem, sources: Statistics, W: Array, Ht: Array) -> float:
    total = sources.log_mean - problem.weights.total(W, Ht) + problem.constant
    total += log_prior(problem.sides[:1], problem.options.mode, (W,), {})
    log = np.log(Ht)
    total += float(np.sum(bound_of_rows(problem.prior, Ht, log, {}))) + (1.0 - problem.less) * float(np.sum(log))
    return -total


def finish(
    problem: SmoothEMProblem, state: SmoothEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw."""
    return as_one_draw(problem.structure, state.W, state.Ht, {}), {}


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(Poisson,),
    chains=(GammaChainPrior,),
    projects=4,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
