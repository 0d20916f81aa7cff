"""The chains as PyMC distributions: densities against loops over the times, draws against the chain's law."""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import stats

from nmf_zoo.distributions.chains import BasisChain, LogNormalAR, Recipe, UnitChain
from nmf_zoo.errors import InputError

RNG = np.random.default_rng(4)
K, T = 3, 7
P, Q, INITIAL, ALPHA = (RNG.uniform(0.1, 0.9, K) for _ in range(4))
MEAN, PERSISTENCE, SCALE = np.array([0.0, 1.0, -1.0]), np.array([0.5, -0.4, 0.95]), np.array([0.3, 1.0, 2.0])
MODES = [pytest.param("NUMBA", marks=pytest.mark.rest), "FAST_COMPILE"]  # native draws, and those of NumPy


def log_basis(row, p, q, initial):
    total = np.log(initial if row[0] else 1 - initial)
    for old, new in itertools.pairwise(row):
        stay = q if old else p
        total += np.log(stay if old == new else 1 - stay)
    return total


def log_unit(row, alpha):
    total = 0.0
    for old, new in itertools.pairwise(row):
        down = alpha if old <= 0.5 else 1 - alpha
        total += np.log(down / old if new < old else (1 - down) / (1 - old))
    return total


def log_log_normal(row, mean, persistence, scale, first):
    z = np.log(row)
    total = stats.norm.logpdf(z[0], *first) - z.sum()
    return total + stats.norm.logpdf(z[1:], mean + persistence * (z[:-1] - mean), scale).sum()


def log_density(chain, value):
    given = pt.tensor(shape=(None,) * np.ndim(value), dtype=chain.dtype)
    return pm.logp(chain, given).eval({given: np.asarray(value, dtype=chain.dtype)}, mode="FAST_COMPILE")


@pytest.mark.parametrize("initial", ["given", "stationary"])
def test_density_of_basis_chains(initial):
    value = RNG.integers(0, 2, (K, T))
    chain = BasisChain.dist(P, Q, INITIAL if initial == "given" else initial, shape=(K, T))
    first = INITIAL if initial == "given" else (1 - P) / (2 - P - Q)
    expected = [log_basis(*arguments) for arguments in zip(value, P, Q, first, strict=True)]
    np.testing.assert_allclose(log_density(chain, value), expected, rtol=1e-12)


def test_density_of_unit_chains():
    value = RNG.random((K, T))
    expected = [log_unit(*arguments) for arguments in zip(value, ALPHA, strict=True)]
    np.testing.assert_allclose(log_density(UnitChain.dist(ALPHA, shape=(K, T)), value), expected, rtol=1e-12)


@pytest.mark.parametrize("initial", [(0.3, 1.5), "stationary"])
def test_density_of_log_normal_chains(initial):
    value = RNG.gamma(1.0, 1.0, (K, T))
    chain = LogNormalAR.dist(MEAN, PERSISTENCE, SCALE, initial, shape=(K, T))
    own = list(zip(MEAN, SCALE / np.sqrt(1 - PERSISTENCE**2), strict=True))
    firsts = own if initial == "stationary" else [initial] * K
    arguments = zip(value, MEAN, PERSISTENCE, SCALE, firsts, strict=True)
    np.testing.assert_allclose(log_density(chain, value), [log_log_normal(*one) for one in arguments], rtol=1e-12)


def test_densities_are_densities():
    """Summed over all paths, or integrated over the second of two times, they give one."""
    paths = np.array([[(n >> t) & 1 for t in range(4)] for n in range(16)])
    assert np.exp(log_density(BasisChain.dist(0.8, 0.3, 0.2, shape=(16, 4)), paths)).sum() == pytest.approx(1.0)
    grid = (np.arange(200_000) + 0.5) / 200_000
    for first in (0.2, 0.7):
        both = np.stack([np.full(grid.size, first), grid], axis=1)
        density = np.exp(log_density(UnitChain.dist(0.9, shape=both.shape), both))
        assert density.mean() == pytest.approx(1.0, abs=1e-4)


def test_one_parameter_serves_all_rows_and_one_time_is_a_chain():
    value = RNG.integers(0, 2, (K, 1))
    found = log_density(BasisChain.dist(0.8, 0.7, 0.2, shape=(K, 1)), value)
    np.testing.assert_allclose(found, np.log(np.where(value[:, 0] == 1, 0.2, 0.8)))
    assert log_density(UnitChain.dist(0.8, shape=(K, 1)), RNG.random((K, 1))).tolist() == [0.0] * K


@pytest.mark.parametrize(
    ("chain", "outside"),
    [
        (BasisChain.dist(0.8, 0.7, shape=(2,)), [0, 2]),
        (BasisChain.dist(0.8, 0.7, shape=(2,)), [-1, 0]),
        (UnitChain.dist(0.8, shape=(2,)), [0.5, 1.0]),
        (UnitChain.dist(0.8, shape=(2,)), [0.0, 0.5]),
        (LogNormalAR.dist(0.0, 0.5, 1.0, shape=(2,)), [1.0, 0.0]),
        (LogNormalAR.dist(0.0, 0.5, 1.0, shape=(2,)), [-1.0, 1.0]),
    ],
)
def test_outside_the_support(chain, outside):
    assert log_density(chain, np.array(outside)) == -np.inf


