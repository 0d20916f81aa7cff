"""R-hat and effective sample sizes against ArviZ's, of draws of every kind."""

import arviz as az
import numpy as np
import pytest

from nmf_zoo.diagnostics.mixing import bulk_ess, mean_ess, rank_rhat, tail_ess

SIZES = [(1, 4), (2, 4), (4, 5), (2, 6), (4, 7), (3, 100), (4, 250)]


def draws_of_all_kinds(n_chains, n_draws):
    """Independent, slow, alternating, apart, of two spreads, with ties, heavy-tailed, constant, constant by chain."""
    noise = np.random.default_rng(n_draws).normal(size=(n_chains, n_draws, 9))
    slow = noise[..., 1].copy()
    for t in range(1, n_draws):
        slow[:, t] += 0.9 * slow[:, t - 1]
    chains = np.arange(n_chains)[:, None] + np.zeros((n_chains, n_draws))
    kinds = [
        *(noise[..., 0], slow, noise[..., 2] * 0.1 + (-1.0) ** np.arange(n_draws), noise[..., 3] + chains),
        *(noise[..., 4] * (1 + chains), np.round(noise[..., 5]), np.exp(5 * noise[..., 6]), 0 * chains + 0.3, chains),
    ]
    with_nan = noise[..., 7].copy()
    with_nan[0, 1] = np.nan
    return np.stack([*kinds, with_nan], axis=-1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("n_chains", "n_draws"), SIZES)
def test_they_are_those_of_arviz(n_chains, n_draws):
    draws = draws_of_all_kinds(n_chains, n_draws)
    ours = {"bulk": bulk_ess, "tail": tail_ess, "mean": mean_ess}
    for method, found in ours.items():
        how = {"prob": (0.05, 0.95)} if method == "tail" else {}
        theirs = [float(az.ess(cell, method=method, **how)) for cell in np.moveaxis(draws, -1, 0)]
        np.testing.assert_allclose(found(draws), theirs, rtol=1e-9, err_msg=method)
    if n_chains > 1:
        by_chain = 8  # constant: ArviZ's R-hat is a number of rounding's, infinite or none
        assert rank_rhat(draws)[by_chain] == np.inf
        others = np.delete(draws, by_chain, axis=-1)
        theirs = [float(az.rhat(cell)) for cell in np.moveaxis(others, -1, 0)]
        np.testing.assert_allclose(rank_rhat(others), theirs, rtol=1e-9)


def test_small_draws_are_no_constants():
    """Of a mean, which has no ranks: their unit says nothing."""
    draws = draws_of_all_kinds(4, 100)[..., :2]
    np.testing.assert_allclose(mean_ess(draws * 2.0**-100), mean_ess(draws), rtol=1e-12)
