"""Online EM for GaP (Cappe, Moulines 2009): maximum marginal likelihood of W from columns that come one by one.

Columns x_n ~ Poisson(W h_n), h_kn ~ Gamma(alpha_k, beta_k), are independent given W. With the step sizes
g_n = (n + offset)^-exponent a step is::

    E   s_n = E[c_fkn | x_n, W_{n-1}], t_n = E[h_kn | x_n, W_{n-1}]                    averages over Gibbs sweeps of h_n
    A   S_n = (1 - g_n) S_{n-1} + g_n s_n,  T_n = (1 - g_n) T_{n-1} + g_n t_n
    M   w_fk = (beta_k / alpha_k) S_fk          complete set C: Filstroff, Lumbreras, Fevotte (2018), eq. 48
        w_fk = S_fk / T_fk                      complete set CH: eq. 41; T_fk averages where cell f was observed

of one column, or with s_n and t_n the means over a mini-batch. With C, sum_k (alpha_k / beta_k) w_fk is after every
step the mean of x_f over the columns so far, weighted as S weights them (eq. 49). C is only right where every cell was
observed; CH also with missing cells. S and T are gathered with both, so that a stream can change from C to CH.

The statistics are as large as W, whatever has been seen, and a column of few counts costs what these cost: see
:mod:`nmf_zoo.kernels.counts.column_sweeps`. W follows from them; it is the start's until ``start_columns`` columns were
seen. ``mean_h`` (K,) is alpha / beta.

**Exposures**, x_fn ~ Poisson(e_f g_n w_f . h_n): those of features make e_f w_fk out of w_fk, and all above is about
these; only what comes in and goes out is W. g_n h_kn has the rate beta_k / g_n, and T_k is the mean of it. With CH
W would take its scale from the prior alone, ever more slowly the larger the counts; so C becomes EM with expanded
parameters (Liu, Rubin, Wu 1998), H at a scale r_k of its own, which W then takes over::

        w_fk = (S_fk / T_k) r_k        r_k = (beta_k / alpha_k) mean of h_kn        eq. 48 where all g_n are 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.requirements import takes_units
from nmf_zoo.inference.shared.start import SPREAD
from nmf_zoo.inference.shared.step_options import check_steps
from nmf_zoo.kernels.counts import column_sweeps as clock
from nmf_zoo.kernels.counts.column_sweeps import (
    ColumnPlan,
    OnlineWeights,
    Running,
    add_columns,
    decay,
    end_step,
    expect_columns,
    make_workspace,
    renew,
    take_step,
)
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_types, names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.stream_engine import ACTIVATIONS, SWEEPS, Columns, StreamEngine, takes_exposures
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Flat, GammaPrior, Poisson, shared_column, sides_of, slices

CHUNK_NUMBERS, SIDE_BY_SIDE = 1 << 16, 8  # numbers in the shares of one chunk; chunks whose shares wait for each other


class OnlineInfo(NamedTuple):
    """size: the step size; counts: how many counts the mini-batch had."""

    size: float
    counts: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class OnlineEM:
    """Options of online EM.

    Attributes
    ----------
    exponent, offset : the n-th step has size (n + offset)^-exponent, 1/2 < exponent <= 1. Smaller exponents forget the
        beginning sooner, larger ones average longer; 0.6 with ``average_after`` is a good pair
    start_columns : columns whose statistics are gathered under the start, before W is first maximised
    average_after : from which column on statistics are averaged over the steps, as Polyak and Ruppert average iterates;
        the W of the result is that of the averages. None for no averages
    batch : columns of one step. Blocks given to ``update`` are cut into steps of so many columns, the last of a block
        may have fewer
    complete : complete data of the maximisation, "C" (sources; every cell observed) or "CH" (sources and activations;
        cells may be missing); "auto": "C" as long as no cell has been missing, "CH" from then on
    sweeps, keep : Gibbs sweeps of a column's activations, and how many of the last are averaged. What noise few sweeps
        leave averages out over the columns; their bias does not, and grows with the counts: large ones mix slowly
    """

    exponent: float = 0.6
    offset: float = 0.0
    start_columns: int = 20
    average_after: int | None = None
    batch: int = 1
    complete: Literal["auto", "C", "CH"] = "auto"
    sweeps: int = 10
    keep: int = 8

    def __post_init__(self):
        check_types(self)
        check_steps(self)


@dataclass(frozen=True)
class OnlineProblem:
    """What a stream keeps of its model; ``mean_h`` (K,) is alpha / beta, ``of_features`` (F, 1) the exposure or 1."""

    structure: Factorisation
    options: OnlineEM
    plan: ColumnPlan
    mean_h: Array
    workers: Workers
    of_features: Array


def supports(structure: Factorisation, options: OnlineEM) -> Verdict:
    """GaP: counts, W free, gamma activations; exposure and known hyperparameters that are the same for all samples."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
    if not isinstance(W.prior, Flat):
        return Verdict(
            f"it maximises the marginal likelihood of a free {W.name or 'W'}, as in nz.gap; here it has a prior"
        )
    if not isinstance(H.prior, GammaPrior):
        return Verdict(f"it integrates {H.name or 'H'} out, which has no gamma prior")
    if H.unknowns:
        return Verdict(f"the hyperparameters of {H.name} are unknown: {', '.join(u.name for u in H.unknowns)}")
    if any(np.any(full != full[:, :1]) for full in _prior_of_columns(structure, columns=structure.shape[1])):
        return Verdict(f"the hyperparameters of {H.name} differ between samples, and new samples have none")
    if likelihood.background is not None:
        return Verdict(f"{likelihood.name} has a background")
    sides = None if likelihood.exposure is None else sides_of(likelihood.exposure)
    if likelihood.exposure is not None and (sides is None or not sides.is_shared):
        return Verdict(f"{likelihood.name} has an exposure of its own for every cell, and new samples have none")
    if refusal := takes_units("a stream", likelihood.exposure).reason:
        return Verdict(refusal)
    if not structure.is_integer:
        return Verdict(f"it allocates counts, and {likelihood.name} holds values that are not integers")
    return CAN_RUN


