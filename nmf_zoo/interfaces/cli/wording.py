"""What Python says, in the words of the shell: options for arguments, engine names for calls, the file for X."""

from __future__ import annotations

import re
from pathlib import Path

from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.parser import FILES

ENGINE = re.compile(r"nz\.(?:sample|fit)\(engine='(\w+)'\)")
HOLDOUT = re.compile(r"nz\.Holdout\(engine='(\w+)'\)")
FREE = re.compile(r"nz\.free\((?:tie=['\"](\w+)['\"])?\)")
OPTION = re.compile(r"engine=nz\.\w+\((\w+=\w*)\)")  # options of engines are the shell's, too


def shell_words(message: str, path: Path | None = None) -> str:
    """One line: ``--draws 5`` for ``draws=5``, ``--draws: got`` for ``draws: got``; ``path`` is where X came from."""
    message = HOLDOUT.sub(r"--method holdout --engine \1", FREE.sub(_free, message))
    line = " ".join(OPTION.sub(r"\1", ENGINE.sub(r"--engine \1", message)).split())
    # What was got is the user's own text and may hold anything; advice comes after it.
    got, expected, advice = line.rpartition("; expected ") if ": got " in line else ("", "", line)
    names = "|".join(sorted(_names()))
    got = re.sub(rf"^({names}|shape)(?=: )", _flag, got)
    own = rf"(?<!:)\b({names})="  # after a colon it is how the shell itself writes an option of an engine
    advice = re.sub(rf"{own}(?=['\w])", lambda match: f"{_flag(match)} ", advice)
    line = got + expected + re.sub(own, _flag, advice)
    line = re.sub(r"\bdata=(?!\w)", "a store of blocks", line)
    return f"{path}: {line[3:]}" if path is not None and line.startswith("X: ") else line


def _free(match: re.Match) -> str:
    return f"free:{match[1]}" if match[1] else "free"


def _flag(match: re.Match) -> str:
    return f"--{match[1].replace('_', '-')}"


def _names() -> set[str]:
    """The arguments that are options of the shell under the same name."""
    kinds = (catalogue.models(), catalogue.engines(), catalogue.methods(), catalogue.runs())
    entries = [entry for kind in kinds for entry in kind.values()]
    named = {name for entry in entries for name in entry.arguments}
    return (
        named | {*FILES, "rank", "ranks", "method", "engines", "key", "layer", "transpose", "header", "row_labels"}
    ) - {
        "model",
        "coords",
        "data",
        "idata_kwargs",
        "shape",
        "store",
        "on_step",
    }
