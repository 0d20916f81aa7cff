"""Execute the notebooks: ``python -m notebooks.run [number or name ...]``.

A notebook is a text file (``01_digits.py``, jupytext's percent format), which is what one edits, and what came out of
running it (``01_digits.ipynb``, with outputs, so that pictures are seen where they are browsed). This makes the second
from the first. Data sets are looked for in the folder ``NMF_ZOO_DATA``; without them a notebook simulates a stand-in
and says so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
MINUTES = 30  # the longest that a cell may take
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def main(names: list[str]) -> None:
    """Run the notebooks named, or all; the first error stops, shows its cell, and leaves the old outputs in place."""
    for source in sources(names):
        began = time.perf_counter()
        nbformat.write(executed(source), source.with_suffix(".ipynb"))
        print(f"{source.stem}: ran in {time.perf_counter() - began:.0f} s", flush=True)


def sources(names: list[str]) -> list[Path]:
    """The texts of these notebooks: a name, with or without its ending, or its number alone."""
    texts = sorted(FOLDER.glob("[0-9]*.py"))
    found = [path for path in texts if not names or any(path.stem.startswith(Path(name).stem) for name in names)]
    if not found:
        sys.exit(f"no notebook {' '.join(names)}; there are {', '.join(path.stem for path in texts)}")
    return found


def executed(source: Path) -> Any:
    """The notebook of a text, run from top to bottom in a kernel of its own."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=60 * MINUTES, resources=resources).execute()
    notebook.metadata.language_info = nbformat.from_dict({"name": "python"})  # not the version that ran it
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # a random one would change with every run
        cell.metadata.pop("execution", None)  # so would times
    return notebook


if __name__ == "__main__":
    main(sys.argv[1:])
