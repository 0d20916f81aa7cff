"""Moves of the rows of powers by themselves and inside the sampler: Geweke's test, quadrature and calibration.

Then planted errors.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.counts.sweeps import blocks_of
from nmf_zoo.inference.powers import gibbs
from nmf_zoo.inference.powers.trajectories import make_side_workspaces, make_sides, make_tuning, run_in_threads
from nmf_zoo.kernels.hmc import adaptation
from nmf_zoo.kernels.hmc.power_rows import LOUD
from nmf_zoo.kernels.powers import sweeps as power_sweeps
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.workers import SERIAL
from tests.naive.hmc import power_rows as naive_power_rows
from tests.planted import check_seen
from tests.sizes import FULL, size
from tests.statistical import test_composite_gibbs, test_is_quadrature
from tests.statistical.calibration import check_calibrated
from tests.statistical.composite_chain import sample_composite, simulate_successively
from tests.statistical.gates import check_means
from tests.statistical.geweke import check_geweke
from tests.structures import inverse_gamma

pytestmark = pytest.mark.statistical
SWEEPS, PLANTED_SWEEPS = size(2_000, 60_000), 2_000
SIMULATIONS, TUNE, THIN = size(50, 1000), 150, size(4, 8)
STEP, LENGTH = 0.6, 4
MODELS = test_composite_gibbs.MODELS
SLOW = {
    "a component of W known": 3,
    "heavy tails": 5,
    "rank 3": 2,
    "rank 1": 2,
    "light tails": 2,
}  # times as many sweeps

check = partial(check_geweke, simulate_successively=simulate_successively)


# in other words what others say; all of them at full size
REPEATED = {"tall", "mask", "exposure", "exposure of frames", "background, rank 1", "listed cells, exposure"}
NAMES = [name for name in MODELS if FULL or name not in REPEATED]


def walk_alone(wrong=lambda sides, workspaces: (sides, workspaces), step=STEP):
    """A step that moves each row of both factors and does nothing else; ``wrong`` plants an error in what it reads."""
    of, arranged = [], []  # the problem, and what is laid out for it

    def walk(problem, state, key):
        if not any(problem is one for one in of):
            of[:], arranged[:] = [problem], lay_out(problem, priors_of(problem, state), wrong, step)
        (sides, workspaces, learnt), power = arranged, problem.frames.spectra.power
        if problem.priors is None:
            workspaces = make_side_workspaces(sides, priors_of(problem, state))
        for side, table in zip(sides, (power.T, power), strict=True):
            side.data.grid[:] = blocks_of(table, side.data.grid.shape[2], 1.0)
        what = adaptation.begin_sweep(learnt, False, gibbs.ORBIT_EVERY)
        run_in_threads(sides, workspaces, SERIAL, problem.draws, state.factors, learnt, what, key)
        return state, None

    return walk


def priors_of(problem, state):
    return problem.priors or gibbs.priors_by_component(problem.structure, state.values)


def lay_out(problem, priors, wrong, step):
    """Data, rows and fixed strides, as after the warm-up."""
    sides = make_sides(problem.frames.spectra)
    learnt = make_tuning(sides, len(priors.shape_w))
    learnt.pace[[adaptation.IS_READY, adaptation.IS_FROZEN]] = 1.0
    for side in (learnt.W, learnt.H):
        side.step[:], side.length[:] = step, LENGTH
    return *wrong(sides, make_side_workspaces(sides, priors)), learnt


walk_after = walk_alone()


def share_and_walk(problem, state, key):
    """Composite Gibbs and moves of rows in each step."""
    gibbs.step(problem, state, child(key, 0))
    return walk_after(problem, state, child(key, 1))


@pytest.mark.parametrize("name", [name for name in NAMES if "known" not in name])  # beside them rows mix by sweeps
def test_moves_of_rows_alone(name):
    check(MODELS[name], SLOW.get(name, 1) * SWEEPS, seed=1, step=walk_alone())


@pytest.mark.parametrize("name", ["plain", "mask, exposure, background"])
def test_moves_of_rows_among_composite_sweeps(name):
    check(MODELS[name], SWEEPS, seed=3, step=share_and_walk)


@pytest.mark.parametrize("name", test_composite_gibbs.HYPER_MODELS)
def test_unknown_hyperparameters(name):
    """The priors' cells change from sweep to sweep."""
    check(test_composite_gibbs.HYPER_MODELS[name], SWEEPS, seed=2, step=share_and_walk)


# -- quadrature ----------------------------------------------------------------------------------------------------

sample_walking = partial(sample_composite, step=walk_alone(), thin=2)


@pytest.mark.parametrize("background", [test_is_quadrature.NONE, test_is_quadrature.BESIDE])
def test_a_row_given_the_other_factor(background):
    known = test_is_quadrature
    prior = inverse_gamma(known.SHAPE_H[:, None], known.SCALE_H[:, None])
    structure = known.power_model(known.PAIR_X, 2, known.KNOWN, prior, exposure=known.EXPOSURE, background=background)
    draws = sample_walking(structure, 3 * SWEEPS, seed=1)
    expected = np.array(known.by_known_W(known.KNOWN, known.EXPOSURE, background))
    check_means(known.NAMES_H, known.statistics_of_h(draws), expected)


