"""The power of a spectrogram's cell shared out among its components: conditional draws of the composite model.

A cell of power p is |y|^2 of y = sum_k c_k, with independent circular complex normals c_k of variance l_k. Given y the
c_k are jointly normal, of rank K - 1. Nothing here needs their phases, and their powers are drawn one component after
the other: with r the rest that is still to be shared out, of variance l_1 + ... + l_K = L_1, and L_2 = L_1 - l_1 ::

    c_1 / sqrt(l_1)     = sqrt(s) r / sqrt(L_1) + sqrt(1 - s) z        s = l_1 / L_1, z ~ CN(0, 1)
    (r - c_1)/sqrt(L_2) = sqrt(1 - s) r / sqrt(L_1) - sqrt(s) z        the rest that the others share out

which is a rotation: relative powers a = |c_1|^2 / l_1 and t' = |r - c_1|^2 / L_2 of the parts have the sum of those
before, t = |r|^2 / L_1 and e = |z|^2 ~ Exponential(1)::

    a = s t + (1 - s) e + 2 cos(angle) sqrt(s (1 - s) t e),    t' = t + e - a

since z is circular the angle is uniform, whatever the phase of r. So a draw takes one word, a logarithm and a sine, and
K - 1 draws a cell. Relative powers stay in range where a component is nothing beside the others, and where p is 0.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, spliced, summing_signless
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.keyed_rng import random_bits

LANES = 8  # frames are padded to whole vectors: a rest would be drawn number by number
_SIZE, _ONE = np.uint64(0xFFFFFFFFFF000000), np.uint64(0x3FF0000000000000)  # highest 40 bits; the bits of 1.0
_S12, _S40 = np.uint64(12), np.uint64(40)

# sin(pi v) / v in powers of v^2, |v| <= 1/2: least squares at Chebyshev points, error below 1e-13.
_P0, _P1, _P2, _P3 = 3.1415926535896386, -5.167712779988105, 2.5501640359136846, -0.5992644340577745
_P4, _P5, _P6 = 0.08214479564264357, -0.0073640090407110755, 0.0004474969964285095


@spliced
def exponential_and_cosine(bits):
    """(Exponential(1) draw, cosine of a uniform angle) from the highest 40 and the lowest 24 bits of a word."""
    size = np.uint64((bits & _SIZE) >> _S12 | _ONE).view(np.float64)  # in [1, 2)
    v = np.uint64((bits << _S40) >> _S12 | _ONE).view(np.float64) - 1.5
    z = v * v
    sine = v * (_P0 + z * (_P1 + z * (_P2 + z * (_P3 + z * (_P4 + z * (_P5 + z * _P6))))))
    return -fast_log(2.0 - size), sine


@in_lanes
def split_power(parts, rest, weights, h, left, keys, n_cells):
    """Overwrite parts (K, D): relative powers |c_k|^2 / l_k of the components, l_k = weights_k h_k.

    rest (K + 1, D): variances of component k and those after it, rest[K] of a background. ``left`` (D,) holds |y|^2
    over its variance and is overwritten by what is left. As many components are drawn as there are ``keys``; the one
    after them, if there is one, takes what is left.
    """
    for k in range(keys.size):
        key, scale = keys[k], h[k]
        for f in range(n_cells):
            e, cosine = exponential_and_cosine(random_bits(key, f))
            s = weights[k, f] * scale / rest[k, f]
            product = s * (1.0 - s) * left[f] * e
            part = max(s * left[f] + (1.0 - s) * e + 2.0 * cosine * math.sqrt(max(product, 0.0)), 0.0)
            parts[k, f] = part
            left[f] = max(left[f] + e - part, 0.0)
    for k in range(keys.size, h.size):
        for f in range(n_cells):
            parts[k, f] = left[f]


@in_lanes
def add_variances(rest, weights, h, n_cells):
    """Overwrite rest[:K] of (K + 1, D): sums of weights_j h_j over j >= k, plus rest[K]."""
    for after in range(h.size):  # a loop that counts down would not run in lanes
        k = h.size - 1 - after
        scale = h[k]
        for f in range(n_cells):
            rest[k, f] = rest[k + 1, f] + weights[k, f] * scale


@in_lanes
def divide_power(left, excess, power, rest, n_cells):
    """Overwrite left with p / l and excess with (p / l - 1) / l, the slope of log p(p | l); l = rest[0]."""
    for f in range(n_cells):
        inverse = 1.0 / rest[0, f]
        left[f] = power[f] * inverse
        excess[f] = (left[f] - 1.0) * inverse


@in_lanes
def add_scaled(out, row, scale, n_cells):
    """Add scale * row to out, (D,) both."""
    for f in range(n_cells):
        out[f] += scale * row[f]


@in_lanes
def add_scaled_row(out, h, row, n_cells):
    """Add h_k * row to out_k, out (K, D)."""  # a call of the above for each k would double the time of short rows
    for k in range(h.size):
        scale = h[k]
        for f in range(n_cells):
            out[k, f] += scale * row[f]


@in_lanes
def add_shares(out, rest, h, n_cells):
    """Add h_k / l to out_k, out (K, D), with the variances l = rest[0]."""
    for k in range(h.size):
        scale = h[k]
        for f in range(n_cells):
            out[k, f] += scale / rest[0, f]


@in_lanes
def add_table(out, table, n_cells):
    """Add one (K, D) table to another."""
    for k in range(out.shape[0]):
        for f in range(n_cells):
            out[k, f] += table[k, f]


@summing_signless
def sum_row(row, n_cells):
    """The sum of the first cells."""
    total = 0.0
    for f in range(n_cells):
        total += row[f]
    return total


@summing_signless
def row_sums(out, table, n_cells):
    """Overwrite out (K,) with the sums of table[:, :n_cells]."""
    for k in range(out.size):
        out[k] = sum_row(table[k], n_cells)


@summing_signless
def weighted_sums(out, table, row, n_cells):
    """Overwrite out (K,) with the sums of table[:, f] * row[f] over the first cells."""
    for k in range(out.size):
        total = 0.0
        for f in range(n_cells):
            total += table[k, f] * row[f]
        out[k] = total
