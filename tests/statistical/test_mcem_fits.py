"""Monte-Carlo EM against what is known exactly: posterior means, likelihoods, and where the maxima are."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts.mcem_expectations import GivenW, WantedExpectations, estimate_log_likelihood
from nmf_zoo.inference.marginal.exact import expectations, log_likelihoods, marginal_log_likelihoods, observe
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.counts.mcem_sweeps import posterior_means
from tests.sizes import size

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.filterwarnings("ignore:X. .* no positive observed cell"),
    pytest.mark.filterwarnings("ignore:rank. got"),
]
W_TRUE = np.array([[0.638, 0.075], [0.009, 0.568], [0.044, 0.126], [0.309, 0.231]])  # Filstroff 2018, eq. 50


def v1(seed=0, n_samples=100):
    """The paper's first data set, drawn anew."""
    rng = np.random.default_rng(seed)
    return rng.poisson(W_TRUE @ rng.gamma(1.0, 1.0, (2, n_samples)))


def fit(model, max_iter, **options):
    return nz.fit(engine=nz.MCEM(**options), model=model, max_iter=max_iter, tol=0, random_seed=1, quiet=True, cores=1)


def posterior(idata, name):
    return _compat.group(idata, "posterior")[name].to_numpy()[0, 0]


def log_likelihood(model, W, values=None):
    return float(np.sum(marginal_log_likelihoods(nz.read(model), W, values or {})))


@pytest.mark.parametrize("averages", [True, False])
def test_e_step_has_the_exact_posterior_means(averages):
    """Many samples with the same counts: as many independent chains."""
    x, copies, rng = np.array([3, 0, 2]), size(4000, 40_000), np.random.default_rng(1)
    W, shape, rate = rng.gamma(1.0, size=(3, 3)), np.array([0.4, 1.0, 2.5]), np.array([0.5, 1.0, 2.0])
    model = nz.gap(np.repeat(x[:, None], copies, axis=1), 3, alpha_h=shape[:, None], beta_h=rate[:, None])
    expect = GivenW(nz.read(model), SERIAL, WantedExpectations(40, 39, averages, averages))
    Ht = np.tile(shape / rate, (copies, 1))
    found = expect(W, Ht, {}, np.ones_like(Ht), seed_key(3))
    of_C, of_h, _ = posterior_means(x, W, shape, rate)
    h = found.statistics["H"]
    errors = (h.mean(axis=0) - of_h) / (h.std(axis=0) / np.sqrt(copies))
    assert np.all(np.abs(errors) < 5), errors
    share, spread = found.statistics["sources"] / copies, np.sqrt(x[:, None] * x[:, None] / copies)
    assert np.all(np.abs(share - of_C) <= 5 * spread / 2 + 1e-12), (share, of_C)  # sd of c <= x / 2


def test_estimated_log_likelihood_is_the_exact_one():
    x, rng = v1() * 4, np.random.default_rng(2)
    model, W = nz.gap(x, 3), rng.gamma(1.0, size=(4, 3))
    found, error = estimate_log_likelihood(nz.read(model), W, {}, size(2000, 20_000), seed_key(1), SERIAL)
    exact = log_likelihood(model, W)
    assert error < 1.0
    assert abs(found - exact) < 5 * error + error**2, (found, exact, error)


def exact_maximum(x, rank, starts=1):
    """The highest log p(X | W) with alpha = beta = 1, by a quasi-Newton method on exact values and slopes."""
    columns, copies = np.unique(x, axis=1, return_counts=True)
    samples, one = observe(nz.read(nz.gap(columns, rank))), np.ones((len(copies), rank))
    cells = samples.columns
    weight = np.repeat(copies, np.diff(cells.indptr))[:, None]

    def loss(z):
        W = np.exp(z.reshape(-1, rank))
        sources, h = expectations(samples, W, one, one)
        slope = -W * (copies @ h)
        np.add.at(slope, cells.features, weight * sources)
        return -copies @ log_likelihoods(samples, W, one, one), -slope.ravel()

    options, box = {"maxiter": 1000, "ftol": 1e-11}, [(-14, 9)] * (len(x) * rank)
    shares = np.random.default_rng(0).dirichlet(np.ones(rank), (starts, len(x)))
    firsts = np.log(x.mean(axis=1)[:, None] * shares + 1e-3).reshape(starts, -1)
    found = [minimize(loss, first, jac=True, method="L-BFGS-B", bounds=box, options=options) for first in firsts]
    best = min(found, key=lambda end: end.fun)
    return -best.fun, np.exp(best.x.reshape(-1, rank))


