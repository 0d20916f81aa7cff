# %% [markdown]
# # Topics: GaP on a corpus
#
# Word counts in, topics out. In the Gamma-Poisson model (GaP) every document mixes topics by activations that have a
# gamma prior, and the topics themselves are free. Integrating the activations out, rather than maximising over them,
# gives a likelihood that knows when a topic is one too many. We fit a corpus in both ways and as a stream, fold in
# new documents, and compare with scikit-learn on documents that nobody has seen.
#
# What you need to know: what a bag of words is. What you will see: Monte-Carlo EM beside joint EM, surplus topics
# that shrink, online EM in a second, uncertainty about a short document, perplexities, and a scikit-learn pipeline.
# The counts stay sparse from start to end.

# %%
import gzip
import os
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import nmf_zoo as nz
from nmf_zoo.sklearn import GammaPoissonNMF

warnings.simplefilter("ignore")  # notes about iterations that ran out, explained below
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
FOLDER = Path(os.environ.get("NMF_ZOO_DATA", "no data"))
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
WORDS, DOCUMENTS, TOPICS, ITERATIONS = (150, 300, 4, 20) if SMALL else (2000, None, 10, 200)
RUN = {"random_seed": 1, "cores": 2, "quiet": True}

# %% [markdown]
# ## The corpus


# %%
def simulated(n_documents=3400, n_words=2500, n_topics=10):
    """Documents of known topics, for a machine without the data."""
    rng = np.random.default_rng(1)
    profiles = rng.dirichlet(np.full(n_words, 0.05), n_topics).T
    counts = rng.poisson(profiles @ rng.gamma(0.3, 40.0, (n_topics, n_documents)))
    return sp.csc_array(counts), np.array([f"word{f}" for f in range(n_words)])


if (FOLDER / "kos_uci").exists():
    counts = sp.csc_array(sp.load_npz(FOLDER / "kos_uci" / "kos_counts.npz"))
    vocabulary = np.array(gzip.decompress((FOLDER / "kos_uci" / "vocab.kos.txt.gz").read_bytes()).decode().split())
    name = "entries of a political blog, 2004 (D. Newman, Bag of Words, UCI, 2008, CC BY 4.0)"
else:
    (counts, vocabulary), name = simulated(), "a simulated stand-in"
counts = counts[:, np.random.default_rng(1).permutation(counts.shape[1])[:DOCUMENTS]]
kept = np.sort(np.argsort(-counts.sum(axis=1))[:WORDS])
words, n_new = vocabulary[kept], counts.shape[1] // 8
X, new = counts[kept, :-n_new], counts[kept, -n_new:]
print(f"{name}: {X.shape[1]} documents and {n_new} new ones, {len(words)} words, {X.sum()} counts")
megabytes = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 1e6
dense = 8 * np.prod(X.shape) / 1e6
print(f"{X.nnz / np.prod(X.shape):.1%} of the cells are filled: {megabytes:.1f} MB, where {dense:.1f} would be dense")

# %% [markdown]
# ## Declare
#
# X has words in its rows and documents in its columns. A gamma shape of 0.3 says that a document has a few topics,
# not all of them. Its rate does not matter: W is free and takes up every scale. In the language of topic models this
# is LDA with document lengths modelled too: activations divided by their sum have a Dirichlet(0.3) prior.

# %%
SHAPE = 0.3
model = nz.gap(X, TOPICS, alpha_h=SHAPE, coords={"feature": words})
print(nz.describe(model))

# %% [markdown]
# ## Fit in two ways
#
# Joint EM looks for the best W and H together. Monte-Carlo EM looks for the best W when H is integrated out: in each
# iteration it draws the activations by Gibbs sampling, and what it maximises is log p(X | W). (With a gamma shape
# below 1 the density of H is infinite at zero, so joint EM takes the mode in the logarithms.)

