"""Where the chains of a run begin: what ``initvals`` and ``start`` say."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, under_names
from nmf_zoo.inference.registry import names, resolve_engine, verdict
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.models.matrices import in_place
from nmf_zoo.results.beginnings import BY_SEARCH, EACH, ONE, OPTIMUM_OF_CHAIN, RANDOM, START, beginning_of
from nmf_zoo.results.beginnings import SEARCH as SEARCH_GROUP
from nmf_zoo.results.groups import variable_dims
from nmf_zoo.results.posterior import check_labels, posterior_group
from nmf_zoo.runtime.arguments import check_initvals, variable_shapes
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.driver import FitRun, SampleRun, Solution
from nmf_zoo.runtime.engine import Engine, Registration, WholeSampler, is_large
from nmf_zoo.runtime.state_patterns import Each
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.search.optima import dataset_of
from nmf_zoo.search.options import AUTO, Search, can_search
from nmf_zoo.search.run import run_search
from nmf_zoo.structure import Array, Factorisation

Run = TypeVar("Run", SampleRun, FitRun)
SEARCH = 1 << 40  # the search's stream among those of the chains, which are numbered from 0
SHARE = 0.2  # of the time
FITS = 256  # of a large table at the most
SWEEPS = 5.0  # whose time the search may take, for a sweep of warm-up of one chain, at the most
ENOUGH = 8  # fits that end at one optimum, where it ends
MAX_ITER, TOL = 2000, 1e-4  # of a fit, as by default
KEPT = {  # of a search, in the checkpoint of a run
    "starts": Each(Each(np.ndarray)),
    "table": {
        "objective": Each(float),
        "found": Each(int),
        "way": Each(str),
        "first": Each(int),
        "likeness": Each(float),
    },
    "attrs": {"fits": int, "left": int, "iterations": int, "replay": str, "near": int, "engine": str},
    "optimum_of_chain": Each(int),
}


def starts_of(initvals: Any, structure: Factorisation, chains: int, but: Container[str] = ()) -> Any:
    """``initvals`` without their labels, which are the model's; or of a result one mapping per chain.

    Of a fit draws of its best restart, so that all chains start in one mode and none where another does; where it found
    one point, all there. Of chains their last draws, in turn. ``but`` are variables of a result that are left out.
    """
    if not _compat.is_result(initvals):
        return _unlabelled(initvals, structure)
    posterior = posterior_group(initvals)
    found = [name for name in variable_shapes(structure) if name in posterior]
    if not found:
        got, expected = f"a result with {list(posterior.data_vars)}", f"some of {list(variable_shapes(structure))}"
        raise InputError("initvals", got, expected)
    found = [name for name in found if name not in but]
    with under_names(idata="initvals"):
        check_labels(posterior, structure, found)
    is_fit = "fit" in _compat.group_names(initvals)
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    places = [(0, i % n_draws) if is_fit else (i % n_chains, n_draws - 1) for i in range(chains)]
    return [{name: _at(posterior[name], *place) for name in found} for place in places]


def _unlabelled(initvals: Any, structure: Factorisation) -> Any:
    """Mappings, one or one per chain, to arrays alone; what else was given is for :func:`check_initvals` to refuse."""
    if isinstance(initvals, list | tuple):
        return type(initvals)(_unlabelled(start, structure) for start in initvals)
    if not isinstance(initvals, Mapping):
        return initvals
    shapes, found = variable_shapes(structure), {}
    for key, value in initvals.items():
        name = getattr(key, "name", key)
        dims = variable_dims(structure, name, len(shapes[name])) if name in shapes else ()
        found[key] = in_place(f"initvals[{name!r}]", value, dims, structure.coords) if dims else value
    return found


def _at(variable: Any, chain: int, draw: int) -> Array:
    return np.asarray(variable.isel(chain=chain, draw=draw).to_numpy(), dtype=np.float64)


def beginnings(
    initvals: Any, starts: list[dict[str, Array]], search: Search | None, engine: Registration, structure: Factorisation
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Where the chains begin, as attributes of the result, and the search that found a result given as ``initvals``.

    ``starts`` : the values of every chain. What has none is random; particles have none.
    """
    if isinstance(engine, WholeSampler) and not engine.has_starts:
        return {}, {}
    if _compat.is_result(initvals):
        said, found = beginning_of(initvals)
        return said, {} if found is None else {SEARCH_GROUP: found}
    return {START: BY_SEARCH if search is not None else _by_values(starts, structure)}, {}


def _by_values(starts: list[dict[str, Array]], structure: Factorisation) -> str:
    factors = structure.W.variable, structure.H.variable
    if not any(name in start for start in starts for name in factors):
        return RANDOM
    first = starts[0]
    return ONE if all(start.keys() == first.keys() and _are_equal(first, start) for start in starts) else EACH


