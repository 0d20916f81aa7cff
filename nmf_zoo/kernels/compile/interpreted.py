"""Kernels as plain Python, for ``NUMBA_DISABLE_JIT=1``: with the arithmetic that they have when compiled.

Python's own numbers differ from machine numbers where a kernel relies on them: 1.0 / 0.0 and math.log(0.0) are
exceptions instead of infinite, a Python float beside a float32 is rounded to one, and a NumPy integer that wraps
around warns. So a kernel's literals and arguments are NumPy's numbers here, ``math`` is `IEEE_MATH`, and NumPy keeps
quiet. Lines stay where they are, for debuggers and coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from types import FunctionType, SimpleNamespace

import numpy as np


def _log_gamma(x: float) -> np.float64:
    try:
        return np.float64(math.lgamma(x))
    except (OverflowError, ValueError):  # beyond all numbers; zero or a negative integer
        return np.float64(np.inf)


_UFUNCS = ("copysign", "cosh", "exp", "expm1", "hypot", "log", "log1p", "sin", "sinh", "sqrt")
IEEE_MATH = SimpleNamespace(
    **{name: value for name, value in vars(math).items() if not name.startswith("_")}
    | {name: getattr(np, name) for name in _UFUNCS}
    | {"lgamma": _log_gamma}
)  # the module with answers in the place of exceptions


def interpreted(function: Callable) -> Callable:
    """The function on machine numbers."""
    scope, code = function.__globals__, function.__code__
    if scope.get("math") is math:
        scope["math"] = IEEE_MATH
    body = FunctionType(code.replace(co_consts=_machine_numbers(code.co_consts)), scope, function.__name__)

    @wraps(function)
    def call(*arguments):
        with np.errstate(all="ignore"):
            return body(*_machine_numbers(arguments))

    call.py_func = call
    return call


def _machine_numbers(values: tuple) -> tuple:
    return tuple(np.float64(value) if type(value) is float else value for value in values)
