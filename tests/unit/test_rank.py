"""``nz.select_rank``: the table, the words, threads, resumption, held-out data, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
from scipy.stats import poisson

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed, UnsupportedModel
from nmf_zoo.inference.counts import vb
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.engine import START
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells
from nmf_zoo.workbench import bounds, holdout, rank_search, ranking
from nmf_zoo.workbench.rank import _spans
from nmf_zoo.workbench.rank_search import INTERRUPTED, Outcome

RNG = np.random.default_rng(4)
X = RNG.poisson(RNG.gamma(2.0, size=(9, 2)) @ RNG.gamma(2.0, size=(2, 12)) * 5.0)
FAST = {"random_seed": 1, "quiet": True, "cores": 1, "restarts": 2, "search": None}


def declare(rank, x=X, **options):
    return nz.gamma_nmf(x, rank, **options)


def select(ranks=(1, 2, 3), **options):
    return nz.select_rank(options.pop("declare", declare), ranks, **FAST | options)


def numbers(table):
    return {name: table[name].values for name in ("bound", "shortfall", "estimate", "combined", "difference_error")}


@pytest.fixture(scope="module")
def found():
    return select()


def test_the_table_is_labelled(found):
    assert dict(found.sizes) == {"rank": 3, "restart": 2}
    assert found["estimate"].dims == ("rank", "restart")
    best = found.attrs["best"]
    assert best == int(found["combined"].idxmax("rank"))
    assert float(found["difference"].sel(rank=best)) == 0.0
    assert found["probability"].sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(found["estimate"], found["bound"] + found["shortfall"])
    assert (found["shortfall"] > 0).all()
    assert (found["seconds"] > 0).all()
    assert set(found["status"].values.ravel()) == {"converged"}
    assert found.attrs["answer"].startswith(f"{best} components: the corrected bound is ")
    runner_up = found["combined"].sel(rank=found.attrs["runner_up"])
    assert found.attrs["log_bayes_factor"] == pytest.approx(float(found["combined"].max() - runner_up))


def test_numbers_do_not_depend_on_the_threads_nor_on_what_else_is_searched(found):
    for name, array in numbers(select(cores=3)).items():
        np.testing.assert_array_equal(array, numbers(found)[name])
    alone = select([3], restarts=1)
    np.testing.assert_array_equal(alone["estimate"].values, found["estimate"].sel(rank=[3])[:, :1].values)


def test_the_bound_is_that_of_vb(found):
    problem = vb.prepare(read(declare(2)), vb.VB(), SERIAL)
    state = vb.init(problem, child(seed_key(1), 0, 2, START), {})
    for _ in range(10_000):
        state, info = vb.step(problem, state)
        if info.residual < nz.RankBound().tol:
            break
    assert float(found["bound"].sel(rank=2, restart=0)) == pytest.approx(state.bound, rel=1e-9)


def test_a_netcdf_file_keeps_the_table(found, tmp_path):
    pytest.importorskip("h5netcdf")
    found.to_netcdf(tmp_path / "rank.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "rank.nc", engine="h5netcdf") as again:
        assert again.attrs["answer"] == found.attrs["answer"]
        np.testing.assert_array_equal(again["combined"], found["combined"])


@pytest.mark.parametrize("method", ["bound", "holdout"])
def test_the_picture(found, method):
    pytest.importorskip("matplotlib")
    table = found if method == "bound" else select(method=nz.Holdout(draws=5, max_iter=50))
    assert nz.plot_rank(table)._repr_png_().startswith(b"\x89PNG")
    figure = nz.plot_rank(table.assign(combined=table["combined"] - 1e5))
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert 0 <= label.y0 < label.y1 <= figure.bbox.y1  # in the picture, also with a long number
    (axes,) = nz.plot_rank(table).axes
    best = int(table.attrs["best"])
    combined = table["combined"].sel(rank=best).item()
    assert axes.get_ylabel().endswith(f"nats from that of {best} ({combined:,.1f})")
    (line,) = axes.containers[0].lines[:1]
    np.testing.assert_allclose(line.get_ydata(), table["combined"] - combined)
    with pytest.raises(InputError, match="table: got"):
        nz.plot_rank(table[["estimate"]])


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "ranks: got no rank; expected different positive integers"),
        ([0, 1], "ranks: got 0;"),
        ([-1], "ranks: got -1;"),
        ([2.5], r"ranks: got 2\.5;"),
        (["a"], "ranks: got 'a';"),
        ("abc", "ranks: got 'abc';"),
        (3, "ranks: got 3;"),
        ([True], "ranks: got True;"),
        ([float("nan")], "ranks: got nan;"),
        (None, "ranks: got None;"),
        ([2, 3, 2, 3], "ranks: got 2, 3 more than once; .*restarts= repeats a rank"),
    ],
)
def test_nonsense_is_no_rank(ranks, message):
    with pytest.raises(InputError, match=message):
        select(ranks)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (3, "declare: got int; expected a function of the rank"),
        (lambda rank: None, "declare: got NoneType for rank 1; expected a pm.Model"),
        (lambda rank: declare(2), "declare: got a model of 2 components for rank 1; expected"),
        (
            lambda rank: declare(rank, X + rank),
            "declare: got other data for rank 2 than for rank 1; expected the same X",
        ),
        (lambda rank: declare(rank, X[: 5 + rank]), "declare: got other data"),
        (lambda rank: declare(rank, X if rank == 1 else sp.csr_array(X)), "declare: got other data"),
    ],
)
def test_a_declaration_of_something_else(made, message):
    with pytest.raises(InputError, match=message):
        select(declare=made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "aic"}, r"method: got 'aic'; expected one of \['bound'"),
        ({"method": nz.VB()}, "method: got VB"),
        ({"restarts": 0}, "restarts: got 0"),
        ({"cores": 0}, "cores: got 0"),
        ({"checkpoint": 3}, "checkpoint: got 3"),
        ({"random_seed": -1}, "random_seed: got -1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(InputError, match=message):
        select(**options)


def test_a_model_that_the_method_cannot_judge():
    with pytest.raises(UnsupportedModel, match=r"method 'chib' can't judge the model of rank 1: .*'bound', 'holdout'"):
        select(declare=lambda rank: declare(rank, alpha_h=nz.free()), method="chib")
    with pytest.raises(UnsupportedModel, match=r"use nz.Holdout\(engine='em'\)"):
        select(declare=lambda rank: nz.poisson_nmf(X, rank), method="holdout")
    assert np.isfinite(
        select([1], declare=lambda rank: nz.poisson_nmf(X, rank), method=nz.Holdout(engine="em")).combined
    )


def test_ranks_above_the_smaller_side_are_said_once():
    with pytest.warns(NmfZooWarning) as caught:
        table = select([2, 10, 11], declare=lambda rank: declare(rank, X), restarts=1)
    texts = [str(warning.message) for warning in caught]
    assert texts == ["ranks: got 10 to 11, above min(features, samples) = 9; allowed, but the factors are not unique"]
    assert np.isfinite(table["combined"]).all()


def test_columns_of_zeros_are_said_once():
    x = X.copy()
    x[:, 3] = 0
    with pytest.warns(NmfZooWarning, match="no positive observed cell") as caught:
        table = select([1, 2], declare=lambda rank: declare(rank, x), restarts=1)
    assert len(caught) == 1
    assert np.isfinite(table["combined"]).all()


def test_spans():
    assert _spans([3]) == "3"
    assert _spans([3, 4, 5, 8]) == "3 to 5, 8"


# -- runs that fail or are stopped ---------------------------------------------------------------------------------


def judged_by(estimate, monkeypatch, **options):
    """select() with a method of the test's own, under the name of the bound."""
    method = replace(bounds.METHOD, estimate=estimate, runs=4)
    monkeypatch.setattr("nmf_zoo.workbench.rank.METHODS", {"bound": method})
    return select(**options)


