"""EM and VB of gamma chains: monotone, stationary, best of their family, below the evidence; planted errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import digamma, gammaln

from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.smooth import em, vb
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure.chains.gamma_chain import log_beta_prime
from tests.planted import plant
from tests.statistical.smooth_evidence import COUNTS, W_LAW, log_evidence, log_gamma_chain
from tests.statistical.smooth_geweke import forget_the_draw_before
from tests.statistical.smooth_geweke import gamma_chain as chain
from tests.structures import gamma, model, unknown

RNG = np.random.default_rng(5)
F, K, N = 5, 2, 8
TRUTH = RNG.gamma(2.0, 1.0, (F, K)), np.exp(np.cumsum(0.3 * RNG.normal(size=(K, N)), axis=1))
X = RNG.poisson(3.0 * TRUTH[0] @ TRUTH[1]).astype(float)
MASK = RNG.random((F, N)) < 0.8
MASK[:, 3] = False  # a missing time
OFFSETS = {"exposure": RNG.uniform(0.5, 2.0, (F, N)), "background": RNG.uniform(0.1, 0.5, (F, N))}
PRIOR = chain([[3.0], [8.0]], [[2.0], [9.0]], 0.9, (2.0, 1.5))
W_PRIOR = gamma(np.array([[1.5, 0.7]]), 0.8)
MODELS = {
    "plain": model(X, K, W_PRIOR, PRIOR),
    "offsets, missing": model(X, K, W_PRIOR, PRIOR, mask=MASK, **OFFSETS),
    "W known": model(X, K, TRUTH[0], PRIOR),
    "one time": model(X[:, :1], K, W_PRIOR, PRIOR),
    "two times": model(X[:, :2], K, W_PRIOR, PRIOR),
    "W flat": model(X, K, None, PRIOR),
}
OF_EACH = unknown("b", "flat", variable_shape=(2,), shape=(2, 1))
FREE = model(
    X,
    K,
    W_PRIOR,
    chain(
        unknown("a", "flat"),
        unknown("b", "flat", variable_shape=(2,), shape=(2, 1)),
        unknown("c", "flat"),
        (2.0, unknown("r", "flat")),
    ),
)


def test_the_density_is_that_of_two_gamma_draws():
    """z integrated out by quadrature, and SciPy's beta prime."""
    for before, after, a_z, a_h, beta in ((0.3, 1.2, 1.5, 0.7, 2.0), (4.0, 0.01, 0.4, 3.0, 0.5)):
        u = np.linspace(-60.0, 40.0, 20_001)  # log z
        of_z, of_h = stats.gamma(a_z, scale=1 / (beta * before)), stats.gamma(a_h, scale=np.exp(-u))
        direct = integrate.trapezoid(np.exp(of_z.logpdf(np.exp(u)) + of_h.logpdf(after) + u), u)
        found = log_beta_prime(np.array(after), np.array(beta * before), np.array(a_h), np.array(a_z))
        assert found == pytest.approx(np.log(direct), abs=1e-8)
        assert found == pytest.approx(stats.betaprime.logpdf(after, a_h, a_z, scale=beta * before), abs=1e-10)


# -- EM ----------------------------------------------------------------------------------------------------------------


def fitted(structure, options=None, steps=400, seed=3):
    """The last state, the objectives and the last residual."""
    problem = em.prepare(structure, options or EM(mode="log"), SERIAL)
    state, found = em.init(problem, seed_key(seed), {}), []
    for _ in range(steps):
        state, info = em.step(problem, state)
        found.append(info.objective)
    return state, np.array(found), info.residual


def log_joint(structure, W, Ht, mode="log"):
    """In the logarithms where the mode is that of theirs; written with the structure alone."""
    total = structure.log_joint({"W": W, "H": Ht.T})
    return total + (np.log(Ht).sum() + (0.0 if structure.W.prior.family != "gamma" else np.log(W).sum())) * (
        mode == "log"
    )


