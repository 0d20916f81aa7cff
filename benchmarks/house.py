"""Size and shape of the code: ``python -m benchmarks.house [--root FOLDER]``; FOLDER may be another worktree.

Files, lines of code (without docstrings, comments, blank lines) and modules with one importer, by the syntax tree; and
the files of inference and kernels that really execute while an engine runs on a small table of counts, with numba
switched off, so that kernels are functions like any other: in the whole call, and of those the ones that run under a
function of the engine's own file. An import alone does not count, nor do the decorators of kernels, which stand in for
numba there. Gibbs begins at random, without the search for a mode, which runs VB.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "nmf_zoo"
FOLDERS = ("inference", "kernels", "runtime")  # what one reads to understand an engine
DECORATORS = "nmf_zoo/kernels/compile"
ENGINES = {"EM": "fit", "VB": "fit", "Gibbs": "sample"}
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="folder of the package to count")
    parser.add_argument("--names", action="store_true", help="also which modules have one importer, and which execute")
    given = parser.parse_args()
    root = given.root.resolve()
    files = sorted((root / PACKAGE).rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    single = one_importer(root, sources)
    show("files", len(files))
    show("lines", sum(source.count("\n") for source in sources.values()))
    show("lines of code", sum(map(lines_of_code, sources.values())))
    show("modules with one importer", len(single), single if given.names else ())
    for name in ENGINES:
        for what, found in zip(("in all", "as an engine"), executed(root, name), strict=True):
            read = [path for path in found if path.split("/")[1] in FOLDERS and not path.startswith(DECORATORS)]
            per = Counter(path.split("/")[1] for path in read)
            parts = [*(f"{count} of {folder}" for folder, count in sorted(per.items())), f"{len(found)} together"]
            show(f"files that {name} executes, {what}", ", ".join(parts), read if given.names else ())


def show(what: str, value: object, names: Iterable[str] = ()) -> None:
    print(f"{what:40}  {value}")
    for name in names:
        print(f"    {name}")


def lines_of_code(source: str) -> int:
    """Lines that hold a token other than a comment or a docstring."""
    documented = set(docstrings(ast.parse(source)))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT and token.start[0] not in documented:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def docstrings(tree: ast.AST) -> Iterator[int]:
    """The lines of strings that stand alone, of modules, classes, functions, and under a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def one_importer(root: Path, sources: dict[Path, str]) -> list[str]:
    """Modules that exactly one other module imports."""
    modules = {module_of(root, path) for path in sources}
    importers: Counter[str] = Counter()
    for source in sources.values():
        importers.update(set(imported(source)) & modules)
    return sorted(name for name, count in importers.items() if count == 1)


def module_of(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executed(root: Path, engine: str) -> tuple[list[str], list[str]]:
    """Files of the package in which a function runs: in the whole call, and under the engine's own file."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, __file__, engine]  # as a file: its folder's package is not in the way
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{engine}: {done.stderr.strip().splitlines()[-1]}")
    everywhere, inside, end = json.loads(done.stdout.splitlines()[-1])
    if end:
        print(f"{engine} ran until {end}", file=sys.stderr)
    return [path for path in everywhere if path.startswith(PACKAGE)], inside


def run_traced(engine: str) -> None:
    """Run an engine, print where calls went."""
    import inspect
    import threading
    import warnings

    import numpy as np
    import scipy.sparse as sp

    import nmf_zoo as nz

    root = Path(nz.__file__).parents[1]
    codes, inside, end = set(), set(), ""

    own = sys.modules[getattr(nz, engine).__module__].__file__

    def watch(frame, event, argument):
        """Note functions (not the bodies of modules and classes): all, and those under the engine's own file."""
        code = frame.f_code
        if code not in inside and code.co_flags & inspect.CO_OPTIMIZED:
            codes.add(code)
            while frame is not None and frame.f_code.co_filename != own:
                frame = frame.f_back
            if frame is not None:
                inside.add(code)

    rng = np.random.default_rng(1)
    counts = sp.csr_array(rng.poisson(rng.gamma(1.0, 2.0, (6, 2)) @ rng.gamma(1.0, 2.0, (2, 8))))
    model = nz.gamma_nmf(counts, 2)
    few = {"fit": {"max_iter": 15, "tol": 0.0}, "sample": {"draws": 15, "tune": 110, "chains": 1}}[ENGINES[engine]]
    call, options = getattr(nz, ENGINES[engine]), getattr(nz, engine)
    plain = {"search": None, "start": "random"}  # older commits had no search
    few |= {name: value for name, value in plain.items() if name in inspect.signature(call).parameters}
    few |= {"model": model, "engine": options(), "random_seed": 1, "cores": 1, "progressbar": False}
    warnings.simplefilter("ignore")
    try:
        call(**few)  # what is imported at its first use is imported here
        threading.settrace(watch)
        sys.settrace(watch)
        call(**few)
    except Exception as error:  # numba could not be switched off everywhere in older commits
        end = f"{type(error).__name__}: {error}"
    finally:
        sys.settrace(None)
        threading.settrace(None)
    found = []
    for some in (codes, inside):
        files = {Path(code.co_filename) for code in some}
        found.append(sorted(str(path.relative_to(root)) for path in files if path.is_relative_to(root)))
    print(json.dumps([*found, end]))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in ENGINES:
        run_traced(sys.argv[1])
    else:
        main()
