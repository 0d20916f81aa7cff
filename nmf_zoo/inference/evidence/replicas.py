"""Replica exchange: Gibbs sampling that goes from mode to mode, beside chains at lower powers of the likelihood.

R replicas of (W, H) stand on a ladder of temperatures 1 = t_1 > ... > t_R, each with the target

    p(W, H) p(X | W, H)^t

A sweep moves every replica at its own temperature, then neighbours on the ladder exchange their places with probability

    min(1, exp((t_r - t_{r+1}) (log p(X | W, H)_{r+1} - log p(X | W, H)_r))),        pairs with r odd, r even, in turn

which leaves the product of all targets as it is (Geyer 1991). What stands at t = 1 is the posterior. A chain of sweeps
stays in its mode; a replica that has been where the likelihood is nearly flat comes back in any, and in the right
share. At t = 1 a replica makes the sweep of :mod:`nmf_zoo.inference.counts.gibbs`; t x is no count elsewhere, and
replicas move along the trajectories of :mod:`nmf_zoo.kernels.evidence.tempering`; at t = 0 they are drawn anew.

Pairs in turn, not at random, make the walk of a replica up and down the ladder nearly straight (Okabe et al. 2001;
Syed, Bouchard-Cote, Deligiannidis, Doucet 2022, JRSS B 84). With r_i the rejection rate of pair i their sum
estimates the barrier between both ends, whatever the ladder, as long as it is fine, and the rate of round trips is at
the most 1 / (2 + 2 barrier) where all r_i are equal. So the warm-up places the temperatures at equal steps of the
rejections that it has seen, in windows of doubling length (their algorithm 4).

Streams: sweep -> replica, and one for the exchanges. So no draw depends on who moved which replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.counts.gibbs import Gibbs, GibbsProblem, GibbsState
from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.smc import Moved, SMCProblem, adapt, make_scratch, next_rise, target_at
from nmf_zoo.inference.shared.requirements import takes_gammas
from nmf_zoo.kernels.evidence.tempering import (
    Pace,
    SideScratch,
    TemperedPopulation,
    TemperedTarget,
    TemperingWorkspace,
    draw_from_prior,
    log_likelihood,
    move_chains,
)
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.memory import require_memory
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Fixed, GammaPrior

EXCHANGES, LADDER = 1 << 32, (1 << 32) + 1  # children of a sweep's and a start's stream; replicas are numbered from 0
PRIOR_DRAWS, SHARE = 100, 0.5  # the first step up from the prior leaves this effective share of so many draws
LEAST_STEP = 1e-12  # a temperature
BURST, WINDOW = 10, 40  # sweeps between changes of the steps; of the first window
LEAST_RATE = 1e-3  # of rejection, so that every step of the ladder has a length
NOWHERE, FROM_COLD, FROM_HOT = range(3)  # where a replica was last, of the ladder's ends
SWEEPS, BURSTS, STOP, TRIPS, IS_FROZEN = range(5)  # entries of ReplicaState.counts


class ReplicaState(NamedTuple):
    """The ladder, coldest first.

    Attributes
    ----------
    cold : the replica at temperature 1, with what its sweeps have learnt
    W, Ht : (R - 1, F, K) and (R - 1, N, K), the others
    temperatures, log_likelihood : (R,)
    step_W, step_H, length_W, length_H : (R - 1, ...) how rows walk at each of the other temperatures
    accepted_W, accepted_H : as the steps, sums over the burst
    rejected, tried : (R - 1,) sums over the window of the pairs' rejection probabilities, and their number
    replicas, came_from : (R,) who stands at each temperature, and at which end each one was last
    counts : sweeps, sweeps in the burst, sweep at which the window ends, round trips, whether the ladder is frozen
    """

    cold: GibbsState
    W: Array
    Ht: Array
    temperatures: Array
    log_likelihood: Array
    step_W: Array
    step_H: Array
    length_W: Array
    length_H: Array
    accepted_W: Array
    accepted_H: Array
    rejected: Array
    tried: Array
    replicas: Array
    came_from: Array
    counts: Array


class ReplicaInfo(NamedTuple):
    """What a sweep says.

    Attributes
    ----------
    scale_move : of the replica at temperature 1, as Gibbs reports it
    round_trips : of all replicas since the warm-up, from temperature 1 to the hottest and back
    barrier : sum of the mean rejection rates since the warm-up, or in its last window
    temperature : (R,)
    exchange_rate : (R - 1,) probability of each pair's exchange, NaN where it was not its turn
    """

    scale_move: float
    round_trips: int
    barrier: float
    temperature: Array
    exchange_rate: Array


@dataclass(frozen=True)
class ReplicaProblem:
    """What all chains share: of sweeps at temperature 1, and of moves at the others.

    ``posterior`` : the target at temperature 1; ``spare`` : scratch that nobody is using
    """

    cold: GibbsProblem
    hot: SMCProblem
    posterior: TemperedTarget
    options: Gibbs
    workers: Workers
    spare: list[TemperingWorkspace]


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """What Gibbs runs, with gamma priors of known hyperparameters: moves at other powers know no others."""
    asked = gibbs.supports(structure, replace(options, temperatures=None)) and takes_gammas(structure)
    if not asked:
        return asked
    factors = structure.W, structure.H
    lack = [factor.name for factor in factors if not isinstance(factor.prior, GammaPrior | Fixed)]
    if lack:
        return Verdict(f"temperatures= needs priors, and {' and '.join(lack)} has none: leave temperatures out")
    if structure.unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"temperatures= needs known hyperparameters, and {names} is unknown: give it, or leave them out")
    if not gibbs.all_free(structure):
        return Verdict("temperatures= moves whole factors, and some components are known: leave temperatures out")
    return CAN_RUN


def n_replicas(options: Gibbs) -> int:
    """How many replicas the options ask for."""
    asked = options.temperatures
    return asked if isinstance(asked, int) else len(asked or ())


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> ReplicaProblem:
    """Lay out the data for both kinds of moves."""
    replicas = n_replicas(options)
    cells = 2 * np.prod(structure.shape) + sum(structure.shape) * structure.rank
    require_memory("temperatures", f"{replicas} replicas", 8.0 * replicas * float(cells), "ask for fewer")
    cold = gibbs.prepare(structure, replace(options, temperatures=None), workers)
    hot = smc.prepare(structure)
    return ReplicaProblem(cold, hot, target_at(hot, 1.0), options, workers, [])


def init(problem: ReplicaProblem, key: np.uint64, start: Mapping[str, Array]) -> ReplicaState:
    """All replicas where the chain begins: hotter ones soon are elsewhere, and cooling takes longer than heating."""
    cold, n = gibbs.init(problem.cold, key, start), n_replicas(problem.options)
    of_W, of_H = smc.first_paces(problem.hot)
    step_W, step_H = (np.repeat(pace.step[None], n - 1, axis=0) for pace in (of_W, of_H))
    counts = np.zeros(5, np.int64)
    counts[STOP] = WINDOW
    return ReplicaState(
        cold=cold,
        W=np.repeat(cold.W[None], n - 1, axis=0),
        Ht=np.repeat(cold.Ht[None], n - 1, axis=0),
        temperatures=first_ladder(problem, child(key, LADDER)),
        log_likelihood=np.full(n, -np.inf),
        step_W=step_W,
        step_H=step_H,
        length_W=np.repeat(of_W.length, n - 1),
        length_H=np.repeat(of_H.length, n - 1),
        accepted_W=np.zeros_like(step_W),
        accepted_H=np.zeros_like(step_H),
        rejected=np.zeros(n - 1),
        tried=np.zeros(n - 1),
        replicas=np.arange(n),
        came_from=np.full(n, NOWHERE),
        counts=counts,
    )


def first_ladder(problem: ReplicaProblem, key: np.uint64) -> Array:
    """The temperatures as given; or from 1 in equal ratios to one that hardly differs from the prior, and the prior."""
    asked = problem.options.temperatures
    if not isinstance(asked, int):
        return np.array(asked, dtype=np.float64)
    if asked == 2:
        return np.array([1.0, 0.0])
    population = smc.empty_population(problem.hot, PRIOR_DRAWS)
    smc.draw_prior(problem.hot, population, problem.workers, key)
    rise, _ = next_rise(population.log_likelihood, SHARE, 1.0)
    return np.append(np.geomspace(1.0, np.clip(rise, LEAST_STEP, 0.5), asked - 1), 0.0)


def step(problem: ReplicaProblem, state: ReplicaState, key: np.uint64) -> tuple[ReplicaState, ReplicaInfo]:
    """One sweep of every replica, and exchanges."""
    if not state.counts[IS_FROZEN]:
        _forget(state)
        state.came_from[:] = NOWHERE
        state.counts[[TRIPS, IS_FROZEN]] = 0, 1
    return _sweep(problem, state, key, is_tuning=False)


def tune(problem: ReplicaProblem, state: ReplicaState, key: np.uint64) -> tuple[ReplicaState, ReplicaInfo]:
    """The same in the warm-up, which adapts the moves and the ladder."""
    state, info = _sweep(problem, state, key, is_tuning=True)
    _adapt(problem, state)
    return state, info


def _sweep(problem: ReplicaProblem, state: ReplicaState, key: np.uint64, is_tuning: bool):
    make = gibbs.tune if is_tuning else gibbs.step

    def move(replica: int) -> tuple[GibbsState, float]:
        own = child(key, replica)
        with scratch_of(problem) as scratch:
            if replica:
                move_hot(problem.hot, state, replica, scratch, own)
                return state.cold, 0.0
            moved, info = make(problem.cold, state.cold, own)
            state.log_likelihood[0] = log_likelihood(problem.posterior, moved.W, moved.Ht, scratch)
            return moved, info.scale_move

    moved = problem.workers.map(move, range(len(state.temperatures)))
    cold, scale_move = moved[0]
    state = state._replace(cold=cold)
    rates = exchange(state, generator_of(child(key, EXCHANGES)))
    state.counts[SWEEPS] += 1
    state.counts[BURSTS] += 1
    barrier = float(np.sum(state.rejected / np.maximum(state.tried, 1)))
    info = ReplicaInfo(scale_move, int(state.counts[TRIPS]), barrier, state.temperatures.copy(), rates)
    return state, info


@contextmanager
def scratch_of(problem: ReplicaProblem) -> Iterator[TemperingWorkspace]:
    """Scratch of one's own: every array in it is written before it is read."""
    try:
        scratch = problem.spare.pop()  # another thread may have taken the last one
    except IndexError:
        scratch = make_scratch(problem.hot, smc.first_paces(problem.hot))
    yield scratch
    problem.spare.append(scratch)


