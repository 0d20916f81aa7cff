"""Sparse data with exposures and backgrounds of every form: the same model, answers and errors as dense data."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError
from nmf_zoo.structure import Cells, Dense, Listed, Outer
from tests.planted import plant

pytestmark = pytest.mark.filterwarnings("ignore:X. .*no .*observed cell")
F, N, K = 9, 12, 2
RNG = np.random.default_rng(3)
X = RNG.poisson(RNG.gamma(0.6, 2.0, (F, K)) @ RNG.gamma(0.6, 2.0, (K, N)))
X[np.arange(F), np.arange(F)] += 1
X[:3, F:] += 1  # no row and no column without a count
SPARSE = scipy.sparse.csr_array(X)
PER_FEATURE, PER_SAMPLE, PER_CELL = (RNG.uniform(0.5, 2.0, shape) for shape in ((F, 1), (1, N), (F, N)))
EXPOSURES = {
    "none": None,
    "number": 1.7,
    "features": PER_FEATURE,
    "samples": PER_SAMPLE,
    "both": (PER_FEATURE, PER_SAMPLE),
    "cells": PER_CELL,
}
BACKGROUNDS = {
    "none": None,
    "number": 0.3,
    "features": PER_FEATURE,
    "both": (PER_FEATURE, PER_SAMPLE),
    "cells": PER_CELL,
}
PAIRS = [(e, b) for e in EXPOSURES for b in BACKGROUNDS if (e, b) != ("none", "none")]
FACTORS = {"W": RNG.gamma(2.0, 1.0, (F, K)), "H": RNG.gamma(2.0, 1.0, (K, N))}
PLAIN = nz.EM(accelerate=None)  # whose steps are the same however X is stored
PRIORS = {"alpha_w": 1.3, "beta_w": 0.8, "alpha_h": 1.2, "beta_h": 1.1}


def offsets(exposure, background):
    return {"exposure": EXPOSURES[exposure], "background": BACKGROUNDS[background]}


def table_of(given):
    """The same as an (F, N) array."""
    return given[0] * given[1] if isinstance(given, tuple) else given


def models(exposure="both", background="none", make=nz.gamma_nmf, **arguments):
    """The same of a dense X with arrays for offsets, and of a sparse one."""
    own = offsets(exposure, background)
    arguments = arguments or PRIORS
    dense = make(X, K, **arguments, **{role: table_of(given) for role, given in own.items()})
    return dense, make(SPARSE, K, **arguments, **own)


# -- the declaration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exposure", "background"), [("samples", "none"), ("both", "features"), ("cells", "cells")])
def test_the_density_and_its_gradient_are_those_of_dense_data(exposure, background):
    """A few: what is read of the others is compared below."""
    dense, sparse = models(exposure, background)
    point = {f"{name}_log__": np.log(value) for name, value in FACTORS.items()}
    expected = dense.compile_logp(jacobian=False, mode="FAST_COMPILE")(point)
    assert sparse.compile_logp(jacobian=False, mode="FAST_COMPILE")(point) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        sparse.compile_dlogp(mode="FAST_COMPILE")(point), dense.compile_dlogp(mode="FAST_COMPILE")(point), rtol=1e-10
    )
    assert nz.read(sparse).log_joint(FACTORS) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("exposure", "background"), PAIRS)
def test_what_is_read_has_the_density_of_dense_data(exposure, background):
    dense, sparse = map(nz.read, models(exposure, background))
    assert isinstance(sparse.data, Cells)
    assert sparse.log_joint(FACTORS) == pytest.approx(dense.log_joint(FACTORS), rel=1e-12)


@pytest.mark.parametrize(("exposure", "background"), PAIRS)
def test_means_are_those_of_dense_data(exposure, background):
    dense, sparse = map(nz.read, models(exposure, background))
    rows, cols = (np.ravel(index) for index in np.indices((F, N)))
    expected = dense.mean_at(FACTORS["W"], FACTORS["H"], rows, cols)
    np.testing.assert_allclose(sparse.mean_at(FACTORS["W"], FACTORS["H"], rows, cols), expected, rtol=1e-14)
    total = sparse.total_mean(FACTORS["W"], FACTORS["H"])
    assert total == pytest.approx(expected.sum(), rel=1e-13)
    whole = sparse.mean_of(FACTORS["W"], FACTORS["H"], slice(2, 9))
    np.testing.assert_allclose(whole, expected.reshape(F, N)[:, 2:9], rtol=1e-13)


def test_a_pair_may_be_nested_lists():
    pair = PER_FEATURE.tolist(), PER_SAMPLE.tolist()
    found = nz.read(nz.gamma_nmf(np.ones((F, N), int), K, exposure=pair)).likelihood.exposure
    np.testing.assert_array_equal(found.of_features * found.of_samples, PER_FEATURE * PER_SAMPLE)
    with pytest.raises(InputError, match="exposure: got rows of different lengths"):
        nz.gamma_nmf(np.ones((F, N), int), K, exposure=([[1.0], [2.0, 3.0]], PER_SAMPLE.tolist()))


def test_samples_of_a_pair_may_have_one_axis():
    for of_samples in (PER_SAMPLE[0], pd.Series(PER_SAMPLE[0])):
        found = nz.read(nz.gamma_nmf(np.ones((F, N), int), K, exposure=(PER_FEATURE, of_samples)))
        np.testing.assert_array_equal(found.exposure_table(), PER_FEATURE * PER_SAMPLE)
    said = rf"exposure: got a tuple of shapes \({F},\), \({N},\); expected a pair, \(features, 1\) and \(1, samples\)"
    with pytest.raises(InputError, match=said):
        nz.gamma_nmf(np.ones((F, N), int), K, exposure=(PER_FEATURE[:, 0], PER_SAMPLE[0]))


def test_a_pair_stays_apart():
    """Multiplied out it would be an array of the size of X."""
    sparse = nz.read(models("both")[1]).likelihood.exposure
    assert isinstance(sparse, Outer)
    np.testing.assert_array_equal(sparse.table(), PER_FEATURE * PER_SAMPLE)
    dense = nz.read(nz.gamma_nmf(X, K, exposure=EXPOSURES["both"], **PRIORS)).likelihood.exposure
    assert isinstance(dense, Outer)
    np.testing.assert_array_equal(dense.table(), PER_FEATURE * PER_SAMPLE)


PAIR = (PER_FEATURE, PER_SAMPLE)
AROUND = {
    "background": lambda mean, pair: mean + pair,
    "exposure and background": lambda mean, pair: PER_SAMPLE * (mean + pair),
    "two backgrounds": lambda mean, pair: (mean + 0.5) + pair,
    "turned": lambda mean, pair: (mean.T + pair.T).T,
}


@pytest.mark.parametrize("name", AROUND)
def test_the_pair_of_a_background_stays_apart(name):
    with pm.Model() as model:
        W, H = pm.Gamma("W", 1.0, 1.0, shape=(F, K)), pm.Gamma("H", 1.0, 1.0, shape=(K, N))
        mean = AROUND[name](W @ H, pm.Data("of_features", PER_FEATURE) * pm.Data("of_samples", PER_SAMPLE))
        pm.Poisson("X", mean, observed=X)
    found = nz.read(model)
    product = PER_FEATURE * PER_SAMPLE
    expected = {"exposure and background": PER_SAMPLE * product, "two backgrounds": 0.5 + product}.get(name, product)
    assert isinstance(found.likelihood.background, Outer) == (name != "two backgrounds")
    np.testing.assert_allclose(found.background_table(), expected, rtol=1e-14)


def test_a_pair_in_memory_is_never_multiplied_out(monkeypatch):
    """Of sparse counts, whatever runs on them; where a tenth of all cells is filled, Gibbs lays a table out itself."""
    monkeypatch.setattr(Outer, "table", None)
    few = scipy.sparse.csc_array(RNG.poisson(0.04, (50, 70)))
    pair = RNG.uniform(0.5, 2.0, (50, 1)), RNG.uniform(0.5, 2.0, (1, 70))
    offsets = {"exposure": pair, "background": pair}
    model = nz.gamma_nmf(few, K, **offsets, **PRIORS)
    assert isinstance(nz.read(model).likelihood.background, Outer)
    length = {"model": model, "random_seed": 1, "quiet": True}
    nz.check(model)
    for engine in ("em", "vb"):
        nz.fit(engine=engine, max_iter=2, **length)
    nz.predict(nz.sample(3, tune=2, chains=1, **length), model, random_seed=1)
    nz.fit(engine="mcem", max_iter=2, **length | {"model": nz.gap(few, K, **offsets)})


def test_simulated_counts_have_the_means():
    _, sparse = models("both", "features")
    rows, cols = SPARSE.nonzero()
    mean = nz.read(sparse).mean_at(FACTORS["W"], FACTORS["H"], rows, cols)
    draws = pm.draw(pm.do(sparse, FACTORS)["X"], 4000, random_seed=1, mode="FAST_COMPILE")
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(mean / 4000))


# -- the engines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [PLAIN, nz.VB()], ids=["em", "vb"])
@pytest.mark.parametrize(("exposure", "background"), PAIRS)
def test_optimisers_find_the_same(exposure, background, engine):
    dense, sparse = (
        nz.fit(engine=engine, model=model, max_iter=15, initvals=FACTORS, search=None, random_seed=1, quiet=True)
        for model in models(exposure, background)
    )
    for name in FACTORS:
        np.testing.assert_allclose(sparse.posterior[name], dense.posterior[name], rtol=1e-10)
    np.testing.assert_allclose(sparse.fit["objective"], dense.fit["objective"], rtol=1e-10)


@pytest.mark.parametrize(("engine", "place"), [(PLAIN, "EM: weights of cells"), (nz.VB(), "VB: weights of cells")])
def test_weights_of_sparse_data_without_features_are_seen(engine, place, monkeypatch):
    """A planted error: the exposure of features is forgotten where X is sparse."""

    def wrong(right):
        def forgetting(structure):
            weights = right(structure)
            return replace(weights, of_features=np.ones((1, 1))) if isinstance(structure.data, Cells) else weights

        return forgetting

    plant(monkeypatch, place, wrong)
    with pytest.raises(AssertionError):
        test_optimisers_find_the_same("both", "number", engine)


@pytest.mark.parametrize(("exposure", "background"), [("samples", "none"), ("both", "number"), ("cells", "cells")])
def test_gibbs_draws_the_same(exposure, background):
    """Until rounding sends one count elsewhere: it is shared out by the same numbers of its cell's own stream."""
    dense, sparse = (
        nz.sample(model=model, engine="gibbs", draws=2, tune=0, chains=1, start="random", random_seed=4, quiet=True)
        for model in models(exposure, background)
    )
    for name in FACTORS:
        np.testing.assert_allclose(sparse.posterior[name], dense.posterior[name], rtol=1e-8)


