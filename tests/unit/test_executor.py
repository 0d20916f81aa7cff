"""``executor=`` of runs on data in memory: the bits of threads, what Ctrl-C and a kill leave, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.modes import Lack
from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.runtime import cluster, run_one
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.remote import asked_to_end
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.verbs import sample_and_fit
from tests.unit.test_driver import press_control_c
from tests.unit.test_rank import save_and_die

X = np.random.default_rng(4).poisson(3.0, (7, 9))
HOW = {"random_seed": 1, "quiet": True}


class Far(ThreadPoolExecutor):
    """An executor that might run its work anywhere, for all that is known of it."""


class OtherMachine(Far):
    """One whose workers do not see the files of this machine."""

    sent = 0

    def submit(self, called, name, path, sent, *args):
        self.sent += sent is not None
        return super().submit(called, f"{name} elsewhere", f"{path} of another machine", sent, *args)


class Breaks(Far):
    """One whose processes end when they work."""

    def submit(self, *args):
        broken = Future()
        broken.set_exception(BrokenProcessPool("gone"))
        return broken


class Loses(Far):
    """One whose scheduler is gone, which takes calls back that nobody here has taken back."""

    def submit(self, *args):
        lost = Future()
        lost.cancel()
        lost.set_running_or_notify_cancel()
        return lost


class Presses(Far):
    """One that Ctrl-C comes to while it works on its fourth call."""

    calls = 0

    def submit(self, *args):
        self.calls += 1
        if self.calls == 4:
            threading.Thread(target=press_control_c).start()
        return super().submit(*args)


@pytest.fixture(scope="module")
def pool():
    """Two processes, forked from one that has imported what they need."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["nmf_zoo.verbs.sample_and_fit", "nmf_zoo.inference.counts.gibbs"])
    with ProcessPoolExecutor(2, context) as executor:
        yield executor


@pytest.fixture
def model():
    return nz.gamma_nmf(X, 2, alpha_w=1.5, alpha_h=1.5)


def assert_same_bits(one, other, *groups):
    for name in groups or ("posterior", "sample_stats"):
        this, that = _compat.group(one, name), _compat.group(other, name)
        assert set(this.data_vars) == set(that.data_vars)
        for variable in this.data_vars:
            np.testing.assert_array_equal(this[variable], that[variable])


# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"engine": "vb", "search": None, "restarts": 3}, {"engine": "em"}], ids=str)
def test_fits(pool, model, how):
    """Restarts; and a search of 16."""
    here, there = (nz.fit(model, executor=executor, **how, **HOW) for executor in (None, pool))
    assert_same_bits(here, there, "posterior", "sample_stats", "fit", *(["search"] if len(how) == 1 else []))


def test_a_search_leaves_the_same_fits(pool):
    """After as many iterations, though the executor makes several at once."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(40 * rng.gamma(0.2, size=(30, 5)) @ rng.gamma(0.3, size=(5, 24)) + 0.3)
    declared = nz.gamma_nmf(counts, 5, alpha_w=0.3, alpha_h=0.3)
    how = {"engine": "vb", "search": nz.Search(fits=24), "random_seed": 3, "quiet": True}
    here, there = (_compat.group(nz.fit(declared, executor=executor, **how), "search") for executor in (None, pool))
    assert here.attrs == there.attrs
    assert here.attrs["left"] > 0


CHAINS = {
    "after a search": {"draws": 30, "tune": 20},
    "going on": {"draws": 30, "tune": 20, "start": "random", "extend": 4},
    "beginning anew": {"draws": 30, "tune": 20, "start": "random", "extend": 4},
    "following": {"draws": 30, "tune": 20, "start": "random", "extend": 4},
    "with the warm-up": {"draws": 30, "tune": 20, "start": "random", "discard_tuned_samples": False},
    "of particles": {"draws": 20, "engine": nz.SMC(particles=60)},
}


@pytest.mark.parametrize("which", CHAINS)
def test_chains(pool, model, which, monkeypatch):
    """Those that go on thin their draws where these are, between two calls of the executor."""
    lack = Lack("it is asked for", which in ("beginning anew", "following"), [1, 1] if which == "following" else [])
    monkeypatch.setattr(sample_and_fit, "what_lacks", lambda *_: lack)
    how = {"model": model, "chains": 2, **HOW, **CHAINS[which]}
    here, there = (nz.sample(executor=executor, **how) for executor in (None, pool))
    warmup = ["warmup_posterior"] if which == "with the warm-up" else []
    assert_same_bits(here, there, "posterior", "sample_stats", *warmup)
    assert here.attrs["thin"] == there.attrs["thin"] == {"going on": 4}.get(which, 1 + lack.is_on_the_way)
    for name, is_said in (("discarded", lack.is_on_the_way), ("gathered", which == "following")):
        assert here.attrs.get(name, 0) == there.attrs.get(name, 0) == 30 * is_said


def test_sweeps_that_come_one_by_one():
    """Their draws are the state's own arrays, and several of them are sent back together."""
    model = nz.negative_binomial_nmf(X, 2)
    how = {"model": model, "chains": 1, "draws": 10, "tune": 5, "start": "random", **HOW}
    with Far(1) as executor:
        assert_same_bits(nz.sample(executor=executor, **how), nz.sample(**how))


