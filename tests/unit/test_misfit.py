"""Whether the data lie where the model expects them, and what the verdict says of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import verdict_on
from nmf_zoo.diagnostics.coverage import Coverage, coverage_of
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.prediction.misfit import coverage_attribute
from nmf_zoo.reading import read
from nmf_zoo.reports.convergence import check_convergence
from nmf_zoo.reports.source import Source
from nmf_zoo.structure import Exponential, Known, Normal, Poisson
from tests.results import idata_of

RNG = np.random.default_rng(1)
TRUTH = RNG.gamma(0.7, 1.0, (30, 3)), RNG.gamma(1.0, 5.0, (3, 40))
MEAN = TRUTH[0] @ TRUTH[1]
RIGHT = RNG.poisson(MEAN)
WIDE = RNG.poisson(MEAN * RNG.gamma(2.0, 0.5, MEAN.shape))
RUN = {"random_seed": 1, "quiet": True}


@pytest.mark.parametrize("engine", ["em", "vb", "gibbs"])
@pytest.mark.parametrize(("X", "is_misfit"), [(RIGHT, False), (WIDE, True)], ids=["right", "wide"])
def test_counts_that_vary_too_much_are_told(engine, X, is_misfit):
    model = nz.gamma_nmf(X, 3)
    if engine == "gibbs":
        found = nz.sample(200, tune=200, chains=2, model=model, **RUN)
    else:
        found = nz.fit(model, engine=engine, search=None, **RUN)
    coverage = coverage_of(found.attrs)
    assert coverage.cells == 1000
    assert coverage.is_misfit == is_misfit
    assert 0.88 < coverage.expected < 0.95
    assert (coverage.inside < 0.8) == is_misfit
    verdict = verdict_on(found)
    assert coverage.words in verdict.text
    assert verdict.is_warning >= is_misfit
    if is_misfit and engine != "gibbs":
        assert "more components" in verdict.do
        assert "nz.negative_binomial_nmf" in verdict.do


def test_what_is_to_be_tried_helps():
    """The same counts under the law that the verdict names."""
    found = nz.fit(nz.negative_binomial_nmf(WIDE, 3, alpha=nz.free()), engine="em", search=None, **RUN)
    assert not coverage_of(found.attrs).is_misfit


def test_draws_of_the_truth_cover_what_they_should():
    """Data that the draws did not see: as many inside as expected, within errors, by either path."""
    W, H = RNG.gamma(1.0, 1.0, (40, 2)), RNG.gamma(1.0, 1.0, (2, 50))
    X, exposure, background = np.zeros((40, 50)), RNG.uniform(0.1, 20.0, (40, 50)), RNG.uniform(0.0, 2.0, (40, 50))
    off = []
    for seed in range(20):
        X = np.random.default_rng(seed).poisson(exposure * (W @ H) + background)
        model = nz.gamma_nmf(X, 2, exposure=exposure, background=background)
        draws = _compat.group(idata_of(model, W=W[None, None], H=H[None, None]), "posterior")
        coverage = coverage_of(coverage_attribute(draws, read(model), seed_key(seed)))
        off.append(coverage.inside - coverage.expected)
        assert not coverage.is_misfit
    assert abs(np.mean(off)) < 3 * np.std(off) / np.sqrt(20)


@pytest.mark.parametrize("kind", ["listed", "zeros", "missing"])
def test_sparse_and_missing_cells(kind):
    """Zeros of sparse counts are cells as others are; missing ones are none."""
    X = RNG.poisson(0.3 * MEAN)
    table = sp.csr_matrix(X)
    if kind == "missing":
        masked = np.where(RNG.random(X.shape) < 0.5, X, np.nan)
        model, n_cells = nz.gamma_nmf(masked, 2), min(1000, int(np.isfinite(masked).sum()))
    elif kind == "listed":
        model, n_cells = nz.gamma_nmf(table, 2, observed="stored"), min(1000, table.nnz)
    else:
        model, n_cells = nz.gamma_nmf(table, 2), 1000
    found = nz.fit(model, engine="vb", max_iter=200, search=None, **RUN)
    assert coverage_of(found.attrs).cells == n_cells
    if kind == "zeros":
        dense = nz.gamma_nmf(X, 2)
        draws, key = _compat.group(found, "posterior"), seed_key(3)
        assert coverage_attribute(draws, read(model), key) == coverage_attribute(draws, read(dense), key)


def test_sigma_is_what_to_try():
    X = RNG.normal(MEAN, 3.0).clip(0.0)
    known = nz.fit(nz.normal_nmf(X, 3), search=None, **RUN)
    assert coverage_of(known.attrs).is_misfit
    assert "sigma=nz.free()" in verdict_on(known).do
    learnt = nz.fit(nz.normal_nmf(X, 3, sigma=nz.free()), search=None, **RUN)
    assert not coverage_of(learnt.attrs).is_misfit


@pytest.mark.parametrize("is_sparse", [False, True])
def test_every_cell_has_its_own_sigma(is_sparse):
    """Errors of measurement that differ a hundredfold between rows: inside where each row's own is used."""
    sigma = np.where(np.arange(30) < 15, 0.1, 10.0)[:, None]
    X = (MEAN + RNG.normal(0.0, 1.0, MEAN.shape) * sigma).clip(1e-3)
    table = sp.csr_matrix(X) if is_sparse else X
    how = {"observed": "stored"} if is_sparse else {}
    model = nz.normal_nmf(table, 3, sigma=sigma, **how)
    posterior = _compat.group(idata_of(model, W=TRUTH[0][None, None], H=TRUTH[1][None, None]), "posterior")
    coverage = coverage_of(coverage_attribute(posterior, read(model), seed_key(1)))
    assert abs(coverage.inside - coverage.expected) < 0.05


