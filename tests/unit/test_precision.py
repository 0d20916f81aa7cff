"""EM and VB with sums at the cells in float32: near the path of float64, and what they promise still holds."""

from functools import partial

import numpy as np
import pytest

from nmf_zoo.inference.counts import em, vb
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Cells
from tests.runs import fit, largest_loss
from tests.structures import gamma, model

RNG = np.random.default_rng(11)
F, N, K = 60, 45, 6
X = RNG.poisson(2.0 * RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 1.0, (K, N))).astype(float)
X[7], X[:, 9] = 0.0, 0.0
MASK = RNG.random((F, N)) < 0.8
EXPOSURE = RNG.random((1, N)) + 0.5
SETTINGS = {"plain": {}, "mask": {"mask": MASK}, "background": {"background": 0.2 * EXPOSURE, "exposure": EXPOSURE}}
PLAIN = partial(em.EM, accelerate=None)  # Newton steps run in float64 only, and float32 would take other ones
CASES = {
    "em, flat": (em, PLAIN, (None, None)),
    "em, gamma": (em, PLAIN, (gamma(1.5, 0.7), gamma(1.2, 0.4))),
    "em, gap": (em, PLAIN, (None, gamma(1.0, 0.7))),
    "vb": (vb, vb.VB, (gamma(0.3, 0.7), gamma(0.3, 0.7))),
    "vb, underflow": (vb, vb.VB, (gamma(1e-3, 1.0), gamma(1e-3, 1.0))),
}
RELATIVE = 1e-6  # what the options promise


def build(priors, setting, sparse):
    options = dict(SETTINGS[setting])
    if sparse:
        rows, cols = np.nonzero(MASK if "mask" in options else X)
        complete = options.pop("mask", None) is None
        options["data"] = Cells(rows=rows, cols=cols, values=X[rows, cols], shape=(F, N), is_complete=complete)
    return model(X, K, *priors, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "cells"])
def test_single_precision_is_monotone_and_near(case, setting, sparse):
    engine, options, priors = CASES[case]
    structure = build(priors, setting, sparse)
    start = {"W": RNG.random((F, K)) + 0.1, "H": RNG.random((K, N)) + 0.1}
    paths = {}
    for precision in ("float64", "float32"):
        _, state, info, objective = fit(engine.ENGINE, structure, options(precision=precision), 60, seed=3, start=start)
        assert largest_loss(objective, maximise=engine.ENGINE.maximise) <= (
            RELATIVE if precision == "float32" else 1e-9
        )
        assert np.isfinite(info.residual)
        factors = (state.W, state.Ht) if engine is em else (state.W.mean, state.H.mean)
        assert all(factor.dtype == np.float64 and np.all(np.isfinite(factor)) for factor in factors)
        paths[precision] = objective
    assert not np.array_equal(paths["float64"], paths["float32"])
    np.testing.assert_allclose(paths["float32"][:5], paths["float64"][:5], rtol=RELATIVE)
    np.testing.assert_allclose(paths["float32"][-1], paths["float64"][-1], rtol=1e-4)


def test_acceleration_in_single_precision_is_monotone():
    _, _, _, objective = fit(em.ENGINE, build((None, None), "plain", True), em.EM(precision="float32"), 60)
    assert largest_loss(objective, maximise=False) <= RELATIVE


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "cells"])
@pytest.mark.parametrize("case", ["em, flat", "vb"])
def test_threads_do_not_change_a_bit(case, sparse):
    engine, options, priors = CASES[case]
    structure = build(priors, "plain", sparse)
    workers = Workers(2)
    one, two = (
        fit(engine.ENGINE, structure, options(precision="float32"), 10, workers=w)[3] for w in (SERIAL, workers)
    )
    workers.close()
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("options", [em.EM, vb.VB], ids=["em", "vb"])
@pytest.mark.parametrize("wrong", ["float16", "double", None, 32])
def test_other_precisions_are_refused_in_one_line(options, wrong):
    with pytest.raises(ValueError, match=r"precision: got .*; expected one of \['float64', 'float32'\]") as error:
        options(precision=wrong)
    assert "\n" not in str(error.value)
