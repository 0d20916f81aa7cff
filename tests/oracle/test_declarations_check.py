"""``check`` passes for every declaration and every kind of data that it takes; and what NUTS climbs is SciPy's density.

``check`` compares a reading with PyMC's own graph. The last part knows neither: it writes each density anew.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse
from scipy import stats

from nmf_zoo.errors import InputError
from nmf_zoo.models import ARD, MODELS, free, gamma_nmf, gap, is_nmf, negative_binomial_nmf, normal_nmf, poisson_nmf
from nmf_zoo.reading import check, read
from nmf_zoo.reading.check import UNCOMPILED
from nmf_zoo.structure import Cells, Dense, Flat, InverseGammaPrior
from tests.planted import plant
from tests.runs import numerical_gradient

F, N, K = 6, 8, 2
RNG = np.random.default_rng(4)
X = RNG.poisson(3.0, (F, N)) + np.eye(F, N, dtype=int)  # no empty row or column
X[:, N - 2 :] += 1
MASK = np.indices((F, N)).sum(axis=0) % 5 != 0
SPARSE = scipy.sparse.csr_array(np.where(MASK, X, 0))
FEW = scipy.sparse.csr_array(np.where(np.indices((F, N)).sum(axis=0) == 3, X, 0))

TABLES = {
    "dense": {"X": X},
    "real": {"X": X + 0.25},
    "NaN": {"X": np.where(MASK, X, np.nan)},
    "real with NaN": {"X": np.where(MASK, X + 0.25, np.nan)},
    "masked": {"X": np.ma.masked_array(X, ~MASK)},
    "mask": {"X": X, "mask": MASK},
    "few observed": {"X": X, "mask": np.indices((F, N)).sum(axis=0) == 3},
    "exposure": {"X": X, "exposure": RNG.uniform(0.5, 2.0, N)},
    "background": {"X": X, "background": RNG.uniform(0.1, 1.0, (F, 1))},
    "offsets and mask": {"X": X, "mask": MASK, "exposure": RNG.uniform(0.5, 2.0, (F, N)), "background": 0.5},
    "nothing": {"X": None, "shape": (F, N)},
}
SPARSE_TABLES = {
    "sparse": {"X": SPARSE},
    "sparse, real": {"X": SPARSE * 1.5},
    "sparse, stored": {"X": SPARSE, "observed": "stored"},
    "sparse, mask": {"X": SPARSE, "mask": MASK},
    "sparse, few stored": {"X": FEW, "observed": "stored"},
}


def variable(dist, *args, **kwargs):
    """Declared inside the model, as a user would."""
    return lambda: dist(*args, **kwargs)


two = np.float64(2.0)
HYPERPARAMETERS = {
    "known": {"alpha_w": 0.5, "beta_w": 2.0, "alpha_h": np.ones((K, 1)), "beta_h": 3.0},
    "known means": {"alpha_w": 0.5, "mean_w": 2.0, "alpha_h": np.arange(1.0, K + 1)[:, None], "mean_h": 3.0},
    "free, one": {"alpha_w": free(), "beta_w": free(), "alpha_h": free(), "beta_h": free()},
    "free, per component": {"alpha_w": free("feature"), "beta_w": free("feature"), "alpha_h": free("obs")},
    "free, per row or column": {"alpha_w": free("component"), "mean_h": free("component")},
    "free, untied": {"alpha_w": free(None), "mean_h": free(None)},
    "free means": {"mean_w": free(), "alpha_h": free("obs"), "mean_h": free("component")},
    "sampled": {"alpha_w": variable(pm.Gamma, "a", two, two), "mean_h": variable(pm.InverseGamma, "m", two, two)},
    "sampled, per component": {"alpha_h": variable(pm.HalfNormal, "a", two, shape=(K, 1))},
}


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", MODELS)
def test_dense_declarations(name, table):
    if name == "negative-binomial-nmf" and table.startswith("real"):
        with pytest.raises(InputError, match="expected counts"):
            MODELS[name](rank=K, **TABLES[table])
        return
    model = MODELS[name](rank=K, **TABLES[table])
    check(model)
    assert isinstance(
        read(model).data, type(None) if table == "nothing" else Cells if table == "few observed" else Dense
    )


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("table", SPARSE_TABLES)
@pytest.mark.parametrize("builder", [poisson_nmf, gamma_nmf, gap], ids=lambda builder: builder.__name__)
def test_sparse_declarations(builder, table):
    model = builder(rank=K, **SPARSE_TABLES[table])
    check(model)
    structure = read(model)
    assert isinstance(structure.data, Cells)
    assert structure.data.is_complete == ("stored" not in table and "mask" not in table)
    assert structure.likelihood.name == "X"


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_of_gamma_nmf(name):
    with pm.Model() as model:
        given = {k: v() if callable(v) else v for k, v in HYPERPARAMETERS[name].items()}
        gamma_nmf(X, K, **given)
    check(model)
    structure = read(model)
    assert structure.unknowns.keys() == {rv.name for rv in model.free_RVs} - {"W", "H"}
    for side, factor in {"w": structure.W, "h": structure.H}.items():
        assert (factor.prior.mean is not None) == (f"mean_{side}" in given)


INVERSE = {
    "known": {
        "alpha_h": 0.5,
        "beta_h": np.arange(1.0, K + 1)[:, None],
        "alpha_w": np.arange(1.0, K + 1),
        "beta_w": 3.0,
    },
    "W free": {"alpha_h": 2.0, "beta_h": RNG.uniform(1, 2, N)},
    "free, one": {"alpha_h": free(), "beta_h": free(), "alpha_w": free(), "beta_w": free()},
    "free, tied": {"alpha_h": free("obs"), "beta_h": free("component"), "alpha_w": free("feature")},
    "free, untied": {"alpha_h": free(None), "beta_w": free(None), "alpha_w": 2.0},
    "sampled": {"alpha_h": variable(pm.Gamma, "a", two, two), "beta_h": variable(pm.InverseGamma, "b", two, two)},
    "sampled, per component": {"beta_h": variable(pm.HalfNormal, "b", two, shape=(K, 1)), "alpha_w": 1.5},
}


@pytest.mark.parametrize("name", INVERSE)
def test_hyperparameters_of_is_nmf(name):
    with pm.Model() as model:
        given = {k: v() if callable(v) else v for k, v in INVERSE[name].items()}
        is_nmf(X + 0.5, K, **given)
    check(model)
    structure = read(model)
    assert structure.unknowns.keys() == {rv.name for rv in model.free_RVs} - {"W", "H"}
    assert isinstance(structure.H.prior, InverseGammaPrior)
    assert isinstance(structure.W.prior, InverseGammaPrior if "alpha_w" in given else Flat)


@pytest.mark.parametrize("sigma", [0.5, free(), variable(pm.HalfNormal, "s", two)], ids=["known", "free", "sampled"])
def test_sigma_of_normal_nmf(sigma):
    with pm.Model() as model:
        normal_nmf(X, K, sigma=sigma() if callable(sigma) else sigma)
    check(model)


# -- what NUTS climbs: log density and gradient by SciPy ---------------------------------------------------------------

Y = np.array([[2, 0, 3, 1], [4, 1, 0, 2], [0, 5, 1, 0]])
STORED = scipy.sparse.csr_array(Y)
KNOWN_W, KNOWN_H = np.array([[0.8], [1.4], [0.2]]), np.array([[0.5, 1.2, 0.9, 2.0]])
OF_FEATURES, OF_SAMPLES = np.array([[0.5], [1.0], [2.0]]), np.array([[0.7, 1.5, 1.0, 0.4]])
OF_CELLS = np.linspace(0.4, 2.1, Y.size).reshape(Y.shape)
OFFSETS = {"exposure": (OF_FEATURES, OF_SAMPLES), "background": 0.3}
GAMMAS = {"alpha_w": 1.5, "beta_w": 1.2, "alpha_h": 0.8, "beta_h": 0.4}
PART_OF_MEAN = Y.mean() / 2 / KNOWN_W.mean()  # of a known component's activations


def of_counts(v, exposure=1.0, background=0.0, seen=True, dispersion=None):
    """Of Y given W and H, in either of which the first component may be known."""
    W = v["W"] if "W" in v else np.c_[KNOWN_W, v["W_new"]]
    H = v["H"] if "H" in v else np.r_[KNOWN_H, v["H_new"]]
    mean = exposure * (W @ H) + background
    law = stats.poisson(mean) if dispersion is None else stats.nbinom(dispersion, dispersion / (dispersion + mean))
    return np.where(seen, law.logpmf(Y), 0.0).sum()


def gammas(v, shape, rate):
    return stats.gamma.logpdf(v, shape, scale=1 / rate).sum()


def half_normals(v, sigma):
    return stats.halfnorm.logpdf(v, scale=sigma).sum()


def given_gammas(v, w="W", h="H"):
    """`GAMMAS`."""
    return gammas(v[w], 1.5, 1.2) + gammas(v[h], 0.8, 0.4)


def hpf(v, w="W"):
    """Rates of rows and columns."""
    rates = gammas(v["beta_w"], 0.3, 0.3) + gammas(v["beta_h"], 0.3, 0.3)
    return rates + gammas(v[w], 0.3, v["beta_w"][:, None]) + gammas(v["H"], 0.3, v["beta_h"])


def ard(variable, w="W"):
    """Relevances by what their variable is to the cells; the activations of a known component have the first one."""
    law = stats.gamma(6.0, scale=0.5) if variable in ("rate", "precision") else stats.invgamma(6.0, scale=2.0)
    size = {"mean": lambda t: t, "rate": lambda t: 1 / t, "variance": np.sqrt, "precision": lambda t: t**-0.5}[variable]
    is_half_normal = variable in ("variance", "precision")

    def density(v):
        (name,) = v.keys() - {w, "H"}
        own = size(v[name])
        known = [] if w == "W" else [PART_OF_MEAN * np.sqrt(np.pi / 2) if is_half_normal else PART_OF_MEAN]
        of_h = np.r_[known, own][:, None]
        if is_half_normal:
            cells = half_normals(v[w], own) + half_normals(v["H"], of_h)
        else:
            cells = gammas(v[w], 1.0, 1 / own) + gammas(v["H"], 1.0, 1 / of_h)
        return law.logpdf(v[name]).sum() + cells

    return density


def declare_ard(variable, X=Y, **known):
    law = "gamma" if variable in ("rate", "precision") else "inverse-gamma"
    cells = "half-normal" if variable in ("variance", "precision") else "exponential"
    return gamma_nmf(X, K, prior=ARD(shape=6.0, scale=2.0, law=law, cells=cells), **known)


# declaration, log density of the data given all else, of all else
FORMS = {
    "hpf": (lambda: gamma_nmf(Y, K, prior="hpf"), of_counts, hpf),
    "hpf beside a known component, sparse, offsets": (
        lambda: gamma_nmf(STORED, K, prior="hpf", known=KNOWN_W, **OFFSETS),
        lambda v: of_counts(v, OF_FEATURES * OF_SAMPLES, 0.3),
        lambda v: hpf(v, "W_new"),
    ),
    "ard, means": (lambda: declare_ard("mean"), of_counts, ard("mean")),
    "ard, rates, sparse": (lambda: declare_ard("rate", STORED), of_counts, ard("rate")),
    "ard, variances, sparse": (lambda: declare_ard("variance", STORED), of_counts, ard("variance")),
    "ard, precisions": (lambda: declare_ard("precision"), of_counts, ard("precision")),
    "ard, means, beside a known component": (
        lambda: declare_ard("mean", STORED, known=KNOWN_W),
        of_counts,
        ard("mean", "W_new"),
    ),
    "ard, precisions, beside a known component": (
        lambda: declare_ard("precision", known=KNOWN_W),
        of_counts,
        ard("precision", "W_new"),
    ),
    "half-normal, sparse, an exposure of cells": (
        lambda: poisson_nmf(STORED, K, sigma_w=[0.7, 1.8], sigma_h=[[1.4], [0.6]], exposure=OF_CELLS),
        lambda v: of_counts(v, OF_CELLS),
        lambda v: half_normals(v["W"], [0.7, 1.8]) + half_normals(v["H"], [[1.4], [0.6]]),
    ),
    "a known component of H": (
        lambda: gamma_nmf(Y, K, known_h=KNOWN_H, **GAMMAS),
        of_counts,
        lambda v: given_gammas(v, h="H_new"),
    ),
    "a component that is believed": (
        lambda: gamma_nmf(Y, K, known=KNOWN_W, known_strength=4.0, **GAMMAS),
        of_counts,
        lambda v: gammas(v["W"], [4.0, 1.5], np.c_[4.0 / KNOWN_W, np.full((3, 1), 1.2)]) + gammas(v["H"], 0.8, 0.4),
    ),
    "sparse, an exposure of samples": (
        lambda: gamma_nmf(STORED, K, exposure=OF_SAMPLES, **GAMMAS),
        lambda v: of_counts(v, OF_SAMPLES),
        given_gammas,
    ),
    "stored cells, offsets": (
        lambda: gamma_nmf(STORED, K, observed="stored", **GAMMAS, **OFFSETS),
        lambda v: of_counts(v, OF_FEATURES * OF_SAMPLES, 0.3, Y > 0),
        given_gammas,
    ),
    "negative binomial beside a known component, sparse, offsets": (
        lambda: negative_binomial_nmf(STORED, K, alpha=1.7, known=KNOWN_W, **GAMMAS, **OFFSETS),
        lambda v: of_counts(v, OF_FEATURES * OF_SAMPLES, 0.3, dispersion=1.7),
        lambda v: given_gammas(v, "W_new"),
    ),
    "normal, stored cells, beside a known component": (
        lambda: normal_nmf(STORED, K, observed="stored", known=KNOWN_W, sigma=0.6, sigma_w=1.2, sigma_h=1.5),
        lambda v: stats.norm.logpdf(Y, np.c_[KNOWN_W, v["W_new"]] @ v["H"], 0.6)[Y > 0].sum(),
        lambda v: half_normals(v["W_new"], 1.2) + half_normals(v["H"], 1.5),
    ),
}


def check_against_scipy(name):
    """At random points; all variables are logarithms to NUTS, whose densities have their Jacobian."""
    declare, of_data, of_rest = FORMS[name]
    model, rng = declare(), np.random.default_rng(3)
    both = model.compile_fn([model.logp(), model.dlogp()], mode=UNCOMPILED)

    def density(at):
        return of_data(at) + of_rest(at) + sum(np.log(own).sum() for own in at.values())

    for _ in range(2):
        logs = {name: rng.normal(0.0, 0.7, value.shape) for name, value in model.initial_point().items()}
        at = {model.values_to_rvs[value].name: np.exp(logs[value.name]) for value in model.value_vars}
        log_density, gradient = both(logs)
        np.testing.assert_allclose(log_density, density(at), rtol=1e-9)
        slopes = [numerical_gradient(lambda own, of=of, at=at: density(at | {of: own}), at[of]).ravel() for of in at]
        np.testing.assert_allclose(gradient, np.concatenate(slopes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_nuts_climbs_scipys_density(name):
    check_against_scipy(name)


WRONG = {
    "sparse counts: total of exposed means": (
        "sparse, an exposure of samples",
        lambda right: lambda W, H, exposure: pt.dot(W.sum(axis=0), H.sum(axis=1)),
    ),
    "sparse counts: gradients of means": (
        "sparse, an exposure of samples",
        lambda right: lambda *given: [2.0 * right(*given)[0], *right(*given)[1:]],
    ),
    "ARD: activations of known components": (
        "ard, means, beside a known component",
        lambda right: lambda *given: 2.0 * right(*given),
    ),
}


@pytest.mark.parametrize("place", WRONG)
def test_wrong_densities_and_gradients_are_seen(monkeypatch, place):
    name, wrong = WRONG[place]
    plant(monkeypatch, place, wrong)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_against_scipy(name)
