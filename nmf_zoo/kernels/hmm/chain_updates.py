"""The M-step of a chain's parameters, from sums over its transitions: cheap enough for every sample of a stream.

Each unknown is one entry e of a list, and ``group`` says which entry serves which component in which role: tying is
sharing an entry. A binary chain's p and q, and the alpha of a unit chain, are shares of moves::

    v_e = (stays_e + a - 1) / (stays_e + a - 1 + leaves_e + b - 1)        summed over all that entry e serves

A log-normal chain is a regression of z' = log h_t on z = log h_{t-1}, with the first time if its law is stationary.
Where mean, persistence and scale are tied alike the regression has a closed form (:func:`regress`); the others follow
from it, or improve on what there is, by :func:`sweep`: the best mean given the rest, the best persistence, the best
scale, none of which can lower the expected log-density (expectation conditional maximisation; Meng, Rubin 1993). Each
of the three is one-dimensional with a single peak: closed forms without priors, else the root of a falling slope.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import kernel

KNOWN = -1  # in ``group``: nothing to update
EDGE = 1e-10  # how near probabilities come to 0 and 1
NEWTON_STEPS = 80  # or halvings of the bracket; most roots take three or four
CLOSE = 1e-8  # a Newton step so short lands within rounding
DOWN, STAYS = 2, 3  # among the transitions of a binary chain: 0->0, 0->1, 1->0, 1->1


class ChainRules(NamedTuple):
    """What becomes of a chain's parameters (3, K): p, q; alpha; mean, persistence, scale. E entries are unknown.

    Attributes
    ----------
    group : (3, K) int64, the entry that serves a parameter, or KNOWN
    bounds : (E, 2) where it may lie
    priors : (E, 6) the numbers a, b, c, d, e, f of what its prior adds to the log-density: of a probability
        a log v + b log(1 - v), of a mean - e/2 (v - f)^2, of a persistence both, and of a scale
        a log v - b / v - c v - d/2 v^2 - e/2 (log v - f)^2
    joint : 1 where mean and persistence have a closed form together
    sums : (E, 2) scratch
    """

    group: Any
    bounds: Any
    priors: Any
    joint: int
    sums: Any


@kernel
def update_shares(parameters, pairs, rules, weight):
    """Overwrite the unknown probabilities: p and q from pairs (K, 4), or alpha from pairs (K, 2), towards and away.

    ``weight``: of the priors, 1 where the pairs are sums over all samples, 1 / n where they are means over n.
    """
    rank, n_roles = pairs.shape[0], pairs.shape[1] // 2
    sums = rules.sums
    for e in range(sums.shape[0]):
        sums[e, 0], sums[e, 1] = weight * rules.priors[e, 0], weight * rules.priors[e, 1]
    for role in range(n_roles):
        stays, leaves = (STAYS, DOWN) if role == 1 else (0, 1)
        for k in range(rank):
            e = rules.group[role, k]
            if e != KNOWN:
                sums[e, 0] += pairs[k, stays]
                sums[e, 1] += pairs[k, leaves]
    for role in range(n_roles):
        for k in range(rank):
            e = rules.group[role, k]
            if e != KNOWN and sums[e, 0] + sums[e, 1] > 0.0:
                share = sums[e, 0] / (sums[e, 0] + sums[e, 1])
                parameters[role, k] = min(max(share, rules.bounds[e, 0]), rules.bounds[e, 1])


@kernel
def update_regression(parameters, pairs, transitions, first, rules, weight, sweeps):
    """Overwrite unknown means, persistences and scales; returns the largest move of the last sweep.

    ``pairs`` (K, 5) sums of z, z', z z, z z', z' z' over ``transitions`` (a number, or their weight); ``first`` (K, 3)
    (1, z, z z) of the first time where its law is stationary, zeros where it says nothing of these parameters.
    """
    if rules.joint == 1 and first[0, 0] == 0.0:
        regress(parameters, pairs, transitions, rules)
    moved = 0.0
    for _ in range(sweeps):
        moved = sweep(parameters, pairs, transitions, first, rules, weight)
        if moved < 1e-13:
            break
    return moved


@kernel
def regress(parameters, pairs, transitions, rules):
    """Overwrite mean and persistence with those of the regressions of z' on z, one for each entry of the mean."""
    rank = pairs.shape[0]
    for k in range(rank):
        e = rules.group[0, k]
        n, z, after, squares, products, is_first = 0.0, 0.0, 0.0, 0.0, 0.0, True
        for j in range(rank):
            if rules.group[0, j] == e:
                is_first = is_first and j >= k
                n += transitions
                z, after = z + pairs[j, 0], after + pairs[j, 1]
                squares, products = squares + pairs[j, 2], products + pairs[j, 3]
        spread = squares - z * z / n
        if not is_first or not spread > 1e-12 * squares:
            continue
        low, high = rules.bounds[rules.group[1, k], 0], rules.bounds[rules.group[1, k], 1]
        slope = min(max((products - z * after / n) / spread, low), high)
        mean = min(max((after - slope * z) / (n * (1.0 - slope)), rules.bounds[e, 0]), rules.bounds[e, 1])
        for j in range(rank):
            if rules.group[0, j] == e:
                parameters[0, j], parameters[1, j] = mean, slope


