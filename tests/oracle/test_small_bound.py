"""The compiled climb of small tables against the engine's own iterations, and the shortfall against dense algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence.contract import Job
from nmf_zoo.kernels.counts import small_bound
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.workbench.bound_correction import (
    VariationalPosterior,
    log_det_precision,
    log_orders,
    shortfall,
    shortfall_error,
    stirling_error,
)
from nmf_zoo.workbench.bounds import RankBound, climb, climb_small, is_small, posterior_of
from tests.structures import beside, gamma
from tests.structures import model as structure_of

RNG = np.random.default_rng(1)
X = RNG.poisson(RNG.gamma(1.0, size=(7, 3)) @ RNG.gamma(1.0, size=(3, 11)) * 20.0)
KNOWN = RNG.gamma(1.0, size=(7, 1))
JOB = Job(0, seed_key(1), SERIAL, lambda *_: None, lambda: False)
MODELS = {
    "plain": lambda x=X: nz.gamma_nmf(x, 3, alpha_w=2.0, mean_w=1.0, alpha_h=0.5, mean_h=5.0),
    "wide": lambda: nz.gamma_nmf(X.T.copy(), 4, alpha_w=0.3),
    "masked": lambda: nz.gamma_nmf(X, 3, mask=np.random.default_rng(2).random(X.shape) < 0.8),
    "exposed": lambda: nz.gamma_nmf(
        X, 2, exposure=np.linspace(0.5, 2, 7)[:, None], background=np.full(X.shape, 0.3), alpha_w=np.ones((7, 2))
    ),
}


def started(model):
    problem = vb.prepare(read(model), vb.VB(), SERIAL)
    return problem, vb.init(problem, child(seed_key(1), 0), {})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("iterations", [1, 2, 7, 60])
def test_the_climb_is_that_of_the_engine(name, iterations):
    problem, state = started(MODELS[name]())
    assert is_small(problem)
    q, bound, residual, done = climb_small(problem, state, iterations, 0.0, JOB)
    assert done == iterations
    for _ in range(iterations):
        state, info = vb.step(problem, state)
    assert bound == pytest.approx(state.bound, rel=1e-11)
    assert residual == pytest.approx(info.residual, rel=1e-6)
    theirs = posterior_of(state)
    for ours, own in zip(q, theirs, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-9)


def test_a_climb_in_pieces_is_one_climb(monkeypatch):
    problem, state = started(MODELS["plain"]())
    whole = climb_small(problem, state, 300, 0.0, JOB)
    monkeypatch.setattr("nmf_zoo.workbench.bounds.BLOCK", 7)
    parts = climb_small(problem, state, 300, 0.0, JOB)
    np.testing.assert_array_equal(parts[0].mean_w, whole[0].mean_w)
    assert parts[1] == whole[1]


def test_the_climb_never_falls_and_stops_at_tol():
    problem, state = started(MODELS["plain"]())
    values = [climb_small(problem, state, n, 0.0, JOB)[1] for n in range(1, 80)]
    assert np.min(np.diff(values)) >= -1e-9 * abs(values[-1])
    _, _, residual, _ = climb_small(problem, state, 100_000, 1e-5, JOB)
    assert residual < 1e-5


def test_what_underflows_is_left_to_the_engine(monkeypatch):
    model = nz.gamma_nmf(X, 3, alpha_w=1e-3)
    problem, state = started(model)
    nothing = np.zeros_like(state.sources.of_W)  # then exp(E[log w]) is 0, and so is the mean of a positive count
    lost = state._replace(sources=state.sources._replace(of_W=nothing))
    assert climb_small(problem, lost, 5, 0.0, JOB) is None

    options = RankBound(max_iter=50, tol=0.0)
    by_kernel = climb(problem.structure, options, JOB)
    monkeypatch.setattr("nmf_zoo.workbench.bounds.climb_small", lambda *_: None)
    by_engine = climb(problem.structure, options, JOB)
    assert by_engine[:3] == pytest.approx(by_kernel[:3], rel=1e-8)
    assert by_engine[3] == by_kernel[3] == "max_iter"


@pytest.mark.parametrize(
    "model",
    [
        lambda: nz.gamma_nmf(X, 2, alpha_w=nz.free()),
        lambda: nz.gamma_nmf(sp.csr_array(X), 2),
        lambda: nz.gamma_nmf(X, 2, alpha_w=1e6, beta_w=1e6),
        lambda: nz.gamma_nmf(np.tile(X, (30, 10)), 2),
        lambda: nz.gamma_nmf(X, 3, known=KNOWN),
    ],
)
def test_other_problems_are_not_small(model):
    assert not is_small(started(model())[0])


def test_kernels_without_numba():
    """The loops as Python run to the same numbers."""
    problem, state = started(MODELS["plain"]())
    compiled = climb_small(problem, state, 3, 0.0, JOB)
    names = ("climb", "_look", "_fill_moments", "_update", "_push", "_ahead", "_keep", "_copy", "_fill_means")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(small_bound, name, getattr(small_bound, name).py_func)
        patch.setattr("nmf_zoo.workbench.bounds.climb", small_bound.climb)
        plain = climb_small(problem, state, 3, 0.0, JOB)
    assert plain[1] == pytest.approx(compiled[1], rel=1e-12)
    np.testing.assert_allclose(plain[0].mean_h, compiled[0].mean_h, rtol=1e-12)


# -- the shortfall -------------------------------------------------------------------------------------------------


def dense_precision(problem, q):
    """P of all cells, W's row by row and then H's column by column, from the Jacobian of the mean."""
    structure, W, H = problem.structure, q.mean_w, q.mean_h.T
    (F, K), N = W.shape, H.shape[1]
    exposure = np.broadcast_to(1.0 if structure.likelihood.exposure is None else structure.likelihood.exposure, (F, N))
    seen = np.ones((F, N), bool) if structure.data.mask is None else structure.data.mask
    weight = seen / structure.mean_of(W, H, slice(None))
    slopes = np.zeros((F * N, F * K + N * K))
    for f in range(F):
        for n in range(N):
            for k in range(K):
                slopes[f * N + n, f * K + k] = slopes[f * N + n, F * K + n * K + k] = exposure[f, n] * W[f, k] * H[k, n]
    curves = []
    for side, mean, shape in zip(problem.sides, (W, q.mean_h), (q.shape_w, q.shape_h), strict=True):
        if shape is not None:
            counts = shape - side.prior({})[0]
            curves.append(np.where(counts < 0.5, shape, side.prior({})[1] * mean).ravel())
        else:
            curves.append(np.ones(mean.size))
    return slopes.T @ (weight.ravel()[:, None] * slopes) + np.diag(np.concatenate(curves))


@pytest.mark.parametrize("name", MODELS)
def test_the_precision_by_blocks_is_the_whole_one(name):
    problem, state = started(MODELS[name]())
    for _ in range(20):
        state, _ = vb.step(problem, state)
    q = posterior_of(state)
    whole = np.linalg.slogdet(dense_precision(problem, q))[1]
    assert log_det_precision(problem.structure, q, {}) == pytest.approx(whole, rel=1e-9)


def test_a_known_factor_leaves_blocks():
    model = pm.do(MODELS["plain"](), {"W": RNG.gamma(1.0, size=(7, 3))})
    problem, state = started(model)
    for _ in range(20):
        state, _ = vb.step(problem, state)
    q = posterior_of(state)
    whole = dense_precision(problem, q)[21:, 21:]
    assert log_det_precision(problem.structure, q, {}) == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-9)
    assert log_orders(problem.structure, q, {}) == 0.0


PARTLY = {  # components of W and of H that are free
    "of W": ((1, 3), None),
    "of H": (None, (0, 2)),
    "different ones": ((1, 3), (0, 2)),
    "of W, H known": ((1, 3), (0, 0)),
}


def partly_known(of_w, of_h, x=X):
    """Rank 3; a factor whose free components are (0, 0) is known, one with None has no known ones."""
    W, H = (np.random.default_rng(5).gamma(1.0, size=shape) for shape in ((len(x), 3), (3, x.shape[1])))
    priors = gamma(2.0, 1.5), H if of_h == (0, 0) else gamma(0.5, 0.1)
    structure = structure_of(x, 3, *priors)
    if of_w:
        structure = replace(structure, W=beside(structure.W, W, of_w))
    return replace(structure, H=beside(structure.H, H, of_h)) if of_h and of_h != (0, 0) else structure


@pytest.mark.parametrize("x", [X, X.T])
@pytest.mark.parametrize("name", PARTLY)
def test_the_precision_beside_known_components_is_of_the_others(name, x):
    problem = vb.prepare(partly_known(*PARTLY[name], x=x), vb.VB(), SERIAL)
    state = vb.init(problem, child(seed_key(1), 0), {})
    for _ in range(20):
        state, _ = vb.step(problem, state)
    q = posterior_of(state)
    shapes = [
        own if own is None else side.with_free(np.ones((len(mean), 3)), own)
        for own, side, mean in zip((q.shape_w, q.shape_h), problem.sides, (q.mean_w, q.mean_h), strict=True)
    ]
    free = np.concatenate([np.tile(side.are_free, len(mean)) for side, mean in zip(problem.sides, q[:2], strict=True)])
    whole = dense_precision(problem, q._replace(shape_w=shapes[0], shape_h=shapes[1]))
    expected = np.linalg.slogdet(whole[free][:, free])[1]
    assert log_det_precision(problem.structure, q, {}) == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(shortfall(problem.structure, q, {}))


def test_orders_are_those_of_the_components_that_are_free():
    shape = np.full((11, 3), 5.0)
    for name, free, orders in (("of W", (7, 2), 2.0), ("different ones", (7, 2), 1.0), ("of W, H known", (7, 2), 1.0)):
        of_h = {"of W": shape, "different ones": shape[:, :2], "of W, H known": None}[name]
        q = VariationalPosterior(np.ones((7, 3)), np.ones((11, 3)), np.full(free, 5.0), of_h)
        assert log_orders(partly_known(*PARTLY[name]), q, {}) == pytest.approx(np.log(orders))


def test_ranks_beside_known_components_are_judged():
    """Two known components, and one that is not: three in all are found, more or less by the corrected bound."""
    rng = np.random.default_rng(3)
    W = rng.dirichlet(np.full(12, 0.3), 3).T
    x = rng.poisson(W @ rng.gamma(1.0, 80.0, (3, 15)))
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(x, rank, known=W[:, :2], alpha_w=0.5, mean_w=1 / 12, mean_h=80.0),
        (2, 3, 4), restarts=2, search=None, random_seed=1, quiet=True,
    )  # fmt: skip
    assert np.all(np.isfinite(table["shortfall"].sel(rank=[3, 4])))
    assert table.attrs["best"] == 3


def test_orders_tell_components_without_counts_apart_from_those_with_but_not_among_themselves():
    structure = read(MODELS["plain"]())
    there, empty = np.full((7, 3), 5.0), np.full((7, 3), 5.0)
    empty[:, 1] = 2.0  # its prior's shape: no count
    h = np.full((11, 3), 5.0)
    assert log_orders(structure, VariationalPosterior(there, h, there, h), {}) == pytest.approx(np.log(6.0))
    assert log_orders(structure, VariationalPosterior(there, h, empty, h), {}) == pytest.approx(
        np.log(6.0)
    )  # which of the three
    empty[:, 2] = 2.0
    assert log_orders(structure, VariationalPosterior(there, h, empty, h), {}) == pytest.approx(np.log(3.0))
    told_apart = read(nz.gamma_nmf(X, 3, alpha_w=[1.0, 2.0, 3.0]))
    assert log_orders(told_apart, VariationalPosterior(there, h, there, h), {}) == 0.0


def test_what_has_no_shortfall():
    for model in (
        nz.gamma_nmf(sp.csr_array(X), 2),
        nz.gamma_nmf(np.ones((60, 60), int), 30),
        nz.gamma_nmf(X, 2, alpha_w=nz.free()),
    ):
        assert np.isnan(shortfall(read(model), None, {}))


def test_the_stated_error_is_that_of_stirlings_formula_and_a_share():
    """At shape 1: log Gamma is 0, and the formula says log(2 pi) / 2 - 1."""
    q = VariationalPosterior(np.ones((2, 1)), np.ones((3, 1)), np.ones((2, 1)), None)
    assert shortfall_error(q, 100.0) == pytest.approx(8.0 + 4.0 * 2 * (1.0 - 0.5 * np.log(2.0 * np.pi)))
    assert stirling_error(np.array([50.0])) == pytest.approx(1 / 600, rel=1e-3)
