"""``check``: the log joint is the model's, for every accepted spelling; and it fails on wrong structures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.distributions import SparseNegativeBinomial
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.reading import check, describe, read
from nmf_zoo.reading.check import CheckFailed
from nmf_zoo.structure import Known, OffsetsOfSamples
from tests.planted import plant
from tests.readable import (
    COLS,
    DATA,
    EXPOSURE,
    LENGTHS,
    ROWS,
    F,
    K,
    N,
    X,
    accepted,
    build,
    gamma,
    poisson,
    product,
    two,
)

ACCEPTED = accepted()


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize("name", ACCEPTED)
def test_structure_has_the_models_log_joint(name):
    model = ACCEPTED[name]()
    check(model)
    assert all(rv.name in describe(model) for rv in model.free_RVs)


def test_single_precision_numbers_are_compared_as_such():
    model = build(lambda: poisson(pm.Gamma("A", 2.0, 3.0, shape=(F, K)) @ gamma("B", K, N)))
    check(model)
    with pytest.raises(AssertionError, match="log joint"):
        check(model, structure=wrong_rate(read(model), 1e-3))


def test_small_integers_are_compared_as_single_precision():
    """PyMC takes the logarithm of the integer 2 in single precision."""
    model = build(lambda: poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=pm.InverseGamma("a", 3, 2))))
    check(model)
    with pytest.raises(AssertionError, match="log joint"):
        check(model, structure=wrong_rate(read(model), 1e-3))


# -- samples that come in blocks -------------------------------------------------------------------------------------

COUNTS = np.random.default_rng(0).poisson(2.0, (4, 7)).astype(float)
HOLED = np.where(np.arange(7) == np.arange(4)[:, None], np.nan, COUNTS)
WIDE = np.random.default_rng(1).poisson(2.0, (4, 120)) + 1
OF_ONE = {"shape": (4, 1), "alpha_h": [[0.7], [1.3]]}
DECLARED = {
    "gamma": lambda: nz.gamma_nmf(None, 2, beta_w=0.3, **OF_ONE),
    "gap": lambda: nz.gap(None, 2, **OF_ONE),
    "background": lambda: nz.gamma_nmf(None, 2, background=0.5, **OF_ONE),
    "hyperparameter": lambda: nz.gamma_nmf(None, 2, shape=(4, 1), mean_h=nz.free(tie="all")),
    "dispersion": lambda: nz.negative_binomial_nmf(None, 2, shape=(4, 1)),
    "powers": lambda: nz.is_nmf(None, 2, shape=(4, 1)),
}
SAMPLES = {
    "dense": COUNTS + 0.0,
    "missing cells": HOLED,
    "sparse": sp.csr_array(COUNTS),
    "stored alone": nz.Samples(sp.csc_array(COUNTS), observed="stored"),
    "exposures": nz.Samples(COUNTS, exposure=np.arange(1.0, 8.0)),
    "background": nz.Samples(HOLED, exposure=np.arange(1.0, 8.0), background=0.1 + COUNTS),
    "background, pair": nz.Samples(sp.csr_array(COUNTS), background=(1.0 + COUNTS[:, :1], np.arange(7.0))),
    "background, stored": nz.Samples(sp.csc_array(COUNTS), observed="stored", background=sp.csc_array(COUNTS / 3)),
    "more than are looked at": WIDE,
}


@pytest.mark.parametrize("what", SAMPLES)
@pytest.mark.parametrize("name", DECLARED)
def test_samples_have_the_log_joint_of_the_model_of_one(name, what):
    if what.startswith("background") and name in ("background", "dispersion"):
        expected = "one of both" if name == "background" else "X is negative binomial, and a background of samples"
        with pytest.raises((InputError, UnsupportedModel), match=expected):
            nz.check(DECLARED[name](), n=1, data=SAMPLES[what])
        return
    nz.check(DECLARED[name](), n=1, data=SAMPLES[what])


def test_of_blocks_the_first_is_taken():
    nz.check(DECLARED["gamma"](), n=1, data=nz.open_blocks(WIDE, block=3))


@pytest.mark.parametrize("what", ["dense", "exposures", "stored alone", "background", "background, pair"])
def test_an_error_in_what_engines_make_of_samples_is_seen(what, monkeypatch):
    model = DECLARED["gamma"]()
    with pytest.raises(CheckFailed, match=r"log joint of 7 samples at random point 0: found .* expected .* block"):
        nz.check(model, data=SAMPLES[what], structure=wrong_rate(read(model), 1e-3))
    of_others = OffsetsOfSamples(np.full(7, 1.5))
    plant(monkeypatch, "check: samples of a block", lambda made: lambda own, block, _: made(own, block, of_others))
    with pytest.raises(CheckFailed):
        nz.check(model, data=SAMPLES[what])


@pytest.mark.parametrize(
    ("declare", "data", "line"),
    [
        (lambda: nz.gamma_nmf(COUNTS, 2), COUNTS, "data: got data beside those of X; expected one of both"),
        (DECLARED["gamma"], COUNTS[:3], "data: got 3 features; expected 4"),
        (DECLARED["gamma"], -WIDE, "data: got 480 negative, the first at feature 0, sample 0"),
        (DECLARED["gamma"], "counts.zarr", "data: got an object of type str; expected an array"),
        (lambda: nz.gamma_nmf(None, 2, shape=(4, 7)), COUNTS, "has 7 samples, and is declared with one"),
        (
            lambda: nz.gamma_nmf(None, 2, known_h=[[1.0]], shape=(4, 1)),
            COUNTS,
            "can.t hold .* H is known, or",
        ),
    ],
)
def test_samples_that_a_model_can_not_have(declare, data, line):
    with pytest.raises((InputError, UnsupportedModel), match=line):
        nz.check(declare(), data=data)


# -- planted errors ------------------------------------------------------------------------------------------------


def wrong_rate(structure, by=1e-6):
    prior = structure.H.prior
    return replace(
        structure, H=replace(structure.H, prior=replace(prior, rate=Known(value=prior.rate.value * (1 + by))))
    )


def no_prior_rate(structure):
    return wrong_rate(structure, by=-1 + 1e-9)


def swapped_priors(structure):
    W, H = structure.W, structure.H
    return replace(structure, W=replace(W, prior=H.prior), H=replace(H, prior=W.prior))


def swapped_data(structure):
    """Two samples exchanged."""
    values = structure.data.values.copy()
    values[:, :2] = values[:, 1::-1]
    return replace(structure, data=replace(structure.data, values=values))


def without_mask(structure):
    return replace(structure, data=replace(structure.data, mask=None))


def inverted_mask(structure):
    return replace(structure, data=replace(structure.data, mask=~structure.data.mask))


def without(part):
    return lambda structure: replace(structure, likelihood=replace(structure.likelihood, **{part: None}))


def as_complete(structure):
    return replace(structure, data=replace(structure.data, is_complete=True))


def without_imputed(structure):
    return replace(structure, imputed=None)


def wrong_parameter(name):
    """Of the likelihood, in all of its cells."""

    def spoil(structure):
        likelihood = structure.likelihood
        value = (1 + 1e-6) * getattr(likelihood, name).value
        return replace(structure, likelihood=replace(likelihood, **{name: Known(value=value)}))

    return spoil


def exchanged_batches(structure):
    likelihood = structure.likelihood
    own = likelihood.multipliers
    return replace(structure, likelihood=replace(likelihood, multipliers=replace(own, batch=1 - own.batch)))


def exchanged_covariates(structure):
    """Those of two samples."""
    prior = structure.H.prior
    design = prior.covariates.design.copy()
    design[:2] = design[1::-1]
    wrong = replace(prior, covariates=replace(prior.covariates, design=design))
    return replace(structure, H=replace(structure.H, prior=wrong))


def plain():
    return poisson(gamma("A", F, K, beta=two) @ gamma("B", K, N))


def in_batches():
    return poisson(product() * pm.Gamma("M", two, two, shape=(F, 2))[:, np.arange(N) % 2])


def with_covariates():
    mean = pm.math.exp(pm.Normal("slopes", 0.0, 1.0, shape=(K, 1)) @ np.linspace(-1.0, 1.0, N)[None])
    return poisson(gamma("A", F, K) @ pm.Gamma("B", two, two / mean))


PLANTED = {
    "rate off by 1e-6": (plain, wrong_rate),
    "rate dropped": (plain, no_prior_rate),
    "priors swapped": (plain, swapped_priors),
    "samples swapped": (plain, swapped_data),
    "exposure dropped": (lambda: poisson(EXPOSURE * product()), without("exposure")),
    "background dropped": (lambda: poisson(product() + 0.5), without("background")),
    "mask dropped": (lambda: DATA["listed"](product()), without_mask),
    "mask inverted": (lambda: DATA["listed"](product()), inverted_mask),
    "missing cells taken for zeros": (lambda: DATA["few listed"](product()), as_complete),
    "imputed cells dropped": (lambda: DATA["masked array"](product()), without_imputed),
    "dispersion off by 1e-6": (
        lambda: DATA["negative binomial, known column"](product()),
        wrong_parameter("alpha"),
    ),
    "zeros of overdispersed counts taken for missing": (
        lambda: SparseNegativeBinomial(
            "counts", gamma("A", F, K), gamma("B", K, N), ROWS, COLS, alpha=two, observed=1.0 + X[ROWS, COLS]
        ),
        lambda structure: replace(structure, data=replace(structure.data, is_complete=False)),
    ),
    "sigma off by 1e-6": (lambda: pm.Normal("counts", product(), LENGTHS, observed=X + 0.5), wrong_parameter("sigma")),
    "batches exchanged": (in_batches, exchanged_batches),
    "covariates exchanged": (with_covariates, exchanged_covariates),
}


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize("name", PLANTED)
def test_check_fails_on_a_wrong_structure(name):
    declare, spoil = PLANTED[name]
    model = build(declare)
    with pytest.raises(AssertionError, match=r"log joint at random point 0: found .*; expected .*the model's"):
        check(model, structure=spoil(read(model)))


def test_check_fails_when_a_hyperprior_is_dropped():
    model = build(lambda: poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=pm.Gamma("a", two, two))))
    flat = build(lambda: poisson(gamma("A", F, K) @ gamma("B", K, N, alpha=pm.HalfFlat("a"))))
    with pytest.raises(AssertionError, match="log joint"):
        check(model, structure=read(flat))


def test_check_draws_other_points_with_another_seed():
    model = build(plain)
    check(model, n=1, random_seed=1)
    check(model, n=5, random_seed=2)
