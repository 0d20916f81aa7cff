"""Variational Bayes where H is a gamma chain, beside Poisson counts: all factors of q are gamma.

q(W) q(H) q(z) q(C), with E = E_q[.], L = exp(E_q[log .]), M the mask times the exposure and C the sources::

    E[c_fkn] = x_fn L_w L_h / (L_w . L_h + background / exposure)
    q(w)   = Gamma(a_w + sum_n E[C], r_w + sum_n M E_h)
    q(z_n) = Gamma(alpha_z + alpha_h, beta_z E_h(n-1) + E_h(n))
    q(h_n) = Gamma(alpha_h + alpha_z + sum_f E[C], E[z_n] + beta_z E[z_(n+1)] + sum_f M E_w)

with the law of the first time, and no next one, at the ends (:mod:`nmf_zoo.inference.smooth.gamma_chain`). With q(z)
and q(C) at their optima, as they always are, the bound is::

    B = sum M (x log(mean of L_w L_h) - log x!) - sum M E_w E_h - KL(q_w || p_w) + entropy of q_h + chain(E_h, E log h)

It never falls, and lies below log p(X | hyperparameters). Free hyperparameters of the chain go to its maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.vb import (
    IMPUTED,
    SCALES,
    VB,
    Gamma,
    GammaApproximation,
    VBInfo,
    divergence,
    draw_factors,
    moments_at,
    point,
    raise_gammas,
    total_mean,
    update,
)
from nmf_zoo.inference.hmm.gibbs_chain import chain_of
from nmf_zoo.inference.hmm.m_step import climb
from nmf_zoo.inference.shared.acceleration import Momentum
from nmf_zoo.inference.shared.factor_view import Side, impute, two_sides
from nmf_zoo.inference.shared.layout import (
    DenseSources,
    Logs,
    SparseSources,
    Statistics,
    Weights,
    expected_sources,
    likelihood_constant,
    weigh,
)
from nmf_zoo.inference.shared.requirements import takes_scale
from nmf_zoo.inference.smooth.gamma_chain import bound_of_rows, law_of_activations, law_of_auxiliary
from nmf_zoo.inference.smooth.requirements import is_smooth, takes_defaults_of_chains, takes_weights
from nmf_zoo.inference.smooth.start import start_of_chain
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaChainPrior, Poisson


class SmoothVBState(NamedTuple):
    """q of W and of H, the free hyperparameters by name, the expected sources, the bound, and the last update."""

    W: GammaApproximation
    H: GammaApproximation
    values: dict[str, Array]
    sources: Statistics
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


@dataclass(frozen=True)
class SmoothVBProblem:
    """What all restarts share."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    sources: DenseSources | SparseSources
    weights: Weights
    constant: float

    @property
    def prior(self) -> GammaChainPrior:
        """That of H."""
        return cast(GammaChainPrior, chain_of(self.structure))


def supports(structure: Factorisation, options: VB) -> Verdict:
    """W gamma or known, a gamma chain of known or free hyperparameters."""
    asked = has_data(structure) and is_smooth(structure) and takes_weights(structure)
    asked = asked and _takes_unknowns(structure)
    asked = asked and takes_defaults_of_chains(structure, options, "order", "start", "precision", "batch_size")
    return asked and takes_scale(structure, "VB", *SCALES)


def _takes_unknowns(structure: Factorisation) -> Verdict:
    W = structure.W
    if W.prior.family == "free":
        return Verdict(f"without a prior of {W.name} there is no proper distribution to approximate")
    if W.unknowns:
        return Verdict(f"hyperparameter {W.unknowns[0].name} of {W.name} is unknown, and beside a chain VB takes known")
    for name, unknown in structure.unknowns.items():
        if not unknown.prior.is_flat:
            return Verdict(
                f"hyperparameter {name} has a prior, and of a chain VB takes known and free ones: make it nz.free()"
            )
    return CAN_RUN


def prepare(structure: Factorisation, options: VB, workers: Workers) -> SmoothVBProblem:
    """Lay out the data."""
    sources, weights = expected_sources(structure, workers), weigh(structure)
    return SmoothVBProblem(structure, options, two_sides(structure), sources, weights, likelihood_constant(structure))


