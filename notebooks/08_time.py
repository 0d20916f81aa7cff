# %% [markdown]
# # Time: topics that rise and fall
#
# 1,491 papers of one conference, from 1987 to 1999, one after the other. Each is a list of word counts; underneath, a
# handful of topics swell and fade. A factorisation whose activations are Markov chains tracks them, with particles,
# in one batch or paper by paper as they come. Without the data (`NMF_ZOO_DATA`) simulated papers stand in; sentences
# that begin with "on the real data" are not about those.
#
# What you need to know: what a Poisson count is. What you will see: `hmm_nmf`, particle filters that look ahead and
# one that does not, uncertainty bands, a forecast that is held against a model without time, and exact inference
# where components are only on or off.

# %%
import gzip
import os
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
from scipy.io import wavfile

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about iterations that ran out, explained below
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999"]  # Okabe and Ito's
plt.rcParams["axes.prop_cycle"] = plt.cycler(color=COLOURS)
FOLDER = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
PAPERS, WORDS, TOPICS = (90, 60, 3) if SMALL else (None, 1000, 8)
PARTICLES, ITERATIONS = (50, 3) if SMALL else (100, 20)


# %% [markdown]
# ## The papers, and which way time runs


# %%
def simulated(n_papers=1500, n_words=1500, n_topics=8):
    """Papers whose topics rise and fall, for a machine without the data."""
    rng = np.random.default_rng(1)
    log_h = np.cumsum(0.03 * rng.normal(size=(n_topics, n_papers)), axis=1) + rng.normal(size=(n_topics, n_papers))
    profiles = rng.dirichlet(np.full(n_words, 0.05), size=n_topics).T
    counts = rng.poisson(profiles @ (60 * np.exp(log_h - log_h.mean())))
    return sp.csr_array(counts), np.array([f"word{f}" for f in range(n_words)])


if (FOLDER / "nips_uci").exists():
    counts = sp.csr_array(sp.load_npz(FOLDER / "nips_uci" / "nips_counts.npz"))
    words = np.array(gzip.decompress((FOLDER / "nips_uci" / "vocab.nips.txt.gz").read_bytes()).decode().split())
    name = "NIPS papers (D. Newman, Bag of Words, UCI, 2008, CC BY 4.0)"
else:
    (counts, words), name = simulated(), "a simulated stand-in"
counts = counts[:, counts.sum(axis=0) >= 100][:, :PAPERS]  # a few papers came with no more than a title
lengths = counts.sum(axis=0)
f"{name}: {counts.shape[1]} papers, {counts.shape[0]} words, {lengths.sum()} counts"


# %% [markdown]
# The file has no dates. That its columns stand in the order of the volumes we infer from the words. Below are those
# whose share of the text falls or rises most over thirteen parts of equal size. On the real data they are the ones
# that anybody would name who was there, and in shuffled order nothing moves as much.


# %%
def trends(order):
    """Slope of each word's root share over thirteen parts, and the shares (per 10,000)."""
    parts = np.array_split(order, 13)
    share = np.stack([1e4 * counts[:, part].sum(axis=1) / lengths[part].sum() for part in parts], axis=1)
    slope = np.sqrt(share) @ (np.arange(13) - 6.0) / 182
    return np.where(counts.sum(axis=1) >= 300, slope, 0.0), share


slope, share = trends(np.arange(counts.shape[1]))
shuffled = trends(np.random.default_rng(1).permutation(counts.shape[1]))[0]
print(f"steepest slope {np.abs(slope).max():.2f}, in shuffled order {np.abs(shuffled).max():.2f}")
fig, axes = plt.subplots(1, 2, figsize=(10, 3), sharex=True)
for ax, sign, title in ((axes[0], 1, "falling most"), (axes[1], -1, "rising most")):
    for f in np.argsort(sign * slope)[:7]:
        ax.plot(np.arange(13) + 0.5, share[f] / share[f].max(), lw=1.2, label=words[f])
    ax.set(title=f"words {title}", xlabel="thirteenth of the columns", ylim=(0, 1.05))
    ax.legend(fontsize=7, loc="lower left" if ax is axes[0] else "upper left", frameon=False)
