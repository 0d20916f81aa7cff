"""Whether longer chains would do better: each chain against itself first, then against the others.

The posterior of a factorisation has modes that are no permutations of each other, and chains seldom go from one to
another. A chain whose second half differs from its first by more than their Monte-Carlo errors is still on its way, and
more draws help. Chains that have settled and differ all the same are in different modes, and stay there; unless they
have come there from one, which shows that there are ways.

In doubt a chain is on its way: of four chains that stand still and are followed in nine quantities, none was called so
in 200 runs of 400 or 1,000 draws of autocorrelation 0.3, but one or more in 153 of 200 where it is 0.9, which leaves a
chain some 50 effective draws. There "draw longer" is right for another reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri

from nmf_zoo.diagnostics.invariants import CLEAR_RHAT, ESS_LIMIT, FEW_DRAWS, RHAT_LIMIT, ess, rhat
from nmf_zoo.results.matching import CLEARER, Components, best_pairs, cosines

FEWEST_EFFECTIVE = 5.0  # draws of half a chain, below which its mean has no error that could be told
LEFT_OUT = "draws so far are left out"
ALARM = 1e-3  # how often means of one law may be called different, over all comparisons and quantities


def modes_of_chains(draws: xr.Dataset) -> list[list[int]] | None:
    """The chains by the modes that they have settled in; None while one of them is still on its way.

    ``draws`` : invariants, (chain, draw, ...). Two chains are in different modes when R-hat of the two alone is above
    `CLEAR_RHAT` in a quantity whose means differ by more than their errors: chains that seldom go elsewhere and come
    back have means with large ones, and R-hat alone would tell them apart. Those alike with a third are in one mode.
    """
    return _modes(draws, have_settled(draws))


def _modes(draws: xr.Dataset, settled: np.ndarray) -> list[list[int]] | None:
    """The same, of chains each of which is known to have settled or not."""
    return _alike(draws, range(draws.sizes["chain"])) if np.all(settled) else None


def _alike(draws: xr.Dataset, chains: Sequence[int]) -> list[list[int]]:
    """These chains, by who is alike."""
    groups: list[list[int]] = []
    for chain in chains:
        near = [group for group in groups if any(_agree(draws, chain, other) for other in group)]
        groups = [group for group in groups if group not in near] + [[*(one for group in near for one in group), chain]]
    return sorted(groups)


def _leaders(draws: xr.Dataset, settled: np.ndarray, origins: Sequence[int]) -> list[int]:
    """Of each chain the one of its origin to go on from; itself if these agree.

    The one that has come furthest, where some are on their way: of a state that chains leave, and do not come back to
    soon, the posterior holds less than of where they go. Of chains that have settled apart the nearest to all, by the
    worst R-hat of two.
    """
    leaders, ways = list(range(len(origins))), _ways(draws)
    for at in set(origins):
        chains = [chain for chain, own in enumerate(origins) if own == at]
        if not np.all(settled[chains]):
            best = int(np.argmax(ways[chains]))
        elif len(_alike(draws, chains)) == 1:
            continue
        else:
            apart = [[_worst(draws, one, other) for other in chains if other != one] for one in chains]
            best = int(np.argmin(np.sum(apart, axis=1)))
        for chain in chains:
            leaders[chain] = chains[best]
    return leaders


def _ways(draws: xr.Dataset) -> np.ndarray:
    """How far each chain has come from its first quarter to its last, in deviations within it, where that is most."""
    n = draws.sizes["draw"]
    first, last = draws.isel(draw=slice(None, n // 4)), draws.isel(draw=slice(n - n // 4, None))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # of what does not vary, or is huge
        ways = np.abs(last.mean("draw") - first.mean("draw")) / last.std("draw").mean("chain")
    by_chain = [_flat(ways.isel(chain=chain)) for chain in range(draws.sizes["chain"])]
    return np.array([np.max(each, initial=0.0, where=np.isfinite(each)) for each in by_chain])


def _worst(draws: xr.Dataset, one: int, other: int) -> float:
    """R-hat of two chains, of the quantity in which they differ most."""
    rhats = _flat(rhat(draws.isel(chain=[one, other])))
    return float(np.max(rhats, initial=1.0, where=~np.isnan(rhats)))


class Lack(NamedTuple):
    """What is wrong with draws, in words, "" for nothing, and whether they are of a chain still on its way.

    ``leaders`` : of each chain the one to go on from then; none where each goes on from where it is
    """

    reason: str
    is_on_the_way: bool = False
    leaders: Sequence[int] = ()


def what_lacks(draws: xr.Dataset, origins: Sequence[int] = (), follow: bool = True, is_full: bool = False) -> Lack:
    """What is wrong with R-hat or effective draws, where more sweeps can mend it; the verdict's limits.

    Nothing where there are too few draws to judge, and where chains have settled in different modes, which no number of
    draws brings together; unless they have come there from one. Chains of one origin that are on their way, or have
    parted, go on from the state of one of them: one way is enough, and what each would find by itself can't be weighed.
    Who is on the way is asked where R-hat is large, and of full draws where it is more than the limit.

    Parameters
    ----------
    draws : invariants, (chain, draw, ...)
    origins : of every chain the optimum that it began at; none where chains began apart
    follow : whether a chain may go on from the state of another
    is_full : whether these are as many as are made for the sake of effective draws
    """
    if not draws.data_vars or draws.sizes["draw"] < FEW_DRAWS:
        return Lack("")
    rhats, effective = _flat(rhat(draws)), _flat(ess(draws, "bulk"))
    worst = np.max(rhats, initial=0.0, where=~np.isnan(rhats))
    if worst > RHAT_LIMIT:
        reason = f"R-hat is {worst:.3f}, {RHAT_LIMIT} at most is asked"
        if worst <= CLEAR_RHAT and not is_full:
            return Lack(reason)
        settled = have_settled(draws)
        modes = _modes(draws, settled)
        if modes is None:
            why = "a chain is still on its way"
        elif _have_parted(modes, origins):
            why = "chains that began together are in different modes"
        else:
            return Lack("" if len(modes) > 1 else reason)
        return Lack(f"{reason}, and {why}: {LEFT_OUT}", True, _leaders(draws, settled, origins if follow else ()))
    least = np.min(effective, initial=np.inf, where=~np.isnan(effective))
    enough = ESS_LIMIT * draws.sizes["chain"]
    return Lack("" if least >= enough or is_full else f"{int(least)} effective draws, {enough} are asked")


def _have_parted(modes: list[list[int]], origins: Sequence[int]) -> bool:
    """Whether chains of one origin are in different modes."""
    here = [{origins[chain] for chain in mode} for mode in modes] if origins else []
    return sum(map(len, here)) > len(set(origins))


def have_settled(draws: xr.Dataset) -> np.ndarray:
    """Of every chain, whether its two halves have the same means, of every quantity, within their errors."""
    n, chains = draws.sizes["draw"], draws.sizes["chain"]
    halves = [draws.isel(draw=slice(None, n // 2)), draws.isel(draw=slice(n - n // 2, None))]
    return np.array([_is_settled([half.isel(chain=[chain]) for half in halves], chains) for chain in range(chains)])


class _Means(NamedTuple):
    """Of every quantity, over one chain's draws: the mean, its squared Monte-Carlo error, effective draws."""

    values: np.ndarray
    errors: np.ndarray
    effective: np.ndarray

    def far_from(self, other: _Means, comparisons: int) -> np.ndarray:
        """Of every quantity, whether the means differ by more than their errors, in one of so many comparisons."""
        limit = -ndtri(ALARM / (2 * self.values.size * comparisons))
        with np.errstate(invalid="ignore"):
            return np.abs(self.values - other.values) > limit * np.sqrt(self.errors + other.errors)


