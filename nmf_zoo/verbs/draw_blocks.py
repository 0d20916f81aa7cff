"""``nz.sample(..., data=...)``: chains whose data come in blocks of samples, and need not fit into memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError
from nmf_zoo.inference.registry import over_blocks, resolve_engine
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.results.beginnings import RANDOM
from nmf_zoo.results.block_store import (
    BLOCKS,
    CONSTANTS,
    OfSamples,
    blocks_of_turn,
    in_memory,
    note_of_offsets,
    on_disk,
)
from nmf_zoo.results.checkpoints import checkpointed, ending
from nmf_zoo.results.component_order import GROUP, result_order
from nmf_zoo.results.groups import axes_of
from nmf_zoo.results.means import moments
from nmf_zoo.results.modes import WEIGHS_MODES
from nmf_zoo.results.run_attributes import model_attributes, run_attributes
from nmf_zoo.results.trace_storage import MEAN, MOMENTS, SD, chain_groups, make_traces
from nmf_zoo.runtime.arguments import check_keep, check_memory, check_stopping, variable_shapes
from nmf_zoo.runtime.block_arrays import RESULT
from nmf_zoo.runtime.driver import SampleRun, run_chains
from nmf_zoo.runtime.saved_blocks import BlockCheckpoint
from nmf_zoo.search.options import AUTO
from nmf_zoo.structure import Array, Factorisation
from nmf_zoo.verbs.block_source import as_source
from nmf_zoo.verbs.fit_blocks import (
    arrays_of,
    as_facts,
    check_store,
    cluster_of,
    constants_of,
    data_of,
    of_samples,
    sums_of_blocks,
    surveyed,
    with_arrays,
    with_offsets,
)
from nmf_zoo.verbs.starts import beginnings


def draw_blocks(
    declared: Factorisation,
    data: Any,
    engine: Any,
    run: SampleRun,
    *,
    chains: int,
    initvals: Any,
    start: Any,
    entropy: Any,
    store: Path | str | None,
    kept_samples: Any,
    constants: Mapping[str, Array],
    checkpoint: Path | str | None = None,
    is_seeded: bool = True,
    executor: Any = None,
) -> Result:
    """The result, moments of H in memory or left in ``store``; ``declared`` has no data."""
    chosen, options = resolve_engine(engine, "sample", declared)
    over = over_blocks(chosen, options)
    check_keep(run.keep, None, over, False)
    check_stopping(run.on_step, run.max_seconds, over)
    _check_start(start)
    source, began = as_source(data), time.perf_counter()
    place = None if store is None else check_store(store, checkpoint is not None).absolute()
    cluster = cluster_of(executor, source, over, store, checkpoint)
    kept = _kept_samples(kept_samples, int(source.shape[1]), run)
    with_digests = checkpoint is not None
    structure, starts = surveyed(declared, source, over, options, initvals, with_digests, chains)
    structure = replace(structure, data=replace(data_of(structure), chosen=kept))
    _check_memory(structure, run, chains)
    told = checkpoint, over, options, as_facts(structure), run, starts, entropy, is_seeded
    folders = [str(chain) for chain in range(chains)]
    with checkpointed(*told) as saved, arrays_of(place, saved, folders) as arrays, cluster or nullcontext():
        entropy = saved.entropy if saved else entropy
        alone = [with_arrays(structure, own, cluster) for own in arrays]
        parts = BlockCheckpoint(saved, arrays) if saved else None
        with make_traces(structure, run, chains, None, {}, None) as traces:
            made, early = run_chains(over, structure, options, run, seed_key(entropy), starts, traces, parts, alone)
            labelled = {} if kept is None else {"labelled": _of_kept(structure, kept)}
            groups = chain_groups(structure, traces, ending(early, saved), **labelled)
        groups[CONSTANTS] = constants_of(structure, constants)
        sweeps = [chain.left["draws"] for chain in made]
        groups[MOMENTS] = _moments(structure, groups).assign(sweeps=("chain", sweeps))
        of_chains = [arrays[chain.number] for chain in made]
        order = result_order(_in_small(structure, groups[MOMENTS], of_chains), structure)
        groups |= {} if order is None else {GROUP: order}
        status = ending(early, saved) or "complete"
        attrs = run_attributes(over.name, options, entropy, time.perf_counter() - began, status)
        attrs |= {"thin": run.thin, "tune": run.tune, BLOCKS: data_of(structure).n_blocks}
        attrs[WEIGHS_MODES] = "no"  # which takes all of X
        attrs |= beginnings(initvals, starts, None, over, structure)[0] | model_attributes(with_offsets(structure))
        attrs |= note_of_offsets(data_of(structure).offsets, place is not None)
        variables = [_of_samples(structure, of_chains, f"{structure.H.name}{word}") for word in (MEAN, SD)]
        if place is None:
            return in_memory(structure, groups, variables, attrs)
        return on_disk(place, structure, groups, variables, attrs, int(np.diff(data_of(structure).bounds).max()))


def _check_start(start: Any) -> None:
    if not (isinstance(start, str) and start in (AUTO, RANDOM)):
        do = 'give W of a fit that searched, initvals=nz.fit(engine="vb", data=..., search=nz.Search())'
        raise InputError("start", f"{start!r} with data=", f"{AUTO!r} or {RANDOM!r}", do)


def _kept_samples(given: Any, n_samples: int, run: SampleRun) -> Array | None:
    """The numbers of samples whose draws of H are kept."""
    if given is None:
        return None
    found = np.asarray(given)
    is_list = found.ndim == 1 and found.size > 0 and found.dtype.kind in "iu" and len(np.unique(found)) == found.size
    if not is_list or found.min() < 0 or found.max() >= n_samples:
        got, do = " ".join(repr(given).split())[:60], "e.g. kept_samples=[0, 10]"
        raise InputError("kept_samples", got, f"different integers from 0 to {n_samples - 1}, or None", do)
    if run.keep == "moments":
        raise InputError("kept_samples", "them with keep='moments'", "keep='draws'", "leave one of them out")
    return found.astype(np.int64)


def _of_kept(structure: Factorisation, kept: Array) -> Factorisation:
    return of_samples(structure, len(kept), np.asarray(axes_of(structure)[1].labels)[kept])


def _check_memory(structure: Factorisation, run: SampleRun, chains: int) -> None:
    """The draws that are kept, of all but H, fit into this machine's memory."""
    names = [name for name in variable_shapes(structure) if name not in structure.H.shapes]
    draws = (run.kept_draws + run.kept_warmup) * chains if run.keep == "draws" else chains
    if names:
        check_memory(structure, draws, names, "raise thin", 1)


