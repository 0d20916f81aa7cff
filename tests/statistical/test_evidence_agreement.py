"""The ways to the evidence agree: below or at the exact value, within their errors, and the errors are honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import chi2

import nmf_zoo as nz
from nmf_zoo.inference.evidence import bound, bridging, chib, chib_bridge, enumeration, smc
from nmf_zoo.inference.evidence.contract import EvidenceRun, combine
from nmf_zoo.kernels.random.keyed_rng import seed_key
from tests.planted import put
from tests.sizes import at_full_size, size
from tests.statistical.enumeration import Case
from tests.statistical.exact_evidence import exact_log_evidence
from tests.statistical.judged import judges
from tests.statistical.test_gibbs_enumeration import CASES
from tests.statistical.test_smc_beyond_gammas import known_in_both
from tests.structures import beside, gamma, model

pytestmark = pytest.mark.statistical
ERRORS, RUNS = 4.0, size(18, 200)
X = np.array([[1, 0, 2], [2, 1, 0]])
FEW = model(X, 2, gamma(1.0, 1.0), gamma(1.0, 1.0))
PROBLEMS = {
    "few counts": FEW,
    "sparse factors": model(X, 2, gamma(0.3, 1.0), gamma(0.5, 0.5)),
    "three components": model(X, 3, gamma(1.0, 1.0), gamma(2.0, 0.5)),
    "unlike components": model(X, 2, gamma([[0.5, 3.0]], 1.0), gamma([[1.0], [2.0]], 0.5)),
    "more counts": model([[6, 1], [2, 9]], 2, gamma(2.0, 2.0), gamma(1.0, 0.3)),
    "exposure": model(X, 2, gamma(1.0, [[1.0], [3.0]]), gamma(1.0, 0.5), exposure=[[0.5], [2.0]]),
    "background": model(X, 2, gamma(1.0, 1.0), gamma(1.0, 1.0), background=0.2),
    "known W and missing cells": model(X, 2, [[0.5, 1.0], [2.0, 0.1]], gamma(1.4, 0.6), mask=[[1, 1, 0], [1, 1, 1]]),
    "known H": model(X, 2, gamma(1.4, 0.6), [[0.5, 1.0, 0.2], [2.0, 0.1, 1.0]]),
}
METHODS = {
    "chib": (chib, chib.Chib(draws=2000, tune=300)),
    "chib by sources": (chib, chib.Chib(ordinate="sources", draws=4000, tune=300)),
    "smc": (smc, smc.SMC()),
}


SHORT = {"chib": chib.Chib(draws=1000, tune=200), "chib by sources": chib.Chib(ordinate="sources", draws=2000)}


def estimate(name, structure, chains=1, seed=0, options=None):
    module, options = METHODS[name][0], options or METHODS[name][1]
    assert module.METHOD.supports(structure, options), module.METHOD.supports(structure, options).reason
    return module.METHOD.estimate(structure, options, EvidenceRun(chains=chains, key=seed_key(seed)))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_bound_is_below_exact(problem):
    structure = PROBLEMS[problem]
    exact = enumeration.log_evidence(structure)
    found = bound.estimate(structure, bound.Bound(restarts=3), EvidenceRun(chains=1, key=seed_key(1)))
    assert exact - 10.0 < found.log_evidence[0] <= exact + 1e-9


@pytest.mark.parametrize("case", ["a component of W", "a component of H, mask, exposure, background"])
def test_bound_is_below_exact_beside_known_components(case, monkeypatch):
    """And above it where the distance of q from the prior is forgotten."""
    case = CASES[case]()
    exact = exact_log_evidence(case)
    run = EvidenceRun(chains=1, key=seed_key(1))
    assert exact - 4.0 < bound.estimate(case.structure, bound.Bound(restarts=3), run).log_evidence[0] <= exact + 1e-9
    put(monkeypatch, "VB: divergence from the prior", lambda *_: 0.0)
    assert bound.estimate(case.structure, bound.Bound(restarts=3), run).log_evidence[0] > exact


def component_of_W():
    """The first of two; the other's rate is one number, as the integral over its sum needs."""
    structure = model([[2, 1], [0, 3]], 2, gamma([[0.6], [2.4]], 1.3), gamma([[0.7], [1.9]], 0.9))
    structure = replace(structure, W=beside(structure.W, [[0.8, 0.0], [1.4, 0.0]], (1, 2)))
    case = Case(structure=structure, priors=lambda v: ([[0.6], [2.4]], 1.3, [[0.7], [1.9]], 0.9))
    return structure, lambda: exact_log_evidence(case)


