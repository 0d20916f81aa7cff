# %% [markdown]
# # How many components: evidence four ways, mutational signatures
#
# A factorisation needs a number of components, its rank, and data rarely come with one. Here the rank is judged by
# the evidence log p(X), in which W and H are integrated out: by a variational bound, by Chib's identity, by
# sequential Monte Carlo and, where that is possible, exactly; and by held-out cells. The data are counts of mutations
# in 21 breast cancers.
#
# What you need to know: what a posterior and a Bayes factor are; no genomics. What you will see: where the judges
# agree, where they disagree and why, the signatures with their uncertainty, and what remains undecided however
# precisely the evidence is known.

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

# %% [markdown]
# ## The data
#
# A mutation that swaps one base for another is filed under one of 96 *channels*: which of six substitutions it is
# (C>A, C>G, C>T, T>A, T>C, T>G; the other six are the same ones read off the opposite strand), and the base on its
# left and on its right, 4 × 6 × 4. `T[C>T]A` is a C between T and A that became a T. A tumour is a column of 96
# counts. The idea of a *mutational signature* is that each process that damages DNA, or fails to repair it, has its
# own preferences among the channels, and that a tumour's counts X ≈ W H are a sum over the processes that were at
# work.


# %%
def simulated(rank=6):
    """Tumours made of known signatures, for a machine without the data."""
    rng = np.random.default_rng(1)
    swaps = [f"{a}>{b}" for a in "CT" for b in "ACGT" if a != b]
    channels = [f"{left}[{swap}]{right}" for swap in swaps for left in "ACGT" for right in "ACGT"]
    signatures, shares = rng.dirichlet(np.full(96, 0.3), rank).T, rng.dirichlet(np.full(rank, 0.5), 21).T
    totals = np.r_[60_000, rng.lognormal(8.6, 0.5, 20)]
    counts = rng.poisson(signatures @ shares * totals)
    return pd.DataFrame(counts, channels, [f"tumour {n}" for n in range(21)])


if (FOLDER / "brca21").exists():
    X = pd.read_csv(FOLDER / "brca21" / "brca21_sbs96.tsv", sep="\t", index_col=0)
    name = "21 breast cancers"
else:
    X, name = simulated(), "a simulated stand-in of six signatures"
if SMALL:
    X = X.iloc[::6, :7]
print(f"{name}: {X.shape[0]} channels, {X.shape[1]} tumours, {X.to_numpy().sum()} mutations")
print(f"of one tumour: {X.sum().min()} to {X.sum().max()}, half of them below {X.sum().median():.0f}")

# %% [markdown]
# The real counts are those of Nik-Zainal et al., Cell 149 (2012). Among their tumours five are of carriers of BRCA1
# mutations and four of BRCA2, genes that mend breaks of DNA; we write that behind the names, and no model sees it.
# Two spectra, in the six colours that we keep from here on:

# %%
GENE = dict.fromkeys(["PD3890a", "PD3905a", "PD4005a", "PD4006a", "PD4107a"], "BRCA1")
GENE |= dict.fromkeys(["PD3904a", "PD3945a", "PD4115a", "PD4116a"], "BRCA2")
X.columns = [f"{tumour} {GENE.get(tumour, '')}".strip() for tumour in X.columns]
COLOURS = {"C>A": "#56B4E9", "C>G": "#000000", "C>T": "#D55E00", "T>A": "#999999", "T>C": "#009E73", "T>G": "#CC79A7"}
colours = [COLOURS[channel[2:5]] for channel in X.index]


def legend(figure):
    keys = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(keys, COLOURS, ncols=6, loc="outside lower center", frameon=False, fontsize=8)


heavy, typical = X.sum().idxmax(), (X.sum() - X.sum().median()).abs().idxmin()
fig, axes = plt.subplots(2, 1, figsize=(11, 3.6), sharex=True, layout="constrained")
for ax, tumour in zip(axes, (heavy, typical), strict=True):
    ax.bar(np.arange(len(X)), X[tumour], color=colours)
    ax.set_title(f"{tumour}: {X[tumour].sum()} mutations", fontsize=9, loc="left")
axes[1].set(xticks=[], xlabel="channel", xlim=(-1, len(X)))
legend(fig)
plt.show()

