"""VB's options, verdicts, hyperparameter updates, results and edge cases."""

import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import psi

from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.shared.hyperparameters import Moments, update_hyperparameters
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Imputed, Normal
from tests.registered import ORDERS
from tests.runs import fit, largest_loss
from tests.structures import gamma, model, parameter, unknown

RNG = np.random.default_rng(1)
X = RNG.poisson(2.0, (6, 5)).astype(float)
PLAIN = gamma(1.5, 0.7)


def test_options_are_checked():
    with pytest.raises(ValueError, match="order: got 'jacobi'; expected one of"):
        vb.VB(order="jacobi")


REFUSED = {
    "normal": (
        dataclasses.replace(model(X, 2, PLAIN, PLAIN), likelihood=Normal(sigma=parameter(1.0))),
        "X is normal",
    ),
    "flat": (model(X, 2, None, PLAIN), "without a prior of W there is"),
    "hyperprior": (model(X, 2, PLAIN, gamma(1.0, unknown("b", "lognormal", 1.0, 1.0))), "b has a prior, and not one"),
    "no data": (dataclasses.replace(model(X, 2, PLAIN, PLAIN), data=None), "nothing is observed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case):
    structure, message = REFUSED[case]
    verdict = vb.supports(structure, vb.VB())
    assert not verdict
    assert message in verdict.reason


def test_free_values_for_every_cell_are_warned_of():
    structure = model(X, 2, gamma(unknown("a", "flat", variable_shape=(6, 2)), 1.0), PLAIN)
    with pytest.warns(NmfZooWarning, match="a: one free value per cell"):
        vb.prepare(structure, vb.VB(), SERIAL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vb.prepare(model(X, 2, gamma(unknown("a", "flat", variable_shape=(1, 2)), 1.0), PLAIN), vb.VB(), SERIAL)


def test_untied_hyperparameters_run_away_without_a_nan():
    structure = model(
        X,
        2,
        gamma(unknown("a", "flat", variable_shape=(6, 2)), mean=unknown("m", "flat", variable_shape=(6, 2))),
        PLAIN,
    )
    with pytest.warns(NmfZooWarning):
        _, state, _, bound = fit(vb.ENGINE, structure, vb.VB(), 300)
    assert np.all(np.isfinite(bound))
    assert largest_loss(bound, maximise=True) <= 1e-9
    assert state.values["a"].max() > 1e3


@pytest.mark.parametrize("start", [1e-15, 1.0, 1e12])
@pytest.mark.parametrize("spread", [1e-2, 1.0, 30.0])
def test_shape_updates_solve_their_equations_from_anywhere(start, spread):
    v = np.exp(spread * RNG.normal(size=(40, 1)))
    mean, log = v * 1.1, np.log(v)
    factor = model(np.ones((40, 2)), 1, gamma(unknown("a", "flat"), 2.0), PLAIN).W
    at_rate = update_hyperparameters([Moments(factor, mean, log)], {"a": np.array(start)})["a"]
    expected = optimize.brentq(lambda t: psi(np.exp(t)) - log.mean() - np.log(2.0), -60, 60, xtol=1e-14)
    np.testing.assert_allclose(at_rate, np.exp(np.clip(expected, -46, 46)), rtol=1e-9)
    for second in ({"rate": unknown("s", "flat")}, {"mean": unknown("s", "flat")}):
        factor = model(np.ones((40, 2)), 1, gamma(unknown("a", "flat"), **second), PLAIN).W
        both = update_hyperparameters([Moments(factor, mean, log)], {"a": np.array(start), "s": np.array(1.0)})
        gap = np.log(mean.mean()) - log.mean()
        root = optimize.brentq(lambda t, gap=gap: t - psi(np.exp(t)) - gap, -40, 40, xtol=1e-14)
        np.testing.assert_allclose(both["a"], np.exp(root), rtol=1e-6)
        np.testing.assert_allclose(both["s"], mean.mean() if "mean" in second else both["a"] / mean.mean(), rtol=1e-12)


def test_draws_come_from_q_and_carry_the_models_names():
    structure = model(X, 2, gamma(unknown("a", "flat"), 0.7), PLAIN)
    structure = dataclasses.replace(
        structure,
        H=dataclasses.replace(structure.H, name="activations", transposed=True),
        imputed=Imputed(name="X_unobserved", rows=np.array([1, 2]), cols=np.array([0, 3])),
    )
    problem, state, _, _ = fit(vb.ENGINE, structure, vb.VB(), 20)
    values, parameters = vb.finish(problem, state, seed_key(3), 4000)
    assert {name: value.shape for name, value in values.items()} == {
        "W": (4000, 6, 2),
        "activations": (4000, 5, 2),
        "a": (4000,),
        "X_unobserved": (4000, 2),
    }
    assert set(parameters) == {"W_shape", "W_rate", "activations_shape", "activations_rate"}
    for name, q in (("W", state.W), ("activations", state.H)):
        np.testing.assert_array_equal(parameters[f"{name}_shape"], q.shape)
        error = np.sqrt(q.shape) / q.rate / np.sqrt(4000)
        assert np.max(np.abs(values[name].mean(axis=0) - q.mean) / error) < 5.0
    mean = (state.W.mean @ state.H.mean.T)[[1, 2], [0, 3]]
    np.testing.assert_allclose(values["X_unobserved"].mean(axis=0), mean, rtol=0.15)
    again, _ = vb.finish(problem, state, seed_key(3), 4000)
    np.testing.assert_array_equal(values["W"], again["W"])


def test_a_known_factor_has_no_draws():
    problem, state, _, _ = fit(vb.ENGINE, model(X, 2, RNG.random((6, 2)), PLAIN), vb.VB(), 3)
    values, parameters = vb.finish(problem, state, seed_key(0), 10)
    assert set(values) == {"H"}
    assert set(parameters) == {"H_shape", "H_rate"}


def test_a_zero_in_a_known_factor_is_no_trouble():
    W = RNG.random((6, 2))
    W[0, 0] = 0.0
    _, _, _, bound = fit(vb.ENGINE, model(X, 2, W, PLAIN), vb.VB(), 30)
    assert np.all(np.isfinite(bound))


@pytest.mark.parametrize("shape", [1e-2, 1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_shapes_whose_geometric_means_underflow(shape, scale):
    _, state, _, bound = fit(vb.ENGINE, model(X * scale, 3, gamma(shape, 1.0), gamma(shape, 1.0)), vb.VB(), 100)
    assert np.all(np.isfinite(bound))
    assert np.all(np.isfinite(state.H.mean))
    assert largest_loss(bound, maximise=True) <= 1e-9


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    counts=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.7, 40.0]), min_size=3, max_size=3), min_size=2, max_size=6
    ),
    shape=st.sampled_from([1e-4, 0.1, 2.0, "free"]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 5),
)
def test_no_bound_falls_and_nothing_is_nan(counts, shape, order, seed):
    x = np.array(counts)
    mask = np.random.default_rng(seed).random(x.shape) < 0.8
    prior = gamma(unknown("a", "flat") if shape == "free" else shape, 0.5)
    _, state, _, bound = fit(vb.ENGINE, model(x, 2, prior, PLAIN, mask=mask), vb.VB(order=order), 30, seed=seed)
    assert np.all(np.isfinite(bound))
    assert np.all(np.isfinite(state.W.mean))
    assert largest_loss(bound, maximise=True) <= 1e-9


@pytest.mark.parametrize("size", [1e-35, 1e35])
def test_single_precision_refuses_what_it_can_not_hold(size):
    structure = model(np.full((3, 4), size), 2, PLAIN, PLAIN)
    assert vb.supports(structure, vb.VB())
    found = vb.supports(structure, vb.VB(precision="float32"))
    assert found.reason.endswith('and VB(precision="float32") takes 1e-30 to 1e+30: change its unit')
