"""Counts in batches: what is read, the declaration, its density; EM and VB; what is done with a result."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
import xarray as xr
from pymc.exceptions import ImputationWarning
from scipy import optimize, stats
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.batches import em, gibbs, vb
from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.registry import names, verdict
from nmf_zoo.inference.shared import multiplied
from nmf_zoo.interfaces.cli import main
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BatchedPoisson, Dense, Poisson
from tests.pairs import pairs
from tests.planted import plant, put

F, K, N = 5, 2, 8
RNG = np.random.default_rng(11)
BATCH = np.array([0, 1, 1, 0, 2, 2, 0, 1])
LABELS = np.array(["plate b", "plate a", "plate c"])[BATCH]
ONE_HOT = np.eye(3)[:, BATCH]
TRUTH = {"W": RNG.gamma(2.0, 1.0, (F, K)), "H": RNG.gamma(2.0, 2.0, (K, N)), "M": RNG.gamma(4.0, 0.25, (F, 3))}
X = RNG.poisson(TRUTH["W"] @ TRUTH["H"] * TRUTH["M"][:, BATCH])
MASK = RNG.uniform(size=(F, N)) < 0.75
TABLE, SIDES = RNG.uniform(0.5, 2.0, (F, N)), (np.linspace(0.5, 2.0, F)[:, None], np.linspace(0.8, 1.7, N)[None])
two, three = np.float64(2.0), np.float64(3.0)
PRIORS = {"alpha_w": 1.5, "alpha_h": 2.0, "beta_h": 0.5}


def product():
    return pm.Gamma("W", two, three, shape=(F, K)) @ pm.Gamma("H", two, three, shape=(K, N))


def of_batches(*shape, name="M"):
    return pm.Gamma(name, three, two, shape=shape)


# -- what is read --------------------------------------------------------------------------------------------------

SPELLINGS = {
    "index": lambda: product() * of_batches(F, 3)[:, BATCH],
    "in front": lambda: of_batches(F, 3)[:, BATCH] * product(),
    "pt.take": lambda: product() * pt.take(of_batches(F, 3), BATCH, axis=1),
    "one-hot": lambda: product() * (of_batches(F, 3) @ ONE_HOT),
    "pt.dot in front": lambda: pt.dot(of_batches(F, 3), ONE_HOT) * product(),
    "one-hot transposed": lambda: product() * (ONE_HOT.T @ of_batches(3, F)).T,
    "einsum": lambda: product() * pt.einsum("fb,bn->fn", of_batches(F, 3), ONE_HOT),
    "batches first": lambda: product() * of_batches(3, F)[BATCH].T,
    "whole transposed": lambda: (product().T * of_batches(3, F)[BATCH]).T,
    "labels as data": lambda: product() * of_batches(F, 3)[:, pm.Data("b", BATCH)],
    "Deterministic": lambda: product() * pm.Deterministic("effect", of_batches(F, 3)[:, BATCH]),
    "exposure first": lambda: TABLE * product() * of_batches(F, 3)[:, BATCH],
    "exposure last": lambda: product() * of_batches(F, 3)[:, BATCH] * TABLE,
    "exposure beside the multipliers": lambda: (of_batches(F, 3)[:, BATCH] * TABLE) * product(),
    "division": lambda: product() * of_batches(F, 3)[:, BATCH] / TABLE,
    "background inside": lambda: (TABLE * product() + 0.3) * of_batches(F, 3)[:, BATCH],
    "a reference": lambda: product() * pt.concatenate([of_batches(F, 2), np.ones((F, 1))], axis=1)[:, BATCH],
    "a reference first": lambda: product() * pt.concatenate([np.ones((F, 1)), of_batches(F, 2)], axis=1)[:, BATCH],
    "listed cells": lambda: (product() * of_batches(F, 3)[:, BATCH])[np.nonzero(MASK)],
    "known W": lambda: (TRUTH["W"] @ pm.Gamma("H", two, three, shape=(K, N))) * of_batches(F, 3)[:, BATCH],
    "known W, one-hot": lambda: (TRUTH["W"] @ pm.Gamma("H", two, three, shape=(K, N))) * (of_batches(F, 3) @ ONE_HOT),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_are_read(name):
    with pm.Model() as model:
        pm.Poisson("X", mu=SPELLINGS[name](), observed=X[MASK] if name == "listed cells" else X)
    nz.check(model)
    own = nz.read(model).likelihood.multipliers
    expected = np.array({"a reference": [0, 1, 2], "a reference first": [2, 0, 1]}.get(name, [0, 1, 2]))
    np.testing.assert_array_equal(own.batch, expected[BATCH])


def test_as_many_features_as_batches_are_told_apart():
    square = np.array([[0.5, 2.0], [1.5, 0.7]])
    for spelling in (lambda M: M[:, [0, 1, 1]], lambda M: M[[0, 1, 1]].T):
        with pm.Model() as model:
            W, H = pm.Gamma("W", two, three, shape=(2, 1)), pm.Gamma("H", two, three, shape=(1, 3))
            pm.Poisson("X", mu=W @ H * spelling(of_batches(2, 2)), observed=X[:2, :3])
        nz.check(model)
        own = nz.read(model).likelihood.multipliers
        np.testing.assert_array_equal(own.resolve({"M": square}), spelling(square))


@pytest.mark.engines
def test_imputed_cells_have_their_multipliers():
    with pm.Model() as model:
        mean = product() * of_batches(F, 3)[:, BATCH]
        with pytest.warns(ImputationWarning):
            pm.Poisson("X", mu=mean, observed=np.ma.array(X, mask=~MASK))
    nz.check(model)
    structure = nz.read(model)
    drawn = nz.sample(400, tune=200, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    posterior = _compat.group(drawn, "posterior")
    cells, table = (structure.imputed.rows, structure.imputed.cols), structure.likelihood.multipliers
    expected = np.mean(
        [
            (W @ H * table.resolve({"M": M}))[cells]
            for W, H, M in zip(*(posterior[name].to_numpy()[0] for name in "WHM"), strict=True)
        ],
        axis=0,
    )
    found = posterior[structure.imputed.name].to_numpy()[0]
    error = found.std(axis=0) / np.sqrt(len(found) / 4)
    assert np.all(np.abs(found.mean(axis=0) - expected) < 5 * error)


REFUSED = {
    "background outside": (lambda: product() * of_batches(F, 3)[:, BATCH] + 0.3, "all of it times M"),
    "a power": (lambda: product() * of_batches(F, 3)[:, BATCH] ** 2, "one free variable of shape"),
    "a sum": (lambda: product() * (of_batches(F, 3)[:, BATCH] + 1), "one free variable of shape"),
    "one for each batch": (lambda: product() * of_batches(3)[BATCH], "one free variable of shape"),
    "other rows": (lambda: product() * of_batches(F, 3)[::-1][:, BATCH], "one free variable of shape"),
    "another row in one place": (lambda: product() * of_batches(F, 3)[np.r_[0, 0, 2:F]][:, BATCH], "one free variable"),
    "halves": (lambda: product() * (of_batches(F, 3) @ (0.5 * ONE_HOT)), "found mean"),
    "two of them": (
        lambda: product() * of_batches(F, 3)[:, BATCH] * of_batches(F, 2, name="M2")[:, BATCH % 2],
        "found mean",
    ),
    "a prior with an unknown": (
        lambda: product() * pm.Gamma("M", pm.Gamma("a", 2.0, 2.0), 2.0, shape=(F, 3))[:, BATCH],
        "prior that depends on",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_none_is_refused(name):
    mean, says = REFUSED[name]
    with pm.Model() as model:
        pm.Poisson("X", mu=mean(), observed=X)
    with pytest.raises(UnreadableModel, match=says):
        nz.read(model)


@pytest.mark.parametrize(
    "law",
    [
        lambda mean: pm.Normal("X", mu=mean, sigma=1.0, observed=X * 1.0),
        lambda mean: pm.NegativeBinomial("X", mu=mean, alpha=2.0, observed=X),
        lambda mean: pm.Exponential("X", scale=mean, observed=X + 1.0),
    ],
)
def test_multipliers_are_for_counts(law):
    with pm.Model() as model:
        law(product() * of_batches(F, 3)[:, BATCH])
    with pytest.raises(UnreadableModel, match="found mean"):
        nz.read(model)


# -- the declaration -----------------------------------------------------------------------------------------------

OFFSETS = {
    "none": {},
    "table": {"exposure": TABLE},
    "sides": {"exposure": SIDES},
    "depths, background": {"exposure": SIDES[1], "background": 0.2},
    "lengths, background of features": {"exposure": SIDES[0], "background": SIDES[0]},
    "background of cells": {"background": TABLE},
}


@pytest.mark.parametrize(
    ("offsets", "data", "reference"), pairs(OFFSETS, ["whole", "real", "mask", "sparse", "stored"], [None, "plate a"])
)
def test_what_is_declared_has_its_density(offsets, data, reference):
    given, more = {
        "whole": (X, {}),
        "real": (X + 0.5, {}),
        "mask": (X, {"mask": MASK}),
        "sparse": (sp.csr_array(X), {}),
        "stored": (sp.csr_array(X * MASK), {"observed": "stored"}),
    }[data]
    batches = nz.Batches(labels=LABELS, shape=3.5, reference=reference)
    model = nz.gamma_nmf(given, K, batch=batches, alpha_w=two, **more, **OFFSETS[offsets])
    nz.check(model)
    assert type(nz.read(model).likelihood) is BatchedPoisson


def test_sparse_counts_are_drawn_by_their_means():
    model = nz.gamma_nmf(sp.csr_array(X), K, batch=LABELS, exposure=SIDES, background=0.3)
    fixed = pm.do(model, {"W": TRUTH["W"], "H": TRUTH["H"]})
    draws = pm.draw([fixed["X"], fixed["M"]], 4000, random_seed=1)
    rows, cols = np.nonzero(X)
    order = [0, 1, 2]  # as they appear: b, a, c
    mean = (SIDES[0] * SIDES[1] * (TRUTH["W"] @ TRUTH["H"]) + 0.3)[rows, cols]
    ratio = draws[0] / draws[1][:, :, order][:, rows, BATCH[cols]]
    np.testing.assert_allclose(ratio.mean(axis=0), mean, rtol=0.1)
    assert np.corrcoef(draws[0][:, 0], draws[1][:, rows[0], BATCH[cols[0]]])[0, 1] > 0.3


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (LABELS[:-1], r"batch: got labels of shape \(7,\); expected \(8,\)"),
        (np.where(BATCH == 1, np.nan, 1.0), "batch: got 3 samples without a label"),
        (nz.Batches(labels=LABELS, reference="plate x"), "reference: got 'plate x'; expected one of the batches"),
        (nz.Batches(labels=["a"] * N, reference="a"), "reference: got 'a'; expected a batch beside others"),
        (pd.Series(LABELS, index=list("abcdefgh")), "batch: got labels of 'obs' that differ from X's"),
    ],
)
def test_bad_labels_are_one_line(batch, says):
    data = pd.DataFrame(X, columns=list("hgfedcbz"))
    with pytest.raises(InputError, match=says) as caught:
        nz.gamma_nmf(data, K, batch=batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [0.0, -1.0, np.inf, "wide"])
def test_bad_prior_is_one_line(shape):
    with pytest.raises(InputError, match="shape: got"):
        nz.Batches(labels=LABELS, shape=shape)


def test_labels_travel():
    data = pd.DataFrame(X, columns=list("abcdefgh"))
    shuffled = pd.Series(LABELS, index=list("abcdefgh"))[list("hgfedcba")]
    for batch in (LABELS, shuffled, xr.DataArray(shuffled.to_numpy(), [("obs", list("hgfedcba"))]), list(LABELS)):
        model = nz.gamma_nmf(data, K, batch=batch)
        np.testing.assert_array_equal(nz.read(model).likelihood.multipliers.batch, BATCH)
        assert model.coords["batch"] == ("plate b", "plate a", "plate c")
    fitted = nz.fit(engine="em", search=None, random_seed=1, quiet=True, model=model)
    M = _compat.group(fitted, "posterior")["M"]
    assert M.dims == ("chain", "draw", "feature", "batch")
    assert M["batch"].to_numpy().tolist() == ["plate b", "plate a", "plate c"]


def test_description_names_them():
    text = nz.describe(nz.gamma_nmf(X, K, batch=nz.Batches(labels=LABELS, reference="plate a")))
    assert "BatchedPoisson(W @ H, multipliers=M of 2 batches of 3 and 2 samples, 3 of a reference)" in text
    assert "M: 10 values, one for each feature and batch, sampled, gamma(5, 5) prior" in text


def test_simulation_has_the_law():
    known = {"W": TRUTH["W"], "H": TRUTH["H"]}
    drawn = nz.simulate(pm.do(nz.gamma_nmf(None, K, batch=LABELS, shape=(F, N)), known), random_seed=3)
    assert drawn["M"].shape == (F, 3)
    mean = TRUTH["W"] @ TRUTH["H"] * drawn["M"].to_numpy()[:, BATCH]
    z = (drawn["X"].to_numpy() - mean) / np.sqrt(mean)
    assert abs(np.mean(z)) < 5 / np.sqrt(z.size)
    assert abs(np.mean(np.square(z)) - 1.0) < 5 * np.sqrt(2.0 / z.size)


# -- sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "data", "reference"), pairs(OFFSETS, ["whole", "mask", "sparse", "stored"], [None, "plate a"])
)
def test_sums_are_those_of_the_table(offsets, data, reference):
    """Of exposures that multipliers are, and of what their conditionals need: by the whole table of cells."""
    given, more = {
        "whole": (X, {}),
        "mask": (X, {"mask": MASK}),
        "sparse": (sp.csr_array(X), {}),
        "stored": (sp.csr_array(X * MASK), {"observed": "stored"}),
    }[data]
    batches = nz.Batches(labels=LABELS, reference=reference)
    structure = nz.read(nz.gamma_nmf(given, K, batch=batches, **more, **OFFSETS[offsets]))
    seen = {"mask": MASK, "stored": X * MASK > 0}.get(data, np.ones((F, N), bool))
    own, found = structure.likelihood.multipliers, multiplied.batch_data(structure)
    exposure = OFFSETS[offsets].get("exposure", 1.0)
    exposure = exposure[0] * exposure[1] if isinstance(exposure, tuple) else exposure
    weight = seen * np.broadcast_to(exposure, (F, N))
    W, Ht = TRUTH["W"], TRUTH["H"].T.copy()
    mean = weight * (W @ Ht.T) + seen * OFFSETS[offsets].get("background", 0.0)
    one_hot = (own.batch[:, None] == np.arange(found.counts.shape[1])).astype(float)
    np.testing.assert_allclose(found.counts, (X * seen) @ one_hot)
    np.testing.assert_allclose(found.sums(W, Ht), mean @ one_hot)
    table = own.table({"M": TRUTH["M"][:, : own.n_batches]})
    weights, whole = found.at(table), weight * table[:, own.batch]
    np.testing.assert_allclose(weights.over_samples(Ht), whole @ Ht)
    np.testing.assert_allclose(weights.over_features(W), whole.T @ W)
    np.testing.assert_allclose(weights.total(W, Ht), np.sum(whole * (W @ Ht.T)))
    totals = multiplied.totals_of_samples(structure)(W, Ht.T, {"M": TRUTH["M"][:, : own.n_batches]})
    np.testing.assert_allclose(totals, np.sum(mean * table[:, own.batch], axis=0))


# -- EM ------------------------------------------------------------------------------------------------------------


def objectives(fitted):
    values = _compat.group(fitted, "fit")["objective"].to_numpy().ravel()
    return values[np.isfinite(values)]


def point_of(fitted, names=("W", "H", "M")):
    return {name: _compat.group(fitted, "posterior")[name].to_numpy()[0, 0] for name in names}


RUN = {"search": None, "quiet": True, "random_seed": 1, "max_iter": 60}
CASES = {
    "plain": {},
    "mask, exposure, background": {"mask": MASK, "exposure": SIDES, "background": 0.2},
    "hierarchy": {"prior": nz.HPF(shape=2.0), "alpha_w": 1.2, "alpha_h": 1.2},
    "known": {"known": TRUTH["W"][:, :1]},
}


@pytest.mark.engines
@pytest.mark.parametrize(("case", "accelerate", "mode"), pairs(CASES, [None, "momentum", "newton"], ["density", "log"]))
def test_em_never_rises(case, accelerate, mode):
    own = {} if "prior" in CASES[case] else PRIORS
    model = nz.gamma_nmf(X, K, batch=LABELS, **own, **CASES[case])
    fitted = nz.fit(**RUN, engine=nz.EM(accelerate=accelerate, mode=mode), model=model)
    found = objectives(fitted)
    assert len(found) > 5
    assert np.max(np.diff(found)) <= 1e-9 * np.abs(found).max()
    if mode == "density":
        names = [*nz.read(model).unknowns, "H", "W" if case != "known" else "W_new"]
        at_end = nz.read(model).log_joint(point_of(fitted, names))
        assert -at_end == pytest.approx(found[-1], rel=1e-12)


@pytest.mark.engines
@pytest.mark.parametrize("mode", ["density", "log"])
@pytest.mark.parametrize("reference", [None, "plate a"])
def test_em_ends_where_no_other_step_leads_on(mode, reference):
    """From its end a general minimiser finds nothing below; from a start of its own it ends no lower."""
    model = nz.gamma_nmf(X, K, batch=nz.Batches(labels=LABELS, reference=reference), **PRIORS)
    structure, run = nz.read(model), {**RUN, "max_iter": 5000, "tol": 1e-9}
    fitted = nz.fit(**run, engine=nz.EM(mode=mode), model=model)
    point = point_of(fitted)
    sizes = np.cumsum([0, *(value.size for value in point.values())])

    def objective(logs):
        parts = zip(point.items(), sizes[:-1], sizes[1:], strict=True)
        values = {name: np.exp(logs[a:b]).reshape(value.shape) for (name, value), a, b in parts}
        return -structure.log_joint(values) - (np.sum(logs) if mode == "log" else 0.0)

    start = np.log(np.concatenate([np.maximum(value, 1e-12).ravel() for value in point.values()]))
    best = optimize.minimize(objective, start, method="L-BFGS-B").fun
    assert objective(start) == pytest.approx(objectives(fitted)[-1], rel=1e-10)
    assert objective(start) - best < 1e-5


@pytest.mark.engines
def test_wrong_multipliers_of_em_are_seen(monkeypatch):
    """The planted error: multipliers beyond their mode. The objective rises, or ends higher."""
    model = nz.gamma_nmf(X, K, batch=LABELS, **PRIORS)
    right = objectives(nz.fit(**RUN, engine="em", model=model))[-1]
    plant(monkeypatch, "EM of batches: best multipliers", lambda best: lambda problem, sums: 1.3 * best(problem, sums))
    found = objectives(nz.fit(**RUN, engine="em", model=model))
    assert np.max(np.diff(found)) > 1e-3 or found[-1] > right + 1e-3


@pytest.mark.engines
def test_scales_save_iterations():
    """Where counts are many, multipliers and factors that go back and forth would creep."""
    many = RNG.poisson(30.0 * TRUTH["W"] @ TRUTH["H"] * TRUTH["M"][:, BATCH])
    structure = nz.read(nz.gamma_nmf(many, K, batch=LABELS, alpha_w=1.5, beta_w=0.05, alpha_h=2.0, beta_h=0.05))

    def climbed(problem, iterations):
        state = em.init(problem, seed_key(1), {})
        for _ in range(iterations):
            state, _ = em.step(problem, state)
        return state.objective

    problem = em.prepare(structure, EM(), SERIAL)
    still = dataclasses.replace(problem.data, background=np.full_like(problem.data.background, 1e-300))  # nothing moves
    best = climbed(problem, 1000)
    assert climbed(problem, 300) - best < 0.1 * (climbed(dataclasses.replace(problem, data=still), 300) - best)


def test_where_the_density_has_no_bound_em_says_so():
    empty = X * (BATCH != 1)
    empty[1:] = X[1:]
    model = nz.gamma_nmf(empty, K, batch=nz.Batches(labels=LABELS, shape=0.7), **PRIORS)
    refusal = verdict(nz.read(model), "em").reason
    assert "the density of M has a shape below 1 and is unbounded at 0" in refusal
    assert "(1 of 15)" in refusal
    nz.fit(**RUN, engine=nz.EM(mode="log"), model=model)
    nz.fit(**RUN, engine="em", model=nz.gamma_nmf(X + 1, K, batch=nz.Batches(labels=LABELS, shape=0.7), **PRIORS))


# -- VB ------------------------------------------------------------------------------------------------------------


@pytest.mark.engines
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{}, {"accelerate": None}, {"order": "paisley"}])
def test_the_bound_never_falls(case, options):
    own = {} if "prior" in CASES[case] else PRIORS
    model = nz.gamma_nmf(X, K, batch=LABELS, **own, **CASES[case])
    found = objectives(nz.fit(**RUN, engine=nz.VB(**options), model=model))
    assert np.min(np.diff(found)) >= -1e-9 * np.abs(found).max()


@pytest.mark.engines
def test_a_bound_without_the_divergence_of_multipliers_is_seen(monkeypatch):
    """The planted error: it falls, or ends elsewhere."""
    model = nz.gamma_nmf(X, K, batch=LABELS, **PRIORS)
    right = objectives(nz.fit(**RUN, engine="vb", model=model))[-1]
    put(monkeypatch, "VB of batches: divergence of multipliers", lambda *given: np.zeros(1))
    found = objectives(nz.fit(**RUN, engine="vb", model=model))
    assert np.min(np.diff(found)) < -1e-3 or abs(found[-1] - right) > 1.0


# -- who runs it ---------------------------------------------------------------------------------------------------

ABLE = {"em", "vb", "gibbs", "nuts"}


def test_who_runs_it():
    structure = nz.read(nz.gamma_nmf(X, K, batch=LABELS))
    assert {name for name in names() if verdict(structure, name)} == ABLE
    for name in set(names()) - ABLE:
        assert "batched poisson" in verdict(structure, name).reason


def declared_with(M, W=None):
    with pm.Model() as model:
        W = pm.Gamma("W", two, three, shape=(F, K)) if W is None else W()
        mean = W @ pm.Gamma("H", two, three, shape=(K, N))
        pm.Poisson("X", mu=mean * M()[:, BATCH], observed=X)
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: declared_with(lambda: pm.LogNormal("M", 0.0, 0.5, shape=(F, 3))), "M has a lognormal prior"),
        (lambda: declared_with(lambda: pm.HalfFlat("M", shape=(F, 3))), "M has no prior"),
        (
            lambda: declared_with(lambda: of_batches(F, 3), lambda: pm.HalfFlat("W", shape=(F, K))),
            "W has no prior, so it can grow while M shrinks",
        ),
    ],
)
def test_other_priors_are_refused_in_words(model, says):
    structure = nz.read(model())
    for engine in ("em", "vb", "gibbs"):
        assert says in verdict(structure, engine).reason


def test_nuts_takes_any_proper_prior():
    structure = nz.read(declared_with(lambda: pm.LogNormal("M", 0.0, 0.5, shape=(F, 3))))
    assert verdict(structure, "nuts")
    assert not verdict(nz.read(declared_with(lambda: pm.HalfFlat("M", shape=(F, 3)))), "nuts")


def test_replicas_are_refused():
    model = nz.gamma_nmf(X, K, batch=LABELS)
    with pytest.raises(UnsupportedModel, match="temperatures="):
        nz.sample(engine=nz.Gibbs(temperatures=3), quiet=True, model=model)


def test_a_stream_refuses_it():
    with pytest.raises(UnsupportedModel, match="batched poisson"):
        nz.stream(nz.gamma_nmf(None, K, batch=LABELS, shape=(F, N)))


# -- one model, in every form of its data --------------------------------------------------------------------------


def drawn_by(structure, sweeps=30, options=None):
    problem = gibbs.prepare(structure, options or Gibbs(), SERIAL)
    state = gibbs.init(problem, seed_key(1), TRUTH)
    for sweep in range(sweeps):
        state, _ = gibbs.step(problem, state, child(seed_key(2), sweep))
    values, stats_of_draw = gibbs.draw(problem, state, seed_key(3))
    return values, stats_of_draw["lp"]


@pytest.mark.engines
@pytest.mark.parametrize("offsets", [{}, {"exposure": SIDES, "background": 0.2}, {"exposure": TABLE}])
def test_sparse_counts_are_drawn_as_dense_ones(offsets):
    tables = [nz.read(nz.gamma_nmf(own, K, batch=LABELS, **offsets)) for own in (X, sp.csr_array(X))]
    (dense, lp), (sparse, other) = (drawn_by(own) for own in tables)
    for name in "WHM":
        np.testing.assert_allclose(dense[name], sparse[name], rtol=1e-9)
    assert lp == pytest.approx(other, rel=1e-12)
    assert lp == pytest.approx(tables[0].log_joint(dense), rel=1e-12)


@pytest.mark.engines
def test_multipliers_of_one_are_an_exposure_of_one():
    """With a prior as narrow as a point it is the model without batches."""
    narrow = nz.Batches(labels=LABELS, shape=1e12)
    batched, plain = (nz.gamma_nmf(X, K, **PRIORS, **more) for more in ({"batch": narrow}, {}))
    for engine in ("em", "vb"):
        found = [nz.fit(**{**RUN, "max_iter": 3000, "tol": 1e-8}, engine=engine, model=own) for own in (batched, plain)]
        W, H = (
            [_compat.group(one, "posterior")[name].mean(("chain", "draw")).to_numpy() for one in found] for name in "WH"
        )
        np.testing.assert_allclose(W[0] @ H[0], W[1] @ H[1], rtol=0.02 if engine == "vb" else 1e-3)


@pytest.mark.engines
def test_memory_goes_with_the_counts_not_the_table():
    """A table of 20,000 x 20,000 would take 3.2 GB."""
    generator = np.random.default_rng(2)
    rows, cols = generator.integers(0, 20_000, (2, 3000))
    sparse = sp.csr_array((np.ones(3000), (rows, cols)), shape=(20_000, 20_000))
    with pytest.warns(NmfZooWarning, match="no positive observed cell"):
        model = nz.gamma_nmf(sparse, 2, batch=np.arange(20_000) % 3, exposure=np.ones((1, 20_000)))
    tracemalloc.start()
    try:
        structure = nz.read(model)
        for engine, options in ((em, EM()), (vb, VB()), (gibbs, Gibbs())):
            problem = engine.prepare(structure, options, SERIAL)
            state = engine.init(problem, seed_key(1), {})
            engine.step(problem, state, seed_key(2))
        values = {"W": np.ones((20_000, 2)), "H": np.ones((2, 20_000)), "M": np.ones((20_000, 3))}
        assert structure.log_joint(values) < 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e8


# -- what is done with a result ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    model = nz.gamma_nmf(X, K, batch=LABELS, **PRIORS)
    return nz.sample(100, tune=100, chains=2, engine="gibbs", random_seed=1, quiet=True, model=model), model


@pytest.mark.filterwarnings("ignore:log_likelihood. Pareto")
def test_pointwise_log_likelihoods_are_scipys(drawn):
    idata, model = drawn
    posterior = _compat.group(idata, "posterior")
    W, H, M = (posterior[name].to_numpy()[1, 7] for name in "WHM")
    expected = stats.poisson.logpmf(X, W @ H * M[:, BATCH])
    for per, right in (("obs", expected.sum(axis=0)), ("cell", expected)):
        found = _compat.group(nz.log_likelihood(idata, model, per=per), "log_likelihood")["X"].to_numpy()[1, 7]
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)
    sparse = nz.gamma_nmf(sp.csr_array(X), K, batch=LABELS, background=0.3, **PRIORS)
    expected = stats.poisson.logpmf(X, (W @ H + 0.3) * M[:, BATCH]).sum(axis=0)
    found = _compat.group(nz.log_likelihood(idata, sparse), "log_likelihood")["X"].to_numpy()[1, 7]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_predictions_follow_the_multipliers(drawn):
    idata, model = drawn
    predicted = nz.predict(idata, model, random_seed=1).mean(("chain", "draw")).to_numpy()
    posterior = _compat.group(idata, "posterior")
    W, H, M = (posterior[name].to_numpy().reshape(200, *posterior[name].shape[2:]) for name in "WHM")
    expected = np.mean(W @ H * M[:, :, BATCH], axis=0)
    assert np.all(np.abs(predicted - expected) < 5 * np.sqrt(expected / 200) + 0.1)


def test_new_samples_of_a_known_batch(drawn):
    idata, model = drawn
    generator = np.random.default_rng(5)
    activations = generator.gamma(2.0, 2.0, (K, 40))
    batch = generator.integers(0, 3, 40)
    new = generator.poisson(TRUTH["W"] @ activations * TRUTH["M"][:, batch])
    labels = np.array(["plate b", "plate a", "plate c"])[batch]
    projected = nz.project(idata, new, model=model, batch=labels, engine="em", quiet=True, random_seed=1)
    constants = _compat.group(projected, "constant_data")
    mean = constants["exposure"].to_numpy() * (
        constants["W"].to_numpy() @ _compat.group(projected, "posterior")["H"].to_numpy()[0, 0]
    )
    right = TRUTH["W"] @ activations * TRUTH["M"][:, batch]
    wrong = nz.project(idata, new, model=model, batch=np.roll(labels, 1), engine="em", quiet=True, random_seed=1)
    other = _compat.group(wrong, "constant_data")["exposure"].to_numpy() * (
        _compat.group(wrong, "constant_data")["W"].to_numpy() @ _compat.group(wrong, "posterior")["H"].to_numpy()[0, 0]
    )
    assert abs(mean.sum() / new.sum() - 1) < 0.1
    assert np.mean(np.abs(mean - right)) < 0.8 * np.mean(np.abs(other - right))


def test_batches_and_exposures_of_new_samples_go_by_their_labels(drawn):
    idata, model = drawn
    new = pd.DataFrame(X, columns=[f"s{sample}" for sample in range(N)])
    labels, exposure = pd.Series(LABELS, new.columns), pd.Series(SIDES[1][0], new.columns)

    def projected(batch, exposure):
        return nz.read(nz.projection_model(idata, new, model=model, batch=batch, exposure=exposure))

    found, expected = projected(labels[::-1], exposure), projected(LABELS, SIDES[1])
    np.testing.assert_array_equal(found.likelihood.exposure, expected.likelihood.exposure)
    with pytest.raises(InputError, match="exposure: got labels of 'obs' that differ from X's"):
        projected(labels, exposure[::-1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "batch: got None; expected labels of batches"),
        ({"batch": ["plate z"] * 2}, "batch: got 'plate z'; expected labels of batches"),
        ({"batch": ["plate a"]}, r"batch: got labels of shape \(1,\); expected \(2,\)"),
        ({"batch": ["plate a"] * 2, "exposure": sp.csr_array(np.ones((F, 2)))}, "exposure: got a sparse matrix"),
    ],
)
def test_bad_new_samples_are_one_line(arguments, says, drawn):
    idata, model = drawn
    with pytest.raises(InputError, match=says):
        nz.project(idata, X[:, :2], model=model, quiet=True, **arguments)


def test_labelled_batches_and_exposures_of_new_samples(drawn):
    idata, model = drawn
    new = pd.DataFrame(X[:, :3], columns=list("pqr"))
    batch, depth = (pd.Series(own, index=list("pqr")) for own in (["plate a", "plate b", "plate b"], [1.0, 2.0, 3.0]))
    found = [
        nz.read(nz.projection_model(idata, new, model=model, batch=own, exposure=depth)).likelihood.exposure
        for own in (batch, batch.to_numpy(), batch[::-1])
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    with pytest.raises(InputError, match="exposure: got labels of 'obs' that differ from X's"):
        nz.projection_model(idata, new, model=model, batch=batch, exposure=depth[::-1])


def test_batches_of_a_model_without_them_are_refused():
    model = nz.gamma_nmf(X, K, **PRIORS)
    fitted = nz.fit(**RUN, engine="em", model=model)
    with pytest.raises(InputError, match="batch: got labels; expected None"):
        nz.project(fitted, X, model=model, batch=LABELS, quiet=True)


def test_held_out_cells_know_their_batch():
    """Where batches differ the model that has them predicts better, of either kind of data."""
    generator = np.random.default_rng(8)
    batch = np.arange(60) % 2
    wide = generator.gamma(1.5, 1 / 1.5, (20, 2))
    counts = generator.poisson(generator.gamma(2.0, 1.0, (20, 1)) @ generator.gamma(4.0, 1.0, (1, 60)) * wide[:, batch])
    options = {"method": nz.Holdout(share=0.2), "restarts": 1, "random_seed": 1, "quiet": True}

    def score(data, **more):
        return float(nz.select_rank(lambda rank: nz.gamma_nmf(data, rank, **more), [1], **options)["combined"][0])

    for data in (counts, sp.csr_array(counts)):
        assert score(data, batch=nz.Batches(labels=batch, shape=1.5)) > score(data) + 20.0


def test_a_plain_structure_has_no_multipliers():
    structure = nz.read(nz.gamma_nmf(X, K, batch=LABELS))
    plain = multiplied.without_multipliers(structure)
    assert type(plain.likelihood) is Poisson
    assert isinstance(plain.data, Dense)
    assert not plain.unknowns


@pytest.mark.engines
def test_multipliers_of_known_factors_are_exact():
    """Their posterior is gamma, which q is, so that the bound is the evidence; the mode and draws are that law's."""
    model = pm.do(nz.gamma_nmf(X, K, batch=LABELS), {"W": TRUTH["W"], "H": TRUTH["H"]})
    mean, one_hot = TRUTH["W"] @ TRUTH["H"], ONE_HOT.T
    shape, rate, counts = 5.0 + X @ one_hot, 5.0 + mean @ one_hot, X @ one_hot
    evidence = np.sum(X * np.log(mean) - gammaln(X + 1.0))
    evidence += np.sum(5.0 * np.log(5.0) - gammaln(5.0) + gammaln(5.0 + counts) - (5.0 + counts) * np.log(rate))
    fitted = nz.fit(**RUN, engine="vb", model=model)
    assert objectives(fitted)[-1] == pytest.approx(evidence, rel=1e-12)
    np.testing.assert_allclose(_compat.group(fitted, "fit")["M_shape"].to_numpy().squeeze(), shape)
    np.testing.assert_allclose(_compat.group(fitted, "fit")["M_rate"].to_numpy().squeeze(), rate)
    mode = _compat.group(nz.fit(**RUN, engine="em", model=model), "posterior")["M"].to_numpy()[0, 0]
    np.testing.assert_allclose(mode, (shape - 1.0) / rate, rtol=1e-12)
    drawn = nz.sample(2000, tune=0, extend=1, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    p = stats.gamma.cdf(_compat.group(drawn, "posterior")["M"].to_numpy()[0], shape, scale=1.0 / rate)
    assert stats.kstest(p[:, 0, 0], "uniform").pvalue > 1e-4
    assert np.all(np.abs(p.mean(axis=0) - 0.5) < 5 * np.sqrt(1 / 12 / 2000))


@pytest.mark.parametrize("lines", ["a\na\nb\nb\n", "s1,a\ns2,a\ns4,b\ns3,b\n"])
def test_batches_from_the_command_line(lines, tmp_path, capsys):
    """In the order of the samples, or by their labels; the result knows them."""
    (tmp_path / "x.csv").write_text(",s1,s2,s3,s4\nx,1,2,3,4\ny,1,2,3,2\nz,2,2,1,0\n")
    (tmp_path / "batches.txt").write_text(lines)
    places = {"output": tmp_path / "o.nc", "batch": tmp_path / "batches.txt"}
    line = f"fit {tmp_path / 'x.csv'} --rank 1 --engine vb --random-seed 1 --quiet -o {places['output']}"
    assert main([*line.split(), "--batch", str(places["batch"])]) == 0
    posterior = _compat.group(nz.load(places["output"]), "posterior")
    assert posterior["M"].dims[-2:] == ("feature", "batch")
    assert posterior["batch"].to_numpy().tolist() == ["a", "b"]
    capsys.readouterr()
    assert main([*line.split(), "--force", "--batch", "nowhere.txt"]) == 2
    assert "--batch: got 'nowhere.txt'; expected a file" in capsys.readouterr().err
