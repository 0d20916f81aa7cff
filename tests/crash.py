"""Runs that are killed, stopped, run out of disk, or find their files damaged: `python -m tests.crash --kills 200`.

A script, not a test. Each run is a process of its own, forked from this one once the imports are paid, so that SIGKILL
is the real thing. In every trial a case (an engine on a table, a search, a stream, a store, ...) is disturbed at random
moments and then run to its end; its numbers must be those of a run that nobody disturbed, bit for bit, or, of files
that were damaged, an error of ours in one line. Printed are a table, and of each failure the command that repeats it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference.powers import em, gibbs, vb
from nmf_zoo.inference.shared import layout
from nmf_zoo.runtime import checkpoint
from tests.sounds import RATE, three_sources

PATIENCE = 120.0  # seconds after which a run counts as hanging
REFUSED, INTERRUPTED = 3, 130  # how a run's process ends, beside 0 and a failure's 1
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1 << 1, 1 << 2  # to pass over permissions; linux/capability.h
_CAPABILITY_VERSION_3 = 0x20080522
RNG = np.random.default_rng(3)
X = RNG.poisson(RNG.gamma(0.7, size=(40, 3)) @ RNG.gamma(0.7, size=(3, 50)) * 2.0).astype(float)
POWERS = RNG.exponential(X + 1.0)
GAMMAS: dict[str, Any] = {"alpha_w": 1.5, "beta_w": 1.0, "alpha_h": 1.5, "beta_h": 1.0}


Run = Callable[[Path | None, int], dict[str, np.ndarray]]  # of a folder and a number of cores


# -- what is run -----------------------------------------------------------------------------------------------------


def counts(x: Any = X, **options: Any) -> Any:
    return nz.gamma_nmf(x, rank=3, **{**GAMMAS, **options})


def masked() -> Any:
    return counts(mask=np.random.default_rng(4).random(X.shape) < 0.9, exposure=np.full((1, X.shape[1]), 2.0))


def powers() -> Any:
    return nz.is_nmf(POWERS, 3, alpha_h=1.5, alpha_w=2.5)


def series() -> Any:
    return nz.hmm_nmf(X[:6, :30], 2, chain="basis", alpha_w=2.0, beta_w=1.0)


def numbers_of(idata: Any) -> dict[str, np.ndarray]:
    groups = [name for name in _compat.group_names(idata) if not name.endswith("_data")]
    return {f"{name}/{key}": value.values for name in groups for key, value in _compat.group(idata, name).items()}


def fit(declare: Callable[[], Any], engine: Any, length: int, **options: Any) -> Run:
    def run(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
        options_ = {
            "restarts": 2,
            "search": None,
            "draws": 3,
            "tol": 0,
            "random_seed": 5,
            "quiet": True,
            "cores": cores,
        } | options
        path = None if folder is None else folder / "checkpoint"
        return numbers_of(nz.fit(engine=engine, max_iter=length, model=declare(), checkpoint=path, **options_))

    return run


def sample(
    declare: Callable[[], Any], engine: Any, length: int, where: str = "", **options: Any
) -> Callable[..., dict]:
    def run(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
        given = {"chains": 2, "discard_tuned_samples": False, "random_seed": 5, "quiet": True, "cores": cores} | options
        path = None if folder is None else folder / "checkpoint"
        if where == "store":
            with tempfile.TemporaryDirectory() as other:
                given["store"] = (Path(other) if folder is None else folder) / "draws.zarr"
                return _sample(declare, engine, length, path, given)
        return _sample(declare, engine, length, path, given)

    return run


def _sample(declare: Any, engine: Any, length: int, path: Path | None, given: dict) -> dict[str, np.ndarray]:
    return numbers_of(nz.sample(length, tune=length // 2, engine=engine, model=declare(), checkpoint=path, **given))


def stream(declare: Callable[[], Any], engine: Any, x: np.ndarray) -> Run:
    """Columns two by two, saved after each update."""

    def run(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
        path = None if folder is None else folder / "saved.stream"
        is_begun = path is not None and os.path.lexists(path)
        learner = nz.resume_stream(path, cores=cores) if is_begun else None
        if learner is None:
            learner = nz.stream(declare(), engine=engine, random_seed=5, cores=cores)
        for first in range(learner.columns_seen, x.shape[1], 2):
            learner.update(x[:, first : first + 2])
            if path is not None:
                learner.save(path)
        return numbers_of(learner.result())

    return run


def search(method: Any, **options: Any) -> Run:
    def run(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
        path = None if folder is None else folder / "checkpoint"
        found = nz.select_rank(
            lambda rank: nz.gamma_nmf(X[:12, :15], rank, **GAMMAS),
            range(1, 6),
            method=method,
            random_seed=5,
            quiet=True,
            cores=cores,
            checkpoint=path,
            **{"search": None, **options},
        )
        return {str(name): found[name].values for name in found if name != "seconds"}

    return run


def calibration(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
    path = None if folder is None else folder / "checkpoint"
    found = nz.calibrate(
        lambda: nz.gamma_nmf(None, 2, shape=(4, 5), **GAMMAS),
        "vb",
        simulations=40,
        draws=20,
        max_iter=30,
        random_seed=5,
        progressbar=False,
        cores=cores,
        checkpoint=path,
    )
    return {str(name): found[name].values for name in found}


def separation(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
    path = None if folder is None else folder / "checkpoint"
    found = nz.separate(
        three_sources(1.0).sum(axis=0),
        3,
        rate=RATE,
        engine=nz.SimulatedOnlineEM(sweeps=4, keep=2),
        window=16,
        passes=2,
        random_seed=5,
        quiet=True,
        cores=cores,
        checkpoint=path,
    )
    return {str(name): found[name].values for name in found}


def comparison(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
    """Times differ from run to run: only that it ends counts."""
    run = {"draws": 50, "tune": 50, "chains": 2, "random_seed": 5, "cores": cores}
    nz.compare_engines(counts(X[:12, :15]), ["em", "vb"], **run)
    return {}


def evidence(folder: Path | None, cores: int) -> dict[str, np.ndarray]:
    found = nz.evidence(counts(X[:12, :15]), "bound", random_seed=5, quiet=True, cores=cores)
    return {"log_evidence": np.array(found.attrs["log_evidence"])}


@dataclass(frozen=True)
class Case:
    """``run(folder, cores)`` -> arrays, from what is in the folder; ``goes_on``: it saves itself there."""

    run: Run
    goes_on: bool = True


CASES = {
    "em": Case(fit(counts, "em", 250)),
    "em, sparse": Case(fit(lambda: counts(sp.csr_array(X)), "em", 250)),
    "vb": Case(fit(masked, "vb", 250)),
    "vb, search": Case(fit(masked, "vb", 100, restarts=1, search=nz.Search(fits=6))),
    "mcem": Case(fit(lambda: nz.gap(X[:12, :15], 3), "mcem", 60)),
    "gibbs": Case(sample(counts, "gibbs", 400)),
    "gibbs, moments": Case(sample(masked, "gibbs", 400, keep="moments")),
    "gibbs, store": Case(sample(counts, "gibbs", 150, "store")),
    "em of powers": Case(fit(powers, "em", 150)),
    "vb of powers": Case(fit(powers, "vb", 150)),
    "gibbs of powers": Case(sample(powers, "gibbs", 150)),
    "hmm_exact": Case(fit(series, "hmm_exact", 150)),
    "particle_em": Case(
        fit(lambda: nz.hmm_nmf(X[:6, :30], 2, chain="unit", alpha_w=2.0, beta_w=1.0), nz.ParticleEM(), 8)
    ),
    "particle_gibbs": Case(sample(series, "particle_gibbs", 60)),
    "rank by bound": Case(search(nz.RankBound(max_iter=200), restarts=8)),
    "rank by a search": Case(search(nz.RankBound(max_iter=200), search=nz.Search(fits=8))),
    "rank by holdout": Case(search("holdout", restarts=6)),
    "calibrate": Case(calibration),
    "separate": Case(separation),
    "stream of counts": Case(stream(lambda: nz.gap(None, 3, shape=(40, 1)), "online_em", np.tile(X, 3))),
    "stream of powers": Case(
        stream(
            lambda: nz.is_nmf(None, 3, alpha_h=1.5, shape=(40, 1)),
            nz.SimulatedOnlineEM(sweeps=4, keep=2, first_frames=20),
            np.tile(POWERS, 3),
        )
    ),
    "stream of binary chains": Case(
        stream(lambda: nz.hmm_nmf(None, 2, chain="basis", shape=(40, 1)), nz.ChainOnlineEM(), np.tile(X, 3))
    ),
    "stream by particles": Case(
        stream(
            lambda: nz.hmm_nmf(None, 2, chain="unit", shape=(40, 1)), nz.ParticleOnlineEM(particles=50), np.tile(X, 3)
        )
    ),
    "evidence": Case(evidence, goes_on=False),
    "compare_engines": Case(comparison, goes_on=False),
}


# -- processes -------------------------------------------------------------------------------------------------------


def settle() -> None:
    """Save all the time, so that saves are cut short too; several chunks on small tables."""
    checkpoint.EVERY, checkpoint.SHARE = 0.0, 1.0
    layout.CHUNK_NONZEROS, layout.CHUNK_CELLS = 256, 512
    em.CHUNK_CELLS, vb.CHUNK_CELLS, gibbs.CHUNK_CELLS = 1024, 1024, 4096
    warnings.simplefilter("ignore")
    warnings.simplefilter("ignore", NmfZooWarning)


def begun(
    case: Case, folder: Path | None, result: Path, cores: int = 2, before: Callable[[], None] | None = None
) -> int:
    """The number of a new process that runs the case, and writes what it found, or why not, to ``result``."""
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if before is not None:
            before()
        found = case.run(folder, cores)
        kept = {name: array for name, array in found.items() if array.dtype.kind in "biuf"}
        be_free_again()
        np.savez(result, **kept)
        code = 0
    except InputError as error:
        be_free_again()
        result.with_suffix(".txt").write_text(str(error))
        code = REFUSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        be_free_again()
        result.with_suffix(".txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def ended(number: int, seconds: float = PATIENCE, send: int | None = None) -> int | None:
    """How the process ended, as subprocess says it; after ``seconds`` it is sent a signal, and killed without one."""
    code = _code_within(number, seconds)
    if code is not None:
        return code
    os.kill(number, signal.SIGKILL if send is None else send)
    code = _code_within(number, PATIENCE)
    if code is None:  # it hangs
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    return code


def _code_within(number: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.001)


def difference(found: Path, expected: Path) -> str:
    """What differs between two results, or nothing."""
    with np.load(found) as one, np.load(expected) as other:
        if set(one.files) != set(other.files):
            return f"{sorted(set(one.files) ^ set(other.files))} missing"
        names = [name for name in one.files if not np.array_equal(one[name], other[name], equal_nan=True)]
    return f"other numbers in {', '.join(names)}" if names else ""


# -- what is done to them --------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One case, disturbed in a folder of its own; ``seconds`` a run of it takes."""

    case: Case
    folder: Path
    whole: Path
    seconds: float
    rng: random.Random

    def moment(self) -> float:
        return self.rng.uniform(0.0, self.seconds)

    def late_moment(self) -> float:
        """When there are files, most likely; perhaps after the end."""
        return self.rng.uniform(0.5, 2.0) * self.seconds

    def start(self, **options: Any) -> int:
        self.folder.mkdir(exist_ok=True)
        return begun(self.case, self.folder, self.result, **options)

    @property
    def result(self) -> Path:
        return self.folder.with_suffix(".npz")

    def said(self) -> str:
        path = self.result.with_suffix(".txt")
        return path.read_text() if path.exists() else "nothing said"

    def end(self, may_refuse: bool = False) -> str:
        """Run to the end with another number of threads: what is wrong with that, or nothing."""
        code = ended(self.start(cores=1))
        if code == 0:
            return difference(self.result, self.whole)
        if code == REFUSED and may_refuse and "\n" not in self.said():
            return ""
        return f"ended with {code}: {self.said()}"

    def kill(self) -> tuple[int, str]:
        """SIGKILL at some moments: how many, and what went wrong."""
        done = 0
        for _ in range(self.rng.randint(1, 4)):
            code = ended(self.start(), self.moment())
            if code == 0:
                break
            if code != -signal.SIGKILL:
                return done, f"ended with {code} before it was killed: {self.said()}"
            done += 1
        return done, self.end() if self.case.goes_on else ""

    def stop(self, number: int) -> tuple[int, str]:
        """A signal that asks: the run ends soon and in order, and goes on."""
        code = ended(self.start(), self.moment(), send=number)
        expected = {0, INTERRUPTED} if number == signal.SIGINT else {0, -signal.SIGTERM}
        if code not in expected:
            return 1, f"ended with {code}: {self.said()}" if code is not None else "hangs"
        return 1, self.end() if self.case.goes_on else ""

    def interrupt(self) -> tuple[int, str]:
        return self.stop(signal.SIGINT)

    def terminate(self) -> tuple[int, str]:
        return self.stop(signal.SIGTERM)

    def fill(self) -> tuple[int, str]:
        """A disk that is full when a file reaches some size: the right result or one line, and then it goes on."""
        most = int(10.0 ** self.rng.uniform(1.0, 5.5))
        code = ended(self.start(before=lambda: limit_files(most)))
        if code == 0:
            found = difference(self.result, self.whole)
        else:
            found = "" if code == REFUSED and "\n" not in self.said() else f"ended with {code}: {self.said()}"
        return 1, f"files of {most} bytes: {found}" if found else self.end()

    def damage(self) -> tuple[int, str]:
        """A file that is not what it was: the right result, or one line."""
        ended(self.start(), self.late_moment())
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != "lock")
        if not files:
            return 0, ""
        path, how = self.rng.choice(files), self.rng.choice([flip, cut, grow, remove, into_folder, into_loop, swap])
        how(path, files, self.rng)
        found = self.end(may_refuse=True)
        return 1, f"{how.__name__} of {path.name}: {found}" if found else ""

    def forbid(self) -> tuple[int, str]:
        """A folder, or one of its files, that may not be written or read: one line, or the right result."""
        ended(self.start(), self.late_moment())
        paths = [self.folder, *sorted(self.folder.rglob("*"))]
        os.chmod(self.rng.choice(paths), self.rng.choice([0o000, 0o444, 0o555]))
        code = ended(self.start(before=be_bound_by_permissions))
        if code == 0:
            found = difference(self.result, self.whole)
        else:
            found = "" if code == REFUSED and "\n" not in self.said() else f"ended with {code}: {self.said()}"
        return 1, found


