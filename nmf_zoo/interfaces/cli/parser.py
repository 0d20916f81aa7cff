"""The parser: commands, and one option for every argument in the catalogue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from nmf_zoo import __version__
from nmf_zoo.errors import did_you_mean
from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.catalogue import Argument, Entry

FILES = {
    "mask": "which cells were observed: 1 or 0",
    "exposure": "known factor > 0 of the mean: a table like X, a row (per sample), a column (per feature) or a number; "
    "given twice, a row and a column: their product",
    "background": "known term >= 0 of the mean, as --exposure",
}
NOT_HYPERPARAMETERS = {*FILES, "observed", "coords", "shape"}
NOT_OPTIONS = {
    "engine",
    "model",
    "initvals",
    "start",
    "search",
    "idata_kwargs",
    "data",
    "store",
    "on_step",
    "executor",
}  # objects of Python; --initvals, --search, --log-likelihood, --scheduler and an output .zarr stand for most

TABLE = ".csv .tsv .txt .mtx (also .gz), .npz .npy .parquet, features in rows; .h5ad; a folder: 10x, AnnData's Zarr"
KINDS = ("components", "activations", "trace", "objective")  # pictures that need a result and nothing else
EXIT_CODES = "0 done, 1 failed, 2 bad input, 130 interrupted by Ctrl-C, 143 by SIGTERM; what was drawn is then saved"
NOT_OF_RANKS = {"vb"}  # of a method: objects of Python


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """A command refuses what it doesn't know by itself, so that its own help is the one to see."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hints = (did_you_mean(word.partition("=")[0], self._option_string_actions) for word in unknown)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_after(next(filter(None, hints), ''))}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(value, action.choices or ())
            raise argparse.ArgumentError(action, f"{error.message}{_after(hint)}") from None


def _after(hint: str) -> str:
    return f"; {hint}" if hint else ""


def make_parser() -> Parser:
    """All commands. Each names the function that runs it, imported when it runs."""
    about, codes = "Probabilistic non-negative matrix factorisation, X ~ W H.", f"Exit codes: {EXIT_CODES}."
    parser = Parser(prog="nmf-zoo", description=about, epilog=codes)
    parser.add_argument("--version", action="version", version=f"nmf-zoo {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, home: str, help: str) -> Parser:
        text = help[0].upper() + help[1:] + "."
        added = commands.add_parser(name, help=help, description=text, epilog=codes, allow_abbrev=False)
        added.set_defaults(run=_later(home, name))
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return added

    _fill_describe(command("describe", "describe", "say what a table holds, and which model suits it"))
    _fill_fit(command("fit", "fit", "sample or fit a model on a file of counts or powers"))
    _fill_rank(command("rank", "rank", "choose the number of components"))
    _fill_summary(command("summary", "show", "say what a result holds and whether it converged"))
    _fill_plot(command("plot", "show", "draw a result: components or activations with their uncertainty, or its trace"))
    _fill_export(command("export", "export", "write a result as tables, CSV or Parquet"))
    _fill_report(command("report", "report", "write one self-contained web page on a result"))
    _fill_modes(command("modes", "modes", "weigh the modes that a result's chains are in, and pool its draws by these"))
    _fill_convert(command("convert", "convert", "write tables as one store that fits go over in blocks, nz.fit(data=)"))
    _fill_compare(command("compare", "compare", "run several engines on one model and compare them"))
    command("models", "lists", "list the models and their hyperparameters")
    engines = command("engines", "lists", "show which engine runs which model, and why not")
    engines.add_argument("--markdown", action="store_true", help="as a Markdown table")
    _fill_simulate(command("simulate", "simulate", "draw a data matrix from a model"))
    _fill_separate(command("separate", "separate", "separate a recording into components that sum to it"))
    _fill_compile(command("compile", "cache", "compile engines ahead of their first run: for images, clusters"))
    cache = command("cache", "cache", "show where compiled kernels are kept, and how many")
    cache.add_argument("--clear", action="store_true", help="remove them; the next run of an engine compiles again")
    _fill_demo(command("demo", "demo", "posterior of gamma-nmf on handwritten digits, with a picture"))
    return parser


def _later(home: str, name: str) -> Callable[[argparse.Namespace], int]:
    return lambda arguments: getattr(import_module(f"nmf_zoo.interfaces.cli.{home}"), f"run_{name}")(arguments)


def _fill_describe(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help=TABLE)
    _add_table(parser)


def _fill_fit(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help=TABLE)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="result, .nc, or .zarr: draws go there as they come"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    _add_model(parser)
    parser.add_argument("--engine", default="gibbs", choices=catalogue.engines(), help="algorithm (default gibbs)")
    _add_input(parser)
    run = parser.add_argument_group(
        "the run", "What sampling engines take, and what optimisers take; the defaults are Python's."
    )
    run.add_argument(
        "--initvals",
        type=Path,
        metavar="FILE",
        help="start: .npz with arrays named W, H, ..., or the result of another run, .nc or .zarr",
    )
    run.add_argument(
        "--search",
        type=int,
        metavar="FITS",
        help="search for the best mode by so many local fits, sampling engines start all chains there; 0: no search "
        "(default 16, for sampling engines as many as fit beside their warm-up)",
    )
    run.add_argument("--log-likelihood", action="store_true", help="also store the log-likelihood of every cell")
    run.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster that shares the passes over a store of blocks: tcp://host:port",
    )
    _add_options(run, "run", catalogue.runs(), NOT_OPTIONS)
    engine = parser.add_argument_group("options of the engine")
    _add_options(engine, "engine", catalogue.engines(), set())