# %%
mcem = nz.fit(model=model, engine=nz.MCEM(sweeps=10, burn_in=3, explore=100), max_iter=ITERATIONS, **RUN)
joint = nz.fit(model=model, engine=nz.EM(mode="log"), max_iter=500, search=None, **RUN)
print(f"MCEM: {mcem.attrs['seconds']:.0f} s, joint EM: {joint.attrs['seconds']:.0f} s")
nz.plot_objective(mcem)

# %% [markdown]
# What falls here is -log p(X | W). Each of its values is an estimate, so the curve keeps its noise, in which the
# progress of single iterations is lost at the end.
#
# Now the topics by their top words. A word that is frequent everywhere says little about a topic: `by="specificity"`
# prefers words that this topic has and the others have not. On the real data one of the largest topics (*november,
# account, electoral, contact*) looks like text that the site repeated in many entries: a factorisation finds what
# occurs together, for whatever reason.

# %%
top = nz.top_features(mcem, 8, by="specificity")
sizes = (mcem["posterior"]["W"].sum("feature") * mcem["posterior"]["H"].sum("obs"))[0, 0].to_series()
topics = pd.DataFrame({"share": sizes / sizes.sum(), "words": top.groupby("component")["feature"].agg(" ".join)})
print(topics.sort_values("share", ascending=False).round(3).to_string())

# %%
nz.plot_components(mcem)

# %% [markdown]
# ## The marginal likelihood
#
# How good is W, whatever the activations? log p(X | W) by importance sampling, with its Monte-Carlo error, for both
# fits. The columns of both are put on the scale on which activations have their prior mean: joint EM, which chooses W
# and H together, has no reason to find that scale.


# %%
def log_marginal(W):
    how = {"method": "importance", "draws": 128, "random_seed": 1, "cores": 2, "progressbar": False}
    return nz.marginal_log_likelihood(model, W, **how)


def profiles(idata):
    """W with activations at their prior mean, SHAPE."""
    return (idata["posterior"]["W"] * idata["posterior"]["H"].mean("obs") / SHAPE)[0, 0].to_numpy()


found = {"MCEM": log_marginal(profiles(mcem)), "joint EM": log_marginal(profiles(joint))}
rows = {
    name: [own.attrs["log_marginal_likelihood"], own.attrs["standard_error"], own["effective"].quantile(0.01).item()]
    for name, own in found.items()
}
pd.DataFrame(rows, ["log p(X | W)", "standard error", "effective"]).T.round(2)

# %% [markdown]
# `effective` is the share of the 128 draws that count, for the document that only one in a hundred is worse than.
# Where it is a few percent errors are too small and values somewhat too low; a difference of many times these errors
# stands all the same. Joint EM did not look for this maximum, and does not find it: it fits each document's
# activations as if they were known. The next section shows what that does when there are more topics than a corpus
# has.
#
# ## Five topics too many
#
# Filstroff, Lumbreras and Févotte (ICML 2018) show that the marginal likelihood has a term that empties columns which
# are not needed. To see it, we need a corpus whose number of topics is known: five of the topics just found, over the
# words they use most, and documents drawn from the model (with gamma shapes of 1, as in the paper). Both ways are
# given ten.

# %%
given, ten = (3, 5) if SMALL else (5, 10)
W = mcem["posterior"]["W"][0, 0].to_numpy()
W = W[np.argsort(-W.sum(axis=1))[: 60 if SMALL else 300]][:, np.argsort(-W.sum(axis=0))[:given]]
W = 40 * W / W.sum(axis=0)
surplus = []
for n in (50, 100) if SMALL else (100, 400, 1600):
    truth = pm.do(nz.gap(None, given, shape=(len(W), n)), {"W": W})
    drawn = nz.gap(sp.csc_array(nz.simulate(truth, random_seed=3)["X"].to_numpy()), ten)
    for way, engine in (("MCEM", nz.MCEM(sweeps=10, burn_in=3, explore=100)), ("joint EM", "em")):
        group = nz.fit(model=drawn, engine=engine, max_iter=ITERATIONS, search=None, **RUN)["posterior"]
        size = np.sort((group["W"].sum("feature") * group["H"].sum("obs"))[0, 0])[::-1]
        surplus.append({"documents": n, "way": way, "shares": (size / size.sum()).round(3)})

