# %% [markdown]
# # Missing data: faces
#
# Photographs with a patch cut out, and what a factorisation puts back. On the way: what the shape of a gamma prior
# does to the templates, why maximum likelihood is a poor guess where nothing was seen, and how far the intervals of
# variational Bayes and of Gibbs sampling can be trusted. It follows Cemgil (2009), Bayesian inference for nonnegative
# matrix factorisation models.
#
# What you need to know: what a prior and a posterior are. What you will see: `gamma_nmf` under four priors, missing
# cells as NaN, EM, variational Bayes (VB) and Gibbs on the same faces, `nz.impute`, `nz.snr`, `nz.sparseness`,
# coverage.

# %%
import os
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import gamma

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about iterations that ran out and short chains, explained below
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
SIZE, MANY, FEW = (16, 40, 20) if SMALL else (32, 200, 50)  # of an image; faces, and those of the second half
HOW = {"random_seed": 1, "quiet": True, "cores": 2}

# %% [markdown]
# ## Faces as columns
#
# A face is a column of X, a pixel a row, and the grey level a count. Four hundred faces of forty people, ten of each,
# are in the Olivetti set (AT&T Laboratories Cambridge); we take means of 2 x 2 pixels, rounded. Where they are not at
# hand, this notebook makes its own: soft blobs inside a head, each person with their own amounts of them, which vary
# a little from image to image, and Poisson noise.


# %%
def stand_in(size, people=20, blobs=24):
    """Pixels x images, ten of each person: blobs that add up."""
    rng, (y, x) = np.random.default_rng(1), np.mgrid[:size, :size] / size
    head = ((y - 0.5) / 0.48) ** 2 + ((x - 0.5) / 0.4) ** 2 < 1
    cy, cx, height, width = rng.uniform([[0.1], [0.15], [0.05], [0.05]], [[0.9], [0.85], [0.15], [0.2]], (4, blobs))
    away = ((y[..., None] - cy) / height) ** 2 + ((x[..., None] - cx) / width) ** 2
    parts = ((np.exp(-away / 2) + 0.1) * head[..., None]).reshape(-1, blobs) + 0.02
    person = np.repeat(rng.gamma(0.7, size=(blobs, people)), 10, axis=1)
    mean = parts @ (person * rng.gamma(8.0, 1 / 8.0, person.shape) + 0.1)
    return rng.poisson(110 * mean / mean.mean())


# %%
path = Path(os.environ.get("NMF_ZOO_DATA", "no data")) / "olivetti" / "olivetti.npz"
if path.exists():
    faces, name = np.rint(np.load(path)[f"X{SIZE}"]).astype(int), "Olivetti faces"
else:
    faces, name = stand_in(SIZE), "simulated stand-in: blobs"


def show(ax, image, title="", **how):
    """One image in 16 shades without axes; what is missing is light blue."""
    colours = plt.get_cmap(how.pop("cmap", "gray"), 16).with_extremes(bad="#9ecae1")
    image = image if np.ndim(image) == 2 else np.reshape(image, (SIZE, SIZE))
    drawn = ax.imshow(image, cmap=colours, interpolation="nearest", **how)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=9)
    return drawn


print(f"{name}: {faces.shape[0]} pixels x {faces.shape[1]} images, grey levels up to {faces.max()}")
fig, axes = plt.subplots(1, 10, figsize=(10, 1.2), layout="constrained")
for n, ax in enumerate(axes):
    show(ax, faces[:, 5 * n])
fig.suptitle(f"{name}: two images each of five people", fontsize=10)
plt.show()

# %% [markdown]
# ## What a gamma prior says
#
# Cells of W and H have gamma priors with a shape and a mean. The mean is a matter of units. The shape is the opinion:
# below 1 the density runs to infinity at 0, and of many draws most are next to nothing and a few are large; at 1 it
# is the exponential; far above 1 all draws are about the mean (Cemgil's Fig. 2).

