"""Sequential Monte Carlo of half-normal factors and beside known components, against exact log p(X) and moments."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.enumeration import enumerate_posterior
from tests.statistical.exact_evidence import exact_log_evidence
from tests.statistical.exact_half_normal_evidence import log_evidence
from tests.statistical.gates import check_means
from tests.statistical.test_gibbs_enumeration import CASES as ENUMERATED
from tests.statistical.test_smc_evidence import RUNS, check
from tests.structures import beside, gamma, half_normal, model, unknown

pytestmark = pytest.mark.statistical

X22, X12 = np.array([[2, 1], [0, 3]]), np.array([[3, 1]])
W22 = np.array([[0.8, 1.9], [1.4, 0.3]])
SIGMA_W, SIGMA_H = np.array([0.7, 1.8]), np.array([1.4, 0.6])
VARIANCE, PRECISION = unknown("r", "inverse_gamma", 3.0, 2.0), unknown("r", "gamma", 3.0, 2.0)
LOG_R = np.arange(-4.0, 5.0, 0.25)


def both_half_normal():
    structure = model(X22, 2, half_normal(SIGMA_W[None]), half_normal(SIGMA_H[:, None]))
    return structure, lambda: log_evidence(X22, SIGMA_W, SIGMA_H)


def one_of_both(role):
    """A variance, or a precision, of both factors, integrated over."""
    own = {"variance": VARIANCE, "precision": PRECISION}[role]
    structure = model(X12, 2, half_normal(**{role: own}), half_normal(**{role: own}))

    def exact():
        power = 0.5 if role == "variance" else -0.5  # of it, sigma is
        return logsumexp([
            log_evidence(X12, *np.full((2, 2), np.exp(power * t))) + float(own.prior.log_density(np.exp(t))) + t
            for t in LOG_R
        ]) + np.log(LOG_R[1] - LOG_R[0])  # fmt: skip

    return structure, exact


def enumerated(name):
    case = ENUMERATED[name]()
    return case.structure, lambda: exact_log_evidence(case)


def known_in_both(of_h=1):
    """The first component of W is known, and one of H. With the last of H, nothing moves along the orbit."""
    structure = model(X12, 2, gamma(1.3, 0.8), gamma(0.7, 0.9))
    W = beside(structure.W, [[0.8, 0.0]], (1, 2))
    H = beside(structure.H, [[1.2, 0.4]] * 2, (1 - of_h, 2 - of_h))
    t = np.arange(-40.0, 8.0, 0.2)

    def exact():
        """Of one feature: w of the new component on a grid, and given it one integral over h for each sample."""
        log_p = 1.3 * np.log(0.8) - gammaln(1.3) + 1.3 * t - 0.8 * np.exp(t)
        log_h = 0.7 * np.log(0.9) - gammaln(0.7) + 0.7 * t - 0.9 * np.exp(t)
        h, w = np.exp(t), np.exp(t)[:, None]
        for x, known in zip(X12[0], (1.2, 0.4), strict=True):
            mean = 0.8 * h + known * w if of_h else 0.8 * known + w * h
            log_p = log_p + logsumexp(log_h + x * np.log(mean) - mean, axis=1) + np.log(0.2)
        return float(logsumexp(log_p) + np.log(0.2)) - np.log(6.0)

    return dataclasses.replace(structure, W=W, H=H), exact


CASES = {
    "both half-normal": both_half_normal,
    "a variance of both": lambda: one_of_both("variance"),
    "a precision of both": lambda: one_of_both("precision"),
    "a component of W": lambda: enumerated("a component of W"),
    "a component of H, mask, exposure, background": lambda: enumerated("a component of H, mask, exposure, background"),
    "one component of W, another of H": known_in_both,
    "one component of both": lambda: known_in_both(of_h=0),
}


@pytest.mark.parametrize("name", CASES)
def test_evidence_and_its_error(name):
    structure, exact = CASES[name]()
    check(smc.prepare(structure), exact())


def particles(structure, n=4000):
    job = Job(0, seed_key(3), SERIAL, lambda *_, **__: None, lambda: False)
    return smc.one_run(smc.prepare(structure), smc.SMC(particles=n, draws=0), job)


def test_the_last_particles_of_a_half_normal_factor_are_posterior_draws():
    """Given H the rows of W are independent of one another: moments of two cells by the trapezoid rule."""
    structure = model(X22, 2, half_normal(SIGMA_W[None]), W22.T)
    drawn = particles(structure, size(4000, 20_000)).population.W
    t = np.arange(-25.0, 4.0, 0.05)
    w = np.stack([grid.ravel() for grid in np.meshgrid(np.exp(t), np.exp(t))])
    expected, names = [], []
    for f in range(2):
        mean = W22 @ w
        log_p = np.log(w).sum(axis=0) - 0.5 * np.sum((w / SIGMA_W[:, None]) ** 2, axis=0)
        log_p = log_p + X22[f] @ np.log(mean) - mean.sum(axis=0)
        p = np.exp(log_p - logsumexp(log_p))
        expected += [*(w @ p), *(w**2 @ p)]
        names += [f"{power} of {f}, {k}" for power in ("w", "w^2") for k in range(2)]
    check_means(names, np.hstack([np.hstack([drawn[:, f], drawn[:, f] ** 2]) for f in range(2)]), np.array(expected))


def test_the_last_particles_beside_a_known_component_are_posterior_draws():
    case = ENUMERATED["a component of W"]()
    means = enumerate_posterior(case).means
    population = particles(case.structure, size(4000, 20_000)).population
    drawn = {f"log W{f}1": population.W[:, f, 1] for f in range(2)}
    drawn |= {f"log H{k}{n}": population.Ht[:, n, k] for k in range(2) for n in range(2)}
    table = np.column_stack([np.log(draws) for draws in drawn.values()])
    check_means(list(drawn), table, np.array([means[name] for name in drawn]))


# -- planted errors ----------------------------------------------------------------------------------------------------


def check_is_seen(structure, exact, monkeypatch, wrong):
    plant(
        monkeypatch,
        "SMC: targets",
        lambda right: lambda problem, t: wrong(right(problem, t)) if t else right(problem, t),
    )
    check_seen(lambda n: check(smc.prepare(structure), exact(), n), RUNS, "gate 1", least=10)


def test_variances_in_the_place_of_precisions_are_seen(monkeypatch):
    structure, exact = both_half_normal()
    check_is_seen(structure, exact, monkeypatch, lambda t: t._replace(curves=tuple(1.0 / c for c in t.curves)))


@pytest.mark.parametrize("role", ["variance", "precision"])
def test_precisions_that_stay_behind_are_seen(role, monkeypatch):
    """Factors move at the middle of the hyperprior, whatever their particles' values are."""
    put(monkeypatch, "SMC: rates of particles", lambda target, rates, first, last: [(target, first, last)])
    structure, exact = one_of_both(role)
    check_seen(lambda n: check(smc.prepare(structure), exact(), n), RUNS, "gate", least=10)


def test_moves_along_the_orbit_of_a_known_component_are_seen(monkeypatch):
    """H is divided by what W, which is put back, was multiplied by."""
    structure, exact = CASES["a component of W"]()
    check_is_seen(structure, exact, monkeypatch, lambda target: target._replace(movable=np.array([0, 2])))
