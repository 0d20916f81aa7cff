"""Passes over data in blocks of whole samples.

Given W the samples are independent. So a pass takes each block's rows of H and its sources, and what W needs of them
are sums over the blocks. Neighbouring blocks are one of at most `SHARDS` shards; sums are added in the order of the
blocks within a shard, and in the order of the shards, by whatever processes these are worked on: the bits are the same.
While one block is worked on the next is read, and beside the last one the first again: two are in memory. So it is with
the arrays that are kept of a block, which are written meanwhile, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Blocked,
    Data,
    Factorisation,
    Flat,
    LogLinearGammaPrior,
    Offset,
    OffsetsOfSamples,
    Proper,
    Unknown,
    sides_of,
)

T = TypeVar("T")
SHARDS = 256  # at the most: as many processes can share a pass
AT_A_TIME = 2  # blocks in memory: the one that is worked on, and the next


class SampleBlock(NamedTuple):
    """A block as an engine works on it.

    Attributes
    ----------
    number : from 0
    first, last : its samples
    structure : the model of its samples
    right : the side of its rows of H
    cells : its data as the engine lays them out
    constant : what its log-likelihood holds beside the factors
    before : the sums over the blocks of its shard before it, where there are some; what is large is added there
    """

    number: int
    first: int
    last: int
    structure: Factorisation
    right: Side
    cells: Any
    constant: float
    before: Any = None


class BlockReader:
    """Reads blocks for one pass after the other in a thread of its own; another process has another.

    Attributes
    ----------
    held : blocks that passes find in memory, by number: all, where a pass has them there together anyway, else none
    """

    def __init__(self) -> None:
        self.held: dict[int, SampleBlock] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[int, Future[Any]] | None = None

    def __reduce__(self) -> Any:
        return BlockReader, ()

    def read(self, read: Callable[[int], T], numbers: Sequence[int], goes_on: bool) -> Iterator[T]:
        """``read(number)`` of each, each while the one before is worked on; of the first, too, where a pass follows.

        Pieces that a worker of a cluster has in several threads read side by side.
        """
        ahead, self._ahead = self._ahead, None
        waiting = ahead[1] if ahead is not None and ahead[0] == numbers[0] else self._ask(read, numbers[0])
        for number in numbers[1:]:
            found = waiting.result()
            waiting = self._ask(read, number)
            yield found
        found = waiting.result()
        if goes_on:
            self._ahead = numbers[0], self._ask(read, numbers[0])
        yield found

    def _ask(self, read: Callable[[int], Any], number: int) -> Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        return self._thread.submit(read, number)


@dataclass(frozen=True)
class BlockProblem(ABC):
    """What the passes of a run share; it can be pickled, as the work of a pass can.

    structure : the model of all samples, whose data are Blocked
    left : the side of W
    workers : threads of this process
    reader : what reads the blocks of this process
    """

    structure: Factorisation
    options: Any
    left: Side
    workers: Workers
    reader: BlockReader = field(default_factory=BlockReader, init=False, repr=False, compare=False)

    @property
    def data(self) -> Blocked:
        return cast(Blocked, self.structure.data)

    @abstractmethod
    def lay_out(self, structure: Factorisation) -> Any:
        """The data of a block's model, as passes want them."""

    @abstractmethod
    def log_likelihood(self, block: SampleBlock, W: Array, Ht: Array) -> float:
        """Of a block's data, given W and its rows of H."""


class BlockSums(Protocol):
    """What a pass adds up."""

    def plus(self, other: Any) -> Any:
        """Those of this and of the next block."""


class BlockWork(Protocol):
    """What a pass makes of a block."""

    @property
    def turn(self) -> int:
        """Under which its arrays are kept; it asks for those of the turn before."""

    def __call__(self, problem: Any, block: SampleBlock) -> tuple[Any, dict[str, Array]]:
        """(its part of the sums, arrays to keep)"""


def sums_over_blocks(problem: BlockProblem, work: BlockWork) -> Any:
    """One pass over all blocks: the sums. Arrays of each block are in ``data.arrays`` then."""
    n_blocks = problem.data.n_blocks
    shards, make = shards_of(n_blocks), _sums_by_cluster
    if problem.data.cluster is None:
        make = sums_of_shards
        shards = [range(n_blocks)] if n_blocks <= SHARDS else shards  # of one block each: the same sums, in that order
    return reduce(lambda total, sums: total.plus(sums), make(problem, work, shards))


