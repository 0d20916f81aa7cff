"""Checkpoints: a folder from which a run that was killed at any moment goes on, to the same numbers bit for bit.

    run.json     what decides the draws of the run (:mod:`nmf_zoo.runtime.run_fingerprint`); another run is refused
    lock         held while a run writes here
    0.rows       all that chain 0 has recorded, appended at each save and never rewritten
    0.state      where chain 0 is: the engine's state, and how many bytes of 0.rows belong to it
    starts.state where the chains began, if a search said so

A save appends to the rows, and then replaces the state by a rename: the state before that moment, the new one after.
Bytes of a save that was cut short lie beyond what the state vouches for, and are dropped. Both are check-summed, and
say whose they are: of which run, of which part of it, rows or state; and a state holds the checksum of its rows, so
that those of another chain, another run or another save are refused. What was read is held against what the reader
expects (:mod:`nmf_zoo.runtime.state_patterns`) before anything is done with it.

A chain saves between two steps from its own thread, every `EVERY` seconds, and less often where its state is slow to
write: that takes no more than `SHARE` of the time. Its rows are written once, however often it saves. When a save fails
(a full disk) the run warns and goes on without.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.files import is_partial, replacing, sync
from nmf_zoo.runtime.run_fingerprint import differences
from nmf_zoo.runtime.state_io import Damaged, read_tree, write_tree
from nmf_zoo.runtime.state_patterns import require

try:
    import fcntl
except ImportError:  # not on Windows: two runs at once are then not noticed
    fcntl = None  # type: ignore[assignment]

EVERY = 5.0  # seconds between two saves of a chain
SHARE = 0.01  # of a chain's time that saving its state may take
FORMAT = 10  # of the folder, and of the steps that lead from one state to the next
RUN, LOCK = "run.json", "lock"
ADVICE = "give another path, or delete that folder"


class Saved(NamedTuple):
    """What a part of a run left: ``tree``, as it was saved last; ``rows(pattern)`` reads those of all saves."""

    tree: Any
    rows: Callable[[Any], Iterator[Any]]


class RunFiles:
    """The two files of one chain or restart.

    ``run_id`` : of the run; ``name`` : the chain's number, or another word
    """

    def __init__(self, folder: Path, run_id: str, name: int | str):
        self._state, self._rows = folder / f"{name}.state", folder / f"{name}.rows"
        self._owner = {"run": run_id, "part": str(name)}
        self._bytes, self._checksum = 0, 0
        self._due = time.monotonic() + EVERY

    def load(self, pattern: Any = Any) -> Saved | None:
        """What was saved last, or None. A tree that does not fit the pattern is refused."""
        if not os.path.lexists(self._state):
            return None
        with self.refused(self._state), open(self._state, "rb") as file:
            saved, _ = read_tree(file, self._owner | {"kind": "state"})
            require(saved, {"tree": pattern, "bytes": int, "checksum": int}, "the state")
        self._bytes, self._checksum = saved["bytes"], saved["checksum"]
        return Saved(saved["tree"], self._read_rows)

    def _read_rows(self, pattern: Any) -> Iterator[Any]:
        if not self._bytes:
            return
        with self.refused(self._rows), open(self._rows, "rb") as file:
            checksum = 0
            while file.tell() < self._bytes:
                tree, checksum = read_tree(file, self._owner | {"kind": "rows"}, checksum)
                if file.tell() >= self._bytes and (file.tell(), checksum) != (self._bytes, self._checksum):
                    raise Damaged(f"of another save than {self._state.name}")
                require(tree, pattern, "a row")
                yield tree

    @contextmanager
    def refused(self, path: Path | None = None) -> Iterator[None]:
        """What is wrong with a file, by default the state, in one line that names it."""
        path = self._state if path is None else path
        try:
            yield
        except Damaged as error:
            raise _unusable(path, str(error)) from None
        except OSError as error:
            raise _unusable(path, f"which can't be read ({error.strerror})") from None

    def is_due(self) -> bool:
        """Whether it is time to save; cheap enough to be asked at every step."""
        return time.monotonic() >= self._due

    def save(self, tree: Any, rows: Any) -> bool:
        """Append ``rows`` (an empty dict when there are none) and replace the state by ``tree``; False if that failed.

        A failed save leaves the last one as it was.
        """
        began, end, checksum = time.monotonic(), self._bytes, self._checksum
        try:
            if rows:
                end, checksum = self._append(rows)
            began = time.monotonic()
            state = {"tree": tree, "bytes": end, "checksum": checksum}
            with replacing(self._state, "checkpoint") as partial, open(partial, "wb") as file:
                write_tree(file, state, self._owner | {"kind": "state"})
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", "") or str(error)
            message = f"could not be saved ({reason}: {self._state.parent}); the run goes on without"
            warn_caller(f"checkpoint: {message}")
            return bool(rows) and self._is_in_place(end, checksum)
        else:
            self._bytes, self._checksum = end, checksum
            return True
        finally:
            now = time.monotonic()
            self._due = now + max(EVERY, (now - began) / SHARE)

    def _is_in_place(self, end: int, checksum: int) -> bool:
        """Whether a save that failed had replaced the state: what it vouches for must not be written over."""
        with suppress(OSError, Damaged), open(self._state, "rb") as file:
            state, _ = read_tree(file, self._owner | {"kind": "state"})
            if (state["bytes"], state["checksum"]) == (end, checksum) != (self._bytes, self._checksum):
                self._bytes, self._checksum = end, checksum
                return True
        return False

    def _append(self, rows: Any) -> tuple[int, int]:
        """Length and checksum of the rows' file with these at its end."""
        with open(self._rows, "r+b" if self._bytes else "wb") as file:
            file.truncate(self._bytes)
            file.seek(self._bytes)
            checksum = write_tree(file, rows, self._owner | {"kind": "rows"}, self._checksum)
            end = file.tell()
        sync(self._rows)
        return end, checksum


