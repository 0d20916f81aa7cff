# %% [markdown]
# # Activations that change smoothly
#
# When samples are times, neighbours resemble each other. A model of independent columns does not know that. Chains in
# time do, in different ways: with a law that they return to, or as a walk that never does. Between two neighbours that
# hardly matters; far ahead it is the whole difference.
#
# What you need to know: what W, H and a posterior are (first three notebooks); the eighth is about particles. What you
# will see: `GammaChain`, `BGAR` and `LogNormalAR` beside independent columns, a missing time, forecasts, and a score
# one step ahead. More in the guide: [chains in time](../docs/guide/chains.md).

# %%
import gzip
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
from scipy.special import logsumexp
from scipy.stats import poisson, t

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about short chains, which are judged below by what they predict
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
COLOURS = {"independent columns": "0.4", "LogNormalAR": "#009E73", "BGAR": "#0072B2", "GammaChain": "#D55E00"}
FOLDER = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
WORDS, TOPICS, ORIGINS = (40, 2, 2) if SMALL else (150, 4, 5)
RUN = {"draws": 20 if SMALL else 200, "tune": 20 if SMALL else 200, "chains": 2}
RUN |= {"random_seed": 1, "cores": 2, "quiet": True}

# %% [markdown]
# ## The data: thirteen years of a conference
#
# Word counts of NIPS papers from 1987 to 1999. The file has no dates: as in the eighth notebook, thirteen parts of
# equal size, in the order of the papers, stand for the years. Counts are thinned to a fiftieth, so that a year says
# little and its neighbours have something to add. Without the data a stand-in is simulated.

# %%
YEARS = 13


def simulated(n_words=1000, n_topics=4):
    """Words by years of topics that rise and fall, for a machine without the data."""
    rng = np.random.default_rng(1)
    log_h = rng.normal(size=(n_topics, 1)) + np.cumsum(0.25 * rng.normal(size=(n_topics, YEARS)), axis=1)
    counts = rng.poisson(rng.dirichlet(np.full(n_words, 0.1), n_topics).T @ (20_000 * np.exp(log_h)))
    return counts, np.array([f"word{f}" for f in range(n_words)])


def by_year():
    """Words by thirteenths of the papers: the words that most papers do not use."""
    counts = sp.csr_array(sp.load_npz(FOLDER / "nips_uci" / "nips_counts.npz"))
    words = np.array(gzip.decompress((FOLDER / "nips_uci" / "vocab.nips.txt.gz").read_bytes()).decode().split())
    rare = (counts > 0).sum(axis=1) < 0.35 * counts.shape[1]
    parts = np.array_split(np.arange(counts.shape[1]), YEARS)
    return np.stack([counts[rare][:, part].sum(axis=1) for part in parts], axis=1), words[rare]


if (FOLDER / "nips_uci").exists():
    (counts, words), name = by_year(), "NIPS papers (D. Newman, Bag of Words, UCI, 2008, CC BY 4.0)"
else:
    (counts, words), name = simulated(), "a simulated stand-in"
kept = np.sort(np.argsort(-counts.sum(axis=1))[:WORDS])
words, whole = words[kept], counts[kept].astype(int)
X = np.random.default_rng(1).binomial(whole, 0.02)
print(f"{name}: {WORDS} words, {YEARS} years, {X.sum(axis=0).mean():.0f} counts in each after thinning")

# %% [markdown]
# ## Four laws of the activations
#
# | | the next value | stationary law |
# |---|---|---|
# | independent columns | a gamma draw, whatever was before | that gamma law |
# | `LogNormalAR` | the logarithm goes back towards a mean, and takes a normal step | a log-normal law |
# | `BGAR` | a share stays, a gamma draw comes to it | Gamma(alpha, beta) |
# | `GammaChain` | two gamma draws: the logarithm takes a step from where it is | **none**: a random walk |
#
# Their parameters are variables with priors, and drawn along. W has the same prior in all of them.

# %%
W_PRIOR = {"alpha_w": 0.5, "beta_w": 0.5}


def independent(X):
    shape, mean = pm.Gamma("a", 3.0, 1.0), pm.InverseGamma("m", 2.0, 2.0, shape=(TOPICS, 1))
    nz.gamma_nmf(X, TOPICS, alpha_h=shape, mean_h=mean, **W_PRIOR)


