"""The examples of the README and of the pages in docs/ run as they stand."""

import os
import re
import runpy
import shlex
from pathlib import Path

import pytest

from nmf_zoo.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").glob("add_*.md"))


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
def test_python(capsys, monkeypatch, tmp_path):
    """One block after another, as a reader would; a line that says what it prints prints that."""
    monkeypatch.chdir(tmp_path)
    source = "".join(blocks("python"))
    exec(compile(source, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "lp" in printed
    said = re.findall(r"^print\(.*\)  # (?!R-hat)(.*)$", source, flags=re.MULTILINE)
    said += re.findall(r"^(?:bound|chib|smc|exact) -.*$", README, flags=re.MULTILINE)
    assert len(said) >= 10
    assert [line for line in said if line not in printed.splitlines()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
def test_pages_for_contributors(page, tmp_path):
    """Each page's block, run as a file: numba caches kernels beside their source."""
    (source,) = blocks("python", page.read_text(encoding="utf-8"))
    path = tmp_path / f"{page.stem}.py"
    path.write_text(source, encoding="utf-8")
    runpy.run_path(str(path))


@pytest.mark.statistical
def test_shell(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("nmf-zoo")]
    assert len(lines) > 4
    for line in lines:
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    assert {"counts.csv", "posterior.nc", "components.png"} <= set(os.listdir())


def test_the_citation_is_of_this_version():
    from nmf_zoo import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)
    assert commands
    assert all(f"\n{command}:" in makefile for command in commands)
