"""Variational Bayes of a normal factorisation with known errors of measurement: q(W) q(H) of truncated normal cells.

Under flat, exponential, half-normal and truncated normal priors the best q of a cell given all others is a normal,
truncated to [0, inf), in closed form (:mod:`nmf_zoo.kernels.normal.factor_moments`; Brouwer, Frellsen and Lio 2017,
Comparative study of inference methods for Bayesian nonnegative matrix factorisation, section 3, have exponential priors
and one sigma). Cells are updated in turn, so that the bound

    B = E[log p(X | W, H)] + E[log p(W) + log p(H)] + entropy of q

never falls; it is exact in everything, and below log p(X).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.normal.gibbs import SCALES, both_terms
from nmf_zoo.inference.normal.squares import MeasuredCells, Weighted
from nmf_zoo.inference.shared.factor_view import Side, impute, two_sides
from nmf_zoo.inference.shared.requirements import takes_defaults, takes_priors, takes_scale
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.normal.factor_draws import CellTerms
from nmf_zoo.kernels.normal.factor_moments import draw_approximation, update_rows
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Factorisation,
    Fixed,
    GammaPrior,
    HalfNormalPrior,
    Normal,
    TruncatedNormalPrior,
)

CYCLES = 2  # over the cells of a row: their Gram matrix costs more than they do
MOST_PRECISE = 1e7  # X over sigma: of its square the last digit is 0.01 nats
W_DRAWS, H_DRAWS, IMPUTED = range(3)  # children of the stream of the final draws


class TruncatedNormalApproximation(NamedTuple):
    """q of one factor: mean and variance (rows, K), and laws (2, rows, K), precision and shift before truncation.

    own : what it adds to the bound beside the data
    """

    mean: Array
    variance: Array
    laws: Array
    own: float = 0.0


class NormalVBState(NamedTuple):
    """q of W and of H, and the bound there."""

    W: TruncatedNormalApproximation
    H: TruncatedNormalApproximation
    bound: float = -np.inf


class NormalVBInfo(NamedTuple):
    """objective: the bound, in nats; residual: the largest change of a mean, relative to its column's largest."""

    objective: float
    residual: float


@dataclass(frozen=True)
class NormalVBProblem:
    """What all restarts share; ``constant`` is what the bound holds that no q changes."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    weighted: Weighted
    terms: tuple[CellTerms, CellTerms]
    constant: float


# -- what it can run -------------------------------------------------------------------------------------------------


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Known sigma and hyperparameters; half-normal, truncated normal or exponential priors, or known factors."""
    asked = takes_defaults(structure, options, "order", "precision", "batch_size") and has_data(structure)
    asked = asked and takes_priors(structure, GammaPrior, HalfNormalPrior, TruncatedNormalPrior)
    asked = asked and takes_scale(structure, "VB", *SCALES)
    return asked and _takes_shapes(structure) and _takes_digits(structure)


def _takes_digits(structure: Factorisation) -> Verdict:
    """The bound is a difference of squares of X over sigma, of which float64 holds 16 digits."""
    rows, cols, x = structure.observed_cells()
    sigma = structure.likelihood_at(rows, cols).parameters["sigma"].resolve({})
    with np.errstate(over="ignore"):
        largest = float(np.max(np.abs(x) / sigma, initial=0.0))
    if largest <= MOST_PRECISE:
        return CAN_RUN
    return Verdict(
        f"the largest {structure.likelihood.name} over its sigma is {largest:.3g}, and beyond {MOST_PRECISE:g} the "
        "bound has no digits left: give sigma the size of the errors, or use em"
    )


def _takes_shapes(structure: Factorisation) -> Verdict:
    if structure.unknowns:
        return Verdict(f"hyperparameter {', '.join(structure.unknowns)} is unknown, and its updates are for known ones")
    for side in two_sides(structure):
        if side.is_flat:
            return Verdict(f"{side.factor.name} has no prior, and there is no proper distribution to approximate")
        if side.is_gamma and np.any(side.gamma.shape.resolve({}) != 1.0):
            return Verdict(f"{side.factor.name} has gamma shapes other than 1, which are not conjugate to normal data")
    return CAN_RUN


# -- how it runs -----------------------------------------------------------------------------------------------------


