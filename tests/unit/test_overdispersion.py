"""The negative binomial likelihood: density, slopes, draws; its declaration; EM over the factors and the dispersion."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pymc as pm
import pytest
import scipy.sparse as sp
from scipy import optimize, stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.distributions import SparseNegativeBinomial
from nmf_zoo.errors import InputError, NmfZooWarning, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.overdispersed import dispersion, em, gibbs, trajectories
from nmf_zoo.inference.overdispersed.cells import Pieces
from nmf_zoo.inference.overdispersed.rows import cells_of_rows
from nmf_zoo.inference.registry import verdict
from nmf_zoo.kernels.hmc.adaptation import SHORTEST
from nmf_zoo.kernels.overdispersed.multipliers import RowSums, draw_sums
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Known, NegativeBinomial
from nmf_zoo.structure.likelihoods.negative_binomial import log_rising
from tests.naive.overdispersed import multipliers as naive
from tests.planted import plant
from tests.unit.test_chain_distributions import MODES

F, K, N = 7, 2, 9
RNG = np.random.default_rng(3)
W, H = RNG.gamma(2.0, 1.0, (F, K)), RNG.gamma(2.0, 1.0, (K, N))
X = RNG.poisson(W @ H * RNG.gamma(2.0, 0.5, (F, N)))
MASK = RNG.uniform(size=(F, N)) < 0.7
OFFSETS = {"exposure": RNG.uniform(0.5, 2.0, (F, 1)), "background": 0.3}
ALPHAS = {"one": 1.7, "features": np.linspace(0.5, 5.0, F)[:, None], "samples": np.linspace(0.4, 3.0, N)[None]}


def likelihood(alpha):
    return NegativeBinomial(alpha=Known(value=np.asarray(alpha, dtype=np.float64)))


# -- the law of a cell -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1e-3, 0.7, 30.0, 9e3, 1.1e4, 1e6])
def test_density_is_scipys(alpha):
    x, mean = np.arange(200.0), np.linspace(0.01, 150.0, 200)
    expected = stats.nbinom.logpmf(x, alpha, alpha / (alpha + mean))
    np.testing.assert_allclose(likelihood(alpha).log_density(x, mean, {}), expected, rtol=1e-7, atol=1e-7)


def test_density_is_poissons_far_out():
    x, mean = np.arange(50.0), np.linspace(0.1, 40.0, 50)
    np.testing.assert_allclose(
        likelihood(1e14).log_density(x, mean, {}), stats.poisson.logpmf(x, mean), rtol=0, atol=1e-10
    )


def test_rising_factorial_is_smooth_where_the_series_takes_over():
    x = np.array([0.0, 1.0, 7.0, 1e3, 1e6])
    below, above = log_rising(np.float64(1e4), x), log_rising(np.nextafter(1e4, 2e4), x)
    np.testing.assert_allclose(below, above, rtol=1e-8, atol=1e-7)
    assert log_rising(np.float64(3.0), np.array([2.0]))[0] == pytest.approx(np.log(3.0 * 4.0 / 9.0))


def test_slopes_are_those_of_the_density():
    own, x, mean, step = likelihood(1.3), np.array([0.0, 2.0, 9.0]), np.array([0.4, 3.0, 2.0]), 1e-6
    positive, negative = own.slopes(x, mean, {})
    differences = (own.log_kernel(x, mean + step, {}) - own.log_kernel(x, mean - step, {})) / (2 * step)
    np.testing.assert_allclose(positive - negative, differences, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.3, 4.0])
def test_draws_have_the_law(alpha):
    own, n, mean = likelihood(alpha), 20_000, np.full(20_000, 2.5)
    cells = np.empty(n, dtype=np.int64)
    own.draw_cells(cells, mean, {}, np.arange(n), np.zeros(n, dtype=np.int64), seed_key(1))
    edges = np.arange(6)
    expected = stats.nbinom.pmf(edges, alpha, alpha / (alpha + 2.5))
    expected = n * np.append(expected, 1.0 - expected.sum())
    for drawn in (cells, own.draw(mean, {}, np.random.default_rng(2))):
        counted = np.append(np.bincount(np.minimum(drawn, 6), minlength=7)[:6], np.sum(drawn >= 6))
        assert stats.chisquare(counted, expected).pvalue > 1e-3
        poisson = n * np.append(stats.poisson.pmf(edges, 2.5), stats.poisson.sf(5, 2.5))
        assert stats.chisquare(counted, poisson).pvalue < 1e-10  # the planted error: no multiplier
    assert own.sd(mean[:1], {})[0] == pytest.approx(np.sqrt(2.5 + 2.5**2 / alpha))


# -- the declaration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [*ALPHAS.values(), nz.free(), nz.free(tie="obs"), nz.free(tie="feature"), None])
@pytest.mark.parametrize("data", ["whole", "mask", "stored"])
def test_what_is_read_has_the_density(alpha, data):
    given = {"whole": (X, {}), "mask": (X, {"mask": MASK}), "stored": (sp.csr_array(X), {"observed": "stored"})}[data]
    nz.check(nz.negative_binomial_nmf(given[0], K, alpha=alpha, **given[1], **OFFSETS))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"X": X + 0.5}, r"X: got the value .*\.5; expected counts; round it"),
        ({"alpha": -1.0}, "alpha: got values from -1.0"),
        ({"alpha": np.ones(F)}, r"alpha: got shape \(7,\).*use shape \(7, 1\)"),
        ({"alpha": np.ones((F, N))}, r"alpha: got shape \(7, 9\); expected one for all cells, one for each feature"),
        ({"alpha": nz.free(tie=None)}, "one for each cell"),
        ({"alpha": nz.free(tie="component")}, "tie to be one of"),
    ],
)
def test_bad_input_is_one_line(arguments, says):
    with pytest.raises(InputError, match=says) as caught:
        nz.negative_binomial_nmf(**{"X": X, "rank": K, **arguments})
    assert "\n" not in str(caught.value)


def test_an_alpha_of_each_cell_is_for_nuts_alone():
    with pm.Model() as model:
        W, H = pm.Gamma("W", 2.0, 1.0, shape=(F, K)), pm.Gamma("H", 2.0, 1.0, shape=(K, N))
        pm.NegativeBinomial("X", mu=W @ H, alpha=np.linspace(0.5, 2.0, F * N).reshape(F, N), observed=X)
    structure = nz.read(model)
    assert verdict(structure, "nuts")
    for engine in ("em", "vb", "gibbs"):
        assert "alpha is one for each cell" in verdict(structure, engine).reason


@pytest.mark.parametrize("law", [pm.ZeroInflatedPoisson, pm.ZeroInflatedNegativeBinomial])
def test_zero_inflated_counts_are_refused_in_a_line(law):
    with pm.Model() as model:
        mean = pm.Gamma("W", 2.0, 1.0, shape=(F, K)) @ pm.Gamma("H", 2.0, 1.0, shape=(K, N))
        law("X", psi=0.7, mu=mean, observed=X, **({} if law is pm.ZeroInflatedPoisson else {"alpha": 2.0}))
    with pytest.raises(UnreadableModel, match=r"^X: found a Mixture likelihood; expected one of .* use pm\.sample$"):
        nz.read(model)


def test_description_names_it():
    text = nz.describe(nz.negative_binomial_nmf(X, K, alpha=nz.free(tie="obs")))
    assert "NegativeBinomial(W @ H, alpha=alpha)" in text
    assert "alpha: 7 values, one for each row, free" in text


# -- EM ------------------------------------------------------------------------------------------------------------


def objectives(fitted):
    values = _compat.group(fitted, "fit")["objective"].to_numpy().ravel()
    return values[np.isfinite(values)]


RUN = {"engine": "em", "search": None, "quiet": True, "random_seed": 1}
ALONE = {"start": "random", "quiet": True, "random_seed": 1}


@pytest.mark.parametrize("alpha", [*ALPHAS.values(), nz.free(), nz.free(tie="obs"), nz.free(tie="feature"), None])
@pytest.mark.parametrize("accelerate", [None, "newton"])
@pytest.mark.parametrize("mode", ["density", "log"])
def test_em_never_rises(alpha, accelerate, mode):
    model = nz.negative_binomial_nmf(X, K, alpha=alpha, alpha_w=1.5, alpha_h=2.0, mask=MASK, **OFFSETS)
    found = objectives(nz.fit(**{**RUN, "engine": nz.EM(accelerate=accelerate, mode=mode)}, max_iter=25, model=model))
    assert np.max(np.diff(found)) <= 1e-9 * np.abs(found).max()


def test_stored_cells_and_a_mask_are_the_same():
    listed, masked = sp.csr_array(X), {"mask": X > 0}
    models = [
        nz.negative_binomial_nmf(*given, K, alpha=nz.free(), **more, **OFFSETS)
        for given, more in (((listed,), {"observed": "stored"}), ((X,), masked))
    ]
    ends = [objectives(nz.fit(**RUN, max_iter=20, initvals={"W": W, "H": H}, model=model))[-1] for model in models]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


def slope_at_end(max_iter):
    """(the largest slope of the density in the logarithms of cells and of alpha, what EM says it is, and is)"""
    model = nz.negative_binomial_nmf(X, K, alpha=nz.free(), alpha_w=2.0, alpha_h=2.0)
    fitted = nz.fit(**RUN, max_iter=max_iter, tol=1e-9, model=model)
    posterior = _compat.group(fitted, "posterior")
    at = np.log(np.concatenate([posterior[name].to_numpy().ravel() for name in ("W", "H", "alpha")]))
    structure = nz.read(model)

    def objective(logs):
        values = np.exp(logs)
        named = {"W": values[: F * K].reshape(F, K), "H": values[F * K : -1].reshape(K, N), "alpha": values[-1]}
        return -structure.log_joint(named)

    slopes = optimize.approx_fprime(at, objective, 1e-6)
    return np.max(np.abs(slopes)), objective(at), objectives(fitted)[-1]


def test_em_ends_at_a_peak_of_the_density():
    slope, density, said = slope_at_end(5000)
    assert slope < 1e-3
    assert density == pytest.approx(said, rel=1e-10)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (
            "EM of overdispersed counts: expectations",  # multipliers of one
            lambda right: lambda *given: right(*given[:-1], np.full_like(given[-1], 1e12)),
        ),
        ("EM of overdispersed counts: steps of the dispersion", lambda right: lambda alpha, log_density: alpha),
    ],
    ids=["Poisson's weights", "a dispersion that stays"],
)
def test_wrong_updates_of_em_are_seen(place, wrong, monkeypatch):
    plant(monkeypatch, place, wrong)
    assert slope_at_end(100)[0] > 0.1


def test_rank_one_of_one_sample_is_scipys_optimum():
    x = 1 + np.random.default_rng(5).negative_binomial(1.5, 1.5 / (1.5 + 6.0), (400, 1))
    model = nz.negative_binomial_nmf(x, 1, alpha=nz.free(), known=np.ones((400, 1)), alpha_h=1.0, beta_h=1e-12)
    posterior = _compat.group(nz.fit(**RUN, max_iter=2000, tol=1e-10, model=model), "posterior")

    def objective(logs):
        mean, alpha = np.exp(logs)
        return -stats.nbinom.logpmf(x, alpha, alpha / (alpha + mean)).sum()

    best = np.exp(optimize.minimize(objective, np.zeros(2), method="Nelder-Mead", tol=1e-12).x)
    found = [posterior[name].to_numpy().item() for name in ("H", "alpha")]
    np.testing.assert_allclose(found, best, rtol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS.values(), ids=ALPHAS)
def test_a_step_of_the_dispersion_never_loses(alpha):
    pieces = Pieces(nz.read(nz.negative_binomial_nmf(X, K, alpha=alpha, mask=MASK)))
    by_entry = dispersion.log_likelihood_of(pieces, W, H.T)
    before = np.atleast_2d(np.asarray(alpha))
    for _ in range(8):
        after = dispersion.climb(before, by_entry)
        assert np.all(by_entry(after) >= by_entry(before))
        before = after
    flat = (by_entry(before * 1.001) - by_entry(before / 1.001)) / 0.002
    inside = (before > 2 * dispersion.LEAST) & (before < dispersion.MOST / 2)
    assert np.all(np.abs(flat[inside]) < 1e-2)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (lambda: nz.negative_binomial_nmf(X, K, mean_h=nz.free()), nz.EM(), "hyperparameter mean_h is unknown"),
        (lambda: nz.negative_binomial_nmf(X, K, alpha_h=0.5), nz.EM(), r'use EM\(mode="log"\)'),
        (lambda: nz.negative_binomial_nmf(X, K), nz.EM(precision="float32"), "precision='float32' is not for negative"),
    ],
)
def test_what_em_refuses_is_said(model, options, says):
    with pytest.raises(UnsupportedModel, match=says):
        nz.fit(engine=options, quiet=True, model=model())


def test_zeros_of_known_components_stay():
    known = np.where(np.arange(F)[:, None] < 3, W[:, :1], 0.0)
    fitted = nz.fit(**RUN, max_iter=3, model=nz.negative_binomial_nmf(X, K, known=known))
    np.testing.assert_array_equal(_compat.group(fitted, "posterior")["W"][0, 0, :, 0], known[:, 0])


def test_an_alpha_at_its_limits_says_what_that_means():
    model = nz.negative_binomial_nmf(np.full((F, N), 5), 1, alpha=nz.free())
    with pytest.warns(NmfZooWarning, match=r"^alpha went to 1e\+08, the largest there is: there Poisson counts are"):
        nz.fit(model=model, engine="em", max_iter=300, random_seed=1, search=None)
    law = nz.read(nz.negative_binomial_nmf(X, 1, alpha=nz.free(tie="obs"))).likelihood
    alpha = np.full(F, 2.0)
    assert law.end_of({"alpha": alpha}) == ""
    alpha[:2] = dispersion.LEAST
    assert law.end_of({"alpha": alpha}).startswith("2 of 7 values of alpha went to 1e-06, the least there is: the data")
    assert nz.read(nz.negative_binomial_nmf(X, 1)).likelihood.end_of({"alpha": np.float64(1e9)}) == ""


def test_a_bootstrap_is_of_poisson_counts():
    """Counts drawn with replacement would vary too little."""
    with pytest.raises(InputError, match="replicates: got 'bootstrap' of negative binomial data; expected 'holdout'"):
        nz.stability(nz.negative_binomial_nmf(X, K), replicates="bootstrap", restarts=2)


def test_an_unknown_alpha_of_old_samples_is_refused_in_the_same_words():
    model = nz.negative_binomial_nmf(X, K, alpha=nz.free(tie="feature"))
    fitted = nz.fit(model=model, engine="em", max_iter=3, tol=0, search=None, random_seed=1, quiet=True)
    with pytest.raises(InputError, match="model: got alpha that differs between samples"):
        nz.project(fitted, X[:, :3], model=model)


@pytest.mark.parametrize("alpha", [None, 1.7])
def test_ranks_are_compared_by_the_bound(alpha):
    """What the bound lacks is known of Poisson counts alone."""
    run = {"restarts": 2, "search": None, "random_seed": 1, "quiet": True}
    found = nz.select_rank(lambda rank: nz.negative_binomial_nmf(X, rank, alpha=alpha), [1, 2], **run)
    assert np.all(np.isfinite(found["estimate"]))
    assert "shortfall" not in found


def test_held_out_cells_of_the_default_model():
    method, run = nz.Holdout(max_iter=20), {"restarts": 2, "search": None, "random_seed": 1, "quiet": True}
    found = nz.select_rank(lambda rank: nz.negative_binomial_nmf(X, rank), [1], method=method, **run)
    assert np.all(np.isfinite(found["estimate"]))


@pytest.mark.filterwarnings("ignore:X. 4 features have no positive:nmf_zoo.errors.NmfZooWarning")
def test_zeros_of_all_known_components_have_no_counts():
    """A mean of 0 was divided by."""
    known = np.where(np.arange(F)[:, None] < 3, W, 0.0)
    model = nz.negative_binomial_nmf(np.where(known[:, :1] > 0, X, 0), K, known=known)
    fitted = nz.fit(**RUN, max_iter=20, tol=0, model=model)
    assert np.all(np.isfinite(_compat.group(fitted, "posterior")["H"]))
    assert np.max(np.diff(objectives(fitted))) <= 1e-9 * np.abs(objectives(fitted)).max()


# -- the kernel of Gibbs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_features", [True, False])
@pytest.mark.parametrize("mask", [None, MASK])
def test_kernel_is_the_naive_one(by_features, mask):
    structure = nz.read(nz.negative_binomial_nmf(X, K, alpha=ALPHAS["features"], mask=mask, **OFFSETS))
    turn = (lambda table: table) if by_features else np.transpose
    factors = (W, np.ascontiguousarray(H.T)) if by_features else (np.ascontiguousarray(H.T), W)
    tables = (X, np.ones_like(X) if mask is None else mask, structure.exposure_table(), structure.background_table())
    of_features, of_samples = ALPHAS["features"].ravel(), np.ones(N)
    alphas = (of_features, of_samples) if by_features else (of_samples, of_features)
    out = RowSums(np.empty_like(factors[0]), np.empty_like(factors[0]))
    cells = cells_of_rows(structure, by_features=by_features)
    assert draw_sums(out, cells, factors, alphas, 0, len(out.counts), seed_key(4)) == 0
    alpha = turn(np.broadcast_to(ALPHAS["features"], (F, N)))
    counts, weight = naive.draw_sums(*map(turn, tables), *factors, alpha, seed_key(4))
    np.testing.assert_array_equal(out.counts, counts)
    np.testing.assert_allclose(out.weight, weight, rtol=1e-12)


# -- sparse counts, whose other cells are zeros -----------------------------------------------------------------------

THIN = np.where(RNG.uniform(size=(F, N)) < 0.5, X, 0)
SIDES = {"exposure": (np.linspace(0.5, 2.0, F)[:, None], np.linspace(0.8, 1.7, N)[None]), "background": 0.3}
FULL = {"exposure": RNG.uniform(0.5, 2.0, (F, N)), "background": RNG.uniform(0.1, 1.0, (1, N))}


def sparse_and_dense(**options):
    return [nz.negative_binomial_nmf(own, K, **options) for own in (sp.csr_array(THIN), THIN)]


@pytest.mark.parametrize(
    ("alpha", "offsets"),
    [(1.7, {}), (ALPHAS["features"], SIDES), (ALPHAS["samples"], FULL), (None, OFFSETS), (nz.free(tie="obs"), {})],
)
def test_sparse_counts_have_their_zeros(alpha, offsets):
    """By the model's own density, and as dense ones have them."""
    sparse, dense = sparse_and_dense(alpha=alpha, **offsets)
    nz.check(sparse)
    of_sparse, of_dense = nz.read(sparse), nz.read(dense)
    assert of_sparse.data.is_complete
    assert len(of_sparse.data.values) == np.sum(THIN > 0)
    assert of_sparse.likelihood.alpha.shape == of_dense.likelihood.alpha.shape
    at = {"W": W, "H": H, "alpha": np.full(getattr(of_dense.likelihood.alpha, "variable_shape", ()), 1.3)}
    assert of_sparse.log_joint(at) == pytest.approx(of_dense.log_joint(at), rel=1e-12)


