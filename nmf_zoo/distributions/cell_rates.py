"""A PyTensor operation for W @ H at listed cells, with its gradient.

``(W @ H)[rows, cols]`` would build the (F, N) product and ``(W[rows] * H.T[cols]).sum(-1)`` a (cells, K) array. The
operation needs neither: it runs a numba kernel, natively in PyTensor's numba backend and through ``perform`` elsewhere.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from nmf_zoo.kernels.numerics import cells

# PyTensor keeps compiled graphs on disk and can't see the kernels' source; a changed source must not meet old code.
CACHE_VERSION = zlib.crc32(Path(cells.__file__).read_bytes())
OUTSIDE = "cell indices: got an index outside of W @ H; expected 0 <= row < features and 0 <= column < samples"


class CellRates(Op):
    """(W (F, K), H (K, N), rows (cells,), cols (cells,)) -> sum_k W[rows, k] H[k, cols], (cells,)."""

    __props__ = ()
    gufunc_signature = "(f,k),(k,n),(c),(c)->(c)"

    def make_node(self, W, H, rows, cols):
        W, H, rows, cols = factors_and_cells(W, H, rows, cols)
        return Apply(self, [W, H, rows, cols], [pt.vector(shape=rows.type.shape, dtype="float64")])

    def perform(self, node, inputs, output_storage):
        W, H, rows, cols = inputs
        refuse_outside(W, H, rows, cols)
        output_storage[0][0] = cells.cell_rates(W, H, rows, cols)

    def pullback(self, inputs, outputs, cotangents):
        gradients = CellRatesGradient()(*inputs, cotangents[0])
        return [*gradients, DisconnectedType()(), DisconnectedType()()]

    L_op = pullback  # its name in PyTensor 2

    def connection_pattern(self, node):
        return [[True], [True], [False], [False]]


class CellRatesGradient(Op):
    """Gradients of sum(upstream * CellRates(W, H, rows, cols)) in W (F, K) and in H (K, N)."""

    __props__ = ()
    gufunc_signature = "(f,k),(k,n),(c),(c),(c)->(f,k),(k,n)"

    def make_node(self, W, H, rows, cols, upstream):
        W, H, rows, cols = factors_and_cells(W, H, rows, cols)
        upstream = pt.cast(pt.as_tensor_variable(upstream), "float64")
        return Apply(self, [W, H, rows, cols, upstream], [W.type(), H.type()])

    def perform(self, node, inputs, output_storage):
        W, H, rows, cols, upstream = inputs
        refuse_outside(W, H, rows, cols)
        output_storage[0][0], output_storage[1][0] = cells.cell_rate_gradients(W, H, rows, cols, upstream)


def factors_and_cells(W, H, rows, cols):
    """The operation's inputs as tensors: float64 factors, integer indices."""
    W, H = (pt.cast(pt.as_tensor_variable(factor), "float64") for factor in (W, H))
    return W, H, *(pt.as_tensor_variable(index) for index in (rows, cols))


def refuse_outside(W, H, rows, cols):
    """Kernels don't check bounds, and ``pm.set_data`` can put anything here."""
    if not cells.are_cells_inside(rows, cols, W.shape[0], H.shape[1]):
        raise IndexError(OUTSIDE)


@register_funcify_default_op_cache_key(CellRates)
def numba_cell_rates(op, node, **kwargs):
    """Native code for PyTensor's numba backend."""

    @numba_njit
    def cell_rates(W, H, rows, cols):
        if not cells.are_cells_inside(rows, cols, W.shape[0], H.shape[1]):
            raise IndexError(OUTSIDE)
        return cells.cell_rates(W, H, rows, cols)

    return cell_rates, CACHE_VERSION


@register_funcify_default_op_cache_key(CellRatesGradient)
def numba_cell_rates_gradient(op, node, **kwargs):
    """Native code for PyTensor's numba backend; the rates have checked the indices."""

    @numba_njit
    def cell_rates_gradient(W, H, rows, cols, upstream):
        if not cells.are_cells_inside(rows, cols, W.shape[0], H.shape[1]):
            raise IndexError(OUTSIDE)
        return cells.cell_rate_gradients(W, H, rows, cols, upstream)

    return cell_rates_gradient, CACHE_VERSION


def cell_rates(W, H, rows, cols):
    """Symbolic (cells,) vector of sum_k W[rows, k] H[k, cols]."""
    return CellRates()(W, H, rows, cols)
