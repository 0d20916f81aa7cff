"""Every writer on a full disk: ``python -m tests.full_disk FOLDER LIMIT`` tries them all, and prints a line for each.

A script, not a test, since limits are those of a process. LIMIT is that of a file's size, in bytes. Without it
FOLDER/disk must be a small disk of its own; it is filled after each writer has written once.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
from scipy.io import wavfile

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main


def writers():
    """name -> (what it writes, how)."""
    from nmf_zoo.reports import pictures
    from nmf_zoo.reports.page import paragraph

    X = np.random.default_rng(1).poisson(3.0, (6, 9))
    np.savetxt("../x.csv", X, delimiter=",", fmt="%d")
    model = nz.gamma_nmf(X, 3)
    idata = nz.fit(model=model, engine="em", max_iter=20, restarts=3, search=None, random_seed=1, quiet=True)
    nz.save(idata, "../result.nc")
    rate = 8000
    t = np.arange(2 * rate) / rate
    sound = 0.3 * np.sin(2 * np.pi * 440 * t) * (t % 0.5 < 0.3) + 0.02 * np.random.default_rng(1).normal(size=t.size)
    wavfile.write("../x.wav", rate, (sound * 2**15).astype(np.int16))
    stream = nz.stream(nz.gap(X, rank=2), random_seed=1)
    stream.update(X)
    drawn = nz.simulate(nz.gamma_nmf(None, 3, shape=(6, 9)), random_seed=1)
    nz.simulate = lambda *args, **how: drawn  # which compiles: the limit is that of PyTensor's own files, too
    pictures.picture = lambda drawn, alt, caption="": paragraph(alt)  # of reports: the plots below are drawn
    quick, short = ["--random-seed", "1", "--quiet"], ["--search", "0", "--max-iter", "5"]
    simulate = ["simulate", "--model", "gamma-nmf", "--rank", "3", "--shape", "6x9", "--random-seed", "1"]
    commands = {
        **{
            f"fit.{end}": ["fit", "../x.csv", "--rank", "3", "--engine", "em", *short, *quick] for end in ("nc", "zarr")
        },
        **{f"simulate.{end}": simulate for end in ("csv", "tsv", "npy", "npz", "nc")},
        **{f"plot.{end}": ["plot", "../result.nc"] for end in ("png", "pdf", "svg")},
        "report.html": ["report", "../result.nc"],
        **{f"rank.{end}": ["rank", "../x.csv", "--ranks", "1:2", "--restarts", "1", *quick] for end in ("nc", "png")},
        **{f"compare.{end}": ["compare", "../x.csv", "--rank", "2", "--engines", "em,vb", *quick] for end in ("csv",)},
        "separate": ["separate", "../x.wav", "--rank", "2", "--passes", "1", *quick],
    }
    functions = {
        "save.nc": lambda path: nz.save(idata, path),
        "save.zarr": lambda path: nz.save(idata, path),
        "report_.html": lambda path: nz.report(idata, path),
        "stream": lambda path: stream.save(path),
        "parts": lambda path: nz.separate("../x.wav", 2, path, passes=1, random_seed=1, force=True, quiet=True),
    }
    return functions, commands


def try_function(work, path):
    try:
        work(path)
    except nz.NotWritten as error:
        return str(error)
    return "written"


def try_command(words, path):
    """Its one line on standard error, after its exit code."""
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = main([*words, "--force", "-o", path])
    return "written" if code == 0 else f"{code}: {said.getvalue()}"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main_of_script(folder, limit):
    warnings.simplefilter("ignore")
    Path(folder, "disk").mkdir(exist_ok=True)
    os.chdir(Path(folder, "disk"))
    functions, commands = writers()
    works = {name: (try_function, work) for name, work in functions.items()}
    works |= {name: (try_command, words) for name, words in commands.items()}
    for name, (attempt, work) in works.items():
        assert attempt(work, name) == "written", name
        before = contents(Path())
        with little_room(limit):
            said = attempt(work, name)
            after = contents(Path())
            after.pop("filler", None)
        kept = "kept" if before == after else f"changed: {sorted(set(before) ^ set(after))}"
        again = attempt(work, name)
        print(json.dumps([name, said, kept, again]), flush=True)


@contextmanager
def little_room(limit):
    """Files of ``limit`` bytes at the most; or, without a limit, what is left on the disk filled."""
    if limit is not None:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        return
    with open("filler", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 12)):
            pass
    yield
    os.unlink("filler")


if __name__ == "__main__":
    main_of_script(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
