"""Rows of one factor brought to their optimum where the other factor is known: active sets, exact to rounding.

Given the other factor each row u minimises a convex function over u >= 0::

    linear . u + curve . u^2 / 2 - sum_c x_c log(u . v_c + offset_c)        counts
    slopes . s + s (bend gram + diag(own)) s / 2, u + s >= 0              squared error

**A quadratic** is minimised by a few rounds of coordinate descent, which find most of the cells that are 0, and then by
active sets (Lawson and Hanson 1974; from a start that is nearly right, as Bro and de Jong 1997 have it): the minimum
over the positive cells by Cholesky, as far towards it as cells stay >= 0, and cells whose slope points upwards join.
No step of it is a loss. A ridge of `RIDGE` keeps Cholesky's pivots positive where components are alike; the step then
falls short by that part, and the next round makes up for it.

**Counts** take Newton steps (the quadratic at u, over the cells that are positive or want to be), with the length at
which the slope along the step is still downward, or nearly 0: the function is convex, so that no step is a loss.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing
from nmf_zoo.kernels.counts.newton import FLOOR, descend_row, fill_means, meet, sum_logs

ROUNDS = 8  # of coordinate descent before active sets
BLOCKS = 2  # rounds of active sets in which all cells that want to join do; then one at a time
RIDGE = 1e-10  # of a diagonal cell
STEEP = 1e-12  # of what pulls and drags a cell: a slope below it is rounding
WARM, NEWTON, HALVINGS = 4, 40, 30  # rounds of scalar steps; then Newton steps at the most; of a step's length
CLOSE, SHORT = 0.1, 0.1  # a length with this part of the first slope left will do; Newton's own, short by this part
ROUNDING = 1e-15  # of the terms of a slope: one as small is 0
NEAR = 1e-11  # residual at which a row has arrived


class ActiveSetWorkspace(NamedTuple):
    """For one row and its quadratic, overwritten.

    Attributes
    ----------
    matrix, root : (K, K) of the quadratic, and Cholesky's upper triangle of the cells inside
    slopes : (K,) of the row
    z, gradient, change, scale, step : (K,) of the quadratic: where it is, its slopes, how far z is from the row; what
        slopes are relative to, the step
    candidates, inside, places : (K,) cells of the row in the quadratic; whether each of these is inside, and which are
    """

    matrix: np.ndarray
    root: np.ndarray
    slopes: np.ndarray
    z: np.ndarray
    gradient: np.ndarray
    change: np.ndarray
    scale: np.ndarray
    step: np.ndarray
    candidates: np.ndarray
    inside: np.ndarray
    places: np.ndarray


@kernel
def make_workspace(rank):
    """Of so many components."""
    cells, numbers = np.empty((6, rank)), np.empty((3, rank), np.int64)
    return ActiveSetWorkspace(
        np.empty((rank, rank)), np.empty((rank, rank)), cells[0], cells[1], cells[2], cells[3], cells[4], cells[5],
        numbers[0], numbers[1], numbers[2],
    )  # fmt: skip


@kernel
def settle_rows(layout, factor, other, linear, curve, largest, chunk):
    """Bring the chunk's rows of ``factor`` (major, K) to their optimum at ``other`` (minor, K), in place.

    ``linear`` and ``curve`` are (major or 1, K), ``largest`` (K,) what the residual's cells are relative to. Returns
    (sum x log m, KKT residual), both at the new rows.
    """
    rank, longest = factor.shape[1], 0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        longest = max(longest, layout.indptr[i + 1] - layout.indptr[i])
    met, cells, workspace = np.empty(rank * longest), np.empty((4, longest)), make_workspace(rank)
    nothing, total, residual = np.zeros(rank), 0.0, 0.0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        first, count = layout.indptr[i], layout.indptr[i + 1] - layout.indptr[i]
        v, x = met[: rank * count].reshape(rank, count), layout.values[first : first + count]
        own = cells[0, :count], cells[1, :count], cells[2, :count], cells[3, :count]
        offset = layout.offset[first : first + count] if layout.offset.size > 0 else layout.offset[:0]
        meet(v, other, layout.indices[first : first + count])
        row_linear = linear[i if linear.shape[0] > 1 else 0]
        row_curve = curve[i if curve.shape[0] > 1 else 0]
        for k in range(rank):
            if not factor[i, k] < np.inf:  # a start beyond all numbers
                factor[i, k] = FLOOR
        fill_means(own[0], factor[i], v, offset, 0)
        for _ in range(WARM):
            descend_row(factor[i], x, own[0], v, row_linear, (nothing, row_curve), largest)
            fill_means(own[0], factor[i], v, offset, 0)
        residual = max(residual, _settle_row(factor[i], x, v, offset, (row_linear, row_curve, largest), own, workspace))
        total += sum_logs(x, own[0])
    return total, residual


@kernel
def _settle_row(u, x, v, offset, prior, cells, workspace):
    """Newton steps of a row; ``cells`` (4, count) are its means, which follow, and workspace. Returns the residual."""
    means, ratios, bends, changes = cells
    _, curve, _ = prior
    slopes, candidates, residual = workspace.slopes, workspace.candidates, np.inf
    for _ in range(NEWTON):
        _fill_ratios(ratios, bends, x, means)
        residual = _fill_slopes(slopes, u, v, ratios, prior)
        if residual <= NEAR:
            break
        n = _find_candidates(candidates, u, slopes)
        _fill_matrix(workspace.matrix, v, bends, curve, candidates, n, changes)
        for j in range(n):
            k = candidates[j]
            workspace.z[j], workspace.gradient[j] = u[k] if u[k] > FLOOR else 0.0, slopes[k]
        _minimise(workspace, n)
        changes[:] = 0.0
        slope, bend = 0.0, 0.0
        for j in range(n):
            k = candidates[j]
            change = workspace.z[j] - u[k]
            workspace.change[j] = change
            slope += slopes[k] * change
            bend += curve[k] * change * change
            _add_scaled(changes, change, v[k])
        length = _length(x, means, changes, ratios, slope, bend)
        if length == 0.0:
            break
        for j in range(n):
            w = workspace.z[j] if length == 1.0 else u[candidates[j]] + length * workspace.change[j]
            u[candidates[j]] = w if w > FLOOR else FLOOR
        fill_means(means, u, v, offset, 0)
    return residual


@summing
def _fill_ratios(ratios, bends, x, means):
    for c in range(x.size):
        ratios[c] = x[c] / means[c]
        bends[c] = ratios[c] / means[c]


@summing
def _fill_slopes(slopes, u, v, ratios, prior):
    """Overwrite a row's slopes; returns its KKT residual."""
    linear, curve, largest = prior
    residual = 0.0
    for k in range(u.size):
        numerator, d = 0.0, linear[k] + curve[k] * u[k]
        for c in range(ratios.size):
            numerator += ratios[c] * v[k, c]
        slopes[k] = d - numerator
        if d > 0.0:
            share = u[k] / largest[k] if largest[k] > 0.0 else 0.0
            residual = max(residual, abs(min(share, 1.0 - numerator / d)))
    return residual


