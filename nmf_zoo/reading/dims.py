"""Models of ``pymc.dims``, whose variables know their axes by name: each has a twin of plain tensors, which is read.

Random variables and data are declared again under their names and dims. Expressions in between are written in plain
tensors whose axes have the order that they are wanted in, so that no transposes come between what a reader knows:
elementwise operations, and products over one dim as ``@``. For others there is PyTensor's own lowering.

This file is imported for such models only: PyTensor warns of its labelled tensors as soon as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.scalar import Add, Mul
from pytensor.tensor.elemwise import Elemwise
from pytensor.xtensor.basic import tensor_from_xtensor, xtensor_from_tensor
from pytensor.xtensor.math import Dot
from pytensor.xtensor.reduction import XReduce
from pytensor.xtensor.shape import Transpose
from pytensor.xtensor.type import XTensorType
from pytensor.xtensor.vectorization import XRV, XElemwise

from nmf_zoo.errors import UnreadableModel


def without_dims(model: pm.Model) -> pm.Model:
    """The model itself, or the twin of one that has labelled variables, with plain ones under the same names.

    Raises
    ------
    UnreadableModel : a labelled variable has no plain counterpart, or a transform of its own
    """
    if not any(isinstance(variable.type, XTensorType) for variable in model.named_vars.values()):
        return model
    return _Twin(model).made


class _Twin:
    """A plain model, variable by variable.

    ``_plains`` are its variables by those of the original, ``_known`` what takes their place in expressions.
    """

    def __init__(self, model: pm.Model):
        self._model, self.made = model, pm.Model()
        self.made.add_coords({name: values for name, values in model.coords.items() if values is not None})
        for name, length in model.dim_lengths.items():
            if name not in self.made.coords:
                self.made.add_coord(name, length=int(length.eval()))
        self._known: dict[Variable, Variable] = {}
        self._plains: dict[Variable, Any] = {}
        with self.made:
            for name, variable in model.named_vars.items():
                plain = self._declare(name, variable)
                is_labelled = _is_labelled(variable)
                self._plains[variable] = plain
                self._known[variable] = xtensor_from_tensor(plain, dims=variable.type.dims) if is_labelled else plain

    def _declare(self, name: str, variable: Any) -> Any:
        dims = variable.type.dims if _is_labelled(variable) else self._model.named_vars_to_dims.get(name)
        if variable in self._model.basic_RVs:
            return self._declare_random(name, variable, dims)
        if variable in self._model.data_vars:
            return pm.Data(name, variable.get_value(borrow=True), dims=dims or None)
        if variable in self._model.potentials:
            return pm.Potential(name, self._plain(variable))
        return pm.Deterministic(name, self._plain(variable), dims=dims or None)

    def _declare_random(self, name: str, variable: Any, dims: Any) -> Any:
        value = self._model.rvs_to_values[variable]
        observed = _array_of(value) if variable in self._model.observed_RVs else None
        plain = self._random(name, variable) if _is_labelled(variable) else self._plain(variable)
        made = self.made.register_rv(plain, name, dims=dims or None, observed=observed)
        own, theirs = (_transform_of(one, rv) for one, rv in ((self.made, made), (self._model, variable)))
        if own != theirs:
            do = "leave default_transform out, or use pm.sample"
            raise UnreadableModel(name, f"the transform {theirs or 'None'}", f"the default one, {own or 'None'}", do)
        return made

    def _random(self, name: str, variable: Any) -> Any:
        """The same distribution, its parameters in the order of the variable's dims."""
        dims, node = variable.type.dims, variable.owner
        while node is not None and isinstance(node.op, Transpose):
            node = node.inputs[0].owner
        if node is None or not isinstance(node.op, XRV) or any(node.op.core_dims[0]) or node.op.core_dims[1]:
            found = "a labelled variable whose cells are drawn together"
            raise UnreadableModel(name, found, "one whose cells are drawn one by one", "use pm.sample")
        given = node.inputs[1 + len(node.op.extra_dims) :]
        lengths = [self.made.dim_lengths[dim] for dim in dims]
        parameters = (self._broadcast(one, dims) for one in given)
        return node.op.core_op.make_node(node.inputs[0], pt.as_tensor(lengths), *parameters).outputs[1]

    def _plain(self, variable: Any) -> Any:
        """An expression in plain tensors, its axes in its own order."""
        if _is_labelled(variable):
            return self._ordered(variable, variable.type.dims)
        return clone_replace(variable, replace=self._known) if self._known else variable

    def _broadcast(self, variable: Any, dims: tuple[str, ...]) -> Any:
        """An expression as it broadcasts to these dims; one without dims is a number."""
        own = tuple(dim for dim in dims if dim in variable.type.dims)
        plain = self._ordered(variable, own)
        if len(own) in (0, len(dims)):
            return plain
        return plain.dimshuffle(*(own.index(dim) if dim in own else "x" for dim in dims))

    def _ordered(self, variable: Any, dims: tuple[str, ...]) -> Any:
        """An expression with its axes in this order."""
        op = None if variable.owner is None else variable.owner.op
        if variable in self._plains:
            return _permuted(self._plains[variable], variable.type.dims, dims)
        if isinstance(variable, Constant):
            return _permuted(pt.constant(variable.data), variable.type.dims, dims)
        if isinstance(op, Transpose | ViewOp):
            return self._ordered(variable.owner.inputs[0], dims)
        if isinstance(op, XElemwise):
            return Elemwise(op.scalar_op)(*(self._broadcast(one, dims) for one in variable.owner.inputs))
        factors = _as_product(variable) if op is not None and len(dims) == 2 else None
        product = None if factors is None else self._product(*factors, (dims[0], dims[1]))
        if product is not None:
            return product
        found = clone_replace(tensor_from_xtensor(variable), replace=self._known)
        return _permuted(rewrite_graph(found, include=("lower_xtensor",), clone=False), variable.type.dims, dims)

    def _product(self, pair: Sequence[Any], over: Sequence[str], dims: tuple[str, str]) -> Any:
        """The product of two matrices over the one dim that they share, or None."""
        row, column = dims
        for left, right in permutations(pair):
            if len(over) == 1 and {*left.type.dims} == {row, *over} and {*right.type.dims} == {column, *over}:
                return self._ordered(left, (row, *over)) @ self._ordered(right, (*over, column))
        return None


