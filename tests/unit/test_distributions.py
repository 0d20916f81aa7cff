"""The distributions of our own: densities against SciPy, gradients against finite differences, draws, both backends."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import gammaln
from scipy.stats import kstest, poisson

from nmf_zoo.distributions import RealPoisson, SparsePoisson, cell_rates
from nmf_zoo.kernels.numerics import cells

F, K, N = 7, 3, 5
MODES = [pytest.param("NUMBA", marks=pytest.mark.rest), "FAST_COMPILE"]


@pytest.fixture
def factors():
    rng = np.random.default_rng(0)
    return rng.gamma(1.0, size=(F, K)), rng.gamma(1.0, size=(K, N))


@pytest.fixture
def data(factors):
    W, H = factors
    return np.random.default_rng(1).poisson(W @ H)


def sparse_model(data, complete):
    """A Gamma model of the non-zero cells, with variables W and H."""
    rows, cols = np.nonzero(data)
    with pm.Model(coords={"cell": np.arange(len(rows))}) as model:
        W = pm.Gamma("W", np.float64(1), np.float64(1), shape=(F, K))
        H = pm.Gamma("H", np.float64(1), np.float64(1), shape=(K, N))
        cells = pm.Data("cell_feature", rows, dims="cell"), pm.Data("cell_obs", cols, dims="cell")
        SparsePoisson("X", W, H, *cells, complete=complete, observed=data[rows, cols].astype(float), dims="cell")
    return model


def dense_model(data, complete):
    """The same with PyMC's own Poisson."""
    with pm.Model() as model:
        W = pm.Gamma("W", np.float64(1), np.float64(1), shape=(F, K))
        H = pm.Gamma("H", np.float64(1), np.float64(1), shape=(K, N))
        keep = (slice(None), slice(None)) if complete else np.nonzero(data)
        pm.Poisson("X", (W @ H)[keep], observed=data[keep])
    return model


def point(factors):
    return {"W_log__": np.log(factors[0]), "H_log__": np.log(factors[1])}


# -- rates at listed cells ---------------------------------------------------------------------------------------


