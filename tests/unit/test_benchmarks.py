"""The benchmarks run, say what is met, and measure what they name."""

import subprocess
import sys
from datetime import date
from importlib import import_module
from pathlib import Path

import arviz as az
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr

from benchmarks import __main__ as command
from benchmarks import before_and_after, found, house, mixing, over_blocks, relevance, rows, split_merge, start, threads
from benchmarks.effective import bulk_ess, r_hat
from benchmarks.iterations import Stepper
from benchmarks.trajectories import Run, until_enough
from nmf_zoo import ARD, gamma_nmf, read, sample
from tests.sizes import at_full_size
from tests.statistical.gates import check_means, effective_sizes
from tests.tan_fevotte import tan_fevotte


def correlated(n_draws, rng, n_cells=12):
    """(2, n_draws, n_cells): autoregressive draws from antithetic to sticky, one with ties, one with chains apart."""
    noise = rng.normal(size=(2, n_draws, n_cells))
    draws, slopes = np.zeros_like(noise), np.linspace(-0.5, 0.98, n_cells)
    for i in range(1, n_draws):
        draws[:, i] = slopes * draws[:, i - 1] + noise[:, i]
    draws[:, :, 3] = np.round(2 * draws[:, :, 3])
    draws[1, :, 4] += 3.0
    return draws


@pytest.mark.parametrize("n_draws", [100, 1501])
def test_bulk_ess_is_arvizs(n_draws):
    draws = correlated(n_draws, np.random.default_rng(0))
    expected = az.ess(xr.Dataset({"x": (("chain", "draw", "cell"), draws)}), method="bulk")
    expected = expected.to_dataset() if isinstance(expected, xr.DataTree) else expected
    np.testing.assert_allclose(bulk_ess(draws), expected["x"].values, rtol=1e-10)


@pytest.mark.parametrize("n_draws", [100, 1501])
def test_r_hat_is_arvizs(n_draws):
    draws = correlated(n_draws, np.random.default_rng(0))
    draws[0, :, 5] *= 2.0  # seen by the folds alone
    expected = az.rhat(xr.Dataset({"x": (("chain", "draw", "cell"), draws)}))
    expected = expected.to_dataset() if isinstance(expected, xr.DataTree) else expected
    np.testing.assert_allclose(r_hat(draws), expected["x"].values, rtol=1e-10)


def test_runs_get_longer_until_their_ess_is_no_noise():
    asked = []

    def run(draws):
        asked.append(draws)
        x = np.random.default_rng(draws).gamma(2.0, size=(2, draws, 1, 1))
        return xr.Dataset({"W": (("chain", "draw", "f", "k"), x), "H": (("chain", "draw", "g", "n"), x)}), draws / 300

    found = until_enough(run, 50, 9)
    assert asked == [50, 100, 200, 400, 800]
    assert isinstance(found, Run)
    assert found.draws == 800
    assert found.ess == pytest.approx(1600, rel=0.3)


