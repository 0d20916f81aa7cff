"""From the outcomes of a search to a table: the ranks' scores, how they compare, and the answer in words.

The words for a log Bayes factor are those of Kass & Raftery (1995), Bayes factors, JASA 90, table on p. 777.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import gammaln, softmax
from scipy.stats import t as student_t

from nmf_zoo.errors import RunFailed, number_of
from nmf_zoo.inference.evidence.contract import Estimate, Method, combine
from nmf_zoo.structure import Array
from nmf_zoo.workbench.rank_search import LEFT_OUT, Outcome

STRENGTH = ((1.0, "barely worth a mention"), (3.0, "positive"), (5.0, "strong"), (np.inf, "very strong"))
CLEAR = 2.0  # errors that a difference must exceed
UNEVENNESS = (
    3.4  # two errors of a difference, by the median distance of a point of a curve from the line through its neighbours
)
MOST_NAMED = 8


class Kind(NamedTuple):
    """How the estimates of a method are to be taken: what they are, and how restarts and ranks compare."""

    noun: str
    is_bound: bool
    is_unbiased: bool
    is_paired: bool
    is_corrected: bool
    is_searched: bool = False


def kind_of(method: Method, shortfall: Array, is_searched: bool) -> Kind:
    """Bounds are corrected when there is a shortfall for every rank."""
    is_paired, is_corrected = method.name == "holdout", bool(np.all(np.any(np.isfinite(shortfall), axis=1)))
    noun = "held-out log-likelihood" if is_paired else "log evidence"
    if method.is_bound:
        noun = "corrected bound" if is_corrected else "bound"
    return Kind(noun, method.is_bound, method.is_unbiased, is_paired, method.is_bound and is_corrected, is_searched)


def rank_table(
    outcomes: Mapping[tuple[int, int], Outcome],
    method: Method,
    ranks: Sequence[int],
    restarts: int,
    is_searched: bool = False,
) -> xr.Dataset:
    """The Dataset that ``nz.select_rank`` returns, its answer in the attributes; restarts may be a search's fits."""
    grid = [[outcomes[rank, restart] for restart in range(restarts)] for rank in ranks]
    columns = {
        name: (("rank", "restart"), np.array([[getattr(outcome, name) for outcome in row] for row in grid]))
        for name in Outcome._fields
    }
    table = xr.Dataset(columns, coords={"rank": list(ranks), "restart": np.arange(restarts)})
    kind = kind_of(method, table["shortfall"].to_numpy(), is_searched)
    if not np.any(table["estimate"].to_numpy() > -np.inf):
        status = outcomes[ranks[0], 0].status
        raise KeyboardInterrupt if status == "interrupted" else RunFailed(f"no run gave a number; the first: {status}")
    table = compare(
        split_bound(table, kind) if kind.is_bound else table.drop_vars(["shortfall", "shortfall_error"]), kind
    )
    return table.assign_attrs(answer_attrs(table, kind))


def split_bound(table: xr.Dataset, kind: Kind) -> xr.Dataset:
    """``bound``, ``shortfall`` and their sum, ``estimate``; the bound itself where it is not corrected."""
    bound, shortfall = table["estimate"], table["shortfall"]
    parts = table.drop_vars(["estimate", "standard_error"])
    if not kind.is_corrected:
        return parts.drop_vars(["shortfall", "shortfall_error"]).assign(bound=bound, estimate=bound)
    return parts.assign(bound=bound, estimate=bound + shortfall)


def compare(table: xr.Dataset, kind: Kind) -> xr.Dataset:
    """The table with one number per rank and what sets it apart from the best."""
    estimate = table["estimate"].to_numpy()
    if kind.is_bound:
        combined, errors = best_restarts(estimate)
    else:
        combined, errors = combine_restarts(estimate, table["standard_error"].to_numpy(), kind)
    best = int(np.nanargmax(combined))
    difference = combined - combined[best]
    if kind.is_bound:
        apart = margins_of_bounds(table, errors, best, kind)
    else:
        apart = errors_of_difference(estimate, errors, best, kind)
    is_apart = -difference > apart * errors_needed(kind, table.sizes["restart"])  # an unknown error rules nothing out
    plausible = np.isfinite(combined) & ~is_apart
    plausible[best] = True
    added = {
        "combined": combined,
        "combined_error": errors,
        "difference": difference,
        "difference_error": apart,
        "plausible": plausible,
    }
    if not kind.is_paired:
        added["probability"] = softmax(np.where(np.isfinite(combined), combined, -np.inf))
    return table.assign({name: ("rank", values) for name, values in added.items()})


