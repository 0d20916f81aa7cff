"""Text from the command line to Python values, by the annotation of the argument it is for."""

from __future__ import annotations

import ast
import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmf_zoo.errors import InputError, did_you_mean
from nmf_zoo.files import shortened
from nmf_zoo.interfaces.cli.catalogue import Argument
from nmf_zoo.interfaces.cli.output import RESULTS
from nmf_zoo.memory import MOST_RANKS

if TYPE_CHECKING:
    from nmf_zoo.interfaces.tables.arrays import Matrix

LONGEST = 100  # letters of a number
YES, NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


def parse_value(argument: Argument, text: str | bool) -> Any:
    """``text`` as the type that ``argument`` is annotated with: "a,b" for a sequence, "none" where it is optional."""
    if isinstance(text, bool):
        return text
    kinds = [kind.strip() for kind in argument.annotation.split("|")]
    if "None" in kinds and text.lower() == "none":
        return None
    several = [kind for kind in kinds if kind.startswith("tuple[")] if "," in text else []
    for kind in several or kinds:
        if kind != "None":
            return _parse_kind(argument.flag, kind, text)
    raise InputError(argument.flag, repr(text), "none")


def _parse_kind(flag: str, kind: str, text: str) -> Any:
    if kind == "int":
        return _parse_number(flag, text, int, "an integer")
    if kind == "float":
        return _parse_number(flag, text, float, "a number")
    if kind == "Path":
        return Path(text)
    if kind.startswith(("tuple[", "Sequence[", "list[")):
        return tuple(_plain(part) for part in text.split(",") if part)
    if kind.startswith("Literal["):
        allowed = ast.literal_eval(f"({kind[len('Literal[') : -1]},)")
        if _plain(text) not in allowed:
            raise InputError(flag, repr(text), f"one of {', '.join(map(str, allowed))}", did_you_mean(text, allowed))
    return _plain(text)


def _parse_number(flag: str, text: str, kind: type, expected: str) -> Any:
    try:
        if len(text) > LONGEST:
            raise ValueError
        return kind(text)
    except ValueError:
        raise InputError(flag, shortened(text), expected) from None


def _plain(text: str) -> Any:
    """An integer, a number, or the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_yes_no(flag: str, text: str) -> bool:
    if text.lower() not in YES + NO:
        raise InputError(flag, repr(text), "yes or no")
    return text.lower() in YES


def parse_seed(flag: str, text: str) -> int | list[int]:
    """One integer, or several separated by commas."""
    words = [_parse_number(flag, part, int, "an integer, or several separated by commas") for part in text.split(",")]
    return words[0] if len(words) == 1 else words


def parse_shape(flag: str, text: str) -> tuple[int, int]:
    """``64x100``"""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(_is_size(part) for part in parts):
        raise InputError(flag, shortened(text), "two positive integers, e.g. 64x100")
    return int(parts[0]), int(parts[1])


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST and int(text) > 0


def parse_hyperparameter(argument: Argument, text: str, is_turned: bool = False) -> Any:
    """A number, one per component (1,2,3), a file with an array, ``free``, or ``free:TIE`` as in ``nz.free(tie=)``.

    ``is_turned`` : samples are in the rows of the data's file, and of that of their errors
    """
    if argument.name == "chain":
        return parse_chain(argument.flag, text)
    if argument.name == "prior":
        return parse_prior(argument.flag, text)
    if argument.name in ("known", "known_h"):
        return read_known(Path(text))
    if argument.name == "design":
        return read_labelled(Path(text))
    if argument.name == "batch":
        return read_batches(argument.flag, Path(text))
    word, _, tie = text.partition(":")
    if word == "free":
        import nmf_zoo as nz

        return nz.free(tie={"": "all", "none": None}.get(tie, tie))
    if Path(text).suffix and os.path.exists(text):
        from nmf_zoo.interfaces.tables import read_matrix

        if argument.name != "sigma":
            return read_matrix(text).values
        matrix = read_matrix(text, transpose=is_turned)
        return matrix.values if matrix.is_sparse else labelled(matrix.values, matrix)
    expected = "a number, numbers separated by commas, a file, free, or free:TIE"
    numbers = [_parse_number(argument.flag, part, float, expected) for part in text.split(",")]
    if len(numbers) == 1:
        return numbers[0]
    # One per component: the last axis of W, the first of H.
    return np.array(numbers) if argument.name.endswith("_w") else np.array(numbers)[:, None]


def read_batches(flag: str, path: Path) -> Any:
    """Batches of samples: in the order of the table, or under the samples' labels."""
    if not path.is_file():
        expected = "a file: in each line a batch, or a sample and its batch"
        raise InputError(flag, repr(str(path)), expected)
    found = read_groups_of(path)
    if isinstance(found, list):
        return found
    import pandas as pd

    return pd.Series(found)


