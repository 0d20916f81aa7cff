"""The section on convergence: what was checked, and in a sentence what to do.

What does not depend on the labels of components, ``lp`` and cells of W H, decides whether the posterior was reached;
aligned components whether single columns of W can be read. Raw R-hat stands beside it: it is what ArviZ would say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from nmf_zoo.diagnostics import ESS_LIMIT, FEWEST_DRAWS, RHAT_LIMIT, invariants, summarise
from nmf_zoo.inference import ENGINES
from nmf_zoo.workbench.align import REPORT
from nmf_zoo.workbench.component_diagnostics import summarise_components
from nmf_zoo.workbench.report.page import advice, heading, paragraph, table
from nmf_zoo.workbench.report.source import Source

WORST = 6  # cells of W H, and components, that are shown
RAW_IS_BAD = 1.1  # R-hat from which swapped components are pointed out


class Advice(NamedTuple):
    """A sentence, and whether it is a warning."""

    text: str
    is_warning: bool


class Findings(NamedTuple):
    """The sentences, and the tables and paragraphs behind them."""

    advice: list[Advice]
    parts: list[str]

    @property
    def html(self) -> list[str]:
        return [*(advice(*one) for one in self.advice), *self.parts]


def check_convergence(source: Source) -> Findings:
    """What the kind of result allows to be said."""
    if source.is_stream:
        text = "A stream has no end at which it could have converged: see below how the components moved."
        return Findings([], [paragraph(text)])
    return _of_fit(source) if source.is_fit else _of_sampler(source)


def _of_fit(source: Source) -> Findings:
    """Restarts, best first."""
    fit, engine = source.group("fit"), str(source.attrs.get("engine"))
    better = f", {'higher' if ENGINES[engine].maximise else 'lower'} is better" if engine in ENGINES else ""
    objective = np.array([row[np.isfinite(row)][-1] for row in fit["objective"].transpose("chain", ...).to_numpy()])
    names = ("iterations", "residual", "status", "reason")
    columns = [fit[name].to_numpy() for name in names]
    rows = [
        (str(chain), f"{value:.8g}", str(its), f"{residual:.2g}", str(status), str(reason))
        for chain, value, its, residual, status, reason in zip(fit["chain"].values, objective, *columns, strict=True)
    ]
    head = ("restart", "objective", "iterations", "residual", "status", "why")
    shown = table(f"Restarts, the best first (objective{better})", head, rows, texts=("status", "why"))
    return Findings(list(_advice_of_fit(fit, objective)), [shown])


def _advice_of_fit(fit: object, objective: np.ndarray) -> Iterator[Advice]:
    converged = fit["converged"].to_numpy()  # type: ignore[index]
    if not converged[0]:
        yield Advice("The best restart did not converge: raise max_iter, or look at why in the table.", True)
    else:
        yield Advice("The best restart converged.", False)
    if len(objective) == 1:
        yield Advice("One restart can't tell whether there is a better optimum: try restarts=10.", True)
    elif (gap := np.ptp(objective)) > 1e-3 * max(1.0, abs(objective[0])):
        yield Advice(f"The restarts ended {gap:.3g} apart: they found different optima. More restarts may help.", True)


def _of_sampler(source: Source) -> Findings:
    """Invariants, then components."""
    if not source.has("sample_stats") or not invariants(source.idata).data_vars:
        return Findings([], [paragraph("The result holds neither lp nor cells of W H that convergence is judged by.")])
    summary = summarise(source.idata)
    sentences = list(_advice_of_sampler(source, summary))
    cells = summary.drop(index="lp", errors="ignore").sort_values("rhat", ascending=False)
    shown = summary.loc[[*summary.index.intersection(["lp"]), *cells.index[:WORST]]]
    caption = f"Log joint density, and the worst {min(WORST, len(cells))} of {len(cells)} cells of W H (row, column)"
    parts = [heading("What does not depend on the order of components"), _table(caption, shown, _INVARIANTS)]
    more = _of_components(source)
    return Findings(sentences + more.advice, parts + more.parts)


_INVARIANTS = {"mean": ".6g", "sd": ".3g", "rhat": ".3f", "ess_bulk": ",.0f", "ess_tail": ",.0f"}
_COMPONENTS = {"rhat": ".3f", "rhat_raw": ".3f", "ess_bulk": ",.0f", "ess_tail": ",.0f", "became": ""}
_NAMES = {
    "rhat": "R-hat",
    "rhat_raw": "raw R-hat",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
    "became": "in the worst chain",
}


def _advice_of_sampler(source: Source, summary: pd.DataFrame) -> Iterator[Advice]:
    """In the words of the warnings of ``nz.sample``."""
    sizes = source.group("sample_stats").sizes
    worst, least = summary["rhat"].max(), summary["ess_bulk"].min()
    if sizes["draw"] < FEWEST_DRAWS:
        yield Advice(f"Only {sizes['draw']} draws per chain: too few to judge convergence; raise draws=.", True)
        return
    if sizes["chain"] == 1:
        yield Advice("One chain can't be compared with another, so R-hat is unknown: run chains=4.", True)
    elif worst > RHAT_LIMIT:
        where = f"R-hat of {summary['rhat'].idxmax()} is {worst:.3f}, above {RHAT_LIMIT}"
        yield Advice(f"The chains disagree: {where}. Draw longer (tune=, draws=), or look at each chain.", True)
    if least < ESS_LIMIT:
        where = f"{least:.0f} for {summary['ess_bulk'].idxmin()}, below {ESS_LIMIT}"
        yield Advice(f"Few effective draws: {where}. Means and intervals are rough; raise draws=.", True)
    elif sizes["chain"] > 1 and worst <= RHAT_LIMIT:
        yield Advice(f"W H converged: R-hat is at most {worst:.3f}, and there are {least:,.0f} effective draws.", False)
    stats = source.group("sample_stats")
    if "diverging" in stats and (n := int(stats["diverging"].sum())):
        yield Advice(f"{n} divergences: raise target_accept, or choose a prior that is less extreme near 0.", True)


def _of_components(source: Source) -> Findings:
    """R-hat of aligned components beside that of the draws as they came."""
    title = heading("Components, aligned between draws and chains")
    if source.aligned is None:
        return Findings([], [title, paragraph(f"Not judged: {source.why_unaligned}.")])
    found = summarise_components(source.aligned, **source.names)
    switches = int(source.aligned[REPORT]["switches"].sum())
    sentences = list(_advice_of_components(found))
    order = found["rhat"].fillna(0).sort_values(ascending=False, kind="stable").index
    shown = found if len(found) <= 2 * WORST else found.loc[order[: 2 * WORST]]
    left_out = f", the {len(shown)} worst of {len(found)}" if len(shown) < len(found) else ""
    caption = f"Columns of {source.weights} and rows of {source.activations}, each by its worst cell{left_out}"
    changed = f"changed {switches:,} time{'s' * (switches != 1)}" if switches else "never changed"
    text = (
        f"Components were matched to those of one chain; within chains their order {changed} from draw to draw. "
        "Raw R-hat is that of the draws as they came: it is large when chains number the same components differently."
    )
    return Findings(sentences, [title, paragraph(text), _table(caption, shown, _COMPONENTS, texts=("became",))])


def _advice_of_components(found: pd.DataFrame) -> Iterator[Advice]:
    worst, raw = found["rhat"].max(), found["rhat_raw"].max()
    lost = found[found["became"] != "matched"]
    if len(lost):
        by_component = {str(row).partition("[")[2].rstrip("]"): word for row, word in lost["became"].items()}
        named = ", ".join(f"{component} {word}" for component, word in by_component.items())
        text = f"Some components have no counterpart in every chain ({named}): read W H rather than these components."
        yield Advice(text, True)
    elif worst > RHAT_LIMIT:
        where = f"R-hat of {found['rhat'].idxmax()} is {worst:.3f} once aligned"
        yield Advice(f"Single components are not settled: {where}. Draw longer before reading them one by one.", True)
    if raw > RAW_IS_BAD and worst - 1 < (raw - 1) / 4:
        text = f"The raw R-hat of up to {raw:.2f} comes from the order of components: once aligned it is {worst:.3f}."
        yield Advice(text, False)


def _table(caption: str, found: pd.DataFrame, formats: dict[str, str], texts: tuple[str, ...] = ()) -> str:
    rows = [(str(name), *(_cell(row[key], form) for key, form in formats.items())) for name, row in found.iterrows()]
    return table(caption, ("", *(_NAMES.get(key, key) for key in formats)), rows, [_NAMES[key] for key in texts])


def _cell(value: object, form: str) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return "-"
    return format(value, form)
