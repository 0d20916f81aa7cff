"""Results larger than memory: draws that go to disk and stay there, and moments in place of draws."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference import registry
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.interfaces.cli import main
from nmf_zoo.results import stores
from nmf_zoo.results.component_order import GROUP, component_order
from nmf_zoo.runtime import checkpoint
from nmf_zoo.runtime.blocks import run_block
from tests.forked import Forked
from tests.registered import with_changed

zarr = pytest.importorskip("zarr")
F, K, N = 6, 2, 8
RNG = np.random.default_rng(4)
X = RNG.poisson(RNG.gamma(1.0, size=(F, K)) @ RNG.gamma(2.0, size=(K, N))) + np.eye(F, N, dtype=int)
MASK = RNG.random((F, N)) < 0.8


def labelled():
    """Named features, and an unknown hyperparameter."""
    with pm.Model(coords={"feature": list("abcdef"), "component": range(K), "obs": range(N)}) as model:
        a = pm.Gamma("a", 2.0, 1.0)
        W = pm.Gamma("W", a, 1.0, dims=("feature", "component"))
        H = pm.Gamma("H", 1.0, 1.0, dims=("component", "obs"))
        pm.Poisson("X", W @ H, observed=X, dims=("feature", "obs"))
    return model


def with_missing_counts():
    """Missing cells that the model declares as a variable are drawn as integers, some of them 0."""
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        W, H = pm.Gamma("W", 1.0, 1.0, shape=(F, K)), pm.Gamma("H", 1.0, 1.0, shape=(K, N))
        pm.Poisson("X", W @ H, observed=np.ma.masked_array(X, ~MASK))
    return model


MODELS = {
    "labels": labelled,
    "missing": lambda: nz.gamma_nmf(X, K, mask=MASK),
    "sparse": lambda: nz.gamma_nmf(sp.csr_array(X), K),
}
RUN = {"tune": 6, "chains": 2, "random_seed": 1, "quiet": True}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def drawn(models):
    return {name: nz.sample(30, model=model, **RUN) for name, model in models.items()}


@pytest.fixture(scope="module")
def stored(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {name: nz.sample(30, model=model, store=folder / f"{name}.zarr", **RUN) for name, model in models.items()}


@pytest.fixture(scope="module")
def averaged(models):
    return {name: nz.sample(30, model=model, keep="moments", **RUN) for name, model in models.items()}


def assert_same_data(first, second):
    """But for the order of the components, which is made of draws on disk when it is asked for."""
    names = [{*_compat.group_names(idata)} - {GROUP} for idata in (first, second)]
    assert names[0] == names[1]
    for name in names[0]:
        xr.testing.assert_equal(_compat.group(first, name), _compat.group(second, name))
    left, right = ({key: value for key, value in idata.attrs.items() if key != "seconds"} for idata in (first, second))
    assert left == right


def is_lazy(idata, group, name):
    return not _compat.group(idata, group)[name].variable._in_memory


# -- on disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_stored_draws_are_the_draws(name, drawn, stored):
    assert_same_data(drawn[name], stored[name])
    assert is_lazy(stored[name], "posterior", "W")


@pytest.mark.parametrize("name", MODELS)
def test_a_finished_store_is_a_result_file(name, models, drawn, tmp_path):
    nz.sample(30, model=models[name], store=tmp_path / "x.zarr", **RUN)
    loaded = nz.load(tmp_path / "x.zarr")
    assert_same_data(drawn[name], loaded)
    assert all(is_lazy(loaded, "posterior", variable) for variable in ("W", "H"))
    assert not is_lazy(loaded, "observed_data", "X")
    tree = xr.open_datatree(tmp_path / "x.zarr", engine="zarr")
    xr.testing.assert_equal(tree["posterior"].to_dataset(), _compat.group(drawn[name], "posterior"))
    xr.testing.assert_equal(
        xr.open_zarr(tmp_path / "x.zarr", group="sample_stats", chunks=None),
        _compat.group(drawn[name], "sample_stats"),
    )
    tree.close()
    if _compat.IS_TREE:
        again = az.from_zarr(str(tmp_path / "x.zarr"))
        xr.testing.assert_equal(again["posterior"].to_dataset(), _compat.group(drawn[name], "posterior"))


def test_thinned_draws_of_some_variables_and_the_warm_up(models, tmp_path):
    arguments = {**RUN, "thin": 3, "var_names": ["H"], "discard_tuned_samples": False, "model": models["labels"]}
    result = nz.sample(20, store=str(tmp_path / "x.zarr"), **arguments)
    assert_same_data(nz.sample(20, **arguments), result)
    assert_same_data(result, nz.load(tmp_path / "x.zarr"))


def test_stored_integers(tmp_path):
    model = with_missing_counts()
    result = nz.sample(20, model=model, store=tmp_path / "x.zarr", **RUN)
    assert_same_data(nz.sample(20, model=model, **RUN), result)
    (name,) = (name for name, array in _compat.group(result, "posterior").items() if array.dtype.kind == "i")
    assert np.any(_compat.group(result, "posterior")[name] == 0)


def test_using_draws_leaves_them_on_disk(stored):
    idata = stored["labels"]
    W = _compat.group(idata, "posterior")["W"]
    assert float(W.mean()) > 0
    assert np.isfinite(W.sel(feature="b").to_numpy()).all()
    az.ess(idata, var_names=["W"])
    az.summary(idata, var_names=["H"])
    nz.summarise(idata)
    assert is_lazy(idata, "posterior", "W")
    assert is_lazy(idata, "posterior", "H")
    assert is_lazy(idata, "sample_stats", "lp")


def used(idata, model, has_missing):
    """What is made of a result draw by draw, in this order, and what averages its draws."""
    exact = [
        nz.predict(idata, model, random_seed=2),
        nz.predict(idata, model, n_draws=7, random_seed=2),
        *(_compat.group(nz.log_likelihood(idata, model, per=per), "log_likelihood") for per in ("obs", "cell")),
        *([nz.impute(idata, model, random_seed=2)] if has_missing else []),
    ]
    table = nz.top_features(idata, 3, chain=1).set_index(["component", "place"])
    return exact, [nz.moments(idata), table.to_xarray()]


@pytest.mark.parametrize("name", MODELS)
def test_what_follows_a_run_reads_a_store(name, models, drawn, stored, monkeypatch):
    """From memory in one piece, from disk draw by draw: the same to the last bit, but for the order of sums."""
    in_one_piece = used(drawn[name], models[name], name == "missing")
    monkeypatch.setattr("nmf_zoo.results.posterior.BLOCK", 1)
    piece_by_piece = used(stored[name], models[name], name == "missing")
    for one, other in zip(in_one_piece[0], piece_by_piece[0], strict=True):
        xr.testing.assert_identical(one, other)
    for one, other in zip(in_one_piece[1], piece_by_piece[1], strict=True):
        xr.testing.assert_allclose(one, other, rtol=1e-12)
    assert_same_data(nz.unit_sum(drawn[name]), nz.unit_sum(stored[name]))


def test_projection_from_a_store_and_from_moments(models, drawn, stored, averaged):
    arguments = {"model": models["sparse"], "draws": 5, "tune": 5, "chains": 1, "random_seed": 3, "quiet": True}
    W = [
        _compat.group(nz.project(results["sparse"], X[:, :2], chain=1, **arguments), "constant_data")["W"]
        for results in (drawn, stored, averaged)
    ]
    np.testing.assert_allclose(W[0], _compat.group(drawn["sparse"], "posterior")["W"][1].mean("draw"), rtol=1e-12)
    np.testing.assert_allclose(W[1], W[0], rtol=1e-12)
    np.testing.assert_allclose(W[2], W[0], rtol=1e-12)


def test_a_store_can_be_saved_over_itself(models, drawn, tmp_path):
    nz.sample(30, model=models["labels"], store=tmp_path / "x.zarr", **RUN)
    nz.save(nz.load(tmp_path / "x.zarr"), tmp_path / "x.zarr")
    assert_same_data(nz.load(tmp_path / "x.zarr"), drawn["labels"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.zarr"]


# -- moments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_moments_of_every_variable(name, drawn, averaged):
    draws, idata = _compat.group(drawn[name], "posterior"), averaged[name]
    assert "posterior" not in _compat.group_names(idata)
    by_chain, pooled = nz.moments(idata), nz.moments(idata, pooled=True)
    assert set(by_chain) == {f"{name}_{what}" for name in draws for what in ("mean", "sd")} | {"draws"}
    for variable in draws:
        for found, over in ((by_chain, "draw"), (pooled, ("chain", "draw"))):
            np.testing.assert_allclose(found[f"{variable}_mean"], draws[variable].mean(over), rtol=1e-10)
            np.testing.assert_allclose(found[f"{variable}_sd"], draws[variable].std(over, ddof=1), rtol=1e-10)
            assert found[f"{variable}_sd"].dims == draws[variable].mean(over).dims
    xr.testing.assert_allclose(nz.moments(drawn[name]), by_chain, rtol=1e-10)
    xr.testing.assert_allclose(nz.moments(drawn[name], pooled=True), pooled, rtol=1e-10)
    xr.testing.assert_equal(_compat.group(idata, "sample_stats"), _compat.group(drawn[name], "sample_stats"))
    pd.testing.assert_frame_equal(nz.summarise(idata), nz.summarise(drawn[name]))


def test_moments_of_a_single_draw(models):
    idata = nz.fit(engine="em", model=models["missing"], max_iter=3, tol=0, random_seed=1, quiet=True)
    assert np.all(np.isnan(nz.moments(idata)["W_sd"]))
    assert np.all(np.isnan(nz.moments(idata, pooled=True)["W_sd"]))
    np.testing.assert_array_equal(nz.moments(idata)["W_mean"], _compat.group(idata, "posterior")["W"][:, 0])


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_moments_go_to_files(suffix, averaged, tmp_path):
    nz.save(averaged["labels"], tmp_path / f"m.{suffix}")
    assert_same_data(nz.load(tmp_path / f"m.{suffix}"), averaged["labels"])


def test_templates_and_their_features_from_moments(drawn, averaged):
    table, order = nz.top_features(averaged["labels"], F, chain=0), component_order(averaged["labels"])["order"]
    mean = _compat.group(drawn["labels"], "posterior")["W"][0].mean("draw")[:, order[0, 0].to_numpy()]
    np.testing.assert_allclose(table["weight"], -np.sort(-mean.to_numpy(), axis=0).T.ravel(), rtol=1e-10)
    assert list(table["feature"]) == [mean["feature"].values[f] for f in np.argsort(-mean.to_numpy(), axis=0).T.ravel()]
    np.testing.assert_allclose(table.groupby("component")["share"].sum(), 1.0)
    pytest.importorskip("matplotlib")
    nz.plot_components(averaged["labels"])
    nz.plot_components(averaged["labels"], shape=(2, 3))
    nz.plot_trace(averaged["labels"])


@pytest.mark.parametrize(
    "use",
    [
        lambda idata, model: nz.predict(idata, model),
        lambda idata, model: nz.impute(idata, model),
        lambda idata, model: list(nz.predict_blocks(idata, model)),
        lambda idata, model: nz.log_likelihood(idata, model),
        lambda idata, model: nz.unit_sum(idata),
    ],
)
def test_what_needs_draws_says_so(use, models, averaged):
    with pytest.raises(InputError, match=r'^idata: got means and variances only; expected draws; .*keep="draws"$'):
        use(averaged["missing"], models["missing"])


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": "all"}, r"^keep: got 'all'; expected one of \['draws', 'moments'\]$"),
        ({"store": "x.nc"}, r"^store: got 'x.nc'; expected a path that ends in .zarr, or None$"),
        ({"store": 3}, r"^store: got 3; expected a path"),
        ({"store": "no/x.zarr"}, r"^store: got 'no/x.zarr' in a folder that does not exist; .*; make it$"),
        ({"store": "x.zarr", "keep": "moments"}, r"^store: got 'x.zarr' with keep='moments'; expected draws to store"),
        ({"store": "x.zarr", "engine": "nuts"}, r"^store: got 'x.zarr' with nuts; expected draws in memory"),
        ({"keep": "moments", "engine": "nuts"}, r"^keep: got 'moments' with nuts; expected draws in memory"),
        (
            {"store": "x.zarr", "idata_kwargs": {"log_likelihood": True}},
            r"^idata_kwargs: .*nz.log_likelihood afterwards$",
        ),
        ({"keep": "moments", "idata_kwargs": {"log_likelihood": True}}, r"^idata_kwargs: .*; leave it out$"),
        ({"store": "here.zarr"}, r"^store: got 'here.zarr', which exists; expected a new name"),
    ],
)
def test_refusals(arguments, message, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.zarr").mkdir()
    with pytest.raises(InputError, match=message) as caught:
        nz.sample(5, model=models["labels"], **RUN, **arguments)
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["here.zarr"]
    assert not list(Path("here.zarr").iterdir())


def test_room_is_asked_of_the_disk_and_not_of_memory(models, tmp_path, monkeypatch):
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 1e4)
    monkeypatch.setattr("nmf_zoo.runtime.arguments.PER_RUN", 0.0)  # of draws alone
    monkeypatch.setattr("nmf_zoo.runtime.arguments.CHECKED_CELLS", 1)
    with pytest.raises(InputError, match="draws: got"):
        nz.sample(30, model=models["sparse"], **RUN)
    nz.sample(30, model=models["sparse"], keep="moments", **RUN)
    nz.sample(30, model=models["sparse"], store=tmp_path / "x.zarr", **RUN)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("nmf_zoo.runtime.arguments.shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"^store: got 60 draws of 28 cells, .* GiB; expected at most .* raise thin"):
        nz.sample(30, model=models["sparse"], store=tmp_path / "y.zarr", **RUN)
    assert not (tmp_path / "y.zarr").exists()


def test_draws_need_their_own_room_and_no_more(models, monkeypatch):
    """60 draws of 28 cells: the arrays that the chains fill are the result."""
    size = 60 * 28 * 8
    monkeypatch.setattr("nmf_zoo.runtime.arguments.PER_RUN", 0.0)
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 1.01 * size / 0.8)
    nz.sample(30, model=models["sparse"], **RUN)
    monkeypatch.setattr("nmf_zoo.memory._physical_memory", lambda: 0.99 * size / 0.8)
    with pytest.raises(InputError, match="draws: got 60 draws of 28 cells"):
        nz.sample(30, model=models["sparse"], **RUN)


def test_without_zarr_one_line_says_what_to_install(models, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(
        InputError, match=r"^store: got no zarr; expected zarr installed; pip install 'nmf_zoo\[zarr\]'$"
    ):
        nz.sample(5, model=models["sparse"], store=tmp_path / "x.zarr", **RUN)


# -- stopped -------------------------------------------------------------------------------------------------------


def press_control_c():
    time.sleep(0.1)  # until the main thread waits for the chains
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(0.2)


def test_ctrl_c_leaves_a_store_of_what_was_drawn(models, tmp_path, monkeypatch):
    def stopping(problem, state, key, block):
        if block.first <= 100 < block.stop:
            press_control_c()
        return run_block(gibbs.ENGINE, problem, state, key, block)

    monkeypatch.setattr(registry, "REGISTRY", with_changed(gibbs.ENGINE, run=stopping))
    idata = nz.sample(100_000, model=models["sparse"], store=tmp_path / "x.zarr", **{**RUN, "chains": 1})
    n_draws = _compat.group(idata, "posterior").sizes["draw"]
    assert idata.attrs["status"] == "interrupted"
    assert 90 < n_draws < 100_000
    assert_same_data(idata, nz.load(tmp_path / "x.zarr"))
    assert xr.open_zarr(tmp_path / "x.zarr", group="posterior", chunks=None).sizes["draw"] == n_draws
    monkeypatch.undo()
    expected = nz.sample(n_draws, model=models["sparse"], **{**RUN, "chains": 1})
    xr.testing.assert_equal(_compat.group(idata, "posterior"), _compat.group(expected, "posterior"))


def test_ctrl_c_before_the_first_draw_leaves_nothing(models, tmp_path, monkeypatch):
    def stopping(*args):
        press_control_c()
        return gibbs.init(*args)

    monkeypatch.setattr(registry, "REGISTRY", with_changed(gibbs.ENGINE, init=stopping))
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        nz.sample(30, model=models["sparse"], store=tmp_path / "x.zarr", **{**RUN, "chains": 1})
    assert not list(tmp_path.iterdir())


def run_long(path, folder=None):
    """Long enough to be killed on the way."""
    table = np.random.default_rng(1).poisson(2.0, (40, 60))
    run = {"tune": 20, "thin": 5, "chains": 2, "cores": 2, "random_seed": 1, "quiet": True}
    nz.sample(2500, model=nz.gamma_nmf(table, 3), store=path, checkpoint=folder, **run)


def start(*paths):
    """In a process of its own, with many saves."""

    def work():
        stores.FLUSH_EVERY, checkpoint.EVERY, checkpoint.SHARE = 0.05, 0.2, 1.0
        run_long(*paths)

    return Forked(work)


def drawn_so_far(path):
    attributes = path / ".zattrs"
    found = json.loads(attributes.read_text()) if attributes.exists() else {}
    return found["readable"]["draws"] if "readable" in found and len(found["readable"]["chains"]) == 2 else 0


def kill_after(process, path, draws):
    """SIGKILL when the store holds so many draws; the run must still be on."""
    deadline = time.monotonic() + 600  # kernels may have to be compiled first
    while drawn_so_far(path) < draws:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_the_store_of_a_killed_run_holds_its_draws(tmp_path):
    path = tmp_path / "x.zarr"
    kill_after(start(path), path, 20)
    with pytest.warns(NmfZooWarning, match=r"^x.zarr is of an unfinished run: \d+ draws of (1 chain|2 chains)\.$"):
        idata = nz.load(path)  # of one chain when the other's process came late
    posterior = _compat.group(idata, "posterior")
    assert posterior.sizes["draw"] >= 20
    assert "observed_data" in _compat.group_names(idata)
    model = nz.gamma_nmf(np.random.default_rng(1).poisson(2.0, (40, 60)), 3)
    expected = nz.sample(100, tune=20, thin=5, chains=2, random_seed=1, quiet=True, model=model)
    chains = json.loads((path / ".zattrs").read_text())["readable"]["chains"]
    expected = _compat.first_draws(_compat.group(expected, "posterior"), chains, 20)
    xr.testing.assert_equal(posterior.isel(draw=slice(20)), expected)
    assert np.all(np.isfinite(posterior["W"]))
    with pytest.raises(InputError, match="which exists"):
        nz.sample(5, model=model, store=path, **RUN)


def test_a_killed_run_with_a_checkpoint_ends_with_the_same_store(tmp_path):
    """Killed in a process of its own, then finished by the same call here. Long: two long runs."""
    path, whole, saved = tmp_path / "x.zarr", tmp_path / "whole.zarr", tmp_path / "run.checkpoint"
    kill_after(start(path, saved), path, 100)
    assert (saved / "0.state").exists()
    run_long(path, saved)
    run_long(whole)
    assert_same_data(nz.load(path), nz.load(whole))


def test_a_store_without_draws_is_refused(tmp_path):
    stores.Store(tmp_path / "x.zarr", None, 2)
    with pytest.raises(InputError, match="of a run before its first draw; expected a store with draws"):
        nz.load(tmp_path / "x.zarr")


# -- memory --------------------------------------------------------------------------------------------------------

MEMORY = """
import json
import os
import sys
import warnings
from pathlib import Path
import numpy as np
import scipy.sparse as sp
import nmf_zoo as nz

