"""Gibbs chains of the activations with W given, sample by sample (Filstroff 2018, eq. 38-40).

Given W the samples are independent. So a sample runs all its sweeps in one go, while its counts and its rows of W stay
in cache, and threads meet once per E-step instead of once per sweep. Who emitted a unit is drawn as in
:mod:`nmf_zoo.kernels.counts.allocation`, in counts of "component k or later".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.counts.allocation import count_at_most, plus, sums_before
from nmf_zoo.kernels.numerics.arrays import copy_row
from nmf_zoo.kernels.numerics.special import digamma_and_log_gamma
from nmf_zoo.kernels.random.counts import SMALL_TOTAL, SPLIT, allocate
from nmf_zoo.kernels.random.draws import draw_row
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.lanes import Padded, add_scaled, load, nothing, store, tile_lanes, width_for
from nmf_zoo.kernels.simd.unowned_views import borrowed

SOURCES, ACTIVATIONS = 0, 1  # children of the stream of one sweep of one sample


class MCEMPlan(NamedTuple):
    """How to run and what to gather from the sweeps after the first ``burn_in``.

    width : as of :class:`nmf_zoo.kernels.simd.lanes.Padded`, with a lane for each component, and one for a background
    expects : sources by E[C | X, W, h] instead of drawn counts
    conditional : h and log h by their moments given C instead of draws
    """

    width: tuple[int, ...]
    sweeps: int
    burn_in: int
    expects: bool
    conditional: bool


class Chains(NamedTuple):
    """One chain per sample, and the means over its kept sweeps.

    activations : (N, K) where the chains are, overwritten
    shape, rate : (N, K) of the gamma given no counts, and given the exposure
    drawn_shape : (N, K) scratch: shape plus the counts of the last sweep
    mean, log : (N, K) of h and of log h; ``log`` (0, 0) when it is not wanted
    centre : (N, K) points at which the posterior's density is wanted
    density : (N, 2) logarithm of the kept sweeps' mean of p(centre | C), and that mean's relative variance
    """

    activations: Any
    shape: Any
    rate: Any
    drawn_shape: Any
    mean: Any
    log: Any
    centre: Any
    density: Any


class MCEMWorkspace(NamedTuple):
    """Scratch for one chunk, rows padded to whole vectors.

    row : (3, lanes) h; counts of "component k or later", of small cells and of large ones
    W : (cells, lanes) the rows of W that a sample meets; shares : alike, their sums of h / mean or of counts
    weights, cumulative, counts : (sources,) of a large count
    """

    row: Any
    W: Any
    shares: Any
    weights: Any
    cumulative: Any
    counts: Any


def make_plan(layout, rank: int, sweeps: int, burn_in: int, expects: bool, conditional: bool) -> MCEMPlan:
    """A plan for ``rank`` components."""
    return MCEMPlan(_width(layout, rank), sweeps, burn_in, expects, conditional)


def make_workspace(layout, rank: int) -> MCEMWorkspace:
    """Scratch for :func:`run_chains` over the samples of any chunk."""
    sources = rank + 1 if layout.offset.size else rank
    lanes, cells = tile_lanes(Padded(np.empty(0), _width(layout, rank))), int(np.diff(layout.indptr).max(initial=0))
    rows = np.zeros((3, lanes)), np.zeros((cells, lanes)), np.zeros((cells, lanes))
    return MCEMWorkspace(*rows, np.empty(sources), np.empty(sources), np.empty(sources, np.int64))


def _width(layout, rank: int) -> tuple:
    return width_for(rank + 1 if layout.offset.size else rank, np.float64)


@kernel
def run_chains(layout, W, chains, plan, samples, of_features, reached, workspace_and_keys):
    """Run the chains of the samples from ``samples[0]`` to ``samples[1]``.

    ``workspace_and_keys`` : scratch, the key, and the number of the first sample of all, which has that child of it.

    ``layout`` is compressed along the samples. Adds the sums of sources over samples and kept sweeps to ``of_features``
    (F, K), and to ``reached`` (K, counts or 0) how often a component of a sample had each count. Returns the number
    of cells whose mean was 0 or not finite, where no allocation exists.
    """
    workspace, key, of_first = workspace_and_keys
    rank, failures = W.shape[1], 0
    for n in range(samples[0], samples[1]):
        first, last = layout.indptr[n], layout.indptr[n + 1]
        for c in range(first, last):
            copy_row(workspace.W[c - first], W[layout.indices[c]])
        workspace.shares[: last - first] = 0.0
        failures += _run_chain(layout, chains, plan, n, reached, workspace, (key, of_first + n))
        for c in range(first, last):
            f, shares = layout.indices[c], workspace.shares[c - first]
            for k in range(rank):
                if plan.expects:
                    of_features[f, k] += shares[k] * W[f, k]
                else:
                    of_features[f, k] += shares[k] - (shares[k + 1] if k + 1 < shares.size else 0.0)
    return failures


@kernel
def _run_chain(layout, chains, plan, n, reached, workspace, key_and_number):
    """All sweeps of one sample, whose stream is the child of this number."""
    key, number = fold(key_and_number[0], key_and_number[1]), key_and_number[1]
    rank, failures, kept = chains.activations.shape[1], 0, plan.sweeps - plan.burn_in
    chains.mean[n] = 0.0
    if chains.log.size > 0:
        chains.log[n] = 0.0
    level, total, squares = -np.inf, 0.0, 0.0
    for sweep in range(plan.sweeps):
        sweep_key, keeps = fold(key, sweep), sweep >= plan.burn_in
        copy_row(workspace.row[0], chains.activations[n])
        failures += _allocate_sample(layout, n, rank, plan, keeps, workspace, fold(sweep_key, SOURCES))
        for k in range(rank):
            count = workspace.row[1, k] - (workspace.row[1, k + 1] if k + 1 < workspace.row.shape[1] else 0.0)
            chains.drawn_shape[n, k] = chains.shape[n, k] + count
            if keeps and reached.size > 0:
                reached[k, int(count)] += 1.0
        if keeps:
            here = _gather_moments(chains, plan.conditional, n)
            if here > level:
                scale = math.exp(level - here)
                level, total, squares = here, total * scale, squares * scale**2
            total += math.exp(here - level)
            squares += math.exp(2.0 * (here - level))
        row_key = fold(fold(sweep_key, ACTIVATIONS), number)
        draw_row(chains.activations, chains.drawn_shape, chains.rate, n, row_key)
    for k in range(rank):
        chains.mean[n, k] /= kept
        if chains.log.size > 0:
            chains.log[n, k] /= kept
    chains.density[n, 0] = level + math.log(total / kept)
    excess = max(squares / total**2 - 1.0 / kept, 0.0)  # below 0 by rounding where all sweeps gave the same
    chains.density[n, 1] = excess * kept / max(kept - 1.0, 1.0)
    return failures


@kernel
def _allocate_sample(layout, n, rank, plan, keeps, workspace, key):
    """Draw the sources of a sample's counts; row 1 becomes its counts of "component k or later"."""
    row, W, shares = (
        Padded(workspace.row, plan.width),
        Padded(workspace.W, plan.width),
        Padded(workspace.shares, plan.width),
    )
    first, has_offset, failures = layout.indptr[n], layout.offset.size > 0, 0
    workspace.row[2] = 0.0
    h = load(row, 0, 0)
    later = nothing(h)
    for cell in range(first, layout.indptr[n + 1]):
        c, x = cell - first, np.int64(layout.values[cell])
        before, total = sums_before(h, load(W, c, 0))
        total += layout.offset[cell] if has_offset else 0.0
        if not SMALL_TOTAL < total < np.inf:
            failures += 1
            continue
        if keeps and plan.expects:
            store(shares, c, 0, add_scaled(load(shares, c, 0), x / total, h))
        cell_key = fold(key, layout.indices[cell])
        if x > SPLIT * (workspace.weights.size - 1):
            offset = layout.offset[cell] if has_offset else 0.0
            source = (x, offset, rank)
            _allocate_large(source, c, workspace, keeps and not plan.expects, cell_key)
        else:
            counts = nothing(before)
            for unit in range(x):
                counts = count_at_most(counts, before, uniform(cell_key, unit) * total)
            if keeps and not plan.expects:
                store(shares, c, 0, plus(load(shares, c, 0), counts))
            later = plus(later, counts)
    store(row, 1, 0, plus(later, load(row, 2, 0)))
    return failures


