"""``nz.fit(..., data=...)``: a fit whose data come in blocks of samples, and need not fit into memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.files import check_place
from nmf_zoo.inference.registry import over_blocks, resolve_engine, verdict
from nmf_zoo.inference.shared.sample_blocks import log_joint_in_blocks
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.results.block_store import OfSamples, blocks_of_turn, in_memory, on_disk
from nmf_zoo.results.groups import LEADING, as_dataset, data_groups, fit_dataset, stats_dataset
from nmf_zoo.results.run_attributes import model_attributes, run_attributes
from nmf_zoo.runtime.arguments import check_initvals
from nmf_zoo.runtime.block_arrays import RESULT, BlockArrays, InMemory, OnDisk
from nmf_zoo.runtime.driver import STATUS, FitRun, Solution, run_restarts
from nmf_zoo.runtime.workers import OneBlasThread, Workers
from nmf_zoo.structure import Array, Blocked, Factorisation
from nmf_zoo.verbs.block_source import BlockSource, as_source, blocked, labels_of, survey


def fit_blocks(
    declared: Factorisation,
    data: Any,
    engine: Any,
    run: FitRun,
    *,
    initvals: Any,
    entropy: Any,
    store: Path | str | None,
    constants: Mapping[str, Array],
) -> tuple[Result, Solution]:
    """The result, H in memory or left in ``store``, and how the fit ended; ``declared`` has no data."""
    chosen, options = resolve_engine(engine, "fit", declared)
    over = over_blocks(chosen)
    source, began = as_source(data), time.perf_counter()
    with _arrays_of(store) as arrays:
        structure = _with_data(declared, source, arrays)
        can_run = verdict(structure, over, options)
        if not can_run:
            raise UnsupportedModel(f"engine {over.name!r} can't run this model over data=: {can_run.reason}")
        (start,) = check_initvals(structure, initvals, 1)
        if structure.H.name in start:
            raise InputError("initvals", f"a value of {structure.H.name}", "none: samples come with data=", "drop it")
        structure = replace(structure, data=survey(structure, source, chosen, options))
        (solution,), _ = run_restarts(over, structure, options, run, seed_key(entropy), [start])
        groups, variables = _groups(structure, solution, run, constants)
        attrs = run_attributes(over.name, options, entropy, time.perf_counter() - began, solution.status)
        attrs |= {"max_iter": run.max_iter, "tol": run.tol, "blocks": _data(structure).n_blocks}
        attrs |= model_attributes(declared)
        if store is None:
            return in_memory(structure, groups, variables, attrs), solution
        largest = int(np.diff(_data(structure).bounds).max())
        return on_disk(Path(store), structure, groups, variables, attrs, largest), solution


def _data(structure: Factorisation) -> Blocked:
    return cast(Blocked, structure.data)


def _with_data(declared: Factorisation, source: BlockSource, arrays: BlockArrays) -> Factorisation:
    """The model of all samples of the source, under its labels."""
    if declared.data is not None:
        do = f"declare the model with X=None, shape=({declared.shape[0]}, 1)"
        raise InputError("data", f"data beside those of {declared.likelihood.name}", "one of both", do)
    feature, obs = declared.axes
    labels = labels_of(source, source.shape)
    coords = {dim: own for dim, own in declared.coords.items() if dim != obs}
    if "feature" in labels:
        own = coords.get(feature)
        if (
            own is not None
            and not np.array_equal(own, np.arange(len(own)))
            and not np.array_equal(own, labels["feature"])
        ):
            got, do = (
                f"labels of {feature!r} that differ from the model's",
                "use the same, or declare the model without",
            )
            raise InputError("data.coords", got, "the model's, in its order", do)
        coords[feature] = labels["feature"]
    coords |= {obs: labels["obs"]} if "obs" in labels else {}
    H = replace(declared.H, shape=(declared.rank, int(source.shape[1])))
    return replace(declared, H=H, coords=coords, data=blocked(declared, source, arrays))


@contextmanager
def _arrays_of(store: Path | str | None) -> Iterator[BlockArrays]:
    """In memory, or beside the store, where it is removed in the end."""
    if store is None:
        yield InMemory()
        return
    path = check_place(store, "store")
    if path.suffix != ".zarr" or path.exists():
        got = f"{str(store)!r}, which exists" if path.exists() else repr(str(store))
        raise InputError("store", got, "a new name that ends in .zarr")
    arrays = OnDisk(Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)))
    try:
        yield arrays
    finally:
        arrays.close()


def _groups(
    structure: Factorisation, solution: Solution, run: FitRun, constants: Mapping[str, Array]
) -> tuple[dict[str, Any], list[OfSamples]]:
    """The groups without what has a number per sample, and that."""
    bounds, arrays, name = _data(structure).bounds, _data(structure).arrays, structure.H.name
    W = structure.W.value({own: array[0] for own, array in solution.values.items()})
    with OneBlasThread():
        lp = log_joint_in_blocks(structure, Workers(run.cores), W, RESULT)
    values = {own: array[None] for own, array in solution.values.items()}
    groups = {
        "posterior": as_dataset(structure, values, LEADING),
        "sample_stats": stats_dataset(structure, {"lp": np.array([[lp]])}),
        "fit": fit_dataset(structure, [solution], STATUS),
        "constant_data": data_groups(structure, {}, constants)["constant_data"],
    }
    variables = [OfSamples("posterior", name, LEADING, partial(blocks_of_turn, bounds, arrays, RESULT, name))]
    for own in arrays.names(RESULT):
        if own != name:
            variables.append(OfSamples("fit", own, ("chain",), partial(blocks_of_turn, bounds, arrays, RESULT, own)))
    return groups, variables
