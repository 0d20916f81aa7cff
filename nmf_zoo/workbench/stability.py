"""``nz.stability``: which components come again, whatever the start and however the data fell out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo import __version__
from nmf_zoo.diagnostics.clusters import cluster_components
from nmf_zoo.errors import InputError, RunFailed, not_one_of, number_of, warn_caller
from nmf_zoo.kernels.random.keyed_rng import child, generator_of, seed_key
from nmf_zoo.models import gamma_nmf
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.groups import axes_of, plain_attrs
from nmf_zoo.results.posterior import Draw
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.runtime.checkpoint import Checkpoint, RunFiles
from nmf_zoo.runtime.driver import available_cores
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.runtime.state_patterns import ArrayPattern
from nmf_zoo.structure import Array, Factorisation
from nmf_zoo.workbench.evidence import require_method
from nmf_zoo.workbench.holdout import METHOD, SPLIT, Holdout, cell_scores, fitted_draws, hold_out, thinned_scores
from nmf_zoo.workbench.rank import check_folder, check_ranks, declared
from nmf_zoo.workbench.rank_search import rank_folders, search_folder

REPLICATES = ("holdout", "bootstrap", "same")
FOUND_AGAIN = 0.9  # of the fits
NUMBERS = ("heldout", "error", "seconds")  # of a fit


@names_checked
def stability(
    declare: Any,
    ranks: Iterable[int] | None = None,
    restarts: int = 10,
    *,
    replicates: Literal["holdout", "bootstrap", "same"] = "holdout",
    method: Holdout | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    quiet: bool = False,
    checkpoint: Path | str | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Fit a model of each rank many times, from random starts on data that vary, and see which components come again.

    Components that the data force are found from every start and survive that a part of the data is missing; others are
    inventions of a rank that is too high, or of one optimum. No judge of the rank by itself: see
    :func:`~nmf_zoo.select_rank`, whose answer ``nz.plot_stability(table, evidence=found)`` draws beside this one.

    Parameters
    ----------
    declare : function that makes the model of a given rank, on the same data each time; or a ``pm.Model``, or data X,
        of which ``nz.gamma_nmf(X, rank)`` is taken
    ranks : the numbers of components, e.g. ``range(2, 9)``; of a model its own
    restarts : fits of each rank, at least 2
    replicates : what each fit sees. "holdout": the data without a random part, cells or, of sparse counts, a share of
        each count, which then says how well the others foretell it; "bootstrap": the counts of each sample drawn anew
        with replacement (Alexandrov et al. 2013); "same": the data as they are, so that only starts differ. Fit j
        of every rank sees the same data
    method : how a fit is made, and which share is held out: an engine, its length; default ``nz.Holdout()``
    cores, random_seed, progressbar, quiet, checkpoint, executor : as in :func:`~nmf_zoo.select_rank`

    Returns
    -------
    Dataset with, by (rank, restart), ``heldout`` (log-likelihood of the held-out part, of "holdout"), ``error`` (minus
    the log-likelihood of what was fitted at the posterior means of W, H and X's parameters, per observed cell, in
    nats), ``seconds``
    and ``status``. By (rank, component), NaN beyond the rank, the most reproducible first: ``reproducibility``, the
    share of the fits in which the component came again (its column of W has a cosine of 0.9 to the mean one and is
    nearer to it than to any other by 0.05, and it is in use: at least 5 % of the size of the largest); ``share`` of all
    components; ``silhouette`` of the cluster in [-1, 1]; ``W`` (rank, feature, component), the mean columns, which add
    up to 1; ``cosine`` (rank, restart, component). By rank, ``came_again``, how many
    components did in at least 90 % of the fits. ``attrs["answer"]`` says in words what was found;
    ``largest_stable`` is the largest rank all of whose components came again in at least 90 % of the fits, 0 if there
    is none.

    Raises
    ------
    InputError : an argument can't be used
    UnsupportedModel : the engine can't fit one of the models, or not a part of its data

    Examples
    --------
    >>> import numpy as np, nmf_zoo as nz
    >>> X = np.random.default_rng(1).poisson(np.kron(np.eye(2), np.full((4, 10), 20.0)))
    >>> found = nz.stability(X, [2, 3], restarts=4, random_seed=1, quiet=True)
    >>> found.attrs["largest_stable"]
    2
    """
    began = time.perf_counter()
    method = Holdout() if method is None else method
    if not isinstance(method, Holdout):
        raise InputError("method", repr(method), "nz.Holdout(...)")
    if replicates not in REPLICATES:
        raise not_one_of("replicates", replicates, REPLICATES)
    check_counts(restarts=(restarts, 2), cores=(available_cores() if cores is None else cores, 1))
    check_executor(executor)
    check_folder(checkpoint)
    structures = _structures(declare, ranks)
    for rank, structure in structures.items():
        require_method(structure, METHOD, method, {METHOD.name: METHOD}, f"can't fit the model of rank {rank}")
        _require_counts(structure, replicates)
    entropy = entropy_of(random_seed)
    search = _Replicates(structures, replicates, method)
    items = [(rank, restart) for restart in range(restarts) for rank in sorted(structures, reverse=True)]
    show = progressbar and not quiet
    with search_folder(checkpoint, METHOD, (replicates, method), entropy, random_seed is not None) as folder:
        entropy = entropy if folder is None else folder.entropy
        keys = [child(seed_key(entropy), restart) for _, restart in items]
        shelf = _Shelf(search, items, folder)
        with Jobs(
            len(items), cores=cores or available_cores(), word="fits", progressbar=show, executor=executor
        ) as jobs:
            found = jobs.run(search.fit, items, keys, shelf)
    fits = {items[number]: fit for number, fit in found.items()}
    table = _table(fits, structures, restarts, replicates)
    table.attrs |= plain_attrs(
        {
            "replicates": replicates,
            "method": repr(method),
            "random_seed": str(entropy),
            "seconds": time.perf_counter() - began,
            "inference_library": "nmf_zoo",
            "inference_library_version": __version__,
        }
    )
    failed = [fit.status for fit in fits.values() if fit.W is None]
    if failed and not quiet:
        message = f"{len(failed)} of {number_of(len(items), 'fit')} failed; the first: {failed[0]}"
        warn_caller(message)
    return table


