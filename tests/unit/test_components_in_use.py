"""How many components are in use: on draws made by hand, and on simulated tables of known rank."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.interfaces.cli.show import summary_lines
from tests.results import idata_of

F, N, ARD = 7, 8, nz.ARD()
pytestmark = pytest.mark.filterwarnings("ignore:X. .* no positive observed cell")


def result(sizes, relevance=None, prior=ARD):
    """Draws (chain, draw) of components of these sizes, (chain, draw, component)."""
    sizes = np.asarray(sizes, dtype=np.float64)
    rank = sizes.shape[-1]
    arrays = {"W": np.ones((*sizes.shape[:2], F, rank)), "H": np.tile(sizes[..., None] / (F * N), N)}
    model = nz.gamma_nmf(np.ones((F, N)), rank)
    if relevance is not None:
        model = nz.gamma_nmf(np.ones((F, N)), rank, prior=prior)
        arrays[prior.name] = np.asarray(relevance, dtype=np.float64)
    return idata_of(model, **arrays)


def test_each_draw_has_its_count_and_all_have_an_interval():
    found = nz.components_in_use(result([[[8, 1, 1], [8, 1, 0.1], [8, 0.1, 1], [9, 0.2, 0.1]]]))
    assert found["count"].values.tolist() == [[3, 2, 2, 1]]
    np.testing.assert_allclose(found["share"].values[0, 0], [0.8, 0.1, 0.1])
    assert found["probability"].values.tolist() == [[1.0, 0.5, 0.5]]
    expected = {"count": 2, "lower": 1, "upper": 3}
    assert {name: found.attrs[name] for name in expected} == expected
    said = "2 of 3 components are in use (90 % interval 1 to 3): at least 0.05 times the largest."
    assert found.attrs["answer"] == said


def test_the_relevance_is_squared_and_both_must_be_large():
    sizes = [[[8, 8, 0.01, 8]]]
    assert nz.components_in_use(result(sizes, [[[1, 0.25, 1, 0.2]]])).attrs["count"] == 2  # 0.0625, 0.04
    assert nz.components_in_use(result(sizes, [[[1, 0.25, 1, 0.2]]]), least=0.04).attrs["count"] == 3


@pytest.mark.parametrize(
    ("cells", "law", "power"),
    [
        ("exponential", "inverse-gamma", 1.0),
        ("exponential", "gamma", -1.0),
        ("half-normal", "inverse-gamma", 2.0),
        ("half-normal", "gamma", -2.0),
    ],
)
def test_a_relevance_of_any_form_is_that_of_the_mean(cells, law, power):
    """0.25 of the largest mean is 0.0625 of its product, 0.2 is 0.04."""
    means = np.array([1.0, 0.25, 1.0, 0.2])
    found = result([[[8, 8, 0.01, 8]]], [[means**power]], nz.ARD(cells=cells, law=law))
    assert nz.components_in_use(found).attrs["count"] == 2
    assert nz.components_in_use(found, least=0.039).attrs["count"] == 3


@pytest.mark.parametrize("name", ["relevance", "tau"])
@pytest.mark.parametrize("is_switching", [False, True])
def test_a_relevance_with_a_dim_of_its_own_keeps_to_its_component(name, is_switching):
    """As PyMC has it without dims; the component that is in use was drawn last, and may change places."""
    large = np.array([[[False, True], [is_switching, not is_switching], [False, True]]])
    blocks = np.array([[1.0] * 3 + [0.0] * 4, [0.0] * 3 + [1.0] * 4])  # (component, feature)
    arrays = {"W": np.where(large[..., None, :], blocks[1][:, None], blocks[0][:, None])}
    arrays["H"] = np.tile(np.where(large, 9.0, 6.0)[..., None], N)
    idata = idata_of(nz.gamma_nmf(np.ones((F, N)), 2), **arrays)
    relevance = (("chain", "draw", f"{name}_dim_0"), np.where(large, 1.0, 0.1))
    posterior = _compat.group(idata, "posterior").assign({name: relevance}).assign_coords({f"{name}_dim_0": [0, 1]})
    found = nz.components_in_use(_compat.with_groups(idata, {"posterior": posterior}), relevance=name)
    assert found["probability"].values.tolist() == [[1.0, 0.0]]
    if name == "relevance":
        aligned = nz.align(_compat.with_groups(idata, {"posterior": posterior}))
        assert nz.components_in_use(aligned)["probability"].values.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([1.0] * 5, 5),  # all equal
        ([1e-9] * 5, 5),
        ([3.0], 1),
        ([0.0, 0.0, 0.0], 1),  # nothing at all
        ([0.0, 2.0, 0.0], 1),
        ([1e200, 1e-200], 1),
    ],
)
def test_none_of_these_empties_all(sizes, count):
    found = nz.components_in_use(result([[sizes]], [[np.sqrt(sizes)]]))
    assert found.attrs["count"] == count
    assert np.all(np.isfinite(found["share"]))


def test_products_beyond_all_numbers_are_compared():
    idata = idata_of(
        nz.gamma_nmf(np.ones((F, N)), 2),
        W=np.full((1, 1, F, 2), 1e200),
        H=np.full((1, 1, 2, N), 1e200) * [[[[1.0], [0.01]]]],
    )
    assert nz.components_in_use(idata).attrs["count"] == 1
    assert nz.components_in_use(idata, least=0.01).attrs["count"] == 2


def test_the_order_of_components_and_the_unit_do_not_matter():
    sizes = np.random.default_rng(1).gamma(0.3, size=(2, 50, 6))
    one = nz.components_in_use(result(sizes))["count"]
    np.testing.assert_array_equal(one, nz.components_in_use(result(7e5 * sizes[..., ::-1]))["count"])


def test_of_a_fit_the_best_restart_counts():
    model = nz.gamma_nmf(np.arange(F * N).reshape(F, N), 2, prior="ard")
    fitted = nz.fit(model=model, engine="vb", restarts=3, search=None, random_seed=1, max_iter=5, draws=7, quiet=True)
    assert nz.components_in_use(fitted)["count"].shape == (1, 7)
    assert nz.components_in_use(fitted, chain=2)["count"].shape == (1, 7)


def test_means_of_moments_are_one_draw():
    model = nz.gamma_nmf(np.arange(F * N).reshape(F, N), 2, prior="ard")
    kept = nz.sample(20, tune=20, chains=2, keep="moments", random_seed=1, quiet=True, model=model)
    found = nz.components_in_use(kept)
    assert found["count"].shape == (2, 1)
    assert "interval" not in found.attrs["answer"]
    assert "lower" not in found.attrs


BAD = {
    "least": ({"least": 0.0}, "least: got 0.0; expected a number above 0 and at most 1"),
    "least of one": ({"least": True}, "least: got True"),
    "chain": ({"chain": 7}, r"chain: got 7; expected one of \[0\]"),
    "weights": ({"weights": "V"}, "expected one that holds V"),
    "activations": ({"activations": "G"}, r"activations: got 'G'; expected one of \['W', 'H'\]"),
    "relevance": ({"relevance": "t"}, "relevance: got 't', no such variable"),
    "not a relevance": ({"relevance": "W"}, r"relevance: got 'W', one of shape \(7, 2\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_get_a_line(name):
    arguments, words = BAD[name]
    with pytest.raises(InputError, match=words):
        nz.components_in_use(result([[[1.0, 2.0]]]), **arguments)


def table(rank, seed, shape=(30, 50), mean=10.0):
    rng = np.random.default_rng([rank, seed])
    product = rng.gamma(0.4, size=(shape[0], rank)) @ rng.gamma(0.4, size=(rank, shape[1]))
    return rng.poisson(product * mean / product.mean())


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_simulated_tables_have_their_rank(rank, kind):
    X = table(rank, 0)
    X = scipy.sparse.csr_array(X) if kind == "sparse" else X
    model = nz.gamma_nmf(X, rank + 5, prior="ard")
    assert nz.components_in_use(nz.fit(model=model, engine="vb", random_seed=1, quiet=True)).attrs["count"] == rank


def test_draws_of_gibbs_have_it_too():
    model = nz.gamma_nmf(table(3, 1), 8, prior="ard")
    found = nz.components_in_use(nz.sample(200, tune=200, chains=2, random_seed=1, quiet=True, model=model))
    assert found.attrs["count"] == 3
    assert found.attrs["lower"] <= 3 <= found.attrs["upper"] < 8


def test_a_table_of_one_count_uses_some():
    X = np.zeros((8, 9), int)
    X[2, 3] = 1
    model = nz.gamma_nmf(X, 4, prior="ard")
    assert 1 <= nz.components_in_use(nz.fit(model=model, engine="vb", random_seed=1, quiet=True)).attrs["count"] <= 4


def test_a_prior_that_does_not_shrink_keeps_the_surplus():
    """What the count is not: an estimate of the rank under any prior."""
    model = nz.gamma_nmf(table(3, 0), 8, alpha_w=3.0, alpha_h=3.0)
    assert nz.components_in_use(nz.fit(model=model, engine="vb", random_seed=1, quiet=True)).attrs["count"] > 3


def test_the_summary_and_the_report_say_it(tmp_path):
    model = nz.gamma_nmf(table(3, 0), 8, prior="ard")
    fitted = nz.fit(model=model, engine="vb", random_seed=1, quiet=True)
    answer = nz.components_in_use(fitted).attrs["answer"]
    assert answer.startswith("3 of 8 components are in use")
    assert f"in use      {answer}" in list(summary_lines(fitted, 0))
    page = nz.report(fitted, tmp_path / "page.html", model).read_text(encoding="utf-8")
    assert "3 of 8 components are in use" in page
    plain = nz.fit(model=nz.gamma_nmf(table(3, 0), 2), engine="vb", random_seed=1, quiet=True)
    assert not any(line.startswith("in use") for line in summary_lines(plain, 0))


def test_components_keep_their_labels():
    model = nz.gamma_nmf(np.ones((F, N)), 2, coords={"component": ["a", "b"]})
    found = nz.components_in_use(idata_of(model, W=np.ones((1, 1, F, 2)), H=np.ones((1, 1, 2, N))))
    assert found["share"]["component"].values.tolist() == ["a", "b"]
