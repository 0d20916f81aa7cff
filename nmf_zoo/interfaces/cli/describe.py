"""``nmf-zoo describe``: what a table holds, and which model and options suit it; the file is read, nothing is run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import number_of
from nmf_zoo.interfaces.cli.fit import read_table
from nmf_zoo.interfaces.cli.show import print_lines

SHOWN = 3  # labels of each kind
FEW = 1 << 18  # cells of a table that Gibbs samples in minutes
RATINGS = 10  # sparse whole numbers up to it may be marks that people gave
WIDE = 1e3  # times the median: beyond it squared error would see the largest cells alone
LOGARITHMS = 20.0  # fractions with many zeros and nothing above it are mostly logarithms of counts
OF_TABLE = ("transpose", "labels", "key", "layer", "header", "row_labels")  # options that say how the file is read


def run_describe(arguments: argparse.Namespace) -> int:
    table = read_table(arguments)
    found = contents_of(table.values, is_complete=table.observed is None)
    print_lines(lines_of(found, table.rows, table.columns, _input_words(arguments)))
    return 0


@dataclass(frozen=True)
class Contents:
    """What a table holds, its missing cells aside.

    Attributes
    ----------
    shape : (features, samples)
    is_sparse : it lists some of its cells; the others are zeros
    observed : the cells that are not missing, all zeros among them
    listed : values of the cells that are listed and not missing: of a dense table all of them
    empty : features and samples without a positive cell
    sums : of the samples
    """

    shape: tuple[int, int]
    is_sparse: bool
    observed: int
    listed: np.ndarray
    empty: tuple[int, int]
    sums: np.ndarray

    @property
    def zeros(self) -> int:
        return self.observed - int(np.count_nonzero(self.listed))

    @property
    def missing(self) -> int:
        return self.shape[0] * self.shape[1] - self.observed

    @property
    def is_odd(self) -> np.ndarray:
        """Which of the listed cells no model takes."""
        return ~np.isfinite(self.listed) | (self.listed < 0)

    @property
    def is_whole(self) -> bool:
        return bool(np.all(self.listed == np.floor(self.listed)))

    @property
    def are_shares(self) -> bool:
        """Samples sum to 1, or to 100: what was counted has been divided by its total."""
        totals = self.sums[self.sums > 0]
        return bool(totals.size) and not self.is_whole and any(np.allclose(totals, one, 1e-3) for one in (1.0, 100.0))


def contents_of(values: Any, is_complete: bool = True) -> Contents:
    """Of an array with NaN where cells are missing, or of a sparse matrix, whose others are zeros unless it is not."""
    is_sparse = not isinstance(values, np.ndarray)
    listed = values.data if is_sparse else values[~np.isnan(values)]
    positive = values > 0
    by_feature, by_sample = (np.asarray(positive.sum(axis=axis)).ravel() for axis in (1, 0))
    sums = values.sum(axis=0) if is_sparse else np.nansum(values, axis=0)
    return Contents(
        shape=values.shape,
        is_sparse=is_sparse,
        observed=values.shape[0] * values.shape[1] if is_sparse and is_complete else listed.size,
        listed=np.asarray(listed),
        empty=(int(np.sum(by_feature == 0)), int(np.sum(by_sample == 0))),
        sums=np.asarray(sums, dtype=np.float64).ravel(),
    )


def lines_of(
    found: Contents, features: Sequence[str] | None, samples: Sequence[str] | None, words: str
) -> Iterator[str]:
    """The lines of ``nmf-zoo describe``; ``words`` : the file and how it is read, for the commands suggested."""
    n_features, n_samples = found.shape
    how = f", sparse: {number_of(found.listed.size, 'cell')} listed" if found.is_sparse else ""
    yield f"table       {number_of(n_features, 'feature')} (rows) x {number_of(n_samples, 'sample')} (columns){how}"
    yield f"values      {_kind(found)}"
    yield f"zeros       {_part(found.zeros, found.observed)} of the observed cells"
    yield f"missing     {_part(found.missing, n_features * n_samples) if found.missing else 'none'}"
    empty = [number_of(n, word) for n, word in zip(found.empty, ("feature", "sample"), strict=True)]
    yield f"empty       {' and '.join(empty)} without a positive cell"
    yield f"features    {_labels(features, n_features)}"
    yield f"samples     {_labels(samples, n_samples)}"
    yield ""
    suited, why = _suited(found)
    yield f"model       {suited.model if suited else 'none'}: {why}"
    for hint in _hints(found, words):
        yield f"note        {hint}"
    if suited:
        ranks = f"1:{min(10, *found.shape)}"
        yield f"next        nmf-zoo rank {words} --model {suited.model} --ranks {ranks}{suited.judged}"
        yield f"            nmf-zoo fit {words} --model {suited.model} --engine {suited.engine} --rank K -o result.nc"


def _kind(found: Contents) -> str:
    if not found.listed.size:
        return "nothing but zeros" if found.observed else "only missing cells"
    least = min(found.listed.min(), 0 if found.zeros else np.inf)
    kind = "whole numbers" if found.is_whole else "shares of their sample" if found.are_shares else "real numbers"
    return f"{kind}, {least:,.6g} to {found.listed.max():,.6g}, total {found.listed.sum():,.6g}"


def _part(count: int, whole: int) -> str:
    return f"{count:,} ({count / max(whole, 1):.1%})"


def _labels(labels: Sequence[str] | None, count: int) -> str:
    if labels is None:
        return f"no labels: 0 to {count - 1:,}"
    shown = ", ".join(map(str, labels[:SHOWN])) + (", ..." if count > SHOWN else "")
    repeated = count - len(set(labels))
    return shown + (f" ({repeated:,} of {count:,} repeat another)" if repeated else "")


class Suited(NamedTuple):
    """A model, an engine, and how ``nmf-zoo rank`` judges it where its defaults do not."""

    model: str
    engine: str
    judged: str = ""


def _suited(found: Contents) -> tuple[Suited | None, str]:
    """What suits a table of this size, and why; or None, and why."""
    if not found.listed.size or found.listed.max() <= 0:
        return None, "there is no positive cell"
    if found.is_odd.any():
        return None, "a factorisation into parts needs finite numbers >= 0"
    if found.is_whole:
        engine = "gibbs" if found.listed.size <= FEW else "vb"
        return Suited("gamma-nmf", engine), "whole numbers >= 0 are modelled as Poisson counts"
    if not found.zeros and found.listed.max() > WIDE * np.median(found.listed):
        why = "positive numbers over many orders of magnitude, such as powers"
        return Suited("is-nmf", "em", " --method holdout"), why
    return Suited("normal-nmf", "em", " --method holdout --engine em"), "real numbers >= 0, fitted by squared error"


def _hints(found: Contents, words: str) -> Iterator[str]:
    """What the numbers may mean, and what to say then."""
    if found.is_odd.any():
        odd = f"{found.is_odd.sum():,} of {found.listed.size:,} cells are negative or infinite"
        yield f"{odd}: give the numbers before they were centred or scaled"
    elif found.are_shares:
        yield "samples sum to one total: counts, where there are some, say more, since they know how sure they are"
    elif found.listed.size and not found.is_whole and found.zeros and found.listed.max() < LOGARITHMS:
        yield "small fractions among zeros are mostly logarithms of counts: give the counts themselves"
    if found.is_sparse and found.listed.size and found.is_whole and found.listed.max() <= RATINGS:
        yield "where cells that are not listed are missing, not zero, as of ratings, add --observed stored"
    if found.shape[1] < found.shape[0] // 50 and "--transpose" not in words:
        yield "many more rows than columns: where the rows are the samples, add --transpose"


def _input_words(arguments: argparse.Namespace) -> str:
    """The file and the options that say how it is read, as they were given."""
    words = [str(arguments.input)]
    for name in OF_TABLE:
        given = getattr(arguments, name)
        if given not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if given is True else [str(given)])]
    return shlex.join(words)
