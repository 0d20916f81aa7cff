"""The engine ``particle_gibbs``: what it takes and refuses, what comes back, and that runs are as all engines' are."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import stats

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import NmfZooWarning, RunFailed, UnsupportedModel
from nmf_zoo.inference.counts.sweeps import make_side
from nmf_zoo.inference.hmm import gibbs_chain, particle_gibbs
from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.inference.hmm.chains.log_normal import slope_of_level
from nmf_zoo.inference.hmm.gibbs_activations import bytes_of_workspace, make_workspace
from nmf_zoo.inference.hmm.particle_gibbs import move_weights
from nmf_zoo.inference.registry import verdict
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.inference.shared.layout import compress, weigh
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BasisChainPrior, LogNormalARPrior, UnitChainPrior
from tests.structures import gamma, model, parameter, unknown

F, K, T = 4, 3, 7
RNG = np.random.default_rng(1)
X = RNG.poisson(3.0, (F, T))
TABLE = pd.DataFrame(X, index=list("abcd"), columns=[f"t{t}" for t in range(T)])
GAPS = np.where(RNG.random((F, T)) < 0.2, np.nan, X)
GAPS[:, 3] = np.nan


def bayes_basis():
    return nz.BasisChain(pm.Beta("p", 2.0, 1.0), pm.Uniform("q", 0.2, 0.9, shape=K), "stationary")


def bayes_unit():
    return nz.UnitChain(pm.Uniform("alpha", 0.0, 1.0))


def bayes_log_normal():
    return nz.LogNormalAR(pm.Normal("m", 0.0, 1.0, shape=K), pm.Uniform("f", 0.0, 1.0), pm.HalfNormal("s", 1.0))


CHAINS = {"basis": bayes_basis, "unit": bayes_unit, "log-normal": bayes_log_normal}


def declare(chain, data=TABLE, **options):
    with pm.Model() as declared:
        own = CHAINS[chain]() if isinstance(chain, str) else chain
        nz.hmm_nmf(data, K, chain=own, **{"alpha_w": 2.0, "background": 0.1, **options})
    return declared


def sample(declared, **arguments):
    run = {"draws": 8, "tune": 4, "chains": 2, "random_seed": 1, "quiet": True, "engine": "particle_gibbs"}
    return nz.sample(**{**run, "model": declared, **arguments})


def stats_of(idata):
    return _compat.group(idata, "sample_stats")


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("data", [TABLE, GAPS], ids=["table", "gaps"])
def test_what_comes_back(chain, data):
    declared = declare(chain, data)
    idata = sample(declared)
    draws, structure = idata.posterior, nz.read(declared)
    assert set(draws.data_vars) == {variable.name for variable in declared.free_RVs}
    assert draws["H"].dims == ("chain", "draw", "component", "obs")
    if data is TABLE:
        assert list(draws["obs"].to_numpy()) == list(TABLE.columns)
    H = draws["H"].to_numpy()
    assert {"basis": set(np.unique(H)) <= {0, 1}, "unit": np.all((H > 0) & (H < 1)), "log-normal": np.all(H > 0)}[chain]
    lp = stats_of(idata)["lp"].to_numpy()
    for at in np.ndindex(lp.shape):
        values = {name: variable.to_numpy()[at] for name, variable in draws.items()}
        np.testing.assert_allclose(lp[at], structure.log_joint(values), rtol=1e-10)
    for name in ("renewed", "renewed_first"):
        shares = stats_of(idata)[name].to_numpy()
        assert np.all((shares >= 0) & (shares <= 1))
        assert chain != "basis" or np.all(shares == 1)


@pytest.mark.parametrize("chain", CHAINS)
def test_draws_do_not_depend_on_cores_or_on_a_stop(chain, tmp_path):
    declared = declare(chain)
    one, two = sample(declared, cores=1), sample(declared, cores=2)
    sample(declared, draws=3, checkpoint=tmp_path / "run")
    three = sample(declared, checkpoint=tmp_path / "run")
    for name in one.posterior.data_vars:
        np.testing.assert_array_equal(one.posterior[name], two.posterior[name])
        np.testing.assert_array_equal(one.posterior[name], three.posterior[name])


def test_thinning_moments_and_names():
    declared = declare("log-normal")
    every = sample(declared, draws=6)
    third = sample(declared, draws=6, thin=3, var_names=["H"])
    np.testing.assert_array_equal(every.posterior["H"][:, ::3], third.posterior["H"])
    assert list(third.posterior.data_vars) == ["H"]
    means = nz.moments(sample(declared, draws=6, keep="moments"))
    assert means is not None


def test_start_values_are_taken():
    declared = declare("log-normal")
    structure = nz.read(declared)
    problem = particle_gibbs.prepare(structure, nz.ParticleGibbs(), SERIAL)
    start = {"W": np.full((F, K), 2.0), "H": np.full((K, T), 3.0), "f": np.array(0.25)}
    state = particle_gibbs.init(problem, seed_key(1), start)
    np.testing.assert_array_equal(state.W, 2.0)
    np.testing.assert_allclose(state.aux, np.log(3.0))
    assert state.values["f"] == 0.25
    sample(declared, initvals=start)


def test_starts_lie_inside_the_support():
    for prior, h in ((UnitChainPrior(alpha=parameter(0.9)), np.array([[0.0, 1.0]])), (None, np.array([[0.0, 2.0]]))):
        own = prior or LogNormalARPrior(
            mean=parameter(0.0), persistence=parameter(0.5), scale=parameter(1.0), initial_mean=None, initial_scale=None
        )
        inside, beside = formulas_of(own).with_companion(h)
        assert np.all(inside > 0)
        assert np.all(np.isfinite(beside))
        assert np.isfinite(own.log_density(inside, {}))
        assert prior is None or np.all(beside > 0)


def test_draws_beyond_all_numbers_are_the_number_next_to_the_end():
    structure = nz.read(declare(nz.LogNormalAR(0.0, 0.5, 200.0)))
    problem = particle_gibbs.prepare(structure, nz.ParticleGibbs(), SERIAL)
    state = particle_gibbs.init(problem, seed_key(1), {})
    state.h[0, :2] = 0.0, np.inf  # what exp makes of -800 and 720
    state.W[:, 0] = 1e-300
    drawn, stats_of_draw = particle_gibbs.draw(problem, state, seed_key(2))
    assert np.all((drawn["H"] > 0) & np.isfinite(drawn["H"]))
    assert np.isfinite(stats_of_draw["lp"])


def test_trajectories_of_weights_are_the_same_from_a_grid_and_from_a_list():
    structure = nz.read(declare("log-normal", GAPS))
    layout, priors = compress(structure), prior_cells(structure, {"m": np.zeros(K), "f": 0.5, "s": 1.0})
    Ht, moved = RNG.gamma(2.0, size=(T, K)), []
    for dense in (True, False):
        side, W = make_side(structure, layout, np.ones((F, K)), dense, of_features=True), np.full((F, K), 0.7)
        weight = weigh(structure).over_samples(Ht)
        accepted = move_weights(side, W, Ht, priors, weight, seed_key(2))
        assert accepted > 0.8
        moved.append(W)
    np.testing.assert_allclose(*moved, rtol=1e-9)
    assert np.all(np.abs(moved[0] - 0.7) > 1e-6)


def test_weights_of_large_data_are_allocated_only(monkeypatch):
    monkeypatch.setattr(particle_gibbs, "MOST_NONZEROS", 3)
    for given in (declare("unit"), pm.do(declare("unit"), {"W": np.ones((F, K))})):
        assert np.all(np.isnan(stats_of(sample(given))["accept_W"].to_numpy()))


def test_known_weights_and_a_projection():
    declared = pm.do(declare(nz.LogNormalAR(0.0, 0.5, 1.0)), {"W": RNG.gamma(2.0, size=(F, K))})
    assert set(sample(declared).posterior.data_vars) == {"H"}
    full = declare(nz.LogNormalAR(0.0, 0.5, 1.0))
    run = {"draws": 4, "tune": 2, "chains": 1, "random_seed": 1, "quiet": True}
    new = nz.project(sample(full), X[:, :5], model=full, **run)
    assert new.posterior["H"].shape[2:] == (K, 5)
    assert new.attrs["engine"] == "particle_gibbs"


def test_flat_weights():
    assert verdict(nz.read(nz.hmm_nmf(X, K, chain=nz.LogNormalAR(0.0, 0.5, 1.0))), "particle_gibbs")
    sample(nz.hmm_nmf(X, K, chain=nz.LogNormalAR(0.0, 0.5, 1.0)))
    for chain, words in ((nz.BasisChain(0.9, 0.8), "off at all times"), (nz.UnitChain(0.9), "near 0 at all times")):
        reason = verdict(nz.read(nz.hmm_nmf(X, K, chain=chain, background=0.1)), "particle_gibbs").reason
        assert reason.startswith("W has no prior")
        assert words in reason
        assert "\n" not in reason
    free = nz.hmm_nmf(X, K, chain="log-normal", alpha_w=2.0)
    assert "is free: give it a proper prior" in verdict(nz.read(free), "particle_gibbs").reason
    unknown_scale = declare("log-normal", alpha_w=None, beta_w=None)
    assert "hyperparameters of H are unknown" in verdict(nz.read(unknown_scale), "particle_gibbs").reason


def test_refusals():
    for declared, words in (
        (nz.gamma_nmf(X, K), "no chain in time"),
        (declare("basis", X + 0.5), "integers"),
        (declare("unit", None, shape=(F, T)), "nothing is observed"),
    ):
        assert words in verdict(nz.read(declared), "particle_gibbs").reason
    reason = particle_gibbs.supports(nz.read(declare("basis")), nz.ParticleGibbs(proposal="guided")).reason
    assert "H is binary: with proposal='guided'" in reason
    for chain in ("unit", "log-normal"):
        assert particle_gibbs.supports(nz.read(declare(chain)), nz.ParticleGibbs(proposal="guided"))


def test_too_many_particles_are_refused():
    long, many = np.ones((F, 2_000), int), nz.ParticleGibbs(particles=100_000)
    with pytest.raises(UnsupportedModel, match=r"2000 times, 2 components .* 7\.2 GB in each chain"):
        sample(declare("unit", long), engine=many)
    assert particle_gibbs.supports(nz.read(declare("unit", long)), nz.ParticleGibbs())
    assert particle_gibbs.supports(nz.read(declare("basis", long)), many)  # drawn exactly


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 1}, "particles: got 1; expected an integer >= 2"),
        ({"block": 0}, "block: got 0; expected an integer >= 1"),
        ({"block": "all"}, r"block: got 'all'; expected an integer of 64 bits or one of \['auto'\]"),
        ({"block": 1.5}, "block: got 1.5"),
        ({"resampling": "none"}, "resampling: got 'none'"),
        ({"ess": 2.0}, "ess: got 2.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        nz.ParticleGibbs(**options)


def test_impossible_counts_are_named():
    """W known and 0 where nothing else can make the count: refused before, or at the sample where it is."""
    declared = pm.do(nz.hmm_nmf(np.eye(2, dtype=int), 1, chain=nz.UnitChain(0.9)), {"W": np.array([[1.0], [1e-320]])})
    with pytest.raises(RunFailed, match=r"particle_gibbs: .* counts of obs 1"):
        sample(declared)


def test_one_sample():
    for chain in CHAINS:
        with pytest.warns(NmfZooWarning, match="rank"):
            declared = declare(chain, X[:, :1] + 1)
        assert sample(declared).posterior["H"].shape == (2, 8, K, 1)


def test_workspace():
    workspace = make_workspace(2, 30, 20, (0, 1))
    arrays = (workspace.history.h, workspace.history.aux, workspace.history.ancestors)
    assert sum(array.nbytes for array in arrays) == bytes_of_workspace(2, 30, 20)


# -- hyperparameters -----------------------------------------------------------------------------------------------


def basis(initial):
    first = None if initial is None else parameter(initial)
    return BasisChainPrior(p=parameter(0.7), q=parameter(0.6), initial=first)


def log_normal(first):
    first = (None, None) if first is None else map(parameter, first)
    return LogNormalARPrior(
        **dict(
            zip(
                ("mean", "persistence", "scale", "initial_mean", "initial_scale"),
                [parameter(0.2), parameter([[0.5], [-0.3]]), parameter(0.7), *first],
                strict=True,
            )
        )
    )


PRIORS = {
    "basis": basis(0.3),
    "basis, stationary": basis(None),
    "unit": UnitChainPrior(alpha=parameter([[0.8], [0.6]])),
    "log-normal": log_normal((0.1, 0.9)),
    "log-normal, stationary": log_normal(None),
}


def paths_of(prior):
    rng = np.random.default_rng(2)
    if isinstance(prior, BasisChainPrior):
        return formulas_of(prior).with_companion(rng.integers(0, 2, (2, 9)).astype(float))
    return formulas_of(prior).with_companion(rng.random((2, 9)) * 0.9 + 0.05)


@pytest.mark.parametrize("name", PRIORS)
def test_the_sums_hold_all_that_the_parameters_see(name):
    """The density by the sums differs from the density of the paths by a constant."""
    prior, other = PRIORS[name], None
    h, aux = paths_of(prior)
    sums = formulas_of(prior).sum_paths(h, aux)
    changed = {role: parameter(own.value * 0.9) for role, own in prior.parameters.items()}
    other = type(prior)(**({own.name: None for own in fields(prior)} | changed))
    by_sums = [
        float(np.sum(np.broadcast_to(formulas_of(own).log_paths(own, sums, {}), (2, 1)))) for own in (prior, other)
    ]
    by_paths = [own.log_density(h, {}) for own in (prior, other)]
    assert np.diff(by_sums) == pytest.approx(np.diff(by_paths), rel=1e-10)


@pytest.mark.parametrize("name", ["log-normal", "log-normal, stationary"])
def test_slopes_of_levels(name):
    prior = PRIORS[name]
    h, aux = paths_of(prior)
    slope, bend = slope_of_level(prior, formulas_of(prior).sum_paths(h, aux), {})
    shift = np.array([[0.3], [-0.2]])
    gain = prior.log_density(np.exp(aux - shift), {}) - prior.log_density(h, {}) - float(np.sum(9 * shift))
    assert gain == pytest.approx(float(np.sum((slope - 0.5 * bend * shift) * shift)), rel=1e-9)


def test_weights_next_to_zero_stay_positive():
    """Levels of such chains move by a hundred logarithms, and a prior of W with so small a shape lets them."""
    chain = nz.LogNormalAR(mean=0.0, persistence=0.999, scale=5.0)
    declared = nz.hmm_nmf(np.array([[4]]), 1, background=1.0, chain=chain, alpha_w=1e-3)
    engine = nz.ParticleGibbs(particles=2)
    idata = nz.sample(9, tune=2, chains=1, engine=engine, random_seed=51, quiet=True, model=declared)
    assert np.all(idata.posterior["W"] > 0)
    assert np.all(np.isfinite(idata.sample_stats["lp"]))


def test_a_beta_posterior():
    """p given H in closed form: the draws' distribution function at the draws is uniform."""
    p = unknown("p", "beta", 2.0, 3.0)
    chain = BasisChainPrior(p=p, q=parameter(0.8), initial=parameter(0.5))
    structure = model(np.ones((1, 9)), 2, gamma(1.0, 1.0), chain)
    h, aux = paths_of(chain)
    sums = formulas_of(chain).sum_paths(h, aux)
    values, generator, drawn = {"p": np.array(0.5)}, np.random.default_rng(3), []
    for _ in range(500):
        gibbs_chain.draw_parameters(structure, formulas_of(structure.H.prior), np.ones((1, 2)), sums, values, generator)
        drawn.append(float(values["p"]))
    stays = np.sum((h[:, :-1] == 0) & (h[:, 1:] == 0))
    leaves = np.sum((h[:, :-1] == 0) & (h[:, 1:] == 1))
    assert stats.kstest(drawn, stats.beta(2.0 + stays, 3.0 + leaves).cdf).pvalue > 1e-4


def test_many_rows_in_blocks():
    """Every component is in exactly one block of each sweep, and blocks change."""
    structure = model(np.ones((2, 4)), 7, gamma(1.0, 1.0), UnitChainPrior(alpha=parameter(0.9)), background=0.1)
    rows = particle_gibbs.prepare(structure, nz.ParticleGibbs(block=3), SERIAL).rows
    seen = [tuple(map(tuple, rows.blocks(child(seed_key(1), sweep)))) for sweep in range(20)]
    for blocks in seen:
        assert sorted(k for block in blocks for k in block) == list(range(7))
        assert [len(block) for block in blocks] == [3, 3, 1]
    assert len(set(seen)) > 15
