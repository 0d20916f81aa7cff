"""Replica exchange: each mode gets its share, every rung of the ladder has its own law, and Geweke's test holds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.evidence import replicas
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.driver import SampleRun, run_chains
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant, put
from tests.sizes import at_full_size, size
from tests.statistical.gates import LEAST, check_means
from tests.statistical.geweke import (
    EXPOSURE,
    X23,
    check_geweke,
    draw_data,
    draw_prior,
    laid_out_cells,
    with_every_cell_laid_out,
)
from tests.statistical.test_smc_posterior import case
from tests.statistical.two_modes import exact
from tests.structures import gamma, model, stack

pytestmark = pytest.mark.statistical
CHAINS, RUNGS = size(8, 40), 2_500
SHARE, OTHERS = 3.0, 4.5  # standard errors allowed


# -- modes of known mass -----------------------------------------------------------------------------------------


def scores_of(of, draws=600, tune=200, n_replicas=5, **options):
    """Of every statistic, how many standard errors the chains' mean is from the exact value."""
    run = SampleRun(draws=draws, tune=tune, thin=1, keep_warmup=False, cores=1, progressbar=False)
    asked = gibbs.Gibbs(temperatures=n_replicas, trajectories="always", **options)
    chains, _ = run_chains(replicas.ENGINE, of.structure(), asked, run, seed_key(1), [{}] * CHAINS)
    means = exact(of)[1]
    drawn = [of.statistics(chain.draws.values) for chain in chains]
    return {name: _score([one[name].mean() for one in drawn], value) for name, value in means.items()}


def _score(values, expected):
    return (np.mean(values) - expected) / (np.std(values, ddof=1) / np.sqrt(len(values)))


def check(of, **how):
    scores = scores_of(of, **how)
    wrong = {name: round(float(score), 1) for name, score in scores.items() if not abs(score) < OTHERS}
    assert abs(scores["share"]) < SHARE, f"share of a mode: {scores['share']:.1f} standard errors"
    assert not wrong, f"standard errors: {wrong}"


@pytest.mark.parametrize("transposed", [False, pytest.param(True, marks=at_full_size)], ids=["3 x 2", "2 x 3"])
def test_each_mode_gets_its_share(transposed):
    """Where each chain of sweeps stays in the mode that it began in: see the tests of particles on the same table.

    Long: chains at several temperatures.
    """
    check(case(transposed))


def test_exchange_without_its_ratio_is_seen(monkeypatch):
    """Replicas that always exchange have another law. Long: 500 sweeps at every temperature."""
    put(monkeypatch, "replicas: probability of an exchange", lambda state, pair: 0.5)
    with pytest.raises(AssertionError, match="standard errors"):
        check(case(), draws=400, tune=100)


# -- the law at every temperature ----------------------------------------------------------------------------------

COUNT = 40.0
PRIORS = ((2.0, 1.0), (1.2, 1.5), (1.5, 0.7), (2.5, 1.1))  # shape and rate of w_1, w_2, h_1, h_2: w h is about 6
LADDER = (1.0, 0.3, 0.0)
STEP, ENDS = 0.04, (-12.0, 5.0)  # of a grid of logarithms


def one_cell():
    (a, b), (c, d), (e, f), (g, h) = PRIORS
    W, H = gamma([[a, c]], [[b, d]]), gamma([[e], [g]], [[f], [h]])
    return model(np.full((1, 1), COUNT), 2, W, H)


@cache
def exact_means(temperature):
    """Of log w_1, log w_2, and the log of the mean: by the trapezoid rule in z_k = log w_k + log h_k.

    The density of z is a convolution of two, and so is that of z times log w.
    """
    grid = np.arange(*ENDS, STEP)
    of_w, of_h = (
        [np.exp(shape * grid - rate * np.exp(grid)) for shape, rate in part] for part in (PRIORS[:2], PRIORS[2:])
    )
    z = 2 * grid[0] + STEP * np.arange(2 * len(grid) - 1)
    density, moment = ([np.convolve(scale * w, h) for w, h in zip(of_w, of_h, strict=True)] for scale in (1.0, grid))
    log_mean = np.logaddexp.outer(z, z)
    weights = np.outer(*density) * np.exp(
        temperature * (COUNT * log_mean - np.exp(log_mean) - COUNT * np.log(COUNT) + COUNT)
    )
    total = weights.sum()
    ratio = [m / np.maximum(d, 1e-300) for d, m in zip(density, moment, strict=True)]
    return np.array(
        [
            ratio[0] @ weights.sum(axis=1) / total,
            weights.sum(axis=0) @ ratio[1] / total,
            np.sum(weights * log_mean) / total,
        ]
    )


