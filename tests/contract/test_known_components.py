"""Known components beside unknown ones: what is read, what engines make of it, and how it is told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.optimize
import scipy.sparse
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, UnreadableModel, UnsupportedModel
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts.mcem_expectations import ExactLikelihood
from nmf_zoo.interfaces.cli import main
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import plant

F, N = 7, 9
RNG = np.random.default_rng(4)
KNOWN = RNG.dirichlet(np.ones(F), 2).T
X = RNG.poisson(np.c_[KNOWN, RNG.dirichlet(np.ones(F))] @ RNG.gamma(1.0, 60.0, (3, N))) + 1
NAMES = [f"gene{i}" for i in range(F)]
CATALOGUE = pd.DataFrame(KNOWN, index=NAMES, columns=["SBS1", "SBS5"])
TABLE = pd.DataFrame(X, index=NAMES)
PRIORS = {"alpha_w": 1.5, "beta_w": 1.5 * F, "alpha_h": 1.2, "beta_h": 0.02}


def written(left=True, first=True, transposed=False, prior=pm.Gamma, named=True):
    """The same model by hand: known columns of W or rows of H, before or after the new ones."""
    known, x = (KNOWN, X) if left else (KNOWN.T, X.T)
    own = {} if prior is pm.HalfFlat else {"alpha": np.float64(1.5), "beta": np.float64(1.5 * F)}
    with pm.Model() as model:
        new = prior("new", **own, shape=(F, 1) if left != transposed else (1, F))
        given = known.T if transposed else known
        axis = int(left != transposed)
        whole = pt.concatenate([given, new] if first else [new, given], axis=axis)
        whole = pm.Deterministic("V", whole) if named else whole
        whole = whole.T if transposed else whole
        other = pm.Gamma("U", np.float64(1.2), np.float64(0.02), shape=(3, N) if left else (N, 3))
        pm.Poisson("X", whole @ other if left else other @ whole, observed=x)
    return model


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_concatenations_are_read(left, first, transposed):
    model = written(left, first, transposed)
    nz.check(model)
    structure = read(model)
    factor = structure.W if left else structure.H
    assert (factor.name, factor.variable, factor.transposed) == ("V", "new", transposed)
    places = slice(0, 2) if first else slice(1, 3)
    given = factor.known.values[:, places] if left else factor.known.values.T[:, places]
    np.testing.assert_array_equal(given, KNOWN)
    assert "2 of 3 components known, new Gamma" in str(nz.describe(model))


def test_what_is_not_read_is_said():
    with pytest.raises(UnreadableModel, match=r"new: .*without a name.*pm\.Deterministic"):
        read(written(named=False))
    with pm.Model() as two:
        parts = [pm.HalfFlat(name, shape=(F, 1)) for name in ("one", "other")]
        W = pm.Deterministic("W", pt.concatenate([KNOWN, *parts], axis=1))
        pm.Poisson("X", W @ pm.HalfFlat("H", shape=(4, N)), observed=X)
    with pytest.raises(UnreadableModel, match="2 unknown parts of one factor"):
        read(two)
    with pm.Model() as rows:
        W = pm.Deterministic("W", pt.concatenate([KNOWN[:3], pm.HalfFlat("new", shape=(4, 2))], axis=0))
        pm.Poisson("X", W @ pm.HalfFlat("H", shape=(2, N)), observed=X)
    with pytest.raises(UnreadableModel, match="axis 0"):
        read(rows)


BUILDERS = {
    "gamma_nmf": lambda X, rank, **o: nz.gamma_nmf(X, rank, **o),
    "poisson_nmf": lambda X, rank, **o: nz.poisson_nmf(X, rank, **o),
    "gap": lambda X, rank, **o: nz.gap(X, rank, alpha_h=1.5, **o),
    "negative_binomial_nmf": lambda X, rank, **o: nz.negative_binomial_nmf(X, rank, **o),
    "normal_nmf": lambda X, rank, **o: nz.normal_nmf(X, rank, **o),
    "is_nmf": lambda X, rank, **o: nz.is_nmf(X, rank, **o),
    "hmm_nmf": lambda X, rank, **o: nz.hmm_nmf(X, rank, chain=nz.BasisChain(0.9, 0.5), **o),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_takes_them(name):
    beside = BUILDERS[name](TABLE, 3, known=CATALOGUE.iloc[::-1])
    nz.check(beside)
    structure = read(beside)
    np.testing.assert_array_equal(structure.W.known.values[:, :2], KNOWN)  # features by their labels
    assert list(structure.coords["component"]) == ["SBS1", "SBS5", "new 1"]
    assert list(structure.coords["new_component"]) == ["new 1"]
    refit = BUILDERS[name](TABLE, 2, known=CATALOGUE)
    assert read(refit).W.is_fixed
    assert list(refit.coords["component"]) == ["SBS1", "SBS5"]


ROWS = RNG.gamma(1.0, 30.0, (2, N))
SAMPLES = [f"s{i}" for i in range(N)]
GIVEN = pd.DataFrame(ROWS, index=["light", "dark"], columns=SAMPLES)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "hmm_nmf"])
def test_builders_take_known_components_of_h(name):
    table = pd.DataFrame(X, index=NAMES, columns=SAMPLES)
    model = BUILDERS[name](table, 3, known_h=GIVEN.iloc[:, ::-1])
    nz.check(model)
    structure = read(model)
    np.testing.assert_array_equal(structure.H.known.values[:2], ROWS)  # samples by their labels
    assert list(structure.coords["component"]) == ["light", "dark", "new 1"]
    assert structure.dims["H_new"] == ("new_h_component", "obs")
    both = read(BUILDERS[name](table, 3, known=KNOWN[:, :1], known_h=GIVEN))
    assert (both.W.known.shape, both.H.known.shape) == ((F, 2), (1, N))
    assert read(BUILDERS[name](table, 2, known_h=GIVEN)).H.is_fixed


@pytest.mark.engines
@pytest.mark.parametrize("name", ["em", "vb"])
def test_known_components_of_h_are_those_of_w_of_the_transpose(name):
    """The same objective at the end, from the same start."""
    start_w, start_h = RNG.gamma(2.0, 0.1, (F, 3)), np.r_[ROWS, RNG.gamma(2.0, 10.0, (1, N))]
    given = {"alpha_w": 1.5, "beta_w": 10.0, "alpha_h": 1.2, "beta_h": 0.02}
    turned = {"alpha_w": 1.2, "beta_w": 0.02, "alpha_h": 1.5, "beta_h": 10.0}
    runs = (
        (nz.gamma_nmf(X, 3, known_h=ROWS, **given), {"W": start_w, "H": start_h}),
        (nz.gamma_nmf(X.T, 3, known=ROWS.T, **turned), {"W": start_h.T, "H": start_w.T}),
    )
    ends = []
    for model, start in runs:
        found = group(fit(model, name, tol=1e-10, max_iter=20_000, initvals=start), "fit")["objective"].to_numpy()[0]
        ends.append(found[np.isfinite(found)][-1])
    np.testing.assert_allclose(*ends, rtol=1e-8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"known_h": ROWS.T}, r"known_h: got 2 columns; expected 9, the samples of X"),
        ({"known_h": -ROWS}, r"known_h: got values from"),
        ({"known_h": ROWS, "rank": 1}, r"rank: got 1; expected at least 2"),
        ({"known_h": ROWS, "prior": "hpf"}, r"prior: got 'hpf'; expected None beside known_h="),
        ({"known_h": GIVEN.rename(columns={"s0": "t"})}, r"known_h: got labels of 'obs' that differ"),
    ],
)
def test_bad_components_of_h_are_refused_in_one_line(given, said):
    with pytest.raises(InputError, match=said):
        nz.gamma_nmf(pd.DataFrame(X, index=NAMES, columns=SAMPLES), **({"rank": 3} | given))


def test_beliefs_are_priors_around_the_catalogue():
    zero = CATALOGUE.copy()
    zero.iloc[0, 0] = 0.0
    structure = read(nz.gamma_nmf(TABLE, 3, known=zero, known_strength=50.0, alpha_w=2.0, mean_w=0.1))
    shape, rate = structure.W.prior.shape_and_rate({})
    expected = np.maximum(zero.to_numpy(), 1e-3 * zero.to_numpy().mean(axis=0))
    np.testing.assert_allclose(shape, np.c_[np.full((F, 2), 50.0), np.full((F, 1), 2.0)])
    np.testing.assert_allclose(shape / rate, np.c_[expected, np.full((F, 1), 0.1)])


@pytest.mark.parametrize("make", [nz.gamma_nmf, nz.negative_binomial_nmf])
@pytest.mark.parametrize("rank", [2, 3])
def test_beliefs_of_h_are_those_of_w_of_the_transpose(make, rank):
    """Beside a new component, and alone."""
    rows = ROWS * np.r_[0.0, np.ones(N - 1)]
    new, other = {"alpha": 1.2, "beta": 0.3}, {"alpha": 1.5, "beta": 0.7}

    def declared(X, left, right, **given):
        of_w, of_h = (
            {f"{role}_{end}": own for role, own in prior.items()} for end, prior in (("w", left), ("h", right))
        )
        return read(make(X, rank, known_strength=20.0, **of_w, **of_h, **given))

    if rank == 2:
        new = {}
    of_h, of_w = declared(X, other, new, known_h=rows), declared(X.T, new, other, known=rows.T)
    assert of_h.H.is_free
    W, H = RNG.gamma(1.0, 1.0, (F, rank)), RNG.gamma(1.0, 1.0, (rank, N))
    alpha = {"alpha": 2.0} if make is nz.negative_binomial_nmf else {}
    expected = of_w.log_joint({"W": H.T, "H": W.T, **alpha})
    assert of_h.log_joint({"W": W, "H": H, **alpha}) == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(of_h.H.prior.shape_and_rate({}), of_w.W.prior.shape_and_rate({}), strict=True):
        np.testing.assert_allclose(ours, np.transpose(theirs))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"known": CATALOGUE.T}, r"known: got 2 rows; expected 7, the features of X"),
        ({"known": -CATALOGUE}, r"known: got values from .*expected finite numbers >= 0"),
        ({"known": 0 * CATALOGUE}, r"known: got a component of zeros"),
        ({"known": CATALOGUE.to_xarray()}, r"known: got a Dataset; expected a matrix"),
        ({"known": CATALOGUE, "rank": 1}, r"rank: got 1; expected at least 2, the known components"),
        (
            {"known": CATALOGUE, "prior": "ard", "known_strength": 9.0},
            r"prior: got 'ard'; expected None beside known_str",
        ),
        (
            {"known": 1e-300 * CATALOGUE, "prior": nz.ARD(cells="half-normal")},
            r"known: got components whose activations would have relevance_variances from .*change their unit",
        ),
        (
            {"known": CATALOGUE, "prior": "hpf", "known_strength": 9.0},
            r"prior: got 'hpf'; expected None beside known_strength=",
        ),
        ({"known": CATALOGUE, "known_strength": -1.0}, r"known_strength: got -1\.0"),
        (
            {"known_strength": 3.0},
            r"known_strength: got 3\.0; expected components to believe in; give known= or known_h=",
        ),
        (
            {"known_h": ROWS, "known_strength": 3.0, "design": np.arange(N)},
            r"design: got covariates; expected None beside components of H that are believed",
        ),
        ({"known": CATALOGUE.rename(index={"gene0": "other"})}, r"known: got labels of 'feature' that differ"),
    ],
)
def test_bad_catalogues_are_refused_in_one_line(given, said):
    with pytest.raises(InputError, match=said):
        nz.gamma_nmf(TABLE, **({"rank": 3} | given))


def test_with_no_new_component_there_are_no_hyperparameters_of_new_ones():
    """So that one declaration serves ranks from that of the catalogue on."""
    for alpha_w in (2.0, nz.free()):
        models = {
            "gamma": nz.gamma_nmf(X, 2, known=KNOWN, alpha_w=alpha_w),
            "powers": nz.is_nmf(X, 2, known=KNOWN, alpha_w=alpha_w),
            "chains": nz.hmm_nmf(X, 2, chain=nz.BasisChain(0.9, 0.5), known=KNOWN, alpha_w=alpha_w),
        }
        for model in models.values():
            assert set(model.named_vars) == {"W", "H", "X"}


def fit(model, engine, **options):
    return nz.fit(model=model, engine=engine, random_seed=1, quiet=True, **options)


FITS = {"em": nz.EM(), "plain em": nz.EM(accelerate=None), "vb": nz.VB(), "paisley": nz.VB(order="paisley")}
GAP = {"em": nz.EM(), "float32": nz.EM(precision="float32"), "plain em": nz.EM(accelerate=None)}
STORED = {"dense": X, "sparse": scipy.sparse.csr_array(X)}


@pytest.mark.engines
@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("stored", STORED)
def test_optimisers_keep_them_and_never_lose(name, stored):
    model = nz.gamma_nmf(STORED[stored], 3, known=KNOWN, **PRIORS)
    result = fit(model, FITS[name], tol=1e-8, search=None)
    W, new = group(result, "posterior")["W"].to_numpy(), group(result, "posterior")["W_new"].to_numpy()
    np.testing.assert_array_equal(W[..., :2], np.broadcast_to(KNOWN, (*W.shape[:-1], 2)))
    np.testing.assert_array_equal(W[..., 2:], new)
    objective = group(result, "fit")["objective"].to_numpy()[0]
    rises = np.diff(objective[np.isfinite(objective)])
    scale = 1e-12 * np.abs(objective[0])
    assert np.all(rises >= -scale) if isinstance(FITS[name], nz.VB) else np.all(rises <= scale)


@pytest.mark.engines
def test_known_components_that_em_moves_are_seen(monkeypatch):
    """A planted error: each update of a factor takes the known columns along."""

    def wrong(right):
        def moving(side, *given):
            new, residual = right(side, *given)
            return new * (1.0 if side.factor.known is None else 1.01), residual

        return moving

    plant(monkeypatch, "EM: updates", wrong)
    with pytest.raises(AssertionError):
        test_optimisers_keep_them_and_never_lose("plain em", "sparse")


@pytest.mark.engines
@pytest.mark.parametrize("name", GAP)
@pytest.mark.parametrize("stored", STORED)
def test_gap_keeps_them_and_new_ones_sum_to_one(name, stored):
    posterior = group(
        fit(nz.gap(STORED[stored], 3, known=5.0 * KNOWN, alpha_h=1.0), GAP[name], search=None), "posterior"
    )
    W = posterior["W"].to_numpy()[0, 0]
    np.testing.assert_array_equal(W[:, :2], 5.0 * KNOWN)
    np.testing.assert_allclose(W[:, 2].sum(), 1.0, rtol=1e-12)


@pytest.mark.parametrize("first", [True, False])
def test_em_ends_where_pymc_says_there_is_no_slope(first):
    """The gradient of PyMC's log-density in the free cells is 0, but for cells at 0 that want to fall."""
    model = written(first=first)
    posterior = group(fit(model, nz.EM(), tol=1e-9), "posterior")
    at = {name: posterior[name].to_numpy()[0, 0] for name in ("new", "U")}
    slopes = model.compile_dlogp(vars=[model["new"], model["U"]], jacobian=False, mode="FAST_COMPILE")(
        {model.rvs_to_values[model[name]].name: np.log(value) for name, value in at.items()}
    )
    scale = X.sum() / 30
    assert np.max(np.abs(slopes)) < 1e-5 * scale  # with respect to logarithms: cells at 0 have none


