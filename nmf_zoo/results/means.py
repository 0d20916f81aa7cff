"""Posterior means and standard deviations of the variables, from streamed moments or from draws, on disk too."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.kernels.numerics.moments import add_draws
from nmf_zoo.options import names_checked
from nmf_zoo.results.posterior import draw_parts, posterior_group
from nmf_zoo.results.trace_storage import MEAN, MOMENTS, SD, spread


@names_checked
def moments(idata: Any, *, pooled: bool = False) -> xr.Dataset:
    """Posterior mean and standard deviation of every variable.

    Components swap places between chains, and may within one: the moments of W and H belong to a chain's labelling, and
    pooled ones mean something only for what does not depend on labels, or when all chains label alike. ``lp`` and cells
    of W H, which do not depend on them, are in :func:`~nmf_zoo.summarise`.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`; draws on disk are read a part at a time
    pooled : over the draws of all chains, not chain by chain

    Returns
    -------
    Dataset with ``W_mean``, ``W_sd``, ... of dims (chain, ...), or without chain when pooled, and ``draws``, their
    number. The deviations divide by one less than that: NaN for a single draw.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[1, 0, 4], [2, 3, 0]], rank=1)
    >>> idata = nz.sample(20, tune=10, chains=2, keep="moments", random_seed=1, quiet=True, model=model)
    >>> dict(nz.moments(idata)["W_mean"].sizes)
    {'chain': 2, 'feature': 2, 'component': 1}
    """
    by_chain = _streamed(idata) if MOMENTS in _compat.group_names(idata) else _of_draws(posterior_group(idata))
    return _pooled(by_chain) if pooled else by_chain


def _streamed(idata: Any) -> xr.Dataset:
    return _compat.group(idata, MOMENTS).drop_attrs(deep=False)


def _of_draws(group: xr.Dataset) -> xr.Dataset:
    draws = np.full(group.sizes["chain"], group.sizes["draw"])
    variables = {"draws": xr.DataArray(draws, {"chain": group["chain"]})}
    for name, array in group.data_vars.items():
        array = array.transpose("chain", "draw", ...)
        chains = [_of_chain(array[chain]) for chain in range(len(draws))]
        mean, squares = (np.stack(arrays) for arrays in zip(*chains, strict=True))
        like = array.isel(draw=0, drop=True)
        variables[f"{name}{MEAN}"] = like.copy(data=mean)
        variables[f"{name}{SD}"] = like.copy(data=spread(squares, draws))
    return xr.Dataset(variables)


def _of_chain(array: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the sum of squared deviations of a variable (draw, ...)."""
    mean, squares = np.zeros(array.shape[1:]), np.zeros(array.shape[1:])
    for part in draw_parts(len(array), array.nbytes // len(array)):
        block = array[part].to_numpy()
        add_draws(mean.ravel(), squares.ravel(), block.reshape(len(block), -1), part.start)
    return mean, squares


def _pooled(by_chain: xr.Dataset) -> xr.Dataset:
    """The chains' moments merged (Chan, Golub and LeVeque 1983)."""
    draws = by_chain["draws"]
    variables = {"draws": draws.sum("chain")}
    for key in by_chain.data_vars:
        if str(key).endswith(MEAN):
            name, mean = str(key).removesuffix(MEAN), by_chain[key]
            pooled = (mean * draws).sum("chain") / draws.sum()
            within = (by_chain[f"{name}{SD}"].fillna(0.0) ** 2 * (draws - 1)).sum("chain")
            squares = within + (draws * (mean - pooled) ** 2).sum("chain")
            freedom = draws.sum() - 1
            variables |= {f"{name}{MEAN}": pooled, f"{name}{SD}": (squares / freedom.where(freedom > 0)) ** 0.5}
    return xr.Dataset(variables)
