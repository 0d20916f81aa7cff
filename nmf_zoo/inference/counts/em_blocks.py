"""EM of Poisson data in blocks of samples: one pass over the blocks per iteration, W alone held in memory.

The updates are those of :mod:`nmf_zoo.inference.counts.em` with sources frozen once per iteration (``inner=1``). W is
updated from sums over all blocks of the pass before; then each block's rows of H are, at the new W, and the block gives
its part of the sums at the new factors::

    w_fk = (a_w - 1 + sum_b S_b) / (r_w + sum_b sum_n M h_kn)       S_b = sum of E[C] over the samples of block b
    h_kn = (a_h - 1 + sum_f E[C]) / (r_h + sum_f M w_fk)            and S_b, at the new W and H

With momentum both go on in the direction in which the update led, unless the objective would rise: then the pass is
made again without. The objective never rises, and fixed points are those of EM in memory; with one block the iterates
are, too. There are no Newton steps: those of W go through the cells of a feature, which lie in all blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.counts.blocks import CountBlocks, log_at_data
from nmf_zoo.inference.counts.em import EM, EMInfo, constrained, log_prior
from nmf_zoo.inference.counts.em import supports as supports_in_memory
from nmf_zoo.inference.shared.acceleration import Momentum, ahead_by_ratio, push_or_retreat
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import likelihood_constant
from nmf_zoo.inference.shared.multiplicative import FLOOR, to_one, update, update_with_held
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.start import RandomRows, start_blocks
from nmf_zoo.kernels.numerics.multiplicative import largest_of_columns
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.engine import CAN_RUN, BlockEngine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson


class EMBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    numerator : (F, K), the expected sources of W
    denominator : (F, K) or (1, K), what the weights make of H
    largest : (K,), of H's columns
    log_likelihood, log_prior : of the factors, without the prior of W
    residual : of H as it was before the pass
    """

    numerator: Array
    denominator: Array
    largest: Array
    log_likelihood: float
    log_prior: float
    residual: float

    def plus(self, other: EMBlockSums) -> EMBlockSums:
        """Those of this and of the next block."""
        return EMBlockSums(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            np.maximum(self.largest, other.largest),
            self.log_likelihood + other.log_likelihood,
            self.log_prior + other.log_prior,
            max(self.residual, other.residual),
        )


class BlockEMState(NamedTuple):
    """W (F, K), and the turn under which ``data.arrays`` holds H, its numerator and where its update led.

    sums : of the pass that led here; led : where W's update led, before it was pushed; None without momentum
    """

    W: Array
    turn: int
    sums: EMBlockSums
    objective: float = np.inf
    momentum: Momentum = Momentum()
    led: Array | None = None


@dataclass(frozen=True)
class BlockEMProblem(CountBlocks):
    """What the iterations share; ``simplex`` : the columns of W sum to one, but for known components."""

    simplex: bool


def supports(structure: Factorisation, options: EM) -> Verdict:
    """What EM in memory runs, of a prior of H that all samples share, with known hyperparameters."""
    asked = takes_blocks(structure, GammaPrior) and _takes_options(options)
    if not asked:
        return asked
    simplex = constrained(structure, options.mode)
    if simplex is not None and simplex.is_right:
        return Verdict(
            f"{simplex.factor.name} has no prior, so it can grow while {structure.W.name} shrinks to 0: give it a prior"
        )
    return CAN_RUN


def _takes_options(options: EM) -> Verdict:
    for name, allowed in (("inner", 1), ("start", "random")):
        found = getattr(options, name)
        if found != allowed:
            return Verdict(f"{name}={found!r} takes more than one pass over the blocks per iteration: use {allowed!r}")
    return CAN_RUN


def prepare(structure: Factorisation, options: EM, workers: Workers) -> BlockEMProblem:
    """Nothing is read yet."""
    simplex = constrained(structure, options.mode) is not None
    return BlockEMProblem(structure, options, Side(structure.W, False), workers, simplex)


