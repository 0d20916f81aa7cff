"""Several engines on one model: what each costs, how well it mixes, and whether they agree.

What engines of all kinds can be compared by does not care how components are labelled: the cells of W H that
convergence checks follow, and ``lp``. Factors are compared after every result has been aligned to the same reference.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics.agreement import compare_draws
from nmf_zoo.diagnostics.align import align
from nmf_zoo.diagnostics.convergence import summarise_components
from nmf_zoo.diagnostics.invariants import ess, summarise
from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.inference.registry import is_maximised, named, require_support, resolve_engine, verb_of
from nmf_zoo.options import names_checked
from nmf_zoo.reading import model_here, read
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.results.posterior import open_posterior
from nmf_zoo.runtime.arguments import check_counts, check_memory, check_runs
from nmf_zoo.runtime.engine import WholeSampler
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.structure import Factorisation
from nmf_zoo.verbs.sample_and_fit import fit, sample

WARM = {"draws": 2, "tune": 2}  # a run before the clock starts, in which loops are compiled or read from the cache


@dataclass(frozen=True)
class EngineComparison:
    """What :func:`~nmf_zoo.compare_engines` found.

    Attributes
    ----------
    table : DataFrame, a row for each engine; see :func:`~nmf_zoo.compare_engines`
    results : engine -> its InferenceData, aligned to that of the reference where it has W and H
    cells : Dataset by (engine, cell) of E[w_f h_n]: mean, sd, and mcse, its Monte-Carlo standard error
    reference : the engine that others are compared with
    """

    table: pd.DataFrame
    results: Mapping[str, Any]
    cells: xr.Dataset
    reference: str

    def __repr__(self) -> str:
        return self.table.to_string(float_format="{:.3g}".format)

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format="{:.3g}".format)


@names_checked
def compare_engines(
    model: pm.Model | None = None,
    engines: Sequence[Any] = ("gibbs", "nuts"),
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    max_iter: int = 2000,
    cores: int | None = None,
    random_seed: Any = None,
    reference: str | None = None,
    progressbar: bool = False,
    executor: Any = None,
) -> EngineComparison:
    """Run engines on one model, one after the other, and compare time, mixing and means.

    Parameters
    ----------
    model : the declaration; default the one of the ``with`` context
    engines : names or options of sampling and optimising engines, e.g. ``["gibbs", "vb", nz.Gibbs(moves="scale")]``
    draws, tune, chains, cores, random_seed : of samplers, as in :func:`~nmf_zoo.sample`; optimisers make as many draws
        in all
    max_iter : iterations of optimisers at the most
    reference : label of the engine whose means are the standard; default the first sampler
    progressbar : show the engines' own bars
    executor : where each engine's chains are made, or its iterations, as in :func:`~nmf_zoo.sample`; NUTS runs in this
        process. All but times is the same with it

    Returns
    -------
    EngineComparison. Its ``table`` has, for each engine::

        verb               sample or fit
        seconds            of the whole call, on the clock; before it each engine of ours has run for 2 draws, so that
                           no loop is compiled in it
        compiling          seconds of these before the warm-up: of NUTS, which PyMC compiles in every call
        ess_bulk, ess_tail the least of the invariants (lp and cells of W H), and the same per second of warm-up and
                           draws, without compiling
        rhat               the largest of the invariants
        ess_aligned, rhat_aligned   the worst over the largest cells of aligned W and H
        divergences        of NUTS
        lp                 mean log joint density
        bound              of the log evidence, of engines that climb one
        distance           the largest difference of a posterior mean of a cell of W H from the reference's, in its
                           posterior standard deviations
        spread             the posterior standard deviation of such a cell over the reference's, the one furthest from 1
        z                  the largest difference of locations and spreads of lp and cells of W H, in Monte-Carlo
                           standard errors, on a scale without heavy tails
        agrees             z is below what equal posteriors exceed with a probability of 1 % at the most, over all
                           quantities together; of draws of an approximation, too. None where that can't be told: of the
                           reference, of a single point, and where any quantity has less than 100 effective draws

    Raises
    ------
    UnsupportedModel, InputError : before anything runs, where one of them can't

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> found = nz.compare_engines(model, ["gibbs", "vb"], draws=100, tune=100, chains=2, random_seed=1)
    >>> list(found.table.index)
    ['gibbs', 'vb']
    """
    model = model_here(model)
    check_executor(executor)
    check_counts(draws=(draws, 1), tune=(tune, 0), chains=(chains, 1), max_iter=(max_iter, 1))
    structure, labelled = read(model), _labels(engines)
    for engine in labelled.values():
        require_support(structure, *resolve_engine(engine, verb_of(engine), structure))
    check_runs("chains", chains, structure, 0.0, "run fewer")
    check_memory(structure, draws * chains, None, "ask for fewer draws or chains", copies=1)
    standard = _reference(reference, labelled)
    run = {"cores": cores, "random_seed": random_seed, "progressbar": progressbar, "quiet": not progressbar}
    run["executor"] = executor
    length = {"draws": draws, "tune": tune, "chains": chains, "max_iter": max_iter}
    timed = {label: _timed(engine, {**run, "model": model}, length) for label, engine in labelled.items()}
    results = _aligned({label: result for label, (result, _) in timed.items()}, standard, structure)
    cells = xr.concat([cell_means(result, structure) for result in results.values()], pd.Index(labelled, name="engine"))
    rows = [_row(labelled[label], result, timed[label][1]) for label, result in results.items()]
    table = pd.DataFrame(rows, index=pd.Index(labelled, name="engine"))
    verdicts = compare_draws(_quantities(results, structure), standard)
    return EngineComparison(table.join(_differences(cells, standard)).join(verdicts), results, cells, standard)


def _labels(engines: Sequence[Any]) -> dict[str, Any]:
    """What each engine is called in the table: its name, and the options that are not at their default."""
    if isinstance(engines, str) or not isinstance(engines, Sequence) or not engines:
        raise InputError("engines", repr(engines), "a list of engines", 'e.g. ["gibbs", "nuts"]')
    labels = [label_of(engine) for engine in engines]
    if len(set(labels)) < len(labels):
        raise InputError("engines", ", ".join(labels), "each engine once")
    return dict(zip(labels, engines, strict=True))


def label_of(engine: Any) -> str:
    if isinstance(engine, str):
        return engine
    values = {own.name: (getattr(engine, own.name), own.default) for own in fields(engine)}
    changed = ", ".join(f"{name}={value!r}" for name, (value, default) in values.items() if value != default)
    return f"{type(engine).__name__}({changed})"


def _reference(reference: str | None, labelled: Mapping[str, Any]) -> str:
    """The engine that is the standard: the first sampler, or the first engine where none samples."""
    if reference is not None and reference not in labelled:
        raise not_one_of("reference", reference, labelled)
    samplers = [label for label, engine in labelled.items() if verb_of(engine) == "sample"]
    return reference or (samplers or list(labelled))[0]


def _run(engine: Any, run: Mapping[str, Any], *, draws: int, tune: int, chains: int, max_iter: int) -> Any:
    """The result of one engine."""
    if verb_of(engine) == "sample":
        how: dict[str, Any] = {"draws": draws, "tune": tune, "chains": chains, "compute_convergence_checks": False}
        return sample(engine=engine, start="random", **how, **run)
    return fit(engine=engine, search=None, draws=draws * chains, max_iter=max_iter, **run)


def _timed(engine: Any, run: Mapping[str, Any], length: Mapping[str, int]) -> tuple[Any, float]:
    """The result, and how many seconds it took once all loops of ours were compiled."""
    entry = named(engine)[0]
    if isinstance(entry, WholeSampler) and entry.repeat:
        run = {**run, "executor": None}
    else:  # the others compile once, PyMC in every call
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that two draws are few
            _run(engine, run, **{**length, **WARM})
    began = time.perf_counter()
    result = _run(engine, run, **length)
    if str(result.attrs["status"]).startswith("interrupted"):
        raise KeyboardInterrupt  # its numbers would be those of a shorter run
    return result, time.perf_counter() - began


def cell_means(idata: Any, structure: Factorisation) -> xr.Dataset:
    """Mean, sd and Monte-Carlo standard error of cells of W H; of one draw the sd is 0 and there is no error."""
    cells = _product_at(idata, structure)
    n_draws = cells.sizes["chain"] * cells.sizes["draw"]
    mean, sd = cells.mean(("chain", "draw")), cells.std(("chain", "draw"))
    size = ess(cells.to_dataset(name="cells"), "mean")["cells"]
    return xr.Dataset({"mean": mean, "sd": sd, "mcse": sd / np.sqrt(size if n_draws > 1 else np.nan)})


def _product_at(idata: Any, structure: Factorisation) -> xr.DataArray:
    """(chain, draw, cell) of W H at the cells that are followed."""
    rows, cols = checked_cells(structure.shape)
    posterior = open_posterior(idata, structure)
    out = np.empty((*posterior.lead, len(rows)))
    for draw in posterior:
        out[draw.at] = np.einsum("ck,kc->c", draw.W[rows], draw.H[:, cols])
    return xr.DataArray(out, dims=("chain", "draw", "cell"), coords={"row": ("cell", rows), "column": ("cell", cols)})


def _aligned(results: Mapping[str, Any], standard: str, structure: Factorisation) -> dict[str, Any]:
    """All of them, their components in the order of the standard's; as they are where a factor is known."""
    names: dict[str, Any] = {"weights": structure.W.name, "activations": structure.H.name}
    if structure.W.is_fixed or structure.H.is_fixed:
        return dict(results)
    first = align(results[standard], **names)
    report = _compat.group(first, "alignment")
    reference = {name: report[f"{name}_reference"].to_numpy() for name in names.values()}
    return {label: align(result, reference, **names) for label, result in results.items()}


