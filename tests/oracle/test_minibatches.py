"""Stochastic VB: with one minibatch it is VB, what it reports in the end is a bound, and it comes near to VB's."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import vb_blocks, vb_minibatches
from nmf_zoo.inference.evidence.enumeration import log_evidence
from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.kernels.random.keyed_rng import child, generator_of, seed_key
from nmf_zoo.runtime.block_arrays import InMemory
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.verbs.block_source import CutArray
from nmf_zoo.verbs.fit_blocks import surveyed, with_arrays
from tests.cut_samples import CutSamples
from tests.naive.counts.sources import bound as naive_bound
from tests.planted import plant

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
EXPOSURE = RNG.gamma(5.0, 0.2, N)
OF_FEATURES = RNG.gamma(5.0, 0.2, (F, 1))
KNOWN = RNG.gamma(1.0, 1.0, (F, 1))
PRIOR_W, PRIOR_H = (np.array(1.2), np.array(0.5)), (np.array([1.1, 1.3, 1.5]), np.array(0.7))
KEY = seed_key(1)


def declared(**more):
    return nz.gamma_nmf(None, K, alpha_w=1.2, beta_w=0.5, alpha_h=PRIOR_H[0][:, None], beta_h=0.7, shape=(F, 1), **more)


def over(data, options, model=None, **more):
    run = {"max_iter": 5, "tol": 0, "random_seed": 1, "quiet": True, "cores": 1, **more}
    return nz.fit(model=model or declared(), data=data, engine=options, **run)


def of_fit(idata, name):
    return group(idata, "fit")[name].to_numpy()[0]


SETTINGS = {
    "dense": (CutArray(X, N), {}),
    "sparse": (CutArray(sp.csc_array(X), N), {}),
    "mask": (CutSamples(X, N, mask=MASK), {}),
    "exposures": (CutSamples(sp.csc_array(X), N, exposure=EXPOSURE), {}),
    "background": (CutArray(X, N), {"background": OF_FEATURES}),
    "background of samples": (CutSamples(sp.csc_array(X), N, background=(OF_FEATURES, EXPOSURE[None])), {}),
    "table of backgrounds": (CutSamples(X, N, background=OF_FEATURES * EXPOSURE), {}),
    "known component": (CutArray(X, N), {"known": KNOWN}),
}


def background_in(name):
    """Of the model or the samples, (F, N) or what broadcasts to it."""
    data, more = SETTINGS[name]
    found = more.get("background", getattr(data, "background", None))
    return 0.0 if found is None else found[0] * found[1] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", SETTINGS)
def test_one_minibatch_has_the_iterates_of_vb(name):
    """A step is made of the H of its own pass, VB's W of the H before: VB begins where the first pass has led."""
    data, more = SETTINGS[name]
    options = nz.VB(batch_size=N, inner=1, accelerate=None)
    structure, (start,) = surveyed(nz.read(declared(**more)), data, vb_minibatches.ENGINE, options)
    problem = vb_minibatches.ENGINE.prepare(with_arrays(structure, InMemory()), options, SERIAL)
    first = vb_minibatches.init(problem, KEY, start)
    state, _ = vb_minibatches.step(problem, first, child(KEY, 0))
    (sources,) = problem.data.arrays.get(1, 0, "sources")
    beside = vb_blocks.ENGINE.prepare(with_arrays(structure, InMemory()), options, SERIAL)
    beside.data.arrays.put(1, 0, {"sources": sources, "shape": sources, "rate": np.ones((1, K))})
    sums = vb_blocks.VBBlockSums(state.sums.of_W, state.sums.over_samples, 0.0, np.zeros((2, K)))
    whole = vb_blocks.BlockVBState(first.W, 1, sums)
    for number in range(1, 6):
        whole, _ = vb_blocks.step(beside, whole)
        np.testing.assert_allclose(state.W.shape, whole.W.shape, rtol=1e-12)
        np.testing.assert_allclose(state.W.mean, whole.W.mean, rtol=1e-12)
        state, _ = vb_minibatches.step(problem, state, child(KEY, number))
        (sources,) = problem.data.arrays.get(state.turn, 0, "sources")
        np.testing.assert_allclose(sources, beside.data.arrays.get(whole.turn, 0, "sources")[0], rtol=1e-11)


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("name", ["dense", "mask", "background", "background of samples", "table of backgrounds"])
def test_the_last_objective_is_the_bound_of_the_result(name, is_stopped):
    data, more = SETTINGS[name]
    stop = {"on_step": lambda step: step.number == 2} if is_stopped else {}
    found = over(data, nz.VB(batch_size=7), declared(**more), **stop)
    objective = of_fit(found, "objective")
    assert len(objective) == (2 if is_stopped else 5)
    q_w, q_h = ((of_fit(found, f"{own}_shape"), of_fit(found, f"{own}_rate")) for own in ("W", "H"))
    weight = MASK * 1.0 if name == "mask" else np.ones((F, N))
    priors = PRIOR_W, (PRIOR_H[0][:, None], PRIOR_H[1])
    expected = naive_bound(X * weight, weight, q_w, q_h, *priors, background=background_in(name))
    np.testing.assert_allclose(objective[-1], expected, rtol=1e-10)


