"""Declarations: densities against SciPy, layouts of X, parametrisations and ties, and PyMC's own verbs on them."""

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from scipy import stats
from scipy.special import gammaln, xlogy

from nmf_zoo.distributions import RealPoissonRV, SparsePoissonRV
from nmf_zoo.errors import InputError
from nmf_zoo.models import (
    ARD,
    MODELS,
    free,
    gamma_nmf,
    gap,
    hmm_nmf,
    is_nmf,
    negative_binomial_nmf,
    normal_nmf,
    poisson_nmf,
)

F, N, K = 6, 5, 2
COUNTS = np.random.default_rng(0).poisson(3.0, (F, N))
REALS = COUNTS + np.where(COUNTS > 0, 0.25, 0.0)
SEEN = np.random.default_rng(1).random((F, N)) < 0.7


def factors(seed):
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=(F, K)), rng.gamma(1.0, size=(K, N))


def log_joint(model, **values):
    """PyMC's log joint at values on the original scale."""
    transforms = {rv.name: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    point = {
        model.rvs_to_values[model[name]].name: np.asarray(value) if transforms[name] is None else np.log(value)
        for name, value in values.items()
    }
    return float(model.compile_logp(jacobian=False, mode="FAST_COMPILE")(point))


def log_poisson(x, mean):
    return xlogy(x, mean) - mean - gammaln(x + 1)


def log_gamma(v, shape, rate):
    return stats.gamma.logpdf(v, shape, scale=1 / rate).sum()


# -- densities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_densities_equal_scipy(seed):
    W, H = factors(seed)
    likelihood = stats.poisson.logpmf(COUNTS, W @ H).sum()
    prior_w, prior_h = log_gamma(W, 0.1, 0.7), log_gamma(H, 1.3, 0.3)
    expected = {
        poisson_nmf(COUNTS, K): likelihood,
        normal_nmf(REALS, K, sigma=0.3): stats.norm.logpdf(REALS, W @ H, 0.3).sum(),
        gamma_nmf(COUNTS, K, alpha_w=0.1, beta_w=0.7, alpha_h=1.3, beta_h=0.3): likelihood + prior_w + prior_h,
        gap(COUNTS, K, alpha_h=1.3, beta_h=0.3): likelihood + prior_h,
        negative_binomial_nmf(COUNTS, K, alpha=0.8, alpha_w=0.1, beta_w=0.7, alpha_h=1.3, beta_h=0.3): (
            stats.nbinom.logpmf(COUNTS, 0.8, 0.8 / (0.8 + W @ H)).sum() + prior_w + prior_h
        ),
    }
    for model, value in expected.items():
        np.testing.assert_allclose(log_joint(model, W=W, H=H), value, rtol=1e-12)


LAYOUTS = {
    "dense": ({"X": COUNTS}, COUNTS, None),
    "real": ({"X": REALS}, REALS, None),
    "nan": ({"X": np.where(SEEN, COUNTS, np.nan)}, COUNTS, SEEN),
    "masked array": ({"X": np.ma.array(COUNTS, mask=~SEEN)}, COUNTS, SEEN),
    "mask": ({"X": REALS, "mask": SEEN}, REALS, SEEN),
    "sparse": ({"X": scipy.sparse.csr_array(COUNTS)}, COUNTS, None),
    "sparse real": ({"X": scipy.sparse.coo_matrix(REALS)}, REALS, None),
    "sparse, mask": ({"X": scipy.sparse.csc_array(COUNTS), "mask": SEEN}, COUNTS, SEEN),
    "sparse, sparse mask": (
        {"X": scipy.sparse.lil_matrix(COUNTS), "mask": scipy.sparse.coo_array(SEEN)},
        COUNTS,
        SEEN,
    ),
    "sparse, stored": ({"X": scipy.sparse.csr_array(COUNTS), "observed": "stored"}, COUNTS, COUNTS > 0),
    "sparse, stored, mask": (
        {"X": scipy.sparse.csr_array(COUNTS), "observed": "stored", "mask": SEEN},
        COUNTS,
        SEEN & (COUNTS > 0),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_density_of_its_observed_cells(layout):
    arguments, data, seen = LAYOUTS[layout]
    W, H = factors(4)
    terms = log_poisson(data, W @ H)
    expected = (terms if seen is None else terms[seen]).sum() - W.sum() - H.sum()
    np.testing.assert_allclose(log_joint(gamma_nmf(rank=K, **arguments), W=W, H=H), expected, rtol=1e-12)


@pytest.mark.parametrize("layout", ["dense", "real", "nan"])
@pytest.mark.parametrize("offset_shape", [(), (N,), (F, 1), (1, N), (F, N)])
def test_exposure_and_background(layout, offset_shape):
    arguments, data, seen = LAYOUTS[layout]
    W, H = factors(5)
    rng = np.random.default_rng(6)
    exposure, background = rng.gamma(2.0, size=offset_shape), rng.gamma(2.0, size=offset_shape)
    terms = log_poisson(data, exposure * (W @ H) + background)
    model = poisson_nmf(rank=K, exposure=exposure, background=background, **arguments)
    expected = (terms if seen is None else terms[seen]).sum()
    np.testing.assert_allclose(log_joint(model, W=W, H=H), expected, rtol=1e-12)


def test_normal_with_missing_cells():
    W, H = factors(7)
    model = normal_nmf(np.where(SEEN, REALS, np.nan), K)
    np.testing.assert_allclose(log_joint(model, W=W, H=H), stats.norm.logpdf(REALS, W @ H)[SEEN].sum(), rtol=1e-12)


# -- the graph ---------------------------------------------------------------------------------------------------


def test_dims_and_coords():
    model = gamma_nmf(COUNTS, K, coords={"component": ["low", "high"]})
    assert model.named_vars_to_dims == {
        "W": ("feature", "component"),
        "H": ("component", "obs"),
        "X": ("feature", "obs"),
    }
    assert list(model.coords["component"]) == ["low", "high"]
    assert list(model.coords["feature"]) == list(range(F))


def test_missing_cells_are_listed_by_index():
    model = poisson_nmf(np.where(SEEN, COUNTS, np.nan), K)
    rows, cols = np.nonzero(SEEN)
    np.testing.assert_array_equal(model["cell_feature"].get_value(), rows)
    np.testing.assert_array_equal(model["cell_obs"].get_value(), cols)
    assert model.named_vars_to_dims["X"] == ("cell",)
    assert [rv.name for rv in model.free_RVs] == ["W", "H"]


def test_distribution_of_X_follows_the_data():
    def operation(X):
        return poisson_nmf(X, K)["X"].owner.op

    assert isinstance(operation(REALS), RealPoissonRV)
    assert operation(COUNTS.astype(float)).name == "poisson"
    assert operation(scipy.sparse.csr_array(COUNTS)).complete
    assert isinstance(operation(scipy.sparse.csr_array(COUNTS)), SparsePoissonRV)
    assert not poisson_nmf(scipy.sparse.csr_array(COUNTS), K, mask=SEEN)["X"].owner.op.complete


def test_real_data_are_never_truncated():
    model = gamma_nmf([[2.7, 0.0], [1.0, 3.2]], 1)
    np.testing.assert_array_equal(model.rvs_to_values[model["X"]].data, [[2.7, 0.0], [1.0, 3.2]])


@pytest.mark.parametrize("name", MODELS)
def test_nothing_observed(name):
    model = MODELS[name](None, K, shape=(F, N))
    assert "X" in [rv.name for rv in model.free_RVs]
    assert model.eval_rv_shapes()["X"] == (F, N)


def test_registry_is_made_from_the_functions():
    assert list(MODELS) == [
        *("poisson-nmf", "normal-nmf", "gamma-nmf", "negative-binomial-nmf", "gap", "is-nmf", "hmm-nmf")
    ]
    assert list(MODELS.values()) == [*(poisson_nmf, normal_nmf, gamma_nmf, negative_binomial_nmf, gap, is_nmf, hmm_nmf)]


# -- hyperparameters ---------------------------------------------------------------------------------------------


def test_mean_is_shape_over_rate():
    W, H = factors(8)
    by_mean = gamma_nmf(COUNTS, K, alpha_w=0.5, mean_w=2.0, alpha_h=3.0, mean_h=[[1.5], [0.2]])
    by_rate = gamma_nmf(COUNTS, K, alpha_w=0.5, beta_w=0.25, alpha_h=3.0, beta_h=[[2.0], [15.0]])
    np.testing.assert_allclose(log_joint(by_mean, W=W, H=H), log_joint(by_rate, W=W, H=H), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1, 1), (K, 1), (N,), (1, N), (K, N)])
def test_known_hyperparameters_broadcast(shape):
    W, H = factors(9)
    beta = np.random.default_rng(10).gamma(2.0, size=shape)
    expected = stats.poisson.logpmf(COUNTS, W @ H).sum() + log_gamma(H, 1.0, beta)
    np.testing.assert_allclose(log_joint(gap(COUNTS, K, beta_h=beta), W=W, H=H), expected, rtol=1e-12)


TIES = {
    "alpha_h": {"all": None, "obs": ("component",), "component": ("obs",), None: ("component", "obs")},
    "mean_w": {"all": None, "feature": ("component",), "component": ("feature",), None: ("feature", "component")},
}


@pytest.mark.parametrize(("name", "tie"), [(name, tie) for name, ties in TIES.items() for tie in ties])
def test_free_hyperparameters_are_tied_by_shape(name, tie):
    W, H = factors(11)
    model = gamma_nmf(COUNTS, K, **{name: free(tie)})
    assert model.named_vars_to_dims.get(name) == TIES[name][tie]
    shape = model.eval_rv_shapes()[name]
    value = np.random.default_rng(12).gamma(2.0, size=shape)
    is_left = {("component",): (None, slice(None)), ("feature",): (slice(None), None), ("obs",): (None, slice(None))}
    index = (slice(None), None) if (name, tie) == ("alpha_h", "obs") else is_left.get(TIES[name][tie], ...)
    full = value[index]
    expected = stats.poisson.logpmf(COUNTS, W @ H).sum()
    expected += log_gamma(H, full, 1.0) - W.sum() if name == "alpha_h" else log_gamma(W, 1.0, 1 / full) - H.sum()
    np.testing.assert_allclose(log_joint(model, W=W, H=H, **{name: value}), expected, rtol=1e-12)


def test_free_sigma():
    W, H = factors(13)
    model = normal_nmf(REALS, K, sigma=free())
    expected = stats.norm.logpdf(REALS, W @ H, 0.4).sum()
    np.testing.assert_allclose(log_joint(model, W=W, H=H, sigma=0.4), expected, rtol=1e-12)


def test_hyperpriors_live_in_the_same_model():
    W, H = factors(14)
    with pm.Model(coords={"component": ["a", "b"]}) as outer:
        alpha = pm.Exponential("alpha", np.float64(1), dims="component")
        inner = gamma_nmf(COUNTS, K, alpha_w=alpha, alpha_h=alpha[:, None], beta_h=pm.Data("rate", 2.0))
    assert inner is outer
    assert outer.coords["component"] == ("a", "b")
    value = np.array([0.5, 1.5])
    expected = stats.poisson.logpmf(COUNTS, W @ H).sum() - value.sum()
    expected += log_gamma(W, value, 1.0) + log_gamma(H, value[:, None], 2.0)
    np.testing.assert_allclose(log_joint(outer, W=W, H=H, alpha=value), expected, rtol=1e-12)


HYPER_REFUSALS = {
    "both": ({"beta_h": 1.0, "mean_h": 1.0}, "beta_h: got beta_h and mean_h both"),
    "zero": ({"alpha_w": 0.0}, "alpha_w: got values from 0.0 to 0.0; expected finite numbers > 0"),
    "negative": ({"mean_h": [[1.0], [-1.0]]}, "mean_h: got values from -1.0"),
    "nan": ({"beta_w": np.nan}, "beta_w: got values that are NaN or infinite .1 of them.; expected"),
    "text": ({"beta_w": "one"}, "beta_w: got str 'one'; expected a number"),
    "no number": ({"alpha_w": {}}, "alpha_w: got dict {}"),
    "column": ({"alpha_h": np.ones(K)}, r"alpha_h: got shape \(2,\).*use shape \(2, 1\)"),
    "features": ({"alpha_w": np.ones(F)}, r"alpha_w: got shape \(6,\).*use shape \(6, 1\)"),
    "shape": ({"alpha_w": np.ones((3, 1))}, r"alpha_w: got shape \(3, 1\)"),
    "axes": ({"alpha_w": np.ones((1, 1, 1))}, r"alpha_w: got shape \(1, 1, 1\)"),
    "ragged": ({"alpha_w": [[1.0], [1.0, 2.0]]}, "alpha_w: got rows of different lengths"),
    "tie": ({"alpha_w": free("obs")}, r"alpha_w: got free\(tie='obs'\)"),
}


@pytest.mark.parametrize("case", HYPER_REFUSALS)
def test_bad_hyperparameters_are_refused(case):
    arguments, message = HYPER_REFUSALS[case]
    with pytest.raises(InputError, match=message):
        gamma_nmf(COUNTS, K, **arguments)


def test_other_bad_hyperparameters():
    with pytest.raises(InputError, match=r"tie: got 'rows'; expected one of \['all', 'feature'"):
        free("rows")
    with pytest.raises(InputError, match=r"tie: got 'sample'; expected one of .*'obs', None\]; use 'obs', as the dim"):
        free("sample")
    with pytest.raises(InputError, match=r"sigma: got free\(tie='component'\)"):
        normal_nmf(REALS, K, sigma=free("component"))
    with pytest.raises(InputError, match=r"sigma: got shape \(7,\)"):
        normal_nmf(REALS, K, sigma=np.ones(7))
    with pytest.raises(InputError, match="alpha_h: got a variable outside of a model"):
        gap(COUNTS, K, alpha_h=pm.Gamma.dist(1.0, 1.0))
    for used in ({}, {"known": np.ones((F, K)) + np.eye(F, K)}):  # nor where all components are known
        with pm.Model(), pytest.raises(InputError, match="sigma_w: got a distribution without a name"):
            normal_nmf(REALS, K, sigma_w=pm.Gamma.dist(1.0, 1.0), **used)


def test_a_refused_declaration_leaves_the_model_alone():
    with pm.Model() as outer:
        alpha = pm.Exponential("alpha", 1.0, shape=K)
        with pytest.raises(InputError, match=r"alpha_h: got shape \(2,\).*use shape \(2, 1\)"):
            gamma_nmf(COUNTS, K, alpha_w=free(), alpha_h=alpha)
    assert list(outer.named_vars) == ["alpha"]
    assert not outer.coords


def test_shape_of_a_variable_with_dims_is_checked():
    with pm.Model(coords={"component": range(K)}):
        alpha = pm.HalfFlat("alpha", dims="component")
        with pytest.raises(InputError, match=r"alpha_h: got shape \(2,\)"):
            gamma_nmf(COUNTS, K, alpha_h=alpha)


# -- PyMC's verbs ------------------------------------------------------------------------------------------------


def test_prior_predictive_do_observe_and_draw():
    model = gamma_nmf(COUNTS, K)
    prior = pm.sample_prior_predictive(5, model=model, random_seed=1)
    assert prior["prior_predictive"]["X"].shape == (1, 5, F, N)
    W, H = factors(15)
    fixed = pm.do(model, {"W": W})
    assert [rv.name for rv in fixed.free_RVs] == ["H"]
    expected = stats.poisson.logpmf(COUNTS, W @ H).sum() - H.sum()
    np.testing.assert_allclose(log_joint(fixed, H=H), expected, rtol=1e-12)
    observed = pm.observe(gamma_nmf(None, K, shape=(F, N)), {"X": COUNTS})
    np.testing.assert_allclose(log_joint(observed, W=W, H=H), log_joint(model, W=W, H=H), rtol=1e-12)
    assert pm.draw(model["X"], 3, random_seed=1).shape == (3, F, N)


@pytest.mark.statistical
@pytest.mark.parametrize("layout", ["dense", "real", "nan", "sparse", "sparse, mask"])
def test_nuts_predictive_and_log_likelihood(layout):
    arguments, _, seen = LAYOUTS[layout]
    model = gamma_nmf(rank=K, **arguments)
    quick = {"progressbar": False, "random_seed": 1, "model": model}
    idata = pm.sample(5, tune=5, chains=1, cores=1, nuts_sampler="pymc", compute_convergence_checks=False, **quick)
    assert np.all(np.isfinite(idata["sample_stats"]["lp"]))
    is_sparse = "sparse" in layout
    n_cells = (
        np.count_nonzero(COUNTS) if is_sparse and seen is None else np.size(COUNTS) if seen is None else seen.sum()
    )
    likelihood = pm.compute_log_likelihood(idata, model=model, progressbar=False, extend_inferencedata=False)["X"]
    assert likelihood.shape[2:] == (() if is_sparse else (F, N) if seen is None else (n_cells,))
    predictive = pm.sample_posterior_predictive(idata, **quick)["posterior_predictive"]["X"]
    assert predictive.size == 5 * n_cells


@pytest.mark.statistical
@pytest.mark.rest
def test_nutpie_runs_on_sparse_counts():
    """Long: nutpie compiles the model."""
    pytest.importorskip("nutpie")
    model = gamma_nmf(scipy.sparse.csr_array(COUNTS), K)
    quick = {"progressbar": False, "random_seed": 1, "compute_convergence_checks": False}
    idata = pm.sample(10, tune=20, chains=1, cores=1, nuts_sampler="nutpie", model=model, **quick)
    assert idata["posterior"]["W"].shape == (1, 10, F, K)


@pytest.mark.parametrize("prior", [ARD(), ARD(shape=1.5, cells="half-normal", law="gamma")])
def test_relevances_of_data_whose_mean_has_no_reciprocal(prior):
    with pytest.raises(InputError, match=r"X: got data for which the prior's scale is 0; .*or give nz[.]ARD"):
        gamma_nmf(np.full((2, 3), 5e-324), K, prior=prior)
