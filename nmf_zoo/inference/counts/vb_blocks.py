"""Variational Bayes of counts in blocks of samples: one pass over the blocks per iteration, q(W) alone in memory.

The updates are Cemgil's, as in :mod:`nmf_zoo.inference.counts.vb`: q(W) from sums over all blocks of the pass before,
then each block's rows of q(H) at the new E[w], and the block's part of the sums at the newest L::

    q(w) = Gamma(a_w + sum_b S_b, r_w + sum_b sum_n M E_h)          S_b = sum of E[C] over the samples of block b
    q(h) = Gamma(a_h + S_h, r_h + sum_f M E_w)                      and S_b, S_h at the new L_w, L_h

With momentum shapes and rates go on in the direction in which the update led, unless the bound would fall: then the
pass is made again without. The bound never falls; with one block its iterates are those in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.counts.blocks import CountBlocks
from nmf_zoo.inference.counts.vb import (
    OF_MINIBATCHES,
    SMALLEST_MEAN,
    VB,
    Gamma,
    GammaApproximation,
    VBInfo,
    ahead,
    divergence,
    moments_and_changes,
    moments_at,
    point,
    total_mean,
    update,
    weigh_W,
)
from nmf_zoo.inference.counts.vb import supports as supports_in_memory
from nmf_zoo.inference.shared.acceleration import Momentum, raise_bound
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import Logs, likelihood_constant
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.start import RandomRows, start_blocks
from nmf_zoo.kernels.counts.variational import changes_of_means
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.engine import CAN_RUN, BlockEngine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson


class VBBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    of_W : (F, K), the expected sources of W
    over_samples : (F, K) or (1, K), what the weights make of E[h]
    bound : the parts of the bound that the blocks have
    changes : (2, K), the largest change of E[h] and the largest E[h] of each column
    """

    of_W: Array
    over_samples: Array
    bound: float
    changes: Array

    def plus(self, other: VBBlockSums) -> VBBlockSums:
        """Those of this and of the next block."""
        of_W, over_samples = self.of_W + other.of_W, self.over_samples + other.over_samples
        return VBBlockSums(of_W, over_samples, self.bound + other.bound, np.maximum(self.changes, other.changes))


class BlockVBState(NamedTuple):
    """q of W, and the turn under which ``data.arrays`` holds that of H, its sources, and where its update led.

    updated : shape and rate where W's last update led, before they were pushed; None before the first
    """

    W: GammaApproximation
    turn: int
    sums: VBBlockSums
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Gamma | None = None


def supports(structure: Factorisation, options: VB) -> Verdict:
    """What VB in memory runs, of a prior of H that all samples share, with known hyperparameters."""
    asked = takes_blocks(structure, GammaPrior)
    if not asked:
        return asked
    for name, allowed in (("order", "cemgil"), ("start", "random")):
        found = getattr(options, name)
        if found != allowed:
            return Verdict(f"{name}={found!r} takes more than one pass over the blocks per iteration: use {allowed!r}")
    return CAN_RUN


def takes_block(block: Factorisation, options: VB) -> Verdict:
    """What VB in memory runs, of each block."""
    return supports_in_memory(block, without_minibatches(options))


def without_minibatches(options: VB) -> VB:
    """Without minibatches, which VB in memory has not."""
    return replace(options, batch_size=None, **{name: getattr(VB, name) for name in OF_MINIBATCHES})


def prepare(structure: Factorisation, options: VB, workers: Workers) -> CountBlocks:
    """Nothing is read yet."""
    return CountBlocks(structure, options, Side(structure.W, False), workers)


def init(problem: CountBlocks, key: np.uint64, start: Mapping[str, Array]) -> BlockVBState:
    """E = L = W as given or random at the scale of the data, and random H: one pass."""
    W, rows = start_blocks(problem.structure, key, start)
    first = point(W)
    return BlockVBState(first, 0, sums_over_blocks(problem, VBBeginning(first, 0, rows)))


def step(problem: CountBlocks, state: BlockVBState, key: np.uint64 | None = None) -> tuple[BlockVBState, VBInfo]:
    """One iteration."""
    updated = update(problem.left, state.sums.of_W, state.sums.over_samples, {})
    new = raise_bound(
        state,
        updated,
        problem.options.accelerate is not None,
        lambda: _pass(problem, state, updated, state.momentum.push),
        lambda: _pass(problem, state, updated, None),
    )
    problem.data.arrays.drop(state.turn)
    steps, tops = new.sums.changes
    of_H = float(np.max(steps / np.maximum(tops, SMALLEST_MEAN)))
    return new, VBInfo(new.bound, max(new.W.change, of_H))


