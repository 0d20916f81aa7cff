"""``nmf-zoo rank``: its table and files, what it refuses, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.cli.rank import table_lines
from nmf_zoo.interfaces.cli.values import parse_ranks

pytest.importorskip("h5netcdf")
QUICK = ("--ranks", "1:3", "--restarts", "2", "--search", "0", "--random-seed", "1", "--cores", "1")


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """A small table in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    X = rng.poisson(rng.gamma(1.0, size=(6, 2)) @ rng.gamma(1.0, size=(2, 9)) * 8)
    np.savetxt("counts.csv", X, fmt="%d", delimiter=",")
    return X


def run(*words):
    """The exit code, also where argparse exits."""
    try:
        return main([*words])
    except SystemExit as stop:
        return stop.code


def test_files_hold_what_python_finds(counts, capsys):
    pytest.importorskip("matplotlib")
    assert run("rank", "counts.csv", *QUICK, "--alpha-h", "2", "-o", "r.nc", "-o", "r.csv", "-o", "r.png") == 0
    said = capsys.readouterr().out.splitlines()
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(counts, rank, alpha_h=2),
        range(1, 4),
        restarts=2,
        search=None,
        random_seed=1,
        quiet=True,
    )
    assert table.attrs["answer"] in said
    assert [line.split()[1] if line[0] in "*~" else line.split()[0] for line in said[1:4]] == ["1", "2", "3"]
    assert sum(line.startswith("*") for line in said[1:4]) == 1
    assert said[-1].startswith("wrote r.nc, r.csv, r.png in ")
    with xr.open_dataset("r.nc", engine="h5netcdf") as stored:
        np.testing.assert_array_equal(stored["estimate"], table["estimate"])
        assert stored.attrs["answer"] == table.attrs["answer"]
    lines = Path("r.csv").read_text().splitlines()
    assert lines[0].startswith("rank,restart,shortfall,seconds,status,shortfall_error,bound,estimate,combined")
    assert len(lines) == 1 + 6
    assert Path("r.png").read_bytes().startswith(b"\x89PNG")


def test_a_search_of_the_shell_is_that_of_python(counts, capsys):
    ranks = ("--ranks", "1:3", "--random-seed", "1", "--cores", "1", "-o", "r.nc")
    assert run("rank", "counts.csv", *ranks, "--search", "5") == 0
    assert "behind: how far the next fit is" in capsys.readouterr().out
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(counts, rank), range(1, 4), search=nz.Search(fits=5), random_seed=1, quiet=True
    )
    with xr.open_dataset("r.nc", engine="h5netcdf") as stored:
        np.testing.assert_array_equal(stored["estimate"], table["estimate"])
        assert stored.sizes["restart"] == 5
    for words, said in (
        (("--search", "-1"), "--search: got -1; expected an integer >= 0"),
        (("--search", "many"), "--search: invalid int value: 'many'"),
        (("--search", "4", "--method", "smc"), "--search: got Search(fits=4"),
    ):
        assert run("rank", "counts.csv", "--ranks", "1:2", *words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_quiet_says_the_answer_alone(counts, capfd):
    assert run("rank", "counts.csv", *QUICK, "--quiet") == 0
    said = capfd.readouterr()
    assert said.out.count("\n") == 1
    assert said.err == ""
    assert "component" in said.out


def test_the_same_command_goes_on(counts, capfd):
    words = ("rank", "counts.csv", *QUICK, "--checkpoint", "search", "--quiet")
    assert run(*words) == 0
    first = capfd.readouterr().out
    states = {path: path.read_bytes() for path in Path("search").glob("rank_*/*.state")}
    assert len(states) == 6
    assert run(*words) == 0
    assert capfd.readouterr().out == first
    assert all(path.read_bytes() == content for path, content in states.items())
    assert run(*words, "--alpha-w", "3") == 2
    assert "of another run: model.W.prior.shape" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["holdout", "bound"])
