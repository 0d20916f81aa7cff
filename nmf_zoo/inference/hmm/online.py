"""Exact online EM for binary chains: W, p and q from a stream of samples (Yildirim, Cemgil, Singh 2012, section 3.2).

Every sample is a step of size t^-exponent; see :mod:`nmf_zoo.kernels.hmm.basis_online` for the recursion. Its
statistics are 2^K rows of numbers, whatever has been seen. Samples are the times of the chain, in the order in which
they come; one without an observed cell is a missing time. The statistics are averages: beside them what the priors of
W, p and q say is divided by the samples so far.

There is one first time and ever more that are not, and the steps forget it: its law is used, and not learned. One
that is unknown stays where it started; a stationary one is that of p and q at the start, whose updates leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.inference.hmm.m_step import Entries, as_variable, why_not
from nmf_zoo.inference.hmm.recursions import Recursions, as_activations
from nmf_zoo.inference.hmm.starts import start_values, start_weights
from nmf_zoo.inference.hmm.support import MOST_COMPONENTS, MOST_MEMORY
from nmf_zoo.inference.shared.step_options import check_steps
from nmf_zoo.kernels.hmm import basis_states
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.basis_online import Online, OnlineRules, learn
from nmf_zoo.kernels.hmm.basis_states import Counts, RateTables, set_rates
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_types, names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.stream_engine import START, Columns, StreamEngine, takes_exposures
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    BasisChainPrior,
    ChainPrior,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    Poisson,
    shared_column,
)

FEW_COMPONENTS = 12  # 4,096 states: more of them cost more than particles do
DO = "give the model a background, or start W with a positive entry for every feature"


class ChainState(NamedTuple):
    """Statistics and parameters, the samples seen, and log p of each given those before it, summed.

    ``others`` : values of the unknowns that are not learned, those of the first time
    """

    online: Online
    others: dict[str, Array]
    seen: int
    log_p: float


class ChainInfo(NamedTuple):
    """log_p: of the samples of this block, each given those before it, under the parameters of its time."""

    log_p: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class ChainOnlineEM:
    """Options of exact online EM for binary chains.

    Attributes
    ----------
    exponent : the t-th sample has the step size t^-exponent, 1/2 < exponent <= 1. A small one leaves a poor start
        sooner; the last estimates average over some t^exponent samples, so that from a good start 0.8 is more precise
    burn_in : samples whose statistics are gathered under the start, before the first update of the parameters
    batch : samples handled in one call; results do not depend on it
    """

    exponent: float = 0.6
    burn_in: int = 100
    batch: int = 1024

    def __post_init__(self):
        check_types(self)
        check_steps(self)


@dataclass(frozen=True)
class ChainProblem:
    """What a stream keeps of its model."""

    structure: Factorisation
    options: ChainOnlineEM
    prior: BasisChainPrior
    rules: OnlineRules
    entries: Entries


def supports(structure: Factorisation, options: ChainOnlineEM) -> Verdict:
    """Binary chains of few components; offsets that all samples share."""
    if not isinstance(structure.H.prior, BasisChainPrior):
        return Verdict(f"{structure.H.name or 'H'} is no binary chain")
    verdict = takes_stream(structure)
    return are_rows_few(structure) if verdict else verdict


def are_rows_few(structure: Factorisation) -> Verdict:
    """Whether two copies of the rows of statistics fit: a block that fails half-way leaves the stream as it was."""
    n_features, rank = structure.W.shape
    n_columns = 1 + (2 * n_features + 4) * rank
    memory = 8.0 * 2.0**rank * (2 * n_columns + 4 * n_features)
    if rank <= MOST_COMPONENTS and memory <= MOST_MEMORY:
        return CAN_RUN
    found = f"{rank} components have 2^{rank} states, whose statistics take {memory / 1e9:.2g} GB"
    return Verdict(f"{found}: lower rank, or draw from them with engine=nz.ParticleOnlineEM()")


def suits(structure: Factorisation) -> bool:
    """Whether sums over all states cost little more than particles, if more at all."""
    return structure.rank <= FEW_COMPONENTS


def prepare(structure: Factorisation, options: ChainOnlineEM, workers: Workers) -> ChainProblem:
    """The rules of a step."""
    prior, offsets = structure.H.prior, shared_offsets(structure)
    assert isinstance(prior, BasisChainPrior)
    assert offsets is not None
    exposure, background = offsets
    prior_power, prior_rate = gamma_of(structure)
    chain, entries = formulas_of(prior).rules(prior, structure.rank)
    rules = OnlineRules(
        base=background / exposure,
        of_features=exposure,
        exponent=float(options.exponent),
        burn_in=float(options.burn_in),
        learns_weights=int(not structure.W.is_fixed),
        prior_power=prior_power,
        prior_rate=prior_rate,
        chain=chain,
    )
    return ChainProblem(structure, options, prior, rules, entries)


def init(problem: ChainProblem, columns: Columns, key: np.uint64, start: Mapping[str, Array]) -> ChainState:
    """Nothing seen; W and the chain given, or W random at the scale of the first samples and p, q in their middle."""
    values = start_values(problem.structure, start)
    first = columns.part(0, min(problem.options.burn_in, columns.n_columns))
    structure, exposure = problem.structure, problem.rules.of_features
    mean = partial(mean_of_first, exposure, first, np.asarray(0.5), structure.rank)
    W = start_weights(structure.W, start, mean, child(key, START))
    others = {name: value for name, value in values.items() if name not in problem.entries}
    return ChainState(nothing_seen(W, problem.prior.law(values), problem.rules.base), others, 0, 0.0)


def update(problem: ChainProblem, state: ChainState, columns: Columns, key: np.uint64) -> tuple[ChainState, ChainInfo]:
    """A step for each of the columns."""
    online, total, done = copy(state.online), 0.0, state.seen
    for part in cut(columns, weight_rows_of(online) > 1):
        if not np.all(part.complete):
            online = _with_workspace(problem, online)
        total += _learn(problem, online, part, done)
        done += part.n_columns
    return ChainState(online, state.others, done, state.log_p + total), ChainInfo(total)


def _with_workspace(problem: ChainProblem, online: Online) -> Online:
    return with_workspace(online, problem.rules.of_features) if weight_rows_of(online) == 1 < len(online.W) else online


def widened(problem: ChainProblem, state: ChainState) -> ChainState:
    """With what missing cells need."""
    return state._replace(online=_with_workspace(problem, state.online))


def _learn(problem: ChainProblem, online: Online, columns: Columns, before: int) -> float:
    """Step through the columns, ``before`` of which came in all before; the log-likelihood."""
    rules, weights = problem.rules, weights_of(columns, weight_rows_of(online), len(online.W))
    if weights.shape[1] > 1:
        weights = weights * rules.of_features
        rules = rules._replace(of_features=np.ones(len(online.W)))
    counts = counts_of(columns, problem.structure.rank)
    log_p, impossible = learn(online, counts, weights, rules, before, 0, columns.n_columns)
    if impossible != WITHOUT_DATA:
        number = columns.number + impossible
        raise RunFailed(f"online_em: no state of the chains can make the counts of column {number}: {DO}")
    return log_p


def seen(state: ChainState) -> int:
    """Columns so far."""
    return state.seen


def track(problem: ChainProblem, state: ChainState) -> Array:
    """Sums of W's columns, (K,)."""
    return state.online.W.sum(axis=0)


