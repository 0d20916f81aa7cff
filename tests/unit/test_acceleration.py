"""Newton steps and momentum: monotone, the same stationary points, far fewer iterations, nothing lost on the way."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmf_zoo.inference.counts import em, vb
from nmf_zoo.inference.counts.newton import Penalty, newton
from nmf_zoo.inference.shared import acceleration
from nmf_zoo.inference.shared.acceleration import Momentum, ahead, ahead_by_ratio, is_no_worse, push_or_retreat
from nmf_zoo.inference.shared.layout import compress, expected_sources, turn
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.kernels.counts.newton import solve_quadratic
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Cells, Normal
from tests.registered import ORDERS
from tests.runs import fit, largest_loss
from tests.structures import gamma, model, parameter, unknown

F, N, K = 30, 20, 3
RNG = np.random.default_rng(5)
X = RNG.poisson(4.0 * RNG.gamma(0.7, 1.0, (F, K)) @ RNG.gamma(0.7, 1.0, (K, N))).astype(float)
X[3], X[:, 7] = 0.0, 0.0
MASK = RNG.random((F, N)) < 0.8
EXPOSURE, BACKGROUND = RNG.random((F, N)) + 0.5, 0.3 * RNG.random((1, N))


def as_cells(structure):
    """The same data as a list of cells."""
    mask = structure.data.mask
    rows, cols = np.nonzero(structure.data.values if mask is None else mask)
    x = structure.data.values[rows, cols]
    data = Cells(rows=rows, cols=cols, values=x, shape=structure.shape, is_complete=mask is None)
    return dataclasses.replace(structure, data=data)


def as_normal(structure):
    return dataclasses.replace(structure, likelihood=Normal(sigma=parameter(2.0)))


@pytest.mark.parametrize("option", [em.EM, vb.VB])
def test_options_are_checked(option):
    with pytest.raises(ValueError, match="accelerate: got 'anderson'; expected None or one of"):
        option(accelerate="anderson")


STRUCTURES = {
    "plain": model(X, K, None, None),
    "mask": model(X, K, None, None, mask=MASK),
    "everything": model(X, K, gamma(1.5, 0.7), None, mask=MASK, exposure=EXPOSURE, background=BACKGROUND),
    "maximum a posteriori": model(X, K, gamma(2.0, 0.7), gamma(1.3, 0.2)),
    "one factor known": model(X, K, RNG.random((F, K)), None),
}
LISTED = {f"{name}, listed": as_cells(structure) for name, structure in STRUCTURES.items()}
ALL = STRUCTURES | LISTED


@pytest.mark.parametrize("name", ALL)
def test_newton_steps_need_far_fewer_iterations_to_points_where_em_stays(name):
    structure = ALL[name]
    _, state, info, objective = fit(em.ENGINE, structure, em.EM(), 3000, tol=1e-7)
    assert largest_loss(objective, maximise=False) <= 1e-12
    assert info.residual < 1e-7
    start = {"W": state.W, "H": state.Ht.T}
    _, _, there, again = fit(em.ENGINE, structure, em.EM(accelerate=None), 1, start=start)
    assert there.residual < 1e-5  # the start is floored, relative to its largest cell
    np.testing.assert_allclose(again[0], objective[-1], rtol=1e-9)
    _, _, _, plain = fit(em.ENGINE, structure, em.EM(accelerate=None), 3000, tol=1e-7)
    assert len(objective) < len(plain) / 2


OTHERS = {
    "gap": (model(X, K, None, gamma(1.0, 0.7)), em.EM()),
    "gap, free rate": (model(X, K, None, gamma(2.0, unknown("b", "flat"))), em.EM()),
    "squared error": (as_normal(model(X, K, None, None)), em.EM()),
    "squared error, missing": (as_normal(model(X, K, None, None, mask=MASK)), em.EM()),
    "momentum": (model(X, K, None, None), em.EM(accelerate="momentum")),
    "momentum, refreshed": (model(X, K, gamma(1.5, 1.0), None), em.EM(accelerate="momentum", inner=None)),
    "log": (model(X, K, gamma(0.3, 1.0), None), em.EM(mode="log")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_momentum_leads_down_faster(name):
    structure, options = OTHERS[name]
    plain = dataclasses.replace(options, accelerate=None)
    _, state, _, objective = fit(em.ENGINE, structure, options, 150)
    assert largest_loss(objective, maximise=False) <= 1e-12
    assert objective[-1] <= fit(em.ENGINE, structure, plain, 150)[3][-1]
    if name.startswith("gap"):
        np.testing.assert_allclose(state.W.sum(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("free", [False, True])
def test_the_bound_rises_faster_to_the_same_fixed_points(order, free):
    prior = gamma(0.5, unknown("b", "flat")) if free else gamma(0.5, 1.0)
    structure = model(X, 2, gamma(0.8, 1.0), prior, mask=MASK)
    _, state, info, bound = fit(vb.ENGINE, structure, vb.VB(order=order), 4000, tol=1e-8)
    assert largest_loss(bound, maximise=True) <= 1e-12
    assert info.residual < 1e-8
    plain = vb.VB(order=order, accelerate=None)
    _, _, _, slow = fit(vb.ENGINE, structure, plain, 4000, tol=1e-8)
    assert len(bound) < len(slow)
    problem = vb.prepare(structure, plain, SERIAL)
    _, there = vb.step(problem, state)
    assert there.residual < 1e-7


@pytest.mark.parametrize("name", ["everything", "everything, listed"])
@pytest.mark.parametrize("engine", [em, vb])
def test_threads_change_not_a_bit_and_a_step_is_a_function_of_its_state(name, engine):
    structure = ALL[name] if engine is em else model(np.tile(X, (9, 12)), K, gamma(0.5, 1.0), gamma(0.5, 1.0))
    structure = as_cells(structure) if engine is vb and "listed" in name else structure
    options = em.EM() if engine is em else vb.VB()
    problem, state, _, one = fit(engine.ENGINE, structure, options, 12)
    workers = Workers(2)
    np.testing.assert_array_equal(fit(engine.ENGINE, structure, options, 12, workers=workers)[3], one)
    workers.close()
    first, second = (engine.step(problem, state)[1] for _ in range(2))
    assert first == second


def test_a_rejected_push_leaves_a_plain_step():
    structure = model(X, K, None, None)
    problem, state, _, _ = fit(em.ENGINE, structure, em.EM(), 5)
    away = state._replace(other=tuple(100.0 * RNG.random(a.shape) for a in (state.W, state.Ht)))
    base, _ = em.step(problem, state._replace(other=None))
    new, info = em.step(problem, away)
    np.testing.assert_array_equal(new.W, base.W)
    assert info.objective <= state.objective
    assert new.momentum == state.momentum.slower()
    blind = away._replace(objective=np.inf)  # without the safeguard it is taken
    _, info = em.step(problem, blind)
    assert info.objective > state.objective


def test_momentum_grows_and_shrinks():
    momentum = Momentum(0.5, 1.0)
    assert momentum.faster() == Momentum(0.525, 1.0)
    assert momentum.slower() == Momentum(0.25, 0.5)
    assert momentum.slower().faster().bound == pytest.approx(0.505)
    assert Momentum(1.0, 1.0).faster() == Momentum(1.0, 1.0)


def test_pushes():
    new, old = np.array([2.0, 1.0, FLOOR]), np.array([1.0, 3.0, 1.0])
    np.testing.assert_allclose(ahead(new, old, 0.5), [2.5, 0.1, FLOOR])
    np.testing.assert_allclose(ahead_by_ratio(new, old, 0.5), [2 * np.sqrt(2), np.sqrt(1 / 3), FLOOR])
    assert is_no_worse(1.0, np.inf)
    assert is_no_worse(1.0, 1.0 - 1e-13)
    assert not is_no_worse(1.0 + 1e-9, 1.0)
    assert not is_no_worse(np.nan, np.inf)
    assert not is_no_worse(np.inf, np.inf)
    assert not is_no_worse(np.nan, 1.0)
    assert acceleration.ROUNDING <= 1e-12


def test_the_other_side_holds_the_same_cells():
    layout = compress(LISTED["everything, listed"])
    back = turn(turn(layout, N), F)
    for one, other in zip(layout, back, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_quadratic_is_minimised_where_it_must_be():
    rng = np.random.default_rng(0)
    V = rng.gamma(0.5, 1.0, (40, 5))
    gram, factor, slopes = V.T @ V, rng.gamma(0.5, 1.0, (70, 5)), rng.normal(size=(70, 5)) * 10
    factor[::3, 1] = FLOOR
    bends, own, steps = rng.gamma(2.0, 1.0, 70), rng.random((70, 5)), np.empty((70, 5))
    for extra in (own, np.empty((0, 0))):
        solve_quadratic(steps, factor, slopes, bends, gram, extra, 5000)
        gradient = slopes + bends[:, None] * (steps @ gram) + (extra * steps if extra.size else 0.0)
        moved = factor + steps
        assert moved.min() >= 0.0
        assert np.abs(np.minimum(moved, gradient / np.abs(slopes).max())).max() < 1e-4


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 50),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    power=st.sampled_from([0.0, 0.5]),
    listed=st.booleans(),
)
def test_each_improvement_is_one_from_anywhere(seed, scale, power, listed):
    """Without any safeguard: the steps of one factor alone never raise the objective."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(rng.gamma(0.3, 3.0, (12, 9))).astype(float)
    structure = model(x * scale, 4, None, None, background=0.1 * rng.random((12, 1)))
    structure = as_cells(structure) if listed else structure
    sources = expected_sources(structure, SERIAL)
    steps = newton(structure, SERIAL, sources, False)
    W, Ht = np.exp(4.0 * rng.normal(size=(12, 4))), np.exp(4.0 * rng.normal(size=(9, 4)))

    def objective(W):
        logs = power * np.sum(np.log(W))
        return float(np.sum(W * (0.1 + Ht.sum(axis=0)))) - sources.gather(W, Ht, "W").log_mean - logs

    penalty = Penalty(0.1 + Ht.sum(axis=0)[None], np.full((1, 4), power))
    for _ in range(20):
        before = objective(W)
        _, log_mean = steps.improve(0, W, Ht, penalty)
        after = objective(W)
        assert after <= before + 1e-10 * max(abs(before), 1.0)
        # means are carried along, and from such starts steps of 1e5 cancel in them
        np.testing.assert_allclose(log_mean, sources.gather(W, Ht, "W").log_mean, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("pushed", "found", "after"), [(3.0, 3.0, "faster"), (9.0, 5.0, "slower"), (np.nan, 5.0, "slower")]
)
def test_a_push_that_loses_is_taken_back(pushed, found, after):
    momentum = Momentum(0.5)
    result = push_or_retreat(momentum, lambda: pushed, lambda: 5.0, lambda objective: objective <= 6.0)
    assert result == (found, getattr(momentum, after)())
    assert push_or_retreat(momentum, None, lambda: 5.0, lambda objective: False) == (5.0, momentum)
