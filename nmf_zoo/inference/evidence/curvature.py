"""A normal density of the cube roots of all cells, from the curvature of the log joint density at its mode.

For the last bridge of :mod:`nmf_zoo.inference.evidence.chib_bridge` where draws are too few to fit one: of d cells a
fit needs more than d of them. In the cube roots u of the cells v the density of gamma variables has no third derivative
at its mode (Wilson & Hilferty), so that its curvature there says nearly all. On the scale z = log v = 3 log u, at the
mode of the density of u, with m = W H + background / exposure and A the priors' shapes less 1/3::

    precision of z = diag(A) + sum_fn x / m^2  grad(wh) grad(wh)' + (weight - x / m) w_fk h_kn between w_fk and h_kn

The mean of z is not the mode, since w h has third derivatives; `_shift` moves it there.

Given the shorter side's rows the longer side's are independent of each other, K at a time. So the matrix is an arrow:
the longer side is eliminated, a block of K x K for each row, and the rest is one matrix of (rows of the shorter side *
K) squared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from nmf_zoo.inference.evidence.posterior_runs import FactorPair
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.inference.shared.layout import nonzero_cells
from nmf_zoo.structure import Array, Factorisation

LARGEST = 1500  # rows of the matrix that is left after elimination
MOST_CELLS = 1 << 27  # of the blocks between the two sides: 1 GiB
SCALING_STEPS, MOST_STEPS = 100, 60  # multiplicative, then Newton's, towards the mode
PAIRS = 40  # of opposite draws, for the mean slope
LEAST_POWER = 2.0 / 3.0  # shapes below 1, of cells that may be 0, are far from normal
NEAR = 1e-6  # relative step at which it is found
THIRD = 1.0 / 3.0


class CurvatureTables(NamedTuple):
    """x, mask * exposure and background / exposure, (short, long); shapes less 1/3 and rates of both sides."""

    x: Array
    weight: Array
    offset: Array
    power_s: Array
    rate_s: Array
    power_l: Array
    rate_l: Array


class Arrow(NamedTuple):
    """Precision of z: ``root`` (S K, S K) of the shorter side with the longer eliminated, ``blocks`` (L, K, K) of the
    longer side's rows, both lower triangular roots; ``slopes`` (L, K, S K), by which they follow the shorter side."""

    root: Array
    blocks: Array
    slopes: Array


def has_curvature(structure: Factorisation) -> bool:
    """Whether nothing of both factors is known, and the matrices are not too large."""
    if not (structure.W.is_free and structure.H.is_free):
        return False
    short, long = sorted(structure.shape)
    return short * structure.rank <= LARGEST and short * long * structure.rank**2 <= MOST_CELLS


def is_turned(structure: Factorisation) -> bool:
    """Whether H is the shorter side."""
    return structure.shape[1] < structure.shape[0]


def tabulate(structure: Factorisation) -> CurvatureTables:
    """The model as one table, shorter side first."""
    rows, cols, values = nonzero_cells(structure)
    x = np.zeros(structure.shape)
    x[rows, cols] = values
    priors, exposure, background = prior_cells(structure, {}), structure.exposure_table(), structure.background_table()
    seen = np.zeros(structure.shape)
    at = structure.observed_cells()
    seen[at[0], at[1]] = 1.0
    cells, weight, offset = x, seen * exposure, background / exposure
    of_w, of_h = (priors.shape_w - THIRD, priors.rate_w), (priors.shape_h - THIRD, priors.rate_h)
    if is_turned(structure):
        return CurvatureTables(cells.T, weight.T, offset.T, *of_h, *of_w)
    return CurvatureTables(cells, weight, offset, *of_w, *of_h)


