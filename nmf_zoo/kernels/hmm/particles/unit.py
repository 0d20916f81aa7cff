"""Particles of chains on the unit interval (Yildirim, Cemgil, Singh 2012, section 4.2).

Near an end the distance to it shrinks to nothing within some hundred steps, and 1 - 1e-20 is 1: each particle keeps
its distances to both ends, h and 1 - h, of which the smaller is exact. A move towards an end shrinks the distance to
it, and which way a move went is read off the smaller distance.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.rows import gather
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

SMALLEST = 2.0**-1022  # distance to an end: the smallest normal number


@in_lanes
def draw_first(new, key):
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
