"""Monte-Carlo EM of counts in blocks of samples: one pass over the blocks per iteration, W alone held in memory.

The iteration is that of :mod:`nmf_zoo.inference.counts.mcem`. Given W each sample has a chain of its own, on a stream
that its number says; a block runs those of its samples, and gives its part of the sums that W is made of::

    w_fk = sum_b S_b / sum_b T_b        S_b = sum_n E[c_fkn], T_b = sum_n M E[h_kn] over the samples of block b (eq. 41)

so that however the samples are cut, the draws are the same and sums differ by their rounding. With stochastic
approximation S and T are averaged over iterations, and E[h] beside them.

The objective is -log p(X | W), estimated from the sweeps at the W that they ran at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.mcem import (
    MCEM,
    MCEMInfo,
    ObjectiveWindow,
    check_factors,
    check_known,
    look_back,
    series_of,
    share_counts,
    solution,
    step_size,
    wanted_of,
)
from nmf_zoo.inference.counts.mcem_expectations import GivenW, WantedExpectations
from nmf_zoo.inference.counts.mcem_updates import divide_by_exposure
from nmf_zoo.inference.shared.factor_view import Side, prior_cells
from nmf_zoo.inference.shared.layout import likelihood_constant
from nmf_zoo.inference.shared.requirements import takes_counts
from nmf_zoo.inference.shared.sample_blocks import BlockProblem, SampleBlock, sums_over_blocks, takes_blocks
from nmf_zoo.inference.shared.start import start_blocks
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.engine import CAN_RUN, BlockEngine, Verdict
from nmf_zoo.runtime.state_patterns import Growing
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson


class MCEMBlockSums(NamedTuple):
    """What a pass adds up.

    Attributes
    ----------
    sources : (F, K), expected ones of W
    exposure : (F, K) or (1, K), what the weights make of E[h]
    objective : -log p(X | W)
    variance : of its estimate
    """

    sources: Array
    exposure: Array
    objective: float = 0.0
    variance: float = 0.0

    def plus(self, other: MCEMBlockSums) -> MCEMBlockSums:
        """Those of this and of the next block."""
        return MCEMBlockSums(
            self.sources + other.sources,
            self.exposure + other.exposure,
            self.objective + other.objective,
            self.variance + other.variance,
        )

    def toward(self, other: MCEMBlockSums, weight: float) -> MCEMBlockSums:
        """What W is made of, a step of this size on; the rest is of the other."""
        sources = self.sources + weight * (other.sources - self.sources)
        return other._replace(sources=sources, exposure=self.exposure + weight * (other.exposure - self.exposure))


class BlockMCEMState(NamedTuple):
    """W (F, K), and the turn under which ``data.arrays`` holds where the chains are, and E[h].

    Attributes
    ----------
    averaged : sums that W was made of; None before a pass
    norms, errors, window : as of :class:`nmf_zoo.inference.counts.mcem.MCEMState`
    """

    W: Array
    turn: int
    averaged: Any
    norms: Growing
    errors: Growing
    window: ObjectiveWindow

    @property
    def values(self) -> dict[str, Array]:
        """Hyperparameters that are free: none."""
        return {}


@dataclass(frozen=True)
class BlockMCEMProblem(BlockProblem):
    """What the passes share; ``complete`` : "CH" or "H"."""

    complete: str
    wanted: WantedExpectations

    def lay_out(self, structure: Factorisation) -> GivenW:
        """The chains of a block's samples; its cells lie in the order in which they are stored."""
        return GivenW(structure, self.workers, self.wanted, by_features=False)

    def log_likelihood(self, block: SampleBlock, W: Array, Ht: Array) -> float:
        return block.cells.log_joint.log_likelihood(W, Ht)


def supports(structure: Factorisation, options: MCEM) -> Verdict:
    """W without a prior, H under a gamma prior that all samples share, with known hyperparameters."""
    asked = takes_blocks(structure, GammaPrior)
    checks = (check_known, check_factors, _check_options)
    return asked and next((found for check in checks if not (found := check(structure, options))), CAN_RUN)


def _check_options(structure: Factorisation, options: MCEM) -> Verdict:
    if options.complete == "C":
        return Verdict('complete="C" asks of all of X whether cells are missing: use complete="CH"')
    if options.exact is True:
        return Verdict("exact=True holds all of X: over blocks the objective is estimated, so leave it out")
    return CAN_RUN


def takes_block(structure: Factorisation, options: MCEM) -> Verdict:
    """Whether the cells of a block are counts."""
    return takes_counts(structure)


