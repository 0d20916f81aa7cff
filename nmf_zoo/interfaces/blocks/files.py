"""A list of files, each a block of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.tables import read_matrix


class FileBlocks:
    """Files with one table each, read whole; all of them are read once for their numbers of samples."""

    def __init__(self, paths: list[Path], transpose: bool = False):
        if not paths:
            raise InputError("data", "an empty list", "paths of files")
        self.paths, self._transpose, self.bounds = paths, transpose, [0]
        n_features: int | None = None
        for path in paths:
            features, samples = self._read(path).shape
            if n_features not in (None, features):
                raise InputError(str(path), f"{features} features", f"{n_features}, as {paths[0]} has")
            n_features = features
            self.bounds.append(self.bounds[-1] + samples)
        assert n_features is not None
        self.shape = (n_features, self.bounds[-1])

    def read(self, number: int) -> Any:
        """The table of a file."""
        return self._read(self.paths[number])

    def _read(self, path: Path) -> Any:
        return read_matrix(path, transpose=self._transpose).values
