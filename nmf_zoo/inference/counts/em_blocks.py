"""EM of Poisson data in blocks of samples: one pass over the blocks per iteration, W alone held in memory.

The updates are those of :mod:`nmf_zoo.inference.counts.em` with sources frozen once per iteration (``inner=1``). W is
updated from sums over all blocks of the pass before; then each block's rows of H are, at the new W, and the block gives
its part of the sums at the new factors::

    w_fk = (a_w - 1 + sum_b S_b) / (r_w + sum_b sum_n M h_kn)       S_b = sum of E[C] over the samples of block b
    h_kn = (a_h - 1 + sum_f E[C]) / (r_h + sum_f M w_fk)            and S_b, at the new W and H

With momentum both go on in the direction in which the update led, unless the objective would rise: then the pass is
made again without. The objective never rises, and fixed points are those of EM in memory; with one block the iterates
are, too.

Newton steps of W in memory go through the cells of a feature, which here lie in all blocks. So a block also gives the
second derivatives of its cells, K (K + 1) / 2 numbers for each feature (of a large K those of the components that hold
most of a feature, while the others take EM's step), and W's step is a Newton step from these sums, bounded such that it
can't lose, from the best multiple of each row (:mod:`nmf_zoo.kernels.counts.curvature`). A block's rows of H take the
steps that they take in memory, from the point ahead of them where there is momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.blocks import CountBlocks
from nmf_zoo.inference.counts.curvature import CurvedSources, choose_active, step_by_curvature, without
from nmf_zoo.inference.counts.em import EM, EMInfo, constrained, log_prior
from nmf_zoo.inference.counts.em import supports as supports_in_memory
from nmf_zoo.inference.counts.em_losses import log_at_data
from nmf_zoo.inference.counts.newton import NOTHING, descend_rows, narrow, penalty_of, unless_off
from nmf_zoo.inference.shared.acceleration import Momentum, ahead, ahead_by_ratio, is_no_worse, push_or_retreat
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import Layout, Statistics, Weights, compress, likelihood_constant, turn, weigh
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
    curvature : of W's rows, where it takes Newton steps, the blocks' before with it; else of no rows
    """

    numerator: Array
    denominator: Array
    largest: Array
    log_likelihood: float
    log_prior: float
    residual: float
    curvature: Array = NOTHING

    def plus(self, other: EMBlockSums) -> EMBlockSums:
        """Those of this and of the next block."""
        return EMBlockSums(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            np.maximum(self.largest, other.largest),
            self.log_likelihood + other.log_likelihood,
            self.log_prior + other.log_prior,
            max(self.residual, other.residual),
            _added(self.curvature, other.curvature),
        )


def _added(sums: Array, more: Array) -> Array:
    """The largest of the sums: a shard's blocks have added theirs, another's go to it in place if that can be."""
    return sums if more is sums else np.add(sums, more, out=sums if sums.flags.writeable else None)


class BlockEMState(NamedTuple):
    """W (F, K), and the turn under which ``data.arrays`` holds H, its numerator and where its update led.

    sums : of the pass that led here; led : where W's update led, before it was pushed; None without momentum;
    ahead : of Newton steps, W at the point ahead, at which the sums but for the log densities are; None for W.
    ``data.arrays`` then holds H, and H at that point;
    active : the components of each row whose curvature is in the sums, (F, active)
    """

    W: Array
    turn: int
    sums: EMBlockSums
    objective: float = np.inf
    momentum: Momentum = Momentum()
    led: Array | None = None
    ahead: Array | None = None
    active: Array = NOTHING


class NewtonCells(NamedTuple):
    """As :class:`nmf_zoo.inference.counts.blocks.CountsOfBlock`, features first, and the same cells by samples."""

    sources: CurvedSources
    weights: Weights
    by_samples: Layout


@dataclass(frozen=True)
class BlockEMProblem(CountBlocks):
    """What the iterations share.

    simplex : the columns of W sum to one, but for known components
    newton : W and H take Newton steps
    """

    simplex: bool
    newton: bool

    @property
    def is_whole(self) -> bool:
        """Whether means are made of free columns of W alone."""
        backgrounds = self.structure.likelihood.background, self.data.offsets.background
        return self.left.factor.known is None and all(own is None for own in backgrounds)

    def lay_out(self, structure: Factorisation) -> Any:
        """As other passes want them, or for Newton steps as a list of cells, along either side."""
        if not self.newton:
            return super().lay_out(structure)
        cells = compress(structure, by_features=False)
        cells = cells._replace(values=narrow(cells.values))
        sources = CurvedSources(structure, self.workers, turn(cells, structure.shape[0]))
        return NewtonCells(sources, weigh(structure), cells)


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
    left, asked = Side(structure.W, False), options.accelerate == "newton" and options.precision == "float64"
    return BlockEMProblem(structure, options, left, workers, simplex, asked and not simplex and not left.is_fixed)


