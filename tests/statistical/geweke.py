"""Geweke's joint distribution test (Geweke 2004, Getting it right), and what simulation needs: draws from the prior.

Two ways to draw (hyperparameters, W, H, X) must agree. *Marginal-conditional*: prior, then data, independently.
*Successive-conditional*: a chain that alternates one sweep of the sampler given X with new data X given W, H. Compared
are bounded functions of the quantities and of all their pairs, so that heavy tails hide nothing.
"""

from __future__ import annotations

import dataclasses
from itertools import combinations_with_replacement

import numpy as np
from scipy.special import gammaln, xlogy
from scipy.stats import norm, truncnorm

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import (
    Cells,
    HalfNormalPrior,
    InverseGammaPrior,
    Outer,
    PartlyKnown,
    TruncatedNormalPrior,
    Unknown,
)
from tests.planted import plant
from tests.statistical.gates import LEAST, check_means
from tests.structures import stack

# Tables of other shapes, and what stands beside W H: no two rows or columns are alike.
X23, X32 = np.zeros((2, 3)), np.zeros((3, 2))
MASK = np.array([[True, False, True], [True, True, False]])
EXPOSURE = np.array([[0.4, 1.0, 2.0], [1.5, 0.7, 1.2]])
BACKGROUND = np.array([[0.5, 0.1, 0.9], [0.3, 1.2, 0.6]])
LISTED = Cells(
    rows=np.array([0, 0, 1, 1]), cols=np.array([0, 2, 0, 1]), values=np.zeros(4), shape=(2, 3), is_complete=False
)
FIXED = np.array([[0.8, 1.9], [1.4, 0.3]])

DRAWS_OF_HYPER_PRIORS = {
    "gamma": lambda rng, size, shape, rate: rng.gamma(shape, 1 / rate, size),
    "inverse_gamma": lambda rng, size, shape, scale: scale / rng.gamma(shape, 1.0, size),
    "lognormal": lambda rng, size, mu, sigma: rng.lognormal(mu, sigma, size),
    "half_normal": lambda rng, size, sigma: np.abs(rng.normal(0, sigma, size)),
    "uniform": lambda rng, size, lower, upper: rng.uniform(lower, upper, size),
}


# -- drawing from the prior ----------------------------------------------------------------------------------------


def draw_prior(structure, n, rng):
    """n independent draws of the hyperparameters, W and H: a dict of arrays with a leading axis."""
    values = {}
    for name, unknown in structure.unknowns.items():
        draw = DRAWS_OF_HYPER_PRIORS[unknown.prior.kind]
        values[name] = draw(rng, (n, *unknown.variable_shape), *unknown.prior.args)
    for factor in (structure.W, structure.H):
        values[factor.name] = draw_factor_prior(factor, values, n, rng)
    return values


def draw_factor_prior(factor, values, n, rng):
    if factor.is_fixed:
        return np.broadcast_to(factor.prior.value, (n, *factor.shape))
    if isinstance(factor.prior, HalfNormalPrior):
        drawn = np.abs(rng.normal(0.0, sigma_of(factor, values, n)))
        return drawn if factor.known is None else factor.known.whole(drawn)
    if isinstance(factor.prior, TruncatedNormalPrior):
        mu, sigma = (resolve(own, factor, values, n) for own in factor.prior.parameters.values())
        drawn = truncnorm.ppf(rng.random(mu.shape), -mu / sigma, np.inf, mu, sigma)
        return drawn if factor.known is None else factor.known.whole(drawn)
    shape, rate = shape_and_rate(factor, values, n)
    log_value = log_gamma(rng, shape) - np.log(rate)
    drawn = np.exp(-log_value if isinstance(factor.prior, InverseGammaPrior) else log_value)
    return drawn if factor.known is None else factor.known.whole(drawn)


def free_part(factor, draws):
    """The components of a factor that are drawn."""
    return draws if factor.known is None else factor.known.part(draws)


def log_gamma(rng, shape):
    """Logarithm of a gamma draw, without underflow at small shapes."""
    return np.log(rng.gamma(shape + 1)) + np.log(rng.random(shape.shape)) / shape


def shape_and_rate(factor, values, n):
    """A gamma prior's parameters for n draws at once, of all that is drawn; of the inverses if that is gamma."""
    prior = factor.prior.of_inverses if isinstance(factor.prior, InverseGammaPrior) else factor.prior
    shape = resolve(prior.shape, factor, values, n)
    return shape, shape / resolve(prior.mean, factor, values, n) if prior.rate is None else resolve(
        prior.rate, factor, values, n
    )


def sigma_of(factor, values, n):
    """Of a half-normal prior, for n draws at once."""
    ((role, parameter),) = factor.prior.parameters.items()
    value = resolve(parameter, factor, values, n)
    return {"sigma": value, "variance": np.sqrt(value), "precision": 1 / np.sqrt(value)}[role]


