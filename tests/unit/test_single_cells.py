"""Files of single-cell counts: folders of 10x, AnnData's HDF5 and Zarr; from Python and from the command line."""

from __future__ import annotations

import gzip
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.tables import read_matrix

COUNTS = sp.csr_array(np.array([[3, 0, 1, 0], [0, 2, 0, 5], [1, 0, 4, 0]]))  # genes x cells
GENES = [["ENSG1", "A", "Gene Expression"], ["ENSG2", "B", "Gene Expression"], ["ENSG3", "A", "Gene Expression"]]
CELLS = ["AAAC-1", "AAAG-1", "AACT-1", "AAGG-1"]
LABELS = ["A (ENSG1)", "B", "A (ENSG3)"]

needs_anndata = pytest.mark.skipif(find_spec("anndata") is None, reason="needs anndata, of the extra anndata")


def write_10x(folder, features="features.tsv.gz", genes=GENES, cells=CELLS, without=()):
    """A folder as 10x writes it; names that end in .gz are packed."""
    folder.mkdir()
    scipy.io.mmwrite(folder / "matrix.mtx", COUNTS)
    columns = 3 if features.startswith("features") else 2
    packed = features.endswith(".gz")
    texts = {
        "matrix.mtx": (folder / "matrix.mtx").read_bytes(),
        features.removesuffix(".gz"): "".join("\t".join(gene[:columns]) + "\n" for gene in genes).encode(),
        "barcodes.tsv": "".join(f"{cell}\n" for cell in cells).encode(),
    }
    (folder / "matrix.mtx").unlink()
    for name, text in texts.items():
        if name not in without:
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(text) if packed else text)
    return folder


@pytest.mark.parametrize("features", ["features.tsv.gz", "features.tsv", "genes.tsv", "genes.tsv.gz"])
def test_a_folder_of_10x(tmp_path, features):
    found = read_matrix(write_10x(tmp_path / "filtered", features))
    assert found.is_sparse
    assert np.array_equal(found.values.toarray(), COUNTS.toarray())
    assert found.rows == LABELS
    assert found.columns == CELLS


