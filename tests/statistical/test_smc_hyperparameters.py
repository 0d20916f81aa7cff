"""Sequential Monte Carlo over rates and means with conjugate priors: exact evidence and posterior, bound, Gibbs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence import smc
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers
from tests.planted import check_seen, plant, put
from tests.runs import fit, largest_loss
from tests.sizes import size
from tests.statistical.enumeration import Case
from tests.statistical.exact_evidence import exact_log_evidence
from tests.statistical.judged import judges
from tests.structures import beside, gamma, model, unknown, unknown_beside

pytestmark = pytest.mark.statistical
RUNS, LEAST, PLANTED_RUNS = size(24, 300), 4.0, 20
OPTIONS = smc.SMC(particles=500, length=5, ess=0.5, draws=500)
X12 = np.array([[2.0, 1.0]])
W12 = np.array([[0.8, 1.9]])
GRID, STEP = np.arange(-9.0, 4.5, 0.5), 0.4  # of log w; of log u
LOG_U = np.arange(-9.0, 6.0, STEP)


def over(structure, priors, names):
    """(log p(X), E[log u | X] by name) by the trapezoid rule over scalars u, the rest by enumeration."""
    log_p, at = [], []
    for logs in product(LOG_U, repeat=len(names)):
        values = dict(zip(names, np.exp(logs), strict=True))
        case = Case(structure=structure, priors=lambda v, own=values: priors(**own), w_grid=GRID)
        hyper = sum(float(PRIORS[name].log_density(value)) for name, value in values.items())
        log_p.append(exact_log_evidence(case) + hyper + sum(logs) + len(names) * np.log(STEP))
        at.append(logs)
    total = logsumexp(log_p)
    return total, dict(zip(names, np.exp(np.array(log_p) - total) @ np.array(at), strict=True))


RATE, MEAN = unknown("u", "gamma", 1.5, 2.0), unknown("u", "inverse_gamma", 3.0, 2.0)
BY_COLUMN = unknown("v", "gamma", 1.2, 0.7, variable_shape=(2,))
PRIORS = {}


def one_rate():
    structure = model(X12, 2, gamma(0.8, RATE), gamma(1.3, RATE))
    PRIORS["u"] = RATE.prior
    return structure, lambda: over(structure, lambda u: (0.8, u, 1.3, u), ["u"])


def one_mean():
    structure = model(X12, 2, gamma(0.8, mean=MEAN), gamma(1.3, mean=MEAN))
    PRIORS["u"] = MEAN.prior
    return structure, lambda: over(structure, lambda u: (0.8, 0.8 / u, 1.3, 1.3 / u), ["u"])


def rates_of_columns():
    """W known: columns are independent, each with a rate of its own."""
    structure = model(X12, 2, W12, gamma(1.3, BY_COLUMN))
    PRIORS["u"] = BY_COLUMN.prior

    def exact():
        columns = (model(X12[:, [n]], 2, W12, gamma(1.3, RATE)) for n in range(2))
        found = [over(column, lambda u: (1.0, 0.0, 1.3, u), ["u"]) for column in columns]
        return sum(total for total, _ in found), {"v": np.array([means["u"] for _, means in found])}

    return structure, exact


def a_mean_of_the_new_component():
    """The other component of W is known, and the mean of its row of H."""
    of_h = unknown_beside("u", "inverse_gamma", 3.0, 2.0, known=[[0.9], [np.nan]])
    of_w = replace(MEAN, variable_shape=(1,))
    structure = model(X12, 2, gamma(0.8, mean=of_w), gamma(1.3, mean=of_h))
    structure = replace(structure, W=beside(structure.W, W12, (1, 2)))
    PRIORS["u"] = MEAN.prior
    return structure, lambda: over(structure, lambda u: (0.8, 0.8 / u, 1.3, [[1.3 / 0.9], [1.3 / u]]), ["u"])


CASES = {
    "a rate of both": one_rate,
    "a mean of both": one_mean,
    "rates of columns": rates_of_columns,
    "a mean of the new component": a_mean_of_the_new_component,
}


def runs_of(structure, n_runs):
    """(log p(X), mean log u by name) of independent runs."""
    problem, found = smc.prepare(structure), []
    for seed in range(n_runs):
        job = Job(0, child(seed_key(11), seed), SERIAL, lambda *_, **__: None, lambda: False)
        state = smc.one_run(problem, OPTIONS, job)
        found.append((state.log_evidence, {name: np.log(own).mean(axis=0) for name, own in state.values.items()}))
    return found


@judges(lambda structure, exact, n_runs=RUNS: n_runs)
def check(structure, exact, n_runs=RUNS):
    """The mean of p(X), and of log u weighed by it, within 4 standard errors of exact."""
    (log_p, means), runs = exact, runs_of(structure, n_runs)
    ratios = np.exp(np.array([total for total, _ in runs]) - log_p)
    score = (ratios.mean() - 1.0) / (ratios.std(ddof=1) / np.sqrt(n_runs))
    assert abs(score) < LEAST, f"gate 1, mean of p(X) over exact: got {ratios.mean():.4f}, {score:.1f} standard errors"
    for name, mean in means.items():
        apart = np.array([own[name] for _, own in runs]) - mean
        weighed = (apart.T * ratios).T
        scores = weighed.mean(axis=0) / (weighed.std(axis=0, ddof=1) / np.sqrt(n_runs))
        assert np.all(np.abs(scores) < LEAST), f"gate 2, mean of log {name}: {scores} standard errors"


@pytest.mark.parametrize("name", CASES)
def test_evidence_and_posterior_are_exact(name):
    structure, exact = CASES[name]()
    check(structure, exact())


def test_the_bound_beside_a_known_component_is_below_exact(monkeypatch):
    """And not where the new component's mean is learned from the row of the known one, whose mean is another."""
    structure, exact = a_mean_of_the_new_component()
    (log_p, means), options = exact(), vb.VB(accelerate=None)
    _, state, _, bound = fit(vb, structure, options, 400)
    assert log_p - 1.0 < bound[-1] < log_p
    assert largest_loss(bound, maximise=True) < 1e-9
    assert float(np.log(state.values["u"][0])) == pytest.approx(float(means["u"]), abs=0.3)
    put(monkeypatch, "hyperparameters: entries beside known ones", lambda self, array: array[..., :1, 0])
    *_, wrong = fit(vb, structure, options, 400)
    assert largest_loss(wrong, maximise=True) > 1e-9 or wrong[-1] < bound[-1] - 1e-3