def resolve(parameter, factor, values, n):
    drawn = factor.shape if factor.known is None else factor.known.shape
    if not isinstance(parameter, Unknown):
        return np.broadcast_to(parameter.value, (n, *drawn))
    if isinstance(parameter, PartlyKnown):
        whole = np.tile(parameter.known, (n, 1, 1))
        whole[:, parameter.are_free] = values[parameter.name]
        return np.broadcast_to(whole, (n, *drawn))
    padded = (1,) * (2 - len(parameter.shape)) + parameter.shape
    return np.broadcast_to(values[parameter.name].reshape(n, *padded), (n, *drawn))


def mean_of(structure, W, H):
    """Mean of X, with any leading axes."""
    exposure, background = structure.likelihood.exposure, structure.likelihood.background
    if isinstance(exposure, Outer):
        exposure = exposure.of_features * exposure.of_samples
    return (1.0 if exposure is None else exposure) * (W @ H) + (0.0 if background is None else background)


def seen(structure):
    """(F, N) bool: the observed cells."""
    data, mask = structure.data, np.ones(structure.shape, dtype=bool)
    if isinstance(data, Cells):
        mask[:] = data.is_complete
        mask[data.rows, data.cols] = True
    elif data.mask is not None:
        mask &= data.mask
    return mask


def simulate(structure, n, rng):
    """n joint draws: prior, then data X (n, F, N), 0 where not observed."""
    draws = draw_prior(structure, n, rng)
    return {**draws, "X": draw_data(structure, draws["W"], draws["H"], rng, draws)}


def errors_of(structure, values):
    """sigma of normal data at every cell, with the leading axes of its values where it is unknown."""
    sigma = structure.likelihood.sigma
    if not isinstance(sigma, Unknown):
        return np.broadcast_to(sigma.resolve({}), structure.shape)
    own = np.asarray(values[sigma.name])
    lead = own.shape[: own.ndim - len(sigma.variable_shape)]
    padded = (1,) * (2 - len(sigma.shape)) + sigma.shape
    return np.broadcast_to(own.reshape(*lead, *padded), (*lead, *structure.shape))


def draw_data(structure, W, H, rng, values=None):
    """X given the factors, with any leading axes, 0 where not observed."""
    if structure.likelihood.family == "normal":
        return rng.normal(mean_of(structure, W, H), errors_of(structure, values)) * seen(structure)
    draw = {"poisson": rng.poisson, "exponential": rng.exponential}[structure.likelihood.family]
    return draw(mean_of(structure, W, H)) * seen(structure)


# -- the chain -----------------------------------------------------------------------------------------------------


def with_every_cell_laid_out(structure):
    """The structure with a 1 in each observed cell, so that its layout has room for any data."""
    data = structure.data
    values = np.ones_like(data.values) if isinstance(data, Cells) else np.where(seen(structure), 1.0, 0.0)
    return dataclasses.replace(structure, data=dataclasses.replace(data, values=values))


def laid_out_cells(layout):
    """(rows, cols) of a layout's cells, in its order."""
    major, minor = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr)), layout.indices
    return (major, minor) if layout.by_features else (minor, major)


def simulate_successively(structure, sweeps, moves=gibbs.MOVES, seed=0, step=None):
    """The successive-conditional chain, begun at a draw from the prior: arrays with a leading axis of sweeps."""
    step, rng, key = step or gibbs.step, np.random.default_rng(seed), seed_key(seed)
    problem = gibbs.prepare(with_every_cell_laid_out(structure), gibbs.Gibbs(moves=moves), SERIAL)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state = gibbs.init(problem, child(key, 0), start)
    rows, cols = laid_out_cells(problem.layout)
    kept = []
    for sweep in range(sweeps):
        X = draw_data(structure, state.W, state.Ht.T, rng)
        problem.layout.values[:] = X[rows, cols]
        kept.append(
            {"W": state.W.copy(), "H": state.Ht.T.copy(), "X": X, **{k: np.array(v) for k, v in state.values.items()}}
        )
        state, _ = step(problem, state, child(key, 1, sweep))
    return stack(kept)


# -- planted errors ------------------------------------------------------------------------------------------------


def step_on(engine, wrong):
    """The engine's step on wrong(problem) in the place of the problem that it prepared."""
    return lambda problem, state, key: engine.step(wrong(problem), state, key)


def without_jacobian(slice_draw):
    """Slices of logarithms as if these had the density of the values."""
    return lambda log_density, *rest: slice_draw(lambda log_value: log_density(log_value) - log_value, *rest)


def with_sums(wrong):
    """A reduction to the sums of a prior's groups that gives wrong(sums)."""
    return lambda right: lambda *given: wrong(right(*given))


def without_change_of_volume(log_prior_scaled):
    """The density of a factor along a scale as if its cells had not moved with it."""

    def wrong(factor, value, axis, values):
        of_components = log_prior_scaled(factor, value, axis, values)
        return lambda s: of_components(s) - factor.shape[axis] * s

    return wrong


def drop_jacobian(monkeypatch):
    """Draw hyperparameters as if their logarithms had the density of the values."""
    plant(
        monkeypatch,
        "hyperparameters: draws of entries",
        lambda right: lambda entries, *rest: right(entries._replace(jacobian=0.0 * entries.jacobian), *rest),
    )


