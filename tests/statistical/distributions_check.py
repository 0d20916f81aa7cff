"""Do draws follow a law? P-values that share one bound, from the whole range and the tails, and laws SciPy lacks.

P_BOUND is such that 2,000 p-values in one file give a false alarm with probability below 1e-3, whatever the seeds.
"""

import numpy as np
from scipy import integrate, special, stats

P_BOUND = 5e-7
TAIL = 1e-4
BINS = 100


def check(p_values):
    """Raise when one of the named p-values is below P_BOUND."""
    failed = {name: p for name, p in p_values.items() if not p > P_BOUND}
    assert not failed, f"draws: got p-values {failed}, expected all above {P_BOUND}"


def continuous_p_values(draws, cdf):
    """Kolmogorov-Smirnov, and exact binomial tests of the number of draws beyond the 1e-4 quantile on either side."""
    levels = cdf(np.asarray(draws))
    n = len(levels)
    return {
        "whole": stats.kstest(levels, "uniform").pvalue,
        "left tail": stats.binomtest(int(np.sum(levels < TAIL)), n, TAIL).pvalue,
        "right tail": stats.binomtest(int(np.sum(levels > 1 - TAIL)), n, TAIL).pvalue,
    }


def discrete_p_values(draws, law):
    """Chi-square over up to 100 bins of similar probability, and the tails beyond the 1e-4 quantiles."""
    draws = np.asarray(draws)
    edges = np.unique(law.ppf(np.arange(1, BINS) / BINS))  # a bin ends at its edge, included
    probabilities = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    found = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    low, high = law.ppf(TAIL), law.isf(TAIL)
    return {
        "whole": pooled_chi_square(found, len(draws) * probabilities),
        "left tail": stats.binomtest(int(np.sum(draws < low)), len(draws), law.cdf(low - 1)).pvalue,
        "right tail": stats.binomtest(int(np.sum(draws > high)), len(draws), law.sf(high)).pvalue,
    }


def pooled_chi_square(found, expected, least=20.0):
    """Chi-square p-value of counts, those with a small expectation pooled into one."""
    few = expected < least
    found = np.append(found[~few], found[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    if expected[-1] < least:  # too rare even together: the tail tests look there
        found, expected = found[:-1], expected[:-1] * (found[:-1].sum() / expected[:-1].sum())
    return stats.chisquare(found, expected).pvalue if len(found) > 1 else 1.0


def log_gamma_cdf(shape):
    """The distribution function of log G, G ~ Gamma(shape, 1), where G itself underflows too."""

    def cdf(y):
        near_zero = np.exp(np.minimum(shape * y - special.gammaln(shape + 1), 0.0))  # x^shape / Gamma(shape + 1)
        return np.where(y < -40, near_zero, special.gammainc(shape, np.exp(np.maximum(y, -40))))

    return cdf


def gig_cdf(p, a, b, points=200_001):
    """The distribution function of the generalised inverse Gaussian, by integration of its density in log x."""
    mode = np.log((p + np.hypot(p, np.sqrt(a * b))) / a) if p >= 0 else -np.log((-p + np.hypot(p, np.sqrt(a * b))) / b)

    def log_density(t):
        """Relative to the mode, in a form that does not cancel: t is the distance from the mode."""
        up, down = a * np.exp(mode), b * np.exp(-mode)
        return p * t - 0.5 * (up * np.expm1(t) + down * np.expm1(-t))

    t = np.linspace(_edge(log_density, -1), _edge(log_density, 1), points)
    mass = integrate.cumulative_simpson(np.exp(log_density(t)), x=t, initial=0)
    return lambda x: np.interp(np.log(x) - mode, t, mass / mass[-1])


def _edge(log_density, side):
    """Where the log-density has fallen by between 45 and 90 nats from its mode at 0."""
    with np.errstate(over="ignore"):
        t = side * 1e-12
        while log_density(2 * t) > -45:
            t *= 2
        while log_density(2 * t) < -90:  # the doubling jumped far: come back
            t *= 0.95
    return 2 * t
