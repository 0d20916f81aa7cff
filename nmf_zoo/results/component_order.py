"""The one order of a result's components, in which everything shows them; draws stay as they were drawn.

Chains, and sometimes draws of one chain, number the same components differently. The group ``components`` of a result
says for every draw which of its components is the first, the second, ...: those of the best chain (of a fit, the best
restart) in falling order of what they add to W H, and in every other draw those that match them. Components that the
model labels keep the places that the best chain has them in, and known ones are where the model puts them.

The group is made at the end of a run that keeps its draws in memory. Of a result without it, one with ``store=``, an
older one or another library's, it is made when it is asked for. Tables and pictures show the chains that are in the
mode of the best one, unless they are asked for a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import writable_labels
from nmf_zoo.options import names_checked
from nmf_zoo.results.factor_draws import FactorDims, factor_dims, log_sizes, relevances_in
from nmf_zoo.results.groups import coords_along
from nmf_zoo.results.matching import (
    Array,
    Components,
    best_pairs,
    correspondence,
    fixed_places,
    match,
    unchanged,
    with_unit_sums,
)
from nmf_zoo.results.posterior import LEADING, best_chain, draw_parts, draws_or_means, with_known_weights
from nmf_zoo.structure import Factorisation, Flat, Known

GROUP, REPORT = "components", "alignment"  # the order of the draws; the group of a result whose draws are in order
MOST_CELLS = 100  # features, and samples, that components are matched on
FEWEST = 2  # of these for each component
MOST_LOST = 0.05  # of W H, in components that a chain lacks, for it to be in the mode of the best one
LEAST, MOST = 1e-50, 1e50  # of the largest cell of a factor: sums and products of its cells are numbers, and not 0
EMPTY = 200.0  # by so much smaller in the logarithm than the largest, a component may be 0 in its cosines
MOST_ROUNDS = 10  # of making the reference: matching settles after two or three


def component_order(idata: Any, weights: str = "W", activations: str = "H") -> xr.Dataset | None:
    """The group ``components``: as the result has it, else made from its draws; None without draws of ``weights``.

    Returns
    -------
    Dataset, by draw in that order: ``order`` (chain, draw, component), which component of the raw draw it is, and
    ``log_size``, the logarithm of what it adds to W H. ``became`` (chain, component) says what it is in the chain's
    mean: "matched", "split", "merged" or "different"; ``shown`` (chain) whether the chain is in the mode of the best
    one; ``share`` (component) its part of W H in these chains. Labels of components are the posterior's
    """
    group = with_known_weights(idata, draws_or_means(idata), weights)
    if weights not in group:
        return None
    dims, names = factor_dims(group, weights, activations), _compat.group_names(idata)
    stored, best = _compat.group(idata, GROUP) if GROUP in names else None, best_chain(idata)
    if stored is not None and not _is_of(stored, group, dims):
        stored = None
    if stored is not None:
        shown = stored["shown"].to_numpy()
        if not shown.any() and (len(shown) == 1 or "fit" in names):  # one chain, or restart, was chosen
            return _with_shown(stored, np.arange(len(shown)) == best)
        if shown[best] or (shown.any() and is_aligned(idata)):
            return _with_shown(stored, shown)
    logs = log_sizes(group, dims)
    if is_aligned(idata):
        became = _compat.group(idata, REPORT)["became"].to_numpy()
        order = np.broadcast_to(np.arange(became.shape[1]), (*_lead(group), became.shape[1]))
    else:
        order, became = _matched(group, dims, best, logs)
    if stored is not None and not stored["shown"].any():  # chains of another mode were chosen: numbers stay
        same = _places(stored, best, order)
        order, became = order[..., same], became[:, same]
    is_best = np.arange(len(became)) == best
    found = _dataset(group, dims, logs, order, became, is_best)
    if "fit" in names:
        return found
    lost = np.sum(np.where(became == "matched", 0.0, found["share"].to_numpy()), axis=1)
    found = _dataset(group, dims, logs, order, became, is_best | (lost < MOST_LOST))
    return found if stored is None else _with_names_of(stored, found, best)


def result_order(idata: Any, structure: Factorisation) -> xr.Dataset | None:
    """The group of a new result; None where the dims of W and H do not say which of them are components'."""
    names, posterior = (structure.W.name, structure.H.name), draws_or_means(idata)
    if not set(names) <= set(posterior.data_vars) or not _says_components(posterior, structure):
        return None
    return component_order(idata, *names)


