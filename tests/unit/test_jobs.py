"""Pieces of work side by side: the same results in any order and anywhere; failures, Ctrl-C, a shelf."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.jobs import Jobs
from nmf_zoo.runtime.stopping import INTERRUPTED
from tests.piece_of_work import draw
from tests.unit.test_driver import press_control_c

KEYS = [child(seed_key(3), number) for number in range(6)]
ITEMS = [50, 40, 30, 20, 10, 0]


EXPECTED = {number: (item, number, int(KEYS[number]) % 1009) for number, item in enumerate(ITEMS)}


def run(work, cores=2, executor=None, shelf=None, items=ITEMS, **options):
    with Jobs(len(items), cores=cores, word="piece", executor=executor, **options) as jobs:
        return jobs.run(work, items, KEYS[: len(items)], shelf)


class Far(ThreadPoolExecutor):
    """An executor that might run its work anywhere, for all that is known of it."""


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 6, 20])
def test_results_depend_on_neither_threads_nor_order(cores):
    found = run(draw, cores)
    assert found == EXPECTED
    assert list(found) == list(range(6))


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, Far])
def test_any_executor_will_do_and_is_left_open(kind):
    with kind(3) as executor:
        assert run(draw, executor=executor) == EXPECTED
        assert run(draw, executor=executor, total=5) == EXPECTED


def test_in_other_processes():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        assert run(draw, executor=executor) == EXPECTED
        assert run(lambda item, job: item, executor=executor) == dict(enumerate(ITEMS))
        with pytest.raises(InputError, match="executor: got ProcessPoolExecutor, to which this run can't be sent"):
            run(lambda item, job: executor, executor=executor)


def test_no_pieces():
    assert run(draw, items=[]) == {}


def test_cores_without_a_piece_help_the_others():
    seen, ended = [], threading.Event()

    def work(item, job):
        if job.number == 1:
            seen.append(job.workers.threads)
            return
        ended.wait(10)
        while job.workers.threads < 3:  # its own, the one left over, and that of the other piece
            time.sleep(0.001)
        seen.append(job.workers.threads)

    with Jobs(2, cores=3, word="piece") as jobs:
        threading.Timer(0.05, ended.set).start()
        jobs.run(work, ITEMS[:2], KEYS)
    assert seen == [2, 3]


# -- failures ------------------------------------------------------------------------------------------------------


def test_the_first_failure_is_raised_and_nothing_new_is_begun():
    begun = []

    def work(item, job):
        begun.append(job.number)
        if job.number == 1:
            raise RunFailed("piece 1")

    with pytest.raises(RunFailed, match="piece 1"):
        run(work, cores=1)
    assert begun == [0, 1]


def test_of_several_failures_that_of_the_first_piece_is_raised():
    together = threading.Barrier(2, timeout=10)

    def work(item, job):
        together.wait()
        time.sleep(item / 1000)
        raise RunFailed(f"piece {job.number}")

    with pytest.raises(RunFailed, match="piece 0"):
        run(work, items=[50, 0])


def test_a_failure_asks_the_others_to_stop():
    def work(item, job):
        if job.number == 1:
            raise RunFailed("here")
        for _ in iter(job.is_stopped, "failed"):
            time.sleep(0.001)

    with pytest.raises(RunFailed, match="here"):
        run(work, items=[0, 1])


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_ctrl_c_asks_all_pieces_to_end():
    """Each decides what to make of it: one is left out, others return what they have, those to come see it at once."""

    def work(item, job):
        if job.number == 0:
            press_control_c()
        if job.number == 1:
            while not job.is_stopped():
                time.sleep(0.001)
            raise KeyboardInterrupt
        return job.is_stopped()

    with Jobs(4, cores=2, word="piece") as jobs:
        found = jobs.run(work, ITEMS[:4], KEYS)
        assert jobs.stop.reason == INTERRUPTED
    assert found == {0: INTERRUPTED, 2: INTERRUPTED, 3: INTERRUPTED}


def test_elsewhere_those_that_run_come_to_their_end_and_others_are_not_begun():
    def work(item, job):
        press_control_c()
        return job.is_stopped()

    with Far(1) as executor:
        found = run(work, executor=executor)
    assert 1 <= len(found) <= 2  # an executor hands one more on before it can be taken back
    assert not any(found.values())


def test_a_second_ctrl_c_gives_up():
    def work(item, job):
        if job.number == 0:
            press_control_c()
            press_control_c()

    with pytest.raises(KeyboardInterrupt):
        run(work, cores=1)


# -- the shelf -----------------------------------------------------------------------------------------------------


class Shelf(dict):
    def load(self, number):
        return self.get(number)

    def save(self, number, result):
        assert number not in self
        self[number] = result


def test_what_is_on_the_shelf_is_not_done_again():
    shelf, done = Shelf({1: "one", 4: "four"}), []
    found = run(lambda item, job: done.append(job.number) or item, shelf=shelf, cores=1)
    assert done == [0, 2, 3, 5]
    assert found == {0: 50, 1: "one", 2: 30, 3: 20, 4: "four", 5: 0} == shelf
    assert run(lambda item, job: pytest.fail("done again"), shelf=shelf) == found


def test_each_result_is_saved_when_its_piece_ends():
    shelf, seen = Shelf(), []

    def work(item, job):
        while len(shelf) < job.number:
            time.sleep(0.001)
        seen.append(len(shelf))
        return item

    run(work, shelf=shelf, cores=1)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_what_ended_before_a_failure_is_saved():
    shelf = Shelf()

    def work(item, job):
        if job.number == 2:
            raise RunFailed("here")
        return item

    with pytest.raises(RunFailed):
        run(work, shelf=shelf, cores=1)
    assert shelf == {0: 50, 1: 40}


# -- refusals ------------------------------------------------------------------------------------------------------


def test_nobody_looks_on_in_other_processes():
    for name, value in (("on_step", print), ("max_seconds", 60)):
        with Far(1) as executor, pytest.raises(InputError, match=f"{name}: got .* with Far; expected None where"):
            Jobs(2, cores=1, word="chain", executor=executor, **{name: value})
