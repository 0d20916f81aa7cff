"""The step method in other people's models: which block it finds, what it refuses, what a step does."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel

X = np.array([[3, 0, 7, 2], [1, 5, 0, 2], [4, 4, 1, 0]])
F, N, K = 3, 4, 2


def regression(observed=X, transposed=False):
    """H's rate depends on a covariate."""
    with pm.Model() as model:
        slope = pm.Normal("slope")
        rate = pm.math.exp(slope * np.linspace(-1, 1, N))
        W = pm.Gamma("W", 1.5, 0.5, shape=(F, K))
        H = pm.Gamma("H", 2.0, rate[:, None] if transposed else rate, shape=(N, K) if transposed else (K, N))
        pm.Poisson("X", W @ (H.T if transposed else H), observed=observed)
    return model


def names(step):
    return [variable.name for variable in step.vars]


def start(model):
    return model.initial_point()


@pytest.mark.parametrize("transposed", [False, True])
def test_it_finds_the_factors_and_moves_only_them(transposed):
    model = regression(transposed=transposed)
    step = nz.ConjugateGibbs(model=model, rng=1)
    assert names(step) == ["W_log__", "H_log__"]
    point = start(model)
    moved, (stats,) = step.step(point)
    assert set(moved) == set(point)
    assert moved["slope"] == point["slope"]
    for name in names(step):
        assert moved[name].shape == point[name].shape
        assert np.all(moved[name] != point[name])
    assert stats["tune"] is True
    assert set(stats) == set(step.stats_dtypes_shapes)


def test_the_priors_follow_the_point():
    model = regression()
    step = nz.ConjugateGibbs(model=model, rng=1)
    shape, rate = step._gammas({**start(model), "slope": np.array(2.0)})["H"]
    np.testing.assert_allclose(shape, 2.0)
    np.testing.assert_allclose(np.broadcast_to(rate, (K, N))[0], np.exp(2.0 * np.linspace(-1, 1, N)))


def test_a_large_rate_makes_small_activations():
    model = regression()
    step = nz.ConjugateGibbs(model=model, rng=1)
    point = {**start(model), "slope": np.array(9.0)}
    draws = []
    for _ in range(50):
        point, _ = step.step(point)
        draws.append(np.exp(point["H_log__"]))
    mean = np.mean(draws, axis=0)
    assert mean[:, -1].max() < 0.01 * mean[:, 0].min()


def test_chains_of_the_same_generator_are_the_same():
    model, points = regression(), []
    step = nz.ConjugateGibbs(model=model)
    for _ in range(2):
        getattr(step, "setup_chain", step.set_rng)
        step.set_rng(np.random.default_rng(5))
        point = start(model)
        for _ in range(3):
            point, _ = step.step(point)
        points.append(point)
    np.testing.assert_array_equal(points[0]["W_log__"], points[1]["W_log__"])


def test_known_priors_run_the_trajectories_of_the_engine():
    with pm.Model() as model:
        W, H = pm.Gamma("W", 1.0, 1.0, shape=(F, K)), pm.Exponential("H", 2.0, shape=(K, N))
        pm.Poisson("X", W @ H, observed=X)
        step = nz.ConjugateGibbs()
    assert step._gammas is None
    point, _ = step.step(start(model))
    assert np.all(np.isfinite(point["W_log__"]))


def test_one_factor_may_be_known():
    with pm.Model() as model:
        b = pm.HalfNormal("b")
        H = pm.Gamma("H", 2.0, b, shape=(K, N))
        pm.Poisson("X", np.ones((F, K)) @ H, observed=X)
        assert names(nz.ConjugateGibbs([H])) == ["H_log__"]
    point, _ = nz.ConjugateGibbs(model=model, rng=0).step(start(model))
    assert np.all(np.isfinite(point["H_log__"]))


def test_a_step_survives_pickling():
    step = nz.ConjugateGibbs(model=regression(), rng=1)
    assert names(pickle.loads(cloudpickle.dumps(step))) == names(step)


def test_pm_sample_gives_the_rest_to_nuts():
    with regression():
        idata = pm.sample(20, tune=20, chains=1, random_seed=1, progressbar=False, step=[nz.ConjugateGibbs()])
    posterior = idata["posterior"]
    assert {"slope", "W", "H"} <= set(posterior.data_vars)
    assert float(posterior["slope"].std()) > 0


def with_another_use():
    model = regression()
    with model:
        pm.Normal("y", model["H"].sum(axis=0), 1.0, observed=np.zeros(N))
    return model


def with_a_potential():
    model = regression()
    with model:
        pm.Potential("sparse", -model["W"].sum())
    return model


def with_a_use_downstream():
    model = regression()
    with model:
        pm.Normal("z", pm.Deterministic("total", model["W"].sum()), 1.0)
    return model


def with_a_tied_prior():
    with pm.Model() as model:
        W = pm.Gamma("W", 1.0, 1.0, shape=(F, K))
        H = pm.Gamma("H", 1.0, W.sum(), shape=(K, N))
        pm.Poisson("X", W @ H, observed=X)
    return model


def with_two_blocks():
    model = regression()
    with model:
        V, G = pm.Gamma("V", 1.0, 1.0, shape=(F, K)), pm.Gamma("G", 1.0, 1.0, shape=(K, N))
        pm.Poisson("Y", V @ G, observed=X)
    return model


def with_normal_data():
    with pm.Model() as model:
        W, H = pm.Gamma("W", 1.0, 1.0, shape=(F, K)), pm.Gamma("H", 1.0, 1.0, shape=(K, N))
        pm.Normal("X", W @ H, 1.0, observed=X)
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (with_another_use, "H is used in y, too, and it would change its conditional"),
        (with_a_potential, "W is used in sparse, too"),
        (with_a_use_downstream, "W is used in z, too"),
        (with_a_tied_prior, "W is used in H, too, and its prior would change its conditional"),
        (with_two_blocks, "there are 2 blocks, W, H and V, G: name the variables of one"),
        (with_normal_data, "no observed Poisson variable has a mean W @ H of Gamma or Exponential variables"),
    ],
)
def test_what_is_not_conjugate_is_refused_with_its_reason(build, message):
    with pytest.raises(UnsupportedModel, match=message):
        nz.ConjugateGibbs(model=build())


def test_each_block_can_have_its_own_step():
    model = with_two_blocks()
    assert names(nz.ConjugateGibbs([model["V"], model["G"]], model=model)) == ["V_log__", "G_log__"]


def test_half_a_block_is_refused():
    model = regression()
    with pytest.raises(UnsupportedModel, match="got W; the block of X is W, H: give these, or none"):
        nz.ConjugateGibbs([model["W"]], model=model)


def test_sweeps_are_checked():
    with pytest.raises(InputError, match="sweeps: got 0"):
        nz.ConjugateGibbs(sweeps=0, model=regression())
