"""``nmf-zoo fit``: everything that can be refused is refused before the data are read, then read, build, run, write."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmf_zoo.errors import InputError, NotWritten, number_of
from nmf_zoo.files import replacing
from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.catalogue import Entry
from nmf_zoo.interfaces.cli.output import RESULTS, check_output, exit_code
from nmf_zoo.interfaces.cli.parser import FILES
from nmf_zoo.interfaces.cli.show import draws_of
from nmf_zoo.interfaces.cli.values import labelled, parse_hyperparameter, parse_seed, parse_value, parse_yes_no

if TYPE_CHECKING:
    from nmf_zoo.interfaces.tables.arrays import Matrix

PATIENCE = 10.0  # seconds for a scheduler to answer


def run_fit(arguments: argparse.Namespace) -> int:
    engine = catalogue.engines()[arguments.engine]
    run = run_arguments(arguments, engine)
    options = {name: parse_value(engine.arguments[name], text) for name, text in chosen(arguments, "engine", engine)}
    goes_to_disk = is_streamed(arguments, engine, run)
    check_output(arguments.output, RESULTS, arguments.force or (goes_to_disk and "checkpoint" in run))
    blocks = open_store(arguments, engine, run)
    model = None if blocks is None else declare_beside(blocks, arguments)
    if model is None or not goes_over_blocks(model, engine):
        if "kept_samples" in run:
            expected = "a store of blocks, and a model and an engine that go over them"
            raise InputError("--kept-samples", f"it with {arguments.input}", expected, "leave it out")
        blocks, model = None, declare(arguments, arguments.rank)
    if arguments.scheduler and (blocks is None or arguments.output.suffix != ".zarr"):
        expected = "a store of blocks, an engine that goes over them, and an output that ends in .zarr"
        raise InputError("--scheduler", f"it with {arguments.input} and {arguments.output}", expected, "leave it out")

    import nmf_zoo as nz
    from nmf_zoo.inference.registry import named

    run |= {"model": model, "engine": make_options(named(engine.name)[0].options, options)}
    verb = nz.sample if engine.verb == "sample" else nz.fit
    if goes_to_disk:
        idata = stream(arguments.output, run)
    elif blocks is not None and arguments.output.suffix == ".zarr":
        with workers_at(arguments.scheduler) as executor, replacing(arguments.output, "output") as partial:
            idata = verb(data=blocks, store=partial, executor=executor, **run)
    else:
        run |= {} if blocks is None else {"data": blocks}
        idata = verb(**run)
        with replacing(arguments.output, "output") as partial:
            nz.save(idata, partial)
    return report(arguments, idata, run.get("quiet", False))


@contextmanager
def workers_at(address: str | None) -> Iterator[Any]:
    """A client of the Dask scheduler at this address, or of the file that it wrote; None without an address."""
    if address is None:
        yield None
        return
    if find_spec("distributed") is None:
        raise InputError("--scheduler", "it without Dask installed", "Dask", "pip install 'nmf_zoo[dask]'")
    from distributed import Client

    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        client = Client(**where, timeout=f"{PATIENCE:g}s")
    except (OSError, ValueError) as error:
        got = f"{address!r}, where no scheduler answers ({type(error).__name__})"
        do = "dask scheduler prints its address, and writes it to --scheduler-file"
        raise InputError("--scheduler", got, "tcp://host:port, or a file that ends in .json", do) from error
    with client:
        yield client


def open_store(arguments: argparse.Namespace, engine: Entry, run: Mapping[str, Any]) -> Any:
    """The blocks of a store that ``nmf-zoo convert`` wrote.

    None of any other file, and for samplers that keep the draws of all samples: they read it whole.
    """
    is_whole = engine.verb != "fit" and "kept_samples" not in run
    if is_whole or not os.path.isfile(arguments.input / ".zattrs"):
        return None
    from nmf_zoo.interfaces.tables.blocks import is_ours

    if not is_ours(arguments.input):
        return None
    from nmf_zoo.interfaces.blocks.store import ZarrBlocks

    beside = (*FILES, "observed", "labels", "key", "layer", "header", "row_labels", "transpose")
    given = [name for name in beside if getattr(arguments, name)]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise InputError(flag, "a value beside a store of blocks", "what the store holds", "give it to convert")
    if arguments.log_likelihood:
        got = "it with a store of blocks"
        raise InputError("--log-likelihood", got, "a table that is in memory", "leave it out")
    return ZarrBlocks(arguments.input)


def goes_over_blocks(model: Any, engine: Entry) -> bool:
    """Whether the engine does so of such data; the others have a store in memory, as any table."""
    from nmf_zoo.errors import UnsupportedModel
    from nmf_zoo.inference.registry import over_blocks, resolve_engine
    from nmf_zoo.reading import read

    structure = read(model)
    try:
        over = over_blocks(*resolve_engine(engine.name, engine.verb, structure))
    except UnsupportedModel:
        return False
    return isinstance(structure.likelihood, over.likelihoods or ())


def declare_beside(blocks: Any, arguments: argparse.Namespace) -> Any:
    """The model of ``--model`` without data, of the features of the blocks, by whose labels known components go."""
    from nmf_zoo.models import MODELS

    shape, labels = (blocks.shape[0], 1), blocks.coords.get("feature")
    coords = None if labels is None else {"feature": labels}
    return MODELS[arguments.model](
        X=None, rank=arguments.rank, shape=shape, coords=coords, **model_arguments(arguments)
    )


def is_streamed(arguments: argparse.Namespace, engine: Entry, run: Mapping[str, Any]) -> bool:
    """Whether draws go to the output while they are made: to Zarr, where the run keeps draws and needs them no more."""
    keeps_draws = engine.verb == "sample" and run.get("keep", "draws") == "draws" and "kept_samples" not in run
    return arguments.output.suffix == ".zarr" and keeps_draws and not (engine.is_whole or arguments.log_likelihood)


def stream(output: Path, run: Mapping[str, Any]) -> Any:
    """Sample to a Zarr output; under its own name where a checkpoint may have begun it, else absent until complete."""
    import nmf_zoo as nz

    try:
        if "checkpoint" in run:
            return nz.sample(store=output, **run)
        with replacing(output, "output") as partial:
            return nz.sample(store=partial, **run)
    except NotWritten:
        raise
    except InputError as error:
        name = "output" if error.name == "store" else error.name
        raise InputError(name, error.got, error.expected, error.do) from error


def read_search(fits: int, verb: str) -> dict[str, Any]:
    """``--search 16`` as an argument of ``nz.sample`` or ``nz.fit``."""
    import nmf_zoo as nz

    if fits < 0:
        raise InputError("--search", str(fits), "an integer >= 0")
    if verb == "sample":
        return {"start": nz.Search(fits=fits) if fits else "random"}
    return {"search": nz.Search(fits=fits) if fits else None}


def make_options(kind: type, options: Mapping[str, Any]) -> Any:
    """The engine's options object; what it refuses is bad input."""
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        name, _, rest = str(error).partition(": got ")
        got, _, expected = rest.partition("; expected ")
        raise InputError("--" + name.replace("_", "-"), got, expected) from error


