"""HTML of a page that needs nothing but itself. Whatever text comes in is escaped here and nowhere else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from typing import Any

DPI = 120
# Nothing may be fetched, and nothing runs: the page shows the same wherever and whenever it is opened.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light; --ink: #22304a; --faint: #5b6577; --line: #d5dae3; --back: #f6f7f9; --accent: #a8441f; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 0 0 0.6rem; }
h3 { font-size: 1rem; margin: 1rem 0 0.4rem; }
nav ul { list-style: none; margin: 0.6rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.3rem 1rem; }
a { color: #1f4e9c; }
section { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 1rem; margin: 0 0 1rem; }
p { margin: 0.4rem 0; max-width: 46rem; }
.advice { border-left: 4px solid var(--ink); padding: 0.3rem 0.8rem; background: var(--back); }
.advice.warning { border-color: var(--accent); }
.advice strong { color: var(--ink); }
.advice.warning strong { color: var(--accent); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1rem; margin: 0.4rem 0; }
dt { color: var(--faint); }
dd { margin: 0; }
.wide { overflow-x: auto; margin: 0.6rem 0; }
.wide:focus-visible { outline: 2px solid #1f4e9c; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding-bottom: 0.3rem; }
th, td { overflow-wrap: break-word; padding: 0.2rem 0.7rem 0.2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th[scope="row"] { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
td.text { min-width: 9rem; max-width: 40rem; }
figure { margin: 0.6rem 0; }
figure img, figure svg { display: block; max-width: 100%; height: auto; }
@media (max-width: 640px) { figure img { max-width: none; width: 36rem; } }
figcaption { color: var(--faint); font-size: 0.9rem; max-width: 46rem; }
pre { white-space: pre-wrap; font-size: 0.85rem; background: var(--back); padding: 0.6rem; margin: 0.6rem 0; }
@media (max-width: 480px) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: 0.4rem; } }
@media print { section { break-inside: avoid-page; border: 0; } nav { display: none; } }
"""


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(text)}</p>"


def advice(text: str, is_warning: bool) -> str:
    """A sentence on what to do, marked by a word as well as by colour."""
    word = "Look at this: " if is_warning else "Good: "
    return f'<p class="advice{" warning" * is_warning}"><strong>{word}</strong>{escape(text)}</p>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs)}</dl>"


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """The first column names its row; the others are numbers but for those in ``texts``."""
    kinds = ["" if n == 0 else "text" if name in texts else "number" for n, name in enumerate(columns)]
    pairs = zip(columns, kinds, strict=True)
    head = "".join(
        f'<th scope="col"{_class(kind if kind == "number" else "")}>{escape(name)}</th>' for name, kind in pairs
    )
    body = "".join(f"<tr>{''.join(_cells(row, kinds))}</tr>" for row in rows)
    whole = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return scrolling(whole, caption)


def _cells(row: Sequence[str], kinds: Sequence[str]) -> Iterable[str]:
    for n, (cell, kind) in enumerate(zip(row, kinds, strict=True)):
        yield f'<th scope="row">{escape(cell)}</th>' if n == 0 else f"<td{_class(kind)}>{escape(cell)}</td>"


def scrolling(content: str, label: str) -> str:
    """What may be wider than a narrow window: it scrolls by itself, by keyboard too, and the page does not."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label, quote=True)}">{content}</div>'


def picture(drawn: Any, alt: str, caption: str = "") -> str:
    """A matplotlib Figure as PNG within the page; ``alt`` is the text that stands for it."""
    buffer = BytesIO()
    drawn.savefig(buffer, format="png", dpi=DPI, pil_kwargs={"optimize": True})
    data = b64encode(buffer.getvalue()).decode("ascii")
    width, height = (round(DPI * inches) for inches in drawn.get_size_inches())
    drawn.clear()  # its parts know each other: else they stay until Python looks for such rings
    source = f'src="data:image/png;base64,{data}" width="{width}" height="{height}"'
    return figure(f'<img {source} alt="{escape(alt, quote=True)}">', alt, caption)


def figure(content: str, label: str, caption: str = "") -> str:
    """An image or inline SVG with a caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{scrolling(content, label)}{below}</figure>"


def section(key: str, title: str, parts: Iterable[str]) -> str:
    head = f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>'
    return f"{head}{''.join(parts)}</section>"


def page(title: str, lead: Sequence[str], sections: Sequence[tuple[str, str, Sequence[str]]], foot: str) -> str:
    """The document: sections are (key, title, parts); lead are parts below the title."""
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(section(*one) for one in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{"".join(lead)}<nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main>
{body}
</main>
<footer><p>{escape(foot)}</p></footer>
</body>
</html>
"""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