def _are_equal(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(np.array_equal(value, other[name]) for name, value in one.items())


def chain_search(start: Any, initvals: Any, engine: Registration, structure: Factorisation, tune: int) -> Search | None:
    """The search before the chains that ``start`` asks for; None for "random".

    "auto" asks for one where it makes sense, of the work that fits beside ``tune`` sweeps of warm-up; what it finds is
    the same for any number of chains. Not before NUTS, which can't be nutpie's where values are given.
    """
    is_word = isinstance(start, str) and start in (AUTO, RANDOM, BY_SEARCH)
    if not (is_word or isinstance(start, Search)):
        expected = f"{AUTO!r}, {RANDOM!r}, {BY_SEARCH!r} or nz.Search(...)"
        raise InputError("start", repr(start), expected, f"e.g. start={BY_SEARCH!r}")
    if start == RANDOM:
        return None
    able, can = _optimisers(structure), can_search(None, initvals, structure)
    if start == AUTO:
        can_move = structure.free_in_both.any()  # chains do not stay in the modes of activations alone
        makes_sense = tune and can and can_move and able and not able[0].is_noisy
        return _usual_search(engine, structure, tune) if isinstance(engine, Engine) and makes_sense else None
    reason = can.reason or ("" if able else "no optimiser can run this model")
    if reason:
        raise InputError("start", repr(start), f"{RANDOM!r}, since {reason}", "leave it out")
    return Search() if start == BY_SEARCH else start


def _usual_search(engine: Engine, structure: Factorisation, tune: int) -> Search:
    """Of work that is a fifth to a third of that of four chains."""
    iterations = max(round(SWEEPS * engine.sweep_in_iterations(structure)), 1) * tune
    return Search(fits=FITS if is_large(structure) else Search.fits, iterations=iterations, enough=ENOUGH)


def searched_starts(
    structure: Factorisation,
    search: Search,
    run: SampleRun,
    chains: int,
    key: np.uint64,
    checkpoint: Checkpoint | None = None,
) -> tuple[list[dict[str, Array]], xr.Dataset]:
    """One start per chain, around the best optimum that an optimiser found: draws of VB's q, or a point.

    Where bounds of other optima are near, each has a part of the posterior: the chains begin at all of these, in turn.
    With them the group ``search`` of the result. Of ``max_seconds`` the search takes a fifth at the most. A
    ``checkpoint`` keeps what was found, so that a run that goes on from it does not search again.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C ended the search
    """
    part = None if checkpoint is None else checkpoint.part("starts")
    kept = None if part is None else part.load(KEPT)
    if kept is not None:
        found = kept.tree
        starts = check_initvals(structure, found["starts"], chains)
        return starts, _with_chains(dataset_of(found["table"], **found["attrs"]), found["optimum_of_chain"])
    engine = _optimisers(structure)[0]
    length = FitRun(
        max_iter=MAX_ITER,
        tol=TOL,
        draws=chains,
        cores=run.cores,
        progressbar=run.progressbar,
        compiles=what_compiles(engine.name, structure),
        max_seconds=None if run.max_seconds is None else SHARE * run.max_seconds,
        executor=run.executor,
    )
    options, own = engine.options(), child(key, SEARCH)
    solutions, optima, early = run_search(engine, structure, options, length, search, own, most=chains)
    if early == INTERRUPTED:
        raise KeyboardInterrupt("stopped before the first draw")
    began = [chain % len(solutions) for chain in range(chains)]
    starts = [_draw_of(solutions[optimum], chain // len(solutions)) for chain, optimum in enumerate(began)]
    table, attrs = optima.table(), {**optima.work, "near": len(optima.near()), "engine": engine.name}
    if part is not None:
        part.save({"starts": starts, "table": table, "attrs": attrs, "optimum_of_chain": began}, {})
    return starts, _with_chains(dataset_of(table, **attrs), began)


def _draw_of(solution: Solution, number: int) -> dict[str, Array]:
    """One of the draws of an optimum's distribution; the point itself where it is one."""
    return {name: np.asarray(draws[number % len(draws)], np.float64) for name, draws in solution.values.items()}


def _with_chains(search: xr.Dataset, optimum_of_chain: list[int]) -> xr.Dataset:
    """With the optimum that each chain began at."""
    return search.assign({OPTIMUM_OF_CHAIN: ("chain", np.array(optimum_of_chain))})


def left_of(run: Run, seconds: float) -> Run:
    """The run, with the time that is left of its own."""
    if run.max_seconds is None:
        return run
    return replace(run, max_seconds=max(run.max_seconds - seconds, (1.0 - SHARE) * run.max_seconds))


def _optimisers(structure: Factorisation) -> list[Engine]:
    """Those that can run the model with default options; first those with an exact objective, and of them with a bound.

    A bound comes with a distribution: its draws are around an optimum, as chains should begin. Others find a point.
    """
    able = [resolve_engine(name, "fit", structure)[0] for name in names("fit") if verdict(structure, name)]
    return sorted(able, key=lambda engine: (engine.is_noisy, not engine.maximise))
