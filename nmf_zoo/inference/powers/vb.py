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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.errors import warn_caller
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.powers.spectra import Spectra, read_spectra
from nmf_zoo.inference.shared.acceleration import Momentum, ahead_by_ratio, raise_bound
from nmf_zoo.inference.shared.factor_view import Side, impute, sum_to, two_sides
from nmf_zoo.inference.shared.hyperparameters import untied
from nmf_zoo.inference.shared.layout import MOST_CHUNKS
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_powers, takes_priors
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.numerics.gig_moments import Orders, draw_gig_factor, fill_gig_moments, tabulate
from nmf_zoo.kernels.numerics.momentum import GENTLE
from nmf_zoo.kernels.numerics.multiplicative import column_changes
from nmf_zoo.kernels.powers.composite_bound import MeanPair, gather_features, gather_frames, make_cells, spread
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Exponential, Factorisation, GammaPrior, InverseGammaPrior, Unknown, even_bounds

CHUNK_CELLS = 1 << 15  # of the spectrogram: a chunk has at least so many
LARGEST = 1e150  # of a start: its products stay numbers
W_DRAWS, H_DRAWS, IMPUTED = range(3)  # children of the stream of the final draws


class PowerVBState(NamedTuple):
    """q of W and of H, the free scales by name, and what W's update needs: sums (F, K) of E / m and of G x / l^2.

    bound : of this q; momentum : how hard the next update is pushed; updated : laws of W and of H where the last update
    led, before it was pushed
    """

    W: GIGApproximation
    H: GIGApproximation
    values: dict[str, Array]
    sums: MeanPair
    bound: float = -np.inf
    momentum: Momentum = Momentum(GENTLE)
    updated: Any = None


class PowerVBInfo(NamedTuple):
    """objective: the bound, in nats; residual: 0 at a fixed point.

    The residual is the largest change of a harmonic mean, relative to its column's largest, or of a scale, relative to
    itself.
    """

    objective: float
    residual: float


@dataclass(frozen=True)
class PowerVBProblem:
    """What all restarts share. ``orders``: of q(W) and of q(H), None of a known factor; ``chunks``: of frames."""

    structure: Factorisation
    options: VB
    sides: tuple[Side, Side]
    spectra: Spectra
    constant: float
    orders: tuple[Orders | None, Orders | None]
    chunks: Array
    workers: Workers