@pytest.mark.parametrize("cells", relevance.FORMS)
def test_published_updates_of_ard_are_the_same_of_sparse_counts(cells):
    """And of exponential cells those of an independent form."""
    prior = ARD(shape=4.0, scale=2.0, cells=cells)
    X = np.random.default_rng(2).poisson(1.0, (6, 9))
    start = relevance.starts(X, 3, 0)
    both = [relevance.published(read(gamma_nmf(own, 3, prior=prior)), prior, *start) for own in (X, sp.csr_array(X))]
    assert isinstance(both[1], relevance.SparsePublished)
    for _ in range(5):
        np.testing.assert_allclose(both[1](), both[0](), rtol=1e-9)
    for one, other in zip(both[0].point, both[1].point, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9)
    if cells == "exponential":
        *expected, _ = tan_fevotte(X, *start, np.full(3, 2.0 / 5.0), 4.0, 2.0, 5)
        for one, other in zip(both[0].point, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize(("ratio", "least", "met"), [(20.0, 15.0, "yes"), (14.9, 15.0, "**no**"), (0.5, None, "")])
def test_losses_are_printed_as_plainly(ratio, least, met):
    row = rows.compare("work", "1 s", "20 s", ratio, least)
    assert tuple(row) == rows.COLUMNS
    assert row["met?"] == met
    assert row["ratio"] == (f"{ratio:.1f}x better" if ratio >= 1 else "2.0x worse")


@pytest.mark.parametrize(("value", "met"), [(3.0, "yes"), (3.1, "**no**")])
def test_limits(value, met):
    assert rows.at_most("work", "", value, 3.0, "3 s")["met?"] == met


@pytest.mark.parametrize(
    ("ours", "met"), [([1.9, 1.0, np.inf], "yes"), ([2.1] * 3, "**no**"), ([np.inf] * 3, "**no**")]
)
@pytest.mark.parametrize("theirs", [[1.0, 0.9, np.inf], [np.inf] * 3], ids=["some arrive", "none arrives"])
def test_what_does_not_arrive_is_lost_whatever_its_peer_does(ours, theirs, met):
    row = over_blocks.judged("work", ours, theirs)
    assert row["met?"] == (met if np.isfinite(np.median(theirs)) or not np.isfinite(np.median(ours)) else "yes")


def test_medians_leave_the_first_run_out():
    times = iter([9.0, 9.0, 1.0, 5.0, 3.0, 1.0, 2.0, 6.0])  # of two works in turn
    assert rows.medians([lambda: next(times)] * 2, 3) == [2.0, 5.0]


def test_a_run_whose_chains_differ_is_not_valid():
    sides = [mixing.Side({"W H": 2.0, "lp": 4.0}, {"W H": 2.0, "lp": 4.0}, 1.0, r_hat) for r_hat in (1.001, 1.02)]
    valid, lost = (list(mixing.rows_of("a table", {"W H": 1.5, "lp": None}, sides[0], other, "how")) for other in sides)
    assert [row["met?"] for row in valid] == ["**no**", ""]
    assert lost[0]["met?"] == "**not valid**"
    assert all(row["ratio"] == "not valid (1.0x better)" for row in lost)


@pytest.mark.parametrize(("cores", "met"), [(0.02, "yes"), (0.9, "**not valid**")])
def test_a_busy_machine_is_no_judge_of_threads(cores, met):
    row = rows.by_clock(rows.compare("two threads", "1 s", "2 s", 2.0, 1.8), lambda: cores)
    assert row["met?"] == met
    assert ("other programs had 0.9 cores" in row["work"]) == (cores > rows.BUSY)
    assert 0.0 <= rows.Others()() < 1e6


def test_processes_that_a_run_started_are_no_others(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: "cpu 9 9 9 9 9 9 9 9 9 9\n")  # nothing else has any time
    before = rows.Others._now()[1]
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert before - rows.Others._now()[1] > 0.05


def test_different_bits_are_seen():
    X = np.random.default_rng(0).poisson(3.0, (6, 5))
    one, other = (Stepper(read(gamma_nmf(X, 2)), "vb") for _ in range(2))
    one(), other()
    assert threads.are_identical(one.state, other.state)
    next(threads.arrays_of(other.state))[0, 0] *= 1 + 1e-15
    assert not threads.are_identical(one.state, other.state)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder of its own for what parts find; two parts find little, and one fails."""
    monkeypatch.setattr(found, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(command, "STANDARD", ("start", "hmm", "threads"))
    reached = [rows.compare("won", "1 s", "2 s", 2.0, 1.5), rows.compare("lost", "1 s", "1 s", 1.0, 2.0)]
    monkeypatch.setattr(start, "rows", lambda quick: [*reached, rows.note("untold", "1 s")])
    monkeypatch.setattr(threads, "rows", lambda quick: 1 / 0)
    return found.KEPT


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["benchmarks", *map(str, arguments)])
    command.main()


def test_tables_are_written_between_the_markers(kept, tmp_path, monkeypatch, capsys):
    """Rows with a target and without one each in their table, lost ones and parts that failed too."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\n{command.BEGIN_OTHERS}\n{command.END}\nafter\n")
    run_command(monkeypatch, "start", "threads", "--write", page)
    text = page.read_text()
    assert "\nold\n" not in text
    assert text.startswith(f"before\n{command.BEGIN}\n`make bench`")
    assert text.endswith(f"|---|---|---|---|\n| untold | 1 s |  |  |\n{command.END}\nafter\n")
    assert "| lost | 1 s | 1 s | 1.0x better | 2x | **no** |" in text
    assert "| threads | failed: ZeroDivisionError: division by zero |  |  |  | **failed** |" in text
    assert f"Measured in 0 minutes: start 0 s, {date.today()} (load average " in text
    assert "| won | 1 s | 2 s | 2.0x better | 1.5x | yes |" in capsys.readouterr().out
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="expected both markers"):
        command.write(page, "table", command.BEGIN)


def test_parts_that_have_run_are_kept(kept, monkeypatch, capsys):
    run_command(monkeypatch, "start", "--quick")
    assert not kept.exists()  # quick runs are not kept
    run_command(monkeypatch, "start")
    assert found.kept("start").rows[0]["work"] == "won"
    capsys.readouterr()
    run_command(monkeypatch, "start", "threads", "--kept")
    printed = capsys.readouterr().out
    assert "won" not in printed
    assert "**failed**" in printed