FITS = {
    "mcem": (nz.MCEM(complete="CH"), nz.gap, {"alpha_h": 0.7}),
    "vb, free shape": ("vb", nz.gamma_nmf, {"alpha_w": nz.free(), "alpha_h": 1.4}),
    "vb, free means": ("vb", nz.gamma_nmf, {"mean_w": nz.free(tie="all"), "alpha_h": 1.4}),
    "hmm_exact": ("hmm_exact", nz.hmm_nmf, {"alpha_w": 1.5}),
    "particle_em": (nz.ParticleEM(particles=40), nz.hmm_nmf, {"chain": nz.LogNormalAR(0.2, 0.6, 0.7)}),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize(("exposure", "background"), [("samples", "number"), ("both", "features"), ("both", "none")])
def test_other_fits_find_the_same(name, exposure, background):
    engine, make, arguments = FITS[name]
    dense, sparse = (
        nz.fit(engine=engine, model=model, max_iter=1 if name == "mcem" else 4, search=None, random_seed=2, quiet=True)
        for model in models(exposure, background, make, **arguments)
    )
    np.testing.assert_allclose(sparse.posterior["W"], dense.posterior["W"], rtol=1e-10)


@pytest.mark.parametrize(
    "method", [nz.Bound(max_iter=50, search=None), nz.SMC(particles=60), nz.Chib(draws=100, tune=30)]
)
def test_the_evidence_is_the_same(method):
    dense, sparse = (
        nz.evidence(model, method, chains=1, random_seed=3, quiet=True).attrs for model in models("both", "none")
    )
    error = np.hypot(*(found["log_evidence_error"] for found in (dense, sparse)))
    assert abs(sparse["log_evidence"] - dense["log_evidence"]) < 1e-8 + 4 * error


def test_enumeration_of_both_forms_is_the_same():
    """All samples alike: of a dense table, a pair is one exposure per cell, which it refuses."""
    counts, of_features = np.array([[1, 0, 2], [0, 2, 1]]), np.array([[0.4], [2.5]])
    forms = (counts, 1.6 * of_features), (scipy.sparse.csr_array(counts), (of_features, np.full((1, 3), 1.6)))
    dense, sparse = (
        nz.evidence(nz.gamma_nmf(table, K, exposure=own, background=0.3, **PRIORS), "enumeration", quiet=True)
        for table, own in forms
    )
    assert sparse.attrs["log_evidence"] == pytest.approx(dense.attrs["log_evidence"], rel=1e-10)


def test_the_marginal_likelihood_is_the_same():
    first, second = (
        nz.marginal_log_likelihood(model=model, W=FACTORS["W"]) for model in models("both", "none", nz.gap, alpha_h=0.7)
    )
    for name in first:
        np.testing.assert_allclose(second[name], first[name], rtol=1e-10)


@pytest.mark.filterwarnings("ignore:log_likelihood. Pareto's k")
def test_projections_and_predictions_are_the_same():
    dense, sparse = models("both", "number")
    fitted = nz.fit(engine="vb", model=dense, max_iter=30, search=None, random_seed=1, quiet=True)
    again = nz.fit(engine="vb", model=sparse, max_iter=30, search=None, random_seed=1, quiet=True)
    for per in ("obs", "cell"):
        first, second = (
            group(nz.log_likelihood(found, model=model, per=per), "log_likelihood")["X"]
            for found, model in ((fitted, dense), (again, sparse))
        )
        np.testing.assert_allclose(second, first, rtol=1e-10)
    exposure = PER_FEATURE * PER_SAMPLE[:, :3], (PER_FEATURE, PER_SAMPLE[:, :3])
    found = [
        nz.project(idata, new, model=model, exposure=own, background=0.3, engine=PLAIN, random_seed=1, quiet=True)
        for idata, new, model, own in (
            (fitted, X[:, :3], dense, exposure[0]),
            (again, SPARSE[:, :3], sparse, exposure[1]),
        )
    ]
    np.testing.assert_allclose(found[1].posterior["H"], found[0].posterior["H"], rtol=1e-10)


def test_held_out_counts_of_both_forms_score_alike():
    """Thinned counts: the training part has a share of the exposure."""
    scores = []
    for exposure in (EXPOSURES["both"], PER_FEATURE * PER_SAMPLE):
        table = nz.select_rank(
            lambda rank, exposure=exposure: nz.gamma_nmf(SPARSE, rank, exposure=exposure, **PRIORS),
            [1, 2],
            method=nz.Holdout(max_iter=30),
            restarts=2,
            search=None,
            random_seed=1,
            quiet=True,
        )
        scores.append(table["estimate"].to_numpy())
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-10)


