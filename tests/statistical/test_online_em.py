"""Online EM finds the maximum of the marginal likelihood; with an error planted in a step it does not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import online_em
from nmf_zoo.kernels.counts import column_sweeps
from tests.naive.counts.column_sweeps import log_marginal
from tests.planted import plant, put
from tests.registered import with_changed
from tests.sizes import size

pytestmark = pytest.mark.statistical

SHAPE, RATE = np.array([0.6, 2.5]), np.array([0.8, 0.5])
TRUE = np.array([[1.2, 0.1], [0.4, 0.5], [0.05, 0.9], [0.8, 0.0]])
START = TRUE + 0.4  # with components swapped there is another maximum, 0.12 nats a column lower
COLUMNS, HELD_OUT = size(20_000, 200_000), size(8_000, 40_000)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    return rng.poisson(TRUE @ rng.gamma(SHAPE, 1 / RATE, size=(n, 2)).T)


@cache
def held_out():
    """New columns, and the log-likelihood of each under the W they were drawn with."""
    X = draw(HELD_OUT, 1)
    return X, log_marginal(X, TRUE, SHAPE, RATE)


def run(X=None, **options):
    model = nz.gap(None, 2, shape=(4, 2), alpha_h=SHAPE[:, None], beta_h=RATE[:, None])
    engine = nz.OnlineEM(**{"average_after": COLUMNS // 5, **options})
    stream = nz.stream(model, engine=engine, initvals={"W": START}, random_seed=3, cores=1)
    stream.update(draw(COLUMNS, 0) if X is None else X)
    return stream.W.values


def loss(W):
    """(nats per held-out column below the truth, its standard error)."""
    X, best = held_out()
    lost = best - log_marginal(X, np.maximum(W, 1e-12), SHAPE, RATE)
    return lost.mean(), lost.std() / np.sqrt(HELD_OUT)


RUNS = {
    "C": {},
    "C, no averages": {"average_after": None, "exponent": 0.8},
    "CH": {"complete": "CH"},
    "mini-batches": {"batch": 10},
    "few sweeps": {"sweeps": 8, "keep": 6},
    "late": {"offset": 50.0, "start_columns": 200},
}


@pytest.mark.parametrize("name", RUNS)
def test_finds_the_truth(name):
    """The best W costs about parameters / (2 columns) = 4 / COLUMNS nats a column; the noise of the steps, more."""
    lost, error = loss(run(**RUNS[name]))
    print(name, lost, error)
    assert error < 1e-3
    assert lost < 2e-3 + 5 * error, (lost, error)


def test_with_missing_cells():
    X = draw(COLUMNS, 0).astype(float)
    X[np.random.default_rng(2).random(X.shape) < 0.3] = np.nan
    lost, error = loss(run(X, complete="CH"))
    print(lost, error)
    assert lost < 3e-3 + 5 * error, (lost, error)


EXPOSURES = np.array([0.2, 1.0, 4.0])


def draw_exposed(n, seed):
    """Columns with an exposure of their own each, and features with theirs: (X, of columns, of features)."""
    rng = np.random.default_rng(seed)
    own, of_features = rng.choice(EXPOSURES, size=n), np.array([[0.5], [1.0], [2.0], [0.7]])
    return rng.poisson(own * of_features * (TRUE @ rng.gamma(SHAPE, 1 / RATE, size=(n, 2)).T)), own, of_features


def run_exposed(n):
    X, own, of_features = draw_exposed(n, 0)
    model = nz.gap(None, 2, shape=(4, 2), alpha_h=SHAPE[:, None], beta_h=RATE[:, None], exposure=of_features)
    engine = nz.OnlineEM(average_after=n // 5)
    stream = nz.stream(model, engine=engine, initvals={"W": START}, random_seed=3, cores=1)
    stream.update(X, exposure=own)
    return stream.W.values


def log_marginal_exposed(W):
    """Of new columns: h times a column's exposure has the rate over it."""
    X, own, of_features = draw_exposed(HELD_OUT, 1)
    found = np.empty(HELD_OUT)
    for exposure in EXPOSURES:
        some = own == exposure
        found[some] = log_marginal(X[:, some], of_features * W, SHAPE, RATE / exposure)
    return found


@cache
def best_exposed():
    return log_marginal_exposed(TRUE)


def loss_exposed(W):
    """As :func:`loss`, of columns with exposures."""
    lost = best_exposed() - log_marginal_exposed(np.maximum(W, 1e-12))
    return lost.mean(), lost.std() / np.sqrt(HELD_OUT)


def test_with_exposures():
    lost, error = loss_exposed(run_exposed(COLUMNS))
    print(lost, error)
    assert error < 1e-3
    assert lost < 2e-3 + 5 * error, (lost, error)


EXPECTATIONS, STEPS = "stream of counts: expectations", "stream of counts: steps"


def expect_without_exposures(expect):
    def wrong(problem, weights, columns, key):
        return expect(problem, weights, columns._replace(exposure=np.ones(columns.n_columns)), key)

    return wrong


def expect_unexposed_activations(expect):
    """E[h | x] gathered where E[g h | x] belongs."""

    def wrong(problem, weights, columns, key):
        shares, active, counts = expect(problem, weights, columns, key)
        return shares, active / columns.exposure[:, None], counts

    return wrong


WRONG_EXPOSURES = {
    "none in the E-step": (EXPECTATIONS, expect_without_exposures),
    "none in the M-step": (EXPECTATIONS, expect_unexposed_activations),
    "eq. 48": ("stream of counts: sums without exposures", lambda right: lambda state: state),
}


