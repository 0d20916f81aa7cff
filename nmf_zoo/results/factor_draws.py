"""The factors of a posterior: which dim is which, their draws, and what their components add to W H."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.results.matching import Components
from nmf_zoo.results.posterior import LEADING, draw_parts

Array = np.ndarray

# what nz.ARD declares -> the power of it that components' sizes follow
RELEVANCES = {"relevance": 2.0, "relevance_rate": -2.0, "relevance_variance": 1.0, "relevance_precision": -1.0}
NEW = "new_component"  # their dim beside known components


def relevances_in(variables: Any) -> list[str]:
    """Names of what :class:`~nmf_zoo.ARD` declares among these."""
    return [name for name in RELEVANCES if name in variables]


def with_whole_relevances(group: xr.Dataset, dims: FactorDims) -> xr.Dataset:
    """With NaN for known components, which have none, where relevances are those of new ones."""
    named = [name for name in relevances_in(group) if NEW in group[name].dims and dims.component in group.coords]
    labels = {dims.component: group[dims.component]}
    whole = {name: group[name].rename({NEW: dims.component}).reindex(labels) for name in named}
    return group.drop_vars(named).assign(whole)


def weights_of(group: xr.Dataset, weights: str, activations: str) -> tuple[xr.DataArray, Any]:
    """The weights, and which of their dims is the component's: the one they share with H, else their last."""
    _, component = _weights_in(group, weights, activations)
    return group[weights], component


def _weights_in(group: xr.Dataset, weights: str, activations: str) -> tuple[xr.Variable, Any]:
    """The same without labels."""
    if weights not in group:
        raise missing_variable(group, weights)
    W = group.variables[weights]
    own = [dim for dim in W.dims if dim not in LEADING]
    if len(own) != 2:
        raise InputError("weights", f"{weights} with dims {own}", "a matrix (feature, component)", "name the factor")
    shared = [dim for dim in own if activations in group and dim in group.variables[activations].dims]
    return W, shared[0] if len(shared) == 1 else own[1]


def missing_variable(group: xr.Dataset, name: str) -> InputError:
    found = f"a posterior of {', '.join(map(str, group.data_vars)) or 'nothing'}"
    return InputError("idata", found, f"one that holds {name}", "name the factors: weights=, activations=")


@dataclass(frozen=True)
class FactorDraws:
    """The draws of both factors, and the dims that they have in the posterior.

    Attributes
    ----------
    draws : W (chain, draw, F, K) and H (chain, draw, K, N)
    weights, activations : their names
    feature, obs : dims of theirs
    component : dims of the components, of W and of H
    """

    draws: Components
    weights: str
    activations: str
    feature: Any
    obs: Any
    component: tuple[Any, ...]


@dataclass(frozen=True)
class FactorDims:
    """Dims of W and H in a posterior: that of X's columns is None where there is no H.

    Attributes
    ----------
    weights, activations : names of W and H
    feature, component : of W
    own, obs : of H; ``own`` is its dim of components, mostly the same as ``component``
    """

    weights: str
    activations: str
    feature: Any
    component: Any
    own: Any
    obs: Any


def factor_dims(group: xr.Dataset, weights: str, activations: str) -> FactorDims:
    """Which dim is which; the draws are not read."""
    W, component = _weights_in(group, weights, activations)
    (feature,) = (dim for dim in W.dims if dim not in {*LEADING, component})
    if activations not in group:
        return FactorDims(weights, activations, feature, component, component, None)
    H = group.variables[activations]
    of_h = [dim for dim in H.dims if dim not in LEADING]
    own = component if component in of_h else of_h[0]
    (obs,) = (dim for dim in of_h if dim != own)
    if H.sizes[own] != W.sizes[component]:
        got = f"{weights} with {W.sizes[component]} components, {activations} with {H.sizes[own]}"
        raise InputError("idata", got, "factors with as many components", "name the factors: weights=, activations=")
    return FactorDims(weights, activations, feature, component, own, obs)


def read_factors(group: xr.Dataset, weights: str, activations: str) -> FactorDraws:
    """Both factors of a posterior, in memory."""
    dims = factor_dims(group, weights, activations)
    W, H = group[weights].transpose(*LEADING, dims.feature, dims.component).to_numpy(), None
    if dims.obs is not None:
        H = group[activations].transpose(*LEADING, dims.own, dims.obs).to_numpy()
    component = tuple(dict.fromkeys((dims.component, dims.own)))
    return FactorDraws(Components(W, H), weights, activations, dims.feature, dims.obs, component)


def log_totals(group: xr.Dataset, dims: FactorDims) -> xr.DataArray:
    """(chain, draw, component) logarithms of what components add to W H, under their labels."""
    coords = {dim: group[dim].to_numpy() for dim in LEADING if dim in group.coords}
    coords |= {"component": group[dims.component].to_numpy()} if dims.component in group.coords else {}
    return xr.DataArray(log_sizes(group, dims), dims=(*LEADING, "component"), coords=coords)


def log_sizes(group: xr.Dataset, dims: FactorDims) -> Array:
    """The same as an array; of logarithms, for a product of two sums may be beyond all numbers.

    Without H those of W's columns alone.
    """
    logs = _log_sums(group.variables[dims.weights], dims.component)
    return logs if dims.obs is None else logs + _log_sums(group.variables[dims.activations], dims.own)


def _log_sums(draws: xr.Variable, own: Any) -> Array:
    """Over all dims but the component's, some draws at a time."""
    kept = [dim for dim in draws.dims if dim in {*LEADING, own}]
    axes = tuple(axis for axis, dim in enumerate(draws.dims) if dim not in kept)
    n_draws = draws.sizes["draw"]
    parts = draw_parts(n_draws, draws.nbytes // n_draws)
    summed = [_log_sum(draws.isel(draw=part).to_numpy(), axes) for part in parts]
    return np.concatenate(summed, kept.index("draw")).transpose([kept.index(dim) for dim in (*LEADING, own)])


def _log_sum(array: Array, axes: tuple[int, ...]) -> Array:
    """log sum; that of a mean where the sum of heavy-tailed draws is beyond all numbers."""
    with np.errstate(over="ignore"):
        total = array.sum(axes)  # without a copy of zeros for NaN
    if np.all(np.isfinite(total)):
        return log_of(total)
    count = float(np.prod([array.shape[axis] for axis in axes]))
    return log_of(np.nansum(array / count, axes)) + np.log(count)


def log_of(array: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(array)
