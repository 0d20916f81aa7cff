"""Checkpoints: a folder from which a run that was killed at any moment goes on, to the same numbers bit for bit.

    run.json     what decides the draws of the run (:mod:`nmf_zoo.inference.facts`); another run is refused
    lock         held while a run writes here
    0.rows       all that chain 0 has recorded, appended at each save and never rewritten
    0.state      where chain 0 is: the engine's state, and how many bytes of 0.rows belong to it

A save appends to the rows, and then replaces the state by a rename: the state before that moment, the new one after.
Bytes of a save that was cut short lie beyond what the state vouches for, and are dropped. Both are check-summed.

A chain saves between two steps from its own thread, every `EVERY` seconds, and less often where its state is slow to
write: that takes no more than `SHARE` of the time. Its rows are written once, however often it saves. When a save fails
(a full disk) the run warns and goes on without.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference.facts import differences
from nmf_zoo.inference.trees import Damaged, read_tree, write_tree

try:
    import fcntl
except ImportError:  # not on Windows: two runs at once are then not noticed
    fcntl = None  # type: ignore[assignment]

EVERY = 5.0  # seconds between two saves of a chain
SHARE = 0.01  # of a chain's time that saving its state may take
RUN, LOCK = "run.json", "lock"
ADVICE = "give another path, or delete that folder"


class Saved(NamedTuple):
    """What a part of a run left: ``tree`` as it was saved last; ``rows()`` reads those of all saves, in order."""

    tree: Any
    rows: Callable[[], Iterator[Any]]


class Part:
    """The two files of one chain or restart."""

    def __init__(self, folder: Path, number: int):
        self._state, self._rows = folder / f"{number}.state", folder / f"{number}.rows"
        self._bytes = 0
        self._due = time.monotonic() + EVERY

    def load(self) -> Saved | None:
        """What was saved last, or None."""
        if not self._state.exists():
            return None
        try:
            with open(self._state, "rb") as file:
                saved = read_tree(file)
        except Damaged:
            raise _damaged(self._state) from None
        self._bytes = saved["bytes"]
        return Saved(saved["tree"], self._read_rows)

    def _read_rows(self) -> Iterator[Any]:
        if not self._bytes:
            return
        try:
            with open(self._rows, "rb") as file:
                while file.tell() < self._bytes:
                    yield read_tree(file)
        except (Damaged, FileNotFoundError):
            raise _damaged(self._rows) from None

    def is_due(self) -> bool:
        """Whether it is time to save; cheap enough to be asked at every step."""
        return time.monotonic() >= self._due

    def save(self, tree: Any, rows: Any) -> bool:
        """Append ``rows`` (an empty dict when there are none) and replace the state by ``tree``; False if that failed.

        A failed save leaves the last one as it was.
        """
        began = time.monotonic()
        try:
            end = self._append(rows) if rows else self._bytes
            began = time.monotonic()
            replace_file(self._state, {"tree": tree, "bytes": end})
        except OSError as error:
            message = f"could not be saved ({error.strerror}: {self._state.parent}); the run goes on without"
            warnings.warn(f"checkpoint: {message}", NmfZooWarning, stacklevel=2)
            return False
        else:
            self._bytes = end
            return True
        finally:
            now = time.monotonic()
            self._due = now + max(EVERY, (now - began) / SHARE)

    def _append(self, rows: Any) -> int:
        """The length of the rows' file with these at its end."""
        with open(self._rows, "r+b" if self._bytes else "wb") as file:
            file.truncate(self._bytes)
            file.seek(self._bytes)
            write_tree(file, rows)
            _to_disk(file)
            return file.tell()


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

    def part(self, number: int) -> Part:
        """Where chain or restart ``number`` saves."""
        return Part(self.path, number)

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
            _write_json(path / RUN, {"entropy": entropy, "facts": facts})
        elif found := differences(stored["facts"], facts):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise InputError("checkpoint", f"{str(path)!r} of another run: {found[0]}{more}", "one of this run", ADVICE)
    except BaseException:
        lock.close()
        raise
    return Checkpoint(path, entropy, blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest(), lock)


def _stored_run(path: Path) -> dict[str, Any] | None:
    """What run.json holds; None for a folder that is new or empty."""
    if path.exists() and not path.is_dir():
        raise InputError("checkpoint", f"{str(path)!r}, a file", "a folder, or a new name", "give another path")
    if not path.absolute().parent.is_dir():
        raise InputError("checkpoint", f"{str(path)!r} in a folder that does not exist", "a folder that does")
    if not path.exists():
        return None
    names = {entry.name for entry in path.iterdir()}
    if RUN not in names:
        if names - {LOCK, _partial(path / RUN).name}:
            raise InputError("checkpoint", f"{str(path)!r}, a folder with other files", "a new name, or a checkpoint")
        return None
    try:
        stored = json.loads((path / RUN).read_text(encoding="utf-8"))
        return {"entropy": stored["entropy"], "facts": dict(stored["facts"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(path / RUN) from None


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


def replace_file(path: Path, tree: Any) -> None:
    """Write a tree and let it take the place of ``path`` all at once."""
    partial = _partial(path)
    with open(partial, "wb") as file:
        write_tree(file, tree)
        _to_disk(file)
    _rename(partial, path)


def _write_json(path: Path, content: Any) -> None:
    partial = _partial(path)
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            _to_disk(file)
        _rename(partial, path)
    except OSError as error:
        got, expected = f"{str(path.parent)!r} ({error.strerror})", "a folder that can be written to"
        raise InputError("checkpoint", got, expected, "make room, or give another path") from None


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _to_disk(file: IO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _rename(partial: Path, path: Path) -> None:
    """The new file has its place for good once the folder, too, is on disk."""
    os.replace(partial, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _damaged(path: Path) -> InputError:
    return InputError("checkpoint", f"{path.name} in {str(path.parent)!r} damaged", "what a run wrote", ADVICE)
