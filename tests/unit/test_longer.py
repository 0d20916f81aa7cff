"""Chains that go on: all together, to the draws of a longer run, thinned or its latter half, whatever stops them."""

from __future__ import annotations

import errno
import os
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.diagnostics.modes import Lack, what_lacks
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.runtime import arguments, driver
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.driver import run_chains
from nmf_zoo.runtime.jobs import Jobs
from nmf_zoo.runtime.progress import Watch
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.runtime.traces import MomentTraces
from nmf_zoo.verbs import sample_and_fit
from tests.unit.test_checkpoint import (
    Killed,
    all_the_time,  # noqa: F401
    assert_same,
    check_killed,
    die_after,
    folder,  # noqa: F401
    run_saved,
)
from tests.unit.test_driver import KEY, run_toy, sample_run, sweeps_of, toy

LENGTH = {"draws": 7, "tune": 4, "keep_warmup": True}


def asking(times, anew=64, leaders=()):
    """A run that goes on until it has so many times its draws, and is still on its way at ``anew`` times.

    Its chains follow ``leaders`` then.
    """

    def too_short(traces, is_full):
        now = traces.chains[0].times
        return ("more" if now < times else "", now == anew, leaders if now == anew else ())

    return {"extend": 64, "too_short": too_short}


@pytest.mark.parametrize("thin", [1, 2, 3])
@pytest.mark.parametrize("draws", [1, 6, 7])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_draws_are_those_of_a_longer_run_that_was_thinned(thin, draws, times):
    length = LENGTH | {"draws": draws}
    longer = LENGTH | {"draws": draws * times, "thin": thin * times}
    expected, _ = run_toy(toy(), **longer | {"keep_warmup": False})
    chains, early = run_toy(toy(), **length | {"thin": thin, "keep_warmup": False}, **asking(times))
    assert_same(chains, expected)
    assert not early
    assert len(sweeps_of(chains[0].draws)) == -(-draws // thin)
    assert {chain.times for chain in chains} == {times}


@pytest.mark.parametrize(("times", "anew"), [(2, 1), (4, 1), (4, 2), (8, 2)])
@pytest.mark.parametrize("draws", [1, 6, 7])
@pytest.mark.parametrize("thin", [1, 2])
def test_chains_that_were_on_their_way_keep_the_latter_half(thin, draws, times, anew):
    """Whatever they find later: what they drew by then was no posterior."""
    longer, _ = run_toy(toy(), draws=draws * times, tune=4, thin=thin * times // 2)
    chains, early = run_toy(toy(), draws=draws, tune=4, thin=thin, **asking(times, anew))
    assert not early
    for chain, other in zip(chains, longer, strict=True):
        late = np.array(sweeps_of(other.draws)) > 4 + draws * times // 2
        if late.any():  # of one draw every second may be none
            np.testing.assert_array_equal(chain.draws.values["v"], other.draws.values["v"][late])
            assert (chain.times, chain.discarded[-1], chain.every) == (times, draws * times // 2, times // 2)
        assert chain.draws.filled >= 1


def test_no_further_than_it_may():
    chains, _ = run_toy(toy(), **LENGTH, extend=3, too_short=lambda *_: ("more", False, ()))
    assert sweeps_of(chains[0].draws) == list(range(5, 19, 2))


def test_chains_follow_others():
    """From the state that these had when all began anew, each by its own random numbers."""
    chains, _ = run_toy(toy(), **LENGTH, **asking(2, 1, leaders=[0, 0, 0]))
    assert [chain.draws.stats["lp"].tolist() for chain in chains] == [[0.0] * 7] * 3
    assert [chain.warmup.stats["lp"].tolist() for chain in chains] == [[each] * 4 for each in range(3)]
    alone, _ = run_toy(toy(), **LENGTH, **asking(2, 1))
    assert [chain.gathered for chain in (*chains, *alone)] == [7] * 3 + [0] * 3
    for chain, other in zip(chains, alone, strict=True):
        np.testing.assert_array_equal(chain.draws.values["v"], other.draws.values["v"])


def test_whom_chains_followed_is_known_afterwards():
    """In the last round each goes on by itself."""
    said = iter([("more", True, [0, 0, 2]), ("more", True, []), ("", False, [])])
    chains, _ = run_toy(toy(), **LENGTH, extend=4, too_short=lambda *_: next(said))
    assert [chain.draws.stats["lp"][0] for chain in chains] == [0.0, 0.0, 2.0]
    assert [(chain.gathered, chain.discarded) for chain in chains] == [(7, [7, 14])] * 3


def moments(checkpoint=None, n_chains=3, engine=None, **options):
    run = sample_run(**LENGTH | {"keep_warmup": False, "keep": "moments"} | options)
    traces = MomentTraces(n_chains, run.kept_warmup, run.kept_statistics)
    opened = open_checkpoint(checkpoint, {}, 1, is_seeded=True) if checkpoint else None
    try:
        starts = [{"chain": chain} for chain in range(n_chains)]
        return run_chains(engine or toy(), None, None, run, KEY, starts, traces, opened)[0]
    finally:
        if opened is not None:
            opened.close()


def test_moments_are_those_of_more_draws():
    chains = moments(**asking(2))
    assert_same(chains, moments(draws=14))
    assert [chain.draws.added for chain in chains] == [14] * 3
    for chain, other in zip(chains, moments(draws=14), strict=True):
        for name, array in chain.draws.state().items():
            np.testing.assert_array_equal(array, other.draws.state()[name])


@pytest.mark.parametrize(("times", "anew", "first"), [(2, 1, 12), (4, 2, 19), (8, 1, 33)])
def test_moments_of_the_latter_half(times, anew, first):
    last = 4 + 7 * times
    drawn = sweeps_of(run_toy(toy(), draws=7 * times, tune=4)[0][0].draws)
    for chain in moments(**asking(times, anew)):
        assert chain.draws.stats["sweep"].tolist() == [n for n in drawn if n >= first] == list(range(first, last + 1))
        found = chain.draws.state()
        assert found["mean/v"][0, 0] == pytest.approx((first + last) / 2)
        assert found["squares/v"][0, 0] == pytest.approx(np.var(range(first, last + 1)) * (last + 1 - first))


def test_ctrl_c_between_two_rounds_leaves_what_was_asked_for():
    def interrupted(traces, is_full):
        raise KeyboardInterrupt

    chains, early = run_toy(toy(), **LENGTH, extend=4, too_short=interrupted)
    assert not early
    assert sweeps_of(chains[0].draws) == list(range(5, 12))


def test_bars_are_as_long_as_the_chains_become():
    with Watch(True, "chain", 2, 10) as watch:
        watch.lengthen(30, "R-hat")
        assert [task.total for task in watch._bars.tasks] == [30, 30]
        watch.report(0, 20, "from the checkpoint", total=50)
        assert [task.total for task in watch._bars.tasks] == [50, 30]


@pytest.mark.parametrize("keep", ["draws", "moments"])
@pytest.mark.parametrize("new", range(7))
def test_a_stop_soon_after_they_began_anew_goes_back(new, keep):
    """New draws take places of those of before, of which half are there until half are new."""
    calls = iter(range(11 + new))

    def stops(step):
        return next(calls, None) is None

    how = LENGTH | {"keep_warmup": False} | asking(2, anew=1) | {"on_step": stops}
    chains = run_toy(toy(), n_chains=1, **how)[0] if keep == "draws" else moments(n_chains=1, **how)
    (chain,) = chains
    made = new + 1  # the step that ends it is made
    expected = range(12, 12 + made) if made >= 4 else range(5 + made, 12)
    assert chain.draws.stats["sweep"].tolist() == list(expected)
    assert (chain.times, chain.discarded) == ((2, [7]) if made >= 4 else (1, []))
    if keep == "moments":
        assert chain.draws.state()["mean/v"][0, 0] == pytest.approx(np.mean(expected) if made >= 4 else 8.0)
    else:
        assert sweeps_of(chain.draws) == list(expected)


def test_a_stop_while_going_on_keeps_what_there_is():
    calls = iter(range(2 * 11 + 4))

    def stops(step):
        return next(calls, None) is None

    chains, early = run_toy(toy(), n_chains=2, **LENGTH, **asking(2) | {"on_step": stops})
    assert early == "stopped by on_step"
    longer, _ = run_toy(toy(), n_chains=2, **LENGTH | {"draws": 14, "thin": 2})
    for chain, other in zip(chains, longer, strict=True):
        drawn = chain.draws.filled
        assert 4 <= drawn < 7
        np.testing.assert_array_equal(chain.draws.values["v"], other.draws.values["v"][:drawn])


# -- from a checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anew", [1, 2, 64])
@pytest.mark.parametrize("total", range(1, 3 * 32, 7))
def test_killed_in_any_sweep_of_any_chain(folder, all_the_time, total, anew):  # noqa: F811
    check_killed(folder, total, 3 * (4 + 28), **LENGTH | {"thin": 2} | asking(4, anew))


@pytest.mark.parametrize("leaders", [[0, 0, 0], [2, 2, 2], [1, 1, 2]])
@pytest.mark.parametrize("total", range(3 * 11 - 1, 3 * 32, 8))
def test_killed_in_any_sweep_of_chains_that_follow(folder, all_the_time, total, leaders):  # noqa: F811
    check_killed(folder, total, 3 * (4 + 28), **LENGTH | {"thin": 2} | asking(4, 1, leaders))


@pytest.mark.parametrize("leader", range(3))
@pytest.mark.parametrize("followed", range(2))
def test_killed_while_they_follow(folder, all_the_time, monkeypatch, followed, leader):  # noqa: F811
    """Those that had followed are saved, and the state that the others are to take is there."""
    how, calls, follow = LENGTH | asking(2, 1, [leader] * 3), iter(range(followed)), driver._Chain.follow

    def dies(chain, other):
        if next(calls, None) is None:
            raise Killed
        follow(chain, other)

    monkeypatch.setattr(driver._Chain, "follow", dies)
    with pytest.raises(Killed):
        run_saved(toy(), folder, **how)
    monkeypatch.undo()
    assert_same(run_saved(toy(), folder, **how)[0], run_toy(toy(), **how)[0])


@pytest.mark.parametrize("followed", range(3))
def test_ctrl_c_while_they_follow(folder, all_the_time, monkeypatch, followed):  # noqa: F811
    """What has not followed yet does not go on from where it is."""
    how, run = LENGTH | asking(2, 1, [0] * 3), Jobs.run

    def interrupted(jobs, work, numbers, keys):
        if work.__name__ != "follow":
            return run(jobs, work, numbers, keys)
        jobs.stop(INTERRUPTED)
        return run(jobs, work, numbers[:followed], keys[:followed])

    monkeypatch.setattr(Jobs, "run", interrupted)
    chains, early = run_saved(toy(), folder, **how)
    assert early == (INTERRUPTED if followed > 1 else "")  # the first leads; until another follows the run is done
    assert [sweeps_of(chain.draws) for chain in chains] == [list(range(5, 12))] * 3
    monkeypatch.undo()
    assert_same(run_saved(toy(), folder, **how)[0], run_toy(toy(), **how)[0])


@pytest.mark.parametrize("leaders", [[1, 1, 1], [0, 0, 2]])
@pytest.mark.parametrize("total", [55, 75])
@pytest.mark.parametrize("first", range(60, 130, 10))
@pytest.mark.filterwarnings("ignore:checkpoint")
def test_saves_that_failed_and_then_a_kill(folder, all_the_time, monkeypatch, first, total, leaders):  # noqa: F811
    """Where one chain could not be saved none goes on being saved, so that nobody's leader is further than it was."""
    saved, sync = iter(range(1000)), os.fsync
    how = LENGTH | {"thin": 2} | asking(4, 1, leaders)

    def full(file):
        if first <= next(saved) < first + 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return sync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Killed):
        run_saved(toy(die_after(total)), folder, **how)
    monkeypatch.undo()
    assert_same(run_saved(toy(), folder, **how)[0], run_toy(toy(), **how)[0])


@pytest.mark.parametrize("total", range(3 * 11 - 1, 3 * 18, 3))
def test_moments_of_before_are_in_the_checkpoint(folder, all_the_time, total):  # noqa: F811
    how = asking(2, anew=1)
    with pytest.raises(Killed):
        moments(folder, engine=toy(die_after(total)), **how)
    calls = iter([])
    stopped = moments(folder, **how | {"on_step": lambda step: next(calls, None) is None})
    for chain in stopped:  # of each as much as it has
        first = 12 if chain.discarded else 5
        added = range(first, first + chain.draws.added)
        assert chain.discarded or len(added) == 7
        assert chain.draws.state()["mean/v"][0, 0] == pytest.approx(np.mean(added))
    for chain, other in zip(moments(folder, **how), moments(**how), strict=True):
        assert_same([chain], [other])
        for name, array in chain.draws.state().items():
            np.testing.assert_array_equal(array, other.draws.state()[name])


def test_after_the_end_the_same_call_makes_no_sweeps_and_more_draws_those_that_are_missing(folder):  # noqa: F811
    first, _ = run_saved(toy(), folder, **LENGTH, **asking(2))
    again, _ = run_saved(toy(lambda chain, sweep: pytest.fail("a sweep")), folder, **LENGTH, **asking(2))
    assert_same(again, first)
    more, _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(2))
    expected, _ = run_toy(toy(), **LENGTH | {"draws": 9}, **asking(2))
    assert_same(more, expected)
    with pytest.raises(InputError, match="draws: got 8; expected at least the 9 that the checkpoint holds"):
        run_saved(toy(), folder, **LENGTH | {"draws": 8}, **asking(2))


def test_more_draws_of_chains_that_began_anew(folder):  # noqa: F811
    """What was left out stays so, and what was kept is kept."""
    run_saved(toy(), folder, **LENGTH, **asking(2, anew=1))
    (chain, *_), _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(2, anew=1))
    assert sweeps_of(chain.draws) == list(range(12, 21))
    assert chain.discarded == [7]
    (chain, *_), _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(4, anew=1))
    assert sweeps_of(chain.draws) == list(range(21, 39, 2))
    assert chain.discarded == [7, 16]
    with pytest.raises(InputError, match="draws: got 8; expected at least the 9 that the checkpoint holds"):
        run_saved(toy(), folder, **LENGTH | {"draws": 8}, **asking(4))


