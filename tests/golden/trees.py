"""Results of a commit's package or of the working tree's, made by this folder's recipes in a process of their own."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.golden.kept import environment
from tests.golden.make import Outcome

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SAVED = ROOT / "build" / "golden"


def results_of(revision: str | None, only: Sequence[str] = ()) -> dict[str, Outcome]:
    """Of a commit, which are made once and kept in ``build/golden``; of the working tree where there is none."""
    if revision is None:
        drop_stale_caches(ROOT)
        return _made_in(ROOT, only)
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    saved = SAVED / f"{commit[:12]}-{_fingerprint(only)}.pickle"
    if not saved.exists():
        with worktree(commit) as tree:
            made = _made_in(tree, only)
        SAVED.mkdir(parents=True, exist_ok=True)
        saved.write_bytes(pickle.dumps(made))
    return pickle.loads(saved.read_bytes())


def _made_in(tree: Path, only: Sequence[str]) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results"
        settings = os.environ | {"PYTHONPATH": str(tree)}
        command = [sys.executable, "-m", "tests.golden.make", str(file), *only]
        subprocess.run(command, cwd=tree, env=settings, check=True)
        return pickle.loads(file.read_bytes())


def _fingerprint(only: Sequence[str]) -> str:
    """Of everything but the commit that decides the results: the recipes, the machine, what was asked for."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.py"))]
    return hashlib.sha256(json.dumps([sources, environment(), sorted(only)]).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


@contextmanager
def worktree(commit: str):
    """The files of a commit with these recipes, and the compiled kernels of ours that it shares."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            shutil.copytree(HERE, tree / HERE.relative_to(ROOT), dirs_exist_ok=True)
            drop_stale_caches(ROOT)
            share_caches(ROOT, tree)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


# -- compiled kernels --------------------------------------------------------------------------------------------
# numba stamps a compiled function with the size and time of its own file only. A kernel that was compiled before a file
# that it calls into changed would hide the change.


def drop_stale_caches(tree: Path) -> None:
    """Forget what was compiled before a file that it was compiled from was written."""
    for module, compiled in _compiled(tree):
        newest = max(path.stat().st_mtime for path in _sources(tree, module))
        for path in compiled:
            if path.suffix == ".nbc" and path.stat().st_mtime < newest:
                path.unlink(missing_ok=True)


def share_caches(tree: Path, other: Path) -> None:
    """Copy to the other tree what was compiled from files that are the same there."""
    for module, compiled in _compiled(tree):
        sources = _sources(tree, module)
        if not all(_is_same(path, other / path.relative_to(tree)) for path in sources):
            continue
        shutil.copystat(module, other / module.relative_to(tree))
        for path in compiled:
            target = other / path.relative_to(tree)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(path, target)


def _compiled(tree: Path) -> list[tuple[Path, list[Path]]]:
    """Modules with the files of their compiled functions."""
    modules = sorted((tree / "nmf_zoo").rglob("*.py"))
    found = [(path, sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.nb?"))) for path in modules]
    return [(path, compiled) for path, compiled in found if compiled]


def _sources(tree: Path, module: Path) -> set[Path]:
    """The module's file and those of all modules of the package that it imports, directly or not."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {other for path in new for other in _imported(tree, path)} - found
    return found


@cache
def _imported(tree: Path, path: Path) -> frozenset[Path]:
    nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
    names = [name for node in nodes for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names)) if name]
    files = [tree.joinpath(*name.split(".")) for name in names if name.startswith("nmf_zoo")]
    candidates = [path for file in files for path in (file.with_suffix(".py"), file / "__init__.py")]
    return frozenset(path for path in candidates if path.exists())


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()