def move_hot(
    problem: SMCProblem, state: ReplicaState, replica: int, scratch: TemperingWorkspace, key: np.uint64
) -> None:
    """Move a replica at a temperature below 1, in place: by trajectories; of the prior itself it is a draw."""
    at, temperature = replica - 1, state.temperatures[replica]
    of_one = state.W[at:replica], state.Ht[at:replica], state.log_likelihood[replica : replica + 1]
    own = TemperedPopulation(*of_one, np.empty((1, 0)))
    target = target_at(problem, temperature)
    if temperature == 0.0:
        draw_from_prior(target, own, scratch, 0, 1, key)
        return
    W, H = map(_at_pace, scratch.sides, _paces(state, at))
    paced = scratch._replace(sides=(W, H))
    move_chains(target, own, np.zeros(1, np.int64), own, paced, np.array([0, 1]), key)
    for total, side in zip((state.accepted_W, state.accepted_H), paced.sides, strict=True):
        total[at] += side.accepted


def _at_pace(scratch: SideScratch, pace: Pace) -> SideScratch:
    """With the pace of a temperature, and no acceptance yet."""
    scratch.accepted[:] = 0.0
    return scratch._replace(stride=scratch.stride._replace(step=pace.step, length=pace.length))


def _paces(state: ReplicaState, at: int) -> tuple[Pace, Pace]:
    """Of W and H at one of the other temperatures; views."""
    lengths = state.length_W[at : at + 1], state.length_H[at : at + 1]
    return Pace(state.step_W[at], lengths[0]), Pace(state.step_H[at], lengths[1])


