"""Effective draws per CPU second of particle Gibbs beside nutpie, of log-normal chains: as :mod:`benchmarks.mixing`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pymc as pm

import nmf_zoo as nz
from benchmarks.mixing import compare, rows_of
from benchmarks.rows import Row

FEATURES, TIMES, RANK = 10, 50, 2
MUST = 1.0
PRIORS = {"chain": nz.LogNormalAR(0.0, 0.9, 0.5, initial="stationary"), "alpha_w": 1.0, "mean_w": 3.0}


def declare(seed: int = 1) -> pm.Model:
    """Counts drawn from the priors of the model."""
    drawn = nz.simulate(nz.hmm_nmf(None, RANK, shape=(FEATURES, TIMES), **PRIORS), random_seed=seed)
    return nz.hmm_nmf(drawn["X"].to_numpy(), RANK, **PRIORS)


def rows(quick: bool) -> Iterator[Row]:
    """W H, and lp."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare(declare(), quick, engine="particle_gibbs")
    label = f"log-normal chain, {FEATURES} features, {TIMES} times, K={RANK}"
    yield from rows_of(label, {"W H": MUST, "lp": None}, *found)
