"""An optimiser's objective: how it came to its end, and how the restarts compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure


@names_checked
def plot_objective(idata: Any) -> Any:
    """Draw the objective of a fit by iteration, and its distance from the best value on a log scale.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.fit`; restarts are lines, the best one in the accent colour

    Returns
    -------
    matplotlib Figure
    """
    if not _compat.is_result(idata) or "fit" not in _compat.group_names(idata):
        raise InputError("idata", "no group fit", "the result of nz.fit", "plot_trace draws the lp of samplers")
    group = _compat.group(idata, "fit")
    if "objective" not in group:
        raise InputError("idata", "no objective, as of a stream", "the result of nz.fit")
    lines = group["objective"].transpose("chain", "iteration")
    iteration, values = lines["iteration"].to_numpy(), lines.to_numpy()
    last = np.array([row[np.isfinite(row)][-1] for row in values])
    is_rising = values[0][0] < last[0]
    best = np.nanmax(values) if is_rising else np.nanmin(values)
    figure = make_figure(figsize=(9.0, 3.4), layout="constrained")
    whole, gap = figure.subplots(1, 2)
    for number in range(len(values))[::-1]:  # the best restart is the first, and comes on top
        style = {"color": ACCENT if number == 0 else INK, "lw": 1.4 if number == 0 else 0.8}
        style["alpha"] = 1.0 if number == 0 else 0.6
        whole.plot(iteration, values[number], **style, label="best restart" if number == 0 else "_")
        distance = np.abs(values[number] - best)
        gap.plot(iteration, np.where(distance > 0, distance, np.nan), **style)
    gap.set_yscale("log")
    whole.set(xlabel="iteration", ylabel="objective")
    gap.set(xlabel="iteration", ylabel="distance from the best value")
    if len(values) > 1:
        whole.legend(frameon=False, fontsize=8)
    for axes in (whole, gap):
        clear_frame(axes)
    figure.suptitle(f"{idata.attrs.get('engine', '')}: {number_of(len(values), 'restart')}", fontsize=10)
    return figure
