"""Gamma chains and BGAR from declaration to forecast: read, described, simulated, run, continued; and who refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from scipy import integrate, stats
from scipy.special import digamma, polygamma

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.distributions.chains import BGAR, GammaChain
from nmf_zoo.errors import InputError, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.registry import verdict
from nmf_zoo.kernels.hmm.bgar import log_bgar_rows
from nmf_zoo.kernels.random.chain_draws import gamma_path
from nmf_zoo.reading import check, describe, read
from nmf_zoo.structure import BGARPrior, GammaChainPrior
from tests.sizes import at_full_size
from tests.unit.test_chain_distributions import MODES, log_density

F, K, T = 4, 2, 9
RNG = np.random.default_rng(8)
X = RNG.poisson(3.0, (F, T)) + 1
POWERS = RNG.exponential(3.0, (F, T))
GAPS = np.where(RNG.random((F, T)) < 0.8, X, np.nan)
GAPS[:, [3, T - 1]] = np.nan  # missing times, the last one among them
ALPHA_Z, ALPHA_H, BETA = np.array([3.0, 0.7]), np.array([2.0, 5.0]), np.array([0.8, 1.5])
ALPHA, RATE, RHO = np.array([3.0, 0.8]), np.array([2.0, 0.5]), np.array([0.6, 0.3])
CHAINS = {
    "gamma": "gamma",
    "gamma, known": nz.GammaChain(3.0, 2.0),
    "gamma, of each": nz.GammaChain(ALPHA_Z, nz.free(tie="obs"), BETA, initial=(2.0, [1.0, 0.5])),
    "gamma, free": nz.GammaChain(nz.free(), 2.0, nz.free(), initial=(nz.free(), nz.free())),
    "bgar": "bgar",
    "bgar, known": nz.BGAR(3.0, 2.0, 0.6),
    "bgar, of each": nz.BGAR(ALPHA, nz.free(tie="obs"), RHO),
}
TABLES = {
    "dense": {"X": X},
    "missing": {"X": GAPS},
    "sparse": {"X": scipy.sparse.csr_array(X), "background": None},
    "offsets": {"X": X, "exposure": RNG.uniform(0.5, 2.0, T)},
    "one time": {"X": X[:, :1]},
    "nothing": {"X": None, "shape": (F, T)},
}


def declare(chain="gamma, known", **arguments):
    given = {"X": X, "rank": K, "chain": CHAINS[chain], "background": 0.1, "alpha_w": 2.0, **arguments}
    return nz.hmm_nmf(**given)


def powers(chain="gamma, known", **arguments):
    own = CHAINS[chain] if isinstance(chain, str) else chain
    return nz.is_nmf(**{"X": POWERS, "rank": K, "chain": own, "alpha_w": 2.0, **arguments})


# -- densities and draws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [(1.5, 0.7), (0.4, 3.0)])
def test_density_of_gamma_chains(first):
    value = RNG.gamma(1.0, 1.0, (K, T))
    found = log_density(GammaChain.dist(ALPHA_Z, ALPHA_H, BETA, first, shape=(K, T)), value)
    for k, row in enumerate(value):
        expected = stats.gamma.logpdf(row[0], first[0], scale=1 / first[1])
        steps = stats.betaprime(ALPHA_H[k], ALPHA_Z[k], scale=BETA[k] * row[:-1])
        assert found[k] == pytest.approx(expected + steps.logpdf(row[1:]).sum(), rel=1e-10)


def log_step_of_bgar(before, after, alpha, beta, rho):
    """log p(after | before) by quadrature over the share that stays, on its log-odds."""
    most, x = min(1.0, after / before), np.linspace(-700.0, 700.0, 400_001)
    share, rest = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    b = most * share
    left = np.where(most < 1, (1 - most) + most * rest, rest)  # 1 - b
    come = np.where(most < 1, before * most * rest, (after - before) + before * rest)
    p, a = alpha * rho, alpha * (1 - rho)
    of_b = stats.beta.logpdf(0.5, p, a) + (p - 1) * np.log(2 * b) + (a - 1) * np.log(2 * left)
    of_e = stats.gamma.logpdf(1.0, a, scale=1 / beta) + (a - 1) * np.log(come) - beta * (come - 1.0)
    return np.log(integrate.trapezoid(np.exp(of_b + of_e + np.log(b) + np.log(rest)), x))


@pytest.mark.parametrize("law", [(3.0, 2.0, 0.6), (0.9, 0.5, 0.7), (40.0, 9.0, 0.95), (2.0, 1.0, 0.05)])
def test_density_of_bgar(law):
    alpha, beta, _ = law
    row = RNG.gamma(alpha, 1 / beta, T) + 1e-3
    row[4] = row[3] * (1 + 1e-7)
    expected = stats.gamma.logpdf(row[0], alpha, scale=1 / beta)
    expected += sum(log_step_of_bgar(row[t], row[t + 1], *law) for t in range(T - 1))
    found = log_density(BGAR.dist(*law, shape=(1, T)), row[None])
    assert found[0] == pytest.approx(expected, abs=1e-6)
    prior = read(nz.hmm_nmf(None, 1, chain=nz.BGAR(*law), shape=(2, T))).H.prior
    assert prior.log_density(row[None], {}) == found[0]


def test_a_step_of_bgar_integrates_to_one():
    grid, alpha, beta, rho = np.linspace(-25.0, 5.0, 6_001), 1.4, 0.8, 0.6
    for before in (0.3, 4.0):
        rows, out = np.stack([np.full(grid.size, before), np.exp(grid)], axis=1), np.empty(grid.size)
        log_bgar_rows(out, rows, *(np.full(grid.size, own) for own in (alpha, beta, rho)))
        density = np.exp(out - stats.gamma.logpdf(before, alpha, scale=1 / beta) + grid)
        assert integrate.trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(
    ("chain", "outside"),
    [
        (GammaChain.dist(3.0, 2.0, shape=(2,)), [1.0, 0.0]),
        (GammaChain.dist(3.0, 2.0, shape=(2,)), [-1.0, 1.0]),
        (BGAR.dist(3.0, 2.0, 0.5, shape=(2,)), [1.0, 0.0]),
        (BGAR.dist(3.0, 2.0, 0.5, shape=(2,)), [-1.0, 1.0]),
    ],
)
def test_outside_the_support(chain, outside):
    assert log_density(chain, np.array(outside)) == -np.inf


@pytest.mark.parametrize("mode", MODES)
def test_draws_of_gamma_chains(mode):
    """Steps of log h have the mean and variance of two log-gammas, and the first time its own law.

    Long: PyTensor compiles a loop.
    """
    chain = GammaChain.dist(ALPHA_Z[:, None], ALPHA_H[:, None], BETA[:, None], (0.8, 2.0), shape=(K, 3_000, 6))
    for k, rows in enumerate(pm.draw(chain, random_seed=1, mode=mode)):
        assert stats.kstest(rows[:, 0], stats.gamma(0.8, scale=0.5).cdf).pvalue > 1e-4
        scaled = rows[:, 1:] / (BETA[k] * rows[:, :-1])
        assert stats.kstest(scaled.ravel(), stats.betaprime(ALPHA_H[k], ALPHA_Z[k]).cdf).pvalue > 1e-4
        steps = np.diff(np.log(rows), axis=1)
        mean = digamma(ALPHA_H[k]) - digamma(ALPHA_Z[k]) + np.log(BETA[k])
        variance = polygamma(1, ALPHA_H[k]) + polygamma(1, ALPHA_Z[k])
        assert abs(steps.mean() - mean) < 5 * np.sqrt(variance / steps.size)


@pytest.mark.parametrize("mode", MODES)
def test_draws_of_bgar_keep_their_law(mode):
    """Gamma at the first and at the last time, and the correlation is a power of rho."""
    chain = BGAR.dist(ALPHA[:, None], RATE[:, None], RHO[:, None], shape=(K, 6_000, 5))
    for k, rows in enumerate(pm.draw(chain, random_seed=2, mode=mode)):
        for time in (0, 4):
            assert stats.kstest(rows[:, time], stats.gamma(ALPHA[k], scale=1 / RATE[k]).cdf).pvalue > 1e-4
        for apart in (1, 2):
            found = np.corrcoef(rows[:, 0], rows[:, apart])[0, 1]
            assert abs(found - RHO[k] ** apart) < 0.08


def test_a_path_that_walks_far_stays_a_number():
    gammas, uniforms = np.full((2, 3_000), 2.0), np.zeros((2, 3_000))
    gammas[1, 1:] = 1e-3
    path = gamma_path(gammas, uniforms, (2.0, 2.0), 1.0, (2.0, 1.0))
    assert np.all((path > 0) & np.isfinite(path))
    assert path[-1] < 1e-250


# -- declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:rank. got 2")  # above the one sample of "one time"
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["gamma, known", "bgar, known"])
def test_every_table_is_read_as_it_was_declared(name, table):
    check(declare(name, **TABLES[table]))


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_is_read_as_it_was_declared(name):
    for model in (declare(name), powers(name)):
        check(model)
        structure = read(model)
        assert isinstance(structure.H.prior, BGARPrior if name.startswith("bgar") else GammaChainPrior)
        assert structure.unknowns.keys() == {rv.name for rv in model.free_RVs} - {"W", "H"}


def test_another_law_is_seen_by_the_check():
    for name, wrong in (("gamma, known", nz.GammaChain(3.0, 2.0, 1.01)), ("bgar, known", nz.BGAR(3.0, 2.0, 0.61))):
        with pytest.raises(AssertionError, match="log joint"):
            check(declare(name), structure=read(nz.hmm_nmf(X, K, chain=wrong, background=0.1, alpha_w=2.0)))
        with pytest.raises(AssertionError, match="log joint"):
            check(powers(name), structure=read(powers(chain=wrong)))


def test_parameters_can_be_variables_and_models_ones_own():
    with pm.Model() as model:
        shape = pm.Gamma("smooth", 9.0, 2.0, shape=K)
        nz.hmm_nmf(X, K, chain=nz.GammaChain(shape, shape, pm.LogNormal("c", 0.0, 0.3)), alpha_w=2.0)
    check(model)
    prior = read(model).H.prior
    assert (prior.alpha_z.name, prior.alpha_h.name, prior.alpha_z.shape) == ("smooth", "smooth", (K, 1))
    with pm.Model(coords={"gene": range(F), "part": range(K), "day": range(T)}) as model:
        W = pm.Gamma("A", np.float64(2.0), np.float64(1.0), dims=("gene", "part"))
        H = nz.BGAR("level", np.float64(2.0), np.float64(1.0), pm.Beta("r", 2.0, 2.0), dims=("part", "day"))
        pm.Poisson("counts", mu=W @ H, observed=X, dims=("gene", "day"))
    check(model)
    with pm.Model() as model:
        H = nz.GammaChain("H", 2.0, 2.0, shape=(T, K))
        pm.Poisson("X", mu=pm.Gamma("W", 2.0, 1.0, shape=(F, K)) @ H.T, observed=X)
    with pytest.raises(UnreadableModel, match="a transposed chain"):
        read(model)


def test_description():
    text = describe(declare("gamma, known"))
    assert "GammaChain(alpha_z=3, alpha_h=2, beta_z=1, initial_shape=1, initial_rate=1)" in text
    assert "BGAR(alpha=3, beta=2, rho=0.6, initial=stationary)" in describe(declare("bgar, known"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nz.GammaChain(2.0, 2.0, initial="stationary"), "two numbers .shape, rate.*no stationary law"),
        (lambda: nz.GammaChain(2.0, 2.0, initial=1.0), "initial: got 1.0; expected two numbers"),
        (
            lambda: declare(chain="gamma", X=X) and nz.hmm_nmf(X, K, chain=nz.GammaChain(0.0, 2.0)),
            "alpha_z: got values",
        ),
        (lambda: nz.hmm_nmf(X, K, chain=nz.GammaChain(1.0, 2.0, initial=(0.0, 1.0))), "initial_shape: got values"),
        (lambda: nz.hmm_nmf(X, K, chain=nz.BGAR(1.0, 2.0, 1.0)), r"rho: got values .* inside \(0, 1\)"),
        (lambda: nz.hmm_nmf(X, K, chain=nz.BGAR(1.0, -2.0, 0.5)), "beta: got values"),
        (lambda: powers(alpha_h=2.0), "alpha_h: got a value beside chain="),
        (lambda: powers(known_h=np.ones((1, T))), "known_h: got a value beside chain="),
        (lambda: nz.is_nmf(POWERS, K, chain=nz.UnitChain(0.9)), "chain: got a bounded chain"),
    ],
)
def test_what_is_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gamma, known", "bgar, known"])
def test_simulation(name):
    drawn = nz.simulate(declare(name, X=None, shape=(F, 30)), random_seed=2)
    assert dict(drawn["H"].sizes) == {"component": K, "obs": 30}
    mean = drawn["W"].to_numpy() @ drawn["H"].to_numpy() + 0.1
    assert abs(drawn["X"].to_numpy().sum() - mean.sum()) < 6 * np.sqrt(mean.sum())


# -- who runs them -----------------------------------------------------------------------------------------------------

ABLE = {
    "gamma, known": {"gibbs", "vb", "nuts"},  # and EM(mode="log")
    "bgar, known": {"gibbs"},
    "gamma": {"vb"},  # free parameters
    "bgar": set(),
}
ABLE_OF_POWERS = {"gamma, known": {"gibbs", "nuts"}, "bgar, known": {"gibbs"}, "gamma": set(), "bgar": set()}
ENGINES = ("em", "vb", "mcem", "gibbs", "hmm_exact", "particle_em", "particle_gibbs", "smc", "nuts")


@pytest.mark.parametrize("name", ABLE)
def test_who_says_yes(name):
    for make, able in ((declare, ABLE), (powers, ABLE_OF_POWERS)):
        structure = read(make(name))
        found = {engine: verdict(structure, engine) for engine in ENGINES}
        assert {engine for engine, answer in found.items() if answer} == able[name]
        assert all("\n" not in answer.reason for answer in found.values())


def test_why_others_say_no():
    structure = read(declare("gamma, known"))
    assert "no maximum" in verdict(structure, "em").reason
    assert verdict(structure, "em", nz.EM(mode="log"))
    assert "near 0 at all times" in verdict(read(declare("gamma, known", alpha_w=None)), "gibbs").reason
    assert "is free: give it a proper prior" in verdict(read(declare("gamma")), "gibbs").reason
    assert "is a chain" in verdict(structure, "gibbs", nz.Gibbs(trajectories="always")).reason
    assert "is a chain" in verdict(structure, "gibbs", nz.Gibbs(temperatures=4)).reason
    assert "without a gradient" in verdict(read(declare("bgar, known")), "nuts").reason
    silent = POWERS.copy()
    silent[1, 2] = 0.0
    assert "are 0" in verdict(read(powers(X=silent)), "gibbs").reason
    assert "zeros" in verdict(read(powers(X=silent)), "nuts").reason
    with pytest.raises(UnsupportedModel, match="takes them for independent"):
        nz.sample(model=declare("gamma, known"), engine="smc", quiet=True)


RUNS = {
    "gibbs": (nz.sample, {"engine": "gibbs", "draws": 6, "tune": 3, "chains": 2}),
    "em": (nz.fit, {"engine": nz.EM(mode="log"), "max_iter": 5, "restarts": 2, "search": None}),
    "vb": (nz.fit, {"engine": "vb", "max_iter": 5, "draws": 6, "restarts": 2, "search": None}),
}


@pytest.mark.engines
@pytest.mark.parametrize("engine", RUNS)
@pytest.mark.parametrize("table", ["dense", "missing", "sparse", "offsets"])
@pytest.mark.parametrize("chain", ["gamma, known", "bgar, known"])
def test_runs_have_finite_draws_and_their_log_joint(chain, table, engine):
    if chain.startswith("bgar") and engine != "gibbs":
        return
    verb, arguments = RUNS[engine]
    model = declare(chain, **TABLES[table])
    structure = read(model)
    first, again = (verb(model=model, random_seed=1, quiet=True, cores=cores, **arguments) for cores in (1, 2))
    draws = _compat.group(first, "posterior")
    lp = _compat.group(first, "sample_stats")["lp"].to_numpy()
    for at in np.ndindex(lp.shape):
        values = {name: own.to_numpy()[at] for name, own in draws.items()}
        assert lp[at] == pytest.approx(structure.log_joint(values), rel=1e-9)
    for name, own in draws.items():
        np.testing.assert_array_equal(own, _compat.group(again, "posterior")[name])


@pytest.mark.engines
@pytest.mark.parametrize("chain", ["gamma, known", "bgar, known"])
def test_powers_run_and_are_predicted(chain):
    model = powers(chain, mask=~np.isnan(GAPS), exposure=np.linspace(0.5, 2.0, T), background=0.05)
    idata = nz.sample(8, tune=4, chains=2, engine="gibbs", random_seed=1, quiet=True, model=model)
    structure, draws = read(model), _compat.group(idata, "posterior")
    values = {name: own.to_numpy()[1, 3] for name, own in draws.items()}
    lp = _compat.group(idata, "sample_stats")["lp"].to_numpy()[1, 3]
    assert lp == pytest.approx(structure.log_joint(values), rel=1e-9)
    assert np.all(nz.impute(idata, model, random_seed=1).to_numpy() > 0)


def test_hyperparameters_are_drawn_and_kept():
    with pm.Model() as model:
        shape, rate = pm.Gamma("s", 9.0, 2.0, shape=K), pm.Gamma("b", 4.0, 4.0)
        nz.hmm_nmf(X, K, chain=nz.GammaChain(shape, 3.0, rate), alpha_w=2.0, beta_w=pm.Gamma("w", 3.0, 3.0))
    idata = nz.sample(20, tune=10, chains=2, engine="gibbs", random_seed=1, quiet=True, model=model)
    draws = _compat.group(idata, "posterior")
    for name in ("s", "b", "w"):
        assert draws[name].to_numpy().std() > 0
        assert np.all(draws[name] > 0)


def test_new_samples_are_folded_in():
    for model in (declare("gamma, known"), declare("bgar, known"), powers("gamma, known")):
        idata = nz.sample(6, tune=3, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
        new = np.array(_compat.group(idata, "observed_data")["X"])[:, :3]
        found = nz.project(idata, new, model=model, draws=5, tune=2, chains=1, random_seed=1, quiet=True)
        assert dict(_compat.group(found, "posterior")["H"].sizes) == {"chain": 1, "draw": 5, "component": K, "obs": 3}


@pytest.mark.engines
@pytest.mark.parametrize("chain", ["gamma, known", "bgar, known"])
def test_a_missing_time_is_the_chains_own(chain):
    """The last time, without a cell: given the one before it a beta prime, or what stays and what comes."""
    model = declare(chain, X=GAPS)
    idata = nz.sample(1_500, tune=100, extend=1, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    H = _compat.group(idata, "posterior")["H"].to_numpy()[0]
    before, last = H[:, :, T - 2].ravel(), H[:, :, T - 1].ravel()
    if chain.startswith("gamma"):
        errors = stats.betaprime(2.0, 3.0).cdf(last / before) - 0.5
    else:
        errors = last - (0.6 * before + 0.4 * 1.5)  # E[h | h'] = rho h' + (1 - rho) alpha / beta
    assert abs(errors.mean()) < 6 * errors.std() / np.sqrt(400)
    assert np.all(nz.impute(idata, model, n_draws=50, random_seed=1).to_numpy() >= 0)


# -- what comes next ---------------------------------------------------------------------------------------------------

NEXT = {
    "basis": (nz.BasisChain(0.9, 0.7), np.array([0.0, 1.0])),
    "unit": (nz.UnitChain(0.8), np.array([0.3, 0.9])),
    "log-normal": (nz.LogNormalAR(0.5, 0.6, 0.4), np.array([0.3, 4.0])),
    "gamma": (nz.GammaChain(ALPHA_Z, ALPHA_H, BETA), np.array([0.3, 4.0])),
    "bgar": (nz.BGAR(ALPHA, RATE, RHO), np.array([0.3, 4.0])),
}


def mass_between(prior, last, k, edges):
    """P(h_k of the next time is between these), by the chain's own density, up to a constant."""
    after = last * 1.01 if not prior.is_binary else last.copy()
    if prior.is_binary:
        grid, width = np.array([0.0, 1.0]), np.ones(2)
    else:
        grid = np.concatenate([np.geomspace(a, b, 402)[1:-1] for a, b in itertools.pairwise(edges)])
        width = grid * np.repeat(np.diff(np.log(edges)), 400)
    log_p = []
    for value in grid:
        after[k] = value
        log_p.append(prior.log_density(np.stack([last, after], axis=1), {}))
    p = np.exp(np.array(log_p) - max(log_p)) * width
    found = np.array([np.sum(p[(grid >= a) & (grid < b)]) for a, b in itertools.pairwise(edges)])
    return found / found.sum()