# -- what is fitted --------------------------------------------------------------------------------------------------


def _structures(declare: Any, ranks: Any) -> dict[int, Factorisation]:
    """The model of every rank."""
    if isinstance(declare, pm.Model):
        own = read(declare)
        if ranks is not None and check_ranks(ranks) != [own.rank]:
            expected = f"None, or [{own.rank}], the rank of the model"
            raise InputError("ranks", repr(ranks), expected, "give a function of the rank in the model's place")
        return {own.rank: own}
    if ranks is None:
        raise InputError("ranks", "None", "numbers of components, e.g. range(2, 9)")
    make: Callable[[int], pm.Model] = declare if callable(declare) else lambda rank: gamma_nmf(declare, rank)
    return declared(make, check_ranks(ranks))


def _require_counts(structure: Factorisation, replicates: str) -> None:
    if replicates == "bootstrap" and not structure.is_integer:
        expected = "'holdout' or 'same': only counts are drawn anew"
        raise InputError("replicates", "'bootstrap' with values that are no counts", expected)
    if replicates == "bootstrap" and not structure.likelihood.varies_as_redrawn:
        got = f"'bootstrap' of {structure.likelihood.family} data"
        raise InputError("replicates", got, "'holdout' or 'same': counts are drawn anew as Poisson ones vary")


class _Fit(NamedTuple):
    """Of one fit: W (F, K) with the components' sizes as sums of its columns, or None where it failed; the held-out
    score, the error, seconds and the status."""

    W: Array | None
    heldout: float
    error: float
    seconds: float
    status: str


