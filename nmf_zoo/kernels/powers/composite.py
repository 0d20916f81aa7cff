"""The composite model of a power spectrogram: relative powers of the components, then the factors given those.

A cell's amplitude is a sum of independent circular complex Gaussians c_k ~ CN(0, w_k h_k) (Fevotte, Bertin, Durrieu
2009), and a background is one more of them. With the relative powers r_k = |c_k|^2 / (w_k h_k), drawn given the cell's
power in :mod:`nmf_zoo.kernels.powers.frame_splits`, the factors' conditionals are::

    h_kn ~ InverseGamma(a_h + #f, b_h + h_kn sum_f r_fkn)
    w_fk ~ InverseGamma(a_w + #n, b_w + w_fk sum_n r_fkn h_kn / h'_kn)

over observed cells, with h' the h just drawn. Given W the frames are independent: a frame draws its powers, then its h,
and adds to W's sums, so that no array of cells times components is ever needed.

**Shears** along the orbit of equal W H, under inverse-gamma priors: w_k += e w_j, h_j -= e h_k. As in
:func:`nmf_zoo.kernels.counts.gibbs.move_shears`, where the priors are gamma: both factors stay positive on an interval
of e, whose density there is the prior's at the sheared factors (the Jacobian is 1), drawn from by a slice. With r = w_j
/ w_k a cell's part of its logarithm is::

    -(a + 1) log(1 + e r) - (b / w_k) (1 / (1 + e r) - 1)

The shear leaves W H alone but not the components' powers, so it belongs after the factors and before the next powers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.counts.gibbs import LOG_CHANGES, ROUNDING, add_row, divide_rows, draw_shear_step
from nmf_zoo.kernels.numerics.arrays import copy_row
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.powers.frame_splits import add_scaled, add_variances, split_power, sum_row
from nmf_zoo.kernels.random.draws import SMALL_SHAPE, draw_gamma, draw_gig, draw_log_gamma
from nmf_zoo.kernels.random.keyed_rng import fold

LEAST, MOST = 1e-150, 1e150  # of a factor's cell: products stay numbers
MOST_RELATIVE = 1e300  # of a relative power: its sums and products stay numbers, or become infinite, never NaN
LOG_LEAST, LOG_MOST = math.log(LEAST), math.log(MOST)


class PowerFactors(NamedTuple):
    """Wt (K, F) and Ht (N, K), overwritten in place."""

    Wt: Any
    Ht: Any


class PowerConditionals(NamedTuple):
    """The inverse gammas that the factors have given the powers, but for the powers themselves.

    Attributes
    ----------
    shape_w, scale_w : (K, F), the prior's, and to the shape the number of observed frames of each frequency
    shape_h, scale_h : (N, K), the prior's, and to the shape the number of observed frequencies of each frame
    tilt : (K,) sum of H's prior shapes minus W's
    """

    shape_w: Any
    scale_w: Any
    shape_h: Any
    scale_h: Any
    tilt: Any


class ChunkWorkspace(NamedTuple):
    """Scratch of one chunk of frames.

    Attributes
    ----------
    parts : (K, F) relative powers of the components in one frame
    rest : (K + 1, F) variances of component k and those after it, of the background in the last row
    left : (F,) relative power that is still to be shared out
    keys : (K,) uint64
    of_weights : (K, F) sums for W, of all frames of the chunk
    """

    parts: Any
    rest: Any
    left: Any
    keys: Any
    of_weights: Any


def make_workspace(rank: int, n_frequencies: int) -> ChunkWorkspace:
    """Scratch for :func:`draw_frames`."""
    parts, rest, of_weights = (np.zeros((rows, n_frequencies)) for rows in (rank, rank + 1, rank))
    return ChunkWorkspace(parts, rest, np.empty(n_frequencies), np.empty(rank, np.uint64), of_weights)


# -- powers of the components --------------------------------------------------------------------------------------


@kernel
def sum_variances(workspace, spectra, factors, n):
    """Overwrite ``workspace.rest`` for frame n: its first row becomes the mean of the frame's power."""
    rank, n_frequencies = factors.Wt.shape
    if spectra.background.size > 0:
        copy_row(workspace.rest[rank], spectra.background[n])
    add_variances(workspace.rest, factors.Wt, factors.Ht[n], n_frequencies)


