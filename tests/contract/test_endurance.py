"""Draws and objectives are the same bits with any threads, in any blocks, and after kills at any moments."""

from __future__ import annotations

import os
import random
import sys
from functools import cache

import numpy as np
import pytest

from nmf_zoo.inference.counts import em, gibbs, vb
from nmf_zoo.inference.powers import em as divergence_em
from nmf_zoo.inference.powers import gibbs as composite_gibbs
from nmf_zoo.inference.powers import vb as composite_vb
from nmf_zoo.inference.shared import layout
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime import jobs, run_one
from nmf_zoo.runtime.blocks import equal_blocks
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.driver import FitRun, SampleRun, run_chains, run_restarts
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Cells
from tests import crash
from tests.forked import Forked
from tests.sizes import size
from tests.structures import gamma, inverse_gamma, model, unknown

KEY = seed_key(21)
ENGINES = {
    "em": (em.ENGINE, em.EM(mode="log")),
    "em, sources frozen": (em.ENGINE, em.EM(mode="log", inner=2)),
    "vb": (vb.ENGINE, vb.VB()),
    "vb, paisley": (vb.ENGINE, vb.VB(order="paisley")),
    "gibbs": (gibbs.ENGINE, gibbs.Gibbs()),
}
OF_POWERS = {
    "em of powers": (divergence_em.ENGINE, em.EM(mode="log")),
    "vb of powers": (composite_vb.ENGINE, vb.VB()),
    "gibbs of powers": (composite_gibbs.ENGINE, gibbs.Gibbs()),
}


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """Several chunks on small data, and a save at every step."""
    monkeypatch.setattr(layout, "CHUNK_NONZEROS", 64)
    monkeypatch.setattr(layout, "CHUNK_CELLS", 128)
    for module in (divergence_em, composite_vb, composite_gibbs):
        monkeypatch.setattr(module, "CHUNK_CELLS", 256)
    monkeypatch.setattr(files, "EVERY", 0.0)
    monkeypatch.setattr(files, "SHARE", np.inf)


@cache
def structures():
    rng = np.random.default_rng(8)
    x = rng.poisson(rng.gamma(0.7, size=(41, 3)) @ rng.gamma(0.7, size=(3, 29)) * 3.0).astype(float)
    mask, pair = rng.random(x.shape) < 0.85, (gamma(1.5, 0.5), gamma(1.2, 0.7))

    def cells(rows, cols, is_complete):
        return Cells(rows=rows, cols=cols, values=x[rows, cols], shape=x.shape, is_complete=is_complete)

    return {
        "dense": model(x, 3, *pair),
        "masked": model(x, 3, *pair, mask=mask, exposure=rng.uniform(0.5, 2.0, x.shape)),
        "sparse": model(x, 3, *pair, data=cells(*np.nonzero(x), True)),
        "listed": model(x, 3, *pair, data=cells(*np.nonzero(mask), False), background=np.full(x.shape, 0.2)),
        "wide": model(x.T, 3, *pair, data=None),
        "small": model(x[:6, :8], 2, *pair),
    }


@cache
def free():
    """Hyperparameters to find (EM, VB) and to draw (Gibbs)."""
    x = np.random.default_rng(9).poisson(2.0, (41, 29)).astype(float)
    given = {"variable_shape": (3,), "shape": (1, 3)}
    found, drawn = unknown("b", "flat", **given), unknown("b", "gamma", 6.0, 5.0, **given)
    return [model(x, 3, gamma(1.5, rate), gamma(1.2, 0.7)) for rate in (found, drawn)]


@cache
def spectra():
    """Powers, of several chunks but for the small ones."""
    rng = np.random.default_rng(10)
    x = rng.exponential(rng.gamma(2.0, size=(31, 3)) @ rng.gamma(2.0, size=(3, 49)))
    pair, options = (inverse_gamma(2.5, 1.0), inverse_gamma(1.5, 0.7)), {"kind": "exponential"}
    given = {"mask": rng.random(x.shape) < 0.85, "exposure": rng.uniform(0.5, 2.0, x.shape), **options}
    drawn = unknown("b", "gamma", 6.0, 5.0, variable_shape=(3,), shape=(3, 1))
    return {
        "powers": model(x, 3, *pair, **options),
        "powers, masked": model(x, 3, *pair, **given, background=np.full(x.shape, 0.2)),
        "powers, small": model(x[:6, :8], 2, *pair, **options),
        "powers, free": model(x, 3, pair[0], inverse_gamma(1.5, drawn), **options),
    }


