"""The observed variable: its distribution, its mean, and the cells it lists.

To accept another likelihood, write a recogniser and add it to :data:`LIKELIHOODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.scalar import Add, Log, Pow, Reciprocal, Sigmoid, Sub, TrueDiv

from nmf_zoo.distributions import RealPoisson, SparseBatchedPoisson, SparseNegativeBinomial, SparsePoisson
from nmf_zoo.distributions.counts import NO_BACKGROUND, NO_EXPOSURE, is_constant
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.batches import BatchFactor, read_multipliers
from nmf_zoo.reading.cell_parameters import read_cell_parameter, source_of
from nmf_zoo.reading.graph import ModelGraph, View, is_elemwise, known_value, name_of, spell
from nmf_zoo.reading.offsets import read_offsets
from nmf_zoo.reading.products import (
    PRODUCTS,
    CellIndex,
    Mean,
    Operand,
    as_batched_mean,
    as_indexed_mean,
    cell_index,
    known_factors,
    product_of,
    split_index,
)
from nmf_zoo.reading.registry import distribution_name, find, names, parameters
from nmf_zoo.structure import (
    BatchedPoisson,
    CellParameter,
    Data,
    Dense,
    Exponential,
    Likelihood,
    Listed,
    NegativeBinomial,
    Normal,
    Poisson,
)

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Observation:
    """A likelihood with a mean that can be read; its data and parameters are read later.

    Attributes
    ----------
    variable : the random variable
    likelihood : the class of what will be made of it
    mean : of the whole matrix
    cells : the listed cells, or None for a whole matrix
    is_complete : of a sparse likelihood, whether unlisted cells are zeros (True) or missing (False); else None
    parameters : of the likelihood beside the mean, by field: positive (:mod:`nmf_zoo.reading.cell_parameters`)
    options : fields of the likelihood that are known here
    """

    variable: Variable
    likelihood: type[Likelihood]
    mean: Mean
    cells: CellIndex | None = None
    is_complete: bool | None = None
    parameters: Mapping[str, Variable] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name_of(self.variable)


def as_poisson(variable: Variable) -> Observation | None:
    mean, cells = as_batched_mean(parameters(variable)[0])
    return None if mean is None else Observation(variable, of_counts(mean), mean, cells)


def of_counts(mean: Mean) -> type[Likelihood]:
    """Poisson's, with multipliers where the mean has such."""
    return Poisson if mean.factor is None else BatchedPoisson


def as_sparse_poisson(variable: Variable) -> Observation | None:
    left, right, *known = parameters(variable)
    if not all(map(ModelGraph.is_known, known)):
        return None
    rows, cols, exposure, background = known
    mean = with_offsets(product_of(Operand.of(left), Operand.of(right)), exposure, background)
    cells = cell_index(rows, cols)
    return Observation(variable, Poisson, mean, cells, is_complete=variable.owner.op.complete)


def as_sparse_batched_poisson(variable: Variable) -> Observation | None:
    left, right, rows, cols, multipliers, batch, *offsets = parameters(variable)
    if not all(map(ModelGraph.is_known, (rows, cols, batch, *offsets))):
        return None
    factor = BatchFactor(multipliers, batch=np.asarray(known_value(batch), dtype=np.int64))
    mean = replace(with_offsets(product_of(Operand.of(left), Operand.of(right)), *offsets), factor=factor)
    is_complete = variable.owner.op.complete
    return Observation(variable, BatchedPoisson, mean, cell_index(rows, cols), is_complete=is_complete)


def as_sparse_negative_binomial(variable: Variable) -> Observation | None:
    left, right, rows, cols, alpha, *offsets = parameters(variable)
    if not all(map(ModelGraph.is_known, (rows, cols, *offsets))):
        return None
    mean = with_offsets(product_of(Operand.of(left), Operand.of(right)), *offsets)
    cells, of_cells = cell_index(rows, cols), {"alpha": alpha}
    return Observation(variable, NegativeBinomial, mean, cells, is_complete=True, parameters=of_cells)


def with_offsets(mean: Mean, exposure: Variable, background: Variable) -> Mean:
    """With those of a sparse distribution, which stand for none where they are constants."""
    if not is_constant(exposure, NO_EXPOSURE):
        mean = mean.times(*known_factors(exposure))
    return mean if is_constant(background, NO_BACKGROUND) else mean.plus(*known_factors(background))


def as_normal(variable: Variable) -> Observation | None:
    mu, sigma = parameters(variable)
    mean, cells = as_indexed_mean(mu)
    return None if mean is None else Observation(variable, Normal, mean, cells, parameters={"sigma": sigma})


def as_negative_binomial(variable: Variable) -> Observation | None:
    """``pm.NegativeBinomial(mu=, alpha=)``, also by ``n=`` and ``p=``, where p is alpha / (alpha + mean)."""
    alpha, p = parameters(variable)
    p, listed = split_index(p)
    mu = as_mean_of_odds(p, alpha)
    if mu is None:
        return None
    mean, cells = as_indexed_mean(mu)
    if mean is None or (cells is not None and listed is not None):
        return None
    return Observation(
        variable, NegativeBinomial, mean, listed if cells is None else cells, parameters={"alpha": alpha}
    )


