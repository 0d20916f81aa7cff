"""Importance sampling of a sample's activations, for marginal likelihoods beyond the exact programme's reach.

With h ~ Gamma(alpha, rate 1), T = sum_k h_k and d = h / T ~ Dirichlet(alpha), the open counts of
:mod:`nmf_zoo.kernels.marginal.exact` have the probability::

    Gamma(A + n) / Gamma(A) E[prod_f (sum_k q_fk d_k)^x_f]          A = sum alpha, n = sum x

T has no say in it, so that it may have any law: with Gamma(A + m) in the place of Gamma(A) the target is::

    f(h) = prod_k h_k^(alpha_k - 1) exp(-T) T^(m - n) prod_f (sum_k q_fk h_k)^x_f

and m is chosen so that T varies as much as d does (m = n, the posterior, is a thin curved shell where the counts hardly
tell the components apart). Two proposals look at x:

- a t distribution at the mode of v_k = h_k^c_k, where a gamma density looks like a normal one (Wilson, Hilferty 1931:
  c = 1/3; less for alpha below 2/3, so that the density in v vanishes at 0). In v the target has lighter tails.
  Points outside v > 0 weigh nothing;
- where some alpha is below 1, and h_k may be next to 0 or not, for half of the draws the mixture over some sweeps j of
  Gibbs sampling (Filstroff et al. 2018, eq. 38-40) of d ~ Dirichlet(alpha + L_j): with all sweeps there are, that is
  the posterior.

Every draw is weighted by the mixture of both, so that neither may miss what the other finds (Veach, Guibas 1995).
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing_signless
from nmf_zoo.kernels.marginal.exact import open_counts, shares
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.counts import allocate
from nmf_zoo.kernels.random.draws import draw_gamma, draw_log_gamma, draw_normal
from nmf_zoo.kernels.random.keyed_rng import fold
from nmf_zoo.kernels.simd.unowned_views import borrowed

STEPS = 40  # of Newton, at most


@kernel
def find_mode(counts, q, prior):
    """h (K,) where prod h^prior exp(-T) prod_f (sum_k q_fk h_k)^x_f is highest: an EM step, then Newton in log h."""
    rank = prior.size
    h = (prior.sum() + counts.sum()) / rank * np.ones(rank)
    sources, slopes = np.empty(rank), np.empty((rank, rank))
    value = climb_sums(counts, q, h, sources, slopes)
    h = prior + sources
    value = climb_sums(counts, q, h, sources, slopes) + np.sum(prior * np.log(h)) - h.sum()
    for _ in range(STEPS):
        gradient = prior + sources - h
        step = solve(cholesky(slopes + np.diag(prior)), gradient)
        if np.max(np.abs(step)) < 1e-4:
            break
        step *= min(1.0, 2.0 / np.max(np.abs(step)))
        for _ in range(12):
            new = h * np.exp(step)
            risen = climb_sums(counts, q, new, sources, slopes) + np.sum(prior * np.log(new)) - new.sum()
            if risen >= value:
                break
            step *= 0.5
        h, value = new, risen
    return h


@kernel
def climb_sums(counts, q, h, sources, slopes):
    """sum_f x_f log mean_f; overwrites sources_k = sum_f x_f r_fk, slopes_kj = sum_f x_f r_fk r_fj; r = q h / mean."""
    rank, total, r = h.size, 0.0, np.empty(h.size)
    sources[:], slopes[:] = 0.0, 0.0
    for f in range(counts.size):
        mean = 0.0
        for k in range(rank):
            r[k] = q[f, k] * h[k]
            mean += r[k]
        total += counts[f] * math.log(mean)
        for k in range(rank):
            r[k] /= mean
            weighted = counts[f] * r[k]
            sources[k] += weighted
            for j in range(k + 1):
                slopes[k, j] += weighted * r[j]
    for k in range(rank):
        for j in range(k):
            slopes[j, k] = slopes[k, j]
    return total


@kernel
def match_spread(counts, q, prior, h):
    """(m, Cholesky factor of minus the second derivative of log f in log h at its mode).

    A Dirichlet distribution of sum a has sum_k d_k Var(log d_k) = (K - 1) / a or so, and T ~ Gamma(a) makes its h
    independent.
    """
    rank, n, d = prior.size, counts.sum(), h / h.sum()
    sources, slopes = np.empty(rank), np.empty((rank, rank))
    climb_sums(counts, q, h, sources, slopes)
    slopes += np.diag(prior)
    lower, spread = cholesky(slopes), 0.0
    for k in range(rank):
        unit = np.zeros(rank)
        unit[k] = 1.0
        spread += d[k] * solve(lower, unit)[k]
    spread -= np.sum(d * solve(lower, d))
    m = min(n, max(0.0, (rank - 1) / spread - prior.sum()))
    for k in range(rank):
        for j in range(rank):
            slopes[k, j] += (m - n) * d[k] * d[j]
    narrowed = cholesky(slopes)
    return (m, narrowed) if np.isfinite(np.sum(narrowed)) else (n, lower)


@kernel
def cholesky(matrix):
    """Its lower factor; NaN where the matrix isn't positive definite."""
    rank = matrix.shape[0]
    lower = np.zeros((rank, rank))
    for i in range(rank):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = math.sqrt(total) if i == j else total / lower[j, j]
    return lower


