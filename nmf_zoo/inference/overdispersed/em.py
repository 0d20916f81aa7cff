"""EM for negative binomial data: expected multipliers and sources, then each factor, then the dispersion.

With x | g ~ Poisson(g m), g ~ Gamma(alpha, alpha), exposure e and a gamma prior (a, r) or none (a = 1, r = 0)::

    E[g] = (alpha + x) / (alpha + m)              E[c_k] = x e w_k h_k / m
    w_fk = (sum_n E[c_k] + a - 1) / (sum_n e E[g] h_kn + r)        then H alike, at the new W and new expectations
    alpha: a Newton step up log p(x | m, alpha), the multipliers summed over, at the new W and H

(Gouvert, Oberlin, Fevotte 2020 for the factors). Each conditional maximisation sees the observed density itself, or a
minorant that touches it, so that no step loses (Liu and Rubin 1994, ECME). Momentum pushes the updates on, and is
dropped where the objective would rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.em import EM, EMInfo, constrained, log_prior
from nmf_zoo.inference.overdispersed.cells import Pieces, exposed, mean_at
from nmf_zoo.inference.overdispersed.dispersion import alpha_of, climb, log_likelihood_of, log_prior_of, takes_ties
from nmf_zoo.inference.shared.acceleration import Momentum, ahead, is_no_worse, push_or_retreat
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, two_sides
from nmf_zoo.inference.shared.multiplicative import FLOOR, update
from nmf_zoo.inference.shared.requirements import takes_defaults, takes_priors, takes_scale
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, HalfNormalPrior, NegativeBinomial

SCALES = 1e-120, 1e120  # of the largest cell


class DispersedState(NamedTuple):
    """W (F, K), Ht (N, K), alpha by its name where it is unknown, -log p there, and where the last update led."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    objective: float
    momentum: Momentum = Momentum()
    updated: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class DispersedProblem:
    """What all restarts share."""

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    pieces: Pieces
    workers: Workers


def supports(structure: Factorisation, options: EM) -> Verdict:
    """Flat, gamma or half-normal factors of known hyperparameters, or known; alpha known, free or with a prior."""
    asked = has_data(structure) and takes_unknowns(structure)
    asked = asked and takes_defaults(structure, options, "inner", "precision", "update")
    asked = asked and _takes_shapes(structure, options) and takes_priors(structure, GammaPrior, HalfNormalPrior)
    return asked and takes_scale(structure, "EM", *SCALES)


def takes_unknowns(structure: Factorisation) -> Verdict:
    """CAN_RUN when the factors' hyperparameters are known, and the dispersion is shared."""
    of_factors = [unknown.name for factor in (structure.W, structure.H) for unknown in factor.unknowns]
    if not of_factors:
        return takes_ties(structure)
    return Verdict(
        f"hyperparameter {', '.join(dict.fromkeys(of_factors))} is unknown, and of {structure.likelihood.family} data "
        "it takes known ones beside the dispersion"
    )


def _takes_shapes(structure: Factorisation, options: EM) -> Verdict:
    for side in two_sides(structure):
        if side.is_gamma and options.mode == "density" and float(np.min(side.gamma.shape.resolve({}))) < 1.0:
            return Verdict(f'the density of {side.factor.name} is unbounded at 0: use EM(mode="log")')
    growing = constrained(structure, options.mode)
    if growing is not None:
        name = growing.factor.variable
        return Verdict(f"{name} has no prior, so it can grow while the other factor shrinks to 0: give it a prior")
    return CAN_RUN


def prepare(structure: Factorisation, options: EM, workers: Workers) -> DispersedProblem:
    """Nothing is laid out but a sparse X by its samples."""
    return DispersedProblem(structure, options, two_sides(structure), Pieces(structure), workers)


def init(problem: DispersedProblem, key: np.uint64, start: Mapping[str, Array]) -> DispersedState:
    """The start given, or one at the scale of the data."""
    factors = start_factors(problem.structure, key, start, problem.options.start)
    W, Ht = (_raised(side, own) for side, own in zip(problem.sides, factors, strict=True))
    values = start_hyperparameters(problem.structure, start)
    return DispersedState(W, Ht, values, _objective(problem, W, Ht, values))


def _raised(side: Side, own: Array) -> Array:
    """No zeros, which no update leaves, but those of what is known."""
    return own if side.is_fixed else side.with_free(own, np.maximum(own[:, side.free], FLOOR))


