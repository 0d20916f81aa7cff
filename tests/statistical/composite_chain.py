"""Chains of the composite Gibbs sampler by its own functions: Geweke's with new data at every sweep, and plain ones."""

from __future__ import annotations

import dataclasses

import numpy as np

from nmf_zoo.inference.counts.gibbs import MOVES, Gibbs
from nmf_zoo.inference.powers import gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.statistical.geweke import draw_data, draw_prior
from tests.structures import stack


def numbers(state):
    """A copy of the factors and the hyperparameters."""
    arrays = {"W": state.Wt.T, "H": state.Ht.T, **state.values}
    return {name: np.array(value, order="C") for name, value in arrays.items()}


def prepare(structure, moves, is_compiled=False):
    """Composite Gibbs alone, step by step or in one compiled call for each sweep (slow to call)."""
    problem = gibbs.prepare(structure, Gibbs(moves=moves, trajectories="never"), SERIAL)
    return problem if is_compiled else dataclasses.replace(problem, sweeps=None)


def simulate_successively(structure, sweeps, moves=MOVES, seed=0, step=None, is_compiled=False):
    """The successive-conditional chain, begun at a draw from the prior: arrays with a leading axis of sweeps."""
    step, rng, key = step or gibbs.step, np.random.default_rng(seed), seed_key(seed)
    problem = prepare(with_positive_data(structure), moves, is_compiled)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state = gibbs.init(problem, child(key, 0), start)
    exposure = 1.0 if structure.likelihood.exposure is None else structure.likelihood.exposure
    kept = []
    for sweep in range(sweeps):
        X = draw_data(structure, state.Wt.T, state.Ht.T, rng)
        problem.frames.spectra.power[:] = (X / exposure).T
        kept.append({**numbers(state), "X": X})
        state, _ = step(problem, state, child(key, 1, sweep))
    return stack(kept)


def with_positive_data(structure):
    """Ones for the zeros that data not yet drawn are made of: those are no proper posterior's."""
    data = structure.data
    return dataclasses.replace(structure, data=dataclasses.replace(data, values=np.ones_like(data.values)))


def sample_composite(structure, sweeps, moves=MOVES, seed=0, tune=100, thin=1, step=None):
    """Every thin-th state after warm-up as arrays: W, H and the hyperparameters."""
    step = step or gibbs.step
    problem, key = prepare(structure, moves), seed_key(seed)
    state = gibbs.init(problem, child(key, 0), {})
    kept = []
    for sweep in range(tune + sweeps):
        state, _ = step(problem, state, child(key, 1, sweep))
        if sweep >= tune and (sweep - tune) % thin == 0:
            kept.append(numbers(state))
    return stack(kept)
