"""One order of the components: stored beside the draws, the same at every door, and never that of other draws."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.interfaces.cli.show import summary_lines
from nmf_zoo.plots import components as components_of_plots
from nmf_zoo.plots.figure import make_figure
from nmf_zoo.results import component_order as component_order_module
from nmf_zoo.results.component_order import GROUP, component_order, draws_in_order
from nmf_zoo.results.components import activations_and_totals, component_shares, mean_weights
from nmf_zoo.results.groups import labelled
from nmf_zoo.results.modes import BY_MODE, MODES
from nmf_zoo.results.posterior import best_chain

pytestmark = pytest.mark.usefixtures("unarranged_pictures")
F, N, K = 6, 9, 3
W = np.kron(np.eye(K), np.ones((2, 1)))  # (feature, component): two features each
SIZES = np.array([1.0, 9.0, 4.0])
FIRST = ["f2", "f4", "f0"]  # the first feature of each component, the largest first


def result(orders, labels=None, sizes=SIZES, lp=None):
    """Draws of three blocks, the components of every chain numbered by a row of ``orders``, chains by draws."""
    rng, orders = np.random.default_rng(0), np.asarray(orders)
    lead = orders.shape[:2]
    of_w = W * rng.gamma(400.0, 1 / 400, (*lead, F, K)) + np.linspace(1e-3, 2e-3, F)[:, None]
    of_h = np.broadcast_to(sizes, (*lead, K))[..., None] * rng.gamma(400.0, 1 / 400, (*lead, K, N))
    of_w[..., ::2, :] *= 1.5  # of its two features the first is larger
    posterior = xr.Dataset(
        {
            "W": (("chain", "draw", "feature", "component"), np.take_along_axis(of_w, orders[..., None, :], -1)),
            "H": (("chain", "draw", "component", "obs"), np.take_along_axis(of_h, orders[..., :, None], -2)),
        },
        coords={
            "chain": range(lead[0]),
            "draw": range(lead[1]),
            "feature": [f"f{i}" for i in range(F)],
            "component": range(K) if labels is None else labels,
        },
    )
    stats = xr.Dataset(
        {"lp": (("chain", "draw"), np.broadcast_to(np.c_[np.arange(lead[0]) if lp is None else lp], lead))}
    )
    return _compat.inference_data({"posterior": posterior, "sample_stats": stats}, {})


CHAINS = [[[0, 1, 2]] * 5, [[2, 0, 1]] * 5]
SWITCHING = [[[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 1, 2], [0, 2, 1]], [[2, 0, 1]] * 5]


@pytest.mark.parametrize("labels", [None, ["a", "b", "c"]])
@pytest.mark.parametrize("sizes", [SIZES, [4.0, 4.0, 1.0], [0.0, 2.0, 3.0], [1e-200, 2.0, 3.0]])
def test_one_draw_is_like_itself(labels, sizes, monkeypatch):
    """A point needs no matching: the same group as by matching."""
    idata = result([[[2, 0, 1]]], labels, np.array(sizes))
    found = component_order(idata)
    monkeypatch.setattr(component_order_module, "EMPTY", -np.inf)
    xr.testing.assert_identical(found, component_order(idata))


@pytest.mark.parametrize("orders", [CHAINS, SWITCHING])
def test_the_largest_component_is_the_first_in_every_draw(orders):
    idata = result(orders)
    found = component_order(idata)
    was = np.take_along_axis(np.asarray(orders), found["order"].to_numpy(), -1)
    np.testing.assert_array_equal(was, np.broadcast_to([1, 2, 0], was.shape))
    assert found["shown"].all()
    np.testing.assert_allclose(found["share"], np.array([9, 4, 1]) / 14, rtol=0.02)
    sizes = np.exp(found["log_size"].to_numpy())
    np.testing.assert_allclose(sizes[..., 0] / sizes[..., 2], 9.0, rtol=0.2)


@pytest.mark.parametrize("orders", [CHAINS, SWITCHING])
@pytest.mark.parametrize("chain", [None, 0, 1])
def test_all_doors_number_components_alike(orders, chain, tmp_path):
    idata = result(orders)
    assert list(nz.top_features(idata, 1, chain=chain)["feature"]) == FIRST
    shares, (H, totals) = component_shares(idata, chain), activations_and_totals(idata, chain)
    assert list(shares.mean("draw").idxmax("feature").to_numpy()) == FIRST
    assert np.all(np.diff((H.mean("obs") * totals).mean("draw")) < 0)
    assert H.sizes["draw"] == (10 if chain is None else 5)
    assert list(mean_weights(idata).idxmax()) == FIRST
    assert list(nz.match(idata, mean_weights(idata).rename(columns=str)).table["entry"]) == ["0", "1", "2"]
    aligned = _compat.group(nz.align(idata), "posterior")
    assert list(aligned["W"].mean(("chain", "draw")).idxmax("feature").to_numpy()) == FIRST
    lines = list(summary_lines(idata, 1))
    at = next(i for i, line in enumerate(lines) if line.startswith("components of all 2 chains"))
    assert [line.split()[2] for line in lines[at + 1 :]] == FIRST
    page = nz.report(idata, tmp_path / "x.html").read_text(encoding="utf-8")
    table = page.partition("Top features of each component")[2]
    assert [table.index(f"{name} 0.") for name in FIRST] == sorted(table.index(f"{name} 0.") for name in FIRST)


def test_totals_beyond_all_numbers_have_an_order():
    idata = result(CHAINS, sizes=np.array([1e307, 1.4e308, 4e307]))  # each a number, their sums over nine obs are none
    assert np.all(np.isfinite(component_order(idata)["share"]))
    was = np.take_along_axis(np.asarray(CHAINS), component_order(idata)["order"].to_numpy(), -1)
    np.testing.assert_array_equal(was, np.broadcast_to([1, 2, 0], was.shape))


def test_activations_of_another_name_decide_the_order_of_pictures(monkeypatch, tmp_path):
    """By W's columns alone the order would be another one: that of the smallest component is the largest."""
    pytest.importorskip("matplotlib")
    idata = result(CHAINS)
    posterior = _compat.group(idata, "posterior").rename(H="A")
    first = [[0, 1, 2], [2, 0, 1]]  # of each chain
    scale = xr.DataArray(np.array([500.0, 2.0, 1.0])[first], dims=("chain", "component"))
    scaled = posterior.assign(W=posterior["W"] * scale, A=posterior["A"] / scale).transpose("chain", "draw", ...)
    changed = _compat.with_groups(idata, {"posterior": scaled})
    drawn = []
    monkeypatch.setattr(components_of_plots, "_images", lambda shares, *_: drawn.append(shares) or make_figure())
    nz.plot_components(changed, shape=(2, 3), activations="A")
    nz.report(changed, tmp_path / "x.html", activations="A", shape=(2, 3))
    assert len(drawn) == 2
    for shares in drawn:
        assert list(shares.mean("draw").idxmax("feature").to_numpy()) == FIRST