def test_moments(pool, model):
    how = {"model": model, "chains": 2, "draws": 30, "tune": 20, "keep": "moments", "start": "random", **HOW}
    here, there = (nz.sample(executor=executor, **how) for executor in (None, pool))
    assert_same_bits(here, there, "posterior_moments", "sample_stats")


@pytest.mark.parametrize("method", ["bound", nz.Chib(draws=100, tune=20), nz.SMC(particles=60)], ids=str)
def test_evidence(pool, method):
    model = nz.gamma_nmf([[1, 0, 2], [2, 3, 0]], 2)
    here, there = (nz.evidence(model, method, executor=executor, **HOW) for executor in (None, pool))
    assert_same_bits(here, there, "posterior", "sample_stats")
    compared = nz.compare_evidence({"one": there, "other": model}, method, executor=pool, **HOW)
    assert compared["log_bayes_factor"].tolist() == [0.0, 0.0]


def test_engines_side_by_side(pool, model):
    """All but times."""
    how = {"draws": 60, "tune": 20, "chains": 2, "random_seed": 1}
    here, there = (nz.compare_engines(model, ["gibbs", "vb"], executor=executor, **how) for executor in (None, pool))
    for name in ("gibbs", "vb"):
        assert_same_bits(here.results[name], there.results[name])


def test_modes(pool, model):
    idata = nz.sample(200, tune=50, chains=2, model=model, **HOW)
    how = {"draws": 100, "tune": 20, "modes": [[0], [1]], **HOW}
    here, there = (nz.weigh_modes(idata, model, executor=executor, **how) for executor in (None, pool))
    assert_same_bits(here, there, "modes")


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, Far])
def test_any_executor_will_do_and_is_left_open(kind, model):
    with kind(2) as executor:
        assert_same_bits(nz.fit(model, engine="vb", executor=executor, **HOW), nz.fit(model, engine="vb", **HOW))
        assert executor.submit(int).result() == 0


def test_how_steps_are_cut_decides_nothing(model, monkeypatch):
    """Each goes and comes back by itself."""
    monkeypatch.setattr(run_one, "STRETCH", 0.0)
    how = {"model": model, "draws": 12, "tune": 10, "chains": 1, "start": "random", **HOW}
    with Far(1) as executor:
        assert_same_bits(nz.sample(executor=executor, **how), nz.sample(**how))


# -- how much is sent ------------------------------------------------------------------------------------------------


def test_the_model_goes_to_a_worker_once(model, monkeypatch):
    monkeypatch.setattr(run_one, "STRETCH", 0.0)
    how = {"engine": "vb", "search": None, "restarts": 1, "max_iter": 9, "tol": 0.0, **HOW}
    with OtherMachine(1) as executor:
        assert_same_bits(nz.fit(model, executor=executor, **how), nz.fit(model, **how))
    assert executor.sent == 1


def test_whole_runs_go_to_other_machines_too():
    model = nz.gamma_nmf([[1, 0, 2], [2, 3, 0]], 2)
    with OtherMachine(1) as executor:
        there = nz.evidence(model, nz.SMC(particles=60), executor=executor, **HOW)
    assert executor.sent >= 1
    assert_same_bits(there, nz.evidence(model, nz.SMC(particles=60), **HOW))