# -- cells that were observed alone ----------------------------------------------------------------------------------

SEEN = np.zeros((F, N), dtype=bool)  # a tenth at the most: more of them make a matrix with a mask
SEEN.ravel()[RNG.choice(F * N, 10, replace=False)] = True
LISTED = scipy.sparse.csr_array((X[SEEN] + 0.0, np.nonzero(SEEN)), shape=(F, N))  # stored zeros, too
STORED = scipy.sparse.csr_array((PER_CELL[SEEN], np.nonzero(SEEN)), shape=(F, N))
FORMS = {**EXPOSURES, "stored": STORED}


def listed_models(exposure, background, make=nz.gamma_nmf, **arguments):
    """The same of a dense X with a mask, and of a sparse one of stored cells."""
    tables = {
        role: PER_CELL if given is STORED else table_of(given)
        for role, given in (("exposure", FORMS[exposure]), ("background", FORMS[background]))
    }
    dense = make(X + 0.0, K, mask=SEEN, **arguments, **tables)
    own = {"exposure": FORMS[exposure], "background": FORMS[background]}
    return dense, make(LISTED, K, observed="stored", **arguments, **own)


@pytest.mark.parametrize(("exposure", "background"), [(e, b) for e in FORMS for b in ("none", "number", "stored")])
def test_listed_cells_are_those_of_a_mask(exposure, background):
    dense, sparse = listed_models(exposure, background, **PRIORS)
    structure = nz.read(sparse)
    assert isinstance(structure.data, Cells)
    assert not structure.data.is_complete
    assert structure.log_joint(FACTORS) == pytest.approx(nz.read(dense).log_joint(FACTORS), rel=1e-12)
    fits = [
        nz.fit(engine=PLAIN, model=model, max_iter=10, initvals=FACTORS, search=None, quiet=True)
        for model in (dense, sparse)
    ]
    np.testing.assert_allclose(fits[1].posterior["W"], fits[0].posterior["W"], rtol=1e-10)