# %% [markdown]
# ## Declare
#
# Columns of W should sum to about one, like shares of channels, and H should count mutations: so a cell of W has the
# prior mean 1/96, and a tumour's activations have its total divided by the rank. (That peeks at the totals, and at
# nothing else.) Gamma shapes of 1 say little about how even the shares are. We come back to them, since an evidence
# is always that of a model *with its prior*.


# %%
def declare(rank, table=X, shape=1.0):
    totals = table.sum().to_numpy()
    return nz.gamma_nmf(table, rank, alpha_w=shape, mean_w=1 / len(table), alpha_h=shape, mean_h=totals / rank)


print(nz.describe(declare(4)))

# %% [markdown]
# ## Four ways, on a table so small that one of them is exact
#
# With a few counts one can add up all ways to share them out among the components. So we cut out the rarest channels
# of the tumours with the fewest mutations, and let each method answer a question whose answer we know.

# %%
n = 2 if SMALL else 3
rare = X.loc[X.sum(axis=1).nsmallest(n).index, X.sum().nsmallest(n).index]
METHODS = {"bound": nz.Bound(), "chib": nz.Chib(), "smc": nz.SMC(), "enumeration": "enumeration"}
if SMALL:
    METHODS |= {"chib": nz.Chib(draws=100, tune=50), "smc": nz.SMC(particles=50)}
tiny = {
    (method, rank): nz.evidence(declare(rank, rare), options, **RUN).attrs
    for method, options in METHODS.items()
    for rank in (1, 2)
}
entries = {key: f"{own['log_evidence']:.2f} ± {own['log_evidence_error']:.2f}" for key, own in tiny.items()}
print(rare.to_string(), "\n")
print(pd.Series(entries).unstack()[[1, 2]].rename_axis(index="method", columns="rank").loc[list(METHODS)].to_string())

# %% [markdown]
# Chib and SMC hit the exact value within their errors; SMC tempers particles from the prior to the posterior, Chib
# needs the posterior density at one point, and neither reasons as the enumeration does. The bound is below by
# construction, and further below for rank 2: it cannot know how W and H depend on each other, and that is the more to
# know the more components there are. On the real data that is enough to turn the answer round: between rank 1 and 2
# the bound prefers the other one than the other three do. How decided the question is:

# %%
comparison = nz.compare_evidence({f"rank {rank}": declare(rank, rare) for rank in (1, 2)}, "enumeration", **RUN)
print(comparison.attrs["answer"])

# %% [markdown]
# ## The whole table: the bound, as it is and corrected
#
# The bound costs seconds for all ranks. `nz.select_rank` adds an estimate of what it lacks, from the curvature of the
# posterior, and says how good that is.

# %%
ranks = range(1, 4) if SMALL else range(1, 13)
bound = nz.select_rank(declare, ranks, restarts=2 if SMALL else 8, **RUN)
print(bound.attrs["answer"])
shown = bound.sel(rank=slice(2, None))  # one component is thousands of nats behind, and would flatten the picture
nz.plot_rank(shown.assign_attrs(bound.attrs))

# %% [markdown]
# On the real data the dotted line peaks at four and then falls, the corrected one goes on to rise until eight. The
# correction grows with every component, from tens of nats to more than a thousand: what a bare bound says about the
# rank of a table with large counts is mostly about the bound. The corrected bound narrows the question down, and
# knows that it cannot answer it.
#
# ## SMC decides among models
#
# Two runs for each rank that is still in question. Their spread is the error, a rough one with two, so we also look
# at how far apart they are.

# %%
questioned = range(1, 4) if SMALL else range(4, 12)
particles = 30 if SMALL else 150
smc = nz.select_rank(declare, questioned, method=nz.SMC(particles=particles, draws=0), restarts=2, **RUN)
chosen = int(smc["rank"][smc["plausible"]].min())
apart = smc["estimate"].max("restart") - smc["estimate"].min("restart")
print(f"two runs of a rank differ by {apart.median().item():.1f} nats at the median, {apart.max().item():.1f} at most")
print(f"{smc.attrs['answer']} We go on with the smallest that is not ruled out, {chosen}.")
nz.plot_rank(smc)