# %%
surplus = pd.DataFrame(surplus)
fig, axes = plt.subplots(1, surplus["documents"].nunique(), figsize=(10, 2.6), sharey=True, layout="constrained")
for ax, (n, rows) in zip(axes, surplus.groupby("documents"), strict=True):
    for (_, row), colour, shift in zip(rows.iterrows(), ("#0072B2", "#E69F00"), (-0.2, 0.2), strict=True):
        ax.bar(np.arange(ten) + 1 + shift, row["shares"], 0.4, color=colour, label=row["way"])
    ax.axvline(given + 0.5, color="grey", lw=1, ls=":")
    ax.set(title=f"{n} documents", xlabel="topic, by size", xticks=np.arange(ten) + 1)
axes[0].set_ylabel("share of the counts")
axes[-1].legend(frameon=False)
plt.show()
surplus["surplus"] = [shares[given:].sum() for shares in surplus["shares"]]
surplus.pivot(index="documents", columns="way", values="surplus").round(3)

# %% [markdown]
# Right of the dotted line is what goes to topics beyond the five that there are. Joint EM spends a third of the
# counts or more on them, however many documents there are. With MCEM their share falls as documents are added: with
# few documents it is not zero, and "pruned" is a limit, not an event. In the blog entries no topic is near zero, so
# that by this measure ten are not too many for real text.
#
# ## As a stream
#
# Online EM sees documents once or a few times, in mini-batches, and keeps nothing but sums of the size of W.
# Documents could come from disk or a network; here a pass goes through blocks of the sparse matrix, and we look at
# what the stream has learnt after one, two and six passes.

# %%
stream = nz.stream(
    nz.gap(None, TOPICS, alpha_h=SHAPE, shape=(len(words), 1), coords={"feature": words}),
    engine=nz.OnlineEM(batch=10, sweeps=20, keep=15),
    random_seed=1,
    cores=2,
)
began, record = time.perf_counter(), []
for number in range(1, 7):
    for first in range(0, X.shape[1], 500):
        stream.update(X[:, first : first + 500])
    if number in (1, 2, 6):
        value = log_marginal(stream.W.to_numpy()).attrs["log_marginal_likelihood"]
        record.append({"passes": number, "log p(X | W)": value, "MCEM ahead by, per word": np.nan})
per_word = [(found["MCEM"].attrs["log_marginal_likelihood"] - row["log p(X | W)"]) / X.sum() for row in record]
print(stream, f"{stream.result().attrs['seconds']:.1f} s in updates")
pd.DataFrame(record).assign(**{"MCEM ahead by, per word": per_word}).round(4)

# %% [markdown]
# One pass takes a fraction of a second and is behind MCEM; further passes catch up, more and more slowly. Are they
# the same topics? `nz.align` matches components of different fits one to one; here are the cosines of matched columns
# of W with MCEM's, for the stream, for joint EM, and for MCEM itself from another start (and half as long). A stream
# keeps no activations, so the columns of W alone are matched.

# %%
other_start = nz.fit(
    model=model,
    engine=nz.MCEM(sweeps=10, burn_in=3, explore=100),
    max_iter=ITERATIONS // 2,
    **RUN | {"random_seed": 2},
)
reference = mcem["posterior"]["W"][0, 0]


def agreement(idata):
    W = nz.align(idata, reference={"W": reference})["posterior"]["W"][0, 0].to_numpy()
    return (W * reference.to_numpy()).sum(axis=0) / np.linalg.norm(W, axis=0) / np.linalg.norm(reference, axis=0)


matched = {
    "stream": agreement(stream.result()),
    "joint EM": agreement(joint),
    "MCEM, another start": agreement(other_start),
}
pd.DataFrame(matched).T.round(2)

# %% [markdown]
# On the real data most topics are found again and some are not. That is also so for the same method from another
# start: the likelihood has many maxima of nearly the same height, and a topic that only one of them has is no
# finding. Use several starts (`restarts=`), and report what they share.
#
# ## New documents, with uncertainty
#
# `nz.project` holds W fixed and draws the activations of documents it has not seen. First the shortest of the new
# ones, one of middling length, and the longest:

