"""Walking a PyTensor graph as declared: values, names, and the wrappers that change neither.

Nothing is rewritten before reading, so what PyMC puts around a variable is met here: ``dims`` make ``ExpandDims``,
a Deterministic makes ``ViewOp``, ``pm.do`` makes ``SpecifyShape``, integer data make ``Cast``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar import Cast, Identity
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import SpecifyShape

Array = np.ndarray
# A few numbers don't pay for compilation, and no rewrite may come before reading.
INTERPRETED = Mode(linker="py", optimizer="None")
SHAPES_ONLY = Mode(linker="py", optimizer="fast_compile")  # which finds the shape of a draw without drawing


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model, with what every recogniser asks about it."""

    model: pm.Model

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the free variables; with ``dims`` the graph itself doesn't know them.

        PyMC's own ``eval_rv_shapes`` does the same with a compiler that takes a third of a second to import. Building
        even a small function takes longer than all else in reading, and is left out where the types or the lengths of
        the dims say it all.
        """
        model = self.model
        declared = {rv: _declared_shape(rv) for rv in model.free_RVs}
        left = [rv for rv, shape in declared.items() if shape is None]
        if left:
            data = [(variable, model.rvs_to_values[variable]) for variable in model.observed_RVs]
            shapes = [rv.shape for rv in left]
            found = pytensor.function([], shapes, givens=data, mode=SHAPES_ONLY, on_unused_input="ignore")()
            declared |= {rv: tuple(map(int, shape)) for rv, shape in zip(left, found, strict=True)}
        return {name_of(rv): shape for rv, shape in declared.items() if shape is not None}

    def is_free(self, variable: Variable) -> bool:
        return variable in self.model.free_RVs

    @staticmethod
    def is_known(variable: Variable) -> bool:
        """No random variable enters it, and nothing that has yet to be given a value."""
        pending, seen = [variable], set()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if current.owner is None:
                if isinstance(current.type, RandomType) or not isinstance(current, Constant | SharedVariable):
                    return False
            elif isinstance(current.owner.op, MeasurableOp) or isinstance(current.type, RandomType):
                return False
            else:
                pending.extend(current.owner.inputs)
        return True


def _declared_shape(variable: Variable) -> tuple[int, ...] | None:
    """The shape of a random variable that its type says, or its size and the parameters; None where they do not."""
    static, node = variable.type.shape, variable.owner
    if None not in static:
        return static
    if node is None or not isinstance(node.op, RandomVariable):
        return None
    size = node.op.size_param(node)
    if size.owner is None or not isinstance(size.owner.op, MakeVector):
        return None
    of_letters: dict[str, int | None] = {}  # of the parameters' own axes, which those of a draw repeat
    for parameter, letters in zip(node.op.dist_params(node), node.op.inputs_sig, strict=True):
        of_letters |= dict(zip(letters, _lengths(parameter)[ndim(parameter) - len(letters) :], strict=True))
    lengths = [*map(_as_length, size.owner.inputs), *(of_letters.get(letter) for letter in node.op.output_sig)]
    known = [length for length in lengths if length is not None]
    return tuple(known) if len(known) == len(lengths) else None


def _lengths(variable: Variable) -> tuple[int | None, ...]:
    """The length of each axis, where the type says it, or how the variable was made of one number."""
    node = strip(variable).owner
    if node is not None and isinstance(node.op, Alloc):
        return tuple(map(_as_length, node.inputs[1:]))
    if node is not None and isinstance(node.op, DimShuffle):
        inside = _lengths(node.inputs[0])
        return tuple(1 if axis == "x" else inside[axis] for axis in node.op.new_order)
    return variable.type.shape


def _as_length(variable: Variable) -> int | None:
    return int(known_value(variable)) if isinstance(variable, Constant | SharedVariable) else None


def known_value(variable: Variable) -> Array:
    """The value of a known variable; shared data are not copied."""
    variable = strip_names(variable)
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    if isinstance(variable, SharedVariable):
        return np.asarray(variable.get_value(borrow=True))
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):  # which needs no function
        return np.array(View(variable, (tuple(node.op.new_order),)).apply(known_value(node.inputs[0])), order="C")
    return np.asarray(pytensor.function([], variable, mode=INTERPRETED)())


def ndim(variable: Variable) -> int:
    """Number of axes; 0 for what is no tensor, such as a slice."""
    return getattr(variable, "ndim", 0)


def is_elemwise(variable: Variable, scalar_op: type) -> bool:
    """The outermost operation is this elementwise one."""
    node = variable.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)


def strip_names(variable: Variable) -> Variable:
    """Without Deterministics and shape checks."""
    while variable.owner is not None:
        named = isinstance(variable.owner.op, ViewOp | SpecifyShape) or is_elemwise(variable, Identity)
        if not named:
            break
        variable = variable.owner.inputs[0]
    return variable


def strip(variable: Variable) -> Variable:
    """Without Deterministics, shape checks, and casts of real numbers that keep the value (to float64)."""
    variable = strip_names(variable)
    while is_elemwise(variable, Cast) and variable.type.dtype == "float64":
        variable = strip_names(variable.owner.inputs[0])
    return variable


def as_joined(variable: Variable) -> tuple[int, list[Variable]] | None:
    """(axis, terms) of a concatenation."""
    node = variable.owner
    if node is None or not isinstance(node.op, Join):
        return None
    if hasattr(node.op, "axis"):
        return int(node.op.axis) % ndim(variable), list(node.inputs)
    axis, *terms = node.inputs  # of PyTensor 2
    return (int(known_value(axis)) % ndim(variable), terms) if ModelGraph.is_known(axis) else None


def as_transposed(variable: Variable) -> Variable | None:
    """The matrix of which this is the transpose."""
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle) or tuple(node.op.new_order) != (1, 0):
        return None
    return node.inputs[0]


@dataclass(frozen=True, eq=False)
class View:
    """A variable seen through a chain of dimension shuffles: ``alpha[:, None]``, ``alpha.T``, broadcasting."""

    source: Variable
    orders: tuple[tuple[int | str, ...], ...] = ()

    @classmethod
    def of(cls, variable: Variable, outer: tuple = ()) -> View:
        """Peel off the shuffles; ``outer`` are those already peeled around ``variable``, outermost last."""
        orders = list(outer)
        variable = strip(variable)
        while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
            orders.insert(0, tuple(variable.owner.op.new_order))
            variable = strip(variable.owner.inputs[0])
        return cls(variable, tuple(orders))

    def inside(self, position: int = 0) -> View:
        """An argument of the elementwise operation that makes the source, seen in the same way."""
        return View.of(self.source.owner.inputs[position], self.orders)

    def apply(self, array: Array) -> Array:
        """The shuffles, applied to a value of the source."""
        for order in self.orders:
            kept = [axis for axis in order if not isinstance(axis, str)]
            dropped = tuple(axis for axis in range(array.ndim) if axis not in kept)
            array = array.transpose(*kept, *dropped)
            array = array.reshape(array.shape[: len(kept)])
            array = np.expand_dims(array, tuple(i for i, axis in enumerate(order) if axis == "x"))
        return array

    @property
    def value(self) -> Array:
        """Of a known source."""
        return self.apply(known_value(self.source).astype(np.float64))


def name_of(variable: Variable) -> str:
    """The variable's name, as a text in any case."""
    return variable.name or "unnamed variable"


INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "True_div": "/", "Pow": "**", "Matmul": "@", "Dot": "@"}


def spell(variable: Variable, depth: int = 3) -> str:
    """A short text of an expression, for messages: ``Exp(W @ H)``."""
    if isinstance(variable, Constant):
        return (
            str(variable.data)
            if getattr(variable, "ndim", 0) == 0
            else f"array[{','.join(map(str, variable.data.shape))}]"
        )
    if variable.name or variable.owner is None or isinstance(variable.owner.op, MeasurableOp):
        return name_of(variable)
    if isinstance(variable.owner.op, ViewOp | SpecifyShape | DimShuffle) and as_transposed(variable) is None:
        return spell(variable.owner.inputs[0], depth)
    operation = str(variable.owner.op).partition("{")[0]
    if depth == 0:
        return f"{operation}(...)"
    inside = [spell(i, depth - 1) for i in variable.owner.inputs]
    if operation not in INFIX:
        return f"{operation}({', '.join(inside)})"
    return f" {INFIX[operation]} ".join(f"({text})" if " " in text else text for text in inside)
