"""Errors of measurement: ``sigma=`` in all its shapes and spellings, declared, read, drawn, scored and fitted."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import xarray as xr
from scipy import stats
from scipy.optimize import nnls

import nmf_zoo as nz
from nmf_zoo.structure import Known, KnownAtCells
from tests.planted import plant

F, N, K = 5, 7, 2
RNG = np.random.default_rng(1)
W, H = RNG.gamma(2.0, 1.0, (F, K)), RNG.gamma(2.0, 1.0, (K, N))
S = RNG.uniform(0.1, 0.4, (F, N))
X = np.abs(W @ H + S * RNG.standard_normal((F, N)))
GAPS = np.where(RNG.random((F, N)) < 0.2, np.nan, X)
PRIORS = {"alpha_w": 2.0, "beta_h": 0.5}


def sparse_table():
    return sp.csr_array(np.nan_to_num(GAPS)), sp.csr_array(np.where(np.isnan(GAPS), 0.0, S))


SHAPES = {
    "one": (0.3, ()),
    "per feature": (S[:, :1], (F, 1)),
    "per sample": (S[:1], (1, N)),
    "row": (S[0], (1, N)),
    "per cell": (S, (F, N)),
    "outer": ((S[:, :1], S[:1]), (F, N)),
    "labelled": (pd.DataFrame(S), (F, N)),
    "xarray": (xr.DataArray(S, dims=("feature", "obs")), (F, N)),
    "free": (nz.free(), ()),
    "free per feature": (nz.free(tie="obs"), (F, 1)),
    "free per sample": (nz.free(tie="feature"), (1, N)),
}


@pytest.mark.parametrize("data", [X, GAPS], ids=["complete", "missing"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sigma_is_read_as_it_was_declared(shape, data):
    sigma, expected = SHAPES[shape]
    model = nz.normal_nmf(data, K, sigma=sigma, **PRIORS)
    found = nz.read(model).likelihood.sigma
    assert found.shape == expected
    nz.check(model)


@pytest.mark.parametrize("shape", ["one", "per feature", "per sample", "outer"])
def test_sparse_data_take_sigmas_of_any_tie(shape):
    model = nz.normal_nmf(sparse_table()[0], K, sigma=SHAPES[shape][0], observed="stored", **PRIORS)
    nz.check(model)


def test_sparse_data_have_one_sigma_for_each_stored_cell():
    table, sigma = sparse_table()
    model = nz.normal_nmf(table, K, sigma=sigma, observed="stored", **PRIORS)
    assert isinstance(nz.read(model).likelihood.sigma, KnownAtCells)
    nz.check(model)


def of_their_own(data, sigma):
    """A model in PyMC's own words; ``sigma`` is called inside it."""
    with pm.Model() as model:
        own_w = pm.Exponential("W", 1.0, shape=(F, K))
        own_h = pm.TruncatedNormal("H", mu=0.3, sigma=2.0, lower=0.0, shape=(K, N))
        pm.Normal("X", mu=own_w @ own_h, sigma=sigma(), observed=data)
    return model


