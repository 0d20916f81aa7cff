"""Composite Gibbs against quadrature on tiny problems: posterior moments of logarithms on grids in log h and log w."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.special import digamma, logsumexp

from nmf_zoo.inference.counts.gibbs import MOVES
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.beside_known import NAMES, PROFILE, known_beside, offsets_of, quadrature, statistics_of
from tests.statistical.composite_chain import sample_composite
from tests.statistical.gates import check_means
from tests.structures import inverse_gamma, model

pytestmark = pytest.mark.statistical
SWEEPS = size(20_000, 200_000)

power_model = partial(model, kind="exponential")
GRID = np.linspace(-6.5, 9.0, 63)  # of a logarithm


def log_prior(u, shape, scale):
    """log-density of u = log v, v inverse gamma, up to a constant."""
    return -shape * u - scale * np.exp(-u)


def log_cell(x, mean):
    return -np.log(mean) - x / mean


# -- two frequencies, one frame, two components, W known or not ------------------------------------------------------

KNOWN = np.array([[0.8, 1.9], [1.4, 0.3]])
PAIR_X, SHAPE_H, SCALE_H = np.array([[2.5], [0.4]]), np.array([1.6, 2.4]), np.array([0.7, 1.5])
SHAPE_W, SCALE_W = np.array([[2.2, 3.0], [2.6, 1.8]]), np.array([[1.0, 0.6], [0.5, 2.0]])
U1, U2 = np.meshgrid(GRID, GRID, indexing="ij")
LOG_PRIOR_H = log_prior(U1, SHAPE_H[0], SCALE_H[0]) + log_prior(U2, SHAPE_H[1], SCALE_H[1])


def moments(log_weight, table):
    """Means under weights given by their logarithms."""
    weight = np.exp(log_weight - logsumexp(log_weight))
    return [float(np.sum(weight * values)) for values in table]


def by_known_W(W, exposure, background):
    log_weight = LOG_PRIOR_H.copy()
    for f in range(2):
        mean = exposure[f, 0] * (W[f, 0] * np.exp(U1) + W[f, 1] * np.exp(U2)) + background[f, 0]
        log_weight += log_cell(PAIR_X[f, 0], mean)
    return moments(log_weight, [U1, U2, U1**2, U1 * U2, U2**2])


def statistics_of_h(draws):
    u1, u2 = np.log(draws["H"][:, 0, 0]), np.log(draws["H"][:, 1, 0])
    return np.stack([u1, u2, u1**2, u1 * u2, u2**2], axis=1)


NAMES_H = ["u1", "u2", "u1^2", "u1 u2", "u2^2"]
NONE, ONES = np.zeros((2, 1)), np.ones((2, 1))
BESIDE, EXPOSURE = np.array([[0.5], [0.2]]), np.array([[0.4], [2.5]])


KNOWN_CASES = {
    "plain": (KNOWN, ONES, NONE),
    "exposure": (KNOWN, EXPOSURE, NONE),
    "exposure and background": (KNOWN, EXPOSURE, BESIDE),
    "zeros": (np.array([[0.8, 0.0], [1.4, 0.3]]), ONES, np.array([[0.0], [0.2]])),
}


@pytest.mark.parametrize("name", KNOWN_CASES)
def test_known_profiles(name):
    W, exposure, background = KNOWN_CASES[name]
    structure = power_model(
        PAIR_X, 2, W, inverse_gamma(SHAPE_H[:, None], SCALE_H[:, None]), exposure=exposure, background=background
    )
    draws = sample_composite(structure, SWEEPS, seed=1)
    check_means(NAMES_H, statistics_of_h(draws), np.array(by_known_W(*KNOWN_CASES[name])))


def by_unknown_W():
    """Given h the rows of W are independent: each is a grid of its own at every h."""
    coarse = GRID[::2]
    V1, V2 = np.meshgrid(coarse, coarse, indexing="ij")
    log_weight, means = LOG_PRIOR_H[::2, ::2].copy(), []
    for f in range(2):
        log_prior_w = sum(log_prior(v, SHAPE_W[f, k], SCALE_W[f, k]) for k, v in enumerate((V1, V2)))
        mean = np.exp(V1[None, None] + U1[::2, ::2, None, None]) + np.exp(V2[None, None] + U2[::2, ::2, None, None])
        log_rows = log_prior_w + log_cell(PAIR_X[f, 0], mean)
        log_total = logsumexp(log_rows, axis=(2, 3))
        share = np.exp(log_rows - log_total[:, :, None, None])
        means += [np.sum(share * values, axis=(2, 3)) for values in (V1, V2, np.log(mean))]
        log_weight += log_total
    return moments(log_weight, [U1[::2, ::2], U2[::2, ::2], *means])


@pytest.mark.parametrize("moves", [(), ("scale",)])
def test_unknown_profiles(moves):
    structure = power_model(
        PAIR_X, 2, inverse_gamma(SHAPE_W, SCALE_W), inverse_gamma(SHAPE_H[:, None], SCALE_H[:, None])
    )
    draws = sample_composite(structure, SWEEPS, moves=moves, seed=2)
    W, H = np.log(draws["W"]), np.log(draws["H"])
    mean = np.log(draws["W"] @ draws["H"])[:, :, 0]
    columns = [H[:, 0, 0], H[:, 1, 0], W[:, 0, 0], W[:, 0, 1], mean[:, 0], W[:, 1, 0], W[:, 1, 1], mean[:, 1]]
    names = ["h1", "h2", "w11", "w12", "mean1", "w21", "w22", "mean2"]
    check_means(names, np.stack(columns, axis=1), np.array(by_unknown_W()))


# -- one of two components of W known --------------------------------------------------------------------------------

NEW_SHAPE, NEW_SCALE = 2.2, 1.0  # of the new weights
KNOWN_COMPONENTS = {
    "plain": (PROFILE, {}),
    "zeros, exposure and background": (np.array([0.8, 0.0]), {"exposure": EXPOSURE, "background": BESIDE}),
}


def check_beside_known(name, sweeps, **options):
    """Against the exact means of the logarithms."""
    profile, offsets = KNOWN_COMPONENTS[name]
    priors = inverse_gamma(NEW_SHAPE, NEW_SCALE), inverse_gamma(SHAPE_H[:, None], SCALE_H[:, None])
    structure = known_beside(power_model(PAIR_X, 2, *priors, **offsets), profile)
    exposure, background = offsets_of(structure)
    _, expected = quadrature(
        lambda f, mean: log_cell(PAIR_X[f, 0], exposure[f] * mean + background[f]),
        GRID,
        lambda w: log_prior(np.log(w), NEW_SHAPE, NEW_SCALE) - np.log(w),
        [lambda h, k=k: log_prior(np.log(h), SHAPE_H[k], SCALE_H[k]) - np.log(h) for k in range(2)],
        profile,
    )
    check_means(NAMES, statistics_of(sample_composite(structure, sweeps, seed=4, **options)), expected)


@pytest.mark.parametrize("moves", [(), MOVES])
@pytest.mark.parametrize("name", KNOWN_COMPONENTS)
def test_beside_a_known_component(name, moves):
    check_beside_known(name, SWEEPS // 4, moves=moves)


def moved_and_restored(move_free):
    """All components move, and the known one is put back: its activation has moved."""

    def move(moves, factors, given, priors, key, free):
        known = factors.Wt[0].copy()
        size = move_free(moves, factors, given, priors, key, slice(None))
        factors.Wt[0] = known
        return size

    return move


def test_moves_that_take_a_known_component_along_are_seen(monkeypatch):
    plant(monkeypatch, "Gibbs of powers: moves of components of which nothing is known", moved_and_restored)
    check_seen(lambda n: check_beside_known("plain", n), SWEEPS // 4)


# -- one component, W without a prior: integrated out by hand --------------------------------------------------------

FLAT_X = np.array([[2.5, 0.4, 1.2], [0.3, 0.9, 4.0]])
FLAT_SHAPE, FLAT_SCALE = np.array([[2.6, 1.9, 3.5]]), np.array([[0.7, 1.5, 1.0]])


def by_flat_W():
    """w_f | h ~ InverseGamma(N - 1, s_f), s_f = sum_n x_fn / h_n, whose constant is s_f^-(N - 1)."""
    fine = np.linspace(-5.0, 6.0, 89)
    U = np.meshgrid(fine, fine, fine, indexing="ij")
    sums = [sum(FLAT_X[f, n] * np.exp(-U[n]) for n in range(3)) for f in range(2)]
    log_weight = sum(log_prior(U[n], FLAT_SHAPE[0, n], FLAT_SCALE[0, n]) - 2 * U[n] for n in range(3))
    log_weight -= 2 * sum(np.log(s) for s in sums)
    return moments(log_weight, [*U, *(np.log(s) - digamma(2) for s in sums)])


def check_flat(**options):
    structure = power_model(FLAT_X, 1, None, inverse_gamma(FLAT_SHAPE, FLAT_SCALE))
    draws = sample_composite(structure, SWEEPS, seed=3, **options)
    table = np.concatenate([np.log(draws["H"])[:, 0], np.log(draws["W"])[:, :, 0]], axis=1)
    check_means(["h1", "h2", "h3", "w1", "w2"], table, np.array(by_flat_W()))


@pytest.mark.parametrize("moves", [(), ("scale",)])
def test_profiles_without_a_prior(moves):
    check_flat(moves=moves)


WRONG = {
    "a flat factor's shape as if it had a density 1 / w": lambda given: given._replace(shape_w=given.shape_w + 1),
    "the scale's law without a flat factor's cells": lambda given: given._replace(tilt=given.tilt - 2.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_flat_factor_is_seen(name, monkeypatch):
    plant(monkeypatch, "Gibbs of powers: conditionals", lambda right: lambda *arguments: WRONG[name](right(*arguments)))
    with pytest.raises(AssertionError, match="gate 2"):
        check_flat()
