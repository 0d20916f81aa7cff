"""One folder knows how kernels are compiled."""

from __future__ import annotations

import ast

from tests.contract.test_imports import FILES, PACKAGE

COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil"}


def compilers_in(source: str) -> set[str]:
    """numba's decorators that a file imports, and numba itself, by which it could call them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name == "numba"}
        elif isinstance(node, ast.ImportFrom) and node.module == "numba":
            found |= {alias.name for alias in node.names} & COMPILERS
    return found


def test_decorators_are_made_in_one_place():
    found = {str(path.relative_to(PACKAGE)): compilers_in(path.read_text("utf-8")) for path in FILES}
    elsewhere = {name: names for name, names in found.items() if names and not name.startswith("kernels/compile/")}
    assert not elsewhere


def test_the_check_sees_another_place():
    assert compilers_in("from numba import njit, types") == {"njit"}
    assert compilers_in("def f():\n    import numba") == {"numba"}
    assert compilers_in("from numba.extending import overload") == set()
