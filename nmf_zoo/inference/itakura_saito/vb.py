"""Variational Bayes for Itakura-Saito factorisations (Hoffman, Blei & Cook 2010, section 3).

q(W) q(H) has generalised inverse Gaussian cells, densities proportional to v^(p - 1) exp(-(rho v + tau / v) / 2). With
E = E_q[.], G = 1 / E_q[1 / .] and sums over observed cells, whose powers x have means l = W H + b::

    -E[log l] >= -log omega - (sum_k E_w E_h + b - omega) / omega                  best at m = sum_k E_w E_h + b
    -E[x / l] >= -x (sum_k phi_k^2 / (G_w G_h) + phi_0^2 / b)                      best at phi_k = G_w G_h / l,
                                                                                   l = sum_k G_w G_h + b
    W: rho / 2 = r + sum_n E_h / m                  p, r, t by prior: inverse gamma (a, s)     -a, 0, s
       tau / 2 = t + G_w^2 sum_n x G_h / l^2                          gamma (a, rate c)         a, c, 0
    H: alike, with m and l at the new q(W)                            none                      1, 0, 0

The order p never moves, so that E[log v] drops out of the bound, which is exact in everything else and never falls::

    B = constant - sum (log m + x / l) + sum over cells of W and H (log of the integral of q's unnormalised density
        + E[(rho v + tau / v) / 2] - r E[v] - t E[1 / v] + log of the prior's normaliser)

Without a prior, B bounds the logarithm of the integral over dW. The first line costs about half of q's variance where
the other factor is known: q(v) has var(log v) near 1 / (2 cells), the posterior 1 / cells. A free scale of an inverse
gamma goes to the bound's peak, shape * cells / sum E[1 / v].
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.inference.acceleration import Momentum
from nmf_zoo.inference.engine import Engine
from nmf_zoo.inference.heap import release
from nmf_zoo.inference.hyperparameters import untied
from nmf_zoo.inference.imputation import impute
from nmf_zoo.inference.itakura_saito.gig_factors import (
    Approximation,
    Law,
    ahead,
    draw_from,
    moments_at,
    orders_of,
    own_part,
    update,
)
from nmf_zoo.inference.itakura_saito.spectra import Spectra, read_spectra
from nmf_zoo.inference.itakura_saito.vb_support import free_scales, supports
from nmf_zoo.inference.layout import MOST_CHUNKS
from nmf_zoo.inference.sides import Side, sum_to, two_sides
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.vb import GENTLE, VB
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.composite_bound import Pair, gather_features, gather_frames, make_cells, spread
from nmf_zoo.kernels.gig_moments import Orders
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Exponential, Factorisation, even_bounds

CHUNK_CELLS = 1 << 15  # of the spectrogram: a chunk has at least so many
LARGEST = 1e150  # of a start: its products stay numbers
W_DRAWS, H_DRAWS, IMPUTED = range(3)  # children of the stream of the final draws


class VBState(NamedTuple):
    """q of W and of H, the free scales by name, and what W's update needs: sums (F, K) of E / m and of G x / l^2.

    bound : of this q; momentum : how hard the next update is pushed; updated : laws of W and of H where the last update
    led, before it was pushed
    """

    W: Approximation
    H: Approximation
    values: dict[str, Array]
    sums: Pair
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


class VBInfo(NamedTuple):
    """objective: the bound, in nats; residual: 0 at a fixed point.

    The residual is the largest change of a harmonic mean, relative to its column's largest, or of a scale, relative to
    itself.
    """

    objective: float
    residual: float


@dataclass(frozen=True)
class Problem:
    """What all restarts share. ``orders``: of q(W) and of q(H), None of a known factor; ``chunks``: of frames."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    spectra: Spectra
    constant: float
    orders: tuple[Orders | None, Orders | None]
    chunks: Array
    workers: Workers


