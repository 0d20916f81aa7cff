"""Covariates of samples: what is read, the declaration, who runs it; what is done with a result."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.registry import names, verdict
from nmf_zoo.interfaces.cli import main
from nmf_zoo.structure import GammaPrior, Known, LogLinearGammaPrior, Unknown

F, K, N, J = 5, 2, 8, 3
RNG = np.random.default_rng(21)
DESIGN = RNG.normal(size=(N, J))
X = RNG.poisson(RNG.gamma(2.0, 1.0, (F, K)) @ RNG.gamma(2.0, 2.0, (K, N)))
KNOWN = RNG.uniform(0.5, 2.0, (F, K))
two, three = np.float64(2.0), np.float64(3.0)
COLUMN, ROW = np.array([[0.7], [1.9]]), np.linspace(0.5, 2.0, N)[None]


def of_slopes(*shape, name="s"):
    return pm.Normal(name, np.float64(0.2), np.float64(0.6), shape=shape or (K, J))


def gamma_h(**given):
    return pm.Gamma("H", **given, shape=(K, N))


def exponents():
    return pt.exp(of_slopes() @ DESIGN.T)


def by_mu_and_sigma():
    mean = pm.LogNormal("m", 0.0, 0.5, shape=(K, 1)) * exponents()
    return gamma_h(mu=mean, sigma=mean / np.sqrt(two))


def with_free_shape():
    a, m = pm.Gamma("a", two, two), pm.LogNormal("m", 0.0, 0.5, shape=K)
    return gamma_h(alpha=a, beta=a / (m[:, None] * exponents()))


def transposed():
    return pm.Gamma("H", two, two / pt.exp(DESIGN @ of_slopes(J, K)), shape=(N, K)).T


def with_free_rate_of_samples():
    return gamma_h(alpha=two, beta=pm.Gamma("r", two, two, shape=(1, N)) / exponents())


# -- what is read --------------------------------------------------------------------------------------------------

SPELLINGS = {  # -> the second parameter of the base, and its shape
    "mean": (lambda: gamma_h(alpha=two, beta=two / (three * exponents())), "rate", ()),
    "mean of components": (lambda: gamma_h(alpha=COLUMN, beta=COLUMN / (COLUMN * exponents())), "rate", ()),
    "rate": (lambda: gamma_h(alpha=two, beta=three * pt.exp(-of_slopes() @ DESIGN.T)), "rate", ()),
    "scale": (lambda: gamma_h(alpha=two, beta=1 / (0.5 * exponents())), "rate", ()),
    "pt.dot": (lambda: gamma_h(alpha=two, beta=two / pm.math.exp(pm.math.dot(of_slopes(), DESIGN.T))), "rate", ()),
    "design first": (lambda: gamma_h(alpha=two, beta=two / pt.exp(DESIGN @ of_slopes().T).T), "rate", ()),
    "covariates first": (lambda: gamma_h(alpha=two, beta=two / pt.exp(DESIGN @ of_slopes(J, K)).T), "rate", ()),
    "one by one": (
        lambda: gamma_h(alpha=two, beta=two / pt.exp(sum(of[:, None] * d for of, d in slopes_and_columns()))),
        "rate",
        (),
    ),
    "known intercept": (
        lambda: gamma_h(alpha=two, beta=two / pt.exp(np.log(COLUMN) + of_slopes() @ DESIGN.T)),
        "rate",
        (K, 1),
    ),
    "depths of samples": (lambda: gamma_h(alpha=two, beta=two / (ROW * exponents())), "rate", (1, N)),
    "log of a free mean": (
        lambda: gamma_h(alpha=two, beta=two / pt.exp(pt.log(pm.LogNormal("m", 0.0, 0.5)) + of_slopes() @ DESIGN.T)),
        "mean",
        (),
    ),
    "free shape and mean": (with_free_shape, "mean", (K, 1)),
    "mu and sigma": (by_mu_and_sigma, "mean", (K, 1)),
    "free rate": (with_free_rate_of_samples, "rate", (1, N)),
    "exponential": (lambda: pm.Exponential("H", scale=three * exponents(), shape=(K, N)), "rate", ()),
    "transposed": (transposed, "rate", ()),
    "Deterministic": (lambda: gamma_h(alpha=two, beta=two / pm.Deterministic("e", exponents())), "rate", ()),
    "design as data": (
        lambda: gamma_h(alpha=two, beta=two / pt.exp(of_slopes() @ pm.Data("D", DESIGN).T)),
        "rate",
        (),
    ),
}


def slopes_and_columns():
    slopes = of_slopes()
    return [(slopes[:, j], DESIGN[:, j]) for j in range(J)]


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_are_read(name):
    declare, role, shape = SPELLINGS[name]
    with pm.Model() as model:
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, K)) @ declare(), observed=X)
    nz.check(model)
    prior = nz.read(model).H.prior
    assert isinstance(prior, LogLinearGammaPrior)
    np.testing.assert_allclose(prior.covariates.design, DESIGN, rtol=1e-12)
    second = prior.base.parameters[role]
    assert second.shape == shape
    assert isinstance(second, Unknown) == ("free" in name or name == "mu and sigma")


@pytest.mark.parametrize(
    ("rank", "shape", "spread"),
    [
        (2, (2,), lambda s, d: s[:, None] * d[:, 0]),
        (1, (3,), lambda s, d: (d @ s)[None]),
        (1, (), lambda s, d: (s * d[:, 0])[None]),
        (3, (3, 3), lambda s, d: s @ d.T),
        (3, (3, 3), lambda s, d: (d @ s).T),
    ],
)
def test_axes_of_slopes_are_told_apart(rank, shape, spread):
    with pm.Model() as model:
        slopes = pm.Normal("s", 0.0, np.float64(0.5), shape=shape)
        H = pm.Gamma("H", two, two / pt.exp(spread(slopes, DESIGN)), shape=(rank, N))
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, rank)) @ H, observed=X)
    nz.check(model)
    own = nz.read(model).H.prior.covariates
    values = RNG.normal(size=shape)
    np.testing.assert_allclose(own.effects({"s": values}), np.exp(spread(values, DESIGN)))
    np.testing.assert_array_equal(own.as_variable(own.by_component(values)), values)


def test_known_and_free_are_told_apart():
    with pm.Model() as model:
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, K)) @ with_free_shape(), observed=X)
    base = nz.read(model).H.prior.base
    assert (base.shape.name, base.mean.name, base.mean.shape) == ("a", "m", (K, 1))
    with pm.Model() as model:
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, K)) @ SPELLINGS["scale"][0](), observed=X)
    base = nz.read(model).H.prior.base
    assert isinstance(base.shape, Known)
    assert (float(base.shape.value), float(base.rate.value)) == (2.0, pytest.approx(2.0))


REFUSED = {
    "softplus": lambda: gamma_h(alpha=two, beta=two / pt.softplus(of_slopes() @ DESIGN.T)),
    "squares": lambda: gamma_h(alpha=two, beta=two / pt.exp(of_slopes() ** 2 @ DESIGN.T)),
    "of other components": lambda: gamma_h(alpha=two, beta=two / pt.exp(of_slopes()[::-1] @ DESIGN.T)),
    "the shape, too": lambda: gamma_h(alpha=exponents(), beta=exponents_again()),
    "a sum of means": lambda: gamma_h(alpha=two, beta=two / (1.0 + exponents())),
}


def exponents_again():
    return pm.Model.get_context()["s"] @ DESIGN.T


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_log_linear_is_refused(name):
    with pm.Model() as model:
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, K)) @ REFUSED[name](), observed=X)
    with pytest.raises(UnreadableModel, match=r"exp\(design @ slopes\.T\)") as caught:
        nz.read(model)
    assert "\n" not in str(caught.value)


def test_two_normal_variables_are_refused():
    with pm.Model() as model:
        exponent = of_slopes() @ DESIGN.T + of_slopes(K, 1, name="intercept")
        H = gamma_h(alpha=two, beta=two / pt.exp(exponent))
        pm.Poisson("X", mu=pm.Gamma("W", two, three, shape=(F, K)) @ H, observed=X)
    with pytest.raises(UnreadableModel, match="write an intercept as a mean with a LogNormal prior"):
        nz.read(model)


def test_covariates_of_rows_are_refused():
    with pm.Model() as model:
        W = pm.Gamma("W", two, two / pt.exp(DESIGN @ of_slopes(J, K)), shape=(N, K))
        pm.Poisson("X", mu=W @ pm.Gamma("H", two, three, shape=(K, F)), observed=X.T)
    with pytest.raises(UnreadableModel, match="W: found covariates of the rows of X"):
        nz.read(model)


# -- the declaration -----------------------------------------------------------------------------------------------

FORMS = {
    "plain": {},
    "mean": {"alpha_h": 2.0, "mean_h": 0.7},
    "mean of components": {"alpha_h": [[2.0], [0.7]], "mean_h": [[0.7], [3.0]]},
    "slopes of covariates": {"slopes": [0.5, 1.0, 2.0]},
    "slopes of both": {"slopes": RNG.uniform(0.5, 1.0, (K, J))},
    "hpf": {"prior": "hpf"},
    "ard": {"prior": nz.ARD(shape=4.0)},
    "batches": {"batch": np.arange(N) % 2},
    "mask, exposure, background": {"mask": X > 0, "exposure": ROW, "background": 0.3},
    "known W": {"known": KNOWN[:, :1]},
    "ard beside known W": {"known": KNOWN[:, :1], "prior": "ard"},
    "known H": {"known_h": ROW},
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_declared_has_its_density(form):
    model = nz.gamma_nmf(X, K, design=DESIGN, **FORMS[form])
    nz.check(model)
    assert isinstance(nz.read(model).H.prior, LogLinearGammaPrior)


def test_sparse_counts_have_covariates():
    nz.check(nz.gamma_nmf(sp.csr_array(X), K, design=DESIGN))


def test_free_parameters_stand_beside_slopes():
    model = nz.gamma_nmf(X, K, design=DESIGN, alpha_h=nz.free(), mean_h=nz.free(tie="obs"))
    nz.check(model)
    base = nz.read(model).H.prior.base
    assert isinstance(base, GammaPrior)
    assert (base.shape.name, base.mean.name) == ("alpha_h", "mean_h")


LABELLED = pd.DataFrame(DESIGN, index=list("abcdefgh"), columns=["age", "dose", "time"])


@pytest.mark.parametrize(
    "given",
    [
        LABELLED,
        LABELLED[::-1],
        xr.DataArray(LABELLED, dims=("obs", "covariate")),
        xr.DataArray(LABELLED, dims=("obs", "covariate")).T,
    ],
)
def test_labels_travel(given):
    model = nz.gamma_nmf(pd.DataFrame(X, columns=list("abcdefgh")), K, design=given)
    np.testing.assert_allclose(nz.read(model).H.prior.covariates.design, DESIGN, rtol=1e-12)
    assert model.coords["covariate"] == ("age", "dose", "time")
    assert model.named_vars_to_dims["slopes"] == ("component", "covariate")


@pytest.mark.parametrize("given", [pd.Series(DESIGN[:, 0], name="age"), DESIGN[:, 0], list(DESIGN[:, 0] > 0)])
def test_one_covariate_is_a_column(given):
    assert nz.read(nz.gamma_nmf(X, K, design=given)).H.prior.covariates.shape == (K, 1)


@pytest.mark.parametrize("given", [ROW[0], ROW, pd.Series(ROW[0], index=list("abcdefgh"))])
def test_an_exposure_of_samples_is_an_offset(given):
    """Log exposure enters the mean of each count with a slope of 1."""
    structure = nz.read(nz.gamma_nmf(pd.DataFrame(X, columns=list("abcdefgh")), K, design=DESIGN, exposure=given))
    W, H = KNOWN, np.ones((K, N))
    np.testing.assert_allclose(structure.mean_of(W, H, slice(None)), np.exp(np.log(W @ H) + np.log(ROW)))


def with_column(values, name="extra"):
    return LABELLED.reset_index(drop=True).assign(**{name: values})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"design": DESIGN[:-1]}, r"design: got shape \(7, 3\); expected \(8, covariates\)"),
        ({"design": DESIGN.T}, "transpose it"),
        ({"design": np.zeros((2, 2, 2))}, r"design: got shape \(2, 2, 2\)"),
        ({"design": "age"}, "design: got str 'age'"),
        ({"design": with_column(list("abababab"), "plate")}, "design: got the column 'plate'.*get_dummies"),
        ({"design": with_column([np.nan, *range(7)])}, "design: got nan in the column 'extra', sample 0"),
        ({"design": with_column(1.0)}, "design: got the constant column 'extra'"),
        ({"design": with_column(LABELLED["age"].to_numpy() + 1.0)}, "follows from others: 'age', 'extra'"),
        ({"design": pd.get_dummies(list("abcabcab"))}, "follows from others: 'a', 'b', 'c'"),
        ({"design": RNG.normal(size=(N, N))}, "follows from others"),
        ({"design": with_column(np.arange(8) * 100.0)}, "design: got values up to 700 in the column 'extra'.*stand"),
        ({"design": LABELLED.rename(index={"a": "z"})}, "design: got labels of 'obs' that differ from X's"),
        ({"design": DESIGN, "slopes": 0.0}, "slopes: got values from 0.0"),
        ({"design": DESIGN, "slopes": np.ones(K)}, "slopes: got shape"),
        ({"design": DESIGN, "slopes": nz.free()}, "slopes: got an unknown"),
        ({"slopes": 1.0}, "slopes: got a prior; expected covariates"),
        ({"design": DESIGN, "known_h": np.ones((K, N))}, "design: got covariates; expected None"),
        ({"design": DESIGN, "prior": nz.ARD(cells="half-normal")}, "design: got covariates; expected None beside"),
    ],
)
def test_bad_covariates_are_one_line(given, says):
    with pytest.raises(InputError, match=says) as caught:
        nz.gamma_nmf(pd.DataFrame(X, columns=list("abcdefgh")), K, **given)
    assert "\n" not in str(caught.value)


def test_description_names_them():
    text = nz.describe(nz.gamma_nmf(X, K, design=DESIGN, slopes=0.5))
    assert "H: 2 x 8, Gamma(shape=1, rate=1, slopes=slopes)" in text
    assert "slopes: 6 values, one for each component and covariate, sampled, normal(0, 0.5) prior" in text


def test_simulation_has_the_law():
    """Over the effects of its covariates H is gamma, and what they are goes with the slopes of the same draw."""
    model = nz.gamma_nmf(None, K, design=DESIGN, alpha_h=4.0, mean_h=2.0, shape=(F, N))
    assert nz.simulate(model, random_seed=1)["slopes"].shape == (K, J)
    slopes, H = pm.draw([model["slopes"], model["H"]], 500, random_seed=1)
    ratio = H / np.exp(slopes @ DESIGN.T)
    assert abs(ratio.mean() - 2.0) < 5 * 1.0 / np.sqrt(ratio.size)
    assert abs(ratio.var() - 1.0) < 0.1


# -- who runs it ---------------------------------------------------------------------------------------------------

ABLE = {"em", "gibbs", "nuts"}


def test_who_runs_it():
    structure = nz.read(nz.gamma_nmf(X, K, design=DESIGN))
    assert {name for name in names() if verdict(structure, name)} == ABLE
    for name in ("vb", "mcem", "smc"):
        assert "H has a log-linear gamma prior" in verdict(structure, name).reason


@pytest.mark.parametrize("method", ["bound", "chib", "smc", "enumeration"])
def test_evidence_is_refused(method):
    with pytest.raises(UnsupportedModel, match="H has a log-linear gamma prior"):
        nz.evidence(nz.gamma_nmf(X, K, design=DESIGN), method=method, quiet=True)


def test_replicas_blocks_and_streams_are_refused():
    model = nz.gamma_nmf(X, K, design=DESIGN)
    with pytest.raises(UnsupportedModel, match="H has a log-linear gamma prior"):
        nz.sample(engine=nz.Gibbs(temperatures=3), quiet=True, model=model)
    unseen = nz.gamma_nmf(None, K, design=DESIGN, shape=(F, N))
    with pytest.raises(UnsupportedModel, match="H depends on covariates of its samples"):
        nz.fit(engine="em", data=X, model=unseen, quiet=True)
    with pytest.raises(UnsupportedModel):
        nz.stream(unseen)


# -- what is done with a result ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    model = nz.gamma_nmf(
        pd.DataFrame(X, columns=list("abcdefgh")), K, design=LABELLED, slopes=0.5, alpha_w=1.5, alpha_h=2.0, beta_h=0.5
    )
    return nz.sample(100, tune=100, chains=2, engine="gibbs", random_seed=1, quiet=True, model=model), model


def test_a_result_holds_slopes_under_their_labels(drawn):
    idata, model = drawn
    slopes = _compat.group(idata, "posterior")["slopes"]
    assert slopes.dims == ("chain", "draw", "component", "covariate")
    assert slopes["covariate"].to_numpy().tolist() == ["age", "dose", "time"]
    posterior = _compat.group(idata, "posterior")
    values = {name: posterior[name].to_numpy()[1, 7] for name in ("W", "H", "slopes")}
    lp = _compat.group(idata, "sample_stats")["lp"].to_numpy()[1, 7]
    assert lp == pytest.approx(nz.read(model).log_joint(values), rel=1e-12)
    assert np.all(np.std(slopes.to_numpy(), axis=1) > 0.05)


def test_components_are_aligned_with_their_slopes(drawn):
    idata, _ = drawn
    aligned = _compat.group(nz.align(idata), "posterior")
    posterior = _compat.group(idata, "posterior")
    W, found = (group["W"].to_numpy()[0, 3] / group["W"].to_numpy()[0, 3].sum(axis=0) for group in (posterior, aligned))
    order = [int(np.argmin(np.abs(W - column[:, None]).sum(axis=0))) for column in found.T]
    assert sorted(order) == [0, 1]
    np.testing.assert_array_equal(aligned["slopes"].to_numpy()[0, 3], posterior["slopes"].to_numpy()[0, 3][order])


def test_new_samples_have_covariates(drawn):
    """H of a new sample that is hardly exposed has the mean that its covariates say."""
    idata, model = drawn
    new = LABELLED.iloc[:4].set_axis(["p", "q", "r", "s"])[["time", "age", "dose"]]
    table = pd.DataFrame(np.zeros((F, 4), int), columns=["s", "r", "q", "p"])
    run = {
        "model": model,
        "engine": "gibbs",
        "draws": 2000,
        "tune": 50,
        "extend": 1,
        "chains": 1,
        "random_seed": 1,
        "quiet": True,
    }
    projected = nz.project(idata, table, chain=0, design=new, exposure=1e-9, **run)
    found = _compat.group(projected, "posterior")["H"].mean(("chain", "draw")).to_numpy()
    ordered = _compat.group(nz.align(idata), "posterior")["slopes"].sel(chain=0).mean("draw")
    expected = 4.0 * np.exp(ordered.to_numpy() @ new[["age", "dose", "time"]].to_numpy()[::-1].T)
    np.testing.assert_allclose(found, expected, rtol=5 * np.sqrt(0.5 / 2000))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "design: got None; expected the covariates age, dose, time of the new samples"),
        ({"design": DESIGN[:2, :2]}, "design: got 2 columns; expected the covariates"),
        ({"design": LABELLED.iloc[:2].rename(columns={"age": "years"})}, "design: got columns named years, dose, time"),
        ({"design": DESIGN[:3]}, r"design: got shape \(3, 3\); expected \(2, covariates\)"),
        ({"design": DESIGN[:2] * np.nan}, "design: got values that are NaN"),
    ],
)
def test_bad_new_covariates_are_one_line(arguments, says, drawn):
    idata, model = drawn
    with pytest.raises(InputError, match=says):
        nz.project(idata, X[:, :2], model=model, quiet=True, **arguments)


def test_covariates_of_a_model_without_them_are_refused():
    model = nz.gamma_nmf(X, K)
    fitted = nz.fit(engine="em", search=None, random_seed=1, quiet=True, model=model, max_iter=5)
    with pytest.raises(InputError, match="design: got covariates; expected None"):
        nz.project(fitted, X, model=model, design=DESIGN, quiet=True)


def test_a_run_goes_on_from_its_checkpoint(drawn, tmp_path):
    _, model = drawn
    run = {"tune": 5, "chains": 2, "engine": "gibbs", "random_seed": 1, "quiet": True, "model": model}
    nz.sample(6, checkpoint=tmp_path / "run", **run)
    longer, direct = nz.sample(12, checkpoint=tmp_path / "run", **run), nz.sample(12, **run)
    for name in ("W", "H", "slopes"):
        np.testing.assert_array_equal(*(_compat.group(own, "posterior")[name].to_numpy() for own in (longer, direct)))


def test_cells_near_zero_stay_positive():
    """Divided by their effects and back, beside an unknown mean and a known component that is 0 in places."""
    with pm.Model() as model:
        mean = pm.LogNormal("m", 0.0, 2.0)
        nz.gamma_nmf(X, K, design=5.0 * DESIGN, alpha_h=0.01, mean_h=mean, known_h=np.arange(N)[None] % 3)
    idata = nz.sample(60, tune=0, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    H = _compat.group(idata, "posterior")["H"].to_numpy()
    assert np.all(H[..., 0, :] == np.arange(N) % 3)
    assert np.all(H[..., 1, :] > 0)
    assert np.all(np.isfinite(_compat.group(idata, "sample_stats")["lp"]))


def test_slopes_begin_below_zero_where_they_are_told_to(drawn):
    _, model = drawn
    run = {"tune": 0, "chains": 1, "engine": "gibbs", "random_seed": 1, "quiet": True, "model": model}
    nz.sample(1, initvals={"slopes": np.full((K, J), -0.5)}, **run)
    with pytest.raises(InputError, match="not finite"):
        nz.sample(1, initvals={"slopes": np.full((K, J), np.nan)}, **run)


def test_no_effect_is_no_covariate():
    """With slopes as narrow as a point, Gibbs draws what it draws without covariates."""
    run = {"draws": 800, "tune": 100, "chains": 1, "engine": "gibbs", "random_seed": 1, "quiet": True}
    with_them, without = (
        nz.sample(model=nz.gamma_nmf(X, 1, alpha_w=1.5, alpha_h=2.0, **more), **run)
        for more in ({"design": DESIGN, "slopes": 1e-6}, {})
    )
    first, second = (_compat.group(one, "posterior")["H"].mean(("chain", "draw")) for one in (with_them, without))
    np.testing.assert_allclose(first, second, rtol=0.08)


@pytest.mark.parametrize(
    "lines", ["age,dose\n0.5,1\n-1,0\n0.25,1\n2,0\n", ",age,dose\ns2,-1,0\ns1,0.5,1\ns3,0.25,1\ns4,2,0\n"]
)
def test_covariates_from_the_command_line(lines, tmp_path, capsys):
    """In the order of the samples, or by their labels; the result knows them."""
    (tmp_path / "x.csv").write_text(",s1,s2,s3,s4\nx,1,2,3,4\ny,1,2,3,2\nz,2,2,1,0\n")
    (tmp_path / "design.csv").write_text(lines)
    line = f"fit {tmp_path / 'x.csv'} --rank 1 --engine gibbs --draws 5 --tune 5 --chains 1 --random-seed 1 --quiet"
    line += f" -o {tmp_path / 'o.nc'} --slopes 0.5"
    assert main([*line.split(), "--design", str(tmp_path / "design.csv")]) == 0
    result = nz.load(tmp_path / "o.nc")
    assert _compat.group(result, "posterior")["covariate"].to_numpy().tolist() == ["age", "dose"]
    design = _compat.group(result, "constant_data")["design"]
    np.testing.assert_array_equal(design.to_numpy(), [[0.5, 1.0], [-1.0, 0.0], [0.25, 1.0], [2.0, 0.0]])
    capsys.readouterr()
    assert main([*line.split(), "--force", "--design", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err
