"""Where Monte-Carlo EM starts, and what it carries from one iteration to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.mcem.expectations import GivenW
from nmf_zoo.inference.mcem.problem import Problem
from nmf_zoo.inference.mcem.windows import Window
from nmf_zoo.inference.prior_cells import prior_cells
from nmf_zoo.inference.start import SPREAD, start_factors, start_hyperparameters
from nmf_zoo.inference.tree_patterns import Growing
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array


class MCEMState(NamedTuple):
    """W (F, K), Ht (N, K) where the chains are, hyperparameters by name, averaged statistics by name.

    Ht_mean (N, K) : E[h], averaged alike; norms (iterations, K) : sums of W's columns; errors (iterations,) : of the
    objective
    """

    W: Array
    Ht: Array
    values: dict[str, Array]
    statistics: dict[str, Array]
    Ht_mean: Array
    norms: Growing
    errors: Growing
    window: Window


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> MCEMState:
    """The start given; else W as the options say, and H at the mean of its prior."""
    structure = problem.structure
    values = start_hyperparameters(structure, start)
    W, Ht = start_factors(structure, key, start)
    if isinstance(problem.expect, GivenW):
        priors = prior_cells(structure, values)
        if structure.H.name not in start:
            Ht = np.ascontiguousarray(priors.shape_h / priors.rate_h)
        if not structure.W.is_fixed and structure.W.name not in start:
            W = _share_mean(problem, Ht, key)
    return MCEMState(W, Ht, values, {}, Ht.copy(), np.empty((0, W.shape[1])), np.empty(0), Window())


def _share_mean(problem: Problem, Ht: Array, key: np.uint64) -> Array:
    """W with which the mean of the data is theirs, at a given H: all columns alike (eq. 51), or shared at random."""
    expect = problem.expect
    assert isinstance(expect, GivenW)
    n_features, rank = problem.structure.W.shape
    counts = np.bincount(expect.layout.indices, expect.layout.values, n_features)
    share = np.ones((n_features, rank))
    if problem.options.start == "random":
        cells = np.full_like(share, SPREAD)
        draw_factor(share, cells, np.ones_like(share), 0, n_features, child(key, 2))
    share /= share.sum(axis=1, keepdims=True)
    exposure = np.broadcast_to(expect.weights.over_samples(Ht), share.shape)
    return np.divide(counts[:, None] * share, exposure, out=np.zeros_like(share), where=exposure > 0)
