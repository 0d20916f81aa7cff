"""``nz.fit(..., data=...)``: a fit whose data come in blocks of samples, and need not fit into memory."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.files import check_place
from nmf_zoo.inference.registry import over_blocks, resolve_engine, verdict
from nmf_zoo.inference.shared.sample_blocks import BlockProblem, log_joint_in_blocks
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.prediction.misfit import REPLICATES, Products, coverage_of_blocks
from nmf_zoo.results.block_store import (
    BLOCKS,
    CONSTANTS,
    OfSamples,
    blocks_of_turn,
    in_memory,
    kept_offsets,
    note_of_offsets,
    on_disk,
)
from nmf_zoo.results.checkpoints import checkpointed, ending
from nmf_zoo.results.component_order import GROUP, result_order
from nmf_zoo.results.groups import LEADING, as_dataset, axes_of, data_groups, fit_dataset, stats_dataset
from nmf_zoo.results.run_attributes import model_attributes, run_attributes
from nmf_zoo.runtime.arguments import check_initvals
from nmf_zoo.runtime.block_arrays import RESULT, BlockArrays, InMemory, OnDisk
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.cluster import Cluster, is_client
from nmf_zoo.runtime.driver import STATUS, FitRun, Solution, run_restarts
from nmf_zoo.runtime.engine import BlockEngine
from nmf_zoo.runtime.saved_blocks import FOLDER, BlockCheckpoint, SavedArrays
from nmf_zoo.runtime.stopping import left_out
from nmf_zoo.runtime.workers import OneBlasThread, Workers
from nmf_zoo.structure import Array, Blocked, Factorisation
from nmf_zoo.verbs.block_source import (
    BlockSource,
    FeatureLabels,
    as_source,
    blocked,
    labels_of,
    labels_of_features,
    survey,
)
from nmf_zoo.verbs.search_blocks import Begun, search_of_blocks, searched
from nmf_zoo.verbs.starts import left_of, starts_of


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
    restarts: int = 1,
    search: Any = None,
    checkpoint: Path | str | None = None,
    is_seeded: bool = True,
    executor: Any = None,
) -> tuple[Result, Solution]:
    """The result, H in memory or left in ``store``, and how the fit ended; ``declared`` has no data."""
    chosen, options = resolve_engine(engine, "fit", declared)
    over = over_blocks(chosen, options)
    source, began = as_source(data), time.perf_counter()
    place = None if store is None else check_store(store, checkpoint is not None).absolute()
    cluster = cluster_of(executor, source, over, store, checkpoint)
    structure, (start,) = surveyed(declared, source, over, options, initvals, with_digests=checkpoint is not None)
    run = replace(run, search=search_of_blocks(search, restarts, chosen, options, initvals, declared))
    told = checkpoint, over, options, as_facts(structure), run, [start], entropy, is_seeded
    with checkpointed(*told) as saved, arrays_of(place, saved) as (arrays,), cluster or nullcontext():
        entropy = saved.entropy if saved else entropy
        key, structure = seed_key(entropy), with_arrays(structure, arrays, cluster)
        parts = BlockCheckpoint(saved, [arrays]) if saved and isinstance(arrays, SavedArrays) else None
        begun = Begun(start, "")
        if run.search is not None:
            begun = searched(structure, chosen, over.in_memory(options), run, key, saved)
            run = left_of(run, time.perf_counter() - began)
        (solution,), early = run_restarts(over, structure, options, run, key, [begun.start], parts)
        problem = over.prepare(structure, _finest(options), Workers(run.cores))
        groups, variables = _groups(problem, solution, constants)
        status = ending(early, saved) or solution.status
        attrs = run_attributes(over.name, options, entropy, time.perf_counter() - began, status)
        attrs |= {"max_iter": run.max_iter, "tol": run.tol, BLOCKS: data_of(structure).n_blocks}
        attrs |= {"searched": begun.told} if begun.told else {}
        attrs |= model_attributes(with_offsets(structure)) | note_of_offsets(
            data_of(structure).offsets, place is not None
        )
        with left_out("the share of cells inside predictive intervals"):
            n_draws = 1 if over.draw_q is None else 2 * REPLICATES
            products = _products(structure, solution, over, n_draws)
            attrs |= coverage_of_blocks(with_offsets(structure), products, n_draws, key)
        if place is None:
            return in_memory(structure, groups, variables, attrs), solution
        largest = int(np.diff(data_of(structure).bounds).max())
        return on_disk(place, structure, groups, variables, attrs, largest), solution


def surveyed(
    declared: Factorisation,
    source: BlockSource,
    over: BlockEngine,
    options: Any,
    initvals: Any = None,
    with_digests: bool = False,
    chains: int = 1,
) -> tuple[Factorisation, list[dict[str, Array]]]:
    """(the model of all samples, its data looked through once; where each chain, or the fit, begins)"""
    structure = _with_data(declared, source)
    _require(structure, over, options)
    # of a result all but H, since its samples may be others
    starts = check_initvals(structure, starts_of(initvals, structure, chains, but=structure.H.shapes), chains)
    if any(structure.H.name in start for start in starts):
        raise InputError("initvals", f"a value of {structure.H.name}", "none: samples come with data=", "drop it")
    feature = structure.axes[0]
    labels = FeatureLabels(structure.coords.get(feature))
    data = survey(structure, source, over, options, labels, with_digests)
    coords = structure.coords if labels.own is None else {**structure.coords, feature: labels.own}
    structure = replace(structure, data=data, coords=coords)
    _require(structure, over, options)
    return structure, starts


def _require(structure: Factorisation, over: BlockEngine, options: Any) -> None:
    """Refuse what the engine can't run, before the look through the blocks, and after it what this has told of all."""
    can_run = verdict(structure, over, options)
    if not can_run:
        raise UnsupportedModel(f"engine {over.name!r} can't run this model over data=: {can_run.reason}")


