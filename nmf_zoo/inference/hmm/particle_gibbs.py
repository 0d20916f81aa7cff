"""Particle Gibbs with ancestor sampling: draws from the posterior of H, W and the parameters of any chain.

X_t ~ Poisson(W h_t), H a chain in time (Yildirim, Cemgil, Singh 2012; Lindsten, Jordan, Schoen 2014). One sweep draws::

    rows of H, some at a time, given the other rows   exactly where they are binary and few, else by a conditional
                                                      particle filter with ancestor sampling; C summed out
    C[f, :, t] ~ Multinomial(x_ft, w_f * h_t / (w_f . h_t))            only where x_ft > 0 and observed
    w_fk ~ Gamma(a_w + sum_t C, r_w + sum_t M_ft h_kt)
    rows of W given H, C summed out                   each along a Hamiltonian trajectory (`move_weights`)
    w_k -> c w_k, h_k -> h_k / c                      log-normal chains: along what the data can't see (`move_levels`)
    hyperparameters of the chain and of W             in closed form or by slice sampling (`gibbs_chain`)

M is the mask times the exposure; a background is one more source, of no component. W without a prior has a_w = 1 and
r_w = 0. Each of these leaves the posterior invariant, however few the particles.

**Trajectories of W**, with the sources of the counts summed out. Given H the rows of W are independent Poisson
regressions with a gamma prior. How they bend follows from H, the counts and the prior alone
(:mod:`nmf_zoo.kernels.hmc.mass`), so that nothing has to be learnt, and a sweep leaves the conditional as it is from
the first on. Allocating counts, in which W's cells move apart from each other, mixes slowly where counts are large;
trajectories do where cells are nearly 0. A sweep does both: next to drawing H they cost little."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import GibbsState, draw_side, draw_sources
from nmf_zoo.inference.counts.sweeps import blocks_of, is_filled, make_side, make_side_workspace
from nmf_zoo.inference.hmm.chains import CHAINS, formulas_of
from nmf_zoo.inference.hmm.gibbs_activations import (
    MOST_EXACT,
    ActivationRows,
    bytes_of_workspace,
    draw_rows,
    start_paths,
)
from nmf_zoo.inference.hmm.gibbs_chain import chain_of, draw_parameters
from nmf_zoo.inference.hmm.particle_options import (
    PROPOSALS,
    RESAMPLING,
    ParticleOptions,
)
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.inference.hmm.starts import mean_of_weights, start_values, start_weights, typical_activations
from nmf_zoo.inference.shared import requirements as allocation
from nmf_zoo.inference.shared.factor_view import PriorCells, prior_cells
from nmf_zoo.inference.shared.joint import LogJoint, followed_means
from nmf_zoo.inference.shared.layout import Layout, Weights, by_count, compress, weigh
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.kernels.hmc.adaptation import CountSide, SideTuning, from_blocks, move_side
from nmf_zoo.kernels.hmc.mass import set_strides
from nmf_zoo.kernels.hmc.poisson_rows import Stride
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.random.keyed_rng import child, children, generator_of
from nmf_zoo.options import check_least, names_checked
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    Poisson,
)

ACTIVATIONS, SOURCES, WEIGHTS, TRAJECTORIES, LEVELS, HYPERPARAMETERS = range(6)  # children of a sweep's key


class ParticleGibbsState(NamedTuple):
    """W (F, K); h (K, T) and what stands beside it in particles, aux (K, T); hyperparameters by name."""

    W: Array
    h: Array
    aux: Array
    values: dict[str, Array]


class ParticleGibbsInfo(NamedTuple):
    """What a sweep did.

    Attributes
    ----------
    renewed, renewed_first : shares of H, and of H at the first time, that come from new particles; 1 where rows are
        drawn exactly
    accept_W : mean acceptance probability of the trajectories of W's rows; NaN without
    """

    renewed: float
    renewed_first: float
    accept_W: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class ParticleGibbs(ParticleOptions):
    """Options of particle Gibbs.

    ``sample_stats`` holds ``renewed`` and ``renewed_first``, the shares of H and of its first time that a sweep drew
    anew: where they are small, H mixes slowly, and more particles or smaller blocks help. ``accept_W`` is the mean
    acceptance of the trajectories of W's rows; NaN where W is known or the data have over 262,144 filled cells.

    Attributes
    ----------
    particles : of the conditional filter. Two are enough to be right, more renew more of the path in a sweep; the
        memory is that of all particles of all times
    proposal : as in any filter; "auto" is "guided" for log-normal chains, and else "bootstrap". Binary chains take the
        latter only
    resampling : of the filter
    ess : as in any filter; below 1, the path's past is not drawn anew where particles are not resampled
    block : components whose rows of H are drawn together, given the others: an integer, or "auto", 2 where particles
        don't look ahead and else 4. Larger blocks move
        further together, and need more particles; of binary chains up to eight rows are drawn exactly
    """

    particles: int = 50
    ess: float = 1.0
    block: int | Literal["auto"] = "auto"

    def __post_init__(self):
        super().__post_init__()
        check_least(self, block=1)

    def proposal_for(self, structure: Factorisation) -> str:
        """The proposal's name."""
        if self.proposal != "auto":
            return self.proposal
        return "bootstrap" if chain_of(structure).is_bounded else "guided"

    def block_for(self, structure: Factorisation) -> int:
        """Rows that are drawn together."""
        is_blind = self.proposal_for(structure) == "bootstrap" and not chain_of(structure).is_binary
        auto = BLIND_BLOCK if is_blind else BLOCK
        return min(auto if self.block == "auto" else int(self.block), structure.rank)


