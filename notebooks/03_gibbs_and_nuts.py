# %% [markdown]
# # Gibbs against NUTS, honestly
#
# One declaration, two ways to draw from its posterior: our Gibbs sampler and NUTS, PyMC's general one. Here they meet
# on several tables. You get what each costs, whether they agree, where NUTS is the better choice, and what to do
# where neither helps.
#
# What you need to know: what MCMC, R-hat and effective sample size are. What you will see: comparison tables, R-hat
# before and after components are put in order, and a posterior with several modes.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about short chains; the tables say it with numbers
pd.set_option("display.width", 110)
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"
DATA = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
HOW = {"draws": 50 if SMALL else 1000, "tune": 50 if SMALL else 1000, "chains": 2, "cores": 2, "random_seed": 1}
PYMC = nz.NUTS(sampler="pymc")
NUTS = nz.Gibbs(moves=()) if SMALL else "nuts"  # nutpie where there is one, else PyMC's; small: no time to compile


def counts(features, samples, rank, level, shape=1.0):
    """A table simulated with gamma factors and a mean count."""
    rng = np.random.default_rng(1)
    mean = rng.gamma(shape, size=(features, rank)) @ rng.gamma(shape, size=(rank, samples))
    return rng.poisson(mean * level / mean.mean())


# %% [markdown]
# ## Do they agree, and at what price?
#
# `nz.compare_engines` runs engines one after the other on one declaration. NUTS comes twice: *nutpie* is a
# re-implementation in Rust, `NUTS(sampler="pymc")` is PyMC's own. Variational Bayes is no sampler of the posterior,
# and a good comparison should notice.

# %%
model = nz.gamma_nmf(counts(20, 40, 2, 4.0), rank=2, mean_h=4.0)
engines = ["gibbs", "vb", PYMC] if SMALL else ["gibbs", "vb", "nuts", PYMC]
found = nz.compare_engines(model, engines, **{**HOW, "draws": 100 if SMALL else 2000})
COSTS = ["seconds", "compiling", "ess_bulk", "ess_bulk_per_second", "rhat", "rhat_aligned"]
found.table[COSTS].round(2)

# %% [markdown]
# `seconds` is the whole call. For NUTS most of it can be `compiling`: PyMC translates the model anew in every call,
# while our loops are compiled once and kept on disk. Rates leave that out; what remains is warm-up and draws. Bulk
# ESS is the least over `lp` and 32 cells of W H, which do not care how components are numbered.

# %%
found.table[["lp", "distance", "spread", "z", "agrees"]].round(2)

# %% [markdown]
# `distance` is the worst difference of a posterior mean of W H from the first sampler's, in posterior standard
# deviations; `spread` the worst ratio of standard deviations. `z` puts differences in Monte-Carlo standard errors,
# for means and spreads of all 33 quantities at once, and `agrees` asks whether equal posteriors would give such a `z`
# by chance. The threshold is for 1 comparison in 100; in simulations false alarms were 0.5 to 2 %. With less than 100
# effective draws of any quantity there is no verdict: an answer would be a guess.

# %%
nz.plot_comparison(found)

# %% [markdown]
# VB is quick, and its posterior is another one: too narrow (`spread` well below 1). That is what a factorised
# approximation does, and why it is drawn in colour.
#
# ## Six races
#
# Now tables of several kinds, each with its own difficulty. The last one is real where the data are there: mutations
# of 96 kinds in 21 breast cancer genomes (Nik-Zainal et al. 2012).


# %%
def hyperprior():
    with pm.Model() as model:
        shape, mean = pm.Gamma("shape_w", 2.0, 2.0), pm.Gamma("mean_h", 2.0, 0.5)
        nz.gamma_nmf(counts(20, 40, 3, 4.0), 3, alpha_w=shape, mean_h=mean)
    return model


def powers():
    rng = np.random.default_rng(4)
    X = rng.exponential(rng.gamma(2.0, size=(20, 3)) @ (1 / rng.gamma(3.0, size=(3, 50))))
    return nz.is_nmf(X, 3, alpha_w=2.0, beta_w=1.0)


def genomes():
    path = DATA / "brca21" / "brca21_sbs96.tsv"
    is_there = path.exists()
    X = pd.read_csv(path, sep="\t", index_col=0) if is_there else counts(96, 21, 3, 80.0, 0.5)
    print("genomes: the 21 of Nik-Zainal et al." if is_there else "genomes: no data, simulated counts instead")
    return nz.gamma_nmf(X, 3, alpha_w=0.5, mean_w=1.0, alpha_h=0.5, mean_h=80.0)


