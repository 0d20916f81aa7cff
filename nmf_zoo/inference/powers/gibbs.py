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
:mod:`nmf_zoo.kernels.powers.composite`.

Sharing powers out mixes slowly. Unless `Gibbs.trajectories` is "never", and once the warm-up has adapted it, a sweep is
therefore a Hamiltonian trajectory of every row of H given W, and exchanges of its components, then the same of W given
H (:mod:`nmf_zoo.kernels.hmc.power_rows`), and the moves; each leaves the same posterior invariant. One sweep in twenty
shares powers out as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs, GibbsInfo, TrajectoryInfo
from nmf_zoo.inference.counts.sweeps import make_kept
from nmf_zoo.inference.powers.spectra import Spectra, read_spectra
from nmf_zoo.inference.powers.trajectories import (
    ByComponent,
    log_normalisers,
    make_side_workspaces,
    make_sides,
    make_tuning,
    make_workspace,
    run_in_threads,
)
from nmf_zoo.inference.shared.factor_view import Side, as_variables, impute, two_sides
from nmf_zoo.inference.shared.hyperparameter_draws import Hyperparameters, draw_hyperparameters, lay_out_hyperparameters
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import knows_weights_only, takes_inverse_gammas, takes_powers
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.compile.ahead import Call
from nmf_zoo.kernels.hmc.adaptation import Kept, SweepPlan, begin_sweep, end_sweep
from nmf_zoo.kernels.powers import composite
from nmf_zoo.kernels.powers.composite import (
    LEAST,
    MOST,
    PowerConditionals,
    PowerFactors,
    apply_scales,
    draw_frames,
    draw_scales,
    draw_weights,
    log_likelihood,
    move_inverse_shears,
)
from nmf_zoo.kernels.powers.sweeps import (
    HYPERPARAMETERS,
    ORBIT,
    ORBIT_EVERY,
    POWERS,
    SCALES,
    SHEARS,
    TRAJECTORIES,
    WEIGHTS,
    PowerSide,
    PowerSweeps,
    keep,
    run_sweeps,
)
from nmf_zoo.kernels.random.keyed_rng import child, children, generator_of
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.engine import CAN_RUN, DRAW, STEPS, Engine, Verdict
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Array, Exponential, Factorisation


class PowerGibbsState(NamedTuple):
    """Wt (K, F), Ht (N, K), the hyperparameters by name, and what trajectories learnt."""

    Wt: Array
    Ht: Array
    values: dict[str, Array]
    tuning: Any

    @property
    def factors(self) -> PowerFactors:
        """The same factors, as the kernels take them."""
        return PowerFactors(self.Wt, self.Ht)


@dataclass(frozen=True)
class PowerGibbsProblem:
    """What all chains share.

    ``constant`` of log p(X | W, H); ``priors`` and ``given`` are None when hyperparameters are drawn; ``draws`` says
    whether W and H are, of W the ``free`` components; ``checked`` are the cells of ``mean``; ``sides`` are the data by
    row where trajectories run, else None; ``sweeps`` is what a small problem with known hyperparameters, and nothing
    known beside what is not, needs to sweep without Python, else None.
    """

    structure: Factorisation
    options: Gibbs
    frames: ChunkedFrames
    constant: float
    priors: ByComponent | None
    given: PowerConditionals | None
    draws: tuple[bool, bool]
    hyperparameters: Hyperparameters | None
    checked: tuple[Array, Array]
    sides: tuple[PowerSide, PowerSide] | None
    sweeps: PowerSweeps | None

    @property
    def free(self) -> slice:
        """The components of which nothing is known, where some are known."""
        return two_sides(self.structure)[0].free


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Powers with inverse-gamma (or proper flat) factors and proper hyperpriors."""
    if options.temperatures is not None:
        return Verdict("temperatures= is for counts: leave it out, or start='search' and say that it is one mode")
    checks = (takes_powers, takes_inverse_gammas, knows_weights_only, is_proper)
    return next((verdict for verdict in (check(structure) for check in checks) if not verdict), CAN_RUN)


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> PowerGibbsProblem:
    """Lay out the spectrogram for the sweeps."""
    spectra, constant = read_spectra(structure)
    priors = None if structure.unknowns else priors_by_component(structure, {})
    given = None if priors is None else given_powers(priors, spectra)
    frames, checked = cut_frames(spectra, structure.rank, workers), checked_cells(structure.shape)
    draws = not structure.W.is_fixed, not structure.H.is_fixed
    moves_rows = structure.W.known is None  # what is compiled moves whole rows
    sides = None if options.trajectories == "never" or not moves_rows else make_sides(spectra)
    sweeps = None
    if priors is not None and given is not None and len(frames.chunks) == 1 and moves_rows:
        scales, shears = (all(draws) and move in options.moves for move in ("scale", "shear"))
        plan = SweepPlan(*draws, scales, shears and structure.rank > 1, sides is not None)
        sweeps = PowerSweeps(plan, spectra, given, priors, checked, sides or make_sides(spectra))
    release(structure)
    return PowerGibbsProblem(
        structure=structure,
        options=options,
        frames=frames,
        constant=constant,
        priors=priors,
        given=given,
        draws=draws,
        hyperparameters=lay_out_hyperparameters(structure, options.moves),
        checked=checked,
        sides=sides,
        sweeps=sweeps,
    )


def init(problem: PowerGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> PowerGibbsState:
    """The start given, or a random one at the scale of the data.

    Known zeros become `LEAST`: what is drawn there is the prior's, and adds nothing that could be heard.
    """
    W, Ht = (np.clip(factor, LEAST, MOST) for factor in start_factors(problem.structure, key, start))
    values = start_hyperparameters(problem.structure, start)
    sides = problem.sides if problem.sweeps is None else problem.sweeps.sides
    tuning = None if sides is None else make_tuning(sides, W.shape[1])
    return PowerGibbsState(np.ascontiguousarray(W.T), Ht, values, tuning)


def step(
    problem: PowerGibbsProblem, state: PowerGibbsState, key: np.uint64
) -> tuple[PowerGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep."""
    return _sweep(problem, state, key, is_tuning=False)


