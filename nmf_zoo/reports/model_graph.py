"""The graph of a model as a picture of its own, for notebooks: what the report draws, without a page."""

from __future__ import annotations

from typing import Any

from nmf_zoo.options import names_checked
from nmf_zoo.reading import describe, read
from nmf_zoo.reading.drawing import make_graph
from nmf_zoo.reports.declaration import draw, graph_title

XMLNS = 'xmlns="http://www.w3.org/2000/svg"'  # without it browsers show no file


class GraphPicture:
    """A picture that Jupyter shows; elsewhere the words of :func:`~nmf_zoo.describe`.

    Attributes
    ----------
    svg : text of an SVG file
    """

    def __init__(self, svg: str, text: str) -> None:
        self.svg, self._text = svg, text

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self._text


@names_checked
def plot_model(model: Any) -> GraphPicture:
    """Draw what was read from a model: hyperparameters, factors and data, with their distributions and sizes.

    White boxes are unknown, grey ones known, the blue one is observed; arrows point to what depends on a variable.
    Needs no graphviz.

    Parameters
    ----------
    model : pm.Model

    Returns
    -------
    GraphPicture, which Jupyter shows as a picture; its ``svg`` can be written to a file

    Raises
    ------
    UnreadableModel : as :func:`~nmf_zoo.read` does

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> nz.plot_model(nz.gamma_nmf([[3, 1], [2, 5]], rank=1)).svg[:4]
    '<svg'
    """
    structure = read(model)
    text = describe(structure)
    svg = draw(make_graph(structure), graph_title(text))
    head = f'{XMLNS} font-family="sans-serif"'
    return GraphPicture(svg.replace('font-family="inherit"', head, 1), text)
