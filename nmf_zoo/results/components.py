"""Components as people read them: their top features, and W with columns that sum to one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import check_word
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import dims_in, draws_in_order, is_aligned
from nmf_zoo.results.factor_draws import missing_variable, weights_of
from nmf_zoo.results.posterior import (
    INTERVAL,
    LEADING,
    best_chain,
    draw_parts,
    draws_or_means,
    mean_over_draws,
    only_draws,
    posterior_group,
)
from nmf_zoo.runtime.arguments import check_counts

ORDERS = ("weight", "specificity")


@names_checked
def top_features(
    idata: Any,
    n: int = 10,
    *,
    chain: int | None = None,
    by: Literal["weight", "specificity"] = "weight",
    weights: str = "W",
    activations: str = "H",
) -> pd.DataFrame:
    """The features that name each component.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    n : features per component
    chain : whose draws to average; None for the chains that are in the mode of the best one, of a fit for the best
        restart. Components have the result's order in every chain: the largest first, unless the model labels them
    by : "weight": the largest mean weight; "specificity": share * log(share / mean share over the components), which
        passes over features that are large in every component
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with columns component, place (from 1), feature, weight (posterior mean), share (posterior mean of its
    part of the component's total; of means alone the mean weight's part of the mean total), and share_low
    and share_high, the ends of its 90 % interval: NaN of a point estimate or of means.
    ``.pivot(index="place", columns="component", values="feature")`` gives a table

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 8], [0, 1]], rank=1, coords={"feature": ["sun", "rain"]})
    >>> idata = nz.sample(50, tune=50, chains=1, random_seed=1, quiet=True, model=model)
    >>> list(nz.top_features(idata, n=1)["feature"])
    ['sun']
    """
    check_counts(n=(n, 1))
    check_word("by", by, ORDERS)
    dims = dims_in(idata, weights, activations)
    chains = draws_in_order(idata, chain, weights, activations, names=[weights])
    of_chains = [one[weights][0].drop_vars("chain", errors="ignore") for one in chains]
    weight = mean_of(mean_over_draws(W) for W in of_chains).transpose(dims.feature, dims.component)
    share = mean_of(mean_over_draws(W, partial(_shares, dims.feature)) for W in of_chains).transpose(*weight.dims)
    order = np.argsort(-_score(by, weight, share), axis=0, kind="stable")[:n]
    tables = []
    for k, top in enumerate(order.T):
        few = [_few_shares(W, dims.feature, top, {dims.component: k}) for W in of_chains if W.sizes["draw"] > 1]
        tables.append(_ranked(weight, share, few, top, k))
    return pd.concat(tables, ignore_index=True)


def mean_of(arrays: Iterable[xr.DataArray]) -> xr.DataArray:
    found = list(arrays)
    return sum(found[1:], found[0]) / len(found)


def _shares(feature: Any, W: xr.DataArray) -> xr.DataArray:
    return W / _positive(W.sum([feature]))


def _few_shares(W: xr.DataArray, feature: Any, top: np.ndarray, component: dict[Any, int]) -> np.ndarray:
    """(draw, top) shares of some features in one component, a part of the draws at a time."""
    one = W.isel(component).transpose("draw", feature)
    parts = draw_parts(one.sizes["draw"], one.nbytes // one.sizes["draw"])
    return np.concatenate([_shares(feature, one.isel(draw=part).compute()).to_numpy()[:, top] for part in parts])


def joined(chains: Iterable[xr.Dataset]) -> xr.Dataset:
    """The draws of several chains as those of one, (1, draws of all, ...); of their means one mean."""
    parts = [one.assign_coords(chain=[0]) for one in chains]
    if len(parts) == 1:
        return parts[0]
    whole = xr.concat(parts, dim="draw")
    if all(one.sizes["draw"] == 1 for one in parts):  # how chains' means differ is no interval
        return whole.mean("draw", keepdims=True).assign_coords(draw=[0])
    return whole.assign_coords(draw=np.arange(whole.sizes["draw"]))


def _score(by: str, weight: xr.DataArray, share: xr.DataArray) -> np.ndarray:
    if by == "weight":
        return weight.to_numpy()
    p = share.to_numpy()
    mean = p.mean(axis=1, keepdims=True)
    return p * np.log(np.where(p > 0, p, 1.0) / np.where(mean > 0, mean, 1.0))


def _ranked(
    weight: xr.DataArray, share: xr.DataArray, draws: list[np.ndarray], order: np.ndarray, k: int
) -> pd.DataFrame:
    """A component's top features in ``order``; ``draws`` (draw, feature) of each chain are those of their shares."""
    feature, component = weight.dims
    low, high = np.quantile(np.concatenate(draws), INTERVAL, axis=0) if draws else np.full((2, len(order)), np.nan)
    return pd.DataFrame(
        {
            "component": _labels(weight, component)[k],
            "place": np.arange(1, len(order) + 1),
            "feature": _labels(weight, feature)[order],
            "weight": weight.to_numpy()[order, k],
            "share": share.to_numpy()[order, k],
            "share_low": low,
            "share_high": high,
        }
    )