HALF_NORMAL = {"sigma_w": 1.0, "sigma_h": 50.0}
OTHERS = {
    "normal": lambda known: nz.normal_nmf(X, 3, known=known, sigma=2.0),
    "normal, half-normal": lambda known: nz.normal_nmf(X, 3, known=known, sigma=2.0, **HALF_NORMAL),
    "half-normal": lambda known: nz.poisson_nmf(X, 3, known=known, **HALF_NORMAL),
    "negative binomial": lambda known: nz.negative_binomial_nmf(X, 3, known=known, alpha=5.0, **PRIORS),
}


def largest_slope(structure, W, H):
    """Of the log density in the logarithms of W's new column and of H, by central differences."""
    slopes, step = [], 1e-5
    for own, cells in (("W", [(f, 2) for f in range(F)]), ("H", list(np.ndindex(H.shape)))):
        for cell in cells:
            ends = []
            for factor in (1 + step, 1 - step):
                moved = {"W": W.copy(), "H": H.copy()}
                moved[own][cell] *= factor
                ends.append(structure.log_joint(moved))
            slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.max(np.abs(slopes))


@pytest.mark.engines
@pytest.mark.parametrize("name", OTHERS)
def test_em_of_other_data_and_priors_ends_where_there_is_no_slope(name):
    """And the check sees an optimum beside components that are two percent off."""
    posterior = group(fit(OTHERS[name](KNOWN), nz.EM(), tol=1e-10, max_iter=20_000, search=None), "posterior")
    W, H = (posterior[own].to_numpy()[0, 0] for own in ("W", "H"))
    np.testing.assert_array_equal(W[:, :2], KNOWN)
    found = largest_slope(read(OTHERS[name](KNOWN)), W, H)
    off = largest_slope(read(OTHERS[name](1.02 * KNOWN)), np.c_[1.02 * KNOWN, W[:, 2:]], H)
    assert found < 1e-4 * off


