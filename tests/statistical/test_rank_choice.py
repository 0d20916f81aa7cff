"""Data drawn with five components, in Cemgil's setting (2009, section 4): is it five that the methods choose?"""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
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
    return nz.select_rank(declare(X), ranks, method=method, search=None, random_seed=1, quiet=True, **options)


SMC = nz.SMC(particles=400, draws=0)


@pytest.fixture(scope="module")
def by_smc():
    return select(counts(1), SMC, range(3, 7), restarts=3)


@pytest.fixture(scope="module")
def by_bound():
    return select(counts(1), "bound", range(1, 11), restarts=5)


def assert_five(table):
    assert table.attrs["best"] == 5, table.attrs["answer"]
    assert not bool(table["plausible"].sel(rank=4))


def test_the_bound_finds_five_components(by_bound):
    assert_five(by_bound)


def test_smc_finds_five_components(by_smc):
    """Long: an estimate of the evidence for each rank."""
    assert_five(by_smc)


def test_chib_finds_five_components():
    """The rank of the highest evidence is that of the truth. Long: the evidence of every rank."""
    method = nz.Chib(draws=size(1000, 4000), tune=200)
    assert_five(select(counts(1), method, range(4, 7), restarts=size(1, 4)))


def test_the_corrected_bound_holds_five_for_possible_and_three_not():
    """The bound as it is prefers three, or fewer, on most of these data sets; in no case five."""
    tables = [select(counts(seed), "bound", range(2, 7), restarts=3) for seed in range(1, size(5, 21))]
    assert all(bool(table["plausible"].sel(rank=5)) for table in tables), [table.attrs["answer"] for table in tables]
    assert not any(bool(table["plausible"].sel(rank=3)) for table in tables)
    assert all(int(table["bound"].max("restart").idxmax("rank")) < 5 for table in tables)


def test_the_correction_is_as_near_the_evidence_as_it_says(by_bound, by_smc):
    """Against SMC: shortfalls of 85 to 240 nats, whose error is stated as 8 %, and so are their differences."""
    assert_near(by_bound, by_smc)


def test_the_correction_is_as_near_the_evidence_as_it_says_where_counts_are_few():
    """Counts of mean 5, where a shortfall of 99 nats is 10 too large, and three components seem as good as four."""
    rng = np.random.default_rng(7)
    X = rng.poisson(rng.gamma(1.0, size=(16, 3)) @ rng.gamma(1.0, 5.0 / 3.0, size=(3, 10)))
    tables = [
        nz.select_rank(
            lambda rank: nz.gamma_nmf(X, rank, alpha_w=1.0, mean_w=1.0, alpha_h=1.0, mean_h=2.0), (3, 5),
            method=method, restarts=restarts, search=None, random_seed=1, quiet=True,
        )
        for method, restarts in (("bound", 5), (SMC, 3))
    ]  # fmt: skip
    assert_near(*tables)


def assert_near(by_bound, by_smc):
    """Every rank's estimate, and every difference of two, within the error that is stated and 4 of SMC's."""
    both = by_bound.sel(rank=by_smc["rank"])
    top = both["estimate"].argmax("restart")
    error = both["shortfall_error"].isel(restart=top).to_numpy()
    off = (both["combined"] - by_smc["combined"]).to_numpy()
    noise = 4 * by_smc["combined_error"].to_numpy()
    assert (np.abs(off) < error + noise).all(), (off, error)
    apart = np.abs(off[:, None] - off) - np.abs(error[:, None] - error) - noise[:, None] - noise
    assert (apart[~np.eye(len(off), dtype=bool)] < 0).all(), apart
    assert (np.abs(off) < 0.2 * (by_smc["combined"] - both["bound"].isel(restart=top)).to_numpy()).all()


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
            restarts=4, search=None, random_seed=1, quiet=True,
        )  # fmt: skip
        assert table.attrs["best"] == 3
        assert not table["plausible"].sel(rank=[1, 2]).any()
