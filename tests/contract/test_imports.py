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
    "kernels": (set(), {"numpy", "numba", "llvmlite"}),  # numba is made of llvmlite
    "structure": ({"kernels"}, {"numpy", "scipy"}),  # draws of a likelihood are kernels
    "distributions": ({"kernels"}, {"pymc", "pytensor", "numpy"}),  # the sparse density's loops are kernels
    "models": ({"distributions", "labels", "sparse"}, {"pymc", "pytensor", "numpy", "scipy", "pandas", "xarray"}),
    "reading": ({"distributions", "structure"}, {"pymc", "pytensor", "numpy"}),
    "_compat": ({"netcdf"}, {"arviz", "xarray"}),
    "results": ({"structure", "_compat"}, {"numpy", "xarray"}),  # and results.groups; its other files are below
    "inference": ({"structure", "kernels", "results"}, {"numpy", "scipy", "threadpoolctl", "rich"}),
    "results.stores": ({"structure", "inference", "results", "_compat"}, {"numpy", "xarray", "zarr"}),
    "tables": ({"sparse", "labels"}, {"numpy", "scipy", "pandas"}),
    "plots": (
        {"_compat", "components", "posterior", "prediction", "reading", "run_arguments", "structure"},
        {"numpy", "xarray", "matplotlib", "pymc"},
    ),
    "audio": (
        {"api", "streaming", "models", "inference", "results", "structure", "run_arguments", "netcdf"},
        {"numpy", "scipy", "xarray", "matplotlib", "soundfile"},
    ),
    "workbench.align": (  # below the verbs, which judge what they drew
        {"_compat", "components", "diagnostics", "posterior", "results", "run_arguments", "structure"},
        {"numpy", "pandas", "scipy", "xarray"},
    ),
    "workbench.report": (
        {
            "workbench",
            "workbench.align",
            "plots",
            "components",
            "diagnostics",
            "posterior",
            "reading",
            "structure",
            "inference",
            "run_attributes",
            "_compat",
        },
        {"numpy", "pandas", "xarray", "pymc", "matplotlib"},
    ),
    "demo": (ANYTHING, ANYTHING),
    "cli": (ANYTHING, ANYTHING),
    "sklearn": (ANYTHING, ANYTHING),
}
ALIGNMENT = {"align", "matching", "component_diagnostics", "convergence", "verdict"}
SHELL = {"workbench.report", "cli", "demo", "plots", "tables", "step_methods", "sklearn", "workbench", "audio"}
# The verbs and what works on their results: above the parts in the table, below the shell.
ALLOWED_ABOVE = (
    {
        *("structure", "distributions", "models", "reading", "inference", "kernels", "results", "results.stores"),
        *("_compat", "labels", "sparse", "workbench.align"),
    },
    {"pymc", "numpy", "scipy", "pandas", "xarray", "arviz", "pytensor"},
)


def part_of(module: str) -> str:
    """The part a module of ours belongs to: nmf_zoo.inference.gibbs -> inference.

    The files of ``results`` but ``groups`` are parts of their own: engines use that one, these use engines. So is the
    workbench's report, which draws; and its files on alignment, by which ``sample`` judges what it drew.
    """
    words = module.split(".")
    if words[1:3] == ["workbench", "report"]:
        return "workbench.report"
    if words[1:2] == ["results"] and words[2:] not in ([], ["groups"]):
        return ".".join(words[1:3])
    if words[1:2] == ["workbench"] and words[2:] and words[2] in ALIGNMENT:
        return "workbench.align"
    return words[1] if len(words) > 1 else "__init__"


def module_of(path: Path) -> str:
    words = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def names_in(node: ast.AST) -> list[str]:
    """The modules that a statement imports; ``from nmf_zoo import nuts`` is nmf_zoo.nuts."""
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
    ours, theirs = ALLOWED.get(part, ALLOWED_ABOVE)
    if part not in ALLOWED:  # the layer above may import itself, never the shell
        above = {part_of(module_of(path)) for path in FILES} - set(ALLOWED) - SHELL
        ours = ALLOWED_ABOVE[0] | above
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
    allowed = ALLOWED.get(part, ALLOWED_ABOVE)
    assert not found, f"{module_of(path)} imports {found}; {part} may import {allowed}"


def test_the_check_sees_a_breach():
    assert breaches("kernels", frozenset({"numpy", "scipy.special"})) == ["scipy.special"]
    assert breaches("inference", frozenset({"pymc", "nmf_zoo.reading"})) == ["nmf_zoo.reading", "pymc"]
    assert breaches("api", frozenset({"nmf_zoo.cli.fit"})) == ["nmf_zoo.cli.fit"]
    assert breaches("api", frozenset({"nmf_zoo.workbench.rank"})) == ["nmf_zoo.workbench.rank"]
    assert breaches("workbench.align", frozenset({"nmf_zoo.api"})) == ["nmf_zoo.api"]


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
