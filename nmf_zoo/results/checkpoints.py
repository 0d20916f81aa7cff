"""``checkpoint=`` of the two verbs: the folder of this run, held while it lasts, or a refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.runtime.arguments import require_disk, variable_shapes
from nmf_zoo.runtime.checkpoint import Checkpoint, open_checkpoint
from nmf_zoo.runtime.driver import FitRun, SampleRun
from nmf_zoo.runtime.engine import Engine, Registration
from nmf_zoo.runtime.run_fingerprint import run_facts
from nmf_zoo.structure import Array, Factorisation

# Arguments that may change from one session of a run to the next.
FREE = {"draws", "max_iter", "extend", "extend_for_ess", "too_short", "on_step", "max_seconds", "cores", "executor"}
FREE |= {"progressbar", "compiles"}
STATES = 20  # a state holds up to ten arrays of a factor's size, and there are two while one replaces the other


@contextmanager
def checkpointed(
    path: Any,
    engine: Registration,
    options: Any,
    structure: Factorisation,
    run: SampleRun | FitRun,
    starts: Sequence[Mapping[str, Array]],
    entropy: Any,
    is_seeded: bool,
    rows: float = 0,
) -> Iterator[Checkpoint | None]:
    """The checkpoint at ``path`` for this run, new or to go on from; None when ``path`` is None.

    ``rows``: draws that it will hold.
    """
    if path is None:
        yield None
        return
    if not isinstance(path, str | os.PathLike):
        raise InputError("checkpoint", repr(path), "the path of a folder, or None")
    if not isinstance(engine, Engine):
        raise InputError(
            "checkpoint", f"{str(path)!r} with {engine.name}", "None: it can't go on from one", "leave it out"
        )
    settled = {name: value for name, value in vars(run).items() if name not in FREE}
    facts = run_facts(engine, options, structure, chains=len(starts), **settled, initvals=list(starts))
    _check_space(Path(path), structure, rows, STATES * len(starts), getattr(run, "var_names", None))
    opened = open_checkpoint(Path(path), facts, entropy, is_seeded)
    try:
        yield opened
    finally:
        opened.close()


def ending(early: str, saved: Checkpoint | None) -> str:
    """Why a run ended early, and how to go on; "" when it did not."""
    return f"{early}: the same call goes on from {saved.path}" if early and saved else early


def _check_space(
    path: Path, structure: Factorisation, rows: float, states: int, var_names: Sequence[str] | None
) -> None:
    """Refuse a run whose checkpoint would outgrow the disk; what is there already has its room."""
    cells = {name: int(np.prod(shape)) for name, shape in variable_shapes(structure).items()}
    needed = 8.0 * (rows * sum(cells[name] for name in var_names or cells) + states * sum(cells.values()))
    held = 0
    with suppress(OSError):  # what can't be read is refused when it is opened
        held = sum(entry.lstat().st_size for entry in path.rglob("*"))
    require_disk("checkpoint", f"{str(path)!r} for this run", needed - held, path, "give a path on another disk")
