"""AnnData objects, in the style of scanpy: ``nz.tl.nmf(adata, rank)`` reads counts and writes its result beside them.

Samples are rows of an AnnData and columns of the model: ``varm`` has W and ``obsm`` H. Sparse counts stay sparse, since
rows in CSR are columns in CSC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse as sp
import xarray as xr

from nmf_zoo import __version__, _compat
from nmf_zoo.diagnostics.invariants import summarise
from nmf_zoo.errors import InputError, not_one_of, number_of, warn_caller
from nmf_zoo.inference.registry import verb_of
from nmf_zoo.interfaces.tables.annotated import require_anndata
from nmf_zoo.models.hyperparameters import require_positive
from nmf_zoo.models.inputs import Inputs, check_inputs
from nmf_zoo.models.likelihoods import declare_counts
from nmf_zoo.models.matrices import as_float_array, in_order_of_samples
from nmf_zoo.options import names_checked
from nmf_zoo.results.means import moments
from nmf_zoo.results.posterior import best_chain
from nmf_zoo.structure import Array
from nmf_zoo.verbs.sample_and_fit import fit, sample

NEW = "H_new"  # the activations that are not known
SMALLEST = 1e-12  # mean of X: data of zeros still need a scale


class tl:
    """Tools for AnnData objects, called as those of scanpy."""

    @staticmethod
    @names_checked
    def nmf(
        adata: Any,
        rank: int,
        *,
        layer: str | None = None,
        batch: str | None = None,
        key: str = "nmf",
        size_factors: str | Any = "total",
        alpha_w: float = 1.0,
        alpha_h: float = 1.0,
        engine: Any = "vb",
        random_seed: Any = None,
        run: Mapping[str, Any] | None = None,
        copy: bool = False,
    ) -> Any:
        r"""Gamma-Poisson factorisation of counts: programs of variables, and how much of each a sample has.

        .. math::

            x_{nf} \sim \mathrm{Poisson}\Big(s_n \big(\sum_k w_{fk} h_{kn} + b_{f,\mathrm{batch}(n)}\big)\Big),
            \qquad w \sim \mathrm{Gamma}(\alpha_w, \alpha_w), \quad h \sim \mathrm{Gamma}(\alpha_h, \alpha_h / m)

        with s the size factors and m such that the prior mean of X is that of the data.

        Parameters
        ----------
        adata : AnnData
            Samples (cells) in ``obs``, variables (genes) in ``var``. May be backed: X is then read into memory once.
        rank : int
            Number of components.
        layer : str, optional
            Where the counts are; X by default.
        batch : str, optional
            Column of ``obs``. Each of its values gets a profile b of its own, which all its samples have and no other:
            what a batch adds, such as ambient counts. It is not among the components.
        key : str
            Name of the result in ``obsm``, ``varm`` and ``uns``, where an earlier one is replaced.
        size_factors : "total", None, column of ``obs``, or array (samples,), a Series by the names of samples
            Known factors s > 0 of a sample's means, an exposure. "total": its counts over their median; samples without
            counts have 1. None: 1.
        alpha_w, alpha_h : float
            Shapes of the gamma priors; below 1 for sparse components.
        engine : name or options
            "vb" by default; any engine of :func:`nmf_zoo.fit` or :func:`nmf_zoo.sample` that runs the model. Samplers
            run one chain, of which means and deviations are kept.
        random_seed : as in :func:`nmf_zoo.sample`
        run : dict, optional
            More arguments of :func:`nmf_zoo.fit` or :func:`nmf_zoo.sample`: ``{"max_iter": 500}``.
        copy : bool
            Return a copy with the result, and leave ``adata`` alone.

        Returns
        -------
        None, or the copy. Components are in falling order of their share of all counts. Written are

        - ``varm[key]`` (variables, rank), W with columns that add up to 1, and ``varm[key + "_sd"]``
        - ``obsm[key]`` (samples, rank), H: counts of each component in a sample whose size factor is 1, and
          ``obsm[key + "_sd"]``. Deviations are posterior ones at the W or H of unit sum; a point estimate has none
        - ``varm[key + "_batch"]`` (variables, batches), with ``batch``: counts that a batch adds, at size factor 1
        - ``obs[key + "_size_factor"]``
        - ``uns[key]``: ``share`` of the counts by component, ``batches``, ``objective`` (per iteration), ``evidence``
          (VB: lower bound of log p(X)), ``converged``, ``reason``, ``seconds``, ``version``, ``params``. A sampler has
          ``lp`` by chain and draw in place of the objective, and ``rhat`` and ``ess``, the worst of ``lp`` and of
          followed cells of W H; of one chain R-hat is NaN

        Raises
        ------
        InputError : an argument can't be used, or anndata is not installed
        UnsupportedModel : the engine can't run the model

        Warns
        -----
        NmfZooWarning : values are not whole numbers: log-normalised ones, perhaps, and the counts are in a layer

        Examples
        --------
        >>> import anndata, numpy as np, nmf_zoo as nz  # doctest: +SKIP
        >>> adata = anndata.AnnData(np.random.default_rng(1).poisson(3.0, (20, 8)))  # doctest: +SKIP
        >>> nz.tl.nmf(adata, 2, random_seed=1)  # doctest: +SKIP
        >>> adata.obsm["nmf"].shape  # doctest: +SKIP
        (20, 2)
        """
        require_anndata("adata", "no anndata installed")
        adata = _checked(adata, copy, key)
        counts = _counts_of(adata, layer)
        problem = _declared(adata, counts, rank, batch, _sizes_of(adata, counts, size_factors), alpha_w, alpha_h)
        found = _run(problem.model, engine, random_seed, run)
        _write(adata, key, _estimates(found), problem)
        given = {"rank": problem.rank, "layer": layer, "batch": batch, "alpha_w": alpha_w, "alpha_h": alpha_h}
        adata.uns[key].update(_account(found, given | {"engine": found.attrs["engine"]}))
        return adata if copy else None


# -- what comes in ---------------------------------------------------------------------------------------------------


def _checked(adata: Any, copy: bool, key: Any) -> Any:
    import anndata

    if not isinstance(adata, anndata.AnnData):
        raise InputError("adata", f"an object of type {type(adata).__name__}", "an AnnData")
    if not isinstance(key, str) or not key:
        raise InputError("key", repr(key), "a word")
    if copy:
        return adata.to_memory() if adata.isbacked else adata.copy()
    if adata.is_view:
        raise InputError("adata", "a view of another AnnData", "one of its own", "adata = adata[...].copy()")
    return adata


def _counts_of(adata: Any, layer: str | None) -> Any:
    """Counts (samples, variables) in memory, sparse as they are."""
    if layer is not None and layer not in adata.layers:
        raise not_one_of("layer", layer, list(adata.layers), "; X is taken without it")
    values = adata.X if layer is None else adata.layers[layer]
    if values is None:
        raise InputError("layer", "None, and there is no X", f"one of {list(adata.layers)}")
    if hasattr(values, "to_memory"):
        values = values.to_memory()
    values = values if sp.issparse(values) else np.asarray(values)
    numbers = values.data if sp.issparse(values) else values
    if numbers.dtype.kind == "f" and not np.array_equal(numbers, np.floor(numbers)):
        where = "X" if layer is None else f"layer {layer!r}"
        others = [name for name in adata.layers if name != layer]
        do = f"; the layers are {others}" if others else ""
        message = (
            f"{where}: values that are not whole numbers are taken as they are; log-normalised ones are no counts{do}"
        )
        warn_caller(message)
    return values


def _sizes_of(adata: Any, counts: Any, given: Any) -> Array:
    """A positive factor for each sample, (N,)."""
    n_samples = counts.shape[0]
    if given is None:
        return np.ones(n_samples)
    if isinstance(given, str) and given == "total":
        totals = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        seen = totals > 0
        return np.where(seen, totals / np.median(totals[seen]), 1.0) if seen.any() else np.ones(n_samples)
    if isinstance(given, str):
        if given not in adata.obs:
            raise not_one_of("size_factors", given, ["total", *map(str, adata.obs.columns)], ", or an array")
        given = adata.obs[given].to_numpy()
    if isinstance(given, pd.Series):
        given = in_order_of_samples("size_factors", given, adata.obs_names.to_numpy())
    sizes = as_float_array("size_factors", given)
    if sizes.shape != (n_samples,):
        raise InputError("size_factors", f"shape {sizes.shape}", f"({n_samples},), one for each sample")
    require_positive("size_factors", sizes)
    return sizes


# -- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """The model, its components without the batches', and what belongs to samples: ``known`` (B, N) of the batches."""

    model: pm.Model
    rank: int
    batches: list[str]
    known: Array
    sizes: Array


