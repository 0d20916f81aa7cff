# %% [markdown]
# # Add a model or an engine to the zoo
#
# A declaration is a few PyMC statements, and an engine is a few functions. Here one of each is written in the
# notebook, run by everything that runs the zoo's own, and tested: against exact answers, by simulation-based
# calibration, and with an error planted on purpose, which these tests must find.
#
# What you need to know: Metropolis-Hastings, and what a gamma prior is. What you will see: what the reader
# understands of a model and what it refuses, the seam between driver and engines, `nz.register_engine`,
# `nz.calibrate`, and a sampler of 60 lines beside Gibbs and NUTS.

# %%
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import nmf_zoo as nz

plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False})
SMALL = os.environ.get("NMF_ZOO_NOTEBOOK") == "small"  # every cell in seconds, for tests
QUIET = {"random_seed": 1, "progressbar": False, "quiet": True}

# %% [markdown]
# ## A declaration of your own
#
# How many components do data need? One answer is to give each component a mean activation of its own, with a wide
# prior: those that are not needed shrink (automatic relevance determination, Tan and Févotte 2013, here for counts).
# The zoo has no builder of that name, so we write one. `check_inputs` and `declare_counts` are what the zoo's own
# builders use: they take care of labels, masks, sparse matrices, exposure and background. Between them stands PyMC.

# %%
from nmf_zoo.models.inputs import check_inputs
from nmf_zoo.models.likelihoods import declare_counts


def relevance_nmf(X, rank, *, spread=1.0, mask=None, exposure=None, coords=None, shape=None):
    """Poisson factorisation in which each component has a mean activation, its relevance."""
    inputs = check_inputs(X, rank, mask=mask, exposure=exposure, coords=coords, shape=shape)
    with inputs.model() as model:
        relevance = pm.LogNormal("relevance", np.float64(0.0), np.float64(spread), dims="component")
        W = pm.Exponential("W", np.float64(inputs.shape[0]), dims=("feature", "component"))
        H = pm.Exponential("H", scale=relevance[:, None], dims=("component", "obs"))
        declare_counts(W, H, inputs)
    return model


rng = np.random.default_rng(1)
profiles = rng.dirichlet(np.full(12, 0.3), size=3).T
X = rng.poisson(profiles @ rng.gamma(1.0, [[60.0], [30.0], [15.0]], (3, 10 if SMALL else 60)))
model = relevance_nmf(X, rank=6, spread=3.0)
print(nz.describe(model))
nz.check(model)  # what was read has the log density of the model, at random points

# %% [markdown]
# Nobody told the zoo about `relevance_nmf`. The reader went through the graph of the model and found a Poisson
# variable, a product, two gamma priors (an exponential is one of shape 1) and a hyperprior, all of which it knows.
# Which engines can run it they say themselves, each with its reason:

# %%
from nmf_zoo.inference.registry import names, verdict

structure = nz.read(model)
pd.set_option("display.max_colwidth", 120)
pd.DataFrame({name: verdict(structure, name).reason or "can" for name in names()}, index=["what it says"]).T

# %% [markdown]
# So Gibbs runs it, with `relevance` drawn along. Three components made the data, and six were offered.

# %%
draws = nz.sample(50 if SMALL else 2000, tune=50 if SMALL else 2000, chains=2, model=model, **QUIET)
relevance = np.sort(draws["posterior"]["relevance"].to_numpy().reshape(-1, 6), axis=1)[:, ::-1]
fig, ax = plt.subplots(figsize=(5, 2.6))
low, middle, high = np.quantile(relevance, [0.05, 0.5, 0.95], axis=0)
ax.vlines(range(1, 7), low, high, color="#0072B2", lw=3)
ax.plot(range(1, 7), middle, "o", color="black")
for mean in (60.0, 30.0, 15.0):
    ax.axhline(mean, color="#999999", lw=0.8, ls=":")
