"""The wheel in an environment of its own, and with site-packages that its user can't write to.

The environment has this one's other packages, by a path, so that nothing but the wheel's own build is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).parents[2]
# Modes stop no root, so that the interpreter itself refuses what a user without rights could not do.
SCRIPT = """
import os
import sys

PACKAGES = os.path.join(sys.prefix, "lib")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse(event, arguments):
    is_open = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if is_open or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        if str(arguments[0]).startswith(PACKAGES):
            raise PermissionError(13, "Permission denied", str(arguments[0]))


sys.addaudithook(refuse)
try:
    open(os.path.join(PACKAGES, "probe"), "w")
except PermissionError:
    pass
else:
    raise SystemExit("the hook sees nothing")

import numpy as np

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main

assert nz.__file__.startswith(sys.prefix), nz.__file__
X = np.random.default_rng(0).poisson(3.0, (4, 6))
nz.fit(model=nz.normal_nmf(X, 1), engine="em", max_iter=3, tol=0, random_seed=1, quiet=True, search=None)
np.savetxt("x.csv", X, delimiter=",", fmt="%d")
words = "--model normal-nmf --rank 1 --engine em --max-iter 3 --tol 0 --search 0 --random-seed 1 --quiet"
assert main(["fit", "x.csv", "-o", "x.nc", *words.split()]) == 0
assert nz.load("x.nc").posterior["W"].shape[-2:] == (4, 1)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git knows, since a build leaves files in its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "nmf_zoo",
        "*.toml",
        "README.md",
        "LICENSE",
    ]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("not a checkout of git")
    for name in filter(None, found.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(folder / "source"),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip can't build it here: {done.stderr.strip().splitlines()[-1:]}")
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel):
    """A fresh one beside the wheel, into which it is installed."""
    folder = wheel.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return python, packages


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """The wheel's files are those of the package. Long: pip builds it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"nmf_zoo"}
    for name in ("py.typed", "__init__.pyi", "interfaces/cli/catalogue.json", "runtime/compile_times.json"):
        assert f"nmf_zoo/{name}" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "nmf_zoo").rglob("*.py")}
    assert modules <= names


def test_it_runs_where_site_packages_can_not_be_written_to(environment, tmp_path):
    """What is compiled goes to the user's own cache. Long: a process imports PyMC and compiles."""
    python, packages = environment
    own = packages / "nmf_zoo"
    before = files_of(own)
    for path in [own, *own.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "PYTENSOR_FLAGS") if name in os.environ}
    command = [str(python), "-W", "ignore", "-c", SCRIPT]
    run = {"cwd": tmp_path, "env": {**keep, "HOME": str(tmp_path)}, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **run)
    for path in [own, *own.rglob("*")]:  # or nobody could remove it
        path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == 0, done.stderr
    assert files_of(own) == before
    assert any(tmp_path.rglob("*.kernel"))


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
