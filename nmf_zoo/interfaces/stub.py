"""What type checkers and editors read of the package, whose names are imported at their first use: ``__init__.pyi``.

``python -m nmf_zoo.interfaces.stub`` writes it, after a public name has come or gone; a test says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nmf_zoo
from nmf_zoo.files import replacing

HOMES: dict[str, tuple[str, ...]] = vars(nmf_zoo)["_HOMES"]
FILE = Path(nmf_zoo.__file__).with_suffix(".pyi")
WIDEST = 120


def text() -> str:
    """The file's text."""
    names = "\n".join(f'    "{name}",' for name in nmf_zoo.__all__)
    imports = "\n".join(line for home in sorted(HOMES) for line in _import(home))
    return f"{imports}\n\n__version__: str\n__all__ = [\n{names}\n]\n"


def _import(home: str) -> Iterator[str]:
    """The names of one module: constants, classes, functions, each in the order of letters."""
    names = sorted(HOMES[home], key=lambda name: (not name.isupper(), name[0].islower(), name))
    line = f"from {home} import {', '.join(names)}"
    if len(line) <= WIDEST:
        yield line
    else:
        yield f"from {home} import ("
        yield from (f"    {name}," for name in names)
        yield ")"


if __name__ == "__main__":
    with replacing(FILE, "stub") as partial:
        partial.write_text(text(), encoding="utf-8")
