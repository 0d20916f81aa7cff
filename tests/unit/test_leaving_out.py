"""Leaving cells and columns out: Pareto's k beside ArviZ's, the warning, and models of both libraries in one table."""

from __future__ import annotations

import re
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.prediction.pareto import largest_k, pareto_k

RNG = np.random.default_rng(5)
X = RNG.poisson(RNG.gamma(1.0, 3.0, (6, 2)) @ RNG.gamma(1.0, 1.0, (2, 8)))
RUN = {"tune": 200, "chains": 2, "cores": 1, "random_seed": 2, "quiet": True}
OF_ARVIZ = [
    "ignore:Estimated shape parameter:UserWarning",
    "ignore:The default method:UserWarning",
    "ignore:The inplace keyword",  # of pandas
]


def theirs(log_likelihood):
    """ArviZ's k of one column of draws at a time."""
    if hasattr(az, "psislw"):
        return np.array([az.psislw(-column, reff=1.0)[1] for column in log_likelihood.T.copy()]).ravel()
    from arviz_stats.base import array_stats

    with np.errstate(divide="ignore"):
        return np.array([array_stats.psislw(column, r_eff=1.0)[1] for column in log_likelihood.T.copy()])


@pytest.mark.parametrize("n_draws", [100, 400, 2500])  # of whose tails ArviZ 0.x and 1.x think alike
def test_k_is_that_of_arviz(n_draws):
    heavy = -RNG.exponential(1.0 / np.array([5.0, 2.0, 1.0, 0.6]), size=(n_draws, 4))
    draws = np.concatenate([heavy, RNG.normal(size=(n_draws, 3)), RNG.standard_t(3, (n_draws, 2))], axis=1)
    np.testing.assert_allclose(pareto_k(draws), theirs(draws), rtol=1e-7)


def test_k_of_weights_with_a_known_tail():
    """Weights u^-k have the shape k, up to what the prior draws towards 1/2."""
    n_draws, k = 40_000, np.array([0.2, 0.5, 0.9])
    found = pareto_k(k * np.log(RNG.uniform(size=(n_draws, 3))))
    assert np.all(np.abs(found - k) < 4 * (1 + k) / np.sqrt(3 * np.sqrt(n_draws)))


def test_draws_that_say_the_same_have_no_tail():
    """And one that says all there is to say has a tail without end."""
    assert np.array_equal(pareto_k(np.zeros((200, 2))), [-np.inf, -np.inf])
    assert pareto_k(np.where(np.arange(200) == 7, -1e4, 0.0)[:, None])[0] == np.inf
    assert pareto_k(np.zeros((200, 0))).shape == (0,)


@pytest.fixture(scope="module")
def fitted():
    model = nz.gamma_nmf(X, rank=2)
    return nz.sample(500, model=model, **RUN), model


def test_whole_columns_are_warned_of_and_arviz_agrees(fitted):
    with pytest.warns(nz.NmfZooWarning, match="Take per='cell', or held-out data") as said:
        found = nz.log_likelihood(*fitted)
    assert said[0].filename == __file__
    values = _compat.group(found, "log_likelihood")["X"].to_numpy().reshape(-1, X.shape[1])
    n_bad = int(np.sum(theirs(values) > largest_k(1000)))
    assert n_bad > 0
    assert re.search(rf"for {n_bad} of {X.shape[1]} samples", str(said[0].message))


def test_no_word_where_all_is_well_or_nothing_is_known(fitted):
    """Of cells, of few draws, of one point, and of a model whose columns have no H of their own to speak of."""
    idata, model = fitted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nz.log_likelihood(idata, model, per="cell")
        nz.log_likelihood(nz.sample(40, model=model, **RUN), model)
        nz.log_likelihood(nz.fit(engine="em", max_iter=20, model=model, random_seed=1, quiet=True), model)
        tight = nz.gamma_nmf(X, rank=1, alpha_h=1e5, beta_h=1e5, alpha_w=1e5, mean_w=float(X.mean()))
        nz.log_likelihood(nz.sample(500, model=tight, start="random", **RUN), tight)


@pytest.mark.filterwarnings(*OF_ARVIZ)
def test_az_compare_of_ours_and_of_pymc(fitted):
    """One model by both libraries, and a worse one: the two are the same, and better."""
    idata, model = fitted
    worse = nz.gamma_nmf(X, rank=1)
    of_worse = nz.log_likelihood(nz.sample(500, model=worse, **RUN), worse, per="cell")
    theirs = pm.compute_log_likelihood(idata, model=model, extend_inferencedata=False, progressbar=False)
    theirs = _compat.group(theirs, "log_likelihood") if hasattr(theirs, "children") else theirs
    by_pymc = _compat.with_groups(idata, {"log_likelihood": theirs})
    table = az.compare({"ours": nz.log_likelihood(idata, model, per="cell"), "PyMC": by_pymc, "worse": of_worse})
    assert table["rank"]["worse"] == 2
    elpd = next(table[name] for name in ("elpd_loo", "elpd") if name in table)
    assert float(elpd["ours"]) == pytest.approx(float(elpd["PyMC"]), rel=1e-9)
    assert float(elpd["worse"]) < float(elpd["ours"]) - 5.0