def _declared(
    adata: Any, counts: Any, rank: int, batch: str | None, sizes: Array, alpha_w: float, alpha_h: float
) -> _Problem:
    batches, members = _batches_of(adata, batch)
    coords = {"feature": _labels(adata.var_names), "obs": _labels(adata.obs_names)}
    inputs = check_inputs(counts.T, rank, exposure=sizes[None, :], coords=coords)
    shapes = [as_float_array(name, alpha) for name, alpha in (("alpha_w", alpha_w), ("alpha_h", alpha_h))]
    for name, shape in zip(("alpha_w", "alpha_h"), shapes, strict=True):
        require_positive(name, shape)
    mean = max(float(counts.sum()) / (adata.n_vars * sizes.sum()), SMALLEST) / (rank + bool(batches))
    known = mean * members
    return _Problem(_model(inputs, batches, known, shapes, mean), inputs.rank, batches, known, sizes)


def _labels(names: Any) -> list[str]:
    """Names, or, where they repeat, numbers."""
    return list(map(str, names)) if names.is_unique else list(map(str, range(len(names))))


def _batches_of(adata: Any, batch: str | None) -> tuple[list[str], Array]:
    """The batches and who is in them, (B, N) of 0 and 1."""
    if batch is None:
        return [], np.zeros((0, adata.n_obs))
    if batch not in adata.obs:
        raise not_one_of("batch", batch, map(str, adata.obs.columns))
    column = adata.obs[batch]
    if column.isna().any():
        raise InputError(
            "batch", f"{number_of(int(column.isna().sum()), 'sample')} without a value in {batch!r}", "one for each"
        )
    values = column.astype(str).to_numpy()
    names = sorted(set(values))
    return names, np.array([values == name for name in names], dtype=np.float64)


