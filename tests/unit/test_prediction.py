"""Predictive draws, pointwise log-likelihood, imputation and projection, against W H and PyMC."""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import scipy.special
import scipy.stats
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.distributions.counts import LARGEST
from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random import counts
from nmf_zoo.reading import read
from nmf_zoo.structure import Outer, Poisson
from tests.results import idata_of, random_idata

F, K, N = 4, 2, 5
RNG = np.random.default_rng(11)
X = RNG.poisson(2.0, (F, N)) * (RNG.uniform(size=(F, N)) < 0.8)
X[0, 0], X[:, 4] = 3, [0, 1, 0, 2]
TABLE = pd.DataFrame(X, index=list("abcd"), columns=[f"s{i}" for i in range(N)])
MASK = np.ones((F, N), dtype=bool)
MASK[[0, 2, 3], [1, 1, 3]] = False
EXPOSURE, BACKGROUND = np.linspace(0.5, 2, N), np.linspace(0.1, 1, F)[:, None]


def two_named_factors():
    """A user's model: other names, transposed factors, an exposure and a background."""
    coords = {"word": list("abcd"), "topic": ["x", "y"], "text": list("ABCDE")}
    with pm.Model(coords=coords) as model:
        theta = pm.Gamma("theta", np.float64(2), np.float64(1), dims=("topic", "word"))
        phi = pm.Gamma("phi", np.float64(2), np.float64(1), dims=("text", "topic"))
        mean = EXPOSURE * (theta.T @ phi.T) + BACKGROUND
        pm.Poisson("counts", mean, observed=X, dims=("word", "text"))
    return model


MODELS = {
    "dense": lambda: nz.gamma_nmf(TABLE, K),
    "offsets": lambda: nz.gamma_nmf(X, K, exposure=EXPOSURE, background=BACKGROUND),
    "mask": lambda: nz.gamma_nmf(TABLE, K, mask=MASK),
    "mask and offsets": lambda: nz.gamma_nmf(X, K, mask=MASK, exposure=EXPOSURE, background=BACKGROUND),
    "real": lambda: nz.poisson_nmf(X + 0.5, K),
    "sparse": lambda: nz.gamma_nmf(sp.csr_array(X), K),
    "ratings": lambda: nz.gamma_nmf(sp.csr_array(X), K, observed="stored"),
    "normal": lambda: nz.normal_nmf(X, K, sigma=1.5),
    "normal, free sigma": lambda: nz.normal_nmf(X, K, sigma=nz.free(), mask=MASK),
    "overdispersed": lambda: nz.negative_binomial_nmf(X, K, exposure=EXPOSURE, background=BACKGROUND),
    "overdispersed, mask": lambda: nz.negative_binomial_nmf(TABLE, K, alpha=nz.free(tie="obs"), mask=MASK),
    "overdispersed, ratings": lambda: nz.negative_binomial_nmf(
        sp.csr_array(X), K, alpha=nz.free(tie="feature"), observed="stored"
    ),
    "powers": lambda: nz.is_nmf(X + 0.5, K, alpha_w=2.0, exposure=EXPOSURE, background=BACKGROUND),
    "powers, mask": lambda: nz.is_nmf(TABLE + 0.5, K, mask=MASK),
    "user's": two_named_factors,
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    model = MODELS[request.param]()
    return random_idata(model, np.random.default_rng(1)), model


def loaded(idata, group):
    return _compat.group(idata, group)


def means_of(idata, model):
    """exposure * (W H) + background of every draw, (chain, draw, F, N), by its definition."""
    structure, posterior = nz.read(model), loaded(idata, "posterior")
    W, H = (factor.orient(posterior[factor.name].to_numpy()) for factor in (structure.W, structure.H))
    exposure, background = structure.likelihood.exposure, structure.likelihood.background
    return (1 if exposure is None else exposure) * (W @ H) + (0 if background is None else background)


# -- predict -----------------------------------------------------------------------------------------------------


def test_predict_has_the_labels_of_x():
    model = MODELS["dense"]()
    draws = nz.predict(random_idata(model, np.random.default_rng(1)), model, random_seed=1)
    assert draws.dims == ("chain", "draw", "feature", "obs")
    assert draws.name == "X"
    assert draws.dtype == np.int64
    assert list(draws["feature"]) == list("abcd")
    assert list(draws["obs"]) == list(TABLE.columns)


def test_predict_has_the_labels_of_a_users_model():
    model = MODELS["user's"]()
    draws = nz.predict(random_idata(model, np.random.default_rng(1)), model, random_seed=1)
    assert draws.name == "counts"
    assert draws.dims == ("chain", "draw", "word", "text")
    assert list(draws["text"]) == list("ABCDE")


def test_a_part_is_the_part_of_the_whole(pair):
    idata, model = pair
    whole = nz.predict(idata, model, random_seed=1)
    feature, sample = whole.dims[2:]
    rows, cols = whole[feature].to_numpy(), whole[sample].to_numpy()
    part = nz.predict(idata, model, features=rows[[2, 0]], samples=cols[3], random_seed=1)
    xr.testing.assert_identical(part, whole.isel({feature: [2, 0], sample: [3]}))
    cells = nz.predict(idata, model, cells=([1, 0, 1], [2, 4, 0]), random_seed=1)
    np.testing.assert_array_equal(cells, whole.to_numpy()[..., [1, 0, 1], [2, 4, 0]])
    assert list(cells[feature]) == list(rows[[1, 0, 1]])
    blocks = list(nz.predict_blocks(idata, model, width=2, random_seed=1))
    assert [block.sizes[sample] for block in blocks] == [2, 2, 1]
    xr.testing.assert_identical(xr.concat(blocks, sample), whole)
    fewer = nz.predict(idata, model, n_draws=2, random_seed=1)
    xr.testing.assert_identical(fewer, whole.isel(draw=[0, 2]))


def test_seeds_decide(pair):
    idata, model = pair
    first, second = (nz.predict(idata, model, random_seed=seed) for seed in (1, 2))
    assert np.any(first != second)
    assert np.any(first[0, 0] != first[1, 1])


@pytest.mark.parametrize("name", ["offsets", "sparse", "normal, free sigma", "powers", "user's"])
def test_predictive_draws_have_the_mean_and_variance_of_the_likelihood(name):
    model, draws = MODELS[name](), 4000
    one = random_idata(model, np.random.default_rng(3), chains=1, draws=1)
    repeated = {name: np.repeat(values, draws, axis=1) for name, values in loaded(one, "posterior").items()}
    found = nz.predict(idata_of(model, **repeated), model, random_seed=4).to_numpy()[0]
    mean = means_of(one, model)[0, 0]
    kind = nz.read(model).likelihood.family
    if kind == "normal":
        variance, kurtosis = float(loaded(one, "posterior")["sigma"].squeeze()) ** 2, 3
    else:
        variance, kurtosis = (mean, 3 + 1 / mean) if kind == "poisson" else (mean**2, 9)
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - mean), 5 * np.sqrt(variance / draws))
    error = variance * np.sqrt((kurtosis - 1) / draws)
    np.testing.assert_array_less(np.abs(found.var(axis=0) - variance), 5 * error)


