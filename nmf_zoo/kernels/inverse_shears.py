"""Shears along the orbit of equal W H under inverse-gamma priors: w_k += e w_j, h_j -= e h_k.

As in :func:`nmf_zoo.kernels.gibbs.move_shears`, where the priors are gamma: both factors stay positive on an interval
of e, whose density there is the prior's at the sheared factors (the Jacobian is 1), drawn from by a slice. With
r = w_j / w_k a cell's part of its logarithm is::

    -(a + 1) log(1 + e r) - (b / w_k) (1 / (1 + e r) - 1)

The shear leaves W H alone but not the components' powers, so it belongs after the factors and before the next powers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nmf_zoo.kernels.composite import LEAST
from nmf_zoo.kernels.gibbs import LOG_CHANGES, ROUNDING, add_row, divide_rows, draw_shear_step
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import fold, kernel

sums_in_lanes = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


class InverseGammaRow(NamedTuple):
    """A row under an inverse-gamma prior, to be sheared; ``pull`` is scale / v."""

    ratios: np.ndarray
    shape: np.ndarray
    pull: np.ndarray


@sums_in_lanes
def _log_change(ratios, shape, pull, step):
    total = 0.0
    for i in range(ratios.size):
        growth = max(1.0 + step * ratios[i], ROUNDING)
        total -= (shape[i] + 1.0) * fast_log(growth) + pull[i] * (1.0 / growth - 1.0)
    return total


@kernel
def _change_of_inverse_gammas(row, step):
    return _log_change(row.ratios, row.shape, row.pull, step)


LOG_CHANGES[InverseGammaRow] = _change_of_inverse_gammas


@kernel
def _divide(out, x, y):
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
    pull_w, pull_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    for k in range(W.shape[0]):
        for j in range(W.shape[0]):
            if j == k:
                continue
            _divide(pull_w, scale_w[k], W[k])
            _divide(pull_h, scale_h[j], H[j])
            lower, upper = -divide_rows(W[j], W[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
            of_w, of_h = InverseGammaRow(ratios_w, shape_w[k], pull_w), InverseGammaRow(ratios_h, shape_h[j], pull_h)
            step = draw_shear_step(lower, upper, of_w, of_h, 0.0, fold(fold(key, k), j))
            add_row(W[k], W[j], step)
            add_row(H[j], H[k], -step)
    _lift(W)
    _lift(H)