axes[0].set_ylabel("share of the text / its maximum")
plt.show()

# %% [markdown]
# ## Declare
#
# A time is one paper. Words that more than a third of all papers use say little about topics; of the others we keep
# the thousand most used. `LogNormalAR` says that the logarithm of a topic's activation is an autoregression: it
# returns to its mean, keeps some of where it was, and moves by steps. Persistence and scale of each topic are
# unknown; the mean is 0, which settles the scale that W and H could share in many ways. The prior on W is worth half
# a count for each word.

# %%
used_by = (counts > 0).sum(axis=1)
kept = np.sort(np.argsort(np.where(used_by < 0.35 * counts.shape[1], counts.sum(axis=1), -1))[-WORDS:])
X, vocabulary = counts[kept], words[kept]
COORDS = {"feature": vocabulary}


def chain(persistence):
    return nz.LogNormalAR(mean=0.0, persistence=persistence, scale=nz.free(tie="obs"), initial="stationary")


def declare(x, persistence, **arguments):
    return nz.hmm_nmf(x, TOPICS, chain=chain(persistence), alpha_w=1.5, beta_w=1.0, coords=COORDS, **arguments)


model = declare(X, nz.free(tie="obs"))
print(nz.describe(model))


# %% [markdown]
# ## Fit, by particles
#
# No sum over the activations has a closed form here, so `engine="particle_em"` carries particles through the papers:
# each is a guess at all eight activations. EM alternates between what they say and new profiles W and chain parameters.
# The objective is an estimate and goes up and down a little. The start comes from plain NMF.


# %%
def start(x, restarts=4):
    """W at the scale of the chain's mean: of median activation 1."""
    plain = nz.poisson_nmf(x, TOPICS)
    run = {"restarts": restarts, "search": None, "max_iter": 200, "random_seed": 1, "progressbar": False}
    em = nz.fit(model=plain, engine="em", **run)
    W, H = (em["posterior"][factor].to_numpy()[0, 0] for factor in "WH")
    return {"W": W * np.median(H + 1 / W.sum(axis=0)[:, None], axis=1) + 1e-3}


engine = nz.ParticleEM(particles=PARTICLES, proposal="auxiliary")
run = {"engine": engine, "max_iter": ITERATIONS, "draws": 100, "random_seed": 1, "progressbar": False, "quiet": True}
began = time.perf_counter()
found = nz.fit(model=model, restarts=1, initvals=start(X), **run)
print(f"{time.perf_counter() - began:.0f} s")
fit, posterior = found["fit"], found["posterior"]
W = posterior["W"].to_numpy()[0, 0]
table = pd.DataFrame({name: posterior[name].to_numpy()[0, 0] for name in ("persistence", "scale")}).round(2)
table["words"] = [", ".join(vocabulary[np.argsort(-W[:, k])[:8]]) for k in range(TOPICS)]
pd.set_option("display.max_colwidth", 100)
table

# %% [markdown]
# The trend: each topic's share of the words of a paper, averaged over a thirteenth of the papers at a time. Bands of
# 90 % of the posterior draws of the paths are drawn too; the mean over a hundred papers is known so well that they
# are hardly wider than the lines. On the real data statistics (likelihood, density, mixture) rises from 4 % to a
# third, and speech, hardware and neuroscience lose half or more.

# %%
paths = posterior["H"].to_numpy()[0]  # (draws, topics, papers)
expected = paths * W.sum(axis=0)[:, None]
shares = expected / expected.sum(axis=1, keepdims=True)
SHORT = [", ".join(vocabulary[np.argsort(-W[:, k])[:3]]) for k in range(TOPICS)]