@kernel
def solve(lower, x):
    """(L L^T)^-1 x"""
    y = x.copy()
    for i in range(y.size):
        for k in range(i):
            y[i] -= lower[i, k] * y[k]
        y[i] /= lower[i, i]
    back_substitute(lower, y)
    return y


@kernel
def back_substitute(lower, y):
    """Overwrite y by L^-T y."""
    for i in range(y.size - 1, -1, -1):
        for k in range(i + 1, y.size):
            y[i] -= lower[k, i] * y[k]
        y[i] /= lower[i, i]


# -- importance sampling ---------------------------------------------------------------------------------------------


FREEDOM = 10.0  # degrees of the t distribution: what its heavier tails cost where the normal fits, they save elsewhere
SWEEPS, WARM_UP = 64, 16  # of Gibbs sampling: what is kept at most, and what comes before
RESTARTED, SHORT = 8, 5  # every eighth of those is the last of a short chain with a start of its own
WIDENED, SHARES = 2, (0.0, 0.25, 0.03125)  # every other sweep counts in part, the first of those not at all
TINY = 1e-300  # below what share of T a mean is taken as this: it has no weight, and fast_log wants normal numbers
LOG_LARGEST = 700.0  # of T


@kernel
def estimate_log_sums(data, n_draws, key, first, last, out):
    """out[n] = (estimate, its standard error, effective sample size / draws) of what `marginal.log_sums` computes.

    ``data`` = (columns, W, rate, shape) as there; for the samples first, ..., last - 1; no background.
    """
    columns, W, rate, shape = data
    for n in range(first, last):
        q, log_total = shares(columns, W, rate, n)
        out[n, 0], out[n, 1], out[n, 2] = log_total, 0.0, 1.0
        if log_total > -np.inf:
            problem = open_counts(columns, n, q, shape[n])
            out[n, 0] += problem.log_known
            if problem.counts.size > 0:
                log_mean, error, effective = _estimate(problem, n_draws, fold(key, n))
                out[n, 0] += log_mean
                out[n, 1], out[n, 2] = error, effective


