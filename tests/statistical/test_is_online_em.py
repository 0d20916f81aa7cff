"""Simulated online EM finds the maximum of the marginal likelihood; with an error planted in a step it does not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import nmf_zoo as nz
from benchmarks.papers.cappe_toy import compare_statistics, draw_frames, follow, profiles
from tests.naive.powers.frame_gibbs import log_marginal
from tests.planted import plant
from tests.sizes import size

pytestmark = pytest.mark.statistical

SHAPE, SCALE = 1.5, 0.8
TRUE = np.array([[1.2, 0.05], [0.3, 0.6], [0.05, 0.9], [0.8, 0.2], [0.1, 1.5], [2.0, 0.3]])
START = TRUE * np.exp(0.5 * np.random.default_rng(0).normal(size=TRUE.shape))
MOST = 5e-3  # nats a frame below the truth
FRAMES, HELD_OUT = size(15_000, 150_000), size(4000, 30_000)
GRID = {"low": -6.0, "high": 9.0, "points": 90}


def draw(n, seed, background=0.0):
    rng = np.random.default_rng(seed)
    mean = TRUE @ (SCALE / rng.gamma(SHAPE, size=(2, n))) + background
    return mean * rng.exponential(size=mean.shape)


@cache
def held_out():
    """New frames, and the log-likelihood of each under the W they were drawn with."""
    X = draw(HELD_OUT, 1)
    return X, log_marginal(X.T, TRUE, SHAPE, SCALE, **GRID)


def run(X=None, model=None, **options):
    if model is None:
        model = nz.is_nmf(None, 2, shape=(len(TRUE), 1), alpha_h=SHAPE, beta_h=SCALE)
    settings = {"sweeps": 30, "keep": 20, "leaps": 0, "expand": False, "average_after": FRAMES // 5, **options}
    stream = nz.stream(model, engine=nz.SimulatedOnlineEM(**settings), initvals={"W": START}, random_seed=3, cores=1)
    stream.update(draw(FRAMES, 0) if X is None else X)
    return stream.W.values


def loss(W):
    """(nats per held-out frame below the truth, its standard error)."""
    X, best = held_out()
    lost = best - log_marginal(X.T, W, SHAPE, SCALE, **GRID)
    return lost.mean(), lost.std() / np.sqrt(HELD_OUT)


RUNS = {
    "rao_blackwell": {},
    "plain": {"statistic": "plain"},
    "moves": {"sweeps": 8, "keep": 5, "leaps": 2},
    "expanded": {"sweeps": 8, "keep": 5, "leaps": 2, "expand": True},
    "no averages": {"average_after": None, "exponent": 0.7},
    "mini-batches": {"batch": 5},
    "a weak prior": {"smoothing": (1.0, 0.1)},
}


@pytest.mark.parametrize("name", RUNS)
def test_finds_the_truth(name):
    """The best W costs about parameters / (2 frames) = 4e-4 nats a frame; the noise of the steps, more."""
    lost, error = loss(run(**RUNS[name]))
    print(name, lost, error)
    assert error < 2e-3
    assert lost < MOST + 5 * error, (lost, error)


def test_with_missing_cells():
    X = draw(FRAMES, 0)
    X[np.random.default_rng(2).random(X.shape) < 0.3] = np.nan
    lost, error = loss(run(X))
    print(lost, error)
    assert error < 2e-3
    assert lost < MOST + 5 * error, (lost, error)


def test_a_known_noise_floor_is_no_part_of_w():
    noise = np.full((len(TRUE), 1), 0.5)
    X = draw(FRAMES, 0, 0.5)
    own = nz.is_nmf(None, 2, shape=(len(TRUE), 1), alpha_h=SHAPE, beta_h=SCALE, background=noise)
    with_floor, without = loss(run(X, own)), loss(run(X))
    print(with_floor, without)
    assert with_floor[0] < 2 * MOST + 5 * with_floor[1]
    assert without[0] - 5 * without[1] > 2 * MOST


def expect_with_wrong_weights(kernel):
    return lambda out, frames, weights, *rest: kernel(out, frames, 1.3 * weights, *rest)


def expect_with_a_wrong_prior(kernel):
    def wrong(out, frames, weights, chain, workspace, key):
        kernel(out, frames, weights, chain._replace(shape=chain.shape + np.array([0.0, 1.5])), workspace, key)

    return wrong


def expect_louder(kernel):
    return lambda out, frames, *rest: kernel(out, frames._replace(power=frames.power + 0.2), *rest)


def expect_with_a_wrong_scale(kernel):
    def wrong(out, *given):
        kernel(out, *given)
        out.inverse[:] *= 1.3

    return wrong


PLANTED = [expect_with_wrong_weights, expect_with_a_wrong_prior, expect_louder, expect_with_a_wrong_scale]


@pytest.mark.parametrize("wrong", PLANTED)
def test_planted_errors_are_seen(wrong, monkeypatch):
    plant(monkeypatch, "stream of powers: expectations", wrong)
    lost, error = loss(run(**({"leaps": 2, "expand": True} if wrong is expect_with_a_wrong_scale else {})))
    print(wrong.__name__, lost, error)
    assert lost - 5 * error > 2 * MOST, (lost, error)


# -- the toy of the paper --------------------------------------------------------------------------------------------

AFTER = (100, size(5000, 20_000))


@cache
def toy():
    """The truth (F, K), and estimates (starts, times, F, K)."""
    W = profiles()
    X = draw_frames(W, AFTER[-1], 7)
    return W, np.array([follow(X, AFTER, seed) for seed in range(3)])


def test_the_toy_is_recovered_but_for_what_is_dominated():
    """Section 3: consistent, with a marked over-estimation where the other profile dominates."""
    W, paths = toy()
    ratio, share = paths[:, -1] / W, W / W.sum(axis=1, keepdims=True)
    louder, dominated = ratio[:, share > 0.3], ratio[:, share < 0.03]
    print(np.exp(np.log(louder).mean()), louder.min(), louder.max(), dominated.mean(), dominated.min())
    assert 0.8 < np.exp(np.log(louder).mean()) < 1.25
    assert louder.min() > 0.5
    assert louder.max() < 1.7
    assert 1.2 < np.exp(np.log(dominated).mean()) < 5.0


def test_starts_matter_less_and_less():
    _, paths = toy()
    spread = np.log(paths).std(axis=0).mean(axis=(1, 2))
    print(spread)
    assert spread[-1] < 0.7 * spread[0]


def test_the_start_decides_which_component_is_which():
    W = profiles()
    X = draw_frames(W, 1000, 7)
    model, found = nz.is_nmf(None, 2, shape=W.shape), []
    for start in (W, W[:, ::-1]):
        engine = nz.SimulatedOnlineEM(sweeps=50, keep=25, leaps=0, expand=False)
        stream = nz.stream(model, engine=engine, initvals={"W": start}, random_seed=1, cores=1)
        stream.update(X)
        found.append(stream.W.values.argmax(axis=0))
    assert found[0][0] < found[0][1]
    assert found[1][0] > found[1][1]


def test_the_rao_blackwellised_statistic_varies_less():
    """Nearly as much where a component has a cell to itself, next to nothing where it is dominated."""
    W = profiles()
    ratio = compare_statistics(draw_frames(W, 20, 7), W, size(150, 1000))
    share = W / W.sum(axis=1, keepdims=True)
    print(np.round(100 * ratio.T, 1))
    assert np.all(ratio[share < 0.9] < 1.0)
    assert ratio.mean() < 0.5
    assert np.all(ratio[share < 0.1] < 0.2)
