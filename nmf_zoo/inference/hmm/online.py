"""Exact online EM for binary chains: W, p and q from a stream of samples (Yildirim, Cemgil, Singh 2012, section 3.2).

Every sample is a step of size t^-exponent; see :mod:`nmf_zoo.kernels.basis_online` for the recursion. Its statistics
are 2^K rows of numbers, whatever has been seen. Samples are the times of the chain, in the order in which they come;
one without an observed cell is a missing time. The statistics are averages: beside them what the priors of W, p and q
say is divided by the samples so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.engine import Verdict
from nmf_zoo.inference.hmm.online_rows import copy, counts_of, nothing_seen, weight_rows_of, weights_of, with_room
from nmf_zoo.inference.hmm.support import are_states_few
from nmf_zoo.inference.online_em import is_real
from nmf_zoo.inference.start import SPREAD, start_hyperparameters
from nmf_zoo.inference.stream_engine import Columns, StreamEngine
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.basis_online import EDGE, KNOWN, SEPARATE, TIED, Online, Rules, learn
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.multiplicative import FLOOR
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import (
    Array,
    BasisChainPrior,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    HyperPrior,
    Parameter,
    Unknown,
)


class ChainState(NamedTuple):
    """Statistics and parameters, the samples seen, and log p of each given those before it, summed."""

    online: Online
    seen: int
    log_p: float


class ChainInfo(NamedTuple):
    """log_p: of the samples of this block, each given those before it, under the parameters of its time."""

    log_p: float


@dataclass(frozen=True, kw_only=True)
class ChainOnlineEM:
    """Options of exact online EM for binary chains.

    Attributes
    ----------
    exponent : the t-th sample has the step size t^-exponent, 1/2 < exponent <= 1
    burn_in : samples whose statistics are gathered under the start, before the first update of the parameters
    batch : samples handled in one call; results do not depend on it
    """

    exponent: float = 0.8
    burn_in: int = 100
    batch: int = 1024

    def __post_init__(self):
        if not (is_real(self.exponent) and 0.5 < self.exponent <= 1.0):
            raise ValueError(f"exponent: got {self.exponent!r}; expected a number in (1/2, 1]")
        for name in ("burn_in", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}: got {value!r}; expected an integer >= 1")


@dataclass(frozen=True)
class Problem:
    """What a stream keeps of its model."""

    structure: Factorisation
    options: ChainOnlineEM
    rules: Rules


def supports(structure: Factorisation, options: ChainOnlineEM) -> Verdict:
    """Binary chains of few components that start from a known law; offsets that all samples share."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
    if not isinstance(H.prior, BasisChainPrior):
        return Verdict(f"{H.name or 'H'} is no binary chain")
    if likelihood.kind != "poisson":
        return Verdict(f"its updates are for counts, and {likelihood.name} is {likelihood.kind}")
    if not isinstance(W.prior, Flat | GammaPrior | Fixed) or W.unknowns:
        return Verdict(f"{W.name} has neither a known gamma prior, nor none, nor a known value")
    if H.prior.initial is None or isinstance(H.prior.initial, Unknown):
        return Verdict(f"the first state of {H.name} has no known law, and the update of p and q is for one")
    for unknown in H.unknowns:
        if not _is_taken(unknown.prior):
            return Verdict(f"{unknown.name} needs a uniform prior on (0, 1), or one beta prior for all components")
    if len({unknown.name for unknown in H.unknowns}) < len(H.unknowns):
        return Verdict("p and q are one variable")
    if any(np.any(full != full[:, :1]) for full in _offsets(structure)):
        return Verdict(f"{likelihood.name} has an exposure or a background that differs between samples")
    return are_states_few(structure)


def _is_taken(prior: HyperPrior) -> bool:
    if prior.kind == "uniform":
        return bool(np.all(prior.args[0] <= 0.0) and np.all(prior.args[1] >= 1.0))
    return prior.kind == "beta" and all(len(np.unique(arg)) == 1 for arg in prior.args)


def _offsets(structure: Factorisation) -> list[Array]:
    """Exposure and background, (F, N) each."""
    given = (structure.likelihood.exposure, 1.0), (structure.likelihood.background, 0.0)
    return [np.broadcast_to(default if array is None else array, structure.shape) for array, default in given]


def prepare(structure: Factorisation, options: ChainOnlineEM, workers: Workers) -> Problem:
    """The rules of a step."""
    prior, shape = structure.H.prior, structure.W.shape
    assert isinstance(prior, BasisChainPrior)
    assert prior.initial is not None
    exposure, background = (np.array(array[:, 0], dtype=np.float64) for array in _offsets(structure))
    pull, drag = np.zeros(shape), np.zeros(shape)
    if isinstance(structure.W.prior, GammaPrior):
        a, r = structure.W.prior.shape_and_rate({})
        pull, drag = (np.array(np.broadcast_to(array, shape)) for array in (a - 1.0, r))
    rules = Rules(
        initial=np.array(np.broadcast_to(prior.initial.resolve({}), (structure.rank, 1))[:, 0]),
        base=background / exposure,
        of_features=exposure,
        exponent=float(options.exponent),
        burn_in=float(options.burn_in),
        updates=np.array([not structure.W.is_fixed, _update_of(prior.p), _update_of(prior.q)], dtype=np.int64),
        pull=pull,
        drag=drag,
        pseudo=np.stack([_pseudo_counts(prior.p), _pseudo_counts(prior.q)]),
    )
    return Problem(structure, options, rules)