def prepare(structure: Factorisation, options: VB, workers: Workers) -> Problem:
    """Lay out the data; warn of scales that nothing holds back."""
    sides = two_sides(structure)
    loose = [name for side in sides for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warnings.warn(f"{', '.join(loose)}: {message}", NmfZooWarning, stacklevel=5)  # the caller of fit()
    spectra, constant = read_spectra(structure)
    n_chunks = int(np.clip(spectra.power.size // CHUNK_CELLS, 1, MOST_CHUNKS))
    chunks = even_bounds(len(spectra.power), n_chunks)
    of_W, of_H = (None if side.is_fixed else orders_of(side) for side in sides)
    return Problem(structure, options, sides, spectra, constant, (of_W, of_H), chunks, workers)


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> VBState:
    """q sharp at the start given, or at a random one at the scale of the data."""
    factors = start_factors(problem.structure, key, start, problem.options.start)
    W, H = (Approximation(value, value) for value in (np.minimum(factor, LARGEST) for factor in factors))
    values = start_hyperparameters(problem.structure, start)
    return VBState(W, H, values, _look_at_features(problem, W, H)[0])


def step(problem: Problem, state: VBState, key: np.uint64 | None = None) -> tuple[VBState, VBInfo]:
    """One iteration."""
    updated, W = _update_both(problem, state)
    new, momentum = None, state.momentum
    if problem.options.accelerate is not None and state.updated is not None:
        new, momentum = _at(problem, _push(updated, state), state), momentum.faster()
        if not new.bound >= state.bound:
            new, momentum = None, state.momentum.slower()
    new = _at(problem, updated, state, W) if new is None else new
    return new._replace(momentum=momentum, updated=updated), VBInfo(new.bound, _residual(state, new))


def _update_both(problem: Problem, state: VBState) -> tuple[list[Law], Approximation]:
    """Laws of W and of H where their updates lead, and q(W) there."""
    left, right = problem.sides
    law = update(left, state.W, state.sums, state.values)
    W = moments_at(problem.orders[0], law, state.W, problem.workers)
    if right.is_fixed:
        return [law, Law(None, None)], W
    return [law, update(right, state.H, _look_at_frames(problem, W, state.H), state.values)], W


def _push(updated: list[Law], state: VBState) -> list[Law]:
    """Laws beyond an update, as seen from the one before; what is 0 stays."""
    return [
        Law(*(None if a is None else ahead(a, b, state.momentum.push) for a, b in zip(new, old, strict=True)))
        for new, old in zip(updated, state.updated, strict=True)
    ]


def _at(problem: Problem, laws: list[Law], state: VBState, W: Approximation | None = None) -> VBState:
    """The state at new laws, free scales at the bound's peak; ``W`` when its moments are known."""
    W = moments_at(problem.orders[0], laws[0], state.W, problem.workers) if W is None else W
    H = moments_at(problem.orders[1], laws[1], state.H, problem.workers)
    values = _peak_scales(problem, (W, H), state.values) if state.values else state.values
    sums, fit = _look_at_features(problem, W, H)
    own = sum(own_part(side, q, values) for side, q in zip(problem.sides, (W, H), strict=True) if not side.is_fixed)
    return VBState(W, H, values, sums, fit + own + problem.constant)


def _peak_scales(problem: Problem, qs: tuple[Approximation, ...], values: Mapping[str, Array]) -> dict[str, Array]:
    """The free scales at which the bound is highest, sum of shapes / sum E[1 / v] over the cells they serve."""
    shapes, inverses = ({name: np.zeros(np.shape(value)) for name, value in values.items()} for _ in range(2))
    for side, q in zip(problem.sides, qs, strict=True):
        for unknown in free_scales(side):
            prior_shape = np.broadcast_to(side.factor.prior.shape.resolve(values), side.factor.shape)
            shapes[unknown.name] += sum_to(prior_shape, unknown.shape).reshape(unknown.variable_shape)
            served = sum_to(side.turn(1.0 / q.harmonic), unknown.shape)
            inverses[unknown.name] += served.reshape(unknown.variable_shape)
    return {name: shapes[name] / inverses[name] for name in values}


def _look_at_features(problem: Problem, W: Approximation, H: Approximation) -> tuple[Pair, float]:
    """(what W's update needs, the spectrogram's part of the bound)"""
    n_features, rank = W.mean.shape
    spread_W, of_H = _spread(W), Pair(np.ascontiguousarray(H.mean), np.ascontiguousarray(H.harmonic))

    def look(first: int, last: int) -> tuple[float, Pair]:
        sums = Pair(spread(rank, n_features), spread(rank, n_features))
        fit = gather_features(sums, spread_W, of_H, problem.spectra, make_cells(n_features), first, last)
        return fit, Pair(*(part.values[:, :n_features].T for part in sums))

    fits, sums = zip(*problem.workers.map(look, problem.chunks[:-1], problem.chunks[1:]), strict=True)
    return Pair(*(np.ascontiguousarray(sum(part)) for part in zip(*sums, strict=True))), sum(fits)


def _look_at_frames(problem: Problem, W: Approximation, H: Approximation) -> Pair:
    """What H's update needs: sums (N, K)."""
    spread_W, of_H = _spread(W), Pair(np.ascontiguousarray(H.mean), np.ascontiguousarray(H.harmonic))
    sums = Pair(np.empty(of_H.arithmetic.shape), np.empty(of_H.arithmetic.shape))

    def look(first: int, last: int) -> None:
        gather_frames(sums, spread_W, of_H, problem.spectra, make_cells(len(W.mean)), first, last)

    problem.workers.map(look, problem.chunks[:-1], problem.chunks[1:])
    return sums


def _spread(W: Approximation) -> Pair:
    """W's means as the kernels want them: frequencies contiguous, in whole tiles."""
    pair = Pair(*(spread(*value.shape[::-1]) for value in (W.mean, W.harmonic)))
    for padded, value in zip(pair, (W.mean, W.harmonic), strict=True):
        padded.values[:, : len(value)] = value.T
    return pair


def _residual(old: VBState, new: VBState) -> float:
    changes = [np.max(np.abs(value / old.values[name] - 1.0), initial=0.0) for name, value in new.values.items()]
    return float(max([new.W.change, new.H.change, *changes]))


def finish(problem: Problem, state: VBState, key: np.uint64, draws: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q, free scales as they are; the parameters and means of q for ``fit``."""
    release(problem.structure)
    values = {name: np.repeat(value[None], draws, axis=0) for name, value in state.values.items()}
    parameters: dict[str, Array] = {}
    factors = []
    for side, orders, q, child_of in zip(
        problem.sides, problem.orders, (state.W, state.H), (W_DRAWS, H_DRAWS), strict=True
    ):
        if orders is None:
            factors.append(np.broadcast_to(q.mean, (draws, *q.mean.shape)))
            continue
        factors.append(draw_from(q, orders, draws, child(key, child_of)))
        name = side.factor.name
        values[name] = side.as_variable(factors[-1])
        of_q = {"order": np.broadcast_to(orders.p, q.rho.shape), "rho": q.rho, "tau": q.tau, "mean": q.mean}
        parameters |= {f"{name}_{word}": side.as_variable(np.array(array)) for word, array in of_q.items()}
    if problem.structure.imputed is not None:
        cells = impute(problem.structure, factors, child(key, IMPUTED))
        values[problem.structure.imputed.name] = cells
    return values, parameters


ENGINE = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Exponential,),
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
