"""Copies and views of arrays by kernels, which own no memory.

Compiled, ``out[:] = array`` also holds a copy for arrays that overlap and an error for shapes that differ: both own
memory, and take longer to compile than most kernels. `ravel` may be a copy, too.
"""

from __future__ import annotations

from nmf_zoo.kernels.compile import in_lanes, spliced


@in_lanes
def copy_row(out, row):
    """The beginning of out (any,) = row (n,), which does not overlap."""
    for i in range(row.size):
        out[i] = row[i]


@in_lanes
def copy_table(out, table):
    """out (m, n) = the beginning of table (any, any), which does not overlap."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = table[i, j]


@spliced
def flat(array):
    """A contiguous array as one row."""
    return array.reshape(array.size)
