"""Blocks of samples from files: every reader gives the table that was written, and says what is wrong with a file."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.blocks.store import ReadInOrder
from nmf_zoo.structure import offset_at
from nmf_zoo.verbs.block_source import CutArray, Samples, as_data, as_source, labels_of
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N = 7, 23
X = RNG.poisson(0.8, (F, N)).astype(float)
X[:, 5] = 0.0  # a sample without counts
S = sp.csc_array(X)
OF_ANNDATA = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore:.*Zarr v2")  # that it sets


def table(source):
    """All blocks side by side; missing cells NaN."""
    parts = []
    for number in range(len(source.bounds) - 1):
        data, _ = as_data(source, number)
        part = np.zeros(data.shape) if data.is_complete else np.full(data.shape, np.nan)
        if hasattr(data, "rows"):
            part[data.rows, data.cols] = data.values
        else:
            part = np.where(True if data.mask is None else data.mask, data.values, np.nan)
        parts.append(part)
    return np.concatenate(parts, axis=1)


def long_form(path, **options):
    rows, cols = np.nonzero(X.T)
    frame = pd.DataFrame({"sample": rows, "feature": cols, "count": X.T[rows, cols].astype(int)})
    frame.to_parquet(path, index=False, **options)
    return path


def written(path, **options):
    nz.write_blocks(path, S, block=4, **options)
    return path


def pieces(folder):
    for number, part in enumerate(np.array_split(np.arange(N), 3)):
        sp.save_npz(folder / f"{number}.npz", S[:, part])
    return [folder / f"{number}.npz" for number in range(3)]


def market(folder):
    scipy.io.mmwrite(folder / "a.mtx", sp.coo_array(X[:, :10]))
    scipy.io.mmwrite(folder / "b.mtx", sp.coo_array(X[:, 10:]))
    return [str(folder / name) for name in ("a.mtx", "b.mtx")]


def mapped(path, array):
    np.save(path, array)
    return path


MADE = {
    "zarr": lambda folder: (written(folder / "x.zarr"), {"block": 5}),
    "zarr, plain": lambda folder: (written(folder / "x.zarr", compress=False), {}),
    "npy": lambda folder: (mapped(folder / "x.npy", X), {"block": 5}),
    "npy, samples in rows": lambda folder: (mapped(folder / "x.npy", X.T), {"transpose": True}),
    "npz": lambda folder: (pieces(folder), {}),
    "mtx": lambda folder: (market(folder), {}),
    "parquet": lambda folder: (long_form(folder / "x.parquet"), {}),
    "parquet, small groups": lambda folder: (long_form(folder / "x.parquet", row_group_size=7), {"block": 3}),
    "sparse": lambda folder: (S, {"block": 5}),
    "array, samples in rows": lambda folder: (X.T, {"transpose": True}),
}


@pytest.mark.parametrize("name", MADE)
def test_blocks_are_the_table(name, tmp_path):
    given, options = MADE[name](tmp_path)
    source = nz.open_blocks(given, **options)
    last = np.flatnonzero(X.sum(axis=0))[-1] + 1 if "parquet" in name else N
    assert as_source(source).shape == (F, last)
    np.testing.assert_array_equal(table(source), X[:, :last])


def test_small_row_groups_go_together(tmp_path, monkeypatch):
    monkeypatch.setattr("nmf_zoo.interfaces.blocks.parquet.BLOCK_CELLS", 20)
    source = nz.open_blocks(long_form(tmp_path / "x.parquet", row_group_size=7))
    assert len(source.bounds) > 3
    np.testing.assert_array_equal(table(source), X[:, : source.shape[1]])


@OF_ANNDATA
@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
@pytest.mark.parametrize("form", [sp.csr_matrix, np.asarray], ids=["sparse", "dense"])
def test_annotated(suffix, form, tmp_path):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(form(X.T), layers={"twice": form(2 * X.T)})
    path = tmp_path / f"x{suffix}"
    (adata.write_h5ad if suffix == ".h5ad" else adata.write_zarr)(path)
    source = nz.open_blocks(path, block=4)
    np.testing.assert_array_equal(table(source), X)
    np.testing.assert_array_equal(table(nz.open_blocks(path, layer="twice")), 2 * X)
    np.testing.assert_array_equal(labels_of(source, source.shape)["obs"], adata.obs_names)


@OF_ANNDATA
def test_annotated_by_variable_is_refused(tmp_path):
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(sp.csc_matrix(X.T)).write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(InputError, match="stored by variable"):
        nz.open_blocks(tmp_path / "x.h5ad")


SHORT = {"max_iter": 2, "tol": 0, "random_seed": 1, "quiet": True}
LABELS = {"feature": [f"f{n}" for n in range(F)], "obs": [f"ö{n}" for n in range(N)]}


class WithMore(CutArray):
    @property
    def coords(self):
        return LABELS

    def read(self, number):
        at = slice(self.bounds[number], self.bounds[number + 1])
        return Samples(super().read(number), exposure=1.0 + np.arange(N)[at])


def test_a_store_holds_what_comes_with_samples(tmp_path):
    holes = np.where(RNG.random(X.shape) < 0.2, np.nan, X / 3)
    nz.write_blocks(tmp_path / "x.zarr", WithMore(holes, 6))
    source = nz.open_blocks(tmp_path / "x.zarr", block=10)
    np.testing.assert_array_equal(table(source), holes)
    np.testing.assert_array_equal(np.concatenate([source.read(n).exposure for n in range(3)]), 1.0 + np.arange(N))
    assert list(labels_of(source, source.shape)["obs"]) == LABELS["obs"]
    idata = nz.fit(model=nz.gamma_nmf(None, 2, shape=(F, 1)), data=source, max_iter=3, tol=0, random_seed=1, quiet=True)
    assert idata.posterior["H"].sel(obs="ö3").shape == (1, 1, 2)
    assert idata.posterior["W"].sel(feature="f2").shape == (1, 1, 2)


TABLE = np.random.default_rng(2).gamma(1.0, 1.0, (F, N))
BACKGROUNDS = {
    "samples": (TABLE[:1], {"background_obs"}),
    "features": (TABLE[:, :1], {"background_feature"}),
    "pair": ((TABLE[:, :1], TABLE[:1]), {"background_obs", "background_feature"}),
    "table": (TABLE, {"background_table"}),
    "cells": (sp.csc_array(np.where(X > 0, TABLE, 0.0)), {"background"}),
}


def backgrounds(source):
    """Of all blocks side by side, at the cells that were observed."""
    parts = [as_data(source, number) for number in range(len(source.bounds) - 1)]
    tables = []
    for data, offsets in parts:
        rows, cols = np.nonzero(np.ones(data.shape)) if data.is_complete else (data.rows, data.cols)
        found = np.zeros(data.shape)
        found[rows, cols] = offset_at(offsets.background, rows, cols, data.shape, 0.0)
        tables.append(found)
    return np.concatenate(tables, axis=1)


@pytest.mark.parametrize("observed", [None, "stored"])
@pytest.mark.parametrize("name", BACKGROUNDS)
def test_a_store_holds_the_background_of_its_samples(name, observed, tmp_path):
    background, arrays = BACKGROUNDS[name]
    if name == "cells" and observed is None:
        pytest.skip("numbers of stored cells are of those alone")
    given = CutSamples(S, 6, 1.0 + np.arange(N), observed=observed, background=background)
    nz.write_blocks(tmp_path / "x.zarr", given)
    assert {path.name for path in (tmp_path / "x.zarr").glob("background*")} == arrays
    for source in (
        nz.open_blocks(tmp_path / "x.zarr", block=10),
        pickle.loads(pickle.dumps(nz.open_blocks(tmp_path / "x.zarr", block=N))),
        nz.open_blocks([tmp_path / "x.zarr"]),
    ):
        np.testing.assert_array_equal(backgrounds(source), backgrounds(given))
    assert json.loads((tmp_path / "x.zarr/.zattrs").read_bytes())["nmf_zoo_blocks"] == 2
    nz.write_blocks(tmp_path / "again.zarr", nz.open_blocks(tmp_path / "x.zarr", block=4))
    np.testing.assert_array_equal(backgrounds(nz.open_blocks(tmp_path / "again.zarr")), backgrounds(given))


def test_backgrounds_of_unlike_blocks_are_stored_as_a_table(tmp_path):
    source = CutSamples(S, 6, background=(TABLE[:, :1], TABLE[:1]))
    read = source.read
    source.read = lambda n: read(n)._replace(background=(TABLE[:, [n]], read(n).background[1]))
    nz.write_blocks(tmp_path / "x.zarr", source)
    np.testing.assert_array_equal(backgrounds(nz.open_blocks(tmp_path / "x.zarr", block=5)), backgrounds(source))
    source.read = lambda n: read(n) if n else read(n)._replace(background=None)
    with pytest.raises(InputError, match=r"data\.read\(1\): got backgrounds of some blocks only"):
        nz.write_blocks(tmp_path / "y.zarr", source)


def test_stores_without_a_background_are_as_they_were(tmp_path):
    path = written(tmp_path / "x.zarr")
    assert json.loads((path / ".zattrs").read_bytes())["nmf_zoo_blocks"] == 1
    damaged(path, ".zattrs", lambda attrs: attrs.update(nmf_zoo_blocks=3))
    with pytest.raises(InputError, match="layout 3; expected 1 or 2"):
        nz.open_blocks(path)


def test_of_a_list_the_background_follows_the_labels_of_features(tmp_path):
    names = [f"f{n}" for n in range(F)]
    for name, order, part in (("a", slice(None), slice(0, 10)), ("b", slice(None, None, -1), slice(10, N))):
        given = CutSamples(S[order, part], 5, coords={"feature": names[order]}, background=TABLE[order, part])
        nz.write_blocks(tmp_path / f"{name}.zarr", given)
    found = nz.open_blocks([tmp_path / "a.zarr", tmp_path / "b.zarr"])
    np.testing.assert_array_equal(table(found), X)
    np.testing.assert_array_equal(backgrounds(found), TABLE)


def test_samples_in_another_order_keep_their_backgrounds():
    order = np.random.default_rng(3).permutation(N)
    for background, _ in BACKGROUNDS.values():
        samples = Samples(S, observed="stored", background=background)
        one, other = CutSamples(S, N), CutSamples(S, N)
        one.read, other.read = (lambda n, own=own: own for own in (samples, samples.in_order(order)))
        np.testing.assert_array_equal(backgrounds(other), backgrounds(one)[:, order])


@pytest.mark.parametrize("form", [pd.DataFrame, "DataArray"])
def test_labels_of_tables_in_memory_come_along(form, tmp_path):
    labels = {"feature": [f"f{row}" for row in range(F)], "obs": [f"s{column}" for column in range(N)]}
    given = xr.DataArray(X, labels, ("feature", "obs")) if form == "DataArray" else form(X, *labels.values())
    nz.write_blocks(tmp_path / "x.zarr", given, block=6)
    for source in (as_source(given), nz.open_blocks(given, block=6), nz.open_blocks(tmp_path / "x.zarr")):
        np.testing.assert_array_equal(table(source), X)
        for dim, own in labels.items():
            assert list(labels_of(source, source.shape)[dim]) == own
    turned = nz.open_blocks(given.T, block=6, transpose=True)
    np.testing.assert_array_equal(table(turned), X)


def test_columns_of_objects_are_numbers():
    holes = np.where(X == 2, np.nan, X)
    given = pd.DataFrame(holes).astype("Int64")
    np.testing.assert_array_equal(table(nz.open_blocks(given, block=6)), holes)
    with pytest.raises(InputError, match="data: got the non-numeric cell 'many' at feature 'f', obs 1"):
        nz.open_blocks(pd.DataFrame([[1, "many"]], ["f"]))


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(N) + 5,
        np.arange(N) / 4,
        np.arange("2024-01", "2025-12", dtype="datetime64[M]").astype("datetime64[ns]"),
        pd.date_range("2024-01-01", periods=N).to_numpy(),
        np.array([f"s{n}" for n in range(N)]),
        np.array([f"s{n}" for n in range(N)], dtype=object),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_stay_what_they_were(labels, tmp_path):
    source = CutArray(X, 6)
    source.coords = {"obs": labels}
    nz.write_blocks(tmp_path / "x.zarr", source)
    found = nz.open_blocks(tmp_path / "x.zarr").coords["obs"]
    np.testing.assert_array_equal(found, labels)
    assert found.dtype == labels.dtype or labels.dtype == object
    result = nz.fit(model=nz.gamma_nmf(None, 2, shape=(F, 1)), data=nz.open_blocks(tmp_path / "x.zarr"), **SHORT)
    np.testing.assert_array_equal(result.posterior["obs"], labels)


def test_labels_of_no_kind_are_refused(tmp_path):
    source = CutArray(X, 6)
    source.coords = {"obs": np.arange(N)}
    nz.write_blocks(tmp_path / "x.zarr", source)
    damaged(tmp_path / "x.zarr", "obs/.zattrs", lambda attrs: attrs.update(dtype="nonsense"))
    with pytest.raises(InputError, match="labels of 'obs' that can't be read"):
        nz.open_blocks(tmp_path / "x.zarr")


def test_lists_of_stores_keep_what_comes_with_samples(tmp_path):
    for name, part in (("a", slice(0, 10)), ("b", slice(10, N))):
        source = CutArray(sp.csc_array(X[:, part]), 6)
        source.read = lambda n, own=source, at=part: Samples(
            CutArray.read(own, n), (1.0 + np.arange(N))[at][own.bounds[n] : own.bounds[n + 1]], observed="stored"
        )
        nz.write_blocks(tmp_path / f"{name}.zarr", source)
    found = nz.open_blocks([tmp_path / "a.zarr", tmp_path / "b.zarr"])
    np.testing.assert_array_equal(table(found), np.where(X > 0, X, np.nan))
    np.testing.assert_array_equal(np.concatenate([found.read(n).exposure for n in range(2)]), 1.0 + np.arange(N))


def test_row_groups_without_rows_are_passed_over(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    whole = pa.Table.from_pandas(pd.read_parquet(long_form(tmp_path / "x.parquet")), preserve_index=False)
    with pq.ParquetWriter(tmp_path / "y.parquet", whole.schema) as writer:
        for part in (whole[:0], whole[:20], whole[:0], whole[20:], whole[:0]):
            writer.write_table(part)
    for block in (None, 3):
        source = nz.open_blocks(tmp_path / "y.parquet", block=block)
        np.testing.assert_array_equal(table(source), X[:, : source.shape[1]])
    with pq.ParquetWriter(tmp_path / "z.parquet", whole.schema) as writer:
        writer.write_table(whole[:0])
    with pytest.raises(InputError, match="got no rows"):
        nz.open_blocks(tmp_path / "z.parquet")


@pytest.mark.parametrize("block", [None, 3])
def test_the_last_features_and_samples_of_a_parquet_file_may_have_no_row(block, tmp_path):
    path = long_form(tmp_path / "x.parquet", row_group_size=7)
    padded = np.zeros((F + 2, N + 4))
    padded[:F, :N] = X
    source = nz.open_blocks(path, shape=padded.shape, block=block)
    np.testing.assert_array_equal(table(source), padded)
    for shape, words in (((F - 1, N), "at least"), ((F,), "two integers"), ((F, 2.5), "two integers"), (7, "two int")):
        with pytest.raises(InputError, match=words):
            nz.open_blocks(path, shape=shape)
    with pytest.raises(InputError, match=r"shape: got .*; expected None: tables other than Parquet"):
        nz.open_blocks(X, shape=(F, N))


def test_written_twice(tmp_path):
    path = written(tmp_path / "x.zarr")
    with pytest.raises(InputError, match="which exists"):
        nz.write_blocks(path, S)
    nz.write_blocks(path, 2 * S, overwrite=True)
    np.testing.assert_array_equal(table(nz.open_blocks(path)), 2 * X)


def damaged(path, name, change):
    file = path / name
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    return path


BAD = {
    "no such file": (lambda folder: folder / "x.npy", "no such file"),
    "kind": (lambda folder: mapped(folder / "x.npy", X).rename(folder / "x.jpg"), "extension '.jpg'"),
    "no number": (lambda folder: mapped(folder / "x.npy", X.astype(str)), "table of numbers"),
    "no table": (lambda folder: mapped(folder / "x.npy", X[0]), "table of numbers"),
    "empty list": (lambda folder: [], "paths of files"),
    "other features": (lambda folder: [*pieces(folder), mapped(folder / "y.npy", X[:4])], "4 features; expected 7"),
    "columns": (lambda folder: renamed(folder), "the columns sample, gene, count"),
    "unsorted": (lambda folder: unsorted(folder), "sorted by sample"),
    "layout": (
        lambda folder: damaged(written(folder / "x.zarr"), ".zattrs", lambda a: a.update(nmf_zoo_blocks=9)),
        "layout 9",
    ),
    "shape": (
        lambda folder: damaged(written(folder / "x.zarr"), ".zattrs", lambda a: a.update(shape=[F, N + 1])),
        "'indptr'",
    ),
    "cut": (
        lambda folder: damaged(written(folder / "x.zarr"), "data/.zarray", lambda a: a.update(shape=[3])),
        "3 values",
    ),
}


def renamed(folder):
    frame = pd.read_parquet(long_form(folder / "x.parquet")).rename(columns={"feature": "gene"})
    frame.to_parquet(folder / "x.parquet", index=False)
    return folder / "x.parquet"


def unsorted(folder):
    pd.read_parquet(long_form(folder / "x.parquet"))[::-1].to_parquet(folder / "x.parquet", index=False)
    return folder / "x.parquet"


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_file_is_told(name, tmp_path):
    make, words = BAD[name]
    with pytest.raises(InputError) as caught:
        table(nz.open_blocks(make(tmp_path)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_indices_beyond_the_features_never_reach_a_kernel(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = written(tmp_path / "x.zarr")
    zarr.open_group(str(path), mode="r+", zarr_format=2)["indices"][3] = 99
    with pytest.raises(InputError, match="99"):
        table(nz.open_blocks(path))


@pytest.mark.parametrize(("cell", "words"), [(-1.0, "the cell -1"), (np.inf, "the cell inf")])
def test_cells_are_checked_before_they_are_written(cell, words, tmp_path):
    bad = np.array(X)
    bad[2, 3] = cell
    with pytest.raises(InputError, match=words):
        nz.write_blocks(tmp_path / "x.zarr", bad)
    assert list(tmp_path.iterdir()) == []


def test_lists_of_tables_have_the_features_of_the_first_in_its_order(tmp_path):
    first = pd.DataFrame([[1, 2], [30, 40]], index=["a", "b"], columns=["s0", "s1"])
    second = first.iloc[::-1].set_axis(["s2", "s3"], axis=1)
    paths = [tmp_path / "first.csv", tmp_path / "second.csv"]
    first.to_csv(paths[0])
    second.to_csv(paths[1])
    found = nz.open_blocks(paths)
    np.testing.assert_array_equal(found.read(1).X, found.read(0).X)
    assert found.coords == {"feature": ["a", "b"], "obs": ["s0", "s1", "s2", "s3"]}
    second.set_axis(["a", "c"], axis=0).to_csv(paths[1])
    with pytest.raises(InputError, match=r"second.csv: got features of other names \('c'\); expected those of .*first"):
        nz.open_blocks(paths)
    np.save(tmp_path / "third.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match=r"third.npy: got no labels of features; expected some, as .*first.csv has"):
        nz.open_blocks([paths[0], tmp_path / "third.npy"])


class InChunks:
    """An array in chunks of seven, which counts how often each is read."""

    chunks, compressors = (7,), ("some",)

    def __init__(self, n):
        self.values = np.arange(n, dtype=np.int32)
        self.shape, self.dtype, self.counts = self.values.shape, self.values.dtype, np.zeros(-(-n // 7), int)

    def __getitem__(self, at):
        self.counts[at.start // 7 : -(-at.stop // 7)] += 1
        return self.values[at].copy()


@pytest.mark.parametrize("bounds", [range(0, 51, 3), range(0, 51, 10), [0, 7, 7, 8, 29, 50], [0, 50], range(51)])
def test_pieces_in_order_read_every_chunk_once(bounds):
    array = InChunks(50)
    reader = ReadInOrder(array)
    for _ in range(2):
        for begin, end in pairwise(bounds):
            found = reader.read(begin, end)
            np.testing.assert_array_equal(found, array.values[begin:end])
            found[:] = -1  # it is newly made
    assert array.counts.max() == 2  # in two passes
    for begin, end in ANY_PIECES:
        np.testing.assert_array_equal(reader.read(begin, end), array.values[begin:end])


ANY_PIECES = np.sort(np.random.default_rng(1).integers(0, 51, (200, 2)))


@pytest.mark.parametrize("codec", [None, "auto"])
@pytest.mark.parametrize("dtype", ["<u4", ">u4", "<f8"])
def test_pieces_of_zarr_arrays(codec, dtype, tmp_path):
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(str(tmp_path), mode="w", zarr_format=2)
    array = root.create_array("x", shape=(50,), chunks=(7,), dtype=dtype, compressors=codec)
    array[:] = values = np.arange(1, 51, dtype=dtype)
    reader = ReadInOrder(array)
    for begin, end in ANY_PIECES:
        for wanted in (None, np.float64):
            found = reader.read(begin, end, wanted)
            np.testing.assert_array_equal(found, values[begin:end], strict=wanted is None)
            assert wanted is None or found.dtype == wanted


def test_a_chunk_that_is_cut_short_is_told(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "x.zarr"
    nz.write_blocks(path, S, compress=False)
    chunk = path / "data" / "0"
    chunk.write_bytes(chunk.read_bytes()[:9])
    with pytest.raises(InputError, match=r"x\.zarr: got samples 0 to \d+ that can't be read"):
        table(nz.open_blocks(path))


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["indices", "data"])
def test_a_chunk_that_is_missing_is_told(name, compress, tmp_path):
    """Zarr reads it as zeros."""
    pytest.importorskip("zarr")
    nz.write_blocks(tmp_path / "x.zarr", S, compress=compress)
    (tmp_path / "x.zarr" / name / "0").unlink()
    with pytest.raises(InputError, match=rf"x\.zarr: got 0 of 1 chunks of the array '{name}'; expected what nz.write"):
        nz.open_blocks(tmp_path / "x.zarr")
