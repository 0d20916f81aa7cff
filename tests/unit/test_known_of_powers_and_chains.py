"""Known components of power spectrograms and of series: what engines make of them."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.inference import registry
from nmf_zoo.inference.hmm import exact
from nmf_zoo.inference.powers import em
from nmf_zoo.inference.shared.propriety_of_powers import is_proper
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.powers import composite_bound as naive
from tests.planted import plant, put

F, N = 6, 40
RNG = np.random.default_rng(8)
W = RNG.gamma(1.0, 1.0, (F, 3)) + 0.05
KNOWN = W[:, :2].copy()
KNOWN[2, 0] = 0.0  # a known zero
POWERS = RNG.exponential(np.c_[KNOWN, W[:, 2]] @ RNG.gamma(1.0, 3.0, (3, N)) + 1e-3)
ON = (RNG.random((3, N)) < 0.5).astype(float)
COUNTS = RNG.poisson(20 * np.c_[KNOWN, W[:, 2]] @ ON + 0.3)
SPECTRA = {
    "free": lambda: nz.is_nmf(POWERS, 3, known=KNOWN, alpha_h=1.5, beta_h=2.0),
    "inverse gamma": lambda: nz.is_nmf(POWERS, 3, known=KNOWN, alpha_h=1.5, alpha_w=[2.0], beta_w=0.7),
}


def fit(model, engine, **options):
    return nz.fit(model=model, engine=engine, random_seed=1, quiet=True, search=None, **options)


def assert_known(result, known=KNOWN):
    W, new = (group(result, "posterior")[name].to_numpy() for name in ("W", "W_new"))
    np.testing.assert_array_equal(W[..., :2], np.broadcast_to(known, (*W.shape[:-1], 2)))
    np.testing.assert_array_equal(W[..., 2:], new)


@pytest.mark.engines
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("update", ["auto", "monotone", "sage"])
def test_em_never_rises_and_ends_where_pymc_says_there_is_no_slope(name, update):
    model = SPECTRA[name]()
    result = fit(model, nz.EM(update=update), tol=1e-9, max_iter=3000)
    assert_known(result)
    objective = group(result, "fit")["objective"].to_numpy()[0]
    assert np.all(np.diff(objective[np.isfinite(objective)]) <= 1e-12 * np.abs(objective[0]))
    at = {own: group(result, "posterior")[own].to_numpy()[0, 0] for own in ("W_new", "H")}
    slopes = model.compile_dlogp(vars=[model["W_new"], model["H"]], jacobian=False, mode="FAST_COMPILE")(
        {model.rvs_to_values[model[own]].name: np.log(value) for own, value in at.items()}
    )
    assert np.max(np.abs(slopes)) < 1e-3 * N  # with respect to logarithms


def test_em_that_moves_known_components_is_seen(monkeypatch):
    """Planted: the step of W put in place whole."""
    put(monkeypatch, "EM of powers: known components", lambda side, whole, part: whole * 1.01)
    with pytest.raises(AssertionError):
        assert_known(fit(SPECTRA["free"](), "em", max_iter=5))


@pytest.mark.parametrize("name", SPECTRA)
def test_vb_keeps_them_and_never_falls(name):
    result = fit(SPECTRA[name](), "vb", tol=1e-6)
    assert_known(result)
    assert group(result, "fit")["W_new_rho"].shape == (1, F, 1)
    bound = group(result, "fit")["objective"].to_numpy()[0]
    rises = np.diff(bound[np.isfinite(bound)])
    assert np.all(rises >= -1e-10 * np.abs(bound[0]))


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_gibbs_keeps_them():
    model = SPECTRA["free"]()
    result = nz.sample(20, tune=10, chains=1, start="random", engine="gibbs", random_seed=1, quiet=True, model=model)
    assert_known(result)
    posterior = group(result, "posterior")
    lp = [read(model).log_joint({own: posterior[own].to_numpy()[0, draw] for own in ("W", "H")}) for draw in range(3)]
    np.testing.assert_allclose(group(result, "sample_stats")["lp"].to_numpy()[0, :3], lp)


def test_a_search_is_the_default():
    result = nz.fit(model=SPECTRA["free"](), engine="em", max_iter=30, tol=0, random_seed=1, quiet=True)
    assert group(result, "search").attrs["fits"] == 16
    assert_known(result)


# -- proper or not ---------------------------------------------------------------------------------------------------


def log_likelihood_of_new(w, x, known, n_draws=20_000):
    """log prod_n E p(x_n | known h_1 + w h_2), of one frequency, over draws of h."""
    h = 1.0 / np.random.default_rng(1).gamma(3.0, 1.0, (n_draws, len(x), 2))
    mean = known * h[..., 0] + w * h[..., 1]
    return np.sum(np.log(np.mean(np.exp(-x / mean) / mean, axis=0)))


@pytest.mark.filterwarnings("ignore:(rank. got 2, above|X. 1 feature)")
@pytest.mark.parametrize(
    ("x", "known", "expected"),
    [
        ([1.0, 0.4], 0.5, True),  # more frames than new components, if not more than components
        ([1.0], 0.5, False),
        ([0.0, 0.0], 0.5, True),  # the known component is a floor of zeros
        ([0.0, 0.0], 0.0, False),  # as without it
    ],
)
def test_a_posterior_beside_known_components_is_proper_where_its_integral_is_finite(x, known, expected):
    """By the powers of w with which the likelihood goes to infinity and to 0."""
    x = np.array(x)
    ends = [(1e6, 1e8), (1e-8, 1e-6)]
    far, near = (
        (log_likelihood_of_new(b, x, known) - log_likelihood_of_new(a, x, known)) / np.log(b / a) for a, b in ends
    )
    assert (far < -1.1 and near > -0.9) == expected
    model = nz.is_nmf(np.stack([x, x + 1.0]), 2, known=[[known], [known + 1.0]], alpha_h=3.0)
    assert bool(is_proper(read(model))) == expected


def test_a_free_scale_is_learned_from_new_components_alone():
    result = fit(nz.is_nmf(POWERS, 3, known=KNOWN, alpha_w=2.0, beta_w=nz.free()), "vb", tol=1e-9)
    rho, tau = (group(result, "fit")[f"W_new_{word}"].to_numpy()[0] for word in ("rho", "tau"))
    inverses = [1.0 / naive.means(-2.0, *cell)[1] for cell in zip(rho.ravel(), tau.ravel(), strict=True)]
    expected = 2.0 * F / np.sum(inverses)
    np.testing.assert_allclose(group(result, "posterior")["beta_w"].to_numpy()[0, 0], expected, rtol=1e-5)


def test_known_components_of_h_are_refused_in_one_line():
    import pymc as pm
    import pytensor.tensor as pt

    with pm.Model() as model:
        U = pm.Deterministic("U", pt.concatenate([np.ones((1, N)), pm.InverseGamma("H", 2.0, 1.0, shape=(2, N))]))
        pm.Exponential("X", scale=pm.HalfFlat("V", shape=(F, 3)) @ U, observed=POWERS)
    structure = read(model)
    for entry in registry.named("em", "fit"):
        if registry.fitting([entry], structure) and entry.name == "em" and entry.supports is em.supports:
            reason = registry.verdict(structure, entry).reason
            assert reason == "some components of U are known, and it takes known ones of W alone: exchange the factors"


# -- chains ----------------------------------------------------------------------------------------------------------


def series(**options):
    return nz.hmm_nmf(COUNTS, 3, chain=nz.BasisChain(0.6, 0.6), known=20 * KNOWN, background=0.3, **options)


@pytest.mark.parametrize("options", [{}, {"alpha_w": 2.0, "mean_w": 10.0}])
def test_exact_em_of_chains_never_falls_and_ends_at_a_maximum_of_the_new_components(options):
    model = series(**options)
    result = fit(model, "hmm_exact", tol=1e-9, max_iter=500)
    assert_known(result, 20 * KNOWN)
    objective = group(result, "fit")["objective"].to_numpy()[0]
    objective = objective[np.isfinite(objective)]
    assert np.all(np.diff(objective) >= -1e-10 * np.abs(objective[0]))
    problem = exact.prepare(read(model), exact.HMMExact(), SERIAL)
    new = group(result, "posterior")["W_new"].to_numpy()[0, 0]

    def at(start):
        return exact.init(problem, seed_key(1), {"W_new": start}).objective

    np.testing.assert_allclose(at(new), objective[-1], rtol=1e-10)
    for f in range(F):
        step = np.zeros_like(new)
        step[f] = 1e-3 * new.max()
        assert at(new + step) <= objective[-1] + 1e-6
        assert at(np.maximum(new - step, 0.0)) <= objective[-1] + 1e-6


def test_particle_em_of_chains_keeps_them_and_ends_where_exact_em_does():
    """The exact log density there is its maximum, up to the particles' error."""
    model = series(alpha_w=2.0, mean_w=10.0)
    best = group(fit(model, "hmm_exact", tol=1e-9, max_iter=500), "fit")["objective"].to_numpy()[0]
    result = fit(model, nz.ParticleEM(particles=100), max_iter=30, tol=0)
    assert_known(result, 20 * KNOWN)
    problem = exact.prepare(read(model), exact.HMMExact(), SERIAL)
    new = group(result, "posterior")["W_new"].to_numpy()[0, 0]
    assert exact.init(problem, seed_key(1), {"W_new": new}).objective == pytest.approx(np.nanmax(best), abs=0.02)


