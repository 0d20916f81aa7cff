"""The notebook on time runs from end to end at small settings, with its data and with what stands in for them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
FOLDER = Path(__file__).parents[2] / "notebooks"


def cells(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_data", [True, False], ids=["data", "stand-in"])
def test_every_cell_of_the_notebook_on_time_runs(has_data, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if has_data and not Path(os.environ.get("NMF_ZOO_DATA", "no data"), "nips_uci").exists():
        pytest.skip("no data")
    if not has_data:
        monkeypatch.setenv("NMF_ZOO_DATA", "no data")
    monkeypatch.setenv("NMF_ZOO_NOTEBOOK", "small")
    names: dict = {}
    with matplotlib.rc_context():
        for number, cell in enumerate(cells("time.ipynb")):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"time.ipynb, cell {number}", "exec"), names)
    assert len(plt.get_fignums()) >= 5
    plt.close("all")
    assert names["exact"]["fit"]["H_best"].ndim == 3


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.glob("*.ipynb"))])
def test_notebooks_are_kept_as_they_ran(name):
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert (FOLDER / name).stat().st_size < 1.5e6