@kernel
def sweep(parameters, pairs, transitions, first, rules, weight):
    """The best mean, persistence and scale, each given the others; returns the largest move."""
    moved = update_means(parameters, pairs, transitions, first, rules, weight)
    moved = max(moved, update_persistences(parameters, pairs, transitions, first, rules, weight))
    return max(moved, update_scales(parameters, pairs, transitions, first, rules, weight))


@kernel
def update_means(parameters, pairs, transitions, first, rules, weight):
    """Overwrite unknown means: each is a weighted average; returns the largest move."""
    sums, group = rules.sums, rules.group[0]
    start_sums(sums, 0.0)
    for k in range(group.size):
        if group[k] != KNOWN:
            phi, precision = parameters[1, k], 1.0 / (parameters[2, k] * parameters[2, k])
            numerator = (1.0 - phi) * (pairs[k, 1] - phi * pairs[k, 0]) + (1.0 - phi * phi) * first[k, 1]
            sums[group[k], 0] += precision * numerator
            sums[group[k], 1] += precision * (transitions * (1.0 - phi) ** 2 + (1.0 - phi * phi) * first[k, 0])
    for e in range(sums.shape[0]):
        numerator = sums[e, 0] + weight * rules.priors[e, 4] * rules.priors[e, 5]
        denominator = sums[e, 1] + weight * rules.priors[e, 4]
        sums[e, 0], sums[e, 1] = min(max(numerator / denominator, rules.bounds[e, 0]), rules.bounds[e, 1]), denominator
    return take(parameters[0], sums, group)


@kernel
def start_sums(sums, value):
    for e in range(sums.shape[0]):
        sums[e, 0], sums[e, 1] = value, value


@kernel
def take(parameter, found, group):
    """Overwrite a parameter (K,) with found[:, 0] where found[:, 1] > 0; returns the largest move."""
    moved = 0.0
    for k in range(group.size):
        if group[k] != KNOWN and found[group[k], 1] > 0.0:
            value = found[group[k], 0]
            moved = max(moved, abs(value - parameter[k]))
            parameter[k] = value
    return moved


@kernel
def update_persistences(parameters, pairs, transitions, first, rules, weight):
    """Overwrite unknown persistences; returns the largest move.

    The slope in phi is A - B phi, A = sum (z - m)(z' - m) / s^2, B = sum (z - m)^2 / s^2; a stationary first time takes
    (z_1 - m)^2 / s^2 off B and phi / (1 - phi^2) off the slope: that is its 1/2 log(1 - phi^2).
    """
    sums, group = rules.sums, rules.group[1]
    start_sums(sums, 0.0)
    for k in range(group.size):
        if group[k] != KNOWN:
            m, precision = parameters[0, k], 1.0 / (parameters[2, k] * parameters[2, k])
            both = pairs[k, 3] - m * (pairs[k, 0] + pairs[k, 1]) + transitions * m * m
            alone = pairs[k, 2] - 2.0 * m * pairs[k, 0] + transitions * m * m
            beginning = first[k, 2] - 2.0 * m * first[k, 1] + first[k, 0] * m * m
            sums[group[k], 0] += precision * both
            sums[group[k], 1] += precision * (alone - beginning)
    for e in range(sums.shape[0]):
        if sums[e, 1] == 0.0:
            continue  # an entry of another role
        times = 0.0
        for k in range(group.size):
            times += first[k, 0] if group[k] == e else 0.0
        numerator, denominator, own = sums[e, 0], sums[e, 1], rules.priors[e]
        numerator, denominator = numerator + weight * own[4] * own[5], denominator + weight * own[4]
        found = best_persistence(numerator, denominator, times, weight * own[0], weight * own[1], rules.bounds[e])
        sums[e, 0], sums[e, 1] = found, 1.0 if denominator > 0.0 else 0.0
    return take(parameters[1], sums, group)


