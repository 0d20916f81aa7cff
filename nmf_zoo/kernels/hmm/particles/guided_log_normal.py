"""Proposals that look at the sample, for particles of log-normal chains.

Given its past m_i, a particle's target is N(z; m_i, 1 / Q) g(x_t | e^z), z = log h. `log_normal_mode` gives
coordinates h = c softplus(v) in which this is nearly Gaussian, and one curvature L L' in v for all particles, of
which each has its own mode V_i there. Then::

    look_i = log-density of v at V_i, relative to the others: Laplace's approximation of log p(x_t | m_i)
    q_i    = e N(z; m_i, 1 / Q) + (1 - e) N(v; V_i, (L L')^-1) dv / dz

The share e of the chain's own law bounds the weights by 1 / e, however far the approximation is off. Weights are
exact: g is the sample's own, never the quadratic.

Everything is done for TILE particles at a time, whose rows stay in the nearest cache.

**A particle's own mode** is found by steps (L L')^-1 gradient, with the curvature that all particles share. The
sample's part of the gradient is that of the quadratic, at K^2 a particle, or where counts are few that of the counts
themselves.
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.compile import in_lanes, inlined_in_lanes, kernel, spliced
from nmf_zoo.kernels.hmm.basis_states import dot, log_or_never
from nmf_zoo.kernels.hmm.particles.log_normal import draw_first, move, set_activations
from nmf_zoo.kernels.hmm.particles.log_normal_mode import (
    ANCHOR,
    CENTRE,
    LOG_SCALE,
    LONGEST,
    LOWEST,
    MEAN,
    PRECISION,
    SLOPE,
    base_of,
    set_expansion,
)
from nmf_zoo.kernels.hmm.particles.proposal_scratch import TILE
from nmf_zoo.kernels.numerics.special import artanh_series, fast_exp, fast_log
from nmf_zoo.kernels.random.draws import draw_normal
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

# -- tiles -----------------------------------------------------------------------------------------------------------


@in_lanes
def multiply(out, matrix, x, n):
    """Overwrite the first n columns of out with matrix @ x."""
    for k in range(x.shape[0]):
        combine(out[k], matrix[k], x, 0, x.shape[0], n)


@in_lanes
def multiply_upper(out, R, x, n):
    """Overwrite the first n columns of out with R @ x, R upper triangular."""
    for k in range(x.shape[0]):
        combine(out[k], R[k], x, k, x.shape[0], n)


@in_lanes
def multiply_transposed(out, R, x, n):
    """Overwrite the first n columns of out with R' @ x, R upper triangular."""
    for k in range(x.shape[0]):
        combine(out[k], R[:, k], x, 0, k + 1, n)


@inlined_in_lanes
def combine(out, weights, x, first, last, n):
    """out_i = sum_j weights_j x_ji, j from ``first`` to ``last``, four at a time."""
    for i in range(n):
        out[i] = 0.0
    j = first
    while j + 4 <= last:
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(n):
            out[i] += (a * x[j, i] + b * x[j + 1, i]) + (c * x[j + 2, i] + d * x[j + 3, i])
        j += 4
    while j < last:
        for i in range(n):
            out[i] += weights[j] * x[j, i]
        j += 1


# -- each particle's own mode ----------------------------------------------------------------------------------------


V, M, S, RISE, Z, GRADIENT, STEP, ROOM = range(8)  # tiles: v, m, softplus(v), its derivative, log h, ...
NOTHING, BY_COUNTS, BY_QUADRATIC = range(3)  # Ahead.seen: how the sample's part is evaluated
STEPS = 2  # towards a particle's own mode, before the last one
MOST_GAIN = 2.0  # of the last step, in log-density: a larger promise is not believed


@kernel
def climb(ahead, look, workspace, target, t, first):
    """Overwrite ``points`` with the modes of the particles of one tile, and look with their log-densities there."""
    tiles, last = ahead.tiles, min(first + TILE, look.size)
    look, workspace = look[first:last], workspace[first:last]
    copy_columns(tiles[M], 0, ahead.spreads, first, look.size)
    begin(ahead, look.size)
    for step in range(STEPS + 1):
        evaluate(look, ahead, target, t)
        set_steps(ahead, look.size)
        if step == STEPS:
            add_gains(look, tiles)
        add_steps(tiles, workspace)
    copy_columns(ahead.points, first, tiles[V], 0, look.size)


@kernel
def copy_columns(out, to, rows, start, n):
    """Overwrite n columns of out, from ``to`` on, with those of rows from ``start`` on."""
    for k in range(rows.shape[0]):
        for i in range(n):
            out[k, to + i] = rows[k, start + i]


@spliced
def begin(ahead, n):
    """Overwrite V with the modes that the mean's own mode and curvature predict."""
    tiles, vectors = ahead.tiles, ahead.vectors
    for k in range(vectors.shape[1]):
        s = max(vectors[CENTRE, k], 0.0) + math.log1p(math.exp(-abs(vectors[CENTRE, k])))
        factor = vectors[PRECISION, k] * -math.expm1(-s) / s
        for i in range(n):
            tiles[GRADIENT, k, i] = factor * (tiles[M, k, i] - vectors[MEAN, k])
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