def _fill_rank(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help=TABLE)
    parser.add_argument("--ranks", required=True, help="numbers of components: 1:10, 10:50:5, or 2,4,8")
    parser.add_argument(
        "--method", default="bound", choices=catalogue.methods(), help="how a rank is judged (default bound)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, action="append", help="table .csv .nc, or picture .png .pdf .svg; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    _add_model(parser, with_rank=False)
    _add_input(parser)
    run = parser.add_argument_group("the search")
    text = (
        "runs of each rank, splits of holdout, or of a search the fits that begin anew (default 5 splits, else 4 runs)"
    )
    run.add_argument("--restarts", type=int, help=text)
    run.add_argument(
        "--search",
        type=int,
        metavar="FITS",
        help="search for the best mode of every rank by so many local fits, of bound and holdout (default 16); 0: no "
        "search, the bound is the best of --restarts (default 10)",
    )
    run.add_argument(
        "--stability",
        type=int,
        metavar="FITS",
        help="also fit each rank so many times without random parts of the data: which components come again",
    )
    run.add_argument("--random-seed", metavar="SEED", help="the same seed gives the same numbers")
    run.add_argument("--cores", type=int, help="threads (default every core)")
    run.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="the same command goes on from there")
    run.add_argument("--quiet", action="store_true", help="the answer alone: no bar, no table")
    _add_options(parser.add_argument_group("options of the method"), "method", catalogue.methods(), NOT_OF_RANKS)


def _add_table(parser: Parser) -> None:
    table = parser.add_argument_group("the input file")
    table.add_argument("--transpose", action="store_true", help="samples are in the rows")
    table.add_argument("--labels", "--vocab", type=Path, metavar="FILE", help="feature names, one per line (.gz too)")
    table.add_argument("--key", help="which array of an .npz archive, or kind of features of a folder of 10x")
    table.add_argument("--layer", help="which layer of an AnnData file (default X)")
    table.add_argument("--header", metavar="yes|no", help="a text file has a header line (default: by its first lines)")
    table.add_argument(
        "--row-labels", metavar="yes|no", help="its first column holds labels (default: by its first lines)"
    )


def _add_input(parser: Parser) -> None:
    _add_table(parser)
    data = parser.add_argument_group("the data's model")
    for name, text in FILES.items():
        action = "store" if name == "mask" else "append"
        data.add_argument(f"--{name}", type=Path, metavar="FILE", help=text, action=action)
    data.add_argument("--observed", choices=["stored"], help="only the stored cells of a sparse matrix were observed")


def _add_model(parser: Parser, with_rank: bool = True) -> None:
    parser.add_argument("--model", default="gamma-nmf", choices=catalogue.models(), help="default gamma-nmf")
    if with_rank:
        parser.add_argument("--rank", type=int, required=True, help="number of components")
    text = (
        "A number, one number per component (1,2,3), a file with an array, free, or free:TIE as in nz.free. "
        "--known is a table, components in columns, or a result: the first components of W; --known-h of H, in rows. "
        "--batch is a file: in each line the batch of a sample, or a sample and its batch; --design is a table of "
        "covariates, a sample in each row."
    )
    group = parser.add_argument_group("hyperparameters of the model", text)
    _add_options(group, "model", catalogue.models(), NOT_HYPERPARAMETERS, explain=False)


def _add_options(
    group: Any, prefix: str, entries: Mapping[str, Entry], leave_out: set[str], explain: bool = True
) -> None:
    """One option per argument name; the texts stay texts until the chosen entry says what they are."""
    for name, owners in _owners(entries.values(), leave_out).items():
        argument = owners[0][1]
        users = ", ".join(owner.name.replace("_", "-") for owner, _ in owners)
        help = f"{users}: {argument.help or argument.name}{_defaults(owners)}" if explain else users
        kind = (
            {"action": argparse.BooleanOptionalAction} if argument.annotation == "bool" else {"metavar": name.upper()}
        )
        group.add_argument(argument.flag, dest=f"{prefix}.{name}", default=None, help=help.replace("%", "%%"), **kind)


