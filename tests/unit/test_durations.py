"""What tests cost: how it is kept, and that the dear ones say why."""

from __future__ import annotations

import importlib
import re

import pytest

from tests import durations
from tests.durations import LONG, costliest_first, kept

LONG_ONES = [name for name, cost in kept()["tests"].items() if cost > LONG]


def test_unknown_and_costly_files_come_first_and_tests_of_a_file_stay_in_order(monkeypatch):
    monkeypatch.setattr(durations, "kept", lambda: {"files": {"a.py": 0, "b.py": 9, "c.py": 2}})
    names = ["a.py::x", "c.py::x", "b.py::z", "b.py::y", "d.py::x"]
    assert [names[i] for i in costliest_first(names)] == ["d.py::x", "b.py::z", "b.py::y", "c.py::x", "a.py::x"]


def test_what_compiles_much_and_what_goes_well_beside_it_come_before_all(monkeypatch):
    monkeypatch.setattr(durations, "AT_FIRST", ("a.py", "gone.py", "c.py"))
    monkeypatch.setattr(durations, "kept", lambda: {"files": {"a.py": 2, "b.py": 9, "c.py": 0}})
    names = ["a.py::x", "b.py::x", "c.py::x", "d.py::x"]
    assert [names[i][0] for i in costliest_first(names)] == ["a", "c", "d", "b"]


def test_those_that_are_kept_are_there():
    assert {*durations.PAGES_AND_CHAINS, *durations.ENGINES_IN_TWO_ORDERS} <= kept()["files"].keys()
    assert [name for name in kept()["files"] if not (durations.COSTS.parents[1] / name).exists()] == []


@pytest.mark.parametrize("name", sorted({re.sub(r"\[.*", "", name, flags=re.DOTALL) for name in LONG_ONES}))
def test_a_test_that_takes_long_says_why(name):
    """In a sentence of its docstring that begins with "Long:"."""
    path, _, rest = name.partition("::")
    found = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for part in rest.split("::"):
        found = getattr(found, part)
    assert "Long: " in (found.__doc__ or ""), f"{name} took more than {LONG:.0f} CPU seconds, kernels compiled before"
