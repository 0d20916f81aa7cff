"""Simulation-based calibration: does an engine draw from the posterior of a declaration?

Parameters are drawn from their prior, data from them, and the engine draws from the posterior of the data. The rank of
the truth among independent posterior draws is then uniform (Talts, Betancourt, Simpson, Vehtari, Gelman 2018). Ranks
are of quantities that do not care how components are labelled. A posterior that is too narrow piles ranks up at both
ends, one that is too wide in the middle, and one that is off to one side at the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy import stats

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.registry import require_support, resolve_engine, verb_of
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.options import names_checked
from nmf_zoo.prediction.simulation import draw_data, draw_unobserved, refuse_flat, refuse_large
from nmf_zoo.reading import read
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.runtime.checkpoint import Checkpoint, open_checkpoint
from nmf_zoo.runtime.compile_times import what_compiles
from nmf_zoo.runtime.driver import FitRun, SampleRun, available_cores, run_chains, run_restarts
from nmf_zoo.runtime.engine import Engine, WholeSampler
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.remote import check_executor
from nmf_zoo.runtime.run_fingerprint import function_fact, run_facts
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each
from nmf_zoo.structure import Array, Dense, Factorisation

Quantities = Callable[[Factorisation, Mapping[str, Array]], Mapping[str, float]]
CELLS = 12  # of W H
FEWEST = 20  # simulations below which nothing is said


@names_checked
def calibrate(
    declare: Callable[[], pm.Model],
    engine: Any = "gibbs",
    *,
    simulations: int = 200,
    draws: int = 99,
    thin: int = 10,
    tune: int = 500,
    max_iter: int = 2000,
    quantities: Quantities | None = None,
    alarm: float = 0.01,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    checkpoint: Path | str | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Check an engine, on a declaration, by simulation-based calibration.

    Parameters
    ----------
    declare : function that returns the model, every prior proper. Data in it are replaced by simulated ones; their mask
        is kept
    engine : name of an engine, or its options; that of an optimiser is what its draws are distributed like: VB's. NUTS
        by nutpie compiles the model once, NUTS by PyMC in each simulation, which takes seconds
    simulations : how often to draw a truth and data
    draws : independent posterior draws the truth is ranked among, so that there are draws + 1 ranks
    thin : sweeps between two of them: as many as it takes until they are nearly independent. Draws of ``"smc"`` are as
        far apart among its particles as they can be
    tune : warm-up sweeps of samplers
    max_iter : iterations of optimisers at the most
    quantities : ``f(structure, values) -> {name: number}`` of one draw; default the log joint density, the totals of W,
        of H and of imputed cells, hyperparameters (in order of size where components may change places) and some cells
        of W H
    alarm : chance of calling an exact engine wrong, over all quantities together
    cores : simulations side by side; default every core. Ranks do not depend on it
    random_seed, progressbar : as in :func:`~nmf_zoo.sample`
    checkpoint : folder from which the same call, also one with more simulations, goes on after it was stopped
    executor : where the simulations are made, in place of ``cores`` threads: a ``concurrent.futures.Executor``, of
        processes or of a cluster. Ranks do not depend on it. Not for NUTS

    Returns
    -------
    Dataset with ``rank`` (simulation, quantity), from 0 to draws; by quantity ``p_value``; ``lean`` and ``spread`` of
    the ranks in standard errors, 0 where they are uniform; and ``verdict``: "calibrated", "too narrow", "too wide",
    "too low", "too high" (the posterior, as against the truth) or "off". After Ctrl-C it holds the simulations that
    were done. ``attrs["verdict"]`` is one sentence.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> found = nz.calibrate(
    ...     lambda: nz.gamma_nmf(None, rank=1, shape=(2, 3)), simulations=20, draws=9, tune=20, thin=2, random_seed=1
    ... )
    >>> dict(found["rank"].sizes)["simulation"]
    20
    """
    check_counts(
        simulations=(simulations, FEWEST), draws=(draws, 1), thin=(thin, 1), tune=(tune, 0), max_iter=(max_iter, 1)
    )
    check_alarm(alarm)
    check_executor(executor)
    if not callable(declare):
        do = "e.g. lambda: nz.gamma_nmf(None, 2, shape=(3, 4))"
        raise InputError("declare", type(declare).__name__, "a function that returns a pm.Model", do)
    model = declare()
    if not isinstance(model, pm.Model):
        raise InputError("declare", f"a function that returns {type(model).__name__}", "one that returns a pm.Model")
    refuse_flat(model)
    structure = read(model)
    refuse_large(structure)
    verb, entropy = verb_of(engine), entropy_of(random_seed)
    chosen, options = resolve_engine(engine, verb, structure)
    require_support(_with_data(structure, np.ones(structure.shape)), chosen, options)
    if isinstance(chosen, Engine) and verb == "fit" and not chosen.maximise:
        raise InputError("engine", repr(chosen.name), "one that draws from a posterior", "this one finds a point")
    repeat = chosen.repeat if isinstance(chosen, WholeSampler) else None
    if repeat and structure.data is not None:
        do = "declare it with X=None and shape="
        raise InputError("declare", "a model with data", f"one without, for {chosen.name}", do)
    if repeat and executor is not None:
        raise InputError("executor", f"{type(executor).__name__} with {chosen.name}", "None", "it runs in this process")
    length = Length(draws=draws, thin=thin, tune=tune, max_iter=max_iter)
    repeated = repeat(model, structure, options) if repeat else None
    trial = Trial(structure, options, chosen, length, quantities or invariants, repeated)
    facts = _facts(trial, quantities)
    with _folder(checkpoint, facts, entropy, random_seed is not None) as saved:
        entropy = saved.entropy if saved else entropy
        key, side_by_side = seed_key(entropy), 1 if repeat else cores or available_cores()
        keys = [child(key, 1, number) for number in range(simulations)]
        bar: dict[str, Any] = {"word": "simulations", "progressbar": progressbar}
        bar["compiles"] = what_compiles(chosen.name, structure)
        with Jobs(simulations, cores=side_by_side, executor=executor, **bar) as jobs:
            found = jobs.run(trial.rank, _truths(model, structure, simulations, key), keys, _Ranks(saved))
    if not found:
        raise RunFailed("calibrate: stopped before the first simulation was done")
    names, ranks = next(iter(found.values())).names, np.array([ranked.ranks for ranked in found.values()])
    attrs = {"engine": chosen.name, "options": repr(options), "random_seed": repr(entropy)}
    return judge_ranks(ranks, names, draws, attrs, alarm)


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long each engine runs."""

    draws: int
    thin: int
    tune: int
    max_iter: int


class Ranked(NamedTuple):
    """Names and ranks (quantity,) of a truth's quantities among those of posterior draws."""

    names: list[str]
    ranks: Array


