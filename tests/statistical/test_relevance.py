"""Automatic relevance determination: with one free mean per component, VB empties the components it does not need.

A component's counts are what its q holds beyond the prior: q(w_fk) is Gamma(alpha + counts of f in k, ...), so that the
sum over f of shape - alpha is the expected number of counts allocated to k. A component is empty when that is less than
one in a thousand of a count: its q(W) is the prior again, and the learned mean of its H is nearly 0.

Emptying is what the bound's peak does, not what every start finds: VB's bound has local optima, in which a surplus
component lives on a single feature (here 67 of 26,355 counts, the excess of one feature over what a product of three
explains). So the tests compare bounds: the peak of three components is above that of any solution with more, and a
component that is pulled off its feature does not come back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import nmf_zoo as nz

pytestmark = pytest.mark.statistical
TRUE, RANK, ALPHA_W = 3, 8, 0.3
EMPTY = 1e-3  # counts
ONE_PER_COMPONENT = nz.free("obs")


class Solution(NamedTuple):
    """The bound, and of each component the counts, W, H and the mean of H, by falling counts."""

    bound: float
    counts: np.ndarray
    start: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def X():
    """Counts of three components with templates that differ."""
    rng = np.random.default_rng(3)
    return rng.poisson(rng.gamma(0.3, 1.0, size=(20, TRUE)) @ rng.gamma(2.0, 10.0, size=(TRUE, 60)))


def solve(X, rank, mean_h, initvals=None):
    """The best of three starts, or what becomes of one."""
    model = nz.gamma_nmf(X, rank, alpha_w=ALPHA_W, mean_w=1.0, alpha_h=2.0, mean_h=mean_h)
    fit = nz.fit(
        model=model, engine="vb", restarts=1 if initvals else 3, search=None, max_iter=5000, tol=1e-4, draws=1,
        random_seed=1, initvals=initvals, cores=1, quiet=True,
    )  # fmt: skip
    q = fit.fit.isel(chain=0)
    counts = (q["W_shape"] - ALPHA_W).sum("feature").values
    order = np.argsort(-counts)
    values = {"W": (q["W_shape"] / q["W_rate"]).values[:, order], "H": (q["H_shape"] / q["H_rate"]).values[order]}
    if mean_h is ONE_PER_COMPONENT:
        values["mean_h"] = fit.posterior["mean_h"].values[0, 0][order]
    return Solution(float(q["objective"].dropna("iteration")[-1]), counts[order], values)


@pytest.fixture(scope="module")
def three(X):
    """As many components as there are."""
    return solve(X, TRUE, ONE_PER_COMPONENT)


@pytest.fixture(scope="module")
def free(X):
    return solve(X, RANK, ONE_PER_COMPONENT)


def with_flat_surplus(solution, share):
    """A start at a solution whose surplus components are flat and hold this share of the counts each."""
    start = {name: values.copy() for name, values in solution.start.items()}
    surplus = np.s_[TRUE:]
    start["W"][:, surplus] = 1.0
    start["H"][surplus] = share * solution.counts.sum() / start["W"].shape[0] / start["H"].shape[1]
    start["mean_h"][surplus] = start["H"][surplus].mean(axis=1)
    return start


def test_random_starts_empty_most_surplus_components(free):
    assert np.all(free.counts[:TRUE] > 1000.0)
    assert np.sum(free.counts < EMPTY) > (RANK - TRUE) / 2, free.counts
    empty = free.counts < EMPTY
    assert np.all(free.start["mean_h"][empty] < 1e-6 * free.start["mean_h"][:TRUE].min())


def test_a_surplus_component_that_is_left_is_a_local_optimum(free, three):
    """What holds counts beside the three is on one feature, and three components alone have the higher bound."""
    for k in range(TRUE, RANK):
        if free.counts[k] > EMPTY:
            W = free.start["W"][:, k]
            assert W.max() > 0.85 * W.sum()
    assert np.sum(three.counts > EMPTY) == TRUE
    assert three.bound > free.bound + 1.0


@pytest.mark.parametrize("share", [1e-3, 1e-2])
def test_all_surplus_components_are_emptied(X, free, share):
    """Flat surplus components with up to 1% of the counts each lose them all, and the bound rises above the start's."""
    emptied = solve(X, RANK, ONE_PER_COMPONENT, with_flat_surplus(free, share))
    assert np.all(emptied.counts[:TRUE] > 1000.0)
    assert np.all(emptied.counts[TRUE:] < EMPTY), emptied.counts
    assert emptied.bound > free.bound + 1.0


def test_empty_components_cost_nothing(X, three):
    """At the peak the bound with five empty components is that of three."""
    start = with_flat_surplus(three._replace(start=padded(three.start)), 1e-3)
    emptied = solve(X, RANK, ONE_PER_COMPONENT, start)
    assert np.all(emptied.counts[TRUE:] < EMPTY), emptied.counts
    assert emptied.bound == pytest.approx(three.bound, abs=0.01)


def padded(start):
    """Room for surplus components."""
    surplus = RANK - TRUE
    return {
        "W": np.pad(start["W"], ((0, 0), (0, surplus))),
        "H": np.pad(start["H"], ((0, surplus), (0, 0))),
        "mean_h": np.pad(start["mean_h"], (0, surplus)),
    }


@pytest.mark.parametrize("mean", [20.0, nz.free("all")])
def test_one_common_mean_empties_none(X, mean):
    """What makes the difference is the mean of each component: a common one, known or learned, leaves counts in all."""
    assert np.all(solve(X, RANK, mean).counts > 100 * EMPTY)
