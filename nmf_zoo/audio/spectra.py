"""Short-time Fourier transform and its inverse, block by block in constant memory.

Frame j of a signal x is X_j(f) = sum_n a(n) x(j R - (N - R) + n) exp(-2 pi i f n / N), n < N, with window a (N,) and
hop R; x is 0 before its beginning and after its end, and every sample is in the same number of frames. The inverse adds
s(n) irfft(X_j)(n) at the same places with the dual window s(n) = a(n) / sum_j a(n + j R)^2, so that it returns x
exactly for any hop up to N / 2 (Griffin and Lim 1984, eq. 6). The window is Hann's: what leaks from a loud line falls
by 18 dB an octave. The Itakura-Saito divergence does not care how loud a line is, so faint ones must be their own; the
square root of Hann's window, its own dual at N / 2, leaks 12 dB an octave.

SciPy's ``ShortTimeFFT`` has the same frames and the same dual window; it takes a whole signal, and goes through its
frames in Python.

The power spectrogram is |X_j(f)|^2 / sum_n a(n)^2, the periodogram: white noise of variance v has v at every frequency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal.windows import hann

from nmf_zoo.audio.recordings import Recording, open_recording
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.options import names_checked
from nmf_zoo.structure import Array, spans

WINDOW = 32.0  # milliseconds, as in the paper: 512 samples at 16 kHz
FREQUENCY, TIME = "frequency", "time"


@dataclass(frozen=True)
class Framing:
    """How a signal is cut into frames.

    Attributes
    ----------
    rate : samples per second
    length, hop : N and R, in samples
    """

    rate: int
    length: int
    hop: int

    @cached_property
    def window(self) -> Array:
        """a (N,), of unit energy."""
        shape = hann(self.length, sym=False)
        return shape / np.sqrt(shape @ shape)

    @cached_property
    def dual(self) -> Array:
        """s (N,): that of the synthesis."""
        square = np.zeros(-(-self.length // self.hop) * self.hop)
        square[: self.length] = self.window**2
        overlap = square.reshape(-1, self.hop).sum(axis=0)
        return self.window / np.resize(overlap, self.length)

    @property
    def lead(self) -> int:
        """Zeros before the first sample."""
        return self.length - self.hop

    @property
    def frequencies(self) -> Array:
        """(F,) in Hz, without 0."""
        return np.arange(1, self.length // 2 + 1) * self.rate / self.length

    def n_frames(self, n_samples: int) -> int:
        """Frames that hold at least one of the samples."""
        return (n_samples - 1 + self.lead) // self.hop + 1

    def times(self, frames: Array) -> Array:
        """The middles in s of frames by number."""
        return (frames * self.hop - self.lead + self.length / 2) / self.rate


def make_framing(rate: int, window: float | None = None, hop: float | None = None) -> Framing:
    """A window of about ``window`` milliseconds, up to the next even length that is fast; the default hop is half."""
    for name, value in (("window", window), ("hop", hop)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < np.inf):
            raise InputError(name, repr(value), "milliseconds, a number > 0")
    window = WINDOW if window is None else window
    wanted = round(window * rate / 1000)
    if wanted < 4:
        raise InputError("window", f"{window} ms, {number_of(wanted, 'sample')} at {rate} Hz", "at least 4 samples")
    length = next_fast_len(wanted, real=True)
    while length % 2:
        length = next_fast_len(length + 1, real=True)
    step = length // 2 if hop is None else round(hop * rate / 1000)
    if not 1 <= step <= length // 2:
        got = f"{hop} ms, {number_of(step, 'sample')} at {rate} Hz"
        raise InputError("hop", got, f"1 to {number_of(length // 2, 'sample')}, half of the window")
    return Framing(rate, length, step)


def transform(blocks: Iterable[Array], framing: Framing, size: int) -> Iterator[Array]:
    """Frames (n <= size, N / 2 + 1) of a signal that comes in blocks."""
    held = np.zeros(framing.lead)
    length, hop, number = framing.length, framing.hop, 0
    for block in blocks:
        held, number = np.concatenate([held, block]), number + len(block)
        while len(held) >= length + (size - 1) * hop:
            yield _frames(held, framing, size)
            held = held[size * hop :]
    if number == 0:
        return
    left = framing.n_frames(number) - (number + framing.lead - len(held)) // hop
    held = np.concatenate([held, np.zeros(max(0, length + (left - 1) * hop - len(held)))])
    for first, stop in spans(left, size):
        yield _frames(held[first * hop :], framing, stop - first)


def _frames(held: Array, framing: Framing, n: int) -> Array:
    views = np.lib.stride_tricks.sliding_window_view(held, framing.length)[:: framing.hop][:n]
    return rfft(views * framing.window, axis=1)


class Synthesis:
    """The inverse of :func:`transform`: frames in, as many hops of the signal out, cut to its length."""

    def __init__(self, framing: Framing, n_samples: int):
        self._framing, self._left, self._skip = framing, n_samples, framing.lead
        self._tail = np.zeros(framing.lead)

    def add(self, frames: Array) -> Array:
        """The samples (m,) that no later frame changes, by frames (n, N / 2 + 1)."""
        framing, n = self._framing, len(frames)
        pieces = irfft(frames, framing.length, axis=1) * framing.dual
        out = np.zeros(n * framing.hop + framing.lead)
        out[: framing.lead] = self._tail
        for i, piece in enumerate(pieces):
            out[i * framing.hop : i * framing.hop + framing.length] += piece
        self._tail = out[n * framing.hop :]
        begin = min(self._skip, n * framing.hop)
        end = min(n * framing.hop, begin + self._left)
        self._skip -= begin
        self._left -= end - begin
        return out[begin:end]


def power_of(frames: Array) -> Array:
    """(n, F) power of frames (n, F + 1), without that at 0 Hz."""
    inner = frames[:, 1:]
    return inner.real**2 + inner.imag**2


@names_checked
def power_spectrogram(
    recording: Path | str | Any, rate: int | None = None, *, window: float | None = None, hop: float | None = None
) -> xr.DataArray:
    """The power spectrogram of a recording, as :func:`~nmf_zoo.is_nmf` takes it.

    Parameters
    ----------
    recording : path of a sound file (WAV; others with ``soundfile``), or samples (n,) or (n, channels). Channels are
        mixed down to their mean
    rate : samples per second, of samples
    window, hop : milliseconds; the default window is 32, up to the next length that is fast, the default hop half of it

    Returns
    -------
    DataArray (frequency, time)
        Periodograms ``|STFT|^2 / sum(window^2)`` of frames of a Hann window, in units of full scale squared,
        labelled in Hz and s; without 0 Hz

    Notes
    -----
    Digital silence is a frame of exact zeros, at which the Itakura-Saito divergence is infinite: leave such frames out.

    Examples
    --------
    >>> import numpy as np
    >>> import nmf_zoo as nz
    >>> P = nz.power_spectrogram(np.sin(np.arange(16000)), 16000)
    >>> P.sizes["frequency"], P.sizes["time"]
    (256, 64)
    >>> float(P["frequency"][P.mean("time").argmax("frequency")])  # of sin(n): 16000 / (2 pi) = 2546 Hz
    2531.25
    """
    sound: Recording = open_recording(recording, rate)
    framing = make_framing(sound.rate, window, hop)
    blocks = [power_of(frames) for frames in transform(sound.mono(), framing, 256)]
    if not blocks:
        raise InputError(sound.name, "not a single sample", "a recording")
    power = np.concatenate(blocks).T
    coords = {FREQUENCY: framing.frequencies, TIME: framing.times(np.arange(power.shape[1]))}
    return xr.DataArray(power, coords, (FREQUENCY, TIME), name="power")
