"""Top features and unit-sum draws."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from tests.results import idata_of, random_idata

X = np.array([[3, 1, 0, 2], [0, 2, 1, 1], [5, 0, 1, 0]])
COORDS = {"feature": ["sun", "rain", "snow"], "component": ["warm", "cold"]}


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, 2, coords=COORDS)


@pytest.fixture(scope="module")
def idata(model):
    """Chain 0: W known by hand. Chain 1: its components swapped."""
    W = np.array(
        [[[6.0, 0.5], [1.0, 1.5], [3.0, 3.0]], [[2.0, 0.5], [1.0, 0.5], [1.0, 1.0]]]
    )  # (draw, feature, component)
    return idata_of(model, W=np.stack([W, W[..., ::-1]]), H=np.ones((2, 2, 2, 4)))


def test_top_features_by_weight(idata):
    table = nz.top_features(idata, n=2)
    assert list(table.columns) == ["component", "place", "feature", "weight", "share", "share_low", "share_high"]
    assert list(table["component"]) == ["warm", "warm", "cold", "cold"]
    assert list(table["place"]) == [1, 2, 1, 2]
    assert list(table["feature"]) == ["sun", "snow", "snow", "rain"]
    np.testing.assert_allclose(table["weight"], [4.0, 2.0, 2.0, 1.0])
    np.testing.assert_allclose(table["share"], [(0.6 + 0.5) / 2, (0.3 + 0.25) / 2, (0.6 + 0.5) / 2, (0.3 + 0.25) / 2])
    assert np.all(table["share_low"] < table["share"])
    assert np.all(table["share"] < table["share_high"])
    shares = [0.6, 0.5, 0.6, 0.5]  # of sun in the first component, in the draws of both chains
    np.testing.assert_allclose(table.loc[0, ["share_low", "share_high"]].to_list(), np.quantile(shares, (0.05, 0.95)))


def test_top_features_of_another_chain(idata):
    """Its components are matched to those of the best chain, under whose labels they stand."""
    assert list(nz.top_features(idata, n=1, chain=1)["feature"]) == ["sun", "snow"]
    assert list(nz.top_features(idata, n=1, chain=1)["component"]) == ["warm", "cold"]


def test_top_features_by_specificity(idata):
    table = nz.top_features(idata, n=3, by="specificity").pivot(index="place", columns="component", values="feature")
    share = np.array([[0.55, 0.175], [0.175, 0.275], [0.275, 0.55]])  # (feature, component): means of the draws
    score = share * np.log(share / share.mean(axis=1, keepdims=True))
    for k, name in enumerate(COORDS["component"]):
        assert list(table[name]) == [COORDS["feature"][f] for f in np.argsort(-score[:, k])]


def test_more_features_than_there_are(idata):
    assert len(nz.top_features(idata, n=10)) == 6


def test_a_component_of_zeros_is_no_obstacle(model):
    W = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])[None, None]
    idata = idata_of(model, W=W, H=np.ones((1, 1, 2, 4)))
    for by in ("weight", "specificity"):
        assert np.all(np.isfinite(nz.top_features(idata, by=by)[["weight", "share"]]))
    np.testing.assert_array_equal(_compat.group(nz.unit_sum(idata), "posterior")["W"][..., 1], 0)


def test_transposed_factors_of_a_users_model():
    coords = {"word": ["sun", "rain", "snow"], "topic": ["warm", "cold"], "text": range(4)}
    with pm.Model(coords=coords) as model:
        theta = pm.Gamma("theta", 2, 1, dims=("topic", "word"))
        phi = pm.Gamma("phi", 2, 1, dims=("text", "topic"))
        pm.Poisson("X", theta.T @ phi.T, observed=X, dims=("word", "text"))
    theta = np.array([[6.0, 1.0, 3.0], [1.0, 1.5, 2.5]])[None, None]
    idata = idata_of(model, theta=theta, phi=np.ones((1, 1, 4, 2)))
    names = {"weights": "theta", "activations": "phi"}
    assert list(nz.top_features(idata, n=1, **names)["feature"]) == ["sun", "snow"]
    unit = _compat.group(nz.unit_sum(idata, **names), "posterior")
    assert unit["theta"].dims == ("chain", "draw", "topic", "word")
    np.testing.assert_allclose(unit["theta"].sum("word"), 1)
    np.testing.assert_allclose(unit["phi"][0, 0], [[10, 5]] * 4)


@pytest.mark.parametrize("dims", [True, False])
def test_unit_sum_leaves_the_product_alone(dims):
    with pm.Model(coords=COORDS | {"obs": range(4)}) as model:
        W = pm.Gamma("W", 2, 1, **({"dims": ("feature", "component")} if dims else {"shape": (3, 2)}))
        H = pm.Gamma("H", 2, 1, **({"dims": ("component", "obs")} if dims else {"shape": (2, 4)}))
        pm.Poisson("X", W @ H, observed=X)
    idata = random_idata(model, np.random.default_rng(0))
    stats = xr.Dataset({"lp": (("chain", "draw"), np.zeros((2, 3)))})
    idata = _compat.with_groups(idata, {"sample_stats": stats, "warmup_posterior": _compat.group(idata, "posterior")})
    unit = nz.unit_sum(idata)
    before = _compat.group(idata, "posterior")
    for group in ("posterior", "warmup_posterior"):
        after = _compat.group(unit, group)
        assert {name: v.dims for name, v in after.items()} == {name: v.dims for name, v in before.items()}
        np.testing.assert_allclose(after["W"].sum(after["W"].dims[2]), 1)
        product = (group["W"].to_numpy() @ group["H"].to_numpy() for group in (before, after))
        np.testing.assert_allclose(*product, rtol=1e-12)
    assert "lp" in _compat.group(unit, "sample_stats")
    assert "sum to 1" in unit.attrs["rescaled"]
    assert "rescaled" not in idata.attrs


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda i: nz.top_features(i, n=0), "n: got 0"),
        (lambda i: nz.top_features(i, by="lift"), r"by: got 'lift'; expected one of \['weight', 'specificity'\]"),
        (lambda i: nz.top_features(i, chain=9), r"chain: got 9; expected one of \[0, 1\]"),
        (lambda i: nz.top_features(i, weights="A"), "a posterior of W, H; expected one that holds A"),
        (lambda i: nz.unit_sum(i, activations="B"), "expected one that holds B"),
        (lambda i: nz.unit_sum(_compat.inference_data({}, {})), "no posterior group"),
    ],
)
def test_refusals(idata, act, message):
    with pytest.raises(InputError, match=message):
        act(idata)
