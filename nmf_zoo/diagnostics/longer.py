"""Whether chains should be longer, asked of the statistics of a run that has just come to its end.

The limits are those of the verdict on a result, :mod:`nmf_zoo.diagnostics.invariants`: what goes on here would have
been advised there.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from nmf_zoo.diagnostics.invariants import CLEAR_RHAT, ESS_LIMIT, FEW_DRAWS, RHAT_LIMIT, ess, rhat
from nmf_zoo.diagnostics.modes import modes_of_chains


def what_lacks(draws: xr.Dataset) -> str:
    """What is wrong with R-hat or effective draws of lp and cells of W H, in words, where more sweeps can mend it.

    "" where nothing is, where there are too few draws to judge, and where chains have settled in different modes, which
    no number of draws brings together.
    ``draws`` : invariants, (chain, draw, ...)
    """
    if not draws.data_vars or draws.sizes["draw"] < FEW_DRAWS:
        return ""
    worst = max(_known(rhat(draws)), default=0.0)
    if worst > RHAT_LIMIT:
        modes = modes_of_chains(draws) if worst > CLEAR_RHAT else None
        return "" if modes is not None and len(modes) > 1 else f"R-hat is {worst:.3f}, {RHAT_LIMIT} at most is asked"
    least = min(_known(ess(draws, "bulk")), default=np.inf)
    enough = ESS_LIMIT * draws.sizes["chain"]
    return f"{int(least)} effective draws, {enough} are asked" if least < enough else ""


def _known(found: xr.Dataset) -> list[float]:
    values = np.concatenate([variable.to_numpy().ravel() for variable in found.data_vars.values()])
    return values[~np.isnan(values)].tolist()
