"""Convergence checks that a factorisation can pass: on invariants, and on components once they are aligned.

``pm.sample`` judges raw factors, whose R-hat is bad as soon as two chains number the same components differently. Here
lp and cells of W H say whether the posterior was reached, and aligned columns of W and rows of H whether single
components can be read: of any draws of W and H, whoever made them.

The cost is bounded, whatever the shapes. Components are matched on the features and samples that are largest in
them (`MOST_CELLS` of each, or `FEWEST` for each component where that is more), in at least `ENOUGH` draws of each
chain, and `JUDGED` cells of a column of W or row of H are judged, fewer where there are very many components.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics import (
    Advice,
    advise_on_components,
    advise_on_invariants,
    advise_on_sampler,
    invariants,
    run_size,
    summarise_draws,
)
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.posterior import LEADING, posterior_group
from nmf_zoo.results import checked_cells
from nmf_zoo.structure import Factorisation
from nmf_zoo.workbench.align import REPORT, align, factor_dims
from nmf_zoo.workbench.component_diagnostics import summarise_components

MOST_CELLS = 100  # features, and samples, that components are matched on
FEWEST = 2  # of these for each component
MOST_BYTES = 1 << 27  # of draws of these, above which draws are left out
ENOUGH = 250  # draws of each chain that are never left out
JUDGED = 3  # cells of a column of W, and of a row of H
MOST_JUDGED = 200  # of all components together, but one of each column and row


def check_convergence(idata: Any, *, weights: str = "W", activations: str = "H") -> pd.DataFrame:
    """R-hat and effective draws of aligned components beside those of invariants; warns where they are poor.

    It says what ``pm.sample`` says of convergence, of quantities for which that means something: raw components swap
    places between chains (see :func:`~nmf_zoo.align`). The limits are PyMC's: R-hat of 1.01, 100 effective draws per
    chain.

    Parameters
    ----------
    idata : draws of W and H by :func:`~nmf_zoo.sample`, ``pm.sample`` or anyone's sampler; or the result of
        :func:`~nmf_zoo.align`, whose components are judged in the order they have
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with rows ``lp`` (where the sampler kept it), ``mean[row, col]``, some cells of W H, and one for each
    column of W and row of H, by the worst of its largest cells. Columns rhat, ess_bulk, ess_tail; of components
    also rhat_raw, before alignment, and became (see :func:`~nmf_zoo.summarise_components`)

    Warns
    -----
    NmfZooWarning : R-hat is larger than 1.01, or the effective sample size per chain smaller than 100, of invariants
        or else of aligned components; a component is split, merged or different in a chain; NUTS diverged

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> idata = nz.sample(2000, tune=100, chains=2, random_seed=1, quiet=True, model=model)
    >>> list(nz.check_convergence(idata).columns)
    ['rhat', 'ess_bulk', 'ess_tail', 'rhat_raw', 'became']
    """
    group = posterior_group(idata)
    if "fit" in _compat.group_names(idata):
        raise InputError("idata", "a fit", "draws of a sampler", "the group fit says whether it converged")
    factor_dims(group, weights, activations)  # says what is missing
    found = judge(idata, weights, activations)
    for text in found.warnings:
        warnings.warn(text, NmfZooWarning, stacklevel=2)
    return pd.concat([table.drop(columns=["mean", "sd"], errors="ignore") for table in found.tables])


def warn_unconverged(idata: Any, structure: Factorisation, with_components: bool) -> None:
    """The same of a run of ours, on behalf of the verb that its user called."""
    names = structure.W.name, structure.H.name
    for text in judge(_in_memory(idata, structure, with_components), *names).warnings:
        warnings.warn(text, NmfZooWarning, stacklevel=3)


def _in_memory(idata: Any, structure: Factorisation, with_components: bool) -> Any:
    """Statistics of the run and, where components are to be judged, draws of W and H in our orientation."""
    groups = {"sample_stats": _compat.group(idata, "sample_stats")}
    if with_components and "posterior" in _compat.group_names(idata):
        posterior, factors = _compat.group(idata, "posterior"), {}
        for factor, dims in ((structure.W, ("feature", "component")), (structure.H, ("component", "sample"))):
            if factor.name in posterior and not factor.is_fixed:
                own = posterior[factor.name].drop_vars(posterior.coords, errors="ignore")
                factors[factor.name] = own.rename(dict(zip(own.dims[2:], factor.orient_dims(dims), strict=True)))
        groups["posterior"] = xr.Dataset(factors)
    return _compat.inference_data(groups, {})


@dataclass(frozen=True)
class Convergence:
    """What the draws say.

    Attributes
    ----------
    invariants : as :func:`~nmf_zoo.summarise`
    components : as :func:`~nmf_zoo.summarise_components`; None where there are no draws of W
    of_sampler, of_invariants, of_components : sentences on them; None where the draws can't tell
    """

    invariants: pd.DataFrame
    components: pd.DataFrame | None
    of_sampler: list[Advice]
    of_invariants: Advice | None
    of_components: Advice | None

    @property
    def tables(self) -> list[pd.DataFrame]:
        return [table for table in (self.invariants, self.components) if table is not None and len(table)]

    @property
    def advice(self) -> list[Advice]:
        return [*self.of_sampler, *(one for one in (self.of_invariants, self.of_components) if one is not None)]

    @property
    def warnings(self) -> list[str]:
        """What should be said aloud: of components only what the posterior of W H does not explain already."""
        rest = [one for one in (self.of_invariants, self.of_components) if one is not None and one.is_warning]
        return [one.text for one in (*self.of_sampler, *rest[:1])]


def judge(idata: Any, weights: str, activations: str) -> Convergence:
    """Judge the draws of any sampler, aligned or not."""
    groups = _compat.group_names(idata)
    size = run_size(idata)
    of_sampler = list(advise_on_sampler(_compat.group(idata, "sample_stats"))) if "sample_stats" in groups else []
    table = summarise_draws(followed_draws(idata, weights, activations))
    of_invariants = advise_on_invariants(table, *size) if len(table) else None
    components = judge_components(idata, weights, activations)
    of_components = None if components is None else advise_on_components(components, *size)
    return Convergence(table, components, of_sampler, of_invariants, of_components)


def followed_draws(idata: Any, weights: str, activations: str) -> xr.Dataset:
    """``lp`` and cells of W H, which are computed where the sampler did not follow them."""
    groups = _compat.group_names(idata)
    kept = invariants(idata) if "sample_stats" in groups else xr.Dataset()
    group = _compat.group(idata, "posterior") if "posterior" in groups else xr.Dataset()
    if "mean" in kept or not {weights, activations} <= set(group.data_vars):
        return kept
    dims = factor_dims(group, weights, activations)
    rows, cols = checked_cells((group.sizes[dims.feature], group.sizes[dims.sample]))
    W = group[weights].isel({dims.feature: rows}).transpose(*LEADING, dims.feature, dims.component)
    H = group[activations].isel({dims.sample: cols}).transpose(*LEADING, dims.own, dims.sample)
    mean = np.einsum("...ck,...kc->...c", W.to_numpy(), H.to_numpy())
    places = {"checked_row": ("checked_cell", rows), "checked_col": ("checked_cell", cols)}
    return kept.assign(mean=((*LEADING, "checked_cell"), mean)).assign_coords(places)


def judge_components(idata: Any, weights: str, activations: str) -> pd.DataFrame | None:
    """:func:`~nmf_zoo.summarise_components` of a result that is aligned, or of one that is aligned for it."""
    groups = _compat.group_names(idata)
    if "posterior" not in groups or weights not in _compat.group(idata, "posterior"):
        return None
    names: dict[str, Any] = {"weights": weights, "activations": activations}
    aligned = idata if REPORT in groups else align(narrowed(idata, weights, activations), **names)
    rank = _compat.group(aligned, REPORT)["became"].shape[1]
    return summarise_components(aligned, most_cells=max(1, min(JUDGED, MOST_JUDGED // (2 * rank))), **names)


def narrowed(idata: Any, weights: str, activations: str) -> Any:
    """W and H at the features and samples that are largest in a component of some chain's last draw, and lp."""
    group = posterior_group(idata)
    dims = factor_dims(group, weights, activations)
    largest = max(MOST_CELLS, FEWEST * group.sizes[dims.component])
    along = {weights: dims.feature} | ({} if dims.sample is None else {activations: dims.sample})
    size = sum(group[name].nbytes * min(1.0, largest / group.sizes[dim]) for name, dim in along.items())
    every = max(1, min(ceil(size / MOST_BYTES), group.sizes["draw"] // ENOUGH))
    few = {
        name: group[name].isel({dim: _largest(group[name], dim, largest), "draw": slice(None, None, every)})
        for name, dim in along.items()
    }
    posterior = xr.Dataset(few).load()
    stats = {"sample_stats": invariants(idata)} if "sample_stats" in _compat.group_names(idata) else {}
    return _compat.inference_data({"posterior": posterior, **stats}, {})


def _largest(factor: xr.DataArray, along: Any, n: int) -> np.ndarray:
    """Places along a dim where the components of the last draws are largest, each in parts of its own largest cell."""
    last = factor.isel(draw=-1).transpose("chain", ..., along).to_numpy()
    top = last.max(axis=-1, keepdims=True)
    score = np.divide(last, top, out=np.zeros(last.shape), where=top > 0).max(axis=(0, 1))
    return np.sort(np.argsort(-score, kind="stable")[:n])
