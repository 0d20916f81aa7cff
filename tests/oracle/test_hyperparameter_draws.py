"""Draws of hyperparameters: their densities, and those along scales, are the model's own; the draws have their laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.shared.hyperparameter_draws import (
    HYPERPRIORS,
    NO_LINE,
    draw_hyperparameters,
    lay_out_hyperparameters,
    scales_of,
    sum_groups,
)
from nmf_zoo.kernels.random.hyperparameter_draws import (
    BY_GAMMA,
    SLICED,
    Entries,
    GroupSums,
    PriorGroups,
    SliceTarget,
    along_scales,
    draw_entries,
    log_density,
)
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.structure.parameters import HYPER_PRIORS
from tests.structures import gamma, half_normal, inverse_gamma, model, truncated_normal, unknown, unknown_beside

RNG = np.random.default_rng(3)
X, P = RNG.poisson(4.0, (3, 4)), RNG.exponential(4.0, (3, 4))
K = 2
MEAN = unknown("m", "gamma", 2.0, 3.0)
RATES = unknown("r", "lognormal", 0.2, 0.7, variable_shape=(K,), shape=(K, 1))
MEANS = unknown("v", "inverse_gamma", 3.0, 2.0, variable_shape=(1, K))
SCALE = unknown("s", "half_normal", 2.0)
VARIANCE = unknown("u", "uniform", 0.01, 20.0)
SIGMAS = unknown("q", "beta", 2.0, 3.0, variable_shape=(K,), shape=(K, 1))
BY_CELL = unknown("c", "gamma", 2.0, 1.5, variable_shape=(3, K), shape=(3, K))
BY_SAMPLE = unknown("n", "inverse_gamma", 3.0, 2.0, variable_shape=(4,), shape=(1, 4))
MODELS = {
    "mean of H": model(X, K, gamma([[0.5, 2.0]], 0.8), gamma([[1.6], [0.7]], mean=MEAN)),
    "rates of H by component": model(X, K, gamma(0.5, 0.8), gamma(1.3, RATES), exposure=[[1.0, 2.0, 0.5, 1.0]]),
    "means of W by component": model(X, K, gamma(0.5, mean=MEANS), gamma([[1.6], [0.7]], [[1.0], [2.0]])),
    "means of both": model(X, K, gamma(0.5, mean=MEANS), gamma(1.2, RATES)),
    "mean of H, W free": model(X, K, None, gamma(1.6, mean=MEAN)),
    "scale of powers": model(P, K, inverse_gamma(2.5, 1.5), inverse_gamma(1.3, SCALE), kind="exponential"),
    "scale of powers, W": model(
        P, K, inverse_gamma(1.5, SCALE), inverse_gamma([[2.0], [3.0]], 1.2), kind="exponential"
    ),
    "variance of half-normal cells": model(X, K, half_normal(variance=VARIANCE), half_normal(sigma=SIGMAS)),
    "precision beside gamma cells": model(X, K, half_normal(precision=MEAN), gamma(1.2, 0.5)),
    "beside truncated normal cells": model(P, K, truncated_normal(0.5, 1.5), gamma(1.2, RATES), kind="normal"),
}
NONE = {
    "a shape": model(X, K, gamma(0.5, 0.8), gamma(MEAN, 1.0)),
    "one mean of both": model(X, K, gamma(0.5, mean=MEAN), gamma(1.2, mean=MEAN)),
    "shape and rate at once": model(X, K, gamma(0.5, 1.0), gamma(MEAN, MEAN)),
    "means by sample": model(X, K, gamma(0.5, 1.0), gamma(1.2, mean=BY_SAMPLE)),
    "shapes of cells": model(X, K, gamma(BY_CELL, 1.0), gamma(1.2, 0.7)),
    "means of some components": model(
        X, K, gamma(0.5, 1.0), gamma(1.2, mean=unknown_beside("n", "gamma", 2.0, 2.0, known=[[1.5], [np.nan]]))
    ),
    "shape and scale of powers": model(P, K, inverse_gamma(MEAN, BY_CELL), inverse_gamma(2.0, 1.0), kind="exponential"),
    "W known": model(X, K, RNG.gamma(2.0, size=(3, K)), gamma(1.2, mean=MEAN)),
}


def values_of(structure):
    values = {name: RNG.uniform(0.2, 0.9, own.variable_shape) for name, own in structure.unknowns.items()}
    W, H = (RNG.gamma(2.0, size=factor.shape) for factor in (structure.W, structure.H))
    return (structure.W.prior.value if structure.W.is_fixed else W), H, values


def numbers_of(given, values):
    numbers = given.numbers.copy()
    for name, (_, at) in given.unknowns.items():
        numbers[at] = np.ravel(values[name])
    return numbers


@pytest.mark.parametrize("name", MODELS | NONE)
def test_the_density_of_an_entry_is_the_models(name):
    """Of its logarithm, up to a constant."""
    structure = (MODELS | NONE)[name]
    W, H, values = values_of(structure)
    given = lay_out_hyperparameters(structure, ("scale",))
    sums = sum_groups(given, W, np.ascontiguousarray(H.T))
    for variable, (_, at) in given.unknowns.items():
        for place, entry in enumerate(range(at.start, at.stop)):
            ours, theirs = [], []
            for x in (0.3, 0.5, 0.8):
                numbers = numbers_of(given, values)
                target = SliceTarget(given.entries, given.groups, sums, numbers, entry, NO_LINE, 0, 0, 1.0)
                ours.append(log_density(target, math.log(x)))
                moved = np.array(values[variable])
                moved.reshape(-1)[place] = x
                theirs.append(structure.log_joint({**values, variable: moved, "W": W, "H": H}) + math.log(x))
            np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_density_along_a_scale_is_the_models(name):
    """Up to a constant, with the change of volume of W, H and the unknown."""
    structure = MODELS[name]
    W, H, values = values_of(structure)
    given = lay_out_hyperparameters(structure, ("scale",))
    assert given.scales
    sums, numbers = sum_groups(given, W, np.ascontiguousarray(H.T)), numbers_of(given, values)
    for own, of, direction in given.scales:
        at, line = given.unknowns[own.name][1], np.empty((K, 4))
        shift = np.array([0.3, -0.2])
        other = (np.ascontiguousarray(H.T), W)[of]
        along_scales(line, given.cells[1 - of], given.groups, numbers, other * np.exp(-shift), shift)
        sizes = [(0, K)] if at.stop - at.start == 1 else [(k, k + 1) for k in range(K)]
        for entry, (first, stop) in zip(range(at.start, at.stop), sizes, strict=True):
            ours, theirs = [], []
            for s in (-0.4, 0.0, 0.1):
                target = SliceTarget(given.entries, given.groups, sums, numbers, entry, line, first, stop, direction)
                ours.append(log_density(target, s))
                theirs.append(
                    along(structure, (W, H, values), (own, of, direction), entry - at.start, (first, stop), s)
                )
            np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-9, atol=1e-9)


def along(structure, point, scale, place, components, s):
    (W, H, values), (own, of, direction) = point, scale
    log_c = np.zeros(K)
    log_c[slice(*components)] = s if of == 0 else -s
    moved = np.array(values[own.name])
    moved.reshape(-1)[place] *= np.exp(direction * s)
    volume = (len(W) - H.shape[1]) * log_c.sum() + direction * s
    found = {**values, own.name: moved, "W": W * np.exp(log_c), "H": H * np.exp(-log_c)[:, None]}
    return structure.log_joint(found) + volume


@pytest.mark.parametrize("name", MODELS)
def test_a_move_takes_the_unknown_along(name):
    structure = MODELS[name]
    W, H, values = values_of(structure)
    before = dict(values)
    given = lay_out_hyperparameters(structure, ("scale",))
    scale = draw_hyperparameters(given, W, np.ascontiguousarray(H.T), values, seed_key(1))
    assert scale.shape == (K,)
    assert np.all(scale != 1.0)
    for variable, value in values.items():
        assert value.shape == before[variable].shape
        assert np.all(value != before[variable])


@pytest.mark.parametrize("name", NONE)
def test_who_takes_no_part(name):
    structure = NONE[name]
    assert scales_of(structure) == []
    W, H, values = values_of(structure)
    drawn = draw_hyperparameters(
        lay_out_hyperparameters(structure, ()), W, np.ascontiguousarray(H.T), values, seed_key(1)
    )
    assert drawn is None


def test_what_is_known_is_not_drawn():
    assert lay_out_hyperparameters(model(X, K, gamma(0.5, 1.0), gamma(1.2, 1.0)), ("scale",)) is None


# -- hyperpriors -----------------------------------------------------------------------------------------------------

LAWS = {
    "gamma": ((1.7, 2.0), lambda a, b: stats.gamma(a, scale=1 / b)),
    "inverse_gamma": ((5.0, 2.0), lambda a, b: stats.invgamma(a, scale=b)),
    "lognormal": ((0.3, 0.6), lambda mu, sigma: stats.lognorm(sigma, scale=math.exp(mu))),
    "half_normal": ((1.5, 0.0), lambda sigma, _: stats.halfnorm(scale=sigma)),
    "uniform": ((0.5, 3.0), lambda lower, upper: stats.uniform(lower, upper - lower)),
    "beta": ((1.4, 2.5), stats.beta),
    "normal": ((1.0, 0.5), lambda mu, sigma: stats.truncnorm(-mu / sigma, np.inf, mu, sigma)),  # drawn as logarithms
}


def test_every_hyperprior_has_a_code():
    assert set(HYPERPRIORS) == set(HYPER_PRIORS) == {*LAWS, "flat"}


def entry_alone(kind, how):
    """Of a prior alone."""
    none, args = np.zeros(0, np.int64), np.array([LAWS[kind][0]])
    of_kind = np.array([HYPERPRIORS[kind]])
    return Entries(np.zeros(2, np.int64), none, of_kind, args, np.ones(1), np.array([how])), PriorGroups(
        none, none, none
    )


@pytest.mark.parametrize("kind", LAWS)
def test_a_slice_has_the_priors_law(kind):
    """What a chain of it visits, thinned to next to independent draws."""
    (entries, groups), sums, numbers = entry_alone(kind, SLICED), GroupSums(*np.zeros((3, 0))), np.array([0.7])
    kept = []
    for sweep in range(8000):
        draw_entries(entries, groups, sums, numbers, NO_LINE, child(seed_key(1), sweep))
        kept.append(numbers[0])
    args, law = LAWS[kind]
    assert stats.kstest(kept[::8], law(*args).cdf).pvalue > 1e-4
    assert stats.kstest(kept[::8], law(args[0] + 0.5, args[1]).cdf).pvalue < 1e-4


def test_a_conjugate_draw_has_its_law():
    (entries, groups), sums = entry_alone("gamma", BY_GAMMA), GroupSums(*np.zeros((3, 0)))
    kept, numbers = [], np.array([0.7])
    for sweep in range(2000):
        draw_entries(entries, groups, sums, numbers, NO_LINE, child(seed_key(2), sweep))
        kept.append(numbers[0])
    args, law = LAWS["gamma"]
    assert stats.kstest(kept, law(*args).cdf).pvalue > 1e-4
