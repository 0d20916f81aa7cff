"""Examples of the README, of the site's first page and guide, and of the pages for contributors run as they stand."""

import os
import re
import runpy
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main
from tests.notebook_runs import on_each_line, search_little

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
FOR_CONTRIBUTORS = sorted((ROOT / "docs").glob("add_*.md"))
LINKING = [*PAGES, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return path.stem


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def printed_below(page: Path, language: str) -> list[str]:
    """The lines of ``text`` blocks that follow a block of this language with nothing in between: what it prints."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    pairs = pairwise(found)
    below = [two[2] for one, two in pairs if (one[1], two[1]) == (language, "text") and two.start() - one.end() <= 2]
    return "".join(below).splitlines()


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


NEEDS = re.compile(r"^<!-- needs (\w+) -->$", flags=re.MULTILINE)
PYTHON = [on_each_line(page, "".join(blocks(page, "python"))) for page in with_blocks("python")]
OF_OTHERS = [  # what other libraries say on such pages
    "ignore:Estimated shape parameter:UserWarning",
    "ignore:The inplace keyword",
    "ignore:The 'future.infer_string' option",
]


def shorten_runs(monkeypatch):
    """Of a page that doesn't say what comes out: few draws and fits show as well that what it calls can be called."""
    sample, most = nz.sample, 100

    def short_sample(draws=most, tune=most, chains=2, **how):
        return sample(min(draws, most), tune=min(tune, most), chains=min(chains, 2), **how)

    monkeypatch.setattr(nz, "sample", short_sample)
    search_little(monkeypatch)


@pytest.mark.parametrize("page", PYTHON)
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning", *OF_OTHERS)
def test_python(page, capsys, monkeypatch, tmp_path):
    """One block after another, as a reader would; a line that says what it prints prints that.

    Long: all that a page shows.
    """
    for module in NEEDS.findall(page.read_text(encoding="utf-8")):
        pytest.importorskip(module, reason=f"the page needs {module}")
    monkeypatch.chdir(tmp_path)
    source = "".join(blocks(page, "python"))
    said = re.findall(r"^ *print\(.*\)  # (.*)$", source, flags=re.MULTILINE) + printed_below(page, "python")
    if not said and page != README:
        shorten_runs(monkeypatch)
    exec(compile(source, page.name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in said if line not in printed] == []


@pytest.mark.statistical
@pytest.mark.parametrize("page", with_blocks("sh"), ids=named)
def test_shell(page, capsys, monkeypatch, tmp_path):
    """Long: all that a page shows."""
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("nmf-zoo")]
    assert lines
    for line in lines:
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    outputs = re.findall(r"(?:-o|--output) (\S+)", " ".join(lines))
    assert outputs
    assert set(outputs) <= set(os.listdir())
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed_below(page, "sh") if line not in printed] == []


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS, ids=named)
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
def test_pages_for_contributors(page, tmp_path):
    """Each page's blocks, run as one file: kernels without one are not kept. Long: all that a page shows."""
    source = "".join(blocks(page, "python"))
    assert source
    path = tmp_path / f"{page.stem}.py"
    path.write_text(source, encoding="utf-8")
    runpy.run_path(str(path))


def test_there_is_something_to_run():
    """What finds blocks and what they print has found them."""
    assert len(with_blocks("python")) >= 13
    assert len(printed_below(ROOT / "docs" / "guide" / "rank.md", "python")) == 5
    assert len(printed_below(ROOT / "docs" / "guide" / "rank.md", "sh")) == 9


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_hold_where_the_page_is_read(page):
    """Links to files, as a code host follows them; the site's build checks its own."""
    text = re.sub(r"```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_citation_is_of_this_version():
    from nmf_zoo import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^make ([a-z-]+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands
    assert all(f"\n{command}:" in makefile for command in commands)