@kernel
def best_persistence(numerator, denominator, times, log_up, log_down, bounds):
    """Where a v - b v^2 / 2 + times / 2 log(1 - v^2) + log_up log v + log_down log(1 - v) is highest.

    a and b are numerator and denominator.
    """
    low, high = bounds[0], bounds[1]
    v = min(max(numerator / denominator, low), high)
    if times == 0.0 and log_up == 0.0 and log_down == 0.0:
        return v
    for _ in range(NEWTON_STEPS):
        rest = 1.0 - v * v
        slope = numerator - denominator * v - times * v / rest
        bend = -denominator - times * (1.0 + v * v) / (rest * rest)
        if log_up != 0.0:
            slope, bend = slope + log_up / v, bend - log_up / (v * v)
        slope, bend = slope - log_down / (1.0 - v), bend - log_down / ((1.0 - v) * (1.0 - v))
        low, high = v if slope > 0.0 else low, v if slope < 0.0 else high
        step = -slope / bend
        if abs(step) <= CLOSE:
            return min(max(v + step, low), high)
        v = v + step if low < v + step < high else 0.5 * (low + high)
    return v


@kernel
def update_scales(parameters, pairs, transitions, first, rules, weight):
    """Overwrite unknown scales from the squares that mean and persistence leave; returns the largest move."""
    sums, group = rules.sums, rules.group[2]
    start_sums(sums, 0.0)
    for k in range(group.size):
        if group[k] != KNOWN:
            sums[group[k], 0] += squares_left(parameters, pairs, transitions, first, k)
            sums[group[k], 1] += transitions + first[k, 0]
    for e in range(sums.shape[0]):
        if sums[e, 1] > 0.0:
            sums[e, 0] = best_scale(max(sums[e, 0], 0.0), sums[e, 1], rules.priors[e], weight, rules.bounds[e])
    return take(parameters[2], sums, group)


@kernel
def squares_left(parameters, pairs, transitions, first, k):
    """sum (z' - m - phi (z - m))^2 of component k, with (1 - phi^2) (z_1 - m)^2 of a stationary first time."""
    m, phi = parameters[0, k], parameters[1, k]
    c = m * (1.0 - phi)
    total = pairs[k, 4] - 2.0 * phi * pairs[k, 3] + phi * phi * pairs[k, 2]
    total += transitions * c * c - 2.0 * c * (pairs[k, 1] - phi * pairs[k, 0])
    beginning = first[k, 2] - 2.0 * m * first[k, 1] + first[k, 0] * m * m
    return total + (1.0 - phi * phi) * beginning


@kernel
def best_scale(squares, n, own, weight, bounds):
    """Where -n log v - squares / (2 v^2) and the prior's part are highest: the root of a slope that falls in log v."""
    low, high = math.log(bounds[0]), math.log(bounds[1])
    plain = 0.5 * math.log(squares / n) if squares > 0.0 and n > 0.0 else low
    u = min(max(plain, low), high)
    if own[0] == 0.0 and own[1] == 0.0 and own[2] == 0.0 and own[3] == 0.0 and own[4] == 0.0:
        return math.exp(u)
    for _ in range(NEWTON_STEPS):
        v = math.exp(u)
        below, above = squares / (v * v), weight * own[3] * v * v
        inverse, linear = weight * own[1] / v, weight * own[2] * v
        slope = below - n + weight * own[0] + inverse - linear - above - weight * own[4] * (u - own[5])
        bend = -2.0 * below - inverse - linear - 2.0 * above - weight * own[4]
        low, high = u if slope > 0.0 else low, u if slope < 0.0 else high
        step = -slope / bend
        if abs(step) <= CLOSE:
            return math.exp(min(max(u + step, low), high))
        u = u + step if low < u + step < high else 0.5 * (low + high)
    return math.exp(u)
