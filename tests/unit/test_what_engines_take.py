"""Models that no engine takes: without data, or in units that arithmetic can't square; the line says what to do."""

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.registry import verdict
from tests.registered import STARTS, VERBS

DECLARATIONS = {
    one.__name__: one for one in (nz.poisson_nmf, nz.gamma_nmf, nz.gap, nz.is_nmf, nz.normal_nmf, nz.hmm_nmf)
}


@pytest.mark.parametrize("declare", DECLARATIONS)
def test_a_model_without_data_says_how_to_give_them(declare):
    model = DECLARATIONS[declare](None, 2, shape=(3, 4))
    for engine, verb in VERBS.items():
        run = nz.fit if verb == "fit" else nz.sample
        with pytest.raises(UnsupportedModel) as refusal:
            run(engine=engine, model=model, quiet=True)
        message = (
            f"engine {engine!r} can't run this model: nothing is observed in X: declare the model with data instead"
        )
        assert str(refusal.value).startswith(message)
        assert "no engine can" not in str(refusal.value)
    with pytest.raises(UnsupportedModel, match="nothing is observed in X: declare"):
        nz.compare_engines(model, ["gibbs", "vb"])


def test_the_data_can_be_given_as_the_refusal_says():
    model = pm.observe(nz.gamma_nmf(None, 2, shape=(3, 4)), {"X": np.ones((3, 4), dtype=int)})
    assert verdict(nz.read(model), "gibbs")


EXTREME = {
    "sigma too small": ({"sigma": 1e-300}, 1.0, "sigma is 1e-300, and EM takes 1e-120 to 1e.120: change its unit"),
    "sigma too large": ({"sigma": 1e300}, 1.0, "sigma is 1e.300"),
    "sigma beside zeros": ({"sigma": 1e-300}, 0.0, "sigma is 1e-300"),
    "sigma beside X": ({"sigma": 1e-70}, 1e70, "the largest X over sigma is 1e.140"),
    "exposure": ({"sigma": 1.0, "exposure": np.full((1, 4), 1e300)}, 1.0, "an exposure is 1e.300"),
    "X over its exposure": ({"sigma": 1.0, "exposure": np.full((1, 4), 1e-70)}, 1e70, "an exposure of 1e-70 is 1e.140"),
    "X": ({"sigma": 1.0}, 1e-200, "the largest X is 1e-200"),
    "known W": ({"sigma": 1.0, "known": np.full((3, 1), 1e308)}, 1.0, "the sum of known components of W is inf"),
}


@pytest.mark.filterwarnings("ignore::nmf_zoo.errors.NmfZooWarning")
@pytest.mark.parametrize("case", EXTREME)
def test_units_that_arithmetic_cannot_take(case):
    arguments, size, message = EXTREME[case]
    table = np.full((3, 4), size)
    table[0, 0] = size or 1.0
    with pytest.raises(UnsupportedModel, match=message):
        nz.fit(engine="em", model=nz.normal_nmf(table, 2, **arguments), quiet=True)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("size", [1e-100, 1e-70, 1e70, 1e100])
@pytest.mark.parametrize("declare", [nz.poisson_nmf, nz.normal_nmf])
def test_starts_take_data_of_any_unit(declare, size, start):
    x = size * (np.arange(12.0).reshape(3, 4) + 0.5)
    x[0, 0] = 0.5 if size > 1 else x[0, 0]  # whole numbers would be counts
    idata = nz.fit(engine=nz.EM(start=start), model=declare(x, 1), random_seed=1, max_iter=200, quiet=True)
    product = idata.posterior["W"].to_numpy()[0, 0] @ idata.posterior["H"].to_numpy()[0, 0]
    np.testing.assert_allclose(product.sum(), x.sum(), rtol=0.1)


def test_a_model_given_first():
    """``pm.sample``'s first argument is the number of draws; a fit has no number to begin with."""
    model = nz.gamma_nmf([[3, 0, 1], [0, 2, 5]], 1)
    with pytest.raises(InputError, match=r"^draws: got a pm.Model; expected an integer >= 1; .*nz.sample\(model=m\)$"):
        nz.sample(model)
    found = nz.fit(model, engine="em", max_iter=3, tol=0, random_seed=1, quiet=True, search=None)
    assert found.posterior["W"].dims == ("chain", "draw", "feature", "component")