# -- log-likelihood ----------------------------------------------------------------------------------------------


def cells_by_definition(idata, model):
    """log p(x | mean) of every cell, (chain, draw, F, N); NaN where it was not observed."""
    structure, mean = nz.read(model), means_of(idata, model)
    x = X + 0.5 if not structure.is_integer else X
    if structure.likelihood.family == "poisson":
        cells = x * np.log(mean) - mean - scipy.special.gammaln(x + 1)
    elif structure.likelihood.family == "exponential":
        cells = scipy.stats.expon.logpdf(x, scale=mean)
    elif structure.likelihood.family == "negative binomial":
        alpha = loaded(idata, "posterior")["alpha"].to_numpy()
        tie = (1,) * (2 - len(structure.likelihood.alpha.shape)) + structure.likelihood.alpha.shape
        alpha = alpha.reshape(*alpha.shape[:2], *tie)
        cells = scipy.stats.nbinom.logpmf(x, alpha, alpha / (alpha + mean))
    else:
        sigma = loaded(idata, "posterior")["sigma"].to_numpy()[..., None, None] if structure.unknowns else 1.5
        cells = scipy.stats.norm.logpdf(x, mean, sigma)
    seen = np.ones((F, N), dtype=bool) if structure.data.is_complete else np.zeros((F, N), dtype=bool)
    if not structure.data.is_complete:
        rows, cols, _ = structure.observed_cells()
        seen[rows, cols] = True
    return np.where(seen, cells, np.nan)


def test_log_likelihood_is_right_in_each_cell_and_sample(pair):
    idata, model = pair
    name, expected = nz.read(model).likelihood.name, cells_by_definition(idata, model)
    cells = loaded(nz.log_likelihood(idata, model, per="cell"), "log_likelihood")[name].to_numpy()
    if cells.ndim == 3:
        expected_list = expected[..., ~np.isnan(expected[0, 0])]
        np.testing.assert_allclose(cells, expected_list, rtol=1e-10)
    else:
        np.testing.assert_allclose(cells, expected, rtol=1e-10)
    samples = loaded(nz.log_likelihood(idata, model), "log_likelihood")[name].to_numpy()
    np.testing.assert_allclose(samples, np.nansum(expected, axis=2), rtol=1e-10)


