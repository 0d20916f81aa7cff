"""q of an inverse dispersion with a prior, on nodes: no law of a known form, but its entries are one-dimensional.

Of every fixed alpha variational Bayes has a bound B(alpha) of log p(X | alpha), a sum over alpha's entries. The best q
is p(alpha) exp B(alpha), normalised, and what it leaves of the bound is the logarithm of the normaliser::

    log p(X) >= E_q[B(alpha) + log p(alpha) - log q(alpha)] = log int p(alpha) exp B(alpha) d alpha

The integral is over log alpha, by the trapezoid rule, whose error for smooth densities falls exponentially with the
number of nodes (Trefethen & Weideman 2014). Nodes lie where the density is within `DEPTH` nats of its peak, and follow
it from iteration to iteration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from nmf_zoo.inference.overdispersed.dispersion import ByEntry
from nmf_zoo.structure import Array

DEPTH = 20.0  # nats below the peak, where a density is left out
FAR = 100.0  # of log alpha, either way: beyond, a density is left out, too, and the bound is lower for it
FEWEST, MOST = 25, 257  # nodes
STEP = 0.2  # between nodes at the most, while there are enough: exp(-alpha^2), a half-normal prior, bends within 0.8
SHARE = 0.6  # of the nodes at least is within `DEPTH`
TURNS = 100
FINE = 2001  # places that draws are interpolated between


class DispersionLaw(NamedTuple):
    """q of the entries of alpha, (1 or F, 1 or N) each.

    Attributes
    ----------
    low, high : of log alpha, where its nodes lie
    weights : (MOST, 1 or F, 1 or N), sum 1; 0 beyond the nodes in use
    n_nodes : (1,), in use
    log_total : the logarithms of the normalisers
    """

    low: Array
    high: Array
    weights: Array
    n_nodes: Array
    log_total: Array

    @property
    def nodes(self) -> Array:
        """alpha, (nodes, 1 or F, 1 or N)"""
        return np.exp(_between(self.low, self.high, int(self.n_nodes[0])))

    @property
    def middle(self) -> Array:
        """exp(E[log alpha])"""
        return np.exp(np.sum(self.weights[: int(self.n_nodes[0])] * np.log(self.nodes), axis=0))


def _between(low: Array, high: Array, count: int) -> Array:
    return low + (high - low) * np.linspace(0.0, 1.0, count)[:, None, None]


def fit_law(log_density: ByEntry, low: Array, high: Array) -> DispersionLaw:
    """The law with a log density of log alpha, known but for a constant; ``low``, ``high``: where to look first."""
    for _ in range(TURNS):
        count = int(np.clip(np.ceil(np.max(high - low) / STEP) + 1, FEWEST, MOST))
        density = np.stack([log_density(np.exp(logs)) for logs in _between(low, high, count)])
        peak, step = density.max(axis=0), (high - low) / (count - 1)
        is_inside = density > peak - DEPTH
        first, last = is_inside.argmax(axis=0), count - 1 - is_inside[::-1].argmax(axis=0)
        is_open = is_inside[0] & (low > -FAR), is_inside[-1] & (high < FAR)
        is_wide = (last - first + 1 < SHARE * count) & ~is_open[0] & ~is_open[1]
        if not np.all(np.isfinite(peak)) or not np.any(is_open[0] | is_open[1] | is_wide):
            break
        width = high - low
        below, above = (
            np.where(is_wide, low + (first - 1) * step, low),
            np.where(is_wide, low + (last + 1) * step, high),
        )
        low = np.clip(np.where(is_open[0], low - width, below), -FAR, FAR)
        high = np.clip(np.where(is_open[1], high + width, above), -FAR, FAR)
    log_total = logsumexp(density, axis=0)
    weights = np.zeros((MOST, *peak.shape))
    weights[:count] = np.exp(density - log_total)
    return DispersionLaw(low, high, weights, np.array([count]), log_total + np.log(step))


def draw_alpha(law: DispersionLaw, draws: int, generator: np.random.Generator) -> Array:
    """(draws, 1 or F, 1 or N), independent."""
    count, shape = int(law.n_nodes[0]), law.low.shape
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(law.weights[:count].reshape(count, -1)), -4.0 * DEPTH)
    at, fine = np.linspace(0.0, 1.0, count), np.linspace(0.0, 1.0, FINE)
    density = np.exp(CubicSpline(at, logs, axis=0)(fine))
    below = np.cumsum(density, axis=0)
    below = (below - 0.5 * density - 0.5 * density[0]) / (below[-1] - 0.5 * density[-1] - 0.5 * density[0])
    chances = generator.uniform(size=(draws, logs.shape[1]))
    places = np.stack([np.interp(own, cdf, fine) for own, cdf in zip(chances.T, below.T, strict=True)], axis=1)
    return np.exp(law.low + (law.high - law.low) * places.reshape(draws, *shape))