@pytest.mark.engines
@pytest.mark.parametrize("name", ["normal, half-normal", "negative binomial"])
def test_vb_of_other_data_keeps_them_and_never_falls(name):
    result = fit(OTHERS[name](KNOWN), "vb", tol=1e-7, search=None)
    W = group(result, "posterior")["W"].to_numpy()
    np.testing.assert_array_equal(W[..., :2], np.broadcast_to(KNOWN, (*W.shape[:-1], 2)))
    bound = group(result, "fit")["objective"].to_numpy()[0]
    assert np.all(np.diff(bound[np.isfinite(bound)]) >= -1e-10 * np.abs(bound[0]))


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["em", "vb"])
def test_which_come_first_does_not_matter(engine):
    start = RNG.gamma(2.0, 1.0, (3, N))
    ends = []
    for first in (True, False):
        places = [0, 1, 2] if first else [1, 2, 0]  # of known, known, new
        U = np.empty((3, N))
        U[places] = start
        initvals = {"new": np.ones((F, 1)) / F, "U": U}
        posterior = group(fit(written(first=first), engine, tol=1e-9, initvals=initvals), "fit")
        ends.append(float(posterior["objective"].to_numpy()[0, -1]))
    np.testing.assert_allclose(*ends, rtol=1e-9)


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["em", "vb"])
def test_strong_beliefs_are_known_components(engine):
    """A prior of shape 1e7 around the catalogue: the same answer to the digits that this leaves."""
    H = []
    start = {"H": np.full((3, N), 30.0)}
    for strength in (None, 1e7):
        model = nz.gamma_nmf(X, 3, known=KNOWN, known_strength=strength, **PRIORS)
        new = {"W_new": np.full((F, 1), 1 / F)} if strength is None else {"W": np.c_[KNOWN, np.full(F, 1 / F)]}
        found = fit(model, engine, tol=1e-7, max_iter=20_000, initvals=start | new)
        of_q = group(found, "fit")
        H.append(of_q["H_shape"] / of_q["H_rate"] if engine == "vb" else group(found, "posterior")["H"])
    np.testing.assert_allclose(H[0].to_numpy().ravel(), H[1].to_numpy().ravel(), rtol=2e-3, atol=0.05)


