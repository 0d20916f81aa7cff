"""Gibbs sampling of counts in blocks of samples: one pass over the blocks per sweep, W alone held in memory.

The conditionals are those of :mod:`nmf_zoo.inference.counts.gibbs`. Given W the samples are independent, and W sees of
them sums only. A sweep draws W from the sums of the pass before; then, block by block, H given the sources that were
allocated there, and new sources; then what sees of H its sums alone::

    w_fk ~ Gamma(a_w + sum_b S_b, r_w + sum_b sum_n M h_kn)     S_b = sum of C over the samples of block b
    h_kn ~ Gamma(a_h + sum_f C, r_h + sum_f M w_fk)             and C, S_b, at the new W and H
    scale  w_k -> c w_k, h_k -> h_k / c                         c from sum w_k, sum h_k
    hyperparameters, unknown scales of a prior with their factor    from sums of h_k and log h_k

Scales leave W H alone, and so the sources: H is divided when it is asked for, and its next draw does not ask. What
would take more passes is left out, and stays exact: shears, a product over all samples for each point that is tried,
and trajectories, a sum over all samples for each step.

H is kept as moments, over all sweeps after the warm-up, and as draws of the samples that were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from nmf_zoo.inference.counts.blocks import CountBlocks, CountsOfBlock
from nmf_zoo.inference.counts.gibbs import (
    Gibbs,
    GibbsInfo,
    GibbsState,
    check_finite,
    draw_side,
    draw_sources,
    movable,
    move_along_orbit,
    restore_known,
)
from nmf_zoo.inference.shared.factor_view import Side, prior_cells
from nmf_zoo.inference.shared.hyperparameter_draws import (
    GammaSums,
    Hyperparameters,
    draw_hyperparameters,
    lay_out_hyperparameters,
)
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.layout import (
    SparseSources,
    as_stored,
    compress,
    likelihood_constant,
    weigh,
)
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_counts, takes_gammas
from nmf_zoo.inference.shared.sample_blocks import SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.slice_sampling import PriorSums, log_prior_of_groups
from nmf_zoo.inference.shared.start import RandomRows, start_blocks, start_hyperparameters
from nmf_zoo.kernels.counts.sweeps import ACTIVATIONS, HYPERPARAMETERS, ORBIT, SOURCES, WEIGHTS
from nmf_zoo.kernels.numerics.moments import add_draws
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.engine import CAN_RUN, DRAW, STEPS, BlockEngine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Flat, GammaPrior, Poisson

FIRST_SOURCES = 2  # child of the stream of a start, whose first two are the factors'


class GibbsBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    of_W : (F, K), the sources of W
    over_samples : (F, K) or (1, K), what the weights make of H
    of_H : what its prior sees of H
    rows : (followed, K), rows of H at the samples that are followed
    log_likelihood : NaN where nobody asks
    """

    of_W: Array
    over_samples: Array
    of_H: GammaSums
    rows: Array
    log_likelihood: float

    def plus(self, other: GibbsBlockSums) -> GibbsBlockSums:
        """Those of this and of the next block."""
        return GibbsBlockSums(
            self.of_W + other.of_W,
            self.over_samples + other.over_samples,
            self.of_H.plus(other.of_H),
            self.rows + other.rows,
            self.log_likelihood + other.log_likelihood,
        )


class BlockGibbsState(NamedTuple):
    """W (F, K), the hyperparameters by name, and the turn under which ``data.arrays`` holds H and its sources.

    Attributes
    ----------
    scale : (K,) by which H of that turn, and its sums, are to be divided
    added : draws of H that are in the moments of that turn
    counts : 1 where H of that turn is one more, else 0
    """

    W: Array
    values: dict[str, Array]
    turn: int
    sums: GibbsBlockSums
    scale: Array
    added: int = 0
    counts: int = 0