@spliced
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
    row = t if counts.weight_sums.shape[0] > 1 else 0
    for i in range(n):
        log_p[i] = 0.0
    for k in range(vectors.shape[1]):
        scale, weight_sums = fast_exp(vectors[LOG_SCALE, k]), counts.weight_sums[row, k]
        for i in range(n):
            h[k, i] = scale * tiles[S, k, i]
            log_p[i] -= weight_sums * h[k, i]
            tiles[GRADIENT, k, i] = -weight_sums * scale
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
    """Add the steps to V, each particle's cut to LONGEST; ``longest`` (n,) is scratch."""
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


# -- proposals -------------------------------------------------------------------------------------------------------


FEW_COUNTS = 16  # for each component: with fewer the sample's part is too far from its quadratic
OWN_SHARE = 0.01  # of proposals from the chain's own law, and of the looks' mean in each look


@kernel
def look(ahead, population, target, t):
    """Overwrite ``look`` with the logarithm of how well each particle explains sample t, up to a constant."""
    law, vectors, weights = target.law, ahead.vectors, population.weights
    set_means(ahead.spreads, population.cloud.aux, law.parameters)
    for i in range(weights.size):
        weights[i] = math.exp(population.log_weights[i])
    for k in range(vectors.shape[1]):
        vectors[PRECISION, k], vectors[MEAN, k] = law.parameters[2, k] ** -2.0, dot(ahead.spreads[k], weights)
    ahead.seen[0] = what_to_see(ahead, target, t)
    if ahead.seen[0] == NOTHING:
        clear(population.look)
        return
    for first in range(0, weights.size, TILE):
        climb(ahead, population.look, population.rates, target, t, first)
    keep_some(population.look, weights)


@kernel
def propose(ahead, population, target, t, key):
    """Move the particles from ``cloud`` to ``other`` with the sample in view, log f - log q in ``increments``."""
    if ahead.seen[0] == NOTHING:
        move(population.other, population.cloud, population.ancestors, target.law, key)
        clear(population.increments)
    else:
        draw(population.other, population.increments, ahead, population.ancestors, key)


@kernel
def propose_first(ahead, population, target, t, key):
    """Draw the ``cloud`` of the first time with the sample in view, log f - log q in ``increments``."""
    law, vectors = target.law, ahead.vectors
    for k in range(vectors.shape[1]):
        vectors[PRECISION, k], vectors[MEAN, k] = law.initial[1, k] ** -2.0, law.initial[0, k]
    ahead.seen[0] = what_to_see(ahead, target, t)
    if ahead.seen[0] == NOTHING:
        draw_first(population.cloud, law, key)
        clear(population.increments)
        return
    for k in range(vectors.shape[1]):
        for i in range(population.look.size):
            ahead.points[k, i], ahead.spreads[k, i] = vectors[CENTRE, k], vectors[MEAN, k]
    draw(population.cloud, population.increments, ahead, population.ancestors, key)


@kernel
def clear(row):
    """Overwrite with 0."""
    for i in range(row.size):
        row[i] = 0.0


@spliced
def what_to_see(ahead, target, t):
    """NOTHING at a missing time or an impossible sample, else BY_COUNTS or BY_QUADRATIC, with its expansion."""
    counts, total, weight = target.counts, 0.0, 0.0
    row = t if counts.weight_sums.shape[0] > 1 else 0
    for k in range(counts.weight_sums.shape[1]):
        weight += counts.weight_sums[row, k]
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        total += counts.values[c]
    if weight + total == 0.0 or not set_expansion(ahead, target, t):
        return NOTHING
    return BY_COUNTS if total < FEW_COUNTS * target.W.shape[1] else BY_QUADRATIC


@in_lanes
def set_means(means, z, parameters):
    """Overwrite means (K, N) with those of log h, given log h at the time before."""
    for k in range(z.shape[0]):
        mean, persistence = parameters[0, k], parameters[1, k]
        back = mean - persistence * mean
        for i in range(z.shape[1]):
            means[k, i] = back + persistence * z[k, i]


@kernel
def keep_some(look, weights):
    """Mix the looks with their mean: no ancestor's weight is divided by much less than it is worth on average."""
    peak, mean = -math.inf, 0.0
    for i in range(look.size):
        look[i] = look[i] if look[i] > -math.inf else -math.inf
        peak = max(peak, look[i])
    if not -math.inf < peak < math.inf:
        clear(look)
        return
    for i in range(look.size):
        look[i] = math.exp(look[i] - peak)
        mean += weights[i] * look[i]
    for i in range(look.size):
        look[i] = math.log((1.0 - OWN_SHARE) * look[i] + OWN_SHARE * mean) if mean > 0.0 else 0.0


