# %% [markdown]
# # One answer or several: modes
#
# A factorisation can explain the same data in different ways that are no renaming of components. Each is a mode of
# the posterior, and no sampler that moves step by step goes from one to another. Three cases: few modes that all
# count, many of which one counts, and too many components.
#
# What you need to know: what chains and R-hat are. What you will see: where chains begin, what a verdict says of
# their agreement, what a mode weighs, and how to have one posterior of several modes.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from nmf_zoo.diagnostics.convergence import verdict_on

plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
warnings.simplefilter("ignore")  # the verdicts below say the same
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
RUN = {"draws": 200 if SMALL else 1000, "tune": 200 if SMALL else 1000, "random_seed": 1, "progressbar": False}


def say(result):
    verdict = verdict_on(result)
    print(f"{verdict.text}\n-> {verdict.do}")


# %% [markdown]
# ## Few modes, and all count
#
# Three blocks of counts, two components: one block has a component of its own and the other two share one. That can
# be done in three ways. By default `nz.sample` first searches, by variational Bayes, and begins its chains at the best
# optimum; here the bounds of three optima are within a nat or two of each other, so that chains begin at all of them.

# %%
blocks = np.diag([40, 39, 38])
few = nz.gamma_nmf(blocks, rank=2, alpha_w=0.5, alpha_h=0.5, mean_h=5.0)
chains = nz.sample(model=few, **RUN)
print(chains["search"]["objective"].values.round(2), chains["search"]["optimum_of_chain"].values)
say(chains)

# %% [markdown]
# R-hat is bad, and drawing longer would not help. Which mode weighs how much is not told by the number of chains in it,
# nor by `lp`. `nz.weigh_modes` estimates the evidence within each mode, by bridge sampling from its own chains.

# %%
weighed = nz.weigh_modes(chains, few, random_seed=1, progressbar=False)
say(weighed)
nz.plot_modes(weighed)

# %% [markdown]
# The exact shares are 0.558, 0.293 and 0.148 (the allocation of so few counts can be summed). `nz.pool` makes one
# posterior of the chains, with as many draws of each mode as its share says:

# %%
pooled = nz.pool(weighed, random_seed=1)
print(dict(pooled["posterior"].sizes), np.bincount(pooled["sample_stats"]["mode"].values.ravel()))
say(pooled)

# %% [markdown]
# On a table as small as this, chains can also go from mode to mode by themselves. Replicas at lower powers of the
# likelihood, down to the prior, exchange their places with the chain:

# %%
moving = nz.sample(model=few, engine=nz.Gibbs(temperatures=10), chains=2, start="random", **RUN)
H = moving["posterior"]["H"].values  # (chain, draw, component, block)
owner = H.argmax(axis=-2)  # the component that has most of each block
alone = [(owner == owner[..., [block]]).sum(axis=-1) == 1 for block in range(3)]
print("share of draws in which a block is alone:", [round(float(one.mean()), 2) for one in alone])
stats = moving["sample_stats"]
print(
    "round trips", stats["round_trips"].isel(draw=-1).values, "barrier", stats["barrier"].isel(draw=-1).values.round(1)
)

# %% [markdown]
# ## Many modes, of which one counts
#
# A table of twelve sharp components, and a model of six, which has to merge some. Chains from random starts end in
# modes of their own, hundreds of nats apart, and stay there:

# %%
rng = np.random.default_rng(1)
W, H = rng.gamma(0.2, size=(40, 12)), rng.gamma(0.3, size=(12, 80))
table = rng.poisson(40 * W @ H + 0.3)
many = nz.gamma_nmf(table, rank=6, alpha_w=0.5, alpha_h=0.5, mean_h=float(table.mean()))
apart = nz.sample(model=many, start="random", **RUN | {"random_seed": 5})
print(
    "R-hat", nz.summarise(apart)["rhat"].max().round(2), "lp", apart["sample_stats"]["lp"].mean("draw").values.round()
)
say(apart)

# %% [markdown]
# The default starts all of them where the search found the most. Agreement then means agreement within that mode, and
# the verdict says how often the search came to it, and how far below the next best lies:

# %%
together = nz.sample(model=many, **RUN)
bounds = together["search"]["objective"].values
print("R-hat", nz.summarise(together)["rhat"].max().round(3), "bounds less the best", (bounds - bounds[0])[:6].round(1))
say(together)

# %% [markdown]
# ## Too many components
#
# A table of six components, and a model of nine. What is not needed is split off or shrinks, in many ways that fit
# alike. Then the reconstruction W H is well known, and single components are not. The verdict tells the two apart:

# %%
rng = np.random.default_rng(1)
W, H = rng.gamma(0.2, size=(30, 6)), rng.gamma(0.3, size=(6, 60))
smaller = rng.poisson(40 * W @ H + 0.3)
wide = nz.gamma_nmf(smaller, rank=9, alpha_w=0.5, alpha_h=0.5, mean_h=float(smaller.mean()))
surplus = nz.sample(model=wide, **RUN)
say(surplus)
nz.summarise_components(nz.align(surplus)).round(2).head(9)

# %% [markdown]
# Read W H, or take fewer components: `nz.select_rank` compares ranks, and a model with `prior="ard"` shrinks those that
# are not needed (notebook 04). The three runs by their `lp`:

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for axis, (name, result) in zip(axes, {"random": apart, "search": together, "nine": surplus}.items(), strict=True):
    axis.plot(result["sample_stats"]["lp"].values.T, linewidth=0.5)
    axis.set_title(f"lp of four chains: {name}")
plt.show()
