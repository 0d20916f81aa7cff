"""The bootstrap filter beside the package ``particles`` (vectorised models), one thread; independent runs on two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import REPEATS, Others, Row, by_clock, compare, cpu_of, fastest, medians, note
from nmf_zoo.distributions import BasisChain, LogNormalAR, UnitChain
from nmf_zoo.distributions.chains import Recipe
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, plan_of
from nmf_zoo.inference.hmm.particle_options import ParticleOptions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.random.chain_draws import basis_path, log_normal_path, unit_path
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.models import hmm_nmf
from nmf_zoo.reading import read
from nmf_zoo.runtime.workers import SERIAL, Workers

FEATURES, RANK, PARTICLES = 8, 5, 1000  # of Yildirim, Cemgil, Singh (2012), section 4.2
BACKGROUND, ALPHA, P, Q = 0.1, 0.95, 0.8571, 0.6926
RNG = np.random.default_rng(2)
CHAINS: dict[str, tuple[Recipe, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "unit": (UnitChain(ALPHA), lambda rng, n: unit_path(rng.random((2, n)), ALPHA)),
    "log-normal": (
        LogNormalAR(0.0, 0.95, 0.5, initial=(0.0, 1.0)),
        lambda rng, n: log_normal_path(rng.standard_normal(n), 0.0, 0.95, 0.5, (0.0, 1.0)),
    ),
    "basis": (BasisChain(P, Q), lambda rng, n: basis_path(rng.random(n), P, Q, 0.5)),
}


def rows(quick: bool) -> Iterator[Row]:
    """Each chain, and two threads."""
    with threadpool_limits(1):
        n_times = 100 if quick else 1_000
        for name in CHAINS:
            yield filter_row(name, n_times, 1 if quick else REPEATS)
        yield threads_row(20 * n_times)


def simulate(name: str, n_times: int) -> tuple[np.ndarray, np.ndarray]:
    """(X (F, T), W (F, K))"""
    path, rng = CHAINS[name][1], np.random.default_rng(1)
    W = rng.gamma(1.0, 10.0, (FEATURES, RANK))
    return rng.poisson(W @ np.stack([path(rng, n_times) for _ in range(RANK)]) + BACKGROUND), W


def filter_alone(name: str, n_times: int) -> ParticleFilter:
    """The filter without reading and packing."""
    X, W = simulate(name, n_times)
    structure = read(hmm_nmf(X, RANK, chain=CHAINS[name][0], background=BACKGROUND))
    samples, options = read_samples(structure), ParticleOptions(particles=PARTICLES, proposal="bootstrap")
    target = Target(samples.counts(W), W, samples.base, law_of(structure.H.prior, {}, RANK))
    return ParticleFilter(target, plan_of(options, structure), PARTICLES, moments=False)


def filter_row(name: str, n_times: int, times: int) -> Row:
    """`nz.filter` of a model that is there, the log-likelihood alone, beside as many particles of the package's."""
    X, W = simulate(name, n_times)
    model = hmm_nmf(X, RANK, chain=CHAINS[name][0], background=BACKGROUND)
    how = {"method": "particles", "proposal": "bootstrap", "particles": PARTICLES}
    seeds = iter(range(10**9))
    ours = cpu_of(lambda: float(nz.filter(model, W, random_seed=next(seeds), **how)["log_likelihood"]))
    work = f"nz.filter, bootstrap, {name} chain, M={FEATURES}, K={RANK}, N={PARTICLES}, T={n_times:,}, one table"
    if find_spec("particles") is None:
        (seconds,) = medians([ours], times)
        return note(work, f"{1e3 * seconds:.1f} ms", "particles is not installed")
    own, other = medians([ours, cpu_of(peer(name, X, W))], times)
    least = None if name == "basis" else 4.0
    return compare(work, f"{1e3 * own:.1f} ms", f"{1e3 * other:.0f} ms (particles)", other / own, least)


def peer(name: str, X: np.ndarray, W: np.ndarray) -> Callable[[], object]:
    """The same model for ``particles``, its moves and its likelihood on whole arrays."""
    import particles
    from particles import distributions, state_space_models

    class Step(distributions.ProbDist):
        dim = RANK

        def __init__(self, before: np.ndarray | None):
            self.before = before

        def rvs(self, size: int | None = None) -> np.ndarray:
            return MOVES[name](self.before, (size or 1, RANK) if self.before is None else self.before.shape)

    class Counts(distributions.ProbDist):
        def __init__(self, states: np.ndarray):
            self.rates = (np.exp(states) if name == "log-normal" else states) @ W.T + BACKGROUND

        def logpdf(self, x: np.ndarray) -> np.ndarray:
            return np.log(self.rates) @ x - self.rates.sum(axis=1)

    class Model(state_space_models.StateSpaceModel):
        def PX0(self) -> Step:
            return Step(None)

        def PX(self, t: int, xp: np.ndarray) -> Step:
            return Step(xp)

        def PY(self, t: int, xp: Any, x: np.ndarray) -> Counts:
            return Counts(x)

    model = state_space_models.Bootstrap(ssm=Model(), data=list(X.T.astype(float)))
    return lambda: particles.SMC(fk=model, N=PARTICLES, collect="off").run()


def move_unit(before: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    if before is None:
        return RNG.random(shape)
    chance, u = np.where(before <= 0.5, ALPHA, 1.0 - ALPHA), RNG.random(shape)
    down = u < chance
    return np.where(down, before * (u / chance), 1.0 - (1.0 - before) * ((1.0 - u) / (1.0 - chance)))


def move_basis(before: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    on = 0.5 if before is None else np.where(before > 0.5, Q, 1.0 - P)
    return (RNG.random(shape) < on).astype(float)


def move_log_normal(before: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    noise = RNG.standard_normal(shape)
    return noise if before is None else 0.95 * before + 0.5 * noise


MOVES = {"unit": move_unit, "basis": move_basis, "log-normal": move_log_normal}


def threads_row(n_times: int) -> Row:
    """Independent runs side by side, by the clock on the wall."""
    n_runs, two = 4, Workers(2)
    filters = [filter_alone("unit", n_times) for _ in range(n_runs)]
    keys = [child(seed_key(2), run) for run in range(n_runs)]

    def work(workers: Workers) -> Callable[[], list]:
        return lambda: workers.map(lambda filtering, key: filtering.run(key)[0], filters, keys)

    same = work(SERIAL)() == work(two)()
    others = Others()
    one, both = fastest([work(SERIAL), work(two)], 5, clock=time.perf_counter)
    two.close()
    said = "the same bits" if same else "OTHER BITS"
    name = f"{n_runs} runs of the bootstrap filter, two threads beside one: {said}"
    return by_clock(compare(name, f"{both:.2f} s", f"{one:.2f} s", one / both, 1.7), others)
