"""Channels of mutations: every usual spelling is one channel; catalogues and pictures go by them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo.results.channels import CHANNELS, DBS78, ID83, SBS96, channels_of, same_words
from tests.results import idata_of

RNG = np.random.default_rng(1)
OTHER = [f"{name[0]}{name[2]}{name[6]}>{name[0]}{name[4]}{name[6]}" for name in SBS96.names]


@pytest.mark.parametrize(
    ("table", "n", "some"),
    [
        (SBS96, 96, {0: "A[C>A]A", 1: "A[C>A]C", 4: "C[C>A]A", 16: "A[C>G]A", 95: "T[T>G]T"}),
        (DBS78, 78, {0: "AC>CA", 8: "AC>TT", 9: "AT>CA", 15: "CC>AA", 77: "TT>GG"}),
        (
            ID83,
            83,
            {0: "1:Del:C:0", 11: "1:Del:T:5", 24: "2:Del:R:0", 48: "2:Ins:R:0", 72: "2:Del:M:1"},
        ),
    ],
    ids=list(CHANNELS),
)
def test_channels_in_the_field_s_order(table, n, some):
    assert len(set(table.names)) == len(table.names) == len(table.ticks) == n
    assert {at: table.names[at] for at in some} == some
    assert [table.channel(name) for name in table.names] == list(table.names)
    assert all(table.channel(example) == table.names[0] for example in table.examples)
    shuffled = np.random.default_rng(0).permutation(n)
    labels = [table.names[i] for i in shuffled]
    assert channels_of(labels) is table
    assert [labels[i] for i in table.order(labels)] == list(table.names)
    assert table.order(labels[1:]) is None


def test_doublets_and_indels_add_up():
    """A doublet changes both of its bases; no doublet is another's on the other strand."""
    turned = str.maketrans("ACGT", "TGCA")
    for name in DBS78.names:
        old, new = name.split(">")
        assert all(a != b for a, b in zip(old, new, strict=True))
        other = ">".join(pair.translate(turned)[::-1] for pair in (old, new))
        assert other == name or other not in DBS78.names
    sizes = [len(group.channels) for group in ID83.groups]
    assert sizes == [6] * 12 + [1, 2, 3, 5]
    assert [len(group.channels) for group in DBS78.groups] == [9, 6, 9, 6, 9, 6, 6, 9, 9, 9]


@pytest.mark.parametrize(
    "spelling", ["T[C>G]A", "TCA>TGA", "TCA>G", "C>G TCA", "C>G:TCA", "C>G_T.A", "C>G,T-A", "CG T.A", " t[c>g]a "]
)
def test_spellings(spelling):
    assert SBS96.channel(spelling) == "T[C>G]A"


@pytest.mark.parametrize(
    ("spelling", "channel"),
    [("ACCA", "AC>CA"), ("ac>ca", "AC>CA"), ("AC_CA", "AC>CA"), ("AC:CA", "AC>CA"), ("GT>TG", None), ("AC>AA", None)],
)
def test_spellings_of_doublets(spelling, channel):
    assert DBS78.channel(spelling) == channel


@pytest.mark.parametrize(
    ("spelling", "channel"),
    [
        ("1:Del:C:5", "1:Del:C:5"),
        ("1:Del:C:5+", "1:Del:C:5"),
        ("DEL_C_1_5+", "1:Del:C:5"),
        ("INS:T:1:0", "1:Ins:T:0"),
        ("DEL_repeats_5+_0", "5:Del:R:0"),
        ("INS_repeats_2_3", "2:Ins:R:3"),
        ("DEL_MH_5+_5+", "5:Del:M:5"),
        ("DEL:MH:3:2", "3:Del:M:2"),
        ("2:Del:M:2", None),
        ("1:Del:A:0", None),
        ("INS_MH_2_1", None),
    ],
)
def test_spellings_of_indels(spelling, channel):
    assert ID83.channel(spelling) == channel


@pytest.mark.parametrize(
    "label", ["A[C>C]A", "A[G>T]A", "ACA>CAA", "ACA", "", 7, "A[C>A]AA", "N[C>A]A", "C>A ATA", "CAA.A"]
)
def test_what_is_no_channel(label):
    assert SBS96.channel(label) is None
    assert SBS96.channels([*SBS96.names[:95], label]) is None


def result(labels):
    """A component of each of two profiles, under labels for rows in a random order."""
    order = RNG.permutation(96)
    profiles = RNG.gamma(0.3, 1.0, (96, 2)) + 1e-3
    model = nz.gamma_nmf(np.ones((96, 3), int), 2, coords={"feature": [labels[i] for i in order]})
    return profiles, idata_of(model, W=profiles[order][None, None], H=np.ones((1, 1, 2, 3)) * [[[[2.0], [1.0]]]])


@pytest.mark.parametrize("has_type", [False, True])
@pytest.mark.parametrize("labels", [SBS96.names, OTHER])
def test_a_catalogue_is_matched_by_channel(labels, has_type):
    """As a file of COSMIC's layout is read: rows named by the column "Type", or by an index, in another spelling."""
    profiles, idata = result(labels)
    shuffled = RNG.permutation(96)
    catalogue = pd.DataFrame(profiles[shuffled], columns=["SBS1", "SBS2"], index=[SBS96.names[i] for i in shuffled])
    catalogue = catalogue.rename_axis("Type").reset_index() if has_type else catalogue
    found = nz.match(idata, catalogue).table
    assert sorted(found["entry"]) == ["SBS1", "SBS2"]
    np.testing.assert_allclose(found["cosine"], 1.0)


