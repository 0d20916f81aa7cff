"""Trajectories inside Gibbs by Geweke's test, enumeration and calibration; then planted errors."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.counts import gibbs
from tests.planted import check_seen
from tests.sizes import size
from tests.statistical.calibration import check_calibrated
from tests.statistical.enumeration import check_draws
from tests.statistical.geweke import check_geweke
from tests.statistical.test_gibbs_calibration import KNOWN
from tests.statistical.test_gibbs_enumeration import CASES
from tests.statistical.test_gibbs_geweke import MODELS
from tests.statistical.walking import allocate_and_walk, walk_alone
from tests.structures import gamma, model, sample_gibbs

pytestmark = pytest.mark.statistical
SWEEPS, ALONE = size(2_500, 60_000), size(1_500, 60_000)
PLANTED_SWEEPS = 2_000
THIN, TUNE = size(6, 12), size(150, 300)
# Known components have no trajectories beside them.
ENUMERATED = [
    name for name, case in CASES.items() if not case().structure.unknowns and gibbs.all_free(case().structure)
]


@pytest.mark.parametrize("name", MODELS)
def test_trajectories_alone(name):
    """Long: near 0 trajectories alone move slowly, and take ten times as many sweeps."""
    sweeps = ALONE * (10 if name == "small shapes" else 2)  # near 0 they move slowly when alone
    check_geweke(MODELS[name], sweeps, seed=1, step=walk_alone())


@pytest.mark.parametrize("scale", [0.3, 2.5])
def test_any_scale_of_the_coordinates_is_right(scale):
    check_geweke(MODELS["plain"], 4 * ALONE, seed=2, step=walk_alone(scale=scale))


@pytest.mark.parametrize("name", ["plain", "mask, exposure, background"])
def test_trajectories_among_allocations(name):
    check_geweke(MODELS[name], SWEEPS, seed=3, step=allocate_and_walk)


@pytest.mark.parametrize("name", ENUMERATED)
def test_draws_follow_the_exact_posterior(name):
    case = CASES[name]()
    check_draws(case, sample_gibbs(case.structure, SWEEPS, seed=1, step=allocate_and_walk))


@pytest.mark.parametrize("name", KNOWN)
def test_ranks_are_uniform(name):
    """The engine as it runs: its start, its own adaptation, frozen afterwards."""
    engine = nz.Gibbs(trajectories="always")
    check_calibrated(KNOWN[name], engine, size(50, 1000), tune=TUNE, thin=THIN, seed=1)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(structure, wrong, sweeps=PLANTED_SWEEPS):
    step = walk_alone(wrong)
    check_seen(lambda n: check_geweke(structure, n, seed=4, step=step, least=50), sweeps, "gate 2, standard errors")


def with_priors(change):
    """Sweeps whose priors' cells are changed."""
    return lambda sweeps: sweeps._replace(priors=sweeps.priors._replace(**change(sweeps.priors)))


WRONG_PRIORS = {
    "shapes of H one too large": with_priors(lambda priors: {"shape_h": priors.shape_h + 1}),
    "half the rates of W": with_priors(lambda priors: {"rate_w": priors.rate_w / 2}),
    "components exchanged": with_priors(lambda priors: {"shape_w": np.ascontiguousarray(priors.shape_w[:, ::-1])}),
}


@pytest.mark.parametrize("name", WRONG_PRIORS)
def test_a_wrong_prior_is_seen(name):
    check_is_seen(MODELS["plain"], WRONG_PRIORS[name])


def test_a_forgotten_background_is_seen():
    def without_offset(sweeps):
        sides = (side._replace(data=side.data._replace(offset=np.empty((0, 0, 0)))) for side in sweeps.sides)
        return sweeps._replace(sides=tuple(sides))

    check_is_seen(model(np.zeros((2, 3)), 2, gamma(1.5, 1.0), gamma(1.7, 1.0), background=2.0), without_offset)


def without_weights(sweeps):
    weights = sweeps.weights._replace(of_features=np.ones(1), of_samples=np.ones(1), matrix=np.empty((0, 0)))
    return sweeps._replace(weights=weights)


def test_a_forgotten_mask_is_seen():
    check_is_seen(MODELS["mask"], without_weights)


def test_a_forgotten_exposure_is_seen():
    structure = model(np.zeros((2, 3)), 2, gamma(2.0, 4.0), gamma(2.0, 4.0), exposure=[[0.2], [0.5]])
    check_is_seen(structure, without_weights)
