"""Draws of the factors with the components in the same order and on the same scale throughout.

The posterior of a factorisation has a mode for each order of the components, and between chains, sometimes within one,
they swap places; R-hat of raw draws then says that chains disagree even where they do not. Here every draw is matched
to one factorisation, the raw draws are kept, and what can't be matched is named.

**Which component is which.** A component is its source, the rank-one table w_k h_k' that it adds to W H. The cosine of
two sources is the product of the cosines of their columns of W and of their rows of H: it does not depend on how a
source shares its scale between them. Matches are those with the largest sum of cosines (Kuhn 1955; the solver is
SciPy's).

All functions take factors W (..., F, K) and H (..., K, N); where either side has no H columns of W are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from scipy.optimize import linear_sum_assignment

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.results.components import REPORT, weights_of
from nmf_zoo.results.modes import weighed_modes
from nmf_zoo.results.posterior import LEADING, best_chain, posterior_group

Array = np.ndarray
ALIKE = 0.9  # cosine above which two sources count as the same one
CLEARER = 0.05  # by how much a sum of two must be nearer than either of them


class Components(NamedTuple):
    """W (..., F, K); H (..., K, N) or None."""

    W: Array
    H: Array | None

    @property
    def rank(self) -> int:
        return self.W.shape[-1]

    def reordered(self, order: Array) -> Components:
        """Component j is the order[..., j]-th of these."""
        W = np.take_along_axis(self.W, order[..., None, :], -1)
        return Components(W, None if self.H is None else np.take_along_axis(self.H, order[..., :, None], -2))


class Matching(NamedTuple):
    """order : (..., K), which component matches each of the reference's; cosine : (..., K) of each match."""

    order: Array
    cosine: Array


def products(one: Components, other: Components) -> Array:
    """(..., K, K) inner products of the sources of ``one`` (rows) and of ``other``."""
    of_w = np.swapaxes(one.W, -1, -2) @ other.W
    if one.H is None or other.H is None:
        return of_w
    return of_w * np.matmul(one.H, np.swapaxes(other.H, -1, -2), dtype=np.float64)  # states have one byte each


def comparable(one: Components, other: Components) -> tuple[Components, Components]:
    """Both without H where one of them has none."""
    if one.H is None or other.H is None:
        return one._replace(H=None), other._replace(H=None)
    return one, other


def norms(components: Components) -> Array:
    """(..., K) norms of the sources."""
    of_w = np.sqrt(np.einsum("...fk,...fk->...k", components.W, components.W))
    if components.H is None:
        return of_w
    return of_w * np.sqrt(np.einsum("...kn,...kn->...k", components.H, components.H, dtype=np.float64))


def cosines(one: Components, other: Components) -> Array:
    """(..., K, K) cosines of the sources of ``one`` (rows) and of ``other``; 0 with one that is empty."""
    one, other = comparable(one, other)
    scale = norms(one)[..., :, None] * norms(other)[..., None, :]
    return np.divide(products(one, other), scale, out=np.zeros(scale.shape), where=scale > 0)


def match(components: Components, reference: Components, known: Array | None = None) -> Matching:
    """The components (..., F, K) in the order of the reference's (F, K); those ``known``, (K,) bool, stay in place."""
    table = cosines(reference, components)
    order = np.empty(table.shape[:-1], dtype=np.int64)
    order[...] = np.arange(reference.rank)
    free = np.arange(reference.rank) if known is None else np.flatnonzero(~known)
    for at in np.ndindex(table.shape[:-2]):
        order[(*at, free)] = free[linear_sum_assignment(table[at][np.ix_(free, free)], maximize=True)[1]]
    return Matching(order, np.take_along_axis(table, order[..., None], -1)[..., 0])


def correspondence(mean: Components, reference: Components) -> list[str]:
    """What became of each of the reference's components in ``mean``, which is in the reference's order.

    "matched"; "split" into the sum of two components; "merged" with another one of the reference's in one component;
    "different" where none of these is alike.
    """
    mean, reference = comparable(mean, reference)
    own, theirs, cross = products(mean, mean), products(reference, reference), products(reference, mean)
    return [_what_became(k, own, theirs, cross) for k in range(reference.rank)]


