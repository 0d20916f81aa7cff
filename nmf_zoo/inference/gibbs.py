"""Gibbs sampling for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 2), with exact moves beside it.

With C[f, k, n] the sources of a count, X = sum_k C, one sweep draws in this order::

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n))            only where x_fn > 0 and observed
    w_fk ~ Gamma(a_w + sum_n C, r_w + sum_n M_fn h_kn)
    h_kn ~ Gamma(a_h + sum_f C, r_h + sum_f M_fn w_fk)
    scale  w_k -> c w_k, h_k -> h_k / c            c generalised inverse Gaussian
    shear  w_k -> w_k + e w_j, h_j -> h_j - e h_k  e by slice sampling, all ordered pairs
    hyperparameters with a proper prior            slice sampling on the log scale
    unknown scales of a prior with their factor    slice sampling (see ``scale_moves.py``)

M is the mask times the exposure; a background is one more source that belongs to no component. A factor without a
prior has shape 1 and rate 0 in these conditionals. Scale and shear leave W H alone, and so the likelihood: they draw
from the prior along directions that the data cannot see. The shear changes the allocation, so it comes after H and
before the next C.

Allocating counts mixes slowly where they are large or few. Where `Gibbs.trajectories` says so, and once the warm-up has
adapted it, a sweep is therefore a Hamiltonian trajectory of every row of H given W, then of W given H (in
``nmf_zoo/kernels/row_trajectories.py``), and the moves; each leaves the same posterior invariant. One sweep in twenty
allocates as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.blocks import Block
from nmf_zoo.inference.engine import DRAW, STEPS, Engine
from nmf_zoo.inference.gibbs_steps import GibbsState, check_allocation, draw_side, draw_sources, move_along_orbit
from nmf_zoo.inference.gibbs_support import supports
from nmf_zoo.inference.heap import release
from nmf_zoo.inference.joint import LogJoint
from nmf_zoo.inference.layout import Layout, Weights, by_count, compress, weigh
from nmf_zoo.inference.prior_cells import PriorCells, prior_cells
from nmf_zoo.inference.scale_moves import draw_scale_moves
from nmf_zoo.inference.slice_sampling import draw_hyperparameters
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.sweeps import imputed_cells, is_small, make_kept, make_room, make_sweeps, with_priors
from nmf_zoo.inference.trajectories import has_masses, make_tuning, walks_pay
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.cells import rates_at_cells
from nmf_zoo.kernels.denominators import weigh_features, weigh_samples
from nmf_zoo.kernels.streams import child, children
from nmf_zoo.kernels.sweeps import (
    ACTIVATIONS,
    HYPERPARAMETERS,
    ORBIT,
    SOURCES,
    TRAJECTORIES,
    WEIGHTS,
    Cells,
    Factors,
    Kept,
    Sweeps,
    apply_scales,
    draw_cells,
    keep,
    run_sweeps,
    walk,
)
from nmf_zoo.kernels.tuning import end_sweep, freeze, is_allocating, is_moving_along_orbit
from nmf_zoo.options import check_types
from nmf_zoo.results import checked_cells
from nmf_zoo.structure import Array, Factorisation, Poisson

MOVES = ("scale", "shear")
TRAJECTORY_WORDS = ("auto", "always", "never")


class GibbsInfo(NamedTuple):
    """scale_move: root mean square of log c over the components, 0 without the move."""

    scale_move: float


class WalkInfo(NamedTuple):
    """The same where trajectories run: their mean acceptance probabilities (NaN before they do) and leapfrog steps."""

    scale_move: float
    accept_W: float
    accept_H: float
    n_steps_W: float
    n_steps_H: float


@dataclass(frozen=True, kw_only=True)
class Gibbs:
    """Options of Gibbs sampling.

    Attributes
    ----------
    moves : which moves along the orbit follow each sweep: any of "scale" and "shear". They need both factors unknown.
        "scale" also moves an unknown mean, rate or scale of a prior together with its factor.
        Powers have the same two, under inverse-gamma priors; beside trajectories they follow every tenth sweep.
    trajectories : where Hamiltonian trajectories take over once the warm-up has adapted them: "auto" where there are
        enough counts for the cells of W and H (about 0.7 each with prior shapes of 1, and more with smaller shapes),
        "always" on any, "never". Tables with more than 262,144 filled cells go without. Where the data are powers,
        "auto" is "always", and nothing goes without.
    """

    moves: tuple[str, ...] = MOVES
    trajectories: Literal["auto", "always", "never"] = "auto"

    def __post_init__(self):
        check_types(self)
        given = (self.moves,) if isinstance(self.moves, str) else self.moves
        wrong = [move for move in given if move not in MOVES] if isinstance(given, Sequence) else given
        if wrong or not isinstance(given, Sequence):
            raise InputError("moves", repr(wrong), f"a selection of {list(MOVES)}; () for none")
        if self.trajectories not in TRAJECTORY_WORDS:
            raise InputError("trajectories", repr(self.trajectories), f"one of {list(TRAJECTORY_WORDS)}")
        object.__setattr__(self, "moves", tuple(given))


@dataclass(frozen=True)
class Problem:
    """What all chains share.

    ``priors`` is None when hyperparameters are drawn; ``checked`` are the cells of ``mean``; ``sweeps`` is what a
    small problem needs to sweep without Python, or for trajectories, else None. With unknown hyperparameters its priors
    are a guess that every sweep replaces.
    """

    structure: Factorisation
    options: Gibbs
    layout: Layout
    order: Array
    weights: Weights
    workers: Workers
    log_joint: LogJoint
    priors: PriorCells | None
    checked: tuple[Array, Array]
    imputed: Cells
    sweeps: Sweeps | None

    @property
    def compiled(self) -> Sweeps | None:
        """What sweeps need to follow each other without Python; None where they can't."""
        return None if self.priors is None else self.sweeps

    @property
    def walks(self) -> bool:
        """Whether trajectories run."""
        return self.sweeps is not None and self.sweeps.plan.walks

    def over_samples(self, Ht: Array) -> Array:
        """sum_n weight_fn h_kn, by the kernel that a small problem's sweeps use."""
        if self.sweeps is None:
            return self.weights.over_samples(Ht)
        out = np.empty((self.structure.shape[0], Ht.shape[1]))
        weigh_samples(out, self.sweeps.weights, Ht)
        return out

    def over_features(self, W: Array) -> Array:
        """sum_f weight_fn w_fk"""
        if self.sweeps is None:
            return self.weights.over_features(W)
        out = np.empty((self.structure.shape[1], W.shape[1]))
        weigh_features(out, self.sweeps.weights, W)
        return out


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> Problem:
    """Lay out the data for the sweeps."""
    layout, weights = compress(structure), weigh(structure)
    values = start_hyperparameters(structure, {})
    priors, asked = prior_cells(structure, values), options.trajectories
    checked, sweeps = checked_cells(structure.shape), None
    walks = asked == "always" or (asked == "auto" and walks_pay(structure, layout, values))
    if (walks or not values) and is_small(layout, weights, walks):
        sweeps = make_sweeps(structure, options.moves, walks, layout, weights, priors, checked)
    order = by_count(layout)
    release(structure)
    return Problem(
        structure=structure,
        options=options,
        layout=layout,
        order=order,
        weights=weights,
        workers=workers,
        log_joint=LogJoint(structure, layout, weights, workers),
        priors=None if values else priors,
        checked=checked,
        imputed=imputed_cells(structure),
        sweeps=sweeps,
    )


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> GibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start)
    values = start_hyperparameters(problem.structure, start)
    sides = None if problem.sweeps is None else problem.sweeps.sides
    tuning = None if sides is None else make_tuning(sides, has_masses(problem.structure))
    return GibbsState(W, Ht, values, np.zeros_like(W), np.zeros_like(Ht), tuning)


