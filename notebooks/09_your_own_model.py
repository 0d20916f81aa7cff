# %% [markdown]
# # Your own model: conjugate steps, hyperpriors, exposure
#
# A factorisation is often a part of a larger model: unknown prior parameters, a known exposure, covariates that say
# which samples should be active in what. Here such a model is written by hand in PyMC, and W and H in it are drawn by
# the zoo's Gibbs kernels while NUTS takes the rest: one argument of `pm.sample`.
#
# What you need to know: PyMC, and what a Poisson regression with an offset is. What you will see: a regression on top
# of a factorisation, `nz.ConjugateGibbs` beside NUTS alone on data whose truth is known, the same on mutations of
# breast cancers (or a simulated stand-in), what the zoo's own declarations offer without any code, and what is
# refused.

# %%
import logging
import os
import time
import warnings
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import nmf_zoo as nz

warnings.simplefilter("ignore")  # short chains are short on purpose, and their diagnostics are shown below
logging.getLogger("pymc").setLevel(logging.ERROR)
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
FOLDER = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"

# %% [markdown]
# ## The model
#
# Counts of `feature`s in `sample`s, each sample with an exposure (sequencing depth, length of a document, how often a
# mutation had the chance to happen), and one covariate `z` of each sample. Every component has a level, in
# logarithms, and the covariate moves it by an effect, which is what we want to know:
#
# $$H_{kn} \sim \mathrm{Gamma}\big(\alpha_h,\ \mathrm{mean} = e^{\ell_k + b_k z_n}\big), \qquad X_{fn} \sim
# \mathrm{Poisson}\Big(e_{fn} \sum_k W_{fk} H_{kn}\Big)$$
#
# The shapes of both gamma priors are unknown: how sparse profiles are, and how much samples differ from what level
# and effect say. Columns of W sum to about 1 (their cells have mean 1 / F), which settles the scale that W and H
# could share in many ways.


# %%
def declare(X, exposure, z, rank, coords=None):
    """Poisson factorisation whose activations have a log-linear mean."""
    n_features, n_samples = X.shape
    coords = coords or {"feature": range(n_features), "obs": range(n_samples)}
    with pm.Model(coords={**coords, "component": range(rank)}) as model:
        level = pm.Normal("level", np.log(X.sum() / n_samples / rank), 1.5, dims="component")
        effect = pm.Normal("effect", 0.0, 1.0, dims="component")
        alpha_w, alpha_h = pm.Gamma("alpha_w", 2.0, 2.0), pm.Gamma("alpha_h", 2.0, 2.0)
        mean_w, mean_h = 1.0 / n_features, pm.math.exp(level[:, None] + effect[:, None] * z)
        W = pm.Gamma("W", alpha_w, alpha_w / mean_w, dims=("feature", "component"))
        H = pm.Gamma("H", alpha_h, alpha_h / mean_h, dims=("component", "obs"))
        pm.Poisson("X", exposure * (W @ H), observed=X, dims=("feature", "obs"))
    return model


# %% [markdown]
# Data with a known truth first: the covariate raises one component's activations to four and a half times, lowers
# another's to three eighths, and leaves the third alone. Depths differ by a factor of about thirty.

# %%
TRUE = {"level": np.log([40.0, 60.0, 20.0]), "effect": np.array([0.0, -1.0, 1.5]), "alpha_w": 0.3, "alpha_h": 2.0}


