"""Steps of squared error: they end at the non-negative least squares of each row, and no step is a loss."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.inference.counts import newton
from nmf_zoo.inference.counts.em_losses import CompleteSparse, NormalLoss
from nmf_zoo.inference.counts.newton import FLOOR, LeastSquares, Penalty
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells
from tests.planted import put
from tests.structures import model

pytestmark = pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")  # a row without observed cells
RNG = np.random.default_rng(5)
F, N, K, SIGMA = 19, 23, 4, 0.7
W, Ht = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (N, K))
EXPOSURE, MASK = RNG.gamma(2.0, 1.0, (F, N)), RNG.random((F, N)) < 0.8
MASK[3] = False
X = EXPOSURE * (RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 1.0, (K, N))) + 0.3 * RNG.random((F, N))
OFFSETS = {
    "plain": {},
    "mask": {"mask": MASK},
    "exposure": {"exposure": EXPOSURE},
    "all": {"mask": MASK, "exposure": EXPOSURE, "background": 0.2},
}


def steps_for(name):
    return LeastSquares(
        NormalLoss(read(nz.normal_nmf(X, K, sigma=SIGMA, **OFFSETS[name])), SERIAL, "").squares, SERIAL, False
    )


def rows_of(name, which):
    """(y, weight, sqrt(weight) V of a row) of each row of W or Ht: the squares to be made least."""
    given = OFFSETS[name]
    exposure, background = given.get("exposure", np.ones((F, N))), given.get("background", 0.0)
    seen = given.get("mask", np.ones((F, N), dtype=bool))
    y, e, seen = (part.T if which else part for part in (np.where(seen, X - background, 0.0), exposure, seen))
    return y, np.where(seen, e, 0.0)


def objective(name, which, factor, other, rate):
    y, scale = rows_of(name, which)
    return 0.5 * np.sum((y - scale * (factor @ other.T)) ** 2) / SIGMA**2 + np.sum(rate * factor)


def best(name, which, other, rate):
    """By SciPy's active sets, row by row; the linear term goes into the data."""
    rows = []
    for y, scale in zip(*rows_of(name, which), strict=True):
        V = scale[:, None] * other / SIGMA
        if not V.any():
            rows.append(np.zeros(K))
            continue
        root = np.linalg.cholesky(V.T @ V)
        rows.append(scipy.optimize.nnls(root.T, np.linalg.solve(root, V.T @ y / SIGMA - rate))[0])
    return np.array(rows)


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_no_step_is_a_loss_and_the_end_is_least_squares(which, name, rate):
    factor, other = (W.copy(), Ht) if which == 0 else (Ht.copy(), W)
    steps, penalty = steps_for(name), Penalty(np.full((1, K), rate), np.zeros((1, K)), SIGMA**2)
    before = objective(name, which, factor, other, rate)
    for _ in range(600):
        residual, unknown = steps.improve(which, factor, other, penalty)
        after = objective(name, which, factor, other, rate)
        assert unknown is None
        assert after <= before * (1 + 1e-13)
        before = after
    assert residual < 1e-9
    found, expected = factor, best(name, which, other, rate)
    has_data = rows_of(name, which)[1].any(axis=1) | (rate > 0)
    np.testing.assert_allclose(found[has_data], expected[has_data], rtol=1e-7, atol=1e-9)
    assert np.all(found >= FLOOR)