def _what_became(k: int, own: Array, theirs: Array, cross: Array) -> str:
    """``own`` and ``theirs``: products within the mean and within the reference; ``cross``: (theirs, own)."""
    alike = _cosine(cross[k, k], theirs[k, k], own[k, k])
    if alike >= ALIKE:
        return "matched"
    pairs = ~np.eye(len(own), dtype=bool)
    of_two = _cosine(cross[k][:, None] + cross[k], theirs[k, k], _of_sums(own))
    split = of_two.max(where=pairs, initial=0.0)
    of_mine = _cosine(cross[k] + cross, np.diagonal(own), _of_sums(theirs)[k][:, None])  # (other reference's, mean's)
    merged = of_mine.max(where=pairs[k][:, None], initial=0.0)
    if max(split, merged) < ALIKE or max(split, merged) < alike + CLEARER:
        return "different"
    return "split" if split >= merged else "merged"


def _of_sums(products: Array) -> Array:
    """(K, K) squared norms of the sums of two components."""
    squares = np.diagonal(products)
    return squares[:, None] + 2 * products + squares


def _cosine(product: Array, square: Array, other_square: Array) -> Array:
    """Of sources with these squared norms; 0 with one that is empty."""
    scale = np.sqrt(square) * np.sqrt(other_square)  # a product of squares may be beyond all numbers
    return np.divide(product, scale, out=np.zeros(np.shape(scale)), where=scale > 0)


# -- alignment -------------------------------------------------------------------------------------------------------


RAW = "unaligned_posterior"
SCALES = ("unit_sum", "drawn")
MOST_ROUNDS = 10  # of making the reference: matching settles after two or three


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
    reference : what to match: a result (the mean of its aligned draws is meant), or a Dataset or mapping with W and H;
        default the mean of the chain with the highest mean ``lp`` (of the first one where there is no ``lp``; of the
        heaviest mode where modes have been weighed), its components in falling order of what they add to W H
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
    group = posterior_group(idata)
    factors = read_factors(group, weights, activations)
    known = known_components(factors.draws)
    if reference is None:
        chosen = _own_reference(factors.draws, best_chain(idata), known)
    else:
        chosen = _given_reference(reference, factors)
    order, cosine = match(factors.draws, chosen, known)
    factor = column_sums(factors.draws) if scale == "unit_sum" else np.ones(order.shape)
    aligned = _reordered(_rescaled(group, factors, factor), factors, order)
    report = _report(aligned, factors, chosen, (order, np.take_along_axis(factor, order, -1), cosine))
    if (modes := weighed_modes(idata)) is not None:
        report = report.assign(mode=("chain", modes["mode_of_chain"].to_numpy()))
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata)}
    raw = groups.get(RAW, group)
    attrs = {**idata.attrs, "aligned": scale}
    return _compat.inference_data({**groups, "posterior": aligned, RAW: raw, REPORT: report}, attrs)


@dataclass(frozen=True)
class Factors:
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
    feature, component : of W
    own, obs : of H; ``own`` is its dim of components, mostly the same as ``component``
    """

    feature: Any
    component: Any
    own: Any
    obs: Any


def factor_dims(group: xr.Dataset, weights: str, activations: str) -> FactorDims:
    """Which dim is which; the draws are not read."""
    W, component = weights_of(group, weights, activations)
    (feature,) = (dim for dim in W.dims if dim not in {*LEADING, component})
    if activations not in group:
        return FactorDims(feature, component, component, None)
    H = group[activations]
    of_h = [dim for dim in H.dims if dim not in LEADING]
    own = component if component in of_h else of_h[0]
    (obs,) = (dim for dim in of_h if dim != own)
    if H.sizes[own] != W.sizes[component]:
        got = f"{weights} with {W.sizes[component]} components, {activations} with {H.sizes[own]}"
        raise InputError("idata", got, "factors with as many components", "name the factors: weights=, activations=")
    return FactorDims(feature, component, own, obs)


def read_factors(group: xr.Dataset, weights: str, activations: str) -> Factors:
    """Both factors of a posterior, in memory."""
    dims = factor_dims(group, weights, activations)
    W, H = group[weights].transpose(*LEADING, dims.feature, dims.component).to_numpy(), None
    if dims.obs is not None:
        H = group[activations].transpose(*LEADING, dims.own, dims.obs).to_numpy()
    component = tuple(dict.fromkeys((dims.component, dims.own)))
    return Factors(Components(W, H), weights, activations, dims.feature, dims.obs, component)


def column_sums(draws: Components) -> np.ndarray:
    """Sums of W's columns, 1 for one of zeros."""
    sums = draws.W.sum(axis=-2)
    return np.where(sums > 0, sums, 1.0)


