"""The modes of a posterior: where their chains are, what they weigh, and how much their components differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import COLOURS, INK, clear_frame, make_figure
from nmf_zoo.results.modes import DECIDED, LEFT_OUT, require_modes

FAINT = "#9aa3b2"  # what is left out, or passed over
FEW = 12  # modes whose cosines are written into their cells


@names_checked
def plot_modes(idata: Any) -> Any:
    """Draw the modes that :func:`~nmf_zoo.weigh_modes` found; returns the matplotlib Figure.

    Four panels: the mean lp of each half of every chain, with its standard deviation, in the colour of the chain's mode
    (a chain that has settled has two equal halves); the log evidence of every mode below the best, with three errors;
    the shares, with their 5% and 95% quantiles, or "undecided" or "left out" in their place; and the cosine of every
    component with that of the best mode, dark where they are the same.
    """
    modes = require_modes(idata)
    n = modes.sizes["mode"]
    figure = make_figure(figsize=(9.0, 5.0 + 0.22 * max(0, n - 4)), layout="constrained")
    (of_lp, of_evidence), (of_cosine, of_share) = figure.subplots(2, 2)
    _draw_lp(of_lp, modes, _compat.group(idata, "sample_stats"))
    _draw_evidence(of_evidence, modes)
    _draw_shares(of_share, modes)
    _draw_cosines(of_cosine, modes, figure)
    return figure


def colour_of(mode: int, modes: xr.Dataset) -> str:
    """Grey for a mode that is left out, and for a chain in none."""
    if mode < 0 or modes["verdict"].to_numpy()[mode] == LEFT_OUT:
        return FAINT
    return COLOURS[mode % len(COLOURS)]


def _draw_lp(axes: Any, modes: xr.Dataset, stats: xr.Dataset) -> None:
    """Both halves of every chain, side by side."""
    chains, mode_of_chain = modes["chain"].to_numpy(), modes["mode_of_chain"].to_numpy()
    if "lp" not in stats:
        axes.text(0.5, 0.5, "no lp was kept", ha="center", transform=axes.transAxes, fontsize=8)
        axes.set_axis_off()
        return
    lp = stats["lp"].transpose("chain", "draw").to_numpy()
    half = lp.shape[1] // 2
    for place, (own, mode) in enumerate(zip(lp, mode_of_chain, strict=True)):
        for shift, part in ((-0.15, own[:half]), (0.15, own[-half:])):
            axes.errorbar(
                place + shift, part.mean(), part.std(), color=colour_of(mode, modes), marker="o", ms=3, lw=1.2
            )
    axes.set_xticks(np.arange(len(chains)), [str(chain) for chain in chains])
    axes.set(xlabel="chain, its first and second half", ylabel="lp, mean and sd")
    axes.ticklabel_format(axis="y", useOffset=False)
    clear_frame(axes)


def _draw_evidence(axes: Any, modes: xr.Dataset) -> None:
    """Below the best, with three errors."""
    values, errors = (modes[name].to_numpy() for name in ("log_evidence", "log_evidence_error"))
    best = values[0] if np.isfinite(values[0]) else 0.0
    for mode, (value, error) in enumerate(zip(values - best, errors, strict=True)):
        if np.isfinite(value):
            how = {"color": colour_of(mode, modes), "marker": "o", "ms": 4, "capsize": 3, "lw": 1.2}
            axes.errorbar(value, mode, xerr=3 * error, **how)
        else:
            axes.text(
                0.02, mode, "no estimate", va="center", fontsize=8, color=INK, transform=axes.get_yaxis_transform()
            )
    axes.axvline(0.0, color=INK, lw=0.8, ls=":")
    title = f"best: {best:,.2f} ± {errors[0]:.2g}" if np.isfinite(values[0]) else ""
    axes.set_title(title, fontsize=9, loc="left")
    axes.set(xlabel="log evidence less the best's (nats), ± 3 errors")
    _name_modes(axes, modes)


def _draw_shares(axes: Any, modes: xr.Dataset) -> None:
    """Bars where there are shares, words where there are none."""
    shares, low, high = (modes[name].to_numpy() for name in ("share", "share_low", "share_high"))
    verdicts = modes["verdict"].to_numpy()
    for mode, share in enumerate(shares):
        if verdicts[mode] != DECIDED:
            axes.text(0.01, mode, str(verdicts[mode]), va="center", fontsize=8, color=INK)
            continue
        axes.barh(mode, share, height=0.6, color=colour_of(mode, modes), alpha=0.85)
        ends = np.array([[share - low[mode]], [high[mode] - share]]).clip(0.0)
        axes.errorbar(share, mode, xerr=ends, color=INK, lw=1.0, capsize=2)
        axes.text(high[mode] + 0.02, mode, f"{share:.3g}", va="center", fontsize=8, color=INK)
    axes.set(xlim=(0.0, 1.12), xticks=[0, 0.25, 0.5, 0.75, 1.0], xlabel="share of the posterior in these modes")
    _name_modes(axes, modes)


def _draw_cosines(axes: Any, modes: xr.Dataset, figure: Any) -> None:
    """(mode, component), each with the best mode's."""
    cosine = modes["cosine"].transpose("mode", ...)
    component = cosine.dims[1]
    image = axes.imshow(cosine.to_numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    if cosine.size <= FEW * FEW:
        for (mode, k), value in np.ndenumerate(cosine.to_numpy()):
            ink = "white" if value > 0.6 else INK
            axes.text(k, mode, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    labels = cosine[component].to_numpy() if component in cosine.coords else np.arange(cosine.shape[1])
    shown = np.arange(0, len(labels), max(1, len(labels) // 10))
    axes.set_xticks(shown, [str(labels[k]) for k in shown], fontsize=8)
    axes.set(xlabel=f"{component}: cosine with the best mode's", yticks=[])
    _name_modes(axes, modes)
    figure.colorbar(image, ax=axes, ticks=[0.0, 0.5, 1.0])


def _name_modes(axes: Any, modes: xr.Dataset) -> None:
    """The best mode at the top."""
    axes.set_yticks(np.arange(modes.sizes["mode"]), [f"mode {mode}" for mode in modes["mode"].to_numpy()], fontsize=8)
    axes.set_ylim(modes.sizes["mode"] - 0.5, -0.5)
    clear_frame(axes)