def name_cell(text: str, labels: Mapping[str, Any]) -> str:
    """``feature 1`` with the label that the file has for it."""

    def named(match: re.Match) -> str:
        own = labels.get(match[1])
        return match[0] if own is None else f"{match[0]} ({own[int(match[2])]})"

    return re.sub(r"\b(feature|obs) (\d+)", named, text)


def report(arguments: argparse.Namespace, idata: Any, quiet: bool) -> int:
    """The closing line."""
    sizes, status = idata["sample_stats"].sizes, str(idata.attrs.get("status"))
    is_fit = catalogue.engines()[arguments.engine].verb == "fit"
    what = f"{draws_of(sizes, is_fit)} of {arguments.model} by {arguments.engine}"
    _, goes_on, path = status.partition(" goes on from ")
    then = f"; the same command with --force{goes_on}{path}" if goes_on else ""
    if status.startswith("interrupted"):
        print(f"nmf-zoo: interrupted; {arguments.output} holds what was there: {what}{then}", file=sys.stderr)
        return exit_code()
    if not quiet:
        early = f", when --max-seconds were over{then}" if status.startswith("max_seconds") else ""
        print(f"wrote {arguments.output}: {what} in {float(idata.attrs['seconds']):.1f} s{early}")
    return 0


def chosen(arguments: argparse.Namespace, prefix: str, owner: Entry) -> list[tuple[str, str]]:
    """The (name, text) given for an entry; refused when they belong to another one."""
    given = {key.partition(".")[2]: text for key, text in vars(arguments).items() if key.startswith(f"{prefix}.")}
    has = [name for name in given if name in owner.arguments]
    for name, text in given.items():
        if text is not None and name not in has:
            flags = ", ".join(owner.arguments[other].flag for other in has) or "none of these options"
            who = f"{arguments.engine} ({owner.name})" if prefix == "run" else owner.name.replace("_", "-")
            raise InputError("--" + name.replace("_", "-"), f"an option that {who} doesn't have", flags)
    return [(name, given[name]) for name in has if given[name] is not None]


def run_arguments(arguments: argparse.Namespace, engine: Entry) -> dict[str, Any]:
    """Keyword arguments of ``nz.sample`` or ``nz.fit``."""
    entry = catalogue.runs()[engine.verb]
    run = {}
    for name, text in chosen(arguments, "run", entry):
        argument = entry.arguments[name]
        run[name] = parse_seed(argument.flag, text) if name == "random_seed" else parse_value(argument, text)
    if arguments.initvals is not None:
        run["initvals"] = read_start(arguments.initvals)
    if arguments.search is not None:
        run |= read_search(arguments.search, engine.verb)
    if arguments.log_likelihood:
        run["idata_kwargs"] = {"log_likelihood": True}
    return run