def test_a_chain_in_another_mode_is_not_shown():
    """Chain 2 has lost a component to another one, but two that differ in the smallest alone are in one mode."""
    idata = result([*CHAINS, *CHAINS[:1]], lp=[3.0, 2.0, 1.0])
    posterior = _compat.group(idata, "posterior").copy(deep=True)
    posterior["W"][2] = np.roll(posterior["W"][2].to_numpy(), 1, axis=1)
    other = _compat.with_groups(idata, {"posterior": posterior})
    assert component_order(other)["shown"].to_numpy().tolist() == [True, True, False]
    assert activations_and_totals(other)[0].sizes["draw"] == 10
    assert any(
        line.startswith("components of chains 0, 1 (the others are in other modes)") for line in summary_lines(other, 1)
    )
    small = result([*CHAINS, *CHAINS[:1]], sizes=np.array([0.01, 9.0, 4.0]), lp=[3.0, 2.0, 1.0])
    posterior = _compat.group(small, "posterior").copy(deep=True)
    posterior["W"][2, :, :, 0] = 1.0
    found = component_order(_compat.with_groups(small, {"posterior": posterior}))
    assert found["became"].to_numpy()[2, 2] != "matched"
    assert found["shown"].all()


def test_components_that_the_model_labels_keep_the_places_of_the_best_chain():
    idata = result(CHAINS, labels=["x", "y", "z"], lp=[1.0, 0.0])
    assert list(nz.top_features(idata, 1)["feature"]) == ["f0", "f2", "f4"]
    assert list(nz.top_features(idata, 1, chain=1)["feature"]) == ["f0", "f2", "f4"]
    assert list(nz.top_features(idata, 1)["component"]) == ["x", "y", "z"]


