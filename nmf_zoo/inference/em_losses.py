"""What the data say at given factors, for EM: one class per likelihood, with the same four methods.

``look`` gives the log-likelihood and the pull on W (and on H where sources are frozen), ``for_H`` the pull and drag on
H at a new W, ``drag_W`` and ``drag_H`` the rest: the pulls and drags of :mod:`nmf_zoo.inference.multiplicative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.layout import likelihood_constant, weigh
from nmf_zoo.inference.sources import expected_sources
from nmf_zoo.inference.squared_error import squares
from nmf_zoo.inference.workers import Workers
from nmf_zoo.structure import Array, Factorisation, Likelihood, Normal, Poisson, Unknown

NOISE_FLOOR = 1e-10  # of a free sigma, relative to the data: a perfect fit would send it to 0


class View(NamedTuple):
    """log_likelihood; pull_W (F, K); pull_H (N, K) or None; drag_W (F, K) where it depends on W, else None."""

    log_likelihood: float
    pull_W: Array
    pull_H: Any = None
    drag_W: Any = None


class PoissonLoss:
    """Poisson counts, or non-negative real data under the same density."""

    def __init__(self, structure: Factorisation, workers: Workers, precision: str):
        self.sources, self.weights = expected_sources(structure, workers, precision), weigh(structure)
        self.constant = likelihood_constant(structure)

    def look(self, W: Array, Ht: Array, values: dict[str, Array], both: bool) -> View:
        statistics = self.sources.gather(W, Ht, "WH" if both else "W")
        return View(self.log_likelihood(statistics.log_mean, W, Ht), statistics.of_W, statistics.of_H)

    def log_likelihood(self, log_mean: float, W: Array, Ht: Array) -> float:
        """log p(X | W, H) from sum x log mean."""
        return log_mean - self.weights.total(W, Ht) + self.constant

    def for_H(self, W: Array, Ht: Array, values: dict[str, Array]) -> tuple[Array, Array]:
        return self.sources.gather(W, Ht, "H").of_H, self.drag_H(W)

    def drag_W(self, view: View, Ht: Array) -> Array:
        return self.weights.over_samples(Ht)

    def drag_H(self, W: Array) -> Array:
        return self.weights.over_features(W)


class NormalLoss:
    """A normal likelihood, sigma known or free; in float64 whatever ``precision`` is."""

    def __init__(self, structure: Factorisation, workers: Workers, precision: str):
        self.squares, self.sigma = squares(structure), structure.likelihood.parameters["sigma"]
        x = structure.data.observed_values
        self.least_sigma = max(NOISE_FLOOR * float(np.sqrt(np.mean(np.square(x)))), 1e-150) if x.size else 1.0

    def look(self, W: Array, Ht: Array, values: dict[str, Array], both: bool) -> View:
        pull, drag, error = self.squares.for_W(W, Ht)
        size = max(self.squares.size, 1)
        if isinstance(self.sigma, Unknown):
            values[self.sigma.name] = np.array(max(np.sqrt(error / size), self.least_sigma)).reshape(
                self.sigma.variable_shape
            )
        variance = self._variance(values)
        log_likelihood = -0.5 * (error / variance + self.squares.size * np.log(2.0 * np.pi * variance))
        return View(float(log_likelihood), W * pull / variance, None, drag / variance)

    def for_H(self, W: Array, Ht: Array, values: dict[str, Array]) -> tuple[Array, Array]:
        pull, drag = self.squares.for_H(W, Ht)
        return Ht * pull / self._variance(values), drag / self._variance(values)

    def drag_W(self, view: View, Ht: Array) -> Array:
        return view.drag_W

    def drag_H(self, W: Array) -> Array:
        raise NotImplementedError("squared error has no sources to freeze")

    def _variance(self, values: dict[str, Array]) -> float:
        return float(np.square(self.sigma.resolve(values)).reshape(()))


Loss = PoissonLoss | NormalLoss
LOSSES: dict[type[Likelihood], Callable[[Factorisation, Workers, str], Loss]] = {
    Poisson: PoissonLoss,
    Normal: NormalLoss,
}
