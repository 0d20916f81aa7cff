"""Gibbs sweeps over the activations of single frames of a spectrogram, W known: the expectation step of a stream.

For a frame of powers p_f, p_f = |y_f|^2 of y_f = sum_k c_fk, with c_fk ~ CN(0, w_fk h_k) and
h_k ~ InverseGamma(shape_k, scale_k), a sweep draws::

    c_f | y_f, h                                      of rank K - 1: see nmf_zoo.kernels.powers.frame_splits
    h_k | c ~ InverseGamma(shape_k + n, scale_k + sum_f |c_fk|^2 / w_fk)          over the n observed f

Cappe, Fevotte, Rohde (2011), section 3; Fevotte, Cemgil (2009). What is kept of the last sweeps are averages of::

    r_fk = E[|c_fk|^2 | y, h] / (w_fk h_k) = 1 + w_fk h_k (p_f / l_f - 1) / l_f          l_f = w_f . h (+ background)

(Rao-Blackwell), or of |c_fk|^2 / (w_fk h_k) as drawn, and of E[1 / h_k | c], the statistic of h's scale. The statistic
of W, |c_fk|^2 / h_k, is w_fk r_fk. A sweep is averaged at the h that it begins with. It may end with a Hamiltonian move
of h, which is no part of the paper's.

A frame has no previous state: h begins at a few multiplicative updates towards its conditional mode. Missing cells are
left out, and frames are padded to whole vectors by cells whose draws nobody reads. Draws are keyed by a frame's number.

**Hamiltonian moves** stand beside the draws of a Gibbs sweep, which walk slowly. The components are summed out: with u
= log h, l_f = w_f . h (+ background)::

    log p(u | p) = -sum_f (log l_f + p_f / l_f) - sum_k (shape_k u_k + scale_k / h_k)

and its gradient is h_k sum_f w_fk (p_f / l_f - 1) / l_f - shape_k + scale_k / h_k. A trajectory takes a few leapfrog
steps in coordinates q, u = root q, with root root^T the inverse of the Fisher information where the frame's chain
began (plus the prior's); it is accepted by a Metropolis test, so that the law of a sweep is what it was. It needs no
random number per cell. Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing_signless
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.powers.frame_splits import (
    LANES,
    add_scaled_row,
    add_shares,
    add_table,
    add_variances,
    divide_power,
    row_sums,
    split_power,
    weighted_sums,
)
from nmf_zoo.kernels.random.draws import draw_gamma, normal_from
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.unowned_views import borrowed

MOMENTUM, JITTER, TEST = range(3)  # children of a trajectory's stream
LARGEST_STEP, LENGTH = 0.8, 1.5  # in q, where the law is about as wide as a standard normal
U, H, PACE, SLOPE = range(4)  # rows of moves: log h, h before the move, momentum, gradient in u
ZERO = np.uint64(0)


@summing_signless
def _energy(rest, left, n_cells):
    """sum_f (log l_f + p_f / l_f)"""
    total = 0.0
    for f in range(n_cells):
        total += fast_log(rest[0, f]) + left[f]
    return total


@kernel
def measure_frame(chain, workspace, n_cells):
    """Overwrite the workspace's root (K, K), upper triangular, by the Fisher information at its h; left holds 1 / l."""
    root, h, rank = workspace.root, workspace.h, workspace.h.size
    for j in range(rank):
        for k in range(j + 1):
            total = 0.0
            for f in range(n_cells):
                total += workspace.weights[j, f] * workspace.weights[k, f] * workspace.left[f] * workspace.left[f]
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
def move_activations(chain, workspace, n_cells, n_padded, key):
    """One trajectory of workspace.h; True if it was accepted."""
    moves, root, rank, word = workspace.moves, workspace.root, workspace.h.size, ZERO
    stream, kinetic = fold(key, MOMENTUM), 0.0
    for k in range(rank):
        moves[U, k], moves[H, k] = math.log(workspace.h[k]), workspace.h[k]
        moves[PACE, k], word = normal_from(stream, word)
        kinetic += 0.5 * moves[PACE, k] * moves[PACE, k]
    step = min(LARGEST_STEP, LENGTH / chain.leaps) * (0.7 + 0.6 * uniform(fold(key, JITTER), 0))
    _find_slope(chain, workspace, n_cells, n_padded)
    gain = kinetic - _height(chain, workspace, n_cells)
    for leap in range(chain.leaps):
        _kick(moves, root, (0.5 if leap == 0 else 1.0) * step)
        for k in range(rank):
            for j in range(k, rank):
                moves[U, k] += step * root[k, j] * moves[PACE, j]
            workspace.h[k] = math.exp(moves[U, k])
        _find_slope(chain, workspace, n_cells, n_padded)
    _kick(moves, root, 0.5 * step)
    for k in range(rank):
        gain -= 0.5 * moves[PACE, k] * moves[PACE, k]
    gain += _height(chain, workspace, n_cells)
    if math.log(uniform(fold(key, TEST), 0)) < gain:  # False where it is no number
        return True
    for k in range(rank):
        workspace.h[k] = moves[H, k]
    return False


