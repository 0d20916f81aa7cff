"""Checks of what a run is asked for, before it starts: one clear line each."""

from __future__ import annotations

import numbers
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError, did_you_mean, not_one_of
from nmf_zoo.memory import PER_RUN, require_memory
from nmf_zoo.options import AUTO, LARGEST
from nmf_zoo.results.groups import CHECKED_CELLS
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.runtime.engine import Engine, Registration, WholeSampler, is_large
from nmf_zoo.structure import Array, Factorisation, Fixed

IDATA_KEYS = ("log_likelihood",)
MOST, OF_LARGE = 16, 4  # times its draws that a run goes on to by default; and for the sake of effective draws alone
TO_RELY_ON = 1000  # draws of a chain, below which a run is a first look that ends when it was asked to
KEEP = ("draws", "moments")


def check_counts(**counts: tuple[Any, int]) -> None:
    """Each argument is an integer not below its minimum: ``draws=(draws, 1)``."""
    for name, (value, least) in counts.items():
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or value < least:
            raise InputError(name, repr(value), f"an integer >= {least}", f"e.g. {name}={max(least, 1)}")
        if value > LARGEST:  # which may be longer than Python is willing to print
            raise InputError(name, f"an integer of {int(value).bit_length()} bits", "one of 63 bits at the most")


def check_tol(tol: Any) -> None:
    """``tol`` is a number >= 0."""
    if isinstance(tol, bool) or not isinstance(tol, numbers.Real) or not float(tol) >= 0.0:
        raise InputError("tol", repr(tol), "a number >= 0", "0 runs all max_iter iterations")


def check_stopping(on_step: Any, max_seconds: Any, engine: Registration) -> None:
    """``on_step`` is a function, ``max_seconds`` a positive number; or None where there are no steps."""
    if on_step is not None and not callable(on_step):
        raise InputError("on_step", repr(on_step), "a function of a Step, or None", "e.g. on_step=print")
    is_number = isinstance(max_seconds, numbers.Real) and not isinstance(max_seconds, bool)
    if max_seconds is not None and not (is_number and float(max_seconds) > 0.0):
        raise InputError("max_seconds", repr(max_seconds), "a number > 0, or None", "e.g. max_seconds=60")
    for name, value in (("on_step", on_step), ("max_seconds", max_seconds)):
        if value is not None and not isinstance(engine, Engine):
            raise InputError(name, f"{value!r} with {engine.name}", "None: it runs to its end", "leave it out")


def check_extend(extend: Any, cant: str, usual: int) -> int:
    """How many times its draws a run may go on to.

    ``cant`` : the words of the run that keep it from going on at all, or "". ``usual`` : what "auto" is otherwise
    """
    if isinstance(extend, str) and extend == AUTO:
        return 1 if cant else usual
    if not isinstance(extend, int | np.integer):
        raise InputError("extend", repr(extend), f"an integer >= 1, or {AUTO!r}", "e.g. extend=1")
    check_counts(extend=(extend, 1))
    if extend > 1 and cant:
        raise InputError("extend", f"{extend} {cant}", f"1 or {AUTO!r}", "leave it out")
    return int(extend)


def usual_extend(structure: Factorisation, draws: int, is_checked: bool) -> tuple[int, int]:
    """How many times its ``draws`` a run may go on to by default, and for the sake of effective draws alone.

    1 where nobody looks whether there are enough.
    """
    if not is_checked or draws < TO_RELY_ON:
        return 1, 1
    return MOST, OF_LARGE if is_large(structure) else MOST


def check_starts(initvals: Any, start: Any, engine: Registration) -> None:
    """``initvals`` and ``start`` are as by default where an engine begins with draws of its own."""
    if not isinstance(engine, WholeSampler) or engine.has_starts:
        return
    if initvals is not None:
        got, expected = f"values with {engine.name}", "None: it begins with draws of the prior"
        raise InputError("initvals", got, expected, "leave it out")
    if not (isinstance(start, str) and start in ("auto", "random")):
        got, expected = f"{start!r} with {engine.name}", "'auto' or 'random': it begins with draws of the prior"
        raise InputError("start", got, expected, "leave it out")


