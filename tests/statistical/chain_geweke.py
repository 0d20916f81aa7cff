"""Geweke's joint distribution test where H is a chain: (hyperparameters, W, H, X) from the prior and from a sampler.

See :mod:`tests.statistical.geweke`, which does the same where columns are independent.
"""

from __future__ import annotations

import dataclasses
from itertools import combinations_with_replacement

import numpy as np
from scipy.special import logit

from nmf_zoo.inference.hmm import particle_gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BasisChainPrior, Known, LogNormalARPrior
from tests.statistical.gates import LEAST, check_means
from tests.statistical.geweke import (
    DRAWS_OF_HYPER_PRIORS,
    bounded,
    draw_data,
    draw_factor_prior,
    resolve,
    with_every_cell_laid_out,
)
from tests.structures import stack

DRAWS = DRAWS_OF_HYPER_PRIORS | {
    "beta": lambda rng, size, a, b: rng.beta(a, b, size),
    "normal": lambda rng, size, mu, sigma: rng.normal(mu, sigma, size),
}


def draw_prior(structure, n, rng):
    """n independent draws of the hyperparameters, W and H."""
    values = {
        name: DRAWS[unknown.prior.kind](rng, (n, *unknown.variable_shape), *unknown.prior.args)
        for name, unknown in structure.unknowns.items()
    }
    values["W"] = draw_factor_prior(structure.W, values, n, rng)
    values["H"] = draw_paths(structure, values, n, rng)
    return values


def draw_paths(structure, values, n, rng):
    """H (n, K, T), each given its own chain's parameters, time by time."""
    factor, (rank, n_times) = structure.H, structure.H.shape
    roles = factor.prior.parameters.items()
    resolved = {role: Known(value=resolve(own, factor, values, n)[:, :, 0]) for role, own in roles}
    prior, shape = dataclasses.replace(factor.prior, **resolved), (n, rank)
    if isinstance(prior, BasisChainPrior):
        p, q, initial = prior.law({})
        path = [rng.random(shape) < initial]
        for _ in range(n_times - 1):
            path.append(rng.random(shape) < np.where(path[-1], q, 1 - p))
        return np.stack(path, axis=2).astype(float)
    if isinstance(prior, LogNormalARPrior):
        mean, persistence, scale, first, spread = prior.law({})
        path = [rng.normal(first, spread)]
        for _ in range(n_times - 1):
            path.append(rng.normal(mean + persistence * (path[-1] - mean), scale))
        return np.exp(np.stack(path, axis=2))
    alpha = prior.alpha.value
    path = [rng.random(shape)]
    for _ in range(n_times - 1):
        is_down = rng.random(shape) < np.where(path[-1] <= 0.5, alpha, 1 - alpha)
        u = rng.random(shape)
        path.append(np.where(is_down, path[-1] * u, path[-1] + (1 - path[-1]) * u))
    return np.stack(path, axis=2)


def simulate_successively(structure, sweeps, options, seed, step):
    """Sweeps of the sampler that alternate with new data; begun at a draw of the prior."""
    rng, key = np.random.default_rng(seed), seed_key(seed)
    problem = particle_gibbs.prepare(with_every_cell_laid_out(structure), options, SERIAL)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = particle_gibbs.init(problem, child(key, 0), start), []
    by_time = problem.rows.samples.layout
    times = np.repeat(np.arange(structure.shape[1]), np.diff(by_time.indptr))
    major = np.repeat(np.arange(len(problem.layout.indptr) - 1), np.diff(problem.layout.indptr))
    rows, cols = problem.layout.sides(major, problem.layout.indices)
    for sweep in range(sweeps):
        X = draw_data(structure, state.W, state.h, rng)
        by_time.values[:] = X[by_time.indices, times]
        problem.layout.values[:] = X[rows, cols]
        if problem.side is not None:
            put_counts(problem.side.data, X)
        kept.append(
            {"W": state.W.copy(), "H": state.h.copy(), "X": X, **{k: np.array(v) for k, v in state.values.items()}}
        )
        state, _ = step(problem, state, child(key, 1, sweep))
    return stack(kept)


def put_counts(data, X):
    """New data for the trajectories of W's rows, whose grid has a place for each cell."""
    blocks, _, width = data.grid.shape
    f = np.arange(len(X))
    assert blocks > 0
    data.grid[f // width, :, f % width] = X


def quantities(structure, draws):
    """Scalars worth comparing, as columns: factors, hyperparameters and data on scales without heavy tails."""
    n = len(draws["X"])
    is_log = isinstance(structure.H.prior, LogNormalARPrior)
    tables = {"H": np.log(draws["H"]) if is_log else draws["H"]}
    if not structure.W.is_fixed:
        tables["log W"] = np.log(draws["W"])
    for name, unknown in structure.unknowns.items():
        on_line = {"beta": logit, "uniform": lambda v: v, "normal": lambda v: v}.get(unknown.prior.kind, np.log)
        tables[name] = on_line(draws[name])
    H = draws["H"]
    tables["steps"] = np.abs(np.diff(tables["H"], axis=2)).sum(axis=2)
    tables["log mean"] = np.log1p(draws["W"] @ H).sum(axis=1)
    tables["log(1 + X)"] = np.log1p(draws["X"].sum(axis=1))
    tables = {name: np.reshape(table, (n, -1)) for name, table in tables.items()}
    names = [f"{name}[{i}]" for name, table in tables.items() for i in range(table.shape[1])]
    return names, np.concatenate(list(tables.values()), axis=1)


def check_geweke(structure, sweeps, options=None, seed=0, step=None, least=LEAST):
    """Raise unless the two simulators agree in every statistic."""
    options, step = options or particle_gibbs.ParticleGibbs(particles=8), step or particle_gibbs.step
    rng = np.random.default_rng([seed, 1])
    marginal = draw_prior(structure, 2 * sweeps, rng)
    marginal["X"] = draw_data(structure, marginal["W"], marginal["H"], rng)
    successive = simulate_successively(structure, sweeps, options, seed, step)
    names, table = quantities(structure, marginal)
    centre = np.median(table, axis=0)
    spread = np.maximum(np.std(np.clip(table, *np.quantile(table, [0.1, 0.9], axis=0)), axis=0), 0.25)
    names = names + [f"{a} * {b}" for a, b in combinations_with_replacement(names, 2)]
    expected = bounded(table, centre, spread)
    error = expected.std(axis=0) / np.sqrt(len(expected))
    drawn = bounded(quantities(structure, successive)[1], centre, spread)
    check_means(names, drawn, expected.mean(axis=0), error, least)
