"""The observed variable: its distribution, its mean, and the cells it lists.

To accept another likelihood, write a recogniser and add it to :data:`LIKELIHOODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from nmf_zoo.distributions import RealPoisson, SparsePoisson
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import ModelGraph, View, as_scalar_source, known_value, spell
from nmf_zoo.reading.hyperparameters import as_parameter
from nmf_zoo.reading.products import PRODUCTS, CellIndex, Mean, Operand, as_indexed_mean, cell_index
from nmf_zoo.reading.registry import find, parameters
from nmf_zoo.structure import Known, Likelihood, Parameter

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Observation:
    """A likelihood as the graph has it; what it says of the data comes later.

    Attributes
    ----------
    variable : the random variable
    kind, integer : as in Likelihood
    mean : None when it can't be read
    cells : the listed cells, or None for a whole matrix
    is_complete : of a sparse likelihood, whether unlisted cells are zeros (True) or missing (False); else None
    sigma : of a normal likelihood
    """

    variable: Variable
    kind: str
    mean: Mean | None
    cells: CellIndex | None = None
    integer: bool = False
    is_complete: bool | None = None
    sigma: Variable | None = None


def as_poisson(variable: Variable) -> Observation:
    mean, cells = as_indexed_mean(parameters(variable)[0])
    return Observation(variable, "poisson", mean, cells, integer=True)


def as_real_poisson(variable: Variable) -> Observation:
    mean, cells = as_indexed_mean(parameters(variable)[0])
    return Observation(variable, "poisson", mean, cells)


def as_sparse_poisson(variable: Variable) -> Observation:
    left, right, rows, cols = parameters(variable)
    mean = Mean(Operand.of(left), Operand.of(right))
    cells = cell_index(rows, cols) if ModelGraph.is_known(rows) and ModelGraph.is_known(cols) else None
    complete = variable.owner.op.complete
    return Observation(variable, "poisson", mean if cells else None, cells, is_complete=complete)


def as_normal(variable: Variable) -> Observation:
    mu, sigma = parameters(variable)
    mean, cells = as_indexed_mean(mu)
    return Observation(variable, "normal", mean, cells, sigma=sigma)


LIKELIHOODS: dict[type, Callable[[Variable], Observation]] = {
    pm.Poisson: as_poisson,
    pm.Normal: as_normal,
    RealPoisson: as_real_poisson,
    SparsePoisson: as_sparse_poisson,
}


def read_observation(variable: Variable) -> Observation:
    """The registered likelihood of ``variable``, with a readable mean."""
    observation = find(LIKELIHOODS, variable)(variable)
    if observation.mean is None:
        found = f"mean {spell(parameters(variable)[0])}"
        expected = f"exposure * (W @ H) + background, all but W and H known, the product as {' or '.join(PRODUCTS)}"
        raise UnreadableModel(variable.name, found, expected, "write the mean so, or sample with NUTS")
    return observation


def read_likelihood(graph: ModelGraph, seen: Observation, shape: tuple[int, int]) -> Likelihood:
    """How X depends on W @ H, its offsets checked against the (F, N) shape."""
    name = seen.variable.name
    exposure = check_offset(name, "exposure", seen.mean.exposure, shape)
    background = check_offset(name, "background", seen.mean.background, shape)
    if exposure is not None and np.any(exposure <= 0):
        raise UnreadableModel(name, f"exposure {exposure.min()}", "exposure > 0", "list missing cells as such")
    if background is not None and np.any(background < 0):
        raise UnreadableModel(name, f"background {background.min()}", "background >= 0", "check the added array")
    sigma = None if seen.sigma is None else read_sigma(graph, name, seen.sigma)
    return Likelihood(
        kind=seen.kind, name=name, integer=seen.integer, sigma=sigma, exposure=exposure, background=background
    )


def check_offset(name: str, role: str, value: Array | None, shape: tuple[int, int]) -> Array | None:
    """A finite float64 array that broadcasts to (F, N)."""
    if value is None:
        return None
    fits = value.ndim <= 2 and all(a in (1, b) for a, b in zip(value.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise UnreadableModel(
            name, f"{role} of shape {value.shape}", f"a shape that broadcasts to {shape}", "reshape it"
        )
    if not np.all(np.isfinite(value)):
        raise UnreadableModel(name, f"infinite or NaN {role}", "finite numbers", "check the data you gave")
    return np.asarray(value, dtype=np.float64)


def read_sigma(graph: ModelGraph, name: str, sigma: Variable) -> Parameter:
    """One standard deviation for all cells, known or a free variable."""
    source = as_scalar_source(sigma)
    if source is None and ModelGraph.is_known(sigma) and known_value(sigma).size == 1:
        return positive_sigma(name, known_value(sigma))
    found = None if source is None else as_parameter(graph, View.of(source), False)
    if found is None:
        expected = "one known value or one free variable, the same for all cells"
        raise UnreadableModel(name, f"sigma = {spell(sigma)}", expected, "use a scalar sigma, or sample with NUTS")
    return positive_sigma(name, found.value) if isinstance(found, Known) else found


def positive_sigma(name: str, value: Array) -> Known:
    value = np.asarray(value, dtype=np.float64).reshape(())
    if not (value > 0 and np.isfinite(value)):
        raise UnreadableModel(name, f"sigma = {value}", "a finite number > 0", "check sigma")
    return Known(value=value)
