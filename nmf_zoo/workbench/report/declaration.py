"""The section on the model: its graph as inline SVG, and what it is in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from nmf_zoo.reading.describe import (
    PRIOR_NAMES,
    array_text,
    describe,
    parameter_text,
    prior_name,
    product_line,
    tying,
)
from nmf_zoo.structure import BasisChainPrior, Factor, Factorisation, Fixed, Flat, LogNormalARPrior, Unknown
from nmf_zoo.workbench.report.page import advice, figure, paragraph, preformatted
from nmf_zoo.workbench.report.source import Source

LETTER, LINE, PAD, GAP = (
    7.4,
    17,
    12,
    26,
)  # of the drawing: width of a letter, height of a line, room in and between boxes
SAME = 1e-6  # relative difference of two log joints of the same model and draw
LONGEST = 30  # letters of a line in a box
FILLS = {"unknown": "#ffffff", "known": "#e7e9ee", "observed": "#cfe0f2"}
INK = "#22304a"


class Box(NamedTuple):
    """A variable: what is written in it, the first line in bold, and whether it is unknown, known or observed."""

    lines: tuple[str, ...]
    kind: str

    @property
    def width(self) -> float:
        return max(96.0, LETTER * max(map(len, self.lines)) + 2 * PAD)

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 2 * PAD


def model_parts(source: Source) -> list[str]:
    """The declaration where it is known, else what the result tells of it."""
    if source.structure is not None:
        rows, arrows = declared(source.structure)
        alt = f"Graph of the model: {product_line(source.structure)}"
        caption = "White: unknown. Grey: known. Blue: observed. Arrows point to what depends on a variable."
        return [
            figure(draw(rows, arrows, alt), alt, caption),
            preformatted(describe(source.structure)),
            *_whose(source),
        ]
    rows, arrows, others = found(source)
    alt = "Graph of the product: X depends on W and H" if rows else ""
    parts = [figure(draw(rows, arrows, alt), alt, "White: in the posterior. Blue: observed.")] if rows else []
    note = (
        "This is what the result tells. Priors, likelihood and known terms of the mean are in the declaration, which a "
        "result does not hold: give the model as well to see them (model=, or on the command line --data and --model)."
    )
    more = f"Also in the posterior: {', '.join(others)}." if others else ""
    return [*parts, paragraph(note), *([paragraph(more)] if more else [])]


def _whose(source: Source) -> list[str]:
    """Whether the declaration is the one that the result came from: its log joint at a draw tells."""
    if source.log_joints is None:
        return [paragraph("The model was given with the result, which can't tell whether it came from this one.")]
    stored, own = source.log_joints
    if abs(stored - own) <= SAME * max(1.0, abs(stored)):
        return [advice(f"The log joint of the last draw is that of this model, {own:.6g}.", is_warning=False)]
    text = f"The result says that the log joint of its last draw is {stored:.6g}, this model says {own:.6g}"
    return [advice(f"{text}: it came from another model, or from other data.", is_warning=True)]


def declared(structure: Factorisation) -> tuple[list[list[Box]], list[tuple[str, str]]]:
    """Rows of boxes from top to bottom, and (from, to) names of the arrows."""
    likelihood, factors = structure.likelihood, (structure.W, structure.H)
    names = [factor.name or side for factor, side in zip(factors, "WH", strict=True)]
    of_factors = [_factor_box(factor, name) for factor, name in zip(factors, names, strict=True)]
    arrows = [(name, likelihood.name) for name in names]
    known = []
    for role in ("exposure", "background"):
        value = getattr(likelihood, role)
        if value is not None:
            known.append(_box(role, array_text(np.asarray(value)), kind="known"))
            arrows.append((role, likelihood.name))
    for name, factor in zip(names, factors, strict=True):
        parameters = {} if isinstance(factor.prior, Fixed | Flat) else factor.prior.parameters
        arrows += [(each.name, name) for each in parameters.values() if isinstance(each, Unknown)]
    pointed = {start for start, _ in arrows}
    unknowns = [_unknown_box(unknown) for unknown in structure.unknowns.values()]
    arrows += [(name, likelihood.name) for name in structure.unknowns if name not in pointed]  # sigma
    size = "{:,} x {:,}".format(*structure.shape)
    observed = "observed" if structure.data is not None else "unknown"
    X = _box(likelihood.name, product_line(structure).partition(" ~ ")[2].rpartition(", rank")[0], size, kind=observed)
    rows = [unknowns, [*of_factors, *known], [X]]
    return [row for row in rows if row], list(dict.fromkeys(arrows))


def _factor_box(factor: Factor, name: str) -> Box:
    size = "{:,} x {:,}".format(*factor.variable_shape)
    if isinstance(factor.prior, Fixed):
        return _box(name, "known", size, kind="known")
    if isinstance(factor.prior, Flat):
        return _box(name, "no prior (flat)", size)
    lines = [f"{role} = {parameter_text(each)}" for role, each in factor.prior.parameters.items()]
    if isinstance(factor.prior, BasisChainPrior | LogNormalARPrior) and factor.prior.is_stationary:
        lines.append("begins stationary")
    return _box(name, PRIOR_NAMES[type(factor.prior)], *lines, size)


def _unknown_box(unknown: Unknown) -> Box:
    entries = int(np.prod(unknown.variable_shape, dtype=int))
    prior = "free (no prior)" if unknown.prior.is_flat else prior_name(unknown)
    return _box(unknown.name, prior, f"{entries} value{'s' * (entries != 1)}, {tying(unknown)}")


def found(source: Source) -> tuple[list[list[Box]], list[tuple[str, str]], list[str]]:
    """Boxes and arrows of a result's factors, and what else there is."""
    names = [name for name in (source.weights, source.activations) if name in source.posterior]
    group = source.posterior
    boxes = [_box(name, " x ".join(f"{group.sizes[d]:,} {d}" for d in group[name].dims[2:])) for name in names]
    others = [str(name) for name in group.data_vars if name not in names]
    features, samples, _ = source.shape
    size = [f"{features:,} x {samples:,}"] if features and samples else []
    X = _box("X", "its mean depends on W H", *size, kind="observed")
    return ([boxes, [X]] if boxes else []), [(name, "X") for name in names], others