def errors_needed(kind: Kind, restarts: int) -> float:
    """How many errors a difference must exceed: 2, and more where the error comes from a few splits (Student's t)."""
    if kind.is_bound:
        return 1.0
    return max(CLEAR, float(student_t.ppf(0.975, restarts - 1))) if kind.is_paired and restarts > 1 else CLEAR


def best_restarts(estimate: Array) -> tuple[Array, Array]:
    """A bound is as good as its best restart, and its "error" is what that has over the next; NaN with a single one."""
    falling = -np.sort(-estimate, axis=1)  # NaN at the end
    gaps = falling[:, 0] - falling[:, 1] if estimate.shape[1] > 1 else np.full(len(estimate), np.nan)
    return falling[:, 0], gaps


def combine_restarts(estimate: Array, own: Array, kind: Kind) -> tuple[Array, Array]:
    """One number per rank, and its standard error; NaN where no run ended."""
    pairs = []
    for values, errors in zip(estimate, own, strict=True):
        there = np.isfinite(values)
        kept = Estimate(log_evidence=values[there], standard_error=errors[there])
        pairs.append(combine(kept, kind.is_unbiased) if there.any() else (np.nan, np.nan))
    combined, errors = np.array(pairs).T
    return combined, errors


def margins_of_bounds(table: xr.Dataset, errors: Array, best: int, kind: Kind) -> Array:
    """What a difference of bounds must exceed.

    What the best restarts have over the next, or, of a single restart, how uneven the curve over the ranks is; and of
    corrected bounds the error of the correction, of others the log of how many more orders one rank's components have
    than the other's, the least that bounds differ in tightness. NaN for what is not known; 0 for the best rank itself.
    """
    ranks, others = table["rank"].to_numpy(), np.arange(table.sizes["rank"]) != best
    if table.sizes["restart"] == 1:
        found = np.full(len(ranks), UNEVENNESS * unevenness(ranks, table["estimate"].to_numpy()[:, 0]))
    else:
        found = np.nan_to_num(np.fmax(errors, errors[best]))
    if not kind.is_corrected:
        return np.where(others, found + np.abs(gammaln(ranks + 1.0) - gammaln(ranks[best] + 1.0)), 0.0)
    error = of_best_runs(table, "shortfall_error")
    return np.where(others, found + np.abs(error - error[best]), 0.0)


def of_best_runs(table: xr.Dataset, name: str) -> Array:
    """A variable's value at the best run of each rank."""
    estimate = table["estimate"].to_numpy()
    top = np.argmax(np.where(np.isnan(estimate), -np.inf, estimate), axis=1)
    return table[name].to_numpy()[np.arange(len(top)), top]


def unevenness(ranks: Array, curve: Array) -> float:
    """The median distance of a point from the line through its neighbours; NaN of fewer than 3 points."""
    there = np.isfinite(curve)
    x, y = ranks[there].astype(float), curve[there]
    if len(x) < 3:
        return np.nan
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    return float(np.median(np.abs(y[1:-1] - (1.0 - share) * y[:-2] - share * y[2:])))


def errors_of_difference(estimate: Array, errors: Array, best: int, kind: Kind) -> Array:
    """The standard error of each rank's difference to the best one."""
    unpaired = np.sqrt(errors**2 + errors[best] ** 2)
    if kind.is_paired and estimate.shape[1] > 1:
        apart = estimate - estimate[best]  # the same splits: what the ranks share falls out
        counts = np.sum(np.isfinite(apart), axis=1)
        squares = np.nansum((apart - np.nanmean(apart, axis=1, keepdims=True)) ** 2, axis=1)
        spread = np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1))
        unpaired = np.where(counts > 1, spread, unpaired)
    return np.where(np.arange(len(errors)) == best, 0.0, unpaired)


