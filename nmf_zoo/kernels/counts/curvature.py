"""The curvature of sparse Poisson data in the rows of a factor, as a sum over cells, and Newton steps from such sums.

Given the other factor, with rows v_j, a row u of a factor minimises::

    linear . u - sum_j x_j log(m_j) - power . log(u) + curve . u^2 / 2,      m_j = u . v_j + offset_j,    u >= 0

Its slope and its second derivative ``sum_j x_j / m_j^2 v_j v_j^T`` are sums over the cells, so that these may come in
any pieces, and a step needs no cell. Of K^2 / 2 numbers in a row only those of ``active`` components A are gathered;
the others B take EM's step. With shares l_kj = u_k v_kj / m_j and s_k = change_k / u_k, a logarithm is concave::

    -log(1 + sum_k s_k l_kj) <= -a_j log(1 + sum_A s_k l_kj / a_j) - sum_B l_kj log(1 + s_k),     a_j = 1 - sum_B l_kj

The last sum is what EM maximises, whatever A does, and A's part has the curvature ``sum_j x_j / (m_j^2 a_j) v_j v_j^T``
over A: the exact one where all components are active. As sum_A l_kj <= a_j, the argument of its logarithm is at least
1 + min s. For s >= -MOST_SHRINK = -0.68 it is -log(1 + t) <= -t + t^2, twice the quadratic term of its expansion. So a
step to the minimum of the quadratic with that bound, whose linear gain is at least twice its quadratic term, never
loses, without a look at the cells. Cells on their way to 0 lose two thirds in each step.

Such a step at most doubles a mean, and a row that starts far from the size of its counts would need many. Where the
means are all of the row's own, without an offset, the best multiple c u of a row is known from the same sums: shares
don't depend on c, so that u_k sum_j x_j v_kj / m_j does not either, and the second derivative is divided by c^2. So the
step is made from there.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing
from nmf_zoo.kernels.counts.sources import divide_cells, fill_means, longest_row, share_cells
from nmf_zoo.kernels.numerics.multiplicative import FLOOR
from nmf_zoo.kernels.simd.lanes import add_scaled, dot, load, load_some, nothing, store, tile_lanes

TINY = 1e-300  # one over it is finite
MOST_SHRINK = 0.68  # of a cell in a step: -log(1 - t) <= t + t^2 up to there
LEAST_ACTIVE = 1e-8  # of a mean: a smaller share is rounding's
ROUNDS = 20  # over a row's cells for its quadratic
CLOSE = 1e-8  # of the first round's largest gain: the quadratic is no better known than that far from here
CELLS = 64  # of a row at a time: they stay in cache


def scratch_rows(n_active: int) -> int:
    """How many rows :func:`gather_curvature` needs for its work."""
    return CELLS + -(-n_active // 4) * 4


@kernel
def gather_curvature(layout, major, minor, chunk, parts, of_major, curvature, scratch):
    """Overwrite a chunk's rows of of_major (major, K) with expected sources; add the triangles over A to curvature's.

    ``minor`` is :class:`nmf_zoo.kernels.simd.lanes.Padded`. ``parts`` are A (major, active), the numbers of the
    components, and ``major`` with only B left, of no rows where B is empty. A row of ``curvature`` (major, active
    (active + 1) / 2) has the lower triangle, row by row. ``scratch`` is padded, of as many rows as :func:`scratch_rows`
    says, and active columns.
    Returns (sum of x log mean, sum of the counts left out), as :func:`nmf_zoo.kernels.counts.sources.gather` does.
    """
    active, others = parts
    start, last = layout.chunks[chunk], layout.chunks[chunk + 1]
    ratios = np.empty(longest_row(layout.indptr, start, last))
    total, lost = 0.0, 0.0
    for i in range(start, last):
        if layout.indptr[i] == layout.indptr[i + 1]:  # of a block with few samples most rows are so
            of_major[i] = 0.0
            continue
        fill_means(ratios, layout, major, minor, i, i + 1)
        row_total, row_lost = divide_cells(layout.values[layout.indptr[i] : layout.indptr[i + 1]], ratios)
        total += row_total
        lost += row_lost
        share_cells(ratios, layout, major, minor, (i, i + 1), of_major, None)
        _add_bends(scratch, layout, minor, i, ratios, active[i], others)
        position = 0
        for a in range(active.shape[1]):
            for b in range(a + 1):
                curvature[i, position] += scratch.values[CELLS + a, b]
                position += 1
    return total, lost


@kernel
def _add_bends(scratch, layout, minor, i, ratios, active, others):
    """Overwrite what follows the first CELLS rows of scratch, which some cells at a time take, with row i's square."""
    first, stop = layout.indptr[i], layout.indptr[i + 1]
    _fill_roots(ratios[: stop - first], layout.values[first:stop])
    if others.shape[0] > 0:
        _leave_out(ratios, layout, minor, i, others)
    are_neighbours = active[-1] - active[0] == active.size - 1
    for start in range(first, stop, CELLS):
        count = min(CELLS, stop - start)
        for c in range(count):
            j, root = layout.indices[start + c], ratios[start + c - first]
            if are_neighbours:  # what else the row holds beyond them is in nobody's way
                row = load_some(minor.values, j, active[0], scratch)
                store(scratch, c, 0, add_scaled(nothing(row), root, row))
            else:
                _scale(scratch.values[c], root, minor.values[j], active)
        _add_squares(scratch, count, active.size, start > first)


