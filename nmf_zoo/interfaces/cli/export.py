"""``nmf-zoo export``: a result as tables that other programs read."""

from __future__ import annotations

import argparse

from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.cli.show import load_result


def run_export(arguments: argparse.Namespace) -> int:
    from nmf_zoo.diagnostics.export import check_export, export

    try:
        check_export(arguments.output, arguments.format, arguments.force)
    except InputError as error:
        raise InputError(error.name, error.got, error.expected, error.do.replace("overwrite=True", "--force")) from None
    idata, options = load_result(arguments.input), {"format": arguments.format, "chain": arguments.chain}
    export(idata, arguments.output, **options, diagnostics=arguments.diagnostics, overwrite=arguments.force)
    print(f"wrote {arguments.output}: {', '.join(sorted(path.name for path in arguments.output.iterdir()))}")
    return 0
