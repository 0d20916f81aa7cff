"""Input files: what is read, and the one line that says what is wrong."""

import gzip

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse

from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.tables import READERS, read_labels, read_matrix

COUNTS = np.array([[1, 0, 2], [0, 3, 4]])
ROWS, COLUMNS = ["a", "b"], ["s1", "s2", "s3"]


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "rows", "columns"),
    [
        ("plain.csv", "1,0,2\n0,3,4\n", None, None),
        ("header.csv", "s1,s2,s3\n1,0,2\n0,3,4\n", None, COLUMNS),
        ("labels.csv", "a,1,0,2\nb,0,3,4\n", ROWS, None),
        ("both.csv", "gene,s1,s2,s3\na,1,0,2\nb,0,3,4\n", ROWS, COLUMNS),
        ("corner.csv", ",s1,s2,s3\na,1,0,2\nb,0,3,4\n", ROWS, COLUMNS),
        ("numbered.csv", ",0,1,2\n0,1,0,2\n1,0,3,4\n", ["0", "1"], ["0", "1", "2"]),
        ("short.tsv", "s1\ts2\ts3\na\t1\t0\t2\nb\t0\t3\t4\n", ROWS, COLUMNS),
        ("semicolon.csv", "1;0;2\n0;3;4\n", None, None),
        ("spaces.txt", "1\t0\t2\r\n\r\n0\t3\t4\r\n", None, None),
        ("bom.csv", b"\xef\xbb\xbf1,0,2\n0,3,4", None, None),
        ("quoted.csv", '"x, y",1,0,2\nb,0,3,4\n', ["x, y", "b"], None),
        ("UPPER.CSV", "1,0,2\n0,3,4\n", None, None),
        ("years.csv", ",2001,2002,2003\na,1,0,2\nb,0,3,4\n", ROWS, ["2001", "2002", "2003"]),
        ("short years.tsv", "2001\t2002\t2003\na\t1\t0\t2\nb\t0\t3\t4\n", ROWS, ["2001", "2002", "2003"]),
        ("short, numbered.tsv", "s1\ts2\ts3\n7\t1\t0\t2\n8\t0\t3\t4\n", ["7", "8"], COLUMNS),
        ("dates.csv", "day,s1,s2,s3\n2020-01-01,1,0,2\n2020-01-02,0,3,4\n", ["2020-01-01", "2020-01-02"], COLUMNS),
        ("notations.csv", " 1.0,+0,2e0\n.0,3.,40E-1\n", None, None),
    ],
)
def test_text_layouts(tmp_path, name, text, rows, columns):
    matrix = read_matrix(write(tmp_path, name, text))
    np.testing.assert_array_equal(matrix.values, COUNTS)
    assert (matrix.rows, matrix.columns) == (rows, columns)


@pytest.mark.parametrize("word", ["", "NA", "nan", "null", "None"])
def test_missing_cells_are_nan(tmp_path, word):
    values = read_matrix(write(tmp_path, "x.csv", f"1,{word}\n3,4\n")).values
    np.testing.assert_array_equal(values, [[1, np.nan], [3, 4]])


def test_a_line_of_blanks_is_a_row_of_missing_cells(tmp_path):
    values = read_matrix(write(tmp_path, "x.csv", "1,2\n,\n3,4\n")).values
    np.testing.assert_array_equal(values, [[1, 2], [np.nan, np.nan], [3, 4]])


def test_one_column(tmp_path):
    assert read_matrix(write(tmp_path, "x.csv", "s1\n5\n6\n")).shape == (2, 1)


@pytest.mark.parametrize("odd", ["1", "0x10", "inf"])
def test_some_names_may_look_like_numbers(tmp_path, odd):
    assert read_matrix(write(tmp_path, "x.csv", f"a,5\nb,6\n{odd},7\n")).rows == ["a", "b", odd]


