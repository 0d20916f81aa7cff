"""Components as people read them: their top features, and W with columns that sum to one."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.results.posterior import best_chain, draws_or_means, mean_over_draws, posterior_group
from nmf_zoo.runtime.arguments import check_counts

LEADING = {"chain", "draw"}
REPORT = "alignment"  # the group of a result whose chains number components alike
ORDERS = ("weight", "specificity")


def top_features(
    idata: Any,
    n: int = 10,
    *,
    chain: int = 0,
    by: Literal["weight", "specificity"] = "weight",
    weights: str = "W",
    activations: str = "H",
) -> pd.DataFrame:
    """The features that name each component.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    n : features per component
    chain : whose draws to average: components swap places between chains. Of a fit, 0 is the best restart
    by : "weight": the largest mean weight; "specificity": share * log(share / mean share over the components), which
        passes over features that are large in every component
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with columns component, place (from 1), feature, weight (posterior mean) and share (posterior mean of its
    part of the component's total; after ``keep="moments"`` the mean weight's part of the mean total).
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
    if by not in ORDERS:
        raise not_one_of("by", by, ORDERS)
    W, component = weights_of(_one_chain(idata, chain), weights, activations)
    W = W[0]
    (feature,) = (dim for dim in W.dims if dim not in {"draw", component})
    weight = mean_over_draws(W).transpose(feature, component)
    share = mean_over_draws(W, lambda part: part / _positive(part.sum([feature]))).transpose(feature, component)
    order = np.argsort(-_score(by, weight, share), axis=0, kind="stable")[:n]
    return pd.concat([_ranked(weight, share, order[:, k], k) for k in range(order.shape[1])], ignore_index=True)


def _one_chain(idata: Any, chain: int) -> xr.Dataset:
    """The draws (or the mean) of one chain, (1, draw, ...)."""
    group = draws_or_means(idata)
    if chain not in group["chain"].to_numpy():
        raise InputError("chain", repr(chain), f"one of {group['chain'].to_numpy().tolist()}")
    return group.sel(chain=[chain])


def _all_chains(idata: Any) -> xr.Dataset:
    """The draws of all chains as those of one, (1, chains * draws, ...)."""
    if REPORT not in _compat.group_names(idata):
        raise InputError(
            "chain", "None with chains that are not aligned", "the number of one chain", "or call nz.align"
        )
    group = draws_or_means(idata)
    parts = [group.isel(chain=[i]).assign_coords(chain=[0]) for i in range(group.sizes["chain"])]
    joined = xr.concat(parts, dim="draw")
    return joined.assign_coords(draw=np.arange(joined.sizes["draw"]))


def _score(by: str, weight: xr.DataArray, share: xr.DataArray) -> np.ndarray:
    if by == "weight":
        return weight.to_numpy()
    p = share.to_numpy()
    mean = p.mean(axis=1, keepdims=True)
    return p * np.log(np.where(p > 0, p, 1.0) / np.where(mean > 0, mean, 1.0))


def _ranked(weight: xr.DataArray, share: xr.DataArray, order: np.ndarray, k: int) -> pd.DataFrame:
    feature, component = weight.dims
    return pd.DataFrame(
        {
            "component": _labels(weight, component)[k],
            "place": np.arange(1, len(order) + 1),
            "feature": _labels(weight, feature)[order],
            "weight": weight.to_numpy()[order, k],
            "share": share.to_numpy()[order, k],
        }
    )


def _labels(array: xr.DataArray, dim: Any) -> np.ndarray:
    return array[dim].to_numpy() if dim in array.coords else np.arange(array.sizes[dim])


def mean_weights(idata: Any, weights: str = "W", activations: str = "H") -> pd.DataFrame:
    """The posterior mean of W (features, components), labelled: of all chains once they are aligned, else of the best.

    Of draws as they are: a column has the scale that it was sampled with.
    """
    is_aligned = REPORT in _compat.group_names(idata)
    group = draws_or_means(idata)
    group = group if is_aligned else group.isel(chain=[best_chain(idata)])
    W, component = weights_of(with_known_weights(idata, group, weights), weights, activations)
    (feature,) = (dim for dim in W.dims if dim not in LEADING | {component})
    mean = mean_over_draws(W).mean("chain").transpose(feature, component)
    return pd.DataFrame(mean.to_numpy(), index=_labels(mean, feature), columns=_labels(mean, component))


