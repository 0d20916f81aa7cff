"""One chain step by step; ``on_step`` and ``max_seconds``: who is told what, who ends when, and how to go on."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.driver import STATUS, run_chains
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.runtime.jobs import Job
from nmf_zoo.runtime.run_one import Iterations, Sweeps, run_one
from nmf_zoo.runtime.stopping import BY_ON_STEP, OUT_OF_TIME
from tests.unit.test_driver import KEY, run_fit, run_toy, sample_run, sweeps_of, toy, toy_fit

JOB = Job(0, KEY)


def in_blocks(engine):
    """The same engine, which runs the sweeps of a block in one call."""

    def run(problem, state, key, block):
        kept = []
        for sweep in range(block.first, block.stop):
            state, info = engine.step(problem, state, key)
            if block.keeps(sweep):
                kept.append(info.sweep)
        values, stats = {"v": np.array(kept, float)[:, None]}, {"sweep": np.array(kept), "lp": np.zeros(len(kept))}
        return state, *((values, stats) if kept else ({}, {}))

    return Engine(**{**vars(engine), "run": run})


# -- one chain, one restart ------------------------------------------------------------------------------------------


def test_a_restart_step_by_step():
    engine = toy_fit([1.0])
    steps = list(run_one(engine, None, {"r": 0, "i": 0}, Iterations(max_iter=9, tol=0.1), JOB))
    assert [at.step.number for at in steps] == [1, 2, 3, 4]
    assert [at.step.info["residual"] for at in steps] == [0.5, 0.25, 0.125, 0.0625]
    assert {(at.step.chain, at.step.total, at.step.is_warmup, at.ends) for at in steps} == {(0, 9, False, "")}


def test_leaving_and_going_on_is_as_not_leaving():
    engine, length = toy(), {"tune": 3, "draws": 4}
    whole = [at.values["v"] for at in run_one(engine, None, new(), Sweeps(**length), JOB) if at.stats]
    found, state, done = [], new(), 0
    while done < 7:
        at = next(run_one(engine, None, state, Sweeps(**length, done=done), JOB))
        state, done = at.state, at.step.number
        found += [at.values["v"]] if at.stats else []
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(whole))


def new():
    return {"chain": 0, "sweep": 0, "u": 0.0}


def test_blocks_of_a_length_that_matters():
    steps = run_one(in_blocks(toy()), None, new(), Sweeps(tune=5, draws=5, block=3), JOB)
    assert [(at.step.number, at.step.is_warmup, len(at.stats.get("lp", ()))) for at in steps] == [
        (3, True, 0),
        (5, True, 0),
        (8, False, 3),
        (10, False, 2),
    ]


def test_of_a_block_that_keeps_nothing_the_last_sweep_is_told_and_not_kept():
    length = Sweeps(tune=5, draws=7, thin=6, block=3, tells_all=True)
    steps = list(run_one(in_blocks(toy()), None, new(), length, JOB))
    assert [at.step.info["sweep"] for at in steps] == [3, 5, 6, 11, 12]
    assert [list(at.stats.get("sweep", ())) for at in steps] == [[], [], [6], [], [12]]


def test_blocks_grow_however_slow_the_one_who_looks_on():
    """What is done between two blocks is no reason for shorter ones."""
    sizes = []
    for at in run_one(in_blocks(toy()), None, new(), Sweeps(tune=0, draws=31), JOB):
        time.sleep(0.12)
        sizes.append(at.step.number)
    assert sizes == [1, 3, 7, 15, 31]


def test_seconds_are_those_of_the_step():
    steps = run_one(toy(lambda chain, sweep: time.sleep(0.02)), None, new(), Sweeps(tune=0, draws=3), JOB)
    for at in steps:
        assert 0.02 <= at.step.seconds < 0.5
        time.sleep(0.6)


# -- on_step ---------------------------------------------------------------------------------------------------------


def test_every_step_of_every_chain_is_told():
    seen = []
    run_toy(toy(), n_chains=2, cores=2, on_step=seen.append)
    for chain in range(2):
        mine = [step for step in seen if step.chain == chain]
        assert [step.number for step in mine] == list(range(1, 11))
        assert [step.is_warmup for step in mine] == [True] * 4 + [False] * 6
        assert [step.info["sweep"] for step in mine] == list(range(1, 11))
        assert {step.info["lp"] for step in mine} == {float(chain)}
    assert {step.total for step in seen} == {10}


def test_draws_do_not_depend_on_who_looks_on():
    alone, seen = (run_toy(toy(), thin=2, keep_warmup=True, **more)[0] for more in ({}, {"on_step": lambda step: None}))
    for one, other in zip(alone, seen, strict=True):
        for trace in ("draws", "warmup"):
            np.testing.assert_array_equal(getattr(one, trace).values["v"], getattr(other, trace).values["v"])


def test_one_call_at_a_time():
    inside, most = [], []

    def on_step(step):
        inside.append(step)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()

    run_toy(toy(), n_chains=4, cores=4, on_step=on_step)
    assert len(most) == 40
    assert max(most) == 1


def test_true_ends_all_chains_after_their_step():
    seen, together = [], threading.Barrier(2, timeout=10)

    def on_step(step):
        seen.append(step.number)
        return step.number == 7

    chains, early = run_toy(
        toy(lambda chain, sweep: together.wait() if sweep < 7 else None), n_chains=2, cores=2, draws=90, on_step=on_step
    )
    assert early == BY_ON_STEP
    assert seen[-1] == 7
    assert [chain.draws.filled for chain in chains] in ([2, 2], [3, 3])  # the other had begun its next one, or not
    assert sweeps_of(chains[0].draws)[:2] == [5, 6]


@pytest.mark.parametrize("answer", [None, False, 1, "yes", np.array([True, True])])
def test_nothing_but_true_ends_a_run(answer):
    chains, early = run_toy(toy(), n_chains=1, on_step=lambda step: answer)
    assert (early, chains[0].draws.filled) == ("", 6)


def test_numpys_true_is_true():
    assert run_toy(toy(), n_chains=1, on_step=lambda step: np.True_)[1] == BY_ON_STEP


def test_true_at_the_very_end_is_no_early_end():
    assert run_toy(toy(), n_chains=1, on_step=lambda step: step.number == step.total)[1] == ""


def test_a_fit_that_is_ended_says_so():
    solutions, early = run_fit(toy_fit([1.0, 2.0]), 2, on_step=lambda step: step.info["residual"] < 0.2)
    assert early == BY_ON_STEP
    assert [(solution.status, len(solution.objective)) for solution in solutions] == [(BY_ON_STEP, 3), (BY_ON_STEP, 1)]
    assert STATUS[BY_ON_STEP]


def test_a_fit_that_converged_in_the_same_step_has_converged():
    solutions, early = run_fit(toy_fit([1.0]), 1, tol=0.2, on_step=lambda step: step.number == 3)
    assert (solutions[0].status, early) == ("converged", "")


class Refused(Exception):
    """Raised in on_step."""


@pytest.mark.parametrize("error", [Refused, KeyboardInterrupt, SystemExit])
def test_an_error_in_on_step_ends_the_run_and_is_raised(error):
    calls = []

    def on_step(step):
        calls.append(step.number)
        if step.number == 3:
            raise error("in on_step")

    with pytest.raises(error, match="in on_step"):
        run_toy(toy(), n_chains=2, on_step=on_step)
    assert calls == [1, 2, 3]
    with pytest.raises(error, match="in on_step"):
        run_fit(toy_fit([1.0]), 1, on_step=on_step)


# -- max_seconds -----------------------------------------------------------------------------------------------------


def slow(seconds=0.01):
    return lambda chain, sweep: time.sleep(seconds)


def test_time_is_up():
    began = time.monotonic()
    chains, early = run_toy(toy(slow()), n_chains=1, tune=2, draws=10_000, max_seconds=0.3)
    assert early == OUT_OF_TIME
    assert 1 <= chains[0].draws.filled <= 30
    assert 0.3 <= time.monotonic() - began < 5.0


def test_chains_that_wait_for_a_core_have_their_share():
    chains, early = run_toy(toy(slow(0.005)), n_chains=4, cores=2, tune=0, draws=10_000, max_seconds=0.4)
    assert early == OUT_OF_TIME
    assert len(chains) >= 3  # those that got little of a busy machine are dropped
    assert len({chain.draws.filled for chain in chains}) == 1


def test_every_chain_makes_a_step():
    chains, early = run_toy(toy(), n_chains=3, tune=0, max_seconds=1e-9)
    assert early == OUT_OF_TIME
    assert [chain.draws.filled for chain in chains] == [1, 1, 1]
    solutions, early = run_fit(toy_fit([1.0, 2.0]), 2, max_seconds=1e-9)
    assert [(solution.status, len(solution.objective)) for solution in solutions] == [(OUT_OF_TIME, 1)] * 2


def test_enough_time():
    assert run_toy(toy(), max_seconds=1000.0)[1] == ""
    assert run_fit(toy_fit([1.0]), 1, max_seconds=np.inf)[0][0].status == "all_iterations"


# -- going on --------------------------------------------------------------------------------------------------------

LENGTH = {"draws": 7, "tune": 4, "thin": 2, "keep_warmup": True}


@pytest.fixture
def checkpoint(tmp_path):
    """Opens the folder anew, as another session does."""
    opened = []

    def session():
        for one in opened:
            one.close()
        opened.append(open_checkpoint(tmp_path / "run", {}, 1, is_seeded=True))
        return opened[-1]

    yield session
    opened[-1].close()


def chains_of(checkpoint=None, **options):
    starts = [{"chain": chain} for chain in range(2)]
    return run_chains(toy(), None, None, sample_run(**LENGTH, **options), KEY, starts, checkpoint=checkpoint)


def fail_at(number):
    def on_step(step):
        if step.number == number:
            raise Refused

    return on_step


WAYS = {
    "by on_step": {"on_step": lambda step: step.number % 3 == 0},
    "by an error": {"on_step": fail_at(5)},
    "out of time": {"max_seconds": 1e-9},
}


@pytest.mark.parametrize("way", WAYS)
def test_chains_go_on_to_the_same_draws(checkpoint, way, monkeypatch):
    """One session after the other is ended early; only their last saves are there."""
    monkeypatch.setattr(files, "EVERY", np.inf)
    early, sessions = way, 0
    while early and sessions < 40:
        sessions += 1
        try:
            found, early = chains_of(checkpoint(), **WAYS[way])
        except Refused:
            assert way == "by an error"
    expected, _ = chains_of()
    assert sessions > 1
    for one, other in zip(found, expected, strict=True):
        for trace in ("draws", "warmup"):
            np.testing.assert_array_equal(getattr(one, trace).values["v"], getattr(other, trace).values["v"])


def test_restarts_go_on_to_the_same_iterates(checkpoint):
    lengths = []
    while not lengths or lengths[-1] < 20:
        solutions, _ = run_fit(toy_fit([1.0, 2.0]), 2, checkpoint(), max_seconds=1e-9)
        lengths.append(len(solutions[0].objective))
    assert lengths == list(range(1, 21))  # every session makes one
    whole, _ = run_fit(toy_fit([1.0, 2.0]), 2)
    assert [(s.objective, s.residual, s.status) for s in solutions] == [
        (s.objective, s.residual, s.status) for s in whole
    ]
    assert all(later > earlier for earlier, later in pairwise(lengths))
