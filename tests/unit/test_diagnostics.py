"""Convergence statistics: what one chain or a few draws can't tell is NaN, without a word from ArviZ."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.diagnostics.invariants import summarise_draws

X = np.random.default_rng(1).poisson(3.0, (5, 8))


@pytest.mark.parametrize(
    ("chains", "draws", "missing"),
    [(1, 20, {"rhat"}), (2, 3, {"rhat", "ess_bulk", "ess_tail"}), (2, 20, set())],
)
def test_what_the_draws_cannot_tell_is_nan(chains, draws, missing, capfd, caplog):
    model = nz.gamma_nmf(X, 2)
    idata = nz.sample(draws, tune=5, chains=chains, random_seed=1, quiet=True, model=model)
    table = nz.summarise(idata)
    assert {name for name in table if table[name].isna().all()} == missing
    assert np.isfinite(table.drop(columns=[*missing])).all(axis=None)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_draws_that_do_not_vary_have_no_rhat():
    lp = xr.DataArray([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], dims=("chain", "draw"))
    table = summarise_draws(lp.to_dataset(name="lp"))
    assert table["mean"].tolist() == [0.5]
    assert not np.isfinite(table["rhat"]).any()


def test_cells_are_named_by_their_labels():
    model = nz.gamma_nmf([[4, 0, 3], [0, 5, 1]], 1, coords={"feature": ["sun", "rain"]})
    idata = nz.sample(6, tune=6, chains=2, random_seed=1, quiet=True, model=model)
    assert {"mean[sun, 0]", "mean[rain, 2]", "lp"} <= set(nz.summarise(idata).index)
