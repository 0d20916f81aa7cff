"""The driver: chains that depend on their number and seed only; interruptions and failures that end well."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.kernels.random.keyed_rng import child, seed_key, uniform
from nmf_zoo.runtime.driver import FitRun, SampleRun, run_chains, run_restarts
from nmf_zoo.runtime.engine import CAN_RUN, START, STEPS, Engine
from nmf_zoo.runtime.workers import OneBlasThread, Workers
from nmf_zoo.structure import Poisson
from tests.structures import gamma, model, unknown

KEY = seed_key(11)


def sample_run(**options):
    defaults = {"draws": 6, "tune": 4, "thin": 1, "keep_warmup": False, "cores": 1, "progressbar": False}
    return SampleRun(**{**defaults, **options})


# -- a toy engine --------------------------------------------------------------------------------------------------


class Info(NamedTuple):
    sweep: int


def toy(on_sweep=lambda chain, sweep: None, on_init=lambda: None):
    """Counts its sweeps; its draws are the sweep's number and a uniform; calls ``on_sweep(chain, sweep)`` first."""

    def init(problem, key, start):
        on_init()
        return {"chain": start.get("chain", 0), "sweep": 0, "u": 0.0}

    def step(problem, state, key):
        on_sweep(state["chain"], state["sweep"])
        state["sweep"] += 1
        state["u"] = uniform(key, 0)
        return state, Info(state["sweep"])

    def draw(problem, state, key):
        return {"v": np.array([state["sweep"], state["u"]]), "w": np.ones(2)}, {"lp": float(state["chain"])}

    return Engine(
        name="toy",
        verb="sample",
        likelihoods=(Poisson,),
        options=object,
        supports=lambda structure, options: CAN_RUN,
        prepare=lambda structure, options, workers: None,
        init=init,
        step=step,
        draw=draw,
    )


def run_toy(engine, n_chains=3, **options):
    starts = [{"chain": chain} for chain in range(n_chains)]
    return run_chains(engine, None, None, sample_run(**options), KEY, starts)


def sweeps_of(trace):
    return trace.values["v"][:, 0].astype(int).tolist()


@pytest.mark.parametrize(
    ("thin", "kept", "warm"),
    [(1, [5, 6, 7, 8, 9, 10], [1, 2, 3, 4]), (2, [5, 7, 9], [1, 3]), (4, [5, 9], [1]), (7, [5], [1])],
)
def test_thinning_and_warm_up(thin, kept, warm):
    chains, stopped = run_toy(toy(), thin=thin, keep_warmup=True)
    assert not stopped
    for chain in chains:
        assert sweeps_of(chain.draws) == kept
        assert sweeps_of(chain.warmup) == warm
        assert chain.draws.stats["sweep"].tolist() == kept


def test_warm_up_is_dropped_unless_asked_for():
    chains, _ = run_toy(toy())
    assert not chains[0].warmup.values
    assert sweeps_of(chains[0].draws) == [5, 6, 7, 8, 9, 10]


def test_draws_are_the_same_with_or_without_the_warm_up():
    for kept in (True, False):
        chains, _ = run_toy(toy(), keep_warmup=kept)
        np.testing.assert_array_equal(chains[1].draws.values["v"], run_toy(toy())[0][1].draws.values["v"])


def test_no_warm_up():
    chains, _ = run_toy(toy(), tune=0, keep_warmup=True)
    assert sweeps_of(chains[0].draws) == [1, 2, 3, 4, 5, 6]
    assert chains[0].warmup.filled == 0


def test_chains_stay_in_order_and_differ():
    chains, _ = run_toy(toy(lambda chain, sweep: time.sleep(0.002 * (2 - chain))), cores=3)
    assert [chain.draws.stats["lp"][0] for chain in chains] == [0.0, 1.0, 2.0]
    assert len({chain.draws.values["v"][0, 1] for chain in chains}) == 3


def test_only_the_variables_asked_for_are_kept():
    chains, _ = run_toy(toy(), var_names=("w",))
    assert list(chains[0].draws.values) == ["w"]


def test_a_chain_does_not_depend_on_the_number_of_chains():
    alone, together = run_toy(toy(), n_chains=1)[0], run_toy(toy(), n_chains=4)[0]
    np.testing.assert_array_equal(alone[0].draws.values["v"], together[0].draws.values["v"])


# -- interruption --------------------------------------------------------------------------------------------------


def press_control_c():
    """As a terminal does: the signal reaches the main thread, once that waits for the chains; return when it has."""
    time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(0.2)


def interrupt_at(chain, sweep):
    """Press Ctrl-C during one sweep of one chain, and give the signal time to arrive."""

    def on_sweep(at_chain, at_sweep):
        if (at_chain, at_sweep) == (chain, sweep):
            press_control_c()

    return on_sweep


def test_interruption_returns_what_was_drawn():
    chains, stopped = run_toy(toy(interrupt_at(0, 6)), n_chains=1)
    assert stopped
    assert sweeps_of(chains[0].draws) == [5, 6, 7]