@kernel
def _find_candidates(candidates, u, slopes):
    n = 0
    for k in range(u.size):
        if u[k] > FLOOR or slopes[k] < 0.0:
            candidates[n] = k
            n += 1
    return n


@summing
def _fill_matrix(matrix, v, bends, curve, candidates, n, scaled):
    """Second derivatives between the candidates, (n, n) of the matrix, four at a time; ``scaled`` is workspace."""
    for i in range(n):
        own, row, j = v[candidates[i]], matrix[i], 0
        for c in range(bends.size):
            scaled[c] = bends[c] * own[c]
        while j + 4 <= i + 1:
            p, q, r, s = v[candidates[j]], v[candidates[j + 1]], v[candidates[j + 2]], v[candidates[j + 3]]
            of_p, of_q, of_r, of_s = 0.0, 0.0, 0.0, 0.0
            for c in range(bends.size):
                of_p += scaled[c] * p[c]
                of_q += scaled[c] * q[c]
                of_r += scaled[c] * r[c]
                of_s += scaled[c] * s[c]
            row[j], row[j + 1], row[j + 2], row[j + 3] = of_p, of_q, of_r, of_s
            j += 4
        while j <= i:
            other, total = v[candidates[j]], 0.0
            for c in range(bends.size):
                total += scaled[c] * other[c]
            row[j] = total
            j += 1
        for j in range(i):
            matrix[j, i] = row[j]
        row[i] += curve[candidates[i]]