# %%
fig, axes = plt.subplots(1, 4, figsize=(9, 2.2), width_ratios=(1.6, 1, 1, 1), layout="constrained")
rng, at = np.random.default_rng(1), np.linspace(0.001, 3, 600)
for ax, shape, colour in zip(axes[1:], (0.1, 1, 30), (ORANGE, GREEN, BLUE), strict=True):
    axes[0].plot(at, gamma.pdf(at, shape, scale=1 / shape), color=colour, label=f"shape {shape}")
    draws = rng.gamma(shape, 1 / shape, size=60)
    ax.vlines(np.arange(60), 0, draws, color=colour, lw=1.2)
    ax.set(xlabel=f"sparseness {nz.sparseness(draws):.2f}", xticks=[], ylim=(0, None))
    ax.set_title(f"60 draws, shape {shape}", fontsize=10)
axes[0].set(ylim=(0, 2.5), xlabel="value")
axes[0].set_title("densities of mean 1", fontsize=10)
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# `nz.sparseness` (Hoyer 2004) is 1 where a single entry is not 0 and 0 where all are equal.
#
# ## Four opinions about the same faces
#
# So a small shape for W asks for templates that are 0 nearly everywhere: parts. A small shape for H asks for
# faces made of a few templates only, which then have to be whole. As in the paper we fix the two shapes, four times
# over, let VB learn the two means (`nz.free`), and look at the templates.

# %%
SHAPES, RANK = ((10.0, 10.0), (0.1, 0.1), (10.0, 0.2), (0.1, 10.0)), 9 if SMALL else 25
unknown, X, fits, rows = nz.free("all"), faces[:, :MANY], {}, {}
for of_w, of_h in SHAPES:
    model = nz.gamma_nmf(X, RANK, alpha_w=of_w, mean_w=unknown, alpha_h=of_h, mean_h=unknown)
    found = nz.fit(model=model, engine="vb", search=None, max_iter=100 if SMALL else 800, draws=100, **HOW)
    mean = found["posterior"].isel(chain=0).mean("draw")
    W, H = fits[of_w, of_h] = mean["W"].to_numpy(), mean["H"].to_numpy()
    rows[f"{of_w:g}, {of_h:g}"] = {
        "bound, nats": round(float(found["fit"]["objective"].isel(chain=0).dropna("iteration")[-1])),
        "sparseness of W": nz.sparseness(W),
        "sparseness of H": nz.sparseness(H),
        "SNR, dB": nz.snr(X, W @ H),
    }
pd.DataFrame(rows).T.rename_axis("shapes of W, H").round(2)


# %%
def mosaic(tiles):
    """Columns of W as one square image, row by row."""
    side = int(np.sqrt(tiles.shape[1]))
    return tiles.T.reshape(side, side, SIZE, SIZE).transpose(0, 2, 1, 3).reshape(side * SIZE, side * SIZE)


fig, axes = plt.subplots(3, 4, figsize=(9, 5.8), height_ratios=(3, 3, 1.4), layout="constrained")
for column, (shapes, (W, H)) in zip(axes.T, fits.items(), strict=True):
    weighted = W * H[:, 0]
    for ax, tiles in zip(column, (W / W.max(axis=0), weighted / weighted.max()), strict=False):
        show(ax, mosaic(tiles), cmap="gray_r", vmin=0, vmax=1)
    column[0].set_title(f"W {shapes[0]:g}, H {shapes[1]:g}")
    show(column[2], weighted.sum(axis=1), vmin=0, vmax=X.max())
for ax, label in zip(axes[:, 0], ("templates", "times H of face 0", "their sum"), strict=True):
    ax.set_ylabel(label)
plt.show()

# %% [markdown]
# Dark is much; a template that is evenly dark is one that no face uses. A shape of 10 on W leaves whole faces, 0.1
# leaves bits of them; with 10 on W and 0.2 on H a face is made of very few templates. A prior is an opinion and no
# order: with so many counts H is sparser under a shape of 10 than any draw from that prior.
#
# All four describe the faces about equally well (SNR: signal-to-noise ratio, within about a decibel), so one has to
# choose by something else. The bound of the evidence does, and on the real faces its choice is that of the paper:
# sparse templates and dense activations, which is to say parts.
#
# ## Hide
#
# Now the faces of five people, ten images each. In every second image the same patch goes missing, and one pixel in
# twenty of all images with it. To the library a missing cell is a NaN in X, or a False in `mask=` where X is to keep
# its values; the likelihood simply has no term for it.

