"""Pareto's k: whether leaving a part of the data out can be done by reweighting the draws that saw it.

The weights of part i are 1 / p(x_i | draw). A generalised Pareto distribution fitted to the largest of them has the
shape k; above :func:`largest_k` their mean can't be trusted (Vehtari, Simpson, Gelman, Yao, Gabry 2024, Pareto smoothed
importance sampling, sections 2 and 3.2.4; the fit is that of Zhang and Stephens 2009, A new and efficient estimation
method for the generalized Pareto distribution, with the prior of the former, appendix C). ``az.loo`` has the same k.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.structure import Array

FEWEST = 100  # draws, from which a tail can be judged
MOST = 1000  # parts that are judged at once
PRIOR_K, PRIOR_DRAWS = 0.5, 10  # k is drawn towards 1/2 with the weight of 10 exceedances
PRIOR_SCALE = 3.0  # of the profile's prior, in quartiles


def largest_k(n_draws: int) -> float:
    """The k up to which so many draws are enough."""
    return min(1.0 - 1.0 / np.log10(n_draws), 0.7)


def pareto_k(log_likelihood: Array) -> Array:
    """k of each part of the data.

    Parameters
    ----------
    log_likelihood : (draws, parts), at least ``FEWEST`` draws

    Returns
    -------
    (parts,); -inf where the largest weights are equal, inf where one of them is all there is in floating point
    """
    parts = range(0, log_likelihood.shape[1], MOST)
    found = [_k_of_tails(_tails(log_likelihood[:, first : first + MOST])) for first in parts]
    return np.concatenate(found) if found else np.empty(0)


def _tails(log_likelihood: Array) -> Array:
    """How far the largest weights exceed the next smaller one, as shares of the largest, (parts, tail) rising."""
    n_draws = len(log_likelihood)
    n_tail = int(np.ceil(min(n_draws / 5, 3 * np.sqrt(n_draws))))
    logs = np.sort(np.partition(-log_likelihood, n_draws - n_tail - 1, axis=0)[n_draws - n_tail - 1 :], axis=0)
    weights = np.exp(logs - logs[-1])
    return (weights[1:] - weights[0]).T


def _k_of_tails(x: Array) -> Array:
    """Zhang and Stephens' estimate for each row of exceedances, a posterior mean over a grid of the profile."""
    n_tail = x.shape[1]
    quartile = x[:, int(n_tail / 4 + 0.5) - 1]
    has_width = quartile > 0
    found = np.where(x[:, -1] > 0, np.inf, -np.inf)
    x, quartile = x[has_width], quartile[has_width]
    n_grid = 30 + int(np.sqrt(n_tail))
    steps = 1.0 - np.sqrt(n_grid / (np.arange(1, n_grid + 1) - 0.5))
    theta = 1.0 / x[:, -1:] + steps / (PRIOR_SCALE * quartile[:, None])
    k = np.stack([np.mean(np.log1p(-column[:, None] * x), axis=1) for column in theta.T], axis=1)
    profile = n_tail * (np.log(-theta / k) - k - 1.0)
    weights = np.exp(profile - profile.max(axis=1, keepdims=True))
    mean = np.sum(theta * weights, axis=1) / np.sum(weights, axis=1)
    own = np.mean(np.log1p(-mean[:, None] * x), axis=1)
    found[has_width] = (n_tail * own + PRIOR_DRAWS * PRIOR_K) / (n_tail + PRIOR_DRAWS)
    return found
