"""What compiled kernels make of their arguments, and that the same code makes it too as plain Python.

A process with the JIT records what cases give and, of each, calls from Python into kernels: the arguments before and
after, and what was returned. ``NUMBA_DISABLE_JIT=1 python -m tests.without_jit FILE`` makes the calls and the cases
again, says what isn't the same to 1e-10 (integers, and so discrete draws: at all) and which kernels none of the calls
came to. Every call starts from what the compiled run had there, however far that had gone.
"""

from __future__ import annotations

import os
import pickle
import pkgutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial, update_wrapper
from importlib import import_module
from itertools import product
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numba.core.dispatcher import Dispatcher

import nmf_zoo as nz
import nmf_zoo.kernels
from nmf_zoo.kernels.compile.interpreted import interpreted
from nmf_zoo.runtime import blocks
from tests.golden import recipes
from tests.golden.compare import REFUSALS
from tests.golden.make import Outcome, outcome

KERNELS = "nmf_zoo.kernels."
COMPILED = (KERNELS, "nmf_zoo.distributions.")  # what calls a kernel there is compiled itself
FIRST_CALLS = 2  # of a kernel in a case that are recorded, beside the last
TOLERANCE, SINGLE_TOLERANCE = 1e-10, 1e-5
LONG_TOLERANCE = 1e-6  # of what many steps have made, in which a rounding grows; each has calls of its own
FEW = {
    "sample": {"draws": 2, "tune": 1, "chains": 1},
    "fit": {"max_iter": 2, "draws": 2, "restarts": 1, "search": None},
}
SMALL = {"particles": 15, "draws": 5, "tune": 2, "max_iter": 3, "restarts": 1, "burn_in": 1, "batch": 2}
LEAST: dict[type, dict[str, Any]] = {nz.Chib: {"draws": 100}}  # that they take


class Call(NamedTuple):
    """Of a kernel by name, pickled: what it was given, and (what it returned, what it has made of the former)."""

    kernel: str
    given: bytes
    made: bytes


class Recorded(NamedTuple):
    """Of a case: what it gave, how far that may be off, calls into kernels."""

    result: Outcome
    tolerance: float
    calls: list[Call]


class Report(NamedTuple):
    """What the process without the JIT says: what differs, in lines, and kernels that no call has come to."""

    differences: list[str]
    unseen: list[str]


# -- cases -------------------------------------------------------------------------------------------------------


def small(own: type) -> dict[str, Any]:
    return {field.name: SMALL[field.name] for field in fields(own) if field.name in SMALL} | LEAST.get(own, {})


def steps() -> Iterator[recipes.Case]:
    """One or two steps of every engine on every model of the contract tests."""
    for own, name in product(recipes.quick_engines(), recipes.MAKERS):
        options = {word: value for word, value in small(own).items() if word != "draws"}  # which the verb takes
        yield f"{own.__name__}: {name}", partial(recipes.run, own, name, options, **FEW[recipes.engines()[own]])


def runs() -> Iterator[recipes.Case]:
    """A few columns of every stream, and short evidences."""
    for own, name in product(recipes.streams(), recipes.MAKERS):
        yield f"stream {own.__name__}: {name}", partial(recipes.stream, own, name, small(own))
    for own, name in product(recipes.methods(), recipes.MAKERS):
        yield f"evidence {own.__name__}: {name}", partial(recipes.evidence, own, name, small(own))


GROUPS = {steps: TOLERANCE, runs: LONG_TOLERANCE}


def record(is_wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Recorded]:
    """All cases that aren't refused, or those of them whose name is wanted."""
    found = {}
    for group, tolerance in GROUPS.items():
        for name, case in group():
            if is_wanted(name):
                with recorded() as calls:
                    result = outcome(case)
                if not (isinstance(result, str) and result.startswith(REFUSALS)):
                    found[name] = Recorded(result, tolerance, calls())
    return found


# -- with the JIT ------------------------------------------------------------------------------------------------


@contextmanager
def recorded() -> Iterator[Callable[[], list[Call]]]:
    """Gives the first calls of each kernel from Python, and the last. Samplers are asked for one sweep at a time."""
    made: dict[str, list[Call]] = {}
    with ExitStack() as stack:
        stack.enter_context(patch.object(blocks, "MOST_SWEEPS", 1))
        for module in [module for name, module in sys.modules.items() if _is_python(name)]:
            for word, value in list(vars(module).items()):
                instead = listening(value, made)
                if instead is not value:
                    stack.enter_context(patch.object(module, word, instead))
        yield lambda: [call for calls in made.values() for call in calls]