@dataclass(frozen=True)
class BlockGibbsProblem(CountBlocks):
    """What the sweeps share; ``followed`` : samples whose rows of H every pass tells, the first of ``cells`` of W H."""

    followed: Array
    cells: tuple[Array, Array]
    hyperparameters: Hyperparameters | None

    def lay_out(self, structure: Factorisation) -> CountsOfBlock:
        """The cells that are not 0, a dense table's too, in the order in which they are stored."""
        sources = SparseSources(structure, self.workers, compress(structure, by_features=False))
        return CountsOfBlock(sources, weigh(structure))


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Gamma priors, that of H the same for all samples, with known hyperparameters or proper hyperpriors."""
    asked = takes_blocks(structure, GammaPrior, takes_unknowns=True) and takes_gammas(structure)
    asked = asked and _takes_options(options)
    if not asked:
        return asked
    for factor in (structure.W, structure.H):
        if isinstance(factor.prior, Flat):
            of_X = "whether a posterior exists is asked of all of X"
            return Verdict(f"{factor.name} has no prior, and {of_X}: give it one")
    return is_proper(structure)


def _takes_options(options: Gibbs) -> Verdict:
    if options.trajectories == "always":
        return Verdict('trajectories="always" takes a pass over the blocks for each step: leave it at "auto"')
    if options.temperatures is not None:
        return Verdict(f"temperatures={options.temperatures!r} takes as many passes over the blocks: leave it out")
    return CAN_RUN


def takes_block(structure: Factorisation, options: Gibbs) -> Verdict:
    """Whether the cells of a block are counts."""
    return takes_counts(structure)


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> BlockGibbsProblem:
    """Nothing is read yet."""
    cells, chosen = checked_cells(structure.shape), structure.data.chosen
    return BlockGibbsProblem(
        structure,
        options,
        Side(structure.W, False),
        workers,
        followed=cells[1] if chosen is None else np.concatenate([cells[1], chosen]),
        cells=cells,
        hyperparameters=lay_out_hyperparameters(structure, options.moves),
    )


def init(problem: BlockGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockGibbsState:
    """W as given or random at the scale of the data, H random, and its sources: one pass."""
    structure = problem.structure
    W, rows = start_blocks(structure, key, start)
    values = start_hyperparameters(structure, start)
    sums = sums_over_blocks(problem, GibbsBeginning(W, 0, rows, child(key, FIRST_SOURCES)))
    return BlockGibbsState(W, values, 0, sums, np.ones(structure.rank))


def step(problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64) -> tuple[BlockGibbsState, GibbsInfo]:
    """One sweep, of which the draw is known."""
    return _sweep(problem, state, key, tells=True, counts=True)


def run(
    problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64, block: Block
) -> tuple[BlockGibbsState, dict[str, Array], dict[str, Array]]:
    """Sweeps and the draws of those that are kept, whose log-likelihood takes time."""
    kept: tuple[list[dict], list[dict]] = [], []
    for sweep in range(block.first, block.stop):
        keeps = block.keeps(sweep)
        state, info = _sweep(problem, state, child(key, STEPS, sweep), tells=keeps, counts=not block.tuning)
        if keeps:
            values, stats = draw(problem, state, child(key, DRAW, sweep))
            kept[0].append(values)
            kept[1].append({**info._asdict(), **stats})
    draws, statistics = map(_stack, kept)
    return state, draws, statistics


def _stack(dicts: list[dict]) -> dict[str, Array]:
    return {name: np.stack([one[name] for one in dicts]) for name in dicts[0]} if dicts else {}


def _sweep(
    problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64, tells: bool, counts: bool
) -> tuple[BlockGibbsState, GibbsInfo]:
    W, values = _draw_W(problem, state, key), dict(state.values)
    work = GibbsPass(W, state.turn + 1, values, key, tells, counts, state.scale, state.added, state.counts)
    sums = sums_over_blocks(problem, work)
    problem.data.arrays.drop(state.turn)
    scale, scale_move = _move(problem, W, sums.of_H, values, key)
    new = BlockGibbsState(W, values, work.turn, sums, scale, state.added + state.counts, int(counts))
    return new, GibbsInfo(scale_move)


def _draw_W(problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64) -> Array:
    """From the sums over all blocks."""
    W, sums = state.W.copy(), state.sums
    if problem.left.is_fixed:
        return W
    priors = prior_cells(problem.structure, state.values)
    weight = sums.over_samples / state.scale
    draw_side(problem.workers, W, (priors.shape_w, sums.of_W), (priors.rate_w, weight), child(key, WEIGHTS))
    restore_known(problem.structure.W, W)
    return W


def _move(
    problem: BlockGibbsProblem, W: Array, of_H: GammaSums, values: dict[str, Array], key: np.uint64
) -> tuple[Array, float]:
    """(K,) by which H is to be divided, as W was multiplied, in place; and the size of the scale move.

    The samples of H are one to the scale move, whose activations are the sums of theirs.
    """
    structure = problem.structure
    total, scale_move = of_H.total[None].copy(), 0.0
    if "scale" in problem.options.moves and not problem.left.is_fixed:
        priors = prior_cells(structure, values)
        one = priors._replace(shape_h=priors.shape_h[:1], rate_h=priors.rate_h[:1])
        state = GibbsState(W, total, values, W, total, None)
        scale_move = move_along_orbit(("scale",), state, one, child(key, ORBIT), movable(structure))
    scale = of_H.total / total[0]
    found = draw_hyperparameters(problem.hyperparameters, W, of_H.over(scale), values, child(key, HYPERPARAMETERS))
    if found is not None:
        np.maximum(W * found, TINY, out=W)
        scale = scale * found
    return scale, scale_move


# -- what a pass makes of a block --------------------------------------------------------------------------------------


class GibbsBeginning(NamedTuple):
    """The sources at W and random rows of H."""

    W: Array
    turn: int
    rows: RandomRows
    key: np.uint64

    def __call__(self, problem: BlockGibbsProblem, block: SampleBlock) -> tuple[GibbsBlockSums, dict[str, Array]]:
        Ht = self.rows(block.first, block.last)
        sums, sources = _allocate(problem, block, self.W, Ht, child(self.key, block.number), tells=True)
        return sums, {"sources": sources}


class GibbsPass(NamedTuple):
    """A block's rows of H given W and the sources before, and new sources.

    ``scale``, ``added``, ``counted`` : of the state before, whose H may be one more draw
    """

    W: Array
    turn: int
    values: dict[str, Array]
    key: np.uint64
    tells: bool
    counts: bool
    scale: Array
    added: int
    counted: int

    def __call__(self, problem: BlockGibbsProblem, block: SampleBlock) -> tuple[GibbsBlockSums, dict[str, Array]]:
        before = self.turn - 1
        (of_H,) = problem.data.arrays.get(before, block.number, "sources")
        priors, weight = prior_cells(block.structure, self.values), block.cells.weights.over_features(self.W)
        Ht, key = np.empty_like(of_H), child(self.key, ACTIVATIONS, block.number)
        draw_side(problem.workers, Ht, (priors.shape_h, of_H), (priors.rate_h, weight), key)
        key = child(self.key, SOURCES, block.number)
        sums, sources = _allocate(problem, block, self.W, Ht, key, self.tells)
        kept = _moments(problem, block.number, before, self.scale, self.added, self.counted)
        return sums, {"sources": sources, **kept} | ({"H": Ht} if self.counts else {})


def _allocate(
    problem: BlockGibbsProblem, block: SampleBlock, W: Array, Ht: Array, key: np.uint64, tells: bool
) -> tuple[GibbsBlockSums, Array]:
    """A block's part of the sums, and the sources of its rows of H."""
    cells, none = block.cells, np.zeros((0, 0))
    state = GibbsState(W, Ht, {}, np.zeros_like(W), np.zeros_like(Ht), None)
    layout = cast(SparseSources, cells.sources).layout
    order = as_stored(layout)  # sorting by counts takes longer than it saves in one pass
    draw_sources(layout, order, problem.workers, state, key)
    of_H = GammaSums(len(Ht), Ht.sum(axis=0), np.log(Ht).sum(axis=0))
    log_likelihood = problem.log_likelihood(block, W, Ht) if tells else np.nan
    rows = _followed(problem.followed, block, Ht) if tells else none
    sums = GibbsBlockSums(state.of_features, cells.weights.over_samples(Ht), of_H, rows, log_likelihood)
    return sums, state.of_samples


