"""Every public options object, every field, every kind of bad value: it is taken, or refused by an `InputError`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import nmf_zoo as nz

CLASSES = [own for own in (getattr(nz, name) for name in nz.__all__) if isinstance(own, type) and is_dataclass(own)]
OPTIONS = [own for own in CLASSES if all(field.default is not field.default_factory for field in fields(own))]
NEVER = {  # what no annotation allows
    "not a word of ours": "nonsense",
    "an object": object(),
    "an array": np.array([1, 2]),
    "a dict": {"a": 1},
    "NaN": float("nan"),
    "a huge integer": 10**30,
}
SOMETIMES = {
    "nothing": None,
    "infinity": float("inf"),
    "negative": -1,
    "a list": [],
    "a tuple": (1, 2, 3),
    "a bool": True,
    "a fraction": 1.5,
}
CASES = [(own, field.name) for own in OPTIONS for field in fields(own) if field.type != "Any"]


def test_the_options_are_found():
    assert {nz.Gibbs, nz.EM, nz.VB, nz.MCEM, nz.ParticleEM, nz.SMC, nz.Chib, nz.OnlineEM, nz.NUTS} <= set(OPTIONS)


@pytest.mark.parametrize(("own", "name"), CASES)
@pytest.mark.parametrize("value", NEVER.values(), ids=NEVER)
def test_bad_values_are_refused(own, name, value):
    with pytest.raises(nz.InputError) as caught:
        own(**{name: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("own", "name"), CASES)
@pytest.mark.parametrize("value", SOMETIMES.values(), ids=SOMETIMES)
def test_other_values_are_taken_or_refused(own, name, value):
    try:
        own(**{name: value})
    except nz.InputError as error:
        assert name in str(error)  # noqa: PT017
