"""An engine from outside the package runs as ours do, and takes nobody's place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import em, gibbs
from nmf_zoo.inference.registry import verdict
from nmf_zoo.runtime.engine import Verdict

X = np.arange(12).reshape(3, 4)
RUN = {"random_seed": 1, "quiet": True, "model": nz.gamma_nmf(X, rank=2)}


@dataclass(frozen=True, kw_only=True)
class Own:
    """Options that no engine of the zoo has; of Gibbs's sweeps."""

    moves: tuple[str, ...] = ()
    trajectories: str = "never"


def own(**changed):
    return replace(gibbs.ENGINE, **{"name": "own", "options": Own, **changed})


def draws(engine, **run):
    return _compat.group(nz.sample(8, tune=2, chains=2, engine=engine, **RUN, **run), "posterior")["W"].to_numpy()


def test_it_runs_by_name_and_by_options():
    nz.register_engine(own())
    expected = draws(nz.Gibbs(moves=(), trajectories="never"))
    np.testing.assert_array_equal(draws("own"), expected)
    np.testing.assert_array_equal(draws(Own()), expected)
    assert np.any(draws(Own(moves=("scale",))) != expected)


def test_an_optimiser_too():
    nz.register_engine(own(verb="fit", step=em.ENGINE.step, finish=em.ENGINE.finish, prepare=em.ENGINE.prepare))
    with pytest.raises(nz.InputError, match=r"one of .*'gibbs'.* for sample\(\); use nz.fit\(engine='own'\)"):
        nz.sample(engine="own", **RUN)


def test_what_runs_engines_knows_it(tmp_path):
    nz.register_engine(own())
    table = nz.compare_engines(RUN["model"], ["gibbs", "own"], draws=20, tune=20, chains=2, random_seed=1).table
    assert list(table.index) == ["gibbs", "own"]
    found = nz.calibrate(
        lambda: nz.gamma_nmf(None, 1, shape=(2, 2)), "own", simulations=20, draws=5, tune=2, thin=1, progressbar=False
    )
    assert found.attrs["engine"] == "own"
    whole = draws("own")
    np.testing.assert_array_equal(draws("own", checkpoint=tmp_path / "run"), whole)
    np.testing.assert_array_equal(draws("own", checkpoint=tmp_path / "run"), whole)


def test_its_own_verdict_counts_and_others_name_it():
    nz.register_engine(own(supports=lambda structure, options: Verdict("" if structure.rank == 2 else "rank is not 2")))
    with pytest.raises(nz.UnsupportedModel, match="engine 'own' can't run this model: rank is not 2"):
        nz.sample(engine="own", model=nz.gamma_nmf(X, rank=1))
    with pytest.raises(nz.UnsupportedModel, match=r"nz.sample\(engine='own'\)"):
        nz.fit(engine="mcem", model=RUN["model"])
    assert verdict(nz.read(RUN["model"]), "own")


def test_a_second_one_of_its_name_replaces_the_first():
    nz.register_engine(own(verb="fit", finish=em.ENGINE.finish))
    nz.register_engine(own())
    assert draws("own").shape == (2, 8, 3, 2)
    assert [entry.verb for entry in registry.named("own")] == ["sample"]


@dataclass(frozen=True)
class OfGibbs(nz.Gibbs):
    """Would be taken for Gibbs."""


@dataclass(frozen=True)
class Incomplete:
    """Can't be made from the name alone."""

    rate: float


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "gibbs"}, r"engine.name: got 'gibbs'; expected none of \['em', .*'nuts'\]; choose another name"),
        ({"name": "nuts"}, "engine.name: got 'nuts'"),
        ({"options": nz.Gibbs}, "engine.options: got Gibbs; expected a class that is no other engine's, nor derived"),
        ({"options": OfGibbs}, "engine.options: got OfGibbs"),
        ({"options": Incomplete}, "engine.options: got Incomplete; expected a dataclass with a default for every"),
        ({"draw": None}, r"engine.draw: got None; expected a function: an engine for nz.sample\(\) has one"),
        ({"verb": "fit"}, "engine.finish: got None"),
    ],
)
def test_what_is_refused(changed, message):
    with pytest.raises(nz.InputError, match=message):
        nz.register_engine(own(**changed))
    assert not registry.named("own")