def _says_components(posterior: xr.Dataset, structure: Factorisation) -> bool:
    """Whether the dims alone tell what the structure knows of W and H."""
    variables, factors = posterior.variables, (structure.W, structure.H)
    (feature, component), (own, obs) = (
        factor.orient_dims(tuple(map(str, variables[factor.name].dims[2:]))) for factor in factors
    )
    try:
        found = factor_dims(posterior, structure.W.name, structure.H.name)
    except InputError:
        return False
    return (found.feature, found.component, found.own, found.obs) == (feature, component, own, obs)


def _with_shown(order: xr.Dataset, shown: Array) -> xr.Dataset:
    """The same order, of which these chains are shown."""
    share = shares_of(order["log_size"].to_numpy()[shown])
    return order.assign(shown=("chain", shown), share=(order["share"].dims, share))


def _places(stored: xr.Dataset, best: int, order: Array) -> Array:
    """(K,) where another order of the same draws has what the stored one has first, second, ..., by the best chain."""
    return np.argsort(order[best, -1])[stored["order"].to_numpy()[best, -1]]


def _with_names_of(stored: xr.Dataset, found: xr.Dataset, best: int) -> xr.Dataset:
    """Names that somebody gave stay with their components where another chain has become the best one."""
    component = found["share"].dims[0]
    if component not in stored.coords:
        return found
    names = stored[component].to_numpy()
    if component in found.coords and np.array_equal(names, found[component].to_numpy()):
        return found
    was_at = np.argsort(_places(stored, best, found["order"].to_numpy()))
    return found.assign_coords({component: names[was_at]})


@names_checked
def name_components(
    idata: Any, names: Sequence[str] | Mapping[Any, str], *, weights: str = "W", activations: str = "H"
) -> Any:
    """Give the components names, under which every table, picture, report and file shows them.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`, or anyone's draws of W and H
    names : a name for each component in the order that tables and pictures have; or names by number, or by name as it
        is, of some of them
    weights, activations : names of the two factors

    Returns
    -------
    A new InferenceData or DataTree. The draws keep their labels: they are in an order of their own, until
    :func:`~nmf_zoo.align` puts them into that of the names

    Raises
    ------
    InputError : too few or too many names, one twice, one that can't be saved, or a component that is not there

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> idata = nz.fit(nz.poisson_nmf([[9, 8, 0], [0, 1, 7]], 2), engine="em", random_seed=1, quiet=True)
    >>> list(nz.top_features(nz.name_components(idata, ["days", "nights"]), 1)["component"])
    ['days', 'nights']
    """
    order = component_order(idata, weights, activations)
    if order is None:
        raise InputError("idata", f"a result without {weights}", "one whose weights were kept")
    component = order["share"].dims[0]
    old = order[component].to_numpy() if component in order.coords else np.arange(order.sizes[component])
    given = _names_of([str(label) for label in old], names)
    if len(set(given)) < len(given):
        raise InputError("names", ", ".join(given), "each name once")
    labels = writable_labels("component", np.array(given))
    return _compat.with_groups(idata, {GROUP: order.assign_coords({component: labels})})


def _names_of(labels: list[str], names: Any) -> list[str]:
    """A name for each of the components with these labels."""
    if isinstance(names, Mapping):
        unknown = [str(key) for key in names if str(key) not in labels]
        if unknown:
            raise InputError("names", f"a name for {unknown[0]!r}", f"names of some of {', '.join(labels)}")
        by_label = {str(key): str(name) for key, name in names.items()}
        return [by_label.get(label, label) for label in labels]
    is_list = isinstance(names, Sequence | np.ndarray) and not isinstance(names, str)
    if not is_list or len(names) != len(labels):
        got = number_of(len(names), "name") if is_list else repr(names)[:80]
        raise InputError("names", got, f"{len(labels)}, one for each component, or a mapping of some of them")
    return [str(name) for name in names]


