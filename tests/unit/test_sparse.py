"""Malformed sparse matrices never reach a compiled loop: every format, every way in, and nothing given is changed."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.tables import read_matrix
from nmf_zoo.sparse import LAYOUTS, checked_sparse, from_parts, read_sparse

X = np.array([[5, 0, 2, 1], [0, 3, 0, 4], [1, 1, 0, 0], [0, 0, 6, 2]])
N = len(X)
FORMATS = ("csr", "csc", "bsr", "coo", "dia", "lil", "dok")
FAR = 2**40


def matrix(layout, dtype=float):
    return scipy.sparse.coo_array(X.astype(dtype)).asformat(layout)


def index_of(found):
    """The name of the part that says which column, or row, a cell is in."""
    return {"coo": "col", "dia": "offsets"}.get(found.format, "indices")


def set_part(found, part, value):
    if found.format == "coo":
        found.coords = tuple(value if name == part else getattr(found, name) for name in ("row", "col"))
    else:
        setattr(found, part, value)


def changed(array, at, value):
    out = np.array(array, dtype=np.int64)
    out[at] = value
    return out


def lies_about_indices(found, value):
    if found.format == "lil":
        found.rows[1] = [value, *found.rows[1][1:]]
    elif found.format == "dok":
        found._dict[(0, value)] = 1.0
    else:
        set_part(found, index_of(found), changed(getattr(found, index_of(found)), 1, value))


DAMAGES = {
    "negative": (("csr", "csc", "bsr", "coo", "lil", "dok"), lambda m: lies_about_indices(m, -3)),
    "one beyond": (("csr", "csc", "bsr", "coo", "lil", "dok"), lambda m: lies_about_indices(m, N)),
    "far beyond": (("csr", "csc", "bsr", "coo", "lil", "dok"), lambda m: lies_about_indices(m, FAR)),
    "floats": (("csr", "csc", "bsr", "coo", "dia"), lambda m: set_part(m, index_of(m), getattr(m, index_of(m)) + 0.5)),
    "two axes": (
        ("csr", "csc", "bsr", "coo", "dia"),
        lambda m: set_part(m, index_of(m), getattr(m, index_of(m))[None]),
    ),
    "fewer indices": (
        ("csr", "csc", "bsr", "coo", "dia", "lil"),
        lambda m: m.rows[0].pop() if m.format == "lil" else set_part(m, index_of(m), getattr(m, index_of(m))[:-1]),
    ),
    "fewer values": (
        ("csr", "csc", "bsr", "coo", "dia", "lil"),
        lambda m: m.data[0].pop() if m.format == "lil" else setattr(m, "data", m.data[:-1]),
    ),
    "repeated": (("dia",), lambda m: set_part(m, "offsets", changed(m.offsets, 1, m.offsets[0]))),
    "end beyond": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", changed(m.indptr, -1, FAR))),
    "falling": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", changed(m.indptr, 1, FAR))),
    "negative pointer": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", changed(m.indptr, 1, -1))),
    "late begin": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", changed(m.indptr, 0, 1))),
    "float pointers": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", m.indptr * 1.0)),
    "short pointers": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", m.indptr[:-1])),
    "long pointers": (("csr", "csc", "bsr"), lambda m: setattr(m, "indptr", np.append(m.indptr, m.indptr[-1]))),
    "smaller than its cells": (FORMATS, lambda m: setattr(m, "_shape", (2, 2))),
    "larger than 32 bits": (FORMATS, lambda m: setattr(m, "_shape", (FAR, FAR))),
    "negative shape": (FORMATS, lambda m: setattr(m, "_shape", (-4, 4))),
    "float shape": (FORMATS, lambda m: setattr(m, "_shape", (4.0, 4.0))),
    "infinite shape": (FORMATS, lambda m: setattr(m, "_shape", (np.inf, 4))),
}
# dia: a matrix may be smaller than its diagonals, whose ends are then of no matter
CASES = [(d, f) for d, (formats, _) in DAMAGES.items() for f in formats if (d, f) != ("smaller than its cells", "dia")]


def damaged(damage, layout, dtype=float):
    found = matrix(layout, dtype)
    DAMAGES[damage][1](found)
    return found


@pytest.mark.parametrize(("damage", "layout"), CASES)
def test_every_damage_in_every_format_is_one_line(damage, layout):
    with pytest.raises(InputError, match="X: got a malformed sparse matrix: ") as caught:
        checked_sparse("X", damaged(damage, layout))
    assert "\n" not in str(caught.value)


def stream():
    return nz.stream(nz.gap(None, 2, shape=(N, 1)), random_seed=1)


def project(mask):
    table = pd.DataFrame(X, index=list("abcd"))
    model = nz.poisson_nmf(table, 2)
    nz.projection_model(None, table, model=model, mask=mask)


WAYS_IN = {
    "X": lambda m: nz.gap(m, 2),
    "stored": lambda m: nz.gap(m, 2, observed="stored"),
    "mask": lambda m: nz.gap(X, 2, mask=m),
    "mask of sparse X": lambda m: nz.gap(scipy.sparse.csr_array(X), 2, mask=m),
    "mask of a projection": project,
    "stream": lambda m: stream().update(m),
    "stream, stored": lambda m: stream().update(m, observed="stored"),
    "sklearn": lambda m: estimator().fit(m),
    "sklearn, parts": lambda m: estimator().partial_fit(m),
}


def estimator():
    from nmf_zoo.sklearn import GammaPoissonNMF

    return GammaPoissonNMF(2)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "lil"])
@pytest.mark.parametrize("way", WAYS_IN)
def test_every_way_in_looks_first(way, layout):
    given = damaged("far beyond", layout, bool if way.startswith("mask") else float)
    with pytest.raises(InputError, match="malformed sparse matrix"):
        WAYS_IN[way](given)


@pytest.mark.parametrize("layout", FORMATS)
def test_what_is_sound_is_read(layout):
    given = matrix(layout)
    before = [np.array(getattr(given, part)) for part in LAYOUTS.get(layout, (None, ()))[1]]
    for wanted in ("csr", "csc"):
        found = read_sparse("X", given, wanted)
        assert found.format == wanted
        found.data[:] = -1
        np.testing.assert_array_equal(read_sparse("X", given, wanted).toarray(), X)
    for part, old in zip(LAYOUTS.get(layout, (None, ()))[1], before, strict=True):
        np.testing.assert_array_equal(getattr(given, part), old)


def test_repeats_are_added_in_the_wide_type_and_room_behind_is_no_damage():
    given = scipy.sparse.csr_array((np.array([200, 100, 7], np.uint8), [1, 1, 0], [0, 3]), shape=(1, 2))
    np.testing.assert_array_equal(read_sparse("X", given).toarray(), [[7, 300]])
    given.indptr = np.array([0, 2])  # SciPy's own loops leave such room
    given.indices[2] = 99
    np.testing.assert_array_equal(read_sparse("X", given).toarray(), [[0, 300]])


def test_diagonals_outside_of_the_matrix_have_no_cells():
    given = scipy.sparse.dia_array((np.ones((3, 4)), [0, 1, 2]), shape=(4, 4))
    given.offsets = np.array([0, FAR, -FAR])
    np.testing.assert_array_equal(read_sparse("X", given).toarray(), np.eye(4))


def test_a_mask_stays_as_it_was():
    rows, columns = np.divmod(np.arange(N * N), N)
    mask = scipy.sparse.coo_array((np.arange(N * N) != 1, (rows, columns)), shape=(N, N)).tocsr()
    nz.gap(X, 1, mask=mask)
    nz.gap(scipy.sparse.csr_array(X), 1, mask=mask)
    np.testing.assert_array_equal(mask.indices, columns)
    np.testing.assert_array_equal(mask.data, np.arange(N * N) != 1)


def test_a_mask_that_repeats_cells_counts_them_once():
    rows, columns = np.divmod(np.arange(N * N), N)
    rows[-1], columns[-1] = 0, 0  # 16 entries, 15 cells
    mask = scipy.sparse.coo_array((np.ones(N * N, dtype=bool), (rows, columns)), shape=(N, N))
    model = nz.gap(scipy.sparse.csr_array(X), 2, mask=mask)
    assert model.dim_lengths["cell"].eval() == N * N - 1


def test_the_mask_of_a_projection_goes_with_its_rows():
    table = pd.DataFrame(X, index=list("abcd"))
    model = nz.poisson_nmf(table, 2)
    with pytest.raises(InputError, match="mask: got labels of 'feature' that differ from X's"):
        nz.projection_model(None, table[::-1], model=model, mask=pd.DataFrame(X > 0, index=list("abcd")))
    with pytest.raises(InputError, match=r"mask: got shape \(2, 4\)"):
        nz.projection_model(None, table, model=model, mask=X[:2] > 0)


# -- files -------------------------------------------------------------------------------------------------------


def write(path, layout, **instead):
    found = matrix(layout)
    parts = {part: getattr(found, part) for part in LAYOUTS[layout][1]}
    whole = {"format": layout.encode(), "shape": found.shape, **parts, **instead}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return path


FILES = {
    "no pointers": ("csr", {"indptr": None}),
    "negative index": ("csr", {"indices": np.array([-1] * 9)}),
    "index beyond": ("csc", {"indices": np.array([9] * 9)}),
    "float index": ("csr", {"indices": np.array([0.0] * 9)}),
    "pointers beyond": ("csr", {"indptr": np.array([0, 3, 5, 7, 10**9])}),
    "falling pointers": ("csr", {"indptr": np.array([0, 8, 5, 7, 9])}),
    "row beyond": ("coo", {"row": np.array([7] * 9)}),
    "float row": ("coo", {"row": np.array([1.7] * 9)}),
    "odd blocks": ("bsr", {"data": np.ones((9, 3, 3))}),
    "fewer offsets": ("dia", {"offsets": np.array([0])}),
    "infinite shape": ("csr", {"shape": np.array([np.inf, 4])}),
    "float shape": ("csr", {"shape": np.array([4.0, 4.0])}),
    "large shape": ("csr", {"shape": np.array([4, 2**60])}),
    "three axes": ("csr", {"shape": np.array([4, 4, 4])}),
    "unknown format": ("csr", {"format": b"xyz"}),
    "number for a format": ("csr", {"format": np.array(3)}),
    "list of formats": ("csr", {"format": np.array([b"csr", b"csc"])}),
}


@pytest.mark.parametrize("case", FILES)
def test_malformed_files(tmp_path, case):
    layout, instead = FILES[case]
    with pytest.raises(InputError, match=r"x\.npz: got ") as caught:
        read_matrix(write(tmp_path / "x.npz", layout, **instead))
    assert "\n" not in str(caught.value)
    assert "sparse matrix" in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sound_files(tmp_path, layout):
    np.testing.assert_array_equal(read_matrix(write(tmp_path / "x.npz", layout)).values.toarray(), X)
    scipy.sparse.save_npz(tmp_path / "theirs.npz", matrix(layout))
    np.testing.assert_array_equal(read_matrix(tmp_path / "theirs.npz").values.toarray(), X)


def test_coordinates_in_one_array(tmp_path):
    found = matrix("coo")
    path = write(tmp_path / "x.npz", "coo", row=None, col=None, coords=np.array(found.coords))
    np.testing.assert_array_equal(read_matrix(path).values.toarray(), X)


def test_unknown_parts_are_refused_by_name():
    with pytest.raises(InputError, match="one of csr, csc, bsr, coo, dia"):
        from_parts("X", "xyz", (2, 2), {})
    with pytest.raises(InputError, match="no indptr"):
        from_parts("X", "csr", (2, 2), {"data": [1.0], "indices": [0]})


def test_zeros_that_fill_stored_blocks_are_no_observed_cells():
    """SciPy does not tell them from zeros that were observed; of blocks without zeros all cells are stored ones."""
    blocks = scipy.sparse.bsr_array(X, blocksize=(2, 2))
    with pytest.raises(InputError, match=r"X: got a sparse matrix in blocks \('bsr'\) with zeros in them"):
        nz.gamma_nmf(blocks, 2, observed="stored")
    stream = nz.stream(nz.gap(None, rank=2, shape=(N, 1), alpha_h=1.0, beta_h=1.0))
    with pytest.raises(InputError, match=r"X: got a sparse matrix in diagonals \('dia'\) with zeros in them"):
        nz.gamma_nmf(scipy.sparse.dia_array(([[1.0, 0.0, 2.0]], [0]), shape=(3, 3)), 1, observed="stored")
    whole = scipy.sparse.dia_array(([[1.0, 3.0, 2.0], [0.0, 4.0, 5.0]], [0, 1]), shape=(3, 3))  # 0 is above the first
    assert "4 cells missing" in nz.describe(nz.gamma_nmf(whole, 1, observed="stored"))
    with pytest.raises(InputError, match=r"x: got a sparse matrix in blocks"):
        stream.update(blocks, observed="stored")
    with pytest.raises(InputError, match=r"data.read\(0\): got a sparse matrix in blocks"):
        nz.fit(data=OneBlock(blocks), engine="em", model=nz.gamma_nmf(None, 2, shape=X.shape), quiet=True)
    full = scipy.sparse.bsr_array(X + 1, blocksize=(2, 2))
    assert nz.read(nz.gamma_nmf(full, 2, observed="stored")).data.observed_values.size == X.size


class OneBlock:
    """A source of one block, whose stored cells alone were observed."""

    shape, bounds = X.shape, (0, N)

    def __init__(self, matrix):
        self.matrix = matrix

    def read(self, number):
        return nz.Samples(self.matrix, observed="stored")