# %% [markdown]
# Ranks are ruled out at two standard errors, which rest on two runs each. Where two ranks are no further apart than
# two runs of the same rank are, more runs (`restarts=`) or more particles could change their order.
#
# ## Chib, where it can
#
# Chib's identity holds at any point, but the density of that point is found by sharpening the posterior until it is
# normal. With few components that works. Where it would take too many draws the run fails and says so, rather than
# return a number.

# %%
low = questioned[0]
chib = nz.evidence(declare(low), nz.Chib(draws=100, tune=50) if SMALL else nz.Chib(draws=1000), chains=2, **RUN)
by_smc = smc.sel(rank=low)
pd.DataFrame(
    {
        "log evidence": [chib.attrs["log_evidence"], by_smc["combined"].item(), bound["combined"].sel(rank=low).item()],
        "error": [chib.attrs["log_evidence_error"], by_smc["combined_error"].item(), np.nan],
    },
    index=["chib", "smc", "corrected bound"],
).round(1).rename_axis(f"rank {low}")

# %% [markdown]
# On the real data Chib and SMC, which share no step, agree within two of their errors. The corrected bound is more
# than ten nats lower.
#
# ## Held-out cells
#
# A tenth of the cells is hidden, the others are fitted, and the hidden ones scored: five random splits, the same for
# every rank. This judge needs no evidence, and asks something else: not how well a model with its prior predicted the
# whole table, but how well, once it has seen nine tenths, it predicts the rest.

# %%
held_out = nz.select_rank(declare, ranks, method=nz.Holdout(share=0.1), restarts=2 if SMALL else 5, **RUN)
print(held_out.attrs["answer"])
judges = pd.DataFrame(
    {
        "bound": bound["bound"].max("restart").to_series(),
        "corrected": bound["combined"].to_series(),
        "smc": smc["combined"].to_series(),
        "± of smc": smc["combined_error"].to_series(),
        "held out": held_out["combined"].to_series(),
    }
)
columns = ["bound", "corrected", "smc", "held out"]
judges[columns] -= judges[columns].max()
judges.round(1)

# %% [markdown]
# Each column counts nats from its own best rank. What they agree on: too few components cost far more than too many.
# On the real data one is worth thousands of nats less than two by every judge who looked at it, and two hundreds (of
# held-out cells) or more than a thousand less than three. Then they part:
#
# - the **bound** stops early, for the reason above: it charges every component for what the approximation leaves out;
# - the **corrected bound** goes on to more, and is off by tens of nats at ranks where SMC knows the value to about
#   one;
# - **SMC** has by far the smallest error and rules out most ranks. It can leave neighbours open, too. On the real
#   data two runs of one rank are never as far apart as the ranks that are ruled out are from the best;
# - **held-out cells** hardly tell the middle ranks apart. A split hides a tenth of the cells, some of them with
#   thousands of counts, and which ones they are changes the score by more than the rank does.
#
# ## Rank by shrinkage
#
# All of these fit every rank. Another way takes one model with more components than anyone expects, and a prior that
# shrinks those that the data don't need. With `prior="ard"` each component has a relevance, the mean of its cells in
# both W and H, which is learned. `nz.components_in_use` counts, in every draw, the components that hold at least a
# twentieth of what the largest does.

# %%
shrinking = nz.gamma_nmf(X, rank=6 if SMALL else 12, prior="ard")
length = {"draws": 50, "tune": 100} if SMALL else {"draws": 500, "tune": 500}
by_engine = {
    "EM": nz.fit(engine="em", model=shrinking, **RUN),
    "VB": nz.fit(engine="vb", model=shrinking, **RUN),
    "Gibbs": nz.sample(**length, chains=4, model=shrinking, **RUN),
}
counted = {engine: nz.components_in_use(idata) for engine, idata in by_engine.items()}
for engine, found in counted.items():
    print(f"{engine:<6} {found.attrs['answer']}")
shares = {
    engine: np.sort(found["share"].to_numpy(), axis=-1)[..., ::-1].mean((0, 1)) for engine, found in counted.items()
}
percent = pd.DataFrame(shares).mul(100).round(2)
percent.set_axis(range(1, len(percent) + 1)).T