def as_they_are(group: xr.Dataset, weights: str, activations: str) -> dict[str, xr.Dataset]:
    """Draws that are in order already, and the group ``components`` that says so: groups of a result."""
    if weights not in group:
        return {"posterior": group}
    dims = factor_dims(group, weights, activations)
    rank = group.sizes[dims.component]
    order = np.broadcast_to(np.arange(rank), (*_lead(group), rank))
    became, shown = np.full((order.shape[0], rank), "matched"), np.ones(order.shape[0], dtype=bool)
    return {"posterior": group, GROUP: _dataset(group, dims, log_sizes(group, dims), order, became, shown)}


def known_of_components(prior: Any, rank: int) -> dict[str, Known]:
    """The known numbers of a prior of H, by field, that tell its components apart."""
    prior = getattr(prior, "base", prior)
    found = {field.name: getattr(prior, field.name) for field in fields(prior)}
    return {
        name: own
        for name, own in found.items()
        if isinstance(own, Known)
        and own.value.ndim == 2
        and len(own.value) == rank
        and np.any(own.value != own.value[:1])
    }


def require_as_drawn(idata: Any, structure: Factorisation) -> None:
    """Refuse draws whose scale or order was changed, where H's prior belongs to those that they were drawn with."""
    is_rescaled = "rescaled" in idata.attrs or idata.attrs.get("aligned") == "unit_sum"
    if is_rescaled and not (structure.W.is_fixed or isinstance(structure.H.prior, Flat)):
        got, do = f"draws of {structure.W.name} of unit sums", 'give the result before, or nz.align(..., scale="drawn")'
        raise InputError("idata", got, "the scale that they were drawn with, to which the prior of H belongs", do)
    told_apart = known_of_components(structure.H.prior, structure.rank)
    if is_aligned(idata) and told_apart:
        got = f"components in the order of nz.align, beside {' and '.join(told_apart)} that differ between them"
        raise InputError("idata", got, "the model's order", "give the result itself")


def is_aligned(idata: Any) -> bool:
    """Whether the draws themselves are in an order that :func:`~nmf_zoo.align` gave them."""
    return REPORT in _compat.group_names(idata)


def _is_of(stored: xr.Dataset, group: xr.Dataset, dims: FactorDims) -> bool:
    """Whether a group is ours, of these factors, and of these draws and components, as far as their sizes tell."""
    if not {"order", "log_size", "became", "shown", "share"} <= set(stored.data_vars):
        return False
    names = stored.attrs.get("weights"), stored.attrs.get("activations")
    shape = *_lead(group), group.sizes[dims.component]
    if names != (dims.weights, dims.activations) or stored["order"].shape != shape:
        return False
    ends = {"draw": [0, -1]}
    order, now = stored["order"].isel(ends).to_numpy(), log_sizes(group.isel(ends), dims)
    is_order = np.all(np.sort(order, axis=-1) == np.arange(shape[2]))
    then = stored["log_size"].isel(ends).to_numpy()
    return bool(is_order) and np.allclose(np.take_along_axis(now, order, -1), then, rtol=1e-9, atol=1e-9)


def _lead(group: xr.Dataset) -> tuple[int, int]:
    return group.sizes["chain"], group.sizes["draw"]


def _dataset(group: xr.Dataset, dims: FactorDims, logs: Array, order: Array, became: Array, shown: Array) -> xr.Dataset:
    """``logs`` are the draws' own, before they are put into ``order``."""
    logs, component = np.take_along_axis(logs, order, axis=-1), dims.component
    return xr.Dataset(
        {
            "order": ((*LEADING, component), order.astype(np.int32)),
            "log_size": ((*LEADING, component), logs),
            "became": (("chain", component), became),
            "shown": ("chain", shown),
            "share": (component, shares_of(logs[shown])),
        },
        coords=coords_along(group, (*LEADING, component)),
        attrs={"weights": dims.weights, "activations": dims.activations},
    )


