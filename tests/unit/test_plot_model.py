"""The graph of a model as a picture of its own."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz

SVG = "{http://www.w3.org/2000/svg}"
X = np.arange(12).reshape(3, 4)


def drawn(model):
    """What the boxes say, and how many arrows there are."""
    root = ElementTree.fromstring(nz.plot_model(model).svg)
    return {text.text for text in root.iter(f"{SVG}text")}, len(list(root.iter(f"{SVG}line")))


def test_it_is_a_file_with_a_box_for_each_variable_and_an_arrow_for_each_dependence():
    with pm.Model() as model:
        nz.gamma_nmf(X, 2, mean_h=pm.Gamma("m", 2.0, 1.0), exposure=np.full((1, 4), 2.0))
    texts, arrows = drawn(model)
    assert {"m", "W", "H", "X", "exposure"} <= texts
    assert arrows == 4  # m to H, and W, H, exposure to X
    assert drawn(nz.gamma_nmf(X, 2))[1] == 2


def test_where_there_are_no_pictures_it_is_the_description():
    model = nz.gamma_nmf(X, 2)
    picture = nz.plot_model(model)
    assert repr(picture) == nz.describe(model)
    assert picture._repr_svg_() == picture.svg


def test_a_model_that_is_no_factorisation_is_refused():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=np.zeros(3))
    with pytest.raises(nz.UnreadableModel):
        nz.plot_model(model)
