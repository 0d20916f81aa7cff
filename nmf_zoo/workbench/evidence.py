"""The evidence of a model, log p(X) with the factors integrated out, and the comparison of models by it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from nmf_zoo import __version__, _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, UnsupportedModel, not_one_of
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence import bound
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Method, combine
from nmf_zoo.inference.registry import entries, renamed, stands_for, verdict
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.options import names_checked
from nmf_zoo.reading import constant_data, model_here, observed_data, read
from nmf_zoo.results.groups import LEADING, as_dataset, data_groups, pack
from nmf_zoo.results.posterior import INTERVAL
from nmf_zoo.runtime.arguments import check_counts, check_possible, entropy_of
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.search.optima import dataset_of
from nmf_zoo.search.options import Search, search_of
from nmf_zoo.search.run import run_search
from nmf_zoo.structure import Factorisation

SIMULATED = 10_000  # of the evidences' errors, for the uncertainty of model probabilities
METHODS: dict[str, Any] = {entry.name: entry for entry in entries("evidence")}
DECIDED = 0.95
SCALE = ((1.0, "hardly"), (3.0, "positively"), (5.0, "strongly"), (np.inf, "very strongly"))  # Kass & Raftery (1995)


@names_checked
def evidence(
    model: pm.Model | None = None,
    method: Any = "smc",
    *,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    executor: Any = None,
) -> Result:
    """Estimate the evidence log p(X) of a factorisation model.

    Parameters
    ----------
    model : the model; default the one of the ``with`` context
    method : name of a method, or its options, e.g. ``"chib"`` or ``nz.Chib(draws=10_000)``:

        - ``"bound"`` (:class:`~nmf_zoo.Bound`): VB's lower bound, the best that a search finds. The fastest, and the
          only one for free hyperparameters, which it puts at its peak. It favours low ranks
        - ``"chib"`` (:class:`~nmf_zoo.Chib`): Chib's identity, with a posterior tightened around a point
        - ``"smc"`` (:class:`~nmf_zoo.SMC`): particles from the prior to the posterior
        - ``"enumeration"`` (:class:`~nmf_zoo.Enumeration`): every way to share out the counts, for tables of
          a few counts

    chains : independent runs; default 4, or 1 where there is no chance
    cores, random_seed, progressbar, quiet : as in :func:`~nmf_zoo.sample`
    executor : where runs are made, or the iterations of the bound's fits, in place of threads, as in
        :func:`~nmf_zoo.sample`. The evidence does not depend on it. Not for ``"enumeration"``, which is one sum

    Returns
    -------
    InferenceData or DataTree. ``sample_stats`` holds ``log_marginal_likelihood`` (chain,) and the Monte-Carlo error of
    each, ``log_marginal_likelihood_error`` (chain,), where PyMC's SMC puts the evidence; ``attrs`` hold what all
    chains say together, ``log_evidence`` and ``log_evidence_error``, and ``is_lower_bound`` ("yes" or "no");
    ``posterior`` draws, where the method makes some; ``search`` the optima that a search found, as in
    :func:`~nmf_zoo.fit`.

    Raises
    ------
    UnsupportedModel : the method can't have this model's evidence; the message names those that can

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[1, 0], [2, 3]], rank=1)
    >>> round(nz.evidence(model, "enumeration", random_seed=1).attrs["log_evidence"], 6)
    -7.609174
    """
    model = model_here(model)
    chosen, options = resolve_method(method)
    if chains is not None:
        check_counts(chains=(chains, 1))
    if cores is not None:
        check_counts(cores=(cores, 1))
    check_executor(executor)
    if executor is not None and not chosen.in_pieces:
        got = f"{type(executor).__name__} with {chosen.name}"
        raise InputError("executor", got, "None", "it is one sum, with no runs that could be made elsewhere")
    structure = replace(read(model), imputed=None)  # missing cells integrate to 1
    require_method(structure, chosen, options, METHODS, "can't have this model's evidence")
    check_possible(structure)
    search = _search_of(structure, options) if chosen is bound.METHOD else None
    entropy, began = entropy_of(random_seed), time.perf_counter()
    run = EvidenceRun(
        chains=chosen.runs if chains is None or chosen.runs == 1 else chains,
        key=seed_key(entropy),
        cores=available_cores() if cores is None else cores,
        progressbar=progressbar and not quiet,
        compiles=what_compiles(chosen.name, structure),
        search=None if search is None else partial(_searched, search),
        executor=executor,
    )
    estimate = chosen.estimate(structure, options, run)
    value, error = combine(estimate, chosen.is_unbiased)
    attrs = {
        "inference_library": "nmf_zoo",
        "inference_library_version": __version__,
        "method": chosen.name,
        "options": json.dumps(asdict(options)),
        "random_seed": str(entropy),
        "seconds": time.perf_counter() - began,
        "status": "interrupted" if run.stopped else "complete",
        "log_evidence": value,
        "log_evidence_error": error,
        "is_lower_bound": "yes" if chosen.is_bound else "no",
        "data": digest(structure),
    }
    groups = _groups(structure, estimate) | data_groups(structure, observed_data(model), constant_data(model))
    return pack(groups, attrs)


def _search_of(structure: Factorisation, options: bound.Bound) -> Search | None:
    return search_of(options.search, options.restarts or 1, bound.engine_of(structure), vb.VB(), None, structure)


def _searched(search: Search, engine: Any, structure: Factorisation, options: Any, run: Any, key: np.uint64) -> Any:
    solutions, optima, early = run_search(engine, structure, options, run, search, key)
    return solutions[0], optima, early


def resolve_method(method: Any, methods: Mapping[str, Method] = METHODS) -> tuple[Method, Any]:
    """A method and its options, from its name or its options."""
    for known in methods.values():
        if stands_for(method, known):
            return known, known.options() if isinstance(method, str) else method
    classes = [known.options.__name__ for known in methods.values()]
    if renamed(method):
        raise InputError("method", repr(method), f"one of {list(methods)}", renamed(method))
    raise not_one_of("method", method, methods, f", or options of {classes}", "e.g. method='chib'")


def require_method(
    structure: Factorisation, method: Method, options: Any, methods: Mapping[str, Method], what: str
) -> None:
    """Refuse a model that the method can't work on, with the reason and those of ``methods`` that can."""
    refusal = verdict(structure, method, options)
    if refusal:
        return
    able = [repr(name) for name, other in methods.items() if verdict(structure, other)]
    do = f"methods that can: {', '.join(able)}" if able else "no method can with its default options"
    raise UnsupportedModel(f"method {method.name!r} {what}: {refusal.reason}; {do}")


