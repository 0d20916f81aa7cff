"""The likelihoods against SciPy and against differences; and EM by their slopes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.counts import em
from nmf_zoo.inference.general import em as em_by_slopes
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells, Exponential, Imputed, Likelihood, Normal, Poisson
from tests.planted import plant
from tests.structures import gamma, model, parameter

LIKELIHOODS = {"poisson": Poisson(), "normal": Normal(sigma=parameter(0.7)), "exponential": Exponential()}
LAWS = {
    "poisson": lambda mean: stats.poisson(mean),
    "normal": lambda mean: stats.norm(mean, 0.7),
    "exponential": lambda mean: stats.expon(scale=mean),
}
RNG = np.random.default_rng(2)
MEAN = RNG.gamma(2.0, 2.0, (4, 5))
X = RNG.poisson(MEAN).astype(float)


def log_probability(law, x):
    return law.logpmf(x) if hasattr(law.dist, "logpmf") else law.logpdf(x)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_densities_moments_and_slopes(name):
    likelihood, law = LIKELIHOODS[name], LAWS[name](MEAN)
    np.testing.assert_allclose(likelihood.log_density(X, MEAN, {}), log_probability(law, X), rtol=1e-12)
    np.testing.assert_allclose(likelihood.sd(MEAN, {}), law.std(), rtol=1e-12)
    positive, negative = likelihood.slopes(X, MEAN, {})
    assert np.all((positive >= 0) & (negative >= 0))
    step = 1e-6 * MEAN
    differences = (likelihood.log_kernel(X, MEAN + step, {}) - likelihood.log_kernel(X, MEAN - step, {})) / (2 * step)
    np.testing.assert_allclose(positive - negative, differences, atol=1e-6 * np.max(positive + negative))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_draws_are_of_the_law(name):
    """Both ways to draw, by the probability integral transform; counts spread evenly over their step."""
    likelihood, n = LIKELIHOODS[name], 4000
    mean, places = np.full(n, 3.3), np.arange(n)
    one, two = likelihood.draw(mean, {}, np.random.default_rng(4)), np.empty(n, dtype=likelihood.dtype)
    likelihood.draw_cells(two, mean, {}, places, places, seed_key(5))
    law = LAWS[name](3.3)
    for drawn in (one, two):
        low = law.cdf(drawn - 1) if likelihood.is_discrete else law.cdf(drawn)
        uniforms = low + np.random.default_rng(6).random(n) * (law.cdf(drawn) - low)
        assert stats.kstest(uniforms, "uniform").pvalue > 1e-3


def test_draws_by_the_quantile_function():
    """The default of a likelihood that has no kernel."""

    class ByQuantile(Exponential):
        draw_cells = Likelihood.draw_cells

        def quantile(self, share, mean, values):
            return stats.expon.ppf(share, scale=mean)

    rows, cols = np.divmod(np.arange(3000), 50)
    out = np.empty(3000)
    ByQuantile().draw_cells(out, np.full(3000, 2.0), {}, rows, cols, seed_key(7))
    assert stats.kstest(out, stats.expon(scale=2.0).cdf).pvalue > 1e-3
    some = np.empty(10)
    ByQuantile().draw_cells(some, np.full(10, 2.0), {}, rows[90:100], cols[90:100], seed_key(7))
    np.testing.assert_array_equal(some, out[90:100])


def test_data_that_they_can_not_have():
    bad = np.array([1.0, -2.0])
    assert Poisson.refusal_of(bad) == ("the value -2", "data >= 0", "check the data you gave")
    assert Exponential.refusal_of(bad) is not None
    assert Normal.refusal_of(bad) is None
    assert Poisson.refusal_of(np.abs(bad)) is None


# -- EM by slopes ----------------------------------------------------------------------------------------------------


MASK = RNG.random((6, 9)) < 0.8
TABLE = RNG.poisson(RNG.gamma(2.0, 2.0, (6, 9))) + 1.0
EXTRAS = {
    "plain": {},
    "mask": {"mask": MASK},
    "exposure": {"exposure": RNG.uniform(0.5, 2.0, (6, 9))},
    "all": {"mask": MASK, "exposure": RNG.uniform(0.5, 2.0, (1, 9)), "background": RNG.uniform(0.1, 0.5, (6, 1))},
}


def declared(name, extra, prior_w=None, prior_h=None, **more):
    structure = model(TABLE, 3, prior_w, prior_h, **EXTRAS[extra], **more)
    likelihood = structure.likelihood
    offsets = {"exposure": likelihood.exposure, "background": likelihood.background}
    return replace(structure, likelihood=replace(LIKELIHOODS[name], **offsets))


def run(engine, structure, steps, **options):
    problem = engine.prepare(structure, em.EM(**options), SERIAL)
    state, found = engine.init(problem, seed_key(3), {}), []
    for _ in range(steps):
        state, info = engine.step(problem, state)
        found.append((info.objective, info.residual))
    return state, np.array(found)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("prior", [None, (1.5, 0.3)], ids=["flat", "gamma"])
def test_of_counts_it_is_ems_own_update(extra, prior):
    prior = prior and gamma(*prior)
    structure = declared("poisson", extra, prior, prior)
    own, expected = run(em.ENGINE, structure, 20, accelerate=None, inner=None)
    found, objective = run(em_by_slopes.ENGINE, structure, 20)
    np.testing.assert_allclose(objective, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.W, own.W, rtol=1e-9)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_it_never_rises_and_ends_where_nothing_moves(name, extra):
    _, found = run(em_by_slopes.ENGINE, declared(name, extra, gamma(2.0, 1.0), gamma(2.0, 1.0)), 1500)
    objective, residual = found.T
    assert np.all(np.diff(objective) <= 1e-12 * np.abs(objective[1:]))
    assert residual[-1] < 1e-4
    assert objective[0] - objective[-1] > 1.0


def test_listed_cells_are_the_table_with_a_mask():
    rows, cols = np.nonzero(MASK)
    listed = Cells(rows=rows, cols=cols, values=TABLE[MASK], shape=TABLE.shape, is_complete=False)
    for name in LIKELIHOODS:
        cells, dense = (declared(name, "all", gamma(2.0, 1.0), gamma(2.0, 1.0), data=data) for data in (listed, None))
        np.testing.assert_allclose(run(em_by_slopes.ENGINE, cells, 5)[1], run(em_by_slopes.ENGINE, dense, 5)[1])


def test_a_known_factor_stays_and_missing_cells_are_imputed():
    known = RNG.gamma(2.0, 1.0, (6, 3))
    structure = declared("exponential", "mask", known, gamma(2.0, 1.0))
    rows, cols = np.nonzero(~MASK)
    structure = replace(structure, imputed=Imputed(name="X_missing", rows=rows, cols=cols))
    state, _ = run(em_by_slopes.ENGINE, structure, 3)
    np.testing.assert_array_equal(state.W, known)
    values, _ = em_by_slopes.finish(em_by_slopes.prepare(structure, em.EM(), SERIAL), state, seed_key(1), 5)
    assert set(values) == {"H", "X_missing"}
    np.testing.assert_allclose(values["X_missing"][0], (known @ state.Ht.T)[rows, cols])


def test_a_step_that_overshoots_is_shortened(monkeypatch):
    """Steps three times as long, in the logarithms, as the update: what is kept never loses, and something is kept."""

    def wrong(update):
        def longer(side, mode, old, *others):
            new, residual = update(side, mode, old, *others)
            return old * (new / old) ** 3, residual

        return longer

    plant(monkeypatch, "EM by slopes: updates", wrong)
    _, found = run(em_by_slopes.ENGINE, declared("exponential", "plain", gamma(2.0, 1.0), gamma(2.0, 1.0)), 50)
    assert np.all(np.diff(found[:, 0]) <= 1e-12 * np.abs(found[1:, 0]))
    assert found[0, 0] - found[-1, 0] > 1.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": 3}, "inner=3 is not for normal data"),
        ({"precision": "float32"}, "precision='float32' is not for"),
        ({"update": "sage"}, "update='sage' is not for"),
    ],
)
def test_options_that_say_nothing_here(change, says):
    assert says in em_by_slopes.supports(declared("normal", "plain"), em.EM(**change)).reason


def test_models_that_it_refuses():
    assert "unbounded at 0" in em_by_slopes.supports(declared("normal", "plain", gamma(0.5, 1.0)), em.EM()).reason
    assert em_by_slopes.supports(declared("normal", "plain", gamma(0.5, 1.0)), em.EM(mode="log"))
    empty = Cells(rows=np.array([0]), cols=np.array([0]), values=np.ones(1), shape=(6, 9), is_complete=True)
    assert "pass X as an array" in em_by_slopes.supports(declared("normal", "plain", data=empty), em.EM()).reason
