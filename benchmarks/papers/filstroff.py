"""What the figures of Filstroff, Lumbreras and Fevotte (2018) share: data sets, runs with their CPU time, pictures."""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from nmf_zoo import _compat

FIGURES = Path(__file__).parent / "figures"
W_TRUE = np.array([[0.638, 0.075], [0.009, 0.568], [0.044, 0.126], [0.309, 0.231]])  # eq. 50
VARIANTS = {"C": "tab:red", "H": "tab:green", "CH": "tab:blue"}  # the paper's colours
PAPER = {"rao_blackwell": False, "average": False, "start": "deterministic"}  # averages of drawn C and H, from eq. 51


class Run(NamedTuple):
    """norms (iterations, K), objective (iterations,), CPU seconds at each iteration, and W (F, K)."""

    norms: np.ndarray
    objective: np.ndarray
    seconds: np.ndarray
    W: np.ndarray


def gap_counts(scale: float = 1.0, n_samples: int = 100, W: np.ndarray = W_TRUE) -> np.ndarray:
    """Counts drawn from GaP with alpha = beta = 1: V1, and V2 at ``scale`` 100."""
    rng = np.random.default_rng(2018)
    return rng.poisson(scale * W @ rng.gamma(1.0, 1.0, (W.shape[1], n_samples)))


def run(model: Any, iterations: int, **options: Any) -> Run:
    """One fit; its CPU time is spread evenly over the iterations, which are alike."""
    engine = nz.MCEM(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # documents without words, more components than needed
        nz.fit(engine=engine, model=model, max_iter=1, tol=0, random_seed=1, quiet=True, cores=1)  # compiles
        began = time.process_time()
        idata = nz.fit(engine=engine, model=model, max_iter=iterations, tol=0, random_seed=1, quiet=True, cores=1)
    fit, W = _compat.group(idata, "fit"), _compat.group(idata, "posterior")["W"].to_numpy()[0, 0]
    seconds = np.arange(1, iterations + 1) * (time.process_time() - began) / iterations
    return Run(fit["norms"].to_numpy()[0], fit["objective"].to_numpy()[0], seconds, W)


def declare(X: Any, rank: int) -> Any:
    """GaP with the paper's alpha = beta = 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nz.gap(X, rank, alpha_h=1.0, beta_h=1.0)


def is_quick(doc: str | None) -> bool:
    """Whether --quick was given on the command line."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help="few iterations: shows that it runs")
    return parser.parse_args().quick


def save(name: str) -> None:
    """Write the current picture and say where."""
    FIGURES.mkdir(exist_ok=True)
    path = FIGURES / f"{name}.png"
    plt.tight_layout()
    plt.savefig(path, dpi=120)
    print(f"written: {path}")


def sorted_norms(norms: np.ndarray) -> str:
    return " ".join(f"{norm:.3g}" for norm in np.sort(norms)[::-1])
