"""Draws of the factors with the components in the same order and on the same scale throughout.

The posterior of a factorisation has a mode for each order of the components, and between chains, sometimes within one,
they swap places; R-hat of raw draws then says that chains disagree even where they do not. Here every draw is matched
to one factorisation, the raw draws are kept, and what can't be matched is named. How components are matched is in
:mod:`nmf_zoo.results.matching`, and the order that a result has without a reference of one's own in
:mod:`nmf_zoo.results.component_order`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.labels import contradict, flat_labels, in_words
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import GROUP, REPORT, component_order, reordered, with_names
from nmf_zoo.results.factor_draws import FactorDraws, factor_dims, read_factors
from nmf_zoo.results.matching import (
    Components,
    Matching,
    column_sums,
    correspondence,
    cosines_of_matches,
    known_components,
    match,
    mean_over,
    with_unit_sums,
)
from nmf_zoo.results.modes import weighed_modes
from nmf_zoo.results.posterior import LEADING, best_chain, only_draws, posterior_group

RAW = "unaligned_posterior"
SCALES = ("unit_sum", "drawn")


@names_checked
def align(
    idata: Any,
    reference: Any = None,
    *,
    scale: Literal["unit_sum", "drawn"] = "unit_sum",
    weights: str = "W",
    activations: str = "H",
) -> Result:
    """Match the components of all draws of all chains, and put them on one scale.

    Parameters
    ----------
    idata : InferenceData or DataTree whose posterior holds W and H: of :func:`~nmf_zoo.sample`, ``pm.sample``, anyone's
    reference : what to match: a result (the mean of its aligned draws is meant), or a Dataset or mapping with W and H,
        whose features and samples go by their labels where they have some;
        default the mean of the chain with the highest mean ``lp`` (of the first one where there is no ``lp``; of the
        heaviest mode where modes have been weighed), its components in the order that everything shows them in: the
        result's group ``components``, else in falling order of what they add to W H, unless the model labels them
    scale : "unit_sum": columns of W sum to 1, and H is in the units of the data; "drawn": as the draws have it, which
        means something only where the priors of W and H fix it
    weights, activations : names of the two factors. Without draws of H the columns of W alone are matched

    Returns
    -------
    A new InferenceData or DataTree. ``posterior`` holds all variables with their components in the order of the
    reference; ``unaligned_posterior`` the draws as they were; ``alignment``, by (chain, draw, component)::

        order      which component of the raw draw it is
        factor     what its column of W was divided by
        cosine     how near its source w_k h_k' is to the reference's, from 0 to 1
        became     by (chain, component): "matched", "split", "merged" with another, or "different", of the chain's mean
        switches   by (chain): draws whose order differs from that of the draw before
        mode       by (chain): the one that it is in, the heaviest first, where :func:`~nmf_zoo.weigh_modes` has told

    and the reference itself. :func:`~nmf_zoo.summarise_components` judges how well components mix. Hyperparameters with
    a dim of components are reordered, not rescaled.

    Raises
    ------
    InputError : no such factors, or the reference's shape differs

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=2)
    >>> aligned = nz.align(nz.sample(50, tune=50, chains=2, random_seed=1, quiet=True, model=model))
    >>> aligned.alignment["became"].dims
    ('chain', 'component')
    """
    if scale not in SCALES:
        raise not_one_of("scale", scale, SCALES)
    idata = only_draws(idata)
    group = posterior_group(idata)
    factors = read_factors(group, weights, activations)
    own = None
    if reference is None:
        own = component_order(idata, weights, activations)
        assert own is not None  # the factors have been read
        chosen, (order, cosine) = _in_own_order(own["order"].to_numpy(), best_chain(idata), factors)
    else:
        chosen = _given_reference(reference, factors, group)
        order, cosine = match(factors.draws, chosen, known_components(factors.draws))
    factor = column_sums(factors.draws) if scale == "unit_sum" else np.ones(order.shape)
    dims = factor_dims(group, weights, activations)
    aligned = reordered(_rescaled(group, factors, factor), dims, order)
    if own is not None:
        aligned = with_names(aligned, own, dims)
    order_of_raw, factor_of_raw = _since_raw(idata, weights, order, np.take_along_axis(factor, order, -1))
    report = _report(aligned, factors, chosen, (order_of_raw, factor_of_raw, cosine))
    if (modes := weighed_modes(idata)) is not None:
        report = report.assign(mode=("chain", modes["mode_of_chain"].to_numpy()))
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata) if name != GROUP}
    raw = groups.get(RAW, group)
    attrs = {**idata.attrs, "aligned": scale}
    return _compat.of_kind(idata, {**groups, "posterior": aligned, RAW: raw, REPORT: report}, attrs)


def _since_raw(idata: Any, weights: str, order: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``order`` and ``factor`` of the raw draws, where these factors have been aligned before."""
    if not {RAW, REPORT} <= set(_compat.group_names(idata)):
        return order, factor
    before = _compat.group(idata, REPORT)
    if f"{weights}_reference" not in before:  # of other factors
        return order, factor
    first, scale = (np.take_along_axis(before[name].to_numpy(), order, -1) for name in ("order", "factor"))
    return first, scale * factor


def _in_own_order(order: np.ndarray, best: int, factors: FactorDraws) -> tuple[Components, Matching]:
    """The mean of the best chain in the result's order, and how near to it the others are in theirs."""
    H = factors.draws.H
    of_chain = Components(factors.draws.W[best], None if H is None else H[best])
    chosen = mean_over(with_unit_sums(of_chain.reordered(order[best])), axis=0)
    return chosen, Matching(order, cosines_of_matches(factors.draws, chosen, order))


