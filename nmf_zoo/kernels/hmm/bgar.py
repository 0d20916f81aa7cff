"""The log density of BGAR(1) chains, each step an integral over what stays of the time before.

With p = alpha rho, a = alpha (1 - rho), u = b h' what stays, m and M the smaller and the larger of h' and h::

    p(h | h') = Gamma(alpha) beta^a / (Gamma(p) Gamma(a)^2) h'^(1 - alpha) e^(-beta h)
                int_0^m u^(p - 1) (h' - u)^(a - 1) (h - u)^(a - 1) e^(beta u) du

With u = m t, t = 1 / (1 + e^-x) the integrand is analytic in x in a strip of half width pi, and falls exponentially at
both ends, so that the trapezoid rule converges geometrically (Trefethen and Weideman 2014). Where it has become a pure
exponential the rest of the rule is a geometric series, and is added as such.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel

STEP = 0.4  # of x, where the integrand is no narrower than its strip allows
NEGLIGIBLE = 40.0  # e^-NEGLIGIBLE is below rounding
CLOSEST = 1e-17  # relative distance of two times that are equal: at a <= 1 / 2 their density has a pole
SMALLEST_SHAPE = 1e-8


@kernel
def log_shared(p, a, apart, tilt):
    """log int_0^1 t^(p - 1) s^(a - 1) (s + apart t)^(a - 1) e^(-tilt s) dt, s = 1 - t; 0 < apart <= 1, tilt >= 0."""
    step = STEP / math.sqrt(max(1.0, a))
    reach = NEGLIGIBLE + math.log(max(1.0, tilt))
    low, high = -reach, NEGLIGIBLE + max(math.log(max(1.0, tilt)), -math.log(apart))
    n = math.ceil((high - low) / step)
    largest, total = -np.inf, 0.0
    for i in range(n + 1):
        x = low + i * step
        # log t and log s without cancellation
        log_t = -math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))
        log_s = log_t - x
        s = math.exp(log_s)
        term = p * log_t + a * log_s + (a - 1.0) * math.log(s + apart * math.exp(log_t)) - tilt * s
        if i == 0:
            term -= math.log(-math.expm1(-p * step))  # and all before
        elif i == n:
            term -= math.log(-math.expm1(-a * step))  # and all after
        if term > largest:
            total = total * math.exp(largest - term) + 1.0
            largest = term
        else:
            total += math.exp(term - largest)
    return largest + math.log(total * step)


@kernel
def log_bgar_rows(out, H, alpha, beta, rho):
    """Overwrite out (K,): log density of rows of H (K, N), parameters (K,); -inf where a cell is not positive."""
    for k in range(H.shape[0]):
        if not _is_positive(H[k]):
            out[k] = -np.inf
            continue
        p = max(alpha[k] * rho[k], SMALLEST_SHAPE)
        a = max(alpha[k] * (1.0 - rho[k]), SMALLEST_SHAPE)
        h = H[k, 0]
        total = (alpha[k] - 1.0) * math.log(h) - beta[k] * h + alpha[k] * math.log(beta[k]) - math.lgamma(alpha[k])
        constant = math.lgamma(alpha[k]) - math.lgamma(p) - 2.0 * math.lgamma(a) + a * math.log(beta[k])
        for n in range(1, H.shape[1]):
            before, h = H[k, n - 1], H[k, n]
            least, most = min(before, h), max(before, h)
            apart = max((most - least) / most, CLOSEST)
            total += constant + (1.0 - alpha[k]) * math.log(before) - beta[k] * (h - least)
            total += (alpha[k] - 1.0) * math.log(least) + (a - 1.0) * math.log(most)
            total += log_shared(p, a, apart, beta[k] * least)
        out[k] = total


@kernel
def _is_positive(row):
    """Whether all numbers are above 0, and finite."""
    for n in range(row.size):  # noqa: SIM110 - a loop of the compiler
        if not (row[n] > 0.0 and row[n] < np.inf):
            return False
    return True
