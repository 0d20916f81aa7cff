# %% [markdown]
# # Music: from a recording to its components
#
# A short jazz recording in, three sounds out that sum to it. In between: a power spectrogram, a model that knows what
# a spectrogram is, five engines that fit it, and how sure they are.
#
# What you need to know: what a spectrum is. What you will see: EM on the whole, online EM frame by frame, VB, Gibbs
# and NUTS for the uncertainty, WAV files.

# %%
import io
import os
import tempfile
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Audio, display
from PIL import Image
from scipy.io import wavfile
from scipy.signal import resample_poly

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about short chains and iterations, explained below
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests


# %%
def simulated(rate=16000, seconds=20):
    """A bass note each second, a burst of noise every quarter, a struck bar now and then."""
    rng, t = np.random.default_rng(1), np.arange(rate) / rate
    out = []
    for _ in range(seconds):
        bass, bar = rng.choice([55, 65, 82]), rng.choice([392, 523, 659])
        low = sum(np.sin(2 * np.pi * n * bass * t) / n**2 for n in range(1, 5)) * np.exp(-2 * t)
        burst = rng.normal(size=rate) * np.exp(-60 * (t % 0.25))
        struck = (np.sin(2 * np.pi * bar * t) + 0.3 * np.sin(8 * np.pi * bar * t)) * np.exp(-3 * t)
        out.append(0.3 * low + 0.03 * burst + 0.1 * (rng.random() < 0.7) * struck + 1e-4 * rng.normal(size=rate))
    return rate, np.int16(np.concatenate(out) * 32767)


path = Path(os.environ.get("NMF_ZOO_DATA", "no data")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
if path.exists():
    (rate, samples), name = wavfile.read(path), '"Vibe Ace", Kevin MacLeod, CC BY 3.0'
else:
    (rate, samples), name = simulated(), "a simulated stand-in: bass, noise bursts, struck bars"
samples = samples[: 12 * rate] if SMALL else samples
f"{name}: {len(samples) / rate:.1f} s at {rate} Hz, {samples.dtype}"

# %% [markdown]
# ## The power spectrogram
#
# `nz.power_spectrogram` cuts the sound into overlapping windows of 32 ms and takes the power of each at every
# frequency. The result carries Hz and seconds as labels. We keep what lies below 8 kHz and divide by the mean: powers
# of a recording have no unit that matters. Digital silence has no logarithm, so silent frames are left out, and what
# is left gets a floor 100 dB below the mean.

# %%
P = nz.power_spectrogram(samples, rate).sel(frequency=slice(0, 8000))
P = P / P.mean()
P = P.isel(time=(P > 1e-10).any("frequency").to_numpy()).clip(min=1e-10)


def decibel(power):
    return 10 * np.log10(np.maximum(power, 1e-30))


def show(axes, power, title):
    """Decibels over s and Hz."""
    extent = [float(P.time[0]), float(P.time[-1]), 0, 8000]
    how = {"vmin": -70, "vmax": 20, "cmap": plt.get_cmap("magma", 9), "interpolation": "nearest"}
    drawn = axes.imshow(decibel(power), origin="lower", aspect="auto", extent=extent, **how)
    plt.colorbar(drawn, ax=axes, pad=0.02)
    axes.set(xlabel="s", ylabel="Hz", title=title)


fig, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
show(axes, P.to_numpy(), f"power in dB: {P.sizes['frequency']} frequencies, {P.sizes['time']} frames")
plt.show()

# %% [markdown]
# ## Declare
#
# Add independent sounds, and in each cell of the spectrogram their *expected* powers add up: W H. The power that is
# measured there is exponential with that mean — that is what the periodogram of noise does. `is_nmf` says this as a
# plain `pm.Model`: `W` are the spectral profiles of the components, `H` says how strongly each sounds in a frame.

# %%
RANK = 3
model = nz.is_nmf(P, RANK)
nz.check(model)  # what was read from the graph has PyMC's own log density
print(nz.describe(model))

# %% [markdown]
# ## EM in seconds, and why Itakura-Saito
#
# The likelihood of exponential cells is the Itakura-Saito divergence, x/m - log(x/m) - 1: it sees ratios only. A cell
# at -60 dB counts as much as one at 0 dB, which is how we hear. Squared error, or the Poisson likelihood of counts,
# look at the loudest cells and at little else.

# %%
began = time.perf_counter()
starts, most = (1, 30) if SMALL else (4, 200)
run = {"search": None, "random_seed": 1, "progressbar": False}
em = nz.fit(model=model, engine="em", restarts=starts, max_iter=most, **run)
seconds = time.perf_counter() - began
W, H = (em["posterior"][factor].to_numpy()[0, 0] for factor in "WH")

x, m = P.to_numpy(), W @ H
losses = {
    "squared error": (x - m) ** 2,
    "Poisson (KL)": x * np.log(x / m) - x + m,
    "Itakura-Saito": x / m - np.log(x / m) - 1,
}
loud = x >= np.quantile(x, 0.99)
print(f"{starts} starts of EM, {em['fit'].sizes['iteration']} iterations at the most: {seconds:.1f} s")
shares = {name: f"{loss[loud].sum() / loss.sum():.1%}" for name, loss in losses.items()}
pd.Series(shares, name="from the loudest 1% of cells")

# %%
COLOURS = ("#0072B2", "#D55E00", "#009E73")


def profiles(axes, W, title, **kind):
    """Profiles in dB below their maximum."""
    for k, colour in enumerate(COLOURS):
        axes.plot(P.frequency, decibel(W[:, k] / W[:, k].max()), color=colour, label=f"component {k + 1}", **kind)
    axes.set(xlabel="Hz", ylim=(-80, 3), title=title)


def by_brightness(W):
    """Components by their share of power above 5 kHz: they have no order of their own."""
    return np.argsort(W[P.frequency.to_numpy() > 5000].sum(axis=0) / W.sum(axis=0))


order = by_brightness(W)
W, H = W[:, order], H[order]
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), width_ratios=(1, 1.6))
profiles(left, W, "profiles by EM, dB", lw=1)
left.legend(fontsize=7)
for k, colour in enumerate(COLOURS):
    power = np.convolve(decibel(W[:, k].mean() * H[k]), np.ones(15) / 15, "valid")
    right.plot(P.time[7:-7], power, color=colour, lw=0.8)
