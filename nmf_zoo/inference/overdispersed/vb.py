"""Variational Bayes for negative binomial data, the multipliers of the cells at their optimal law.

q(W) q(H) q(C) q(g) is gamma, gamma, multinomial, gamma. With E = E_q[.], L = exp(E_q[log .]) and m = e (W H) + b::

    q(g) = Gamma(alpha + x, alpha + E m), hence E g = (alpha + x) / (alpha + E m)
    q(w) = Gamma(a_w + sum_n E[C], r_w + sum_n e E[g] E_h)      E[c] = x L_w L_h / (L_w . L_h + b / e)
    q(h) alike, at the new E_w and L_w, with q(C) and q(g) at their optima there
    alpha, where it is free: a Newton step up the bound; with a prior: q(g | alpha) as above, and q(alpha) on nodes
    (:mod:`nmf_zoo.inference.overdispersed.dispersion_law`), over which E[g] is averaged

At the optima of q(C) and q(g) the bound is that of the observed density with two means, one for each of its terms::

    B = sum x log(e L_w . L_h + b) - (x + alpha) log(1 + E m / alpha)
        + log Gamma(alpha + x) - log Gamma(alpha) - x log alpha - log x!  -  KL(q_w || p_w) - KL(q_h || p_h)

so that neither is stored, and alpha's part of it is the log-density of alpha at the means E m. It never falls. A prior
is integrated against: of the bound's two last lines, log int p(alpha) exp(.) d alpha is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from nmf_zoo.inference.counts.vb import (
    HYPERPARAMETERS,
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
    update,
)
from nmf_zoo.inference.overdispersed.cells import Pieces, exposed, mean_at, where_seen
from nmf_zoo.inference.overdispersed.dispersion import ByEntry, alpha_of, climb, log_likelihood_of, log_prior_of
from nmf_zoo.inference.overdispersed.dispersion_law import DispersionLaw, draw_alpha, fit_law
from nmf_zoo.inference.overdispersed.em import takes_unknowns
from nmf_zoo.inference.shared.acceleration import Momentum
from nmf_zoo.inference.shared.factor_view import Side, impute, two_sides
from nmf_zoo.inference.shared.requirements import takes_defaults, takes_gammas, takes_scale
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, NegativeBinomial
from nmf_zoo.structure.likelihoods.negative_binomial import log_rising

LEAST = 1e-150  # of exp(E[log v]) in the shares of a count, so that their products have a sum


class DispersedVBState(NamedTuple):
    """q of W and of H, an unknown alpha by its name (with a prior: its middle, of q), the bound there, and where the
    last update led. ``law`` : q of an alpha with a prior, from the first iteration on."""

    W: GammaApproximation
    H: GammaApproximation
    values: dict[str, Array]
    law: DispersionLaw | None = None
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


@dataclass(frozen=True)
class DispersedVBProblem:
    """What all restarts share."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    pieces: Pieces
    workers: Workers


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Gamma factors of known hyperparameters, or known ones; alpha known, free or with a prior that is smooth."""
    asked = has_data(structure) and takes_gammas(structure) and takes_unknowns(structure)
    asked = (
        asked
        and _takes_dispersion(structure)
        and takes_defaults(structure, options, "order", "precision", "batch_size")
    )
    if not asked:
        return asked
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"without a prior of {' and '.join(flat)} there is no proper distribution to approximate")
    return takes_scale(structure, "VB", *SCALES)


def _takes_dispersion(structure: Factorisation) -> Verdict:
    for unknown in structure.likelihood.unknowns:
        if unknown.prior.kind == "uniform":  # q's nodes would have to know where it ends
            return Verdict(
                f"the density of {unknown.name} ends within the positive numbers, and VB integrates over smooth ones: "
                "give it a log-normal or gamma prior"
            )
    return CAN_RUN


def prepare(structure: Factorisation, options: VB, workers: Workers) -> DispersedVBProblem:
    """Nothing is laid out but a sparse X by its samples."""
    return DispersedVBProblem(structure, options, two_sides(structure), Pieces(structure), workers)


def init(problem: DispersedVBProblem, key: np.uint64, start: Mapping[str, Array]) -> DispersedVBState:
    """E = L = the start given, or a random one at the scale of the data."""
    W, H = (point(array) for array in start_factors(problem.structure, key, start, problem.options.start))
    return DispersedVBState(W, H, start_hyperparameters(problem.structure, start))


def step(
    problem: DispersedVBProblem, state: DispersedVBState, key: np.uint64 | None = None
) -> tuple[DispersedVBState, VBInfo]:
    """One iteration: q of W, of H, alpha."""
    new = raise_gammas(problem, state, _update_both(problem, state), _at)
    moved = [np.max(np.abs(new.values[name] / old - 1.0), initial=0.0) for name, old in state.values.items()]
    residual = float(max([new.W.change, new.H.change, *moved]))
    return new, VBInfo(new.bound, residual)


def _update_both(problem: DispersedVBProblem, state: DispersedVBState) -> list[Gamma]:
    """q of W, then of H at the new W, by their shapes and rates; a known factor's are None."""
    (left, right), alpha = problem.sides, nodes_of(problem, state)
    W, at_W = Gamma(None, None), state.W
    if not left.is_fixed:
        W = update(left, *expected(problem.pieces, 0, state.W, state.H, alpha), {})
        at_W = moments_at(W, state.W, problem.workers, left.free)
    if right.is_fixed:
        return [W, Gamma(None, None)]
    return [W, update(right, *expected(problem.pieces, 1, at_W, state.H, alpha), {})]


