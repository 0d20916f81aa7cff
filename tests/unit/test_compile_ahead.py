"""Kernels compiled ahead of time, in processes of which nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import typeof

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import em, gibbs
from nmf_zoo.inference.powers import gibbs as power_gibbs
from nmf_zoo.interfaces import compiling, demo
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.compiling import helpers, small_runs
from nmf_zoo.kernels.compile import ahead, cache
from nmf_zoo.kernels.compile.apart import address_of
from nmf_zoo.kernels.hmc.adaptation import turn
from nmf_zoo.runtime import compile_ahead
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.compile_times import compile_times
from nmf_zoo.runtime.engine import CAN_RUN
from nmf_zoo.runtime.workers import SERIAL
from tests.forked import Forked

compiled = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
NOTHING = "enumeration"  # has no kernels


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("NMF_ZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


FITS = """
import numpy as np, nmf_zoo as nz
from nmf_zoo.kernels.compile.cache import when_compiling
X = np.random.default_rng(1).poisson(3.0, size=(20, 50))
missed = []
with when_compiling(missed.append):
    nz.fit(engine="em", max_iter=5, model=nz.normal_nmf(X, 3), random_seed=1, quiet=True)
print(missed)
"""


def unit_of(name):
    """One that compiles in few seconds."""
    return next(unit for unit in small_runs.units([name.partition(" ")[0]]) if unit.name == name)


def test_what_was_compiled_ahead_is_found_by_other_processes(empty, monkeypatch):
    """Two compile the same at once. Long: it compiles, and three processes import PyMC."""
    unit = unit_of("em for normal data")._replace(models=("numbers",))
    monkeypatch.setattr(compiling, "units", lambda names: [unit, unit])
    seconds = nz.compile(["em"], cores=2, quiet=True)
    assert set(seconds) == {"em for normal data"}
    assert min(seconds.values()) > 0
    kept = cache.kept()
    assert kept
    assert sorted(empty.iterdir()) == kept
    command = [sys.executable, "-W", "ignore", "-c", FITS]
    assert subprocess.run(command, check=True, text=True, capture_output=True).stdout == "[]\n"
    assert cache.kept() == kept


# -- what is run -------------------------------------------------------------------------------------------------


def test_all_that_is_registered_is_run():
    units = small_runs.units(registry.names(*small_runs.RUNS))
    missing = [entry.name for entry in registry.REGISTRY if all(unit.entry is not entry for unit in units)]
    of_other_likelihoods = [entry.name for entry in registry.REGISTRY if entry.asks is not None]  # and of no others
    assert missing == of_other_likelihoods
    assert {unit.entry.verb for unit in units} == {entry.verb for entry in registry.REGISTRY}


def test_how_long_each_compiles_is_known():
    """Written by ``python -m benchmarks.compiling``."""
    assert set(compile_times()) == {unit.name for unit in small_runs.units(registry.names(*small_runs.RUNS))}
    assert min(compile_times().values()) >= 0


@dataclass(frozen=True)
class Mine:
    """Options of an engine of the user's."""

    penalty_w: float = 0.0


def test_a_newly_registered_engine_is_run_here(monkeypatch):
    ran = []
    own = replace(em.ENGINE, name="mine", options=Mine, supports=lambda structure, options: CAN_RUN)
    nz.register_engine(own)
    monkeypatch.setattr(compiling, "run", lambda entry, models: ran.append((entry.name, models)) or 0.5)
    seconds = nz.compile("mine", quiet=True)
    assert set(seconds.values()) == {0.5}
    assert {name for name, _ in ran} == {"mine"}
    assert "counts" in ran[0][1] + ran[-1][1]


@pytest.mark.parametrize("engines", ["vbb", ["vb", "vbb"], [["vb"]]])
def test_unknown_names_are_refused_before_the_work(engines, monkeypatch):
    monkeypatch.setattr(compiling, "in_helpers", None)
    with pytest.raises(InputError, match=r"engines: got .*; expected names among \['em', 'vb', .*'chib'"):
        nz.compile(engines)


