"""Online EM by particles, one thread: a step beside the bootstrap filter's, and a stream as long as the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.rows import Row, at_most, fastest, note
from nmf_zoo.distributions import LogNormalAR, UnitChain
from nmf_zoo.distributions.chains import Recipe
from nmf_zoo.inference.hmm import particle_online
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.inference.hmm.online import series_of
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.inference.hmm.particle_online import ParticleOnlineEM
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.random.chain_draws import log_normal_path, unit_path
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models import free, hmm_nmf
from nmf_zoo.reading import read
from nmf_zoo.runtime.stream_engine import Columns, columns_of
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Factorisation

FEATURES, RANK, PARTICLES = 8, 5, 1000  # of Yildirim, Cemgil, Singh (2012), section 4.2
KEY = seed_key(1)
CHAINS: dict[str, tuple[Recipe, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "unit": (UnitChain(free()), lambda rng, n: unit_path(rng.random((2, n)), 0.95)),
    "log-normal": (
        LogNormalAR(0.0, free(), free()),
        lambda rng, n: log_normal_path(rng.standard_normal(n), 0.0, 0.95, 0.3, (0.0, 1.0)),
    ),
}


def rows(quick: bool) -> Iterator[Row]:
    """A step of each smoother beside the filter's, and T = 50,000."""
    n_times = 500 if quick else 4_000
    for chain in CHAINS:
        yield from step_rows(chain, n_times)
    yield stream_row(5_000 if quick else 50_000)


def simulate(chain: str, n_times: int) -> tuple[Columns, np.ndarray]:
    """(columns, W (F, K))"""
    rng = np.random.default_rng(1)
    W = rng.gamma(1.0, 10.0, (FEATURES, RANK))
    H = np.stack([CHAINS[chain][1](rng, n_times) for _ in range(RANK)])
    X = rng.poisson(W @ H + 0.1)
    cols, features = np.nonzero(X.T)
    indptr = np.searchsorted(cols, np.arange(n_times + 1))
    return columns_of(indptr, features, X.T[cols, features], np.ones(n_times, dtype=bool), 0), W


def declare(chain: str) -> Factorisation:
    return read(hmm_nmf(None, RANK, chain=CHAINS[chain][0], background=0.1, shape=(FEATURES, 1)))


def learner(structure: Factorisation, columns: Columns, W: np.ndarray, smoother: str) -> Callable[[], object]:
    """Every update of W and of the chain, sample by sample."""
    options = ParticleOnlineEM(particles=PARTICLES, smoother=smoother, proposal="bootstrap")  # type: ignore[arg-type]
    problem = particle_online.prepare(structure, options, SERIAL)
    state = particle_online.init(problem, columns, KEY, {"W": W, **starts(structure)})
    return lambda: particle_online.update(problem, state, columns, KEY)


def starts(structure: Factorisation) -> dict[str, np.ndarray]:
    """The chain's parameters where the data come from, so that filter and learner see the same weights."""
    truth = {"alpha": 0.95, "persistence": 0.95, "scale": 0.3}
    return {name: np.array(truth[name]) for name in structure.unknowns}


def step_rows(chain: str, n_times: int) -> Iterator[Row]:
    """The filter's step and the learner's, in turn."""
    (columns, W), structure = simulate(chain, n_times), declare(chain)
    target = Target(
        series_of(columns, W, np.ones(FEATURES)),
        W,
        np.full(FEATURES, 0.1),
        law_of(structure.H.prior, starts(structure), RANK),  # type: ignore[arg-type]
    )
    options = ParticleOnlineEM(particles=PARTICLES, proposal="bootstrap")
    filtering = ParticleFilter(target, particle_online.plan_of(options, structure), PARTICLES, moments=False)
    works = [lambda: filtering.run(KEY), *(learner(structure, columns, W, kind) for kind in ("path", "backward"))]
    own, path, backward = (1e6 * seconds / n_times for seconds in fastest(works, 3))
    size = f"{chain} chain, M={FEATURES}, K={RANK}, N={PARTICLES}, a step"
    yield at_most(
        f"SMC online EM, {size}",
        f"{path:.0f} us",
        path / own,
        4.0,
        "4x the filter's",
        f"{own:.0f} us (bootstrap filter)",
    )
    yield note(f"the same, backward smoother, {size}", f"{backward:.0f} us", f"{own:.0f} us (bootstrap filter)")


def stream_row(n_times: int) -> Row:
    """From 10 % off the truth, as long as the paper's stream."""
    columns, W = simulate("unit", n_times)
    (seconds,) = fastest([learner(declare("unit"), columns, 1.1 * W, "path")], 1)
    most = 8.0 * n_times / 50_000
    work = f"SMC online EM, M={FEATURES}, K={RANK}, N={PARTICLES}, T={n_times:,}"
    return at_most(work, f"{seconds:.2f} s", seconds, most, f"{most:g} s")
