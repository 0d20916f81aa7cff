"""What a type checker knows of the package in a user's script: `mypy --strict` on right lines and on wrong ones."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from nmf_zoo.interfaces import stub

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
needs_mypy = pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy, of the extra dev")

RIGHT = """\
import numpy as np
import xarray as xr

import nmf_zoo as nz

X = np.ones((3, 4))
model = nz.gamma_nmf(X, 2, alpha_w=nz.free(tie="component"), prior=None)
idata: nz.Result = nz.sample(100, tune=50, engine=nz.Gibbs(moves=("scale",)), random_seed=[1, 2], model=model)
W: xr.DataArray = idata.posterior["W"].mean("draw")
lp: xr.DataArray = idata["sample_stats"]["lp"]
seconds = float(idata.attrs["seconds"])
objective = idata.fit["objective"]
nz.save(nz.align(nz.fit(engine="vb", max_iter=10, model=model)), "result.nc")
table = nz.top_features(nz.load("result.nc"))
ranks: xr.Dataset = nz.select_rank(lambda rank: nz.gamma_nmf(X, rank), range(1, 4), method=nz.RankBound())
stream = nz.stream(nz.gap(None, 2, shape=(3, 1)))
stream.update(X)
print(stream.W.sizes, stream.result().posterior["W"], nz.EM(mode="log").mode)
try:
    nz.read(model)
except nz.UnreadableModel as error:
    print(error.variable.upper())
"""

# Each line is wrong in the way that the comment says.
WRONG = """\
import nmf_zoo as nz

model = nz.gamma_nmf([[1.0]], 2)
nz.gama_nmf([[1.0]], 2)  # attr-defined
nz.gamma_nmf([[1.0]], "two")  # arg-type
nz.gamma_nmf([[1.0]], 2, alpha=1.0)  # call-arg
nz.sample("many", model=model)  # arg-type
nz.sample(100, egine="gibbs", model=model)  # call-arg
nz.sample(100, 50, model=model)  # call-arg
nz.sample(keep="all", model=model)  # arg-type
nz.fit(max_iter="long", model=model)  # arg-type
nz.EM(mode="linear")  # arg-type
nz.EM(1)  # arg-type call-arg
nz.EM().speed  # attr-defined
count: int = nz.sample(model=model)  # assignment
nz.sample(model=model).posterior["W"] + nz.free  # operator
nz.select_rank(nz.gamma_nmf, 3)  # arg-type
nz.load(3)  # arg-type
nz.load.__doc__.upper()  # union-attr
def untyped(x): return x  # no-untyped-def
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What is said of both scripts, in one go, as script -> line -> code.

    mypy keeps what it knows of the package, and of what that imports, where `make types` has it: most of its time.
    For that these have to be read with the options of `make types`, and only the scripts strictly.
    """
    folder = tmp_path_factory.mktemp("types")
    cache = ROOT / ".mypy_cache" if os.access(ROOT, os.W_OK) else folder / "cache"
    (folder / "right.py").write_text(RIGHT, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    (folder / "pyproject.toml").write_text(PYPROJECT + strict_options("right", "wrong"), encoding="utf-8")
    how = ["--config-file", str(folder / "pyproject.toml"), "--cache-dir", str(cache)]
    return errors_of(folder, "right.py", "wrong.py", *how, path=str(ROOT))


def strict_options(*modules: str) -> str:
    """Lines of pyproject.toml: of these modules all that ``--strict`` asks, and nothing that is the package's own."""
    from mypy.main import process_options
    from mypy.options import PER_MODULE_OPTIONS

    plain, strict = (
        process_options(["--config-file=", *words], require_targets=False)[1] for words in ([], ["--strict"])
    )
    of_package = tomllib.loads(PYPROJECT)["tool"]["mypy"]
    names = [name for name in sorted(PER_MODULE_OPTIONS) if isinstance(getattr(plain, name), bool)]
    own = {
        name: getattr(strict, name)
        for name in names
        if name in of_package or getattr(strict, name) != getattr(plain, name)
    }
    own |= {"module": list(modules), "enable_error_code": of_package["disable_error_code"]}
    return "\n".join(
        ["", "[[tool.mypy.overrides]]", *(f"{name} = {json.dumps(value)}" for name, value in own.items()), ""]
    )


def errors_of(folder: Path, *arguments: str, path: str | None) -> dict[str, dict[int, str]]:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")}
    environment |= {} if path is None else {"MYPYPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, flags=re.MULTILINE)
    assert bool(found) == bool(done.returncode), done.stdout
    said: dict[str, dict[int, str]] = {}
    for script, line, code in found:
        said.setdefault(script, {})[int(line)] = code
    return said


@needs_mypy
def test_a_right_script_passes(found):
    """What users write has the types that its functions ask for. Long: mypy reads the package and what it imports."""
    assert "right" not in found


@needs_mypy
def test_wrong_lines_are_found(found):
    lines = {number: line.partition("  # ")[2].split() for number, line in enumerate(WRONG.splitlines(), 1)}
    expected = {number: codes for number, codes in lines.items() if codes}
    assert found["wrong"].keys() == expected.keys()
    assert all(found["wrong"][number] in codes for number, codes in expected.items()), found


@needs_mypy
def test_make_types_passes_from_the_cache_of_this(found):
    """Names of one assignment that makes several had no type, where mypy had kept them of the package for a script."""
    assert errors_of(ROOT, path=None) == {}


@needs_mypy
def test_an_editable_install_is_followed(tmp_path):
    """By a path in a .pth file: import hooks, which setuptools writes for a package beside its tests, are not."""
    told = json.loads(importlib.metadata.distribution("nmf_zoo").read_text("direct_url.json") or "{}")
    if not told.get("dir_info", {}).get("editable") or Path(unquote(urlparse(told["url"]).path)) != ROOT:
        pytest.skip("this checkout is not installed here to be edited")
    files = importlib.metadata.files("nmf_zoo") or []
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    if paths[0].stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        pytest.skip("pyproject.toml has changed since it was installed; make installs it again")
    (tmp_path / "script.py").write_text("import nmf_zoo\nimport nmf_zoos\n", encoding="utf-8")
    how = ["--config-file", os.devnull, "--follow-imports=skip", "--cache-dir", os.devnull]
    found = errors_of(tmp_path, "script.py", *how, path=None)
    assert found == {"script": {2: "import-not-found"}}


def test_the_stub_is_up_to_date():
    assert stub.FILE.read_text(encoding="utf-8") == stub.text(), "run python -m nmf_zoo.interfaces.stub"