# %%
truth = faces[:, :FEW]
patch = np.zeros((SIZE, SIZE), dtype=bool)
patch[round(0.35 * SIZE) : round(0.6 * SIZE), round(0.2 * SIZE) : round(0.8 * SIZE)] = True
in_patch = patch.ravel()[:, None] & (np.arange(FEW) % 2 == 1)
scattered = (np.random.default_rng(1).random(truth.shape) < 0.05) & ~in_patch
missing = in_patch | scattered
seen = np.where(missing, np.nan, truth)
print(f"hidden: {in_patch.sum()} pixels in patches and {scattered.sum()} scattered, of {truth.size}")

# %% [markdown]
# ## Three readings of one likelihood
#
# Maximum likelihood (EM) takes the one W H under which the pixels that are left are most probable. VB and Gibbs have
# gamma priors on both factors, here exponential ones (shape 1), and answer with a distribution: VB with the nearest
# one in which W and H are independent, Gibbs with draws. Beside them VB as the paper has it, which learns shapes and
# means from the data.


# %%
def declare(method, rank):
    if method == "ML":
        return nz.poisson_nmf(seen, rank)
    if method == "VB, learned":
        return nz.gamma_nmf(seen, rank, alpha_w=unknown, mean_w=unknown, alpha_h=unknown, mean_h=unknown)
    return nz.gamma_nmf(seen, rank, alpha_w=1.0, mean_w=1.0, alpha_h=1.0, mean_h=np.nanmean(seen) / rank)


def run(method, rank):
    """The result and its model."""
    model = declare(method, rank)
    if method == "Gibbs":
        sweeps = {"tune": 50, "draws": 50} if SMALL else {"tune": 500, "draws": 250}
        return nz.sample(model=model, engine="gibbs", chains=2, **sweeps, **HOW), model
    engine, most = "em" if method == "ML" else "vb", 100 if SMALL else 600
    draws = 1 if method == "ML" else 500
    return nz.fit(model=model, engine=engine, search=None, max_iter=most, draws=draws, **HOW), model


METHODS = {"ML": ORANGE, "VB": BLUE, "VB, learned": "#56B4E9", "Gibbs": GREEN}
RANKS = (2, 4, 8) if SMALL else (4, 8, 16, 32)
began = time.perf_counter()
results = {(method, rank): run(method, rank) for method in METHODS for rank in RANKS}
print(f"{len(results)} fits: {time.perf_counter() - began:.0f} s")
nz.summarise(results["Gibbs", RANKS[-1]][0]).head(6).round(2)

# %% [markdown]
# The table is about the largest of the Gibbs runs, and about what does not depend on the numbering of its templates:
# the log density and some cells of W H. Two chains of a factorisation may sit in different modes, for the whole or
# for a few faces; where R-hat is well above 1 they do, or have not come to rest. Pooled draws then hold both answers,
# which is what we want of a guess, but with two chains not all there are.
#
# ## What is put back
#
# `nz.impute` draws the missing cells from the posterior predictive, as counts: what W H may be, and Poisson noise on
# top. ML has a single W H, and the noise is all that its intervals hold.


# %%
def imputed(method, rank=RANKS[-1]):
    """Draws (hidden cell, draw) of what was hidden."""
    idata, model = results[method, rank]
    if method == "ML":
        W, H = (idata["posterior"][factor].to_numpy()[0, 0] for factor in "WH")
        mean = np.minimum((W @ H)[missing], 1e6)  # it may be anything where nothing was seen
        return np.random.default_rng(1).poisson(mean, size=(500, missing.sum())).T
    return nz.impute(idata, model, random_seed=1).stack(all=("chain", "draw")).to_numpy()


def in_place(values):
    """Values of the hidden cells where they belong, NaN elsewhere."""
    out = np.full(truth.shape, np.nan)
    out[missing] = values
    return out


