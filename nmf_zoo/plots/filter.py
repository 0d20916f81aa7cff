"""A particle filter: how many particles carry it, and what it says about each component in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, PLACES, clear_frame, make_figure, name_row, use_dates
from nmf_zoo.results.component_order import as_shown


@names_checked
def plot_filter(idata: Any, *, weights: str = "W", activations: str = "H") -> Any:
    """Draw a particle filter's effective numbers of particles, and its filtered beside the smoothed activations.

    Parameters
    ----------
    idata : result of ``nz.fit(engine="particle_em")``; its best restart is drawn
    weights, activations : names of the two factors

    Returns
    -------
    matplotlib Figure. Above, the effective number of particles at each time before resampling. Below, a row for each
    component, in the result's order: filtered mean (given the samples so far, line) with a band of two standard
    deviations, and the smoothed mean (given all samples, dotted)
    """
    wanted = ["ess", "resampled", f"{activations}_filtered", f"{activations}_filtered_sd", f"{activations}_mean"]
    group = as_shown(idata, _fit_group(idata, wanted).isel(chain=0), weights, activations)
    mean, sd, smoothed = (group[name] for name in wanted[2:])
    component, obs = mean.dims
    labels = mean[obs].to_numpy() if obs in mean.coords else np.arange(mean.sizes[obs])
    at = labels if labels.dtype.kind in PLACES else np.arange(len(labels))
    rank = mean.sizes[component]
    figure = make_figure(figsize=(9.0, 1.05 * rank + 2.2), layout="constrained")
    above, *rows = figure.subplots(rank + 1, 1, sharex=True, height_ratios=[1.4, *[1.0] * rank])
    above.plot(at, group["ess"].to_numpy(), color=INK, lw=0.8)
    above.set_ylabel("effective\nparticles", fontsize=8)
    above.set_title(f"resampled at {float(group['resampled']):.0%} of the times", fontsize=8, loc="right")
    above.set_ylim(bottom=0)
    for number, axes in enumerate(rows):
        middle, spread = mean[number].to_numpy(), 2 * sd[number].to_numpy()
        axes.fill_between(at, np.maximum(middle - spread, 0.0), middle + spread, color=ACCENT, alpha=0.3, lw=0)
        axes.plot(at, middle, color=INK, lw=0.9)
        axes.plot(at, smoothed[number].to_numpy(), ":", color=INK, lw=1.0)
        name = mean[component].to_numpy()[number] if component in mean.coords else number
        name_row(axes, name)
        axes.set_ylim(bottom=0)
    for axes in (above, *rows):
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    rows[-1].set_xlabel(str(obs), fontsize=8)
    if labels.dtype.kind == "M":
        use_dates(rows[-1].xaxis)
    figure.suptitle("Particle filter: effective particles; filtered (band: 2 sd) and smoothed (dotted)", fontsize=10)
    return figure


def _fit_group(idata: Any, wanted: list[str]) -> xr.Dataset:
    """The group ``fit`` of a particle filter's result."""
    has_fit = _compat.is_result(idata) and "fit" in _compat.group_names(idata)
    group = _compat.group(idata, "fit") if has_fit else xr.Dataset()
    missing = [name for name in wanted if name not in group]
    if missing:
        raise InputError(
            "idata", f"no {', '.join(missing)} in a group fit", 'the result of nz.fit(engine="particle_em")'
        )
    return group
