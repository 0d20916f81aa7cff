"""Checkpoints: whole or absent whatever happens, and exact when chains and restarts go on from them."""

from __future__ import annotations

import errno
import io
import os
import shutil
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime.checkpoint import RunFiles, open_checkpoint
from nmf_zoo.runtime.driver import run_chains
from nmf_zoo.runtime.run_fingerprint import differences
from nmf_zoo.runtime.state_io import write_tree
from nmf_zoo.runtime.state_patterns import ArrayPattern
from tests.unit.test_driver import KEY, interrupt_at, run_fit, sample_run, sweeps_of, toy, toy_fit

RUN_ID = "0123"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run.checkpoint"


@pytest.fixture
def all_the_time(monkeypatch):
    """Save after every step."""
    monkeypatch.setattr(files, "EVERY", 0.0)
    monkeypatch.setattr(files, "SHARE", np.inf)


# -- one part ------------------------------------------------------------------------------------------------------


def saves(folder, n):
    """Save n times; the state counts, and each save adds two rows."""
    part = RunFiles(folder, RUN_ID, 0)
    saved = part.load()
    first = 0 if saved is None else saved.tree["i"] + 1
    for i in range(first, n):
        assert part.save({"i": i, "state": np.full(4, i)}, {"x": np.array([2 * i, 2 * i + 1])})


def check(folder, n):
    """n saves, or one fewer, are there; and nothing else."""
    saved = RunFiles(folder, RUN_ID, 0).load()
    i = -1 if saved is None else saved.tree["i"]
    assert i in (n - 1, n - 2), (i, n)
    if saved is not None:
        np.testing.assert_array_equal(saved.tree["state"], np.full(4, i))
        assert [x for rows in saved.rows(Any) for x in rows["x"]] == list(range(2 * i + 2))


class Killed(BaseException):
    """The process died here."""


