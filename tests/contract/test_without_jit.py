"""With ``NUMBA_DISABLE_JIT=1`` every engine runs and kernels make what they make compiled; one that doesn't is seen."""

import pickle

import numpy as np
import pytest

import nmf_zoo as nz
from tests import without_jit
from tests.golden import recipes
from tests.sizes import at_full_size
from tests.without_jit import Call, difference, record, replayed, report

QUICK = {
    "EM: gamma_nmf",
    "EM: is_nmf",
    "VB: gamma_nmf",
    "Gibbs: gamma_nmf",
    "HMMExact: hmm_nmf",
    "stream OnlineEM: gap",
}

KEY, FOLD = np.uint64(7), "nmf_zoo.kernels.random.keyed_rng:fold"
OF_RATES = (np.zeros(2), np.ones((1, 1)), np.full((1, 1), 2.0), np.zeros(2, np.int32), np.zeros(2, np.int32))

pytestmark = pytest.mark.filterwarnings("ignore")  # of few draws and short runs


def test_some_engines_and_kernels_without_the_jit():
    """Long: kernels run as Python, in a process that imports PyMC."""
    known = record(lambda name: name in QUICK)
    assert set(known) == QUICK
    assert all(case.calls for case in known.values())
    found = report(known)
    assert found.differences == []
    assert FOLD not in found.unseen
    assert "nmf_zoo.kernels.hmm.particles.filter:normalise" in found.unseen


@at_full_size
@pytest.mark.campaign
def test_all_engines_without_the_jit():
    """Long: their kernels run as Python."""
    known = record(lambda name: True)
    wanted = {own.__name__ for own in recipes.quick_engines()}
    wanted |= {f"stream {own.__name__}" for own in recipes.streams()}
    wanted |= {f"evidence {own.__name__}" for own in recipes.methods() if own is not nz.Enumeration}  # has no kernels
    assert {name.partition(":")[0] for name in known} == wanted
    assert report(known).differences == []


@pytest.mark.parametrize(
    ("kernel", "given", "made"),
    [
        (FOLD, (KEY, 1), (np.uint64(3), (KEY, 1))),
        (FOLD, (KEY,), (np.uint64(3), (KEY,))),
        ("nmf_zoo.kernels.random.keyed_rng:children", (KEY, 2), (np.zeros(3, np.uint64), (KEY, 2))),
        ("nmf_zoo.kernels.numerics.cells:rates_at_cells", OF_RATES, (None, OF_RATES)),
    ],
)
def test_a_kernel_that_makes_something_else_is_seen(kernel, given, made):
    """As if it returned, raised or wrote something else; its arguments are not those that were recorded then."""
    assert replayed(Call(kernel, pickle.dumps(given), pickle.dumps(made)), set())


@pytest.mark.parametrize(
    ("compiled", "plain"),
    [
        (1.0, 1.0 + 1e-9),
        (np.ones(3), np.array([1.0, 1.0, 1.0 + 1e-9])),
        (np.array([1, 2]), np.array([1, 3])),
        (np.ones(2), np.array([1.0, np.nan])),
        (np.ones(2), np.ones(3)),
        ({"W": (1.0, [2.0])}, {"W": (1.0, [2.1])}),
        ({"W": 1.0}, {}),
        ({"W": 1.0}, "ZeroDivisionError: division by zero"),
        (True, False),
        (None, 1.0),
    ],
)
def test_what_differs(compiled, plain):
    assert difference(compiled, plain)
    assert not difference(compiled, compiled)


def test_rounding_is_no_difference():
    assert not difference({"W": np.array([1.0, np.nan, np.inf])}, {"W": np.array([1.0 + 1e-12, np.nan, np.inf])})
    assert not difference(np.float32([1.0]), np.float32([1.0 + 1e-6]))
    assert difference(1.0, 1.0 + 1e-8)
    assert not difference(1.0, 1.0 + 1e-8, without_jit.LONG_TOLERANCE)
