"""Effective draws per CPU second of the Gibbs sampler of powers beside nutpie, least over cells of W H.

As :mod:`benchmarks.mixing`: the same declaration, two chains, warm-up counted and compilation not. The powers are drawn
from the model. nutpie's target_accept is the better one of two short runs; its longer runs double until their least
effective sample size is 1,000 or the next one would take too long, so that all cases take minutes.
``python -m benchmarks.itakura_saito_mixing [case ...]`` measures some cases only.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import nutpie
import pymc as pm

import nmf_zoo as nz
from benchmarks.mixing import ENOUGH_ESS, TARGET_ACCEPTS, Run, least_ess, ours
from benchmarks.rows import Row
from benchmarks.rows import compare as compared
from nmf_zoo import _compat


class Case(NamedTuple):
    """Frequencies, frames, components, and how many times nutpie's effective draws ours must reach."""

    shape: tuple[int, int, int]
    must: float


CASES = {"a": Case((20, 50, 3), 1.0), "b": Case((10, 200, 2), 1.0), "c": Case((64, 100, 5), 1.0)}
SHORT, LONGEST = 200, 15.0  # draws and CPU seconds of nutpie's runs
SHAPE_W, SCALE_W, SHAPE_H, SCALE_H = 2.0, 1.0, 1.0, 1.0


def declare(case: str, seed: int = 1) -> pm.Model:
    """W ~ InverseGamma(2, 1), H ~ InverseGamma(1, 1), and powers drawn from them."""
    n_frequencies, n_frames, rank = CASES[case].shape
    rng = np.random.default_rng(seed)
    W = SCALE_W / rng.gamma(SHAPE_W, 1.0, (n_frequencies, rank))
    H = SCALE_H / rng.gamma(SHAPE_H, 1.0, (rank, n_frames))
    power = rng.exponential(W @ H)
    return nz.is_nmf(power, rank, alpha_h=SHAPE_H, beta_h=SCALE_H, alpha_w=SHAPE_W, beta_w=SCALE_W)


def nutpie_run(compiled: Any, target_accept: float, draws: int) -> Run:
    """With its default warm-up."""
    arguments = {"chains": 2, "cores": 1, "seed": 1, "progress_bar": False, "save_warmup": False}
    began = time.process_time()
    idata = nutpie.sample(compiled, draws=draws, target_accept=target_accept, **arguments)
    seconds, ess = time.process_time() - began, least_ess(_compat.group(idata, "posterior"))
    return Run(ess / seconds, ess, seconds, draws)


def nutpie_runs(model: pm.Model, quick: bool) -> tuple[Run, float]:
    """The longest run with the better target_accept, and that one."""
    compiled = nutpie.compile_pymc_model(model)
    nutpie.sample(compiled, draws=2, tune=2, chains=1, progress_bar=False)  # compiles the rest
    short = {accept: nutpie_run(compiled, accept, 200 if quick else SHORT) for accept in TARGET_ACCEPTS}
    best = max(short, key=lambda accept: short[accept].per_second)
    run = short[best]
    while not quick and run.ess < ENOUGH_ESS and 2 * run.seconds < LONGEST:
        run = nutpie_run(compiled, best, 2 * run.draws)
    return run, best


def compare(case: str, quick: bool = False, seed: int = 1, **options: Any) -> tuple[Run, Run, float]:
    """(ours, nutpie's, its target_accept); ``options`` go to ``nz.sample``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = declare(case, seed)
        return ours(model, quick, **options), *nutpie_runs(model, quick)


def rows(quick: bool, cases: tuple[str, ...] = tuple(CASES)) -> Iterator[Row]:
    """One row per case."""
    for name in cases[:1] if quick else cases:
        (n_frequencies, n_frames, rank), must = CASES[name]
        own, peer, accept = compare(name, quick)
        yield compared(
            f"least ESS of W H per CPU second, powers of {n_frequencies} x {n_frames}, K={rank}",
            f"{own.per_second:,.0f} (ESS {own.ess:,.0f} in {own.seconds:.1f} s)",
            f"{peer.per_second:,.0f} (nutpie, target_accept {accept}: ESS {peer.ess:,.0f} in {peer.seconds:.1f} s)",
            own.per_second / peer.per_second,
            must,
        )


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(CASES)):
        print(" | ".join(row.values()), flush=True)
