"""Smoothing sums along the particles' own paths, in O(N) a step (Yildirim, Cemgil, Singh 2012, Algorithm 1).

T_t(i) = decay T_{t-1}(a_i) + gain s_t(h_{a_i}, h_i), a_i the ancestor. As printed, Algorithm 1 goes on with the
statistics from before the resampling, so that they part from their particles; here they go together.

Resampling makes all paths one some N steps back. So the variance of sums grows with the square of the time until they
are, but for the last steps, those of a single path, for which more particles are no help (Poyiadjis, Doucet, Singh
2011). A decay bounds how far back that matters.

Resampling leaves a particle with children where it is (`resampling.place_children`), so that the others' columns can be
taken over in place.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.particles.statistics import add_pairs
from nmf_zoo.kernels.streams import kernel


@kernel
def carry_along_paths(carried, population, law, gain):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    origins = carried.drawn[0]
    for i in range(origins.size):
        origins[i] = np.uint64(population.ancestors[i])
    move_columns(carried.table, origins, carried.drawn[1], carried.drawn[2])
    add_pairs(carried, population, carried.drawn[:1], gain, law)


@kernel
def move_columns(table, origins, places, moved):
    """Column i takes the values of column origins[i], which stays where it is; the last two (N,) uint64 room."""
    n_moved = 0
    for i in range(origins.size):
        places[n_moved], moved[n_moved] = np.uint64(i), origins[i]
        n_moved += 1 if origins[i] != np.uint64(i) else 0
    for r in range(table.shape[0]):
        row = table[r]
        for m in range(n_moved):
            row[places[m]] = row[moved[m]]
