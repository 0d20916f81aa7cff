"""Factorisation of a stream: columns of X that come one by one, or block by block, in memory that does not grow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo import __version__
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, UnsupportedModel, not_one_of, number_of
from nmf_zoo.files import replacing
from nmf_zoo.inference.registry import entries, fitting, named, names, verdict
from nmf_zoo.inference.shared.sample_blocks import read_ahead
from nmf_zoo.kernels.random.keyed_rng import child, generator_of, seed_key
from nmf_zoo.labels import are_counted, writable_labels
from nmf_zoo.options import names_checked
from nmf_zoo.reading import model_here, read
from nmf_zoo.results.groups import LEADING, as_dataset, pack, variable_dims
from nmf_zoo.results.run_attributes import model_attributes, run_attributes
from nmf_zoo.results.trace_storage import MEAN, SD
from nmf_zoo.runtime.arguments import check_counts, check_initvals, entropy_of, require_memory
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.state_io import Damaged, read_tree, write_tree
from nmf_zoo.runtime.state_patterns import Each, Like, OneOf, require
from nmf_zoo.runtime.stream_engine import ORDER, START, Block, StreamEngine
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.streaming.columns import block_of_data, labels_of_columns, labels_of_rows, read_block, with_exposures
from nmf_zoo.streaming.structure_trees import as_tree, structure_of
from nmf_zoo.structure import Array, Factorisation, Fixed, sides_of, spans
from nmf_zoo.verbs.block_source import BlockSource, Samples, as_source, labels_of, labels_of_features
from nmf_zoo.verbs.starts import starts_of


def own_dims(structure: Factorisation) -> tuple[str, ...]:
    """The dims of W in the model: that of its features, that of its components. A constant has no name of its own."""
    return structure.W.orient_dims(variable_dims(structure, structure.W.name or "W", 2))


def component_dim(structure: Factorisation) -> str:
    """The dim of W's components."""
    return own_dims(structure)[1]


def weights_array(structure: Factorisation, values: dict[str, Array]) -> xr.DataArray:
    """W in its own dims; one that is known is not among the values."""
    factor, name = structure.W, structure.W.name or "W"
    found = factor.orient(factor.prior.value).copy() if isinstance(factor.prior, Fixed) else values[name]
    return as_dataset(structure, {name: found}, ())[name]


def activations_dataset(structure: Factorisation, found: dict[str, Array], labels: Array) -> xr.Dataset:
    """Activations of columns with these labels, and the shares of cells, if an engine gave them."""
    H, kinds = structure.H, {"mean": MEAN, "sd": SD}
    arrays = {f"{H.name}{end}": H.orient(found[kind]) for kind, end in kinds.items() if kind in found}
    dataset = as_dataset(structure, arrays, (), dict.fromkeys(arrays, H.name))
    dataset = dataset.assign_coords({H.orient_dims(variable_dims(structure, H.name, 2))[1]: labels})
    if "share" not in found:
        return dataset
    feature, obs = structure.axes
    dataset = dataset.assign_coords({obs: labels})
    known = {feature: structure.coords.get(feature, np.arange(structure.shape[0]))}
    share = ((component_dim(structure), feature, obs), found["share"])
    return dataset.assign(share=share).assign_coords(known)


def trace_dataset(structure: Factorisation, trace: dict[str, Any], columns_seen: int) -> xr.Dataset:
    """What was followed along the stream."""
    component = component_dim(structure)
    norms = np.array(trace["norms"]).reshape(-1, structure.rank)
    labels = structure.coords.get(component, np.arange(structure.rank))
    return xr.Dataset(
        {
            "column_norm": (("chain", "record", component), norms[None]),
            "columns": ("chain", [columns_seen]),
            "steps": ("chain", [trace["steps"]]),
        },
        coords={"chain": [0], "record": trace["columns"], component: labels},
    )


# -- streams ---------------------------------------------------------------------------------------------------------


OWNER = {"kind": "stream"}  # of a saved stream
SAVED = {  # a stream as a tree
    "version": str,
    "engine": str,
    "options": Each(float | int | str | tuple | list | None),
    "structure": dict,
    "entropy": int | list,
    "start": Each(np.ndarray),
    "state": Any,
    "trace": {"columns": Each(int), "norms": Each(np.ndarray), "stride": int, "steps": int},
    "seconds": float,
    "has_exposures": bool,
}
NO_COLUMN = ("stream", "no column yet", "at least one", "call update first")
COPIES = 4  # of the weights that every stream holds: themselves, their start, statistics, and those that follow
MOST_RECORDS = 512  # of the trace: when there are so many, every second is dropped


