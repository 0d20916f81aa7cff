"""The README's examples run as they stand."""

import os
import re
import shlex
from pathlib import Path

import pytest

from nmf_zoo.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", blocks("python"))
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
def test_python(source, capsys):
    exec(compile(source, "README.md", "exec"), {})
    assert "lp" in capsys.readouterr().out


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


def test_the_commands_exist():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)
    assert commands
    assert all(f"\n{command}:" in makefile for command in commands)
