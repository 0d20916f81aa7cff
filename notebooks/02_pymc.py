# %% [markdown]
# # What PyMC gives you for free
#
# A declaration of this library is a plain PyMC model, and its results are ArviZ's. So everything that you know from
# there works here: prior and posterior predictive checks, NUTS, leave-one-out comparison, interventions, new data,
# files. This notebook goes through them with one small table, finds that the model is wrong, and mends it.
#
# What you need to know: PyMC's `pm.Model` and `pm.sample`, and what the notebook `01_digits` shows. What you will
# see: a silly prior unmasked, a likelihood that fails its check and one that passes, the caveats of leave-one-out for
# factorisations, and what label switching does to R-hat.

# %%
import logging
import os
import tempfile
import warnings
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about short chains and Pareto k: the text looks at both
for noisy in ("pymc", "pytensor"):
    logging.getLogger(noisy).setLevel(logging.ERROR)
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
PONDS, DRAWS, NUTS_DRAWS, CORES = (5, 50, 16, 1) if SMALL else (40, 2000, 500, 2)
OLD = az.__version__.startswith("0.")  # ArviZ 0.x and 1.x name a few things differently

# %% [markdown]
# ## A table
#
# Twelve kinds of birds, counted at forty ponds, some for an hour, some for two or four. Three habitats, each with
# birds of its own, are mixed in every pond. The table is simulated, so that there is a truth to compare with; what
# else went into it we shall find out.

# %%
BIRDS = ["coot", "grebe", "heron", "teal", "swan", "goose", "snipe", "rail", "kingfisher", "warbler", "finch", "martin"]
rng = np.random.default_rng(1)
W_true = rng.dirichlet(np.full(12, 0.4), size=3).T  # (bird, habitat): which share of a habitat's birds is of each kind
H_true = rng.gamma(0.7, 23.0, size=(3, PONDS))  # (habitat, pond): birds an hour
hours = rng.choice([1.0, 2.0, 4.0], size=PONDS)
lively = rng.gamma(3.0, 1 / 3.0, size=(12, PONDS))  # nothing that we tell the model
X = pd.DataFrame(rng.poisson(lively * hours * (W_true @ H_true)), BIRDS, [f"pond {n + 1}" for n in range(PONDS)])
print(
    f"{X.to_numpy().sum()} birds, {(X == 0).to_numpy().mean():.0%} of the cells are zero, the largest count is", end=" "
)
print(X.to_numpy().max())
X.iloc[:5, :8]

# %% [markdown]
# ## One declaration
#
# Gamma priors on both factors and a Poisson likelihood; the hours of watching are a known `exposure`. Labels of the
# table become coords. Columns of W are to be shares of birds, so their prior means are 1/12, and those of H are set
# to the birds per hour that there are.


# %%
def declare(rank, alpha=0.5, table=X):
    per_hour = float((table.sum() / hours).mean()) / rank  # birds an hour, of each habitat
    return nz.gamma_nmf(
        table, rank, exposure=hours[None, :], alpha_w=alpha, mean_w=1 / 12, alpha_h=alpha, mean_h=per_hour
    )


model = declare(3)
print(nz.describe(model))
print({dim: len(labels) for dim, labels in model.coords.items()}, model.free_RVs, model.observed_RVs)
nz.plot_model(model)

# %% [markdown]
# `nz.describe` says what our engines read from the graph, and `nz.plot_model` draws it (`pm.model_to_graphviz` works
# as well, where graphviz is installed); white is unknown, grey known, blue observed. Then `nz.check` compares their
# log density with PyMC's `model.compile_logp` at random points. `point_logps` shows each term at PyMC's starting
# point; a term of minus infinity would be a declaration that rules the data out.

# %%
nz.check(model)
pd.Series(model.point_logps()).round(1)

# %% [markdown]
# When a term *is* infinite, `model.debug` says which cells are to blame. Here two birds at two ponds, started where H
# is so small that its exponential is zero: no count could be observed there.

# %%
corner = nz.gamma_nmf([[3, 1], [2, 5]], rank=1)
corner.debug(point={"W_log__": np.zeros((2, 1)), "H_log__": np.array([[0.0, -1000.0]])})

# %% [markdown]
# ## Is the prior silly?
#
# Draw tables from the prior and compare them with what one knows about such tables. "Habitats are made of few kinds
# of birds, so I choose a small shape": 0.02 instead of our 0.5, with the same means. `pm.sample_prior_predictive`
# shows what that says about counts. We shall need the same picture again, so it is a function.


