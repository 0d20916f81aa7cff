"""Gibbs sampling where H is a chain with auxiliary variables, beside Poisson counts.

With C the sources of the counts, X = sum_k C, a sweep draws in this order::

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n))            only where x_fn > 0 and observed
    w_fk ~ Gamma(a_w + sum_n C, r_w + sum_n M_fn h_kn)
    the auxiliaries given H, and H given them and C                    by the chain's own conditionals
    levels of rows of H                                                many times at once, where a chain has such moves
    w_k -> c w_k, h_k -> h_k / c                                       c generalised inverse Gaussian
    hyperparameters of the chain and of W                              by slice sampling

M is the mask times the exposure; a background is one more source, of no component. Times without an observed cell are
drawn from the chain alone. Of gamma chains (:mod:`nmf_zoo.inference.smooth.gamma_chain`) all conditionals are gamma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs, GibbsState, draw_side, draw_sources
from nmf_zoo.inference.hmm.gibbs_chain import chain_of, draw_parameters
from nmf_zoo.inference.shared.factor_view import PriorCells, as_variables, impute_counts, prior_cells
from nmf_zoo.inference.shared.joint import LogJoint, followed_means
from nmf_zoo.inference.shared.layout import Layout, Weights, by_count, compress, weigh
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_counts
from nmf_zoo.inference.smooth.base import AugmentedChain, DataTerms
from nmf_zoo.inference.smooth.bgar import AugmentedBGAR
from nmf_zoo.inference.smooth.gamma_chain import AugmentedGammaChain
from nmf_zoo.inference.smooth.requirements import is_smooth, takes_defaults_of_chains, takes_weights
from nmf_zoo.inference.smooth.start import start_of_chain
from nmf_zoo.kernels.counts.gibbs import draw_scales
from nmf_zoo.kernels.counts.sweeps import apply_scales
from nmf_zoo.kernels.random.keyed_rng import children, generator_of
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BGARPrior, ChainPrior, Factorisation, GammaChainPrior, Poisson

SOURCES, WEIGHTS, AUXILIARIES, ACTIVATIONS, LEVELS, SCALES, HYPERPARAMETERS = range(7)  # children of a sweep's key
AUGMENTED: dict[type[ChainPrior], AugmentedChain] = {
    GammaChainPrior: AugmentedGammaChain(),
    BGARPrior: AugmentedBGAR(),
}


class SmoothGibbsState(NamedTuple):
    """W (F, K), Ht (N, K), the chain's auxiliaries (N - 1, K), hyperparameters by name."""

    W: Array
    Ht: Array
    auxiliary: Array
    values: dict[str, Array]


class SmoothGibbsInfo(NamedTuple):
    """scale_move: root mean square of log c over the components, 0 without the move."""

    scale_move: float


@dataclass(frozen=True)
class SmoothGibbsProblem:
    """What all chains share; ``checked`` are the cells of ``mean``."""

    structure: Factorisation
    formulas: AugmentedChain
    options: Gibbs
    layout: Layout
    order: Array
    weights: Weights
    workers: Workers
    log_joint: LogJoint
    checked: tuple[Array, Array]


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Counts, W gamma or known, and hyperparameters with proper priors."""
    asked = is_smooth(structure) and takes_weights(structure) and takes_counts(structure) and is_proper(structure)
    return asked and takes_plain(structure, options)


def takes_plain(structure: Factorisation, options: Gibbs) -> Verdict:
    """CAN_RUN without what is for independent columns alone."""
    if options.trajectories == "always":
        return Verdict(f'trajectories="always", and {structure.H.name} is a chain: leave it at "auto"')
    return takes_defaults_of_chains(structure, options, "temperatures")


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> SmoothGibbsProblem:
    """Lay out the data along their longer side, for the allocation of counts."""
    layout, weights = compress(structure), weigh(structure)
    return SmoothGibbsProblem(
        structure=structure,
        formulas=AUGMENTED[type(chain_of(structure))],
        options=options,
        layout=layout,
        order=by_count(layout),
        weights=weights,
        workers=workers,
        log_joint=LogJoint(structure, layout, weights, workers),
        checked=checked_cells(structure.shape),
    )


def init(problem: SmoothGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> SmoothGibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht, values = start_of_chain(problem.structure, problem.weights, key, start)
    return SmoothGibbsState(W, Ht, problem.formulas.start(chain_of(problem.structure), Ht, values), values)


def step(
    problem: SmoothGibbsProblem, state: SmoothGibbsState, key: np.uint64
) -> tuple[SmoothGibbsState, SmoothGibbsInfo]:
    """One sweep, in place."""
    structure, keys, scale_move = problem.structure, children(key, HYPERPARAMETERS + 1), 0.0
    prior, workers, formulas = chain_of(structure), problem.workers, problem.formulas
    sources = GibbsState(state.W, state.Ht, {}, np.zeros_like(state.W), np.zeros_like(state.Ht), None)
    draw_sources(problem.layout, problem.order, workers, sources, keys[SOURCES])
    priors = None if structure.W.is_fixed else prior_cells(structure, state.values)
    if priors is not None:
        weight = problem.weights.over_samples(state.Ht)
        given = (priors.shape_w, sources.of_features), (priors.rate_w, weight)
        draw_side(workers, state.W, *given, keys[WEIGHTS])
    data = DataTerms(sources.of_samples, problem.weights.over_features(state.W), None)
    path = prior, state.Ht, state.auxiliary, state.values
    formulas.draw_auxiliary(*path, workers, keys[AUXILIARIES])
    formulas.draw_activations(*path, data, workers, keys[ACTIVATIONS])
    formulas.move_levels(*path, data, workers, keys[LEVELS])
    if priors is not None and "scale" in problem.options.moves:
        scale_move = move_scales(structure, formulas, state, priors, keys[SCALES])
    if structure.unknowns:
        sums = formulas.sums(state.Ht, state.auxiliary)
        draw_parameters(structure, formulas, state.W, sums, state.values, generator_of(keys[HYPERPARAMETERS]))
    return state, SmoothGibbsInfo(scale_move)


def move_scales(
    structure: Factorisation, formulas: AugmentedChain, state: SmoothGibbsState, priors: PriorCells, key: np.uint64
) -> float:
    """Move along w_k -> c w_k, h_k -> h_k / c, which the data can't see, in place; returns the size of the move."""
    power, rate = formulas.law_of_scale(chain_of(structure), state.Ht, state.auxiliary, state.values)
    scale = np.empty(len(power))
    linear = (priors.rate_w * state.W).sum(axis=0)
    draw_scales(scale, priors.shape_w.sum(axis=0) - power, 2.0 * linear, 2.0 * rate, key)
    return apply_scales(state.W, state.Ht, scale)


def draw(
    problem: SmoothGibbsProblem, state: SmoothGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, (W, Ht) = problem.structure, state[:2]
    values = as_variables(structure, W, Ht) | {name: np.array(value) for name, value in state.values.items()}
    if structure.imputed is not None:
        values[structure.imputed.name] = impute_counts(structure, W[None], Ht[None], [key])[0]
    mean = followed_means(W, Ht, problem.checked)
    return values, {"lp": np.float64(problem.log_joint(W, Ht, values)), "mean": mean}


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Poisson,),
    chains=tuple(AUGMENTED),
    projects=1,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    draw=draw,
)