# %%
small_shapes = {"alpha_w": 0.2, "mean_w": 1.0, "alpha_h": 0.2, "mean_h": 5.0}
races = {
    "few counts": nz.gamma_nmf(counts(20, 40, 2, 0.5), 2),
    "large counts": nz.gamma_nmf(counts(16, 20, 3, 500.0), 3, mean_w=1.0, mean_h=500.0),
    "prior shapes of 0.2": nz.gamma_nmf(counts(20, 40, 3, 5.0, 0.2), 3, **small_shapes),
    "hyperprior": hyperprior(),
    "powers": powers(),
    "genomes": genomes(),
}
if SMALL:
    races = {name: races[name] for name in ("hyperprior", "genomes")}
finished = {name: nz.compare_engines(model, ["gibbs", NUTS], **HOW) for name, model in races.items()}
table = pd.concat({name: result.table for name, result in finished.items()}, names=["table"])
table["ess_aligned_per_second"] = table["ess_aligned"] / (table["seconds"] - table["compiling"])
columns = ["seconds", "compiling", "ess_bulk", "ess_aligned", "rhat", "rhat_aligned", "agrees"]
table[columns].round(2)

# %% [markdown]
# Read `agrees` in the rows of NUTS first (Gibbs is the reference, and has no verdict of its own): a rate of effective
# draws means something only where both arrive at the same posterior. None means that one of them has too few
# effective draws to say. Then the price of one effective draw, in milliseconds of warm-up and drawing: of the worst
# of `lp` and W H, of W and H themselves, and how many times cheaper Gibbs is:

# %%
rates = table[["ess_bulk_per_second", "ess_aligned_per_second"]].rename(columns=lambda name: name.split("_")[1])
cost = (1000 / rates).unstack("engine")
for kind in ("bulk", "aligned"):
    cost[kind, "ratio"] = cost[kind].iloc[:, 1] / cost[kind].iloc[:, 0]
cost.loc[list(races), ["bulk", "aligned"]].round(2)

# %%
figure, axes = plt.subplots(figsize=(7.5, 2.9), layout="constrained", dpi=70)
places = np.arange(len(races))[::-1]
has_verdict = np.array([bool(finished[name].table["agrees"].iloc[1]) for name in races])
for kind, marker in {"bulk": "o", "aligned": "D"}.items():
    ratio = cost.loc[list(races), (kind, "ratio")].to_numpy(dtype=float)
    colours = np.where(ratio >= 1, "#22304a", "#c4552d")
    label = {"bulk": "lp and W H", "aligned": "W and H"}[kind]
    filled = np.where(has_verdict, colours, "white")
    axes.scatter(ratio, places + 0.1 * (kind == "bulk"), marker=marker, c=filled, edgecolors=colours, label=label)
axes.axvline(1.0, color="#22304a", lw=0.8, alpha=0.5)
axes.set(xscale="log", xlabel="effective draws per second: Gibbs over NUTS (left of the line NUTS is ahead)")
axes.set_yticks(places, list(races))
axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# Points to the right of the line are wins of Gibbs, points to the left of it wins of NUTS; hollow ones have no
# verdict that both posteriors are the same, and decide nothing. Numbers move with the machine, the sizes and the
# seed, so that a factor of two is a draw. What stands behind them:
#
# - *Known hyperparameters*: this Gibbs sampler does more than share counts out. Where counts are many, rows move
#   along trajectories of their own, like small NUTS runs with a step and a mass each, and exact moves go along
#   directions that the data can't see. A step that fits one row need not fit all.
# - *Per draw NUTS can be ahead*, because its trajectories move all variables together: compare `ess_aligned` of the
#   two for large counts, both from as many draws. It pays with many gradients for each draw.
# - *A ratio beside a None* only says that one of the two, here mostly NUTS, had not arrived after as many draws; it
#   is no measurement.
# - *Hyperpriors* are the hardest for Gibbs: hyperparameters are drawn given hundreds of cells that still remember
#   their old values. One that is the scale of a factor, as the mean of H is here, also moves together with that
#   factor, in the direction that leaves W H alone. A shape has no such direction. And a sweep takes many times as
#   long as with known values, for it goes through Python. Per draw Gibbs is ahead here, per second neither is by a
#   factor of two:

# %%
nz.plot_comparison(finished["hyperprior"])