def finish(problem: ChainProblem, state: ChainState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, p and q as they are now."""
    structure, values = problem.structure, dict(state.others)
    if not structure.W.is_fixed:
        values[structure.W.name] = structure.W.orient(state.online.W)
    for name, (row, unknown) in problem.entries.items():
        values[name] = as_variable(state.online.parameters[row], unknown)
    return values, {}


def filtered(problem: ChainProblem, state: ChainState) -> dict[str, Array]:
    """Of the last column's activations given all columns so far: mean and standard deviation, (K, 1) each."""
    on = as_activations(np.arange(len(state.online.table)), problem.structure.rank)
    return _moments(on @ state.online.table[:, :1])


def activations(problem: ChainProblem, state: ChainState, columns: Columns, key: np.uint64) -> dict[str, Array]:
    """Mean and standard deviation of each column's activations given all of the block: a series under the result."""
    online, (p, q) = state.online, state.online.parameters
    is_first = columns.number == 0 and not problem.prior.is_stationary
    initial = online.initial if is_first else (1.0 - p) / (2.0 - p - q)
    counts = series_of(columns, online.W, problem.rules.of_features)
    recursions = Recursions(counts, problem.rules.base, online.W, basis_states.BinaryChain(p, q, initial))
    _, impossible, sums = recursions.smooth()
    if impossible != WITHOUT_DATA:
        number = columns.number + impossible
        raise RunFailed(f"activations: no state of the chains can make the counts of column {number}: {DO}")
    return _moments(sums.marginals.T)


def _moments(chance: Array) -> dict[str, Array]:
    """Of activations that are 1 with this probability, a sum over states that may round above 1, else 0."""
    mean = np.ascontiguousarray(np.minimum(chance, 1.0))
    return {"mean": mean, "sd": np.sqrt(mean * (1.0 - mean))}


# -- rows of statistics, and samples as the kernels take them --------------------------------------------------------


def nothing_seen(W: Array, law: tuple[Array, Array, Array], base: Array) -> Online:
    """The statistics of no sample, under these parameters: p, q and P(on) at the first time, () or (K, 1) each."""
    n_features, rank = W.shape
    n_states, n_columns = 1 << rank, 1 + (1 + n_features + 4) * rank
    tables = RateTables(np.empty((n_features, n_states)), np.empty((n_features, n_states)))
    set_rates(tables, W, base)
    workspaces = np.zeros(n_states), np.zeros(n_states), np.zeros(n_columns)
    p, q, initial = (np.broadcast_to(part, (rank, 1))[:, 0] for part in law)
    return Online(np.zeros((n_states, n_columns)), W, np.stack([p, q]), initial.copy(), tables, *workspaces)


def copy(tree: Any) -> Any:
    """The same in arrays of its own: a block that fails half-way leaves the stream as it was."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    return type(tree)(*map(copy, tree)) if isinstance(tree, tuple) else tree


def weight_rows_of(online: Online) -> int:
    """R: whether activations are gathered once for all features, or for each."""
    n_features, rank = online.W.shape
    return (online.table.shape[1] - 1) // rank - n_features - 4


def with_workspace(online: Online, of_features: Array) -> Online:
    """With weighted activations of every feature, which differ by more than ``of_features`` once a cell is missing."""
    rank = online.W.shape[1]
    shared, rest = online.table[:, 1 : 1 + rank], online.table[:, 1 + rank :]
    table = np.concatenate([online.table[:, :1], np.kron(of_features, shared), rest], axis=1)
    return online._replace(table=table, sums=np.zeros(table.shape[1]))


def cut(columns: Columns, has_room: bool) -> list[Columns]:
    """The columns, cut where the first one with missing cells changes what is gathered: never at the end of a block."""
    first = int(np.argmin(columns.complete))
    if np.all(columns.complete) or first == 0 or has_room:
        return [columns]
    return [columns.part(0, first), columns.part(first, columns.n_columns)]


def weights_of(columns: Columns, weight_rows: int, n_features: int) -> Array:
    """The mask of the columns times their exposures: (n, 1) where all are complete, else (n, F)."""
    if weight_rows == 1 < n_features:
        return columns.exposure[:, None]
    weights = np.repeat(columns.complete[:, None], n_features, axis=1).astype(np.float64)
    weights[np.repeat(np.arange(columns.n_columns), np.diff(columns.indptr)), columns.rows] = 1.0
    return weights * columns.exposure[:, None]


def counts_of(columns: Columns, rank: int) -> Counts:
    """The cells with counts; ``weight_sums`` is scratch."""
    positive = columns.values > 0
    before = np.concatenate([[0], np.cumsum(positive)])
    rows = columns.rows[positive].astype(np.int32)
    return Counts(before[columns.indptr], rows, columns.values[positive], np.empty(0), np.zeros((1, rank)))


def series_of(columns: Columns, W: Array, of_features: Array) -> Counts:
    """The columns as a series of its own, under this W."""
    weights = weights_of(columns, len(W), len(W)) * of_features
    return counts_of(columns, W.shape[1])._replace(weight_sums=np.ascontiguousarray(weights @ W))


# -- where it begins -------------------------------------------------------------------------------------------------


def shared_offsets(structure: Factorisation) -> tuple[Array, Array] | None:
    """(exposure (F,), background (F,)) of every sample; None where they differ between samples."""
    exposure = shared_column(structure.likelihood.exposure, structure.shape[0], 1.0)
    background = shared_column(structure.likelihood.background, structure.shape[0], 0.0)
    return None if exposure is None or background is None else (exposure, background)


def takes_stream(structure: Factorisation) -> Verdict:
    """Counts with offsets that all samples share, W free, gamma or known, and priors of the chain that steps take."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
    if not isinstance(H.prior, ChainPrior):
        return Verdict(f"{H.name or 'H'} is no chain in time: its columns are independent given {W.name}")
    if not isinstance(W.prior, Flat | GammaPrior | Fixed) or W.unknowns:
        return Verdict(f"{W.name} has neither a known gamma prior, nor none, nor a known value")
    if shared_offsets(structure) is None:
        return Verdict(f"{likelihood.name} has an exposure or a background that differs between samples")
    reason = why_not(H.prior)
    return Verdict(reason) if reason else CAN_RUN


def gamma_of(structure: Factorisation) -> tuple[Array, Array]:
    """a - 1 and r of W's gamma prior, (F, K) each; zeros where it has none."""
    if not isinstance(structure.W.prior, GammaPrior):
        return np.zeros(structure.W.shape), np.zeros(structure.W.shape)
    a, r = structure.W.prior.shape_and_rate({})
    return np.array(np.broadcast_to(a - 1.0, structure.W.shape)), np.array(np.broadcast_to(r, structure.W.shape))


def mean_of_first(exposure: Array, first: Columns, typical: Array, rank: int) -> float:
    """The mean of W by the first columns, were the activations ``typical``."""
    exposed = (np.where(first.complete, exposure.sum(), 0.0) * first.exposure).sum()
    listed, own = (np.repeat(each, np.diff(first.indptr)) for each in (~first.complete, first.exposure))
    exposed += (exposure[first.rows[listed]] * own[listed]).sum()
    total = float(np.broadcast_to(typical, (rank, 1)).sum())
    return max(first.values.sum(), 1.0) / (exposed if exposed > 0 else 1.0) / total


STREAM: StreamEngine = StreamEngine(
    name="online_em",
    likelihoods=(Poisson,),
    chains=(BasisChainPrior,),
    options=ChainOnlineEM,
    is_counts=True,
    block=Columns,
    supports=supports,
    prepare=prepare,
    init=init,
    update=update,
    seen=seen,
    track=track,
    finish=finish,
    activations=activations,
    filtered=filtered,
    takes_exposures=takes_exposures,
    widened=widened,
    suits=suits,
)
