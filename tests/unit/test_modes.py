"""Chains that disagree: whether longer runs would help, or they have settled in different modes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import judge, of_sampler, verdict_on
from nmf_zoo.diagnostics.invariants import CLEAR_RHAT, RHAT_LIMIT, advise_on_modes, rhat
from nmf_zoo.diagnostics.modes import have_settled, modes_of_chains, what_lacks
from nmf_zoo.errors import InputError
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.verbs.starts import starts_of

CELLS = 8


def draws_of(levels, n_draws=400, drift=0.0, memory=0.3, seed=1):
    """Autoregressive chains around their levels, (chain,), which move by ``drift`` over the run."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n_draws, len(levels), CELLS + 1))
    for t in range(1, n_draws):
        noise[t] = memory * noise[t - 1] + np.sqrt(1 - memory**2) * noise[t]
    path = np.asarray(levels)[None, :, None] + noise + drift * np.linspace(0, 1, n_draws)[:, None, None]
    chains = path.transpose(1, 0, 2)
    places = {"checked_row": ("checked_cell", np.arange(CELLS)), "checked_col": ("checked_cell", np.arange(CELLS))}
    dims = ("chain", "draw")
    return xr.Dataset({"lp": (dims, chains[..., 0]), "mean": ((*dims, "checked_cell"), chains[..., 1:])}, places)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([0, 0, 0, 0], [[0, 1, 2, 3]]),
        ([0, 9, 0, 9], [[0, 2], [1, 3]]),
        ([0, 9, 20, -9], [[0], [1], [2], [3]]),
        ([5, 5, 5, 0], [[0, 1, 2], [3]]),
    ],
)
def test_chains_are_told_apart(levels, expected):
    assert modes_of_chains(draws_of(levels)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_that_goes_elsewhere_and_comes_back_is_in_the_mode_of_the_others(seed):
    """Its visits, one in each half, move its mean by no more than the error that they give it."""
    draws = draws_of([0, 0, 0, 0], n_draws=1000, seed=seed)
    for begins in (150, 650):
        draws["mean"][2, begins : begins + 180, 0] += 4.0
    assert float(rhat(draws)["mean"].max()) > CLEAR_RHAT
    assert modes_of_chains(draws) == [[0, 1, 2, 3]]
    assert what_lacks(draws).reason.startswith("R-hat")


def test_a_chain_on_its_way_is_in_no_mode_yet():
    assert modes_of_chains(draws_of([0, 9], drift=2.0)) is None
    one = xr.concat([draws_of([0.0]), draws_of([9.0], drift=2.0)], "chain")
    np.testing.assert_array_equal(have_settled(one), [True, False])


@pytest.mark.parametrize(
    ("origins", "goes_on"),
    [([], False), ([0, 1, 0, 1], False), ([0, 0, 0, 0], True), ([0, 1, 1, 2], True)],
    ids=["began apart", "each stays in its own", "all began together", "two began together"],
)
def test_chains_in_different_modes_go_on_where_they_came_from_one(origins, goes_on):
    found = what_lacks(draws_of([0, 9, 0, 9]), origins)
    assert found.is_on_the_way == goes_on
    assert ("began together are in different modes" in found.reason) == goes_on == bool(found.reason)


@pytest.mark.parametrize(
    ("levels", "origins", "leaders"),
    [
        ([0, 9, 9, 5], [0, 0, 0, 0], [{1, 2}] * 4),
        ([0, 9, 0, 9], [0, 0, 0, 0], [{0, 1, 2, 3}] * 4),
        ([0, 5, 9, 7], [0, 1, 1, 2], [{0}, {1, 2}, {1, 2}, {3}]),
    ],
    ids=["most of them", "as many", "of their own origin"],
)
def test_chains_that_settled_apart_go_on_from_where_most_are_that_began_with_them(levels, origins, leaders):
    found = what_lacks(draws_of(levels), origins).leaders
    assert all(leader in among for leader, among in zip(found, leaders, strict=True))
    assert len({leader for leader, own in zip(found, origins, strict=True) if own == origins[1]}) == 1


@pytest.mark.parametrize("level", [0.0, 9.0])
@pytest.mark.parametrize("drift", [2.0, 10.0, -8.0])
def test_chains_follow_the_one_that_has_come_furthest(drift, level):
    """Wherever it is by now, and however large the error of its mean; others that move less are not followed."""
    draws = xr.concat([draws_of([level], drift=drift), draws_of([0, 0, 0], drift=0.4 * drift, seed=1)], "chain")
    draws["mean"][:, :, 1] = 3.0  # which does not vary
    found = what_lacks(draws, [0, 0, 0, 0])
    assert found.is_on_the_way
    assert list(found.leaders) == [0, 0, 0, 0]


def test_one_that_left_long_ago_has_come_as_far():
    """From where the others still are, in its first half."""
    draws = draws_of([0, 0, 0, 0], n_draws=1000)
    draws["mean"][2, 350:, 0] += 3.0
    found = what_lacks(draws, [0, 0, 0, 0])
    assert found.is_on_the_way
    assert list(found.leaders) == [2, 2, 2, 2]


def test_chains_follow_within_their_origin_and_those_that_agree_nobody():
    settled = what_lacks(draws_of([0, 0, 9, 5]), [0, 0, 1, 1]).leaders
    assert settled[:2] == [0, 1]
    moving = xr.concat([draws_of([0, 0]), draws_of([5, 9], drift=3.0), draws_of([9], seed=1)], "chain")
    found = what_lacks(moving, [0, 0, 1, 2, 1]).leaders
    assert found[:2] == [0, 1]
    assert found[2:] == [2, 3, 2]


@pytest.mark.parametrize("drift", [1.0, 0.0], ids=["on its way", "settled"])
def test_a_small_difference_counts_where_no_more_draws_can_be_added(drift):
    """As long as they can, a chain that is a little off is outvoted by what follows."""
    draws = xr.concat([draws_of([0.35 - drift / 2], drift=drift), draws_of([0, 0, 0], seed=1)], "chain")
    worst = float(rhat(draws)["mean"].max())
    assert RHAT_LIMIT < worst < CLEAR_RHAT
    assert np.all(have_settled(draws)) == (drift == 0.0)
    assert not what_lacks(draws, [0] * 4).is_on_the_way
    found = what_lacks(draws, [0] * 4, is_full=True)
    assert found.is_on_the_way == (drift > 0.0)
    assert list(found.leaders) == ([0] * 4 if drift else [])


def test_chains_of_several_temperatures_follow_nobody():
    """What is said of their round trips is their own."""
    assert not what_lacks(draws_of([0, 9, 9, 5]), [0, 0, 0, 0], follow=False).leaders
    assert not resolve_engine(nz.Gibbs(temperatures=4), "sample", nz.read(nz.gamma_nmf([[1, 2]], 1)))[0].can_follow


def test_chains_that_began_apart_follow_nobody():
    assert not what_lacks(draws_of([0, 9, 0, 9], drift=2.5)).leaders


def test_chains_of_one_mode_may_have_come_from_several():
    assert not what_lacks(draws_of([0, 0, 0, 0]), [0, 1, 0, 1]).is_on_the_way


def test_a_chain_that_hardly_moves_says_nothing():
    """Its halves differ by less than errors that can't be told."""
    assert modes_of_chains(draws_of([0, 9], n_draws=200, memory=0.99)) is None


def test_settled_chains_are_rarely_called_drifting():
    """Of chains that mix well; errors and effective sizes of half a chain are estimates, hence not ALARM itself."""
    alarms = sum(not np.all(have_settled(draws_of([0, 9], seed=seed))) for seed in range(60))
    assert alarms <= 3


def test_drift_of_a_few_errors_is_seen():
    """400 draws of memory 0.3 are worth some 215: the halves differ by drift / 2, with an error of about 0.14."""
    assert modes_of_chains(draws_of([0, 9], drift=2.5)) is None


def result_of(draws):
    return _compat.inference_data({"sample_stats": draws}, {"draws": 400})


@pytest.mark.parametrize("near", [False, True])
def test_modes_are_weighed_only_where_they_can_be(near):
    can = nz.gamma_nmf([[1, 0], [2, 3], [4, 1]], 1)
    cannot = nz.negative_binomial_nmf([[1, 0], [2, 3], [4, 1]], 1)
    for model, word in ((can, "yes"), (cannot, "no")):
        drawn = nz.sample(model=model, engine="gibbs", draws=2, tune=0, chains=1, start="random", quiet=True)
        assert drawn.attrs["weighs_modes"] == word
        said = advise_on_modes(pd.Series([3.0], ["lp"]), [[0], [1]], None, near, word == "yes")
        advised = of_sampler([said], " for longer")
        assert ("weigh_modes" in said.text) == ("weigh_modes" in advised.do) == (word == "yes")
    idata = result_of(draws_of([0, 9, 0, 9]))
    idata.attrs["weighs_modes"] = "no"
    assert "weigh" not in verdict_on(idata).do + verdict_on(idata).text


def test_the_advice_is_to_start_together():
    (advice,) = judge(result_of(draws_of([0, 9, 0, 9])), "W", "H").advice
    assert advice.about == "modes"
    assert "in 2 different modes: chains 0, 2 (mean lp" in advice.text
    assert "Drawing longer will not bring them together" in advice.text
    verdict = verdict_on(result_of(draws_of([0, 9, 0, 9])))
    assert "in a mode of its own" in verdict.text
    assert "start='search'" in verdict.do
    assert "longer" not in verdict.do


def test_the_advice_is_to_go_on():
    verdict = verdict_on(result_of(draws_of([0, 9, 0, 9], drift=2.0)))
    assert verdict.do.startswith("run again for longer")


# -- starts ------------------------------------------------------------------------------------------------------

X = np.random.default_rng(1).poisson(5.0, (6, 8))
SHORT = {"random_seed": 1, "quiet": True}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, 2)


