"""References of compiled code to arrays: kernels that make none do not count them, and nothing is held for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, rtsys

from nmf_zoo.inference.registry import names
from nmf_zoo.interfaces.compiling.small_runs import RUNS, run, units
from nmf_zoo.kernels.compile import is_tested, kernel
from tests.sizes import FULL, size

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
by_once = pytest.mark.skipif(not is_tested, reason="another numba compiles its own way")


@kernel
def _halves(x):
    return x[:2], x[2:]


@kernel
def _zeros(n):
    return np.zeros(n)


@kernel
def _as_row(x):
    return x.ravel()[1]


@kernel
def _as_row_again(x):
    return x.ravel()[0]


@kernel
def _owns_nothing(x):
    low, high = _halves(x)
    return low[0] + 10 * high[0]


@kernel
def _makes_an_array(x):
    (low, high), fresh = _halves(x), _zeros(3)
    return low[0] + 10 * high[0] + fresh[2] + _as_row(np.zeros((2, 2)))


@kernel
def _takes_an_array(x):
    return _zeros(3)[0] + x[0] + _as_row(x.reshape(2, 2))


@kernel
def _calls_all(x):
    fresh = np.zeros(4)
    return (
        _owns_nothing(x)
        + _makes_an_array(x)
        + _takes_an_array(x)
        + _takes_an_array(fresh)
        + _as_row_again(fresh.reshape(2, 2))
    )


def references(work):
    """How many arrays more than before are held by compiled code, after what it returned is gone."""
    held = []
    for _ in range(2):  # the first compiles
        gc.freeze()  # what was there need not be looked through
        work()
        gc.collect()
        stats = rtsys.get_allocation_stats()
        held.append(stats.mi_alloc - stats.mi_free)
    return held[-1] - held[-2]


def start_counting():
    rtsys.initialize(cpu_target.target_context)
    _nrt_python.memsys_enable_stats()


@pytest.fixture(scope="module", autouse=True)
def counted():
    start_counting()
    yield
    _nrt_python.memsys_disable_stats()


def test_what_kernels_hold_is_let_go():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    before = sys.getrefcount(x)
    results = []

    def work():
        results.append((_owns_nothing(x), _makes_an_array(x), _takes_an_array(x), _calls_all(x)))

    assert references(work) == 0
    assert set(results) == {(31.0, 31.0, 3.0, 65.0)}
    low, high = _halves(x)  # Python's references are counted
    assert (low.tolist(), high.tolist(), _zeros(2).tolist()) == ([1.0, 2.0], [3.0, 4.0], [0.0, 0.0])
    del low, high
    gc.collect()
    assert sys.getrefcount(x) == before


PLANTED = """
import sys
from numba.core import registry
from nmf_zoo.kernels.compile import once
once._target_without_counts = lambda: registry.cpu_target.target_context
from tests.unit import test_references as tests
tests.start_counting()
x = tests.np.ones(4)
print(tests.references(lambda: tests._calls_all(x)))
"""


@by_once
def test_a_subroutine_that_counts_in_a_kernel_that_does_not_is_seen(tmp_path):
    """numba keeps its subroutines by their types alone. Long: it compiles, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", PLANTED]
    environment = os.environ | {"NMF_ZOO_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


@by_once
def test_who_makes_no_arrays_and_takes_none_does_not_count():
    for made in (_owns_nothing, _makes_an_array, _takes_an_array, _halves):
        made._cache.flush()
        made(np.ones(4))
    counts = {made: bool(made._counting) for made in (_halves, _zeros, _as_row)}
    assert counts == {_halves: True, _zeros: True, _as_row: True}
    assert bool(_halves._plain)
    assert not _zeros._plain or not any(_zeros._plain.values())


@pytest.mark.campaign
@pytest.mark.parametrize("verb", RUNS)
def test_engines_let_go_of_all_arrays(verb):
    """Every engine; at full size on every model that differs in what is compiled. Long: every engine, twice."""
    found = units(names(verb))
    first = {unit.entry: unit for unit in reversed(found)}
    for unit in found if FULL else first.values():
        for model in unit.models[: size(1, 100)]:
            assert references(lambda unit=unit, model=model: run(unit.entry, [model])) == 0, (unit.name, model)
