"""Whether chains should be longer, asked of the statistics of a run that has just come to its end.

The limits are those of the verdict on a result, :mod:`nmf_zoo.diagnostics.invariants`: what goes on here would have
been advised there.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from nmf_zoo.diagnostics.invariants import CLEAR_RHAT, ESS_LIMIT, RHAT_LIMIT, ess, rhat
from nmf_zoo.diagnostics.modes import modes_of_chains


def what_lacks(draws: xr.Dataset) -> str:
    """What is wrong with R-hat or effective draws of lp and cells of W H, in words, where more sweeps can mend it.

    "" where nothing is, and where chains have settled in different modes, which no number of draws brings together.
    ``draws`` : invariants, (chain, draw, ...)
    """
    if not draws.data_vars:
        return ""
    worst = max(float(found.max()) for found in rhat(draws).data_vars.values())
    if worst > RHAT_LIMIT:
        modes = modes_of_chains(draws) if worst > CLEAR_RHAT else None
        return "" if modes is not None and len(modes) > 1 else f"R-hat is {worst:.3f}, {RHAT_LIMIT} at most is asked"
    least = min(float(found.min()) for found in ess(draws, "bulk").data_vars.values())
    enough = ESS_LIMIT * draws.sizes["chain"]
    return f"{least:.0f} effective draws, {enough} are asked" if np.round(least) < enough else ""
