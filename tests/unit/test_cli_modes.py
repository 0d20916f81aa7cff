"""``nmf-zoo modes``: what modes weigh, from the shell."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.interfaces.cli import main
from tests import two_modes

MODEL = ["--alpha-w", "0.5", "--alpha-h", "0.5", "--mean-h", "5"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("counts.csv", two_modes.MERGED, delimiter=",", fmt="%d")
    np.savetxt("other.csv", two_modes.MERGED + 1, delimiter=",", fmt="%d")
    starts = two_modes.MERGED_STARTS
    run = {"chains": len(starts), "initvals": starts, "random_seed": 1, "quiet": True}
    nz.save(nz.sample(600, tune=300, model=two_modes.merged_model(), **run), "draws.nc")
    return tmp_path


def modes(*words):
    try:
        return main(["modes", "draws.nc", *words])
    except SystemExit as stop:
        return int(stop.code or 0)


def test_modes_are_weighed_and_pooled(folder, capsys):
    pytest.importorskip("matplotlib")
    run = ["--data", "counts.csv", *MODEL, "--random-seed", "1", "--quiet"]
    assert modes(*run, "-o", "weighed.nc", "-o", "modes.png") == 0
    out = capsys.readouterr().out
    assert out.startswith("3 modes: chain 0 (log evidence -84.")
    assert "wrote weighed.nc\nwrote modes.png" in out
    weighed = _compat.group(nz.load("weighed.nc"), "modes")
    np.testing.assert_allclose(weighed["share"], [0.558, 0.293, 0.148], atol=0.05)
    assert modes(*run, "--pool", "-o", "pooled.nc") == 0
    assert "3 modes" in nz.load("pooled.nc").attrs["pooled"]
    assert modes(*run, "-o", "weighed.nc") == 2
    assert "--force to overwrite" in capsys.readouterr().err


def test_what_is_refused(folder, capsys):
    def said(*words):
        assert modes(*words) == 2
        return capsys.readouterr().err

    assert "the following arguments are required: --data" in said()
    assert "got draws with an lp of" in said("--data", "other.csv", *MODEL)
    pooled = said("--data", "counts.csv", *MODEL, "--pool")
    assert pooled.startswith("nmf-zoo: --pool: got no result among the outputs; expected a place for the draws")