@summing
def _add_scaled(out, scale, x):
    for c in range(out.size):
        out[c] += scale * x[c]


@kernel
def _length(x, means, changes, ratios, slope, bend):
    """How far a row goes along its step, at most 1: the slope there is not upward, but for rounding.

    ``slope`` : where the step begins; ``bend`` : the prior's
    """
    of_counts, rounding = 0.0, 0.0
    for c in range(x.size):
        part = ratios[c] * changes[c]
        of_counts += part
        rounding += ROUNDING * abs(part)
    of_prior, low, high = slope + of_counts, 0.0, 1.0
    if not slope < 0.0:
        return 0.0
    at = 1.0
    for _ in range(HALVINGS):
        here, curved = of_prior + at * bend, bend
        for c in range(x.size):
            mean = means[c] + at * changes[c]
            if x[c] > 0.0 and mean <= 0.0:
                here = np.inf
                break
            part = x[c] / mean * changes[c]
            here -= part
            curved += part / mean * changes[c]
        if here <= rounding:
            low = at
            if at == 1.0 or here >= CLOSE * slope:
                break
        else:
            high = at
        newton = at - here / curved if here < -slope and curved > 0.0 else high  # near a pole Newton's would creep
        newton -= SHORT * max(high - newton, 0.0)  # from above it would come near for ever, and never below
        at = newton if low < newton < high else 0.5 * (low + high)
    return low


# -- a quadratic -----------------------------------------------------------------------------------------------------


@kernel
def _minimise(workspace, n):
    """Move z (n,) to the minimum of the quadratic over z >= 0, in place; its gradient there follows."""
    matrix, z, gradient = workspace.matrix, workspace.z, workspace.gradient
    for _ in range(ROUNDS):
        for k in range(n):
            bend = matrix[k, k]
            step = max(-gradient[k] / bend, -z[k]) if bend > 0.0 else 0.0
            if step != 0.0:
                z[k] += step
                _add_scaled(gradient[:n], step, matrix[k, :n])
    refine(workspace, n)


@kernel
def refine(workspace, n):
    """From a point z >= 0 to the minimum over z >= 0, by active sets; z and its gradient (n,) in place."""
    for k in range(n):
        workspace.scale[k] = abs(workspace.gradient[k]) + workspace.matrix[k, k] * workspace.z[k]
        workspace.inside[k] = 1 if workspace.z[k] > 0.0 else 0
    joined = 0
    for _ in range(3 * n):
        if _go_towards_minimum(workspace, n):
            if not _let_in(workspace, n, joined < BLOCKS):
                break
            joined += 1


