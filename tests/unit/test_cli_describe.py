"""``nmf-zoo describe``: what is said of tables of every kind, and that what it suggests can be run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.tables.arrays import Matrix

RNG = np.random.default_rng(3)
COUNTS = RNG.poisson(2.0, (5, 6))
POWERS = 10.0 ** RNG.normal(0.0, 2.0, (6, 8))
TABLES = {
    "counts": COUNTS,
    "gaps": np.where(COUNTS == 1, np.nan, COUNTS),
    "real": RNG.gamma(2.0, 1.0, (5, 6)),
    "shares": (COUNTS + 0.25) / (COUNTS + 0.25).sum(axis=0),
    "logarithms": np.log1p(COUNTS),
    "powers": POWERS,
    "negative": COUNTS - 1.0,
    "zeros": 0 * COUNTS,
    "tall": np.ones((200, 3)),
}


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """What is printed of a table."""
    monkeypatch.chdir(tmp_path)

    def describe(name, *words):
        np.savetxt("x.csv", TABLES[name], delimiter=",", fmt="%.12g")
        assert main(["describe", "x.csv", "--header", "no", "--row-labels", "no", *words]) == 0
        return capsys.readouterr().out

    return describe


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "counts",
            ["table       5 features (rows) x 6 samples", "whole numbers, 0 to", "model       gamma-nmf", "gibbs"],
        ),
        ("gaps", [f"missing     {np.sum(COUNTS == 1)} ({np.mean(COUNTS == 1):.1%})", "model       gamma-nmf"]),
        ("real", ["real numbers", "zeros       0 (0.0%)", "missing     none", "model       normal-nmf"]),
        ("shares", ["shares of their sample", "counts, where there are some, say more"]),
        ("logarithms", ["mostly logarithms of counts"]),
        ("powers", ["model       is-nmf"]),
        ("negative", [f"{np.sum(COUNTS == 0)} of 30 cells are negative", "model       none"]),
        ("zeros", ["model       none: there is no positive cell", "5 features and 6 samples without"]),
        ("tall", ["where the rows are the samples, add --transpose"]),
    ],
)
def test_what_a_table_holds(say, name, lines):
    said = say(name)
    for line in lines:
        assert line in said
    assert ("next" in said) == (name not in ("negative", "zeros"))


def test_samples_in_rows(say):
    said = say("tall", "--transpose")
    assert "3 features (rows) x 200 samples" in said
    assert "where the rows" not in said
    assert "x.csv --transpose" in said


def test_sparse_tables_and_labels(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sp.save_npz("x.npz", sp.csr_array(COUNTS))
    Path("names.txt").write_text("a\nb\nb\nc\nd e\n")
    assert main(["describe", "x.npz", "--labels", "names.txt"]) == 0
    said = capsys.readouterr().out
    assert f"sparse: {np.count_nonzero(COUNTS)} cells listed" in said
    assert f"zeros       {np.sum(COUNTS == 0)} (" in said
    assert "features    a, b, b, ... (1 of 5 repeat another)" in said
    assert "add --observed stored" in said


def test_a_layer_is_read_by_what_is_suggested_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmf_zoo.interfaces.cli.describe.read_table", lambda _: Matrix(COUNTS.astype(float)))
    assert main(["describe", "x.h5ad", "--layer", "raw counts"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "nmf-zoo " in line]
    assert len(lines) == 2
    assert all("x.h5ad --layer 'raw counts'" in line for line in lines)


@pytest.mark.parametrize("name", ["counts", "gaps", "real", "powers"])
def test_what_is_suggested_can_be_run(say, name, capsys):
    first, second = (line.split("nmf-zoo ")[1] for line in say(name).splitlines() if "nmf-zoo " in line)
    short = {"rank": ["--ranks", "1:2", "--restarts", "2", "--search", "0"], "fit": ["--rank", "1"]}
    for line in (first, second):
        words = shlex.split(line.replace("--rank K", "--rank 1"))
        more = ["--draws", "9", "--tune", "9", "--chains", "1"] if "gibbs" in words else []
        assert main([*words, *short[words[0]], *more, "--quiet", "--random-seed", "1"]) == 0, capsys.readouterr().err


def test_it_answers_at_once(tmp_path):
    np.savetxt(tmp_path / "x.csv", COUNTS, delimiter=",", fmt="%d")
    code = (
        "import sys\nfrom nmf_zoo.interfaces.cli import main\n"
        f"assert main(['describe', {str(tmp_path / 'x.csv')!r}]) == 0\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"numba", "arviz", "pymc", "pandas", "xarray"} & set(done.stdout.split())