def shares_of(logs: Array) -> Array:
    """(K,) parts of W H, from the logarithms (chain, draw, K) of what components add to it."""
    sizes = relative_sizes(logs).mean(axis=(0, 1))
    return sizes / max(sizes.sum(), 1e-300)


def describe_shown(order: xr.Dataset, idata: Any) -> str:
    """The chains (restarts of a fit) that are shown, in words."""
    shown = order["shown"].to_numpy()
    labels = [str(label) for label in order["chain"].to_numpy()[shown]]
    if "fit" in _compat.group_names(idata):
        return f"restart {labels[0]}"
    if len(labels) == len(shown) > 1:
        return f"all {len(labels)} chains"
    one_of = " (the others are in other modes)" if len(labels) < len(shown) else ""
    return f"chain{'s' * (len(labels) > 1)} {', '.join(labels)}{one_of}"


def with_cells(order: xr.Dataset, group: xr.Dataset, dims: FactorDims) -> xr.Dataset:
    """The same order, of draws of fewer cells."""
    logs = np.take_along_axis(log_sizes(group, dims), order["order"].to_numpy(), axis=-1)
    return order.assign(log_size=(order["log_size"].dims, logs))


# -- from the draws --------------------------------------------------------------------------------------------------


def _matched(group: xr.Dataset, dims: FactorDims, best: int, logs: Array) -> tuple[Array, Array]:
    """(order (chain, draw, component), what became of each component in each chain), by sizes of the draws."""
    if logs.shape[:2] == (1, 1) and np.all(logs > logs.max() - EMPTY):  # one draw is like itself, and none is known
        by_size = _by_size(group, dims, logs[0], np.zeros(logs.shape[2], dtype=bool))
        return by_size[None, None], np.full((1, len(by_size)), "matched")
    cells = _Cells(group, dims)
    known = cells.known()
    found, own, is_settled = chain_mean(cells, best, known)
    by_size = _by_size(group, dims, np.take_along_axis(logs[best], own, -1), known)
    orders, became = [], []
    for chain in range(group.sizes["chain"]):
        is_done = chain == best and is_settled
        mean, order = (found, own) if is_done else cells.mean_like(chain, found, known)
        orders.append(order[:, by_size])
        became.append(correspondence(mean.reordered(by_size), found.reordered(by_size)))
    return np.stack(orders), np.array(became)


def _by_size(group: xr.Dataset, dims: FactorDims, logs: Array, known: Array) -> Array:
    """(K,) components in falling order of their mean size over draws; labelled and known ones stay in place."""
    if not is_counted(group, dims.component):
        return np.arange(logs.shape[1])
    return _largest_first(relative_sizes(logs).mean(axis=0), known)


