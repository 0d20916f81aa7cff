"""The normal density from the curvature: against finite differences, a dense matrix and the moments of its draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from nmf_zoo.inference.evidence import curvature
from nmf_zoo.inference.evidence.bridging import effective_share
from nmf_zoo.inference.evidence.posterior_runs import FactorPair, LogJoints, flatten, unflatten
from tests.structures import gamma, model

X = np.array([[6, 1, 0, 4], [2, 9, 3, 0], [0, 5, 7, 2]])
CASES = {
    "plain": model(X, 2, gamma(2.0, 1.0), gamma(3.0, 0.5)),
    "tall": model(X.T, 2, gamma(2.0, 1.0), gamma(3.0, 0.5)),
    "exposure, background, missing cells": model(
        X,
        2,
        gamma([[2.0, 4.0]], 1.0),
        gamma(3.0, [[0.5], [0.2]]),
        mask=[[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 1]],
        exposure=[[0.5], [2.0], [1.0]],
        background=0.3,
    ),
}


def at_mode(structure):
    start = FactorPair(np.ones(structure.W.shape), np.ones(structure.H.shape[::-1]) + np.eye(*structure.H.shape[::-1]))
    return curvature.at_mode(structure, start, np.random.default_rng(1))


def log_joint_of_roots(structure, normal):
    """log p of z, the scaled cube roots, (points, d) with the cells in the order of ``flatten``."""
    mode = flatten(structure, mode_of(normal))[0]
    log_joint = LogJoints(structure)

    def density(z):
        cells = mode * (1.0 + z / 3.0) ** 3
        volume = np.log(mode) + 2.0 * np.log1p(z / 3.0)  # dv / dz
        return log_joint(unflatten(structure, cells)) + volume.sum(axis=1)

    return density


def mode_of(normal):
    sides = (normal.long, normal.short) if normal.turned else (normal.short, normal.long)
    return FactorPair(*(side[None] for side in sides))


def dense_precision(structure, normal):
    """The arrow as one matrix, cells in the order of ``flatten``."""
    (S, K), L = normal.short.shape, len(normal.long)
    blocks = np.einsum("lij,lkj->lik", normal.arrow.blocks, normal.arrow.blocks)
    cross = np.einsum("lij,ljs->lis", blocks, normal.arrow.slopes)
    of_long = np.zeros((L, K, L, K))
    of_long[np.arange(L), :, np.arange(L), :] = blocks
    across = cross.reshape(L * K, S * K)
    of_short = normal.arrow.root @ normal.arrow.root.T + across.T @ normal.arrow.slopes.reshape(L * K, S * K)
    whole = np.block([[of_short, across.T], [across, of_long.reshape(L * K, L * K)]])
    order = np.roll(np.arange(len(whole)), -S * K) if normal.turned else np.arange(len(whole))
    return whole[np.ix_(order, order)]


@pytest.mark.parametrize("case", CASES)
def test_precision_is_the_curvature_at_the_mode(case):
    """Central differences of the log joint density, PyMC's constant and all."""
    structure = CASES[case]
    normal = at_mode(structure)
    density, precision = log_joint_of_roots(structure, normal), dense_precision(structure, normal)
    d, step = len(precision), 1e-3
    unit = step * np.eye(d)
    gradient = (density(unit) - density(-unit)) / (2.0 * step)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4 * np.sqrt(np.diag(precision)).max())
    pairs = (unit[:, None] + unit[None]).reshape(-1, d), (unit[:, None] - unit[None]).reshape(-1, d)
    curved = [density(each).reshape(d, d) + density(-each).reshape(d, d) for each in pairs]
    np.testing.assert_allclose(-(curved[0] - curved[1]) / (4.0 * step**2), precision, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_density_is_that_of_the_dense_matrix(case):
    structure = CASES[case]
    normal = at_mode(structure)
    drawn = normal.draw(50, np.random.default_rng(2))
    shift = flatten(structure, FactorPair(*(side[None] for side in normal.shift[:: -1 if normal.turned else 1])))[0]
    ratio = flatten(structure, drawn) / flatten(structure, mode_of(normal))[0]
    volume = np.sum(np.log(flatten(structure, mode_of(normal))[0]) + 2.0 / 3.0 * np.log(ratio), axis=1)
    plain = multivariate_normal(shift, np.linalg.inv(dense_precision(structure, normal)))
    np.testing.assert_allclose(normal.log_density(drawn), plain.logpdf(3.0 * np.cbrt(ratio) - 3.0) - volume, rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_draws_have_its_moments(case):
    normal = at_mode(CASES[case])
    z_s, z_l = normal.draw_centred(40_000, np.random.default_rng(3))
    both = (z_l, z_s) if normal.turned else (z_s, z_l)
    z = np.concatenate([side.reshape(len(side), -1) for side in both], axis=1)
    root = np.linalg.cholesky(dense_precision(CASES[case], normal))
    white = z @ root
    assert np.abs(white.mean(axis=0)).max() < 5.0 / np.sqrt(len(z))
    np.testing.assert_allclose(np.cov(white.T), np.eye(white.shape[1]), atol=5.0 * np.sqrt(2.0 / len(z)))


def test_the_shift_brings_it_nearer():
    """To the posterior of many cells, which is what it is for: more of its draws count."""
    rng = np.random.default_rng(4)
    W, H = rng.gamma(20.0, 0.05, size=(12, 3)), rng.gamma(20.0, 0.5, size=(3, 40))
    structure = model(rng.poisson(W @ H), 3, gamma(60.0, 60.0), gamma(60.0, 6.0))
    shares = []
    for moved in (True, False):
        normal = curvature.at_mode(structure, FactorPair(W, np.ascontiguousarray(H.T)), np.random.default_rng(1))
        if not moved:
            normal.shift = tuple(np.zeros_like(side) for side in normal.shift)
        drawn = normal.draw(2000, rng)
        shares.append(effective_share(LogJoints(structure)(drawn) - normal.log_density(drawn)))
    assert shares[0] > 2.0 * shares[1]


def test_cells_that_may_be_0_have_none():
    assert at_mode(model(X, 2, gamma(0.5, 1.0), gamma(3.0, 0.5))) is None


def test_only_where_its_matrices_have_room():
    assert curvature.has_curvature(CASES["plain"])
    assert not curvature.has_curvature(model(X, 2, np.ones((3, 2)), gamma(1.0, 1.0)))
    assert not curvature.has_curvature(model(np.ones((160, 170)), 10, gamma(1.0, 1.0), gamma(1.0, 1.0)))