def _prior_of_columns(structure: Factorisation, columns: int = 1) -> list[Array]:
    """Shape and rate of the activations, (K, columns) each."""
    pair = structure.H.prior.shape_and_rate({})
    return [np.broadcast_to(array, structure.H.shape)[:, :columns] for array in pair]


def prepare(structure: Factorisation, options: OnlineEM, workers: Workers) -> OnlineProblem:
    """The prior of a column's activations, and the exposure that all columns share."""
    shape, rate = (np.array(array[:, 0], dtype=np.float64) for array in _prior_of_columns(structure))
    of_features = shared_column(structure.likelihood.exposure, structure.shape[0], 1.0)
    assert of_features is not None
    plan = ColumnPlan(shape, rate, options.sweeps, options.keep)
    return OnlineProblem(structure, options, plan, shape / rate, workers, of_features[:, None])


def init(problem: OnlineProblem, columns: Columns, key: np.uint64, start: Mapping[str, Array]) -> OnlineState:
    """Empty statistics, and a W whose mean is that of the first mini-batch: given, else random."""
    F, K = problem.structure.shape[0], problem.structure.rank
    W = problem.structure.W
    if W.name in start:
        first = np.array(W.orient(np.asarray(start[W.name], dtype=np.float64)) * problem.of_features, order="C")
        first = np.maximum(first, 1e-10 * first.max())
    else:
        typical = _typical(columns.part(0, min(problem.options.batch, columns.n_columns)), F)
        rate, first = np.full((F, K), SPREAD * K * problem.mean_h / typical), np.empty((F, K))
        draw_factor(first, np.full((F, K), SPREAD), rate, 0, F, key)
    complete = "CH" if problem.options.complete == "CH" else "C"
    return OnlineState(empty(F, K, problem.options.average_after is not None), first, complete)


def _typical(columns: Columns, n_features: int) -> float:
    """The mean of the observed cells, for an exposure of 1; 1 if it is 0."""
    seen = np.where(columns.complete, n_features, np.diff(columns.indptr)) @ columns.exposure
    mean = columns.values.sum() / seen if seen > 0 else 0.0
    return float(mean) if mean > 0 else 1.0