def _model(inputs: Inputs, batches: list[str], known: Array, shapes: list[Array], mean: float) -> pm.Model:
    """The declaration; batches are components of which H is known: ``mean`` in their samples, 0 elsewhere."""
    alpha_w, alpha_h = shapes
    coords = {"program": [*(f"batch {name}" for name in batches), *map(str, range(inputs.rank))]}
    with inputs.model() as model:
        model.add_coords(coords)
        W = pm.Gamma("W", alpha_w, alpha_w, dims=("feature", "program"))
        H = pm.Gamma(NEW, alpha_h, alpha_h / mean, dims=("component", "obs"))
        if batches:
            H = pm.Deterministic("H", pt.concatenate([pt.as_tensor(known), H], axis=0), dims=("program", "obs"))
        declare_counts(W, H, inputs)
    return model


# -- the run ---------------------------------------------------------------------------------------------------------


def _run(model: pm.Model, engine: Any, random_seed: Any, run: Any) -> Any:
    if not isinstance(run, Mapping | None):
        raise InputError("run", repr(run), "a dict of arguments of nz.fit or nz.sample")
    arguments = {"engine": engine, "random_seed": random_seed, "model": model, "quiet": True, **(run or {})}
    if verb_of(engine) == "fit":
        return fit(**{"draws": 1, **arguments})
    return sample(**{"chains": 1, "keep": "moments", **arguments})


