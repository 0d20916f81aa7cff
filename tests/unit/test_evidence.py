"""``nz.evidence`` and ``nz.compare_evidence``: what they return, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group, group_names
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, combine
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.workbench.evidence import METHODS, answer, probabilities

X = np.array([[1, 0, 2], [2, 1, 0]])
QUICK = {
    "bound": nz.Bound(restarts=2, search=None, draws=10),
    "chib": nz.Chib(draws=200, tune=50),
    "smc": nz.SMC(particles=100, draws=20),
    "enumeration": nz.Enumeration(),
}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, rank=2)


@pytest.mark.parametrize("name", METHODS)
def test_result(model, name):
    result = nz.evidence(model, QUICK[name], random_seed=1, cores=1, quiet=True)
    stats, attrs = group(result, "sample_stats"), result.attrs
    n = METHODS[name].runs
    assert stats["log_marginal_likelihood"].dims == stats["log_marginal_likelihood_error"].dims == ("chain",)
    assert stats["log_marginal_likelihood"].shape == (n,)
    assert not [dim for dim in stats.dims if "_dim_" in str(dim)]
    assert np.isfinite(attrs["log_evidence"])
    assert attrs["log_evidence_error"] >= 0.0
    assert attrs["method"] == name
    assert attrs["random_seed"] == "1"
    assert attrs["seconds"] > 0
    assert json.loads(attrs["options"]).keys() == QUICK[name].__dataclass_fields__.keys()
    assert attrs["is_lower_bound"] == ("yes" if name == "bound" else "no")
    assert ("posterior" in group_names(result)) == (name != "enumeration")
    if name != "enumeration":
        posterior = group(result, "posterior")
        assert posterior["W"].dims == ("chain", "draw", "feature", "component")
        assert posterior.sizes["chain"] == n


@pytest.mark.parametrize("name", ["chib", "smc"])
def test_same_seed_same_estimate_on_any_number_of_cores(model, name):
    one, other = (nz.evidence(model, QUICK[name], chains=2, random_seed=3, cores=cores, quiet=True) for cores in (1, 3))
    assert one.attrs["log_evidence"] == other.attrs["log_evidence"]
    np.testing.assert_array_equal(group(one, "posterior")["W"], group(other, "posterior")["W"])
    assert (
        nz.evidence(model, QUICK[name], chains=2, random_seed=4, quiet=True).attrs["log_evidence"]
        != one.attrs["log_evidence"]
    )


def test_model_of_the_context(model):
    with model:
        assert nz.evidence(method="enumeration").attrs["log_evidence"] == pytest.approx(-9.283556607912, abs=1e-9)


def test_sparse_and_missing_cells():
    """Sparse counts have the evidence of dense ones; a missing cell is integrated out, as if it had not been there."""
    dense, sparse = (nz.evidence(nz.gamma_nmf(x, rank=2), "enumeration").attrs for x in (X, sp.csc_array(X)))
    assert sparse["log_evidence"] == pytest.approx(dense["log_evidence"], abs=1e-12)
    assert sparse["data"] == dense["data"]
    masked = np.ma.masked_array(X, np.array([[0, 0, 0], [0, 0, 1]]))
    found = nz.evidence(nz.gamma_nmf(masked, rank=2), nz.Chib(draws=500), random_seed=1, quiet=True).attrs
    assert np.isfinite(found["log_evidence"])
    assert found["data"] != dense["data"]


def test_free_hyperparameters_only_by_the_bound():
    model = nz.gamma_nmf(X, rank=2, mean_h=nz.free("all"))
    result = nz.evidence(model, nz.Bound(restarts=2, search=None), random_seed=1, quiet=True)
    assert "mean_h" in group(result, "posterior")
    known = nz.gamma_nmf(X, rank=2, mean_h=1.0)
    of_known = nz.evidence(known, nz.Bound(search=None), random_seed=1, quiet=True)
    assert result.attrs["log_evidence"] >= of_known.attrs["log_evidence"]
    for method in ("chib", "smc", "enumeration"):
        with pytest.raises(nz.UnsupportedModel, match=r"mean_h.*unknown.*methods that can: 'bound'"):
            nz.evidence(model, method)


REFUSED = {
    "flat W": (lambda: nz.gap(X, rank=2), ("bound", "chib", "smc", "enumeration"), "no prior"),
    "no priors": (lambda: nz.poisson_nmf(X, rank=1), ("chib", "enumeration"), r"nz\.gamma_nmf.*engine='mcem'"),
    "fractions": (lambda: nz.gamma_nmf(X + 0.5, rank=1), ("chib", "smc", "enumeration"), "not integers.*'bound'"),
    "normal": (lambda: nz.normal_nmf(X * 1.0, rank=1), ("bound", "chib", "smc", "enumeration"), "normal"),
    "no data": (lambda: nz.gamma_nmf(None, rank=1, shape=(2, 2)), ("chib", "bound"), "nothing is observed"),
    "many counts": (lambda: nz.gamma_nmf(100 * X, rank=2), ("enumeration",), r"ways to share out.*'chib'"),
    "masked": (lambda: nz.gamma_nmf(X, rank=2, mask=X > 0), ("enumeration",), r"one-dimensional.*'smc'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_that_names_what_fits(case):
    declare, methods, match = REFUSED[case]
    model = declare()
    for method in methods:
        with pytest.raises(nz.UnsupportedModel, match=match) as refusal:
            nz.evidence(model, method)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nz.Chib(ordinate="harmonic"),
        lambda: nz.Chib(draws=10),
        lambda: nz.Chib(tune=-1),
        lambda: nz.Bound(restarts=0),
        lambda: nz.Bound(restarts=2.0),
        lambda: nz.Bound(tol=-1.0),
        lambda: nz.Enumeration(most_allocations=0),
        lambda: nz.Enumeration(most_allocations=2.5),
    ],
)
def test_bad_options(make):
    with pytest.raises(ValueError, match=r"got .*expected"):
        make()


def test_bad_arguments(model):
    with pytest.raises(nz.InputError, match=r"harmonic.*'bound', 'chib', 'smc', 'enumeration'"):
        nz.evidence(model, "harmonic")
    with pytest.raises(nz.InputError, match="chains"):
        nz.evidence(model, "chib", chains=0)


def test_chib_by_sources_says_when_it_fails():
    model = nz.gamma_nmf(100 * X, rank=2)
    with pytest.warns(nz.NmfZooWarning, match="effective draws"):
        nz.evidence(model, nz.Chib(ordinate="sources", draws=200, tune=50), random_seed=1, cores=1, quiet=True)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_interrupted_runs_keep_the_chains_that_ended():
    def work(job):
        if job.number == 1:
            raise KeyboardInterrupt
        return job.number

    run = EvidenceRun(chains=3, key=seed_key(1))
    assert run.each(work, 1) == [0, 2]

    def none(job):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.each(none, 1)


def test_failures_are_raised():
    def work(job):
        raise nz.RunFailed("here")

    with pytest.raises(nz.RunFailed, match="here"):
        EvidenceRun(chains=2, key=seed_key(1)).each(work, 1)


def test_combined_runs():
    logs, errors = np.log([1.0, 3.0]), np.array([0.1, 0.1])
    value, error = combine(Estimate(log_evidence=logs, standard_error=errors), is_unbiased=True)
    assert value == pytest.approx(np.log(2.0))
    assert error == pytest.approx(0.5 * np.log(3.0))  # the spread of the logarithms; that of the estimates is 0.5
    value, error = combine(Estimate(log_evidence=logs, standard_error=errors), is_unbiased=False)
    assert value == pytest.approx(0.5 * np.log(3.0))
    assert error == pytest.approx(0.5 * np.log(3.0))
    value, error = combine(Estimate(log_evidence=logs[:1], standard_error=errors[:1]), is_unbiased=True)
    assert (value, error) == (0.0, pytest.approx(0.1))


def test_two_runs_far_apart_have_a_large_error():
    """The relative spread of two estimates alone would never say more than one nat."""
    apart = Estimate(log_evidence=np.array([-100.0, -110.0]), standard_error=np.array([0.1, 0.1]))
    value, error = combine(apart, is_unbiased=True)
    assert value == pytest.approx(-100.0 - np.log(2), abs=1e-3)
    assert error == pytest.approx(5.0)
    near = Estimate(log_evidence=np.array([-100.0, -100.2]), standard_error=np.array([0.01, 0.01]))
    assert combine(near, is_unbiased=True)[1] == pytest.approx(0.1, rel=0.01)


# -- comparison --------------------------------------------------------------------------------------------------------


def test_comparison():
    models = {f"rank {rank}": nz.gamma_nmf(X, rank=rank, beta_h=2.0) for rank in (1, 2)}
    table = nz.compare_evidence(models, "enumeration")
    exact = {name: nz.evidence(model, "enumeration").attrs["log_evidence"] for name, model in models.items()}
    assert list(table.index) == sorted(exact, key=lambda name: -exact[name])
    assert table["log_bayes_factor"].iloc[0] == 0.0
    assert table["log_bayes_factor"].iloc[1] == pytest.approx(-abs(exact["rank 1"] - exact["rank 2"]))
    assert table["probability"].sum() == pytest.approx(1.0)
    assert np.all(table["probability_low"] <= table["probability"] + 1e-12)
    assert "is ahead of" in table.attrs["answer"]


def test_comparison_takes_results():
    quick = nz.Bound(restarts=2, search=None)
    results = {rank: nz.evidence(nz.gamma_nmf(X, rank=rank), quick, random_seed=1, quiet=True) for rank in (1, 2)}
    table = nz.compare_evidence(results)
    assert table["is_lower_bound"].all()
    assert "lower bound" in table.attrs["answer"]
    results[3] = nz.gamma_nmf(X, rank=1)
    with pytest.raises(nz.InputError, match="lower bounds beside estimates"):
        nz.compare_evidence(results, "enumeration")


def test_comparison_refuses():
    with pytest.raises(nz.InputError, match="different data"):
        nz.compare_evidence({"a": nz.gamma_nmf(X, rank=1), "b": nz.gamma_nmf(2 * X, rank=1)}, "enumeration")
    for models in ({}, {"a": nz.gamma_nmf(X, rank=1)}, [1, 2]):
        with pytest.raises(nz.InputError, match="two models or more"):
            nz.compare_evidence(models)
    with pytest.raises(nz.InputError, match=r"what nz\.evidence returned"):
        nz.compare_evidence({"a": nz.gamma_nmf(X, rank=1), "b": 1.0}, "enumeration")


@pytest.mark.parametrize(
    ("ahead", "error", "wins", "words"),
    [
        (0.5, 0.01, 1.0, "hardly"),
        (4.0, 0.1, 1.0, "strongly"),
        (50.0, 0.1, 1.0, "very strongly"),
        (1.0, 2.0, 0.6, "open"),
    ],
)
def test_answers(ahead, error, wins, words):
    columns = {"log_bayes_factor": [0.0, -ahead], "factor_error": [0.0, error], "is_lower_bound": [False, False]}
    assert words in answer(pd.DataFrame(columns, index=["a", "b"]), wins)


def test_probabilities_of_far_apart_models():
    np.testing.assert_allclose(probabilities(np.array([-1e5, -1e5 - np.log(3.0)])), [0.75, 0.25])
