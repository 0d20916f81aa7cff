"""Cappe 2011, Figs. 4 and 5: simulated online EM on a recording, its profiles and what they leave of it.

The paper: 90 s of bass, drums and vibraphone, 5,603 spectra of 256 frequencies every 16 ms, K = 3, alpha = beta = 1,
L = 400 sweeps a frame of which the last m = 200 are kept, smoothing a_n = 1/n, b_n = b/n; frames as they come, once.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly

import nmf_zoo as nz
from benchmarks.papers.filstroff import is_quick, save
from nmf_zoo.audio.learning import first_profiles
from nmf_zoo.audio.parts import SavedActivations, separate_frames
from nmf_zoo.audio.recordings import open_recording
from nmf_zoo.audio.sinks import Memory
from nmf_zoo.audio.sound import Sound, listen
from nmf_zoo.audio.spectra import make_framing

RATE, K, STARTS = 16000, 3, 2
SMOOTHING = (1.0, 1e-9)  # the paper does not give its b; here in units of the mean power of a cell
PAPER = {"exponent": 0.6, "smoothing": SMOOTHING, "leaps": 0, "expand": False, "first_frames": 0}
BANDS = (0, 200, 2000, RATE / 2)  # Hz
COLOURS = ("tab:blue", "tab:red", "tab:green")


class Run(NamedTuple):
    """W (F, K), activations (K, N), sounds (K, samples), shares of energy (K,), CPU seconds, divergence per cell."""

    W: np.ndarray
    H: np.ndarray
    sounds: np.ndarray
    share: np.ndarray
    seconds: tuple[float, float]
    divergence: float


def load(seconds: float | None = None) -> tuple[np.ndarray, str]:
    """Samples at 16 kHz, and what they are."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
    if "NMF_ZOO_DATA" in os.environ and path.exists():
        samples = resample_poly(wavfile.read(path)[1] / 32768.0, 320, 441)
        label = "Vibe Ace (Kevin MacLeod, CC BY 3.0)"
    else:
        samples, label = simulated(20), "simulated bass, noise bursts and struck bars"
    return samples if seconds is None else samples[: int(seconds * RATE)], label


def simulated(seconds: int) -> np.ndarray:
    """A bass note each second, a burst of noise every quarter, a struck bar now and then."""
    rng, t = np.random.default_rng(1), np.arange(RATE) / RATE
    out = []
    for _ in range(seconds):
        bass = sum(np.sin(2 * np.pi * n * rng.choice([55, 65, 82]) * t) / n**2 for n in range(1, 5)) * np.exp(-2 * t)
        burst = rng.normal(size=RATE) * np.exp(-60 * (t % 0.25))
        pitch, begun = rng.choice([392, 523, 659]), rng.random() < 0.7
        bar = begun * (np.sin(2 * np.pi * pitch * t) + 0.3 * np.sin(8 * np.pi * pitch * t)) * np.exp(-3 * t)
        out.append(0.3 * bass + 0.03 * burst + 0.1 * bar + 1e-4 * rng.normal(size=RATE))
    return np.concatenate(out)


def run(sound: Sound, frames: np.ndarray, options: nz.SimulatedOnlineEM, seed: int, W: np.ndarray | None = None) -> Run:
    """Learn from the frames (N, F), then separate the sound; components by the centroid of their profiles."""
    model, start = nz.is_nmf(None, K, shape=(frames.shape[1], 1)), None if W is None else {"W": W}
    stream = nz.stream(model, engine=options, random_seed=seed, initvals=start, cores=1)
    began = time.process_time()
    stream.update(frames.T)
    learnt = time.process_time()
    memory = Memory()
    found = separate_frames(sound, stream, memory, SavedActivations(None), quiet=True)
    seconds = learnt - began, time.process_time() - learnt
    W = stream.W.to_numpy()
    order = np.argsort(sound.frequencies @ (W / W.sum(axis=0)))
    W, H = W[:, order], found.mean[order]
    parts = W, H, memory.samples[order], found.energy[order] / found.energy.sum()
    return Run(*parts, seconds, divergence(sound, W, H))


def divergence(sound: Sound, W: np.ndarray, H: np.ndarray) -> float:
    """Itakura-Saito, per cell of the frames that are not silent."""
    power, sounds = np.concatenate([frames.power for frames in sound.frames()]), H.min(axis=0) > 0
    ratio = power[sounds] / (H[:, sounds].T @ W.T)
    return float(np.mean(ratio - np.log(ratio) - 1))


def report(sound: Sound, name: str, found: Run) -> None:
    """Shares and contents of the components."""
    learnt, separated = found.seconds
    plays = sound.seconds
    print(f"{name}: {learnt:.1f} + {separated:.1f} CPU s for {plays:.1f} s of sound; divergence {found.divergence:.4f}")
    for k in range(K):
        print(f"  {k + 1}: {100 * found.share[k]:.2f} % of the energy; {content(sound, found.sounds[k])};")
        rise, pulse = rhythm(found.H[k])
        print(f"     profile's flatness {flatness(found.W[:, k]):.0f} dB; onsets {rise:.1f} dB, pulse {pulse:.2f}")


