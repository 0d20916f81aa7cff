"""Covariates of samples: gamma cells of H whose scale is log-linear in a free variable with a normal prior, the slopes.

Spellings are not enumerated (rate or mean, ``exp`` of a product or a sum, ``mu`` and ``sigma``, transposed): numbers
are put in the place of the slopes and of what else is free, and shape and scale are evaluated. One slope of 1 shows a
column of the design, other slopes that there is nothing else; at slopes of 0 each of shape, rate and mean is known, or
is a variable's entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.batches import free_variables
from nmf_zoo.reading.graph import INTERPRETED, ModelGraph, name_of
from nmf_zoo.reading.hyperparameters import read_hyper_prior
from nmf_zoo.reading.registry import find, parameters
from nmf_zoo.structure import (
    Covariates,
    GammaPrior,
    HyperPrior,
    Known,
    LogLinearGammaPrior,
    Parameter,
    PartlyKnown,
    Unknown,
    UnknownOfCovariates,
)

Array = np.ndarray
PRIORS_OF_SLOPES = {pm.Normal: lambda mu, sigma: HyperPrior(kind="normal", args=(mu, sigma))}
SHAPE_AND_SCALE: dict[type, Callable[[Variable], list[Variable]]] = {
    pm.Gamma: parameters,
    pm.Exponential: lambda variable: [pt.as_tensor(np.ones(())), *parameters(variable)],
}


@dataclass(frozen=True, eq=False)
class GammaTables:
    """Shape and scale of gamma cells of H as functions of the free variables that enter them.

    ``evaluate`` : values of the slopes and of ``others`` -> (shape, scale); ``size`` (K, N), ``transposed`` as H is
    """

    evaluate: Callable[..., list[Array]]
    slopes: Variable
    others: list[Variable]
    size: tuple[int, int]
    transposed: bool
    probes: list[list[Array]]  # two values of each of the others

    def at(self, slopes: Array, probe: int) -> tuple[Array, Array]:
        """(shape, scale), (K, N) each."""
        with np.errstate(all="ignore"):
            found = self.evaluate(slopes.astype(self.slopes.type.dtype), *self.probes[probe])
        tables = (np.asarray(table, dtype=np.float64) for table in found)
        own = self.size[::-1] if self.transposed else self.size
        whole = [np.broadcast_to(table, own) for table in tables]
        shape, scale = (table.T if self.transposed else table for table in whole)
        return shape, scale


def as_log_linear(graph: ModelGraph, variable: Variable, transposed: bool) -> LogLinearGammaPrior | None:
    """The prior of H where its scale depends on slopes; None where nothing with a normal prior enters it."""
    given = find(SHAPE_AND_SCALE, variable)
    if given is None:
        return None
    shape_and_scale = given(variable)
    entering = list(dict.fromkeys(chain.from_iterable(free_variables(graph, own) for own in shape_and_scale)))
    slopes = [own for own in entering if find(PRIORS_OF_SLOPES, own) is not None]
    if not slopes:
        return None
    if len(slopes) > 1:
        found = f"a prior that depends on {' and '.join(map(name_of, slopes))}, which are normal"
        do = "write an intercept as a mean with a LogNormal prior, or as a column of ones in the design"
        raise UnreadableModel(name_of(variable), found, "one normal variable, of all slopes", do)
    tables = make_tables(graph, variable, shape_and_scale, slopes[0], entering, transposed)
    covariates = as_covariates(graph, tables)
    base = None if covariates is None else as_base(graph, tables)
    return None if covariates is None or base is None else LogLinearGammaPrior(base=base, covariates=covariates)


def make_tables(
    graph: ModelGraph,
    variable: Variable,
    shape_and_scale: list[Variable],
    slopes: Variable,
    entering: list[Variable],
    transposed: bool,
) -> GammaTables:
    others, generator = [own for own in entering if own is not slopes], np.random.default_rng(0)
    evaluate = pytensor.function([slopes, *others], shape_and_scale, mode=INTERPRETED, on_unused_input="ignore")
    shapes = [graph.shapes[name_of(own)] for own in others]
    probes = [
        [generator.uniform(1.0, 3.0, size).astype(own.type.dtype) for own, size in zip(others, shapes, strict=True)]
        for _ in range(2)
    ]
    rows, cols = graph.shapes[name_of(variable)]
    return GammaTables(evaluate, slopes, others, (cols, rows) if transposed else (rows, cols), transposed, probes)


def as_covariates(graph: ModelGraph, tables: GammaTables) -> Covariates | None:
    """What the slopes multiply the scale by."""
    variable_shape = graph.shapes[name_of(tables.slopes)]
    for variable in layouts(variable_shape, tables.size[0]):
        found = design_of(tables, variable)
        if found is not None:
            prior = read_hyper_prior(tables.slopes, PRIORS_OF_SLOPES)
            unknown = UnknownOfCovariates(
                name=name_of(tables.slopes), variable_shape=variable_shape, shape=variable_shape, prior=prior
            )
            return Covariates(variable=unknown, design=found, transposed=variable.transposed)
    return None


@dataclass(frozen=True)
class SlopesLayout:
    """How (K, J) slopes lie in their variable."""

    size: tuple[int, int]
    transposed: bool
    variable_shape: tuple[int, ...]

    def __call__(self, own: Array) -> Array:
        return (own.T if self.transposed else own).reshape(self.variable_shape)


def layouts(variable_shape: tuple[int, ...], rank: int) -> Iterator[SlopesLayout]:
    """Components first, or covariates; an axis of one may be left out."""
    entries = prod(variable_shape)
    if entries % rank or len(variable_shape) > 2:
        return
    size = rank, entries // rank
    seen = [variable_shape] if len(variable_shape) == 2 else [(entries, 1), (1, entries)]
    for transposed in (False, True):
        if (size[::-1] if transposed else size) in seen:
            yield SlopesLayout(size, transposed, variable_shape)


def design_of(tables: GammaTables, layout: SlopesLayout) -> Array | None:
    """(N, J); None where the scale is no such function of slopes in this layout."""
    (rank, n_covariates), columns = layout.size, []
    _, scale = tables.at(layout(np.zeros(layout.size)), 0)
    for j in range(n_covariates):
        own = np.zeros(layout.size)
        own[:, j] = 1.0
        _, moved = tables.at(layout(own), 0)
        with np.errstate(all="ignore"):
            columns.append(np.log(moved / scale))
    design = np.stack([column[0] for column in columns], axis=1)
    if not np.all(np.isfinite(design)) or not all(np.allclose(own, own[0], rtol=1e-9) for own in columns):
        return None
    trial = np.random.default_rng(1).normal(0.0, 0.5, (rank, n_covariates))
    for probe in (0, 1):
        shape, scale = tables.at(layout(np.zeros(layout.size)), probe)
        own_shape, moved = tables.at(layout(trial), probe)
        if not np.allclose(own_shape, shape, rtol=1e-9) or not np.allclose(moved, scale * np.exp(trial @ design.T)):
            return None
    return design


def as_base(graph: ModelGraph, tables: GammaTables) -> GammaPrior | None:
    """The prior where the slopes are 0."""
    zeros = np.zeros(graph.shapes[name_of(tables.slopes)])
    pairs = [tables.at(zeros, probe) for probe in (0, 1)]
    rates, means = [1.0 / scale for _, scale in pairs], [shape * scale for shape, scale in pairs]
    shape = as_entries(graph, tables, [shape for shape, _ in pairs])
    rate, mean = as_entries(graph, tables, rates), as_entries(graph, tables, means)
    if shape is None or (rate is None and mean is None):
        return None
    takes_mean = rate is None or (isinstance(mean, Known) and not isinstance(rate, Known))
    return GammaPrior(shape=shape, **({"mean": mean} if takes_mean else {"rate": rate}))


def as_entries(graph: ModelGraph, tables: GammaTables, pair: list[Array]) -> Parameter | None:
    """What has these values (K, N) at both probes: a known array, or a variable of which a part is in each place."""
    first, second = pair
    if np.allclose(first, second, rtol=1e-9, atol=0.0):
        return Known(value=tied(first))
    rank, n_samples = tables.size
    for number, source in enumerate(tables.others):
        variable_shape = graph.shapes[name_of(source)]
        for shape in ((), (rank, 1), (1, n_samples), tables.size):
            if prod(shape) != prod(variable_shape):
                continue
            own = [np.broadcast_to(probe[number].reshape(shape), tables.size) for probe in tables.probes]
            if all(np.allclose(a, b, rtol=1e-9) for a, b in zip(own, pair, strict=True)):
                prior = read_hyper_prior(source)
                return Unknown(name=name_of(source), variable_shape=variable_shape, shape=shape, prior=prior)
    return as_partly_known(graph, tables, pair)


def as_partly_known(graph: ModelGraph, tables: GammaTables, pair: list[Array]) -> PartlyKnown | None:
    """A variable that some rows (K, N) follow, where the others are known."""
    first, second = pair
    moves = ~np.all(np.isclose(first, second, rtol=1e-9, atol=0.0), axis=1, keepdims=True)
    for number, source in enumerate(tables.others):
        variable_shape = graph.shapes[name_of(source)]
        if prod(variable_shape) != moves.sum() or (prior := read_hyper_prior(source)).is_flat:
            continue
        known = np.where(moves, 1.0, first[:, :1])
        found = PartlyKnown(
            name=name_of(source),
            variable_shape=variable_shape,
            shape=known.shape,
            prior=prior,
            known=known,
            are_free=moves,
        )
        values = [found.resolve({found.name: probe[number]}) for probe in tables.probes]
        if all(np.allclose(own, table, rtol=1e-9, atol=0.0) for own, table in zip(values, pair, strict=True)):
            return found
    return None


def tied(table: Array) -> Array:
    """A table without the axes along which it has one value."""
    table = table[:, :1] if np.array_equal(table, np.broadcast_to(table[:, :1], table.shape)) else table
    table = table[:1] if np.array_equal(table, np.broadcast_to(table[:1], table.shape)) else table
    return np.array(table.reshape(()) if table.size == 1 else table)