def test_a_mean_smaller_than_any_double_has_a_log_likelihood():
    model = nz.gamma_nmf([[2e-200, 3e-200]], 1)
    idata = idata_of(model, W=np.full((1, 1, 1, 1), 1e-170), H=np.array([1e-300, 1e-200]).reshape(1, 1, 1, 2))
    ours = loaded(nz.log_likelihood(idata, model, per="cell"), "log_likelihood")["X"].to_numpy()
    np.testing.assert_allclose(ours, 0.0, atol=1e-190)
    without = idata_of(model, W=np.zeros((1, 1, 1, 1)), H=np.ones((1, 1, 1, 2)))
    assert loaded(nz.log_likelihood(without, model), "log_likelihood")["X"].to_numpy()[0, 0, 0] == -np.inf


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("sparse", "ratings")])
def test_cells_are_those_of_pymc(name):
    model = MODELS[name]()
    idata = random_idata(model, np.random.default_rng(2))
    ours = loaded(nz.log_likelihood(idata, model, per="cell"), "log_likelihood")
    theirs = loaded(pm.compute_log_likelihood(idata, model=model, progressbar=False), "log_likelihood")
    observed = nz.read(model).likelihood.name
    assert ours[observed].dims == theirs[observed].dims
    np.testing.assert_allclose(ours[observed], theirs[observed], rtol=1e-10)


def test_log_likelihood_keeps_the_other_groups_and_the_labels():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(2))
    result = nz.log_likelihood(idata, model)
    xr.testing.assert_identical(loaded(result, "posterior"), loaded(idata, "posterior"))
    assert list(loaded(result, "log_likelihood")["obs"]) == list(TABLE.columns)
    assert "log_likelihood" not in _compat.group_names(idata)


def test_samples_without_an_observed_cell_are_left_out():
    mask = MASK.copy()
    mask[:, 2] = False
    with pytest.warns(nz.NmfZooWarning, match="no observed cell"):
        model = nz.gamma_nmf(TABLE, K, mask=mask)
    result = nz.log_likelihood(random_idata(model, np.random.default_rng(2)), model)
    assert list(loaded(result, "log_likelihood")["obs"]) == ["s0", "s1", "s3", "s4"]


def test_new_samples_may_all_be_empty():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = nz.projection_model(idata, 0 * TABLE, model=model)
    assert read(new).data.observed_values.sum() == 0


# -- impute ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask", "mask and offsets", "ratings", "normal, free sigma", "powers, mask"])
def test_imputed_cells_are_predictive_draws_of_the_missing_ones(name):
    model = MODELS[name]()
    idata = random_idata(model, np.random.default_rng(1))
    imputed, whole = (draw(idata, model, random_seed=7) for draw in (nz.impute, nz.predict))
    missing = np.nonzero((X == 0) if name == "ratings" else ~MASK)
    assert imputed.dims == ("chain", "draw", "missing")
    np.testing.assert_array_equal(imputed, whole.to_numpy()[:, :, *missing])
    np.testing.assert_array_equal(imputed["obs"], whole["obs"][missing[1]])


def test_imputed_cells_of_a_masked_array():
    with pm.Model() as model:
        W, H = pm.Gamma("W", 2, 1, shape=(F, K)), pm.Gamma("H", 2, 1, shape=(K, N))
        with pytest.warns(UserWarning, match="[Mm]issing|impute|masked"):
            pm.Poisson("X", W @ H, observed=np.ma.masked_array(X, ~MASK))
    idata = random_idata(model, np.random.default_rng(1))
    rows, cols = np.nonzero(~MASK)
    imputed = nz.impute(idata, model, random_seed=1)
    np.testing.assert_array_equal(imputed["feature"], rows)
    np.testing.assert_array_equal(imputed["obs"], cols)


# -- project -----------------------------------------------------------------------------------------------------


QUIET = {"quiet": True, "random_seed": 5}


def test_projection_draws_from_the_posterior_given_w():
    """With one component H_n | W is Gamma(alpha + sum x, rate + sum w)."""
    model = nz.gamma_nmf(TABLE, 1, alpha_h=nz.free(), mean_h=nz.free(tie="obs"))
    idata = random_idata(model, np.random.default_rng(1))
    new, draws = X[:, :2] + 3, 4000
    result = nz.project(idata, new, model=model, chain=1, draws=draws, tune=10, chains=1, **QUIET)
    means = loaded(idata, "posterior").sel(chain=1).mean("draw")
    shape = float(means["alpha_h"]) + new.sum(axis=0)
    rate = float(means["alpha_h"] / means["mean_h"].squeeze()) + float(means["W"].sum())
    H = loaded(result, "posterior")["H"].to_numpy()[0, :, 0]
    np.testing.assert_array_less(np.abs(H.mean(axis=0) - shape / rate), 5 * np.sqrt(shape / draws) / rate)
    np.testing.assert_allclose(H.var(axis=0), shape / rate**2, rtol=0.2)
    np.testing.assert_allclose(loaded(result, "constant_data")["W"], means["W"])


