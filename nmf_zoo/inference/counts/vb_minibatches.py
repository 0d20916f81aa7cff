"""Stochastic variational Bayes of counts: a step of q(W) for each minibatch (Hoffman, Blei, Wang and Paisley 2013).

A pass takes the blocks in a random order, and the samples of each in another, cut into minibatches B. At the q(W) that
is there q of their H is updated ``inner`` times; the sums that W is made of then go a step towards those of all N
samples, as if these were like the ones of B::

    q(h) = Gamma(a_h + S_h, r_h + sum_f M E_w)      S_h = sum_f E[C], of the pass before, then at the newest L
    S <- (1 - rho) S + rho N / |B| sum_B E[C]       T <- (1 - rho) T + rho N / |B| sum_B M E_h
    q(w) = Gamma(a_w + S, r_w + T)                  the step of size rho along the bound's natural gradient

with rho = (t + offset)^-exponent at the t-th minibatch, so that the sum of all steps is infinite and that of their
squares is not. One of all samples has rho = 1: the iterates of VB over blocks without momentum.

Updates creep along the scales between the components of W and of H, which leave the likelihood as it is; so after each
pass of more than one minibatch they are set to where the bound is highest, unless some components of W are known. More
often, in the first pass, switched components off that had not learnt anything yet.

The objective of a pass is an estimate of the bound, each minibatch at the q(W) that it met; the residual is the change
of W over the share of the old sums that was replaced, so that it does not fall because steps do. In the end
:func:`close` goes over all blocks at the last q(W), once: the bound is that of this q(W) q(H), and one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.counts import vb_blocks
from nmf_zoo.inference.counts.blocks import CountBlocks
from nmf_zoo.inference.counts.vb import SMALLEST_MEAN, VB, Gamma, GammaApproximation, VBInfo, moments_at, point, update
from nmf_zoo.inference.counts.vb_blocks import VBBlockSums, bound_of_W, look
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import LARGEST_INT32, Logs
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, read_ahead, structure_of_samples, sums_over_blocks
from nmf_zoo.inference.shared.start import RandomRows, start_blocks
from nmf_zoo.kernels.numerics.multiplicative import column_changes
from nmf_zoo.kernels.random.keyed_rng import generator_of
from nmf_zoo.runtime.engine import BlockEngine, Verdict
from nmf_zoo.structure import Array, Data, Dense, Factorisation, OffsetsOfSamples, even_bounds


class SumsOfW(NamedTuple):
    """What q of W is made of: expected sources (F, K), and what the weights make of E[h], (F, K) or (1, K)."""

    of_W: Array
    over_samples: Array

    def toward(self, other: SumsOfW, size: float) -> SumsOfW:
        """A step of this size."""
        pairs = zip(self, other, strict=True)
        return SumsOfW(*((1.0 - size) * own + size * found for own, found in pairs))


class MinibatchState(NamedTuple):
    """q of W, and the turn under which ``data.arrays`` holds the sources of H.

    rows : random ones of H, for the first pass; seen : samples so far; sums : what W is made of, None before a step
    """

    W: GammaApproximation
    turn: int
    rows: RandomRows
    seen: int = 0
    sums: Any = None


def supports(structure: Factorisation, options: VB) -> Verdict:
    """What VB over blocks runs, of a W that is not known."""
    asked = vb_blocks.supports(structure, options)
    if asked and structure.W.is_fixed:
        return Verdict(f"{structure.W.name or 'W'} is known, and minibatches are steps of its q: leave batch_size= out")
    return asked


def init(problem: CountBlocks, key: np.uint64, start: Mapping[str, Array]) -> MinibatchState:
    """E = L = W as given or random at the scale of the data; nothing is read."""
    W, rows = start_blocks(problem.structure, key, start)
    return MinibatchState(point(W), 0, rows)


def step(problem: CountBlocks, state: MinibatchState, key: np.uint64) -> tuple[MinibatchState, VBInfo]:
    """One pass."""
    data, before, old, turn, generator = problem.data, state.W, 1.0, state.turn + 1, generator_of(key)
    numbers, bound = generator.permutation(data.n_blocks).tolist(), float(np.sum(data.constants))
    of_H, n_all = np.zeros(problem.structure.rank), problem.structure.shape[1]
    for number, (block, offsets) in zip(numbers, read_ahead(data.read, numbers), strict=True):
        sources = _sources_before(problem, state, number)
        for samples, batch in minibatches(problem, number, block, offsets, generator):
            if not state.turn:
                sources[samples] = gather_H(batch, state.W, point(sources[samples]))
            H = settle(problem, state.W, batch, sources[samples])
            found, kept = look(batch, state.W, H)
            size = step_size(problem, state.seen, len(samples))
            state = take_step(problem, state, found, len(samples), size)
            sources[samples], bound, old = kept["sources"], bound + found.bound, old * (1.0 - size)
            of_H += H.mean.sum(axis=0)
        data.arrays.put(turn, number, {"sources": sources})
    data.arrays.drop(state.turn)
    if len(samples) < n_all and problem.left.factor.known is None:
        state = rescaled(problem, state, best_scales(problem, state.W.mean, of_H))
    steps, tops = column_changes(before.mean, state.W.mean, 0, len(before.mean))
    changed = float(np.max(steps / np.maximum(tops, SMALLEST_MEAN))) / (1.0 - old)
    return state._replace(turn=turn), VBInfo(bound + bound_of_W(problem, state.W), changed)


def _sources_before(problem: CountBlocks, state: MinibatchState, number: int) -> Array:
    """Those of a block from the pass before; before the first one random rows of H."""
    data = problem.data
    if not state.turn:
        return state.rows(*data.bounds[number : number + 2])
    return data.arrays.get(state.turn, number, "sources")[0].copy()


def close(problem: CountBlocks, state: MinibatchState) -> tuple[MinibatchState, float]:
    """The bound at q of W as it is, and at q of H given that."""
    turn = state.turn + 1
    sums = sums_over_blocks(problem, LastLook(state.W, turn))
    problem.data.arrays.drop(state.turn)
    return state._replace(turn=turn), sums.bound + bound_of_W(problem, state.W)


class LastLook(NamedTuple):
    """q of a block's rows of H at q of W."""

    W: GammaApproximation
    turn: int

    def __call__(self, problem: CountBlocks, block: SampleBlock) -> tuple[VBBlockSums, dict[str, Array]]:
        (sources,) = problem.data.arrays.get(self.turn - 1, block.number, "sources")
        H = settle(problem, self.W, block, sources)
        return look(block, self.W, H)[0], {"shape": H.shape, "rate": H.rate}


