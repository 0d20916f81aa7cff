"""CPU time of an iteration of EM and VB beside scikit-learn's multiplicative update, and of a Gibbs sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.clusters import texts
from benchmarks.datasets import gamma_counts, nips
from benchmarks.rows import REPEATS, Row, at_most, compare, cpu_of, medians, note
from benchmarks.scikit_learn import NAME, Peer
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers

PLAIN = {"em": nz.EM(accelerate=None), "vb": nz.VB(accelerate=None)}  # a pass over the data and its update
BOTH = f"one multiplicative update of W and H; {NAME}"
MANY = 13_350  # texts, of a million non-zeros
CALLS = 10  # of an iteration, which is short beside the peer's


def calls(quick: bool) -> int:
    """How many iterations are timed together."""
    return 1 if quick else CALLS


class Stepper:
    """A run of ours, iteration by iteration: a call does the next one."""

    def __init__(self, structure: Any, engine: Any, verb: str = "fit", workers: Workers = SERIAL, start: Any = None):
        self.engine, options = resolve_engine(engine, verb, structure)
        self.problem = self.engine.prepare(structure, options, workers)
        self.key, self.steps = seed_key(1), 0
        self.state = self.engine.init(self.problem, self.key, start or {})

    def __call__(self) -> None:
        self.state, _ = self.engine.step(self.problem, self.state, child(self.key, self.steps))
        self.steps += 1


def of_data(X: Any, label: str, rank: int, least: float | None, quick: bool) -> Iterator[Row]:
    """EM and VB beside scikit-learn on one data set."""
    em = Stepper(nz.read(nz.poisson_nmf(X, rank)), PLAIN["em"])
    vb = Stepper(nz.read(nz.gamma_nmf(X, rank)), PLAIN["vb"])
    data = sp.csr_array(X, dtype=np.float64) if sp.issparse(X) else X.astype(np.float64)  # what the peer is fastest on
    with Peer() as peer:
        works = [cpu_of(em, calls(quick)), cpu_of(vb, calls(quick)), peer.an_update(data, rank, 2 if quick else 5)]
        own, bayes, other = medians(works, 1 if quick else REPEATS)
    for name, seconds, must in (("EM", own, least), ("VB", bayes, None)):
        work = f"one plain {name} iteration, {label}, K={rank}"
        yield compare(work, f"{1e3 * seconds:.2f} ms", f"{1e3 * other:.2f} ms ({BOTH})", other / seconds, must)
    if least is not None and sp.issparse(X):
        work = f"one plain VB iteration over one of EM, {label}, K={rank}"
        yield at_most(work, f"{bayes / own:.2f}", bayes / own, 1.4, "at most 1.4")


def rows(quick: bool) -> Iterator[Row]:
    """Rows of every data set, and a Gibbs sweep."""
    sparse, name = nips()
    cases: list[tuple[Any, str, int, float | None]] = [(sparse, name, 10, 20.0), (sparse, name, 50, 12.0)]
    cases.append((gamma_counts(1024, 400, 40, 100.0), "dense counts 1,024 x 400", 40, 1.3))
    with threadpool_limits(1):
        for case in cases[:1] if quick else cases:
            yield from of_data(*case, quick)
        for declare, rank, most in ((gap_given_W, 10, 25.0), (nz.gamma_nmf, 10, 25.0), (nz.gamma_nmf, 50, None)):
            if not (quick and rank > 10):
                yield sweep(declare, rank, most, quick)
        yield from with_exposure(quick)
        yield from many_components(quick)


def gap_given_W(X: Any, rank: int) -> pm.Model:
    """GaP with a known W: its sweep is the E-step of Monte-Carlo EM. With a flat W its posterior is improper here."""
    W = np.random.default_rng(1).gamma(1.0, size=(X.shape[0], rank))
    return pm.do(nz.gap(X, rank, alpha_h=1.0, beta_h=1.0), {"W": W / W.sum(axis=0)})


def sweep(declare: Callable, rank: int, most: float | None, quick: bool) -> Row:
    """One Gibbs sweep; its limit in milliseconds, if that is not None."""
    X, label = nips()
    stepper = Stepper(nz.read(declare(X, rank)), "gibbs", "sample")
    (seconds,) = medians([cpu_of(stepper, calls(quick))], 1 if quick else REPEATS)
    work = f"one Gibbs sweep, {declare.__name__}, {label}, K={rank}"
    cost = f"{1e3 * seconds:.1f} ms, {1e9 * seconds / X.nnz:.0f} ns per non-zero"
    return note(work, cost) if most is None else at_most(work, cost, 1e3 * seconds, most, f"{most:g} ms")


def with_exposure(quick: bool) -> Iterator[Row]:
    """What an exposure per sample, or one per feature and sample, adds to sparse data: the plain run is the peer."""
    X, label = nips()
    rng = np.random.default_rng(1)
    of_features, of_samples = rng.uniform(0.5, 2.0, (X.shape[0], 1)), rng.uniform(0.5, 2.0, (1, X.shape[1]))
    forms = {"an exposure per sample": of_samples, "one per feature times one per sample": (of_features, of_samples)}
    models = [nz.read(nz.gamma_nmf(X, 10, exposure=exposure)) for exposure in (None, *forms.values())]
    for name, engine, verb in (("EM", PLAIN["em"], "fit"), ("VB", PLAIN["vb"], "fit"), ("Gibbs", "gibbs", "sample")):
        works = [cpu_of(Stepper(model, engine, verb), calls(quick)) for model in models]
        plain, *exposed = medians(works, 1 if quick else REPEATS)
        for form, seconds in zip(forms, exposed, strict=True):
            work = f"one iteration or sweep of {name} with {form}, {label}, K=10"
            took = f"{1e3 * seconds:.2f} ms"
            yield at_most(work, took, seconds / plain, 1.15, "1.15 times the plain one", f"{1e3 * plain:.2f} ms")


def many_components(quick: bool) -> Iterator[Row]:
    """What a hundred components cost."""
    X = texts(300 if quick else MANY)
    runs = {
        "EM iteration": (Stepper(nz.read(nz.poisson_nmf(X, 100)), PLAIN["em"]), 45.0),
        "VB iteration": (Stepper(nz.read(nz.gamma_nmf(X, 100)), PLAIN["vb"]), 55.0),
        "Gibbs sweep": (Stepper(nz.read(nz.gamma_nmf(X, 100)), nz.Gibbs(trajectories="never"), "sample"), 200.0),
    }
    found = medians([cpu_of(stepper, 1 if quick else 3) for stepper, _ in runs.values()], 1 if quick else REPEATS)
    for (name, (_, most)), seconds in zip(runs.items(), found, strict=True):
        work = f"one plain {name}, texts of {X.nnz:,} non-zeros, {X.shape[0]:,} x {X.shape[1]:,}, K=100, one table"
        yield at_most(work, f"{1e3 * seconds:.0f} ms", 1e3 * seconds, most, f"{most:g} ms")