@pytest.mark.parametrize("name", WRONG_EXPOSURES)
def test_wrong_exposures_are_seen(name, monkeypatch):
    plant(monkeypatch, *WRONG_EXPOSURES[name])
    lost, error = loss_exposed(run_exposed(COLUMNS // 4))
    print(name, lost, error)
    assert lost > 2 * (2e-3 + 5 * error), (lost, error)


def take_step_without_decay(take_step):
    def wrong(running, columns, first, last, shares, active, gain, is_averaged):
        running.clock[column_sweeps.MASS] = 1.0
        column_sweeps.add_columns(running, columns, first, last, shares, active, gain / (last - first))
        column_sweeps.end_step(running, last - first, is_averaged)

    return wrong


def take_step_with_halved_activations(take_step):
    def wrong(running, columns, first, last, shares, active, gain, is_averaged):
        take_step(running, columns, first, last, shares, 0.5 * active, gain, is_averaged)

    return wrong


def expect_by_the_prior(expect):
    """Sources shared out by W alone, as if the activations were their prior means."""

    def wrong(problem, weights, columns, key):
        shares, active, counts = expect(problem, weights, columns, key)
        W = weights.start if weights.is_start else weights.sources * weights.top
        mean = W[columns.rows] * problem.mean_h
        shares[:, :2] = columns.values[:, None] * mean / mean.sum(axis=1, keepdims=True)
        return shares, active, counts

    return wrong


PLANTED = {
    "no decay": (STEPS, take_step_without_decay, {}),
    "halved activations": (STEPS, take_step_with_halved_activations, {"complete": "CH"}),
    "no E-step": (EXPECTATIONS, expect_by_the_prior, {}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_seen(name, monkeypatch):
    place, wrong, options = PLANTED[name]
    plant(monkeypatch, place, wrong)
    lost, error = loss(run(**options))
    print(name, lost, error)
    assert lost > 2 * (3e-3 + 5 * error), (lost, error)


def test_a_wrong_divisor_is_seen(monkeypatch):
    """beta / alpha left out of eq. 48."""

    def prepare(*given):
        return replace(online_em.prepare(*given), mean_h=np.ones(2))

    put(monkeypatch, "registry", with_changed(online_em.STREAM, prepare=prepare))
    lost, error = loss(run())
    print(lost, error)
    assert lost > 2 * (3e-3 + 5 * error), (lost, error)


def test_surplus_components_vanish():
    """Filstroff, Lumbreras, Fevotte (2018), section 5.4: maximum marginal likelihood empties K - K* columns."""
    rng = np.random.default_rng(0)
    W = np.array([[5.0, 0.2], [3.0, 0.3], [0.2, 6.0], [0.4, 2.0], [2.0, 2.0]])
    X = rng.poisson(W @ rng.gamma(1.0, size=(2, size(30_000, 100_000))))
    stream = nz.stream(nz.gap(None, 3, shape=(5, 3)), engine=nz.OnlineEM(exponent=0.6), random_seed=2, cores=1)
    stream.update(X)
    norms = np.sort(stream.norms.values)
    print(norms)
    assert norms[0] < 0.05 * norms[1]


def test_memory_is_that_of_w():
    """The resident size after ten thousand more sparse columns, and after twenty thousand."""
    status = "/proc/self/status"
    try:
        open(status).close()
    except OSError:
        pytest.skip("needs Linux")

    def resident():
        with open(status) as file:
            (kib,) = (line.split()[1] for line in file if line.startswith("VmRSS"))
        return int(kib) / 1024

    rng, F, K = np.random.default_rng(0), 20_000, 10
    block = sp.random_array((F, 200), density=0.01, rng=rng, data_sampler=lambda size: rng.integers(1, 4, size=size))
    stream = nz.stream(nz.gap(None, K, shape=(F, K)), engine=nz.OnlineEM(sweeps=4, keep=2), random_seed=1, cores=1)
    sizes = []
    for _ in range(4):
        for _ in range(size(5, 50)):
            stream.update(block)
        sizes.append(resident())
    print(sizes)
    assert max(sizes[1:]) - min(sizes[1:]) < 8.0, sizes  # MiB; what was seen takes 10 per block of 200 columns


@pytest.mark.filterwarnings("ignore:X. .* no positive observed cell")
@pytest.mark.parametrize("is_exposed", [False, True], ids=["", "exposures"])
def test_as_good_as_the_batch_on_columns_that_neither_has_seen(is_exposed):
    """Two passes of the stream over columns, against Monte-Carlo EM that holds all of them."""
    n = size(1000, 4000)
    X, own, of_features = draw_exposed(n, 5) if is_exposed else (draw(n, 5), None, None)
    exposure = (of_features, own[None]) if is_exposed else None
    model = nz.gap(X, 2, alpha_h=SHAPE[:, None], beta_h=RATE[:, None], exposure=exposure)
    batch = nz.fit(model=model, engine="mcem", initvals={"W": START}, max_iter=200, random_seed=1, cores=1, quiet=True)
    stream = nz.stream(model, engine=nz.OnlineEM(average_after=n), initvals={"W": START}, random_seed=1, cores=1)
    stream.update(X, exposure=own)
    of_batch = _compat.group(batch, "posterior")["W"].to_numpy()[0, 0]
    new = draw(2000, 6)
    one, other = (
        nz.marginal_log_likelihood(
            nz.gap(new, 2, alpha_h=SHAPE[:, None], beta_h=RATE[:, None]), W, cores=1, progressbar=False
        )["log_likelihood"]
        for W in (stream.W, of_batch)
    )
    lost = (other - one).values
    print(lost.mean(), lost.std() / np.sqrt(lost.size))
    assert abs(lost.mean()) < 10 / n + 5 * lost.std() / np.sqrt(lost.size)