def test_rates_and_gradients_equal_numpy(factors):
    W, H = factors
    rng = np.random.default_rng(2)
    rows, cols, upstream = rng.integers(0, F, 40), rng.integers(0, N, 40), rng.normal(size=40)
    np.testing.assert_allclose(cells.cell_rates(W, H, rows, cols), (W @ H)[rows, cols], rtol=1e-13)
    scattered = np.zeros((F, N))
    np.add.at(scattered, (rows, cols), upstream)
    in_W, in_H = cells.cell_rate_gradients(W, H, rows, cols, upstream)
    np.testing.assert_allclose(in_W, scattered @ H.T, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(in_H, W.T @ scattered, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cell", [(F, 0), (0, N), (-1, 0), (0, -1)])
def test_cells_outside_are_refused(factors, mode, cell):
    rates = cell_rates(*map(pt.as_tensor, factors), np.array([0, cell[0]]), np.array([0, cell[1]]))
    compiled = pytensor.function([], rates, mode=mode)
    with pytest.raises(IndexError, match="expected 0 <= row"):
        compiled()


def test_rates_accept_strided_and_integer_factors(factors):
    W, H = factors
    rows, cols = np.nonzero(np.ones((F, N)))
    strided = cell_rates(pt.as_tensor(np.asfortranarray(W)), pt.as_tensor(H.T.copy()).T, rows, cols)
    np.testing.assert_allclose(strided.eval(), (W @ H).ravel(), rtol=1e-13)
    integers = cell_rates(np.ones((F, K), int), np.ones((K, N), int), rows, cols)
    np.testing.assert_array_equal(integers.eval(), K)


# -- SparsePoisson -----------------------------------------------------------------------------------------------


@pytest.mark.rest
@pytest.mark.parametrize("complete", [True, False])
def test_sparse_density_equals_scipy(factors, data, complete):
    W, H = factors
    keep = np.ones_like(data, dtype=bool) if complete else data > 0
    expected = poisson.logpmf(data, W @ H)[keep].sum() - W.sum() - H.sum()
    compiled = sparse_model(data, complete).compile_logp(jacobian=False, mode="NUMBA")
    np.testing.assert_allclose(compiled(point(factors)), expected, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("complete", [True, False])
def test_sparse_gradient_equals_dense(factors, data, complete, mode):
    sparse = sparse_model(data, complete).compile_dlogp(mode=mode)
    dense = dense_model(data, complete).compile_dlogp()
    np.testing.assert_allclose(sparse(point(factors)), dense(point(factors)), rtol=1e-10)


@pytest.mark.parametrize("complete", [True, False])
def test_sparse_gradient_equals_finite_differences(factors, data, complete):
    model = sparse_model(data, complete)
    log_density, gradient = model.compile_logp(), model.compile_dlogp()(point(factors))
    flat = np.concatenate([np.log(factors[0]).ravel(), np.log(factors[1]).ravel()])
    step = 1e-6

    def at(values):
        return log_density({"W_log__": values[: F * K].reshape(F, K), "H_log__": values[F * K :].reshape(K, N)})

    differences = [(at(flat + step * e) - at(flat - step * e)) / (2 * step) for e in np.eye(len(flat))]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-6)


def test_sparse_density_of_an_empty_matrix(factors):
    compiled = sparse_model(np.zeros((F, N), int), True).compile_logp(jacobian=False)
    W, H = factors
    np.testing.assert_allclose(compiled(point(factors)), -(W @ H).sum() - W.sum() - H.sum(), rtol=1e-12)


def test_sparse_gradient_does_not_flow_into_the_indices(factors):
    rows, cols = pt.lvector(), pt.lvector()
    total = cell_rates(*map(pt.as_tensor, factors), rows, cols).sum()
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pt.grad(total, rows)


@pytest.mark.parametrize("mode", MODES)
def test_sparse_draws_are_poisson_at_the_cells(factors, mode):
    """Draws of the sparse likelihood have the means of their cells. Long: PyTensor compiles the graph."""
    W, H = factors
    rows, cols = np.array([0, 3, 6]), np.array([1, 0, 4])
    variable = SparsePoisson.dist(W, H, rows, cols)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTensor warns when it has to leave compiled code
        draws = pm.draw(variable, 20_000, random_seed=1, mode=mode)
    mean = (W @ H)[rows, cols]
    assert draws.shape == (20_000, 3)
    np.testing.assert_array_equal(draws, np.floor(draws))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(mean / 20_000))


def test_sparse_draws_take_a_size(factors):
    variable = SparsePoisson.dist(*factors, np.array([0, 1]), np.array([0, 1]), size=(4,))
    assert pm.draw(variable, random_seed=1, mode="FAST_COMPILE").shape == (4, 2)


# -- RealPoisson -------------------------------------------------------------------------------------------------


def real_log_density(x, mu):
    return pm.logp(RealPoisson.dist(mu), x).eval()


def test_real_density_equals_the_formula():
    rng = np.random.default_rng(3)
    x, mu = rng.gamma(2.0, size=50), rng.gamma(2.0, size=50)
    np.testing.assert_allclose(real_log_density(x, mu), x * np.log(mu) - mu - gammaln(x + 1), rtol=1e-12)


def test_real_density_on_integers_is_poisson():
    x = np.arange(20.0)
    np.testing.assert_allclose(real_log_density(x, np.full(20, 4.2)), poisson.logpmf(x, 4.2), rtol=1e-12)


def test_real_density_at_the_boundary():
    x, mu = np.array([-0.5, -3.0, 0.0, 0.0, 1.5]), np.array([1.0, 1.0, 0.0, 2.0, 0.0])
    np.testing.assert_array_equal(real_log_density(x, mu), [-np.inf, -np.inf, 0.0, -2.0, -np.inf])


def test_real_gradient_is_finite_at_zero():
    mu = pt.dvector()
    gradient = pt.grad(pm.logp(RealPoisson.dist(mu), np.array([0.0, 0.0])).sum(), mu)
    np.testing.assert_array_equal(gradient.eval({mu: [0.0, 2.0]}), [-1.0, -1.0])


@pytest.mark.parametrize("mode", MODES)
def test_real_draws_are_poisson(mode):
    draws = pm.draw(RealPoisson.dist(np.array([0.3, 40.0])), 20_000, random_seed=1, mode=mode)
    assert draws.dtype == np.float64
    assert np.all(np.abs(draws.mean(axis=0) - [0.3, 40.0]) < 5 * np.sqrt(np.array([0.3, 40.0]) / 20_000))


@pytest.mark.parametrize("mode", MODES)
def test_draws_beyond_integers_are_normal(mode):
    """Where a count no longer fits 64 bits; float64 does not tell that law from the Poisson one."""
    mean = np.array([3.0, 1e19, 1e25, 1e300])
    cells = np.arange(4)
    sparse = SparsePoisson.dist(mean[:, None], np.ones((1, 4)), cells, cells)
    for dist in (RealPoisson.dist(mean), sparse):
        draws = pm.draw(dist, 500, random_seed=1, mode=mode)
        np.testing.assert_array_equal(draws, np.floor(draws))
        np.testing.assert_allclose(draws[:, 1:], np.broadcast_to(mean[1:], draws[:, 1:].shape), rtol=1e-8)
        assert kstest((draws[:, 1] - 1e19) / np.sqrt(1e19), "norm").pvalue > 1e-4