def check(problem: OnlineProblem, state: OnlineState, columns: Columns) -> None:
    """Refuse missing cells where the maximisation is only right without."""
    if problem.options.complete == "C" and not np.all(columns.complete):
        n = columns.number + int(np.argmin(columns.complete))
        do = "use nz.OnlineEM(complete='auto') or 'CH'"
        raise InputError("x", f"missing cells in column {n}", "every cell observed, as complete='C' needs", do)


def update(
    problem: OnlineProblem, state: OnlineState, columns: Columns, key: np.uint64
) -> tuple[OnlineState, OnlineInfo]:
    """One step, from a mini-batch of columns."""
    options, state = problem.options, state if np.all(columns.complete) else with_workspace(state)
    if np.any(columns.exposure != 1.0):
        state = with_exposures(state)
    running, weights = state.running, weights_now(state, problem.mean_h, options.start_columns)
    size = (running.clock[clock.STEPS] + 1.0 + options.offset) ** -options.exponent
    seen, after = running.clock[clock.COLUMNS] + columns.n_columns, options.average_after
    is_averaged = after is not None and seen > max(after, options.start_columns)
    chunks = cut(columns, problem.structure.rank)
    parts = [columns.part(first, last) for first, last in chunks]
    if len(parts) == 1:
        shares, active, counts = expect(problem, weights, columns, key)
        take_step(running, columns, 0, columns.n_columns, shares, active, size, is_averaged)
        return state, OnlineInfo(size, counts)
    new = copy(running)
    weight, counts = decay(new, size) / columns.n_columns, 0.0
    for some in (parts[piece] for piece in slices(len(parts), SIDE_BY_SIDE)):
        found = problem.workers.map(lambda part: expect(problem, weights, part, key), some)
        for part, (shares, active, n_counts) in zip(some, found, strict=True):
            add_columns(new, part, 0, part.n_columns, shares, active, weight)
            counts += n_counts
    end_step(new, columns.n_columns, is_averaged)
    return state._replace(running=new), OnlineInfo(size, counts)