ax.set(yscale="log", xlabel="component, the largest first", ylabel="relevance", xticks=range(1, 7))
ax.set_title("relevance: median and 90 % interval (dotted: what made the data)", fontsize=10)
plt.show()

# %% [markdown]
# What the reader does not know, it refuses; it never half-reads a model. Then the message says which variable is at
# fault and what could stand there. A new prior is a class in `nmf_zoo/structure/`, a recogniser and an entry in a
# registry of `nmf_zoo/reading/`, and engines that accept it.

# %%
with pm.Model() as unread:
    W = pm.Weibull("W", 2.0, 1.0, shape=(12, 3))
    H = pm.Exponential("H", 1.0, shape=(3, X.shape[1]))
    pm.Poisson("X", W @ H, observed=X)
try:
    nz.sample(model=unread)
except nz.UnreadableModel as refusal:
    print(refusal)

# %% [markdown]
# ## An engine of your own
#
# An engine is a handful of functions, and the driver owns everything else: chains, seeds, threads, warm-up, thinning,
# progress, Ctrl-C, checkpoints, results. `nmf_zoo/runtime/engine.py` describes the seam. We write a random walk,
# which is slow and easy to get right, or wrong.
#
# Given W, the columns of H are independent, and given H the rows of W. So each gets a proposal of its own, and its
# own Metropolis test. The walk is on logarithms, since cells are positive. The density of log h is that of h times h
# (the Jacobian), and this is the term that one forgets.
#
# First what an engine keeps (`State`: all that the next step needs, since a checkpoint stores it and nothing else),
# what it reports (`Info`), and its options.


# %%
class State(NamedTuple):
    """Both factors by rows, the logarithm of each row's step, and how many sweeps of the warm-up there were."""

    W: np.ndarray
    Ht: np.ndarray
    steps_W: np.ndarray
    steps_H: np.ndarray
    sweeps: int


class Info(NamedTuple):
    """Mean probability of acceptance."""

    accept: float


@dataclass(frozen=True, kw_only=True)
class RandomWalk:
    """``accept``: the share of proposals to accept; the warm-up finds steps for it. ``repeats``: moves of a sweep."""

    accept: float = 0.3
    repeats: int = 4


# %% [markdown]
# `supports` says what the engine can run, and why not. Whatever it accepts it must get right, so it begins with what
# it does not know of. `prepare` is called once, and all chains share what it returns; `init` begins a chain.

# %%
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict
from nmf_zoo.structure import Dense, GammaPrior, Poisson


def supports(structure, options):
    factors = (structure.W, structure.H)
    if not all(isinstance(side.prior, GammaPrior) for side in factors):
        return Verdict("it walks over W and H with gamma priors")
    if structure.unknowns:
        return Verdict(f"it takes hyperparameters as known, and {', '.join(structure.unknowns)} are not")
    if not isinstance(structure.data, Dense) or structure.data.mask is not None:
        return Verdict("it takes a dense table without missing cells")
    if structure.likelihood.exposure is not None or structure.likelihood.background is not None:
        return Verdict("it knows nothing of exposure and background")
    return CAN_RUN


def prepare(structure, options, workers):
    return structure, options, log_density


def init(problem, key, start):
    W, Ht = start_factors(problem[0], key, start)
    return State(W, Ht, np.full(len(W), -1.0), np.full(len(Ht), -1.0), 0)


# %% [markdown]
# The mathematics: the log density of every row of one factor given the other, in coordinates log v, and a walk. A
# sweep may depend on its key and the state alone, so a generator is made from the key each time.


# %%
def log_density(rows, other, counts, prior):
    """Of log v, for each row v: likelihood of its counts given the other factor, prior, and Jacobian."""
    mean, logs, (shape, rate) = rows @ other.T, np.log(rows), prior
    likelihood = (counts * np.log(mean) - mean).sum(axis=1)
    return likelihood + ((shape - 1) * logs - rate * rows).sum(axis=1) + logs.sum(axis=1)