FEW, MORE = (
    np.array([[2.0, 1.0, 0.0, 1.0], [1.0, 0.0, 2.0, 0.0]]),
    np.array([[6.0, 1.0, 3.0, 9.0], [2.0, 9.0, 4.0, 1.0]]),
)
TINY = {"two components": (FEW, 2, 4.0), "one component": (MORE, 1, 1.5)}


def check_below_evidence(x, rank, gap):
    model = partial(nz.gamma_nmf, rank=rank, alpha_w=0.8, beta_w=0.9, alpha_h=1.2, beta_h=0.6)
    exact = log_evidence(nz.read(model(x)))
    for seed in range(3):
        found = over(CutArray(x, 2), nz.VB(batch_size=1), model(None, shape=(2, 1)), random_seed=seed, max_iter=30)
        assert exact - gap < of_fit(found, "objective")[-1] <= exact + 1e-9


@pytest.mark.parametrize("name", TINY)
def test_the_bound_is_below_the_exact_evidence(name):
    check_below_evidence(*TINY[name])


def test_a_bound_without_its_divergence_is_seen(monkeypatch):
    plant(monkeypatch, "minibatches: bound of W", lambda right: lambda problem, W: 0.0)
    with pytest.raises(AssertionError):
        check_below_evidence(*TINY["one component"])


LARGER = np.random.default_rng(2)
COUNTS = LARGER.poisson(LARGER.gamma(0.3, 1.0, (30, K)) @ LARGER.gamma(0.3, 4.0, (K, 400))).astype(float)


def check_near_vb():
    """In 50 passes within 0.5 % of VB's bound at its fixed point: what is left falls with the steps.

    Four seeds were at 0.03 % to 0.42 %, and at 5.1 % with sums of the minibatch alone.
    """
    found, at_best = bound_of_counts(nz.VB(batch_size=20), 50), bound_of_vb()
    assert found > at_best - 0.005 * abs(at_best), f"{found:.1f}, VB {at_best:.1f}"


@cache
def bound_of_vb():
    return bound_of_counts(nz.VB(), 400)


def bound_of_counts(options, max_iter):
    model = nz.gamma_nmf(None, K, alpha_w=0.3, alpha_h=0.3, shape=(30, 1))
    return of_fit(over(CutArray(COUNTS, 150), options, model, max_iter=max_iter), "objective")[-1]


def test_minibatches_come_near_to_vb():
    check_near_vb()


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (
            "minibatches: sums of all samples",
            lambda right: lambda problem, found, n: right(problem, found, COUNTS.shape[1]),
        ),
        ("minibatches: steps", lambda right: lambda own, other, size: right(own, other, -size)),
    ],
    ids=["samples of the minibatch alone", "away from the minibatch"],
)
def test_planted_errors_are_seen(place, wrong, monkeypatch):
    plant(monkeypatch, place, wrong)
    with np.errstate(all="ignore"), pytest.raises((AssertionError, RunFailed)):
        check_near_vb()


def test_results_depend_on_the_seed_and_not_on_the_threads(monkeypatch):
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 8)
    one, two, other = (over(CutArray(sp.csc_array(X), 25), nz.VB(batch_size=7), **more) for more in RUNS)
    for name in ("W_shape", "W_rate", "H_shape", "objective"):
        np.testing.assert_array_equal(of_fit(one, name), of_fit(two, name))
        assert np.any(of_fit(one, name) != of_fit(other, name))