def digest(structure: Factorisation) -> str:
    """A fingerprint of the observed cells, the same for all models of the same data."""
    rows, columns, x = structure.observed_cells()
    filled = x != 0 if structure.data is not None and structure.data.is_complete else np.ones(len(x), bool)
    order = np.lexsort((columns[filled], rows[filled]))
    cells = np.column_stack([rows[filled], columns[filled], x[filled]])[order].astype(np.float64)
    return hashlib.sha256(repr(structure.shape).encode() + np.ascontiguousarray(cells).tobytes()).hexdigest()[:16]


def _groups(structure: Factorisation, estimate: Estimate) -> dict[str, xr.Dataset]:
    chain = np.arange(len(estimate.log_evidence))
    groups = {"sample_stats": xr.Dataset(estimate.sample_stats, coords={"chain": chain})}
    if estimate.draws:
        groups["posterior"] = as_dataset(structure, estimate.draws, LEADING)
    if estimate.optima is not None:
        groups["search"] = dataset_of(estimate.optima.table(), **estimate.optima.work)
    return groups


# -- comparison --------------------------------------------------------------------------------------------------------


@names_checked
def compare_evidence(
    models: Mapping[str, Any],
    method: Any = "smc",
    *,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    executor: Any = None,
) -> pd.DataFrame:
    """Compare models of the same data by their evidence.

    Parameters
    ----------
    models : name -> model, or name -> what :func:`evidence` returned for it
    others : as in :func:`evidence`, for the models

    Returns
    -------
    pandas.DataFrame, one row per model, the best first, with columns

        - ``log_evidence`` and its Monte-Carlo ``error``
        - ``log_bayes_factor`` against the best, 0 or below, and its ``factor_error``
        - ``probability`` of the model when all are equally likely beforehand, and its 5% and 95% quantiles over the
          Monte-Carlo error, ``probability_low`` and ``probability_high``
        - ``is_lower_bound``

    ``attrs["answer"]`` says in words how decided it is.

    References
    ----------
    R. E. Kass, A. E. Raftery (1995), Bayes factors, JASA 90 (the words).
    """
    run = {"chains": chains, "cores": cores, "random_seed": random_seed, "progressbar": progressbar, "quiet": quiet}
    run["executor"] = executor
    found = evidences(models, method, run)
    attrs = {name: result.attrs for name, result in found.items()}
    if len({own["data"] for own in attrs.values()}) > 1:
        raise InputError(
            "models", "models of different data", "models of the same observed cells", "compare like with like"
        )
    values = np.array([own["log_evidence"] for own in attrs.values()])
    errors = np.nan_to_num([own["log_evidence_error"] for own in attrs.values()])
    bounds = np.array([own["is_lower_bound"] == "yes" for own in attrs.values()])
    if 0 < bounds.sum() < len(bounds):
        raise InputError("models", "lower bounds beside estimates", "one kind of evidence", "use one method for all")
    best, simulated = int(np.argmax(values)), simulate(values, errors)
    low, high = np.quantile(probabilities(simulated), INTERVAL, axis=0)
    table = pd.DataFrame(
        {
            "log_evidence": values,
            "error": errors,
            "log_bayes_factor": values - values[best],
            "factor_error": np.where(np.arange(len(values)) == best, 0.0, np.hypot(errors, errors[best])),
            "probability": probabilities(values),
            "probability_low": low,
            "probability_high": high,
            "is_lower_bound": bounds,
        },
        index=pd.Index(list(attrs), name="model"),
    ).sort_values("log_evidence", ascending=False, kind="stable")
    wins = float(np.mean(np.argmax(simulated, axis=1) == best))
    table.attrs["answer"] = answer(table, wins)
    return table