def test_the_same_seed_says_the_same_and_a_store_says_it_too(tmp_path):
    pytest.importorskip("zarr")
    how = {"draws": 50, "tune": 20, "chains": 2, "model": nz.gamma_nmf(RIGHT, 2), "start": "random", **RUN}
    said = nz.sample(**how).attrs["coverage"]
    assert nz.sample(**how).attrs["coverage"] == said
    nz.sample(**how, store=tmp_path / "x.zarr")
    assert nz.load(tmp_path / "x.zarr").attrs["coverage"] == said


def test_without_draws_nothing_is_said():
    model, how = nz.gamma_nmf(RIGHT, 2), {"draws": 20, "tune": 5, "chains": 1, "start": "random", **RUN}
    assert "coverage" not in nz.sample(keep="moments", model=model, **how).attrs
    assert "coverage" not in nz.sample(var_names=["W"], model=model, **how).attrs
    for text in ("", "3", "{}", '{"inside": 1, "expected": 1, "cells": 0, "try": ""}', '{"inside": "x"}'):
        assert coverage_of({"coverage": text}) is None


def test_a_report_says_it_of_anyones_draws():
    model = nz.gamma_nmf(WIDE, 3)
    found = nz.fit(model, engine="vb", search=None, **RUN)
    told = check_convergence(Source(found, None, None, "W", "H", None)).verdict
    assert told == verdict_on(found)
    assert told.is_warning
    del found.attrs["coverage"]
    assert "predictive" not in check_convergence(Source(found, None, None, "W", "H", None)).verdict.text
    by_model = check_convergence(Source(found, model, read(model), "W", "H", None)).verdict
    assert "The data vary more than the model expects" in by_model.text


@pytest.mark.parametrize(
    ("inside", "cells", "is_misfit"), [(0.86, 1000, False), (0.84, 1000, True), (0.70, 20, False), (0.99, 1000, False)]
)
def test_chance_and_trifles_are_no_misfit(inside, cells, is_misfit):
    assert Coverage(inside, 0.9, cells, "").is_misfit == is_misfit


def test_the_attribute_is_json():
    found = nz.fit(nz.gamma_nmf(RIGHT, 2), engine="vb", max_iter=5, tol=0, search=None, **RUN)
    assert set(json.loads(found.attrs["coverage"])) == {"inside", "expected", "cells", "try"}


MEANS = np.geomspace(1e-6, 1e9, 2000)
LAWS = {
    "poisson": (Poisson(), scipy.stats.poisson(MEANS)),
    "normal": (Normal(sigma=Known(value=np.array(3.0))), scipy.stats.norm(MEANS, 3.0)),
    "exponential": (Exponential(), scipy.stats.expon(scale=MEANS)),
}


@pytest.mark.parametrize("name", LAWS)
def test_intervals_of_a_point_are_quantiles_of_the_law(name):
    law, expected = LAWS[name]
    low, high, inside = law.interval((0.05, 0.95), MEANS, {})
    for found, share in ((low, 0.05), (high, 0.95)):
        np.testing.assert_allclose(found, expected.ppf(share), rtol=1e-12)
    below = expected.cdf(low - 1.0) if law.is_discrete else expected.cdf(low)
    np.testing.assert_allclose(inside, expected.cdf(high) - below, atol=1e-9)


def test_a_mean_of_zero_has_no_counts():
    assert [float(part[0]) for part in Poisson().interval((0.05, 0.95), np.zeros(1), {})] == [0.0, 0.0, 1.0]


def test_a_point_and_equal_draws_say_the_same():
    """Intervals of 50 draws hold less than the law's own; how far the data miss what is expected is the same."""
    model = nz.gamma_nmf(RIGHT, 3)
    told = []
    for n_draws in (1, 100):
        W, H = (np.broadcast_to(factor, (1, n_draws, *factor.shape)) for factor in TRUTH)
        draws = _compat.group(idata_of(model, W=W, H=H), "posterior")
        told.append(coverage_of(coverage_attribute(draws, read(model), seed_key(1))))
    assert told[0].cells == told[1].cells
    of_law, of_draws = (coverage.inside - coverage.expected for coverage in told)
    assert of_law == pytest.approx(of_draws, abs=0.02)
    assert 0.0 < told[0].expected - told[1].expected < 0.06