def test_a_run_that_fails_is_left_out_and_said(monkeypatch):
    def estimate(structure, options, run):
        if structure.rank == 2:
            raise RunFailed("no luck")
        return bounds.estimate(structure, options, run)

    with pytest.warns(NmfZooWarning, match="2 of 6 runs failed; the first, restart 0 of rank 2: failed: no luck"):
        table = judged_by(estimate, monkeypatch, quiet=False, progressbar=False)
    assert table.attrs["best"] == 3
    assert not bool(table["plausible"].sel(rank=2))
    assert "2 of 6 runs gave no finite number" in table.attrs["answer"]


def test_all_runs_failing_is_a_failure(monkeypatch):
    def estimate(structure, options, run):
        raise RunFailed("no luck")

    with pytest.raises(RunFailed, match="no run gave a number; the first: failed: no luck"):
        judged_by(estimate, monkeypatch)


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    def estimate(structure, options, run):
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        judged_by(estimate, monkeypatch)


def test_ctrl_c_keeps_what_was_done_and_the_same_call_goes_on(monkeypatch, tmp_path, found):
    calls = []

    def estimate(structure, options, run):
        calls.append(structure.rank)
        if len(calls) == 4:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            run.each(lambda job: [time.sleep(0.001) for _ in iter(job.is_stopped, "interrupted")], total=1)
        return bounds.estimate(structure, options, run)

    stopped = judged_by(estimate, monkeypatch, checkpoint=tmp_path / "search")
    assert stopped.attrs["status"] == "interrupted"
    assert int(np.isfinite(stopped["estimate"]).sum()) == 3
    assert set(stopped["status"].values.ravel()) == {"converged", "interrupted"}
    assert "3 of 6 runs gave no finite number" in stopped.attrs["answer"]
    calls.clear()
    whole = judged_by(
        lambda *args: calls.append(0) or bounds.estimate(*args), monkeypatch, checkpoint=tmp_path / "search"
    )
    assert len(calls) == 3
    for name, array in numbers(whole).items():
        np.testing.assert_array_equal(array, numbers(found)[name])


