"""WAV files block by block: where the samples are, and a writer that knows its length.

The standard library's ``wave`` reads no floating point, and SciPy maps no 24-bit file into memory, so the chunks of
the file are walked here: ``RIFF size WAVE``, then ``name size content`` with ``fmt`` and ``data`` among them. RF64, the
form of files above 4 GiB, holds their sizes in a chunk ``ds64``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nmf_zoo.audio.samples import FORMATS, SampleFormat, decode, encode
from nmf_zoo.errors import InputError
from nmf_zoo.structure import Array

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODINGS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 80: "MPEG", 85: "MP3"}
UNKNOWN, LARGEST = 0xFFFFFFFF, 2**32 - 1024  # a size that is not known or elsewhere; bytes of samples in a RIFF file


class NotOurs(Exception):
    """A sound file of a kind that only a library reads; the text says which."""


@dataclass(frozen=True)
class WavLayout:
    """Where the samples of a WAV file are.

    Attributes
    ----------
    rate, channels, form : of the samples
    begin : byte of the first one
    promised : bytes that the header tells of, 0 of a recording that was broken off; None where it tells nothing
    there : bytes that the file has of them
    """

    rate: int
    channels: int
    form: SampleFormat
    begin: int
    promised: int | None
    there: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * self.form.width


def read_layout(path: Path) -> WavLayout:
    """The header of a WAV file.

    Raises
    ------
    NotOurs : another kind of file, or a coding that is neither PCM nor floating point
    InputError : a WAV file without what it needs
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(12)
        if head[:4] not in (b"RIFF", b"RF64") or head[8:12] != b"WAVE":
            raise NotOurs("no WAV file")
        chunks = _find_chunks(file, size)
        if "fmt" not in chunks:
            raise InputError(str(path), "a WAV file without a format ('fmt ' chunk)", "a whole WAV file")
        if "data" not in chunks:
            raise InputError(str(path), "a WAV file without samples ('data' chunk)", "a whole WAV file")
        begin, length = chunks["data"]
        promised = _wide_size(file, chunks) if length == UNKNOWN else length  # of a pipe there is none
        rate, channels, form = _read_format(path, file, chunks["fmt"])
    there = min(promised, size - begin) if promised else size - begin
    return WavLayout(rate, channels, form, begin, promised, there)


def _find_chunks(file: BinaryIO, size: int) -> dict[str, tuple[int, int]]:
    """First byte and length of the chunks by name, up to the samples; they usually come last."""
    found: dict[str, tuple[int, int]] = {}
    at = 12
    while at + 8 <= size and "data" not in found:
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        found.setdefault(name.decode("latin-1").strip(), (at + 8, length))
        at += 8 + length + length % 2
    return found


def _wide_size(file: BinaryIO, chunks: dict[str, tuple[int, int]]) -> int | None:
    if "ds64" not in chunks:
        return None
    file.seek(chunks["ds64"][0] + 8)
    content = file.read(8)
    return struct.unpack("<Q", content)[0] if len(content) == 8 else None


def _read_format(path: Path, file: BinaryIO, place: tuple[int, int]) -> tuple[int, int, SampleFormat]:
    begin, length = place
    file.seek(begin)
    content = file.read(min(length, 40))
    if len(content) < 16:
        raise InputError(str(path), "a WAV file whose header ends early", "a whole WAV file")
    coding, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", content[:16])
    if coding == EXTENSIBLE and len(content) >= 26:
        coding = struct.unpack("<H", content[24:26])[0]
    if coding not in (PCM, FLOAT):
        raise NotOurs(f"WAV of {CODINGS.get(coding, f'coding {coding}')}")
    width = frame // channels if channels else 0
    name = "uint8" if (coding, width) == (PCM, 1) else f"{'int' if coding == PCM else 'float'}{8 * width}"
    if name not in FORMATS or frame != channels * width or rate == 0:
        got = f"a WAV header of {channels} channels, {rate} Hz, {bits} bits in {frame} bytes"
        raise InputError(str(path), got, f"samples of {', '.join(FORMATS)}, and a rate")
    return rate, channels, FORMATS[name]


def read_blocks(path: Path, layout: WavLayout, size: int) -> Iterator[Array]:
    """Blocks (n <= size, channels) of samples, float64 with full scale 1."""
    left = layout.there // layout.frame * layout.frame
    with open(path, "rb") as file:
        file.seek(layout.begin)
        while left and (raw := file.read(min(left, size * layout.frame))):
            left -= len(raw)
            yield decode(raw, layout.form, layout.channels)


class WavWriter:
    """A mono WAV file of a known number of samples, written block by block."""

    def __init__(self, path: Path, rate: int, n_samples: int, form: SampleFormat):
        self._form, self._file = form, open(path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(_header(rate, n_samples, form))
        self._pad = n_samples * form.width % 2

    def write(self, numbers: Array) -> None:
        """Append samples (n,): whole steps of an integer format, numbers of floating point."""
        self._file.write(encode(numbers, self._form))

    def close(self) -> None:
        with self._file:  # closed also when the last write fails
            self._file.write(b"\0" * self._pad)


def _header(rate: int, n_samples: int, form: SampleFormat) -> bytes:
    """RIFF, or RF64 where the samples take more than 4 GiB; floating formats have all that the standard asks for."""
    data, is_float, width = n_samples * form.width, form.kind == "f", form.width
    fmt = struct.pack("<HHIIHH", FLOAT if is_float else PCM, 1, rate, rate * width, width, 8 * width)
    chunks = _chunk(b"fmt ", fmt + struct.pack("<H", 0) if is_float else fmt)
    chunks += _chunk(b"fact", struct.pack("<I", min(n_samples, UNKNOWN))) if is_float else b""
    if data <= LARGEST:
        whole = 4 + len(chunks) + 8 + data + data % 2
        return b"RIFF" + struct.pack("<I", whole) + b"WAVE" + chunks + b"data" + struct.pack("<I", data)
    whole = 4 + 36 + len(chunks) + 8 + data + data % 2
    sizes = _chunk(b"ds64", struct.pack("<QQQI", whole, data, n_samples, 0))
    unknown = struct.pack("<I", UNKNOWN)
    return b"RF64" + unknown + b"WAVE" + sizes + chunks + b"data" + unknown


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content