# %%
def hold_against(tables, statistics):
    """Histograms of statistics of predicted tables, the observed value as a line."""
    axes = plt.figure(figsize=(10, 2.6), layout="constrained").subplots(1, len(statistics))
    for ax, (name, statistic) in zip(axes, statistics.items(), strict=True):
        for (label, draws), colour in zip(tables.items(), (ORANGE, BLUE, GREEN), strict=False):
            values = [statistic(table) for table in draws.to_numpy().reshape(-1, *X.shape)]
            ax.hist(values, bins=25, density=True, color=colour, alpha=0.6, label=label)
        ax.axvline(statistic(X.to_numpy()), color="black", lw=2, label="observed")
        ax.set(xlabel=name, yticks=[])
    axes[-1].legend(frameon=False, fontsize=9)
    plt.show()


priors = {"shapes 0.02": declare(3, alpha=0.02), "shapes 0.5": model}
drawn = {name: pm.sample_prior_predictive(300, model=each, random_seed=1) for name, each in priors.items()}
ZEROS = {"share of zeros": lambda table: (table == 0).mean()}
LARGEST = {"largest count, log10(1 + x)": lambda table: np.log10(1 + table.max())}
hold_against({name: found["prior_predictive"]["X"] for name, found in drawn.items()}, ZEROS | LARGEST)

# %% [markdown]
# Under the small shape nearly all tables are nearly empty, and the few birds that there are come in flocks of
# hundreds or thousands. With shapes of 0.5 the observed values are among those that the prior expects, and it allows
# for more and for less, which is what a prior should do.
#
# ## Sample, and beware of R-hat
#
# Our Gibbs sampler returns ArviZ's InferenceData (a DataTree in ArviZ 1), with dims and labels, so ArviZ's functions
# apply. But a raw cell of W, a colour for each chain, makes a bad picture:

# %%
# each chain from a start of its own; by default all begin at the best that a search finds
gibbs = nz.sample(DRAWS, model=model, tune=DRAWS, chains=4, start="random", cores=CORES, random_seed=1, quiet=True)
one_cell = {"var_names": ["W"], "coords": {"feature": ["coot"], "component": [0]}}
if OLD:
    one_cell |= {"compact": False, "figsize": (10, 2.5)}  # a colour for each chain
az.plot_trace(gibbs, **one_cell)
plt.show()

# %% [markdown]
# Chains sit at different levels, and yet each of them has found the same habitats: it only gave them other numbers.
# Priors alike for all components can't tell them apart, so their order is arbitrary. `nz.align` matches the
# components of all draws, and the same picture of the same draws is:

# %%
aligned = nz.align(gibbs)
az.plot_trace(aligned, **one_cell)
for ax in plt.gcf().axes:
    ax.locator_params(axis="x", nbins=6)
plt.show()
nz.summarise_components(aligned).round(2)

# %% [markdown]
# `rhat_raw` is what `az.summary` would report (of the worst cell of each column or row), `rhat` is after alignment.
# Alignment can't make bad chains good: chains in different modes stay apart, and the column `became` says which
# components some chain lacks. What never needed it is `lp` and the product W H, which `nz.summarise` judges.

# %%
print(f"R-hat of lp and cells of W H: at most {nz.summarise(gibbs)['rhat'].max():.3f}")

# %% [markdown]
# ## NUTS
#
# The same model goes to `pm.sample` as it is. `nz.sample(engine="nuts")` does the same (by nutpie, where that is
# installed) and adds `lp` and the cells of W H that `nz.summarise` needs, so that all samplers can be compared. Do
# the three agree on the expected number of birds an hour?

# %%
short = {"tune": NUTS_DRAWS, "chains": 2, "cores": CORES, "random_seed": 1, "progressbar": False}
short_pm = short | {"compute_convergence_checks": False, "nuts_sampler": "pymc"}
if SMALL:  # no time to compile
    short_pm |= {"compile_kwargs": {"mode": "FAST_COMPILE"}, "nuts": {"max_treedepth": 1}, "init": "adapt_diag"}
ours = nz.sample(NUTS_DRAWS, model=model, engine=nz.Gibbs(moves=()) if SMALL else "nuts", quiet=True, **short)
theirs = pm.sample(NUTS_DRAWS, model=model, **short_pm)


def product(idata):
    return xr.dot(idata["posterior"]["W"], idata["posterior"]["H"], dim="component")


some = {"feature": xr.DataArray(BIRDS[:4], dims="cell"), "obs": xr.DataArray(X.columns[:4], dims="cell")}
columns = {}
for name, idata in (("Gibbs", gibbs), ("nz.sample nuts", ours), ("pm.sample", theirs)):
    cells = product(idata).sel(some)
    columns[name, "mean"], columns[name, "sd"] = (
        getattr(cells, how)(("chain", "draw")).values for how in ("mean", "std")
    )