RUNS = {"cores": 1}, {"cores": 3}, {"random_seed": 2}


@pytest.mark.parametrize("form", [np.asarray, sp.csc_array])
def test_every_sample_is_in_one_minibatch_with_its_own_cells(form):
    """Samples that sum to their number say where they went."""
    table = np.zeros((F, N))
    table[np.arange(N) % F, np.arange(N)] = 1.0 + np.arange(N)
    numbers, options = 1.0 + np.arange(N), nz.VB(batch_size=7)
    data = CutSamples(form(table), 25, exposure=numbers, background=numbers[None])
    structure, _ = surveyed(nz.read(declared()), data, vb_minibatches.ENGINE, options)
    problem, generator = vb_minibatches.ENGINE.prepare(structure, options, SERIAL), generator_of(KEY)
    for number, sizes in ((0, [6, 6, 6, 7]), (2, [10])):
        first, last = structure.data.bounds[number : number + 2]
        found = list(vb_minibatches.minibatches(problem, number, *problem.data.read(number), generator))
        assert sorted(batch.structure.shape[1] for _, batch in found) == sizes
        samples = np.concatenate([own for own, _ in found])
        np.testing.assert_array_equal(np.sort(samples), np.arange(last - first))
        assert (number == 2) == bool(np.all(np.diff(samples) == 1))
        for own, batch in found:
            sums = batch.cells.weights.of_samples[:, 0]
            np.testing.assert_array_equal(sums, 1.0 + first + own)
            np.testing.assert_array_equal(batch.structure.likelihood.background[0], 1.0 + first + own)
            of_H = batch.cells.sources.gather(np.ones((F, K)), np.ones((len(own), K)), "H").of_H
            share = K / (K + 1.0)  # of the components: a background over its exposure is one more of their size
            np.testing.assert_allclose(of_H.sum(axis=1), share * (1.0 + first + own), rtol=1e-12)


def check_scales(setting):
    """No scale of a component nearby has a higher bound."""
    data, more = SETTINGS[setting]
    options = nz.VB(batch_size=N)
    structure, _ = surveyed(nz.read(declared(**more)), data, vb_minibatches.ENGINE, options)
    problem = vb_minibatches.ENGINE.prepare(structure, options, SERIAL)
    weight = MASK * 1.0 if setting == "mask" else np.ones((F, N))
    q_w = RNG.gamma(5.0, 1.0, (F, K)), RNG.gamma(5.0, 1.0, (1, K))
    q_h = RNG.gamma(5.0, 1.0, (K, N)), RNG.gamma(5.0, 1.0, (K, N))
    best = vb_minibatches.best_scales(problem, q_w[0] / q_w[1], np.sum(q_h[0] / q_h[1], axis=1))

    def bound(scales):
        priors = PRIOR_W, (PRIOR_H[0][:, None], PRIOR_H[1])
        scaled = (q_w[0], q_w[1] / scales), (q_h[0], q_h[1] * scales[:, None])
        return naive_bound(X * weight, weight, *scaled, *priors, background=background_in(setting))

    for k in range(K):
        for factor in (0.98, 1.02):
            assert bound(best * np.where(np.arange(K) == k, factor, 1.0)) < bound(best)


@pytest.mark.parametrize("setting", ["dense", "mask", "background"])
def test_scales_are_where_the_bound_is_highest(setting):
    check_scales(setting)


def test_other_scales_are_seen(monkeypatch):
    plant(monkeypatch, "minibatches: scales", lambda right: lambda *given: 1.03 * right(*given))
    with pytest.raises(AssertionError):
        check_scales("dense")


def test_steps_fall_as_samples_come():
    options = nz.VB(batch_size=10, exponent=0.6, offset=3.0)
    problem = SimpleNamespace(options=options, structure=nz.read(nz.gamma_nmf(X, K)))
    step_size = partial(vb_minibatches.step_size, problem)
    assert step_size(0, 10) == pytest.approx(4.0**-0.6)
    assert step_size(40, 10) == pytest.approx(8.0**-0.6)
    assert 1.0 - (1.0 - step_size(40, 5)) ** 2 == pytest.approx(8.0**-0.6)  # two halves, one whole
    assert step_size(0, N) == step_size(600, N) == 1.0