@dataclass(frozen=True)
class Trial:
    """All that one simulation needs: the model without data, the engine, and what to rank."""

    structure: Factorisation
    options: Any
    engine: Any
    length: Length
    quantities: Quantities
    repeated: Callable[..., dict[str, Array]] | None

    def rank(self, truth: Mapping[str, Array], job: Job) -> Ranked:
        """One simulation. Ties are broken at random."""
        if job.is_stopped():
            raise KeyboardInterrupt
        rng = np.random.default_rng(int(child(job.key, 0)))
        X = draw_data(self.structure, truth, rng)
        observed, truth = _with_data(self.structure, X), _with_imputed(self.structure, truth, X)
        drawn = self._draw(observed, X, child(job.key, 1))
        own = self.quantities(observed, truth)
        others = [
            self.quantities(observed, {name: array[i] for name, array in drawn.items()})
            for i in range(self.length.draws)
        ]
        table = np.array([[row[name] for name in own] for row in others])
        values = np.array(list(own.values()))
        below, equal = np.sum(table < values, axis=0), np.sum(table == values, axis=0)
        return Ranked(list(own), below + rng.integers(0, equal + 1))

    def _draw(self, observed: Factorisation, X: Array, key: np.uint64) -> dict[str, Array]:
        """Posterior draws, (draws, *variable) by name."""
        length = self.length
        run = SampleRun(
            draws=length.draws * length.thin,
            tune=length.tune,
            thin=length.thin,
            keep_warmup=False,
            cores=1,
            progressbar=False,
        )
        if self.repeated is not None:
            return self.repeated(observed, X, run, key)
        if isinstance(self.engine, WholeSampler):
            whole = replace(run, draws=length.draws, thin=1)  # draws of particles are thinned already
            groups, _ = self.engine.sample(None, observed, self.options, whole, key, [{}])
            return {str(name): array.to_numpy()[0] for name, array in groups["posterior"].items()}
        if self.engine.verb == "sample":
            chains, _ = run_chains(self.engine, observed, self.options, run, key, [{}])
            return dict(chains[0].draws.values)
        fit = FitRun(max_iter=length.max_iter, tol=1e-6, draws=length.draws, cores=1, progressbar=False)
        solutions, _ = run_restarts(self.engine, observed, self.options, fit, key, [{}])
        return solutions[0].values