@kernel
def _allocate_large(source, c, workspace, keeps, key):
    """One cell (count, offset, rank) by binomials, added to row 2 and, if kept, to its shares."""
    x, offset, rank = source
    for k in range(rank):
        workspace.weights[k] = workspace.row[0, k] * workspace.W[c, k]
    if workspace.weights.size > rank:
        workspace.weights[rank] = offset
    weights, cumulative, counts = (
        borrowed(workspace.weights),
        borrowed(workspace.cumulative),
        borrowed(workspace.counts),
    )
    allocate(x, weights, cumulative, counts, key)
    later = 0
    for k in range(rank - 1, -1, -1):
        later += counts[k]
        workspace.row[2, k] += later
        if keeps:
            workspace.shares[c, k] += later


@kernel
def _gather_moments(chains, conditional, n):
    """Add a kept sweep to the sums; returns log p(centre | C)."""
    level = 0.0
    for k in range(chains.mean.shape[1]):
        shape, rate, point = chains.drawn_shape[n, k], chains.rate[n, k], chains.centre[n, k]
        digamma, log_gamma = digamma_and_log_gamma(shape)
        log_rate, h = math.log(rate), chains.activations[n, k]
        level += shape * log_rate - log_gamma + (shape - 1.0) * math.log(point) - rate * point
        chains.mean[n, k] += shape / rate if conditional else h
        if chains.log.size > 0:
            chains.log[n, k] += digamma - log_rate if conditional else math.log(h)
    return level
