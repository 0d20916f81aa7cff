"""``checkpoint=`` of the two verbs: what goes on, what is refused, what is said."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.interfaces.cli import main
from nmf_zoo.results import checkpoints
from nmf_zoo.runtime import arguments, blocks, compile_times, run_one
from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.state_io import HEAD, write_tree

X = np.random.default_rng(1).poisson(3.0, (12, 15)).astype(float)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run.checkpoint"


def model(x=X, **options):
    return nz.gamma_nmf(x, **{"rank": 2, "alpha_w": 2.0, "beta_w": 1.0, "alpha_h": 2.0, "beta_h": 1.0, **options})


def powers():
    return nz.is_nmf(X + 0.5, 2, alpha_h=2.0, alpha_w=2.0)


def sample(folder, x=X, **options):
    return nz.sample(
        **{"draws": 20, "tune": 10, "chains": 2, "start": "random", "quiet": True, "model": model(), **options},
        checkpoint=folder,
    )


def draws(idata):
    return {name: _compat.group(idata, "posterior")[name].values for name in ("W", "H")}


def test_a_call_without_a_seed_can_be_repeated(folder):
    first, again = sample(folder), sample(folder)
    run = {"tune": 10, "chains": 2, "start": "random", "quiet": True, "model": model()}
    other = nz.sample(20, random_seed=int(first.attrs["random_seed"]), **run)
    for name, array in draws(first).items():
        np.testing.assert_array_equal(draws(again)[name], array)
        np.testing.assert_array_equal(draws(other)[name], array)
    assert again.attrs["random_seed"] == first.attrs["random_seed"]
    assert again.attrs["status"] == "complete"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"tune": 11}, "tune was 10, now 11"),
        ({"thin": 2}, "thin was 1, now 2"),
        ({"chains": 3}, "chains was 2, now 3"),
        ({"random_seed": 3}, "random_seed was 2, now 3"),
        ({"engine": nz.Gibbs(moves=())}, "options.moves was "),
        ({"var_names": ["W"]}, "var_names was None"),
        ({"discard_tuned_samples": False}, "keep_warmup was False"),
        ({"model": model(X + 1)}, r"data.values has other cells;"),
        ({"model": model(sp.csr_array(X))}, r"data.values was .* \(and \d+ more\)"),
        ({"model": model(alpha_w=3.0)}, "model.W.prior.shape.value was 2.0, now 3.0"),
        ({"model": model(rank=3)}, "model.W.shape was"),
        ({"initvals": {"W": np.ones((12, 2))}}, r"initvals\[0\].W was absent"),
        ({"draws": 19}, "draws: got 19; expected at least the 20"),
        ({"engine": "nuts"}, "with nuts; expected None"),
        ({"engine": "smc"}, "with smc; expected None"),
    ],
)
def test_another_run_is_refused(folder, other, message):
    sample(folder, random_seed=2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=message) as refusal:
        sample(folder, **{"random_seed": 2, **other})
    assert "\n" not in str(refusal.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_another_version_is_refused(folder, monkeypatch):
    sample(folder, random_seed=2)
    monkeypatch.setattr("nmf_zoo.runtime.run_fingerprint.DRAWS", 10**6)
    with pytest.raises(InputError, match=r"version.nmf_zoo was .*now .*1000000"):
        sample(folder, random_seed=2)


def test_what_is_said_of_compilation_is_no_part_of_a_run(folder, monkeypatch):
    first = sample(folder)
    monkeypatch.setattr(compile_times, "compile_times", lambda: {"gibbs for poisson data": 1e6})  # measured anew
    np.testing.assert_array_equal(draws(sample(folder))["W"], draws(first)["W"])


@pytest.mark.parametrize("path", [5, True, b"run"])
def test_checkpoint_is_a_path(path):
    with pytest.raises(InputError, match="the path of a folder, or None"):
        sample(path)


def test_a_disk_without_room(folder, monkeypatch):
    monkeypatch.setattr(arguments.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"checkpoint: got .*; expected at most the 0.0 GiB free on that disk"):
        sample(folder)
    assert not folder.exists()


def test_what_is_there_has_its_room(folder, monkeypatch):
    sample(folder, random_seed=1)
    held = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(checkpoints, "STATES", 0)
    monkeypatch.setattr(arguments.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    assert held > 0
    sample(folder, random_seed=1)


def test_draws_of_powers_go_on(folder):
    """In the warm-up of the trajectories, and after it."""
    lengths = {"tune": 130, "model": powers(), "random_seed": 1}
    once = sample(None, draws=40, **lengths)
    for n_draws in (2, 17, 40):
        twice = sample(folder, draws=n_draws, **lengths)
    for name, array in draws(once).items():
        np.testing.assert_array_equal(draws(twice)[name], array)


class Killed(BaseException):
    """The process died here."""


def in_short_blocks(monkeypatch, dies_after=None):
    """Blocks of three sweeps, a save after each; the process dies in block ``dies_after``."""
    monkeypatch.setattr(files, "EVERY", 0.0)
    monkeypatch.setattr(files, "SHARE", np.inf)
    monkeypatch.setattr(run_one, "longest_block", lambda engine: 3)
    begun = iter(range(10**6))

    def dying(*args):
        if next(begun) == dies_after:
            raise Killed
        return blocks.run_block(*args)

    monkeypatch.setattr(run_one, "run_block", dying)


@pytest.mark.parametrize(("thing", "deaths"), [("moments", (1, 6, 11, 19)), ("store", (6, 19))])
def test_moments_and_stores_go_on_too(folder, tmp_path, monkeypatch, thing, deaths):
    """Killed, taken up again, and then asked for more draws. Long: two lengths, and again after each death."""
    pytest.importorskip("zarr")

    def run(name, n, path=None):
        where = {"keep": "moments"} if thing == "moments" else {"store": tmp_path / f"{name}.zarr"}
        idata = sample(path, draws=n, random_seed=3, discard_tuned_samples=False, **where)
        groups = [group for group in _compat.group_names(idata) if not group.endswith("_data")]
        return {f"{at}/{key}": value.values for at in groups for key, value in _compat.group(idata, at).items()}

    in_short_blocks(monkeypatch)
    whole, longer = run("whole", 20), run("longer", 31)
    for death in deaths:
        own = folder.with_name(f"{folder.name} {death}")
        in_short_blocks(monkeypatch, death)
        with pytest.raises(Killed):
            run(f"killed {death}", 20, own)
        in_short_blocks(monkeypatch)
        for n, expected in ((20, whole), (31, longer)):
            found = run(f"killed {death}", n, own)
            assert found.keys() == expected.keys()
            for key, array in expected.items():
                np.testing.assert_array_equal(found[key], array, err_msg=key)


@pytest.mark.parametrize("declare", [model, powers])
@pytest.mark.parametrize("engine", ["em", "vb"])
def test_fit_takes_a_checkpoint(folder, engine, declare):
    def fit(**options):
        return nz.fit(
            engine=engine,
            model=declare(),
            tol=0,
            restarts=2,
            search=None,
            draws=3,
            quiet=True,
            random_seed=1,
            **options,
        )

    once = fit(max_iter=30)
    fit(max_iter=10, checkpoint=folder)
    twice = fit(max_iter=30, checkpoint=folder)
    for name, array in draws(once).items():
        np.testing.assert_array_equal(draws(twice)[name], array)
    objective = [_compat.group(idata, "fit")["objective"].values for idata in (once, twice)]
    np.testing.assert_array_equal(*objective)


def press_control_c_during(path, chains, monkeypatch):
    """When all chains of the run that has its checkpoint at ``path`` have draws."""
    monkeypatch.setattr(files, "EVERY", 0.05)
    monkeypatch.setattr(files, "SHARE", np.inf)
    rows = [path / f"{chain}.rows" for chain in range(chains)]

    def press():
        while not all(there.exists() and there.stat().st_size for there in rows):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    return pressing


def test_ctrl_c_says_how_to_go_on(folder, monkeypatch):
    pressing = press_control_c_during(folder, 1, monkeypatch)
    stopped = sample(folder, draws=10**6, chains=1, random_seed=4, thin=1000)
    pressing.join()
    assert stopped.attrs["status"] == f"interrupted: the same call goes on from {folder}"
    opened = open_checkpoint(folder, json.loads((folder / "run.json").read_text())["facts"], 4, is_seeded=True)
    opened.close()
    done = opened.part(0).load().tree["sweeps"] - 10
    again = sample(folder, draws=done + 50, chains=1, random_seed=4, thin=1000)
    run = {"tune": 10, "chains": 1, "start": "random", "thin": 1000, "quiet": True, "model": model()}
    whole = nz.sample(done + 50, random_seed=4, **run)
    assert again.attrs["status"] == "complete"
    for name, array in draws(whole).items():
        np.testing.assert_array_equal(draws(again)[name], array)


def test_a_fit_that_did_not_converge_says_so():
    with pytest.warns(NmfZooWarning, match="the best restart did not converge: stopped at max_iter"):
        nz.fit(max_iter=2, tol=1e-12, progressbar=False, model=model(), random_seed=1)
    nz.fit(max_iter=2, tol=1e-12, quiet=True, model=model(), random_seed=1)
    nz.fit(max_iter=2, tol=0, progressbar=False, model=model(), random_seed=1)


def test_run_json_can_be_read(folder):
    sample(folder, random_seed=2)
    stored = json.loads((folder / "run.json").read_text())
    assert stored["entropy"] == 2
    assert stored["facts"]["engine"] == "'gibbs'"
    assert sorted(path.name for path in folder.iterdir()) == [
        "0.rows",
        "0.state",
        "1.rows",
        "1.state",
        "lock",
        "run.json",
    ]


# -- files that changed places --------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [["state"], ["rows"], ["state", "rows"]])
def test_a_restart_s_files_in_another_s_place(folder, kinds):
    def fit(max_iter):
        run = {"engine": "em", "tol": 0, "restarts": 2, "search": None, "random_seed": 1, "quiet": True}
        return nz.fit(max_iter=max_iter, model=model(), checkpoint=folder, **run)

    fit(10)
    for kind in kinds:
        one, other = folder / f"0.{kind}", folder / f"1.{kind}"
        content = one.read_bytes(), other.read_bytes()
        other.write_bytes(content[0])
        one.write_bytes(content[1])
    with pytest.raises(InputError, match=rf"[01].{kinds[0]} in .*, another's: of part '[01]', not '[01]'"):
        fit(20)


def search(folder):
    declare = lambda rank: model(rank=rank)  # noqa: E731
    return nz.select_rank(declare, [1, 2], restarts=2, search=None, random_seed=1, quiet=True, checkpoint=folder)


def calibrate(folder):
    def declare():
        return nz.gamma_nmf(None, rank=1, shape=(2, 3))

    run = {"simulations": 20, "draws": 9, "max_iter": 20, "random_seed": 1, "progressbar": False}
    return nz.calibrate(declare, "vb", **run, checkpoint=folder)


@pytest.mark.parametrize(
    ("run", "place", "source", "message"),
    [
        (search, "rank_2/0.state", "rank_2/1.state", "0.state in .*rank_2', another's: of part '1', not '0'"),
        (search, "rank_2/0.state", "rank_1/0.state", "0.state in .*rank_2', another's: of run '.*', not '.*'"),
        (calibrate, "3.state", "4.state", "3.state in .*, another's: of part '4', not '3'"),
    ],
)
def test_outcomes_of_other_jobs(folder, run, place, source, message):
    run(folder)
    (folder / place).write_bytes((folder / source).read_bytes())
    with pytest.raises(InputError, match=message):
        run(folder)


@pytest.mark.parametrize(
    ("run", "place", "tree", "message"),
    [
        (search, "rank_2", [[1.0, 2.0]], "the state.tree.0 is list .*, not a list of 6"),
        (search, "rank_2", [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], r"the state.tree.0\[4\] is float 5.0, not str"),
        (calibrate, "", {"names": [1], "ranks": np.zeros(1, int)}, "the state.tree.names.0 is int"),
        (calibrate, "", {"names": ["lp"], "ranks": np.zeros((2, 2), int)}, "the state.tree.ranks is int64"),
    ],
)
def test_outcomes_that_were_made_up(folder, run, place, tree, message):
    run(folder)
    with open(folder / place / "0.state", "rb") as file:
        length = HEAD.unpack(file.read(HEAD.size))[2]
        owner = json.loads(file.read(length))[0]
    with open(folder / place / "0.state", "wb") as file:
        write_tree(file, {"tree": tree, "bytes": 0, "checksum": 0}, owner)
    with pytest.raises(InputError, match=f"damaged: {message}"):
        run(folder)


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def fit_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("counts.csv", X, delimiter=",", fmt="%d")
    run = ["--chains", "2", "--tune", "10", "--random-seed", "1", "--no-progressbar", "--checkpoint", "c"]
    return ["fit", "counts.csv", "--rank", "2", *run]


@pytest.mark.parametrize("output", ["x.nc", "x.zarr"])
def test_the_same_command_again(fit_words, output, capsys):
    pytest.importorskip("zarr")
    words = [*fit_words, "-o", output, "--draws", "20", "--quiet"]
    assert main(words) == 0
    first = draws(nz.load(output))
    assert main([*words, "--force"]) == 0
    for name, array in first.items():
        np.testing.assert_array_equal(draws(nz.load(output))[name], array)
    assert main([*words, "--force", "--thin", "3"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "nmf-zoo: --checkpoint: got 'c' of another run: thin was 1, now 3; "
        "expected one of this run; give another path, or delete that folder\n"
    )


def test_ctrl_c_at_the_command_line_says_how_to_go_on(fit_words, monkeypatch, capsys):
    pressing = press_control_c_during(Path("c"), 2, monkeypatch)
    assert main([*fit_words, "-o", "x.nc", "--draws", str(10**8), "--thin", "1000"]) == 130
    pressing.join()
    said = capsys.readouterr().err
    assert "nmf-zoo: interrupted; x.nc holds what was there: " in said
    assert said.endswith("; the same command with --force goes on from c\n")
