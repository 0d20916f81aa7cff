"""W given H with the sources of the counts summed out: a Hamiltonian trajectory of every row.

Given H the rows of W are independent Poisson regressions with a gamma prior. How they bend follows from H, the counts
and the prior alone (:mod:`nmf_zoo.kernels.conditional_strides`), so that nothing has to be learnt, and a sweep leaves
the conditional as it is from the first on. Allocating counts, in which W's cells move apart from each other, mixes
slowly where counts are large; trajectories do where cells are nearly 0. A sweep does both: next to drawing H they cost
little.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.layout import Layout
from nmf_zoo.inference.prior_cells import PriorCells
from nmf_zoo.inference.trajectories import blocks_of, is_filled, make_side, make_side_room
from nmf_zoo.kernels.conditional_strides import set_strides
from nmf_zoo.kernels.row_trajectories import Stride
from nmf_zoo.kernels.tuning import Side, SideTuning, from_blocks, move_side
from nmf_zoo.structure import Array, Factorisation

MOST_NONZEROS = 1 << 18  # beyond, threads, which allocation has, are worth more
STEP, LENGTH = 0.6, 5  # together between a quarter and half a turn


def side_of_weights(structure: Factorisation, layout: Layout) -> Side | None:
    """The data as the rows of W see them; None where W is known or the data are large."""
    if structure.W.is_fixed or len(layout.values) > MOST_NONZEROS:
        return None
    idle = np.ones(structure.W.shape)  # the prior's rate may be unknown, and is handed over with every sweep
    return make_side(structure, layout, idle, is_filled(structure, layout), of_features=True)


def walk_weights(side: Side, W: Array, Ht: Array, priors: PriorCells, weight: Array, key: np.uint64) -> float:
    """Move W (F, K) in place given Ht (T, K); returns the mean acceptance probability.

    ``weight`` : (F, K) or (1, K), the likelihood's part of the rate, sum_t M_ft h_kt
    """
    room = make_side_room(side, priors.shape_w)
    blocks, rank, width = side.prior_rate.shape
    room.rows.values[:] = blocks_of(W, width, 1.0)
    room.rows.rate[:] = blocks_of(priors.rate_w + weight, width, 1.0)
    scale, root = np.ones((blocks, rank, width)), np.zeros((blocks, rank, rank, width))
    stride = Stride(scale, root, np.full((blocks, width), STEP), np.array([LENGTH]))
    set_strides(side.data, Ht, room.rows, stride, room.block, blocks_of(priors.rate_w, width, 1.0))
    nothing = np.zeros((0, 0, 0, 0)), np.zeros((blocks, rank, width)), np.zeros((blocks, width))
    accepted = move_side(side, Ht, SideTuning(*stride, *nothing), room, key)
    from_blocks(W, room.rows.values)
    return accepted
