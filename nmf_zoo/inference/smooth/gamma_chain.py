"""Gamma chains: given z the activations are gamma, and given the activations z is.

::

    z_n ~ Gamma(alpha_z, beta_z h_{n-1}),  h_n ~ Gamma(alpha_h, z_n),  h_1 ~ Gamma(a, b)       rates second
    z_n | h      ~ Gamma(alpha_z + alpha_h, beta_z h_{n-1} + h_n)
    h_1 | z      ~ Gamma(a + alpha_z, b + beta_z z_2)                      where there is a second time
    h_n | z      ~ Gamma(alpha_h + alpha_z, z_n + beta_z z_{n+1})
    h_N | z      ~ Gamma(alpha_h, z_N)

(Cemgil and Dikmen 2007). Data add their power and rate; with a term in 1 / h the conditionals of h are generalised
inverse Gaussian. Parameters are drawn with z integrated out, and z anew
after them. A row scaled by c, and z by 1 / c, changes the density of the first time alone.

One cell at a time a smooth row moves slowly. So a sweep also scales the times from each on together
(:mod:`nmf_zoo.kernels.hmm.gamma_levels`), by a gamma draw.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, gammaln

from nmf_zoo.inference.smooth.base import AugmentedChain, DataTerms, Values, in_rows
from nmf_zoo.kernels.counts.gibbs import draw_scales
from nmf_zoo.kernels.hmm.gamma_levels import GammaLaws, LevelTerms, move_gamma_levels
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, GammaChainPrior, broadcast


class AugmentedGammaChain(AugmentedChain):
    """Of gamma chains."""

    def start(self, prior: GammaChainPrior, Ht: Array, values: Values) -> Array:
        return np.empty((len(Ht) - 1, Ht.shape[1]))  # drawn before anything asks for them

    def draw_auxiliary(
        self,
        prior: GammaChainPrior,
        Ht: Array,
        auxiliary: Array,
        values: Values,
        workers: Workers,
        key: np.uint64,
    ) -> None:
        shape, rate = law_of_auxiliary(prior, Ht, values)
        workers.map_rows(lambda first, last: draw_factor(auxiliary, shape, rate, first, last, key), auxiliary)

    def draw_activations(
        self,
        prior: GammaChainPrior,
        Ht: Array,
        auxiliary: Array,
        values: Values,
        data: DataTerms,
        workers: Workers,
        key: np.uint64,
    ) -> None:
        shape, rate = law_of_activations(prior, auxiliary, values)
        shape, rate = shape + data.power, rate if data.rate is None else rate + data.rate
        if data.scale is None:
            workers.map_rows(lambda first, last: draw_factor(Ht, shape, rate, first, last, key), Ht)
            return
        drawn = np.empty(Ht.size)
        draw_scales(drawn, shape.ravel(), 2.0 * rate.ravel(), 2.0 * np.broadcast_to(data.scale, Ht.shape).ravel(), key)
        Ht[...] = drawn.reshape(Ht.shape)

    def move_levels(
        self,
        prior: GammaChainPrior,
        Ht: Array,
        auxiliary: Array,
        values: Values,
        data: DataTerms,
        workers: Workers,
        key: np.uint64,
    ) -> None:
        laws = GammaLaws(*(np.array(broadcast(np.ravel(own), Ht.shape[1:])) for own in prior.law(values)))
        terms = LevelTerms(*(_as_cells(own, Ht.shape) for own in data))

        def move_rows(first: int, last: int) -> None:
            move_gamma_levels(Ht, laws, terms, np.empty((3, len(Ht))), first, last, key)

        workers.map_rows(move_rows, Ht.T)

    def law_of_scale(self, prior: GammaChainPrior, Ht: Array, auxiliary: Array, values: Values) -> tuple[Array, Array]:
        *_, shape, rate = (in_rows(own) for own in prior.law(values))
        power, linear = (broadcast(own, (1, Ht.shape[1]))[0] for own in (shape, rate * Ht[:1]))
        return power, linear

    def sums(self, Ht: Array, auxiliary: Array) -> Array:
        """The paths themselves, (K, N)."""
        return Ht.T

    def log_paths(self, prior: GammaChainPrior, sums: Array, values: Values) -> Array:
        return prior.log_rows(sums, values)


def _as_cells(terms: Array | None, shape: tuple[int, int]) -> Array:
    """(N, K), or empty. A copy, so that the kernel is compiled for one kind of array."""
    return np.empty((0, 0)) if terms is None else np.array(broadcast(terms, shape), order="C")


def law_of_auxiliary(prior: GammaChainPrior, Ht: Array, values: Values) -> tuple[Array, Array]:
    """(shape, rate), (N - 1, K), of z; of q(z) at its optimum where Ht are expectations."""
    alpha_z, alpha_h, beta_z, *_ = (in_rows(own) for own in prior.law(values))
    rate = beta_z * Ht[:-1] + Ht[1:]
    return np.array(broadcast(alpha_z + alpha_h, rate.shape)), rate


def law_of_activations(prior: GammaChainPrior, auxiliary: Array, values: Values) -> tuple[Array, Array]:
    """(shape, rate), (N, K), of h by the chain alone; the data's power and rate are to be added."""
    alpha_z, alpha_h, beta_z, first_shape, first_rate = (in_rows(own) for own in prior.law(values))
    n_steps, rank = auxiliary.shape
    shape, rate = np.zeros((n_steps + 1, rank)), np.zeros((n_steps + 1, rank))
    shape[0], rate[0] = first_shape, first_rate
    shape[1:] = alpha_h
    shape[:-1] += alpha_z  # of all that have a time after them
    rate[1:] += auxiliary
    rate[:-1] += beta_z * auxiliary
    return shape, rate


def bound_of_rows(prior: GammaChainPrior, mean: Array, log: Array, values: Values) -> Array:
    """E log p(h, z) + the entropy of q(z) at its optimum, of each row, (K, 1); E h and E log h are (N, K).

    That is the log density of the rows, with E log h in its powers and E h in its sums; of known h it is that itself.
    """
    alpha_z, alpha_h, beta_z, shape, rate = prior.law(values)
    mean, log = mean.T, log.T
    first = (shape - 1.0) * log[:, :1] - rate * mean[:, :1] + shape * np.log(rate) - gammaln(shape)
    steps = (alpha_h - 1.0) * log[:, 1:] + alpha_z * (np.log(beta_z) + log[:, :-1])
    steps = steps - (alpha_z + alpha_h) * np.log(mean[:, 1:] + beta_z * mean[:, :-1]) - betaln(alpha_h, alpha_z)
    return first + np.sum(steps, axis=1, keepdims=True)