def test_projection_of_powers_draws_from_the_posterior_given_w():
    """With one component 1 / H_n | W is Gamma(alpha + F, beta + sum x / w)."""
    model = nz.is_nmf(TABLE + 0.5, 1, alpha_h=3.0, beta_h=nz.free(tie="obs"))
    idata = random_idata(model, np.random.default_rng(1))
    new, draws = TABLE.iloc[::-1, :2] + 3.5, 4000
    result = nz.project(idata, new, model=model, chain=1, draws=draws, tune=10, chains=1, **QUIET)
    means = loaded(idata, "posterior").sel(chain=1).mean("draw")
    rate = float(means["beta_h"].squeeze()) + np.sum(new.loc[TABLE.index].to_numpy() / means["W"].to_numpy(), axis=0)
    inverse = 1 / loaded(result, "posterior")["H"].to_numpy()[0, :, 0]
    np.testing.assert_array_less(np.abs(inverse.mean(axis=0) - (3 + F) / rate), 5 * np.sqrt((3 + F) / draws) / rate)
    np.testing.assert_allclose(inverse.var(axis=0), (3 + F) / rate**2, rtol=0.2)


def test_projection_needs_activations_that_we_declare():
    with pm.Model() as model:
        W, H = pm.Gamma("W", 2, 1, shape=(F, K)), pm.Gamma("H", 2, 1, shape=(K, N))
        pm.Exponential("X", scale=W @ H, observed=X + 0.5)
    expected = "model: got exponential data with gamma activations; expected inverse-gamma or .* ones"
    with pytest.raises(InputError, match=expected):
        nz.project(random_idata(model, np.random.default_rng(1)), X[:, :2] + 0.5, model=model)


def test_projection_puts_labelled_rows_in_order():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(1))
    new = TABLE.iloc[:, :3]
    arguments = {"model": model, "draws": 4, "tune": 2, "chains": 1, **QUIET}
    expected = nz.project(idata, new, **arguments)
    assert list(loaded(expected, "posterior")["obs"]) == ["s0", "s1", "s2"]
    turned = xr.DataArray(new.iloc[::-1].T, dims=("obs", "feature"))
    mask = np.array([True, False, True, True])[:, None] & np.ones((4, 3), dtype=bool)
    for shuffled in (new.iloc[[2, 0, 3, 1]], turned):
        found = nz.project(idata, shuffled, **arguments)
        np.testing.assert_array_equal(loaded(found, "posterior")["H"], loaded(expected, "posterior")["H"])
    masked = nz.projection_model(idata, new, model=model, mask=mask)
    again = nz.projection_model(idata, new.iloc[[2, 0, 3, 1]], model=model, mask=mask[[2, 0, 3, 1]])
    np.testing.assert_array_equal(nz.read(masked).data.mask, nz.read(again).data.mask)


def test_labels_in_another_order_than_the_models_are_refused():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(1))
    for dim, sorted_table in (("feature", TABLE[::-1]), ("obs", TABLE[TABLE.columns[::-1]])):
        other = nz.gamma_nmf(sorted_table, K)
        with pytest.raises(InputError, match=f"idata: got labels of '{dim}' that differ from the model's"):
            nz.predict(idata, other, n_draws=1)
        with pytest.raises(InputError, match=f"idata: got labels of '{dim}' that differ from the model's"):
            nz.log_likelihood(idata, other, per="cell")
    with pytest.raises(InputError, match="idata: got labels of 'feature' that differ from the model's"):
        nz.project(idata, TABLE, model=nz.gamma_nmf(TABLE[::-1], K))
    nz.projection_model(idata, TABLE, model=nz.gamma_nmf(TABLE[TABLE.columns[::-1]], K))  # W has no samples
    assert nz.predict(idata, nz.gamma_nmf(X, K), n_draws=1).sizes["obs"] == N  # numbered: they say nothing


@pytest.mark.parametrize(
    "labels",
    [
        pd.date_range("2020", periods=F, tz="Europe/Berlin"),
        pd.period_range("2020", periods=F, freq="M"),
        pd.interval_range(0, F),
        [1, "a", None, (1, 2)],
    ],
    ids=["zone", "period", "interval", "mixed"],
)
def test_projection_knows_the_models_own_rows(labels):
    table = pd.DataFrame(X, index=labels)
    model = nz.gamma_nmf(table, K)
    idata = random_idata(model, np.random.default_rng(1))
    again = nz.projection_model(idata, table[::-1], model=model)
    np.testing.assert_array_equal(nz.read(again).data.values, X)


