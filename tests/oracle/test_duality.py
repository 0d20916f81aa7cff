"""The duality gap of activations: never below what the objective lacks to the optimum, and 0 there."""

from functools import cache

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.inference.counts import duality
from nmf_zoo.reading import read
from tests.planted import plant

F, K, N = 9, 3, 7
RNG = np.random.default_rng(2)
W = RNG.dirichlet(np.ones(F), K).T
X = RNG.poisson(W @ RNG.gamma(1.0, 20.0, (K, N)) + 0.5)
MASK = RNG.random((F, N)) < 0.85
OFFSETS = {"exposure": RNG.uniform(0.5, 2.0, (1, N)), "background": 0.4}
MODELS = {
    "flat": lambda x: nz.poisson_nmf(x, K, known=W, background=0.1),
    "exponential": lambda x: nz.gamma_nmf(x, K, known=W, beta_h=0.1, **OFFSETS),
    "shape 2": lambda x: nz.gamma_nmf(x, K, known=W, alpha_h=2.0, beta_h=0.1, **OFFSETS),
    "mask": lambda x: nz.gamma_nmf(np.asarray(x), K, known=W, beta_h=0.1, mask=MASK),
    "normal": lambda x: nz.normal_nmf(x, K, known=W, sigma=2.0, mask=MASK, **OFFSETS),
}


def fit(name, max_iter, tol=0.0, x=X):
    result = nz.fit(model=MODELS[name](x), engine="em", max_iter=max_iter, tol=tol, random_seed=1, quiet=True)
    found = group(result, "fit")
    return float(found["objective"].to_numpy()[0, -1]), float(found["duality_gap"].to_numpy()[0])


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("name", MODELS)
def test_it_bounds_what_is_missing(name):
    optimum, least = fit(name, 20_000, tol=1e-12)
    assert abs(least) < 1e-5
    for iterations in (1, 3, 10):
        objective, gap = fit(name, iterations)
        assert gap >= objective - optimum - 1e-9


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("name", ["flat", "exponential", "shape 2"])
def test_sparse_data_have_the_same(name):
    objective, gap = fit(name, 2000, tol=1e-10, x=scipy.sparse.csr_array(X))
    expected, _ = fit(name, 2000, tol=1e-10)
    np.testing.assert_allclose(objective, expected, rtol=1e-10)
    assert abs(gap) < 1e-5


def test_slopes_next_to_nothing_limit_nothing():
    """A background of 1e12 leaves slopes of 1e-300, over which a rate is beyond all numbers."""
    model = nz.gamma_nmf(np.full((2, 3), 60), 2, known=np.full((2, 2), 1e-300), background=1e12, beta_h=1e20)
    found = nz.fit(model=model, engine="em", max_iter=1, tol=0, random_seed=1, quiet=True, search=None)
    assert np.isfinite(group(found, "fit")["duality_gap"].to_numpy()[0])


LISTED = scipy.sparse.coo_array(np.where(MASK, X, 0))
LISTED_RUN = {"engine": "em", "tol": 0.0, "random_seed": 1, "quiet": True}


@cache
def listed():
    """Two declarations of the listed cells, sparse and as a table with a mask, and the least of their objective."""
    offsets = {"exposure": RNG.uniform(0.5, 2.0, (1, N)), "background": 0.4, "sigma": 2.0, "known": W}
    sparse = nz.normal_nmf(scipy.sparse.csr_array(LISTED), K, observed="stored", **offsets)
    dense = nz.normal_nmf(LISTED.toarray(), K, mask=LISTED.toarray() > 0, **offsets)
    fitted = nz.fit(model=dense, max_iter=20_000, **LISTED_RUN)
    return sparse, dense, -float(group(fitted, "sample_stats")["lp"].to_numpy()[0, 0])


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("iterations", [1, 5, 3000])
def test_listed_normal_cells_have_that_of_a_table_with_a_mask(iterations):
    """Never below what is missing, and 0 at the optimum."""
    sparse, dense, optimum = listed()
    structure = read(sparse)
    found = nz.fit(model=sparse, max_iter=iterations, **LISTED_RUN)
    H = group(found, "posterior")["H"].to_numpy()[0, 0]
    gap = float(group(found, "fit")["duality_gap"].to_numpy()[0])
    np.testing.assert_allclose(gap, duality.normal_gap(read(dense), H, np.zeros((1, 1)), {}), atol=1e-8, rtol=1e-9)
    assert gap >= -structure.log_joint({"H": H}) - optimum - 1e-9
    assert gap < 1e-5 or iterations < 3000


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_the_optimum_is_that_of_scipy():
    """Squared error of each column by Lawson and Hanson's algorithm."""
    plain = nz.normal_nmf(X, K, known=W, sigma=2.0)
    found = nz.fit(model=plain, engine="em", max_iter=20_000, tol=1e-12, random_seed=1, quiet=True)
    H = np.column_stack([scipy.optimize.nnls(W, X[:, n])[0] for n in range(N)])
    np.testing.assert_allclose(group(found, "posterior")["H"].to_numpy()[0, 0], H, rtol=1e-4, atol=1e-4)


def test_a_gap_without_the_background_is_seen(monkeypatch):
    """Planted: theta . offset left out of the dual, which is then no bound."""

    def wrong(right):
        def without(structure, which, u, v, penalty):
            rows, cols, x = duality.nonzero_cells(structure)
            mean = structure.mean_at(v, u.T, rows, cols)
            return right(structure, which, u, v, penalty) - float(np.sum(x / mean) * 0.1)

        return without

    plant(monkeypatch, "EM: duality gap of counts", wrong)
    with pytest.raises(AssertionError):
        test_it_bounds_what_is_missing("flat")


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_a_fit_of_both_factors_states_none():
    result = nz.fit(model=nz.poisson_nmf(X, K), engine="em", max_iter=5, random_seed=1, quiet=True)
    assert "duality_gap" not in group(result, "fit")