class _Cells:
    """The draws of both factors at the features and samples that are largest in some component, a few at a time."""

    def __init__(self, group: xr.Dataset, dims: FactorDims):
        most = max(MOST_CELLS, FEWEST * group.sizes[dims.component])
        own = {dims.weights: (dims.feature, dims.component)}
        own |= {} if dims.obs is None else {dims.activations: (dims.obs, dims.own)}
        variables = {name: group[name].variable for name in own}  # which are cut faster than arrays with labels
        self.factors = [
            variables[name]
            .isel({along: largest_cells(variables[name], along, most)})
            .transpose(*LEADING, along, component)
            for name, (along, component) in own.items()
        ]
        self.n_draws = group.sizes["draw"]
        # Of a draw, all cells: what lies on disk is read whole, and then cut.
        self.size = sum(variable.nbytes for variable in variables.values()) // (group.sizes["chain"] * self.n_draws)
        tops = [float(factor.isel(draw=-1).max()) for factor in self.factors]
        self.units = [1.0 if top == 0.0 or LEAST <= top <= MOST else top for top in tops]

    def parts(self, chain: int) -> Iterator[Components]:
        """Draws of one chain, some at a time, in units in which sums and products of huge ones are numbers."""
        for part in draw_parts(self.n_draws, self.size):
            arrays = [factor[chain, part].to_numpy() for factor in self.factors]
            W, *H = (array if unit == 1.0 else array / unit for array, unit in zip(arrays, self.units, strict=True))
            yield Components(W, np.swapaxes(H[0], -1, -2) if H else None)

    def last(self, chain: int) -> Components:
        *_, part = self.parts(chain)
        return Components(part.W[-1], None if part.H is None else part.H[-1])

    def known(self) -> Array:
        """(K,) which components are known, by all draws of all chains."""
        one, n_chains = self.last(0), self.factors[0].sizes["chain"]
        return fixed_places(unchanged(part, one) for chain in range(n_chains) for part in self.parts(chain))

    def mean_like(self, chain: int, reference: Components, known: Array) -> tuple[Components, Array]:
        """(the mean of a chain's draws, columns of W summing to one, in the reference's order; the order of each)"""
        orders: list[Array] = []
        sums: list[Any] = [0.0, None if reference.H is None else 0.0]
        for part in self.parts(chain):
            orders.append(match(part, reference, known).order)
            units = with_unit_sums(part.reordered(orders[-1]))
            sums = [None if own is None else so_far + own.sum(axis=0) for so_far, own in zip(sums, units, strict=True)]
        W, H = sums
        return Components(W / self.n_draws, None if H is None else H / self.n_draws), np.concatenate(orders)


def chain_mean(cells: _Cells, chain: int, known: Array) -> tuple[Components, Array, bool]:
    """The mean of one chain's draws once they are matched, beginning with its last one, in whose order; and theirs.

    And whether they are the draws' matches with this mean, too: the order, and with it the mean, stays.
    """
    found, order = cells.last(chain), np.empty((0, 0))
    if cells.n_draws == 1:  # its own mean, and in its own order
        return with_unit_sums(found), np.arange(found.rank)[None], True
    for _ in range(MOST_ROUNDS):
        before = order
        mean, order = cells.mean_like(chain, found, known)
        if np.array_equal(before, order):
            return found, order, True
        found = mean
    return found, order, False


def is_counted(group: xr.Dataset, component: Any) -> bool:
    """Whether components are numbered 0, 1, 2, ..., and not labelled by the model."""
    if component not in group.coords:
        return True
    labels = group.variables[component].to_numpy()
    return labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(labels)))


