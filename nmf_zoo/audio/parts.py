"""The second pass: activations, the components' shares of every frame, and their sounds.

Component k of a frame is its spectrum times w_fk h_kn / sum_j w_fj h_jn, with h the posterior mean of the activations
under the final W: the Wiener filter of the composite model (Fevotte, Bertin and Durrieu 2009). The shares of a line sum
to one, so that the components sum to the recording. Posterior means of the shares themselves sound the same: they were
within 0.2 dB, and no better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nmf_zoo.audio.sound import BLOCK, Sound, SoundFrames
from nmf_zoo.audio.spectra import Synthesis
from nmf_zoo.runtime.checkpoint import RunFiles
from nmf_zoo.runtime.progress import Watch
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each, require
from nmf_zoo.streaming.stream import Stream
from nmf_zoo.structure import Array

NOTHING = 1e-290  # added to every component's power, so that shares sum to one where all are zero
MOST_TIMES = 4096  # of the activations in a result: those of a longer recording are averaged over neighbours


class Sink(Protocol):
    """Where sounds go."""

    def write(self, parts: Array) -> None:
        """Take the next samples (K, n) of the components."""


@dataclass
class Found:
    """What the second pass finds beside the sounds.

    Attributes
    ----------
    mean, variance : (K, n_times) of the activations, averaged over the frames of a time
    counts : (n_times,) how many frames these are
    energy : (K,) of the components' shares of the recording's power
    """

    mean: Array
    variance: Array
    counts: Array
    energy: Array

    @property
    def middles(self) -> Array:
        """(n_times,) numbers of the frames in the middle of each time, halves between two."""
        return np.cumsum(self.counts) - (self.counts + 1) / 2

    @property
    def order(self) -> Array:
        """The components by falling energy."""
        return np.argsort(-self.energy, kind="stable")


class SavedActivations:
    """Activations of the blocks that are done: (mean, sd), (K, n) each; without a checkpoint, none."""

    def __init__(self, part: RunFiles | None):
        self._part, self._new, self._done = part, [], 0  # type: ignore[var-annotated]

    def load(self, rank: int, n_frames: int) -> Iterator[tuple[Array, Array]]:
        """Those that were saved, block by block."""
        saved = None if self._part is None else self._part.load({"blocks": int})
        if self._part is None or saved is None:
            return
        self._done = saved.tree["blocks"]
        first, each = 0, Each([np.ndarray, np.ndarray])
        for block in (block for rows in saved.rows({"blocks": each}) for block in rows["blocks"]):
            with self._part.refused():
                require(block, [ArrayPattern("f", (rank, min(BLOCK, n_frames - first)))] * 2, f"block {first // BLOCK}")
            first += BLOCK
            yield block

    def add(self, block: tuple[Array, Array]) -> None:
        """Save if it is time to."""
        if self._part is None:
            return
        self._new.append(list(block))
        if self._part.is_due() and self._part.save({"blocks": self._done + len(self._new)}, {"blocks": self._new}):
            self._done, self._new = self._done + len(self._new), []


def separate_frames(sound: Sound, stream: Stream, sink: Sink, saved: SavedActivations, quiet: bool) -> Found:
    """Go through the frames once; the components' samples go to ``sink``."""
    W, stride = stream.W.to_numpy(), -(-sound.n_frames // MOST_TIMES)
    rank, counts = W.shape[1], np.full(-(-sound.n_frames // stride), stride)
    counts[-1] -= counts.sum() - sound.n_frames
    found = Found(np.zeros((rank, len(counts))), np.zeros((rank, len(counts))), counts, np.zeros(rank))
    voices = [Synthesis(sound.framing, sound.n_samples) for _ in range(rank)]
    known = saved.load(rank, sound.n_frames)
    with Watch(not quiet, "separating", 1, sound.n_frames) as watch:
        for frames in sound.frames(BLOCK):
            block = next(known, None)
            if block is None:
                block = activations_of(stream, frames)
                saved.add(block)
            sink.write(_split(sound, frames, W, block[0], voices, found.energy))
            _add(found, frames.first, stride, *block)
            watch.report(0, frames.first + len(frames.power), "frames", last=False)
        watch.report(0, sound.n_frames, "frames", last=True)
    return found


def activations_of(stream: Stream, frames: SoundFrames) -> tuple[Array, Array]:
    """(mean, sd), (K, n) each, under the stream's W; zero where the recording is silent."""
    found = stream.activations(frames.power.T, first=frames.first)
    sounds = ~frames.silent
    return found["H_mean"].to_numpy() * sounds, found["H_sd"].to_numpy() * sounds


def _split(sound: Sound, frames: SoundFrames, W: Array, H: Array, voices: list[Synthesis], energy: Array) -> Array:
    """Samples (K, m) of the components; adds to their energies (K,)."""
    H = np.where(frames.silent, 1.0, H)  # what is left below the floor, and at 0 Hz, must be somewhere, too
    total = H.T @ W.T + len(H) * NOTHING
    parts = []
    for k, voice in enumerate(voices):
        share = (H[k][:, None] * W[:, k] + NOTHING) / total
        energy[k] += np.sum(share * frames.power, where=~frames.silent[:, None])
        parts.append(voice.add(frames.complex * share[:, sound.nearest]))
    return np.stack(parts)


def _add(found: Found, first: int, stride: int, mean: Array, sd: Array) -> None:
    at = (first + np.arange(mean.shape[1])) // stride
    for k in range(len(mean)):
        np.add.at(found.mean[k], at, mean[k] / found.counts[at])
        np.add.at(found.variance[k], at, sd[k] ** 2 / found.counts[at])