def walk(rows, steps, density, options, learning, rng):
    """Moves of every row, each accepted or not by itself; ``learning``: how far steps follow acceptance."""
    now = density(rows)
    for _ in range(options.repeats):
        proposed = rows * np.exp(np.exp(steps)[:, None] * rng.standard_normal(rows.shape))
        then = density(proposed)
        chance = np.exp(np.minimum(then - now, 0.0))
        taken = rng.random(len(rows)) < chance
        rows, now = np.where(taken[:, None], proposed, rows), np.where(taken, then, now)
        steps = steps + learning * (chance - options.accept)
    return rows, steps, float(chance.mean())


def sweep(problem, state, key, learning):
    """Rows of W given H, then rows of H.T given W."""
    structure, options, density = problem
    rng = np.random.Generator(np.random.Philox(key=int(key)))
    X, (W, Ht, steps_W, steps_H, sweeps) = structure.data.values, state
    of_W, of_H = (side.prior.shape_and_rate({}) for side in (structure.W, structure.H))
    of_H = [np.broadcast_to(array, structure.H.shape).T for array in of_H]
    W, steps_W, chance_W = walk(W, steps_W, lambda rows: density(rows, Ht, X, of_W), options, learning, rng)
    Ht, steps_H, chance_H = walk(Ht, steps_H, lambda rows: density(rows, W, X.T, of_H), options, learning, rng)
    return State(W, Ht, steps_W, steps_H, sweeps), Info((chance_W + chance_H) / 2)


# %% [markdown]
# `step` is a sweep that learns nothing: the draws are those of a Markov chain with a fixed kernel. `tune`, which
# takes its place in the warm-up, learns less and less. `draw` turns a state into the model's variables, in the
# model's own orientation, with `lp`, and with the cells of W H that convergence checks follow.


# %%
def step(problem, state, key):
    return sweep(problem, state, key, learning=0.0)


def tune(problem, state, key):
    state, info = sweep(problem, state, key, learning=1.0 / np.sqrt(1.0 + state.sweeps))
    return state._replace(sweeps=state.sweeps + 1), info


def draw(problem, state, key):
    structure = problem[0]
    values = {structure.W.name: structure.W.orient(state.W), structure.H.name: structure.H.orient(state.Ht.T)}
    rows, columns = checked_cells(structure.shape)
    mean = np.einsum("ck,ck->c", state.W[rows], state.Ht[columns])
    return values, {"lp": structure.log_joint(values), "mean": mean}


ENGINE = Engine(
    name="random_walk",
    verb="sample",
    likelihoods=(Poisson,),
    options=RandomWalk,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
)
nz.register_engine(ENGINE)

# %% [markdown]
# That is all. `nz.register_engine` makes it known in this process (in the package one would put `ENGINE` into the
# list of `nmf_zoo/inference/registry.py` instead), and it runs by name or by its options.

# %%
SHAPE = {"alpha_w": 2.0, "beta_w": 2.0, "alpha_h": 1.5, "beta_h": 0.5}
table = X[:5, :8]
small = nz.gamma_nmf(table, rank=2, **SHAPE)
LONG = {"draws": 100 if SMALL else 4000, "tune": 50 if SMALL else 1000, "chains": 2, "extend": 1}
walked = nz.sample(engine=RandomWalk(repeats=8), model=small, **LONG, **QUIET)
walked["sample_stats"]["accept"].mean("draw").to_series().round(2)

# %% [markdown]
# What the driver promises for every engine it keeps for this one. The seed decides all draws, and threads nothing; a
# run that is saved and continued is the run that was never stopped. A model that the engine can't run is refused
# before anything runs, with the engine's own reason and the names of those that can.

# %%
QUICK = {"engine": "random_walk", "model": small, "tune": 50, "chains": 2, **QUIET}
straight = nz.sample(200, cores=1, **QUICK)["posterior"]["W"].to_numpy()
threads = nz.sample(200, cores=2, **QUICK)["posterior"]["W"].to_numpy()
with tempfile.TemporaryDirectory() as folder:
    nz.sample(80, checkpoint=Path(folder) / "run", **QUICK)
    continued = nz.sample(200, checkpoint=Path(folder) / "run", **QUICK)["posterior"]["W"].to_numpy()