def wants_log_likelihood(
    idata_kwargs: Mapping[str, Any] | None, structure: Factorisation, var_names: Sequence[str] | None
) -> bool:
    """Whether ``idata_kwargs`` asks for the log_likelihood group; ``var_names`` must then keep what it needs."""
    if not isinstance(idata_kwargs, Mapping | None) or set(idata_kwargs or ()) - set(IDATA_KEYS):
        got, expected = repr(idata_kwargs), f"a dict with keys among {list(IDATA_KEYS)}"
        raise InputError("idata_kwargs", got, expected, "leave the others out")
    if not (idata_kwargs or {}).get("log_likelihood", False):
        return False
    dropped = [] if var_names is None else [name for name in needed_shapes(structure) if name not in var_names]
    if dropped:
        raise InputError(
            "idata_kwargs", f"log_likelihood without {dropped}", "these variables kept", "add them to var_names"
        )
    return True


def entropy_of(random_seed: Any) -> int | list[int]:
    """The entropy of a run: what was given, or a new one. Giving it again gives the same draws."""
    if isinstance(random_seed, np.random.Generator):
        return int(random_seed.integers(2**63))
    try:
        entropy = np.random.SeedSequence(random_seed).entropy
    except (TypeError, ValueError) as error:
        expected = "a non-negative integer, a sequence of them, a NumPy Generator or None"
        raise InputError("random_seed", repr(random_seed), expected, "e.g. random_seed=1") from error
    words = np.asarray(entropy, dtype=object)
    return int(words) if words.ndim == 0 else [int(word) for word in words.ravel()]


def variable_shapes(structure: Factorisation) -> dict[str, tuple[int, ...]]:
    """The shape of every variable that a posterior holds."""
    shapes: dict[str, tuple[int, ...]] = {**structure.W.shapes, **structure.H.shapes}
    shapes |= {name: unknown.variable_shape for name, unknown in structure.unknowns.items()}
    if structure.imputed is not None:
        shapes[structure.imputed.name] = structure.imputed.rows.shape
    return shapes


def needed_shapes(structure: Factorisation) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the variables that X depends on directly."""
    names = [factor.name for factor in (structure.W, structure.H) if not factor.is_fixed]
    names += [unknown.name for unknown in structure.likelihood.unknowns]
    shapes = variable_shapes(structure)
    return {name: shapes[name] for name in names}


def check_var_names(structure: Factorisation, var_names: Sequence[str] | None) -> None:
    """``var_names`` are variables of the posterior."""
    if var_names is None:
        return
    known = list(variable_shapes(structure))
    is_list = isinstance(var_names, Sequence) and not isinstance(var_names, str)
    if not is_list or not len(var_names) or not set(var_names) <= set(known):
        unknown = [name for name in var_names if name not in known] if is_list else []
        do = did_you_mean(next(iter(unknown), None), known) or "leave it out to keep all"
        raise InputError("var_names", repr(var_names), f"a selection of {known}, in a list", do)


def check_initvals(structure: Factorisation, initvals: Any, chains: int) -> list[dict[str, Array]]:
    """One mapping of variable names to checked arrays per chain."""
    given = initvals if isinstance(initvals, list | tuple) else [initvals] * chains
    if not all(isinstance(start, Mapping | None) for start in given):
        raise InputError("initvals", type(initvals).__name__, "a mapping of names to arrays, or one per chain")
    if len(given) != chains:
        raise InputError(
            "initvals", f"a list of {len(given)}", f"one mapping per chain, {chains}", "or one mapping for all"
        )
    return [_check_start(structure, start or {}) for start in given]


def _check_start(structure: Factorisation, start: Mapping[Any, Any]) -> dict[str, Array]:
    shapes = variable_shapes(structure)
    checked = {}
    for key, value in start.items():
        name = getattr(key, "name", key)
        if name not in shapes:
            do = did_you_mean(name, shapes) or "remove it"
            raise InputError("initvals", f"a value for {name!r}", f"names among {list(shapes)}", do)
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"initvals[{name!r}]", repr(value)[:60], "numbers") from error
        if array.shape != shapes[name]:
            raise InputError(
                f"initvals[{name!r}]", f"shape {array.shape}", f"shape {shapes[name]}", "transpose or reshape it"
            )
        _check_values(name, array, name in structure.signed)
        checked[name] = array
    return checked


def _check_values(name: str, array: Array, is_signed: bool) -> None:
    """Finite, and, unless it may have either sign, neither negative nor all 0."""
    if is_signed and not np.all(np.isfinite(array)):
        raise InputError(f"initvals[{name!r}]", "values that are not finite", "finite values", "mend them")
    if not is_signed and (not np.all(np.isfinite(array)) or np.any(array < 0) or not np.any(array > 0)):
        got = "values that are negative, not finite or all 0"
        raise InputError(f"initvals[{name!r}]", got, "finite values >= 0", "mend them")


def check_possible(structure: Factorisation) -> None:
    """No positive cell lies where a known factor makes the mean 0, and with it the likelihood; of powers, no cell."""
    if structure.data is None:
        return
    for factor, axis in ((structure.W, 0), (structure.H, 1)):
        if not isinstance(factor.prior, Fixed):
            continue
        empty = ~np.any(factor.prior.value != 0, axis=1 - axis)
        if not np.any(empty):
            continue
        rows, cols, x = structure.observed_cells()
        needed = structure.likelihood.needs_mean(x)
        if needed is None:
            return
        needs, word = needed
        background = structure.background_at(rows, cols)
        along = rows if axis == 0 else cols
        bad = np.flatnonzero(needs & (background == 0) & empty[along])
        if bad.size:
            place = f"{('feature', 'obs')[axis]} {along[bad[0]]}"
            got = f"{bad.size} {word} cells, the first at {place}, where {factor.name or 'a known factor'} is 0"
            raise InputError(structure.likelihood.name, got, "a positive mean there", "use a small positive value")


def check_keep(keep: Any, store: Any, engine: Registration, with_log_likelihood: bool) -> str:
    """What a run's traces keep: "draws", "moments", or "store" for draws on disk."""
    if keep not in KEEP:
        raise not_one_of("keep", keep, KEEP)
    if store is None and keep == "draws":
        return keep
    name, got = ("keep", repr(keep)) if store is None else ("store", repr(str(store)))
    if not isinstance(engine, Engine):
        raise InputError(name, f"{got} with {engine.name}", "draws in memory: it makes all at once", "leave it out")
    if with_log_likelihood:
        do = "leave it out" if store is None else "call nz.log_likelihood afterwards"
        raise InputError("idata_kwargs", f"log_likelihood with {name}={got}", "draws in memory", do)
    if store is None:
        return keep
    if not isinstance(store, str | os.PathLike) or Path(store).suffix != ".zarr":
        raise InputError("store", repr(store), "a path that ends in .zarr, or None")
    if not os.path.isdir(Path(store).absolute().parent):
        raise InputError("store", f"{got} in a folder that does not exist", "a folder that does", "make it")
    if keep == "moments":
        raise InputError("store", f"{got} with keep='moments'", "draws to store", "leave one of them out")
    return "store"


