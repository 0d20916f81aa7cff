"""Results of a commit's package or of the working tree's, made by this folder's recipes in a process of their own."""

from __future__ import annotations

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
from pathlib import Path

from tests.golden.kept import environment
from tests.golden.make import Outcome

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SAVED = ROOT / "build" / "golden"


def results_of(revision: str | None, only: Sequence[str] = ()) -> dict[str, Outcome]:
    """Of a commit, which are made once and kept in ``build/golden``; of the working tree where there is none."""
    if revision is None:
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
    """The files of a commit with these recipes."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            shutil.copytree(HERE, tree / HERE.relative_to(ROOT), dirs_exist_ok=True)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))