@pytest.mark.parametrize("text", ["0x10,1\n0x11,2\n", "x,1\n2,2\n", "1_0,1\n2_0,2\n"])
def test_labels_that_look_like_numbers_can_be_said(tmp_path, text):
    path = write(tmp_path, "x.csv", text)
    with pytest.raises(InputError, match="--row-labels"):
        read_matrix(path)
    matrix = read_matrix(path, header=False, row_labels=True)
    np.testing.assert_array_equal(matrix.values, [[1], [2]])
    assert matrix.rows == [line.split(",")[0] for line in text.split()]


def test_a_short_header_of_numbers_can_be_said(tmp_path):
    matrix = read_matrix(write(tmp_path, "x.csv", "1,2\n3,4,5\n"), header=True)
    assert (matrix.rows, matrix.columns) == (["3"], ["1", "2"])
    with pytest.raises(InputError, match="line 2: got 3 cells; expected 2"):
        read_matrix(tmp_path / "x.csv", header=False)


def test_layout_can_be_said(tmp_path):
    path = write(tmp_path, "x.csv", "2001,2002\n1,2\n3,4\n")
    assert read_matrix(path).shape == (3, 2)
    assert read_matrix(path, header=True).columns == ["2001", "2002"]
    assert read_matrix(path, header=True, row_labels=True).rows == ["1", "3"]
    path = write(tmp_path, "y.csv", "1,x,3\n4,5,6\n")
    assert read_matrix(path, header=True).columns == ["1", "x", "3"]


def test_transpose_swaps_labels(tmp_path):
    matrix = read_matrix(write(tmp_path, "x.csv", ",a,b\ns1,1,0\ns2,0,3\ns3,2,4\n"), transpose=True)
    np.testing.assert_array_equal(matrix.values, COUNTS)
    assert (matrix.rows, matrix.columns) == (ROWS, COLUMNS)


def test_gzip(tmp_path):
    path = write(tmp_path, "x.csv.gz", gzip.compress(b"1,0,2\n0,3,4\n"))
    np.testing.assert_array_equal(read_matrix(path).values, COUNTS)


def test_numpy_files(tmp_path):
    np.save(tmp_path / "x.npy", COUNTS)
    np.savez(tmp_path / "one.npz", X=COUNTS, names=np.array(["a", "b"]))
    np.savez(tmp_path / "two.npz", X=COUNTS, Y=COUNTS + 1)
    np.testing.assert_array_equal(read_matrix(tmp_path / "x.npy").values, COUNTS)
    np.testing.assert_array_equal(read_matrix(tmp_path / "one.npz").values, COUNTS)
    np.testing.assert_array_equal(read_matrix(tmp_path / "two.npz", key="Y").values, COUNTS + 1)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_sparse_files_stay_sparse(tmp_path, layout):
    sparse = scipy.sparse.csr_array(COUNTS).asformat(layout)
    scipy.sparse.save_npz(tmp_path / "x.npz", sparse)
    scipy.io.mmwrite(tmp_path / "x.mtx", sparse)
    (tmp_path / "x.mtx.gz").write_bytes(gzip.compress((tmp_path / "x.mtx").read_bytes()))
    for name in ("x.npz", "x.mtx", "x.mtx.gz"):
        matrix = read_matrix(tmp_path / name)
        assert matrix.is_sparse
        np.testing.assert_array_equal(matrix.values.toarray(), COUNTS)


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(COUNTS, columns=COLUMNS)
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.set_axis(ROWS).to_parquet(tmp_path / "index.parquet")
    frame.assign(gene=ROWS)[["gene", *COLUMNS]].to_parquet(tmp_path / "column.parquet")
    for name, rows in (("plain", None), ("index", ROWS), ("column", ROWS)):
        matrix = read_matrix(tmp_path / f"{name}.parquet")
        np.testing.assert_array_equal(matrix.values, COUNTS)
        assert (matrix.rows, matrix.columns) == (rows, COLUMNS)