def init(problem: BlockEMProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockEMState:
    """W as given or random at the scale of the data, H random, and a first look at them: one pass."""
    W, rows = start_blocks(problem.structure, key, start)
    left, scale = problem.left, np.ones(problem.structure.rank)
    if not left.is_fixed:
        np.maximum(W[:, left.free], FLOOR, out=W[:, left.free])
    if problem.simplex:
        scale = to_one(W, problem.structure.free_in_both)
        W /= scale
    active = choose_active(left, W, W, np.ones((1, W.shape[1]))) if problem.newton else NOTHING
    sums = sums_over_blocks(problem, EMBeginning(W, 0, rows, scale, active))
    return _at(problem, BlockEMState(W, 0, sums, active=active))


def step(problem: BlockEMProblem, state: BlockEMState, key: np.uint64 | None = None) -> tuple[BlockEMState, EMInfo]:
    """One iteration: W, then H block by block."""
    if problem.newton:
        return _newton_step(problem, state)
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


def _newton_step(problem: BlockEMProblem, state: BlockEMState) -> tuple[BlockEMState, EMInfo]:
    """W by its curvature at the point ahead, then H block by block; if that loses, from where we are.

    There the curvature has to be looked at in a pass of its own. If rounding spoils both, W takes EM's update.
    """
    found, faster = _step_W(problem, state), state.momentum.faster()
    (new, residual), momentum = push_or_retreat(
        state.momentum,
        None if state.ahead is None else lambda: _newton_pass(problem, state, found, found.newton, faster.push),
        lambda: _from_here(problem, state, found),
        lambda made: made[0].objective <= state.objective,
    )
    for old in range(state.turn, new.turn):
        problem.data.arrays.drop(old)
    return new._replace(momentum=momentum), EMInfo(new.objective, residual)


class StepOfW(NamedTuple):
    """Where W's Newton step and EM's update lead ``at`` a point, and the KKT residual there."""

    at: Array
    newton: Array
    plain: Array
    residual: float


def _step_W(problem: BlockEMProblem, state: BlockEMState) -> StepOfW:
    """From the point ahead: the Newton steps of W's active cells, EM's updates beside them."""
    left, sums = problem.left, state.sums
    at = state.W if state.ahead is None else state.ahead
    plain, residual = _update_W(problem, state._replace(W=at))
    penalty = penalty_of(left, problem.options.mode, sums.denominator, {}).beside_known(at.shape[1], left.free)
    curved, is_whole = (sums.numerator, sums.curvature, state.active), problem.is_whole
    return StepOfW(at, step_by_curvature(problem.workers, plain, at, *curved, penalty, is_whole), plain, residual)


def _from_here(problem: BlockEMProblem, state: BlockEMState, found: StepOfW) -> tuple[BlockEMState, float]:
    """A step without momentum."""
    momentum = state.momentum
    if state.ahead is not None:
        momentum, turn = momentum.slower(), state.turn + 1
        active = choose_active(problem.left, found.at, found.plain, state.sums.denominator)
        sums = sums_over_blocks(problem, EMReturn(state.W, turn, active))
        state = state._replace(turn=turn, sums=sums, active=active, ahead=None)
        found = _step_W(problem, state)
    new, residual = _newton_pass(problem, state, found, found.newton, momentum.push)
    if not is_no_worse(new.objective, state.objective):
        new, residual = _newton_pass(problem, state, found, found.plain, momentum.push)
    return new, residual


def _newton_pass(
    problem: BlockEMProblem, state: BlockEMState, found: StepOfW, W: Array, push: float
) -> tuple[BlockEMState, float]:
    """(H at its Newton step from the point ahead, given W, and a look at the next such point; KKT residual)"""
    left, turn = problem.left, state.turn + 1
    beyond = left.with_free(W, ahead(W[:, left.free], state.W[:, left.free], push))
    active = choose_active(left, found.at, found.plain, state.sums.denominator)
    sums = sums_over_blocks(problem, NewtonPass(W, turn, beyond, push, unless_off(state.sums.largest), active))
    new = state._replace(W=W, turn=turn, sums=sums, active=active, ahead=beyond)
    return _at(problem, new), max(found.residual, sums.residual)


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
    active: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        Ht = np.maximum(self.rows(block.first, block.last), FLOOR) * self.scale
        if problem.newton:
            return _look_curved(problem, block, self.W, Ht, 0.0, self.active), {"H": Ht, "ahead": Ht}
        return _look(problem, block, self.W, Ht, 0.0)


class EMPass(NamedTuple):
    """A block's rows of H at their update given ``led``, where W's led, or with W beyond it by ``push``."""

    W: Array
    turn: int
    led: Array
    push: float | None
    largest: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        mode, names = problem.options.mode, ("H", "numerator") + (() if self.push is None else ("led",))
        old, numerator, *led_before = problem.data.arrays.get(self.turn - 1, block.number, *names)
        denominator = block.cells.weights.over_features(self.led)
        led, residual = update(block.right, mode, old, numerator, denominator, {}, problem.workers, self.largest)
        new = led if self.push is None else ahead_by_ratio(led, led_before[0], self.push)
        sums, kept = _look(problem, block, self.W, new, residual)
        return sums, kept if problem.options.accelerate is None else {**kept, "led": led}


class NewtonPass(NamedTuple):
    """A block's rows of H at their Newton step given W, from the point ahead; and a look at the next such point.

    That is ``beyond`` for W, and for H beyond its step by ``push``.
    """

    W: Array
    turn: int
    beyond: Array
    push: float
    largest: Array
    active: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        cells, mode = block.cells, problem.options.mode
        old, start = problem.data.arrays.get(self.turn - 1, block.number, "H", "ahead")
        new = np.array(start, order="C")
        penalty = penalty_of(block.right, mode, cells.weights.over_features(self.W), {})
        residual, log_mean = descend_rows(problem.workers, cells.by_samples, new, self.W, penalty, self.largest)
        ahead_of = ahead(new, old, self.push)
        sums = _look_curved(problem, block, self.beyond, ahead_of, residual, self.active)
        likelihood = log_mean - cells.weights.total(self.W, new) + block.constant
        prior = log_prior((block.right,), mode, (new,), {})
        return sums._replace(log_likelihood=likelihood, log_prior=prior), {"H": new, "ahead": ahead_of}


class EMReturn(NamedTuple):
    """A look at W and the rows of H as they are, where the step from the point ahead has lost."""

    W: Array
    turn: int
    active: Array

    def __call__(self, problem: BlockEMProblem, block: SampleBlock) -> tuple[EMBlockSums, dict[str, Array]]:
        (Ht,) = problem.data.arrays.get(self.turn - 1, block.number, "H")
        return _look_curved(problem, block, self.W, Ht, 0.0, self.active), {"H": Ht, "ahead": Ht}


def _look_curved(
    problem: BlockEMProblem, block: SampleBlock, W: Array, Ht: Array, residual: float, active: Array
) -> EMBlockSums:
    """A block's part of the sums at W and its rows of H; to W's curvature it is added, which is the largest of them."""
    so_far = None if block.before is None else block.before.curvature
    found, curvature = block.cells.sources.gather_curved(W, Ht, active, without(problem.left, W, active), so_far)
    return _sums(problem, block, W, Ht, residual, found)._replace(curvature=curvature)


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
    found = block.cells.sources.gather(W, Ht, "WH")
    return _sums(problem, block, W, Ht, residual, found), {"H": Ht, "numerator": found.of_H}


def _sums(
    problem: BlockEMProblem, block: SampleBlock, W: Array, Ht: Array, residual: float, found: Statistics
) -> EMBlockSums:
    """A block's part of the sums, of which ``found`` are those over its cells."""
    weights = block.cells.weights
    log_likelihood = found.log_mean - weights.total(W, Ht) + block.constant
    prior = log_prior((block.right,), problem.options.mode, (Ht,), {})
    denominator, largest = weights.over_samples(Ht), largest_of_columns(Ht)
    return EMBlockSums(found.of_W, denominator, largest, log_likelihood, prior, residual)


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
