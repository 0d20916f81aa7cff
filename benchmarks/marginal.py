"""The marginal likelihood of GaP on one thread: exact (speed, digits, the paper's V2), and Monte Carlo on NIPS."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from benchmarks.datasets import nips
from benchmarks.rows import Row, at_most, fastest
from nmf_zoo.inference.marginal.exact import activation_prior, enumerated_log_likelihoods, log_likelihoods, observe
from nmf_zoo.inference.marginal.importance import estimate_log_likelihoods
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models import gap
from nmf_zoo.reading import read

W_1 = np.array([[0.638, 0.075], [0.009, 0.568], [0.044, 0.126], [0.309, 0.231]])  # Filstroff et al. (2018), eq. 50
NIPS_DRAWS = 64


def rows(quick: bool) -> Iterator[Row]:
    """Exact values, then importance sampling."""
    times = 2 if quick else 15
    yield one_sample(times)
    yield digits(3 if quick else 40)
    for rank in (2, 3):
        yield paper_data(rank, n_samples=10 if quick else 100, times=1 if quick else 3)
    yield corpus(n_samples=50 if quick else 1500, times=1 if quick else 2)


def given(X: object, W: np.ndarray) -> tuple:
    """What the array-level functions take, at alpha = beta = 1."""
    structure = read(gap(X, W.shape[1]))
    return observe(structure), W, *activation_prior(structure, {})


def one_sample(times: int) -> Row:
    """20 features, 200 counts in all, three components that all of them can come from."""
    rng = np.random.default_rng(1)
    X = rng.multinomial(200, np.full(20, 1 / 20), size=20).T
    problem = given(X, rng.gamma(1.0, size=(20, 3)))
    ms = 1e3 * fastest([lambda: log_likelihoods(*problem)], times)[0] / X.shape[1]
    return at_most("exact log p(x_n | W), K=3, 200 counts", f"{ms:.2f} ms a sample", ms, 0.6, "0.6 ms")


def digits(n_problems: int) -> Row:
    """The largest relative difference to the sum over all admissible components."""
    worst = 0.0
    for seed in range(n_problems):
        rng = np.random.default_rng(seed)
        problem = given(1 + rng.poisson(1.0, size=(4, 5)), rng.gamma(1.0, size=(4, 3)))
        expected = enumerated_log_likelihoods(*problem)
        worst = max(worst, float(np.max(np.abs(log_likelihoods(*problem) / expected - 1.0))))
    work = f"exact against enumeration, {5 * n_problems} samples, K=3"
    return at_most(work, f"{worst:.0e} relative", worst, 1e-12, "1e-12")


def paper_data(rank: int, n_samples: int, times: int) -> Row:
    """V2 of the paper: samples from 100 W_1, alpha = beta = 1; at K=3 with W_1's columns and their mean."""
    rng = np.random.default_rng(2)
    X = rng.poisson(100 * W_1 @ rng.gamma(1.0, size=(2, n_samples)))
    W = 100 * W_1 if rank == 2 else 100 * np.column_stack([W_1, W_1.mean(axis=1)])
    problem = given(X, W)
    seconds = fastest([lambda: log_likelihoods(*problem)], times)[0]
    total = log_likelihoods(*problem).sum()
    work = f"exact log p(X | W) of V2 ({n_samples} samples of up to {X.sum(axis=0).max():,} counts), K={rank}"
    return at_most(work, f"{seconds:.2f} s, {total:.2f} nats", seconds, 5.0, "5 s", "'impossible' (the paper)")


def corpus(n_samples: int, times: int) -> Row:
    """Importance sampling at columns that differ from each other, as a fit's do."""
    X, label = nips()
    X = sp.csc_array(X)[:, :n_samples]
    W = np.asarray(X.mean(axis=1)).reshape(-1, 1) * np.random.default_rng(3).gamma(0.3, size=(X.shape[0], 10)) / 3
    problem = given(X, W)
    found = []
    work = lambda: found.append(estimate_log_likelihoods(*problem, draws=NIPS_DRAWS, key=seed_key(1)))  # noqa: E731
    seconds = fastest([work], times)[0]
    share = found[-1].total_error / abs(found[-1].log_likelihood.sum())
    effective = f"effective draws {100 * np.median(found[-1].effective):.0f} % (median)"
    name = f"log p(X | W) by importance sampling, {label}, {n_samples} columns, K=10"
    return at_most(name, f"{seconds:.2f} s, error {100 * share:.5f} %, {effective}", share, 1e-4, "error 0.01 %")
