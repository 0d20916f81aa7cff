"""Simulation: every layout gives all cells of X, with the right moments; flat and huge models are refused."""

import numpy as np
import pymc as pm
import pytensor
import pytest
import scipy.sparse
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from nmf_zoo.prediction.simulation import simulate
from tests.sizes import size

F, N, K = 6, 40, 2
COUNTS = np.random.default_rng(0).poisson(3.0, (F, N))
LAYOUTS = {
    "observed": {"X": COUNTS},
    "nothing": {"X": None, "shape": (F, N)},
    "missing": {"X": np.where(COUNTS > 1, COUNTS, np.nan)},
    "sparse": {"X": scipy.sparse.csr_array(COUNTS)},
    "stored": {"X": scipy.sparse.csr_array(COUNTS), "observed": "stored"},
    "offsets": {"X": COUNTS, "exposure": np.arange(1.0, F + 1)[:, None], "background": 2.0},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_drawn_whole(layout):
    model = nz.gamma_nmf(rank=K, alpha_h=20.0, mean_h=30.0, coords={"component": ["a", "b"]}, **LAYOUTS[layout])
    drawn = simulate(model, random_seed=1)
    assert drawn["X"].dims == ("feature", "obs")
    assert drawn["W"].dims == ("feature", "component")
    assert list(drawn["component"].values) == ["a", "b"]
    assert drawn["X"].dtype == np.int64
    exposure, background = LAYOUTS[layout].get("exposure", 1.0), LAYOUTS[layout].get("background", 0.0)
    mean = exposure * (drawn["W"].values @ drawn["H"].values) + background
    chi_square = np.sum((drawn["X"].values - mean) ** 2 / mean)
    assert abs(chi_square - mean.size) < 5 * np.sqrt(np.sum(2 + 1 / mean))  # its variance is exactly this


def test_seeds_of_every_kind():
    model = nz.gamma_nmf(None, 1, shape=(2, 3))
    for seed in (np.random.default_rng, lambda start: [start, 5], np.int64):
        xr.testing.assert_identical(nz.simulate(model, random_seed=seed(3)), nz.simulate(model, random_seed=seed(3)))
    with pytest.raises(InputError, match="random_seed: got -1; expected a non-negative integer"):
        nz.simulate(model, random_seed=-1)


def test_same_seed_same_draw():
    model = nz.gamma_nmf(None, K, shape=(F, N), alpha_w=0.5)
    first, second, other = (simulate(model, random_seed=seed) for seed in (1, 1, 2))
    assert first.identical(second)
    assert not first["X"].equals(other["X"])


def test_hyperpriors_are_drawn_too():
    with pm.Model() as model:
        nz.gamma_nmf(None, K, shape=(F, N), alpha_h=pm.Gamma("alpha", np.float64(2), np.float64(1)))
    assert set(simulate(model, random_seed=1).data_vars) == {"alpha", "W", "H", "X"}


def test_normal_data():
    W, H = np.ones((F, K)), np.full((K, N), 5.0)
    model = pm.do(nz.normal_nmf(None, K, shape=(F, N), sigma=0.5), {"W": W, "H": H})
    drawn = simulate(model, random_seed=1)["X"].values
    assert abs(drawn.mean() - 10.0) < 5 * 0.5 / np.sqrt(F * N)
    assert abs(drawn.std() - 0.5) < 5 * 0.5 / np.sqrt(2 * F * N)


def test_flat_variables_are_named():
    with pytest.raises(nz.InputError, match=r'W: got a flat density.*pm.do\(model, \{"W": value\}\)'):
        simulate(nz.gap(COUNTS, K))
    with pytest.raises(nz.InputError, match="alpha_h: got a flat density"):
        simulate(nz.gamma_nmf(COUNTS, K, alpha_h=nz.free()))
    drawn = simulate(pm.do(nz.gap(COUNTS, K), {"W": np.ones((F, K))}), random_seed=1)
    assert set(drawn.data_vars) == {"H", "X"}


def test_huge_data_are_refused():
    cells = scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(20_000, 20_000))
    with pytest.warns(nz.NmfZooWarning):
        model = nz.gamma_nmf(cells, 1)
    with pytest.raises(nz.InputError, match="model: got 400000000 cells of X; expected at most 100000000"):
        simulate(model)


@pytest.mark.parametrize("exposure", [1e21, 1e300])
def test_counts_beyond_64_bits_are_refused(exposure):
    model = nz.gamma_nmf(None, 2, shape=(3, 4), exposure=np.full((1, 4), exposure))
    with pytest.raises(
        nz.InputError, match=r"X: got a mean of .*e\+\d+ to draw a count from; expected means up to 2\^62"
    ):
        simulate(model, random_seed=1)
    powers = nz.is_nmf(None, 2, shape=(3, 4), exposure=np.full((1, 4), exposure))
    drawn = simulate(pm.do(powers, {"W": np.ones((3, 2)), "H": np.ones((2, 4))}), random_seed=1)
    assert np.all(np.isfinite(drawn["X"]))


def test_what_is_no_model_is_refused():
    with pytest.raises(nz.InputError, match="model: got int"):
        simulate(3)


@pytest.mark.statistical
def test_moments_of_X():
    n = size(20_000, 200_000)
    model = nz.gamma_nmf(None, 3, shape=(4, n), alpha_w=50.0, mean_w=2.0, alpha_h=2.0, mean_h=0.5)
    drawn = simulate(model, random_seed=1)
    mean = drawn["W"].values.sum(axis=1) * 0.5
    variance = mean + (drawn["W"].values ** 2).sum(axis=1) * 0.5**2 / 2.0
    X = drawn["X"].values
    assert np.all(np.abs(X.mean(axis=1) - mean) < 5 * np.sqrt(variance / n))
    np.testing.assert_allclose(X.var(axis=1), variance, rtol=5 * np.sqrt(8 / n))


def test_draws_beyond_all_numbers_are_refused():
    """An inverse gamma of this shape is above 1e308 about as often as not."""
    with (
        pytensor.config.change_flags(mode="NUMBA"),
        pytest.raises(nz.InputError, match=r"draws are beyond all numbers; expected draws that float64 holds"),
    ):
        nz.simulate(nz.is_nmf(None, 1, shape=(3, 20), alpha_h=0.001, alpha_w=2.0), random_seed=1)