def test_every_part_is_there():
    parts = {*command.STANDARD, *command.BY_NAME}
    assert len(parts) == len(command.STANDARD) + len(command.BY_NAME)
    assert all(callable(import_module(f"benchmarks.{part}").rows) for part in parts)


@pytest.mark.engines
@pytest.mark.parametrize("part", ["iterations", "threads"])
@pytest.mark.filterwarnings("ignore::nmf_zoo.NmfZooWarning")
def test_parts_run(part):
    """Each part of the benchmarks at its small size. Long: with their peers, which compile, too."""
    lines = list(command.table([part], quick=True))
    assert sum(line.startswith("|") for line in lines) > 4


def test_lines_of_code_hold_more_than_words():
    source = '''"""What it is.

More.
"""

import math  # a reason


def double(x):
    """Twice."""
    # why
    return (
        2 * x
    )


TEXT = """one
two"""
'''
    assert house.lines_of_code(source) == 1 + 1 + 3 + 2


def test_modules_with_one_importer(tmp_path):
    files = {
        "a": "from nmf_zoo import b\nimport nmf_zoo.c",
        "b": "from nmf_zoo.c import x\nfrom nmf_zoo.c import y",
        "c": "",
    }
    sources = {tmp_path / "nmf_zoo" / f"{name}.py": source for name, source in files.items()}
    assert house.one_importer(tmp_path, sources) == ["nmf_zoo.b"]


# -- two commits in turn ---------------------------------------------------------------------------------------------


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng, n = np.random.default_rng(1), 15
    held = 0
    for _ in range(2000):
        low, high, coverage = before_and_after.interval_of_median(rng.gamma(2.0, size=n))
        held += low <= 1.6783469900166605 <= high  # the median of that gamma
    assert coverage == pytest.approx(1 - 2 * 576 / 2**15)  # from the 4th to the 12th
    assert held / 2000 == pytest.approx(coverage, abs=0.015)
    assert before_and_after.interval_of_median([3.0, 1.0, 2.0]) == (1.0, 3.0, 0.75)


@pytest.mark.parametrize(
    ("factor", "word"), [(1.3, "slower"), (0.7, "faster"), (1.0, "no difference seen")], ids=["slow", "fast", "same"]
)
def test_what_is_said_of_two_commits(factor, word):
    base = 1.0 + 0.05 * np.random.default_rng(2).standard_normal(15)
    head = factor * (1.0 + 0.05 * np.random.default_rng(3).standard_normal(15))
    said = before_and_after.told("EM", base, head, 1.0, 1.0)
    assert said.endswith(f"{word}; same result")
    assert before_and_after.told("EM", base, head, 1.0, 1.0 + 1e-9).endswith("another result: 1, 1.000000001")
    assert "too few pairs to tell" in before_and_after.told("EM", base[:5], head[:5], 1.0, 1.0)


@at_full_size
@pytest.mark.engines
def test_a_chain_of_splits_draws_from_the_posterior():
    """So that what is measured is the acceptance of a move that is right; with another ratio the means are others.

    Long: a chain in Python.
    """
    X = np.array([[4, 0], [1, 2]])

    def chain(steps, wrong=0.0):
        rng = np.random.default_rng(1)
        W, H = rng.gamma(1.0, size=(2, 2)), rng.gamma(1.0, size=(2, 2))
        x, kept = split_merge.Parts(split_merge.allocate(rng, X, W, H), W, H), []
        for _ in range(steps):
            new, log_ratio = split_merge.split_anew(rng, x, 1)
            x = new if np.log(rng.random()) < log_ratio - wrong * split_merge.log_joint(new) else x
            kept.append(np.log(x.W @ x.H).ravel())
        return np.array(kept[100:])

    model = gamma_nmf(X, 2, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, beta_h=0.5)
    idata = sample(4000, tune=200, extend=1, chains=1, start="random", random_seed=1, quiet=True, model=model)
    W, H = (idata["posterior"][name].to_numpy()[0] for name in "WH")
    names = [f"log mean {cell}" for cell in range(4)]
    exact = np.log(W @ H).reshape(len(W), -1)
    errors = exact.std(axis=0) / np.sqrt(effective_sizes(exact))
    check_means(names, chain(3000), exact.mean(axis=0), errors, least=100)
    with pytest.raises(AssertionError, match="gate 2"):
        check_means(names, chain(3000, wrong=0.5), exact.mean(axis=0), errors, least=50)
