"""``nmf-zoo convert``, and ``nmf-zoo fit`` of the store that it writes."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main

pytest.importorskip("zarr")
X = np.random.default_rng(1).poisson(2.0, (6, 20)).astype(float)
FIT = "fit table.zarr --model gamma-nmf --rank 2 --engine em --max-iter 4 --tol 0 --random-seed 1 --quiet"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", X[:, :12])
    np.savetxt("b.csv", X[:, 12:], delimiter=",")
    return tmp_path


def run(line):
    return main(line.split())


def test_tables_become_one_store_that_fits_go_over(folder, capsys):
    assert run("convert a.npy b.csv table.zarr") == 0
    assert capsys.readouterr().out == "wrote table.zarr: 6 features x 20 samples, from 2 blocks\n"
    assert nz.open_blocks("table.zarr").shape == X.shape
    for output in ("fit.zarr", "fit.nc"):
        assert run(f"{FIT} -o {output}") == 0
        assert nz.load(output).posterior["H"].shape == (1, 1, 2, 20)
    assert run("convert a.npy table.zarr") == 2
    assert "--force" in capsys.readouterr().err
    assert run("convert a.npy table.zarr --force --no-compress") == 0
    assert nz.open_blocks("table.zarr").shape == (6, 12)


REFUSED = {
    "convert table.zarr": "the tables and then the store",
    "convert a.npy table.csv": "a new name that ends in .zarr",
    "convert none.npy table.zarr": "none.npy",
    FIT.replace("em", "gibbs").split(" --max-iter")[0] + " -o x.nc": "an optimiser that goes over blocks",
    FIT + " -o x.nc --transpose": "give it to convert",
    FIT.replace("engine em", "engine mcem") + " -o x.nc": "holds all of X in memory",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(line, folder, capsys):
    nz.write_blocks("table.zarr", X, overwrite=True)
    assert run(line) == 2
    said = capsys.readouterr().err
    assert REFUSED[line] in said
    assert len(said.splitlines()) == 1
