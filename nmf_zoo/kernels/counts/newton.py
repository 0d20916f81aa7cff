"""Newton steps of the rows of a factor, for Poisson data: in a list of cells, and in a dense matrix.

**A list of cells**: rows go one cell after the other.

Given the other factor the rows u of a factor are independent, and each minimises the convex function::

    linear . u - sum_c x_c log(m_c) - power . log(u) + curve . u^2 / 2,      m_c = u . v_c + offset_c,    u >= 0

over the row's non-zero cells c (zeros, missing cells and a prior's rate are in ``linear``; a gamma prior's shape in
``power``, a half-normal prior's precision in ``curve``).
A cell w with numerator(w) = sum x v / m + power / w, falling in w, and bend = -numerator' is moved to the root of the
line through 1 / numerator = 1 / linear, whose left side is concave in w (Cauchy-Schwarz)::

    w + (numerator - linear) / bend * numerator / linear

With a curve q it is the root of the line through 1 / numerator = 1 / (linear + q w), a quadratic's.

Upwards this never overshoots and is longer than Newton's own step. Downwards it may: then it is cut to (linear -
numerator) / (bend + (linear - numerator) / w), along which the function, being self-concordant, can't rise (Hien and
Gillis 2021, section 3.2, where the scalar Newton method is due; a quadratic keeps a function self-concordant). Where
the slope at 0 still points below 0, w becomes FLOOR at once. Unlike a multiplicative update this leaves FLOOR again
when the data want it.

**A dense matrix**: all rows at once, each by a damped Newton step. Given the other factor V (cols, K) each row u
minimises the convex function above. Its second derivative is V^T diag(b_i) V + diag(power / u^2) with b_ij = x_ij /
m_ij^2, of which some neighbouring rows share one approximation, b being nearly an outer product::

    (sum_j b_ij) gram,      gram = V^T diag(b_j) V,     b_j = sum_i b_ij / sum_ij b_ij

The quadratic is minimised over u + step >= 0 by coordinate descent. Along the step, Newton's length for the true
function is taken, cut where the function, being self-concordant, might rise: the approximation costs speed, never
monotony.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import comparing, kernel, summing
from nmf_zoo.kernels.numerics.special import fast_log

FLOOR = 1e-100  # stands for 0: a mean of 0 would forbid its counts
LEAST_SHARE = 1e-3  # a step shrinks a cell to no less, unless to FLOOR: means are updated, and keep their digits
SMALLEST = 1e-150  # means below it are divided by as if they were it: the squared reciprocal must exist
LEAST_NORMAL = 1e-300


@kernel
def descend(layout, factor, other, linear, prior, largest, chunk):
    """Move the chunk's rows of ``factor`` (major, K), in place, at ``other`` (minor, K).

    ``linear`` and both of ``prior``, power and curve, are (major or 1, K), ``largest`` (K,) the columns' largest cells.
    Returns (sum x log m at the new rows, KKT residual of the cells as they were met).
    """
    power, curve = prior
    rank, longest = factor.shape[1], 0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        longest = max(longest, layout.indptr[i + 1] - layout.indptr[i])
    met, means = np.empty(rank * longest), np.empty(longest)
    total, residual = 0.0, 0.0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        first, count = layout.indptr[i], layout.indptr[i + 1] - layout.indptr[i]
        v, m, x = met[: rank * count].reshape(rank, count), means[:count], layout.values[first : first + count]
        meet(v, other, layout.indices[first : first + count])
        fill_means(m, factor[i], v, layout.offset, first)
        row_linear = linear[i if linear.shape[0] > 1 else 0]
        row_power = power[i if power.shape[0] > 1 else 0]
        row_prior = row_power, curve[i if curve.shape[0] > 1 else 0]
        residual = max(residual, descend_row(factor[i], x, m, v, row_linear, row_prior, largest))
        fill_means(m, factor[i], v, layout.offset, first)
        total += sum_logs(x, m)
    return total, residual


@kernel
def meet(v, other, indices):
    """The other factor's rows that a row meets, component by component."""
    for c in range(indices.size):
        row = other[indices[c]]
        for k in range(row.size):
            v[k, c] = row[k]