def test_draws_whose_dims_are_in_another_order():
    """What is square can't be told by its shape: slopes of as many covariates as components, multipliers, W."""
    rng = np.random.default_rng(1)
    design, batch = rng.normal(size=(5, 2)), list("pqppq")
    model = nz.gamma_nmf(rng.poisson(4.0, (2, 5)), 2, design=design, batch=batch)
    idata = random_idata(model, rng)
    posterior = _compat.group(idata, "posterior")
    turned = _compat.with_groups(idata, {"posterior": posterior.transpose()})
    for answer in (
        lambda draws: _compat.group(nz.log_likelihood(draws, model), "log_likelihood")["X"],
        lambda draws: nz.predict(draws, model, random_seed=1),
        lambda draws: nz.projection_model(draws, [[1], [2]], model=model, design=design[:1], batch=["q"])["exposure"],
    ):
        expected, found = answer(idata), answer(turned)
        if not isinstance(expected, xr.DataArray):
            expected, found = expected.get_value(), found.get_value()
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_projection_asks_for_the_scale_of_the_draws():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(1))
    for changed in (nz.align(idata), nz.unit_sum(idata), nz.align(nz.unit_sum(idata), scale="drawn")):
        with pytest.raises(InputError, match="idata: got draws of W of unit sums; expected the scale"):
            nz.projection_model(changed, TABLE, model=model)
    nz.projection_model(nz.align(idata, scale="drawn"), TABLE, model=model)
    without_prior = nz.poisson_nmf(TABLE, K)
    nz.projection_model(nz.unit_sum(random_idata(without_prior, np.random.default_rng(1))), TABLE, model=without_prior)


def test_offsets_of_a_projection_go_with_its_rows():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(1))
    new, shuffled = TABLE.iloc[:, :3], [2, 0, 3, 1]
    full = np.arange(1.0, 13.0).reshape(4, 3)
    labelled = pd.DataFrame(full, new.index, new.columns)
    pair = full[:, :1], full[:1]
    for ordered, moved in (
        (full, full[shuffled]),
        (full, labelled.iloc[shuffled]),
        (full, labelled),
        (pair[0] * pair[1], (pair[0][shuffled], pair[1])),
        (full[0], full[0]),
    ):
        offsets = {"exposure": moved, "background": moved}
        again = nz.projection_model(idata, new.iloc[shuffled], model=model, **offsets)
        likelihood = nz.read(again).likelihood
        for offset in (likelihood.exposure, likelihood.background):
            found = offset.table() if isinstance(offset, Outer) else offset
            np.testing.assert_array_equal(found * np.ones(full.shape), ordered * np.ones(full.shape))
    with pytest.raises(InputError, match="exposure: got labels of 'feature' that differ"):
        nz.projection_model(idata, new.iloc[shuffled], model=model, exposure=labelled.iloc[::-1])


ROWS_OF = {
    "per cell": lambda rows: np.arange(1.0, 13.0).reshape(4, 3)[rows],
    "a pair": lambda rows: (np.arange(1.0, 5.0)[rows, None], np.ones((1, 3))),
    "labelled": lambda rows: pd.DataFrame({"size": np.arange(1.0, 5.0)}, index=list("abcd")).iloc[rows],
    "one axis": lambda rows: xr.DataArray(np.arange(1.0, 5.0)[rows], dims="feature"),
    "in the model's order": lambda rows: pd.DataFrame({"size": np.arange(1.0, 5.0)}, index=list("abcd")),
}


@pytest.mark.parametrize("role", ["exposure", "background"])
@pytest.mark.parametrize("rows_of", ROWS_OF.values(), ids=ROWS_OF)
def test_offsets_go_with_the_rows_of_new_samples(rows_of, role):
    model, order = MODELS["dense"](), [2, 0, 3, 1]
    idata, cells = random_idata(model, np.random.default_rng(1)), np.indices((4, 3)).reshape(2, -1)
    found = [
        getattr(nz.read(nz.projection_model(idata, new, model=model, **{role: rows_of(rows)})), f"{role}_at")(*cells)
        for rows, new in ((range(4), TABLE.iloc[:, :3]), (order, TABLE.iloc[order, :3]))
    ]
    np.testing.assert_array_equal(*found)


def turned(idata, model):
    """The same draws, the components of chain 1 the other way round."""
    structure, posterior = nz.read(model), loaded(idata, "posterior").copy(deep=True)
    for factor, axis in ((structure.W, -1), (structure.H, -2)):
        draws = factor.orient(posterior[factor.name].to_numpy())
        draws[1] = np.flip(draws[1], axis)
        posterior[factor.name].values = factor.orient(draws)
    return _compat.with_groups(idata, {"posterior": posterior})


def plain_model():
    with pm.Model() as model:
        W = pm.Gamma("W", 2, 1, shape=(K, F))
        alpha = pm.Gamma("alpha", 2, 1, shape=K)
        pm.Poisson("X", W.T @ pm.Gamma("H", alpha[:, None], 1.0, shape=(K, N)), observed=X)
    return model


