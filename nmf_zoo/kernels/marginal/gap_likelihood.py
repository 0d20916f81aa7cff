"""Exact sums over all sources of a sample's counts, by dynamic programming over the components' totals.

Given W, the counts x_f of one GaP sample have the sources c_fk with sum_k c_fk = x_f, and what their sum over all
admissible C depends on beside the features is the totals L_k = sum_f c_fk alone (Filstroff et al. 2018, eq. 28)::

    sum_C prod_f x_f! / prod_k c_fk! q_fk^c_fk  prod_k r_k(0) r_k(1) ... r_k(L_k - 1),     r_k(l) = alpha_k + slope_k l

(slope 1 for a Gamma-distributed activation; slope 0 and alpha 1 for a known background). So the counts are added one at
a time, state (L_1, ..., L_K) -> value, whatever their feature was::

    new[L + e_k] += q_fk r_k(L_k) / (A + m) old[L]                A = sum alpha, m = counts so far

All terms are positive: nothing cancels, each value keeps about 15 digits, and a scale keeps them in range. Work:
binomial(n + K, K), about n^K / K! updates for n counts; memory: binomial(n + K - 1, K - 1) values.

**Layout.** The last total follows from the others. A row holds all values of the one before it (the inner component),
contiguous and from its largest to 0, for fixed totals of the first K - 2 (the outer ones); rows lie in the order of
their outer sum. So a count is added in place, row by row from the last, and within a row from the first cell on:
whatever a cell needs lies behind it. Each row ends in cells that stay 0.

**Vectors.** The inner loops take eight cells of a row at a time, written in LLVM's vectors. Rows are short: numba's own
loops would spend half of the time on what their unrolled vectors leave over. So rows end in cells that stay 0, whole
vectors are read and written, and each cell is read once for itself and for its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from nmf_zoo.kernels.compile import kernel, summing_signless
from nmf_zoo.kernels.simd.unowned_views import borrowed

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


class _CellVectors:
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
    cells = _CellVectors(context, builder, signature.args[0], state, begin)
    a, b, c, d = (_in_every_lane(builder, builder.extract_value(pair, i)) for pair in pairs for i in (0, 1))
    end = _in_every_lane(builder, builder.sitofp(builder.sub(length, _INT(3)), _DOUBLE))
    step, first = ir.Constant(_VECTOR, [float(LANES)] * LANES), ir.Constant(_VECTOR, [i - 1.0 for i in range(LANES)])
    source = weight = None
    if len(arguments) > 5:
        source = _CellVectors(context, builder, signature.args[0], state, arguments[5])
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
    cells, source = (_CellVectors(context, builder, signature.args[0], state, place) for place in (begin, start))
    weight = _in_every_lane(builder, weight)
    with _turns(builder, length) as (turn, _, __):
        cells.store(turn, _multiply_add(builder, weight, source.load(turn), cells.load(turn)))
    return context.get_dummy_value()


_PAIR = types.UniTuple(types.float64, 2)


@intrinsic
def _advance_lanes(_typing, state, begin, length, last, inner):
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
    return lambda state, begin, length, last, inner: _advance_lanes(state, begin, length, last, inner)


@overload(advance_row_from)
def _compiled_advance_from(state, begin, length, last, inner, source, weight):
    return lambda state, begin, length, last, inner, source, weight: _advance_from(
        state, begin, length, last, inner, source, weight
    )


@overload(add_row)
def _compiled_add(state, begin, length, source, weight):
    return lambda state, begin, length, source, weight: _add(state, begin, length, source, weight)


# -- rows of totals --------------------------------------------------------------------------------------------------


FULL = 1e290  # the state's sum after a rescaling: sums only fall, so this leaves the widest range below
RESCALE = 8  # counts between two rescalings


class StateRows(NamedTuple):
    """Where the state of n counts lies.

    Attributes
    ----------
    start : (rows + 1,) its first cell
    used : (rows,) sum of the outer totals; the inner total goes from n - used down to 0
    outer : (rows, K - 2) the outer totals
    below : (rows, K - 2) the row with one less in this component, or -1
    active : (n + 1,) how many rows have a sum of at most m
    """

    start: np.ndarray
    used: np.ndarray
    outer: np.ndarray
    below: np.ndarray
    active: np.ndarray


@kernel
def _binomial(n, k):
    """n over k, exact as long as it is below 2^53."""
    result = 1
    for i in range(1, k + 1):
        result = result * (n - k + i) // i
    return result


@kernel
def lay_out(n, rank):
    """The :class:`StateRows` of n counts and ``rank`` >= 2 components."""
    depth = rank - 2
    n_rows = _binomial(n + depth, depth)
    start, used = np.zeros(n_rows + 1, np.int64), np.zeros(n_rows, np.int64)
    outer, below = np.zeros((n_rows, depth), np.int64), np.full((n_rows, depth), -1, np.int64)
    active = np.zeros(n + 1, np.int64)
    sums = np.zeros(depth, np.int64)  # of the outer totals up to each: row = sum_i binomial(sums_i + i, i + 1)
    for row in range(n_rows):
        total = sums[depth - 1] if depth > 0 else 0
        used[row], active[total] = total, row + 1
        start[row + 1] = start[row] + n - total + 1 + 2 * LANES
        earlier = 0  # how many rows further down the one with one less in d lies
        for d in range(depth - 1, -1, -1):
            earlier += _binomial(sums[d] + d - 1, d)
            outer[row, d] = sums[d] - (sums[d - 1] if d > 0 else 0)
            if outer[row, d] > 0:
                below[row, d] = row - earlier
        _advance(sums)
    for m in range(1, n + 1):
        active[m] = max(active[m], active[m - 1])
    return StateRows(start, used, outer, below, active)


@kernel
def _advance(sums):
    """The next partial sums in the rows' order: the first moves fastest, none above the one after it."""
    for d in range(sums.size):
        if d == sums.size - 1 or sums[d] < sums[d + 1]:
            sums[d] += 1
            return
        sums[d] = 0


