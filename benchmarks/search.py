"""The search for the best mode beside random restarts: the same CPU, then how far above the other's objective."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import faces
from benchmarks.datasets import brca21, nips
from benchmarks.rows import Row, note
from nmf_zoo import _compat
from nmf_zoo.inference.registry import is_maximised

SEEDS = 3
FITS = 16


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


def papers() -> Any:
    """NIPS word counts."""
    X = sp.csr_array(nips()[0], dtype=np.float64)
    return nz.poisson_nmf(X[np.asarray(X.sum(axis=1)).ravel() > 0], 10)


def portraits() -> Any | None:
    """Olivetti faces."""
    X = faces()
    return None if X is None else nz.poisson_nmf(np.ascontiguousarray(X), 20)


TABLES: dict[str, tuple[str, Callable[[], Any | None]]] = {
    "digits 64 x 1,797, K=10": ("vb", digits),
    "mutations 96 x 21, K=5": ("vb", breast_cancer),
    "20 s of a recording as powers, K=8": ("em", recording),
    "faces 1,024 x 400, K=20": ("em", portraits),
    "NIPS counts, K=10": ("em", papers),
}


def run(engine: str, model: Any, seed: int, search: Any = None, **how: Any) -> tuple[float, float]:
    """(CPU seconds, loss) of a fit: the objective, lower is better."""
    began = time.process_time()
    idata = nz.fit(engine=engine, model=model, search=search, random_seed=seed, cores=1, draws=1, quiet=True, **how)
    seconds = time.process_time() - began
    last = float(_compat.group(idata, "fit")["objective"].isel(chain=0).dropna("iteration")[-1])
    return seconds, -last if is_maximised(engine) else last


def beside(engine: str, model: Any, seed: int, fits: int) -> tuple[float, float, int, float]:
    """(CPU seconds, loss) of a search; (number, best loss) of random restarts for as long."""
    seconds, found = run(engine, model, seed, search=nz.Search(fits=fits))
    spent, best, count = 0.0, np.inf, 0
    while spent < seconds:
        one, loss = run(engine, model, 1000 * (seed + 1) + count)
        spent, best, count = spent + one, min(best, loss), count + 1
    return seconds, found, count, best


def rows(quick: bool) -> Iterator[Row]:
    """One row per table: by how many nats the search ends below restarts, by seed."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (engine, make) in TABLES.items():
            model = make()
            if model is None:
                yield note(f"search of {engine}, {name}", "skipped: NMF_ZOO_DATA does not have it")
                continue
            run(engine, model, 0, max_iter=2)  # compiles
            found = [beside(engine, model, seed, 4 if quick else FITS) for seed in range(1 if quick else SEEDS)]
            gains = [best - loss for _, loss, _, best in found]
            counts, seconds = [count for _, _, count, _ in found], [second for second, *_ in found]
            ours = f"{', '.join(f'{gain:+,.1f}' for gain in gains)} nats better, by seed ({np.median(seconds):.1f} s)"
            yield note(
                f"search of {4 if quick else FITS} fits by {engine}, {name}",
                ours,
                f"random restarts for as long, {', '.join(map(str, counts))} of them",
            )
            if quick:
                return