drawn = {method: imputed(method) for method in METHODS}
guess = {method: in_place(draws.mean(axis=1)) for method, draws in drawn.items()}
spread = {method: in_place(draws.std(axis=1)) for method, draws in drawn.items()}
shown = np.arange(1, FEW, 10)  # the second image of each person
pictures = [truth, seen, *(np.where(missing, guess[method], truth) for method in METHODS)]
pictures += [np.where(missing, in_place(drawn["Gibbs"][:, -1]), truth)]
titles = ["truth", "given", *METHODS, "a draw of Gibbs", "sd, Gibbs"]

# %%
fig, axes = plt.subplots(len(shown), 8, figsize=(10, 1.25 * len(shown) + 0.3), layout="constrained", squeeze=False)
scale = {"vmin": 0, "vmax": np.nanquantile(spread["Gibbs"], 0.99)}
for n, row in zip(shown, axes, strict=True):
    for ax, picture, title in zip(row, pictures, titles, strict=False):
        show(ax, picture[:, n], title if n == shown[0] else "", vmin=0, vmax=np.quantile(truth, 0.999))
    of_sd = show(row[-1], spread["Gibbs"][:, n], titles[-1] if n == shown[0] else "", cmap="viridis", **scale)
fig.colorbar(of_sd, ax=axes[:, -1], fraction=0.05)
plt.show()

# %% [markdown]
# Light blue is missing, or in the last column known. On the real faces ML leaves white holes: with so many templates
# for fifty faces, some serve only faces whose patch is hidden, nothing says what these templates hold there, and to
# the likelihood anything is as good. VB with a learned prior fills some patches with one grey: the templates of that
# face are its own, and in the patch they fall back on their prior. The mean of Gibbs is an average over many
# factorisations and looks the best; a single draw has Poisson noise on top. On the real faces the sd is largest in
# the first row, where the methods differ most.
#
# And the templates behind it, the first five of Gibbs, with their own uncertainty. `nz.align` puts them in falling
# order of what they add.

# %%
posterior, model = results["Gibbs", RANKS[-1]]
nz.plot_components(nz.align(posterior).isel(component=slice(0, 5)), shape=(SIZE, SIZE))

# %% [markdown]
# Below, dark is well known: a template's large pixels, to some tenths; where it holds little, the sd is as large as
# the mean.
#
# ## How near, how sparse, and how many templates

# %%
by_pixel = np.broadcast_to(np.nanmean(seen, axis=1)[:, None], truth.shape)
rows = {"mean of the pixel": {"SNR, patches": nz.snr(truth[in_patch], by_pixel[in_patch])}}
rows["mean of the pixel"]["SNR, scattered"] = nz.snr(truth[scattered], by_pixel[scattered])
for method in METHODS:
    mean = results[method, RANKS[-1]][0]["posterior"].isel(chain=0).mean("draw")
    rows[method] = {
        "SNR, patches": nz.snr(truth[in_patch], guess[method][in_patch]),
        "SNR, scattered": nz.snr(truth[scattered], guess[method][scattered]),
        "sparseness of W": nz.sparseness(mean["W"]),
        "sparseness of H": nz.sparseness(mean["H"]),
    }
pd.DataFrame(rows).T.round(2)

# %%
found = {key: in_place(imputed(*key).mean(axis=1)) for key in results}
fig, axes = plt.subplots(1, 2, figsize=(10, 2.9), sharey=True, layout="constrained")
for ax, cells, title in zip(axes, (in_patch, scattered), ("patches", "scattered pixels"), strict=True):
    for method, colour in METHODS.items():
        values = [nz.snr(truth[cells], found[method, rank][cells]) for rank in RANKS]
        ax.plot(RANKS, values, "o-", color=colour, label=method, ms=4, lw=1.2)
    ax.axhline(nz.snr(truth[cells], by_pixel[cells]), color="0.6", ls="--", lw=1, label="mean of the pixel")
    ax.set(xlabel="templates", title=f"SNR of {title}, dB", xscale="log", ylim=(0, None))
    ax.set_xticks(RANKS, RANKS)
    ax.minorticks_off()