def uneven(folder):  # noqa: F811
    """A checkpoint whose first chain was on its way to twice the sweeps when it was killed; no other had begun to."""
    with pytest.raises(Killed):
        run_saved(toy(die_after(3 * 11 + 3)), folder, **LENGTH, **asking(2))
    return run_toy(toy(), **LENGTH, **asking(2))[0]


def test_a_checkpoint_that_has_gone_further_than_the_next_call_may(folder, all_the_time):  # noqa: F811
    expected = uneven(folder)
    with pytest.raises(InputError, match="draws: got 6; expected as many as when the chains went on, of which 7 were"):
        run_saved(toy(), folder, **LENGTH | {"draws": 6})
    assert_same(run_saved(toy(), folder, **LENGTH)[0], expected)


def test_statistics_beside_moments_take_as_much_room_as_before(folder, all_the_time):  # noqa: F811
    moments(checkpoint=folder, **asking(2))
    with pytest.raises(InputError, match="extend: got 1; expected at least the 2 that the checkpoint has gone on to"):
        moments(checkpoint=folder)
    assert_same(moments(checkpoint=folder, **asking(2)), moments(draws=14))


@pytest.mark.parametrize("at", range(14))
def test_a_stop_of_chains_that_are_not_level(folder, all_the_time, at):  # noqa: F811
    """All that is returned is thinned alike, whichever block it was, and a run that is cut short says so."""
    expected, calls = uneven(folder), iter(range(at))
    chains, early = run_saved(
        toy(), folder, **LENGTH, **asking(2) | {"on_step": lambda step: next(calls, None) is None}
    )
    assert early == "stopped by on_step"
    assert {chain.times for chain in chains} == {2}
    for chain in chains:
        drawn, whole = chain.draws.values["v"], expected[chain.number].draws.values["v"]
        assert len(drawn) >= 4
        np.testing.assert_array_equal(drawn, whole[: len(drawn)])