def test_a_killed_search_goes_on_to_the_same_numbers(tmp_path, found):
    pytest.importorskip("fcntl")
    number = os.fork()
    if number == 0:
        try:
            RunFiles.save = save_and_die(RunFiles.save)
            select(checkpoint=tmp_path / "search")
        finally:
            os._exit(1)
    _, status = os.waitpid(number, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert len(list((tmp_path / "search").glob("rank_*/*.state"))) == 2
    for name, array in numbers(select(checkpoint=tmp_path / "search")).items():
        np.testing.assert_array_equal(array, numbers(found)[name])


def test_runs_may_be_made_anywhere(found):
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        there = select(executor=executor)
    for name, array in numbers(there).items():
        np.testing.assert_array_equal(array, numbers(found)[name])


def save_and_die(save):
    """Two saves, one after the other whoever makes them, and no third."""
    saves, turn = [], threading.Lock()

    def once(self, tree, rows):
        with turn:
            if len(saves) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            saves.append(tree)
            return save(self, tree, rows)

    return once


def test_more_ranks_and_restarts_make_what_is_missing(tmp_path, monkeypatch, found):
    folder = tmp_path / "search"
    select([2, 3], restarts=1, checkpoint=folder)
    judged = []
    inner = rank_search.RankSearch.judge
    monkeypatch.setattr(
        rank_search.RankSearch, "judge", lambda self, item, job: judged.append(item) or inner(self, item, job)
    )
    table = select(checkpoint=folder)
    assert sorted(judged) == [(1, 0), (1, 1), (2, 1), (3, 1)]
    for name, array in numbers(table).items():
        np.testing.assert_array_equal(array, numbers(found)[name])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"random_seed": 2}, "random_seed was 1, now 2"),
        ({"method": "holdout"}, "method was bound, now holdout|method was 'bound', now 'holdout'"),
        ({"method": nz.RankBound(tol=1e-3)}, "options was"),
        ({"declare": lambda rank: declare(rank, X + 1)}, "data.values has other cells"),
        ({"declare": lambda rank: declare(rank, alpha_h=2.0)}, "prior.shape"),
    ],
)
def test_another_search_is_refused(tmp_path, other, message):
    select([1], restarts=1, checkpoint=tmp_path / "search")
    with pytest.raises(InputError, match=f"checkpoint: got .*{message}"):
        select([1], restarts=1, checkpoint=tmp_path / "search", **other)


def test_a_search_without_a_seed_keeps_its_first(tmp_path):
    first, again = (select([1], checkpoint=tmp_path / "search", random_seed=None) for _ in range(2))
    assert first.attrs["random_seed"] == again.attrs["random_seed"]
    np.testing.assert_array_equal(first["estimate"], again["estimate"])


# -- the words -----------------------------------------------------------------------------------------------------