def _defaults(owners: list[tuple[Entry, Argument]]) -> str:
    """The default, or each owner's when they differ; nothing where there is none to show."""
    defaults = {owner.name: argument.default for owner, argument in owners}
    if set(defaults.values()) & {"None", ""} or any(word.isupper() for word in defaults.values()):
        return ""
    if len(set(defaults.values())) == 1:
        return f" (default {owners[0][1].default})"
    return f" (default {', '.join(f'{default} for {owner}' for owner, default in defaults.items())})"


def _owners(entries: Iterable[Entry], leave_out: set[str]) -> dict[str, list[tuple[Entry, Argument]]]:
    found: dict[str, list[tuple[Entry, Argument]]] = {}
    for entry in entries:
        for name, argument in entry.arguments.items():
            if name not in leave_out:
                found.setdefault(name, []).append((entry, argument))
    return found


def _fill_summary(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help="a result, .nc or .zarr")
    parser.add_argument("--features", type=int, default=8, metavar="N", help="top features per component (default 8)")
    parser.add_argument("--all-cells", action="store_true", help="every followed cell of W H, not only the worst")


def _fill_plot(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help="a result, .nc or .zarr")
    parser.add_argument("-o", "--output", type=Path, required=True, help="picture, .png .pdf .svg")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    parser.add_argument("--kind", choices=KINDS, default="components", help="default components; objective is of a fit")
    parser.add_argument("--shape", metavar="RxC", help="of an image whose pixels the features are, e.g. 8x8")
    text = "components of this chain or restart (default: of the chains in the mode of the best one)"
    parser.add_argument("--chain", type=int, help=text)
    text = "components: channels of a catalogue of mutations in the field's order (default: where they are such)"
    parser.add_argument("--layout", choices=("auto", "sbs96", "dbs78", "id83", "none"), help=text)
    text = "features of components, samples of activations: a file with label and group in each line, or a group alone"
    parser.add_argument("--groups", type=Path, metavar="FILE", help=text)
    text = "activations: samples as they come, or from the largest to the smallest (default: by what there is room for)"
    parser.add_argument("--order", choices=("auto", "given", "size"), help=text)
    parser.add_argument("--scale", choices=("auto", "linear", "log"), help="activations: of the vertical axis")


def _fill_export(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help="a result, .nc or .zarr")
    text = "folder for W, H, shares, exposures and a README of their columns"
    parser.add_argument("-o", "--output", type=Path, required=True, help=text)
    parser.add_argument("--force", action="store_true", help="replace an earlier export")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv", help="default csv")
    text = "draws of this chain or restart (default: of the chains in the mode of the best one)"
    parser.add_argument("--chain", type=int, help=text)
    text = "R-hat and effective draws of every cell (default: of up to 20,000 cells)"
    parser.add_argument("--diagnostics", action=argparse.BooleanOptionalAction, help=text)
    text = "also wide tables of means, under the names that cNMF gives those of a run of this name"
    parser.add_argument("--cnmf", metavar="NAME", help=text)
    text = "the data that it is of, with --exposure: what components add to samples is then in units of the data"
    parser.add_argument("--data", type=Path, metavar="FILE", help=text)
    _add_table(parser)
    text = f"of a model that had one: {FILES['exposure']}"
    parser.add_argument("--exposure", type=Path, metavar="FILE", help=text, action="append")
    others = [name for name in FILES if name != "exposure"]
    parser.set_defaults(model=None, observed=None, **dict.fromkeys(others))


def _fill_report(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help="a result, .nc or .zarr")
    parser.add_argument("-o", "--output", type=Path, required=True, help="page, .html")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--shape", metavar="RxC", help="of an image whose pixels the features are, e.g. 8x8")
    text = "the data; with them and the model's options the page adds predictive intervals"
    parser.add_argument("--data", type=Path, metavar="FILE", help=text)
    _add_model(parser, with_rank=False)
    parser.set_defaults(model=None)
    _add_input(parser)