def simulated(n_features, n_samples, level, effect, alpha_w, alpha_h, spread, seed):
    """Counts, exposure, covariate, and the activations that made them."""
    rng = np.random.default_rng(seed)
    z = np.repeat([0.0, 1.0], [n_samples - n_samples // 2, n_samples // 2])
    W = rng.dirichlet(np.full(n_features, alpha_w), size=len(level)).T
    H = rng.gamma(alpha_h, np.exp(level[:, None] + effect[:, None] * z) / alpha_h)
    exposure = np.exp(rng.normal(0.0, spread, n_samples))
    exposure /= exposure.mean()
    return rng.poisson(exposure * (W @ H)), np.tile(exposure, (n_features, 1)), z, H


X, exposure, z, true_H = simulated(15 if SMALL else 40, 20 if SMALL else 60, **TRUE, spread=0.8, seed=1)
model = declare(X, exposure, z, rank=3)
print(f"{X.mean():.1f} counts in a cell, from {X.sum(axis=0).min()} to {X.sum(axis=0).max()} in a sample")

# %% [markdown]
# ## What the zoo makes of it
#
# The engines of `nz.sample` take a factorisation with hyperparameters, and this is more: the reader says so, and
# where.

# %%
try:
    print(nz.describe(model))
except nz.UnreadableModel as refusal:
    print(refusal)

# %% [markdown]
# `nz.ConjugateGibbs` asks for less. Given everything else in the model (level, effect, shapes), W and H have gamma
# priors with known parameters, and then a Gibbs sweep is exact, whatever these parameters were computed from. It
# finds this block in the model by itself; all other variables go to NUTS, which is PyMC's rule.

# %%
with model:
    step = nz.ConjugateGibbs(sweeps=16)
print("drawn by Gibbs:", [variable.name for variable in step.vars])
print("left to NUTS:", [variable.name for variable in model.value_vars if variable not in step.vars])

# %% [markdown]
# ## Beside NUTS alone
#
# The same model twice, with the step and without. A posterior of a factorisation has a mode for each order of the
# components. Both begin at the same maximum of the density, found by EM under fixed hyperparameters, so that the
# chains are likely to stay in one order; `nz.align` below takes care of those that do not. `sweeps=16` makes W and H
# move far between two moves of the rest: sweeps are cheap beside NUTS's gradients.


# %%
def start_of(X, exposure, rank):
    """Factors at the maximum under fixed hyperparameters, the columns of W made to sum to 1."""
    plain = nz.gamma_nmf(X, rank, exposure=exposure, alpha_w=1.0, beta_w=len(X), alpha_h=1.0, beta_h=1e-3)
    em = nz.fit(model=plain, engine="em", restarts=2 if SMALL else 10, search=None, random_seed=1, quiet=True)[
        "posterior"
    ]
    W, H = (em[name].to_numpy()[0, 0] for name in "WH")
    return {"W": W / W.sum(axis=0) + 1e-6, "H": H * W.sum(axis=0)[:, None] + 1e-3}


def run(model, initvals, draws, step=None):
    """A PyMC run, and its seconds, compilation included."""
    how = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    began = time.perf_counter()
    with model:
        found = pm.sample(draws, tune=draws, initvals=initvals, step=step, **how)
    return found, time.perf_counter() - began


start = start_of(X, exposure, 3)
LENGTH = 20 if SMALL else 600
runs = {"Gibbs inside": run(model, start, LENGTH, [step])}
if not SMALL:  # NUTS compiles for seconds
    runs["NUTS alone"] = run(model, start, LENGTH)

# %% [markdown]
# `nz.align` works on anyone's draws that have W and H: components are matched across draws and chains, columns of W
# are made to sum to 1, and variables with a dim of components (`level`, `effect`) come along. We add `size`: what
# `level` is when the columns of W sum to 1. The model leaves these sums a little room, and only `size` is what the
# data know.


# %%
def aligned(found, reference=None):
    """The draws with components matched, and sizes."""
    found = nz.align(found, reference)
    found["posterior"]["size"] = found["posterior"]["level"] + np.log(found["alignment"]["factor"])
    return found


drawn = {name: aligned(found) for name, (found, _) in runs.items()}
HYPER = ["effect", "size", "level", "alpha_w", "alpha_h"]
rows = {}
for name, found in drawn.items():
    ess = az.ess(found, var_names=[*HYPER, "W", "H"])
    rows[name] = {"seconds": runs[name][1]} | {variable: float(ess[variable].min()) for variable in [*HYPER, "W", "H"]}
table = pd.DataFrame(rows).T
print("least effective draws of each variable, and the same per second (compilation included)")
pd.concat([table.round(1), table.div(table["seconds"], axis=0).drop(columns="seconds").round(2)])

# %% [markdown]
# At full settings effects mix about as well either way for each second, sizes better under NUTS alone, and where it is
# about W (its cells, their shape `alpha_w`) the step is ahead by a factor of two or three. `level` is slow in both,
# and it is clear why: given all of H_k it has no room. That does little harm, since `size` is what one wants to know.
#
# Do both agree? Means of everything that is no factor, and how many Monte-Carlo errors they are apart; beside them
# the truth, in the order of the components by their correlation with it.


# %%
def means(found):
    """Posterior mean, standard deviation and Monte-Carlo error of every hyperparameter."""
    return az.summary(found, var_names=HYPER, round_to="none")[["mean", "sd", "mcse_mean"]]


def matched_truth(found):
    """The truth in the order of the aligned components: by the correlation of activations."""
    H = found["posterior"]["H"].mean(("chain", "draw")).to_numpy()
    order = np.corrcoef(H, true_H)[:3, 3:].argmax(axis=1)
    true = TRUE | {"size": TRUE["level"]}
    return [x for name in HYPER for x in (true[name][order] if np.ndim(true[name]) else [true[name]])]


first = means(drawn["Gibbs inside"])
comparison = first[["mean", "sd"]].assign(truth=matched_truth(drawn["Gibbs inside"]))
if "NUTS alone" in runs:
    again = means(aligned(runs["NUTS alone"][0], drawn["Gibbs inside"]))
    comparison["mean of NUTS"] = again["mean"]
    comparison["errors apart"] = (first["mean"] - again["mean"]) / np.hypot(first["mcse_mean"], again["mcse_mean"])
comparison.round(2)

# %% [markdown]
# Effects and sizes are where they should be: within about two posterior standard deviations of the truth.
#
# ## Mutations of breast cancers
#
# Somatic mutations of 21 breast cancers, counted in 96 classes: a base change and its two neighbours (Nik-Zainal et
# al. 2012). Nine of the patients had inherited a broken BRCA1 or BRCA2 gene, which repair DNA. The exposure is how
# often each class could have happened: how often its three bases occur in the genome of that tumour. Which mutational
# processes are stronger in carriers?

# %%
CARRIERS = ["PD3890a", "PD3904a", "PD3905a", "PD3945a", "PD4005a", "PD4006a", "PD4107a", "PD4115a", "PD4116a"]
if (FOLDER / "brca21").exists():
    counts, chances = (
        pd.read_csv(FOLDER / "brca21" / f"brca21_{name}.tsv", sep="\t", index_col=0)
        for name in ("sbs96", "opportunity")
    )
    chances, source = chances / chances.to_numpy().mean(), "21 breast cancers (Nik-Zainal et al. 2012)"
    carrier = counts.columns.isin(CARRIERS).astype(float)
else:
    effects = {"level": np.log([400.0, 3000.0, 800.0, 600.0]), "effect": np.array([0.0, 0.0, 1.0, 1.0])}
    x, chances, carrier, _ = simulated(96, 21, **effects, alpha_w=0.3, alpha_h=1.0, spread=0.3, seed=2)
    counts, source = pd.DataFrame(x), "a simulated stand-in: effects 0, 0, 1, 1"
x, chances, RANK = counts.to_numpy(), np.asarray(chances), 2 if SMALL else 4
COORDS = {"feature": list(counts.index), "obs": list(counts.columns)}
print(f"{source}: {x.sum()} counts, {int(carrier.sum())} of {len(carrier)} with the covariate")

# %% [markdown]
# The same model, the same step. And once more without the sample that has the most counts: on the real data one
# tumour (PD4120a, no carrier) has more than a third of all mutations, nearly all of one process, and one sample may
# decide an effect.

# %%
COORDS = {"feature": list(counts.index), "obs": list(counts.columns)}


def fitted(kept, reference=None):
    """Aligned draws for some of the samples."""
    data = x[:, kept], chances[:, kept]
    model = declare(*data, carrier[kept], RANK, COORDS | {"obs": list(counts.columns[kept])})
    with model:
        step = nz.ConjugateGibbs(sweeps=4 if SMALL else 16)
    found, seconds = run(model, start_of(*data, RANK), 10 if SMALL else 500, [step])
    print(f"{kept.sum()} samples: {seconds:.0f} s")
    return aligned(found, reference)


everyone = np.ones(x.shape[1], dtype=bool)
found = fitted(everyone)
az.summary(found, var_names=HYPER)[["mean", "sd", "ess_bulk", "r_hat"]]

# %% [markdown]
# The components that these effects belong to, by their largest classes (`A[C>T]G` is a C that became a T between an A
# and a G), and how much of each comes from the one sample where it is strongest:

# %%
W, H = (found["posterior"][name].mean(("chain", "draw")).to_numpy() for name in "WH")
pd.DataFrame(
    {
        "share of all": (H.sum(axis=1) / H.sum()).round(2),
        "in its strongest sample": (H.max(axis=1) / H.sum(axis=1)).round(2),
        "largest classes": [", ".join(map(str, counts.index[np.argsort(-W[:, k])[:4]])) for k in range(RANK)],
    }
)

# %%
fits = {"all samples": (found, BLUE, -0.1)}
if not SMALL:
    rest = everyone & (np.arange(x.shape[1]) != x.sum(axis=0).argmax())
    fits["without the largest"] = (fitted(rest, {"W": W, "H": H[:, rest]}), ORANGE, 0.1)
fig, ax = plt.subplots(figsize=(6, 2.8))
for label, (result, colour, shift) in fits.items():
    low, middle, high = result["posterior"]["effect"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).to_numpy()
    ax.vlines(np.arange(RANK) + shift, low, high, color=colour, lw=3, label=label)
    ax.plot(np.arange(RANK) + shift, middle, "o", color="black", ms=4)
ax.axhline(0.0, color=GREY, lw=0.8)
ax.set(xticks=range(RANK), xlabel="component", ylabel="effect (logarithm)")
ax.set_title(f"effect of the covariate, 90 % intervals\n{source}", fontsize=9)
ax.legend(fontsize=8, frameon=False)
plt.show()

# %% [markdown]
# On the real data the strongest effect of all is none: component 0 (a C after a T; the paper suspects enzymes of the
# APOBEC family) looks many times weaker in carriers, since one tumour without the covariate has most of it, and
# without that tumour nothing is left of this. What stays is that component 2, which is spread over many classes, is
# about three times as active in carriers, which is what the paper found by other means, and with less certainty
# component 3. With 21 tumours intervals are wide.
#
# ## What needs no code
#
# Much of this the zoo's own declarations have: `exposure=`, `background=` (a known part of the mean), hyperparameters
# that are variables of the model around them, shared by whatever their shape says, and `nz.free(tie=...)` for those
# that are to be estimated without a prior. Such a model is read whole, so that all engines are there, and evidence,
# rank selection, prediction and calibration with them.

# %%
FLOOR = 0.1  # of the mean: counts that no component explains, such as errors of sequencing


def with_hyperpriors(x, exposure, shape=None):
    with pm.Model() as model:
        alpha_w = pm.Gamma("alpha_w", 2.0, 2.0)  # one number
        mean_h = pm.LogNormal("mean_h", 3.0, 1.0, shape=(RANK, 1))  # one for each component
        how = {"exposure": exposure, "background": FLOOR, "shape": shape}
        nz.gamma_nmf(x, RANK, alpha_w=alpha_w, mean_w=1 / 96, alpha_h=1.0, mean_h=mean_h, **how)
    return model


readable = with_hyperpriors(x, chances)
print(nz.describe(readable))
free = nz.gamma_nmf(x, RANK, exposure=chances, alpha_w=nz.free(), mean_w=1 / 96, mean_h=nz.free(tie="obs"))
print(nz.describe(free))
length = {"restarts": 2, "search": None, "max_iter": 50 if SMALL else 1000}
estimate = nz.fit(model=free, engine="vb", random_seed=1, quiet=True, **length)
{name: estimate["posterior"][name].to_numpy()[0, 0].round(2) for name in ("alpha_w", "mean_h")}

# %% [markdown]
# `nz.calibrate` checks an engine on a declaration: truths from the prior, data from them, and the ranks of the truth
# among posterior draws, hyperparameters included. It takes what the reader reads, so a model with a regression is
# checked as above instead: by NUTS, and by data whose truth is known.

# %%
FEW = {"simulations": 20 if SMALL else 100, "draws": 19, "thin": 1 if SMALL else 20, "tune": 5 if SMALL else 200}
FEW |= {"cores": 2, "random_seed": 1, "progressbar": False}
checked = nz.calibrate(lambda: with_hyperpriors(None, np.linspace(0.5, 2.0, 5), shape=(4, 5)), "gibbs", **FEW)
print(checked.attrs["verdict"])
nz.plot_calibration(checked)

# %% [markdown]
# ## What is refused
#
# A Gibbs sweep is exact only if nothing but X depends on W and H, and only for a Poisson likelihood with gamma
# priors. The step looks at the whole graph, and refuses anything else with the variable that stands in the way. There
# is no approximation that it would fall back to; NUTS on everything is always there.


# %%
def factors():
    return pm.Gamma("W", 1.0, 1.0, shape=(4, 2)), pm.Gamma("H", 1.0, 1.0, shape=(2, 5))


def outcome_of_activations():
    W, H = factors()
    pm.Poisson("X", W @ H, observed=np.ones((4, 5)))
    pm.Normal("weight of the patient", H.sum(axis=0), 1.0, observed=np.zeros(5))


def penalty():
    W, H = factors()
    pm.Poisson("X", W @ H, observed=np.ones((4, 5)))
    pm.Potential("smooth", -((W[1:] - W[:-1]) ** 2).sum())


def other_prior():
    H = pm.LogNormal("H", 0.0, 1.0, shape=(2, 5))
    pm.Poisson("X", pm.Gamma("W", 1.0, 1.0, shape=(4, 2)) @ H, observed=np.ones((4, 5)))


def other_likelihood():
    W, H = factors()
    pm.NegativeBinomial("X", mu=W @ H, alpha=1.0, observed=np.ones((4, 5), dtype=int))


for build in (outcome_of_activations, penalty, other_prior, other_likelihood):
    with pm.Model():
        build()
        try:
            nz.ConjugateGibbs()
        except nz.UnsupportedModel as refusal:
            print(f"{build.__name__}: {refusal}")

# %% [markdown]
# ## Where to go from here
#
# - several factorisations in one model: a step for each, `nz.ConjugateGibbs([W, H])`
# - a covariate for features instead of samples works the same way, in the prior of W; so does a tree of groups
# - a model that the reader reads, hyperpriors included: then `nz.sample(model=...)` is the faster way, with
#   trajectories that mix better
# - the next notebook: a declaration and an engine of your own
