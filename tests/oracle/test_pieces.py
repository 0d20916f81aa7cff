"""Whatever cuts rows, cells, times or draws into pieces, at lengths around a piece: nothing may be left out.

One entry of `PLACES` for each place in the package that cuts. A check compares its answer for ``length`` with one that
knows no pieces: a formula in NumPy, or the same work cut elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import digamma, gammaln

from nmf_zoo.inference.counts import em, em_losses, gibbs, online_em, sweeps, vb
from nmf_zoo.inference.counts import newton as newtons
from nmf_zoo.inference.counts.newton import Penalty
from nmf_zoo.inference.evidence import chib, posterior_runs, smc
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, draw_paths
from nmf_zoo.inference.hmm.recursions import Recursions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.inference.marginal import exact, importance
from nmf_zoo.inference.powers import em as power_em
from nmf_zoo.inference.powers import gibbs as power_gibbs
from nmf_zoo.inference.powers import vb as power_vb
from nmf_zoo.inference.shared import layout
from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.kernels.counts import sources as source_kernels
from nmf_zoo.kernels.hmm.basis_states import BinaryChain
from nmf_zoo.kernels.hmm.particles import guided_basis, guided_log_normal, guided_unit, proposal_scratch
from nmf_zoo.kernels.powers import composite_bound, itakura_saito
from nmf_zoo.kernels.powers import itakura_saito as power_kernels
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime import blocks
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Factorisation, even_bounds, slices, spans
from nmf_zoo.structure import factorisation as factorisations
from tests.naive.counts import newton as naive_newton
from tests.oracle import test_guided_basis, test_guided_log_normal, test_guided_unit
from tests.oracle import test_smoothing_sums as particle_sums
from tests.pieces import EXACT, Place, inputs, lengths_around, of_places
from tests.structures import gamma, inverse_gamma, model

KEY = seed_key(7)


@pytest.mark.parametrize("size", [1, 2, 7, 128])
@pytest.mark.parametrize("first", [0, 3])
def test_spans_hold_everything_once(size, first):
    for length in (0, *lengths_around(size)):
        found = [i for span in spans(first + length, size, first) for i in range(*span)]
        assert found == list(range(first, first + length))
        assert [slice(*span) for span in spans(first + length, size, first)] == list(
            slices(first + length, size, first)
        )
        assert all(last - begin <= size for begin, last in spans(first + length, size, first))


@pytest.mark.parametrize("n_pieces", [1, 2, 8])
def test_even_bounds_hold_everything_once(n_pieces):
    for length in lengths_around(n_pieces):
        bounds = even_bounds(length, n_pieces)
        assert len(bounds) == n_pieces + 1
        assert (bounds[0], bounds[-1]) == (0, length)
        assert set(np.diff(bounds)) <= {length // n_pieces, length // n_pieces + 1}


def newton_blocks(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, u, other = inputs(length, 3)
    linear, power, new = other.sum(axis=0), np.full(2, 0.3), u.copy()
    steps = newtons.BlockNewton(model(x, 2, None, None), SERIAL)
    residual, log_mean = steps.improve(0, new, other, Penalty(linear[None], power[None]))
    pieces = np.split(np.arange(length), np.arange(newtons.ROWS, length, newtons.ROWS))
    twin = [naive_newton.improve_block(u[rows], x[rows], other, linear, power, newtons.ROUNDS) for rows in pieces]
    np.testing.assert_allclose(new, np.concatenate(twin), rtol=1e-9)
    slopes = 1.0 - ((x / (u @ other.T)) @ other + power / u) / linear
    np.testing.assert_allclose(residual, np.abs(np.minimum(u / u.max(axis=0), slopes)).max(), **EXACT)
    np.testing.assert_allclose(log_mean, np.sum(x * np.log(new @ other.T)), **EXACT)


def dense_sources(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_CELLS", 1)  # so that blocks have their least height, 16 rows
    expected_sources_of(length, 3, lambda structure: layout.DenseSources(structure, SERIAL))


def chunks_of_dense_sources(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_CELLS", 1)
    expected_sources_of(length, 700, lambda structure: layout.DenseSources(structure, SERIAL))


def chunks_of_listed_sources(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 3)
    expected_sources_of(length, 3, listed_sources)


def rows_of_one_cell(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_sources_of(length, 1, listed_sources)


def cells_of_a_row(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_sources_of(length, length, listed_sources)


def listed_sources(structure: Factorisation) -> layout.SparseSources:
    return layout.SparseSources(structure, SERIAL)


def expected_sources_of(n_features: int, n_samples: int, way: Callable) -> None:
    x, W, Ht = inputs(n_features, n_samples)
    for table, left, right in ((x, W, Ht), (x.T, Ht, W)):
        found, ratios = way(model(table, 2, None, None)).gather(left, right), table / (left @ right.T)
        np.testing.assert_allclose(found.of_W, left * (ratios @ right), **EXACT)
        np.testing.assert_allclose(found.of_H, right * (ratios.T @ left), **EXACT)
        np.testing.assert_allclose(found.log_mean, np.sum(table * np.log(left @ right.T)), **EXACT)


def columns_of_squares(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(em_losses, "BLOCK_CELLS", 1)
    x, W, Ht = inputs(3, length)
    seen = np.random.default_rng(length).random(x.shape) < 0.7
    way = em_losses.DenseMatrix(model(x, 2, None, None, mask=seen, kind="normal", sigma=1.0))
    numerator, denominator, error = way.for_W(W, Ht)
    rest = np.where(seen, x - W @ Ht.T, 0.0)
    np.testing.assert_allclose(numerator, np.where(seen, x, 0.0) @ Ht, **EXACT)
    np.testing.assert_allclose(denominator, (seen * (W @ Ht.T)) @ Ht, **EXACT)
    np.testing.assert_allclose(error, np.sum(rest**2), **EXACT)
    np.testing.assert_allclose(way.for_H(W, Ht)[1], (seen * (W @ Ht.T)).T @ W, **EXACT)


def moments_of_gammas(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vb, "SMALL", 1)
    shape, rate, _ = inputs(length, 2)
    before = vb.point(np.ones(shape.shape))
    found = vb.moments_at(vb.Gamma(shape, rate), before, SERIAL)
    mean, log = shape / rate, digamma(shape) - np.log(rate)
    np.testing.assert_allclose(found.mean, mean, **EXACT)
    np.testing.assert_allclose(found.log, log, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.sums, [mean.sum(axis=0), log.sum(axis=0)], rtol=1e-9)
    np.testing.assert_allclose(found.change, np.max(np.abs(mean - 1.0) / mean.max(axis=0)), **EXACT)


def moments_of_inverse_gaussians(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rho, tau, _ = inputs(length, 2)
    structure = model(rho, 2, gamma(1.3, 0.4), None, kind="exponential")
    orders = power_vb.orders_of(power_vb.prepare(structure, power_vb.VB(), SERIAL).sides[0])
    ones = power_vb.GIGApproximation(np.ones(rho.shape), np.ones(rho.shape))
    whole = power_vb.moments_at(orders, power_vb.GIGParameters(rho, tau), ones, SERIAL)
    monkeypatch.setattr(power_vb, "SMALL", 1)
    found = power_vb.moments_at(orders, power_vb.GIGParameters(rho, tau), ones, SERIAL)
    np.testing.assert_array_equal(found.mean, whole.mean)
    np.testing.assert_array_equal(found.harmonic, whole.harmonic)
    np.testing.assert_allclose([found.height, *found.changes.flat], [whole.height, *whole.changes.flat], **EXACT)
    assert np.all(whole.harmonic < whole.mean)


def costs_of_rows(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    factor = np.random.default_rng(length).gamma(2.0, 1.0, (length, 1 << 15))
    terms = power_kernels.PriorTerms(*(np.full((1, 1 << 15), value) for value in (0.7, 0.3, 1.1)))
    expected = np.sum(0.7 * np.log(factor) + 0.3 / factor + 1.1 * factor)
    assert power_em.cost_of_rows(SERIAL, factor, terms) == pytest.approx(expected, rel=1e-10)


def frames_of_power_em(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look_of_power_em(5, length)


def chunks_of_power_em(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_em, "CHUNK_CELLS", 1)
    look_of_power_em(5, length)


def frequencies_of_power_em(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look_of_power_em(length, 5)


def look_of_power_em(n_features: int, n_samples: int) -> None:
    """The objective, what the frames say of W, and a step of H against NumPy."""
    x, W, Ht = inputs(n_features, n_samples)
    structure = model(x, 2, W, None, kind="exponential")
    problem = power_em.prepare(structure, em.EM(accelerate=None, update="monotone"), SERIAL)
    state, mean = power_em.look(problem, np.ascontiguousarray(W.T), Ht), W @ Ht.T
    np.testing.assert_allclose(state.objective, np.sum(np.log(mean) + x / mean), **EXACT)
    numerator, denominator = (x / mean**2).T @ W, (1.0 / mean).T @ W
    np.testing.assert_allclose(power_em.step(problem, state)[0].Ht, Ht * np.sqrt(numerator / denominator), **EXACT)
    turned = power_em.prepare(model(x, 2, None, Ht.T, kind="exponential"), em.EM(), SERIAL)
    of_W = power_em.look(turned, np.ascontiguousarray(W.T), Ht).of_W
    np.testing.assert_allclose(of_W.numerator.T, (x / mean**2) @ Ht, **EXACT)
    np.testing.assert_allclose(of_W.denominator.T, (1.0 / mean) @ Ht, **EXACT)


def frames_of_power_vb(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look_of_power_vb(5, length)


def chunks_of_power_vb(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_vb, "CHUNK_CELLS", 1)
    look_of_power_vb(5, length)


def frequencies_of_power_vb(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look_of_power_vb(length, 5)


def look_of_power_vb(n_features: int, n_samples: int) -> None:
    x, W, Ht = inputs(n_features, n_samples)
    problem = power_vb.prepare(model(x, 2, gamma(1.3, 0.4), gamma(1.3, 0.4), kind="exponential"), vb.VB(), SERIAL)
    q_W, q_H = (power_vb.GIGApproximation(value, 0.8 * value) for value in (W, Ht))
    m, low = W @ Ht.T, 0.64 * W @ Ht.T
    sums, fit = power_vb.look_at_features(problem, q_W, q_H)
    np.testing.assert_allclose(fit, -np.sum(np.log(m) + x / low), **EXACT)
    np.testing.assert_allclose(sums.arithmetic, (1.0 / m) @ Ht, **EXACT)
    np.testing.assert_allclose(sums.harmonic, (x / low**2) @ (0.8 * Ht), **EXACT)
    of_H = power_vb.look_at_frames(problem, q_W, q_H)
    np.testing.assert_allclose(of_H.arithmetic, (1.0 / m).T @ W, **EXACT)
    np.testing.assert_allclose(of_H.harmonic, (x / low**2).T @ (0.8 * W), **EXACT)


def chunks_of_power_gibbs(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, _ = inputs(3, length)
    structure = model(x, 2, inverse_gamma(2.0, 1.0), inverse_gamma(2.0, 1.0), kind="exponential")
    start = {"W": np.full((3, 2), 0.9), "H": np.full((2, length), 1.1)}
    whole = steps_of(power_gibbs, structure, gibbs.Gibbs(trajectories="never"), start)
    monkeypatch.setattr(power_gibbs, "CHUNK_CELLS", 1)
    found = steps_of(power_gibbs, structure, gibbs.Gibbs(trajectories="never"), start)
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


def blocks_of_trajectories(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for n_cells in (1, 1 << 20):
        width = sweeps.block_width(length, n_cells)
        table = np.random.default_rng(length).random((length, 2))
        blocks = sweeps.blocks_of(table, width, np.nan)
        flat = blocks.transpose(0, 2, 1).reshape(-1, 2)
        np.testing.assert_array_equal(flat[:length], table)
        assert np.all(np.isnan(flat[length:]))
        assert width % sweeps.LANES == 0
        assert (len(blocks) - 1) * width < length


def chunks_of_tempered_chains(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of the prior by particle, as in a larger population; and their log-likelihoods."""
    x, _, _ = inputs(3, 2)
    structure, populations = model(x, 2, gamma(1.5, 0.7), gamma(1.5, 0.7)), []
    problem = smc.prepare(structure)
    for n in (length, 3 * smc.CHAINS):
        population = smc.empty_population(problem, n)
        for part in population:
            part[:] = np.nan
        smc.draw_prior(problem, population, SERIAL, seed_key(1))
        populations.append(population)
    for one, other in zip(*populations, strict=True):
        np.testing.assert_array_equal(one, other[:length])
        assert np.all(np.isfinite(one))