# -- what it can run -------------------------------------------------------------------------------------------------


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Powers; known hyperparameters, or free scales of inverse gammas; a posterior that exists."""
    verdict = takes_samples(structure, options)
    return verdict and (_takes_unknowns(structure) if structure.unknowns else is_proper(structure))


def takes_samples(structure: Factorisation, options: VB) -> Verdict:
    """The same of samples among others, by which alone no posterior need exist."""
    verdict = takes_powers(structure) and takes_priors(structure, GammaPrior, InverseGammaPrior)
    return verdict and _takes_options(options)


def _takes_options(options: VB) -> Verdict:
    if options.order != "cemgil":
        return Verdict(f"order={options.order!r} is for counts: leave it out")
    if options.precision != "float64":
        return Verdict(f"precision={options.precision!r} is for counts: leave it out")
    if options.batch_size is not None:
        return Verdict(f"batch_size={options.batch_size} is for counts: leave it out")
    return CAN_RUN


def _takes_unknowns(structure: Factorisation) -> Verdict:
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: VB takes known or free hyperparameters")
    scales = {unknown.name for side in two_sides(structure) for unknown in free_scales(side)}
    others = [name for name in structure.unknowns if name not in scales or _is_elsewhere(structure, name)]
    if others:
        return Verdict(
            f"hyperparameter {', '.join(others)} is free: of powers' priors only inverse-gamma scales may be"
        )
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"{', '.join(flat)} has no prior and the other factor's scale is free: nothing pins the scale")
    return CAN_RUN


def free_scales(side: Side) -> list[Unknown]:
    prior = side.factor.prior
    return [prior.scale] if isinstance(prior, InverseGammaPrior) and isinstance(prior.scale, Unknown) else []


def _is_elsewhere(structure: Factorisation, name: str) -> bool:
    """Whether this scale is something else, too."""
    uses = [unknown.name for factor in (structure.W, structure.H) for unknown in factor.unknowns]
    scales = [unknown.name for side in two_sides(structure) for unknown in free_scales(side)]
    return uses.count(name) > scales.count(name)


# -- how it runs -----------------------------------------------------------------------------------------------------


def prepare(structure: Factorisation, options: VB, workers: Workers) -> PowerVBProblem:
    """Lay out the data; warn of scales that nothing holds back."""
    sides = two_sides(structure)
    loose = [name for side in sides for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warn_caller(f"{', '.join(loose)}: {message}")
    spectra, constant = read_spectra(structure)
    of_W, of_H = (orders_of(side) for side in sides)
    return PowerVBProblem(structure, options, sides, spectra, constant, (of_W, of_H), chunks_of(spectra), workers)


def chunks_of(spectra: Spectra) -> Array:
    """Boundaries of chunks of frames."""
    n_chunks = int(np.clip(spectra.power.size // CHUNK_CELLS, 1, MOST_CHUNKS))
    return even_bounds(len(spectra.power), n_chunks)


def init(problem: PowerVBProblem, key: np.uint64, start: Mapping[str, Array]) -> PowerVBState:
    """q sharp at the start given, or at a random one at the scale of the data."""
    factors = start_factors(problem.structure, key, start, problem.options.start)
    W, H = (GIGApproximation(value, value) for value in (np.minimum(factor, LARGEST) for factor in factors))
    values = start_hyperparameters(problem.structure, start)
    return PowerVBState(W, H, values, look_at_features(problem, W, H)[0])


def step(
    problem: PowerVBProblem, state: PowerVBState, key: np.uint64 | None = None
) -> tuple[PowerVBState, PowerVBInfo]:
    """One iteration."""
    updated, W = _update_both(problem, state)

    def push() -> PowerVBState:
        laws = [pushed(new, old, state.momentum.push) for new, old in zip(updated, state.updated, strict=True)]
        return _at(problem, laws, state)

    pushes = problem.options.accelerate is not None
    new = raise_bound(state, updated, pushes, push, lambda: _at(problem, updated, state, W))
    return new, PowerVBInfo(new.bound, _residual(state, new))


def _update_both(problem: PowerVBProblem, state: PowerVBState) -> tuple[list[GIGParameters], GIGApproximation]:
    """Laws of W and of H where their updates lead, and q(W) there."""
    left, right = problem.sides
    law = update(left, state.W, state.sums, state.values)
    W = moments_at(problem.orders[0], law, state.W, problem.workers, left.free)
    if right.is_fixed:
        return [law, GIGParameters(None, None)], W
    return [law, update(right, state.H, look_at_frames(problem, W, state.H), state.values)], W


def pushed(new: GIGParameters, old: GIGParameters, push: float) -> GIGParameters:
    """A law beyond an update, as seen from the one before; what is 0 stays."""
    return GIGParameters(*(None if a is None else ahead(a, b, push) for a, b in zip(new, old, strict=True)))


def _at(
    problem: PowerVBProblem, laws: list[GIGParameters], state: PowerVBState, W: GIGApproximation | None = None
) -> PowerVBState:
    """The state at new laws, free scales at the bound's peak; ``W`` when its moments are known."""
    left, right = problem.sides
    W = moments_at(problem.orders[0], laws[0], state.W, problem.workers, left.free) if W is None else W
    H = moments_at(problem.orders[1], laws[1], state.H, problem.workers, right.free)
    values = _peak_scales(problem, (W, H), state.values) if state.values else state.values
    sums, fit = look_at_features(problem, W, H)
    own = sum(own_part(side, q, values) for side, q in zip(problem.sides, (W, H), strict=True) if not side.is_fixed)
    return PowerVBState(W, H, values, sums, fit + own + problem.constant)


def _peak_scales(
    problem: PowerVBProblem, qs: tuple[GIGApproximation, ...], values: Mapping[str, Array]
) -> dict[str, Array]:
    """The free scales at which the bound is highest, sum of shapes / sum E[1 / v] over the cells they serve."""
    shapes, inverses = ({name: np.zeros(np.shape(value)) for name, value in values.items()} for _ in range(2))
    for side, q in zip(problem.sides, qs, strict=True):
        for unknown in free_scales(side):
            prior_shape = np.broadcast_to(side.factor.prior.shape.resolve(values), side.factor.free_shape)
            shapes[unknown.name] += sum_to(prior_shape, unknown.shape).reshape(unknown.variable_shape)
            served = sum_to(side.turn(1.0 / q.harmonic[:, side.free]), unknown.shape)
            inverses[unknown.name] += served.reshape(unknown.variable_shape)
    return {name: shapes[name] / inverses[name] for name in values}


