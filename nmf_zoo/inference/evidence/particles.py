"""Populations of particles of W and H for sequential Monte Carlo: their data, their room and how they move.

The work on a population is cut into fixed chunks of chains, each with streams of its own, so that nothing depends on
the threads.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.layout import Layout, compress, likelihood_constant, weigh
from nmf_zoo.inference.prior_cells import PriorCells, prior_cells
from nmf_zoo.inference.sides import two_sides
from nmf_zoo.inference.sweeps import weight_arrays
from nmf_zoo.inference.trajectories import make_side_room, make_sides
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.denominators import WeightArrays
from nmf_zoo.kernels.row_trajectories import Stride
from nmf_zoo.kernels.tempering import (
    Pace,
    Population,
    Scratch,
    SideScratch,
    Target,
    draw_from_prior,
    move_chains,
)
from nmf_zoo.kernels.tuning import Side
from nmf_zoo.structure import Array, Factorisation, spans

CHAINS = 32  # of a chunk
FIRST_STEP, PATH, SHORTEST, LONGEST = 0.5, 3.0, 3, 32  # of trajectories: length * step is about PATH
TARGET, GAIN = 0.85, 1.0  # acceptance, and change of log step per acceptance amiss


@dataclass(frozen=True)
class Problem:
    """What all runs share; ``constant`` is what the log-likelihood holds beside the factors."""

    structure: Factorisation
    layout: Layout
    weights: WeightArrays
    priors: PriorCells
    by_component: tuple[Array, ...]
    sides: tuple[Side, Side]
    constant: float


class Moved(NamedTuple):
    """Acceptance of W's and H's rows, (blocks, width) each; 0 where a factor is known."""

    W: Array
    H: Array


def prepare(structure: Factorisation) -> Problem:
    """Lay out the data and the priors, hyperparameters being known."""
    layout, weights = compress(structure), weigh(structure)
    priors = PriorCells(*(np.array(cells, dtype=np.float64, order="C") for cells in prior_cells(structure, {})))
    turned = tuple(np.ascontiguousarray(cells.T) for cells in priors[:4])
    sides = make_sides(structure, layout, priors)
    constant = likelihood_constant(structure)
    return Problem(structure, layout, weight_arrays(weights), priors, turned, sides, constant)


def first_paces(problem: Problem) -> tuple[Pace, Pace]:
    """Of W and H, before anything is known."""
    W, H = (_first_pace(side) for side in problem.sides)
    return W, H


def _first_pace(side: Side) -> Pace:
    blocks, _, width = side.prior_rate.shape
    return Pace(np.full((blocks, width), FIRST_STEP), np.array([math.ceil(PATH / FIRST_STEP)]))


def target_at(problem: Problem, temperature: float) -> Target:
    """The target at a temperature."""
    structure = problem.structure
    W, H = (_heated(side, temperature) for side in problem.sides)
    draws = not structure.W.is_fixed, not structure.H.is_fixed
    layout = problem.layout
    return Target(np.array([temperature]), draws, layout, problem.weights, problem.priors, problem.by_component, (W, H))


def _heated(side: Side, temperature: float) -> Side:
    data = side.data
    layout = data.layout._replace(values=temperature * data.layout.values)
    return side._replace(data=data._replace(grid=temperature * data.grid, layout=layout))


def empty_population(problem: Problem, n_particles: int) -> Population:
    """Room for particles; a known factor stands in all of them."""
    (n_features, n_samples), rank = problem.structure.shape, problem.structure.rank
    W, Ht = np.empty((n_particles, n_features, rank)), np.empty((n_particles, n_samples, rank))
    if problem.structure.W.is_fixed:
        W[:] = problem.structure.W.prior.value
    if problem.structure.H.is_fixed:
        Ht[:] = problem.structure.H.prior.value.T
    return Population(W, Ht, np.empty(n_particles))


def require_room(structure: Factorisation, n_particles: int, at_once: int) -> None:
    """Refuse more particles than memory holds, two populations for each of the runs ``at_once``."""
    needed = 2 * 8.0 * at_once * n_particles * (sum(structure.shape) * structure.rank + 1)
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    known = hasattr(os, "sysconf") and all(name in os.sysconf_names for name in names)
    there = float(math.prod(map(os.sysconf, names))) if known else np.inf
    if needed > 0.8 * there:
        got = f"{n_particles} for {at_once} runs at once, {needed / 2**30:.1f} GiB"
        raise InputError("particles", got, f"less than 80% of the memory, {there / 2**30:.1f} GiB", "take fewer")


def draw_prior(problem: Problem, population: Population, workers: Workers, key: np.uint64) -> None:
    """Overwrite a population with draws from the prior."""
    target, paces = target_at(problem, 0.0), first_paces(problem)

    def chunk(first: int, last: int) -> None:
        draw_from_prior(target, population, make_scratch(problem, paces), first, last, key)

    workers.map(chunk, *zip(*spans(len(population.W), CHAINS), strict=True))


def move(
    problem: Problem,
    target: Target,
    paces: tuple[Pace, Pace],
    populations: tuple[Population, Population],
    ancestors: Array,
    workers: Workers,
    key: np.uint64,
) -> Moved:
    """Chains from the ancestors in the first population fill the second; the mean acceptance of every row."""
    before, after = populations

    def chunk(first: int, last: int) -> tuple[Array, Array]:
        scratch = make_scratch(problem, paces)
        move_chains(target, before, ancestors, after, scratch, np.array([first, last]), key)
        return scratch.sides[0].accepted, scratch.sides[1].accepted

    parts = workers.map(chunk, *zip(*spans(len(ancestors), CHAINS), strict=True))
    W, H = (sum(part[side] for part in parts) / len(after.W) for side in (0, 1))
    return Moved(W, H)


def make_scratch(problem: Problem, paces: tuple[Pace, Pace]) -> Scratch:
    (n_features, n_samples), rank = problem.structure.shape, problem.structure.rank
    shapes = problem.priors.shape_w, problem.priors.shape_h
    W, H = (_side_scratch(*arguments) for arguments in zip(problem.sides, shapes, paces, strict=True))
    return Scratch(
        (W, H),
        np.empty((n_features, rank)),
        np.empty((n_samples, rank)),
        np.empty((rank, n_features)),
        np.empty((rank, n_samples)),
        np.empty((3, rank)),
        np.empty(len(problem.layout.values)),
    )


def _side_scratch(side: Side, shape: Array, pace: Pace) -> SideScratch:
    room = make_side_room(side, shape)
    blocks, rank, width = side.prior_rate.shape
    stride = Stride(np.ones((blocks, rank, width)), np.zeros((blocks, rank, rank, width)), pace.step, pace.length)
    return SideScratch(room.rows, stride, room.block, np.empty(shape.shape), np.zeros((blocks, width)))


def adapt(problem: Problem, paces: tuple[Pace, Pace], moved: Moved) -> None:
    """Every row's step by its acceptance in the population, and a length that suits three rows in four; in place."""
    for side, pace, accepted in zip(problem.sides, paces, moved, strict=True):
        pace.step[:] = np.minimum(pace.step * np.exp(GAIN * (accepted - TARGET)), PATH / SHORTEST)
        quarter = max(float(np.quantile(pace.step.ravel()[: side.n_rows], 0.25)), PATH / LONGEST)
        pace.length[0] = max(math.ceil(PATH / quarter), SHORTEST)


def mean_acceptance(problem: Problem, moved: Moved) -> tuple[float, float]:
    """Of W's and H's rows; NaN where a factor is known."""
    factors = problem.structure.W, problem.structure.H
    W, H = (
        np.nan if factor.is_fixed else float(np.mean(accepted.ravel()[: side.n_rows]))
        for factor, side, accepted in zip(factors, problem.sides, moved, strict=True)
    )
    return W, H


def variables(problem: Problem, population: Population, which: Array) -> dict[str, Array]:
    """The model's variables at some of the particles."""
    sides = zip(two_sides(problem.structure), (population.W[which], population.Ht[which]), strict=True)
    return {side.factor.name: np.array(side.as_variable(array)) for side, array in sides if not side.is_fixed}