@pytest.mark.parametrize("case", ["a component of W", "one of W, another of H", "one of both"])
def test_enumeration_is_exact_beside_known_components(case, monkeypatch):
    """And is not where the known component's own mean is forgotten."""
    structure, exact = {
        "a component of W": component_of_W,
        "one of W, another of H": known_in_both,
        "one of both": lambda: known_in_both(of_h=0),
    }[case]()
    assert enumeration.METHOD.supports(structure, enumeration.Enumeration())
    assert enumeration.log_evidence(structure) == pytest.approx(exact(), abs=1e-7)
    put(monkeypatch, "enumeration: means of known components", lambda self, factor: 0.0 * factor[:1])
    assert abs(enumeration.log_evidence(structure) - exact()) > 0.1


def test_a_mask_needs_every_component_to_be_known_in_a_factor():
    structure, _ = known_in_both()
    masked = replace(structure, data=replace(structure.data, mask=np.array([[True, False]])))
    assert enumeration.METHOD.supports(masked, enumeration.Enumeration())
    structure, _ = component_of_W()
    masked = replace(structure, data=replace(structure.data, mask=np.array([[True, False], [True, True]])))
    verdict = enumeration.METHOD.supports(masked, enumeration.Enumeration())
    assert not verdict
    assert "each component is known in a factor" in verdict.reason


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_estimate_is_within_its_error_of_exact(problem, method):
    structure = PROBLEMS[problem]
    exact, found = enumeration.log_evidence(structure), estimate(method, structure, chains=4)
    value, error = combine(found, METHODS[method][0].METHOD.is_unbiased)
    assert error < 0.2
    assert abs(value - exact) < ERRORS * error, f"{value:.4f} +- {error:.4f}, exact {exact:.4f}"


@judges(lambda found, exact: len(found.log_evidence))
def check_honest(found, exact):
    """z-scores of independent runs: mean 0 and variance 1, by the 0.1% quantiles of their distributions.

    Errors from 20 batches are themselves off by a sixth, which adds a sixth to the variance.
    """
    z = (found.log_evidence - exact) / found.standard_error
    assert abs(np.mean(z)) < 3.3 * np.sqrt(1.2 / len(z)), f"mean of z: {np.mean(z):.2f}"
    low, high = chi2.ppf([0.001, 0.999], len(z) - 1) / (len(z) - 1)
    assert low < np.var(z, ddof=1) < 1.2 * high, f"variance of z: {np.var(z, ddof=1):.2f}"


@pytest.mark.parametrize("method", ["chib", "chib by sources"])
def test_errors_are_honest(method):
    check_honest(estimate(method, FEW, chains=RUNS, options=SHORT[method]), enumeration.log_evidence(FEW))


def test_errors_are_honest_where_the_posterior_is_tightened(monkeypatch):
    """With the normal density refused at first, the chain of sharper posteriors has to carry the estimate.

    Long: a variance wants tens of independent estimates.
    """
    monkeypatch.setattr(chib_bridge, "ENOUGH", 0.9)
    found = estimate("chib", FEW, chains=RUNS, options=SHORT["chib"])
    assert np.all(found.statistics["levels"] > 2)
    check_honest(found, enumeration.log_evidence(FEW))


def test_planted_errors_are_seen(monkeypatch):
    exact = enumeration.log_evidence(FEW)
    right = estimate("chib", FEW, chains=12, options=SHORT["chib"])
    with pytest.raises(AssertionError, match="mean of z"):
        check_honest(replace(right, log_evidence=right.log_evidence - 0.1), exact)
    with pytest.raises(AssertionError, match="variance of z"):
        check_honest(replace(right, standard_error=right.standard_error / 3.0), exact)
    put(monkeypatch, "Chib's bridges: exchanges of components", lambda classes: 0.0)  # one labelling instead of all
    with pytest.raises(AssertionError, match="mean of z"):
        check_honest(estimate("chib", FEW, chains=12, options=SHORT["chib"]), exact)


