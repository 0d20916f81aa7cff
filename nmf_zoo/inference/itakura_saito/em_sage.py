"""One iteration of SAGE: the components in turn, activations and then profile, each at the newest of all others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.itakura_saito.spectra import Spectra
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.itakura_saito import PriorTerms
from nmf_zoo.kernels.sage import Change, Component, fill_means, move_component, move_profile, renew_means
from nmf_zoo.structure import Array


class Sage(NamedTuple):
    """What stays the same.

    Attributes
    ----------
    terms : of W's prior (K, F) and of H's (N or 1, K)
    fixed : whether W and H are known
    bounds : of chunks of frames
    """

    spectra: Spectra
    terms: tuple[PriorTerms, PriorTerms]
    fixed: tuple[bool, bool]
    bounds: Array
    workers: Workers


def update_components(sage: Sage, Wt: Array, Ht: Array, largest: Array) -> tuple[Array, Array, float]:
    """(W (K, F), H (N, K), KKT residual of the activations on the way) after each component moved once."""
    spectra, frames = sage.spectra, (sage.bounds[:-1], sage.bounds[1:])
    Wt, before_H, by_component = Wt.copy(), np.array(Ht.T, order="C"), np.array(Ht.T, order="C")
    means, n_seen = np.empty(spectra.power.shape), spectra.n_seen[0]
    sage.workers.map(lambda *rows: fill_means(means, spectra.background, Wt, Ht, *rows), *frames)
    change, residual = None, 0.0
    for k in range(len(Wt)):
        component = _component(sage, Wt[k].copy(), before_H[k], by_component[k], 1.0 / largest[k], k)

        def move(first: int, last: int, component: Component = component, change: Change | None = change):
            sums = np.zeros((3, Wt.shape[1]))
            if change is not None:
                renew_means(means, change, first, last)
            return sums, move_component(spectra, means, component, sums, first, last)

        found = sage.workers.map(move, *frames)
        residual = max(residual, *(worst for _, worst in found))
        if not sage.fixed[0]:
            terms = np.array([part[k] for part in sage.terms[0]])
            move_profile(Wt[k], sum(sums for sums, _ in found), terms, n_seen)
        change = Change(before_H[k], component.w, by_component[k], Wt[k])
    return Wt, np.array(by_component.T, order="C"), residual


def _component(sage: Sage, w: Array, before: Array, after: Array, height: float, k: int) -> Component:
    power, scale, rate = (np.array(np.broadcast_to(part[:, k], before.shape)) for part in sage.terms[1])
    return Component(w, before, after, power, scale, rate, height, sage.fixed[1])
