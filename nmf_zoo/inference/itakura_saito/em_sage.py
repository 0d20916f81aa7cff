"""One iteration of SAGE: the components in turn, activations and then profile, each at the newest of all others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.itakura_saito.spectra import Spectra
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.itakura_saito import PriorTerms
from nmf_zoo.kernels.sage import Change, Component, fill_means, move_component, move_profile
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


def update_components(sage: Sage, Wt: Array, Ht: Array) -> tuple[Array, Array, float]:
    """(W (K, F), H (N, K), squared slopes of the activations on the way) after each component moved once."""
    spectra, frames = sage.spectra, (sage.bounds[:-1], sage.bounds[1:])
    Wt, before_H, by_component = Wt.copy(), np.array(Ht.T, order="C"), np.array(Ht.T, order="C")
    means, n_seen = np.empty(spectra.power.shape), spectra.n_seen[0]
    sage.workers.map(lambda *rows: fill_means(means, spectra.background, Wt, Ht, *rows), *frames)
    nothing = np.zeros(len(Ht)), np.zeros(Wt.shape[1])
    change, squares = Change(*nothing, *nothing), 0.0
    for k in range(len(Wt)):
        component = _component(sage, Wt[k].copy(), before_H[k], by_component[k], k)

        def move(first: int, last: int, component: Component = component, change: Change = change):
            sums = np.zeros((3, Wt.shape[1]))
            return sums, move_component(spectra, means, component, change, sums, first, last)

        found = sage.workers.map(move, *frames)
        squares += sum(part for _, part in found)
        if not sage.fixed[0]:
            terms = np.array([part[k] for part in sage.terms[0]])
            move_profile(Wt[k], sum(sums for sums, _ in found), terms, n_seen)
        change = Change(before_H[k], component.w, by_component[k], Wt[k])
    return Wt, np.array(by_component.T, order="C"), squares


def _component(sage: Sage, w: Array, before: Array, after: Array, k: int) -> Component:
    power, scale, rate = (np.array(np.broadcast_to(part[:, k], before.shape)) for part in sage.terms[1])
    return Component(w, before, after, power, scale, rate, sage.fixed[1])