def test_chains_start_at_draws_of_the_best_restart(model):
    found = nz.fit(engine="vb", restarts=3, draws=5, max_iter=20, tol=0, model=model, **SHORT)
    posterior = _compat.group(found, "posterior")
    starts = starts_of(found, nz.read(model), 7)
    for i, start in enumerate(starts):
        assert set(start) == {"W", "H"}
        np.testing.assert_array_equal(start["W"], posterior["W"].to_numpy()[0, i % 5])
    again = nz.fit(engine="em", max_iter=1, tol=0, initvals=found, restarts=2, model=model, **SHORT)
    first, second = _compat.group(again, "posterior")["W"].to_numpy()[:, 0]
    assert not np.array_equal(first, second)


def test_a_point_is_the_start_of_all(model):
    found = nz.fit(engine="em", max_iter=3, tol=0, model=model, **SHORT)
    first, second = starts_of(found, nz.read(model), 2)
    np.testing.assert_array_equal(first["H"], second["H"])


def test_chains_go_on_from_chains(model):
    W = np.arange(1.0, 1 + 2 * 4 * 12).reshape(2, 4, 6, 2)
    dims = ("chain", "draw", "feature", "component")
    result = _compat.inference_data({"posterior": xr.Dataset({"W": (dims, W)})}, {})
    for i, start in enumerate(starts_of(result, nz.read(model), 3)):
        np.testing.assert_array_equal(start["W"], W[i % 2, -1])