@pytest.mark.parametrize(
    ("lengthened", "discarded", "leaders", "message"),
    [
        ([5], [], [], r"went on after \[5\] draws, and rows of fewer"),
        ([5], [7], [[0]], r"went on after \[5\] draws, and rows of fewer"),
        ([1] * 10**4, [], [], "chains that went on 10000 times"),
        ([], [7], [[0]], "chains that went on 0 times"),
        ([5], [7], [], r"1 chains that followed \[\]"),
        ([5], [7], [[1]], r"1 chains that followed \[\[1\]\]"),
        ([5], [7], [[0, 0]], r"1 chains that followed \[\[0, 0\]\]"),
    ],
)
def test_chains_that_were_made_up(folder, lengthened, discarded, leaders, message):  # noqa: F811
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    tree = {"sweeps": 2, "filled": {"warmup": 0, "draws": 0}, "traces": {"warmup": {}, "draws": {}}}
    state = {"chain": 0, "sweep": 2, "u": 0.5}
    rounds = {"lengthened": lengthened, "discarded": discarded, "leaders": leaders}
    assert opened.part(0).save({**tree, **rounds, "state": state}, {})
    opened.close()
    with pytest.raises(InputError, match=rf"^checkpoint: got 0.state in .*damaged: .*{message}"):
        run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(2))


