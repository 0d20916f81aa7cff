"""Kernels compiled ahead of time, in processes of which nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import em
from nmf_zoo.interfaces import compiling
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.compiling import helpers, small_runs
from nmf_zoo.kernels.compile import cache
from nmf_zoo.runtime.compile_times import compile_times
from nmf_zoo.runtime.engine import CAN_RUN
from tests.forked import Forked

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
