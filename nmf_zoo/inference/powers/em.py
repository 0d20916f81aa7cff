"""Itakura-Saito NMF: maximum likelihood, or a posteriori, of exponential data (a power spectrogram).

With p the power, l = W H + background its mean (exposure divided out of both), the objective is

    -log p(X, W, H) = sum over observed cells of (log l + p / l) - log prior + constant

in nats, everything included. W moves, then H at the new W, by one of

- "monotone", the minimum of a majoriser (Fevotte and Idier 2011): without a prior w (numerator / denominator)^(1/2),
  with numerator = sum p h / l^2 and denominator = sum h / l;
- "heuristic", exponent 1: w (numerator / denominator), about twice as far;
- "auto", monotone for the first CAUTIOUS iterations and heuristic from then on: as fast as heuristic, but long steps
  from a random start tend to end in worse optima;
- "sage", EM of the composite model, component by component, each at the newest others (Fevotte, Bertin and Durrieu
  2009, algorithm 1); components that are nearly 0 hardly move.

The objective never rises, by any of them. The majoriser is numerator w^2 / w' + denominator w' at the new w', plus a
constant: it is as high at the heuristic w' = w numerator / denominator as at the old w, so that the objective can't be
higher (majorisation-equalisation). :mod:`nmf_zoo.kernels.powers.factor_steps` has the proof, priors and all.

An InverseGamma(a, b) prior adds b to numerator w^2 and (a + 1) / w to the denominator, or a / w for the mode in the
logarithms; a Gamma(a, r) prior adds r to the denominator and (a - 1) / w to the numerator. A free factor has terms of
0: in the EM of the composite model w is then the mean, over the cells that were observed, of the posterior power over
h. The density at a free W and an inverse-gamma H is bounded, since it is H's prior that says how large H is; with a
gamma prior of shape 1 or less it is not attained, as W grows and H shrinks, and such models are refused.

The residual is the slope of the objective in the logarithm of a factor's cells: its root mean square over the cells,
in nats per cell of X that they meet (N of W, F of H), the worse of both factors. Cells near 0, which say next to
nothing of X and may take thousands of iterations to grow or to vanish, don't hold it up.

By default momentum pushes these updates further (:mod:`nmf_zoo.inference.shared.acceleration`), and what loses is taken
back.

A density without a bound: where a factor is free, cells of power 0 and mean 0 would count for infinitely much. Powers
are therefore raised to at least ``POWER_FLOOR`` times the mean power, but where a background keeps the mean above 0;
the objective is then that of these floored data. With a prior or a value for both factors zeros stay zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.counts.em import EM, EMInfo
from nmf_zoo.inference.powers.spectra import Spectra, read_spectra
from nmf_zoo.inference.shared.acceleration import Momentum, push_or_retreat
from nmf_zoo.inference.shared.factor_view import Side, as_one_draw, two_sides
from nmf_zoo.inference.shared.layout import MOST_CHUNKS
from nmf_zoo.inference.shared.requirements import knows_weights_only, takes_powers, takes_priors, takes_scale
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.powers import itakura_saito as kernels
from nmf_zoo.kernels.powers.factor_steps import (
    FLOOR,
    Slopes,
    add_squares,
    fill_ratios,
    prior_cost,
    push_beyond,
    take_step,
)
from nmf_zoo.kernels.powers.itakura_saito import (
    FRAMES,
    BlockWorkspace,
    Moves,
    PriorTerms,
    make_workspace,
    sums_of_W,
    tile_spectra,
    untile,
)
from nmf_zoo.kernels.powers.sage import Change, Component, fill_means, move_component, move_profile
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Cells,
    Exponential,
    Factorisation,
    Fixed,
    GammaPrior,
    InverseGammaPrior,
    even_bounds,
)

POWER_FLOOR = 1e-16  # relative to the mean observed power: 160 dB below it
CAUTIOUS = 10  # iterations of "auto" that are monotone
CHUNK_CELLS = 1 << 15  # of the spectrogram: a chunk has at least so many


class WeightTerms(NamedTuple):
    """numerator, denominator (K, F): what the data say of W."""

    numerator: Array
    denominator: Array


class PowerEMState(NamedTuple):
    """Wt (K, F), Ht (N, K), what the data say of W there, and the objective.

    momentum : how hard the next step is pushed; update : where the last update led, before its push; iteration : how
    many there were
    """

    Wt: Array
    Ht: Array
    of_W: WeightTerms
    objective: float
    momentum: Momentum = Momentum()
    update: tuple[Array, Array] | None = None
    iteration: int = 0


@dataclass(frozen=True)
class PowerEMProblem:
    """What all restarts share: ``terms`` of W's prior (K, F) and of H's (N or 1, K), ``bounds`` of chunks of frames.

    constant : what the objective has beside the divergence and the costs of the factors
    workspaces : those that are free, for whoever needs one
    """

    structure: Factorisation
    options: EM
    sides: tuple[Side, Side]
    spectra: Spectra
    constant: float
    terms: tuple[PriorTerms, PriorTerms]
    bounds: Array
    workers: Workers
    workspaces: list[BlockWorkspace]


class WeightsAt(NamedTuple):
    """Where W (K, F) is, what the data say of it there, the terms of its prior, and how many samples there are."""

    side: Side
    Wt: Array
    of_W: WeightTerms
    terms: PriorTerms
    n_samples: int


# -- what it can run -------------------------------------------------------------------------------------------------


SCALES = 1e-120, 1e120  # of the largest power


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Powers with known hyperparameters: free, inverse-gamma and most gamma factors."""
    return takes_samples(structure, options) and _check_silence(structure, options)


