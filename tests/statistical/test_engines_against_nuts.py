"""Our engines beside NUTS on GaP, gamma, Itakura-Saito and chain models: equal posteriors, and an error that is seen.

Everything goes through ``nz.compare_engines``, whose rule is judged in ``test_agreement.py``. A comparison cries wolf
once in a hundred times at the most.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.agreement import compare_draws
from nmf_zoo.reading import read
from nmf_zoo.workbench.compare_engines import _quantities, label_of
from tests.sizes import at_full_size, size

pytestmark = [
    pytest.mark.statistical,
]
RUN = {"tune": 500, "chains": 2, "cores": 2, "random_seed": 1}
DRAWS = {"particle_gibbs": size(1000, 10_000)}  # dear ones
MANY = size(3000, 30_000)


def counts(n_features, n_samples, rank, scale):
    rng = np.random.default_rng(1)
    return rng.poisson(rng.gamma(1.0, 1.0, (n_features, rank)) @ rng.gamma(1.0, scale, (rank, n_samples)))


def gap(alpha_h=1.0):
    """Proper, since the shapes of a component's 30 samples sum to more than 8 features."""
    return nz.gap(counts(8, 30, 2, 3.0), 2, alpha_h=alpha_h, beta_h=0.3)


def gamma(beta_h=0.3):
    return nz.gamma_nmf(counts(8, 12, 3, 3.0), 3, alpha_w=0.8, beta_w=1.0, alpha_h=1.2, beta_h=beta_h)


def beside(beta_h=0.3):
    """Sparse counts with an exposure of features and samples and a background, one component known and one not."""
    rng = np.random.default_rng(5)
    exposure = rng.uniform(0.3, 1.5, (8, 1)), rng.uniform(0.3, 1.5, (1, 12))
    known = rng.gamma(1.0, 1.0, (8, 1))
    mean = np.c_[known, rng.gamma(1.0, 1.0, (8, 1))] @ rng.gamma(1.0, 6.0, (2, 12))
    X = rng.poisson(exposure[0] * exposure[1] * mean + 0.1)
    own = {"alpha_w": 2.0, "alpha_h": 2.0, "beta_h": beta_h, "known": known}
    return nz.gamma_nmf(scipy.sparse.csr_array(X), 2, exposure=exposure, background=0.1, **own)


def batched(shape=6.0):
    """Sparse counts of two batches."""
    rng = np.random.default_rng(6)
    batch = np.arange(12) % 2
    mean = rng.gamma(1.0, 1.0, (8, 2)) @ rng.gamma(1.0, 6.0, (2, 12)) * rng.gamma(6.0, 1 / 6.0, (8, 2))[:, batch]
    batches = nz.Batches(labels=batch, shape=shape)
    own = {"alpha_w": 2.0, "alpha_h": 2.0, "beta_h": 0.3, "batch": batches}
    return nz.gamma_nmf(scipy.sparse.csr_array(rng.poisson(mean)), 2, exposure=rng.uniform(0.5, 1.5, (1, 12)), **own)


def powers(alpha=2.0):
    """Powers, some of them missing, over a background."""
    rng = np.random.default_rng(4)
    X = rng.exponential(rng.gamma(2.0, size=(6, 2)) @ (1 / rng.gamma(3.0, size=(2, 15))))
    seen = {"mask": rng.random(X.shape) < 0.8, "background": np.full((6, 1), 0.1)}
    return nz.is_nmf(X, 2, alpha_h=alpha, beta_h=1.0, alpha_w=2.5, beta_w=1.5, **seen)


def chain(scale=0.6):
    """A series of log-normal chains under known profiles."""
    W = np.array([[3.0, 0.5], [0.2, 2.0], [1.0, 1.0], [0.5, 2.5]])
    X = np.random.default_rng(2).poisson(W @ np.random.default_rng(3).lognormal(0.0, 0.8, (2, 12)) + 0.1)
    model = nz.hmm_nmf(X, 2, chain=nz.LogNormalAR(0.0, 0.6, scale, initial=(0.2, 1.0)), background=0.1)
    return pm.do(model, {"W": W})


# declaration, engines of which the last is the reference, and the same declaration with a wrong prior
CASES = {
    "gap": (gap, ["gibbs", "nuts"], {"alpha_h": 1.5}),
    "gamma": (gamma, ["gibbs", "vb", "nuts"], {"beta_h": 0.9}),  # 0.5 is 3.8 to 4.5 standard errors away: too near
    "beside": (beside, ["gibbs", "vb", "nuts"], {"beta_h": 0.9}),
    "batched": (batched, ["gibbs", "vb", "nuts"], {"shape": 1.0}),
    "powers": (powers, ["gibbs", "vb", "nuts"], {"alpha": 3.0}),
    "chain": (chain, ["particle_gibbs", nz.NUTS(sampler="pymc")], {"scale": 0.9}),  # nutpie compiles for longer
}


# NUTS compiles for long: at full size alone what sums over all states, Geweke's test and ranks hold; and left to
# `make test-further`, of all that is asked of them, what Geweke's test and ranks hold.
LATER = {"gamma": at_full_size, "beside": at_full_size, "batched": at_full_size}
LATER |= dict.fromkeys(("powers", "chain"), pytest.mark.further)


@pytest.fixture(scope="module", params=[pytest.param(name, marks=LATER.get(name, ())) for name in CASES])
def case(request):
    """(declaration, comparison, a wrong prior)"""
    declare, engines, wrong = CASES[request.param]
    draws = DRAWS.get(engines[0], MANY)
    reference = label_of(engines[-1])
    with pytensor.config.change_flags(mode="NUMBA"):
        return declare, nz.compare_engines(declare(), engines, reference=reference, draws=draws, **RUN), wrong


def judge(case, idata):
    """Whether other draws agree with those of NUTS, by cells of W H alone: lp of another model would tell at once."""
    declare, found, _ = case
    draws = _quantities({"nuts": found.results[found.reference], "other": idata}, read(declare()))
    cells = {engine: values.isel(quantity=slice(1, None)) for engine, values in draws.items()}
    return compare_draws(cells, "nuts").loc["other", "agrees"]


def ours(case):
    _, found, _ = case
    return next(engine for engine in found.table.index if engine.endswith("gibbs"))


def test_ours_and_nuts_have_the_same_posterior(case):
    """Long: NUTS compiles, and draws as many as ours."""
    _, found, _ = case
    row = found.table.loc[ours(case)]
    assert row["agrees"] is not None, f"gate 1, 100 effective draws of everything:\n{found}"
    assert row["agrees"] is True, f"gate 2, standard errors:\n{found}"
    assert (found.table["divergences"].fillna(0) == 0).all()


def test_an_approximation_is_told_from_the_posterior(case):
    _, found, _ = case
    if "vb" not in found.table.index:
        pytest.skip("variational Bayes can't run this model")
    assert found.table.loc["vb", "agrees"] is False
    assert found.table.loc["vb", "spread"] < 0.9


def test_a_wrong_prior_is_seen(case):
    declare, _, wrong = case
    engine = ours(case)
    idata = nz.sample(DRAWS.get(engine, MANY), engine=engine, model=declare(**wrong), quiet=True, **RUN)
    assert judge(case, idata) is False


def test_a_shift_is_seen(case):
    """Of 5 % of H, and so of W H."""
    _, found, _ = case
    idata = found.results[ours(case)]
    groups = {name: _compat.group(idata, name) for name in ("posterior", "sample_stats")}
    moved = groups["posterior"].assign(H=1.05 * groups["posterior"]["H"])
    assert judge(case, _compat.inference_data({**groups, "posterior": moved}, {})) is False
