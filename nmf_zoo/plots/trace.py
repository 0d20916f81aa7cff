"""A run's trace: the log joint density draw by draw, or an optimiser's objective by iteration."""

from __future__ import annotations

from typing import Any

from nmf_zoo import _compat
from nmf_zoo.plots.figure import clear_frame, make_figure


def plot_trace(idata: Any) -> Any:
    """Draw the log joint density draw by draw, or an optimiser's objective by iteration; returns the Figure."""
    is_fit = "fit" in _compat.group_names(idata)
    group = _compat.group(idata, "fit" if is_fit else "sample_stats")
    lines, along = (group["objective"], "iteration") if is_fit else (group["lp"], "draw")
    figure = make_figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for label, line in zip(lines["chain"].to_numpy(), lines.transpose("chain", along).to_numpy(), strict=True):
        axes.plot(
            lines[along].to_numpy(), line, lw=0.9, alpha=0.85, label=f"{'restart' if is_fit else 'chain'} {label}"
        )
    axes.set(xlabel=along, ylabel="objective" if is_fit else "log joint density", title=idata.attrs.get("engine", ""))
    axes.legend(frameon=False, fontsize=8)
    clear_frame(axes)
    return figure
