"""Bad command lines: every command with options of the parser and values that can't be.

``python -m tests.property.command_lines --cases 300 --seed 0`` prints a table. A case is a good command line with one
thing wrong: a bad value of one of the options that the command has, a file that isn't one, an option that it lacks, a
word too many or too few. It is refused by exit code 2 and one line, writes nothing and takes no time; where the value
turns out to be one that the command takes, the case counts as ran. Options come from the parser, so that new ones are
tried as well.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.cli.parser import make_parser

SECONDS = 5.0  # of a refusal at the most; a fifth of it on a quiet machine once all is imported
GOOD = {  # short, should a bad value turn out to be a good one
    "describe": "x.csv",
    "fit": "x.csv --rank 2 --engine em --max-iter 3 -o out.nc --quiet",
    "rank": "x.csv --ranks 1:2 --restarts 1 -o out.csv --quiet",
    "summary": "result.nc",
    "plot": "result.nc -o out.png",
    "report": "result.nc -o out.html",
    "export": "result.nc -o out",
    "modes": "result.nc --data x.csv --quiet",
    "convert": "x.csv out.zarr",
    "compare": "x.csv --rank 2 --engines em,vb --max-iter 3 -o out.csv --quiet",
    "models": "",
    "engines": "",
    "simulate": "--model gamma-nmf --rank 2 --shape 4x5 -o out.npy",
    "separate": "x.wav --rank 2 --passes 1 -o out --quiet",
    "cache": "",
    "compile": "--engines em --quiet",
    "demo": "--folder out",
}
NUMBERS = ("-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "99999999999", "0x10", "1_000", "１")
WORDS = ("", " ", "nonsense", "none", "--", "-", ",", ":", "1,2,3,x", "a=b", "a" * 5000, "ä\n", "free:free", "2x", "x2")
PLACES = ("nowhere.csv", "none/x.nc", ".", "folder", "folder.nc", "/dev/null", "empty.csv", "noise.nc", "noise.npz")
SHAPES = ("0x1", "2x1099511627776", "99999999999999999999999999999999x2", "2x2x2", "x", "-1x5")
VALUES = (*NUMBERS, *WORDS, *PLACES, *SHAPES, "a" * 300 + ".nc")


@dataclass(frozen=True)
class Outcome:
    """``kind``: refused, ran, or what is wrong."""

    words: tuple[str, ...]
    kind: str
    said: str


def commands():
    """name -> its options, as (flag, whether it takes a value)."""
    (found,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: [
            (action.option_strings[0], action.nargs != 0)
            for action in parser._actions
            if action.option_strings and action.option_strings[0] not in ("-h", "--debug")
        ]
        for name, parser in found.choices.items()
    }


def draw_case(rng, options):
    """A command line with one thing wrong."""
    name = rng.choice(sorted(options))
    words = GOOD[name].split()
    how = rng.random()
    takes = [flag for flag, takes_value in options[name] if takes_value]
    if how < 0.75 and takes:
        flag, value = rng.choice(takes), rng.choice(VALUES)
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    elif how < 0.85 and words and not words[0].startswith("-"):
        words[0] = rng.choice((*PLACES, *WORDS))
    elif how < 0.92:
        words.append(rng.choice(("--nonsense", "--rank", "extra", "-x", "--force=1", "--quiet=no")))
    elif words:
        del words[rng.randrange(len(words))]
    else:
        words.append("extra")
    return name, *words


def prepare(folder):
    """The files that command lines speak of, good ones and bad ones."""
    from scipy.io import wavfile

    import nmf_zoo as nz

    X = np.random.default_rng(1).poisson(3.0, (5, 8))
    np.savetxt(folder / "x.csv", X, delimiter=",", fmt="%d")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nz.save(nz.fit(model=nz.gamma_nmf(X, 2), engine="em", max_iter=3, quiet=True), folder / "result.nc")
    wavfile.write(folder / "x.wav", 8000, np.random.default_rng(1).normal(0, 3000, 4000).astype(np.int16))
    (folder / "folder").mkdir()
    (folder / "folder.nc").mkdir()
    (folder / "empty.csv").touch()
    for name in ("noise.nc", "noise.npz"):
        (folder / name).write_bytes(np.random.default_rng(2).bytes(500))


@contextmanager
def short_work():
    """A minute of work, and processes that import PyMC, cut short where a bad value turns out to be good."""
    import nmf_zoo as nz
    from nmf_zoo.interfaces import compiling, demo

    def run_digits(X, seed):
        model = nz.gamma_nmf(X.iloc[:, :5], 2)
        return nz.fit(model=model, engine="em", max_iter=3, random_seed=seed, quiet=True)

    def in_helpers(units, cores, done):
        for unit in units:
            done(unit, 0.0)

    with patch.object(demo, "run_digits", run_digits), patch.object(compiling, "in_helpers", in_helpers):
        yield


def run_here(words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = stop.code
    return code, err.getvalue()


def run_apart(words):
    if words[0] == "demo":
        return run_here(words)
    code = "import sys; from nmf_zoo.interfaces.cli import main; sys.exit(main(sys.argv[1:]))"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    return done.returncode, done.stderr


def judge(words, run, limit):
    """What a case came to, in the working folder; what it wrote is removed."""
    before, began = set(Path().rglob("*")), time.perf_counter()
    try:
        code, said = run(words)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Outcome(words, f"raised {type(error).__name__}", str(error))
    seconds, new = time.perf_counter() - began, set(Path().rglob("*")) - before
    for path in sorted(new, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if code == 0:
        return Outcome(words, "ran", said)
    lines = [line for line in said.splitlines() if not line.startswith("nmf-zoo: warning: ")]
    wrong = [
        (code != 2, f"exit {code}"),
        (len(lines) != 1 or not lines[0].startswith("nmf-zoo"), f"{len(lines)} lines"),
        (bool(new), f"wrote {sorted(map(str, new))}"),
        (seconds > limit, f"{seconds:.1f} s"),
    ]
    faults = [text for is_so, text in wrong if is_so]
    return Outcome(words, "; ".join(faults) or "refused", said)


def campaign(n_cases, seed, apart=0):
    """The outcomes of cases 0, 1, ... of a seed, in a folder of its own; the last ``apart`` in own processes."""
    options, outcomes, here = commands(), [], Path.cwd()
    with tempfile.TemporaryDirectory() as name, short_work():
        prepare(Path(name))
        os.chdir(name)
        try:
            run_here(["fit", *GOOD["fit"].split()])  # imports
            Path("out.nc").unlink()
            for number in range(n_cases):
                words = draw_case(random.Random(f"{seed} {number}"), options)
                is_apart = number >= n_cases - apart
                limit = 6 * SECONDS if is_apart else SECONDS
                outcomes.append(judge(words, run_apart if is_apart else run_here, limit))
        finally:
            os.chdir(here)
    return outcomes


def table(outcomes):
    """One line per command: tried, refused, ran, failed."""
    yield f"{'command':10}{'tried':>8}{'refused':>9}{'ran':>6}{'failed':>8}"
    for name in [*sorted({outcome.words[0] for outcome in outcomes}), ""]:
        own = [outcome.kind for outcome in outcomes if name in ("", outcome.words[0])]
        count = Counter(kind if kind in ("refused", "ran") else "failed" for kind in own)
        numbers = f"{len(own):>8}{count['refused']:>9}{count['ran']:>6}{count['failed']:>8}"
        yield f"{name or 'all':10}{numbers}"


def main_of_script():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--apart", type=int, default=0, help="so many of them in processes of their own")
    given = parser.parse_args()
    outcomes = campaign(given.cases, given.seed, given.apart)
    failed = [outcome for outcome in outcomes if outcome.kind not in ("refused", "ran")]
    for outcome in failed:
        words = " ".join(word if len(word) < 60 else f"{word[:20]}...({len(word)})" for word in outcome.words)
        print(f"{outcome.kind}: nmf-zoo {words}\n    {outcome.said[-300:]}")
    print("\n".join(table(outcomes)))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main_of_script())
