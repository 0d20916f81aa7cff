"""The factors of a posterior: which dim is which, their draws, and what their components add to W H."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.results.matching import Components
from nmf_zoo.results.posterior import LEADING, draw_parts

# what nz.ARD declares -> the power of it that components' sizes follow
RELEVANCES = {"relevance": 2.0, "relevance_rate": -2.0, "relevance_variance": 1.0, "relevance_precision": -1.0}


def relevances_in(variables: Any) -> list[str]:
    """Names of what :class:`~nmf_zoo.ARD` declares among these."""
    return [name for name in RELEVANCES if name in variables]


def weights_of(group: xr.Dataset, weights: str, activations: str) -> tuple[xr.DataArray, Any]:
    """The weights, and which of their dims is the component's: the one they share with H, else their last."""
    if weights not in group:
        raise missing_variable(group, weights)
    W = group[weights]
    own = [dim for dim in W.dims if dim not in LEADING]
    if len(own) != 2:
        raise InputError("weights", f"{weights} with dims {own}", "a matrix (feature, component)", "name the factor")
    shared = [dim for dim in own if activations in group and dim in group[activations].dims]
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
    W, component = weights_of(group, weights, activations)
    (feature,) = (dim for dim in W.dims if dim not in {*LEADING, component})
    if activations not in group:
        return FactorDims(weights, activations, feature, component, component, None)
    H = group[activations]
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
    """(chain, draw, component) logarithms of what components add to W H; a product of two may be beyond all numbers.

    Without H those of W's columns alone.
    """
    parts = [(group[dims.weights], dims.component)]
    parts += [] if dims.obs is None else [(group[dims.activations], dims.own)]
    logs = [
        _log_total(part, own).rename({own: "component"}).drop_vars("component", errors="ignore") for part, own in parts
    ]
    labels = {"component": group[dims.component].to_numpy()} if dims.component in group.coords else {}
    return sum(logs[1:], logs[0]).assign_coords(labels)


def _log_total(array: xr.DataArray, own: Any) -> xr.DataArray:
    """Over all dims but the component's, some draws at a time."""
    others = [dim for dim in array.dims if dim not in {*LEADING, own}]
    n_draws = array.sizes["draw"]
    parts = draw_parts(n_draws, array.nbytes // n_draws)
    summed = [_log_sum(array.isel(draw=part).compute(), others) for part in parts]
    return xr.concat(summed, dim="draw").transpose("chain", "draw", own)


def _log_sum(array: xr.DataArray, dims: list[Any]) -> xr.DataArray:
    """log sum; that of a mean where the sum of heavy-tailed draws is beyond all numbers."""
    with np.errstate(over="ignore"):
        total = array.sum(dims, skipna=False)  # without a copy of zeros for NaN
    if np.all(np.isfinite(total)):
        return log_of(total)
    count = float(np.prod([array.sizes[dim] for dim in dims]))
    return log_of((array / count).sum(dims)) + np.log(count)


def log_of(array: xr.DataArray) -> xr.DataArray:
    with np.errstate(divide="ignore"):
        return array.copy(data=np.log(array.to_numpy()))