def tune(
    problem: PowerGibbsProblem, state: PowerGibbsState, key: np.uint64
) -> tuple[PowerGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    return _sweep(problem, state, key, is_tuning=True)


def _sweep(problem: PowerGibbsProblem, state: PowerGibbsState, key: np.uint64, is_tuning: bool):
    structure, factors, sweeps, tuning = problem.structure, state.factors, problem.sweeps, state.tuning
    if sweeps is not None:
        workspace, kept = make_workspace(sweeps, factors), make_kept(structure, sweeps.followed, 0)
        block = (0, 1, 0, 0, is_tuning)
        return state, _info(problem, run_sweeps(sweeps, factors, tuning, workspace, kept, block, np.array([key])))
    priors = problem.priors or priors_by_component(structure, state.values)
    given = problem.given or given_powers(priors, problem.frames.spectra)
    moves, scale_move = problem.options.moves if all(problem.draws) else (), 0.0
    what = None if tuning is None else begin_sweep(tuning, is_tuning, ORBIT_EVERY)
    if what is None or what.allocates:
        draw_by_components(problem.frames, factors, given, problem.draws, key, problem.free)
        scale_move = move_free(moves, factors, given, priors, key, problem.free)
    info: tuple[float, ...] = (scale_move,)
    if what is not None and problem.sides is not None:
        lengths = float(tuning.W.length[0]), float(tuning.H.length[0])
        workspaces, own = make_side_workspaces(problem.sides, priors), child(key, TRAJECTORIES)
        data = problem.sides, workspaces, problem.frames.workers
        chances = run_in_threads(*data, problem.draws, factors, tuning, what, own)
        if what.moves:
            scale_move = move_along_orbit(moves, factors, given, priors, child(key, ORBIT))
        end_sweep(tuning, problem.sides, workspaces, is_tuning)
        info = scale_move, *chances, *lengths
    if problem.hyperparameters is not None:
        W, own = np.ascontiguousarray(state.Wt.T), child(key, HYPERPARAMETERS)
        scale = draw_hyperparameters(problem.hyperparameters, W, state.Ht, state.values, own)
        if scale is not None:
            apply_scales(factors, scale)
    return state, _info(problem, info)


def _info(problem: PowerGibbsProblem, numbers: tuple[float, ...]) -> GibbsInfo | TrajectoryInfo:
    return GibbsInfo(numbers[0]) if problem.sides is None else TrajectoryInfo(*numbers)


def draw(problem: PowerGibbsProblem, state: PowerGibbsState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, factors = problem.structure, state.factors
    if problem.sweeps is not None:
        kept = make_kept(problem.structure, problem.sweeps.followed, 1)
        keep(problem.sweeps, factors, make_workspace(problem.sweeps, factors), kept, 0)
        values, stats = _collect(problem, kept, [key])
        return {name: value[0] for name, value in values.items()}, {name: stats[name][0] for name in ("lp", "mean")}
    W, Ht = np.ascontiguousarray(state.Wt.T), state.Ht
    if structure.W.known is not None:
        W = structure.W.known.whole(structure.W.known.part(W))
    values = as_variables(structure, W, Ht) | state.values
    if structure.imputed is not None:
        values[structure.imputed.name] = impute(structure, W[None], Ht[None], [generator_of(key)])[0]
    mean = followed_means(W, Ht, problem.checked)
    lp = problem.constant + log_likelihood_of(problem.frames, factors) + log_priors(structure, W, Ht.T, values)
    return values, {"lp": np.float64(lp), "mean": mean}


def run(
    problem: PowerGibbsProblem, state: PowerGibbsState, key: np.uint64, block: Block
) -> tuple[PowerGibbsState, dict[str, Array], dict[str, Array]] | None:
    """The sweeps of a block in one compiled call, and their draws; None where sweeps must go step by step."""
    sweeps, factors = problem.sweeps, state.factors
    if sweeps is None:
        return None
    kept, workspace = make_kept(problem.structure, sweeps.followed, block.kept), make_workspace(sweeps, factors)
    steps = children(child(key, STEPS), block.stop)[block.first :]
    run_sweeps(sweeps, factors, state.tuning, workspace, kept, tuple(block), steps)
    keys = [child(key, DRAW, sweep) for sweep in range(block.first, block.stop) if block.keeps(sweep)]
    return state, *(_collect(problem, kept, keys) if keys else ({}, {}))


def _collect(
    problem: PowerGibbsProblem, kept: Kept, keys: list[np.uint64]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables and statistics of the kept sweeps of a small problem; ``keys`` are the draws' streams."""
    structure = problem.structure
    values = as_variables(structure, kept.W, kept.Ht)
    assert problem.priors is not None
    lp = kept.lp + problem.constant + log_normalisers(problem.priors)
    if structure.imputed is not None:
        imputed = impute(structure, kept.W, kept.Ht, map(generator_of, keys))
        values[structure.imputed.name] = imputed
        lp += [
            structure.log_imputed(W, Ht.T, {structure.imputed.name: cells})
            for W, Ht, cells in zip(kept.W, kept.Ht, imputed, strict=True)
        ]
    infos = dict(zip((GibbsInfo if problem.sides is None else TrajectoryInfo)._fields, kept.infos.T, strict=False))
    return values, {**infos, "lp": lp, "mean": kept.mean}


# -- the steps of a sweep on data of any size ------------------------------------------------------------------------


MOST_CHUNKS, CHUNK_CELLS = 8, 1 << 16  # cells times components; chunks depend on the data alone, not on the threads


class ChunkedFrames(NamedTuple):
    """The data in chunks of frames, and who works on them.

    Attributes
    ----------
    spectra : Spectra
    chunks : (first, last) frame of each
    workers : threads
    """

    spectra: Spectra
    chunks: list[tuple[int, int]]
    workers: Workers


def cut_frames(spectra: Spectra, rank: int, workers: Workers) -> ChunkedFrames:
    """Cut the frames into chunks, however many threads there are."""
    n_frames, n_frequencies = spectra.power.shape
    n_chunks = int(np.clip(n_frames * n_frequencies * rank // CHUNK_CELLS, 1, min(MOST_CHUNKS, max(n_frames, 1))))
    return ChunkedFrames(
        spectra, list(pairwise(n_frames * chunk // n_chunks for chunk in range(n_chunks + 1))), workers
    )


def priors_by_component(structure: Factorisation, values: Mapping[str, Array]) -> ByComponent:
    """The priors' cells, given the values of the unknown hyperparameters."""
    W, H = two_sides(structure)
    pairs = _prior_cells(W, structure.W.shape, values), _prior_cells(H, structure.H.shape[::-1], values)
    return ByComponent(*(np.array(cells.T, order="C") for pair in pairs for cells in pair))


def _prior_cells(side: Side, shape: tuple[int, int], values: Mapping[str, Array]) -> tuple[Array, Array]:
    """Shape and scale of every cell, (rows, K); of what is known those of a flat factor, which nobody uses."""
    pair = (-1.0, 0.0) if side.is_fixed else side.shape_and_scale(values)
    shapes, scales = (np.broadcast_to(cells, np.empty(shape)[:, side.free].shape) for cells in pair)
    return side.with_free(np.full(shape, -1.0), shapes), side.with_free(np.zeros(shape), scales)


def given_powers(priors: ByComponent, spectra: Spectra) -> PowerConditionals:
    """The factors' inverse gammas given the powers."""
    of_frequencies, of_frames = spectra.n_seen
    tilt = priors.shape_h.sum(axis=1) - priors.shape_w.sum(axis=1)
    shape_h, scale_h = (np.array(cells.T, order="C") for cells in (priors.shape_h, priors.scale_h))
    return PowerConditionals(
        priors.shape_w + of_frequencies, priors.scale_w, shape_h + of_frames[:, None], scale_h, tilt
    )


def draw_by_components(
    frames: ChunkedFrames,
    factors: PowerFactors,
    given: PowerConditionals,
    draws: tuple[bool, bool],
    key: np.uint64,
    free: slice = slice(None),
) -> None:
    """Powers of the components, H and W, in place; ``draws``: whether W and H are drawn, of W the ``free`` components.

    Chunks own their frames, and their sums for W are added in order.
    """
    of_weights, own = np.zeros_like(factors.Wt), child(key, POWERS)

    def draw_chunk(chunk: tuple[int, int]) -> Array:
        workspace = composite.make_workspace(*factors.Wt.shape)
        draw_frames(frames.spectra, factors, given, draws, chunk, workspace, own)
        return workspace.of_weights

    def add(sums: Array) -> None:
        np.add(of_weights, sums, out=of_weights)

    frames.workers.fold(draw_chunk, frames.chunks, add)
    if draws[0]:
        of_free = given._replace(shape_w=given.shape_w[free], scale_w=given.scale_w[free])
        draw_weights(factors.Wt[free], of_weights[free], of_free, child(key, WEIGHTS))


def move_free(
    moves: tuple[str, ...],
    factors: PowerFactors,
    given: PowerConditionals,
    priors: ByComponent,
    key: np.uint64,
    free: slice,
) -> float:
    """Move the ``free`` components along the orbit, in place; returns the size of the scale move."""
    if free == slice(None):
        return move_along_orbit(moves, factors, given, priors, key)
    part = PowerFactors(factors.Wt[free].copy(), np.ascontiguousarray(factors.Ht[:, free]))
    shape_h, scale_h = (np.ascontiguousarray(cells[:, free]) for cells in (given.shape_h, given.scale_h))
    own = PowerConditionals(given.shape_w[free], given.scale_w[free], shape_h, scale_h, given.tilt[free])
    size = move_along_orbit(moves, part, own, ByComponent(*(cells[free] for cells in priors)), key)
    factors.Wt[free], factors.Ht[:, free] = part.Wt, part.Ht
    return size


def move_along_orbit(
    moves: tuple[str, ...], factors: PowerFactors, given: PowerConditionals, priors: ByComponent, key: np.uint64
) -> float:
    """Move along the orbit of equal W H, in place; returns the size of the scale move."""
    scale_move, rank = 0.0, len(factors.Wt)
    if "scale" in moves:
        scale = np.empty(rank)
        draw_scales(scale, factors, given, child(key, SCALES))
        scale_move = apply_scales(factors, scale)
    if "shear" in moves and rank > 1:
        H = np.ascontiguousarray(factors.Ht.T)
        move_inverse_shears(factors.Wt, H, *priors, child(key, SHEARS))
        factors.Ht[:] = H.T
    return scale_move


def log_likelihood_of(frames: ChunkedFrames, factors: PowerFactors) -> float:
    """-sum (log l + p / l) over the observed cells."""

    def of_chunk(chunk: tuple[int, int]) -> float:
        return log_likelihood(frames.spectra, factors, chunk, composite.make_workspace(*factors.Wt.shape))

    return sum(frames.workers.map(of_chunk, frames.chunks))


def log_priors(structure: Factorisation, W: Array, H: Array, values: Mapping[str, Array]) -> float:
    """Log-density of the factors, the hyperparameters and the cells that the model draws itself."""
    total = structure.W.log_density(W, values) + structure.H.log_density(H, values)
    for name, unknown in structure.unknowns.items():
        total += float(np.sum(unknown.prior.log_density(np.asarray(values[name]))))
    return total + structure.log_imputed(W, H, values)


def ahead(structure: Factorisation, options: Gibbs) -> list[Call]:
    """Whole blocks of sweeps: of a first run, what takes longest to compile."""
    problem = prepare(structure, options, SERIAL)
    sweeps, (n_features, n_samples), rank = problem.sweeps, structure.shape, structure.rank
    if sweeps is None:
        return []
    factors, tuning = (
        PowerFactors(np.ones((rank, n_features)), np.ones((n_samples, rank))),
        make_tuning(sweeps.sides, rank),
    )
    kept, block = make_kept(structure, sweeps.followed, 1), tuple(Block(first=0, stop=1, base=0, thin=1, tuning=True))
    keys = np.zeros(1, np.uint64)
    return [(run_sweeps, (sweeps, factors, tuning, make_workspace(sweeps, factors), kept, block, keys))]


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Exponential,),
    projects=1,
    takes_known=True,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    run=run,
    ahead=ahead,
)
