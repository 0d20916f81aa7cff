# %% [markdown]
# # A first factorisation: handwritten digits
#
# Counts in, posterior out. The table has 64 pixels in its rows and 1,797 images in its columns; each cell says how
# much ink (0 to 16) lies on a pixel. We ask for ten non-negative *templates* W and their *activations* H such that X
# ≈ W H, and for how sure we may be of them.
#
# What you need to know: some PyMC. What you will see: one declaration, read by four engines.

# %%
import warnings

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about empty rows and short chains, explained below

digits = load_digits()
pixels = [f"r{i // 8}c{i % 8}" for i in range(64)]
X = pd.DataFrame(digits.data.T.astype(int), index=pixels)
X.shape, int(X.to_numpy().sum())

# %% [markdown]
# ## Declare
#
# `gamma_nmf` returns a plain `pm.Model`: gamma priors on both factors and a Poisson likelihood. Everything that PyMC
# can do with a model, it can do with this one. The labels of the table travel along as coords.

# %%
model = nz.gamma_nmf(X, rank=10, alpha_w=0.5, beta_w=0.5, alpha_h=0.5, beta_h=0.5)
print(nz.describe(model))
model.free_RVs, model.observed_RVs

# %% [markdown]
# `nz.describe` shows what the *reader* understood from the graph. `nz.check` proves it: the log density of what was
# read equals PyMC's own at random points.

# %%
nz.check(model)

# %% [markdown]
# ## Sample
#
# Gibbs sampling shares every count among the components, then draws W and H from their gamma conditionals. Moves
# along the orbit `W A, A⁻¹ H`, exact and unseen by the data, make the factors mix.

# %%
idata = nz.sample(500, model=model, engine="gibbs", tune=500, chains=2, thin=5, random_seed=1, progressbar=False)
idata.attrs["engine"], round(float(idata.attrs["seconds"]), 1)

# %% [markdown]
# Components have no order, so that the two chains may number them differently: R-hat of a raw factor would say
# nothing. What can be compared are the log joint density and cells of W H. Chains of a factorisation often sit in
# different modes, and then R-hat says so plainly: read one chain at a time, as we do below.

# %%
nz.summarise(idata).head(6).round(3)

# %%
nz.plot_components(idata, chain=0, image_shape=(8, 8))

# %% [markdown]
# ## The same model for an optimiser, and for variational Bayes
#
# EM finds a point (here the mode in the logarithms, since shapes below 1 have an unbounded density at zero). VB
# returns draws from its approximation, and a lower bound of the evidence per iteration in the group `fit`.

# %%
point = nz.fit(model=model, engine=nz.EM(mode="log"), restarts=2, max_iter=300, random_seed=1, progressbar=False)
bound = nz.fit(model=model, engine="vb", restarts=2, max_iter=300, draws=100, random_seed=1, progressbar=False)
pd.DataFrame(
    {
        "objective": [point["fit"]["objective"].values[0, -1], bound["fit"]["objective"].values[0, -1]],
        "what it is": ["-log density, falls", "lower bound of log evidence, rises"],
        "status": [str(r["fit"]["status"].values[0]) for r in (point, bound)],
    },
    index=["EM", "VB"],
)

# %% [markdown]
# ## The same model for NUTS
#
# PyMC's sampler needs no conjugacy, only the gradient. On a small cut of the table it agrees with Gibbs; on the whole
# table it would need hours. Here: 16 pixels, 40 images, rank 2.

# %%
small = nz.gamma_nmf(X.iloc[16:32, :40], rank=2)
gibbs = nz.sample(4000, model=small, tune=1000, chains=2, random_seed=1, progressbar=False)
nuts = nz.sample(1000, model=small, engine="nuts", tune=1000, chains=2, random_seed=1, progressbar=False)
both = pd.concat({"gibbs": nz.summarise(gibbs), "nuts": nz.summarise(nuts)}, axis=1)
both.loc[:, pd.IndexSlice[:, ["mean", "sd", "ess_bulk"]]].iloc[:6].round(2)

# %% [markdown]
# ## New images, missing pixels
#
# `project` folds in images that the model has not seen. `mask=` hides cells; `impute` draws them back.

# %%
train, new = X.iloc[:, :1700], X.iloc[:, 1700:]
fitted = nz.fit(
    model=nz.gamma_nmf(train, rank=10), engine="vb", max_iter=300, draws=100, random_seed=1, progressbar=False
)
folded = nz.project(fitted, new, model=nz.gamma_nmf(train, rank=10), engine="vb", random_seed=1, progressbar=False)
folded["posterior"]["H"].sizes

# %%
hidden = np.random.default_rng(1).random(X.shape) < 0.1
masked = nz.gamma_nmf(X, rank=10, mask=~hidden)
draws = nz.fit(model=masked, engine="vb", max_iter=300, draws=100, random_seed=1, progressbar=False)
guess = nz.impute(draws, masked, random_seed=1).mean(("chain", "draw"))
truth = X.to_numpy()[hidden]
pd.Series(
    {
        "correlation with the hidden ink": np.corrcoef(guess, truth)[0, 1],
        "mean of the row instead": np.corrcoef(X.mean(axis=1).to_numpy()[np.nonzero(hidden)[0]], truth)[0, 1],
    }
).round(3)

# %% [markdown]
# ## Where to go from here
#
# - `nz.top_features(idata)` names components by their largest features, `nz.unit_sum(idata)` rescales W to columns
#   that sum to one.
# - `idata` is ArviZ's: `az.summary`, `az.plot_trace`, `az.loo` after `pm.compute_log_likelihood(idata, model=model)`.
# - From the shell: `nmf-zoo fit counts.csv --model gamma-nmf --rank 10 -o posterior.nc`.