@kernel
def _go_towards_minimum(workspace, n):
    """Go towards the minimum over the cells inside, as far as these stay >= 0; whether that was all of the way."""
    z, gradient, step, inside, places, count = (
        workspace.z,
        workspace.gradient,
        workspace.step,
        workspace.inside,
        workspace.places,
        0,
    )
    for k in range(n):
        if inside[k]:
            places[count] = k
            count += 1
    if not _factor(workspace.root, workspace.matrix, places, count):
        return True
    _solve(step, workspace.root, gradient, places, count)
    length, blocking = 1.0, -1
    for j in range(count):
        k = places[j]
        if step[j] < 0.0 and z[k] < -length * step[j]:
            length, blocking = -z[k] / step[j], k
    for j in range(count):
        k = places[j]
        z[k] = max(z[k] + length * step[j], 0.0)
        _add_scaled(gradient[:n], length * step[j], workspace.matrix[k, :n])
        if length < 1.0 and step[j] < 0.0 and (k == blocking or z[k] == 0.0):
            z[k], inside[k] = 0.0, 0
    return length == 1.0


@kernel
def _let_in(workspace, n, all_of_them):
    """Let cells in whose slope points upwards, or the one that gains most; whether there was any."""
    gradient, matrix, inside, best, most = workspace.gradient, workspace.matrix, workspace.inside, -1, 0.0
    for k in range(n):
        if inside[k] or not gradient[k] < -STEEP * workspace.scale[k] or not matrix[k, k] > 0.0:
            continue
        gain = gradient[k] * gradient[k] / matrix[k, k]
        if gain > most:
            best, most = k, gain
        if all_of_them:
            inside[k] = 1
    if best >= 0:
        inside[best] = 1
    return best >= 0


@summing
def _factor(root, matrix, places, count):
    """Cholesky's upper triangle of the cells inside, four rows at a time; False where a pivot is no positive number."""
    for i in range(count):
        row, own, k = root[i], matrix[places[i]], 0
        for j in range(i, count):
            row[j] = own[places[j]]
        row[i] += RIDGE * row[i]
        while k + 4 <= i:
            a, b, c, d = root[k], root[k + 1], root[k + 2], root[k + 3]
            of_a, of_b, of_c, of_d = a[i], b[i], c[i], d[i]
            for j in range(i, count):
                row[j] -= of_a * a[j] + of_b * b[j] + of_c * c[j] + of_d * d[j]
            k += 4
        while k < i:
            _add_scaled(row[i:count], -root[k, i], root[k, i:count])
            k += 1
        if not row[i] > 0.0:
            return False
        scale = 1.0 / math.sqrt(row[i])
        for j in range(i, count):
            row[j] *= scale
    return True


@summing
def _solve(step, root, gradient, places, count):
    """Overwrite step (count,) with minus the inverse times the gradient."""
    for i in range(count):
        step[i] = -gradient[places[i]]
    for i in range(count):
        step[i] /= root[i, i]
        _add_scaled(step[i + 1 : count], -step[i], root[i, i + 1 : count])
    for i in range(count - 1, -1, -1):
        total = step[i]
        for k in range(i + 1, count):
            total -= root[i, k] * step[k]
        step[i] = total / root[i, i]


@kernel
def refine_rows(steps, factor, slopes, row_bends, gram, own):
    """Bring steps (rows, K), near the minimum as solve_quadratic leaves them, to it; arguments as there."""
    rank = factor.shape[1]
    workspace = make_workspace(rank)
    for i in range(len(factor)):
        if i == 0 or own.size > 0 or row_bends[i] != row_bends[i - 1]:
            for k in range(rank):
                for j in range(rank):
                    workspace.matrix[k, j] = row_bends[i] * gram[k, j]
                if own.size > 0:
                    workspace.matrix[k, k] += own[i, k]
        for k in range(rank):
            w = factor[i, k] + steps[i, k]
            workspace.z[k], workspace.gradient[k] = w if w > FLOOR else 0.0, slopes[i, k]
        for k in range(rank):
            step = workspace.z[k] - factor[i, k]
            if step != 0.0:
                _add_scaled(workspace.gradient, step, workspace.matrix[k])
        refine(workspace, rank)
        for k in range(rank):
            steps[i, k] = workspace.z[k] - factor[i, k]
