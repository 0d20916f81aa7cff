"""Is a mean right? Two gates: first enough effective draws, then at most so many standard errors away."""

from __future__ import annotations

import numpy as np
from scipy import fft, special, stats

from tests.statistical.judged import judges

# Effective draws that a standard error takes. From so many it is itself known to about a tenth, which bounds of five
# and more of them carry.
LEAST = 125
TOGETHER = 32  # quantities whose autocorrelations are found at once
ALARM = 1e-4  # probability of a false alarm in one check, whatever the number of statistics in it


def effective_sizes(draws):
    """Effective sample sizes of the columns of draws (T, S): Geyer's initial monotone positive sequence.

    A constant column counts as T.
    """
    parts = [_effective_sizes(draws[:, first : first + TOGETHER].T) for first in range(0, draws.shape[1], TOGETHER)]
    return np.concatenate(parts)


def _effective_sizes(rows):
    """Of few quantities, (s, T), so that what is made of them stays in cache: a quarter of the time."""
    n = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = fft.next_fast_len(2 * n, real=True)
    spectrum = fft.rfft(np.ascontiguousarray(centred), length)
    covariance = fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[:, :n] / n
    constant = covariance[:, 0] <= 1e-300
    correlation = covariance / np.where(constant, 1.0, covariance[:, 0])[:, None]
    pairs = correlation[:, : n // 2 * 2].reshape(len(rows), n // 2, 2).sum(axis=2)
    pairs = np.minimum.accumulate(np.where(np.minimum.accumulate(pairs > 0, axis=1), pairs, 0.0), axis=1)
    time = np.maximum(2 * pairs.sum(axis=1) - 1, 1 / np.log10(n))  # antithetic draws: no unbounded gain
    return np.where(constant, n, n / time)


def standard_errors(draws):
    """(standard errors of the column means, effective sizes)."""
    sizes = effective_sizes(draws)
    return draws.std(axis=0, ddof=1) / np.sqrt(sizes), sizes


def bound(n_statistics):
    """Standard errors that the largest of so many z-scores exceeds with probability ALARM; at least 5."""
    return max(5.0, -special.ndtri(ALARM / 2 / n_statistics))


@judges(lambda names, draws, *_, **__: len(draws))
def check_means(names, draws, expected, expected_error=0.0, least=LEAST):
    """Raise unless each column mean of draws (T, S) is the expected one; the message says which gate failed."""
    draws = np.asarray(draws, dtype=np.float64)
    assert np.isfinite(draws).all(), f"gate 0, finite draws: got {np.sum(~np.isfinite(draws))} that are not"
    errors, sizes = standard_errors(draws)
    few = np.flatnonzero(sizes < least)
    assert not len(few), (
        f"gate 1, effective draws: got {_rows(names, few, sizes)}; expected at least {least}; draw longer"
    )
    difference = draws.mean(axis=0) - expected
    total = np.hypot(errors, expected_error)
    # a statistic that never moves has no error of its own: then it must be exact
    scores = np.where(
        total > 0, difference / np.where(total > 0, total, 1.0), np.where(abs(difference) < 1e-9, 0, np.inf)
    )
    allowed = bound(len(names))
    wrong = np.flatnonzero(np.abs(scores) > allowed)
    worst = wrong[np.argsort(-np.abs(scores[wrong]))]
    assert not len(wrong), (
        f"gate 2, standard errors: got {len(wrong)} of {len(names)} means off, worst {_rows(names, worst, scores)}; "
        f"expected at most {allowed:.1f} each"
    )


def _rows(names, which, values):
    return ", ".join(f"{names[i]}: {values[i]:.3g}" for i in which[:8])


@judges(lambda labels, found, *_, **__: np.sum(found))
def check_frequencies(labels, found, probabilities, least=250, least_expected=5.0):
    """Raise unless counts of independent draws follow the probabilities; the message tells the worst states."""
    found, expected = np.asarray(found, dtype=np.float64), np.sum(found) * np.asarray(probabilities)
    assert found.sum() >= least, (
        f"gate 1, independent draws: got {found.sum():.0f}; expected at least {least}; draw longer"
    )
    rare = expected < least_expected
    pooled = [np.append(a[~rare], a[rare].sum()) for a in (found, expected)]
    keep = pooled[1] > 0
    if np.any(pooled[0][~keep]):
        raise AssertionError("gate 2, chi-square: states of probability 0 were drawn")
    p = stats.chisquare(pooled[0][keep], pooled[1][keep]).pvalue if keep.sum() > 1 else 1.0
    scores = (found - expected) / np.sqrt(np.maximum(expected, 1e-12))
    table = [f"{labels[i]}: {found[i]:.0f} for {expected[i]:.1f}" for i in np.argsort(-np.abs(scores))[:10]]
    assert p > ALARM, f"gate 2, chi-square: got p = {p:.2g}; expected above {ALARM}; worst states " + "; ".join(table)
