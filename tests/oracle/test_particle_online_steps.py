"""Online EM by particles against the same steps in NumPy, with the same particles: sums, W and the chain."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.hmm import particle_online
from nmf_zoo.inference.hmm.laws import law_of, make_population, with_guide
from nmf_zoo.inference.hmm.particle_expectations import SMOOTHERS, WantedSums, make_carried
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, Law
from nmf_zoo.kernels.hmm.particles.online import recentre
from nmf_zoo.kernels.hmm.particles.statistics import total_sums
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.stream_engine import columns_of
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import (
    BasisChainPrior,
    Factor,
    Factorisation,
    Fixed,
    Flat,
    LogNormalARPrior,
    Poisson,
    UnitChainPrior,
)
from tests.naive.hmm.particles import smoothing_sums as naive_particles
from tests.particle_steps import advance, begin
from tests.planted import put
from tests.structures import gamma, parameter, unknown

F, K, T, N = 3, 2, 25, 40
KEY = seed_key(3)
RNG = np.random.default_rng(8)
W0 = RNG.gamma(2.0, 2.0, (F, K))
X = RNG.poisson(4.0, (F, T)).astype(float)
SEEN = RNG.random((F, T)) < 0.8
SEEN[:, :4], SEEN[:, 9] = True, False
EXPOSURE, BACKGROUND = RNG.uniform(0.5, 2.0, (F, 1)), np.full((F, 1), 0.1)
UNIFORM, EACH = ("uniform", 0.0, 1.0), {"variable_shape": (K,), "shape": (K, 1)}
CHAINS = {
    "basis": BasisChainPrior(p=unknown("p", *UNIFORM), q=unknown("q", *UNIFORM, **EACH), initial=parameter(0.4)),
    "unit": UnitChainPrior(alpha=unknown("alpha", *UNIFORM)),
    "log-normal": LogNormalARPrior(
        mean=parameter(0.0),
        persistence=unknown("phi", "uniform", -1.0, 1.0),
        scale=unknown("s", "flat"),
        initial_mean=parameter(0.0),
        initial_scale=parameter(1.0),
    ),
}
START = {"W": W0, "p": np.array(0.8), "q": np.array([0.7, 0.6]), "alpha": np.array(0.8), "phi": np.array(0.7), "s": 0.5}


def declare(chain, prior_w=None):
    return Factorisation(
        likelihood=Poisson(exposure=EXPOSURE, background=BACKGROUND),
        W=Factor(name="W", shape=(F, K), prior=prior_w or Flat()),
        H=Factor(name="H", shape=(K, 1), prior=CHAINS[chain]),
    )


def columns(x, seen):
    cols, rows = np.nonzero(seen.T)
    complete = seen.all(axis=0)
    return columns_of(np.searchsorted(cols, np.arange(len(complete) + 1)), rows, x.T[seen.T], complete, 0)


def run(structure, seen, **options):
    """(problem, state) after all columns."""
    problem = particle_online.prepare(structure, particle_online.ParticleOnlineEM(particles=N, **options), SERIAL)
    block = columns(X, seen)
    start = {name: START[name] for name in ("W", *structure.unknowns) if name != "W" or not structure.W.is_fixed}
    state = particle_online.init(problem, block, KEY, start)
    return problem, particle_online.update(problem, state, block, KEY)[0]


def run_naively(structure, problem, seen):
    """(W, parameters (3, K)) by the equations, state by state."""
    values = {name: START[name] for name in structure.unknowns}
    W, law = W0, law_of(structure.H.prior, values, K)
    plan = with_guide(problem.plan, law.kind)
    population = make_population(K, N, plan.proposal)
    key, options, base = child(KEY, particle_online.STEPS), problem.options, (BACKGROUND / EXPOSURE)[:, 0]
    forgotten = 1.0
    for t in range(T):
        gain, weight, x = (
            (t + 1.0) ** -options.exponent,
            seen[:, t] * EXPOSURE[:, 0],
            np.where(seen[:, t], X[:, t], 0.0),
        )
        target = Target(counts_of(x, weight @ W), np.ascontiguousarray(W), base, law)
        if t == 0:
            begin(population, target, 0, plan, child(key, 0))
            sums = naive_particles.Sums(population.cloud, law, gain)
        else:
            before = population.log_weights.copy()
            population = advance(population, target, 0, plan, child(key, t))[0]
            shares = np.eye(N)[population.ancestors]
            if options.smoother == "forward":
                shares = naive_particles.backward(population.cloud, population.other, before, law)
            sums.carry(population.cloud, population.other, shares, 1 - gain, gain)
            forgotten *= 1 - gain
        sums.add(population.cloud, x, weight, base, W, gain)
        if t + 1 >= options.burn_in:
            means = [getattr(sums, name) @ population.weights for name in ("activations", "sources", "pairs")]
            W = updated_weights(structure, W, *means[:2], t + 1)
            law = law._replace(parameters=updated(law, means[2], 1 - forgotten))
    return W, law.parameters


def counts_of(x, weight_sums):
    rows = np.nonzero(x)[0]
    return Counts(np.array([0, len(rows)]), rows.astype(np.int32), x[rows], np.empty(0), weight_sums[None])


def updated_weights(structure, W, activations, sources, seen):
    if structure.W.is_fixed:
        return W
    if isinstance(structure.W.prior, Flat):
        return sources / activations
    a, r = structure.W.prior.shape_and_rate({})
    return (sources + (a - 1) / seen) / (activations + r / seen)


def updated(law, pairs, transitions):
    found = law.parameters.copy()
    if law.kind == BASIS:
        found[0] = pairs[:, 0].sum() / pairs[:, :2].sum()
        left = pairs[:, 2:].sum(axis=1)
        found[1] = np.where(left > 0, pairs[:, 3] / np.where(left > 0, left, 1.0), found[1])
    elif law.kind == UNIT:
        found[0] = pairs[:, 0].sum() / pairs.sum()
    else:
        _, _, squares, products, after = pairs.sum(axis=0)
        found[1] = products / squares
        found[2] = np.sqrt((after - products**2 / squares) / (K * transitions))
    return found


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("smoother", ["path", "forward"])
@pytest.mark.parametrize("seen", [np.ones_like(SEEN), SEEN], ids=["complete", "missing"])
def test_learning_follows_the_equations(chain, smoother, seen):
    """Sums, steps and parameters as the equations have them, in Python. Long: particles one by one in Python."""
    structure = declare(chain)
    problem, state = run(structure, seen, smoother=smoother, burn_in=5, exponent=0.7)
    W, parameters = run_naively(structure, problem, seen)
    np.testing.assert_allclose(state.W, W, rtol=1e-8)
    np.testing.assert_allclose(state.law.parameters, parameters, rtol=1e-8)
    assert np.max(np.abs(state.W - W0)) > 0.1
    assert particle_online.seen(state) == T


def moments(z):
    """Sums of z, z', z z, z z', z' z' over weighted steps of paths (T, N); the first time has no step."""
    old, new = z[:-1], z[1:]
    return [old, new, old * old, old * new, new * new]


def test_recentring_is_a_change_of_coordinates():
    """Sums and particles are those of the moved paths, and what makes the counts stays as it is."""
    rng, weights, gains = np.random.default_rng(2), np.array([0.3, 0.2, 0.4]), np.array([0.1, 0.3, 0.2, 0.4])
    z = rng.normal(0.7, 1.0, (4, K, N))
    law = Law(LOG_NORMAL, np.array([[0.1] * K, [0.5] * K, [1.0] * K]), np.zeros((2, K)))
    population = make_population(K, N)
    population.cloud.aux[:], population.cloud.h[:] = z[-1], np.exp(z[-1])
    population.weights[:] = rng.dirichlet(np.ones(N))
    carried = make_carried(LOG_NORMAL, (F, K), N, SMOOTHERS["path"], F, WantedSums(first=False))
    fill(carried, z, gains, weights)
    sums, rates = np.zeros(len(carried.table)), W0 @ np.exp(z[-1])
    total_sums(sums, carried, population.weights)
    before = sums.copy()
    recentre(population, carried, law, sums, weights.sum(), 1000.0)
    away = z[-1] - population.cloud.aux
    np.testing.assert_allclose(away, np.broadcast_to(away[:, :1], away.shape))
    mean = (before[-9::5] - 0.5 * before[-10::5]) / (weights.sum() * 0.5)
    np.testing.assert_allclose(away[:, 0], mean - 0.1)
    np.testing.assert_allclose((W0 * np.exp(away[:, 0])) @ population.cloud.h, rates)
    expected = make_carried(LOG_NORMAL, (F, K), N, SMOOTHERS["path"], F, WantedSums(first=False))
    fill(expected, z - away, gains, weights)
    expected.table[carried.rows.sources : carried.rows.pairs] = carried.table[carried.rows.sources : carried.rows.pairs]
    np.testing.assert_allclose(carried.table, expected.table, rtol=1e-10, atol=1e-12)
    again = np.zeros(len(sums))
    total_sums(again, carried, population.weights)
    np.testing.assert_allclose(sums, again, rtol=1e-10)
    assert np.array_equal(sums[F * K : 2 * F * K], before[F * K : 2 * F * K])


def fill(carried, z, gains, weights):
    """What particles carry that have followed the paths z (T, K, N), at a scale of 1/2."""
    carried.scale[0], active = 0.5, np.einsum("t,tkn->kn", gains, np.exp(z))
    carried.table[: carried.rows.sources] = np.tile(active, (F, 1)) / 0.5
    carried.table[carried.rows.sources : carried.rows.pairs] = 3.0
    steps = [np.einsum("t,tkn->kn", weights, part) for part in moments(z)]
    carried.table[carried.rows.pairs :] = np.stack(steps, axis=1).reshape(-1, N) / 0.5


@pytest.mark.parametrize("prior_w", [gamma(3.0, 0.5), Fixed(value=W0)], ids=["gamma", "known"])
def test_priors_of_the_weights(prior_w):
    structure = declare("unit", prior_w)
    problem, state = run(structure, SEEN, burn_in=5)
    W, parameters = run_naively(structure, problem, SEEN)
    np.testing.assert_allclose(state.W, W, rtol=1e-8)
    np.testing.assert_allclose(state.law.parameters, parameters, rtol=1e-8)


def test_the_twin_sees_sums_that_stay_behind_when_particles_are_resampled(monkeypatch):
    """Algorithm 1 as printed, with tildes on the right: sums from before the resampling."""
    structure = declare("unit")
    problem, state = run(structure, SEEN, burn_in=5)
    put(monkeypatch, "naive smoothing: origins as they are", lambda n: np.broadcast_to(np.full(n, 1 / n), (n, n)))
    W, _ = run_naively(structure, problem, SEEN)
    assert np.max(np.abs(state.W / W - 1)) > 1e-3
