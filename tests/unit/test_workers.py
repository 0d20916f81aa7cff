"""Helpers on idle cores: results in order whoever helps, cores lent and given back, failures that reach the caller."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from nmf_zoo.runtime.workers import WORTH_SHARING, Workers
from tests.unit.test_driver import run_toy, toy


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_in_order(threads):
    workers = Workers(threads)
    assert workers.map(lambda a, b: (time.sleep(0.001 * (a % 3)), a - b)[1], range(20), range(0, 40, 2)) == [
        -a for a in range(20)
    ]
    assert workers.map(lambda a: a, []) == []
    assert workers.threads == threads
    workers.close()


def test_helpers_work_beside_the_caller():
    """Four that wait for each other."""
    together, workers = threading.Barrier(4, timeout=10), Workers(4)
    workers.map(lambda task: together.wait(), range(4))
    workers.close()


def test_two_callers_share_the_idle_cores():
    """No more run at once than there are cores, and all of them do."""
    workers, running, most, lock = Workers(3), 0, 0, threading.Lock()
    workers.add_cores(-1)  # the second caller's own

    def work(task):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    callers = [threading.Thread(target=workers.map, args=(work, range(20))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most == 3
    assert workers.threads == 2
    workers.close()


def test_a_map_inside_a_map():
    workers = Workers(3)
    assert workers.map(lambda i: sum(workers.map(lambda j: i * j, range(5))), range(8)) == [10 * i for i in range(8)]
    workers.close()


@pytest.mark.parametrize("failing", [0, 5, 9])
def test_a_failure_reaches_the_caller_when_all_have_stopped(failing):
    workers, busy = Workers(3), set()

    def work(task):
        busy.add(task)
        time.sleep(0.002)
        busy.discard(task)
        if task == failing:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        workers.map(work, range(10))
    assert not busy
    assert workers.threads == 3
    workers.close()


@pytest.mark.parametrize(("n_chains", "cores", "at_last"), [(3, 2, 2), (2, 4, 4), (1, 3, 3), (4, 1, 1)])
def test_the_cores_of_chains_that_ended_help_the_last(n_chains, cores, at_last):
    engine, seen = toy(lambda chain, sweep: time.sleep(0.02 * (chain == n_chains - 1))), []
    prepared = {}

    def prepare(structure, options, workers):
        prepared["workers"] = workers

    def step(problem, state, key):
        if state["chain"] == n_chains - 1:
            seen.append(prepared["workers"].threads)
        return engine.step(problem, state, key)

    run_toy(type(engine)(**{**vars(engine), "prepare": prepare, "step": step}), n_chains=n_chains, cores=cores)
    assert seen[-1] == at_last
    assert max(seen) <= cores


@pytest.mark.parametrize("threads", [1, 3])
def test_fold_adds_in_order(threads):
    """However long each takes."""
    workers, added = Workers(threads), []

    def work(item):
        time.sleep(0.002 * (item % 3 == 0))
        return item

    workers.fold(work, range(20), added.append)
    workers.close()
    assert added == list(range(20))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3, WORTH_SHARING])
def test_map_rows_covers_every_row_once(threads, rows):
    workers, out = Workers(threads), np.zeros((rows, 4))

    def count(first, last):
        out[first:last] += 1.0

    workers.map_rows(count, out)
    workers.close()
    assert np.all(out == 1.0)
