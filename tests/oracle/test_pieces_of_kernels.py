"""As test_pieces.py: lanes and tiles of kernels, and what streams and chains of sweeps cut."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from nmf_zoo.inference.counts import gibbs as gibbs_engine
from nmf_zoo.inference.counts import online_em
from nmf_zoo.inference.powers import online_em as online_powers
from nmf_zoo.inference.shared import layout
from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.kernels.counts import gibbs
from nmf_zoo.kernels.hmm.particles import smoothing_sums
from nmf_zoo.kernels.powers import frame_splits
from nmf_zoo.kernels.random import counts
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime import blocks as run_blocks
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.streaming.columns import block_of_data
from nmf_zoo.structure import factorisation as factorisations
from tests.naive.hmm.particles import smoothing_sums as naive_particles
from tests.naive.powers import frame_gibbs as naive_frames
from tests.oracle import test_frame_gibbs as frame_tests
from tests.oracle import test_gibbs_kernels as gibbs_tests
from tests.oracle import test_smoothing_sums as sum_tests
from tests.pieces import EXACT, Place, inputs, of_places
from tests.structures import gamma, inverse_gamma, model

KEY = seed_key(7)


def sums_of_particles(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected over where the particles come from, by every smoother, against dense matrices of pairs."""
    monkeypatch.setattr(sum_tests, "N", length)
    for kind in sum_tests.KINDS.values():
        law, rng = sum_tests.law_of(kind), np.random.default_rng(length)
        clouds = [sum_tests.cloud_of(kind, rng, length) for _ in range(2)]
        weights = [rng.dirichlet(np.ones(length)) for _ in range(2)]
        first = sum_tests.make_population(sum_tests.K, length)._replace(
            cloud=clouds[0], log_weights=np.log(weights[0]), weights=weights[0], ancestors=np.arange(length)
        )
        second = first._replace(cloud=clouds[1], other=clouds[0], log_weights=np.log(weights[1]), weights=weights[1])
        for smoother in sum_tests.SMOOTHERS_AND_MORE.values():
            carried = sum_tests.make_carried(kind, sum_tests.W.shape, length, smoother, sum_tests.F)
            sum_tests.begin_sums(carried, first, law, 1.0)
            target = sum_tests.Target(sum_tests.counts_of(sum_tests.X), sum_tests.W, sum_tests.BASE, law)
            sum_tests.add_sample(carried, first, target, sum_tests.WEIGHT[:, 0], 1.0, 0)
            sum_tests.carry(carried, smoother, second, law, 0.7, 0.3, KEY)
            naive = naive_particles.Sums(clouds[0], law, 1.0)
            naive.add(clouds[0], sum_tests.X[:, 0], sum_tests.WEIGHT[:, 0], sum_tests.BASE, sum_tests.W, 1.0)
            shares = sum_tests.shares_of(smoother, carried, second, first.log_weights, law)
            naive.carry(clouds[1], clouds[0], shares, 0.7, 0.3)
            parts = naive.activations, naive.sources, naive.pairs, naive.first
            found, sums = carried.scale[0] * carried.table, np.zeros(len(carried.table))
            np.testing.assert_allclose(
                found, np.concatenate([part.reshape(-1, length) for part in parts]), rtol=1e-9, atol=1e-12
            )
            sum_tests.total_sums(sums, carried, second.weights)
            np.testing.assert_allclose(sums, found @ second.weights, rtol=1e-11)