# %% [markdown]
# The table has percentages of all of W H, the largest component first. On the real data the three engines differ, and
# each as it must. EM seeks a joint mode, which likes a component at 0 best and keeps fewest; q of VB is narrower than
# the posterior, and has fewer than its draws; these leave several counts open, and come nearest to SMC's answer. The
# limit matters, too: half of all mutations are in one component, and a twentieth of it is thousands of mutations. So
# VB's sixth component is not counted, although it holds more than a thousand; `least=0.01` counts it. One fit says
# roughly how many; to tell neighbours apart, compare ranks.
#
# ## How decided is it?
#
# An error bar of one nat is about the integral. Whether the *question* is decided is another matter: a different
# prior is a different model, and may prefer another rank. The same evidence compares them. Gamma shapes of 1/2, that
# is, spikier signatures and tumours with fewer processes:

# %%
other = {f"shape 1/2, rank {rank}": declare(rank, shape=0.5) for rank in (chosen, chosen + 1)}
models = {f"shape 1, rank {chosen}": declare(chosen)} | other
priors = nz.compare_evidence(models, nz.SMC(particles=particles, draws=0), chains=2, **RUN)
print(priors.attrs["answer"])
priors[["log_evidence", "error", "log_bayes_factor", "factor_error"]].round(1)

# %% [markdown]
# On the real data the spikier prior is better by far more nats than separate neighbouring ranks, and under it one
# more component is clearly better than the same number: the rank moves with the prior, and nothing here says where
# that ends.
#
# The other assumption is Poisson. If the counts of a tumour scatter more than Poisson counts do, then every bump is a
# reason for one more component, and with mutations in their thousands bumps are significant. That can be checked:
# simulate tables from the posterior, and compare the misfit of the real table (Pearson's chi square, tumour by
# tumour) with theirs. A ratio near 1 is what the model expects.


# %%
def sampled(rank):
    length = {"draws": 50, "tune": 100} if SMALL else {"draws": 1000, "tune": 1000}
    model = declare(rank)
    return model, nz.sample(**length, chains=4, start="random", model=model, **RUN)


def misfit(model, idata):
    """By tumour: chi square of the counts over chi square of counts simulated from the same draws."""
    copies = nz.predict(idata, model, n_draws=50, random_seed=1)
    draws, real = idata["posterior"].sel(draw=copies["draw"]), idata["observed_data"]["X"]
    mean = (draws["W"] * draws["H"]).sum("component")
    found, expected = (((counts - mean) ** 2 / mean).sum("feature") for counts in (real, copies))
    return (found / expected).mean(("chain", "draw")).to_series()


fewer = min(5, chosen - 1)
runs = {rank: sampled(rank) for rank in (fewer, chosen)}
ratios = pd.DataFrame({f"rank {rank}": misfit(*run) for rank, run in runs.items()})
ratios.describe().loc[["min", "50%", "max"]].round(2)

# %% [markdown]
# On the real data five components leave most tumours with far more scatter than Poisson counts have. At the rank that
# we go on with more than half of the excess is gone, and not all of it. That is why the evidence wants these
# components, and it does not say what they are: processes that five had to merge, or scatter of counts whose variance
# is above their mean. Pelizzola, Laursen and Hobolth (BMC Bioinformatics 24, 2023) argue for the second, with
# negative binomial counts, and show by simulation that Poisson models then overestimate the number of signatures.
# Evidence can only choose among the models that it was given.
#
# ## The signatures
#
# Nik-Zainal et al. extracted five. We look at five as well, since that is what can be compared with what is known,
# and then at what more components do to them. Components swap between chains, so draws are aligned first.

# %%
aligned = {rank: nz.align(idata) for rank, (model, idata) in runs.items()}
pd.concat({rank: nz.summarise_components(found) for rank, found in aligned.items()}, names=["rank", "factor"]).groupby(
    "rank"
).agg({"rhat_raw": "max", "rhat": "max", "ess_bulk": "min"}).round(2)

# %% [markdown]
# Each row gives the worst cell of any column of W or row of H. `rhat_raw`, of the draws as they came, says that the
# chains disagree; `rhat`, after alignment, that they mean the same components by other numbers. On the real data the
# worst cells at the higher rank have few effective draws: enough for a picture, not for the third digit.

# %%
figure = nz.plot_components(aligned[fewer])
for ax in figure.axes:
    for bar, colour in zip(ax.patches, colours, strict=True):
        bar.set_color(colour)
