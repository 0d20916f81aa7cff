"""Proposals that look at the sample, for particles of log-normal chains.

Given its past m_i, a particle's target is N(z; m_i, 1 / Q) g(x_t | e^z), z = log h. `log_normal_mode` gives
coordinates h = c softplus(v) in which this is nearly Gaussian, and one curvature L L' in v for all particles;
`log_normal_climb` finds each particle's own mode V_i there. Then::

    look_i = log-density of v at V_i, relative to the others: Laplace's approximation of log p(x_t | m_i)
    q_i    = e N(z; m_i, 1 / Q) + (1 - e) N(v; V_i, (L L')^-1) dv / dz

The share e of the chain's own law bounds the weights by 1 / e, however far the approximation is off. Weights are
exact: g is the sample's own, never the quadratic.

Everything is done for TILE particles at a time, whose rows stay in the nearest cache.
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.basis_states import dot, in_lanes, log_or_never
from nmf_zoo.kernels.draws import draw_normal
from nmf_zoo.kernels.particles.ahead import TILE, in_place
from nmf_zoo.kernels.particles.log_normal import draw_first, move, set_activations
from nmf_zoo.kernels.particles.log_normal_climb import (
    BY_COUNTS,
    BY_QUADRATIC,
    NOTHING,
    RISE,
    ROOM,
    STEP,
    M,
    S,
    V,
    Z,
    climb,
    copy_columns,
    set_softplus,
)
from nmf_zoo.kernels.particles.log_normal_mode import CENTRE, LOG_SCALE, MEAN, PRECISION, set_expansion
from nmf_zoo.kernels.particles.tile_products import multiply_upper
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import fold, kernel, uniform

FEW_COUNTS = 16  # for each component: with fewer the sample's part is too far from its quadratic
OWN_SHARE = 0.01  # of proposals from the chain's own law, and of the looks' mean in each look


@in_place
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


@in_place
def propose(ahead, population, target, t, key):
    """Move the particles from ``cloud`` to ``other`` with the sample in view, log f - log q in ``increments``."""
    if ahead.seen[0] == NOTHING:
        move(population.other, population.cloud, population.ancestors, target.law, key)
        clear(population.increments)
    else:
        draw(population.other, population.increments, ahead, population.ancestors, key)


@in_place
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


@in_place
def what_to_see(ahead, target, t):
    """NOTHING at a missing time or an impossible sample, else BY_COUNTS or BY_QUADRATIC, with its expansion."""
    counts, total, weight = target.counts, 0.0, 0.0
    row = t if counts.drag.shape[0] > 1 else 0
    for k in range(counts.drag.shape[1]):
        weight += counts.drag[row, k]
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


@in_place
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
def log_ratio_at(z, m, v, ahead, room):
    """log q - log f of one particle's log h (K,), without the share of the chain's own law; room (K,) is lost."""
    rank, total = z.size, 0.0
    for k in range(rank):
        away, precision = z[k] - m[k], ahead.vectors[PRECISION, k]
        s = math.exp(min(max(z[k] - ahead.vectors[LOG_SCALE, k], -600.0), 600.0))
        rise = -math.expm1(-s)
        room[k] = s + math.log(rise) - v[k]
        total += 0.5 * precision * away * away - math.log(rise / s)
        total += math.log(ahead.shared[rank + k, k]) - 0.5 * math.log(precision)
    for j in range(rank):
        normal = 0.0
        for k in range(j, rank):
            normal += ahead.shared[rank + k, j] * room[k]
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
    room = ahead.tiles[STEP, :, 0]
    log_ratio = log_ratio_at(new.aux[:, i], ahead.spreads[:, ancestor], ahead.points[:, ancestor], ahead, room)
    return increment_of(log_ratio)