def cut(columns: Columns, rank: int) -> list[tuple[int, int]]:
    """Chunks of columns with about ``CHUNK_NUMBERS`` numbers in their shares: bounds memory, and feeds threads."""
    most, bounds = max(1, CHUNK_NUMBERS // rank), [0]
    while bounds[-1] < columns.n_columns:
        last = int(np.searchsorted(columns.indptr, columns.indptr[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(last, bounds[-1] + 1), columns.n_columns))
    return list(pairwise(bounds))


def expect(
    problem: OnlineProblem, weights: OnlineWeights, columns: Columns, key: np.uint64, purpose: int = SWEEPS
) -> tuple[Array, Array, float]:
    """(E[c | x] at the cells, E[h | x] of the columns times their exposures, number of counts) of some columns."""
    longest = int(np.diff(columns.indptr).max())
    workspace = make_workspace(len(columns.values), longest, columns.n_columns, problem.structure.rank)
    counts = expect_columns(columns, 0, columns.n_columns, weights, problem.plan, workspace, child(key, purpose))
    return workspace.shares, workspace.active, counts


def finish(problem: OnlineProblem, state: OnlineState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, of the averaged statistics if there are some."""
    W = as_array(final_weights(state, problem.mean_h, problem.options.start_columns)) / problem.of_features
    return {problem.structure.W.name: problem.structure.W.orient(W)}, {}


def seen(state: OnlineState) -> int:
    """Columns so far."""
    return int(state.running.clock[clock.COLUMNS])


def track(problem: OnlineProblem, state: OnlineState) -> Array:
    """Sums of W's columns, (K,), as the last step left them."""
    weights = weights_now(state, problem.mean_h, problem.options.start_columns)
    if np.all(problem.of_features == 1.0):
        return weights.norms  # which cost nothing to have
    return (as_array(weights) / problem.of_features).sum(axis=0)


def activations(problem: OnlineProblem, state: OnlineState, columns: Columns, key: np.uint64) -> dict[str, Array]:
    """Means (K, n) of H given the columns and the final W."""
    weights = final_weights(state, problem.mean_h, problem.options.start_columns)
    parts = [columns.part(first, last) for first, last in cut(columns, problem.structure.rank)]
    found = problem.workers.map(lambda part: expect(problem, weights, part, key, ACTIVATIONS)[1], parts)
    return {"mean": np.concatenate(found).T / columns.exposure}


# -- running statistics ----------------------------------------------------------------------------------------------


class OnlineState(NamedTuple):
    """The statistics; start (F, K), the W of the first columns times the exposure; complete: "C" or "CH"."""

    running: Running
    start: Array
    complete: str


def empty(F: int, K: int, is_averaged: bool) -> Running:
    """Statistics of no column."""
    of_sums = (F, K) if is_averaged else (0, K)
    numbers = np.zeros(6)
    numbers[clock.SCALE] = 1.0
    return Running(
        sources=np.zeros((F, K)),
        everywhere=np.zeros(K),
        some=np.zeros((0, K)),
        totals=np.zeros(K),
        sums=np.zeros(of_sums),
        some_sums=np.zeros((0, K)),
        everywhere_sums=np.zeros(K if is_averaged else 0),
        row_times=np.zeros(of_sums[0]),
        clock=numbers,
    )


def copy(running: Running) -> Running:
    return Running(*(array.copy() for array in running))


def with_workspace(state: OnlineState) -> OnlineState:
    """Scratch for the activations of incomplete columns, from the first of these on; C is no longer right then."""
    if state.running.some.size:
        return state
    own = copy(state.running)  # the old state stays whole if this step does not come to its end
    own = own._replace(some=np.zeros_like(own.sources), some_sums=np.zeros_like(own.sums))
    return state._replace(running=own, complete="CH")


def with_exposures(state: OnlineState) -> OnlineState:
    """Scratch for activations without their exposures, which have been 1 so far."""
    if state.running.unexposed.size:
        return state
    own = copy(state.running)
    own = own._replace(unexposed=own.everywhere.copy(), unexposed_sums=own.everywhere_sums.copy())
    return state._replace(running=own)


def weights_now(state: OnlineState, mean_h: Array, start_columns: int) -> OnlineWeights:
    """W as it is in the statistics."""
    running = state.running
    is_start = not running.clock[clock.MASS] or running.clock[clock.COLUMNS] < start_columns
    if state.complete == "C":
        top, bottom = running.clock[clock.SCALE] / mean_h, np.ones_like(mean_h)
        if running.unexposed.size and not is_start:
            top = top * (running.unexposed / running.everywhere)
    else:  # the scale is that of both
        top, bottom = np.ones_like(mean_h), running.everywhere
    weights = OnlineWeights(running.sources, running.some, top, bottom, state.start, np.empty(0), bool(is_start))
    if is_start:
        norms = state.start.sum(axis=0)
    elif running.some.size:
        norms = _divided(weights).sum(axis=0)
    else:
        norms = running.totals * top / bottom
    return weights._replace(norms=norms)


def final_weights(state: OnlineState, mean_h: Array, start_columns: int) -> OnlineWeights:
    """W as it is in the averaged statistics, if there are some."""
    running = averaged(state.running) if state.running.clock[clock.AVERAGED] > 0 else state.running
    return weights_now(state._replace(running=running), mean_h, start_columns)


def as_array(weights: OnlineWeights) -> Array:
    """The same as an array, (F, K)."""
    return weights.start.copy() if weights.is_start else _divided(weights)


def _divided(weights: OnlineWeights) -> Array:
    """W (F, K) of the statistics, the start at features that no column has shown yet."""
    below = np.broadcast_to(weights.bottom, weights.start.shape)
    below = below + weights.some if weights.some.size else below
    return np.divide(weights.sources * weights.top, below, out=weights.start.copy(), where=below > 0)


def averaged(running: Running) -> Running:
    """The averages in the place of the statistics."""
    own = copy(running)
    renew(own)
    n = own.clock[clock.AVERAGED]
    some = own.some_sums / n if own.some.size else own.some
    unexposed = own.unexposed_sums / n if own.unexposed.size else own.unexposed
    means = {"sources": own.sums / n, "everywhere": own.everywhere_sums / n, "totals": own.sums.sum(0) / n}
    return own._replace(some=some, unexposed=unexposed, **means)


STREAM: StreamEngine = StreamEngine(
    name="online_em",
    likelihoods=(Poisson,),
    options=OnlineEM,
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
    takes_exposures=takes_exposures,
)