@pytest.mark.parametrize("declare", [MODELS["dense"], plain_model])
def test_projection_has_the_order_of_the_components(declare):
    """The smaller component was drawn first, and chain 1 numbers them the other way round."""
    model = declare()
    structure, rng = nz.read(model), np.random.default_rng(1)
    of_w = np.tile([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 3.0]], (2, 3, 1, 1)) + 0.01
    of_h = np.full((2, 3, K, N), 2.0) + rng.uniform(size=(2, 3, K, N)) / 100
    arrays = {"W": structure.W.orient(of_w), "H": of_h}
    if "alpha" in structure.unknowns:
        arrays["alpha"] = np.tile([2.0, 4.0], (2, 3, 1))
    idata = idata_of(model, **arrays)
    idata = turned(idata, model)
    if "alpha" in structure.unknowns:
        posterior = loaded(idata, "posterior")
        posterior["alpha"].values[1] = posterior["alpha"].values[1, :, ::-1].copy()
        idata = _compat.with_groups(idata, {"posterior": posterior})
    new = np.array([0, 0, 30, 30])[:, None]  # of the larger component alone
    for chain in (None, 0, 1):
        known = nz.read(nz.projection_model(idata, new, model=model, chain=chain))
        np.testing.assert_allclose(known.W.prior.value, of_w[0, 0, :, ::-1])
        found = nz.project(idata, new, model=model, chain=chain, engine="em", **QUIET)
        assert loaded(found, "posterior")["H"][0, 0, 0, 0] > 5 * loaded(found, "posterior")["H"][0, 0, 1, 0]
        if "alpha" in structure.unknowns:
            shape = known.H.prior.shape_and_rate({})[0]
            np.testing.assert_allclose(np.ravel(shape), [4.0, 2.0])


BY_COMPONENT = {
    "gamma": lambda: nz.gamma_nmf(X, K, alpha_h=[[2.0], [4.0]], mean_h=0.5),
    "covariates": lambda: nz.gamma_nmf(X, K, alpha_h=[[2.0], [4.0]], mean_h=0.5, design=np.arange(N) / N),
    "chain": lambda: nz.hmm_nmf(X, K, chain=nz.GammaChain([2.0, 4.0], 5.0), alpha_w=1.0),
}


@pytest.mark.parametrize("declare", BY_COMPONENT.values(), ids=BY_COMPONENT)
@pytest.mark.filterwarnings("ignore:X. 1 ")
def test_known_hyperparameters_go_with_their_component(declare):
    """The second component is the larger one, and comes first in what is projected, with its own prior."""
    model, H = declare(), 2.0 + np.random.default_rng(1).uniform(size=(1, 3, K, N)) / 100
    W = np.tile([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 3.0]], (1, 3, 1, 1)) + 0.01
    slopes, more = {}, {"model": model}
    if "slopes" in model.named_vars:
        slopes, more = {"slopes": np.zeros((1, 3, K, 1))}, more | {"design": np.arange(N)}
    idata = idata_of(model, W=W, H=H, **slopes)
    new = nz.read(nz.projection_model(idata, X, **more))
    np.testing.assert_allclose(new.W.prior.value, W.mean(axis=(0, 1))[:, ::-1])
    prior = new.H.prior
    shape = prior.alpha_z.value if "alpha_z" in vars(prior) else prior.shape_and_rate({})[0]
    np.testing.assert_array_equal(np.ravel(shape), [4.0, 2.0])
    with pytest.raises(InputError, match=r"idata: got components in the order of nz\.align"):
        nz.projection_model(nz.align(idata, scale="drawn"), X, **more)


def test_projection_takes_the_best_chain_and_the_names():
    model = MODELS["dense"]()
    idata = random_idata(model, np.random.default_rng(1))
    stats = xr.Dataset({"lp": (("chain", "draw"), [[1.0] * 3, [2.0] * 3])})
    named = nz.name_components(_compat.with_groups(idata, {"sample_stats": stats}), ["first", "second"])
    best = nz.read(nz.projection_model(named, TABLE, model=model))
    assert list(best.coords["component"]) == ["first", "second"]
    chosen = nz.read(nz.projection_model(named, TABLE, model=model, chain=1))
    np.testing.assert_array_equal(best.W.prior.value, chosen.W.prior.value)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, pd.DataFrame, np.ndarray.tolist])
def test_projection_takes_every_form_of_x(form):
    model = nz.gamma_nmf(X, K, alpha_h=0.5)
    idata = random_idata(model, np.random.default_rng(1))
    result = nz.project(idata, form(X[:, :3]), model=model, draws=4, tune=2, chains=1, **QUIET)
    assert loaded(result, "posterior")["H"].shape == (1, 4, K, 3)