@in_lanes
def _divide(out, x, y):
    for i in range(out.size):
        out[i] = min(x[i] / y[i], MOST_RELATIVE)


@kernel
def draw_parts(workspace, spectra, factors, n, key):
    """Overwrite ``workspace.parts`` for frame n: |c_fk|^2 / (w_fk h_k) given its powers.

    The last component takes what is left, unless there is a background, which is drawn and forgotten.
    """
    rank = factors.Wt.shape[0]
    n_drawn = rank if spectra.background.size > 0 else rank - 1
    for k in range(n_drawn):
        workspace.keys[k] = fold(key, k)
    sum_variances(workspace, spectra, factors, n)
    _divide(workspace.left, spectra.power[n], workspace.rest[0])
    h, keys = factors.Ht[n], workspace.keys[:n_drawn]
    split_power(workspace.parts, workspace.rest, factors.Wt, h, workspace.left, keys, workspace.left.size)


# -- factors -------------------------------------------------------------------------------------------------------


@in_lanes
def drop_unseen(values, seen):
    """Zeros where nothing was observed."""
    for f in range(values.size):
        values[f] = values[f] if seen[f] else 0.0


@kernel
def draw_inverse_gamma(shape, scale, key):
    """An InverseGamma(shape, scale) draw within [LEAST, MOST]."""
    if shape < SMALL_SHAPE:
        log_value = math.log(scale) - draw_log_gamma(shape, key)
        return math.exp(min(max(log_value, LOG_LEAST), LOG_MOST))
    return min(max(scale / draw_gamma(shape, key), LEAST), MOST)


@kernel
def draw_frames(spectra, factors, given, draws, frames, workspace, key):
    """Draw the relative powers of frames[0] ... frames[1] - 1 and then, if draws[1], their h.

    If draws[0], overwrites ``workspace.of_weights`` with sum_n r_fkn h_kn / h'_kn of these frames. ``draws``: whether W
    and H are drawn.
    """
    workspace.of_weights[:] = 0.0
    for n in range(frames[0], frames[1]):
        powers_key, gamma_key = fold(fold(key, n), 0), fold(fold(key, n), 1)
        draw_parts(workspace, spectra, factors, n, powers_key)
        for k in range(factors.Wt.shape[0]):
            row, old = workspace.parts[k], factors.Ht[n, k]
            if spectra.seen.size > 0:
                drop_unseen(row, spectra.seen[n])
            if draws[1]:
                scale = given.scale_h[n, k] + old * sum_row(row, row.size)
                factors.Ht[n, k] = draw_inverse_gamma(given.shape_h[n, k], scale, fold(gamma_key, k))
            if draws[0]:
                add_scaled(workspace.of_weights[k], row, old / factors.Ht[n, k], row.size)


@kernel
def draw_weights(Wt, of_weights, given, key):
    """Overwrite Wt (K, F) given its sums, w_fk from the stream of (f, k)."""
    for k in range(Wt.shape[0]):
        for f in range(Wt.shape[1]):
            scale = given.scale_w[k, f] + Wt[k, f] * of_weights[k, f]
            Wt[k, f] = draw_inverse_gamma(given.shape_w[k, f], scale, fold(fold(key, f), k))


# -- the scale -----------------------------------------------------------------------------------------------------


