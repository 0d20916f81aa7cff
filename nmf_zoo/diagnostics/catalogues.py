"""Which components of a result are those of a catalogue: published signatures, topics of another corpus, sounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import nnls

from nmf_zoo import _compat
from nmf_zoo.diagnostics.align import align
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import are_counted, flat_labels, with_row_labels
from nmf_zoo.options import names_checked
from nmf_zoo.results.channels import same_words
from nmf_zoo.results.components import mean_weights
from nmf_zoo.results.factor_draws import factor_dims
from nmf_zoo.results.matching import ALIKE, best_pairs
from nmf_zoo.results.posterior import INTERVAL, posterior_group

Array = np.ndarray
LEAST_SHARE = 0.05  # of a mixture: entries with less are left out of it
MOST_DRAWS = 200  # whose mixtures are found, evenly spaced


@dataclass(frozen=True)
class Match:
    """What :func:`match` found.

    Attributes
    ----------
    table : by component: entry, the one of the catalogue that it is assigned to ("" where there are more components
        than entries); cosine, its posterior mean, with low and high, 5 % and 95 %; is_new, whether no entry and no
        mixture has a cosine of 0.9 with it; mixture, the entries that add up to it best, with shares; mixture_cosine;
        mixture_error, the share of the component that its mixture has on other features (half the sum of the absolute
        differences of the two profiles, each summing to one), its posterior mean, with error_low and error_high
    cosines : (component, entry), posterior means
    mixtures : by component and entry of its mixture the posterior mean of the share, with low and high
    """

    table: pd.DataFrame
    cosines: xr.DataArray
    mixtures: pd.DataFrame

    def _repr_html_(self) -> str:
        return str(self.table.to_html())

    def __str__(self) -> str:
        return str(self.table.to_string())


@names_checked
def match(idata: Any, catalogue: Any, *, weights: str = "W", activations: str = "H") -> Match:
    """Assign the components of a result to the entries of a catalogue.

    Components are aligned first (:func:`~nmf_zoo.align`). They are assigned one to one, so that the sum of the
    posterior means of the cosines is the largest (Kuhn 1955), and each is written as a non-negative mixture of all
    entries (Lawson and Hanson 1974), of which those with less than a twentieth are dropped. The shares of what is left,
    and what such a mixture misses, are found anew for up to 200 draws.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    catalogue : DataFrame (feature, entry), DataArray or array, >= 0. Rows labelled like the features of W may be in any
        order, and may be more. An earlier result stands for its mean of W
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
    components, assigned = best_pairs(means)
    entry = dict(zip(components.tolist(), assigned.tolist(), strict=True))
    shares = draws / np.maximum(draws.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    labels = W[dims.component].to_numpy()
    mixtures = [_mixture(shares[..., k], entries) for k in range(len(labels))]
    rows = [_row(entry.get(k), of_draws[:, k], entries, mixture) for k, mixture in enumerate(mixtures)]
    table = pd.DataFrame(rows, index=pd.Index(labels, name="component"))
    coords = {"component": labels, "entry": entries.columns.to_numpy()}
    cosines = xr.DataArray(means, dims=("component", "entry"), coords=coords, name="cosine")
    parts = pd.concat([mixture.table(entries) for mixture in mixtures], keys=labels, names=["component", "entry"])
    return Match(table, cosines, parts)


def _row(entry: int | None, cosines: Array, entries: pd.DataFrame, mixture: Mixture) -> dict[str, Any]:
    """What is said of one component; ``cosines`` (draw, entry)."""
    own = np.zeros(len(cosines)) if entry is None else cosines[:, entry]
    low, high = np.quantile(own, INTERVAL)
    error_low, error_high = np.quantile(mixture.errors, INTERVAL)
    return {
        "entry": "" if entry is None else entries.columns[entry],
        "cosine": float(own.mean()),
        "low": float(low),
        "high": float(high),
        "is_new": bool(max(cosines.mean(axis=0).max(), mixture.cosine) < ALIKE),
        "mixture": mixture.words(entries),
        "mixture_cosine": mixture.cosine,
        "mixture_error": float(mixture.errors.mean()),
        "error_low": float(error_low),
        "error_high": float(error_high),
    }


class Mixture(NamedTuple):
    """The entries that add up to a component.

    kept : which; share : of each in the mean profile; cosine : of their sum with it; shares : (draw, kept) of draws;
    errors : (draw,) what they miss
    """

    kept: Array
    share: Array
    cosine: float
    shares: Array
    errors: Array

    def words(self, entries: pd.DataFrame) -> str:
        """``0.60 a + 0.40 b``"""
        order = np.argsort(-self.share, kind="stable")
        return " + ".join(f"{self.share[i]:.2f} {entries.columns[self.kept[i]]}" for i in order if self.share[i] > 0)

    def table(self, entries: pd.DataFrame) -> pd.DataFrame:
        """By entry: the share's mean and interval over draws."""
        low, high = np.quantile(self.shares, INTERVAL, axis=0)
        columns = {"share": self.shares.mean(axis=0), "low": low, "high": high}
        return pd.DataFrame(columns, index=pd.Index(entries.columns[self.kept], name="entry"))


def _mixture(profiles: Array, entries: pd.DataFrame) -> Mixture:
    """By least squares, of profiles (draw, feature) that sum to one."""
    basis, mean = entries.to_numpy() / entries.to_numpy().sum(axis=0), profiles.mean(axis=0)
    amounts, _ = nnls(basis, mean)
    kept = np.flatnonzero(amounts >= LEAST_SHARE * amounts.sum()) if amounts.any() else np.empty(0, dtype=np.intp)
    own = basis[:, kept]
    share, cosine = _shares(own, mean), 0.0
    if kept.size:
        cosine = float(_unit(mean) @ _unit(own @ share))
    spaced = profiles[np.unique(np.linspace(0, len(profiles) - 1, MOST_DRAWS).astype(int))]
    shares = np.stack([_shares(own, profile) for profile in spaced])
    return Mixture(kept, share, cosine, shares, 0.5 * np.abs(spaced - shares @ own.T).sum(axis=1))


def _shares(basis: Array, profile: Array) -> Array:
    """Of each column in the mixture that is nearest, summing to one; nothing of nothing."""
    amounts = nnls(basis, profile)[0] if basis.shape[1] else np.empty(0)
    return amounts / max(amounts.sum(), np.finfo(float).tiny)


def _unit(array: Array) -> Array:
    """Columns (..., feature, k) or one (feature,) of length 1; zeros stay."""
    axis = -1 if array.ndim == 1 else -2
    length = np.sqrt(np.sum(np.square(array), axis=axis, keepdims=True))
    return np.divide(array, length, out=np.zeros(array.shape), where=length > 0)


def _read_catalogue(catalogue: Any, features: Array) -> pd.DataFrame:
    """(feature, entry) in the order of the result's features, by place where either has no labels."""
    if _compat.is_result(catalogue):
        catalogue = mean_weights(catalogue)
    if isinstance(catalogue, xr.DataArray) and catalogue.ndim == 2:
        catalogue = catalogue.to_pandas()
    table = with_row_labels(pd.DataFrame(catalogue))
    table = table.set_axis(pd.Index(flat_labels(table.index)), axis=0)
    is_labelled = isinstance(catalogue, pd.DataFrame) and not are_counted(table.index)
    if is_labelled and (words := same_words(features, table.index)):  # in any of their spellings
        table, features = table.set_axis(words[1], axis=0), np.array(words[0])
    wanted = pd.Index(features)
    is_same = table.index.tolist() == wanted.tolist()
    if is_labelled and not is_same and set(wanted) <= set(table.index) and table.index.is_unique:
        table = table.loc[wanted]
    elif len(table) != len(features) or (is_labelled and not is_same and not are_counted(features)):
        got = f"{number_of(len(table), 'row')}{' with other labels' if is_labelled else ''}"
        raise InputError("catalogue", got, f"the {len(features)} features of the result, or rows labelled like them")
    numbers = table.to_numpy(dtype=np.float64) if all(kind.kind in "biuf" for kind in table.dtypes) else None
    if numbers is None or not np.all(np.isfinite(numbers)) or np.any(numbers < 0) or not np.all(numbers.any(axis=0)):
        raise InputError("catalogue", "entries that are not finite numbers >= 0, or all 0", "profiles of features")
    return table.astype(np.float64)
