"""The adapter to PyMC's drafted external samplers: its names, its draws, what it refuses."""

from __future__ import annotations

import inspect

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, UnsupportedModel

X = np.array([[5, 1, 0], [2, 4, 3]])
RUN = {"draws": 6, "tune": 4, "chains": 2, "cores": 1, "random_seed": 3, "progressbar": False, "quiet": True}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, rank=1)


def draws_of(idata):
    return _compat.group(idata, "posterior")["W"].to_numpy()


def test_every_argument_is_one_of_pymc():
    """Beside ``model``, which a ``pm.sample`` with the sampler as an argument would hand on."""
    ours = inspect.signature(nz.PyMCSampler.__call__).parameters
    theirs = inspect.signature(pm.sample).parameters
    assert set(ours) - {"self"} <= set(theirs)
    assert {"draws", "tune", "chains", "cores", "random_seed", "progressbar", "quiet", "initvals"} <= set(ours)


@pytest.mark.parametrize("name", ["__call__", "sample_from_init"])
def test_its_draws_are_those_of_sample(model, name):
    found = getattr(nz.PyMCSampler("gibbs"), name)(model, initvals=None, **RUN)
    expected = nz.sample(engine="gibbs", model=model, **RUN)
    assert isinstance(found, _compat.result_type())
    assert np.array_equal(draws_of(found), draws_of(expected))


def test_options_of_the_engine_count(model):
    plain = nz.PyMCSampler(nz.Gibbs(moves=()))(model, **RUN)
    assert not np.array_equal(draws_of(plain), draws_of(nz.PyMCSampler()(model, **RUN)))


def test_the_model_of_the_context_and_defaults_of_pymc(model):
    length = RUN | {"draws": None, "tune": None, "chains": None, "progressbar": "combined+stats"}
    with model:
        found = nz.PyMCSampler()(**length)
    assert dict(_compat.group(found, "posterior").sizes)["draw"] == 1000
    assert dict(_compat.group(found, "posterior").sizes)["chain"] == 4


def test_a_random_state_moves_on(model):
    state = np.random.RandomState(1)
    first, second = (draws_of(nz.PyMCSampler()(model, **RUN | {"random_seed": state})) for _ in range(2))
    again = draws_of(nz.PyMCSampler()(model, **RUN | {"random_seed": np.random.RandomState(1)}))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_starting_values_in_the_ways_of_pymc(model):
    start = {"W": np.full((2, 1), 3.0), model["H"]: np.full((1, 3), 0.5)}
    found = [
        draws_of(nz.PyMCSampler()(model, initvals=initvals, **RUN))
        for initvals in (start, [start, start], (start, None), [None, None], None)
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2][0], found[0][0])
    assert not np.array_equal(found[2][1], found[0][1])
    assert np.array_equal(found[3], found[4])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"initvals": {"W": "prior"}}, r"initvals\['W'\]: got 'prior'; expected numbers"),
        ({"initvals": "prior"}, "initvals: got 'prior'"),
        ({"initvals": {"w": np.ones((2, 1))}}, "did you mean 'W'"),
        ({"compile_kwargs": {"mode": "JAX"}}, "compile_kwargs: got .*JAX.*leave it out"),
        ({"keep_warning_stat": True}, "keep_warning_stat: got True"),
        ({"random_seed": "one"}, "random_seed: got 'one'"),
        ({"idata_kwargs": {"include_transformed": True}}, "idata_kwargs"),
    ],
)
def test_what_it_refuses(model, given, words):
    with pytest.raises(InputError, match=words):
        nz.PyMCSampler()(model, **RUN | given)


def test_engines_are_checked_at_once(model):
    with pytest.raises(InputError, match=r"use nz\.fit\(engine='vb'\)"):
        nz.PyMCSampler("vb")
    with pytest.raises(InputError, match="did you mean 'gibbs'"):
        nz.PyMCSampler("gibs")
    with pytest.raises(UnsupportedModel, match="engine 'gibbs' can't run this model"):
        nz.PyMCSampler()(nz.normal_nmf(X.astype(float), rank=1), **RUN)