@summing
def fill_means(m, u, v, offset, first):
    for c in range(m.size):
        m[c] = offset[first + c] if offset.size > 0 else 0.0
    for k in range(u.size):
        w, row = u[k], v[k]
        for c in range(m.size):
            m[c] += w * row[c]


@kernel
def descend_row(u, x, m, v, linear, prior, largest):
    """One round over the cells of a row; m follows. Returns the residual."""
    residual, moved, before = 0.0, 0.0, v[0]
    power, curve = prior
    for k in range(u.size):
        w, p, q = u[k], power[k], curve[k]
        d = linear[k] + q * w
        numerator, bend = _slope_after(x, m, before, moved, v[k])
        numerator, bend = numerator + p / w, bend + p / w / w
        before, moved = v[k], 0.0
        if d > 0.0:
            share = w / largest[k] if largest[k] > 0.0 else 0.0
            residual = max(residual, abs(min(share, 1.0 - numerator / d)))
            u[k] = _move(w, (d, p, q), numerator, bend, x, m, v[k])
            moved = u[k] - w
    return residual


@summing
def _slope_after(x, m, before, moved, v):
    """Add the last step to the means; then the slope and bend of the log-likelihood in the next cell."""
    numerator, bend = 0.0, 0.0
    for c in range(x.size):
        mean = m[c] + moved * before[c]
        m[c] = mean
        share = v[c] / (mean if mean > SMALLEST else SMALLEST)
        part = x[c] * share
        numerator += part
        bend += part * share
    return numerator, bend


@kernel
def _move(w, prior, numerator, bend, x, m, v):
    """Where a cell goes; ``prior`` is (linear at the cell, power, curve)."""
    d, p, q = prior
    if bend <= 0.0:
        return FLOOR
    step = (numerator - d) / bend * (numerator / d) if q == 0.0 else _curved_step(d, q, numerator, bend)
    if step >= 0.0:
        return w + step
    shrink, excess = -step / w, d - numerator
    if p == 0.0 and shrink > 0.5 and _slope_at_zero(x, m, v, w) <= d - q * w:
        return FLOOR
    bend += q
    if shrink >= 1.0 or excess * shrink < bend * w * (-math.log1p(-shrink) - shrink):
        step = -excess / (bend + excess / w)
    return max(w + step, w * LEAST_SHARE, FLOOR)


@kernel
def _curved_step(d, q, numerator, bend):
    """The step s at which the line through 1 / n, n numerator, meets 1 / (d + q s): n^2 / (n + s bend) = d + q s."""
    root = math.hypot(q * numerator - d * bend, 2.0 * numerator * math.sqrt(q) * math.sqrt(bend))
    return 2.0 * (numerator - d) * numerator / (q * numerator + d * bend + root)


@summing
def _slope_at_zero(x, m, v, w):
    """The slope with this cell at 0; of a mean that is hardly more than this cell a tiny share is left."""
    numerator = 0.0
    for c in range(x.size):
        rest, least = m[c] - w * v[c], 1e-9 * m[c] + SMALLEST
        numerator += x[c] * v[c] / (rest if rest > least else least)
    return numerator


@summing
def sum_logs(x, m):
    """sum x log m with 0 log 0 := 0."""
    total, bad = 0.0, 0
    for c in range(x.size):
        total += x[c] * fast_log(m[c])
        bad += 0 if m[c] >= LEAST_NORMAL else 1
    if bad > 0:  # out of fast_log's range
        total = 0.0
        for c in range(x.size):
            if x[c] > 0.0:
                total += x[c] * (math.log(m[c]) if m[c] > 0.0 else -math.inf)
    return total


# -- all rows at once, of a dense matrix -----------------------------------------------------------------------------


LANES = 32  # rows solved side by side: loops over them run in SIMD lanes, and their buffers stay in cache
SAFE = 0.68  # times the distance to the nearest pole, a Newton step of a self-concordant function can't rise