def evidences(models: Any, method: Any, run: dict[str, Any]) -> dict[str, Any]:
    """The evidence of every model, by name."""
    if not isinstance(models, Mapping) or len(models) < 2:
        raise InputError("models", repr(models)[:60], "a dict of two models or more, by name")
    found = {}
    for name, model in models.items():
        if isinstance(model, pm.Model):
            found[name] = evidence(model, method, **run)
        elif _compat.is_result(model) and "log_evidence" in model.attrs:
            found[name] = model
        else:
            expected = "a pm.Model, or what nz.evidence returned"
            raise InputError(f"models[{name!r}]", type(model).__name__, expected)
    return found


def simulate(values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Evidences as far off as their errors say, (simulations, models)."""
    return values + errors * np.random.default_rng(0).standard_normal((SIMULATED, len(values)))


def probabilities(log_evidences: np.ndarray) -> np.ndarray:
    """Of models that are equally likely beforehand, along the last axis."""
    weights = np.exp(log_evidences - np.max(log_evidences, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def answer(table: pd.DataFrame, wins: float) -> str:
    """How decided a comparison is, in words; ``wins``: how often the best one is the best within the errors."""
    first, second = table.index[:2]
    ahead, error = -float(table["log_bayes_factor"].iloc[1]), float(table["factor_error"].iloc[1])
    if table["is_lower_bound"].iloc[0]:
        return (
            f"{first} has the highest lower bound, {ahead:.3g} nats above {second}. How far the bounds lie below the "
            "evidence is unknown and grows with the rank, so this is a hint: 'chib' or 'smc' can decide it."
        )
    lead = f"{first} is ahead of {second} by {ahead:.3g} nats (Monte-Carlo error {error:.2g})"
    if wins < DECIDED:
        return f"{lead}: the Monte-Carlo error leaves it open. More draws or chains can decide it."
    word = next(word for limit, word in SCALE if ahead < limit)
    return f"{lead}: the data favour it {word}."
