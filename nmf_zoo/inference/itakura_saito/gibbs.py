"""Gibbs sampling of the composite model of a power spectrogram (Fevotte, Cemgil 2009), with exact moves beside it.

With p = x / exposure and c_fkn the components whose sum has the power p_fn, one sweep draws in this order::

    |c_fkn|^2            given p, W, H: jointly complex Gaussian given their sum      only where p was observed
    h_kn ~ InverseGamma(a_h + #f, b_h + sum_f |c_fkn|^2 / w_fk)
    w_fk ~ InverseGamma(a_w + #n, b_w + sum_n |c_fkn|^2 / h_kn)
    scale  w_k -> c w_k, h_k -> h_k / c            c generalised inverse Gaussian
    shear  w_k -> w_k + e w_j, h_j -> h_j - e h_k  e by slice sampling, all ordered pairs
    hyperparameters with a proper prior            slice sampling on the log scale

#f and #n count observed cells; a background is one more component, drawn and forgotten. A factor without a prior has
shape -1 and scale 0 in these conditionals. Scale and shear leave W H alone, and so the likelihood: they draw from the
prior along directions that the data cannot see. The shear changes the powers of the components, so it comes after the
factors and before the next powers, which are drawn, never replaced by their expectation. See
:mod:`nmf_zoo.kernels.composite`.

Sharing powers out mixes slowly. Unless `Gibbs.trajectories` is "never", and once the warm-up has adapted it, a sweep is
therefore a Hamiltonian trajectory of every row of H given W, and exchanges of its components, then the same of W given
H (:mod:`nmf_zoo.kernels.power_rows`), and the moves; each leaves the same posterior invariant. One sweep in twenty
shares powers out as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.inference.blocks import Block
from nmf_zoo.inference.engine import DRAW, STEPS, Engine
from nmf_zoo.inference.gibbs import Gibbs, GibbsInfo, WalkInfo
from nmf_zoo.inference.heap import release
from nmf_zoo.inference.itakura_saito.gibbs_steps import (
    ByComponent,
    Frames,
    GibbsState,
    cut_frames,
    draw_by_components,
    draw_imputed,
    given_powers,
    log_likelihood_of,
    log_priors,
    move_along_orbit,
    priors_by_component,
)
from nmf_zoo.inference.itakura_saito.gibbs_support import supports
from nmf_zoo.inference.itakura_saito.spectra import read_spectra
from nmf_zoo.inference.itakura_saito.trajectories import (
    log_normalisers,
    make_kept,
    make_room,
    make_side_rooms,
    make_sides,
    make_tuning,
    walk_in_threads,
)
from nmf_zoo.inference.scale_moves import draw_scale_moves
from nmf_zoo.inference.slice_sampling import draw_hyperparameters
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.cells import rates_at_cells
from nmf_zoo.kernels.composite import LEAST, MOST, Given, apply_scales
from nmf_zoo.kernels.power_sweeps import (
    HYPERPARAMETERS,
    ORBIT,
    TRAJECTORIES,
    Kept,
    Plan,
    PowerSide,
    PowerSweeps,
    is_moving_along_orbit,
    keep,
    run_sweeps,
)
from nmf_zoo.kernels.streams import child, children
from nmf_zoo.kernels.tuning import end_sweep, freeze, is_allocating
from nmf_zoo.results import checked_cells
from nmf_zoo.structure import Array, Exponential, Factorisation


@dataclass(frozen=True)
class Problem:
    """What all chains share.

    ``constant`` of log p(X | W, H); ``priors`` and ``given`` are None when hyperparameters are drawn; ``draws`` says
    whether W and H are; ``checked`` are the cells of ``mean``; ``sides`` are the data by row where trajectories run,
    else None; ``sweeps`` is what a small problem with known hyperparameters needs to sweep without Python, else None.
    """

    structure: Factorisation
    options: Gibbs
    frames: Frames
    constant: float
    priors: ByComponent | None
    given: Given | None
    draws: tuple[bool, bool]
    checked: tuple[Array, Array]
    sides: tuple[PowerSide, PowerSide] | None
    sweeps: PowerSweeps | None


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> Problem:
    """Lay out the spectrogram for the sweeps."""
    spectra, constant = read_spectra(structure)
    priors = None if structure.unknowns else priors_by_component(structure, {})
    given = None if priors is None else given_powers(priors, spectra)
    frames, checked = cut_frames(spectra, structure.rank, workers), checked_cells(structure.shape)
    draws = not structure.W.is_fixed, not structure.H.is_fixed
    sides = None if options.trajectories == "never" else make_sides(spectra)
    sweeps = None
    if priors is not None and given is not None and len(frames.chunks) == 1:
        scales, shears = (all(draws) and move in options.moves for move in ("scale", "shear"))
        plan = Plan(*draws, scales, shears and structure.rank > 1, sides is not None)
        sweeps = PowerSweeps(plan, spectra, given, priors, checked, sides or make_sides(spectra))
    release(structure)
    return Problem(
        structure=structure,
        options=options,
        frames=frames,
        constant=constant,
        priors=priors,
        given=given,
        draws=draws,
        checked=checked,
        sides=sides,
        sweeps=sweeps,
    )


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> GibbsState:
    """The start given, or a random one at the scale of the data.

    A known factor's zeros become `LEAST`: what is drawn there is the prior's, and adds nothing that could be heard.
    """
    W, Ht = (np.clip(factor, LEAST, MOST) for factor in start_factors(problem.structure, key, start))
    values = start_hyperparameters(problem.structure, start)
    sides = problem.sides if problem.sweeps is None else problem.sweeps.sides
    tuning = None if sides is None else make_tuning(sides, W.shape[1])
    return GibbsState(np.ascontiguousarray(W.T), Ht, values, tuning)


def step(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | WalkInfo]:
    """One sweep."""
    return _sweep(problem, state, key, is_tuning=False)


def tune(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo | WalkInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    return _sweep(problem, state, key, is_tuning=True)


def _sweep(problem: Problem, state: GibbsState, key: np.uint64, is_tuning: bool):
    structure, factors, sweeps, tuning = problem.structure, state.factors, problem.sweeps, state.tuning
    if sweeps is not None:
        room, block = (make_room(sweeps, factors), make_kept(sweeps, factors, 0)), (0, 1, 0, 0, is_tuning)
        return state, _info(problem, run_sweeps(sweeps, factors, tuning, *room, block, np.array([key])))
    priors = problem.priors or priors_by_component(structure, state.values)
    given = problem.given or given_powers(priors, problem.frames.spectra)
    moves, scale_move = problem.options.moves if all(problem.draws) else (), 0.0
    if tuning is not None and not is_tuning:
        freeze(tuning)
    if tuning is None or is_allocating(tuning):
        draw_by_components(problem.frames, factors, given, problem.draws, key)
        scale_move = move_along_orbit(moves, factors, given, priors, key)
    info: tuple[float, ...] = (scale_move,)
    if problem.sides is not None:
        lengths = float(tuning.W.length[0]), float(tuning.H.length[0])
        rooms, own = make_side_rooms(problem.sides, priors), child(key, TRAJECTORIES)
        data = problem.sides, rooms, problem.frames.workers
        chances = walk_in_threads(*data, problem.draws, factors, tuning, is_tuning, own)
        if is_moving_along_orbit(tuning):
            scale_move = move_along_orbit(moves, factors, given, priors, child(key, ORBIT))
        end_sweep(tuning, problem.sides, rooms, is_tuning)
        info = scale_move, *chances, *lengths
    if structure.unknowns:
        generator = np.random.Generator(np.random.Philox(key=int(child(key, HYPERPARAMETERS))))
        draw_hyperparameters(structure, state.Wt.T, state.Ht.T, state.values, generator)
        if "scale" in moves:
            for scale in draw_scale_moves(structure, state.Wt.T, state.Ht.T, state.values, generator):
                apply_scales(factors, scale)
    return state, _info(problem, info)


def _info(problem: Problem, numbers: tuple[float, ...]) -> GibbsInfo | WalkInfo:
    return GibbsInfo(numbers[0]) if problem.sides is None else WalkInfo(*numbers)


def draw(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, factors = problem.structure, state.factors
    if problem.sweeps is not None:
        kept = make_kept(problem.sweeps, factors, 1)
        keep(problem.sweeps, factors, make_room(problem.sweeps, factors), kept, 0)
        values, stats = _collect(problem, kept, [key])
        return {name: value[0] for name, value in values.items()}, {name: stats[name][0] for name in ("lp", "mean")}
    W, H = np.ascontiguousarray(state.Wt.T), state.Ht.T
    pairs = (structure.W, W), (structure.H, H)
    values = {factor.name: factor.orient(array) for factor, array in pairs if not factor.is_fixed} | state.values
    if structure.imputed is not None:
        values[structure.imputed.name] = draw_imputed(structure, W, H, key)
    rows, cols = problem.checked
    mean = np.empty(len(rows))
    rates_at_cells(mean, W, state.Ht, rows, cols)
    lp = problem.constant + log_likelihood_of(problem.frames, factors) + log_priors(structure, W, H, values)
    return values, {"lp": np.float64(lp), "mean": mean}


def run(
    problem: Problem, state: GibbsState, key: np.uint64, block: Block
) -> tuple[GibbsState, dict[str, Array], dict[str, Array]] | None:
    """The sweeps of a block in one compiled call, and their draws; None where sweeps must go step by step."""
    sweeps, factors = problem.sweeps, state.factors
    if sweeps is None:
        return None
    kept, room = make_kept(sweeps, factors, block.kept), make_room(sweeps, factors)
    steps = children(child(key, STEPS), block.stop)[block.first :]
    run_sweeps(sweeps, factors, state.tuning, room, kept, tuple(block), steps)
    keys = [child(key, DRAW, sweep) for sweep in range(block.first, block.stop) if block.keeps(sweep)]
    return state, *(_collect(problem, kept, keys) if keys else ({}, {}))


def _collect(problem: Problem, kept: Kept, keys: list[np.uint64]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables and statistics of the kept sweeps of a small problem; ``keys`` are the draws' streams."""
    structure, H = problem.structure, np.swapaxes(kept.Ht, -1, -2)
    pairs = (structure.W, kept.W), (structure.H, H)
    values = {factor.name: factor.orient(array) for factor, array in pairs if not factor.is_fixed}
    assert problem.priors is not None
    lp = kept.lp + problem.constant + log_normalisers(problem.priors)
    if structure.imputed is not None:
        imputed = [draw_imputed(structure, *draw) for draw in zip(kept.W, H, keys, strict=True)]
        values[structure.imputed.name] = np.array(imputed)
        lp += [
            structure.log_imputed(W, H_, {structure.imputed.name: cells})
            for W, H_, cells in zip(kept.W, H, imputed, strict=True)
        ]
    infos = dict(zip((GibbsInfo if problem.sides is None else WalkInfo)._fields, kept.infos.T, strict=False))
    return values, {**infos, "lp": lp, "mean": kept.mean}


ENGINE = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Exponential,),
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    run=run,
)