def as_mean_of_odds(p: Variable, alpha: Variable) -> Variable | None:
    """m of p = alpha / (alpha + m), or of sigmoid(log alpha - log m), as the two lines of PyMC write it."""
    if is_elemwise(p, Sigmoid):
        odds = p.owner.inputs[0]
        logs = odds.owner.inputs if is_elemwise(odds, Sub) else []
        if not logs or not all(is_elemwise(stripped(log), Log) for log in logs):
            return None
        first, mean = (stripped(log).owner.inputs[0] for log in logs)
        return mean if is_same_tensor(first, alpha) else None
    if not is_elemwise(p, TrueDiv):
        return None
    first, total = p.owner.inputs
    terms = total.owner.inputs if is_elemwise(total, Add) else []
    if len(terms) != 2 or not is_same_tensor(first, alpha):
        return None
    others = [term for term, other in (terms, terms[::-1]) if is_same_tensor(other, alpha)]
    return others[0] if others else None


def stripped(variable: Variable) -> Variable:
    """Without shuffles of dimensions that broadcasting has put around it."""
    return View.of(variable).source


def is_same_tensor(first: Variable, second: Variable) -> bool:
    """The same variable, or the same numbers, but for axes of length 1."""
    first, second = source_of(first), source_of(second)
    if first is second:
        return True
    if not all(map(ModelGraph.is_known, (first, second))):
        return False
    return np.array_equal(np.squeeze(known_value(first)), np.squeeze(known_value(second)))


def as_exponential(variable: Variable) -> Observation | None:
    mean, cells = as_uninverted_mean(parameters(variable)[0])
    return None if mean is None else Observation(variable, Exponential, mean, cells)


def as_uninverted_mean(scale: Variable) -> tuple[Mean | None, CellIndex | None]:
    """The mean and its listed cells, also in the scale that PyMC makes of a rate, ``1 / (1 / mean)``."""
    listed, inversions = [], 0
    while True:
        scale, cells = split_index(scale)
        listed += [cells] if cells is not None else []
        inner = as_inverted(scale)
        if inner is None:
            break
        scale, inversions = inner, inversions + 1
    mean, cells = as_indexed_mean(scale)
    listed += [cells] if cells is not None else []
    if inversions % 2 or len(listed) > 1:
        return None, None
    return mean, listed[0] if listed else None


def as_inverted(variable: Variable) -> Variable | None:
    """x of ``1 / x`` or ``x ** -1``."""
    if is_elemwise(variable, Reciprocal):
        return variable.owner.inputs[0]
    for operation, place, number in ((TrueDiv, 0, 1), (Pow, 1, -1)):
        if is_elemwise(variable, operation):
            known, x = variable.owner.inputs[place], variable.owner.inputs[1 - place]
            return x if ModelGraph.is_known(known) and np.all(known_value(known) == number) else None
    return None


LIKELIHOODS: dict[type, Callable[[Variable], Observation | None]] = {
    pm.Poisson: as_poisson,
    pm.Normal: as_normal,
    pm.Exponential: as_exponential,
    pm.NegativeBinomial: as_negative_binomial,
    RealPoisson: as_poisson,
    SparsePoisson: as_sparse_poisson,
    SparseBatchedPoisson: as_sparse_batched_poisson,
    SparseNegativeBinomial: as_sparse_negative_binomial,
}


def read_observation(variable: Variable) -> Observation:
    """The likelihood of the observed variable."""
    recogniser = find(LIKELIHOODS, variable)
    if recogniser is None:
        found, expected = f"a {distribution_name(variable)} likelihood", f"one of {names(LIKELIHOODS)}"
        raise UnreadableModel(name_of(variable), found, expected, "change it or use pm.sample")
    observation = recogniser(variable)
    if observation is None:
        found = f"mean {spell(parameters(variable)[0])}"
        expected = f"exposure * (W @ H) + background, all but W and H known, the product as {' or '.join(PRODUCTS)}"
        if recogniser is as_poisson:
            expected += ", and all of it times M[:, batch] or not"
        raise UnreadableModel(name_of(variable), found, expected, "write the mean so, or use pm.sample")
    return observation


def read_likelihood(
    graph: ModelGraph, seen: Observation, shape: tuple[int, int], data: Data | None, cells: tuple[Array, Array] | None
) -> Likelihood:
    """How X depends on W @ H, ``data`` and the listed ``cells`` as they were read."""
    name = seen.name
    offsets = read_offsets(name, seen.mean, seen.cells, shape, cells)
    if isinstance(data, Dense) and data.mask is None:  # every cell was listed
        offsets = {role: own.table() if isinstance(own, Listed) else own for role, own in offsets.items()}
    parameters = read_parameters(graph, seen, shape)
    arguments: dict[str, Any] = {**offsets, **parameters, **seen.options}
    return seen.likelihood(name=name, **arguments)


def read_parameters(graph: ModelGraph, seen: Observation, shape: tuple[int, int]) -> dict[str, CellParameter]:
    """The parameters beside the mean, by role, of a likelihood of an (F, N) matrix or of its listed cells."""
    # those of a sparse distribution that sees the zeros stand at all cells
    cells = None if seen.cells is None or seen.is_complete else seen.cells.rows_and_cols()
    found: dict[str, CellParameter] = {
        role: read_cell_parameter(graph, (seen.name, role), variable, shape, cells)
        for role, variable in seen.parameters.items()
    }
    factor = seen.mean.factor
    if factor is not None:
        is_whole = factor.batch is None
        words = f"mean {spell(parameters(seen.variable)[0])}" if is_whole else f"multipliers {spell(factor.variable)}"
        found["multipliers"] = read_multipliers(graph, (seen.name, words), factor, shape)
    return found
