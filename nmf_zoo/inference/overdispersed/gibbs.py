"""Gibbs sampling for negative binomial data: multipliers and sources, each factor, moves, the dispersion.

With x | g ~ Poisson(g m), g ~ Gamma(alpha, alpha), m = e (W H) + b and C the sources of the counts, a sweep draws::

    g_fn ~ Gamma(alpha + x, alpha + m)
    C_f.n ~ Multinomial(x, w_f * h_n / (w_f . h_n + b / e))
    w_fk ~ Gamma(a_w + sum_n C, r_w + sum_n g e h_kn)
    g and C anew, at the new W, then    h_kn ~ Gamma(a_h + sum_f C, r_h + sum_f g e w_fk)
    scale and shear along the orbit of equal W H, as for Poisson counts
    alpha ~ p(alpha | X, W H), the multipliers summed over, entry by entry by slice sampling of its logarithm
    hyperparameters of the factors, as for Poisson counts

The moves and alpha see the density with g and C summed over, and nothing uses the old g and C after them: a partially
collapsed sampler in an order that keeps the posterior (van Dyk and Park 2008). Neither g nor C is stored, one cell is
drawn after the other; a sweep takes time in features x samples x components, twice.

A multiplier that is drawn holds its cell's mean where it is: of what a count of mean m says of m, g leaves the share
alpha / (alpha + m) to be drawn, and cells of large means creep. Where `Gibbs.trajectories` says so, and once the
warm-up has adapted it, a sweep is therefore a Hamiltonian trajectory of every row of H given W, then of W given H, of
the density with g and C summed over (:mod:`nmf_zoo.kernels.overdispersed.rows`), and what follows the factors above.
One sweep in twenty draws multipliers and sources as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import (
    Gibbs,
    GibbsInfo,
    TrajectoryInfo,
    check_allocation,
    draw_side,
    movable,
    move_along_orbit,
    restore_known,
)
from nmf_zoo.inference.overdispersed.cells import Pieces
from nmf_zoo.inference.overdispersed.dispersion import alpha_of, log_likelihood_of, log_prior_of, takes_ties
from nmf_zoo.inference.overdispersed.rows import cells_of_rows
from nmf_zoo.inference.overdispersed.trajectories import (
    Sides,
    given,
    make_sides,
    make_workspaces,
    run_trajectories,
    tuning_of,
)
from nmf_zoo.inference.shared.factor_view import PriorCells, as_variables, impute, prior_cells, two_sides
from nmf_zoo.inference.shared.hyperparameter_draws import Hyperparameters, draw_hyperparameters, lay_out_hyperparameters
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import COUNTS, takes_gammas, takes_scale
from nmf_zoo.inference.shared.slice_sampling import slice_draw
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.counts.sweeps import ORBIT_EVERY, apply_scales
from nmf_zoo.kernels.hmc.adaptation import Tuning, begin_sweep, end_sweep
from nmf_zoo.kernels.overdispersed.multipliers import CellsOfRows, RowSums, draw_sums
from nmf_zoo.kernels.random.keyed_rng import children, generator_of
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import Engine, Verdict, has_data, usual_sweep
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, NegativeBinomial, broadcast

SOURCES_OF_W, SOURCES_OF_H, WEIGHTS, ACTIVATIONS, ORBIT, DISPERSION, HYPERPARAMETERS, TRAJECTORIES, MOVES = range(9)
OF_ALPHA = 0.2  # iterations of VB, which knows a law of alpha by nodes, in the time of a sweep


class DispersedGibbsState(NamedTuple):
    """W (F, K), Ht (N, K), the unknown dispersion and hyperparameters by name, and what trajectories learnt."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    tuning: Tuning | None


@dataclass(frozen=True)
class DispersedGibbsProblem:
    """What all chains share; ``sides`` are the data by row where trajectories run, else None."""

    structure: Factorisation
    options: Gibbs
    hyperparameters: Hyperparameters | None
    pieces: Pieces
    cells: tuple[CellsOfRows, CellsOfRows]
    checked: tuple[Array, Array]
    sides: Sides | None
    workers: Workers

    @property
    def draws(self) -> tuple[bool, bool]:
        """Whether W and H are drawn."""
        return not self.structure.W.is_fixed, not self.structure.H.is_fixed


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Gamma factors, or known ones, and a dispersion that is known or has a proper prior."""
    asked = has_data(structure) and takes_gammas(structure) and takes_ties(structure) and is_proper(structure)
    if not asked:
        return asked
    if options.temperatures is not None:
        return Verdict("temperatures=, and replicas are exchanged of poisson counts alone: leave it out")
    return takes_scale(structure, "allocation", *COUNTS)


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> DispersedGibbsProblem:
    """The cells by rows of either side."""
    return DispersedGibbsProblem(
        structure=structure,
        options=options,
        hyperparameters=lay_out_hyperparameters(structure, options.moves),
        pieces=Pieces(structure),
        cells=(cells_of_rows(structure, by_features=True), cells_of_rows(structure, by_features=False)),
        checked=checked_cells(structure.shape),
        sides=make_sides(structure, options),
        workers=workers,
    )


def init(problem: DispersedGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> DispersedGibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start)
    tuning = None if problem.sides is None else tuning_of(problem.structure, problem.sides)
    return DispersedGibbsState(W, Ht, start_hyperparameters(problem.structure, start), tuning)


def step(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, key: np.uint64
) -> tuple[DispersedGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep, in place."""
    return _sweep(problem, state, key, is_tuning=False)