def test_interruption_keeps_the_chains_that_were_finished():
    """One core: chain 2 is cut short, chains 3 and 4 never began."""
    chains, stopped = run_toy(toy(interrupt_at(2, 4)), n_chains=5, keep_warmup=True)
    assert stopped
    assert [chain.draws.stats["lp"][0] for chain in chains] == [0.0, 1.0]
    for chain in chains:
        assert sweeps_of(chain.draws) == [5, 6, 7, 8, 9, 10]
        assert sweeps_of(chain.warmup) == [1, 2, 3, 4]


def test_interruption_cuts_chains_that_are_nearly_level():
    together = threading.Barrier(2, timeout=10)

    def on_sweep(chain, sweep):
        if sweep < 8:
            together.wait()
        if chain == 0 and sweep == 8:
            press_control_c()
        if chain == 1 and sweep == 8:
            time.sleep(0.2)
        if chain == 1 and sweep > 8:
            time.sleep(0.3)

    chains, stopped = run_toy(toy(on_sweep), n_chains=2, cores=2, draws=20)
    assert stopped
    assert len(chains) == 2
    assert len({len(chain.draws.values["v"]) for chain in chains}) == 1
    assert sweeps_of(chains[0].draws)[:4] == [5, 6, 7, 8]


def test_interruption_in_the_warm_up_leaves_no_draws():
    chains, stopped = run_toy(toy(interrupt_at(0, 1)), keep_warmup=True)
    assert stopped
    assert all(chain.draws.filled == 0 for chain in chains)
    assert len({chain.warmup.filled for chain in chains}) == 1


def test_lengths_after_the_cut_are_those_of_the_arrays():
    chains, _ = run_toy(toy(interrupt_at(1, 7)), n_chains=2)
    for chain in chains:
        assert chain.draws.filled == len(chain.draws.values["v"]) == len(chain.draws.stats["lp"])


# -- failure -------------------------------------------------------------------------------------------------------


def fail_at(chain, sweep):
    def on_sweep(at_chain, at_sweep):
        if (at_chain, at_sweep) == (chain, sweep):
            raise RunFailed("the third sweep of chain 1")

    return on_sweep


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_a_failure_in_one_chain_is_raised(cores):
    with pytest.raises(RunFailed, match="the third sweep of chain 1"):
        run_toy(toy(fail_at(1, 2)), cores=cores)


def test_a_failure_stops_the_other_chains():
    seen = []

    def on_sweep(chain, sweep):
        fail_at(1, 0)(chain, sweep)
        time.sleep(0.02)
        seen.append(sweep)

    with pytest.raises(RunFailed):
        run_toy(toy(on_sweep), n_chains=2, cores=2, draws=1000)
    assert len(seen) < 100


def test_a_failure_is_not_hidden_by_what_it_stops():
    """Chain 0 is inside the shared workers while chain 1 fails."""
    structure, options = counts(), gibbs.Gibbs()

    def step(problem, state, key):
        if state.W[0, 0] == 5.0:
            raise RunFailed("chain 1")
        return gibbs.step(problem, state, key)

    engine = Engine(**{**vars(gibbs.ENGINE), "step": step, "tune": step})
    bad = {"W": np.full(structure.W.shape, 5.0)}
    with pytest.raises(RunFailed, match="chain 1"):
        run_chains(engine, structure, options, sample_run(cores=4, draws=3000), KEY, [{}, bad])


# -- Gibbs through the driver --------------------------------------------------------------------------------------


def counts():
    x = np.random.default_rng(5).poisson(2.0, (60, 13)).astype(float)
    mask = np.random.default_rng(6).random((60, 13)) < 0.9
    shape = unknown("a", "gamma", 6.0, 5.0, variable_shape=(3,), shape=(1, 3))
    return model(x, 3, gamma(shape, 0.8), gamma(1.2, 0.7), mask=mask, background=np.full((60, 13), 0.3))


def run_gibbs(structure, n_chains=2, key=KEY, **options):
    return run_chains(gibbs.ENGINE, structure, gibbs.Gibbs(), sample_run(**options), key, [{}] * n_chains)[0]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for one, other in ((a.draws, b.draws), (a.warmup, b.warmup)):
            assert list(one.values) == list(other.values)
            for name, value in {**one.values, **one.stats}.items():
                np.testing.assert_array_equal(value, {**other.values, **other.stats}[name], err_msg=name)


def test_draws_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 64)  # several chunks on small data
    structure = counts()
    one = run_gibbs(structure, keep_warmup=True)
    for cores in (2, 3, 8):
        assert_same(one, run_gibbs(structure, cores=cores, keep_warmup=True))


def test_same_seed_same_draws_and_another_seed_others():
    structure = counts()
    one = run_gibbs(structure)
    assert_same(one, run_gibbs(structure))
    other = run_gibbs(structure, key=seed_key(12))
    assert not np.any(one[0].draws.values["W"] == other[0].draws.values["W"])
    assert not np.any(one[0].draws.values["W"] == one[1].draws.values["W"])


