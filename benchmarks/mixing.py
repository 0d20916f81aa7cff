"""Effective draws per CPU second of Gibbs beside nutpie on the same declaration, least over the cells of W H."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import arviz as az
import numpy as np
import nutpie
import xarray as xr

import nmf_zoo as nz
from benchmarks.datasets import gamma_counts
from nmf_zoo import _compat

CASES = {
    "4 x 100, K=2, mean count 1.6": (4, 100, 2, 1.6),
    "50 x 200, K=5, mean count 3": (50, 200, 5, 3.0),
    "4 x 100, K=2, mean count 56": (4, 100, 2, 56.0),
}


def least_ess(posterior: xr.Dataset) -> float:
    """The least bulk effective sample size over the cells of W H (400 of them at the most)."""
    W, H = posterior["W"].values, posterior["H"].values
    cells = np.random.default_rng(0).permutation(W.shape[-2] * H.shape[-1])[:400]
    rows, cols = np.unravel_index(cells, (W.shape[-2], H.shape[-1]))
    mean = np.einsum("abck,abkc->abc", W[..., rows, :], H[..., cols])
    dataset = xr.Dataset({"mean": (("chain", "draw", "cell"), mean)})
    ess = az.ess(dataset)
    return float((ess.to_dataset() if isinstance(ess, xr.DataTree) else ess)["mean"].min())


def ours_per_second(model: Any, draws: int) -> float:
    """Ours: warm-up counted, compilation not."""
    nz.sample(2, model=model, engine="gibbs", tune=2, chains=1, quiet=True, random_seed=0)
    began = time.process_time()
    idata = nz.sample(draws, model=model, engine="gibbs", tune=draws // 4, chains=2, cores=1, quiet=True, random_seed=1)
    seconds = time.process_time() - began
    return least_ess(_compat.group(idata, "posterior")) / seconds


def nutpie_per_second(model: Any, draws: int, target_accept: float) -> float:
    """nutpie: warm-up counted, compilation not."""
    compiled = nutpie.compile_pymc_model(model)
    arguments = {"chains": 2, "cores": 1, "seed": 1, "progress_bar": False, "target_accept": target_accept}
    nutpie.sample(compiled, draws=2, tune=2, **arguments)
    began = time.process_time()
    idata = nutpie.sample(compiled, draws=draws, tune=draws // 2, **arguments)
    seconds = time.process_time() - began
    return least_ess(_compat.group(idata, "posterior")) / seconds


def rows(quick: bool) -> Iterator[dict[str, str]]:
    """One row per case."""
    for label, (n_rows, n_cols, rank, mean) in list(CASES.items())[: 1 if quick else None]:
        model = nz.gamma_nmf(gamma_counts(n_rows, n_cols, rank, mean), rank)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = ours_per_second(model, 1000 if quick else 8000)
            peers = {accept: nutpie_per_second(model, 200 if quick else 1000, accept) for accept in (0.8, 0.95)}
        accept = max(peers, key=peers.__getitem__)
        ratio = ours / peers[accept]
        yield {
            "work": f"least ESS of W H per CPU second, {label}",
            "ours": f"{ours:.0f}",
            "peer": f"{peers[accept]:.0f} (nutpie, target_accept {accept})",
            "ratio": f"{ratio:.1f}x more" if ratio >= 1 else f"{1 / ratio:.1f}x fewer",
        }
