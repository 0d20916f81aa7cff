# %% [markdown]
# # Known and new: a catalogue of signatures, and what it lacks
#
# Often a part of the answer is known before: signatures of mutations from earlier tumours, spectra of instruments,
# topics of another corpus. Here some components of W are fixed and others are found beside them: how many are there,
# what do they look like, and how sure is that? The data are counts of mutations in 21 breast cancers, as in the fourth
# notebook. Twelve of the tumours make the catalogue; the other nine, of carriers of a BRCA1 or BRCA2 mutation, are
# then asked what they have besides.
#
# What you need to know: what W and H are (first notebook). What you will see: a refit with a certificate, the number of
# new components by the evidence, their match with a catalogue, and whether a component that we hide is found again.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about short chains at small settings
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
FOLDER = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
RUN = {"random_seed": 1, "cores": 2, "quiet": True}
CHAINS = {"draws": 40 if SMALL else 500, "tune": 40 if SMALL else 500, "chains": 2, **RUN}

# %% [markdown]
# ## The data, and a catalogue that we make ourselves
#
# Published catalogues of signatures have terms of their own and are not part of this library; `known=` takes any table
# with a row for each channel. So that nothing has to be fetched, ours is made of the twelve tumours without a known
# BRCA mutation: it is no list of causes, only what these twelve consist of.

# %%
BRCA = ["PD3890a", "PD3905a", "PD4005a", "PD4006a", "PD4107a", "PD3904a", "PD3945a", "PD4115a", "PD4116a"]


def simulated():
    """Twelve tumours of four signatures, and nine with two more, for a machine without the data."""
    rng = np.random.default_rng(1)
    swaps = [f"{a}>{b}" for a in "CT" for b in "ACGT" if a != b]
    channels = [f"{left}[{swap}]{right}" for swap in swaps for left in "ACGT" for right in "ACGT"]
    signatures, shares = rng.dirichlet(np.full(96, 0.3), 6).T, rng.dirichlet(np.full(6, 0.7), 21).T
    shares[4:, :12] = 0.0
    counts = rng.poisson(signatures @ shares * rng.lognormal(8.6, 0.5, 21))
    return pd.DataFrame(counts, channels, [f"PD{n:04}a" for n in range(12)] + BRCA)


if (FOLDER / "brca21").exists():
    X = pd.read_csv(FOLDER / "brca21" / "brca21_sbs96.tsv", sep="\t", index_col=0)
    name = "21 breast cancers (Nik-Zainal et al., Cell 149, 2012)"
else:
    X, name = simulated(), "a simulated stand-in"
if SMALL:
    X = X.iloc[::6]
carriers, others = X[BRCA], X.drop(columns=BRCA)
print(f"{name}: {others.shape[1]} tumours for the catalogue, {carriers.shape[1]} of carriers, {X.shape[0]} channels")


# %%
def declare(rank, table, **known):
    """Columns of W that sum to about one; H counts mutations."""
    totals = table.sum().to_numpy()
    sizes = {"alpha_w": 0.5, "mean_w": 1 / len(table), "alpha_h": 0.5, "mean_h": totals / rank}
    return nz.gamma_nmf(table, rank, **sizes, **known)


ranks = nz.select_rank(lambda rank: declare(rank, others), range(1, 4 if SMALL else 8), **RUN)
print(ranks.attrs["answer"])
rank = int(ranks.attrs["best"])
learned = nz.unit_sum(nz.align(nz.sample(model=declare(rank, others), engine="gibbs", **CHAINS)))
profiles = learned.posterior["W"].mean(("chain", "draw")).to_numpy()
catalogue = pd.DataFrame(profiles, X.index, [f"S{i}" for i in range(1, rank + 1)])
print(f"a catalogue of {rank} signatures")

# %% [markdown]
# ## Refit: nothing new
#
# With as many known components as `rank`, only H is fitted. Without a prior of H that is a convex problem, and EM says
# how far its answer can be from the optimum at most. How well does the catalogue of the others explain the carriers?

# %%
refit = nz.fit(model=nz.poisson_nmf(carriers, rank, known=catalogue), engine="em", tol=1e-8, max_iter=20_000, **RUN)
print(f"at most {float(refit.fit['duality_gap'][0]):.1g} nats from the optimum")
mean = catalogue.to_numpy() @ refit.posterior["H"].to_numpy()[0, 0]
print(f"off by {np.abs(carriers - mean).to_numpy().sum() / carriers.to_numpy().sum():.0%} of the mutations,", end=" ")
rng = np.random.default_rng(1)
print(f"where counts of that mean would be off by {np.abs(rng.poisson(mean) - mean).sum() / mean.sum():.0%}")

COLOURS = {"C>A": "#56B4E9", "C>G": "#000000", "C>T": "#D55E00", "T>A": "#999999", "T>C": "#009E73", "T>G": "#CC79A7"}
colours = [COLOURS[channel[2:5]] for channel in X.index]


def legend(figure):
    keys = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(keys, COLOURS, ncols=6, loc="outside lower center", frameon=False, fontsize=8)


