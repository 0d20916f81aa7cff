"""Unknown scales moved with their factor: the density along the line is that of the whole model, and who takes part."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.shared.slice_sampling import draw_scale_moves, log_density_along, scales_of
from tests.structures import gamma, inverse_gamma, model, unknown, unknown_beside

RNG = np.random.default_rng(3)
X, P = RNG.poisson(4.0, (3, 4)), RNG.exponential(4.0, (3, 4))
K = 2
MEAN = unknown("m", "gamma", 2.0, 3.0)
RATES = unknown("r", "lognormal", 0.2, 0.7, variable_shape=(K,), shape=(K, 1))
MEANS = unknown("v", "inverse_gamma", 3.0, 2.0, variable_shape=(1, K))
SCALE = unknown("s", "half_normal", 2.0)
MODELS = {
    "mean of H": model(X, K, gamma([[0.5, 2.0]], 0.8), gamma([[1.6], [0.7]], mean=MEAN)),
    "rates of H by component": model(X, K, gamma(0.5, 0.8), gamma(1.3, RATES), exposure=[[1.0, 2.0, 0.5, 1.0]]),
    "means of W by component": model(X, K, gamma(0.5, mean=MEANS), gamma([[1.6], [0.7]], [[1.0], [2.0]])),
    "means of both": model(X, K, gamma(0.5, mean=MEANS), gamma(1.2, RATES)),
    "mean of H, W free": model(X, K, None, gamma(1.6, mean=MEAN)),
    "scale of powers": model(P, K, inverse_gamma(2.5, 1.5), inverse_gamma(1.3, SCALE), kind="exponential"),
    "scale of powers, W": model(
        P, K, inverse_gamma(1.5, SCALE), inverse_gamma([[2.0], [3.0]], 1.2), kind="exponential"
    ),
}


def values_of(structure):
    values = {name: RNG.gamma(4.0, 0.3, own.variable_shape) for name, own in structure.unknowns.items()}
    return RNG.gamma(2.0, size=structure.W.shape), RNG.gamma(2.0, size=structure.H.shape), values


@pytest.mark.parametrize("name", MODELS)
def test_the_density_along_the_line_is_the_models(name):
    """Up to a constant, with the change of volume of W, H and the unknown."""
    structure = MODELS[name]
    W, H, values = values_of(structure)
    for scale in scales_of(structure):
        unknown, of, direction = scale
        log_density = log_density_along(structure, scale, W, H, values)

        def whole(log_c, unknown=unknown, of=of, direction=direction):
            s = np.broadcast_to(log_c.ravel(), K) * (1 if of == 0 else -1)
            moved = values | {unknown.name: values[unknown.name] * np.exp(direction * log_c)}
            moved |= {"W": W * np.exp(s), "H": H * np.exp(-s)[:, None]}
            volume = len(W) * s.sum() - H.shape[1] * s.sum() + direction * log_c.sum()
            return structure.log_joint(moved) + volume

        steps = [RNG.normal(0.0, 0.7, unknown.variable_shape) for _ in range(4)]
        ours = [float(np.sum(log_density(step) - log_density(np.zeros_like(step)))) for step in steps]
        theirs = [whole(step) - whole(np.zeros_like(step)) for step in steps]
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_move_keeps_the_product_and_moves_the_unknown_with_its_factor(name):
    structure = MODELS[name]
    W, H, values = values_of(structure)
    product, before, W_before = W @ H, dict(values), W.copy()
    for c in draw_scale_moves(structure, W, H, values, np.random.default_rng(1)):
        assert c.shape == (K,)
        W *= c
        H /= c[:, None]
    np.testing.assert_allclose(W @ H, product, rtol=1e-12)
    assert not np.allclose(W, W_before)
    assert all(
        not np.allclose(values[scale.unknown.name], before[scale.unknown.name]) for scale in scales_of(structure)
    )


NONE = {
    "a shape": model(X, K, gamma(0.5, 0.8), gamma(MEAN, 1.0)),
    "one mean of both": model(X, K, gamma(0.5, mean=MEAN), gamma(1.2, mean=MEAN)),
    "shape and rate at once": model(X, K, gamma(0.5, 1.0), gamma(MEAN, MEAN)),
    "means by sample": model(
        X, K, gamma(0.5, 1.0), gamma(1.2, mean=unknown("n", "gamma", 2.0, 2.0, variable_shape=(4,), shape=(1, 4)))
    ),
    "means of some components": model(
        X,
        K,
        gamma(0.5, 1.0),
        gamma(1.2, mean=unknown_beside("n", "gamma", 2.0, 2.0, known=[*[[1.5]] * (K - 1), [np.nan]])),
    ),
    "W known": model(X, K, RNG.gamma(2.0, size=(3, K)), gamma(1.2, mean=MEAN)),
    "nothing unknown": model(X, K, gamma(0.5, 1.0), gamma(1.2, 1.0)),
}


@pytest.mark.parametrize("name", NONE)
def test_who_takes_no_part(name):
    assert scales_of(NONE[name]) == []
