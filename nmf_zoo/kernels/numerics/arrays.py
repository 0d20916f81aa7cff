"""What NumPy does with arrays, by kernels that own no memory.

Compiled, ``out[:] = array`` and ``out -= number`` also hold a copy for arrays that overlap and an error for shapes that
differ: both own memory, and take longer to compile than most kernels. So do `np.max` and `argmax`, which hold iterators
over any layout. `ravel` may be a copy, `sort` makes one.
"""

from __future__ import annotations

from nmf_zoo.kernels.compile import in_lanes, kernel, spliced


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


@kernel
def place_of_largest(values):
    """The first place of the largest of the values (n,), none of them NaN."""
    place = 0
    for i in range(1, values.size):
        if values[i] > values[place]:
            place = i
    return place


@kernel
def smallest(values, place):
    """What stands at ``place`` of the sorted values (n,), which end in another order. They are parted again and again
    around one of them (Hoare 1961, Algorithm 65)."""
    low, high = 0, values.size
    while True:
        pivot = values[(low + high) // 2]
        below, i, above = low, low, high
        while i < above:
            if values[i] < pivot:
                values[i], values[below] = values[below], values[i]
                below, i = below + 1, i + 1
            elif values[i] > pivot:
                above -= 1
                values[i], values[above] = values[above], values[i]
            else:
                i += 1
        if place < below:
            high = below
        elif place >= above:
            low = above
        else:
            return pivot
