"""EM of powers in blocks of samples: one pass over the blocks per iteration, W alone held in memory.

The steps are those of :mod:`nmf_zoo.inference.powers.em`, which are separable: W moves by sums over all blocks of the
pass before, then each block's rows of H do, at the new W, and the block gives its part of the sums at the new factors::

    numerator_fk = sum_b sum_n p h_kn / l^2,    denominator_fk = sum_b sum_n h_kn / l

With momentum both go on beyond their updates, unless the objective would rise: then the pass is made again without. The
objective never rises; with one block its iterates are those in memory. SAGE, which looks at all samples for each
component, would take a pass for each.

Where a factor is free the floor of the powers is relative to their mean over all blocks, which a pass of its own finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.em import EM, EMInfo
from nmf_zoo.inference.powers.blocks import PowerBlocks
from nmf_zoo.inference.powers.em import (
    PowerEMProblem,
    WeightsAt,
    WeightTerms,
    advance_frames,
    chunk_bounds,
    cost_of_H,
    cost_of_W,
    floor_of,
    floored,
    is_heuristic,
    look_at_frames,
    move_W,
    prior_constant,
    prior_terms,
    residual_of,
    takes_samples,
    terms_of_W,
    total_power,
)
from nmf_zoo.inference.powers.spectra import constant_of_powers
from nmf_zoo.inference.shared.acceleration import Momentum, push_or_retreat
from nmf_zoo.inference.shared.factor_view import two_sides
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.start import RandomRows, start_blocks
from nmf_zoo.kernels.powers.factor_steps import FLOOR
from nmf_zoo.kernels.powers.itakura_saito import Moves, PriorTerms
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.engine import CAN_RUN, BlockEngine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Blocked, Exponential, Factorisation, GammaPrior, InverseGammaPrior


class PowerEMBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    numerator, denominator : (K, F), what the samples say of W
    divergence, cost : of the factors, without the prior of W
    squares : of the slopes of H as it was before the pass
    """

    numerator: Array
    denominator: Array
    divergence: float
    cost: float
    squares: float

    def plus(self, other: PowerEMBlockSums) -> PowerEMBlockSums:
        """Those of this and of the next block."""
        return PowerEMBlockSums(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            self.divergence + other.divergence,
            self.cost + other.cost,
            self.squares + other.squares,
        )


class BlockPowerEMState(NamedTuple):
    """Wt (K, F), and the turn under which ``data.arrays`` holds H and where its update led.

    floor : of the powers; sums : of the pass that led here; led : where W's update led, before it was pushed, None
    without momentum; iteration : how many there were
    """

    Wt: Array
    turn: int
    floor: float
    sums: PowerEMBlockSums
    objective: float = np.inf
    momentum: Momentum = Momentum()
    led: Array | None = None
    iteration: int = 0


@dataclass(frozen=True)
class BlockPowerEMProblem(PowerBlocks):
    """What the iterations share: terms of W's prior (K, F) and of H's (1, K), and what the objective has beside."""

    terms: tuple[PriorTerms, PriorTerms]
    constant: float

    def of(self, block: SampleBlock, floor: float) -> PowerEMProblem:
        """The problem in memory of a block's samples."""
        spectra = floored(block.cells, floor) if floor else block.cells
        bounds, sides = chunk_bounds(*spectra.power.shape), (self.left, block.right)
        return PowerEMProblem(block.structure, self.options, sides, spectra, 0.0, self.terms, bounds, self.workers, [])


def supports(structure: Factorisation, options: EM) -> Verdict:
    """What EM in memory runs, of a prior of H that all samples share; no SAGE."""
    asked = takes_blocks(structure, GammaPrior, InverseGammaPrior)
    if not asked:
        return asked
    if options.update == "sage" or options.start != "random":
        name, allowed = ("update", "auto") if options.update == "sage" else ("start", "random")
        found = getattr(options, name)
        return Verdict(f"{name}={found!r} takes more than one pass over the blocks per iteration: use {allowed!r}")
    return CAN_RUN


def prepare(structure: Factorisation, options: EM, workers: Workers) -> BlockPowerEMProblem:
    """Nothing is read yet."""
    left, right = two_sides(structure)
    terms = terms_of_W(left, options.mode), prior_terms(right, options.mode)
    of_priors = prior_constant(left) + prior_constant(right)
    constant = -float(np.sum(cast(Blocked, structure.data).constants)) + of_priors
    return BlockPowerEMProblem(structure, options, left, workers, terms, constant)


