"""The first pass: the spectral profiles, learnt from the stream of frames; what it saves of itself, and how it goes on.

Online EM takes frames for independent, and its last steps count most. Neighbouring frames are alike, and a recording
ends unlike it began: taken in order, the profiles would be those of its last seconds. So frames go through a buffer
from which they leave in random order; a song fits into it as a whole. W begins at the best of some runs of EM on
frames from all over the recording: what online EM reaches depends on its start. Of five runs none was good for one
seed in ten, on three simulated sources; of ten one was, for every seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from nmf_zoo.audio.sound import BLOCK, Sound
from nmf_zoo.errors import NmfZooWarning
from nmf_zoo.models import is_nmf
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.progress import Watch
from nmf_zoo.streaming.stream import Stream, stream_of, tree_of
from nmf_zoo.structure import Array, slices
from nmf_zoo.verbs.sample_and_fit import fit

TOGETHER = 32  # frames of one update: progress and saves come between two
BUFFER = 1 << 22  # numbers in the buffer that shuffles
SAMPLE, RESTARTS, ITERATIONS = 400, 10, 100  # of the start: frames, runs of EM and how long they are
ORDER, START = 1, 2  # children of the seed


class SavedLearning:
    """Where the stream is saved; without a checkpoint, nowhere."""

    def __init__(self, checkpoint: Checkpoint | None):
        self._part = None if checkpoint is None else checkpoint.part("learning")  # beside the activations

    def load(self, cores: int | None) -> Stream | None:
        """The stream as it was saved last."""
        saved = None if self._part is None else self._part.load()
        if self._part is None or saved is None:
            return None
        with self._part.refused():
            return stream_of(saved.tree, cores)

    def save(self, stream: Stream, *, last: bool = False) -> None:
        """Save if it is time to, or this is the end."""
        if self._part is not None and (last or self._part.is_due()):
            self._part.save(tree_of(stream), {})


def first_profiles(sound: Sound, rank: int, entropy: Any, cores: int | None) -> Array:
    """Where W (F, K) begins."""
    power = np.ascontiguousarray(spread_frames(sound, _generator(entropy, START)).T)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NmfZooWarning)  # an excerpt has its own oddities
        model = is_nmf(power, rank, background=sound.floor)
        seed = int(_generator(entropy, START).integers(2**32))
        best = fit(
            model=model,
            engine="em",
            search=None,
            restarts=RESTARTS,
            max_iter=ITERATIONS,
            random_seed=seed,
            cores=cores,
            quiet=True,
        )
    if best.attrs["status"].startswith("interrupted"):
        raise KeyboardInterrupt
    return best["posterior"]["W"].to_numpy()[0, 0]


def spread_frames(sound: Sound, rng: np.random.Generator) -> Array:
    """(n, F) of at most SAMPLE frames that are not silent: one at random of each of as many equal stretches."""
    n = min(SAMPLE, sound.n_sounding)
    chosen = ((np.arange(n) + rng.random(n)) * (sound.n_sounding / n)).astype(int)
    found, at = [], 0
    for block in sound.sounding(BLOCK):
        here = chosen[(chosen >= at) & (chosen < at + len(block))] - at
        found.append(block[here])
        at += len(block)
    return np.concatenate(found)


def learn(
    sound: Sound, stream: Stream, batch: int, passes: int, entropy: Any, saved: SavedLearning, quiet: bool
) -> bool:
    """Go through the frames ``passes`` times, from where the stream stands; False if Ctrl-C ended that early.

    ``batch`` is that of the engine. Frames come in whole mini-batches, and a stream that goes on skips those that it
    has seen, so that it goes on to the same bits.
    """
    total = passes * sound.n_sounding
    with Watch(not quiet, "learning", 1, total) as watch:
        try:
            for block in _unseen(sound, passes, -(-TOGETHER // batch) * batch, entropy, stream.columns_seen):
                stream.update(block.T)
                watch.report(0, stream.columns_seen, "frames")
                saved.save(stream)
        except KeyboardInterrupt:
            if not stream.columns_seen:
                raise
        if stream.columns_seen >= total:
            watch.report(0, total, "frames", last=True)
    saved.save(stream, last=True)
    return stream.columns_seen >= total


def _unseen(sound: Sound, passes: int, size: int, entropy: Any, seen: int) -> Iterator[Array]:
    """The frames of all passes, each in an order of its own, without the first ``seen``."""
    at = 0
    for number in range(passes):
        rng = _generator(entropy, ORDER, number)
        for block in shuffled(sound.sounding(size), BUFFER // len(sound.lines), rng):
            left = block[max(0, seen - at) :]
            at += len(block)
            if len(left):
                yield left


def shuffled(blocks: Iterator[Array], capacity: int, rng: np.random.Generator) -> Iterator[Array]:
    """Rows of equal blocks, the last may be shorter, in random order by way of a buffer of about ``capacity`` rows.

    Full, the buffer gives as many random rows as come in; in the end it gives all that are left. Blocks keep their
    size.
    """
    buffer, size, room, held = np.empty((0, 0)), 0, 0, 0
    for block in blocks:
        if not size:
            size = len(block)
            room = max(capacity // size, 1) * size
            buffer = np.empty((room + size, block.shape[1]))  # with a place for a last block that is short
        if held < room or len(block) < size:
            buffer[held : held + len(block)] = block
            held += len(block)
            continue
        places = rng.choice(held, size, replace=False)
        out = buffer[places]
        buffer[places] = block
        yield out
    order = rng.permutation(held)
    for part in slices(held, size):
        yield buffer[order[part]]


def _generator(entropy: Any, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key))
