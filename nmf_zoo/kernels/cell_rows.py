"""Eight cells of a row at a time: the inner loops of :mod:`nmf_zoo.kernels.totals`, written in LLVM's vectors.

Rows are short: numba's own loops would spend half of the time on what their unrolled vectors leave over. So rows end in
cells that stay 0, whole vectors are read and written, and each cell is read once for itself and for its neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

LANES = 8
_INT, _INT32, _DOUBLE = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, LANES)


def advance_row(state, begin, length, last, inner):
    """state[j] = (a + b t) state[j] + (c + d (length - 3 - t)) state[j + 1], in place, j = begin + 1 + t, t >= -1.

    With (a, b) = last and (c, d) = inner; for ``length`` cells and, up to whole vectors, zeros after them.
    """
    (a, b), (c, d) = last, inner
    t = np.arange(-1.0, length - 1.0)
    cells, after = state[begin : begin + length], state[begin + 1 : begin + length + 1].copy()
    cells[:] = (a + b * t) * cells + (c + d * (length - 3 - t)) * after


def advance_row_from(state, begin, length, last, inner, source, weight):
    """The same, and then :func:`add_row`: in one pass."""
    advance_row(state, begin, length, last, inner)
    add_row(state, begin, length, source, weight)


def add_row(state, begin, length, source, weight):
    """state[begin + i] += weight state[source + i] for i < length; that row lies elsewhere."""
    state[begin : begin + length] += weight * state[source : source + length]


class _Cells:
    """Vectors of an array from some place on, eight cells further in each turn of a loop."""

    def __init__(self, context, builder, kind, array, begin):
        self.builder = builder
        self.data = builder.gep(context.make_array(kind)(context, builder, array).data, [begin])

    def at(self, turn, shift=0):
        place = self.builder.gep(self.data, [self.builder.add(self.builder.mul(turn, _INT(LANES)), _INT(shift))])
        return self.builder.bitcast(place, _VECTOR.as_pointer())

    def load(self, turn, shift=0):
        return self.builder.load(self.at(turn, shift), align=8)

    def store(self, turn, value):
        self.builder.store(value, self.at(turn), align=8)


def _in_every_lane(builder, x):
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), x, _INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INT32, LANES), None))


def _multiply_add(builder, x, y, z):
    """x y + z, rounded once or twice as the processor likes."""
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


@contextmanager
def _turns(builder, length, *starts) -> Iterator[tuple[ir.Value, list[ir.Value], Callable]]:
    """A loop over the vectors of ``length`` >= 1 cells: yields (turn, values carried, how to set the next)."""
    before, body, done = builder.block, builder.append_basic_block("turn"), builder.append_basic_block("done")
    builder.branch(body)
    builder.position_at_end(body)
    turn, *values = (builder.phi(start.type) for start in (_INT(0), *starts))
    for phi, start in zip((turn, *values), (_INT(0), *starts), strict=True):
        phi.add_incoming(start, before)
    following: list[ir.Value] = []
    yield turn, values, lambda *given: following.extend(given)
    after = builder.add(turn, _INT(1))
    for phi, value in zip((turn, *values), (after, *following), strict=True):
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", builder.mul(after, _INT(LANES)), length), body, done)
    builder.position_at_end(done)


def _generate_advance(context, builder, signature, arguments):
    state, begin, length, *pairs = arguments[:5]
    cells = _Cells(context, builder, signature.args[0], state, begin)
    a, b, c, d = (_in_every_lane(builder, builder.extract_value(pair, i)) for pair in pairs for i in (0, 1))
    end = _in_every_lane(builder, builder.sitofp(builder.sub(length, _INT(3)), _DOUBLE))
    step, first = ir.Constant(_VECTOR, [float(LANES)] * LANES), ir.Constant(_VECTOR, [i - 1.0 for i in range(LANES)])
    source = weight = None
    if len(arguments) > 5:
        source = _Cells(context, builder, signature.args[0], state, arguments[5])
        weight = _in_every_lane(builder, arguments[6])
    neighbours = ir.Constant(ir.VectorType(_INT32, LANES), list(range(1, LANES + 1)))
    with _turns(builder, length, cells.load(_INT(0)), first) as (turn, (here, t), carry):
        beyond = cells.load(turn, LANES)
        carry(beyond, builder.fadd(t, step))
        value = builder.fmul(_multiply_add(builder, b, t, a), here, flags=("contract",))
        of_inner = _multiply_add(builder, d, builder.fsub(end, t), c)
        value = _multiply_add(builder, of_inner, builder.shuffle_vector(here, beyond, neighbours), value)
        if source is not None:
            value = _multiply_add(builder, weight, source.load(turn), value)
        cells.store(turn, value)
    return context.get_dummy_value()


def _generate_add(context, builder, signature, arguments):
    state, begin, length, start, weight = arguments
    cells, source = (_Cells(context, builder, signature.args[0], state, place) for place in (begin, start))
    weight = _in_every_lane(builder, weight)
    with _turns(builder, length) as (turn, _, __):
        cells.store(turn, _multiply_add(builder, weight, source.load(turn), cells.load(turn)))
    return context.get_dummy_value()


_PAIR = types.UniTuple(types.float64, 2)


@intrinsic
def _advance(_typing, state, begin, length, last, inner):
    return types.void(state, types.intp, types.intp, _PAIR, _PAIR), _generate_advance


@intrinsic
def _advance_from(_typing, state, begin, length, last, inner, source, weight):
    kinds = state, types.intp, types.intp, _PAIR, _PAIR, types.intp, types.float64
    return types.void(*kinds), _generate_advance


@intrinsic
def _add(_typing, state, begin, length, source, weight):
    return types.void(state, types.intp, types.intp, types.intp, types.float64), _generate_add


@overload(advance_row)
def _compiled_advance(state, begin, length, last, inner):
    return lambda state, begin, length, last, inner: _advance(state, begin, length, last, inner)


@overload(advance_row_from)
def _compiled_advance_from(state, begin, length, last, inner, source, weight):
    return lambda state, begin, length, last, inner, source, weight: _advance_from(
        state, begin, length, last, inner, source, weight
    )


@overload(add_row)
def _compiled_add(state, begin, length, source, weight):
    return lambda state, begin, length, source, weight: _add(state, begin, length, source, weight)