def test_labels(tmp_path):
    assert read_labels(write(tmp_path, "v.txt", "a\n\nb \n\n")) == ["a", "", "b"]
    assert read_labels(write(tmp_path, "w.txt", "a\r\nb\u2028c\r\n")) == ["a", "b\u2028c"]
    with pytest.raises(InputError, match=r"v\.txt, line 2: got 'b\\x00'; expected text without control characters"):
        read_labels(write(tmp_path, "v.txt", b"a\nb\x00\n"))
    assert read_labels(write(tmp_path, "v.txt.gz", gzip.compress("ä\nb\n".encode()))) == ["ä", "b"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("empty.csv", "", ["empty file"]),
        ("blank.csv", "\n\n", ["without a line"]),
        ("header.csv", "s1,s2\n", ["header and nothing below"]),
        ("cell.csv", "1,2\n3,abc\n", ["line 2, column 2", "'abc'", "a number"]),
        ("comma.csv", "1;2\n3;4,5\n", ["line 2, column 2", "'4,5'"]),
        ("label.csv", "1,2\nx,4\n", ["line 2, column 1", "--row-labels"]),
        ("mixed.csv", "1,2,x\n3,4,5\n", ["line 1, column 3", "'x'", "--header"]),
        ("ragged.csv", "1,2\n3\n", ["line 2", "1 cell;", "expected 2"]),
        ("binary.csv", bytes(range(128, 256)), ["UTF-8"]),
        ("nul.csv", b"1,2\n3,\x00\n", ["nul.csv"]),
        ("label.tsv", b"a\x00b\t2\nc\t4\n", ["label of row 1", r"'a\x00b'", "control characters"]),
        ("name.csv", b"\x1b[31m,b\n1,2\n", ["label of column 1", r"'\x1b[31m'", "control characters"]),
        ("hex.csv", "0x10,1\n", ["line 1, column 1", "'0x10'", "--row-labels"]),
        ("hexadecimal.csv", "5,1\n0x10,1\n", ["line 2, column 1", "'0x10'"]),
        ("complex.csv", "1+2j,3\n4,5\n", ["line 1, column 1", "'1+2j'", "--row-labels"]),
        ("eaten.csv", "1,2\n3,4,5\n", ["line 1", "2 cells", "--header"]),
        ("eaten too.csv", "1,x\n3,4,5\n", ["line 1", "2 cells", "--header"]),
        ("blank.csv", "1,2\n,4,5\n", ["line 1", "2 cells", "--header"]),
        ("typo.csv", "l,1\n2,3\n4,5\n", ["line 1, column 1", "'l'", "--row-labels"]),
        ("half.csv", "x,1\n2,3\n", ["line 1, column 1", "'x'", "--row-labels"]),
        ("one is none.csv", "1,x\n3,4\n", ["line 1, column 2", "'x'", "--header"]),
        ("names.csv", "0x10,0x11\n1,2\n", ["line 1, column 1", "'0x10'", "--header"]),
        ("name.tsv", "a\t1+2j\n1\t2\n", ["line 1, column 2", "'1+2j'", "--header"]),
        ("short typo.csv", "1,2\na,3,4\n5,6,7\n", ["line 2, column 1", "'a'", "--row-labels"]),
        ("underscore.csv", "1,2\n3,1_000\n", ["line 2, column 2", "'1_000'", "plain decimal"]),
        ("thousands.csv", '1,2\n3,"1,000"\n', ["line 2, column 2", "'1,000'", "plain decimal"]),
        ("apostrophe.csv", "1,2\n3,1'000\n", ["line 2, column 2", "plain decimal"]),
        ("blanks.csv", "1,2\n3,1 000\n", ["line 2, column 2", "plain decimal"]),
        ("wide.csv", "1,2\n3,１２\n", ["line 2, column 2", "plain decimal"]),
        ("arabic.csv", "1,2\n3,١\n", ["line 2, column 2", "plain decimal"]),
        ("minus.csv", "1,2\n3,−1\n", ["line 2, column 2", "plain decimal"]),
        ("fortran.csv", "1,2\n3,1d5\n", ["line 2, column 2", "plain decimal"]),
        ("infinite.csv", "1,2\n3,-inf\n", ["line 2, column 2", "'-inf'"]),
        ("infinity.csv", "infinity,2\n3,4\n", ["line 1, column 1", "'infinity'"]),
        ("too large.csv", "1,2\n3,1e400\n", ["line 2, column 2", "'1e400'", "1.8e+308"]),
        ("quote.csv", '1,2\n3,"4\n5,6\n', ["line 3", "quote"]),
        ("behind a quote.csv", '1,2\n3,"4"5\n', ["line 2", "quote"]),
        ("cut.csv.gz", gzip.compress(b"1,2\n3,4\n" * 999, mtime=0)[:40], ["can't be read"]),
        ("other.npy", "1,2\n", ["numpy.save"]),
        ("other.npz", "1,2\n", ["can't be read"]),
        ("other.parquet", "1,2\n", ["can't be read"]),
        ("other.mtx", "1,2\n", ["can't be read"]),
        ("cell.mtx", "%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 x\n", ["'x'"]),
        ("table.xlsx", "1", ["extension '.xlsx'", ".csv"]),
        ("none", "1", ["extension ''"]),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, name, text, words):
    with pytest.raises(InputError) as caught:
        read_matrix(write(tmp_path, name, text))
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("suffix", READERS)
def test_no_file_and_a_folder(tmp_path, suffix):
    with pytest.raises(InputError, match="no such file"):
        read_matrix(tmp_path / f"x{suffix}")
    (tmp_path / f"d{suffix}").mkdir()
    with pytest.raises(InputError, match="a folder"):
        read_matrix(tmp_path / f"d{suffix}")