@pytest.mark.parametrize("first", range(8, 32, 2))
def test_a_full_disk_as_it_goes_on_costs_no_draws(folder, all_the_time, monkeypatch, first):  # noqa: F811
    """What was not saved by then can't be told from the draws that are left: nothing is saved from there on."""
    saved, sync = iter(range(100)), os.fsync

    def full(file):
        if next(saved) in full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return sync(file)

    full_at = range(first, first + 4)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(NmfZooWarning, match="the run goes on without"):
        chains, _ = run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(2))
    monkeypatch.undo()
    expected, _ = run_toy(toy(), n_chains=1, **LENGTH, **asking(2))
    assert_same(chains, expected)
    again, _ = run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(2))
    assert_same(again, expected)


# -- when ------------------------------------------------------------------------------------------------------------


def followed(means, walk=0.0, n=600, chains=4):
    """lp and a cell of chains with these means, each an autoregression with coefficient ``walk``."""
    generator = np.random.default_rng(1)
    noise = generator.normal(size=(chains, n))
    for draw in range(1, n):
        noise[:, draw] = walk * noise[:, draw - 1] + np.sqrt(1 - walk**2) * noise[:, draw]
    x = noise + np.reshape(means, (-1, 1))
    return xr.Dataset({"lp": (("chain", "draw"), x), "mean": (("chain", "draw", "checked_cell"), x[..., None])})


