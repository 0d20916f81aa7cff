"""The evidence within a mode: exact masses, honest errors, and planted errors that are seen."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.evidence import bridging, chib_bridge, enumeration
from nmf_zoo.inference.evidence.posterior_runs import FactorPair, draw_posterior
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.jobs import Job
from nmf_zoo.workbench import modes as mode_weights
from tests import two_modes
from tests.planted import plant, put
from tests.sizes import size
from tests.statistical.judged import judges
from tests.statistical.test_evidence_agreement import PROBLEMS

pytestmark = pytest.mark.statistical
SEEDS = size(8, 60)
CASES = {
    "two of three blocks share a component": (
        two_modes.merged_model,
        two_modes.MERGED_STARTS,
        ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)),  # each in either order
    ),
    "unlike components cross": (two_modes.crossed_model, two_modes.CROSSED_STARTS, ((0, 1), (1, 0))),
}


def exact_masses(case):
    """log Z of every mode, and of what lies between them."""
    declare, starts, owners = CASES[case]
    masses, between = two_modes.log_masses(declare, owners)
    return np.logaddexp.reduce(masses.reshape(-1, len(starts))), between


def weigh(case, seed, draws=1000):
    """The group, its modes in the order of the starts."""
    declare, starts, _ = CASES[case]
    model, n = declare(), len(starts)
    how = {"random_seed": seed, "quiet": True, "cores": 1, "model": model}
    idata = nz.sample(draws, tune=300, extend=1, chains=n, initvals=starts, **how)
    chains = [[chain] for chain in range(n)]  # where they start: between the modes lies e^-14 of the mass at the most
    weighed = nz.weigh_modes(idata, model, modes=chains, random_seed=seed, quiet=True, cores=1)
    group = _compat.group(weighed, "modes")
    return group.isel(mode=group["mode_of_chain"].to_numpy())


as_they_are = cache(weigh)  # without a planted error, for more than one test


def scores(case, seeds, weigh=weigh):
    """(seeds, modes) z-scores of log Z."""
    exact, _ = exact_masses(case)
    found = [weigh(case, seed) for seed in range(seeds)]
    return np.array([(one["log_evidence"] - exact) / one["log_evidence_error"] for one in found])


@judges(lambda z: z.size)
def check_scores(z):
    """Three errors each, as often as of normal scores; mean 0 and variance 1 by their 0.1% quantiles.

    Errors from 20 batches are themselves off by a sixth, which adds a sixth to the variance.
    """
    n = z.size
    assert abs(z.mean()) < 3.3 * np.sqrt(1.2 / n), f"mean of z: {z.mean():.2f}"
    low, high = chi2.ppf([0.001, 0.999], n - 1) / (n - 1)
    assert low < z.var(ddof=1) < 1.2 * high, f"variance of z: {z.var(ddof=1):.2f}"
    outside = int(np.sum(np.abs(z) > 3.0))
    assert outside <= max(1, 0.02 * n), f"{outside} of {n} estimates are three errors off"


@pytest.mark.parametrize("case", CASES)
def test_modes_lie_apart(case):
    """What the masses are held against: the modes have all of the evidence, and hardly anything lies between them.

    Long: exact masses, on a fine grid.
    """
    exact, between = exact_masses(case)
    whole = enumeration.log_evidence(nz.read(CASES[case][0]()))
    assert np.logaddexp.reduce(exact) == pytest.approx(whole, abs=1e-6)
    assert between < whole - 14.0


@pytest.mark.parametrize("case", CASES)
def test_evidence_within_a_mode_is_exact_within_its_error(case):
    check_scores(scores(case, SEEDS, as_they_are))


@pytest.mark.parametrize("case", CASES)
def test_chains_are_told_apart_and_shares_are_right(case):
    """As a user weighs them, with two chains in each mode; the shares are within what their errors allow."""
    declare, starts, _ = CASES[case]
    model = declare()
    how = {"random_seed": 5, "quiet": True, "cores": 1, "model": model}
    idata = nz.sample(2000, tune=300, extend=1, chains=2 * len(starts), initvals=2 * starts, **how)
    group = _compat.group(nz.weigh_modes(idata, model, random_seed=1, quiet=True), "modes")
    of_chain = group["mode_of_chain"].to_numpy()
    np.testing.assert_array_equal(of_chain[: len(starts)], of_chain[len(starts) :])
    assert set(group["verdict"].to_numpy()) == {"decided"}
    exact, _ = exact_masses(case)
    expected = np.exp(exact - np.logaddexp.reduce(exact))
    found = group.isel(mode=of_chain[: len(starts)])
    relative = np.abs(np.log(found["share"].to_numpy() / expected))
    assert np.all(relative < 3.0 * np.hypot.reduce(found["log_evidence_error"].to_numpy()))


# -- planted errors --------------------------------------------------------------------------------------------------


def test_modes_weighed_by_lp_are_seen():
    """lp is the density at draws: its differences are not those of the masses."""
    exact, _ = exact_masses("unlike components cross")
    found = [as_they_are("unlike components cross", seed) for seed in range(6)]
    lead = np.array([float(one["lp"][0] - one["lp"][1]) for one in found])
    error = np.array([float(np.hypot(*one["log_evidence_error"])) for one in found])
    with pytest.raises(AssertionError, match="of z"):
        check_scores((lead - (exact[0] - exact[1])) / error)


def test_all_orders_of_unlike_components_are_seen(monkeypatch):
    """K! in the place of the true number of exchanges, which is 1 here."""
    put(monkeypatch, "Chib's bridges: exchanges of components", lambda classes: np.log(2.0))
    with pytest.raises(AssertionError, match="mean of z"):
        check_scores(scores("unlike components cross", 4))


def test_one_order_of_alike_components_is_seen(monkeypatch):
    """A mode has as many copies as its components have orders. Long: the evidence of its modes by four seeds."""
    put(monkeypatch, "Chib's bridges: exchanges of components", lambda classes: 0.0)
    with pytest.raises(AssertionError, match="mean of z"):
        check_scores(scores("two of three blocks share a component", 4))


def test_errors_that_are_too_small_are_seen():
    with pytest.raises(AssertionError, match="variance of z"):
        check_scores(3.0 * scores("unlike components cross", 6, as_they_are))


# -- the density from the curvature ----------------------------------------------------------------------------------

BOTH_UNKNOWN = [name for name, structure in PROBLEMS.items() if not (structure.W.is_fixed or structure.H.is_fixed)]


def by_curvature(structure, seed):
    """The evidence of a whole posterior, its last bridge to the density from the curvature."""
    job = Job(0, seed_key(seed))
    posterior = draw_posterior(structure, seed_key(1000 + seed), None, 200, 1000, job)
    own = mode_weights._aligned(structure, posterior.pair, bridging.exchangeable(structure))
    centre = FactorPair(*(array.mean(axis=0) for array in own.pair))
    return chib_bridge.tighten_from(structure, own, centre, 1000, 200, job, (chib_bridge.CurvatureBridge(),))


@pytest.mark.parametrize("problem", BOTH_UNKNOWN)
def test_the_curvature_is_a_way_to_the_exact_evidence(problem):
    structure = PROBLEMS[problem]
    exact = enumeration.log_evidence(structure)
    found = [by_curvature(structure, seed) for seed in range(size(6, 40))]
    z = np.array([(one.log_evidence - exact) / one.error for one in found])
    assert max(one.error for one in found) < 0.3
    check_scores(z)


def test_a_wrong_curvature_normal_is_seen(monkeypatch):
    """Its constant off by a tenth of a nat."""
    structure = PROBLEMS["few counts"]

    def wrong(right):
        def raised(*how):
            normal = right(*how)
            if normal is not None:
                normal.constant += 0.2
            return normal

        return raised

    plant(monkeypatch, "Chib's bridges: normal at the mode", wrong)
    exact = enumeration.log_evidence(structure)
    found = [by_curvature(structure, seed) for seed in range(8)]
    with pytest.raises(AssertionError, match="of z"):
        check_scores(np.array([(one.log_evidence - exact) / one.error for one in found]))