fig, ax = plt.subplots(figsize=(11, 2.4), layout="constrained")
ax.bar(np.arange(len(X)), (carriers - mean).sum(axis=1), color=colours)
ax.axhline(0, color="0.3", linewidth=0.8)
ax.set(xticks=[], xlabel="channel", ylabel="mutations", xlim=(-1, len(X)))
ax.set_title("carriers: what is there, less what the catalogue explains", fontsize=9, loc="left")
legend(fig)
plt.show()

# %% [markdown]
# ## How many new ones?
#
# The same question as for a rank, with the catalogue in every model: `rank` counts the known components, and the
# smallest is the catalogue alone. A search moves the new components only.

# %%
more = range(rank, rank + (2 if SMALL else 5))
news = nz.select_rank(lambda rank: declare(rank, carriers, known=catalogue), more, **RUN)
print(news.attrs["answer"])
behind = news["combined"] - news["combined"].max()
for total in more:
    print(f"  {total - rank} new: {float(behind.sel(rank=total)):10.1f} nats behind")

# %% [markdown]
# ## The new ones, and whom they resemble
#
# Chains of Gibbs draw the new components with their uncertainty; the known ones stay as they are, and keep their names.
# `nz.match` writes every component as a mixture of entries of the catalogue, with the share that no mixture explains
# and its interval: what is new is not a sum of what was known.

# %%
total = max(int(news.attrs["best"]), rank + 1)
found = nz.sample(model=declare(total, carriers, known=catalogue), engine="gibbs", **CHAINS)
match = nz.match(found, catalogue)
new = [label for label in match.table.index if str(label).startswith("new")]
for label in new:
    row = match.table.loc[label]
    low, high = row["error_low"], row["error_high"]
    print(f"{label}: {row['mixture']}, which misses {row['mixture_error']:.0%} of it ({low:.0%} to {high:.0%})")

# %%
draws = nz.unit_sum(nz.align(found)).posterior["W"].sel(component=new)
fig, axes = plt.subplots(len(new), 1, figsize=(11, 1.8 * len(new)), sharex=True, squeeze=False, layout="constrained")
for ax, label in zip(axes[:, 0], new, strict=True):
    of_one = draws.sel(component=label).to_numpy().reshape(-1, len(X))
    middle, (low, high) = of_one.mean(axis=0), np.quantile(of_one, [0.05, 0.95], axis=0)
    ax.bar(np.arange(len(X)), middle, color=colours)
    ax.vlines(np.arange(len(X)), low, high, color="0.2", linewidth=0.8)
    ax.set_title(f"{label}, with 90 % of its posterior", fontsize=9, loc="left")
axes[-1, 0].set(xticks=[], xlabel="channel", xlim=(-1, len(X)))
legend(fig)
plt.show()

# %% [markdown]
# Is that the catalogue's fault, or would all 21 tumours say the same without one? A second catalogue, of a
# factorisation of all of them with nothing known, as large as what we have now:

# %%
everything = nz.unit_sum(nz.align(nz.sample(model=declare(total, X), engine="gibbs", **CHAINS)))
together = everything.posterior["W"].mean(("chain", "draw")).to_numpy()
together = pd.DataFrame(together, X.index, [f"A{i}" for i in range(1, total + 1)])
with_all = nz.match(found, together)
print(with_all.table[["entry", "cosine", "low", "high"]].to_string(float_format="{:.2f}".format))
nz.plot_match(with_all)

# %% [markdown]
# ## Would a new one be found? One that we hide
#
# To the twelve tumours that made the catalogue we add mutations of a signature that we make up, a tenth of each
# tumour's, and ask for one component beside the catalogue.

# %%
hidden = rng.dirichlet(np.full(len(X), 0.2))
spiked = others + rng.poisson(np.outer(hidden, 0.1 * others.sum()))
beside = nz.sample(model=declare(rank + 1, spiked, known=catalogue), engine="gibbs", **CHAINS)
of_hidden = nz.match(beside, catalogue.assign(hidden=hidden))
row = of_hidden.table.loc["new 1"]
print(f"new 1 is {row['entry']!r}: cosine {row['cosine']:.3f} ({row['low']:.3f} to {row['high']:.3f})")
amount = (beside.posterior["H"] * beside.posterior["W"].sum("feature")).sel(component="new 1").sum("obs")
planted = spiked.to_numpy().sum() - others.to_numpy().sum()
print(f"its mutations: {float(amount.mean()):.0f} ± {float(amount.std()):.0f}, and {planted} were added")
nz.plot_match(of_hidden)

# %% [markdown]
# ## Believed, not fixed
#
# A catalogue has errors of its own. With `known_strength=` every cell of it has a gamma prior around its value instead,
# and the data may move it: a strength of 100 lets a cell differ by a tenth, give or take. Signatures that these tumours
# have little of stay; those that they have much of come nearer to their own. (Nothing is fixed now, so that alignment
# puts components in the order of their size: it is the entry that says which is which.)

# %%
believed = nz.sample(model=declare(total, carriers, known=catalogue, known_strength=100.0), engine="gibbs", **CHAINS)
by_entry = nz.match(believed, catalogue).table.set_index("entry")[["cosine", "low", "high"]]
print(by_entry.loc[catalogue.columns].to_string(float_format="{:.3f}".format))

# %% [markdown]
# ## What remains
#
# A component that is new to this catalogue is not new to the world: a published one may have it. And that the carriers
# need it does not say that BRCA mutations cause it; it says that the twelve others, few as they are, do not contain it.
