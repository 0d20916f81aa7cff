"""``nmf-zoo convert``: tables as one store of counts by sample, which fits go over in blocks."""

from __future__ import annotations

import argparse

from nmf_zoo.errors import InputError, NotWritten, number_of


def run_convert(arguments: argparse.Namespace) -> int:
    from nmf_zoo.interfaces.blocks import OPENERS, open_blocks
    from nmf_zoo.interfaces.blocks.store import write_blocks

    *tables, output = arguments.tables
    if not tables:
        raise InputError("tables", "one path", "the tables and then the store", "nmf-zoo convert a.mtx b.mtx out.zarr")
    is_opened = len(tables) == 1 and (tables[0].is_dir() or tables[0].suffix.lower() in OPENERS)
    given = tables[0] if is_opened else tables
    source = open_blocks(given, layer=arguments.layer, transpose=arguments.transpose)
    try:
        write_blocks(output, source, compress=arguments.compress, overwrite=arguments.force)
    except NotWritten:
        raise
    except InputError as error:
        raise InputError(error.name, error.got, error.expected, error.do.replace("overwrite=True", "--force")) from None
    features, samples = source.shape
    sizes = f"{number_of(features, 'feature')} x {number_of(samples, 'sample')}"
    print(f"wrote {output}: {sizes}, from {number_of(len(source.bounds) - 1, 'block')}")
    return 0
