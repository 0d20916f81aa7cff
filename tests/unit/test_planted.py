"""Where errors are planted: every place exists, gets what is planted, and has its own piece again afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import planted
from tests.planted import PLACES, owner_of, paths_of, plant, put

TESTS = Path(__file__).parents[1]


def exists(path):
    try:
        owner, name = owner_of(path)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, name)


def pieces(place):
    return [getattr(*owner_of(path)) for path in paths_of(place)]


def test_every_place_exists():
    assert [path for place in PLACES for path in paths_of(place) if not exists(path)] == []


@pytest.mark.parametrize("path", ["inference.gone:step", "inference.counts.em:gone", "inference.counts.em:Gone.step"])
def test_a_piece_that_moved_is_found(path):
    assert not exists(f"nmf_zoo.{path}")


def test_every_place_is_used():
    """As a literal, so that a name is found by searching for it."""
    sources = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path.name != "planted.py")
    assert [place for place in PLACES if f'"{place}"' not in sources] == []


def test_what_is_planted_is_there_until_the_test_ends():
    for place in PLACES:
        right, wrong = pieces(place), object()
        with pytest.MonkeyPatch.context() as patch:
            put(patch, place, wrong)
            assert all(piece is wrong for piece in pieces(place)), place
        assert all(piece is own for piece, own in zip(pieces(place), right, strict=True)), place


def test_the_wrong_piece_is_made_of_the_right_one(monkeypatch):
    monkeypatch.setitem(planted.PLACES, "two", ("tests.planted:put", "tests.planted:plant"))
    plant(monkeypatch, "two", lambda right: lambda: right)
    assert [piece() for piece in pieces("two")] == [put, plant]


def test_an_unknown_place_is_refused_with_those_near_it(monkeypatch):
    with pytest.raises(LookupError, match=r"place: got 'Gibbs: scale'; expected .* such as \['Gibbs: scales', "):
        put(monkeypatch, "Gibbs: scale", None)
