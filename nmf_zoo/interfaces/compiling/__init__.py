"""Kernels compiled ahead of the first run that needs them: for images, clusters, continuous integration.

Short runs of the engines (`small_runs`), in helper processes that share the cache (`helpers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from nmf_zoo.errors import InputError, did_you_mean
from nmf_zoo.inference.registry import names, renamed
from nmf_zoo.interfaces.compiling.helpers import in_helpers
from nmf_zoo.interfaces.compiling.small_runs import RUNS, Unit, run, units
from nmf_zoo.kernels.compile import cache
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.runtime.compile_times import compile_times
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.progress import Watch


@names_checked
def compile(
    engines: str | Sequence[str] | None = None,
    *,
    cores: int | None = None,
    progressbar: bool = True,
    quiet: bool = False,
) -> dict[str, float]:
    """Compile the kernels of engines ahead of time: their first run in any process then starts at once.

    Each engine runs for a moment on small models of every kind that it takes, in processes of its own. Kernels are kept
    in the folder that ``nmf-zoo cache`` shows, for this machine's processor and these versions of Python, NumPy and
    numba; what is there already is not compiled again. All engines need some minutes on two cores.

    Parameters
    ----------
    engines : names of engines, of streams, and of methods for the evidence; default all. ``"nuts"`` has no kernels of
        its own: PyMC compiles each model anew
    cores : processes side by side; default every core
    progressbar : a bar on standard error
    quiet : no bar

    Returns
    -------
    dict: CPU seconds of each engine on each kind of model, e.g. ``"gibbs for poisson data"``

    Raises
    ------
    InputError : a name is not one of the registry
    RunFailed : an engine could not be run, or its process was killed; what was compiled before is kept

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> list(nz.compile("enumeration", quiet=True))
    ['enumeration for poisson data']
    """
    if cores is not None:
        check_counts(cores=(cores, 1))
    chosen = _check(engines)
    todo = sorted(units(chosen), key=_seconds, reverse=True) if cache.is_on() else []
    ended, seconds = count(1), dict.fromkeys((unit.name for unit in todo), 0.0)
    with Watch(bool(todo) and progressbar and not quiet, "compiling", 1, len(todo)) as watch:

        def done(unit: Unit, took: float) -> None:
            seconds[unit.name] += took
            watch.report(0, next(ended), unit.name)

        in_helpers([unit for unit in todo if unit.is_ours], cores or available_cores(), done)
        for unit in todo:
            if not unit.is_ours:  # registered in this process alone
                done(unit, run(unit.entry, unit.models))
    return seconds


def _check(engines: str | Sequence[str] | None) -> list[str]:
    """The names of what is to be compiled."""
    known = names(*RUNS)
    chosen = known if engines is None else [engines] if isinstance(engines, str) else list(engines)
    for name in chosen:
        if name not in known:
            raise InputError("engines", repr(name), f"names among {known}", renamed(name) or did_you_mean(name, known))
    return chosen


def _seconds(unit: Unit) -> float:
    """About how long it takes: the longest come first, so that the others fit beside them."""
    return compile_times().get(unit.name, 0.0)
