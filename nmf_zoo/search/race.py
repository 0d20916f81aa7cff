"""Which local fits go on to their end: those that may still be among the best, as far as fits before them tell.

After t iterations a fit has come some way in the last few, and has some way to go. How many times the one goes into the
other differs less among fits than the objective itself. So a fit is left where it is if it would stay behind the best
even with more to go, for the way it has come, than any fit before it had after as many iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PLACES = 4  # a fit is left that would not get one of the first: starts are made of several
TELLING = 2  # of them that went on from an iteration, for it to tell
EVERY, RECENT = 10, 20  # iterations between two looks, and those that are the way a fit has come
SLACK = 1.3  # times the farthest that any had to go
ROUNDING = 1e-12  # of the objective: no way is shorter


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
        self._farthest: list[float] = []  # to go, over the way come, by looks
        self._told: list[int] = []  # by how many fits

    def add(self, objective: Sequence[float]) -> None:
        """A fit that went to its end, by the objective after each of its iterations."""
        losses = self._sign * np.asarray(objective, dtype=np.float64)
        self._best = sorted([*self._best, float(losses[-1])])[:PLACES]
        for look, at in enumerate(range(RECENT + EVERY, len(losses), EVERY)):
            farthest = _over(losses[at - 1] - losses[-1], losses[:at])
            if look == len(self._told):
                self._farthest.append(farthest)
                self._told.append(1)
            else:
                self._farthest[look] = max(self._farthest[look], farthest)
                self._told[look] += 1

    def left_after(self, objective: Sequence[float], seen: int) -> int:
        """After how many iterations a fit is left, by the objective after each of them; 0: it goes on.

        ``seen`` : iterations after which it went on
        """
        if len(self._best) < PLACES:
            return 0
        for look, at in enumerate(range(RECENT + EVERY, len(objective) + 1, EVERY)):
            if look == len(self._told) or self._told[look] < TELLING:
                return 0
            if at > seen and self._is_behind(self._sign * np.array(objective[at - RECENT - 1 : at]), look):
                return at
        return 0

    def _is_behind(self, losses: np.ndarray, look: int) -> bool:
        to_go = losses[-1] - self._best[-1] - self._near
        return bool(_over(to_go, losses) > SLACK * self._farthest[look])


def _over(to_go: float, losses: np.ndarray) -> float:
    """How often the way that is to go has the way of the last iterations in it."""
    come = losses[-RECENT - 1] - losses[-1]
    return max(to_go, 0.0) / max(come, ROUNDING * max(abs(losses[-1]), 1.0))