def test_equal_components_stay_where_they_are():
    idata = result([[[0, 1, 2]] * 4])
    same = _compat.group(idata, "posterior").map(xr.ones_like)
    found = component_order(_compat.with_groups(idata, {"posterior": same}))
    np.testing.assert_array_equal(found["order"], np.broadcast_to(np.arange(K), (1, 4, K)))


@pytest.fixture(scope="module")
def run():
    X = np.random.default_rng(1).poisson(20.0 * W @ (SIZES[:, None] * (np.arange(N) % K == np.arange(K)[:, None])))
    model = nz.gamma_nmf(X, K)
    return model, nz.sample(20, tune=50, chains=2, random_seed=1, quiet=True, model=model)


def test_a_run_stores_it_beside_draws_that_stay_as_they_were(run, tmp_path):
    model, idata = run
    stored = _compat.group(idata, GROUP)
    assert component_order(idata).identical(stored)
    bare = {name: _compat.group(idata, name) for name in _compat.group_names(idata) if name != GROUP}
    xr.testing.assert_allclose(component_order(_compat.inference_data(bare, idata.attrs)), stored)
    for name in ("x.nc", "x.zarr"):
        nz.save(idata, tmp_path / name)
        again = nz.load(tmp_path / name)
        xr.testing.assert_equal(component_order(again)["order"], stored["order"])
        assert nz.top_features(again).equals(nz.top_features(idata))
    moments = nz.sample(20, tune=50, chains=2, random_seed=1, quiet=True, keep="moments", model=model)
    assert _compat.group(moments, GROUP)["order"].shape == (2, 1, K)
    fitted = nz.fit(model, engine="em", restarts=3, random_seed=1, quiet=True, search=None)
    assert _compat.group(fitted, GROUP)["shown"].to_numpy().tolist() == [True, False, False]


@pytest.mark.parametrize("change", ["swapped", "chosen", "few", "scaled"])
def test_an_order_of_other_draws_is_not_taken(run, change):
    """Draws that somebody changed have an order of their own; part of the chains, or other scales, keep theirs."""
    _, idata = run
    posterior = _compat.group(idata, "posterior").copy(deep=True)
    expected = component_order(idata)["order"].to_numpy()
    if change == "swapped":
        posterior["W"][1], posterior["H"][1] = posterior["W"][1, :, :, ::-1].values, posterior["H"][1, :, ::-1].values
        expected = np.stack([expected[0], K - 1 - expected[1]])
        changed = _compat.with_groups(idata, {"posterior": posterior})
    elif change == "chosen":
        changed, expected = idata.sel(chain=[1]), expected[1:]
    elif change == "few":
        changed, expected = idata.isel(component=[2, 0]), None
    else:
        changed = nz.unit_sum(idata)
    found = component_order(changed)
    assert found["shown"].any()
    assert np.all(np.sort(found["order"], axis=-1) == np.arange(found.sizes["component"]))
    if expected is not None:
        np.testing.assert_array_equal(found["order"], expected)


def test_draws_on_disk_stay_there_and_their_order_with_them(run, tmp_path):
    model, idata = run
    kept = nz.sample(20, tune=50, chains=2, random_seed=1, quiet=True, store=tmp_path / "x.zarr", model=model)
    assert _compat.group(nz.load(tmp_path / "x.zarr"), GROUP).load().equals(_compat.group(idata, GROUP))
    assert _compat.group(kept, GROUP).equals(_compat.group(idata, GROUP))
    assert nz.top_features(kept).equals(nz.top_features(idata))
    (one,) = draws_in_order(kept, 0)
    assert not one["W"].variable._in_memory


def test_estimators_have_the_same_order():
    pytest.importorskip("sklearn")
    from nmf_zoo.sklearn import GammaPoissonNMF

    X = np.random.default_rng(1).poisson(20.0 * W @ (SIZES[:, None] * (np.arange(N) % K == np.arange(K)[:, None])))
    model = GammaPoissonNMF(K, random_state=1).fit(X.T)
    assert np.all(np.diff(model.transform(X.T).sum(axis=0) * model.components_.sum(axis=1)) < 0)
    assert list(model.components_.argmax(axis=1)) == list(mean_weights(model.inference_data_).to_numpy().argmax(axis=0))