@names_checked
def stream(
    model: pm.Model | None = None,
    *,
    data: Any = None,
    passes: int | None = None,
    engine: Any = "online_em",
    random_seed: Any = None,
    initvals: Any = None,
    cores: int | None = None,
) -> Stream:
    """Begin to factorise a stream of columns.

    Parameters
    ----------
    model : the declaration; default the one of the ``with`` context. With ``X=None`` its features come from ``shape=``
        or ``coords=``, and its number of samples means nothing: a stream has no end. Data that it was declared with are
        the first columns of the stream. An exposure of the model is of its features; one per sample is of these
        columns, and those to come are given theirs by ``update``
    data : columns in blocks that need not fit into memory, as in :func:`~nmf_zoo.fit`, of which the stream learns one
        block after the other, each as by ``update``. Ctrl-C loses it; ``update`` in a loop of one's own would not
    passes : how often the blocks of ``data`` are gone through, they and the samples of each in a new order every time,
        which the seed chooses. None: once, as they come
    engine : name of a streaming engine, or its options, e.g. ``"online_em"``, ``nz.OnlineEM(exponent=0.7)`` for counts,
        ``nz.SimulatedOnlineEM(sweeps=40, keep=30)`` for power spectrograms, ``nz.ChainOnlineEM()`` for binary chains,
        ``nz.ParticleOnlineEM(particles=1000)`` for chains of every kind. The name takes what suits the model
    random_seed : as in :func:`~nmf_zoo.sample`
    initvals : ``{"W": array}`` to start from, or a result, whose W is taken; default random at the scale of the first
        columns
    cores : threads for the columns of a large mini-batch; default every core. Results do not depend on it

    Returns
    -------
    Stream

    Examples
    --------
    >>> import numpy as np
    >>> import nmf_zoo as nz
    >>> stream = nz.stream(nz.gap(None, rank=2, shape=(3, 2)), random_seed=1)
    >>> for seed in range(50):
    ...     stream.update(np.random.default_rng(seed).poisson([4, 2, 1]))
    >>> stream.columns_seen
    50
    >>> stream.result().posterior["W"].dims
    ('chain', 'draw', 'feature', 'component')
    """
    structure, exposures = _apart(read(model_here(model)))
    chosen, options = _resolve(engine, structure)
    if exposures is not None and not (can := chosen.takes_exposures(structure)):
        raise UnsupportedModel(_refusal(chosen.name, can.reason))
    _check_passes(passes, data, structure)
    (start,) = check_initvals(structure, starts_of(initvals, structure, 1, but=structure.H.shapes), 1)
    if structure.H.name in start:
        raise InputError("initvals", f"a value of {structure.H.name}", "none: new samples have their own", "drop it")
    first = block_of_data(structure, chosen)
    own = replace(structure, data=None, cells=None, imputed=None, coords=_lasting_coords(structure))
    begun = Stream(chosen, options, own, entropy_of(random_seed), start, _cores(cores))
    if first is not None:
        begun._take(first if exposures is None else with_exposures(first, exposures), exposures is not None)
    if data is not None:
        _learn(begun, own, as_source(data), passes)
    return begun


def _check_passes(passes: int | None, data: Any, structure: Factorisation) -> None:
    """Refuse passes over nothing, and another order of what is a series."""
    if passes is None:
        return
    check_counts(passes=(passes, 1))
    if data is None:
        raise InputError("passes", repr(passes), "None without data=", "or give columns to update in any order")
    if structure.H.is_chain:
        raise InputError("passes", repr(passes), f"None, since the columns of {structure.H.name} are a chain in time")


def _learn(stream: Stream, structure: Factorisation, source: BlockSource, passes: int | None) -> None:
    """One block after the other; the next is read meanwhile."""
    stream._adopt(labels_of_features(structure, labels_of(source, source.shape)))
    for number in range(passes or 1):
        generator = None if passes is None else generator_of(child(stream._key, ORDER, number))
        blocks = np.arange(len(source.bounds) - 1)
        if generator is not None:
            generator.shuffle(blocks)
        for found in read_ahead(source.read, blocks.tolist()):
            samples = found if isinstance(found, Samples) else Samples(found)
            if samples.background is not None:
                got, do = (
                    f"a background of samples, with {stream._engine.name!r}",
                    "or nz.fit(data=...), which takes it",
                )
                raise InputError("data", got, "none: a stream takes one that all columns share", do)
            if generator is not None:
                samples = samples.in_order(generator.permutation(samples.X.shape[1]))
            stream.update(samples.X, mask=samples.mask, observed=samples.observed, exposure=samples.exposure)


