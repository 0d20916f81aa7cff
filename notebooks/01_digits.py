# %% [markdown]
# # Declare, fit, sample: handwritten digits
#
# Counts in, posterior out. Small images of handwritten digits are taken apart into a few non-negative *templates*,
# and you get to know how sure one may be of each of them. One declaration of the model serves a sampler, an optimiser
# and variational Bayes.
#
# What you need to know: some Python, and what a posterior is. What you will see: a table with labels, a model of
# three lines, templates as pictures with their uncertainty, two checks that tell whether to believe them, a case in
# which one should not, and a report to keep.

# %%
import os
import re
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import nmf_zoo as nz

warnings.simplefilter("ignore")  # notes about empty rows and chains that disagree: both are explained below
plt.rcParams["figure.dpi"] = 70
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
IMAGES, DRAWS, CHAINS = (120, 50, 2) if SMALL else (None, 1000, 4)

# %% [markdown]
# ## The data
#
# scikit-learn brings 1,797 images of 8 x 8 pixels; each pixel says how much ink lies on it, from 0 to 16. We begin
# with the digits from 0 to 3. Rows of the table are pixels, columns are images: throughout this library features are
# rows and samples are columns. The table has labels, and they will come back in every result.

# %%
digits = load_digits()
pixels = [f"row {i // 8} column {i % 8}" for i in range(64)]
names = [f"image {i}, a {digit}" for i, digit in enumerate(digits.target)]
everything = pd.DataFrame(digits.data.T.astype(int), index=pixels, columns=names)
chosen = np.flatnonzero(digits.target <= 3)
X, new = everything.iloc[:, chosen[:-60][:IMAGES]], everything.iloc[:, chosen[-60:]]
print(f"{X.shape[0]} pixels x {X.shape[1]} images to learn from, {new.shape[1]} more for later")

fig, axes = plt.subplots(1, 10, figsize=(10, 1.4))
for ax, name in zip(axes, X.columns[:10], strict=True):
    ax.imshow(X[name].to_numpy().reshape(8, 8), cmap="gray_r")
    ax.set_title(name.replace(", ", "\n"), fontsize=9)
    ax.set_axis_off()
plt.show()

# %% [markdown]
# ## Declare
#
# The model says X ≈ W H: a column of W is a template, a row of H says how much of it goes into each image. The ink is
# taken for Poisson counts, and both factors have gamma priors. A shape below 1 means "most entries are small, a few
# are large", which makes templates sparse. `gamma_nmf` returns a plain PyMC model; the next notebook shows what can
# be done with it for that reason alone.

# %%
model = nz.gamma_nmf(X, rank=5, alpha_w=0.5, alpha_h=0.5, mean_h=1.0)
print(nz.describe(model))

# %% [markdown]
# `describe` prints what the library *understood* from the model's graph, which is what its engines will run. `check`
# proves it: it compares the log density of what was understood with PyMC's own at random points, and raises an error
# where they differ.

# %%
nz.check(model)

# %% [markdown]
# ## Sample
#
# Four chains of Gibbs sampling, of which every second draw is kept (`thin=2`). By default they would all start at the
# best that a search finds; here each starts at random, so that we see whether they arrive at the same place. The first
# run on a machine compiles the sampler, which takes up to a minute; later ones start at once.

# %%
length = {"tune": DRAWS, "chains": CHAINS, "thin": 2, "cores": 2}
idata = nz.sample(DRAWS, model=model, start="random", random_seed=1, progressbar=False, **length)
print(f"{DRAWS} sweeps of each of {CHAINS} chains in {idata.attrs['seconds']:.1f} s")
nz.summarise(idata).head(5).round(2)

# %% [markdown]
# Did the chains arrive at the same place? R-hat compares them: near 1 is good, above 1.05 or so is not. `summarise`
# looks at what has a meaning whatever the components are called: `lp`, the log joint density, and some cells of the
# product W H. Hundreds of effective draws (`ess_bulk`) are plenty for means and intervals.
#
# The templates themselves need one more step. A model does not know an order of its components: what one chain calls
# component 0 may be component 3 of another. Their raw R-hat would be terrible and mean nothing. `nz.align` brings the
# components of all draws into one order and on one scale, and says what could be matched.

