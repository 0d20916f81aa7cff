"""``nmf-zoo report``: one page on a result."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError
from nmf_zoo.files import replacing
from nmf_zoo.interfaces.cli.fit import declare
from nmf_zoo.interfaces.cli.output import Formats, check_output
from nmf_zoo.interfaces.cli.parser import FILES
from nmf_zoo.interfaces.cli.show import load_result
from nmf_zoo.interfaces.cli.values import parse_shape

PAGES: Formats = dict.fromkeys((".html", ".htm"), (("matplotlib",), "'nmf_zoo[plots]'"))
OF_DATA = (*FILES, "transpose", "labels", "key", "header", "row_labels", "observed")  # mean nothing without --data


def run_report(arguments: argparse.Namespace) -> int:
    check_output(arguments.output, PAGES, arguments.force)
    shape = parse_shape("--shape", arguments.shape) if arguments.shape else None
    if arguments.data is None:
        refuse_model_options(arguments)
    idata = load_result(arguments.input)

    import nmf_zoo as nz

    model = None if arguments.data is None else model_of(arguments, idata)
    with replacing(arguments.output, "output") as partial:
        nz.report(idata, partial, model, title=arguments.title, shape=shape)
    print(f"wrote {arguments.output}")
    return 0


def refuse_model_options(arguments: argparse.Namespace) -> None:
    """Options that would be passed over."""
    given = vars(arguments)
    names = [name for name in given if name.startswith("model.") and given[name] is not None]
    names += [name for name in OF_DATA if given[name] not in (None, False)]
    names += ["model"] if arguments.model is not None else []
    if names:
        flag = "--" + names[0].removeprefix("model.").replace("_", "-")
        raise InputError(
            flag, "an option of the model", "--data FILE beside it", "without data the result says what model it is of"
        )


def model_of(arguments: argparse.Namespace, idata: Any) -> Any:
    """The declaration on the data file, of the result's rank."""
    from nmf_zoo.reading import read
    from nmf_zoo.reports.source import Source

    *cells, rank = Source(idata, None, None, "W", "H", None).shape
    if rank is None:
        raise InputError("--data", "a result without W and H", "a result that tells the number of components")
    words = {**vars(arguments), "input": arguments.data, "model": arguments.model or "gamma-nmf"}
    model = declare(argparse.Namespace(**words), rank)
    _check_cells(arguments.data, read(model).shape, tuple(cells), arguments.transpose)
    return model


def _check_cells(path: Path, got: tuple[int, int], expected: tuple[int | None, ...], is_turned: bool) -> None:
    """Refuse data of another shape than the result's."""
    if any(known is not None and known != own for own, known in zip(got, expected, strict=True)):
        whole = " x ".join("?" if size is None else str(size) for size in expected)
        turn = "leave --transpose out" if is_turned else "samples in the rows of the file want --transpose"
        hint = turn if got[::-1] == expected else "give the file it is of"
        raise InputError(
            str(path), f"{got[0]} x {got[1]} cells", f"{whole}, features x samples, as in the result", hint
        )
