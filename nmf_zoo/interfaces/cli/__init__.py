"""The command line. Exit codes, with one line on standard error for all but 0:

0    done
1    the run failed, or its result could not be written
2    bad input, found before the work began
130  interrupted by Ctrl-C, 143 by SIGTERM; what was drawn is saved

Nothing at the top of these files imports PyMC, numba, ArviZ or pandas, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nmf_zoo.errors import InputError, NmfZooWarning, NotWritten, UnreadableModel, UnsupportedModel
from nmf_zoo.interfaces.cli.output import exit_code, stopping, was_stopped
from nmf_zoo.interfaces.cli.parser import make_parser
from nmf_zoo.interfaces.cli.wording import shell_words

BAD_INPUT = (InputError, UnreadableModel, UnsupportedModel)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _print_any_label()
    arguments = make_parser().parse_args(argv)
    _choose_backend()
    with stopping(), warnings.catch_warnings():
        warnings.simplefilter("always", NmfZooWarning)
        if not arguments.debug:
            warnings.showwarning = partial(_show_warning, arguments)
        try:
            code = arguments.run(arguments)
            return exit_code() if code == 0 and was_stopped() else code
        except KeyboardInterrupt as stop:
            return _interrupted(str(stop))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            if arguments.debug:
                raise
            if was_stopped() and not isinstance(error, NotWritten):
                return _interrupted("")
            code = 2 if isinstance(error, BAD_INPUT) and not isinstance(error, NotWritten) else 1
            return _report(_describe(error, arguments), code)


def _interrupted(more: str) -> int:
    return _report(f"interrupted{f': {more}' if more else ''}; outputs are whole or absent", exit_code())


def _describe(error: Exception, arguments: Namespace) -> str:
    """What went wrong, in the words of the shell."""
    if isinstance(error, BAD_INPUT):
        return shell_words(str(error), _file_of_x(arguments))
    if isinstance(error, MemoryError):
        said = f": {error}" if str(error) else ""
        return f"out of memory{said}; ask for a smaller rank, or fewer draws, chains or restarts"
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _file_of_x(arguments: Namespace) -> Path | None:
    """Where the data came from: a command on a result may have a file of data beside it."""
    return getattr(arguments, "data", None) or getattr(arguments, "input", None)


def _report(message: str, code: int) -> int:
    print("nmf-zoo:", " ".join(message.split()), file=sys.stderr)
    return code


def _show_warning(arguments, message, category, filename, lineno, file=None, line=None) -> None:
    """Ours in one line; those of other libraries speak to developers."""
    if issubclass(category, NmfZooWarning):
        _report(f"warning: {shell_words(str(message), _file_of_x(arguments))}", 0)


def _print_any_label() -> None:
    """A label that the terminal's encoding lacks is printed as an escape, as it is on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _choose_backend() -> None:
    """Without a C++ compiler PyTensor falls back to plain Python, unless it is told to use numba."""
    if "PYTENSOR_FLAGS" not in os.environ and shutil.which("g++") is None:
        os.environ["PYTENSOR_FLAGS"] = "cxx=,mode=NUMBA"
