"""Results are as kept: to the bit on the same processor, one step to 1e-9 elsewhere; a changed bit is seen."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import em
from nmf_zoo.workbench import rank
from tests.golden import kept, recipes, steps
from tests.golden.arrays import arrays_of
from tests.golden.compare import compare
from tests.golden.make import outcome
from tests.planted import put
from tests.registered import with_changed

pytestmark = pytest.mark.filterwarnings("ignore")  # of few draws and short runs
KEPT = kept.load()
HERE = kept.holds_here(KEPT)
AGAIN = "python -m tests.golden shows more; if the change is meant, --keep keeps it, on each line of Python"


@pytest.mark.skipif(not HERE, reason="digests were kept on another processor or with other versions")
def test_every_pair_has_the_bits_that_were_kept():
    """Long: every engine on every model that it takes."""
    made = {name: outcome(call) for name, call in recipes.cases((recipes.pairs, recipes.wider))}
    assert kept.compare_digests(KEPT, made) == {}, AGAIN


@pytest.mark.parametrize("what", sorted({name.partition(":")[0] for name in KEPT["steps"]}))
def test_one_step_from_the_same_start(what):
    """Only what no seed decides: on another processor a draw may take another path."""
    calls, found = dict(steps.steps()), {}
    for name in KEPT["steps"]:
        if name.partition(":")[0] == what:
            found |= {name: steps.disagreements(KEPT["steps"][name], arrays_of(calls[name](steps.SEEDS[0])))}
    assert not any(found.values()), found


def test_every_engine_is_found():
    assert set(recipes.engines()) == {entry.options for entry in registry.entries(*registry.VERBS)}
    assert {entry.options for entry in registry.entries("stream")} == set(recipes.streams())
    assert {entry.options for entry in registry.entries("evidence")} == set(recipes.methods())
    assert {method.options for method in rank.METHODS.values()} <= set(recipes.judges())  # which take Bound too


# -- planted changes ---------------------------------------------------------------------------------------------


def with_one_bit(array):
    """A copy with the last bit of its first element flipped."""
    raw = bytearray(array.tobytes())
    raw[0] ^= 1
    return np.frombuffer(raw, array.dtype).reshape(array.shape)


def case(name):
    return dict(recipes.pairs())[name]


def test_one_bit_of_one_array_is_seen():
    base = {"EM: gap": outcome(case("EM: gap"))}
    for name, array in base["EM: gap"].items():
        head = {"EM: gap": base["EM: gap"] | {name: with_one_bit(array)}}
        (row,) = compare(base, head)
        assert row.is_bad
        assert name in row.details
        assert kept.digests_of(base) != kept.digests_of(head)
    (row,) = compare(base, base)
    assert not row.is_bad


def test_one_bit_in_a_step_of_an_engine_is_seen(monkeypatch):
    """As if a kernel summed in another order."""
    own = em.ENGINE

    def step(problem, state, key):
        state, info = own.step(problem, state, key)
        return state._replace(W=with_one_bit(state.W)), info

    name = "EM: poisson_nmf"
    base = {name: outcome(lambda: recipes.run(recipes.nz.EM, "poisson_nmf"))}
    put(monkeypatch, "registry", with_changed(own, step=step))
    head = {name: outcome(lambda: recipes.run(recipes.nz.EM, "poisson_nmf"))}
    (row,) = compare(base, head)
    assert row.verdict == "differs"
    assert "posterior/W" in row.details


@pytest.mark.parametrize("what", ["base", "head"])
def test_what_one_side_lacks_or_refuses(what):
    result, refused = {"a": np.ones(2)}, "UnsupportedModel: no"
    sides = {"base": {"x": result, "y": result}, "head": {"x": result, "y": result}}
    sides[what] = {"x": refused}
    rows = compare(**sides)
    assert [row.is_bad for row in rows] == [what == "head"] * 2
    assert all(row.verdict != "same bits" for row in rows)


def test_a_failure_is_told_from_a_refusal():
    failed, ran = {"x": "IndexError: 3"}, {"x": {"a": np.ones(2)}}
    assert [compare(base, failed)[0].verdict for base in (failed, ran)] == ["failed in both", "failed"]
    assert [compare(base, failed)[0].is_bad for base in (failed, ran, {})] == [False, True, True]


def test_a_step_that_is_off_by_a_billionth_is_seen():
    arrays = {"W": np.linspace(1.0, 2.0, 12).reshape(3, 4)}
    numbers = steps.kept_of(arrays)
    assert steps.disagreements(numbers, arrays) == {}
    assert steps.disagreements(numbers, {"W": arrays["W"] * (1 + 1e-11)}) == {}
    assert steps.disagreements(numbers, {"W": arrays["W"] * (1 + 1e-8)})
    assert steps.disagreements(numbers, {"W": arrays["W"].T})
    assert steps.disagreements(numbers, {})
