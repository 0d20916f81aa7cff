"""Links that hold in the repository hold here: between pages and notebooks, and from names to their reference.

Notebooks live beside this folder and are copied into it. So ``../docs/page.md`` in a notebook is ``../page.md`` here,
and ``../notebooks/01_digits.ipynb`` on a page is ``notebooks/01_digits.ipynb``. In running text ``nz.align(...)`` leads
to the reference of ``align``.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx import addnodes

import nmf_zoo
import nmf_zoo.sklearn

NAME = re.compile(r"(?:nz\.|nmf_zoo\.)([A-Za-z_]\w*)|([a-z]+_\w+|gap|[A-Z]\w+)(?:\(.*\))?")


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", copy_notebooks)
    app.connect("source-read", from_here)
    app.connect("doctree-read", names_to_reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def copy_notebooks(app) -> None:
    """The notebooks as they are kept, in ``docs/notebooks``, which git ignores."""
    source, target = app.srcdir.parent / "notebooks", app.srcdir / "notebooks"
    target.mkdir(exist_ok=True)
    kept = {path.name: path for path in source.glob("[0-9]*.ipynb")}
    for path in target.iterdir():
        if path.name not in kept:
            path.unlink()
    for name, path in kept.items():
        copy = target / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            copy.write_bytes(path.read_bytes())


def from_here(app, name: str, source: list[str]) -> None:
    """The text of a page with links as seen from its place in the site."""
    if name.startswith("notebooks/"):
        source[0] = source[0].replace("](../docs/", "](../")
    else:
        up = "../" * name.count("/")
        source[0] = source[0].replace(f"](../{up}notebooks/", f"]({up}notebooks/")


def names_to_reference(app, doctree: nodes.document) -> None:
    """Public names in literals as links; where the text is a link or a heading already it stays so."""
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, nodes.TextElement) and not isinstance(literal.parent, FIXED):
            target = target_of(literal.astext())
            if target:
                link = addnodes.pending_xref(
                    "", literal.deepcopy(), refdomain="py", reftype="obj", reftarget=target, refdoc=app.env.docname
                )
                literal.replace_self(link)


FIXED = (nodes.title, nodes.reference, addnodes.pending_xref, nodes.rubric)


def target_of(text: str) -> str | None:
    """The full name of the public object that the text names first: ``nz.align(idata)``, ``gamma_nmf``, ``EM``."""
    found = NAME.match(text)
    if not found:
        return None
    name = found[1] or (found[2] if found[0] == text else None)
    if name in nmf_zoo.__all__ and name != "__version__":
        return f"nmf_zoo.{name}"
    return f"nmf_zoo.sklearn.{name}" if name in nmf_zoo.sklearn.__all__ else None
