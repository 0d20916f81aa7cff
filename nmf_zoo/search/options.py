"""How much is searched: what ``nz.fit(search=)`` and ``nz.sample(start=)`` take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.options import AUTO, check_least, check_types, names_checked
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.structure import Factorisation, GammaPrior, Known

AT_LEAST = 4  # fits that begin anew
ANEW = 0.75  # of the fits, and of the iterations where these are counted, are for those that do
REFITS = 8  # of the activations of known components, where their objective may have several optima


@names_checked
@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the best of the modes, by local fits that learn from one another.

    The first fit is the plain one of the same seed, so that a search never ends below it. The next start at random,
    from samples far apart and from singular vectors, until there are ``starts``; from then on from components of the
    best found so far: exchanged between two fits, pooled and merged, split, or drawn anew
    (:mod:`nmf_zoo.search.proposals`). Fits that fall behind others are left (:mod:`nmf_zoo.search.race`). What is found
    depends on the seed and the work alone, not on the threads. Where ``max_seconds`` ends it, ``attrs["replay"]`` of
    the group ``search`` is the search that makes the same fits.

    Attributes
    ----------
    fits : local fits in all: the budget, with those that are left
    starts : how many begin anew, of the first four all; None for half of them, with ``iterations`` for three quarters
        while three quarters of these last
    iterations : of all fits together, at the most. What is left is divided among the fits of a round; none is begun
        where others took more. None: each fit has those that the call gives to one
    enough : end once so many fits that began anew came to the best optimum, and several to every other: an optimum that
        none has come to is then unlikely (Good and Turing: as likely as one of those that were found once). None: go on
    goes_on : whether the best fit goes on, once and for as many iterations again, where it stopped at the last of its
        own, short of its optimum; with ``iterations``, for those that are left
    """

    fits: int = 16
    starts: int | None = None
    iterations: int | None = None
    enough: int | None = None
    goes_on: bool = True

    def __post_init__(self):
        check_types(self)
        check_least(self, fits=1, iterations=1, enough=2)
        if self.starts is not None and not 1 <= self.starts <= self.fits:
            raise InputError("starts", str(self.starts), f"an integer from 1 to fits, {self.fits}, or None")

    def begins_anew(self, number: int, iterations: int) -> bool:
        """Whether the fit of this number does, after so many iterations of those before it."""
        if self.starts is not None:
            return number < self.starts
        if self.iterations is None:
            return number < max(AT_LEAST, self.fits // 2)
        return number < AT_LEAST or (number < ANEW * self.fits and iterations < ANEW * self.iterations)

    def cut_to(self, fits: int, starts: int) -> Search:
        """The search whose fits are the first of these, of which so many began anew."""
        return self if fits == self.fits else replace(self, fits=fits, starts=starts)


def search_of(
    asked: Any, restarts: int, engine: Engine, options: Any, initvals: Any, structure: Factorisation
) -> Search | None:
    """The search that a fit is asked for: None, a :class:`Search`, or "auto": the default one where it makes sense.

    Raises
    ------
    InputError : it is none of these; a search can't be made of this run; or it says its number of starts twice
    """
    if asked is None:
        return None
    is_auto = isinstance(asked, str) and asked == AUTO
    if not (is_auto or isinstance(asked, Search)):
        raise InputError("search", repr(asked), f"None, {AUTO!r} or nz.Search(...)", f"e.g. search={AUTO!r}")
    can = can_search(options, initvals, structure)
    if is_auto:
        if engine.is_noisy or not can:
            return None
        if not structure.free_in_both.any():
            return Search(fits=REFITS, starts=REFITS) if restarts == 1 else None
        return Search() if restarts == 1 else Search(fits=max(Search.fits, 3 * restarts), starts=restarts)
    if not can:
        raise InputError("search", repr(asked), f"none, since {can.reason}", "leave it out")
    if restarts > 1:
        raise InputError("restarts", f"{restarts} with {asked}", "1", "say how many begin anew with nz.Search(starts=)")
    return asked


def can_search(options: Any, initvals: Any, structure: Factorisation) -> Verdict:
    """Whether there are starts to choose from, and other optima to find."""
    if is_told(structure, getattr(options, "mode", "density")):
        known = "W is" if structure.W.is_fixed else "H is" if structure.H.is_fixed else "a part of every component is"
        return Verdict(f"{known} known, and every start leads to one optimum")
    if initvals is not None:
        return Verdict("initvals say where the fit begins")
    way = getattr(options, "start", "random")
    return Verdict("" if way == "random" else f"start={way!r} says where the fit begins")


def is_told(structure: Factorisation, mode: str) -> bool:
    """Whether no component is unknown in both factors, and the objective is convex in what is; or a chain's states.

    The mean is linear then. A gamma prior's shape counts one more where the density of logarithms is maximised.
    """
    if structure.free_in_both.any():
        return False
    if structure.H.is_chain:
        return True
    least = 0.0 if mode == "log" else 1.0
    shapes = [factor.prior.shape for factor in (structure.W, structure.H) if isinstance(factor.prior, GammaPrior)]
    is_convex = structure.likelihood.is_log_concave and not structure.unknowns
    return is_convex and all(isinstance(shape, Known) and bool(np.all(shape.value >= least)) for shape in shapes)
