"""Each particle's own mode in the coordinates of `log_normal_mode`, a tile of particles at a time.

Steps are (L L')^-1 gradient, with the curvature that all particles share. The sample's part of the gradient is that of
the quadratic, at K^2 a particle, or where counts are few that of the counts themselves.
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.basis_states import in_lanes
from nmf_zoo.kernels.particles.ahead import TILE, in_place
from nmf_zoo.kernels.particles.log_normal_mode import (
    ANCHOR,
    CENTRE,
    LOG_SCALE,
    LONGEST,
    LOWEST,
    MEAN,
    PRECISION,
    SLOPE,
    base_of,
)
from nmf_zoo.kernels.particles.tile_products import combine, multiply, multiply_transposed, multiply_upper
from nmf_zoo.kernels.softplus import artanh_series, fast_exp
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import kernel

V, M, S, RISE, Z, GRADIENT, STEP, ROOM = range(8)  # tiles: v, m, softplus(v), its derivative, log h, ...
NOTHING, BY_COUNTS, BY_QUADRATIC = range(3)  # Ahead.seen: how the sample's part is evaluated
STEPS = 2  # towards a particle's own mode, before the last one
MOST_GAIN = 2.0  # of the last step, in log-density: a larger promise is not believed


@kernel
def climb(ahead, look, room, target, t, first):
    """Overwrite ``points`` with the modes of the particles of one tile, and look with their log-densities there."""
    tiles, last = ahead.tiles, min(first + TILE, look.size)
    look, room = look[first:last], room[first:last]
    copy_columns(tiles[M], 0, ahead.spreads, first, look.size)
    begin(ahead, look.size)
    for step in range(STEPS + 1):
        evaluate(look, ahead, target, t)
        set_steps(ahead, look.size)
        if step == STEPS:
            add_gains(look, tiles)
        add_steps(tiles, room)
    copy_columns(ahead.points, first, tiles[V], 0, look.size)


@kernel
def copy_columns(out, to, rows, start, n):
    """Overwrite n columns of out, from ``to`` on, with those of rows from ``start`` on."""
    for k in range(rows.shape[0]):
        for i in range(n):
            out[k, to + i] = rows[k, start + i]


@in_place
def begin(ahead, n):
    """Overwrite V with the modes that the mean's own mode and curvature predict."""
    tiles, vectors = ahead.tiles, ahead.vectors
    for k in range(vectors.shape[1]):
        s = max(vectors[CENTRE, k], 0.0) + math.log1p(math.exp(-abs(vectors[CENTRE, k])))
        pull = vectors[PRECISION, k] * -math.expm1(-s) / s
        for i in range(n):
            tiles[GRADIENT, k, i] = pull * (tiles[M, k, i] - vectors[MEAN, k])
    set_steps(ahead, n)
    for k in range(vectors.shape[1]):
        for i in range(n):
            tiles[V, k, i] = vectors[CENTRE, k] + min(max(tiles[STEP, k, i], -LONGEST), LONGEST)


@in_lanes
def set_softplus(s, rise, v, n):
    """Overwrite the first n columns of s and rise with softplus and its derivative of v."""
    for k in range(v.shape[0]):
        for i in range(n):
            e = fast_exp(-abs(v[k, i]))
            inverse = 1.0 / ((1.0 + e) * (2.0 + e))
            third = e * (1.0 + e) * inverse
            s[k, i] = max(v[k, i], 0.0) + 2.0 * third * artanh_series(third * third)
            rise[k, i] = (1.0 if v[k, i] > 0.0 else e) * (2.0 + e) * inverse


@in_place
def evaluate(log_p, ahead, target, t):
    """Overwrite log_p with the log-densities of V, up to a constant, and GRADIENT with their gradients."""
    set_softplus(ahead.tiles[S], ahead.tiles[RISE], ahead.tiles[V], log_p.size)
    if ahead.seen[0] == BY_COUNTS:
        explain(log_p, ahead.tiles, ahead.vectors, target, t)
    else:
        approximate(log_p, ahead)
    add_law(log_p, ahead.tiles, ahead.vectors)


