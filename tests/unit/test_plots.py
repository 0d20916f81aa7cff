"""Figures of a result, as notebooks show them."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.plots import activations
from nmf_zoo.results.components import activations_and_totals, component_shares
from tests.results import idata_of

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result():
    model = nz.gamma_nmf(np.arange(24).reshape(4, 6) + 1, 2)
    return nz.sample(20, tune=20, chains=2, random_seed=1, quiet=True, model=model)


@pytest.mark.parametrize("how", [{}, {"shape": (2, 2)}, {"chain": 1}])
def test_notebooks_show_components(result, how):
    assert nz.plot_components(result, **how)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("is_aligned", [False, True])
def test_all_chains_of_one_mode_are_shown(is_aligned):
    model = nz.gamma_nmf(np.kron(np.eye(2, dtype=int), np.full((2, 3), 50)) + 1, 2)
    result = nz.sample(20, tune=50, chains=2, random_seed=1, quiet=True, model=model)
    result = nz.align(result) if is_aligned else result
    shares = component_shares(result)
    assert shares.sizes["draw"] == 40
    for chain in (0, 1):
        np.testing.assert_array_equal(shares[20 * chain : 20 * chain + 20], component_shares(result, chain))
    assert "all 2 chains" in nz.plot_components(result, shape=(2, 2)).get_suptitle()
    assert "chain 1" in nz.plot_components(result, chain=1, shape=(2, 2)).get_suptitle()


def test_notebooks_show_traces(result):
    assert nz.plot_trace(result)._repr_png_().startswith(b"\x89PNG")


def test_a_wrong_image_shape_is_refused(result):
    with pytest.raises(nz.InputError, match="shape: got 3x3; expected 4 pixels"):
        nz.plot_components(result, shape=(3, 3))


# -- samples and estimates as what they are ---------------------------------------------------------------------------


def table(columns):
    X = np.random.default_rng(0).poisson(5.0 * np.kron(np.eye(2), np.ones((3, len(columns) // 2))) + 1)
    return pd.DataFrame(X, columns=columns)


def fitted(columns, engine="vb"):
    model = (nz.gamma_nmf if engine == "vb" else nz.poisson_nmf)(table(columns), 2)
    return nz.fit(model, engine=engine, max_iter=5, tol=0, random_seed=1, quiet=True, search=None)


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("kind", ["datetime64", "Period", "date"])
def test_dates_are_places_on_the_axis(kind, n, tmp_path):
    """And times in files, too."""
    periods = pd.period_range("2020-01", periods=n, freq="M")
    columns = {"datetime64": periods.to_timestamp(), "Period": periods, "date": list(periods.to_timestamp().date)}[kind]
    result = fitted(columns)
    nz.save(result, tmp_path / "x.nc")
    for idata in (result, nz.load(tmp_path / "x.nc")):
        labels = _compat.group(idata, "posterior")["obs"].to_numpy()
        np.testing.assert_array_equal(labels.astype("datetime64[D]"), periods.to_timestamp().to_numpy("datetime64[D]"))
    from matplotlib.dates import num2date

    axes = nz.plot_activations(result).axes[-1]
    low, high = num2date(axes.get_xlim())
    assert low.year in (2019, 2020)
    assert high.year >= 2020 + n // 12
    axes.figure.canvas.draw()
    said = [label.get_text() for label in axes.get_xticklabels()] + [axes.xaxis.get_offset_text().get_text()]
    assert "2021" in " ".join(said)


@pytest.mark.parametrize(("n", "shown"), [(20, 20), (100, 50)])
def test_names_of_samples_stay_readable_and_are_not_joined(n, shown):
    """Samples without an order are points, whatever their number, and those that there is room for are named."""
    axes = nz.plot_activations(fitted([f"patient {i}" for i in range(n)]), order="given").axes[-1]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == [f"patient {i}" for i in range(0, n, -(-n // shown))]
    assert all(line.get_linestyle() == "None" for line in axes.get_lines())
    numbered = nz.plot_activations(fitted(range(n))).axes[-1]
    assert [line.get_linestyle() for line in numbered.get_lines()] == ["None" if n <= 60 else "-"]


@pytest.mark.parametrize("features", [6, 200])
def test_point_estimates_have_no_interval(features):
    X = np.random.default_rng(0).poisson(5.0, (features, 8))
    how = {"max_iter": 5, "tol": 0, "random_seed": 1, "quiet": True, "search": None}
    point = nz.fit(nz.poisson_nmf(X, 2), engine="em", **how)
    spread = nz.fit(nz.gamma_nmf(X, 2), engine="vb", **how)
    for plot in (nz.plot_components, nz.plot_activations):
        assert plot(point).get_suptitle().endswith("point estimate")
        assert plot(spread).get_suptitle().endswith("posterior mean and 90% interval")


def test_pictures_of_many_samples_take_no_copies_of_the_draws():
    """What they add, quantiles and means are made of a component at a time."""
    rng = np.random.default_rng(0)
    model = nz.gamma_nmf(np.ones((4, 1000), int), 4)
    draws = idata_of(model, W=rng.random((1, 20, 4, 4)), H=rng.random((1, 20, 4, 1000)))
    nz.plot_activations(draws)
    tracemalloc.start()
    H, totals = activations_and_totals(draws)
    found = activations._summary(H, totals)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = 8 * 20 * 4 * 1000
    sizes = H.to_numpy() * totals[..., None]
    expected = sizes.mean(axis=0), *np.quantile(sizes, (0.05, 0.95), axis=0)
    np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-12)
    assert peak < 2.0 * size, peak / size
