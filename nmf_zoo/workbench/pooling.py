"""One posterior from chains in several modes: every mode with as many draws as its share says."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import GROUP, REPORT, component_order, shares_of
from nmf_zoo.results.factor_draws import read_factors
from nmf_zoo.results.matching import Components, correspondence, mean_over
from nmf_zoo.results.modes import DECIDED, MODES, POOLED, UNDECIDED, describe_modes, require_modes
from nmf_zoo.results.posterior import LEADING, posterior_group
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.structure import Array

MODE = "mode"  # of every draw, in sample_stats
REFERENCE = "_reference"  # ends the names of the factors that draws were aligned with


@names_checked
def pool(idata: Any, *, draws: int | None = None, random_seed: Any = None) -> Result:
    """Resample the draws of chains in several modes by the modes' shares, into one posterior.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.weigh_modes` whose modes are decided
    draws : of each chain of the new result, of which there are as many as before; default as many as can be had
        without taking a draw twice. More repeat draws of modes whose share is larger than their part of the chains
    random_seed : integer, sequence of integers or NumPy Generator; None for a new one

    Returns
    -------
    A new InferenceData or DataTree. Every mode has as many draws as its share says (to one draw), evenly spaced among
    its own, and they are in random order: each chain is a sample of all modes. ``sample_stats`` has the variable
    ``mode``, by (chain, draw). Draws stay as they are: the group ``components``, with its names, and the ``alignment``
    of draws that were aligned, are those of the draws taken, and all chains are shown. Effective sample sizes are to be
    taken from ``idata``. Groups without draws stay, warm-up and ``modes`` do not.

    Raises
    ------
    InputError : the modes have not been weighed, or are undecided

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> idata = nz.sample(500, tune=200, chains=2, random_seed=1, quiet=True, model=model)
    >>> pooled = nz.pool(nz.weigh_modes(idata, model, random_seed=1, quiet=True), random_seed=1)
    >>> dict(pooled.posterior.sizes)["draw"]
    500
    """
    posterior = posterior_group(idata)
    modes = _decided(idata)
    mode_of_chain = modes["mode_of_chain"].to_numpy()
    shares = modes["share"].to_numpy()
    n_chains, available = (posterior.sizes[dim] for dim in LEADING)
    in_mode = [np.flatnonzero(mode_of_chain == mode) for mode in range(len(shares))]
    if draws is None:
        most = min(len(own) * available / share for own, share in zip(in_mode, shares, strict=True) if share > 0)
        draws = max(1, int(most) // n_chains)
    check_counts(draws=(draws, 1))
    sizes = apportion(shares, draws * n_chains)
    places = [_spread(own, available, size) for own, size in zip(in_mode, sizes, strict=True)]
    order = np.random.default_rng(entropy_of(random_seed)).permutation(draws * n_chains)
    chain, draw = (np.concatenate(each)[order].reshape(n_chains, draws) for each in zip(*places, strict=True))
    groups = {name: _compat.group(idata, name) for name in _compat.group_names(idata)}
    kept = {name: group for name, group in groups.items() if name != MODES and not name.startswith("warmup_")}
    pooled = {name: _resampled(group, chain, draw) for name, group in kept.items()}
    pooled |= _of_components(idata, pooled, chain, draw)
    if "sample_stats" in pooled:
        pooled["sample_stats"] = pooled["sample_stats"].assign({MODE: (LEADING, mode_of_chain[chain])})
    return _compat.of_kind(idata, pooled, {**idata.attrs, POOLED: describe_modes(modes)})


def _decided(idata: Any) -> xr.Dataset:
    """The group ``modes``, if it has shares."""
    modes = require_modes(idata)
    if UNDECIDED in modes["verdict"]:
        got = f"modes that are {UNDECIDED}"
        do = "weigh them with more draws=, or read each mode by itself: idata.sel(chain=[...])"
        raise InputError("idata", got, f"modes that are {DECIDED}, with shares", do)
    return modes


def apportion(shares: Array, total: int) -> Array:
    """Whole numbers that sum to ``total``, nearest to it times the shares: the largest remainders are rounded up."""
    exact = shares * total
    sizes = np.floor(exact).astype(np.int64)
    missing = total - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
    return sizes


def _spread(chains: Array, available: int, size: int) -> tuple[Array, Array]:
    """(chain, draw) of ``size`` draws, evenly spaced among all of these chains."""
    n = len(chains) * available
    places = (np.arange(size) * n) // max(size, 1)
    return chains[places // available], places % available


def _resampled(group: xr.Dataset, chain: Array, draw: Array) -> xr.Dataset:
    """The variables with draws, those taken; of a group without draws everything."""
    if not set(LEADING) & set(group.dims):
        return group
    drawn = group[[name for name, array in group.data_vars.items() if set(LEADING) <= set(array.dims)]]
    if not drawn.data_vars:
        return xr.Dataset()
    at = {
        name: xr.DataArray(index, dims=("new_chain", "new_draw"))
        for name, index in zip(LEADING, (chain, draw), strict=True)
    }
    taken = drawn.isel(at).drop_vars(LEADING).rename(new_chain="chain", new_draw="draw")
    own = {name: array.transpose(*LEADING, ...) for name, array in taken.data_vars.items()}
    return taken.assign(own).assign_coords(chain=np.arange(chain.shape[0]), draw=np.arange(chain.shape[1]))


def _of_components(idata: Any, pooled: dict[str, xr.Dataset], chain: Array, draw: Array) -> dict[str, xr.Dataset]:
    """The order of the components and the alignment, where the result has them, with what they say of chains."""
    found, names = {}, _factor_names(idata)
    order = component_order(idata, *names) if {GROUP, REPORT} & set(pooled) else None
    if order is not None:
        found[GROUP] = _order_of_all(order, _resampled(order, chain, draw))
    if REPORT in pooled:
        found[REPORT] = _alignment_of_all(_compat.group(idata, REPORT), pooled, names)
    return found


def _factor_names(idata: Any) -> tuple[str, str]:
    """Weights and activations, as the alignment or the order calls them."""
    groups = _compat.group_names(idata)
    if REPORT in groups:
        names = [str(name) for name in _compat.group(idata, REPORT).data_vars]
        weights, *activations = (name.removesuffix(REFERENCE) for name in names if name.endswith(REFERENCE))
        return weights, activations[0] if activations else "H"
    attrs = _compat.group(idata, GROUP).attrs if GROUP in groups else {}
    return attrs.get("weights", "W"), attrs.get("activations", "H")


def _order_of_all(order: xr.Dataset, taken: xr.Dataset) -> xr.Dataset:
    """Every chain is a sample of all modes, so that none is in another mode than the rest."""
    component = order["share"].dims[0]
    share, n_chains = shares_of(taken["log_size"].to_numpy()), taken.sizes["chain"]
    return taken.assign(
        became=(("chain", component), np.full((n_chains, len(share)), "matched")),
        shown=("chain", np.ones(n_chains, dtype=bool)),
        share=(component, share),
    )


def _alignment_of_all(report: xr.Dataset, pooled: dict[str, xr.Dataset], names: tuple[str, str]) -> xr.Dataset:
    """The references stay; what became of them, and how often the order changes, is that of the new chains."""
    references = {name: report[name] for name in (f"{own}{REFERENCE}" for own in names) if name in report}
    reference = Components(*(array.to_numpy() for array in references.values()), *[None] * (2 - len(references)))
    mean, taken = mean_over(read_factors(pooled["posterior"], *names).draws, axis=1), pooled[REPORT]
    H = [None] * len(mean.W) if mean.H is None else mean.H
    became = [correspondence(Components(*own), reference) for own in zip(mean.W, H, strict=True)]
    order = taken["order"].to_numpy()
    return taken.assign(references).assign(
        became=(report["became"].dims, np.array(became)),
        switches=("chain", np.any(order[:, 1:] != order[:, :-1], axis=-1).sum(axis=1)),
    )
