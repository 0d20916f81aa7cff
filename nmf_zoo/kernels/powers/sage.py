"""EM of the composite model, component by component (SAGE; Fevotte, Bertin and Durrieu 2009, algorithm 1).

Given its power p, a cell's component k, with variance v = w_fk h_kn of the mean l, has the posterior power

    V = v + v^2 (p / l^2 - 1 / l),

so that a new h_kn, the mode given V at the old w, needs no V: with numerator and denominator of :mod:`.itakura_saito`,

    sum_f V / w = h F + h^2 (numerator - denominator),    F the number of cells that were seen

and the new w_fk, given the same V at the new h', needs three sums over frames, of h^2/h' p/l^2, h^2/h' / l and h / h'.
Each component sees the means that those before it have left: the means are the one table (N, F) kept between passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.powers.factor_steps import FLOOR, positive_root


class Component(NamedTuple):
    """The component that moves.

    Attributes
    ----------
    w : (F,) its profile; before, after : (N,) its activations, the latter overwritten, or the former where it is fixed
    power, scale, rate : (N,) prior terms of the activations
    is_fixed : its activations are known
    """

    w: np.ndarray
    before: np.ndarray
    after: np.ndarray
    power: np.ndarray
    scale: np.ndarray
    rate: np.ndarray
    is_fixed: bool


class Change(NamedTuple):
    """What the component before did to the means: from before_h before_w to after_h after_w; (N,) and (F,)."""

    before_h: np.ndarray
    before_w: np.ndarray
    after_h: np.ndarray
    after_w: np.ndarray


@kernel
def fill_means(means, background, Wt, Ht, first, last):
    """Overwrite the means of some frames, from Wt (K, F) and Ht (N, K)."""
    for n in range(first, last):
        if background.size > 0:
            means[n] = background[n]
        else:
            means[n] = 0.0
        for k in range(Wt.shape[0]):
            _add(means[n], Wt[k], Ht[n, k])


@kernel
def move_component(spectra, means, component, change, sums, first, last):
    """Bring the means of some frames up to date, then move a component's activations there.

    ``sums`` (3, F) for its profile are added to. Returns the squared slopes in log h there.
    """
    F, squares, masked, seen_by_all = means.shape[1], 0.0, spectra.seen.size > 0, 0.0
    inverse, numerators = np.empty(F), np.empty(F)
    for n in range(first, last):
        _renew(means[n], inverse, change.before_w, change.after_w, change.before_h[n], change.after_h[n])
        n_seen = _hide(inverse, spectra.seen[n]) if masked else float(F)
        _fill_numerators(numerators, inverse, spectra.power[n])
        old, new = component.before[n], component.before[n]
        if not component.is_fixed:
            numerator, denominator = _sums(numerators, inverse, component.w)
            terms = component.power[n], component.scale[n], component.rate[n]
            new, slope = _step(old, numerator, denominator, n_seen, terms)
            squares += slope * slope
        component.after[n] = new
        _add_both(sums[0], sums[1], numerators, inverse, old * old / new)
        if masked:
            _add_seen(sums[2], inverse, old / new)
        else:
            seen_by_all += old / new
    sums[2] += seen_by_all
    return squares


@kernel
def move_profile(w, sums, terms, n_seen):
    """Overwrite a profile (F,) with its mode given the posterior powers; ``terms`` (3, F), n_seen (F,)."""
    for f in range(w.size):
        rest = w[f] * sums[2, f] - w[f] * w[f] * sums[1, f]
        total = terms[1, f] + w[f] * w[f] * sums[0, f] + max(rest, 0.0)
        w[f] = max(positive_root(terms[2, f], n_seen[f] + terms[0, f], total, w[f]), FLOOR)


@kernel
def _step(old, numerator, denominator, n_seen, terms):
    """(the new activation, slope of the objective in the logarithm of the old one)"""
    power, scale, rate = terms
    total = scale + old * old * numerator + max(n_seen * old - old * old * denominator, 0.0)
    new = max(positive_root(rate, n_seen + power, total, old), FLOOR)
    return new, (denominator + rate - numerator) * old - scale / old + power


# -- loops over frequencies, in SIMD lanes ---------------------------------------------------------------------------


@in_lanes
def _add(out, row, x):
    for f in range(out.size):
        out[f] += x * row[f]


@in_lanes
def _add_seen(out, inverse, x):
    for f in range(out.size):
        out[f] += x if inverse[f] > 0.0 else 0.0


@in_lanes
def _add_both(one, other, numerators, inverse, x):
    for f in range(numerators.size):
        one[f] += x * numerators[f]
        other[f] += x * inverse[f]


@in_lanes
def _renew(means, inverse, before, after, h_before, h_after):
    """Exchange the part of a component, and invert. Never less than the new part: what loses most loses its digits."""
    for f in range(means.size):
        part = h_after * after[f]
        renewed = (means[f] - h_before * before[f]) + part
        means[f] = renewed if renewed > part else part
        inverse[f] = 1.0 / means[f]


@in_lanes
def _hide(inverse, seen):
    count = 0
    for f in range(seen.size):
        inverse[f] = inverse[f] if seen[f] else 0.0
        count += 1 if seen[f] else 0
    return float(count)


@in_lanes
def _fill_numerators(numerators, inverse, power):
    for f in range(power.size):
        numerators[f] = power[f] * inverse[f] * inverse[f]


@summing
def _sums(numerators, inverse, w):
    numerator, denominator = 0.0, 0.0
    for f in range(w.size):
        numerator += numerators[f] * w[f]
        denominator += inverse[f] * w[f]
    return numerator, denominator
