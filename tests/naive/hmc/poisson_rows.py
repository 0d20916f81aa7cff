"""Slow, obvious twins of the kernels that move rows: one row at a time, in NumPy."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, xlogy

from nmf_zoo.kernels.hmc.leapfrog import JITTER, MOMENTUM, TEST
from nmf_zoo.kernels.random.draws import normal_from
from nmf_zoo.kernels.random.keyed_rng import child, uniform


def gradient_of_counts(x, u, offset, v):
    """(means (C,), gradient (K,)) of a row with counts x (C,), u (C, K)."""
    means = u @ v + offset
    return means, u.T @ (x / means)


def curvature(x, u, offset, v, slope):
    """(K, K) minus the second derivative of sum x log mean, in coordinates of this slope."""
    part = u * slope
    return part.T @ ((x / (u @ v + offset) ** 2)[:, None] * part)


def log_density(free, x, u, offset, shape, rate, scale, curve=0.0):
    """Of a row's coordinates, up to a constant."""
    v = scale * np.logaddexp(0.0, free)
    log_prior = (shape - 1) @ np.log(v) - np.sum(curve * v**2) / 2
    return xlogy(x, u @ v + offset).sum() - rate @ v + log_prior + np.log(scale * expit(free)).sum()


def gradient(free, x, u, offset, shape, rate, scale, curve=0.0):
    """Of log_density."""
    v = scale * np.logaddexp(0.0, free)
    of_v = gradient_of_counts(x, u, offset, v)[1] - rate + (shape - 1) / v - curve * v
    return of_v * scale * expit(free) + (1 - expit(free))


def momenta(rank, width, key):
    """(K, width) standard normals, in the kernel's order."""
    out, word = np.empty(rank * width), np.uint64(0)
    for i in range(out.size):
        out[i], word = normal_from(child(key, MOMENTUM), np.uint64(word))
    return out.reshape(rank, width)


def move_row(v, row, stride, momentum, jitter, test, density=log_density, gradient_of=gradient):
    """(new v, acceptance probability). ``row``: what log_density takes after the coordinates but the scale."""
    scale, root, step, length = stride
    given = (*row[:5], scale, *row[5:])
    step = step * (0.7 + 0.6 * jitter)
    free = start = np.log(np.expm1(v / scale))
    p = momentum
    for _ in range(length):
        p = p + step / 2 * root.T @ gradient_of(free, *given)
        free = free + step * root @ p
        p = p + step / 2 * root.T @ gradient_of(free, *given)
    gain = density(free, *given) - density(start, *given) + (momentum @ momentum - p @ p) / 2
    chance = np.exp(min(gain, 0.0))
    return (scale * np.logaddexp(0.0, free) if test < chance else v), chance


def move_rows(v, rows, strides, key, width, density=log_density, move=move_row):
    """(new v (K, rows), chances) of the rows of one block; ``rows`` and ``strides`` are lists."""
    p, out, chances = momenta(len(v), width, key), v.copy(), []
    for i, (row, stride) in enumerate(zip(rows, strides, strict=True)):
        draws = (uniform(child(key, stream), i) for stream in (JITTER, TEST))
        out[:, i], chance = move(v[:, i], row, stride, p[:, i], *draws, density)
        chances.append(chance)
    return out, np.array(chances)
