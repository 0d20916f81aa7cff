# %% [markdown]
# # Sources, measured with errors that are known
#
# A table of concentrations, species by samples, is a sum of sources: the profile of each, times how much of it was in
# the air. Every value was measured with an error, and often one knows how large: a limit of detection, so many per
# cent, one species that the instrument hardly sees. What does it help to say so?
#
# What you need to know: what W, H and a posterior are (first three notebooks). What you will see: `normal_nmf` with an
# error for each value, beside least squares and scikit-learn; intervals held against the truth; errors that are not
# known; and sources that are. All data are simulated. More in the guide: [sources](../docs/guide/sources.md).

# %%
import os
import warnings
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from scipy.optimize import linear_sum_assignment

import nmf_zoo as nz
from nmf_zoo.diagnostics.convergence import verdict_on

warnings.simplefilter("ignore")  # notes about short chains at small settings
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE = "#0072B2", "#D55E00"
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
RUN = {"random_seed": 1, "cores": 2, "quiet": True}
CHAINS = {"draws": 25 if SMALL else 500, "tune": 25 if SMALL else 500, "chains": 2, "engine": "gibbs", **RUN}
SAMPLES = 30 if SMALL else 80


def say(result):
    verdict = verdict_on(result)
    print(f"{verdict.text}\n-> {verdict.do}")


# %% [markdown]
# ## The data
#
# Three sources of fifteen species, drawn from the exponential priors that we use below. Errors are a limit of
# detection and a tenth of the value; every fourth species is measured four times worse. What would be measured below 0
# is reported as 0, as instruments do.

# %%
rng = np.random.default_rng(1)
species = [f"species {i}" for i in range(1, 16)]
NAMES = ["traffic", "sea salt", "dust"]
worse = np.where(np.arange(15) % 4 == 0, 4.0, 1.0)[:, None]


def sources(n_samples, shape=1.0):
    """Profiles that sum to 1, exponential or of another shape, amounts, and the errors of their sum."""
    W, H = rng.gamma(shape, 1 / (15 * shape), (15, 3)), rng.exponential(20.0, (3, n_samples))
    errors = (0.02 + 0.1 * W @ H) * worse
    return W / W.sum(axis=0), H * W.sum(axis=0)[:, None], pd.DataFrame(errors, index=species)


def measured(truth, sigma):
    return pd.DataFrame(np.maximum(truth + sigma * rng.standard_normal(truth.shape), 0.0), index=species)


profiles, amounts, errors = sources(SAMPLES)
truth = profiles @ amounts
X = measured(truth, errors.to_numpy())
print(f"{X.shape[0]} species, {X.shape[1]} samples, {np.mean(X == 0):.1%} of the values reported as 0;", end=" ")
print(f"errors from {errors.min().min():.2f} to {errors.max().max():.1f}")

# %% [markdown]
# ## Does it help to know the errors?
#
# Without priors the fit is least squares: of all values alike, or each in units of its error, which is the positive
# matrix factorisation of Paatero and Tapper (1994). We compare both with the truth, in errors of measurement.

# %%
fits = {
    "all alike": nz.fit(model=nz.normal_nmf(X, rank=3), engine="em", **RUN),
    "weighted": nz.fit(model=nz.normal_nmf(X, rank=3, sigma=errors), engine="em", **RUN),
}


def factors(fitted):
    """W and H of a fit in the order of the true sources; profiles sum to 1."""
    return in_order(*(fitted.posterior[name].to_numpy()[0, 0] for name in ("W", "H")))


def in_order(W, H):
    W, H = W / W.sum(axis=0), H * W.sum(axis=0)[:, None]
    order = nearest(W, profiles)
    return W[:, order], H[order]


def nearest(W, profiles):
    """The columns of W that are the profiles', by their cosines."""
    ours, theirs = (V / np.linalg.norm(V, axis=0) for V in (W, profiles))
    return linear_sum_assignment(-theirs.T @ ours)[1]


def off(W, H):
    return float(np.sqrt(np.mean(((W @ H - truth) / errors.to_numpy()) ** 2)))


found = {name: factors(fitted) for name, fitted in fits.items()}
for name, (W, H) in found.items():
    print(f"{name:10}{off(W, H):.2f} errors of measurement from the truth, as a root mean square;", end=" ")
    print(f"profiles off by {np.abs(W - profiles).sum() / 6:.1%} of their mass")

# %%
fig, axes = plt.subplots(3, 1, figsize=(10, 5), sharex=True, layout="constrained")
at = np.arange(15)
for k, ax in enumerate(axes):
    ax.bar(at, profiles[:, k], color="0.85", width=0.8, label="truth")
    for (name, (W, _)), shift, colour in zip(found.items(), (-0.15, 0.15), (BLUE, ORANGE), strict=True):
        ax.plot(at + shift, W[:, k], "o", color=colour, markersize=5, label=name)
    ax.set_title(NAMES[k], fontsize=9, loc="left")
fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside upper right")
axes[1].set_ylabel("share of the profile")
axes[2].set(xticks=at, xlabel="species; those in bold are measured four times worse")
axes[2].set_xticklabels(range(1, 16))
for label in axes[2].get_xticklabels()[::4]:
    label.set_fontweight("bold")
plt.show()

# %% [markdown]
# ## Beside scikit-learn
#
# With one error for all values the weights are alike, and `normal_nmf` without priors is the squared error that
# scikit-learn's `NMF` minimises. Both end where the other does, up to what is left of convergence. It takes no error
# for each value: on our data it is the first of the fits above.

# %%
if find_spec("sklearn"):
    from sklearn.decomposition import NMF

    theirs = NMF(3, init="nndsvda", tol=1e-8, max_iter=5000, random_state=1)
    W = theirs.fit_transform(X.to_numpy())
    H = theirs.components_
    of_alike = [fits["all alike"].posterior[name].to_numpy()[0, 0] for name in ("W", "H")]
    loss = [np.sum((X.to_numpy() - W @ H) ** 2), np.sum((X.to_numpy() - of_alike[0] @ of_alike[1]) ** 2)]
    print(f"sum of squares: scikit-learn {loss[0]:.4f}, normal_nmf {loss[1]:.4f}")
    print(f"from the truth: scikit-learn {off(*in_order(W, H)):.2f}, weighted {off(*found['weighted']):.2f} errors")
else:
    print("scikit-learn is not installed: nothing to compare with")

# %% [markdown]
# ## How sure is it?
#
# With priors on both factors there is a posterior, and with known errors Gibbs draws from it exactly. Two priors: W and
# H exponential, which is how our sources were drawn; or truncated normal, W about an equal share of every species and H
# about 20. How much of the truth lies inside the 90 % intervals of each source's profile and amounts?

# %%
declared = {
    "exponential": nz.normal_nmf(X, rank=3, sigma=errors, beta_w=15.0, beta_h=0.05),
    "truncated normal": nz.normal_nmf(X, rank=3, sigma=errors, mu_w=1 / 15, sigma_w=0.2, mu_h=20.0, sigma_h=20.0),
}
drawn = {name: nz.sample(model=model, **CHAINS) for name, model in declared.items()}


def aligned(idata, profiles=profiles):
    """Draws of W (draw, feature, component) and H in the order of the true sources; profiles sum to 1."""
    posterior = nz.unit_sum(nz.align(idata)).posterior
    W, H = (posterior[name].to_numpy() for name in ("W", "H"))
    W, H = W.reshape(-1, *W.shape[2:]), H.reshape(-1, *H.shape[2:])
    order = nearest(W.mean(axis=0), profiles)
    return W[..., order], H[:, order]


def share_inside(draws, values):
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return np.mean((low <= values) & (values <= high))


for name, idata in drawn.items():
    W, H = aligned(idata)
    print(f"{name:18}profiles {share_inside(W, profiles):.0%}, amounts {share_inside(H, amounts):.0%},", end=" ")
    print(f"W H {share_inside(W @ H, truth):.0%} inside")
say(drawn["exponential"])

# %% [markdown]
# The amounts in the first samples, with 90 % of the posterior, and the truth:

# %%
W, H = aligned(drawn["exponential"])
first = np.arange(min(SAMPLES, 40))
low, middle, high = np.quantile(H[:, :, first], [0.05, 0.5, 0.95], axis=0)
fig, axes = plt.subplots(3, 1, figsize=(10, 5), sharex=True, layout="constrained")
for k, ax in enumerate(axes):
    ax.vlines(first, low[k], high[k], color=BLUE, linewidth=4, alpha=0.35, label="90 % of the posterior")
    ax.plot(first, middle[k], "_", color=BLUE, markersize=7, label="median")
    ax.plot(first, amounts[k, first], "o", color=ORANGE, markersize=3, label="truth")
    ax.set_title(NAMES[k], fontsize=9, loc="left")
    ax.set_ylim(0, None)
fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside upper right")
axes[1].set_ylabel("amount")
axes[2].set_xlabel("sample")
plt.show()

# %% [markdown]
# Values of one table err together: a source that has too much of one species has it in all samples. So the share inside
# differs from table to table, and it is the mean over tables, drawn from the priors that the model has, that should be
# 90 %. Beside it tables whose profiles are sparser than the prior believes, with many species at nearly 0: an interval
# from 5 % to 95 % of the posterior lies above these.