def test_a_result_of_another_model_is_refused(model):
    other = nz.fit(engine="em", max_iter=1, tol=0, model=nz.gamma_nmf(X, 3), **SHORT)
    with pytest.raises(InputError, match=r"initvals\['W'\]: got shape \(6, 3\); expected shape \(6, 2\)"):
        nz.fit(engine="em", initvals=other, model=model, **SHORT)
    unrelated = _compat.inference_data({"posterior": xr.Dataset({"z": (("chain", "draw"), np.ones((1, 1)))})}, {})
    with pytest.raises(InputError, match=r"initvals: got a result with \['z'\]; expected some of"):
        nz.fit(engine="em", initvals=unrelated, model=model, **SHORT)


# -- what agreement shows, by where the chains began -------------------------------------------------------------


def test_where_chains_began_is_recorded(model):
    def began(**how):
        idata = nz.sample(5, tune=0, chains=2, model=model, **how, **SHORT)
        return idata.attrs.get("start"), "search" in _compat.group_names(idata)

    W = np.ones((6, 2))
    assert began(start="random") == ("random", False)
    assert began(start=nz.Search(fits=2)) == ("search", True)
    assert began(initvals={"W": W}) == began(initvals=[{"W": W}, {"W": W}]) == ("one point", False)
    assert began(initvals=[{"W": W}, {"W": 2 * W}]) == ("points of their own", False)
    plain = nz.fit(engine="vb", search=None, max_iter=5, tol=0, model=model, **SHORT)
    searched = nz.fit(engine="vb", search=nz.Search(fits=2), max_iter=5, tol=0, model=model, **SHORT)
    assert began(initvals=plain) == ("fit", False)
    assert began(initvals=searched) == ("search", True)
    chains = nz.sample(5, tune=0, chains=2, initvals=plain, model=model, **SHORT)
    assert began(initvals=chains) == ("fit", False)
    assert "gathered" not in chains.attrs
    chains.attrs["gathered"] = 2000
    assert nz.sample(5, tune=0, chains=2, model=model, initvals=chains, **SHORT).attrs["gathered"] == 2000
    again = nz.fit(engine="vb", max_iter=5, tol=0, model=model, initvals=chains, **SHORT)
    assert "gathered" not in again.attrs


def begun(start, levels=(0, 0, 0, 0)):
    return _compat.inference_data({"sample_stats": draws_of(list(levels))}, {"draws": 400, "start": start})


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("fit", "within the mode of the fit that they were given, which says nothing of other modes"),
        ("one point", "within the mode of the one start that they were given"),
        ("random", ""),
        ("points of their own", ""),
    ],
)
def test_chains_that_began_together_agree_within_a_mode(start, words):
    verdict = verdict_on(begun(start))
    assert not verdict.is_warning
    assert verdict.text.startswith("No sign of trouble: the chains agree on the reconstruction W H")
    assert ("within" in verdict.text) == bool(words)
    assert words in verdict.text
    (advice,) = judge(begun(start), "W", "H").advice
    assert words in advice.text
    assert "converged" not in advice.text


