"""Engines side by side: who is asked, what the table says, and that a wrong engine is seen to disagree."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.diagnostics.agreement import compare_draws
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.workbench.compare_engines import label_of

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
    assert table["compiling"].eq(0).all()


def test_results_share_the_order_of_their_components(found):
    means = [nz.summarise_components(result)["became"] for result in list(found.results.values())[1:3]]
    assert all((became == "matched").all() for became in means)


def test_samplers_of_one_posterior_agree_and_approximations_do_not(found):
    agrees = found.table["agrees"]
    assert agrees["gibbs"] is None  # the reference
    assert agrees["Gibbs(moves=())"] is True
    assert agrees["vb"] is False
    assert agrees["em"] is None  # one point
    assert found.table.loc["vb", "spread"] < 0.9
    assert 0.7 < found.table.loc["Gibbs(moves=())", "spread"] < 1.4


def normal(loc=0.0, scale=1.0, sizes=(2, 400, 5), seed=0):
    values = np.random.default_rng(seed).normal(loc, scale, sizes)
    return xr.DataArray(values, dims=("chain", "draw", "quantity"))


@pytest.mark.parametrize(
    ("other", "agrees"),
    [
        (normal(seed=1), True),
        (normal(seed=1, sizes=(1, 300, 5)), True),  # of another length
        (normal(0.5, seed=1), False),
        (normal(0.0, 0.7, seed=1), False),  # the same means
        (normal(seed=1, sizes=(1, 1, 5)), None),
        (normal(seed=1, sizes=(2, 30, 5)), None),  # too few draws
        (normal(seed=1).cumsum("draw"), None),  # that hardly moves
    ],
)
def test_locations_and_spreads_are_compared_where_draws_suffice(other, agrees):
    table = compare_draws({"a": normal(), "b": other}, "a")
    assert table.loc["b", "agrees"] is agrees
    assert table.loc["a", "agrees"] is None


def test_a_constant_has_no_error():
    one, same = normal(), normal(seed=1)
    one[..., 0] = same[..., 0] = 3.0
    assert compare_draws({"a": one, "b": same}, "a").loc["b", "agrees"] is True
    same[..., 0] = 4.0
    assert compare_draws({"a": one, "b": same}, "a").loc["b", "z"] == np.inf


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