class CurvatureNormal:
    """The density: cells whose z, 3 (u / u~ - 1) with the mode's u~, are normal around ``shift``."""

    def __init__(self, structure: Factorisation, short: Array, long: Array, arrow: Arrow):
        self.turned, self.short, self.long, self.arrow = is_turned(structure), short, long, arrow
        self.shift = np.zeros_like(short), np.zeros_like(long)
        halves = (np.sum(np.log(np.diagonal(each, axis1=-2, axis2=-1))) for each in (arrow.root, arrow.blocks))
        roots = THIRD * (np.sum(np.log(short)) + np.sum(np.log(long)))
        size = short.size + long.size
        self.constant = float(sum(halves)) - 0.5 * size * np.log(2.0 * np.pi) - float(roots)

    def log_density(self, pair: FactorPair) -> Array:
        """Of the cells of draws."""
        short, long = pair[::-1] if self.turned else pair
        z_s, z_l = (
            3.0 * np.cbrt(own / mode) - 3.0 - shift
            for own, mode, shift in zip((short, long), (self.short, self.long), self.shift, strict=True)
        )
        flat = z_s.reshape(len(z_s), -1)
        rest = z_l + self._follow(flat)
        squares = np.sum((flat @ self.arrow.root) ** 2, axis=1)
        squares += np.sum(np.einsum("lkj,dlk->dlj", self.arrow.blocks, rest, optimize=True) ** 2, axis=(1, 2))
        volume = 2.0 * THIRD * (np.sum(np.log(short), axis=(1, 2)) + np.sum(np.log(long), axis=(1, 2)))
        return self.constant - 0.5 * squares - volume

    def draw(self, n: int, generator: np.random.Generator) -> FactorPair:
        """Cells may be 0 or below: there the density of the model is 0."""
        short, long = (
            mode * (1.0 + THIRD * (z + shift)) ** 3
            for mode, z, shift in zip((self.short, self.long), self.draw_centred(n, generator), self.shift, strict=True)
        )
        return FactorPair(long, short) if self.turned else FactorPair(short, long)

    def draw_centred(self, n: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """z of both sides, less its mean, (n, rows, K)."""
        (S, K), L = self.short.shape, len(self.long)
        flat = solve_triangular(self.arrow.root.T, generator.standard_normal((S * K, n))).T
        noise = generator.standard_normal((n, L, K))
        own = np.linalg.solve(np.swapaxes(self.arrow.blocks, 1, 2), noise.transpose(1, 2, 0)).transpose(2, 0, 1)
        return flat.reshape(n, S, K), own - self._follow(flat)

    def _follow(self, flat: Array) -> Array:
        """(draws, L, K), how far the longer side's rows follow the shorter side's deviations."""
        L, K, size = self.arrow.slopes.shape
        return (flat @ self.arrow.slopes.reshape(L * K, size).T).reshape(len(flat), L, K)


def at_mode(structure: Factorisation, start: FactorPair, generator: np.random.Generator) -> CurvatureNormal | None:
    """The normal density at the mode next to a start; None where cells may be 0, or the curvature has no root."""
    tables = tabulate(structure)
    if min(tables.power_s.min(), tables.power_l.min()) < LEAST_POWER:
        return None
    short, long = (np.array(part) for part in (start[::-1] if is_turned(structure) else start))
    for _ in range(SCALING_STEPS):
        short, long = _scale(tables, short, long)
    for _ in range(MOST_STEPS):
        try:
            arrow = curve(tables, short, long)
        except np.linalg.LinAlgError:
            return None
        steps = solve(arrow, *_slopes(tables, short, long))
        if max(np.abs(step).max() for step in steps) < NEAR:
            found = CurvatureNormal(structure, short, long, arrow)
            found.shift = _shift(tables, found, generator)
            return found
        short, long = (side * np.exp(np.clip(step, -1, 1)) for side, step in zip((short, long), steps, strict=True))
    return None


def _shift(tables: CurvatureTables, normal: CurvatureNormal, generator: np.random.Generator) -> tuple[Array, Array]:
    """How far the mean of z is from the mode: one Newton step of the best normal density.

    The mean slope over the density is 0 for the best one (Opper & Archambeau 2009). Draws come in pairs of opposite
    ones, at which everything of odd order in the slope cancels. On 64 x 1,797 counts with 10 components that takes two
    thirds off the spread of the log ratio of the densities.
    """
    total = [np.zeros_like(normal.short), np.zeros_like(normal.long)]
    z_s, z_l = normal.draw_centred(PAIRS, generator)
    for sign in (1.0, -1.0):
        for z in zip(z_s, z_l, strict=True):
            stretch = [1.0 + sign * THIRD * part for part in z]
            cells = (mode * part**3 for mode, part in zip((normal.short, normal.long), stretch, strict=True))
            for own, slope, part in zip(total, _slopes(tables, *cells), stretch, strict=True):
                own += slope / part / (2.0 * PAIRS)  # d log v / dz = 1 / stretch
    return solve(normal.arrow, *total)


def _scale(tables: CurvatureTables, short: Array, long: Array) -> tuple[Array, Array]:
    """One multiplicative step of either side."""
    ratio = _ratio(tables, short, long)
    short = (tables.power_s + short * (ratio @ long)) / (tables.rate_s + tables.weight @ long)
    ratio = _ratio(tables, short, long)
    return short, (tables.power_l + long * (ratio.T @ short)) / (tables.rate_l + tables.weight.T @ short)


def _ratio(tables: CurvatureTables, short: Array, long: Array) -> Array:
    mean = short @ long.T + tables.offset
    return np.divide(tables.x, mean, out=np.zeros_like(mean), where=tables.x > 0)


def _slopes(tables: CurvatureTables, short: Array, long: Array) -> tuple[Array, Array]:
    """The gradient in the logarithms of the cells, (short, K) and (long, K)."""
    rest = tables.weight - _ratio(tables, short, long)
    of_s = tables.power_s - tables.rate_s * short - short * (rest @ long)
    return of_s, tables.power_l - tables.rate_l * long - long * (rest.T @ short)


def curve(tables: CurvatureTables, short: Array, long: Array) -> Arrow:
    """The precision at a mode; elsewhere near it, with the diagonal that it has there."""
    (S, K), L, at = short.shape, len(long), np.arange(short.shape[1])
    mean, ratio = short @ long.T + tables.offset, _ratio(tables, short, long)
    fisher, rest = ratio / np.where(mean > 0, mean, 1.0), tables.weight - ratio
    blocks = np.linalg.cholesky(_blocks(fisher.T, long, short, tables.power_l))
    cross = np.einsum("fn,fk,nk,fl,nl->nlfk", fisher, short, long, short, long, optimize=True)  # (n, l) with (f, k)
    cross[:, at, :, at] += (rest.T[:, :, None] * short * long[:, None, :]).transpose(2, 0, 1)
    half = np.linalg.solve(blocks, cross.reshape(L, K, S * K))
    flat = half.reshape(L * K, S * K)
    whole = np.zeros((S, K, S, K))
    whole[np.arange(S), :, np.arange(S), :] = _blocks(fisher, short, long, tables.power_s)
    root = np.linalg.cholesky(whole.reshape(S * K, S * K) - flat.T @ flat)
    return Arrow(root, blocks, np.linalg.solve(np.swapaxes(blocks, 1, 2), half))


def solve(arrow: Arrow, of_s: Array, of_l: Array) -> tuple[Array, Array]:
    """The inverse of the precision times a vector, its parts (S, K) and (L, K)."""
    L, K, size = arrow.slopes.shape
    right = of_s.ravel() - arrow.slopes.reshape(L * K, size).T @ of_l.ravel()
    short = solve_triangular(arrow.root.T, solve_triangular(arrow.root, right, lower=True))
    own = np.linalg.solve(np.swapaxes(arrow.blocks, 1, 2), np.linalg.solve(arrow.blocks, of_l[:, :, None]))[:, :, 0]
    return short.reshape(of_s.shape), own - arrow.slopes @ short


def _blocks(fisher: Array, own: Array, other: Array, power: Array) -> Array:
    """The precision of each row of one side, (rows, K, K)."""
    squares = np.einsum("ij,jk,jl->ikl", fisher, other, other, optimize=True)
    blocks = own[:, :, None] * own[:, None, :] * squares
    at = np.arange(own.shape[1])
    blocks[:, at, at] += power
    return blocks