def limit_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def be_free_again() -> None:
    """To say what was found."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if os.geteuid() == 0:
        set_capabilities(-1)


def be_bound_by_permissions() -> None:
    """As everybody is but root, who may read and write everything; what belongs to root stays root's own."""
    if os.geteuid() == 0:
        set_capabilities(~(CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH))


def set_capabilities(kept: int) -> None:
    """Use, of what this process may do on Linux, these bits (capabilities(7)); the others can be taken up again."""
    library = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    code = library.capget(header, sets)
    for half in (0, 1):  # of 64 bits; each with what is effective, permitted and inherited
        sets[3 * half] = sets[3 * half + 1] & (kept >> 32 * half) & 0xFFFFFFFF
    if code or library.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capabilities can't be set")


def flip(path: Path, files: list[Path], rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, files: list[Path], rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def grow(path: Path, files: list[Path], rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + bytes(rng.randrange(1, 100)))


def remove(path: Path, files: list[Path], rng: random.Random) -> None:
    path.unlink()


def into_folder(path: Path, files: list[Path], rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def into_loop(path: Path, files: list[Path], rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def swap(path: Path, files: list[Path], rng: random.Random) -> None:
    """With another file, of its kind if there is one."""
    alike = [other for other in files if other != path and other.suffix == path.suffix] or files
    other = rng.choice(alike)
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


HOW = {
    "kill": Trial.kill,
    "interrupt": Trial.interrupt,
    "terminate": Trial.terminate,
    "full": Trial.fill,
    "damage": Trial.damage,
    "forbid": Trial.forbid,
}


# -- the campaign ----------------------------------------------------------------------------------------------------


def undisturbed(name: str, case: Case, room: Path) -> tuple[Path, float]:
    """The result of a run, and the seconds that one takes which saves itself."""
    if "store" not in name:  # whose library has a thread of its own, which a fork would lose
        case.run(None, 1)  # here, so that no process has to import and compile
    whole = room / "whole.npz"
    for folder, result in ((None, whole), (room / "saved", room / "saved.npz")):
        if folder is not None:
            folder.mkdir()
        began = time.monotonic()
        code = ended(begun(case, folder, result), 1200.0)
        seconds = time.monotonic() - began
        if code != 0:
            text = result.with_suffix(".txt")
            raise SystemExit(f"{name}: a run that nobody disturbed ended with {code}: {text.read_text()}")
    if found := difference(room / "saved.npz", whole):
        raise SystemExit(f"{name}: a run that saves itself has {found}")
    return whole, seconds


def campaign(ready: dict[str, tuple[Path, Path, float]], how: str, wanted: int, seed: int) -> int:
    """Disturb every case in turn until it was done ``wanted`` times in all. Returns the failures, and prints them."""
    names = [name for name in ready if CASES[name].goes_on or how in ("interrupt", "terminate")]
    done, right, wrong = dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    trial = seed * 1_000_000
    while sum(done.values()) < wanted:
        for name in names:
            trial += 1
            own, whole, seconds = ready[name]
            folder = own / f"{how} {trial}"
            times, failure = HOW[how](Trial(CASES[name], folder, whole, seconds, random.Random(trial)))
            done[name] += times
            right[name], wrong[name] = right[name] + (not failure), wrong[name] + bool(failure)
            if failure:
                print(f"FAILED {name}, {how}: {failure}")
                print(f'    python -m tests.crash --how {how} --cases "{name}" --trial {trial}', flush=True)
            for path in own.rglob(f"{folder.name}*"):
                os.chmod(path, 0o777) if path.is_dir() and not path.is_symlink() else None
            shutil.rmtree(folder, ignore_errors=True)
            if sum(done.values()) >= wanted:
                break
    print(f"{how:<28}{'times':>8}{'trials right':>14}{'failed':>8}")
    for name in names:
        print(f"  {name:<26}{done[name]:>8}{right[name]:>14}{wrong[name]:>8}")
    print(f"  {'in all':<26}{sum(done.values()):>8}{sum(right.values()):>14}{sum(wrong.values()):>8}", flush=True)
    return sum(wrong.values())


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    for how in HOW:
        parser.add_argument(f"--{how}s" if how == "kill" else f"--{how}", type=int, default=0, metavar="TIMES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default=";".join(CASES), help="names, with ; between them")
    parser.add_argument("--how", choices=HOW, help="of one trial")
    parser.add_argument("--trial", type=int, help="repeat this one")
    asked = parser.parse_args(words)
    names = asked.cases.split(";")
    settle()
    room = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        if asked.trial is not None:
            (name,) = names
            (room / "own").mkdir()
            whole, seconds = undisturbed(name, CASES[name], room / "own")
            trial = Trial(CASES[name], room / "own" / "trial", whole, seconds, random.Random(asked.trial))
            times, failure = HOW[asked.how](trial)
            print(f"{name}, {asked.how}, {times} times: {failure or 'right'}")
            return int(bool(failure))
        wanted = {how: getattr(asked, "kills" if how == "kill" else how) for how in HOW}
        failed, ready = 0, {}
        for place, name in enumerate(names):
            (room / str(place)).mkdir()
            ready[name] = room / str(place), *undisturbed(name, CASES[name], room / str(place))
        for how, times in wanted.items():
            if times:
                began = time.monotonic()
                failed += campaign(ready, how, times, asked.seed)
                print(f"  {time.monotonic() - began:.0f} s", flush=True)
        return int(failed > 0)
    finally:
        shutil.rmtree(room, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
