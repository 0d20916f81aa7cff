"""Where particles may have come from: Metropolis steps among the particles of the sample before.

For particle i of a sample, j is a draw from B_ij prop. to w_j f(h_i | h_j), w the filter's weights, if it starts from
one: candidates come from w and are taken with probability f(h_i | h_candidate) / f(h_i | h_j) (Bunch, Godsill 2013).
No bound on f is needed (that of the unit chain has none), and the ancestor of i, which came with it from the joint law
of both samples, is a start that one step is enough for (Dau, Chopin 2023).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.laws import steps_between
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_exp
from nmf_zoo.kernels.random.keyed_rng import ONE, fold, uniform


class AncestorChains(NamedTuple):
    """Where n particles come from, and scratch. Indices are uint64: one that cannot be negative costs half as much.

    Attributes
    ----------
    current, candidates : (n,) uint64
    logs : (3, n) log f of the steps from these two, and which candidates are taken
    guide : (N,) uint64, cumulative : (N,) of the weights
    ready : (2 K, N) of `laws.prepare_steps`
    """

    current: Any
    candidates: Any
    logs: Any
    guide: Any
    cumulative: Any
    ready: Any


@kernel
def start_chains(chains, new, old, law, weights, starts):
    """Stand at ``starts`` (n,), with all made ready but ``chains.ready``."""
    set_guide(chains.guide, chains.cumulative, weights)
    for i in range(starts.size):
        chains.current[i] = np.uint64(starts[i])
    steps_between(chains.logs[0], chains.ready, new, old, chains.current, law)


@kernel
def move_chains(chains, new, old, law, steps, key):
    """Take Metropolis steps."""
    for s in range(steps):
        stream = fold(key, s)
        draw_by_guide(chains.candidates, chains.guide, chains.cumulative, stream)
        steps_between(chains.logs[1], chains.ready, new, old, chains.candidates, law)
        accept(chains.current, chains.candidates, chains.logs, fold(stream, 0))


@kernel
def set_guide(guide, cumulative, weights):
    """Overwrite cumulative (N,) with the sums of weights (N,), and guide (N,) with where its N-ths are reached."""
    total = 0.0
    for i in range(weights.size):
        total += weights[i]
        cumulative[i] = total
    i = 0
    for g in range(guide.size):
        while cumulative[i] < total * g / guide.size:
            i += 1
        guide[g] = np.uint64(i)


@kernel
def draw_by_guide(out, guide, cumulative, key):
    """Overwrite out (n,) with independent draws by the weights (Chen, Asau 1974)."""
    n, total = guide.size, cumulative[-1]
    for i in range(out.size):
        u = uniform(key, np.uint64(i))
        j, level = guide[np.int64(u * n)], u * total
        while cumulative[j] < level:
            j += ONE
        out[i] = j


@kernel
def accept(current, candidates, logs, key):
    """Take candidates with probability e^(log f of theirs - log f). (Step by step: such loops run in SIMD lanes.)"""
    decide(logs[2], logs[0], logs[1], key)
    replace(current, candidates, logs[2])
    replace(logs[0], logs[1], logs[2])


@in_lanes
def decide(is_taken, log_current, log_candidates, key):
    """Overwrite is_taken with 1 where the candidate is taken, else 0."""
    for i in range(is_taken.size):
        rise = log_candidates[i] - log_current[i]
        chance = fast_exp(rise) if rise > -LARGEST_POWER else 0.0
        is_taken[i] = 1.0 if uniform(key, np.uint64(i)) < chance else 0.0


@in_lanes
def replace(row, others, is_taken):
    """row = others where they are taken."""
    for i in range(row.size):
        row[i] = others[i] if is_taken[i] > 0.5 else row[i]
