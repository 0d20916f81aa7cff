"""Gibbs sampling for Gamma-Poisson factorisations (Cemgil 2009, Algorithm 2), with exact moves along the orbit.

With C[f, k, n] the sources of a count, X = sum_k C, one sweep draws in this order::

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n))            only where x_fn > 0 and observed
    w_fk ~ Gamma(a_w + sum_n C, r_w + sum_n M_fn h_kn)
    h_kn ~ Gamma(a_h + sum_f C, r_h + sum_f M_fn w_fk)
    scale  w_k -> c w_k, h_k -> h_k / c            c generalised inverse Gaussian
    shear  w_k -> w_k + e w_j, h_j -> h_j - e h_k  e by slice sampling, all ordered pairs
    hyperparameters with a proper prior            slice sampling on the log scale

M is the mask times the exposure; a background is one more source that belongs to no component. A factor without a
prior has shape 1 and rate 0 in these conditionals. Scale and shear leave W H alone, and so the likelihood: they draw
from the prior along directions that the data cannot see. The shear changes the allocation, so it comes after H and
before the next C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.engine import Engine, Verdict
from nmf_zoo.inference.joint import LogJoint
from nmf_zoo.inference.layout import Layout, Weights, compress, weigh
from nmf_zoo.inference.prior_cells import PriorCells, prior_cells
from nmf_zoo.inference.propriety import is_proper
from nmf_zoo.inference.slice_sampling import draw_hyperparameters
from nmf_zoo.inference.start import start_factors, start_hyperparameters
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.gibbs import TINY, allocate_sources, draw_factor, draw_scales, make_scratch, move_shears
from nmf_zoo.kernels.streams import child, children
from nmf_zoo.results import checked_cells
from nmf_zoo.structure import Array, Factorisation

MOVES = ("scale", "shear")
N_STREAMS = 6  # children of a sweep's stream:
SOURCES, WEIGHTS, ACTIVATIONS, SCALES, SHEARS, HYPERPARAMETERS = range(N_STREAMS)


class GibbsState(NamedTuple):
    """W (F, K), Ht (N, K), the hyperparameters by name, and the counts by component of each side."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    of_features: Array
    of_samples: Array


class GibbsInfo(NamedTuple):
    """scale_move: root mean square of log c over the components, 0 without the move."""

    scale_move: float


@dataclass(frozen=True, kw_only=True)
class Gibbs:
    """Options of Gibbs sampling.

    Attributes
    ----------
    moves : which moves along the orbit follow each sweep: any of "scale" and "shear". They need both factors unknown.
    """

    moves: tuple[str, ...] = MOVES

    def __post_init__(self):
        given = (self.moves,) if isinstance(self.moves, str) else self.moves
        wrong = [move for move in given if move not in MOVES] if isinstance(given, Sequence) else given
        if wrong or not isinstance(given, Sequence):
            raise ValueError(f"moves: got {wrong!r}; expected a selection of {list(MOVES)}; () for none")
        object.__setattr__(self, "moves", tuple(given))