# %%
def shares_inside(shape):
    """Of one more table."""
    profiles, amounts, errors = sources(15 if SMALL else 40, shape)
    truth = profiles @ amounts
    table = measured(truth, errors.to_numpy())
    model = nz.normal_nmf(table, rank=3, sigma=errors, beta_w=15.0, beta_h=0.05)
    W, H = aligned(nz.sample(model=model, **CHAINS), profiles)
    pairs = {"profiles": (W, profiles), "amounts": (H, amounts), "W H": (W @ H, truth)}
    return {name: share_inside(*pair) for name, pair in pairs.items()}


rows = {}
for name, shape in {"as the prior": 1.0, "sparser": 0.3}.items():
    shares = pd.DataFrame([shares_inside(shape) for _ in range(2 if SMALL else 8)])
    rows |= {(name, what): {"mean": own.mean(), "±": own.sem(), "least": own.min()} for what, own in shares.items()}
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# Variational Bayes takes the same models in a fraction of the time. Its intervals are too narrow, since q treats every
# cell as independent of the others:

# %%
approximate = nz.fit(model=declared["exponential"], engine="vb", max_iter=100 if SMALL else 1000, **RUN)
W_vb, H_vb = aligned(approximate)
for name, own in {"VB": (W_vb, H_vb), "Gibbs": (W, H)}.items():
    print(f"{name:7}profiles {share_inside(own[0], profiles):.0%}, amounts {share_inside(own[1], amounts):.0%} inside")

# %% [markdown]
# ## Errors that are not known
#
# `sigma=nz.free()` is one error for all values, which EM estimates; somewhat low, since fitted factors follow some of
# the errors. One for each species has no maximum: a source can fit one species exactly and its error go to 0. With a
# prior it has a posterior. Here each species has an error of its own, the same in all samples, and some are ten times
# as large as others.

# %%
sd = np.repeat([0.05, 0.15, 0.5], 5)[:, None]
steady = measured(truth, sd)
one = nz.fit(model=nz.normal_nmf(steady, rank=3, sigma=nz.free()), engine="em", **RUN).posterior["sigma"].item()
print(f"one for all: {one:.2f}; the root mean square of the errors that were made is {np.sqrt(np.mean(sd**2)):.2f}")
with pm.Model() as model:
    sigma = pm.InverseGamma("sigma", 2.0, 0.5, shape=(15, 1))  # one per species
    nz.normal_nmf(steady, rank=3, sigma=sigma, beta_w=15.0, beta_h=0.05)
unknown = nz.sample(model=model, **CHAINS)
say(unknown)
of_species = unknown.posterior["sigma"].to_numpy().reshape(-1, 15)
low, middle, high = np.quantile(of_species, [0.05, 0.5, 0.95], axis=0)
fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
ax.vlines(at, low, high, color=BLUE, linewidth=4, alpha=0.35, label="90 % of the posterior")
ax.plot(at, middle, "_", color=BLUE, markersize=9, label="median")
ax.plot(at, sd[:, 0], "o", color=ORANGE, markersize=4, label="truth")
ax.axhline(one, color="0.6", linewidth=0.8, label="one for all, by EM")
ax.set(yscale="log", xlabel="species", ylabel="error of measurement")
ax.set_xticks(at, range(1, 16))
ax.set_yticks([0.05, 0.15, 0.5], ["0.05", "0.15", "0.5"])
ax.minorticks_off()
ax.legend(frameon=False, loc="lower right", fontsize=8)
plt.show()

# %% [markdown]
# ## Sources that are known
#
# Often the profiles of some sources were measured at the source. `known=` holds these, and the others are found beside
# them. What does knowing two profiles do for the amounts of all three?

# %%
catalogue = pd.DataFrame(profiles[:, :2], index=species, columns=NAMES[:2])
beside = nz.normal_nmf(X, rank=3, known=catalogue, sigma=errors, beta_w=15.0, beta_h=0.05)
with_known = nz.sample(model=beside, **CHAINS)
posterior = nz.unit_sum(nz.align(with_known)).posterior
print("components:", ", ".join(posterior["component"].values))
W_known, H_known = aligned(with_known)
print(f"the new profile: {share_inside(W_known[..., 2], profiles[:, 2]):.0%} of its species inside 90 % intervals")
low_high = {name: np.quantile(own, [0.05, 0.95], axis=0) for name, own in {"none": H, "two": H_known}.items()}
widths = {f"{name} known": (high - low).mean(axis=1) for name, (low, high) in low_high.items()}
print("mean width of the 90 % intervals of the amounts")
pd.DataFrame(widths, index=NAMES).round(2)

# %% [markdown]
# ## What remains
#
# - Errors of 0 and values below a limit of detection are not special here: give these an error that says how little is
#   known of them.
# - A negative measurement is refused, since multiplicative updates need X >= 0. What is set to 0 is a little too high.
# - Sources that resemble each other have intervals that are wide for good reason: `nz.align` says where two can't be
#   told apart.