def tune(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, key: np.uint64
) -> tuple[DispersedGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    return _sweep(problem, state, key, is_tuning=True)


def _sweep(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, key: np.uint64, is_tuning: bool
) -> tuple[DispersedGibbsState, GibbsInfo | TrajectoryInfo]:
    priors, keys = prior_cells(problem.structure, state.values), children(key, MOVES + 1)
    info: GibbsInfo | TrajectoryInfo
    if problem.sides is None:
        info = GibbsInfo(_draw_by_sources(problem, state, priors, keys))
    else:
        info = _move_rows(problem, state, priors, keys, is_tuning)
    draw_dispersion(problem, state, keys[DISPERSION])
    scale = draw_hyperparameters(problem.hyperparameters, state.W, state.Ht, state.values, keys[HYPERPARAMETERS])
    if scale is not None:
        apply_scales(state.W, state.Ht, scale)
    return state, info


def _move_rows(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, priors: PriorCells, keys: Array, is_tuning: bool
) -> TrajectoryInfo:
    """A sweep with trajectories; in the warm-up plain at first."""
    sides, tuning, scale_move = problem.sides, state.tuning, 0.0
    assert sides is not None
    assert tuning is not None
    what = begin_sweep(tuning, is_tuning, ORBIT_EVERY)
    if what.allocates:
        scale_move = _draw_by_sources(problem, state, priors, keys)
    lengths = float(tuning.W.length[0]), float(tuning.H.length[0])
    own = given(sides, priors, alpha_of(problem.structure, state.values))
    workspaces, factors = make_workspaces(own, priors), (state.W, state.Ht)
    chances = run_trajectories(own, workspaces, factors, priors, problem.draws, tuning, what, keys[TRAJECTORIES])
    if what.moves and all(problem.draws):
        scale_move = move_along_orbit(problem.options.moves, state, priors, keys[MOVES])
    end_sweep(tuning, own, workspaces, is_tuning)
    return TrajectoryInfo(scale_move, *chances, *lengths)


def _draw_by_sources(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, priors: PriorCells, keys: Array
) -> float:
    """Multipliers, sources, factors and moves; returns the size of the scale move."""
    structure = problem.structure
    of_sides = (
        (priors.shape_w, priors.rate_w, WEIGHTS, SOURCES_OF_W),
        (priors.shape_h, priors.rate_h, ACTIVATIONS, SOURCES_OF_H),
    )
    for which, (side, (shape, rate, own, sources)) in enumerate(zip(two_sides(structure), of_sides, strict=True)):
        if not side.is_fixed:
            sums = sums_of(problem, state, which, keys[sources])
            out = state.Ht if side.is_right else state.W
            draw_side(problem.workers, out, (shape, sums.counts), (rate, sums.weight), keys[own])
            restore_known(side.factor, side.turn(out))
    if not all(problem.draws):
        return 0.0
    return move_along_orbit(problem.options.moves, state, priors, keys[ORBIT], movable(structure))


def sums_of(problem: DispersedGibbsProblem, state: DispersedGibbsState, which: int, key: np.uint64) -> RowSums:
    """Counts and weights of one factor's rows, of multipliers and sources that are drawn and forgotten."""
    factors = (state.Ht, state.W) if which else (state.W, state.Ht)
    sums, cells = RowSums(np.empty_like(factors[0]), np.empty_like(factors[0])), problem.cells[which]
    alpha = alpha_of(problem.structure, state.values)
    of_rows, of_columns = (np.ones((1, 1)), alpha) if alpha.shape[1] > 1 else (alpha, np.ones((1, 1)))
    sides = (of_columns, of_rows) if which else (of_rows, of_columns)
    alphas = tuple(np.array(broadcast(own.ravel(), rows.shape[:1])) for own, rows in zip(sides, factors, strict=True))
    failures = problem.workers.map_rows(
        lambda first, last: draw_sums(sums, cells, factors, alphas, first, last, key), factors[0]
    )
    check_allocation(sum(failures))
    return sums


def draw_dispersion(problem: DispersedGibbsProblem, state: DispersedGibbsState, key: np.uint64) -> None:
    """Each entry of an unknown alpha, given W H alone, in place of its entry in ``values``."""
    for unknown in problem.structure.likelihood.unknowns:
        of_data, of_prior = log_likelihood_of(problem.pieces, state.W, state.Ht), log_prior_of(unknown, True)

        def log_density(log_alpha: Array) -> Array:
            alpha = np.exp(log_alpha)
            return of_data(alpha) + of_prior(alpha)  # noqa: B023

        start = np.log(alpha_of(problem.structure, state.values))
        drawn = np.exp(slice_draw(log_density, start, generator_of(key)))
        state.values[unknown.name] = drawn.reshape(unknown.variable_shape)


def draw(
    problem: DispersedGibbsProblem, state: DispersedGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure = problem.structure
    values = as_variables(structure, state.W, state.Ht) | {name: own.copy() for name, own in state.values.items()}
    if structure.imputed is not None:
        generators = [generator_of(key)]
        values[structure.imputed.name] = impute(structure, state.W[None], state.Ht[None], generators, values)[0]
    mean = followed_means(state.W, state.Ht, problem.checked)
    return values, {"lp": np.float64(structure.log_joint(values)), "mean": mean}


def sweep_in_iterations(structure: Factorisation) -> float:
    """Of an unknown alpha VB goes over the cells once per node of its law."""
    return OF_ALPHA if structure.likelihood.unknowns else usual_sweep(structure)


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(NegativeBinomial,),
    takes_known=True,
    projects=2,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    sweep_in_iterations=sweep_in_iterations,
)
