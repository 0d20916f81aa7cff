"""Half-normal factors in EM: updates against closed forms, PyMC's own density at the end, Tan and Fevotte's l2-ARD."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from scipy.optimize import minimize

import nmf_zoo as nz
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.shared.multiplicative import FLOOR, root_of_quadratic
from nmf_zoo.structure import Cells
from tests.oracle.test_map_of_hierarchies import check_objective, fitted_map, is_stationary
from tests.planted import plant, put
from tests.runs import fit, largest_loss
from tests.structures import gamma, half_normal, model, unknown
from tests.tan_fevotte import tan_fevotte_l2

RNG = np.random.default_rng(8)
F, N, K = 6, 7, 2
X = RNG.poisson(RNG.gamma(0.7, 1.0, (F, K)) @ RNG.gamma(0.7, 3.0, (K, N)))
X[np.arange(F), np.arange(F)] += 1
X[0, F] += 2
LISTED = Cells(rows=np.nonzero(X)[0], cols=np.nonzero(X)[1], values=X[X > 0] + 0.0, shape=(F, N), is_complete=True)
MASK = RNG.random((F, N)) < 0.9


def relevance(role, kind, shape):
    return half_normal(**{role: unknown("t", kind, 4.0, 2.0, variable_shape=(K,), shape=shape)})


SIGMAS = RNG.uniform(0.5, 2.0, (F, K))
MODELS = {
    "known sigmas": model(X, K, half_normal(SIGMAS), half_normal([[0.7], [2.0]])),
    "with a background": model(X, K, half_normal(SIGMAS), half_normal(1.5), background=np.full((F, N), 0.4)),
    "incomplete, with an exposure": model(
        X, K, half_normal(1.0), half_normal(3.0), mask=MASK, exposure=[[0.5], [2.0]] * 3
    ),
    "listed cells": model(X, K, half_normal(SIGMAS), half_normal([[0.7], [2.0]]), data=LISTED),
    "listed cells, beside a gamma factor": model(X, K, half_normal(SIGMAS), gamma(1.6, 0.7), data=LISTED),
    "beside a gamma factor": model(X, K, half_normal(SIGMAS), gamma(1.6, 0.7)),
    "beside a known factor": model(X, K, RNG.gamma(1.0, size=(F, K)), half_normal(1.5)),
    "beside one without a prior": model(X, K, None, half_normal(1.5)),
    "variances of both": model(
        X, K, relevance("variance", "inverse_gamma", (1, K)), relevance("variance", "inverse_gamma", (K, 1))
    ),
    "precisions of both": model(X, K, relevance("precision", "gamma", (1, K)), relevance("precision", "gamma", (K, 1))),
    "one relevance of either form": model(
        X,
        K,
        relevance("variance", "inverse_gamma", (1, K)),
        gamma(1.0, mean=unknown("t", "inverse_gamma", 4.0, 2.0, variable_shape=(K,), shape=(K, 1))),
    ),
    "normal": model(X, K, half_normal(SIGMAS), half_normal(2.0), kind="normal", sigma=1.5),
    "normal, incomplete": model(X, K, half_normal(SIGMAS), gamma(1.0, 0.8), mask=MASK, kind="normal", sigma=1.5),
    "normal, variances of both": model(
        X,
        K,
        relevance("variance", "inverse_gamma", (1, K)),
        relevance("variance", "inverse_gamma", (K, 1)),
        kind="normal",
        sigma=0.7,
    ),
}


@pytest.mark.parametrize("accelerate", ["newton", "momentum", None])
@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", MODELS)
def test_the_objective_never_rises(name, mode, accelerate):
    options = em.EM(mode=mode, accelerate=accelerate)
    if not em.supports(MODELS[name], options):
        assert (name.partition(",")[0], mode) == ("normal", "log")
        return
    *_, objective = fit(em, MODELS[name], options, 200)
    assert largest_loss(objective, maximise=False) < 1e-9


def test_a_cell_goes_to_the_peak_of_its_minorant():
    numerator, denominator, curve = RNG.gamma(1.0, size=(3, 40)) * 10.0 ** RNG.uniform(-8, 8, (3, 40))
    root = root_of_quadratic(numerator, denominator, curve)
    np.testing.assert_allclose(curve * root**2 + denominator * root, numerator, rtol=1e-12)
    assert root_of_quadratic(np.zeros(1), np.ones(1), np.ones(1)) == 0


def test_a_curve_that_is_forgotten_is_seen(monkeypatch):
    """A planted error."""
    put(
        monkeypatch,
        "EM: updates",
        lambda side, mode, old, numerator, denominator, *rest: (numerator / denominator, 1.0),
    )
    *_, objective = fit(em, MODELS["known sigmas"], em.EM(accelerate=None), 200)
    assert largest_loss(objective, maximise=False) > 1e-9


# -- at the end, PyMC's own density ----------------------------------------------------------------------------------


def by_hand(data, declare_x=None, **prior):
    """W and H with a half-normal prior, as one would write it."""
    with pm.Model() as found:
        own = {role: value() if callable(value) else value for role, value in prior.items()}
        turned = {role: value[:, None] for role, value in own.items()}
        W = pm.HalfNormal("W", **own, shape=(F, K))
        H = pm.HalfNormal("H", **turned, shape=(K, N))
        if declare_x is None:
            pm.Poisson("X", W @ H, observed=data)
        else:
            declare_x(W @ H)
    return found


def variances():
    return pm.math.sqrt(pm.InverseGamma("t", 4.0, 2.0, shape=K))


DECLARED = {
    "sigmas": lambda: by_hand(X, sigma=np.array([0.7, 2.0])),
    "variances": lambda: by_hand(X, sigma=variances),
    "precisions": lambda: by_hand(X, tau=lambda: pm.Gamma("t", 4.0, 2.0, shape=K)),
    "normal data": lambda: by_hand(X, lambda mean: pm.Normal("X", mean, np.float64(1.5), observed=X), sigma=variances),
    "sparse": lambda: nz.poisson_nmf(scipy.sparse.csr_array(X), K, sigma_w=1.5, sigma_h=[[0.7], [2.0]]),
}


@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", DECLARED)
def test_pymcs_gradient_vanishes_at_the_end(name, mode):
    declared = DECLARED[name]()
    if (name, mode) == ("normal data", "log"):
        assert not em.supports(nz.read(declared), em.EM(mode=mode))
        return
    fitted = fitted_map(declared, mode)
    assert is_stationary(declared, fitted, mode)
    check_objective(declared, fitted, mode)


def test_scipy_finds_the_same_optimum_of_a_refit():
    """Convex, so that there is one: H half-normal at a known W."""
    W = RNG.gamma(1.0, size=(F, K))
    structure = model(X, K, W, half_normal(1.5))

    def minus_log_density(H):
        mean = W @ H.reshape(K, N)
        return np.sum(mean - X * np.log(mean)) + np.sum(H**2) / (2 * 1.5**2)

    start = np.ones(K * N)
    best = minimize(minus_log_density, start, method="L-BFGS-B", bounds=[(1e-12, None)] * start.size, tol=1e-15)
    for accelerate in ("newton", "momentum"):
        _, state, *_ = fit(em, structure, em.EM(accelerate=accelerate), 500)
        assert minus_log_density(state.Ht.T.ravel()) <= best.fun + 1e-6
        np.testing.assert_allclose(state.Ht.T.ravel(), best.x, atol=2e-3)


REFITS = {
    "H": model(X, K, RNG.gamma(1.0, size=(F, K)), half_normal([[0.4], [2.0]]), background=np.full((F, N), 0.3)),
    "W, of listed cells": model(X, K, half_normal(SIGMAS), RNG.gamma(1.0, size=(K, N)), data=LISTED),
    "H, incomplete": model(X, K, RNG.gamma(1.0, size=(F, K)), half_normal(1.5), mask=MASK, exposure=[[0.5], [2.0]] * 3),
    "H, normal": model(X, K, RNG.gamma(1.0, size=(F, K)), half_normal(0.7), kind="normal", sigma=1.5),
    "H, normal, incomplete": model(
        X, K, RNG.gamma(1.0, size=(F, K)), half_normal([[0.4], [2.0]]), mask=MASK, kind="normal", sigma=1.5
    ),
}


def gap_after(name, mode, iterations, **options):
    problem, state, info, _ = fit(em, REFITS[name], em.EM(mode=mode, **options), iterations)
    return info.objective, float(em.finish(problem, state, None, 1)[1]["duality_gap"])


@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("name", REFITS)
def test_the_gap_holds_what_a_fit_lacks_and_closes(name, mode):
    if "normal" in name and mode == "log":
        assert not em.supports(REFITS[name], em.EM(mode=mode))
        return
    best, at_end = gap_after(name, mode, 2000)
    assert -1e-9 * abs(best) < at_end < 1e-6
    for iterations in (1, 3, 10):
        objective, gap = gap_after(name, mode, iterations, accelerate=None)
        assert gap >= objective - best - 1e-9 * abs(best)
        assert gap > 1e-7


@pytest.mark.parametrize("name", REFITS)
def test_a_gap_of_half_the_precision_is_seen(name, monkeypatch):
    """A planted error: it does not close."""
    plant(
        monkeypatch,
        "EM: least of a cell in the dual",
        lambda right: lambda slope, curve, power=0.0: right(slope, curve / 2, power),
    )
    assert gap_after(name, "density", 2000)[1] > 1e-3


# -- Tan and Fevotte -------------------------------------------------------------------------------------------------


def test_updates_are_tan_and_fevottes():
    rng = np.random.default_rng(1)
    V, rank, a, b = rng.poisson(rng.gamma(0.5, 1.0, (12, 3)) @ rng.gamma(0.5, 20.0, (3, 15))) + 1, 6, 5.0, 3.0
    W, H, t = rng.uniform(0.5, 1.5, (12, rank)), rng.uniform(0.5, 1.5, (rank, 15)), np.full(rank, 0.7)
    own = (
        half_normal(variance=unknown("t", "inverse_gamma", a, b, variable_shape=(rank,), shape=shape))
        for shape in ((1, rank), (rank, 1))
    )
    structure = model(V.T, rank, *own)
    start = {"W": H.T, "H": W.T, "t": t}
    for iterations in (1, 2, 30):
        theirs = tan_fevotte_l2(V, W, H, t, a, b, iterations)
        _, state, *_ = fit(em, structure, em.EM(accelerate=None, inner=None), iterations, start=start)
        for one, other in zip((state.Ht, state.W.T, state.values["t"]), theirs, strict=True):
            np.testing.assert_allclose(one, np.maximum(other, FLOOR), rtol=1e-8)


REFUSED = {
    "log-normal": (half_normal(unknown("u", "lognormal", 0.0, 1.0)), "not one of the conjugate ones"),
    "of a variance": (half_normal(variance=unknown("u", "gamma", 2.0, 1.0)), "inverse-gamma priors of variances"),
    "free": (half_normal(unknown("u", "flat")), "estimated jointly with the factors it has no maximum"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_mode_in_closed_form_is_refused(name):
    prior, words = REFUSED[name]
    verdict = em.supports(model(X, K, prior, gamma(1.0, 1.0)), em.EM())
    assert words in verdict.reason
    assert "\n" not in verdict.reason


def test_a_rate_whose_density_has_no_mode_is_refused():
    """Gamma(0.3) and one half-normal cell each: the shape of the conditional is 0.8."""
    with pm.Model():
        tau = pm.Gamma("tau", 0.3, 1.0, shape=(4, 1))
        W = pm.HalfNormal("W", tau=tau, shape=(4, 1))
        H = pm.HalfNormal("H", 1.0, shape=(1, 5))
        pm.Poisson("X", W @ H, observed=np.arange(20).reshape(4, 5))
        with pytest.raises(nz.UnsupportedModel, match=r'density of tau is unbounded at 0: use EM\(mode="log"\)'):
            nz.fit(quiet=True)
        assert np.isfinite(nz.fit(engine=nz.EM(mode="log"), quiet=True, max_iter=5)["fit"]["objective"][..., 0]).all()