def _fill_modes(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help="a result of the Gibbs engine, .nc or .zarr")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="the data that it is of")
    text = "result .nc .zarr with what the modes weigh, or picture .png .pdf .svg; may be repeated"
    parser.add_argument("-o", "--output", type=Path, action="append", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite the outputs")
    parser.add_argument("--pool", action="store_true", help="write one posterior, of each mode as much as it weighs")
    _add_model(parser, with_rank=False)
    _add_input(parser)
    run = parser.add_argument_group("the estimate")
    run.add_argument("--draws", type=int, help="of each mode, at the most (default 2000)")
    run.add_argument("--tune", type=int, help="warm-up sweeps before those of a sharper density (default 200)")
    run.add_argument("--random-seed", metavar="SEED", help="the same seed gives the same estimate")
    run.add_argument("--cores", type=int, help="threads (default every core)")
    run.add_argument("--quiet", action="store_true", help="no bars")


def _fill_convert(parser: Parser) -> None:
    text = "tables of the same features, in the order of their samples, and the store, .zarr; each is a block"
    parser.add_argument("tables", type=Path, nargs="+", metavar="FILE", help=text)
    parser.add_argument("--transpose", action="store_true", help="samples are in the rows of the tables")
    parser.add_argument("--layer", help="of AnnData, in place of X")
    text = "store cells compressed (default), or as they are, for faster passes"
    parser.add_argument("--compress", action=argparse.BooleanOptionalAction, default=True, help=text)
    parser.add_argument("--force", action="store_true", help="overwrite the store")


def _fill_compare(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help=TABLE)
    text = "default gibbs,nuts; with options of an engine: gibbs,gibbs:moves=scale,nuts:target_accept=0.9"
    parser.add_argument("--engines", default="gibbs,nuts", metavar="A,B,...", help=text)
    parser.add_argument(
        "-o", "--output", type=Path, action="append", help="table .csv, or picture .png .pdf .svg; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    _add_model(parser)
    _add_input(parser)
    run = parser.add_argument_group("the runs")
    run.add_argument("--draws", type=int, help="of each chain of a sampler (default 1000)")
    run.add_argument("--tune", type=int, help="sweeps or draws before them (default 1000)")
    run.add_argument("--chains", type=int, help="of each sampler (default 4)")
    run.add_argument("--max-iter", type=int, help="iterations of optimisers at the most (default 2000)")
    run.add_argument("--reference", metavar="ENGINE", help="whose means are the standard (default the first sampler)")
    run.add_argument("--random-seed", metavar="SEED", help="the same seed gives the same draws")
    run.add_argument("--cores", type=int, help="threads (default every core)")
    run.add_argument("--quiet", action="store_true", help="the table alone: no bars")


def _fill_simulate(parser: Parser) -> None:
    _add_model(parser)
    parser.add_argument("--shape", required=True, metavar="FxN", help="features x samples, e.g. 64x100")
    parser.add_argument(
        "--given", type=Path, metavar="FILE", help=".npz with known values by variable name, e.g. W of a flat factor"
    )
    parser.add_argument("--random-seed", type=int, help="the same seed gives the same data")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="X: .csv .tsv .npy; X and all variables: .npz .nc"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the output")


def _fill_separate(parser: Parser) -> None:
    parser.add_argument("input", type=Path, help=".wav; .flac .ogg .mp3 and more with 'nmf_zoo[audio]'")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for component_1.wav, ..., a picture")
    parser.add_argument("--force", action="store_true", help="overwrite the components that the folder holds")
    parser.add_argument("--rank", type=int, required=True, help="number of components")
    sound = parser.add_argument_group("the spectra")
    sound.add_argument("--window", type=float, metavar="MS", help="milliseconds of a frame (default about 32)")
    sound.add_argument("--hop", type=float, metavar="MS", help="milliseconds between frames (default half a window)")
    sound.add_argument(
        "--sample-format", metavar="FORMAT", help="of the output: int16, int24, float32, ... (default the input's)"
    )
    run = parser.add_argument_group("the run", "Itakura-Saito NMF by simulated online EM; the defaults are good ones.")
    run.add_argument("--alpha", type=float, help="shape of the activations' inverse-gamma prior (default 1)")
    run.add_argument("--beta", type=float, help="its scale (default 1)")
    run.add_argument("--sweeps", type=int, help="Gibbs sweeps of a frame (default 20)")
    run.add_argument("--keep", type=int, help="how many of the last are averaged (default 15)")
    run.add_argument("--leaps", type=int, help="leapfrog steps that end a sweep (default 2)")
    run.add_argument("--exponent", type=float, help="the n-th step has size n^-exponent (default 0.6)")
    run.add_argument("--batch", type=int, help="frames of one step (default 1)")
    run.add_argument("--passes", type=int, help="how often the recording is gone through to learn (default 3)")
    run.add_argument("--random-seed", metavar="SEED", help="the same seed gives the same components")
    run.add_argument("--cores", type=int, help="threads (default every core)")
    run.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="the same command goes on from there")
    run.add_argument("--quiet", action="store_true", help="no bar, no table")


def _fill_compile(parser: Parser) -> None:
    parser.add_argument("--engines", metavar="A,B,...", help="of engines, streams and evidence methods; default all")
    parser.add_argument("--cores", type=int, help="processes side by side (default every core)")
    parser.add_argument("--quiet", action="store_true", help="no bar, nothing at the end")


def _fill_demo(parser: Parser) -> None:
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where to write (default demo)")
    parser.add_argument("--force", action="store_true", help="overwrite an earlier demo")
    parser.add_argument("--random-seed", type=int, default=1, help="default 1")
