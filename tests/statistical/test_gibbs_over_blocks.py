"""Gibbs over blocks against exact posteriors of tables of two blocks, whose allocations can be enumerated."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.counts import gibbs_blocks
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.block_arrays import InMemory
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.verbs.fit_blocks import surveyed, with_arrays
from tests.cut_samples import CutSamples
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.enumeration import Case, check_draws
from tests.structures import gamma, model, stack, unknown

pytestmark = pytest.mark.statistical
SWEEPS = size(3_000, 80_000)

ROW, COLUMN = np.array([[0.8, 1.6]]), np.array([[0.7], [2.2]])
RATE_H = unknown("r", "lognormal", 0.3, 0.6, variable_shape=(2,), shape=(2, 1))
RATE_W = unknown("s", "half_normal", 1.5)
MEAN_H = unknown("u", "uniform", 0.2, 2.5)
COARSE = np.arange(-36.0, 6.0, 0.75)
BETWEEN = np.log(0.2) + np.log(12.5) * (np.arange(25) + 0.5) / 25  # of a density that jumps at both ends
MASK, EXPOSURE, BACKGROUND = np.array([[False, True, True]]), np.array([1.0, 0.6, 1.7]), np.array([[0.9, 0.5, 0.2]])


def rates_of_components():
    """Two blocks, of a sample that is missing beside one that is not, and of one, with exposures and a background."""
    x = np.array([[4.0, 1.0, 2.0]])
    beside = {"mask": MASK, "exposure": EXPOSURE[None], "background": BACKGROUND}  # of each sample
    structure = model(x, 2, gamma(ROW, 1.5), gamma(COLUMN, RATE_H), **beside)
    hyper = {"r": (np.arange(-3.0, 3.6, 0.4), stats.lognorm(0.6, scale=np.exp(0.3)).logpdf)}
    priors = lambda v: (ROW, 1.5, COLUMN, v["r"][:, None])  # noqa: E731
    case = Case(structure=structure, priors=priors, hyper=hyper, w_grid=COARSE)
    return case, CutSamples(x, 2, exposure=EXPOSURE, mask=MASK, background=BACKGROUND)


def scales_of_priors():
    """Two blocks of one sample; a rate of W and a mean of H that move with their factors."""
    x = np.array([[3.0, 2.0]])
    structure = model(x, 2, gamma(0.8, RATE_W), gamma(1.2, mean=MEAN_H))
    hyper = {
        "s": (np.arange(-12.0, 2.2, 0.5), stats.halfnorm(scale=1.5).logpdf),
        "u": (BETWEEN, stats.uniform(0.2, 2.3).logpdf),
    }
    priors = lambda v: (0.8, v["s"], 1.2, 1.2 / v["u"])  # noqa: E731
    return Case(structure=structure, priors=priors, hyper=hyper, w_grid=COARSE), CutSamples(x, 1)


CASES = {"rates of components": rates_of_components, "scales of priors": scales_of_priors}


def declared(structure, source):
    """As a model without data, of which these give exposures and backgrounds."""
    likelihood = dataclasses.replace(structure.likelihood, exposure=None, background=None)
    H = dataclasses.replace(structure.H, shape=(structure.rank, 1))
    return dataclasses.replace(structure, likelihood=likelihood, H=H, data=None)


def sample_over_blocks(case, source, sweeps):
    """As :func:`tests.structures.sample_gibbs`, of a table of one feature, with blocks that are read once."""
    options, n_samples = Gibbs(), case.structure.shape[1]
    structure, _ = surveyed(declared(case.structure, source), source, gibbs_blocks.ENGINE, options)
    structure = with_arrays(structure, InMemory())
    structure = dataclasses.replace(structure, data=dataclasses.replace(structure.data, chosen=np.arange(n_samples)))
    problem, key = gibbs_blocks.prepare(structure, options, SERIAL), seed_key(1)
    state, kept, arrays = gibbs_blocks.init(problem, child(key, 0), {}), [], structure.data.arrays
    for sweep in range(100 + sweeps):
        state, _ = gibbs_blocks.step(problem, state, child(key, 1, sweep))
        if sweep >= 100:
            values, _ = gibbs_blocks.draw(problem, state, key)
            parts = [arrays.get(state.turn, number, "sources")[0] for number in range(structure.data.n_blocks)]
            sources = np.concatenate(parts)
            kept.append({**values, "of_features": sources.sum(axis=0)[None], "of_samples": sources})
    return stack(kept)


def read_once(right):
    """Blocks as they were laid out in the first pass."""
    found = {}

    def sample_blocks(problem, numbers):
        if not found:
            found.update((block.number, block) for block in right(problem, range(problem.data.n_blocks)))
        return iter([found[number] for number in numbers])

    return sample_blocks


@pytest.fixture(autouse=True)
def blocks_are_read_once(monkeypatch):
    plant(monkeypatch, "passes over blocks: blocks as they are read", read_once)


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_posterior(name):
    """Long: chi-square wants 250 independent draws."""
    case, source = CASES[name]()
    check_draws(case, sample_over_blocks(case, source, SWEEPS))


# -- planted errors ------------------------------------------------------------------------------------------------


def forgets_sources(plus):
    """Sums without the sources of all blocks but the first."""
    return lambda self, other: plus(self, other)._replace(of_W=self.of_W)


def forgets_samples(sum_groups):
    """What priors see of H as if it had one sample."""
    return lambda given, W, of_H: sum_groups(given, W, of_H._replace(n_samples=1))


def without_jacobian(prior_cells):
    """A scale move of W and H as if no volume changed: of one row of W, and all of H."""

    def wrong(structure, values):
        priors = prior_cells(structure, values)
        return priors._replace(tilt=priors.tilt + structure.shape[1] - 1.0)

    return wrong


def with_exposures_of_the_first(sample_blocks):
    """Blocks whose samples are exposed as those of the first one."""

    def wrong(problem, numbers):
        for block in sample_blocks(problem, numbers):
            weights = dataclasses.replace(block.cells.weights, of_samples=EXPOSURE[: block.last - block.first, None])
            yield block._replace(cells=block.cells._replace(weights=weights))

    return wrong


ERRORS = {
    "sums of blocks": ("rates of components", "Gibbs over blocks: sums of blocks", forgets_sources),
    "number of samples": ("scales of priors", "hyperparameters: sums of groups from those of H", forgets_samples),
    "change of volume": ("rates of components", "Gibbs over blocks: priors of cells", without_jacobian),
    "exposures": (
        "rates of components",
        "passes over blocks: blocks as they are read",
        with_exposures_of_the_first,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_planted_errors_are_seen(name, monkeypatch):
    """Long: the errors of H's many samples are small on tables of two."""
    case, place, wrong = ERRORS[name]
    case, source = CASES[case]()
    plant(monkeypatch, place, wrong)
    check_seen(lambda n: check_draws(case, sample_over_blocks(case, source, n)), SWEEPS)