@kernel
def draw_scales(out, factors, given, key):
    """Overwrite out (K,): c of w_k -> c w_k, h_k -> h_k / c, from its law given W H.

    Its density is c^(tilt - 1) exp(-c sum_n b_h / h - (1 / c) sum_f b_w / w): generalised inverse Gaussian. Where these
    sums are beyond float64 the scale stays.
    """
    Wt, Ht = factors.Wt, factors.Ht
    for k in range(out.size):
        a, b = 0.0, 0.0
        for n in range(Ht.shape[0]):
            a += 2.0 * given.scale_h[n, k] / Ht[n, k]
        for f in range(Wt.shape[1]):
            b += 2.0 * given.scale_w[k, f] / Wt[k, f]
        scale = draw_gig(given.tilt[k], a, b, fold(key, k))
        out[k] = 1.0 if np.isnan(scale) else scale


@kernel
def apply_scales(factors, scale):
    """w_k -> c_k w_k, h_k -> h_k / c_k; returns the root mean square of log c."""
    Wt, Ht, total = factors.Wt, factors.Ht, 0.0
    for k in range(scale.size):
        for f in range(Wt.shape[1]):
            Wt[k, f] = min(max(Wt[k, f] * scale[k], LEAST), MOST)
        for n in range(Ht.shape[0]):
            Ht[n, k] = min(max(Ht[n, k] / scale[k], LEAST), MOST)
        total += math.log(scale[k]) ** 2
    return math.sqrt(total / scale.size)


# -- the likelihood ------------------------------------------------------------------------------------------------


@in_lanes
def _log_densities(out, power, mean):
    for f in range(out.size):
        out[f] = -fast_log(mean[f]) - power[f] / mean[f]


@kernel
def log_likelihood(spectra, factors, frames, workspace):
    """-sum (log l + p / l) over the observed cells of frames[0] ... frames[1] - 1."""
    total = 0.0
    for n in range(frames[0], frames[1]):
        sum_variances(workspace, spectra, factors, n)
        _log_densities(workspace.left, spectra.power[n], workspace.rest[0])
        if spectra.seen.size > 0:
            drop_unseen(workspace.left, spectra.seen[n])
        total += sum_row(workspace.left, workspace.left.size)
    return total


# -- shears ----------------------------------------------------------------------------------------------------------


class InverseGammaRow(NamedTuple):
    """A row under an inverse-gamma prior, to be sheared; ``quotient`` is scale / v."""

    ratios: np.ndarray
    shape: np.ndarray
    quotient: np.ndarray


@summing
def _log_change(ratios, shape, quotient, step):
    total = 0.0
    for i in range(ratios.size):
        growth = max(1.0 + step * ratios[i], ROUNDING)
        total -= (shape[i] + 1.0) * fast_log(growth) + quotient[i] * (1.0 / growth - 1.0)
    return total


@kernel
def _change_of_inverse_gammas(row, step):
    return _log_change(row.ratios, row.shape, row.quotient, step)


LOG_CHANGES[InverseGammaRow] = _change_of_inverse_gammas


@kernel
def _divide_rows(out, x, y):
    for i in range(out.shape[0]):
        out[i] = x[i] / y[i]


@kernel
def _lift(rows):
    for k in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            rows[k, i] = max(rows[k, i], LEAST)


@kernel
def move_inverse_shears(W, H, shape_w, scale_w, shape_h, scale_h, key):
    """Shear every ordered pair (k, j), each step from its exact conditional given W H.

    W is (K, F) and H is (K, N), components as rows; shapes and scales of the priors alike. Leaves W^T H as it is.
    """
    ratios_w, ratios_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    quotient_w, quotient_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    for k in range(W.shape[0]):
        for j in range(W.shape[0]):
            if j == k:
                continue
            _divide_rows(quotient_w, scale_w[k], W[k])
            _divide_rows(quotient_h, scale_h[j], H[j])
            lower, upper = -divide_rows(W[j], W[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
            of_w, of_h = (
                InverseGammaRow(ratios_w, shape_w[k], quotient_w),
                InverseGammaRow(ratios_h, shape_h[j], quotient_h),
            )
            step = draw_shear_step(lower, upper, of_w, of_h, 0.0, fold(fold(key, k), j))
            add_row(W[k], W[j], step)
            add_row(H[j], H[k], -step)
    _lift(W)
    _lift(H)