@in_lanes
def approximate(log_p, ahead):
    """Overwrite log_p with the quadratic in S, and GRADIENT with its slopes."""
    tiles, vectors, n = ahead.tiles, ahead.vectors, log_p.size
    for k in range(vectors.shape[1]):
        anchor = vectors[ANCHOR, k]
        for i in range(n):
            tiles[ROOM, k, i] = tiles[S, k, i] - anchor
    multiply(tiles[GRADIENT], ahead.shared[: vectors.shape[1]], tiles[ROOM], n)
    for i in range(n):
        log_p[i] = 0.0
    for k in range(vectors.shape[1]):
        away, gradient, slope = tiles[ROOM, k], tiles[GRADIENT, k], vectors[SLOPE, k]
        for i in range(n):
            log_p[i] += away[i] * (slope - 0.5 * gradient[i])
            gradient[i] = slope - gradient[i]


@in_lanes
def explain(log_p, tiles, vectors, target, t):
    """Overwrite log_p with the log-likelihood of the sample itself, and GRADIENT with its slopes in S."""
    counts, n = target.counts, log_p.size
    h, shares = tiles[Z], tiles[ROOM, 0]
    row = t if counts.drag.shape[0] > 1 else 0
    for i in range(n):
        log_p[i] = 0.0
    for k in range(vectors.shape[1]):
        scale, drag = fast_exp(vectors[LOG_SCALE, k]), counts.drag[row, k]
        for i in range(n):
            h[k, i] = scale * tiles[S, k, i]
            log_p[i] -= drag * h[k, i]
            tiles[GRADIENT, k, i] = -drag * scale
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        x, weights = counts.values[c], target.W[counts.indices[c]]
        combine(shares, weights, h, 0, weights.size, n)
        base = base_of(target, c)
        for i in range(n):
            rate = max(shares[i] + base, LOWEST)
            log_p[i] += x * fast_log(rate)
            shares[i] = x / rate
        for k in range(weights.size):
            weight = weights[k] * fast_exp(vectors[LOG_SCALE, k])
            for i in range(n):
                tiles[GRADIENT, k, i] += weight * shares[i]


@in_lanes
def add_law(log_p, tiles, vectors):
    """Add the law of z to log-densities and, from slopes in S, make gradients in V."""
    for k in range(vectors.shape[1]):
        v, m, s, rise, gradient = tiles[V, k], tiles[M, k], tiles[S, k], tiles[RISE, k], tiles[GRADIENT, k]
        log_scale, precision = vectors[LOG_SCALE, k], vectors[PRECISION, k]
        for i in range(log_p.size):
            log_s, up = fast_log(s[i]), rise[i] / s[i]
            away = log_s + log_scale - m[i]
            log_p[i] += v[i] - s[i] - log_s - 0.5 * precision * away * away
            gradient[i] = gradient[i] * rise[i] - precision * away * up + 1.0 - rise[i] - up


@kernel
def set_steps(ahead, n):
    """Overwrite STEP with (L L')^-1 GRADIENT."""
    tiles, rank = ahead.tiles, ahead.vectors.shape[1]
    R = ahead.shared[2 * rank :]
    multiply_transposed(tiles[ROOM], R, tiles[GRADIENT], n)
    multiply_upper(tiles[STEP], R, tiles[ROOM], n)


@in_lanes
def add_steps(tiles, longest):
    """Add the steps to V, each particle's cut to LONGEST; ``longest`` (n,) is room."""
    for i in range(longest.size):
        longest[i] = LONGEST
    for k in range(tiles.shape[1]):
        for i in range(longest.size):
            longest[i] = max(longest[i], abs(tiles[STEP, k, i]))
    for k in range(tiles.shape[1]):
        for i in range(longest.size):
            tiles[V, k, i] += tiles[STEP, k, i] * (LONGEST / longest[i])


@in_lanes
def add_gains(look, tiles):
    """Add what the steps promise, up to MOST_GAIN."""
    gain = tiles[ROOM, 0]
    for k in range(tiles.shape[1]):
        for i in range(look.size):
            more = 0.5 * tiles[STEP, k, i] * tiles[GRADIENT, k, i]
            gain[i] = more if k == 0 else gain[i] + more
    for i in range(look.size):
        look[i] += min(gain[i], MOST_GAIN)