def exact_em_ends_at_a_maximum():
    test_exact_em_of_chains_never_falls_and_ends_at_a_maximum_of_the_new_components({})


@pytest.mark.parametrize(
    ("place", "check"),
    [
        ("EM of chains: updates", exact_em_ends_at_a_maximum),
        ("particle EM: updates", test_particle_em_of_chains_keeps_them_and_ends_where_exact_em_does),
    ],
)
def test_new_components_with_the_sources_of_others_are_seen(place, check, monkeypatch):
    def wrong(right):
        return lambda side, mode, W, sources, *rest: right(side, mode, W, np.roll(sources, 1, axis=1), *rest)

    plant(monkeypatch, place, wrong)
    with pytest.raises(AssertionError):
        check()


def test_a_mean_of_iterates_keeps_them():
    """Ten thirds of a number are not ten times a third of it."""
    known = np.array([[1 / 3], [0.1], [0.7]])
    model = nz.hmm_nmf(np.ones((3, 4), dtype=int), 2, known=known, chain=nz.UnitChain(alpha=0.5), alpha_w=2.0)
    for seed in range(4):
        engine = nz.ParticleEM(particles=20, repeats=2)
        result = nz.fit(model=model, engine=engine, max_iter=15, tol=0, restarts=2, random_seed=seed, quiet=True)
        W = group(result, "posterior")["W"].to_numpy()
        np.testing.assert_array_equal(W[..., :1], np.broadcast_to(known, (*W.shape[:-1], 1)))