@pytest.mark.parametrize(
    ("for_ess", "anew", "said"), [(4, 64, [0, 0, 1]), (2, 64, [0, 1, 1]), (4, 2, [0, 0, 0]), (4, 4, [0, 0, 1])]
)
def test_whether_there_are_as_many_draws_as_are_made_for_their_number(for_ess, anew, said):
    """Of draws that others replace, where some were left out, there never are."""
    asked = []
    going = asking(16, anew)["too_short"]

    def too_short(traces, is_full):
        asked.append(int(is_full))
        return going(traces, is_full)

    chains, _ = run_toy(toy(), **LENGTH, extend=8, extend_for_ess=for_ess, too_short=too_short)
    assert asked == said
    assert {chain.times for chain in chains} == {8}


@pytest.mark.parametrize(
    ("draws", "reason"),
    [
        (followed([0.0] * 4), ""),
        (followed([0.0] * 4, walk=0.95), "R-hat is 1.0"),
        (followed([0.0], walk=0.95, chains=1), "effective draws, 100 are asked"),
        (followed([0.0, 0.0, 0.4, 0.4]), "R-hat is 1.0"),
        (followed([0.0, 0.0, 9.0, 9.0]), ""),
        (followed([0.0] * 4, n=99, walk=0.99), ""),
        (followed([0.0, 0.0, 0.4, 0.4]).assign(lp=lambda found: found["lp"] * np.nan), "R-hat is 1.0"),
        (xr.Dataset(), ""),
    ],
    ids=["good", "slow", "one slow chain", "near", "two modes", "too few to judge", "lp that is not known", "nothing"],
)
def test_reasons_to_go_on(draws, reason):
    found = what_lacks(draws)
    assert bool(found.reason) == bool(reason)
    assert reason in found.reason
    assert bool(what_lacks(draws, is_full=True).reason) == ("R-hat" in reason)


def test_a_chain_on_its_way_is_told_of():
    draws = followed([0.0] * 4)
    moved = draws.assign({name: draws[name] + 5.0 * ((draws.chain == 3) & (draws.draw < 200)) for name in draws})
    found = what_lacks(moved)
    assert found.is_on_the_way
    assert "a chain is still on its way: draws so far are left out" in found.reason
    assert not what_lacks(moved.isel(draw=slice(200, None))).reason


