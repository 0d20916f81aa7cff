"""Particle Gibbs: Geweke's test of all three chains, then planted errors; and against NUTS."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.hmm import particle_gibbs
from nmf_zoo.inference.hmm.particle_gibbs import ParticleGibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BasisChainPrior, LogNormalARPrior, UnitChainPrior
from tests.planted import check_seen, plant
from tests.sizes import at_full_size, size
from tests.statistical.chain_geweke import check_geweke
from tests.statistical.gates import check_means, standard_errors
from tests.structures import gamma, model, parameter, unknown

pytestmark = pytest.mark.statistical
SWEEPS, SLOW_SWEEPS = size(1_250, 40_000), size(2_500, 40_000)
SLOW = {"log-normal", "log-normal, stationary", "log-normal, free start"}  # levels take thousands of sweeps
PLANTED_SWEEPS, JOINT_SWEEPS = 2_000, 3_000
F, K, T = 2, 2, 3
COMPONENTS = np.array([[1.5, 3.0]])
MASK = np.array([[1, 0, 1], [0, 0, 1]])


def of_components(name, kind, *args):
    return unknown(name, kind, *args, variable_shape=(K,), shape=(K, 1))


def basis(p, q, initial=None):
    return BasisChainPrior(p=parameter(p), q=parameter(q), initial=None if initial is None else parameter(initial))


def unit(alpha):
    return UnitChainPrior(alpha=parameter(alpha))


def log_normal(mean, persistence, scale, initial=None):
    first = (None, None) if initial is None else map(parameter, initial)
    names = ("mean", "persistence", "scale", "initial_mean", "initial_scale")
    return LogNormalARPrior(**dict(zip(names, [*map(parameter, (mean, persistence, scale)), *first], strict=True)))


def declare(chain, prior_w=None, **options):
    options = {"background": 0.3, "exposure": [[0.4, 0.2, 0.3]], **options}
    return model(np.zeros((F, T)), K, gamma(COMPONENTS, 1.2) if prior_w is None else prior_w, chain, **options)


P, Q = unknown("p", "beta", 3.0, 2.0), of_components("q", "uniform", [0.2, 0.4], [0.9, 0.95])
MEAN, SCALE = unknown("m", "normal", 0.3, 0.6), of_components("s", "gamma", [4.0, 6.0], [8.0, 8.0])
PERSISTENCE = unknown("f", "uniform", -0.3, 0.8)
A = unknown("a", "gamma", 20.0, 25.0)
MODELS = {
    "basis": declare(basis(P, Q, 0.35)),
    "basis, stationary": declare(basis(P, Q)),
    "basis, one for both, free start": declare(basis(P, P, of_components("i", "beta", [1.0, 3.0], 2.0))),
    "basis, other priors": declare(basis(unknown("p", "half_normal", 0.3), unknown("q", "gamma", 4.0, 8.0), 0.5)),
    "unit": declare(unit(unknown("al", "uniform", 0.0, 1.0))),
    "unit, one for each": declare(unit(of_components("al", "beta", [4.0, 2.0], [1.0, 2.0])), mask=MASK),
    "log-normal": declare(log_normal(MEAN, PERSISTENCE, SCALE, (0.1, 0.5))),
    "log-normal, stationary": declare(log_normal(MEAN, PERSISTENCE, SCALE), mask=MASK),
    "log-normal, free start": declare(
        log_normal(
            of_components("m", "normal", [0.3, -0.2], 0.5),
            0.6,
            unknown("s", "lognormal", -0.7, 0.4),
            (unknown("m0", "normal", 0.0, 0.5), unknown("s0", "inverse_gamma", 6.0, 3.0)),
        )
    ),
    "log-normal, scale and shape of W are one": declare(
        log_normal(0.0, 0.5, A), gamma(A, unknown("r", "lognormal", 0.3, 0.4))
    ),
}


def sweeps_of(name):
    return SLOW_SWEEPS if name in SLOW else SWEEPS


@pytest.mark.parametrize("name", MODELS)
def test_geweke(name):
    """Long: thousands of sweeps, whose parameters are drawn in Python."""
    check_geweke(MODELS[name], sweeps_of(name), seed=1)


# Of how rows are drawn, not of their parameters: known levels mix sooner.
KNOWN = {
    "log-normal, known": declare(log_normal(0.3, 0.4, 0.6, (0.1, 0.5))),
    "log-normal, known, stationary": declare(log_normal(-0.1, 0.6, 0.5), mask=MASK),
}
OPTIONS = {
    "two particles": ("log-normal, known", ParticleGibbs(particles=2, resampling="residual")),
    "rows one by one": ("log-normal, known, stationary", ParticleGibbs(particles=6, block=1, resampling="stratified")),
    "unit rows one by one": ("unit", ParticleGibbs(particles=5, block=1, ess=0.5, resampling="multinomial")),
    "binary rows one by one": ("basis, stationary", ParticleGibbs(block=1)),
    "blind": ("log-normal, known", ParticleGibbs(particles=20, proposal="bootstrap", block=1)),
    "unit, guided": ("unit, one for each", ParticleGibbs(particles=4, proposal="guided")),
    "auxiliary": ("log-normal, known, stationary", ParticleGibbs(particles=4, proposal="auxiliary")),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    structure, options = OPTIONS[name]
    check_geweke((MODELS | KNOWN)[structure], SWEEPS, options=options, seed=2)


def test_known_weights():
    check_geweke(declare(log_normal(0.2, PERSISTENCE, SCALE), np.array([[2.0, 0.5], [0.3, 1.0]])), SWEEPS, seed=3)


# -- one binary row: quadrature over W, sum over paths -------------------------------------------------------------

COUNTS = np.array([[4.0, 0.0, 2.0], [3.0, 1.0, 0.0]])


def exact_joint_means():
    """E[h_t] and E[w_f h_t] given COUNTS; w ~ Gamma(2, 0.5), a background of 0.5."""
    w = np.exp(np.linspace(-9, 4.5, 4000))
    log_prior = np.log(w) * 2.0 - 0.5 * w  # with the Jacobian of the grid in log w
    chances, means = [], []
    for path in product((0, 1), repeat=3):
        h = np.array(path)
        log_p, mean = np.log(0.4 if h[0] else 0.6), []
        for old, new in pairwise(path):
            stay = 0.8 if old else 0.7
            log_p += np.log(stay if old == new else 1 - stay)
        for x in COUNTS:
            rates = 0.5 + w[:, None] * h
            density = np.exp(log_prior + (x * np.log(rates) - rates).sum(axis=1))
            log_p += np.log(density.sum())
            mean.append((density * w).sum() / density.sum())
        chances.append(log_p)
        means.append(np.concatenate([h, np.outer(mean, h).ravel()]))
    weights = np.exp(np.array(chances) - max(chances))
    return weights @ np.array(means) / weights.sum()


def check_joint_means(step, sweeps):
    structure = model(COUNTS, 1, gamma(2.0, 0.5), basis(0.7, 0.8, 0.4), background=0.5)
    problem, key = particle_gibbs.prepare(structure, ParticleGibbs(), SERIAL), seed_key(3)
    state, kept = particle_gibbs.init(problem, child(key, 0), {}), []
    for sweep in range(sweeps):
        state, _ = step(problem, state, child(key, 1, sweep))
        kept.append(np.concatenate([state.h[0], np.outer(state.W[:, 0], state.h[0]).ravel()]))
    names = [f"h[{t}]" for t in range(3)] + [f"w[{f}] h[{t}]" for f in range(2) for t in range(3)]
    check_means(names, np.array(kept), exact_joint_means())


def test_one_binary_row():
    check_joint_means(particle_gibbs.step, size(JOINT_SWEEPS, 40_000))


def test_weights_from_stale_activations_are_seen(monkeypatch):
    """Both factors from old values have the right laws one by one: together, given the data, they have not."""
    stale = {}
    plant(
        monkeypatch,
        "particle Gibbs: weights",
        lambda right: lambda problem, now, keys: right(problem, now._replace(**stale), keys),
    )

    def step(problem, state, key):
        stale["h"] = state.h.copy()
        return particle_gibbs.step(problem, state, key)

    check_seen(lambda n: check_joint_means(step, n), JOINT_SWEEPS, "gate 2, standard errors")


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(name, **options):
    """Wrong chains may mix slowly."""
    check_seen(
        lambda n: check_geweke(MODELS[name], n, seed=4, least=30, **options), PLANTED_SWEEPS, "gate 2, standard errors"
    )


@pytest.mark.parametrize("name", ["basis", "unit", "log-normal, stationary"])
def test_a_law_of_other_parameters_is_seen(name, monkeypatch):
    """H drawn as if its parameters were those of the start: f left out of their update.

    Long: thousands of sweeps, whose parameters are drawn in Python.
    """
    first = {}

    def wrong(right):
        def stale(rows, W, h, aux, values, key):
            first.update({} if first else {name: np.array(value) for name, value in values.items()})
            return right(rows, W, h, aux, first, key)

        return stale

    plant(monkeypatch, "particle Gibbs: rows of H", wrong)
    check_is_seen(name)


def test_a_missing_jacobian_is_seen(monkeypatch):
    """Long: thousands of sweeps, whose parameters are drawn in Python."""

    def flat(coordinates):
        return {key: own._replace(log_jacobian=np.zeros_like) for key, own in coordinates.items()}

    plant(monkeypatch, "chains: coordinates of parameters", flat)
    check_is_seen("log-normal, stationary")


def test_a_level_that_forgets_the_first_time_is_seen(monkeypatch):
    """Long: thousands of sweeps, whose parameters are drawn in Python."""

    def wrong(right):
        def without_first(prior, sums, values):
            slope, bend = right(prior, sums, values)
            spread = prior.law(values)[4]
            return slope - (sums.first - prior.law(values)[3]) / spread**2, bend - 1.0 / spread**2

        return without_first

    plant(monkeypatch, "log-normal chain: slope of a level", wrong)
    check_is_seen("log-normal")


def test_a_mean_that_forgets_its_prior_is_seen(monkeypatch):
    """Long: thousands of sweeps, whose parameters are drawn in Python."""
    wide = declare(
        log_normal(unknown("m", "normal", 0.3, 6.0), PERSISTENCE, SCALE, (0.1, 0.5)),
    ).H.prior
    plant(
        monkeypatch, "log-normal chain: means", lambda right: lambda prior, own, *rest: right(prior, wide.mean, *rest)
    )
    check_is_seen("log-normal")


# -- another sampler -----------------------------------------------------------------------------------------------


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_nuts_agrees_on_the_log_normal_chain():
    """W, H and the chain's mean and persistence unknown; the components apart by their priors. Long: NUTS compiles."""
    X = np.array([[6, 4, 9, 0], [1, 3, 2, 2], [4, 2, 2, 3]])
    with pm.Model() as model:
        chain = nz.LogNormalAR(pm.Normal("m", 0.0, 0.5), pm.Uniform("f", -0.2, 0.8), 0.6)
        nz.hmm_nmf(X, 2, chain=chain, alpha_w=np.array([[1.5, 4.0]]), beta_w=1.0, background=0.2)
    run = {"chains": 1, "random_seed": 1, "quiet": True, "model": model}
    ours = nz.sample(60_000, tune=500, extend=1, engine="particle_gibbs", **run)
    theirs = nz.sample(20_000, tune=500, engine="nuts", **run)
    names, mine = on_the_line(ours)
    expected = on_the_line(theirs)[1]
    errors, sizes = standard_errors(expected)
    assert sizes.min() > 250
    check_means(names, mine, expected.mean(axis=0), errors)


def on_the_line(idata):
    """Logarithms of W and H, the parameters, and squares of all, by draw."""
    draws = {name: variable.to_numpy()[0] for name, variable in idata.posterior.data_vars.items()}
    parts = {name: np.log(value) if name in ("W", "H") else value for name, value in draws.items()}
    parts = {name: parts[name].reshape(len(parts[name]), -1) for name in sorted(parts)}
    names = [f"{name}[{i}]" for name, part in parts.items() for i in range(part.shape[1])]
    table = np.concatenate(list(parts.values()), axis=1)
    return names + [f"{name}^2" for name in names], np.concatenate([table, table**2], axis=1)