figure.axes[-1].set(xticks=[], xlabel="channel")
legend(figure)
figure

# %% [markdown]
# The vertical lines are 90% intervals, *given five* components. On the real data they are short beside the shape of
# most signatures, and long for the most even one. What they are made of, and how even they are (1 would be the same
# share for every channel):

# %%
W, H = (aligned[fewer]["posterior"][factor].mean(("chain", "draw")) for factor in ("W", "H"))
after_t = np.array([channel.startswith("T[C") for channel in X.index])
before_g = np.array(["C>T]G" in channel for channel in X.index])
evenness = np.exp(-(W * np.log(W)).sum("feature")) / len(X)
pd.DataFrame(
    {
        "mutations": H.sum("obs").to_series().round().astype(int),
        "C after a T": W[after_t].sum("feature").to_series().round(2),
        "C>T before a G": W[before_g].sum("feature").to_series().round(2),
        "evenness": evenness.to_series().round(2),
        "top channels": nz.top_features(aligned[fewer], 3).groupby("component")["feature"].agg(", ".join),
    }
)

# %% [markdown]
# Which tumours carry them, in mutations, with 90% intervals:

# %%
nz.plot_activations(aligned[fewer])

# %% [markdown]
# And as a share of each tumour (percent), ordered by what the two most even signatures make up together:

# %%
shares = (100 * H / H.sum("component")).to_pandas().T
broad = evenness.to_series().nlargest(2).index.tolist()
shares[f"{broad[0]} + {broad[1]}"] = shares[broad].sum(axis=1)
shares.sort_values(shares.columns[-1], ascending=False).round().astype(int)

# %% [markdown]
# What is known, and what of it one can see on the real data:
#
# - The largest component is nearly all C after a T, turned into T or G. Nik-Zainal et al. found mutations at TpC
#   dinucleotides in their clusters of mutations (*kataegis*) and proposed enzymes of the APOBEC family as their
#   cause. The component is in many tumours, and it is nearly everything in the one with by far the most mutations.
#   Whether its mutations are clustered these data cannot say: they count, and do not locate.
# - A component with much C>T before a G is in nearly every tumour, with hundreds to a few thousand mutations (in the
#   one with by far the most mutations its interval begins near zero). Methylated C before G turns into T with time in
#   every cell; this is the best-known signature of all.
# - "Cancers with BRCA1 or BRCA2 mutations exhibited a characteristic combination of substitution mutation
#   signatures", says the paper's summary. Here it is the two even components together: more than half of the
#   mutations in eight of the nine BRCA tumours, and in one of the other twelve. The model had not been told the
#   names.
#
# ## What the further components are
#
# The cosine of each of the five (rows) with each signature at the higher rank (columns):

# %%
units = {rank: found["posterior"]["W"].mean(("chain", "draw")).to_numpy() for rank, found in aligned.items()}
units = {rank: columns / np.linalg.norm(columns, axis=0) for rank, columns in units.items()}
pd.DataFrame(units[fewer].T @ units[chosen]).round(2).rename_axis(index=f"of {fewer}", columns=f"of {chosen}")

# %% [markdown]
# On the real data all five are found again, with cosines above 0.9: they change little between these two ranks. The
# others are relatives of the broad ones and close to none: parts that a broad signature was split into, or a
# correction of it where counts scatter. We would show the five to a biologist as findings, and the rest as questions.
#
# ## What is decided
# - The rank, among Poisson factorisations with this prior: up to a neighbour or two. Four ways to the evidence agree
#   wherever more than one can be had, once the bound's deficit is kept in mind.
# - That a few components are stable and interpretable: yes, and more reliably than their number.
# - How many mutational processes there are: no. That depends on the prior, and on whether counts are Poisson. A rank
#   with an error bar of one nat can still be the answer to the wrong question.
#
# ## Where to go from here
#
# - `nz.Holdout`, `nz.RankBound`, `nz.Chib`, `nz.SMC`: options of the judges; `checkpoint=` keeps a long search.
# - `nmf-zoo rank counts.csv --ranks 2:10 --method smc` does the same from a shell.
# - Channels are not equally frequent in a genome: `exposure=` takes such opportunities (notebook 09).
# - Notebook 05: a way to have surplus components emptied by the fit itself.
