"""Tables of a result for other programs: what is known of W, H, shares and exposures, cell by cell, with labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo.diagnostics.invariants import ess, rhat
from nmf_zoo.errors import InputError, number_of, warn_caller
from nmf_zoo.files import check_place, replacing
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import component_order, describe_shown, draws_in_order
from nmf_zoo.results.factor_draws import factor_dims
from nmf_zoo.results.posterior import LEADING, check_labels, draws_or_means, variable_of
from nmf_zoo.results.run_attributes import EXPOSURE, MULTIPLIERS, beside_factors, where_they_are_one
from nmf_zoo.structure import Array, Multipliers
from nmf_zoo.structure.offsets import Offset, Outer, offset_table, sides_of

FORMATS = ("csv", "parquet")
README = "README.md"
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
COLUMNS = {
    "mean": "posterior mean",
    "sd": "posterior standard deviation",
    "q05": "5 % quantile: 90 % of the draws are between it and q95",
    "q50": "median",
    "q95": "95 % quantile",
    "r_hat": "R-hat of the chains, near 1 where they agree (rank-normalised, split)",
    "ess": "effective number of draws (bulk)",
}
TABLES = {
    "components": "a row for each component: its part of the whole of W H",
    "W": "weights of features in components, on the scale that they were drawn on",
    "H": "activations of components in samples, on the scale that they were drawn on",
    "shares": "the columns of W, each summing to 1: what a component is made of",
    "exposures": "what a component adds to a sample, over all features, in units of the data",
    "parameters": "what else is unknown: multipliers of batches, dispersions, errors, slopes, hyperparameters",
}
PER_UNIT = "what a component adds to a sample {}, over all features: not in units of the data"
IMPUTED = "_unobserved"  # how PyMC's names of missing cells end: they have no labels, and nz.impute gives them
NAME = re.compile(r"[\w\-]+")
OF_CNMF = re.compile(r"[\w\-]+\.(usages|spectra|gene_spectra_tpm)\.k_\d+\.dt_2_0(\.consensus)?\.txt")
MILLION = 1e6  # transcripts
MOST_JUDGED = 20_000  # cells whose R-hat and effective draws are told: each takes two milliseconds


@names_checked
def export(
    idata: Any,
    folder: str | Path,
    *,
    model: Any = None,
    format: Literal["csv", "parquet"] = "csv",
    chain: int | None = None,
    diagnostics: bool | None = None,
    cnmf: str | None = None,
    overwrite: bool = False,
    weights: str = "W",
    activations: str = "H",
) -> Path:
    """Write tables of a result: W, H, shares, exposures and all other unknowns with their uncertainty, a row per cell.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample`, :func:`~nmf_zoo.fit` or :func:`~nmf_zoo.align`, or anyone's draws
    folder : where to write, a new folder. It appears when it is complete
    model : the model that ``idata`` came from. Needed for exposures in units of the data where it has ``exposure=``, or
        ``batch=``: exposures and the batches of samples are in the model and not in the result
    format : "csv", or "parquet", for which pyarrow must be installed
    chain : whose draws; None for the chains that are in the mode of the best one, of a fit for the best restart
    diagnostics : whether to tell R-hat and effective draws of every cell; None where these are 20,000 at the most
    cnmf : a name of the run: the means also go into wide tables under the names that cNMF gives its own (Kotliar et al.
        2019), ``NAME.usages.k_K.dt_2_0.consensus.txt`` (exposures), ``NAME.spectra.k_K.dt_2_0.consensus.txt`` (shares)
        and ``NAME.gene_spectra_tpm.k_K.dt_2_0.txt`` (shares times a million), for programs that read these. A distance
        threshold of 2 leaves no component out, and none is left out here
    overwrite : True replaces an earlier export
    weights, activations : names of the two factors

    Returns
    -------
    The folder, with ``components``, ``W``, ``H``, ``shares``, ``exposures`` and ``parameters`` (as far as the result
    has them), each with labels and the columns mean, sd, q05, q50, q95, r_hat and ess, and a ``README.md`` that
    explains them. ``parameters`` has all other unknowns: multipliers (feature, batch), dispersions, errors of
    measurement, slopes of covariates, hyperparameters.
    Components are in the result's order. A cell that means nothing is empty: of a point estimate, and where means were
    kept and no draws (``keep="moments"``, H of ``data=``), all but the mean

    Raises
    ------
    InputError : no result, no such chain or format, or a folder that exists
    NotWritten : the disk is full, or the system refuses for another reason; then there is no folder

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=2)
    >>> idata = nz.sample(50, tune=50, chains=2, random_seed=1, quiet=True, model=model)
    >>> nz.export(idata, "tables").name  # doctest: +SKIP
    'tables'
    """
    check_export(folder, format, overwrite, cnmf)
    draws_or_means(idata)  # says what is missing
    scale = _Scale() if model is None else _scale_of(model, idata, weights, activations)
    names = [weights, activations, *([] if scale.multipliers is None else [scale.multipliers.variable.name])]
    in_order = {"idata": idata, "chain": chain, "weights": weights, "activations": activations}
    chains = list(draws_in_order(**in_order, names=names))
    drawn = chains
    if chains[0].sizes["draw"] == 1:  # which of the weights there may be more of
        drawn = list(draws_in_order(**in_order, names=[weights]))
    of_others = _others(idata, weights, activations)
    others = list(draws_in_order(**in_order, names=of_others)) if of_others else []
    missing = [name for name in beside_factors(idata.attrs) if name not in scale.names]
    source = _Source(chains, drawn, others, of_others, weights, activations, scale, where_they_are_one(missing))
    tables = dict(_tables(source, _is_judged(source, diagnostics)))
    if missing and "exposures" in tables:
        said = f"exposures are what components add {source.unit}, not in units of the data"
        has = f"the model of the result has {' and '.join(missing).replace('the ', '')}"
        warn_caller(f"export: {has}, and {said}: give the model (in the shell, of an exposure: --data, --exposure)")
    order = component_order(idata, weights, activations)
    whose = f"chain {chains[0]['chain'].item()}" if chain is not None or order is None else describe_shown(order, idata)
    with replacing(folder, "folder") as partial:
        partial.mkdir()
        for name, table in tables.items():
            _write(table, partial / f"{name}.{format}")
        for name, wide in _as_cnmf(tables, cnmf).items():
            wide.to_csv(partial / name, sep="\t", encoding="utf-8")
        (partial / README).write_text(_explained(tables, format, whose, source), encoding="utf-8")
    return Path(folder)


def check_export(folder: str | Path, format: str, overwrite: bool, cnmf: str | None = None) -> None:
    """Refuse what can't be written, and a folder with anything in it that an export has not written."""
    if cnmf is not None and not (isinstance(cnmf, str) and NAME.fullmatch(cnmf)):
        raise InputError("cnmf", repr(cnmf), "a name of letters, digits, '_' and '-', or None")
    if format not in FORMATS:
        raise InputError("format", repr(format), f"one of {list(FORMATS)}")
    if format == "parquet" and find_spec("pyarrow") is None:
        raise InputError("format", "'parquet' without pyarrow", "pyarrow installed", "pip install pyarrow")
    place = check_place(folder, "folder")
    if not place.exists():
        return
    if not overwrite:
        raise InputError("folder", f"{str(folder)!r}, which exists", "a new name", "or overwrite=True")
    ours = {README, *(f"{name}.{kind}" for name in TABLES for kind in FORMATS)}
    there = {path.name for path in place.iterdir()} if place.is_dir() else set()
    others = sorted(name for name in there - ours if not OF_CNMF.fullmatch(name))
    if not place.is_dir() or others:
        got = f"{str(folder)!r}, a folder with {others[0]!r} in it" if others else f"{str(folder)!r}, a file"
        raise InputError("folder", got, "a new name, or an earlier export")


class _Scale(NamedTuple):
    """What multiplies W H in the model, where it is known: an exposure, and the multipliers of batches.

    ``batch`` : dim of the batches in the draws
    """

    exposure: Offset | None = None
    multipliers: Multipliers | None = None
    batch: Any = None

    @property
    def names(self) -> list[str]:
        found = {EXPOSURE: self.exposure, MULTIPLIERS: self.multipliers}
        return [name for name, own in found.items() if own is not None]


class _Source(NamedTuple):
    """Draws of chains, each (1, draw, ...), components in order.

    Attributes
    ----------
    chains : of both factors, and of what multiplies them
    drawn : of the weights alone, which may have draws where activations have means
    others, of_others : of all other variables, and their names
    unit : "where the exposure is 1", where exposures are not in units of the data
    """

    chains: Sequence[xr.Dataset]
    drawn: Sequence[xr.Dataset]
    others: Sequence[xr.Dataset]
    of_others: Sequence[str]
    weights: str
    activations: str
    scale: _Scale
    unit: str

    @property
    def has_weights(self) -> bool:
        return self.weights in self.chains[0]

    @property
    def has_activations(self) -> bool:
        return self.activations in self.chains[0]

    @property
    def n_cells(self) -> int:
        names = [name for name in (self.weights, self.activations) if name in self.chains[0]]
        of_others = (self.others[0][name][0, 0].size for name in self.of_others)
        return 2 * sum(int(np.prod(self.chains[0][name].shape[2:])) for name in names) + sum(of_others)

    @property
    def has_means(self) -> bool:
        """Whether of activations there are means, and draws of the weights."""
        return self.drawn[0].sizes["draw"] > self.chains[0].sizes["draw"]

    def draws(self, name: str, component: Any, at: int, chains: Sequence[xr.Dataset] | None = None) -> xr.DataArray:
        """(chain, draw, cell) of one component."""
        return _beside([one[name].isel({component: at}, drop=True) for one in chains or self.chains])

    def exposures(self, W: xr.DataArray, H: xr.DataArray, feature: Any, obs: Any) -> xr.DataArray:
        """(chain, draw, obs) of one component: h_kn times the sum of what multiplies w_fk over the features."""
        exposure, multipliers = self.scale.exposure, self.scale.multipliers
        if multipliers is None:
            return _added(W, H, exposure, feature, obs)
        H = H.transpose(*LEADING, obs)
        shape, out = (W.sizes[feature], H.sizes[obs]), np.empty(H.shape)
        for batch in np.unique(multipliers.batch):
            samples = np.flatnonzero(multipliers.batch == batch)
            of_batch = W if batch == multipliers.n_batches else W * self._multipliers(int(batch), feature)
            cut = None if exposure is None else _of_samples(exposure, samples, shape)
            added = _added(of_batch, H.isel({obs: samples}), cut, feature, obs)
            out[..., samples] = added.transpose(*LEADING, obs).to_numpy()
        return H.copy(data=out)

    def _multipliers(self, batch: int, feature: Any) -> xr.DataArray:
        """(chain, draw, feature) draws of one batch's."""
        multipliers = self.scale.multipliers
        assert multipliers is not None
        own = [one[multipliers.variable.name].isel({self.scale.batch: batch}) for one in self.chains]
        draws = [M.transpose(*LEADING, ...).to_numpy() for M in own]
        return xr.DataArray(np.concatenate(draws), dims=(*LEADING, feature))


def _beside(of_chains: Sequence[xr.DataArray]) -> xr.DataArray:
    """The draws of all chains in one array, in memory; components have the labels of the first."""
    draws = [one.compute() for one in of_chains]
    return draws[0] if len(draws) == 1 else xr.concat(draws, dim="chain", join="override")


def _added(W: xr.DataArray, H: xr.DataArray, exposure: Offset | None, feature: Any, obs: Any) -> xr.DataArray:
    """(chain, draw, obs): h_n times the sum of exposure_fn w_f over the features."""
    sides = None if exposure is None else sides_of(exposure)
    if exposure is None or sides is not None:
        of_features, of_samples = (1.0, 1.0) if sides is None else (sides.of_features[:, 0], sides.of_samples[0])
        return (W * _along(of_features, feature)).sum(feature) * H * _along(of_samples, obs)
    table = xr.DataArray(offset_table(exposure, (W.sizes[feature], H.sizes[obs]), 1.0), dims=(feature, obs))
    return W.dot(table, dim=feature) * H


def _of_samples(exposure: Offset, samples: Array, shape: tuple[int, int]) -> Offset:
    """The exposure of some samples."""
    sides = sides_of(exposure)
    if sides is None:
        return np.asarray(offset_table(exposure, shape, 1.0)[:, samples])
    return Outer(of_features=sides.of_features, of_samples=np.broadcast_to(sides.of_samples, (1, shape[1]))[:, samples])


def _along(values: Any, dim: Any) -> Any:
    """A number, or one for each place along a dim."""
    return float(np.ravel(values)[0]) if np.size(values) == 1 else xr.DataArray(values, dims=(dim,))


def _scale_of(model: Any, idata: Any, weights: str, activations: str) -> _Scale:
    """The model's, held against the draws; InputError where it can't be summed over the features."""
    from nmf_zoo.reading import read  # which imports PyMC, that tables of a result alone do without

    structure, group = read(model), draws_or_means(idata)
    names, exposure = (structure.W.name, structure.H.name), structure.likelihood.exposure
    if {*names} != {weights, activations}:
        got = f"one whose factors are {' and '.join(names)}"
        raise InputError("model", got, f"{weights} and {activations}", "name the factors: weights=, activations=")
    present = [factor for factor in (structure.W, structure.H) if factor.name in group]
    for factor in present:
        variable_of(group, structure, factor.name, factor.variable_shape)
    check_labels(group, structure, [factor.name for factor in present])
    if not isinstance(exposure, np.ndarray | Outer | None):
        raise InputError("model", "an exposure of listed cells alone", "one of all cells", "leave the model out")
    is_turned, multipliers, of_batch = names != (weights, activations), structure.likelihood.of_batches, None
    if multipliers is not None:
        M = variable_of(group, structure, multipliers.variable.name, multipliers.variable.variable_shape)
        if is_turned:
            got = f"multipliers of batches of what {weights} belongs to"
            raise InputError(
                "model", got, f"batches of samples, of {activations}", "exchange weights= and activations="
            )
        of_batch = M.dims[2 if multipliers.transposed else 3]
    return _Scale(exposure if exposure is None or not is_turned else _turned(exposure), multipliers, of_batch)


def _turned(exposure: Array | Outer) -> Array | Outer:
    """Of the transposed X."""
    if isinstance(exposure, Outer):
        return Outer(of_features=exposure.of_samples.T, of_samples=exposure.of_features.T)
    return np.atleast_2d(exposure).T


def _is_judged(source: _Source, diagnostics: bool | None) -> bool:
    if diagnostics is None and source.n_cells > MOST_JUDGED:
        said = f"{source.n_cells:,} cells are many to judge one by one"
        text = (
            f"export: {said}; r_hat and ess are left empty (diagnostics=True, --diagnostics, tells them, at 2 ms each)"
        )
        warn_caller(text)
        return False
    return diagnostics is not False


# -- tables ----------------------------------------------------------------------------------------------------------


def _tables(source: _Source, is_judged: bool) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields name and table, one component after the other, so that only one's draws are in memory at once."""
    if not source.has_weights:
        raise InputError("idata", f"a result without {source.weights}", "one whose weights were kept or known")
    dims = factor_dims(source.chains[0], source.weights, source.activations)
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    sizes = []
    for at, label in enumerate(_labels(source.chains[0][source.weights], dims.component)):
        W = source.draws(source.weights, dims.component, at)
        sums = W.sum(dims.feature)
        drawn = source.draws(source.weights, dims.component, at, source.drawn) if source.has_means else W
        of_drawn = drawn.sum(dims.feature)
        parts["W"].append(_cells(drawn, dims.feature, "feature", label, is_judged))
        shares = drawn / of_drawn.where(of_drawn > 0, 1.0)
        parts["shares"].append(_cells(shares, dims.feature, "feature", label, is_judged))
        sizes.append(sums)
        if dims.obs is not None:
            H = source.draws(source.activations, dims.own, at)
            parts["H"].append(_cells(H, dims.obs, "sample", label, is_judged))
            added = source.exposures(W, H, dims.feature, dims.obs)
            parts["exposures"].append(_cells(added, dims.obs, "sample", label, is_judged))
            sizes[-1] = sums * H.sum(dims.obs)
    totals = xr.concat(sizes, dim=dims.component)
    whole = totals.sum(dims.component)
    labels = _labels(source.chains[0][source.weights], dims.component)
    rows = [
        _cells((one / whole.where(whole > 0, 1.0)).expand_dims(cell=1, axis=-1), "cell", "", label, is_judged)
        for one, label in zip(totals, labels, strict=True)
    ]
    yield "components", pd.concat(rows, ignore_index=True).drop(columns="")
    for name, tables in parts.items():
        if tables:
            yield name, pd.concat(tables, ignore_index=True)
    if source.of_others:
        yield "parameters", _parameters(source, is_judged)


def _others(idata: Any, weights: str, activations: str) -> list[str]:
    """Names of the variables beside the factors: the model's other unknowns, and no tables as large as X."""
    group = draws_or_means(idata)
    own = {dim for name in (weights, activations) if name in group for dim in group[name].dims[2:]}
    return [
        str(name)
        for name, array in group.data_vars.items()
        if name not in (weights, activations)
        and not str(name).endswith(IMPUTED)
        and len(own.intersection(array.dims)) < 2
        and array.dtype.kind in "biuf"
    ]


def _parameters(source: _Source, is_judged: bool) -> pd.DataFrame:
    """A row for each entry of each variable, with its labels in columns that other variables leave empty."""
    dims = factor_dims(source.chains[0], source.weights, source.activations)
    called = {dims.feature: "feature", dims.obs: "sample", dims.component: "component", dims.own: "component"}
    taken = {"parameter", *COLUMNS}
    parts = []
    for name in source.of_others:
        draws = _beside([one[name] for one in source.others])
        axes = [dim for dim in draws.dims if dim not in ("chain", "draw")]
        columns = [called.get(dim, f"{dim}_label" if dim in taken else str(dim)) for dim in axes]
        labels = np.meshgrid(*(_labels(draws, dim).astype(object) for dim in axes), indexing="ij") if axes else []
        flat = draws.transpose("chain", "draw", *axes).to_numpy()
        cells = xr.DataArray(flat.reshape(*flat.shape[:2], -1), dims=("chain", "draw", "cell"))
        stats = _cells(cells, "cell", "cell", name, is_judged).rename(columns={"component": "parameter"})
        stats = stats.drop(columns="cell")
        for at, (column, values) in enumerate(zip(columns, labels, strict=True)):
            stats.insert(1 + at, column, values.ravel())
        parts.append(stats)
    found = pd.concat(parts, ignore_index=True)
    return found[[name for name in found if name not in COLUMNS] + list(COLUMNS)]


def _labels(array: xr.DataArray, dim: Any) -> np.ndarray:
    return array[dim].to_numpy() if dim in array.coords else np.arange(array.sizes[dim])


def _cells(draws: xr.DataArray, dim: Any, called: str, component: Any, is_judged: bool) -> pd.DataFrame:
    """One row for each cell along ``dim``; all but the mean is NaN of a single draw of each chain."""
    labels = _labels(draws, dim)
    array = draws.transpose("chain", "draw", dim).to_numpy().astype(np.float64)
    flat = array.reshape(-1, array.shape[2])
    table = pd.DataFrame({"component": component, called: labels, "mean": flat.mean(axis=0)})
    many = array.shape[1] > 1  # of each chain: how the means of several differ is no interval
    table["sd"] = flat.std(axis=0, ddof=1) if many else np.nan
    quantiles = np.quantile(flat, list(QUANTILES.values()), axis=0) if many else np.full((3, flat.shape[1]), np.nan)
    for name, values in zip(QUANTILES, quantiles, strict=True):
        table[name] = values
    judged = xr.Dataset({"x": (("chain", "draw", "cell"), array)})
    table["r_hat"] = rhat(judged)["x"].to_numpy() if is_judged and many else np.nan
    table["ess"] = ess(judged, "bulk")["x"].to_numpy() if is_judged and many else np.nan
    return table


def _write(table: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        table.to_csv(path, index=False, encoding="utf-8")
        return
    texts = {name: table[name].map(str, na_action="ignore") for name in table if table[name].dtype == object}
    table.assign(**texts).to_parquet(path, index=False)


def _as_cnmf(tables: dict[str, pd.DataFrame], name: str | None) -> dict[str, pd.DataFrame]:
    """Means by file: samples x components, and components x features, in the order that they have."""
    if name is None:
        return {}
    end = f"k_{len(tables['components'])}.dt_2_0"
    shares = _wide(tables["shares"], "feature").T
    found = {f"{name}.spectra.{end}.consensus.txt": shares, f"{name}.gene_spectra_tpm.{end}.txt": MILLION * shares}
    if "exposures" in tables:
        found[f"{name}.usages.{end}.consensus.txt"] = _wide(tables["exposures"], "sample")
    return found


def _wide(table: pd.DataFrame, rows: str) -> pd.DataFrame:
    """(rows, component) means."""
    columns = {label: own.set_index(rows)["mean"] for label, own in table.groupby("component", sort=False)}
    return pd.DataFrame(columns).rename_axis(None)


def _explained(tables: dict[str, pd.DataFrame], format: str, whose: str, source: _Source) -> str:
    """The README: which tables there are, and what their columns are."""
    n_draws = sum(one.sizes["draw"] for one in source.drawn)
    kept = f"{number_of(n_draws, 'draw')} in all" if n_draws > len(source.drawn) else "means, or a point, and no draws"
    kept += f" of {source.weights}, and means of {source.activations}" if source.has_means else ""
    lines = [
        "# Tables of a factorisation X ~ W H",
        "",
        f"Written by nmf_zoo, of {whose}: {kept}.",
        "",
    ]
    said = TABLES | ({"exposures": PER_UNIT.format(source.unit)} if source.unit else {})
    lines += [f"- `{name}.{format}`: {said[name]} ({number_of(len(table), 'row')})" for name, table in tables.items()]
    lines += [
        "",
        "Components are numbered alike in all of them, and as in every other table and picture of the result.",
        "",
    ]
    lines += ["| column | what it is |", "|---|---|", "| component | label or number of the component |"]
    lines += ["| feature | label of the feature, a row of X |", "| sample | label of the sample, a column of X |"]
    if "parameters" in tables:
        lines += ["| parameter | name of the variable in the model; what labels it has no use for are empty |"]
        known = {"parameter", "component", "feature", "sample", *COLUMNS}
        lines += [
            f"| {name} | label along this dim of the model |" for name in tables["parameters"] if name not in known
        ]
    lines += [f"| {name} | {text} |" for name, text in COLUMNS.items()]
    return "\n".join(
        [*lines, "", "An empty cell means nothing there: of a point estimate or of means alone all but the mean.", ""]
    )