@pytest.mark.parametrize("layout", ["auto", "sbs96"])
def test_pictures_are_in_the_field_s_order_and_colours(layout):
    profiles, idata = result(OTHER)
    axes = nz.plot_components(idata, layout=layout).axes
    heights = np.array([[bar.get_height() for bar in one.patches] for one in axes])
    shares = (profiles / profiles.sum(axis=0)).T
    np.testing.assert_allclose(sorted(heights.tolist()), sorted(shares.tolist()))
    colours = [bar.get_facecolor() for bar in axes[0].patches]
    assert [len(set(colours[at : at + 16])) for at in range(0, 96, 16)] == [1] * 6
    assert len(set(colours)) == 6
    assert [text.get_text() for text in axes[0].texts] == ["C>A", "C>G", "C>T", "T>A", "T>C", "T>G"]
    few = idata_of(nz.gamma_nmf(np.ones((2, 3), int), 1), W=np.ones((1, 1, 2, 1)), H=np.ones((1, 1, 1, 3)))
    with pytest.raises(nz.InputError, match="layout: got 'sbs96' with 2 features, such as '0'; expected the 96"):
        nz.plot_components(few, layout="sbs96")
    with pytest.raises(nz.InputError, match=r"layout: got 'id38'; expected one of .*did you mean 'id83'"):
        nz.plot_components(idata, layout="id38")


def of_table(table):
    """A result on a table of channels in another order, and the shares by channel."""
    n = len(table.names)
    W, order = RNG.dirichlet(np.full(n, 0.3), 2).T, RNG.permutation(n)
    model = nz.gamma_nmf(np.ones((n, 3), int), 2, coords={"feature": [table.names[i] for i in order]})
    return W, idata_of(model, W=W[order][None, None], H=np.ones((1, 1, 2, 3)) * [[[[2.0], [1.0]]]])


@pytest.mark.parametrize("table", [DBS78, ID83], ids=["dbs78", "id83"])
def test_pictures_of_other_tables(table):
    W, idata = of_table(table)
    axes = nz.plot_components(idata).axes
    for row, own in zip(axes, W.T, strict=True):
        np.testing.assert_allclose([bar.get_height() for bar in row.patches], own)
    assert [label.get_text() for label in axes[-1].get_xticklabels()] == list(table.ticks)
    names = [group.name for group in table.groups]
    over = list(dict.fromkeys(group.over for group in table.groups if group.over))
    assert sorted(text.get_text() for text in axes[0].texts) == sorted(names + over)
    as_they_come = nz.plot_components(idata, layout=None).axes[0].patches
    assert len({bar.get_facecolor() for bar in as_they_come}) == 1


# -- by meaning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [SBS96, DBS78, ID83], ids=list(CHANNELS))
@pytest.mark.parametrize("as_file", [False, True])
def test_known_components_go_by_channel(table, as_file):
    """A catalogue in another spelling and order than the data's is what it means; as COSMIC lays it out, too."""
    n, rng = len(table.names), np.random.default_rng(2)
    other = {"sbs96": OTHER, "dbs78": [name.replace(">", "") for name in table.names], "id83": None}[table.name]
    if other is None:
        units = {"R": "repeats", "M": "MH"}
        parts = [name.split(":") for name in table.names]
        other = [f"{kind.upper()}_{units.get(unit, unit)}_{size}_{times}" for size, kind, unit, times in parts]
    W, order = rng.dirichlet(np.full(n, 0.2), 2).T, rng.permutation(n)
    X = pd.DataFrame(1 + rng.poisson(500 * W @ np.ones((2, 4))), index=table.names)
    catalogue = pd.DataFrame(W[order], index=[other[i] for i in order], columns=["a", "b"])
    catalogue = catalogue.rename_axis("Type").reset_index() if as_file else catalogue
    np.testing.assert_array_equal(nz.gamma_nmf(X, 2, known=catalogue)["W"].eval(), W)
    beside = nz.gamma_nmf(X, 3, known=catalogue)
    np.testing.assert_array_equal(beside["W_known"].eval(), W)
    with pytest.raises(nz.InputError, match=rf"known: got {n} rows; expected {n - 3}"):
        nz.gamma_nmf(X.iloc[3:], 3, known=catalogue)


def test_labels_of_other_meaning_are_refused():
    X = pd.DataFrame(np.ones((96, 3), int), index=SBS96.names)
    wrong = pd.DataFrame(np.ones((96, 1)), index=[f"row {i}" for i in range(96)])
    with pytest.raises(nz.InputError, match="known: got labels of 'feature' that differ from X's"):
        nz.gamma_nmf(X, 1, known=wrong)
    assert same_words(SBS96.names, wrong.index) is None
    assert same_words(SBS96.names, DBS78.names) is None


def test_channels_in_the_columns_are_worth_a_word():
    table = pd.DataFrame(RNG.poisson(3.0, (5, 96)), columns=OTHER)
    with pytest.warns(nz.NmfZooWarning, match="X: the columns are channels of mutations, .*: transpose it"):
        nz.gamma_nmf(table, 2)
    nz.gamma_nmf(table.T, 2)
