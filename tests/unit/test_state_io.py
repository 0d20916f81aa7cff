"""Nested states on file: the same values, types, bits and sharing when they come back, and nothing is run."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmf_zoo.kernels.hmm.particles.proposal_scratch import Ahead
from nmf_zoo.kernels.hmm.particles.statistics import StatisticRows
from nmf_zoo.runtime.state_io import HEAD, MAGIC, Damaged, read_tree, write_tree
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each, Growing, Like, require


class Pair(NamedTuple):
    left: object
    right: object


def there_and_back(tree):
    file = io.BytesIO()
    checksum = write_tree(file, tree)
    write_tree(file, "the next one", previous=checksum)
    file.seek(0)
    found, checksum = read_tree(file)
    return found, read_tree(file, previous=checksum)[0]


def test_a_tree_comes_back_as_it_was():
    arrays = {
        "C": np.arange(6.0).reshape(2, 3),
        "F": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "gaps": np.arange(8.0)[::2],
    }
    tree = {
        "pair": Pair(np.float32(0.1), [1, (2.5, None, True), "text"]),
        "numbers": [np.inf, -0.0, 2**80, np.uint64(2**64 - 1), np.int32(3), np.bool_(True)],
        "empty": [(), [], {}, np.empty((0, 3)), np.array(7.0)],
        3: arrays,
    }
    found, after = there_and_back(tree)
    assert after == "the next one"
    assert type(found["pair"]) is Pair
    assert found["pair"].left == np.float32(0.1)
    assert type(found["pair"].left) is np.float32
    assert found["pair"].right == [1, (2.5, None, True), "text"]
    assert [type(number) for number in found["numbers"]] == [type(number) for number in tree["numbers"]]
    assert found["numbers"] == tree["numbers"]
    assert [np.shape(value) for value in found["empty"][3:]] == [(0, 3), ()]
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[3][name], array)
        assert found[3][name].dtype == array.dtype
    assert found[3]["F"].flags.f_contiguous


RENAMED = {
    "statistics:Rows": StatisticRows,
    "proposals:BasisAhead": Ahead,
    "proposals:UnitAhead": Ahead,
    "proposals:LogNormalAhead": Ahead,
}


@pytest.mark.parametrize("before", RENAMED)
def test_a_class_comes_back_by_the_name_that_it_had(before):
    """As streams of particles were saved before it was renamed."""
    file, kind = io.BytesIO(), RENAMED[before]
    module, name = before.split(":")
    state = kind(*range(len(kind._fields)))
    now = kind.__module__, kind.__qualname__
    kind.__module__, kind.__qualname__ = f"nmf_zoo.kernels.hmm.particles.{module}", name
    try:
        write_tree(file, state)
    finally:
        kind.__module__, kind.__qualname__ = now
    assert before.encode() in file.getvalue()
    file.seek(0)
    found = read_tree(file)[0]
    assert type(found) is kind
    assert found == state


def test_nan_and_its_bits_survive():
    odd = np.array([0x7FF8000000000001, 0xFFF0000000000000], dtype=np.uint64).view(np.float64)
    found, _ = there_and_back({"odd": odd, "nan": float("nan")})
    assert found["odd"].tobytes() == odd.tobytes()
    assert np.isnan(found["nan"])


def test_one_array_twice_stays_one():
    array = np.zeros(3)
    found, _ = there_and_back([array, {"again": array}, np.zeros(3)])
    assert found[0] is found[1]["again"]
    assert found[0] is not found[2]


def test_every_order_of_axes_keeps_its_values():
    cube = np.arange(24.0).reshape(2, 3, 4)
    views = [cube.T, cube.transpose(1, 0, 2), cube[:, ::2], cube[::-1, :, 1:], np.broadcast_to(cube[:1], (5, 3, 4))]
    found, _ = there_and_back(views)
    for one, other in zip(found, views, strict=True):
        np.testing.assert_array_equal(one, other)
    padded = np.zeros((7, 4))[:, :3].T
    assert there_and_back(padded)[0].flags.f_contiguous


@pytest.mark.parametrize("place", range(0, 330, 7))
def test_a_flipped_bit_or_a_cut_is_noticed(place):
    file = io.BytesIO()
    write_tree(file, {"a": np.arange(20.0), "b": [np.arange(3, dtype=np.int8), "text"], "c": np.float32(1)})
    content = bytearray(file.getvalue())
    assert len(content) > 330
    with pytest.raises(Damaged):
        read_tree(io.BytesIO(content[:place]))
    content[place] ^= 4
    with pytest.raises(Damaged):
        read_tree(io.BytesIO(content))


class Local:
    class Inner(NamedTuple):
        x: int


@pytest.mark.parametrize("wrong", [object(), {1, 2}, Local.Inner(1), np.array([None])])
def test_what_a_state_cannot_hold(wrong):
    with pytest.raises(TypeError, match="can't hold"):
        write_tree(io.BytesIO(), {"state": wrong})


def file_of(skeleton, kinds=(), owner=None, cells=b""):
    """What a file would hold that someone made up, its checksums right."""
    text = json.dumps([owner or {}, skeleton, list(kinds)]).encode()
    return io.BytesIO(HEAD.pack(MAGIC, zlib.crc32(text), len(text)) + text + cells)


def deep(depth, inside=1):
    return inside if depth == 0 else {"list": [deep(depth - 1, inside)]}


CELLS = np.arange(3.0).tobytes()
SUM = zlib.crc32(CELLS)
MADE_UP = {
    "no class of ours": ({"antigravity:fly": []}, (), "class 'antigravity:fly'"),
    "no NamedTuple": ({"os:system": ["true"]}, (), "class 'os:system'"),
    "other fields": ({f"{__name__}:Pair": [1]}, (), "other fields"),
    "a list at the top": ([1, 2], (), "no tree"),
    "two kinds": ({"list": [], "dict": []}, (), "no tree"),
    "no kind": ({}, (), "no tree"),
    "items that are none": ({"list": 5}, (), "no items in 'list'"),
    "a dict of numbers": ({"dict": [1, 2]}, (), "a dict without keys"),
    "a list as a key": ({"dict": [[[1], 2]]}, (), "a dict without keys"),
    "an array that isn't there": ({"array": 0}, (), "no array 0"),
    "a negative number": ({"array": -1}, [["<f8", [3], "C", SUM]], "no array -1"),
    "a huge number": ({"array": 10**300}, [["<f8", [3], "C", SUM]], "no array 10000"),
    "text for a number": ({"array": "0"}, [["<f8", [3], "C", SUM]], "no array '0'"),
    "many numbers in one": ({"scalar": 0}, [["<f8", [3], "C", SUM]], "no scalar 0"),
    "nested": (deep(200), (), "nested too deep"),
    "an array of 10^13": ({"array": 0}, [["<f8", [10**13], "C", SUM]], r"shape \[10000000000000\] in 24 bytes"),
    "beyond 64 bits": ({"array": 0}, [["<f8", [2**40, 2**40, 0], "C", 0]], "in 24 bytes"),
    "a negative size": ({"array": 0}, [["<f8", [-3], "C", SUM]], r"shape \[-3\]"),
    "a size with a point": ({"array": 0}, [["<f8", [3.0], "C", SUM]], r"shape \[3.0\]"),
    "too many axes": ({"array": 0}, [["<f8", [1] * 70, "C", SUM]], "an array of shape"),
    "objects": ({"array": 0}, [["|O", [3], "C", SUM]], r"dtype '\|O'"),
    "fields": ({"array": 0}, [["f8,f8", [1], "C", SUM]], "dtype 'f8,f8'"),
    "no dtype": ({"array": 0}, [["<f3", [3], "C", SUM]], "dtype '<f3'"),
    "no size": ({"array": 0}, [["|S0", [10**13], "C", SUM]], r"dtype '\|S0'"),
    "no order": ({"array": 0}, [["<f8", [3], "A", SUM]], "an array of shape"),
    "no kind of array": ({"array": 0}, [5], "an array of no kind"),
    "another sum": ({"array": 0}, [["<f8", [3], "C", SUM + 1]], "an array's checksum is another"),
    "cut": ({"array": 0}, [["<f8", [4], "C", SUM]], "in 24 bytes"),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_what_was_made_up_with_right_checksums_is_refused(name):
    """Nothing but Damaged, and before memory is taken or anything is run."""
    skeleton, kinds, message = MADE_UP[name]
    with pytest.raises(Damaged, match=message):
        read_tree(file_of(skeleton, kinds, cells=CELLS))


@pytest.mark.parametrize(
    "text", [b"[" * 10**5, b"[{},1]", b"{}", b"[1,2,[]]", b"[{},1,[]] 5", b"\xff", b"[{},1" + b"0" * 5000 + b",[]]"]
)
def test_text_that_is_no_tree(text):
    with pytest.raises(Damaged, match=r"no JSON|no tree"):
        read_tree(io.BytesIO(HEAD.pack(MAGIC, zlib.crc32(text), len(text)) + text))


def test_a_length_beyond_the_file_takes_no_memory():
    with pytest.raises(Damaged, match="cut short"):
        read_tree(io.BytesIO(HEAD.pack(MAGIC, 0, 2**32 - 1) + b"{}"))


def test_the_format_before_this_one():
    text = b"[5,[]]"
    with pytest.raises(Damaged, match="not of the format 'nmf5'"):
        read_tree(io.BytesIO(zlib.crc32(text).to_bytes(4) + len(text).to_bytes(4) + text))


def test_a_tree_says_whose_it_is():
    file = io.BytesIO()
    write_tree(file, 5, {"kind": "state", "part": "1"})
    for owner, message in (
        ({"kind": "state", "part": "0"}, "another's: of part '1', not '0'"),
        ({"kind": "rows", "part": "1"}, "another's: of kind 'state', not 'rows'"),
        ({}, "another's: of kind 'state', not None"),
    ):
        file.seek(0)
        with pytest.raises(Damaged, match=message):
            read_tree(file, owner)
    file.seek(0)
    assert read_tree(file, {"kind": "state", "part": "1"})[0] == 5


def test_a_tree_is_bound_to_those_before_it():
    """The second of one file, in the place of the second of another."""
    files = [io.BytesIO(), io.BytesIO()]
    ends = []
    for number, file in enumerate(files):
        first = write_tree(file, {"a": number})
        ends.append(file.tell())
        write_tree(file, {"b": 7}, previous=first)
    mixed = io.BytesIO(files[0].getvalue()[: ends[0]] + files[1].getvalue()[ends[1] :])
    _, checksum = read_tree(mixed)
    with pytest.raises(Damaged, match="its checksum is another"):
        read_tree(mixed, previous=checksum)


def test_cells_that_changed_places_are_noticed():
    """A sum of words would not see it."""
    file = io.BytesIO()
    write_tree(file, np.arange(16.0))
    content = file.getvalue()
    for other in (content[:-16] + content[-8:] + content[-16:-8], content[:-4] + content[-5:-4] * 4):
        with pytest.raises(Damaged):
            read_tree(io.BytesIO(other))


# -- patterns --------------------------------------------------------------------------------------------------------


class Fresh(NamedTuple):
    W: np.ndarray
    values: dict
    path: Growing
    objective: float
    other: object = None


FRESH = Fresh(np.ones((3, 2)), {"b": np.ones(2)}, np.empty((0, 2)), np.inf)


@pytest.mark.parametrize(
    "later",
    [
        FRESH,
        FRESH._replace(objective=np.float64(3), path=np.empty((5, 2))),
        FRESH._replace(other=(np.ones((3, 2)), [np.ones(2), np.ones((2, 3)), np.ones(36)])),
    ],
)
def test_states_laid_out_like_the_fresh_one(later):
    require(later, Like(FRESH), "state")


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (tuple(FRESH), "damaged: state is tuple"),
        (FRESH._replace(W=np.ones((4, 2))), r"state.W is float64 \(4, 2\), not float64 \(3, 2\)"),
        (FRESH._replace(W=np.ones((3, 2), np.float32)), "state.W is float32"),
        (FRESH._replace(W=None), "state.W is NoneType"),
        (FRESH._replace(values={"c": np.ones(2)}), r"state.values is \['c'\], not \['b'\]"),
        (FRESH._replace(path=np.empty((5, 3))), r"state.path is float64 \(5, 3\)"),
        (FRESH._replace(objective=1), "state.objective is int 1, not float inf"),
        (FRESH._replace(objective="1"), "state.objective is str"),
        (FRESH._replace(other=(np.ones((7, 9)),)), r"state.other is float64 \(7, 9\), not of this state's lengths"),
        (FRESH._replace(other=[np.array(["a"])]), r"state.other is <U1 \(1,\), not of"),
    ],
)
def test_states_laid_out_otherwise(later, message):
    with pytest.raises(Damaged, match=message):
        require(later, Like(FRESH), "state")


@pytest.mark.parametrize(
    ("tree", "pattern"),
    [
        (True, int),
        (1, float),
        ({"a": 1}, {"a": int, "b": int}),
        ({"a": 1, "b": 1, "c": 1}, {"a": int, "b": int}),
        ([1, 2], [int]),
        ([1, "2"], Each(int)),
        ({1: 1}, Each(int)),
        ((1,), Each(int)),
        (np.ones((2, 3)), ArrayPattern("f", (2, 2))),
        (np.ones((2, 3)), ArrayPattern("i", (2, 3))),
        (np.ones((2, 3), ">f8"), ArrayPattern("f", (2, 3))),
        (np.ones(2), ArrayPattern("f", (None, None))),
        ([1.0, 2.0], ArrayPattern("f", (2,))),
    ],
)
def test_patterns_that_do_not_fit(tree, pattern):
    with pytest.raises(Damaged, match="damaged: tree"):
        require(tree, pattern, "tree")


def test_patterns_that_fit():
    require({"a": [1, 2], "b": {"x": 2.0}, "c": True}, {"a": Each(int), "b": Each(float), "c": bool}, "tree")
    require([np.ones((5, 3)), None, 5], [ArrayPattern("f", (None, 3)), int | None, Any], "tree")