@kernel
def add_count(state, rows, m, q, shape, slope):
    """Add one count of shares q (K,), scaled as the caller likes, to the state of m, in place."""
    state, (inner, final) = borrowed(state), (q.size - 2, q.size - 1)
    of_last = q[final] * shape[final], q[final] * slope[final]
    of_inner = q[inner] * shape[inner], q[inner] * slope[inner]
    first = rows.active.size - m - 2  # where the largest inner total stands in a row
    for row in range(rows.active[m + 1] - 1, -1, -1):
        begin, length, is_advanced = rows.start[row] + first, m + 2 - rows.used[row], False
        for d in range(inner):
            below = rows.below[row, d]
            if below >= 0:
                source, weight = rows.start[below] + first + 1, q[d] * (shape[d] + slope[d] * (rows.outer[row, d] - 1))
                if is_advanced:
                    add_row(state, begin, length, source, weight)
                else:
                    advance_row_from(state, begin, length, of_last, of_inner, source, weight)
                is_advanced = True
        if not is_advanced:
            advance_row(state, begin, length, of_last, of_inner)


@summing_signless
def sum_state(state, rows, n, m):
    """Sum of the state of m counts."""
    total, state = 0.0, borrowed(state)
    for row in range(rows.active[m]):
        begin = rows.start[row] + n - m
        cells = state[begin : rows.start[row + 1] - 2 * LANES]
        for j in range(cells.size):
            total += cells[j]
    return total


@kernel
def run_forward(state, rows, order, q, shape, slope):
    """log of the sum over all sources of counts with the shares q[order[0]], q[order[1]], ...; overwrites the state."""
    n, total_shape, shares = order.size, shape.sum(), np.empty(q.shape[1])
    state[:] = 0.0
    state[rows.start[0] + n] = FULL
    log_scale, scale = -math.log(FULL), 1.0
    for m in range(n):
        factor = scale / (total_shape + m)
        for k in range(shares.size):
            shares[k] = factor * q[order[m], k]
        add_count(state, rows, m, shares, shape, slope)
        log_scale -= math.log(factor)
        scale = FULL / sum_state(state, rows, n, m + 1) if m % RESCALE == RESCALE - 1 else 1.0
    return log_scale + math.log(sum_state(state, rows, n, n))


@kernel
def golden_order(counts, n):
    """(n,) the cell of each single count, in an order whose every beginning looks like the whole.

    So no value that matters in the end is ever negligible beside the state's sum.
    """
    units, place = np.empty(n, np.int64), 0
    for cell in range(counts.size):
        for _ in range(counts[cell]):
            units[place] = cell
            place += 1
    stride = max(1, int(0.6180339887498949 * n))
    while math.gcd(stride, n) > 1:
        stride += 1
    order = np.empty(n, np.int64)
    for i in range(n):
        order[i] = units[i * stride % n]
    return order