def answer_attrs(table: xr.Dataset, kind: Kind) -> dict[str, object]:
    """best, runner_up, log_bayes_factor and its error (differences of another name for held-out data), answer."""
    ranks, combined = table["rank"].to_numpy(), table["combined"].to_numpy()
    order = np.argsort(-np.where(np.isfinite(combined), combined, -np.inf), kind="stable")
    best, second = int(order[0]), int(order[1]) if np.sum(np.isfinite(combined)) > 1 else None
    attrs: dict[str, object] = {"best": int(ranks[best]), "answer": answer(table, kind, best, second)}
    if second is not None:
        name = "difference" if kind.is_paired else "log_bayes_factor"
        attrs |= {
            "runner_up": int(ranks[second]),
            name: float(combined[best] - combined[second]),
            f"{name}_error": float(table["difference_error"][second]),
        }
    statuses = table["status"].to_numpy()
    return attrs | {"status": "interrupted" if np.any(statuses == "interrupted") else "complete"}


def answer(table: xr.Dataset, kind: Kind, best: int, second: int | None) -> str:
    """The sentences."""
    ranks = table["rank"].to_numpy()
    components = number_of(ranks[best], "component")
    if second is None:
        first = f"{components}: the only rank with a {kind.noun}, so there is nothing to compare it with."
    else:
        first = f"{components}: {_compared(table, kind, best, second)}"
    return " ".join([first, *_caveats(table, kind, best)])


def _compared(table: xr.Dataset, kind: Kind, best: int, second: int) -> str:
    ranks, apart = table["rank"].to_numpy(), float(-table["difference"][second])
    error = float(table["difference_error"][second])
    above = f"the {kind.noun} is {apart:.1f} nats above that of {ranks[second]}, the next best"
    of_error = "good to about" if kind.is_bound else "standard error of the difference"
    margin = f"{of_error} {error:.2g}" if np.isfinite(error) else "error unknown"
    rivals = [str(rank) for rank in ranks[table["plausible"].to_numpy()] if rank != ranks[best]]
    if rivals:
        named = ", ".join(rivals[:MOST_NAMED]) + (f" and {len(rivals) - MOST_NAMED} more" * (len(rivals) > MOST_NAMED))
        return f"{above} ({margin}). Not decided: {named} can't be ruled out."
    if kind.is_bound and (table.sizes["restart"] == 1 or stopped_early(table).any()):
        return f"{above} ({margin}). Ahead, but not decided."
    strength = "" if kind.is_paired else f", {strength_of(apart)} evidence"
    condition = " if the bounds are equally tight" if kind.is_bound and not kind.is_corrected else ""
    return f"{above} ({margin}). Decided{condition}{strength}."


def stopped_early(table: xr.Dataset) -> Array:
    """Whether the best run of each rank ended at max_iter: its bound would have risen."""
    return of_best_runs(table, "status") == "max_iter"


def strength_of(log_bayes_factor: float) -> str:
    """How much a log Bayes factor says, in words."""
    return next(words for limit, words in STRENGTH if log_bayes_factor <= limit)


def _caveats(table: xr.Dataset, kind: Kind, best: int) -> list[str]:
    """What would make the answer surer."""
    ranks, status = table["rank"].to_numpy(), table["status"].to_numpy()
    word, do = ("fit", "search longer") if kind.is_searched else ("restart", "try more restarts")
    said: list[str] = []
    if len(ranks) > 1 and best == len(ranks) - 1:
        said.append("It is the largest rank of all: try larger ones.")
    if len(ranks) > 1 and best == 0 and ranks[0] > 1:
        said.append("It is the smallest rank of all: try smaller ones.")
    if kind.is_bound and len(ranks) > 1 and table.sizes["restart"] == 1:
        said.append(f"One run of each rank can't tell a better rank from a luckier start: {do}.")
    if kind.is_bound and table.sizes["restart"] > 1 and float(table["combined_error"][best]) > 1.0:
        gap = float(table["combined_error"][best])
        said.append(f"Only one {word} of {ranks[best]} came so high, {gap:.1f} nats above the next: {do}.")
    early, made = int(np.sum(status == "max_iter")), int(np.sum(status != LEFT_OUT))
    if kind.is_bound and early:
        said.append(f"{early} of {number_of(made, 'run')} stopped at max_iter, below what they would have reached.")
    if kind.is_bound and not kind.is_corrected:
        said.append("Bounds as they are favour small ranks where counts are large.")
    missing = int(np.sum(~np.isfinite(table["estimate"].to_numpy()) & (status != LEFT_OUT)))
    if missing:
        said.append(f"{missing} of {number_of(made, 'run')} gave no finite number: see status.")
    return said