def check_flat(step):
    known = test_is_quadrature
    structure = known.power_model(known.FLAT_X, 1, None, inverse_gamma(known.FLAT_SHAPE, known.FLAT_SCALE))
    draws = sample_composite(structure, 3 * SWEEPS, seed=3, step=step)
    table = np.concatenate([np.log(draws["H"])[:, 0], np.log(draws["W"])[:, :, 0]], axis=1)
    check_means(["h1", "h2", "h3", "w1", "w2"], table, np.array(known.by_flat_W()))


def test_profiles_without_a_prior():
    check_flat(walk_alone())


# -- the sampler as it runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in test_composite_gibbs.CALIBRATED if "component" not in name])
def test_ranks_are_uniform(name):
    """Its own warm-up, frozen afterwards."""
    engine = Gibbs(trajectories="always")
    check_calibrated(test_composite_gibbs.CALIBRATED[name], engine, SIMULATIONS, tune=TUNE, thin=THIN, seed=1)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(structure, wrong=None, sweeps=PLANTED_SWEEPS, step=None):
    step = step or walk_alone(wrong)
    check_seen(lambda n: check(structure, n, seed=4, step=step, least=50), sweeps, "gate 2, standard errors")


def with_rows(change):
    """Priors' cells of W (side 0) and H (side 1) that are changed."""

    def wrong(sides, workspaces):
        changed = (
            workspace._replace(rows=workspace.rows._replace(**change(i, workspace.rows)))
            for i, workspace in enumerate(workspaces)
        )
        return sides, tuple(changed)

    return wrong


def exchanged(cells):
    return np.ascontiguousarray(cells[:, ::-1])


WRONG_PRIORS = {
    "no Jacobian": with_rows(lambda i, rows: {"shape": rows.shape + 1}),
    "no Jacobian of W": with_rows(lambda i, rows: {"shape": rows.shape + (i == 0)}),
    "half the scales of H": with_rows(lambda i, rows: {"scale": rows.scale / (1 + i)}),
    "components exchanged": with_rows(lambda i, rows: {"shape": exchanged(rows.shape)}),
}


@pytest.mark.parametrize("name", WRONG_PRIORS)
def test_a_wrong_prior_is_seen(name):
    check_is_seen(MODELS["plain"], WRONG_PRIORS[name])


def test_a_flat_factor_without_its_jacobian_is_seen():
    with pytest.raises(AssertionError, match="gate 2"):
        check_flat(walk_alone(with_rows(lambda i, rows: {"shape": rows.shape + (i == 0)})))


def with_offsets(change):
    def wrong(sides, workspaces):
        changed = (side._replace(data=side.data._replace(offset=change(side.data.offset))) for side in sides)
        return tuple(changed), workspaces

    return wrong


WRONG_OFFSETS = {
    "background": lambda offset: np.empty((0, 0, 0)),
    "mask": lambda offset: np.where(offset == LOUD, 0.0, LOUD),
}


@pytest.mark.parametrize("name", WRONG_OFFSETS)
def test_a_forgotten_background_or_an_inverted_mask_is_seen(name):
    check_is_seen(MODELS[name], with_offsets(WRONG_OFFSETS[name]))


def in_numpy(exchanged=naive_power_rows.exchanged):
    """The same moves by the twins, of data without a mask or a background."""

    def move(power, other, v, shape, scale, key):
        rows = [(power[i], other, 0.0, shape[:, i], scale[:, i]) for i in range(len(power))]
        strides = [(np.eye(len(v)), STEP, LENGTH)] * len(power)
        v = naive_power_rows.move_rows(v, rows, strides, key, len(power))[0]
        own = child(key, power_sweeps.EXCHANGES)
        return naive_power_rows.exchange_components(v, rows, 1, own, exchanged)

    def step(problem, state, key):
        priors, power = problem.priors, problem.frames.spectra.power
        state.Ht[:] = move(power, state.Wt.T, state.Ht.T, *priors[2:], child(key, 1)).T
        state.Wt[:] = move(power.T, state.Ht, state.Wt.copy(), *priors[:2], child(key, 0))
        return state, None

    return step


def test_the_twins_are_exact():
    check(MODELS["square"], PLANTED_SWEEPS, seed=4, step=in_numpy(), least=50)


def lopsided(v, u, k, j):
    """Not an exchange: it does not lead back, and shrinks volumes."""
    out = naive_power_rows.exchanged(v, u, k, j)
    out[j] *= 0.7
    return out


def test_an_exchange_that_does_not_lead_back_is_seen():
    check_is_seen(MODELS["square"], step=in_numpy(lopsided))
