"""Beta-gamma autoregressions: what stays of the time before, u_n = b_n h_{n-1}, is the auxiliary variable.

With p = alpha rho and a = alpha (1 - rho)::

    p(u_n | h)  prop. to  u^(p - 1) (h_{n-1} - u)^(a - 1) (h_n - u)^(a - 1) e^(beta u)           0 < u < both
    p(h_n | u)  prop. to  (h - u_n)^(a - 1) e^(-beta h) h^(1 - alpha) (h - u_{n+1})^(a - 1)      above both

where the first time has h^(alpha - 1) in the place of its u, and the last one no time after it. Neither has a name, and
each is slice sampled on a line of its own: u by the log-odds of its share of the smaller h, which is how auxiliaries
are kept, since u may be within rounding of h; h by the logarithm of what it is above both u. All u are independent
given H, and all times given u, so that they are drawn together. A row scaled by c, and u with it, has the gamma density
c^(alpha + (N - 1) a) e^(-beta c (h_1 + sum (h_n - u_n))), and with the data's terms it is drawn from that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, log_expit

from nmf_zoo.inference.shared.slice_sampling import slice_draw
from nmf_zoo.inference.smooth.base import AugmentedChain, DataTerms, Values, in_rows
from nmf_zoo.kernels.counts.gibbs import draw_scales
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import generator_of
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BGARPrior

CLOSEST = 1e-14  # of what h is above u, relative: below it a difference has no digits
LARGEST = 1e300


class StepSums(NamedTuple):
    """What hyperparameters see of the paths, (K, 1) each: sums over the steps, of a first time and of logarithms."""

    n_steps: int
    first: Array
    kept: Array
    lost: Array
    come: Array
    log_come: Array
    log_before: Array


class AugmentedBGAR(AugmentedChain):
    """Of beta-gamma autoregressions."""

    def start(self, prior: BGARPrior, Ht: Array, values: Values) -> Array:
        """Half of the smaller h."""
        return np.zeros((len(Ht) - 1, Ht.shape[1]))

    def draw_auxiliary(
        self, prior: BGARPrior, Ht: Array, auxiliary: Array, values: Values, workers: Workers, key: np.uint64
    ) -> None:
        if not auxiliary.size:
            return
        alpha, beta, rho = (in_rows(own) for own in prior.law(values))
        stays, comes, least = alpha * rho, alpha * (1.0 - rho), np.minimum(Ht[:-1], Ht[1:])
        most = np.maximum(Ht[:-1], Ht[1:])
        apart = (most - least) / most

        def log_density(x: Array) -> Array:
            log_share, log_rest = log_expit(x), log_expit(-x)
            share, rest = np.exp(log_share), np.exp(log_rest)
            shapes = stays * log_share + comes * log_rest + (comes - 1.0) * np.log(rest + apart * share)
            return shapes - beta * least * rest

        auxiliary[...] = slice_draw(log_density, auxiliary, generator_of(key))

    def draw_activations(
        self,
        prior: BGARPrior,
        Ht: Array,
        auxiliary: Array,
        values: Values,
        data: DataTerms,
        workers: Workers,
        key: np.uint64,
    ) -> None:
        alpha, beta, rho = (in_rows(own) for own in prior.law(values))
        comes = alpha * (1.0 - rho)
        u = kept_of(Ht, auxiliary)
        floor = np.zeros_like(Ht)
        floor[1:] = u
        np.maximum(floor[:-1], u, out=floor[:-1])
        above = np.maximum(Ht - floor, CLOSEST * Ht)
        over_own, over_next = floor[1:] - u, floor[:-1] - u  # 0 for the larger one
        linear = beta if data.rate is None else beta + data.rate

        def log_density(y: Array) -> Array:
            d = np.exp(y)
            h = floor + d
            log_h = np.log(h)
            total = y - linear * h + data.power * log_h
            if data.scale is not None:
                total -= data.scale / h
            total[:1] += (alpha - 1.0) * log_h[:1]
            total[1:] += (comes - 1.0) * np.log(over_own + d[1:])
            total[:-1] += (1.0 - alpha) * log_h[:-1] + (comes - 1.0) * np.log(over_next + d[:-1])
            return total

        above = np.exp(slice_draw(log_density, np.log(above), generator_of(key)))
        Ht[...] = np.clip(floor + np.maximum(above, CLOSEST * floor), TINY, LARGEST)
        rest = np.maximum(np.minimum(Ht[:-1], Ht[1:]) - u, CLOSEST * u)
        auxiliary[...] = np.log(u) - np.log(rest)

    def move_levels(
        self,
        prior: BGARPrior,
        Ht: Array,
        auxiliary: Array,
        values: Values,
        data: DataTerms,
        workers: Workers,
        key: np.uint64,
    ) -> None:
        power, rate = self.law_of_scale(prior, Ht, auxiliary, values)
        power = power + data.power.sum(axis=0)
        rate = rate if data.rate is None else rate + (data.rate * Ht).sum(axis=0)
        inverse = np.zeros_like(rate) if data.scale is None else (data.scale / Ht).sum(axis=0)
        scale = np.empty_like(rate)
        draw_scales(scale, power, 2.0 * rate, 2.0 * inverse, key)
        np.clip(Ht * scale, TINY, LARGEST, out=Ht)

    def law_of_scale(self, prior: BGARPrior, Ht: Array, auxiliary: Array, values: Values) -> tuple[Array, Array]:
        alpha, beta, rho = (in_rows(own) for own in prior.law(values))
        come = come_of(Ht, auxiliary)
        power = np.broadcast_to(alpha + len(auxiliary) * alpha * (1.0 - rho), (1, Ht.shape[1]))[0]
        return power, (beta * (Ht[:1] + come.sum(axis=0, keepdims=True)))[0]

    def sums(self, Ht: Array, auxiliary: Array) -> StepSums:
        kept, come = kept_of(Ht, auxiliary), come_of(Ht, auxiliary)
        lost = np.maximum(Ht[:-1] - np.minimum(Ht[:-1], Ht[1:]), 0.0) + rest_of(Ht, auxiliary)

        def total(cells: Array) -> Array:
            return cells.sum(axis=0)[:, None]

        logs = (total(np.log(cells)) for cells in (kept, lost, come, Ht[:-1]))
        of_kept, of_lost, of_come, of_before = logs
        return StepSums(len(auxiliary), Ht[0][:, None], of_kept, of_lost, total(come), of_come, of_before)

    def log_paths(self, prior: BGARPrior, sums: StepSums, values: Values) -> Array:
        alpha, beta, rho = prior.law(values)
        stays, comes, n = alpha * rho, alpha * (1.0 - rho), sums.n_steps
        first = (alpha - 1.0) * np.log(sums.first) - beta * sums.first + alpha * np.log(beta) - gammaln(alpha)
        shares = (stays - 1.0) * sums.kept + (comes - 1.0) * sums.lost - (alpha - 1.0) * sums.log_before
        shares = shares + n * (gammaln(alpha) - gammaln(stays) - gammaln(comes))
        added = (comes - 1.0) * sums.log_come - beta * sums.come + n * (comes * np.log(beta) - gammaln(comes))
        return first + shares + added


def kept_of(Ht: Array, auxiliary: Array) -> Array:
    """u, (N - 1, K)"""
    return np.minimum(Ht[:-1], Ht[1:]) * np.exp(log_expit(auxiliary))


def rest_of(Ht: Array, auxiliary: Array) -> Array:
    """The smaller h less u, without cancellation."""
    return np.minimum(Ht[:-1], Ht[1:]) * np.exp(log_expit(-auxiliary))


def come_of(Ht: Array, auxiliary: Array) -> Array:
    """h_n - u_n"""
    return Ht[1:] - np.minimum(Ht[:-1], Ht[1:]) + rest_of(Ht, auxiliary)