def _update_of(parameter: Parameter) -> int:
    if not isinstance(parameter, Unknown):
        return KNOWN
    return TIED if parameter.shape == () else SEPARATE


def _pseudo_counts(parameter: Parameter) -> Array:
    """a - 1 and b - 1 of a beta prior that all components share; 0 without."""
    if not isinstance(parameter, Unknown) or parameter.prior.kind != "beta":
        return np.zeros(2)
    return np.array([float(np.ravel(arg)[0]) - 1.0 for arg in parameter.prior.args])


def init(problem: Problem, columns: Columns, key: np.uint64, start: Mapping[str, Array]) -> ChainState:
    """Nothing seen; W and the chain given, or W random at the scale of the first samples and p, q in their middle."""
    structure, rank = problem.structure, problem.structure.rank
    values = start_hyperparameters(structure, start)
    W = _start_weights(problem, columns, key, start)
    law = structure.H.prior.law(values)[:2]
    p, q = (np.array(np.clip(np.broadcast_to(part, (rank, 1))[:, 0], EDGE, 1.0 - EDGE)) for part in law)
    return ChainState(nothing_seen(W, p, q, problem.rules.base), 0, 0.0)


def _start_weights(problem: Problem, columns: Columns, key: np.uint64, start: Mapping[str, Array]) -> Array:
    factor = problem.structure.W
    if isinstance(factor.prior, Fixed):
        return np.array(factor.prior.value, dtype=np.float64, order="C")
    if factor.name in start:
        given = factor.orient(np.asarray(start[factor.name], dtype=np.float64))
        return np.array(np.maximum(given, FLOOR), order="C")
    first = columns.part(0, min(problem.options.burn_in, columns.n_columns))
    exposed = np.where(first.complete, problem.rules.of_features.sum(), 0.0).sum()
    listed = np.repeat(~first.complete, np.diff(first.indptr))
    exposed += problem.rules.of_features[first.rows[listed]].sum()
    scale = max(first.values.sum(), 1.0) / max(exposed, 1.0) / (0.5 * problem.structure.rank)
    out = np.empty(factor.shape)
    shape, rate = (np.broadcast_to(number, factor.shape) for number in (SPREAD, SPREAD / scale))
    draw_factor(out, shape, rate, 0, len(out), child(key, 0))
    return out


def check(problem: Problem, state: ChainState, columns: Columns) -> None:
    """Any columns will do."""


def update(problem: Problem, state: ChainState, columns: Columns, key: np.uint64) -> tuple[ChainState, ChainInfo]:
    """A step for each of the columns."""
    online, total, done = copy(state.online), 0.0, state.seen
    for part in _parts(columns, online):
        if not np.all(part.complete) and weight_rows_of(online) == 1 < len(online.W):
            online = with_room(online, problem.rules.of_features)
        total += _learn(problem, online, part, done)
        done += part.n_columns
    return ChainState(online, done, state.log_p + total), ChainInfo(total)


def _parts(columns: Columns, online: Online) -> list[Columns]:
    """The columns, cut where the first one with missing cells changes what is gathered: never at the end of a block."""
    first = int(np.argmin(columns.complete))
    if np.all(columns.complete) or first == 0 or weight_rows_of(online) > 1:
        return [columns]
    return [columns.part(0, first), columns.part(first, columns.n_columns)]


def _learn(problem: Problem, online: Online, columns: Columns, before: int) -> float:
    """Step through the columns, ``before`` of which came in all before; the log-likelihood."""
    rules, weights = problem.rules, weights_of(columns, weight_rows_of(online), len(online.W))
    if weights.shape[1] > 1:
        weights = weights * rules.of_features
        rules = rules._replace(of_features=np.ones(len(online.W)))
    counts = counts_of(columns, problem.structure.rank)
    log_p, impossible = learn(online, counts, weights, rules, before, 0, columns.n_columns)
    if impossible >= 0:
        number = columns.number + impossible
        do = "give the model a background, or start W with a positive entry for every feature"
        raise RunFailed(f"online_em: no state of the chains can make the counts of column {number}: {do}")
    return log_p


def seen(state: ChainState) -> int:
    """Columns so far."""
    return state.seen


def track(problem: Problem, state: ChainState) -> Array:
    """Sums of W's columns, (K,)."""
    return state.online.W.sum(axis=0)


def finish(problem: Problem, state: ChainState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, p and q as they are now."""
    structure, values = problem.structure, {}
    if not structure.W.is_fixed:
        values[structure.W.name] = structure.W.orient(state.online.W)
    for role, array in (("p", state.online.p), ("q", state.online.q)):
        parameter = structure.H.prior.parameters[role]
        if isinstance(parameter, Unknown):
            whole = array if parameter.shape else array[:1]
            values[parameter.name] = whole.reshape(parameter.variable_shape)
    return values, {}


def activations(problem: Problem, state: ChainState, columns: Columns, key: np.uint64) -> dict[str, Array]:
    """Columns of a chain have none of their own: they depend on all that come before and after."""
    do = "nz.project(stream.result(), X, model=model, engine='hmm_exact') smooths a series"
    raise InputError("x", "columns of a Markov chain", "columns that are independent given W", do)


STREAM = StreamEngine(
    name="online_em",
    kind="poisson",
    options=ChainOnlineEM,
    is_counts=True,
    block=Columns,
    supports=supports,
    prepare=prepare,
    init=init,
    check=check,
    update=update,
    seen=seen,
    track=track,
    finish=finish,
    activations=activations,
)
