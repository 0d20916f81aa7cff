"""What a used machine hides: the first run with an empty home, and letters that the terminal lacks."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("NMF_ZOO_CI_FOLDER" in os.environ, reason="the run that this is part of began so")
def test_first_run_of_the_tests_with_an_empty_home(tmp_path):
    """ArviZ warns at its first import of a day, numba when PyTensor compiles a product for the first time.

    Long: another pytest, which imports PyMC.
    """
    home = tmp_path / "no one's hôme"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    test = "tests/oracle/test_check.py::test_structure_has_the_models_log_joint[product: einsum, other orders]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, env=kept | {"HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_label_that_the_terminal_lacks_is_printed_as_an_escape(tmp_path, monkeypatch):
    X = pd.DataFrame([[1, 2, 3], [4, 0, 1]], index=["café", "naïve"])
    idata = nz.fit(model=nz.gamma_nmf(X, 1), engine="em", max_iter=2, tol=0, random_seed=1, quiet=True)
    nz.save(idata, tmp_path / "r.nc")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["summary", str(tmp_path / "r.nc")]) == 0
    sys.stdout.flush()
    assert b"caf\\xe9" in written.getvalue()
