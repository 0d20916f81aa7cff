"""Variational Bayes of powers in blocks of samples: one pass over the blocks per iteration, q(W) alone in memory.

The updates are those of :mod:`nmf_zoo.inference.powers.vb`: q(W) from sums over all blocks of the pass before, then
each block's rows of q(H) at the new q(W), and the block's part of the sums at both::

    W: rho / 2 = r + sum_b sum_n E_h / m,   tau / 2 = t + G_w^2 sum_b sum_n x G_h / l^2

With momentum rho and tau go on in the direction in which the update led, unless the bound would fall: then the pass is
made again without. The bound never falls; with one block its iterates are those in memory. Whether a posterior exists
where W has no prior, or a gamma one beside zeros, depends on the cells of each feature over all blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.powers.blocks import PowerBlocks
from nmf_zoo.inference.powers.spectra import constant_of_powers, spectra_of
from nmf_zoo.inference.powers.vb import (
    LARGEST,
    GIGApproximation,
    GIGParameters,
    PowerVBInfo,
    PowerVBProblem,
    chunks_of,
    look_at_features,
    look_at_frames,
    moments_at,
    orders_of,
    own_part,
    pushed,
    relative_change,
    takes_samples,
    update,
)
from nmf_zoo.inference.shared.acceleration import Momentum, raise_bound
from nmf_zoo.inference.shared.factor_view import two_sides
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.propriety_of_powers import is_proper_over_blocks
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.start import RandomRows, start_blocks
from nmf_zoo.kernels.numerics.gig_moments import Orders, draw_gig_factor
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.kernels.powers.composite_bound import MeanPair
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.engine import CAN_RUN, BlockEngine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Blocked, Exponential, Factorisation, GammaPrior, InverseGammaPrior


class PowerVBBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    arithmetic, harmonic : (F, K), what W's update needs: sums of E / m and of G x / l^2
    fit, own : the parts of the bound that the cells of the blocks have, and their rows of q(H)
    changes : (2, K), the largest change of a harmonic mean and the largest one of each column of H
    """

    arithmetic: Array
    harmonic: Array
    fit: float
    own: float
    changes: Array

    def plus(self, other: PowerVBBlockSums) -> PowerVBBlockSums:
        """Those of this and of the next block."""
        return PowerVBBlockSums(
            self.arithmetic + other.arithmetic,
            self.harmonic + other.harmonic,
            self.fit + other.fit,
            self.own + other.own,
            np.maximum(self.changes, other.changes),
        )


class BlockPowerVBState(NamedTuple):
    """q of W, and the turn under which ``data.arrays`` holds that of H and where its update led.

    updated : the law of W where its last update led, before it was pushed; None before the first
    """

    W: GIGApproximation
    turn: int
    sums: PowerVBBlockSums
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


@dataclass(frozen=True)
class BlockPowerVBProblem(PowerBlocks):
    """What the iterations share; ``orders`` : of q(W), None of a known one, and of q(H)."""

    orders: tuple[Orders | None, Orders | None]

    def of(self, block: SampleBlock) -> PowerVBProblem:
        """The problem in memory of a block's samples."""
        sides, chunks = (self.left, block.right), chunks_of(block.cells)
        return PowerVBProblem(block.structure, self.options, sides, block.cells, 0.0, self.orders, chunks, self.workers)


def supports(structure: Factorisation, options: VB) -> Verdict:
    """What VB in memory runs, of a prior of H that all samples share, with known hyperparameters."""
    asked = takes_blocks(structure, GammaPrior, InverseGammaPrior)
    if not asked:
        return asked
    if options.start != "random":
        return Verdict(f"start={options.start!r} takes more than one pass over the blocks: use 'random'")
    cells = cast(Blocked, structure.data).tally
    return CAN_RUN if cells is None else is_proper_over_blocks(structure, *cells)


def takes_block(structure: Factorisation, options: VB) -> Verdict:
    """What VB in memory runs; whether a W without a prior has a posterior is asked of all blocks together."""
    asked = takes_samples(structure, options)
    return asked and (CAN_RUN if two_sides(structure)[0].is_flat else is_proper(structure))


def count_cells(block: Factorisation) -> Array:
    """(2, F): cells of each feature that were observed, and those of power 0 without a background."""
    spectra = spectra_of(block)
    bare = spectra.power == 0.0
    if spectra.seen.size:
        bare &= spectra.seen
    if spectra.background.size:
        bare &= spectra.background == 0.0
    return np.stack([spectra.n_seen[0].astype(np.int64), bare.sum(axis=0)])


def prepare(structure: Factorisation, options: VB, workers: Workers) -> BlockPowerVBProblem:
    """Nothing is read yet."""
    left, right = two_sides(structure)
    return BlockPowerVBProblem(structure, options, left, workers, (orders_of(left), orders_of(right)))