def read_groups_of(path: Path) -> Any:
    """Groups by label of a file of two columns, label and group; or of one column, a group in each line."""
    from nmf_zoo.interfaces.tables import reading
    from nmf_zoo.interfaces.tables.text import open_text

    expected = "in each line a label and its group, separated by a tab or a comma, or a group alone"
    with reading(path), open_text(path) as file:
        text = file.read()
        lines = list(csv.reader(text.splitlines(), delimiter="\t" if "\t" in text else ","))
    rows = [[cell.strip() for cell in row] for row in lines if row]
    width = {len(row) for row in rows}
    if width == {1}:
        return [row[0] for row in rows]
    if width != {2}:
        wrong = next((n for n, row in enumerate(rows, 1) if len(row) not in (1, 2)), 1)
        got = f"{len(rows[wrong - 1])} columns in line {wrong}" if rows and width - {1, 2} else "lines of one and two"
        raise InputError(str(path), got, expected)
    found = dict(rows)
    if len(found) < len(rows):
        twice = next(label for n, (label, _) in enumerate(rows) if label in [other for other, _ in rows[:n]])
        raise InputError(str(path), f"the label {twice!r} more than once", "each label once", "keep one line of each")
    return found


def read_known(path: Path) -> Any:
    """Known components: a table with its labels, of features x components or of components x samples, or a result."""
    if path.suffix in RESULTS:
        from nmf_zoo.results.loading import load

        return load(path)
    return read_labelled(path)


def read_labelled(path: Path) -> Any:
    """A table, with its labels where it has some."""
    from nmf_zoo.interfaces.tables import read_matrix

    matrix = read_matrix(path)
    return labelled(matrix.values if isinstance(matrix.values, np.ndarray) else matrix.values.toarray(), matrix)


def labelled(values: np.ndarray, matrix: Matrix) -> Any:
    """Values of a file under its labels, where it has some, which builders hold against those of X."""
    rows, columns = (None if is_numbered(labels) else labels for labels in (matrix.rows, matrix.columns))
    if rows is None and columns is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, index=rows, columns=columns)


def is_numbered(labels: list[Any] | None) -> bool:
    """Whether they are 0, 1, 2, ..., as pandas writes them, and say nothing."""
    return labels is not None and list(map(str, labels)) == list(map(str, range(len(labels))))


def parse_chain(flag: str, text: str) -> Any:
    """``basis``, ``unit`` or ``log-normal`` with all parameters free, or some of them known: ``basis:p=0.9,q=0.8``."""
    from nmf_zoo.models.chains import NAMED

    name, rest = _named(flag, text, NAMED, "basis:p=0.9,q=0.8")
    recipe = NAMED[name]()
    given: dict[str, Any] = {}
    for role, value in _roles(flag, text, rest, name, recipe.arguments):
        word = ', or "stationary"' * recipe.distribution.takes_stationary(role)
        expected = f"a number for {role}, e.g. {role}=0.9{word}"
        given[role] = value if value == "stationary" else _parse_number(flag, value, float, expected)
    return replace(recipe, arguments={**recipe.arguments, **given})


def parse_prior(flag: str, text: str) -> Any:
    """``hpf`` or ``ard``, or with numbers and words: ``ard:shape=5,cells=half-normal``."""
    from nmf_zoo.models.hierarchies import NAMED

    name, rest = _named(flag, text, NAMED, "ard:shape=5,scale=2")
    defaults = {field.name: field.default for field in fields(NAMED[name])}
    given: dict[str, Any] = {}
    for role, value in _roles(flag, text, rest, name, defaults):
        is_word, expected = isinstance(defaults[role], str), f"a number for {role}, e.g. {role}=5"
        given[role] = value if is_word else _parse_number(flag, value, float, expected)
    try:
        return NAMED[name](**given)
    except InputError as error:
        raise InputError(flag, f"{error.name}={error.got}", error.expected, error.do) from None


def _named(flag: str, text: str, names: Iterable[str], example: str) -> tuple[str, str]:
    """The name and what comes after its colon."""
    name, _, rest = text.partition(":")
    if name not in names:
        expected = f"{', '.join(names)}, or with parameters, e.g. {example}"
        raise InputError(flag, repr(text), expected, did_you_mean(name, names))
    return name, rest


def _roles(flag: str, text: str, rest: str, name: str, roles: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (parameter, its value) of ``p=0.9,q=0.8``."""
    seen = set[str]()
    for role, _, value in (part.partition("=") for part in rest.split(",") if part):
        if role not in roles:
            expected = f"parameters of {name}: {', '.join(roles)}"
            raise InputError(flag, repr(text), expected, did_you_mean(role, roles))
        if role in seen:
            raise InputError(flag, f"{role} twice", "each parameter once")
        seen.add(role)
        yield role, value


def parse_ranks(flag: str, text: str) -> list[int]:
    """``1:10`` (both ends included), ``10:50:5`` in steps, ``3``, or several of these separated by commas."""
    ranks: list[int] = []
    expected = "whole numbers and ranges, e.g. 1:10, 10:50:5 or 2,4,8"
    for part in text.split(","):
        numbers = [_parse_number(flag, number, int, expected) for number in part.split(":")]
        if len(numbers) > 3 or (len(numbers) == 3 and numbers[2] < 1):
            raise InputError(flag, repr(part), expected)
        first, last = numbers[0], numbers[min(1, len(numbers) - 1)]
        if last < first:
            raise InputError(flag, repr(part), expected, f"{first} is above {last}")
        step = numbers[2] if len(numbers) == 3 else 1
        if (last - first) // step >= MOST_RANKS:
            raise InputError(flag, repr(part), f"at most {MOST_RANKS:,} ranks")
        ranks += range(first, last + 1, step)
    return ranks
