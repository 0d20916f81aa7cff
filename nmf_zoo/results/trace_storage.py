"""What a sampling run keeps, and where: the traces that its chains fill, and the groups that these become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import RunFailed
from nmf_zoo.results.groups import FOLLOWED, LEADING, as_dataset, plain_attrs, stats_dataset
from nmf_zoo.results.stores import Store, StoredTraces
from nmf_zoo.runtime.driver import SampleRun
from nmf_zoo.runtime.stopping import INTERRUPTED
from nmf_zoo.runtime.traces import MomentTraces, Traces
from nmf_zoo.structure import Array, Factorisation

MOMENTS, MEAN, SD = "posterior_moments", "_mean", "_sd"


@contextmanager
def make_traces(
    structure: Factorisation,
    run: SampleRun,
    n_chains: int,
    path: str | Path | None,
    data: Mapping[str, xr.Dataset],
    run_id: str | None,
) -> Iterator[Traces]:
    """Where the chains of a run put what it keeps; a store at ``path`` begins with the model's ``data``.

    ``run_id`` : of the run's checkpoint, which may have begun the store; None without
    """
    lengths = n_chains, run.kept_warmup, run.kept_statistics
    if path is None:
        yield MomentTraces(*lengths) if run.keep == "moments" else Traces(*lengths)
        return
    store = Store(Path(path), run_id, n_chains)
    try:
        store.add_groups(data)
        yield StoredTraces(structure, store, *lengths)
    finally:
        store.drop_if_empty()


def draw_groups(
    structure: Factorisation, traces: Traces, part: str, labelled: Factorisation | None = None
) -> dict[str, xr.Dataset]:
    """posterior and sample_stats of a part of the run, "draws" or "warmup", around the arrays of the traces.

    ``labelled`` : whose labels draws have, where these are of fewer samples than the model's
    """
    values, stats = (rows.arrays for rows in traces.rows[part])
    posterior = as_dataset(labelled or structure, values, LEADING)
    return {"posterior": posterior, "sample_stats": stats_dataset(structure, stats)}


def drawn_invariants(traces: Traces) -> xr.Dataset:
    """``lp`` and the followed cells of W H of the draws that are in memory so far, (chain, draw, ...)."""
    drawn = min(chain.draws.filled for chain in traces.chains)
    stats = {name: array[:, :drawn] for name, array in traces.rows["draws"][-1].arrays.items() if name in FOLLOWED}
    return xr.Dataset({name: ((*LEADING, "checked_cell")[: array.ndim], array) for name, array in stats.items()})


def moment_groups(structure: Factorisation, traces: Traces, part: str) -> dict[str, xr.Dataset]:
    """sample_stats, and posterior_moments: ``W_mean``, ``W_sd``, ... (chain, ...) and the ``draws`` they are of."""
    mean, squares, stats = (rows.arrays for rows in traces.rows[part])
    draws = np.array([getattr(chain, part).added for chain in traces.chains])
    arrays: dict[str, Array] = {}
    for name in mean:
        arrays[f"{name}{MEAN}"] = mean[name][:, 0]
        arrays[f"{name}{SD}"] = spread(squares[name][:, 0], draws)
    owners = {name: name.rpartition("_")[0] for name in arrays}
    moments = as_dataset(structure, arrays, ("chain",), owners).assign(draws=("chain", draws))
    return {MOMENTS: moments, "sample_stats": stats_dataset(structure, stats)}


def spread(squares: Array, draws: Array) -> Array:
    """Standard deviations (chain, ...) from sums of squared deviations; NaN of a single draw."""
    freedom = np.reshape(np.where(draws > 1, draws - 1.0, np.nan), (-1, *[1] * (squares.ndim - 1)))
    return np.sqrt(squares / freedom)


def stored_groups(structure: Factorisation, traces: StoredTraces, part: str) -> dict[str, xr.Dataset]:
    """posterior and sample_stats, left on disk."""
    return traces.groups(part)


GROUPS_OF: Mapping[type, Any] = {Traces: draw_groups, MomentTraces: moment_groups, StoredTraces: stored_groups}


def chain_groups(
    structure: Factorisation, traces: Traces, early: str = INTERRUPTED, **labelled: Factorisation
) -> dict[str, xr.Dataset]:
    """The groups of the draws, and of the warm-up where it was kept. ``early`` : why there may be none.

    ``labelled`` : as of :func:`draw_groups`
    """
    if not traces.chains[0].draws.filled:
        if early.startswith(INTERRUPTED):
            raise KeyboardInterrupt("stopped before the first draw")
        raise RunFailed(f"no draw was made: the run ended within compiling and warm-up (tune); {early}")
    found: dict[str, xr.Dataset] = {}
    for prefix, part in (("", "draws"), ("warmup_", "warmup")):
        if getattr(traces.chains[0], part).filled:
            groups = GROUPS_OF[type(traces)](structure, traces, part, **labelled)
            found |= {f"{prefix}{name}": group for name, group in groups.items()}
    return found


def finish_store(traces: Traces, attrs: Mapping[str, Any], made: Mapping[str, xr.Dataset]) -> None:
    """What was stored gets the attributes of the run, and groups that were made of its draws."""
    if isinstance(traces, StoredTraces):
        traces.finish(plain_attrs(attrs), made)
