"""nz.marginal_log_likelihood and its companions: labels, forms of data, refusals, threads, the Monte-Carlo route."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import xarray as xr
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo.inference.marginal import exact as exactly
from nmf_zoo.inference.marginal.importance import estimate_log_likelihoods
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import Workers
from tests.sizes import size
from tests.structures import gamma, model

RNG = np.random.default_rng(1)
W = RNG.gamma(1.0, size=(5, 3))
X = RNG.poisson(W @ RNG.gamma(1.0, size=(3, 6)))
ALPHA, BETA = np.array([[0.4], [1.0], [2.0]]), np.array([[1.0], [0.5], [2.0]])


def gap(X=X, rank=3, **arguments):
    return nz.gap(X, rank, **({"alpha_h": ALPHA, "beta_h": BETA} | arguments))


def exact(*arguments, **options):
    return nz.marginal_log_likelihood(*arguments, progressbar=False, **options)


def test_labels_total_and_enumeration():
    table = pd.DataFrame(np.minimum(X, 2), columns=[f"day {n}" for n in range(6)])
    found, enumerated = exact(gap(table), W), exact(gap(table), W, method="enumeration")
    assert found["log_likelihood"].dims == ("obs",)
    assert list(found["obs"].values) == list(table.columns)
    assert found.attrs["log_marginal_likelihood"] == pytest.approx(float(found["log_likelihood"].sum()))
    assert not found["standard_error"].any()
    np.testing.assert_allclose(found["log_likelihood"], enumerated["log_likelihood"], rtol=1e-12)


@pytest.mark.parametrize("given", [W, W.tolist(), xr.DataArray(W.T, dims=("component", "feature"))], ids=type)
def test_weights_in_many_forms(given):
    np.testing.assert_array_equal(exact(gap(), given)["log_likelihood"], exact(gap(), W)["log_likelihood"])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", ["frame", "array"])
def test_labels_of_weights_are_the_models(axis, form):
    """Rows go by position: a W whose labels say otherwise is refused, not misread."""
    labels = [list("abcde"), list("uvw")]
    declared = gap(pd.DataFrame(X, index=labels[0]), coords={"component": labels[1]})

    def labelled(labels):
        if form == "frame":
            return pd.DataFrame(W, index=labels[0], columns=labels[1])
        return xr.DataArray(
            W, dims=("feature", "component"), coords=dict(zip(("feature", "component"), labels, strict=True))
        )

    assert exact(declared, labelled(labels)).equals(exact(declared, W))
    labels[axis] = labels[axis][::-1]
    with pytest.raises(nz.InputError, match=r"^W: got labels of '\w+' that differ from the model's; .* the model$"):
        exact(declared, labelled(labels))


def test_sparse_data_are_the_same_data():
    np.testing.assert_array_equal(exact(gap(sp.csr_array(X)), W)["log_likelihood"], exact(gap(), W)["log_likelihood"])


def test_stored_cells_only_are_a_mask():
    stored = gap(sp.csr_array(X), observed="stored")
    masked = gap(X, mask=X > 0)
    np.testing.assert_allclose(exact(stored, W)["log_likelihood"], exact(masked, W)["log_likelihood"], rtol=1e-13)


def test_known_weights_need_not_be_given():
    known = pm.do(gap(), {"W": W})
    np.testing.assert_array_equal(exact(known)["log_likelihood"], exact(gap(), W)["log_likelihood"])


def test_gamma_nmf_is_taken_at_its_weights():
    other = nz.gamma_nmf(X, 3, alpha_w=2.0, beta_w=3.0, alpha_h=ALPHA, beta_h=BETA)
    np.testing.assert_array_equal(exact(other, W)["log_likelihood"], exact(gap(), W)["log_likelihood"])


def test_a_fits_weights_and_hyperparameters():
    free = nz.gamma_nmf(X, 3, alpha_h=nz.free(tie="obs"), beta_h=BETA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = nz.fit(model=free, engine="vb", max_iter=20, draws=1, random_seed=1, quiet=True)
    posterior = idata["posterior"]
    name = next(str(name) for name in posterior.data_vars if "alpha" in str(name))
    alpha = np.asarray(posterior[name])[0, 0].reshape(3, 1)
    expected = exact(gap(alpha_h=alpha), np.asarray(posterior["W"])[0, 0])
    np.testing.assert_allclose(exact(free, idata)["log_likelihood"], expected["log_likelihood"], rtol=1e-12)
    with pytest.raises(nz.InputError, match=r"expected a result of nz\.fit"):
        exact(free, W)


def test_impossible_counts_and_empty_columns():
    no_first = W.copy()
    no_first[0] = 0.0
    found = exact(gap(), no_first)["log_likelihood"].values
    np.testing.assert_array_equal(np.isneginf(found), X[0] > 0)
    wide = gap(rank=4, alpha_h=np.vstack([ALPHA, [[9.0]]]), beta_h=1.0)
    np.testing.assert_allclose(
        exact(wide, np.column_stack([W, np.zeros(5)]))["log_likelihood"],
        exact(gap(beta_h=1.0), W)["log_likelihood"],
        rtol=1e-14,
    )


def test_scale_invariance():
    """Filstroff et al. (2018), eq. 32."""
    scaled, beta = nz.rescale_columns(W, BETA, [3.0, 0.1, 20.0])
    there, here = exact(gap(beta_h=beta), scaled), exact(gap(), W)
    np.testing.assert_allclose(there["log_likelihood"], here["log_likelihood"], rtol=1e-12)
    with pytest.raises(nz.InputError, match="scale: got values that are not positive"):
        nz.rescale_columns(W, BETA, [1.0, 0.0, 1.0])
    with pytest.raises(nz.InputError, match="W: got values that are negative"):
        nz.rescale_columns(-W, BETA, 1.0)


def test_terms_are_the_papers():
    """Filstroff et al. (2018), eq. 33 and 34; the penalty of an empty column is that of its beta."""
    terms, found = nz.marginal_terms(gap(), W), exact(gap(), W)
    total = float(terms["fit"] + terms["penalty"].sum() + terms["constant"])
    assert total == pytest.approx(-float(found["log_likelihood"].mean()), rel=1e-12)
    np.testing.assert_allclose(terms["penalty"], ALPHA[:, 0] * np.log(W.sum(axis=0) + BETA[:, 0]))
    assert float(terms["constant"]) == pytest.approx(-float(np.sum(ALPHA * np.log(BETA))))
    assert terms.attrs == {"method": "exact", "standard_error": 0.0}


def test_terms_by_importance_sampling():
    terms, estimated = (
        nz.marginal_terms(gap(), W, method=method, draws=2000, random_seed=1, progressbar=False)
        for method in ("exact", "importance")
    )
    np.testing.assert_array_equal(estimated["penalty"], terms["penalty"])
    assert 0 < abs(float(estimated["fit"] - terms["fit"])) < 4.5 * estimated.attrs["standard_error"] < 0.1


@pytest.mark.parametrize("background", [None, 0.3])
def test_expectations(background):
    found = nz.marginal_expectations(gap(background=background), W)
    cells = X[found["cell_feature"].values, found["cell_obs"].values]
    total = found["C"].sum("component") + (0.0 if background is None else found["background"])
    np.testing.assert_allclose(total, cells, rtol=1e-12)
    assert len(cells) == np.count_nonzero(X)
    own = np.zeros((3, 6))
    np.add.at(own.T, found["cell_obs"].values, found["C"].values)
    np.testing.assert_allclose(found["H"], (ALPHA + own) / (BETA + W.sum(axis=0)[:, None]), rtol=1e-12)


def test_expectations_that_are_too_much():
    with pytest.raises(
        nz.InputError, match=r"^model: got exact expectations of .* max_seconds=7; use draws: nz.sample"
    ):
        nz.marginal_expectations(gap(X * 10**6), W, max_seconds=7)
    with pytest.raises(nz.InputError, match=r"^max_seconds: got 0"):
        nz.marginal_expectations(gap(), W, max_seconds=0)


def test_expectations_show_a_bar_when_they_take_long(capsys, monkeypatch):
    monkeypatch.setattr("nmf_zoo.workbench.marginal.BAR_SECONDS", 0.0)
    nz.marginal_expectations(gap(), W)
    assert "6/6" in capsys.readouterr().err
    nz.marginal_expectations(gap(), W, progressbar=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (nz.gap(X * 1000, 3), W),
            nz.InputError,
            "method: got exact values of samples up to .* counts and 3 components",
        ),
        ((nz.gap(X * 1000, 3), W, "enumeration"), nz.InputError, r"10\^\d+\.\d admissible components of one sample"),
        (
            (nz.gap(np.full((99, 3), 9999), 3), np.ones((99, 3)), "enumeration"),
            nz.InputError,
            r"10\^\d+\.\d admissible",
        ),
        ((nz.gap(np.full((5, 1999), 4), 3), W, "enumeration"), nz.InputError, "components of all samples; expected"),
        ((nz.gap(X, 3), sp.csr_array(W)), nz.InputError, r"^W: got <.* expected numbers; use toarray\(\)$"),
        ((nz.gap(X, 3), W + 1j), nz.InputError, r"^W: got array.* expected numbers$"),
        ((nz.gap(X, 3), W[:4]), nz.InputError, r"W: got shape \(4, 3\); expected \(5, 3\)"),
        ((nz.gap(X, 3), -W), nz.InputError, "W: got values that are negative"),
        ((nz.gap(X, 3), "W"), nz.InputError, "W: got 'W'; expected numbers"),
        ((nz.gap(X, 3), None), nz.InputError, "W: got None"),
        ((nz.gap(X, 3), W, "guess"), nz.InputError, "method: got 'guess'; expected one of"),
        ((nz.gap(X, 3, background=0.1), W, "importance"), nz.InputError, "use method='exact'"),
        ((nz.poisson_nmf(X, 3), W), nz.UnsupportedModel, "found free activations; expected Gamma ones"),
        ((nz.normal_nmf(X, 3, sigma=1.0), W), nz.UnsupportedModel, "X is normal, and its updates are for poisson data"),
        ((nz.is_nmf(X + 0.5, 3), W), nz.UnsupportedModel, "X is exponential, and its updates are for poisson"),
        ((nz.gap(X + 0.5, 3), W), nz.InputError, "not integers"),
    ],
)
def test_refusals(arguments, error, message):
    declared, weights, *method = arguments
    with pytest.raises(error, match=message) as refused:
        exact(declared, weights, method=method[0] if method else "exact")
    assert "\n" not in str(refused.value)


def test_the_refusal_names_the_estimate_and_what_fits():
    with pytest.raises(nz.InputError, match=r"years; expected at most max_seconds=5; use method='importance'$"):
        exact(nz.gap(X * 10**6, 3), W, max_seconds=5)
    with pytest.raises(nz.InputError, match=r"use method='importance' or nz.evidence\(method='bound'\)$"):
        exact(nz.gamma_nmf(X * 1000, 3), W)


@pytest.mark.parametrize("method", ["exact", "importance"])
def test_threads_and_masks_change_no_bit(method):
    declared = gap(RNG.poisson(3.0, size=(5, 300)), mask=RNG.random((5, 300)) > 0.2)
    one, three = (exact(declared, W, method=method, cores=cores, random_seed=2, draws=20) for cores in (1, 3))
    assert one.identical(three)


def test_the_bar_counts_samples(capsys):
    nz.marginal_log_likelihood(gap(), W, method="importance", random_seed=1)
    assert "6/6" in capsys.readouterr().err


def test_small_effective_sizes_are_said():
    with pytest.warns(nz.NmfZooWarning, match=r"^effective: below 0\.05 for \d+ of 6 samples, .*; raise draws=200$"):
        exact(gap(X * 10, alpha_h=1e-12), W, method="importance", draws=200, random_seed=1)


# -- importance sampling ------------------------------------------------------------------------------------------


def problem(rank, mean, alike, alpha, n_samples, seed):
    """Samples of about ``mean`` counts; columns of W are the more alike the larger ``alike`` is."""
    rng = np.random.default_rng(seed)
    W = rng.gamma(alike, 1 / alike, size=(12, rank)) * mean / 12 / rank
    X = rng.poisson(W @ rng.gamma(alpha, 1.0, size=(rank, n_samples)))
    structure = model(X, rank, None, gamma(alpha, 1.0))
    return exactly.observe(structure), W, *exactly.activation_prior(structure, {})


@pytest.mark.parametrize("alike", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    ("rank", "mean", "alpha"),
    [(2, 60, 1.0), (3, 100, 1.0), (3, 60, 0.05), (4, 20, [[0.3], [3.0], [1.0], [1.0]]), (5, 12, [[0.1]] * 4 + [[2.0]])],
)
def test_importance_equals_exact(rank, mean, alpha, alike):
    """Small errors, and not smaller than they are said to be: of normal z the mean square has the variance 2 / n."""
    given = problem(rank, mean, alike, np.array(alpha), size(100, 1000), seed=rank)
    expected = exactly.log_likelihoods(*given)
    found = estimate_log_likelihoods(*given, draws=1000, key=seed_key(3))
    needs_draws = found.standard_error > 0
    np.testing.assert_allclose(found.log_likelihood[~needs_draws], expected[~needs_draws], rtol=1e-12)
    z = (found.log_likelihood - expected)[needs_draws] / found.standard_error[needs_draws]
    assert found.standard_error.max() < 0.15
    assert np.abs(z).max() < 4.5
    assert np.mean(z**2) < 1.0 + 4.0 * np.sqrt(2.0 / z.size)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_importance_at_corpus_size_where_the_answer_is_known(alpha):
    """Equal columns are one component of shape K alpha: a negative multinomial, at 1,500 counts and ten components."""
    rng = np.random.default_rng(6)
    column = rng.gamma(0.3, size=(500, 1)) * 20
    X = rng.poisson(column @ np.ones((1, 20)))
    structure = model(X, 10, None, gamma(alpha, 1.0))
    prior = exactly.activation_prior(structure, {})
    found = estimate_log_likelihoods(
        exactly.observe(structure), np.repeat(column, 10, axis=1), *prior, draws=256, key=seed_key(1)
    )
    total, n, p = 10 * alpha, X.sum(axis=0), column / (1 + column.sum())
    expected = gammaln(total + n) - gammaln(total) - total * np.log1p(column.sum())
    expected += np.sum(X * np.log(p) - gammaln(X + 1), axis=0)
    assert np.all(np.abs(found.log_likelihood - expected) < 4.5 * found.standard_error)
    assert found.standard_error.max() < 0.25


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_effective_sample_sizes_at_corpus_size(noise):
    """From columns that are all alike to such that share hardly a word; two keys agree within their errors."""
    rng = np.random.default_rng(7)
    shared = rng.gamma(0.3, size=(1000, 1))
    W = 15 * shared * np.exp(noise * rng.normal(size=(1000, 10)) - noise**2 / 2)
    X = rng.poisson(W @ rng.gamma(1.0, size=(10, 40)) * 1500 / W.sum())
    structure = model(X, 10, None, gamma(1.0, 1.0), data=None)
    given = exactly.observe(structure), W * 1500 / W.sum(), *exactly.activation_prior(structure, {})
    one, two = (estimate_log_likelihoods(*given, draws=256, key=seed_key(seed)) for seed in (1, 2))
    assert np.median(one.effective) > 0.4
    assert one.effective.min() > 0.01
    error = np.hypot(one.total_error, two.total_error)
    assert error < 1e-4 * abs(one.log_likelihood.sum())
    assert abs(one.log_likelihood.sum() - two.log_likelihood.sum()) < 4 * error


@pytest.mark.parametrize("alpha", [[1e-8, 1e-3, 1e3], [1e-6, 1e-6, 1e-6], [1e4, 1e-5, 1e-4], [1e8, 1e8, 1e8]])
def test_importance_with_shapes_of_any_size(alpha):
    """Activations too small or too large for a float, or stuck in one component: their logarithms are not."""
    rng = np.random.default_rng(4)
    W = rng.gamma(1.0, size=(3, 3)) * [1e-3, 1.0, 1e3]
    structure = model(rng.poisson(1.5, size=(3, 40)), 3, None, gamma(np.array(alpha)[:, None], 1.0))
    given = exactly.observe(structure), W, *exactly.activation_prior(structure, {})
    found, expected = estimate_log_likelihoods(*given, draws=2000, key=seed_key(1)), exactly.log_likelihoods(*given)
    drawn = found.standard_error > 0
    z = (found.log_likelihood - expected)[drawn] / found.standard_error[drawn]
    print(found.effective.min(), np.abs(z).max())
    assert np.abs(z).max() < 5
    assert found.effective.min() > 0.01


def test_importance_draws_are_each_samples_own():
    samples, W, shape, rate = problem(3, 40, 1.0, np.array(0.5), 30, seed=1)
    workers = Workers(2)
    try:
        one, two = (
            estimate_log_likelihoods(samples, W, shape, rate, draws=30, key=seed_key(5), workers=given)
            for given in (Workers(1), workers)
        )
    finally:
        workers.close()
    np.testing.assert_array_equal(one.log_likelihood, two.log_likelihood)
    other = estimate_log_likelihoods(samples, W, shape, rate, draws=30, key=seed_key(6))
    assert not np.array_equal(one.log_likelihood, other.log_likelihood)


def test_an_interruption_ends_the_other_threads_work():
    workers, begun = Workers(2), []

    def work(first, last):
        begun.append(first)
        if first == 3:
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            exactly.over_samples(work, np.arange(10_001), workers)
    finally:
        workers.close()
    assert len(begun) < 10_000
