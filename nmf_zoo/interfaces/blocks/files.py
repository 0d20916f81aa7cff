"""A list of files, each a block of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.interfaces.tables import read_matrix
from nmf_zoo.interfaces.tables.arrays import Matrix
from nmf_zoo.verbs.block_source import Samples, features_in_order


class FileBlocks:
    """Files with one table each, read whole; all of them are read once for their samples and labels.

    Features are in the order of the first file: where files label their rows, theirs may be in another one.
    """

    def __init__(self, paths: list[Path], transpose: bool = False):
        if not paths:
            raise InputError("data", "an empty list", "paths of files")
        self.paths, self._transpose, self.bounds = [path.absolute() for path in paths], transpose, [0]
        self._features: list[str] | None = None
        samples: list[str] | None = []
        for path in paths:
            table = self._table(path)
            if path == paths[0]:
                n_features, self._features = table.shape[0], table.rows
            elif table.shape[0] != n_features:
                raise InputError(str(path), number_of(table.shape[0], "feature"), f"{n_features}, as {paths[0]} has")
            self._order(path, table)
            samples = None if samples is None or table.columns is None else [*samples, *table.columns]
            self.bounds.append(self.bounds[-1] + table.shape[1])
        self.shape = (n_features, self.bounds[-1])
        found = {"feature": self._features, "obs": samples}
        self.coords = {dim: labels for dim, labels in found.items() if labels is not None}

    def read(self, number: int) -> Any:
        """The table of a file."""
        path = self.paths[number]
        table = self._table(path)
        order = self._order(path, table)
        values, background = table.values, table.background
        if order is not None:
            values = (values.tocsr() if table.is_sparse else values)[order]
            background = features_in_order(background, order)
        return Samples(values, table.exposure, observed=table.observed, background=background)

    def _table(self, path: Path) -> Matrix:
        return read_matrix(path, transpose=self._transpose)

    def _order(self, path: Path, table: Matrix) -> list[int] | None:
        """Rows of the file in the order of the features; None where it is that order."""
        own, features = table.rows, self._features
        if own == features:
            return None
        if own is None or features is None:
            with_labels, without = (path, self.paths[0]) if features is None else (self.paths[0], path)
            raise InputError(str(without), "no labels of features", f"some, as {with_labels} has", "label all or none")
        at = {label: row for row, label in enumerate(own)}
        if len(at) < len(own) or set(at) != set(features):
            strange = next((label for label in own if label not in set(features)), "one of them twice")
            raise InputError(str(path), f"features of other names ({strange!r})", f"those of {self.paths[0]}")
        return [at[label] for label in features]
