"""Models of ``pymc.dims`` are read as those of plain tensors are: the same structure, densities and draws."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import UnreadableModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTensor 2.38 says that its labelled tensors are experimental
    pmd = pytest.importorskip("pymc.dims")
    from pytensor.xtensor import math

F, N, K = 4, 6, 2
COUNTS = np.random.default_rng(0).poisson(3.0, (F, N))
DIMS = ("feature", "obs")
COORDS = {"feature": list("abcd"), "component": range(K), "obs": range(N)}
EFFORT = np.linspace(0.5, 2.0, N)
HAS_POISSON = hasattr(pmd, "Poisson")  # of PyMC 6
needs_poisson = pytest.mark.skipif(not HAS_POISSON, reason="pymc.dims of PyMC 5 has no Poisson")

SPELLINGS = {
    "dot": lambda W, H: math.dot(W, H),
    "turned dot": lambda W, H: math.dot(H, W),
    "sum of products": lambda W, H: (W * H).sum("component"),
    "sum of turned products": lambda W, H: (H * W).sum("component"),
}


def observe(mean, values=COUNTS, dims=DIMS):
    """The likelihood that this PyMC has."""
    observed = pmd.as_xtensor(values if HAS_POISSON else values.astype(float), dims=dims)
    if HAS_POISSON:
        pmd.Poisson("X", mu=mean, observed=observed, dims=dims)
    else:
        pmd.Normal("X", mu=mean, sigma=1.5, observed=observed, dims=dims)


def labelled(spelling="dot", effort=False, named=False, turned=False):
    with pm.Model(coords=COORDS) as model:
        rate = pmd.Gamma("rate", alpha=2.0, beta=1.0, dims=("component",))
        W = pmd.Gamma("W", alpha=1.0, beta=rate, dims=("component", "feature") if turned else ("feature", "component"))
        H = pmd.Gamma("H", alpha=1.5, beta=1.0, dims=("component", "obs"))
        mean = SPELLINGS[spelling](W, H)
        if named:
            mean = pmd.Deterministic("mean", mean, dims=DIMS)
        if effort:
            mean = pmd.Data("effort", EFFORT, dims=("obs",)) * mean
        observe(mean)
    return model


def plain(effort=False):
    with pm.Model(coords=COORDS) as model:
        rate = pm.Gamma("rate", 2.0, 1.0, dims="component")
        W = pm.Gamma("W", 1.0, rate, dims=("feature", "component"))
        H = pm.Gamma("H", 1.5, 1.0, dims=("component", "obs"))
        mean = pm.Data("effort", EFFORT, dims="obs") * (W @ H) if effort else W @ H
        if HAS_POISSON:
            pm.Poisson("X", mean, observed=COUNTS, dims=DIMS)
        else:
            pm.Normal("X", mean, 1.5, observed=COUNTS.astype(float), dims=DIMS)
    return model


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("effort", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_read_and_has_the_density_of_the_model(spelling, effort, named):
    model = labelled(spelling, effort, named)
    assert nz.describe(model) == nz.describe(plain(effort))
    nz.check(model)


def test_dims_of_a_factor_may_come_in_any_order():
    model = labelled(turned=True)
    nz.check(model)
    assert nz.read(model).W.shape == (F, K)


@needs_poisson
def test_draws_are_those_of_the_plain_model():
    how = {"draws": 20, "tune": 10, "chains": 1, "random_seed": 1, "quiet": True}
    found, expected = (nz.sample(model=model, **how) for model in (labelled(effort=True), plain(effort=True)))
    for name in ("W", "H", "rate"):
        own, theirs = (_compat.group(idata, "posterior")[name] for idata in (found, expected))
        assert own.dims == theirs.dims
        np.testing.assert_array_equal(own, theirs)
    for name in ("observed_data", "constant_data"):
        own, theirs = (_compat.group(idata, name) for idata in (found, expected))
        assert own.equals(theirs)


@needs_poisson
def test_the_rest_of_the_zoo_takes_it():
    model = labelled()
    idata = nz.sample(30, tune=10, chains=1, random_seed=1, quiet=True, model=model)
    assert nz.predict(idata, model, random_seed=1).dims == ("chain", "draw", *DIMS)
    values = _compat.group(nz.log_likelihood(idata, model, per="cell"), "log_likelihood")["X"]
    assert values.dims == ("chain", "draw", *DIMS)
    drawn = pm.sample_posterior_predictive(idata, model=model, random_seed=1, progressbar=False)
    assert _compat.group(drawn, "posterior_predictive")["X"].shape == (1, 30, F, N)


def test_flat_factors_and_free_hyperparameters():
    with pm.Model(coords=COORDS) as model:
        W = pmd.HalfFlat("W", dims=("feature", "component"))
        H = pmd.Gamma("H", alpha=1.0, beta=pmd.HalfFlat("beta"), dims=("component", "obs"))
        observe(math.dot(W, H))
    structure = nz.read(model)
    assert list(structure.unknowns) == ["beta"]
    assert structure.W.prior.__class__.__name__ == "Flat"
    nz.check(model)


def refuse_log_normal():
    W, H = (
        pmd.Gamma("W", alpha=1.0, beta=1.0, dims=("feature", "component")),
        pmd.LogNormal("H", 0.0, 1.0, dims=("component", "obs")),
    )
    observe(math.dot(W, H))


def refuse_potential():
    W, H = (
        pmd.Gamma(name, alpha=1.0, beta=1.0, dims=dims)
        for name, dims in (("W", ("feature", "component")), ("H", ("component", "obs")))
    )
    pmd.Potential("more", W.sum())
    observe(math.dot(W, H))


def refuse_sum():
    W, H = (
        pmd.Gamma(name, alpha=1.0, beta=1.0, dims=dims)
        for name, dims in (("W", ("feature", "component")), ("H", ("component", "obs")))
    )
    observe(math.dot(W, H) ** 2)


def refuse_together():
    W = pmd.Dirichlet(
        "W", a=pmd.as_xtensor(np.ones(F), dims=("feature",)), core_dims="feature", dims=("component", "feature")
    )
    observe(math.dot(W, pmd.Gamma("H", alpha=1.0, beta=1.0, dims=("component", "obs"))))


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (refuse_log_normal, "H: found a LogNormal prior"),
        (refuse_potential, "more"),
        (refuse_sum, "X: found mean"),
        (refuse_together, "W: found a labelled variable whose cells are drawn together"),
    ],
)
def test_what_is_refused_names_the_variable(declare, words):
    with pm.Model(coords=COORDS) as model:
        declare()
    with pytest.raises(UnreadableModel, match=words):
        nz.read(model)