def _followed(followed: Array, block: SampleBlock, Ht: Array) -> Array:
    """(followed, K): rows of H where they are of this block, and zeros."""
    out = np.zeros((len(followed), Ht.shape[1]))
    own = (block.first <= followed) & (followed < block.last)
    out[own] = Ht[followed[own] - block.first]
    return out


def _moments(
    problem: BlockGibbsProblem, number: int, turn: int, scale: Array, added: int, counted: int
) -> dict[str, Array]:
    """Mean and sum of squared deviations of a block's rows of H, with those of this turn if they are one more."""
    arrays = problem.data.arrays
    if not added and not counted:
        return {}
    moments = [array.copy() for array in arrays.get(turn, number, "mean", "squares")] if added else None
    if counted:
        (Ht,) = arrays.get(turn, number, "H")
        moments = moments or [np.zeros_like(Ht), np.zeros_like(Ht)]
        add_draws(*(array.ravel() for array in moments), (Ht / scale).reshape(1, -1), added)
    return dict(zip(("mean", "squares"), moments or [], strict=True))


# -- draws -------------------------------------------------------------------------------------------------------------


def draw(
    problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Array | np.float64]]:
    """W, hyperparameters and the chosen rows of H, the log joint density and the followed cells of W H."""
    structure, (features, samples) = problem.structure, problem.cells
    rows = state.sums.rows / state.scale
    values = structure.W.variables(state.W.copy()) | state.values
    if structure.data.chosen is not None:
        values[structure.H.name] = structure.H.orient(rows[len(samples) :].T)
    mean = followed_means(state.W, rows[: len(samples)], (features, np.arange(len(samples))))
    lp = np.float64(_log_joint(structure, state))
    check_finite(lp, state.W, rows)
    return values, {"lp": lp, "mean": mean}


