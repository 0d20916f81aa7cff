"""Multipliers of batches as engines for counts see them: an exposure of each cell, which changes from sweep to sweep.

Given the multipliers the model is that of counts with an exposure more, of which engines need sums alone: over samples
or features of weight times a factor (:class:`BatchWeights`). Given the factors a multiplier needs two numbers of its
feature and batch, the sum of the counts and the sum of the means (:class:`BatchData`). With an outer exposure both are
sums over the samples of a batch first: no (F, N) array is made, and a sweep costs O(F B K) for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.shared.layout import Weights, likelihood_constant, nonzero_cells, weigh
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Array, Cells, Dense, Factorisation, Flat, Multipliers, Poisson, slices


def multipliers_of(structure: Factorisation) -> Multipliers:
    """Those of a model that has them."""
    found = structure.likelihood.of_batches
    assert found is not None
    return found


def without_multipliers(structure: Factorisation) -> Factorisation:
    """The model of the same counts in which all multipliers are 1; missing cells are no variable of it."""
    own = structure.likelihood
    plain = Poisson(name=own.name, exposure=own.exposure, background=own.background)
    return replace(structure, likelihood=plain, imputed=None)


def takes_multipliers(structure: Factorisation) -> Verdict:
    """CAN_RUN when the multipliers have a gamma prior."""
    unknown = multipliers_of(structure).variable
    if unknown.prior.kind == "gamma":
        return CAN_RUN
    words = "no" if unknown.prior.is_flat else f"a {unknown.prior.kind.replace('_', '-')}"
    return Verdict(f"{unknown.name} has {words} prior, and its updates are for gamma ones")


def takes_proper(structure: Factorisation) -> Verdict:
    """CAN_RUN when no factor is flat: it could grow while the multipliers shrink."""
    flat = [factor.name for factor in (structure.W, structure.H) if isinstance(factor.prior, Flat)]
    name = multipliers_of(structure).variable.name
    return Verdict(f"{flat[0]} has no prior, so it can grow while {name} shrinks: give it one" if flat else "")


@dataclass(frozen=True)
class BatchWeights:
    """weight = multiplier * mask * exposure where the latter two are an outer product; methods as of `Weights`.

    Attributes
    ----------
    outer : mask * exposure
    multipliers : what has a column of ``table`` for each sample
    table : (F, columns)
    """

    outer: Weights
    multipliers: Multipliers
    table: Array

    are_ones: ClassVar[bool] = False

    def over_samples(self, Ht: Array) -> Array:
        """sum_n weight_fn h_kn: (F, K)"""
        return self.outer.of_features * (self.table @ self.multipliers.sum_samples(self.outer.of_samples * Ht))

    def over_features(self, W: Array) -> Array:
        """sum_f weight_fn w_fk: (N, K)"""
        of_batches = self.table.T @ (self.outer.of_features * W)
        return self.outer.of_samples * of_batches[self.multipliers.batch]

    def total(self, W: Array, Ht: Array) -> float:
        """sum_fn weight_fn (W H)_fn"""
        return float(np.sum(W * self.over_samples(Ht)))


def multiplied(weights: Weights, multipliers: Multipliers, table: Array) -> Weights | BatchWeights:
    """``weights`` times ``table`` (F, columns), of which each sample has a column."""
    batch = multipliers.batch
    if weights.matrix is None:
        return BatchWeights(weights, multipliers, table)
    if not isinstance(weights.matrix, sp.csr_array):
        return replace(weights, matrix=weights.matrix * np.take(table, batch, axis=1))
    own: sp.csr_array = weights.matrix.copy()
    rows = np.repeat(np.arange(len(table)), np.diff(own.indptr))
    own.data *= table[rows, batch[own.indices]]
    return replace(weights, matrix=own)


@dataclass(frozen=True)
class BatchData:
    """What the data say of the multipliers, (F, columns) each: a column for each batch, and the reference's, if any.

    Attributes
    ----------
    multipliers : of the model
    weights : mask * exposure, without multipliers
    counts : sums of X
    background : sums of the background at observed cells
    constant : of the log-likelihood, beside sum x log(W H + background / exposure), counts log table, and -table * sums
    """

    multipliers: Multipliers
    weights: Weights
    counts: Array
    background: Array
    constant: float

    @property
    def leaves_scales(self) -> bool:
        """Whether a row or column of multipliers can grow, and a factor shrink, without any change of the means."""
        return not np.any(self.background)

    def at(self, table: Array) -> Weights | BatchWeights:
        """The weights of these multipliers."""
        return multiplied(self.weights, self.multipliers, table)

    def sums(self, W: Array, Ht: Array) -> Array:
        """Of mask * (exposure * (W H) + background)."""
        weights, multipliers = self.weights, self.multipliers
        if weights.matrix is None:
            of_batches = multipliers.sum_samples(weights.of_samples * Ht)
            return weights.of_features * (W @ of_batches.T) + self.background
        if isinstance(weights.matrix, sp.csr_array):
            rows, cols = np.repeat(np.arange(len(W)), np.diff(weights.matrix.indptr)), weights.matrix.indices
            rates = np.empty(len(rows))
            rates_at_cells(rates, np.ascontiguousarray(W), np.ascontiguousarray(Ht), rows, cols)
            return _add_up(rows, cols, weights.matrix.data * rates, multipliers, self.counts.shape) + self.background
        out = self.background.copy()
        for samples in slices(len(Ht), max(1, (1 << 18) // len(W))):
            out += multipliers.sum_samples_of(samples, weights.matrix[:, samples] * (W @ Ht[samples].T))
        return out

    def log_likelihood(self, log_mean: float, table: Array, sums: Array) -> float:
        """log p(X | W, H, multipliers); ``log_mean`` is sum x log(W H + background / exposure), ``sums`` as above."""
        with np.errstate(divide="ignore"):
            logs = np.log(table, out=np.zeros_like(table), where=self.counts > 0)
        return log_mean + self.constant + float(np.sum(self.counts * logs) - np.sum(table * sums))


def batch_data(structure: Factorisation) -> BatchData:
    """Of a model with multipliers."""
    multipliers = multipliers_of(structure)
    rows, cols, values = nonzero_cells(structure)
    shape = structure.shape[0], multipliers.n_batches + multipliers.has_reference
    background = _sum_background(structure, multipliers, shape)
    plain = without_multipliers(structure)
    return BatchData(
        multipliers=multipliers,
        weights=weigh(plain),
        counts=_add_up(rows, cols, values, multipliers, shape),
        background=background,
        constant=likelihood_constant(plain) + float(background.sum()),
    )


Totals = Callable[[Array, Array, Mapping[str, Array]], Array]


def totals_of_samples(structure: Factorisation) -> Totals:
    """(W, H, values) -> (N,), the sum of E[X] over each sample's observed cells, or over all where nothing is."""
    plain, multipliers = without_multipliers(structure), multipliers_of(structure)
    weights, background = weigh(plain), structure.likelihood.background

    def totals(W: Array, H: Array, values: Mapping[str, Array]) -> Array:
        table = multipliers.table(values)
        out = np.sum(multiplied(weights, multipliers, table).over_features(W) * H.T, axis=1)
        return out if background is None else out + _backgrounds_of_samples(structure, multipliers, table)

    return totals


