"""Stability: clusters of components, data drawn anew, and what is said of ranks, beside what was planted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
from scipy.stats import nbinom

import nmf_zoo as nz
from nmf_zoo.diagnostics.clusters import cluster_components
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.interfaces.cli import main
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.results.posterior import Draw
from nmf_zoo.workbench.stability import _Replicates, _RunningMeans, resampled

RNG = np.random.default_rng(1)
PROFILES = RNG.gamma(0.3, 1.0, (30, 3))
X = RNG.poisson(PROFILES @ RNG.gamma(0.5, 8.0, (3, 50)))
HOW = {"restarts": 6, "random_seed": 1, "quiet": True}


# -- clusters --------------------------------------------------------------------------------------------------------


def planted(n_fits=8, noise=0.02):
    """Fits that have the same three components in orders of their own, scaled, with a little noise."""
    orders = [RNG.permutation(3) for _ in range(n_fits)]
    W = np.stack([PROFILES[:, order] * RNG.uniform(5, 9, 3) for order in orders])
    return W * RNG.lognormal(0.0, noise, W.shape), orders


def test_clusters_are_those_that_were_planted():
    W, orders = planted()
    found = cluster_components(W)
    for members, order in zip(found.order, orders, strict=True):
        assert len({tuple(order[members])}) == 1
        np.testing.assert_array_equal(order[members], orders[0][found.order[0]])
    assert np.all(found.reproducibility == 1.0)
    assert np.all(found.silhouette > 0.95)
    assert np.all(found.cosine > 0.99)
    np.testing.assert_allclose(found.centre.sum(axis=0), 1.0)
    assert found.share.sum() == pytest.approx(1.0)


def test_silhouettes_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    W, _ = planted(noise=1.0)
    found = cluster_components(W)
    columns = np.concatenate([fit[:, order].T for fit, order in zip(W, found.order, strict=True)])
    labels = np.tile(np.arange(3), len(W))
    samples = metrics.silhouette_samples(columns, labels, metric="cosine")
    np.testing.assert_allclose(found.silhouette, [samples[labels == k].mean() for k in range(3)], rtol=1e-9)


def test_a_component_of_half_of_the_fits_did_not_come_again():
    W, orders = planted()
    for fit, order in zip(W[:4], orders[:4], strict=True):
        fit[:, list(order).index(1)] = RNG.gamma(0.3, 1.0, 30) * 7.0
    found = cluster_components(W)
    assert np.array_equal(found.reproducibility[:2], [1.0, 1.0])
    assert found.reproducibility[2] <= 0.5
    assert found.silhouette[2] < 0.6


def test_twins_and_empty_components_do_not_come_again():
    """They look alike from fit to fit, which says nothing."""
    W, orders = planted()
    first = [list(order).index(0) for order in orders]
    twins = np.concatenate([W, np.stack([fit[:, [k]] for fit, k in zip(W, first, strict=True)])], axis=2)
    empty = np.concatenate([W, np.full((8, 30, 1), 1e-4)], axis=2)
    assert np.array_equal(np.sort(cluster_components(empty).reproducibility), [0.0, 1.0, 1.0, 1.0])
    assert np.array_equal(np.sort(cluster_components(twins).reproducibility), [0.0, 0.0, 1.0, 1.0])
    assert cluster_components(empty).share.min() < 1e-2


def test_one_component_and_one_fit():
    W, _ = planted()
    assert np.all(np.isnan(cluster_components(W[:, :, :1]).silhouette))
    assert cluster_components(W[:1]).reproducibility.tolist() == [1.0, 1.0, 1.0]
    assert np.all(np.isfinite(cluster_components(np.zeros((3, 4, 2))).centre))


# -- data drawn anew -------------------------------------------------------------------------------------------------

MASK = RNG.uniform(size=X.shape) < 0.8
MODELS = {
    "dense": lambda: nz.gamma_nmf(X, 2),
    "missing": lambda: nz.gamma_nmf(X, 2, mask=MASK),
    "sparse": lambda: nz.gamma_nmf(sp.csc_array(X), 2),
    "stored": lambda: nz.gamma_nmf(sp.csc_array(X), 2, observed="stored"),
}


def table_of(structure):
    rows, cols, values = structure.observed_cells()
    return sp.coo_array((values, (rows, cols)), structure.shape).toarray()


@pytest.mark.parametrize("name", MODELS)
def test_each_sample_keeps_its_number_of_counts(name):
    structure = nz.read(MODELS[name]())
    drawn = resampled(structure, seed_key(1))
    table, original = table_of(drawn), table_of(structure)
    np.testing.assert_array_equal(table.sum(axis=0), original.sum(axis=0))
    assert np.all(table[original == 0] == 0)
    assert np.any(table != original)
    assert np.array_equal(table_of(resampled(structure, seed_key(1))), table)
    if name in ("missing", "stored"):
        assert drawn.data.observed_values.size == structure.data.observed_values.size


def test_counts_are_drawn_from_the_sample():
    """Their means are the counts, their variances those of a multinomial."""
    structure = nz.read(nz.gamma_nmf(np.array([[30, 5], [10, 0], [60, 5]]), 1))
    draws = np.stack([table_of(resampled(structure, child(seed_key(2), i))) for i in range(2000)])
    expected = np.array([30.0, 10.0, 60.0])
    spread = np.sqrt(expected * (1 - expected / 100))
    assert np.all(np.abs(draws[:, :, 0].mean(axis=0) - expected) < 5 * spread / np.sqrt(2000))
    np.testing.assert_allclose(draws[:, :, 0].std(axis=0), spread, rtol=0.1)


# -- ranks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return nz.stability(X, range(1, 6), **HOW)


def test_the_planted_rank_is_the_largest_that_comes_again(found):
    assert found.attrs["largest_stable"] == 3
    assert found["came_again"].sel(rank=3) == 3
    assert found["came_again"].sel(rank=5) <= 3
    assert "3 of 3" in found.attrs["answer"]
    assert found.attrs["status"] == "complete"
    W = found["W"].sel(rank=3).dropna("component").to_numpy()
    cosine = W.T @ PROFILES / np.outer(np.linalg.norm(W, axis=0), np.linalg.norm(PROFILES, axis=0))
    assert np.all(cosine.max(axis=1) > 0.99)


def test_scores_and_errors_follow_the_rank(found):
    error, heldout = found["error"].mean("restart"), found["heldout"].mean("restart")
    assert np.all(np.diff(error[:3]) < 0)
    assert heldout.idxmax("rank") in (3, 4, 5)
    assert heldout.sel(rank=3) > heldout.sel(rank=2) + 10.0


def test_shapes_and_what_is_missing(found):
    assert dict(found["reproducibility"].sizes) == {"rank": 5, "component": 5}
    assert found["reproducibility"].notnull().sum("component").to_numpy().tolist() == [1, 2, 3, 4, 5]
    assert dict(found["W"].sizes) == {"rank": 5, "feature": 30, "component": 5}
    assert np.all(found["status"] == "complete")
    np.testing.assert_allclose(found["share"].sum("component"), 1.0)


def test_components_have_the_labels_of_features():
    table = pd.DataFrame(X, index=[f"f{row}" for row in range(len(X))])
    assert list(nz.stability(table, [2], 2, random_seed=1, quiet=True)["feature"]) == list(table.index)


def test_a_function_a_model_and_threads_give_the_same(found):
    again = nz.stability(lambda rank: nz.gamma_nmf(X, rank), [2, 3], cores=2, **HOW)
    xr.testing.assert_allclose(again["cosine"], found["cosine"].sel(rank=[2, 3], component=[0, 1, 2]), rtol=1e-12)
    of_model = nz.stability(nz.gamma_nmf(X, 3), **HOW)
    np.testing.assert_allclose(of_model["heldout"], found["heldout"].sel(rank=[3]), rtol=1e-12)
    with ThreadPoolExecutor(2) as executor:
        elsewhere = nz.stability(X, [2, 3], executor=executor, **HOW)
    xr.testing.assert_identical(elsewhere["error"], again["error"])


@pytest.mark.parametrize("data", [X, sp.csc_array(X)], ids=["dense", "sparse"])
@pytest.mark.parametrize("replicates", ["holdout", "bootstrap", "same"])
def test_every_kind_of_replicates(replicates, data):
    table = nz.stability(data, [3], replicates=replicates, **HOW)
    assert ("heldout" in table) == (replicates == "holdout")
    assert table["came_again"].item() == 3
    least = float(table["cosine"].min())
    assert least > (0.9999 if replicates == "same" else 0.9)


def test_other_engines_and_likelihoods():
    table = nz.stability(X.astype(float) + 0.5, [2], 3, random_seed=1, quiet=True, method=nz.Holdout(engine="vb"))
    assert np.all(np.isfinite(table["error"]))
    of_em = nz.stability(
        lambda rank: nz.poisson_nmf(X, rank), [2], 3, random_seed=1, quiet=True, method=nz.Holdout(engine="em", draws=1)
    )
    assert np.all(np.isfinite(of_em["heldout"]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"replicates": "bootstraps"}, r"replicates: got 'bootstraps'.*did you mean 'bootstrap'\?"),
        ({"restarts": 1}, "restarts: got 1"),
        ({"method": "holdout"}, "method: got 'holdout'"),
        ({"ranks": None}, "ranks: got None"),
        ({"ranks": [0]}, "ranks: got 0"),
        ({"declare": X + 0.5, "replicates": "bootstrap"}, "replicates: got 'bootstrap' with values that are no counts"),
        ({"declare": nz.gamma_nmf(X, 2), "ranks": [3]}, r"ranks: got \[3\]; expected None, or \[2\]"),
        ({"n_restarts": 2}, r"an argument that stability doesn't have.*did you mean 'restarts'\?"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        nz.stability(**{"declare": X, "ranks": [2], "quiet": True, **given})
    with pytest.raises(UnsupportedModel):
        nz.stability(lambda rank: nz.poisson_nmf(X, rank), [2], quiet=True)  # W is free, which VB refuses


# -- pictures and the command line -----------------------------------------------------------------------------------


@pytest.mark.engines
def test_one_picture_of_all(found):
    pytest.importorskip("matplotlib")
    judged = nz.select_rank(
        lambda rank: nz.gamma_nmf(X, rank), [2, 3, 4], restarts=2, search=None, random_seed=1, quiet=True
    )
    labels = [axes.get_ylabel() for axes in nz.plot_stability(found, evidence=judged).axes]
    assert labels == ["log evidence\nless the best", "held out\n(nats)", "stability", "error\n(nats a cell)"]
    alone = nz.plot_stability(found.drop_vars("heldout"))
    assert [axes.get_ylabel() for axes in alone.axes] == labels[2:]
    points = next(line for line in alone.axes[0].lines if line.get_label().startswith("came again"))
    assert np.nansum(np.isfinite(points.get_ydata())) == 15
    assert alone.axes[-1].get_xticks().tolist() == [1, 2, 3, 4, 5]
    for wrong in ({"table": judged}, {"table": found, "evidence": found}):
        with pytest.raises(InputError, match="the result of nz"):
            nz.plot_stability(**wrong)


def test_the_command_line_shows_it(tmp_path, capsys):
    np.savetxt(tmp_path / "x.csv", X, delimiter=",", fmt="%d")
    line = ["rank", str(tmp_path / "x.csv"), "--ranks", "2:3", "--restarts", "2", "--search", "0", "--random-seed", "1"]
    outputs = [tmp_path / "t.csv", tmp_path / "t.nc", tmp_path / "t.png"]
    options = [word for path in outputs for word in ("-o", str(path))]
    assert main([*line, "--stability", "4", *options]) == 0
    said = capsys.readouterr().out
    assert "came again" in said.splitlines()[0]
    assert "3 of 3" in said
    assert "all of rank 3" in said
    assert all(path.stat().st_size > 0 for path in outputs)
    assert "stability_came_again" in outputs[0].read_text().splitlines()[0]
    assert main([*line, "--stability", "1"]) == 2
    assert "--stability: got 1" in capsys.readouterr().err


def test_a_failure_is_said(monkeypatch):
    from nmf_zoo.errors import RunFailed
    from nmf_zoo.workbench import stability

    kept = stability.fitted_draws

    def failing(structure, method, search, job):
        if job.number == 0:
            raise RunFailed("no luck")
        return kept(structure, method, search, job)

    monkeypatch.setattr(stability, "fitted_draws", failing)
    with pytest.warns(nz.NmfZooWarning, match="1 of 6 fits failed; the first: failed: no luck"):
        table = nz.stability(X, [2], **HOW | {"quiet": False, "progressbar": False})
    assert table["status"].to_numpy().ravel().tolist().count("complete") == 5
    assert table["cosine"].isel(restart=0).isnull().all()


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_fits_that_are_done_are_not_made_again(tmp_path, monkeypatch):
    """The same call reads them, one with more fits makes those that are missing, to the same table."""
    how = {"random_seed": 1, "quiet": True}
    whole = nz.stability(X, [2, 3], 4, **how)
    first = nz.stability(X, [2, 3], 3, checkpoint=tmp_path / "run", **how)
    made, real = [], _Replicates._fit
    monkeypatch.setattr(_Replicates, "_fit", lambda self, *given: made.append(given) or real(self, *given))
    again = nz.stability(X, [2, 3], 3, checkpoint=tmp_path / "run", **how)
    assert made == []
    assert again.equals(first)  # seconds are those of the first session
    longer = nz.stability(X, [2, 3], 4, checkpoint=tmp_path / "run", **how)
    assert len(made) == 2
    assert longer.drop_vars("seconds").equals(whole.drop_vars("seconds"))


def test_a_folder_of_another_run_is_refused(tmp_path):
    nz.stability(X, [2], 2, checkpoint=tmp_path / "run", random_seed=1, quiet=True)
    for other in ({"replicates": "same"}, {"random_seed": 2}, {"declare": X + 1}):
        how = {"declare": X, "ranks": [2], "restarts": 2, "random_seed": 1, "quiet": True, **other}
        with pytest.raises(InputError, match="checkpoint: got"):
            nz.stability(checkpoint=tmp_path / "run", **how)
    with pytest.raises(InputError, match=r"checkpoint: got 3; expected the path of a folder"):
        nz.stability(X, [2], 2, checkpoint=3)


def test_the_error_is_that_of_all_means():
    """The parameters of X's law, too, are means over the draws, and not those of the last one."""
    counts = X[:4, :5]
    structure = nz.read(nz.negative_binomial_nmf(counts, 1))
    draws = [
        Draw(np.full((4, 1), w), np.full((1, 5), h), {"alpha": np.float64(alpha)}, (0, i), (0, i))
        for i, (w, h, alpha) in enumerate([(1.0, 2.0, 0.5), (3.0, 4.0, 9.5)])
    ]
    means = _RunningMeans()
    assert len(list(means.of(draws))) == 2
    expected = -nbinom.logpmf(counts, 5.0, 5.0 / (5.0 + 2.0 * 3.0)).mean()
    assert means.error(structure) == pytest.approx(expected, rel=1e-12)