def test_convergence_is_judged_in_that_order(run, monkeypatch):
    """The order is made once in a run, and that of fewer cells is the same."""
    model, idata = run
    made = []
    real = component_order_module._matched
    monkeypatch.setattr(component_order_module, "_matched", lambda *given: made.append(1) or real(*given))
    with pytest.warns(nz.NmfZooWarning):  # of few draws
        table = nz.check_convergence(idata)
    assert not made
    aligned = nz.summarise_components(nz.align(idata))
    np.testing.assert_allclose(table.loc["W[0]", "rhat"], aligned.loc["W[0]", "rhat"], rtol=0.2)
    with pytest.warns(nz.NmfZooWarning):
        nz.sample(20, tune=50, chains=2, random_seed=1, progressbar=False, model=model)
    assert made == [1]


def test_names_go_everywhere(run, tmp_path):
    _, idata = run
    names = ["large", "middle", "small"]
    named = nz.name_components(idata, names)
    nz.save(named, tmp_path / "x.nc")
    named = nz.load(tmp_path / "x.nc")
    assert list(nz.top_features(named, 1)["component"]) == names
    assert component_shares(named)["component"].to_numpy().tolist() == names
    assert list(mean_weights(named).columns) == names
    assert list(nz.match(named, mean_weights(idata)).table.index) == names
    assert nz.components_in_use(named)["component"].to_numpy().tolist() == names
    assert list(nz.summarise_components(nz.align(named)).index[:3]) == [f"W[{name}]" for name in names]
    assert any(line.split()[:1] == ["large"] for line in summary_lines(named, 1))
    assert [axes.get_ylabel() for axes in nz.plot_activations(named).axes] == names
    assert "middle" in nz.report(named, tmp_path / "x.html").read_text(encoding="utf-8")
    nz.export(named, tmp_path / "tables", diagnostics=False)
    assert (tmp_path / "tables" / "components.csv").read_text().splitlines()[1].startswith("large,")
    assert _compat.group(named, "posterior")["component"].to_numpy().tolist() == [0, 1, 2]
    again = nz.name_components(named, {"middle": "second"})
    assert list(nz.top_features(again, 1)["component"]) == ["large", "second", "small"]
    assert list(nz.top_features(nz.name_components(idata, {2: "last"}), 1)["component"].astype(str)) == [
        "0",
        "1",
        "last",
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "b"], "names: got 2 names; expected 3, one for each component"),
        ("abc", "names: got 'abc'; expected 3"),
        (["a", "b", "a"], "names: got a, b, a; expected each name once"),
        ({7: "x"}, "names: got a name for '7'; expected names of some of 0, 1, 2"),
        (["a", "b\x1b", "c"], "control characters"),
    ],
)
def test_names_that_are_refused(run, names, said):
    with pytest.raises(nz.InputError, match=said):
        nz.name_components(run[1], names)


def test_the_heaviest_mode_decides_once_modes_are_weighed():
    """Chain 1 is in a mode of lower lp that weighs more: its components are those that are shown then."""
    idata = result([CHAINS[0], CHAINS[1]], lp=[2.0, 1.0])
    posterior = _compat.group(idata, "posterior").copy(deep=True)
    posterior["W"][1] = np.roll(posterior["W"][1].to_numpy(), 1, axis=1)
    apart = _compat.with_groups(idata, {"posterior": posterior})
    stored = _compat.with_groups(apart, {GROUP: component_order(apart)})
    assert component_order(stored)["shown"].to_numpy().tolist() == [True, False]
    by_mode = {name: ("mode", np.zeros(2)) for name in BY_MODE}
    modes = xr.Dataset({**by_mode, "mode_of_chain": ("chain", [1, 0])}, coords={"chain": [0, 1]})
    assert component_order(_compat.with_groups(stored, {MODES: modes}))["shown"].to_numpy().tolist() == [False, True]


def in_modes(idata, mode_of_chain):
    by_mode = {name: ("mode", np.zeros(3)) for name in BY_MODE}
    coords = {"chain": _compat.group(idata, "posterior")["chain"]}
    modes = xr.Dataset({**by_mode, "mode_of_chain": ("chain", mode_of_chain)}, coords=coords)
    return _compat.with_groups(idata, {MODES: modes})