def _backgrounds_of_samples(structure: Factorisation, multipliers: Multipliers, table: Array) -> Array:
    data, batch = structure.data, multipliers.batch
    if isinstance(data, Cells) and not data.is_complete:
        values = structure.background_at(data.rows, data.cols) * table[data.rows, batch[data.cols]]
        return np.bincount(data.cols, values, structure.shape[1])
    out = np.zeros(structure.shape[1])
    for samples in structure.column_blocks():
        seen = data.mask[:, samples] if isinstance(data, Dense) and data.mask is not None else True
        block = structure.background_table(samples) * table[:, batch[samples]]
        out[samples] = np.sum(block, axis=0, where=seen)
    return out


def log_prior(structure: Factorisation, W: Array, H: Array, values: Mapping[str, Array]) -> float:
    """Log density of the factors, their hyperparameters and the multipliers."""
    total = structure.W.log_density(W, values) + structure.H.log_density(H, values)
    return total + sum(float(np.sum(own.prior.log_density(values[name]))) for name, own in structure.unknowns.items())


def _add_up(rows: Array, cols: Array, values: Array, multipliers: Multipliers, shape: tuple[int, int]) -> Array:
    """Sums of values at cells over the samples of each batch."""
    places = rows.astype(np.int64) * shape[1] + multipliers.batch[cols]
    return np.bincount(places, values, shape[0] * shape[1]).reshape(shape)


def _sum_background(structure: Factorisation, multipliers: Multipliers, shape: tuple[int, int]) -> Array:
    data, out = structure.data, np.zeros(shape)
    if structure.likelihood.background is None:
        return out
    if isinstance(data, Cells) and not data.is_complete:
        values = structure.background_at(data.rows, data.cols)
        return _add_up(data.rows, data.cols, values, multipliers, shape)
    for samples in structure.column_blocks():
        block = structure.background_table(samples)
        seen = block * data.mask[:, samples] if isinstance(data, Dense) and data.mask is not None else block
        out += multipliers.sum_samples_of(samples, seen)
    return out