def die_at(monkeypatch, count):
    """From the ``count``-th step of writing on, nothing happens any more; half of that step's bytes may be written."""
    calls = iter(range(10**6))

    def dying(act, half):
        def step(*args):
            if next(calls) >= count:
                half(*args)
                raise Killed
            return act(*args)

        return step

    def nothing(*args):
        pass

    def write_half(file, data):
        file.write(data[: len(data) // 2])
        file.flush()

    def write(file, data):
        file.write(data)

    def write_in_pieces(file, *tree):
        whole = io.BytesIO()
        checksum = write_tree(whole, *tree)
        for start in range(0, len(whole.getvalue()), 40):
            dying(write, write_half)(file, whole.getvalue()[start : start + 40])
        return checksum

    monkeypatch.setattr(files, "write_tree", write_in_pieces)
    monkeypatch.setattr(files.os, "fsync", dying(os.fsync, nothing))
    monkeypatch.setattr(files.os, "replace", dying(os.replace, nothing))
    return calls


def test_death_at_any_step_of_a_save_leaves_the_last_one(tmp_path, monkeypatch):
    saves(tmp_path, 2)
    count, died = 0, True
    while died:
        folder = tmp_path / f"died at {count}"
        folder.mkdir()
        for name in ("0.rows", "0.state"):
            shutil.copy(tmp_path / name, folder)
        with monkeypatch.context() as patch:
            die_at(patch, count)
            try:
                saves(folder, 3)
                died = False
            except Killed:
                count += 1
        check(folder, 3)
        saves(folder, 5)  # and it goes on
        check(folder, 5)
    assert count >= 10


def test_death_before_the_first_save(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        die_at(patch, 3)
        with pytest.raises(Killed):
            saves(tmp_path, 1)
    assert RunFiles(tmp_path, RUN_ID, 0).load() is None
    saves(tmp_path, 2)
    check(tmp_path, 2)


def test_a_full_disk_is_a_warning_and_the_next_save_works(tmp_path, monkeypatch):
    saves(tmp_path, 2)
    part = RunFiles(tmp_path, RUN_ID, 0)
    part.load()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.warns(NmfZooWarning, match="could not be saved .No space left: .*; the run goes on without"):
            assert not part.save({"i": 2}, {"x": np.arange(4, 6)})
    check(tmp_path, 2)
    assert part.save({"i": 2, "state": np.full(4, 2)}, {"x": np.arange(4, 6)})
    check(tmp_path, 3)


@pytest.mark.parametrize("name", ["0.rows", "0.state"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_noticed(tmp_path, name, damage):
    saves(tmp_path, 3)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    if damage == "remove":
        path.unlink()
    if (name, damage) == ("0.state", "remove"):
        assert RunFiles(tmp_path, RUN_ID, 0).load() is None  # never saved: it begins anew
        return
    with pytest.raises(InputError, match=rf"{name} in .*, (damaged|which can't be read)"):
        list(RunFiles(tmp_path, RUN_ID, 0).load().rows(Any))


def test_saving_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """On a clock of our own: a save takes 3 seconds, so the next is due after 300."""
    now = 0.0

    @contextmanager
    def slow(path, name):
        nonlocal now
        now += 3.0
        yield tmp_path / "elsewhere"

    monkeypatch.setattr(files.time, "monotonic", lambda: now)
    monkeypatch.setattr(files, "replacing", slow)
    part = RunFiles(tmp_path, RUN_ID, 0)
    assert not part.is_due()
    now = 5.0
    assert part.is_due()
    part.save({}, {})
    now += 299.0
    assert not part.is_due()
    now += 1.0
    assert part.is_due()


# -- the folder ----------------------------------------------------------------------------------------------------


def test_a_run_without_a_seed_keeps_its_first_one(folder):
    open_checkpoint(folder, {"tune": "5"}, 11, is_seeded=False).close()
    again = open_checkpoint(folder, {"tune": "5"}, 22, is_seeded=False)
    assert again.entropy == 11
    again.close()
    with pytest.raises(InputError, match="random_seed was 11, now 22"):
        open_checkpoint(folder, {"tune": "5"}, 22, is_seeded=True)


def test_the_run_id_is_that_of_the_run(folder, tmp_path):
    def run_id(path, facts, entropy):
        opened = open_checkpoint(path, facts, entropy, is_seeded=False)
        opened.close()
        return opened.run_id

    first = run_id(folder, {"tune": "5"}, 1)
    assert run_id(folder, {"tune": "5"}, 2) == first
    assert run_id(tmp_path / "b", {"tune": "6"}, 1) != first
    assert run_id(tmp_path / "c", {"tune": "5"}, 2) != first


def test_two_runs_at_once(folder):
    pytest.importorskip("fcntl")
    first = open_checkpoint(folder, {}, 1, is_seeded=True)
    with pytest.raises(InputError, match="in use by another run"):
        open_checkpoint(folder, {}, 1, is_seeded=True)
    first.close()
    open_checkpoint(folder, {}, 1, is_seeded=True).close()


def test_death_while_the_folder_is_made(folder):
    folder.mkdir()
    (folder / "lock").touch()
    (folder / ".run.1-0.partial.json").write_text('{"entr')
    opened = open_checkpoint(folder, {}, 3, is_seeded=True)
    assert opened.entropy == 3
    opened.close()


def bad_paths(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "'.*file', a file; expected a folder"),
        ("other", "a folder with other files"),
        ("broken", "run.json in .* damaged"),
        ("missing/run", "in a folder that does not exist"),
    ],
)
def test_bad_paths(tmp_path, name, message):
    bad_paths(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=message):
        open_checkpoint(tmp_path / name, {}, 1, is_seeded=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"a folder that can be written to \(Permission denied\)"):
        open_checkpoint(folder, {}, 1, is_seeded=True)


def test_differences_are_named():
    digest = "float64 (3, 4) 0123456789abcdef"
    stored = {"tune": "5", "data": digest, "gone": "1", "model": digest}
    now = {"tune": "6", "data": digest.replace("0", "f"), "model": "None", "new": "2"}
    assert differences(stored, now) == [
        "tune was 5, now 6",
        "data has other cells",
        "gone was 1, now absent",
        f"model was {digest}, now None",
        "new was absent, now 2",
    ]


# -- through the driver --------------------------------------------------------------------------------------------


def run_saved(engine, folder, n_chains=3, **options):
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    try:
        starts = [{"chain": chain} for chain in range(n_chains)]
        return run_chains(engine, None, None, sample_run(**options), KEY, starts, checkpoint=opened)
    finally:
        opened.close()


def as_arrays(chains):
    return [trace.values | trace.stats for chain in chains for trace in (chain.warmup, chain.draws)]


def assert_same(left, right):
    for one, other in zip(as_arrays(left), as_arrays(right), strict=True):
        assert list(one) == list(other)
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


def die_after(total):
    """The process dies in the ``total``-th sweep."""
    sweeps = iter(range(total))

    def on_sweep(chain, sweep):
        if next(sweeps, None) is None:
            raise Killed

    return on_sweep


OPTIONS = {"draws": 7, "tune": 4, "thin": 2, "keep_warmup": True}


def check_killed(folder, total, sweeps, **options):
    """A run of three chains, killed in one of its ``sweeps``, goes on as if it had not been."""
    expected, _ = run_chains(toy(), None, None, sample_run(**options), KEY, [{"chain": chain} for chain in range(3)])
    with pytest.raises(Killed):
        run_saved(toy(die_after(total)), folder, **options)
    seen = []
    chains, stopped = run_saved(toy(lambda chain, sweep: seen.append(sweep)), folder, **options)
    assert not stopped
    assert_same(chains, expected)
    assert len(seen) == sweeps - total  # no sweep twice


@pytest.mark.parametrize("total", range(1, 33, 3))
def test_killed_in_any_sweep_of_any_chain(folder, all_the_time, total):
    check_killed(folder, total, 33, **OPTIONS)


def test_a_finished_run_makes_no_sweeps(folder):
    first, _ = run_saved(toy(), folder, **OPTIONS)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again, _ = run_saved(toy(lambda chain, sweep: pytest.fail("a sweep")), folder, **OPTIONS)
    assert_same(again, first)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "lock"} == {
        name: time for name, time in before.items() if name != "lock"
    }


def test_more_draws_go_on_from_the_end(folder):
    run_saved(toy(), folder, **OPTIONS)
    more = OPTIONS | {"draws": 12}
    expected, _ = run_chains(toy(), None, None, sample_run(**more), KEY, [{"chain": chain} for chain in range(3)])
    seen = []
    chains, _ = run_saved(toy(lambda chain, sweep: seen.append(sweep)), folder, **more)
    assert_same(chains, expected)
    assert sorted(set(seen)) == [11, 12, 13, 14, 15]


def test_fewer_draws_than_there_are(folder):
    run_saved(toy(), folder, **OPTIONS)
    with pytest.raises(InputError, match="draws: got 3; expected at least the 7 that the checkpoint holds"):
        run_saved(toy(), folder, **OPTIONS | {"draws": 3})


def test_ctrl_c_saves_and_the_next_call_goes_on(folder):
    """Saved at the interruption, whatever the clock says."""
    chains, stopped = run_saved(toy(interrupt_at(0, 6)), folder, n_chains=1)
    assert stopped
    assert sweeps_of(chains[0].draws) == [5, 6, 7]
    seen = []
    chains, stopped = run_saved(toy(lambda chain, sweep: seen.append(sweep)), folder, n_chains=1)
    assert not stopped
    assert sweeps_of(chains[0].draws) == [5, 6, 7, 8, 9, 10]
    assert seen == [7, 8, 9]


def test_a_full_disk_costs_no_draws(folder, all_the_time, monkeypatch):
    expected, _ = run_chains(toy(), None, None, sample_run(**OPTIONS), KEY, [{"chain": 0}])
    saved = iter(range(100))

    def sometimes_full(file):
        if next(saved) % 3 == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sometimes_full)
    next(saved), next(saved)  # run.json is written
    with pytest.warns(NmfZooWarning, match="the run goes on without"):
        chains, _ = run_saved(toy(), folder, n_chains=1, **OPTIONS)
    assert_same(chains, expected)
    monkeypatch.undo()
    chains, _ = run_saved(toy(), folder, n_chains=1, **OPTIONS)
    assert_same(chains, expected)


def run_fit_saved(engine, folder, n=2, **options):
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    try:
        return run_fit(engine, n, checkpoint=opened, **options)[0]
    finally:
        opened.close()


def test_fits_go_on_and_end_alike(folder, all_the_time):
    for n, last in ((5, "all_iterations"), (9, "all_iterations")):
        solutions = run_fit_saved(toy_fit([3.0, 1.0]), folder, max_iter=n)
        assert [len(solution.objective) for solution in solutions] == [n, n]
        assert {solution.status for solution in solutions} == {last}
        assert [solution.residual for solution in solutions] == [0.5**n] * 2
    seen = []
    run_fit_saved(toy_fit([3.0, 1.0], on_sweep=lambda r, i: seen.append(i)), folder, max_iter=11)
    assert sorted(seen) == [9, 9, 10, 10]
    with pytest.raises(InputError, match="max_iter: got 8; expected at least the 11"):
        run_fit_saved(toy_fit([3.0, 1.0]), folder, max_iter=8)


def test_a_converged_fit_stays_as_it_is(folder):
    first = run_fit_saved(toy_fit([1.0]), folder, n=1, tol=0.1)
    again = run_fit_saved(toy_fit([1.0], on_sweep=lambda r, i: pytest.fail("a step")), folder, n=1, tol=0.1)
    assert (again[0].status, again[0].objective) == ("converged", first[0].objective)


# -- files of others ---------------------------------------------------------------------------------------------------


def three_saves(folder, run_id=RUN_ID, names=(0, 1), offset=0.0):
    """Parts of a run, three times saved; and what the files of part 0 held after each save."""
    folder.mkdir(exist_ok=True)
    history = []
    for name in names:
        part = RunFiles(folder, run_id, name)
        for i in range(3):
            part.save({"i": i}, {"x": np.full(4, 10.0 * name + i + offset)})
            if name == 0:
                history.append({kind: (folder / f"0.{kind}").read_bytes() for kind in ("state", "rows")})
    return history


def read_all(folder, run_id=RUN_ID):
    return [rows["x"] for rows in RunFiles(folder, run_id, 0).load({"i": int}).rows({"x": ArrayPattern("f", (4,))})]


OTHERS = {
    "state of another chain": ("0.state", "1.state", "0.state in .*, another's: of part '1', not '0'; expected what"),
    "rows of another chain": ("0.rows", "1.rows", "0.rows in .*, another's: of part '1', not '0'"),
    "rows for a state": ("0.state", "0.rows", "0.state in .*, another's: of kind 'rows', not 'state'"),
    "a state for rows": ("0.rows", "0.state", "0.rows in .*, another's: of kind 'state', not 'rows'"),
    "state of another run": ("0.state", "../other/0.state", "0.state in .*, another's: of run 'ffff', not '0123'"),
    "rows of another run": ("0.rows", "../other/0.rows", "0.rows in .*, another's: of run 'ffff', not '0123'"),
    "rows of another session": ("0.rows", "../again/0.rows", "0.rows in .*, of another save than 0.state"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_are_refused(tmp_path, name):
    place, source, message = OTHERS[name]
    folder = tmp_path / "own"
    three_saves(folder)
    three_saves(tmp_path / "other", run_id="ffff")
    three_saves(tmp_path / "again", offset=0.5)
    assert len(read_all(folder)) == 3
    shutil.copy(folder / source, folder / place)
    with pytest.raises(InputError, match=message) as refusal:
        read_all(folder)
    assert "\n" not in str(refusal.value)


def test_rows_and_state_of_different_saves(tmp_path):
    history = three_saves(tmp_path)
    (tmp_path / "0.rows").write_bytes(history[1]["rows"])  # those of before
    with pytest.raises(InputError, match=r"0.rows in .*, damaged: cut short"):
        read_all(tmp_path)
    (tmp_path / "0.rows").write_bytes(history[2]["rows"])
    (tmp_path / "0.state").write_bytes(history[1]["state"])  # as a kill between the two leaves them
    assert len(read_all(tmp_path)) == 2


@pytest.mark.parametrize("name", ["0.state", "0.rows"])
@pytest.mark.parametrize("kind", ["folder", "loop", "dangling"])
def test_what_is_no_file(tmp_path, name, kind):
    three_saves(tmp_path)
    (tmp_path / name).unlink()
    if kind == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to(name if kind == "loop" else "nowhere")
    with pytest.raises(InputError, match=rf"{name} in .*, which can't be read \(.*\); expected .*; give another path"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        "[" * 10**5,
        '{"format": 10}',
        '{"format": 10, "entropy": {"a": 1}, "facts": {}}',
        '{"format": 10, "entropy": [], "facts": {}}',
        '{"format": 10, "entropy": -1, "facts": {}}',
        '{"format": 10, "entropy": true, "facts": {}}',
        '{"format": 10, "entropy": 1, "facts": {"tune": 5}}',
        '{"format": 10, "entropy": 1, "facts": [["tune", "5"]]}',
        '{"format": 10, "entropy": 1' + "0" * 5000 + "}",
    ],
)
def test_run_json_that_was_made_up(folder, text):
    folder.mkdir()
    (folder / "run.json").write_text(text)
    expected = "another version of nmf_zoo wrote" if text in ("[]", "5") else "run.json in .*, damaged"
    with pytest.raises(InputError, match=expected):
        open_checkpoint(folder, {}, 1, is_seeded=True)


def test_a_checkpoint_of_the_format_before(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"format": 9, "entropy": 1, "facts": {"random_seed": "1"}}')
    with pytest.raises(InputError, match=r"which another version of nmf_zoo wrote; expected one of format 10; use"):
        open_checkpoint(folder, {}, 1, is_seeded=True)


@pytest.mark.parametrize("kind", ["loop", "run.json", "lock"])
def test_folders_in_the_place_of_files(folder, kind):
    if kind == "loop":
        folder.symlink_to(folder)
    else:
        (folder / kind).mkdir(parents=True)
    with pytest.raises(InputError, match=r"^checkpoint: got "):
        open_checkpoint(folder, {}, 1, is_seeded=True)


CHAIN = {"sweeps": 6, "filled": {"warmup": 2, "draws": 1}, "traces": {"warmup": {}, "draws": {}}}
CHAIN |= {"lengthened": [], "discarded": [], "kept": [], "leaders": []}
STATE = {"chain": 0, "sweep": 6, "u": 0.5}


def kept(n, **changed):
    return {"values/v": np.ones((n, 2)), "values/w": np.ones((n, 2)), "stats/lp": np.ones(n), **changed}


MADE_UP = {
    "keys": ({**CHAIN, "state": STATE, "more": 1}, {}, "the state.tree is"),
    "no dict": ([1], {}, "the state.tree is list"),
    "sweeps": ({**CHAIN, "sweeps": "6", "state": STATE}, {}, "the state.tree.sweeps is str '6', not int"),
    "a state of other keys": ({**CHAIN, "state": {"chain": 0}}, {}, r"the state.tree.state is \['chain'\]"),
    "a state of other types": ({**CHAIN, "state": {**STATE, "u": np.ones(3)}}, {}, r"state.u is float64 \(3,\), not"),
    "no rows": ({**CHAIN, "state": STATE}, {}, "rows of 0 draws, and a state after 2"),
    "other parts": ({**CHAIN, "state": STATE}, {"x": kept(1)}, "rows of 'x'"),
    "too many": ({**CHAIN, "state": STATE}, {"warmup": kept(9)}, "9 draws after 0 of"),
    "lengths": (
        {**CHAIN, "state": STATE},
        {"warmup": kept(2, **{"stats/lp": np.ones(1)})},
        r"rows.values.v is float64",
    ),
    "shapes": (
        {**CHAIN, "state": STATE},
        {"warmup": kept(2, **{"values/v": np.ones((2, 5))})},
        r"\(2, 5\), not float64",
    ),
    "dtypes": (
        {**CHAIN, "state": STATE},
        {"warmup": kept(2, **{"values/v": np.ones((2, 2), int)})},
        "rows.values.v is in",
    ),
    "names": ({**CHAIN, "state": STATE}, {"warmup": kept(2, **{"values/x": np.ones((2, 2))})}, r"rows.values is \['v'"),
    "kinds": (
        {**CHAIN, "state": STATE},
        {"warmup": kept(2, **{"other/x": np.ones(2)})},
        r"rows is \['values', 'stats', 'o",
    ),
    "no arrays": ({**CHAIN, "state": STATE}, {"warmup": {"values/v": 5}}, "a row.warmup.values/v is int"),
    "traces": ({**CHAIN, "traces": [], "state": STATE}, {}, "the state.tree.traces is list"),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_chains_that_were_made_up(folder, name):
    """Files of the right owner, with right checksums, whose content is of no chain."""
    tree, rows, message = MADE_UP[name]
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    assert opened.part(0).save(tree, rows)
    opened.close()
    with pytest.raises(InputError, match=rf"^checkpoint: got 0.state in .*damaged: .*{message}|0.rows in .*{message}"):
        run_saved(toy(), folder, n_chains=1, **OPTIONS)


@pytest.mark.parametrize(
    ("tree", "rows", "message"),
    [
        ({"state": {"level": 1.0}}, {}, r"the state.tree is \['state'\], not \['state', 'residual'\]"),
        ({"state": 5, "residual": 1.0}, {}, "the state.tree.state is int 5"),
        (None, {"objective": np.ones((2, 2))}, r"a row.objective is float64 \(2, 2\)"),
        (None, {"objective": [1.0]}, "a row.objective is list"),
        (None, {"other": np.ones(2)}, r"a row is \['other'\]"),
    ],
)
def test_fits_that_were_made_up(folder, tree, rows, message):
    opened = open_checkpoint(folder, {}, 1, is_seeded=True)
    if tree is None:
        run_fit(toy_fit([1.0]), 1, checkpoint=opened, max_iter=1)
        tree = opened.part(0).load().tree
    assert opened.part(0).save(tree, rows)
    opened.close()
    with pytest.raises(InputError, match=rf"^checkpoint: got 0.* in .*damaged: {message}"):
        run_fit_saved(toy_fit([1.0]), folder, n=1, max_iter=5)
