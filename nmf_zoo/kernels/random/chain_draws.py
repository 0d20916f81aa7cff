"""Random paths of the chains that a row of activations can be, from uniforms, normals or gammas drawn before."""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel

SMALLEST, LARGEST = 2.0**-1022, 1.0 - 2.0**-53  # of the numbers strictly inside (0, 1)
LOG_SMALLEST, LOG_LARGEST = -690.0, 690.0  # of a path whose logarithm walks at random


@kernel
def basis_path(uniforms, p, q, initial):
    """A path in {0, 1}, (T,) int64: p = P(0 -> 0), q = P(1 -> 1), initial = P(1) at the first time; uniforms (T,)."""
    path = np.empty(uniforms.size, np.int64)
    on = initial
    for t in range(uniforms.size):
        path[t] = 1 if uniforms[t] < on else 0
        on = q if path[t] == 1 else 1.0 - p
    return path


@kernel
def unit_path(uniforms, alpha):
    """A path in (0, 1), (T,): x goes to U(0, x) or U(x, 1), to the nearer end with probability alpha; uniforms (2, T).

    Near an end the distance to it shrinks to nothing, so both distances are kept: 1 - x is exact where x rounds to 1.
    """
    path = np.empty(uniforms.shape[1])
    below, above = 0.5, 0.5
    for t in range(path.size):
        if t == 0:
            below, above = uniforms[1, 0], 1.0 - uniforms[1, 0]
        elif uniforms[0, t] < (alpha if below <= above else 1.0 - alpha):
            below *= uniforms[1, t]
            above = 1.0 - below
        else:
            above *= 1.0 - uniforms[1, t]
            below = 1.0 - above
        path[t] = min(max(below, SMALLEST), LARGEST)
    return path


@kernel
def log_normal_path(normals, mean, persistence, scale, initial):
    """A positive path, (T,), whose logarithm is an AR(1) around ``mean``; normals (T,), initial (mean, deviation)."""
    path = np.empty(normals.size)
    level = 0.0
    for t in range(path.size):
        if t == 0:
            level = initial[0] + initial[1] * normals[0]
        else:
            level = mean + persistence * (level - mean) + scale * normals[t]
        path[t] = math.exp(level)
    return path


@kernel
def log_of_gamma(gamma, u, shape):
    """The logarithm of a Gamma(shape) draw, which may underflow itself, from one of Gamma(shape + 1) and a uniform."""
    return math.log(gamma) + math.log1p(-u) / shape


@kernel
def gamma_path(gammas, uniforms, shapes, beta_z, initial):
    """A positive path, (T,), h_t = h_{t-1} beta_z G_h / G_z; initial (shape, rate) of a gamma law.

    gammas (2, T) : draws of Gamma(shape + 1), of ``shapes`` (alpha_z, alpha_h); of the first time those of
    initial[0] + 1 in the second row. uniforms (2, T)
    """
    path = np.empty(gammas.shape[1])
    level = 0.0
    for t in range(path.size):
        if t == 0:
            level = log_of_gamma(gammas[1, 0], uniforms[1, 0], initial[0]) - math.log(initial[1])
        else:
            level += math.log(beta_z) + log_of_gamma(gammas[1, t], uniforms[1, t], shapes[1])
            level -= log_of_gamma(gammas[0, t], uniforms[0, t], shapes[0])
        level = min(max(level, LOG_SMALLEST), LOG_LARGEST)
        path[t] = math.exp(level)
    return path


@kernel
def bgar_path(gammas, uniforms, alpha, beta, rho):
    """A positive path, (T,), h_t = b h_{t-1} + e: b = G / (G + G') with G ~ Gamma(alpha rho), and e ~ G' / beta.

    gammas (3, T) : draws of Gamma(shape + 1), of the shapes alpha rho and, twice, alpha (1 - rho); uniforms (3, T)
    """
    path = np.empty(gammas.shape[1])
    stays, comes = alpha * rho, alpha * (1.0 - rho)
    h = 0.0
    for t in range(path.size):
        kept = log_of_gamma(gammas[0, t], uniforms[0, t], stays)
        lost = log_of_gamma(gammas[1, t], uniforms[1, t], comes)
        if t == 0:
            h = (math.exp(kept) + math.exp(lost)) / beta
        else:
            h /= 1.0 + math.exp(min(lost - kept, LOG_LARGEST))
            h += math.exp(log_of_gamma(gammas[2, t], uniforms[2, t], comes)) / beta
        h = max(h, SMALLEST)
        path[t] = h
    return path
