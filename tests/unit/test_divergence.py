"""The divergence of gamma distributions: the textbook's formula, and its limits where that one has lost its digits."""

import numpy as np
import pytest
from scipy.special import gammaln, polygamma, psi

from nmf_zoo.inference.shared.hyperparameters import LARGE, gamma_divergence

RNG = np.random.default_rng(5)


def textbook(q_shape, q_rate, shape, rate):
    rise = gammaln(q_shape) - gammaln(shape)
    return (q_shape - shape) * psi(q_shape) - rise + shape * np.log(q_rate / rate) + q_shape * (rate / q_rate - 1.0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 0.9 * LARGE, 1.1 * LARGE, 1e6])
def test_it_is_the_textbooks(scale):
    shape, rate = scale * RNG.gamma(2.0, 1.0, (1, 3)), RNG.gamma(2.0, 1.0, (5, 1))
    q_shape, q_rate = shape + RNG.gamma(1.0, 5.0, (5, 3)), rate + RNG.gamma(1.0, 1.0, (1, 3))
    parameters = q_shape, q_rate, shape, rate
    np.testing.assert_allclose(gamma_divergence(*parameters), textbook(*parameters), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("shape", [1e5, 1e8, 1e12])
def test_near_itself_it_is_the_fisher_metric(shape):
    steps, drifts = np.array([[0.0, 1e-3, -2e-3]]) * np.sqrt(shape), np.array([[0.0], [1e-3]]) / np.sqrt(shape)
    found = gamma_divergence(shape + steps, 0.7 * (1.0 + drifts), np.array(shape), np.array(0.7))
    quadratic = 0.5 * (polygamma(1, shape) * steps**2 - 2.0 * steps * drifts + shape * drifts**2)
    rounding = 1e-15 * np.max(np.abs(steps)) * np.log(shape)  # of the largest terms left: no formula has fewer
    np.testing.assert_allclose(found, quadratic, rtol=1e-4, atol=rounding)
    assert found[0, 0] == 0.0
    if shape == 1e12:
        naive = textbook(shape + steps, 0.7, shape, 0.7)
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(naive, quadratic[:1], rtol=1e-4, atol=rounding)