def _as_product(variable: Any) -> tuple[Sequence[Any], Sequence[str]] | None:
    """The two factors and the dims that they are summed over: ``dot(W, H)`` or ``(W * H).sum(dim)``."""
    op = variable.owner.op
    if isinstance(op, Dot):
        return variable.owner.inputs, tuple(op.dims)
    is_sum = isinstance(op, XReduce) and isinstance(op.binary_op, Add)
    inner = variable.owner.inputs[0].owner if is_sum else None
    if inner is None or not isinstance(inner.op, XElemwise) or len(inner.inputs) != 2:
        return None
    return (inner.inputs, tuple(op.dims)) if isinstance(inner.op.scalar_op, Mul) else None


def _permuted(plain: Any, dims: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
    return plain if dims == wanted else plain.dimshuffle(*(dims.index(dim) for dim in wanted))


def _is_labelled(variable: Variable) -> bool:
    return isinstance(variable.type, XTensorType)


def _array_of(value: Any) -> np.ndarray:
    if hasattr(value, "get_value"):
        return np.asarray(value.get_value(borrow=True))
    return np.asarray(value.data if hasattr(value, "data") else value.eval())


def _transform_of(model: pm.Model, variable: Any) -> str:
    """The name of a variable's transform, labelled or not; "" without one."""
    transform = model.rvs_to_transforms.get(variable)
    return "" if transform is None else str(transform.name)
