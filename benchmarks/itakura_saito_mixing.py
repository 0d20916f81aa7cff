"""Effective draws per CPU second of the Gibbs sampler of powers beside nutpie, least over cells of W H.

As :mod:`benchmarks.mixing`: the same declaration, two chains, warm-up counted and compilation not. The powers are drawn
from the model. ``python -m benchmarks.itakura_saito_mixing [case ...]`` measures some cases only.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import nmf_zoo as nz
from benchmarks.mixing import TARGET_ACCEPTS, Run, nutpie_run, ours
from benchmarks.rows import Row
from benchmarks.rows import compare as compared


class Case(NamedTuple):
    """Frequencies, frames, components, and how many times nutpie's effective draws ours must reach."""

    shape: tuple[int, int, int]
    must: float


CASES = {"a": Case((20, 50, 3), 1.0), "b": Case((10, 200, 2), 1.0), "c": Case((64, 100, 5), 1.0)}
SHAPE_W, SCALE_W, SHAPE_H, SCALE_H = 2.0, 1.0, 1.0, 1.0


def declare(case: str) -> pm.Model:
    """W ~ InverseGamma(2, 1), H ~ InverseGamma(1, 1), and powers drawn from them."""
    n_frequencies, n_frames, rank = CASES[case].shape
    rng = np.random.default_rng(1)
    W = SCALE_W / rng.gamma(SHAPE_W, 1.0, (n_frequencies, rank))
    H = SCALE_H / rng.gamma(SHAPE_H, 1.0, (rank, n_frames))
    power = rng.exponential(W @ H)
    return nz.is_nmf(power, rank, alpha=SHAPE_H, beta=SCALE_H, alpha_w=SHAPE_W, beta_w=SCALE_W)


def compare(case: str, quick: bool = False, **options: Any) -> tuple[Run, Run, float]:
    """(ours, the better of nutpie's runs, its target_accept); ``options`` go to ``nz.sample``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = declare(case)
        own = ours(model, quick, **options)
        peers = {accept: nutpie_run(model, accept, quick) for accept in TARGET_ACCEPTS}
    best = max(peers, key=lambda accept: peers[accept].per_second)
    return own, peers[best], best


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
