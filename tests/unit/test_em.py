"""EM's options, verdicts, results and edge cases."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.shared.multiplicative import FLOOR, peak_on_simplex
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells, Imputed, Normal
from tests.runs import fit, largest_loss
from tests.structures import gamma, model, parameter, unknown

RNG = np.random.default_rng(1)
X = RNG.poisson(2.0, (6, 5)).astype(float)


def normal(x, prior_w, prior_h, sigma=1.0, rank=2, **rest):
    structure = model(x, rank, prior_w, prior_h, **rest)
    return dataclasses.replace(structure, likelihood=Normal(sigma=parameter(sigma)))


@pytest.mark.parametrize(
    ("options", "message"), [({"mode": "map"}, "mode"), ({"inner": 0}, "inner"), ({"inner": 1.5}, "inner")]
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=f"{message}: got"):
        em.EM(**options)


FREE = unknown("free", "flat")
REFUSED = {
    "shape below 1": (model(X, 2, gamma(0.5, 1.0), None), em.EM(), 'unbounded at 0.*mode="log"'),
    "unknown shape": (model(X, 2, None, gamma(FREE, 1.0)), em.EM(), "free is unknown"),
    "unknown rate, both gamma": (model(X, 2, gamma(1.0, 1.0), gamma(1.0, FREE)), em.EM(), "free is unknown"),
    "rate with a prior that is not conjugate": (
        model(X, 2, None, gamma(1.0, unknown("b", "lognormal", 0.0, 1.0))),
        em.EM(),
        "b has a prior, and not one of the conjugate ones",
    ),
    "rate per component": (
        model(X, 2, None, gamma(2.0, unknown("b", "flat", variable_shape=(2,), shape=(2, 1)))),
        em.EM(),
        "b is free for each component",
    ),
    "normal, shape 2": (normal(X, gamma(2.0, 1.0), None), em.EM(), "shape 1"),
    "normal, frozen": (normal(X, None, None), em.EM(inner=2), "inner="),
    "normal, exact fit": (normal(X, None, None, sigma=FREE, rank=5), em.EM(), "rank 5 can fit X exactly"),
    "normal, runaway": (normal(X, None, gamma(1.0, 1.0)), em.EM(), "give both a prior"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case):
    structure, options, message = REFUSED[case]
    verdict = em.supports(structure, options)
    assert not verdict
    assert re.search(message, verdict.reason)


ACCEPTED = {
    "flat": (model(X, 2, None, None), em.EM()),
    "log": (model(X, 2, gamma(0.1, 1.0), None), em.EM(mode="log")),
    "gap": (model(X, 2, None, gamma(2.0, FREE)), em.EM()),
    "rate with a prior": (model(X, 2, None, gamma(1.0, unknown("b", "gamma", 1.0, 1.0))), em.EM()),
    "gap mean": (model(X, 2, None, gamma(2.0, mean=FREE)), em.EM()),
    "normal free sigma": (normal(X, None, None, sigma=FREE), em.EM()),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case):
    assert em.supports(*ACCEPTED[case])


def test_finish_gives_the_models_variables_in_its_orientation():
    structure = model(X, 2, gamma(2.0, 1.0), None)
    turned = dataclasses.replace(
        structure,
        H=dataclasses.replace(structure.H, transposed=True),
        imputed=Imputed(name="X_unobserved", rows=np.array([1, 2]), cols=np.array([0, 3])),
    )
    problem, state, _, _ = fit(em.ENGINE, turned, em.EM(), 3)
    values, _ = em.finish(problem, state, seed_key(0), 100)
    assert values["W"].shape == (1, 6, 2)
    assert values["H"].shape == (1, 5, 2)
    np.testing.assert_array_equal(values["X_unobserved"][0], np.floor((state.W @ state.Ht.T)[[1, 2], [0, 3]]))


def test_a_fixed_factor_never_moves_and_nothing_to_fit_is_stationary():
    W, H = RNG.random((6, 2)), RNG.random((2, 5))
    _, state, info, _ = fit(em.ENGINE, model(X, 2, W, None), em.EM(), 5)
    np.testing.assert_array_equal(state.W, W)
    _, _, info, _ = fit(em.ENGINE, model(X, 2, W, H), em.EM(), 1)
    assert info.residual == 0.0


def test_what_is_never_observed_keeps_its_value():
    mask = np.ones(X.shape, dtype=bool)
    mask[2], mask[:, 1] = False, False
    start = {"W": RNG.random((6, 2)), "H": RNG.random((2, 5))}
    _, state, _, _ = fit(em.ENGINE, model(X, 2, None, None, mask=mask), em.EM(), 10, start=start)
    np.testing.assert_array_equal(state.W[2], start["W"][2])
    np.testing.assert_array_equal(state.Ht[1], start["H"][:, 1])


def test_a_row_of_zeros_gets_the_floor():
    x = X.copy()
    x[3] = 0.0
    _, state, info, _ = fit(em.ENGINE, model(x, 2, None, None), em.EM(), 2000, tol=1e-6)
    np.testing.assert_array_equal(state.W[3], FLOOR)
    assert info.residual < 1e-6


@pytest.mark.parametrize("masked", [False, True])
def test_the_constrained_update_maximises_on_the_simplex(masked):
    rng = np.random.default_rng(3)
    numerator, denominator = (
        rng.gamma(1.0, 1.0, (7, 3)),
        rng.gamma(1.0, 1.0, (7, 3)) if masked else rng.gamma(1.0, 1.0, (1, 3)),
    )
    numerator[2] = 0.0
    new = peak_on_simplex(np.full((7, 3), 1 / 7), numerator, denominator)
    np.testing.assert_allclose(new.sum(axis=0), 1.0, rtol=1e-12)

    def value(w):
        return np.sum(np.where(numerator > 0, numerator * np.log(np.maximum(w, 1e-300)), 0.0) - denominator * w, axis=0)

    for _ in range(200):
        other = rng.dirichlet(np.ones(7), 3).T
        for near in (0.01, 0.5, 1.0):
            assert np.all(value(near * other + (1 - near) * new) <= value(new) + 1e-12)


def test_mass_that_the_data_do_not_hold_goes_where_nothing_pulls_it_back():
    numerator, denominator = np.array([[1.0], [0.0], [0.0]]), np.array([[10.0], [0.0], [1.0]])
    np.testing.assert_allclose(
        peak_on_simplex(np.full((3, 1), 1 / 3), numerator, denominator)[:, 0], [0.1, 0.9, 0.0], atol=1e-12
    )


PRIORS = {
    "flat": None,
    "gamma": gamma(1.5, 0.7),
    "per component": gamma(np.array([[1.0, 2.0]]), 2.0),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    counts=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.7, 40.0]), min_size=3, max_size=3), min_size=2, max_size=6
    ),
    prior_w=st.sampled_from(sorted(PRIORS)),
    seed=st.integers(0, 5),
    options=st.sampled_from([em.EM(), em.EM(mode="log"), em.EM(inner=1), em.EM(inner=4)]),
    sparse=st.booleans(),
)
def test_no_objective_rises_and_nothing_is_nan(counts, prior_w, seed, options, sparse):
    x = np.array(counts)
    mask = np.random.default_rng(seed).random(x.shape) < 0.8
    if sparse:
        rows, cols = np.nonzero(mask)
        data = Cells(rows=rows, cols=cols, values=x[rows, cols], shape=x.shape, is_complete=False)
        structure = model(x, 2, PRIORS[prior_w], None, data=data)
    else:
        structure = model(x, 2, PRIORS[prior_w], None, mask=mask)
    _, state, _, objective = fit(em.ENGINE, structure, options, 30, seed=seed)
    assert np.all(np.isfinite(state.W))
    assert np.all(np.isfinite(state.Ht))
    assert np.all(np.isfinite(objective))
    assert largest_loss(objective, maximise=False) <= 1e-9


def test_the_objective_of_a_start_that_was_far_too_large_is_not_rounded_as_it_was():
    """Means that follow the changes of a factor from 1e8 to 1 are 1e-8 off; the objective is of means made anew."""
    rng = np.random.default_rng(2)
    known = rng.poisson(0.7, (3, 4)) + 0.5
    structure = model(rng.gamma(1.0, 1.0, (5, 4)), 3, None, known)
    problem = em.prepare(structure, em.EM(), SERIAL)
    state = em.init(problem, seed_key(1), {"W": 1e8 * rng.gamma(1.0, 1.0, (5, 3))})
    for _ in range(4):
        state, info = em.step(problem, state)
        assert info.objective == pytest.approx(-structure.log_likelihood(state.W, state.Ht.T, {}), rel=1e-13)


def test_a_factor_beyond_single_precision_ends_the_run():
    structure = model(np.ones((3, 4)), 2, None, None)
    problem = em.prepare(structure, em.EM(precision="float32"), SERIAL)
    with pytest.raises(RunFailed, match=r"beyond what single precision holds, 3.4e38: use precision="):
        em.init(problem, seed_key(1), {"W": np.full((3, 2), 1e39), "H": np.full((2, 4), 1e-39)})
