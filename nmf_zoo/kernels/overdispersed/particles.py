"""Particles of negative binomial counts at one temperature t: their likelihood, and slice draws of their dispersion.

With m = e (W H) + b and the multipliers summed over, what depends on an entry of the inverse dispersion alpha is a sum
over its own cells (all of them, those of a feature or of a sample)::

    sum_c x log m' - (x + alpha) log(1 + e m' / alpha) + log Gamma(alpha + x) - log Gamma(alpha) - x log alpha

m' = m / e. Its power t is the likelihood of t x, t alpha and t e, but for the last three terms, which rows have no part
in: so :mod:`nmf_zoo.kernels.overdispersed.rows` moves them at any temperature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel, spliced, summing
from nmf_zoo.kernels.evidence.tempering import LAWS, LIKELIHOODS, SMALLEST
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.overdispersed.rows import log1p
from nmf_zoo.kernels.random.hyperparameter_draws import DENSITIES, MOST_LOG, draw_slice, log_hyperprior
from nmf_zoo.kernels.random.keyed_rng import fold

OF_ALL, OF_FEATURES, OF_SAMPLES = range(3)  # whose entries alpha has
TERMS = 16  # of log Gamma(alpha + x) - log Gamma(alpha) that are multiplied; Stirling's series has the others


class DispersedLaw(NamedTuple):
    """The data by entry of alpha, (entries, cells) each, and alpha's prior.

    Attributes
    ----------
    x, exposure, offset : of each cell, background / exposure being the offset; x = exposure = 0 where one is missing
    tie : (1,) OF_ALL, OF_FEATURES or OF_SAMPLES
    first : (entries + 1,) entry e has the positive counts counts[first[e] : first[e + 1]], times as often
    counts, times : of all entries
    hyperprior, args : as of :class:`nmf_zoo.kernels.random.hyperparameter_draws.Entries`; size 0 where alpha is known
    """

    x: np.ndarray
    exposure: np.ndarray
    offset: np.ndarray
    tie: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    times: np.ndarray
    hyperprior: np.ndarray
    args: np.ndarray


class DispersionTarget(NamedTuple):
    """What an entry's slice is drawn under; ``means`` (entries, cells) are m'."""

    law: DispersedLaw
    means: np.ndarray
    entry: int
    temperature: float


@kernel
def _draw_dispersion(law, target, scratch, key):
    """Draw the particle's alpha where it is unknown, and set that of the rows."""
    alpha = scratch.alpha
    if law.hyperprior.size > 0:
        means = scratch.means.reshape(law.x.shape)
        _set_means(means, law, scratch.W, scratch.Ht)
        for e in range(alpha.size):
            own = DispersionTarget(law, means, e, target.temperature[0])
            alpha[e] = math.exp(draw_slice(own, math.log(alpha[e]), fold(key, e)))
    _show(target.sides[0], target.temperature[0], law.tie[0], OF_FEATURES, alpha)
    _show(target.sides[1], target.temperature[0], law.tie[0], OF_SAMPLES, alpha)


@kernel
def _show(side, temperature, tie, own, alpha):
    """Set alpha of a side whose rows are the ties ``own``."""
    rows, cells = side.data.alpha_of_rows, side.data.alpha_of_cells
    for i in range(side.n_rows):
        value = alpha[i] if tie == own else alpha[0] if tie == OF_ALL else 1.0
        rows[i // rows.shape[1], i % rows.shape[1]] = temperature * value
    for c in range(cells.size):
        cells[c] = alpha[c] if OF_ALL != tie != own else 1.0


@kernel
def _log_likelihood(law, target, W, Ht, scratch):
    """But for a constant; -inf where the mean of a count is 0."""
    means, alpha, total = scratch.means.reshape(law.x.shape), scratch.alpha, 0.0
    _set_means(means, law, W, Ht)
    for e in range(alpha.size):
        for c in range(law.x.shape[1]):
            if law.x[e, c] > 0.0:
                if not means[e, c] >= SMALLEST:
                    return -np.inf
                total += law.x[e, c] * fast_log(means[e, c])
        total += _of_dispersion(law, means, e, alpha[e])
    return total


@kernel
def _set_means(means, law, W, Ht):
    """Overwrite means (entries, cells) with m'."""
    n_samples = Ht.shape[0]
    for e in range(means.shape[0]):
        for c in range(means.shape[1]):
            f, n = (c // n_samples, c % n_samples) if law.tie[0] == OF_ALL else (e, c)
            if law.tie[0] == OF_SAMPLES:
                f, n = c, e
            mean = law.offset[e, c]
            for k in range(W.shape[1]):
                mean += W[f, k] * Ht[n, k]
            means[e, c] = mean


@kernel
def _of_dispersion(law, means, e, alpha):
    """What depends on an entry of alpha."""
    total = -_sum_logs(law.x[e], law.exposure[e], means[e], alpha)
    for place in range(law.first[e], law.first[e + 1]):
        total += law.times[place] * log_rising(alpha, law.counts[place])
    return total


@summing
def _sum_logs(x, exposure, means, alpha):
    total = 0.0
    for c in range(x.size):
        total += (x[c] + alpha) * log1p(exposure[c] * means[c] / alpha)
    return total


@spliced
def log_rising(alpha, x):
    """log Gamma(alpha + x) - log Gamma(alpha) - x log alpha of a count x > 0: the sum of log(1 + i / alpha), i < x."""
    total = 0.0
    for i in range(1, min(int(x), TERMS)):
        total += math.log1p(i / alpha)
    if x > TERMS:
        start, rest = alpha + TERMS, x - TERMS
        end = start + rest
        total += (end - 0.5) * math.log1p(rest / start) - rest + rest * math.log1p(TERMS / alpha)
        total += _stirling(end) - _stirling(start)
    return total


@spliced
def _stirling(z):
    """What Stirling's series has beside (z - 1/2) log z - z and a constant, z >= 16."""
    square = 1.0 / (z * z)
    return (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / z


@kernel
def _log_density(target, t):
    """Of the logarithm of an entry of alpha."""
    if not abs(t) < MOST_LOG:
        return -math.inf
    law, e, alpha = target.law, target.entry, math.exp(t)
    of_prior = log_hyperprior(law.hyperprior[e], law.args[e, 0], law.args[e, 1], alpha) + t
    return of_prior + target.temperature * _of_dispersion(law, target.means, e, alpha)


LAWS[DispersedLaw] = _draw_dispersion
LIKELIHOODS[DispersedLaw] = _log_likelihood
DENSITIES[DispersionTarget] = _log_density
