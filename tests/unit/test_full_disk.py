"""Every writer on a full disk: what was there stays, nothing half-made, and one line says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Forked
from tests.full_disk import main_of_script
from tests.sizes import FULL

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux"),
]
for module in ("zarr", "h5py", "matplotlib"):
    pytest.importorskip(module)


def check(code, printed, said):
    assert code == 0, said[-2000:]
    found = [json.loads(line) for line in printed.splitlines()]
    assert len(found) == 20
    for name, said, kept, again in found:
        assert "the disk is full" in said, (name, said)
        assert said.count("\n") <= 1, (name, said)
        assert said.startswith(("1: nmf-zoo: ", "path: got", "output: got")), (name, said)
        assert (kept, again) == ("kept", "written"), (name, kept, again)


def test_files_of_a_hundred_bytes(tmp_path):
    """Long: twenty writers, three times each."""
    out, err = tmp_path / "out", tmp_path / "err"
    code = Forked(lambda: main_of_script(str(tmp_path), 100), out, err).wait(600.0)
    check(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


@pytest.mark.skipif(not FULL, reason="at full size: the same writers as above, three times each")
def test_a_small_disk(tmp_path):
    """Long: as above."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path / "disk")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk is not allowed here")
    try:
        words = [sys.executable, "-m", "tests.full_disk", str(tmp_path)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        check(done.returncode, done.stdout, done.stderr)
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)
