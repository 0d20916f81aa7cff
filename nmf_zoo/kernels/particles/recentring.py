"""A log-normal chain of known mean put back around it, with W taking the scale: steps of EM that are not small.

With w_k h_k known and both of them not, EM moves the scale between them by a small share of what is wrong at each step,
the smaller the better the counts say what w_k h_k is, and the steps of online EM shrink. In the model with a free mean
m', (W, m') says the same of X as (W e^(m' - m), m), so that EM may maximise over m' too and then move on to the
latter (parameter expansion: Liu, Rubin, Wu 1998)::

    d = m' - m,     w_k <- w_k e^d,  log h_k <- log h_k - d

which leaves the rates as they are. Particles and all that they carry move along; the next W = S2 / S1 is the moved one.
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.basis_states import in_lanes
from nmf_zoo.kernels.particles.log_normal import set_activations
from nmf_zoo.kernels.particles.statistics import scale_row
from nmf_zoo.kernels.streams import kernel

LARGEST_ERROR = 1.0  # standard error of the mean that is still worth following


@kernel
def recentre(population, carried, law, sums, transitions, samples):
    """Move particles, what they carry and its means ``sums``, for every component whose mean the steps tell.

    ``transitions`` is the weight of the steps in the averages, ``samples`` how many samples make up an average.
    """
    rank = law.parameters.shape[1]
    for k in range(rank):
        mean, persistence, scale = law.parameters[0, k], law.parameters[1, k], law.parameters[2, k]
        if not scale < LARGEST_ERROR * (1.0 - persistence) * math.sqrt(samples) or not transitions > 0.0:
            continue
        first = carried.rows.pairs + 5 * k
        away = (sums[first + 1] - persistence * sums[first]) / (transitions * (1.0 - persistence)) - mean
        population.cloud.aux[k] -= away
        for r in range(carried.rows.sources // rank):
            scale_row(carried.table[r * rank + k], math.exp(-away))
            sums[r * rank + k] *= math.exp(-away)
        move_moments(carried.table[first : first + 5], away, transitions / carried.scale[0])
        move_moments(sums[first : first + 5].reshape(5, 1), away, transitions)
    set_activations(population.cloud)


@in_lanes
def move_moments(rows, away, n):
    """Sums of z, z', z z, z z', z' z' over steps of the weight n, (5, N), with z and z' less by ``away``."""
    z, after, squares, products, squares_after = rows[0], rows[1], rows[2], rows[3], rows[4]
    for i in range(z.size):
        squares[i] += away * (n * away - 2.0 * z[i])
        products[i] += away * (n * away - z[i] - after[i])
        squares_after[i] += away * (n * away - 2.0 * after[i])
        z[i] -= n * away
        after[i] -= n * away
