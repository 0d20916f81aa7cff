"""Components beside a catalogue."""

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from tests.results import idata_of

F, N = 8, 5
RNG = np.random.default_rng(5)
FEATURES = [f"f{i}" for i in range(F)]
PROFILES = RNG.dirichlet(np.full(F, 0.4), 3).T
ENTRIES = pd.DataFrame(
    np.c_[PROFILES[:, [2, 0]], RNG.dirichlet(np.full(F, 0.4), 2).T], FEATURES, ["two", "zero", "a", "b"]
)


@pytest.fixture(scope="module")
def idata():
    """Draws around three profiles, the components of the second chain in another order."""
    table = pd.DataFrame(np.ones((F, N), dtype=int), index=FEATURES)
    model = nz.gamma_nmf(table, 3)
    H = RNG.gamma(5.0, 1.0, (3, N)) * np.array([[30.0], [3.0], [10.0]])
    orders = [[0, 1, 2], [2, 0, 1]]
    W = np.stack([[PROFILES[:, order] * RNG.gamma(400, 1 / 400, (F, 3)) for _ in range(20)] for order in orders])
    return idata_of(model, W=W, H=np.stack([np.broadcast_to(H[order], (20, 3, N)) for order in orders]))


def test_components_find_their_entries(idata):
    found = nz.match(idata, ENTRIES.iloc[::-1])  # features by their labels
    table = found.table
    largest = {0: "zero", 1: "two"}  # aligned components are in falling order of what they add
    for component, entry in largest.items():
        row = table.loc[component]
        assert row["entry"] == entry
        assert row["low"] <= row["cosine"] <= row["high"]
        assert row["cosine"] > 0.99
        assert not row["is_new"]
        assert row["mixture"].startswith(("1.00", "0.9"))
    assert found.cosines.sizes == {"component": 3, "entry": 4}
    unit = PROFILES[:, 0] / np.linalg.norm(PROFILES[:, 0])
    theirs = ENTRIES["a"] / np.linalg.norm(ENTRIES["a"])
    np.testing.assert_allclose(found.cosines.sel(component=0, entry="a"), unit @ theirs, atol=0.02)


def test_a_component_of_no_entry_is_new_and_a_sum_is_told(idata):
    others = pd.DataFrame({"flat": np.ones(F), "sum": PROFILES[:, 1]}, index=FEATURES)
    table = nz.match(idata, others).table
    assert table.loc[2, "entry"] == "sum"
    assert set(table["entry"]) == {"flat", "sum", ""}
    assert table["is_new"].any()
    parts = pd.DataFrame({"half": PROFILES[:, 0], "b": PROFILES[:, 1]})
    assert "half" in nz.match(idata, parts).table.loc[0, "mixture"]


def test_a_mixture_has_its_shares_and_its_error_over_draws():
    """Half and half of two entries, with a tenth on a feature of neither: shares, and the tenth, within intervals."""
    a, b = np.eye(F)[:3].sum(axis=0) / 3, np.eye(F)[3:6].sum(axis=0) / 3
    profile = 0.45 * a + 0.45 * b + 0.1 * np.eye(F)[7]
    table = pd.DataFrame(np.ones((F, N), dtype=int), index=FEATURES)
    W = (profile * RNG.gamma(200, 1 / 200, (1, 100, F)))[..., None]
    draws = idata_of(nz.gamma_nmf(table, 1), W=W, H=np.ones((1, 100, 1, N)))
    found = nz.match(draws, pd.DataFrame({"a": a, "b": b}, FEATURES))
    row = found.table.loc[0]
    assert row["error_low"] < row["mixture_error"] < row["error_high"]
    assert abs(row["mixture_error"] - 0.1) < 0.05
    own = [nz.match(draws.isel(draw=[i]), pd.DataFrame({"a": a, "b": b}, FEATURES)).table.loc[0] for i in (0, 50)]
    profiles = [W[0, i, :, 0] / W[0, i].sum() for i in (0, 50)]
    for one, values in zip(own, profiles, strict=True):  # of a single draw the interval is a point
        part = values[:6].reshape(2, 3).sum(axis=1)
        share = part / part.sum()
        missed = 0.5 * np.abs(values - share[0] * a - share[1] * b).sum()
        np.testing.assert_allclose([one["error_low"], one["error_high"]], missed)
    shares = found.mixtures.loc[0]
    assert np.all((shares["low"] < 0.5) & (shares["high"] > 0.5))
    np.testing.assert_allclose(shares["share"].sum(), 1.0)


@pytest.mark.parametrize(
    ("catalogue", "said"),
    [
        (ENTRIES.iloc[1:], "catalogue: got 7 rows with other labels"),
        (ENTRIES.iloc[::-1].rename({"f3": "F 3"}), "catalogue: got 8 rows with other labels"),
        (-ENTRIES, "catalogue: got entries that are not finite numbers"),
        (np.ones((F - 1, 2)), "catalogue: got 7 rows; expected the 8 features"),
        (ENTRIES.astype(str), "catalogue: got entries that are not"),
    ],
)
def test_bad_catalogues_are_refused(idata, catalogue, said):
    with pytest.raises(InputError, match=said):
        nz.match(idata, catalogue)


def test_an_earlier_result_is_a_catalogue(idata):
    found = nz.match(idata, idata).table
    assert found["entry"].to_list() == found.index.to_list()
    assert found["cosine"].min() > 0.99


def test_the_picture_frames_the_assignment(idata):
    found = nz.match(idata, ENTRIES)
    figure = nz.plot_match(found)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(ENTRIES.columns)
    assert len(axes.lines) == 3
    with pytest.raises(InputError, match=r"found: got dict; expected the result of nz\.match"):
        nz.plot_match({})