def test_the_three_variants_reach_the_exact_maximum():
    """Filstroff 2018, figures 2 and 3 (a), from the start of eq. 51. On this draw of V1 all three columns stay.

    Long: stochastic steps settle slowly.
    """
    model, (best, W) = nz.gap(v1(), 3), exact_maximum(v1(), 3, starts=10)
    sweeps = size(100, 300)
    for complete in ("C", "CH", "H"):
        idata = fit(model, size(250, 500), complete=complete, sweeps=sweeps, burn_in=sweeps // 2, start="deterministic")
        found = posterior(idata, "W")
        assert best - 0.1 < log_likelihood(model, found) < best + 0.01
        np.testing.assert_allclose(np.sort(found.sum(axis=0)), np.sort(W.sum(axis=0)), atol=0.1)


def test_surplus_columns_vanish_as_samples_grow_and_joint_likelihood_keeps_them():
    """The third column's share at the exact maximum: about 0.13, 0.04 and 0.006 of 100, 1,000 and 10,000 samples.

    The likelihood it adds stays at a few nats. Of some draws it is exactly zero at the maximum.

    Long: exact maxima of two ranks, with 10,000 samples, too.
    """
    least, gains = {100: [], 10_000: []}, []
    for seed in range(size(2, 10)):
        for n_samples, shares in least.items():
            x = v1(seed, n_samples)
            (narrow, _), (wide, W) = exact_maximum(x, 2), exact_maximum(x, 3)
            gains.append(wide - narrow)
            shares.append(W.sum(axis=0).min() / W.sum())
    assert np.mean(least[100]) > 0.06
    assert np.mean(least[10_000]) < 0.03
    assert np.mean(least[10_000]) < np.mean(least[100]) / 4
    assert min(gains) > -0.01
    assert max(gains) < 8.0
    x = v1(0, 10_000)
    joint = posterior(nz.fit(engine="em", model=nz.gap(x, 3), max_iter=100, tol=0, random_seed=1, quiet=True), "H")
    assert joint.sum(axis=1).min() > 0.2 * joint.sum()  # the columns of W sum to one


def test_draws_and_expectations_lead_to_the_same_maximum():
    model = nz.gap(v1(), 2)
    fits = [fit(model, size(200, 400), sweeps=50, burn_in=10, rao_blackwell=averages) for averages in (True, False)]
    reached = [log_likelihood(model, posterior(idata, "W")) for idata in fits]
    assert np.ptp(reached) < 0.1, reached


def test_joint_maximum_likelihood_keeps_every_column_and_marginal_likelihood_does_not():
    """V2 has two components. Of 100 samples the marginal maximum need not be exactly 0 in the others, but is near.

    Long: two fits, of which the one is by chains.
    """
    x, rank = np.random.default_rng(0).poisson(100 * W_TRUE @ np.random.default_rng(1).gamma(1.0, 1.0, (2, 100))), 5
    joint = posterior(nz.fit(engine="em", model=nz.gap(x, rank), random_seed=1, quiet=True), "H")
    kept = np.sort(joint.sum(axis=1) / joint.sum())  # the columns of W sum to one
    norms = posterior(fit(nz.gap(x, rank), size(250, 500), exact=False), "W").sum(axis=0)
    emptied = np.sort(norms / norms.sum())
    assert kept[0] > 0.05
    assert emptied[:3].sum() < 0.06


@pytest.fixture(scope="module")
def free_shape():
    """(model, -log p and log alpha at the exact maximum)"""
    rng = np.random.default_rng(3)
    W = np.array([[3, 0.2], [0.3, 2], [1, 1.0]])
    model = nz.gap(rng.poisson(W @ rng.gamma(2.0, 1.0, (2, 300))), 2, alpha_h=nz.free())

    def loss(z):
        return -log_likelihood(model, np.exp(z[:6].reshape(3, 2)), {"alpha_h": np.exp(z[6])})

    best = minimize(loss, np.append(np.log(W).ravel(), 0.0), method="BFGS", tol=1e-2)
    return model, best.fun, best.x[6]


@pytest.mark.parametrize("complete", ["C", "CH", "H"])
def test_free_shapes_are_where_the_exact_likelihood_is_highest(complete, free_shape):
    model, least, log_alpha = free_shape
    idata = fit(model, 600, complete=complete, sweeps=20, burn_in=5)
    alpha = posterior(idata, "alpha_h")
    assert -log_likelihood(model, posterior(idata, "W"), {"alpha_h": alpha}) - least < 0.1
    assert abs(np.log(alpha) - log_alpha) < 0.05


@pytest.mark.parametrize("averages", [True, False])
def test_a_hyperparameter_of_gamma_nmf_is_where_the_exact_likelihood_is_highest(averages):
    """K = 1: given W the samples are negative multinomial, and W's two cells are summed over on a grid.

    Long: the E steps are chains.
    """
    x = np.array([[3, 0, 6, 1, 2, 9], [5, 1, 7, 0, 2, 4]])
    idata = fit(nz.gamma_nmf(x, 1, alpha_w=2.0, alpha_h=nz.free()), 2000, sweeps=10, burn_in=1, rao_blackwell=averages)
    log_w = np.linspace(-8, 5, 400)
    w = np.exp(log_w)
    prior = np.add.outer(*[2 * log_w - w] * 2)  # of log w
    norm, L = np.add.outer(w, w), x.sum(axis=0)

    def loss(alpha):
        terms = x[0].sum() * log_w[:, None] + x[1].sum() * log_w - L.sum() * np.log(norm + 1)
        terms = terms + prior - len(L) * alpha * np.log(norm + 1) + np.sum(gammaln(alpha + L) - gammaln(alpha))
        return -np.log(np.sum(np.exp(terms - terms.max()))) - terms.max()

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded").x
    assert abs(np.log(posterior(idata, "alpha_h") / best)) < 0.05
