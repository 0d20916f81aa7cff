"""One word for one thing: no two classes of the package share a name, and no function only passes on to another.

One place for one thing: nobody asks which likelihood it is. Likelihoods are asked, and engines name those they have.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from nmf_zoo.structure import likelihoods

PACKAGE = Path(__file__).parents[2] / "nmf_zoo"
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
# What every engine's file has, in its place in the order, also where engines share it.
PARTS_OF_ENGINES = {"supports"}
LIKELIHOODS = {name for name in likelihoods.__all__ if name != "Likelihood"}


class Found(NamedTuple):
    """What is asked of a file, whose tree is walked once and let go: Python would look for garbage in all of them."""

    classes: list[str]
    functions: set[str]  # of the module itself
    relays: list[tuple[str, str]]  # functions that only call another one, and its name
    asked: list[int]  # lines where a likelihood is compared with one of the package's


@cache
def found_in(source: str) -> Found:
    tree = ast.parse(source)
    found = Found([], {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, [], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list and (called := _called(node)):
            found.relays.append((node.name, called))
        elif isinstance(node, ast.Compare | ast.Call) and _asked(node) & LIKELIHOODS:
            found.asked.append(node.lineno)
    return found


def _asked(node: ast.Compare | ast.Call) -> set[str]:
    """Names that something is compared with, or asked to be an instance of."""
    asked: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        asked = [node.left, *node.comparators]
    elif isinstance(node.func, ast.Name) and "isinstance" in node.func.id:
        asked = node.args[1:]
    return {own.id for part in asked for own in ast.walk(part) if isinstance(own, ast.Name)}


def _called(function: ast.FunctionDef) -> str | None:
    """The name, if the whole body is a call of one with the function's own arguments."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) else None
    if not isinstance(call, ast.Call) or call.keywords or not call.args or not isinstance(call.func, ast.Name):
        return None
    given = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    passed = [argument.id if isinstance(argument, ast.Name) else None for argument in call.args]
    return call.func.id if passed == given else None


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Where classes are that have their name in common."""
    places = defaultdict(list)
    for file, source in sources.items():
        for name in found_in(source).classes:
            places[name].append(file)
    return {name: files for name, files in places.items() if len(files) > 1}


def relays(sources: dict[str, str]) -> Iterator[str]:
    """Functions that do nothing but call another one of ours with what they were given, in the same order."""
    ours = set().union(*(found_in(source).functions for source in sources.values()))
    for file, source in sources.items():
        yield from (f"{file}: {name}" for name, called in found_in(source).relays if called in ours)


def kinds_asked(sources: dict[str, str]) -> Iterator[str]:
    """Where a likelihood is compared with one of the package's, outside of their own files."""
    for file, source in sources.items():
        if not file.startswith("structure/likelihoods/"):
            yield from (f"{file}, line {line}" for line in found_in(source).asked)


def test_no_two_classes_share_a_name():
    assert shared_names(SOURCES) == {}


def test_nobody_asks_which_likelihood_it_is():
    assert list(kinds_asked(SOURCES)) == []


@pytest.mark.parametrize(
    ("file", "source", "is_asked"),
    [
        ("one.py", "isinstance(structure.likelihood, Poisson)", True),
        ("one.py", "isinstance(own, (Normal, Poisson))", True),
        ("one.py", "type(structure.likelihood) in (Normal,)", True),
        ("one.py", "type(structure.likelihood) is Exponential", True),
        ("one.py", "LOSSES = {Poisson: PoissonLoss}", False),
        ("structure/likelihoods/normal.py", "isinstance(self, Normal)", False),
    ],
)
def test_who_asks_is_seen(file, source, is_asked):
    assert bool([*kinds_asked({file: source})]) == is_asked


def test_no_function_only_passes_on():
    own_business = {"distributions/counts.py: rng_fn"}  # PyMC's name for it
    found = {name for name in relays(SOURCES) if name.rpartition(" ")[2] not in PARTS_OF_ENGINES}
    assert found == own_business


@pytest.mark.parametrize(
    ("source", "is_relay"),
    [
        ("def f(a, b):\n    '''Says what it does.'''\n    return g(a, b)", True),
        ("class A:\n    def f(self, a):\n        g(a)", True),
        ("def f(a, b):\n    return g(b, a)", False),
        ("def f(a):\n    return g(a, 1)", False),
        ("def f(a):\n    return sorted(a)", False),
    ],
)
def test_relays_are_seen(source, is_relay):
    assert bool([*relays({"one.py": source, "other.py": "def g(*given):\n    return sum(given)"})]) == is_relay


def test_shared_names_are_seen():
    assert shared_names({"one.py": "class A: ...", "other.py": "class A: ..."}) == {"A": ["one.py", "other.py"]}