@names_checked
def resume_stream(path: Path | str, *, cores: int | None = None) -> Stream:
    """A stream as :meth:`~nmf_zoo.streaming.stream.Stream.save` left it: it goes on as if not stopped, to the bit."""
    path = _path(path)
    try:
        with open(path, "rb") as file:
            tree, _ = read_tree(file, OWNER)
        return stream_of(tree, cores)
    except OSError as error:
        raise InputError("path", f"{str(path)!r} ({error.strerror})", "a file that Stream.save wrote") from None
    except Damaged as error:
        got = f"{str(path)!r}, {error}"
        raise InputError("path", got, f"a file that Stream.save of {__version__} wrote", "use another") from None


def stream_of(tree: Any, cores: int | None) -> Stream:
    """The stream that was saved as this tree; Damaged when there is none."""
    tree = {**tree, "has_exposures": tree.get("has_exposures", False)} if isinstance(tree, dict) else tree  # as of old
    require(tree, SAVED, "the stream")
    kinds = {engine.options.__name__: engine.options for engine in entries("stream")}
    if tree["engine"] not in kinds:
        raise Damaged(f"damaged: engine {tree['engine']!r}")
    structure = structure_of(tree["structure"])
    try:
        chosen, options = _resolve(kinds[tree["engine"]](**tree["options"]), structure)
        (start,) = check_initvals(structure, tree["start"], 1)
        found = Stream(chosen, options, structure, entropy_of(tree["entropy"]), start, _cores(cores))
    except (TypeError, ValueError) as error:  # what options say to wrong names and values, and engines to the model
        raise Damaged(f"damaged: {error}") from None
    found._has_exposures = tree["has_exposures"]
    found._restore(tree["state"], tree["trace"], tree["seconds"])
    return found


