"""``nz.select_rank``: the same model with different numbers of components, judged by one of several methods."""

from __future__ import annotations

import json
import numbers
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo import __version__
from nmf_zoo.errors import InputError, number_of, warn_caller
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence.bound import Bound
from nmf_zoo.inference.evidence.contract import Method
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.memory import MOST_RANKS, PER_RUN, require_memory
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.groups import plain_attrs
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.search.options import AUTO, Search, search_of
from nmf_zoo.structure import Factorisation
from nmf_zoo.verbs.block_source import as_source
from nmf_zoo.workbench import bounds, evidence, holdout
from nmf_zoo.workbench.rank_blocks import check_of_blocks, judge_over_blocks, without_correction
from nmf_zoo.workbench.rank_search import Outcome, Outcomes, RankSearch, run_rank_search, search_folder
from nmf_zoo.workbench.ranking import rank_table

METHODS: dict[str, Method] = evidence.METHODS | {method.name: method for method in (bounds.METHOD, holdout.METHOD)}
MANY = 10  # a bound is as good as its best restart


@names_checked
def select_rank(
    declare: Callable[[int], pm.Model],
    ranks: Iterable[int],
    *,
    method: Any = "bound",
    restarts: int | None = None,
    search: Any = AUTO,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    checkpoint: Path | str | None = None,
    executor: Executor | None = None,
    data: Any = None,
) -> xr.Dataset:
    """Fit a model with each of several numbers of components, and say which the data prefer, and how clearly.

    Parameters
    ----------
    declare : function that makes the model of a given rank, on the same data each time
    ranks : the numbers of components to compare, e.g. ``range(1, 11)``
    method : "bound" (variational bound of the log evidence, corrected), "chib", "smc" or "enumeration" (estimates of
        the log evidence), "holdout" (log-likelihood of held-out data), or options such as ``nz.Holdout(share=0.2)``
    restarts : independent runs of each rank; default 10 for the bound without a search, else what the method asks for.
        For "holdout" as many random splits of the data, the same for every rank
    search : for the best mode of every rank, as in :func:`~nmf_zoo.fit`, so that none is judged by a bad one: of the
        bound, with ``restarts`` as there, and of each split's fit by an optimiser. "auto" is ``nz.Search()``, 16 fits
        for the work of some 12 of them alone, where one makes sense. None: a bound is the best of ``restarts``, and a
        split has one fit. Estimates of the evidence have no search
    cores : threads; default every core. Results do not depend on it
    random_seed : as in :func:`~nmf_zoo.sample`
    progressbar, quiet : a bar on standard error; ``quiet`` also drops warnings about runs that failed
    checkpoint : folder that every run is saved to when it is done. The same call goes on from there after a kill or
        Ctrl-C and gives the same numbers; one with more ranks or restarts makes those that are missing
    executor : where the runs are made, in place of ``cores`` threads: a ``concurrent.futures.Executor``, of processes
        or of a cluster. Results do not depend on it
    data : X in blocks of whole samples, which need not fit into memory, as in :func:`~nmf_zoo.fit`, of models declared
        without data. For "bound", as it is, and for "holdout" by "vb" or "em": one fit after the other, no search.
        Each block holds out its own cells, or counts where it is sparse

    Returns
    -------
    Dataset with, by (rank, restart), of a search for the best bound by (rank, fit) under the same names,
    ``estimate`` in nats, ``standard_error`` of that run alone, ``seconds`` and ``status``. For "bound",
    ``estimate`` is ``bound + shortfall``, both of which are there, and ``shortfall_error`` stands for the standard
    error; where the bound is not corrected ``estimate`` is the bound. By rank, ``combined`` with ``combined_error``
    (the best restart of a bound with what it has over the next, else the mean of the restarts, on the scale of the
    evidence where each is unbiased), ``difference`` to the best rank with ``difference_error``, ``plausible``, the
    ranks that are not ruled out, and ``probability``, all ranks being equally likely beforehand and ``combined``
    being exact (not for "holdout"). ``attrs["answer"]`` says in words what was found and how decided it is;
    ``best``, ``runner_up`` and ``log_bayes_factor`` are there too.

    Notes
    -----
    The bound alone prefers ranks that are too small where counts are large: it misses about K^2 / 2 times the log of
    the counts per cell. With known hyperparameters, on dense tables of moderate size (min(F, N) * K up to 1,500), an
    estimate of what it misses, ``shortfall``, is added for every rank (``method=nz.RankBound(corrected=False)`` leaves
    it out), and a difference is called decided when it exceeds that of ``shortfall_error``, plus what the best restart
    of either rank has over the next. The estimate is good where each cell of W and H rests on many counts, and poor
    where prior shapes are below 1; "smc" is better everywhere, and a table of some hundred cells takes it seconds.
    Elsewhere the bounds are compared as they are, and the answer says so. One run of each rank, or runs that stopped at
    ``max_iter``, never decide between bounds. Estimates of the evidence are told apart by twice the standard error of
    their difference, and held-out data by twice its standard error over the splits, or more where these are few
    (Student's t).

    Examples
    --------
    >>> import numpy as np, nmf_zoo as nz
    >>> X = np.random.default_rng(1).poisson(np.outer([1, 5, 2], [3, 1, 4, 9]))
    >>> found = nz.select_rank(lambda rank: nz.gamma_nmf(X, rank), [1, 2], restarts=2, random_seed=1, quiet=True)
    >>> found.attrs["best"]
    1
    """
    began = time.perf_counter()
    wanted, chosen = check_ranks(ranks), resolve_method(method)
    judge, options = chosen
    asked = MANY if restarts is None else restarts
    check_counts(restarts=(asked, 1), cores=(available_cores() if cores is None else cores, 1))
    _require_memory("restarts", asked, wanted)
    check_folder(checkpoint)
    check_executor(executor)
    source = None if data is None else as_source(data)
    structures = declared(declare, wanted, None if source is None else source.shape)
    if source is not None:
        check_of_blocks(judge, search, checkpoint, executor)
        options, search = without_correction(options), None
    for rank, structure in structures.items() if source is None else ():
        what = f"can't judge the model of rank {rank}"
        evidence.require_method(structure, judge, options, METHODS, what)
    of_modes = search_for(structures, judge, options, restarts, search)
    is_one_search = of_modes is not None and judge.is_bound
    n_restarts = 1 if is_one_search else restarts or (MANY if judge.is_bound else judge.runs)
    if of_modes is not None and is_one_search:
        _require_memory("search", of_modes.fits, wanted)
    entropy = entropy_of(random_seed)
    if source is not None:
        outcomes = judge_over_blocks(
            structures,
            source,
            judge,
            options,
            n_restarts,
            seed_key(entropy),
            cores=cores or available_cores(),
            progressbar=progressbar and not quiet,
        )
        return _finished(outcomes, judge, options, wanted, n_restarts, None, entropy, began, quiet)
    with search_folder(checkpoint, judge, options, entropy, random_seed is not None, of_modes) as folder:
        entropy = entropy if folder is None else folder.entropy
        jobs = RankSearch(
            method=judge,
            options=options,
            structures=structures,
            restarts=n_restarts,
            key=seed_key(entropy),
            same_splits=judge is holdout.METHOD,
            of_modes=of_modes,
        )
        shelf = Outcomes(jobs, folder)
        outcomes = run_rank_search(jobs, shelf, cores or available_cores(), progressbar and not quiet, executor)
    return _finished(outcomes, judge, options, wanted, jobs.runs, of_modes, entropy, began, quiet)


