"""Overdispersed counts: rank 1 of one column beside a regression, and what predictive intervals hold on BRCA21.

The peer of the first row is statsmodels' negative binomial regression on a constant where it is installed, else SciPy's
optimiser of the same two numbers; all must find the same maximum. Rank K of a table has no peer that we know.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy import optimize, stats

import nmf_zoo as nz
from benchmarks.datasets import brca21
from benchmarks.iterations import Stepper
from benchmarks.rows import REPEATS, Row, compare, cpu_of, medians, note
from nmf_zoo import _compat

MEAN, ALPHA, RANK = 6.0, 1.5, 5
SHARE = 0.9  # of a cell's predictive law inside its interval
HELD_OUT, SPLITS = 0.1, 5
RUN: dict[str, Any] = {"random_seed": 1, "quiet": True, "cores": 1}


def ours(x: np.ndarray) -> tuple[float, float, float]:
    """(CPU seconds, log p(x) at the maximum, alpha)"""
    model = nz.negative_binomial_nmf(x, 1, alpha=nz.free(), known=np.ones((len(x), 1)), beta_h=1e-12)
    began = time.process_time()
    fitted = nz.fit(engine="em", model=model, tol=1e-8, search=None, **RUN)
    seconds, posterior = time.process_time() - began, _compat.group(fitted, "posterior")
    mean, alpha = (float(posterior[name].item()) for name in ("H", "alpha"))
    return seconds, log_likelihood(x, mean, alpha), alpha


def log_likelihood(x: np.ndarray, mean: float, alpha: float) -> float:
    return float(stats.nbinom.logpmf(x, alpha, alpha / (alpha + mean)).sum())


def by_statsmodels(x: np.ndarray) -> tuple[float, float, float]:
    """As :func:`ours`."""
    from statsmodels.discrete.discrete_model import NegativeBinomial

    began = time.process_time()
    found = NegativeBinomial(x[:, 0], np.ones(len(x))).fit(disp=0)
    return time.process_time() - began, float(found.llf), 1.0 / float(found.params[-1])


def by_scipy(x: np.ndarray) -> tuple[float, float, float]:
    """As :func:`ours`."""
    began = time.process_time()
    found = optimize.minimize(lambda logs: -log_likelihood(x, *np.exp(logs)), np.zeros(2), method="L-BFGS-B")
    return time.process_time() - began, -float(found.fun), float(np.exp(found.x[1]))


def coverage(X: np.ndarray, builder: Callable[..., Any]) -> tuple[float, float]:
    """(share of held-out cells inside their predictive intervals over the splits, CPU seconds of all chains)."""
    rng, inside, seconds = np.random.default_rng(1), [], 0.0
    for _ in range(SPLITS):
        seen = rng.uniform(size=X.shape) >= HELD_OUT
        model, began = builder(X, RANK, alpha_w=0.5, alpha_h=0.5, mask=seen), time.process_time()
        idata = nz.sample(500, tune=1000, chains=2, extend=1, engine="gibbs", model=model, **RUN)
        seconds += time.process_time() - began
        drawn = nz.predict(idata, model, cells=np.nonzero(~seen), random_seed=2)
        low, high = drawn.quantile([(1 - SHARE) / 2, (1 + SHARE) / 2], dim=("chain", "draw")).to_numpy()
        inside.append((low <= X[~seen]) & (X[~seen] <= high))
    return float(np.mean(np.concatenate(inside))), seconds


def of_sparse(quick: bool) -> Iterator[Row]:
    """An iteration or a sweep of a sparse table beside the same table when it is dense, and beside Poisson's."""
    n_features, n_samples = (100, 60) if quick else (2000, 500)
    rng = np.random.default_rng(1)
    product = rng.gamma(0.3, size=(n_features, RANK)) @ rng.gamma(0.3, size=(RANK, n_samples))
    X = rng.negative_binomial(ALPHA, ALPHA / (ALPHA + 0.1 * product / product.mean()))
    table = sp.csr_array(X)
    for name, verb in (("em", "fit"), ("vb", "fit"), ("gibbs", "sample")):
        models = [nz.negative_binomial_nmf(form, RANK, alpha=ALPHA) for form in (table, X)]
        models.append(nz.gamma_nmf(table, RANK))
        works = [cpu_of(Stepper(nz.read(model), name, verb), 2) for model in models]
        sparse, dense, poisson = (1e3 * seconds for seconds in medians(works, 1 if quick else REPEATS))
        label = f"{n_features:,} x {n_samples}, {table.nnz:,} non-zeros, K={RANK}"
        yield note(
            f"one iteration or sweep by {name}, sparse negative binomial counts {label}",
            f"{sparse:.1f} ms",
            f"{dense:.1f} ms (the same, dense), {poisson:.1f} ms (as Poisson counts)",
        )


def rows(quick: bool) -> Iterator[Row]:
    """The maximum of two numbers; what zeros cost; coverage by both likelihoods."""
    x = np.random.default_rng(1).negative_binomial(ALPHA, ALPHA / (ALPHA + MEAN), (100 if quick else 2000, 1))
    has_statsmodels = find_spec("statsmodels") is not None
    peer, name = (by_statsmodels, "statsmodels") if has_statsmodels else (by_scipy, "SciPy's L-BFGS-B")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (_, found, alpha), (_, best, of_peer) = ours(x), peer(x)
        seconds, theirs = medians([lambda: ours(x)[0], lambda: peer(x)[0]])
        yield compare(
            f"negative binomial maximum of one column of {len(x)} counts, mean and alpha",
            f"{seconds:.3f} s, alpha {alpha:.4f}",
            f"{theirs:.3f} s ({name}), alpha {of_peer:.4f}, {best - found:+.2g} nats above ours",
            theirs / seconds,
        )
        yield from of_sparse(quick)
        X = None if quick else brca21()
        for builder in () if X is None else (nz.gamma_nmf, nz.negative_binomial_nmf):
            share, seconds = coverage(X, builder)
            text = f"held-out cells of BRCA21 inside {SHARE:.0%} predictive intervals, {builder.__name__}, K={RANK}"
            yield note(text, f"{share:.1%} over {SPLITS} splits, {seconds:.0f} s of chains")
