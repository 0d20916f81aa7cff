"""A likelihood that nobody has heard of: every engine, stream and method refuses it in one line, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.registry import require_support, resolve_engine, verdict
from nmf_zoo.streaming.stream import _resolve as resolve_stream
from nmf_zoo.structure import Flat, GammaPrior, InverseGammaPrior, Likelihood
from nmf_zoo.workbench.evidence import METHODS as EVIDENCE
from nmf_zoo.workbench.rank import METHODS as RANK
from tests.registered import STREAMS, VERBS
from tests.structures import gamma, inverse_gamma, model

X = np.arange(1.0, 13.0).reshape(3, 4)
PRIORS = {"flat": lambda: None, "gamma": lambda: gamma(2.0, 1.0), "inverse gamma": lambda: inverse_gamma(3.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Unheard(Likelihood):
    family: ClassVar[str] = "unheard-of"

    def log_kernel(self, x, mean, values):
        return -np.abs(x - mean)

    def draw(self, mean, values, rng):
        return rng.laplace(mean)

    def sd(self, mean, values):
        return np.full(np.shape(mean), np.sqrt(2.0))


def unheard(of_w="gamma", of_h="gamma"):
    return replace(model(X, 2, PRIORS[of_w](), PRIORS[of_h]()), likelihood=Unheard())


@pytest.mark.parametrize("engine", VERBS)
@pytest.mark.parametrize("of_h", PRIORS)
@pytest.mark.parametrize("of_w", PRIORS)
def test_engines_refuse_it(of_w, of_h, engine):
    found = verdict(unheard(of_w, of_h), engine)
    assert "X is unheard-of" in found.reason or "chain" in found.reason
    with pytest.raises(UnsupportedModel, match="no engine can with its default options"):
        require_support(unheard(of_w, of_h), *resolve_engine(engine, VERBS[engine], unheard()))


def test_the_first_engine_of_a_name_is_the_one_that_refuses_it():
    assert resolve_engine("em", "fit", unheard()) == (em.ENGINE, nz.EM())


@pytest.mark.parametrize("of_h", PRIORS)
def test_streams_refuse_it(of_h):
    for engine in STREAMS:
        with pytest.raises(UnsupportedModel, match=r"X is unheard-of|chain"):
            resolve_stream(engine.options(), unheard("flat", of_h))


@pytest.mark.parametrize("method", EVIDENCE)
def test_evidence_refuses_it(method):
    found = registry.verdict(unheard(), EVIDENCE[method])
    taken = " or ".join(own.family for own in EVIDENCE[method].likelihoods)
    assert found.reason == f"X is unheard-of, and its updates are for {taken} data"


@pytest.mark.parametrize("method", RANK)
def test_ranks_are_not_chosen_by_it(method):
    assert not registry.verdict(unheard(), RANK[method])


def test_what_asks_the_likelihood_itself_works():
    structure = unheard()
    values = {"W": np.ones((3, 2)), "H": np.ones((2, 4))}
    expected = -np.sum(np.abs(X - 2.0)) + structure.W.log_density(np.ones((3, 2)), {})
    assert structure.log_joint(values) == pytest.approx(expected + structure.H.log_density(np.ones((2, 4)), {}))
    assert "X ~ Unheard(W @ H), rank 2" in nz.describe(structure)


class OddPrior:
    """A prior that nobody has heard of."""

    family: ClassVar[str] = "unheard-of"
    parameters: ClassVar[dict] = {}


@pytest.mark.parametrize("engine", [name for name in VERBS if name != "nuts"])
@pytest.mark.parametrize("kind", ["poisson", "normal", "exponential"])
@pytest.mark.parametrize("side", ["W", "H"])
def test_engines_refuse_priors_that_they_do_not_know(side, kind, engine):
    structure = model(X, 2, gamma(2.0, 1.0), gamma(2.0, 1.0), kind=kind)
    odd = replace(structure, **{side: replace(getattr(structure, side), prior=OddPrior())})
    assert not verdict(odd, engine)


# -- registration ----------------------------------------------------------------------------------------------------


class Somewhere:
    """Stands for a PyMC distribution."""


@dataclass(frozen=True, kw_only=True)
class Sloped(Unheard):
    def slopes(self, x, mean, values):
        return np.where(x > mean, 1.0, 0.0), np.where(x < mean, 1.0, 0.0)


def recognise(variable):
    return None


def test_once_registered_two_engines_run_it():
    nz.register_likelihood(Sloped, Somewhere, recognise, engines=("em", "nuts"))
    structure = replace(unheard(), likelihood=Sloped())
    assert [name for name in VERBS if verdict(structure, name)] == ["em", "nuts"]
    assert not verdict(unheard(), "em")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((Likelihood, Somewhere, recognise), "likelihood: got Likelihood; expected a class derived from"),
        ((dict, Somewhere, recognise), "likelihood: got dict"),
        ((Unheard, Somewhere, recognise, ("gibbs",)), r"engines: got .* expected a selection of \['em', 'nuts'\]"),
        ((Unheard, Somewhere, recognise, "em"), "in a tuple"),
        ((Unheard, Somewhere, recognise, ("em",)), "Unheard.slopes"),
    ],
)
def test_what_can_not_be_registered(arguments, says):
    with pytest.raises(InputError, match=says):
        nz.register_likelihood(*arguments)
    assert not any(Unheard in entry.likelihoods for entry in registry.REGISTRY)


def test_distributions_of_the_zoo_are_taken():
    import pymc as pm

    with pytest.raises(InputError, match=r"distribution: got Poisson; expected none of Poisson, Normal"):
        nz.register_likelihood(Unheard, pm.Poisson, recognise)


def test_priors_are_still_asked():
    nz.register_likelihood(Sloped, Somewhere, recognise, engines=("em", "nuts"))
    for of_w, prior in (("flat", Flat), ("gamma", GammaPrior), ("inverse gamma", InverseGammaPrior)):
        structure = replace(unheard(of_w), likelihood=Sloped())
        assert isinstance(structure.W.prior, prior)
        assert bool(verdict(structure, "em")) == (of_w != "inverse gamma")
        assert bool(verdict(structure, "nuts")) == (of_w != "flat")
