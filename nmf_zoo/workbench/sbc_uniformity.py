"""Whether ranks are uniform, and in words how they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

from nmf_zoo.errors import InputError

Array = np.ndarray
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