def unit_sum(idata: Any, *, weights: str = "W", activations: str = "H") -> Result:
    """Draws with W's columns summing to one and H scaled up to match: W H does not change.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    weights, activations : names of the two factors

    Returns
    -------
    A new InferenceData or DataTree for reading and plotting. Hyperparameters and ``lp`` still belong to the draws as
    they were sampled, and an attribute says so. A column of zeros stays as it is.
    """
    names = [name for name in ("posterior", "warmup_posterior") if name in _compat.group_names(idata)]
    if not names:
        posterior_group(idata)  # says what is missing
    changed: dict[str, xr.Dataset] = {
        name: _unit_sum(_compat.group(idata, name), weights, activations) for name in names
    }
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata)}
    note = f"columns of {weights} sum to 1; lp and hyperparameters are those of the draws before"
    return _compat.inference_data({**groups, **changed}, {**idata.attrs, "rescaled": note})


def component_shares(idata: Any, chain: int | None, weights: str = "W", activations: str = "H") -> xr.DataArray:
    """(draw, component, feature) shares of the features in each component of one chain; None for those of all.

    Chains must be aligned then: InputError.
    """
    group = _all_chains(idata) if chain is None else _one_chain(idata, chain)
    W, component = weights_of(group, weights, activations)
    (feature,) = (dim for dim in W.dims if dim not in LEADING | {component})
    shares = (W / _positive(W.sum([feature])))[0].drop_vars("chain")
    return shares.rename({feature: "feature", component: "component"}).transpose("draw", "component", "feature")


def component_sizes(idata: Any, chain: int, weights: str = "W", activations: str = "H") -> xr.DataArray:
    """(draw, component, obs) what components add to samples, sum_f w_fk h_kn, in one chain."""
    group = _unit_sum(with_known_weights(idata, _one_chain(idata, chain), weights), weights, activations)
    _, component = weights_of(group, weights, activations)
    H = group[activations][0].drop_vars("chain")
    own = component if component in H.dims else next(dim for dim in H.dims if dim != "draw")
    (obs,) = (dim for dim in H.dims if dim not in {"draw", own})
    named = H.rename({own: "component", obs: "obs"}).transpose("draw", "component", "obs")
    return named.assign_attrs(obs=str(obs))


def with_known_weights(idata: Any, group: xr.Dataset, weights: str) -> xr.Dataset:
    """The draws, joined by the weights where they were known, as those of a projection are."""
    if weights in group or "constant_data" not in _compat.group_names(idata):
        return group
    known = _compat.group(idata, "constant_data")
    if weights not in known:
        return group
    return group.assign({weights: known[weights].expand_dims({dim: group[dim] for dim in ("chain", "draw")})})


def _unit_sum(group: xr.Dataset, weights: str, activations: str) -> xr.Dataset:
    W, component = weights_of(group, weights, activations)
    if activations not in group:
        raise _missing(group, activations)
    H = group[activations]
    total = _positive(W.sum([dim for dim in W.dims if dim not in LEADING | {component}]))
    of_h = total if component in H.dims else total.rename({component: H.dims[2]})
    return group.assign({weights: (W / total).transpose(*W.dims), activations: (H * of_h).transpose(*H.dims)})


def weights_of(group: xr.Dataset, weights: str, activations: str) -> tuple[xr.DataArray, Any]:
    """The weights, and which of their dims is the component's: the one they share with H, else their last."""
    if weights not in group:
        raise _missing(group, weights)
    W = group[weights]
    own = [dim for dim in W.dims if dim not in LEADING]
    if len(own) != 2:
        raise InputError("weights", f"{weights} with dims {own}", "a matrix (feature, component)", "name the factor")
    shared = [dim for dim in own if activations in group and dim in group[activations].dims]
    return W, shared[0] if len(shared) == 1 else own[1]


def _positive(total: xr.DataArray) -> xr.DataArray:
    """The sums of columns, 1 for a column of zeros."""
    return total.where(total > 0, 1.0)


def _missing(group: xr.Dataset, name: str) -> InputError:
    found = f"a posterior of {', '.join(map(str, group.data_vars)) or 'nothing'}"
    return InputError("idata", found, f"one that holds {name}", "name the factors: weights=, activations=")
