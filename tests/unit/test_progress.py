"""The progress bars: whole numbers on terminals of any width; and what a run says that has to compile."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from unittest.mock import patch

import numba
import pytest

import nmf_zoo as nz
from nmf_zoo.inference import registry
from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime import compile_times
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.jobs import Jobs
from nmf_zoo.runtime.progress import Watch, _columns
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Poisson
from tests.registered import with_changed


@pytest.mark.parametrize("width", [80, 120])
def test_long_notes_leave_the_numbers_whole(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    bars = _columns()
    for restart, done in enumerate((60, 2000)):
        note = "max_iter: objective 1.67089e+06, residual 7.7"
        bars.add_task(f"restart {restart}", total=2000, completed=done, note=note)
    with bars.console.capture() as capture:
        bars.console.print(bars.make_tasks_table(bars.tasks))
    lines = capture.get().splitlines()
    assert len(lines) == 2
    for line, numbers in zip(lines, ("  60/2000", "2000/2000"), strict=True):
        assert numbers in line
        assert "left" in line
        assert "max_iter: objective 1.67" in line
        assert len(line.rstrip()) <= width


# -- compilation -------------------------------------------------------------------------------------------------


SAID = "compiling gibbs for poisson data, about 40 s, once\n"


def compile_something(_=None):
    """A kernel that no cache can have: its code depends on what it encloses."""
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    term = 1

    @kernel
    def plus_one(x):
        return x + term

    assert plus_one(1) == 2


def work(item, job):
    compile_something()


@pytest.mark.parametrize("bars", [{"total": 1}, {}])
def test_what_compiles_is_said_once_whichever_thread_begins(bars, capsys):
    keys, words = [child(seed_key(1), i) for i in range(3)], {"word": "chain", "compiles": SAID[10:-7]}
    with Jobs(3, cores=3, progressbar=True, **words, **bars) as jobs:
        jobs.run(work, range(3), keys)
    said = capsys.readouterr().err
    assert SAID in said
    assert said.count("compiling") == 1


def test_threads_inside_a_chain_are_heard(capsys):
    meeting, here = Barrier(2), threading.get_ident()

    def one_of_two(_):
        meeting.wait(60)
        if threading.get_ident() != here:
            compile_something()

    with Watch(True, "chain", 1, 1, SAID[10:-7]), closing(Workers(2)) as workers:
        workers.map(one_of_two, range(2))
    assert SAID in capsys.readouterr().err


def test_long_names_stay_in_one_line_of_a_file(capsys):
    with Watch(True, "chain", 1, 1, "an_engine " * 20 + "[of] mine"):
        compile_something()
    assert f"compiling {'an_engine ' * 20}[of] mine, once\n" in capsys.readouterr().err


def test_nothing_is_said_where_nobody_asked(capsys):
    with Watch(False, "chain", 1, 1):
        compile_something()
    assert capsys.readouterr().err == ""


def test_a_quiet_run_inside_another_is_heard_by_that_one(capsys):
    with Watch(True, "models", 1, 1, SAID[10:-7]), Watch(False, "restart", 1, 1, "what is quiet"):
        compile_something()
    assert SAID in capsys.readouterr().err


def test_others_are_not_heard(capsys):
    """Of two runs at once each hears its own."""
    with Watch(True, "chain", 1, 1), ThreadPoolExecutor(1) as other:
        other.submit(compile_something).result()
    assert "compiling" not in capsys.readouterr().err


@pytest.fixture
def compiling_vb(monkeypatch):
    """VB, each of whose steps compiles."""
    (vb,) = [entry for entry in registry.named("vb") if Poisson in entry.likelihoods and not entry.chains]

    def step(*arguments):
        compile_something()
        return vb.step(*arguments)

    monkeypatch.setattr(registry, "REGISTRY", with_changed(vb, step=step))


@pytest.mark.parametrize("quiet", [{}, {"quiet": True}, {"progressbar": False}])
def test_a_run_says_what_it_compiles(quiet, compiling_vb, capsys):
    model = nz.gamma_nmf([[1, 2], [3, 4]], rank=1)
    nz.fit(engine="vb", max_iter=3, tol=0.0, restarts=2, model=model, random_seed=1, **quiet)
    said = re.findall("^compiling .*", capsys.readouterr().err, re.MULTILINE)
    assert len(said) == (0 if quiet else 1)
    assert all(re.fullmatch(r"compiling vb for poisson data, about \d+ s, once", line) for line in said)


def test_a_run_whose_kernels_are_there_says_nothing(capsys):
    model = nz.gamma_nmf([[1, 2], [3, 4]], rank=1)
    run = {"engine": "vb", "max_iter": 3, "tol": 0.0, "search": None, "model": model, "random_seed": 1}
    nz.fit(quiet=True, **run)
    nz.fit(**run)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "compiling" not in said


def test_how_long_is_said_where_it_was_measured():
    structure = read(nz.gamma_nmf([[1, 2], [3, 4]], rank=1))
    with patch.object(compile_times, "compile_times", lambda: {"gibbs for poisson data": 37.9}):
        assert what_compiles("gibbs", structure) == "gibbs for poisson data, about 40 s"
        assert what_compiles("mine", structure) == "mine for poisson data"
    chains = read(nz.hmm_nmf([[1, 2], [3, 4]], rank=1, alpha_w=2.0))
    with patch.object(compile_times, "compile_times", lambda: {"em for binary chains": 0.3}):
        assert what_compiles("em", chains) == "em for binary chains, about 1 s"
