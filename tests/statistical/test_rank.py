"""Data drawn with five components, in Cemgil's setting (2009, section 4): is it five that the methods choose?"""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.evidence import EvidenceRun, combine
from nmf_zoo.inference.smc import METHOD as SMC
from nmf_zoo.kernels.streams import seed_key
from nmf_zoo.reading import read
from tests.sizes import size

pytestmark = pytest.mark.statistical


def counts(seed):
    """16 x 10 counts of mean 450 from five sources."""
    rng = np.random.default_rng(seed)
    W, H = rng.gamma(10.0, 1 / 10.0, size=(16, 5)), rng.gamma(1.0, 100.0, size=(5, 10))
    return rng.poisson(W @ H)


def declare(X):
    return lambda rank: nz.gamma_nmf(X, rank, alpha_w=10.0, mean_w=1.0, alpha_h=1.0, mean_h=100.0)


def select(X, method, ranks, **options):
    return nz.select_rank(declare(X), ranks, method=method, random_seed=1, quiet=True, **options)


@pytest.mark.parametrize(
    ("method", "ranks", "restarts"),
    [
        ("bound", range(1, 11), 5),
        (nz.SMC(particles=500, draws=0), range(4, 7), 3),
        (nz.Chib(draws=size(1000, 4000), tune=200), range(4, 7), size(1, 4)),
    ],
    ids=["bound", "smc", "chib"],
)
def test_five_components_are_found(method, ranks, restarts):
    table = select(counts(1), method, ranks, restarts=restarts)
    assert table.attrs["best"] == 5, table.attrs["answer"]
    assert not bool(table["plausible"].sel(rank=4))


def test_the_corrected_bound_holds_five_for_possible_and_three_not():
    """The bound as it is prefers three on all of these data sets."""
    tables = [select(counts(seed), "bound", range(2, 8), restarts=3) for seed in range(1, size(5, 21))]
    assert all(bool(table["plausible"].sel(rank=5)) for table in tables), [table.attrs["answer"] for table in tables]
    assert not any(bool(table["plausible"].sel(rank=3)) for table in tables)
    assert all(int(table["estimate"].max("restart").idxmax("rank")) == 3 for table in tables)


def test_the_correction_is_near_the_evidence():
    """Against SMC: the shortfall, 85 to 240 nats here, is good to 5 %, which is what decisions allow for."""
    X = counts(1)
    table = select(X, "bound", (3, 5), restarts=2)
    for rank in (3, 5):
        found = SMC.estimate(read(declare(X)(rank)), nz.SMC(particles=500, draws=0), EvidenceRun(3, seed_key(1), 2))
        value, error = combine(found, is_unbiased=True)
        missing = value - float(table["estimate"].sel(rank=rank).max())
        assert float(table["shortfall"].sel(rank=rank).max()) == pytest.approx(missing, abs=0.05 * missing + 4 * error)


def test_held_out_cells_reject_one_component():
    table = select(counts(1), "holdout", (1, 5), restarts=size(5, 20))
    assert table.attrs["best"] == 5
    assert not bool(table["plausible"].sel(rank=1))


def test_thinned_sparse_counts_find_what_there_is():
    """Sparse counts of three groups of features; as a table the same data say the same."""
    import scipy.sparse as sp

    rng = np.random.default_rng(2)
    W = np.kron(np.eye(3), rng.gamma(2.0, size=(15, 1))) + 0.02
    X = rng.poisson(W @ rng.gamma(0.5, size=(3, 80)) * 1.5)
    for x in (X, sp.csr_array(X)):
        table = nz.select_rank(
            lambda rank, x=x: nz.gamma_nmf(x, rank, alpha_w=0.5, alpha_h=0.5), (1, 2, 3), method=nz.Holdout(draws=50),
            restarts=4, random_seed=1, quiet=True,
        )  # fmt: skip
        assert table.attrs["best"] == 3
        assert not table["plausible"].sel(rank=[1, 2]).any()
