"""``nz.tl.nmf``: what it reads from an AnnData and what it writes, beside what was simulated."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.interfaces.annotated import _estimates

anndata = pytest.importorskip("anndata", reason="needs anndata, of the extra anndata")
pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # that anndata sets

N, F, K = 200, 30, 2
RNG = np.random.default_rng(4)
PROGRAMS, AMBIENT = RNG.dirichlet(np.full(F, 0.2), K), RNG.dirichlet(np.full(F, 0.3), 2)
USAGE, DEPTH, BATCH = RNG.gamma(0.5, 1.0, (N, K)), RNG.lognormal(5.0, 0.4, N), RNG.integers(0, 2, N)
MEAN = DEPTH[:, None] * (0.7 * USAGE @ PROGRAMS + 0.3 * AMBIENT[BATCH])
COUNTS = RNG.poisson(MEAN)
HOW = {
    "layer": "counts",
    "size_factors": "depth",
    "alpha_w": 0.3,
    "alpha_h": 0.5,
    "random_seed": 1,
    "run": {"search": None},
}


def made(layout=sp.csr_matrix):
    obs = pd.DataFrame({"batch": BATCH.astype(str), "depth": DEPTH}, index=[f"c{i}" for i in range(N)])
    var = pd.DataFrame(index=[f"g{i}" for i in range(F)])
    return anndata.AnnData(layout(np.log1p(COUNTS)), obs=obs, var=var, layers={"counts": layout(COUNTS)})


def cosines(columns, rows):
    columns, rows = (each / np.linalg.norm(each, axis=axis, keepdims=True) for each, axis in ((columns, 0), (rows, 1)))
    return rows @ columns


@pytest.fixture(scope="module")
def fitted():
    adata = made()
    assert nz.tl.nmf(adata, K, batch="batch", **HOW) is None
    return adata


def test_what_is_written(fitted):
    assert fitted.varm["nmf"].shape == fitted.varm["nmf_sd"].shape == (F, K)
    assert fitted.obsm["nmf"].shape == fitted.obsm["nmf_sd"].shape == (N, K)
    assert fitted.varm["nmf_batch"].shape == (F, 2)
    said = fitted.uns["nmf"]
    np.testing.assert_allclose(fitted.varm["nmf"].sum(axis=0), 1.0, rtol=1e-12)
    assert said["share"].sum() + said["batch_share"].sum() == pytest.approx(1.0)
    assert said["share"][0] >= said["share"][1]
    assert said["batches"] == ["0", "1"]
    assert said["converged"] is True
    assert said["evidence"] == said["objective"][-1] < 0
    assert said["version"] == nz.__version__
    assert said["params"] == {
        "rank": K,
        "layer": "counts",
        "batch": "batch",
        "alpha_w": 0.3,
        "alpha_h": 0.5,
        "engine": "vb",
    }
    assert sp.issparse(fitted.layers["counts"])


def test_programs_and_batches_are_those_that_were_simulated(fitted):
    assert np.all(cosines(fitted.varm["nmf"], PROGRAMS).max(axis=1) > 0.98)
    assert np.all(np.diag(cosines(fitted.varm["nmf_batch"], AMBIENT)) > 0.9)


def test_the_parts_add_up_to_the_mean(fitted):
    sizes = fitted.obs["nmf_size_factor"].to_numpy()
    assert np.array_equal(sizes, DEPTH)
    mean = sizes[:, None] * (fitted.obsm["nmf"] @ fitted.varm["nmf"].T + fitted.varm["nmf_batch"].T[BATCH])
    assert np.abs(mean - MEAN).sum() < 0.5 * np.abs(COUNTS - MEAN).sum()
    np.testing.assert_allclose(mean.sum(), COUNTS.sum(), rtol=0.02)


def test_without_batches_their_counts_go_into_the_components(fitted):
    adata = made()
    nz.tl.nmf(adata, K, **HOW)
    assert "nmf_batch" not in adata.varm
    assert adata.uns["nmf"]["evidence"] < fitted.uns["nmf"]["evidence"] - 100.0


def test_means_and_deviations_are_those_of_the_posterior():
    """Beside the same declaration run by hand, where size factors are 1."""
    adata = made()
    nz.tl.nmf(adata, K, **HOW | {"size_factors": None})
    mean = COUNTS.mean() / K
    priors = {"alpha_w": 0.3, "beta_w": 0.3, "alpha_h": 0.5, "beta_h": 0.5 / mean}
    model = nz.gamma_nmf(COUNTS.T, K, **priors)
    found = nz.fit(engine="vb", random_seed=1, quiet=True, search=None, model=model)
    assert adata.uns["nmf"]["evidence"] == pytest.approx(
        float(_compat.group(found, "fit")["objective"].max()), rel=1e-6
    )
    group = _compat.group(found, "fit").isel(chain=0)
    W, W_sd = (group["W_shape"] / group["W_rate"]).to_numpy(), (np.sqrt(group["W_shape"]) / group["W_rate"]).to_numpy()
    order = np.argmax(cosines(W, adata.varm["nmf"].T), axis=1)
    scale = W.sum(axis=0)[order]
    np.testing.assert_allclose(adata.varm["nmf"], W[:, order] / scale, rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(adata.varm["nmf_sd"], W_sd[:, order] / scale, rtol=1e-2, atol=1e-5)
    H = (group["H_shape"] / group["H_rate"]).to_numpy()[order] * scale[:, None]
    np.testing.assert_allclose(adata.obsm["nmf"], H.T, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("layout", [sp.csc_matrix, np.asarray])
def test_the_layout_of_the_counts_does_not_matter(fitted, layout):
    adata = made(layout)
    nz.tl.nmf(adata, K, batch="batch", **HOW)
    np.testing.assert_allclose(adata.varm["nmf"], fitted.varm["nmf"], atol=2e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_files_hold_it(fitted, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    (fitted.write_h5ad if suffix == ".h5ad" else fitted.write_zarr)(path)
    again = (anndata.read_h5ad if suffix == ".h5ad" else anndata.read_zarr)(path)
    np.testing.assert_array_equal(again.obsm["nmf"], fitted.obsm["nmf"])
    assert again.uns["nmf"]["params"]["rank"] == K
    assert bool(again.uns["nmf"]["converged"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [sp.csr_matrix, np.asarray])
def test_backed_files_are_read(fitted, tmp_path, layout):
    adata = made(layout)
    adata.X = adata.layers["counts"].copy()
    adata.write_h5ad(tmp_path / "x.h5ad")
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    assert backed.isbacked
    nz.tl.nmf(backed, K, batch="batch", **HOW | {"layer": None})
    np.testing.assert_allclose(backed.varm["nmf"], fitted.varm["nmf"], atol=2e-3)
    backed.file.close()


def test_a_copy_leaves_the_original_alone_and_a_new_result_replaces_the_old():
    adata = made()
    found = nz.tl.nmf(adata, K, key="programs", batch="batch", copy=True, **HOW)
    assert "programs" in found.obsm
    assert not adata.obsm
    nz.tl.nmf(found, 1, key="programs", engine="em", **HOW | {"alpha_w": 1.0, "alpha_h": 1.0})
    assert found.obsm["programs"].shape == (N, 1)
    assert set(found.varm) == set(found.obsm) == {"programs"}  # a point has no deviations, and there is no batch
    assert "evidence" not in found.uns["programs"]


def test_a_sampler():
    adata = made()
    nz.tl.nmf(adata, K, batch="batch", engine="gibbs", **HOW | {"run": {"draws": 100, "tune": 100}})
    assert np.all(cosines(adata.varm["nmf"], PROGRAMS).max(axis=1) > 0.98)
    assert np.all(adata.obsm["nmf_sd"] > 0)
    said = adata.uns["nmf"]
    assert said["lp"].shape == (1, 100)
    assert np.isnan(said["rhat"])  # of one chain
    assert 1 < said["ess"] < 1000

    nz.tl.nmf(adata, K, engine="gibbs", **HOW | {"run": {"draws": 20, "tune": 20, "chains": 2}})
    assert 0.9 < adata.uns["nmf"]["rhat"] < 10


def test_of_restarts_the_best_one_is_written():
    """Which is the first; lp, that of other objectives, does not decide."""
    model = nz.normal_nmf(COUNTS[:5, :4] + 0.0, 2)
    found = nz.fit(model, engine="em", restarts=2, search=None, max_iter=3, random_seed=1, quiet=True)
    posterior = _compat.group(found, "posterior").rename(H="H_new", component="program")
    posterior["H_new"] = posterior["H_new"].rename(program="component")
    stats = _compat.group(found, "sample_stats")
    stats = stats.assign(lp=(("chain", "draw"), [[0.0], [1.0]]))
    changed = _compat.with_groups(found, {"posterior": posterior, "sample_stats": stats})
    np.testing.assert_array_equal(_estimates(changed)["W"], posterior["W"][0, 0])


def test_size_factors_in_every_way():
    adata = made()
    nz.tl.nmf(adata, 1, **HOW | {"size_factors": "total"})
    np.testing.assert_allclose(adata.obs["nmf_size_factor"], COUNTS.sum(axis=1) / np.median(COUNTS.sum(axis=1)))
    for given in ("depth", DEPTH, list(DEPTH), adata.obs["depth"][::-1]):
        nz.tl.nmf(adata, 1, **HOW | {"size_factors": given})
        np.testing.assert_array_equal(adata.obs["nmf_size_factor"], DEPTH)
    empty = adata.copy()
    empty.layers["counts"] = sp.csr_matrix(np.where(np.arange(N)[:, None] < 3, 0, COUNTS))
    with pytest.warns(nz.NmfZooWarning, match="no positive observed cell"):
        nz.tl.nmf(empty, 1, **HOW | {"size_factors": "total"})
    assert np.array_equal(empty.obs["nmf_size_factor"][:3], np.ones(3))


def test_values_that_are_no_counts_are_warned_of():
    with pytest.warns(nz.NmfZooWarning, match=r"X: values that are not whole.*the layers are \['counts'\]") as said:
        nz.tl.nmf(made(), 1, **HOW | {"layer": None})
    assert [one.filename for one in said if one.category is nz.NmfZooWarning] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", nz.NmfZooWarning)
        nz.tl.nmf(made(), 1, **HOW)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layer": "count"}, r"layer: got 'count'.*did you mean 'counts'\?"),
        ({"batch": "bach"}, r"batch: got 'bach'.*did you mean 'batch'\?"),
        ({"size_factors": "dept"}, r"size_factors: got 'dept'.*did you mean 'depth'\?"),
        ({"size_factors": np.ones(3)}, r"size_factors: got shape \(3,\)"),
        ({"size_factors": np.zeros(N)}, "size_factors: got values from 0.0"),
        ({"alpha_w": 0.0}, "alpha_w: got values from 0.0"),
        ({"alpha_h": "a"}, "alpha_h: got str 'a'"),
        ({"rank": 0}, "rank: got 0"),
        ({"key": ""}, "key: got ''"),
        ({"engine": "vbb"}, r"engine: got 'vbb'.*did you mean 'vb'\?"),
        ({"run": {"draw": 3}}, r"draw: got an argument.*did you mean 'draws'\?"),
        ({"run": 3}, "run: got 3"),
        ({"layers": "counts"}, r"layers: got an argument that tl.nmf doesn't have.*did you mean 'layer'\?"),
    ],
)
def test_what_is_refused(given, words):
    adata = made()
    with pytest.raises(InputError, match=words):
        nz.tl.nmf(adata, **{"rank": K, **HOW, **given})
    assert not adata.obsm
    assert not adata.uns


def test_objects_that_are_refused():
    with pytest.raises(InputError, match="an object of type ndarray"):
        nz.tl.nmf(COUNTS, K)
    with pytest.raises(InputError, match=r"a view.*adata\[\.\.\.\]\.copy\(\)"):
        nz.tl.nmf(made()[:10], K, **HOW)
    adata = made()
    adata.obs.loc["c3", "batch"] = None
    with pytest.raises(InputError, match="1 sample without a value in 'batch'"):
        nz.tl.nmf(adata, K, batch="batch", **HOW)
    with pytest.raises(UnsupportedModel, match="unbounded at 0"):
        nz.tl.nmf(made(), K, engine="em", **HOW)
    without = anndata.AnnData(obs=adata.obs, layers={})
    with pytest.raises(InputError, match="there is no X"):
        nz.tl.nmf(without, K)
