"""Separating a recording: how fast beside the time that it plays, and memory for recordings of different length."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import nmf_zoo as nz
from benchmarks.memory import memory, reset_peak
from benchmarks.rows import Row, at_most, note
from nmf_zoo.audio import learning
from nmf_zoo.audio.samples import FORMATS
from nmf_zoo.audio.wav import WavWriter

RATE = 16000
LONG, SHORT = 600, 300  # seconds of sound; the shorter fills every buffer
ALLOWED = 8.0  # MiB that the longer may take more
QUICK = {"random_seed": 1, "quiet": True, "cores": 1}


def rows(quick: bool) -> Iterator[Row]:
    """The paper's settings on one core; then the defaults; then memory."""
    with tempfile.TemporaryDirectory() as folder:
        path, label = recording(Path(folder), 4 if quick else 60)
        paper = nz.SimulatedOnlineEM(sweeps=400, keep=200, leaps=0)
        yield speed(path, f"the paper's settings (16 ms hop, K=3, L=400, m=200, 1 pass), {label}", paper, passes=1)
        yield speed(path, f"the defaults (L=20, m=15, 2 leaps, 3 passes), {label}", nz.SimulatedOnlineEM(), passes=3)
        yield growth(Path(folder), *((40, 20) if quick else (LONG, SHORT)))


def recording(folder: Path, seconds: int) -> tuple[Path, str]:
    """The jazz recording where it is, else notes and bursts of noise."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
    if "NMF_ZOO_DATA" in os.environ and path.exists():
        return path, "Vibe Ace, 61 s at 22,050 Hz"
    write_sound(folder / "sound.wav", seconds)
    return folder / "sound.wav", f"{seconds} s of simulated notes and bursts at 16 kHz"


def write_sound(path: Path, seconds: int) -> None:
    """Second by second: a tone of another pitch, gated, and bursts of noise."""
    rng, form, t = np.random.default_rng(1), FORMATS["int16"], np.arange(RATE) / RATE
    writer = WavWriter(path, RATE, seconds * RATE, form)
    for _ in range(seconds):
        tone = 0.3 * np.sin(2 * np.pi * rng.choice([220, 330, 440]) * t) * (t % 0.5 < 0.3)
        noise = rng.normal(0, 0.1, RATE) * (t % 0.25 < 0.05) + rng.normal(0, 1e-3, RATE)
        writer.write(np.rint(np.clip(tone + noise, -0.9, 0.9) * form.steps))
    writer.close()


def speed(path: Path, what: str, engine: nz.SimulatedOnlineEM, passes: int) -> Row:
    """CPU seconds against seconds of sound; the first run compiles and is not counted."""
    for _ in range(2):
        began = time.process_time()
        found = nz.separate(path, 3, engine=engine, passes=passes, **QUICK)
        seconds = time.process_time() - began
    plays = found.attrs["seconds_of_sound"]
    ours = f"{seconds:.1f} s, {plays / seconds:.1f} times as fast as it plays"
    return at_most(f"separate, 1 core: {what}", ours, seconds, plays, f"{plays:.1f} s (real time)")


def growth(folder: Path, long: int, short: int) -> Row:
    """Peaks of two processes."""
    if not Path("/proc/self/clear_refs").exists():
        return note("memory of separate", "skipped: needs Linux")
    peaks = peaks_of_processes(folder, (short, long))
    spectrogram = long / 0.016 * 257 * 8 / 2**20
    return at_most(
        f"memory of separate, {long} s of sound at 16 kHz against {short} s",
        f"{peaks[1]:.0f} MiB above the imports against {peaks[0]:.0f}",
        peaks[1] - peaks[0],
        ALLOWED,
        f"at most {ALLOWED:.0f} MiB more",
        f"{spectrogram:.0f} MiB (its power spectrogram)",
    )


def peaks_of_processes(folder: Path, lengths: Sequence[int], buffer: int = learning.BUFFER) -> list[float]:
    """MiB of separations to files, of sounds of so many seconds, each in a process of its own."""
    paths = [folder / f"{seconds}.wav" for seconds in lengths]
    for path, seconds in zip(paths, lengths, strict=True):
        write_sound(path, seconds)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.audio", str(buffer), *map(str, paths)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [float(line) for line in done.stdout.split()]


def measure(buffer: int, paths: Sequence[Path]) -> None:
    """Print each peak above what the process has when kernels are loaded, in MiB; it forks one for each sound."""
    learning.BUFFER = buffer
    engine = nz.SimulatedOnlineEM(sweeps=2, keep=1)
    noise = np.random.default_rng(1).normal(0, 0.1, RATE)
    with tempfile.TemporaryDirectory() as folder:
        nz.separate(noise, 3, Path(folder) / "parts", rate=RATE, engine=engine, passes=1, **QUICK)
    for path in paths:
        if not os.fork():
            reset_peak()
            before = memory("VmRSS")
            nz.separate(path, 3, path.with_suffix(".parts"), engine=engine, passes=1, **QUICK)
            print(memory("VmHWM") - before, flush=True)
            os._exit(0)
        if os.wait()[1]:
            raise SystemExit(f"{path} was not separated")


if __name__ == "__main__":
    measure(int(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
