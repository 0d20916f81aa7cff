"""The evidence of Cemgil's 16 x 10 counts: its Monte-Carlo error by time, beside PyMC's ``sample_smc``.

Seconds of the clock on two cores, compilation not counted. PyMC's particles move by independent Metropolis proposals
from one normal fit, which neither 130 dimensions nor 5! labellings suit: its evidence is hundreds of nats low, and its
spread does not say so.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import nmf_zoo as nz
from benchmarks.datasets import cemgil_counts
from benchmarks.rows import Row, at_most, note
from nmf_zoo import _compat

RANK, CORES, CHAINS = 5, 2, 4
MOST_ERROR, MOST_SECONDS = 0.3, 60.0
PEER_DRAWS = 500
RANKS = (3, 4, 5, 6, 7)
FEW = np.array([[1, 0, 2], [2, 1, 0], [0, 3, 1]])


class Evidence(NamedTuple):
    """log p(X), its standard error over the chains, and what it took."""

    value: float
    error: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f} in {self.seconds:.1f} s"


def declare(rank: int) -> pm.Model:
    """The priors that the counts were drawn from."""
    return nz.gamma_nmf(cemgil_counts(), rank, alpha_w=10.0, mean_w=1.0, alpha_h=1.0, mean_h=100.0)


def ours(model: pm.Model, options: Any) -> Evidence:
    """Four runs."""
    began = time.perf_counter()
    found = nz.evidence(model, options, chains=CHAINS, cores=CORES, random_seed=1, quiet=True).attrs
    return Evidence(found["log_evidence"], found["log_evidence_error"], time.perf_counter() - began)


def pymc_run(model: pm.Model, draws: int) -> Evidence:
    """``pm.sample_smc`` with as many chains."""
    arguments: dict[str, Any] = {
        "model": model, "cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False
    }  # fmt: skip
    logging.getLogger("pymc").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        idata = pm.sample_smc(draws, chains=CHAINS, **arguments)
    values = _last_of_chains(_compat.group(idata, "sample_stats")["log_marginal_likelihood"].values)
    weights = np.exp(values - values.max())
    error = weights.std(ddof=1) / weights.mean() / np.sqrt(len(values))
    return Evidence(values.max() + np.log(weights.mean()), error, time.perf_counter() - began)


def _last_of_chains(values: np.ndarray) -> np.ndarray:
    """Each chain's last value: lists of stages, or (chain, stage) filled up with NaN."""
    chains = [np.hstack(list(chain)).astype(np.float64) for chain in values.reshape(CHAINS, -1)]
    return np.array([chain[np.isfinite(chain)][-1] for chain in chains])


def rows(quick: bool) -> Iterator[Row]:
    """SMC's error within a minute, Chib's beside it, how the rank is found, and the time of the exact value."""
    smc, chib = (nz.SMC(particles=50, draws=0), nz.Chib(draws=500)) if quick else (nz.SMC(draws=0), nz.Chib())
    for options in (nz.SMC(particles=10, draws=0), nz.Chib(draws=100, tune=0)):
        ours(nz.gamma_nmf(FEW, 2), options)  # compiles
    model, draws = declare(RANK), 50 if quick else PEER_DRAWS
    own, peer = ours(model, smc), pymc_run(nz.gamma_nmf(FEW, 2) if quick else model, draws)
    work = f"{RANK} components, 16 x 10 counts of mean 450, {CHAINS} runs, {CORES} cores"
    yield at_most(
        f"log evidence by SMC, {work}",
        str(own),
        max(own.error / MOST_ERROR, own.seconds / MOST_SECONDS),
        1.0,
        f"error at most {MOST_ERROR} nats, within {MOST_SECONDS:.0f} s",
        f"{peer} (pm.sample_smc, {CHAINS} x {draws} draws, 1 core{', of a 3 x 3 table' if quick else ''})",
    )
    yield note(f"log evidence by Chib, {work}", str(ours(model, chib)))
    fewer = nz.SMC(particles=50 if quick else 500, draws=0)
    found = {rank: ours(declare(rank), fewer) for rank in (RANKS[:2] if quick else RANKS)}
    values = ", ".join(f"{rank}: {one.value:.1f} ± {one.error:.2f}" for rank, one in found.items())
    best, seconds = max(found, key=lambda rank: found[rank].value), sum(one.seconds for one in found.values())
    yield note("rank of the same counts, drawn with 5 components, by SMC", f"{values}; best {best}, {seconds:.0f} s")
    exact = ours(nz.gamma_nmf(FEW, 2), "enumeration")
    yield note("exact log evidence, 3 x 3 table of 10 counts, K=2", f"{exact.value:.6f} in {exact.seconds:.2f} s")
