"""Where a stream of a chain begins, and what it keeps of the offsets and of W's prior."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.hmm.update_rules import why_not
from nmf_zoo.inference.multiplicative import FLOOR
from nmf_zoo.inference.start import SPREAD
from nmf_zoo.inference.stream_engine import START, Columns
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Chain, Factorisation, Fixed, Flat, GammaPrior


def shared_offsets(structure: Factorisation) -> tuple[Array, Array] | None:
    """(exposure (F,), background (F,)) of every sample; None where they differ between samples."""
    likelihood, found = structure.likelihood, []
    for array, default in ((likelihood.exposure, 1.0), (likelihood.background, 0.0)):
        full = np.broadcast_to(default if array is None else array, structure.shape)
        if np.any(full != full[:, :1]):
            return None
        found.append(np.array(full[:, 0], dtype=np.float64))
    return found[0], found[1]


def takes_stream(structure: Factorisation) -> Verdict:
    """Counts with offsets that all samples share, W free, gamma or known, and priors of the chain that steps take."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
    if not isinstance(H.prior, Chain):
        return Verdict(f"{H.name or 'H'} is no chain in time: its columns are independent given {W.name}")
    if not isinstance(W.prior, Flat | GammaPrior | Fixed) or W.unknowns:
        return Verdict(f"{W.name} has neither a known gamma prior, nor none, nor a known value")
    if shared_offsets(structure) is None:
        return Verdict(f"{likelihood.name} has an exposure or a background that differs between samples")
    reason = why_not(H.prior)
    return Verdict(reason) if reason else CAN_RUN


def gamma_of(structure: Factorisation) -> tuple[Array, Array]:
    """a - 1 and r of W's gamma prior, (F, K) each; zeros where it has none."""
    if not isinstance(structure.W.prior, GammaPrior):
        return np.zeros(structure.W.shape), np.zeros(structure.W.shape)
    a, r = structure.W.prior.shape_and_rate({})
    return np.array(np.broadcast_to(a - 1.0, structure.W.shape)), np.array(np.broadcast_to(r, structure.W.shape))


def start_weights(
    structure: Factorisation,
    exposure: Array,
    first: Columns,
    typical: Array,
    key: np.uint64,
    start: Mapping[str, Array],
) -> Array:
    """W (F, K): known, given, or random with the mean of the first columns where activations are ``typical``."""
    factor = structure.W
    if isinstance(factor.prior, Fixed):
        return np.array(factor.prior.value, dtype=np.float64, order="C")
    if factor.name in start:
        given = factor.orient(np.asarray(start[factor.name], dtype=np.float64))
        return np.array(np.maximum(given, FLOOR), order="C")
    exposed = np.where(first.complete, exposure.sum(), 0.0).sum()
    listed = np.repeat(~first.complete, np.diff(first.indptr))
    exposed += exposure[first.rows[listed]].sum()
    total = float(np.broadcast_to(typical, (structure.rank, 1)).sum())
    scale = max(first.values.sum(), 1.0) / (exposed if exposed > 0 else 1.0) / total
    out = np.empty(factor.shape)
    shape, rate = (np.broadcast_to(number, factor.shape) for number in (SPREAD, SPREAD / scale))
    draw_factor(out, shape, rate, 0, len(out), child(key, START))
    return out