def slopes(structure, state, mode="log"):
    """d log joint / d log cells of H and of W, by central differences."""
    found = []
    for which in (1,) if structure.W.is_fixed else (0, 1):
        for at in np.ndindex(state[which].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [state.W.copy(), state.Ht.copy()]
                moved[which][at] *= np.exp(sign * 1e-5)
                ends.append(log_joint(structure, *moved, mode))
            found.append((ends[0] - ends[1]) / 2e-5)
    return np.array(found)


@pytest.mark.parametrize("accelerate", ["newton", None])
@pytest.mark.parametrize("name", MODELS)
def test_em_never_loses_and_stops_where_the_density_is_flat(name, accelerate):
    structure = MODELS[name]
    state, objective, residual = fitted(
        structure, EM(mode="log", accelerate=accelerate), 3_000 if accelerate is None else 800
    )
    assert np.max(np.diff(objective)) <= 1e-9 * np.abs(objective[-1])
    assert residual < 1e-3
    assert np.max(np.abs(slopes(structure, state))) < 1e-2
    if name != "W flat":
        assert objective[-1] == pytest.approx(-log_joint(structure, state.W, state.Ht), rel=1e-10)


def test_em_of_a_density_with_a_maximum():
    """Shapes as large as the series is long: the mode of the density itself."""
    structure = model(X, K, gamma(1.5, 0.8), chain(9.0, 12.0, 1.0, (8.0, 8.0)))
    assert em.supports(structure, EM())
    state, objective, _ = fitted(structure, EM(), 800)
    assert np.max(np.diff(objective)) <= 1e-9 * np.abs(objective[-1])
    assert np.max(np.abs(slopes(structure, state, "density"))) < 1e-2


def test_a_density_without_a_maximum_is_refused():
    """And rises without a bound, where it is."""
    structure = model(X, K, gamma(1.5, 0.8), PRIOR)
    reason = em.supports(structure, EM()).reason
    assert "no maximum" in reason
    assert 'EM(mode="log")' in reason
    found = []
    for fall in (1e-10, 1e-100):
        H = TRUTH[1] * np.array([[1.0], [fall]])
        found.append(structure.log_joint({"W": TRUTH[0], "H": H}))
    # the shape of the first time is 2, and each of the other times has a factor of one over the size of the row
    assert found[1] - found[0] == pytest.approx((N - 2) * 90 * np.log(10), rel=1e-6)
    assert "no maximum" in em.supports(FREE, EM(mode="log")).reason


def test_a_forgotten_next_time_is_seen(monkeypatch):
    """The planted error: what z says of the time before it is left out."""

    def wrong(right):
        def without(prior, auxiliary, values):
            shape, rate = right(prior, auxiliary, values)
            rate[:-1] -= prior.law(values)[2] * auxiliary
            return shape, rate

        return without

    plant(monkeypatch, "EM of smooth chains: law of activations", wrong)
    state, objective, _ = fitted(MODELS["plain"], EM(mode="log", accelerate=None), 200)
    assert np.max(np.diff(objective)) > 1e-3 or np.max(np.abs(slopes(MODELS["plain"], state))) > 0.1


# -- VB ----------------------------------------------------------------------------------------------------------------


def climbed(structure, options=None, steps=400):
    """(the last state, the bounds)"""
    problem = vb.prepare(structure, options or VB(), SERIAL)
    state, bounds = vb.init(problem, seed_key(3), {}), []
    for _ in range(steps):
        state, info = vb.step(problem, state)
        bounds.append(info.objective)
    return state, np.array(bounds)


LAW = 2.5, 1.8, 0.7, 1.5, 0.9
TWO = model(COUNTS, 1, gamma(*W_LAW), chain(*LAW[:3], LAW[3:]))


def bound_at(logs):
    """The bound of gammas q(w), q(h_1), q(h_2), q(z), the sources known, written anew from expectations."""
    shape, rate = np.exp(logs).reshape(2, 4)
    mean, log = shape / rate, digamma(shape) - np.log(rate)
    entropy = shape - np.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)
    a_z, a_h, beta, a, b = LAW
    w, first, second, z = range(4)

    def expected(v, s, log_r, r):
        return s * log_r - gammaln(s) + (s - 1) * log[v] - r * mean[v]

    total = expected(w, W_LAW[0], np.log(W_LAW[1]), W_LAW[1]) + expected(first, a, np.log(b), b)
    total += expected(z, a_z, np.log(beta) + log[first], beta * mean[first]) + expected(second, a_h, log[z], mean[z])
    for x, h in zip(COUNTS[0], (first, second), strict=True):
        total += x * (log[w] + log[h]) - mean[w] * mean[h] - gammaln(x + 1)
    return total + entropy.sum()


def test_the_bound_is_the_best_of_its_family_and_below_the_exact_evidence():
    exact = log_evidence(lambda first, second: log_gamma_chain(first, second, *LAW))
    _, bounds = climbed(TWO)
    best = max(
        -optimize.minimize(lambda logs: -bound_at(logs), start, method="BFGS", options={"gtol": 1e-8}).fun
        for start in (np.zeros(8), np.full(8, 0.5))
    )
    assert bounds[-1] == pytest.approx(best, abs=1e-6)
    assert exact - 1.0 < bounds[-1] < exact


@pytest.mark.parametrize("accelerate", ["momentum", None])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "W flat"])
def test_the_bound_never_falls(name, accelerate):
    _, bounds = climbed(MODELS[name], VB(accelerate=accelerate))
    assert np.min(np.diff(bounds)) > -1e-9 * np.abs(bounds[-1])


def test_free_hyperparameters_raise_the_bound():
    """Known ones at the values that were found have the same bound, and others a lower one."""
    state, bounds = climbed(FREE, steps=400)
    assert np.min(np.diff(bounds)) > -1e-8 * np.abs(bounds[-1])
    found = {name: float(value) if value.ndim == 0 else value[:, None] for name, value in state.values.items()}
    a, b, c, r = (found[name] for name in "abcr")
    at_found = climbed(model(X, K, W_PRIOR, chain(a, b, c, (2.0, r))), steps=400)[1][-1]
    assert at_found == pytest.approx(bounds[-1], abs=0.05)
    for other in ((2 * a, b, c, r), (a, b, 1.5 * c, r), (a, b, c, 3 * r)):
        assert climbed(model(X, K, W_PRIOR, chain(*other[:3], (2.0, other[3]))), steps=400)[1][-1] < bounds[-1] - 0.05


def test_a_bound_of_a_wrong_z_is_seen(monkeypatch):
    """The planted error: q(z) without the shape of the draw before; the bound falls, or ends lower."""
    right = climbed(MODELS["plain"])[1][-1]
    plant(monkeypatch, "VB of smooth chains: law of auxiliaries", forget_the_draw_before)
    assert climbed(MODELS["plain"], VB(accelerate=None))[1][-1] < right - 0.05


def test_what_vb_refuses():
    words = {
        "without a prior of W": MODELS["W flat"],
        "has a prior, and of a chain VB takes": model(X, K, W_PRIOR, chain(unknown("a", "gamma", 2.0, 1.0), 2.0)),
        "of W is unknown": model(X, K, gamma(2.0, unknown("r", "flat")), PRIOR),
        "no chain in time": model(X, K, W_PRIOR, gamma(2.0, 1.0)),
    }
    for expected, structure in words.items():
        assert expected in vb.supports(structure, VB()).reason
    for options in (VB(order="paisley"), VB(start="nndsvd"), VB(precision="float32")):
        assert "is for independent columns" in vb.supports(MODELS["plain"], options).reason