@dataclass(frozen=True)
class ParticleGibbsProblem:
    """What all chains share; ``side`` is what trajectories of W's rows need; ``checked`` are the cells of ``mean``."""

    structure: Factorisation
    rows: ActivationRows
    layout: Layout
    order: Array
    weights: Weights
    side: CountSide | None
    workers: Workers
    log_joint: LogJoint
    checked: tuple[Array, Array]


def supports(structure: Factorisation, options: ParticleGibbs) -> Verdict:
    """Chains of every kind with proper posteriors."""
    if not structure.H.is_chain:
        return Verdict(f"{structure.H.name or 'H'} is no chain in time: its columns are independent given W")
    verdict = supports_gibbs(structure, options.block_for(structure), options.particles)
    return verdict and takes_proposal(structure, options.proposal_for(structure))


# -- what it can run -------------------------------------------------------------------------------------------------


BLIND_BLOCK, BLOCK = 2, 4  # rows drawn together unless said otherwise: by particles that don't look ahead, and else
MOST_MEMORY = 4e9  # bytes of all particles of all times


def supports_gibbs(structure: Factorisation, block: int, n_particles: int) -> Verdict:
    """Counts, W gamma or known or properly flat, any chain, and memory for the particles of all times."""
    if structure.imputed is not None:
        return Verdict(f"{structure.imputed.name} is a variable: declare missing cells with mask= or NaN instead")
    if not isinstance(structure.W.prior, Flat | GammaPrior | Fixed):
        return Verdict(f"{structure.W.name} has neither a gamma prior, nor none, nor a known value")
    for verdict in (allocation.takes_counts(structure), is_proper(structure)):
        if not verdict:
            return verdict
    return fits_in_memory(structure, block, n_particles)


def takes_proposal(structure: Factorisation, proposal: str) -> Verdict:
    """The path's own particle weighs by a proposal's density, which not every one tells."""
    if proposal == "bootstrap" or not chain_of(structure).is_binary:
        return CAN_RUN
    return Verdict(f"{structure.H.name} is binary: with proposal={proposal!r} it runs chains with a density only")


def fits_in_memory(structure: Factorisation, block: int, n_particles: int) -> Verdict:
    """Whether all particles of all times of a block fit in memory."""
    if chain_of(structure).is_binary and block <= MOST_EXACT:
        return CAN_RUN
    memory = bytes_of_workspace(block, structure.shape[1], n_particles)
    if memory <= MOST_MEMORY:
        return CAN_RUN
    found = f"{n_particles} particles of {structure.shape[1]} times, {block} components together"
    return Verdict(f"{found}, would take {memory / 1e9:.2g} GB in each chain: take fewer particles, or a smaller block")


# -- how it runs -----------------------------------------------------------------------------------------------------


def prepare(structure: Factorisation, options: ParticleGibbs, workers: Workers) -> ParticleGibbsProblem:
    """Lay out the data: by samples for the filter, along their longer side for the allocation of counts."""
    layout, weights = compress(structure), weigh(structure)
    proposal = PROPOSALS.index(options.proposal_for(structure))
    plan = FilterPlan(proposal, RESAMPLING.index(options.resampling), float(options.ess))
    return ParticleGibbsProblem(
        structure=structure,
        rows=ActivationRows(structure, read_samples(structure), options.block_for(structure), options.particles, plan),
        layout=layout,
        order=by_count(layout),
        weights=weights,
        side=side_of_weights(structure, layout),
        workers=workers,
        log_joint=LogJoint(structure, layout, weights, workers),
        checked=checked_cells(structure.shape),
    )