def shards_of(n_blocks: int) -> list[range]:
    """The numbers of the blocks of each shard."""
    size = -(-n_blocks // SHARDS)
    return [range(first, min(first + size, n_blocks)) for first in range(0, n_blocks, size)]


def sums_of_shards(
    problem: BlockProblem, work: BlockWork, shards: Sequence[range], kept: Sequence[SampleBlock] | None = None
) -> Iterator[Any]:
    """The sums of each shard, by this process; ``kept`` are all their blocks, where it has them."""
    numbers, arrays = [number for shard in shards for number in shard], problem.data.arrays
    blocks = sample_blocks(problem, numbers) if kept is None else iter(kept)
    following = [(work.turn - 1, number) for number in numbers[1:]]
    following += [(work.turn, numbers[0])] if 1 < len(numbers) == problem.data.n_blocks else []
    expected = iter(following)
    for shard in shards:
        total: Any = None
        for _ in shard:
            block = next(blocks)._replace(before=total)
            for place in islice(expected, 1):
                arrays.expect(*place)
            sums, made = work(problem, block)
            if made:
                arrays.put(work.turn, block.number, made)
            total = sums if total is None else total.plus(sums)
        yield total


def _sums_by_cluster(problem: BlockProblem, work: BlockWork, shards: Sequence[range]) -> Iterator[Any]:
    """The sums of each shard, by other processes, which leave its arrays where all see them."""
    for sums, receipt in problem.data.cluster.map(_sums_of_shard, problem, work, shards, _blocks_of_shard):
        problem.data.arrays.note(work.turn, receipt)
        yield sums


def _blocks_of_shard(problem: BlockProblem, shard: range) -> list[SampleBlock]:
    return list(sample_blocks(problem, shard))


def _sums_of_shard(
    problem: BlockProblem, work: BlockWork, shard: range, kept: Sequence[SampleBlock] | None
) -> tuple[Any, Any]:
    (sums,) = sums_of_shards(problem, work, [shard], kept)
    return sums, problem.data.arrays.receipt(work.turn, shard)


def sample_blocks(problem: BlockProblem, numbers: Sequence[int]) -> Iterator[SampleBlock]:
    """Blocks of the problem's data."""
    data, held = problem.data, problem.reader.held

    def read(number: int) -> SampleBlock:
        if number in held:
            return held[number]
        block = structure_of_block(problem.structure, number)
        first, last = (int(bound) for bound in data.bounds[number : number + 2])
        constant = float(data.constants[number])
        found = SampleBlock(number, first, last, block, Side(block.H, True), problem.lay_out(block), constant)
        if data.n_blocks <= AT_A_TIME:
            held[number] = found
        return found

    return problem.reader.read(read, numbers, goes_on=len(numbers) == data.n_blocks)


def structure_of_block(structure: Factorisation, number: int) -> Factorisation:
    """The model of a block's samples alone, with their data."""
    return structure_of_samples(structure, *cast(Blocked, structure.data).read(number))


def structure_of_samples(structure: Factorisation, block: Data, offsets: OffsetsOfSamples) -> Factorisation:
    """The model of these samples alone, with what came with them."""
    H = replace(structure.H, shape=(structure.rank, block.shape[1]))
    return replace(structure, data=block, H=H, likelihood=offsets.in_place(structure.likelihood))


def read_ahead(read: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """``read(number)`` of each, each while the one before is worked on."""
    return BlockReader().read(read, numbers, goes_on=False)


class BlockLogJoint(NamedTuple):
    """A pass for log p(X, H | W) at rows of H that ``data.arrays`` holds under the name of H; it keeps nothing."""

    W: Array
    turn: int

    def __call__(self, problem: BlockProblem, block: SampleBlock) -> tuple[Total, dict[str, Array]]:
        H = block.structure.H
        (Ht,) = problem.data.arrays.get(self.turn - 1, block.number, H.name)
        fit = problem.log_likelihood(block, self.W, Ht)
        return Total(fit + H.log_density(np.ascontiguousarray(Ht.T), {})), {}


class Total(NamedTuple):
    """A number that is added up."""

    value: float

    def plus(self, other: Total) -> Total:
        return Total(self.value + other.value)


def log_joint_in_blocks(problem: BlockProblem, W: Array, turn: int) -> float:
    """log p(X, W, H) at rows of H that ``data.arrays`` holds under the name of H, in a pass of its own."""
    of_samples = sums_over_blocks(problem, BlockLogJoint(W, turn + 1))
    return float(problem.structure.W.log_density(W, {}) + of_samples.value)


def takes_blocks(structure: Factorisation, *families: Any, takes_unknowns: bool = False) -> Verdict:
    """What every engine that goes over blocks asks: nothing of H but its law is known, and samples share that.

    ``structure`` is as declared, without data. H has a prior of one of these families, or none.
    """
    H = structure.H
    if isinstance(H.prior, LogLinearGammaPrior):
        return Verdict(f"{H.name} depends on covariates of its samples, and samples come with data= alone")
    if structure.unknowns and not takes_unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"hyperparameter {names} is unknown, and over blocks of samples they are known: give numbers")
    if not H.is_free:
        return Verdict(f"{H.name or 'H'} is known, or some of its components are, and samples come with data= alone")
    if not isinstance(H.prior, (*families, Flat)):
        taken = " or ".join(family.family for family in families)
        return Verdict(f"{H.name} has a {H.prior.family} prior, and over blocks of samples a {taken} one or none")
    shapes = [p.shape for p in H.prior.parameters.values()] if isinstance(H.prior, Proper) else []
    if any(len(shape) > 1 and shape[1] > 1 for shape in shapes):
        return Verdict(f"the prior of {H.name} differs from sample to sample, and it is to be that of all")
    own = [unknown.name for unknown in H.unknowns if not _is_of_all(structure, unknown)]
    if own:
        of_all = "of all: declare it without an axis of samples"
        return Verdict(f"hyperparameter {', '.join(own)} has an entry for each sample, and it is to be that {of_all}")
    for word in ("exposure", "background"):
        offset = getattr(structure.likelihood, word)
        if offset is not None and not _is_shared(offset):
            return Verdict(f"{structure.likelihood.name} has a {word} of its samples, of which data= has its own")
    return CAN_RUN


def _is_of_all(structure: Factorisation, unknown: Unknown) -> bool:
    """Whether all samples share a hyperparameter of H; where dims don't say so, an axis of one may be theirs."""
    dims = structure.dims.get(unknown.name)
    if dims is not None:
        return structure.axes[1] not in dims
    return len(unknown.variable_shape) < 2 and unknown.variable_shape != (1,)


def _is_shared(offset: Offset) -> bool:
    """Whether it is one column for all samples."""
    sides = sides_of(offset)
    return sides is not None and sides.is_shared and np.atleast_2d(sides.of_samples).shape[1] == 1