def invariants(structure: Factorisation, values: Mapping[str, Array]) -> dict[str, float]:
    """Quantities of a draw that do not care how components are labelled. What is known is none of them."""
    W, H = (factor.value(values) for factor in (structure.W, structure.H))
    found = {"lp": float(structure.log_joint(values))}
    drawn = [factor.variable for factor in (structure.W, structure.H) if not factor.is_fixed]
    drawn += [] if structure.imputed is None else [structure.imputed.name]
    found |= {f"sum {name}": np.sum(values[name]) for name in drawn}
    is_known = not (structure.W.is_free and structure.H.is_free)  # which component is which
    for name in structure.unknowns:
        entries = np.ravel(values[name]) if is_known else np.sort(np.ravel(values[name]))
        found |= {name if entries.size == 1 else f"{name}[{i}]": entry for i, entry in enumerate(entries)}
    names, rows, cols = _followed_cells(structure.shape)
    return found | dict(zip(names, np.einsum("ck,kc->c", W[rows], H[:, cols]), strict=True))


@cache
def _followed_cells(shape: tuple[int, int]) -> tuple[list[str], Array, Array]:
    """Names, rows and columns of cells of W H: they are asked for at each draw."""
    rows, cols = (index[:CELLS] for index in checked_cells(shape))
    return [f"WH[{row}, {col}]" for row, col in zip(rows, cols, strict=True)], rows, cols


def _with_data(structure: Factorisation, X: Array) -> Factorisation:
    """The declaration with these data, missing where it has missing cells."""
    mask, values = _seen(structure), np.asarray(X, dtype=np.float64)
    return replace(structure, data=Dense(values=values if mask is None else np.where(mask, values, 0.0), mask=mask))


def _seen(structure: Factorisation) -> Array | None:
    """The observed cells, (F, N) bool; None where all are: those that sparse data do not list may be zeros."""
    data = structure.data
    if data is None or data.is_complete:
        return None
    if isinstance(data, Dense):
        return data.mask
    mask = np.zeros(structure.shape, dtype=bool)
    mask[data.rows, data.cols] = True
    return mask


def _with_imputed(structure: Factorisation, truth: Mapping[str, Array], X: Array) -> Mapping[str, Array]:
    """The truth with the missing cells that are variables of the model: they were drawn with the others of X."""
    if structure.imputed is None:
        return truth
    return {**truth, structure.imputed.name: X[structure.imputed.rows, structure.imputed.cols]}


def _facts(trial: Trial, quantities: Quantities | None) -> dict[str, str]:
    of_draws = "default" if quantities is None else function_fact(quantities)
    facts = run_facts(trial.engine, trial.options, trial.structure, quantities=of_draws)
    return facts | {name: repr(value) for name, value in vars(trial.length).items()}


def _folder(path: Any, facts: Mapping[str, str], entropy: Any, is_seeded: bool) -> Any:
    if path is None:
        return nullcontext()
    return closing(open_checkpoint(Path(path), facts, entropy, is_seeded))


def _truths(model: pm.Model, structure: Factorisation, simulations: int, key: np.uint64) -> list[dict[str, Array]]:
    """Draws from the prior: the first ones are the same however many there are."""
    drawn = draw_unobserved(model, structure, int(child(key, 0) >> np.uint64(33)), simulations)
    return [{name: array[number] for name, array in drawn.items()} for number in range(simulations)]


