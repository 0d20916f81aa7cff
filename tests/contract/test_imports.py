"""Who may import whom: the table of the design, held against the syntax tree; and no import runs in a circle."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nmf_zoo"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
ANYTHING = None

EVERYWHERE = {"errors", "files", "memory", "options"}
BELOW = {"structure", "results", "results.groups", "runtime", "_compat"}  # of what reads results
BELOW_VERBS = {
    *("structure", "kernels", "distributions", "models", "reading"),
    *("runtime", "inference", "inference.nuts", "inference.registry", "results.groups", "results"),
}
# part -> (parts of ours, third parties) it may import; those, the standard library and itself always
ALLOWED: dict[str, tuple[set[str] | None, set[str] | None]] = {
    "__init__": (ANYTHING, set()),  # by name, at first use
    "errors": (set(), set()),
    "labels": (set(), {"numpy"}),
    "sparse": (set(), {"numpy", "scipy"}),
    "files": (set(), set()),
    "options": (set(), set()),
    "memory": (set(), set()),
    "netcdf": (set(), set()),  # h5py by way of the xarray objects that it is given
    "_compat": ({"netcdf"}, {"arviz", "xarray"}),
    # what a model is
    "kernels": (set(), {"numpy", "numba", "llvmlite"}),  # numba is made of llvmlite
    "structure": ({"kernels"}, {"numpy", "scipy"}),  # draws of a likelihood are kernels
    "distributions": (  # the sparse density's loops are kernels; a chain says which prior it is read as
        {"kernels", "structure"},
        {"pymc", "pytensor", "numpy"},
    ),
    "models": (  # the known components of a model may be an earlier result; a prior knows where its parameters lie
        {"distributions", "structure", "labels", "sparse", "results", "_compat"},
        {"pymc", "pytensor", "numpy", "scipy", "pandas", "xarray"},
    ),
    "reading": ({"distributions", "structure"}, {"pymc", "pytensor", "numpy"}),
    # how it is run
    "results.groups": ({"structure", "_compat"}, {"numpy", "xarray"}),
    "runtime": (
        {"structure", "kernels", "results.groups"},
        {"cloudpickle", "distributed", "numpy", "threadpoolctl", "rich"},
    ),
    "inference": ({"structure", "kernels", "results.groups", "runtime"}, {"numpy", "scipy"}),
    "inference.nuts": (
        {"structure", "results.groups", "runtime", "inference", "_compat"},
        {"numpy", "pymc", "pytensor", "xarray"},
    ),
    "inference.registry": ({"structure", "reading", "runtime", "inference", "inference.nuts"}, set()),
    "search": ({"structure", "kernels", "runtime", "inference"}, {"numpy", "scipy", "xarray"}),
    # what is done with it
    "results": (
        {*("structure", "kernels", "reading", "results.groups", "runtime"), *("_compat", "labels", "netcdf")},
        {"numpy", "pandas", "scipy", "xarray", "zarr"},
    ),
    "prediction": (
        BELOW | {"kernels", "reading", "inference", "labels"},
        {"numpy", "scipy", "pymc", "xarray"},
    ),
    "diagnostics": (BELOW | {"labels", "reading"}, {"numpy", "pandas", "scipy", "xarray"}),
    "verbs": (
        {*BELOW_VERBS, "search", "diagnostics", "prediction", "sparse", "labels", "_compat"},
        {"numpy", "pandas", "pymc", "scipy", "xarray"},
    ),
    "streaming": (
        BELOW_VERBS | {"verbs", "sparse", "labels", "_compat"},
        {"numpy", "pandas", "scipy", "pymc", "xarray"},
    ),
    "workbench": (
        {*BELOW_VERBS, "search", "diagnostics", "prediction", "verbs", "_compat"},
        {"numpy", "pandas", "scipy", "pymc", "pytensor", "xarray"},
    ),
    "plots": (
        BELOW | {"labels", "prediction", "reading"},
        {"numpy", "xarray", "matplotlib", "pymc"},
    ),
    "reports": (
        BELOW | {"diagnostics", "inference", "inference.registry", "kernels", "plots", "prediction", "reading"},
        {"numpy", "pandas", "xarray", "pymc", "matplotlib"},
    ),
    "audio": (
        {"inference", "models", "netcdf", "runtime", "streaming", "structure", "verbs"},
        {"numpy", "scipy", "xarray", "matplotlib", "soundfile"},
    ),
    "interfaces": (ANYTHING, ANYTHING),
    "__main__": ({"interfaces"}, set()),
    "sklearn": (ANYTHING, ANYTHING),
}
ALONE = {"results.groups", "inference.nuts", "inference.registry"}  # files that stand apart from their folder


def part_of(module: str) -> str:
    """The part a module of ours belongs to: nmf_zoo.inference.counts.gibbs -> inference.

    Engines know which cells of W H are followed, so that ``results.groups`` stands below them and the rest of its
    folder above. NUTS hands the model to PyMC, and the registry knows all engines.
    """
    words = module.split(".")
    two = ".".join(words[1:3])
    return two if two in ALONE else words[1] if len(words) > 1 else "__init__"


def module_of(path: Path) -> str:
    words = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def names_in(node: ast.AST) -> list[str]:
    """The modules that a statement imports; ``from nmf_zoo import nuts`` is nmf_zoo.inference.nuts."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide who imports whom"
        full = [f"{node.module}.{alias.name}" for alias in node.names]
        found = [name if name.startswith("nmf_zoo") and is_module(name) else str(node.module) for name in full]
        return [name for name in found if name != "nmf_zoo"]  # __version__ and the lazy public names
    return []


