"""Geweke's joint distribution test where H is a chain with auxiliary variables: prior and data against a sampler.

See :mod:`tests.statistical.geweke`, which does the same where columns are independent. Paths are drawn here time by
time, the auxiliaries too, so that nothing of the engine or of PyMC's draws is used.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BGARPrior, GammaChainPrior
from tests.planted import plant
from tests.statistical.chain_geweke import DRAWS
from tests.statistical.gates import LEAST
from tests.statistical.geweke import (
    check_same_means,
    draw_data,
    draw_factor_prior,
    mean_of,
    with_every_cell_laid_out,
)
from tests.structures import parameter, stack


def gamma_chain(alpha_z, alpha_h, beta_z=1.0, initial=(1.0, 1.0)):
    """The prior, of numbers or unknowns."""
    own = dict(
        zip(
            ("alpha_z", "alpha_h", "beta_z", "initial_shape", "initial_rate"),
            (alpha_z, alpha_h, beta_z, *initial),
            strict=True,
        )
    )
    return GammaChainPrior(**{role: parameter(value) for role, value in own.items()})


def bgar(alpha, beta, rho):
    """The prior, of numbers or unknowns."""
    return BGARPrior(alpha=parameter(alpha), beta=parameter(beta), rho=parameter(rho))


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
    """H (n, K, N) given the chain's parameters."""
    prior, (rank, n_times) = structure.H.prior, structure.H.shape

    def of(role):
        own = getattr(prior, role)
        value = np.broadcast_to(own.value, (n, *own.value.shape)) if not hasattr(own, "name") else values[own.name]
        return np.broadcast_to(np.reshape(value, (n, -1)), (n, rank))

    return np.stack(PATHS[type(prior)](of, n_times, rng), axis=2)


def gamma_chain_path(of, n_times, rng):
    path = [rng.gamma(of("initial_shape")) / of("initial_rate")]
    for _ in range(n_times - 1):
        z = rng.gamma(of("alpha_z")) / (of("beta_z") * path[-1])
        path.append(rng.gamma(of("alpha_h")) / z)
    return path


def bgar_path(of, n_times, rng):
    alpha, beta, rho = of("alpha"), of("beta"), of("rho")
    path = [rng.gamma(alpha) / beta]
    for _ in range(n_times - 1):
        share = rng.beta(alpha * rho, alpha * (1 - rho))
        path.append(share * path[-1] + rng.gamma(alpha * (1 - rho)) / beta)
    return path


PATHS = {GammaChainPrior: gamma_chain_path, BGARPrior: bgar_path}


def simulate_successively(engine, structure, sweeps, seed, step):
    """Sweeps of the sampler that alternate with new data; begun at a draw of the prior."""
    rng, key = np.random.default_rng(seed), seed_key(seed)
    problem = engine.prepare(with_every_cell_laid_out(structure), Gibbs(), SERIAL)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = engine.init(problem, child(key, 0), start), []
    for sweep in range(sweeps):
        X = draw_data(structure, state.W, state.Ht.T, rng)
        problem = with_data(problem, X)
        now = {"W": state.W.copy(), "H": state.Ht.T.copy(), "X": X}
        kept.append(now | {name: np.array(value) for name, value in state.values.items()})
        state, _ = step(problem, state, child(key, 1, sweep))
    return stack(kept)


def with_data(problem, X):
    """The problem of other data, in place where they are laid out."""
    if problem.structure.likelihood.is_spectral:
        exposure = problem.structure.likelihood.exposure
        problem.frames.spectra.power[...] = (X if exposure is None else X / exposure).T
        return problem
    layout = problem.layout
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    rows, cols = layout.sides(major, layout.indices)
    layout.values[:] = X[rows, cols]
    return problem


def quantities(structure, draws):
    """Scalars worth comparing, as columns: logarithms of cells, steps, hyperparameters, means and data."""
    n = len(draws["X"])
    tables = [np.log(draws["H"]), np.abs(np.diff(np.log(draws["H"]), axis=2))]
    tables += [] if structure.W.is_fixed else [np.log(draws["W"])]
    tables += [np.log(draws[name]) for name in structure.unknowns]
    tables += [np.log(mean_of(structure, draws["W"], draws["H"])), np.log1p(draws["X"])]
    return np.concatenate([np.reshape(table, (n, -1)) for table in tables], axis=1)


def check_geweke(engine, structure, sweeps, seed=0, step=None, least=LEAST):
    """Raise unless the two simulators agree in every statistic."""
    rng, n = np.random.default_rng([seed, 1]), 4 * sweeps
    marginal = draw_prior(structure, n, rng)
    marginal["X"] = draw_data(structure, marginal["W"], marginal["H"], rng)
    successive = simulate_successively(engine, structure, sweeps, seed, step or engine.step)
    check_same_means(quantities(structure, marginal), quantities(structure, successive), least)


# -- planted errors ----------------------------------------------------------------------------------------------------


def with_prior(wrong):
    """A chain's formula, a method, given wrong(prior) in the place of the prior."""
    return lambda right: lambda self, prior, *given: right(self, wrong(prior), *given)


def replaced(prior, **roles):
    """The prior with other parameters."""
    return dataclasses.replace(prior, **{role: parameter(value) for role, value in roles.items()})


def forget_the_draw_before(law):
    """The law of a gamma chain's auxiliaries without the shape of the draw before."""

    def wrong(prior, Ht, values):
        shape, rate = law(prior, Ht, values)
        return shape - prior.law(values)[0].T, rate

    return wrong


def forget_the_mask(monkeypatch):
    """A missing time as if it had been seen, without a count."""

    def wrong(right):
        return lambda power, rate, scale: right(power, np.where(rate > 0, rate, rate.max(axis=0)), scale)

    plant(monkeypatch, "Gibbs of smooth chains: terms of the data", wrong)