def look_at_features(problem: PowerVBProblem, W: GIGApproximation, H: GIGApproximation) -> tuple[MeanPair, float]:
    """(what W's update needs, the spectrogram's part of the bound)"""
    n_features, rank = W.mean.shape
    spread_W, of_H = _spread(W), MeanPair(np.ascontiguousarray(H.mean), np.ascontiguousarray(H.harmonic))

    def look(first: int, last: int) -> tuple[float, MeanPair]:
        sums = MeanPair(spread(rank, n_features), spread(rank, n_features))
        fit = gather_features(sums, spread_W, of_H, problem.spectra, make_cells(n_features), first, last)
        return fit, MeanPair(*(part.values[:, :n_features].T for part in sums))

    fits, sums = zip(*problem.workers.map(look, problem.chunks[:-1], problem.chunks[1:]), strict=True)
    return MeanPair(*(np.ascontiguousarray(sum(part)) for part in zip(*sums, strict=True))), sum(fits)


def look_at_frames(problem: PowerVBProblem, W: GIGApproximation, H: GIGApproximation) -> MeanPair:
    """What H's update needs: sums (N, K)."""
    spread_W, of_H = _spread(W), MeanPair(np.ascontiguousarray(H.mean), np.ascontiguousarray(H.harmonic))
    sums = MeanPair(np.empty(of_H.arithmetic.shape), np.empty(of_H.arithmetic.shape))

    def look(first: int, last: int) -> None:
        gather_frames(sums, spread_W, of_H, problem.spectra, make_cells(len(W.mean)), first, last)

    problem.workers.map(look, problem.chunks[:-1], problem.chunks[1:])
    return sums


def _spread(W: GIGApproximation) -> MeanPair:
    """W's means as the kernels want them: frequencies contiguous, in whole tiles."""
    pair = MeanPair(*(spread(*value.shape[::-1]) for value in (W.mean, W.harmonic)))
    for padded, value in zip(pair, (W.mean, W.harmonic), strict=True):
        padded.values[:, : len(value)] = value.T
    return pair


def _residual(old: PowerVBState, new: PowerVBState) -> float:
    changes = [np.max(np.abs(value / old.values[name] - 1.0), initial=0.0) for name, value in new.values.items()]
    return float(max([relative_change(new.W.changes), relative_change(new.H.changes), *changes]))


