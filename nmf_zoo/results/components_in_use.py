"""How many components a result uses, where its rank was chosen too large and its prior shrinks what is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import component_order, reordered, with_names
from nmf_zoo.results.factor_draws import (
    RELEVANCES,
    factor_dims,
    log_of,
    log_totals,
    relevances_in,
    with_whole_relevances,
)
from nmf_zoo.results.posterior import INTERVAL, LEADING, draws_or_means, with_known_weights
from nmf_zoo.results.trace_storage import MOMENTS

LEAST = 0.05


@names_checked
def components_in_use(
    idata: Any,
    *,
    least: float = LEAST,
    chain: int | None = None,
    weights: str = "W",
    activations: str = "H",
    relevance: str | None = None,
) -> xr.Dataset:
    """How many components are in use, in every draw and in all.

    A component's size is its part of W H, ``sum_f w_fk * sum_n h_kn``. It is in use where that is at least ``least``
    times the largest component's, and where the square of its relevance is, too, if the model has one: the mean of its
    cells in both W and H, as with ``prior="ard"`` (of half-normal cells the variance itself, of rates the inverse);
    known components have none. So the largest component always is, components that are all alike all are, and neither
    the unit of X nor further empty components change the count.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    least : part of the largest component that counts, between 0 and 1
    chain : whose draws; default those of all chains, and of a fit the best restart's
    weights, activations : names of the two factors
    relevance : name of the means (component) that W and H share; default what :class:`~nmf_zoo.ARD` declares

    Returns
    -------
    Dataset with ``count`` (chain, draw), ``share`` (chain, draw, component), what each component is of all of W H, and
    ``probability`` (chain, component) of being in use. ``attrs``: ``count``, the most frequent one (of several the
    smallest), ``lower`` and ``upper``, the ends of its 90 % interval over the draws, and ``answer``, which says so

    Raises
    ------
    InputError : ``least`` beyond (0, 1], no result, a name or a chain that is not there

    Notes
    -----
    The draws of a fit by EM are one point, and those of VB come from q, in which a count varies less than in the
    posterior. A prior that does not shrink may leave surplus components in use; :func:`~nmf_zoo.select_rank` compares
    ranks under any. After a run that kept moments only, the count is that of each chain's means, and there is no
    interval.

    References
    ----------
    V. Y. F. Tan, C. Fevotte (2013), count the relevances that are above the least that their prior allows, which only a
    mode reaches (see :class:`~nmf_zoo.ARD`).

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[40, 0, 35], [0, 50, 2]], rank=2, prior="ard")
    >>> idata = nz.fit(model=model, engine="vb", random_seed=1, quiet=True)
    >>> nz.components_in_use(idata).attrs["count"]
    2
    """
    if isinstance(least, bool) or not isinstance(least, int | float | np.number) or not 0 < least <= 1:
        raise InputError("least", repr(least), "a number above 0 and at most 1")
    group = _chosen(idata, chain, weights, activations, relevance)
    dims = factor_dims(group, weights, activations)
    if dims.obs is None:
        raise not_one_of("activations", activations, map(str, group.data_vars))
    logs = log_totals(group, dims)
    is_used = _is_large(logs, least)
    for name in [relevance] if relevance else relevances_in(group):
        own = _relevances(group, name, logs.sizes["component"], is_asked=relevance is not None)
        if own is not None:
            powers = RELEVANCES.get(name, 2.0) * own.copy(data=log_of(own.to_numpy()))
            is_used &= _is_large(powers, least) | powers.isnull()
    count = np.maximum(is_used.sum("component"), 1)
    with np.errstate(invalid="ignore"):
        parts = np.exp((logs - logs.max("component")).to_numpy())
    shares = logs.copy(data=np.nan_to_num(parts))  # nothing at all: no shares
    has_draws = MOMENTS not in _compat.group_names(idata)
    table = xr.Dataset(
        {
            "count": count,
            "share": shares / np.maximum(shares.sum("component"), 1.0),
            "probability": is_used.mean("draw"),
        }
    )
    return table.assign_attrs(_answer(count.to_numpy().ravel(), logs.sizes["component"], least, has_draws))


def _chosen(idata: Any, chain: int | None, weights: str, activations: str, relevance: str | None) -> xr.Dataset:
    """The draws of one chain, of the best restart of a fit, or of all chains; their components in order."""
    group = with_known_weights(idata, draws_or_means(idata), weights)
    found = component_order(idata, weights, activations)
    if found is not None:
        dims = factor_dims(group, weights, activations)
        group = with_whole_relevances(group, dims)
        named = () if relevance is None else (relevance,)
        group = with_names(reordered(group, dims, found["order"].to_numpy(), named), found, dims)
    if chain is None:
        return group.isel(chain=[0]) if "fit" in _compat.group_names(idata) else group
    if chain not in group["chain"].to_numpy():
        raise InputError("chain", repr(chain), f"one of {group['chain'].to_numpy().tolist()}")
    return group.sel(chain=[chain])


def _is_large(logs: xr.DataArray, least: float) -> xr.DataArray:
    """Of at least this part of the largest; where all are 0, none."""
    return (logs >= logs.max("component") + np.log(least)) & np.isfinite(logs)


def _relevances(group: xr.Dataset, name: str, rank: int, *, is_asked: bool) -> xr.DataArray | None:
    """(chain, draw, component), or None where there are none."""
    found = group.get(name)
    is_one = found is not None and found.ndim == 3 and found.shape[2] == rank
    if is_asked and not is_one:
        got = "no such variable" if found is None else f"one of shape {found.shape[2:]}"
        raise InputError("relevance", f"{name!r}, {got}", f"a variable of shape ({rank},), one value per component")
    if found is None or not is_one:
        return None
    own = next(dim for dim in found.dims if dim not in LEADING)
    return found.rename({own: "component"}).drop_vars("component", errors="ignore")


def _answer(counts: np.ndarray, rank: int, least: float, has_draws: bool) -> dict[str, Any]:
    """What is said of the counts; those of means, one of each chain, have no interval."""
    values, times = np.unique(counts, return_counts=True)
    best = int(values[np.argmax(times)])
    lower, upper = (int(end) for end in np.quantile(counts, INTERVAL, method="inverted_cdf"))
    spread = f" (90 % interval {lower} to {upper})" if has_draws and counts.size > 1 else ""
    are = f"component{'s' if rank > 1 else ''} {'is' if best == 1 else 'are'} in use"
    said = f"{best} of {rank} {are}{spread}: at least {least:.3g} times the largest."
    ends = {"lower": lower, "upper": upper} if has_draws else {}
    return {"count": best, **ends, "answer": said}