def prepare(structure: Factorisation, options: VB, workers: Workers) -> NormalVBProblem:
    """Lay out the data."""
    squares, rank = MeasuredCells(structure), structure.rank
    at_zero = squares.log_likelihood(squares.residuals(*(np.zeros((n, rank)) for n in structure.shape)), {})
    constant = at_zero + sum(_log_prior_at_zero(factor) for factor in (structure.W, structure.H))
    release(structure)
    return NormalVBProblem(
        structure, options, two_sides(structure), squares.weigh({}), both_terms(structure, {}), constant
    )


def _log_prior_at_zero(factor) -> float:
    """The constants of a log prior, all that is left of it where every cell is 0."""
    if isinstance(factor.prior, Fixed):
        return 0.0
    return float(factor.prior.log_density(np.zeros(factor.free_shape), {}))


def init(problem: NormalVBProblem, key: np.uint64, start: Mapping[str, Array]) -> NormalVBState:
    """q sharp at the start given, or at a random one at the scale of the data."""
    W, H = (_sharp(factor) for factor in start_factors(problem.structure, key, start, problem.options.start))
    return NormalVBState(W, H)


def _sharp(factor: Array) -> TruncatedNormalApproximation:
    return TruncatedNormalApproximation(
        np.array(factor, order="C"), np.zeros(factor.shape), np.zeros((2, *factor.shape))
    )


def step(
    problem: NormalVBProblem, state: NormalVBState, key: np.uint64 | None = None
) -> tuple[NormalVBState, NormalVBInfo]:
    """One iteration: q(W), then q(H)."""
    qs, fit, residual = [state.W, state.H], 0.0, 0.0
    for which, side in enumerate(problem.sides):
        if not side.is_fixed:
            before = qs[which].mean
            qs[which], fit = _update(problem, which, qs[which], qs[1 - which])
            top = np.maximum(np.max(before, axis=0), 1e-300)
            residual = max(residual, float(np.max(np.abs(qs[which].mean - before) / top)))
    bound = problem.constant + fit + qs[0].own + qs[1].own
    return NormalVBState(qs[0], qs[1], bound), NormalVBInfo(bound, residual)


def _update(
    problem: NormalVBProblem, which: int, q: TruncatedNormalApproximation, other: TruncatedNormalApproximation
) -> tuple[TruncatedNormalApproximation, float]:
    """(q of one factor given the other, what the data add to the bound there)"""
    mean, variance, laws = (array.copy() for array in (q.mean, q.variance, q.laws))
    columns, terms = np.flatnonzero(problem.sides[which].are_free), problem.terms[which]
    own, fit = 0.0, 0.0
    for rows, normals in problem.weighted.blocks(which, other.mean, other.variance):
        part = CellTerms(*(term[rows] for term in terms))
        of_laws = np.ascontiguousarray(laws[:, rows])
        of_rows, of_fit = update_rows(mean[rows], variance[rows], of_laws, normals, part, columns, rows.start, CYCLES)
        laws[:, rows] = of_laws
        own, fit = own + of_rows, fit + of_fit
    return TruncatedNormalApproximation(mean, variance, laws, own), fit


def finish(
    problem: NormalVBProblem, state: NormalVBState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q; its means and standard deviations for ``fit``."""
    values: dict[str, Array] = {}
    parameters: dict[str, Array] = {}
    factors = []
    for side, q, child_of in zip(problem.sides, (state.W, state.H), (W_DRAWS, H_DRAWS), strict=True):
        drawn = np.broadcast_to(q.mean, (draws, *q.mean.shape))
        if not side.is_fixed:
            drawn = _draws(side, q, draws, child(key, child_of))
            values |= side.factor.variables(side.turn(drawn))
            moments = {"mean": q.mean, "sd": np.sqrt(q.variance)}
            of_q = {word: np.ascontiguousarray(array[:, side.free]) for word, array in moments.items()}
            parameters |= {f"{side.factor.variable}_{word}": side.as_variable(array) for word, array in of_q.items()}
        factors.append(drawn)
    if problem.structure.imputed is not None:
        generators = repeat(generator_of(child(key, IMPUTED)))
        values[problem.structure.imputed.name] = impute(problem.structure, factors[0], factors[1], generators)
    return values, parameters


def _draws(side: Side, q: TruncatedNormalApproximation, draws: int, key: np.uint64) -> Array:
    """(draws, rows, K), known components as they are."""
    out = np.repeat(q.mean[None], draws, axis=0)
    laws, part = np.ascontiguousarray(q.laws[:, :, side.free]), np.empty(q.mean[:, side.free].shape)
    for draw in range(draws):
        draw_approximation(part, laws, child(key, draw))
        out[draw][:, side.free] = part
    return out


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Normal,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