class _Ranks:
    """Where the ranks of simulations are kept on disk; without a checkpoint, nowhere."""

    def __init__(self, checkpoint: Checkpoint | None):
        self._checkpoint = checkpoint

    def load(self, number: int) -> Ranked | None:
        pattern = {"names": Each(str), "ranks": ArrayPattern("i", (None,))}
        saved = None if self._checkpoint is None else self._checkpoint.part(number).load(pattern)
        return None if saved is None else Ranked(**saved.tree)

    def save(self, number: int, ranked: Ranked) -> None:
        if self._checkpoint is not None:
            self._checkpoint.part(number).save(ranked._asdict(), {})


# -- whether ranks are uniform ---------------------------------------------------------------------------------------


CALIBRATED = "calibrated"
CLEAR = 3.0  # standard errors from which a lean or a spread is named
BINS = 8  # few are best at seeing that ranks lean or pile up, which is how posteriors are wrong
LEAST_IN_BIN = 10  # ranks expected


def check_alarm(alarm: Any) -> None:
    """Refuse what is no chance of a false alarm."""
    if not isinstance(alarm, float) or not 0.0 < alarm < 1.0:
        raise InputError("alarm", repr(alarm), "a number between 0 and 1")


def judge_ranks(
    ranks: Array, names: Sequence[str], draws: int, attrs: Mapping[str, Any], alarm: float = 0.01
) -> xr.Dataset:
    """Whether ranks (simulation, quantity) from 0 to ``draws`` are uniform, and what is wrong where they are not.

    ``alarm`` is the chance of calling an exact engine wrong, over all quantities together.
    """
    shares = (ranks + 0.5) / (draws + 1)
    p_values = np.array([uniform_p_value(column, draws) for column in ranks.T])
    n = len(ranks)
    lean = (shares.mean(axis=0) - 0.5) * np.sqrt(12 * n)
    spread = (((shares - 0.5) ** 2).mean(axis=0) - 1 / 12) * np.sqrt(180 * n)
    verdicts = [_verdict(p * len(names) < alarm, *z) for p, *z in zip(p_values, lean, spread, strict=True)]
    wrong = [f"{name} {verdict}" for name, verdict in zip(names, verdicts, strict=True) if verdict != CALIBRATED]
    sentence = (
        f"{len(wrong)} of {len(names)} quantities are off: {', '.join(wrong)}"
        if wrong
        else (f"no sign of miscalibration in {n} simulations of {len(names)} quantities")
    )
    by_quantity = {"p_value": p_values, "lean": lean, "spread": spread, "verdict": np.array(verdicts)}
    return xr.Dataset(
        {"rank": (("simulation", "quantity"), ranks)}
        | {name: ("quantity", column) for name, column in by_quantity.items()},
        coords={"quantity": list(names), "simulation": np.arange(n)},
        attrs={**attrs, "draws": draws, "verdict": sentence},
    )


def uniform_p_value(ranks: Array, draws: int) -> float:
    """Of ranks being uniform on 0, ..., draws: by the counts in bins and by the largest gap of their distribution."""
    n_bins = max(2, min(draws + 1, len(ranks) // LEAST_IN_BIN, BINS))
    edges = np.linspace(0, draws + 1, n_bins + 1).astype(int)
    counts, expected = np.histogram(ranks, edges - 0.5)[0], len(ranks) * np.diff(edges) / (draws + 1)
    spread = np.random.default_rng(0).random(len(ranks))  # a uniform rank plus a uniform number is uniform
    gap = stats.kstest((ranks + spread) / (draws + 1), "uniform").pvalue
    return float(min(1.0, 2.0 * min(stats.chisquare(counts, expected).pvalue, gap)))


def _verdict(is_off: bool, lean: float, spread: float) -> str:
    """In words; ``lean`` and ``spread`` are standard normal where ranks are uniform."""
    if not is_off:
        return CALIBRATED
    if max(abs(lean), abs(spread)) < CLEAR:
        return "off"
    if abs(lean) >= abs(spread):
        return "too high" if lean < 0 else "too low"
    return "too narrow" if spread > 0 else "too wide"
