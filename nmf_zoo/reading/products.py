"""Recognise exposure * (W @ H) + background, in any of the ways to write it.

Each spelling of a product is a function variable -> (left, right) or None, registered in :data:`PRODUCTS`. Transposes
are pushed to the factors, so that ``(A @ B).T`` is the product of B.T and A.T. Known numbers that multiply the rows of
the left factor or the columns of the right one are part of the exposure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.scalar import Add, Mul, TrueDiv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedSubtensor

from nmf_zoo.distributions import CellRates
from nmf_zoo.reading.batches import BatchFactor
from nmf_zoo.reading.graph import ModelGraph, as_transposed, is_elemwise, known_value, ndim, strip

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of the product: a variable, or its transpose."""

    variable: Variable
    transposed: bool = False

    @classmethod
    def of(cls, variable: Variable, transposed: bool = False) -> Operand:
        variable = strip(variable)
        inner = as_transposed(variable)
        return cls(variable, transposed) if inner is None else cls.of(inner, not transposed)

    @property
    def T(self) -> Operand:
        return Operand.of(self.variable, not self.transposed)


@dataclass(frozen=True, eq=False)
class Mean:
    """exposure * (left @ right) + background.

    ``exposure``, ``background`` : arrays, of which each is the product, none where there is no such term; ``factor`` :
    an unknown that multiplies all of it, or None
    """

    left: Operand
    right: Operand
    exposure: tuple[Array, ...] = ()
    background: tuple[Array, ...] = ()
    factor: BatchFactor | None = None

    @property
    def T(self) -> Mean:
        exposure, background = (
            tuple(np.atleast_2d(part).T for part in parts) for parts in (self.exposure, self.background)
        )
        factor = None if self.factor is None else self.factor.T
        return Mean(self.right.T, self.left.T, exposure, background, factor)

    def times(self, *known: Array) -> Mean:
        background = (*self.background, *known) if self.background else ()
        return replace(self, exposure=(*self.exposure, *known), background=background)

    def plus(self, *known: Array) -> Mean:
        """Plus the product of these."""
        background = (reduce(mul, self.background) + reduce(mul, known),) if self.background else known
        return replace(self, background=background)


@dataclass(frozen=True, eq=False)
class CellIndex:
    """The cells of a (F, N) matrix that an observed vector lists: ``rows`` and ``cols``, or a boolean ``mask``.

    ``exposure`` and ``background`` : (cells,) of these cells alone, beside those of the whole matrix; or None
    """

    parts: tuple[Array, ...]
    exposure: Array | None = None
    background: Array | None = None

    def times(self, known: Array) -> CellIndex:
        """One number for each cell."""
        background = None if self.background is None else self.background * known
        return replace(self, exposure=known if self.exposure is None else self.exposure * known, background=background)

    def plus(self, known: Array) -> CellIndex:
        return replace(self, background=known if self.background is None else self.background + known)

    def rows_and_cols(self) -> tuple[Array, Array]:
        rows, cols = np.nonzero(self.parts[0]) if len(self.parts) == 1 else self.parts
        return rows, cols


# -- products ----------------------------------------------------------------------------------------------------


