"""Extreme but legal data: every engine gives finite numbers, or says in words that it can't."""

import itertools

import numpy as np
import pytest

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import em, gibbs, mcem, vb
from nmf_zoo.inference.powers import em as power_em
from nmf_zoo.inference.powers import gibbs as power_gibbs
from nmf_zoo.inference.powers import vb as power_vb
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.registered import STARTS
from tests.structures import gamma, inverse_gamma, model

X = np.random.default_rng(1).poisson(4.0, (6, 8)).astype(float)
ROWS_OF_0 = np.where((np.arange(6)[:, None] == 1) | (np.arange(8) == 2), 0.0, X)
ONE_HUGE = np.arange(48).reshape(6, 8) == 28

DATA = {
    "plain": X,
    "zeros": 0.0 * X,
    "rows of zeros": ROWS_OF_0,
    "one cell of 2^31": np.where(ONE_HUGE, 2.0**31 - 1, X),
    "one cell of 2^53": np.where(ONE_HUGE, 2.0**53, X),
    "one cell above 0": np.where(ONE_HUGE, 3.0, 0.0),
} | {f"{scale:g}": scale * X for scale in (1e-300, 1e-200, 1e-100, 1e-12, 1e12, 1e100, 1e200, 1e300)}
REST = {
    "": {},
    "exposure 1e12": {"exposure": 1e12},
    "exposure 1e-12": {"exposure": 1e-12},
    "exposures apart": {"exposure": np.geomspace(1e-12, 1e12, 8)[None]},
    "exposure 1e300": {"exposure": 1e300},
    "exposure 1e-300": {"exposure": 1e-300},
    "background 1e12": {"background": 1e12},
    "background 1e-300": {"background": 1e-300},
    "sigma 1e-300": {"sigma": 1e-300},
    "sigma 1e-100": {"sigma": 1e-100},
    "sigma 1e300": {"sigma": 1e300},
}
PRIORS = {
    "flat": (None, None),
    "gamma": (gamma(1.0, 1.0), gamma(1.0, 1.0)),
    "gamma, shape 0.01": (gamma(0.01, 1.0), gamma(0.01, 1e-6)),
    "gamma, shape 1e6": (gamma(1e6, 1.0), gamma(1e6, 1e6)),
    "GaP": (None, gamma(2.0, 1.0)),
    "inverse gamma": (inverse_gamma(2.0, 1.0), inverse_gamma(0.01, 1e-6)),
}
OPTIMISERS = {
    **{f"em, {start}": em.EM(start=start) for start in STARTS},
    "em, log": em.EM(mode="log"),
    "em, plain": em.EM(accelerate=None),
    "em, momentum": em.EM(accelerate="momentum"),
    "em, refreshed": em.EM(accelerate=None, inner=None),
    **{f"vb, {start}": vb.VB(start=start) for start in STARTS},
    "vb, plain": vb.VB(accelerate=None),
}
ENGINES = {
    "poisson": {
        name: (em.ENGINE if name.startswith("em") else vb.ENGINE, options) for name, options in OPTIMISERS.items()
    }
    | {
        "mcem": (mcem.ENGINE, mcem.MCEM(sweeps=3, burn_in=1, explore=1, exact=False)),
        "gibbs": (gibbs.ENGINE, gibbs.Gibbs(trajectories="never")),
    },
    "normal": {name: (em.ENGINE, options) for name, options in OPTIMISERS.items() if name.startswith("em")},
    "exponential": {
        name: (power_em.ENGINE if name.startswith("em") else power_vb.ENGINE, options)
        for name, options in OPTIMISERS.items()
    }
    | {
        "em, sage": (power_em.ENGINE, em.EM(update="sage")),
        "gibbs": (power_gibbs.ENGINE, gibbs.Gibbs(trajectories="never")),
    },
}
ENDS = ("1e-300", "1e+300")
ALL_REFUSED = {"poisson": ENDS, "normal": (*ENDS, "1e-200", "1e+200"), "exponential": ()}  # by their units


def numbers_in(tree):
    """Every array and number of a state."""
    if isinstance(tree, dict):
        return [array for part in tree.values() for array in numbers_in(part)]
    if isinstance(tree, tuple | list):
        return [array for part in tree for array in numbers_in(part)]
    return [np.asarray(tree)] if isinstance(tree, float | np.ndarray) else []


def outcome(structure, engine, options, n=3):
    """ "finite", "refused" (before the run) or "failed" (in words, during it)."""
    if not engine.supports(structure, options):
        return "refused"
    try:
        problem = engine.prepare(structure, options, SERIAL)
        state, key = engine.init(problem, child(seed_key(1), 0), {}), seed_key(1)
        for step in range(n):
            state, info = engine.step(problem, state, child(key, 1, step))
        values = (engine.draw(problem, state, key) if engine.finish is None else engine.finish(problem, state, key, 2))[
            0
        ]
    except RunFailed:
        return "failed"
    for array in numbers_in(values) + ([np.asarray(info.objective)] if hasattr(info, "objective") else []):
        assert np.all(np.isfinite(array)), array
    return "finite"


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", ENGINES)
def test_finite_or_refused(kind, data):
    outcomes = []
    for (what, rest), priors in itertools.product(REST.items(), PRIORS.values()):
        if what.startswith("sigma") and kind != "normal":
            continue
        rest = {"sigma": 1.0} | rest if kind == "normal" else rest
        structure = model(DATA[data], 2, *priors, kind=kind, **rest)
        outcomes += [outcome(structure, *engine) for engine in ENGINES[kind].values()]
    assert outcomes.count("finite") > (len(outcomes) // 6 if data == "plain" else 0) or data in ALL_REFUSED[kind]
    assert outcomes.count("failed") <= len(outcomes) // 20  # what can be known is said before
