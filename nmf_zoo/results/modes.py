"""The group ``modes`` of a result: what the modes weigh that its chains are in, as ``nz.weigh_modes`` found."""

from __future__ import annotations

from typing import Any

import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, number_of

MODES = "modes"
POOLED = "pooled"  # an attribute of what nz.pool made: what the modes were
DECIDED, UNDECIDED, LEFT_OUT = "decided", "undecided", "left out"
WEIGHS_MODES = "weighs_modes"  # of a result, "yes" or "no": whether nz.weigh_modes has an evidence of its modes
BY_MODE = ("log_evidence", "log_evidence_error", "share", "share_low", "share_high", "verdict", "lp", "cosine")


def weighed_modes(idata: Any) -> xr.Dataset | None:
    """The group; None where there is none, or another library's of that name."""
    if not _compat.is_result(idata) or MODES not in _compat.group_names(idata):
        return None
    group = _compat.group(idata, MODES)
    dims = {**dict.fromkeys(BY_MODE, "mode"), "mode_of_chain": "chain"}
    is_ours = all(name in group and group[name].dims[:1] == (dim,) for name, dim in dims.items())
    return group if is_ours else None


def pooled_modes(idata: Any) -> str:
    """What the modes weighed that draws were pooled of; "" where they were not."""
    return str(idata.attrs.get(POOLED, ""))


def require_modes(idata: Any) -> xr.Dataset:
    """The group, or what to do."""
    modes = weighed_modes(idata)
    if modes is None:
        got = "a result whose modes have not been weighed"
        raise InputError("idata", got, f"one with the group {MODES}", "call nz.weigh_modes(idata, model) first")
    return modes


def describe_modes(modes: xr.Dataset) -> str:
    """What the group says, in a sentence: chains, evidence and share of every mode."""
    words = [_describe(modes, mode) for mode in range(modes.sizes["mode"])]
    size = "One mode" if len(words) == 1 else f"{len(words)} modes"
    return f"{size}: {'; '.join(words)}."


def _describe(modes: xr.Dataset, mode: int) -> str:
    one = modes.isel(mode=mode)
    chains = modes["chain"].to_numpy()[modes["mode_of_chain"].to_numpy() == mode]
    word, share = str(one["verdict"].item()), one["share"].item()
    weight = f"share {share:.3g}" if word == DECIDED else word
    evidence = f"log evidence {one['log_evidence'].item():,.2f} ± {one['log_evidence_error'].item():.2g}"
    found = (
        f", found by {int(one['found'])} of {number_of(int(modes.attrs['fits']), 'fit')}" if "found" in modes else ""
    )
    return f"{'chain' if len(chains) == 1 else 'chains'} {', '.join(map(str, chains))} ({evidence}, {weight}{found})"
