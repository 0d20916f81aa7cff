"""Moments of generalised inverse Gaussian distributions, and their normalisers, from one function of one argument.

The density is proportional to x^(p - 1) exp(-(rho x + tau / x) / 2). With order nu = |p|, s = rho tau, z = sqrt(s)
and K the modified Bessel function of the second kind::

    ratio(s)    = z K_{nu-1}(z) / K_nu(z)                        0 at s = 0, about z - nu + 1/2 for large z
    p > 0:  E[x] = (2 nu + ratio) / rho,  E[1/x] = ratio / tau
    p < 0:  E[x] = ratio / rho,           E[1/x] = (2 nu + ratio) / tau
    log integral of the unnormalised density = log(2 K_nu(z) (z / 2)^nu) - nu log(c / 2),   c = rho if p > 0 else tau
    height(s)  = log(2 K_nu(z) (z / 2)^nu) + ratio + nu          log Gamma(nu) + nu at s = 0

``height`` - nu log(c / 2) is that integral's logarithm plus E[(rho x + tau / x) / 2]: what the variational bound needs,
without the terms of size z, which cancel.

K comes from Temme's series (z <= 2) or Steed's continued fraction (Temme 1975; Press et al., Numerical Recipes, 6.7)
for an order of at most 1/2 in size, and goes up in order by z K_nu / K_{nu+1} = s / (ratio + 2 nu), which is stable;
large orders from Debye's expansions. NaN gives NaN.
Cells that share an order look both functions up: polynomials of degree 11 on eighths of octaves of s.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, inlined_in_lanes, kernel
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.draws import draw_gig
from nmf_zoo.kernels.random.keyed_rng import fold

TINIEST, HUGEST = 1e-300, 1e300  # of s: beyond them it is clipped
EPSILON = 2.0**-53
LOG_2, HALF_LOG_HALF_PI = math.log(2.0), 0.5 * math.log(math.pi / 2.0)
# 1 / Gamma(1 + x) = sum of these times x^k (Abramowitz and Stegun, 6.1.34)
RECIPROCAL_GAMMA = np.array(
    [
        1.0,
        0.577215664901532860607,
        -0.655878071520253881077,
        -0.0420026350340952355290,
        0.166538611382291489502,
        -0.0421977345555443367482,
        -0.00962197152787697356211,
        0.00721894324666309954240,
        -0.00116516759185906511211,
        -2.15241674114950972816e-4,
        1.28050282388116186153e-4,
        -2.01348547807882386557e-5,
        -1.25049348214267065735e-6,
        1.13302723198169588237e-6,
        -2.05633841697760710345e-7,
        6.11609510448141581786e-9,
        5.00200764446922293006e-9,
        -1.18127457048702014459e-9,
        1.04342671169110051049e-10,
        7.78226343990507125405e-12,
        -3.69680561864220570819e-12,
        5.10037028745447597902e-13,
    ]
)


@kernel
def _gamma_parts(mu):
    """(even, odd): 1 / Gamma(1 + mu) = even + mu odd, and 1 / Gamma(1 - mu) = even - mu odd, |mu| <= 1/2."""
    square, even, odd = mu * mu, 0.0, 0.0
    for k in range(len(RECIPROCAL_GAMMA) - 2, -1, -2):
        even = even * square + RECIPROCAL_GAMMA[k]
        odd = odd * square + RECIPROCAL_GAMMA[k + 1]
    return even, odd


@kernel
def _temme(mu, z):
    """(log(2 K_mu(z)) + z, rise = z K_{mu+1}(z) / K_mu(z), rise - z) for z <= 2: Temme's series."""
    even, odd = _gamma_parts(mu)
    log_b = math.log(2.0 / z)
    sigma, angle = mu * log_b, math.pi * mu
    factor = angle / math.sin(angle) if angle != 0.0 else 1.0
    sinh_ratio = math.sinh(sigma) / sigma if abs(sigma) > 1e-9 else 1.0
    f = factor * (even * sinh_ratio * log_b - odd * math.cosh(sigma))
    p = 0.5 * math.exp(sigma) / (even + mu * odd)
    q = 0.5 * math.exp(-sigma) / (even - mu * odd)
    c, total, total_next, quarter, k = 1.0, f, p, 0.25 * z * z, 0.0
    while True:
        k += 1.0
        f = (k * f + p + q) / (k * k - mu * mu)
        p /= k - mu
        q /= k + mu
        c *= quarter / k
        total += c * f
        total_next += c * (p - k * f)
        if not c * f > EPSILON * total and k > 1.0:  # NaN ends it, too
            rise = 2.0 * total_next / total
            return math.log(2.0 * total) + z, rise, rise - z


