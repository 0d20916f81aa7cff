"""EM with slopes of covariates: joint modes of W, H and slopes, against PyMC's density and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.shared.multiplicative import FLOOR
from tests.planted import plant
from tests.runs import fit, largest_loss
from tests.structures import gamma, log_linear, model, unknown

RNG = np.random.default_rng(4)
F, N, K, J = 5, 8, 2, 2
DESIGN = RNG.normal(size=(N, J))
EFFECTS = np.exp(np.array([[0.8, -0.4], [-0.6, 0.5]]) @ DESIGN.T)
X = RNG.poisson(RNG.gamma(1.5, 1.0, (F, K)) @ (RNG.gamma(2.0, 1.5, (K, N)) * EFFECTS)).astype(float)
OF_H = log_linear(gamma(1.7, 0.6), DESIGN, [[0.0], [0.3]], 0.7)
RELEVANCE = {name: unknown("t", "inverse_gamma", 4.0, 2.0, variable_shape=(K,), shape=shape)
             for name, shape in (("w", (1, K)), ("h", (K, 1)))}  # fmt: skip
OF_MEANS = log_linear(gamma(1.4, mean=RELEVANCE["h"]), DESIGN, 0.0, 1.0, transposed=True)

MODELS = {
    "slopes": model(X, K, gamma(1.3, 0.7), OF_H),
    "mask, exposure, background": model(
        X, K, gamma(1.3, 0.7), OF_H, mask=RNG.random((F, N)) < 0.8, exposure=[[0.5]], background=np.full((F, 1), 0.2)
    ),
    "means with a prior": model(X, K, gamma(1.3, mean=RELEVANCE["w"]), OF_MEANS),
    "a known factor": model(X, K, RNG.gamma(1.0, size=(F, K)), OF_H),
    "exponential cells": model(X, K, gamma(1.0, 0.7), log_linear(gamma(1.0, 0.6), DESIGN, 0.0, 1.0)),
}


@pytest.mark.parametrize("accelerate", ["newton", "momentum", None])
@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", MODELS)
def test_the_objective_never_rises(name, mode, accelerate):
    *_, objective = fit(em, MODELS[name], em.EM(mode=mode, accelerate=accelerate), 200)
    assert largest_loss(objective, maximise=False) < 1e-9


def test_shapes_below_one_have_no_density_mode():
    shallow = model(X, K, gamma(1.3, 0.7), log_linear(gamma(0.8, 0.6), DESIGN, 0.0, 1.0))
    refusal = em.supports(shallow, em.EM())
    assert not refusal
    assert refusal.reason == 'the density of H has shape 0.8 < 1 and is unbounded at 0: use EM(mode="log")'
    assert em.supports(shallow, em.EM(mode="log"))


# -- at the end, PyMC's own density ------------------------------------------------------------------------------------


def declared():
    return nz.gamma_nmf(X, K, design=DESIGN, slopes=0.7, alpha_w=1.3, beta_w=0.7, alpha_h=1.7, mean_h=1.7 / 0.6)


def log_density_of(declaration):
    """log p of W, H and slopes in one vector."""
    log_p = declaration.compile_logp(jacobian=False)
    shapes = {"W": (F, K), "H": (K, N), "slopes": (K, J)}
    names = {"W": "W_log__", "H": "H_log__", "slopes": "slopes"}

    def value(vector):
        at, first = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            own = vector[first : first + size].reshape(shape)
            at[names[name]] = own if name == "slopes" else np.log(own)
            first += size
        return float(log_p(at))

    return value


def ends_at(declaration, **options):
    run = {"engine": em.EM(), "search": None, "max_iter": 2_000, "tol": 1e-12, "random_seed": 1, "quiet": True}
    fitted = nz.fit(model=declaration, **{**run, **options})
    point = {name: group(fitted, "posterior")[name].to_numpy()[0, 0] for name in ("W", "H", "slopes")}
    return np.concatenate([point[name].ravel() for name in ("W", "H", "slopes")])


def slope_at_end(declaration, **options):
    """The largest slope of PyMC's log density in logarithms of cells, or in slopes."""
    end, log_p = ends_at(declaration, **options), log_density_of(declaration)
    scale = np.concatenate([end[: -K * J], np.ones(K * J)])
    assert end[: -K * J].min() > 100.0 * FLOOR
    steps = approx_fprime(np.zeros(end.size), lambda t: log_p(end + scale * t), 1e-6)
    back = approx_fprime(np.zeros(end.size), lambda t: log_p(end - scale * t), 1e-6)
    return np.max(np.abs(steps - back)) / 2.0


def test_the_gradient_of_pymc_is_zero_at_the_end():
    assert slope_at_end(declared()) < 1e-3


def test_scipy_finds_nothing_higher():
    """SciPy begins near the end of EM. Long: its gradients are by differences."""
    declaration = declared()
    end, log_p = ends_at(declaration), log_density_of(declaration)

    def objective(vector):
        return -log_p(np.concatenate([np.exp(vector[: -K * J]), vector[-K * J :]]))

    start = np.concatenate([np.log(end[: -K * J]), end[-K * J :]])
    start = start + 0.3 * np.random.default_rng(1).normal(size=start.size)
    found = minimize(objective, start, method="L-BFGS-B", options={"maxiter": 5_000, "maxfun": 10**6, "ftol": 1e-14})
    assert -log_p(end) < found.fun + 1e-6
    np.testing.assert_allclose(end[-K * J :], found.x[-K * J :], atol=2e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda right: lambda structure, H, values: values,
        lambda right: lambda structure, H, values: right(structure, 1.1 * H, values),
    ],
    ids=["slopes that stay", "slopes of another H"],
)
def test_wrong_slopes_are_seen(wrong, monkeypatch):
    plant(monkeypatch, "EM: slopes", wrong)
    assert slope_at_end(declared(), max_iter=300) > 0.1