def known_components(draws: Components) -> Array:
    """(K,) which components have a column of W, or a row of H, that is the same in all of several draws.

    Nobody drew it: it has its place from the model, and no other component can take it. Where all columns are the same
    the whole factor is a point, of a fit perhaps, and says nothing of places; nor do rows of states.
    """
    known = np.zeros(draws.W.shape[-1], dtype=bool)
    for factor, cells in ((draws.W, -2), (draws.H, -1)):
        if factor is None or factor.dtype.kind != "f":
            continue
        of_draws = factor.reshape(-1, *factor.shape[2:])
        constant = np.all(of_draws == of_draws[:1], axis=(0, cells))
        if not constant.all():  # one draw is the same as itself
            known |= constant
    return known


def _own_reference(draws: Components, chain: int, known: Array) -> Components:
    """The mean of a chain's draws once they are aligned, beginning with its last draw, the largest component first.

    Components that are known stay in place.
    """
    of_chain = _unit_sum(Components(draws.W[chain], None if draws.H is None else draws.H[chain]))
    found = Components(of_chain.W[-1], None if of_chain.H is None else of_chain.H[-1])
    order = np.empty((0, 0))
    for _ in range(MOST_ROUNDS):
        before, order = order, match(of_chain, found, known).order
        if np.array_equal(before, order):
            break
        found = mean_over(of_chain.reordered(order), axis=0)
    sizes = found.W.sum(axis=0) if found.H is None else found.H.sum(axis=1)
    by_size, free = np.arange(found.rank), np.flatnonzero(~known)
    by_size[free] = free[np.argsort(-sizes[free], kind="stable")]
    return found.reordered(by_size)


def _unit_sum(draws: Components) -> Components:
    sums = column_sums(draws)
    return Components(draws.W / sums[..., None, :], None if draws.H is None else draws.H * sums[..., :, None])


def mean_over(draws: Components, axis: int | tuple[int, ...]) -> Components:
    """The mean of both factors."""
    return Components(draws.W.mean(axis), None if draws.H is None else draws.H.mean(axis))


def _given_reference(reference: Any, factors: Factors) -> Components:
    """The user's, with the shape of the draws."""
    names = factors.weights, factors.activations
    if isinstance(reference, _compat.INFERENCE_DATA):
        aligned = align(reference, weights=names[0], activations=names[1])
        found = mean_over(read_factors(_compat.group(aligned, "posterior"), *names).draws, axis=(0, 1))
    elif isinstance(reference, Mapping | xr.Dataset) and names[0] in reference:
        W, H = (np.asarray(reference[name], dtype=np.float64) if name in reference else None for name in names)
        assert W is not None
        found = Components(W, H)
    else:
        raise InputError("reference", type(reference).__name__, f"a result, or a mapping with {' and '.join(names)}")
    for name, given, drawn in zip(names, found, factors.draws, strict=True):
        if given is not None and drawn is not None and given.shape != drawn.shape[2:]:
            raise InputError("reference", f"{name} of shape {given.shape}", f"{drawn.shape[2:]}, that of the draws")
    return found


def _rescaled(group: xr.Dataset, factors: Factors, factor: np.ndarray) -> xr.Dataset:
    """W divided by the factors (chain, draw, component), H multiplied."""
    by = xr.DataArray(factor, dims=(*LEADING, factors.component[0]))
    W = group[factors.weights]
    changed = {factors.weights: (W / by).transpose(*W.dims)}
    if factors.draws.H is not None:
        H = group[factors.activations]
        of_h = by.rename({factors.component[0]: factors.component[-1]})
        changed[factors.activations] = (H * of_h).transpose(*H.dims)
    return group.assign(changed)


def _reordered(group: xr.Dataset, factors: Factors, order: np.ndarray) -> xr.Dataset:
    """Every variable with a dim of components, draw by draw."""
    changed = {}
    for name in group.data_vars:
        array = group[name].transpose(*LEADING, ...)
        for axis, dim in enumerate(array.dims):
            if dim in factors.component:
                index = np.expand_dims(order, tuple(a for a in range(2, array.ndim) if a != axis))
                moved = xr.DataArray(np.take_along_axis(array.to_numpy(), index, axis), dims=array.dims)
                changed[name] = moved.transpose(*group[name].dims)
    return group.assign(changed)


def _report(aligned: xr.Dataset, factors: Factors, reference: Components, found: tuple[np.ndarray, ...]) -> xr.Dataset:
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
