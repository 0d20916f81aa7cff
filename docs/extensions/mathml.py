"""Formulas as MathML, which browsers show by themselves: no script, and nothing to fetch."""

from __future__ import annotations

import html
import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging


def setup(app):
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(writer, node: nodes.math) -> None:
    """A formula in a line."""
    writer.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def display(writer, node: nodes.math_block) -> None:
    """A formula of its own."""
    writer.body.append(f'<div class="formula">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def mathml(node: nodes.Element, as_block: bool) -> str:
    """``<math>``; a formula that docutils can't read is worth a warning, and is shown as it is written."""
    formula = node.astext()
    try:
        return str(latex2mathml.tex2mathml(with_sides(formula), as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", formula, error, location=node)
        return f"<code>{html.escape(formula)}</code>"


def with_sides(formula: str) -> str:
    r"""docutils knows ``\Bigl(`` and ``\Bigr)``, and not ``\Big``; where no side can be told the size is left out."""
    formula = re.sub(r"\\([bB]igg?)(?=\s*\\?[(\[{])", r"\\\1l", formula)
    formula = re.sub(r"\\([bB]igg?)(?=\s*\\?[)\]}])", r"\\\1r", formula)
    return re.sub(r"\\[bB]igg?(?=\W)", "", formula)