@pytest.mark.parametrize("part", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".mtx.gz"])
def test_truncated_files(tmp_path, suffix, part):
    path, values = tmp_path / f"x{suffix}", np.random.default_rng(1).poisson(9.0, (60, 50))
    if suffix == ".npy":
        np.save(path, values)
    elif suffix == ".npz":
        scipy.sparse.save_npz(path, scipy.sparse.csr_array(values))
    elif suffix == ".parquet":
        pytest.importorskip("pyarrow")
        pd.DataFrame(values, columns=[f"s{i}" for i in range(50)]).to_parquet(path)
    else:
        scipy.io.mmwrite(tmp_path / "x.mtx", values)
        path.write_bytes(gzip.compress((tmp_path / "x.mtx").read_bytes()))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(InputError, match="can't be read"):
        read_matrix(path)


def test_wrong_arrays(tmp_path):
    np.save(tmp_path / "vector.npy", np.ones(3))
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    np.save(tmp_path / "complex.npy", np.ones((2, 2), complex))
    np.save(tmp_path / "empty.npy", np.ones((0, 3)))
    np.savez(tmp_path / "two.npz", X=COUNTS, Y=COUNTS)
    np.savez(tmp_path / "none.npz", names=np.array(["a"]))
    for name, word in (
        ("vector.npy", "2 dimensions"),
        ("text.npy", "real numbers"),
        ("complex.npy", "real numbers"),
        ("empty.npy", "empty matrix"),
        ("two.npz", "--key"),
        ("none.npz", "none of them"),
    ):
        with pytest.raises(InputError, match=word):
            read_matrix(tmp_path / name)
    with pytest.raises(InputError, match="one of \\['X', 'Y'\\]"):
        read_matrix(tmp_path / "two.npz", key="Z")


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("objects.npy", None, "Python objects instead of numbers"),
        ("objects.npz", None, "none of them a 2-D array of numbers"),
        ("objects.npz", "arr_0", "Python objects instead of numbers"),
        ("text.npz", None, "not a zip file"),
    ],
)
def test_advice_to_unpickle_is_not_passed_on(tmp_path, name, key, words):
    objects = np.array([[1, "a"]], dtype=object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "objects.npz", objects)
    (tmp_path / "text.npz").write_text("1,2")
    with pytest.raises(InputError, match=words) as caught:
        read_matrix(tmp_path / name, key=key)
    assert "allow_pickle" not in str(caught.value)


def test_names_as_objects_beside_a_matrix_are_left_alone(tmp_path):
    np.savez(tmp_path / "x.npz", X=COUNTS, names=np.array(["a", "b"], dtype=object))
    np.testing.assert_array_equal(read_matrix(tmp_path / "x.npz").values, COUNTS)


def test_an_option_of_another_format_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", COUNTS)
    with pytest.raises(InputError, match="header"):
        read_matrix(tmp_path / "x.npy", header=True)
