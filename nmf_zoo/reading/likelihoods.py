"""The observed variable: its distribution, its mean, and the cells it lists.

To accept another likelihood, write a recogniser and add it to :data:`LIKELIHOODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar import Add, Log, Pow, Reciprocal, Sigmoid, Sub, TrueDiv
from pytensor.tensor import subtensor

from nmf_zoo.distributions import RealPoisson, SparsePoisson
from nmf_zoo.distributions.counts import NO_BACKGROUND, NO_EXPOSURE, is_constant
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import (
    INTERPRETED,
    ModelGraph,
    View,
    as_scalar_source,
    is_elemwise,
    known_value,
    name_of,
    spell,
)
from nmf_zoo.reading.hyperparameters import as_parameter, read_hyper_prior
from nmf_zoo.reading.offsets import read_offsets
from nmf_zoo.reading.products import (
    PRODUCTS,
    CellIndex,
    Mean,
    Operand,
    as_indexed_mean,
    cell_index,
    product_of,
    split_index,
)
from nmf_zoo.reading.registry import distribution_name, find, names, parameters
from nmf_zoo.structure import (
    Data,
    Dense,
    Exponential,
    Known,
    Likelihood,
    Listed,
    NegativeBinomial,
    Normal,
    Parameter,
    Poisson,
    Unknown,
)

Array = np.ndarray
INDEXED = tuple(  # of which one is gone from PyTensor 3
    getattr(subtensor, name)
    for name in ("Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1")
    if hasattr(subtensor, name)
)


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
    parameters : of the likelihood beside the mean, by field: positive, one value or one free variable for all cells
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
    mean, cells = as_indexed_mean(parameters(variable)[0])
    return None if mean is None else Observation(variable, Poisson, mean, cells)


def as_real_poisson(variable: Variable) -> Observation | None:
    mean, cells = as_indexed_mean(parameters(variable)[0])
    return None if mean is None else Observation(variable, Poisson, mean, cells)


def as_sparse_poisson(variable: Variable) -> Observation | None:
    left, right, *known = parameters(variable)
    if not all(map(ModelGraph.is_known, known)):
        return None
    rows, cols, exposure, background = known
    mean, cells = product_of(Operand.of(left), Operand.of(right)), cell_index(rows, cols)
    if not is_constant(exposure, NO_EXPOSURE):
        mean = mean.times(known_value(exposure))
    if not is_constant(background, NO_BACKGROUND):
        mean = mean.plus(known_value(background))
    return Observation(variable, Poisson, mean, cells, is_complete=variable.owner.op.complete)


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
    first, second = unlisted(first), unlisted(second)
    if first is second:
        return True
    if not all(map(ModelGraph.is_known, (first, second))):
        return False
    return np.array_equal(np.squeeze(known_value(first)), np.squeeze(known_value(second)))


def unlisted(variable: Variable) -> Variable:
    """What is listed, indexed or repeated by broadcasting."""
    source = stripped(variable)
    while source.owner is not None and isinstance(source.owner.op, INDEXED):
        source = stripped(source.owner.inputs[0])
    return source


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
    RealPoisson: as_real_poisson,
    SparsePoisson: as_sparse_poisson,
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
    parameters = {
        role: read_varying(graph, name, role, variable, shape, cells)
        if role in seen.likelihood.varying
        else read_parameter(graph, name, role, variable)
        for role, variable in seen.parameters.items()
    }
    arguments: dict[str, Any] = {**offsets, **parameters, **seen.options}
    return seen.likelihood(name=name, **arguments)


def read_parameter(graph: ModelGraph, name: str, role: str, variable: Variable) -> Parameter:
    """A parameter beside the mean: one for all cells, known or a free variable."""
    source = as_scalar_source(variable)
    if source is None and ModelGraph.is_known(variable) and known_value(variable).size == 1:
        return positive_parameter(name, role, known_value(variable))
    found = None if source is None else as_parameter(graph, View.of(source), False)
    if found is None:
        expected = "one known value or one free variable, the same for all cells"
        raise UnreadableModel(name, f"{role} = {spell(variable)}", expected, f"use a scalar {role}, or use pm.sample")
    return positive_parameter(name, role, found.value) if isinstance(found, Known) else found


def read_varying(
    graph: ModelGraph,
    name: str,
    role: str,
    variable: Variable,
    shape: tuple[int, int],
    cells: tuple[Array, Array] | None,
) -> Parameter:
    """A parameter that may differ between features or between samples; of listed cells, indexed as their mean is."""
    source = as_scalar_source(variable)
    if source is not None or (ModelGraph.is_known(variable) and known_value(variable).size == 1):
        return read_parameter(graph, name, role, variable)
    found = (
        as_listed(graph, variable, shape, cells) if cells is not None else as_parameter(graph, View.of(variable), False)
    )
    expected = "one known value or free variable for all cells, for each feature (F, 1) or for each sample (1, N)"
    tied = None if found is None else (1,) * (2 - len(found.shape)) + tuple(found.shape)
    if found is None or tied not in ((1, 1), (shape[0], 1), (1, shape[1])):
        raise UnreadableModel(name, f"{role} = {spell(variable)}", expected, f"reshape {role}, or use pm.sample")
    if isinstance(found, Known):
        value = found.value
        if not (np.all(value > 0) and np.all(np.isfinite(value))):
            raise UnreadableModel(name, f"{role} in [{value.min()}, {value.max()}]", "finite numbers > 0", "check it")
    return found


def as_listed(
    graph: ModelGraph, variable: Variable, shape: tuple[int, int], cells: tuple[Array, Array]
) -> Parameter | None:
    """What an index, ``alpha[rows]`` say, lists for each cell: one entry for each feature, or for each sample."""
    source = unlisted(variable)
    if ModelGraph.is_known(variable):
        return entries_of(known_value(variable), shape, cells, lambda entries: Known(value=entries.astype(np.float64)))
    if not graph.is_free(source):
        return None
    variable_shape = graph.shapes[name_of(source)]
    numbers = np.arange(np.prod(variable_shape, dtype=int), dtype=np.float64).reshape(variable_shape)
    at = pytensor.function([], variable, givens=[(source, pt.as_tensor_variable(numbers))], mode=INTERPRETED)()

    def as_unknown(entries: Array) -> Unknown | None:
        if not np.array_equal(entries.ravel(), numbers.ravel()):
            return None
        prior = read_hyper_prior(source)
        return Unknown(name=name_of(source), variable_shape=variable_shape, shape=entries.shape, prior=prior)

    return entries_of(at, shape, cells, as_unknown)


def entries_of(
    listed: Array, shape: tuple[int, int], cells: tuple[Array, Array], make: Callable[[Array], Parameter | None]
) -> Parameter | None:
    """``make`` of (F, 1) or (1, N) entries that give the listed cells these numbers; None where none do."""
    for axis, size in enumerate(shape):
        entries = np.full(size, np.nan)
        entries[cells[axis]] = listed
        if np.all(np.isfinite(entries)) and np.array_equal(entries[cells[axis]], listed):
            found = make(entries[:, None] if axis == 0 else entries[None, :])
            if found is not None:
                return found
    return None


def positive_parameter(name: str, role: str, value: Array) -> Known:
    value = np.asarray(value, dtype=np.float64).reshape(())
    if not (value > 0 and np.isfinite(value)):
        raise UnreadableModel(name, f"{role} = {value}", "a finite number > 0", f"check {role}")
    return Known(value=value)