def with_arrays(structure: Factorisation, arrays: BlockArrays, cluster: Cluster | None = None) -> Factorisation:
    """The model of a run that keeps arrays of its blocks there, and whose passes the workers of a cluster share."""
    return replace(structure, data=replace(data_of(structure), arrays=arrays, cluster=cluster))


def cluster_of(executor: Any, source: BlockSource, over: BlockEngine, store: Any, checkpoint: Any) -> Cluster | None:
    """The cluster of a Dask client; its workers must see the data, and the place of H."""
    if executor is None:
        return None
    if over.close is not None:
        got, do = f"{type(executor).__name__} with minibatches", "minibatches follow one another"
        raise InputError("executor", got, "None, or batch_size=None", do)
    if not is_client(executor):
        got, do = f"{type(executor).__name__} with data=", "one run over blocks has no pieces for an executor"
        raise InputError("executor", got, "a dask.distributed.Client, or None", do)
    if store is None and checkpoint is None:
        raise InputError("store", "None with a cluster", "a new .zarr where all workers can write", "H stays there")
    try:
        pickle.dumps(source)
    except InputError:
        raise
    except Exception as error:
        got = f"{type(source).__name__}, which can't be pickled ({error})"
        raise InputError("data", got, "blocks that another process can open", "e.g. nz.open_blocks(path)") from error
    return Cluster(executor)


def as_facts(structure: Factorisation) -> Any:
    """The structure with what a checkpoint tells data by in place of the data."""
    data = data_of(structure)
    found = {"shape": data.shape, "bounds": data.bounds, "exposure": data.offsets.exposure, "blocks": data.digests}
    found |= {"kept_samples": data.chosen} if data.chosen is not None else {}
    return replace(structure, data=cast(Any, found))


def _finest(options: Any) -> Any:
    """For what is said of the result: in float64, whatever the iterations took."""
    return replace(options, precision="float64") if hasattr(options, "precision") else options


def data_of(structure: Factorisation) -> Blocked:
    return cast(Blocked, structure.data)


def _with_data(declared: Factorisation, source: BlockSource) -> Factorisation:
    """The model of all samples of the source, under its labels."""
    if declared.data is not None:
        do = f"declare the model with X=None, shape=({declared.shape[0]}, 1)"
        raise InputError("data", f"data beside those of {declared.likelihood.name}", "one of both", do)
    feature, obs = declared.axes
    labels = labels_of(source, source.shape)
    of_samples, of_features = labels.get("obs"), labels_of_features(declared, labels)
    coords = {dim: own for dim, own in declared.coords.items() if dim != obs}
    coords |= {} if of_features is None else {feature: of_features}
    coords |= {} if of_samples is None else {obs: of_samples}
    H = replace(declared.H, shape=(declared.rank, int(source.shape[1])))
    return replace(declared, H=H, coords=coords, data=blocked(declared, source))


def with_offsets(structure: Factorisation) -> Factorisation:
    """The model as it would be declared with all data: exposures and backgrounds that came with these are in it."""
    return replace(structure, likelihood=data_of(structure).offsets.in_place(structure.likelihood))


def check_store(store: Path | str, has_checkpoint: bool) -> Path:
    """Refuse a store that is there, or that could not be made."""
    path = check_place(store, "store")
    if path.suffix == ".zarr" and not path.exists():
        return path
    got = f"{str(store)!r}, which exists" if path.exists() else repr(str(store))
    do = "delete it, and the checkpoint makes it again" if path.exists() and has_checkpoint else ""
    raise InputError("store", got, "a new name that ends in .zarr", do)


@contextmanager
def arrays_of(store: Path | None, saved: Checkpoint | None, places: Sequence[str] = ("",)) -> Iterator[list[Any]]:
    """In the folder of a checkpoint, in memory, or beside the store, where they are removed in the end.

    ``places`` : folders in there, of each chain its own
    """
    if saved is None and store is None:
        yield [InMemory() for _ in places]
        return
    if saved is not None:
        folder = (saved.path / FOLDER).absolute()
        arrays: list[OnDisk] = [SavedArrays(folder / place) for place in places]
    else:
        assert store is not None
        folder = Path(tempfile.mkdtemp(prefix=f".{store.name}.", suffix=".partial", dir=store.parent))
        arrays = [OnDisk(folder / place) for place in places]
    try:
        yield arrays
    finally:
        for own in arrays:
            own.close()
        if saved is None:
            shutil.rmtree(folder, ignore_errors=True)


