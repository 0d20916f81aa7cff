"""The search for the best mode beside random restarts for as long, and for ten times as long.

``python -m benchmarks.search [table ...] [--fits N]`` searches some tables only, with other budgets than the default.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import BEST_NIPS, faces
from benchmarks.datasets import brca21, nips, used_words
from benchmarks.rows import Row, note, verdict
from nmf_zoo import _compat
from nmf_zoo.inference.counts.em_losses import log_at_data
from nmf_zoo.inference.registry import is_maximised
from nmf_zoo.reading import read

SEEDS = 5
FITS, RESTARTS = 16, 100  # of a search as by default, and beside it; of longer searches in proportion
TIES = 1e-6  # of the objective
SHORT, WITHIN, SECONDS = 2, 1e-4, 10.0  # fits of a short search, how near what is known of a table, how soon
ORDERS = 1_000  # in which restarts might have been made


def digits() -> Any:
    """Pixels x images of scikit-learn's digits, by VB."""
    from nmf_zoo.interfaces.demo import digits as of_scikit_learn

    return nz.gamma_nmf(of_scikit_learn(), 10, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, beta_h=0.5)


def breast_cancer() -> Any | None:
    """21 genomes, 96 kinds of mutations; None without the data."""
    counts = brca21()
    if counts is None:
        return None
    return nz.gamma_nmf(counts, 5, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, mean_h=counts.sum() / (5 * 21))


def recording() -> Any | None:
    """20 seconds of a recording as powers; None without the data."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
    if not path.exists():
        return None
    power = nz.power_spectrogram(path).sel(time=slice(0.0, 20.0))
    return nz.is_nmf(power[:, power.sum("frequency").to_numpy() > 0], 8)


def papers(rank: int = 10) -> Any:
    """NIPS word counts."""
    return nz.poisson_nmf(used_words(sp.csr_array(nips()[0], dtype=np.float64)), rank)


def portraits(rank: int = 20) -> Any | None:
    """Olivetti faces."""
    X = faces()
    return None if X is None else nz.poisson_nmf(np.ascontiguousarray(X), rank)


class Table(NamedTuple):
    """What is searched by which engine, and the least Kullback-Leibler divergence that is known."""

    label: str
    engine: str
    model: Callable[[], Any | None]
    known: float | None = None


TABLES = {
    "digits": Table("digits 64 x 1,797, K=10", "vb", digits),
    "mutations": Table("mutations 96 x 21, K=5", "vb", breast_cancer),
    "recording": Table("20 s of a recording as powers, K=8", "em", recording),
    "faces": Table("faces 1,024 x 400, K=20", "em", portraits),
    "faces40": Table("faces 1,024 x 400, K=40", "em", partial(portraits, 40)),
    "nips": Table("NIPS counts, K=10", "em", papers, known=BEST_NIPS),
    "nips50": Table("NIPS counts, K=50", "em", partial(papers, 50)),
}


def run(engine: str, model: Any, seed: int, search: Any = None, **how: Any) -> tuple[float, float]:
    """(CPU seconds, loss) of a fit: the objective, lower is better."""
    began = time.process_time()
    idata = nz.fit(engine=engine, model=model, search=search, random_seed=seed, cores=1, draws=1, quiet=True, **how)
    seconds = time.process_time() - began
    last = float(_compat.group(idata, "fit")["objective"].isel(chain=0).dropna("iteration")[-1])
    return seconds, -last if is_maximised(engine) else last


def best_of(losses: np.ndarray, seconds: np.ndarray, budget: float) -> float:
    """The median best loss of as many restarts, in any order, as take ``budget`` CPU seconds."""
    rng, best = np.random.default_rng(0), []
    for _ in range(ORDERS):
        order = rng.permutation(len(losses))
        n = max(int(np.searchsorted(np.cumsum(seconds[order]), budget)), 1)
        best.append(losses[order[:n]].min())
    return float(np.median(best))


def rows(quick: bool, names: Sequence[str] = tuple(TABLES), fits: int = FITS) -> Iterator[Row]:
    """One row per table."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names[:1] if quick else names:
            model = TABLES[name].model()
            if model is None:
                yield note(f"search, {TABLES[name].label}", "skipped: NMF_ZOO_DATA does not have it")
            else:
                yield of_table(TABLES[name], model, quick, 4 if quick else fits)
                if TABLES[name].known is not None:
                    yield beside_known(TABLES[name], model)


def of_table(table: Table, model: Any, quick: bool, fits: int) -> Row:
    """How far above the best that is known here the median search ends, and restarts."""
    run(table.engine, model, 0, max_iter=2)  # compiles
    searches = [run(table.engine, model, seed, nz.Search(fits=fits)) for seed in range(1 if quick else SEEDS)]
    restarts = [run(table.engine, model, 1_000 + i) for i in range(5 if quick else RESTARTS * fits // FITS)]
    (seconds, found), (each, losses) = (np.array(list(zip(*runs, strict=True))) for runs in (searches, restarts))
    best, budget = min(found.min(), losses.min()), float(np.median(seconds))
    ours = float(np.median(found))
    as_long, ten_times = best_of(losses, each, budget), best_of(losses, each, 10 * budget)
    enough = "" if 10 * budget <= each.sum() else f" (of {len(losses)}, which is less)"
    row = note(
        f"search of {fits} fits by {table.engine}, {table.label}: median of {len(found)} seeds",
        f"{ours - best:,.2f} nats above the best of all, {budget:.1f} s",
        f"restarts for as long {as_long - best:,.2f}, for ten times as long{enough} {ten_times - best:,.2f}",
    )
    ties = TIES * abs(best)
    met = [verdict(ours <= peer + ties) for peer in (as_long, ten_times)]
    return row | {"must reach": "no worse than either", "met?": ", ".join(met)}


def beside_known(table: Table, model: Any) -> Row:
    """How far a short search stays from the best that is known of counts, at the worst of all seeds."""
    assert table.known is not None
    searches = [run(table.engine, model, seed, nz.Search(fits=SHORT)) for seed in range(SEEDS)]
    seconds, losses = np.array(list(zip(*searches, strict=True)))
    divergence = losses.max() + log_at_data(read(model))
    excess = divergence / table.known - 1.0
    row = note(
        f"search of {SHORT} fits by {table.engine}, {table.label}: worst of {len(losses)} seeds",
        f"divergence {divergence:,.1f}, {100.0 * excess:+.4f} %; {seconds.max():.1f} s",
        f"the best known {table.known:,.1f}",
    )
    met = verdict(excess <= WITHIN and seconds.max() <= SECONDS)
    return row | {"must reach": f"within {100.0 * WITHIN:g} % in {SECONDS:g} s", "met?": met}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The search for the best mode beside random restarts.")
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--fits", type=int, default=FITS, help=f"of each search (default {FITS})")
    given = parser.parse_args()
    for row in rows(quick=False, names=given.tables or tuple(TABLES), fits=given.fits):
        print(row, flush=True)
