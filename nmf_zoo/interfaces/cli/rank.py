"""``nmf-zoo rank``: which number of components the data prefer, as a table and a sentence."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError, under_names
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.fit import make_options, model_arguments, name_cell, read_data, read_search
from nmf_zoo.interfaces.cli.output import NETCDF, PICTURES, Formats, check_output, exit_code
from nmf_zoo.interfaces.cli.values import parse_ranks, parse_seed, parse_value

TABLES: Formats = {".csv": ((), ""), ".nc": NETCDF}


def run_rank(arguments: argparse.Namespace) -> int:
    outputs, ranks = arguments.output or [], parse_ranks("--ranks", arguments.ranks)
    for path in outputs:
        check_output(path, {**TABLES, **PICTURES}, arguments.force)
    method = catalogue.methods()[arguments.method]
    options = {name: parse_value(method.arguments[name], text) for name, text in _chosen(arguments)}
    seed = None if arguments.random_seed is None else parse_seed("--random-seed", arguments.random_seed)
    search = {} if arguments.search is None else read_search(arguments.search, "fit")
    data, hyperparameters = read_data(arguments), model_arguments(arguments)

    import nmf_zoo as nz
    from nmf_zoo.models import MODELS
    from nmf_zoo.workbench.rank import METHODS

    def declare(rank: int) -> Any:
        try:
            return MODELS[arguments.model](rank=rank, **data, **hyperparameters)
        except InputError as error:
            raise InputError(error.name, name_cell(error.got, data["coords"]), error.expected, error.do) from error

    table = nz.select_rank(
        declare,
        ranks,
        method=make_options(METHODS[arguments.method].options, options),
        restarts=arguments.restarts,
        **search,
        cores=arguments.cores,
        random_seed=seed,
        quiet=arguments.quiet,
        checkpoint=arguments.checkpoint,
    )
    stability = None
    if arguments.stability is not None and table.attrs["status"] != "interrupted":
        own = None if arguments.checkpoint is None else Path(arguments.checkpoint) / "stability"
        run = {"cores": arguments.cores, "random_seed": seed, "quiet": arguments.quiet, "checkpoint": own}
        with under_names(restarts="--stability"):
            stability = nz.stability(declare, ranks, arguments.stability, **run)
        table = table.assign(_of_ranks(stability))
    for path in outputs:
        with replacing(path, "output") as partial:
            _write(table, partial, stability)
    return _report(table, outputs, arguments, stability)


def _of_ranks(stability: Any) -> dict[str, Any]:
    """What a row of the table says of the stability of a rank."""
    of_ranks = {"came_again": stability["came_again"], "silhouette": stability["silhouette"].mean("component")}
    of_fits = {name: stability[name].mean("restart") for name in ("heldout", "error")}
    return {f"stability_{name}": values for name, values in (of_ranks | of_fits).items()}


def _chosen(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The options given for the method; those of another one are refused."""
    has = catalogue.methods()[arguments.method].arguments
    given = {key.partition(".")[2]: text for key, text in vars(arguments).items() if key.startswith("method.")}
    for name, text in given.items():
        if text is not None and name not in has:
            flags = (
                ", ".join(argument.flag for option, argument in has.items() if option in given)
                or "none of these options"
            )
            flag = "--" + name.replace("_", "-")
            raise InputError(flag, f"an option that {arguments.method} doesn't have", flags)
    return [(name, text) for name, text in given.items() if text is not None]


def _write(table: Any, path: Path, stability: Any) -> None:
    if path.suffix == ".nc":
        from nmf_zoo.netcdf import write_netcdf

        write_netcdf(table.assign(plausible=table["plausible"].astype("int8")), path)
    elif path.suffix == ".csv":
        table.to_dataframe().reset_index().to_csv(path, index=False)
    else:
        from nmf_zoo.plots import plot_rank, plot_stability

        picture = plot_rank(table) if stability is None else plot_stability(stability, evidence=table)
        write_figure(picture, path)


def _report(table: Any, outputs: list[Path], arguments: argparse.Namespace, stability: Any) -> int:
    if not arguments.quiet:
        print("\n".join(table_lines(table)))
    print(table.attrs["answer"])
    if stability is not None:
        print(stability.attrs["answer"])
    written = ", ".join(map(str, outputs))
    if table.attrs["status"] == "interrupted":
        goes_on = f"; the same command goes on from {arguments.checkpoint}" if arguments.checkpoint else ""
        force = " with --force" if goes_on and outputs else ""
        there = f"{written} holds what was there" if outputs else "the table holds what was there"
        print(f"nmf-zoo: interrupted; {there}{goes_on}{force}", file=sys.stderr)
        return exit_code()
    if outputs and not arguments.quiet:
        print(f"wrote {written} in {float(table.attrs['seconds']):.1f} s")
    return 0


def table_lines(table: Any) -> Iterator[str]:
    """One line per rank; * the best, ~ not ruled out."""
    has_gap = "shortfall" in table
    method, word = table.attrs["method"], "fit" if table.attrs.get("search") else "restart"
    heads = {"bound": "corrected" if has_gap else "bound", "holdout": "held out"}
    columns = [heads.get(method, "log evidence"), "behind" if has_gap or method == "bound" else "error", "difference"]
    of_stability = ["came again", "silhouette"] if "stability_came_again" in table else []
    heads_of_all = ["bound"] * has_gap + columns + of_stability
    yield f"  {'rank':>5}" + "".join(f"{head:>13}" for head in heads_of_all)
    for row in (table.isel(rank=i) for i in range(table.sizes["rank"])):
        rank = int(row["rank"])
        mark = "*" if rank == table.attrs["best"] else "~" if bool(row["plausible"]) else " "
        bound = f"{_bound_of_best(row):>13.2f}" if has_gap else ""
        numbers = (float(row[name]) for name in ("combined", "combined_error", "difference"))
        again = _of_stability(row) if of_stability else ""
        yield f"{mark} {rank:>5}{bound}" + "".join(f"{number:>13.2f}" for number in numbers) + again
    yield "* best, ~ not ruled out" + (f"; behind: how far the next {word} is" if method == "bound" else "")


def _bound_of_best(row: Any) -> float:
    """Of the fit whose corrected bound stands beside it, which need not be the one with the best bound."""
    corrected = row["estimate"].fillna(-math.inf).to_numpy()
    return float(row["bound"][int(corrected.argmax())])


def _of_stability(row: Any) -> str:
    silhouette = float(row["stability_silhouette"])
    again = f"{int(row['stability_came_again'])} of {int(row['rank'])}"
    return f"{again:>13}" + (f"{silhouette:>13.2f}" if silhouette == silhouette else f"{'-':>13}")