def chunks_of_gibbs_sources(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are keyed by cell and their sums are of integers: chunks change no bit."""
    x, W, Ht = inputs(length, 3)
    found = []
    for chunk in (layouts.CHUNK_NONZEROS, 1):
        monkeypatch.setattr(layouts, "CHUNK_NONZEROS", chunk)
        layout = layouts.compress(model(x, 2, gamma(1.5, 0.7), gamma(1.5, 0.7)))
        state = gibbs_engine.GibbsState(W, Ht, {}, np.full_like(W, np.nan), np.full_like(Ht, np.nan), None)
        gibbs_engine.draw_sources(layout, layouts.by_count(layout), SERIAL, state, KEY)
        found.append((state.of_features, state.of_samples))
    assert layout.n_chunks == min(layouts.MOST_CHUNKS, x.size)
    for one, other, axis in zip(*found, (1, 0), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one.sum(axis=1), x.sum(axis=axis))


def components_of_an_allocation(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts shared out among so many components, in SIMD lanes and one by one."""
    x, W, Ht = inputs(5, 3, length)
    layout = layouts.compress(model(x, length, gamma(1.0, 1.0), gamma(1.0, 1.0)))
    lanes, one_by_one = (
        gibbs_tests.allocate_all(way.allocate_sources, layout, W, Ht, way.make_scratch)
        for way in (gibbs_tests.IN_LANES, gibbs_tests.BY_CELL)
    )
    for one, other in zip(lanes, one_by_one, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(lanes[0].sum(axis=1), x.sum(axis=1))
    np.testing.assert_array_equal(lanes[1].sum(axis=1), x.sum(axis=0))


def cells_of_a_shear(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    giver, taker = np.random.default_rng(length).gamma(2.0, 1.0, (2, length))
    assert gibbs._sum(giver) == pytest.approx(giver.sum(), rel=1e-13)
    ratios = np.full(length, np.nan)
    assert gibbs.divide_rows(giver, taker, ratios) == pytest.approx(np.min(taker / giver), rel=1e-13)
    np.testing.assert_allclose(ratios, giver / taker, rtol=1e-15)


def coins_of_a_word(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One coin more changes none of the others; coins that are sure are all heads, or none."""
    heads = [counts._toss_binomial(n, 0.4, KEY) for n in (length, length + 1)]
    assert heads[1] - heads[0] in (0, 1)
    assert counts._toss_binomial(length, 1.0 - 2.0**-53, KEY) == length
    assert counts._toss_binomial(length, 2.0**-60, KEY) == 0


def frequencies_of_a_frame(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws and sums of a frame against NumPy; frequencies that nobody observed change nothing."""
    rng, K = np.random.default_rng(length), 3
    weights, h, power = rng.gamma(1.0, size=(K, length)), rng.gamma(1.0, size=K), rng.exponential(size=length)
    padded = -(-length // frame_splits.LANES) * frame_splits.LANES
    wide, rest, left = np.ones((K, padded)), np.full((K + 1, padded), 0.2), np.ones(padded)
    wide[:, :length], left[:length], parts, sums = weights, power, np.full((K, padded), np.nan), np.empty(K)
    frame_splits.add_variances(rest, wide, h, padded)
    keys = np.array([child(KEY, k) for k in range(K)])
    frame_splits.split_power(parts, rest, wide, h, left, keys, padded)
    drawn = frame_tests.noise_of(keys, length)
    expected = naive_frames.relative_powers(power, frame_tests.variances(weights, h, 0.2), weights, h, *drawn)
    np.testing.assert_allclose(parts[:, :length], expected, rtol=1e-9, atol=1e-11)
    frame_splits.row_sums(sums, parts, length)
    np.testing.assert_allclose(sums, expected.sum(axis=1), rtol=1e-9)
    frame_splits.weighted_sums(sums, wide, left, length)
    np.testing.assert_allclose(sums, weights @ left[:length], rtol=1e-12)
    for leaps in (0, 2):
        alone = frame_tests.run_frames(power, weights.T, copies=2, sweeps=110, leaps=leaps)
        more = np.append(power, [np.inf] * 3), np.vstack([weights.T, np.ones((3, K))]), np.arange(length + 3) < length
        found = frame_tests.run_frames(*more, copies=2, sweeps=110, leaps=leaps)
        for name in ("mean", "square", "share"):
            np.testing.assert_array_equal(found[name][:, : alone[name].shape[1]], alone[name])


def frames_of_streams(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-batch in chunks of frames is one without, draw for draw."""
    x, W, _ = inputs(3, length)
    structure, found = model(x, 2, None, inverse_gamma(2.0, 1.0), kind="exponential"), []
    options, engine = online_powers.SimulatedOnlineEM(sweeps=6, keep=3), online_powers.STREAM
    for work in (online_powers.CHUNK_WORK, 4 * W.size * options.sweeps):
        monkeypatch.setattr(online_powers, "CHUNK_WORK", work)
        problem, frames = engine.prepare(structure, options, SERIAL), block_of_data(structure, engine)
        state, _ = engine.update(problem, engine.init(problem, frames, KEY, {"W": W}), frames, KEY)
        found.append([state.Wt, state.statistics, state.counts, state.inverse])
        found[-1] += engine.activations(problem, state, frames, KEY).values()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    np.testing.assert_allclose(found[0][2], length * (1.0 + options.offset) ** -options.exponent / length)


def chunks_side_by_side(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-batch of so many chunks, of one column each, is that of one chunk."""
    x, W, _ = inputs(3, length)
    structure, found, engine = model(x, 2, None, gamma(1.5, 0.7)), [], online_em.STREAM
    columns = block_of_data(structure, engine)
    for numbers in (online_em.CHUNK_NUMBERS, 1):
        monkeypatch.setattr(online_em, "CHUNK_NUMBERS", numbers)
        problem = engine.prepare(structure, online_em.OnlineEM(start_columns=0), SERIAL)
        state, _ = engine.update(problem, engine.init(problem, columns, KEY, {"W": W}), columns, KEY)
        means = engine.activations(problem, state, columns, KEY)["mean"]
        found.append([engine.finish(problem, state)[0]["W"], means])
        assert engine.seen(state) == length
    assert len(online_em.cut(columns, 2)) == length
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    assert np.abs(found[0][0] / W - 1.0).max() > 0.01


def cells_of_a_rescue(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells whose means underflow."""
    monkeypatch.setattr(layout, "CHUNK", 4)
    x, W, Ht = inputs(1, length)
    way = layout.DenseSources(model(x, 2, None, None), SERIAL)
    found = way.gather(1e-200 * W, 1e-200 * Ht)
    ratios = x / (W @ Ht.T)
    np.testing.assert_allclose(found.of_W, W * (ratios @ Ht), rtol=1e-9)
    np.testing.assert_allclose(found.of_H, Ht * (ratios.T @ W), rtol=1e-9)
    np.testing.assert_allclose(found.log_mean, np.sum(x * (np.log(W @ Ht.T) + 2 * np.log(1e-200))), rtol=1e-9)


def rows_of_a_structure(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factorisations, "CHUNK", 1)
    monkeypatch.setattr(layouts, "CHUNK", 4)
    x, W, Ht = inputs(length, 1)
    constant = layouts.likelihood_constant(model(x, 2, None, None, exposure=2.0))
    np.testing.assert_allclose(constant, np.sum(x * np.log(2.0) - gammaln(x + 1)), **EXACT)
    turned = model(x.T, 2, None, None, exposure=np.arange(1.0, length + 1)[None], background=0.2)
    parts = list(turned.column_blocks(4))
    assert [n for part in parts for n in range(length)[part]] == list(range(length))
    mean = np.arange(1.0, length + 1) * (Ht @ W.T) + 0.2
    np.testing.assert_allclose(turned.total_mean(Ht, W.T), mean.sum(), **EXACT)
    cells = x.T * np.log(mean) - mean - gammaln(x.T + 1)
    np.testing.assert_allclose(turned.log_likelihood(Ht, W.T, {}), cells.sum(), **EXACT)


def sweeps_of_a_chain(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sweep comes once, and those are kept that steps of one would keep."""
    for tune, draws, thin in ((length, 3, 1), (3, length, 1), (length, length, 2), (0, length, 3)):
        found = list(run_blocks.blocks(0, tune, draws, thin, True, 4))
        assert [n for block in found for n in range(block.first, block.stop)] == list(range(tune + draws))
        assert all(block.stop - block.first <= 4 and block.tuning == (block.stop <= tune) for block in found)
        kept = [n for block in found for n in range(block.first, block.stop) if block.keeps(n)]
        assert kept == [*range(0, tune, thin), *range(tune, tune + draws, thin)]


PLACES = {
    "sums of particles: of a tile": Place(smoothing_sums.TILE, sums_of_particles),
    "sums of particles: lanes of a loop": Place(32, sums_of_particles),  # four vectors of 8
    "Gibbs on counts: chunks": Place(layouts.MOST_CHUNKS, chunks_of_gibbs_sources),
    "Gibbs on counts: components in lanes": Place(8, components_of_an_allocation),
    "Gibbs on counts: cells of a shear": Place(4, cells_of_a_shear),
    "binomial draws: coins of a word": Place(64, coins_of_a_word),
    "frames: frequencies in lanes": Place(frame_splits.LANES, frequencies_of_a_frame),
    "streams of powers: frames of a chunk": Place(4, frames_of_streams),
    "streams of counts: chunks side by side": Place(online_em.SIDE_BY_SIDE, chunks_side_by_side),
    "means that underflow: cells": Place(4, cells_of_a_rescue),
    "a structure's rows and columns": Place(4, rows_of_a_structure),
    "sweeps of a chain": Place(4, sweeps_of_a_chain),
}


@of_places(PLACES)
def test_no_piece_is_left_out(place, length, monkeypatch):
    PLACES[place].check(length, monkeypatch)
