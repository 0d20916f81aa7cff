"""A sweep of composite Gibbs on a power spectrogram, one thread, beside the same sweep in vectorised NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.rows import Row, compare, fastest
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.powers import gibbs
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models import is_nmf
from nmf_zoo.reading import read
from nmf_zoo.runtime.blocks import Block, run_block
from nmf_zoo.runtime.workers import SERIAL

SHAPE, SCALE = 2.0, 1.0  # of both priors
FRAMES_AT_ONCE = 64  # in NumPy: the fastest of 1, 2, 4, ... 64


def rows(quick: bool) -> Iterator[Row]:
    """At the size of the table's row, and at the one where effective draws are compared."""
    times = 3 if quick else 30
    yield sweep((256, 1000), 5, 2.5, sweeps=1, times=times)
    yield sweep((20, 50), 3, None, sweeps=50, times=times)


def sweep(shape: tuple[int, int], rank: int, least: float | None, sweeps: int, times: int) -> Row:
    """Powers of the components, H and W; without moves, which NumPy's sweep does not have."""
    power = simulate(shape, rank)
    works = [ours(power, rank, sweeps), in_numpy(power, rank, sweeps)]
    cells = power.size * rank * sweeps
    own, other = (1e9 * seconds / cells for seconds in fastest(works, times))
    work = f"composite Gibbs sweep, {shape[0]} x {shape[1]}, K={rank}, per cell and component"
    return compare(work, f"{own:.1f} ns", f"{other:.1f} ns (NumPy)", other / own, least)


def simulate(shape: tuple[int, int], rank: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    W, H = SCALE / rng.gamma(SHAPE, size=(shape[0], rank)), SCALE / rng.gamma(SHAPE, size=(rank, shape[1]))
    return rng.exponential(W @ H)


def ours(power: np.ndarray, rank: int, sweeps: int) -> Callable[[], None]:
    """A block of sweeps of the engine."""
    structure = read(is_nmf(power, rank, alpha_h=SHAPE, beta_h=SCALE, alpha_w=SHAPE, beta_w=SCALE))
    problem = gibbs.prepare(structure, Gibbs(moves=(), trajectories="never"), SERIAL)
    state, blocks = gibbs.init(problem, seed_key(1), {}), iter(range(10**9))

    def work() -> None:
        first = sweeps * next(blocks)
        run_block(gibbs.ENGINE, problem, state, seed_key(2), Block(first, first + sweeps, 0, 0, False))

    return work


def in_numpy(power: np.ndarray, rank: int, sweeps: int) -> Callable[[], None]:
    """Components from the prior, corrected for their sum, a few frames at a time in arrays that are used again."""
    rng, (n_frequencies, n_frames) = np.random.default_rng(4), power.shape
    amplitude = np.sqrt(power.T)
    W, H = rng.gamma(2.0, size=(rank, n_frequencies)), rng.gamma(2.0, size=(n_frames, rank))
    c = np.empty((FRAMES_AT_ONCE, rank, n_frequencies), np.complex128)
    variance, size = np.empty(c.shape), np.empty(c.shape)

    def work() -> None:
        for _ in range(sweeps):
            sweep_once()

    def sweep_once() -> None:
        sums = np.zeros(W.shape)
        for first in range(0, n_frames, FRAMES_AT_ONCE):
            n = min(FRAMES_AT_ONCE, n_frames - first)
            frames = slice(first, first + n)
            parts = c[:n].view(np.float64)
            np.multiply(H[frames, :, None], W, out=variance[:n])
            rng.standard_normal(out=parts)
            np.sqrt(np.multiply(variance[:n], 0.5, out=size[:n]), out=size[:n])
            np.multiply(c[:n], size[:n], out=c[:n])
            missing = (amplitude[frames] - c[:n].sum(axis=1)) / variance[:n].sum(axis=1)
            c[:n] += variance[:n] * missing[:, None]
            np.square(parts, out=parts)
            powers = np.add(parts[..., ::2], parts[..., 1::2], out=size[:n])
            scale = SCALE + np.einsum("nkf,kf->nk", powers, 1.0 / W)
            H[frames] = scale / rng.standard_gamma(SHAPE + n_frequencies, scale.shape)
            sums += np.einsum("nkf,nk->kf", powers, 1.0 / H[frames])
        W[:] = (SCALE + sums) / rng.standard_gamma(SHAPE + n_frames, W.shape)

    return work