pd.DataFrame(columns, index=[f"{bird}, {pond}" for bird, pond in zip(BIRDS, X.columns[:4], strict=False)]).round(2)

# %% [markdown]
# Means and standard deviations agree up to Monte-Carlo error. Which sampler is faster on which table is the subject
# of `03_gibbs_and_nuts`.
#
# ## Does the model fit? Posterior predictive checks
#
# Draw tables from the posterior predictive, and hold the observed one against them. The second statistic asks how
# much is left when three components have explained all they can: the roots of Poisson counts have a variance of about
# 1/4 once their mean is a few (0.41 at most, near a mean of 1.3, and less below), so it sums what is left of the
# roots after their best approximation of rank 3.


# %%
def left_over(table):
    return (np.linalg.svd(np.sqrt(table), compute_uv=False)[3:] ** 2).sum() / table.size


LEFT = {"mean square of √x beyond rank 3": left_over}
thinned = gibbs.sel(draw=slice(None, None, max(1, DRAWS // 100)))
replicated = pm.sample_posterior_predictive(thinned, model=model, var_names=["X"], random_seed=1, progressbar=False)
hold_against({"Poisson, rank 3": replicated["posterior_predictive"]["X"]}, ZEROS | LEFT)

# %% [markdown]
# On the full table both checks fail: hardly any replicated table has as many zeros, and about twice as much is left
# over as Poisson counts would leave. Birds come in groups, or not at all. (That is what `lively` did: gamma noise on
# every mean, which makes the counts negative binomial.)
#
# ## Another likelihood
#
# This library has no engine for negative binomial counts, and says so when asked. PyMC does not mind: the model is
# five lines, NUTS samples it, and `nz.align` works on anyone's W and H.

# %%
with pm.Model(coords=model.coords) as lumpy:
    W = pm.Gamma("W", alpha=0.5, beta=0.5 * 12, dims=("feature", "component"))
    H = pm.Gamma("H", alpha=0.5, beta=0.5 * 3 / float((X.sum() / hours).mean()), dims=("component", "obs"))
    phi = pm.HalfNormal("phi", 10.0)  # variance = mean + mean² / phi
    pm.NegativeBinomial("X", mu=hours[None, :] * (W @ H), alpha=phi, observed=X, dims=("feature", "obs"))
    flocks = pm.sample(NUTS_DRAWS, **short_pm)
try:
    nz.describe(lumpy)
except nz.UnreadableModel as error:
    print("UnreadableModel:", error)
lumps = pm.sample_posterior_predictive(flocks, model=lumpy, var_names=["X"], random_seed=1, progressbar=False)
both = {"Poisson": replicated, "negative binomial": lumps}
hold_against({name: found["posterior_predictive"]["X"] for name, found in both.items()}, ZEROS | LEFT)
low, high = flocks["posterior"]["phi"].quantile([0.05, 0.95]).to_numpy()
print(f"phi: 90% interval {low:.1f} to {high:.1f} (simulated with 3)")
nz.summarise_components(nz.align(flocks)).round(2)

# %% [markdown]
# The new model's tables look like the observed one in both respects. Under NUTS some cells mix slowly, as `ess_bulk`
# shows; for a paper one would draw longer.
#
# ## Leave-one-out
#
# `pm.compute_log_likelihood` adds what `az.loo` and `az.compare` need. The unit left out is a *cell*, predicted from
# the others of its row and column. Here are Poisson models of several ranks and the negative binomial one. (ArviZ 1.x
# writes `elpd_diff` with the other sign.)

# %%
RANKS = (2, 3) if SMALL else (2, 3, 4, 5)
fits, results = {"negative binomial, rank 3": (lumpy, flocks)}, {}
for rank in RANKS:
    each = declare(rank)
    drawn = nz.sample(DRAWS, model=each, chains=4, cores=CORES, random_seed=1, quiet=True) if rank != 3 else gibbs
    fits[f"Poisson, rank {rank}"] = each, drawn
for name, (each, idata) in fits.items():
    pm.compute_log_likelihood(idata, model=each, progressbar=False)
    found = az.loo(idata, pointwise=True)
    elpd = found.elpd_loo if OLD else found.elpd
    k = found.pareto_k.to_numpy()
    results[name] = {"elpd": round(elpd, 1), "se": round(found.se, 1), "cells with k > 0.7": f"{(k > 0.7).mean():.0%}"}
print(az.compare({name: idata for name, (_, idata) in fits.items()})[["rank", "elpd_diff", "dse"]].to_string())
pd.DataFrame(results).T

# %% [markdown]
# Two lessons, on the full table. The Poisson models get better with every component: a rank that is "chosen" under
# the wrong likelihood explains noise, and the negative binomial model of rank 3 leaves all of them behind. And the
# last column: k above 0.7 says that leaving this cell out would move the posterior so much that importance sampling
# can't tell the result. A factorisation has a parameter for every few cells, so some are always like that; where it
# is one in five, `elpd` is not to be trusted, and is usually too kind. Cure: hold cells out for good (`mask=`, or
# `nz.Holdout` in `nz.select_rank`), or compare evidence (`04_how_many_components`).
#
# To leave out whole *ponds* is worse, since H of a pond is known from that pond alone:

# %%
by_pond = az.loo(nz.log_likelihood(gibbs, model, per="obs"), pointwise=True)
print(f"Poisson, rank 3, leaving out ponds: {(by_pond.pareto_k.to_numpy() > 0.7).mean():.0%} with k > 0.7")

# %% [markdown]
# ## Calibration of single cells: LOO-PIT
#
# Where does each count fall in its own leave-one-out predictive distribution? Uniformly, if the model is right.
# Counts are discrete, so the position is drawn at random within its step; the weights 1 / likelihood, cut at √S times
# their mean for S draws (as in Ionides, 2008), turn the full predictive distribution into one without the cell.


# %%
def loo_pit(idata, replicated):
    draws = {"chain": replicated.chain, "draw": replicated.draw}
    loglik = idata["log_likelihood"]["X"].sel(draws).stack(s=("chain", "draw")).transpose("s", ...).to_numpy()
    x = replicated.stack(s=("chain", "draw")).transpose("s", ...).to_numpy()
    weight = np.exp(loglik.min(axis=0) - loglik)
    weight = np.minimum(weight, np.sqrt(len(x)) * weight.mean(axis=0))
    below, at = ((weight * found).sum(axis=0) / weight.sum(axis=0) for found in (x < X.to_numpy(), x == X.to_numpy()))
    return (below + np.random.default_rng(1).random(X.shape) * at).ravel()


fig, axes = plt.subplots(1, 2, figsize=(10, 2.6), sharey=True, layout="constrained")
cases = {"Poisson, rank 3": replicated, "negative binomial, rank 3": lumps}
for ax, (name, found), colour in zip(axes, cases.items(), (ORANGE, BLUE), strict=True):
    pit = loo_pit(fits[name][1], found["posterior_predictive"]["X"])
    ax.hist(pit, bins=20, range=(0, 1), density=True, color=colour, alpha=0.7)
    ax.axhline(1, color="black", lw=1)
    ax.set(title=name, xlabel="LOO-PIT")
plt.show()

# %% [markdown]
# Towers at both ends mean that counts are too often beyond what the Poisson model expects; the negative binomial
# model is far closer to the line.
#
# ## Interventions: `pm.do` and `pm.observe`
#
# Would the sampler find the truth if the model *were* right? Declare with nothing observed, draw a truth from the
# prior, fix both factors at it with `pm.do`, draw a table, and observe that with `pm.observe`. Our engines read the
# result as any other model.

# %%
labels = {"feature": X.index, "obs": X.columns}
prior = {"alpha_w": 0.5, "mean_w": 1 / 12, "alpha_h": 0.5, "mean_h": 20.0}
blank = nz.gamma_nmf(None, 3, shape=X.shape, coords=labels, exposure=hours[None, :], **prior)
truth = dict(zip("WH", pm.draw([blank["W"], blank["H"]], random_seed=1), strict=True))
table = pm.draw(pm.do(blank, truth)["X"], random_seed=2)
right = nz.sample(DRAWS, model=pm.observe(blank, {"X": table}), chains=2, cores=CORES, random_seed=1, quiet=True)
found = nz.align(right, reference=truth, scale="drawn")
for what, draws, true in (("W", found["posterior"]["W"], truth["W"]), ("W H", product(found), truth["W"] @ truth["H"])):
    low, high = draws.quantile([0.05, 0.95], dim=("chain", "draw"))
    print(f"{float(((low <= true) & (true <= high)).mean()):.0%} of the cells of {what} lie in their 90% intervals")

# %% [markdown]
# About nine in ten, as it should be: here the prior is the one that the truth was drawn from. W and H share a scale
# that the data can't see, so that with priors of another scale the cells of W would be off by a common factor, and
# those of W H hardly. For a proof one repeats this many times, which is what `nz.calibrate` does.
#
# Fixing W alone makes a model in which only H is unknown: habitats known from elsewhere, and nothing left to switch.

# %%
known = pm.do(model, {"W": W_true})
print(nz.describe(known))
given = nz.sample(DRAWS, model=known, chains=4, cores=CORES, random_seed=1, quiet=True)
print(f"R-hat of the raw H, worst cell: {float(az.rhat(given, var_names=['H'])['H'].max()):.3f}")

# %% [markdown]
# ## Points: `pm.find_MAP` and EM
#
# With shapes below 1 a density is infinite where a cell is zero, so there is no maximum to find (EM says so, and
# offers `mode="log"`). With shapes of 1.5 there is one. `find_MAP` goes along gradients from PyMC's starting point,
# and that is a trap: there all components are equal, so their gradients are equal, and they stay equal for ever. A
# draw from the prior is a better start. EM starts several times; all values are log joint densities.

# %%
smooth = declare(3, alpha=1.5)
log_joint = smooth.compile_logp(jacobian=False)
most = {"maxeval": 20} if SMALL else {}
random = dict(zip("WH", pm.draw([smooth["W"], smooth["H"]], random_seed=1), strict=True))
starts = {"PyMC's own": None, "drawn from the prior": random}
if SMALL:
    starts.pop("PyMC's own")  # no time to compile
for name, start in starts.items():
    top = pm.find_MAP(model=smooth, start=start, progressbar=False, **most)
    print(f"find_MAP, start {name}: {float(log_joint({v: top[v] for v in smooth.initial_point()})):.2f}")
point = nz.fit(model=smooth, engine="em", restarts=5, search=None, cores=CORES, random_seed=1, quiet=True)
print("EM, five starts:", point["sample_stats"]["lp"].to_numpy().ravel().round(2))

# %% [markdown]
# On the full table `find_MAP` from a draw of the prior ends where one of EM's starts ends as well: a hill, and not
# the highest one. A single start, of either, can't know that.
#
# ## New circumstances, and missing cells
#
# What would ten hours at every pond have shown? The exposure is `pm.Data`, so `pm.set_data` changes it for
# predictions. (It changes the model; build a new one, or set it back, before going on.)

# %%
with declare(3) as ten_hours:
    pm.set_data({"exposure": np.full((1, PONDS), 10.0)})
    future = pm.sample_posterior_predictive(
        thinned, var_names=["X"], predictions=True, random_seed=1, progressbar=False
    )
expected = future["predictions"]["X"].sum("feature").quantile([0.05, 0.5, 0.95], dim=("chain", "draw"))
expected.to_pandas().T.round().astype(int).assign(seen=X.sum(), hours=hours.astype(int)).head(4)

# %% [markdown]
# Cells that were not counted are NaN in the table: the declaration leaves them out of the likelihood, and `nz.impute`
# draws them back. We hide a quarter, and see how many come back into their 90% intervals. On the full table too few
# do under the Poisson model, for the reason found above.

# %%
hidden = np.random.default_rng(2).random(X.shape) < 0.25
gaps = declare(3, table=X.mask(hidden))
holes = nz.sample(DRAWS, model=gaps, chains=2, cores=CORES, random_seed=1, quiet=True)
guess = nz.impute(holes, gaps, random_seed=1)
low, high = guess.quantile([0.05, 0.95], dim=("chain", "draw"))
inside = (low <= X.to_numpy()[hidden]) & (X.to_numpy()[hidden] <= high)
print(f"{hidden.sum()} cells hidden, {float(inside.mean()):.0%} of them inside their 90% intervals")

# %% [markdown]
# ## Files
#
# `nz.save` and `nz.load` are the same on both lines of ArviZ, and what they write is netCDF that `az.from_netcdf`
# reads. All groups come along, the labels too.

# %%
with tempfile.TemporaryDirectory() as folder:
    nz.save(aligned, Path(folder) / "birds.nc")
    again = nz.load(Path(folder) / "birds.nc")
    theirs_too = az.from_netcdf(str(Path(folder) / "birds.nc"))
    equal = bool((theirs_too["posterior"]["W"].to_numpy() == aligned["posterior"]["W"].to_numpy()).all())
print(f"the same draws: {equal}; the first birds: {', '.join(again['posterior']['feature'].to_numpy()[:3])}")

# %% [markdown]
# ## Where to go from here
#
# - `03_gibbs_and_nuts`: the two samplers side by side. `04_how_many_components`: what to use where LOO is not enough.
# - `09_your_own_model`: hyperpriors, and `nz.ConjugateGibbs`, which lets `pm.sample` draw gamma factors by our
#   kernels.