print("two threads:", np.array_equal(straight, threads), "| continued:", np.array_equal(straight, continued))
try:
    nz.sample(model=model, engine="random_walk")
except nz.UnsupportedModel as refusal:
    print(refusal)

# %% [markdown]
# ## Is it right? Exact answers
#
# That it runs says nothing. Where counts are few, `nz.evidence(method="enumeration")` sums over every way to share them
# out between the components and has log p(X) to twelve digits. Its derivative by the rate of H's prior is an exact
# posterior mean, for K N cells of H in all:
#
# $$\frac{\partial}{\partial \beta} \log p(X) = \frac{K N \alpha}{\beta} - \mathrm{E}\Big[\sum_{kn} H_{kn} \,\Big|\,
# X\Big]$$
#
# and the same for W. Whatever the sampler says must agree within its Monte-Carlo error.

# %%
tiny = np.array([[2, 0, 1], [1, 3, 0]])


def exact_sum(factor, count):
    """Posterior mean of the sum of all cells of a factor, by a central difference."""
    alpha, beta, change = SHAPE[f"alpha_{factor}"], SHAPE[f"beta_{factor}"], 1e-4
    log_p = [
        nz.evidence(
            nz.gamma_nmf(tiny, 2, **SHAPE | {f"beta_{factor}": beta + sign * change}), "enumeration", quiet=True
        )
        for sign in (1, -1)
    ]
    slope = (log_p[0].attrs["log_evidence"] - log_p[1].attrs["log_evidence"]) / (2 * change)
    return count * alpha / beta - slope


EXACT = {"W": exact_sum("w", count=4), "H": exact_sum("h", count=6)}


def against_exact(engine):
    """Sums of the factors: what the engine says, its Monte-Carlo error, and how many errors off it is."""
    found = nz.sample(engine=engine, model=nz.gamma_nmf(tiny, 2, **SHAPE), **LONG | {"chains": 4}, **QUIET)
    sums = {name: found["posterior"][name].to_numpy().sum(axis=(2, 3)) for name in EXACT}  # (chain, draw)
    batches = {name: array.reshape(4 * 20, -1).mean(axis=1) for name, array in sums.items()}  # 80 parts of the draws
    error = {name: parts.std(ddof=1) / np.sqrt(len(parts)) for name, parts in batches.items()}
    rows = {name: [EXACT[name], batches[name].mean(), error[name]] for name in EXACT}
    return pd.DataFrame(rows, index=["exact", "engine", "error"]).T.assign(z=lambda t: (t.engine - t.exact) / t.error)


against_exact("random_walk").round(4)

# %% [markdown]
# ## Is it right? Calibration
#
# Exact answers cover tiny tables. `nz.calibrate` covers any size: it draws a truth from the prior and data from the
# truth, lets the engine draw from the posterior of these data, and ranks the truth among its draws. If engine and
# model agree, ranks are uniform.
#
# A test that can't fail is worth nothing. So here is the same engine with the Jacobian forgotten: it runs, its
# acceptance and R-hat look as good as the other's, and every answer is wrong.


# %%
@dataclass(frozen=True, kw_only=True)
class Forgetful:
    """Options of the wrong one: an engine is known by the class of its options, so it needs one of its own."""

    accept: float = 0.3
    repeats: int = 4


def without_jacobian(rows, other, counts, prior):
    return log_density(rows, other, counts, prior) - np.log(rows).sum(axis=1)


def prepare_wrongly(structure, options, workers):
    return structure, options, without_jacobian


nz.register_engine(replace(ENGINE, name="forgetful", options=Forgetful, prepare=prepare_wrongly))

# %%
HOW = {"simulations": 20 if SMALL else 150, "draws": 19, "thin": 2 if SMALL else 10, "tune": 20 if SMALL else 100}
HOW |= {"cores": 2, "random_seed": 1, "progressbar": False}


