"""The graph of a model as boxes and arrows: what reports draw, and results carry as text."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import number_of
from nmf_zoo.reading.describe import (
    known_text,
    offset_text,
    parameter_text,
    prior_name,
    product_line,
    tying,
)
from nmf_zoo.structure import Factor, Factorisation, Fixed, Flat, Unknown

LONGEST = 30  # letters of a line in a box


class Box(NamedTuple):
    """A variable: what is written in it, its name first, and whether it is unknown, known or observed."""

    lines: tuple[str, ...]
    kind: str


class Graph(NamedTuple):
    """Rows of boxes from top to bottom, and (from, to) names of the arrows."""

    rows: list[list[Box]]
    arrows: list[tuple[str, str]]


def make_graph(structure: Factorisation) -> Graph:
    """Hyperparameters above factors and known terms above the data."""
    likelihood, factors = structure.likelihood, (structure.W, structure.H)
    names = [factor.name or side for factor, side in zip(factors, "WH", strict=True)]
    of_factors = [_factor_box(factor, name) for factor, name in zip(factors, names, strict=True)]
    arrows = [(name, likelihood.name) for name in names]
    known = []
    for role in ("exposure", "background"):
        value = getattr(likelihood, role)
        if value is not None:
            known.append(make_box(role, offset_text(value), kind="known"))
            arrows.append((role, likelihood.name))
    for name, factor in zip(names, factors, strict=True):
        parameters = {} if isinstance(factor.prior, Fixed | Flat) else factor.prior.parameters
        arrows += [(each.name, name) for each in parameters.values() if isinstance(each, Unknown)]
    pointed = {start for start, _ in arrows}
    unknowns = [_unknown_box(unknown) for unknown in structure.unknowns.values()]
    arrows += [(name, likelihood.name) for name in structure.unknowns if name not in pointed]  # sigma
    size = "{:,} x {:,}".format(*structure.shape)
    observed = "observed" if structure.data is not None else "unknown"
    density = product_line(structure).partition(" ~ ")[2].rpartition(", rank")[0]
    X = make_box(likelihood.name, density, size, kind=observed)
    rows = [unknowns, [*of_factors, *known], [X]]
    return Graph([row for row in rows if row], list(dict.fromkeys(arrows)))


def graph_to_text(graph: Graph) -> str:
    """As JSON, for an attribute of a result."""
    return json.dumps(graph, separators=(",", ":"))


def graph_from_text(text: str) -> Graph:
    """The graph of such an attribute."""
    rows, arrows = json.loads(text)
    boxes = [[Box(tuple(map(str, lines)), str(kind)) for lines, kind in row] for row in rows]
    return Graph(boxes, [(str(start), str(end)) for start, end in arrows])


def _factor_box(factor: Factor, name: str) -> Box:
    size = "{:,} x {:,}".format(*factor.variable_shape)
    if isinstance(factor.prior, Fixed):
        return make_box(name, "known", size, kind="known")
    known = [] if factor.known is None else [known_text(factor.known)]
    if isinstance(factor.prior, Flat):
        return make_box(name, *known, "no prior (flat)", size)
    lines = [f"{role} = {parameter_text(each)}" for role, each in factor.prior.parameters.items()]
    if factor.is_chain and factor.prior.is_stationary:
        lines.append("begins stationary")
    return make_box(name, *known, factor.prior.distribution, *lines, size)


def _unknown_box(unknown: Unknown) -> Box:
    entries = int(np.prod(unknown.variable_shape, dtype=int))
    prior = "free (no prior)" if unknown.prior.is_flat else prior_name(unknown)
    return make_box(unknown.name, prior, f"{number_of(entries, 'value')}, {tying(unknown)}")


def make_box(*lines: str, kind: str = "unknown") -> Box:
    """A box with its lines broken at blanks."""
    return Box(tuple(part for line in lines for part in _split(line)), kind)


def _split(line: str) -> list[str]:
    out = [""]
    for word in line.split():
        if out[-1] and len(out[-1]) + 1 + len(word) > LONGEST:
            out.append(word)
        else:
            out[-1] = f"{out[-1]} {word}".strip()
    return out
