"""How kernels are compiled: the one place that knows numba's decorators.

A decorator is named for what it promises about arithmetic. Without a promise the compiler keeps the order of the code;
a promise is part of a kernel's results, down to the last bit. Division by zero is infinite or NaN in all of them, no
exception, and all release Python's lock.

=====================  ================================================================================================
`kernel`               every operation rounded as written, in the order written
`in_lanes`             products may be fused into sums (rows lie in SIMD lanes, nothing changes its order)
`summing`              and sums may run in SIMD lanes, in another order; NaN and infinity keep their meaning
`summing_signless`     and the sign of a zero does not count
`comparing`            and there are no NaN: for largest entries
=====================  ================================================================================================

A call costs 7 to 10 ns where it is not inlined: `inlined` and `inlined_in_lanes` are a `kernel` and one `in_lanes` that
the compiler must copy into their callers, whole as they are. `spliced` code is copied earlier, before types are known:
its arithmetic is then the caller's.

A kernel that is `chosen_by` the class of an argument stands for several: only those that are called are compiled.

What Python calls is compiled when it is called first, together with all that it calls (`once`), and kept (`cache`).
With ``NUMBA_DISABLE_JIT=1`` kernels are plain Python (`interpreted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

import numba
from numba.extending import overload

from nmf_zoo.kernels.compile.cache import KernelCache
from nmf_zoo.kernels.compile.interpreted import interpreted

TESTED = ("0.65.", "0.68.")  # versions of numba whose private parts `once` was tested with
is_tested = numba.__version__.startswith(TESTED)
if is_tested:
    from nmf_zoo.kernels.compile.once import Choice, Kernel


def _decorator(*promises: str, **options: Any) -> Callable:
    options |= {"nogil": True, "error_model": "numpy", "fastmath": set(promises)}

    def compiled(function: Callable) -> Any:
        if numba.config.DISABLE_JIT:
            return interpreted(function)
        made = (
            Kernel(function, targetoptions={"nopython": True, **options})
            if is_tested
            else numba.njit(**options)(function)
        )
        made._cache = KernelCache(function)
        return made

    return compiled


kernel = _decorator()
in_lanes = _decorator("contract")
summing = _decorator("contract", "reassoc")
summing_signless = _decorator("contract", "reassoc", "nsz")
comparing = _decorator("contract", "reassoc", "nsz", "nnan")

inlined = _decorator(forceinline=True)
inlined_in_lanes = _decorator("contract", forceinline=True)
spliced = _decorator(inline="always")


def chosen_by(name: str, kernels: Mapping[type, Any]) -> Callable:
    """A call is one of ``kernels``, by the class of the argument of this name. The decorated function says what for."""

    def choosing(function: Callable) -> Any:
        place = list(signature(function).parameters).index(name)

        @wraps(function)
        def call(*arguments):
            return kernels[type(arguments[place])](*arguments)

        if numba.config.DISABLE_JIT:
            return call
        if is_tested:
            return Choice(function, place, kernels)

        @overload(call, strict=False)
        def compiled(*arguments):
            chosen = kernels[arguments[place].instance_class]
            return lambda *arguments: chosen(*arguments)

        return call

    return choosing
