"""Sounds of known sources, and how well they are found again."""

from __future__ import annotations

from itertools import permutations

import numpy as np

RATE = 8000


def gated(n: int, period: float, phase: float, on: float) -> np.ndarray:
    """1 for ``on`` of every ``period`` seconds, 0 else, with soft edges."""
    t = np.arange(n) / RATE
    edge = np.hanning(161)
    return np.convolve(((t + phase) % period < on).astype(float), edge / edge.sum(), "same")


def tone(n: int, hertz: float) -> np.ndarray:
    """Three partials."""
    t = np.arange(n) / RATE
    return sum(np.sin(2 * np.pi * hertz * k * t + k) / k for k in (1, 2, 3))


def three_sources(seconds: float = 12.0, seed: int = 0) -> np.ndarray:
    """(3, n): two tones an octave apart that come and go and share partials, and bursts of noise over both."""
    n = int(seconds * RATE)
    bursts = np.random.default_rng(seed).normal(size=n)
    return np.stack(
        [
            0.15 * tone(n, 330) * gated(n, 0.9, 0.0, 0.5),
            0.12 * tone(n, 660) * gated(n, 1.3, 0.4, 0.6),
            0.1 * bursts * gated(n, 0.55, 0.2, 0.12),
        ]
    )


def distortion(sources: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Signal-to-distortion ratio of every source in dB, parts in the order that suits best."""

    def ratios(order: tuple[int, ...]) -> np.ndarray:
        error = np.sum((sources - parts[list(order)]) ** 2, axis=1)
        return 10 * np.log10(np.sum(sources**2, axis=1) / error)

    return max((ratios(order) for order in permutations(range(len(sources)))), key=np.sum)