def test_projection_of_a_users_model_keeps_background_and_labels():
    model = two_named_factors()
    idata = random_idata(model, np.random.default_rng(1), draws=1)
    with pytest.raises(InputError, match="exposure: got None"):
        nz.project(idata, X[:, :2], model=model)
    structure = nz.read(nz.projection_model(idata, X[:, :2], model=model, exposure=2.0))
    np.testing.assert_allclose(np.broadcast_to(structure.likelihood.background, (F, 2)), np.tile(BACKGROUND, 2))
    np.testing.assert_allclose(structure.likelihood.exposure, 2.0)
    np.testing.assert_allclose(structure.W.prior.value, loaded(idata, "posterior")["theta"][0].mean("draw").T)
    assert list(structure.coords["component"]) == ["x", "y"]
    assert list(structure.coords["feature"]) == list("abcd")


def test_projection_by_an_optimiser_finds_the_activations():
    rng = np.random.default_rng(1)
    W, H = rng.gamma(1.0, size=(30, K)), rng.gamma(1.0, 50.0, size=(K, 4))
    largest_first = np.argsort(-W.sum(axis=0) * H.sum(axis=1))
    model = nz.poisson_nmf(rng.poisson(W @ H), K)
    idata = idata_of(model, W=W[None, None], H=H[None, None])
    result = nz.project(idata, W @ H[:, :2], model=model, engine="em", max_iter=5000, tol=1e-8, **QUIET)
    np.testing.assert_allclose(loaded(result, "posterior")["H"][0, 0], H[largest_first, :2], rtol=1e-4)
    normal = nz.normal_nmf(W @ H, K)
    result = nz.project(idata, W @ H[:, :2], model=normal, max_iter=5000, tol=1e-8, **QUIET)
    np.testing.assert_allclose(loaded(result, "posterior")["H"][0, 0], H[largest_first, :2], rtol=1e-4)


# -- refusals ----------------------------------------------------------------------------------------------------


def test_what_is_too_large_is_refused_with_advice(monkeypatch):
    dense, mask = MODELS["dense"](), MODELS["ratings"]()
    idata, ratings = random_idata(dense, RNG), random_idata(mask, RNG)
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 800.0)
    with pytest.raises(InputError, match=r"n_draws: got 2 x 3 draws of 20 cells, .*nz.predict_blocks"):
        nz.predict(idata, dense)
    with pytest.raises(InputError, match="use per='obs'"):
        nz.log_likelihood(idata, dense, per="cell")
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 8.0)
    with pytest.raises(InputError, match="cells="):
        nz.impute(ratings, mask)