class Checkpoint:
    """A folder with the parts of one run.

    Attributes
    ----------
    path : the folder
    entropy : of the run's seed, the stored one when the run was begun without a seed
    run_id : the same for every session of this run, and for no other
    """

    def __init__(self, path: Path, entropy: Any, run_id: str, lock: IO):
        self.path, self.entropy, self.run_id, self._lock = path, entropy, run_id, lock

    def part(self, name: int | str) -> RunFiles:
        """Where a chain or restart saves, by its number; or another part of the run, by a word."""
        return RunFiles(self.path, self.run_id, name)

    def close(self) -> None:
        """Let another run have the folder."""
        self._lock.close()


def open_checkpoint(path: Path, facts: Mapping[str, str], entropy: Any, is_seeded: bool) -> Checkpoint:
    """The checkpoint of the run with these facts, begun when there is none; anything else at ``path`` is refused."""
    stored = _stored_run(path)
    if stored is not None and not is_seeded:
        entropy = stored["entropy"]
    facts = {**facts, "random_seed": repr(entropy)}
    lock = _lock(path)
    try:
        if stored is None:
            _write_json(path / RUN, {"format": FORMAT, "entropy": entropy, "facts": facts})
        elif found := differences(stored["facts"], facts):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise InputError("checkpoint", f"{str(path)!r} of another run: {found[0]}{more}", "one of this run", ADVICE)
    except BaseException:
        lock.close()
        raise
    return Checkpoint(path, entropy, blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest(), lock)


def _stored_run(path: Path) -> dict[str, Any] | None:
    """What run.json holds; None for a folder that is new or empty."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InputError("checkpoint", f"{str(path)!r}, a file", "a folder, or a new name", "give another path")
    if not os.path.isdir(path.absolute().parent):
        raise InputError("checkpoint", f"{str(path)!r} in a folder that does not exist", "a folder that does")
    if not os.path.lexists(path):
        return None
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        expected = f"a folder that can be read ({error.strerror})"
        raise InputError("checkpoint", repr(str(path)), expected, "give another path") from None
    if RUN not in names:
        if any(name != LOCK and not is_partial(name) for name in names):
            raise InputError("checkpoint", f"{str(path)!r}, a folder with other files", "a new name, or a checkpoint")
        return None
    return _read_json(path / RUN)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(path, f"which can't be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _unusable(path, "damaged") from None
    if not isinstance(stored, dict) or stored.get("format", 1) != FORMAT:
        got = f"{str(path.parent)!r}, which another version of nmf_zoo wrote"
        raise InputError("checkpoint", got, f"one of format {FORMAT}", f"use that version, {ADVICE}")
    facts, entropy = stored.get("facts"), stored.get("entropy")
    words = entropy if isinstance(entropy, list) else [entropy]
    is_whole = isinstance(facts, dict) and all(isinstance(fact, str) for fact in facts.values())
    if not is_whole or not words or not all(type(word) is int and word >= 0 for word in words):
        raise _unusable(path, "damaged")
    return stored


def _lock(path: Path) -> IO:
    """Make the folder and hold it until the file is closed; a process that dies lets go."""
    try:
        path.mkdir(exist_ok=True)
        file = open(path / LOCK, "ab")  # noqa: SIM115 (closed with the checkpoint)
    except OSError as error:
        expected = f"a folder that can be written to ({error.strerror})"
        raise InputError("checkpoint", repr(str(path)), expected, "give another path") from None
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError("checkpoint", f"{str(path)!r}, in use by another run", "one run at a time", "wait") from None
    except OSError:
        pass  # a file system without locks
    return file


def _write_json(path: Path, content: Any) -> None:
    with replacing(path, "checkpoint") as partial:
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _unusable(path: Path, reason: str) -> InputError:
    return InputError("checkpoint", f"{path.name} in {str(path.parent)!r}, {reason}", "what this run wrote", ADVICE)
