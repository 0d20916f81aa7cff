"""Notebooks: each runs as a new machine would run it, and what is kept is what its text gives."""

from __future__ import annotations

import json
import re

import pytest

jupytext = pytest.importorskip("jupytext")
pytest.importorskip("matplotlib")
from tests.notebook_runs import TEXTS, on_each_line, run_small  # noqa: E402

NAMES = [text.stem for text in TEXTS]
# Of PyMC's functions: that of a chain of NUTS. Elsewhere their compilation takes longer than the notebook.
MANY_EVALUATIONS = {"03_gibbs_and_nuts"}
each = pytest.mark.parametrize("text", TEXTS, ids=NAMES)


def kept(text):
    return json.loads(text.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]


def test_there_are_fifteen_in_the_order_in_which_to_read_them():
    assert [name[:2] for name in NAMES] == [f"{number:02d}" for number in range(1, 16)]


@pytest.mark.parametrize("text", [on_each_line(text, text.read_text(encoding="utf-8")) for text in TEXTS])
def test_a_new_machine_runs_it(text, monkeypatch, tmp_path, request):
    """Long: a whole notebook, at small settings."""
    if text.stem in MANY_EVALUATIONS:
        request.getfixturevalue("compiled_graphs")
    assert run_small(text, monkeypatch, tmp_path, data=None) >= 1


@each
def test_what_is_kept_is_its_text_run_once_from_top_to_bottom(text):
    cells = kept(text)
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        (cell.cell_type, cell.source) for cell in jupytext.read(text).cells
    ]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


@each
def test_what_is_kept_is_small_and_names_no_machine(text):
    written = text.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert len(written) < 0.9e6
    assert not re.search(r"/(home|root|work|tmp|Users)/", written)