def test_gradients_of_sparse_counts_are_those_of_dense_ones():
    sparse, dense = sparse_and_dense(**OFFSETS)
    at = {"W_log__": np.log(W), "H_log__": np.log(H), "alpha_log__": np.array(0.3)}
    np.testing.assert_allclose(sparse.compile_dlogp()(at), dense.compile_dlogp()(at), rtol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_sparse_draws_have_the_law_of_their_cells(mode):
    alpha, rows, cols = np.linspace(0.8, 3.0, F)[:, None], np.array([0, 3, 6]), np.array([1, 0, 4])
    drawn = pm.draw(SparseNegativeBinomial.dist(W, H, rows, cols, alpha=alpha), 4_000, random_seed=1, mode=mode)
    mean, own = (W @ H)[rows, cols], alpha[rows, 0]
    variance = mean + mean**2 / own
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(variance / 4_000))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.3)


def test_sparse_draws_take_a_size():
    drawn = pm.draw(SparseNegativeBinomial.dist(W, H, [0, 1], [0, 1], alpha=0.1, size=(50,)), random_seed=1)
    assert drawn.shape == (50, 2)
    assert len(np.unique(drawn[:, 0])) > 2


@pytest.mark.parametrize("offsets", [SIDES, FULL], ids=["sides", "each cell"])
@pytest.mark.parametrize(
    "run",
    [
        lambda model: nz.fit(**RUN, max_iter=5, tol=0, model=model),
        lambda model: nz.fit(**{**RUN, "engine": "vb"}, max_iter=5, tol=0, draws=3, model=model),
        lambda model: nz.sample(5, tune=5, chains=1, model=model, engine=nz.Gibbs(trajectories="never"), **ALONE),
        lambda model: nz.sample(5, tune=5, chains=1, model=model, engine=nz.Gibbs(trajectories="always"), **ALONE),
    ],
    ids=["em", "vb", "allocation", "trajectories"],
)
def test_sparse_counts_are_run_as_dense_ones(run, offsets):
    sparse, dense = sparse_and_dense(alpha_w=1.5, alpha_h=2.0, **offsets)
    found = [run(sparse), run(dense)]
    for name in ("W", "H", "alpha"):
        np.testing.assert_allclose(*(_compat.group(one, "posterior")[name] for one in found), rtol=1e-9)
    for per in ("obs", "cell"):
        pointwise = [nz.log_likelihood(one, own, per=per) for one, own in zip(found, (sparse, dense), strict=True)]
        np.testing.assert_allclose(*(_compat.group(one, "log_likelihood")["X"] for one in pointwise), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:X. 6 features and 4 samples have no positive")
def test_memory_goes_with_the_counts_not_the_table():
    """A table of 3,000 x 3,000 takes 72 MB."""
    rows, cols = np.random.default_rng(2).integers(0, 3_000, (2, 20_000))
    table = sp.csr_array((np.ones(20_000), (rows, cols)), shape=(3_000, 3_000))
    model = nz.negative_binomial_nmf(table, 1, alpha=2.0, alpha_w=1.5, alpha_h=1.5)
    tracemalloc.start()
    try:
        structure = nz.read(model)
        for engine, options in ((em, nz.EM()), (gibbs, nz.Gibbs())):
            problem = engine.prepare(structure, options, SERIAL)
            engine.step(problem, engine.init(problem, seed_key(1), {}), seed_key(2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.4e7


# -- its trajectories ----------------------------------------------------------------------------------------------


def test_listed_cells_and_a_mask_are_the_same_rows():
    listed = nz.negative_binomial_nmf(sp.csr_array(X), K, observed="stored", **OFFSETS)
    masked = nz.negative_binomial_nmf(X, K, mask=X > 0, **OFFSETS)
    tables = [trajectories.read_table(nz.read(model)) for model in (listed, masked)]
    seen = X > 0
    for name in ("x", "exposure"):
        np.testing.assert_array_equal(*(getattr(table, name) for table in tables))
    np.testing.assert_array_equal(*(table.background[seen] for table in tables))
    np.testing.assert_array_equal(tables[0].exposure > 0.0, seen)


def test_where_trajectories_run(monkeypatch):
    whole, known = nz.negative_binomial_nmf(X, K), nz.negative_binomial_nmf(X, K, known=W[:, :1])
    assert trajectories.make_sides(nz.read(whole), nz.Gibbs()) is not None
    assert trajectories.make_sides(nz.read(whole), nz.Gibbs(trajectories="never")) is None
    assert trajectories.make_sides(nz.read(known), nz.Gibbs()) is None
    monkeypatch.setattr(trajectories, "MOST_CELLS", X.size - 1)
    assert trajectories.make_sides(nz.read(whole), nz.Gibbs(trajectories="always")) is None


@pytest.mark.engines
@pytest.mark.parametrize("alpha", [*ALPHAS.values(), None])
def test_a_warm_up_leaves_trajectories(alpha):
    model = nz.negative_binomial_nmf(X, K, alpha=alpha, mask=MASK, **OFFSETS)
    drawn = nz.sample(20, tune=160, chains=1, start="random", engine="gibbs", model=model, random_seed=1, quiet=True)
    stats = _compat.group(drawn, "sample_stats")
    for side in ("W", "H"):
        assert 0.6 < stats[f"accept_{side}"].mean() < 1.0
        assert stats[f"n_steps_{side}"].min() >= SHORTEST


@pytest.mark.parametrize("alpha", ["one", "features"])
def test_new_samples_are_projected(alpha):
    model = nz.negative_binomial_nmf(X, K, alpha=ALPHAS[alpha])
    fitted = nz.fit(model=model, engine="em", max_iter=20, tol=0, search=None, random_seed=1, quiet=True)
    new = nz.project(fitted, X[:, :3], model=model, engine="em", max_iter=20, tol=0, random_seed=1, quiet=True)
    assert _compat.group(new, "posterior")["H"].shape == (1, 1, K, 3)


def test_an_alpha_of_old_samples_is_not_that_of_new_ones():
    model = nz.negative_binomial_nmf(X, K, alpha=ALPHAS["samples"])
    fitted = nz.fit(model=model, engine="em", max_iter=3, tol=0, search=None, random_seed=1, quiet=True)
    with pytest.raises(InputError, match="model: got alpha that differs between samples"):
        nz.project(fitted, X[:, :3], model=model)