Nodes = list[tuple[Array, Array]]  # of alpha, (1 or F, 1 or N), and their weights


def nodes_of(problem: DispersedVBProblem, state: DispersedVBState) -> Nodes:
    """Those of q; one where alpha is known or free, or q not known yet."""
    if state.law is None:
        alpha = alpha_of(problem.structure, state.values)
        return [(alpha, np.ones(alpha.shape))]
    return list(zip(state.law.nodes, state.law.weights, strict=False))  # some weights are of no node


def expected(
    pieces: Pieces, which: int, W: GammaApproximation, H: GammaApproximation, alpha: Nodes
) -> tuple[Array, Array]:
    """(sums of E[C], sums of e E[g] times the other's mean) over samples (``which`` 0) or features (1)."""
    shares = tuple(np.maximum(np.exp(q.log), LEAST) for q in (W, H))
    own, other = (W, H)[which], (H, W)[which]
    ratio, weight = np.zeros_like(own.mean), np.zeros_like(own.mean)
    for piece in pieces:
        shared = mean_at(piece, piece.product(*shares))
        mean, of_data, of_g = mean_at(piece, piece.product(W.mean, H.mean)), piece.x / shared, np.zeros_like(shared)
        for node, weight_of_node in alpha:
            of_cells = piece.parameter(node)
            of_g += piece.parameter(weight_of_node) * ((piece.x + of_cells) / (mean + of_cells))
        for out, cells, factor in ((ratio, of_data, shares[1 - which]), (weight, of_g, other.mean)):
            if which:
                piece.add_over_features(out, exposed(piece, cells), factor)
            else:
                piece.add_over_samples(out, exposed(piece, cells), factor)
    return shares[which] * ratio, weight


def _at(problem: DispersedVBProblem, gammas: list[Gamma], state: DispersedVBState) -> DispersedVBState:
    """The state at new shapes and rates, a free alpha after a step there."""
    sides = zip(problem.sides, gammas, (state.W, state.H), strict=True)
    W, H = (moments_at(gamma, q, problem.workers, side.free) for side, gamma, q in sides)
    values, law = state.values, state.law
    for unknown in problem.structure.likelihood.unknowns:
        by_entry, alpha = log_likelihood_of(problem.pieces, W.mean, H.mean), alpha_of(problem.structure, values)
        if unknown.prior.is_flat:
            alpha = climb(alpha, by_entry)
        else:
            law = _law_of(by_entry, log_prior_of(unknown, True), alpha, law)
            alpha = law.middle
        values = {unknown.name: alpha.reshape(unknown.variable_shape)}
    return DispersedVBState(W, H, values, law, _bound(problem, W, H, values, law))


def _law_of(of_data: ByEntry, of_prior: ByEntry, alpha: Array, law: DispersionLaw | None) -> DispersionLaw:
    """q of alpha, looked for where it was before."""
    low, high = (np.log(alpha) - 2.0, np.log(alpha) + 2.0) if law is None else (law.low, law.high)
    with np.errstate(all="ignore"):  # a push may have led beyond all numbers, which is no gain
        return fit_law(lambda at: of_data(at) + of_prior(at), low, high)


def _bound(
    problem: DispersedVBProblem,
    W: GammaApproximation,
    H: GammaApproximation,
    values: Mapping[str, Array],
    law: DispersionLaw | None,
) -> float:
    alpha, total = alpha_of(problem.structure, values), -problem.structure.total_log_constant
    shares = tuple(np.maximum(np.exp(q.log), LEAST) for q in (W, H))
    for piece in problem.pieces:
        shared, of_cells = mean_at(piece, piece.product(*shares)), piece.parameter(alpha)
        if law is not None:
            total += float(np.sum(where_seen(piece, xlogy(piece.x, shared))))
            continue
        mean = mean_at(piece, piece.product(W.mean, H.mean))
        cells = xlogy(piece.x, shared) - (piece.x + of_cells) * np.log1p(mean / of_cells)
        total += float(np.sum(where_seen(piece, cells + log_rising(of_cells, piece.x))))
    total += 0.0 if law is None else float(np.sum(law.log_total))
    parts = zip(problem.sides, (W, H), strict=True)
    return total - sum(divergence(q, *side.prior({}), side.free) for side, q in parts if side.is_gamma)


def finish(
    problem: DispersedVBProblem, state: DispersedVBState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, a free alpha as it is; the parameters of q for ``fit``."""
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    if state.law is not None:
        drawn_alpha = draw_alpha(state.law, draws, generator_of(child(key, HYPERPARAMETERS)))
        values = {name: drawn_alpha.reshape(value.shape) for name, value in values.items()}
    alphas, (drawn, factors, parameters) = values, draw_factors(problem.sides, (state.W, state.H), draws, key)
    if problem.structure.imputed is not None:
        generators, cells = repeat(generator_of(child(key, IMPUTED))), []
        for i, (W, Ht) in enumerate(zip(*factors, strict=True)):
            own = {name: alpha[i] for name, alpha in alphas.items()}
            cells.append(impute(problem.structure, W[None], Ht[None], generators, own))
        drawn[problem.structure.imputed.name] = np.concatenate(cells)
    return alphas | drawn, parameters


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(NegativeBinomial,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
