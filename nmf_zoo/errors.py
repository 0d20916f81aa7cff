"""Errors and warnings that users see: one clear line that names what, where, what was expected and what to do."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # of a disk, a file, a user's share

LONGEST = 200  # letters of a value that is shown
ALIKE = 0.6  # share of letters that a wrong name has in common with a right one, of which it may be a slip
# What other libraries call an argument of ours.
ELSEWHERE = {
    **dict.fromkeys(("n_components", "n_topics", "k"), "rank"),
    **dict.fromkeys(("seed", "random_state", "rng"), "random_seed"),
    **dict.fromkeys(("warmup", "num_warmup", "burn_in", "burnin"), "tune"),
    **dict.fromkeys(("samples", "n_samples", "num_samples"), "draws"),
    **dict.fromkeys(("n_chains", "num_chains"), "chains"),
    **dict.fromkeys(("n_jobs", "threads", "n_threads"), "cores"),
    **dict.fromkeys(("n_iter", "iterations"), "max_iter"),
    **dict.fromkeys(("n_init", "nrun"), "restarts"),
    **dict.fromkeys(("init", "inits", "initial"), "initvals"),
}
BETWEEN = ("nmf_zoo", "contextlib")  # modules whose lines are none of the user's


class NmfZooWarning(UserWarning):
    """Something worth knowing that is no error."""


def warn_caller(text: str, category: type[Warning] = NmfZooWarning) -> None:
    """Warn, at the line of the user's that called the package: how many of our functions lie between is no matter."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def number_of(number: float, word: str, many: str = "") -> str:
    """``1 block``, ``1,200 blocks``; ``many`` where more are not the word with an s."""
    return f"{number:,} {word if number == 1 else many or f'{word}s'}"


def one_line(text: str) -> str:
    """The lines of a text as one: what is shown of a value may have several."""
    return " ".join(line.strip() for line in text.splitlines())


class InputError(ValueError):
    """An argument that can't be used.

    Attributes
    ----------
    name : the argument
    got : what was given, with the place where it matters
    expected : what could be given
    do : what to do about it, or ""
    """

    def __init__(self, name: str, got: str, expected: str, do: str = ""):
        super().__init__(one_line(f"{name}: got {got}; expected {expected}" + (f"; {do}" if do else "")))
        self.name = name
        self.got = got
        self.expected = expected
        self.do = do

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, by which an error comes back from another process."""
        return type(self), (self.name, self.got, self.expected, self.do)


class UnknownArgument(InputError, TypeError):
    """A keyword argument that a function or an options object doesn't have; a ``TypeError`` too, as Python's own."""


def did_you_mean(word: Any, allowed: Iterable[Any]) -> str:
    """``did you mean 'gibbs'?``: the names most like a wrong one, as they are written in code; "" where none is.

    Letters of either case, dashes and underscores are the same; names of other libraries for the same thing count.
    """
    from difflib import SequenceMatcher

    if not isinstance(word, str):
        return ""
    names = {_plain(name): name for name in allowed if isinstance(name, str)}
    wrong = _plain(word)
    if wrong in names or ELSEWHERE.get(wrong) in names:
        near = [names[wrong if wrong in names else ELSEWHERE[wrong]]]
    else:
        likeness = {name: SequenceMatcher(None, name, wrong).ratio() for name in names}
        least = max(ALIKE, max(likeness.values(), default=0.0) - 0.05)
        near = [own for name, own in names.items() if likeness[name] >= least][:2]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def _plain(name: str) -> str:
    return name.strip("-").lower().replace("-", "_").replace(" ", "_")


def not_one_of(name: str, got: Any, allowed: Iterable[Any], more: str = "", do: str = "") -> InputError:
    """The refusal of a word that is not among those allowed: the nearest, else what else to do.

    Parameters
    ----------
    more : what is allowed beside the words, e.g. ", or their options"
    do : what to do where no word is near
    """
    words = list(allowed)
    return InputError(name, shown(got), f"one of {words}{more}", did_you_mean(got, words) or do)


def check_word(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse what is none of the words allowed, None among them or not; an array is no word."""
    words = list(allowed)
    if not isinstance(value, str | None) or value not in words:
        raise not_one_of(name, value, words)


def shown(value: Any) -> str:
    """A value in an error, at a length that can be read."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@contextmanager
def under_names(**names: str) -> Iterator[None]:
    """Errors on arguments of what is called here, under the names of those who asked for it: ``alpha_h="alpha"``."""
    try:
        yield
    except InputError as error:
        if error.name not in names:
            raise
        raise InputError(names[error.name], error.got, error.expected, error.do) from None


class NotWritten(InputError, OSError):
    """A file that could not be written: the disk is full, or the system refuses for another reason.

    An ``OSError`` too, with its ``errno`` and ``strerror``. What was there before is still there.
    """

    def __init__(self, name: str, path: str, number: int, reason: str):
        is_full = number in FULL
        why = f"the disk is full: {reason}" if is_full else reason
        do = f"{'make room' if is_full else 'see to that'}, or give another path"
        super().__init__(name, f"{path} ({why})", "a file that can be written", do)
        self.errno, self.strerror, self._path = number, reason, path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self._path, self.errno, self.strerror)


class UnreadableModel(ValueError):
    """A ``pm.Model`` that isn't one of the factorisations we can read.

    Attributes
    ----------
    variable : the model variable at fault
    found : what stands there
    expected : what could stand there
    do : what to do about it
    """

    def __init__(self, variable: str, found: str, expected: str, do: str):
        super().__init__(f"{variable}: found {found}; expected {expected}; {do}")
        self.variable = variable
        self.found = found
        self.expected = expected
        self.do = do

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.variable, self.found, self.expected, self.do)


class UnsupportedModel(ValueError):
    """A readable model that the chosen engine can't run."""


class RunFailed(RuntimeError):
    """An engine that started and could not go on."""
