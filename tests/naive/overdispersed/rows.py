"""Slow, obvious twins of what trajectories ask of rows of negative binomial counts: one row at a time, in NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import expit, xlogy

from tests.naive.hmc import poisson_rows


def log_likelihood(x, mean, alpha):
    """Of a row's cells, but for what does not depend on the mean."""
    return np.sum(xlogy(x, mean) - (x + alpha) * np.log(alpha + mean))


def log_ratio(x, mean, before, alpha):
    """Of the likelihoods at two means, which loses no digits where alpha is large."""
    rise = np.log1p((mean - before) / (alpha + before))
    return x @ np.log(mean / before) - (x + alpha) @ rise


def slope(x, u, offset, v, exposure, alpha):
    """Of the log-likelihood in v."""
    mean = exposure * (u @ v + offset)
    return (u * exposure[:, None]).T @ (x / mean - (x + alpha) / (alpha + mean))


def curvature(u, offset, v, exposure, alpha):
    """(K, K), minus the mean over x of the second derivative in v."""
    part, mean = u * exposure[:, None], exposure * (u @ v + offset)
    return part.T @ ((alpha / (mean * (alpha + mean)))[:, None] * part)


def log_density(free, x, u, offset, shape, rate, scale, exposure, alpha):
    """Of a row's coordinates, up to a constant."""
    v = scale * np.logaddexp(0.0, free)
    log_prior = (shape - 1) @ np.log(v) - rate @ v
    return log_likelihood(x, exposure * (u @ v + offset), alpha) + log_prior + np.log(scale * expit(free)).sum()


def gradient(free, x, u, offset, shape, rate, scale, exposure, alpha):
    """Of log_density."""
    v = scale * np.logaddexp(0.0, free)
    of_v = slope(x, u, offset, v, exposure, alpha) - rate + (shape - 1) / v
    return of_v * scale * expit(free) + (1 - expit(free))


move_rows = partial(
    poisson_rows.move_rows, density=log_density, move=partial(poisson_rows.move_row, gradient_of=gradient)
)


def climb(v, x, u, offset, shape, rate, exposure, alpha):
    """An EM step whose multipliers are at their means."""
    mean = u @ v + offset
    multiplier = (x + alpha) / (alpha + exposure * mean)
    return (shape + v * (u.T @ (x / mean))) / (rate + u.T @ (exposure * multiplier))