@kernel
def _estimate(problem, n_draws, key):
    counts, alpha = problem.counts.astype(np.float64), problem.shape
    power, n, total = np.minimum(1.0 / 3.0, 0.5 * alpha), counts.sum(), alpha.sum()
    prior = alpha - power
    h = find_mode(counts, problem.q, prior)
    m, lower = match_spread(counts, problem.q, prior, h)
    totals = np.empty((min(SWEEPS, n_draws // 2) if np.min(alpha) < 1.0 else 0, alpha.size))
    draw_totals(problem, h / h.sum(), totals, fold(key, 0))
    log_mode = np.log(h * ((prior.sum() + m) / h.sum()))
    peak = power, log_mode, lower
    points, log_weights = np.empty((alpha.size, n_draws)), np.empty(n_draws)
    draw_points(peak, totals, alpha, m, fold(key, 1), points)
    weigh_points(problem, peak, totals, m, points, log_weights)
    log_mean, error, effective = summarise(log_weights)
    for k in range(alpha.size):
        log_mean -= math.lgamma(alpha[k])
    return log_mean - math.lgamma(total + m) + math.lgamma(total + n), error, effective


@kernel
def draw_totals(problem, d, out, key):
    """Overwrite out (sweeps, K) with the components' totals in sweeps of Gibbs sampling that begin at d (K,).

    Some are scaled down, to Dirichlet distributions between the posterior and the prior: sweeps can be slow to leave a
    place where the counts hardly tell components apart. And some are from chains of their own that begin anywhere: with
    small alpha none may leave the components that it began with.
    """
    d, rank, totals = d.copy(), d.size, np.empty(d.size)
    long = out.shape[0] - out.shape[0] // RESTARTED
    for sweep in range(WARM_UP + long if long > 0 else 0):
        sweep_once(problem, d, totals, fold(key, sweep))
        kept = sweep - WARM_UP
        if kept >= 0:
            is_widened = kept % WIDENED == WIDENED - 1
            out[kept] = totals * (SHARES[kept // WIDENED % len(SHARES)] if is_widened else 1.0)
    for kept in range(long, out.shape[0]):
        own = fold(fold(key, WARM_UP + long), kept)
        for k in range(rank):
            d[k] = draw_gamma(1.0, fold(own, k))
        for sweep in range(SHORT):
            sweep_once(problem, d, out[kept], fold(own, rank + sweep))


@kernel
def sweep_once(problem, d, totals, key):
    """Overwrite totals (K,) with a draw given d (K,), then d with one given the totals."""
    rank, own = d.size, np.empty(d.size, np.int64)
    weights, cumulative, log_g = np.empty(rank), np.empty(rank), np.empty(rank)
    totals[:] = 0.0
    for f in range(problem.counts.size):
        for k in range(rank):
            weights[k] = problem.q[f, k] * d[k]
        allocate(problem.counts[f], weights, cumulative, own, fold(key, f))
        for k in range(rank):
            totals[k] += own[k]
    of_d = fold(key, problem.counts.size)
    for k in range(rank):
        log_g[k] = draw_log_gamma(problem.shape[k] + totals[k], fold(of_d, k))
    d[:] = np.exp(log_g - np.max(log_g))


@kernel
def from_peak(n_draws, sweeps):
    """How many draws are from the t distribution."""
    return n_draws - n_draws // 2 if sweeps > 0 else n_draws


@kernel
def draw_points(peak, totals, alpha, m, key, out):
    """Overwrite out (K, draws) with log h: first from the t distribution, then from the sweeps in turn.

    NaN where v is not positive.
    """
    power, log_mode, lower = peak
    y, log_g, first = np.empty(alpha.size), np.empty(alpha.size), from_peak(out.shape[1], totals.shape[0])
    for s in range(out.shape[1]):
        own = fold(key, s)
        if s < first:
            draw_t(lower, own, y)
            for k in range(y.size):
                root = 1.0 + power[k] * y[k]
                out[k, s] = log_mode[k] + math.log(root) / power[k] if root > 0.0 else np.nan
        else:
            for k in range(y.size):
                log_g[k] = draw_log_gamma(alpha[k] + totals[(s - first) % totals.shape[0], k], fold(own, k))
            largest = np.max(log_g)
            log_total = draw_log_gamma(alpha.sum() + m, fold(own, y.size))
            out[:, s] = log_g - largest - math.log(np.sum(np.exp(log_g - largest))) + log_total


@kernel
def weigh_points(problem, peak, totals, m, points, out):
    """Overwrite out (draws,) with log f - log density of the proposals' mixture, both in log h; points (K, draws)."""
    n_draws, sweeps, alpha = out.size, totals.shape[0], problem.shape
    shares_of_total, log_total = np.empty(points.shape), np.empty(n_draws)
    for s in range(n_draws):  # h itself may be too small or too large for a float
        largest = np.max(points[:, s])
        log_total[s] = largest + math.log(np.sum(np.exp(points[:, s] - largest)))
        shares_of_total[:, s] = np.exp(points[:, s] - log_total[s])
    fit, n = np.zeros(n_draws), problem.counts.sum()
    add_log_means(problem.counts, problem.q, shares_of_total, fit)
    first = from_peak(n_draws, sweeps)
    constant = log_density_constant(peak[2]) + math.log(first / n_draws)
    weights, missing = np.empty(sweeps), np.empty(sweeps)
    for j in range(sweeps):  # each sweep's share of all draws
        missing[j] = n - totals[j].sum()
        weights[j] = math.log((n_draws - first) / n_draws / sweeps) + math.lgamma(alpha.sum() + n - missing[j])
        weights[j] -= math.lgamma(alpha.sum() + m)
        for k in range(alpha.size):
            weights[j] -= math.lgamma(alpha[k] + totals[j, k])
    for s in range(n_draws):
        base = np.sum(alpha * points[:, s]) - math.exp(log_total[s]) + (m - n) * log_total[s]
        density = constant + log_t(peak, points[:, s])
        if sweeps > 0:
            mixture = log_mixture(weights + missing * log_total[s], totals, points[:, s])
            density = np.logaddexp(density, base + mixture)
        is_possible = log_total[s] < LOG_LARGEST  # not NaN, v was positive; else exp(-T) is 0
        out[s] = base + n * log_total[s] + fit[s] - density if is_possible else -np.inf


@kernel
def log_mixture(weights, totals, log_h):
    """log sum_j exp(weights_j + sum_k totals_jk log h_k)"""
    terms = np.empty(weights.size)
    for j in range(terms.size):
        terms[j] = weights[j]
        for k in range(log_h.size):
            terms[j] += totals[j, k] * log_h[k]
    largest = np.max(terms)
    return largest + math.log(np.sum(np.exp(terms - largest)))


@kernel
def log_t(peak, log_h):
    """log density in log h of the t distribution, less its constant."""
    power, log_mode, lower = peak
    rank, log_slope, squares = power.size, 0.0, 0.0
    y = np.empty(rank)
    for k in range(rank):
        grown = power[k] * (log_h[k] - log_mode[k])
        y[k] = math.expm1(grown) / power[k]
        log_slope += grown
    for k in range(rank):
        z = 0.0
        for i in range(k, rank):
            z += lower[i, k] * y[i]
        squares += z * z
    return log_slope - 0.5 * (FREEDOM + rank) * math.log1p(squares / FREEDOM)


@kernel
def log_density_constant(lower):
    """log of the t distribution's density at its centre."""
    rank, log_det = lower.shape[0], 0.0
    for k in range(rank):
        log_det += math.log(lower[k, k])
    scale = math.lgamma(0.5 * (FREEDOM + rank)) - math.lgamma(0.5 * FREEDOM)
    return scale - 0.5 * rank * math.log(FREEDOM * math.pi) + log_det


@kernel
def draw_t(lower, key, y):
    """Overwrite y (K,) with a draw of scale (L L^T)^-1."""
    for k in range(y.size):
        y[k] = draw_normal(fold(key, k))
    stretch = 2.0 * draw_gamma(0.5 * FREEDOM, fold(key, y.size)) / FREEDOM
    back_substitute(lower, y)
    y /= math.sqrt(stretch)


@summing_signless
def add_log_means(counts, q, h, out):
    """Add sum_f x_f log sum_k q_fk h_k to out (draws,); h (K, draws), over their sums."""
    q, h, mean = borrowed(q), borrowed(h), np.empty(out.size)
    for f in range(counts.size):
        mean[:] = TINY
        for k in range(h.shape[0]):
            share, row = q[f, k], h[k]
            for s in range(mean.size):
                mean[s] += share * row[s]
        x = np.float64(counts[f])
        for s in range(mean.size):
            out[s] += x * fast_log(mean[s])


@kernel
def summarise(log_weights):
    """(log mean weight, its standard error, effective sample size / draws)"""
    n, largest = log_weights.size, np.max(log_weights)
    total, squares = 0.0, 0.0
    for value in log_weights:
        weight = math.exp(value - largest)
        total += weight
        squares += weight * weight
    effective = total * total / squares / n
    return largest + math.log(total / n), math.sqrt((1.0 / effective - 1.0) / (n - 1)), effective