def log_normal(X):
    chain = nz.LogNormalAR(pm.Normal("m", 0.0, 1.0), pm.Beta("f", 4.0, 1.0), pm.HalfNormal("s", 0.7))
    nz.hmm_nmf(X, TOPICS, chain=chain, **W_PRIOR)


def bgar(X):
    chain = nz.BGAR(pm.Gamma("a", 3.0, 1.0), pm.Gamma("b", 3.0, 3.0), pm.Beta("r", 4.0, 1.0))
    nz.hmm_nmf(X, TOPICS, chain=chain, **W_PRIOR)


def gamma_chain(X):
    shape = pm.Gamma("a", 3.0, 0.2)
    nz.hmm_nmf(X, TOPICS, chain=nz.GammaChain(shape, shape), **W_PRIOR)


LAWS = dict(zip(COLOURS, (independent, log_normal, bgar, gamma_chain), strict=True))


def declare(name, X):
    with pm.Model(coords={"feature": words}) as model:
        LAWS[name](X)
    return model


def draw(name, X):
    """(result, model); Gibbs, and particle Gibbs for the log-normal chain."""
    model = declare(name, X)
    return nz.sample(model=model, engine="particle_gibbs" if name == "LogNormalAR" else "gibbs", **RUN), model


# %% [markdown]
# ## A missing time
#
# We hide the seventh year and fit all four to the others. What do they say of the counts that were hidden? A chain
# holds on to both neighbours. An independent column without data is a draw of its prior.

# %%
HIDDEN = 6
with_gap = X.astype(float)
with_gap[:, HIDDEN] = np.nan
fitted = {name: draw(name, with_gap) for name in LAWS}


def log_score(mean, x):
    """Log predictive density of each cell of x (feature,), from draws of its mean (draw, feature)."""
    return logsumexp(poisson.logpmf(x, np.maximum(mean, 1e-12)), axis=0) - np.log(len(mean))


def weights(idata):
    W = idata.posterior["W"].to_numpy()
    return W.reshape(-1, *W.shape[2:])


def activations(idata):
    H = idata.posterior["H"].to_numpy()
    return H.reshape(-1, *H.shape[2:])


rows = {}
for name, (idata, _) in fitted.items():
    mean = np.einsum("sfk,sk->sf", weights(idata), activations(idata)[..., HIDDEN])
    low, high = np.quantile(mean.sum(axis=1), [0.05, 0.95])
    score = log_score(mean, X[:, HIDDEN]).mean()
    rows[name] = {"nats per hidden cell": score, "total, 5 %": low, "total, 95 %": high}
print(f"hidden: {X[:, HIDDEN].sum()} counts")
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# A narrower interval is not yet a better one: one year is one draw, and scores come below. The picture has the words
# that rise most and those that fall most, a tenth of all each, in expected counts of a year. Bands are 90 % of the
# posterior. The crosses are the thinned counts, which the models saw but for those of the grey year. The dots are a
# fiftieth of the whole counts, of which the thinned ones are a draw: no model saw these. The words were chosen for
# their change, and a few topics may follow it in part only.


# %%
def band(ax, x, draws, colour):
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    ax.plot(x, middle, color=colour, lw=1.5)


