"""What users do with a result, unchanged: ArviZ, PyMC, files, on each declaration and on the results of each engine."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import NmfZooWarning
from tests.pairs import pairs

F, K, N = 4, 2, 5
RNG = np.random.default_rng(8)
X = RNG.poisson(RNG.gamma(2.0, size=(F, K)) @ RNG.gamma(2.0, size=(K, N))) + np.eye(F, N, dtype=int)
TABLE = pd.DataFrame(X, index=list("abcd"), columns=[f"s{i}" for i in range(N)])
MASK = np.ones((F, N), dtype=bool)
MASK[[0, 2], [1, 3]] = False
NOISE = (
    "ignore:Estimated shape parameter of Pareto",  # few draws
    "ignore:Passing a dict or None as alias_mapping",  # ArviZ 0.23 with Matplotlib 3.11
    "ignore:More chains",  # a fit has one draw and several restarts
    "ignore:Found chain dimension to be longer than draw",
)
pytestmark = [pytest.mark.filterwarnings(noise) for noise in NOISE]

MODELS = {
    "dense": lambda: nz.gamma_nmf(TABLE, K, alpha_h=0.7),
    "mask": lambda: nz.gamma_nmf(TABLE, K, mask=MASK),
    "sparse": lambda: nz.gamma_nmf(sp.csr_array(X), K),
}
RUNS = {
    "gibbs": lambda model: nz.sample(60, tune=20, chains=2, random_seed=1, quiet=True, model=model),
    "em": lambda model: nz.fit(
        max_iter=20, tol=0, restarts=2, random_seed=1, quiet=True, model=model, engine=nz.EM(mode="log")
    ),
    "vb": lambda model: nz.fit(
        engine="vb", max_iter=20, tol=0, draws=60, restarts=2, random_seed=1, quiet=True, model=model
    ),
}
SAMPLES = [name for name in RUNS if name != "em"]


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def results(models):
    return {(name, engine): run(model) for name, model in models.items() for engine, run in RUNS.items()}


@pytest.fixture(scope="module")
def by_nuts(models):
    """One chain of NUTS, as PyMC runs it, compiled, with its warm-up."""
    options = nz.NUTS(sampler="pymc")
    with pytensor.config.change_flags(mode="NUMBA"):
        return nz.sample(
            8,
            tune=8,
            chains=1,
            random_seed=1,
            quiet=True,
            discard_tuned_samples=False,
            engine=options,
            model=models["dense"],
        )


def names_of(idata):
    return set(_compat.group_names(idata))


# -- what is in it -----------------------------------------------------------------------------------------------


def test_groups_and_type(results):
    kind = getattr(az, "InferenceData", xr.DataTree) if not _compat.IS_TREE else xr.DataTree
    for (_, engine), idata in results.items():
        assert isinstance(idata, kind)
        assert {"posterior", "sample_stats", "observed_data"} <= names_of(idata)
        assert ("fit" in names_of(idata)) == (engine != "gibbs")
    assert "constant_data" in names_of(results["mask", "gibbs"])


@pytest.mark.parametrize("engine", RUNS)
def test_attributes_say_how_it_was_made(engine, results):
    idata = results["dense", engine]
    expected = {
        "inference_library": "nmf_zoo",
        "inference_library_version": nz.__version__,
        "engine": engine,
        "random_seed": "1",
    }
    for attrs in (idata.attrs, _compat.group(idata, "posterior").attrs):
        assert expected.items() <= attrs.items()
        assert attrs["seconds"] > 0
        assert attrs["status"] == ("complete" if engine == "gibbs" else "all_iterations")
    assert '"mode": "log"' in results["dense", "em"].attrs["options"]


@pytest.mark.parametrize("name", MODELS)
def test_lp_is_the_log_density_of_pymc(name, models, results):
    model = models[name]
    log_density = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    for engine in RUNS:
        check_lp(results[name, engine], model, log_density)


def check_lp(idata, model, log_density):
    posterior, lp = _compat.group(idata, "posterior"), _compat.group(idata, "sample_stats")["lp"].to_numpy()
    start, values = model.initial_point(), {v.name: model.rvs_to_values[v] for v in model.free_RVs}
    transforms = {v.name: model.rvs_to_transforms[v] for v in model.free_RVs}
    for at in ((0, 0), (lp.shape[0] - 1, lp.shape[1] - 1)):
        point = {values[name].name: posterior[name].to_numpy()[at] for name in values}
        assert all(type(transform).__name__ == "LogTransform" for transform in transforms.values())
        point = {name: np.log(value) for name, value in point.items()}
        assert point.keys() == start.keys()
        np.testing.assert_allclose(lp[at], log_density(point), rtol=1e-10)


# -- ArviZ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", RUNS)
@pytest.mark.parametrize("name", MODELS)
def test_az_extract_stacks_the_draws(name, engine, results):
    H, stacked = _compat.group(results[name, engine], "posterior")["H"], az.extract(results[name, engine])
    assert {"W", "H"} <= set(stacked.data_vars)
    assert dict(stacked["H"].sizes) == {"component": K, "obs": N, "sample": H.sizes["chain"] * H.sizes["draw"]}
    np.testing.assert_array_equal(stacked["H"].isel(sample=-1).transpose("component", "obs"), H[-1, -1])


def test_dims_of_one_s_own_may_have_any_name():
    """Also those that declarations do not use, or no longer."""
    with pm.Model(coords={"gene": list("abcd"), "sample": range(N), "part": range(K)}) as model:
        W = pm.Gamma("W", 1.0, 1.0, dims=("gene", "part"))
        H = pm.Gamma("H", 1.0, 1.0, dims=("part", "sample"))
        pm.Poisson("X", W @ H, observed=np.arange(F * N).reshape(F, N), dims=("gene", "sample"))
    idata = nz.fit(model=model, engine="em", max_iter=5, draws=1, random_seed=1, quiet=True)
    assert _compat.group(idata, "posterior")["H"].dims == ("chain", "draw", "part", "sample")
    assert nz.predict(idata, model, samples=[2], random_seed=1).dims == ("chain", "draw", "gene", "sample")


@pytest.mark.parametrize("engine", SAMPLES)
@pytest.mark.parametrize("name", MODELS)
def test_az_summary(name, engine, results):
    table = az.summary(results[name, engine], var_names=["W", "H"])
    assert len(table) == F * K + K * N
    if name != "sparse":
        assert "W[a, 0]" in table.index
    assert az.summary(results[name, engine], group="sample_stats", var_names=["lp"]).shape[0] == 1


@pytest.mark.parametrize("engine", SAMPLES)
def test_az_plot_trace(engine, results):
    plt = pytest.importorskip("matplotlib.pyplot")
    az.plot_trace(results["mask", engine], var_names=["W"])
    if hasattr(az, "plot_trace_dist"):
        az.plot_trace_dist(results["mask", engine], var_names=["W"])
    plt.close("all")


@pytest.mark.parametrize("name", ["dense", "mask"])
def test_az_loo_after_pymc_computes_the_log_likelihood(name, models, results):
    with_group = pm.compute_log_likelihood(
        results[name, "gibbs"], model=models[name], extend_inferencedata=False, progressbar=False
    )
    theirs = _compat.group(with_group, "log_likelihood") if hasattr(with_group, "children") else with_group
    ours = _compat.group(nz.log_likelihood(results[name, "gibbs"], models[name], per="cell"), "log_likelihood")
    np.testing.assert_allclose(theirs["X"], ours["X"], rtol=1e-10)
    idata = _compat.with_groups(results[name, "gibbs"], {"log_likelihood": theirs})
    assert az.loo(idata).n_data_points == (F * N if name == "dense" else MASK.sum())


@pytest.mark.parametrize("name", MODELS)
def test_az_loo_with_the_log_likelihood_of_the_run(name, models):
    arguments = {"tune": 5, "chains": 2, "random_seed": 1, "quiet": True, "model": models[name]}
    idata = nz.sample(40, idata_kwargs={"log_likelihood": True}, **arguments)
    points = {"dense": F * N, "mask": MASK.sum(), "sparse": N}[name]
    assert az.loo(idata).n_data_points == points


@pytest.mark.parametrize("per", ["obs", "cell"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:log_likelihood:nmf_zoo.NmfZooWarning")
def test_az_loo_after_our_log_likelihood(name, per, models, results):
    result = az.loo(nz.log_likelihood(results[name, "gibbs"], models[name], per=per))
    assert result.n_data_points == (N if per == "obs" else MASK.sum() if name == "mask" else F * N)


# -- PyMC --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_posterior_predictive_by_pymc(name, models, results):
    model = models[name]
    drawn = pm.sample_posterior_predictive(results[name, "gibbs"], model=model, random_seed=1, progressbar=False)
    predicted = _compat.group(drawn, "posterior_predictive")["X"]
    assert predicted.sizes["chain"] == 2
    assert predicted.sizes["draw"] == 60
    structure = nz.read(model)
    cells = structure.cells or tuple(index.ravel() for index in np.indices((F, N)))
    ours = nz.predict(results[name, "gibbs"], model, cells=cells, random_seed=1)
    theirs = predicted.to_numpy().reshape(ours.shape)
    error = np.sqrt((ours.var(("chain", "draw")).to_numpy() + theirs.var(axis=(0, 1))) / 120)
    np.testing.assert_array_less(
        np.abs(ours.mean(("chain", "draw")).to_numpy() - theirs.mean(axis=(0, 1))), 5 * error + 1e-9
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_still_itself_after_the_posterior_predictive(name, models, results):
    """PyMC 5 lists X twice in the model it was given; reading it mends that."""
    pm.sample_posterior_predictive(results[name, "gibbs"], model=models[name], random_seed=1, progressbar=False)
    nz.read(models[name])
    assert [variable.name for variable in models[name].observed_RVs] == ["X"]
    nz.check(models[name])


# -- files -------------------------------------------------------------------------------------------------------


def assert_same_data(first, second):
    assert names_of(first) == names_of(second)
    for name in names_of(first):
        xr.testing.assert_equal(_compat.group(first, name), _compat.group(second, name))
    assert dict(first.attrs) == dict(second.attrs)


@pytest.mark.parametrize(("name", "engine", "suffix"), pairs(MODELS, RUNS, ["nc", "zarr"]))
def test_files_of_ours(name, engine, suffix, results, tmp_path):
    pytest.importorskip("zarr" if suffix == "zarr" else "h5py")
    path = tmp_path / f"result.{suffix}"
    for _ in range(2):  # a second time over the first
        nz.save(results[name, engine], path)
    assert_same_data(nz.load(path), results[name, engine])


@pytest.mark.parametrize("engine", RUNS)
def test_netcdf_by_the_methods_of_the_object(engine, results, tmp_path):
    pytest.importorskip("h5py")
    results["mask", engine].to_netcdf(str(tmp_path / "result.nc"))
    loaded = az.from_netcdf(str(tmp_path / "result.nc"))
    groups = {name: _compat.group(loaded, name).load() for name in names_of(loaded)}
    loaded.close()
    assert_same_data(_compat.inference_data(groups, dict(loaded.attrs)), results["mask", engine])


@pytest.mark.parametrize("engine", RUNS)
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification", "ignore:Consolidated metadata")  # xarray's default format
def test_zarr_by_the_methods_of_the_object(engine, results, tmp_path):
    idata = results["mask", engine]
    pytest.importorskip("zarr")
    if _compat.IS_TREE:
        idata.to_zarr(str(tmp_path / "result.zarr"))
    else:  # ArviZ 0.23's own to_zarr needs Zarr 2
        idata.to_datatree().to_zarr(str(tmp_path / "result.zarr"))
    assert_same_data(nz.load(tmp_path / "result.zarr"), idata)


# -- NUTS --------------------------------------------------------------------------------------------------------


def test_nuts_returns_the_same_groups_with_comparable_lp(by_nuts, models):
    assert {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats", "observed_data"} <= names_of(
        by_nuts
    )
    posterior = _compat.group(by_nuts, "posterior")
    assert posterior["W"].dims == ("chain", "draw", "feature", "component")
    assert list(posterior["feature"].to_numpy()) == list("abcd")
    assert _compat.group(by_nuts, "sample_stats")["mean"].dims == ("chain", "draw", "checked_cell")
    assert by_nuts.attrs["engine"] == "nuts"
    check_lp(by_nuts, models["dense"], models["dense"].compile_logp(jacobian=False, mode="FAST_COMPILE"))


@pytest.mark.usefixtures("compiled_graphs")
def test_nuts_repeats_itself_and_takes_the_run_arguments(by_nuts, models):
    start = {"W": np.ones((F, K)), "H": np.ones((K, N))}
    arguments = {"tune": 8, "chains": 1, "quiet": True, "engine": nz.NUTS(sampler="pymc"), "model": models["dense"]}
    again = nz.sample(8, random_seed=1, thin=2, var_names=["H"], **arguments)
    assert list(_compat.group(again, "posterior").data_vars) == ["H"]
    np.testing.assert_array_equal(
        _compat.group(again, "posterior")["H"], _compat.group(by_nuts, "posterior")["H"][:, ::2]
    )
    assert "warmup_posterior" not in names_of(again)
    started = nz.sample(2, random_seed=1, initvals=start, **arguments)
    assert np.all(np.isfinite(_compat.group(started, "sample_stats")["lp"]))


def test_results_of_nuts_go_to_files(by_nuts, tmp_path):
    pytest.importorskip("zarr")
    nz.save(by_nuts, tmp_path / "nuts.zarr")
    assert_same_data(nz.load(tmp_path / "nuts.zarr"), by_nuts)


# -- convergence -------------------------------------------------------------------------------------------------


def test_few_draws_bring_one_warning_unless_quiet(models):
    arguments = {"tune": 1, "chains": 2, "random_seed": 1, "progressbar": False, "model": models["dense"]}
    with pytest.warns(NmfZooWarning, match="Only 30 draws per chain: too few") as caught:
        nz.sample(30, **arguments)
    assert len(caught) == 1
    nz.sample(30, compute_convergence_checks=False, **arguments)


def test_summarise_follows_the_invariants(results):
    table = nz.summarise(results["dense", "gibbs"])
    assert list(table.columns) == ["mean", "sd", "rhat", "ess_bulk", "ess_tail"]
    assert table.index[0] == "lp"
    assert len(table) == 1 + F * N
    assert np.all(np.isfinite(table))


@pytest.mark.parametrize("name", ["result.foo", "result", "no/such/result.nc"])
def test_what_cannot_be_saved(name, by_nuts, tmp_path):
    with pytest.raises(nz.InputError, match="path: got"):
        nz.save(by_nuts, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["draws", "store", "moments", pytest.param("smc", marks=pytest.mark.engines)])
def test_followed_cells_carry_labels(how, tmp_path):
    """Of features and samples, as the table that came in has them."""
    table = pd.DataFrame([[4, 0, 3], [0, 5, 1]], index=["sun", "rain"], columns=pd.date_range("2024-01-01", periods=3))
    more = {"store": {"store": tmp_path / "x.zarr"}, "moments": {"keep": "moments"}}
    more |= {"smc": {"engine": nz.SMC(particles=60)}}
    run = {"draws": 6, "tune": 6, "chains": 2, "random_seed": 1, "quiet": True, **more.get(how, {})}
    idata = nz.sample(model=nz.gamma_nmf(table, 1), **run)
    stats = _compat.group(idata, "sample_stats")
    rows, cols = stats["checked_row"].to_numpy(), stats["checked_col"].to_numpy()
    assert stats["checked_feature"].to_numpy().tolist() == table.index[rows].tolist()
    np.testing.assert_array_equal(stats["checked_obs"].to_numpy(), table.columns.to_numpy()[cols])
    assert "mean[rain, 2024-01-02]" in nz.summarise(idata).index
