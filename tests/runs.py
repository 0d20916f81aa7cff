"""Short runs: of an optimiser's own functions, without the driver, and of streams."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL


def fit(engine, structure, options, iterations, seed=0, start=None, tol=0.0, workers=SERIAL):
    """(problem, last state, last info, objective of every iteration)"""
    problem = engine.prepare(structure, options, workers)
    state = engine.init(problem, child(seed_key(seed), 0), start or {})
    objective = []
    for iteration in range(iterations):
        state, info = engine.step(problem, state, child(seed_key(seed), 1, iteration))
        objective.append(info.objective)
        if info.residual < tol:
            break
    return problem, state, info, np.array(objective)


def feed(stream, blocks):
    """The stream, once it has taken the blocks."""
    for block in blocks:
        stream.update(block)
    return stream


def assert_same_stream(one, other):
    np.testing.assert_array_equal(one.W.values, other.W.values)
    assert one.columns_seen == other.columns_seen


def largest_loss(objective, maximise):
    """The largest step in the wrong direction, relative to the objective; monotone means at most 1e-9 (rounding)."""
    steps = np.diff(objective) * (1.0 if maximise else -1.0)
    return float(np.max(-steps / np.maximum(np.abs(objective[1:]), 1.0), initial=0.0))


def numerical_gradient(function, at, relative=1e-5):
    """Central differences of a function of a positive array, with respect to its logarithm."""
    gradient = np.zeros(at.shape)
    for cell in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[cell] *= np.exp(relative)
        down[cell] *= np.exp(-relative)
        gradient[cell] = (function(up) - function(down)) / (2 * relative)
    return gradient