def prepare(structure: Factorisation, options: MCEM, workers: Workers) -> BlockMCEMProblem:
    """Nothing is read yet."""
    complete = "CH" if options.complete == "auto" else options.complete
    wanted = wanted_of(options, complete)
    return BlockMCEMProblem(structure, options, Side(structure.W, False), workers, complete, wanted)


def init(problem: BlockMCEMProblem, key: np.uint64, start: Mapping[str, Array]) -> BlockMCEMState:
    """W as given, or as the options say, from sums over all blocks; H at the mean of its prior: one pass."""
    structure, left = problem.structure, problem.left
    W, _ = start_blocks(structure, key, start)
    sums = sums_over_blocks(problem, MCEMBeginning(0))
    if not set(structure.W.shapes) & set(start):
        exposure = np.broadcast_to(sums.exposure, W.shape)
        W = left.with_free(W, share_counts(sums.sources, exposure, problem.options, key)[:, left.free])
    return BlockMCEMState(W, 0, None, np.empty((0, structure.rank)), np.empty(0), ObjectiveWindow())


def step(problem: BlockMCEMProblem, state: BlockMCEMState, key: np.uint64) -> tuple[BlockMCEMState, MCEMInfo]:
    """Sweeps of all blocks, and the best W given their sums."""
    weight = 1.0 if state.averaged is None else step_size(problem.options, len(state.norms))
    found = sums_over_blocks(problem, MCEMPass(state.W, state.turn + 1, key, weight))
    problem.data.arrays.drop(state.turn)
    averaged = found if weight == 1.0 else state.averaged.toward(found, weight)
    new = divide_by_exposure(averaged.sources, state.W, averaged.exposure)
    W = problem.left.with_free(state.W, new[:, problem.left.free])
    window = look_back(problem, state, W, {}, weight)
    norms, errors = np.vstack([state.norms, W.sum(axis=0)]), np.append(state.errors, np.sqrt(found.variance))
    after = BlockMCEMState(W, state.turn + 1, averaged, norms, errors, window)
    return after, MCEMInfo(found.objective, window.residual)


class MCEMBeginning(NamedTuple):
    """The counts of each feature, in place of its sources, and H at the mean of its prior."""

    turn: int

    def __call__(self, problem: BlockMCEMProblem, block: SampleBlock) -> tuple[MCEMBlockSums, dict[str, Array]]:
        expect, priors = block.cells, prior_cells(block.structure, {})
        Ht = np.ascontiguousarray(priors.shape_h / priors.rate_h)
        counts = np.bincount(expect.layout.indices, expect.layout.values, problem.structure.W.shape[0])
        return MCEMBlockSums(counts, expect.weights.over_samples(Ht)), {"chains": Ht, "mean": Ht}


class MCEMPass(NamedTuple):
    """The chains of a block's samples at W, on from where they were; ``weight`` : of this pass in the mean of H."""

    W: Array
    turn: int
    key: np.uint64
    weight: float

    def __call__(self, problem: BlockMCEMProblem, block: SampleBlock) -> tuple[MCEMBlockSums, dict[str, Array]]:
        expect, arrays = block.cells, problem.data.arrays
        Ht, before = (np.array(own) for own in arrays.get(self.turn - 1, block.number, "chains", "mean"))
        found = expect(self.W, Ht, {}, before, self.key, block.first)
        now = found.statistics["H"]
        sums = MCEMBlockSums(
            found.statistics["sources"], expect.weights.over_samples(now), found.objective, found.error**2
        )
        mean = now if self.weight == 1.0 else before + self.weight * (now - before)
        return sums, {"chains": Ht, "mean": mean}


def finish(problem: BlockMCEMProblem, state: BlockMCEMState, key: np.uint64, draws: int) -> tuple[dict, dict]:
    """W as a posterior of one draw; the posterior mean of H given it, block by block, in ``data.arrays``."""
    structure, data = problem.structure, problem.data
    W, _ = solution(problem, state)
    for number in range(data.n_blocks):
        (mean,) = data.arrays.get(state.turn, number, "mean")
        data.arrays.put(RESULT, number, {structure.H.name: mean})
    data.arrays.drop(state.turn)
    shape, rate = structure.H.prior.shape_and_rate({})
    activations = np.broadcast_to(shape / rate, (structure.rank, 1))[:, 0]
    return structure.W.variables(W[None]), series_of(problem, state, activations)


ENGINE: BlockEngine = BlockEngine(
    name="mcem",
    verb="fit",
    likelihoods=(Poisson,),
    takes_known=True,
    options=MCEM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    is_noisy=True,
    takes_block=takes_block,
    constant=likelihood_constant,
)
