"""Execute every notebook in this folder, in place: ``python -m notebooks.run [name ...]``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
MINUTES = 20


def main(names: list[str]) -> None:
    """Run the notebooks named, or all; the first error stops and shows its cell."""
    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=60 * MINUTES, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            cell.get("metadata", {}).pop("execution", None)  # times of the run: they would change every time
        nbformat.write(notebook, path)
        print(f"{path.name}: ran in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
