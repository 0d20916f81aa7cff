"""What the marginal likelihood is asked of: a model it can integrate, a W that fits, and work that can be done."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference import admissible, marginal
from nmf_zoo.inference.families import WORDS, takes_likelihood
from nmf_zoo.models.matrices import check_same_labels, flat_labels
from nmf_zoo.posterior import Axis, axes_of, posterior_group, variable_of
from nmf_zoo.reading import read
from nmf_zoo.run_arguments import require_memory, variable_shapes
from nmf_zoo.structure import Array, Factorisation, Fixed, Flat, GammaPrior, Poisson

MOST_TERMS = {"one sample": 10**7, "all samples": 10**9}  # of an enumeration: what fits into memory, and into minutes
TIMES_OF_EXPECTATIONS = 5.0  # what they take, of the time of the values
UNITS = (("years", 3.2e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


class Given(NamedTuple):
    """A model with its data, W and the hyperparameters of H, checked."""

    structure: Factorisation
    samples: marginal.Samples
    W: Array
    shape: Array
    rate: Array

    @property
    def arguments(self) -> tuple[marginal.Samples, Array, Array, Array]:
        return self.samples, self.W, self.shape, self.rate


def prepare(model: pm.Model, W: Any) -> Given:
    structure = read(model)
    _require_supported(structure)
    values, matrix = _values(structure, W)
    shape, rate = marginal.activation_prior(structure, values)
    return Given(structure, marginal.observe(structure), matrix, shape, rate)


def _require_supported(structure: Factorisation) -> None:
    """Counts with a Poisson likelihood, and Gamma activations to integrate out."""
    likelihood = structure.likelihood
    taken = takes_likelihood(structure, (Poisson,))
    if not taken:
        raise UnsupportedModel(taken.reason)
    if not isinstance(structure.H.prior, GammaPrior):
        found = {Fixed: "known", Flat: "free"}.get(type(structure.H.prior)) or WORDS[type(structure.H.prior)]
        raise UnsupportedModel(
            f"{structure.H.name or 'H'}: found {found} activations; expected Gamma ones, to integrate out; use nz.gap"
        )
    if structure.data is None:
        raise InputError("model", f"nothing observed in {likelihood.name}", "a model with data")
    if not structure.is_integer:
        raise InputError(likelihood.name, "values that are not integers", "counts", "round them if they are counts")


def _values(structure: Factorisation, W: Any) -> tuple[dict[str, Array], Array]:
    """Values of the unknown hyperparameters of H by name, and W (F, K)."""
    names = [unknown.name for unknown in structure.H.unknowns]
    if isinstance(W, _compat.INFERENCE_DATA):
        return _from_result(structure, W, names)
    if names:
        expected = f"a result of nz.fit, which says what {', '.join(names)} are"
        raise InputError("W", "an array" if W is not None else "None", expected, "or declare known hyperparameters")
    if isinstance(structure.W.prior, Fixed) and W is None:
        return {}, structure.W.prior.value
    if W is None:
        raise InputError("W", "None", f"an array of shape {structure.W.shape}, or a result of nz.fit")
    return {}, _check_weights(structure, W)


def _from_result(structure: Factorisation, idata: Any, names: list[str]) -> tuple[dict[str, Array], Array]:
    """The point estimate of the best restart, the first chain."""
    posterior, shapes = posterior_group(idata), variable_shapes(structure)
    if posterior.sizes["draw"] != 1:
        got = f"{posterior.sizes['draw']} draws"
        raise InputError("W", got, "a result with one draw, or an array", "take one: idata.sel(draw=[0])")
    values = {name: variable_of(posterior, name, shapes[name]).to_numpy()[0, 0] for name in names}
    if isinstance(structure.W.prior, Fixed):
        return values, structure.W.prior.value
    of_w = variable_of(posterior, structure.W.name, structure.W.variable_shape).to_numpy()[0, 0]
    return values, _check_weights(structure, structure.W.orient(of_w))


def _check_weights(structure: Factorisation, W: Any) -> Array:
    feature = axes_of(structure)[0]
    if isinstance(W, xr.DataArray) and feature.dim in W.dims and W.ndim == 2:
        W = W.transpose(feature.dim, ...)
    labels = _labels_of(W)
    W = numbers_of("W", W)
    if W.shape != structure.W.shape:
        expected = f"{structure.W.shape}, (feature, component)"
        raise InputError("W", f"shape {W.shape}", expected, "transpose or reshape it")
    if not np.all((W >= 0) & np.isfinite(W)):
        raise InputError("W", "values that are negative or not finite", "finite values >= 0")
    component = component_of(structure)
    own = {feature.dim: feature.labels, component.dim: component.labels}
    names = zip(own, labels, strict=False)
    check_same_labels("W", {dim: found for dim, found in names if found is not None}, own, "the model")
    return np.ascontiguousarray(W)


def _labels_of(W: Any) -> list[Array | None]:
    """Labels of the rows and columns of W, None where there are none."""
    if isinstance(W, pd.DataFrame):
        return [flat_labels(W.index), flat_labels(W.columns)]
    if isinstance(W, xr.DataArray):
        return [flat_labels(W.indexes[dim]) if dim in W.indexes else None for dim in W.dims]
    return []


def component_of(structure: Factorisation) -> Axis:
    """The dim of the components, and their labels."""
    dims = structure.dims.get(structure.H.name, ())
    dim = structure.H.orient_dims(dims)[0] if len(dims) == 2 else "component"
    return Axis(dim, structure.coords.get(dim, np.arange(structure.rank)))


def numbers_of(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biufO":
            return array.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(name, " ".join(repr(value).split())[:60], "numbers", "use toarray()" * sp.issparse(value))


def check_weights_alone(W: Any) -> Array:
    """W (F, K) without a model."""
    W = numbers_of("W", W)
    if W.ndim != 2:
        raise InputError("W", f"shape {W.shape}", "a matrix (feature, component)")
    if not np.all((W >= 0) & np.isfinite(W)):
        raise InputError("W", "values that are negative or not finite", "finite values >= 0")
    return W


def require_no_background(structure: Factorisation) -> None:
    if structure.likelihood.background is not None:
        raise InputError("method", "'importance' with a background", "no background", "use method='exact'")


def require_few_terms(given: Given) -> None:
    terms = admissible.n_terms(given.samples, given.W.shape[1])
    for where, found in (("one sample", max(terms)), ("all samples", sum(terms))):
        if found > MOST_TERMS[where]:  # as integers: they can be too large for a float
            got = f"'enumeration' of 10^{math.log10(found):.1f} admissible components of {where}"
            raise InputError("method", got, f"at most {MOST_TERMS[where]:.0e}", "use method='exact' or 'importance'")


def require_affordable(given: Given, threads: int, most: float) -> float:
    """Refuse exact values that are too much; else their seconds on one thread."""
    fitting = [] if given.structure.likelihood.background is not None else ["method='importance'"]
    fitting += ["nz.evidence(method='bound')"] if isinstance(given.structure.W.prior, GammaPrior) else []
    do = f"use {' or '.join(fitting)}" if fitting else "use fewer components"
    cost = marginal.estimate(given.samples, given.W, given.rate)
    _require_fits("method", "exact values", cost, cost.seconds, threads, most, do)
    require_memory("method", "exact values", threads * cost.memory, do)
    return cost.seconds


def require_affordable_expectations(given: Given, threads: int, most: float) -> float:
    """The same for expectations: forward states are kept, one for each cell, and the way back takes twice as long."""
    do = "use draws: nz.sample(model=pm.do(model, {'W': W}))"
    cost = marginal.estimate(given.samples, given.W, given.rate)
    seconds, cells = TIMES_OF_EXPECTATIONS * cost.seconds, int(np.diff(given.samples.columns.indptr).max())
    _require_fits("model", "exact expectations", cost, seconds, threads, most, do)
    require_memory("model", "exact expectations", threads * (3.0 + cells) * cost.memory, do)
    n_cells, rank = len(given.samples.columns.counts), given.W.shape[1]
    require_memory("model", f"{n_cells} cells x {rank} components", 16.0 * n_cells * rank, "choose fewer samples")
    return seconds


def _require_fits(
    name: str, what: str, cost: marginal.Cost, seconds: float, threads: int, most: float, do: str
) -> None:
    seconds, (n, rank) = seconds / min(threads, os.cpu_count() or 1), cost.largest
    if seconds > most:
        got = f"{what} of samples up to {n:,} counts and {rank} components: about {_in_words(seconds)}"
        raise InputError(name, got, f"at most max_seconds={most:g}", do)


def _in_words(seconds: float) -> str:
    """A time as people say it."""
    if seconds > 1e6 * UNITS[0][1]:
        return "for ever" if math.isinf(seconds) else f"{seconds / UNITS[0][1]:.0e} years"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} seconds"