SPELLINGS = {
    "an array": lambda: S,
    "data": lambda: pm.Data("errors", S),
    "a column": lambda: S[:, :1],
    "per feature": lambda: pm.HalfNormal("s", 1.0, shape=F)[:, None],
    "per feature, a column": lambda: pm.HalfNormal("s", 1.0, shape=(F, 1)),
    "per sample": lambda: pm.Gamma("s", 2.0, 3.0, shape=N),
    "per sample, a row": lambda: pm.InverseGamma("s", 2.0, 3.0, shape=(1, N)),
    "per cell": lambda: pm.HalfNormal("s", 1.0, shape=(F, N)),
    "one": lambda: pm.HalfNormal("s", 1.0),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_are_read(spelling):
    nz.check(of_their_own(X, SPELLINGS[spelling]))


def test_spellings_of_listed_cells_are_read():
    rows, cols = np.nonzero(~np.isnan(GAPS))
    for sigma in (
        lambda: pm.HalfNormal("s", 1.0, shape=F)[rows],
        lambda: pm.HalfNormal("s", 1.0, shape=N)[cols],
        lambda: pm.HalfNormal("s", 1.0, shape=(F, 1))[rows, 0],
        lambda: pm.HalfNormal("s", 1.0, shape=(F, N))[rows, cols],
        lambda: S[rows, cols],
        lambda: pm.Data("errors", S)[rows, cols],
    ):
        with pm.Model() as model:
            mean = pm.Exponential("W", 1.0, shape=(F, K)) @ pm.Exponential("H", 1.0, shape=(K, N))
            pm.Normal("X", mu=mean[rows, cols], sigma=sigma(), observed=GAPS[rows, cols])
        nz.check(model)


def test_masked_arrays_are_read_with_errors_per_cell():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC's, of values that it will impute
        model = of_their_own(np.ma.masked_invalid(GAPS), lambda: S)
    structure = nz.read(model)
    assert structure.imputed is not None
    nz.check(model)


def test_what_is_no_sigma_of_cells_is_refused():
    with pytest.raises(nz.UnreadableModel, match="one per feature, per sample or per cell"):
        nz.read(of_their_own(X, lambda: pm.math.exp(pm.Normal("s", shape=N))))
    with pytest.raises(nz.UnreadableModel, match="one per feature, per sample or per cell"):
        nz.read(of_their_own(X, lambda: pm.HalfNormal("s", 1.0, shape=N)[::-1]))


BAD = {
    "negative": (-S, "values? "),
    "zero": (np.where(S.max() == S, 0.0, S), "finite numbers > 0"),
    "missing": (np.where(S.max() == S, np.nan, S), "feature"),
    "wrong shape": (S[:3], "broadcasts"),
    "labels": (pd.DataFrame(S, index=list("abcde")).iloc[::-1], "reindex"),
    "tie": (nz.free(tie="component"), "tie"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sigmas_are_refused_in_one_line(case):
    sigma, words = BAD[case]
    with pytest.raises(nz.InputError, match=words) as error:
        nz.normal_nmf(pd.DataFrame(X, index=list("abcde")), K, sigma=sigma)
    assert "\n" not in str(error.value)


def test_priors_that_contradict_each_other_are_refused():
    with pytest.raises(nz.InputError, match="one prior"):
        nz.normal_nmf(X, K, alpha_w=1.0, sigma_w=1.0)
    with pytest.raises(nz.InputError, match="sigma_h"):
        nz.normal_nmf(X, K, mu_h=1.0)


def test_missing_cells_whose_errors_are_not_known_can_be_fitted_but_not_drawn():
    model = nz.normal_nmf(GAPS, K, sigma=np.where(np.isnan(GAPS), np.nan, S), sigma_w=3.0, sigma_h=3.0)
    nz.check(model)
    fitted = nz.fit(model=model, engine="em", max_iter=20, random_seed=1, quiet=True)
    assert np.all(np.isfinite(nz.log_likelihood(fitted, model, per="cell")["log_likelihood"]["X"]))
    with pytest.raises(nz.InputError, match="sigma"):
        nz.impute(fitted, model)


@pytest.mark.parametrize("data", [X, GAPS], ids=["complete", "missing"])
def test_draws_have_the_errors_that_were_declared(data):
    errors = np.exp(np.arange(F)[:, None] - 2.0) * np.ones((F, N))
    errors[:, 3] *= 20.0
    model = nz.normal_nmf(data, K, sigma=errors, sigma_w=3.0, sigma_h=3.0)
    fixed = pm.do(model, {"W": W, "H": H})
    drawn = np.stack([nz.simulate(fixed, random_seed=seed)["X"].to_numpy() for seed in range(200)])
    assert np.all(np.abs(drawn.std(axis=0) / errors - 1.0) < 0.3)
    fitted = nz.fit(model=model, engine="em", max_iter=20, random_seed=1, quiet=True)
    mean = fitted["posterior"]["W"].to_numpy()[0, 0] @ fitted["posterior"]["H"].to_numpy()[0, 0]
    cells = nz.predict(fitted, model, random_seed=1).to_numpy()[0, 0]
    assert np.all(np.abs(cells - mean) < 5.0 * errors)
    found = nz.log_likelihood(fitted, model, per="cell")["log_likelihood"]["X"].to_numpy()[0, 0]
    expected = stats.norm.logpdf(data, mean, errors)
    np.testing.assert_allclose(np.ravel(found), expected[~np.isnan(data)], rtol=1e-9)


@pytest.mark.parametrize("accelerate", ["newton", None])
@pytest.mark.parametrize("table", ["complete", "missing", "stored"])
@pytest.mark.parametrize("sigma", ["one", "per feature", "per sample", "per cell", "free"])
def test_em_never_rises_and_states_the_density(sigma, table, accelerate):
    data, more = {"complete": (X, {}), "missing": (GAPS, {}), "stored": (sparse_table()[0], {"observed": "stored"})}[
        table
    ]
    given = sparse_table()[1] if (sigma, table) == ("per cell", "stored") else SHAPES[sigma][0]
    model = nz.normal_nmf(data, K, sigma=given, sigma_w=3.0, beta_h=0.2, exposure=1.0 + S[:1], **more)
    engine = nz.EM(accelerate=accelerate)
    found = nz.fit(model=model, engine=engine, max_iter=60, search=None, restarts=1, random_seed=1, quiet=True)
    objective = found["fit"]["objective"].to_numpy()[0]
    objective = objective[np.isfinite(objective)]
    assert np.all(np.diff(objective) <= 1e-9 * np.abs(objective[1:]))
    values = {variable.name: found["posterior"][variable.name].to_numpy()[0, 0] for variable in model.free_RVs}
    assert objective[-1] == pytest.approx(-nz.read(model).log_joint(values), rel=1e-10)


def check_weighted_least_squares():
    """With W known each sample is a weighted non-negative least squares problem of its own."""
    model = nz.normal_nmf(X, K, sigma=S, known=W)
    found = nz.fit(model=model, engine="em", max_iter=500, tol=1e-12, random_seed=1, quiet=True)
    expected = np.stack([nnls(W / S[:, n, None], X[:, n] / S[:, n])[0] for n in range(N)], axis=1)
    np.testing.assert_allclose(found["posterior"]["H"].to_numpy()[0, 0], expected, rtol=1e-5, atol=1e-7)
    assert float(found["fit"]["duality_gap"].to_numpy().ravel()[0]) < 1e-6


def test_known_sources_make_weighted_least_squares():
    check_weighted_least_squares()


def test_precisions_in_the_place_of_their_roots_are_seen(monkeypatch):
    """The planted error: data over sigma squared."""

    def squared(right):
        def of_squares(structure):
            sigma = Known(value=np.square(structure.likelihood.sigma.value))
            return right(replace(structure, likelihood=replace(structure.likelihood, sigma=sigma)))

        return of_squares

    plant(monkeypatch, "EM of normal data: errors taken into the data", squared)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_weighted_least_squares()


def test_em_refuses_free_errors_that_a_component_could_fit():
    verdict = nz.read(nz.normal_nmf(X, K, sigma=nz.free(tie="obs"), sigma_w=1.0, sigma_h=1.0))
    from nmf_zoo.inference.registry import verdict as of

    assert "no bound" in of(verdict, "em").reason


def test_a_sigma_below_the_digits_of_the_bound_is_refused_by_vb():
    """Its bound was positive, and 1e34."""
    model = nz.normal_nmf(1e12 * X, K, sigma=1e-12 * S, **(PRIORS | {"alpha_w": 1.0}))
    with pytest.raises(nz.UnsupportedModel, match=r"over its sigma is .*e\+2[3-6], and beyond 1e\+07 the bound has no"):
        nz.fit(model=model, engine="vb", quiet=True)
    tiny = np.where(np.arange(F)[:, None] == 0, 1e-8, 1.0)  # a feature that is small, and measured as well as others
    nz.fit(
        model=nz.normal_nmf(X * tiny, K, sigma=S * tiny, beta_h=0.5, beta_w=1.0), engine="vb", max_iter=2, quiet=True
    )


@pytest.mark.filterwarnings("ignore:X. 1 sample has no observed cell")
def test_a_sample_that_was_not_observed_has_its_exponential_prior_in_vb():
    table = X.copy()
    table[:, 3] = np.nan
    model = nz.normal_nmf(table, K, sigma=S, beta_w=1.0, beta_h=0.5)
    fitted = nz.fit(model=model, engine="vb", max_iter=30, search=None, random_seed=1, quiet=True)
    observed = nz.normal_nmf(np.delete(table, 3, 1), K, sigma=np.delete(S, 3, 1), beta_w=1.0, beta_h=0.5)
    start = {name: fitted.fit[f"{name}_mean"].values[0] for name in "WH"}
    both = [
        nz.fit(model=own, engine="vb", max_iter=1, search=None, quiet=True, initvals=start | {"H": columns})
        for own, columns in ((model, start["H"]), (observed, np.delete(start["H"], 3, 1)))
    ]
    np.testing.assert_allclose(fitted.fit["H_mean"].values[0, :, 3], 2.0, rtol=1e-12)
    np.testing.assert_allclose(fitted.fit["H_sd"].values[0, :, 3], 2.0, rtol=1e-12)
    np.testing.assert_allclose(*(one.fit["objective"].values for one in both), rtol=1e-12)


def test_a_flat_factor_beside_a_truncated_normal_one_is_sampled():
    model = nz.normal_nmf(X, K, sigma=S, mu_h=0.5, sigma_h=1.0)
    found = nz.sample(model=model, engine="gibbs", draws=2, tune=2, chains=1, quiet=True, random_seed=1)
    assert np.all(np.isfinite(found.posterior["W"]))


def test_a_plot_leaves_out_cells_without_a_sigma():
    import matplotlib.pyplot as plt

    model = nz.normal_nmf(GAPS, K, sigma=np.where(np.isnan(GAPS), np.nan, S), beta_w=1.0, beta_h=1.0)
    fitted = nz.fit(model=model, engine="vb", search=None, max_iter=20, quiet=True, random_seed=1)
    figure = nz.plot_reconstruction(fitted, model, samples=2)
    assert len(figure.axes) >= 5
    plt.close(figure)


@pytest.mark.parametrize("sigma", [S[:, :1], S[:1]], ids=["features", "samples"])
def test_missing_cells_of_sparse_data_keep_their_sigma(sigma):
    X_sparse = sparse_table()[0]
    model = nz.normal_nmf(X_sparse, K, sigma=sigma, observed="stored", beta_w=1.0, beta_h=1.0)
    assert nz.read(model).likelihood.sigma.shape == sigma.shape
    fitted = nz.fit(model=model, engine="vb", search=None, max_iter=20, quiet=True, random_seed=1)
    assert np.all(np.isfinite(nz.predict(fitted, model, n_draws=5, random_seed=1)))


def test_a_truncated_normal_counts_as_a_gamma_of_shape_one():
    tall = np.abs(RNG.normal(3.0, 1.0, (9, 4)))
    with pytest.raises(nz.UnsupportedModel, match=r"truncated normal one counts as a gamma shape of 1.* is 4"):
        nz.sample(model=nz.normal_nmf(tall, K, mu_h=0.5, sigma_h=1.0), engine="gibbs", draws=2, tune=2, chains=1)


def test_truncated_normal_priors_are_drawn_without_a_word():
    """numba says that it compiles no such draws."""
    model = nz.normal_nmf(X, K, sigma=S, mu_h=0.5, sigma_h=1.0, beta_w=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = nz.simulate(model, random_seed=1)
    assert np.all(drawn["H"] > 0)
