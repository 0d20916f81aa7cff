"""What the reader makes of each accepted spelling, and how it words each refusal."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from nmf_zoo.distributions import SparsePoisson
from nmf_zoo.distributions.chains import CHAINS
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.models import hmm_nmf
from nmf_zoo.reading import describe, read
from nmf_zoo.reading.data import DENSE_FRACTION
from nmf_zoo.reading.graph import ModelGraph
from nmf_zoo.reading.hyperparameters import HYPER_PRIOR_READERS
from nmf_zoo.reading.likelihoods import LIKELIHOODS
from nmf_zoo.reading.priors import FACTOR_PRIORS
from nmf_zoo.structure import HYPER_PRIORS as DENSITIES
from nmf_zoo.structure import (
    Cells,
    Dense,
    Fixed,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    Known,
    Outer,
)
from tests.readable import (
    BACKGROUND,
    COLS,
    DATA,
    DEPTHS,
    EXPOSURE,
    FEW_COLS,
    FEW_ROWS,
    HYPER_PRIORS,
    KNOWN_B,
    LENGTHS,
    MASK,
    OF_FEW,
    OFFSETS,
    PRIORS,
    PRODUCTS,
    ROWS,
    WHOLE,
    F,
    K,
    N,
    X,
    build,
    gamma,
    poisson,
    positive,
    product,
    sparse,
    two,
)

pytestmark = pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")


# -- products and offsets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_spellings(name):
    structure = read(build(lambda: poisson(PRODUCTS[name]())))
    model_shapes = {"A": structure.W.variable_shape, "B": structure.H.variable_shape}
    assert (structure.W.name, structure.H.name) == ("A", "B")
    assert (structure.W.shape, structure.H.shape) == ((F, K), (K, N))
    assert structure.W.transposed == (model_shapes["A"] == (K, F))
    assert structure.H.transposed == (model_shapes["B"] == (N, K))
    np.testing.assert_array_equal(structure.data.values, X)


def test_shapes_are_known_with_and_without_a_function(monkeypatch):
    """Types say them, or the lengths of dims as they are now: then nothing is built."""
    plain = build(lambda: poisson(PRODUCTS[next(iter(PRODUCTS))]()))
    with pm.Model(coords={"k": range(K), "n": range(N)}) as with_dims:
        pm.Gamma("W", 1.0, 1.0, shape=(F, K))
        pm.Gamma("H", 1.0, 1.0, dims=("k", "n"))
    assert any(None in rv.type.shape for rv in with_dims.free_RVs)
    with pm.Model() as by_parameters:
        pm.Gamma("W", pm.Data("a", np.ones((F, K))), 1.0)
        pm.Gamma("H", 1.0, 1.0, shape=(K, N))
    assert ModelGraph(by_parameters).shapes == {"W": (F, K), "H": (K, N)}
    monkeypatch.delattr(pytensor, "function")
    assert set(ModelGraph(plain).shapes) == {"A", "B"}
    assert ModelGraph(with_dims).shapes == {"W": (F, K), "H": (K, N)}
    for chain in CHAINS:
        in_time = hmm_nmf(np.ones((F, N), int), K, chain=chain(*chain.example), background=0.1)
        assert ModelGraph(in_time).shapes == {"W": (F, K), "H": (K, N)}
        assert read(in_time).H.shape == (K, N)
    with_dims.set_dim("n", N + 1, range(N + 1))
    assert ModelGraph(with_dims).shapes == {"W": (F, K), "H": (K, N + 1)}
    with pytest.raises(AttributeError, match="function"):
        ModelGraph(by_parameters).shapes  # noqa: B018


@pytest.mark.parametrize("name", OFFSETS)
def test_offset_spellings(name):
    """exposure * P + background, with the values that the expression has at P = 1 and P = 0."""
    likelihood = read(build(lambda: poisson(OFFSETS[name](product())))).likelihood
    at_one, at_zero = (offset_at(name, value) for value in (1.0, 0.0))
    exposure = 1.0 if likelihood.exposure is None else likelihood.exposure
    background = 0.0 if likelihood.background is None else likelihood.background
    np.testing.assert_allclose(np.broadcast_to(background, (F, N)), at_zero, atol=1e-15)
    np.testing.assert_allclose(np.broadcast_to(exposure, (F, N)), at_one - at_zero, rtol=1e-12)
    assert (likelihood.exposure is None) == np.allclose(at_one - at_zero, 1.0, rtol=1e-14)


def offset_at(name, value):
    with pm.Model():
        mean = OFFSETS[name](pt.as_tensor(np.full((F, N), value)))
        return pytensor.function([], mean, mode="FAST_COMPILE")()


# -- priors --------------------------------------------------------------------------------------------------------


def text(parameter):
    """A parameter as (name, shape) or its value."""
    if isinstance(parameter, Known):
        return parameter.value.tolist()
    return parameter.name, parameter.shape


EXPECTED_PRIORS = {
    "Exponential": {"shape": 1.0, "rate": 3.0},
    "Exponential, free rate": {"shape": 1.0, "rate": ("r", ())},
    "Exponential, free scale": {"shape": 1.0, "mean": ("m", ())},
    "Exponential, known scale": {"shape": 1.0, "rate": 1 / 3},
    "Gamma, arrays": {"shape": [[1.0], [2.0], [3.0]], "rate": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]},
    "Gamma, data": {"shape": 2.0, "rate": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]},
    "Gamma, expression": {"shape": 2 * np.exp(1.0), "rate": np.sqrt(2.0)},
    "Gamma, mu and sigma": {"shape": 4 / 9, "rate": 2 / 9},
    "free shape": {"shape": ("a", ()), "rate": 2.0},
    "free shape of each component": {"shape": ("a", (K, 1)), "rate": 2.0},
    "free rate of each sample": {"shape": 2.0, "rate": ("b", (1, N))},
    "free rate of each cell": {"shape": 2.0, "rate": ("b", (K, N))},
    "free shape and rate": {"shape": ("a", ()), "rate": ("b", (K, 1))},
    "shape and rate one variable": {"shape": ("a", ()), "mean": 1.0},
    "shape and rate one variable of each component": {"shape": ("a", (K, 1)), "mean": 1.0},
    "known shape, free mean": {"shape": 2.0, "mean": ("m", ())},
    "known shape array, free mean": {"shape": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]], "mean": ("m", ())},
    "free shape, known mean": {"shape": ("a", ()), "mean": 2.0},
    "free shape, free mean": {"shape": ("a", ()), "mean": ("m", ())},
    "shape of each component, free mean": {"shape": ("a", (K, 1)), "mean": ("m", ())},
    "free shape, mean of each sample": {"shape": ("a", ()), "mean": ("m", (1, N))},
    "shape of each component, mean of each sample": {"shape": ("a", (K, 1)), "mean": ("m", (1, N))},
}
INVERSE_PRIORS = {
    "InverseGamma": {"shape": 2.0, "scale": 3.0},
    "InverseGamma, arrays": {"shape": [[1.0], [2.0], [3.0]], "scale": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]},
    "InverseGamma, data": {"shape": 2.0, "scale": 3.0},
    "InverseGamma, mu and sigma": {"shape": 2 + 4 / 9, "scale": 2 * (1 + 4 / 9)},
    "InverseGamma, free shape": {"shape": ("a", ()), "scale": 2.0},
    "InverseGamma, free scale of each component": {"shape": 2.0, "scale": ("b", (K, 1))},
    "InverseGamma, one variable": {"shape": ("a", ()), "scale": ("a", ())},
    "InverseGamma, both of each sample": {"shape": ("a", (1, N)), "scale": ("b", (1, N))},
}
HALF_NORMALS = {
    "HalfNormal": {"sigma": 3.0},
    "HalfNormal, of each sample": {"sigma": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]},
    "HalfNormal, known tau": {"sigma": 0.5},
    "HalfNormal, free sigma": {"sigma": ("s", (K, 1))},
    "HalfNormal, root": {"variance": ("v", ())},
    "HalfNormal, root of each component": {"variance": ("v", (K, 1))},
    "HalfNormal, root as a power": {"variance": ("v", (1, N))},
    "HalfNormal, tau": {"precision": ("p", (K, 1))},
    "HalfNormal, one over a root": {"precision": ("p", ())},
    "HalfNormal, power of a precision": {"precision": ("p", ())},
}
WITH_PARAMETERS = {GammaPrior: EXPECTED_PRIORS, InverseGammaPrior: INVERSE_PRIORS, HalfNormalPrior: HALF_NORMALS}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, own in WITH_PARAMETERS.items() for name in own])
def test_priors_with_parameters(kind, name):
    prior = read(build(lambda: poisson(gamma("A", F, K) @ PRIORS[name]()))).H.prior
    assert isinstance(prior, kind)
    found = {role: text(parameter) for role, parameter in prior.parameters.items()}
    expected = WITH_PARAMETERS[kind][name]
    assert found.keys() == expected.keys()
    for role, value in expected.items():
        assert found[role] == (value if isinstance(value, tuple | list) else pytest.approx(value, rel=1e-14))


def test_other_priors_are_flat_or_fixed():
    others = PRIORS.keys() - {name for own in WITH_PARAMETERS.values() for name in own}
    found = {name: read(build(prior_of_b(PRIORS[name]))).H for name in others}
    assert isinstance(found.pop("HalfFlat").prior, Flat)
    assert found
    assert all(isinstance(factor.prior, Fixed) for factor in found.values())
    np.testing.assert_array_equal(found["known"].prior.value, KNOWN_B)
    assert (found["known"].name, found["known data"].name) == ("", "B")


def test_unknown_of_a_transposed_factor_is_turned():
    def declare():
        a = positive("a", shape=K)
        pm.Poisson("counts", gamma("A", F, K) @ gamma("B", N, K, alpha=a).T, observed=X)

    unknown = read(build(declare)).unknowns["a"]
    assert (unknown.variable_shape, unknown.shape) == ((K,), (K, 1))


def test_known_hyperparameter_of_a_transposed_factor_is_turned():
    alpha = np.arange(1.0, K + 1)
    structure = read(build(lambda: poisson(gamma("A", F, K) @ gamma("B", N, K, alpha=alpha).T)))
    np.testing.assert_array_equal(structure.H.prior.shape.value, alpha[:, None])


@pytest.mark.parametrize("name", HYPER_PRIORS)
def test_hyperpriors(name):
    model = build(lambda: poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=HYPER_PRIORS[name]())))
    prior = read(model).unknowns["a"].prior
    value = np.random.default_rng(3).uniform(0.6, 1.9, model.eval_rv_shapes()["a"])
    theirs = pm.logp(model["a"], value).eval()
    np.testing.assert_allclose(np.broadcast_to(prior.log_density(value), value.shape), theirs, rtol=1e-12, atol=1e-14)
    assert prior.is_flat == (name == "HalfFlat")


def test_one_hyperparameter_may_serve_both_factors():
    structure = read(build(WHOLE["one hyperparameter for both"]))
    assert list(structure.unknowns) == ["a"]
    assert structure.W.prior.shape.name == structure.H.prior.rate.name == "a"


# -- data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["constant", "data", "float data"])
def test_whole_matrices(name):
    data = read(build(lambda: DATA[name](product()))).data
    assert isinstance(data, Dense)
    assert data.mask is None
    assert data.values.dtype == np.float64
    np.testing.assert_array_equal(data.values, X)


@pytest.mark.parametrize("name", ["listed", "listed as data", "boolean index", "listed with offsets", "masked array"])
def test_many_listed_cells_become_a_mask(name):
    structure = read(build(lambda: DATA[name](product())))
    np.testing.assert_array_equal(structure.data.mask, MASK)
    np.testing.assert_array_equal(structure.data.values, np.where(MASK, X, 0))
    np.testing.assert_array_equal(structure.cells, (ROWS, COLS))


@pytest.mark.parametrize("name", ["few listed", "listed from the end"])
def test_few_listed_cells_stay_a_list(name):
    structure = read(build(lambda: DATA[name](product())))
    assert len(FEW_ROWS) <= DENSE_FRACTION * F * N
    assert isinstance(structure.data, Cells)
    assert not structure.data.is_complete
    assert structure.data.shape == (F, N)
    np.testing.assert_array_equal((structure.data.rows, structure.data.cols), (FEW_ROWS, FEW_COLS))
    np.testing.assert_array_equal(structure.data.values, X[FEW_ROWS, FEW_COLS])


def test_all_cells_listed_is_a_whole_matrix():
    rows, cols = np.indices((F, N)).reshape(2, -1)
    structure = read(build(lambda: pm.Poisson("counts", product()[rows, cols], observed=X[rows, cols])))
    assert structure.data.mask is None


@pytest.mark.parametrize("name", ["masked array", "masked array with offsets", "normal masked", "exponential masked"])
def test_masked_arrays_have_imputed_cells(name):
    structure = read(build(lambda: DATA[name](product())))
    assert (structure.likelihood.name, structure.imputed.name) == ("counts_observed", "counts_unobserved")
    np.testing.assert_array_equal((structure.imputed.rows, structure.imputed.cols), np.nonzero(~MASK))


@pytest.mark.parametrize("name", ["listed with offsets", "masked array with offsets"])
def test_offsets_of_listed_cells(name):
    likelihood = read(build(lambda: DATA[name](product()))).likelihood
    np.testing.assert_array_equal(np.broadcast_to(likelihood.exposure, (F, N)), np.broadcast_to(EXPOSURE, (F, N)))
    np.testing.assert_array_equal(np.broadcast_to(likelihood.background, (F, N)), np.broadcast_to(BACKGROUND, (F, N)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rows and columns scaled", LENGTHS * DEPTHS),
        ("rows and columns scaled, turned", 4 * LENGTHS / DEPTHS),
        ("sparse with offsets", LENGTHS * DEPTHS),
    ],
)
def test_what_multiplies_rows_and_columns_is_an_exposure(name, expected):
    structure = read(build(WHOLE[name]))
    assert isinstance(structure.likelihood.exposure, Outer)  # not multiplied out
    np.testing.assert_allclose(structure.exposure_table(), expected, rtol=1e-14)


def test_offsets_of_each_listed_cell():
    """2 (e m + 0.3) / e + e"""
    structure = read(build(WHOLE["rates of cells with offsets"]))
    likelihood = structure.likelihood
    np.testing.assert_allclose(structure.exposure_at(FEW_ROWS, FEW_COLS), 2.0)
    np.testing.assert_allclose(likelihood.background.values, 0.6 / OF_FEW + OF_FEW, rtol=1e-14)


def test_one_number_beside_listed_cells_is_of_all_cells():
    def declare():
        pm.Poisson("counts", np.float64(3.0) * product()[FEW_ROWS, FEW_COLS] + two, observed=X[FEW_ROWS, FEW_COLS])

    structure = read(build(declare))
    np.testing.assert_allclose(structure.exposure_table(), 3.0)
    np.testing.assert_allclose(structure.background_table(), 2.0)


def test_exposures_of_mixed_signs_are_refused():
    """Though the product of both smallest numbers is positive."""
    signs = LENGTHS - 1.0
    with pytest.raises(UnreadableModel, match="exposure -"):
        read(build(lambda: poisson((signs * gamma("A", F, K)) @ (gamma("B", K, N) * -DEPTHS))))


def test_what_multiplies_components_is_no_exposure():
    by_component = np.arange(1.0, K + 1)
    with pytest.raises(UnreadableModel, match="an expression as a factor"):
        read(build(lambda: poisson((by_component * gamma("A", F, K)) @ gamma("B", K, N))))


@pytest.mark.parametrize("complete", [True, False])
def test_sparse_counts(complete):
    structure = read(build(lambda: sparse(complete)))
    assert isinstance(structure.data, Cells)
    assert structure.data.is_complete == complete
    np.testing.assert_array_equal(structure.cells, (ROWS, COLS))


def test_likelihood_kinds():
    found = {name: read(build(lambda name=name: DATA[name](product()))).likelihood for name in DATA}
    for kind in ("normal", "exponential"):
        assert {name for name, likelihood in found.items() if likelihood.family == kind} == {
            name for name in DATA if name.startswith(kind)
        }
    assert found["normal"].sigma.value == 2.0
    assert found["normal, tau"].sigma.value == pytest.approx(np.sqrt(0.5))
    assert found["normal, free sigma"].sigma.name == "s"


def test_nothing_observed():
    structure = read(build(lambda: DATA["not observed"](product())))
    assert structure.data is None
    assert structure.shape == (F, N)


def test_dims_and_coords():
    structure = read(build(WHOLE["dims"]))
    assert structure.dims["A"] == ("word", "topic")
    assert structure.dims["counts"] == ("word", "text")
    assert structure.dims["a"] == ("topic",)
    assert structure.coords["text"].tolist() == list(range(10, 10 + N))
    assert "A" not in read(build(lambda: poisson(product()))).dims


# -- refusals ------------------------------------------------------------------------------------------------------


def observed_twice():
    P = product()
    poisson(P)
    pm.Poisson("again", P, observed=X)


def potential():
    P = product()
    pm.Potential("penalty", -P.sum())
    poisson(P)


def unused():
    pm.Gamma("idle", two, two)
    poisson(product())


def only_in_deterministic():
    P = product()
    pm.Deterministic("noise", P * pm.HalfNormal("idle", two))
    poisson(P)


def squared():
    A = gamma("A", F, K)
    pm.Poisson("counts", A @ A.T, observed=X[:, :F])


def used_twice():
    A = gamma("A", F, K)
    poisson(A @ gamma("B", K, N) + A.sum())


def factor_as_hyperparameter():
    A = gamma("A", K, K)
    pm.Poisson("counts", A @ gamma("B", K, K, beta=A), observed=X[:K, :K])


def hyper_hyperprior():
    a = pm.Gamma("a", pm.HalfFlat("deep"), two)
    poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=a))


def prior_of_b(make):
    return lambda: poisson(gamma("A", F, K) @ make())


def mean(make):
    return lambda: poisson(make(product()))


def alpha(make):
    return prior_of_b(lambda: gamma("B", K, N, alpha=make()))


def beta(make):
    return prior_of_b(lambda: gamma("B", K, N, beta=make()))


def turned_untied():
    beta = positive("b", shape=(N, K))
    poisson(gamma("A", F, K) @ gamma("B", N, K, beta=beta).T)


def observed(values):
    return lambda: pm.Poisson("counts", product(), observed=pm.Data("x", values))


def listed(rows, cols, values=None):
    values = np.zeros(len(rows), dtype=int) if values is None else values
    return lambda: pm.Poisson("counts", product()[np.array(rows), np.array(cols)], observed=values)


REFUSED = {
    "Potential": (potential, "penalty", "a Potential"),
    "two observed": (observed_twice, "model", "2 observed variables (counts, again)"),
    "none observed": (lambda: product(), "model", "0 observed variables (none)"),
    "unused": (unused, "idle", "an unused free variable"),
    "used in a Deterministic only": (only_in_deterministic, "idle", "an unused free variable"),
    "A @ A.T": (squared, "A", "both sides"),
    "factor in two places": (used_twice, "counts", "mean (A @ B) + "),
    "factor as hyperparameter": (factor_as_hyperparameter, "A", "a variable with two roles"),
    "three factors": (mean(lambda P: P @ gamma("C", N, N)), "A @ B", "an expression as a factor"),
    "two products": (mean(lambda P: P + gamma("C", F, K) @ gamma("D", K, N)), "counts", "mean (A @ B) + "),
    "log link": (mean(pt.exp), "counts", "mean Exp(A @ B)"),
    "no product": (lambda: poisson(gamma("A", F, N)), "counts", "mean A"),
    "power": (mean(lambda P: P**2), "counts", "mean (A @ B) ** 2"),
    "elementwise": (lambda: poisson(gamma("A", F, N) * gamma("B", F, N)), "counts", "mean A * B"),
    "einsum of three": (
        lambda: poisson(pt.einsum("fk,kl,ln->fn", gamma("A", F, K), gamma("B", K, K), gamma("C", K, N))),
        "counts",
        "mean Einsum(",
    ),
    "random exposure": (mean(lambda P: P * pm.HalfNormal("s", two)), "counts", "mean (A @ B) * s"),
    "factor inside an expression": (
        lambda: poisson((pt.exp(gamma("A", F, K))) @ gamma("B", K, N)),
        "Exp(A)",
        "an expression as a factor",
    ),
    "exposure zero": (mean(lambda P: P * np.arange(float(N))), "counts", "exposure 0.0"),
    "exposure negative": (mean(lambda P: P / -two), "counts", "exposure -0.5"),
    "exposure infinite": (mean(lambda P: P * np.inf), "counts", "infinite or NaN exposure"),
    "background negative": (mean(lambda P: P + -0.5), "counts", "background -0.5"),
    "background too large": (
        mean(lambda P: P + pm.Data("b", np.ones((F, N + 1)))),
        "counts",
        "background of shape (5, 8)",
    ),
    "likelihood": (lambda: pm.StudentT("counts", 4, mu=product(), sigma=1.0, observed=X), "counts", "StudentT"),
    "rate W H": (lambda: pm.Exponential("counts", product(), observed=X), "counts", "mean Reciprocal(A @ B)"),
    "two over W H": (lambda: pm.Exponential("counts", two / product(), observed=X), "counts", "mean Reciprocal(2.0 / "),
    "cells of cells": (
        lambda: pm.Exponential("counts", (1 / product()[ROWS, :][:, COLS])[ROWS, COLS], observed=X[ROWS, COLS]),
        "counts",
        "mean Reciprocal(",
    ),
    "negative power": (lambda: pm.Exponential("counts", scale=product(), observed=X - 9.0), "counts", "the value -9"),
    "mean of an inverse gamma": (
        prior_of_b(lambda: pm.InverseGamma("B", mu=positive("m"), sigma=two, shape=(K, N))),
        "B",
        "alpha = ",
    ),
    "inverse gamma of a product": (
        prior_of_b(lambda: pm.InverseGamma("B", two, two * positive("b"), shape=(K, N))),
        "B",
        "beta = 2.0 * b",
    ),
    "scale zero": (prior_of_b(lambda: pm.InverseGamma("B", two, np.zeros(()), shape=(K, N))), "B", "scale 0.0"),
    "Flat factor": (prior_of_b(lambda: pm.Flat("B", shape=(K, N))), "B", "a Flat prior"),
    "HalfNormal of a sum": (
        prior_of_b(lambda: pm.HalfNormal("B", pm.math.sqrt(positive("s") + two), shape=(K, N))),
        "B",
        "variance = s + 2.0",
    ),
    "HalfNormal of another power": (
        prior_of_b(lambda: pm.HalfNormal("B", positive("s") ** 2.0, shape=(K, N))),
        "B",
        "sigma = s ** 2.0",
    ),
    "HalfCauchy factor": (prior_of_b(lambda: pm.HalfCauchy("B", two, shape=(K, N))), "B", "a HalfC"),
    "truncated factor": (
        prior_of_b(lambda: pm.Truncated("B", pm.Gamma.dist(two, two), upper=9.0, shape=(K, N))),
        "B",
        "a TruncatedGamma prior",
    ),
    "ordered factor": (
        prior_of_b(lambda: pm.HalfFlat("B", shape=(K, N), transform=pm.distributions.transforms.ordered)),
        "B",
        "the transform ",
    ),
    "Dirichlet factor": (prior_of_b(lambda: pm.Dirichlet("B", np.ones(N), shape=(K, N))), "B", "a Dir"),
    "known factor negative": (prior_of_b(lambda: pm.Data("B", -KNOWN_B)), "B", "negative or infinite"),
    "hyperprior": (alpha(lambda: pm.Weibull("a", two, two)), "a", "a Weibull prior"),
    "hyperprior may be negative": (alpha(lambda: pm.Uniform("a", -1.0, 1.0)), "a", "can be negative"),
    "hyperprior Normal": (alpha(lambda: pm.Normal("a", 0.0, 1.0)), "a", "a N"),
    "hyper-hyperprior": (hyper_hyperprior, "a", "a prior that depends on deep"),
    "hyperparameter times a known": (beta(lambda: two * positive("b")), "B", "beta = 2.0 * b"),
    "one over a hyperparameter": (beta(lambda: 1.0 / positive("b")), "B", "beta = 1.0 / b"),
    "hyperparameter in mu and sigma": (
        prior_of_b(lambda: pm.Gamma("B", mu=positive("m"), sigma=two, shape=(K, N))),
        "B",
        "alpha = ",
    ),
    "hyperparameter of another shape": (beta(lambda: pm.Data("b", np.ones(K))), "B", "rate of shape (1, 3)"),
    "negative hyperparameter": (beta(lambda: np.float64(-2.0)), "B", "rate -2.0"),
    "indexed hyperparameter": (alpha(lambda: positive("a", shape=K)[0]), "B", "alpha = Subtensor"),
    "untied, turned": (turned_untied, "B", "beta = b"),
    "sigma of each feature, from the last": (
        lambda: pm.Normal("counts", product(), pm.HalfFlat("s", shape=(F, 1))[::-1], observed=X + 0.5),
        "counts",
        "sigma = Subtensor",
    ),
    "negative count": (
        lambda: pm.Poisson("counts", product(), observed=pm.Data("x", X - 100)),
        "counts",
        "the value -",
    ),
    "truncated data": (
        lambda: pm.Poisson("counts", product(), observed=pm.Data("x", X + 0.7)),
        "counts",
        "non-integer",
    ),
    "infinite data": (
        lambda: pm.Normal("counts", product(), two, observed=pm.Data("x", np.where(MASK, X, np.inf))),
        "counts",
        "NaN or infinite data",
    ),
    "shape of the data": (observed(X[:, 1:]), "counts", "(5, 6)"),
    "cell twice": (listed([1, 1], [2, 2]), "counts", "a cell listed twice"),
    "cell outside": (listed([1, F], [2, 2]), "counts", "cell index 5"),
    "listed, not observed": (lambda: pm.Poisson("counts", product()[FEW_ROWS, FEW_COLS]), "counts", "without data"),
    "a row": (lambda: pm.Poisson("counts", product()[1], observed=X[1]), "counts", "mean Subtensor(A @ B, 1)"),
    "sampled index": (
        lambda: pm.Poisson("counts", product()[pm.Poisson("i", two, shape=3), FEW_COLS], observed=FEW_COLS),
        "counts",
        "mean AdvancedSubtensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    declare, variable, found = REFUSED[name]
    with pytest.raises(UnreadableModel) as caught:
        read(build(declare))
    assert caught.value.variable == variable
    assert found in caught.value.found
    assert caught.value.expected
    assert caught.value.do
    assert "\n" not in str(caught.value)


def test_allowed_sets_come_from_the_registries():
    tables = {"likelihood": LIKELIHOODS, "Flat factor": FACTOR_PRIORS, "hyperprior": HYPER_PRIOR_READERS}
    for name, registry in tables.items():
        with pytest.raises(UnreadableModel) as caught:
            read(build(REFUSED[name][0]))
        assert all(distribution.__name__ in caught.value.expected for distribution in registry)


def test_every_density_of_a_hyperprior_can_be_read():
    kinds = set()
    for make in HYPER_PRIORS.values():
        kinds.add(read(build(alpha(make))).unknowns["a"].prior.kind)
    assert kinds == set(DENSITIES) - {"beta", "normal"}  # of chains: tests/unit/test_hmm_nmf.py


# -- speed, text ---------------------------------------------------------------------------------------------------


def test_a_large_sparse_model_is_read_at_once_and_without_a_dense_copy():
    F, N, K, cells = 12_419, 1_500, 10, 746_000
    rng = np.random.default_rng(1)
    flat = rng.choice(F * N, cells, replace=False)
    rows, cols = np.divmod(flat, N)
    with pm.Model() as model:
        W, H = gamma("A", F, K), gamma("B", K, N)
        SparsePoisson("counts", W, H, rows, cols, complete=True, observed=np.ones(cells))
    read(model)  # PyTensor sets up its own caches once
    started = time.perf_counter()
    structure = read(model)
    assert time.perf_counter() - started < 1.0
    assert structure.data.values.size == cells


def test_describe():
    def declare():
        a = positive("a", shape=K)[:, None]
        B = pm.Gamma("B", a, a / pm.Gamma("m", two, two), shape=(K, N))
        pm.Poisson("counts", (two * (gamma("A", F, K) @ B) + 0.5)[ROWS, COLS], observed=X[ROWS, COLS])

    found = describe(build(declare), engines=lambda structure: {"em": "", "particle_em": "needs a chain"})
    non_zero = np.count_nonzero(X[MASK])
    assert found.splitlines() == [
        f"counts: 5 x 7 counts, {non_zero} non-zero ({non_zero / MASK.sum():.1%}), {F * N - MASK.sum()} cells missing",
        "counts ~ Poisson(exposure * (A @ B) + background), rank 3",
        "A: 5 x 3, Gamma(shape=2, rate=3)",
        "B: 3 x 7, Gamma(shape=a, mean=m)",
        "exposure: 2",
        "background: 0.5",
        "a: 3 values, one for each row, free (no prior)",
        "m: 1 value, shared by all cells, sampled, gamma(2, 2) prior",
        "engines: em",
        "not particle_em: needs a chain",
    ]