def structure_of(name, engine):
    if engine in OF_POWERS:
        return spectra()[name]
    return free()[engine == "gibbs"] if name == "free" else structures()[name]


NAMES = ["dense", "masked", "sparse", "listed", "wide", "small", "free"]
CASES = [(name, engine) for engine in ENGINES for name in NAMES]
CASES += [(name, engine) for engine in OF_POWERS for name in ("powers", "powers, masked", "powers, small")]
CASES += [("powers, free", "gibbs of powers")]


def run(name, engine, cores=1, checkpoint=None, length=9):
    """The numbers of a run of two chains or restarts."""
    chosen, options = (ENGINES | OF_POWERS)[engine]
    structure, starts = structure_of(name, engine), [{}, {}]
    if chosen.verb == "sample":
        asked = SampleRun(draws=length, tune=6, thin=2, keep_warmup=True, cores=cores, progressbar=False)
        chains, _ = run_chains(chosen, structure, options, asked, KEY, starts, checkpoint=checkpoint)
        return [trace.values | trace.stats for chain in chains for trace in (chain.warmup, chain.draws)]
    asked = FitRun(max_iter=length, tol=0.0, draws=2, cores=cores, progressbar=False)
    solutions, _ = run_restarts(chosen, structure, options, asked, KEY, starts, checkpoint)
    return [
        {"objective": found.objective, "residual": found.residual, **found.values, **found.parameters}
        for found in solutions
    ]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value, other[key], err_msg=key)


class InBlocks(Workers):
    """Chunks in ``blocks`` groups, the last group first."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    @property
    def threads(self):
        return self.blocks

    def map(self, work, *items):
        tasks = list(zip(*items, strict=False))
        bounds = [len(tasks) * block // self.blocks for block in range(self.blocks + 1)]
        results = {}
        for block in reversed(range(self.blocks)):
            results |= {task: work(*tasks[task]) for task in range(bounds[block], bounds[block + 1])}
        return [results[task] for task in range(len(tasks))]


def in_blocks_of(sweeps):
    """``blocks`` with blocks of so many ``sweeps``."""

    return lambda first, tune, draws, thin, keep_warmup, *_: equal_blocks(first, tune, draws, thin, keep_warmup, sweeps)


@cache
def undisturbed(name, engine):
    """For all tests of a case, that change nothing of it."""
    return run(name, engine)


@pytest.mark.engines
@pytest.mark.parametrize(("name", "engine"), CASES)
class TestTheSameBits:
    def test_with_any_threads(self, name, engine):
        expected = undisturbed(name, engine)
        for cores in (2, 4):
            assert_same(run(name, engine, cores=cores), expected)

    @pytest.mark.parametrize("blocks", [1, 7])
    def test_in_any_blocks_of_chunks(self, name, engine, blocks, monkeypatch):
        expected = undisturbed(name, engine)
        monkeypatch.setattr(jobs, "Workers", lambda threads: InBlocks(blocks))
        assert_same(run(name, engine), expected)

    def test_in_any_blocks_of_sweeps(self, name, engine, monkeypatch):
        expected = undisturbed(name, engine)
        for sweeps in (1, 7):
            monkeypatch.setattr(run_one, "blocks", in_blocks_of(sweeps))
            assert_same(run(name, engine), expected)

    def test_going_on_from_every_step(self, name, engine, tmp_path, monkeypatch):
        """One session per step: each reads all it knows from the folder."""
        monkeypatch.setattr(run_one, "blocks", in_blocks_of(1 + random.randrange(3)))
        expected = undisturbed(name, engine)
        for length in range(1, 10):
            opened = open_checkpoint(tmp_path / "run", {}, 1, is_seeded=True)
            found = run(name, engine, checkpoint=opened, length=length, cores=1 + length % 2)
            opened.close()
        assert_same(found, expected)


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the runs that it kills")
@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ("em;vb;gibbs;stream of counts", ["--kills", str(size(6, 10))]),
        ("em, sparse;gibbs", ["--terminate", "1", "--interrupt", "1", "--full", "2", "--damage", "2", "--forbid", "2"]),
    ],
)
def test_after_kills_at_random_moments(cases, words, tmp_path):
    """Some of the campaign of tests/crash.py, of which `make crash` makes all. Long: each run is a process."""
    pytest.importorskip("zarr")
    out, err = tmp_path / "out", tmp_path / "err"
    code = Forked(lambda: sys.exit(crash.main(["--cases", cases, *words])), out, err).wait(600.0)
    printed = out.read_text(encoding="utf-8")
    assert code == 0, printed + err.read_text(encoding="utf-8")
    assert "FAILED" not in printed
    assert printed.count("in all") == len(words) // 2
