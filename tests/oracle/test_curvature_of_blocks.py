"""Newton steps from sums over cells against their naive twins, and the bound by which they can't lose."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.counts import curvature as pieces
from nmf_zoo.inference.counts.curvature import (
    CurvedSources,
    best_multiples,
    choose_active,
    n_active,
    n_pairs,
    step_by_curvature,
    without,
)
from nmf_zoo.inference.counts.newton import Penalty
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import compress
from nmf_zoo.kernels.counts.newton import FLOOR
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.counts import curvature as naive
from tests.structures import model

RNG = np.random.default_rng(11)
F, N, K = 23, 90, 6  # some features have more cells than the kernel takes at a time
W, Ht = RNG.gamma(0.5, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (N, K))
W[3, 2] = W[4, 0] = FLOOR
X = RNG.poisson(2.0 * RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 1.0, (K, N))).astype(float)
X[5] = 0.0
BACKGROUND = 0.2 * RNG.random((F, N))
LINEAR = Ht.sum(axis=0) + 0.3


def found(few, background, monkeypatch, factor=W, last=(W, W)):
    monkeypatch.setattr(pieces, "MOST_ACTIVE", 3 if few else 64)
    structure = model(X, K, None, None, background=BACKGROUND if background else None)
    side, sources = Side(structure.W, False), CurvedSources(structure, SERIAL, compress(structure, by_features=True))
    active = choose_active(side, *last, LINEAR[None])
    assert active.shape == (F, 3 if few else K)
    return active, *sources.gather_curved(factor, Ht, active, without(side, factor, active)), sources


def penalty_with(power, curve, linear=LINEAR):
    return Penalty(linear[None], np.full((1, K), power), curve=np.full((1, K), curve) if curve else None)


def moved(factor, active, statistics, curvature, power=0.0, curve=0.0, is_whole=False):
    plain = np.maximum((statistics.of_W + power) / LINEAR, FLOOR)
    penalty = penalty_with(power, curve)
    return step_by_curvature(SERIAL, plain, factor, statistics.of_W, curvature, active, penalty, is_whole), plain


@pytest.mark.parametrize("few", [False, True], ids=["all", "few"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("power", "curve"), [(0.0, 0.0), (0.7, 0.4)])
def test_steps_are_their_naive_twins(few, background, power, curve, monkeypatch):
    factor = np.maximum(W, 0.01) if power else W
    active, statistics, curvature, sources = found(few, background, monkeypatch, factor)
    expected = sources.gather(factor, Ht, "W")
    np.testing.assert_allclose(statistics.of_W, expected.of_W, rtol=1e-12)
    np.testing.assert_allclose(statistics.log_mean, expected.log_mean, rtol=1e-12)
    new, plain = moved(factor, active, statistics, curvature, power, curve)
    for f, u in enumerate(factor):
        offset = BACKGROUND[f] if background else 0.0
        square = naive.curvature(u, X[f], Ht, active[f], offset=offset)
        np.testing.assert_allclose(curvature[f], square[np.tril_indices(len(square))], rtol=1e-9, atol=1e-12)
        twin = naive.step(u, statistics.of_W[f], square, active[f], LINEAR, np.full(K, power), np.full(K, curve))
        others = np.setdiff1d(np.arange(K), active[f])
        np.testing.assert_array_equal(new[f, others], plain[f, others])
        np.testing.assert_allclose(new[f, active[f]], twin[active[f]], rtol=1e-6, atol=1e-90)


def test_rows_start_at_their_best_multiple(monkeypatch):
    """Along the ray through it nothing is left to gain, and steps do not know how far a row was from there."""
    factor, sizes = np.maximum(W, 0.01), RNG.choice([1e-4, 1e-2, 0.3, 5.0, 1e4], F)[:, None]
    for power, curve in ((0.0, 0.0), (0.7, 0.4), (0.7, 0.0)):
        active, statistics, curvature, _ = found(False, False, monkeypatch, factor)
        u = factor * best_multiples(factor, statistics.of_W, penalty_with(power, curve))[:, None]
        slopes = LINEAR + curve * u - (X / (u @ Ht.T)) @ Ht - power / u
        has_any = (X.sum(axis=1) > 0) | (power > 0)
        np.testing.assert_allclose(
            np.sum(u * slopes, axis=1)[has_any] / np.sum(u * LINEAR, axis=1)[has_any], 0, atol=1e-12
        )
        near, _ = moved(factor, active, statistics, curvature, power, curve, is_whole=True)
        _, statistics, curvature, _ = found(False, False, monkeypatch, sizes * factor)
        far, _ = moved(sizes * factor, active, statistics, curvature, power, curve, is_whole=True)
        np.testing.assert_allclose(far, near, rtol=1e-9)


def rows_after(rounds, few, monkeypatch, part=1.0):
    """(factor, losses) of repeated steps, none of which loses; from this part of the curvature."""
    factor, last, before = W, (W, W), None
    for _ in range(rounds):
        active, statistics, curvature, _ = found(few, False, monkeypatch, factor, last)
        loss = loss_of(factor)
        assert before is None or np.all(loss <= before + 1e-12 * np.abs(before)), "a row has lost"
        new, plain = moved(factor, active, statistics, part * curvature, is_whole=True)
        factor, last, before = new, (factor, plain), loss
    assert np.all(factor[5] == FLOOR)
    return factor, before


def test_no_row_loses_and_repeated_steps_reach_the_optimum(monkeypatch):
    """Where few components have second derivatives, what is missing in the end EM lacks, which moves the others."""
    factor, least = rows_after(60, False, monkeypatch)
    slopes = 1.0 - (X / (factor @ Ht.T)) @ Ht / LINEAR
    assert np.max(np.abs(np.minimum(factor, slopes))) < 1e-9
    _, of_few = rows_after(400, True, monkeypatch)
    by_em = W
    for _ in range(399):
        by_em = np.maximum(by_em * ((X / (by_em @ Ht.T)) @ Ht) / LINEAR, FLOOR)
    excess, of_em = of_few - least, loss_of(by_em) - least
    assert np.all(excess >= -1e-12 * np.abs(least))
    began_at_0 = np.any(W == FLOOR, axis=1)  # EM leaves these cells there
    assert np.sum(excess) < 1.1 * np.sum(of_em[~began_at_0])


def loss_of(factor):
    """(F,) of the rows."""
    return factor @ LINEAR - np.sum(np.where(X > 0, X * np.log(factor @ Ht.T), 0.0), axis=1)


def test_too_little_curvature_is_seen(monkeypatch):
    with pytest.raises(AssertionError, match="a row has lost"):
        rows_after(60, False, monkeypatch, part=0.25)


@pytest.mark.parametrize("rank", [1, 2, 10, 15, 16, 50, 400])
def test_curvature_takes_no_more_than_eight_arrays_like_w(rank):
    count = n_active(rank)
    assert n_pairs(count) <= pieces.MOST_PAIRS * rank
    assert count == rank or rank > 15