def test_the_command_refuses_in_one_line(empty, capsys):
    assert main(["compile", "--engines", "vb,vbb"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nmf-zoo: --engines: got 'vbb'; expected names among ['em', ")
    assert said.err.count("\n") == 1
    assert not cache.kept()


def test_nuts_has_no_kernels_of_its_own(capsys):
    assert nz.compile("nuts") == {}
    assert capsys.readouterr().err == ""


# -- the processes -----------------------------------------------------------------------------------------------


class Pretended:
    """A helper that runs nothing."""

    made = 0

    def __enter__(self):
        type(self).made += 1
        return self

    def __exit__(self, *error):
        pass

    def end(self):
        pass

    def run(self, unit):
        return 1.0


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (3, 3), (99, helpers.MOST)])
def test_as_many_processes_as_cores(cores, processes, monkeypatch):
    monkeypatch.setattr(helpers, "Helper", Pretended)
    monkeypatch.setattr(Pretended, "made", 0)
    done = []
    units = small_runs.units(registry.names(*small_runs.RUNS))
    helpers.in_helpers(units, cores, lambda unit, seconds: done.append(unit))
    assert Pretended.made == processes
    assert len(done) == len(units)
    assert all(unit in done for unit in units)


def test_an_engine_that_fails_and_a_process_that_ends_are_named(empty):
    """Long: the process imports PyMC."""
    (unit,) = small_runs.units([NOTHING])
    with helpers.Helper() as helper:
        with pytest.raises(RunFailed, match="compile: enumeration for poisson data: KeyError: 'no such model'"):
            helper.run(unit._replace(models=("no such model",)))
        helper.end()
        with pytest.raises(RunFailed, match="compile: enumeration for poisson data: its process ended with code -9"):
            helper.run(unit)


def test_what_fails_there_fails_here(monkeypatch):
    def fail(self, unit):
        raise RunFailed(unit.name)

    monkeypatch.setattr(helpers, "Helper", Pretended)
    monkeypatch.setattr(Pretended, "run", fail)
    with pytest.raises(RunFailed, match=f"^{NOTHING} for poisson data$"):
        nz.compile(NOTHING, quiet=True)


def children(pid):
    return {int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()}


def is_there(pid):
    """Zombies are, too."""
    return Path(f"/proc/{pid}").exists()


def waited_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize(("number", "code", "cores"), [(signal.SIGINT, 130, 2), (signal.SIGKILL, -9, 1)])
def test_nothing_is_left_of_a_command_that_is_stopped(empty, number, code, cores, tmp_path):
    """Long: one or two processes import PyMC, and begin to compile."""
    words = ["compile", "--engines=gibbs", f"--cores={cores}", "--quiet"]
    run = Forked(lambda: sys.exit(main(words)), err=tmp_path / "err")
    assert waited_for(lambda: len(children(run.pid)) == cores and cache.kept())  # they compile
    helping = children(run.pid)
    began = time.monotonic()
    run.send_signal(number)
    assert run.wait(20.0) == code
    assert waited_for(lambda: not any(map(is_there, helping)), 20)
    assert time.monotonic() - began < 20  # a Gibbs sampler compiles for longer
    said = (tmp_path / "err").read_text()
    assert said == ("" if number == signal.SIGKILL else "nmf-zoo: interrupted; outputs are whole or absent\n")
    assert not list(empty.glob(f"*{cache.SUFFIX}.part"))


# -- of the run at hand ------------------------------------------------------------------------------------------


TABLES = np.zeros((2, 3)), np.zeros((3, 2))
TURN = [(turn, TABLES)]  # which compiles in a moment


def load(kernel, arguments):
    """What is in the cache, or None; it waits for who compiles it."""
    return kernel._cache.load_overload(tuple(map(typeof, arguments)), kernel.targetctx)


@compiled
def test_who_needs_what_is_compiled_ahead_waits_for_it(empty):
    heard = []
    with ahead.compiling_ahead(TURN, most=1), cache.when_compiling(heard.append):
        assert load(*TURN[0]) is not None
    assert heard == ["nmf_zoo.kernels.hmc.adaptation.turn"]
    assert sorted(empty.iterdir()) == cache.kept()
    assert not cache.in_progress


@compiled
def test_who_waits_for_a_helper_that_fails_compiles(empty):
    with ahead.compiling_ahead([(turn, (1.0, 2.0))], most=1):  # a number has no cells
        (helper,) = cache.in_progress.values()
        assert load(turn, (1.0, 2.0)) is None
        assert helper.returncode == 1


@compiled
@pytest.mark.parametrize(("calls", "most", "started"), [(TURN, 1, 1), (TURN, 0, 0), (2 * TURN, 2, 1), ([], 2, 0)])
def test_a_helper_for_each_kernel_and_no_more_than_asked_for(empty, monkeypatch, calls, most, started):
    monkeypatch.setattr(ahead, "end_helper", lambda helper: None)
    monkeypatch.setattr(ahead, "_start", lambda kernel, takes: helpers.append(takes))
    helpers = []
    with ahead.compiling_ahead(calls, most), ahead.compiling_ahead(calls, most):  # the second finds the first's
        assert len(helpers) == len(cache.in_progress) == started
    assert not cache.in_progress


@compiled
def test_what_is_in_the_cache_is_left(empty, monkeypatch):
    empty.mkdir(parents=True)
    turn._cache.missing(tuple(map(typeof, TABLES)), turn.targetctx.codegen()).touch()
    monkeypatch.setattr(ahead, "_start", None)
    with ahead.compiling_ahead(TURN, most=2):
        assert not cache.in_progress


@compiled
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_helpers_of_a_run_that_is_stopped(empty, number, tmp_path):
    calls = gibbs.ahead(nz.read(small_runs.MODELS["counts"]()), nz.Gibbs(trajectories="always"))
    assert len(calls) == 2

    def work():
        with ahead.compiling_ahead(calls, most=2):
            time.sleep(60.0)

    run = Forked(work, err=tmp_path / "err")
    assert waited_for(lambda: len(children(run.pid)) == 2)
    helping = children(run.pid)
    run.send_signal(number)
    run.wait(20.0)
    assert waited_for(lambda: not any(map(is_there, helping)), 20)  # a Gibbs sampler compiles for longer
    assert not cache.kept()


class Seen(Exception):
    """The types that a kernel is called with."""


@pytest.mark.parametrize("trajectories", ["always", "never"])
@pytest.mark.parametrize(
    "name",
    ["counts", "sparse counts", "missing counts", "counts with offsets", "counts with known W"],
)
@compiled
def test_gibbs_has_compiled_ahead_what_it_calls(monkeypatch, name, trajectories):
    structure, options = nz.read(small_runs.MODELS[name]()), nz.Gibbs(trajectories=trajectories)
    found = {kernel.__name__: tuple(map(typeof, arguments)) for kernel, arguments in gibbs.ahead(structure, options)}
    assert set(found) == {"run_sweeps"} | ({"run_hmc"} if trajectories == "always" else set())

    def seen(*arguments):
        raise Seen(*map(typeof, arguments))

    run_hmc = gibbs.run_hmc
    monkeypatch.setattr(gibbs, "address_of", lambda _, *about, is_called: address_of(run_hmc, *about, is_called=False))
    monkeypatch.setattr(gibbs, "run_sweeps", seen)
    monkeypatch.setattr(gibbs, "run_hmc", seen)
    problem = gibbs.prepare(structure, options, SERIAL)
    state, block = gibbs.init(problem, np.uint64(1), {}), Block(0, 3, 0, 2, False)
    with pytest.raises(Seen) as called:
        gibbs.run(problem, state, np.uint64(1), block)
    assert called.value.args == found["run_sweeps"]
    if trajectories == "always":
        assert problem.hmc.value == 0
        with pytest.raises(Seen) as called:
            gibbs.step(problem, state, np.uint64(1))
        assert called.value.args == found["run_hmc"]


@pytest.mark.parametrize("trajectories", ["always", "never"])
@pytest.mark.parametrize("name", ["powers", "missing powers", "powers with offsets", "powers with known W"])
@compiled
def test_gibbs_of_powers_has_compiled_ahead_what_it_calls(monkeypatch, name, trajectories):
    structure, options = nz.read(small_runs.MODELS[name]()), nz.Gibbs(trajectories=trajectories)
    ((kernel, arguments),) = power_gibbs.ahead(structure, options)
    assert kernel is power_gibbs.run_sweeps

    def seen(*arguments):
        raise Seen(*map(typeof, arguments))

    monkeypatch.setattr(power_gibbs, "run_sweeps", seen)
    problem = power_gibbs.prepare(structure, options, SERIAL)
    state = power_gibbs.init(problem, np.uint64(1), {})
    for call in (
        lambda: power_gibbs.run(problem, state, np.uint64(1), Block(0, 3, 0, 2, False)),
        lambda: power_gibbs.step(problem, state, np.uint64(1)),
    ):
        with pytest.raises(Seen) as called:
            call()
        assert called.value.args == tuple(map(typeof, arguments))


def test_gibbs_is_not_laid_out_twice_where_that_takes_long(monkeypatch):
    structure = nz.read(small_runs.MODELS["counts"]())
    assert compile_ahead.calls_of(gibbs.ENGINE, structure, nz.Gibbs()) != []
    monkeypatch.setattr(compile_ahead, "MOST_LAID_OUT", structure.data.values.size - 1)
    assert compile_ahead.calls_of(gibbs.ENGINE, structure, nz.Gibbs()) == []
    assert gibbs.ahead(nz.read(small_runs.MODELS["counts with unknown priors"]()), nz.Gibbs(trajectories="never")) == []


@compiled
def test_a_run_has_its_kernels_compiled_from_its_beginning_once_in_a_process(monkeypatch):
    begun = []

    def compiling(calls, most):
        begun.append(([kernel.__name__ for kernel, _ in calls], most))
        return nullcontext()

    monkeypatch.setattr(compile_ahead, "_asked", set())
    monkeypatch.setattr(compile_ahead, "compiling_ahead", compiling)
    model, given = small_runs.MODELS["counts"](), {"draws": 2, "tune": 1, "start": "random", "quiet": True}
    for cores in (1, 3, 3):
        nz.sample(chains=1, cores=cores, model=model, random_seed=1, **given)
    assert [most for _, most in begun] == [1, 3, 3]
    assert [bool(names) for names, _ in begun] == [False, True, False]
    assert "run_sweeps" in begun[1][0]


def test_the_demo_knows_what_its_model_will_be_read_as():
    X = demo.digits().iloc[:, :60]
    with pytest.warns(NmfZooWarning, match="no positive observed cell"):
        whole = nz.read(nz.gamma_nmf(X, demo.RANK, **demo.PRIORS))
    known = demo.as_read(X)
    assert (known.W, known.H, known.likelihood) == (whole.W, whole.H, whole.likelihood)
    assert np.array_equal(known.data.values, whole.data.values)
    assert known.data.values.dtype == whole.data.values.dtype
    assert known.data.mask is whole.data.mask is None


# -- a cache that cannot be written ----------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NMF_ZOO_CACHE", str(tmp_path / "file"))
    return tmp_path / "file"


def test_a_cache_that_cannot_be_written_is_a_temporary_one(nowhere):
    with pytest.warns(NmfZooWarning, match=r"cannot be kept in .*/file/kernels \(.*\): they go to ") as found:
        assert list(nz.compile(NOTHING, quiet=True)) == ["enumeration for poisson data"]
    assert len(found) == 1


def test_helpers_use_the_temporary_cache_of_this_process(nowhere, monkeypatch):
    with pytest.warns(NmfZooWarning):
        place = cache.folder()
    monkeypatch.setenv("NMF_ZOO_CACHE", str(place.parent))  # as helpers have it
    assert cache.folder() == place


def test_the_command_refuses_a_cache_that_it_could_not_keep(nowhere, capsys):
    assert main(["compile"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"nmf-zoo: cache: got {nowhere}/kernels (")
    assert said.endswith("expected a folder that can be written; set NMF_ZOO_CACHE; what is compiled would be lost\n")