@pytest.mark.parametrize("make", [nz.gamma_nmf, nz.normal_nmf])
def test_the_density_of_listed_cells_is_pymcs(make):
    _, sparse = listed_models("stored", "stored", make)
    point = {f"{name}_log__": np.log(value) for name, value in FACTORS.items()}
    expected = nz.read(sparse).log_joint(FACTORS)
    assert sparse.compile_logp(jacobian=False, mode="FAST_COMPILE")(point) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("exposure", "background"), [("none", "none"), ("both", "number"), ("stored", "stored")])
def test_normal_data_of_stored_cells(exposure, background):
    dense, sparse = listed_models(exposure, background, nz.normal_nmf, sigma=1.3)
    structure = nz.read(sparse)
    assert isinstance(structure.data, Cells)
    assert structure.log_joint(FACTORS) == pytest.approx(nz.read(dense).log_joint(FACTORS), rel=1e-12)
    fits = [
        nz.fit(engine="em", model=model, max_iter=10, initvals=FACTORS, search=None, quiet=True)
        for model in (dense, sparse)
    ]
    np.testing.assert_allclose(fits[1].posterior["W"], fits[0].posterior["W"], rtol=1e-10)


def test_offsets_of_listed_cells_are_known_there_alone():
    _, sparse = listed_models("stored", "none", **PRIORS)
    structure = nz.read(sparse)
    assert isinstance(structure.likelihood.exposure, Listed)
    rows, cols = np.nonzero(SEEN)
    np.testing.assert_allclose(structure.exposure_at(rows[::-1], cols[::-1]), PER_CELL[SEEN][::-1])
    fitted = nz.fit(engine="vb", model=sparse, max_iter=5, search=None, quiet=True)
    of_cells = group(nz.log_likelihood(fitted, model=sparse, per="cell"), "log_likelihood")["X"]
    assert of_cells.sizes["cell"] == SEEN.sum()
    assert np.isfinite(of_cells).all()
    with pytest.raises(InputError, match=r"cells: got row .* lists no exposure"):
        nz.predict(fitted, model=sparse)


