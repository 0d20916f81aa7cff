"""log f(h_t | h_{t-1}) from many particles at a time, up to a term that depends on h_t alone.

What depends on h_{t-1} alone is made ready once a step, (2 K, N), so that a pair of particles costs no logarithm::

    binary        log f = sum_k ready[2 k + h_kt]                 log P(off | h_{t-1}), log P(on | h_{t-1})
    unit          log f = sum_k ready[2 k + (is h_kt above)]      log of the densities below and above h_{t-1}
    log-normal    log f = -1/2 sum_k (log h_kt / scale - ready[2 k])^2
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.laws import BASIS, UNIT
from nmf_zoo.kernels.numerics.special import fast_log


@kernel
def prepare_steps(ready, old, law):
    """Overwrite ready (2 K, N) with what steps from the particles of ``old`` need."""
    for k in range(old.h.shape[0]):
        first, second, third = law.parameters[0, k], law.parameters[1, k], law.parameters[2, k]
        if law.kind == BASIS:
            logs = math.log(first), math.log(1.0 - first), math.log(1.0 - second), math.log(second)
            prepare_switches(ready[2 * k], ready[2 * k + 1], old.h[k], logs)
        elif law.kind == UNIT:
            logs = math.log(first), math.log(1.0 - first)
            prepare_directions(ready[2 * k], ready[2 * k + 1], old.h[k], old.aux[k], logs)
        else:
            prepare_means(ready[2 * k], old.aux[k], first, second, third)


@in_lanes
def prepare_switches(to_off, to_on, old, logs):
    """``logs``: of the probabilities of 0 -> 0, 0 -> 1, 1 -> 0, 1 -> 1."""
    for j in range(old.size):
        to_off[j] = logs[2] if old[j] > 0.5 else logs[0]
        to_on[j] = logs[3] if old[j] > 0.5 else logs[1]


@in_lanes
def prepare_directions(down, up, below, above, logs):
    """The density is chance / distance to the end it goes to; ``logs``: of the chances of the nearer and the other."""
    near, far = logs
    for j in range(below.size):
        is_low = below[j] <= above[j]
        down[j] = (near if is_low else far) - fast_log(below[j])
        up[j] = (far if is_low else near) - fast_log(above[j])


@in_lanes
def prepare_means(out, old, mean, persistence, scale):
    """The mean of the next logarithm, in units of the scale."""
    for j in range(old.size):
        out[j] = (mean + persistence * (old[j] - mean)) / scale


@kernel
def steps_to(out, ready, new, i, old, law):
    """Overwrite out (N,) with log f of the steps from all particles of ``old`` to particle i of ``new``."""
    out[:] = 0.0
    for k in range(new.h.shape[0]):
        if law.kind == BASIS:
            add_log(out, ready[2 * k + 1] if new.h[k, i] > 0.5 else ready[2 * k])
        elif law.kind == UNIT:
            ends = old.h[k], old.aux[k]
            add_direction(out, ready[2 * k], ready[2 * k + 1], ends, new.h[k, i], new.aux[k, i])
        else:
            add_square(out, ready[2 * k], new.aux[k, i] / law.parameters[2, k])


@in_lanes
def add_log(out, row):
    """out += row"""
    for j in range(out.size):
        out[j] += row[j]


@in_lanes
def add_direction(out, down, up, ends, new_below, new_above):
    """out += down or up, whichever way the new particle lies."""
    below, above = ends
    for j in range(out.size):
        is_down = new_below <= below[j] if below[j] <= above[j] else new_above > above[j]
        out[j] += down[j] if is_down else up[j]


@in_lanes
def add_square(out, means, z):
    """out -= (z - mean)^2 / 2"""
    for j in range(out.size):
        away = z - means[j]
        out[j] -= 0.5 * away * away


@kernel
def steps_between(out, ready, new, old, origins, law):
    """Overwrite out (n,) with log f of the steps from particle origins[i] of ``old`` to particle i of ``new``."""
    out[:] = 0.0
    for k in range(new.h.shape[0]):
        if law.kind == BASIS:
            add_switch_from(out, ready[2 * k], ready[2 * k + 1], new.h[k], origins)
        elif law.kind == UNIT:
            logs, ends = (ready[2 * k], ready[2 * k + 1]), (old.h[k], old.aux[k])
            add_direction_from(out, logs, ends, new.h[k], new.aux[k], origins)
        else:
            add_square_from(out, ready[2 * k], new.aux[k], law.parameters[2, k], origins)


@in_lanes
def add_switch_from(out, to_off, to_on, new, origins):
    """out += the log probability of the switch, of binary particles."""
    for i in range(out.size):
        j = origins[i]
        off, on = to_off[j], to_on[j]
        out[i] += on if new[i] > 0.5 else off


@in_lanes
def add_direction_from(out, logs, ends, new_below, new_above, origins):
    """out += down or up, of unit particles."""
    (down, up), (below, above) = logs, ends
    for i in range(out.size):
        j = origins[i]
        near_0, near_1, to_below, to_above = below[j], above[j], down[j], up[j]
        is_down = new_below[i] <= near_0 if near_0 <= near_1 else new_above[i] > near_1
        out[i] += to_below if is_down else to_above


@in_lanes
def add_square_from(out, means, new, scale, origins):
    """out -= (z / scale - mean)^2 / 2, of log-normal particles."""
    for i in range(out.size):
        away = new[i] / scale - means[origins[i]]
        out[i] -= 0.5 * away * away