def _row(engine: Any, idata: Any, seconds: float) -> dict[str, Any]:
    """What one engine cost and how well it mixed."""
    row: dict[str, Any] = {"verb": verb_of(engine), "seconds": seconds}
    groups = _compat.group_names(idata)
    stats = _compat.group(idata, "sample_stats")
    drawing = _compat.group(idata, "posterior").attrs.get("sampling_time", seconds)  # PyMC's, of warm-up and draws
    row["compiling"] = seconds - drawing
    row["lp"] = float(stats["lp"].mean())
    if row["verb"] == "fit":
        objective = _compat.group(idata, "fit")["objective"].isel(chain=0).dropna("iteration")
        bound = {"bound": float(objective[-1])} if is_maximised(idata.attrs["engine"]) else {}
        return row | {"iterations": objective.sizes["iteration"]} | bound
    table = summarise(idata)
    for name in ("ess_bulk", "ess_tail"):
        row[name] = table[name].min()
        row[f"{name}_per_second"] = table[name].min() / drawing
    row["rhat"] = table["rhat"].max()
    if "alignment" in groups:
        components = summarise_components(idata)
        row["ess_aligned"], row["rhat_aligned"] = components["ess_bulk"].min(), components["rhat"].max()
    row["divergences"] = int(stats["diverging"].sum()) if "diverging" in stats else 0
    return row


