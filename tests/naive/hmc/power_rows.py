"""Slow, obvious twins of the kernels that move rows where the data are powers: one row at a time, in NumPy.

A row's data are (power (C,), u (C, K), offset (C,), shape (K,), scale (K,)).
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.hmc.leapfrog import TEST
from nmf_zoo.kernels.random.keyed_rng import child, uniform
from tests.naive.hmc import poisson_rows


def log_likelihood(v, power, u, offset):
    """Up to a constant."""
    mean = u @ v + offset
    return -np.sum(np.log(mean) + power / mean)


def log_density(logs, power, u, offset, shape, scale):
    """Of a row's logarithms, up to a constant: the prior's density and the Jacobian of v = exp(logs)."""
    v = np.exp(logs)
    return log_likelihood(v, power, u, offset) - np.sum((shape + 1) * logs + scale / v) + np.sum(logs)


def gradient(logs, power, u, offset, shape, scale):
    """Of log_density."""
    v = np.exp(logs)
    mean = u @ v + offset
    return v * (u.T @ (power / mean**2 - 1 / mean)) - shape + scale / v


def curvature(v, u, offset, scale):
    """(K, K) expected minus second derivative of the log-likelihood in logs, and the prior's."""
    part = u * v / (u @ v + offset)[:, None]
    return part.T @ part + np.diag(scale / v)


def move_row(v, row, stride, momentum, jitter, test, density=log_density):
    """(new v, acceptance probability)."""
    root, step, length = stride
    step = step * (0.7 + 0.6 * jitter)
    logs = start = np.log(v)
    p = momentum
    for _ in range(length):
        p = p + step / 2 * root.T @ gradient(logs, *row)
        logs = logs + step * root @ p
        p = p + step / 2 * root.T @ gradient(logs, *row)
    gain = density(logs, *row) - density(start, *row) + (momentum @ momentum - p @ p) / 2
    chance = np.exp(min(gain, 0.0))
    return (np.exp(logs) if test < chance else v), chance


def move_rows(v, rows, strides, key, width, density=log_density):
    """As of counts."""
    return poisson_rows.move_rows(v, rows, strides, key, width, density, move_row)


def exchanged(v, u, k, j):
    """v with what components k and j explain exchanged."""
    size = np.exp(np.log(u).mean(axis=0))
    out = v.copy()
    out[k], out[j] = v[j] * size[j] / size[k], v[k] * size[k] / size[j]
    return out


def exchange_components(v, rows, pairs, key, exchanged=exchanged):
    """New v (K, rows) of the rows of one block."""
    out, rank = v.copy(), len(v)
    for number in range(pairs):
        own = child(key, number)
        k = int(uniform(own, 0) * rank)
        j = (k + 1 + int(uniform(own, 1) * (rank - 1))) % rank
        for i, row in enumerate(rows):
            proposal = exchanged(out[:, i], row[1], k, j)
            gain = log_density(np.log(proposal), *row) - log_density(np.log(out[:, i]), *row)
            if uniform(child(own, TEST), i) < np.exp(min(gain, 0.0)):
                out[:, i] = proposal
    return out