@pytest.mark.parametrize(("mode_of_chain", "best"), [([0, 1, 1], 0), ([-1, 2, 2], 1), ([-1, 2, 1], 2), ([-1] * 3, 1)])
def test_the_best_chain_is_in_the_heaviest_mode_that_is_left(mode_of_chain, best):
    idata = result([*CHAINS, *CHAINS[:1]], lp=[2.0, 3.0, 1.0])
    assert best_chain(in_modes(idata, mode_of_chain)) == best


def of_two_modes():
    """Chains 2 and 3, which number components differently, have other components than chains 0 and 1."""
    orders = [[[0, 1, 2]] * 5, [[2, 0, 1]] * 5, [[0, 1, 2]] * 5, [[2, 0, 1]] * 5]
    idata = result(orders, lp=[4.0, 3.0, 2.0, 1.0])
    posterior = _compat.group(idata, "posterior").copy(deep=True)
    posterior["W"][2:] = np.roll(posterior["W"][2:].to_numpy(), 1, axis=2)
    idata = _compat.with_groups(idata, {"posterior": posterior})
    order = component_order(idata)
    assert order["shown"].to_numpy().tolist() == [True, True, False, False]
    return _compat.with_groups(idata, {GROUP: order})


def test_chosen_chains_have_shares_of_their_own():
    sizes = np.broadcast_to(SIZES, (2, 5, 3)).copy()
    sizes[1] = [1.0, 4.0, 9.0]
    idata = result([CHAINS[0]] * 2, sizes=sizes, lp=[2.0, 1.0])
    idata = _compat.with_groups(idata, {GROUP: component_order(idata)})
    np.testing.assert_allclose(component_order(idata)["share"], np.array([6.5, 6.5, 1.0]) / 14, rtol=0.05)
    for chain, share in ((0, [9, 4, 1]), (1, [4, 9, 1])):
        found = component_order(idata.sel(chain=[chain]))
        np.testing.assert_allclose(found["share"], np.array(share) / 14, rtol=0.05)


def test_all_chosen_chains_that_agree_are_shown():
    idata = of_two_modes()
    found = component_order(idata.sel(chain=[2, 3]))
    assert found["shown"].to_numpy().tolist() == [True, True]
    np.testing.assert_array_equal(found["order"][0, -1], _compat.group(idata, GROUP)["order"][2, -1])
    one = component_order(idata.sel(chain=[2]))
    np.testing.assert_array_equal(one["order"], _compat.group(idata, GROUP)["order"][[2]])
    first = [nz.top_features(idata.sel(chain=[2, 3]), 1, chain=chain)["feature"].tolist() for chain in (None, 2, 3)]
    assert first[0] == first[1] == first[2]


def test_names_stay_with_their_components_where_another_chain_becomes_the_best():
    """In the heavier mode what was the largest component is the second one."""
    sizes = np.broadcast_to(SIZES, (2, 5, 3)).copy()
    sizes[1] = [1.0, 4.0, 9.0]
    idata = result([CHAINS[0]] * 2, sizes=sizes, lp=[2.0, 1.0])
    order = component_order(idata).assign(shown=("chain", [True, False]))  # as if they were apart
    names = {"f2": "large", "f4": "middle", "f0": "small"}
    named = nz.name_components(_compat.with_groups(idata, {GROUP: order}), list(names.values()))
    heavier = in_modes(named, [1, 0])
    table = nz.top_features(heavier, 1, chain=1)
    assert table["feature"].tolist() == ["f4", "f2", "f0"]
    assert table["component"].tolist() == ["middle", "large", "small"]
    plain = nz.top_features(in_modes(_compat.with_groups(idata, {GROUP: order}), [1, 0]), 1, chain=1)
    assert plain["component"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", [np.arange(4), np.arange(1, 5), np.array(list("abcd")), np.arange(4.0)])
def test_a_dataset_with_kept_indexes_is_the_same(labels):
    """And what somebody writes to its labels is in no other one."""
    variables = {"x": (("chain", "obs"), np.ones((2, 4)))}
    coords = {"chain": np.arange(2), "obs": labels, "row": ("obs", np.arange(4) + 5)}
    found = labelled(variables, coords)
    xr.testing.assert_identical(found, xr.Dataset(variables, coords=coords))
    found["obs"].attrs["unit"] = "s"
    assert not labelled(variables, coords)["obs"].attrs
