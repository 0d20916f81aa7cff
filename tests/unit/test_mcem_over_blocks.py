"""Monte-Carlo EM over ``data=``: the chains of MCEM in memory however samples are cut, and nothing it can't do."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.verbs.block_source import CutArray
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 10, 40, 3
X = RNG.poisson(RNG.gamma(1.0, 1.0, (F, K)) @ RNG.gamma(1.0, 2.0, (K, N))).astype(float)
X[0] += 1.0
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
EXPOSURE = RNG.gamma(5.0, 0.2, N)
KNOWN = RNG.gamma(1.0, 1.0, (F, 1))
BACKGROUND = RNG.gamma(5.0, 0.1, (F, 1))
RUN = {"max_iter": 42, "tol": 0, "random_seed": 1, "quiet": True, "cores": 1}  # two windows, whose mean is the result


def gap(X, **more):
    return nz.gap(X, K, **{"alpha_h": [[1.1], [1.3], [0.8]], "beta_h": 0.7} | more)


def over(data, options, **more):
    return nz.fit(model=gap(None, shape=(F, 1), **more), data=data, engine=options, **RUN)


SETTINGS = {
    "dense": (lambda block: CutArray(X, block), {}, {}),
    "sparse": (lambda block: CutArray(sp.csc_array(X), block), {}, {}),
    "mask": (lambda block: CutSamples(X, block, mask=MASK), {}, {"mask": MASK}),
    "exposures": (lambda block: CutSamples(X, block, exposure=EXPOSURE), {}, {"exposure": EXPOSURE[None]}),
    "background": (lambda block: CutArray(X, block), {"background": BACKGROUND}, {}),
    "background of samples": (
        lambda block: CutSamples(X, block, background=BACKGROUND * EXPOSURE),
        {},
        {"background": BACKGROUND * EXPOSURE},
    ),
    "known component": (lambda block: CutArray(X, block), {"known": KNOWN}, {}),
}
OPTIONS = {
    "dense": {"rao_blackwell": False},
    "sparse": {"step": 0.7, "explore": 10},
    "mask": {"complete": "H"},
    "exposures": {"average": False},
}


@pytest.mark.parametrize("block", [N, 17])
@pytest.mark.parametrize("name", SETTINGS)
def test_however_samples_are_cut_the_draws_are_those_in_memory(name, block):
    data, of_both, of_memory = SETTINGS[name]
    options = {"complete": "CH", **OPTIONS.get(name, {})}
    found = over(data(block), nz.MCEM(**options), **of_both)
    model = gap(sp.csc_array(X) if name == "sparse" else X, **of_both, **of_memory)
    expected = nz.fit(model=model, engine=nz.MCEM(**options, exact=False), **RUN)
    for variable in ("W", "H"):
        np.testing.assert_allclose(found.posterior[variable], expected.posterior[variable], rtol=1e-10)
    of_found, of_expected = group(found, "fit"), group(expected, "fit")
    assert set(of_found) == set(of_expected) - {"divergence"}
    for variable in ("objective", "objective_error", "norms", "residual"):
        np.testing.assert_allclose(of_found[variable], of_expected[variable], rtol=1e-8, err_msg=variable)
    np.testing.assert_array_equal(of_found["pruned"], of_expected["pruned"])


@pytest.mark.parametrize("start", ["given", "deterministic"])
def test_it_begins_where_mcem_does(start):
    """From equal shares in one block: rounding decides which of two equal components has the larger part of a count."""
    initvals = {"W": RNG.gamma(1.0, 1.0, (F, K))} if start == "given" else None
    block, start = (17, "random") if start == "given" else (N, start)
    options, run = nz.MCEM(complete="CH", exact=False, start=start), {**RUN, "initvals": initvals, "max_iter": 1}
    found = nz.fit(model=gap(None, shape=(F, 1)), data=CutArray(X, block), engine=options, **run)
    expected = nz.fit(model=gap(X), engine=options, **run)
    np.testing.assert_allclose(found.posterior["W"], expected.posterior["W"], rtol=1e-10)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    model, options = gap(None, shape=(F, 1)), nz.MCEM(step=0.7, explore=3)
    run, steps = {"model": model, "data": CutArray(X, 17), "engine": options, **RUN, "max_iter": 25}, []
    nz.fit(checkpoint=tmp_path / "run", on_step=lambda step: step.number == 7, **run)
    found = nz.fit(checkpoint=tmp_path / "run", on_step=lambda step: steps.append(step.number), **run)
    expected = nz.fit(**run)
    assert steps[0] == 8
    for name in ("posterior", "fit"):
        for variable, array in group(expected, name).data_vars.items():
            np.testing.assert_array_equal(group(found, name)[variable], array, err_msg=variable)


REFUSED = {
    "C": (lambda: over(CutArray(X, 17), nz.MCEM(complete="C")), 'use complete="CH"'),
    "exact": (lambda: over(CutArray(X, 17), nz.MCEM(exact=True)), "exact=True holds all of X"),
    "free shape": (
        lambda: over(CutArray(X, 17), nz.MCEM(), alpha_h=nz.free()),
        "over blocks of samples they are known",
    ),
    "measured": (lambda: over(CutArray(X + 0.5, 17), nz.MCEM()), "counts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, expected = REFUSED[name]
    with pytest.raises(UnsupportedModel) as error:
        call()
    assert expected in str(error.value)