def as_dot(variable: Variable) -> tuple[Operand, Operand] | None:
    """``W @ H``, ``pt.dot``, ``pm.math.dot``, ``W.dot(H)``, ``pt.matmul``."""
    op = variable.owner.op
    if not isinstance(op, Dot) and not (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
        return None
    left, right = variable.owner.inputs
    return Operand.of(left), Operand.of(right)


def as_einsum(variable: Variable) -> tuple[Operand, Operand] | None:
    """``pt.einsum`` of two matrices that share one index which the result has not."""
    op = variable.owner.op
    if not isinstance(op, Einsum) or len(variable.owner.inputs) != 2:
        return None
    terms, _, result = op.subscripts.replace(" ", "").partition("->")
    first, second = terms.split(",")
    result = result or "".join(sorted(set(first) ^ set(second)))
    inner = set(first) & set(second)
    if not (len(set(first)) == len(set(second)) == len(first) == len(second) == 2 and len(inner) == 1):
        return None
    operands = [Operand.of(i, s[0] in inner) for i, s in zip(variable.owner.inputs, (first, second), strict=True)]
    outer = [(set(s) - inner).pop() for s in (first, second)]  # each operand is now (outer, inner)
    if sorted(result) != sorted(outer):
        return None
    left, right = operands if result[0] == outer[0] else operands[::-1]
    return left, right.T


PRODUCTS: dict[str, Callable[[Variable], tuple[Operand, Operand] | None]] = {
    "W @ H": as_dot,
    "einsum": as_einsum,
}


def as_product(variable: Variable) -> Mean | None:
    """The product of two matrices, in any registered spelling."""
    if variable.owner is None or ndim(variable) != 2:
        return None
    found = (spelling(variable) for spelling in PRODUCTS.values())
    return next((product_of(*pair) for pair in found if pair is not None), None)


def product_of(left: Operand, right: Operand) -> Mean:
    """left @ right; what is known to multiply the one's rows or the other's columns is an exposure."""
    left, of_rows = unscaled(left)
    right, of_columns = unscaled(right.T)
    return Mean(left, right.T, tuple(of_rows) + tuple(scale.T for scale in of_columns))


def unscaled(operand: Operand) -> tuple[Operand, list[Array]]:
    """The operand without known numbers that multiply its rows, and those, (rows or 1, 1) each."""
    found: list[Array] = []
    while (inner := split_scale(operand)) is not None:
        operand, scale = inner
        found.append(scale)
    return operand, found


def split_scale(operand: Operand) -> tuple[Operand, Array] | None:
    variable = operand.variable
    is_quotient = is_elemwise(variable, TrueDiv)
    if not (is_quotient or is_elemwise(variable, Mul)) or ModelGraph.is_known(variable):
        return None
    terms = variable.owner.inputs
    unknown = [term for term in terms if not ModelGraph.is_known(term)]
    if len(unknown) != 1 or ndim(unknown[0]) != 2 or (is_quotient and unknown[0] is not terms[0]):
        return None
    known = [np.atleast_2d(known_value(term).astype(np.float64)) for term in terms if term is not unknown[0]]
    scale = np.prod(np.broadcast_arrays(*known), axis=0)
    scale = 1.0 / scale if is_quotient else scale
    scale = scale.T if operand.transposed else scale
    return (Operand.of(unknown[0], operand.transposed), scale) if scale.shape[1] == 1 else None


# -- the mean around it ------------------------------------------------------------------------------------------


def as_mean(variable: Variable) -> Mean | None:
    """exposure * (W @ H) + background, nested in any order; transposed as a whole, too."""
    variable = strip(variable)
    if variable.owner is None:
        return None
    if (inner := as_transposed(variable)) is not None:
        mean = as_mean(inner)
        return None if mean is None else mean.T
    for operation in (as_sum, as_multiple, as_quotient):
        if (mean := operation(variable)) is not None:
            return mean
    return as_product(variable)


def as_sum(variable: Variable) -> Mean | None:
    mean, known = split_known(variable, Add)
    if mean is None or mean.factor is not None:
        return None
    for term in known:
        mean = mean.plus(*known_factors(term))
    return mean


def as_multiple(variable: Variable) -> Mean | None:
    mean, known = split_known(variable, Mul)
    if mean is None:
        return as_batched(variable)
    return mean.times(*(part for term in known for part in known_factors(term)))


def as_batched(variable: Variable) -> Mean | None:
    """A mean times what is unknown and no mean, and known numbers."""
    terms = list(factors_of(variable))
    unknown = [term for term in terms if not ModelGraph.is_known(term)]
    if len(unknown) not in (1, 2) or len(terms) == 1:
        return None
    # After pm.do on both factors everything but the multipliers is known, and the mean is the argument of its form.
    candidates = unknown if len(unknown) == 2 else [term for term in terms if term not in unknown]
    means = {term: mean for term in candidates if (mean := as_mean(term)) is not None and not selects(mean)}
    others = [term for term in unknown if term not in means]
    if len(means) != 1 or len(others) != 1:
        return None
    ((of_mean, mean),) = means.items()
    if mean.factor is not None:
        return None
    known = [known_value(term).astype(np.float64) for term in terms if term not in (of_mean, *others)]
    return replace(mean.times(*known), factor=BatchFactor(others[0]))


def factors_of(variable: Variable) -> Iterator[Variable]:
    """Of a product of products, cell by cell, those that are none."""
    if not is_elemwise(variable, Mul):
        yield variable
        return
    for term in variable.owner.inputs:
        inner = strip(term)
        if ndim(inner) == ndim(variable) and not ModelGraph.is_known(inner):
            yield from factors_of(inner)
        else:
            yield term


def selects(mean: Mean) -> bool:
    """Whether a product selects columns (or rows) of a matrix: the other one is known, and has a single 1 in each."""
    for operand, axis in ((mean.right, 0), (mean.left, 1)):
        if ModelGraph.is_known(operand.variable):
            known = known_value(operand.variable)
            sums = np.sum(known, axis=1 - axis if operand.transposed else axis)
            return bool(np.all((known == 0) | (known == 1)) and np.all(sums <= 1))
    return False


def as_quotient(variable: Variable) -> Mean | None:
    if not is_elemwise(variable, TrueDiv) or not ModelGraph.is_known(variable.owner.inputs[1]):
        return None
    mean = as_mean(variable.owner.inputs[0])
    return None if mean is None else mean.times(1.0 / known_value(variable.owner.inputs[1]).astype(np.float64))


def split_known(variable: Variable, scalar_op: type) -> tuple[Mean | None, list[Variable]]:
    """The one argument of a sum or product that is a mean, and the others, all known."""
    if not is_elemwise(variable, scalar_op):
        return None, []
    terms = variable.owner.inputs
    # After pm.do on both factors everything is known, and the mean is the argument that has its form.
    is_mean = [not ModelGraph.is_known(term) for term in terms]
    is_mean = is_mean if any(is_mean) else [as_mean(term) is not None for term in terms]
    if sum(is_mean) != 1:
        return None, []
    known = [term for term, own in zip(terms, is_mean, strict=True) if not own]
    return as_mean(terms[is_mean.index(True)]), known


def known_factors(variable: Variable) -> tuple[Array, ...]:
    """Arrays of which a known variable is the product, as it is written: an outer product is not multiplied out."""
    variable = strip(variable)
    if (inner := as_transposed(variable)) is not None:
        return tuple(np.atleast_2d(part).T for part in known_factors(inner))
    if not is_elemwise(variable, Mul):
        return (known_value(variable).astype(np.float64),)
    return tuple(part for term in variable.owner.inputs for part in known_factors(term))


# -- listed cells ------------------------------------------------------------------------------------------------


def split_index(variable: Variable) -> tuple[Variable, CellIndex | None]:
    """``mean[rows, cols]`` or ``mean[mask]`` -> (mean, cells); any other variable -> (variable, None)."""
    inner = strip(variable)
    node = inner.owner
    if node is None or not isinstance(node.op, AdvancedSubtensor) or ndim(node.inputs[0]) != 2:
        return inner, None
    indices = node.inputs[1:]
    if not all(ndim(i) and ModelGraph.is_known(i) for i in indices):
        return inner, None
    parts = tuple(known_value(i) for i in indices)
    is_pair = len(parts) == 2 and all(p.ndim == 1 and p.dtype.kind in "iu" for p in parts)
    is_mask = len(parts) == 1 and parts[0].ndim == 2 and parts[0].dtype.kind == "b"
    return (strip(node.inputs[0]), CellIndex(parts)) if is_pair or is_mask else (inner, None)


def as_indexed_mean(variable: Variable) -> tuple[Mean | None, CellIndex | None]:
    """The mean of an observed matrix, or of the listed cells of one, with nothing unknown around W @ H."""
    mean, cells = as_batched_mean(variable)
    return (mean, cells) if mean is None or mean.factor is None else (None, None)


def as_batched_mean(variable: Variable) -> tuple[Mean | None, CellIndex | None]:
    """The same, also with multipliers of batches."""
    node = strip(variable).owner
    if node is not None and isinstance(node.op, CellRates):
        left, right, rows, cols = node.inputs
        return product_of(Operand.of(left), Operand.of(right)), cell_index(rows, cols)
    matrix, cells = split_index(variable)
    if cells is None and ndim(variable) == 1:
        return as_offset_cells(strip(variable))
    return as_mean(matrix), cells


def as_offset_cells(variable: Variable) -> tuple[Mean | None, CellIndex | None]:
    """exposure * mean[rows, cols] + background, with known numbers for each listed cell or for all."""
    operation = next((op for op in (Add, Mul, TrueDiv) if is_elemwise(variable, op)), None)
    terms = [] if operation is None else variable.owner.inputs
    unknown = [term for term in terms if not ModelGraph.is_known(term)]
    if len(unknown) != 1 or (operation is TrueDiv and unknown[0] is not terms[0]):
        return None, None
    mean, cells = as_indexed_mean(unknown[0])
    if mean is None or cells is None:
        return None, None
    for term in terms:
        if term is not unknown[0]:
            known = known_value(term).astype(np.float64)
            known = 1.0 / known if operation is TrueDiv else known
            mean, cells = plus_known(mean, cells, known) if operation is Add else times_known(mean, cells, known)
    return mean, cells


def times_known(mean: Mean, cells: CellIndex, known: Array) -> tuple[Mean, CellIndex]:
    """One number is one of the whole matrix, of cells that are not listed, too."""
    if known.size > 1:
        return mean, cells.times(known)
    known = known.reshape(1, 1)
    background = None if cells.background is None else cells.background * known[0]
    return mean.times(known), replace(cells, background=background)


def plus_known(mean: Mean, cells: CellIndex, known: Array) -> tuple[Mean, CellIndex]:
    """The same, but where each listed cell has an exposure, which one number is outside of."""
    if known.size > 1 or cells.exposure is not None:
        return mean, cells.plus(known)
    return mean.plus(known.reshape(1, 1)), cells


def cell_index(rows: Variable, cols: Variable) -> CellIndex:
    """Known row and column indices."""
    return CellIndex((known_value(rows), known_value(cols)))