def _given_reference(reference: Any, factors: FactorDraws, group: xr.Dataset) -> Components:
    """The user's, with the shape of the draws, its features and samples in their order."""
    names = factors.weights, factors.activations
    given: dict[str, Any]
    if _compat.is_result(reference):
        given = _mean_of_draws(
            _compat.group(align(reference, weights=names[0], activations=names[1]), "posterior"), *names
        )
    elif isinstance(reference, Mapping | xr.Dataset) and names[0] in reference:
        given = {name: reference[name] for name in names if name in reference}
    else:
        raise InputError("reference", type(reference).__name__, f"a result, or a mapping with {' and '.join(names)}")
    of_w, of_h = _dims_of_factors(factors)
    W = _like_draws(names[0], given[names[0]], group, of_w, 0)
    H = _like_draws(names[1], given[names[1]], group, of_h, 1) if names[1] in given and of_h else None
    return Components(W, H)


def _dims_of_factors(factors: FactorDraws) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """Those of W, and of H where there are draws of it."""
    of_h = (factors.component[-1], factors.obs) if factors.obs is not None else ()
    return (factors.feature, factors.component[0]), of_h


def _mean_of_draws(aligned: xr.Dataset, weights: str, activations: str) -> dict[str, xr.DataArray]:
    """The mean W (feature, component) and H (component, obs) of a result, labelled."""
    factors = read_factors(aligned, weights, activations)
    means = mean_over(factors.draws, axis=(0, 1))
    return {
        name: xr.DataArray(mean, dims=dims, coords={dim: aligned[dim] for dim in dims if dim in aligned.coords})
        for name, mean, dims in zip((weights, activations), means, _dims_of_factors(factors), strict=True)
        if mean is not None
    }


def _like_draws(name: str, given: Any, group: xr.Dataset, dims: tuple[Any, ...], axis: int) -> np.ndarray:
    """A factor of the reference along the dims of its draws, in the order that their labels have along one axis."""
    theirs: Any = None
    if isinstance(given, xr.DataArray):
        given = given.transpose(*dims) if {*given.dims} == {*dims} else given
        theirs = given.indexes.get(given.dims[axis]) if given.ndim == 2 else None
    elif isinstance(given, pd.DataFrame):
        theirs = given.axes[axis]
    found, shape = np.asarray(given, dtype=np.float64), tuple(group.sizes[dim] for dim in dims)
    if found.shape != shape:
        raise InputError("reference", f"{name} of shape {found.shape}", f"{shape}, that of the draws")
    if theirs is None or dims[axis] not in group.coords:
        return found
    return np.take(found, _order_of(name, theirs, group[dims[axis]].to_numpy(), dims[axis]), axis=axis)


def _order_of(name: str, theirs: pd.Index, ours: np.ndarray, dim: Any) -> np.ndarray:
    """The place of each of our labels among theirs; numbers from 0 on, in order, say nothing."""
    index, wanted = pd.Index(list(map(in_words, flat_labels(theirs)))), list(map(in_words, ours))
    if not contradict(theirs, ours) or index.tolist() == wanted:
        return np.arange(len(ours))
    if not index.is_unique or {*index} != {*wanted}:
        do = "components of other data are compared by their weights alone: give these as a mapping"
        raise InputError("reference", f"{name} with other labels of {dim!r}", "those of the draws, in any order", do)
    return np.asarray(index.get_indexer(wanted))


def _rescaled(group: xr.Dataset, factors: FactorDraws, factor: np.ndarray) -> xr.Dataset:
    """W divided by the factors (chain, draw, component), H multiplied."""
    by = xr.DataArray(factor, dims=(*LEADING, factors.component[0]))
    W = group[factors.weights]
    changed = {factors.weights: (W / by).transpose(*W.dims)}
    if factors.draws.H is not None:
        H = group[factors.activations]
        of_h = by.rename({factors.component[0]: factors.component[-1]})
        changed[factors.activations] = (H * of_h).transpose(*H.dims)
    return group.assign(changed)


def _report(
    aligned: xr.Dataset, factors: FactorDraws, reference: Components, found: tuple[np.ndarray, ...]
) -> xr.Dataset:
    """What was done to each draw, and what became of the reference's components."""
    names = factors.weights, factors.activations
    by_chain = mean_over(read_factors(aligned, *names).draws, axis=1)
    became = [
        correspondence(Components(W, None if by_chain.H is None else by_chain.H[chain]), reference)
        for chain, W in enumerate(by_chain.W)
    ]
    order, factor, cosine = found
    component = factors.component[0]
    by_draw = (*LEADING, component)
    report = xr.Dataset(
        {
            "order": (by_draw, order),
            "factor": (by_draw, factor),
            "cosine": (by_draw, cosine),
            "became": (("chain", component), np.array(became)),
            "switches": ("chain", np.any(order[:, 1:] != order[:, :-1], axis=-1).sum(axis=1)),
            f"{factors.weights}_reference": ((factors.feature, component), reference.W),
        },
        coords={dim: aligned[dim] for dim in (*by_draw, factors.feature, factors.obs) if dim in aligned.coords},
    )
    if reference.H is not None and factors.obs is not None:
        of_h = (factors.component[-1], factors.obs)
        report[f"{factors.activations}_reference"] = (of_h, reference.H)
    return report
