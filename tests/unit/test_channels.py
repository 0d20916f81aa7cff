"""The 96 channels: every usual spelling is one channel; catalogues and pictures go by them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo.results.channels import SBS96, as_channel, as_channels, order_of_channels
from tests.results import idata_of

RNG = np.random.default_rng(1)
OTHER = [f"{name[0]}{name[2]}{name[6]}>{name[0]}{name[4]}{name[6]}" for name in SBS96]


def test_there_are_96_in_the_field_s_order():
    assert len(set(SBS96)) == 96
    some = [SBS96[at] for at in (0, 1, 4, 16, 95)]
    assert some == ["A[C>A]A", "A[C>A]C", "C[C>A]A", "A[C>G]A", "T[T>G]T"]


@pytest.mark.parametrize(
    "spelling", ["T[C>G]A", "TCA>TGA", "TCA>G", "C>G TCA", "C>G:TCA", "C>G_T.A", "C>G,T-A", " t[c>g]a "]
)
def test_spellings(spelling):
    assert as_channel(spelling) == "T[C>G]A"


@pytest.mark.parametrize("label", ["A[C>C]A", "A[G>T]A", "ACA>CAA", "ACA", "", 7, "A[C>A]AA", "N[C>A]A"])
def test_what_is_no_channel(label):
    assert as_channel(label) is None
    assert as_channels([*SBS96[:95], label]) is None


def result(labels):
    """A component of each of two profiles, under labels for rows in a random order."""
    order = RNG.permutation(96)
    profiles = RNG.gamma(0.3, 1.0, (96, 2)) + 1e-3
    model = nz.gamma_nmf(np.ones((96, 3), int), 2, coords={"feature": [labels[i] for i in order]})
    return profiles, idata_of(model, W=profiles[order][None, None], H=np.ones((1, 1, 2, 3)) * [[[[2.0], [1.0]]]])


@pytest.mark.parametrize("has_type", [False, True])
@pytest.mark.parametrize("labels", [SBS96, OTHER])
def test_a_catalogue_is_matched_by_channel(labels, has_type):
    """As a file of COSMIC's layout is read: rows named by the column "Type", or by an index, in another spelling."""
    profiles, idata = result(labels)
    shuffled = RNG.permutation(96)
    catalogue = pd.DataFrame(profiles[shuffled], columns=["SBS1", "SBS2"], index=[SBS96[i] for i in shuffled])
    catalogue = catalogue.rename_axis("Type").reset_index() if has_type else catalogue
    found = nz.match(idata, catalogue).table
    assert sorted(found["entry"]) == ["SBS1", "SBS2"]
    np.testing.assert_allclose(found["cosine"], 1.0)


def test_pictures_are_in_the_field_s_order_and_colours():
    profiles, idata = result(OTHER)
    axes = nz.plot_components(idata, layout="sbs96").axes
    heights = np.array([[bar.get_height() for bar in one.patches] for one in axes])
    shares = (profiles / profiles.sum(axis=0)).T
    np.testing.assert_allclose(sorted(heights.tolist()), sorted(shares.tolist()))
    colours = [bar.get_facecolor() for bar in axes[0].patches]
    assert [len(set(colours[at : at + 16])) for at in range(0, 96, 16)] == [1] * 6
    assert len(set(colours)) == 6
    assert [text.get_text() for text in axes[0].texts] == ["C>A", "C>G", "C>T", "T>A", "T>C", "T>G"]
    assert order_of_channels(SBS96[:95]) is None
    few = idata_of(nz.gamma_nmf(np.ones((2, 3), int), 1), W=np.ones((1, 1, 2, 1)), H=np.ones((1, 1, 1, 3)))
    with pytest.raises(nz.InputError, match="layout: got 'sbs96' with 2 features, such as '0'; expected the 96"):
        nz.plot_components(few, layout="sbs96")
    with pytest.raises(nz.InputError, match="layout: got 'id83'"):
        nz.plot_components(idata, layout="id83")
