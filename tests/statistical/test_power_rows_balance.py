"""Detailed balance of every move of the rows of powers: as many rows go from bin to bin as come back.

Rows are drawn from the prior and their powers from the rows, so that a row is an exact draw from its posterior given
its powers. A move that is reversible sends equal numbers of them each way between the bins of any function of the row;
one that merely leaves most of the posterior as it is does not.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.kernels.hmc import power_rows
from nmf_zoo.kernels.hmc.power_rows import LOUD, PowerRows, PowerStride, RowPowers
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.blocks_of_rows import in_blocks
from tests.sizes import size
from tests.statistical.gates import ALARM
from tests.statistical.judged import judges

pytestmark = pytest.mark.statistical
N_ROWS, WIDTH, BINS = size(1 << 17, 1 << 20), 1 << 10, 8
CELLS, RANK = 5, 3
LENGTH, STEP = 3, 1.1
OTHER = np.array([[1.0, 0.2, 0.4], [0.3, 1.5, 0.1], [0.7, 0.5, 2.0], [0.2, 0.2, 3.0], [0.6, 0.9, 0.3]])
SHAPE, SCALE = np.array([0.7, 2.0, 4.0]), np.array([0.4, 1.5, 2.0])
ROOT = np.array([[0.8, 0.0, 0.0], [-0.3, 0.7, 0.0], [0.1, -0.2, 0.5]])


def draw_rows(key=1):
    """(data, rows) in blocks: a third of the cells missing, half of the rows with a background."""
    rng = np.random.default_rng(key)
    v = SCALE[:, None] / rng.gamma(SHAPE[:, None], 1.0, (RANK, N_ROWS))
    beside = rng.gamma(1.0, 1.0, (CELLS, N_ROWS)) * (rng.random(N_ROWS) < 0.5)
    seen = rng.random((CELLS, N_ROWS)) < 2 / 3
    power = np.where(seen, rng.exponential(OTHER @ v + beside), 0.0)
    data = RowPowers(in_blocks(power, WIDTH, 1.0), in_blocks(np.where(seen, beside, LOUD), WIDTH, 1.0))
    priors = (in_blocks(np.repeat(table[:, None], N_ROWS, axis=1), WIDTH, 1.0) for table in (SHAPE, SCALE))
    return data, PowerRows(in_blocks(v, WIDTH, 1.0), *priors, np.zeros((N_ROWS // WIDTH, WIDTH)))


def trajectories(data, rows, root=None):
    """One for each row."""
    blocks = N_ROWS // WIDTH
    root = (
        np.ascontiguousarray(np.broadcast_to(ROOT[:, :, None], (blocks, *ROOT.shape, WIDTH))) if root is None else root
    )
    stride = PowerStride(root, np.full((blocks, WIDTH), STEP), np.array([LENGTH]))
    workspace = power_rows.make_workspace(CELLS, RANK, WIDTH)
    for block in range(blocks):
        power_rows.move_rows(data, OTHER, rows, stride, workspace, block, child(seed_key(2), block))


def exchanges(data, rows, off=0.0):
    """Two of each row, reversible together (pairs are chosen alike), with log-likelihoods that are ``off`` before."""
    workspace = power_rows.make_workspace(CELLS, RANK, WIDTH)
    for block in range(N_ROWS // WIDTH):
        power_rows.gradient_of_powers(data, OTHER, block, rows.values[block], workspace.inverses, workspace.gradient)
        power_rows._log_likelihoods(workspace.now, data.grid[block], workspace.inverses)
        workspace.now[:] += off
        power_rows.exchange_components(data, OTHER, rows, workspace, block, 2, child(seed_key(3), block))


MOVES = {"trajectories": trajectories, "exchanges": exchanges}


def functions_of(v):
    """Of rows (blocks, K, width): columns by name."""
    logs = np.log(v)
    table = {f"log v{k}": logs[:, k] for k in range(RANK)}
    table |= {"v0 : v1": logs[:, 0] - logs[:, 1], "v1 : v2": logs[:, 1] - logs[:, 2]}
    return {name: column.ravel() for name, column in table.items()} | {
        f"log mean {c}": np.log(np.einsum("k,bkw->bw", OTHER[c], v)).ravel() for c in range(CELLS)
    }


@judges(lambda before, *_: len(before))
def check_balance(before, after, least):
    """Raise unless rows moved at least that often, and as many each way between any two bins of every function."""
    moved = np.mean(np.any(before != after, axis=1))
    assert moved > least, f"gate 1, moves: got {moved:.3f} of the rows; expected more than {least}"
    first, second, alarm = functions_of(before), functions_of(after), {}
    for name, column in first.items():
        edges = np.quantile(column, np.arange(1, BINS) / BINS)
        flow = np.bincount(np.digitize(column, edges) * BINS + np.digitize(second[name], edges), minlength=BINS**2)
        flow = flow.reshape(BINS, BINS)
        pairs = np.triu_indices(BINS, 1)
        there, back = flow[pairs], flow.T[pairs]
        enough = there + back >= 20
        chi = np.sum((there - back)[enough] ** 2 / (there + back)[enough])
        alarm[name] = stats.chi2.sf(chi, enough.sum())
    worst = min(alarm, key=alarm.get)
    assert alarm[worst] * len(alarm) > ALARM, f"gate 2, balance: {worst} has a p-value of {alarm[worst]:.1e}"


def run(move, wrong=lambda data, rows: (data, rows), **options):
    """(before, after) a move that reads what ``wrong`` makes of the rows."""
    data, rows = draw_rows()
    before = rows.values.copy()
    data, rows = wrong(data, rows)
    move(data, rows, **options)
    return before, rows.values


@pytest.mark.parametrize("name", MOVES)
def test_as_many_rows_go_as_come(name):
    check_balance(*run(MOVES[name]), 0.05)


# -- planted errors ------------------------------------------------------------------------------------------------

WRONG = {
    "no Jacobian": lambda data, rows: (data, rows._replace(shape=rows.shape + 1)),
    "one shape for all": lambda data, rows: (data, rows._replace(shape=np.full_like(rows.shape, 2.0))),
    "half the scales": lambda data, rows: (data, rows._replace(scale=rows.scale / 2)),
    "no mask": lambda data, rows: (data._replace(offset=np.where(data.offset == LOUD, 0.0, data.offset)), rows),
    "no background": lambda data, rows: (data._replace(offset=np.where(data.offset == LOUD, LOUD, 0.0)), rows),
}


# an exchange leaves the product of the two components alone, and so the Jacobian
SEEN = [(name, move) for name in WRONG for move in MOVES if (name, move) != ("no Jacobian", "exchanges")]


@pytest.mark.parametrize(("name", "move"), SEEN)
def test_wrong_rows_are_seen(name, move):
    with pytest.raises(AssertionError, match="gate 2"):
        check_balance(*run(MOVES[move], WRONG[name]), 0.05)


def test_a_mass_that_depends_on_the_row_is_seen():
    data, rows = draw_rows()
    before, root = rows.values.copy(), np.zeros((N_ROWS // WIDTH, RANK, RANK, WIDTH))
    for k in range(RANK):
        root[:, k, k] = 0.3 + 0.5 / (1 + before[:, k])
    trajectories(data, rows, root)
    with pytest.raises(AssertionError, match="gate 2"):
        check_balance(before, rows.values, 0.05)


def test_an_exchange_with_a_wrong_likelihood_before_it_is_seen():
    with pytest.raises(AssertionError, match="gate 2"):
        check_balance(*run(exchanges, off=0.3), 0.05)