def _moments(structure: Factorisation, groups: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """posterior_moments of all but H."""
    if MOMENTS in groups:
        return groups[MOMENTS]
    others = groups["posterior"].drop_vars(structure.H.name, errors="ignore")
    if others.data_vars:
        return moments(_compat.inference_data({"posterior": others}, {}))
    stats = groups["sample_stats"]
    return xr.Dataset({"draws": xr.full_like(stats["chain"], stats.sizes["draw"])})


def _in_small(structure: Factorisation, found: xr.Dataset, arrays: Sequence[Any]) -> Result:
    """The moments with the sums of H over each block in place of its samples, which have the same order."""
    name = f"{structure.H.name}{MEAN}"
    sums = [sums_of_blocks(structure, own, name) for own in arrays]
    one = OfSamples(MOMENTS, name, ("chain",), [partial(iter, [(0, own)]) for own in sums])
    of_H = one.in_memory(of_samples(structure, len(sums[0])))
    return _compat.inference_data({MOMENTS: xr.merge([found, of_H])}, {})


def _of_samples(structure: Factorisation, arrays: Sequence[Any], name: str) -> OfSamples:
    bounds = data_of(structure).bounds
    chains = [partial(blocks_of_turn, bounds, own, RESULT, name) for own in arrays]
    return OfSamples(MOMENTS, name, ("chain",), chains)
