"""Gibbs sampling of a normal factorisation with errors of measurement: exact draws of every cell given the others.

With t = 1 / sigma^2, which may differ between cells, and exposures e, one sweep draws in this order::

    w_fk ~ exp(l w - q w^2 / 2) w^power on [0, inf)      each cell of W given all others of its row, H and sigma
    h_kn                                                 alike, at the new W
    scale  w_k -> c w_k, h_k -> h_k / c                  slice sampling of log c
    shear  w_k -> w_k + e w_j, h_j -> h_j - e h_k        e truncated normal, where priors are flat or exponential, half-
                                                         normal or truncated normal
    sigma with a proper prior                            slice sampling on the log scale, one for all cells or each tie
    hyperparameters with a proper prior                  their own conditional, or slice sampling

with q = sum t e^2 h_k^2 + curve and l = sum t e (x - b - e sum_{j != k} w_j h_j) h_k - rate
(:mod:`nmf_zoo.kernels.normal.factor_draws`; Schmidt, Winther and Hansen 2009, Bayesian non-negative matrix
factorization, eq. 10 to 13, have exponential priors and one sigma). Scale and shear leave W H alone, and so the
likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs, GibbsInfo
from nmf_zoo.inference.normal.priors import cell_terms
from nmf_zoo.inference.normal.squares import MeasuredCells, Weighted
from nmf_zoo.inference.shared.factor_view import as_variables, impute, two_sides
from nmf_zoo.inference.shared.hyperparameter_draws import Hyperparameters, draw_hyperparameters, lay_out_hyperparameters
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.propriety import is_proper
from nmf_zoo.inference.shared.requirements import takes_priors, takes_scale
from nmf_zoo.inference.shared.slice_sampling import draw_orbit_scales, slice_draw
from nmf_zoo.inference.shared.start import start_factors, start_hyperparameters
from nmf_zoo.kernels.normal.factor_draws import CellTerms, draw_rows, move_shears
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import Engine, Verdict, has_data
from nmf_zoo.runtime.memory import release
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Factorisation,
    GammaPrior,
    HalfNormalPrior,
    Normal,
    TruncatedNormalPrior,
    Unknown,
)

SCALES = 1e-120, 1e120  # of the largest cell, whose square is taken
CYCLES = 2  # over the cells of a row: their Gram matrix costs more than they do
WEIGHTS, ACTIVATIONS, MOVES, SIGMA, HYPERPARAMETERS = range(5)  # children of a sweep's stream


class NormalGibbsState(NamedTuple):
    """W (F, K), Ht (N, K), and the unknown hyperparameters by name, sigma among them."""

    W: Array
    Ht: Array
    values: dict[str, Array]


@dataclass(frozen=True)
class NormalGibbsProblem:
    """What all chains share. ``weighted`` is None where sigma is drawn, ``terms`` where hyperparameters are."""

    structure: Factorisation
    options: Gibbs
    squares: MeasuredCells
    weighted: Weighted | None
    terms: tuple[CellTerms, CellTerms] | None
    hyperparameters: Hyperparameters | None
    checked: tuple[Array, Array]

    @property
    def is_free(self) -> bool:
        """Nothing is known of either factor, so that components may move along the orbit."""
        return bool(self.structure.free_in_both.all())


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Flat, gamma, half-normal or truncated normal factors; sigma known or with a proper prior."""
    if options.temperatures is not None:
        return Verdict("temperatures= is for counts: leave it out, or start='search' and say that it is one mode")
    if options.trajectories == "always":
        return Verdict("trajectories= are for counts and powers: leave it out")
    asked = has_data(structure) and takes_priors(structure, GammaPrior, HalfNormalPrior, TruncatedNormalPrior)
    asked = asked and takes_scale(structure, "Gibbs", *SCALES)
    return asked and is_proper(structure)


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> NormalGibbsProblem:
    """Lay out the data for the sweeps."""
    squares = MeasuredCells(structure)
    weighted = None if structure.likelihood.unknowns else squares.weigh({})
    hyperparameters = lay_out_hyperparameters(structure, options.moves)
    release(structure)
    return NormalGibbsProblem(
        structure=structure,
        options=options,
        squares=squares,
        weighted=weighted,
        terms=both_terms(structure, {}) if hyperparameters is None else None,
        hyperparameters=hyperparameters,
        checked=checked_cells(structure.shape),
    )


def both_terms(structure: Factorisation, values: Mapping[str, Array]) -> tuple[CellTerms, CellTerms]:
    """The priors' terms of W and of H."""
    W, H = (cell_terms(side, values) for side in two_sides(structure))
    return W, H


