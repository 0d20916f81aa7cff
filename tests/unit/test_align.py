"""Alignment: components of all draws in one order and on one scale, and what can't be matched named."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.results import component_order
from nmf_zoo.results.matching import Components, correspondence, cosines, cosines_of_matches, match

F, N, K = 7, 9, 3
DIMS = {"W": ("feature", "component"), "H": ("component", "obs")}


def truth(seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.3, 1.0, (F, K)) + 0.01, rng.gamma(0.5, 4.0, (K, N)) + 0.01


def shuffled(chains=3, draws=40, seed=1, dims=DIMS, **more):
    """Noisy draws of the truth, their components in a random order and on random scales; (idata, orders)."""
    (W, H), rng = truth(), np.random.default_rng(seed)
    orders = np.array([[rng.permutation(K) for _ in range(draws)] for _ in range(chains)])
    noise = rng.gamma(400.0, 1 / 400.0, (chains, draws, F, K)), rng.gamma(400.0, 1 / 400.0, (chains, draws, K, N))
    scale = rng.gamma(3.0, 1.0, (chains, draws, K))
    Ws = np.take_along_axis(W * noise[0] * scale[..., None, :], orders[..., None, :], -1)
    Hs = np.take_along_axis(H * noise[1] / scale[..., :, None], orders[..., :, None], -2)
    arrays = {"W": Ws, "H": Hs} | more
    posterior = xr.Dataset({name: (("chain", "draw", *dims[name]), array) for name, array in arrays.items()})
    posterior = posterior.assign_coords(chain=range(chains), draw=range(draws), component=range(K))
    return _compat.inference_data({"posterior": posterior}, {}), orders


def group(idata, name="posterior"):
    return _compat.group(idata, name)


def mean_product(idata):
    return np.matmul(group(idata)["W"].to_numpy(), group(idata)["H"].to_numpy())


def test_every_draw_ends_up_in_the_order_of_the_reference():
    idata, orders = shuffled()
    W, H = truth()
    aligned = nz.align(idata, {"W": W, "H": H})
    found = group(aligned, "alignment")["order"].to_numpy()
    np.testing.assert_array_equal(np.take_along_axis(orders, found, -1), np.broadcast_to(np.arange(K), orders.shape))
    means = group(aligned)["W"].mean(("chain", "draw")).to_numpy()
    np.testing.assert_allclose(means, W / W.sum(axis=0), rtol=0.03)


def test_without_a_reference_the_components_come_in_falling_order_of_size():
    aligned = nz.align(shuffled()[0])
    sizes = group(aligned)["H"].sum("obs")
    mean, spread = sizes.mean(("chain", "draw")).to_numpy(), sizes.std(("chain", "draw")).to_numpy()
    assert np.all(np.diff(mean) < 0)
    assert np.all(spread < 0.1 * mean)


def with_constant(name, component=None, are_states=False):
    """Draws in one order, with one component of a factor, or all, the same throughout; the larger ones come last."""
    idata, _ = shuffled()
    posterior = group(nz.align(idata))[["W", "H"]].isel(component=[2, 1, 0]).assign_coords(component=range(K))
    array, which = posterior[name].copy(), {} if component is None else {"component": component}
    array[which] = array.isel(chain=0, draw=0)[which]
    array = (array > 0.1).astype(np.int8) if are_states else array
    return _compat.inference_data({"posterior": posterior.assign({name: array})}, {})


def orders_of(idata):
    return np.unique(group(nz.align(idata), "alignment")["order"].to_numpy().reshape(-1, K), axis=0).tolist()


@pytest.mark.parametrize("name", ["W", "H"])
def test_a_component_that_nobody_drew_keeps_its_place(name):
    posterior = group(with_constant(name, 1))
    sizes = (posterior["W"].sum("feature") * posterior["H"].sum("obs")).mean(("chain", "draw")).to_numpy()
    by_size = np.argsort(-sizes)
    ((first, second, third),) = orders_of(with_constant(name, 1))
    assert second == 1
    assert [first, third] == [k for k in by_size if k != 1]


def test_a_factor_that_is_one_point_fixes_no_place():
    """As fits with point estimates of W have it."""
    assert orders_of(with_constant("W")) != [[0, 1, 2]]


def test_rows_of_states_fix_no_place():
    assert orders_of(with_constant("H", 0, are_states=True)) != [[0, 1, 2]]


def test_sums_over_states_may_be_beyond_a_byte():
    rng = np.random.default_rng(3)
    W, H = rng.gamma(1.0, 1.0, (F, 2)), (rng.random((2, 700)) < [[0.7], [0.4]]).astype(np.int8)
    as_states, as_numbers = (cosines(Components(W, h), Components(W, h)) for h in (H, H.astype(float)))
    np.testing.assert_allclose(as_states, as_numbers, rtol=1e-12)


def test_the_product_does_not_change_and_columns_sum_to_one():
    idata, _ = shuffled()
    aligned = nz.align(idata)
    np.testing.assert_allclose(mean_product(aligned), mean_product(idata), rtol=1e-12)
    np.testing.assert_allclose(group(aligned)["W"].sum("feature"), 1.0, rtol=1e-12)


def test_the_drawn_scale_is_kept_on_request():
    idata, _ = shuffled()
    aligned = nz.align(idata, scale="drawn")
    order = group(aligned, "alignment")["order"].to_numpy()
    raw = np.take_along_axis(group(idata)["W"].to_numpy(), order[..., None, :], -1)
    np.testing.assert_array_equal(group(aligned)["W"].to_numpy(), raw)


def test_raw_draws_are_kept_and_stay_the_first_ones():
    idata, _ = shuffled()
    once = nz.align(idata)
    turned = {name: group(once)[name].mean(("chain", "draw")).isel(component=[1, 2, 0]) for name in ("W", "H")}
    for twice, expected in ((nz.align(once), [0, 1, 2]), (nz.align(once, xr.Dataset(turned)), [1, 2, 0])):
        raw, report = group(twice, "unaligned_posterior")["W"], group(twice, "alignment")
        xr.testing.assert_identical(raw, group(idata)["W"])
        np.testing.assert_array_equal(report["order"], group(once, "alignment")["order"][..., expected])
        found = np.take_along_axis(raw.to_numpy(), report["order"].to_numpy()[..., None, :], -1)
        found = found / report["factor"].to_numpy()[..., None, :]
        np.testing.assert_allclose(group(twice)["W"], found, rtol=1e-12)


def test_other_variables_of_components_are_reordered_and_others_are_not():
    dims = DIMS | {"alpha": ("component",), "sigma": ()}
    labels = np.broadcast_to(np.arange(K, dtype=float), (3, 40, K))
    idata, orders = shuffled(dims=dims, alpha=labels, sigma=np.ones((3, 40)))
    alpha = np.take_along_axis(labels, orders, -1)
    posterior = group(idata).assign(alpha=(("chain", "draw", "component"), alpha))
    W, H = truth()
    aligned = nz.align(_compat.inference_data({"posterior": posterior}, {}), {"W": W, "H": H})
    np.testing.assert_array_equal(group(aligned)["alpha"].to_numpy(), labels)
    assert group(aligned)["sigma"].dims == ("chain", "draw")


def test_factors_of_other_names_orientations_and_dims():
    idata, _ = shuffled()
    named = group(idata).rename(W="topics", H="shares", component="part")
    swapped = named.transpose("chain", "draw", "part", "feature", "obs")
    given = _compat.inference_data({"posterior": swapped}, {})
    aligned = nz.align(given, weights="topics", activations="shares")
    assert group(aligned)["topics"].dims == ("chain", "draw", "part", "feature")
    expected = group(nz.align(idata))["W"].to_numpy()
    np.testing.assert_allclose(np.swapaxes(group(aligned)["topics"].to_numpy(), -1, -2), expected, rtol=1e-12)


def test_factors_without_named_dims():
    idata, _ = shuffled()
    posterior = group(idata)
    bare = {
        name: (("chain", "draw", f"{name}_dim_0", f"{name}_dim_1"), posterior[name].to_numpy()) for name in ("W", "H")
    }
    aligned = nz.align(_compat.inference_data({"posterior": xr.Dataset(bare)}, {}))
    np.testing.assert_allclose(group(aligned)["H"].to_numpy(), group(nz.align(idata))["H"].to_numpy(), rtol=1e-12)


def test_weights_alone_can_be_aligned():
    idata, orders = shuffled()
    alone = _compat.inference_data({"posterior": group(idata)[["W"]]}, {})
    aligned = nz.align(alone, {"W": truth()[0]})
    found = group(aligned, "alignment")["order"].to_numpy()
    np.testing.assert_array_equal(np.take_along_axis(orders, found, -1), np.broadcast_to(np.arange(K), orders.shape))


def test_a_reference_without_activations_compares_weights_alone():
    idata, orders = shuffled()
    aligned = nz.align(idata, {"W": truth()[0]})
    found = group(aligned, "alignment")
    np.testing.assert_array_equal(
        np.take_along_axis(orders, found["order"].to_numpy(), -1), np.broadcast_to(np.arange(K), orders.shape)
    )
    assert found["cosine"].to_numpy().min() > 0.9
    assert set(found["became"].to_numpy().ravel()) == {"matched"}


def test_switches_are_counted():
    idata, orders = shuffled()
    expected = np.any(orders[:, 1:] != orders[:, :-1], axis=-1).sum(axis=1)
    np.testing.assert_array_equal(group(nz.align(idata), "alignment")["switches"], expected)


def test_components_are_judged_by_their_worst_cell():
    table = nz.summarise_components(nz.align(shuffled(draws=200)[0]))
    assert list(table.index) == [f"{name}[{k}]" for name in "WH" for k in range(K)]
    assert table["rhat"].max() < 1.05
    assert (table["became"] == "matched").all()
    assert table["rhat_raw"].max() < 1.05  # every draw is in an order of its own: what is raw mixes, and means nothing
    assert table["ess_bulk"].min() > 100


def test_a_chain_misaligned_on_purpose_is_caught():
    aligned = nz.align(shuffled(draws=200)[0])
    posterior = group(aligned).copy(deep=True)
    W = posterior["W"].to_numpy().copy()
    W[0] = W[0][..., [1, 0, 2]]
    spoilt = _compat.with_groups(aligned, {"posterior": posterior.assign(W=(posterior["W"].dims, W))})
    table = nz.summarise_components(spoilt)
    assert table.loc["W[0]", "rhat"] > 1.5
    assert table.loc["W[2]", "rhat"] < 1.05


def test_chains_that_swap_have_a_bad_raw_rhat_and_a_good_aligned_one():
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.3, 1.0, (12, 3)) @ rng.gamma(0.5, 20.0, (3, 30)))
    model = nz.gamma_nmf(X, rank=3)
    idata = nz.sample(400, tune=400, chains=4, start="random", random_seed=3, quiet=True, model=model)
    table = nz.summarise_components(nz.align(idata))
    assert table["rhat_raw"].max() > 1.5
    assert table["rhat"].max() < 1.05
    assert (table["became"] == "matched").all()


def mixed(W, H, columns, rows):
    return Components(W @ np.array(columns, dtype=float), np.array(rows, dtype=float) @ H)


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e300])
def test_split_and_merged_components_are_named(unit):
    W = unit * np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    H = np.array([[3.0, 1, 0, 0, 2, 0], [3, 1, 0, 0, 2, 0.3], [0, 0, 4, 3, 0, 1]])
    same = Components(W, H)
    assert correspondence(same, same) == ["matched"] * 3
    # Components 0 and 1 have nearly the same row of H: their sum is one source of the other factorisation.
    merged = Components(np.stack([W[:, 0] + W[:, 1], W[:, 2], W[:, 2]], axis=1), H[[0, 2, 2]] * [[1.0], [0.5], [0.5]])
    assert correspondence(merged.reordered(np.array([0, 2, 1])), same)[0] == "merged"
    split = Components(
        np.stack([W[:, 0] * [1, 0, 0, 0, 0, 0], W[:, 0] * [0, 1, 0, 0, 0, 0], W[:, 2]], axis=1), H[[0, 0, 2]]
    )
    assert correspondence(split, same)[0] == "split"
    rng = np.random.default_rng(0)
    other = Components(rng.random((6, 3)), rng.random((3, 6)))
    assert "different" in correspondence(other, same)


@pytest.mark.parametrize(("of_w", "of_h"), [(1e200, 1e200), (1e-200, 1e-200), (1e250, 1e-300), (1e-310, 1.0)])
def test_the_unit_of_a_source_does_not_matter(of_w, of_h):
    """Products of four such numbers are beyond all numbers, or below them."""
    (W, H), units = truth(), np.array([of_w, 1.0, 1.0])
    plain, strange = Components(W, H), Components(W * units, H * np.where(units == of_w, of_h, 1.0)[:, None])
    for one, other in ((strange, strange), (plain, strange), (strange, plain)):
        np.testing.assert_allclose(cosines(one, other), cosines(plain, plain), rtol=1e-12)
        assert correspondence(one, other) == ["matched"] * K


def test_empty_components_are_no_division_by_zero():
    W, H = truth()
    W[:, 1] = 0.0
    assert np.all(cosines(Components(W, H), Components(W, H))[1] == 0.0)
    posterior = xr.Dataset(
        {"W": (("chain", "draw", *DIMS["W"]), W[None, None]), "H": (("chain", "draw", *DIMS["H"]), H[None, None])}
    )
    aligned = nz.align(_compat.inference_data({"posterior": posterior}, {}))
    assert np.all(np.isfinite(group(aligned)["W"]))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"scale": "max"}, "scale: got 'max'; expected one of"),
        ({"weights": "V"}, "one that holds V"),
        ({"reference": 3}, "reference: got int; expected a result, or a mapping with W and H"),
        ({"reference": {"W": np.ones((2, 2))}}, r"reference: got W of shape \(2, 2\); expected \(7, 3\)"),
    ],
)
def test_bad_arguments(how, message):
    with pytest.raises(InputError, match=message):
        nz.align(shuffled()[0], **how)


def test_summarising_raw_draws_says_what_to_do():
    with pytest.raises(InputError, match=r"draws that are not aligned.*call nz.align\(idata\) first"):
        nz.summarise_components(shuffled()[0])


def labelled(idata, features, obs):
    """The result with these labels of its features and samples, in the order of the array."""
    named = group(idata).assign_coords(feature=features, obs=obs)
    return _compat.inference_data({"posterior": named}, {})


FEATURES, DAYS = [f"gene {f}" for f in range(F)], np.arange("2020-01-01", "2020-01-10", dtype="datetime64[D]")


@pytest.mark.parametrize("form", [lambda ref: ref, lambda ref: ref.transpose(), dict, lambda ref: ref[["W"]]])
def test_features_and_samples_of_a_reference_go_by_their_labels(form):
    ours = labelled(shuffled()[0], FEATURES, DAYS)
    means = group(nz.align(ours))[["W", "H"]].mean(("chain", "draw"))
    backwards = means.isel(feature=slice(None, None, -1), obs=np.roll(np.arange(N), 4))
    expected = group(nz.align(ours, form(means)), "alignment")["cosine"]
    found = group(nz.align(ours, form(backwards)), "alignment")["cosine"]
    assert expected.mean() > 0.97
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_result_in_another_order_is_a_reference():
    ours, other = labelled(shuffled()[0], FEATURES, DAYS), group(labelled(shuffled(seed=5)[0], FEATURES, DAYS))
    turned = _compat.inference_data(
        {"posterior": other.isel(feature=[3, 1, 2, 0, 6, 5, 4], obs=slice(None, None, -1))}, {}
    )
    report = group(nz.align(ours, turned), "alignment")
    assert report["cosine"].min() > 0.95
    tables = {"W": group(nz.align(turned))["W"].mean(("chain", "draw")).to_pandas()}
    assert group(nz.align(ours, tables), "alignment")["cosine"].min() > 0.95


def test_a_reference_of_other_features_is_refused():
    ours, (W, H) = labelled(shuffled()[0], FEATURES, DAYS), truth()
    other = xr.Dataset(
        {"W": (DIMS["W"], W), "H": (DIMS["H"], H)}, {"feature": FEATURES, "obs": DAYS + np.timedelta64(1, "D")}
    )
    with pytest.raises(InputError, match="reference: got H with other labels of 'obs'; expected those of the draws"):
        nz.align(ours, other)
    assert group(nz.align(ours, {"W": other["W"]}), "alignment")["cosine"].min() > 0.95


def test_a_result_is_a_reference():
    idata, _ = shuffled()
    table = nz.summarise_components(nz.align(shuffled(seed=5)[0], reference=idata))
    assert (table["became"] == "matched").all()


def test_many_components_are_matched_a_few_draws_at_a_time():
    """Tables of cosines of all draws would take 30 MB; and they are made by one thread of BLAS each."""
    rank, n_draws, rng = 300, 40, np.random.default_rng(1)
    W = rng.gamma(2.0, size=(rank + 1, rank))
    drawn = W * rng.gamma(100.0, 0.01, size=(n_draws, rank + 1, rank))
    places = np.stack([rng.permutation(rank) for _ in range(n_draws)])
    drawn = Components(np.take_along_axis(drawn, places[:, None], -1), None)
    tracemalloc.start()
    found = match(drawn, Components(W, None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found.order, np.argsort(places, axis=-1))
    np.testing.assert_array_equal(found.cosine, cosines_of_matches(drawn, Components(W, None), found.order))
    assert peak < 10e6


def test_draws_that_have_settled_are_not_matched_again(monkeypatch):
    idata, _ = shuffled()
    n_chains, n_draws = group(idata)["W"].shape[:2]
    matched = []
    monkeypatch.setattr(component_order, "match", lambda *given: matched.append(len(given[0].W)) or match(*given))
    component_order.component_order(idata)
    assert sum(matched) == n_draws * (2 + n_chains - 1)  # of the best chain twice: with its last draw, with their mean