def band(ax, x, draws, colour, label=None):
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    ax.fill_between(x, low, high, color=colour, alpha=0.3, lw=0)
    ax.plot(x, middle, color=colour, lw=1, label=label)


parts = np.array_split(np.arange(X.shape[1]), 13)
trend = np.stack([shares[:, :, part].mean(axis=2) for part in parts], axis=2)
fig, axes = plt.subplots(2, (TOPICS + 1) // 2, figsize=(11, 4.2), sharex=True, sharey=True)
for k, ax in enumerate(axes.flat[:TOPICS]):
    band(ax, np.arange(13) + 0.5, trend[:, k], COLOURS[k])
    ax.set_title(SHORT[k], fontsize=8)
axes[0, 0].set(ylim=(0, None), ylabel="share of a paper")
fig.supxlabel("thirteenth of the papers", fontsize=9)
plt.show()

# %% [markdown]
# Paper by paper it is another picture, for the two topics that persist most. On the real data a topic comes in
# blocks, about one for every year (above), since a volume is printed by subject. Below, the activations themselves,
# in expected counts, of 60 papers: well known where a paper is about the topic, and loosely where it is not, since
# few counts or none say only that there was little.

# %%
steady = np.argsort(-table["persistence"].to_numpy())[:2]
window, close = np.arange(X.shape[1])[:400], np.arange(X.shape[1])[40:100]
fig, axes = plt.subplots(2, 2, figsize=(11, 4.2), sharex="row")
for k, above, below in zip(steady, *axes, strict=True):
    middle = np.median(shares[:, k, window], axis=0)
    above.fill_between(window, middle, color=COLOURS[k], lw=0, step="mid")
    above.set(title=SHORT[k], ylim=(0, 1))
    band(below, close, expected[:, k, close], COLOURS[k])
    below.set(yscale="log", ylim=(0.05, 1000), xlabel="paper")
axes[0, 0].set_ylabel("share of the paper")
axes[1, 0].set_ylabel("expected counts")
plt.show()

# %% [markdown]
# ## Why particles must look ahead
#
# The bootstrap filter moves particles by the chain's law and only then looks at the paper. With hundreds of counts in
# each, nearly all its guesses are far off, and one particle in so many carries all the weight. The proposals
# `"guided"` and `"auxiliary"` look at the paper first. The effective sample size says what is left, and the estimate
# of the log-likelihood what that is worth: its exponential is right on average for all three, so that one far below
# another (on the real data by tens of thousands of nats) has missed nearly everything.

# %%
values = {name: posterior[name].to_numpy()[0, 0] for name in ("W", "persistence", "scale")}
known = pm.do(model, values)
rows, fig = {}, plt.figure(figsize=(6, 2.6))
for proposal, colour in (("bootstrap", "0.6"), ("guided", "#D55E00"), ("auxiliary", "#0072B2")):
    engine_of = nz.ParticleEM(particles=PARTICLES, proposal=proposal)
    began = time.perf_counter()
    passed = nz.fit(model=known, **(run | {"engine": engine_of, "draws": 1}))["fit"]
    size = 100 * passed["ess"].to_numpy().ravel() / PARTICLES
    plt.plot(np.sort(size), color=colour, label=proposal)
    rows[proposal] = {
        "mean ESS, % of the particles": size.mean(),
        "log-likelihood, nats": float(passed["log_likelihood"].squeeze()),
        "s": time.perf_counter() - began,
    }
plt.gca().set(yscale="log", xlabel="papers, from the hardest to the easiest", ylabel="ESS, %", ylim=(0.7, 130))
plt.legend(fontsize=8, loc="center right", frameon=False)
plt.show()
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# `nz.plot_filter` shows the filter itself, here on 60 papers. The line is what is known of an activation when its
# paper has been read, the dots what all papers together say of it afterwards. They nearly coincide: hundreds of
# counts say so much about their own paper that its neighbours have little to add. With short samples they part.

# %%
sixty = nz.fit(model=pm.do(declare(X[:, 40:100], nz.free(tie="obs")), values), **(run | {"draws": 1}))
figure = nz.plot_filter(sixty)
figure.set_dpi(70)
figure

# %% [markdown]
# ## Paper by paper
#
# A stream has no second pass. `ParticleOnlineEM` filters each paper as it comes, carries the sums that EM needs along
# with the particles, moves W and the chain a little, and forgets the paper. It starts from the profiles of plain NMF
# on the first hundred papers. Words such as svm, which nobody used then, find their topics as they come.

# %%
online = nz.ParticleOnlineEM(particles=PARTICLES, proposal="auxiliary", exponent=0.6, burn_in=20)
empty = declare(None, nz.free(tie="obs"), shape=(len(kept), 1))
stream = nz.stream(empty, engine=online, initvals=start(X[:, :100]), random_seed=1)
began, snapshots = time.perf_counter(), {}
for first in range(0, X.shape[1], 50):
    stream.update(X[:, first : first + 50])
    snapshots[stream.columns_seen] = stream.W.to_numpy()
print(f"{X.shape[1]} papers in {time.perf_counter() - began:.0f} s")


def nearness(profiles):
    """Mean cosine between each profile of the batch and the nearest of these."""
    one, other = (V / np.linalg.norm(V, axis=0) for V in (W, profiles))
    return (one.T @ other).max(axis=1).mean()


seen = np.array(list(snapshots))
fig, ax = plt.subplots(figsize=(6, 2.4))
ax.plot(seen, [nearness(snapshots[n]) for n in seen], lw=1.2)
ax.set(xlabel="papers seen", ylim=(0, 1), title="mean cosine of the stream's profiles with those of the batch")
plt.show()

# %%
first_words = {
    f"after {n} papers": [", ".join(vocabulary[np.argsort(-snapshots[n][:, k])[:5]]) for k in range(TOPICS)]
    for n in (seen[min(1, len(seen) - 1)], seen[len(seen) // 2], seen[-1])
}
pd.DataFrame(first_words)

# %% [markdown]
# ## Does time help? The next papers
#
# The test of a model of time is the next paper. Profiles and chains are learnt from the first four fifths only. Then
# the filter goes on, and says before each of the others how probable its counts are, given all papers before it.
# Beside it the same model with persistence 0: every paper a fresh draw, which is NMF without time, fitted the same
# way.
#
# How much there is to win can be told beforehand: were the activations of the paper before known exactly, the next
# ones' entropy would fall by -log(1 - persistence^2) / 2 each.

# %%
n_train = int(0.8 * X.shape[1])
train = X[:, :n_train]


def ahead(persistence, seeds=(1, 2, 3)):
    """Nats per paper of the last fifth, each given all before it: mean and standard error over runs of the filter."""
    learnt = nz.fit(model=declare(train, persistence), restarts=1, initvals=start(train), **run)["posterior"]
    values = {name: learnt[name].to_numpy()[0, 0] for name in ("W", "persistence", "scale") if name in learnt}
    whole, before = (pm.do(declare(x, persistence), values) for x in (X, train))
    once = run | {"draws": 1}
    found = [
        float(nz.fit(model=whole, **(once | {"random_seed": seed}))["fit"]["log_likelihood"].squeeze())
        - float(nz.fit(model=before, **(once | {"random_seed": seed}))["fit"]["log_likelihood"].squeeze())
        for seed in seeds
    ]
    return np.array([np.mean(found), np.std(found, ddof=1) / np.sqrt(len(seeds))]) / (X.shape[1] - n_train)


held_out = {"chain": ahead(nz.free(tie="obs")), "no time": ahead(0.0)}
held_out = pd.DataFrame(held_out, index=["nats per new paper", "±"]).T
gain = held_out.iloc[0, 0] - held_out.iloc[1, 0]
most = -0.5 * np.log1p(-(values["persistence"] ** 2)).sum()
print(f"{X[:, n_train:].sum(axis=0).mean():.0f} counts in a paper")
print(f"time wins {gain:.2f} ± {np.hypot(*held_out['±']):.3f} nats a paper, of at most {most:.2f}")
held_out.round(3)

# %% [markdown]
# On the real data time does help, by two fifths of what it could at most, and that is little beside the 1,146 nats of
# a whole paper: most of its words have to be said whatever its topics are. The chain earns its place where samples
# are short or missing, and where the path itself is the question.
#
# ## On or off: exact
#
# Components that are only on or off have 2^K states, and then nothing needs particles: `hmm_exact` sums over all of
# them, and the most probable path comes from Viterbi's recursion. A vibraphone and a bass, the last quarter of a
# minute of "Vibe Ace" (where it is at hand), as counts: amplitudes of the spectrogram, rounded, with a note that
# sounds or does not.

# %%
path = FOLDER / "audio_vibeace" / "vibe_ace_22050_mono.wav"
if path.exists():
    rate, sound = wavfile.read(path)
    title = '"Vibe Ace", Kevin MacLeod, CC BY 3.0'
else:
    rate, title, rng = 8000, "a simulated stand-in: five notes", np.random.default_rng(1)
    t = np.arange(rate // 4) / rate
    keys = np.sin(2 * np.pi * np.array([[262], [330], [392], [494], [659]]) * t) * np.exp(-3 * t)
    sound = (rng.random((240, 5)) < 0.4) @ keys + 0.001 * rng.normal(size=(240, t.size))
    sound = np.int16(4000 * sound.ravel())
P = nz.power_spectrogram(sound / 32768, rate).sel(frequency=slice(200, 1600), time=slice(44.5, 60))
amplitude = np.sqrt(P.to_numpy())[:, : P.sizes["time"] // 4 * 4].reshape(P.sizes["frequency"], -1, 4).mean(axis=2)
notes = np.rint(30 * amplitude / np.quantile(amplitude, 0.99)).astype(int)
frequency = P.frequency.to_numpy()
each = nz.free(tie="obs")
played = nz.hmm_nmf(notes, 6, chain=nz.BasisChain(p=each, q=each), background=0.1)
began = time.perf_counter()
restarts = {"restarts": 4 if SMALL else 12, "search": None, "max_iter": 150}
restarts |= {"random_seed": 1, "progressbar": False, "quiet": True}
exact = nz.fit(model=played, engine="hmm_exact", **restarts)
print(f"{notes.shape[1]} times, 64 states: {time.perf_counter() - began:.1f} s")
V, best = exact["posterior"]["W"].to_numpy()[0, 0], exact["fit"]["H_best"].to_numpy()[0]
order = np.argsort(frequency @ V / V.sum(axis=0))
fig, axes = plt.subplots(2, 1, figsize=(11, 4.6), sharex=True)
extent = [44.5, 60, frequency[0], frequency[-1]]
axes[0].imshow(np.log1p(notes), origin="lower", aspect="auto", extent=extent, cmap="magma")
axes[0].set(ylabel="Hz", title=title)
extent = [44.5, 60, -0.5, 5.5]
axes[1].imshow(best[order], origin="lower", aspect="auto", extent=extent, cmap="Greys", interpolation="nearest")
axes[1].set(xlabel="s", title="the most probable path of six components, by their loudest frequency", yticks=range(6))
axes[1].set_yticklabels([f"{frequency[V[:, k].argmax()]:.0f} Hz" for k in order])
plt.show()

# %% [markdown]
# ## Where to go from here
#
# - `engine="particle_gibbs"` of `nz.sample` draws W, the chain and the paths from their joint posterior, where the
#   chain's parameters have priors: with it the profiles have bands, too.
# - `stream.save(path)` and `nz.resume_stream(path)` stop and go on, to the same numbers.
# - `nz.UnitChain` is for components between off and on; a missing time is a column of NaN.
