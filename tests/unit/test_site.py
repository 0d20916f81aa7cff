"""The site: every public name is in its reference, and its extensions lose nothing. ``make docs`` builds it."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

import pytest

import nmf_zoo as nz

DOCS = Path(__file__).parents[2] / "docs"
OPTIONAL = ("sklearn.GammaPoissonNMF", "sklearn.ItakuraSaitoNMF")


def listed() -> list[str]:
    """The names under ``autosummary`` in the pages of the reference."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "reference").glob("*.md")))
    blocks = re.findall(r"^\.\. autosummary::\n   :toctree: generated\n\n((?:   \S+\n)+)", pages, flags=re.MULTILINE)
    return "".join(blocks).split()


@pytest.fixture
def extensions(monkeypatch):
    """The site's extensions can be imported."""
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    yield
    for name in ("house_style", "mathml", "links", "command_line"):
        sys.modules.pop(name, None)


def test_every_public_name_is_in_the_reference_once():
    names = listed()
    assert len(names) == len(set(names))
    assert set(nz.__all__) - {"__version__"} <= set(names)
    assert set(OPTIONAL) <= set(names)


def test_every_page_of_the_guide_and_the_reference_is_in_a_table_of_contents():
    for folder in ("guide", "reference"):
        index = (DOCS / folder / "index.md").read_text(encoding="utf-8")
        inside = re.search(r"```\{toctree\}\n(.*?)```", index, flags=re.DOTALL)[1].split()
        pages = {path.stem for path in (DOCS / folder).glob("*.md")} - {"index"}
        assert pages <= set(inside)


def words(lines: list[str]) -> list[str]:
    """What a docstring says, without what the house style may change."""
    return [word.lower() for word in re.findall(r"[\w`<>=\"']+", " ".join(lines))]


@pytest.mark.parametrize("name", [name for name in nz.__all__ if name != "__version__"])
def test_docstrings_keep_their_words(name, extensions):
    from house_style import process

    lines = (inspect.getdoc(getattr(nz, name)) or "").splitlines()
    assert lines, name
    changed = list(lines)
    process(None, "function", name, None, None, changed)
    assert words(changed) == words(lines)


def test_entries_that_run_on_become_descriptions(extensions):
    from house_style import process

    long = "what it is, in so many words that the line is full before the sentence has come to an end, and so on"
    lines = ["Does it.", "", "Parameters", "----------", f"x : {long}", "    further in the next one"]
    lines += [
        "y : int, optional",
        "z : number of things",
        "w : (F, K)",
        "    Weights.",
        "",
        "Returns",
        "-------",
        "Dataset with ``a``,",
        "and b.",
    ]
    process(None, "function", "f", None, None, lines)
    assert lines[4:11] == [
        "x",
        f"    W{long[1:]}",
        "    further in the next one",
        "y : int, optional",
        "z",
        "    Number of things",
        "w : (F, K)",
    ]
    assert lines[-3:] == ["Dataset", "    With ``a``,", "    and b."]


def test_names_in_text_lead_to_the_reference(extensions):
    pytest.importorskip("sphinx")
    pytest.importorskip("sklearn")
    from links import target_of

    assert target_of("nz.align(idata)") == "nmf_zoo.align"
    assert target_of("gamma_nmf") == "nmf_zoo.gamma_nmf"
    assert target_of("EM(mode='log')") == "nmf_zoo.EM"
    assert target_of("GammaPoissonNMF") == "nmf_zoo.sklearn.GammaPoissonNMF"
    assert [target_of(text) for text in ("fit", "sample_stats", "gap_given", "W @ H", "nz.nothing")] == [None] * 5


def test_the_page_of_the_command_line_has_every_option(extensions):
    pytest.importorskip("sphinx")
    from command_line import commands, section

    from nmf_zoo.interfaces.cli.parser import make_parser

    found = commands(make_parser())
    assert {"fit", "rank", "report"} <= set(found)
    for name, parser in found.items():
        text = section(name, parser).astext()
        actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        assert all(option in text for action in actions for option in action.option_strings)


def test_formulas_of_the_reference_can_be_shown(extensions):
    pytest.importorskip("sphinx")
    from docutils.utils.math import latex2mathml
    from mathml import with_sides

    for name in set(nz.__all__) - {"__version__"}:
        for formula in re.findall(r":math:`([^`]+)`", inspect.getdoc(getattr(nz, name)) or ""):
            assert "<math" in str(latex2mathml.tex2mathml(with_sides(formula), as_block=False))
    assert "<math" in str(latex2mathml.tex2mathml(with_sides(r"\Big(\sum_k w_k \Big), \big|x\big|"), as_block=True))
