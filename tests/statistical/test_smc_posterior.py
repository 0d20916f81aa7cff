"""Posterior draws by sequential Monte Carlo: each mode gets its share, where a chain of sweeps stays where it began."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.evidence import smc, smc_draws
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.driver import SampleRun, run_chains
from tests.planted import check_seen, plant
from tests.sizes import at_full_size, size
from tests.statistical.gates import effective_sizes
from tests.statistical.two_modes import Case, exact

pytestmark = pytest.mark.statistical
RUNS, PLANTED_RUNS = size(16, 100), 16
OPTIONS = smc.SMC(particles=1000, length=5)
SHARE, OTHERS = 3.0, 4.0  # standard errors allowed

SHAPE_W = np.array([[3.0, 3.0], [3.0, 3.0], [2.0, 2.0]])
MEAN_W = np.array([[4.0, 1.0], [1.0, 4.0], [1.0, 1.0]])
MEAN_H = np.array([[1.0, 4.0], [4.0, 1.0]])
EXPOSURE = np.array([[1.0, 0.8], [1.2, 1.0], [1.0, 1.0]])


def case(transposed=False):
    return CASES[transposed]


def _case(transposed):
    shape_h = np.array([[3.0, 3.5], [3.0, 3.0]])
    return Case(
        x=np.array([[30.0, 1.0], [0.0, 20.0], [5.0, 3.0]]),
        shape_w=SHAPE_W,
        rate_w=SHAPE_W / MEAN_W,
        shape_h=shape_h,
        rate_h=shape_h / MEAN_H,
        exposure=EXPOSURE,
        grid=np.arange(-4.6, 4.4, 0.18),
        transposed=transposed,
    )


CASES = {transposed: _case(transposed) for transposed in (False, True)}  # the same object, whose answers are kept


def run(draws, tune=0):
    return SampleRun(draws=draws, tune=tune, thin=1, keep_warmup=False, cores=1, progressbar=False)


def runs_of(of, n_runs=RUNS):
    groups, _ = smc_draws.sample(None, of.structure(), OPTIONS, run(1000), seed_key(1), [{}] * n_runs)
    return groups


right_runs_of = cache(runs_of)


def scores_of(of, groups):
    """Of every statistic, and of log p(X), how many standard errors the runs' mean is from the exact value."""
    drawn = of.statistics({name: groups["posterior"][name].to_numpy() for name in "WH"})
    log_evidence, means = exact(of)
    found = {name: _score(draws.mean(axis=1), means[name]) for name, draws in drawn.items()}
    ratios = np.exp(groups["sample_stats"]["log_marginal_likelihood"].to_numpy() - log_evidence)
    return found | {"p(X)": _score(ratios, 1.0)}


def _score(values, expected):
    return (values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values)))


def check(of, n_runs=RUNS, runs_of=runs_of):
    scores = scores_of(of, runs_of(of, n_runs))
    assert abs(scores["share"]) < SHARE, f"gate 1, share of a mode: {scores['share']:.1f} standard errors"
    wrong = {name: round(float(score), 1) for name, score in scores.items() if not abs(score) < OTHERS}
    assert not wrong, f"gate 2, standard errors: {wrong}"


def test_the_modes_are_comparable_and_sweeps_stay_in_theirs():
    """Otherwise the tests below would show nothing."""
    share = exact(case())[1]["share"]
    assert 0.3 < share < 0.8
    for trajectories in ("never", "always"):
        options = gibbs.Gibbs(trajectories=trajectories)
        chains, _ = run_chains(gibbs.ENGINE, case().structure(), options, run(4000, 500), seed_key(1), [{}] * 8)
        shares = np.array([case().statistics(chain.draws.values)["share"].mean() for chain in chains])
        assert np.all(np.minimum(shares, 1.0 - shares) < 0.01)  # a trajectory may look over the border and come back
        assert np.ptp(shares) > 0.9


@pytest.mark.parametrize("transposed", [False, pytest.param(True, marks=at_full_size)], ids=["3 x 2", "2 x 3"])
def test_each_mode_gets_its_share(transposed):
    """Long: the spread of shares between runs takes many runs."""
    check(case(transposed), runs_of=right_runs_of)


def test_the_exact_values_do_not_depend_on_the_grid():
    (log_evidence, means), other = exact(case()), exact(Case(**{**vars(case()), "grid": np.arange(-4.9, 4.5, 0.155)}))
    np.testing.assert_allclose(log_evidence, other[0], atol=1e-3)
    np.testing.assert_allclose(list(means.values()), list(other[1].values()), atol=2e-3)


def test_effective_draws_of_neighbours_tell_the_spread_of_runs():
    """Relatives stand together, so that what looks at neighbours sees them: its error is near the runs' own."""
    groups = right_runs_of(case(), RUNS)
    share = case().statistics({name: groups["posterior"][name].to_numpy() for name in "WH"})["share"]
    own = [_error(draws) for draws in share]
    assert 0.4 < np.mean(own) / share.mean(axis=1).std(ddof=1) < 2.0
    shuffled = np.random.default_rng(1).permuted(share, axis=1)
    assert np.mean([_error(draws) for draws in shuffled]) < 0.7 * np.mean(own)


def _error(draws):
    n = effective_sizes(draws[:, None])[0]
    return draws.std(ddof=1) / np.sqrt(n)


def test_calibration():
    """Long: simulations, each with particles of its own from prior to posterior."""
    found = nz.calibrate(
        lambda: nz.gamma_nmf(None, rank=2, shape=(3, 4), alpha_w=0.8, beta_w=0.5, alpha_h=1.5),
        smc.SMC(particles=500, length=5),
        simulations=size(50, 1000),
        draws=49,
        random_seed=1,
        progressbar=False,
    )
    assert set(found["verdict"].to_numpy()) == {"calibrated"}


# -- planted errors ----------------------------------------------------------------------------------------------------


def check_is_seen(match="gate 1"):
    check_seen(lambda n: check(case(), n), PLANTED_RUNS, match, least=8)


def with_power(power):
    """Resampling by a power of the weights."""
    return lambda resample: lambda out, log_weights, key: resample(out, power * log_weights, key)


def test_a_wrong_power_in_the_weights_is_seen(monkeypatch):
    """Ancestors by the weights' squares. Long: as the test of the right ones."""
    plant(monkeypatch, "SMC: resampling", with_power(2.0))
    check_is_seen()


def test_resampling_without_weights_is_seen(monkeypatch):
    """Long: as the test of the right ones."""
    plant(monkeypatch, "SMC: resampling", with_power(0.0))
    check_is_seen()


def test_moves_at_another_power_are_seen(monkeypatch):
    """The particles of every stage walk at a temperature below it. Long: as the test of the right ones."""
    plant(monkeypatch, "SMC: targets", lambda right: lambda problem, temperature: right(problem, 0.7 * temperature))
    check_is_seen("gate")