def init(problem: BlockEMProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockEMState:
    """W as given or random at the scale of the data, H random, and a first look at them: one pass."""
    W, rows = start_blocks(problem.structure, key, start)
    left, scale = problem.left, np.ones(problem.structure.rank)
    if not left.is_fixed:
        np.maximum(W[:, left.free], FLOOR, out=W[:, left.free])
    if problem.simplex:
        scale = to_one(W, problem.structure.free_in_both)
        W /= scale
    sums = sums_over_blocks(problem, EMBeginning(W, 0, rows, scale))
    return _at(problem, BlockEMState(W, 0, sums))


def step(problem: BlockEMProblem, state: BlockEMState, key: np.uint64 | None = None) -> tuple[BlockEMState, EMInfo]:
    """One iteration: W, then H block by block."""
    W, at_W = _update_W(problem, state)
    new, momentum = push_or_retreat(
        state.momentum,
        None if state.led is None else lambda: _pass(problem, state, W, state.momentum.push),
        lambda: _pass(problem, state, W, None),
        lambda new: new.objective <= state.objective,
    )
    problem.data.arrays.drop(state.turn)
    led = None if problem.options.accelerate is None else W
    return new._replace(momentum=momentum, led=led), EMInfo(new.objective, max(at_W, new.sums.residual))


def _update_W(problem: BlockEMProblem, state: BlockEMState) -> tuple[Array, float]:
    """(update, KKT residual) of W from the sums over all blocks."""
    old, sums = state.W, state.sums
    if problem.left.is_fixed:
        return old, 0.0
    left, mode = problem.left, problem.options.mode
    if problem.simplex:
        held = problem.structure.free_in_both
        return update_with_held(left, held, mode, old, sums.numerator, sums.denominator, {}, problem.workers)
    return update(left, mode, old, sums.numerator, sums.denominator, {}, problem.workers)


def _pass(problem: BlockEMProblem, state: BlockEMState, led: Array, push: float | None) -> BlockEMState:
    """H at its update given W's, or both beyond their updates."""
    W = led if push is None or state.led is None else _pushed(problem, led, state.led, push)
    turn = state.turn + 1
    sums = sums_over_blocks(problem, EMPass(W, turn, led, push, state.sums.largest))
    return _at(problem, state._replace(W=W, turn=turn, sums=sums))


class EMBeginning(NamedTuple):
    """The first look at W and random rows of H."""

    W: Array
    turn: int
    rows: RandomRows
    scale: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        Ht = np.maximum(self.rows(block.first, block.last), FLOOR) * self.scale
        return _look(problem, block, self.W, Ht, 0.0)


class EMPass(NamedTuple):
    """A block's rows of H at their update given ``led``, where W's led, or with W beyond it by ``push``."""

    W: Array
    turn: int
    led: Array
    push: float | None
    largest: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        arrays, mode, before = problem.data.arrays, problem.options.mode, self.turn - 1
        old, numerator = arrays.get(before, block.number, "H", "numerator")
        denominator = block.cells.weights.over_features(self.led)
        led, residual = update(block.right, mode, old, numerator, denominator, {}, problem.workers, self.largest)
        new = led
        if self.push is not None:
            (led_before,) = arrays.get(before, block.number, "led")
            new = ahead_by_ratio(led, led_before, self.push)
        sums, kept = _look(problem, block, self.W, new, residual)
        return sums, kept if problem.options.accelerate is None else {**kept, "led": led}


def _pushed(problem: BlockEMProblem, new: Array, old: Array, push: float) -> Array:
    side = problem.left
    if side.is_fixed:
        return new
    beyond = side.with_free(new, ahead_by_ratio(new[:, side.free], old[:, side.free], push))
    return beyond / to_one(beyond, problem.structure.free_in_both) if problem.simplex else beyond


def _look(
    problem: BlockEMProblem, block: SampleBlock, W: Array, Ht: Array, residual: float
) -> tuple[EMBlockSums, dict[str, Array]]:
    """A block's part of the sums at W and its rows of H; these with their sources."""
    sources, weights = block.cells
    found = sources.gather(W, Ht, "WH")
    log_likelihood = found.log_mean - weights.total(W, Ht) + block.constant
    prior = log_prior((block.right,), problem.options.mode, (Ht,), {})
    denominator, largest = weights.over_samples(Ht), largest_of_columns(Ht)
    sums = EMBlockSums(found.of_W, denominator, largest, log_likelihood, prior, residual)
    return sums, {"H": Ht, "numerator": found.of_H}


def _at(problem: BlockEMProblem, state: BlockEMState) -> BlockEMState:
    """The state with its objective."""
    prior = state.sums.log_prior + log_prior((problem.left,), problem.options.mode, (state.W,), {})
    return state._replace(objective=-(state.sums.log_likelihood + prior))


def finish(problem: BlockEMProblem, state: BlockEMState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """W as a posterior of one draw; H, block by block, in ``data.arrays``."""
    structure, data = problem.structure, problem.data
    for number in range(data.n_blocks):
        (Ht,) = data.arrays.get(state.turn, number, "H")
        data.arrays.put(RESULT, number, {structure.H.name: Ht})
    data.arrays.drop(state.turn)
    lacks = max(float(np.sum(data.at_data)) - state.sums.log_likelihood, 0.0)
    values = {} if problem.left.is_fixed else structure.W.variables(state.W[None])
    return values, {"divergence": np.float64(lacks)}


ENGINE: BlockEngine = BlockEngine(
    name="em",
    verb="fit",
    likelihoods=(Poisson,),
    takes_known=True,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    takes_block=supports_in_memory,
    constant=likelihood_constant,
    at_data=log_at_data,
)
