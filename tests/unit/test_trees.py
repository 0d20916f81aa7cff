"""Nested states on file: the same values, types, bits and sharing when they come back, and nothing is run."""

from __future__ import annotations

import io
import json
import zlib
from typing import NamedTuple

import numpy as np
import pytest

from nmf_zoo.errors import InputError
from nmf_zoo.inference.trees import HEAD, Damaged, read_tree, write_tree


class Pair(NamedTuple):
    left: object
    right: object


def there_and_back(tree):
    file = io.BytesIO()
    write_tree(file, tree)
    write_tree(file, "the next one")
    file.seek(0)
    return read_tree(file), read_tree(file)


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


def file_of(skeleton):
    """What a file would hold that someone made up."""
    text = json.dumps([skeleton, []]).encode()
    return io.BytesIO(HEAD.pack(zlib.crc32(text), len(text)) + text)


def test_reading_imports_nothing():
    file = file_of({"antigravity:fly": []})
    with pytest.raises(InputError, match=r"class antigravity:fly; expected a class that was imported"):
        read_tree(file)


def test_only_named_tuples_are_made():
    with pytest.raises(InputError, match="class os:system"):
        read_tree(file_of({"os:system": ["true"]}))
