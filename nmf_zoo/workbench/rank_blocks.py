"""Ranks judged over blocks of samples: VB's bound, and what each block held out.

A block splits its own cells, or its counts where it is sparse, by a stream of its number: all ranks see the same split,
and none of it is kept, since it is drawn again where it is scored. One fit follows the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from nmf_zoo.errors import InputError
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence.contract import Method
from nmf_zoo.inference.registry import over_blocks
from nmf_zoo.inference.shared.sample_blocks import structure_of_samples
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.results.posterior import Draw
from nmf_zoo.runtime.block_arrays import RESULT, InMemory
from nmf_zoo.runtime.driver import FitRun, Solution, run_restarts
from nmf_zoo.runtime.engine import DRAW, BlockEngine
from nmf_zoo.search.options import AUTO
from nmf_zoo.structure import Array, Cells, Data, Factorisation, OffsetsOfSamples
from nmf_zoo.verbs.block_source import BlockSource, FeatureLabels, Samples, as_data, as_given
from nmf_zoo.verbs.fit_blocks import surveyed, with_arrays
from nmf_zoo.workbench import bounds, holdout
from nmf_zoo.workbench.holdout import FIT, SPLIT, Holdout, Split
from nmf_zoo.workbench.rank_search import INTERRUPTED, Outcome


def check_of_blocks(judge: Method, search: Any, checkpoint: Any, executor: Any) -> None:
    """Refuse what is not done over blocks."""
    if judge not in (bounds.METHOD, holdout.METHOD):
        raise InputError("method", f"{judge.name!r} with data=", "'bound' or 'holdout'", "the others hold all of X")
    if search not in (None, AUTO):
        raise InputError("search", f"{search!r} with data=", "None: fits over blocks begin at random", "leave it out")
    for name, given in (("checkpoint", checkpoint), ("executor", executor)):
        if given is not None:
            raise InputError(name, "a value with data=", "None: one fit follows the other", "leave it out")


def without_correction(options: Any) -> Any:
    """Options of a bound that is taken as it is: what it lacks needs all of q."""
    return replace(options, corrected=False) if isinstance(options, bounds.RankBound) else options


def judge_over_blocks(
    structures: Mapping[int, Factorisation],
    source: BlockSource,
    judge: Method,
    options: Any,
    restarts: int,
    key: np.uint64,
    *,
    cores: int,
    progressbar: bool,
) -> dict[tuple[int, int], Outcome]:
    """The outcome of every rank and restart, with the streams that they have in memory; after Ctrl-C of some."""
    found = {(rank, restart): INTERRUPTED for rank in structures for restart in range(restarts)}
    fit = FitRun(max_iter=options.max_iter, tol=options.tol, draws=1, cores=cores, progressbar=progressbar)
    try:
        for rank, restart in found:
            began = time.perf_counter()
            if judge is holdout.METHOD:
                value, error, end = _score(structures[rank], source, options, fit, child(key, restart))
            else:
                stream = child(key, restart, rank)
                over = over_blocks(vb.ENGINE, options.vb)
                solution = _fitted(structures[rank], source, over, options.vb, fit, InMemory(), stream)
                value, error, end = solution.objective[-1], 0.0, solution.status
            seconds = time.perf_counter() - began
            found[rank, restart] = Outcome(value, error, np.nan, seconds, _word(end, judge))
    except KeyboardInterrupt:
        if not any(outcome is not INTERRUPTED for outcome in found.values()):
            raise
    return found


def _fitted(
    declared: Factorisation,
    source: BlockSource,
    over: BlockEngine,
    options: Any,
    fit: FitRun,
    arrays: InMemory,
    stream: np.uint64,
) -> Solution:
    """One fit, from a start of its own stream; H is in ``arrays``."""
    structure, starts = surveyed(declared, source, over, options)
    whole = with_arrays(structure, arrays)
    (solution,), _ = run_restarts(over, whole, options, fit, stream, starts, streams=[stream])
    return solution


def _word(end: str, judge: Method) -> str:
    """How a run ended, as the table of ranks has it; a fit that Ctrl-C cut short is none."""
    if end == "interrupted":
        raise KeyboardInterrupt
    return end if judge.is_bound and end == "converged" else "max_iter" if judge.is_bound else "complete"


# -- held-out cells --------------------------------------------------------------------------------------------------


class TrainingBlocks:
    """The blocks of a source without what they hold out."""

    def __init__(self, structure: Factorisation, source: BlockSource, share: float, key: np.uint64):
        self._declared, self._source, self._share, self._key = structure, source, share, key
        self.shape, self.bounds = source.shape, source.bounds
        self.coords = getattr(source, "coords", None)
        self._labels = FeatureLabels(structure.coords.get(structure.axes[0]))
        data, offsets = as_data(source, 0)
        is_thinned = isinstance(data, Cells) and data.is_complete
        self.structure = _dimmed(structure, 1.0 - share, offsets.exposure is not None) if is_thinned else structure

    def split(self, number: int) -> Split:
        """What a block keeps, and what it holds out."""
        return self._split(*as_data(self._source, number), number)

    def _split(self, data: Data, offsets: OffsetsOfSamples, number: int) -> Split:
        block = structure_of_samples(self._declared, data, offsets)
        is_split = block.is_integer and block.likelihood.has_free_zeros
        if isinstance(data, Cells) and data.is_complete and not is_split:
            do = "use method='bound', or blocks of arrays"
            raise InputError("data", "sparse blocks of numbers that are no counts", "counts, which are split", do)
        return holdout.hold_out(block, self._share, child(self._key, number))

    def read(self, number: int) -> Samples:
        """What a block keeps."""
        whole, offsets = as_data(self._source, number, self._labels)
        training = self._split(whole, offsets, number).training
        data, likelihood = cast(Data, training.data), training.likelihood
        exposure = None if offsets.exposure is None else np.atleast_2d(cast(Array, likelihood.exposure))[0]
        background = None if offsets.background is None else as_given(likelihood.background)
        if not isinstance(data, Cells):
            return Samples(data.values, exposure, data.mask, background=background)
        matrix = sp.csc_array((data.values, (data.rows, data.cols)), shape=data.shape)
        return Samples(matrix, exposure, observed=None if data.is_complete else "stored", background=background)


def _dimmed(structure: Factorisation, share: float, with_exposures: bool) -> Factorisation:
    """The model of counts of which each was seen with the probability ``share``.

    Where exposures come with the samples these say so alone, and backgrounds that come with them are less, too.
    """
    found = holdout.dimmed(structure, share)
    if not with_exposures:
        return found
    return replace(found, likelihood=replace(found.likelihood, exposure=structure.likelihood.exposure))


def _score(
    structure: Factorisation, source: BlockSource, options: Holdout, fit: FitRun, key: np.uint64
) -> tuple[float, float, str]:
    """(held-out log-likelihood, its standard error, how the fit ended); as :func:`nmf_zoo.workbench.holdout.score`."""
    kept = TrainingBlocks(structure, source, options.share, child(key, SPLIT))
    engine, own = holdout.resolve(options.engine, structure)
    over, arrays, stream = over_blocks(engine, own, "fit"), InMemory(), child(key, FIT, structure.rank)
    solution = _fitted(kept.structure, kept, over, own, fit, arrays, stream)
    parts = []
    for number in range(len(source.bounds) - 1):
        split = kept.split(number)
        own_draws = 0 if split.is_thinned else options.draws
        draws = _draws(structure, solution, over, arrays, number, own_draws, child(stream, DRAW))
        parts.append(holdout.thinned_scores(split, draws) if split.is_thinned else holdout.cell_scores(split, draws))
    scores = np.concatenate(parts)
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
    return float(np.sum(scores)), float(np.sqrt(len(scores))) * spread, solution.status


def _draws(
    structure: Factorisation,
    solution: Solution,
    over: BlockEngine,
    arrays: InMemory,
    number: int,
    n_draws: int,
    key: np.uint64,
) -> Iterator[Draw]:
    """Draws of W and of a block's H from q; the point, or q's mean, where there is no q or for no draws.

    W H has the product of the means as its mean under q. Draws of W are the same for all blocks.
    """
    W, name = structure.W, structure.H.name
    mean = W.value({own: array[0] for own, array in solution.values.items()})
    (of_H,) = arrays.get(RESULT, number, name)
    if not n_draws or over.draw_q is None:
        yield Draw(mean, of_H.T, {}, (0, 0), (0, 0))
        return
    q = arrays.get(RESULT, number, *(f"{name}_{word}" for word in over.q))
    of_W = [] if W.is_fixed else [solution.parameters[f"{W.variable}_{word}"] for word in over.q]
    for at in range(n_draws):
        drawn = W.value({W.variable: over.draw_q(*of_W, generator_of(child(key, 0, at)))}) if of_W else mean
        yield Draw(drawn, over.draw_q(*q, generator_of(child(key, 1 + number, at))).T, {}, (0, at), (0, at))
