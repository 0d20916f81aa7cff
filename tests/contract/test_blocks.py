"""Blocks of sweeps in one call draw what sweeps one by one draw, bit for bit, whatever the model and the options."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import gibbs, sweeps
from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.blocks import Block, run_block
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells, Imputed
from tests.structures import gamma, model, unknown

KEY = seed_key(3)
RNG = np.random.default_rng(3)
SHAPE, RANK = (5, 8), 3
X = RNG.poisson(3.0, SHAPE).astype(float)
MASK = RNG.random(SHAPE) < 0.7
EXPOSURE, BACKGROUND = RNG.gamma(2.0, 0.5, SHAPE), RNG.gamma(1.0, 1.0, SHAPE)
ROWS, COLS = np.nonzero(MASK)
MISSING = Imputed(name="X_unobserved", rows=np.nonzero(~MASK)[0], cols=np.nonzero(~MASK)[1])
LISTED = Cells(rows=ROWS, cols=COLS, values=X[ROWS, COLS], shape=SHAPE, is_complete=False)
SPARSE = Cells(rows=ROWS, cols=COLS, values=X[ROWS, COLS], shape=SHAPE, is_complete=True)
FIXED = RNG.gamma(1.0, 1.0, SHAPE)
FULL = gamma(RNG.gamma(2.0, 1.0, (SHAPE[0], RANK)), RNG.gamma(2.0, 1.0, (1, RANK)))


def plain(x=X, prior_w=None, prior_h=None, **options):
    return model(x, RANK, prior_w or gamma(1.3, 0.8), prior_h or gamma(0.9, 0.5), **options)


MODELS = {
    "plain": plain(),
    "tall": plain(X.T),
    "one component": model(X, 1, gamma(1.3, 0.8), gamma(0.9, 0.5)),
    "large counts": plain(X * 1000),
    "small shapes": plain(prior_w=gamma(0.1, 0.2), prior_h=gamma(0.02, 0.3)),
    "every cell its own": plain(prior_w=FULL),
    "mask": plain(mask=MASK),
    "exposure": plain(exposure=EXPOSURE),
    "exposure of features": plain(exposure=EXPOSURE[:, :1]),
    "exposure of samples": plain(exposure=EXPOSURE[:1]),
    "background": plain(background=BACKGROUND),
    "everything": plain(mask=MASK, exposure=EXPOSURE, background=BACKGROUND, prior_w=FULL),
    "listed cells": plain(data=LISTED, exposure=EXPOSURE),
    "sparse counts": plain(data=SPARSE),
    "W fixed": model(X, 8, FIXED, gamma(0.9, 0.5)),
    "H fixed": model(X.T, 8, gamma(0.9, 0.5), FIXED.T[:8, :5], mask=MASK.T),
    "W flat": model(X, 2, None, gamma(2.0, 0.5)),
    "missing cells drawn": dataclasses.replace(
        plain(mask=MASK, exposure=EXPOSURE, background=BACKGROUND), imputed=MISSING
    ),
    "transposed variables": dataclasses.replace(plain(), H=dataclasses.replace(plain().H, transposed=True)),
}
MOVES = [(), ("scale",), ("shear",), ("scale", "shear")]
SWEEPS = 12


def run_in_blocks(structure, moves, bounds, base=2, thin=3, engine=gibbs.ENGINE, tune=0, trajectories="always"):
    """State and kept draws of the sweeps, cut at ``bounds``; the first ``tune`` are the warm-up."""
    options = gibbs.Gibbs(moves=moves, trajectories=trajectories)
    problem = gibbs.prepare(structure, options, SERIAL)
    state, kept = gibbs.init(problem, child(KEY, 0), {}), []
    for first, stop in pairwise(bounds):
        state, values, stats = run_block(engine, problem, state, KEY, Block(first, stop, base, thin, first < tune))
        kept += [{**values, **stats}] if stats else []
    return state, {name: np.concatenate([one[name] for one in kept]) for name in kept[0]}


def arrays_of(state):
    """Every array of a state."""
    if isinstance(state, tuple):
        return [array for part in state for array in arrays_of(part)]
    return [state] if isinstance(state, np.ndarray) else []


def assert_same(one, other):
    for left, right in zip(arrays_of(one[0]), arrays_of(other[0]), strict=True):
        np.testing.assert_array_equal(left, right)
    assert list(one[1]) == list(other[1])
    for name, array in one[1].items():
        assert array.dtype == other[1][name].dtype
        np.testing.assert_array_equal(array, other[1][name], err_msg=name)


def steps_alone():
    """Gibbs without its own way to run blocks."""
    return dataclasses.replace(gibbs.ENGINE, run=None, tune=gibbs.tune)


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("name", MODELS)
def test_a_block_equals_its_sweeps(name, moves):
    structure = MODELS[name]
    one = run_in_blocks(structure, moves, [0, SWEEPS])
    assert_same(one, run_in_blocks(structure, moves, [0, 1, 4, 5, 11, SWEEPS]))
    assert_same(one, run_in_blocks(structure, moves, [0, SWEEPS], engine=steps_alone()))
    assert_same(one, run_in_blocks(structure, moves, list(range(SWEEPS + 1)), engine=steps_alone()))
    assert len(one[1]["lp"]) == 4
    values = {name: array[-1] for name, array in one[1].items() if name in ("W", "H", "X_unobserved")}
    np.testing.assert_allclose(one[1]["lp"][-1], structure.log_joint(values), rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_with_trajectories_equal_their_sweeps(name):
    """Plain sweeps, two windows of adaptation, frozen trajectories and the allocations among them."""
    structure, tune, stop = MODELS[name], 210, 233
    one = run_in_blocks(structure, gibbs.MOVES, [0, tune, stop], tune=tune)
    assert_same(one, run_in_blocks(MODELS[name], gibbs.MOVES, [0, 99, 101, 170, 200, tune, 220, 221, stop], tune=tune))
    alone = [*range(0, tune, 30), tune, 220, stop]
    assert_same(one, run_in_blocks(MODELS[name], gibbs.MOVES, alone, engine=steps_alone(), tune=tune))
    for factor in (structure.W, structure.H):
        chances, steps = one[1][f"accept_{factor.name}"], one[1][f"n_steps_{factor.name}"]
        assert np.all(np.isnan(chances[: 48 // 3]))
        if factor.is_fixed:
            continue
        assert np.all((chances[51 // 3 :] >= 0) & (chances[51 // 3 :] <= 1))
        assert chances[-7:].mean() > 0.5
        assert len(np.unique(steps[-7:])) == 1


@pytest.mark.parametrize("name", MODELS)
def test_these_models_run_in_one_call(name):
    assert gibbs.prepare(MODELS[name], gibbs.Gibbs(), SERIAL).sweeps is not None


def test_larger_data_and_unknown_hyperparameters_go_step_by_step(monkeypatch):
    hyper = plain(prior_w=gamma(unknown("a", "gamma", 6.0, 5.0), 0.8))
    assert gibbs.prepare(hyper, gibbs.Gibbs(), SERIAL).runs_hmc
    assert gibbs.prepare(hyper, gibbs.Gibbs(), SERIAL).compiled is None
    assert_same(run_in_blocks(hyper, gibbs.MOVES, [0, 9]), run_in_blocks(hyper, gibbs.MOVES, [0, 1, 5, 9]))
    whole = run_in_blocks(plain(), gibbs.MOVES, [0, 9], trajectories="never")
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 8)
    assert gibbs.prepare(plain(), gibbs.Gibbs(trajectories="never"), SERIAL).sweeps is None
    chunked = run_in_blocks(plain(), gibbs.MOVES, [0, 9], trajectories="never")
    np.testing.assert_allclose(chunked[1]["W"], whole[1]["W"], rtol=1e-6)  # sums in another order, but the same draws


def test_where_trajectories_run_several_chunks_are_one_call_too(monkeypatch):
    whole = run_in_blocks(plain(), gibbs.MOVES, [0, 9])
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 8)
    problem = gibbs.prepare(plain(), gibbs.Gibbs(), SERIAL)
    assert problem.layout.n_chunks > 1
    assert problem.sweeps is not None
    assert_same(whole, run_in_blocks(plain(), gibbs.MOVES, [0, 9]))
    assert_same(whole, run_in_blocks(plain(), gibbs.MOVES, [0, 9], engine=steps_alone()))


def test_trajectories_run_by_themselves_only_where_counts_say_enough_of_the_factors():
    sparse = plain(np.eye(12, 30), data=None)
    assert not gibbs.prepare(sparse, gibbs.Gibbs(), SERIAL).runs_hmc
    assert gibbs.prepare(sparse, gibbs.Gibbs(trajectories="always"), SERIAL).runs_hmc
    assert gibbs.prepare(plain(), gibbs.Gibbs(), SERIAL).runs_hmc
    assert not gibbs.prepare(plain(), gibbs.Gibbs(trajectories="never"), SERIAL).runs_hmc


def test_large_sparse_tables_go_to_allocation(monkeypatch):
    x = np.where(RNG.random((40, 60)) < 0.05, 50.0, 0.0)
    assert gibbs.prepare(model(x, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL).runs_hmc
    monkeypatch.setattr(sweeps, "MOST_LISTED", 10)
    assert not gibbs.prepare(model(x, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL).runs_hmc


def test_large_filled_tables_have_trajectories_too():
    """Of 400,000 cells, as 400 portraits of 32 x 32 pixels have them."""
    x = np.full((1000, 400), 5.0)
    assert gibbs.prepare(model(x, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL).runs_hmc


def test_small_prior_shapes_need_more_counts_for_trajectories():
    x, priors = np.full((12, 30), 4.0), [gamma(shape, 1.0) for shape in (1.0, 0.1)]
    wide, narrow = (model(x, 2, prior, prior) for prior in reversed(priors))
    assert gibbs.prepare(narrow, gibbs.Gibbs(), SERIAL).runs_hmc
    assert not gibbs.prepare(wide, gibbs.Gibbs(), SERIAL).runs_hmc
    assert gibbs.prepare(model(10 * x, 2, priors[1], priors[1]), gibbs.Gibbs(), SERIAL).runs_hmc


def test_nothing_is_kept_of_a_block_without_kept_sweeps():
    problem = gibbs.prepare(plain(), gibbs.Gibbs(), SERIAL)
    state = gibbs.init(problem, KEY, {})
    for engine in (gibbs.ENGINE, steps_alone()):
        assert run_block(engine, problem, state, KEY, Block(0, 3, 0, 0, True))[1:] == ({}, {})


def test_an_impossible_start_is_refused_inside_a_block():
    problem = gibbs.prepare(plain(), gibbs.Gibbs(), SERIAL)
    state = gibbs.init(problem, KEY, {})
    state.W[:] = np.nan
    with pytest.raises(RunFailed, match="counts lie where W H is 0 or not finite"):
        run_block(gibbs.ENGINE, problem, state, KEY, Block(0, 3, 0, 1, False))
