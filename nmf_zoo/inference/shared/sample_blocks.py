"""Passes over data in blocks of whole samples.

Given W the samples are independent. So a pass takes each block's rows of H and its sources, and what W needs of them
are sums over the blocks, which are added in the order of the blocks. While one block is worked on the next is read, so
that two are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import DenseSources, SparseSources, Weights, compress, weigh
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Blocked,
    Data,
    Dense,
    Factorisation,
    Flat,
    GammaPrior,
    Offset,
    Proper,
    sides_of,
)

T = TypeVar("T")


class SampleBlock(NamedTuple):
    """A block as an engine works on it.

    Attributes
    ----------
    number : from 0
    first, last : its samples
    structure : the model of its samples
    right : the side of its rows of H
    sources, weights : of :mod:`nmf_zoo.inference.shared.layout`
    constant : what its log-likelihood holds beside the factors
    """

    number: int
    first: int
    last: int
    structure: Factorisation
    right: Side
    sources: DenseSources | SparseSources
    weights: Weights
    constant: float


def sample_blocks(structure: Factorisation, workers: Workers, precision: str) -> Iterator[SampleBlock]:
    """The blocks of ``structure.data`` in order."""
    data = cast(Blocked, structure.data)

    def read(number: int) -> SampleBlock:
        block = structure_of_block(structure, number)
        sources = sources_of_block(block, workers, precision)
        first, last = (int(bound) for bound in data.bounds[number : number + 2])
        constant = float(data.constants[number])
        return SampleBlock(number, first, last, block, Side(block.H, True), sources, weigh(block), constant)

    return read_ahead(read, data.n_blocks)


def structure_of_block(structure: Factorisation, number: int) -> Factorisation:
    """The model of a block's samples alone, with their data."""
    data = cast(Blocked, structure.data)
    first, last = data.bounds[number : number + 2]
    exposure = None if data.exposure is None else data.exposure[first:last]
    return structure_of_samples(structure, data.read(number), exposure)


def structure_of_samples(structure: Factorisation, block: Data, exposure: Array | None) -> Factorisation:
    """The model of these samples alone; ``exposure`` (n,) is theirs, where they have any."""
    H = replace(structure.H, shape=(structure.rank, block.shape[1]))
    likelihood = structure.likelihood
    if exposure is not None:
        likelihood = replace(likelihood, exposure=exposure[None])
    return replace(structure, data=block, H=H, likelihood=likelihood)


def sources_of_block(block: Factorisation, workers: Workers, precision: str) -> DenseSources | SparseSources:
    """Listed cells stay in the order in which they are stored, sample by sample: a pass sorts nothing."""
    if isinstance(block.data, Dense):
        return DenseSources(block, workers, precision)
    return SparseSources(block, workers, compress(block, by_features=False), precision)


def read_ahead(read: Callable[[int], T], n: int) -> Iterator[T]:
    """``read(0), ..., read(n - 1)``, each while the one before is worked on."""
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(read, 0)
        for number in range(n):
            found = waiting.result()
            if number + 1 < n:
                waiting = reader.submit(read, number + 1)
            yield found


def log_joint_in_blocks(structure: Factorisation, workers: Workers, W: Array, turn: int) -> float:
    """log p(X, W, H) at rows of H that ``data.arrays`` holds under the name of H, in a pass of its own."""
    data, name = cast(Blocked, structure.data), structure.H.name
    total = structure.W.log_density(W, {})
    for block in sample_blocks(structure, workers, "float64"):
        (Ht,) = data.arrays.get(turn, block.number, name)
        statistics = block.sources.gather(W, Ht, "")
        total += statistics.log_mean - block.weights.total(W, Ht) + block.constant
        total += block.structure.H.log_density(np.ascontiguousarray(Ht.T), {})
    return float(total)


def takes_blocks(structure: Factorisation) -> Verdict:
    """What every engine that goes over blocks asks: nothing of H but its law is known, and samples share that.

    ``structure`` is as declared, without data.
    """
    if structure.unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"hyperparameter {names} is unknown, and over blocks of samples they are known: give numbers")
    H = structure.H
    if not H.is_free:
        return Verdict(f"{H.name or 'H'} is known, or some of its components are, and samples come with data= alone")
    if not isinstance(H.prior, Flat | GammaPrior):
        return Verdict(f"{H.name} has a {H.prior.family} prior, and over blocks of samples a gamma one or none")
    arrays = [p.resolve({}) for p in H.prior.parameters.values()] if isinstance(H.prior, Proper) else []
    if any(array.ndim > 1 and array.shape[1] > 1 for array in arrays):
        return Verdict(f"the prior of {H.name} differs from sample to sample, and it is to be that of all")
    for word in ("exposure", "background"):
        offset = getattr(structure.likelihood, word)
        if offset is not None and not _is_shared(offset):
            return Verdict(f"{structure.likelihood.name} has a {word} of its samples, of which data= has its own")
    return CAN_RUN


def _is_shared(offset: Offset) -> bool:
    """Whether it is one column for all samples."""
    sides = sides_of(offset)
    return sides is not None and sides.is_shared and np.atleast_2d(sides.of_samples).shape[1] == 1
