"""Recordings: where samples come from, block by block in constant memory, and what is wrong with them.

WAV is read here (:mod:`nmf_zoo.audio.wav`); everything else, FLAC, Ogg, MP3, AIFF and WAV of other codings, by
``soundfile`` where it is installed. Channels are mixed down to their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.audio.samples import FORMATS, SampleFormat
from nmf_zoo.audio.wav import NotOurs, read_blocks, read_layout
from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.files import require_there
from nmf_zoo.structure import Array, slices

OF_LIBRARY = {"PCM_S8": "int16", "PCM_U8": "uint8", "PCM_16": "int16", "PCM_24": "int24", "PCM_32": "int32"}
OF_LIBRARY |= {"FLOAT": "float32", "DOUBLE": "float64", "ULAW": "int16", "ALAW": "int16"}
BLOCK = 1 << 16  # samples that are read at a time
LARGEST = 1e30  # of full scale: no sound, and its power might not be a number


@dataclass(frozen=True)
class Recording:
    """A sound that can be read again and again.

    Attributes
    ----------
    name : its file, or "samples"
    rate : samples per second
    channels : before they are mixed down
    form : of its samples; what only a library reads and has no such format (MP3) counts as float32
    read : blocks (n <= size, channels) of its samples, float64 with full scale 1, from the beginning
    promised : samples of one channel that a header tells of, where only reading shows whether they are there
    """

    name: str
    rate: int
    channels: int
    form: SampleFormat
    read: Callable[[int], Iterator[Array]]
    promised: int = 0

    def mono(self, size: int = BLOCK) -> Iterator[Array]:
        """Blocks (n <= size,) of the mean of the channels."""
        for block in self.read(size):
            yield block[:, 0] if self.channels == 1 else block.mean(axis=1)


def open_recording(source: Any, rate: int | None = None) -> Recording:
    """A recording from the path of a file, or from samples (n,) or (n, channels) and their rate."""
    if isinstance(source, str | Path):
        if rate is not None:
            raise InputError("rate", repr(rate), "None: a file has its own")
        return _of_file(Path(source))
    return _of_samples(source, rate)


def _of_file(path: Path) -> Recording:
    require_there(path, "a sound file")
    if not path.is_file():
        got = "a folder" if path.is_dir() else "a pipe or device, and the recording is gone through several times"
        raise InputError(str(path), got, "a sound file")
    try:
        if path.stat().st_size == 0:
            raise InputError(str(path), "an empty file", "a sound file")
        layout = read_layout(path)
    except OSError as error:
        raise InputError(str(path), f"a file that can't be read ({error.strerror})", "a sound file") from None
    except NotOurs as kind:
        return _of_library(path, str(kind))
    if layout.there < layout.frame:
        raise InputError(str(path), "a WAV file without a single sample", "a recording")
    if layout.promised is not None and layout.there != layout.promised:
        _warn_of_end(str(path), *(n // layout.frame / layout.rate for n in (layout.promised, layout.there)))
    return Recording(str(path), layout.rate, layout.channels, layout.form, lambda size: read_blocks(path, layout, size))


def _warn_of_end(name: str, promised: float, found: float) -> None:
    how = "truncated" if found < promised else "unfinished"
    text = f"{name} is {how}: its header tells of {promised:.2f} s, and {found:.2f} s are there, which are used"
    warn_caller(text)


def _of_library(path: Path, kind: str) -> Recording:
    """By soundfile, if it is there and knows the file."""
    if find_spec("soundfile") is None:
        do = "convert it, or pip install 'nmf_zoo[audio]', which reads FLAC, Ogg, MP3 and more"
        raise InputError(str(path), kind, "WAV of PCM or floating point", do)
    import soundfile

    try:
        info = soundfile.info(str(path))
    except (soundfile.LibsndfileError, RuntimeError) as error:
        text = str(error).rpartition(": ")[2].rstrip(".")
        raise InputError(str(path), f"{kind}, and nothing else that can be read ({text})", "a sound file") from None
    form = FORMATS[OF_LIBRARY.get(info.subtype, "float32")]
    return Recording(
        str(path),
        info.samplerate,
        info.channels,
        form,
        lambda size: _library_blocks(path, size),
        info.frames,
    )


def _library_blocks(path: Path, size: int) -> Iterator[Array]:
    """As far as the file can be decoded."""
    import soundfile

    with soundfile.SoundFile(str(path)) as file:
        while True:
            try:
                block = file.read(size, dtype="float64", always_2d=True)
            except soundfile.LibsndfileError:
                return
            if not len(block):
                return
            yield block


def _of_samples(source: Any, rate: int | None) -> Recording:
    """From memory: integers are of full scale as in a file of their dtype."""
    if not isinstance(rate, int | np.integer) or rate < 1:
        raise InputError("rate", repr(rate), "samples per second, an integer, with samples from memory")
    samples = np.asarray(source)
    samples = samples[:, None] if samples.ndim == 1 else samples
    name = samples.dtype.name if samples.dtype.name in FORMATS else "float64"
    if samples.ndim != 2 or 0 in samples.shape or samples.dtype.kind not in "uif":
        got = f"samples of shape {np.shape(source)} and dtype {samples.dtype}"
        raise InputError("samples", got, "numbers (n,) or (n, channels), n > 0")
    if samples.shape[1] > samples.shape[0]:
        raise InputError("samples", f"shape {samples.shape}", "(n, channels)", "transpose them")
    if name == "float64" and samples.dtype.kind != "f":
        raise InputError("samples", f"dtype {samples.dtype}", f"one of {', '.join(f for f in FORMATS if f != 'int24')}")
    form = FORMATS[name]
    offset, steps = (form.steps if name == "uint8" else 0.0), (1.0 if form.kind == "f" else form.steps)

    def read(size: int) -> Iterator[Array]:
        for part in slices(len(samples), size):
            yield (samples[part].astype(np.float64) - offset) / steps

    return Recording("samples", int(rate), samples.shape[1], form, read)


@dataclass(frozen=True)
class Survey:
    """What a first look at a whole recording finds.

    Attributes
    ----------
    n_samples : of one channel
    power : mean square of the mixed-down samples
    """

    n_samples: int
    power: float


def survey(recording: Recording) -> Survey:
    """Read it once; refuse what can't be separated, warn of what is damaged."""
    number, power, clipped, last = 0, 0.0, 0, np.empty((0, recording.channels))
    for block in recording.read(BLOCK):
        _check_finite(recording, block, number)
        number += len(block)
        mixed = block.mean(axis=1)
        power += float(mixed @ mixed)
        joined = np.concatenate([last, block])  # a sample is compared with the one before it, of another block too
        is_repeated = (np.abs(joined[1:]) >= recording.form.full_scale) & (joined[1:] == joined[:-1])
        clipped, last = clipped + int(np.count_nonzero(is_repeated)), block[-1:]
    if number == 0:
        raise InputError(recording.name, "not a single sample", "a recording")
    if number < recording.promised:
        _warn_of_end(recording.name, *(n / recording.rate for n in (recording.promised, number)))
    if power == 0:
        silent = "silence: every sample is 0" if recording.channels == 1 else "silence: the mean of its channels is 0"
        raise InputError(recording.name, silent, "a recording with sound in it")
    if clipped:
        share = clipped / (number * recording.channels)
        text = f"{recording.name}: {share:.2g} of the samples ({clipped:,}) are clipped (repeated at full scale)"
        warn_caller(f"{text}; what that adds at all frequencies is shared out, too")
    return Survey(number, power / number)


def _check_finite(recording: Recording, block: Array, first: int) -> None:
    bad = ~(np.abs(block) <= LARGEST)
    if bad.any():
        at, channel = np.argwhere(bad)[0]
        got = f"{block[at, channel]} at {(first + at) / recording.rate:.3f} s"
        raise InputError(recording.name, got, "finite samples, of full scale 1", "repair it first")
