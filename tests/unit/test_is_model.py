"""The declaration of Itakura-Saito NMF: densities, labels, what is refused, and PyMC's verbs on it."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse
from scipy import stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning, UnsupportedModel
from nmf_zoo.inference.registry import verdict
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models import is_nmf
from tests.results import idata_of, random_idata
from tests.unit.test_models import factors, log_joint

F, N, K = 6, 5, 2  # of ``factors``
POWER = np.random.default_rng(0).exponential(2.0, (F, N))
SEEN = np.random.default_rng(1).random((F, N)) < 0.7
HZ, SECONDS = np.linspace(0.0, 8000.0, F), 0.016 * np.arange(N)
TABLE = pd.DataFrame(POWER, index=HZ, columns=SECONDS)
EXPOSURE, BACKGROUND = np.linspace(0.5, 2.0, N), np.linspace(0.1, 1.0, F)[:, None]


def log_inverse_gamma(v, shape, scale):
    return stats.invgamma.logpdf(v, shape, scale=scale).sum()


# -- densities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [None, SEEN], ids=["complete", "mask"])
@pytest.mark.parametrize("offsets", [{}, {"exposure": EXPOSURE, "background": BACKGROUND}], ids=["plain", "offsets"])
def test_the_density_equals_scipys(offsets, seen):
    W, H = factors(3)
    mean = offsets.get("exposure", 1.0) * (W @ H) + offsets.get("background", 0.0)
    terms = stats.expon.logpdf(POWER, scale=mean)
    likelihood = terms.sum() if seen is None else terms[seen].sum()
    prior_h = log_inverse_gamma(H, 1.5, 0.4)
    free = is_nmf(POWER, K, alpha_h=1.5, beta_h=0.4, mask=seen, **offsets)
    np.testing.assert_allclose(log_joint(free, W=W, H=H), likelihood + prior_h, rtol=1e-12)
    proper = is_nmf(POWER, K, alpha_h=1.5, beta_h=0.4, alpha_w=2.0, mask=seen, **offsets)
    expected = likelihood + prior_h + log_inverse_gamma(W, 2.0, 1.0)
    np.testing.assert_allclose(log_joint(proper, W=W, H=H), expected, rtol=1e-12)


def test_zeros_are_legal():
    W, H = factors(4)
    power = np.where(SEEN, POWER, 0.0)
    expected = stats.expon.logpdf(power, scale=W @ H).sum() + log_inverse_gamma(H, 1.0, 1.0)
    np.testing.assert_allclose(log_joint(is_nmf(power, K), W=W, H=H), expected, rtol=1e-12)


def test_integers_and_large_numbers_are_powers_too():
    """PyMC would cast counts to int32."""
    W, H = factors(5)
    power = np.full((F, N), 10**12)
    expected = stats.expon.logpdf(1e12, scale=W @ H).sum() + log_inverse_gamma(H, 1.0, 1.0)
    np.testing.assert_allclose(log_joint(is_nmf(power, K), W=W, H=H), expected, rtol=1e-12)


@pytest.mark.parametrize("seen", [None, 0.6], ids=["complete", "mask"])
def test_many_cells_are_summed_in_blocks(seen):
    rng, shape = np.random.default_rng(6), (70, 3000)
    W, H = rng.gamma(1.0, size=(70, K)), rng.gamma(1.0, size=(K, 3000))
    power, mask = rng.exponential(1.0, shape), None if seen is None else rng.random(shape) < seen
    structure = nz.read(is_nmf(power, K, mask=mask, background=0.5))
    assert len(list(structure.column_blocks(chunks=1))) > 3
    expected = np.sum(stats.expon.logpdf(power, scale=W @ H + 0.5), where=True if mask is None else mask)
    np.testing.assert_allclose(structure.log_likelihood(W, H, {}), expected, rtol=1e-12)


def test_starts_have_the_proportions_of_the_priors():
    structure = nz.read(is_nmf(1e-9 * POWER, K, alpha_h=2.0, beta_h=6.0, alpha_w=1.0, beta_w=0.03))
    sizes = [[part.mean() for part in start_factors(structure, seed_key(seed), {})] for seed in range(200)]
    of_w, of_h = np.mean(sizes, axis=0)
    assert of_w / of_h == pytest.approx(0.03 / 3.0, rel=0.1)


@pytest.mark.parametrize("tie", ["all", "obs", "component", None])
def test_hyperparameters_are_tied_by_shape(tie):
    model = is_nmf(POWER, K, alpha_h=nz.free(tie), alpha_w=nz.free("all"), beta_w=nz.free("feature"))
    structure = nz.read(model)
    shapes = {"all": (), "obs": (K, 1), "component": (1, N), None: (K, N)}
    assert structure.unknowns["alpha_h"].shape == shapes[tie]
    assert structure.unknowns["alpha_w"].shape == ()
    assert structure.unknowns["beta_w"].shape == (1, K)
    nz.check(model)


# -- labels and text -------------------------------------------------------------------------------------------------


def test_labels_in_hertz_and_seconds_become_coords():
    model = is_nmf(TABLE, K)
    assert model.named_vars_to_dims["X"] == ("feature", "obs")
    np.testing.assert_array_equal(model.coords["feature"], HZ)
    np.testing.assert_array_equal(model.coords["obs"], SECONDS)
    drawn = nz.predict(random_idata(model, np.random.default_rng(1)), model, features=[HZ[1]], random_seed=1)
    assert drawn.dtype == np.float64
    assert drawn["feature"].to_numpy() == [HZ[1]]


def test_describe():
    model = is_nmf(np.where(SEEN, POWER, np.nan), K, alpha_h=2.0, beta_h=nz.free("obs"), background=0.5)
    missing = F * N - SEEN.sum()
    assert nz.describe(model).splitlines()[:7] == [
        f"X: 6 x 5 real values, {SEEN.sum()} non-zero (100.0%), {missing} cells missing",
        "X ~ Exponential(W @ H + background), rank 2",
        "W: 6 x 2, no prior (flat on [0, inf))",
        "H: 2 x 5, InverseGamma(shape=2, scale=beta_h)",
        "background: 0.5",
        "beta_h: 2 values, one for each row, free (no prior)",
    ]


# -- what is refused -------------------------------------------------------------------------------------------------

BAD = {
    "negative": (
        {"X": np.where(SEEN, POWER, -1.0)},
        "X: got the negative cell -1.0 at feature .*expected numbers >= 0",
    ),
    "infinite": ({"X": np.where(SEEN, POWER, np.inf)}, "X: got the infinite cell inf at feature"),
    "all missing": ({"X": np.full((F, N), np.nan)}, "X: got only missing cells; expected at least one"),
    "all masked": ({"X": POWER, "mask": np.zeros((F, N), bool)}, "X: got only missing cells"),
    "sparse": ({"X": scipy.sparse.csr_array(POWER)}, r"X: got a sparse matrix; .*use X.toarray\(\)"),
    "stored": ({"X": POWER, "observed": "stored"}, "observed: got 'stored' with a dense X"),
    "complex": ({"X": POWER + 1j}, "X: got the non-numeric cell"),
    "one axis": ({"X": POWER[0]}, "X: got 1 axes"),
    "empty": ({"X": np.empty((0, N))}, "X: got shape"),
    "rank": ({"X": POWER, "rank": F + 1}, "rank: got 7; expected at most 6, the number of features of X"),
    "rank of nothing": ({"X": None, "shape": (2, 50), "rank": 3}, "rank: got 3; expected at most 2"),
    "rank zero": ({"X": POWER, "rank": 0}, "rank: got 0; expected a positive integer"),
    "scale alone": ({"X": POWER, "beta_w": 1.0}, "beta_w: got a scale without a shape; expected alpha_w= as well"),
    "shape zero": ({"X": POWER, "alpha_h": 0.0}, "alpha_h: got values from 0.0 to 0.0; expected finite numbers > 0"),
    "scale negative": ({"X": POWER, "beta_h": -1.0}, "beta_h: got values from -1.0"),
    "scale NaN": ({"X": POWER, "alpha_w": 1.0, "beta_w": np.nan}, "beta_w: got values that are NaN"),
    "column": ({"X": POWER, "alpha_h": np.ones(K)}, r"alpha_h: got shape \(2,\).*use shape \(2, 1\)"),
    "wide": ({"X": POWER, "alpha_w": np.ones((K, 1))}, r"alpha_w: got shape \(2, 1\)"),
    "tie": ({"X": POWER, "alpha_h": nz.free("feature")}, r"alpha_h: got free\(tie='feature'\)"),
    "no exposure": ({"X": POWER, "exposure": 0.0}, "exposure: got values from 0.0"),
    "background negative": ({"X": POWER, "background": -0.1}, "background: got values from -0.1"),
}


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    arguments, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        is_nmf(**{"rank": K, **arguments})
    assert "\n" not in str(caught.value)


def test_silence_is_noted():
    with pytest.warns(NmfZooWarning, match="X: 1 sample has no positive observed cell"):
        is_nmf(np.where(np.arange(N) == 2, 0.0, POWER), K)


def test_a_known_factor_that_is_silent_where_x_was_seen_is_refused():
    W = np.ones((F, K))
    W[1] = 0
    model = pm.do(is_nmf(POWER, K), {"W": W})
    with pytest.raises(InputError, match="X: got 5 observed cells, the first at feature 1, where W is 0"):
        nz.sample(model=model, engine="nuts", draws=1, tune=1, quiet=True)


def test_free_hyperparameters_are_not_sampled():
    model = is_nmf(POWER, K, alpha_w=2.0, beta_h=nz.free())
    for engine in ("gibbs", "nuts"):
        assert "hyperparameter beta_h is free: give it a proper prior" in verdict(nz.read(model), engine).reason
    with pytest.raises(UnsupportedModel, match="engine 'mcem' can't run this model: X is exponential, and"):
        nz.fit(model=model, engine="mcem")


# -- simulation, results, pictures -----------------------------------------------------------------------------------


def test_simulation_has_the_moments_of_the_declaration():
    model = is_nmf(None, K, shape=(F, 4000), alpha_w=5.0, exposure=2.0, background=0.5, coords={"feature": HZ})
    with pytest.raises(InputError, match="W: got a flat density"):
        nz.simulate(is_nmf(None, K, shape=(F, N)), random_seed=1)
    given = pm.do(model, {"W": np.ones((F, K)), "H": np.full((K, 4000), 3.0)})
    drawn = nz.simulate(given, random_seed=1)["X"]
    assert drawn.dims == ("feature", "obs")
    assert drawn.dtype == np.float64
    np.testing.assert_array_equal(drawn["feature"], HZ)
    assert stats.kstest(drawn.to_numpy().ravel(), stats.expon(scale=12.5).cdf).pvalue > 1e-4
    prior = nz.simulate(model, random_seed=1)
    assert stats.kstest(prior["H"].to_numpy().ravel(), stats.invgamma(1.0).cdf).pvalue > 1e-4
    assert nz.simulate(pm.do(model, {"W": np.ones((F, K))}), random_seed=1)["X"].shape == (F, 4000)


@pytest.mark.parametrize("as_text", [False, True])
def test_many_frequencies_are_drawn_as_spectra(as_text):
    pytest.importorskip("matplotlib")
    rng, hz = np.random.default_rng(2), np.linspace(0.0, 8000.0, 257)
    model = is_nmf(rng.exponential(1.0, (257, N)), K, coords={"feature": hz.astype(str) if as_text else hz})
    spectra = rng.gamma(2.0, size=(257, K)) * np.arange(K, 0, -1)  # the largest first, as they are shown
    idata = idata_of(model, W=spectra * rng.uniform(0.8, 1.2, (1, 20, 257, K)), H=np.ones((1, 20, K, N)))
    axes = nz.plot_components(idata).axes
    assert len(axes) == K
    shares = _compat.group(idata, "posterior")["W"][0] / _compat.group(idata, "posterior")["W"][0].sum("feature")
    for component, one in enumerate(axes):
        (line,) = one.get_lines()
        np.testing.assert_array_equal(line.get_xdata(), hz)
        np.testing.assert_allclose(line.get_ydata(), shares[:, :, component].mean("draw"), rtol=1e-12)


@pytest.mark.parametrize("labels", [np.arange(150), [f"gene{i}" for i in range(150)], np.arange(150)[::-1] / 2])
def test_other_labels_are_listed_by_their_weight(labels):
    pytest.importorskip("matplotlib")
    model = is_nmf(np.ones((150, N)), K, coords={"feature": labels})
    axes = nz.plot_components(random_idata(model, np.random.default_rng(1))).axes
    assert len(axes[0].get_yticklabels()) == 12


# -- PyMC's verbs ----------------------------------------------------------------------------------------------------


def test_do_observe_and_prior_predictive():
    model = is_nmf(TABLE, K, alpha_w=2.0)
    assert pm.sample_prior_predictive(5, model=model, random_seed=1)["prior_predictive"]["X"].shape == (1, 5, F, N)
    W, H = factors(6)
    observed = pm.observe(is_nmf(None, K, shape=(F, N), alpha_w=2.0), {"X": POWER})
    np.testing.assert_allclose(log_joint(observed, W=W, H=H), log_joint(model, W=W, H=H), rtol=1e-12)
    nz.check(observed)
    fixed = pm.do(model, {"W": W})
    nz.check(fixed)
    np.testing.assert_allclose(
        log_joint(fixed, H=H), log_joint(model, W=W, H=H) - log_inverse_gamma(W, 2.0, 1.0), rtol=1e-12
    )


QUICK = {"draws": 6, "tune": 10, "chains": 2, "random_seed": 1, "quiet": True}


def masked_array():
    with pm.Model() as model:
        two = np.float64(2.0)
        W, H = pm.InverseGamma("W", two, two, shape=(F, K)), pm.InverseGamma("H", two, two, shape=(K, N))
        with pytest.warns(UserWarning, match="[Mm]issing|impute|masked"):
            pm.Exponential("X", scale=W @ H, observed=np.ma.masked_array(POWER, ~SEEN))
    return model


NUTS_RUNS = {
    "complete": lambda: is_nmf(TABLE, K, alpha_w=2.0),
    "W free, mask": lambda: is_nmf(TABLE, 1, alpha_h=2.0, mask=SEEN, background=0.1),
    "masked array": masked_array,
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", NUTS_RUNS)
def test_nuts_hands_back_labels_and_our_lp(name):
    model = NUTS_RUNS[name]()
    idata = nz.sample(model=model, engine=nz.NUTS(sampler="pymc"), **QUICK)
    posterior, stats_ = (_compat.group(idata, group) for group in ("posterior", "sample_stats"))
    assert posterior["W"].shape[:2] == (2, 6)
    for draw in (0, 5):
        values = {name: posterior[name].to_numpy()[1, draw] for name in posterior.data_vars}
        np.testing.assert_allclose(stats_["lp"][1, draw], log_joint(model, **values), rtol=1e-10)
    if name != "masked array":
        np.testing.assert_array_equal(posterior["feature"], HZ)
        np.testing.assert_array_equal(posterior["obs"], SECONDS)
    cells = pm.compute_log_likelihood(idata, model=model, progressbar=False, extend_inferencedata=False)
    assert next(iter(cells.data_vars.values())).size == 12 * (F * N if name == "complete" else SEEN.sum())
    predictive = pm.sample_posterior_predictive(idata, model=model, progressbar=False, random_seed=1)
    assert np.all(np.isfinite(predictive["posterior_predictive"][nz.read(model).likelihood.name]))


@pytest.mark.statistical
def test_pymc_samples_the_declaration_and_loo_takes_its_cells():
    import arviz as az

    model = is_nmf(TABLE, K, alpha_w=2.0)
    idata = pm.sample(
        20, tune=20, chains=2, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False, model=model
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a high Pareto k, of so few draws
        found = az.loo(nz.log_likelihood(idata, model, per="cell"))
    assert np.isfinite(found.elpd if hasattr(found, "elpd") else found.elpd_loo)  # ArviZ 1.x, 0.x
    assert len(nz.summarise(nz.sample(model=model, engine="gibbs", **QUICK))) > 1
