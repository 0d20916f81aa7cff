"""Variational Bayes of a recording's power: an iteration and its moments beside NumPy and SciPy; how many it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pymc as pm
from scipy.special import kve
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.itakura_saito import LEVEL, recording
from benchmarks.iterations import Stepper
from benchmarks.rows import Row, compare, fastest, note
from nmf_zoo import _compat
from nmf_zoo.inference.powers import vb
from nmf_zoo.kernels.numerics.gig_moments import fill_gig_moments
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Factorisation

RANK, SHAPE, SCALE = 10, 1.0, 1.0
PLAIN = nz.VB(accelerate=None)


def rows(quick: bool) -> Iterator[Row]:
    """One thread for times; mean power 1."""
    X, name = recording()
    X = (X[:, :300] if quick else X) / LEVEL
    model = nz.is_nmf(X, RANK, alpha_h=SHAPE, beta_h=SCALE, alpha_w=SHAPE, beta_w=SCALE)
    with threadpool_limits(1):
        yield from iteration(nz.read(model), X, name, 2 if quick else 10)
        yield moments(nz.read(model), 2 if quick else 10)
    yield from convergence(model, name, 20 if quick else 2000)


def iteration(structure: Factorisation, X: np.ndarray, name: str, times: int) -> Iterator[Row]:
    """A plain iteration, and one with momentum, beside the plain one in NumPy and SciPy."""
    *ours, peer = fastest([Stepper(structure, one) for one in (PLAIN, nz.VB())] + [in_numpy(X)], times)
    for label, seconds in zip(("plain", "default (momentum)"), ours, strict=True):
        cost = f"{1e3 * seconds:.1f} ms, {1e9 * seconds / (X.size * RANK):.2f} ns per cell and component"
        work = f"Itakura-Saito VB, one {label} iteration, {name}, K={RANK}"
        yield compare(work, cost, f"{1e3 * peer:.0f} ms (NumPy, SciPy)", peer / seconds)


def in_numpy(X: np.ndarray) -> Callable[[], None]:
    """The same updates on whole matrices."""
    rng = np.random.default_rng(1)
    factors = [[rng.gamma(2.0, size=shape)] * 2 for shape in ((X.shape[0], RANK), (X.shape[1], RANK))]

    def work() -> None:
        for own, other, x in ((0, 1, X), (1, 0, X.T)):
            (mean, harmonic), (mean_other, harmonic_other) = factors[own], factors[other]
            m, low = mean @ mean_other.T, harmonic @ harmonic_other.T
            rho = 2.0 * ((1.0 / m) @ mean_other)
            tau = 2.0 * (SCALE + harmonic**2 * ((x / low**2) @ harmonic_other))
            factors[own] = by_scipy(rho, tau)
            np.sum(np.log(m) + x / low)

    return work


def by_scipy(rho: np.ndarray, tau: np.ndarray) -> list[np.ndarray]:
    """E[v] and 1 / E[1/v] at order -SHAPE."""
    z, ratio = np.sqrt(rho * tau), np.sqrt(tau / rho)
    here = kve(SHAPE, z)
    return [ratio * kve(SHAPE - 1.0, z) / here, ratio * here / kve(SHAPE + 1.0, z)]


def moments(structure: Factorisation, times: int) -> Row:
    """Of all cells of H after some iterations, and their part of the bound."""
    problem = vb.prepare(structure, PLAIN, SERIAL)
    state = vb.init(problem, np.uint64(1), {})
    for _ in range(10):
        state, _ = vb.step(problem, state)
    H, mean = state.H, np.empty_like(state.H.mean)
    harmonic = np.empty_like(mean)
    ours, peer = fastest(
        [
            lambda: fill_gig_moments(mean, harmonic, H.rho, H.tau, problem.orders[1], 0, len(mean)),
            lambda: by_scipy(H.rho, H.tau),
        ],
        times,
    )
    each = [f"{1e9 * seconds / mean.size:.0f} ns" for seconds in (ours, peer)]
    return compare(f"moments of a generalised inverse Gaussian, {mean.size:,} cells", *each, peer / ours)


def convergence(model: pm.Model, name: str, most: int) -> Iterator[Row]:
    """Iterations until the residual is below tol, with momentum and without."""
    for tol in (1e-2, 1e-3, 1e-4):
        found = [iterations(model, replace(PLAIN, accelerate=one), tol, most) for one in ("momentum", None)]
        (ours, bound), (plain, bound_plain) = found
        work = f"Itakura-Saito VB to residual {tol:g}, {name}, K={RANK}"
        peer = f"{plain} without momentum (at most {most}), {bound_plain:.7g}"
        yield note(work, f"{ours} iterations, bound {bound:.7g}", peer)


def iterations(model: pm.Model, options: nz.VB, tol: float, most: int) -> tuple[int, float]:
    """How many it took, and the bound at their end."""
    run = {"search": None, "random_seed": 1, "tol": tol, "max_iter": most, "draws": 1, "quiet": True, "cores": 2}
    idata = nz.fit(engine=options, model=model, **run)
    objective = _compat.group(idata, "fit")["objective"].values[0]
    return len(objective), float(objective[-1])