class Stream:
    """A factorisation that learns from columns and forgets them; made by :func:`~nmf_zoo.stream`.

    Attributes
    ----------
    columns_seen : columns so far
    W : the current weights, (feature, component) as a labelled DataArray
    norms : sums of W's columns, (component,), as a labelled DataArray
    filtered : of a chain, what all columns so far say about the activations of the last: a labelled Dataset
    """

    def __init__(self, engine: StreamEngine, options: Any, structure: Factorisation, entropy: Any, start, cores: int):
        weights = structure.W.shape
        require_memory("stream", f"weights of shape {weights}", COPIES * 8.0 * weights[0] * weights[1], "have fewer")
        self._engine, self._options, self._structure = engine, options, structure
        self._entropy, self._start, self._key = entropy, start, seed_key(entropy)
        self._problem = engine.prepare(structure, options, Workers(cores))
        self._state: Any = None
        self._has_exposures = False  # columns so far: those to come must have some, too
        self._seconds = 0.0
        self._trace: dict[str, Any] = {"columns": [], "norms": [], "stride": 1, "steps": 0}

    def __repr__(self) -> str:
        """``<Stream of online_em: 6 features, 3 components, 60 columns seen>``"""
        (features, _), rank, seen = self._structure.shape, self._structure.rank, self.columns_seen
        counted = ((features, "feature"), (rank, "component"), (seen, "column"))
        return f"<Stream of {self._engine.name}: {', '.join(number_of(*own) for own in counted)} seen>"

    @names_checked
    def update(self, x: Any, *, mask: Any = None, observed: str | None = None, exposure: Any = None) -> None:
        """Learn from new columns.

        Parameters
        ----------
        x : one column (features,), or a block (features, columns): arrays, pandas and xarray objects, sparse matrices.
            Labels of features must be the model's, in its order, or where it has none those of the first columns that
            have some. NaN and masked cells are missing. A column of zeros
            is data like any other; one without any observed cell only counts as seen
        mask, observed : of ``x``, as in :func:`~nmf_zoo.poisson_nmf`
        exposure : of the columns, a number or (columns,): what multiplies their means, beside the model's own exposure
            of the features. None is 1, and an error once columns had exposures

        Raises
        ------
        InputError : ``x`` can't be used; the stream has not changed
        RunFailed : nothing that the model's chains can do makes the counts of a column, which the message names

        Notes
        -----
        After Ctrl-C and RunFailed the stream holds the mini-batches that were done and says how many
        ``columns_seen`` that makes; it can be used, saved or updated.
        """
        self._take(self._read(x, self.columns_seen, mask, observed, exposure), exposure is not None)
        self._adopt(labels_of_rows(x))

    def _adopt(self, labels: Array | None) -> None:
        """Labels of features, where those of the model say nothing: columns to come are held against them."""
        dim = self._structure.axes[0]
        own = self._structure.coords.get(dim)
        if labels is None or are_counted(labels) or not (own is None or are_counted(own)):
            return
        coords = {**self._structure.coords, dim: writable_labels(dim, labels)}
        self._structure = replace(self._structure, coords=coords)

    def _read(self, x: Any, number: int, mask: Any, observed: str | None, exposure: Any) -> Block:
        if exposure is None and self._has_exposures:
            expected = "a number, or one per column, since columns before these had exposures"
            raise InputError("exposure", "None", expected, "give 1.0 where there is none")
        return read_block(x, self._structure, number, self._engine, mask, observed, exposure)

    def _restore(self, state: Any, trace: dict[str, Any], seconds: float) -> None:
        """Be where another stream was; its state must be laid out as one of ours is."""
        if state is not None:
            column = read_block(np.ones(self._structure.shape[0]), self._structure, 0, self._engine)
            fresh = self._engine.init(self._problem, column, child(self._key, START), self._start)
            require(state, OneOf(Like(fresh), Like(self._engine.widened(self._problem, fresh))), "state")
        self._state, self._trace, self._seconds = state, trace, seconds

    def _take(self, columns: Block, has_exposures: bool) -> None:
        """Step through the mini-batches of a block."""
        began, engine = time.perf_counter(), self._engine
        state, size = self._state, self._options.batch
        if state is None:
            state = engine.init(self._problem, columns, child(self._key, START), self._start)
        engine.check(self._problem, state, columns)
        self._state, self._has_exposures = state, self._has_exposures or has_exposures
        try:
            for span in spans(columns.n_columns, size):
                self._state, _ = engine.update(self._problem, self._state, columns.part(*span), self._key)
                self._record()
        finally:
            self._seconds += time.perf_counter() - began

    def _record(self) -> None:
        """Follow the norms; the trace is thinned as the stream grows."""
        trace = self._trace
        trace["steps"] += 1
        if trace["steps"] % trace["stride"]:
            return
        trace["columns"].append(self.columns_seen)
        trace["norms"].append(self._engine.track(self._problem, self._state))
        if len(trace["columns"]) >= MOST_RECORDS:
            trace["columns"], trace["norms"] = trace["columns"][1::2], trace["norms"][1::2]
            trace["stride"] *= 2

    @property
    def columns_seen(self) -> int:
        return 0 if self._state is None else self._engine.seen(self._state)

    @property
    def W(self) -> xr.DataArray:
        return weights_array(self._structure, self._finish()[0])

    @property
    def norms(self) -> xr.DataArray:
        return self.W.sum(own_dims(self._structure)[0])

    @property
    def filtered(self) -> xr.Dataset:
        """``H_mean`` and ``H_sd`` (component, obs) of the last column's activations given all columns so far.

        Of a chain only. They are under the parameters of their time, and there already: read after each ``update``,
        they follow the series.
        """
        if self._engine.filtered is None:
            do = "use activations(x): columns of this stream are independent given W"
            raise InputError("stream", f"one of {self._engine.name} without a chain in time", "one of a chain", do)
        if self._state is None:
            raise InputError(*NO_COLUMN)
        found = self._engine.filtered(self._problem, self._state)
        return activations_dataset(self._structure, found, np.array([self.columns_seen - 1]))

    @names_checked
    def activations(
        self,
        x: Any,
        *,
        first: int = 0,
        shares: bool = False,
        mask: Any = None,
        observed: str | None = None,
        exposure: Any = None,
    ) -> xr.Dataset:
        """The activations of columns under the W of the result: for a second pass, block by block.

        Parameters
        ----------
        x, mask, observed, exposure : columns, as in :meth:`update`. The stream does not change
        first : how many columns came before these in the pass. It keys the draws: a column with the same number has the
            same activations, bit for bit, however a pass is cut into blocks, unless columns are a chain's
        shares : of a power spectrogram, each component's share of every cell, too: what a Wiener filter leaves of it

        Returns
        -------
        Dataset with ``H_mean`` and, of a power spectrogram, ``H_sd`` (component, obs): posterior mean and standard
        deviation by Gibbs sampling, as many sweeps as the options have; and ``share`` (component, feature, obs),
        E[w_fk h_kn / (w_f . h_n + background)], which is 0 at missing cells. ``H_sd`` is infinite where a heavy tail
        has no variance. Of a chain ``H_mean`` and ``H_sd`` given all columns of the block

        Notes
        -----
        The columns of a chain depend on those before and after. A block is smoothed as a series of its own, under the
        parameters of the result: from the law of the first time if ``first`` is 0, else from the chain's stationary
        one. Give long blocks, or the whole series: near its ends a block knows less. What the stream's own past says
        about its last column is :attr:`filtered`.
        """
        check_counts(first=(first, 0))
        if shares and not self._engine.has_shares:
            family = self._structure.likelihood.family
            raise InputError("shares", "True", "False", f"the columns of this stream are {family}")
        if self._state is None:
            raise InputError(*NO_COLUMN)
        block = self._read(x, first, mask, observed, exposure)
        more = (True,) if shares else ()
        found = self._engine.activations(self._problem, self._state, block, self._key, *more)
        return activations_dataset(self._structure, found, labels_of_columns(x, first, block.n_columns))

    @names_checked
    def save(self, path: Path | str) -> None:
        """Write all that the stream is to a file. It takes its place at once: a kill leaves the old one or the new."""
        with replacing(_path(path)) as partial, open(partial, "wb") as file:
            write_tree(file, tree_of(self), OWNER)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: as it is saved."""
        return stream_of, (tree_of(self), None)

    @names_checked
    def result(self) -> Result:
        """The factorisation so far.

        Returns
        -------
        InferenceData or DataTree with ``W`` in ``posterior`` (1 chain, 1 draw) and, in ``fit``, ``column_norm``
        (record, component) along the stream and the columns seen. Activations are those of :func:`~nmf_zoo.project`.
        """
        values, parameters = self._finish()
        draws = {name: array[None, None] for name, array in values.items()}
        own = as_dataset(self._structure, {name: array[None] for name, array in parameters.items()}, ("chain",))
        trace = trace_dataset(self._structure, self._trace, self.columns_seen)
        groups = {"posterior": as_dataset(self._structure, draws, LEADING), "fit": own.merge(trace)}
        attrs = run_attributes(self._engine.name, self._options, self._entropy, self._seconds, "stream")
        return pack(groups, {**attrs, **model_attributes(self._structure)})

    def _finish(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Values and parameters, in arrays of their own: what is done to them stays out of the stream."""
        if self._state is None:
            raise InputError(*NO_COLUMN)
        values, parameters = self._engine.finish(self._problem, self._state)
        return _copies(values), _copies(parameters)


