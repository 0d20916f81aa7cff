"""The section on the model: its graph as inline SVG, and what it is in words."""

from __future__ import annotations

from html import escape

from nmf_zoo.reading.describe import describe
from nmf_zoo.reading.drawing import Box, Graph, graph_from_text, make_box, make_graph
from nmf_zoo.reports.page import advice, figure, paragraph, preformatted
from nmf_zoo.reports.source import Source
from nmf_zoo.results.run_attributes import GRAPH, MODEL

# Of the drawing: width of a letter, height of a line, room in and between boxes.
LETTER, LINE, PAD, GAP = 7.4, 17, 12, 26
SAME = 1e-6  # relative difference of two log joints of the same model and draw
FILLS = {"unknown": "#ffffff", "known": "#e7e9ee", "observed": "#cfe0f2"}
INK = "#22304a"
CAPTION = "White: unknown. Grey: known. Blue: observed. Arrows point to what depends on a variable."


def model_parts(source: Source) -> list[str]:
    """The declaration that is given, else the one that the result carries, else what its draws tell."""
    if source.structure is not None:
        return [*_declared(describe(source.structure), make_graph(source.structure)), *_whose(source)]
    if MODEL in source.attrs:
        return _declared(str(source.attrs[MODEL]), _carried_graph(source))
    graph, others = found(source)
    parts = []
    if graph.rows:
        alt = "Graph of the product: X depends on W and H"
        parts = [figure(draw(graph, alt), alt, "White: in the posterior. Blue: observed.")]
    note = (
        "This is what the draws tell. Results of nmf_zoo say what model they are of; this one does not, so that "
        "priors, likelihood and known terms of the mean are unknown here: give the model to see them (model=, or on "
        "the command line --data and --model)."
    )
    more = [paragraph(f"Also in the posterior: {', '.join(others)}.")] if others else []
    return [*parts, paragraph(note), *more]


def _declared(text: str, graph: Graph | None) -> list[str]:
    """Picture and words."""
    alt = graph_title(text)
    return [*([figure(draw(graph, alt), alt, CAPTION)] if graph else []), preformatted(text)]


def graph_title(text: str) -> str:
    """For readers who can't see the graph: the product's line of a description."""
    return f"Graph of the model: {next((line for line in text.splitlines() if ' ~ ' in line), text)}"


def _carried_graph(source: Source) -> Graph | None:
    """The graph among the result's attributes; None where a file holds something else there."""
    try:
        return graph_from_text(str(source.attrs[GRAPH]))
    except (KeyError, TypeError, ValueError):
        return None


def _whose(source: Source) -> list[str]:
    """Whether the declaration is the one that the result came from: its log joint at a draw tells."""
    if source.log_joints is None:
        return [paragraph("The model was given with the result, which can't tell whether it came from this one.")]
    stored, own = source.log_joints
    if abs(stored - own) <= SAME * max(1.0, abs(stored)):
        return [advice(f"The log joint of the last draw is that of this model, {own:.6g}.", is_warning=False)]
    text = f"The result says that the log joint of its last draw is {stored:.6g}, this model says {own:.6g}"
    return [advice(f"{text}: it came from another model, or from other data.", is_warning=True)]


def found(source: Source) -> tuple[Graph, list[str]]:
    """The graph of a result's factors, and what else there is in its posterior."""
    names = [name for name in (source.weights, source.activations) if name in source.unknown]
    group = source.unknown
    boxes = [make_box(name, " x ".join(f"{group.sizes[d]:,} {d}" for d in group[name].dims[2:])) for name in names]
    others = [str(name) for name in group.data_vars if name not in names]
    features, samples, _ = source.shape
    size = [f"{features:,} x {samples:,}"] if features and samples else []
    X = make_box("X", "its mean depends on W H", *size, kind="observed")
    return Graph([boxes, [X]] if boxes else [], [(name, "X") for name in names]), others


def width_of(box: Box) -> float:
    return max(96.0, LETTER * max(map(len, box.lines)) + 2 * PAD)


def height_of(box: Box) -> float:
    return LINE * len(box.lines) + 2 * PAD


def draw(graph: Graph, title: str) -> str:
    """The graph as SVG, rows centred below each other."""
    rows, arrows = graph
    widths = [sum(map(width_of, row)) + GAP * (len(row) - 1) for row in rows]
    heights = [max(map(height_of, row)) for row in rows]
    whole = max(widths) + 2, sum(heights) + 2 * GAP * (len(rows) - 1) + 2
    places: dict[str, Place] = {}
    top = 1.0
    for row, width, height in zip(rows, widths, heights, strict=True):
        left = (whole[0] - width) / 2
        for box in row:
            places[box.lines[0]] = left, top + (height - height_of(box)) / 2, box
            left += width_of(box) + GAP
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
    return place[0] + width_of(place[2]) / 2


def _arrow(start: Place, end: Place, share: float) -> str:
    """From below the start to the top of the end, at a share of its width."""
    points = _middle(start), start[1] + height_of(start[2]), end[0] + share * width_of(end[2]), end[1]
    ends = " ".join(f'{name}="{point:.1f}"' for name, point in zip(("x1", "y1", "x2", "y2"), points, strict=True))
    return f'<line {ends} stroke="{INK}" stroke-width="1.3" marker-end="url(#tip)"/>'


def _drawn(x: float, y: float, box: Box) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width_of(box):.1f}" height="{height_of(box):.1f}" rx="9"'
    out = f'<rect {size} fill="{FILLS[box.kind]}" stroke="{INK}" stroke-width="1.3"/>'
    for number, line in enumerate(box.lines):
        at = f'x="{x + width_of(box) / 2:.1f}" y="{y + PAD + LINE * (number + 0.75):.1f}"'
        weight = ' font-weight="bold"' if number == 0 else ""
        out += f"<text {at}{weight}>{escape(line)}</text>"
    return out
