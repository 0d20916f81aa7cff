"""Where the sounds of the components go: to WAV files, or into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from nmf_zoo.audio.samples import FORMATS, SampleFormat, whole_steps
from nmf_zoo.audio.wav import WavWriter
from nmf_zoo.errors import InputError, not_one_of, warn_caller
from nmf_zoo.files import check_place
from nmf_zoo.structure import Array

PICTURE, RESULT = "components.png", "components.nc"


class Memory:
    """All samples, (K, n)."""

    def __init__(self) -> None:
        self._parts: list[Array] = []

    def write(self, parts: Array) -> None:
        self._parts.append(parts)

    @property
    def samples(self) -> Array:
        return np.concatenate(self._parts, axis=1)


class Files:
    """A mono WAV file for each component in a folder. Those of integers sum to the rounded recording, step for step."""

    def __init__(self, folder: Path, rank: int, rate: int, n_samples: int, form: SampleFormat):
        self._folder, self._form = folder, form
        self._cut, self._n_samples = np.zeros(rank, int), n_samples
        self._writers = []
        with ExitStack() as stack:  # closes those that were opened when one can't be
            for k in range(rank):
                writer = WavWriter(folder / f"{k}.wav", rate, n_samples, form)
                stack.callback(writer.close)
                self._writers.append(writer)
            self._stack = stack.pop_all()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def write(self, parts: Array) -> None:
        if self._form.kind != "f":
            parts, cut = whole_steps(parts, self._form)
            self._cut += cut
        for writer, samples in zip(self._writers, parts, strict=True):
            writer.write(samples)

    def name(self, order: Sequence[int] | Array) -> None:
        """Give the files their names: component_1.wav is that of ``order[0]``."""
        for place, k in enumerate(order):
            os.replace(self._folder / f"{k}.wav", self._folder / part_name(place))
            if self._cut[k]:
                text = f"{part_name(place)} goes beyond full scale: {self._cut[k]} of its samples were cut"
                warn_caller(f"{text}; the sample format float32 keeps them")


def part_name(place: int) -> str:
    return f"component_{place + 1}.wav"


def choose_format(own: SampleFormat, asked: str | None) -> SampleFormat:
    """That of the recording, unless another is asked for."""
    if asked is None:
        return own
    if asked not in FORMATS:
        raise not_one_of("sample_format", asked, FORMATS)
    return FORMATS[asked]


def check_folder(path: Path, force: bool) -> None:
    """Refuse a folder that can't be made; with ``force`` one that we wrote is replaced, and no other."""
    place = check_place(path, "output")
    if path.exists() and not path.is_dir():
        raise InputError("output", f"{path}, a file", "the name of a folder")
    if place == Path.cwd():
        raise InputError("output", f"{path}, the working folder", "the name of another")
    if not os.access(place.parent, os.W_OK):
        raise InputError("output", str(path), f"a folder that can be written to, and {place.parent} can't")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    others = sorted(name for name in names if not _is_ours(name))
    if others:
        raise InputError("output", f"{path}, which holds {others[0]!r}", "a new folder, or one of earlier components")
    if names and not force:
        raise InputError("output", f"{path}, which exists", "a new name", "or force=True to overwrite it")


def _is_ours(name: str) -> bool:
    number = name.removeprefix("component_").removesuffix(".wav")
    return name in (PICTURE, RESULT) or (number.isdigit() and name == f"component_{number}.wav")