@pytest.fixture(scope="module")
def slow():
    """Three components of few features, whose sources are drawn anew in every sweep and whose scales are not."""
    generator = np.random.default_rng(2)
    X = generator.poisson(generator.gamma(1.0, 1.0, (6, 3)) @ generator.gamma(0.5, 3.0, (3, 12)))
    return nz.gamma_nmf(X, rank=3, alpha_w=0.3, alpha_h=0.3)


OPTIONS = {"engine": nz.Gibbs(moves=()), "start": "random", "tune": 300, "random_seed": 3, "cores": 1}


def test_a_checkpoint_goes_on_where_it_could_not_before(slow, tmp_path):
    run = {"draws": 1000, "quiet": True, "model": slow, "checkpoint": tmp_path / "run", **OPTIONS}
    assert nz.sample(**run, extend=1).attrs["thin"] == 1
    found = nz.sample(**run)
    assert found.attrs["thin"] > 1
    again = nz.sample(**run, compute_convergence_checks=False)  # which would not go on by itself
    xr.testing.assert_equal(again.posterior, found.posterior)
    assert again.attrs["thin"] == found.attrs["thin"]


def test_a_run_by_default_goes_on_to_what_it_says(slow, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NmfZooWarning)  # of single components
        found = nz.sample(1000, model=slow, **OPTIONS)
    times = found.attrs["thin"]
    assert times > 1
    assert nz.summarise(found)["rhat"].max() <= 1.01
    assert f"all chains go on to {300 + 1000 * 2:,} sweeps: R-hat is " in capsys.readouterr().err
    longer = nz.sample(1000 * times, thin=times, extend=1, model=slow, quiet=True, **OPTIONS)
    for name, draws in longer.posterior.items():
        np.testing.assert_array_equal(found.posterior[name], draws)
    xr.testing.assert_identical(found.sample_stats, longer.sample_stats)
    assert longer.attrs["thin"] == times


def test_a_large_table_that_has_gone_to_four_times_is_asked_what_it_lacks_once_more(slow, monkeypatch):
    """Then R-hat alone counts, and not the number of effective draws."""
    asked = []

    def lacks(draws, origins, follow, is_full):
        asked.append(is_full)
        return Lack("" if len(asked) == 4 else "more")

    monkeypatch.setattr(arguments, "is_large", lambda structure: True)
    monkeypatch.setattr(sample_and_fit, "what_lacks", lacks)
    assert nz.sample(1000, model=slow, quiet=True, **OPTIONS).attrs["thin"] == 8
    assert asked == [False, False, True, True]


@pytest.mark.parametrize(
    "how",
    [{"draws": 999}, {"extend": 1}, {"compute_convergence_checks": False}, {"max_seconds": 1e6}],
    ids=["a first look", "not wanted", "not asked for", "so much time"],
)
def test_a_run_that_does_not_go_on(slow, how):
    found = nz.sample(**{"draws": 1000, "quiet": True} | OPTIONS | how, model=slow)
    assert found.attrs["thin"] == 1
    assert nz.summarise(found)["rhat"].max() > 1.01


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"extend": 0}, "extend: got 0; expected an integer >= 1"),
        ({"extend": "long"}, "extend: got 'long'; expected an integer >= 1, or 'auto'"),
        (
            {"extend": 2, "engine": "nuts"},
            "extend: got 2 with nuts, which makes all draws at once; expected 1 or 'auto'",
        ),
        ({"extend": 2, "engine": "smc"}, "extend: got 2 with smc, which makes all draws at once; expected 1 or 'auto'"),
        ({"extend": 2, "store": "x.zarr"}, "extend: got 2 with a store; expected 1 or 'auto'"),
        ({"extend": 2, "max_seconds": 9.0}, "extend: got 2 with max_seconds=; expected 1 or 'auto'"),
        ({"extend": 2, "data": np.ones((2, 3))}, "extend: got 2 with data=; expected 1 or 'auto'"),
    ],
)
def test_what_extend_may_be(slow, how, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nz.gamma_nmf(None, rank=2, shape=(2, 1)) if "data" in how else slow
    assert isinstance(model, pm.Model)
    with pytest.raises(InputError) as refused:
        nz.sample(10, model=model, **how)
    assert message in str(refused.value)
