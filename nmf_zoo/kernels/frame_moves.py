"""Hamiltonian moves of a frame's activations, beside the draws of a Gibbs sweep, which walk slowly.

The components are summed out: with u = log h, l_f = w_f . h (+ background)::

    log p(u | p) = -sum_f (log l_f + p_f / l_f) - sum_k (shape_k u_k + scale_k / h_k)

and its gradient is h_k sum_f w_fk (p_f / l_f - 1) / l_f - shape_k + scale_k / h_k. A trajectory takes a few leapfrog
steps in coordinates q, u = root q, with root root^T the inverse of the Fisher information where the frame's chain
began (plus the prior's); it is accepted by a Metropolis test, so that the law of a sweep is what it was. It needs no
random number per cell. Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.draws import normal_from
from nmf_zoo.kernels.frame_splits import add_variances, divide_power, in_sums, weighted_sums
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import fold, kernel, uniform

MOMENTUM, JITTER, TEST = range(3)  # children of a trajectory's stream
LARGEST_STEP, LENGTH = 0.8, 1.5  # in q, where the law is about as wide as a standard normal
U, H, PACE, SLOPE = range(4)  # rows of room.moves: log h, h before the move, momentum, gradient in u
ZERO = np.uint64(0)


@in_sums
def _energy(rest, left, n_cells):
    """sum_f (log l_f + p_f / l_f)"""
    total = 0.0
    for f in range(n_cells):
        total += fast_log(rest[0, f]) + left[f]
    return total


@kernel
def measure_frame(chain, room, n_cells):
    """Overwrite room.root (K, K), upper triangular, by the Fisher information at room.h; room.left holds 1 / l."""
    root, h, rank = room.root, room.h, room.h.size
    for j in range(rank):
        for k in range(j + 1):
            total = 0.0
            for f in range(n_cells):
                total += room.weights[j, f] * room.weights[k, f] * room.left[f] * room.left[f]
            root[j, k] = total * h[j] * h[k]
        root[j, j] += 0.5 * (chain.shape[j] + chain.scale[j] / h[j])
    _invert_root(root)


@kernel
def _invert_root(root):
    """From the lower triangle of G to the upper triangular A with A A^T the inverse of G."""
    rank = len(root)
    for j in range(rank):  # the lower factor C of G = C C^T
        for k in range(j + 1):
            total = root[j, k]
            for i in range(k):
                total -= root[j, i] * root[k, i]
            root[j, k] = math.sqrt(max(total, 1e-300)) if j == k else total / root[k, k]
    for k in range(rank):  # A = C^-T, column by column above the diagonal
        root[k, k] = 1.0 / root[k, k]
        for j in range(k + 1, rank):
            total = 0.0
            for i in range(k, j):
                total -= root[j, i] * (root[k, k] if i == k else root[k, i])
            root[k, j] = total / root[j, j]


@kernel
def move_activations(chain, room, n_cells, n_padded, key):
    """One trajectory of room.h; True if it was accepted."""
    moves, root, rank, word = room.moves, room.root, room.h.size, ZERO
    stream, kinetic = fold(key, MOMENTUM), 0.0
    for k in range(rank):
        moves[U, k], moves[H, k] = math.log(room.h[k]), room.h[k]
        moves[PACE, k], word = normal_from(stream, word)
        kinetic += 0.5 * moves[PACE, k] * moves[PACE, k]
    step = min(LARGEST_STEP, LENGTH / chain.leaps) * (0.7 + 0.6 * uniform(fold(key, JITTER), 0))
    _find_slope(chain, room, n_cells, n_padded)
    gain = kinetic - _height(chain, room, n_cells)
    for leap in range(chain.leaps):
        _kick(moves, root, (0.5 if leap == 0 else 1.0) * step)
        for k in range(rank):
            for j in range(k, rank):
                moves[U, k] += step * root[k, j] * moves[PACE, j]
            room.h[k] = math.exp(moves[U, k])
        _find_slope(chain, room, n_cells, n_padded)
    _kick(moves, root, 0.5 * step)
    for k in range(rank):
        gain -= 0.5 * moves[PACE, k] * moves[PACE, k]
    gain += _height(chain, room, n_cells)
    if math.log(uniform(fold(key, TEST), 0)) < gain:  # False where it is no number
        return True
    for k in range(rank):
        room.h[k] = moves[H, k]
    return False


@kernel
def _find_slope(chain, room, n_cells, n_padded):
    """Overwrite room.moves[SLOPE] with the gradient at room.h, and room.rest[0] and room.left with l and p / l."""
    add_variances(room.rest, room.weights, room.h, n_padded)
    divide_power(room.left, room.excess, room.power, room.rest, n_padded)
    weighted_sums(room.sums, room.weights, room.excess, n_cells)
    for k in range(room.h.size):
        room.moves[SLOPE, k] = room.h[k] * room.sums[k] - chain.shape[k] + chain.scale[k] / room.h[k]


@kernel
def _height(chain, room, n_cells):
    """The log density where the slope was found."""
    height = -_energy(room.rest, room.left, n_cells)
    for k in range(room.h.size):
        height -= chain.shape[k] * room.moves[U, k] + chain.scale[k] / room.h[k]
    return height


@kernel
def _kick(moves, root, size):
    """momentum += size * root^T gradient"""
    for j in range(len(root)):
        for k in range(j + 1):
            moves[PACE, j] += size * root[k, j] * moves[SLOPE, k]
