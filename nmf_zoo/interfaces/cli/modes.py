"""``nmf-zoo modes``: what each mode weighs that a result's chains are in, and one posterior of them."""

from __future__ import annotations

import argparse

from nmf_zoo.errors import InputError
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.interfaces.cli.output import PICTURES, RESULTS, check_output
from nmf_zoo.interfaces.cli.report import model_of
from nmf_zoo.interfaces.cli.show import load_result
from nmf_zoo.interfaces.cli.values import parse_seed

WEIGHED = ("draws", "tune", "cores")


def run_modes(arguments: argparse.Namespace) -> int:
    outputs = arguments.output or []
    for path in outputs:
        check_output(path, {**RESULTS, **PICTURES}, arguments.force)
    if arguments.pool and not any(path.suffix in RESULTS for path in outputs):
        raise InputError("--pool", "no result among the outputs", "a place for the draws", "e.g. -o pooled.nc")
    idata = load_result(arguments.input)

    import nmf_zoo as nz
    from nmf_zoo.results.modes import describe_modes, require_modes

    how = {name: getattr(arguments, name) for name in WEIGHED if getattr(arguments, name) is not None}
    if arguments.random_seed is not None:
        how["random_seed"] = parse_seed("--random-seed", arguments.random_seed)
    # A result from a file has its declaration without the data, which the evidence is of.
    weighed = nz.weigh_modes(idata, model_of(arguments, idata), progressbar=not arguments.quiet, **how)
    print(describe_modes(require_modes(weighed)))
    kept = nz.pool(weighed, random_seed=how.get("random_seed")) if arguments.pool else weighed
    for path in outputs:
        with replacing(path, "output") as partial:
            if path.suffix in RESULTS:
                nz.save(kept, partial)
            else:
                write_figure(nz.plot_modes(weighed), partial)
        print(f"wrote {path}")
    return 0
