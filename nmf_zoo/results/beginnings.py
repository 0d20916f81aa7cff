"""Where the chains of a result began, which is what their agreement can show.

No chain leaves its mode. Those that began in one can only agree within it; those that began apart and agree show more.
"""

from __future__ import annotations

from typing import Any

import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import number_of
from nmf_zoo.results.run_attributes import GATHERED

START = "start"  # the attribute
RANDOM, BY_SEARCH, OF_FIT, ONE, EACH = "random", "search", "fit", "one point", "points of their own"
SEARCH = "search"  # the group
OPTIMUM_OF_CHAIN = "optimum_of_chain"  # in it, where chains began by a search


def search_group(idata: Any) -> xr.Dataset | None:
    """What a search found; None where there was none."""
    return _compat.group(idata, SEARCH) if SEARCH in _compat.group_names(idata) else None


def fits_to_the_end(search: xr.Dataset) -> int:
    """How many fits of a search went on to an optimum; the others fell behind them and were left."""
    return int(search.attrs["fits"]) - int(search.attrs.get("left", 0))


def beginning_of(idata: Any) -> tuple[dict[str, Any], xr.Dataset | None]:
    """Where chains begin that are given a result: how, as attributes, and the search that found it.

    Of a fit at its optimum; of chains where these are, so that nothing has changed since they began, and those that had
    gone on from others have.
    """
    search = search_group(idata)
    if "fit" in _compat.group_names(idata):
        return {START: OF_FIT if search is None else BY_SEARCH}, search
    gathered = {GATHERED: idata.attrs[GATHERED]} if GATHERED in idata.attrs else {}
    return {START: str(idata.attrs.get(START, EACH)), **gathered}, search


def one_mode(idata: Any) -> str:
    """The mode that all chains began in, after "within" or "in"; "" where they began apart, or nothing is known."""
    search, start, mode = search_group(idata), idata.attrs.get(START), ""
    if search is not None and start in (None, BY_SEARCH):
        mode = _searched(search)
    elif start in (OF_FIT, ONE):
        given = "fit" if start == OF_FIT else "one start"
        mode = f"the mode of the {given} that they were given, which says nothing of other modes"
    gathered = when_gathered(idata)
    return f"{mode}; {gathered}" if mode and gathered else mode


def when_gathered(idata: Any) -> str:
    """After how many sweeps chains went on from the state of others; "" where none did."""
    gathered = int(idata.attrs.get(GATHERED, 0))
    if not gathered:
        return ""
    return f"after {gathered:,} sweeps, when they did not agree, chains took up the state of another"


def began_at_several(idata: Any) -> bool:
    """Whether a search found several optima near the best, and chains began at each."""
    search = search_group(idata)
    return search is not None and OPTIMUM_OF_CHAIN in search and bool(search[OPTIMUM_OF_CHAIN].any())


def _searched(search: xr.Dataset) -> str:
    """``the mode that the search found 3 of 16 times; the next best lies 140 nats below``

    Several optima whose bounds are near are one mode, where chains that began at them agree.
    """
    near = int(search.attrs.get("near", 1))
    found = int(search["found"][:near].sum())
    text = f"the mode that the search found {found} of {number_of(fits_to_the_end(search), 'time')}"
    text += f", as {near} optima of the bound" if near > 1 else ""
    objective = search["objective"].to_numpy()
    if len(objective) == near:
        return text
    gap = abs(float(objective[near] - objective[0]))
    is_bound = objective[0] > objective[near]  # a bound on log p(X) rises, and its differences are nats
    return f"{text}; the next best {f'lies {gap:.3g} nats below' if is_bound else f'is {gap:.3g} worse'}"