def _box(*lines: str, kind: str = "unknown") -> Box:
    return Box(tuple(part for line in lines for part in _split(line)), kind)


def _split(line: str) -> list[str]:
    """Lines of at most so many letters, broken at blanks."""
    out = [""]
    for word in line.split():
        if out[-1] and len(out[-1]) + 1 + len(word) > LONGEST:
            out.append(word)
        else:
            out[-1] = f"{out[-1]} {word}".strip()
    return out


def draw(rows: Sequence[Sequence[Box]], arrows: Sequence[tuple[str, str]], title: str) -> str:
    """The graph as SVG, rows centred below each other."""
    widths = [sum(box.width for box in row) + GAP * (len(row) - 1) for row in rows]
    heights = [max(box.height for box in row) for row in rows]
    whole = max(widths) + 2, sum(heights) + 2 * GAP * (len(rows) - 1) + 2
    places: dict[str, Place] = {}
    top = 1.0
    for row, width, height in zip(rows, widths, heights, strict=True):
        left = (whole[0] - width) / 2
        for box in row:
            places[box.lines[0]] = left, top + (height - box.height) / 2, box
            left += box.width + GAP
        top += height + 2 * GAP
    shapes = []
    for name, place in places.items():
        starts = sorted((places[start] for start, end in arrows if end == name and start in places), key=_middle)
        shapes += [_arrow(start, place, (n + 1) / (len(starts) + 1)) for n, start in enumerate(starts)]
    shapes += [_drawn(*place) for place in places.values()]
    size = f'viewBox="0 0 {whole[0]:.0f} {whole[1]:.0f}" width="{whole[0]:.0f}" height="{whole[1]:.0f}"'
    size += f' style="min-width:{0.8 * whole[0]:.0f}px"'  # smaller letters could not be read
    head = '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    head += f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    text = f'font-family="inherit" font-size="13" fill="{INK}" text-anchor="middle"'
    return f'<svg role="img" {size} {text}><title>{escape(title)}</title>{head}{"".join(shapes)}</svg>'


Place = tuple[float, float, Box]  # left, top, and what is there


def _middle(place: Place) -> float:
    return place[0] + place[2].width / 2


def _arrow(start: Place, end: Place, share: float) -> str:
    """From below the start to the top of the end, at a share of its width."""
    points = _middle(start), start[1] + start[2].height, end[0] + share * end[2].width, end[1]
    ends = " ".join(f'{name}="{point:.1f}"' for name, point in zip(("x1", "y1", "x2", "y2"), points, strict=True))
    return f'<line {ends} stroke="{INK}" stroke-width="1.3" marker-end="url(#tip)"/>'


def _drawn(x: float, y: float, box: Box) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="9"'
    out = f'<rect {size} fill="{FILLS[box.kind]}" stroke="{INK}" stroke-width="1.3"/>'
    for number, line in enumerate(box.lines):
        at = f'x="{x + box.width / 2:.1f}" y="{y + PAD + LINE * (number + 0.75):.1f}"'
        weight = ' font-weight="bold"' if number == 0 else ""
        out += f"<text {at}{weight}>{escape(line)}</text>"
    return out