def _labels(array: xr.DataArray, dim: Any) -> np.ndarray:
    return array[dim].to_numpy() if dim in array.coords else np.arange(array.sizes[dim])


def mean_weights(idata: Any, weights: str = "W", activations: str = "H") -> pd.DataFrame:
    """The posterior mean of W (features, components), labelled: of the best chain; of aligned draws of all in its mode.

    Components have the result's order. Of draws as they are: a column has the scale that it was sampled with.
    """
    return _mean_factor(idata, weights, weights, activations)


def mean_activations(idata: Any, weights: str = "W", activations: str = "H") -> pd.DataFrame:
    """The same of H (components, samples)."""
    return _mean_factor(idata, activations, weights, activations).T


def _mean_factor(idata: Any, name: str, weights: str, activations: str) -> pd.DataFrame:
    """The mean of one of the factors, its components in the columns."""
    chain = None if is_aligned(idata) else int(draws_or_means(idata)["chain"][best_chain(idata)])
    chains = list(draws_in_order(idata, chain, weights, activations))
    if name not in chains[0]:
        raise missing_variable(chains[0], name)
    _, component = weights_of(chains[0], weights, activations)
    (cells,) = (dim for dim in chains[0][name].dims if dim not in {*LEADING, component})
    mean = mean_of(mean_over_draws(one[name])[0] for one in chains).transpose(cells, component)
    return pd.DataFrame(mean.to_numpy(), index=_labels(mean, cells), columns=_labels(mean, component))


@names_checked
def unit_sum(idata: Any, *, weights: str = "W", activations: str = "H") -> Result:
    """Draws with W's columns summing to one and H scaled up to match: W H does not change.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    weights, activations : names of the two factors

    Returns
    -------
    A new InferenceData or DataTree for reading and plotting. Hyperparameters and ``lp`` still belong to the draws as
    they were sampled, and an attribute says so. A column of zeros stays as it is. Moments beside the draws are left
    out.
    """
    idata = only_draws(idata)
    names = [name for name in ("posterior", "warmup_posterior") if name in _compat.group_names(idata)]
    if not names:
        posterior_group(idata)  # says what is missing
    changed: dict[str, xr.Dataset] = {
        name: _unit_sum(_compat.group(idata, name), weights, activations) for name in names
    }
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata)}
    note = f"columns of {weights} sum to 1; lp and hyperparameters are those of the draws before"
    return _compat.of_kind(idata, {**groups, **changed}, {**idata.attrs, "rescaled": note})


def component_shares(idata: Any, chain: int | None = None, weights: str = "W", activations: str = "H") -> xr.DataArray:
    """(draw, component, feature) shares of the features in each component, in order: of one chain, or of all shown."""
    dims = dims_in(idata, weights, activations)
    W = joined(draws_in_order(idata, chain, weights, activations, names=[weights]))[weights]
    shares = _shares(dims.feature, W)[0].drop_vars("chain")
    own = {dims.feature: "feature", dims.component: "component"}
    return shares.rename(own).transpose("draw", "component", "feature")


def activations_and_totals(
    idata: Any, chain: int | None = None, weights: str = "W", activations: str = "H"
) -> tuple[xr.DataArray, np.ndarray]:
    """(H (draw, component, obs), sums of W's columns (draw, component)) in one chain, or in all shown.

    Their product is what components add to samples, sum_f w_fk h_kn.
    """
    group = joined(draws_in_order(idata, chain, weights, activations))
    W, component = weights_of(group, weights, activations)
    if activations not in group:
        raise missing_variable(group, activations)
    H = group[activations][0].drop_vars("chain")
    own = component if component in H.dims else next(dim for dim in H.dims if dim != "draw")
    (obs,) = (dim for dim in H.dims if dim not in {"draw", own})
    named = H.rename({own: "component", obs: "obs"}).transpose("draw", "component", "obs").assign_attrs(obs=str(obs))
    return named, _totals(W, component)[0].transpose("draw", component).to_numpy()


def _unit_sum(group: xr.Dataset, weights: str, activations: str) -> xr.Dataset:
    W, component = weights_of(group, weights, activations)
    if activations not in group:
        raise missing_variable(group, activations)
    H = group[activations]
    total = _totals(W, component)
    of_h = total if component in H.dims else total.rename({component: H.dims[2]})
    return group.assign({weights: (W / total).transpose(*W.dims), activations: (H * of_h).transpose(*H.dims)})


def _totals(W: xr.DataArray, component: Any) -> xr.DataArray:
    """The sums of W's columns, 1 for a column of zeros."""
    return _positive(W.sum([dim for dim in W.dims if dim not in {*LEADING, component}]))


def _positive(total: xr.DataArray) -> xr.DataArray:
    """The sums of columns, 1 for a column of zeros."""
    return total.where(total > 0, 1.0)
