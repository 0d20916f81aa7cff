"""Composite Gibbs end to end: what it returns, what it refuses, and the same bits whoever does the work."""

from __future__ import annotations

import dataclasses

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.powers import gibbs
from nmf_zoo.inference.powers.gibbs import supports
from nmf_zoo.inference.shared.factor_view import impute
from nmf_zoo.kernels.random.keyed_rng import children, generator_of, seed_key
from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.driver import SampleRun, run_chains
from nmf_zoo.structure import Imputed
from tests.structures import gamma, inverse_gamma, model, unknown
from tests.unit.test_driver import press_control_c

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning"),
]
RNG = np.random.default_rng(7)
X = RNG.exponential(RNG.gamma(2.0, size=(9, 3)) @ RNG.gamma(2.0, size=(3, 14)))
MASK = RNG.random(X.shape) < 0.8


def own_model(beta=1.0):
    """A user's model with masked data, which PyMC draws itself, and a transposed factor."""
    with pm.Model() as declared:
        A = pm.InverseGamma("A", 2.0, 1.0, shape=(2, 9))
        H = pm.InverseGamma("H", 1.5, beta, shape=(2, 14))
        pm.Exponential("X", scale=A.T @ H, observed=np.ma.masked_array(X, ~MASK))
    return declared


def own_model_with_hyperprior():
    with pm.Model() as declared:
        scale = pm.Gamma("scale", 3.0, 2.0)
        W = pm.InverseGamma("W", 2.0, 1.0, shape=(9, 2))
        H = pm.InverseGamma("H", 1.5, scale, shape=(2, 14))
        pm.Exponential("X", scale=W @ H, observed=X)
    return declared


DECLARED = {
    "W without a prior": lambda: nz.is_nmf(X, 2, alpha_h=2.0),
    "both with": lambda: nz.is_nmf(X, 3, alpha_h=2.0, alpha_w=1.5, beta_w=0.5),
    "missing cells": lambda: nz.is_nmf(X, 2, alpha_w=1.5, mask=MASK, background=np.full((9, 1), 0.2)),
    "W known": lambda: pm.do(nz.is_nmf(X, 2), {"W": RNG.gamma(2.0, size=(9, 2))}),
    "a user's own": own_model,
    "hyperprior": own_model_with_hyperprior,
}


@pytest.mark.parametrize("name", DECLARED)
def test_lp_is_the_models(name):
    declared = DECLARED[name]()
    options = {"chains": 2, "random_seed": 1, "quiet": True, "compute_convergence_checks": False}
    idata = nz.sample(model=declared, engine="gibbs", draws=20, tune=30, **options)
    posterior, stats = _compat.group(idata, "posterior"), _compat.group(idata, "sample_stats")
    assert set(posterior.data_vars) == {variable.name for variable in declared.free_RVs}
    log_density = declared.compile_logp(jacobian=False, mode="FAST_COMPILE")
    for chain, draw in ((0, 0), (1, 19)):
        point = {name: posterior[name].values[chain, draw] for name in posterior.data_vars}
        values = {declared.rvs_to_values[rv].name: point[rv.name] for rv in declared.free_RVs}
        plain = {name.removesuffix("_log__").removesuffix("_interval__"): value for name, value in values.items()}
        np.testing.assert_allclose(stats["lp"].values[chain, draw], log_density(as_point(declared, plain)), rtol=1e-9)
    assert np.all(np.isfinite(stats["scale_move"]))


def as_point(declared, plain):
    """Values of the variables as the log-density takes them: transformed where the model transforms."""
    point = {}
    for variable in declared.free_RVs:
        value = declared.rvs_to_values[variable]
        transform = declared.rvs_to_transforms[variable]
        x = plain[variable.name]
        point[value.name] = x if transform is None else transform.forward(x, *variable.owner.inputs).eval()
    return point


def power_model(*priors, x=X, **options):
    return model(x, 2, *priors, kind="exponential", **options)


