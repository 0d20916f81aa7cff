"""Would a move between modes inside a sweep pay? What is accepted of exact ones, on draws of Gibbs.

``python -m benchmarks.split_merge``

*Split anew* (after Jain and Neal 2004). The counts of two or three components, allocated by the draw, are pooled, T. A
launch state, which depends on T and not on how it was split, comes from random factors and some sweeps on T alone; one
more sweep from it proposes sources, W and H of these components, x'. With q(x | launch) the density of such a sweep, in
any order of the components, x' is accepted with

    min(1, p(x') q(x | launch) / (p(x) q(x' | launch)))

*Exchange*. In one sample two components exchange what they explain, h_i -> h_j s_j / s_i and h_j -> h_i s_i / s_j with
s the sums of W's columns; in one feature so with W and H in each other's place. It keeps volumes in the logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, xlogy

import nmf_zoo as nz
from benchmarks.datasets import brca21, gamma_counts

SHAPE = 0.5  # of all priors, with rates of 0.5
SWEEPS = (5, 50)  # of the launch state
PROPOSALS, DRAWS = 400, 50
LARGE = 10.0  # counts of the larger of two components that exchange, where it is worth the name


class Parts(NamedTuple):
    """Sources (F, S, N) of some components, W (F, S) and H (S, N) of these."""

    C: np.ndarray
    W: np.ndarray
    H: np.ndarray

    def ordered(self, order: tuple[int, ...]) -> Parts:
        """Its components in another order."""
        own = list(order)
        return Parts(self.C[:, own], self.W[:, own], self.H[own])


def allocate(rng: np.random.Generator, T: np.ndarray, W: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Sources of counts T (F, N) given the factors."""
    means = W[:, :, None] * H[None]
    shares = np.moveaxis(means / means.sum(axis=1, keepdims=True), 1, -1)
    return np.moveaxis(rng.multinomial(T, shares), -1, 1)


def sweep(rng: np.random.Generator, T: np.ndarray, W: np.ndarray, H: np.ndarray) -> Parts:
    """Sources, W given the old H, H given the new W."""
    C = allocate(rng, T, W, H)
    new_W = rng.gamma(SHAPE + C.sum(axis=2)) / (SHAPE + H.sum(axis=1))
    new_H = rng.gamma(SHAPE + C.sum(axis=0)) / (SHAPE + new_W.sum(axis=0))[:, None]
    return Parts(C, np.maximum(new_W, 1e-300), np.maximum(new_H, 1e-300))


def log_sweep(x: Parts, W: np.ndarray, H: np.ndarray) -> float:
    """log q(x | launch) but for log T! less log c!, which p(x) has as well."""
    means = W[:, :, None] * H[None]
    total = np.sum(xlogy(x.C, means / means.sum(axis=1, keepdims=True)))
    total += log_gamma(x.W, SHAPE + x.C.sum(axis=2), SHAPE + H.sum(axis=1))
    return float(total + log_gamma(x.H, SHAPE + x.C.sum(axis=0), SHAPE + x.W.sum(axis=0)[:, None]))


def log_gamma(v: np.ndarray, shape: np.ndarray | float, rate: np.ndarray | float) -> float:
    """The log of the density of independent cells; SciPy's takes four times as long where they are few."""
    return float(np.sum(shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(v) - rate * v))


def log_joint(x: Parts) -> float:
    """log p(C, W, H) of these components but for the log c!."""
    means = x.W[:, :, None] * x.H[None]
    prior = sum(log_gamma(v, SHAPE, SHAPE) for v in (x.W, x.H))
    return float(np.sum(xlogy(x.C, means) - means)) + prior


def split_anew(rng: np.random.Generator, x: Parts, sweeps: int) -> tuple[Parts, float]:
    """(the proposal, the log of its acceptance ratio)"""
    T, orders = x.C.sum(axis=1), list(permutations(range(x.W.shape[1])))
    launch = Parts(x.C, rng.gamma(1.0, size=x.W.shape), rng.gamma(1.0, size=x.H.shape) * T.mean())
    for _ in range(sweeps):
        launch = sweep(rng, T, launch.W, launch.H)
    new = sweep(rng, T, launch.W, launch.H).ordered(orders[rng.integers(len(orders))])
    back, there = (
        logsumexp([log_sweep(part.ordered(order), launch.W, launch.H) for order in orders]) for part in (x, new)
    )
    return new, log_joint(new) - log_joint(x) + float(back - there)


def exchange(rng: np.random.Generator, X: np.ndarray, W: np.ndarray, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every sample, with one pair of components: log acceptance ratio, and counts of the larger of both."""
    i, j = rng.choice(len(H), 2, replace=False)
    sums, new = W.sum(axis=0), H.copy()
    new[i], new[j] = H[j] * sums[j] / sums[i], H[i] * sums[i] / sums[j]

    def log_density(own: np.ndarray) -> np.ndarray:
        mean = W @ own
        return np.sum(xlogy(X, mean) - mean, axis=0) + np.sum(SHAPE * np.log(own) - SHAPE * own, axis=0)

    return log_density(new) - log_density(H), np.maximum(H[i] * sums[i], H[j] * sums[j])


def lines(name: str, X: np.ndarray, rank: int) -> Iterator[str]:
    """What is accepted on draws of Gibbs."""
    rng = np.random.default_rng(1)
    model = nz.gamma_nmf(X, rank, alpha_w=SHAPE, beta_w=SHAPE, alpha_h=SHAPE, beta_h=SHAPE)
    idata = nz.sample(DRAWS, tune=1000, chains=1, extend=1, random_seed=1, quiet=True, model=model)
    Ws, Hs = (np.maximum(idata.posterior[v].to_numpy()[0], 1e-300) for v in "WH")
    for size in (2, 3):
        for sweeps in SWEEPS:
            ratios = []
            for number in range(PROPOSALS):
                W, H = Ws[number % DRAWS], Hs[number % DRAWS]
                C, own = allocate(rng, X, W, H), np.sort(rng.choice(rank, min(size, rank), replace=False))
                ratios.append(split_anew(rng, Parts(C[:, own], W[:, own], H[own]), sweeps)[1])
            accepted = np.mean(np.exp(np.minimum(ratios, 0.0)))
            what = f"{name}: {size} components split anew after {sweeps} sweeps"
            found = f"log ratio {np.median(ratios):.0f} in the middle, {max(ratios):.0f} at best"
            yield f"{what}: accepted {accepted:.2g}, {found}"
    for what, data, (first, second) in (("a sample", X, (Ws, Hs)), ("a feature", X.T, (Hs, Ws))):
        drawn = []
        for W, H in zip(first, second, strict=True):
            W, H = (W, H) if what == "a sample" else (W.T, H.T)
            drawn += [exchange(rng, data, W, H) for _ in range(20)]
        ratios, counts = (np.concatenate(part) for part in zip(*drawn, strict=True))
        chance = np.exp(np.minimum(ratios, 0.0))
        of_large = chance[counts > LARGE]
        large = f"{of_large.mean():.2g} of the {len(of_large) / len(chance):.0%} with more than {LARGE:.0f} counts"
        yield f"{name}: two components exchanged in {what}: accepted {chance.mean():.2g}; {large}"


def main() -> None:
    tables = {"30 x 20, mean 1, K = 3": (gamma_counts(30, 20, 3, 1.0), 3)}
    counts = brca21()
    if counts is not None:
        tables["BRCA21, K = 5"] = (counts, 5)
    for name, (X, rank) in tables.items():
        for line in lines(name, X, rank):
            print(line, flush=True)


if __name__ == "__main__":
    main()