# -- one minibatch ---------------------------------------------------------------------------------------------------


def minibatches(
    problem: CountBlocks, number: int, block: Data, offsets: OffsetsOfSamples, generator: np.random.Generator
) -> Iterator[tuple[Array, SampleBlock]]:
    """(samples, numbered within the block, and the model of these) of each minibatch of a block."""
    n = block.shape[1]
    ends = even_bounds(n, n_minibatches(problem, number))
    order = np.arange(n) if len(ends) == 2 else generator.permutation(n)
    shuffled = block if len(ends) == 2 else with_samples(block, order)
    for start, stop in pairwise(ends):
        samples = order[start:stop]
        structure = structure_of_samples(problem.structure, span_of(shuffled, start, stop), offsets.of(samples))
        yield (
            samples,
            SampleBlock(number, start, stop, structure, Side(structure.H, True), problem.lay_out(structure), 0.0),
        )


def n_minibatches(problem: CountBlocks, number: int) -> int:
    """Into how many minibatches of about the size asked for a block is cut."""
    first, last = problem.data.bounds[number : number + 2]
    return max(1, round((last - first) / problem.options.batch_size))


def with_samples(block: Data, order: Array) -> Data:
    """The samples in another order."""
    if isinstance(block, Dense):
        return Dense(values=block.values[:, order], mask=None if block.mask is None else block.mask[:, order])
    indptr = cast(Array, block.indptr)
    indptr = indptr if len(block.values) > LARGEST_INT32 else indptr.astype(np.int32)  # as indices: no copies
    matrix = sp.csc_array((block.values, block.rows, indptr), shape=block.shape)[:, order]
    return replace(block, rows=matrix.indices, values=matrix.data, indptr=matrix.indptr.astype(np.int64))


