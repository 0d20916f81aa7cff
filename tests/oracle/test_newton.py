"""The Newton kernels against their naive twins; a planted error must be seen."""

import numpy as np
import pytest

from nmf_zoo.inference.counts import newton as newtons
from nmf_zoo.inference.counts.newton import Penalty, newton
from nmf_zoo.inference.shared.layout import expected_sources
from nmf_zoo.kernels.counts.newton import FLOOR
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells
from tests.naive.counts import newton as naive_newton
from tests.structures import model

RNG = np.random.default_rng(11)
F, N, K = 23, 17, 5
W, Ht = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (N, K))
X = RNG.poisson(3.0 * RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 1.0, (K, N))).astype(float)
X[5] = 0.0
BACKGROUND = 0.2 * RNG.random((F, N))


def steps_for(listed, background):
    rows, cols = np.nonzero(X)
    data = Cells(rows=rows, cols=cols, values=X[rows, cols], shape=X.shape, is_complete=True) if listed else None
    structure = model(X, K, None, None, data=data, background=BACKGROUND if background else None)
    return newton(structure, SERIAL, expected_sources(structure, SERIAL), False)


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("power", [0.0, 0.7])
def test_coordinate_descent_is_its_naive_twin(which, background, power):
    factor, other, x, offset = (W, Ht, X, BACKGROUND) if which == 0 else (Ht, W, X.T, BACKGROUND.T)
    linear, powers = other.sum(axis=0) + 0.3, np.full(K, power)
    new, twin = factor.copy(), factor
    for _ in range(6):
        steps_for(True, background).improve(which, new, other, Penalty(linear[None], powers[None]))
        args = [offset[f] if background else 0.0 for f in range(len(factor))]
        twin = np.array([naive_newton.descend_row(u, x[f], other, linear, powers, args[f]) for f, u in enumerate(twin)])
        np.testing.assert_allclose(new, twin, rtol=1e-9, atol=1e-90)


@pytest.mark.parametrize("which", [0, 1], ids=["W", "H"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("power", [0.0, 0.7])
def test_block_newton_is_its_naive_twin(which, background, power):
    factor, other, x, offset = (W, Ht, X, BACKGROUND) if which == 0 else (Ht, W, X.T, BACKGROUND.T)
    filled = x.sum(axis=1) > 0  # rows without counts have no curvature of their own: see the unit tests
    linear, powers = other.sum(axis=0) + 0.3, np.full(K, power)
    new = factor.copy()
    steps_for(False, background).improve(which, new, other, Penalty(linear[None], powers[None]))
    inside = offset[filled] if background else 0.0
    twin = naive_newton.improve_block(factor[filled], x[filled], other, linear, powers, newtons.ROUNDS, inside)
    np.testing.assert_allclose(new[filled], twin, rtol=1e-9, atol=1e-90)
    if not power:
        assert np.all(new[~filled] == FLOOR)


@pytest.mark.parametrize("wrong", ["linear", "power"])
def test_a_planted_error_is_seen(wrong):
    linear, powers = Ht.sum(axis=0) + 0.3, np.full(K, 0.7)
    new = W.copy()
    planted = Penalty((linear - 0.3 * (wrong == "linear"))[None], (powers * (wrong != "power"))[None])
    steps_for(True, False).improve(0, new, Ht, planted)
    twin = np.array([naive_newton.descend_row(u, X[f], Ht, linear, powers) for f, u in enumerate(W)])
    assert np.max(np.abs(new / twin - 1.0)) > 1e-3
