"""Coordinates of positive numbers against NumPy's logaddexp and expm1."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from nmf_zoo.kernels.numerics.special import fast_exp, to_free, to_plain

U = np.concatenate([np.linspace(-690, 690, 9_973), np.linspace(-6, 6, 9_967), [0.0, -0.0, 1e-300]])[None]
SCALE = np.geomspace(1e-3, 1e3, U.size)[None]


def test_fast_exp():
    values = np.array([fast_exp(x) for x in U[0]])
    np.testing.assert_allclose(values, np.exp(U[0]), rtol=5e-16)
    assert [fast_exp(x) for x in (-1e4, 1e4)] == [fast_exp(-700.0), fast_exp(700.0)]


def test_values_and_slopes():
    v, slope = np.empty_like(U), np.empty_like(U)
    to_plain(v, slope, U, SCALE)
    np.testing.assert_allclose(v, SCALE * np.logaddexp(0.0, U), rtol=2e-15)
    np.testing.assert_allclose(slope, SCALE * expit(U), rtol=2e-15)


def test_there_and_back():
    v, slope, u, slope_back = (np.empty_like(U) for _ in range(4))
    to_plain(v, slope, U, SCALE)
    to_free(u, slope_back, v, SCALE)
    np.testing.assert_allclose(u, U, rtol=1e-14, atol=5e-15)
    np.testing.assert_allclose(slope_back, slope, rtol=3e-14)


def test_beyond_the_range_all_stay_positive_numbers():
    u, v, slope = np.array([[-1e308, -800.0, 800.0, 1e300]]), np.empty((1, 4)), np.empty((1, 4))
    to_plain(v, slope, u, np.ones((1, 4)))
    assert np.isfinite([v, slope]).all()
    assert np.min([v, slope]) > 0