def table_of(rows, method, errors=0.1, shortfall=np.nan):
    """A table of these estimates, {rank: restarts}."""
    outcomes = {
        (rank, restart): INTERRUPTED if np.isnan(value) else Outcome(value, errors, shortfall, 0.0, "complete")
        for rank, row in rows.items()
        for restart, value in enumerate(row)
    }
    return ranking.rank_table(outcomes, method, sorted(rows), len(next(iter(rows.values()))))


def method_named(name, **options):
    return replace(bounds.METHOD, **({"name": name, "is_bound": False, "runs": 4} | options))


CHIB, BOUND, HOLDOUT = method_named("chib"), method_named("bound", is_bound=True), method_named("holdout")


@pytest.mark.parametrize(
    ("gap", "words"),
    [(0.9, "barely worth a mention"), (2.0, "positive"), (4.0, "strong"), (9.0, "very strong")],
)
def test_the_strength_of_a_difference(gap, words):
    table = table_of({1: [-50.0], 2: [-20.0], 3: [-20.0 - gap]}, CHIB)
    text = table.attrs["answer"]
    assert text == (
        f"2 components: the log evidence is {gap:.1f} nats above that of 3, the next best (standard error of the "
        f"difference 0.14). Decided, {words} evidence."
    )
    assert table.attrs["log_bayes_factor"] == pytest.approx(gap)
    assert table.attrs["log_bayes_factor_error"] == pytest.approx(0.1 * np.sqrt(2))


def test_a_difference_within_its_error_is_not_decided():
    table = table_of({1: [-20.2], 2: [-20.0], 3: [-20.1]}, CHIB)
    assert "Not decided: 1, 3 can't be ruled out." in table.attrs["answer"]
    assert table["plausible"].values.tolist() == [True, True, True]


def test_the_ends_of_the_search_are_said():
    assert "largest rank of all: try larger" in table_of({1: [-9.0], 2: [-1.0]}, CHIB).attrs["answer"]
    assert "smallest rank of all: try smaller" in table_of({2: [-1.0], 3: [-9.0]}, CHIB).attrs["answer"]
    assert "smallest" not in table_of({1: [-1.0], 3: [-9.0]}, CHIB).attrs["answer"]
    assert table_of({4: [-1.0]}, CHIB).attrs["answer"].startswith("4 components: the only rank with a log evidence")


def test_a_bound_is_as_good_as_its_best_restart():
    table = table_of({1: [-30.0, -30.0], 2: [-10.0, -18.0], 3: [-20.0, -20.0]}, BOUND)
    np.testing.assert_array_equal(table["combined"], [-30.0, -10.0, -20.0])
    np.testing.assert_array_equal(table["combined_error"], [0.0, 8.0, 0.0])
    text = table.attrs["answer"]
    assert "Decided if the bounds are equally tight, very strong evidence" in text
    assert "Only one restart of 2 came so high, 8.0 nats above the next: try more" in text
    assert "favour small ranks" in text
    assert table["difference_error"].values[2] == pytest.approx(8.0 + np.log(3.0))
    assert table["difference_error"].values[1] == 0.0


def test_the_correction_can_be_switched_off(found):
    bare = select(method=nz.RankBound(corrected=False))
    np.testing.assert_array_equal(bare["bound"], found["bound"])
    np.testing.assert_array_equal(bare["estimate"], found["bound"])
    assert "shortfall" not in bare


def test_the_best_restart_is_the_best_once_corrected():
    """A bound that is high because a component is empty may belong to a small part of the posterior."""
    outcomes = {
        (1, 0): Outcome(-30.0, 0.0, 1.0, 0.0, "converged", 0.1),
        (1, 1): Outcome(-30.5, 0.0, 9.0, 0.0, "converged", 0.7),
    }
    table = ranking.rank_table(outcomes, BOUND, [1], 2)
    assert table["combined"].item() == -21.5
    assert table["combined_error"].item() == pytest.approx(7.5)


def test_a_single_run_of_a_bound_decides_nothing():
    text = table_of({1: [-300.0], 2: [-100.0], 3: [-200.0]}, BOUND).attrs["answer"]
    assert "Decided" not in text
    assert "Not decided: 1, 3 can't be ruled out. One run of each rank can't tell" in text
    even = table_of({1: [-500.0], 2: [-400.0], 3: [-300.0], 4: [-200.0]}, BOUND).attrs["answer"]
    assert "Ahead, but not decided. " in even
    assert "error unknown). Not decided" in table_of({1: [-500.0], 2: [-400.0]}, BOUND).attrs["answer"]


