"""Which components of a result are those of a catalogue: published signatures, topics of another corpus, sounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import linear_sum_assignment, nnls

from nmf_zoo.diagnostics.align import align
from nmf_zoo.errors import InputError
from nmf_zoo.results.factor_draws import factor_dims
from nmf_zoo.results.matching import ALIKE
from nmf_zoo.results.posterior import INTERVAL, posterior_group

Array = np.ndarray
LEAST_SHARE = 0.05  # of a mixture: entries with less are left out of it


@dataclass(frozen=True)
class Match:
    """What :func:`match` found.

    Attributes
    ----------
    table : by component: entry, the one of the catalogue that it is assigned to ("" where there are more components
        than entries); cosine, its posterior mean, with low and high, 5 % and 95 %; is_new, whether no entry and no
        mixture has a cosine of 0.9 with it; mixture, the entries that add up to it best, with shares; mixture_cosine
    cosines : (component, entry), posterior means
    """

    table: pd.DataFrame
    cosines: xr.DataArray

    def _repr_html_(self) -> str:
        return str(self.table.to_html())

    def __str__(self) -> str:
        return str(self.table.to_string())


def match(idata: Any, catalogue: Any, *, weights: str = "W", activations: str = "H") -> Match:
    """Assign the components of a result to the entries of a catalogue.

    Components are aligned first (:func:`~nmf_zoo.align`). They are assigned one to one, so that the sum of the
    posterior means of the cosines is the largest (Kuhn 1955), and each is written as a non-negative mixture of all
    entries (Lawson and Hanson 1974), of which those with less than a twentieth are dropped.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    catalogue : DataFrame (feature, entry), DataArray or array, >= 0. Rows labelled like the features of W may be in any
        order, and may be more
    weights, activations : names of the two factors

    Returns
    -------
    Match, with ``table`` and ``cosines``; :func:`~nmf_zoo.plot_match` draws it

    Raises
    ------
    InputError : the catalogue has other features, or numbers that are negative or not finite

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> idata = nz.fit(model=nz.poisson_nmf([[9, 8, 0], [0, 1, 7]], 2), engine="em", random_seed=1, quiet=True)
    >>> nz.match(idata, [[0, 1], [1, 0]]).table.index.name
    'component'
    """
    group = posterior_group(align(idata, weights=weights, activations=activations))
    dims = factor_dims(group, weights, activations)
    W = group[weights].transpose("chain", "draw", dims.feature, dims.component)
    entries = _read_catalogue(catalogue, W[dims.feature].to_numpy())
    draws = W.to_numpy().reshape(-1, *W.shape[2:])
    unit = _unit(entries.to_numpy())
    of_draws = np.swapaxes(_unit(draws), 1, 2) @ unit  # (draw, component, entry)
    means = of_draws.mean(axis=0)
    components, assigned = linear_sum_assignment(means, maximize=True)
    entry = dict(zip(components.tolist(), assigned.tolist(), strict=True))
    shares = (draws / np.maximum(draws.sum(axis=1, keepdims=True), np.finfo(float).tiny)).mean(axis=0)
    labels = W[dims.component].to_numpy()
    rows = [_row(k, entry.get(k), of_draws[:, k], shares[:, k], entries) for k in range(len(labels))]
    table = pd.DataFrame(rows, index=pd.Index(labels, name="component"))
    coords = {"component": labels, "entry": entries.columns.to_numpy()}
    return Match(table, xr.DataArray(means, dims=("component", "entry"), coords=coords, name="cosine"))


def _row(k: int, entry: int | None, cosines: Array, shares: Array, entries: pd.DataFrame) -> dict[str, Any]:
    """What is said of one component; ``cosines`` (draw, entry), ``shares`` (feature,)."""
    mixture, cosine = _mixture(shares, entries)
    own = np.zeros(len(cosines)) if entry is None else cosines[:, entry]
    low, high = np.quantile(own, INTERVAL)
    return {
        "entry": "" if entry is None else entries.columns[entry],
        "cosine": float(own.mean()),
        "low": float(low),
        "high": float(high),
        "is_new": bool(max(cosines.mean(axis=0).max(), cosine) < ALIKE),
        "mixture": mixture,
        "mixture_cosine": cosine,
    }


def _mixture(shares: Array, entries: pd.DataFrame) -> tuple[str, float]:
    """The entries that add up to a component, by least squares, and the cosine of their sum with it."""
    basis = entries.to_numpy() / entries.to_numpy().sum(axis=0)
    amounts, _ = nnls(basis, shares)
    kept = np.flatnonzero(amounts >= LEAST_SHARE * amounts.sum()) if amounts.any() else np.empty(0, dtype=np.intp)
    if not kept.size:
        return "", 0.0
    of_kept, _ = nnls(basis[:, kept], shares)
    order = np.argsort(-of_kept, kind="stable")
    parts = of_kept / of_kept.sum()
    words = " + ".join(f"{parts[i]:.2f} {entries.columns[kept[i]]}" for i in order if parts[i] > 0)
    return words, float(_unit(shares) @ _unit(basis[:, kept] @ of_kept))


def _unit(array: Array) -> Array:
    """Columns (..., feature, k) or one (feature,) of length 1; zeros stay."""
    axis = -1 if array.ndim == 1 else -2
    length = np.sqrt(np.sum(np.square(array), axis=axis, keepdims=True))
    return np.divide(array, length, out=np.zeros(array.shape), where=length > 0)


def _read_catalogue(catalogue: Any, features: Array) -> pd.DataFrame:
    """(feature, entry) in the order of the result's features."""
    if isinstance(catalogue, xr.DataArray) and catalogue.ndim == 2:
        catalogue = catalogue.to_pandas()
    is_labelled = isinstance(catalogue, pd.DataFrame) and not isinstance(catalogue.index, pd.RangeIndex)
    table = pd.DataFrame(catalogue)
    if is_labelled and set(features.tolist()) <= set(table.index) and table.index.is_unique:
        table = table.loc[features.tolist()]
    elif len(table) != len(features):
        got = f"{len(table)} rows{' with other labels' if is_labelled else ''}"
        raise InputError("catalogue", got, f"the {len(features)} features of the result, or rows labelled like them")
    numbers = table.to_numpy(dtype=np.float64) if all(kind.kind in "biuf" for kind in table.dtypes) else None
    if numbers is None or not np.all(np.isfinite(numbers)) or np.any(numbers < 0) or not np.all(numbers.any(axis=0)):
        raise InputError("catalogue", "entries that are not finite numbers >= 0, or all 0", "profiles of features")
    return table.astype(np.float64)