@summing
def _fill_roots(ratios, x):
    """Overwrite x / m with the root of x / m^2."""
    for c in range(x.size):
        ratios[c] = ratios[c] / math.sqrt(x[c])


@kernel
def _leave_out(roots, layout, minor, i, others):
    """Divide x / m^2 by the part of the mean that is not the other components'."""
    first = layout.indptr[i]
    for c in range(first, layout.indptr[i + 1]):
        rest = 0.0
        for k in range(0, minor.values.shape[1], tile_lanes(minor)):
            rest += dot(load_some(others, i, k, minor), load(minor, layout.indices[c], k))
        share = rest * roots[c - first] / math.sqrt(layout.values[c])
        roots[c - first] /= math.sqrt(max(1.0 - share, LEAST_ACTIVE))


@kernel
def _scale(out, root, met, active):
    """Overwrite the first of out with the active of met, times root."""
    for a in range(active.size):
        out[a] = root * met[active[a]]


@kernel
def _add_squares(scratch, count, met, goes_on):
    """The squares of the first rows of scratch, four rows of them at a time, which stay in registers.

    They follow these rows, and are added to what is there where a row ``goes_on``.
    """
    for a in range(0, met, 4):
        one = two = three = four = nothing(load(scratch, 0, 0))
        if goes_on:
            one, two = load(scratch, CELLS + a, 0), load(scratch, CELLS + a + 1, 0)
            three, four = load(scratch, CELLS + a + 2, 0), load(scratch, CELLS + a + 3, 0)
        for c in range(count):
            row = load(scratch, c, 0)
            one = add_scaled(one, scratch.values[c, a], row)
            two = add_scaled(two, scratch.values[c, a + 1], row)
            three = add_scaled(three, scratch.values[c, a + 2], row)
            four = add_scaled(four, scratch.values[c, a + 3], row)
        store(scratch, CELLS + a, 0, one)
        store(scratch, CELLS + a + 1, 0, two)
        store(scratch, CELLS + a + 2, 0, three)
        store(scratch, CELLS + a + 3, 0, four)


@kernel
def newton_rows(new, start, sources, curvature, active, linear, prior, rows):
    """Overwrite the active cells of some rows of new (rows, K) with where a Newton step from ``start`` leads.

    ``start`` is (old, scale), the rows (rows, K) and what they have been multiplied by, (rows,), since
    :func:`gather_curvature` found ``sources`` (rows, K) and ``curvature``; ``linear`` and both of ``prior``, power and
    curve, are (rows or 1, K). A row whose step is not finite stays as it is in ``new``, and so do cells where nothing
    is observed.
    """
    (old, scale), (power, curve) = start, prior
    met = active.shape[1]
    square, inverse = np.empty((met, met)), np.empty(met)
    slopes, steps, before = np.empty(met), np.empty(met), np.empty(met)
    for i in range(rows[0], rows[1]):
        row_linear = linear[i if linear.shape[0] > 1 else 0]
        row_power, row_curve = power[i if power.shape[0] > 1 else 0], curve[i if curve.shape[0] > 1 else 0]
        position, is_finite, smaller = 0, True, 1.0 / scale[i]
        for a in range(met):
            k = active[i, a]
            w, p, q = old[i, k], row_power[k], row_curve[k]
            before[a], steps[a] = row_linear[k] + q * w - (sources[i, k] + p) / w, 0.0
            slopes[a] = before[a]
            for b in range(a + 1):
                square[a, b] = curvature[i, position] * smaller * smaller
                square[b, a] = square[a, b]
                position += 1
            square[a, a] += p / w / w + q
            inverse[a] = 1.0 / square[a, a] if square[a, a] > TINY else 0.0
            is_finite = is_finite and np.isfinite(slopes[a]) and np.isfinite(square[a, a])
        if is_finite:
            _minimise(steps, slopes, square, inverse, old[i], active[i], row_linear)
            length = _length(before, slopes, steps)
            for a in range(met):
                k = active[i, a]
                w = old[i, k] + length * steps[a]
                new[i, k] = w if w > FLOOR else FLOOR


@kernel
def _minimise(steps, slopes, square, inverse, old, active, linear):
    """The minimum of slopes . s + s square s / 2 in a row's active cells, none of which shrinks by too much.

    By coordinate descent, with one over the square's diagonal, or 0 where that is as good as 0; ``slopes`` follow.
    Cells that no count meets go to 0 at once, or stay.
    """
    first = 0.0
    for _ in range(ROUNDS):
        largest = 0.0
        for a in range(steps.size):
            w, bend = old[active[a]], square[a, a]
            if linear[active[a]] <= 0.0:
                continue
            if inverse[a] == 0.0:
                steps[a] = -w if slopes[a] > 0.0 else 0.0
                continue
            step = max(-slopes[a] * inverse[a], -MOST_SHRINK * w - steps[a])
            if step != 0.0:
                steps[a] += step
                for b in range(steps.size):
                    slopes[b] += square[a, b] * step
                largest = max(largest, step * step * bend)
        first = max(first, largest)
        if largest <= CLOSE * first:
            break


@kernel
def _length(before, slopes, steps):
    """How far along the steps the bound says that nothing is lost: 1 at the minimum, less where rounds ended early."""
    gain, rise = 0.0, 0.0
    for a in range(steps.size):
        gain -= before[a] * steps[a]
        rise += slopes[a] * steps[a]
    if rise <= 0.0:
        return 1.0
    return gain / (gain + rise) if gain > 0.0 else 0.0
