"""Simulation-based calibration (Talts et al. 2018): the rank of the truth among posterior draws is uniform.

Each replicate draws parameters from the prior, data from them, and a chain from the data, begun where the engine
begins. Ranks are of quantities that do not care how components are labelled.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

from tests.statistical.gates import ALARM
from tests.statistical.geweke import log_joint, mean_of, simulate
from tests.structures import sample_gibbs

DRAWS = 31  # 32 ranks, in as many bins or fewer
BINS = 8


def invariants(structure, draws):
    """Columns with their names: log joint, means of X's cells, hyperparameters, total sizes of the factors."""
    n = len(draws["W"])
    table = {"lp": log_joint(structure, draws), "mean": mean_of(structure, draws["W"], draws["H"])}
    table |= {
        "sum W": draws["W"].sum((1, 2)),
        "sum H": draws["H"].sum((1, 2)),
        **{u: draws[u] for u in structure.unknowns},
    }
    parts = {name: np.reshape(part, (n, -1)) for name, part in table.items()}
    names = [f"{name}[{i}]" for name, part in parts.items() for i in range(part.shape[1])]
    return names, np.concatenate(list(parts.values()), axis=1)


def rank_truths(structure, replicates, tune, thin, seed=0, step=None, sample=sample_gibbs):
    """(names, ranks (replicates, quantities)) of the truth among DRAWS posterior draws, ties broken at random."""
    rng = np.random.default_rng(seed)
    truths = simulate(structure, replicates, rng)
    ranks = []
    for i in range(replicates):
        observed = dataclasses.replace(
            structure, data=dataclasses.replace(structure.data, values=truths["X"][i].astype(float))
        )
        draws = sample(observed, DRAWS * thin, seed=seed + 1000 + i, tune=tune, thin=thin, step=step)
        repeated = np.broadcast_to(truths["X"][i], (DRAWS, *structure.shape))
        names, drawn = invariants(structure, {**draws, "X": repeated})
        truth = invariants(structure, {name: value[i : i + 1] for name, value in truths.items()})[1]
        below, equal = np.sum(drawn < truth, axis=0), np.sum(drawn == truth, axis=0)
        ranks.append(below + rng.integers(0, equal + 1))
    return names, np.array(ranks)


def check_ranks(names, ranks, least=100):
    """Raise unless every quantity's ranks are uniform, by chi-square in bins and by the largest gap of their ECDF."""
    assert len(ranks) >= least, f"gate 1, replicates: got {len(ranks)}; expected at least {least}"
    bins = np.stack([np.bincount(column * BINS // (DRAWS + 1), minlength=BINS) for column in ranks.T])
    chi = stats.chisquare(bins, axis=1).pvalue
    spread = np.random.default_rng(0).random(ranks.shape)  # a uniform rank plus a uniform number is uniform
    gap = np.array([stats.kstest(column, "uniform").pvalue for column in ((ranks + spread) / (DRAWS + 1)).T])
    allowed = ALARM / (2 * len(names))
    rows = [
        f"{n}: {c:.1g}, {g:.1g}, {b.tolist()}"
        for n, c, g, b in zip(names, chi, gap, bins, strict=True)
        if min(c, g) < allowed
    ]
    assert not rows, (
        f"gate 2, uniform ranks: got p-values (chi-square, gap) and counts {'; '.join(rows[:8])}; "
        f"expected above {allowed:.1g}"
    )