def test_no_file_is_left(model, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Far(1) as executor:
        nz.fit(model, engine="vb", executor=executor, **HOW)
    assert not list(tmp_path.iterdir())


# -- Ctrl-C, time, kills ---------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_drawn(model, monkeypatch):
    monkeypatch.setattr(run_one, "STRETCH", 0.2)
    how = {"model": model, "tune": 10, "chains": 1, "start": "random", "thin": 100, **HOW}
    with Presses(1) as executor:
        cut = nz.sample(1_000_000, executor=executor, **how)
    assert cut.attrs["status"] == INTERRUPTED
    assert_same_bits(cut, nz.sample(100 * cut.posterior.sizes["draw"], **how))


def test_ctrl_c_in_a_fit_keeps_its_iterates(model):
    """Also of restarts that no worker has begun: each makes one iteration, here."""
    how = {"engine": "vb", "search": None, "tol": 0.0, "max_iter": 10**7, **HOW}
    with Presses(1) as executor:
        cut = nz.fit(model, restarts=9, executor=executor, **how)
    assert cut.attrs["status"] == INTERRUPTED
    assert cut.fit.sizes["chain"] == 9


def test_time_that_is_over(model):
    how = {"engine": "vb", "search": None, "tol": 0.0, "max_iter": 10**7, **HOW}
    with Far(1) as executor:
        assert nz.fit(model, executor=executor, max_seconds=0.3, **how).attrs["status"] == "max_seconds reached"


def test_ctrl_c_of_a_terminal_asks_a_worker_to_end():
    before = signal.getsignal(signal.SIGINT)
    with asked_to_end() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason == INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("first", "then"), [(Far, None), (None, Far)], ids=["then threads", "then an executor"])
def test_a_search_that_was_killed_goes_on_whatever_executor_it_had(first, then, model, tmp_path):
    def search(kind, **more):
        with (kind or ThreadPoolExecutor)(1) as executor:
            return nz.fit(model, engine="vb", search=nz.Search(fits=6), executor=executor, cores=1, **more, **HOW)

    expected = search(None)
    number = os.fork()
    if number == 0:
        try:
            RunFiles.save = save_and_die(RunFiles.save)
            search(first, checkpoint=tmp_path / "search")
        finally:
            os._exit(1)
    _, status = os.waitpid(number, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert len(list((tmp_path / "search").glob("*.state"))) == 2
    assert_same_bits(search(then, checkpoint=tmp_path / "search"), expected, "posterior", "fit", "search")


# -- failures and refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Breaks, Loses])
def test_processes_that_ended(kind, model):
    with kind(1) as executor, pytest.raises(RunFailed, match=r"processes of the executor ended .*checkpoint="):
        nz.fit(model, engine="vb", executor=executor, **HOW)


def test_workers_that_differ(model, monkeypatch):
    found = cluster.fingerprint()
    monkeypatch.setattr(cluster, "fingerprint", lambda: {**found, "NumPy": "1.0"})
    with Far(1) as executor, pytest.raises(InputError, match=r"executor: got a worker with NumPy 1\.0; expected"):
        nz.fit(model, engine="vb", executor=executor, **HOW)


def test_what_is_refused(model, tmp_path):
    """In one line each, before anything is done."""
    far = Far(1)
    for call, line in (
        (lambda: nz.fit(model, executor=2, **HOW), "executor: got int; expected a concurrent.futures.Executor, a dask"),
        (lambda: nz.sample(model=model, executor=2, **HOW), "executor: got int; expected"),
        (lambda: nz.evidence(model, executor="dask", **HOW), "executor: got str; expected"),
        (lambda: nz.select_rank(X, [1], executor=2, **HOW), "executor: got int; expected"),
        (lambda: nz.sample(model=model, engine="nuts", executor=far), "executor: got Far with nuts; expected None"),
        (lambda: nz.evidence(model, "enumeration", executor=far), "executor: got Far with enumeration; expected None"),
        (
            lambda: nz.fit(model, executor=far, on_step=print, checkpoint=tmp_path / "run"),
            "on_step: got .* with Far; expected None where steps are made in other processes",
        ),
    ):
        with pytest.raises(InputError, match=line) as error:
            call()
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
