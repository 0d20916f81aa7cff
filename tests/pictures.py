"""What can be asked of a picture without looking at it: which of its words lie over each other, or beyond its edge."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

ROOM = 0.5  # points that boxes of letters may share: they are taller than what is in them


class Word(NamedTuple):
    """A visible text and its box in pixels."""

    text: str
    box: Any


def words_of(figure: Any) -> list[Word]:
    """All texts that are drawn, with their boxes; words over a picture's own marks (annotations) are among them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = {tick for axes in figure.findobj(lambda own: hasattr(own, "xaxis")) for tick in _unseen(axes)}
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [Word(text.get_text(), text.get_window_extent(renderer)) for text in found if text not in hidden]


def _unseen(axes: Any) -> list[Any]:
    """Labels of ticks that are off, or outside the limits, which matplotlib keeps and doesn't draw."""
    texts = []
    for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            is_in = low - 1e-9 * abs(low) <= tick.get_loc() <= high + 1e-9 * abs(high)
            shown = axes.axison and axes.get_visible() and is_in and tick.get_visible()
            texts += [label for label in (tick.label1, tick.label2) if not (shown and label.get_visible())]
    return texts


def collisions(figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap."""
    pairs = combinations(words_of(figure), 2)
    return [(one.text, other.text) for one, other in pairs if _overlap(one.box, other.box)]


def _overlap(one: Any, other: Any) -> bool:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > ROOM and height > ROOM


def cut_off(figure: Any) -> list[str]:
    """Texts that do not lie within the figure."""
    width, height = figure.bbox.width, figure.bbox.height
    return [
        word.text
        for word in words_of(figure)
        if word.box.x0 < -1 or word.box.y0 < -1 or word.box.x1 > width + 1 or word.box.y1 > height + 1
    ]
