"""R-hat and effective sample sizes of draws, by ranks.

Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), https://arxiv.org/abs/1903.08008. ArviZ has them, too, and the
tests hold these against it; but it takes longer to import, with its pictures and SciPy's distributions, than a table of
them to make.

Draws are (chain, draw, cell), all cells at once. Chains are cut into halves first, a middle draw left out, so that one
that drifts differs from itself.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

Array = np.ndarray
TAILS = (0.05, 0.95)  # the quantiles whose effective draws are told


def rank_rhat(draws: Array) -> Array:
    """(cells,) R-hat: the larger of that of the ranks, for location, and of distances from the median, for scale."""
    halves = _halves(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.fmax(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))  # distances may all be one number


def bulk_ess(draws: Array) -> Array:
    """(cells,) effective draws of the ranks."""
    return _ess(_normal_scores(_halves(draws)))


def tail_ess(draws: Array) -> Array:
    """(cells,) effective draws of the 5 % or the 95 % quantile, whichever has fewer."""
    ends = np.quantile(draws, TAILS, axis=(0, 1))
    below = (np.where(np.isnan(draws), np.nan, draws <= end) for end in ends)
    return np.minimum(*(_ess(_halves(each)) for each in below))


def mean_ess(draws: Array) -> Array:
    """(cells,) effective draws of the mean."""
    return _ess(_halves(draws))


def _halves(draws: Array) -> Array:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]]).astype(np.float64)


def _normal_scores(draws: Array) -> Array:
    """Normal quantiles of the ranks among all draws of a cell, equal ones sharing their mean rank; NaN beside a NaN."""
    flat = draws.reshape(-1, draws.shape[-1])
    n = len(flat)
    order, ranks = np.argsort(flat, axis=0), np.empty(flat.shape)
    np.put_along_axis(ranks, order, np.arange(1.0, n + 1)[:, None], axis=0)
    values = np.take_along_axis(flat, order, axis=0)
    for cell in np.flatnonzero((values[1:] == values[:-1]).any(axis=0)):
        first, last = (np.searchsorted(values[:, cell], flat[:, cell], side) for side in ("left", "right"))
        ranks[:, cell] = (first + last + 1) / 2
    ranks[:, np.isnan(flat).any(axis=0)] = np.nan
    return ndtri((ranks - 3 / 8) / (n + 1 / 4)).reshape(draws.shape)  # Blom's (1958)


def _rhat(draws: Array) -> Array:
    """Root of the variance of all draws over that within chains."""
    n = draws.shape[1]
    own = np.where(np.ptp(draws, axis=1) == 0, 0.0, draws.var(axis=1, ddof=1))  # else rounding, of one number
    between, within = draws.mean(axis=1).var(axis=0, ddof=1), own.mean(axis=0)
    return np.sqrt(between / within + (n - 1) / n)


def _ess(draws: Array) -> Array:
    """Draws over the integrated autocorrelation time, by Geyer's initial monotone sequence."""
    n_chains, n, _ = draws.shape
    covariances = _autocovariances(draws).mean(axis=0)  # (lag, cell)
    within = covariances[0] * n / (n - 1)
    total = covariances[0] + draws.mean(axis=1).var(axis=0, ddof=1)
    correlations = 1 - (within - covariances) / total
    correlations[0] = 1.0
    times = np.array([_integrated_time(column) for column in correlations.T])
    size = n_chains * n
    found = size / np.maximum(times, 1 / np.log10(size))  # draws that repel each other are worth so much, no more
    found[np.isnan(correlations).any(axis=0)] = np.nan
    found[np.ptp(draws, axis=(0, 1)) == 0] = size  # of draws that are one number all
    return found


def _autocovariances(draws: Array) -> Array:
    """(chain, lag, cell) of each chain around its own mean, by way of its spectrum."""
    n = draws.shape[1]
    padded = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), padded, axis=1)
    return np.fft.irfft(spectrum.real**2 + spectrum.imag**2, padded, axis=1)[:, :n] / n


def _integrated_time(correlations: Array) -> float:
    """1 + 2 sum of correlations over lags: sums of neighbours as long as they are positive, and none above one before.

    Of the pair that ends it the first is counted once, which is better for draws that repel each other.
    """
    n_pairs = max(1, (len(correlations) - 1) // 2)  # the last lags have too few draws
    pairs = correlations[: 2 * n_pairs].reshape(-1, 2).sum(axis=1)
    ending = np.flatnonzero(~(pairs > 0))
    last = ending[0] if len(ending) else n_pairs - 1
    first = correlations[2 * last]
    rest = first if first > 0 or pairs[last] >= 0 else 0.0
    return float(2 * np.minimum.accumulate(pairs[:last]).sum() + rest - 1)
