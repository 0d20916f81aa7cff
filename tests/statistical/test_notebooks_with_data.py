"""Notebooks run on the real data sets too, at small settings; with others' data in tests/unit/test_notebooks.py."""

from __future__ import annotations

import pytest

from tests.notebook_runs import TEXTS, data_folder, run_small
from tests.sizes import FULL

pytest.importorskip("matplotlib")


@pytest.mark.statistical
@pytest.mark.data
@pytest.mark.skipif(not FULL, reason="at full size; `make notebooks` runs them whole")
@pytest.mark.parametrize(
    "text", [text for text in TEXTS if "NMF_ZOO_DATA" in text.read_text(encoding="utf-8")], ids=lambda text: text.stem
)
def test_it_runs_on_real_data(text, monkeypatch, tmp_path):
    """Long: a whole notebook."""
    folder = data_folder()
    if folder is None:
        pytest.skip("NMF_ZOO_DATA is not set")
    assert run_small(text, monkeypatch, tmp_path, folder) >= 1
