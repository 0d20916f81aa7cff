"""Exact posteriors of tiny problems: every allocation C of the counts is listed, H is integrated out in closed form.

What remains (log W, log hyperparameters) goes by the trapezoid rule, exact to about 1e-9 for these analytic densities.

With L[k, n] = sum_f C, omega[k, n] = sum_f M e w_fk (mask M, exposure e, background g):

    p(C, X | W) = prod_kn  r^a Gamma(a + L) / (Gamma(a) (r + omega)^(a + L))
                  prod_fkn (e w_fk)^c / c!  prod_fn e^-g g^c0 / c0!
    h_kn | C, W ~ Gamma(a + L, r + omega)

The scores are written here anew, and share nothing with the code under test but the case's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln, logsumexp, polygamma, xlogy

from tests.statistical.gates import check_frequencies, check_means, effective_sizes
from tests.structures import weight_of

W_GRID = np.arange(-45.0, 12.0, 0.5)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model and, in plain numbers, what it says.

    Attributes
    ----------
    structure : the model as the engine sees it
    priors : hyperparameters by name -> (shape_w, rate_w, shape_h, rate_h); rate_w = 0 stands for a flat W
    hyper : name of an unknown -> (grid of its logarithm, log-density of its prior); every entry uses the same grid
    w_grid : the grid of each log w
    transposed : the enumeration exchanges the sides (it always integrates out the right one, all of whose components
        are unknown)
    """

    structure: Any
    priors: Callable[[dict], tuple]
    hyper: dict[str, tuple] = field(default_factory=dict)
    w_grid: np.ndarray = field(default_factory=lambda: W_GRID)
    transposed: bool = False


@dataclass
class Exact:
    """The sources C (states, F, N, K or K + 1), their probabilities, and posterior means by name."""

    sources: np.ndarray
    probabilities: np.ndarray
    means: dict[str, float]


def compositions(total, parts):
    """All ways to write ``total`` as an ordered sum of ``parts`` non-negative integers."""
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in compositions(total - first, parts - 1)]


def list_sources(x, n_sources):
    """All allocations of a count matrix, (states, F, N, n_sources)."""
    cells = [compositions(int(count), n_sources) for count in x.ravel()]
    return np.array(list(product(*cells)), dtype=np.float64).reshape(-1, *x.shape, n_sources)


def _flip(array):
    return None if array is None else np.asarray(array).T


class Problem:
    """A case's arrays, with the sides exchanged when it says so."""

    def __init__(self, case):
        structure, self.case = case.structure, case
        turn = _flip if case.transposed else np.asarray
        self.x, self.weight = turn(structure.data.values), turn(weight_of(structure))
        self.background = structure.likelihood.background
        self.rank = structure.rank
        left = structure.H if case.transposed else structure.W
        self.fixed = turn(left.prior.value) if left.is_fixed else None
        self.free = slice(None) if left.known is None else left.known.free  # components of the left side
        self.known = None if left.known is None else turn(left.known.values)
        self.C = list_sources(self.x, self.rank + (self.background is not None))
        own = self.C[..., : self.rank]
        self.of_left, self.of_right = own.sum(axis=2), own.sum(axis=1).transpose(0, 2, 1)  # (S, F, K), (S, K, N)
        self.log_constant = self._log_constant(own, turn)

    def _log_constant(self, own, turn):
        """What does not depend on W, H: (S,)."""
        with np.errstate(divide="ignore"):
            constant = xlogy(own, self.weight[None, :, :, None]).sum(axis=(1, 2, 3)) - gammaln(self.C + 1).sum(
                axis=(1, 2, 3)
            )
        if self.background is not None:
            full = turn(np.broadcast_to(self.background, self.case.structure.shape))
            constant = constant + xlogy(self.C[..., -1], full).sum(axis=(1, 2))
        return constant

    def grid(self):
        """W at every grid point (G, F, K), and the log of the volume element dW there (but for a constant)."""
        if self.fixed is not None:
            return self.fixed[None], np.zeros(1)
        shape = np.empty((self.x.shape[0], self.rank))[:, self.free].shape
        n_cells = shape[0] * shape[1]
        log_w = np.stack(np.meshgrid(*[self.case.w_grid] * n_cells, indexing="ij"), axis=-1).reshape(-1, n_cells)
        W = np.exp(log_w).reshape(-1, *shape)
        if self.known is not None:
            W, new = np.tile(self.known, (len(W), 1, 1)), W
            W[..., self.free] = new
        return W, log_w.sum(axis=1)

    def log_prior(self, W, shape_w, rate_w):
        """Of the free components of W at every grid point, (G,)."""
        return log_gamma_density(W, shape_w, rate_w)[..., self.free].sum(axis=(1, 2))

    def priors(self, values):
        """(shape_w, rate_w, shape_h, rate_h) as full arrays, left and right."""
        left, right = (self.x.shape[0], self.rank), (self.rank, self.x.shape[1])
        parts = self.case.priors(values)
        if self.case.transposed:
            parts = tuple(np.transpose(part) for part in parts[2:] + parts[:2])
        return tuple(
            np.broadcast_to(part, shape) for part, shape in zip(parts, (left, left, right, right), strict=True)
        )