def declare():
    return nz.gamma_nmf(None, 2, shape=(3, 4), **SHAPE)


right, wrong = (nz.calibrate(declare, engine, **HOW) for engine in ("random_walk", "forgetful"))
for found in (right, wrong):
    print(f"{found.attrs['engine']}: {found.attrs['verdict']}")
nz.plot_calibration(right)

# %%
nz.plot_calibration(wrong)

# %% [markdown]
# The curves are the distribution of the ranks less the uniform one. At full settings those of the right engine lie in
# the band, which holds a whole curve with probability 95 %, and most of the wrong one's leave it: without the
# Jacobian the chain draws under priors whose shapes are lower by one. (Twenty simulations, as in a quick run, see
# nothing: how much a test can find is a matter of its size.) Not every quantity shows the error, which is why there
# are fifteen. The exact answers, for the wrong engine:

# %%
against_exact("forgetful").round(4)

# %% [markdown]
# H is off by many errors, while the sum of W happens to come out nearly right: a smaller prior shape and a smaller H
# pull it in opposite directions.
#
# `calibrate` tests a pair of declaration and engine, so the declaration from above can be tested in the same way.
# Here with Gibbs, and with relevances that are drawn along:

# %%
FEWER = HOW | {"simulations": 20 if SMALL else 100}
of_relevance = nz.calibrate(lambda: relevance_nmf(None, 2, shape=(3, 4)), "gibbs", **FEWER)
print(of_relevance.attrs["verdict"])

# %% [markdown]
# ## Is it any good?
#
# `nz.compare_engines` runs engines on one model and asks two things: do they agree, and what does an effective draw
# cost? The random walk is right and slow, as random walks are, and it is NumPy beside compiled code. NUTS needs no
# code of ours at all, but some seconds of compilation in every call.

# %%
LENGTH = {"draws": 50 if SMALL else 2000, "tune": 50 if SMALL else 1000, "chains": 2, "cores": 2}
engines = ["gibbs", RandomWalk(repeats=8), *([] if SMALL else ["nuts"])]
compared = nz.compare_engines(small, engines, random_seed=1, **LENGTH)
compared.table[["seconds", "compiling", "ess_bulk", "ess_bulk_per_second", "rhat", "z", "agrees"]].round(2)

# %%
nz.plot_comparison(compared)

# %% [markdown]
# ## Into the package
#
# `nz.register_engine` lasts as long as the process. An engine of the package is a file of `nmf_zoo/inference/`, in
# the order in which it stands here, and a word in the list of `nmf_zoo/inference/registry.py`; its options get a
# public name. Then the command line has it (`nmf-zoo fit --engine random_walk`), and so has the table of models and
# engines, and tests ask it what they ask every engine (`tests/contract/`):
#
# - on every declaration there is, it runs and returns finite variables with the model's dims and labels and an `lp`
#   that is the model's, or it refuses, with its reason and the names of engines that can
# - the seed decides the draws and threads do not; thinning, `var_names`, starts and warm-up mean what they mean
# - Ctrl-C keeps what was done, and a run that was killed goes on from its checkpoint to the same bits
# - priors of a family that it was not written for are refused: a gamma prior in a formula for another would be a
#   wrong answer, not an error
#
# What no contract can ask, its own tests do: exact enumeration, Geweke's joint test, calibration, and for each of
# them an error that it finds. An optimiser has `finish` in place of `draw`; its objective must be monotone.
#
# ## Where to go from here
#
# - `docs/add_a_model.md`, `docs/add_an_engine.md` (an optimiser) and `docs/add_a_kernel.md`: a page each
# - `nmf_zoo/inference/counts/vb.py` is a short engine with kernels, `nmf_zoo/inference/counts/gibbs.py` one that runs
#   blocks of sweeps in one compiled call
# - the notebook on your own model: where PyMC samples and a part of the model is drawn by our kernels