def test_a_rough_curve_of_single_runs_rules_out_what_is_far_below():
    """Rank 1 lies 9,000 nats below, neighbours differ by 100 to and fro: the height of one among them means nothing."""
    rows = {1: [-10_000.0]} | {rank: [-1000.0 - 100.0 * (rank % 2)] for rank in range(2, 12)}
    table = table_of(rows, BOUND)
    assert table["plausible"].values.tolist() == [False] + [True] * 10


def test_a_fit_that_was_cut_short_decides_nothing():
    rows = {(1, 0): -50.0, (1, 1): -50.0, (2, 0): -10.0, (2, 1): -10.0}
    for early in rows:
        outcomes = {
            job: Outcome(
                value, 0.0, np.nan, 0.0, "max_iter" if job in (early, (early[0], 1 - early[1])) else "converged"
            )
            for job, value in rows.items()
        }
        text = ranking.rank_table(outcomes, BOUND, [1, 2], 2).attrs["answer"]
        assert "Ahead, but not decided" in text
        assert "2 of 4 runs stopped at max_iter, below what they would have reached" in text


def test_an_unknown_error_rules_nothing_out():
    table = table_of({1: [-50.0], 2: [-20.0]}, CHIB, errors=np.nan)
    assert "error unknown). Not decided: 1 can't be ruled out" in table.attrs["answer"]


def test_shortfalls_are_added_when_every_rank_has_one():
    table = table_of({1: [-30.0], 2: [-10.0]}, BOUND, shortfall=3.0)
    np.testing.assert_array_equal(table["combined"], [-27.0, -7.0])
    assert "corrected bound" in table.attrs["answer"]


def test_held_out_data_are_compared_split_by_split():
    table = table_of({1: [-50.0, -80.0, -20.0], 2: [-44.0, -75.0, -13.0], 3: [-45.0, -77.0, -13.0]}, HOLDOUT)
    assert table.attrs["difference"] == pytest.approx(1.0)
    assert table.attrs["difference_error"] == pytest.approx(np.std([1.0, 2.0, 0.0], ddof=1) / np.sqrt(3))
    assert table["plausible"].values.tolist() == [False, True, True]  # 6.0 +- 0.58, Student's t with 2
    assert "probability" not in table


def test_missing_restarts_are_left_out():
    table = table_of({1: [-9.0, np.nan], 2: [np.nan, np.nan], 3: [-5.0, -5.2]}, CHIB)
    assert np.isnan(float(table["combined"].sel(rank=2)))
    assert table.attrs["status"] == "interrupted"
    assert float(table["probability"].sel(rank=2)) == 0.0
    with pytest.raises(KeyboardInterrupt):
        table_of({1: [np.nan]}, CHIB)


# -- held-out data -------------------------------------------------------------------------------------------------


def split_of(x, share=0.2, seed=1, **options):
    structure = read(nz.gamma_nmf(x, 2, **options))
    return structure, holdout.hold_out(structure, share, seed_key(seed))


def test_cells_of_a_table_are_held_out():
    structure, split = split_of(X)
    mask = split.training.data.mask
    assert (~mask).sum() == len(split.values) == round(0.2 * X.size)
    np.testing.assert_array_equal(X[split.rows, split.cols], split.values)
    assert not mask[split.rows, split.cols].any()
    assert not split.training.data.values[~mask].any()
    assert structure.data.mask is None
    again = holdout.hold_out(read(nz.gamma_nmf(X, 3)), 0.2, seed_key(1))
    np.testing.assert_array_equal(again.rows, split.rows)  # whatever the model
    other = holdout.hold_out(structure, 0.2, seed_key(2))
    assert not np.array_equal(other.rows, split.rows)


def test_missing_cells_stay_missing():
    mask = np.random.default_rng(1).random(X.shape) < 0.7
    for x, options in ((X, {"mask": mask}), (sp.csr_array(X * mask), {"observed": "stored"})):
        structure, split = split_of(x, **options)
        rows, cols, values = split.training.observed_cells()
        both = set(zip(rows, cols, strict=True)) | set(zip(split.rows, split.cols, strict=True))
        assert len(values) + len(split.values) == len(both) == structure.data.observed_values.size
        assert not split.is_thinned


