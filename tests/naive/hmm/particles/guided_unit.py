"""Slow twins of looking ahead with unit and binary chains: dense matrices, quadrature, one particle at a time.

A law of one component is a list of parts: (chance, low, high), a uniform piece, or a point where low = high.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate

from nmf_zoo.kernels.hmm.particles.guided_sites import LEAST_PRECISION, LEAST_VARIANCE, OWN_SHARE, TIGHTEST

SPIKE = 1e-6  # pieces narrower than this are points


def unit_law(below, above, alpha):
    down = alpha if below <= above else 1 - alpha
    return [(down, 0.0, below), (1 - down, 1 - above, 1.0)]


def basis_law(state, p, q):
    on = q if state > 0.5 else 1 - p
    return [(1 - on, 0.0, 0.0), (on, 1.0, 1.0)]


def quadratic(x, W, base, weight_sums, point):
    """(precision, shift) of log g around the point; x (F,) counts."""
    rate = base + W @ point
    precision = (W * (x / rate**2)[:, None]).T @ W
    return precision, W.T @ (x / rate) - weight_sums + precision @ point


def part_moments(low, high, precision, shift):
    """(log of the mean of exp(shift h - precision h^2 / 2) over a part, mean, mean square)."""

    def exponent(h):
        return shift * h - 0.5 * precision * h * h

    if high - low < SPIKE:
        middle = 0.5 * (low + high)
        return exponent(middle), middle, middle**2
    peak = min(max(shift / precision, low), high)
    reach = 12 / math.sqrt(precision) if low < peak < high else 40 / max(abs(shift - precision * peak), 1e-9)
    a, b = max(low, peak - reach), min(high, peak + reach)
    sums = [
        integrate.quad(lambda h, n=n: h**n * math.exp(exponent(h) - exponent(peak)), a, b, epsabs=0, epsrel=1e-11)[0]
        for n in range(3)
    ]
    return exponent(peak) + math.log(sums[0] / (high - low)), sums[1] / sums[0], sums[2] / sums[0]


def moments(law, precision, shift):
    """(log-integral, mean, variance) of a law times exp(shift h - precision h^2 / 2)."""
    parts = [part_moments(low, high, precision, shift) for _, low, high in law]
    logs = np.array([math.log(chance) + part[0] for (chance, *_), part in zip(law, parts, strict=True)])
    total = np.logaddexp.reduce(logs)
    weights = np.exp(logs - total)
    mean = sum(w * part[1] for w, part in zip(weights, parts, strict=True))
    return total, mean, sum(w * part[2] for w, part in zip(weights, parts, strict=True)) - mean**2


def find_sites(laws, precision, shift, bound_shift, sweeps):
    """(sites' precisions, shifts, log of the integral up to a constant) of one particle."""
    own = [moments(law, 1e-300, 0.0)[1:] for law in laws]
    tau = np.array([1 / max(variance, LEAST_VARIANCE) for _, variance in own])
    nu = np.array([mean for mean, _ in own]) * tau + bound_shift
    for _ in range(sweeps):
        scale = 0.0
        for k, law in enumerate(laws):
            covariance = np.linalg.inv(precision + np.diag(tau))
            mean = covariance @ (shift + nu)
            around = max(1 / covariance[k, k] - tau[k], LEAST_PRECISION)
            cavity = mean[k] / covariance[k, k] - nu[k]
            log_mass, middle, variance = moments(law, around, cavity)
            tau[k] = max(1 / max(variance, 1 / (TIGHTEST * (around + 1))) - around, LEAST_PRECISION)
            total = around + tau[k]
            nu[k] = middle * total - cavity
            scale += log_mass + 0.5 * (math.log(total) - middle**2 * total)
    joint = precision + np.diag(tau)
    mean = np.linalg.solve(joint, shift + nu)
    return tau, nu, scale + 0.5 * mean @ (shift + nu) - 0.5 * np.linalg.slogdet(joint)[1]


def hedged(logs, log_weights):
    """Looks mixed with their mean over the population, up to a constant."""
    looks = np.exp(logs - logs.max())
    return np.log((1 - OWN_SHARE) * looks + OWN_SHARE * np.sum(np.exp(log_weights) * looks))


def conditional(k, h, precision, shift, tau, nu):
    """(precision, shift) of component k given those before it, those after it integrated out under their sites."""
    rest = slice(k + 1, len(h))
    inverse = np.linalg.inv(precision[rest, rest] + np.diag(tau[rest]))
    through = precision[: k + 1, rest] @ inverse
    joint = precision[: k + 1, : k + 1] - through @ precision[rest, : k + 1]
    pushed = shift[: k + 1] - through @ (shift[rest] + nu[rest])
    return max(joint[k, k], LEAST_PRECISION), pushed[k] - joint[k, :k] @ h[:k]


def log_guided_over_own(laws, which, h, precision, shift, tau, nu, is_even):
    """log q - log f of the guided draw of h (K,), whose component k is in part which[k] of its law."""
    total = 0.0
    for k, law in enumerate(laws):
        around, cavity = conditional(k, h, precision, shift, tau, nu)
        logs = [part_moments(low, high, around, cavity)[0] for _, low, high in law]
        total += logs[which[k]] - moments(law, around, cavity)[0]
        _, low, high = law[which[k]]
        if high > low and not is_even(low, high - low, around, cavity):
            total += cavity * h[k] - 0.5 * around * h[k] ** 2 - logs[which[k]]
    return total


def increment(ratio):
    """log f - log q of the mixture with the chain's own law."""
    return -np.logaddexp(math.log(1 - OWN_SHARE) + ratio, math.log(OWN_SHARE))