@pytest.mark.engines
@pytest.mark.parametrize("name", NEXT)
def test_the_next_time_has_the_law_of_the_chain(name):
    """Draws of h given the time before it against the chain's own density, in bins."""
    chain, last = NEXT[name]
    prior, rng = read(nz.hmm_nmf(None, K, chain=chain, shape=(F, 2))).H.prior, np.random.default_rng(3)
    drawn = np.stack([prior.draw_next(last, {}, rng) for _ in range(6_000)])
    for k in range(K):
        edges = np.array([-0.5, 0.5, 1.5]) if prior.is_binary else np.quantile(drawn[:, k], np.linspace(0, 1, 11))
        if not prior.is_binary:
            edges[[0, -1]] = edges[0] * 0.999, edges[-1] * 1.0001
        counts, expected = np.histogram(drawn[:, k], edges)[0], 6_000 * mass_between(prior, last, k, edges)
        assert np.all(np.abs(counts - expected) < 6 * np.sqrt(expected + 1.0) + 0.03 * expected), (counts, expected)


@pytest.mark.engines
@pytest.mark.parametrize("chain", ["gamma, known", pytest.param("bgar, known", marks=at_full_size)])
def test_a_forecast_is_the_posterior_of_missing_times(chain):
    """H and X at two next times, and the same by a model that declares them as missing.

    Long: two posteriors of 3,000 draws.
    """
    model = declare(chain, coords={"obs": np.arange(1990, 1990 + T)})
    sampled = {"tune": 100, "extend": 1, "chains": 2, "engine": "gibbs", "random_seed": 1, "quiet": True}
    idata = nz.sample(1_500, model=model, **sampled)
    found = nz.forecast(idata, model, times=2, random_seed=2)
    assert found["obs"].to_numpy().tolist() == [1990 + T, 1991 + T]
    assert dict(found["H"].sizes) == {"chain": 2, "draw": 1_500, "component": K, "obs": 2}
    longer = declare(chain, X=np.column_stack([X.astype(float), np.full((F, 2), np.nan)]))
    other = nz.sample(1_500, model=longer, **sampled)
    mean = _compat.group(other, "posterior")
    rates = (mean["W"].to_numpy() @ mean["H"].to_numpy()[..., T:] + 0.1)[..., 1].sum(axis=-1)
    totals = found["X"].to_numpy()[..., 1].sum(axis=-1)
    errors = np.hypot(np.log(rates).std(), np.log1p(totals).std()) / np.sqrt(200)
    assert abs(np.median(np.log1p(totals)) - np.median(np.log1p(rates))) < 5 * errors
    first, again = (nz.forecast(idata, model, n_draws=20, random_seed=2) for _ in range(2))
    assert first.equals(again)


