"""Particles of chains on the unit interval (Yildirim, Cemgil, Singh 2012, section 4.2).

Near an end the distance to it shrinks to nothing within some hundred steps, and 1 - 1e-20 is 1: each particle keeps
its distances to both ends, h and 1 - h, of which the smaller is exact. A move towards an end shrinks the distance to
it, and which way a move went is read off the smaller distance.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.particles.rows import add_chance, add_row, gather
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

SMALLEST = 2.0**-1022  # distance to an end: the smallest normal number


@in_lanes
def draw_first(new, law, key):
    """Overwrite the cloud with uniform draws."""
    for k in range(new.h.shape[0]):
        stream = fold(key, k)
        for i in range(new.h.shape[1]):
            u = uniform(stream, np.uint64(i))
            new.h[k, i], new.aux[k, i] = u, 1.0 - u


@kernel
def move(new, old, ancestors, law, key):
    """Overwrite particle i of ``new`` with a draw of the step from particle ancestors[i] of ``old``."""
    for k in range(new.h.shape[0]):
        gather(new.h[k], old.h[k], ancestors)
        gather(new.aux[k], old.aux[k], ancestors)
        move_row(new.h[k], new.aux[k], law.parameters[0, k], fold(key, k))


@in_lanes
def move_row(h, aux, alpha, key):
    """A step of one component, in place: u says which way, and given that is uniform again, and says how far."""
    for i in range(h.size):
        below, above, u = h[i], aux[i], uniform(key, np.uint64(i))
        chance = alpha if below <= above else 1.0 - alpha
        is_down = u < chance
        edge, part, whole = (below, u, chance) if is_down else (above, 1.0 - u, 1.0 - chance)
        near = max(edge * part / whole, SMALLEST)
        h[i] = near if is_down else 1.0 - near
        aux[i] = 1.0 - near if is_down else near


@kernel
def is_towards(below, above, new_below, new_above):
    """Whether a move went towards the end that was nearer."""
    return new_below <= below if below <= above else new_above <= above


@kernel
def log_step(law, new, i, old, j):
    """Log-density of the step from particle j of ``old`` to particle i of ``new``."""
    total = 0.0
    for k in range(new.h.shape[0]):
        below, above, alpha = old.h[k, j], old.aux[k, j], law.parameters[0, k]
        if is_towards(below, above, new.h[k, i], new.aux[k, i]):
            total += math.log(alpha) - math.log(min(below, above))
        else:
            total += math.log(1.0 - alpha) - math.log(max(below, above))
    return total


@kernel
def log_first(law, new, i):
    """Log-density of particle i at the first time: uniform."""
    return 0.0


# -- what smoothing sums ---------------------------------------------------------------------------------------------

N_PAIRS, N_FIRSTS = 2, 0  # of a step: towards the end that was nearer, away from it; of the first time: nothing


@kernel
def add_first(rows, cloud, k, gain):
    """Of the first time nothing is wanted: rows (0, N)."""


@kernel
def add_step(rows, new, old, k, origins, share, workspace):
    """Towards the nearer end or away, to rows (2, N): the mean over the particles origins[:, i] that i may be from."""
    towards, ends = workspace[0], (new.h[k], new.aux[k], old.h[k], old.aux[k])
    towards[:] = 0.0
    for m in range(origins.shape[0]):
        add_towards(towards, ends, origins[m], 1.0 / origins.shape[0])
    add_row(rows[0], towards, share)
    add_chance(rows[1], towards, towards, share, (1.0, -1.0), (1.0, 0.0))


@in_lanes
def add_towards(out, ends, origins, scale):
    """out += scale where a unit chain went towards the end that was nearer."""
    below, above, old_below, old_above = ends
    for i in range(out.size):
        was_below, was_above = old_below[origins[i]], old_above[origins[i]]
        is_towards = below[i] <= was_below if was_below <= was_above else above[i] <= was_above
        out[i] += scale if is_towards else 0.0


@kernel
def expect_step(column, new, i, old, k, shares, gain):
    """The same to column (2,) of particle i of ``new``, which comes from those of ``old`` by their shares (N,)."""
    towards = chance_towards(old.h[k], old.aux[k], shares, new.h[k, i], new.aux[k, i])
    column[0] += gain * towards
    column[1] += gain * (1.0 - towards)


@summing
def chance_towards(below, above, shares, new_below, new_above):
    """How likely the step to a unit particle went towards the end that was nearer."""
    total = 0.0
    for j in range(shares.size):
        is_towards = new_below <= below[j] if below[j] <= above[j] else new_above <= above[j]
        total += shares[j] if is_towards else 0.0
    return total


# -- densities of many steps -----------------------------------------------------------------------------------------


@kernel
def prepare_steps(ready, old, k, law):
    """Overwrite ready (2, N) with what steps of component k from the particles of ``old`` need."""
    alpha = law.parameters[0, k]
    logs = math.log(alpha), math.log(1.0 - alpha)
    prepare_directions(ready[0], ready[1], old.h[k], old.aux[k], logs)


@in_lanes
def prepare_directions(down, up, below, above, logs):
    """The density is chance / distance to the end it goes to; ``logs``: of the chances of the nearer and the other."""
    near, far = logs
    for j in range(below.size):
        is_low = below[j] <= above[j]
        down[j] = (near if is_low else far) - fast_log(below[j])
        up[j] = (far if is_low else near) - fast_log(above[j])


@kernel
def add_steps_to(out, ready, new, i, old, k, law):
    """out += log f of the steps from all particles of ``old`` to particle i of ``new``."""
    ends = old.h[k], old.aux[k]
    add_direction(out, ready[0], ready[1], ends, new.h[k, i], new.aux[k, i])


@in_lanes
def add_direction(out, down, up, ends, new_below, new_above):
    """out += down or up, whichever way the new particle lies."""
    below, above = ends
    for j in range(out.size):
        is_down = new_below <= below[j] if below[j] <= above[j] else new_above > above[j]
        out[j] += down[j] if is_down else up[j]


@kernel
def add_steps_between(out, ready, new, old, k, origins, law):
    """out += log f of the steps from particle origins[i] of ``old`` to particle i of ``new``."""
    logs, ends = (ready[0], ready[1]), (old.h[k], old.aux[k])
    add_direction_from(out, logs, ends, new.h[k], new.aux[k], origins)


@in_lanes
def add_direction_from(out, logs, ends, new_below, new_above, origins):
    """out += down or up, of unit particles."""
    (down, up), (below, above) = logs, ends
    for i in range(out.size):
        j = origins[i]
        near_0, near_1, to_below, to_above = below[j], above[j], down[j], up[j]
        is_down = new_below[i] <= near_0 if near_0 <= near_1 else new_above[i] > near_1
        out[i] += to_below if is_down else to_above