def test_sparse_counts_are_thinned():
    x = sp.csr_array(X * (X > 6))
    _, split = split_of(x)
    training = split.training.data
    assert isinstance(training, Cells)
    assert training.is_complete
    assert (training.values > 0).all()
    kept = sp.csr_array((training.values, (training.rows, training.cols)), x.shape)
    held = sp.csr_array((split.values, (split.rows, split.cols)), x.shape)
    np.testing.assert_array_equal((kept + held).toarray(), x.toarray())
    assert abs(held.sum() / x.sum() - 0.2) < 5 * np.sqrt(0.16 / x.sum())
    assert float(split.training.likelihood.exposure[0, 0]) == pytest.approx(0.8)
    assert float(split.tested.likelihood.exposure[0, 0]) == pytest.approx(0.2)


def test_scores_are_the_log_probabilities_of_what_was_held_out():
    """Against SciPy's Poisson, cell by cell and draw by draw."""
    rng = np.random.default_rng(2)
    W, H = rng.gamma(2.0, size=(3, 9, 2)), rng.gamma(2.0, size=(3, 2, 12))
    draws = [holdout.Draw(w, h, {}, (0, 0), (0, 0)) for w, h in zip(W, H, strict=True)]
    _, split = split_of(X)
    cells = np.stack([poisson.pmf(split.values, (w @ h)[split.rows, split.cols]) for w, h in zip(W, H, strict=True)])
    np.testing.assert_allclose(holdout.cell_scores(split, iter(draws)), np.log(cells.mean(axis=0)), rtol=1e-10)

    background = np.full(X.shape, 0.5)
    structure = read(nz.gamma_nmf(X * (X > 8), 2, exposure=np.full((9, 1), 2.0), background=background))
    rows, cols = np.nonzero(structure.data.values)
    listed = Cells(rows=rows, cols=cols, values=structure.data.values[rows, cols], shape=X.shape, is_complete=True)
    split = holdout.hold_out(replace(structure, data=listed), 0.25, seed_key(1))
    mean = 0.25 * (2.0 * np.mean([w @ h for w, h in zip(W, H, strict=True)], axis=0) + background)
    held = np.zeros(X.shape)
    held[split.rows, split.cols] = split.values
    expected = poisson.logpmf(held, mean).sum(axis=0)
    np.testing.assert_allclose(holdout.thinned_scores(split, iter(draws)), expected, rtol=1e-10)


@pytest.mark.parametrize("engine", ["vb", "em", "gibbs", nz.VB(order="paisley")])
def test_every_engine_fits_the_rest(engine):
    method = nz.Holdout(engine=engine, draws=10, tune=20, max_iter=100)
    table = select([1, 2], method=method)
    assert np.isfinite(table["estimate"]).all()
    assert table.attrs["method"] == "holdout"
    assert "held-out log-likelihood" in table.attrs["answer"]


def test_held_out_sparse_data():
    x = sp.csr_array(X * (X > 6))
    one, two = (
        select([1, 2], method=nz.Holdout(draws=5, max_iter=50), declare=lambda rank: declare(rank, x), cores=cores)
        for cores in (1, 2)
    )
    np.testing.assert_array_equal(one["estimate"], two["estimate"])
    assert "bound" not in one
    assert "standard_error" in one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share: got 0.0; expected a number between 0 and 1"),
        ({"share": "x"}, "share: got 'x'"),
        ({"draws": 0}, "draws: got 0; expected an integer >= 1"),
        ({"tune": -1}, "tune: got -1"),
        ({"tol": -1.0}, "tol: got -1.0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        nz.Holdout(**options)


def test_what_cannot_be_held_out():
    for x, options, message in (
        (X, {"share": 1e-6}, "less than one cell"),
        (sp.csr_array(X * 0.5), {}, "some cells are no integers"),
        (X, {"engine": "nuts"}, "'nuts' can't fit a part of the data"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            select(method=nz.Holdout(**options), declare=lambda rank, x=x: declare(rank, x))
    with pytest.raises(InputError, match="engine: got 'magic'"):
        select(method=nz.Holdout(engine="magic"))
