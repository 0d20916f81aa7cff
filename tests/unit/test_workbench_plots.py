"""Pictures of comparisons, calibrations and fits: what they show, and whom they refuse."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo.errors import InputError
from nmf_zoo.plots.calibration import bin_edges, excess, histogram_band, relative_counts, uniform_band
from nmf_zoo.workbench.calibrate import judge_ranks

X = np.random.default_rng(0).poisson(4.0, (5, 6))


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, rank=2)


def test_a_comparison_has_its_samplers_and_optimisers(model):
    how = {"draws": 100, "tune": 50, "chains": 2, "random_seed": 1, "cores": 2}
    figure = nz.plot_comparison(nz.compare_engines(model, ["gibbs", "vb"], **how))
    rates, means, spreads = figure.axes
    assert [label.get_text() for label in rates.get_yticklabels()] == ["gibbs", "vb"]
    texts = [text.get_text() for axes in (rates, means) for text in axes.texts]
    assert texts[0].startswith("optimiser, ")
    assert texts[1] == "reference"
    assert rates.get_xscale() == "log"
    assert len(spreads.lines) == 2  # the ratios of one engine, and 1


def test_calibrations_name_what_is_off():
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.integers(0, 32, 300), np.round(31 * rng.beta(0.5, 0.5, 300)).astype(int)], axis=1)
    figure = nz.plot_calibration(judge_ranks(ranks, ["a", "b"], 31, {"engine": "vb"}))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["a: calibrated", "b: too narrow"]
    colours = [axes.lines[0].get_color() for axes in figure.axes[2:]]
    assert colours[0] != colours[1]
    heights = [axes.patches[-1].get_data().values for axes in figure.axes[:2]]
    bands = [axes.patches[0].get_data() for axes in figure.axes[:2]]
    outside = [np.any((own < band.baseline) | (own > band.values)) for own, band in zip(heights, bands, strict=True)]
    assert outside == [False, True]
    assert heights[1][0] > 1.5  # a U
    np.testing.assert_allclose([own @ np.diff(bin_edges(300, 31)) / 32 for own in heights], 1.0)


def held(band, curves):
    """The part of the curves that lie in a band."""
    return np.mean(np.all((curves >= band[0]) & (curves <= band[1]), axis=1))


def test_bands_hold_95_percent_of_whole_curves():
    at, ranks = np.linspace(0, 1, 101), np.random.default_rng(1).integers(0, 64, (2000, 150))
    assert 0.92 < held(uniform_band(150, 63, at), excess(ranks, 63, at)) < 0.98
    edges = bin_edges(150, 63)
    assert 0.92 < held(histogram_band(150, 63, edges), relative_counts(ranks, 63, edges)) < 0.99  # counts are whole


def test_restarts_of_a_fit_are_lines(model):
    idata = nz.fit(engine="em", restarts=3, search=None, model=model, random_seed=1, quiet=True)
    whole, gap = nz.plot_objective(idata).axes
    assert len(whole.lines) == len(gap.lines) == 3
    assert gap.get_yscale() == "log"


def test_activations_are_in_units_of_the_data(model):
    idata = nz.sample(100, tune=50, chains=1, model=model, random_seed=1, quiet=True)
    figure = nz.plot_activations(idata)
    assert len(figure.axes) == 2
    drawn = sum(axes.lines[0].get_ydata() for axes in figure.axes)
    np.testing.assert_allclose(drawn, X.sum(axis=0), rtol=0.35)


def test_activations_of_a_projection_use_the_weights_that_it_knew(model):
    idata = nz.sample(100, tune=50, chains=1, model=model, random_seed=1, quiet=True)
    new = nz.project(idata, X[:, :3], model=model, draws=100, tune=50, chains=1, random_seed=1, quiet=True)
    drawn = sum(axes.lines[0].get_ydata() for axes in nz.plot_activations(new).axes)
    np.testing.assert_allclose(drawn, X[:, :3].sum(axis=0), rtol=0.35)


def test_many_images_go_to_more_than_one_line():
    table = np.random.default_rng(0).poisson(4.0, (16, 20))
    idata = nz.fit(engine="vb", model=nz.gamma_nmf(table, rank=14), max_iter=5, random_seed=1, quiet=True)
    figure = nz.plot_components(idata, shape=(4, 4))
    titles = [axes.get_title() for axes in figure.axes if axes.images and axes.get_title()]
    assert titles == [f"w[{k}]" for k in range(14)] * 2  # means, then their uncertainty


def test_many_samples_are_a_line_with_a_band():
    wide = nz.gamma_nmf(np.random.default_rng(0).poisson(4.0, (2, 80)), rank=1)
    (axes,) = nz.plot_activations(nz.fit(engine="vb", model=wide, random_seed=1, quiet=True)).axes
    assert len(axes.lines[0].get_xdata()) == 80
    assert len(axes.collections) == 1


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_reconstruction_shows_data_mean_and_residual(is_sparse):
    data = X.astype(float)
    if is_sparse:
        model = nz.gamma_nmf(sp.csr_matrix(data), rank=2)
    else:
        data[1, 2] = np.nan
        model = nz.gamma_nmf(data, rank=2)
    idata = nz.sample(100, tune=50, chains=1, model=model, random_seed=1, quiet=True)
    figure = nz.plot_reconstruction(idata, model, samples=2)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[:3] == ["data", "posterior mean", "residual / sd"]
    assert all("inside 90%" in title for title in titles[3:])
    shown = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    np.testing.assert_array_equal(shown, data)


def test_samples_that_are_images(model):
    idata = nz.fit(engine="vb", model=model, max_iter=20, draws=30, random_seed=1, quiet=True)
    with pytest.raises(InputError, match="shape: got 2x3; expected 5 pixels"):
        nz.plot_reconstruction(idata, model, shape=(2, 3))
    figure = nz.plot_reconstruction(idata, model, samples=2, shape=(1, 5))
    images = [axes for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"][3:]
    assert [axes.get_title() for axes in images[:4]] == ["data", "posterior mean", "residual / sd", "sd of the mean"]
    assert [axes.get_ylabel() for axes in images[::4]] == ["obs 0", "obs 5"]
    np.testing.assert_array_equal(images[4].images[0].get_array(), X[:, [-1]].T)
    rates = np.einsum("...fk,...kn->...fn", *(idata["posterior"][name].to_numpy() for name in "WH"))
    np.testing.assert_allclose(images[5].images[0].get_array(), rates.mean((0, 1))[:, [-1]].T)
    np.testing.assert_allclose(images[7].images[0].get_array(), rates.std((0, 1))[:, [-1]].T)


def test_powers_are_drawn_in_decades():
    powers = np.array([[1e-12, 1.0, 2.0], [1.0, 3.0, 0.5]])
    model = nz.is_nmf(pd.DataFrame(powers, columns=[0.0, 1 / 3, 2 / 3]), rank=1)
    idata = nz.fit(engine="vb", model=model, max_iter=20, draws=30, random_seed=1, quiet=True)
    figure = nz.plot_reconstruction(idata, model, samples=2)
    of_data, *_ = figure.axes
    assert of_data.images[0].norm.vmin >= 1e-6 * of_data.images[0].norm.vmax
    shown = of_data.images[0].get_array()
    assert not np.ma.getmaskarray(shown).any()  # the faintest is drawn, and not as missing
    np.testing.assert_array_equal(shown[0, 1:], powers[0, 1:])
    samples = [axes for axes in figure.axes if "inside" in axes.get_title()]
    assert [axes.get_title().partition(":")[0] for axes in samples] == ["obs 0", "obs 0.6667"]
    assert all(axes.get_yscale() == "log" for axes in samples)


def test_a_filter_shows_its_particles_and_each_component_in_order():
    """The second component is the larger one, so that it is the first of every picture, under its name."""
    counts = [[0, 3, 2, 0, 0, 3], [9, 8, 0, 9, 8, 0], [7, 9, 0, 8, 9, 0]]
    model = nz.hmm_nmf(counts, 2, chain=nz.BasisChain(0.9, 0.8), background=0.1)
    start = {"W": np.array([[3.0, 0.1], [0.1, 9.0], [0.1, 8.0]])}
    how = {"max_iter": 1, "draws": 20, "tol": 0, "random_seed": 1, "quiet": True, "search": None}
    idata = nz.fit(model=model, engine=nz.ParticleEM(particles=50), initvals=start, **how)
    fit = idata["fit"]
    assert np.all(idata["components"]["order"].to_numpy() == [1, 0])
    above, *rows = nz.plot_filter(nz.name_components(idata, {0: "large"})).axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), fit["ess"].to_numpy()[0])
    assert [axes.get_ylabel() for axes in rows] == ["large", "1"]
    for result in (idata, nz.align(idata)):
        above, *rows = nz.plot_filter(result).axes
        shown = np.array([axes.lines[0].get_ydata() for axes in rows])
        np.testing.assert_array_equal(shown, fit["H_filtered"].to_numpy()[0, ::-1])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (nz.plot_comparison, "comparison: got int; expected the result of nz.compare_engines"),
        (nz.plot_objective, "idata: got no group fit; expected the result of nz.fit"),
        (nz.plot_filter, "idata: got no ess, resampled, H_filtered, H_filtered_sd, H_mean in a group fit"),
    ],
)
def test_other_objects_are_refused(draw, message):
    with pytest.raises(InputError, match=message):
        draw(3)


def test_a_dataset_that_is_no_calibration_is_refused(model):
    with pytest.raises(InputError, match=r"expected the result of nz\.calibrate"):
        nz.plot_calibration(nz.simulate(model, 1))