@dataclass(frozen=True)
class _Replicates:
    """The fits of all ranks; it goes to where they are made."""

    structures: Mapping[int, Factorisation]
    replicates: str
    method: Holdout

    def fit(self, item: tuple[int, int], job: Job) -> _Fit:
        if job.is_stopped():
            raise KeyboardInterrupt
        began = time.perf_counter()
        try:
            found = self._fit(self.structures[item[0]], job)
        except RunFailed as error:
            if job.is_stopped():
                raise KeyboardInterrupt from None
            return _Fit(None, np.nan, np.nan, time.perf_counter() - began, f"failed: {error}")
        if job.is_stopped():
            raise KeyboardInterrupt
        return found._replace(seconds=time.perf_counter() - began)

    def _fit(self, structure: Factorisation, job: Job) -> _Fit:
        key, scores = child(job.key, SPLIT), np.empty(0)
        means = _RunningMeans()
        if self.replicates == "holdout":
            split = hold_out(structure, self.method.share, key)
            draws = means.of(fitted_draws(split.training, self.method, None, job))
            scores = thinned_scores(split, draws) if split.is_thinned else cell_scores(split, draws)
            fitted = split.training
        else:
            fitted = resampled(structure, key) if self.replicates == "bootstrap" else structure
            for _ in means.of(fitted_draws(fitted, self.method, None, job)):
                pass
        heldout = float(np.sum(scores)) if self.replicates == "holdout" else np.nan
        return _Fit(means.W * means.H.sum(axis=1), heldout, means.error(fitted), 0.0, "complete")


class _Shelf:
    """Where fits are kept on disk, those that came to their end; without a checkpoint, nowhere."""

    def __init__(self, search: _Replicates, items: Sequence[tuple[int, int]], checkpoint: Checkpoint | None):
        self._items, self._structures = items, search.structures
        wanted = search.structures, METHOD, search.method
        self._folders = {} if checkpoint is None else dict(rank_folders(*wanted, checkpoint))

    def load(self, number: int) -> _Fit | None:
        part, (rank, _) = self._part(number), self._items[number]
        shape = self._structures[rank].shape[0], rank
        saved = None if part is None else part.load({"W": ArrayPattern("f", shape), **dict.fromkeys(NUMBERS, float)})
        if saved is None:
            return None
        return _Fit(saved.tree["W"], **{name: saved.tree[name] for name in NUMBERS}, status="complete")

    def save(self, number: int, fit: _Fit) -> None:
        part = self._part(number)
        if part is not None and fit.W is not None:
            part.save({"W": fit.W, **{name: getattr(fit, name) for name in NUMBERS}}, {})

    def _part(self, number: int) -> RunFiles | None:
        rank, restart = self._items[number]
        return self._folders[rank].part(restart) if rank in self._folders else None


class _RunningMeans:
    """Means of W, H and all unknowns over draws that pass by."""

    def __init__(self) -> None:
        self._n, self._values = 0, dict[str, Any]()
        self._W: Any = 0.0
        self._H: Any = 0.0

    def of(self, draws: Iterable[Draw]) -> Iterator[Draw]:
        for draw in draws:
            self._n += 1
            self._values = {name: self._values.get(name, 0.0) + value for name, value in draw.values.items()}
            self._W, self._H = self._W + draw.W, self._H + draw.H
            yield draw

    @property
    def W(self) -> Array:
        return np.asarray(self._W / self._n)

    @property
    def H(self) -> Array:
        return np.asarray(self._H / self._n)

    def error(self, structure: Factorisation) -> float:
        """Minus the mean log-likelihood of an observed cell at the means."""
        n_cells = structure.data.observed_values.size
        if structure.data.is_complete:
            n_cells = structure.shape[0] * structure.shape[1]
        values = {name: np.asarray(total / self._n) for name, total in self._values.items()}
        return -structure.log_likelihood(self.W, self.H, values) / n_cells


