"""Which local fits go on to their end: those that may still be among the best, as far as fits before them tell.

After t iterations a fit has come some way in the last few, and has some way to go. How many times the one goes into the
other differs less among fits than the objective itself. So a fit is left where it is if it would stay behind the best
even with more to go, for the way it has come, than any fit before it had after as many iterations. Those that begin at
others begin slowly, near where they end, and those that begin anew fast and far from it: each tells of its kind alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nmf_zoo.search.proposals import PARENTS

TELLING = 2  # of them that went on from an iteration, for it to tell
EVERY, RECENT = 10, 20  # iterations between two looks, and those that are the way a fit has come
SLACK = 2.0  # times the farthest that any had to go
ROUNDING = 1e-12  # of the objective: no way is shorter


@dataclass
class _Told:
    """What fits of one kind tell, by looks: the farthest that any had to go, over the way come, and how many did."""

    farthest: list[float] = field(default_factory=list)
    fits: list[int] = field(default_factory=list)

    def add(self, losses: np.ndarray) -> None:
        """Those of a fit that went to its end."""
        for look, at in enumerate(range(RECENT + EVERY, len(losses), EVERY)):
            farthest = _over(losses[at - 1] - losses[-1], losses[:at])
            if look == len(self.fits):
                self.farthest.append(0.0)
                self.fits.append(0)
            self.farthest[look] = max(self.farthest[look], farthest)
            self.fits[look] += 1


class Race:
    """What fits that went to their end tell of others.

    Parameters
    ----------
    maximise : whether a higher objective is better
    near : how far behind the best a fit may end without being left for it
    """

    def __init__(self, maximise: bool, near: float = 0.0):
        self._near = near
        self._sign = -1.0 if maximise else 1.0
        self._best: list[float] = []  # losses
        self._told = {True: _Told(), False: _Told()}  # by those that begin anew, and at others

    def add(self, anew: bool, objective: Sequence[float]) -> None:
        """A fit that went to its end, by the objective after each of its iterations; whether it began anew."""
        losses = self._sign * np.asarray(objective, dtype=np.float64)
        self._best = sorted([*self._best, float(losses[-1])])[:PARENTS]
        self._told[anew].add(losses)

    def left_after(self, anew: bool, objective: Sequence[float], seen: int) -> int:
        """After how many iterations a fit is left, by the objective after each of them; 0: it goes on.

        ``anew`` : whether it began anew; ``seen`` : iterations after which it went on
        """
        if len(self._best) < PARENTS:
            return 0
        told = self._told[anew]
        for look, at in enumerate(range(RECENT + EVERY, len(objective) + 1, EVERY)):
            if look == len(told.fits) or told.fits[look] < TELLING:
                return 0
            if at > seen and self._is_behind(objective[at - RECENT - 1 : at], told.farthest[look]):
                return at
        return 0

    def _is_behind(self, recent: Sequence[float], farthest: float) -> bool:
        losses = self._sign * np.array(recent)
        to_go = losses[-1] - self._best[-1] - self._near
        return bool(_over(to_go, losses) > SLACK * farthest)


def _over(to_go: float, losses: np.ndarray) -> float:
    """How often the way that is to go has the way of the last iterations in it."""
    come = losses[-RECENT - 1] - losses[-1]
    return max(to_go, 0.0) / max(come, ROUNDING * max(abs(losses[-1]), 1.0))