def _pass(problem: CountBlocks, state: BlockVBState, led: Gamma, push: float | None) -> BlockVBState:
    """q of both factors at their updates, or beyond."""
    left, turn = problem.left, state.turn + 1
    at = led if push is None or state.updated is None else ahead(led, state.updated, push)
    W = moments_at(at, state.W, problem.workers, left.free)
    sums = sums_over_blocks(problem, VBPass(W, turn, led, push, state.W.mean))
    return state._replace(W=W, turn=turn, sums=sums, bound=sums.bound + bound_of_W(problem, W))


def bound_of_W(problem: CountBlocks, W: GammaApproximation) -> float:
    """What the bound holds beside the parts of the blocks."""
    left = problem.left
    return -divergence(W, *left.prior({}), left.free) if left.is_gamma else 0.0


class VBBeginning(NamedTuple):
    """The first look at W and random rows of H."""

    W: GammaApproximation
    turn: int
    rows: RandomRows

    def __call__(self, problem: CountBlocks, block: SampleBlock) -> tuple[VBBlockSums, dict[str, Array]]:
        H = self.rows(block.first, block.last)
        sums, kept = look(block, self.W, point(H))
        return sums, {**kept, "shape": H, "rate": np.ones((1, H.shape[1]))}


class VBPass(NamedTuple):
    """q of a block's rows of H at its update given ``led``, where W's led, or with W beyond it by ``push``.

    ``before`` (F, K) : the mean of W in the pass before
    """

    W: GammaApproximation
    turn: int
    led: Gamma
    push: float | None
    before: Array

    def __call__(self, problem: CountBlocks, block: SampleBlock) -> tuple[VBBlockSums, dict[str, Array]]:
        names = ("sources", "shape", "rate") + (() if self.push is None else ("led_shape", "led_rate"))
        of_H, *law = problem.data.arrays.get(self.turn - 1, block.number, *names)
        led = update(block.right, of_H, weigh_W(block.cells.weights, self.led, self.before, problem.left), {})
        at = led if self.push is None else ahead(led, Gamma(*law[2:]), self.push)
        H, changes = moments_and_changes(at, problem.workers, partial(changes_of_means, *law[:2]))
        sums, kept = look(block, self.W, H, changes)
        kept |= {"shape": H.shape, "rate": H.rate}
        if problem.options.accelerate is not None:
            kept |= {"led_shape": led.shape, "led_rate": led.rate}
        return sums, kept


def look(
    block: SampleBlock, W: GammaApproximation, H: GammaApproximation, changes: Array | None = None
) -> tuple[VBBlockSums, dict[str, Array]]:
    """A block's part of the sums at q of W and of its rows of H; of these the sources.

    ``changes`` : of E[h], where there was one before
    """
    sources, weights = block.cells
    found = sources.gather(W.geometric, H.geometric, "WH", Logs(W.log, H.log))
    bound = found.log_mean - total_mean(weights, W, H) + block.constant
    if H.shape is not None:
        bound -= divergence(H, *block.right.prior({}))
    changes = np.zeros((2, H.mean.shape[1])) if changes is None else changes
    sums = VBBlockSums(found.of_W, weights.over_samples(H.mean), bound, changes)
    return sums, {"sources": found.of_H}


def finish(problem: CountBlocks, state: BlockVBState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """The mean of q(W) as a posterior of one draw, its shape and rate; those of H go to ``data.arrays``."""
    structure, data, left = problem.structure, problem.data, problem.left
    name = structure.H.name
    for number in range(data.n_blocks):
        shape, rate = data.arrays.get(state.turn, number, "shape", "rate")
        of_q = {f"{name}_shape": shape, f"{name}_rate": np.broadcast_to(rate, shape.shape)}
        data.arrays.put(RESULT, number, {name: shape / rate, **of_q})
    data.arrays.drop(state.turn)
    if left.is_fixed:
        return {}, {}
    own, W = left.factor.variable, state.W
    rate = np.array(np.broadcast_to(W.rate, W.shape.shape))
    parameters = {f"{own}_shape": left.as_variable(W.shape), f"{own}_rate": left.as_variable(rate)}
    return structure.W.variables(W.mean[None]), parameters


def draw_gamma(shape: Array, rate: Array, generator: np.random.Generator) -> Array:
    """A draw from q."""
    return generator.standard_gamma(shape) / rate


ENGINE: BlockEngine = BlockEngine(
    name="vb",
    verb="fit",
    likelihoods=(Poisson,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
    takes_block=takes_block,
    constant=likelihood_constant,
    q=("shape", "rate"),
    draw_q=draw_gamma,
    is_for=lambda options: options.batch_size is None,
    in_memory=without_minibatches,
)
