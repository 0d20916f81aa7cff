"""Gibbs sampling where H is a chain with auxiliary variables, beside powers (Itakura-Saito).

With p = x / exposure and c_fkn the components whose sum has the power p_fn, a sweep draws in this order::

    |c_fkn|^2                               given p, W, H; then w_fk given sum_n |c_fkn|^2 / h_kn
    |c_fkn|^2 anew                          at the new W; of them sum_f |c_fkn|^2 / w_fk
    the auxiliaries given H, H given them   by the chain's own conditionals, with h^-#f e^(-sum / h) of the powers
    levels of rows of H, scales between W and H, hyperparameters     as beside counts (nmf_zoo.inference.smooth.gibbs)

#f counts observed cells. Cells of W are generalised inverse Gaussian under a gamma prior and inverse gamma under an
inverse-gamma one; so are those of a gamma chain, generalised inverse Gaussian given z. A power that is 0 has no sources
but 0, whose density is not bounded where h is near 0: such data are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.hmm.gibbs_chain import chain_of, draw_parameters
from nmf_zoo.inference.powers.gibbs import ChunkedFrames, cut_frames
from nmf_zoo.inference.powers.spectra import read_spectra
from nmf_zoo.inference.shared.factor_view import as_variables, impute, two_sides
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.layout import Weights, weigh
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_powers
from nmf_zoo.inference.smooth.base import AugmentedChain, DataTerms
from nmf_zoo.inference.smooth.gibbs import (
    ACTIVATIONS,
    AUGMENTED,
    AUXILIARIES,
    HYPERPARAMETERS,
    LEVELS,
    SCALES,
    SOURCES,
    WEIGHTS,
    SmoothGibbsInfo,
    SmoothGibbsState,
    takes_plain,
)
from nmf_zoo.inference.smooth.requirements import has_no_zeros, is_smooth, takes_weights_of_powers
from nmf_zoo.inference.smooth.start import start_of_chain
from nmf_zoo.inference.smooth.terms import PriorTermsOfCells, terms_of_weights
from nmf_zoo.kernels.counts.gibbs import draw_scales
from nmf_zoo.kernels.counts.sweeps import apply_scales
from nmf_zoo.kernels.powers import composite
from nmf_zoo.kernels.powers.component_powers import sum_component_powers
from nmf_zoo.kernels.powers.composite import LEAST, MOST, PowerFactors
from nmf_zoo.kernels.random.keyed_rng import child, children, generator_of
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Exponential, Factorisation

AGAIN = HYPERPARAMETERS + 1  # child of a sweep's key: of the second shares


@dataclass(frozen=True)
class SmoothPowerProblem:
    """What all chains share; ``checked`` are the cells of ``mean``."""

    structure: Factorisation
    formulas: AugmentedChain
    options: Gibbs
    frames: ChunkedFrames
    weights: Weights
    workers: Workers
    checked: tuple[Array, Array]


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Powers that are not 0, W inverse gamma, gamma or known, and hyperparameters with proper priors."""
    asked = is_smooth(structure) and takes_weights_of_powers(structure) and takes_powers(structure)
    asked = asked and has_no_zeros(structure) and is_proper(structure)
    return asked and takes_plain(structure, options)


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> SmoothPowerProblem:
    """Lay out the spectrogram frame by frame."""
    return SmoothPowerProblem(
        structure=structure,
        formulas=AUGMENTED[type(chain_of(structure))],
        options=options,
        frames=cut_frames(read_spectra(structure)[0], structure.rank, workers),
        weights=weigh(structure),
        workers=workers,
        checked=checked_cells(structure.shape),
    )


def init(problem: SmoothPowerProblem, key: np.uint64, start: Mapping[str, Array]) -> SmoothGibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht, values = start_of_chain(problem.structure, problem.weights, key, start)
    np.clip(Ht, LEAST, MOST, out=Ht)
    auxiliary = problem.formulas.start(chain_of(problem.structure), Ht, values)
    return SmoothGibbsState(np.clip(W, LEAST, MOST), Ht, auxiliary, values)