axes[0].legend(frameon=False, fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# The dashed line is the simplest guess, the mean of a pixel over the faces that show it. With few templates all
# methods agree and beat it. With more, ML falls, out of the picture where its error is larger than the signal: it
# fits what it sees ever better, with templates whose hidden parts are arbitrary. A posterior does not need to be told
# how many templates there are: Gibbs with too many is as good as with the right number or better. On the real faces
# VB gains little from more than a few, and learning its priors from the bound makes the guess worse, not better. And
# of all the fits in the table, ML's is the sparsest in both factors together and the worst: sparse is not good in
# itself.
#
# ## Can the intervals be trusted?
#
# A 90% interval is honest if it holds nine hidden pixels in ten, and so on for every other level. And where it is
# wide the error should be large: face by face, the root mean square error against the spread that was announced.


# %%
def coverage(draws, cells):
    """Share of hidden cells inside their central intervals, one for each level."""
    low, high = (np.quantile(draws[cells[missing]], tails, axis=1) for tails in ((1 - LEVELS) / 2, (1 + LEVELS) / 2))
    return ((truth[cells] >= low) & (truth[cells] <= high)).mean(axis=1)


LEVELS = np.linspace(0.1, 0.9, 9)
fig, axes = plt.subplots(1, 3, figsize=(9, 2.9), layout="constrained")
for method, colour in METHODS.items():
    for ax, cells in zip(axes, (in_patch, scattered), strict=False):
        ax.plot(LEVELS, coverage(drawn[method], cells), "o-", color=colour, label=method, ms=3, lw=1.2)
    if method != "ML":
        hidden = np.where(in_patch, (guess[method] - truth) ** 2, np.nan)[:, 1::2]
        announced = np.where(in_patch, spread[method] ** 2, np.nan)[:, 1::2]
        axes[2].plot(*(np.sqrt(np.nanmean(part, axis=0)) for part in (announced, hidden)), "o", color=colour, ms=4)
for ax, title in zip(axes, ("patches", "scattered pixels"), strict=False):
    ax.set(title=f"{title}: share inside", xlabel="level of the interval", xlim=(0, 1), ylim=(0, 1))
axes[2].set(title="patch by patch", xlabel="spread announced", ylabel="error (root mean square)")
for ax in axes:
    ax.axline((0, 0), slope=1, color="0.6", lw=1, zorder=0)
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %%
rows = {}
for method, draws in drawn.items():
    low, high = np.quantile(draws, (0.05, 0.95), axis=1)
    for cells, label in ((in_patch, "patches"), (scattered, "scattered")):
        here = cells[missing]
        inside = np.mean((truth[cells] >= low[here]) & (truth[cells] <= high[here]))
        rows.setdefault(method, {})[f"inside 90%, {label}"] = inside
        rows[method][f"mean width, {label}"] = (high - low)[here].mean()
W, H = (posterior["posterior"][factor].to_numpy()[0, ::10] for factor in "WH")
noise = np.mean(((truth - W @ H) ** 2 / (W @ H))[:, ~missing])
print(f"variance of the seen pixels about W H, where Poisson noise has 1: {noise:.2f}")
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# ML's intervals know of the noise only. Those of VB under the fixed prior are too short at 90%, and patch by patch it
# mostly announces the same spread whether it is about to be right or badly wrong. With a learned prior, on the real
# faces, it does know which patches it filled with grey. The points of Gibbs are nearest to the line, and its 90%
# intervals hold about that many.
#
# All of them rest on the likelihood. Grey levels are no counts: the variance printed above is near 1 for simulated
# images, and below where pixels are quieter than Poisson noise, and then the middle levels hold more pixels than they
# promise. Measured in other units the same declaration would claim other noise: choose units in which variance and
# mean of repeated measurements are alike, or hide some data that you know, as here, and count.
#
# ## Where to go from here
#
# - `nz.plot_reconstruction(posterior, model)` draws the whole table, its mean and the residuals; `nz.predict` draws
#   any cells, seen or not; `nz.project` folds in new faces, with holes too.
# - Notebook 04 chooses the number of templates by the evidence.
# - `python -m benchmarks.papers.cemgil_fig5` and `cemgil_fig6` in the repository have the paper's settings: 36 and
#   100 templates, modes started from VB's priors, and maximum likelihood started at the images, which does far better
#   than from a random start.