@pytest.mark.parametrize(
    ("chain", "value"),
    [
        (BasisChain.dist(1.0, 0.7, shape=(2,)), [0, 1]),
        (BasisChain.dist(0.8, 0.0, shape=(2,)), [0, 1]),
        (BasisChain.dist(0.8, 0.7, 1.2, shape=(2,)), [0, 1]),
        (UnitChain.dist(1.0, shape=(2,)), [0.5, 0.6]),
        (LogNormalAR.dist(0.0, 1.0, 1.0, shape=(2,)), [1.0, 2.0]),
        (LogNormalAR.dist(0.0, 0.5, 0.0, shape=(2,)), [1.0, 2.0]),
        (LogNormalAR.dist(0.0, 0.5, 1.0, (0.0, -1.0), shape=(2,)), [1.0, 2.0]),
    ],
)
def test_impossible_parameters(chain, value):
    with pytest.raises(ParameterValueError):
        log_density(chain, np.array(value))


def near(found, expected, n):
    """A frequency within five standard errors."""
    assert abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / n), (found, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("initial", [0.2, "stationary"])
def test_draws_of_basis_chains(mode, initial):
    path = pm.draw(BasisChain.dist(P[:, None], Q[:, None], initial, shape=(K, 500, 40)), random_seed=1, mode=mode)
    for k, rows in enumerate(path):
        first = (1 - P[k]) / (2 - P[k] - Q[k]) if initial == "stationary" else initial
        near(rows[:, 0].mean(), first, 500)
        old, new = rows[:, :-1].ravel(), rows[:, 1:].ravel()
        near((new[old == 0] == 0).mean(), P[k], (old == 0).sum())
        near((new[old == 1] == 1).mean(), Q[k], (old == 1).sum())


@pytest.mark.parametrize("mode", MODES)
def test_draws_of_unit_chains(mode):
    path = pm.draw(UnitChain.dist(0.8, shape=(400, 40)), random_seed=1, mode=mode)
    old, new = path[:, :-1].ravel(), path[:, 1:].ravel()
    assert stats.kstest(path[:, 0], "uniform").pvalue > 1e-4
    for low in (True, False):
        here = (old <= 0.5) == low
        near((new[here] < old[here]).mean(), 0.8 if low else 0.2, here.sum())
    down = new < old
    assert stats.kstest(new[down] / old[down], "uniform").pvalue > 1e-4
    roomy = ~down & (old < 1 - 1e-6)
    assert stats.kstest((new[roomy] - old[roomy]) / (1 - old[roomy]), "uniform").pvalue > 1e-4


def test_unit_chains_come_back_from_the_ends():
    """However long it moves towards an end, a value stays inside (0, 1), and the path turns as often as it should."""
    path = pm.draw(UnitChain.dist(0.95, shape=(20, 5000)), random_seed=1)
    assert path.min() > 0
    assert path.max() < 1
    assert abs((path > 0.5).mean() - 0.5) < 0.1
    turns = ((path[:, :-1] > 0.5) & (path[:, 1:] < 0.5)).sum(axis=1)
    assert turns.min() > 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("initial", [(2.0, 0.5), "stationary"])
def test_draws_of_log_normal_chains(mode, initial):
    chain = LogNormalAR.dist(MEAN[:, None], PERSISTENCE[:, None], SCALE[:, None], initial, shape=(K, 500, 40))
    for k, rows in enumerate(np.log(pm.draw(chain, random_seed=1, mode=mode))):
        own = MEAN[k], SCALE[k] / np.sqrt(1 - PERSISTENCE[k] ** 2)
        first = own if initial == "stationary" else initial
        assert stats.kstest((rows[:, 0] - first[0]) / first[1], "norm").pvalue > 1e-4
        steps = rows[:, 1:] - MEAN[k] - PERSISTENCE[k] * (rows[:, :-1] - MEAN[k])
        assert stats.kstest(steps.ravel() / SCALE[k], "norm").pvalue > 1e-4


def test_variables_of_a_model_take_their_length_from_dims():
    with pm.Model(coords={"component": range(K), "obs": range(T)}) as model:
        for name, chain in {"B": BasisChain, "U": UnitChain}.items():
            chain(name, *([0.8] * (2 if chain is BasisChain else 1)), dims=("component", "obs"))
        LogNormalAR("L", pm.Normal("m"), 0.5, pm.HalfNormal("s"), dims=("component", "obs"))
    assert {name: shape for name, shape in model.eval_rv_shapes().items() if name in "BUL"} == dict.fromkeys(
        "BUL", (K, T)
    )
    point = model.initial_point()
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(point))
    continuous = [model[name] for name in "msL"]
    assert np.all(np.isfinite(model.compile_dlogp(vars=continuous, mode="FAST_COMPILE")(point)))


def test_density_on_the_transformed_scale_has_the_jacobian():
    with pm.Model() as model:
        UnitChain("U", 0.8, shape=(2, 3))
        LogNormalAR("L", 0.0, 0.5, 1.0, shape=(2, 3))
    point = {"U_logodds__": RNG.normal(size=(2, 3)), "L_log__": RNG.normal(size=(2, 3))}
    with_, without = (model.compile_logp(jacobian=jacobian, mode="FAST_COMPILE")(point) for jacobian in (True, False))
    u = 1 / (1 + np.exp(-point["U_logodds__"]))
    assert with_ - without == pytest.approx(np.log(u * (1 - u)).sum() + point["L_log__"].sum(), rel=1e-12)


def test_without_a_name_it_is_a_recipe():
    assert BasisChain(0.9, 0.8) == Recipe(BasisChain, {"p": 0.9, "q": 0.8, "initial": 0.5})
    assert UnitChain(alpha=0.9).arguments == {"alpha": 0.9}
    assert LogNormalAR(0.0, 0.9, 0.1, initial=(1.0, 2.0)).arguments["initial_scale"] == 2.0


def test_what_is_refused():
    with pytest.raises(InputError, match="no length"):
        BasisChain.dist(0.9, 0.8)
    with pytest.raises(InputError, match="two numbers"):
        LogNormalAR.dist(0.0, 0.9, 0.1, initial=0.5, n_times=3)
