"""Evidence by sequential Monte Carlo against exact log p(X), with errors that are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.inference.evidence.smc import begin, standard_error
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.kernels.random.resampling import resample
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.evidence import tempering as naive_smc
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.enumeration import Case
from tests.statistical.exact_evidence import exact_log_evidence
from tests.statistical.gates import check_means
from tests.statistical.judged import judges
from tests.structures import gamma, model

pytestmark = pytest.mark.statistical
RUNS, LEAST, PLANTED_RUNS = size(24, 300), 4.0, 20
OPTIONS = smc.SMC(particles=500, length=5, ess=0.5, draws=0)

X22 = np.array([[2.0, 1.0], [0.0, 3.0]])
MASK22 = np.array([[True, True], [False, True]])
EXPOSURE22 = np.array([[0.5, 2.0], [1.0, 1.5]])
BACKGROUND22 = np.array([[0.7, 0.2], [0.4, 1.1]])
W22 = np.array([[0.8, 1.9], [1.4, 0.3]])
A22, R22 = np.array([[0.6, 1.7], [2.4, 0.9]]), np.array([[1.3, 0.4], [0.8, 2.1]])
B22 = np.array([[3.0, 2.5], [4.0, 2.0]])
GRID = np.arange(-7.0, 3.5, 0.5)
LARGE = np.random.default_rng(2).poisson(60.0, (5, 7)).astype(float)


def known_left():
    structure = model(X22, 2, W22, gamma(A22, R22), mask=MASK22, exposure=EXPOSURE22, background=BACKGROUND22)
    return structure, lambda: exact_log_evidence(Case(structure=structure, priors=lambda v: (1.0, 0.0, A22, R22)))


def both(x=X22, **cells):
    structure = model(x, 2, gamma(B22, 1.5), gamma(A22, R22), **cells)
    case = Case(structure=structure, priors=lambda v: (B22, 1.5, A22, R22), w_grid=GRID)
    return structure, lambda: exact_log_evidence(case)


def rank_one():
    structure = model(LARGE, 1, gamma(1.5, 0.4), gamma(0.7, 0.2))
    return structure, lambda: naive_smc.log_evidence_of_rank_one(LARGE, 1.5, 0.4, 0.7, 0.2)


CASES = {
    "W known, mask, exposure, background": known_left,
    "both unknown": lambda: both(np.array([[7.0, 0.0], [1.0, 4.0]])),
    "both unknown, mask, exposure, background": lambda: both(mask=MASK22, exposure=EXPOSURE22, background=BACKGROUND22),
    "one component, large counts": rank_one,
}


def runs_of(problem, n_runs, options=OPTIONS, step=None):
    """(log evidence, own relative error) of independent runs."""
    found = []
    for seed in range(n_runs):
        job = Job(0, child(seed_key(11), seed), SERIAL, lambda *_, **__: None, lambda: False)
        state = smc.init(problem, options, job)
        while state.temperature < 1.0:
            (step or smc.step)(problem, options, state, job)
        found.append((state.log_evidence, standard_error(state.lineages)))
    return np.array(found).T


@judges(lambda problem, exact, n_runs=RUNS, step=None: n_runs)
def check(problem, exact, n_runs=RUNS, step=None):
    """The mean of p(X) within 4 standard errors of exact, and runs spread as they say of themselves."""
    values, own = runs_of(problem, n_runs, step=step)
    ratios = np.exp(np.minimum(values - exact, 100.0))
    score = (ratios.mean() - 1.0) / (ratios.std(ddof=1) / np.sqrt(n_runs))
    assert abs(score) < LEAST, f"gate 1, mean of p(X) over exact: got {ratios.mean():.4f}, {score:.1f} standard errors"
    spread = np.sum((ratios - ratios.mean()) ** 2) / np.mean(own**2)
    low, high = stats.chi2(n_runs - 1).ppf([1e-4, 1 - 1e-4])
    # the own error holds to first order, and is itself an estimate
    assert 0.6 * low < spread < 1.5 * high, f"gate 2, variance over the one stated: got {spread / (n_runs - 1):.2f}"


@pytest.mark.parametrize("name", CASES)
def test_evidence_and_its_error(name):
    structure, exact = CASES[name]()
    check(smc.prepare(structure), exact())


def test_the_last_particles_are_posterior_draws():
    """One component: h_n given the sum of w is gamma, and w's shares are Dirichlet whatever the rest."""
    structure, _ = rank_one()
    problem, options = smc.prepare(structure), smc.SMC(particles=2000, length=5, draws=0)
    job = Job(0, seed_key(3), SERIAL, lambda *_, **__: None, lambda: False)
    W = smc.one_run(problem, options, job).population.W[:, :, 0]
    shapes = 1.5 + LARGE.sum(axis=1)
    names, expected = [f"share {f}" for f in range(5)], shapes / shapes.sum()
    check_means(names, W / W.sum(axis=1, keepdims=True), expected)


# -- planted errors ----------------------------------------------------------------------------------------------------


def check_is_seen(problem, exact, **options):
    check_seen(lambda n: check(problem, exact, n, **options), PLANTED_RUNS, "gate 1", least=10)


def test_a_rate_without_its_temperature_is_seen(monkeypatch):
    """The likelihood's part of the rates at full temperature, beside counts that are tempered."""
    structure, exact = both()
    plant(
        monkeypatch,
        "SMC: targets",
        lambda right: lambda problem, t: right(problem, t)._replace(temperature=np.array([1.0])),
    )
    check_is_seen(smc.prepare(structure), exact())


def test_a_scale_move_with_a_wrong_jacobian_is_seen():
    structure, exact = both()
    problem = smc.prepare(structure)
    wrong = problem.priors._replace(tilt=problem.priors.tilt + 3.0)
    check_is_seen(smc.SMCProblem(**{**vars(problem), "priors": wrong}), exact())


def step_that_keeps_weights(problem, options, state, job):
    """As smc.step, but weights of earlier stages stay after resampling."""
    key, population = child(job.key, smc.STAGES, len(state.stages)), state.population
    rise, share = smc.next_rise(population.log_likelihood, options.ess, 1.0 - state.temperature)
    log_weights = (state.temperature + rise) * population.log_likelihood
    ancestors = np.empty(options.particles // options.length, np.int64)
    resample(ancestors, log_weights, child(key, smc.ANCESTORS))
    state.log_evidence += smc.log_mean_exp(log_weights) - smc.log_mean_exp(
        state.temperature * population.log_likelihood
    )
    state.temperature = 1.0 if rise == 1.0 - state.temperature else state.temperature + rise
    state.lineages = begin(np.exp(log_weights - smc.log_mean_exp(log_weights)), len(ancestors))
    target = smc.target_at(problem, state.temperature)
    smc.move(problem, target, state.paces, (population, state.spare), ancestors, SERIAL, child(key, smc.MOVES))
    state.population, state.spare = state.spare, population
    state.stages.append(smc.Stage(state.temperature, share, 1.0, 1.0))


def test_resampling_without_resetting_weights_is_seen():
    structure, exact = rank_one()
    check_is_seen(smc.prepare(structure), exact(), step=step_that_keeps_weights)