# %%
aligned = nz.align(idata)
nz.summarise_components(aligned).round(2)

# %% [markdown]
# A row is the column of W (or row of H) of one component, judged by its *worst* cell. Compare `rhat_raw`, before
# alignment, with `rhat`: the chains found the same templates and numbered them differently. The column `became` would
# say "split", "merged" or "different" for a component that some chain does not have. (With the small setting of our
# tests the chains are too short for good numbers.)
#
# ## Look at the templates
#
# The upper row is the posterior mean of each template. The lower row is its relative uncertainty, on a log scale:
# pixels with ink are known to a few percent, empty ones hardly at all, since "almost no ink" can be half as much or
# twice as much.

# %%
nz.plot_components(aligned, shape=(8, 8))

# %% [markdown]
# On the full table one recognises a 0, a 3, a 2 and two ways to write a 1. Nobody told the model about digits: these
# are parts whose mixtures make up the images. How well do they? Here are the data beside the posterior mean of W H
# and what is left over in standard deviations; below, three images with the intervals in which the model expects nine
# of ten pixels.

# %%
nz.plot_reconstruction(aligned, model)

# %% [markdown]
# The title of each image says how many of its pixels are inside. That can be about nine in ten and still hide two
# errors, which is why the points are drawn: dark pixels lie closer to the middle of their intervals than Poisson
# counts would, as ink is a grey level and no count, and some pixels that the templates take for dark are empty (red
# points at 0), as five templates can't follow every hand. The model is useful all the same; one should just not take
# its intervals for single pixels at their word.
#
# ## Images that the model has not seen
#
# `project` keeps W and finds H of new images. The labels of the digits, which the model was never told, now serve to
# see what templates stand for: the mean share of an image's ink that each template explains, by digit.

# %%
scaled = nz.align(idata, scale="drawn")  # the prior of H belongs to W as it was drawn
folded = nz.project(
    scaled, new, model=model, draws=DRAWS // 2, tune=DRAWS // 2, chains=2, random_seed=1, progressbar=False
)
H = folded["posterior"]["H"].mean(("chain", "draw")).to_pandas()
shares = (H / H.sum()).T
shares.groupby(shares.index.str[-1].rename("digit")).mean().round(2)

# %% [markdown]
# Templates are not digits. On the full table 0 has one nearly for itself and 3 one that explains nearly half of its
# ink, but the upright stroke that most of a 1 is made of serves in 2 and 3 as well.
#
# ## The same model for an optimiser, and for variational Bayes
#
# Sampling is not always needed. EM finds one point, the top of a hill of the posterior (`mode="log"`: of the
# logarithms of W and H, as a density with shapes below 1 is infinite at zero). Variational Bayes, VB, finds an
# approximation of the whole posterior, and a lower bound of the evidence. Both climb, and may climb different hills,
# so they start several times.

# %%
starts = {"restarts": 5, "search": None, "cores": 2, "random_seed": 1, "progressbar": False}
point = nz.fit(model=model, engine=nz.EM(mode="log"), **starts)
bound = nz.fit(model=model, engine="vb", **starts)
nz.plot_objective(bound)

# %% [markdown]
# On the left the bound by iteration, on the right the distance to the best one: a restart whose line stays high ended
# on a lower hill. VB is known for being too sure of itself. How much so here, for the ink that each template lends to
# one image, a 3?

# %%
matched = nz.align(bound, reference=aligned)
ink = {name: found["posterior"]["H"].isel(obs=3) for name, found in (("Gibbs", aligned), ("VB", matched))}
ink["VB"] = ink["VB"].sel(chain=[0])  # the best restart
table = {(name, "mean"): draws.mean(("chain", "draw")).to_pandas() for name, draws in ink.items()}
table |= {(name, "sd"): draws.std(("chain", "draw")).to_pandas() for name, draws in ink.items()}
seconds = {"Gibbs": idata, "EM, 5 starts": point, "VB, 5 starts": bound}
print("seconds:", {name: round(found.attrs["seconds"], 1) for name, found in seconds.items()})
pd.DataFrame(table).sort_index(axis=1).round(1)

