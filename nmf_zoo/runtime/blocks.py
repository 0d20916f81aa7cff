"""Blocks of sweeps: a sampler is asked for many at a time, so that a small problem pays no Python per sweep.

Draws do not depend on the blocks: every sweep has a stream of its own, keyed by its number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.engine import DRAW, STEPS, Engine
from nmf_zoo.structure import Array

SHORT, LONG = 0.02, 0.1  # seconds: shorter blocks grow, longer ones shrink; an interruption waits for one block
MOST_SWEEPS = 4096


class Block(NamedTuple):
    """Sweeps first, ..., stop - 1, numbered from the start of the warm-up; it lies wholly in the warm-up or after it.

    Every ``thin``-th sweep counted from ``base`` is kept, none if ``thin`` is 0.
    ``tuning``: the block belongs to the warm-up.
    """

    first: int
    stop: int
    base: int
    thin: int
    tuning: bool

    def keeps(self, sweep: int) -> bool:
        """Whether this sweep is kept."""
        return self.thin > 0 and (sweep - self.base) % self.thin == 0

    @property
    def kept(self) -> int:
        """How many sweeps are kept."""
        return sum(map(self.keeps, range(self.first, self.stop)))

    def with_last(self) -> Block:
        """The same block, but of its sweeps the last is kept."""
        return self._replace(base=self.stop - 1, thin=self.stop - self.first)


def blocks(
    first: int,
    tune: int,
    draws: int,
    thin: int,
    keep_warmup: bool,
    longest: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Block]:
    """The blocks of a chain from sweep ``first`` on, of a length that suits their time, ``longest`` at the most.

    ``clock`` tells the seconds that the sweeps took, whatever else is done between two blocks.
    """
    size = 1
    while first < tune + draws:
        block = _block(first, size, tune, draws, thin, keep_warmup)
        began = clock()
        yield block
        seconds, first = clock() - began, block.stop
        size = min(2 * size, longest) if seconds < SHORT else max(size // 2, 1) if seconds > LONG else size


def equal_blocks(first: int, tune: int, draws: int, thin: int, keep_warmup: bool, size: int) -> Iterator[Block]:
    """Blocks of one length: what happens between them must not depend on how fast they are."""
    while first < tune + draws:
        block = _block(first, size, tune, draws, thin, keep_warmup)
        yield block
        first = block.stop


def _block(first: int, size: int, tune: int, draws: int, thin: int, keep_warmup: bool) -> Block:
    tuning = first < tune
    stop = min(first + size, tune if tuning else tune + draws)
    return Block(first, stop, 0 if tuning else tune, thin if keep_warmup or not tuning else 0, tuning)


def longest_block(engine: Engine) -> int:
    """The most sweeps that an engine is asked for in one call."""
    return 1 if engine.run is None else MOST_SWEEPS


def run_block(
    engine: Engine, problem: Any, state: Any, key: np.uint64, block: Block
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """(new state, variables, statistics) with the kept sweeps along the first axis; ``key`` is the chain's stream."""
    done = None if engine.run is None else engine.run(problem, state, key, block)
    return _step_by_step(engine, problem, state, key, block) if done is None else done


def _step_by_step(
    engine: Engine, problem: Any, state: Any, key: np.uint64, block: Block
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """The block of an engine that has no other way, or declined to run this problem's sweeps at once."""
    step = engine.tune if block.tuning and engine.tune is not None else engine.step
    assert engine.draw is not None
    draws: dict[str, Array] = {}
    statistics: dict[str, Array] = {}
    row = 0
    for sweep in range(block.first, block.stop):
        state, info = step(problem, state, child(key, STEPS, sweep))
        if block.keeps(sweep):
            values, stats = engine.draw(problem, state, child(key, DRAW, sweep))
            _put(draws, values, row, block)
            _put(statistics, {**info._asdict(), **stats}, row, block)
            row += 1
    return state, draws, statistics


def _put(out: dict[str, Array], values: dict[str, Any], row: int, block: Block) -> None:
    """Store a kept sweep; a block of one needs no copy, while others overwrite the state's arrays in place."""
    for name, value in values.items():
        if block.stop - block.first == 1:
            out[name] = np.asarray(value)[None]
            continue
        if name not in out:
            out[name] = np.empty((block.kept, *np.shape(value)), np.asarray(value).dtype)
        out[name][row] = value