def test_refusals_say_which():
    model = nz.gamma_nmf(X, 3, known=KNOWN)
    structure = read(model)
    taken = {entry.name for entry in registry.REGISTRY if registry.verdict(structure, entry)}
    assert taken == {"em", "vb", "gibbs", "smc", "nuts", "bound", "chib"}
    with pytest.raises(UnsupportedModel, match="2 of the 3 components of W are known, and it takes all or none"):
        nz.sample(engine="particle_gibbs", model=model)
    with pytest.raises(UnsupportedModel, match="W_new has a prior, and beside known components it maximises over new"):
        nz.fit(engine="mcem", model=model)
    with pytest.raises(UnsupportedModel, match="hyperparameter alpha_h is unknown, beside known components of W"):
        nz.fit(engine="mcem", model=nz.gap(X, 3, known=KNOWN, alpha_h=nz.free()))
    with pytest.raises(UnsupportedModel, match="beta_h is free, and as components beside the known ones empty"):
        nz.fit(engine="em", model=nz.gap(X, 3, known_h=ROWS, beta_h=nz.free(tie="all")))


FEW = RNG.poisson(np.c_[[0.5, 0.2, 0.0], [0.1, 0.6, 0.9]] @ RNG.gamma(1.0, 2.0, (2, 25))) + np.array([[1], [0], [0]])


def gap_beside(complete):
    model = nz.gap(FEW, 2, known=[[0.5], [0.2], [0.0]], alpha_h=1.0, beta_h=0.5)
    options = nz.MCEM(complete=complete, sweeps=200, burn_in=20, exact=True)
    return fit(model, options, max_iter=60, tol=0), model