def tree_of(stream: Stream) -> dict[str, Any]:
    """All that a stream is."""
    return {
        "version": __version__,
        "engine": stream._engine.options.__name__,
        "options": asdict(stream._options),
        "structure": as_tree(stream._structure),
        "entropy": stream._entropy,
        "start": stream._start,
        "state": stream._state,
        "trace": stream._trace,
        "seconds": stream._seconds,
        "has_exposures": stream._has_exposures,
    }


def _resolve(engine: Any, structure: Factorisation) -> tuple[StreamEngine, Any]:
    """The engine of this name, or of these options, that can run the model."""
    found = named(engine, "stream")
    if not found:
        classes = [one.options.__name__ for one in entries("stream")]
        raise not_one_of("engine", engine, sorted(set(names("stream"))), f", or options of {classes}")
    reasons = []
    for one in sorted(fitting(found, structure), key=lambda one: not one.suits(structure)):
        options = one.options() if isinstance(engine, str) else engine
        can_run = verdict(structure, one, options)
        if can_run:
            return one, options
        reasons.append(can_run.reason)
    raise UnsupportedModel(_refusal(found[0].name, "; ".join(dict.fromkeys(reasons))))


def _refusal(engine: str, reason: str) -> str:
    return f"engine {engine!r} can't stream this model: {reason}"


def _apart(structure: Factorisation) -> tuple[Factorisation, Array | None]:
    """The model with the exposure that all samples share, and what each of its samples has beside it, (N,) or None.

    An exposure that differs from cell to cell stays, for the engine to refuse.
    """
    sides = None if structure.likelihood.exposure is None else sides_of(structure.likelihood.exposure)
    if sides is None or sides.is_shared:
        return structure, None
    if structure.data is None:
        got = f"an exposure for each sample of {structure.likelihood.name}, which holds none"
        do = "give columns theirs: stream.update(x, exposure=...)"
        raise InputError("model", got, "an exposure of the features alone", do)
    likelihood = replace(structure.likelihood, exposure=sides.of_features)
    return replace(structure, likelihood=likelihood), sides.of_samples[0]


def _lasting_coords(structure: Factorisation) -> dict[str, Array]:
    """The labels of features and components: a stream has no samples of its own."""
    kept = {structure.axes[0], component_dim(structure)}
    return {dim: labels for dim, labels in structure.coords.items() if dim in kept}


def _copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(array) for name, array in arrays.items()}


def _path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputError("path", repr(path), "the path of a file")
    return Path(path)


def _cores(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores
