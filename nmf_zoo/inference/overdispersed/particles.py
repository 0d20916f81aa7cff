"""Particles of negative binomial counts: what sequential Monte Carlo needs of them beside what it needs of any counts.

At the power t of the likelihood rows of a factor have the conditionals of counts t x with the exposures t e and the
inverse dispersion t alpha. A particle has an alpha of its own, drawn from its prior at first, and then given W and H
before each of their moves (:mod:`nmf_zoo.kernels.overdispersed.particles`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.overdispersed.dispersion import alpha_of, takes_ties
from nmf_zoo.inference.overdispersed.trajectories import CellTable, Sides, given, make_cell_sides, read_table
from nmf_zoo.inference.shared.factor_view import PriorCells
from nmf_zoo.inference.shared.hyperparameter_draws import HYPERPRIORS
from nmf_zoo.kernels.counts.joint import WeightArrays
from nmf_zoo.kernels.overdispersed.particles import OF_ALL, OF_FEATURES, OF_SAMPLES, DispersedLaw
from nmf_zoo.kernels.overdispersed.rows import DispersedRows
from nmf_zoo.runtime.engine import Verdict
from nmf_zoo.structure import Array, Factorisation, Unknown

LARGEST = 1e100  # of a particle's alpha, and of its inverse
DRAWS: dict[str, Callable[..., Array]] = {  # (generator, shape, parameters of the prior) -> draws
    "gamma": lambda rng, shape, a, b: rng.gamma(a, 1.0, shape) / b,
    "inverse_gamma": lambda rng, shape, a, b: b / rng.gamma(a, 1.0, shape),
    "lognormal": lambda rng, shape, mu, sigma: rng.lognormal(mu, sigma, shape),
    "half_normal": lambda rng, shape, sigma: np.abs(rng.normal(0.0, sigma, shape)),
    "uniform": lambda rng, shape, low, high: rng.uniform(low, high, shape),
    "beta": lambda rng, shape, a, b: rng.beta(a, b, shape),
}


class TemperedData(NamedTuple):
    """The data as kernels of tempered counts take them; ``alpha`` where the law has a parameter of its own."""

    law: Any
    weights: WeightArrays
    sides: Sides
    constant: float
    alpha: ParticleDispersion | None


@dataclass(frozen=True)
class ParticleDispersion:
    """alpha of all particles: its entries where it is known, the variable where it is not."""

    value: Array
    unknown: Unknown | None

    @property
    def n_entries(self) -> int:
        return self.value.size

    def known_ones(self, n: int) -> Array:
        """(n, entries)"""
        return np.repeat(self.value[None], n, axis=0)

    def draw_prior(self, out: Array, generator: np.random.Generator) -> None:
        """Overwrite out (n, entries) with draws from the prior; what is known stays."""
        if self.unknown is not None:
            prior, shape = self.unknown.prior, (len(out), *self.unknown.variable_shape)
            drawn = DRAWS[prior.kind](generator, shape, *prior.args).reshape(out.shape)
            out[:] = np.clip(drawn, 1.0 / LARGEST, LARGEST)

    def variables(self, alpha: Array) -> dict[str, Array]:
        """The variable's values, of alpha (n, entries)."""
        if self.unknown is None:
            return {}
        return {self.unknown.name: alpha.reshape(len(alpha), *self.unknown.variable_shape)}


def has_dispersion(structure: Factorisation) -> Verdict:
    """Whether alpha is known or has a prior to draw from, and is one for all cells, each feature or each sample."""
    for unknown in structure.likelihood.unknowns:
        if unknown.prior.kind not in DRAWS:
            free = f"{unknown.name} has no prior, and its particles begin as draws of the prior"
            return Verdict(f"{free}: leave alpha= out, or give it one")
    return takes_ties(structure)


def lay_out_dispersed(structure: Factorisation, priors: PriorCells) -> TemperedData:
    """The data of negative binomial counts, at the temperature 1."""
    table, (unknown,) = read_table(structure), structure.likelihood.unknowns or (None,)
    alpha = alpha_of(structure, {} if unknown is None else {unknown.name: np.ones(unknown.variable_shape)})
    sides = given(make_cell_sides(structure, table), priors, alpha)
    constant = float(np.sum(xlogy(table.x, table.exposure) - gammaln(table.x + 1.0)))
    own = ParticleDispersion(alpha.ravel(), unknown)
    return TemperedData(_law_of(table, alpha.shape, unknown), _no_weights(), sides, constant, own)


def _law_of(table: CellTable, ties: tuple[int, ...], unknown: Unknown | None) -> DispersedLaw:
    tie = OF_FEATURES if ties[0] > 1 else OF_SAMPLES if ties[1] > 1 else OF_ALL
    offset: Array = np.zeros(table.x.shape)
    np.divide(table.background, table.exposure, where=table.exposure > 0.0, out=offset)
    cells = (own.T if tie == OF_SAMPLES else own for own in (table.x, table.exposure, offset))
    x, exposure, offset = (np.array(own, dtype=np.float64, order="C").reshape(max(ties), -1) for own in cells)
    found = [np.unique(row[row > 0.0], return_counts=True) for row in x]
    counts, times = (np.concatenate(own).astype(np.float64) for own in zip(*found, strict=True))
    return DispersedLaw(
        x=x,
        exposure=exposure,
        offset=offset,
        tie=np.array([tie]),
        first=np.concatenate([[0], np.cumsum([len(values) for values, _ in found])]),
        counts=counts,
        times=times,
        **_prior_of(unknown, len(x)),
    )


def _prior_of(unknown: Unknown | None, n_entries: int) -> dict[str, Array]:
    """Kind and parameters of the entries' prior; none where alpha is known."""
    if unknown is None:
        return {"hyperprior": np.empty(0, np.int64), "args": np.empty((0, 2))}
    args: Array = np.zeros((n_entries, 2))
    for column, arg in enumerate(unknown.prior.args):
        args[:, column] = np.broadcast_to(arg, unknown.variable_shape).ravel()
    return {"hyperprior": np.full(n_entries, HYPERPRIORS[unknown.prior.kind]), "args": args}


def _no_weights() -> WeightArrays:
    """Of 0: rows see their exposures themselves."""
    none, at = np.empty((0, 0)), np.empty(0, np.int64)
    return WeightArrays(np.zeros(1), np.zeros(1), none, at, np.empty(0, np.int32), np.empty(0), none, at, none)


def heat_dispersed(data: DispersedRows, temperature: float) -> DispersedRows:
    """At a power of the likelihood; alpha is shown to the rows by each particle."""
    return data._replace(grid=temperature * data.grid, exposure=temperature * data.exposure)


def apart_dispersed(data: DispersedRows) -> DispersedRows:
    """With an alpha of its own."""
    return data._replace(alpha_of_rows=data.alpha_of_rows.copy(), alpha_of_cells=data.alpha_of_cells.copy())
