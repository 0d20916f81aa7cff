"""Ways to damage bytes, and folders of files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

Random = np.random.Generator
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    10**10,
    2**53,
    2**63 - 1,
    2**63,
    10**30,
]
WORDS = [
    *("", " ", "0x10", "1+2j", "1_000", "1,5", "1 000", "inf", "-inf", "nan", "1e400", "1e-400", "--1", "1..2", "NA"),
    *(
        "\0",
        "\x1b[31m",
        "a\nb",
        '"',
        '""',
        "\ufeff",
        "\uff11\uff12",
        "\u2028",
        "\u0661",
        "None",
        "x" * 5000,
        ",",
        "\t",
        ";",
    ),
    *("1" * 400, "-0", "+5", "5e", "e5", ".", "1.", ".1", "#", "gene", "\r", "\x85"),
]


def flip(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        out[random.integers(len(out))] ^= 1 << random.integers(8)
    return bytes(out)


def cut_end(data: bytes, random: Random) -> bytes:
    return data[: random.integers(len(data))]


def cut_out(data: bytes, random: Random) -> bytes:
    begin, end = span(data, random)
    return data[:begin] + data[end:]


def swap(data: bytes, random: Random) -> bytes:
    begin, end = span(data, random)
    other = int(random.integers(len(data)))
    part = data[begin:end]
    rest = data[:begin] + data[end:]
    return rest[:other] + part + rest[other:]


def repeat(data: bytes, random: Random) -> bytes:
    begin, end = span(data, random)
    return data[:end] + data[begin:]


def fill(data: bytes, random: Random) -> bytes:
    begin, end = span(data, random)
    what = [b"\0", b"\xff", b" ", random.bytes(1)][random.integers(4)]
    return data[:begin] + what * (end - begin) + data[end:]


def noise(data: bytes, random: Random) -> bytes:
    begin, end = span(data, random)
    return data[:begin] + random.bytes(end - begin) + data[end:]


def lengthen(data: bytes, random: Random) -> bytes:
    return data + random.bytes(int(random.integers(1, 200)))


def lie(data: bytes, random: Random) -> bytes:
    """Some bytes that may be a length: another number, in either order of bytes."""
    width = int(random.choice([1, 2, 4, 8]))
    at = int(random.integers(max(1, min(len(data), 4096) - width)))
    number = NUMBERS[random.integers(len(NUMBERS))] % 256**width
    return data[:at] + number.to_bytes(width, ["little", "big"][random.integers(2)]) + data[at + width :]


def span(data: bytes, random: Random) -> tuple[int, int]:
    begin = int(random.integers(len(data)))
    return begin, min(len(data), begin + int(random.integers(1, 65)))


def lie_in_text(data: bytes, random: Random) -> bytes:
    """One run of digits becomes another number."""
    places = list(re.finditer(rb"\d+", data)) or [re.match(b"", data)]
    place = places[random.integers(len(places))]
    return data[: place.start()] + str(NUMBERS[random.integers(len(NUMBERS))]).encode() + data[place.end() :]


def spoil_cell(data: bytes, random: Random) -> bytes:
    """One cell becomes something else."""
    parts = re.split(rb"([,\t;\r\n ]+)", data)
    parts[2 * random.integers((len(parts) + 1) // 2)] = WORDS[random.integers(len(WORDS))].encode()
    return b"".join(parts)


ANY = (flip, cut_end, cut_out, swap, repeat, fill, noise, lengthen, lie)
TEXT = (*ANY, lie_in_text, lie_in_text, spoil_cell, spoil_cell, spoil_cell, spoil_cell)
Damage = Callable[[bytes, Random], bytes]


def damage(data: bytes, random: Random, ways: tuple[Damage, ...]) -> tuple[bytes, str]:
    """The same damaged in one or two ways, and their names."""
    names = []
    for _ in range(1 if random.random() < 0.7 else 2):
        way = ways[random.integers(len(ways))]
        data = way(data, random) if data else random.bytes(10)
        names.append(way.__name__)
    return data, " + ".join(names)


# -- folders -----------------------------------------------------------------------------------------------------


def damage_folder(folder: Path, random: Random) -> str:
    """Damage a Zarr store in one or two of its files; what was done."""
    done = []
    for _ in range(1 if random.random() < 0.7 else 2):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            break
        path = files[random.integers(len(files))]
        way = FOLDER_WAYS[random.integers(len(FOLDER_WAYS))]
        way(path, files, random)
        done.append(f"{way.__name__} {path.relative_to(folder)}")
    return " + ".join(done)


def remove(path: Path, files: list[Path], random: Random) -> None:
    path.unlink()


def remove_folder(path: Path, files: list[Path], random: Random) -> None:
    shutil.rmtree(path.parent)


def as_folder(path: Path, files: list[Path], random: Random) -> None:
    path.unlink()
    path.mkdir()


def exchange(path: Path, files: list[Path], random: Random) -> None:
    path.write_bytes(files[random.integers(len(files))].read_bytes())


def spoil(path: Path, files: list[Path], random: Random) -> None:
    path.write_bytes(damage(path.read_bytes(), random, ANY)[0])


def empty(path: Path, files: list[Path], random: Random) -> None:
    path.write_bytes(b"")


def describe_falsely(path: Path, files: list[Path], random: Random) -> None:
    """One value somewhere in the JSON of a description becomes another."""
    described = [file for file in files if file.name in (".zarray", ".zattrs", ".zgroup", ".zmetadata")]
    if not described:
        return
    path = described[random.integers(len(described))]
    try:
        content = json.loads(path.read_bytes())
    except ValueError:  # damaged before
        return
    places = list(_leaves(content))
    if places:
        holder, key = places[random.integers(len(places))]
        others = [None, True, -1, 1.5, "x", [], {}, [3], {"a": 1}, *NUMBERS]
        if random.random() < 0.3:
            del holder[key]
        else:
            holder[key] = others[random.integers(len(others))]
    path.write_text(json.dumps(content))


def _leaves(content):
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _leaves(value)


FOLDER_WAYS = (remove, remove_folder, as_folder, exchange, spoil, spoil, spoil, empty, *4 * (describe_falsely,))
