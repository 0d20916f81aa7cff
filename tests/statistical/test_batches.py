"""Counts in batches: Gibbs by Geweke's test, by exact moments and by calibration; VB's bound below exact evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.batches import exposures, gibbs
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Outer
from tests.sizes import size
from tests.statistical.calibration import check_calibrated
from tests.statistical.gates import check_means
from tests.statistical.geweke import (
    BACKGROUND,
    EXPOSURE,
    FIXED,
    LISTED,
    MASK,
    X23,
    X32,
    bounded,
    draw_prior,
    laid_out_cells,
    mean_of,
    seen,
    with_every_cell_laid_out,
)
from tests.structures import gamma, half_normal, model, multipliers, stack, unknown

pytestmark = pytest.mark.statistical
SWEEPS, PLANTED_SWEEPS = size(6_000, 60_000), 6_000
W_PRIOR, H_PRIOR = gamma(np.array([[0.9, 2.0]]), 0.8), gamma(np.array([[1.6], [0.7]]), 1.7)
SHAPES, RATES = np.array([[2.0, 3.0], [1.5, 4.0]]), np.array([[2.0, 2.5]])
TWO = multipliers([0, 1, 0], 2, 2, SHAPES, RATES)
SIDES = Outer(of_features=np.array([[0.4], [1.6]]), of_samples=np.array([[0.7, 1.0, 2.2]]))


def plain(batches=TWO, prior_w=W_PRIOR, prior_h=H_PRIOR, **options):
    return model(X23, 2, prior_w, prior_h, batches=batches, **options)


MODELS = {
    "two batches": plain(),
    "exposure of both sides, background": plain(exposure=SIDES, background=BACKGROUND),
    "exposure of cells, mask": plain(exposure=EXPOSURE, background=BACKGROUND, mask=MASK),
    "listed cells": plain(data=LISTED, exposure=EXPOSURE),
    "batches first": plain(batches=multipliers([0, 1, 0], 2, 2, SHAPES.T, RATES.T, transposed=True)),
    "a reference": plain(batches=multipliers([1, 0, 1], 2, 1, 2.5, 2.0), exposure=[[0.6], [1.4]]),
    "W fixed": plain(prior_w=FIXED, background=[[0.2], [0.5]]),
    "H fixed": model(X32, 2, gamma(1.3, 0.9), FIXED, batches=multipliers([1, 0], 3, 2, 2.0, 1.5), mask=MASK.T),
    "rate of H": plain(prior_h=gamma(1.2, unknown("r", "gamma", 4.0, 3.0))),
    "half-normal W": plain(prior_w=half_normal(1.3)),
}


def expected(structure, draws):
    """(n, F, N): multipliers times the mean."""
    own = structure.likelihood.multipliers
    tables = np.stack([own.resolve({own.variable.name: M}) for M in draws[own.variable.name]])
    return tables * mean_of(structure, draws["W"], draws["H"])


def quantities(structure, draws):
    """Logarithms of all that is drawn, of the means and of the data."""
    n = len(draws["X"])
    names = [factor.name for factor in (structure.W, structure.H) if not factor.is_fixed] + list(structure.unknowns)
    tables = [np.log(draws[name]).reshape(n, -1) for name in names]
    tables += [np.log(expected(structure, draws)).reshape(n, -1), np.log1p(draws["X"]).reshape(n, -1)]
    return np.concatenate(tables, axis=1)


def state_of(problem, state):
    own = problem.data.multipliers
    values = {name: np.array(value) for name, value in state.counts.values.items()}
    return {
        "W": state.counts.W.copy(),
        "H": state.counts.Ht.T.copy(),
        own.variable.name: own.as_variable(state.M),
        **values,
    }


def set_data(problem, X):
    """Other data, in place: its cells, and their sums over batches."""
    own, layout = problem.data.multipliers, problem.counts.layout
    layout.values[:] = X[laid_out_cells(layout)]
    problem.data.counts[:] = own.sum_samples(X.T.astype(float)).T


def check_geweke(structure, sweeps, seed=0, wrong=lambda problem: problem):
    """Raise unless prior and data agree with a chain that alternates sweeps and data."""
    rng, n, key = np.random.default_rng(seed), 4 * sweeps, seed_key(seed)
    marginal = draw_prior(structure, n, rng)
    marginal["X"] = rng.poisson(expected(structure, marginal)) * seen(structure)
    problem = wrong(gibbs.prepare(with_every_cell_laid_out(structure), Gibbs(), SERIAL))
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = gibbs.init(problem, child(key, 0), start), []
    for sweep in range(sweeps):
        now = state_of(problem, state)
        mean = expected(structure, {name: value[None] for name, value in now.items()})[0]
        now["X"] = rng.poisson(mean) * seen(structure)
        kept.append(now)
        set_data(problem, now["X"])
        state, _ = gibbs.step(problem, state, child(key, 1, sweep))
    table = quantities(structure, marginal)
    centre = np.median(table, axis=0)
    spread = np.std(np.clip(table, *np.quantile(table, [0.1, 0.9], axis=0)), axis=0) + 1e-9
    right, drawn = (bounded(own, centre, spread) for own in (table, quantities(structure, stack(kept))))
    names = [str(i) for i in range(right.shape[1])]
    check_means(names, drawn, right.mean(axis=0), right.std(axis=0) / np.sqrt(n))


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    check_geweke(MODELS[name], SWEEPS)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(name="two batches", **options):
    with pytest.raises(AssertionError, match="gate 2, standard errors"):
        check_geweke(MODELS[name], PLANTED_SWEEPS, **options)


def test_another_rate_is_seen():
    check_is_seen(wrong=lambda problem: dataclasses.replace(problem, rate=2.0 * problem.rate))


def test_means_without_their_exposure_are_seen():
    def without(problem):
        return dataclasses.replace(problem, data=dataclasses.replace(problem.data, background=0.0 * problem.data.counts))

    check_is_seen("exposure of both sides, background", wrong=without)


@pytest.mark.parametrize("step", ["over_features", "over_samples"])
def test_a_factor_drawn_without_multipliers_is_seen(step, monkeypatch):
    def unexposed(weights, factor):
        return getattr(weights.outer, step)(factor)

    monkeypatch.setattr(exposures.BatchWeights, step, unexposed)
    # blocks of small tables have the weights in another form
    check_is_seen(wrong=lambda problem: dataclasses.replace(problem, counts=dataclasses.replace(problem.counts, sweeps=None)))


def test_blocks_without_multipliers_are_seen(monkeypatch):
    monkeypatch.setattr(gibbs, "with_multipliers", lambda sweeps, table, batch: sweeps)
    check_is_seen()


def test_scales_of_another_law_are_seen(monkeypatch):
    right = gibbs.draw_scales_of
    monkeypatch.setattr(gibbs, "draw_scales_of", lambda tilt, *given: right(tilt + 1.0, *given))
    check_is_seen()


def test_batches_exchanged_are_seen():
    """The planted error: sums over the samples of the other batch."""

    def exchanged(problem):
        other = dataclasses.replace(problem.data.multipliers, batch=1 - problem.data.multipliers.batch)
        return dataclasses.replace(problem, data=dataclasses.replace(problem.data, multipliers=other))

    check_is_seen(wrong=exchanged)
