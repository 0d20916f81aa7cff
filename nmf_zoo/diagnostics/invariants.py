"""Convergence from invariants: the log joint and fixed cells of W H, which do not care how components are labelled.

The draws of W and H swap components between chains, so that R-hat of a raw factor says nothing until the chains
are aligned: :mod:`nmf_zoo.diagnostics.convergence` does that, and adds components to what is judged here.
``sample_stats`` of every sampler of ours holds what is followed: ``lp`` and ``mean``, the cells of W H.

Limits are PyMC's, and so is what is said when they are passed: R-hat above 1.01, fewer than 100 effective draws per
chain (Vehtari, Gelman, Simpson, Carpenter, Buerkner 2021, https://arxiv.org/abs/1903.08008), divergences, tree depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics.mixing import bulk_ess, mean_ess, rank_rhat, tail_ess
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import in_words
from nmf_zoo.options import names_checked
from nmf_zoo.results.beginnings import fits_to_the_end
from nmf_zoo.results.groups import CHECKED_LABELS, DRAWS_ARE, FOLLOWED, PARTICLES
from nmf_zoo.structure import slices

RHAT_LIMIT = 1.01
CLEAR_RHAT = 1.05  # above, more than too few draws is amiss
ESS_LIMIT = 100  # effective draws, per chain
FEWEST_DRAWS = 4  # there is no R-hat and no effective sample size below
AT_ONCE = 32  # cells
FEW_DRAWS = 100  # of a chain: below, PyMC does not judge them
DEEP = 0.05  # part of a chain's draws that may reach the maximum tree depth
ROUND_TRIPS = "round_trips"  # of replica exchange
DEPTH_REACHED = ("reached_max_treedepth", "maxdepth_reached")  # PyMC's name of it, and nutpie's


class Advice(NamedTuple):
    """A sentence on a result, whether it is a warning, and what it is about, in a word."""

    text: str
    is_warning: bool
    about: str


def run_size(idata: Any) -> tuple[int, int]:
    """Chains, and draws of each: all whose statistics were kept, also where factors are kept of some of them."""
    names = _compat.group_names(idata)
    stats = _compat.group(idata, "sample_stats") if "sample_stats" in names else xr.Dataset()
    is_followed = "posterior" not in names or any(name in stats for name in FOLLOWED)
    return lead_of(stats if is_followed else _compat.group(idata, "posterior"))


def lead_of(draws: xr.Dataset) -> tuple[int, int]:
    """Chains, and draws of each."""
    return draws.sizes["chain"], draws.sizes["draw"]


def invariants(idata: Any) -> xr.Dataset:
    """``lp`` and the followed cells of W H, as (chain, draw, ...) variables."""
    stats = _compat.group(idata, "sample_stats")
    return stats[[name for name in FOLLOWED if name in stats]]


@names_checked
def summarise(idata: Any) -> pd.DataFrame:
    """Mean, sd, R-hat and effective sample size of the invariants of a posterior, one row each.

    NaN stands for what the draws can't tell: R-hat of one chain, and both of fewer than four draws.

    Returns
    -------
    DataFrame with columns mean, sd, rhat, ess_bulk, ess_tail and rows ``lp``, ``mean[row, col]``, ...
    """
    is_result = _compat.is_result(idata)
    if not is_result or "sample_stats" not in _compat.group_names(idata):
        got = "no group sample_stats" if is_result else type(idata).__name__
        raise InputError("idata", got, "the result of nz.sample", "of other draws az.summary tells more")
    return summarise_draws(invariants(idata))


def summarise_draws(draws: xr.Dataset) -> pd.DataFrame:
    """The same of what :func:`invariants` gives."""
    if not draws.data_vars:
        return pd.DataFrame()
    with np.errstate(over="ignore"):  # the square of a deviation may be beyond all numbers
        sd = draws.std(("chain", "draw"), ddof=1)
    columns = {
        "mean": draws.mean(("chain", "draw")),
        "sd": sd,
        "rhat": rhat(draws),
        "ess_bulk": ess(draws, "bulk"),
        "ess_tail": ess(draws, "tail"),
    }
    return pd.DataFrame({name: _flat(values, draws) for name, values in columns.items()}, index=_rows(draws))


def rhat(draws: xr.Dataset) -> xr.Dataset:
    """R-hat of every entry of each variable (chain, draw, ...); NaN of one chain."""
    return _diagnosed(draws, 2, rank_rhat)


def ess(draws: xr.Dataset, method: Literal["bulk", "tail", "mean"]) -> xr.Dataset:
    """The effective sample size of every entry."""
    return _diagnosed(draws, 1, {"bulk": bulk_ess, "tail": tail_ess, "mean": mean_ess}[method])


def _diagnosed(draws: xr.Dataset, fewest_chains: int, diagnostic: Callable[[np.ndarray], np.ndarray]) -> xr.Dataset:
    """NaN of fewer chains or draws than it takes."""
    first = draws.isel(chain=0, draw=0, drop=True)
    n_chains, n_draws = lead_of(draws)
    if n_chains < fewest_chains or n_draws < FEWEST_DRAWS:
        return xr.full_like(first, np.nan, dtype=np.float64)
    found = {}
    for name, one in first.data_vars.items():
        cells = draws[name].transpose("chain", "draw", ...).to_numpy().reshape(n_chains, n_draws, -1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # of draws that do not vary, or are huge
            parts = [diagnostic(cells[..., part]) for part in slices(cells.shape[-1], AT_ONCE)]
        found[name] = (one.dims, np.concatenate(parts).reshape(one.shape) if parts else np.empty(one.shape))
    return first.assign(found)


def _flat(values: xr.Dataset, draws: xr.Dataset) -> np.ndarray:
    return np.concatenate([np.atleast_1d(values[name].values).ravel() for name in draws.data_vars])


def _rows(draws: xr.Dataset) -> list[str]:
    rows = ["lp"] if "lp" in draws else []
    if "mean" in draws:
        places = zip(CHECKED_LABELS, ("checked_row", "checked_col"), strict=True)
        cells = (draws[label if label in draws.coords else place].values for label, place in places)
        rows += [f"mean[{in_words(row)}, {in_words(col)}]" for row, col in zip(*cells, strict=True)]
    return rows


def advise_on_sampler(stats: xr.Dataset) -> Iterator[Advice]:
    """What samplers say of themselves: divergences, maximum tree depth, round trips of replicas."""
    if ROUND_TRIPS in stats:
        yield _on_round_trips(stats)
    if "diverging" in stats and (n := int(stats["diverging"].sum())):
        verb, word = ("was", "divergence") if n == 1 else ("were", "divergences")
        do = "Increase target_accept=, or choose a prior that is less extreme near 0."
        yield Advice(f"There {verb} {n} {word} after tuning. {do}", True, "divergences")
    for name in DEPTH_REACHED:
        if name not in stats:
            continue
        part = stats[name].mean("draw")
        deep = [str(chain) for chain in stats["chain"].to_numpy()[part.to_numpy() > DEEP]]
        if deep:
            who = f"Chain {deep[0]}" if len(deep) == 1 else f"Chains {', '.join(deep[:-1])} and {deep[-1]}"
            do = "Draws are slow to make and mix badly; try another engine."
            yield Advice(f"{who} reached the maximum tree depth. {do}", True, "depth")


def _on_round_trips(stats: xr.Dataset) -> Advice:
    """Whether replicas went to the hot end of their ladder and back in every chain, which takes them to all modes."""
    trips = int(stats[ROUND_TRIPS].isel(draw=-1).min())
    rates = stats["exchange_rate"].mean(("chain", "draw"))
    if trips == 0:
        text = "In a chain no replica went from the posterior to the hottest temperature and back"
        do = f"Neighbours exchanged with a probability of {float(rates.min()):.2g} or more: take more temperatures="
        return Advice(f"{text}. {do}, or draw longer.", True, "temperatures")
    barrier = float(stats["barrier"].isel(draw=-1).mean())
    many = f"{number_of(trips, 'round trip')} or more in each chain"
    text = f"Replicas made {many}, across a barrier of {barrier:.1f}."
    return Advice(text, False, "temperatures")


LONGER = "Draw longer (tune=, draws=)"
MORE_PARTICLES = "Take more particles (engine=nz.SMC(particles=))"


def is_of_particles(attrs: Mapping[str, Any]) -> bool:
    """Whether chains are runs with particles, by what the result says of them."""
    return attrs.get(DRAWS_ARE) == PARTICLES


def what_helps(attrs: Mapping[str, Any]) -> str:
    """Where chains disagree: longer ones; of particles, of which draws are but a selection, more."""
    return MORE_PARTICLES if is_of_particles(attrs) else LONGER


def advise_on_invariants(table: pd.DataFrame, n_chains: int, n_draws: int, do: str = LONGER, mode: str = "") -> Advice:
    """What the table of :func:`summarise` says of the posterior of W H: the gravest finding.

    ``do`` : what helps; ``mode`` : the one that all chains began in, if they did: more than agreement within it they
    can't show
    """
    worst, least = table["rhat"].max(), table["ess_bulk"].min()
    if n_draws < FEW_DRAWS:
        text = f"Only {number_of(n_draws, 'draw')} per chain: too few to judge convergence reliably; raise draws=."
        return Advice(text, True, "draws")
    if worst > RHAT_LIMIT:
        found = _large_rhat(table["rhat"], INVARIANTS)
        if worst <= CLEAR_RHAT:
            return Advice(f"{found}: the chains do not quite agree yet. {do}.", True, "nearly")
        return Advice(f"{found}: the chains disagree. {do}.", True, "chains")
    if least < ESS_LIMIT * n_chains:
        found = _small_ess(table["ess_bulk"], n_chains, INVARIANTS)
        do = "Raise draws=" if do == LONGER else do
        return Advice(f"{found}: R-hat, means and intervals are rough. {do}.", True, "effective")
    if n_chains == 1:
        text = "Only one chain was sampled: R-hat, which compares chains, is unknown; run chains=4."
        return Advice(text, True, "one chain")
    agree = f"The chains agree within {mode}" if mode else "The chains agree"
    size = f"R-hat is at most {worst:.3f}, and there are {least:,.0f} effective draws or more"
    return Advice(f"{agree}. {size}, of lp and cells of W H.", False, "chains")


def advise_on_modes(
    rhat: pd.Series, modes: list[list[int]], lp: np.ndarray | None, are_near: bool = False, can_weigh: bool = True
) -> Advice:
    """That chains have settled apart.

    ``modes`` : their chains; ``lp`` : its mean over each mode's draws, if known; ``are_near`` : they are the best that
    a search found, and each may have a part of the posterior; ``can_weigh`` : :func:`~nmf_zoo.weigh_modes` takes the
    model
    """
    words = [f"{'chain' if len(mode) == 1 else 'chains'} {', '.join(map(str, mode))}" for mode in modes]
    if lp is not None:
        words = [f"{word} (mean lp {value:,.0f})" for word, value in zip(words, lp, strict=True)]
    found = f"{_large_rhat(rhat, INVARIANTS)}: each chain has settled, but in {len(modes)} different modes"
    apart, weigh = "Drawing longer will not bring them together.", "what each weighs: nz.weigh_modes(idata, model)"
    if are_near:
        do = f"Their bounds are near; ask {weigh}" if can_weigh else "Their bounds are near, and their shares undecided"
    else:
        do = "Start all in the best mode that a search finds: start='search'"
        do += f", or ask {weigh}" if can_weigh else ""
    about = ("near modes" if are_near else "modes") + ("" if can_weigh else " of unknown weight")
    return Advice(f"{found}: {'; '.join(words)}. {apart} {do}.", True, about)


def advise_on_components(table: pd.DataFrame, n_chains: int, n_draws: int, do: str = LONGER) -> Advice | None:
    """What R-hat, ESS and fate of aligned components (``summarise_components``) say: the gravest finding.

    None where the draws can't tell.
    """
    if n_draws < FEW_DRAWS or n_chains == 1:
        return None
    worst, least = table["rhat"].max(), table["ess_bulk"].min()
    lost = table["became"][table["became"] != "matched"]
    if len(lost):
        fates = {str(row).partition("[")[2].rstrip("]"): str(word) for row, word in lost.items()}
        each = ", ".join(f"{component} {word}" for component, word in fates.items())
        text = f"Some components have no counterpart in every chain ({each})."
        do = "Read W H rather than single components, or try a smaller rank."
        return Advice(f"{text} {do}", True, "lost components")
    do = f"{do} before reading components one by one."
    if worst > RHAT_LIMIT:
        found = _large_rhat(table["rhat"], ALIGNED)
        return Advice(f"{found}: single components are not settled. {do}", True, "components")
    if least < ESS_LIMIT * n_chains:
        found = _small_ess(table["ess_bulk"], n_chains, ALIGNED)
        return Advice(f"{found}: single components are rough. {do}", True, "components")
    text = f"The chains agree on single components: once aligned, R-hat is at most {worst:.3f}."
    return Advice(text, False, "components")


def advise_on_fit(fit: xr.Dataset, search: xr.Dataset | None = None) -> Iterator[Advice]:
    """What the group ``fit`` of an optimiser says of its restarts, best first; or ``search`` of where it looked."""
    objective = last_objectives(fit)
    if not fit["converged"].to_numpy()[0]:
        text = "The best restart did not converge: raise max_iter, or look at the reason that it gives."
        yield Advice(text, True, "iterations")
    else:
        yield Advice("The best restart converged.", False, "iterations")
    if search is not None:
        once = int(search["found"][0]) == 1
        yield Advice(f"The best optimum was {found_by(search)}.", once, "search")
    elif len(objective) == 1:
        text = "One restart can't tell whether there is a better optimum: try search='auto'."
        yield Advice(text, True, "one restart")
    elif (gap := np.ptp(objective)) > 1e-3 * max(1.0, abs(objective[0])):
        text = f"The restarts ended {gap:.3g} apart: they found different optima. More restarts may help."
        yield Advice(text, True, "restarts")


def found_by(search: xr.Dataset) -> str:
    """``found by 5 of 16 fits; the next best objective is 140 worse``"""
    fits, objective = fits_to_the_end(search), search["objective"].to_numpy()
    text = f"found by {int(search['found'][0])} of {number_of(fits, 'fit')}"
    if len(objective) == 1:
        return text
    return f"{text}; the next best objective is {abs(objective[1] - objective[0]):.3g} worse"


def last_objectives(fit: xr.Dataset) -> np.ndarray:
    """The objective that each restart ended at."""
    return np.array([row[np.isfinite(row)][-1] for row in fit["objective"].transpose("chain", ...).to_numpy()])


INVARIANTS, ALIGNED = "invariants (lp and cells of W H)", "aligned columns of W and rows of H"


def _large_rhat(rhat: pd.Series, what: str) -> str:
    """``R-hat is larger than 1.01 for 3 of 33 invariants, at worst 1.210 for mean[3, 5]``"""
    size = f"{int((rhat > RHAT_LIMIT).sum())} of {len(rhat)} {what}, at worst {rhat.max():.3f} for {rhat.idxmax()}"
    return f"R-hat is larger than {RHAT_LIMIT} for {size}"


def _small_ess(ess: pd.Series, n_chains: int, what: str) -> str:
    """``The effective sample size per chain is smaller than 100 for 3 of 33 invariants, at the least 12 for lp``"""
    each = ess / n_chains
    n = int((each < ESS_LIMIT).sum())
    size = f"{n} of {len(each)} {what}, at the least {each.min():.0f} for {each.idxmin()}"
    return f"The effective sample size per chain is smaller than {ESS_LIMIT} for {size}"
