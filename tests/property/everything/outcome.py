"""What became of a case: it ran, was refused in one line of ours, or failed."""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.registry import named
from tests.property.everything.cases import IMPORTS, Case

OURS = (InputError, UnreadableModel, UnsupportedModel, RunFailed)
ABLE = re.compile(r"nz\.(?:fit|sample)\(engine='(\w+)'\)")
MOST_LETTERS = 1000  # of a line


@dataclass(frozen=True)
class Outcome:
    """``word`` : "ran", "refused" or "failed"; ``reason`` : what was said; ``place`` : where it failed."""

    word: str
    reason: str = ""
    place: str = ""

    @property
    def signature(self) -> str:
        """What failures of one cause have in common."""
        return re.sub(r"[-+.\d]+(e[-+]?\d+)?", "#", f"{self.place}: {self.reason[:120]}")


def run(case: Case) -> Outcome:
    """Run a case's program, with warnings as errors but for those that are documented."""
    names: dict[str, Any] = {"__name__": "case"}
    with TemporaryDirectory() as folder, patch.object(tempfile, "tempdir", folder), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NmfZooWarning)
        if case.engine == "nuts":  # PyMC says what it thinks of five draws, its samplers what numba says
            warnings.simplefilter("ignore")
        try:
            exec(compile(IMPORTS, "<imports>", "exec"), names)
            exec(compile("\n".join(case.lines), "<case>", "exec"), names)
        except OURS as error:
            return judge_refusal(error, "idata" in names)
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {error}", place_of(error))
    if case.illegal:
        return Outcome("failed", f"accepted, though it is illegal: {case.illegal}", "legality")
    return Outcome("ran")


def judge_refusal(error: Exception, has_run: bool) -> Outcome:
    """One line, and engines that can are engines that can. What is refused of a result does not count against it."""
    said = str(error)
    if "\n" in said or len(said) > MOST_LETTERS:
        return Outcome("failed", f"{type(error).__name__} of more than a line: {said!r}", place_of(error))
    if isinstance(error, UnsupportedModel):
        unknown = [name for name in ABLE.findall(said) if not named(name)]
        if unknown:
            return Outcome("failed", f"names engines that don't exist: {unknown}", place_of(error))
    return Outcome("ran" if has_run else "refused", f"{type(error).__name__}: {said}")


def place_of(error: BaseException) -> str:
    """The last line of the library that the error passed, "file:function"; else the last line at all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "nmf_zoo" in frame.filename] or frames
    return f"{'/'.join(own[-1].filename.split('/')[-2:])}:{own[-1].name}"