def relative_sizes(logs: Array) -> Array:
    """Sizes from their logarithms, in units of the largest; zeros where all are."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.exp(logs - logs.max()))


def _largest_first(sizes: Array, known: Array) -> Array:
    """Components by size; those that are known stay in place."""
    by_size, free = np.arange(len(sizes)), np.flatnonzero(~known)
    by_size[free] = free[np.argsort(-sizes[free], kind="stable")]
    return by_size


def largest_cells(factor: xr.DataArray | xr.Variable, along: Any, n: int) -> Array:
    """Places along a dim where the components of the last draws are largest, each in parts of its own largest cell."""
    last = factor.isel(draw=-1).transpose("chain", ..., along).to_numpy()
    top = last.max(axis=-1, keepdims=True)
    score = np.divide(last, top, out=np.zeros(last.shape), where=top > 0).max(axis=(0, 1))
    return np.sort(np.argsort(-score, kind="stable")[:n])


# -- draws in that order ---------------------------------------------------------------------------------------------


def draws_in_order(
    idata: Any, chain: int | None, weights: str = "W", activations: str = "H", names: Iterable[str] | None = None
) -> Iterator[xr.Dataset]:
    """Yields the draws (1, draw, ...) of a chain, or of each that is shown when None, their components in order.

    ``names`` : the variables that are wanted, default the factors. What lies on disk stays there, unless components
    change places within the chain. Of a result that has draws of some variables and the means of all, these where
    they hold all that is wanted.
    """
    wanted = list(names or (weights, activations))
    group = with_known_weights(idata, draws_or_means(idata, wanted), weights)
    labels = group["chain"].to_numpy()
    if chain is not None and chain not in labels:
        raise InputError("chain", repr(chain), f"one of {labels.tolist()}, or None for all in the mode of the best one")
    found = component_order(idata, weights, activations)
    if found is None:
        yield group.sel(chain=[labels[best_chain(idata)] if chain is None else chain])
        return
    kept = group[[name for name in wanted if name in group]]
    dims = dims_in(idata, weights, activations)
    order = np.broadcast_to(found["order"].to_numpy(), (*_lead(group), found.sizes[found["share"].dims[0]]))
    for at in np.flatnonzero(found["shown"].to_numpy() if chain is None else labels == chain):
        one = reordered(kept.isel(chain=slice(at, at + 1)), dims, order[[at]])
        yield with_names(one, found, dims)


def dims_in(idata: Any, weights: str, activations: str) -> FactorDims:
    """Which dim of a result is which, known weights included; the draws are not read."""
    return factor_dims(with_known_weights(idata, draws_or_means(idata), weights), weights, activations)


def usual_order(found: xr.Dataset, chain: Any) -> Array:
    """(K,) the components of a chain as they were drawn, in the order of ``found``, which most of its draws have."""
    orders = found["order"].sel(chain=chain).to_numpy()
    times = np.sum(orders[:, :, None] == np.arange(orders.shape[1]), axis=0)
    return np.asarray(best_pairs(times)[1])


def as_shown(idata: Any, group: xr.Dataset, weights: str, activations: str) -> xr.Dataset:
    """One chain's variables of another group than the draws, components in order and under the names of the result.

    They are in the order in which they were drawn, also where draws have been aligned since.
    """
    found = component_order(idata, weights, activations)
    if found is None:
        return group
    dims = dims_in(idata, weights, activations)
    raw = _compat.group(idata, REPORT) if is_aligned(idata) else found
    order = usual_order(raw, group["chain"].item())
    return with_names(group.isel({dim: order for dim in {dims.component, dims.own} if dim in group.dims}), found, dims)


def with_names(group: xr.Dataset, order: xr.Dataset, dims: FactorDims) -> xr.Dataset:
    """Draws in order, under the names that the order has for components."""
    if dims.component not in order.coords:
        return group
    names = order[dims.component].to_numpy()
    return group.assign_coords({dim: names for dim in {dims.component, dims.own} if dim in group.dims})


def reordered(group: xr.Dataset, dims: FactorDims, order: Array, relevances: Sequence[str] = ()) -> xr.Dataset:
    """Every variable with a dim of components, draw by draw; ``order`` (chain, draw, component).

    Relevances, these and those of :class:`~nmf_zoo.ARD`, have a value for each component whatever their dim is called.
    """
    own, first = {dims.component, dims.own}, order[0, 0]
    for array in (group[name] for name in {*relevances, *relevances_in(group)} if name in group):
        others = set(array.dims) - {*LEADING, dims.feature, dims.obs}
        own |= others if array.ndim == len(LEADING) + 1 and array.size == order.size else set()
    if np.all(order == np.arange(len(first))):
        return group
    if np.all(order == first):
        coords = {dim: group[dim] for dim in own if dim in group.coords}
        return group.isel({dim: first for dim in own if dim in group.dims}).assign_coords(coords)
    changed = {}
    for name in group.data_vars:
        array = group[name].transpose(*LEADING, ...)
        for axis, dim in enumerate(array.dims):
            if dim in own:
                index = np.expand_dims(order, tuple(a for a in range(2, array.ndim) if a != axis))
                moved = xr.DataArray(np.take_along_axis(array.to_numpy(), index, axis), dims=array.dims)
                changed[name] = moved.transpose(*group[name].dims)
    return group.assign(changed)
