"""PyMC's own samplers on small instances of the three chains, against sums over all paths and importance sampling."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp
from scipy.stats import poisson

import nmf_zoo as nz
from tests.naive.hmm import basis_chain as naive_chains
from tests.sizes import at_full_size, size
from tests.statistical.gates import check_means

pytestmark = [
    pytest.mark.statistical,
]
F, K, T = 3, 2, 4
W = np.array([[3.0, 0.5], [0.2, 2.0], [1.0, 1.0]])
X = np.array([[3, 4, 0, 1], [0, 1, 2, 3], [1, 2, 1, 0]])
LABELS = [f"H[{k}, {t}]" for k in range(K) for t in range(T)]


def declare(chain):
    return pm.do(nz.hmm_nmf(X, K, chain=chain, background=0.1), {"W": W})


def sample(model, draws, **arguments):
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    idata = pm.sample(draws, tune=500, chains=1, random_seed=1, model=model, **quiet, **arguments)
    return idata.posterior["H"].to_numpy()[0].reshape(-1, K * T)


def importance(chain):
    """(posterior means of H (K, T), their standard errors) from draws of the chain, weighted by the likelihood."""
    drawn = pm.draw(chain, random_seed=2, mode="FAST_COMPILE")
    log_weight = poisson.logpmf(X, W @ drawn + 0.1).sum(axis=(1, 2))
    weight = np.exp(log_weight - logsumexp(log_weight))
    mean = np.tensordot(weight, drawn, axes=1)
    error = np.sqrt(np.tensordot(weight**2, (drawn - mean) ** 2, axes=1))
    assert 1 / np.sum(weight**2) > 1000
    return mean.ravel(), error.ravel()


@pytest.mark.usefixtures("compiled_graphs")
def test_metropolis_on_the_basis_chain():
    """PyMC's Metropolis steps have the exact marginals, too. Long: they mix slowly."""
    model = declare(nz.BasisChain(0.8, 0.7, 0.4))
    _, marginals, _, _ = naive_chains.smooth(
        X, np.ones((F, T)), np.full((F, T), 0.1), W, np.full(K, 0.8), np.full(K, 0.7), np.full(K, 0.4)
    )
    with model:
        step = pm.BinaryGibbsMetropolis([model["H"]])
    check_means(LABELS, sample(model, size(3000, 40000), step=step), marginals.T.ravel())


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_slice_sampling_of_the_unit_chain():
    """PyMC slices each number in Python; the chain's density is held at every size, by test_chain_distributions.py."""
    model = declare(nz.UnitChain(0.8))
    with model:
        step = pm.Slice([model["H"]])
    draws = sample(model, 60_000, step=step)
    expected, error = importance(nz.UnitChain.dist(0.8, shape=(400_000, K, T)))
    check_means(LABELS, draws, expected, error)


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_nuts_on_the_log_normal_chain():
    """At reduced size NUTS is held to particle Gibbs, by test_engines_against_nuts.py and `make test-further`."""
    model = declare(nz.LogNormalAR(0.0, 0.6, 0.7, initial=(0.2, 1.0)))
    expected, error = importance(nz.LogNormalAR.dist(0.0, 0.6, 0.7, (0.2, 1.0), shape=(400_000, K, T)))
    idata = nz.sample(size(2000, 10000), tune=500, chains=1, engine="nuts", random_seed=1, quiet=True, model=model)
    check_means(LABELS, idata.posterior["H"].to_numpy()[0].reshape(-1, K * T), expected, error)