def rungs_of(sweeps, step=replicas.step, seed=1):
    """The same of the draws at every temperature, (sweeps, replicas, 3)."""
    problem = replicas.prepare(one_cell(), gibbs.Gibbs(temperatures=LADDER), SERIAL)
    state, key, kept = replicas.init(problem, seed_key(seed), {}), seed_key(seed), []
    for sweep in range(sweeps):
        state, _ = step(problem, state, child(key, sweep))
        W, H = np.vstack([state.cold.W[None], state.W])[:, 0], np.vstack([state.cold.Ht[None], state.Ht])[:, 0]
        kept.append(np.column_stack([np.log(W), np.log(np.sum(W * H, axis=1))]))
    return np.array(kept)


NAMES = ["log w1", "log w2", "log mean"]


def check_rungs(sweeps, least=LEAST):
    drawn = rungs_of(sweeps)[50:]
    for rung, temperature in enumerate(LADDER):
        names = [f"{name} at {temperature}" for name in NAMES]
        check_means(names, drawn[:, rung], exact_means(temperature), least=least)


def test_every_temperature_has_its_law():
    """Long: chains at several temperatures."""
    check_rungs(size(4_000, 40_000))


def test_moves_at_another_power_are_seen(monkeypatch):
    """Hotter replicas walk at a temperature a little below the one that their exchanges are told."""
    plant(monkeypatch, "replicas: targets", lambda right: lambda problem, t: right(problem, t if t == 1.0 else 0.7 * t))
    check_seen(lambda n: check_rungs(n, least=50), RUNGS)


def test_another_power_in_the_ratio_is_seen(monkeypatch):
    plant(
        monkeypatch, "replicas: probability of an exchange", lambda right: lambda state, pair: right(state, pair) ** 0.3
    )
    check_seen(lambda n: check_rungs(n, least=50), RUNGS)


# -- Geweke --------------------------------------------------------------------------------------------------------


def simulate_successively(structure, sweeps, moves=gibbs.MOVES, seed=0, step=None):
    """As of Gibbs, beside a replica of the prior, which says nothing of X: of a ladder with others X has no law."""
    rng, key = np.random.default_rng(seed), seed_key(seed)
    options = gibbs.Gibbs(moves=moves, temperatures=2)
    problem = replicas.prepare(with_every_cell_laid_out(structure), options, SERIAL)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = replicas.init(problem, child(key, 0), start), []
    layouts = problem.cold.layout, problem.hot.law.layout
    for sweep in range(sweeps):
        cold = state.cold
        X = draw_data(structure, cold.W, cold.Ht.T, rng)
        for layout in layouts:
            rows, cols = laid_out_cells(layout)
            layout.values[:] = X[rows, cols]
        kept.append({"W": cold.W.copy(), "H": cold.Ht.T.copy(), "X": X})
        state, _ = replicas.step(problem, state, child(key, 1, sweep))
    return stack(kept)


GEWEKE = {
    "few counts": model(X23, 2, gamma([[4.0, 6.0]], 8.0), gamma([[5.0], [4.0]], 6.0)),  # exchanged every third time
    "plain": model(X23, 2, gamma([[0.5, 2.0]], 0.8), gamma([[1.6], [0.7]], 1.7)),
    "exposed": model(X23, 2, gamma([[0.5, 2.0]], 0.8), gamma([[1.6], [0.7]], 1.7), exposure=EXPOSURE),
}


@pytest.mark.parametrize("name", GEWEKE)
def test_geweke(name):
    check_geweke(GEWEKE[name], size(2_000, 40_000), seed=1, simulate_successively=simulate_successively)


def test_geweke_sees_a_replica_of_another_prior(monkeypatch):
    """Exchanges without a ratio it can't see: a draw of the prior, and data to it, have the law that it asks for."""

    def wrong(right):
        def halved(target, population, *how):
            right(target, population, *how)
            population.W[:] *= 0.5

        return halved

    plant(monkeypatch, "replicas: draws of the prior", wrong)
    options = {"seed": 1, "least": 50, "simulate_successively": simulate_successively}
    check_seen(lambda n: check_geweke(GEWEKE["few counts"], n, **options), 2_000)


def test_calibration():
    """Long: chains at several temperatures, for each simulation."""
    found = nz.calibrate(
        lambda: nz.gamma_nmf(None, rank=2, shape=(3, 4), alpha_w=0.8, beta_w=0.5, alpha_h=1.5),
        nz.Gibbs(temperatures=3),
        simulations=size(50, 1000),
        draws=49,
        thin=4,
        tune=50,
        random_seed=1,
        progressbar=False,
    )
    assert set(found["verdict"].to_numpy()) == {"calibrated"}