def init(problem: BlockPowerEMProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockPowerEMState:
    """W as given or random at the scale of the data, H random, and a first look at them: one pass, or two."""
    W, rows = start_blocks(problem.structure, key, start)
    Wt = np.array(W.T, order="C")
    if not problem.left.is_fixed:
        np.maximum(Wt[problem.left.free], FLOOR, out=Wt[problem.left.free])
    sides, floor = two_sides(problem.structure), 0.0
    if any(side.is_flat for side in sides):
        floor = floor_of(*sums_over_blocks(problem, TotalPower(0)))
    return _at(
        problem, BlockPowerEMState(Wt, 0, floor, sums_over_blocks(problem, PowerEMBeginning(Wt, 0, floor, rows)))
    )


class PowerTotals(NamedTuple):
    """The sum of the powers, and how many were observed."""

    power: float
    n_seen: float

    def plus(self, other: PowerTotals) -> PowerTotals:
        return PowerTotals(self.power + other.power, self.n_seen + other.n_seen)


class TotalPower(NamedTuple):
    """A look at the powers alone."""

    turn: int

    def __call__(self, problem: BlockPowerEMProblem, block: SampleBlock) -> tuple[PowerTotals, dict[str, Array]]:
        return PowerTotals(*total_power(block.cells)), {}


class PowerEMBeginning(NamedTuple):
    """The first look at W and random rows of H."""

    Wt: Array
    turn: int
    floor: float
    rows: RandomRows

    def __call__(self, problem: BlockPowerEMProblem, block: SampleBlock) -> tuple[PowerEMBlockSums, dict[str, Array]]:
        Ht = np.maximum(self.rows(block.first, block.last), FLOOR)
        divergence, of_W = look_at_frames(problem.of(block, self.floor), self.Wt, Ht)
        return _sums(problem, block, Ht, divergence, 0.0, of_W), {"H": Ht}


class PowerEMPass(NamedTuple):
    """A block's rows of H at their update at W, or beyond it by ``push``."""

    Wt: Array
    turn: int
    floor: float
    push: float
    heuristic: bool

    def __call__(self, problem: BlockPowerEMProblem, block: SampleBlock) -> tuple[PowerEMBlockSums, dict[str, Array]]:
        found = problem.data.arrays.get(self.turn - 1, block.number, *(("H", "led") if self.push > 0.0 else ("H",)))
        old, before = found[0], found[-1]
        new, Ht = np.empty_like(old), np.empty_like(old)
        moves = Moves(old, new, Ht, before, problem.terms[1], self.push, self.heuristic)
        sums = _sums(problem, block, Ht, *advance_frames(problem.of(block, self.floor), self.Wt, moves))
        return sums, {"H": Ht} if problem.options.accelerate is None else {"H": Ht, "led": new}


def _sums(
    problem: BlockPowerEMProblem, block: SampleBlock, Ht: Array, divergence: float, squares: float, of_W: WeightTerms
) -> PowerEMBlockSums:
    """A block's part of the sums."""
    return PowerEMBlockSums(*of_W, divergence, cost_of_H(block.right, problem.terms[1], Ht, problem.workers), squares)


def _at(problem: BlockPowerEMProblem, state: BlockPowerEMState) -> BlockPowerEMState:
    """The state with its objective."""
    cost = cost_of_W(problem.left, problem.terms[0], state.Wt, problem.workers) + state.sums.cost
    return state._replace(objective=state.sums.divergence + problem.constant + cost)


def step(
    problem: BlockPowerEMProblem, state: BlockPowerEMState, key: np.uint64 | None = None
) -> tuple[BlockPowerEMState, EMInfo]:
    """One iteration: W, then H block by block."""
    pushes = problem.options.accelerate is not None and state.led is not None
    (new, residual), momentum = push_or_retreat(
        state.momentum,
        (lambda: _pass(problem, state, state.momentum.push)) if pushes else None,
        lambda: _pass(problem, state, 0.0),
        lambda found: found[0].objective <= state.objective,
    )
    problem.data.arrays.drop(state.turn)
    return new._replace(momentum=momentum, iteration=state.iteration + 1), EMInfo(new.objective, residual)


def _pass(problem: BlockPowerEMProblem, state: BlockPowerEMState, push: float) -> tuple[BlockPowerEMState, float]:
    """(the state after W and then H moved and were pushed, residual on the way)"""
    n_samples, turn = problem.data.shape[1], state.turn + 1
    heuristic = is_heuristic(problem.options, state.iteration)
    of_W = WeightTerms(state.sums.numerator, state.sums.denominator)
    at = WeightsAt(problem.left, state.Wt, of_W, problem.terms[0], n_samples)
    led, Wt, at_W = move_W(at, state.Wt if state.led is None else state.led, push, heuristic)
    sums = sums_over_blocks(problem, PowerEMPass(Wt, turn, state.floor, push, heuristic))
    residual = max(at_W, residual_of(sums.squares, n_samples * len(Wt), Wt.shape[1]))
    kept = None if problem.options.accelerate is None else led
    return _at(problem, state._replace(Wt=Wt, turn=turn, sums=sums, led=kept)), residual


def finish(problem: BlockPowerEMProblem, state: BlockPowerEMState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """W as a posterior of one draw; H, block by block, in ``data.arrays``."""
    structure, data = problem.structure, problem.data
    for number in range(data.n_blocks):
        (Ht,) = data.arrays.get(state.turn, number, "H")
        data.arrays.put(RESULT, number, {structure.H.name: Ht})
    data.arrays.drop(state.turn)
    return {} if problem.left.is_fixed else structure.W.variables(state.Wt.T[None].copy()), {}


ENGINE: BlockEngine = BlockEngine(
    name="em",
    verb="fit",
    likelihoods=(Exponential,),
    takes_known=True,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    takes_block=takes_samples,
    constant=constant_of_powers,
)