def test_kinds_of_features(tmp_path):
    genes = [*GENES[:2], ["CD3", "CD3", "Antibody Capture"]]
    folder = write_10x(tmp_path / "both", genes=genes)
    with pytest.raises(InputError, match=r"features of 2 kinds.*choose with --key"):
        read_matrix(folder)
    found = read_matrix(folder, key="Antibody Capture")
    assert found.rows == ["CD3"]
    assert np.array_equal(found.values.toarray(), COUNTS.toarray()[2:])
    with pytest.raises(InputError, match=r"key: got 'Antibody capture'.*did you mean 'Antibody Capture'"):
        read_matrix(folder, key="Antibody capture")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"without": ("matrix.mtx",)}, "a folder without matrix.mtx"),
        ({"without": ("features.tsv",)}, r"a folder without features.tsv\[.gz\] or genes.tsv"),
        ({"without": ("barcodes.tsv",)}, "a folder without barcodes.tsv"),
        ({"genes": GENES[:2]}, "features.tsv.gz: got 2 lines; expected 3, one per feature"),
        ({"cells": [*CELLS, "A"]}, "barcodes.tsv.gz: got 5 lines; expected 4, one per barcode"),
        ({"cells": ["A\x00", *CELLS[1:]]}, "label of column 1"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(tmp_path, how, words):
    with pytest.raises(InputError, match=words):
        read_matrix(write_10x(tmp_path / "folder", **how))


def test_a_damaged_file_in_a_folder(tmp_path):
    folder = write_10x(tmp_path / "folder")
    (folder / "barcodes.tsv.gz").write_bytes((folder / "barcodes.tsv.gz").read_bytes()[:-9])
    with pytest.raises(InputError, match="can't be read"):
        read_matrix(folder)


def fit_from(path, tmp_path, *options):
    output = tmp_path / "fit.nc"
    line = ["fit", str(path), "-o", str(output), "--rank", "1", "--engine", "em", "--max-iter", "3", "--tol", "0"]
    assert main([*line, "--random-seed", "1", "--quiet", "--search", "0", *options]) == 0
    return _compat.group(nz.load(output), "posterior")


def test_the_command_line_reads_a_folder(tmp_path):
    posterior = fit_from(write_10x(tmp_path / "filtered"), tmp_path)
    assert posterior["feature"].to_numpy().tolist() == LABELS
    assert posterior["obs"].to_numpy().tolist() == CELLS


# -- AnnData ---------------------------------------------------------------------------------------------------------


def dense(table):
    return table.toarray() if sp.issparse(table) else table


def annotated(layout=sp.csr_matrix):
    import anndata
    import pandas as pd

    obs, var = pd.DataFrame(index=CELLS), pd.DataFrame(index=["g1", "g2", "g3"])
    counts = layout(COUNTS.T.astype(np.float32))
    return anndata.AnnData(X=layout(np.log1p(COUNTS.T.toarray())), obs=obs, var=var, layers={"counts": counts})


@needs_anndata
@pytest.mark.filterwarnings("ignore")  # of other libraries, while it is written
@pytest.mark.parametrize("layout", [sp.csr_matrix, sp.csc_matrix, dense])
@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_anndata(tmp_path, suffix, layout):
    path = tmp_path / f"x{suffix}"
    made = annotated(layout)
    (made.write_h5ad if suffix == ".h5ad" else made.write_zarr)(path)
    found, of_x = read_matrix(path, layer="counts"), read_matrix(path)
    assert found.is_sparse == (layout is not dense)
    assert np.array_equal(dense(found.values), COUNTS.toarray())
    np.testing.assert_allclose(dense(of_x.values), np.log1p(COUNTS.toarray()), rtol=1e-6)
    assert (found.rows, found.columns) == (["g1", "g2", "g3"], CELLS)


@needs_anndata
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_anndata_is_one_line(tmp_path):
    path = tmp_path / "x.h5ad"
    made = annotated()
    made.X = None
    made.write_h5ad(path)
    with pytest.raises(InputError, match=r"no X; expected a layer.*choose with layer="):
        read_matrix(path)
    with pytest.raises(InputError, match=r"layer: got 'count'.*did you mean 'counts'"):
        read_matrix(path, layer="count")
    with pytest.raises(InputError, match="transpose: got True"):
        read_matrix(path, layer="counts", transpose=True)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="can't be read"):
        read_matrix(path, layer="counts")


@needs_anndata
@pytest.mark.filterwarnings("ignore")
def test_a_result_is_no_anndata(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "fit.zarr"
    nz.save(nz.fit(model=nz.poisson_nmf(COUNTS, 1), max_iter=2, tol=0, random_seed=1, quiet=True, search=None), path)
    with pytest.raises(InputError, match="no obs; expected an AnnData file"):
        read_matrix(path)


@needs_anndata
@pytest.mark.filterwarnings("ignore")
def test_the_command_line_reads_a_layer(tmp_path):
    annotated().write_h5ad(tmp_path / "x.h5ad")
    posterior = fit_from(tmp_path / "x.h5ad", tmp_path, "--layer", "counts")
    assert posterior["feature"].to_numpy().tolist() == ["g1", "g2", "g3"]
    assert posterior["obs"].to_numpy().tolist() == CELLS


def test_a_layer_belongs_to_anndata(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    assert main(["fit", str(tmp_path / "x.csv"), "-o", str(tmp_path / "y.nc"), "--rank", "1", "--layer", "counts"]) == 2
    assert "--layer: got 'counts'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.h5ad", "x.zarr"])
def test_without_anndata(tmp_path, name, monkeypatch):
    from nmf_zoo.interfaces.tables import annotated

    monkeypatch.setattr(annotated, "find_spec", lambda module: None)
    if name.endswith(".zarr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text("{}")
    else:
        (tmp_path / name).write_bytes(b"not empty")
    with pytest.raises(InputError, match=r"pip install 'nmf_zoo\[anndata\]'"):
        read_matrix(tmp_path / name)