def _means_of(draws: xr.Dataset) -> _Means:
    effective = ess(draws, "mean")
    errors = draws.var(("chain", "draw"), ddof=1) / effective
    return _Means(*(_flat(each) for each in (draws.mean(("chain", "draw")), errors, effective)))


def _is_settled(halves: list[xr.Dataset], chains: int) -> bool:
    first, second = (_means_of(half) for half in halves)
    still = first.values == second.values  # what does not vary at all
    is_known = np.minimum(first.effective, second.effective) >= FEWEST_EFFECTIVE
    return bool(np.all(still | (~first.far_from(second, chains) & is_known)))


def _agree(draws: xr.Dataset, one: int, other: int) -> bool:
    chains = draws.sizes["chain"]
    is_clear = _flat(rhat(draws.isel(chain=[one, other]))) > CLEAR_RHAT
    if not is_clear.any():
        return True
    means = [_means_of(draws.isel(chain=[chain])) for chain in (one, other)]
    return not np.any(is_clear & means[0].far_from(means[1], chains * (chains - 1) // 2))


def _flat(values: xr.Dataset) -> np.ndarray:
    return np.concatenate([np.atleast_1d(variable.to_numpy()).ravel() for variable in values.data_vars.values()])


# -- labellings ------------------------------------------------------------------------------------------------------


APART = -1e300  # of a match that is not allowed


def split_labellings(modes: list[list[int]], means: Components, classes: np.ndarray) -> list[list[int]]:
    """Modes with the same W H, split where their chains number unlike components differently.

    ``means`` : of each chain, W (chain, F, K) and H (chain, K, N). ``classes`` : (K,), components of one class have the
    same priors, and trade places without any change of the posterior. Others do not, so that each order of them is a
    mode of its own, which neither lp nor W H need show.
    """
    return sorted(part for mode in modes for part in _by_labelling(mode, means, classes))


def _by_labelling(mode: list[int], means: Components, classes: np.ndarray) -> list[list[int]]:
    parts: list[list[int]] = []
    for chain in mode:
        like = next((part for part in parts if _is_labelled_alike(means, part[0], chain, classes)), None)
        if like is None:
            parts.append([chain])
        else:
            like.append(chain)
    return parts


def _is_labelled_alike(means: Components, one: int, other: int, classes: np.ndarray) -> bool:
    """Whether no exchange of unlike components brings the chains nearer than exchanges of alike ones do."""
    table = cosines(*(Components(means.W[at], None if means.H is None else means.H[at]) for at in (one, other)))
    allowed = np.where(classes[:, None] == classes, table, APART)
    free, own = (each[best_pairs(each)].mean() for each in (table, allowed))
    return bool(free - own <= CLEARER)
