"""Levels of gamma chains: every later time is scaled at once, and every sum is taken anew."""

from __future__ import annotations

from nmf_zoo.kernels.random.draws import draw_gamma, draw_gig
from nmf_zoo.kernels.random.keyed_rng import child


def moved_levels(H, laws, power, rate, scale, key):
    """H (K, N) after the moves; ``power``, ``rate`` and ``scale`` (K, N) are the terms of the data."""
    H = H.copy()
    for k, h in enumerate(H):
        key_of_row, before = child(key, k), None
        for n in range(h.size):
            key_of_time, own = child(key_of_row, n), h[n]
            if n == 0:
                shape, linear = laws.shape[k], laws.rate[k] * own
            else:
                rate_of_z = laws.beta_z[k] * before + own
                z = draw_gamma(laws.alpha_z[k] + laws.alpha_h[k], child(key_of_time, 0)) / rate_of_z
                shape, linear = laws.alpha_h[k], z * own
            shape += power[k, n:].sum()
            linear += (rate[k, n:] * h[n:]).sum()
            inverse = (scale[k, n:] / h[n:]).sum()
            if inverse > 0:
                c = draw_gig(shape, 2 * linear, 2 * inverse, child(key_of_time, 1))
            else:
                c = draw_gamma(shape, child(key_of_time, 1)) / linear
            h[n:] *= c
            before = h[n]
    return H