def _finished(
    outcomes: Mapping[tuple[int, int], Outcome],
    judge: Method,
    options: Any,
    ranks: list[int],
    runs: int,
    of_modes: Search | None,
    entropy: Any,
    began: float,
    quiet: bool,
) -> xr.Dataset:
    """The table with its attributes."""
    table = rank_table(outcomes, judge, ranks, runs, of_modes is not None and judge.is_bound)
    table.attrs |= plain_attrs(
        {
            "method": judge.name,
            "options": json.dumps(asdict(options), default=repr),
            "search": "" if of_modes is None else repr(of_modes),
            "random_seed": str(entropy),
            "seconds": time.perf_counter() - began,
            "inference_library": "nmf_zoo",
            "inference_library_version": __version__,
        }
    )
    if not quiet:
        _warn_of_failures(outcomes)
    return table


def search_for(
    structures: Mapping[int, Factorisation], judge: Method, options: Any, restarts: int | None, asked: Any
) -> Search | None:
    """The search in every job, as :func:`nmf_zoo.fit` understands it; None where one of the ranks can have none.

    A rank at which no component is unknown has no say.

    Raises
    ------
    InputError : it is no search, this method has none, or a model leaves it no choice
    """
    told = [structure for structure in structures.values() if structure.free_in_both.any()]
    asks = told or list(structures.values())
    found = [_search_of(structure, judge, options, restarts, asked) for structure in asks]
    return None if None in found else found[0]


def _search_of(
    structure: Factorisation, judge: Method, options: Any, restarts: int | None, asked: Any
) -> Search | None:
    if judge is holdout.METHOD:
        engine, own = holdout.resolve(options.engine, structure)
        if engine.verb == "fit":
            return search_of(asked, 1, engine, own, None, structure)
        reason = f"{engine.name!r} draws"
    elif judge.is_bound:
        return search_of(asked, restarts or 1, vb.ENGINE, getattr(options, "vb", None), None, structure)
    else:
        reason = f"method {judge.name!r} looks for no mode"
    if isinstance(asked, Search):
        raise InputError("search", repr(asked), f"none, since {reason}", "leave it out")
    return search_of(asked, 1, vb.ENGINE, None, {}, structure)  # a word is checked; there is nothing to search


