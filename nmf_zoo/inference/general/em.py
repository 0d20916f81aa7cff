"""EM for a likelihood that tells its slopes only: multiplicative updates, shortened until the objective does not rise.

With d log p(x | m) / dm = positive - negative, both >= 0, exposure e, and a gamma prior (a, r) or none (a = 1, r = 0)::

    w_fk = (w_fk sum_n e positive_fn h_kn + a - 1) / (sum_n e negative_fn h_kn + r)      then H alike, at the new W

is what majorisation gives where the positive part is convex and the negative one concave in m (Fevotte and Idier 2011),
and there it never loses. In general the change of log w has the sign of the negative gradient in every cell, so that a
short enough part of it does not: whole, half, a quarter, ... of the way in the logarithms. The fixed points are the
stationary points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.counts.em import EM, EMInfo, log_prior
from nmf_zoo.inference.shared.acceleration import is_no_worse
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, two_sides
from nmf_zoo.inference.shared.multiplicative import FLOOR, update
from nmf_zoo.inference.shared.requirements import takes_defaults, takes_priors
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Cells, Factorisation, GammaPrior, HalfNormalPrior

HALVINGS = 50  # of a change in the logarithms: what is left of it is rounding


class SlopesState(NamedTuple):
    """W (F, K), Ht (N, K), and -log p there."""

    W: Array
    Ht: Array
    objective: float


class SlopesProblem(NamedTuple):
    """What all restarts share; ``mode`` and ``start`` are the options'."""

    structure: Factorisation
    mode: str
    start: str
    sides: tuple[Side, Side]
    workers: Workers


def supports(structure: Factorisation, options: EM) -> Verdict:
    """Slopes that are written; flat, gamma or half-normal factors, or known; hyperparameters known; plain options."""
    name, family = structure.likelihood.name, structure.likelihood.family
    if structure.unknowns:
        return Verdict(f"hyperparameter {', '.join(structure.unknowns)} is unknown, and it takes known ones")
    if structure.data.is_complete and isinstance(structure.data, Cells):
        return Verdict(f"{name} lists its non-zero cells, and {family} data need all: pass X as an array")
    asked = takes_defaults(structure, options, "inner", "precision", "update")
    if not asked:
        return asked
    for side in two_sides(structure):
        if side.is_gamma and options.mode == "density" and float(np.min(side.gamma.shape.resolve({}))) < 1.0:
            return Verdict(f'the density of {side.factor.name} is unbounded at 0: use EM(mode="log")')
    return takes_priors(structure, GammaPrior, HalfNormalPrior)


def prepare(structure: Factorisation, options: EM, workers: Workers) -> SlopesProblem:
    """There is nothing to lay out: the likelihood sees the data as they are."""
    return SlopesProblem(structure, options.mode, options.start, two_sides(structure), workers)


def init(problem: SlopesProblem, key: np.uint64, start: Mapping[str, Array]) -> SlopesState:
    """The start given, or one at the scale of the data."""
    factors = start_factors(problem.structure, key, start, problem.start)
    W, Ht = (own if side.is_fixed else np.maximum(own, FLOOR) for side, own in zip(problem.sides, factors, strict=True))
    return SlopesState(W, Ht, _objective(problem, W, Ht))


def step(problem: SlopesProblem, state: SlopesState, key: np.uint64 | None = None) -> tuple[SlopesState, EMInfo]:
    """One iteration: W, then H."""
    residual = 0.0
    for which, side in enumerate(problem.sides):
        if not side.is_fixed:
            state, at_side = _descend(problem, which, state)
            residual = max(residual, at_side)
    return state, EMInfo(state.objective, residual)


def _descend(problem: SlopesProblem, which: int, state: SlopesState) -> tuple[SlopesState, float]:
    """(one factor's update, or as much of it as does not lose; KKT residual before)"""
    old = (state.W, state.Ht)[which]
    positive, negative = _slopes(problem.structure, which, state.W, state.Ht)
    new, residual = update(problem.sides[which], problem.mode, old, old * positive, negative, {}, problem.workers)
    change = np.log(new) - np.log(old)
    for halvings in range(HALVINGS):
        beyond = new if not halvings else np.maximum(old * np.exp(change * 0.5**halvings), FLOOR)
        factors = (state.W, beyond) if which else (beyond, state.Ht)
        objective = _objective(problem, *factors)
        if is_no_worse(objective, state.objective):
            return SlopesState(factors[0], factors[1], objective), residual
    return state, residual


def _objective(problem: SlopesProblem, W: Array, Ht: Array) -> float:
    with np.errstate(all="ignore"):  # what is not finite is no step
        return -problem.structure.log_likelihood(W, Ht.T, {}) - log_prior(problem.sides, problem.mode, (W, Ht), {})


def _slopes(structure: Factorisation, which: int, W: Array, Ht: Array) -> tuple[Array, Array]:
    """Sums over samples (``which`` 0, (F, K)) or features (1, (N, K)) of both parts times the other factor."""
    if isinstance(structure.data, Cells):
        return _slopes_of_cells(structure, which, W, Ht)
    sums: tuple[Array, Array] = (np.zeros_like((W, Ht)[which]), np.zeros_like((W, Ht)[which]))
    for columns in structure.column_blocks(chunks=1):
        mean, x = structure.mean_of(W, Ht.T, columns), structure.data.values[:, columns]
        weight = 1.0 if structure.data.mask is None else structure.data.mask[:, columns].astype(float)
        if structure.likelihood.exposure is not None:
            weight = weight * structure.exposure_table(columns)
        law = structure.likelihood_at(slice(None), columns)
        for total, slope in zip(sums, law.slopes(x, mean, {}), strict=True):
            if which:
                total[columns] = (slope * weight).T @ W
            else:
                total += (slope * weight) @ Ht[columns]
    return sums


def _slopes_of_cells(structure: Factorisation, which: int, W: Array, Ht: Array) -> tuple[Array, Array]:
    """The same of listed cells."""
    rows, cols, x = structure.observed_cells()
    mean = structure.mean_at(W, Ht.T, rows, cols)
    weight = structure.exposure_at(rows, cols)
    positive, negative = (
        sp.csr_array((slope * weight, (rows, cols)), structure.shape)
        for slope in structure.likelihood_at(rows, cols).slopes(x, mean, {})
    )
    return (positive.T @ W, negative.T @ W) if which else (positive @ Ht, negative @ Ht)


def finish(
    problem: SlopesProblem, state: SlopesState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw."""
    return as_one_draw(problem.structure, state.W, state.Ht, {}), {}


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(),  # those that are registered for it
    asks=("slopes",),
    projects=4,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