def init(problem: ParticleGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> ParticleGibbsState:
    """The start given, else H from its prior, W at the scale of the data, hyperparameters amid their priors."""
    structure, values = problem.structure, start_values(problem.structure, start)
    h, aux = start_paths(structure, values, child(key, 0), start)
    mean = partial(mean_of_weights, structure, problem.weights, typical_activations(structure, values))
    W = start_weights(structure.W, start, mean, child(key, 1))
    return ParticleGibbsState(W, h, aux, values)


def step(
    problem: ParticleGibbsProblem, state: ParticleGibbsState, key: np.uint64
) -> tuple[ParticleGibbsState, ParticleGibbsInfo]:
    """One sweep."""
    structure, keys = problem.structure, children(key, HYPERPARAMETERS + 1)
    renewed, first = draw_rows(problem.rows, state.W, state.h, state.aux, state.values, keys[ACTIVATIONS])
    accepted = math.nan if structure.W.is_fixed else draw_weights(problem, state, keys[SOURCES : TRAJECTORIES + 1])
    formulas = formulas_of(structure.H.prior)
    moves = formulas.moves_levels and not structure.W.is_fixed
    if moves or structure.unknowns:
        sums = formulas.sum_paths(state.h, state.aux)
        if moves:
            sums = formulas.move_levels(structure, state.W, state.aux, sums, state.values, generator_of(keys[LEVELS]))
            np.exp(state.aux, out=state.h)
        draw_parameters(structure, formulas, state.W, sums, state.values, generator_of(keys[HYPERPARAMETERS]))
    return state, ParticleGibbsInfo(float(renewed), float(first), accepted)


def draw_weights(problem: ParticleGibbsProblem, state: ParticleGibbsState, keys: Sequence[np.uint64]) -> float:
    """Allocate the counts, draw W in place from its gamma conditional, and move its rows; returns their acceptance.

    ``keys`` of the three steps.
    """
    Ht = np.ascontiguousarray(state.h.T)
    sources = GibbsState(state.W, Ht, {}, np.zeros_like(state.W), np.zeros_like(Ht), None)
    draw_sources(problem.layout, problem.order, problem.workers, sources, keys[0])
    priors = prior_cells(problem.structure, state.values)
    weight = problem.weights.over_samples(Ht)
    draw_side(problem.workers, state.W, (priors.shape_w, sources.of_features), (priors.rate_w, weight), keys[1])
    return math.nan if problem.side is None else move_weights(problem.side, state.W, Ht, priors, weight, keys[2])


def draw(
    problem: ParticleGibbsProblem, state: ParticleGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, their log joint density and the followed cells of W H.

    Activations that have rounded to an end of their chain's support, where they would have no density, are the number
    next to it: the largest below 1 of a unit chain, the smallest above 0 of a log-normal one.
    """
    structure, (W, h, _, values) = problem.structure, state
    h = formulas_of(structure.H.prior).inside(h)
    Ht = np.ascontiguousarray(h.T)
    mean = followed_means(W, Ht, problem.checked)
    drawn = {name: np.array(value) for name, value in values.items()}
    drawn[structure.H.name] = h.astype(np.int8) if chain_of(structure).is_binary else h
    if not structure.W.is_fixed:
        drawn[structure.W.name] = structure.W.orient(W)
    return drawn, {"lp": np.float64(problem.log_joint(W, Ht, values)), "mean": mean}


# -- trajectories of W -----------------------------------------------------------------------------------------------


MOST_NONZEROS = 1 << 18  # beyond, threads, which allocation has, are worth more
STEP, LENGTH = 0.6, 5  # together between a quarter and half a turn


def side_of_weights(structure: Factorisation, layout: Layout) -> CountSide | None:
    """The data as the rows of W see them; None where W is known or the data are large."""
    if structure.W.is_fixed or len(layout.values) > MOST_NONZEROS:
        return None
    idle = np.ones(structure.W.shape)  # the prior's rate may be unknown, and is handed over with every sweep
    return make_side(structure, layout, idle, is_filled(structure, layout), of_features=True)


def move_weights(side: CountSide, W: Array, Ht: Array, priors: PriorCells, weight: Array, key: np.uint64) -> float:
    """Move W (F, K) in place given Ht (T, K); returns the mean acceptance probability.

    ``weight`` : (F, K) or (1, K), the likelihood's part of the rate, sum_t M_ft h_kt
    """
    workspace = make_side_workspace(side, priors.shape_w)
    blocks, rank, width = side.prior_rate.shape
    workspace.rows.values[:] = blocks_of(W, width, 1.0)
    workspace.rows.rate[:] = blocks_of(priors.rate_w + weight, width, 1.0)
    scale, root = np.ones((blocks, rank, width)), np.zeros((blocks, rank, rank, width))
    stride = Stride(scale, root, np.full((blocks, width), STEP), np.array([LENGTH]))
    set_strides(side.data, Ht, workspace.rows, stride, workspace.block, blocks_of(priors.rate_w, width, 1.0))
    nothing = np.zeros((0, 0, 0, 0)), np.zeros((blocks, rank, width)), np.zeros((blocks, width))
    accepted = move_side(side, Ht, SideTuning(*stride, *nothing), workspace, key)
    from_blocks(W, workspace.rows.values)
    return accepted


ENGINE: Engine = Engine(
    name="particle_gibbs",
    verb="sample",
    likelihoods=(Poisson,),
    chains=CHAINS,
    projects=3,
    options=ParticleGibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    draw=draw,
)
