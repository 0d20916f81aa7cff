"""Copies of arrays that do not overlap, cell by cell.

``out[:] = array`` does the same in Python. Compiled, it also holds a copy for arrays that overlap, which owns memory,
and an error for shapes that differ: together they take longer to compile than most kernels.
"""

from __future__ import annotations

from nmf_zoo.kernels.compile import in_lanes


@in_lanes
def copy_row(out, row):
    """The beginning of out (any,) = row (n,)"""
    for i in range(row.size):
        out[i] = row[i]


@in_lanes
def copy_table(out, table):
    """out (m, n) = the beginning of table (any, any)"""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = table[i, j]
