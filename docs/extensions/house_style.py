"""Docstrings say in words what numpydoc expects as ``name : type``; here they get the form that it lays out well.

What stands behind the colon of an entry, and runs on in the lines below, becomes the entry's description. What a
function returns, one paragraph in our docstrings, becomes a heading (``Dataset``) and the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

WIDTH = 110  # a first line so long that the next word did not fit runs on in the next line
SHORT = re.compile(r"[\w.]+(, optional| or None)?")  # a type and nothing else
HEADING = re.compile(r"(\. |; |: |, (?=with|which|by)| (?=with|as of|over|that) *)")


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=100)  # before numpydoc
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def process(app, what, name, obj, options, lines: list[str]) -> None:
    """Rewrite the sections in place."""
    lines[:] = [line for title, body in sections(lines) for line in rewritten(title, body)]


def sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(title, lines) of each section, the title's own two lines included; "" is what comes before the first."""
    starts = [at - 1 for at, line in enumerate(lines) if at and re.fullmatch("-{4,}", line)]
    for begin, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        yield (lines[begin] if begin in starts else ""), lines[begin:end]


def rewritten(title: str, body: list[str]) -> list[str]:
    """The lines of a section as numpydoc wants them."""
    form: Callable[[list[str]], list[str]] | None = {
        "Parameters": entries,
        "Attributes": entries,
        "Raises": entries,
        "Returns": returned,
        "References": listed,
    }.get(title)
    return [*body[:2], *form(body[2:])] if form else body


def entries(lines: list[str]) -> list[str]:
    """``name : words`` as a name and its description, unless the words are a type with a description of its own."""
    found: list[str] = []
    for at, line in enumerate(lines):
        name, colon, words = line.partition(" : ")
        below = lines[at + 1] if at + 1 < len(lines) else ""
        is_described = below.startswith("    ")
        runs_on = is_described and len(line) + len(below.split()[0]) >= WIDTH
        if colon and not line.startswith(" ") and (runs_on or not (is_described or SHORT.fullmatch(words))):
            found += [name, f"    {sentence(words)}"]
        else:
            found.append(line)
    return found


def sentence(words: str) -> str:
    """With a capital, unless they begin with a name of code."""
    return words[0].upper() + words[1:] if re.match(r"[a-z]+[ ,:;]", words) else words


def listed(lines: list[str]) -> list[str]:
    """A list item for each reference: one ends where its line ends with a full stop."""
    found, is_new = [], True
    for line in lines:
        found.append(("- " if is_new else "  ") + line if line else "")
        is_new = not line or line.endswith(".")
    return found


def returned(lines: list[str]) -> list[str]:
    """The heading of the paragraph, and what follows it, indented."""
    if len(lines) > 1 and lines[1].startswith("    "):
        return lines
    parts = HEADING.split(lines[0], maxsplit=1) if lines else []
    if len(parts) < 3:
        return lines
    rest = [sentence(parts[2]), *lines[1:]]
    return [parts[0], *(f"    {line}".rstrip() for line in rest)]
