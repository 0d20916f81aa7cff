"""What a result says of its predictive intervals, as a part of the verdict: does the model expect such data at all?

The shares are made when the run ends (:mod:`nmf_zoo.prediction.misfit`). Here they are judged. A model misses its data
where fewer cells lie inside than it expects, by more than chance among the cells looked at, and by enough to matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nmf_zoo.results.groups import COVERAGE

ERRORS = 3.0  # standard errors of a share, beyond which it is no chance
ENOUGH = 0.05  # a share of the cells that is worth a word
TRY = (
    "try more components (select_rank, nmf-zoo rank), a known exposure= or background= where there is one, or {}; "
    "until then intervals are too narrow"
)


class Coverage(NamedTuple):
    """Shares of ``cells`` cells inside their 90 % predictive intervals, as found and as expected; what to try."""

    inside: float
    expected: float
    cells: int
    more_spread: str

    @property
    def is_misfit(self) -> bool:
        error = (self.expected * (1.0 - self.expected) / self.cells) ** 0.5
        return self.inside < self.expected - max(ENOUGH, ERRORS * error)

    @property
    def words(self) -> str:
        """A sentence."""
        found, expected = (f"{share:.0%}" for share in (self.inside, self.expected))
        if self.is_misfit:
            return (
                f"The data vary more than the model expects: {found} of the cells lie inside their 90 % predictive "
                f"intervals, where {expected} should."
            )
        return f"{found} of the cells lie inside their 90 % predictive intervals; {expected} are expected."

    @property
    def do(self) -> str:
        return TRY.format(self.more_spread)


def coverage_of(attrs: Mapping[Any, Any]) -> Coverage | None:
    """What the attributes of a result say; None where they say nothing that can be read."""
    try:
        said = json.loads(attrs[COVERAGE])
        found = Coverage(float(said["inside"]), float(said["expected"]), int(said["cells"]), str(said["try"]))
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.cells > 0 and 0.0 <= found.expected <= 1.0 else None
