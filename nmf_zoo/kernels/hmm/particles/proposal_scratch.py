"""Scratch between looking ahead and proposing: what the look at the next sample found out, for the proposal to use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# For the steps of looking ahead that have one or two callers: a call that stays is compiled, and all that it calls is
# optimised again, at every level from here to the filter.

TILE = 32  # particles in one pass: the rows of a tile stay in the nearest cache


class Ahead(NamedTuple):
    """Overwritten at every step; what the rows mean is the chain's own affair.

    Attributes
    ----------
    points : (K, N) where the proposal of each particle is centred
    spreads : (K, N) how wide it is, or what else each particle has of its own
    shared : (3 K, K) matrices that all particles share
    vectors : (6, K) vectors that all particles share
    tiles : (8, K, TILE) scratch for a pass over a few particles
    seen : (1,) int64, 0 where there is nothing to look at: particles move by the chain's own law; else how it is seen
    """

    points: Any
    spreads: Any
    shared: Any
    vectors: Any
    tiles: Any
    seen: Any


def ahead_scratch(rank: int, particles: int) -> Ahead:
    """Scratch for ``particles`` particles of ``rank`` components."""
    return Ahead(
        np.zeros((rank, particles)),
        np.zeros((rank, particles)),
        np.zeros((3 * rank, rank)),
        np.zeros((6, rank)),
        np.zeros((8, rank, TILE)),
        np.zeros(1, np.int64),
    )
