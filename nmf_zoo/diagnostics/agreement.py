"""Do two engines draw from the same posterior? Locations and spreads of invariants in Monte-Carlo standard errors.

Each quantity (``lp`` and the followed cells of W H) is compared on the scale of the normal scores of its pooled draws,
by two means: of the scores, which a shift moves, and of their distances from the median, which another spread moves.
Scores have light tails, so that a mean of a few hundred of them is nearly normal whatever the posterior's tails are;
of raw cells, which are skewed, it is not: two samplers of one posterior then seem to differ in up to 7 of 10 runs.

Sources: Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Rank-normalization, folding, and localization, eq. 14.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import ndtri
from scipy.stats import norm, rankdata

from nmf_zoo.diagnostics.invariants import ess

CHANCE = 0.01  # of calling two engines with the same posterior different, over all quantities together
LEAST = 100  # effective draws below which a standard error means too little: false alarms exceed CHANCE


def compare_draws(draws: Mapping[str, xr.DataArray], standard: str) -> pd.DataFrame:
    """How far each engine's draws are from the standard's.

    Parameters
    ----------
    draws : engine -> (chain, draw, quantity), the quantities the same for all
    standard : which of them the others are compared with

    Returns
    -------
    DataFrame with a row for each engine: z, the largest of all differences in Monte-Carlo standard errors, and agrees:
    True or False, and None where that can't be told (the standard itself, a single point, too few effective draws)
    """
    rows = {
        engine: (np.nan, None) if engine == standard else _verdict(draws[standard], own)
        for engine, own in draws.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["z", "agrees"]).astype({"z": float, "agrees": object})


def _verdict(standard: xr.DataArray, own: xr.DataArray) -> tuple[float, bool | None]:
    """(the largest z, whether it is within CHANCE)"""
    if min(_n_draws(standard), _n_draws(own)) < 2:
        return np.nan, None
    means, errors, sizes = zip(*(_summary(scores) for scores in _scores(standard, own)), strict=True)
    z = _ratio(abs(means[0] - means[1]), np.hypot(*errors)).max()
    if not min(size.min() for size in sizes) >= LEAST:
        return float(z), None
    return float(z), bool(z < norm.isf(CHANCE / (2 * means[0].size)))


def _scores(*pair: xr.DataArray) -> list[xr.DataArray]:
    """Of each (chain, draw, statistic): normal scores of ranks among the draws of both, and of folded ones."""
    flat = [np.reshape(own.to_numpy(), (_n_draws(own), -1)) for own in pair]
    pooled = np.concatenate(flat)
    both = np.concatenate([_normal(pooled), _normal(abs(pooled - np.median(pooled, axis=0)))], axis=1)
    parts = np.split(both, [len(flat[0])])
    return [
        xr.DataArray(part.reshape(*own.shape[:2], -1), dims=("chain", "draw", "statistic"))
        for part, own in zip(parts, pair, strict=True)
    ]


def _normal(values: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks of each column."""
    return ndtri((rankdata(values, axis=0) - 0.375) / (len(values) + 0.25))


def _summary(scores: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, its standard error and effective draws of each statistic; a constant has no error."""
    spread = scores.std(("chain", "draw"), ddof=1).to_numpy()
    sizes = ess(scores.to_dataset(name="scores"), "mean")["scores"].to_numpy()
    sizes = np.where(spread > 0, sizes, _n_draws(scores))
    return scores.mean(("chain", "draw")).to_numpy(), spread / np.sqrt(sizes), sizes


def _ratio(difference: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Standard errors; of statistics without an error 0 or infinite."""
    safe = np.where(error > 0, error, 1.0)
    return np.where(error > 0, difference / safe, np.where(difference > 0, np.inf, 0.0))


def _n_draws(draws: xr.DataArray) -> int:
    return draws.sizes["chain"] * draws.sizes["draw"]
