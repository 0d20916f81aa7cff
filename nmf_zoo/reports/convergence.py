"""The section on convergence: what was checked, and in a sentence what to do.

What does not depend on the labels of components, ``lp`` and cells of W H, decides whether the posterior was reached;
aligned components whether single columns of W can be read. Raw R-hat stands beside it: it is what ArviZ would say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nmf_zoo import __version__, _compat
from nmf_zoo.diagnostics.convergence import Sentence, judge, longer, of_fit, of_sampler, with_coverage
from nmf_zoo.diagnostics.invariants import Advice, advise_on_fit, last_objectives, run_size
from nmf_zoo.errors import number_of
from nmf_zoo.inference.registry import is_maximised, named
from nmf_zoo.plots.modes import plot_modes
from nmf_zoo.reports.page import advice, facts, heading, paragraph, picture, table
from nmf_zoo.reports.source import Source
from nmf_zoo.results.beginnings import search_group
from nmf_zoo.results.component_order import REPORT
from nmf_zoo.results.groups import COVERAGE
from nmf_zoo.results.modes import describe_modes, weighed_modes
from nmf_zoo.results.run_attributes import GRAPH, MODEL

PACKAGES = ("pymc", "arviz", "numba", "numpy", "xarray")
LIBRARY = ("inference_library", "inference_library_version")
SHOWN = {"engine", "options", "random_seed", "seconds", "status", *LIBRARY, MODEL, GRAPH, COVERAGE}


def run_parts(source: Source) -> list[str]:
    attrs = source.attrs
    library = " ".join(str(attrs.get(name, "")) for name in LIBRARY).strip()
    pairs = [
        ("engine", str(attrs.get("engine", "not said"))),
        ("options", options_text(attrs.get("options"))),
        ("kept", source.draws_text if source.has("posterior") else f"mean and sd of {source.draws_text}"),
        ("seed", str(attrs.get("random_seed", "not said"))),
        ("time", f"{float(attrs['seconds']):.1f} s" if "seconds" in attrs else "not said"),
        ("status", str(attrs.get("status", "not said"))),
        ("made with", library or "not said"),
    ]
    pairs += [(name.replace("_", " "), str(value)) for name, value in sorted(attrs.items()) if name not in SHOWN]
    here = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return [facts(pairs), paragraph(f"This page was written by nmf_zoo {__version__} with {here}.")]


def options_text(options: Any) -> str:
    """``moves scale, shear; trajectories auto``"""
    try:
        given = json.loads(options)
    except (TypeError, ValueError):
        return str(options) if options else "not said"
    return "; ".join(f"{name} {_plain(value)}" for name, value in given.items()) or "none"


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


# -- convergence -----------------------------------------------------------------------------------------------------


WORST = 6  # cells of W H, and components, that are shown
RAW_IS_BAD = 1.1  # R-hat from which swapped components are pointed out


class Findings(NamedTuple):
    """The verdict, the sentences, and the tables and paragraphs behind them."""

    verdict: Sentence | None
    advice: list[Advice]
    parts: list[str]

    @property
    def html(self) -> list[str]:
        return [*(advice(one.text, one.is_warning) for one in self.advice), *self.parts]


def check_convergence(source: Source) -> Findings:
    """What the kind of result allows to be said."""
    if source.is_stream:
        text = "A stream has no end at which it could have converged: see below how the components moved."
        return Findings(None, [], [paragraph(text)])
    found = _of_fit(source) if source.is_fit else _of_sampler(source)
    assert found.verdict is not None  # only a stream has none
    return found._replace(verdict=with_coverage(found.verdict, source.coverage))


def _of_fit(source: Source) -> Findings:
    """Restarts, best first."""
    fit, engine = source.group("fit"), str(source.attrs.get("engine"))
    better = f", {'higher' if is_maximised(engine) else 'lower'} is better" if named(engine, "fit") else ""
    objective = last_objectives(fit)
    names = ("iterations", "residual", "status", "reason")
    columns = [fit[name].to_numpy() for name in names]
    rows = [
        (str(chain), f"{value:.8g}", str(its), f"{residual:.2g}", str(status), str(reason))
        for chain, value, its, residual, status, reason in zip(fit["chain"].values, objective, *columns, strict=True)
    ]
    head = ("restart", "objective", "iterations", "residual", "status", "why")
    shown = table(f"Restarts, the best first (objective{better})", head, rows, texts=("status", "why"))
    sentences = list(advise_on_fit(fit, search_group(source.idata)))
    return Findings(of_fit(sentences), sentences, [shown])


def _of_sampler(source: Source) -> Findings:
    """Invariants, then components."""
    found = judge(source.idata if source.aligned is None else source.aligned, source.weights, source.activations)
    sentences, parts = found.advice, []
    if len(found.invariants):
        summary = found.invariants
        cells = summary.drop(index="lp", errors="ignore").sort_values("rhat", ascending=False)
        shown = summary.loc[[*summary.index.intersection(["lp"]), *cells.index[:WORST]]]
        caption = (
            f"Log joint density, and the worst {min(WORST, len(cells))} of {len(cells)} cells of W H (row, column)"
        )
        parts += [heading("What does not depend on the order of components"), _table(caption, shown, _INVARIANTS)]
    if found.components is None:
        parts += [_COMPONENT_TITLE, paragraph(f"Not judged: {source.why_unaligned}.")]
    else:
        sentences += list(_on_raw(found.components))
        parts += _component_parts(source, found.components)
    parts += _mode_parts(source)
    run = longer(source.attrs, run_size(source.idata)[1])
    return Findings(of_sampler(sentences, run, found.mode, found.weighed), sentences, parts)


def _mode_parts(source: Source) -> list[str]:
    """What the modes weigh, where they have been weighed."""
    modes = weighed_modes(source.idata)
    if modes is None:
        return []
    text = describe_modes(modes)
    caption = "Chains by mode, the evidence within each mode, its share, and how near its components are to the best's"
    return [
        heading("Modes"),
        paragraph(text),
        picture(plot_modes(source.idata), "The modes that chains are in", caption),
    ]


_COMPONENT_TITLE = heading("Components, aligned between draws and chains")
_INVARIANTS = {"mean": ".6g", "sd": ".3g", "rhat": ".3f", "ess_bulk": ",.0f", "ess_tail": ",.0f"}
_COMPONENTS = {"rhat": ".3f", "rhat_raw": ".3f", "ess_bulk": ",.0f", "ess_tail": ",.0f", "became": ""}
_NAMES = {
    "rhat": "R-hat",
    "rhat_raw": "raw R-hat",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
    "became": "in the worst chain",
}


def _component_parts(source: Source, found: pd.DataFrame) -> list[str]:
    """R-hat of aligned components beside that of the draws as they came."""
    order = found["rhat"].fillna(0).sort_values(ascending=False, kind="stable").index
    shown = found if len(found) <= 2 * WORST else found.loc[order[: 2 * WORST]]
    left_out = f", the {len(shown)} worst of {len(found)}" if len(shown) < len(found) else ""
    caption = f"Columns of {source.weights} and rows of {source.activations}, each by its worst cell{left_out}"
    text = (
        f"Components were matched to those of one chain{_switches(source)}. Raw R-hat is that of the draws as they "
        "came: it is large when chains number the same components differently."
    )
    return [_COMPONENT_TITLE, paragraph(text), _table(caption, shown, _COMPONENTS, texts=("became",))]


def _switches(source: Source) -> str:
    if source.aligned is None:
        return ""
    n = int(_compat.group(source.aligned, REPORT)["switches"].sum())
    changed = f"changed {number_of(n, 'time')}" if n else "never changed"
    return f"; within chains their order {changed} from draw to draw"


def _on_raw(found: pd.DataFrame) -> Iterator[Advice]:
    """Says so where swapped components are all that is wrong with raw R-hat."""
    worst, raw = found["rhat"].max(), found["rhat_raw"].max()
    if raw > RAW_IS_BAD and worst - 1 < (raw - 1) / 4:
        text = f"The raw R-hat of up to {raw:.2f} comes from the order of components: once aligned it is {worst:.3f}."
        yield Advice(text, False, "raw")


def _table(caption: str, found: pd.DataFrame, formats: dict[str, str], texts: tuple[str, ...] = ()) -> str:
    rows = [(str(name), *(_cell(row[key], form) for key, form in formats.items())) for name, row in found.iterrows()]
    return table(caption, ("", *(_NAMES.get(key, key) for key in formats)), rows, [_NAMES[key] for key in texts])


def _cell(value: object, form: str) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return "-"
    return format(value, form)