NO_DATA = nz.gamma_nmf(None, K, shape=(F, N))
REFUSED = {
    "unknown label": (lambda i, m: nz.predict(i, m, features=["a", "z"]), "features: got unknown labels z;"),
    "unknown labels of another kind": (lambda i, m: nz.predict(i, m, samples=[7]), "samples: got unknown labels 7;"),
    "no label": (lambda i, m: nz.predict(i, m, samples=[]), "samples: got no labels"),
    "two selections": (lambda i, m: nz.predict(i, m, samples="s0", cells=([0], [0])), "drop one"),
    "cells outside": (lambda i, m: nz.predict(i, m, cells=([4], [0])), "cells: got rows from 4 to 4; .* 0 to 3"),
    "cells that aren't pairs": (lambda i, m: nz.predict(i, m, cells=3), "cells: got 3"),
    "cells of two lengths": (
        lambda i, m: nz.predict(i, m, cells=([1, 2], [0])),
        r"cells: got shapes \(2,\) and \(1,\)",
    ),
    "cells of floats": (lambda i, m: nz.predict(i, m, cells=([1.0], [0])), "float64"),
    "no cell": (lambda i, m: nz.predict(i, m, cells=(np.array([], int), np.array([], int))), "no cell"),
    "too many draws": (lambda i, m: nz.predict(i, m, n_draws=4), "n_draws: got 4; expected an integer from 1 to 3"),
    "width": (lambda i, m: nz.predict_blocks(i, m, width=0), "width"),
    "seed": (lambda i, m: nz.predict(i, m, random_seed="a"), "random_seed"),
    "another model": (
        lambda i, m: nz.predict(i, nz.gamma_nmf(X, 1)),
        r"idata: got W of shape \(4, 2\); expected \(4, 1\)",
    ),
    "no posterior": (lambda i, m: nz.predict(_compat.inference_data({}, {}), m), "idata: got no posterior"),
    "no H": (
        lambda i, m: nz.predict(idata_of(m, W=np.ones((1, 1, F, K))), m),
        "a posterior of W; expected one that holds H",
    ),
    "per": (lambda i, m: nz.log_likelihood(i, m, per="row"), "per: got 'row'"),
    "former dim": (lambda i, m: nz.log_likelihood(i, m, per="sample"), "per: got 'sample'; .*; use 'obs'"),
    "nothing observed": (lambda i, m: nz.log_likelihood(i, NO_DATA), "model: got nothing observed"),
    "nothing missing": (lambda i, m: nz.impute(i, m), "model: got no missing cells"),
    "no data": (lambda i, m: nz.impute(i, NO_DATA), "model: got no data"),
    "missing and unknown features": (
        lambda i, m: nz.project(i, TABLE.rename(index={"a": "q"}), model=m),
        "X_new: got missing features 'a' and unknown features 'q'",
    ),
    "repeated features": (lambda i, m: nz.project(i, TABLE.rename(index={"a": "b"}), model=m), "rows that repeat: 'b'"),
    "wrong number of features": (lambda i, m: nz.project(i, X[:3], model=m), "X_new: got 3 features; expected 4"),
    "no such chain": (lambda i, m: nz.project(i, X, model=m, chain=2), r"chain: got 2; expected one of \[0, 1\]"),
    "negative cells": (lambda i, m: nz.project(i, -1 - X, model=m), "negative"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    act, message = REFUSED[name]
    model = MODELS["dense"]()
    with pytest.raises(InputError, match=message):
        act(random_idata(model, np.random.default_rng(1)), model)


def test_projection_refuses_what_new_samples_do_not_have():
    rng = np.random.default_rng(1)
    for model in (
        nz.gamma_nmf(X, K, alpha_h=nz.free(tie="component")),
        nz.gamma_nmf(X, K, beta_h=np.arange(1.0, N + 1)),
    ):
        with pytest.raises(InputError, match="H"):
            nz.project(random_idata(model, rng), X[:, :2], model=model)
    known = pm.do(nz.gamma_nmf(X, K), {"H": np.ones((K, N))})
    with pytest.raises(InputError, match="known activations"):
        nz.project(idata_of(known, W=np.ones((1, 1, F, K))), X, model=known)


def test_things_that_are_no_model_and_no_result_are_refused():
    model = MODELS["dense"]()
    with pytest.raises(InputError, match="idata: got NoneType; expected the result of nz"):
        nz.predict(None, model)
    with pytest.raises(InputError, match="model: got int; expected a pm"):
        nz.predict(random_idata(model, np.random.default_rng(1)), 3)


def test_means_beyond_64_bits_are_refused():
    """Real-valued data may be of any size, and counts drawn at their means may not fit an integer."""
    for scale, fits in ((1e25, False), (1e17, True)):
        cells = np.where(MASK, scale * X, np.nan)
        cells[1, 0] = 0.5
        model = nz.poisson_nmf(cells, 1)
        idata = idata_of(model, W=np.full((1, 1, F, 1), scale), H=np.ones((1, 1, 1, N)))
        verbs = (nz.predict, nz.impute, lambda *args, **seed: list(nz.predict_blocks(*args, **seed)))
        for verb in verbs:
            if fits:
                np.testing.assert_allclose(verb(idata, model, random_seed=1)[0], scale, rtol=1e-6)
                continue
            with pytest.raises(InputError, match=r"X: got a mean of 1e\+25 to draw a count from; expected means up to"):
                verb(idata, model, random_seed=1)


def test_the_largest_mean_is_the_kernels():
    assert Poisson.largest_mean == counts.LARGEST == LARGEST
    assert counts.draw_poisson(Poisson.largest_mean, np.uint64(1)) > 0
    assert counts.draw_poisson(np.nextafter(Poisson.largest_mean, np.inf), np.uint64(1)) == -1


def test_means_beyond_all_numbers():
    """Draws of heavy tails, each of which float64 holds, but not their product."""
    model = nz.is_nmf(np.ones((2, 3)), 1, alpha_w=1.0)
    huge = idata_of(model, W=np.full((1, 1, 2, 1), 1e200), H=np.full((1, 1, 1, 3), 1e200))
    with pytest.raises(InputError, match="X: got a mean beyond all numbers; expected means that float64 holds"):
        nz.predict(huge, model, random_seed=1)


def test_a_chain_alone_has_the_draws_that_it_has_among_others():
    model = nz.gamma_nmf(X, K)
    idata = random_idata(model, np.random.default_rng(3), chains=3)
    whole = nz.predict(idata, model, random_seed=1)
    for chains in ([2], [2, 0]):
        few = _compat.with_groups(idata, {"posterior": _compat.group(idata, "posterior").sel(chain=chains)})
        xr.testing.assert_identical(nz.predict(few, model, random_seed=1), whole.sel(chain=chains))


def test_draws_in_another_order_of_samples_are_refused_where_the_model_counts_them():
    model = nz.gamma_nmf(X, K)
    idata = random_idata(model, np.random.default_rng(3))
    turned = _compat.group(idata, "posterior").isel(obs=slice(None, None, -1))
    with pytest.raises(InputError, match="sort the result"):
        nz.predict(_compat.with_groups(idata, {"posterior": turned}), model)