# %% [markdown]
# ## R-hat that cries wolf
#
# Components have no order. Two chains may number them differently, and R-hat of raw W and H then says that chains
# disagree. `nz.align` puts them in one order and on one scale; `compare_engines` did so for every result above. The
# worst R-hat of W and H in each race:

# %%
worst = {}
for name, comparison in finished.items():
    for engine, result in comparison.results.items():
        worst[name, engine] = nz.summarise_components(result)[["rhat_raw", "rhat"]].max()
pd.DataFrame(worst).T.round(2)

# %% [markdown]
# `rhat_raw` is what one gets off the shelf, `rhat` belongs to the aligned draws: the same draws, in one order and on
# one scale. NUTS needs the alignment as much as Gibbs does, for labels are a property of the posterior. Where
# `rhat_raw` is good as well, the chains happened to number their components alike.
#
# ## Nobody wins: several modes
#
# Three components of equal strength, and a model that may use two: it has to merge a pair, and there are three ways
# to do so. With many counts no sampler crosses from one to another. Every chain stays where it began.

# %%
rng = np.random.default_rng(3)
first = rng.gamma(1.0, size=(1, 30))
H = np.concatenate([first, np.roll(first, 10), np.roll(first, 20)])  # the same activations at other times
X = rng.poisson(60 * np.kron(np.eye(3), np.ones((5, 1))) @ H + 1.0)
short = {**HOW, "draws": HOW["draws"] // 2, "tune": HOW["tune"] // 2, "chains": 2 if SMALL else 6}
modes = nz.compare_engines(nz.gamma_nmf(X, 2, mean_h=60.0), ["gibbs", NUTS], **short)
modes.table[["ess_bulk", "rhat", "rhat_aligned", "agrees"]].round(2)

# %%
by_chain = {engine: result["sample_stats"]["lp"].mean("draw").to_series() for engine, result in modes.results.items()}
pd.DataFrame(by_chain).round(0)

# %%
nz.plot_comparison(modes)

# %% [markdown]
# Chains whose `lp` differ by far more than it varies within a chain (a few units) are in different modes, and both
# engines find the same few values. R-hat is bad for both, before and after alignment: no order of components makes
# different factorisations the same, and a diagnostic has to say so. The picture is grey, which means no verdict: if
# means of the two happen to be near each other, that is how many chains began near each mode, as the wide error bars
# tell. What helps:
#
# - *Ask whether the rank is right.* Modes that differ by what they merge are how a model says that it has too few
#   components.
# - Look at one chain at a time, the one with the highest `lp` first; do not average over chains.
# - For weights of modes `nz.evidence(model, method="smc")` anneals particles from the prior; how often chains land in
#   a mode is no weight.
#
# The same data with three components:

# %%
settled = nz.compare_engines(nz.gamma_nmf(X, 3, mean_h=60.0), ["gibbs", nz.Gibbs(trajectories="never")], **short)
settled.table[["ess_bulk", "ess_bulk_per_second", "rhat", "rhat_aligned", "agrees"]].round(2)

# %% [markdown]
# R-hat of `lp` and W H comes down, if the right rank was the problem. The second row is Gibbs that only shares counts
# out, as in textbooks; it shows what trajectories are worth here.
#
# ## Decide
#
# | Your model | Take | Because |
# |---|---|---|
# | counts with known hyperparameters; powers | `"gibbs"` | an effective draw is cheaper, and nothing is compiled |
# | counts with hyperpriors, a moderate size | either, compare; `"nuts"` with nutpie | it matters what is unknown |
# | factors inside a larger PyMC model | `pm.sample(step=[nz.ConjugateGibbs()])` or NUTS alone | notebook 09 |
# | a prior that has no conjugate draw | `"nuts"` | Gibbs refuses it and says so |
# | large tables | `"gibbs"`, or `"vb"` for a point and a rough width | NUTS goes over the data many times per draw |
# | R-hat bad after alignment with both | neither | modes: rank, priors, one chain at a time |
#
# When in doubt run `nz.compare_engines` on a cut of the table: it is one line, and agreement of two samplers that
# have nothing in common is good evidence that both are right.
#
# ## Where to go from here
#
# - In the shell: `nmf-zoo compare counts.csv --rank 3 --engines gibbs,gibbs:moves=,nuts`.
# - `nz.calibrate` asks an engine for uniform ranks over many simulated tables, which no comparison on one table can.
# - Notebook 04: how many components. Notebook 09: hyperpriors and models of your own.