def test_a_whole_step_where_weights_differ_is_seen_as_a_loss(monkeypatch):
    """The approximation says where to go, not how far."""

    def worst():
        factor, penalty, ratios = W.copy(), Penalty(np.zeros((1, K)), np.zeros((1, K)), SIGMA**2), []
        for _ in range(30):
            before = objective("exposure", 0, factor, Ht, 0.0)
            steps_for("exposure").improve(0, factor, Ht, penalty)
            ratios.append(objective("exposure", 0, factor, Ht, 0.0) / before)
        return max(ratios)

    assert worst() <= 1.0 + 1e-13
    put(monkeypatch, "EM: lengths of Newton's steps", lambda steps, *rest: np.ones(len(steps)))
    assert worst() > 1.0 + 1e-6


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
def test_components_that_are_known_stay(which):
    factor, other = (W.copy(), Ht) if which == 0 else (Ht.copy(), W)
    before, free = factor.copy(), slice(1, 3)
    penalty = Penalty(np.zeros((1, 2)), np.zeros((1, 2)), SIGMA**2)
    for _ in range(100):
        residual, _ = steps_for("all").improve(which, factor, other, penalty, free)
    np.testing.assert_array_equal(factor[:, [0, 3]], before[:, [0, 3]])
    assert residual < 1e-9
    assert objective("all", which, factor, other, 0.0) < objective("all", which, before, other, 0.0)


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
@pytest.mark.parametrize(("rate", "floor_of_off"), [(0.0, 0.0), (0.4, newton.OFF), (0.0, newton.OFF)])
def test_a_component_that_is_off_on_the_other_side(which, rate, floor_of_off, monkeypatch):
    """It has no data: the prior says where it goes, without one it stays; divided by its size, it was 1e92."""
    factor, other = (W.copy(), Ht.copy()) if which == 0 else (Ht.copy(), W.copy())
    other[:, 2], before = FLOOR, factor.copy()
    put(monkeypatch, "EM: size of a component that is off", floor_of_off)
    steps_for("plain").improve(which, factor, other, Penalty(np.full((1, K), rate), np.zeros((1, K)), SIGMA**2))
    assert (factor[:, 2].max() > 1e50) == (floor_of_off == 0.0)
    if floor_of_off:
        np.testing.assert_array_equal(factor[:, 2], FLOOR if rate else before[:, 2])


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
def test_sparse_data_take_the_steps_of_dense_ones(which):
    rows, cols = np.nonzero(MASK)
    thin = np.where(MASK, X, 0.0)
    data = Cells(rows=rows, cols=cols, values=X[rows, cols], shape=X.shape, is_complete=True)
    sparse = LeastSquares(CompleteSparse(model(thin, K, None, None, data=data)), SERIAL, False)
    dense = LeastSquares(NormalLoss(read(nz.normal_nmf(thin, K, sigma=SIGMA)), SERIAL, "").squares, SERIAL, False)
    penalty, ends = Penalty(np.zeros((1, K)), np.zeros((1, K)), SIGMA**2), []
    for steps in (sparse, dense):
        factor, other = (W.copy(), Ht) if which == 0 else (Ht.copy(), W)
        residual, _ = steps.improve(which, factor, other, penalty)
        ends.append(np.append(factor.ravel(), residual))
    np.testing.assert_allclose(*ends, rtol=1e-10, atol=1e-12)
    assert sp.issparse(sparse.squares.X)


@pytest.mark.parametrize("name", OFFSETS)
def test_fits_reach_the_objective_of_the_updates(name):
    """The same minimum from the same start, by another way."""
    known = np.abs(W + 0.01)
    fitted = nz.normal_nmf(X, K, sigma=SIGMA, known=known, **OFFSETS[name])
    ends = []
    for accelerate in ("newton", "momentum"):
        how = {"engine": nz.EM(accelerate=accelerate), "max_iter": 20_000, "tol": 1e-8, "random_seed": 1}
        idata = nz.fit(model=fitted, restarts=1, quiet=True, **how)
        ends.append(idata["fit"]["objective"].dropna("iteration").to_numpy()[0])
    assert ends[0][-1] == pytest.approx(ends[1][-1], rel=1e-9)
    assert len(ends[0]) < len(ends[1]) / 5


def test_fits_with_components_that_go_off_converge():
    """The residual forgets what the data would say of them; it stayed at 2e-3 for ever."""
    n_off = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        fitted = nz.normal_nmf(rng.gamma(1.0, 1.0, (20, 2)) @ rng.gamma(1.0, 1.0, (2, 25)), 6, sigma_w=1.0, sigma_h=1.0)
        idata = nz.fit(model=fitted, max_iter=500, restarts=1, search=None, random_seed=seed, quiet=True)
        assert idata["fit"]["converged"].all()
        n_off += int(np.sum(idata["posterior"]["W"].to_numpy()[0, 0].max(axis=0) < 1e-50))
    assert n_off > 0