@pytest.mark.engines
@pytest.mark.parametrize("complete", ["C", "H", "CH"])
def test_mcem_maximises_the_marginal_likelihood_over_new_components(complete):
    """The exact log p(X | W) is as high at the end as where a search by it ends, up to its Monte-Carlo error."""
    result, model = gap_beside(complete)
    W = group(result, "posterior")["W"].to_numpy()[0, 0]
    np.testing.assert_array_equal(W[:, 0], [0.5, 0.2, 0.0])
    likelihood = ExactLikelihood(read(model), SERIAL)

    def loss(log_w):
        return -likelihood(np.c_[W[:, 0], np.exp(log_w)], {})

    best = scipy.optimize.minimize(loss, np.log(W[:, 1]), method="Nelder-Mead", options={"maxiter": 400}).fun
    assert best <= loss(np.log(W[:, 1])) < best + 0.02


@pytest.mark.engines
def test_an_exposure_that_is_off_is_seen(monkeypatch):
    plant(
        monkeypatch,
        "MCEM: sources by exposure",
        lambda right: lambda sources, old, exposure: right(sources, old, 1.3 * exposure),
    )
    with pytest.raises(AssertionError):
        test_mcem_maximises_the_marginal_likelihood_over_new_components("CH")


HYPER = {
    "free shapes": {"alpha_w": nz.free(), "mean_w": nz.free(), "alpha_h": nz.free(tie="all"), "mean_h": nz.free("obs")},
    "hpf": {"prior": "hpf"},
}


@pytest.mark.engines
@pytest.mark.parametrize("name", HYPER)
@pytest.mark.parametrize("order", ["cemgil", "paisley"])
def test_hyperparameters_of_new_components_are_learned_from_these_alone(name, order):
    """VB never falls; at its end no value of a free one, by the bound's own terms of new cells, is better."""
    model = nz.gamma_nmf(X, 4, known=KNOWN, **HYPER[name])
    result = fit(model, nz.VB(order=order), tol=1e-9, search=None)
    of_q, posterior = group(result, "fit"), group(result, "posterior")
    bound = of_q["objective"].to_numpy()[0]
    assert np.all(np.diff(bound[np.isfinite(bound)]) >= -1e-11 * np.abs(bound[0]))
    shape, rate = (of_q[f"W_new_{word}"].to_numpy()[0] for word in ("shape", "rate"))
    if name == "hpf":
        found = of_q["beta_w_shape"].to_numpy()[0], of_q["beta_w_rate"].to_numpy()[0]
        np.testing.assert_allclose(found[0], 0.3 + 2 * 0.3)  # of two new cells in a row, none of the known ones
        np.testing.assert_allclose(found[1], 0.3 + (shape / rate).sum(axis=1), rtol=1e-5)
    else:
        np.testing.assert_allclose(posterior["mean_w"].to_numpy()[0, 0], (shape / rate).mean(), rtol=1e-5)


@pytest.mark.engines
def test_em_learns_rates_of_rows_from_new_components_alone():
    model = nz.gamma_nmf(X, 4, known=KNOWN, prior=nz.HPF(shape=3.0), alpha_w=1.5, alpha_h=1.5)
    result = fit(model, "em", tol=1e-10, search=None)
    posterior = group(result, "posterior")
    W, beta = (posterior[own].to_numpy()[0, 0] for own in ("W_new", "beta_w"))
    np.testing.assert_allclose(beta, (3.0 + 2 * 1.5 - 1.0) / (3.0 + W.sum(axis=1)), rtol=1e-5)
    objective = group(result, "fit")["objective"].to_numpy()[0]
    assert np.all(np.diff(objective[np.isfinite(objective)]) <= 1e-11 * np.abs(objective[0]))


@pytest.mark.engines
def test_rates_of_samples_are_learned_where_all_components_are_known():
    model = nz.gamma_nmf(X, 2, known=KNOWN, prior="hpf")
    assert set(model.named_vars) == {"W", "H", "X", "beta_h"}
    nz.check(model)


# -- relevances of new components ------------------------------------------------------------------------------------

RELEVANCES = {
    "means": nz.ARD(),
    "rates": nz.ARD(law="gamma"),
    "variances": nz.ARD(cells="half-normal"),
    "precisions": nz.ARD(cells="half-normal", law="gamma"),
}


@pytest.mark.parametrize("name", RELEVANCES)
def test_new_components_alone_have_relevances(name):
    """Known ones have activations whose prior mean makes an equal part of the mean of X."""
    prior = RELEVANCES[name]
    model = nz.gamma_nmf(TABLE, 4, known=CATALOGUE, prior=prior)
    nz.check(model)
    structure, t = read(model), RNG.gamma(5.0, 1.0, 2)
    assert structure.unknowns[prior.name].variable_shape == (2,)
    assert structure.dims[prior.name] == ("new_component",)
    assert f"{prior.name} beside 2 known" in str(nz.describe(model))
    ((_, of_h),) = [each for each in structure.H.prior.parameters.items() if each[0] != "shape"]
    found = of_h.resolve({prior.name: t})
    assert found.shape == (4, 1)
    np.testing.assert_array_equal(found[2:, 0], t)
    part = {"means": found, "rates": 1 / found, "variances": found, "precisions": 1 / found}[name][:2, 0]
    part = np.sqrt(2 / np.pi * part) if prior.is_half_normal else part
    np.testing.assert_allclose(KNOWN.mean(axis=0) * part, X.mean() / 4)
    refit = nz.gamma_nmf(TABLE, 2, known=CATALOGUE, prior=prior)
    assert set(refit.named_vars) == {"W", "H", "X"}