PRIOR = inverse_gamma(2.0, 1.0)
REFUSED = {
    "counts": (model(X, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)), "X is poisson, and its updates are for exponential data"),
    "nothing observed": (dataclasses.replace(power_model(PRIOR, PRIOR), data=None), "nothing is observed in X"),
    "a gamma prior": (power_model(PRIOR, gamma(1.0, 1.0)), "H has a gamma prior"),
    "no priors": (power_model(None, None), "their posterior is improper"),
    "too few frames": (power_model(None, PRIOR, x=X[:, :2]), "more than 2 observed cells"),
    "a free hyperparameter": (power_model(PRIOR, inverse_gamma(2.0, unknown("b", "flat"))), "hyperparameter b is free"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    structure, reason = REFUSED[name]
    verdict = supports(structure, Gibbs())
    assert not verdict
    assert reason in verdict.reason


def test_a_refusal_names_who_can():
    with pm.Model() as declared:
        H = pm.Gamma("H", 1.0, 1.0, shape=(2, 14))
        pm.Exponential("X", scale=np.ones((9, 2)) @ H, observed=X)
    with pytest.raises(UnsupportedModel, match=r"engine 'gibbs' can't run this model: .*nuts"):
        nz.sample(model=declared, engine="gibbs", draws=1, tune=0, quiet=True)


# -- the same bits -------------------------------------------------------------------------------------------------

MODELS = {
    "plain": power_model(PRIOR, PRIOR),
    "masked": power_model(PRIOR, PRIOR, mask=MASK, background=np.full(X.shape, 0.3)),
    "hyperparameters": power_model(PRIOR, inverse_gamma(2.0, unknown("b", "gamma", 3.0, 2.0))),
}


@pytest.fixture
def many_chunks(monkeypatch):
    monkeypatch.setattr(gibbs, "CHUNK_CELLS", 32)
    monkeypatch.setattr(files, "EVERY", 0.0)
    monkeypatch.setattr(files, "SHARE", np.inf)


def run(structure, cores=1, draws=9, checkpoint=None, engine=gibbs.ENGINE, options=Gibbs()):  # noqa: B008
    asked = SampleRun(draws=draws, tune=6, thin=2, keep_warmup=True, cores=cores, progressbar=False)
    chains, stopped = run_chains(engine, structure, options, asked, seed_key(5), [{}, {}], checkpoint=checkpoint)
    return [trace.values | trace.stats for chain in chains for trace in (chain.warmup, chain.draws)], stopped


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value, other[key], err_msg=key)


@pytest.mark.usefixtures("many_chunks")
@pytest.mark.parametrize("name", MODELS)
class TestTheSameBits:
    def test_with_any_threads(self, name):
        expected = run(MODELS[name])[0]
        for cores in (2, 4):
            assert_same(run(MODELS[name], cores=cores)[0], expected)

    @pytest.mark.parametrize("trajectories", ["never", "always"])
    def test_step_by_step_and_in_one_call(self, name, trajectories, monkeypatch):
        """Frames of one chunk, whose sweeps are compiled into one, with and without it."""
        monkeypatch.setattr(gibbs, "CHUNK_CELLS", 1 << 20)
        alone = dataclasses.replace(
            gibbs.ENGINE,
            prepare=lambda *arguments: dataclasses.replace(gibbs.prepare(*arguments), sweeps=None),
        )
        options = Gibbs(trajectories=trajectories)
        whole, by_step = (run(MODELS[name], engine=engine, options=options)[0] for engine in (gibbs.ENGINE, alone))
        for one, other in zip(whole, by_step, strict=True):  # lp is summed in another order
            np.testing.assert_allclose(one.pop("lp"), other.pop("lp"), rtol=1e-13)
        assert_same(whole, by_step)

    def test_going_on_from_every_draw(self, name, tmp_path):
        """One session per draw: each reads all it knows from the folder."""
        expected = run(MODELS[name])[0]
        for draws in range(1, 10):
            opened = open_checkpoint(tmp_path / "run", {}, 1, is_seeded=True)
            found = run(MODELS[name], cores=1 + draws % 2, draws=draws, checkpoint=opened)[0]
            opened.close()
        assert_same(found, expected)


def test_missing_cells_are_drawn_from_their_means():
    rows, cols = np.nonzero(~MASK)
    exposure, background = RNG.uniform(0.2, 5.0, X.shape), RNG.uniform(0.1, 9.0, X.shape)
    structure = dataclasses.replace(
        power_model(PRIOR, PRIOR, mask=MASK, exposure=exposure, background=background),
        imputed=Imputed(name="X_unobserved", rows=rows, cols=cols),
    )
    W, H = RNG.gamma(2.0, size=(9, 2)), RNG.gamma(2.0, size=(2, 14))
    drawn = impute(structure, [W] * 4000, [H.T] * 4000, map(generator_of, children(seed_key(1), 4000)))
    ratio = drawn / (exposure * (W @ H) + background)[rows, cols]
    assert np.max(np.abs(ratio.mean(axis=0) - 1.0)) < 5.0 / np.sqrt(len(drawn))
    np.testing.assert_allclose(np.mean(ratio**2), 2.0, rtol=0.05)


def test_interruption_keeps_what_was_drawn():
    expected, sweeps = run(MODELS["plain"])[0], []

    def step(problem, state, key):
        sweeps.append(key)
        if len(sweeps) == 11:  # the fifth after the warm-up of six
            press_control_c()
        return gibbs.step(problem, state, key)

    engine = dataclasses.replace(gibbs.ENGINE, step=step, tune=None, run=None)
    found, stopped = run(MODELS["plain"], engine=engine)
    assert stopped
    np.testing.assert_array_equal(found[1]["W"], expected[1]["W"][: len(found[1]["W"])])
    assert len(found[1]["W"]) == 3


def test_silent_frames_and_a_tiny_recording():
    """All-zero frames, and powers at the end of a microphone's range."""
    x = X * 1e-19
    x[:, 3:5] = 0.0
    structure = power_model(inverse_gamma(2.0, 1e-10), inverse_gamma(2.0, 1e-10), x=x)
    assert supports(structure, Gibbs())
    found = run(structure)[0][1]
    for name in ("W", "H", "mean"):
        assert np.all(np.isfinite(found[name]))
        assert np.all(found[name] > 0)
