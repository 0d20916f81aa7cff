"""Engines side by side: who is asked, what the table says, and that a wrong engine is seen to disagree."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.workbench.compare_engines import _agreement, label_of

X = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(2.0, 3.0, (6, 8)))
SHORT = {"draws": 300, "tune": 200, "chains": 2, "random_seed": 1, "cores": 2}


@pytest.fixture(scope="module")
def found():
    return nz.compare_engines(nz.gamma_nmf(X, rank=2), ["vb", "gibbs", nz.Gibbs(moves=()), "em"], **SHORT)


def test_the_first_sampler_is_the_standard(found):
    assert found.reference == "gibbs"
    assert list(found.table.index) == ["vb", "gibbs", "Gibbs(moves=())", "em"]
    assert list(found.table["verb"]) == ["fit", "sample", "sample", "fit"]


def test_samplers_have_mixing_and_optimisers_iterations(found):
    samplers, fits = found.table.loc[["gibbs", "Gibbs(moves=())"]], found.table.loc[["vb", "em"]]
    assert samplers[["ess_bulk", "ess_tail_per_second", "rhat", "ess_aligned", "rhat_aligned"]].notna().all(axis=None)
    assert fits["iterations"].gt(0).all()
    assert fits["ess_bulk"].isna().all()
    assert found.table.loc["vb", "bound"] < 0.0
    assert np.isnan(found.table.loc["em", "bound"])
    assert found.table["seconds"].gt(0).all()


def test_rates_are_effective_draws_by_seconds(found):
    table = found.table.loc[["gibbs"]]
    np.testing.assert_allclose(table["ess_bulk_per_second"], table["ess_bulk"] / table["seconds"])


def test_results_share_the_order_of_their_components(found):
    means = [nz.summarise_components(result)["became"] for result in list(found.results.values())[1:3]]
    assert all((became == "matched").all() for became in means)


def test_samplers_of_one_posterior_agree_and_a_shifted_one_does_not(found):
    assert found.table.loc["Gibbs(moves=())", "agrees"] is True
    cells = found.cells.copy(deep=True)
    shift = xr.zeros_like(cells["mean"])
    shift.loc[{"engine": "Gibbs(moves=())"}] = 0.5 * cells["sd"].sel(engine="gibbs")
    cells["mean"] = cells["mean"] + shift
    assert _agreement(cells, "gibbs", found.table["verb"]).loc["Gibbs(moves=())", "agrees"] is False


def test_it_prints_as_a_table(found):
    assert repr(found).splitlines()[0].split()[:2] == ["verb", "seconds"]
    assert found._repr_html_().startswith("<table")


def test_labels_name_the_options_that_are_not_at_their_default():
    assert label_of("nuts") == "nuts"
    assert label_of(nz.NUTS(target_accept=0.9)) == "NUTS(target_accept=0.9)"


@pytest.mark.parametrize(
    ("engines", "how", "error", "message"),
    [
        ("gibbs", {}, InputError, "engines: got 'gibbs'; expected a list of engines"),
        ([], {}, InputError, "expected a list of engines"),
        (["gibbs", "gibbs"], {}, InputError, "each engine once"),
        (["gibbs", "hmc"], {}, InputError, "engine: got 'hmc'; expected one of"),
        (["gibbs", "hmm_exact"], {}, UnsupportedModel, "engine 'hmm_exact' can't run this model"),
        (["gibbs"], {"reference": "nuts"}, InputError, r"reference: got 'nuts'; expected one of \['gibbs'\]"),
        (["gibbs"], {"draws": 0}, InputError, "draws: got 0"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(engines, how, error, message):
    with pytest.raises(error, match=message):
        nz.compare_engines(nz.gamma_nmf(X, rank=1), engines, **how)
