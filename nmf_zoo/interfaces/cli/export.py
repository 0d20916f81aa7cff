"""``nmf-zoo export``: a result as tables that other programs read."""

from __future__ import annotations

import argparse

from nmf_zoo.errors import InputError, under_names
from nmf_zoo.interfaces.cli.report import model_of, refuse_model_options
from nmf_zoo.interfaces.cli.show import load_result


def run_export(arguments: argparse.Namespace) -> int:
    from nmf_zoo.diagnostics.export import check_export, export

    try:
        with under_names(cnmf="--cnmf"):
            check_export(arguments.output, arguments.format, arguments.force, arguments.cnmf)
    except InputError as error:
        raise InputError(error.name, error.got, error.expected, error.do.replace("overwrite=True", "--force")) from None
    if arguments.data is None:
        refuse_model_options(arguments)
    idata, options = load_result(arguments.input), {"format": arguments.format, "chain": arguments.chain}
    options["model"] = None if arguments.data is None else model_of(arguments, idata)
    options |= {"diagnostics": arguments.diagnostics, "cnmf": arguments.cnmf}
    export(idata, arguments.output, **options, overwrite=arguments.force)
    print(f"wrote {arguments.output}: {', '.join(sorted(path.name for path in arguments.output.iterdir()))}")
    return 0