# -- statistics ----------------------------------------------------------------------------------------------------


def quantities(structure, draws):
    """Scalars worth comparing, as columns: logs of all cells and hyperparameters, means, data, the log joint."""
    n = len(draws["X"])
    mean = mean_of(structure, draws["W"], draws["H"])
    random = [factor for factor in (structure.W, structure.H) if not factor.is_fixed]
    tables = {f"log {factor.name}": np.log(free_part(factor, draws[factor.name])) for factor in random}
    tables |= {f"log {name}": np.log(draws[name]) for name in structure.unknowns}
    tables |= {
        "log mean": np.log(mean),
        "log(1 + sum X)": log_size(draws["X"].sum((1, 2))),
        "lp": log_joint(structure, draws),
    }
    tables = {name: np.reshape(table, (n, -1)) for name, table in tables.items()}
    names = [f"{name}[{i}]" for name, table in tables.items() for i in range(table.shape[1])]
    return names, np.concatenate(list(tables.values()), axis=1)


def log_size(total):
    """log(1 + total), of sums below 0 with their sign."""
    return np.sign(total) * np.log1p(np.abs(total))


def log_joint(structure, draws):
    """log p(X, W, H | hyperparameters) of every draw, written anew."""
    mean, n = mean_of(structure, draws["W"], draws["H"]), len(draws["X"])
    total = np.sum(log_density_of_data(structure, draws["X"], mean, draws) * seen(structure), axis=(1, 2))
    for factor in (structure.W, structure.H):
        if isinstance(factor.prior, HalfNormalPrior):
            sigma, v = sigma_of(factor, draws, n), free_part(factor, draws[factor.name])
            total = total + np.sum(-np.log(sigma) - v**2 / (2 * sigma**2), axis=(1, 2))
        elif isinstance(factor.prior, TruncatedNormalPrior):
            mu, sigma = (resolve(own, factor, draws, n) for own in factor.prior.parameters.values())
            v = free_part(factor, draws[factor.name])
            total = total + np.sum(truncnorm.logpdf(v, -mu / sigma, np.inf, mu, sigma), axis=(1, 2))
        elif not factor.is_fixed:
            shape, rate = shape_and_rate(factor, draws, n)
            is_inverse = isinstance(factor.prior, InverseGammaPrior)
            own = free_part(factor, draws[factor.name])
            v = 1 / own if is_inverse else own
            log_jacobian = 2 * np.log(v) if is_inverse else 0.0
            cells = (shape - 1) * np.log(v) - rate * v + shape * np.log(rate) - gammaln(shape) + log_jacobian
            total = total + np.sum(cells, axis=(1, 2))
    return total


def log_density_of_data(structure, x, mean, values=None):
    if structure.likelihood.family == "normal":
        return norm.logpdf(x, mean, errors_of(structure, values))
    if structure.likelihood.family == "exponential":
        return -np.log(mean) - x / mean
    return xlogy(x, mean) - mean - gammaln(x + 1)


def bounded(table, centre, spread):
    """Squeeze each column into (-1, 1), then add the products of all pairs; columns are contiguous."""
    z = np.ascontiguousarray(((table - centre) / spread).T)
    u, n = z / np.sqrt(1 + z * z), len(z)
    found, at = np.empty((n + n * (n + 1) // 2, z.shape[1])), n
    found[:n] = u
    for i in range(n):
        np.multiply(u[i], u[i:], out=found[at : at + n - i])
        at += n - i
    return found.T


def check_same_means(marginal, successive, least=LEAST):
    """Raise unless bounded functions of the columns, and of all their pairs, have the same means in both tables."""
    centre = np.median(marginal, axis=0)
    spread = np.std(np.clip(marginal, *np.quantile(marginal, [0.1, 0.9], axis=0)), axis=0) + 1e-9
    expected, drawn = (bounded(own, centre, spread) for own in (marginal, successive))
    names = [str(i) for i in range(expected.shape[1])]
    check_means(names, drawn, expected.mean(axis=0), expected.std(axis=0) / np.sqrt(len(expected)), least)


def check_geweke(
    structure, sweeps, moves=gibbs.MOVES, seed=0, step=None, least=LEAST, simulate_successively=simulate_successively
):
    """Raise unless the two simulators agree in every statistic."""
    marginal = simulate(structure, 4 * sweeps, np.random.default_rng([seed, 1]))
    successive = simulate_successively(structure, sweeps, moves, seed, step)
    names, table = quantities(structure, marginal)
    centre, spread = np.median(table, axis=0), np.std(np.clip(table, *np.quantile(table, [0.1, 0.9], axis=0)), axis=0)
    names = names + [f"{a} * {b}" for a, b in combinations_with_replacement(names, 2)]
    expected = bounded(table, centre, spread)
    error = expected.std(axis=0) / np.sqrt(len(expected))
    drawn = bounded(quantities(structure, successive)[1], centre, spread)
    check_means(names, drawn, expected.mean(axis=0), error, least)
