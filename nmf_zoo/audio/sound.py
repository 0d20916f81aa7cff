"""A recording as the model sees it: frames of lines that carry sound, in units of their mean power.

Lines of the transform that hold nothing but the floor of the recording are left out of the model, as above the cut-off
of a lossy format; so is 0 Hz. The floor is the noise that rounding to integers adds, the same at every line, or
``FLOOR`` times the mean power (100 dB less) where that is more. Within the model it is the known background, of no
component: the Itakura-Saito divergence has no bound at zero, and does not care how faint a line is, so that in a song
at 44.1 kHz with nothing above 11 the noise of rounding took one of three components. Lines that are left out are shared
as the nearest line of the model is. A frame below the floor at every line is silent: nothing is learnt from it, its
activations are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nmf_zoo.audio.recordings import Recording, survey
from nmf_zoo.audio.spectra import Framing, power_of, transform
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.structure import Array

FLOOR = 1e-10  # of the mean power
DITHERED = 4.0  # times the floor that a line needs: dither makes the noise of rounding three times that
BLOCK = 256  # frames that are looked at together


class SoundFrames(NamedTuple):
    """Frames one after another: complex (n, N / 2 + 1), powers (n, F) in the model's units, silent (n,), first."""

    complex: Array
    power: Array
    silent: Array
    first: int


@dataclass(frozen=True)
class Sound:
    """A recording, how it is cut into frames, and what a first look at it found.

    Attributes
    ----------
    recording, framing : see there
    n_samples : of one channel
    unit : mean power, which is 1 in the model
    floor : power of the noise in the model's units
    lines : (F,) those of the N / 2 + 1 lines that are in the model
    n_sounding : frames that are not silent
    """

    recording: Recording
    framing: Framing
    n_samples: int
    unit: float
    floor: float
    lines: Array
    n_sounding: int = 0

    @property
    def n_frames(self) -> int:
        return self.framing.n_frames(self.n_samples)

    @property
    def seconds(self) -> float:
        return self.n_samples / self.framing.rate

    @property
    def frequencies(self) -> Array:
        """(F,) in Hz."""
        return self.framing.frequencies[self.lines - 1]

    @cached_property
    def nearest(self) -> Array:
        """(N / 2 + 1,) for every line the place of the nearest one in the model."""
        middles = (self.lines[1:] + self.lines[:-1]) / 2
        return np.searchsorted(middles, np.arange(self.framing.length // 2 + 1))

    def frames(self, size: int = BLOCK) -> Iterator[SoundFrames]:
        """All frames in blocks of ``size``."""
        first = 0
        for spectra in transform(self.recording.mono(), self.framing, size):
            power = power_of(spectra)[:, self.lines - 1] / self.unit
            yield SoundFrames(spectra, power, np.all(power <= self.floor, axis=1), first)
            first += len(power)

    def sounding(self, size: int) -> Iterator[Array]:
        """Powers (size, F) of the frames that are not silent; the last block may be shorter."""
        held = np.empty((0, len(self.lines)))
        for frames in self.frames():
            held = np.concatenate([held, frames.power[~frames.silent]])
            while len(held) >= size:
                yield held[:size]
                held = held[size:]
        if len(held):
            yield held


def listen(recording: Recording, framing: Framing) -> Sound:
    """Go through a recording for what is wrong with it, for its mean spectrum, and for how much of it is silent."""
    found = survey(recording)
    if found.n_samples < framing.length:
        long, window = (1000 * n / framing.rate for n in (found.n_samples, framing.length))
        got = f"{number_of(found.n_samples, 'sample')} ({long:.1f} ms)"
        raise InputError(
            recording.name, got, f"at least one window, {number_of(framing.length, 'sample')} ({window:.1f} ms)"
        )
    total = np.zeros(framing.length // 2)
    for spectra in transform(recording.mono(), framing, BLOCK):
        total += power_of(spectra).sum(axis=0)
    unit = float(total.mean()) / framing.n_frames(found.n_samples)
    if unit <= FLOOR * found.power:
        raise InputError(recording.name, "a constant: all of its power is at 0 Hz", "a recording with sound in it")
    rounding = recording.form.rounding / recording.channels / unit
    lines = 1 + np.flatnonzero(total >= max(FLOOR, DITHERED * rounding) * total.mean())
    if not len(lines):
        got = f"noise at all frequencies, as faint as rounding to {recording.form.name} makes it"
        raise InputError(recording.name, got, "a recording with sound in it")
    sound = Sound(recording, framing, found.n_samples, unit, max(FLOOR, rounding), lines)
    return replace(sound, n_sounding=sum(int((~frames.silent).sum()) for frames in sound.frames()))