# -- exchanges -------------------------------------------------------------------------------------------------------


def exchange(state: ReplicaState, rng: np.random.Generator) -> Array:
    """Let every second pair of neighbours change places, or not; the probability of each, NaN where not its turn."""
    n = len(state.temperatures)
    uniforms, rates = rng.random(n - 1), np.full(n - 1, np.nan)
    for pair in range(int(state.counts[SWEEPS]) % 2, n - 1, 2):
        rates[pair] = exchange_probability(state, pair)
        if uniforms[pair] < rates[pair]:
            _change_places(state, pair)
        state.rejected[pair] += 1.0 - rates[pair]
        state.tried[pair] += 1.0
    _count_trips(state)
    return rates


def exchange_probability(state: ReplicaState, pair: int) -> float:
    """That of a replica and the next hotter one. A likelihood of 0 stays with the prior."""
    log_ratio = (state.temperatures[pair] - state.temperatures[pair + 1]) * (
        state.log_likelihood[pair + 1] - state.log_likelihood[pair]
    )
    return float(np.exp(min(log_ratio, 0.0))) if not np.isnan(log_ratio) else 0.0


def _change_places(state: ReplicaState, pair: int) -> None:
    """The replicas at a temperature and at the next lower one."""
    one = (state.W[pair - 1], state.Ht[pair - 1]) if pair else (state.cold.W, state.cold.Ht)
    for mine, other in zip(one, (state.W[pair], state.Ht[pair]), strict=True):
        kept = mine.copy()
        mine[...] = other
        other[...] = kept
    for array in (state.log_likelihood, state.replicas):
        array[[pair, pair + 1]] = array[[pair + 1, pair]]


