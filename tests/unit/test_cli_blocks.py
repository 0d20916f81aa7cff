"""``nmf-zoo convert``, and ``nmf-zoo fit`` of the store that it writes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.tables import read_matrix
from nmf_zoo.verbs.block_source import CutArray, Samples

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


@pytest.mark.engines
def test_known_components_go_by_the_labels_of_the_store(folder):
    names = [f"g{row}" for row in range(len(X))]
    known = pd.DataFrame({"one": np.arange(1.0, 7.0)}, names)
    nz.write_blocks("table.zarr", pd.DataFrame(X, names), overwrite=True)
    known[::-1].to_csv("known.csv")
    assert run(f"{FIT} --known known.csv -o fit.nc") == 0
    found = nz.load("fit.nc").posterior["W"].sel(component="one", feature=names)
    np.testing.assert_allclose(found.squeeze(), known["one"])


def test_draws_over_blocks_are_those_of_python(folder):
    """With samples to keep, or none, a sampler goes over the store: H has moments, and draws of these."""
    nz.write_blocks("table.zarr", X)
    line = "fit table.zarr --model gamma-nmf --rank 2 --draws 4 --tune 3 --chains 1 --random-seed 1 --quiet"
    for kept, output in (("3,5", "draws.zarr"), ("3,5", "draws.nc"), ("none", "moments.nc")):
        assert run(f"{line} --kept-samples {kept} -o {output}") == 0
    model = nz.gamma_nmf(None, 2, shape=(6, 1))
    data = nz.open_blocks("table.zarr")
    how = {"tune": 3, "chains": 1, "random_seed": 1, "quiet": True}
    expected = nz.sample(4, model=model, data=data, kept_samples=[3, 5], **how)
    for output in ("draws.zarr", "draws.nc"):
        found = nz.load(output)
        np.testing.assert_array_equal(found.posterior["H"], expected.posterior["H"])
        np.testing.assert_array_equal(found.posterior_moments["H_mean"], expected.posterior_moments["H_mean"])
    assert "H" not in nz.load("moments.nc").posterior


REFUSED = {
    "convert table.zarr": "the tables and then the store",
    "convert a.npy table.csv": "a new name that ends in .zarr",
    "convert none.npy table.zarr": "none.npy",
    FIT + " -o x.nc --transpose": "give it to convert",
    FIT + " -o x.nc --exposure 2": "give it to convert",
    FIT + " -o x.nc --restarts 2 --search 4": "--restarts: got 2",
    FIT + " -o x.nc --log-likelihood": "--log-likelihood: got it with a store of blocks",
    FIT + " -o x.nc --inner 2": "over a store of blocks: --inner 2 takes more than one pass",
    "fit table.zarr --rank 2 --kept-samples 0 --engine nuts -o x.nc": "a model and an engine that go over them",
    "fit a.npy --rank 2 --kept-samples none -o x.nc": "--kept-samples: got it with a.npy",
    "describe table.zarr --transpose": "the samples of a store of blocks are known",
    "describe table.zarr --layer x": "--layer: got 'x'; expected nothing: table.zarr is no file that has it",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(line, folder, capsys):
    nz.write_blocks("table.zarr", X, overwrite=True)
    assert run(line) == 2
    said = capsys.readouterr().err
    assert REFUSED[line] in said
    assert len(said.splitlines()) == 1


class WithMore(CutArray):
    """Samples with exposures, backgrounds, numbers as labels, and cells that were not observed."""

    coords = {"feature": [f"f{n}" for n in range(6)], "obs": np.arange(100, 120)}  # noqa: RUF012

    def read(self, number):
        at = slice(self.bounds[number], self.bounds[number + 1])
        X = sp.csc_array(super().read(number))
        return Samples(X, 1.0 + np.arange(20.0)[at], observed="stored", background=0.5 + np.arange(20.0)[at])


def test_a_store_is_a_table_like_any_other(folder, capsys):
    """describe, rank, compare and samplers read it whole, with all that it holds."""
    few = X * (X > 2)
    nz.write_blocks("table.zarr", WithMore(few))
    assert run("describe table.zarr") == 0
    said = capsys.readouterr().out
    assert "6 features (rows) x 20 samples (columns), sparse" in said
    assert f"missing     {np.sum(few == 0)} (" in said
    assert "samples     100, 101, 102, ..." in said
    short = "--random-seed 1 --quiet"
    assert run(f"rank table.zarr --model gamma-nmf --ranks 1:2 --restarts 1 --search 0 {short}") == 0
    assert run(f"compare table.zarr --rank 1 --engines em,vb --max-iter 5 {short}") == 0
    for how in ("gamma-nmf --engine gibbs --draws 3 --tune 3 --chains 1", "gap --engine mcem --max-iter 3"):
        assert run(f"fit table.zarr --rank 2 --model {how} {short} -o result.nc --force") == 0
        found = nz.load("result.nc")
        assert "exposure: array 1 x 20 in [1, 20]" in found.attrs["model"]
        assert "background: array 1 x 20 in [0.5, 19.5]" in found.attrs["model"]
        assert f"{np.sum(few == 0)} cells missing" in found.attrs["model"]
        assert found.posterior["W"].sel(feature="f3").shape[-1] == 2
    capsys.readouterr()
    assert run("rank table.zarr --model gamma-nmf --ranks 1:2 --exposure 2") == 2
    assert "--exposure: got a value beside that of table.zarr" in capsys.readouterr().err


def test_what_describe_suggests_for_a_store_can_be_run(folder, capsys):
    for number, table in enumerate((X, X / 3, 10.0 ** (X - 3))):
        nz.write_blocks("table.zarr", table, overwrite=True)
        assert run("describe table.zarr") == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "nmf-zoo fit" in line)
        words = line.split("nmf-zoo ")[1].replace("--rank K", "--rank 1")
        more = "--draws 3 --tune 3 --chains 1" if "gibbs" in words else "--max-iter 3 --tol 0"
        assert run(f"{words.replace('result.nc', f'{number}.nc')} {more} --quiet") == 0


def test_a_store_that_does_not_fit_into_memory_is_refused_in_a_line(folder, capsys, monkeypatch):
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 1000.0)
    nz.write_blocks("table.zarr", X)
    assert run("describe table.zarr") == 2
    assert "go over it block by block: --engine vb, --kept-samples none" in capsys.readouterr().err


def test_a_store_of_most_cells_is_read_as_an_array_with_its_holes(folder):
    holes = np.where(np.arange(X.size).reshape(X.shape) % 7 == 0, np.nan, X / 3)
    nz.write_blocks("table.zarr", holes)
    np.testing.assert_array_equal(read_matrix("table.zarr").values, holes)