def test_methods_take_their_options(counts, method, capsys):
    own = ("--share", "0.2", "--engine", "em") if method == "holdout" else ("--no-corrected", "--max-iter", "50")
    assert run("rank", "counts.csv", *QUICK, "--method", method, *own) == 0
    said = capsys.readouterr().out
    assert ("held out" if method == "holdout" else "bound") in said
    assert "nan" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "0"), "--ranks: got 0; expected different positive integers"),
        (("--ranks", "2.5"), "--ranks: got '2.5'; expected whole numbers and ranges"),
        (("--ranks", "abc"), "--ranks: got 'abc'"),
        (("--ranks", "1,2,1"), "--ranks: got 1 more than once"),
        (("--ranks", "3:1"), "3 is above 1"),
        (("--ranks", "1:2", "--share", "0.2"), "--share: got an option that bound doesn't have; expected --max-iter"),
        (("--ranks", "1:2", "--method", "holdout", "--share", "2"), "--share: got 2.0; expected a number between"),
        (("--ranks", "1:2", "--method", "holdout", "--engine", "x"), "--engine: got 'x'"),
        (("--ranks", "1:2", "--method", "aic"), "invalid choice: 'aic'"),
        (("--ranks", "1:2", "-o", "r.txt"), "expected a name that ends in .csv, .nc, .png"),
        (("--ranks", "1:2", "-o", "counts.csv"), "counts.csv, which exists"),
        (("--ranks", "1:2", "--restarts", "0"), "--restarts: got 0"),
        (("--ranks", "1:2", "--random-seed", "x"), "--random-seed: got 'x'"),
        (("--ranks", "1:2", "--alpha-w", "0"), "--alpha-w: got values from 0.0"),
        (("--ranks", "1:2", "--method", "smc", "--alpha-w", "free"), "methods that can: 'bound', 'holdout'"),
        ((), "the following arguments are required: --ranks"),
    ],
)
def test_bad_input_is_one_line(counts, words, message, capfd):
    before = set(Path().iterdir())
    assert run("rank", "counts.csv", *words) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert set(Path().iterdir()) == before


def test_an_interrupted_search_says_how_to_go_on(counts, monkeypatch, capfd):
    inner = nz.select_rank

    def interrupted(*args, **options):
        return inner(*args, **options).assign_attrs(status="interrupted")

    monkeypatch.setattr(nz, "select_rank", interrupted)
    assert run("rank", "counts.csv", *QUICK, "--quiet", "--checkpoint", "search", "-o", "r.csv") == 130
    said = capfd.readouterr().err
    assert (
        said == "nmf-zoo: interrupted; r.csv holds what was there; the same command goes on from search with --force\n"
    )


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("1:4", [1, 2, 3, 4]), ("3", [3]), ("2,4,8", [2, 4, 8]), ("10:50:20", [10, 30, 50]), ("1:2,5", [1, 2, 5])],
)
def test_ranks_of_the_shell(text, ranks):
    assert parse_ranks("--ranks", text) == ranks


@pytest.mark.parametrize("text", ["", "1:", "a:b", "1:9:0", "1:2:3:4", "4:2", "1;2"])
def test_wrong_ranks_of_the_shell(text):
    with pytest.raises(InputError, match="--ranks: got"):
        parse_ranks("--ranks", text)


def test_lines_fit_a_narrow_terminal(counts):
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(counts, rank), [1, 6], restarts=1, search=None, random_seed=1, quiet=True
    )
    assert max(map(len, table_lines(table))) <= 80


def test_a_row_is_of_one_fit():
    """The fit with the best corrected bound has not the best bound."""
    table = xr.Dataset(
        {
            **{"bound": (("rank", "restart"), [[-10.0, -12.0, np.nan]])},
            **{"shortfall": (("rank", "restart"), [[1.0, 5.0, np.nan]])},
            **{"estimate": (("rank", "restart"), [[-9.0, -7.0, np.nan]]), "combined": ("rank", [-7.0])},
            **{"combined_error": ("rank", [2.0]), "difference": ("rank", [0.0]), "plausible": ("rank", [True])},
        },
        coords={"rank": [3]},
        attrs={"method": "bound", "best": 3},
    )
    assert list(table_lines(table))[1].split() == ["*", "3", "-12.00", "-7.00", "2.00", "0.00"]