def step(
    problem: SmoothPowerProblem, state: SmoothGibbsState, key: np.uint64
) -> tuple[SmoothGibbsState, SmoothGibbsInfo]:
    """One sweep, in place."""
    structure, keys, scale_move = problem.structure, children(key, AGAIN + 1), 0.0
    prior, workers, formulas = chain_of(structure), problem.workers, problem.formulas
    of_frequencies, of_frames = problem.frames.spectra.n_seen
    if not structure.W.is_fixed:
        of_W, _ = sum_powers(problem, state, keys[SOURCES])
        terms = terms_of_weights(two_sides(structure)[0], state.values)
        given = terms.power - of_frequencies[:, None], terms.rate, terms.inverse + of_W
        draw_cells(state.W, *given, keys[WEIGHTS])
    _, of_H = sum_powers(problem, state, keys[AGAIN])
    data = DataTerms(np.broadcast_to(-of_frames[:, None], of_H.shape), None, of_H)
    path = prior, state.Ht, state.auxiliary, state.values
    formulas.draw_auxiliary(*path, workers, keys[AUXILIARIES])
    formulas.draw_activations(*path, data, workers, keys[ACTIVATIONS])
    formulas.move_levels(*path, data, workers, keys[LEVELS])
    np.clip(state.Ht, LEAST, MOST, out=state.Ht)
    if not structure.W.is_fixed and "scale" in problem.options.moves:
        terms = terms_of_weights(two_sides(structure)[0], state.values)
        scale_move = move_scales_of_powers(problem, state, terms, keys[SCALES])
    if structure.unknowns:
        sums = formulas.sums(state.Ht, state.auxiliary)
        draw_parameters(structure, formulas, state.W, sums, state.values, generator_of(keys[HYPERPARAMETERS]))
    return state, SmoothGibbsInfo(scale_move)


def sum_powers(problem: SmoothPowerProblem, state: SmoothGibbsState, key: np.uint64) -> tuple[Array, Array]:
    """Sums of |c|^2 / h over frames, (F, K), and of |c|^2 / w over frequencies, (N, K), of newly drawn c."""
    frames, factors = problem.frames, PowerFactors(np.ascontiguousarray(state.W.T), state.Ht)
    of_weights, of_frames = np.zeros_like(factors.Wt), np.empty_like(state.Ht)

    def draw_chunk(chunk: tuple[int, int]) -> Array:
        workspace = composite.make_workspace(*factors.Wt.shape)
        sum_component_powers(of_frames, frames.spectra, factors, chunk, workspace, key)
        return workspace.of_weights

    def add(sums: Array) -> None:
        np.add(of_weights, sums, out=of_weights)

    frames.workers.fold(draw_chunk, frames.chunks, add)
    return of_weights.T * state.W, of_frames * state.Ht


def draw_cells(out: Array, power: Array, rate: Array, inverse: Array, key: np.uint64) -> None:
    """Overwrite out: density of v ~ v^(power - 1) exp(-rate v - inverse / v), arrays that broadcast to it."""
    p, a, b = (np.array(np.broadcast_to(own, out.shape)).ravel() for own in (power, 2.0 * rate, 2.0 * inverse))
    drawn = np.empty(out.size)
    draw_scales(drawn, p, a, b, key)
    out[...] = np.clip(drawn, LEAST, MOST).reshape(out.shape)


def move_scales_of_powers(
    problem: SmoothPowerProblem, state: SmoothGibbsState, terms: PriorTermsOfCells, key: np.uint64
) -> float:
    """Move along w_k -> c w_k, h_k -> h_k / c, in place; returns the size of the move."""
    power, rate = problem.formulas.law_of_scale(chain_of(problem.structure), state.Ht, state.auxiliary, state.values)
    scale, of_W = np.empty(len(power)), terms.over_rows(state.W)
    draw_scales(scale, of_W.power - power, 2.0 * of_W.rate, 2.0 * (of_W.inverse + rate), key)
    return apply_scales(state.W, state.Ht, scale)


def draw(
    problem: SmoothPowerProblem, state: SmoothGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, (W, Ht) = problem.structure, state[:2]
    values = as_variables(structure, W, Ht) | {name: np.array(value) for name, value in state.values.items()}
    if structure.imputed is not None:
        generators = [generator_of(child(key, 0))]
        values[structure.imputed.name] = impute(structure, W[None], Ht[None], generators)[0]
    mean = followed_means(W, Ht, problem.checked)
    return values, {"lp": np.float64(structure.log_joint(values)), "mean": mean}


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Exponential,),
    chains=tuple(AUGMENTED),
    projects=1,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    draw=draw,
)
