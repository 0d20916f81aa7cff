"""Whether Monte-Carlo EM still moves, and where to: means over windows of iterations.

``problem`` and ``state`` are those of :mod:`nmf_zoo.inference.mcem.engine`, which says in words what the residual is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.gibbs import TINY
from nmf_zoo.structure import Array

WINDOW = 20  # iterations that the residual looks back on at first


class Window(NamedTuple):
    """What is maximised, summed over the iterations of this window, and its mean over the last one.

    time : sum of the weights of all iterations so far; times, last_middle : its sum over this window, its mean over
    the last; end : this window's last iteration; residual : of the last
    """

    total: Any = None
    times: float = 0.0
    iterations: int = 0
    time: float = 0.0
    end: int = WINDOW
    last_mean: Any = None
    last_middle: float = 0.0
    residual: float = np.inf


def _parameters(problem: Any, W: Array, values: Mapping[str, Array]) -> Array:
    """What is maximised: W, logarithms of hyperparameters."""
    free = [np.log(np.ravel(value)) for value in values.values()]
    return np.concatenate([W.ravel() if problem.complete else np.empty(0), *free])


def look_back(problem: Any, state: Any, W: Array, values: Mapping[str, Array], weight: float) -> Window:
    """This iteration added to the window; at its end the move since the last one becomes the residual."""
    now, window, iteration = _parameters(problem, W, values), state.window, len(state.norms) + 1
    time = window.time + weight
    total, times = (now, time) if window.iterations == 0 else (window.total + now, window.times + time)
    window = window._replace(total=total, times=times, iterations=window.iterations + 1, time=time)
    if iteration < window.end:
        return window
    mean, middle, in_w = total / window.iterations, times / window.iterations, W.size if problem.complete else 0
    residual = np.inf
    if window.last_mean is not None:
        moves = np.abs(mean - window.last_mean) / (middle - window.last_middle)
        residual = float(max(moves[:in_w].sum() / max(mean[:in_w].sum(), TINY), moves[in_w:].max(initial=0.0)))
    end = iteration + max(WINDOW, iteration // 4)
    return Window(None, 0.0, 0, time, end, mean, middle, residual)


def solution(problem: Any, state: Any) -> tuple[Array, dict[str, Array]]:
    """(W, free hyperparameters), averaged over the last whole window if the options say so and there was one."""
    mean = state.window.last_mean
    if not problem.options.average or mean is None:
        return state.W, state.values
    W = mean[: state.W.size].reshape(state.W.shape) if problem.complete else state.W
    values, at = {}, mean.size - sum(value.size for value in state.values.values())
    for name, value in state.values.items():
        values[name] = np.exp(mean[at : at + value.size]).reshape(value.shape)
        at += value.size
    return W, values
