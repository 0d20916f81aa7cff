"""Sequential Monte Carlo: options, verdicts, stages, threads, interruption, memory."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import EvidenceRun, Job
from nmf_zoo.kernels.evidence import tempering
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers
from tests.structures import gamma, model, unknown

RNG = np.random.default_rng(5)
X = RNG.poisson(4.0, (6, 9)).astype(float)
OPTIONS = smc.SMC(particles=300, length=3, draws=100)


def structure(rank=2, **options):
    return model(X, rank, gamma(1.5, 1.0), gamma(1.2, 0.5), **options)


def job(seed=1, workers=SERIAL, is_stopped=lambda: False):
    return Job(0, seed_key(seed), workers, lambda *_, **__: None, is_stopped)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ess": 1.0}, "ess: got 1.0"),
        ({"particles": 10, "length": 3}, "a multiple of length"),
        ({"particles": 5, "length": 5}, "twice of it"),
        ({"length": 0}, "length=0"),
        ({"draws": 2000}, "draws: got 2000"),
    ],
)
def test_wrong_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        smc.SMC(**wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda: model(X, 2, None, gamma(1.0, 1.0)), "W has no prior"),
        (lambda: model(X, 2, np.ones((6, 2)), np.ones((2, 9))), "both factors are known"),
        (lambda: model(X, 2, gamma(unknown("a", "gamma", 1.0, 1.0), 1.0), gamma(1.0, 1.0)), "hyperparameter a"),
        (lambda: model(X + 0.5, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)), "not integers"),
    ],
)
def test_verdicts(wrong, reason):
    assert reason in smc.supports(wrong(), OPTIONS).reason


def test_one_factor_may_be_known():
    assert smc.supports(model(X, 2, np.ones((6, 2)), gamma(1.0, 1.0)), OPTIONS)


def test_temperatures_rise_to_one_by_steps_that_leave_the_share():
    state = smc.one_run(smc.prepare(structure()), OPTIONS, job())
    temperatures = [stage.temperature for stage in state.stages]
    assert np.all(np.diff(temperatures) > 0)
    assert temperatures[-1] == 1.0
    np.testing.assert_allclose([stage.ess for stage in state.stages[:-1]], OPTIONS.ess, rtol=1e-6)
    assert state.stages[-1].ess >= OPTIONS.ess
    assert min(stage.accept_W for stage in state.stages) > 0.5
    assert min(stage.accept_H for stage in state.stages) > 0.5


def test_rises():
    flat = np.zeros(10)
    assert smc.next_rise(flat, 0.8, 0.3) == (0.3, 1.0)
    steep = np.array([-np.inf, *RNG.normal(-1e6, 1e5, 50)])
    rise, share = smc.next_rise(steep, 0.5, 1.0)
    np.testing.assert_allclose([share, smc.effective_share(rise * steep)], 0.5, rtol=1e-6)


def test_log_mean_exp_of_large_numbers():
    np.testing.assert_allclose(smc.log_mean_exp(np.array([-2000.0, -2000.0 + np.log(3.0)])), -2000.0 + np.log(2.0))


def test_results_do_not_depend_on_threads():
    one, many = (
        smc.estimate(structure(), OPTIONS, EvidenceRun(chains=3, key=seed_key(4), cores=cores)) for cores in (1, 5)
    )
    np.testing.assert_array_equal(one.log_evidence, many.log_evidence)
    np.testing.assert_array_equal(one.standard_error, many.standard_error)
    np.testing.assert_array_equal(one.draws["W"], many.draws["W"])
    assert len(np.unique(one.log_evidence)) == 3


def test_threads_inside_a_run():
    problem, workers = smc.prepare(structure()), Workers(3)
    one, many = (smc.one_run(problem, OPTIONS, job(workers=some)) for some in (SERIAL, workers))
    workers.close()
    assert one.log_evidence == many.log_evidence
    np.testing.assert_array_equal(one.population.Ht, many.population.Ht)


def test_what_it_hands_back():
    found = smc.estimate(structure(), OPTIONS, EvidenceRun(chains=2, key=seed_key(4)))
    assert found.draws["W"].shape == (2, 100, 6, 2)
    assert found.draws["H"].shape == (2, 100, 2, 9)
    assert found.statistics.keys() == set(smc.Stage._fields)
    assert np.nanmax(found.statistics["temperature"], axis=1).tolist() == [1.0, 1.0]
    assert np.all(found.standard_error > 0)


def test_without_draws_and_with_a_known_factor():
    known = model(X, 2, RNG.gamma(2.0, 1.0, (6, 2)), gamma(1.2, 0.5))
    found = smc.estimate(known, smc.SMC(particles=300, length=3, draws=0), EvidenceRun(chains=1, key=seed_key(4)))
    assert found.draws is None
    assert np.isnan(found.statistics["accept_W"]).all()
    found = smc.estimate(known, OPTIONS, EvidenceRun(chains=1, key=seed_key(4)))
    assert found.draws.keys() == {"H"}


def test_an_interrupted_run_is_left_out():
    """The second run is stopped at its third stage."""

    class Stopping(EvidenceRun):
        def each(self, work, total):
            looks = iter(range(3))
            return [work(job(1)), work(job(2, is_stopped=lambda: next(looks, None) is None))]

    found = smc.estimate(structure(), OPTIONS, Stopping(chains=2, key=seed_key(1)))
    assert found.log_evidence.shape == (1,)
    assert found.draws["W"].shape[0] == 1


def test_nothing_finished():
    class Stopped(EvidenceRun):
        def each(self, work, total):
            return [work(job(is_stopped=lambda: True))]

    with pytest.raises(RunFailed, match="before a run had ended"):
        smc.estimate(structure(), OPTIONS, Stopped(chains=1, key=seed_key(1)))


def test_too_many_particles_are_refused_before_they_are_made():
    huge = smc.SMC(particles=10**12, length=5)
    with pytest.raises(InputError, match="particles: got 1000000000000 for 2 runs at once"):
        smc.estimate(structure(), huge, EvidenceRun(chains=2, key=seed_key(1), cores=2))


def test_counts_that_cannot_be():
    known = np.ones((6, 2))
    known[2] = 0.0
    with pytest.raises(RunFailed, match="-inf"):
        smc.one_run(smc.prepare(model(X, 2, known, gamma(1.0, 1.0))), OPTIONS, job())


def test_columns_and_rows_without_counts():
    empty = X.copy()
    empty[1], empty[:, 3] = 0.0, 0.0
    state = smc.one_run(smc.prepare(model(empty, 3, gamma(0.05, 1.0), gamma(0.1, 0.5))), OPTIONS, job())
    assert np.isfinite(state.log_evidence)
    assert np.isfinite(state.population.W).all()


def test_all_ranks_share_one_compiled_kernel():
    smc.one_run(smc.prepare(structure(1)), OPTIONS, job())
    compiled = len(tempering.move_chains.signatures)
    for rank in (2, 3, 9):
        smc.one_run(smc.prepare(structure(rank)), OPTIONS, job())
    smc.one_run(smc.prepare(structure(2, mask=X < 6, exposure=X + 1.0, background=X + 0.1)), OPTIONS, job())
    assert len(tempering.move_chains.signatures) == compiled


def test_lineages():
    """Two chains of two particles; those of the first one are the better ones at the second stage."""
    state = smc.begin(np.array([1.0, 1.0, 1.0, 1.0]), 2)
    assert state.first == 0.0
    state = smc.follow(state, np.array([1.2, 1.2, 0.8, 0.8]), np.array([0, 3]))
    np.testing.assert_array_equal(state.founders, [0, 0, 1, 1])
    np.testing.assert_allclose(smc.standard_error(state), np.sqrt(2 * 0.1**2))
    state = smc.follow(state, np.array([1.2, 1.2, 0.8, 0.8]), np.array([0, 1]))
    assert np.isnan(smc.standard_error(state))
