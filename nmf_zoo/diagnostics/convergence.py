"""Convergence checks that a factorisation can pass: on invariants, and on components once they are aligned.

``pm.sample`` judges raw factors, whose R-hat is bad as soon as two chains number the same components differently. Here
lp and cells of W H say whether the posterior was reached, and aligned columns of W and rows of H whether single
components can be read: of any draws of W and H, whoever made them.

The cost is bounded, whatever the shapes. Components are matched on the features and samples that are largest in
them (`MOST_CELLS` of each, or `FEWEST` for each component where that is more), in at least `ENOUGH` draws of each
chain, and `JUDGED` cells of a column of W or row of H are judged, fewer where there are very many components.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics.align import RAW, align
from nmf_zoo.diagnostics.coverage import Coverage, coverage_of
from nmf_zoo.diagnostics.invariants import (
    LONGER,
    Advice,
    advise_on_components,
    advise_on_fit,
    advise_on_invariants,
    advise_on_modes,
    advise_on_sampler,
    ess,
    invariants,
    is_of_particles,
    lead_of,
    rhat,
    run_size,
    summarise_draws,
    what_helps,
)
from nmf_zoo.diagnostics.modes import modes_of_chains
from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.options import names_checked
from nmf_zoo.results.beginnings import began_at_several, one_mode, search_group, when_gathered
from nmf_zoo.results.component_order import (
    FEWEST,
    GROUP,
    MOST_CELLS,
    REPORT,
    component_order,
    largest_cells,
    with_cells,
)
from nmf_zoo.results.factor_draws import factor_dims, read_factors
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.results.modes import (
    DECIDED,
    MODES,
    POOLED,
    UNDECIDED,
    WEIGHS_MODES,
    describe_modes,
    pooled_modes,
    weighed_modes,
)
from nmf_zoo.results.posterior import LEADING, only_draws, posterior_group
from nmf_zoo.results.run_attributes import DISCARDED
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.runtime.stopping import EARLY
from nmf_zoo.structure import Factorisation


@names_checked
def summarise_components(
    idata: Any, *, most_cells: int = 50, weights: str = "W", activations: str = "H"
) -> pd.DataFrame:
    """How well each component's column of W and row of H mixed, by its worst cell.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.align`
    most_cells : cells judged of each column of W and row of H: those with the largest means. What is left out is small
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with a row for each factor and component, and columns rhat (the largest over its cells), rhat_raw (of the
    draws before alignment, cells in the same places), ess_bulk and ess_tail (the least), and became (the worst
    of the chains: matched, merged, split or different). NaN stands for what the draws can't tell. Where modes have been
    weighed (:func:`~nmf_zoo.weigh_modes`), ``attrs["modes"]`` says what they are: R-hat mixes all of them
    """
    check_counts(most_cells=(most_cells, 1))
    if REPORT not in _compat.group_names(idata):
        raise InputError("idata", "draws that are not aligned", "the result of nz.align", "call nz.align(idata) first")
    aligned, raw = (_compat.group(idata, name) for name in ("posterior", RAW))
    became = _worst(_compat.group(idata, REPORT)["became"])
    factors, before = (read_factors(group, weights, activations) for group in (aligned, raw))
    tables = []
    for name, now, then in zip((weights, activations), factors.draws, before.draws, strict=True):
        if now is None or then is None:
            continue
        cells = (np.swapaxes(now, -1, -2), np.swapaxes(then, -1, -2)) if name == weights else (now, then)
        tables.append(_of_factor(name, *cells, became, most_cells))
    table = pd.concat(tables)
    modes = weighed_modes(idata)
    if modes is not None:
        table.attrs[MODES] = describe_modes(modes)
    return table


def _of_factor(name: str, draws: np.ndarray, raw: np.ndarray, became: xr.DataArray, most_cells: int) -> pd.DataFrame:
    """``draws`` and ``raw`` (chain, draw, K, cells)."""
    top = np.argsort(-draws.mean(axis=(0, 1)), axis=-1, kind="stable")[:, :most_cells]
    kept, kept_raw = (
        xr.Dataset({name: (("chain", "draw", "component", "cell"), _cells(array, top))}) for array in (draws, raw)
    )
    columns = {
        "rhat": rhat(kept)[name].max("cell").to_numpy(),
        "rhat_raw": rhat(kept_raw)[name].max("cell").to_numpy(),
        "ess_bulk": ess(kept, "bulk")[name].min("cell").to_numpy(),
        "ess_tail": ess(kept, "tail")[name].min("cell").to_numpy(),
        "became": became.to_numpy(),
    }
    (dim,) = became.dims
    labels = became[dim].to_numpy() if dim in became.coords else np.arange(became.size)
    return pd.DataFrame(columns, index=[f"{name}[{label}]" for label in labels])


def _cells(array: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.take_along_axis(array, top[None, None], axis=-1)


def _worst(became: xr.DataArray) -> xr.DataArray:
    """Of each component, the word that is furthest from "matched" in any chain."""
    words = ("matched", "merged", "split", "different")
    rank = xr.apply_ufunc(np.vectorize(words.index), became).max("chain")
    return xr.apply_ufunc(np.vectorize(words.__getitem__), rank)


# -- verdicts --------------------------------------------------------------------------------------------------------


MOST_BYTES = 1 << 27  # of draws of these, above which draws are left out
ENOUGH = 250  # draws of each chain that are never left out
JUDGED = 3  # cells of a column of W, and of a row of H
MOST_JUDGED = 200  # of all components together, but one of each column and row


@names_checked
def check_convergence(idata: Any, *, weights: str = "W", activations: str = "H") -> pd.DataFrame:
    """R-hat and effective draws of aligned components beside those of invariants; warns where they are poor.

    It says what ``pm.sample`` says of convergence, of quantities for which that means something: raw components swap
    places between chains (see :func:`~nmf_zoo.align`). The limits are PyMC's: R-hat of 1.01, 100 effective draws per
    chain.

    Parameters
    ----------
    idata : draws of W and H by :func:`~nmf_zoo.sample`, ``pm.sample`` or anyone's sampler; or the result of
        :func:`~nmf_zoo.align`, whose components are judged in the order they have
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with rows ``lp`` (where the sampler kept it), ``mean[row, col]``, some cells of W H, and one for each
    column of W and row of H, by the worst of its largest cells. Columns rhat, ess_bulk, ess_tail; of components
    also rhat_raw, before alignment, and became (see :func:`~nmf_zoo.summarise_components`)

    Warns
    -----
    NmfZooWarning : R-hat is larger than 1.01, or the effective sample size per chain smaller than 100, of invariants
        or else of aligned components; a component is split, merged or different in a chain; NUTS diverged

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[9, 0, 8], [0, 9, 1]], rank=1)
    >>> idata = nz.sample(2000, tune=100, chains=2, random_seed=1, quiet=True, model=model)
    >>> list(nz.check_convergence(idata).columns)
    ['rhat', 'ess_bulk', 'ess_tail', 'rhat_raw', 'became']
    """
    group = posterior_group(idata)
    if "fit" in _compat.group_names(idata):
        raise InputError("idata", "a fit", "draws of a sampler", "the group fit says whether it converged")
    factor_dims(group, weights, activations)  # says what is missing
    found = judge(idata, weights, activations)
    for text in found.warnings:
        warn_caller(text)
    return pd.concat([table.drop(columns=["mean", "sd"], errors="ignore") for table in found.tables])


def warn_unconverged(idata: Any, structure: Factorisation, with_components: bool) -> None:
    """The same of a run of ours, on behalf of the verb that its user called."""
    names = structure.W.name, structure.H.name
    for text in judge(_in_memory(idata, structure, with_components), *names).warnings:
        warn_caller(text)


def _in_memory(idata: Any, structure: Factorisation, with_components: bool) -> Any:
    """Statistics of the run and, where components are to be judged, draws of W and H in our orientation."""
    groups = {"sample_stats": _compat.group(idata, "sample_stats")}
    if with_components and "posterior" in _compat.group_names(idata):
        posterior, factors = _compat.group(idata, "posterior"), {}
        for factor, dims in ((structure.W, ("feature", "component")), (structure.H, ("component", "obs"))):
            if factor.name in posterior and not factor.is_fixed:
                own = posterior[factor.name].drop_vars(posterior.coords, errors="ignore")
                factors[factor.name] = own.rename(dict(zip(own.dims[2:], factor.orient_dims(dims), strict=True)))
        groups["posterior"] = xr.Dataset(factors)
        groups |= {GROUP: _compat.group(idata, GROUP)} if GROUP in _compat.group_names(idata) else {}
    return _compat.of_kind(idata, groups, {})


@dataclass(frozen=True)
class Convergence:
    """What the draws say.

    Attributes
    ----------
    invariants : as :func:`~nmf_zoo.summarise`
    components : as :func:`~nmf_zoo.summarise_components`; None where there are no draws of W
    of_sampler, of_invariants, of_components : sentences on them; None where the draws can't tell
    mode : the one that all chains began in; "" where they began apart
    weighed : what the modes weigh, where that is known
    """

    invariants: pd.DataFrame
    components: pd.DataFrame | None
    of_sampler: list[Advice]
    of_invariants: Advice | None
    of_components: Advice | None
    mode: str = ""
    weighed: Weighed | None = None

    @property
    def tables(self) -> list[pd.DataFrame]:
        return [table for table in (self.invariants, self.components) if table is not None and len(table)]

    @property
    def advice(self) -> list[Advice]:
        return [*self.of_sampler, *(one for one in (self.of_invariants, self.of_components) if one is not None)]

    @property
    def warnings(self) -> list[str]:
        """What should be said aloud: of components only what the posterior of W H does not explain already."""
        rest = [one for one in (self.of_invariants, self.of_components) if one is not None and one.is_warning]
        return [one.text for one in (*(one for one in self.of_sampler if one.is_warning), *rest[:1])]


class Weighed(NamedTuple):
    """What several modes weigh: a sentence, and whether it is "decided" or "undecided", or draws are "pooled" by it."""

    text: str
    word: str


def weighed_of(idata: Any) -> Weighed | None:
    """What a result says of the modes that its chains are in, or that its draws are pooled of; None of one mode."""
    if pooled := pooled_modes(idata):
        return Weighed(pooled, POOLED)
    modes = weighed_modes(idata)
    if modes is None or modes.sizes["mode"] == 1:
        return None
    return Weighed(describe_modes(modes), UNDECIDED if UNDECIDED in modes["verdict"] else DECIDED)


def judge(idata: Any, weights: str, activations: str) -> Convergence:
    """Judge the draws of any sampler, aligned or not."""
    groups = _compat.group_names(idata)
    do, weighed = what_helps(idata.attrs), weighed_of(idata)
    of_sampler = list(advise_on_sampler(_compat.group(idata, "sample_stats"))) if "sample_stats" in groups else []
    has_moved = any(one.about == "temperatures" and not one.is_warning for one in of_sampler)  # from mode to mode
    mode = "" if weighed or has_moved else one_mode(idata)
    followed = followed_draws(idata, weights, activations)
    table = summarise_draws(followed)
    near = began_at_several(idata)
    can_weigh = idata.attrs.get(WEIGHS_MODES) != "no"
    of_invariants = None
    if len(table):
        of_invariants = advise_on_followed(table, followed, *lead_of(followed), do, mode, near, can_weigh)
    if near and of_invariants is not None and of_invariants.is_warning:
        mode = ""  # they began at several optima, which are one mode only where the chains agree
    if mode and (of_invariants is None or of_invariants.is_warning):
        of_sampler.append(Advice(f"All chains began in {mode}.", False, "start"))
    elif not mode and (gathered := when_gathered(idata)):
        of_sampler.append(Advice(f"{gathered.capitalize()} that began where they did.", False, "start"))
    components = judge_components(idata, weights, activations)
    of_components = None
    if components is not None:
        of_components = advise_on_components(components, *lead_of(_compat.group(idata, "posterior")), do)
    return Convergence(table, components, of_sampler, of_invariants, of_components, mode, weighed)


def advise_on_followed(
    table: pd.DataFrame,
    draws: xr.Dataset,
    n_chains: int,
    n_draws: int,
    do: str = LONGER,
    mode: str = "",
    near: bool = False,
    can_weigh: bool = True,
) -> Advice:
    """What lp and cells of W H say; where chains disagree, whether drawing longer would help."""
    advice = advise_on_invariants(table, n_chains, n_draws, do, mode)
    disagree = advice.about == "chains" and advice.is_warning
    modes = modes_of_chains(draws) if disagree and do == LONGER else None  # particles are in all modes at once
    if modes is None or len(modes) == 1:
        return advice
    lp = None
    if "lp" in draws:
        lp = np.array([float(draws["lp"].isel(chain=mode).mean()) for mode in modes])
    return advise_on_modes(table["rhat"], modes, lp, near, can_weigh)


def followed_draws(idata: Any, weights: str, activations: str) -> xr.Dataset:
    """``lp`` and cells of W H, which are computed where the sampler did not follow them."""
    groups = _compat.group_names(idata)
    kept = invariants(idata) if "sample_stats" in groups else xr.Dataset()
    group = _compat.group(idata, "posterior") if "posterior" in groups else xr.Dataset()
    if "mean" in kept or not {weights, activations} <= set(group.data_vars):
        return kept
    dims = factor_dims(group, weights, activations)
    rows, cols = checked_cells((group.sizes[dims.feature], group.sizes[dims.obs]))
    W = group[weights].isel({dims.feature: rows}).transpose(*LEADING, dims.feature, dims.component)
    H = group[activations].isel({dims.obs: cols}).transpose(*LEADING, dims.own, dims.obs)
    mean = np.einsum("...ck,...kc->...c", W.to_numpy(), H.to_numpy())
    places = {"checked_row": ("checked_cell", rows), "checked_col": ("checked_cell", cols)}
    if kept.data_vars and lead_of(kept) != lead_of(group):  # factors were thinned, statistics were not
        kept = xr.Dataset()
    return kept.assign(mean=((*LEADING, "checked_cell"), mean)).assign_coords(places)


def judge_components(idata: Any, weights: str, activations: str) -> pd.DataFrame | None:
    """:func:`~nmf_zoo.summarise_components` of a result that is aligned, or of one that is aligned for it."""
    groups = _compat.group_names(idata)
    if "posterior" not in groups or weights not in _compat.group(idata, "posterior"):
        return None
    names: dict[str, Any] = {"weights": weights, "activations": activations}
    aligned = idata if REPORT in groups else align(narrowed(idata, weights, activations), **names)
    rank = _compat.group(aligned, REPORT)["became"].shape[1]
    return summarise_components(aligned, most_cells=max(1, min(JUDGED, MOST_JUDGED // (2 * rank))), **names)


def narrowed(idata: Any, weights: str, activations: str) -> Any:
    """W and H at the features and samples that are largest in a component of some chain's last draw, lp and modes."""
    group = posterior_group(idata)
    dims = factor_dims(group, weights, activations)
    largest = max(MOST_CELLS, FEWEST * group.sizes[dims.component])
    along = {weights: dims.feature} | ({} if dims.obs is None else {activations: dims.obs})
    size = sum(group[name].nbytes * min(1.0, largest / group.sizes[dim]) for name, dim in along.items())
    every = max(1, min(ceil(size / MOST_BYTES), group.sizes["draw"] // ENOUGH))
    few = {
        name: group[name].isel({dim: largest_cells(group[name], dim, largest), "draw": slice(None, None, every)})
        for name, dim in along.items()
    }
    posterior = xr.Dataset(few).load()
    stats = {"sample_stats": invariants(idata)} if "sample_stats" in _compat.group_names(idata) else {}
    order = component_order(only_draws(idata), weights, activations)
    assert order is not None  # there are weights
    of_few = with_cells(order.isel(draw=slice(None, None, every)), posterior, dims)
    modes = weighed_modes(idata)
    weighed = {} if modes is None else {MODES: modes}  # which say whose order and mean the reference is
    return _compat.of_kind(idata, {"posterior": posterior, GROUP: of_few, **stats, **weighed}, {})


# -- the sentence ----------------------------------------------------------------------------------------------------


class Sentence(NamedTuple):
    """A sentence, what to do next, and whether to take care."""

    text: str
    do: str
    is_warning: bool


AGAIN = "run again{}"
IN_MODES = (
    "Each chain has settled, but in a mode of its own: they explain the data in different ways, and a longer run "
    "will not change that."
)
ONE_MODE = (
    "start all chains in the best mode that a search finds, start='search' (--search 16), or choose a smaller "
    "rank; then say that the results are of one mode"
)
IN_NEAR_MODES = (
    "Each chain has settled, but in a mode of its own, and the search's bounds of these are near: each may hold a "
    "part of the posterior."
)
# What the gravest advice is about -> what it means, and what to do.
OF_SAMPLERS = {
    "draws": ("The run is too short to tell whether its results can be relied on.", AGAIN),
    "chains": ("Do not rely on these results yet: the chains have not settled on the same answer.", AGAIN),
    "modes": (IN_MODES, f"{ONE_MODE}; or weigh the modes: nz.weigh_modes, nz.pool (nmf-zoo modes)"),
    "modes of unknown weight": (IN_MODES, ONE_MODE),
    "near modes of unknown weight": (
        f"{IN_NEAR_MODES} Their shares are undecided.",
        "read each mode by itself, idata.sel(chain=[...]), and say that it is one of several",
    ),
    "near modes": (
        IN_NEAR_MODES,
        "weigh the modes and pool the draws by what they weigh: nz.weigh_modes, nz.pool (nmf-zoo modes --pool); on a "
        "small table let chains go from mode to mode: nz.Gibbs(temperatures=8)",
    ),
    "nearly": (
        "The chains nearly agree: the results are a first impression, and a longer run will settle them.",
        AGAIN,
    ),
    "effective": ("The chains agree, but there are too few independent draws: means and intervals are rough.", AGAIN),
    "one chain": ("One chain alone can't show whether another would give the same answer.", "run four chains{}"),
    "divergences": (
        "The sampler could not reach all of the posterior: results may be off.",
        "raise target_accept, choose a prior that is less extreme near 0, or use another engine",
    ),
    "depth": ("The sampler moved slowly, and results may be rough.", "use another engine, or rescale the data"),
    "temperatures": (
        "Replicas have not gone to the hottest temperature and back: chains may have stayed in the modes that they "
        "began in.",
        f"take more temperatures=, or {AGAIN}",
    ),
    "lost components": (
        "The reconstruction W H can be relied on, single components can't: chains explain the data by different ones.",
        "try a smaller rank, and read components as one explanation among several",
    ),
    "components": (
        "The reconstruction W H can be relied on, single components are not settled yet.",
        f"{AGAIN} before reading components one by one",
    ),
}
# The same where the modes have been weighed, by what that showed: what they weigh follows.
OF_WEIGHED = {
    DECIDED: (
        "Each chain has settled, but in a mode of its own. What the modes weigh is known:",
        "make one posterior of them by their shares, nz.pool(idata) (nmf-zoo modes --pool); then say "
        "that modes which no chain has found are left out",
    ),
    UNDECIDED: (
        "Each chain has settled, but in a mode of its own, and what the modes weigh is undecided:",
        "weigh them with more draws=, or read each mode by itself, idata.sel(chain=[...]), and say that it is one "
        "of several",
    ),
}
GOOD = (
    "No sign of trouble: the chains agree on the reconstruction W H{}.",
    "look at the components and the reconstruction; select_rank (nmf-zoo rank) tells whether another number of "
    "components does better",
)
OF_FITS = {
    "iterations": ("The fit stopped before it had converged.", "raise max_iter (--max-iter)"),
    "restarts": (
        "Restarts ended in different places: a better optimum may exist.",
        "run more restarts (--restarts), and take the best",
    ),
    "one restart": (
        "The fit converged, to an optimum that may not be the best one.",
        "search for a better one: nz.Search(fits=16) (--search 16)",
    ),
    "search": (
        "The fit converged, but only one fit of the search came to its optimum: there may be a better one.",
        "search for longer: nz.Search(fits=64) (--search 64)",
    ),
}
TO_THE_END = "run it again, and let it come to its end"
FITTED = (
    "The fit converged, and its restarts agree.",
    "look at the components and the reconstruction; for uncertainty, sample (the Gibbs engine)",
)
# then components
APART = ("modes", "near modes", "modes of unknown weight", "near modes of unknown weight")
GRAVEST = ("draws", "chains", *APART, "divergences", "nearly", "effective", "depth", "temperatures", "one chain")


def verdict_on(idata: Any, weights: str = "W", activations: str = "H") -> Sentence | None:
    """Of draws or of a fit, and whether the run was let come to its end; None of a stream, which does not converge."""
    found, status = _verdict_on(idata, weights, activations), str(idata.attrs.get("status", "")).partition(":")[0]
    if found is not None and status in EARLY:
        do = TO_THE_END if found.do == OF_FITS["iterations"][1] else found.do
        found = Sentence(f"The run ended early ({status}). {found.text}", do, found.is_warning)
    return None if found is None else with_coverage(found, coverage_of(idata.attrs))


def _verdict_on(idata: Any, weights: str, activations: str) -> Sentence | None:
    if "fit" in _compat.group_names(idata):
        fit = _compat.group(idata, "fit")
        return of_fit(list(advise_on_fit(fit, search_group(idata)))) if "objective" in fit else None
    found = judge(idata, weights, activations)
    return of_sampler(found.advice, longer(idata.attrs, run_size(idata)[1]), found.mode, found.weighed)


def of_sampler(advice: Sequence[Advice], run: str, mode: str = "", weighed: Weighed | None = None) -> Sentence:
    """The gravest of the findings, and what is known of modes.

    ``run`` : `` for longer (draws=2000, tune=2000)``, or what else makes it better; ``mode`` : the one that all chains
    began in; ``weighed`` : what the modes weigh
    """
    warnings = [one.about for one in advice if one.is_warning]
    warnings.sort(key=lambda about: GRAVEST.index(about) if about in GRAVEST else len(GRAVEST))
    rest = f" {_of_weights(weighed)}" if weighed else ""
    if warnings and warnings[0] in APART and weighed is not None and weighed.word in OF_WEIGHED:
        text, do = OF_WEIGHED[weighed.word]
        return Sentence(f"{text} {weighed.text}", do, True)
    if warnings:
        text, do = OF_SAMPLERS[warnings[0]]
        began = f" All chains began in {mode}." if mode else ""
        return Sentence(f"{text}{began}{rest}", do.format(run), True)
    knows_components = any(one.about == "components" for one in advice)
    what = (" and on every component" if knows_components else "") + (f", within {mode}" if mode else "")
    return Sentence(GOOD[0].format(what) + rest, GOOD[1], False)


def _of_weights(weighed: Weighed) -> str:
    """A sentence beside one on something else."""
    return f"Draws of the modes were pooled by their shares. {weighed.text}" if weighed.word == POOLED else weighed.text


def of_fit(advice: Sequence[Advice]) -> Sentence:
    """Of an optimiser's restarts."""
    about = [one.about for one in advice if one.is_warning]
    if about:
        return Sentence(*OF_FITS[about[0]], True)
    found = next((one.text for one in advice if one.about == "search"), "")
    return Sentence(f"The fit converged. {found}", FITTED[1], False) if found else Sentence(*FITTED, False)


def with_coverage(sentence: Sentence, coverage: Coverage | None) -> Sentence:
    """The same with what is known of predictive intervals; misfit comes after what is wrong with the run itself."""
    if coverage is None:
        return sentence
    text = f"{sentence.text} {coverage.words}"
    if not coverage.is_misfit:
        return Sentence(text, sentence.do, sentence.is_warning)
    return Sentence(text, f"{sentence.do}; then {coverage.do}" if sentence.is_warning else coverage.do, True)


def longer(attrs: dict[str, Any], n_draws: int) -> str:
    """What to ask for: twice the run that the result tells of, or twice its particles."""
    if is_of_particles(attrs):
        return f" with more particles (engine=nz.SMC(particles={2 * json.loads(attrs['options'])['particles']}))"
    thin, tune, discarded = (int(attrs.get(name, usual)) for name, usual in (("thin", 1), ("tune", 0), (DISCARDED, 0)))
    warm_up = [("tune", max(2 * tune, tune + discarded, 1000))] if tune or discarded else []
    words = [("draws", max(2 * n_draws * thin, 1000)), *warm_up]
    words += [("thin", thin)] if thin > 1 else []  # of draws that were asked for, or that chains went on to
    return f" for longer ({', '.join(f'{name}={n}' for name, n in words)})"