def test_so_they_are_where_listed_cells_make_a_matrix_with_a_mask():
    half = np.zeros((F, N), dtype=bool)
    half[:, ::2] = True
    stored = [scipy.sparse.csr_array((table[half] + 0.0, np.nonzero(half)), shape=(F, N)) for table in (X, PER_CELL)]
    model = nz.gamma_nmf(stored[0], K, observed="stored", exposure=stored[1], **PRIORS)
    structure = nz.read(model)
    assert isinstance(structure.data, Dense)
    dense = nz.read(nz.gamma_nmf(X + 0.0, K, mask=half, exposure=PER_CELL, **PRIORS))
    assert structure.log_joint(FACTORS) == pytest.approx(dense.log_joint(FACTORS), rel=1e-12)
    fits = [
        nz.fit(engine="vb", model=own, max_iter=10, initvals=FACTORS, search=None, random_seed=1, quiet=True)
        for own in (model, nz.gamma_nmf(X + 0.0, K, mask=half, exposure=PER_CELL, **PRIORS))
    ]
    np.testing.assert_allclose(fits[1].posterior["W"], fits[0].posterior["W"], rtol=1e-10)
    with pytest.raises(InputError, match=r"cells: got row .* lists no exposure"):
        nz.predict(fits[0], model=model)