def step(
    problem: DispersedProblem, state: DispersedState, key: np.uint64 | None = None
) -> tuple[DispersedState, EMInfo]:
    """One iteration: W, H, alpha."""
    updated, residual = _update_both(problem, state)
    pushed = None
    if problem.options.accelerate is not None and state.updated is not None:
        triples = zip(problem.sides, updated, state.updated, strict=True)
        pushed = tuple(_push(side, new, old, state) for side, new, old in triples)
    new, momentum = push_or_retreat(
        state.momentum,
        None if pushed is None else lambda: _at(problem, pushed, state),
        lambda: _at(problem, updated, state),
        lambda new: is_no_worse(new.objective, state.objective),
    )
    moved = [np.max(np.abs(np.log(new.values[name] / old)), initial=0.0) for name, old in state.values.items()]
    return new._replace(momentum=momentum, updated=updated), EMInfo(new.objective, max([residual, *moved]))


def _push(side: Side, new: Array, old: Array, state: DispersedState) -> Array:
    """Beyond where an update led, as seen from the one before; what is known stays."""
    return new if side.is_fixed else side.with_free(new, ahead(new, old, state.momentum.push)[:, side.free])


def _update_both(problem: DispersedProblem, state: DispersedState) -> tuple[tuple[Array, Array], float]:
    """(W, then Ht at the new W; the larger KKT residual)"""
    factors, residual = [state.W, state.Ht], 0.0
    alpha = alpha_of(problem.structure, state.values)
    for which, side in enumerate(problem.sides):
        if not side.is_fixed:
            sources, weight = expected(problem.pieces, which, factors[0], factors[1], alpha)
            given = problem.options.mode, factors[which], factors[which] * sources, weight
            factors[which], of_side = update(side, *given, state.values, problem.workers)
            residual = max(residual, of_side)
    return (factors[0], factors[1]), residual


def expected(pieces: Pieces, which: int, W: Array, Ht: Array, alpha: Array) -> tuple[Array, Array]:
    """Sums over samples (``which`` 0, (F, K)) or features (1, (N, K)): of e x / m and of e E[g], times the other."""
    ratio, weight = np.zeros_like((W, Ht)[which]), np.zeros_like((W, Ht)[which])
    for piece in pieces:
        mean, own = mean_at(piece, piece.product(W, Ht)), piece.parameter(alpha)
        # where known components make the mean 0, so are the counts
        of_data = np.divide(piece.x, mean, out=np.zeros_like(mean), where=mean > 0)
        for out, cells in ((ratio, of_data), (weight, (piece.x + own) / (mean + own))):
            if which:
                piece.add_over_features(out, exposed(piece, cells), W)
            else:
                piece.add_over_samples(out, exposed(piece, cells), Ht)
    return ratio, weight


def _at(problem: DispersedProblem, factors: tuple[Array, ...], state: DispersedState) -> DispersedState:
    """The state at new factors, alpha after a step there."""
    W, Ht = factors
    values = _with_alpha(problem, W, Ht, state.values)
    return DispersedState(W, Ht, values, _objective(problem, W, Ht, values))


def _with_alpha(problem: DispersedProblem, W: Array, Ht: Array, values: dict[str, Array]) -> dict[str, Array]:
    unknowns = problem.structure.likelihood.unknowns
    if not unknowns:
        return values
    (unknown,) = unknowns
    of_data = log_likelihood_of(problem.pieces, W, Ht)
    of_prior = log_prior_of(unknown, problem.options.mode == "log")
    with np.errstate(all="ignore"):  # a push may have led beyond all numbers, which is no gain
        alpha = climb(alpha_of(problem.structure, values), lambda at: of_data(at) + of_prior(at))
    return {**values, unknown.name: alpha.reshape(unknown.variable_shape)}


def _objective(problem: DispersedProblem, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
    structure, mode = problem.structure, problem.options.mode
    with np.errstate(all="ignore"):
        total = structure.log_likelihood(W, Ht.T, values) + log_prior(problem.sides, mode, (W, Ht), values)
        for unknown in structure.likelihood.unknowns:
            alpha = alpha_of(structure, values)
            total += float(np.sum(log_prior_of(unknown, mode == "log")(alpha)))
    return -total


def finish(
    problem: DispersedProblem, state: DispersedState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw."""
    return as_one_draw(problem.structure, state.W, state.Ht, state.values), {}


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(NegativeBinomial,),
    takes_known=True,
    projects=5,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
