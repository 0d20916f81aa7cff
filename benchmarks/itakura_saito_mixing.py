"""Effective draws per CPU second of the Gibbs sampler of powers beside nutpie: as :mod:`benchmarks.mixing`.

The powers are drawn from the model. ``python -m benchmarks.itakura_saito_mixing [case ...]`` measures some cases only.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pymc as pm

import nmf_zoo as nz
from benchmarks.mixing import compare, rows_of
from benchmarks.rows import Row


class Case(NamedTuple):
    """Frequencies, frames, components, and how many times nutpie's effective draws ours must reach."""

    shape: tuple[int, int, int]
    must: float


CASES = {"a": Case((20, 50, 3), 1.0), "b": Case((10, 200, 2), 1.0), "c": Case((64, 100, 5), 1.0)}
SHAPE_W, SCALE_W, SHAPE_H, SCALE_H = 2.0, 1.0, 1.0, 1.0


def declare(case: str, seed: int = 1) -> pm.Model:
    """W ~ InverseGamma(2, 1), H ~ InverseGamma(1, 1), and powers drawn from them."""
    n_frequencies, n_frames, rank = CASES[case].shape
    rng = np.random.default_rng(seed)
    W = SCALE_W / rng.gamma(SHAPE_W, 1.0, (n_frequencies, rank))
    H = SCALE_H / rng.gamma(SHAPE_H, 1.0, (rank, n_frames))
    power = rng.exponential(W @ H)
    return nz.is_nmf(power, rank, alpha_h=SHAPE_H, beta_h=SCALE_H, alpha_w=SHAPE_W, beta_w=SCALE_W)


def rows(quick: bool, cases: tuple[str, ...] = tuple(CASES)) -> Iterator[Row]:
    """Two rows per case."""
    for name in cases[:1] if quick else cases:
        (n_frequencies, n_frames, rank), must = CASES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compare(declare(name), quick)
        yield from rows_of(f"powers of {n_frequencies} x {n_frames}, K={rank}", {"W H": must, "lp": None}, *found)


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(CASES)):
        print(" | ".join(row.values()), flush=True)