def content(sound: Sound, samples: np.ndarray) -> str:
    """Shares of a component's energy by band."""
    power, hz = np.abs(np.fft.rfft(samples)) ** 2, np.fft.rfftfreq(len(samples), 1 / sound.framing.rate)
    shares = [power[(hz >= low) & (hz < high)].sum() / power.sum() for low, high in pairwise(BANDS)]
    return f"{100 * shares[0]:.1f} / {100 * shares[1]:.1f} / {100 * shares[2]:.1f} % below 200, 2,000, 8,000 Hz"


def flatness(profile: np.ndarray) -> float:
    """Geometric over arithmetic mean in dB: 0 for white noise."""
    return float(10 * (np.log10(profile).mean() - np.log10(profile.mean())))


def rhythm(activation: np.ndarray) -> tuple[float, float]:
    """The 95 % quantile of rises from frame to frame in dB, and the highest autocorrelation of rises at 0.2 to 1 s."""
    rises = np.maximum(np.diff(10 * np.log10(activation[activation > 0])), 0.0)
    centred, lags = rises - rises.mean(), range(RATE // 1280, RATE // 256)
    pulse = max(centred[:-lag] @ centred[lag:] for lag in lags) / (centred @ centred)
    return float(np.quantile(rises, 0.95)), float(pulse)


def main() -> None:
    quick = is_quick(__doc__)
    samples, label = load(8 if quick else None)
    sound = listen(open_recording(samples, RATE), make_framing(RATE, None, None))
    frames = np.concatenate(list(sound.sounding(256)))
    sweeps, keep = (40, 20) if quick else (400, 200)
    options = nz.SimulatedOnlineEM(sweeps=sweeps, keep=keep, **PAPER)
    print(f"{label}: {len(frames)} frames of {frames.shape[1]} frequencies every 16 ms; K={K}, alpha=beta=1, ", end="")
    print(f"L={sweeps}, m={keep}, n^-0.6, (a, b)={SMOOTHING}; 1 core")
    runs = compare(sound, frames, options)
    draw_profiles(sound, runs, label)
    draw_sounds(samples, runs, label)


def compare(sound: Sound, frames: np.ndarray, options: nz.SimulatedOnlineEM) -> dict[str, list[Run]]:
    """The paper's way from two kinds of starts; another b; and another order, from a better start."""
    noise = [np.random.default_rng(seed).gamma(2.0, 0.5, (frames.shape[1], K)) for seed in range(STARTS)]
    spectrum = np.exp(np.log(frames).mean(axis=0))[:, None]
    shuffled = frames[np.random.default_rng(1).permutation(len(frames))]
    runs = {
        "in order, from flat noise": [run(sound, frames, options, seed) for seed in range(STARTS)],
        "in order, from the mean spectrum": [run(sound, frames, options, 0, spectrum * W) for W in noise],
        "in random order, from EM": [run(sound, shuffled, options, 0, first_profiles(sound, K, 1, 1))],
    }
    for name, found in runs.items():
        for one in found:
            report(sound, name, one)
    loud = replace(options, smoothing=(1.0, 1e-3))
    print(f"with b = 1e-3: divergence {run(sound, frames, loud, 0, spectrum * noise[0]).divergence:.4f}")
    return runs


def draw_profiles(sound: Sound, runs: dict[str, list[Run]], label: str) -> None:
    """Fig. 4, in dB of a profile's maximum: a column for every way, a line for every start."""
    _, axes = plt.subplots(K, len(runs), figsize=(12, 6), sharex=True, sharey=True)
    for column, (name, found) in zip(axes.T, runs.items(), strict=True):
        for k, colour in enumerate(COLOURS):
            for width, W in zip((1.5, 0.6), (one.W for one in found), strict=False):
                column[k].plot(sound.frequencies, 10 * np.log10(W[:, k] / W[:, k].max()), color=colour, lw=width)
            column[k].set_ylim(-80, 5)
            column[k].set_title(f"{k + 1}, {name}", fontsize=9)
        column[-1].set_xlabel("Hz")
    axes[1, 0].set_ylabel("dB")
    plt.suptitle(label, fontsize=9)
    save("cappe_audio_profiles")


def draw_sounds(samples: np.ndarray, runs: dict[str, list[Run]], label: str) -> None:
    """Fig. 5: the signal and its components of every first start, each to a scale of its own."""
    _, axes = plt.subplots(K + 1, len(runs), figsize=(13, 6.5), sharex=True)
    t = np.arange(len(samples)) / RATE
    for column, (name, (found, *_)) in zip(axes.T, runs.items(), strict=True):
        column[0].plot(t, samples, color="black", lw=0.2)
        column[0].set_title(f"{label}\n{name}", fontsize=8)
        for k, colour in enumerate(COLOURS):
            column[k + 1].plot(t, found.sounds[k], color=colour, lw=0.2)
            column[k + 1].set_title(f"{k + 1}: {100 * found.share[k]:.1f} % of the energy", fontsize=8)
        column[-1].set_xlabel("s")
    save("cappe_audio_sounds")


if __name__ == "__main__":
    main()
