"""EM with conjugate hyperpriors: joint modes of W, H and rates or means, against PyMC, SciPy and Tan and Fevotte."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from scipy.optimize import minimize
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.reading.check import UNCOMPILED
from tests.planted import plant
from tests.runs import fit, largest_loss
from tests.structures import gamma, model, unknown
from tests.tan_fevotte import tan_fevotte

RNG = np.random.default_rng(8)
F, N, K = 6, 7, 2
X = RNG.poisson(RNG.gamma(0.7, 1.0, (F, K)) @ RNG.gamma(0.7, 3.0, (K, N))) + (RNG.random((F, N)) < 0.2)
X[np.arange(F), np.arange(F)] += 1
X[0, F] += 2


def by_row(name, kind, *args):
    return unknown(name, kind, *args, variable_shape=(F,), shape=(F, 1))


def by_column(name, kind, *args):
    return unknown(name, kind, *args, variable_shape=(N,))


def relevance(shape):
    return unknown("t", "inverse_gamma", 4.0, 2.0, variable_shape=(K,), shape=shape)


MODELS = {
    "rates of rows and columns": model(
        X, K, gamma(1.0, by_row("u", "gamma", 0.4, 0.5)), gamma(1.6, by_column("v", "gamma", 1.2, 0.7))
    ),
    "one rate of both": model(
        X, K, gamma(1.8, unknown("u", "gamma", 1.5, 2.0)), gamma(1.3, unknown("u", "gamma", 1.5, 2.0))
    ),
    "relevances": model(X, K, gamma(1.0, mean=relevance((1, K))), gamma(1.0, mean=relevance((K, 1)))),
    "a mean, shapes of cells": model(
        X, K, gamma(RNG.uniform(1.0, 2.0, (F, K)), mean=unknown("m", "inverse_gamma", 3.0, 1.5)), gamma(1.7, 1.1)
    ),
    "a factor without a prior": model(X, K, None, gamma(1.5, by_column("v", "gamma", 1.2, 0.7))),
    "columns that sum to one": model(X, K, None, gamma(1.0, by_column("v", "gamma", 1.2, 0.7))),
    "a known factor": model(X, K, RNG.gamma(1.0, size=(F, K)), gamma(1.5, by_column("v", "gamma", 1.2, 0.7))),
    "normal": model(
        X, K, gamma(1.0, mean=relevance((1, K))), gamma(1.0, mean=relevance((K, 1))), kind="normal", sigma=1.5
    ),
}


@pytest.mark.parametrize("accelerate", ["newton", "momentum", None])
@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", MODELS)
def test_the_objective_never_rises(name, mode, accelerate):
    options = em.EM(mode=mode, accelerate=accelerate)
    if not em.supports(MODELS[name], options):
        assert (name, mode) == ("normal", "log")
        return
    *_, objective = fit(em, MODELS[name], options, 300)
    assert largest_loss(objective, maximise=False) < 1e-9


# -- at the end, PyMC's own density ----------------------------------------------------------------------------------


def relevances_by_hand(data):
    with pm.Model() as by_hand:
        t = pm.InverseGamma("t", 4.0, 2.0, shape=K)
        W = pm.Exponential("W", 1.0 / t, shape=(F, K))
        H = pm.Gamma("H", alpha=2.0, beta=2.0 / t[:, None], shape=(K, N))
        pm.Poisson("X", W @ H, observed=data)
    return by_hand


KNOWN = np.random.default_rng(3).dirichlet(np.ones(F), 2).T
DECLARED = {
    "ard": lambda: nz.gamma_nmf(X, K, prior="ard"),
    "ard, too many": lambda: nz.gamma_nmf(X, K + 3, prior="ard"),
    "ard, sparse": lambda: nz.gamma_nmf(scipy.sparse.csr_array(X), K, prior="ard"),
    "ard beside known": lambda: nz.gamma_nmf(X, K + 2, known=KNOWN, prior="ard"),
    "ard of precisions beside known": lambda: nz.gamma_nmf(
        X, K + 1, known=KNOWN, prior=nz.ARD(cells="half-normal", law="gamma")
    ),
    "hpf, shapes of 1": lambda: nz.gamma_nmf(X, K, prior="hpf", alpha_w=1.0, alpha_h=1.5),
    "hpf": lambda: nz.gamma_nmf(X, K, prior="hpf"),
    "by hand": lambda: relevances_by_hand(X),
}


def point_of(declared, fitted):
    """The fit's point, by variable."""
    posterior = group(fitted, "posterior")
    return {variable.name: posterior[variable.name].to_numpy()[0, 0] for variable in declared.free_RVs}