def takes_samples(structure: Factorisation, options: Any) -> Verdict:
    """The same of samples among others, which may be silent."""
    verdict = takes_powers(structure) and takes_priors(structure, GammaPrior, InverseGammaPrior)
    checks = (_check_hyperparameters, _check_options, _check_gamma, _check_scale, _check_fixed, _check_known)
    return next(
        (found for found in (verdict, *(check(structure, options) for check in checks if verdict)) if not found),
        CAN_RUN,
    )


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    if structure.unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"hyperparameter {names} is unknown, and estimated jointly with the factors it has no maximum")
    return CAN_RUN


def _check_options(structure: Factorisation, options: Any) -> Verdict:
    if options.inner not in (None, 1):
        return Verdict("inner= freezes expected sources, and exponential data refresh theirs: leave it out")
    if options.precision != "float64":
        return Verdict("precision= is for Poisson data, and powers span too many decades for float32: leave it out")
    return CAN_RUN


def _check_gamma(structure: Factorisation, options: Any) -> Verdict:
    """Below a shape of 1 the density has no bound at 0; up to 1, the other factor free, it wants to get there."""
    W, H = two_sides(structure)
    for side, other in ((W, H), (H, W)):
        least = float(np.min(side.prior({})[0])) if side.is_gamma and options.mode == "density" else np.inf
        name = side.factor.name
        if least < 1.0:
            return Verdict(f'the density of {name} has shape {least:g} < 1 and is unbounded at 0: use EM(mode="log")')
        if least == 1.0 and other.is_flat:
            return Verdict(
                f"{other.factor.name} has no prior, so it can grow while {name} shrinks to 0: give both a prior or use "
                'EM(mode="log")'
            )
    return CAN_RUN


def _check_silence(structure: Factorisation, options: Any) -> Verdict:
    free = [side.factor.name for side in two_sides(structure) if side.is_flat]
    values = structure.data.observed_values
    if free and structure.likelihood.background is None and not np.any(values):
        return Verdict(f"all power is 0, and {free[0]} has no prior: the density has no bound")
    return CAN_RUN


def _check_known(structure: Factorisation, options: Any) -> Verdict:
    return knows_weights_only(structure)


def _check_scale(structure: Factorisation, options: Any) -> Verdict:
    """Factors are at least FLOOR, and squares of means have to be finite."""
    return takes_scale(structure, "EM", *SCALES)


def _check_fixed(structure: Factorisation, options: Any) -> Verdict:
    """A known factor's row of zeros is a mean of 0 wherever that feature or sample was observed."""
    for side in two_sides(structure):
        if isinstance(side.factor.prior, Fixed):
            empty = np.flatnonzero(~np.any(side.turn(side.factor.prior.value) > 0.0, axis=1))
            if empty.size and np.any(_without_background(structure, side, empty)):
                where = structure.axes[1 if side.is_right else 0]
                return Verdict(
                    f"{side.factor.name or 'the known factor'} is all 0 at {where} {empty[0]}, so is the mean there"
                )
    return CAN_RUN