def step(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | WalkInfo]:
    """One sweep."""
    return _sweep(problem, state, key, is_tuning=False)


def tune(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | WalkInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    return _sweep(problem, state, key, is_tuning=True)


def _sweep(problem: Problem, state: GibbsState, key: np.uint64, is_tuning: bool):
    if problem.sweeps is None or state.tuning is None or not problem.walks:
        return state, GibbsInfo(_draw_by_sources(problem, state, key))
    sweeps, tuning, scale_move = problem.sweeps, state.tuning, 0.0
    if not is_tuning:
        freeze(tuning)
    if is_allocating(tuning):
        scale_move = _draw_by_sources(problem, state, key)
    if problem.priors is None:
        sweeps = with_priors(sweeps, prior_cells(problem.structure, state.values))
    lengths = float(tuning.W.length[0]), float(tuning.H.length[0])
    factors = _factors(state)
    room = make_room(sweeps, factors)
    of_W, of_H = walk(sweeps, factors, tuning, room, is_tuning, child(key, TRAJECTORIES))
    if is_moving_along_orbit(tuning) and sweeps.plan.draws_W and sweeps.plan.draws_H:
        scale_move = move_along_orbit(problem.options.moves, state, sweeps.priors, child(key, ORBIT))
    end_sweep(tuning, sweeps.sides, room.sides, is_tuning)
    _draw_unknowns(problem, state, child(key, TRAJECTORIES, HYPERPARAMETERS))
    return state, WalkInfo(scale_move, of_W, of_H, *lengths)


def _factors(state: GibbsState) -> Factors:
    return Factors(state.W, state.Ht, state.of_features, state.of_samples)


def _draw_by_sources(problem: Problem, state: GibbsState, key: np.uint64) -> float:
    """Counts by source, factors, moves and hyperparameters; returns the size of the scale move."""
    structure = problem.structure
    keys = children(key, HYPERPARAMETERS + 1)
    priors = problem.priors or prior_cells(structure, state.values)
    draw_sources(problem.layout, problem.order, problem.workers, state, keys[SOURCES])
    if not structure.W.is_fixed:
        counts, weight = state.of_features, problem.over_samples(state.Ht)
        draw_side(problem.workers, state.W, (priors.shape_w, counts), (priors.rate_w, weight), keys[WEIGHTS])
    if not structure.H.is_fixed:
        counts, weight = state.of_samples, problem.over_features(state.W)
        draw_side(problem.workers, state.Ht, (priors.shape_h, counts), (priors.rate_h, weight), keys[ACTIVATIONS])
    scale_move = 0.0
    if not structure.W.is_fixed and not structure.H.is_fixed:
        scale_move = move_along_orbit(problem.options.moves, state, priors, key)
    _draw_unknowns(problem, state, keys[HYPERPARAMETERS])
    return scale_move


def _draw_unknowns(problem: Problem, state: GibbsState, key: np.uint64) -> None:
    """Draw the unknown hyperparameters, and move those that scale a factor together with it."""
    if not problem.structure.unknowns:
        return
    generator = np.random.Generator(np.random.Philox(key=int(key)))
    given = problem.structure, state.W, state.Ht.T, state.values, generator
    draw_hyperparameters(*given)
    if "scale" in problem.options.moves:
        for scale in draw_scale_moves(*given):
            apply_scales(state.W, state.Ht, scale)


def draw(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    factors = _factors(state)
    if problem.compiled is not None:
        sweeps = problem.compiled
        kept = make_kept(sweeps, factors, 1)
        keep(sweeps, factors, make_room(sweeps, factors), kept, 0, key)
        values, stats = _collect(problem, kept)
        return {name: value[0] for name, value in values.items()}, {name: stats[name][0] for name in ("lp", "mean")}
    imputed = np.empty(len(problem.imputed.rows), np.int64)
    draw_cells(imputed, state.W, state.Ht, problem.imputed, key)
    values = _variables(problem.structure, state.W, state.Ht, imputed) | state.values
    rows, cols = problem.checked
    mean = np.empty(len(rows))
    rates_at_cells(mean, state.W, state.Ht, rows, cols)
    return values, {"lp": np.float64(problem.log_joint(state.W, state.Ht, values)), "mean": mean}


def _variables(structure: Factorisation, W: Array, Ht: Array, imputed: Array) -> dict[str, Array]:
    """The model's variables from a draw or a stack of draws."""
    values: dict[str, Array] = {}
    for factor, array in ((structure.W, W), (structure.H, np.swapaxes(Ht, -1, -2))):
        if not factor.is_fixed:
            values[factor.name] = factor.orient(array)
    if structure.imputed is not None:
        if np.any(imputed < 0):
            raise RunFailed(f"gibbs: the mean of a missing cell of {structure.imputed.name} is too large to draw it")
        values[structure.imputed.name] = imputed
    return values


def run(
    problem: Problem, state: GibbsState, key: np.uint64, block: Block
) -> tuple[GibbsState, dict[str, Array], dict[str, Array]] | None:
    """The sweeps of a block in one compiled call, and their draws; None where sweeps must go step by step."""
    sweeps, factors = problem.compiled, _factors(state)
    if sweeps is None:
        return None
    kept = make_kept(sweeps, factors, block.kept)
    keys = child(key, STEPS), child(key, DRAW)
    check_allocation(run_sweeps(sweeps, factors, state.tuning, make_room(sweeps, factors), kept, tuple(block), keys))
    return state, *(_collect(problem, kept) if len(kept.lp) else ({}, {}))


def _collect(problem: Problem, kept: Kept) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables and statistics of the kept sweeps of a small problem."""
    values = _variables(problem.structure, kept.W, kept.Ht, kept.imputed)
    lp = problem.log_joint.complete(kept.lp, kept.W, kept.Ht, values)
    infos = dict(zip((WalkInfo if problem.walks else GibbsInfo)._fields, kept.infos.T, strict=False))
    return values, {**infos, "lp": lp, "mean": kept.mean}


ENGINE = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Poisson,),
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    run=run,
)
