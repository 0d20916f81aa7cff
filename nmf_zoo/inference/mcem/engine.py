"""Monte-Carlo expectation-maximisation: maximum marginal likelihood (Filstroff, Lumbreras and Fevotte 2018, section 5).

GaP, W without a prior and H ~ Gamma(alpha, beta) integrated out. Each iteration runs Gibbs sweeps of (H, C) at its W,
on from where the last iteration's ended (eq. 38-40), and then updates W from their averages; M is mask times exposure::

    C     w_fk = (beta_k / alpha_k) mean_n E[c_fkn]        eq. 48; then sum_k (alpha_k / beta_k) w_fk = mean_n x_fn
    CH    w_fk = sum_n E[c_fkn] / sum_n M E[h_kn]          eq. 41
    H     the same with E[c | h] = x w h / (W H) and draws of h, eq. 42

Free shapes alpha move to their best values in the same iteration (:mod:`nmf_zoo.inference.mcem.updates`). Rates are
not free beside W: only W / beta counts (eq. 32). Where W has a prior, too, or is known, what is maximised are free
hyperparameters, from E[v] and E[log v] of the factors' cells (Cemgil 2009, section 4.1 names it).

Stochastic approximation (SAEM): after ``explore`` iterations the statistics are averaged over iterations, S <- S +
g (s - S) with g = t^-step, so that the noise of the draws dies out. Every S is an average of sums over whole tables, so
the identity in the line of C holds for it, too.

The objective is -log p(X | W), exactly where that is affordable, else estimated from the sweeps, at the W they ran at.
It need not fall in each iteration. The residual compares the mean W of a window of iterations (20, or a quarter of
those before it) with that of the window before: sum |difference| / sum W, per iteration from middle to middle; alike
for logarithms of hyperparameters. So the noise of the draws, which goes to and fro, averages out of it, and small steps
of SAEM count as what they would be without averaging. A run ends, "converged", when that is below tol, or after
max_iter iterations; that a window shows no drift does not prove that there is none. The result is the mean over the
last window.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.engine import Engine
from nmf_zoo.inference.hyperparameters import moments_of, update_hyperparameters
from nmf_zoo.inference.mcem.expectations import Expectations, GivenW
from nmf_zoo.inference.mcem.options import MCEM
from nmf_zoo.inference.mcem.problem import Problem, prepare
from nmf_zoo.inference.mcem.start import MCEMState, init
from nmf_zoo.inference.mcem.support import supports
from nmf_zoo.inference.mcem.updates import (
    SHAPE_RANGE,
    best_shapes,
    divide_by_exposure,
    exposure_by_prior,
    has_no_root,
)
from nmf_zoo.inference.mcem.windows import look_back, solution
from nmf_zoo.inference.prior_cells import prior_cells
from nmf_zoo.inference.sides import as_one_draw, two_sides
from nmf_zoo.results import Series
from nmf_zoo.structure import Array, Factorisation, Poisson

PRUNED = 1e-3  # a component with less than this share of the expected total has been emptied


class MCEMInfo(NamedTuple):
    """objective: -log p(X | W), exact or estimated; residual: relative size of the mean step over the last window."""

    objective: float
    residual: float


def step(problem: Problem, state: MCEMState, key: np.uint64) -> tuple[MCEMState, MCEMInfo]:
    """Sweeps, their averages, and the best parameters given these."""
    found = problem.expect(state.W, state.Ht, state.values, state.Ht_mean, key)
    iteration = len(state.norms)
    weight = _step_size(problem.options, iteration) if state.statistics else 1.0
    averaged = found.statistics if weight == 1.0 else _mix(state.statistics, found.statistics, weight)
    W, values = _maximise(problem, found, averaged, state)
    norms = np.vstack([state.norms, W.sum(axis=0)])
    window = look_back(problem, state, W, values, weight)
    objective, error = found.objective, found.error
    if problem.likelihood is not None:
        objective, error = -problem.likelihood(W, values), 0.0
    errors = np.append(state.errors, error)
    new = MCEMState(W, found.Ht, values, averaged, averaged["H"], norms, errors, window)
    return new, MCEMInfo(objective, window.residual)


def _step_size(options: MCEM, iteration: int) -> float:
    averaged = iteration - options.explore
    return 1.0 if options.step is None or averaged < 1 else (1.0 + averaged) ** -options.step


def _mix(old: Mapping[str, Array], new: Mapping[str, Array], weight: float) -> dict[str, Array]:
    return {name: old[name] + weight * (new[name] - old[name]) for name in new}


def _maximise(
    problem: Problem, found: Expectations, averaged: dict[str, Array], state: MCEMState
) -> tuple[Array, dict[str, Array]]:
    """The M-step: free hyperparameters, then W."""
    structure, values = problem.structure, state.values
    side_w, side_h = two_sides(structure)
    if "reached" in averaged:
        (unknown,) = side_h.factor.unknowns
        shapes = best_shapes(unknown, values[unknown.name], averaged["reached"], structure.shape[1])
        values = {**values, unknown.name: shapes}
    elif structure.unknowns:
        parts = [
            moments_of(side, averaged[name], averaged[f"log_{name}"])
            for side, name in ((side_w, "W"), (side_h, "H"))
            if side.is_gamma and side.factor.unknowns
        ]
        values = update_hyperparameters(parts, values)
    if not problem.complete:
        return found.W, values
    expect = problem.expect
    assert isinstance(expect, GivenW)
    if problem.complete == "C":
        priors = prior_cells(structure, values)
        exposure = exposure_by_prior(expect.weights, priors.shape_h, priors.rate_h)
    else:
        exposure = expect.weights.over_samples(averaged["H"])
    return divide_by_exposure(averaged["sources"], state.W, exposure), values


def finish(problem: Problem, state: MCEMState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """W, the posterior mean of H given it, and free hyperparameters, as a posterior of one draw."""
    structure = problem.structure
    best, free = solution(problem, state)
    W, Ht = state.statistics.get("W", best), state.Ht_mean
    return as_one_draw(structure, two_sides(structure), (W, Ht), free), _report(problem, state, free)


def _mean_activations(structure: Factorisation, Ht: Array, free: Mapping[str, Array]) -> Array:
    """The mean of H by component, (K,): of its prior, or of what it is known to be."""
    if structure.H.is_fixed:
        return Ht.mean(axis=0)
    priors = prior_cells(structure, free)
    return np.mean(priors.shape_h / priors.rate_h, axis=0)


def _report(problem: Problem, state: MCEMState, free: Mapping[str, Array]) -> dict[str, Any]:
    """What goes to ``fit``; a free shape at the end of its range is worth a warning."""
    expected = state.norms[-1] * _mean_activations(problem.structure, state.Ht_mean, free)
    for name, value in free.items():
        unknown, reached = problem.structure.unknowns[name], state.statistics.get("reached")
        endless = reached is not None and np.any(has_no_root(unknown, reached, problem.structure.shape[1]))
        if endless or np.any(value > 0.99 * SHAPE_RANGE[1]):
            message = "counts that vary no more than Poisson counts do have no best shape: it grows for ever"
            warnings.warn(f"{name} is at {np.max(value):.3g}: {message}", NmfZooWarning, stacklevel=2)
    return {
        "norms": Series(("iteration", "component"), state.norms),
        "objective_error": Series(("iteration",), state.errors),
        "pruned": Series(("component",), expected <= PRUNED * expected.sum()),
        "complete": Series((), np.array(problem.complete)),
    }


ENGINE = Engine(
    name="mcem",
    verb="fit",
    likelihoods=(Poisson,),
    options=MCEM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
