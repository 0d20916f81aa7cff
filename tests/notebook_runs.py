"""Running the text of a notebook at small settings, in this process: every cell, with pictures on no screen."""

from __future__ import annotations

import os
import re
import runpy
import warnings
from functools import wraps
from pathlib import Path

import pytest

from nmf_zoo import Search

FOLDER = Path(__file__).parents[1] / "notebooks"
TEXTS = sorted(FOLDER.glob("[0-9]*.py"))
# Functions of PyMC's and ArviZ's. Its classes, and known factors, only declare: what is read of these is tested apart.
OF_OTHERS = re.compile(r"^[^#\n]*\b(pm\.(?!do\b|[A-Z])|az\.)", flags=re.MULTILINE)

FITS = 6  # four begin anew, two from what these have found


def on_each_line(path: Path, code: str):
    """As a parameter: on both PyMC lines if it is the README or calls functions of PyMC or ArviZ, else on the first."""
    both = path.stem == "README" or OF_OTHERS.search(code)
    return pytest.param(path, id=path.stem, marks=[] if both else pytest.mark.engines)


def search_little(monkeypatch):
    """Searches make few fits where nobody says how many."""
    right = Search.__init__

    @wraps(right)
    def init(search, **given):
        right(search, **{"fits": FITS} | given)

    monkeypatch.setattr(Search, "fits", FITS)
    monkeypatch.setattr(Search, "__init__", init)


def run_small(text: Path, monkeypatch, tmp_path, data: str | None) -> int:
    """Executes the notebook as it is where ``NMF_ZOO_DATA`` is ``data``; the number of its open pictures.

    Notebooks silence warnings that they explain, change matplotlib's style and may write beside them: none of that
    outlives the call.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    search_little(monkeypatch)
    monkeypatch.setenv("NMF_ZOO_NOTEBOOK", "small")
    monkeypatch.setenv("NMF_ZOO_DATA", data) if data else monkeypatch.delenv("NMF_ZOO_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(text), run_name="__main__")  # a module: states in checkpoints are looked up by name
        return len(plt.get_fignums())
    finally:
        plt.close("all")


def data_folder() -> str | None:
    """The folder of the data sets, if there is one."""
    folder = os.environ.get("NMF_ZOO_DATA")
    return folder if folder and Path(folder).is_dir() else None