def test_thinned_draws_are_some_of_all_draws():
    structure = counts()
    full, thinned = run_gibbs(structure), run_gibbs(structure, thin=2)
    for a, b in zip(full, thinned, strict=True):
        np.testing.assert_array_equal(a.draws.values["H"][::2], b.draws.values["H"])


def test_lp_is_the_log_joint_of_the_draw():
    structure = counts()
    draws = run_gibbs(structure, n_chains=1)[0].draws
    for i in range(6):
        values = {name: value[i] for name, value in draws.values.items()}
        np.testing.assert_allclose(draws.stats["lp"][i], structure.log_joint(values), rtol=1e-10)
        rows, cols = gibbs.checked_cells(structure.shape)
        np.testing.assert_allclose(draws.stats["mean"][i], (values["W"] @ values["H"])[rows, cols], rtol=1e-12)


def test_cores_beyond_the_chains_go_to_shared_workers():
    seen = []
    engine = Engine(**{**vars(toy()), "prepare": lambda structure, options, workers: seen.append(workers.threads)})
    for cores in (1, 2, 3, 8):
        run_toy(engine, n_chains=2, cores=cores)
    assert seen == [1, 1, 2, 7]


# -- restarts ------------------------------------------------------------------------------------------------------


class FitInfo(NamedTuple):
    objective: float
    residual: float


def toy_fit(objectives, maximise=False, on_sweep=lambda chain, sweep: None):
    """Restart r has the objective objectives[r] throughout, and a residual that halves."""

    def step(problem, state, key):
        on_sweep(state["r"], state["i"])
        state["i"] += 1
        return state, FitInfo(objectives[state["r"]], 0.5 ** state["i"])

    return Engine(
        name="toy",
        verb="fit",
        likelihoods=(Poisson,),
        options=object,
        supports=lambda structure, options: CAN_RUN,
        prepare=lambda structure, options, workers: None,
        init=lambda problem, key, start: {"r": start["r"], "i": 0},
        step=step,
        finish=lambda problem, state, key, draws: ({"v": np.full((draws, 1), float(state["r"]))}, {}),
        maximise=maximise,
    )


def run_fit(engine, n, checkpoint=None, **options):
    run = FitRun(**{"max_iter": 20, "tol": 0.0, "draws": 2, "cores": 1, "progressbar": False, **options})
    return run_restarts(engine, None, None, run, KEY, [{"r": r} for r in range(n)], checkpoint)


@pytest.mark.parametrize(("maximise", "order"), [(False, [1, 0, 2]), (True, [2, 0, 1])])
def test_the_best_restart_comes_first(maximise, order):
    solutions, _ = run_fit(toy_fit([3.0, 1.0, 5.0], maximise), 3, cores=2)
    assert [int(solution.values["v"][0, 0]) for solution in solutions] == order


@pytest.mark.parametrize(
    ("tol", "max_iter", "status", "n"),
    [(0.1, 20, "converged", 4), (1e-9, 5, "max_iter", 5), (0.0, 5, "all_iterations", 5)],
)
def test_fits_end_with_a_status(tol, max_iter, status, n):
    solutions, stopped = run_fit(toy_fit([1.0]), 1, tol=tol, max_iter=max_iter)
    assert (solutions[0].status, len(solutions[0].objective), stopped) == (status, n, "")


def test_an_interrupted_fit_is_the_last_iterate():
    solutions, stopped = run_fit(toy_fit([1.0], on_sweep=interrupt_at(0, 3)), 1)
    assert stopped
    assert solutions[0].status == "interrupted"
    assert len(solutions[0].objective) == 4


def test_a_broken_objective_is_a_failure():
    with pytest.raises(RunFailed, match="objective became nan at iteration 1"):
        run_fit(toy_fit([1.0, np.nan]), 2)


def test_streams_of_steps_are_the_documented_ones():
    """A chain's sweeps can be replayed by hand: run -> chain -> steps -> sweep."""
    structure = counts()
    kept = run_gibbs(structure, n_chains=1, tune=0, draws=2)[0].draws
    problem = gibbs.prepare(structure, gibbs.Gibbs(), Workers(1))
    chain = child(KEY, 0)
    state = gibbs.init(problem, child(chain, START), {})
    for sweep in range(2):
        state, _ = gibbs.step(problem, state, child(chain, STEPS, sweep))
        np.testing.assert_array_equal(state.W, kept.values["W"][sweep])


def test_overlapping_runs_leave_blas_as_it_was():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    with threadpool_limits(2):
        before, first, second = threads(), OneBlasThread(), OneBlasThread()
        first.__enter__()
        second.__enter__()
        first.__exit__()
        assert set(threads()) == {1}
        second.__exit__()
        assert threads() == before


def test_libraries_are_looked_for_again_once_there_are_new_modules(monkeypatch):
    def found():
        with OneBlasThread():
            return OneBlasThread._controller

    assert (before := found()) is found()
    monkeypatch.setitem(sys.modules, "a_module_that_brings_a_library", object())
    assert found() is not before