def _log_joint(structure: Factorisation, state: BlockGibbsState) -> float:
    """log p(X, W, H, hyperparameters), from sums."""
    of_H, ones = state.sums.of_H.over(state.scale), np.ones((structure.rank, 1))
    sums = of_H.n_samples * ones, of_H.total[:, None], of_H.log_total[:, None]
    of_groups = PriorSums(Side(structure.H, True).gamma, *sums)
    total = state.sums.log_likelihood + float(np.sum(log_prior_of_groups(of_groups, state.values)))
    total += float(structure.W.log_density(state.W, state.values))
    return total + sum(
        float(np.sum(unknown.prior.log_density(state.values[name]))) for name, unknown in structure.unknowns.items()
    )


def finish(problem: BlockGibbsProblem, state: BlockGibbsState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """Moments of H, block by block, in ``data.arrays``; of how many draws they are."""
    data, name = problem.data, problem.structure.H.name
    added = state.added + state.counts
    for number in range(data.n_blocks):
        found = _moments(problem, number, state.turn, state.scale, state.added, state.counts)
        if found:
            sd = np.sqrt(found["squares"] / (added - 1)) if added > 1 else np.full_like(found["mean"], np.nan)
            data.arrays.put(RESULT, number, {f"{name}_mean": found["mean"], f"{name}_sd": sd})
    data.arrays.drop(state.turn)
    return {}, {"draws": added}


ENGINE: BlockEngine = BlockEngine(
    name="gibbs",
    verb="sample",
    likelihoods=(Poisson,),
    takes_known=True,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    draw=draw,
    run=run,
    finish=finish,
    takes_block=takes_block,
    constant=likelihood_constant,
)