def init(problem: SmoothVBProblem, key: np.uint64, start: Mapping[str, Array]) -> SmoothVBState:
    """E = L = the start given, or a random one at the scale of the data."""
    W, Ht, values = start_of_chain(problem.structure, problem.weights, key, start)
    of_W, of_H = point(W), point(Ht)
    return SmoothVBState(of_W, of_H, values, _gather(problem, of_W, of_H))


def step(problem: SmoothVBProblem, state: SmoothVBState, key: np.uint64 | None = None) -> tuple[SmoothVBState, VBInfo]:
    """One iteration: q of W, of z and of H, then free hyperparameters."""
    new = raise_gammas(problem, state, _update_both(problem, state), _at)
    return new, VBInfo(new.bound, _residual(state, new))


def _update_both(problem: SmoothVBProblem, state: SmoothVBState) -> list[Gamma]:
    """q of W, and q of H at the new q of W and the optimal q of z; a known factor's are None."""
    weights, left = problem.weights, problem.sides[0]
    W = update(left, state.sources.of_W, weights.over_samples(state.H.mean), state.values)
    mean_of_W = state.W.mean if W.shape is None else W.shape / W.rate
    shape_z, rate_z = law_of_auxiliary(problem.prior, state.H.mean, state.values)
    shape, rate = law_of_activations(problem.prior, shape_z / rate_z, state.values)
    return [W, Gamma(shape + state.sources.of_H, rate + weights.over_features(mean_of_W))]


def _at(problem: SmoothVBProblem, gammas: list[Gamma], state: SmoothVBState) -> SmoothVBState:
    """The state at new shapes and rates, free hyperparameters at the bound's peak there."""
    W, H = (moments_at(own, q, problem.sources.workers) for own, q in zip(gammas, (state.W, state.H), strict=True))
    values = _with_free(problem, H, state.values)
    new = SmoothVBState(W, H, values, _gather(problem, W, H))
    return new._replace(bound=_bound(problem, new))


def _with_free(problem: SmoothVBProblem, H: GammaApproximation, values: dict[str, Array]) -> dict[str, Array]:
    unknowns = problem.structure.unknowns
    if not unknowns:
        return values
    of_chain = lambda at: float(np.sum(bound_of_rows(problem.prior, H.mean, H.log, at)))  # noqa: E731
    return climb(of_chain, problem.prior, unknowns, (values,))


def _gather(problem: SmoothVBProblem, W: GammaApproximation, H: GammaApproximation) -> Statistics:
    return problem.sources.gather(W.geometric, H.geometric, "WH", Logs(W.log, H.log))


def _bound(problem: SmoothVBProblem, state: SmoothVBState) -> float:
    """The evidence lower bound at the newest L."""
    left, H = problem.sides[0], state.H
    fit = state.sources.log_mean - total_mean(problem.weights, state.W, H) + problem.constant
    if left.is_gamma:
        fit -= divergence(state.W, *left.prior(state.values))
    # -E log q(h) = shape - log rate + log Gamma(shape) + (1 - shape) psi(shape); ``own`` is psi, log Gamma and shape
    entropy = -H.own + float(np.sum(H.log))
    return fit + entropy + float(np.sum(bound_of_rows(problem.prior, H.mean, H.log, state.values)))


def _residual(old: SmoothVBState, new: SmoothVBState) -> float:
    changes = [new.W.change, new.H.change]
    changes += [np.max(np.abs(value / old.values[name] - 1.0), initial=0.0) for name, value in new.values.items()]
    return float(max(changes))


def finish(
    problem: SmoothVBProblem, state: SmoothVBState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, free hyperparameters as they are; the parameters of q for ``fit``."""
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    drawn, factors, of_q = draw_factors(problem.sides, (state.W, state.H), draws, key)
    values |= drawn
    if problem.structure.imputed is not None:
        generators = repeat(generator_of(child(key, IMPUTED)))
        values[problem.structure.imputed.name] = impute(problem.structure, *factors, generators)
    return values, of_q


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Poisson,),
    chains=(GammaChainPrior,),
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