year = np.arange(1, YEARS + 1)
slope = np.sqrt(whole) @ (year - year.mean())
order = np.argsort(slope)
sets = {"rise": order[-WORDS // 10 :], "fall": order[: WORDS // 10]}
fig, axes = plt.subplots(2, 4, figsize=(12, 5), sharex=True, sharey="row", layout="constrained")
for column, (name, (idata, _)) in zip(axes.T, fitted.items(), strict=True):
    for some, ax in zip(sets.values(), column, strict=True):
        ax.axvspan(HIDDEN + 0.5, HIDDEN + 1.5, color="0.92", lw=0)
        band(ax, year, np.einsum("sk,skt->st", weights(idata)[:, some].sum(axis=1), activations(idata)), COLOURS[name])
        ax.plot(year, X[some].sum(axis=0), "x", color="0.5", markersize=4)
        ax.plot(year, 0.02 * whole[some].sum(axis=0), "o", color="black", markersize=3)
    column[0].set_title(name, fontsize=10)
    column[1].set(xlabel="year", xticks=year[::3], ylim=(0, None))
for what, ax in zip(sets, axes[:, 0], strict=True):
    ax.set(ylabel=f"counts of the words that {what}", ylim=(0, None))
plt.show()
print("rise:", ", ".join(words[sets["rise"][::-1][:8]]), "\nfall:", ", ".join(words[sets["fall"][:8]]))

# %% [markdown]
# ## Far ahead
#
# `nz.forecast` lets the chains of every draw go on by their law. The picture is the total of each year, thirty years
# ahead. `BGAR` and `LogNormalAR` return to their stationary laws, and their bands tend to a constant width. A gamma
# chain has no such law: what lies ahead spreads without a bound, the logarithm of each activation as the root of time.
# That is right where nothing is known to pull back, and wrong where something does.

# %%
AHEAD = 30
fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True, layout="constrained")
for ax, name in zip(axes, list(LAWS)[1:], strict=True):
    idata, model = fitted[name]
    total = nz.forecast(idata, model, times=AHEAD, random_seed=1)["X"].sum("feature").to_numpy()
    total = np.maximum(total.reshape(-1, AHEAD), 1)
    band(ax, YEARS + np.arange(1, AHEAD + 1), total, COLOURS[name])
    ax.plot(year, X.sum(axis=0), ".-", color="0.3", lw=0.8)
    ax.set(title=name, xlabel="year", yscale="log")
    width = np.diff(np.log(np.quantile(total[:, [0, 9, AHEAD - 1]], [0.05, 0.95], axis=0)), axis=0)[0]
    print(f"{name:12}log of 95 % less log of 5 %, 1, 10, {AHEAD} years ahead:", " ".join(f"{w:.2f}" for w in width))
axes[0].set_ylabel("counts of a year")
plt.show()

# %% [markdown]
# ## One step ahead
#
# The test of a model of time is the next time. Each is fitted to the years before an origin and says what that year's
# counts are; the score is the log predictive density of its cells. Beside it the difference from independent columns,
# with the standard error of the origins. They are few and share most of their data. On NIPS with 200 words and 300
# draws a chain all three were ahead, two of them by more than 2.8 standard errors; below are 150 words and 200 draws.
# This shows how to ask, and settles nothing.


# %%
def next_mean(name, idata, model):
    """(draw, feature): means of the next time, by the chain or, of independent columns, by a draw of the prior."""
    if name == "independent columns":
        shape, mean = (idata.posterior[one].to_numpy() for one in ("a", "m"))
        shape, mean = shape.reshape(-1, 1), mean.reshape(-1, TOPICS)
        h = np.random.default_rng(2).gamma(np.broadcast_to(shape, mean.shape)) * mean / shape
    else:
        h = nz.forecast(idata, model, random_seed=2)["H"].to_numpy()[..., 0].reshape(-1, TOPICS)
    return np.einsum("sfk,sk->sf", weights(idata), h)


origins = range(YEARS - ORIGINS, YEARS)
scores = {
    name: np.array([log_score(next_mean(name, *draw(name, X[:, :at])), X[:, at]).mean() for at in origins])
    for name in LAWS
}
gains = {name: own - scores["independent columns"] for name, own in scores.items()}
rows = {
    name: {
        "nats per cell": own.mean(),
        "beside independent": gains[name].mean(),
        "±": gains[name].std(ddof=1) / np.sqrt(ORIGINS),
    }
    for name, own in scores.items()
}
pd.DataFrame(rows).T.round(4)

# %%
fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for name, gain in list(gains.items())[1:]:
    ax.plot([at + 1 for at in origins], gain, "o-", color=COLOURS[name], label=name)
ax.axhline(0, color=COLOURS["independent columns"], linewidth=1, label="independent columns")
ax.set(xlabel="year that is forecast", ylabel="nats per cell", xticks=[at + 1 for at in origins])
ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()
beyond = t.ppf(0.975, ORIGINS - 1)
ahead = [name for name, row in rows.items() if row["beside independent"] > beyond * row["±"] > 0]
print(f"ahead of independent columns by more than {beyond:.1f} standard errors: {', '.join(ahead) or 'none'}")

# %% [markdown]
# ## Which one?
#
# - `BGAR` or `LogNormalAR` where the series has a level that it returns to: both have a proper stationary law. Of BGAR
#   that is a gamma law, and it runs by Gibbs alone; `LogNormalAR` takes particles.
# - `GammaChain` where only neighbours are alike. It runs by Gibbs, VB, EM and NUTS, and its forecasts know no level.
# - A dozen times say little of which chain it is. Where each sample has many counts, none of them matters much: it
#   speaks for itself.
