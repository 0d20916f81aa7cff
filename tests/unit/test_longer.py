"""Chains that go on: all together, to the draws of a longer run, thinned or its last ones, whatever stops them."""

from __future__ import annotations

import errno
import os
import warnings
from typing import Any

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
from nmf_zoo.runtime.traces import ChainRound, MomentTraces
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


def asking(rounds, anew=(), leaders=()):
    """A run that goes on so many times, in the rounds ``anew`` (from 0) with chains that are still on their way.

    They follow ``leaders`` then.
    """

    def too_short(traces, is_full):
        now = len(traces.chains[0].rounds)
        return ("more" if now < rounds else "", now in anew, leaders if now in anew else ())

    return {"extend": 64, "too_short": too_short}


def lengths(rounds, anew=()):
    """(discarded, kept) then, in times the draws: a round after which draws were left out is of two times."""
    discarded, kept = 0, 1
    for number in range(rounds):
        if number in anew:
            discarded, kept = discarded + kept, {1: 2, 2: 2, 4: 2, 8: 4}[kept]
        else:
            kept *= 2
    return discarded, kept


@pytest.mark.parametrize("thin", [1, 2, 3])
@pytest.mark.parametrize("draws", [1, 6, 7])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_draws_are_those_of_a_longer_run_that_was_thinned(thin, draws, rounds):
    length, times = LENGTH | {"draws": draws}, 2**rounds
    longer = LENGTH | {"draws": draws * times, "thin": thin * times}
    expected, _ = run_toy(toy(), **longer | {"keep_warmup": False})
    chains, early = run_toy(toy(), **length | {"thin": thin, "keep_warmup": False}, **asking(rounds))
    assert_same(chains, expected)
    assert not early
    assert len(sweeps_of(chains[0].draws)) == -(-draws // thin)
    assert {(chain.discarded, chain.kept) for chain in chains} == {(0, times)}


@pytest.mark.parametrize(
    ("rounds", "anew"),
    [(1, [0]), (2, [0]), (2, [1]), (3, [1]), (3, [0, 1, 2]), (3, [2]), (4, [3]), (5, [3, 4]), (4, [0, 2])],
)
@pytest.mark.parametrize("draws", [1, 6, 7])
@pytest.mark.parametrize("thin", [1, 2])
def test_what_chains_on_their_way_drew_is_left_out(thin, draws, rounds, anew):
    """From there on the run is as one whose warm-up was longer, but for what it adapts in it."""
    discarded, kept = (draws * times for times in lengths(rounds, anew))
    drawn, _ = run_toy(toy(), draws=discarded + kept, tune=4)
    chains, early = run_toy(toy(), draws=draws, tune=4, thin=thin, **asking(rounds, anew))
    assert not early
    for chain, other in zip(chains, drawn, strict=True):
        assert (chain.discarded, chain.kept * draws, chain.every) == (discarded, kept, kept // draws)
        assert len(chain.rounds) == rounds
        expected = other.draws.values["v"][discarded :: thin * chain.every]
        np.testing.assert_array_equal(chain.draws.values["v"], expected)
        assert chain.draws.filled == -(-draws // thin)


def test_rounds_of_chains_on_their_way_are_of_one_length():
    """Twice the draws that were asked for; one that was longer comes down to it by halves."""
    asked = []

    def on_its_way(traces, is_full):
        chain = traces.chains[0]
        asked.append((chain.discarded // 7, chain.kept))
        return "more", len(asked) > 4, ()

    run_toy(toy(), **LENGTH, extend=64, too_short=on_its_way)
    assert asked[:4] == [(0, 1), (0, 2), (0, 4), (0, 8)]
    assert asked[4:9] == [(0, 16), (16, 8), (24, 4), (28, 2), (30, 2)]
    assert asked[-1] == (60, 2)


@pytest.mark.parametrize(
    ("extend", "anew", "expected"),
    [
        (3, False, range(5, 19, 2)),
        (1, True, range(5, 12)),
        (2, True, range(12, 19)),
        (4, True, range(12, 26, 2)),
        (5, True, range(26, 40, 2)),
    ],
)
def test_no_further_than_it_may(extend, anew, expected):
    """What is left out counts, too: where there is no room for more the draws stay that there are."""
    chains, _ = run_toy(toy(), **LENGTH, extend=extend, too_short=lambda *_: ("more", anew, ()))
    assert sweeps_of(chains[0].draws) == list(expected)


def test_chains_follow_others():
    """From the state that these had when all began anew, each by its own random numbers."""
    chains, _ = run_toy(toy(), **LENGTH, **asking(1, [0], leaders=[0, 0, 0]))
    assert [chain.draws.stats["lp"].tolist() for chain in chains] == [[0.0] * 7] * 3
    assert [chain.warmup.stats["lp"].tolist() for chain in chains] == [[each] * 4 for each in range(3)]
    alone, _ = run_toy(toy(), **LENGTH, **asking(1, [0]))
    assert [chain.gathered for chain in (*chains, *alone)] == [7] * 3 + [0] * 3
    for chain, other in zip(chains, alone, strict=True):
        np.testing.assert_array_equal(chain.draws.values["v"], other.draws.values["v"])


def test_whom_chains_followed_is_known_afterwards():
    """In the last round each goes on by itself."""
    said = iter([("more", True, [0, 0, 2]), ("more", True, []), ("", False, [])])
    chains, _ = run_toy(toy(), **LENGTH, extend=5, too_short=lambda *_: next(said))
    assert [chain.draws.stats["lp"][0] for chain in chains] == [0.0, 0.0, 2.0]
    assert [(chain.gathered, chain.discarded) for chain in chains] == [(7, 21)] * 3


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
    chains = moments(**asking(1))
    assert_same(chains, moments(draws=14))
    assert [chain.draws.added for chain in chains] == [14] * 3
    for chain, other in zip(chains, moments(draws=14), strict=True):
        for name, array in chain.draws.state().items():
            np.testing.assert_array_equal(array, other.draws.state()[name])


@pytest.mark.parametrize(("rounds", "anew"), [(1, [0]), (2, [1]), (3, [0]), (3, [0, 1]), (4, [2])])
def test_moments_after_what_was_left_out(rounds, anew):
    discarded, kept = lengths(rounds, anew)
    first, last = 4 + 7 * discarded + 1, 4 + 7 * (discarded + kept)
    for chain in moments(**asking(rounds, anew)):
        assert chain.draws.stats["sweep"].tolist() == list(range(first, last + 1))
        assert chain.draws.added == last + 1 - first
        found = chain.draws.state()
        assert not any(name.startswith("before") for name in found) or rounds - 1 in anew
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
@pytest.mark.parametrize("new", range(14))
def test_a_stop_soon_after_they_began_anew_goes_back(new, keep):
    """New draws take places of those of before, of which half are there until half are new."""
    calls = iter(range(11 + new))

    def stops(step):
        return next(calls, None) is None

    how = LENGTH | {"keep_warmup": False} | asking(1, [0]) | {"on_step": stops}
    chains = run_toy(toy(), n_chains=1, **how)[0] if keep == "draws" else moments(n_chains=1, **how)
    (chain,) = chains
    every = 1 if keep == "moments" else 2
    made = len(range(0, new + 1, every))  # the step that ends it is made
    expected = range(12, 13 + new, every) if made >= 4 else range(5 + made, 12)
    assert chain.draws.stats["sweep"].tolist() == list(expected)
    assert (chain.kept, chain.discarded, len(chain.lengthened)) == ((2, 7, 1) if made >= 4 else (1, 0, 0))
    if keep == "moments":
        assert chain.draws.state()["mean/v"][0, 0] == pytest.approx(np.mean(expected) if made >= 4 else 8.0)
    else:
        assert sweeps_of(chain.draws) == list(expected)


@pytest.mark.parametrize("keep", ["draws", "moments"])
def test_a_stop_after_draws_were_kept_goes_back_to_nothing_older(keep):
    """As many as were left out, or more, may be there of long ago."""
    calls = iter(range(4 + 28 + 14 + 1))
    how = LENGTH | {"keep_warmup": False} | asking(4, [2]) | {"on_step": lambda step: next(calls, None) is None}
    (chain,) = run_toy(toy(), n_chains=1, **how)[0] if keep == "draws" else moments(n_chains=1, **how)
    assert (chain.discarded, chain.kept) == (28, 4)
    every = 1 if keep == "moments" else 4
    assert chain.draws.stats["sweep"].tolist() == list(range(33, 33 + 14 + 2 * (every == 1), every))


def test_a_stop_while_going_on_keeps_what_there_is():
    calls = iter(range(2 * 11 + 4))

    def stops(step):
        return next(calls, None) is None

    chains, early = run_toy(toy(), n_chains=2, **LENGTH, **asking(1) | {"on_step": stops})
    assert early == "stopped by on_step"
    longer, _ = run_toy(toy(), n_chains=2, **LENGTH | {"draws": 14, "thin": 2})
    for chain, other in zip(chains, longer, strict=True):
        drawn = chain.draws.filled
        assert 4 <= drawn < 7
        np.testing.assert_array_equal(chain.draws.values["v"], other.draws.values["v"][:drawn])


# -- from a checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anew", [[0], [1], [0, 1], []], ids=str)
@pytest.mark.parametrize("total", range(1, 3 * 32, 7))
def test_killed_in_any_sweep_of_any_chain(folder, all_the_time, total, anew):  # noqa: F811
    sweeps = 4 + 7 * sum(lengths(2, anew))
    check_killed(folder, total, 3 * sweeps, **LENGTH | {"thin": 2} | asking(2, anew))


@pytest.mark.parametrize("leaders", [[0, 0, 0], [2, 2, 2], [1, 1, 2]])
@pytest.mark.parametrize("total", range(3 * 11 - 1, 3 * 39, 8))
def test_killed_in_any_sweep_of_chains_that_follow(folder, all_the_time, total, leaders):  # noqa: F811
    check_killed(folder, total, 3 * (4 + 35), **LENGTH | {"thin": 2} | asking(2, [0, 1], leaders))


@pytest.mark.parametrize("leader", range(3))
@pytest.mark.parametrize("followed", range(2))
def test_killed_while_they_follow(folder, all_the_time, monkeypatch, followed, leader):  # noqa: F811
    """Those that had followed are saved, and the state that the others are to take is there."""
    how, calls, follow = LENGTH | asking(1, [0], [leader] * 3), iter(range(followed)), driver._Chain.follow

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
    how, run = LENGTH | asking(1, [0], [0] * 3), Jobs.run

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
    how = LENGTH | {"thin": 2} | asking(2, [0, 1], leaders)

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
    how = asking(1, [0])
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


@pytest.mark.parametrize("extend", [2, 3, 16])
@pytest.mark.parametrize("anew", [range(9), [0, 2, 4, 5, 6], [3], []], ids=str)
def test_a_checkpoint_holds_no_more_draws_than_room_was_asked_for(folder, all_the_time, anew, extend):  # noqa: F811
    how = LENGTH | {"draws": 16, "keep_warmup": False} | asking(9, anew) | {"extend": extend}
    run_saved(toy(), folder, n_chains=1, **how)
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    written = sum(len(rows["draws"]["stats/lp"]) for rows in opened.part(0).load().rows(Any))
    opened.close()
    assert 16 < written <= 16 * sample_run(**how).written_times


def test_after_the_end_the_same_call_makes_no_sweeps_and_more_draws_those_that_are_missing(folder):  # noqa: F811
    first, _ = run_saved(toy(), folder, **LENGTH, **asking(1))
    again, _ = run_saved(toy(lambda chain, sweep: pytest.fail("a sweep")), folder, **LENGTH, **asking(1))
    assert_same(again, first)
    more, _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(1))
    expected, _ = run_toy(toy(), **LENGTH | {"draws": 9}, **asking(1))
    assert_same(more, expected)
    with pytest.raises(InputError, match="draws: got 8; expected at least the 9 that the checkpoint holds"):
        run_saved(toy(), folder, **LENGTH | {"draws": 8}, **asking(1))


def test_more_draws_of_chains_that_began_anew(folder):  # noqa: F811
    """What was left out stays so, and what was kept is kept."""
    run_saved(toy(), folder, **LENGTH, **asking(1, [0]))
    (chain, *_), _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(1, [0]))
    assert sweeps_of(chain.draws) == list(range(12, 30, 2))
    assert (chain.discarded, chain.kept) == (7, 2)
    (chain, *_), _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(2, [0]))
    assert sweeps_of(chain.draws) == list(range(12, 48, 4))
    (chain, *_), _ = run_saved(toy(), folder, **LENGTH | {"draws": 9}, **asking(3, [0, 2]))
    assert sweeps_of(chain.draws) == list(range(48, 66, 2))
    assert [each[:2] for each in chain.rounds] == [(7, 2), (7, 4), (43, 2)]
    with pytest.raises(InputError, match="draws: got 8; expected at least the 9 that the checkpoint holds"):
        run_saved(toy(), folder, **LENGTH | {"draws": 8}, **asking(3))


@pytest.mark.parametrize("leaders", [[], [0, 0, 2], [2, 2, 2]])
@pytest.mark.parametrize("draws", [7, 9, 30])
@pytest.mark.parametrize("more", range(1, 28, 4))
def test_more_draws_of_chains_that_are_not_level(folder, all_the_time, draws, leaders, more):  # noqa: F811
    """Those that had not begun anew yet do so where the others did."""
    with pytest.raises(Killed):
        run_saved(toy(die_after(3 * 11 + more)), folder, **LENGTH, **asking(1, [0], leaders))
    chains, early = run_saved(toy(), folder, **LENGTH | {"draws": draws}, **asking(1, [0], leaders))
    assert not early
    assert [sweeps_of(chain.draws) for chain in chains] == [list(range(12, 12 + 2 * draws, 2))] * 3
    assert [chain.draws.stats["lp"][0] for chain in chains] == (leaders or [0, 1, 2])


def test_a_chain_that_others_have_left_behind(folder, all_the_time):  # noqa: F811
    with pytest.raises(Killed):
        run_saved(toy(die_after(3 * 11 + 20)), folder, **LENGTH, **asking(1, [0]))
    (folder / "1.state").unlink()
    with pytest.raises(InputError, match="checkpoint: got chain 1 after 0 sweeps, and others that have gone on"):
        run_saved(toy(), folder, **LENGTH, **asking(1, [0]))


def uneven(folder):  # noqa: F811
    """A checkpoint whose first chain was on its way to twice the sweeps when it was killed; no other had begun to."""
    with pytest.raises(Killed):
        run_saved(toy(die_after(3 * 11 + 3)), folder, **LENGTH, **asking(1))
    return run_toy(toy(), **LENGTH, **asking(1))[0]


def test_a_checkpoint_that_has_gone_further_than_the_next_call_may(folder, all_the_time):  # noqa: F811
    expected = uneven(folder)
    with pytest.raises(InputError, match="draws: got 6; expected as many as when the chains went on, of which 7 were"):
        run_saved(toy(), folder, **LENGTH | {"draws": 6})
    assert_same(run_saved(toy(), folder, **LENGTH)[0], expected)


def test_statistics_beside_moments_take_as_much_room_as_before(folder, all_the_time):  # noqa: F811
    moments(checkpoint=folder, **asking(1))
    with pytest.raises(InputError, match="extend: got 1; expected at least the 2 that the checkpoint has gone on to"):
        moments(checkpoint=folder)
    assert_same(moments(checkpoint=folder, **asking(1)), moments(draws=14))


@pytest.mark.parametrize("anew", [[], [0]], ids=str)
@pytest.mark.parametrize("made", range(1, 20, 6))
def test_statistics_of_a_round_that_was_begun_have_room(folder, all_the_time, made, anew):  # noqa: F811
    """Some are there, and as many as the round has are to come."""
    how = asking(1, anew)
    with pytest.raises(Killed):
        moments(checkpoint=folder, engine=toy(die_after(3 * 11 + made)), **how)
    with pytest.raises(InputError, match="extend: got 1; expected at least the 2 that the checkpoint has gone on to"):
        moments(checkpoint=folder)
    assert_same(moments(checkpoint=folder, **how), moments(**how))


@pytest.mark.parametrize("at", range(14))
def test_a_stop_of_chains_that_are_not_level(folder, all_the_time, at):  # noqa: F811
    """While no draws are left out all that is returned is thinned alike, whichever block it was."""
    expected, calls = uneven(folder), iter(range(at))
    chains, early = run_saved(
        toy(), folder, **LENGTH, **asking(1) | {"on_step": lambda step: next(calls, None) is None}
    )
    assert early == "stopped by on_step"
    assert {chain.kept for chain in chains} == {2}
    for chain in chains:
        drawn, whole = chain.draws.values["v"], expected[chain.number].draws.values["v"]
        assert len(drawn) >= 4
        np.testing.assert_array_equal(drawn, whole[: len(drawn)])


@pytest.mark.parametrize(
    ("lengthened", "rounds", "message"),
    [
        ([5], [(0, 2, [0])], r"went on after \[5\] draws, and rows of fewer"),
        ([5], [(7, 2, [0])], r"went on after \[5\] draws, and rows of fewer"),
        ([1] * 100, [(0, 2 ** (n + 1), [0]) for n in range(100)], r"kept \(0, 9223372036854775808\) sweeps after"),
        ([5], [(2**63, 2, [0])], r"kept \(9223372036854775808, 2\) sweeps after"),
        ([], [(7, 2, [0])], "went on 0 or 1 or 1 or 1 times"),
        ([5], [(7, 0, [0])], r"kept \(7, 0\) sweeps after \(0, 1\)"),
        ([5], [(0, 3, [0])], r"kept \(0, 3\) sweeps after \(0, 1\)"),
        ([5], [(-1, 2, [0])], r"kept \(-1, 2\) sweeps after \(0, 1\)"),
        ([5], [(7, 2, [])], r"1 chains that followed \[\]"),
        ([5], [(7, 2, [1])], r"1 chains that followed \[1\]"),
        ([5], [(7, 2, [0, 0])], r"1 chains that followed \[0, 0\]"),
    ],
)
def test_chains_that_were_made_up(folder, lengthened, rounds, message):  # noqa: F811
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    tree = {"sweeps": 2, "filled": {"warmup": 0, "draws": 0}, "traces": {"warmup": {}, "draws": {}}}
    state = {"chain": 0, "sweep": 2, "u": 0.5}
    of_rounds = {name: [each[place] for each in rounds] for place, name in enumerate(ChainRound._fields)}
    assert opened.part(0).save({**tree, "lengthened": lengthened, **of_rounds, "state": state}, {})
    opened.close()
    with pytest.raises(InputError, match=rf"^checkpoint: got 0.state in .*damaged: .*{message}"):
        run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(1))


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
        chains, _ = run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(1))
    monkeypatch.undo()
    expected, _ = run_toy(toy(), n_chains=1, **LENGTH, **asking(1))
    assert_same(chains, expected)
    again, _ = run_saved(toy(), folder, n_chains=1, **LENGTH, **asking(1))
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
    ("for_ess", "anew", "said"),
    [(4, [], [0, 0, 1]), (2, [], [0, 1, 1]), (4, [1], [0, 0, 0]), (4, [2], [0, 0, 1]), (2, [0], [0, 1, 1])],
)
def test_whether_there_are_as_many_draws_as_are_made_for_their_number(for_ess, anew, said):
    """Of those that are kept."""
    asked = []
    going = asking(3, anew)["too_short"]

    def too_short(traces, is_full):
        asked.append(int(is_full))
        return going(traces, is_full)

    chains, _ = run_toy(toy(), **LENGTH, extend=9, extend_for_ess=for_ess, too_short=too_short)
    assert asked[:3] == said
    assert {len(chain.rounds) for chain in chains} == {3}


def test_draws_that_can_not_double_any_more_are_as_many_as_are_made():
    """A round that leaves them out may still have room."""
    asked, going = [], asking(64, [0])["too_short"]

    def too_short(traces, is_full):
        asked.append((traces.chains[0].discarded // 7, traces.chains[0].kept, is_full))
        return going(traces, is_full)

    run_toy(toy(), **LENGTH, extend=16, extend_for_ess=16, too_short=too_short)
    assert asked == [(0, 1, False), (1, 2, False), (1, 4, False), (1, 8, True)]


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