def by_hand(join, prior=pm.InverseGamma, columns=None):
    """Means of H that are known of two components and not of the third."""
    with pm.Model() as model:
        t = prior("t", *([5.0, 40.0] if prior is pm.InverseGamma else []), shape=1)
        new = pm.Gamma("new", np.float64(1.5), np.float64(1.5 * F), shape=(F, 1))
        W = pm.Deterministic("W", pt.concatenate([KNOWN, new], axis=1))
        H = pm.Exponential("H", scale=join(t), shape=(3, N))
        pm.Poisson("X", W @ H, observed=X)
    return model


JOINS = {
    "vectors": lambda t: pt.concatenate([np.array([30.0, 50.0]), t])[:, None],
    "columns": lambda t: pt.concatenate([np.array([[30.0], [50.0]]), t[:, None]], axis=0),
    "in three": lambda t: pt.concatenate([np.array([30.0]), np.array([50.0]), t])[:, None],
}


@pytest.mark.parametrize("name", JOINS)
def test_known_means_joined_to_a_variable_are_read(name):
    model = by_hand(JOINS[name])
    nz.check(model)
    mean = read(model).H.prior.mean
    np.testing.assert_array_equal(mean.resolve({"t": np.array([7.0])}), [[30.0], [50.0], [7.0]])
    np.testing.assert_array_equal(mean.entries(np.arange(3.0)[:, None]), [2.0])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            lambda: by_hand(JOINS["vectors"], pm.HalfFlat),
            "t: found no prior, joined to known values; expected one",
        ),
        (lambda: by_hand(lambda t: pt.concatenate([[-1.0, 50.0], t])[:, None]), "H: found mean -1.0 in its prior"),
        (lambda: by_hand(lambda t: pt.concatenate([t, 2 * t, t])[:, None]), "H: found 1 / beta = Join"),
    ],
)
def test_what_is_joined_otherwise_is_refused(model, said):
    with pytest.raises(UnreadableModel, match=said):
        read(model())


@pytest.mark.parametrize("engine", ["em", "vb", "gibbs", "smc", "nuts"])
def test_engines_take_relevances_of_new_components(engine):
    model = nz.gamma_nmf(TABLE, 4, known=CATALOGUE, prior="ard")
    entries = [entry for entry in registry.REGISTRY if entry.name == engine]
    assert any(registry.verdict(read(model), entry) for entry in entries)
    if engine in ("em", "vb"):
        posterior = group(fit(model, engine, max_iter=20), "posterior")
        assert posterior["relevance"].dims[2:] == ("new_component",)
        W = posterior["W"].to_numpy()[..., :2]
        np.testing.assert_array_equal(W, np.broadcast_to(KNOWN, W.shape))


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_results_with_relevances_of_new_components():
    """Their places follow those of the components where new samples have them, and where they are counted."""
    rng = np.random.default_rng(4)
    true = np.column_stack([KNOWN, 0.7 * np.eye(F)[:, [1, 4]] + 0.3 / F])  # both new ones are needed
    counts = pd.DataFrame(rng.poisson(true @ rng.gamma(1.0, 90.0, (4, 30))), index=NAMES)
    model = nz.gamma_nmf(counts, 4, known=CATALOGUE, prior="ard")
    idata = nz.sample(30, tune=30, chains=1, random_seed=1, quiet=True, model=model)
    posterior = group(idata, "posterior")
    posterior = posterior.assign(relevance=xr.ones_like(posterior["relevance"]) * [1.0, 0.3])
    whole, new = [0, 1, 3, 2], [1, 0]
    places = {"W": ("component", whole), "H": ("component", whole)}
    places |= dict.fromkeys(("W_new", "relevance"), ("new_component", new))
    exchanged = {name: posterior[name].copy() for name in places}
    for name, (dim, at) in places.items():  # in half of the draws
        exchanged[name][:, 15:] = posterior[name][:, 15:].isel({dim: at}).to_numpy()
    of_new = posterior["H"].isel(component=[2, 3], obs=slice(5)).sum("obs").mean(("chain", "draw")).to_numpy()
    small = {"relevance": posterior["relevance"] * np.where(of_new == of_new.max(), 1e-6, 1.0)}  # of one in use
    results = [_compat.with_groups(idata, {"posterior": posterior.assign(own)}) for own in ({}, exchanged, small)]
    assert [nz.components_in_use(result).attrs["count"] for result in results] == [4, 4, 3]
    projected = []
    for result in results:
        samples = nz.project(result, counts.iloc[:, :5], model=model, engine="em", quiet=True, random_seed=1)
        projected.append(np.sort(group(samples, "posterior")["H"].to_numpy()[0, 0], axis=0))
    np.testing.assert_allclose(projected[0], projected[1], rtol=1e-3, atol=1e-3)
    assert np.abs(projected[0] - projected[2]).max() > 1.0


