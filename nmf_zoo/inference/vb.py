"""Variational Bayes for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 1; Paisley, eq. 28-36).

q(W) q(H) q(C) is gamma, gamma, multinomial. With E = E_q[.], L = exp(E_q[log .]) and M the mask times the exposure::

    S_w = sum_n E[C], S_h = sum_f E[C]       E[c_fkn] = x_fn L_w L_h / (L_w . L_h + background / exposure)
    q(w) = Gamma(a_w + S_w, r_w + sum_n M E_h)
    q(h) = Gamma(a_h + S_h, r_h + sum_f M E_w)      with the new E_w
    free hyperparameters to the bound's peak, then L = exp(psi(shape)) / rate

Cemgil shares the counts among the components once per iteration, Paisley again between W and H: other paths, same fixed
points. The bound, exact and tight at the newest L (its log X! and all constants included), never falls::

    B = sum M (x log(mean of L_w L_h) - log x!) - sum M E_w E_h - KL(q_w || p_w) - KL(q_h || p_h)

For shapes far below 1, L underflows: log L = psi(shape) - log rate is kept beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.inference.hyperparameters import moments_of, untied, update_hyperparameters
from nmf_zoo.inference.layout import Weights, likelihood_constant, weigh
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.sources import DenseSources, Logs, SparseSources, Statistics, expected_sources
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.special import gamma_functions
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factorisation

ORDERS = ("cemgil", "paisley")
SMALLEST_MEAN = 1e-300  # of a start: its logarithm must exist
W_DRAWS, H_DRAWS, IMPUTED = range(3)  # children of the stream of the final draws


class Approximation(NamedTuple):
    """q of one factor, (rows, K) each; a known factor has mean and the logarithm of its value only.

    shape, rate : of the gammas (rate may broadcast); mean, log : E[v], E[log v]; geometric : exp(log);
    digamma, log_gamma : psi and log Gamma of the shape
    """

    mean: Array
    log: Array
    geometric: Array
    shape: Any = None
    rate: Any = None
    digamma: Any = None
    log_gamma: Any = None


class VBState(NamedTuple):
    """q of W and of H, the free hyperparameters by name, and the expected sources at the newest L."""

    W: Approximation
    H: Approximation
    values: dict[str, Array]
    sources: Statistics


class VBInfo(NamedTuple):
    """objective: the bound, in nats; residual: 0 at a fixed point.

    The residual is the largest change of an expected cell, relative to its column's largest, or of a hyperparameter,
    relative to itself.
    """

    objective: float
    residual: float


@dataclass(frozen=True, kw_only=True)
class VB:
    """Options of variational Bayes.

    Attributes
    ----------
    order : "cemgil" shares the counts once per iteration, "paisley" again between W and H (1.5 times the work)
    """

    order: Literal["cemgil", "paisley"] = "cemgil"

    def __post_init__(self):
        if self.order not in ORDERS:
            raise ValueError(f"order: got {self.order!r}; expected one of {list(ORDERS)}")


@dataclass(frozen=True)
class Problem:
    """What all restarts share."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    sources: DenseSources | SparseSources
    weights: Weights
    constant: float


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Poisson data; each factor with a gamma prior or known; hyperparameters known or free."""
    if structure.data is None:
        return Verdict(f"nothing is observed in {structure.likelihood.name}")
    if structure.likelihood.kind != "poisson":
        return Verdict(
            f"it shares counts among components, and {structure.likelihood.name} is {structure.likelihood.kind}"
        )
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"without a prior of {' and '.join(flat)} there is no proper distribution to approximate")
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: VB takes known or free hyperparameters")
    return CAN_RUN


def prepare(structure: Factorisation, options: VB, workers: Workers) -> Problem:
    """Lay out the data; warn of hyperparameters that nothing holds back."""
    loose = [name for side in two_sides(structure) for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warnings.warn(f"{', '.join(loose)}: {message}", NmfZooWarning, stacklevel=5)  # the caller of fit()
    sources, weights = expected_sources(structure, workers), weigh(structure)
    return Problem(structure, options, two_sides(structure), sources, weights, likelihood_constant(structure))


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> VBState:
    """E = L = the start given, or a random one at the scale of the data."""
    W, H = (_point(array) for array in start_factors(problem.structure, key, start))
    return VBState(W, H, start_hyperparameters(problem.structure, start), _gather(problem, W, H, "WH"))


def step(problem: Problem, state: VBState, key: np.uint64 | None = None) -> tuple[VBState, VBInfo]:
    """One iteration."""
    cemgil, weights = problem.options.order == "cemgil", problem.weights
    W = _update(problem.sides[0], state.W, state.sources.of_W, weights.over_samples(state.H.mean), state.values)
    of_H = state.sources.of_H if cemgil else _gather(problem, W, state.H, "H").of_H
    H = _update(problem.sides[1], state.H, of_H, weights.over_features(W.mean), state.values)
    values = state.values
    if problem.structure.unknowns:
        free = zip(problem.sides, (W, H), strict=True)
        values = update_hyperparameters([moments_of(side, q.mean, q.log) for side, q in free if side.is_gamma], values)
    sources = _gather(problem, W, H, "WH" if cemgil else "W")
    new = VBState(W, H, values, sources)
    return new, VBInfo(_bound(problem, new), _residual(state, new))


def _point(value: Array) -> Approximation:
    with np.errstate(divide="ignore"):
        return Approximation(value, np.log(value), value)


def _update(side: Side, old: Approximation, counts: Array, weight: Array, values: Mapping[str, Array]) -> Approximation:
    """q = Gamma(prior shape + counts, prior rate + weight), with its moments."""
    if side.is_fixed:
        return old
    prior_shape, prior_rate = side.prior(values)
    shape, rate = prior_shape + counts, prior_rate + weight
    digamma, log_gamma = np.empty_like(shape), np.empty_like(shape)
    gamma_functions(shape.ravel(), digamma.ravel(), log_gamma.ravel())
    log = digamma - np.log(rate)
    return Approximation(shape / rate, log, np.exp(log), shape, rate, digamma, log_gamma)


def _gather(problem: Problem, W: Approximation, H: Approximation, sides: str) -> Statistics:
    return problem.sources.gather(W.geometric, H.geometric, sides, Logs(W.log, H.log))


def _bound(problem: Problem, state: VBState) -> float:
    """The evidence lower bound at the newest L."""
    fit = state.sources.log_mean - problem.weights.total(state.W.mean, state.H.mean) + problem.constant
    parts = zip(problem.sides, (state.W, state.H), strict=True)
    return fit - sum(_divergence(q, *side.prior(state.values)) for side, q in parts if side.is_gamma)


def _divergence(q: Approximation, shape: Array, rate: Array) -> float:
    """KL(q || Gamma(shape, rate)), summed over the cells."""
    cells = (q.shape - shape) * q.digamma - q.log_gamma + q.mean * rate - q.shape
    constants = gammaln(shape) + shape * (np.log(q.rate) - np.log(rate))
    return float(np.sum(cells)) + float(np.sum(np.broadcast_to(constants, cells.shape)))


def _residual(old: VBState, new: VBState) -> float:
    pairs = [(old.W.mean, new.W.mean), (old.H.mean, new.H.mean)]
    changes = [np.max(np.abs(q - p) / np.maximum(q.max(axis=0), SMALLEST_MEAN)) for p, q in pairs]
    changes += [np.max(np.abs(value / old.values[name] - 1.0), initial=0.0) for name, value in new.values.items()]
    return float(max(changes))


def finish(problem: Problem, state: VBState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, free hyperparameters as they are; the parameters of q for ``fit``."""
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    parameters: dict[str, Array] = {}
    factors = []
    for side, q, child_of in zip(problem.sides, (state.W, state.H), (W_DRAWS, H_DRAWS), strict=True):
        if side.is_fixed:
            factors.append(np.broadcast_to(q.mean, (draws, *q.mean.shape)))
            continue
        rate = np.broadcast_to(q.rate, q.shape.shape)
        factors.append(_draw(q.shape, rate, draws, child(key, child_of)))
        name = side.factor.name
        values[name] = side.as_variable(factors[-1])
        parameters |= {f"{name}_shape": side.as_variable(q.shape), f"{name}_rate": side.as_variable(np.array(rate))}
    if problem.structure.imputed is not None:
        values[problem.structure.imputed.name] = _impute(problem.structure, factors, child(key, IMPUTED))
    return values, parameters


def _draw(shape: Array, rate: Array, draws: int, key: np.uint64) -> Array:
    out = np.empty((draws, *shape.shape))
    for draw in range(draws):
        draw_factor(out[draw], shape, rate, 0, len(shape), child(key, draw))
    return out


def _impute(structure: Factorisation, factors: list[Array], key: np.uint64) -> Array:
    """A Poisson draw of every missing cell the model declares, at each draw of the factors."""
    generator = np.random.Generator(np.random.Philox(key=int(key)))
    rows, cols = structure.imputed.rows, structure.imputed.cols
    pairs = zip(*factors, strict=True)
    return np.stack([generator.poisson(structure.mean_at(w, ht.T, rows, cols)) for w, ht in pairs])


ENGINE = Engine(
    name="vb",
    verb="fit",
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