@cache
def imported(path: Path, top_only: bool = False) -> frozenset[str]:
    """Modules imported anywhere in the file, or when it is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else ast.walk(tree)
    return frozenset(name for node in nodes for name in names_in(node))


def breaches(part: str, modules: frozenset[str]) -> list[str]:
    ours, theirs = ALLOWED[part]
    found = []
    for module in sorted(modules):
        root = module.split(".")[0]
        if root == "nmf_zoo":
            is_allowed = ours is ANYTHING or part_of(module) in ours | {part, *EVERYWHERE}
        else:
            is_allowed = theirs is ANYTHING or root in theirs or root in sys.stdlib_module_names
        if not is_allowed:
            found.append(module)
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_one_way(path):
    part = part_of(module_of(path))
    found = breaches(part, imported(path))
    assert not found, f"{module_of(path)} imports {found}; {part} may import {ALLOWED[part]}"


def test_the_check_sees_a_breach():
    assert breaches("kernels", frozenset({"numpy", "scipy.special"})) == ["scipy.special"]
    assert breaches("inference", frozenset({"pymc", "nmf_zoo.reading"})) == ["nmf_zoo.reading", "pymc"]
    assert breaches("verbs", frozenset({"nmf_zoo.interfaces.cli.fit"})) == ["nmf_zoo.interfaces.cli.fit"]
    assert breaches("verbs", frozenset({"nmf_zoo.workbench.rank"})) == ["nmf_zoo.workbench.rank"]
    assert breaches("runtime", frozenset({"nmf_zoo.inference.registry"})) == ["nmf_zoo.inference.registry"]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Circles of imports, by depth-first search."""
    done, found = set(), []

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append([*trail[trail.index(module) :], module])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*trail, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def test_no_circular_imports():
    graph = {
        module_of(path): {name for name in imported(path, top_only=True) if name.startswith("nmf_zoo.")}
        for path in FILES
    }
    assert circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]


def test_folders_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for path in FILES:
        part = part_of(module_of(path))
        others = {part_of(name) for name in imported(path) if name.startswith("nmf_zoo.")}
        graph.setdefault(part, set()).update(others - {part, "__init__"})
    assert circles(graph) == []


def test_slow_twins_are_where_the_kernels_are():
    """`tests/naive` mirrors `nmf_zoo/kernels`."""
    naive = PACKAGE.parent / "tests" / "naive"
    found = [path.relative_to(naive) for path in naive.rglob("*.py")]
    assert len(found) > 20
    assert [path for path in found if not (PACKAGE / "kernels" / path).exists()] == []