def enumerate_posterior(case):
    """The exact posterior of a case."""
    problem = Problem(case)
    W, log_volume = problem.grid()
    parts = []
    for log_prior, values in hyper_grid(case):
        shape_w, rate_w, shape_h, rate_h = problem.priors(values)
        log_p, L, log_rate = log_weights(problem, W, shape_h, rate_h)
        log_p = log_p + log_volume + log_prior
        if problem.fixed is None:
            log_p = log_p + problem.log_prior(W, shape_w, rate_w)
        top = log_p.max()
        parts.append((top, sum_moments(problem, np.exp(log_p - top), W, shape_h + L, log_rate, values)))
    return _combine(problem, parts)


def hyper_grid(case):
    """(log prior with the volume element of its logarithm, values) over the product grid of all entries."""
    unknowns = case.structure.unknowns
    entries = [(name, i) for name in case.hyper for i in range(int(np.prod(unknowns[name].variable_shape)))]
    for point in product(*(case.hyper[name][0] for name, _ in entries)):
        log_prior = sum(case.hyper[name][1](np.exp(t)) + t for (name, _), t in zip(entries, point, strict=True))
        values = {
            name: np.exp([t for (own, _), t in zip(entries, point, strict=True) if own == name]) for name in case.hyper
        }
        if np.isfinite(log_prior):
            yield log_prior, {name: value.reshape(unknowns[name].variable_shape) for name, value in values.items()}


def log_weights(problem, W, shape_h, rate_h):
    """log p(C, X | W) of every state and grid point (S, G), with L (S, K, N) and log(rate + omega) (G, K, N)."""
    L = problem.of_right
    omega = np.einsum("fn,gfk->gkn", problem.weight, W)
    log_rate = np.log(rate_h + omega)
    log_p = problem.log_constant[:, None] + np.sum(gammaln(shape_h + L) - gammaln(shape_h), axis=(1, 2))[:, None]
    log_p = log_p + np.sum(shape_h * _log_or_zero(rate_h))
    log_p = log_p + problem.of_left.reshape(len(L), -1) @ np.log(W).reshape(len(W), -1).T
    return log_p - (shape_h + L).reshape(len(L), -1) @ log_rate.reshape(len(W), -1).T, L, log_rate


def _log_or_zero(rate):
    """log of a rate; a flat prior has none."""
    return np.log(np.where(rate > 0, rate, 1.0))


def log_gamma_density(v, shape, rate):
    return xlogy(shape - 1, v) - rate * v + shape * _log_or_zero(rate) - gammaln(shape)


def sum_moments(problem, P, W, shape, log_rate, values):
    """Weighted sums over states and grid: of 1, by state, and of log w, log h, their squares and products."""
    left, right = ("H", "W") if problem.case.transposed else ("W", "H")
    sums = {"1": P.sum(), "states": P.sum(axis=1)}
    for name, value in values.items():
        for i, entry in enumerate(np.ravel(value)):
            sums[f"log {name}{i}"], sums[f"log2 {name}{i}"] = P.sum() * np.log(entry), P.sum() * np.log(entry) ** 2
    by_point, log_w = P.sum(axis=0), np.log(W)
    for f, k in np.ndindex(W.shape[1:]):
        sums[_name(left, f, k, problem)] = by_point @ log_w[:, f, k]
        sums["2 " + _name(left, f, k, problem)] = by_point @ log_w[:, f, k] ** 2
    for k, n in np.ndindex(shape.shape[1:]):
        mean = digamma(shape[:, k, n])[:, None] - log_rate[:, k, n]
        name = _name(right, k, n, problem)
        sums[name], sums["2 " + name] = np.sum(P * mean), np.sum(P * (mean**2 + polygamma(1, shape[:, k, n])[:, None]))
        for f in range(W.shape[1]):
            sums[f"{_name(left, f, k, problem)} x {name}"] = np.sum(P * mean * log_w[:, f, k])
    return sums