def model_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The hyperparameters that were given."""
    entry = catalogue.models()[arguments.model]
    given = chosen(arguments, "model", entry)
    is_turned = getattr(arguments, "transpose", False)
    return {name: parse_hyperparameter(entry.arguments[name], text, is_turned) for name, text in given}


def read_table(arguments: argparse.Namespace) -> Matrix:
    """The input file, with the labels of features that ``--labels`` has."""
    from nmf_zoo.interfaces.tables import read_labels, read_matrix

    matrix = read_matrix(
        arguments.input,
        transpose=arguments.transpose,
        key=arguments.key,
        layer=arguments.layer,
        header=_yes_no("--header", arguments.header),
        row_labels=_yes_no("--row-labels", arguments.row_labels),
    )
    features = matrix.rows if arguments.labels is None else read_labels(arguments.labels)
    if features is not None and len(features) != matrix.shape[0]:
        expected = f"{matrix.shape[0]}, one per feature of {arguments.input}"
        raise InputError(
            str(arguments.labels),
            number_of(len(features), "line"),
            expected,
            "or --transpose" if not arguments.transpose else "",
        )
    return replace(matrix, rows=features)


def read_data(arguments: argparse.Namespace) -> dict[str, Any]:
    """X, its labels, and the files that go with it, as arguments of a builder."""
    from nmf_zoo.interfaces.tables import read_matrix

    table = read_table(arguments)
    data: dict[str, Any] = {"X": table.values, "coords": {"feature": table.rows, "obs": table.columns}}
    data |= {"observed": table.observed} if table.observed else {}
    for name, found in (("exposure", table.exposure), ("background", table.background)):
        if found is not None:
            _refuse_beside(arguments, name)
            data[name] = found[None] if name == "exposure" else found
    if table.observed:
        _refuse_beside(arguments, "observed")
    is_dense = not table.is_sparse
    for name in FILES:
        given = getattr(arguments, name)
        if name != "mask" and given is not None:
            data[name] = read_offset(f"--{name}", given, arguments.transpose, is_dense)
        elif given is not None:
            matrix = read_matrix(given, transpose=arguments.transpose)
            data[name] = labelled(as_mask(given, _dense(matrix.values)), matrix)
    return data | ({"observed": arguments.observed} if arguments.observed else {})


def _refuse_beside(arguments: argparse.Namespace, name: str) -> None:
    if getattr(arguments, name) is not None:
        got = f"a value beside that of {arguments.input}"
        raise InputError(f"--{name}", got, "one of both", "leave it out, or give it to convert another table")


def _yes_no(flag: str, text: str | None) -> bool | None:
    return None if text is None else parse_yes_no(flag, text)


def read_offset(flag: str, given: list[Path], transpose: bool, is_dense: bool) -> Any:
    """What one file or number says; of two files, a column and a row, both as a pair."""
    from nmf_zoo.interfaces.tables import read_matrix

    numbers = [as_number(str(path)) for path in given]
    if len(given) == 1 and numbers[0] is not None:
        return numbers[0]
    expected = "a number, a file, or a file of one column (per feature) and one of one row (per sample)"
    if len(given) > 2 or set(numbers) != {None}:
        raise InputError(flag, " and ".join(repr(str(path)) for path in given), expected)
    matrices = [read_matrix(path, transpose=transpose) for path in given]
    if len(matrices) == 1 and matrices[0].is_sparse and not is_dense:  # beside sparse X
        return matrices[0].values
    found = [labelled(_dense(matrix.values), matrix) for matrix in matrices]
    if len(found) == 1:
        return found[0]
    of_features, of_samples = sorted(found, key=lambda values: values.shape[1])
    if of_features.shape[1] != 1 or of_samples.shape[0] != 1:
        got = " and ".join(f"{path} of shape {values.shape}" for path, values in zip(given, found, strict=True))
        raise InputError(flag, got, expected)
    return of_features, of_samples


def as_number(text: str) -> float | None:
    """The number it is, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def as_mask(path: Path, values: Any) -> Any:
    """0 and 1 as False and True."""
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise InputError(str(path), f"the cell {values[wrong][0]}", "1 (observed) or 0 (missing) in every cell")
    return values.astype(bool)


def _dense(values: Any) -> Any:
    return values if isinstance(values, _array()) else values.toarray()


def _array() -> type:
    import numpy as np

    return np.ndarray


def read_start(path: Path) -> Any:
    """A result, or the arrays of an archive."""
    if path.suffix not in RESULTS:
        return read_arrays(path)
    from nmf_zoo.results.loading import load

    return load(path)


def read_arrays(path: Any) -> dict[str, Any]:
    """All arrays of an .npz archive by name."""
    from nmf_zoo.interfaces.tables import read_archive

    return read_archive(path)


def declare(arguments: argparse.Namespace, rank: int) -> Any:
    """The model of ``--model`` and its hyperparameters on the file ``input``; cells are named by the file's labels."""
    data, hyperparameters = read_data(arguments), model_arguments(arguments)
    from nmf_zoo.models import MODELS

    try:
        return MODELS[arguments.model](rank=rank, **data, **hyperparameters)
    except InputError as error:
        raise InputError(error.name, name_cell(error.got, data["coords"]), error.expected, error.do) from error