def _without_background(structure: Factorisation, side: Side, rows: np.ndarray) -> np.ndarray:
    """Whether the cells of some features or samples are observed without a background."""
    data = structure.data
    seen = np.ones(structure.shape, dtype=bool)
    if isinstance(data, Cells):
        seen = np.full(structure.shape, data.is_complete)
        seen[data.rows, data.cols] = True
    elif data.mask is not None:
        seen = data.mask
    if structure.likelihood.background is not None:
        seen = seen & (structure.background_table() == 0.0)
    return side.turn(seen)[rows]


# -- how it runs -----------------------------------------------------------------------------------------------------


def prepare(structure: Factorisation, options: EM, workers: Workers) -> PowerEMProblem:
    """Lay out the spectrogram, and floor it where a factor is free."""
    sides = two_sides(structure)
    spectra, constant = read_spectra(structure)
    if any(side.is_flat for side in sides):
        spectra = floored(spectra, floor_of(*total_power(spectra)))
    terms = terms_of_W(sides[0], options.mode), prior_terms(sides[1], options.mode)
    constant = -constant + sum(prior_constant(side) for side in sides)
    release(structure)
    bounds = chunk_bounds(*spectra.power.shape)
    return PowerEMProblem(structure, options, sides, spectra, constant, terms, bounds, workers, [])


def total_power(spectra: Spectra) -> tuple[float, float]:
    """(the sum of the powers, how many were observed)"""
    return float(spectra.power.sum()), float(np.sum(spectra.n_seen[1]))


def floor_of(total: float, n_seen: float) -> float:
    """The least power."""
    return POWER_FLOOR * total / max(n_seen, 1.0)


def floored(spectra: Spectra, floor: float) -> Spectra:
    """The spectra with no power below the floor, but where a background keeps the mean above 0."""
    low = spectra.power < floor
    if spectra.seen.size:
        low &= spectra.seen
    if spectra.background.size:
        low &= spectra.background == 0.0
    return spectra._replace(power=np.where(low, floor, spectra.power)) if low.any() else spectra


def chunk_bounds(n_frames: int, n_frequencies: int) -> Array:
    """Boundaries of chunks of frames: they depend on the data alone, so that no sum depends on the threads."""
    groups = -(-n_frames // FRAMES)
    chunks = int(np.clip(n_frames * n_frequencies // CHUNK_CELLS, 1, min(MOST_CHUNKS, max(groups, 1))))
    return np.minimum(FRAMES * even_bounds(groups, chunks), n_frames)


def init(problem: PowerEMProblem, key: np.uint64, start: Mapping[str, Array]) -> PowerEMState:
    """The start given, or one by ``start``."""
    W, Ht = start_factors(problem.structure, key, start, problem.options.start)
    Wt = np.array(W.T, order="C")
    for side, array in zip(problem.sides, (Wt, Ht), strict=True):
        if not side.is_fixed:
            np.maximum(array[side.free], FLOOR, out=array[side.free])  # known components are rows of W
    return look(problem, Wt, Ht)


def look(problem: PowerEMProblem, Wt: Array, Ht: Array) -> PowerEMState:
    """The state at these factors."""
    divergence, of_W = look_at_frames(problem, Wt, Ht)
    return PowerEMState(Wt, Ht, of_W, divergence + problem.constant + cost(problem, Wt, Ht))


def look_at_frames(problem: PowerEMProblem, Wt: Array, Ht: Array) -> tuple[float, WeightTerms]:
    """(divergence, what all frames say of W)"""
    divergence, _, of_W = pass_frames(problem, Wt, lambda tiles, sums, workspace, *frames: (
        kernels.gather(problem.spectra, tiles, Ht, sums, workspace, *frames), 0.0
    ))  # fmt: skip
    return divergence, of_W


def advance_frames(problem: PowerEMProblem, Wt: Array, moves: Moves) -> tuple[float, float, WeightTerms]:
    """(divergence once the activations have moved, squared slopes where they were, what all frames then say of W)"""
    return pass_frames(problem, Wt, lambda tiles, *rest: kernels.advance(problem.spectra, tiles, moves, *rest))


def cost(problem: PowerEMProblem, Wt: Array, Ht: Array) -> float:
    """What the priors make of the factors, up to a constant."""
    (left, right), (of_W, of_H) = problem.sides, problem.terms
    return cost_of_W(left, of_W, Wt, problem.workers) + cost_of_H(right, of_H, Ht, problem.workers)


def cost_of_W(side: Side, terms: PriorTerms, Wt: Array, workers: Workers) -> float:
    """What the prior makes of W (K, F)."""
    if side.is_flat or side.is_fixed:
        return 0.0
    return cost_of_rows(workers, Wt[side.free], PriorTerms(*(part[side.free] for part in terms)))


def cost_of_H(side: Side, terms: PriorTerms, Ht: Array, workers: Workers) -> float:
    """What the prior makes of H (N, K)."""
    return 0.0 if side.is_flat or side.is_fixed else cost_of_rows(workers, Ht, terms)


def pass_frames(problem: PowerEMProblem, Wt: Array, work: Any) -> tuple[float, float, WeightTerms]:
    """(divergence, squared slopes of H, what all frames say of W) from ``work`` on chunks of frames, added in order."""
    rank, F = Wt.shape
    tiles, wanted = tile_spectra(Wt), 0 if problem.sides[0].is_fixed else rank

    def of_chunk(first: int, last: int) -> tuple[float, float, Any]:
        sums, workspace = sums_of_W(wanted, F), take_workspace(problem)
        found = work(tiles, sums, workspace, first, last)
        problem.workspaces.append(workspace)
        return *found, sums

    chunks = problem.workers.map(of_chunk, problem.bounds[:-1], problem.bounds[1:])
    totals = chunks[0][2]
    for _, _, sums in chunks[1:]:
        for total, part in zip(totals, sums, strict=True):
            np.add(total.values, part.values, out=total.values)
    of_W = WeightTerms(*(untile(total, wanted, F) for total in totals))
    return sum(divergence for divergence, _, _ in chunks), sum(squares for _, squares, _ in chunks), of_W


def take_workspace(problem: PowerEMProblem) -> BlockWorkspace:
    """A workspace that is free, or a new one."""
    try:
        return problem.workspaces.pop()
    except IndexError:
        return make_workspace(problem.structure.rank, problem.structure.shape[0])


def step(problem: PowerEMProblem, state: PowerEMState, key: np.uint64 | None = None) -> tuple[PowerEMState, EMInfo]:
    """One iteration: W, then H, or component by component."""
    move = move_by_sage if problem.options.update == "sage" else move_factors
    pushes = problem.options.accelerate is not None and state.update is not None
    (new, residual), momentum = push_or_retreat(
        state.momentum,
        (lambda: move(problem, state, state.momentum.push)) if pushes else None,
        lambda: move(problem, state, 0.0),
        lambda found: found[0].objective <= state.objective,
    )
    return new._replace(momentum=momentum, iteration=state.iteration + 1), EMInfo(new.objective, residual)


def is_heuristic(options: EM, iteration: int) -> bool:
    """Whether the step of an iteration has exponent 1."""
    return options.update == "heuristic" or (options.update == "auto" and iteration >= CAUTIOUS)


def move_factors(problem: PowerEMProblem, state: PowerEMState, push: float) -> tuple[PowerEMState, float]:
    """(the state after W and then H moved and were pushed, residual on the way)"""
    before = (state.Wt, state.Ht) if state.update is None else state.update
    heuristic = is_heuristic(problem.options, state.iteration)
    new_W, Wt, at_W = move_W(weights_at(problem, state), before[0], push, heuristic)
    if problem.sides[1].is_fixed:
        return look(problem, Wt, state.Ht)._replace(update=(new_W, state.Ht)), at_W
    new_H, Ht = np.empty_like(state.Ht), np.empty_like(state.Ht)
    moves = Moves(state.Ht, new_H, Ht, before[1], problem.terms[1], push, heuristic)
    divergence, squares, of_W = advance_frames(problem, Wt, moves)
    objective = divergence + problem.constant + cost(problem, Wt, Ht)
    return PowerEMState(Wt, Ht, of_W, objective, state.momentum, (new_W, new_H)), max(
        at_W, residual_of(squares, Ht.size, Wt.shape[1])
    )


def weights_at(problem: PowerEMProblem, state: PowerEMState) -> WeightsAt:
    return WeightsAt(problem.sides[0], state.Wt, state.of_W, problem.terms[0], len(state.Ht))


def move_W(at: WeightsAt, before: Array, push: float, heuristic: bool) -> tuple[Array, Array, float]:
    """(update of W, what a push makes of it, residual of the old one)"""
    side = at.side
    if side.is_fixed:
        return at.Wt, at.Wt, 0.0
    flat = at.Wt[side.free].ravel()
    slopes, size = slopes_of_W(at), flat.size
    new, out = np.empty(size), np.empty(size)
    fill_ratios(slopes, flat, 0, size)
    add_squares(slopes, flat, 0, size)
    take_step(new, flat, slopes, 0, size, heuristic)
    push_beyond(out, new, before[side.free].ravel(), 0, size, push)
    residual = residual_of(slopes.squares.sum(), size, at.n_samples)
    return _beside(side, at.Wt, new), _beside(side, at.Wt, out), residual


def _beside(side: Side, whole: Array, part: Array) -> Array:
    """W (K, F) with the free components ``part``, flat, beside what is known in ``whole``; H, of which all are free."""
    if side.factor.known is None:
        return part.reshape(whole.shape)
    out = whole.copy()
    out[side.free] = part.reshape(out[side.free].shape)
    return out


def slopes_of_W(at: WeightsAt) -> Slopes:
    """What data and prior say of W's cells that are not known."""
    free = at.side.free
    size = at.Wt[free].size
    numerator, denominator, power, scale, rate = (part[free].ravel() for part in (*at.of_W, *at.terms))
    return Slopes(numerator, denominator, power, scale, rate, np.empty(size), np.zeros(size))


def residual_of(squares: float, size: int, n_met: int) -> float:
    """Root mean square of the slopes of a factor's cells in their logarithm, over how many cells of X each meets."""
    return float(np.sqrt(squares / max(size, 1))) / max(n_met, 1)


def move_by_sage(problem: PowerEMProblem, state: PowerEMState, push: float) -> tuple[PowerEMState, float]:
    """(the state after each component moved and was pushed, residual on the way)"""
    before = (state.Wt, state.Ht) if state.update is None else state.update
    fixed = ~problem.sides[0].are_free, problem.sides[1].is_fixed
    sage = Sage(problem.spectra, problem.terms, fixed, problem.bounds, problem.workers)
    Wt, Ht, squares = update_components(sage, state.Wt, state.Ht)
    new, pushed = (Wt, Ht), []
    for side, update, last in zip(problem.sides, new, before, strict=True):
        out = update
        if not side.is_fixed:
            part = np.empty(update[side.free].size)
            push_beyond(part, update[side.free].ravel(), last[side.free].ravel(), 0, part.size, push)
            out = _beside(side, update, part)
        pushed.append(out)
    residual = max(residual_of_W(weights_at(problem, state)), residual_of(squares, Ht.size, Wt.shape[1]))
    return look(problem, *pushed)._replace(update=new, momentum=state.momentum), residual


def residual_of_W(at: WeightsAt) -> float:
    """The residual of W."""
    if at.side.is_fixed:
        return 0.0
    slopes, free = slopes_of_W(at), at.Wt[at.side.free]
    add_squares(slopes, free.ravel(), 0, free.size)
    return residual_of(slopes.squares.sum(), free.size, at.n_samples)


def finish(
    problem: PowerEMProblem, state: PowerEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw, whatever ``draws`` is.

    Declared missing cells are at their mean: their mode is 0, whatever the factors are.
    """
    return as_one_draw(problem.structure, state.Wt.T, state.Ht, {}), {}


# -- priors ----------------------------------------------------------------------------------------------------------


def prior_terms(side: Side, mode: str) -> PriorTerms:
    """Terms of a factor's prior, or of its logarithm's for ``mode`` "log": (rows or 1, K) each; 0 of what is known."""
    power, scale, rate = np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1))
    in_logs = 1.0 if mode == "log" else 0.0
    if side.is_inverse_gamma:
        shape, scale = side.shape_and_scale({})
        power = shape + 1.0 - in_logs
    elif side.is_gamma:
        shape, rate = side.prior({})
        power = 1.0 - shape - in_logs
    K = side.turn(np.empty(side.factor.shape)).shape[1]
    terms = np.broadcast_arrays(power, scale, rate, np.zeros((1, K))[:, side.free])[:3]
    whole = (side.with_free(np.zeros((len(part), K)), part) for part in terms)
    return PriorTerms(*(np.ascontiguousarray(part, dtype=np.float64) for part in whole))


def terms_of_W(side: Side, mode: str) -> PriorTerms:
    """The same of W, (K, F) each."""
    shape = side.factor.shape
    return PriorTerms(*(np.array(np.broadcast_to(part, shape).T, order="C") for part in prior_terms(side, mode)))


def prior_constant(side: Side) -> float:
    """What minus the log prior density has beside its terms."""
    if side.is_inverse_gamma or side.is_gamma:
        shape, second = side.shape_and_scale({}) if side.is_inverse_gamma else side.prior({})
        cells = side.turn(np.empty(side.factor.free_shape)).shape
        return float(np.sum(np.broadcast_to(gammaln(shape) - shape * np.log(second), cells)))
    return 0.0


def cost_of_rows(workers: Workers, factor: Array, terms: PriorTerms) -> float:
    """Minus the log prior density of a factor (rows, K) but for the constant, summed in an order that is fixed."""
    bounds = even_bounds(len(factor), MOST_CHUNKS if factor.size > 1 << 14 else 1)
    return sum(workers.map(lambda first, last: prior_cost(factor, *terms, first, last), bounds[:-1], bounds[1:]))


# -- SAGE ------------------------------------------------------------------------------------------------------------


class Sage(NamedTuple):
    """What stays the same.

    Attributes
    ----------
    terms : of W's prior (K, F) and of H's (N or 1, K)
    fixed : which components of W are known, (K,) bool, and whether H is
    bounds : of chunks of frames
    """

    spectra: Spectra
    terms: tuple[PriorTerms, PriorTerms]
    fixed: tuple[Array, bool]
    bounds: Array
    workers: Workers


def update_components(sage: Sage, Wt: Array, Ht: Array) -> tuple[Array, Array, float]:
    """(W (K, F), H (N, K), squared slopes of the activations on the way) after each component moved once."""
    spectra, frames = sage.spectra, (sage.bounds[:-1], sage.bounds[1:])
    Wt, before_H, by_component = Wt.copy(), np.array(Ht.T, order="C"), np.array(Ht.T, order="C")
    means, n_seen = np.empty(spectra.power.shape), spectra.n_seen[0]
    sage.workers.map(lambda *rows: fill_means(means, spectra.background, Wt, Ht, *rows), *frames)
    nothing = np.zeros(len(Ht)), np.zeros(Wt.shape[1])
    change, squares = Change(*nothing, *nothing), 0.0
    for k in range(len(Wt)):
        component = _component(sage, Wt[k].copy(), before_H[k], by_component[k], k)

        def move(first: int, last: int, component: Component = component, change: Change = change):
            sums = np.zeros((3, Wt.shape[1]))
            return sums, move_component(spectra, means, component, change, sums, first, last)

        found = sage.workers.map(move, *frames)
        squares += sum(part for _, part in found)
        if not sage.fixed[0][k]:
            terms = np.array([part[k] for part in sage.terms[0]])
            move_profile(Wt[k], sum(sums for sums, _ in found), terms, n_seen)
        change = Change(before_H[k], component.w, by_component[k], Wt[k])
    return Wt, np.array(by_component.T, order="C"), squares


def _component(sage: Sage, w: Array, before: Array, after: Array, k: int) -> Component:
    power, scale, rate = (np.array(np.broadcast_to(part[:, k], before.shape)) for part in sage.terms[1])
    return Component(w, before, after, power, scale, rate, sage.fixed[1])


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(Exponential,),
    projects=4,
    takes_known=True,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)