def _quantities(results: Mapping[str, Any], structure: Factorisation) -> dict[str, xr.DataArray]:
    """Of each engine (chain, draw, quantity): lp, where all have it, and cells of W H."""
    cells = {label: _product_at(idata, structure).to_numpy() for label, idata in results.items()}
    lp = {label: _compat.group(idata, "sample_stats")["lp"].to_numpy()[..., None] for label, idata in results.items()}
    if all(np.isfinite(values).all() and values.shape[:2] == cells[label].shape[:2] for label, values in lp.items()):
        cells = {label: np.concatenate([lp[label], values], axis=-1) for label, values in cells.items()}
    return {label: xr.DataArray(values, dims=("chain", "draw", "quantity")) for label, values in cells.items()}


def _differences(cells: xr.Dataset, standard: str) -> pd.DataFrame:
    """How far each engine's means and standard deviations are from the standard's, at the worst cell."""
    own = cells.sel(engine=standard)
    distance = (abs(cells["mean"] - own["mean"]) / own["sd"]).max("cell").to_series()
    ratio = (cells["sd"] / own["sd"]).transpose("engine", "cell").to_pandas()
    furthest = abs(np.log(ratio.where(ratio > 0))).fillna(np.inf).to_numpy().argmax(axis=1)
    spread = pd.Series(ratio.to_numpy()[np.arange(len(ratio)), furthest], ratio.index)
    distance[standard] = spread[standard] = np.nan
    return pd.DataFrame({"distance": distance, "spread": spread})