def sweeps_of_evidence(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list(blocks.equal_blocks(0, length, length, 1, False, posterior_runs.SWEEPS))
    assert [n for block in made for n in range(block.first, block.stop)] == list(range(2 * length))
    assert sum(block.kept for block in made) == length


def cells_of_shares(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chib, "CHUNK", 4)
    x, W, Ht = inputs(length, 1)
    shares = chib.share_sources(layouts.compress(model(x, 2, None, None)), posterior_runs.FactorPair(W, Ht))
    np.testing.assert_array_equal(shares[0].sum(axis=1), x[:, 0])
    np.testing.assert_array_equal(shares[0].sum(axis=0), shares[1][0])


def tasks_of_marginals(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact values and estimates of every sample are its own, however samples are shared out."""
    monkeypatch.setattr(exact, "MOST_TASKS", 4)
    monkeypatch.setattr(exact, "SHORTEST", 1e-12)
    monkeypatch.setattr(importance, "TASK_NONZEROS", 4)
    x, W, _ = inputs(2, length)
    for function, options in (
        (exact.log_likelihoods, {}),
        (importance.estimate_log_likelihoods, {"draws": 4, "key": seed_key(3)}),
    ):
        values = []
        for table in (x, x[:, :1]):
            samples = exact.observe(model(table, 2, W, gamma(1.5, 0.7)))
            found = function(samples, W, *np.full((2, table.shape[1], 2), [[[1.5]], [[0.7]]]), **options)
            values.append(getattr(found, "log_likelihood", found))
        assert values[0].shape == (length,)
        assert np.all(np.isfinite(values[0]))
        np.testing.assert_array_equal(values[0][:1], values[1])


def blocks_of_exact_chains(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, W, _ = inputs(2, length)
    samples = read_samples(model(x, 2, W, None, background=0.3))
    values = []
    for block in (4, length + 1):
        found = Recursions(
            samples.counts(W), samples.base, W, BinaryChain(*np.array([[0.9, 0.6], [0.7, 0.5], [0.3, 0.8]])), block
        )
        total, _, sums = found.smooth()
        paths, best = found.draw_paths(20, seed_key(2))[2], found.best_path()
        values.append([total, found.log_likelihood()[0], *sums, paths, best[0], best[2]])
    for one, other in zip(*values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def blocks_of_particles(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, W, _ = inputs(4, length, 3)
    values = []
    for block in (4, length + 1):
        target = particle_sums.Target(particle_sums.counts_of(x, weight_sums=W.sum(axis=0)[None]), W, np.full(4, 0.2),
                                      particle_sums.law_of(particle_sums.UNIT))  # fmt: skip
        filtering = ParticleFilter(target, particle_sums.FilterPlan(0, 0, 0.5), 20, block=block)
        total, _, population = filtering.run(seed_key(4))
        paths = draw_paths(filtering, 5, seed_key(5), 0, block)
        values.append([total, filtering.track.means, population.cloud.h, paths.h])
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)


def cells_of_a_structure(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factorisations, "CHUNK", 4)
    monkeypatch.setattr(layouts, "CHUNK", 4)
    x, W, Ht = inputs(1, length)
    structure, mean = model(x, 2, None, None), W @ Ht.T
    assert structure.is_integer
    assert not model(np.where(np.arange(length) == length - 1, 1.5, x), 2, None, None).is_integer
    np.testing.assert_allclose(structure.mean_at(W, Ht.T, *np.nonzero(x)), mean.ravel(), **EXACT)
    cells = x * np.log(mean) - mean - gammaln(x + 1)
    np.testing.assert_allclose(structure.log_likelihood(W, Ht.T, {}), cells.sum(), **EXACT)
    np.testing.assert_allclose(layouts.likelihood_constant(structure), -gammaln(x + 1).sum(), **EXACT)


def columns_of_streams(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Columns(NamedTuple):
        indptr: np.ndarray
        n_columns: int

    monkeypatch.setattr(online_em, "CHUNK_NUMBERS", 4)
    for cells in (np.ones(length), np.zeros(length), np.arange(length) % 7):
        bounds = online_em.cut(Columns(np.concatenate([[0], np.cumsum(cells)]).astype(np.int64), length), 1)
        assert [n for first, last in bounds for n in range(first, last)] == list(range(length))


def particles_that_look_ahead(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A particle's look is its own: the same where the particles stand in another order. All of them move."""
    for tests, guided, features in LOOKS:
        population, rank = tests.population_of(3, length), 3
        W = np.random.default_rng(length).gamma(1.0, 3.0, (features, rank))
        x = np.random.default_rng(length).poisson(W.sum(axis=1, keepdims=True) * [0.5, 0.5]) + 1.0
        target, looks = tests.target_of(x, W, *([0.2, 0.7] if guided is guided_log_normal else [])), []
        for order in (np.arange(length), np.arange(length)[::-1]):
            moved = population._replace(
                cloud=type(population.cloud)(*(np.ascontiguousarray(part[:, order]) for part in population.cloud)),
                log_weights=population.log_weights[order].copy(),
                look=np.full(length, np.nan),
                ancestors=np.arange(length),
                increments=np.full(length, np.nan),
            )
            moved.other.h[:] = np.nan
            guided.look(moved.ahead, moved, target, 1)
            guided.propose(moved.ahead, moved, target, 1, KEY)
            looks.append(moved.look[order])
            assert np.all(np.isfinite(moved.increments))
            assert np.all(np.isfinite(moved.other.h))
        np.testing.assert_allclose(*looks, rtol=1e-8, atol=1e-8)


LOOKS = [
    (test_guided_basis, guided_basis, 5),
    (test_guided_unit, guided_unit, 5),
    (test_guided_log_normal, guided_log_normal, 5),
]


PLACES = {
    "EM's Newton steps: rows of a block": Place(newtons.ROWS, newton_blocks),
    "dense sources: rows of a block": Place(16, dense_sources),
    "dense sources: chunks": Place(layouts.MOST_CHUNKS, chunks_of_dense_sources),
    "listed sources: chunks": Place(layouts.MOST_CHUNKS, chunks_of_listed_sources),
    "listed sources: rows of one cell": Place(source_kernels.BLOCK, rows_of_one_cell),
    "listed sources: cells of a row": Place(source_kernels.BLOCK, cells_of_a_row),
    "squared error: columns of a block": Place(16, columns_of_squares),
    "moments of gammas: chunks": Place(layouts.MOST_CHUNKS, moments_of_gammas),
    "moments of inverse Gaussians: chunks": Place(layouts.MOST_CHUNKS, moments_of_inverse_gaussians),
    "costs under a prior: chunks": Place(layouts.MOST_CHUNKS, costs_of_rows),
    "EM of powers: frames of a block": Place(itakura_saito.FRAMES, frames_of_power_em),
    "EM of powers: chunks": Place(layouts.MOST_CHUNKS * itakura_saito.FRAMES, chunks_of_power_em),
    "EM of powers: frequencies of a tile": Place(
        len(itakura_saito.WIDTH) * itakura_saito.LANES, frequencies_of_power_em
    ),
    "EM of powers: factors of a product": Place(power_kernels.MOST_FACTORS, frequencies_of_power_em),
    "VB of powers: frames of a block": Place(composite_bound.BLOCK, frames_of_power_vb),
    "VB of powers: chunks": Place(layouts.MOST_CHUNKS, chunks_of_power_vb),
    "VB of powers: frequencies of a tile": Place(composite_bound.TILE, frequencies_of_power_vb),
    "Gibbs on powers: chunks": Place(power_gibbs.MOST_CHUNKS, chunks_of_power_gibbs),
    "trajectories: rows of a narrow block": Place(sweeps.NARROWEST, blocks_of_trajectories),
    "trajectories: rows of a wide block": Place(sweeps.WIDEST, blocks_of_trajectories),
    "SMC for evidence: chains of a chunk": Place(smc.CHAINS, chunks_of_tempered_chains),
    "Chib's sweeps": Place(posterior_runs.SWEEPS, sweeps_of_evidence),
    "whole counts shared out: cells": Place(4, cells_of_shares),
    "marginal likelihoods: tasks": Place(4, tasks_of_marginals),
    "binary chains: times of a block": Place(4, blocks_of_exact_chains),
    "particles: times of a block": Place(4, blocks_of_particles),
    "particles that look ahead: of a tile": Place(proposal_scratch.TILE, particles_that_look_ahead),
    "a structure's cells": Place(4, cells_of_a_structure),
    "streams of counts: columns of a chunk": Place(4, columns_of_streams),
}


@of_places(PLACES)
def test_no_piece_is_left_out(place, length, monkeypatch):
    PLACES[place].check(length, monkeypatch)


# -- whole engines: rows without an observed cell, appended, move every end and change nothing -------------------------


def steps_of(engine: Any, structure: Factorisation, options: Any, start: Mapping[str, np.ndarray], n: int = 2) -> list:
    """W (F, K) and Ht (N, K) after ``n`` steps."""
    problem = engine.prepare(structure, options, SERIAL)
    state = engine.init(problem, child(KEY, 0), start)
    for sweep in range(n):
        state, _ = engine.step(problem, state, child(KEY, 1, sweep))
    factors = [state.Wt.T if hasattr(state, "Wt") else state.W, state.Ht if hasattr(state, "Ht") else state.H]
    return [np.array(getattr(factor, "mean", factor) if isinstance(factor, tuple) else factor) for factor in factors]


PLAIN_GIBBS, WALKING = (gibbs.Gibbs(moves=(), trajectories=word) for word in ("never", "always"))
RUNS = {
    "em, Newton": (em, em.EM(), "poisson", newtons.ROWS),
    "em, momentum": (em, em.EM(accelerate="momentum"), "poisson", 16),
    "em, float32": (em, em.EM(precision="float32"), "poisson", 16),
    "em, squared error": (em, em.EM(), "normal", 16),
    "em, powers": (power_em, em.EM(update="heuristic"), "exponential", itakura_saito.FRAMES),
    "em, powers by component": (power_em, em.EM(update="sage"), "exponential", itakura_saito.FRAMES),
    "vb": (vb, vb.VB(), "poisson", 16),
    "vb, powers": (power_vb, vb.VB(), "exponential", composite_bound.TILE),
    "gibbs": (gibbs, PLAIN_GIBBS, "poisson", 16),
    "gibbs, powers": (power_gibbs, PLAIN_GIBBS, "exponential", 8),
}

# Rows that are solved side by side stop together, one without data later or earlier than the others.
ROUNDING = {"em, Newton": 1e-6, "em, float32": 1e-5}


@pytest.mark.parametrize("of_features", [True, False], ids=["features", "samples"])
@pytest.mark.parametrize(("run", "length"), [(run, n) for run in RUNS for n in lengths_around(RUNS[run][3])])
def test_rows_without_data_change_nothing(run, length, of_features):
    engine, options, kind, size = RUNS[run]
    x, W, Ht = inputs(2 * size + 4, 5)
    prior = inverse_gamma(2.0, 1.0) if kind == "exponential" else gamma(1.5, 0.7)
    found = []
    for n in (length, length + 3):
        table, start, seen = x[:n], {"W": W[:n], "H": Ht.T}, np.arange(n)[:, None] < np.full(5, length)
        if not of_features:
            table, start, seen = table.T, {"W": Ht, "H": W[:n].T}, seen.T
        structure = model(table, 2, prior, prior, mask=seen, kind=kind, sigma=1.0 if kind == "normal" else None)
        factors = steps_of(engine, structure, options, start)
        found.append([factors[1 - of_features][:length], factors[of_features]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=ROUNDING.get(run, 1e-9))