def check_runs(name: str, count: int, structure: Factorisation, kept: float, do: str) -> None:
    """So many chains or restarts fit into memory: each with ``kept`` copies of all variables, and what it is itself."""
    cells = _cells(structure, None)
    require_memory(name, f"{count} {name} of {cells} cells", count * (PER_RUN + 8.0 * kept * cells), do)


def check_memory(structure: Factorisation, draws: int, var_names: Sequence[str] | None, do: str, copies: int) -> None:
    """The stored draws fit into this machine's memory, ``copies`` times at the peak."""
    cells = _cells(structure, var_names)
    require_memory("draws", f"{draws} draws of {cells} cells", copies * 8.0 * cells * draws, do)


def check_space(structure: Factorisation, draws: int, run: SampleRun, store: Path | str | None, copies: int) -> None:
    """What a sampling run keeps fits into memory, or on the disk it is for."""
    do = "raise thin, or keep fewer var_names"
    if run.keep == "draws":
        check_memory(structure, draws, run.var_names, do, copies)
    elif run.keep == "moments":
        stats = 1 + min(CHECKED_CELLS, structure.shape[0] * structure.shape[1])
        require_memory("draws", f"the statistics of {draws} draws", 8.0 * stats * draws, "raise thin, or lower extend")
    elif store is not None and not Path(store).exists():
        cells = _cells(structure, run.var_names)
        require_disk("store", f"{draws} draws of {cells} cells", 8.0 * cells * draws, store, do)


def _cells(structure: Factorisation, var_names: Sequence[str] | None) -> int:
    shapes = variable_shapes(structure)
    return sum(int(np.prod(shapes[name])) for name in (var_names or shapes))


def require_disk(name: str, got: str, needed: float, folder: str | Path, do: str) -> None:
    """Refuse what needs more bytes than are free where ``folder`` is or will be."""
    there = Path(folder).absolute()
    free = _free_at(there)
    while free is None and there != there.parent:  # what is not there yet, or can't be looked at
        there = there.parent
        free = _free_at(there)
    if free is None:
        return
    if needed > free:
        raise InputError(
            name, f"{got}, {needed / 2**30:.1f} GiB", f"at most the {free / 2**30:.1f} GiB free on that disk", do
        )


def _free_at(place: Path) -> float | None:
    """Bytes free on the disk of a place; None when it can't be asked."""
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None
