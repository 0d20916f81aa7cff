"""``nmf-zoo simulate``: a data matrix drawn from a declaration."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.files import replacing
from nmf_zoo.interfaces.cli.fit import model_arguments, read_arrays
from nmf_zoo.interfaces.cli.output import NETCDF, Formats, check_output
from nmf_zoo.interfaces.cli.values import parse_shape

SEPARATORS = {".csv": ",", ".tsv": "\t"}
FORMATS: Formats = {**dict.fromkeys((".csv", ".tsv", ".npy", ".npz"), ((), "")), ".nc": NETCDF}


def run_simulate(arguments: argparse.Namespace) -> int:
    shape = parse_shape("--shape", arguments.shape)
    check_output(arguments.output, FORMATS, arguments.force)
    if arguments.random_seed is not None and arguments.random_seed < 0:
        raise InputError("--random-seed", str(arguments.random_seed), "an integer >= 0")
    given = read_arrays(arguments.given) if arguments.given else {}

    import nmf_zoo as nz
    from nmf_zoo.models import MODELS

    model = MODELS[arguments.model](None, arguments.rank, shape=shape, **model_arguments(arguments))
    drawn = nz.simulate(_fixed(model, given), random_seed=arguments.random_seed)
    with replacing(arguments.output, "output") as partial:
        _write(drawn, given, partial)
    print(f"wrote {arguments.output}: {number_of(shape[0], 'feature')} x {number_of(shape[1], 'sample')}")
    return 0


def _fixed(model: Any, given: dict[str, Any]) -> Any:
    """The model with some variables set to known values."""
    import pymc as pm

    free = [variable.name for variable in model.free_RVs]
    for name in given:
        if name not in free or name == "X":
            raise InputError("--given", f"a value for {name!r}", f"names among {[n for n in free if n != 'X']}")
    return pm.do(model, given) if given else model


def _write(drawn: Any, given: dict[str, Any], path: Path) -> None:
    import numpy as np

    from nmf_zoo.netcdf import write_netcdf

    X = drawn["X"].transpose("feature", "obs")
    if path.suffix == ".npy":
        np.save(path, X.to_numpy())
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{name: array.to_numpy() for name, array in drawn.items()}, **given)
    elif path.suffix == ".nc":
        write_netcdf(drawn, path)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=SEPARATORS[path.suffix])
            writer.writerow(["", *X["obs"].to_numpy()])
            for label, row in zip(X["feature"].to_numpy(), X.to_numpy(), strict=True):
                writer.writerow([label, *row.tolist()])