def _require_memory(name: str, runs: int, ranks: list[int]) -> None:
    require_memory(name, f"{runs} of {len(ranks)} ranks each", PER_RUN * runs * len(ranks), "ask for fewer")


def check_ranks(ranks: Any) -> list[int]:
    """The ranks in rising order; duplicates and what is no number of components are refused."""
    expected = "different positive integers, e.g. range(1, 11)"
    if isinstance(ranks, str | bytes | numbers.Number) or not isinstance(ranks, Iterable):
        raise InputError("ranks", repr(ranks), expected)
    given = list(islice(ranks, MOST_RANKS + 1))
    if len(given) > MOST_RANKS:
        raise InputError("ranks", f"more than {MOST_RANKS:,}", expected, "look at few of them first")
    if not given:
        raise InputError("ranks", "no rank", expected)
    for rank in given:
        if isinstance(rank, bool | np.bool_) or not isinstance(rank, numbers.Integral) or rank < 1:
            raise InputError("ranks", repr(rank), expected)
    twice = sorted({int(rank) for rank in given if given.count(rank) > 1})
    if twice:
        raise InputError("ranks", f"{', '.join(map(str, twice))} more than once", expected, "restarts= repeats a rank")
    return sorted(int(rank) for rank in given)


def resolve_method(method: Any) -> tuple[Method, Any]:
    """The method and its options, from a name or an options object; of ``nz.Bound`` the length of a fit is taken."""
    if isinstance(method, Bound):
        method = bounds.RankBound(max_iter=method.max_iter, tol=method.tol)
    return evidence.resolve_method(method, METHODS)


def declared(declare: Any, ranks: list[int], of_data: tuple[int, int] | None = None) -> dict[int, Factorisation]:
    """The model of every rank, all on the same data, which they share; what building them warns of is said once.

    ``of_data`` : shape of the data where the models have none.
    """
    if not callable(declare):
        do = "e.g. lambda rank: nz.gamma_nmf(X, rank)"
        raise InputError("declare", type(declare).__name__, "a function of the rank", do)
    structures: dict[int, Factorisation] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rank in ranks:
            structure = _declared(declare, rank)
            first = next(iter(structures.values()), structure)
            _require_same_data(rank, structure, next(iter(structures), rank), first)
            structures[rank] = replace(structure, data=first.data, imputed=None)  # missing cells integrate to 1
    _repeat_warnings(caught)
    shape = of_data or next(iter(structures.values())).shape
    above = [rank for rank in ranks if rank > min(shape)]
    if above:
        message = f"ranks: got {_spans(above)}, above min(features, samples) = {min(shape)}"
        warn_caller(f"{message}; allowed, but the factors are not unique")
    return structures


def _declared(declare: Callable[[int], Any], rank: int) -> Factorisation:
    model = declare(rank)
    if not isinstance(model, pm.Model):
        raise InputError("declare", f"{type(model).__name__} for rank {rank}", "a pm.Model", "return the model")
    structure = read(model)
    if structure.rank != rank:
        expected = f"a model of {number_of(rank, 'component')} for rank {rank}"
        raise InputError("declare", f"a model of {number_of(structure.rank, 'component')} for rank {rank}", expected)
    return structure


def _require_same_data(rank: int, structure: Factorisation, other: int, first: Factorisation) -> None:
    """Evidences of different data can't be compared."""
    if structure.shape == first.shape and _same(structure.data, first.data):
        return
    got = f"other data for rank {rank} than for rank {other}"
    raise InputError("declare", got, "the same X for every rank", "make X outside of the function")


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    return one is None or all(
        np.array_equal(value, getattr(other, name)) if isinstance(value, np.ndarray) else value == getattr(other, name)
        for name, value in vars(one).items()
    )


def _repeat_warnings(caught: list[warnings.WarningMessage]) -> None:
    """Each once; that a rank is above min(F, N) is said of all ranks together."""
    said = set()
    for warning in caught:
        text = str(warning.message)
        if text not in said and not text.startswith("rank: got"):
            warn_caller(text, warning.category)
        said.add(text)


def _spans(ranks: list[int]) -> str:
    """[3, 4, 5, 8] as ``3 to 5, 8``"""
    words: list[list[int]] = []
    for rank in ranks:
        if words and rank == words[-1][-1] + 1:
            words[-1].append(rank)
        else:
            words.append([rank])
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else str(span[0]) for span in words)


def check_folder(path: Any) -> None:
    """Refuse what is no path."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InputError("checkpoint", repr(path), "the path of a folder, or None")


def _warn_of_failures(outcomes: Mapping[tuple[int, int], Outcome]) -> None:
    failed = [(job, outcome.status) for job, outcome in sorted(outcomes.items()) if outcome.status.startswith("failed")]
    if failed:
        (rank, restart), status = failed[0]
        share = f"{len(failed)} of {number_of(len(outcomes), 'run')}"
        message = f"{share} failed; the first, restart {restart} of rank {rank}: {status}"
        warn_caller(message)
