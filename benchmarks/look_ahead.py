"""Proposals that look at the sample, where the bootstrap filter collapses: 20 components, 100 features.

The effective number of particles is that of the weights before resampling, as a share of all, its mean over times and
seeds. Beside it stand how many particles have descendants when they are resampled, which a look ahead could hide, and
how much estimates of the log-likelihood vary in a small problem, where both filters work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.rows import COLUMNS, Row, compare, note, verdict
from nmf_zoo.distributions import LogNormalAR, UnitChain
from nmf_zoo.distributions.chains import Recipe
from nmf_zoo.inference.hmm.laws import law_of, make_population, with_guide
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan, advance, begin
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY, BOOTSTRAP, GUIDED
from nmf_zoo.kernels.random.chain_draws import log_normal_path, unit_path
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.kernels.random.resampling import SYSTEMATIC
from nmf_zoo.models import hmm_nmf
from nmf_zoo.reading import read

RANK, FEATURES, PARTICLES = 20, 100, 1000
LEAST = 0.20  # what the effective size must reach
STATIONARY = 0.5 / np.sqrt(1 - 0.95**2)
RECIPES: dict[str, Recipe] = {
    "unit chain (alpha 0.95)": UnitChain(0.95),
    "log-normal AR (mean 0, persistence 0.95, scale 0.5)": LogNormalAR(0.0, 0.95, 0.5, initial="stationary"),
    "log-normal AR (mean -1, persistence 0.95, scale 0.5)": LogNormalAR(-1.0, 0.95, 0.5, initial="stationary"),
}
PATHS: list[Callable[[np.random.Generator, int], np.ndarray]] = [
    lambda rng, n: unit_path(rng.random((2, n)), 0.95),
    lambda rng, n: log_normal_path(rng.standard_normal(n), 0.0, 0.95, 0.5, (0.0, STATIONARY)),
    lambda rng, n: log_normal_path(rng.standard_normal(n), -1.0, 0.95, 0.5, (-1.0, STATIONARY)),
]
NAMES = {BOOTSTRAP: "bootstrap", GUIDED: "guided", AUXILIARY: "auxiliary"}


class Found(NamedTuple):
    """effective : mean over times, a share of the particles; distinct : those with descendants, a share; us : a step"""

    log_p: float
    effective: float
    distinct: float
    us: float


def rows(quick: bool) -> Iterator[Row]:
    """Effective sizes at issue size, and the spread of the log-likelihood's estimates in a small problem."""
    n_times, n_seeds = (30, 2) if quick else (1000, 5)
    for chain in RECIPES:
        yield from large(chain, n_times, n_seeds)
        yield small(chain, 10 if quick else 100)


def large(chain: str, n_times: int, n_seeds: int) -> Iterator[Row]:
    """The row with the target, and rows on what else tells a good filter."""
    targets = [simulate(chain, RANK, FEATURES, 10.0, n_times, seed) for seed in range(1, n_seeds + 1)]
    found = {
        proposal: Found(*np.mean([run(target, proposal, PARTICLES, seed_key(1)) for target in targets], axis=0))
        for proposal in NAMES
    }
    looking, blind = found[AUXILIARY], found[BOOTSTRAP]
    work = f"look-ahead, {chain}, K={RANK}, M={FEATURES}, N={PARTICLES}"
    gain = looking.effective / blind.effective
    cells = (
        f"{work}: mean ESS of {n_seeds} seeds, T={n_times:,}",
        f"{looking.effective:.1%} (auxiliary), {found[GUIDED].effective:.1%} (guided)",
        f"{blind.effective:.1%} (bootstrap)",
        f"{gain:.0f}x better",
        f"{LEAST:.0%}",
        verdict(looking.effective >= LEAST),
    )
    yield dict(zip(COLUMNS, cells, strict=True))
    yield note(f"{work}: particles with descendants", *(f"{each.distinct:.1%}" for each in (looking, blind)))
    yield compare(f"{work}: a step", f"{looking.us:.0f} us", f"{blind.us:.0f} us (bootstrap)", blind.us / looking.us)
    yield note(f"{work}: log-likelihood above the bootstrap filter's", f"{looking.log_p - blind.log_p:,.0f}")


def small(chain: str, n_runs: int) -> Row:
    """Where both work: as many particles, the spread of log p(X)."""
    target = simulate(chain, 3, 10, 3.0, 30, 1)
    spreads = [
        np.std([run(target, proposal, PARTICLES, child(seed_key(2), i)).log_p for i in range(n_runs)])
        for proposal in (AUXILIARY, BOOTSTRAP)
    ]
    work = f"look-ahead, {chain}, K=3, M=10, T=30: standard deviation of log p(X)"
    ours, peer = f"{spreads[0]:.3f} (auxiliary)", f"{spreads[1]:.3f} (bootstrap)"
    return compare(work, ours, peer, spreads[1] / spreads[0])


def simulate(chain: str, rank: int, n_features: int, mean: float, n_times: int, seed: int) -> Target:
    """A target with W ~ Gamma(1, mean), H from the chains and X ~ Poisson(W H)."""
    rng = np.random.default_rng(seed)
    W = rng.gamma(1.0, mean, (n_features, rank))
    path = PATHS[list(RECIPES).index(chain)]
    H = np.stack([path(rng, n_times) for _ in range(rank)])
    X = rng.poisson(W @ H)
    X[X.sum(axis=1) == 0, 0] = 1
    structure = read(hmm_nmf(X, rank, chain=RECIPES[chain]))
    samples = read_samples(structure)
    return Target(samples.counts(W), W, samples.base, law_of(structure.H.prior, {}, rank))


def run(target: Target, proposal: int, particles: int, key: np.uint64) -> Found:
    """Filter all times, step by step."""
    n_times = len(target.counts.indptr) - 1
    population = make_population(target.W.shape[1], particles, proposal)
    plan = with_guide(FilterPlan(proposal, SYSTEMATIC, 0.5), target.law.kind)
    log_p, _ = begin(population, target, 0, plan, child(key, 0))
    sizes, distinct, seconds = [], [], 0.0
    for t in range(1, n_times):
        step = child(key, t)
        began = time.process_time()
        population, gain, size, resampled = advance(population, target, t, plan, step)
        seconds += time.process_time() - began
        log_p += gain
        sizes.append(size / particles)
        if resampled:
            distinct.append(len(np.unique(population.ancestors)) / particles)
    return Found(log_p, np.mean(sizes), np.mean(distinct or [1.0]), 1e6 * seconds / (n_times - 1))