def check_is_seen(structure, exact):
    check_seen(lambda n: check(structure, exact, n), PLANTED_RUNS, "gate", least=10)


def test_forgetting_the_cells_shapes_is_seen(monkeypatch):

    def forgetful(found):
        return {name: own._replace(shape=own.prior_shape) for name, own in found.items()}

    plant(monkeypatch, "SMC: hyperparameters", lambda right: lambda found, *rest: right(forgetful(found), *rest))
    structure, exact = one_rate()
    check_is_seen(structure, exact())


def test_rates_that_stay_behind_are_seen(monkeypatch):
    """Factors move at the middle of the hyperprior, whatever their particles' values are."""
    put(monkeypatch, "SMC: rates of particles", lambda target, rates, first, last: [(target, first, last)])
    structure, exact = one_rate()
    check_is_seen(structure, exact())


def test_threads_change_nothing():
    problem = smc.prepare(one_mean()[0])
    one, many = (
        smc.one_run(problem, OPTIONS, Job(0, seed_key(3), workers, lambda *_, **__: None, lambda: False))
        for workers in (SERIAL, Workers(3))
    )
    assert one.log_evidence == many.log_evidence
    np.testing.assert_array_equal(one.values["u"], many.values["u"])


# -- by the verbs ----------------------------------------------------------------------------------------------------

X = np.random.default_rng(4).poisson(2.0, (4, 5))


@pytest.mark.parametrize("prior", ["hpf", "ard"])
def test_vbs_bound_is_below(prior):
    declared = nz.gamma_nmf(X, 2, prior=prior)
    found = nz.evidence(declared, nz.SMC(particles=500), chains=4, random_seed=1, quiet=True)
    bound = nz.evidence(declared, "bound", random_seed=1, quiet=True).attrs["log_evidence"]
    *_, objective = fit(vb, nz.read(declared), vb.VB(), 500)
    assert objective[-1] <= bound + 1e-6
    assert bound < found.attrs["log_evidence"] + 2 * found.attrs["log_evidence_error"]


@pytest.mark.parametrize("prior", ["hpf", "ard"])
def test_draws_are_those_of_gibbs(prior):
    """Long: runs of particles and chains, both with unknown hyperparameters."""
    declared = nz.gamma_nmf(X, 2, prior=prior)
    drawn = nz.sample(model=declared, engine=nz.SMC(particles=1000), draws=1000, chains=4, random_seed=1, quiet=True)
    gibbs = nz.sample(
        model=declared, draws=2000, tune=500, extend=1, chains=4, start="random", random_seed=1, quiet=True
    )
    names = ["beta_w", "beta_h"] if prior == "hpf" else ["relevance"]
    for name in names:
        of_runs = np.log(group(drawn, "posterior")[name]).mean("draw")
        of_chains = np.log(group(gibbs, "posterior")[name]).mean("draw")
        axis = [dim for dim in of_runs.dims if dim != "chain"]
        one, other = of_runs.mean(axis), of_chains.mean(axis)  # components swap places
        error = np.hypot(one.std("chain", ddof=1), other.std("chain", ddof=1)) / 2
        assert abs(float(one.mean() - other.mean())) < 6 * float(error)
    structure, draws = nz.read(declared), group(drawn, "posterior").isel(chain=1, draw=7)
    last = {str(name): draws[name].to_numpy() for name in draws.data_vars}
    assert structure.log_joint(last) == pytest.approx(float(group(drawn, "sample_stats")["lp"][1, 7]), rel=1e-10)


def test_free_ones_and_others_are_refused():
    with pytest.raises(UnsupportedModel, match="hyperparameter mean_h is unknown"):
        nz.evidence(nz.gamma_nmf(X, 2, mean_h=nz.free()), nz.SMC())
    with pytest.raises(UnsupportedModel, match="hyperparameter relevance is unknown"):
        nz.evidence(nz.gamma_nmf(X, 2, prior="ard"), "chib")
    assert (
        "not one of the conjugate ones"
        in smc.supports(model(X, 2, gamma(0.8, unknown("u", "lognormal", 0.0, 1.0)), gamma(1.0, 1.0)), smc.SMC()).reason
    )