@kernel
def _find_slope(chain, workspace, n_cells, n_padded):
    """Overwrite the workspace's moves[SLOPE] with the gradient at its h, rest[0] with l and left with p / l."""
    add_variances(workspace.rest, workspace.weights, workspace.h, n_padded)
    divide_power(workspace.left, workspace.excess, workspace.power, workspace.rest, n_padded)
    weighted_sums(workspace.sums, workspace.weights, workspace.excess, n_cells)
    for k in range(workspace.h.size):
        workspace.moves[SLOPE, k] = (
            workspace.h[k] * workspace.sums[k] - chain.shape[k] + chain.scale[k] / workspace.h[k]
        )


@kernel
def _height(chain, workspace, n_cells):
    """The log density where the slope was found."""
    height = -_energy(workspace.rest, workspace.left, n_cells)
    for k in range(workspace.h.size):
        height -= chain.shape[k] * workspace.moves[U, k] + chain.scale[k] / workspace.h[k]
    return height


@kernel
def _kick(moves, root, size):
    """momentum += size * root^T gradient"""
    for j in range(len(root)):
        for k in range(j + 1):
            moves[PACE, j] += size * root[k, j] * moves[SLOPE, k]


# -- sweeps ----------------------------------------------------------------------------------------------------------


ROUNDING = 1e-13  # of r, a difference of numbers near 1; all of it where one component has a cell of power 0 to itself
UPDATES = 10  # multiplicative ones that bring h to where the sweeps begin


class Frames(NamedTuple):
    """Frames of a spectrogram one after another.

    Attributes
    ----------
    power : (n, F) float64 >= 0, over the frame's own exposure
    seen : (n, F) bool, True = observed; (0, 0) when every cell is
    number : how many frames of the stream came before
    """

    power: np.ndarray
    seen: np.ndarray
    number: int

    def part(self, first: int, last: int) -> Frames:
        """Frames first, ..., last - 1."""
        return Frames(self.power[first:last], self.seen[first:last], self.number + first)

    @property
    def n_columns(self) -> int:
        return len(self.power)


class FramePlan(NamedTuple):
    """How a frame's activations are drawn.

    Attributes
    ----------
    shape, scale : (K,) of h's prior
    background : (F,) known variance beside the components, or (0,)
    sweeps, keep : Gibbs sweeps, and how many of the last are averaged
    is_plain : averages of what was drawn, not of conditional expectations
    leaps : leapfrog steps of the trajectory that ends each sweep, 0 for none
    """

    shape: np.ndarray
    scale: np.ndarray
    background: np.ndarray
    sweeps: int
    keep: int
    is_plain: bool
    leaps: int = 0


class FrameWorkspace(NamedTuple):
    """Scratch for one frame, D cells with the padding; overwritten.

    Attributes
    ----------
    cells : (F,) int64, the observed frequencies
    weights : (K, D); power : (D,)
    rest : (K + 1, D) variance of component k and those after it; the last row of the background
    parts : (K, D) relative powers |c|^2 / (w h) of a draw
    left, excess : (D,) what is left to be shared out, over its variance; the slope (p / l - 1) / l
    h, sums : (K,) ; keys : (K,) uint64
    ratio : (K, D) of the kept sweeps: sums of h_k (p / l - 1) / l, or of relative powers as drawn
    shares : (K, D) of the kept sweeps: sums of h_k / l, or (0, 0)
    moments : (3, K) sums of E[h | c], E[h^2 | c] and E[1 / h | c]
    moves, root : (4, K), (K, K), of trajectories
    """

    cells: np.ndarray
    weights: np.ndarray
    power: np.ndarray
    rest: np.ndarray
    parts: np.ndarray
    left: np.ndarray
    excess: np.ndarray
    h: np.ndarray
    sums: np.ndarray
    keys: np.ndarray
    ratio: np.ndarray
    shares: np.ndarray
    moments: np.ndarray
    moves: np.ndarray
    root: np.ndarray