def init(problem: BlockPowerVBProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockPowerVBState:
    """q sharp at W as given or random at the scale of the data, and at random H: one pass."""
    W, rows = start_blocks(problem.structure, key, start)
    first = _sharp(W)
    return BlockPowerVBState(first, 0, sums_over_blocks(problem, PowerVBBeginning(first, 0, rows)))


def _sharp(factor: Array) -> GIGApproximation:
    value = np.minimum(factor, LARGEST)
    return GIGApproximation(value, value)


def step(
    problem: BlockPowerVBProblem, state: BlockPowerVBState, key: np.uint64 | None = None
) -> tuple[BlockPowerVBState, PowerVBInfo]:
    """One iteration."""
    law = update(problem.left, state.W, MeanPair(state.sums.arithmetic, state.sums.harmonic), {})
    led = _moments_of_W(problem, law, state)
    new = raise_bound(
        state,
        law,
        problem.options.accelerate is not None,
        lambda: _pass(problem, state, law, led, state.momentum.push),
        lambda: _pass(problem, state, law, led, None),
    )
    problem.data.arrays.drop(state.turn)
    residual = max(relative_change(new.W.changes), relative_change(new.sums.changes))
    return new, PowerVBInfo(new.bound, residual)


def _moments_of_W(problem: BlockPowerVBProblem, law: GIGParameters, state: BlockPowerVBState) -> GIGApproximation:
    return moments_at(problem.orders[0], law, state.W, problem.workers, problem.left.free)


def _pass(
    problem: BlockPowerVBProblem,
    state: BlockPowerVBState,
    law: GIGParameters,
    led: GIGApproximation,
    push: float | None,
) -> BlockPowerVBState:
    """q of both factors at their updates, or beyond."""
    W, turn = led, state.turn + 1
    if push is not None:
        W = _moments_of_W(problem, pushed(law, state.updated, push), state)
    sums = sums_over_blocks(problem, PowerVBPass(W, turn, led, push))
    own = sums.own if problem.left.is_fixed else own_part(problem.left, W, {}) + sums.own
    bound = sums.fit + own + float(np.sum(problem.data.constants))
    return state._replace(W=W, turn=turn, sums=sums, bound=bound)


class PowerVBBeginning(NamedTuple):
    """The first look at W and random rows of H."""

    W: GIGApproximation
    turn: int
    rows: RandomRows

    def __call__(self, problem: BlockPowerVBProblem, block: SampleBlock) -> tuple[PowerVBBlockSums, dict[str, Array]]:
        H = _sharp(self.rows(block.first, block.last))
        sums, fit = look_at_features(problem.of(block), self.W, H)
        nothing = np.zeros((2, problem.structure.rank))
        return PowerVBBlockSums(*sums, fit, 0.0, nothing), {"mean": H.mean, "harmonic": H.harmonic}


class PowerVBPass(NamedTuple):
    """q of a block's rows of H at its update given ``led``, where W's led, or with W beyond it by ``push``."""

    W: GIGApproximation
    turn: int
    led: GIGApproximation
    push: float | None

    def __call__(self, problem: BlockPowerVBProblem, block: SampleBlock) -> tuple[PowerVBBlockSums, dict[str, Array]]:
        own, names = problem.of(block), ("mean", "harmonic") + (() if self.push is None else ("led_rho", "led_tau"))
        mean, harmonic, *led_before = problem.data.arrays.get(self.turn - 1, block.number, *names)
        before = GIGApproximation(mean, harmonic)
        led = at = update(block.right, before, look_at_frames(own, self.led, before), {})
        if self.push is not None:
            at = pushed(led, GIGParameters(*led_before), self.push)
        H = moments_at(problem.orders[1], at, before, problem.workers)
        sums, fit = look_at_features(own, self.W, H)
        kept = {"mean": H.mean, "harmonic": H.harmonic, "rho": H.rho, "tau": H.tau}
        if problem.options.accelerate is not None:
            kept |= {"led_rho": led.rho, "led_tau": led.tau}
        return PowerVBBlockSums(*sums, fit, own_part(block.right, H, {}), H.changes), kept


def finish(problem: BlockPowerVBProblem, state: BlockPowerVBState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """The mean of q(W) as a posterior of one draw, its parameters; those of H go to ``data.arrays``."""
    structure, data, left = problem.structure, problem.data, problem.left
    name = structure.H.name
    for number in range(data.n_blocks):
        mean, rho, tau = data.arrays.get(state.turn, number, "mean", "rho", "tau")
        data.arrays.put(RESULT, number, {name: mean, **_of_q(name, problem.orders[1], rho, tau)})
    data.arrays.drop(state.turn)
    if left.is_fixed:
        return {}, {}
    own, W = left.factor.variable, state.W
    parameters = _of_q(own, problem.orders[0], W.rho, W.tau)
    of_W = {word: left.as_variable(np.array(array)) for word, array in parameters.items()}
    return structure.W.variables(W.mean[None]), of_W


def _of_q(name: str, orders: Orders | None, rho: Array, tau: Array) -> dict[str, Array]:
    assert orders is not None
    return {f"{name}_order": np.broadcast_to(orders.p, rho.shape), f"{name}_rho": rho, f"{name}_tau": tau}


def draw_gig(order: Array, rho: Array, tau: Array, generator: np.random.Generator) -> Array:
    """A draw from q."""
    out = np.empty(rho.shape)
    orders = Orders(np.ascontiguousarray(order), np.full(order.shape, -1), np.empty((0, 0, 0)))
    draw_gig_factor(
        out, np.ascontiguousarray(rho), np.ascontiguousarray(tau), orders, generator.integers(1 << 63, dtype=np.uint64)
    )
    return out


ENGINE: BlockEngine = BlockEngine(
    name="vb",
    verb="fit",
    likelihoods=(Exponential,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
    takes_block=takes_block,
    constant=constant_of_powers,
    tally=count_cells,
    q=("order", "rho", "tau"),
    draw_q=draw_gig,
)