@pytest.mark.parametrize("engine", ["em", "gibbs"])
def test_a_model_without_unknowns_is_refused_in_one_line(engine):
    model = pm.do(nz.poisson_nmf(X, 2, known=KNOWN), {"H": np.ones((2, N))})
    with pytest.raises(UnsupportedModel, match="W and H are known, and so is all else"):
        (nz.fit if engine == "em" else nz.sample)(engine=engine, model=model, quiet=True)


@pytest.fixture(scope="module")
def sampled():
    model = nz.gamma_nmf(TABLE, 4, known=CATALOGUE, **PRIORS)
    return model, nz.sample(40, tune=20, chains=2, engine="gibbs", random_seed=1, quiet=True, model=model)


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_results_speak_of_all_components(sampled):
    model, idata = sampled
    posterior = group(idata, "posterior")
    assert posterior["W"].sizes["component"] == 4
    assert posterior["W_new"].sizes["new_component"] == 2
    lp = [
        read(model).log_joint({name: posterior[name].to_numpy()[0, draw] for name in ("W", "H")}) for draw in range(3)
    ]
    np.testing.assert_allclose(group(idata, "sample_stats")["lp"].to_numpy()[0, :3], lp)
    assert nz.predict(idata, model, random_seed=1).shape == (2, 40, F, N)
    assert np.all(np.isfinite(group(nz.log_likelihood(idata, model), "log_likelihood")["X"]))


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
def test_alignment_leaves_them_in_place(sampled):
    _, idata = sampled
    order = group(nz.align(idata), "alignment")["order"].to_numpy()
    np.testing.assert_array_equal(order[..., :2], np.broadcast_to([0, 1], order[..., :2].shape))
    assert set(np.unique(order[..., 2:])) <= {2, 3}


@pytest.mark.engines
def test_known_components_that_are_zero_somewhere():
    """A catalogue's exact zeros stay, in a dense table and in a sparse one."""
    known = KNOWN.copy()
    known[2] = 0.0
    for x in STORED.values():
        for name in ("em", "plain em", "vb"):
            result = fit(nz.gamma_nmf(x, 3, known=known, **PRIORS), FITS[name], max_iter=200)
            assert np.all(np.isfinite(group(result, "fit")["objective"].to_numpy()[0][:5]))
            np.testing.assert_array_equal(group(result, "posterior")["W"].to_numpy()[0, 0, 2, :2], 0.0)


# -- from an earlier result, and from the shell ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def earlier():
    model = nz.gamma_nmf(TABLE, 2, **PRIORS)
    return nz.sample(30, tune=20, chains=2, start="random", random_seed=1, quiet=True, model=model)


def by_size(W):
    """Known components of an earlier result come in the order of its tables."""
    return W[:, np.argsort(W.sum(axis=0))]


def test_the_mean_of_an_earlier_result_is_known(earlier):
    best = int(np.argmax(group(earlier, "sample_stats")["lp"].mean("draw").to_numpy()))
    mean = group(earlier, "posterior")["W"][best].mean("draw").to_numpy()
    assert not np.allclose(mean, group(earlier, "posterior")["W"][1 - best].mean("draw"))
    order = RNG.permutation(F)
    structure = read(nz.gamma_nmf(TABLE.iloc[order], 3, known=earlier, **PRIORS))  # rows go by their labels
    np.testing.assert_allclose(by_size(structure.W.known.values[:, :2]), by_size(mean[order]), rtol=1e-12)
    aligned = nz.align(earlier)
    both = group(aligned, "posterior")["W"].mean(("chain", "draw")).to_numpy()
    structure = read(nz.gamma_nmf(TABLE, 2, known=aligned, known_strength=50.0))
    prior_mean = structure.W.prior.shape.value / structure.W.prior.rate.value
    np.testing.assert_allclose(prior_mean, np.maximum(both, 1e-3 * both.mean(axis=0)), rtol=1e-12)


def test_the_mean_of_h_of_an_earlier_result_is_known(tmp_path):
    """By the labels of its samples, with its components' names, from the shell as well."""
    table = pd.DataFrame(X, index=NAMES, columns=SAMPLES)
    refit = nz.fit(model=nz.gamma_nmf(table, 2, known=CATALOGUE, alpha_h=1.2), engine="em", quiet=True, max_iter=5)
    mean, order = group(refit, "posterior")["H"].to_numpy()[0, 0], RNG.permutation(N)
    model = nz.gamma_nmf(table.iloc[:, order], 3, known_h=refit)
    structure = read(model)
    np.testing.assert_allclose(structure.H.known.values[:2], mean[:, order], rtol=1e-12)
    assert list(structure.coords["component"]) == ["SBS1", "SBS5", "new 1"]
    with pytest.raises(InputError, match="known_h: got 9 columns; expected 8"):
        nz.gamma_nmf(table.iloc[:, :8], 3, known_h=refit)
    alone = nz.sample(2, tune=2, chains=1, var_names=["H"], start="random", model=nz.gamma_nmf(table, 2), quiet=True)
    with pytest.raises(InputError, match="known_h: got a posterior of H; expected a result that holds W and H"):
        nz.gamma_nmf(table, 3, known_h=alone)
    table.to_csv(tmp_path / "x.csv")
    nz.save(refit, tmp_path / "earlier.nc")
    words = f"fit {tmp_path}/x.csv --rank 3 --engine em --max-iter 3 --random-seed 1 --quiet -o {tmp_path}/out.nc"
    assert main([*words.split(), "--known-h", f"{tmp_path}/earlier.nc"]) == 0
    np.testing.assert_allclose(group(nz.load(tmp_path / "out.nc"), "posterior")["H"].to_numpy()[0, 0, :2], mean)