def _groups(
    problem: BlockProblem, solution: Solution, constants: Mapping[str, Array]
) -> tuple[dict[str, Any], list[OfSamples]]:
    """The groups without what has a number per sample, and that."""
    structure = problem.structure
    bounds, arrays, name = data_of(structure).bounds, data_of(structure).arrays, structure.H.name
    W = structure.W.value({own: array[0] for own, array in solution.values.items()})
    lp = np.nan
    with left_out("lp"), OneBlasThread():
        lp = log_joint_in_blocks(problem, W, RESULT)
    values = {own: array[None] for own, array in solution.values.items()}
    groups = {
        "posterior": as_dataset(structure, values, LEADING),
        "sample_stats": stats_dataset(structure, {"lp": np.array([[lp]])}),
        "fit": fit_dataset(structure, [solution], STATUS),
        CONSTANTS: constants_of(structure, constants),
    }
    order = result_order(_in_small(structure, values), structure)
    groups |= {} if order is None else {GROUP: order}
    variables = [OfSamples("posterior", name, LEADING, [partial(blocks_of_turn, bounds, arrays, RESULT, name)])]
    for own in arrays.names(RESULT):
        if own != name:
            variables.append(OfSamples("fit", own, ("chain",), [partial(blocks_of_turn, bounds, arrays, RESULT, own)]))
    return groups, variables


def constants_of(structure: Factorisation, constants: Mapping[str, Array]) -> xr.Dataset:
    """constant_data, with what came with the samples."""
    found = data_groups(structure, {}, constants)[CONSTANTS]
    return xr.merge([found, kept_offsets(structure, data_of(structure).offsets)])


def _in_small(structure: Factorisation, values: Mapping[str, Array]) -> Result:
    """The posterior with the sums of H over each block in place of its samples, which have the same order."""
    H = structure.H
    sums = sums_of_blocks(structure, data_of(structure).arrays, H.name)
    array = H.orient(sums.T)[None, None]
    small = of_samples(structure, len(sums))
    return _compat.inference_data({"posterior": as_dataset(small, {**values, H.name: array}, LEADING)}, {})


def sums_of_blocks(structure: Factorisation, arrays: BlockArrays, name: str) -> Array:
    """(blocks, K) of an array of the result."""
    blocks = blocks_of_turn(data_of(structure).bounds, arrays, RESULT, name)
    return np.stack([rows.sum(axis=0) for _, rows in blocks])


def of_samples(structure: Factorisation, n: int, labels: Array | None = None) -> Factorisation:
    """The model of so many samples, under these labels."""
    obs = axes_of(structure)[1].dim
    coords = {dim: own for dim, own in structure.coords.items() if dim != obs}
    coords |= {} if labels is None else {obs: labels}
    return replace(structure, H=replace(structure.H, shape=(structure.rank, n)), coords=coords)


def _products(structure: Factorisation, solution: Solution, over: BlockEngine, n_draws: int) -> Callable[..., Products]:
    """So many draws of W H at some cells: of VB's q, or the point."""
    W, H, data = structure.W, structure.H, data_of(structure)
    names_of_W, names_of_H = ([f"{own}_{word}" for word in over.q] for own in (W.variable, H.name))
    of_W = [W.value({W.variable: cast(Array, solution.parameters[own])}) for own in names_of_W if not W.is_fixed]
    whole = W.value({own: array[0] for own, array in solution.values.items()})
    free = slice(None) if W.known is None else W.known.free

    def products(rows: Array, cols: Array, rng: np.random.Generator) -> Products:
        weights, of_H = whole[rows], [_at_samples(data, own, cols) for own in names_of_H]
        of_rows = [own[rows][:, free] for own in of_W]
        activations = _at_samples(data, H.name, cols)
        for _ in range(n_draws):
            if over.draw_q is not None:
                weights[:, free] = over.draw_q(*of_rows, rng) if of_rows else weights[:, free]
                activations = over.draw_q(*of_H, rng)
            yield np.einsum("ck,ck->c", weights, activations), {}

    return products


def _at_samples(data: Blocked, name: str, cols: Array) -> Any:
    """(cells, K) rows of an array of the result."""
    numbers = np.searchsorted(data.bounds, cols, side="right") - 1
    found: Any = None
    for number in np.unique(numbers):
        (rows,) = data.arrays.get(RESULT, int(number), name)
        found = np.empty((len(cols), rows.shape[1])) if found is None else found
        own = numbers == number
        found[own] = rows[cols[own] - data.bounds[number]]
    return found
