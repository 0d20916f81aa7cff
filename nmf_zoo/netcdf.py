"""netCDF files, whole or absent.

HDF5 keeps in memory what it could not write, and tries again when the file is closed, collected or left over at the end
of the process. On a full disk that ends in a segmentation fault. So it never meets an error: it writes to a file of
Python's, which keeps the first error to itself, goes on in memory, and is asked for the error when HDF5 is done.

What HDF5 makes of a damaged file nobody knows: other numbers, or a loop in C that never ends. So files end in a seal, a
checksum of all before it, behind what HDF5 knows of. Programs that change a file cut the seal off, since HDF5 ends a
file where its own data end; one without a seal is read as it is.
"""

from __future__ import annotations

import io
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nmf_zoo.files import replacing

LONGEST = 1 << 20  # bytes; what HDF5 reads back while it writes, headings and labels, comes in shorter pieces

SEAL_BEGIN = b"nmf_zoo crc32 "
SEALED = re.compile(SEAL_BEGIN + rb"([0-9a-f]{8})\n")
SEAL_BYTES = len(SEAL_BEGIN) + 9


def write_netcdf(data: Any, path: Path | str, name: str = "path") -> None:
    """Write an xarray Dataset or DataTree; see :func:`~nmf_zoo.files.replacing`.

    In a thread, since Ctrl-C is raised in the main one: never in the midst of HDF5.
    """
    with (
        replacing(path, name) as partial,
        open(partial, "w+b", buffering=0) as raw,
        ThreadPoolExecutor(1) as pool,
    ):
        file = _Forgiving(raw)
        writing = pool.submit(data.to_netcdf, file, engine="h5netcdf")
        try:
            writing.result()
        except BaseException as error:
            file.failure = file.failure or error  # of two, the first explains the second
        if file.failure is not None:
            raise file.failure
        size = raw.seek(0, io.SEEK_END)
        raw.write(SEAL_BEGIN + b"%08x\n" % _checksum(raw, size))


def is_damaged(path: Path) -> bool:
    """Whether a file has a seal that is of other bytes, is cut, or is not its end."""
    with open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LONGEST))
        tail = file.read()
        at = tail.rfind(SEAL_BEGIN)
        if at < 0:
            return False
        seal = SEALED.fullmatch(tail, at)
        return seal is None or int(seal[1], 16) != _checksum(file, size - len(tail) + at)


def _checksum(file: Any, size: int) -> int:
    """Of the first ``size`` bytes, after which the file stands."""
    found, left = 0, size
    file.seek(0)
    while left and (piece := file.read(min(left, LONGEST))):
        found, left = zlib.crc32(piece, found), left - len(piece)
    return found


class _Forgiving(io.RawIOBase):
    """A file that can be written to and read back also when the disk is full.

    Attributes
    ----------
    failure : the first error, after which nothing goes to disk; or None
    """

    def __init__(self, raw: io.FileIO):
        self._raw, self._at = raw, 0
        self._unwritten: list[tuple[int, bytes]] = []
        self.failure: BaseException | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        first, self._at = self._at, self._at + rest.nbytes
        try:
            if self.failure is None:
                self._raw.seek(first)
            while self.failure is None and rest:
                rest = rest[self._raw.write(rest) :]
        except Exception as error:
            self.failure = error
        if 0 < rest.nbytes < LONGEST:
            self._unwritten.append((self._at - rest.nbytes, bytes(rest)))
        return self._at - first

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer: with zeros what isn't there."""
        view, first = memoryview(buffer).cast("B"), self._at
        self._raw.seek(first)
        there = self._raw.read(view.nbytes) or b""
        view[:] = there + bytes(view.nbytes - len(there))
        for begin, piece in self._unwritten:
            start, stop = max(begin, first), min(begin + len(piece), first + view.nbytes)
            if start < stop:
                view[start - first : stop - first] = piece[start - begin : stop - begin]
        self._at = first + view.nbytes
        return view.nbytes

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            if self.failure is None:
                self._raw.truncate(size)
        except Exception as error:
            self.failure = error
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset if whence == io.SEEK_SET else self._raw.seek(offset, whence)
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