def test_a_refit_and_moments_are_earlier_results_too(earlier):
    refit = nz.fit(model=nz.gamma_nmf(TABLE, 2, known=CATALOGUE, alpha_h=1.2), engine="em", quiet=True, max_iter=5)
    np.testing.assert_array_equal(read(nz.poisson_nmf(TABLE, 3, known=refit)).W.known.values[:, :2], KNOWN)
    kept = {"keep": "moments", "chains": 1, "start": "random", "random_seed": 1, "quiet": True}
    idata = nz.sample(5, tune=5, model=nz.gamma_nmf(TABLE, 2, **PRIORS), **kept)
    mean = group(idata, "posterior_moments")["W_mean"][0]
    known = read(nz.gamma_nmf(TABLE, 3, known=idata)).W.known.values[:, :2]
    np.testing.assert_allclose(by_size(known), by_size(mean.to_numpy()))


def test_an_earlier_result_of_other_features_is_refused(earlier):
    with pytest.raises(InputError, match="known: got 7 rows; expected 6"):
        nz.gamma_nmf(TABLE.iloc[:6], 3, known=earlier)
    with pytest.raises(InputError, match="known: got labels of 'feature' that differ from X's"):
        nz.gamma_nmf(TABLE.rename(index={"gene0": "other"}), 3, known=earlier)
    without = nz.sample(2, tune=2, chains=1, var_names=["H"], start="random", model=nz.gamma_nmf(TABLE, 2), quiet=True)
    with pytest.raises(InputError, match="known: got a posterior of H; expected a result that holds W"):
        nz.gamma_nmf(TABLE, 3, known=without)


def test_rows_of_h_from_the_shell(tmp_path):
    pd.DataFrame(X, index=NAMES, columns=SAMPLES).to_csv(tmp_path / "x.csv")
    GIVEN.to_csv(tmp_path / "h.csv")
    words = f"fit {tmp_path}/x.csv --rank 3 --engine em --max-iter 3 --random-seed 1 --quiet -o {tmp_path}/out.nc"
    assert main([*words.split(), "--known-h", f"{tmp_path}/h.csv"]) == 0
    np.testing.assert_allclose(group(nz.load(tmp_path / "out.nc"), "posterior")["H"].to_numpy()[0, 0, :2], ROWS)


@pytest.mark.parametrize("form", [".csv", ".npy", ".nc"])
def test_from_the_shell(earlier, form, tmp_path, capsys):
    known = tmp_path / f"known{form}"
    TABLE.to_csv(tmp_path / "x.csv")
    if form == ".csv":
        CATALOGUE.iloc[::-1].to_csv(known)
    elif form == ".npy":
        np.save(known, KNOWN)
    else:
        nz.save(earlier, known)
    words = f"fit {tmp_path}/x.csv --rank 3 --engine em --max-iter 4 --random-seed 1 --quiet -o {tmp_path}/out.nc"
    assert main([*words.split(), "--known", str(known)]) == 0
    given = {".csv": CATALOGUE, ".npy": KNOWN, ".nc": earlier}[form]
    model = nz.gamma_nmf(TABLE, 3, known=given)
    expected = nz.fit(model=model, engine="em", max_iter=4, random_seed=1, quiet=True)
    found = group(nz.load(tmp_path / "out.nc"), "posterior")["W"]
    np.testing.assert_array_equal(found, group(expected, "posterior")["W"])
    assert list(found["component"].to_numpy()) == list(group(expected, "posterior")["component"].to_numpy())
    assert main([*words.split(), "--force", "--known", str(known), "--known-strength", "0"]) == 2
    assert "--known-strength: got 0.0; expected a finite number > 0" in capsys.readouterr().err
    assert main([*words.split(), "--force", "--known", str(tmp_path / "none.csv")]) == 2
    assert main([*words.split(), "--force", "--known", "free"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.engines
@pytest.mark.parametrize(
    "declared",
    [
        lambda X, h: nz.gap(X, 3, alpha_h=1.0, known_h=h),
        lambda X, h: nz.poisson_nmf(X, 3, sigma_h=1.0, known_h=h),
    ],
    ids=["gap", "half-normal"],
)
def test_em_never_rescales_known_rows_of_h(declared):
    """Columns of a W without a prior are held at sums of one, and H takes them up, but its known rows do not."""
    rng = np.random.default_rng(1)
    h = rng.gamma(1.0, 1.0, (1, 12))
    model = declared(rng.poisson(3.0, (8, 12)), h)
    posterior = group(fit(model, "em"), "posterior")
    np.testing.assert_array_equal(posterior["H"].to_numpy()[0, 0, :1], h)
    assert np.isclose(posterior["W"].to_numpy()[0, 0].sum(axis=0), 1.0).tolist() == [False, True, True]


def test_all_components_are_believed_and_hyperparameters_of_others_are_given():
    rng = np.random.default_rng(1)
    X, W = rng.poisson(3.0, (8, 12)), rng.gamma(1.0, 1.0, (8, 2))
    model = nz.gamma_nmf(X, 2, known=W, known_strength=5.0, alpha_w=[1.0, 2.0], beta_w=nz.free())
    assert sorted(model.named_vars) == ["H", "W", "X"]
    assert read(model).W.prior.shape.value.max() == 5.0
