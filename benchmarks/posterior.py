"""What a default run of ``nz.sample`` ends with on real data, seed by seed, beside chains from random starts.

Of cells of W H that the sampler follows: the worst R-hat and the least bulk effective draws; of the chains: whether lp
agrees, and how many modes they are in. Of a small table also what NUTS by nutpie ends with, one run. ``python -m
benchmarks.posterior [table ...]`` measures some tables only.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import faces
from benchmarks.datasets import kos, nips, used_words
from benchmarks.rows import Row, note
from benchmarks.search import breast_cancer, digits, recording, run
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import followed_draws
from nmf_zoo.diagnostics.invariants import ess, rhat
from nmf_zoo.diagnostics.modes import modes_of_chains

SEEDS, RESTARTS = 5, 64
ENOUGH = 400  # effective draws of every cell
CLOSE = 1e-5  # of the objective, below the best of many restarts


def papers() -> pm.Model:
    """NIPS word counts, with proper priors."""
    return sparse(nips()[0])


def blog() -> pm.Model | None:
    """KOS word counts, which nothing was tuned on; None without the data."""
    X = kos()
    return None if X is None else sparse(X)


def sparse(X: sp.csc_array) -> pm.Model:
    """Ten components of counts with shapes 0.5, words without counts left out."""
    return nz.gamma_nmf(used_words(sp.csr_array(X, dtype=np.float64)), 10, alpha_w=0.5, alpha_h=0.5)


def portraits() -> pm.Model | None:
    """Olivetti faces, with proper priors."""
    X = faces()
    return None if X is None else nz.gamma_nmf(X, 20, alpha_w=0.5, alpha_h=0.5)


class Table(NamedTuple):
    """A declaration, the largest R-hat, whether all chains should be in one mode, the best that is known, and whether
    NUTS can draw from it in minutes."""

    label: str
    model: Callable[[], pm.Model | None]
    most: float = 1.01
    is_one: bool = False
    has_nuts: bool = False


TABLES = {
    "mutations": Table("mutations 96 x 21, K=5", breast_cancer, has_nuts=True),
    "digits": Table("digits 64 x 1,797, K=10", digits, is_one=True),
    "recording": Table("20 s of a recording as powers, K=8", recording, 1.05),
    "kos": Table("KOS counts 6,906 x 3,430, K=10", blog),
    "nips": Table("NIPS counts 12,419 x 1,500, K=10", papers, is_one=True),
    "faces": Table("faces 1,024 x 400, K=20", portraits, is_one=True),
}


class Outcome(NamedTuple):
    """A run: of followed cells the worst R-hat and least ESS, R-hat of lp, modes (0: still on the way), CPU seconds."""

    rhat: float
    ess: float
    rhat_of_lp: float
    modes: int
    seconds: float
    found: float = np.nan  # objective of the mode that the search found, as a loss

    @property
    def is_settled(self) -> bool:
        return self.modes > 0


def outcome(model: pm.Model, seed: int, **how: Any) -> Outcome:
    """Of one run with the defaults of ``nz.sample``, but for ``how``."""
    began = time.process_time()
    idata = nz.sample(model=model, random_seed=seed, keep="moments", quiet=True, **how)
    return judged(idata, time.process_time() - began)


def judged(idata: Any, seconds: float) -> Outcome:
    """A result of ours or of another, after so many CPU seconds."""
    draws = followed_draws(idata, "W", "H")
    rhats, found = rhat(draws), np.nan
    if "search" in _compat.group_names(idata):
        objectives = _compat.group(idata, "search")["objective"]
        found = -float(objectives.max())
    return Outcome(
        float(rhats["mean"].max()),
        float(ess(draws, "bulk")["mean"].min()),
        float(rhats["lp"]),
        len(modes_of_chains(draws) or ()),
        seconds,
        found,
    )


def by_nutpie(model: pm.Model, **size: int) -> Outcome:
    """Compiled, and from starts of its own."""
    began = time.process_time()
    idata = nz.sample(model=model, engine=nz.NUTS(sampler="nutpie"), random_seed=0, quiet=True, **size)
    return judged(idata, time.process_time() - began)


def rows(quick: bool, names: tuple[str, ...] = tuple(TABLES)) -> Iterator[Row]:
    """Two rows per table: the runs, and the modes that they began in."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names[:1] if quick else names:
            model = TABLES[name].model()
            if model is None:
                yield note(f"default nz.sample, {TABLES[name].label}", "skipped: NMF_ZOO_DATA does not have it")
                continue
            yield from of_table(TABLES[name], model, quick)


def of_table(table: Table, model: pm.Model, quick: bool) -> Iterator[Row]:
    """What the runs ended with; where all chains should be in the best mode, whether the search found it."""
    size = {"draws": 50, "tune": 50} if quick else {}
    nz.sample(2, tune=2, chains=1, model=model, random_seed=0, quiet=True)  # compiles
    default = [outcome(model, seed, **size) for seed in range(1 if quick else SEEDS)]
    random = [outcome(model, 0, start="random", **size)]
    met = sum(one.rhat <= table.most and one.ess >= ENOUGH for one in default)
    limits = f"R-hat of at most {table.most} and {ENOUGH} effective draws of all cells"
    label = f"default nz.sample, {table.label}: {met} of {len(default)} seeds with {limits}"
    yield note(label, described(default), f"{described(random)} (random starts)")
    if table.has_nuts:
        label = f"default nz.sample and NUTS, {table.label}, one run each"
        yield note(label, described(default[:1]), f"{described([by_nutpie(model, **size)])} (nutpie)")
    if table.is_one:
        restarts = 2 if quick else RESTARTS
        best = min(run("vb", model, 10_000 + i)[1] for i in range(restarts))
        found = sum(one.found <= best + CLOSE * abs(best) for one in default)
        gains = ", ".join(f"{best - one.found:+,.1f}" for one in default)
        label = f"the mode that its search found, {table.label}: {found} of {len(default)} no worse"
        yield note(label, f"{gains} nats better, by seed", f"the best of {restarts} restarts of VB")


def described(outcomes: list[Outcome]) -> str:
    """R-hat, effective draws, modes and seconds of some runs, by seed."""
    rhats = ", ".join(f"{one.rhat:.3f}" for one in outcomes)
    esses = ", ".join(f"{one.ess:,.0f}" for one in outcomes)
    of_lp = ", ".join(f"{one.rhat_of_lp:.3f}" for one in outcomes)
    modes = ", ".join(str(one.modes) if one.is_settled else "not settled" for one in outcomes)
    seconds = np.median([one.seconds for one in outcomes])
    return f"R-hat {rhats}; of lp {of_lp}; ESS {esses}; modes {modes}; {seconds:.0f} s"


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(TABLES)):
        print(" | ".join(row.values()), flush=True)