def memory(field):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024

def growth(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before

rng = np.random.default_rng(0)
X = sp.csr_array(sp.random_array((1000, 1500), density=0.003, rng=rng, data_sampler=lambda size: np.ones(size)))
warnings.simplefilter("ignore")
model, path = nz.gamma_nmf(X, 10), sys.argv[1]
run = dict(tune=1, chains=2, cores=2, random_seed=1, quiet=True, model=model)
kinds = {
    "draws": ({}, {}),
    "moments": ({"keep": "moments"}, {"keep": "moments"}),
    "store": ({"store": path + "/y.zarr"}, {"store": path + "/x.zarr"}),
}
nz.moments(nz.sample(2, **run))  # imports, kernels
for kind, (small, large) in kinds.items():
    if not os.fork():
        nz.moments(nz.sample(2, **small, **run))
        peaks = [growth(lambda: nz.sample(640, **large, **run))]
        if kind == "store":
            peaks.append(growth(lambda: nz.moments(nz.load(path + "/x.zarr"))))
        print(json.dumps([kind, peaks]), flush=True)
        os._exit(0)
    os.wait()
"""
POSTERIOR = 640 * 2 * 2500 * 10 * 8 / 2**20  # MiB: 244


@pytest.mark.engines
@pytest.mark.rest
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of a process's memory")
def test_peak_memory_beside_the_size_of_the_posterior(tmp_path):
    """Draws in memory take their own size and no copy; on disk, or as moments, a room that doesn't grow with them.

    With two arenas of the allocator: it gives each thread of Zarr's one of its own, and keeps what they freed.

    Long: a posterior of 244 MiB, for the buffers to be small beside it, in a process that forks one for each kind.
    """
    few = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=False, env=few
    )
    assert done.returncode == 0, done.stderr
    peaks = dict(map(json.loads, done.stdout.splitlines()))
    for kind, most in {"draws": 1.25, "moments": 0.33, "store": 0.5}.items():
        assert max(peaks[kind]) < most * POSTERIOR, peaks
    assert peaks["draws"][0] > 0.9 * POSTERIOR  # what is measured is measured
    assert sum(file.stat().st_size for file in (tmp_path / "x.zarr").rglob("*")) > POSTERIOR * 2**20


# -- command line --------------------------------------------------------------------------------------------------

QUICK = ("--draws", "20", "--tune", "20", "--chains", "2", "--random-seed", "1", "--quiet")


@pytest.fixture
def counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(X, index=[f"g{f}" for f in range(F)]).to_csv("counts.csv")
    return tmp_path


def fit(*words):
    return main(["fit", "counts.csv", "--rank", "2", *words])


def test_the_shell_streams_to_zarr(counts, monkeypatch):
    """The same result as in memory, and nothing else left in the folder."""
    made = []
    monkeypatch.setattr("nmf_zoo.results.trace_storage.Store", lambda *args: made.append(args) or stores.Store(*args))
    for output in ("a.zarr", "a.nc"):
        assert fit("-o", output, *QUICK) == 0
    assert len(made) == 1
    assert_same_data(nz.load("a.zarr"), nz.load("a.nc"))
    assert sorted(entry.name for entry in counts.iterdir()) == ["a.nc", "a.zarr", "counts.csv"]
    assert fit("-o", "a.zarr", *QUICK) == 2
    assert fit("-o", "a.zarr", "--force", *QUICK) == 0
    assert fit("-o", "b.zarr", "--log-likelihood", *QUICK) == 0
    assert "log_likelihood" in _compat.group_names(nz.load("b.zarr"))
    assert len(made) == 2


def test_moments_from_the_shell(counts, capsys):
    for output in ("m.zarr", "m.nc"):
        assert fit("-o", output, "--keep", "moments", *QUICK) == 0
    capsys.readouterr()
    assert main(["summary", "m.nc"]) == 0
    said = capsys.readouterr().out
    assert "mean, sd    2 chains x 20 draws of W (feature 6, component 2)" in said
    assert "top features" in said
    assert main(["plot", "m.nc", "-o", "m.png"]) == 0
    assert fit("-o", "n.nc", "--keep", "all", *QUICK) == 2
    assert "--keep: got 'all'; expected one of draws, moments" in capsys.readouterr().err


def test_a_streamed_run_with_a_checkpoint_returns_at_once(counts, capsys):
    """The store has the output's own name, and is this run's: no --force."""
    for _ in range(2):
        assert fit("-o", "a.zarr", "--checkpoint", "run", *QUICK) == 0
    assert fit("-o", "b.zarr", *QUICK) == 0
    one, other = nz.load("a.zarr"), nz.load("b.zarr")
    xr.testing.assert_equal(_compat.group(one, "posterior"), _compat.group(other, "posterior"))
    capsys.readouterr()
    assert fit("-o", "b.zarr", "--checkpoint", "run", *QUICK) == 2
    assert "output: got 'b.zarr', which exists" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix")
@pytest.mark.parametrize("room", [0, 50, 400, 1700, 9000, 15_000])
def test_a_store_says_in_a_line_that_the_disk_is_full(tmp_path, room):
    """Wherever it ends: at the first attributes, at the data that the model holds (16 kB), or at draws."""
    from tests.full_disk import little_room

    table = np.random.default_rng(0).poisson(2.0, (40, 50)) + 1
    length = {"draws": 20, "tune": 4, "chains": 1, "start": "random", "quiet": True, "random_seed": 1}
    with little_room(room), pytest.raises(nz.NotWritten, match=r"^store: got .*the disk is full"):
        nz.sample(model=nz.gamma_nmf(table, 3), engine="gibbs", store=tmp_path / "draws.zarr", **length)
