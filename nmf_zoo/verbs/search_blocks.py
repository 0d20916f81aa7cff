"""A search before a fit over blocks: on whole blocks that the seed chooses, in memory; the fit begins with its W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.errors import number_of
from nmf_zoo.inference.shared.sample_blocks import structure_of_samples
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.driver import NOTHING_DONE, FitRun
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.runtime.state_patterns import Each
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.search.options import AUTO, Search, search_of
from nmf_zoo.search.run import run_search
from nmf_zoo.structure import (
    Array,
    Blocked,
    Cells,
    Data,
    Dense,
    Factorisation,
    OffsetsOfSamples,
    side_by_side,
)
from nmf_zoo.verbs.block_source import BLOCK_CELLS
from nmf_zoo.verbs.starts import SHARE

BLOCKS = 1 << 41  # the stream that chooses blocks among those of a run's fits, which are numbered from 0
SAVED = {"W": Each(np.ndarray), "told": str}  # in the checkpoint of a run


class Chosen(NamedTuple):
    """The model of the samples of some blocks, and how many blocks these are."""

    structure: Factorisation
    n_blocks: int


class Begun(NamedTuple):
    """Where the fit begins, by names of variables; what was searched, in words."""

    start: dict[str, Array]
    told: str


def search_of_blocks(
    asked: Any, restarts: int, chosen: Engine, options: Any, initvals: Any, declared: Factorisation
) -> Search | None:
    """As of a fit in memory; but "auto" is one random start, and restarts alone are as many fits on the same samples.

    Raises
    ------
    InputError : as :func:`~nmf_zoo.search.options.search_of`
    """
    if restarts == 1 and (asked is None or (isinstance(asked, str) and asked == AUTO)):
        return None
    found = search_of(asked, restarts, chosen, options, initvals, declared)
    return Search(fits=restarts, starts=restarts) if found is None and restarts > 1 else found


def searched(
    structure: Factorisation, chosen: Engine, options: Any, run: FitRun, key: np.uint64, saved: Checkpoint | None
) -> Begun:
    """W of the best optimum on some blocks; of ``max_seconds`` a fifth is for the search. A checkpoint keeps it.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C ended the search
    """
    part = None if saved is None else saved.part("starts")
    kept = None if part is None else part.load(SAVED)
    if kept is not None:
        return Begun(dict(kept.tree["W"]), kept.tree["told"])
    blocks = choose(structure, key)
    seconds = None if run.max_seconds is None else SHARE * run.max_seconds
    within = replace(run, max_seconds=seconds, on_step=None)
    _, optima, early = run_search(chosen, blocks.structure, options, within, cast(Search, run.search), key)
    if early == INTERRUPTED:
        raise KeyboardInterrupt(NOTHING_DONE)
    point = optima.best.point or {}
    start = {name: np.asarray(point[name]) for name in structure.W.shapes if name in point}
    words = f"{number_of(blocks.structure.shape[1], 'sample')} in {number_of(blocks.n_blocks, 'block')}"
    told = f"the best of {optima.fits} fits to {words}"
    if part is not None:
        part.save({"W": start, "told": told}, {})
    return Begun(start, told)


def choose(structure: Factorisation, key: np.uint64, most: int = BLOCK_CELLS) -> Chosen:
    """Blocks in an order that the key draws, as long as all of them have up to ``most`` stored cells; one at least."""
    data = cast(Blocked, structure.data)
    found: list[tuple[int, Data, OffsetsOfSamples]] = []
    cells = 0
    for number in generator_of(child(key, BLOCKS)).permutation(data.n_blocks):
        block, offsets = data.read(int(number))
        if found and (cells + block.values.size > most or not _are_alike(found[0][1:], (block, offsets))):
            continue
        found.append((int(number), block, offsets))
        cells += block.values.size
        if cells >= most:
            break
    found.sort(key=lambda read: read[0])
    _, blocks, offsets = zip(*found, strict=True)
    whole = side_by_side(offsets, [block.shape[1] for block in blocks])
    assert whole is not None  # of blocks that are alike
    return Chosen(structure_of_samples(structure, _side_by_side(blocks), whole), len(found))


def _are_alike(one: tuple[Data, OffsetsOfSamples], other: tuple[Data, OffsetsOfSamples]) -> bool:
    """Whether two blocks can be one table, and what came with their samples as well."""
    (cells, offsets), (of_other, theirs) = one, other
    if type(cells) is not type(of_other) or (isinstance(cells, Cells) and cells.is_complete != of_other.is_complete):
        return False
    return side_by_side([offsets, theirs], [cells.shape[1], of_other.shape[1]]) is not None


def _side_by_side(blocks: Sequence[Data]) -> Data:
    """The samples of all of them, listed cells feature by feature, as in memory."""
    n_samples = sum(block.shape[1] for block in blocks)
    values = [block.values for block in blocks]
    if isinstance(blocks[0], Dense):
        masks = [np.ones(b.shape, bool) if b.mask is None else b.mask for b in cast(Sequence[Dense], blocks)]
        mask = np.concatenate(masks, axis=1)
        return Dense(values=np.concatenate(values, axis=1), mask=None if mask.all() else mask)
    listed = cast(Sequence[Cells], blocks)
    firsts = np.cumsum([0, *(block.shape[1] for block in listed[:-1])])
    cols = np.concatenate([block.cols + np.int32(first) for block, first in zip(listed, firsts, strict=True)])
    shape = listed[0].shape[0], n_samples
    rows, whole = np.concatenate([block.rows for block in listed]), np.concatenate(values)
    order = np.lexsort((cols, rows))
    rows, cols, whole = rows[order], cols[order], whole[order]
    return Cells(rows=rows, cols=cols, values=whole, shape=shape, is_complete=listed[0].is_complete)
