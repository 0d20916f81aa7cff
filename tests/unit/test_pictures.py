"""Pictures on five kinds of data: what they are made of, and that no words lie over each other or are cut off."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.plots.groups import read_groups
from nmf_zoo.results.channels import SBS96
from tests.pictures import collisions, cut_off

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
PATIENTS = [f"patient {number}" for number in range(20)]
HOW = {"random_seed": 1, "quiet": True, "search": None, "max_iter": 15, "tol": 0}


def counts(n_features, rank, n_samples, depth=300.0):
    W = RNG.dirichlet(np.full(n_features, 0.2), rank).T
    return 1 + RNG.poisson(W @ (depth * RNG.gamma(0.5, 1.0, (rank, n_samples))))


def table(values, index, columns):
    return pd.DataFrame(values, index=index, columns=columns)


WORDS = [f"a word of many letters {i}" if i % 9 == 0 else f"word {i}" for i in range(300)]
POWERS = RNG.exponential(np.linspace(1, 9, 129)[:, None] * RNG.gamma(1.0, 1.0, 150))
MODELS = {
    "signatures": lambda: nz.gamma_nmf(table(counts(96, 4, 21), SBS96.names, [f"PD{4100 + i}a" for i in range(21)]), 4),
    "texts": lambda: nz.gamma_nmf(table(counts(300, 7, 150), WORDS, [f"text {i}" for i in range(150)]), 7),
    "images": lambda: nz.gamma_nmf(counts(64, 5, 100), 5),
    "sound": lambda: nz.is_nmf(table(POWERS, np.linspace(0, 8e3, 129), 0.032 * np.arange(150)), 3),
    "series": lambda: nz.gamma_nmf(
        table(counts(12, 3, 90), [f"species {i}" for i in range(12)], pd.date_range("2020-01", periods=90, freq="MS")),
        3,
    ),
}


# Where words stand is matplotlib's business: the first PyMC line looks at all five.
@pytest.fixture(scope="module", params=list(MODELS))
def case(request):
    model = MODELS[request.param]()
    return request.param, model, nz.fit(model, engine="vb", **HOW)


def check_words(figure):
    assert collisions(figure) == []
    assert cut_off(figure) == []


@pytest.mark.engines
def test_words_stay_apart(case):
    kind, model, found = case
    shape = (8, 8) if kind == "images" else None
    check_words(nz.plot_components(found, shape=shape))
    for scale in ("linear", "log"):
        check_words(nz.plot_activations(found, scale=scale))
    check_words(nz.plot_reconstruction(found, model, shape=shape, n_draws=5))
    if kind == "series":  # in which no names of the data are
        check_words(nz.plot_objective(found))
        check_words(nz.plot_trace(found))


@pytest.mark.engines
def test_groups_of_samples(case):
    _, _, found = case
    n = _compat.group(found, "posterior").sizes["obs"]
    groups = [("first", "second and longer")[i % 2] for i in range(n)]
    for order in ("given", "size"):
        figure = nz.plot_activations(found, sample_groups=groups, order=order)
        check_words(figure)
        assert [text.get_text() for text in figure.axes[0].texts] == ["first", "second and longer"]
        segments = figure.axes[0].collections[0]
        assert len(np.unique(segments.get_color(), axis=0)) == 2
        means = figure.axes[0].lines[0].get_ydata()
        half = -(-n // 2)
        if order == "size":
            assert all(np.all(np.diff(part) <= 0) for part in (means[:half], means[half:]))


@pytest.mark.engines
def test_groups_of_features(case):
    kind, _, found = case
    labels = _compat.group(found, "posterior")["feature"].to_numpy()
    groups = pd.Series([("rare", "common", "in every one")[i % 3] for i in range(len(labels))], index=labels)
    if kind == "images":
        with pytest.raises(InputError, match=r"feature_groups: got groups beside shape="):
            nz.plot_components(found, feature_groups=groups, shape=(8, 8))
    figure = nz.plot_components(found, feature_groups=groups)
    check_words(figure)
    colours = {bar.get_facecolor() for axes in figure.axes for bar in axes.patches}
    assert len(colours) == 3
    said = [text.get_text() for text in figure.axes[0].texts]
    legend = [text.get_text() for own in figure.legends for text in own.get_texts()]
    assert said or legend == ["rare", "common", "in every one"]
    assert not said or not legend


def named(n, engine="em"):
    X = table(counts(6, 2, n), [f"f{i}" for i in range(6)], [f"patient {i}" for i in range(n)])
    return nz.fit(nz.gamma_nmf(X, 2, alpha_w=2.0, alpha_h=2.0), engine=engine, **HOW)


def test_many_names_are_sorted_row_by_row():
    found = named(200)
    few, many = nz.plot_activations(named(20)), nz.plot_activations(found)
    assert few.axes[-1].get_xlabel() == "obs"
    assert many.axes[-1].get_xlabel() == "obs, each row from its largest to its smallest"
    for axes in many.axes:
        assert np.all(np.diff(axes.lines[0].get_ydata()) <= 0)
    assert any(np.any(np.diff(axes.lines[0].get_ydata()) > 0) for axes in few.axes)
    given = nz.plot_activations(found, order="given")
    assert np.sort(given.axes[0].lines[0].get_ydata())[::-1].tolist() == many.axes[0].lines[0].get_ydata().tolist()


@pytest.mark.parametrize(("spread", "scale"), [(0.5, "linear"), (4.0, "log")])
def test_a_log_scale_where_a_linear_one_shows_little(spread, scale):
    depths = np.exp(np.random.default_rng(1).normal(5.0, spread, 40))
    X = np.random.default_rng(0).poisson(np.outer([1.0, 2.0, 3.0], depths)) + 1
    found = nz.fit(nz.gamma_nmf(X, 1), engine="vb", **HOW)
    assert nz.plot_activations(found).axes[0].get_yscale() == scale
    assert nz.plot_activations(found, scale="log").axes[0].get_yscale() == "log"
    assert nz.plot_activations(found, scale="linear").axes[0].get_yscale() == "linear"
    low, high = nz.plot_activations(found, scale="log").axes[0].get_ylim()
    assert high <= 3e6 * low


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"order": "sorted"}, "order: got 'sorted'; expected one of"),
        ({"scale": "logs"}, "scale: got 'logs'.*did you mean 'log'"),
        ({"order": np.arange(20)}, "order: got array.*; expected one of"),
        ({"order": np.zeros((2, 3))}, "order: got array.*; expected one of"),
        ({"scale": ["log", "linear"]}, "scale: got .*; expected one of"),
        ({"sample_groups": ["a"]}, r"sample_groups: got 1 group; expected 20 groups, one for each label"),
        ({"sample_groups": "b" * 20}, "sample_groups: got 'bbbbbbbbbbbbbbbbbbbb'; expected 20 groups"),
        ({"sample_groups": 3}, "sample_groups: got 3; expected 20 groups, one for each label"),
        ({"sample_groups": [*"a" * 19, np.nan]}, r"sample_groups: got no group of 'patient 19' \(nan\)"),
        ({"sample_groups": pd.Series(["a"] * 19 + [None], index=PATIENTS)}, "got no group of 'patient 19'"),
        ({"sample_groups": pd.Categorical(["a"] * 19 + [None])}, "got no group of 'patient 19'"),
        ({"sample_groups": [*"a" * 19, ["b", "c"]]}, "of 'patient 19'; expected one name"),
        ({"sample_groups": pd.DataFrame({"g": ["a"] * 20}, index=PATIENTS)}, "got a table of 20 x 1; .*one column"),
        ({"sample_groups": np.full((20, 2), "a")}, "got a table of 20 x 2"),
        (
            {"sample_groups": pd.Series(["a"] * 21, index=[*PATIENTS, "patient 3"])},
            "got the label 'patient 3' more than once; expected each label once",
        ),
        ({"sample_groups": {"patient 0": "a"}}, "sample_groups: got no group of 'patient 1'"),
        ({"sample_groups": range(20)}, "sample_groups: got 20 groups; expected up to 16"),
    ],
)
def test_what_can_not_be_drawn_is_one_line(how, message):
    with pytest.raises(InputError, match=message):
        nz.plot_activations(named(20), **how)


def test_what_can_not_be_drawn_of_features_is_one_line():
    found = named(20)
    for how, words in (
        ({"layout": np.arange(3)}, "layout: got array"),
        ({"feature_groups": "words"}, "feature_groups: got 'words'; expected"),
        ({"feature_groups": pd.DataFrame({"g": ["a"]})}, "feature_groups: got a table of 1 x 1"),
        ({"feature_groups": {"x": "a"}}, "feature_groups: got no group of"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            nz.plot_components(found, **how)
        assert "\n" not in str(caught.value)


def test_groups_are_of_labels_or_of_what_these_are_as_text():
    numbers, days = np.arange(5), pd.date_range("2021-03-01", periods=5, freq="D")
    words = list("aabba")
    for labels, keys in (
        (numbers, map(str, numbers)),
        (days.to_numpy(), days),
        (days.to_numpy(), map(str, days.date)),
        (np.array(list("vwxyz")), "vwxyz"),
    ):
        found = read_groups("sample_groups", dict(zip(keys, words, strict=True)), labels)
        assert found.members.tolist() == [0, 0, 1, 1, 0]
    with pytest.raises(InputError, match="no group of '2021-03-01'"):
        read_groups("sample_groups", {"x": "a"}, days.to_numpy())


def test_a_filter_has_dates_on_its_axis():
    days = pd.date_range("2021-03-01", periods=8, freq="D")
    X = pd.DataFrame(RNG.poisson(4.0, (3, 8)), columns=days)
    model = nz.hmm_nmf(X, 2, chain=nz.BasisChain(0.9, 0.8), background=0.1)
    engine = nz.ParticleEM(particles=20)
    figure = nz.plot_filter(nz.fit(model=model, engine=engine, max_iter=1, draws=2, tol=0, random_seed=1, quiet=True))
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), days.to_numpy())
    check_words(figure)
    assert "2021-Mar" in figure.axes[-1].xaxis.get_offset_text().get_text()


def test_collisions_are_seen():
    """What looks for them finds a planted one, and a text that is cut off."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    for place, word in ((0.5, "one"), (0.51, "two"), (0.9, "three"), (1.5, "four")):
        axes.text(place, 0.5, word)
    assert collisions(figure) == [("one", "two")]
    assert cut_off(figure) == ["four"]