def as_values(declared, point):
    """A point as PyMC has it, whose value variables are logarithms."""
    return {declared.rvs_to_values[declared[name]].name: np.log(value) for name, value in point.items()}


def gradients(declared, point, mode):
    """By variable, the slopes of the log density in log v."""
    flat = declared.compile_dlogp(jacobian=mode == "log", mode=UNCOMPILED)(as_values(declared, point))
    slopes, first = {}, 0
    for name, value in point.items():
        slopes[name] = flat[first : first + value.size].reshape(value.shape)
        first += value.size
    return slopes


def fitted_map(declared, mode, **options):
    engine = nz.EM(mode=mode, **options)
    return nz.fit(model=declared, engine=engine, search=None, random_seed=2, tol=1e-11, max_iter=20_000, quiet=True)


def is_stationary(declared, fitted, mode):
    """Slopes of 0 relative to the counts, and none that points up where a cell is at 0."""
    point = point_of(declared, fitted)
    slopes = gradients(declared, point, mode)
    inside = max(np.max(np.abs(slope)) for slope in slopes.values())
    upwards = max(np.max((slope / point[name])[point[name] <= FLOOR], initial=-1.0) for name, slope in slopes.items())
    return inside < 1e-5 and upwards < 1e-5


def check_objective(declared, fitted, mode):
    """Raise unless the last one is PyMC's log density at the fit's point."""
    values = as_values(declared, point_of(declared, fitted))
    log_density = float(declared.compile_logp(jacobian=mode == "log", mode=UNCOMPILED)(values))
    objective = group(fitted, "fit")["objective"].dropna("iteration").to_numpy()[0, -1]
    assert -objective == pytest.approx(log_density, rel=1e-9)


@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", DECLARED)
def test_pymcs_gradient_vanishes_at_the_end(name, mode):
    declared = DECLARED[name]()
    if (name, mode) == ("hpf", "density"):  # shapes of 0.3
        with pytest.raises(UnsupportedModel, match=r'shape 0.3 < 1 and is unbounded at 0: use EM\(mode="log"\)'):
            fitted_map(declared, mode)
        return
    fitted = fitted_map(declared, mode)
    assert is_stationary(declared, fitted, mode)
    check_objective(declared, fitted, mode)


@pytest.mark.parametrize("mode", ["density", "log"])
def test_the_gradient_sees_another_hyperparameter(mode, monkeypatch):
    """A planted error: the mode of the other density."""
    other = {"density": "log", "log": "density"}[mode]
    plant(monkeypatch, "EM: modes of hyperparameters", lambda right: lambda found, mode: right(found, other))
    declared = DECLARED["ard"]()
    fitted = nz.fit(model=declared, engine=nz.EM(mode=mode), search=None, random_seed=2, max_iter=2000, quiet=True)
    assert not is_stationary(declared, fitted, mode)