class FrameStatistics(NamedTuple):
    """Sums over frames of expected sufficient statistics.

    Attributes
    ----------
    power : (K, F) E[|c_fk|^2 / h_k | p], 0 where a cell is missing
    counts : (F,) how often each cell was observed
    inverse : (K,) E[1 / h_k | p], of all frames
    """

    power: np.ndarray
    counts: np.ndarray
    inverse: np.ndarray


class Activations(NamedTuple):
    """Posterior of the activations of n frames.

    Attributes
    ----------
    mean, square : (n, K) E[h | p], E[h^2 | p]
    shares : (n, K, F) E[w_fk h_k / l_f | p], also at missing cells; or (n, 0, 0)
    """

    mean: np.ndarray
    square: np.ndarray
    shares: np.ndarray


def make_workspace(n_frequencies: int, rank: int, has_shares: bool = False) -> FrameWorkspace:
    """Scratch for frames of so many frequencies."""
    padded = -(-n_frequencies // LANES) * LANES
    tables = [np.zeros((rows, padded)) for rows in (rank, rank + 1, rank, rank, rank if has_shares else 0)]
    weights, rest, parts, ratio, shares = tables
    cells, (power, left, excess) = np.zeros(n_frequencies, np.int64), np.zeros((3, padded))
    small = np.zeros(rank), np.zeros(rank), np.zeros(rank, np.uint64)
    tables = ratio, shares, *(np.zeros((rows, rank)) for rows in (3, 4, rank))
    return FrameWorkspace(cells, weights, power, rest, parts, left, excess, *small, *tables)


@kernel
def expect_frames(out, frames, weights, chain, workspace, key):
    """Add to out, :class:`FrameStatistics`."""
    for n in range(frames.power.shape[0]):
        n_cells = _gather(frames, n, weights, chain, workspace)
        if n_cells == 0:
            for k in range(weights.shape[0]):
                out.inverse[k] += chain.shape[k] / chain.scale[k]
            continue
        _begin(chain, workspace, n_cells)
        _run_trajectory(chain, workspace, n_cells, fold(key, frames.number + n))
        for k in range(weights.shape[0]):
            for i in range(n_cells):
                w, mean = workspace.weights[k, i], workspace.ratio[k, i] / chain.keep
                ratio = mean if chain.is_plain else 1.0 + w * mean
                out.power[k, workspace.cells[i]] += w * ratio if ratio > ROUNDING else 0.0
            out.inverse[k] += workspace.moments[2, k] / chain.keep
        for i in range(n_cells):
            out.counts[workspace.cells[i]] += 1.0


@kernel
def activate_frames(out, frames, weights, chain, workspace, key):
    """Overwrite out, :class:`Activations`."""
    for n in range(frames.power.shape[0]):
        n_cells = _gather(frames, n, weights, chain, workspace)
        _begin(chain, workspace, n_cells)
        _run_trajectory(chain, workspace, n_cells, fold(key, frames.number + n))
        for k in range(weights.shape[0]):
            out.mean[n, k] = workspace.moments[0, k] / chain.keep
            out.square[n, k] = workspace.moments[1, k] / chain.keep
        for k in range(out.shares.shape[1]):
            for i in range(n_cells):
                out.shares[n, k, workspace.cells[i]] = workspace.weights[k, i] * workspace.shares[k, i] / chain.keep


@kernel
def _gather(frames, n, weights, chain, workspace):
    """The observed cells of a frame, and padding; how many are observed."""
    n_cells = 0
    for f in range(frames.power.shape[1]):
        if frames.seen.size == 0 or frames.seen[n, f]:
            workspace.cells[n_cells] = f
            n_cells += 1
    padded = -(-n_cells // LANES) * LANES
    last = workspace.rest[weights.shape[0]]
    for i in range(padded):
        f = workspace.cells[i] if i < n_cells else 0
        workspace.power[i] = frames.power[n, f] if i < n_cells else 0.0
        last[i] = chain.background[f] if chain.background.size else 0.0
        for k in range(weights.shape[0]):
            workspace.weights[k, i] = weights[k, f]
    return n_cells


@kernel
def _begin(chain, workspace, n_cells):
    """h near its conditional mode: h *= (sum_f w p / l^2 + scale / h^2) / (sum_f w / l + (shape + 1) / h)."""
    h, up, down, rank = workspace.h, workspace.sums, workspace.moments[0], workspace.h.size
    ratio = 0.0
    for i in range(n_cells):
        total = 0.0
        for k in range(rank):
            total += workspace.weights[k, i]
        ratio += workspace.power[i] / total
    for k in range(rank):
        h[k] = (chain.scale[k] + ratio) / (chain.shape[k] + 1.0 + n_cells)
    for _ in range(UPDATES):
        add_variances(workspace.rest, workspace.weights, h, n_cells)
        for i in range(n_cells):
            inverse = 1.0 / workspace.rest[0, i]
            workspace.left[i], workspace.excess[i] = inverse, workspace.power[i] * inverse * inverse
        weighted_sums(down, workspace.weights, workspace.left, n_cells)
        weighted_sums(up, workspace.weights, workspace.excess, n_cells)
        for k in range(rank):
            inverse = 1.0 / h[k]
            gain = up[k] + chain.scale[k] * inverse * inverse
            h[k] *= gain / (down[k] + (chain.shape[k] + 1.0) * inverse)
    if chain.leaps > 0:
        measure_frame(chain, workspace, n_cells)


@kernel
def _run_trajectory(chain, workspace, n_cells, key):
    """All sweeps of a frame, and the sums over the last."""
    padded, rank = -(-n_cells // LANES) * LANES, workspace.h.size
    weights, rest, parts = borrowed(workspace.weights), borrowed(workspace.rest), borrowed(workspace.parts)
    ratio, shares, h, sums = (
        borrowed(workspace.ratio),
        borrowed(workspace.shares),
        borrowed(workspace.h),
        borrowed(workspace.sums),
    )
    power, left, excess = borrowed(workspace.power), borrowed(workspace.left), borrowed(workspace.excess)
    keys = workspace.keys[: rank if chain.background.size else rank - 1]
    workspace.moments[:] = 0.0
    ratio[:] = 0.0
    shares[:] = 0.0
    for sweep in range(chain.sweeps):
        is_kept = sweep >= chain.sweeps - chain.keep
        sweep_key = fold(key, sweep)
        for k in range(keys.size):
            keys[k] = fold(sweep_key, k)
        add_variances(rest, weights, h, padded)
        divide_power(left, excess, power, rest, padded)
        if is_kept and not chain.is_plain:
            add_scaled_row(ratio, h, excess, padded)
        if is_kept and shares.size:
            add_shares(shares, rest, h, padded)
        split_power(parts, rest, weights, h, left, keys, padded)
        if is_kept and chain.is_plain:
            add_table(ratio, parts, padded)
        row_sums(sums, parts, n_cells)
        _draw_activations(chain, workspace, n_cells, is_kept, fold(sweep_key, rank))
        if chain.leaps > 0:
            move_activations(chain, workspace, n_cells, padded, fold(sweep_key, rank + 1))


@kernel
def _draw_activations(chain, workspace, n_cells, is_kept, key):
    """h given the components, from the sums of their relative powers."""
    for k in range(workspace.h.size):
        shape = chain.shape[k] + n_cells
        scale = chain.scale[k] + workspace.h[k] * workspace.sums[k]
        if is_kept:
            workspace.moments[2, k] += shape / scale
            workspace.moments[0, k] += scale / (shape - 1.0) if shape > 1.0 else np.inf
            workspace.moments[1, k] += scale * scale / ((shape - 1.0) * (shape - 2.0)) if shape > 2.0 else np.inf
        workspace.h[k] = scale / draw_gamma(shape, fold(key, k))
