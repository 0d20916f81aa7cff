"""Sequential Monte Carlo of negative binomial counts against exact log p(X), by the trapezoid rule over logarithms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.gates import check_means
from tests.statistical.test_smc_evidence import RUNS, check
from tests.structures import beside, gamma, model, unknown

pytestmark = pytest.mark.statistical
NB = {"kind": "negative binomial"}
X22, X23 = np.array([[7.0, 0.0], [1.0, 30.0]]), np.array([[2.0, 0.0, 25.0], [4.0, 1.0, 0.0]])
W22 = np.array([[0.8, 1.9], [1.4, 0.3]])
MASK = np.array([[True, True, False], [True, True, True]])
EXPOSURE, BACKGROUND = np.array([[0.5, 2.0, 1.3], [1.0, 1.5, 0.6]]), np.array([[0.7, 0.2, 0.5], [0.4, 1.1, 0.3]])
ALPHA = unknown("a", "lognormal", 0.3, 0.9)
OF_SAMPLES = unknown("a", "gamma", 2.0, 1.5, variable_shape=(3,), shape=(1, 3))
OF_FEATURES = unknown("a", "half_normal", 2.0, variable_shape=(2,), shape=(2, 1))
RATE = unknown("r", "gamma", 3.0, 2.0)
LOGS, LOG_ALPHA = np.arange(-16.0, 5.0, 0.35), np.arange(-6.0, 6.0, 0.3)


def log_density(x, mean, alpha):
    return stats.nbinom.logpmf(x, alpha, alpha / (alpha + mean))


def log_gamma_of_logs(logs, shape, rate):
    """Of log v, v ~ Gamma(shape, rate), times the step of the grid."""
    return stats.gamma.logpdf(np.exp(logs), shape, scale=1 / rate) + logs + np.log(logs[1] - logs[0])


def log_prior(alpha):
    """Of log alpha on its grid, times the step."""
    density = alpha.prior.log_density(np.exp(LOG_ALPHA)) + LOG_ALPHA
    return density + np.log(LOG_ALPHA[1] - LOG_ALPHA[0])


def rank_one(alpha=ALPHA):
    """Both factors unknown, one alpha: given alpha and w the samples are independent."""
    shape, rate = (1.3, 0.6), (0.9, 0.4)
    structure = model(X22, 1, gamma(shape[0], rate[0]), gamma(shape[1], rate[1]), alpha=alpha, **NB)

    def exact():
        weights, parts = (np.zeros(1), [alpha]) if isinstance(alpha, float) else (log_prior(alpha), np.exp(LOG_ALPHA))
        w, h = np.exp(LOGS), np.exp(LOGS)
        log_w = log_gamma_of_logs(LOGS, shape[0], rate[0])
        total = []
        for a in parts:
            cells = {x: log_density(x, np.outer(w, h), a) for x in np.unique(X22)}
            given = log_w[:, None] + log_w
            for n in range(2):
                both = cells[X22[0, n]][:, None] + cells[X22[1, n]][None] + log_gamma_of_logs(LOGS, shape[1], rate[1])
                given = given + logsumexp(both, axis=2)
            total.append(logsumexp(given))
        return float(logsumexp(weights + np.array(total)))

    return structure, exact


def log_p_of_columns(x, known, alpha, exposure=1.0, background=0.0, seen=True):
    """(columns, grid, grid) log p of each column given its two cells, which are on grids, its own alpha summed over."""
    v = np.exp(np.stack([grid.ravel() for grid in np.meshgrid(LOGS, LOGS, indexing="ij")]))
    exposure, background, seen = (np.broadcast_to(own, x.shape) for own in (exposure, background, seen))
    found = []
    for n in range(x.shape[1]):
        mean = exposure[:, n, None] * (known @ v) + background[:, n, None]
        of_alpha = [log_density(x[seen[:, n], n][:, None], mean[seen[:, n]], a).sum(axis=0) for a in np.exp(LOG_ALPHA)]
        found.append(logsumexp(np.array(of_alpha) + log_prior(alpha)[:, None], axis=0))
    return np.reshape(found, (x.shape[1], len(LOGS), len(LOGS)))


def left_known():
    """Every sample has an alpha of its own; mask, exposure and background."""
    shape, rate = np.array([[0.9], [1.6]]), np.array([[0.5], [0.8]])
    cells = {"mask": MASK, "exposure": EXPOSURE, "background": BACKGROUND}
    structure = model(np.where(MASK, X23, 0.0), 2, W22, gamma(shape, rate), alpha=OF_SAMPLES, **cells, **NB)

    def exact():
        log_p = log_p_of_columns(X23, W22, OF_SAMPLES, EXPOSURE, BACKGROUND, MASK)
        first, second = (log_gamma_of_logs(LOGS, *own) for own in zip(shape.ravel(), rate.ravel(), strict=True))
        return float(logsumexp(log_p + first[:, None] + second, axis=(1, 2)).sum())

    return structure, exact


def right_known():
    """Every feature has an alpha of its own; the rate of W is integrated over."""
    structure = model(X23[:, :2], 2, gamma(1.4, RATE), W22, alpha=OF_FEATURES, **NB)

    def exact():
        log_p, t = log_p_of_columns(X23[:, :2].T, W22.T, OF_FEATURES), np.arange(-4.0, 4.0, 0.2)
        given = []
        for r in np.exp(t):
            of_cells = log_gamma_of_logs(LOGS, 1.4, r)
            given.append(logsumexp(log_p + of_cells[:, None] + of_cells, axis=(1, 2)).sum())
        return float(logsumexp(np.array(given) + RATE.prior.log_density(np.exp(t)) + t) + np.log(t[1] - t[0]))

    return structure, exact


def known_component():
    """One cell of W is unknown, beside a known one, and H is known."""
    structure = model(X23[:1, :2], 2, gamma(1.3, 0.6), W22, alpha=ALPHA, **NB)

    def exact():
        mean = np.outer(W22[0], np.exp(LOGS)) + 0.7 * W22[1][:, None]
        log_p = [log_density(X23[0, :2, None], mean, a).sum(axis=0) for a in np.exp(LOG_ALPHA)]
        return float(logsumexp(np.array(log_p) + log_prior(ALPHA)[:, None] + log_gamma_of_logs(LOGS, 1.3, 0.6)))

    return dataclasses.replace(structure, W=beside(structure.W, [[0.0, 0.7]], (0, 1))), exact


CASES = {
    "known alpha": lambda: rank_one(0.8),
    "one alpha": rank_one,
    "alpha of samples, mask, exposure, background": left_known,
    "alpha of features, rate of W": right_known,
    "beside a known component": known_component,
}


@pytest.mark.parametrize("name", CASES)
def test_evidence_and_its_error(name):
    structure, exact = CASES[name]()
    check(smc.prepare(structure), exact())


def test_the_last_particles_are_posterior_draws():
    """Of one alpha and two cells of W whose only sample has a known h: moments by the trapezoid rule."""
    x, h = np.array([[2.0], [9.0]]), 1.5
    structure = model(x, 1, gamma(1.3, 0.6), np.array([[h]]), alpha=ALPHA, **NB)
    options = smc.SMC(particles=size(4000, 20_000), draws=0)
    job = Job(0, seed_key(3), SERIAL, lambda *_, **__: None, lambda: False)
    drawn = smc.one_run(smc.prepare(structure), options, job).population
    w, log_a = np.exp(LOGS), log_prior(ALPHA)
    log_p = np.stack([
        [log_density(own, h * w, a) + log_gamma_of_logs(LOGS, 1.3, 0.6) for own in x[:, 0]] for a in np.exp(LOG_ALPHA)
    ])  # fmt: skip
    of_rows = logsumexp(log_p, axis=2)
    p_alpha = np.exp(log_a + of_rows.sum(axis=1) - logsumexp(log_a + of_rows.sum(axis=1)))
    p_cells = np.einsum("a,afw->fw", p_alpha, np.exp(log_p - of_rows[:, :, None]))
    expected = [*(p_cells @ LOGS), *(p_cells @ w), p_alpha @ LOG_ALPHA, p_alpha @ LOG_ALPHA**2]
    cells, alpha = drawn.W[:, :, 0], np.log(drawn.alpha)
    names = ["log w1", "log w2", "w1", "w2", "log alpha", "log alpha^2"]
    check_means(names, np.hstack([np.log(cells), cells, alpha, alpha**2]), np.array(expected))


# -- planted errors ----------------------------------------------------------------------------------------------------


def check_is_seen(name, monkeypatch, wrong):
    structure, exact = CASES[name]()
    plant(
        monkeypatch,
        "SMC: targets",
        lambda right: lambda problem, t: wrong(right, problem, t) if t else right(problem, t),
    )
    check_seen(lambda n: check(smc.prepare(structure), exact(), n), RUNS, "gate 1", least=10)


def with_law(target, **other):
    return target._replace(law=target.law._replace(**other))


def test_moves_at_another_power_are_seen(monkeypatch):
    """Factors and dispersion walk at half of the temperature."""
    check_is_seen("one alpha", monkeypatch, lambda right, problem, t: right(problem, 0.5 * t))


def test_exposures_that_keep_their_power_are_seen(monkeypatch):
    """Counts and alpha are tempered, exposures are not."""

    def wrong(right, problem, t):
        target = right(problem, t)
        sides = zip(target.sides, problem.sides, strict=True)
        own = [side._replace(data=side.data._replace(exposure=of.data.exposure)) for side, of in sides]
        return target._replace(sides=tuple(own))

    check_is_seen("known alpha", monkeypatch, wrong)


def test_a_dispersion_that_is_not_weighed_is_seen(monkeypatch):
    """What the counts say of alpha by themselves is left out of its draws and of the weights after them."""
    nothing = lambda right, problem, t: with_law(right(problem, t), times=np.zeros(3))  # noqa: E731
    check_is_seen("one alpha", monkeypatch, nothing)


def test_a_dispersion_under_another_prior_is_seen(monkeypatch):
    """Particles begin under the prior, and move under a wider one."""

    def wrong(right, problem, t):
        args = problem.law.args * np.array([1.0, 3.0])
        return with_law(right(problem, t), args=args)

    check_is_seen("one alpha", monkeypatch, wrong)
