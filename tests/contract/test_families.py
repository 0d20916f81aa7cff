"""Every engine on every pair of priors and every likelihood: what its formulas are not for is refused by name."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.registry import require_support, resolve_engine, verdict
from nmf_zoo.workbench.rank import METHODS
from tests.registered import OF_CHAINS, OF_POWERS, OURS
from tests.structures import gamma, half_normal, inverse_gamma, model

X = np.arange(1.0, 22.0).reshape(3, 7)
SIDES = {
    "flat": lambda shape: None,
    "gamma": lambda shape: gamma(3.0, 1.0),
    "inverse gamma": lambda shape: inverse_gamma(3.0, 1.0),
    "half normal": lambda shape: half_normal(1.5),
    "known": np.ones,
}
FAMILIES = ("gamma", "inverse gamma", "half normal")
OF_POWERS_TAKEN, OF_COUNTS_TAKEN = FAMILIES[:2], ("gamma", "half normal")
TAKEN = {  # else gamma priors only
    "exponential": {"gibbs": ("inverse gamma",), "em": OF_POWERS_TAKEN, "vb": OF_POWERS_TAKEN},
    "poisson": {"gibbs": OF_COUNTS_TAKEN, "em": OF_COUNTS_TAKEN},
    "normal": dict.fromkeys(("em", "vb", "gibbs"), OF_COUNTS_TAKEN),
}
CASES = [*product(("poisson", "normal", "exponential"), SIDES, SIDES)]


def case(kind, of_w, of_h):
    likelihood = {"sigma": 1.0} if kind == "normal" else {}
    return model(X, 2, SIDES[of_w]((3, 2)), SIDES[of_h]((2, 7)), kind=kind, **likelihood)


def strange(kind, engine, of_w, of_h):
    """The factors that have a prior of a family that the engine has no formulas for."""
    taken = TAKEN.get(kind, {}).get(engine, ("gamma",))
    return [name for name, of in (("W", of_w), ("H", of_h)) if of in FAMILIES and of not in taken]


@pytest.mark.parametrize("engine", [name for name in OURS if name not in OF_CHAINS])
@pytest.mark.parametrize(("kind", "of_w", "of_h"), CASES)
def test_engines_take_what_they_have_formulas_for(kind, of_w, of_h, engine):
    structure = case(kind, of_w, of_h)
    found, refused = verdict(structure, engine), strange(kind, engine, of_w, of_h)
    assert "\n" not in found.reason
    if kind == "exponential" and engine not in OF_POWERS:
        assert not found
    if not refused:
        return
    assert not found, f"{engine} would run {kind} data with {of_w} W and {of_h} H"
    with pytest.raises(UnsupportedModel, match=r"engines that can|no engine can"):
        require_support(structure, *resolve_engine(engine, OURS[engine], structure))
    if kind == "poisson":
        said = {"inverse gamma": "an inverse-gamma", "half normal": "a half-normal"}
        words = [f"{name} has {said[{'W': of_w, 'H': of_h}[name]]} prior" for name in refused]
        assert any(word in found.reason for word in words), found.reason


@pytest.mark.parametrize(("kind", "of_w", "of_h"), CASES)
def test_nuts_runs_what_is_proper(kind, of_w, of_h):
    found = verdict(case(kind, of_w, of_h), "nuts")
    assert "\n" not in found.reason
    if of_w == of_h == "known":
        assert not found  # there is nothing to draw
        return
    flats = [of_w, of_h].count("flat")
    assert bool(found) if not flats else not found if flats == 2 else True
    if flats == 1:
        other = of_h if of_w == "flat" else of_w
        assert bool(found) or other in ("gamma", "half normal")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("kind", "of_w", "of_h"), CASES)
def test_evidence_is_of_counts_with_gamma_priors_and_of_smc_with_half_normal_ones(kind, of_w, of_h, method):
    found = verdict(case(kind, of_w, of_h), METHODS[method])
    assert "\n" not in found.reason
    strangers = {"inverse gamma"} if method == "smc" else {"inverse gamma", "half normal"}
    if method != "holdout" and (kind != "poisson" or strangers & {of_w, of_h}):
        assert not found


def test_nuts_is_named_where_it_alone_can():
    structure = case("poisson", "gamma", "inverse gamma")
    with pytest.raises(UnsupportedModel) as caught:
        require_support(structure, *resolve_engine("gibbs", "sample", structure))
    assert str(caught.value) == (
        "engine 'gibbs' can't run this model: H has an inverse-gamma prior, and its updates are for gamma or "
        "log-linear gamma or half-normal ones; engines that can: nz.sample(engine='nuts')"
    )