right.set(xlabel="s", ylim=(-60, 25), title="power of each component, dB (smoothed)")
plt.show()

# %% [markdown]
# Components 1 and 2 of "Vibe Ace" share bass and vibraphone; component 3 is broad, beats, and sounds from 7 to 44 s
# only: the drums.
#
# ## Frame by frame
#
# A stream needs no spectrogram in memory: `nz.stream` takes one frame, draws its activations by a short Gibbs run,
# moves W a little, and forgets it (simulated online EM; Cappé, Févotte and Rohde 2011). It starts from a quick fit to
# the first hundred frames, so that it is close early. Frames are taken for independent and the last ones count most,
# so they come in random order here, as `nz.separate` does it; in order of time, the profiles would be those of the
# last seconds.

# %%
engine = nz.SimulatedOnlineEM(sweeps=20, keep=15, leaps=2)
empty = nz.is_nmf(None, RANK, shape=(P.sizes["frequency"], 1), coords={"feature": P.frequency.to_numpy()})
stream = nz.stream(empty, engine=engine, random_seed=1)
shuffled = x[:, np.random.default_rng(1).permutation(x.shape[1])]

after, paths, began = (100, x.shape[1] // 4, x.shape[1]), [], time.perf_counter()
for n in after:
    stream.update(shuffled[:, stream.columns_seen : n])
    ratio = x / (stream.W.to_numpy() @ stream.activations(x)["H_mean"].to_numpy())  # a second pass, under this W
    paths.append((stream.W.to_numpy(), np.mean(ratio - np.log(ratio) - 1)))
seconds, by_em = time.perf_counter() - began, losses["Itakura-Saito"].mean()
print(f"{seconds:.1f} s, with the second passes; divergences per cell below, EM's is {by_em:.3f}")
fig, axes = plt.subplots(1, 3, figsize=(10, 2.6), sharey=True)
for ax, n, (found, divergence) in zip(axes, after, paths, strict=True):
    profiles(ax, found[:, by_brightness(found)], f"{n} frames: {divergence:.3f}", lw=1)
plt.show()

# %% [markdown]
# ## How sure are we?
#
# EM and its online form give a point. `nz.sample` draws from the posterior of the same declaration. On an excerpt of
# two seconds below 2 kHz, with two components and a prior on the profiles that pins their scale:

# %%
excerpt = P.sel(time=slice(8, 10), frequency=slice(0, 2000))
excerpt = (excerpt / excerpt.mean()).assign_coords(time=excerpt.time.to_numpy().round(2))
small = nz.is_nmf(excerpt, 2, alpha_w=1.0, beta_w=0.01)
draws = 50 if SMALL else 1000
gibbs = nz.sample(draws, model=small, engine="gibbs", tune=draws, chains=2, random_seed=1, progressbar=False)
vb = nz.fit(model=small, engine="vb", restarts=4, max_iter=500, draws=draws, **run)
print(f"{excerpt.sizes['frequency']} x {excerpt.sizes['time']}: {float(gibbs.attrs['seconds']):.1f} s")
nz.summarise(gibbs).head(6).round(3)


# %% [markdown]
# Components may be numbered differently from chain to chain, so convergence is judged on what does not depend on
# numbers: the log density and cells of W H. The bands below are those of one profile, 90% of the posterior, in one
# chain. Variational Bayes is fast and too sure of itself: its bands are the narrower ones, and the cell below prints
# by how much.


# %%
def bands(idata):
    """5%, 50% and 95% of the profiles of one chain, (3, F, K), of sum one, by their centroids."""
    draws = idata["posterior"]["W"].to_numpy()[0]
    draws = draws / draws.sum(axis=1, keepdims=True)
    draws = draws[:, :, np.argsort(excerpt.frequency.to_numpy() @ draws.mean(axis=0))]
    return decibel(np.quantile(draws, [0.05, 0.5, 0.95], axis=0))


fig, axes = plt.subplots(1, 2, figsize=(10, 2.8), sharey=True)
widths = {}
for result, label, colour in ((gibbs, "Gibbs", COLOURS[0]), (vb, "VB", COLOURS[1])):
    low, middle, high = bands(result)
    widths[label] = (high - low).mean()
    for k, ax in enumerate(axes):
        ax.fill_between(excerpt.frequency, low[:, k], high[:, k], color=colour, alpha=0.4, lw=0, label=f"{label}, 90%")
        ax.plot(excerpt.frequency, middle[:, k], color=colour, lw=0.8)
        ax.set(xlabel="Hz", title=f"profile {k + 1} of the excerpt, dB")
axes[0].legend(fontsize=7)
print(f"mean width of the bands: Gibbs {widths['Gibbs']:.1f} dB, VB {widths['VB']:.1f} dB")
plt.show()

# %% [markdown]
# Being sure of the profiles is not being right about the sound. `nz.plot_reconstruction` shows whether cells lie
# where the model expects them. An exponential cell is anything from a twentieth to three times its mean, so intervals
# are wide, and have to be.

# %%
nz.plot_reconstruction(gibbs, small)

# %% [markdown]
# Red blocks among the residuals are notes that neither component has. On the real recording some frames have far
# fewer than nine cells in ten inside: two components are too few for it.
#
# NUTS needs no conjugacy and is slow. On a tiny cut it should agree with Gibbs: they share nothing but the
# declaration. `nz.compare_engines` runs both, says how many effective draws each makes in a second, and whether their
# means and spreads differ by more than chance (`agrees`).

# %%
tiny = excerpt.isel(frequency=slice(0, 12), time=slice(0, 24))
cut = nz.is_nmf(tiny / tiny.mean(), 2, alpha_w=2.0, beta_w=1.0)
compared = nz.compare_engines(cut, ["gibbs", "nuts"], draws=draws, tune=draws, chains=2, random_seed=1)
compared.table[["seconds", "ess_bulk", "ess_bulk_per_second", "rhat", "lp", "distance", "z", "agrees"]].round(2)

# %%
nz.plot_comparison(compared)

# %% [markdown]
# ## From sound to sound
#
# `nz.separate` does all of it in constant memory: it learns the profiles online, in a few passes, then gives each
# component its share of every cell (the Wiener filter) and transforms back. The WAV files sum to the recording, step
# for step.

# %%
folder = Path(tempfile.mkdtemp()) / "parts"
found = nz.separate(samples, RANK, folder, rate=rate, passes=1 if SMALL else 3, random_seed=1, quiet=True)
parts = [wavfile.read(folder / f"component_{k + 1}.wav")[1].astype(int) for k in range(RANK)]
print("shares of the energy:", ", ".join(f"{share:.1%}" for share in found["share"].to_numpy()))
print("largest difference of their sum from the recording:", int(np.abs(sum(parts) - samples).max()))
Image.open(folder / "components.png").quantize(32)


# %%
def player(sound, begin=8, seconds=3):
    """A few seconds at 8 kHz and 8 bits, as loud as they go: small, and no measure of how it sounds in the files."""
    cut = resample_poly(sound[begin * rate : (begin + seconds) * rate] / 32768, 8000, rate)
    buffer = io.BytesIO()
    wavfile.write(buffer, 8000, np.uint8(np.round(128 + 127 * cut / np.abs(cut).max())))
    return Audio(buffer.getvalue())


for sound in (samples, *parts):  # the recording, then its components
    display(player(sound))

# %% [markdown]
# Do not expect instruments. Each component has *one* spectrum, so it is a timbre at a pitch: percussion, whose
# spectrum stays the same, is what three components find best; a melody needs one for each of its notes. Higher ranks,
# added up afterwards, come closer.
#
# ## Where to go from here
#
# - From the shell: `nmf-zoo separate song.wav --rank 3 -o parts/` writes the WAV files, `components.png` and
#   `components.nc`.
# - `nz.SimulatedOnlineEM(sweeps=400, keep=200, leaps=0, first_frames=0)` is nearly the paper's algorithm at its
#   settings; `stream.save(path)` and `nz.resume_stream(path)` go on later, bit for bit.
# - `background=` of `nz.is_nmf` is a known noise floor, `mask=` hides cells, `nz.project` folds in frames of another
#   recording.