def _estimates(found: Any) -> dict[str, Array]:
    """Means and, unless it is a point, deviations of W (F, B + K) and H_new (K, N)."""
    group = _compat.group(found, "fit") if "fit" in _compat.group_names(found) else xr.Dataset()
    estimates: dict[str, Array] = {}
    for name, dims in (("W", ("feature", "program")), (NEW, ("component", "obs"))):
        if f"{name}_shape" in group:
            shape, rate = (_ordered(group[f"{name}_{role}"].isel(chain=0), dims) for role in ("shape", "rate"))
            estimates |= {name: shape / rate, f"{name}_sd": np.sqrt(shape) / rate}
        else:
            of_draws = moments(found).isel(chain=best_chain(found))
            estimates[name] = _ordered(of_draws[f"{name}_mean"], dims)
            if int(of_draws["draws"]) > 1:
                estimates[f"{name}_sd"] = _ordered(of_draws[f"{name}_sd"], dims)
    return estimates


def _ordered(array: xr.DataArray, dims: tuple[str, str]) -> Array:
    return array.transpose(*dims).to_numpy() if set(dims) <= set(array.dims) else array.to_numpy()


# -- what goes out ---------------------------------------------------------------------------------------------------


def _write(adata: Any, key: str, found: dict[str, Array], problem: _Problem) -> None:
    """Programs of unit sum, in falling order of their share."""
    n_batches, sizes = len(problem.batches), problem.sizes
    scale = np.maximum(found["W"].sum(axis=0), np.finfo(float).tiny)
    amounts = (found[NEW] * scale[n_batches:, None]) @ sizes
    of_batches = (problem.known * scale[:n_batches, None]) @ sizes
    order = np.argsort(-amounts, kind="stable")
    total = amounts.sum() + of_batches.sum()
    columns = n_batches + order
    of_variables = {own: found[own][:, columns] / scale[columns] for own in ("W", "W_sd") if own in found}
    of_samples = {own: (found[own][order] * scale[columns, None]).T for own in (NEW, f"{NEW}_sd") if own in found}
    for place, arrays in ((adata.varm, of_variables), (adata.obsm, of_samples)):
        place.pop(f"{key}_sd", None)  # of an earlier result
        for own, array in arrays.items():
            place[f"{key}_sd" if own.endswith("_sd") else key] = np.ascontiguousarray(array)
    if n_batches:
        adata.varm[f"{key}_batch"] = found["W"][:, :n_batches] * problem.known.max(axis=1)
    else:
        adata.varm.pop(f"{key}_batch", None)
    adata.obs[f"{key}_size_factor"] = sizes
    adata.uns[key] = {"share": amounts[order] / total, "batches": problem.batches, "batch_share": of_batches / total}


def _account(found: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the run says of itself, in types that AnnData writes."""
    said: dict[str, Any] = {
        "seconds": float(found.attrs["seconds"]),
        "version": __version__,
        "random_seed": str(found.attrs["random_seed"]),
        "params": {name: value for name, value in given.items() if value is not None},
    }
    if "fit" not in _compat.group_names(found):
        judged = summarise(found)
        said |= {"rhat": float(judged["rhat"].max()), "ess": float(judged["ess_bulk"].min())}
        return said | {"lp": _compat.group(found, "sample_stats")["lp"].to_numpy()}
    group = _compat.group(found, "fit").isel(chain=0)
    objective = group["objective"].dropna("iteration").to_numpy()
    said |= {"objective": objective, "converged": bool(group["converged"]), "reason": str(group["reason"].item())}
    return said | ({"evidence": float(objective[-1])} if "W_shape" in group else {})
