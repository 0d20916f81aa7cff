"""Small chains of one or two rows, and many sweeps of the conditional particle filter over them."""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.hmm.gibbs_activations import make_workspace
from nmf_zoo.inference.hmm.laws import increment_of, with_guide
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles import conditional_filter
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.hmm.particles.laws import Cloud, Law
from nmf_zoo.kernels.random.keyed_rng import child, seed_key


def law_of(kind, *parameters, initial=(0.0, 0.0)):
    """A law of K chains from rows of numbers."""
    rank = len(np.atleast_1d(parameters[0]))
    rows, first = np.zeros((3, rank)), np.zeros((2, rank))
    for row, values in zip(rows, parameters, strict=False):
        row[:] = values
    for row, values in zip(first, initial, strict=False):
        row[:] = values
    return Law(kind, rows, first)


def target_of(X, W, base, law, seen=None):
    """The counts X (F, T), whole samples missing where ``seen`` (T,) is False."""
    seen = np.ones(X.shape[1], bool) if seen is None else seen
    cols, rows = np.nonzero((X * seen).T)
    indptr = np.searchsorted(cols, np.arange(X.shape[1] + 1)).astype(np.int64)
    weight_sums = seen[:, None] * W.sum(axis=0)
    counts = Counts(indptr, rows.astype(np.int32), X.T[cols, rows].astype(float), np.empty(0), weight_sums)
    return Target(counts, W, base, law)


def draw_paths(target, start, n_draws, particles, plan=(0, 0, 1.0), seed=0, renew=conditional_filter.renew_path):
    """(draws (n, K, T), exact companions, shares of the first time renewed), one sweep from each to the next."""
    path = Cloud(*(np.array(part, dtype=np.float64, order="C") for part in start))
    workspace = make_workspace(*path.h.shape, particles, plan[0])
    how = with_guide(FilterPlan(*plan), target.law.kind), increment_of(plan[0], target.law.kind)
    key, draws, renewed = seed_key(seed), np.empty((n_draws, 2, *path.h.shape)), 0
    for draw in range(n_draws):
        _, first, impossible = renew(path, workspace.history, workspace.population, target, how, child(key, draw))
        assert impossible == -1
        renewed += first
        draws[draw] = path
    return draws[:, 0], draws[:, 1], renewed / n_draws
