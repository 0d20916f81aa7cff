"""Exact posteriors of small tables with two modes: H on a grid, the counts' allocations summed, W integrated out.

X is (F, 2) with two components. Given H the rows of W are independent, and so is what a row's counts x_f1, x_f2 say:
with s_n of the counts of column n allocated to the first component, e the exposure and weights w ~ Gamma(a, b),

    p(x_f | H) = sum_s prod_n e_n^x_n / (s_n! (x_n - s_n)!)  G(s, h_1, a_f1, b_f1)  G(x - s, h_2, a_f2, b_f2)
    G(c, h, a, b) = prod_n h_n^c_n  b^a Gamma(a + sum c) / Gamma(a)  (b + sum_n e_n h_n)^-(a + sum c)

Each term is one of h_1 times one of h_2, so that all of the four-dimensional grid of log H is one matrix product per
row, whatever the counts. The trapezoid rule in log H is exact to many digits for such densities.

Two modes: W's priors say that the first component is one feature's, H's priors that it is in the other sample. Data
that tie each feature to its sample break one of them. Counts move from one component to the other one by one, through
states that fit far worse, so that a chain of sweeps stays where it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from scipy.special import gammaln, xlogy

from tests.structures import gamma, model


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """Counts x (F, 2), shapes and rates of W (F, 2) and of H (2, 2), exposure (F, 2), and the grid of each log h.

    ``transposed`` : the model has the sides exchanged, X (2, F)
    """

    x: np.ndarray
    shape_w: np.ndarray
    rate_w: np.ndarray
    shape_h: np.ndarray
    rate_h: np.ndarray
    exposure: np.ndarray
    grid: np.ndarray
    transposed: bool = False

    def structure(self):
        """The model as engines see it."""
        left, right = gamma(self.shape_w, self.rate_w), gamma(self.shape_h, self.rate_h)
        if not self.transposed:
            return model(self.x, 2, left, right, exposure=self.exposure)
        left, right = gamma(self.shape_h.T, self.rate_h.T), gamma(self.shape_w.T, self.rate_w.T)
        return model(self.x.T, 2, left, right, exposure=self.exposure.T)

    def statistics(self, draws):
        """What :func:`exact` has the means of, of draws (..., rows, columns) of the variables W and H, by name."""
        W, H = (draws["W"], draws["H"]) if not self.transposed else (_turn(draws["H"]), _turn(draws["W"]))
        return _statistics(np.moveaxis(H, (-2, -1), (0, 1)), np.moveaxis(W, (-2, -1), (0, 1)))


def _turn(array):
    return np.swapaxes(array, -1, -2)


def _statistics(H, W):
    found = {"share": (np.log(H[0, 0] * H[1, 1]) > np.log(H[0, 1] * H[1, 0])).astype(float)}
    for k, n in np.ndindex(2, 2):
        found |= {f"log h{k}{n}": np.log(H[k, n]), f"h{k}{n}": H[k, n]}
    return found | {f"w{f}{k}": W[f, k] for f, k in np.ndindex(*W.shape[:2])}


@cache
def exact(case):
    """(log p(X), the exact posterior mean of each of the statistics by name)."""
    points = np.array(list(product(case.grid, case.grid)))  # (G, 2): log h of one component
    log_prior = np.zeros((len(points), len(points)))
    for k in range(2):
        own = _log_gamma(np.exp(points), case.shape_h[k], case.rate_h[k]).sum(axis=1) + points.sum(axis=1)
        log_prior += own[:, None] if k == 0 else own
    rows = [Row(case, f, points) for f in range(len(case.x))]
    log_p = log_prior + sum(row.log_sum() for row in rows)
    top = log_p.max()
    P = np.exp(log_p - top)
    total = P.sum()
    log_evidence = top + np.log(total) + 4 * np.log(case.grid[1] - case.grid[0])
    P /= total
    first, second = P.sum(axis=1), P.sum(axis=0)
    ahead = np.subtract.outer(points[:, 0] - points[:, 1], points[:, 0] - points[:, 1])
    means = {"share": float(np.sum(P * np.heaviside(np.round(ahead, 9), 0.5)))}
    for k, n in np.ndindex(2, 2):
        marginal = first if k == 0 else second
        means |= {f"log h{k}{n}": marginal @ points[:, n], f"h{k}{n}": marginal @ np.exp(points[:, n])}
    for f, k in np.ndindex(len(rows), 2):
        means[f"w{f}{k}"] = float(np.sum(P * rows[f].mean(k)))
    return float(log_evidence), means


class Row:
    """A row's terms: one factor for each component, (states, G), and what neither depends on, (states,)."""

    def __init__(self, case, f, points):
        x, exposure = case.x[f], case.exposure[f]
        first = np.array(list(product(range(int(x[0]) + 1), range(int(x[1]) + 1))), dtype=float)
        self.counts = first, x - first
        self.constant = np.sum(xlogy(x, exposure)) - sum(gammaln(c + 1).sum(axis=1) for c in self.counts)
        self.log_rate = [np.log(case.rate_w[f, k] + np.exp(points) @ exposure) for k in range(2)]
        self.shapes = [case.shape_w[f, k] + c.sum(axis=1) for k, c in enumerate(self.counts)]
        self.terms = []
        for k, (c, shape, log_rate) in enumerate(zip(self.counts, self.shapes, self.log_rate, strict=True)):
            a, b = case.shape_w[f, k], case.rate_w[f, k]
            own = (xlogy(a, b) - gammaln(a) + gammaln(shape))[:, None] + c @ points.T - shape[:, None] * log_rate
            self.terms.append(own)
        self.terms[0] = self.terms[0] + self.constant[:, None]
        self.tops = [own.max(axis=0) for own in self.terms]
        self.scaled = [np.exp(own - top) for own, top in zip(self.terms, self.tops, strict=True)]

    def log_sum(self):
        """log p(x_f | H), (G, G)."""
        with np.errstate(divide="ignore"):
            return np.log(self.scaled[0].T @ self.scaled[1]) + self.tops[0][:, None] + self.tops[1]

    def mean(self, k):
        """E[w_fk | H, x_f], (G, G)."""
        weighted = [own * self.shapes[k][:, None] if j == k else own for j, own in enumerate(self.scaled)]
        below = self.scaled[0].T @ self.scaled[1]
        above = weighted[0].T @ weighted[1]
        rate = np.exp(self.log_rate[k])
        ratio = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        return ratio / (rate[:, None] if k == 0 else rate)


def _log_gamma(v, shape, rate):
    return xlogy(shape - 1, v) - rate * v + xlogy(shape, rate) - gammaln(shape)