# %%
length = new.sum(axis=0)
ends = np.argsort(length)[[0, len(length) // 2, -1]]
folded = nz.project(mcem, new[:, ends], model=model, engine="gibbs", draws=1000, tune=200, chains=2, **RUN)
parts = folded["posterior"]["H"] * folded["constant_data"]["W"].sum("feature")
parts = 100 * (parts / parts.sum("component")).stack(drawn=("chain", "draw")).to_numpy()  # (topic, document, draw)
low, middle, high = np.quantile(parts, [0.05, 0.5, 0.95], axis=-1)
labels = top[top["place"] <= 3].groupby("component")["feature"].agg(" ".join)
fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharex=True, sharey=True, layout="constrained")
for n, ax in enumerate(axes):
    ax.hlines(np.arange(TOPICS), low[:, n], high[:, n], color="#E69F00", lw=3)
    ax.plot(middle[:, n], np.arange(TOPICS), "o", color="#0072B2", ms=4)
    ax.set(title=f"{length[ends[n]]} words", xlabel="percent of the document", xlim=(0, 100))
axes[0].set_yticks(np.arange(TOPICS), labels)
plt.show()

# %% [markdown]
# Points are medians, lines 90% intervals. A short document says little about its mix, and its intervals are wide; in
# a long one they are narrow. W is taken as known here, so that the intervals are somewhat too short for all three.
#
# ## Against scikit-learn, on words that nobody has seen
#
# Each new document is split at random, word by word. A method sees one half, which decides about the activations, and
# predicts the other half. Perplexity is the number of words among which it is as unsure as if they were equally
# likely: lower is better. All topics are mixed with a thousandth of the overall word frequencies, since a zero would
# make perplexity infinite. LDA has its default priors (1 / topics), and once those of our model.

# %%
listed = sp.coo_array(new)
halves = np.random.default_rng(2).binomial(listed.data.astype(int), 0.5)
seen = sp.csc_array((halves, (listed.row, listed.col)), shape=new.shape)
seen.eliminate_zeros()
hidden, overall = listed.data - halves, X.sum(axis=1) / X.sum()


def perplexity(W, H):
    """Of the hidden words, under W (words, topics) and H (topics, documents) on any scale."""
    W, H = W / W.sum(axis=0), H * W.sum(axis=0)[:, None]
    H = H / H.sum(axis=0)
    p = sum(W[listed.row, k] * H[k, listed.col] for k in range(len(H)))
    return np.exp(-hidden @ np.log(0.999 * p + 0.001 * overall[listed.row]) / hidden.sum())


def projected(idata):
    own = nz.project(idata, seen, model=model, engine="gibbs", draws=300, tune=100, chains=1, **RUN)
    return idata["posterior"]["W"][0, 0].to_numpy(), own["posterior"]["H"].mean(("chain", "draw")).to_numpy()


# %%
iterations = 5 if SMALL else 20
peers = {
    "scikit-learn LDA": LatentDirichletAllocation(TOPICS, max_iter=iterations, random_state=1),
    "scikit-learn LDA, prior 0.3": LatentDirichletAllocation(
        TOPICS, doc_topic_prior=SHAPE, max_iter=iterations, random_state=1
    ),
    "scikit-learn NMF, KL": NMF(
        TOPICS, beta_loss="kullback-leibler", solver="mu", init="random", max_iter=300, random_state=1
    ),
    "GammaPoissonNMF (VB)": GammaPoissonNMF(TOPICS, alpha_h=SHAPE, random_state=1, n_jobs=2),
    "GammaPoissonNMF (VB), alpha_w=0.1": GammaPoissonNMF(TOPICS, alpha_w=0.1, alpha_h=SHAPE, random_state=1, n_jobs=2),
}
fits = {"MCEM": mcem, "MCEM, another start": other_start, "joint EM": joint, "stream": stream.result()}
scores = {"word frequencies alone": [perplexity(overall[:, None], np.ones((1, new.shape[1]))), np.nan]}
scores |= {name: [perplexity(*projected(idata)), idata.attrs["seconds"]] for name, idata in fits.items()}
for name, peer in peers.items():
    began = time.perf_counter()
    peer.fit(sp.csr_array(X.T, dtype=float))
    seconds = time.perf_counter() - began
    W, H = peer.components_.T, np.maximum(peer.transform(sp.csr_array(seen.T, dtype=float)).T, 1e-12)
    is_lda = isinstance(peer, LatentDirichletAllocation)  # its activations are of topics that sum to one
    scores[name] = [perplexity(W / W.sum(axis=0) if is_lda else W, H), seconds]
table = pd.DataFrame(scores, ["perplexity", "seconds"]).T.sort_values("perplexity")
table.round(1)

# %% [markdown]
# Seconds are wall-clock in this run, of two threads for our fits and of one for scikit-learn's, whose LDA may not
# have converged; they say what is cheap, no more. One corpus, one split, one start each: look at the two starts of
# MCEM for how much a start is worth.
#
# On the real data MCEM is ahead, by little more than what another start changes: joint EM, which looked so bad with
# surplus topics, predicts nearly as well in a tenth of the time, since here no topic was surplus. Where KL NMF trails
# it has the same likelihood and no prior on the activations: given half a short document, it believes it.
# scikit-learn's LDA is nearly our model, fitted by mean-field variational Bayes with a prior on the topics as well.
# And a prior can also hurt: variational Bayes does well with its default shape for W, and with 0.1, which allows a
# topic hardly any rare words, it is the last of all methods.
#
# ## In a scikit-learn pipeline
#
# `GammaPoissonNMF` is an estimator like any other: documents in rows, `fit`, `transform`, `score`, a place in a
# Pipeline after `CountVectorizer` and in a grid search.

# %%
TEXTS = [
    "the comet passed the planet and the telescope followed its tail",
    "a telescope on the mountain saw a planet and its moon",
    "the moon hid a star and the comet was bright in the telescope",
    "astronomers measure the orbit of a planet around its star",
    "whisk the eggs and fold the flour into the butter",
    "butter and sugar first, then eggs, then flour, then the oven",
    "bake the bread in a hot oven and serve it with butter",
    "knead flour, water and salt, and let the bread rise near the oven",
    "the striker scored and the goalkeeper could not stop the ball",
    "a late goal: the ball went past the goalkeeper into the net",
    "the referee stopped the match after a foul on the striker",
    "their striker missed the goal and they lost the match",
]
pipeline = make_pipeline(
    CountVectorizer(stop_words="english"),
    GammaPoissonNMF(3, alpha_w=0.3, alpha_h=0.3, restarts=10, random_state=1),
)
activations = pipeline.fit_transform(TEXTS)
names = pipeline[0].get_feature_names_out()
for component in pipeline[1].components_:
    print(", ".join(names[np.argsort(-component, kind="stable")[:5]]))
unread = ["the planet was seen through a small telescope", "flour and butter", "a foul, and the referee saw it"]
parts = pipeline.transform(unread) * pipeline[1].components_.sum(axis=1)
pd.DataFrame((100 * parts / parts.sum(axis=1, keepdims=True)).round(), unread).astype(int)

# %% [markdown]
# In percent, by topic. With a dozen sentences the result depends on the start and on the priors, so ten starts, and
# shapes below 1: most words are absent from a topic. `pipeline[1].inference_data_` is what `nz.fit` returned, with
# everything that can be asked of it.
#
# ## Where to go from here
#
# - `nz.marginal_log_likelihood(method="exact")` for small documents, `nz.marginal_terms` for the penalty that empties
#   columns.
# - `Stream.save` and `nz.resume_stream` for corpora that take days; `mask=` for words that were not counted.
# - Notebook 04 asks how many components there are, and is less sure of it. Notebook 08 lets topics rise and fall in
#   time.