def test_scipy_finds_no_higher_point_nearby():
    """One cell: minus the log density of logarithms in three numbers, by Nelder and Mead from many starts."""
    a, b, x = 3.0, 2.0, 7

    def minus_log_density(z):
        w, h, t = np.exp(z)
        fit_of_x = x * np.log(w * h) - w * h - gammaln(x + 1)
        priors = -w / t - h / t - 2 * np.log(t) - (a + 1) * np.log(t) - b / t + a * np.log(b) - gammaln(a)
        return -(fit_of_x + priors + z.sum())

    own = lambda: unknown("t", "inverse_gamma", a, b, variable_shape=(1,), shape=(1, 1))  # noqa: E731
    one = model([[x]], 1, gamma(1.0, mean=own()), gamma(1.0, mean=own()))
    *_, objective = fit(em, one, em.EM(mode="log"), 3000)
    starts = np.random.default_rng(1).normal(size=(10, 3))
    found = [
        minimize(minus_log_density, z, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000})
        for z in starts
    ]
    assert objective[-1] == pytest.approx(min(end.fun for end in found), abs=1e-8)


# -- Tan and Fevotte -------------------------------------------------------------------------------------------------


def table(seed):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.5, 1.0, (12, 3)) @ rng.gamma(0.5, 20.0, (3, 15))) + 1


def starts(V, rank, seed):
    rng = np.random.default_rng(seed)
    scale = np.sqrt(V.mean() / rank)
    return scale * rng.uniform(0.5, 1.5, (V.shape[0], rank)), scale * rng.uniform(0.5, 1.5, (rank, V.shape[1]))


def ours(V, W, H, t, a, b, iterations, **options):
    """EM of the transposed table, which updates their H first."""
    rank = len(t)
    by_row, by_col = (
        unknown("t", "inverse_gamma", a, b, variable_shape=(rank,), shape=own) for own in ((1, rank), (rank, 1))
    )
    structure = model(V.T, rank, gamma(1.0, mean=by_row), gamma(1.0, mean=by_col))
    start = {"W": H.T, "H": W.T, "t": t}
    _, state, _, objective = fit(em, structure, em.EM(**options), iterations, start=start)
    return state.Ht, state.W.T, state.values["t"], objective


def test_updates_are_tan_and_fevottes():
    V, rank, a, b = table(1), 6, 5.0, 3.0
    W, H = starts(V, rank, 2)
    t = np.full(rank, 0.7)
    for iterations in (1, 2, 30):
        theirs = tan_fevotte(V, W, H, t, a, b, iterations)
        own = ours(V, W, H, t, a, b, iterations, accelerate=None, inner=None)
        for one, other in zip(own[:3], theirs[:3], strict=True):
            np.testing.assert_allclose(one, np.maximum(other, FLOOR), rtol=1e-8)
        np.testing.assert_allclose(np.diff(own[3]), np.diff(theirs[3]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("accelerate", ["newton", "momentum"])
def test_faster_steps_end_at_the_same_optimum(accelerate):
    V, rank, a, b = table(1), 5, 5.0, 3.0
    W, H = starts(V, rank, 2)
    t = np.full(rank, 0.7)
    *_, theirs, costs = tan_fevotte(V, W, H, t, a, b, 20_000)
    *_, own, objective = ours(V, W, H, t, a, b, 3000, accelerate=accelerate)
    np.testing.assert_allclose(np.sort(own), np.sort(theirs), rtol=1e-4)
    constant = objective[-1] - costs[-1]
    *_, plain = ours(V, W, H, t, a, b, 1, accelerate=None, inner=None)
    assert plain[-1] - costs[0] == pytest.approx(constant, abs=1e-5 * abs(costs[-1]))


REFUSED = {
    "free beside a prior": (gamma(unknown("s", "flat"), by_row("u", "gamma", 2.0, 1.0)), "s is unknown"),
    "log-normal": (gamma(1.0, by_row("u", "lognormal", 0.0, 1.0)), "not one of the conjugate ones"),
    "of a shape": (gamma(by_row("u", "gamma", 2.0, 1.0), 1.0), "not one of the conjugate ones"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", ["density", "log"])
def test_what_has_no_mode_in_closed_form_is_refused(name, mode):
    prior, words = REFUSED[name]
    verdict = em.supports(model(X, K, prior, gamma(1.0, 1.0)), em.EM(mode=mode))
    assert words in verdict.reason
    assert "\n" not in verdict.reason
