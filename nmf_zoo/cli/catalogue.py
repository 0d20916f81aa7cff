"""What can be set: the arguments of every model, engine and run, read from the source without importing it.

PyMC and numba take seconds to import and ``--help`` must answer at once, so the names, types and explanations come from
the syntax tree of the files that declare them. A test holds this against the imported registries.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
ALSO_FOR = "itakura_saito"  # engines of these names for another likelihood: their options are the same


@dataclass(frozen=True)
class Argument:
    """A keyword argument: its name, annotation and default as written, and the first line of its explanation."""

    name: str
    annotation: str
    default: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Entry:
    """A model, engine or run function: its summary line and its arguments by name; ``verb`` is an engine's."""

    name: str
    summary: str
    arguments: dict[str, Argument]
    verb: str = ""


@cache
def models() -> dict[str, Entry]:
    """The builders, one function per file of models/ under the file's name, by their name on the command line."""
    found = {}
    for path in sorted((PACKAGE / "models").glob("*.py")):
        for node in _tree(path).body:
            if isinstance(node, ast.FunctionDef) and node.name == path.stem:
                found[node.name.replace("_", "-")] = _function(node)
    return found


@cache
def engines() -> dict[str, Entry]:
    """Every ``Engine(name=..., verb=..., options=...)`` in the files of inference/, and NUTS."""
    found = {}
    for path, words in _calls("Engine", PACKAGE / "inference"):
        name, verb = (ast.literal_eval(words[key]) for key in ("name", "verb"))
        if path.parent.name != ALSO_FOR:
            found[name] = _options(path, ast.unparse(words["options"]), name, verb)
    return found | {"nuts": _options(PACKAGE / "nuts.py", "NUTS", "nuts", "sample")}


@cache
def methods() -> dict[str, Entry]:
    """Every ``Method(name=..., options=...)`` that judges ranks; of the bound that of the workbench."""
    found = {}
    for path, words in _calls("Method", PACKAGE / "inference", PACKAGE / "workbench"):
        name = ast.literal_eval(words["name"])
        found[name] = _options(path, ast.unparse(words["options"]), name, "rank")
    return found


@cache
def runs() -> dict[str, Entry]:
    """The verbs ``sample`` and ``fit``; ``fit`` leaves the arguments they share to the explanations of ``sample``."""
    tree = _tree(PACKAGE / "api.py")
    found = {node.name: _function(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {verb: found[verb] for verb in ("sample", "fit")}


def _calls(name: str, *folders: Path) -> Iterator[tuple[Path, dict[str | None, ast.expr]]]:
    """(file, keyword arguments) of every ``X = name(...)`` at the top of a file in the folders."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        for call in (node.value for node in _tree(path).body if isinstance(node, ast.Assign | ast.AnnAssign)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == name:
                yield path, {keyword.arg: keyword.value for keyword in call.keywords}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _function(node: ast.FunctionDef) -> Entry:
    args, explained = node.args, _explanations(node)
    optional = args.args[len(args.args) - len(args.defaults) :]
    pairs = [*zip(optional, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    found = [
        Argument(arg.arg, _source(arg.annotation), _source(default), explained.get(arg.arg, ""))
        for arg, default in pairs
    ]
    return Entry(node.name, _summary(node), {argument.name: argument for argument in found})


def _options(path: Path, class_name: str, name: str, verb: str) -> Entry:
    """The entry of a file whose options are in it, or in another file of an engine that has a folder."""
    files = [path, *sorted(path.parent.glob("*.py"))]
    trees = (_tree(file) for file in reversed(files))
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    found = _fields(class_name, classes)
    return Entry(name, _summary(_tree(path)), found, verb)


def _fields(class_name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, Argument]:
    """The fields of a dataclass by name, those of its bases first."""
    if class_name not in classes:
        return {}
    node = classes[class_name]
    found: dict[str, Argument] = {}
    for base in node.bases:
        found |= _fields(ast.unparse(base), classes)
    explained = _explanations(node)
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            option = ast.unparse(field.target)
            found[option] = Argument(option, _source(field.annotation), _source(field.value), explained.get(option, ""))
    return found


def _source(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


def _summary(node: ast.FunctionDef | ast.Module) -> str:
    return (ast.get_docstring(node) or "").split("\n")[0].strip()


def _explanations(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """The first sentence of each ``a, b : text`` in a numpydoc section, the lines indented below it included."""
    found: dict[str, str] = {}
    for match in re.finditer(r"^(\w+(?:, \w+)*) : (.*(?:\n +\S.*)*)", ast.get_docstring(node) or "", re.MULTILINE):
        text = " ".join(match[2].replace("``", "").split())
        found |= dict.fromkeys(match[1].split(", "), re.split(r"\. (?=[A-Z])", text)[0].rstrip("."))
    return found