def listening(value: Any, made: dict[str, list[Call]]) -> Any:
    """Whatever a module calls kernels by, with calls written down: the kernel, or the module that it is in."""
    if isinstance(value, Dispatcher) and value.__module__.startswith(KERNELS):
        return Recording(value, made)
    if isinstance(value, ModuleType) and value.__name__.startswith(KERNELS):
        return SimpleNamespace(**{name: listening(part, made) for name, part in vars(value).items()})
    return value


def _is_python(module: str) -> bool:
    return module.startswith("nmf_zoo.") and not module.startswith(COMPILED)


class Recording:
    """A kernel, of which calls are written down. In all else it is the kernel."""

    def __init__(self, kernel: Dispatcher, made: dict[str, list[Call]]):
        update_wrapper(self, kernel.py_func)
        self._kernel, self._made = kernel, made
        self._name = f"{kernel.__module__}:{kernel.py_func.__qualname__}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *arguments: Any) -> Any:
        given = pickle.dumps(arguments)
        result = self._kernel(*arguments)
        calls = self._made.setdefault(self._name, [])
        del calls[FIRST_CALLS:]
        calls.append(Call(self._name, given, pickle.dumps((result, arguments))))
        return result


def report(known: Mapping[str, Recorded]) -> Report:
    """What a process without the JIT makes of these cases."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recorded"
        file.write_bytes(pickle.dumps(known))
        command = [sys.executable, "-m", "tests.without_jit", str(file)]
        subprocess.run(command, env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, cwd=Path(__file__).parents[1], check=True)
        return Report(*pickle.loads(file.read_bytes()))


# -- without -----------------------------------------------------------------------------------------------------


def main(file: Path) -> None:
    known: dict[str, Recorded] = pickle.loads(file.read_bytes())
    found, seen = [], set()
    for name, case in known.items():
        found += [f"{name}: {call.kernel}: {said}" for call in case.calls if (said := replayed(call, seen))]
    cases = dict((*steps(), *runs()))
    for name, case in known.items():
        if said := difference(case.result, outcome(cases[name]), case.tolerance):
            found.append(f"{name}: {said}")
    unseen = [name for name, kernel in kernels().items() if _place(kernel.__wrapped__.__code__) not in seen]
    file.write_bytes(pickle.dumps((found, unseen)))


def kernels() -> dict[str, Callable]:
    """Every kernel by name, none of them compiled."""
    found = {}
    for info in pkgutil.walk_packages(nmf_zoo.kernels.__path__, KERNELS):
        for name, value in vars(import_module(info.name)).items():
            if getattr(value, "__module__", "") == info.name and _is_interpreted(value):
                found[f"{info.name}:{name}"] = value
    return found


def _is_interpreted(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename == interpreted.__code__.co_filename and hasattr(value, "__wrapped__")


def replayed(call: Call, seen: set[tuple[str, int]]) -> str:
    """What the plain function makes otherwise than the compiled one; adds to the places of functions that are run."""
    module, _, name = call.kernel.partition(":")
    arguments = pickle.loads(call.given)
    sys.settrace(lambda frame, *_: seen.add(_place(frame.f_code)))
    try:
        result = getattr(import_module(module), name)(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.settrace(None)
    return difference(pickle.loads(call.made), (result, arguments))


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_filename, code.co_firstlineno


def difference(compiled: Any, plain: Any, tolerance: float = TOLERANCE, path: str = "") -> str:
    """Where two results differ, in words."""
    if compiled is None or plain is None or isinstance(compiled, str) or isinstance(plain, str):
        return "" if compiled == plain else f"{path} {compiled}, without the JIT {plain}"
    if isinstance(compiled, Mapping):
        pairs = [(f"{path}/{name}", value, plain.get(name)) for name, value in compiled.items()]
    elif isinstance(compiled, tuple | list):
        pairs = [(f"{path}/{number}", *pair) for number, pair in enumerate(zip(compiled, plain, strict=True))]
    else:
        return _distance(np.asarray(compiled), np.asarray(plain), tolerance, path)
    return "; ".join(filter(None, (difference(one, other, tolerance, part) for part, one, other in pairs)))


def _distance(compiled: np.ndarray, plain: np.ndarray, tolerance: float, path: str) -> str:
    if compiled.shape != plain.shape:
        return f"{path} of shape {compiled.shape}, without the JIT {plain.shape}"
    if compiled.dtype.kind == "f":
        tolerance = SINGLE_TOLERANCE if compiled.dtype == np.float32 else tolerance
        is_same = np.isclose(plain, compiled, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        is_same = plain == compiled
    if np.all(is_same):
        return ""
    one, other = compiled[~is_same][0], plain[~is_same][0]
    return f"{path} differs at {np.sum(~is_same)} of {is_same.size}, {one!r}, without the JIT {other!r}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