def resampled(structure: Factorisation, key: np.uint64) -> Factorisation:
    """The model with each sample's counts drawn anew, with replacement, from its own: as many."""
    generator = generator_of(key)
    rows, cols, values = structure.observed_cells()
    totals = np.bincount(cols, values, structure.shape[1])
    drawn = np.zeros(len(values))
    order = np.argsort(cols, kind="stable")
    for cells in np.split(order, np.flatnonzero(np.diff(cols[order])) + 1):
        total = totals[cols[cells[0]]]
        if total > 0:
            drawn[cells] = generator.multinomial(int(total), values[cells] / total)
    data: Any = structure.data
    if hasattr(data, "rows"):
        left = (drawn > 0) | (not data.is_complete)
        new = replace(data, rows=rows[left], cols=cols[left], values=drawn[left])
    else:
        table = np.zeros(structure.shape)
        table[rows, cols] = drawn
        new = replace(data, values=table)
    return replace(structure, data=new, cells=None, imputed=None)


# -- what was found --------------------------------------------------------------------------------------------------


def _table(
    fits: Mapping[tuple[int, int], _Fit], structures: Mapping[int, Factorisation], restarts: int, replicates: str
) -> xr.Dataset:
    ranks = sorted(structures)
    features = axes_of(next(iter(structures.values())))[0].labels
    n_features, most = len(features), ranks[-1]
    by_run = {name: np.full((len(ranks), restarts), np.nan) for name in ("heldout", "error", "seconds")}
    status = np.full((len(ranks), restarts), "interrupted", dtype=object)
    by_component = {name: np.full((len(ranks), most), np.nan) for name in ("reproducibility", "silhouette", "share")}
    cosine, W = np.full((len(ranks), restarts, most), np.nan), np.full((len(ranks), n_features, most), np.nan)
    for i, rank in enumerate(ranks):
        own = {restart: fit for (other, restart), fit in fits.items() if other == rank}
        for restart, fit in own.items():
            status[i, restart] = fit.status
            for name, values in by_run.items():
                values[i, restart] = getattr(fit, name)
        whole = [restart for restart, fit in own.items() if fit.W is not None]
        if not whole:
            continue
        found = cluster_components(np.stack([np.asarray(own[restart].W) for restart in whole]))
        W[i, :, :rank] = found.centre
        cosine[i, whole, :rank] = found.cosine
        for name, values in by_component.items():
            values[i, :rank] = getattr(found, name)
    coords = {"rank": ranks, "restart": range(restarts), "feature": features, "component": range(most)}
    variables: dict[str, Any] = {name: (("rank", "restart"), values) for name, values in by_run.items()}
    variables |= {name: (("rank", "component"), values) for name, values in by_component.items()}
    variables |= {"status": (("rank", "restart"), status.astype(str)), "W": (("rank", "feature", "component"), W)}
    table = xr.Dataset(variables | {"cosine": (("rank", "restart", "component"), cosine)}, coords=coords)
    table["came_again"] = (table["reproducibility"] >= FOUND_AGAIN).sum("component")
    if replicates != "holdout":
        table = table.drop_vars("heldout")
    return table.assign_attrs(_answer(table))


def _answer(table: xr.Dataset) -> dict[str, Any]:
    """How many components of each rank came again."""
    stable = {int(rank): int(n) for rank, n in zip(table["rank"], table["came_again"], strict=True)}
    largest = max((rank for rank, n in stable.items() if n == rank), default=0)
    words = ", ".join(f"{n} of {rank}" for rank, n in stable.items())
    best = f"all of rank {largest}, and of no larger one" if largest else "at no rank all of them"
    answer = f"Components that came again in at least {FOUND_AGAIN:.0%} of the fits: {words}; {best}."
    return {"answer": answer, "largest_stable": largest, "status": _status(table)}


def _status(table: xr.Dataset) -> str:
    return "interrupted" if bool((table["status"] == "interrupted").any()) else "complete"