def finish(
    problem: PowerVBProblem, state: PowerVBState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
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
        drawn, known, name = draw_from(q, orders, draws, child(key, child_of)), side.factor.known, side.factor.variable
        factors.append(drawn if known is None else side.turn(known.whole(side.turn(drawn))))
        values |= side.factor.variables(side.turn(factors[-1]))
        of_q = {
            "order": np.broadcast_to(orders.p, q.rho.shape),
            "rho": q.rho,
            "tau": q.tau,
            "mean": q.mean[:, side.free],
        }
        parameters |= {f"{name}_{word}": side.as_variable(np.array(array)) for word, array in of_q.items()}
    if problem.structure.imputed is not None:
        generators = repeat(generator_of(child(key, IMPUTED)))
        values[problem.structure.imputed.name] = impute(problem.structure, factors[0], factors[1], generators)
    return values, parameters


# -- q of one factor -------------------------------------------------------------------------------------------------


SMALL = 1 << 12  # cells of a factor that are not worth sharing out among threads
MOST_TABLES, WORTH_A_TABLE = 32, 1 << 10  # distinct orders of a factor with tables; cells of the factor for each
SMALLEST, LARGEST_CHANGE = 1e-300, 1e300


class GIGApproximation(NamedTuple):
    """q of one factor, (rows, K) each; a known factor and the start have a value only, which is both means.

    mean : E[v]; harmonic : 1 / E[1/v]; rho, tau : see above; height : what the bound owes to rho and tau alone;
    changes : (2, K), the largest change of a harmonic mean and the largest one of each column

    Beside known components rho and tau are those of the others, in order.
    """

    mean: Array
    harmonic: Array
    rho: Any = None
    tau: Any = None
    height: float = 0.0
    changes: Any = None


class GIGParameters(NamedTuple):
    """rho and tau of q of a factor, (rows, K); None of a known one."""

    rho: Any
    tau: Any


def orders_of(side: Side) -> Orders | None:
    """The orders of q of a factor, with tables of those that many cells share; None of a known one."""
    if side.is_fixed:
        return None
    if side.is_gamma:
        p = side.prior({})[0]
    else:
        scales = {unknown.name: np.ones(unknown.variable_shape) for unknown in free_scales(side)}
        p = -side.shape_and_scale(scales)[0]
    p = np.ascontiguousarray(p, dtype=np.float64)
    distinct, which = np.unique(np.abs(p), return_inverse=True)
    size = side.factor.free_shape[0] * side.factor.free_shape[1]
    if len(distinct) > min(MOST_TABLES, size // WORTH_A_TABLE):
        return Orders(p, np.full(p.shape, -1), np.empty((0, *_table(1.0).shape)))
    return Orders(p, which.reshape(p.shape), np.stack([_table(float(nu)) for nu in distinct]))


_table = lru_cache(MOST_TABLES)(tabulate)


def update(side: Side, q: GIGApproximation, sums: MeanPair, values: Mapping[str, Array]) -> GIGParameters:
    if side.is_fixed:
        return GIGParameters(None, None)
    (rate, scale), harmonic = prior_terms(side, values), q.harmonic[:, side.free]
    arithmetic, of_inverses = (part[:, side.free] for part in sums)
    return GIGParameters(2.0 * (rate + arithmetic), 2.0 * (scale + harmonic * of_inverses * harmonic))


def prior_terms(side: Side, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(r, t) of the prior: its density is proportional to v^(p - 1) exp(-r v - t / v)."""
    zero = np.zeros((1, 1))
    return (side.prior(values)[1], zero) if side.is_gamma else (zero, side.shape_and_scale(values)[1])


def ahead(new: Array, old: Array, push: float) -> Array:
    with np.errstate(over="ignore"):  # ratios are clipped
        beyond = ahead_by_ratio(np.maximum(new, SMALLEST), np.maximum(old, SMALLEST), push)
    return np.where((new > SMALLEST) & (old > SMALLEST), beyond, new)


def moments_at(
    orders: Orders | None, law: GIGParameters, before: GIGApproximation, workers: Workers, free: slice = slice(None)
) -> GIGApproximation:
    """q of a factor with its moments, and how far from those before, in its ``free`` columns; others stay."""
    if orders is None:
        return before
    if law.rho.shape[1] < before.mean.shape[1]:
        mean, harmonic = before.mean.copy(), before.harmonic.copy()
        old = (np.ascontiguousarray(array[:, free]) for array in (mean, harmonic))
        part = moments_at(orders, law, GIGApproximation(next(old), next(old)), workers)
        mean[:, free], harmonic[:, free] = part.mean, part.harmonic
        return part._replace(mean=mean, harmonic=harmonic)
    mean, harmonic = np.empty_like(law.rho), np.empty_like(law.rho)

    def fill(first: int, last: int) -> tuple[float, Array]:
        height = fill_gig_moments(mean, harmonic, law.rho, law.tau, orders, first, last)
        return height, column_changes(before.harmonic, harmonic, first, last)

    bounds = even_bounds(len(mean), min(max(mean.size // SMALL, 1), MOST_CHUNKS))
    heights, changes = zip(*workers.map(fill, bounds[:-1], bounds[1:]), strict=True)
    return GIGApproximation(mean, harmonic, law.rho, law.tau, sum(heights), np.max(changes, axis=0))


def relative_change(changes: Array | None) -> float:
    """The largest change of a harmonic mean relative to its column's largest; 0 of a known factor."""
    if changes is None:
        return 0.0
    steps, tops = changes
    with np.errstate(over="ignore"):  # from the smallest numbers to the largest
        change = float(np.max(steps / np.maximum(tops, SMALLEST), initial=0.0))
    return min(change, LARGEST_CHANGE)


def own_part(side: Side, q: GIGApproximation, values: Mapping[str, Array]) -> float:
    """What the bound owes to a factor beside the cells of X: all of B but the constant and sum (log m + x / l)."""
    if side.is_flat:
        return q.height
    shape, rate = side.prior(values) if side.is_gamma else side.shape_and_scale(values)
    moments = q.mean[:, side.free] if side.is_gamma else 1.0 / q.harmonic[:, side.free]
    constants = shape * np.log(rate) - gammaln(shape)
    return q.height - float(np.sum(rate * moments)) + float(np.sum(constants)) * (moments.size / constants.size)


def draw_from(q: GIGApproximation, orders: Orders, draws: int, key: np.uint64) -> Array:
    out = np.empty((draws, *q.rho.shape))
    for draw in range(draws):
        draw_gig_factor(out[draw], q.rho, q.tau, orders, child(key, draw))
    return out


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(Exponential,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)