@kernel
def _steed(mu, z):
    """The same for z > 2: Steed's evaluation of the continued fraction and of the sum that normalises it."""
    a1 = 0.25 - mu * mu
    b = 2.0 * (1.0 + z)
    d = 1.0 / b
    h = delta = d
    q1, q2, q, c, a = 0.0, 1.0, a1, a1, -a1
    s, i = 1.0 + q * delta, 1.0
    while True:
        i += 1.0
        a -= 2.0 * (i - 1.0)
        c *= -a / i
        q1, q2 = q2, (q1 - b * q2) / a
        q += c * q2
        b += 2.0
        d = 1.0 / (b + a * d)
        delta *= b * d - 1.0
        h += delta
        s += q * delta
        if not abs(q * delta) > EPSILON * s:
            beyond = mu + 0.5 - a1 * h
            return LOG_2 + HALF_LOG_HALF_PI - 0.5 * math.log(z) - math.log(s), z + beyond, beyond


def _debye_coefficients(terms: int) -> tuple[np.ndarray, np.ndarray]:
    """(u, d) (terms, powers): u_k(q), and (v_k(q) - u_k(q)) / (1 - q^2), with signs (-1)^k (DLMF 10.41.10 and 11)."""
    polynomial = np.polynomial.Polynomial
    q, u, d = polynomial([0.0, 1.0]), [polynomial([1.0])], [polynomial([0.0])]
    for _ in range(terms - 1):
        d.append(-0.5 * q * u[-1] - q**2 * u[-1].deriv())
        u.append(0.5 * q**2 * (1 - q**2) * u[-1].deriv() + ((1 - 5 * q**2) * u[-1]).integ() / 8)
    rows = np.zeros((2, terms, 3 * terms))
    for row, parts in zip(rows, (u, d), strict=True):
        for k, part in enumerate(parts):
            row[k, : len(part.coef)] = (-1) ** k * part.coef
    return rows[0], rows[1]


LARGE_ORDER = 200.0
DEBYE_U, DEBYE_D = _debye_coefficients(6)


@kernel
def _debye_sum(coefficients, q, nu):
    """sum_k coefficients_k(q) / nu^k"""
    total = 0.0
    for k in range(coefficients.shape[0] - 1, -1, -1):
        part = 0.0
        for power in range(coefficients.shape[1] - 1, -1, -1):
            part = part * q + coefficients[k, power]
        total = total / nu + part
    return total


@kernel
def _large_order(nu, s):
    """(ratio, height) by Debye's expansions of K_nu and of its derivative, written so that nothing cancels."""
    root = math.hypot(nu, math.sqrt(s))
    u, d = _debye_sum(DEBYE_U, nu / root, nu), _debye_sum(DEBYE_D, nu / root, nu)
    beyond = s / root * d / u
    log_scaled = LOG_2 + HALF_LOG_HALF_PI - 0.5 * math.log(root) + nu * math.log(0.5 * (nu + root)) + math.log(u)
    return s / (nu + root) + beyond, log_scaled + beyond


@kernel
def ratio_and_height(nu, s):
    """(ratio, height) of the order nu > 0 at s >= 0, see above."""
    s = min(max(s, TINIEST), HUGEST)
    if nu > LARGE_ORDER:
        return _large_order(nu, s)
    z = math.sqrt(s)
    n = math.floor(nu + 0.5)
    mu = nu - n if n > 0.0 else -nu  # an order below 1/2 is that of -nu, whose next is 1 - nu: nothing cancels
    log_scaled, rise, beyond = _temme(mu, z) if z <= 2.0 else _steed(mu, z)
    if n == 0.0:
        return rise, log_scaled + nu * math.log(0.5 * z) + beyond + nu
    log_scaled += math.log(rise / z) + (mu + 1.0) * math.log(0.5 * z)
    ratio, beyond = s / rise, -z * (beyond / rise)  # beyond is ratio - z, which would lose its digits as a difference
    order = mu + 1.0
    while order < nu - 0.5:
        log_scaled += math.log(0.5 * ratio + order)
        ratio, beyond = s / (ratio + 2.0 * order), -z * ((beyond + 2.0 * order) / (ratio + 2.0 * order))
        order += 1.0
    return ratio, log_scaled + beyond + nu


# -- tables of one order ----------------------------------------------------------------------------------------------

FIRST_OCTAVE, LAST_OCTAVE = -100, 60  # of s: what lies outside is computed
PARTS_LOG2, TERMS = 3, 12  # an octave is cut into 8 parts, each with polynomials of 12 coefficients
FIRST_PART = np.int64((1023 + FIRST_OCTAVE) << PARTS_LOG2)
N_PARTS = (LAST_OCTAVE - FIRST_OCTAVE) << PARTS_LOG2
PART_SHIFT = np.int64(52 - PARTS_LOG2)
WITHIN_PART, BITS_OF_ONE = np.int64((1 << (52 - PARTS_LOG2)) - 1), np.int64(1023 << 52)
PART_MIDDLE, PART_SCALE = 1.0 + 2.0 ** -(PARTS_LOG2 + 1), 2.0 ** (PARTS_LOG2 + 1)