@spliced
def draw(new, increments, ahead, ancestors, key):
    """Overwrite the cloud ``new`` with draws around the ancestors' modes, and increments with log f - log q."""
    for first in range(0, ancestors.size, TILE):
        last = min(first + TILE, ancestors.size)
        log_ratio = increments[first:last]
        gather(ahead, ancestors[first:last])
        set_normals(ahead.tiles[ROOM], first, last, key)
        displace(log_ratio, ahead)
        for i in range(log_ratio.size):
            if uniform(fold(key, new.h.shape[0]), first + i) < OWN_SHARE:
                put_own_draw(ahead, i)
                tile = ahead.tiles[:, :, i]
                log_ratio[i] = log_ratio_at(tile[Z], tile[M], tile[V], ahead, tile[STEP])
            log_ratio[i] = increment_of(log_ratio[i])
        copy_columns(new.aux, first, ahead.tiles[Z], 0, log_ratio.size)
    set_activations(new)


@kernel
def gather(ahead, ancestors):
    """Overwrite V and M with those of the ancestors."""
    for k in range(ahead.points.shape[0]):
        for i in range(ancestors.size):
            ahead.tiles[V, k, i] = ahead.points[k, ancestors[i]]
            ahead.tiles[M, k, i] = ahead.spreads[k, ancestors[i]]


@kernel
def set_normals(out, first, last, key):
    """Overwrite out with standard normals of the particles from ``first`` to ``last``."""
    for k in range(out.shape[0]):
        stream = fold(key, k)
        for i in range(first, last):
            out[k, i - first] = draw_normal(fold(stream, i))


@in_lanes
def displace(log_ratio, ahead):
    """Overwrite Z with log h at V + R ROOM, and log_ratio with log q - log f there."""
    tiles, vectors, n = ahead.tiles, ahead.vectors, log_ratio.size
    rank = vectors.shape[1]
    multiply_upper(tiles[STEP], ahead.shared[2 * rank :], tiles[ROOM], n)
    for k in range(rank):
        for i in range(n):
            tiles[STEP, k, i] += tiles[V, k, i]
    set_softplus(tiles[S], tiles[RISE], tiles[STEP], n)
    for i in range(n):
        log_ratio[i] = 0.0
    for k in range(rank):
        v, m, s, z, normal = tiles[STEP, k], tiles[M, k], tiles[S, k], tiles[Z, k], tiles[ROOM, k]
        log_scale, precision = vectors[LOG_SCALE, k], vectors[PRECISION, k]
        narrower = log_or_never(ahead.shared[rank + k, k]) - 0.5 * log_or_never(precision)
        for i in range(n):
            log_s = fast_log(s[i])
            z[i] = log_s + log_scale
            away = z[i] - m[i]
            bend = 0.5 * (precision * away * away - normal[i] * normal[i])
            log_ratio[i] += narrower + bend - (v[i] - s[i] - log_s)


@kernel
def put_own_draw(ahead, i):
    """Overwrite Z of particle i of the tile with a draw of the chain's own law."""
    for k in range(ahead.vectors.shape[1]):
        scale = 1.0 / math.sqrt(ahead.vectors[PRECISION, k])
        ahead.tiles[Z, k, i] = ahead.tiles[M, k, i] + scale * ahead.tiles[ROOM, k, i]


@kernel
def log_ratio_at(z, m, v, ahead, workspace):
    """log q - log f of one particle's log h (K,), without the share of the chain's own law; workspace (K,) is lost."""
    rank, total = z.size, 0.0
    for k in range(rank):
        away, precision = z[k] - m[k], ahead.vectors[PRECISION, k]
        s = math.exp(min(max(z[k] - ahead.vectors[LOG_SCALE, k], -600.0), 600.0))
        rise = -math.expm1(-s)
        workspace[k] = s + math.log(rise) - v[k]
        total += 0.5 * precision * away * away - math.log(rise / s)
        total += math.log(ahead.shared[rank + k, k]) - 0.5 * math.log(precision)
    for j in range(rank):
        normal = 0.0
        for k in range(j, rank):
            normal += ahead.shared[rank + k, j] * workspace[k]
        total -= 0.5 * normal * normal
    return total


@kernel
def increment_of(log_ratio):
    """log f - log q, with the share of the chain's own law."""
    return -math.log(OWN_SHARE + (1.0 - OWN_SHARE) * math.exp(min(log_ratio, 700.0)))


@kernel
def increment_given(ahead, new, i, ancestor):
    """log f - log q of particle i of ``new``, however it was chosen, had it been proposed from this ancestor."""
    if ahead.seen[0] == NOTHING:
        return 0.0
    workspace = ahead.tiles[STEP, :, 0]
    log_ratio = log_ratio_at(new.aux[:, i], ahead.spreads[:, ancestor], ahead.points[:, ancestor], ahead, workspace)
    return increment_of(log_ratio)
