"""Where the chains of a run begin: what ``initvals`` and ``start`` say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.inference.registry import is_maximised, names, resolve_engine, verdict
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.results.posterior import posterior_group
from nmf_zoo.runtime.arguments import variable_shapes
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.driver import FitRun, SampleRun
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.search.options import Search, search_of
from nmf_zoo.search.run import run_search
from nmf_zoo.structure import Array, Factorisation

RANDOM, BY_SEARCH = "random", "search"
SEARCH = 1 << 40  # the search's stream among those of the chains, which are numbered from 0
SHARE = 0.2  # of the time
MAX_ITER, TOL = 2000, 1e-4  # of a fit, as by default


def starts_of(initvals: Any, structure: Factorisation, chains: int) -> Any:
    """``initvals`` as they are, or of a result one mapping per chain.

    Of a fit draws of its best restart, so that all chains start in one mode and none where another does; where it found
    one point, all there. Of chains their last draws, in turn.
    """
    if not isinstance(initvals, _compat.INFERENCE_DATA):
        return initvals
    posterior = posterior_group(initvals)
    found = [name for name in variable_shapes(structure) if name in posterior]
    if not found:
        got, expected = f"a result with {list(posterior.data_vars)}", f"some of {list(variable_shapes(structure))}"
        raise InputError("initvals", got, expected)
    is_fit = "fit" in _compat.group_names(initvals)
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    places = [(0, i % n_draws) if is_fit else (i % n_chains, n_draws - 1) for i in range(chains)]
    return [{name: _at(posterior[name], *place) for name in found} for place in places]


def _at(variable: Any, chain: int, draw: int) -> Array:
    return np.asarray(variable.isel(chain=chain, draw=draw).to_numpy(), dtype=np.float64)


def chain_search(start: Any, initvals: Any, structure: Factorisation) -> Search | None:
    """The search before the chains that ``start`` asks for: "search" or a :class:`Search`; None for "random"."""
    if start == RANDOM and isinstance(start, str):
        return None
    if start != BY_SEARCH and not isinstance(start, Search):
        raise InputError("start", repr(start), f"{RANDOM!r}, {BY_SEARCH!r} or nz.Search(...)", "e.g. start='search'")
    if not _optimisers(structure):
        raise InputError("start", repr(start), f"{RANDOM!r}: no optimiser can run this model", "leave it out")
    return search_of(Search() if start == BY_SEARCH else start, 1, None, initvals, structure, argument="start")


def searched_starts(
    structure: Factorisation, search: Search, run: SampleRun, chains: int, key: np.uint64
) -> tuple[list[dict[str, Array]], xr.Dataset]:
    """One start per chain, all around the best optimum that an optimiser found: draws of VB's q, or a point.

    With them the group ``search`` of the result. Of ``max_seconds`` the search takes a fifth at the most.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C ended the search
    """
    engine, options = resolve_engine(_optimisers(structure)[0], "fit", structure)
    length = FitRun(
        max_iter=MAX_ITER,
        tol=TOL,
        draws=chains,
        cores=run.cores,
        progressbar=run.progressbar,
        compiles=what_compiles(engine.name, structure),
        max_seconds=None if run.max_seconds is None else SHARE * run.max_seconds,
    )
    solution, optima, early = run_search(engine, structure, options, length, search, child(key, SEARCH))
    if early == INTERRUPTED:
        raise KeyboardInterrupt("stopped before the first draw")
    starts: list[dict[str, Array]] = [
        {name: np.asarray(draws[i % len(draws)], np.float64) for name, draws in solution.values.items()}
        for i in range(chains)
    ]
    return starts, optima.dataset().assign_attrs(engine=engine.name)


def left_of(run: SampleRun, seconds: float) -> SampleRun:
    """The run, with the time that is left of its own."""
    if run.max_seconds is None:
        return run
    return replace(run, max_seconds=max(run.max_seconds - seconds, (1.0 - SHARE) * run.max_seconds))


def _optimisers(structure: Factorisation) -> list[str]:
    """Those that can run the model with default options.

    First those with a bound: its distribution has draws around an optimum, as chains should start; others find a point.
    """
    able = [name for name in names("fit") if verdict(structure, name)]
    return sorted(able, key=lambda name: not is_maximised(name))
