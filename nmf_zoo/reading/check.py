"""Does the structure mean what the model means? Their log joint densities at random points say so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_expression
from pymc.pytensorf import compile, replace_rng_nodes
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable

from nmf_zoo.distributions.chains import CHAINS
from nmf_zoo.reading.read import in_plain_tensors, read
from nmf_zoo.reading.registry import operation
from nmf_zoo.structure import Factorisation

Array = np.ndarray
SPREAD = 0.5  # standard deviation of the points around PyMC's initial point, on the transformed scale
SINGLE_RTOL = 1e-6  # PyMC keeps Python floats such as 2.0 in single precision, and computes with them so
SMALL_INTEGERS = ("bool", "int8", "int16", "uint8", "uint16")
BINARY = {operation(chain) for chain in CHAINS if chain.prior.is_binary}
UNCOMPILED = Mode("py", "None")  # a few evaluations pay neither for compilation nor for rewriting


class CheckFailed(AssertionError):
    """A structure whose log joint differs from its model's."""


def check(
    model: pm.Model,
    n: int = 3,
    random_seed: int = 0,
    rtol: float = 1e-10,
    structure: Factorisation | None = None,
) -> None:
    """Compare the structure's log joint with ``model.compile_logp(jacobian=False)``: :func:`nmf_zoo.check`."""
    structure = read(model) if structure is None else structure
    rtol = tolerance(model, rtol)
    log_density = model.compile_logp(jacobian=False, mode=UNCOMPILED)
    for i, (point, values) in enumerate(random_points(model, n, random_seed)):
        expected, found = float(log_density(point)), structure.log_joint(values)
        if not np.isclose(found, expected, rtol=rtol, atol=0.0):
            raise CheckFailed(
                f"log joint at random point {i}: found {found!r}; expected {expected!r}, the model's (rtol {rtol:g}); "
                "the structure doesn't mean the same as the model"
            )


def tolerance(model: pm.Model, rtol: float) -> float:
    """``rtol``, or that of single precision where the model holds such numbers."""
    return max(rtol, SINGLE_RTOL) if has_single_precision(in_plain_tensors(model)) else rtol


def random_points(model: pm.Model, n: int, random_seed: int) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """(PyMC's point over value variables, the free variables by name), n times."""
    rng = np.random.default_rng(random_seed)
    start = initial_point(model)
    to_values = model.compile_fn(
        model.replace_rvs_by_values(model.free_RVs),
        inputs=model.value_vars,
        mode=UNCOMPILED,
        on_unused_input="ignore",
    )
    names = [rv.name for rv in model.free_RVs]
    binary = {rv.name for rv in model.free_RVs if type(rv.owner.op) in BINARY}
    for _ in range(n):
        point = {name: scattered(value, rng, name in binary) for name, value in start.items()}
        yield point, dict(zip(names, to_values(point), strict=True))


def initial_point(model: pm.Model) -> dict[str, Array]:
    """``model.initial_point()`` without its rewriting, which takes longer than all else of one evaluation."""
    values = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values,
        return_transformed=True,
    )
    found = compile([], replace_rng_nodes(values), mode=UNCOMPILED)()
    return dict(zip((value.name for value in model.value_vars), found, strict=True))


def scattered(value: Array, rng: np.random.Generator, is_binary: bool = False) -> Array:
    """A random value of the same shape and dtype near ``value``; counts stay counts, binary values binary."""
    if is_binary:
        drawn = rng.integers(0, 2, value.shape)
        drawn[:, ~drawn.any(axis=0)] = 1  # no count is possible where all components are off
        return drawn.astype(value.dtype)
    if value.dtype.kind in "iu":
        return rng.poisson(value + 1).astype(value.dtype)
    return value + SPREAD * rng.standard_normal(value.shape)


def has_single_precision(model: pm.Model) -> bool:
    """A float32 array stands anywhere in the model, or a small integer as a parameter: their logarithm is float32."""
    parameters = [p for rv in model.basic_RVs if rv.owner is not None for p in rv.owner.op.dist_params(rv.owner)]
    if any(parameter.type.dtype in SMALL_INTEGERS for parameter in parameters):
        return True
    pending: list[Variable] = [*model.basic_RVs]
    seen = set()
    while pending:
        variable = pending.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if getattr(variable.type, "dtype", "") == "float32":
            return True
        pending.extend(variable.owner.inputs if variable.owner is not None else ())
    return False