def test_zeros_of_a_normal_are_not_free():
    with pytest.raises(InputError, match=r"X: got a sparse matrix; expected a dense one, or observed='stored'"):
        nz.normal_nmf(SPARSE, K)
    with pytest.raises(InputError, match=r"X: got a sparse matrix; expected a dense one, or observed='stored'"):
        nz.normal_nmf(SPARSE, K, mask=np.ones((F, N), dtype=bool))
    with pytest.raises(InputError, match="X: got a sparse matrix; expected a dense one"):
        nz.is_nmf(SPARSE, K, observed="stored")


# -- labels and memory -----------------------------------------------------------------------------------------------


def test_a_labelled_pair_goes_with_the_labels_of_x():
    genes, cells = [f"g{i}" for i in range(F)], [f"c{i}" for i in range(N)]
    table = pd.DataFrame(X, index=genes, columns=cells)
    pair = pd.DataFrame(PER_FEATURE, index=genes), pd.DataFrame(PER_SAMPLE, columns=cells)
    structure = nz.read(nz.gamma_nmf(table, K, exposure=pair))
    np.testing.assert_allclose(structure.exposure_table(), PER_FEATURE * PER_SAMPLE)
    with pytest.raises(InputError, match="exposure: got labels of 'feature' that differ"):
        nz.gamma_nmf(table, K, exposure=(pair[0][::-1], pair[1]))


@pytest.mark.parametrize("engine", ["em", "vb", "gibbs"])
def test_no_array_of_the_size_of_x_is_made(engine):
    """4,000 x 30,000 cells, 0.9 GiB as numbers; 20,000 are counts."""
    rng, shape = np.random.default_rng(0), (4_000, 30_000)
    rows, cols = rng.integers(0, shape[0], 20_000), rng.integers(0, shape[1], 20_000)
    table = scipy.sparse.csr_array((np.ones(20_000), (rows, cols)), shape=shape)
    exposure = rng.uniform(0.5, 2.0, (shape[0], 1)), rng.uniform(0.5, 2.0, (1, shape[1]))
    tracemalloc.start()
    model = nz.gamma_nmf(table, 2, exposure=exposure, background=0.001)
    if engine == "gibbs":
        found = nz.sample(model=model, engine=engine, draws=2, tune=2, chains=1, start="random", quiet=True)
    else:
        found = nz.fit(model=model, engine=engine, max_iter=3, draws=5, search=None, quiet=True)
    nz.log_likelihood(found, model=model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6