def test_forecasts_that_are_refused():
    model = declare("gamma, known")
    idata = nz.sample(4, tune=2, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    varying = declare("gamma, known", exposure=np.linspace(1.0, 2.0, T))
    with pytest.raises(InputError, match="exposure that differs between times"):
        nz.forecast(idata, varying)
    independent = nz.gamma_nmf(X, K)
    with pytest.raises(InputError, match="a chain in time, which says what comes next"):
        nz.forecast(idata, independent)
    with pytest.raises(InputError, match="times: got 0"):
        nz.forecast(idata, model, times=0)
    unlike = nz.hmm_nmf(X, K, chain=nz.GammaChain(np.arange(2.0, K + 2), 5.0), alpha_w=1.0)
    with pytest.raises(InputError, match=r"idata: got components in the order of nz\.align, beside alpha_z"):
        nz.forecast(nz.align(idata, scale="drawn"), unlike)
    assert nz.forecast(nz.align(idata, scale="drawn"), model)["H"].sizes["obs"] == 1


def test_forecasts_go_on_with_each_draws_parameters():
    """A chain whose draws have unlike shapes: steps of the draws with small ones are larger."""
    with pm.Model() as model:
        shape = pm.Gamma("s", 9.0, 2.0)
        nz.hmm_nmf(X, 1, chain=nz.GammaChain(shape, shape), alpha_w=2.0)
    idata = nz.sample(4, tune=2, chains=1, engine="gibbs", random_seed=1, quiet=True, model=model)
    posterior = _compat.group(idata, "posterior")
    posterior["s"].data[:] = [[0.5, 5e7, 5e7, 5e7]]
    found = nz.forecast(idata, model, random_seed=1)["H"].to_numpy()[0, :, 0, 0]
    before = posterior["H"].to_numpy()[0, :, 0, -1]
    np.testing.assert_allclose(found[1:], before[1:], rtol=1e-2)
    assert abs(np.log(found[0] / before[0])) > 0.05