def test_agreement_around_what_a_search_found():
    found = {"objective": ("optimum", [-3.0, -143.0]), "found": ("optimum", [5, 11])}
    idata = _compat.with_groups(begun("search"), {"search": xr.Dataset(found, attrs={"fits": 16})})
    words = "within the mode that the search found 5 of 16 times; the next best lies 140 nats below."
    (advice,) = judge(idata, "W", "H").advice
    assert advice.text.startswith(f"The chains agree {words} R-hat is at most")
    assert verdict_on(idata).text == f"No sign of trouble: the chains agree on the reconstruction W H, {words}"
    idata.attrs["gathered"] = 7000
    assert "below; after 7,000 sweeps, when they did not agree, chains took up the state" in verdict_on(idata).text


def test_optima_that_are_one_mode():
    """Chains that began at two of them, and agree: fits of both found it."""
    found = {"objective": ("optimum", [-3.0, -3.5, -143.0]), "found": ("optimum", [5, 2, 9])}
    group = xr.Dataset({**found, "optimum_of_chain": ("chain", [0, 1, 0, 1])}, attrs={"fits": 16, "near": 2})
    words = "within the mode that the search found 7 of 16 times, as 2 optima of the bound; the next best lies 140 nats"
    assert words in verdict_on(_compat.with_groups(begun("search"), {"search": group})).text
    apart = verdict_on(_compat.with_groups(begun("search", [0, 9, 0, 9]), {"search": group}))
    assert "that the search found" not in apart.text
    assert apart.do.startswith("weigh the modes")


def test_that_chains_followed_others_is_said_of_several_modes_too():
    """In each of two near optima of their own."""
    found = {"objective": ("optimum", [-3.0, -3.5]), "found": ("optimum", [5, 2])}
    group = xr.Dataset({**found, "optimum_of_chain": ("chain", [0, 1, 0, 1])}, attrs={"fits": 7, "near": 2})
    apart = _compat.with_groups(begun("search", [0, 9, 0, 9]), {"search": group})
    said = "After 7,000 sweeps, when they did not agree, chains took up the state of another that began where they did."
    assert said not in [one.text for one in judge(apart, "W", "H").advice]
    apart.attrs["gathered"] = 7000
    assert said in [one.text for one in judge(apart, "W", "H").advice]
    weighed = weighed_as(["decided", "decided"], [0.73, 0.27])
    weighed.attrs["gathered"] = 7000
    assert said in [one.text for one in judge(weighed, "W", "H").advice]


def test_chains_that_began_together_and_disagree():
    """Still on their way: longer helps, and where they began is said."""
    idata = _compat.inference_data({"sample_stats": draws_of([0, 9], drift=2.0)}, {"draws": 400, "start": "fit"})
    verdict = verdict_on(idata)
    assert verdict.do.startswith("run again for longer")
    assert "All chains began in the mode of the fit" in verdict.text


# -- what modes weigh, in the verdict ----------------------------------------------------------------------------


def weighed_as(verdicts, shares):
    values = {"share": shares, "share_low": shares, "share_high": shares, "verdict": verdicts}
    values |= {"log_evidence": [-3.0, -4.0], "log_evidence_error": [0.1, 0.1], "lp": [9.0, 0.0]}
    own = {name: ("mode", value) for name, value in values.items()}
    own |= {"cosine": (("mode", "component"), np.ones((2, 2))), "mode_of_chain": ("chain", [1, 0, 1, 0])}
    modes = xr.Dataset(own, {"mode": [0, 1], "chain": [0, 1, 2, 3]})
    return _compat.with_groups(result_of(draws_of([0, 9, 0, 9])), {"modes": modes})


def test_the_verdict_on_weighed_modes():
    verdict = verdict_on(weighed_as(["decided", "decided"], [0.73, 0.27]))
    assert "What the modes weigh is known: 2 modes: chains 1, 3 (" in verdict.text
    assert "share 0.73" in verdict.text
    assert "nz.pool(idata)" in verdict.do
    assert verdict.is_warning


def test_the_verdict_on_undecided_modes():
    verdict = verdict_on(weighed_as(["undecided", "undecided"], [np.nan, np.nan]))
    assert "what the modes weigh is undecided: 2 modes:" in verdict.text
    assert "weigh them with more draws=" in verdict.do
    assert "pool" not in verdict.do


def test_the_verdict_on_pooled_modes():
    pooled = _compat.inference_data({"sample_stats": draws_of([0, 0, 0, 0])}, {"pooled": "2 modes: these."})
    verdict = verdict_on(pooled)
    assert not verdict.is_warning
    assert verdict.text.endswith("Draws of the modes were pooled by their shares. 2 modes: these.")
