"""Draws, one thread, each from a key of its own, beside NumPy's Generator and SciPy on the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit
from scipy import stats

from benchmarks.datasets import nips
from benchmarks.rows import REPEATS, Row, at_most, compare, cpu_of, fastest, medians
from nmf_zoo.inference.shared.layout import by_count, compress
from nmf_zoo.kernels.counts.allocation import allocate_sources, make_scratch
from nmf_zoo.kernels.random.counts import draw_binomial, draw_poisson
from nmf_zoo.kernels.random.draws import draw_exponential, draw_gamma, draw_gig, draw_normal
from nmf_zoo.kernels.random.keyed_rng import child, fold, seed_key
from nmf_zoo.models import gamma_nmf
from nmf_zoo.reading import read

N, CALLS = 100_000, 5
inlined = njit(nogil=True, error_model="numpy", forceinline=True)


def many(draw: Callable) -> Callable[..., Callable[[], None]]:
    """``many(draw)(*parameters)()`` draws one value for each entry of the parameters, with new keys every time."""

    @njit(nogil=True)
    def fill(out, key, parameters):
        for i in range(out.size):
            out[i] = draw(fold(key, i), parameters[0][i], parameters[1][i], parameters[2][i])

    def of(*parameters: Any) -> Callable[[], None]:
        arrays = tuple(np.broadcast_to(p, N).copy() for p in (*parameters, *[0.0] * (3 - len(parameters))))
        out, calls = np.empty(N), iter(range(10**9))
        return lambda: fill(out, child(seed_key(1), next(calls)), arrays)

    return of


gammas = many(inlined(lambda key, shape, _, __: draw_gamma(shape, key)))
exponentials = many(inlined(lambda key, _, __, ___: draw_exponential(key)))
normals = many(inlined(lambda key, _, __, ___: draw_normal(key)))
poissons = many(inlined(lambda key, mean, _, __: draw_poisson(mean, key)))
binomials = many(inlined(lambda key, n, p, _: draw_binomial(np.int64(n), p, key)))
gigs = many(inlined(lambda key, p, a, b: draw_gig(p, a, b, key)))


def beside(work: str, ours: Callable, peer: Callable, name: str, least: float | None, times: int) -> Row:
    """One draw of ours beside one of a peer's."""
    own, other = (1e9 * seconds / N for seconds in medians([cpu_of(side, CALLS) for side in (ours, peer)], times))
    return compare(work, f"{own:.1f} ns", f"{other:.1f} ns ({name})", other / own, least)


def rows(quick: bool) -> Iterator[Row]:
    """Allocation, the worst binomial, gamma draws, and the others."""
    rng, times = np.random.default_rng(1), 1 if quick else REPEATS
    for rank, least in ((10, 15.0), (50, None)):
        yield allocation(rank, least, times=1 if quick else 15)
    yield binomial(rng, 2 if quick else 15)
    for shape in (0.3, 1.0, 3.5, 100.0):
        name, peer = "Generator.standard_gamma", lambda shape=shape: rng.standard_gamma(shape, N)
        yield beside(f"gamma draw, shape {shape:g}", gammas(shape), peer, name, 1.0, times)
    for name, ours, peer in (
        ("exponential", exponentials(), lambda: rng.standard_exponential(N)),
        ("normal", normals(), lambda: rng.standard_normal(N)),
    ):
        yield beside(f"{name} draw", ours, peer, f"Generator.standard_{name}", None, times)
    for mean in (2.5, 30.0, 1e6):
        near = mean * rng.uniform(0.99, 1.01, N)
        peer = lambda near=near: rng.poisson(near)  # noqa: E731
        yield beside(f"Poisson draw, mean {mean:g}", poissons(near), peer, "Generator.poisson", None, times)
    law = stats.geninvgauss(0.5, 1.0)
    peer = lambda: law.rvs(N, random_state=rng)  # noqa: E731
    yield beside(
        "generalised inverse Gaussian draw, p = 1/2, a = b = 1",
        gigs(0.5, 1.0, 1.0),
        peer,
        "SciPy, set up once",
        0.8,
        times,
    )
    yield changing_gigs(rng, 20 if quick else 2000, times)


def changing_gigs(rng: np.random.Generator, n: int, times: int) -> Row:
    """Draws of which each has parameters of its own, as in a sweep: SciPy sets up its sampler for each."""
    own = np.exp(rng.normal(size=N))
    ours, peer = gigs(0.5, own, own), lambda: stats.geninvgauss.rvs(0.5, own[:n], random_state=rng)
    found = medians([cpu_of(ours, CALLS), cpu_of(peer)], times)
    drawn, theirs = (1e9 * seconds / size for seconds, size in zip(found, (N, n), strict=True))
    work = "generalised inverse Gaussian draw, p = 1/2, a = b of its own for each draw"
    return compare(work, f"{drawn:.1f} ns", f"{theirs:,.0f} ns (SciPy)", theirs / drawn)


def allocation(rank: int, least: float | None, times: int) -> Row:
    """Sources of all NIPS counts: shares computed, counts drawn and added to both factors' statistics."""
    X, label = nips()
    rng = np.random.default_rng(2)
    layout = compress(read(gamma_nmf(X, rank)))
    factors = rng.gamma(1.0, size=(X.shape[0], rank)), rng.gamma(1.0, size=(X.shape[1], rank))
    major, minor = layout.sides(*factors)
    of_major, of_minor = np.empty_like(major), np.zeros_like(minor)
    scratch = make_scratch(layout, rank, by_count(layout))
    calls = iter(range(10**9))

    def ours() -> None:
        key = child(seed_key(3), next(calls))
        for chunk in range(layout.n_chunks):
            allocate_sources(layout, major, minor, chunk, of_major, of_minor, scratch, key)

    cells = X.tocoo()
    shares = factors[0][cells.row] * factors[1][cells.col]
    shares /= shares.sum(axis=1, keepdims=True)
    own, other = (1e9 * s / X.nnz for s in fastest((ours, lambda: rng.multinomial(cells.data, shares)), times))
    work = f"allocation of a count, mean {X.data.mean():.1f}, {label}, K={rank}"
    return compare(work, f"{own:.0f} ns", f"{other:.0f} ns (Generator.multinomial, shares ready)", other / own, least)


def binomial(rng: np.random.Generator, times: int) -> Row:
    """The slowest of many (n, p), with p a little different in each draw; NumPy's at the same."""
    cases = [(n, p) for n in (1, 10, 40, 100, 1000, 10**6, 10**12) for p in (0.01, 0.3, 0.5)]
    cases += [(n, mean / n) for n in (40, 100, 1000, 10**6, 10**12) for mean in (5, 10, 15, 19.5, 20, 25, 50)]
    near = [np.minimum(p * rng.uniform(1.0, 1.01, N), 0.5) for _, p in cases]
    seconds = fastest([binomials(n, p) for (n, _), p in zip(cases, near, strict=True)], times)  # all in the same minute
    slowest = int(np.argmax(seconds))
    n, p = cases[slowest]
    (peer,) = fastest([lambda: rng.binomial(n, near[slowest])], times)
    worst, other = 1e9 * seconds[slowest] / N, 1e9 * peer / N
    work = f"binomial draw, the slowest of {len(cases)} (n, p): n = {n:,}, p = {p:.2g}"
    return at_most(work, f"{worst:.0f} ns", worst, 60.0, "60 ns", f"{other:.0f} ns (Generator.binomial)")