def _name(factor, i, j, problem):
    return f"log {factor}{j}{i}" if problem.case.transposed else f"log {factor}{i}{j}"


def _combine(problem, parts):
    scale = np.exp(np.array([top for top, _ in parts]) - logsumexp([top + np.log(sums["1"]) for top, sums in parts]))
    means = {name: sum(s * sums[name] for s, (_, sums) in zip(scale, parts, strict=True)) for name in parts[0][1]}
    probabilities = means.pop("states")
    means.pop("1")
    C = problem.C.transpose(0, 2, 1, 3) if problem.case.transposed else problem.C
    return Exact(C, probabilities, means)


# -- against draws -------------------------------------------------------------------------------------------------


def check_draws(case, draws):
    """Raise unless draws of the posterior follow the exact one: C by chi-square, the rest by the two gates."""
    exact = enumerate_posterior(case)
    names = list(exact.means)
    table = np.stack([statistic(name, draws) for name in names], axis=1)
    moving = [i for i, name in enumerate(names) if not _is_known(name, case)]
    check_means([names[i] for i in moving], table[:, moving], np.array([exact.means[names[i]] for i in moving]))
    check_sources(exact, draws)


def _is_known(name, case):
    """Whether one of the cells in a statistic's name is known."""
    return any(_is_known_cell(part.split()[-1], case.structure) for part in name.split(" x "))


def _is_known_cell(cell, structure):
    """``cell`` : W and two positions, or H; or an entry of a hyperparameter, which none is."""
    factor = {"W": structure.W, "H": structure.H}.get(cell[0])
    if factor is None or factor.known is None:
        return factor is not None and factor.is_fixed
    return not factor.known.are_free[int(cell[2] if factor is structure.W else cell[1])]


def statistic(name, draws):
    """The column of one statistic, e.g. "log W01", "2 log H10", "log W01 x log H10", "log a0", "log2 a0"."""
    if name.startswith("2 "):
        return statistic(name[2:], draws) ** 2
    if " x " in name:
        return np.prod([statistic(part, draws) for part in name.split(" x ")], axis=0)
    word, variable = name.split()
    which = variable.rstrip("0123456789")
    position = tuple(int(digit) for digit in variable[len(which) :])
    array = draws[which] if which in ("W", "H") else draws[which].reshape(len(draws[which]), -1)
    values = np.log(array[(slice(None), *position)])
    return values**2 if word == "log2" else values


def check_sources(exact, draws):
    """Chi-square of the counts by component that each sweep's C left behind, thinned to be nearly independent."""
    rank = draws["of_features"].shape[2]
    own = exact.sources[..., :rank]
    states = np.concatenate([own.sum(axis=2).reshape(len(own), -1), own.sum(axis=1).reshape(len(own), -1)], axis=1)
    seen = [draws[name].reshape(len(draws[name]), -1) for name in ("of_features", "of_samples")]
    labels, inverse = np.unique(states.astype(int), axis=0, return_inverse=True)
    probabilities = np.bincount(inverse.ravel(), weights=exact.probabilities)
    place = {tuple(label): i for i, label in enumerate(labels)}
    drawn = np.array([place[tuple(row)] for row in np.concatenate(seen, axis=1).astype(int)])
    scores = np.stack([drawn == i for i in np.argsort(-probabilities)[:20]], axis=1).astype(float)
    time = len(drawn) / effective_sizes(scores).min()
    thin = max(1, int(np.ceil(2 * time - 1)))  # leaves a correlation below 0.04
    found = np.bincount(drawn[::thin], minlength=len(labels))
    check_frequencies([tuple(map(int, label)) for label in labels], found, probabilities)