def _count_trips(state: ReplicaState) -> None:
    """Note who is at the ends of the ladder, and who has come back from the hot one."""
    coldest, hottest = state.replicas[0], state.replicas[-1]
    if state.came_from[coldest] == FROM_HOT:
        state.counts[TRIPS] += 1
    state.came_from[coldest] = FROM_COLD
    if state.came_from[hottest] == FROM_COLD:
        state.came_from[hottest] = FROM_HOT


# -- the warm-up -----------------------------------------------------------------------------------------------------


def _adapt(problem: ReplicaProblem, state: ReplicaState) -> None:
    """Steps of the trajectories after each burst, the temperatures after each window."""
    if state.counts[BURSTS] == BURST:
        for at in range(len(state.W)):
            if state.temperatures[at + 1] > 0.0:
                adapt(problem.hot, _paces(state, at), Moved(state.accepted_W[at] / BURST, state.accepted_H[at] / BURST))
        state.accepted_W[:], state.accepted_H[:] = 0.0, 0.0
        state.counts[BURSTS] = 0
    if state.counts[SWEEPS] == state.counts[STOP]:
        rates = state.rejected / np.maximum(state.tried, 1)
        state.temperatures[:] = equal_steps(state.temperatures, rates)
        state.counts[STOP] = 2 * state.counts[STOP] + WINDOW  # windows of 1, 2, 4, ... times WINDOW
        _forget(state)


def equal_steps(temperatures: Array, rates: Array) -> Array:
    """The ladder between the same ends whose steps would all be rejected alike, rejections being linear in between."""
    barrier = np.append(0.0, np.cumsum(np.maximum(rates, LEAST_RATE)))
    levels = np.linspace(0.0, barrier[-1], len(temperatures))
    found = np.interp(levels, barrier, temperatures)
    found[[0, -1]] = temperatures[[0, -1]]
    return found


def _forget(state: ReplicaState) -> None:
    """Begin a window."""
    state.rejected[:], state.tried[:] = 0.0, 0.0


def draw(problem: ReplicaProblem, state: ReplicaState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Any]]:
    """Of the replica at temperature 1."""
    return gibbs.draw(problem.cold, state.cold, key)


ENGINE = replace(
    gibbs.ENGINE,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
    run=None,
    can_follow=False,  # round trips and exchanges since the warm-up are the chain's own
)