@summing
def fill_bends(ratios, bends, x, means):
    """Overwrite ratios (rows, cols) with x / m and bends with x / m^2."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            inverse = 1.0 / (means[i, j] if means[i, j] > SMALLEST else SMALLEST)
            ratio = x[i, j] * inverse
            ratios[i, j] = ratio
            bends[i, j] = ratio * inverse


@kernel
def solve_quadratic(steps, factor, slopes, row_bends, gram, own, most):
    """Overwrite steps (rows, K) with the minimisers of slopes . s + s (row_bend gram + diag(own)) s / 2.

    They keep factor + s >= 0. At most ``most`` rounds over the cells. ``own`` is (rows, K), or (0, 0) when it is 0.
    """
    rank = factor.shape[1]
    gradient, moved, cells = np.empty((rank, LANES)), np.empty((rank, LANES)), np.empty((rank, LANES))
    extra = np.zeros((rank, LANES))
    for start in range(0, factor.shape[0], LANES):
        count = min(LANES, factor.shape[0] - start)
        for r in range(LANES):
            i = start + min(r, count - 1)
            for k in range(rank):
                gradient[k, r] = slopes[i, k] / row_bends[i]
                cells[k, r], moved[k, r] = factor[i, k], 0.0
                if own.size > 0:
                    extra[k, r] = own[i, k] / row_bends[i]
        first = 0.0
        for _ in range(most):
            largest = _round(gradient, moved, cells, extra, gram)
            first = max(first, largest)
            if largest <= 1e-24 * first:
                break
        for r in range(count):
            for k in range(rank):
                steps[start + r, k] = max(moved[k, r], -factor[start + r, k])  # rounding may have gone below


@summing
def _round(gradient, moved, cells, extra, gram):
    """One round over the cells of some rows; returns the largest move, in the metric of the quadratic."""
    rank, lanes = cells.shape
    step, largest = np.empty(lanes), 0.0
    for k in range(rank):
        size = 0.0
        for r in range(lanes):
            bend, g = gram[k, k] + extra[k, r], gradient[k, r]
            newton = -g / bend if bend > 0.0 else (-np.inf if g > 0.0 else 0.0)  # without a bend, as far as it goes
            least = -(cells[k, r] + moved[k, r])
            step[r] = newton if newton > least else least
            moved[k, r] += step[r]
            gradient[k, r] += step[r] * extra[k, r]
            size += step[r] * step[r] * bend
        if size > 0.0:
            largest = max(largest, size)
            for j in range(rank):
                g = gram[k, j]
                for r in range(lanes):
                    gradient[j, r] += g * step[r]
    return largest


@comparing
def _along(bends, changes, means):
    """Second derivative of a row's log-likelihood along its step, and 1 / the distance to the nearest pole."""
    bend, pole = 0.0, 0.0
    for j in range(means.size):
        bend += bends[j] * changes[j] * changes[j]
        nearness = -changes[j] / (means[j] if means[j] > SMALLEST else SMALLEST)
        pole = nearness if nearness > pole and bends[j] > 0.0 else pole  # no logarithm where there is no count
    return bend, pole


@kernel
def step_lengths(lengths, factor, steps, slopes, prior, bends, changes, means):
    """Overwrite lengths (rows,) with how far each row goes along its step; ``changes`` are the steps' means.

    ``prior`` is (power, curve), each (rows or 1, K).
    """
    power, curve = prior
    for i in range(lengths.size):
        bend, pole = _along(bends[i], changes[i], means[i])
        p, gain, longest = power[i if power.shape[0] > 1 else 0], 0.0, np.inf
        q = curve[i if curve.shape[0] > 1 else 0]
        for k in range(factor.shape[1]):
            w, s = factor[i, k], steps[i, k]
            gain -= slopes[i, k] * s
            bend += p[k] * (s / w) * (s / w) + q[k] * s * s
            if s < 0.0:
                longest = min(longest, -w / s)
                pole = max(pole, -s / w) if p[k] > 0.0 else pole
        newton = gain / bend if bend > 0.0 else np.inf
        safe = newton if newton * pole <= SAFE else gain / (bend + gain * pole)
        length = min(safe, longest) if gain > 0.0 else 0.0
        lengths[i] = length if length < np.inf else 0.0


@kernel
def advance(factor, means, steps, changes, lengths):
    """Go: factor and means (rows, cols) follow, in place."""
    for i in range(lengths.size):
        length = lengths[i]
        for k in range(factor.shape[1]):
            w = factor[i, k] + length * steps[i, k]
            factor[i, k] = w if w > FLOOR else FLOOR
        for j in range(means.shape[1]):
            means[i, j] += length * changes[i, j]
