"""Two features, one sample and two components, one of them known: exact answers by quadrature in logarithms.

Given both activations the two unknown weights are independent, so that three integrals are nested, never four.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.special import logsumexp

from tests.structures import beside

PROFILE = np.array([0.8, 1.4])  # the known component
NAMES = ["log h1", "log h2", "log h1 log h2", "log w1", "log w2", "log mean1", "log mean2"]


def known_beside(structure, profile=PROFILE):
    """The same model of two components with the first column of W known, or of one row with the first row of H."""
    given = np.column_stack([profile, np.zeros(2)])
    if structure.shape == (2, 1):
        return dataclasses.replace(structure, W=beside(structure.W, given, (1, 2)))
    return dataclasses.replace(structure, H=beside(structure.H, given.T, (1, 2)))


def offsets_of(structure):
    """(exposure, background) of the two cells."""
    likelihood = structure.likelihood
    pairs = (likelihood.exposure, 1.0), (likelihood.background, 0.0)
    return [np.full(2, fill) if given is None else np.ravel(given) for given, fill in pairs]


def quadrature(log_cell, logs, prior_w, priors_h, profile=PROFILE):
    """(log p(X), the means of `NAMES`); ``logs`` : the grid, evenly spaced, of the logarithm of each unknown.

    log_cell : (feature, its cells of W H) -> log p(x), elementwise
    prior_w, priors_h : log densities of a new weight, and of either activation
    """
    values = np.exp(logs)
    of_w, of_known, of_new = (prior(values) + logs for prior in (prior_w, *priors_h))
    log_weight, means = of_known[:, None] + of_new, []
    for f, known in enumerate(profile):
        mean = known * values[:, None, None] + values[:, None] * values  # by known h, new h, new w
        log_rows = of_w + log_cell(f, mean)
        log_total = logsumexp(log_rows, axis=2)
        share = np.exp(log_rows - log_total[:, :, None])
        means.append([share @ logs, np.sum(share * np.log(mean), axis=2)])
        log_weight = log_weight + log_total
    log_evidence = logsumexp(log_weight)
    weight = np.exp(log_weight - log_evidence)
    tables = logs[:, None], logs, logs[:, None] * logs, means[0][0], means[1][0], means[0][1], means[1][1]
    expected = [float(np.sum(weight * table)) for table in tables]
    return log_evidence + 4 * np.log(logs[1] - logs[0]), np.array(expected)


def statistics_of(draws):
    """`NAMES` of draws of W and H, of either form of the table."""
    W, H = draws["W"], draws["H"]
    if W.shape[1] == 1:
        W, H = np.swapaxes(H, 1, 2), np.swapaxes(W, 1, 2)
    h1, h2 = np.log(H[:, :, 0]).T
    columns = h1, h2, h1 * h2, *np.log(W[:, :, 1]).T, *np.log(W @ H)[:, :, 0].T
    return np.column_stack(columns)
