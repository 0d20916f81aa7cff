"""The package's public names: each can be had, and none is hidden by a module of the same name."""

from __future__ import annotations

import pkgutil

import pytest

import nmf_zoo as nz


@pytest.mark.parametrize("name", nz.__all__)
def test_every_public_name_is_there(name):
    assert getattr(nz, name) is not None


def test_no_module_is_named_like_a_public_name():
    """Importing ``nmf_zoo.thing`` would put the module in the place of ``nz.thing``."""
    modules = {module.name for module in pkgutil.iter_modules(nz.__path__)}
    assert not modules & set(nz.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'gama_nmf'"):
        nz.gama_nmf  # noqa: B018