def init(problem: NormalGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> NormalGibbsState:
    """The start given, or a random one at the scale of the data."""
    W, Ht = (np.array(factor, order="C") for factor in start_factors(problem.structure, key, start))
    for side, factor in zip(two_sides(problem.structure), (W, Ht), strict=True):
        if not side.is_fixed:
            np.maximum(factor[:, side.free], TINY, out=factor[:, side.free])
    return NormalGibbsState(W, Ht, start_hyperparameters(problem.structure, start))


def step(problem: NormalGibbsProblem, state: NormalGibbsState, key: np.uint64) -> tuple[NormalGibbsState, GibbsInfo]:
    """One sweep."""
    structure, (W, Ht, values) = problem.structure, state
    weighted = problem.weighted or problem.squares.weigh(values)
    terms = problem.terms or both_terms(structure, values)
    factors = W, Ht
    for which, side in enumerate(two_sides(structure)):
        if not side.is_fixed:
            draw_factor(weighted, which, factors, terms[which], np.flatnonzero(side.are_free), child(key, which))
    scale_move = _move(problem, state, terms, child(key, MOVES)) if problem.is_free else 0.0
    if structure.likelihood.unknowns:
        draw_sigma(problem.squares, W, Ht, values, generator_of(child(key, SIGMA)))
    scale = draw_hyperparameters(problem.hyperparameters, W, Ht, values, child(key, HYPERPARAMETERS))
    if scale is not None:
        rescale(W, Ht, scale)
    return state, GibbsInfo(scale_move)


def draw_factor(
    weighted: Weighted, which: int, factors: tuple[Array, Array], terms: CellTerms, columns: Array, key: np.uint64
) -> None:
    """W (``which`` 0) or Ht (1) given the other, in place, of it the ``columns`` that are not known."""
    own, other = factors[which], factors[1 - which]
    for rows, normals in weighted.blocks(which, other):
        part = CellTerms(*(term[rows] for term in terms))
        draw_rows(own[rows], normals, part, columns, rows.start, CYCLES, key)


def _move(
    problem: NormalGibbsProblem, state: NormalGibbsState, terms: tuple[CellTerms, CellTerms], key: np.uint64
) -> float:
    """Along the orbit of equal W H, in place; returns the size of the scale move."""
    structure, (W, Ht, values), moves, size = problem.structure, state, problem.options.moves, 0.0
    if "scale" in moves:
        log_c = np.log(draw_orbit_scales(structure, W, Ht.T, values, generator_of(child(key, 0))))
        rescale(W, Ht, np.exp(log_c))
        size = float(np.sqrt(np.mean(np.square(log_c))))
    if "shear" in moves and not any(np.any(own.power) for own in terms):
        move_shears(W, Ht, *terms, child(key, 1))
    return size


def rescale(W: Array, Ht: Array, c: Array) -> None:
    """Multiply the components of W and divide those of H, in place."""
    W *= c
    Ht /= c


def draw_sigma(
    squares: MeasuredCells, W: Array, Ht: Array, values: dict[str, Array], generator: np.random.Generator
) -> None:
    """An unknown sigma given W H, in place of its entry in ``values``."""
    unknown = squares.sigma
    assert isinstance(unknown, Unknown)
    halves = (squares.tied(np.square(squares.residuals(W, Ht))) / 2.0).reshape(unknown.variable_shape)
    counts = squares.counts.reshape(unknown.variable_shape)

    def log_density(log_sigma: Array) -> Array:
        of_prior = unknown.prior.log_density(np.exp(log_sigma)) + log_sigma
        return of_prior - counts * log_sigma - halves * np.exp(-2.0 * log_sigma)

    values[unknown.name] = np.exp(slice_draw(log_density, np.log(values[unknown.name]), generator))


def draw(
    problem: NormalGibbsProblem, state: NormalGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, (W, Ht, values) = problem.structure, state
    found = {**as_variables(structure, W.copy(), Ht.copy()), **values}
    if structure.imputed is not None:
        found[structure.imputed.name] = impute(structure, W[None], Ht[None], [generator_of(key)], values)[0]
    mean = followed_means(W, Ht, problem.checked)
    lp = problem.squares.log_likelihood(problem.squares.residuals(W, Ht), values)
    lp += structure.W.log_density(W, found) + structure.H.log_density(Ht.T, found)
    lp += sum(float(np.sum(own.prior.log_density(values[name]))) for name, own in structure.unknowns.items())
    return found, {"lp": np.float64(lp + structure.log_imputed(W, Ht.T, found)), "mean": mean}


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(Normal,),
    takes_known=True,
    projects=5,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    draw=draw,
    sweep_in_iterations=lambda structure: 1.2,  # either draws or moves each cell of W and H in turn
)