@dataclass(frozen=True)
class Problem:
    """What all chains share.

    ``priors`` is None when hyperparameters are drawn; ``checked`` are the cells of ``mean``.
    """

    structure: Factorisation
    options: Gibbs
    layout: Layout
    weights: Weights
    workers: Workers
    log_joint: LogJoint
    priors: PriorCells | None
    checked: tuple[Array, Array]


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Poisson counts with gamma (or proper flat) factors and proper hyperpriors."""
    if structure.likelihood.kind != "poisson":
        return Verdict(f"it allocates counts, and {structure.likelihood.name} is {structure.likelihood.kind}")
    if structure.data is None:
        return Verdict(f"nothing is observed in {structure.likelihood.name}")
    if not structure.is_integer:
        return Verdict(f"it allocates counts, and {structure.likelihood.name} holds {_describe_fractions(structure)}")
    return is_proper(structure)


def _describe_fractions(structure: Factorisation) -> str:
    rows, cols, x = structure.observed_cells()
    at = np.flatnonzero(x != np.floor(x))
    place = structure.place(rows[at[0]], cols[at[0]])
    return f"values that are not integers ({len(at)} of them), the first {x[at[0]]:g} at {place}"


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> Problem:
    """Lay out the data for the sweeps."""
    layout, weights = compress(structure), weigh(structure)
    return Problem(
        structure=structure,
        options=options,
        layout=layout,
        weights=weights,
        workers=workers,
        log_joint=LogJoint(structure, layout, weights, workers),
        priors=None if structure.unknowns else prior_cells(structure, {}),
        checked=checked_cells(structure.shape),
    )


def init(problem: Problem, key: np.uint64, start: Mapping[str, Array]) -> GibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = start_factors(problem.structure, key, start)
    values = start_hyperparameters(problem.structure, start)
    return GibbsState(W, Ht, values, np.zeros_like(W), np.zeros_like(Ht))


def step(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[GibbsState, GibbsInfo]:
    """One sweep."""
    structure, weights = problem.structure, problem.weights
    keys = children(key, N_STREAMS)
    priors = problem.priors or prior_cells(structure, state.values)
    _draw_sources(problem, state, keys[SOURCES])
    if not structure.W.is_fixed:
        rate = priors.rate_w + weights.over_samples(state.Ht)
        _draw_side(problem.workers, state.W, priors.shape_w + state.of_features, rate, keys[WEIGHTS])
    if not structure.H.is_fixed:
        rate = priors.rate_h + weights.over_features(state.W)
        _draw_side(problem.workers, state.Ht, priors.shape_h + state.of_samples, rate, keys[ACTIVATIONS])
    scale_move = 0.0
    if not structure.W.is_fixed and not structure.H.is_fixed:
        scale_move = _move(problem.options.moves, state, priors, key)
    if structure.unknowns:
        generator = np.random.Generator(np.random.Philox(key=int(keys[HYPERPARAMETERS])))
        draw_hyperparameters(structure, state.W, state.Ht.T, state.values, generator)
    return state, GibbsInfo(scale_move)


def _draw_sources(problem: Problem, state: GibbsState, key: np.uint64) -> None:
    """Allocate all counts; chunks own their rows of the long side, and sum into the short side in order."""
    layout = problem.layout
    major, minor = layout.sides(state.W, state.Ht)
    of_major, of_minor = layout.sides(state.of_features, state.of_samples)

    def chunk_counts(chunk: int) -> tuple[int, Array]:
        part, scratch = np.zeros_like(of_minor), make_scratch(layout, major.shape[1])
        return allocate_sources(layout, major, minor, chunk, of_major, part, scratch, key), part

    of_minor[:] = 0.0
    failures = 0
    for failed, part in problem.workers.map(chunk_counts, range(layout.n_chunks)):
        failures += failed
        of_minor += part
    if failures:
        raise RunFailed(
            f"gibbs: {failures} counts lie where W H is 0 or not finite: give a start with positive W H there"
        )


def _draw_side(workers: Workers, out: Array, shape: Array, rate: Array, key: np.uint64) -> None:
    """Draw one factor (rows, K) from its gamma conditional, the rows shared among the threads."""
    bounds = [len(out) * thread // workers.threads for thread in range(workers.threads + 1)]
    workers.map(lambda first, last: draw_factor(out, shape, rate, first, last, key), bounds[:-1], bounds[1:])


def _move(moves: tuple[str, ...], state: GibbsState, priors: PriorCells, key: np.uint64) -> float:
    """Move along the orbit of equal W H, in place; returns the size of the scale move."""
    W, Ht, scale_move = state.W, state.Ht, 0.0
    if "scale" in moves:
        scale = np.empty(W.shape[1])
        a, b = (2.0 * np.einsum("ik,ik->k", *pair) for pair in ((priors.rate_w, W), (priors.rate_h, Ht)))
        draw_scales(scale, priors.tilt, a, b, child(key, SCALES))
        np.maximum(np.multiply(W, scale, out=W), TINY, out=W)
        np.maximum(np.divide(Ht, scale, out=Ht), TINY, out=Ht)
        log_scale = np.log(scale)
        scale_move = math.sqrt(log_scale @ log_scale / len(scale))
    if "shear" in moves and W.shape[1] > 1:
        by_component = np.ascontiguousarray(W.T), np.ascontiguousarray(Ht.T)
        move_shears(*by_component, *(array.T for array in priors[:4]), child(key, SHEARS))
        W[:], Ht[:] = by_component[0].T, by_component[1].T
    return scale_move


def draw(problem: Problem, state: GibbsState, key: np.uint64) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure = problem.structure
    factors = {structure.W.name: structure.W.orient(state.W), structure.H.name: structure.H.orient(state.Ht.T)}
    fixed = {factor.name for factor in (structure.W, structure.H) if factor.is_fixed}
    values = {name: value for name, value in factors.items() if name not in fixed} | state.values
    if structure.imputed is not None:
        mean = structure.mean_at(state.W, state.Ht.T, structure.imputed.rows, structure.imputed.cols)
        values[structure.imputed.name] = np.random.Generator(np.random.Philox(key=int(key))).poisson(mean)
    rows, cols = problem.checked
    mean = np.einsum("ck,ck->c", state.W[rows], state.Ht[cols])
    return values, {"lp": problem.log_joint(state.W, state.Ht, values), "mean": mean}


ENGINE = Engine(
    name="gibbs", verb="sample", options=Gibbs, supports=supports, prepare=prepare, init=init, step=step, draw=draw
)
