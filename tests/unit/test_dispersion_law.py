"""Variational Bayes with a prior of the dispersion: q of alpha on nodes, held against integrals over fine grids."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.overdispersed import dispersion_law, vb
from nmf_zoo.kernels.random.keyed_rng import generator_of, seed_key
from tests.pairs import pairs
from tests.planted import put

F, K, N = 7, 2, 9
RNG = np.random.default_rng(3)
W, H = RNG.gamma(2.0, 1.0, (F, K)), RNG.gamma(2.0, 1.0, (K, N))
X = RNG.poisson(W @ H * RNG.gamma(2.0, 0.5, (F, N)))
MASK = RNG.uniform(size=(F, N)) < 0.7
RUN = {"engine": "vb", "search": None, "quiet": True, "random_seed": 1}
PRIORS = {  # the prior of a shape, and its log density
    "log-normal": (lambda shape: pm.LogNormal("alpha", np.log(10.0), 2.0, shape=shape), stats.lognorm(2.0, scale=10.0)),
    "gamma": (lambda shape: pm.Gamma("alpha", 0.3, 0.1, shape=shape), stats.gamma(0.3, scale=10.0)),
    "half-normal": (lambda shape: pm.HalfNormal("alpha", 4.0, shape=shape), stats.halfnorm(scale=4.0)),
    "inverse gamma": (lambda shape: pm.InverseGamma("alpha", 3.0, 2.0, shape=shape), stats.invgamma(3.0, scale=2.0)),
}
SHAPES = {"one": (), "features": (F, 1), "samples": (1, N)}


def declared(prior, shape, **more):
    with pm.Model() as model:
        nz.negative_binomial_nmf(X, K, alpha=PRIORS[prior][0](SHAPES[shape]), **more)
    return model


def objectives(fitted):
    values = _compat.group(fitted, "fit")["objective"].to_numpy().ravel()
    return values[np.isfinite(values)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior", PRIORS)
def test_of_known_means_the_bound_is_the_evidence_and_q_the_posterior(prior, shape):
    known = pm.do(declared(prior, shape, mask=MASK, background=0.3), {"W": W, "H": H})
    fitted = nz.fit(**RUN, draws=4000, model=known)
    axes = {"one": (1, 2), "features": 2, "samples": 1}[shape]
    logs, cells = log_densities()
    table = cells.sum(axes).reshape(len(logs), -1)
    table += (PRIORS[prior][1].logpdf(np.exp(logs)) + logs)[:, None]
    weights = np.exp(table - table.max(axis=0))
    evidence = np.sum(table.max(axis=0) + np.log(weights.sum(axis=0) * (logs[1] - logs[0])))
    assert objectives(fitted)[-1] == pytest.approx(evidence, abs=1e-7)
    weights /= weights.sum(axis=0)
    drawn = np.log(_compat.group(fitted, "posterior")["alpha"].to_numpy().reshape(4000, -1))
    middle = logs @ weights
    variance = np.square(logs) @ weights - middle**2
    fourth = np.stack([(logs - own) ** 4 @ weight for own, weight in zip(middle, weights.T, strict=True)])
    assert np.all(np.abs(drawn.mean(axis=0) - middle) < 5.0 * np.sqrt(variance / 4000))
    assert np.all(np.abs(drawn.var(axis=0) - variance) < 5.0 * np.sqrt((fourth - variance**2) / 4000))


@cache
def log_densities():
    """log alpha on a fine grid, and there log p of every cell (grid, F, N), 0 of the missing ones.

    By scipy, whose digits at large alpha are Poisson's.
    """
    logs, mean = np.linspace(-60.0, 40.0, 10_001), W @ H + 0.3
    alpha = np.exp(logs)[:, None, None]
    negative_binomial = stats.nbinom.logpmf(X, alpha, alpha / (alpha + mean))
    cells = np.where(alpha < 1e8, negative_binomial, stats.poisson.logpmf(X, mean))
    return logs, np.where(MASK, cells, 0.0)


@pytest.mark.parametrize(("prior", "shape", "accelerate"), pairs(PRIORS, SHAPES, [None, "momentum"]))
def test_the_bound_never_falls(prior, shape, accelerate):
    model = declared(prior, shape, mask=MASK, exposure=np.linspace(0.5, 2.0, F)[:, None], background=0.3)
    options = nz.VB(accelerate=accelerate)
    found = objectives(nz.fit(**{**RUN, "engine": options}, max_iter=25, tol=0, model=model))
    assert len(found) == 25
    assert np.min(np.diff(found)) >= -1e-9 * np.abs(found).max()


def test_an_end_of_other_multipliers_is_seen(monkeypatch):
    """The planted error: expected multipliers at the middle of q, not averaged over it."""
    model = declared("gamma", "features", mask=MASK)
    run = {**RUN, "engine": nz.VB(accelerate=None), "max_iter": 150, "tol": 0, "model": model}
    right = objectives(nz.fit(**run))[-1]
    put(
        monkeypatch,
        "VB of overdispersed counts: nodes of the dispersion",
        lambda problem, state: [(middle_of(problem, state), np.ones((1, 1)))],
    )
    wrong = objectives(nz.fit(**run))[-1]
    assert right - wrong > 1e-4


def middle_of(problem, state):
    return vb.alpha_of(problem.structure, state.values)


def test_the_default_model_runs_and_has_a_bound():
    model = nz.negative_binomial_nmf(np.where(MASK, X, np.nan), K)
    fitted = nz.fit(**RUN, draws=50, model=model)
    alpha = _compat.group(fitted, "posterior")["alpha"].to_numpy()
    assert np.all(alpha > 0)
    assert len(np.unique(alpha)) == 50
    bound = nz.evidence(model, nz.Bound(search=None, restarts=1), random_seed=1, quiet=True).attrs["log_evidence"]
    assert np.isfinite(bound)


@pytest.mark.parametrize("at", [-3.0, 40.0])
@pytest.mark.parametrize("sd", [1e-4, 0.5, 6.0])
def test_nodes_find_a_law_wherever_it_is(at, sd):
    """A normal law of log alpha, known in every respect."""

    def log_density(alpha):
        return -0.5 * np.square((np.log(alpha) - at) / sd)

    law = dispersion_law.fit_law(log_density, np.full((1, 1), -2.0), np.full((1, 1), 2.0))
    assert law.log_total[0, 0] == pytest.approx(0.5 * np.log(2.0 * np.pi) + np.log(sd), abs=1e-7)
    assert np.log(law.middle[0, 0]) == pytest.approx(at, abs=1e-6 * sd + 1e-9)
    drawn = np.log(dispersion_law.draw_alpha(law, 10_000, generator_of(seed_key(1)))).ravel()
    assert stats.kstest((drawn - at) / sd, "norm").pvalue > 1e-3


def test_a_density_that_ends_is_refused():
    with pm.Model() as model:
        nz.negative_binomial_nmf(X, K, alpha=pm.Uniform("alpha", 0.1, 5.0))
    with pytest.raises(UnsupportedModel, match=r"ends within the positive numbers.*gamma prior"):
        nz.fit(**RUN, model=model)
