"""Moves of the levels of gamma chains: all times from one on are scaled together.

With z_n ~ Gamma(alpha_z, beta_z h_{n-1}) and h_n ~ Gamma(alpha_h, z_n), scaling h_n, h_{n+1}, ... by c and z_{n+1}, ...
by 1 / c changes one term of the chain, h_n given z_n, and what the data say. Against the change of volume the density
of c is that of a gamma draw, or where the data have a term in 1 / h that of a generalised inverse Gaussian one::

    c ~ c^(alpha_h + power - 1) exp(-(z_n h_n + rate h) c - (scale / h) / c)       sums over the times from n on

Of the first time Gamma(a, b) is in the place of Gamma(alpha_h, z_n). One pass goes through the times in their order,
each z_n drawn anew before its time's move; a product of the moves so far stands for the scaling of all later times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.random.draws import TINY, draw_gamma, draw_gig
from nmf_zoo.kernels.random.keyed_rng import fold

LARGEST = 1e300  # of an activation


class GammaLaws(NamedTuple):
    """The parameters of each row's chain, (K,) each; ``shape`` and ``rate`` are of the first time."""

    alpha_z: np.ndarray
    alpha_h: np.ndarray
    beta_z: np.ndarray
    shape: np.ndarray
    rate: np.ndarray


class LevelTerms(NamedTuple):
    """What the data say of the activations, (N, K) each: power log h - rate h - scale / h; empty for 0."""

    power: np.ndarray
    rate: np.ndarray
    scale: np.ndarray


@kernel
def sum_to_the_end(total, terms, Ht, k):
    """Overwrite total (3, N): sums of power, rate h and scale / h of row k over the times from each on."""
    power, rate, scale = 0.0, 0.0, 0.0
    for n in range(Ht.shape[0] - 1, -1, -1):
        power += terms.power[n, k]
        if terms.rate.size > 0:
            rate += terms.rate[n, k] * Ht[n, k]
        if terms.scale.size > 0:
            scale += terms.scale[n, k] / Ht[n, k]
        total[0, n], total[1, n], total[2, n] = power, rate, scale


@kernel
def move_gamma_levels(Ht, laws, terms, total, first, last, key):
    """Move the levels of rows first..last of H, columns of Ht (N, K), in place; total (3, N) is scratch."""
    for k in range(first, last):
        row_key = fold(key, k)
        sum_to_the_end(total, terms, Ht, k)
        scale = 1.0
        for n in range(Ht.shape[0]):
            step_key = fold(row_key, n)
            h = Ht[n, k] * scale
            shape, rate = laws.shape[k], laws.rate[k]
            if n > 0:
                z = draw_gamma(laws.alpha_z[k] + laws.alpha_h[k], fold(step_key, 0))
                shape, rate = laws.alpha_h[k], z / (laws.beta_z[k] * Ht[n - 1, k] + h)
            shape += total[0, n]
            linear = rate * h + total[1, n] * scale
            inverse = total[2, n] / scale
            if inverse > 0.0:
                c = draw_gig(shape, 2.0 * linear, 2.0 * inverse, fold(step_key, 1))
            else:
                c = draw_gamma(shape, fold(step_key, 1)) / linear
            moved = scale * c
            if moved > TINY and moved < LARGEST:
                scale = moved
            Ht[n, k] = min(max(Ht[n, k] * scale, TINY), LARGEST)