def span_of(block: Data, start: int, stop: int) -> Data:
    """Neighbouring samples."""
    if isinstance(block, Dense):
        mask = None if block.mask is None else block.mask[:, start:stop]
        return Dense(values=block.values[:, start:stop], mask=mask)
    starts = cast(Array, block.indptr)[start : stop + 1]
    cells, indptr = slice(starts[0], starts[-1]), starts - starts[0]
    cols = np.repeat(np.arange(stop - start, dtype=np.int32), np.diff(indptr))
    rows, values = block.rows[cells], block.values[cells]
    return replace(block, rows=rows, cols=cols, values=values, shape=(block.shape[0], stop - start), indptr=indptr)


def settle(problem: CountBlocks, W: GammaApproximation, block: SampleBlock, sources: Array) -> GammaApproximation:
    """q of rows of H given that of W, beginning with these sources."""
    cells, workers = block.cells, problem.workers
    weight, before = cells.weights.over_features(W.mean), GammaApproximation(sources, sources, None)
    H = moments_at(update(block.right, sources, weight, {}), before, workers)
    for _ in range(1, problem.options.inner):
        sources = gather_H(block, W, H)
        H = moments_at(update(block.right, sources, weight, {}), before, workers)
    return H


def gather_H(block: SampleBlock, W: GammaApproximation, H: GammaApproximation) -> Array:
    """Expected sources of rows of H."""
    return block.cells.sources.gather(W.geometric, H.geometric, "H", Logs(W.log, H.log)).of_H


def step_size(problem: CountBlocks, seen: int, n: int) -> float:
    """Of a minibatch of ``n`` samples after ``seen`` others; one that is half as large goes half as far."""
    options, n_all = problem.options, problem.structure.shape[1]
    if n == n_all:
        return 1.0
    batches = seen / options.batch_size
    return 1.0 - (1.0 - (1.0 + batches + options.offset) ** -options.exponent) ** (n / options.batch_size)


def take_step(problem: CountBlocks, state: MinibatchState, found: VBBlockSums, n: int, size: float) -> MinibatchState:
    """q of W after a step from ``n`` samples; its start is taken for the mean of sums that would have led there."""
    left, of_all = problem.left, of_all_samples(problem, found, n)
    own = SumsOfW(state.W.mean * of_all.over_samples, of_all.over_samples) if state.sums is None else state.sums
    sums = own.toward(of_all, size)
    W = moments_at(update(left, sums.of_W, sums.over_samples, {}), state.W, problem.workers, left.free)
    return state._replace(W=W, seen=state.seen + n, sums=sums)


def best_scales(problem: CountBlocks, W: Array, of_H: Array) -> Array:
    """The c (K,) for which the bound of q(c w) q(h / c) is highest, from E[w] (F, K) and the sums of E[h] (K,).

    The likelihood says nothing of c. Of it the bound has D log c - A c - B / c, with A = sum_f r_w E_w,
    B = sum_n r_h E_h, D = sum_f a_w - sum_n a_h.
    """
    (shape_w, rate_w), (shape_h, rate_h) = problem.left.prior({}), Side(problem.structure.H, True).prior({})
    F, N = problem.structure.shape
    A, B = np.sum(rate_w * W, axis=0), np.mean(rate_h, axis=0) * of_H
    D = F * np.mean(shape_w, axis=0) - N * np.mean(shape_h, axis=0)
    root = np.sqrt(D**2 + 4.0 * A * B)
    return np.where(D > 0.0, (root + D) / (2.0 * A), 2.0 * B / (root + np.abs(D)))


def rescaled(problem: CountBlocks, state: MinibatchState, scales: Array) -> MinibatchState:
    """q of W times these; the sums are those that lead there."""
    left, rate = problem.left, state.W.rate / scales
    W = moments_at(Gamma(state.W.shape, rate), state.W, problem.workers, left.free)
    return state._replace(W=W, sums=state.sums._replace(over_samples=rate - left.prior({})[1]))


def of_all_samples(problem: CountBlocks, found: VBBlockSums, n: int) -> SumsOfW:
    """What the sums would be if all samples were as these ``n`` are."""
    scale = problem.structure.shape[1] / n
    return SumsOfW(scale * found.of_W, scale * found.over_samples)


ENGINE: BlockEngine = replace(
    vb_blocks.ENGINE,
    supports=supports,
    init=init,
    step=step,
    close=close,
    is_for=lambda options: options.batch_size is not None,
)