# %% [markdown]
# The means of what matters agree, and the standard deviations of VB are smaller, most of all for templates that add
# little. That is its nature: it treats cells as independent that are not. For many questions it is good enough, and
# on large tables it may be all one can afford.
#
# ## When not to believe it
#
# So far all went well, because five templates for four digits leave little choice. Now all ten digits, and ten
# components.

# %%
more = nz.gamma_nmf(everything.iloc[:, :IMAGES], rank=10, alpha_w=0.5, alpha_h=0.5, mean_h=1.0)
length = {"tune": DRAWS // 2, "chains": 3, "cores": 2, "random_seed": 1, "progressbar": False}
draws = nz.sample(DRAWS // 4, model=more, start="random", **length)
compared = nz.align(draws)
print(f"worst R-hat of lp and W H: {nz.summarise(draws)['rhat'].max():.2f}")
print("mean lp of each chain:", draws["sample_stats"]["lp"].mean("draw").to_numpy().round().astype(int))
compared["alignment"]["became"].to_pandas()

# %% [markdown]
# R-hat is bad even for W H, on which the order of components has no influence, and no alignment can mend that: the
# chains sit on different hills, far apart in `lp`, and each finds some templates that others do not have
# ("different"). Somewhat longer chains would not help, as chains hardly ever cross such valleys. So `nz.sample`, left
# alone, first looks for a high hill: VB climbs from several starts, then from what the climbs found, and all chains
# begin at the best.

# %%
together = nz.sample(DRAWS // 4, model=more, **length)
print(f"worst R-hat of lp and W H: {nz.summarise(together)['rhat'].max():.2f}")
print("mean lp of each chain:", together["sample_stats"]["lp"].mean("draw").to_numpy().round().astype(int))
columns = ("objective", "found", "way", "likeness")
pd.DataFrame({name: together["search"][name].to_numpy() for name in columns}).head(4).round(2)

# %% [markdown]
# Now the chains agree, and describe one hill. (`lp` is a density and not a mass: the hill of a chain that stood higher
# above need not hold more of the posterior.) The table says what the search saw: a row per hill, with VB's bound, how
# many climbs ended there, and how alike its components are to those of the best. Agreement on one hill does not tell
# that there is no higher one: `nz.Search(fits=64)` looks for longer, and whoever needs fewer hills may ask whether so
# many components are needed. The templates of all three chains:

# %%
nz.plot_components(nz.align(together), chain=None, shape=(8, 8))

# %% [markdown]
# ## Keep it
#
# `nz.save` writes the draws to a file that ArviZ can read, too. `nz.report` writes one web page that needs nothing
# else: data, model, convergence, components and reconstruction, with advice in words. (Draws of a large table are
# large: `thin=`, or `keep="moments"`, makes smaller files.)

# %%
with tempfile.TemporaryDirectory() as folder:
    nz.save(idata, Path(folder) / "digits.nc")
    again = nz.load(Path(folder) / "digits.nc")
    page = nz.report(again, Path(folder) / "digits.html", model, shape=(8, 8), title="Digits from 0 to 3")
    for path in sorted(Path(folder).iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    print("sections of the page:", ", ".join(re.findall("<h2.*?>(.*?)</h2>", page.read_text(encoding="utf-8"))))

# %% [markdown]
# ## Where to go from here
#
# - `02_pymc`: what the same declaration can do because it is a PyMC model.
# - `03_gibbs_and_nuts`: which sampler for which table. `04_how_many_components`: how to choose the rank.
# - `06_faces`: missing pixels. `05_topics`, `07_music`, `08_time`: other data, other models.
# - From the shell: `nmf-zoo fit counts.csv --model gamma-nmf --rank 5 -o posterior.nc`, then `nmf-zoo report
#   posterior.nc -o report.html`.