def test_labellings_count_once(monkeypatch):
    """Chib by sources without the sum over labellings is off by up to log K!."""
    put(monkeypatch, "Chib by sources: components that exchange", lambda structure: np.arange(structure.rank))
    exact = enumeration.log_evidence(FEW)
    found = estimate("chib by sources", FEW, chains=8)
    assert np.all(np.abs(found.log_evidence - exact) < gammaln(3.0) + 0.2)
    assert bridging.log_exchanges(bridging.exchangeable(FEW)) == pytest.approx(np.log(2.0))


SOME = model(X, 3, gamma(1.0, 1.0), gamma(1.3, 1.0))
IN_W = beside(SOME.W, [[0.8, 0.3, 0.0], [0.0, 1.4, 0.0]], (1, 3))
BESIDE = {
    "one of W, two that are alike": replace(SOME, W=IN_W),
    "two of W": replace(SOME, W=replace(IN_W, known=replace(IN_W.known, free=slice(2, 3)))),
    "one of W, another of H": replace(SOME, W=IN_W, H=beside(SOME.H, [[0.0] * 3, [0.0] * 3, [0.5, 1.5, 0.0]], (0, 2))),
}


def distance(method, name):
    """Of a short run of Chib's method from exact, in its errors."""
    found = estimate(method, BESIDE[name], chains=2, options=SHORT[method])
    value, error = combine(found, is_unbiased=False)
    assert error < 0.2
    return abs(value - enumeration.log_evidence(BESIDE[name])) / error


@pytest.mark.parametrize("method", SHORT)
@pytest.mark.parametrize("name", BESIDE)
def test_chib_is_within_its_error_of_exact_beside_known_components(name, method):
    assert distance(method, name) < ERRORS


def test_exchanges_of_known_components_are_seen(monkeypatch):
    """Their priors are alike, but not what is known of them: counted as alike they are off by log 2 and log 3 nats."""
    put(monkeypatch, "Chib by sources: components that exchange", lambda structure: np.array([0, 0, 1]))
    assert distance("chib by sources", "two of W") > ERRORS
    put(monkeypatch, "Chib's bridges: exchanges of components", lambda classes: gammaln(len(classes) + 1.0))
    assert distance("chib", "one of W, two that are alike") > ERRORS


@pytest.fixture(scope="module")
def counts():
    """Cemgil's setting: 16 x 10 counts of mean 450 from five components, shapes 10 and 1, means 1 and 100."""
    rng = np.random.default_rng(1)
    return rng.poisson(rng.gamma(10.0, 0.1, size=(16, 5)) @ rng.gamma(1.0, 100.0, size=(5, 10)))


@at_full_size
@pytest.mark.parametrize("method", ["chib", "smc"])
def test_five_components_are_found(counts, method):
    """At reduced size `select_rank` finds them, in test_rank_choice.py."""
    found = {
        rank: combine(estimate(method, model(counts, rank, gamma(10.0, 10.0), gamma(1.0, 0.01)), seed=rank), False)
        for rank in (4, 5, 7)
    }
    best = max(found, key=lambda rank: found[rank][0])
    assert best == 5, found
    leads = [(found[5][0] - value) / np.hypot(found[5][1], error) for value, error in found.values()]
    assert sorted(leads)[1] > 2.0, found  # the least is its lead over itself


def test_bound_with_learned_hyperparameters_finds_five_components(counts):
    """With known ones it does not: its distance to the evidence grows faster with the rank than the evidence falls.

    Long: fits of four ranks.
    """
    free = nz.free("all")
    found = {
        rank: nz.evidence(
            nz.gamma_nmf(counts, rank, alpha_w=free, mean_w=free, alpha_h=free, mean_h=free),
            nz.Bound(restarts=3, search=None, draws=1),
            random_seed=rank,
            cores=1,
            quiet=True,
        ).attrs["log_evidence"]
        for rank in (3, 4, 5, 6)
    }
    assert max(found, key=found.get) == 5, found
