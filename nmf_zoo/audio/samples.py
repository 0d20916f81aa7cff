"""Samples as files hold them and as numbers: full scale is 1, whatever the format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmf_zoo.structure import Array


@dataclass(frozen=True)
class SampleFormat:
    """How one sample is stored.

    Attributes
    ----------
    name : NumPy's word for it; "int24" is that of three bytes
    kind : "u" unsigned and "i" signed integers, "f" floating point
    width : bytes
    """

    name: str
    kind: str
    width: int

    @property
    def steps(self) -> float:
        """Steps from zero to full scale."""
        return 2.0 ** (8 * self.width - 1)

    @property
    def full_scale(self) -> float:
        """The largest number that an integer format holds; of floating point, 1."""
        return 1.0 if self.kind == "f" else 1.0 - 1.0 / self.steps

    @property
    def rounding(self) -> float:
        """Variance of what rounding to steps adds: white noise, 1/12 of a step squared."""
        return 0.0 if self.kind == "f" else self.steps**-2 / 12.0


FORMATS = {
    name: SampleFormat(name, name[0], int(name.lstrip("uintfloa")) // 8)
    for name in ("uint8", "int16", "int24", "int32", "float32", "float64")
}


def decode(raw: bytes, form: SampleFormat, channels: int) -> Array:
    """(samples, channels) float64 from little-endian bytes; what is left of a last sample is dropped."""
    whole = len(raw) // (form.width * channels) * form.width * channels
    raw = raw[:whole]
    if form.kind == "f":
        with np.errstate(invalid="ignore"):  # signalling NaN: who checks the samples says where they are
            numbers = np.frombuffer(raw, f"<f{form.width}").astype(np.float64)
    elif form.name == "uint8":
        numbers = (np.frombuffer(raw, np.uint8).astype(np.float64) - form.steps) / form.steps
    elif form.name == "int24":  # as the upper three bytes of four
        padded = np.zeros((whole // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        numbers = padded.view("<i4")[:, 0] / (256.0 * form.steps)
    else:
        numbers = np.frombuffer(raw, f"<i{form.width}") / form.steps
    return numbers.reshape(-1, channels)


def encode(numbers: Array, form: SampleFormat) -> bytes:
    """Little-endian bytes of one channel; of integer formats ``numbers`` are whole steps within their range."""
    if form.kind == "f":
        return numbers.astype(f"<f{form.width}").tobytes()
    if form.name == "uint8":
        return (numbers + form.steps).astype(np.uint8).tobytes()
    if form.name == "int24":
        return np.ascontiguousarray(numbers.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3]).tobytes()
    return numbers.astype(f"<i{form.width}").tobytes()


def whole_steps(parts: Array, form: SampleFormat) -> tuple[Array, Array]:
    """``parts`` (K, n) in steps of an integer format so that they sum to their rounded sum, and what was cut.

    The running sums over k are rounded, and their differences taken: each part is off by less than one step, their sum
    by at most half a step, for any K. Steps beyond the format's range are cut; the second value (K,) counts them. What
    is cut goes to the first parts with room for it, so that the sum stays; there is room, since the sum is in range.
    """
    running = np.rint(np.cumsum(parts, axis=0) * form.steps)
    steps = np.diff(running, axis=0, prepend=0.0)
    kept = np.clip(steps, -form.steps, form.steps - 1.0)
    cut = np.count_nonzero(kept != steps, axis=1)
    if cut.any():
        left = running[-1] - kept.sum(axis=0)
        for part in kept:
            taken = np.clip(part + left, -form.steps, form.steps - 1.0) - part
            part += taken
            left -= taken
    return kept, cut
