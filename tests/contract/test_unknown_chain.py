"""A chain that nobody has heard of: every engine, stream and method refuses it in one line, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference import registry
from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.inference.registry import require_support, resolve_engine, verdict
from nmf_zoo.streaming.stream import _resolve as resolve_stream
from nmf_zoo.structure import ChainPrior, Parameter
from nmf_zoo.workbench.evidence import METHODS as EVIDENCE
from nmf_zoo.workbench.rank import METHODS as RANK
from tests.registered import STREAMS, VERBS
from tests.structures import gamma, model, parameter, unknown

X = np.arange(1.0, 13.0).reshape(3, 4)
LEVELS = {"known": parameter(2.0), "unknown": unknown("level", "gamma", 2.0, 1.0)}
KINDS = ("poisson", "normal", "exponential")


@dataclass(frozen=True, kw_only=True)
class UnheardChainPrior(ChainPrior):
    family: ClassVar[str] = "unheard-of chain"
    distribution: ClassVar[str] = "UnheardChain"
    supports: ClassVar = {"level": (0.0, np.inf)}
    level: Parameter

    def log_density(self, factor, values):
        return -float(np.sum(np.abs(factor - self.level.resolve(values))))


def unheard(level="known", kind="poisson"):
    structure = model(X, 2, gamma(2.0, 1.0), gamma(2.0, 1.0), kind=kind)
    return replace(structure, H=replace(structure.H, prior=UnheardChainPrior(level=LEVELS[level])))


def check_refusal(found):
    words = ("H is an unheard-of chain", "H are a Markov chain", "and its updates are for")
    assert any(word in found.reason for word in words), found
    assert "\n" not in found.reason


@pytest.mark.parametrize("engine", VERBS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_engines_refuse_it(level, kind, engine):
    structure = unheard(level, kind)
    for entry in registry.named(engine):
        check_refusal(verdict(structure, entry))
    with pytest.raises(UnsupportedModel, match="no engine can with its default options"):
        require_support(structure, *resolve_engine(engine, VERBS[engine], structure))


@pytest.mark.parametrize("level", LEVELS)
def test_streams_refuse_it(level):
    for entry in STREAMS:
        check_refusal(verdict(unheard(level), entry))
        with pytest.raises(UnsupportedModel, match=r"unheard-of chain|Markov chain|its updates are for"):
            resolve_stream(entry.options(), unheard(level))


@pytest.mark.parametrize("methods", [EVIDENCE, RANK], ids=["evidence", "rank"])
def test_methods_refuse_it(methods):
    for method in methods.values():
        check_refusal(registry.verdict(unheard(), method))


def test_what_asks_the_chain_itself_works():
    structure, values = unheard(), {"W": np.ones((3, 2)), "H": np.ones((2, 4))}
    assert structure.H.log_density(values["H"], {}) == -8.0
    others = structure.log_likelihood(values["W"], values["H"], values) + structure.W.log_density(values["W"], {})
    assert structure.log_joint(values) == pytest.approx(others - 8.0)


def test_there_are_no_formulas_for_it():
    with pytest.raises(UnsupportedModel, match="unheard-of chain, and its updates are for binary chains or"):
        formulas_of(unheard().H.prior)


def test_it_is_described():
    assert "UnheardChain(level=2)" in nz.describe(unheard())
