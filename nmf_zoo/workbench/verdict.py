"""A result in a sentence, for readers who never met R-hat: what it is good for, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nmf_zoo import _compat
from nmf_zoo.diagnostics import Advice, advise_on_fit, run_size
from nmf_zoo.workbench.convergence import judge


class Verdict(NamedTuple):
    """A sentence, what to do next, and whether to take care."""

    text: str
    do: str
    is_warning: bool


LONGER = "run again for longer{}"
# What the gravest advice is about -> what it means, and what to do.
OF_SAMPLERS = {
    "draws": ("The run is too short to tell whether its results can be relied on.", LONGER),
    "chains": ("Do not rely on these results yet: the chains have not settled on the same answer.", LONGER),
    "nearly": (
        "The chains nearly agree: the results are a first impression, and a longer run will settle them.",
        LONGER,
    ),
    "effective": ("The chains agree, but there are too few independent draws: means and intervals are rough.", LONGER),
    "one chain": ("One chain alone can't show whether another would give the same answer.", "run four chains{}"),
    "divergences": (
        "The sampler could not reach all of the posterior: results may be off.",
        "raise target_accept, choose a prior that is less extreme near 0, or use another engine",
    ),
    "depth": ("The sampler moved slowly, and results may be rough.", "use another engine, or rescale the data"),
    "lost components": (
        "The reconstruction W H can be relied on, single components can't: chains explain the data by different ones.",
        "try a smaller rank, and read components as one explanation among several",
    ),
    "components": (
        "The reconstruction W H can be relied on, single components are not settled yet.",
        f"{LONGER} before reading components one by one",
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
    "one restart": ("The fit converged, to an optimum that may not be the best one.", "run it with restarts=10"),
}
FITTED = (
    "The fit converged, and its restarts agree.",
    "look at the components and the reconstruction; for uncertainty, sample (the Gibbs engine)",
)
GRAVEST = ("draws", "chains", "divergences", "nearly", "effective", "depth", "one chain")  # then components


def verdict_on(idata: Any, weights: str = "W", activations: str = "H") -> Verdict | None:
    """Of draws or of a fit; None of a stream, which does not converge."""
    if "fit" in _compat.group_names(idata):
        fit = _compat.group(idata, "fit")
        return of_fit(list(advise_on_fit(fit))) if "objective" in fit else None
    return of_sampler(judge(idata, weights, activations).advice, longer(idata.attrs, run_size(idata)[1]))


def of_sampler(advice: Sequence[Advice], run: str) -> Verdict:
    """``run``: `` (draws=2000, tune=2000)``, what a longer run would be."""
    warnings = [one.about for one in advice if one.is_warning]
    warnings.sort(key=lambda about: GRAVEST.index(about) if about in GRAVEST else len(GRAVEST))
    if warnings:
        text, do = OF_SAMPLERS[warnings[0]]
        return Verdict(text, do.format(run), True)
    knows_components = any(one.about == "components" for one in advice)
    return Verdict(GOOD[0].format(" and on every component" if knows_components else ""), GOOD[1], False)


def of_fit(advice: Sequence[Advice]) -> Verdict:
    """Of an optimiser's restarts."""
    about = [one.about for one in advice if one.is_warning]
    return Verdict(*OF_FITS[about[0]], True) if about else Verdict(*FITTED, False)


def longer(attrs: dict[str, Any], n_draws: int) -> str:
    """What to ask for: twice the run that the result tells of."""
    thin, tune = (int(attrs.get(name, default)) for name, default in (("thin", 1), ("tune", 0)))
    words = [("draws", max(2 * n_draws * thin, 1000))] + ([("tune", max(2 * tune, 1000))] if tune else [])
    return f" ({', '.join(f'{name}={n}' for name, n in words)})"
