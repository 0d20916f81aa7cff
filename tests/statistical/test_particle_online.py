"""Online EM by particles: its sums against exact ones, its estimates against the truth, and Algorithm 1 as printed."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.hmm import particle_online
from nmf_zoo.inference.hmm.particle_expectations import split_sums
from nmf_zoo.kernels.hmm.particles.statistics import total_sums
from nmf_zoo.kernels.random.chain_draws import log_normal_path, unit_path
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.stream_engine import columns_of
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BasisChainPrior, Factor, Factorisation, Flat, Poisson
from tests.naive.hmm import basis_chain as naive_chains
from tests.sizes import size
from tests.structures import parameter, unknown

pytestmark = pytest.mark.statistical
F, K = 6, 2


def columns(x):
    cols, rows = np.nonzero(np.isfinite(x.T))
    complete = np.isfinite(x).all(axis=0)
    return columns_of(np.searchsorted(cols, np.arange(x.shape[1] + 1)), rows, x.T[cols, rows], complete, 0)


@pytest.mark.parametrize("smoother", ["path", "backward", "forward"])
def test_with_known_parameters_it_is_the_weighted_sum_of_smoothed_statistics(smoother):
    """S_t = sum_i w_i E[s_i | x_1:t], w_i = g_i prod_{j > i} (1 - g_j): exact recursions, and the mean of many runs."""
    rng, n_times, law = np.random.default_rng(2), 40, (np.full(K, 0.9), np.full(K, 0.8), np.full(K, 0.4))
    W = rng.gamma(1.0, 3.0, (3, K))
    x = rng.poisson(W @ (rng.random((K, n_times)) < 0.4) + 0.2).astype(float)
    x[:, 7], x[0, 11] = np.nan, np.nan
    structure = Factorisation(
        likelihood=Poisson(background=np.full((1, 1), 0.2)),
        W=Factor(name="W", shape=W.shape, prior=Flat()),
        H=Factor(
            name="H",
            shape=(K, 1),
            prior=BasisChainPrior(p=unknown("p", "uniform", 0.0, 1.0), q=parameter(0.8), initial=parameter(0.4)),
        ),
    )
    options = particle_online.ParticleOnlineEM(particles=500, smoother=smoother, burn_in=10**6, exponent=0.7)
    problem, found = particle_online.prepare(structure, options, SERIAL), []
    for seed in range(size(100, 400)):
        key = seed_key(seed)
        state = particle_online.init(problem, columns(x), key, {"W": W, "p": np.array(0.9)})
        state, _ = particle_online.update(problem, state, columns(x), key)
        sums = np.zeros(len(state.carried.table))
        total_sums(sums, state.carried, state.population.weights)
        found.append(np.concatenate([part.ravel() for part in split_sums(sums, state.carried.rows, W.shape)]))
    exact = naive_chains.learn_online(np.nan_to_num(x), np.isfinite(x) * 1.0, np.full(x.shape, 0.2), W, *law, 0.7)[-1]
    expected, found = np.concatenate([part.ravel() for part in exact]), np.array(found)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(error < 0.05 * np.abs(expected) + 0.01)
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - expected), 5 * error + 1e-12)


def unit_data(n_times, seed=1):
    rng = np.random.default_rng(seed)
    W = np.array([[10.0, 0.5], [8.0, 1.0], [1.0, 6.0], [0.2, 12.0], [4.0, 4.0], [2.0, 9.0]])
    H = np.stack([unit_path(rng.random((2, n_times)), 0.95) for _ in range(K)])
    return W, rng.poisson(W @ H + 0.1)


def error_of(found, W):
    """Of W, relative, at the best permutation of the components."""
    orders = permutations(range(W.shape[1]))
    return min(np.linalg.norm(found[:, list(order)] - W) for order in orders) / np.linalg.norm(W)


@pytest.mark.parametrize("smoother", ["path", "backward"])
def test_it_finds_a_unit_chain(smoother):
    """From cells of W that are off by a half; from random ones the steps may end on another hill."""
    W, X = unit_data(size(10_000, 50_000))
    model = nz.hmm_nmf(None, K, chain=nz.UnitChain(nz.free()), background=0.1, shape=(F, 1))
    engine = nz.ParticleOnlineEM(particles=300, smoother=smoother, exponent=0.8)
    start = {"W": W * np.random.default_rng(5).gamma(4.0, 1 / 4, W.shape)}
    stream = nz.stream(model, engine=engine, random_seed=3, initvals=start)
    stream.update(X)
    assert error_of(stream.W.to_numpy(), W) < 0.02
    assert stream.result().posterior["alpha"].item() == pytest.approx(0.95, abs=0.01)


def test_most_random_starts_are_left_behind():
    """With the steps that are the default; with t^-0.8 the median error is still 0.3."""
    errors, rank = [], 4
    for seed in range(size(8, 16)):
        rng = np.random.default_rng(seed)
        W = rng.gamma(1.0, 10.0, (F, rank))
        H = np.stack([unit_path(rng.random((2, 10_000)), 0.95) for _ in range(rank)])
        model = nz.hmm_nmf(None, rank, chain=nz.UnitChain(nz.free()), background=0.1, shape=(F, 1))
        stream = nz.stream(model, engine=nz.ParticleOnlineEM(particles=200), random_seed=seed)
        stream.update(rng.poisson(W @ H + 0.1))
        errors.append(error_of(stream.W.to_numpy(), W))
    assert np.median(errors) < 0.05


def test_it_finds_a_log_normal_chain():
    """From W three times too large. The last average is over 10,000^0.8 samples, in which the mean of log h, and so the
    scale of W, has a standard error of 0.5 / (1 - 0.9) / sqrt(10,000^0.8) = 0.13.
    """
    W, _ = unit_data(1)
    rng, n_times = np.random.default_rng(4), size(10_000, 50_000)
    H = np.stack([log_normal_path(rng.standard_normal(n_times), 0.0, 0.9, 0.5, (0.0, 1.0)) for _ in range(K)])
    model = nz.hmm_nmf(None, K, chain=nz.LogNormalAR(0.0, nz.free(), nz.free()), background=0.1, shape=(F, 1))
    start = {"W": 3.0 * W * rng.gamma(20.0, 1 / 20, W.shape)}
    engine = nz.ParticleOnlineEM(particles=300, exponent=0.8)
    stream = nz.stream(model, engine=engine, random_seed=3, initvals=start)
    stream.update(rng.poisson(W @ H + 0.1))
    posterior = stream.result().posterior
    assert error_of(stream.W.to_numpy(), W) < 0.25
    assert posterior["persistence"].item() == pytest.approx(0.9, abs=0.02)
    assert posterior["scale"].item() == pytest.approx(0.5, abs=0.05)


def algorithm_1(X, W, alpha, particles, seed, together, burn_in=100):
    """alpha by Algorithm 1 with W known, in NumPy, on the log-odds of h: bootstrap, resampled at every sample.

    ``together``: sums are resampled with their particles; as printed (tildes on the right) they are not.
    """
    rng, total = np.random.default_rng(seed), np.zeros((2, particles))
    below = rng.random((W.shape[1], particles))
    above = 1.0 - below
    for t, x in enumerate(X.T):
        gain = (t + 1.0) ** -0.8
        if t > 0:
            down = rng.random(below.shape) < np.where(below <= above, alpha, 1 - alpha)
            towards = (down == (below <= above)).sum(axis=0)
            u = rng.random(below.shape)
            near = np.where(down, below * u, above * u)
            below, above = np.where(down, near, 1 - near), np.where(down, 1 - near, near)
            total = (1 - gain) * total + gain * np.stack([towards, len(below) - towards])
        rates = W @ below + 0.1
        logs = x @ np.log(rates) - rates.sum(axis=0)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if t + 1 >= burn_in:
            sums = total @ weights
            alpha = sums[0] / sums.sum()
        chosen = rng.choice(particles, particles, p=weights)
        below, above = below[:, chosen], above[:, chosen]
        total = total[:, chosen] if together else total
    return alpha


def test_algorithm_1_as_printed_never_learns_alpha():
    """Sums that stay where they are while particles are resampled know of the proposal only."""
    W, X = unit_data(2500)
    found, printed = (algorithm_1(X, W, 0.7, 200, 1, together) for together in (True, False))
    model = nz.hmm_nmf(None, K, chain=nz.UnitChain(nz.free()), background=0.1, shape=(F, 1))
    engine = nz.ParticleOnlineEM(particles=200, proposal="bootstrap", resampling="multinomial", ess=1.0, exponent=0.8)
    stream = nz.stream(model, engine=engine, random_seed=3, initvals={"W": W, "alpha": 0.7})
    stream.update(X)
    ours = stream.result().posterior["alpha"].item()
    assert found > 0.92
    assert printed < 0.85
    assert ours == pytest.approx(found, abs=0.02)