class Orders(NamedTuple):
    """Orders p of the cells of a factor (rows, K), known for good.

    p : (rows or 1, K or 1), never 0; table : alike, the position in ``tables`` of |p|'s, -1 without;
    tables : (tables, parts, 2 * TERMS)
    """

    p: Any
    table: Any
    tables: Any


def tabulate(nu: float) -> np.ndarray:
    """The table of an order, (parts, 2 * TERMS): coefficients of ratio, then of height, in rising powers."""
    angles = math.pi * (np.arange(TERMS) + 0.5) / TERMS
    parts = np.arange(N_PARTS)
    starts = np.ldexp(1.0 + (parts % 2**PARTS_LOG2) / 2**PARTS_LOG2, FIRST_OCTAVE + parts // 2**PARTS_LOG2)
    widths = np.ldexp(2.0**-PARTS_LOG2, FIRST_OCTAVE + parts // 2**PARTS_LOG2)
    values = np.empty((2, N_PARTS, TERMS))
    _fill_values(values, starts[:, None] + widths[:, None] * (np.cos(angles) + 1.0) / 2.0, nu)
    orders = np.arange(TERMS)
    to_chebyshev = np.where(orders == 0, 1.0, 2.0) / TERMS * np.cos(np.outer(angles, orders))
    to_powers = np.zeros((TERMS, TERMS))
    for order in orders:
        to_powers[order, : order + 1] = np.polynomial.chebyshev.cheb2poly(np.eye(TERMS)[order])[: order + 1]
    return np.ascontiguousarray(np.concatenate([one @ to_chebyshev @ to_powers for one in values], axis=1))


@kernel
def _fill_values(values, s, nu):
    for i in range(s.shape[0]):
        for j in range(s.shape[1]):
            values[0, i, j], values[1, i, j] = ratio_and_height(nu, s[i, j])


@inlined_in_lanes
def _polynomial(table, part, first, y):
    """Of 12 coefficients, by thirds: Horner's rule throughout would wait for every product."""
    y2 = y * y
    y4 = y2 * y2
    total = 0.0
    for term in range(first + TERMS - 4, first - 1, -4):
        low = table[part, term] + y * table[part, term + 1]
        total = total * y4 + (low + y2 * (table[part, term + 2] + y * table[part, term + 3]))
    return total


@inlined_in_lanes
def _look_up(table, part, bits):
    y = (np.int64((bits & WITHIN_PART) | BITS_OF_ONE).view(np.float64) - PART_MIDDLE) * PART_SCALE
    return _polynomial(table, part, 0, y), _polynomial(table, part, TERMS, y)


@inlined_in_lanes
def _ratio_and_height(nu, s, tables, table):
    bits = np.float64(s).view(np.int64)
    part = (bits >> PART_SHIFT) - FIRST_PART
    if table < 0 or part < 0 or part >= N_PARTS:
        return ratio_and_height(nu, s)
    return _look_up(tables[table], part, bits)


@in_lanes
def fill_gig_moments(mean, harmonic, rho, tau, orders, start, stop):
    """Overwrite rows of mean and harmonic (rows, K): E[v] and 1 / E[1/v] of v ~ GIG(p, rho, tau), all (rows, K).

    rho = 0 is the inverse gamma limit (for p < 0; a mean that is infinite becomes a large number), tau = 0 the gamma
    limit (for p > 0; harmonic mean 0 for p <= 1). Returns the sum over these rows of the logarithm of the integral of
    the unnormalised density plus E[(rho v + tau / v) / 2].
    """
    total = 0.0
    for i in range(start, stop):
        row = i if orders.p.shape[0] > 1 else 0
        for k in range(mean.shape[1]):
            at = k if orders.p.shape[1] > 1 else 0
            p, a, b = orders.p[row, at], rho[i, k], tau[i, k]
            nu, s = abs(p), min(max(a * b, TINIEST), HUGEST)
            ratio, height = _ratio_and_height(nu, s, orders.tables, orders.table[row, at])
            if p > 0.0:
                mean[i, k], harmonic[i, k] = (2.0 * nu + ratio) / a, s / ratio / a if b > 0.0 or nu > 1.0 else 0.0
            else:
                mean[i, k], harmonic[i, k] = b * (ratio / s), b / (2.0 * nu + ratio)
            total += height - nu * fast_log(0.5 * (a if p > 0.0 else b))
    return total


@kernel
def draw_gig_factor(out, rho, tau, orders, key):
    """Overwrite out (rows, K) with v ~ GIG(p, rho, tau), each cell from a stream of its own."""
    for i in range(out.shape[0]):
        row, row_key = i if orders.p.shape[0] > 1 else 0, fold(key, i)
        for k in range(out.shape[1]):
            p = orders.p[row, k if orders.p.shape[1] > 1 else 0]
            out[i, k] = draw_gig(p, rho[i, k], tau[i, k], fold(row_key, k))
