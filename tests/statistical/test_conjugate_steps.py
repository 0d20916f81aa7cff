"""The step method draws from the right conditional in a model that is not ours, and PyMC's chain from the posterior."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.workbench.calibrate import judge_ranks
from tests.planted import plant
from tests.sizes import at_full_size, size

pytestmark = pytest.mark.statistical
F, N, K = 3, 5, 2
Z = np.linspace(-1.0, 1.0, N)
SIMULATIONS, PLANTED, DRAWS, THIN = size(50, 600), 30, 19, 5


def declare(X):
    with pm.Model() as model:
        slope, level = pm.Normal("slope", 0.5, 0.7), pm.Gamma("level", 4.0, 4.0)
        W = pm.Gamma("W", 1.5, 1.0, shape=(F, K))
        H = pm.Gamma("H", 1.2, level * pm.math.exp(slope * Z), shape=(K, N))
        pm.Poisson("X", W @ H, observed=X)
    return model


def invariants(W, H):
    mean = W @ H
    return np.array([W.sum(), H.sum(), H[:, 0].sum(), mean[0, 0], mean[2, 4]])


@cache
def start():
    """PyMC's, which is the same whatever the data are, and takes a quarter of a simulation."""
    return declare(np.zeros((F, N), dtype=int)).initial_point()


def rank(number):
    """Of a truth among draws given its own slope and level: these are in the point, and stay."""
    rng = np.random.default_rng(number)
    slope, level = rng.normal(0.5, 0.7), rng.gamma(4.0, 0.25)
    W, H = rng.gamma(1.5, 1.0, (F, K)), rng.gamma(1.2, 1 / (level * np.exp(slope * Z)), (K, N))
    model = declare(rng.poisson(W @ H))
    step = nz.ConjugateGibbs(model=model, rng=number, sweeps=THIN)
    point = {**start(), "slope": np.array(slope), "level_log__": np.array(np.log(level))}
    for _ in range(10):
        point, _ = step.step(point)
    draws = []
    for _ in range(DRAWS):
        point, _ = step.step(point)
        draws.append(invariants(np.exp(point["W_log__"]), np.exp(point["H_log__"])))
    return np.sum(np.array(draws) < invariants(W, H), axis=0)


def judged(simulations=SIMULATIONS):
    ranks = np.array([rank(number) for number in range(simulations)])
    names = ["sum W", "sum H", "sum H at 0", "mean[0, 0]", "mean[2, 4]"]
    return judge_ranks(ranks, names, DRAWS, {}).attrs["verdict"]


def test_steps_draw_from_the_conditional_of_the_block():
    """Long: every simulation is a model of its own, read and prepared anew."""
    verdict = judged()
    assert verdict.startswith("no sign"), verdict


def test_a_prior_at_another_point_is_seen(monkeypatch):
    """Long: as the test of the right one."""

    def wrong(right):
        def mirrored(model, free):
            gammas = right(model, free)
            return lambda point: gammas({**point, "slope": -point["slope"]})

        return mirrored

    plant(monkeypatch, "conjugate steps: priors at a point", wrong)
    assert not judged(PLANTED).startswith("no sign")


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_with_the_step_pymc_draws_from_the_posterior_that_nuts_draws_from():
    """Long: NUTS compiles, and draws from Python."""
    rng = np.random.default_rng(3)
    X = rng.poisson(rng.gamma(1.5, 1.0, (F, K)) @ rng.gamma(1.2, 1 / np.exp(0.8 * Z), (K, N)))
    found = {}
    for name in ("block", "nuts"):
        with declare(X):
            step = [nz.ConjugateGibbs()] if name == "block" else None
            how = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
            idata = pm.sample(5000, tune=500, step=step, target_accept=0.95, **how)
        posterior = idata["posterior"]
        found[name] = {
            "slope": posterior["slope"].to_numpy(),
            "level": np.log(posterior["level"].to_numpy()),
            "mean": np.einsum("cdk,cdk->cd", posterior["W"].to_numpy()[:, :, 0], posterior["H"].to_numpy()[..., 0]),
        }
    for quantity in ("slope", "level", "mean"):
        (a, b), errors = zip(*(summary(found[name][quantity]) for name in ("block", "nuts")), strict=True)
        assert abs(a - b) < 4.5 * np.hypot(*errors), quantity


def summary(draws):
    """Mean and its Monte-Carlo error, from the effective number of draws."""
    import arviz as az

    return draws.mean(), draws.std() / np.sqrt(float(az.ess(draws)))
