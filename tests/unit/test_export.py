"""``nz.export`` and ``nmf-zoo export``: what the tables hold, against NumPy on the draws; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics import export as module
from nmf_zoo.diagnostics.invariants import ess, rhat
from nmf_zoo.interfaces.cli import main
from nmf_zoo.interfaces.cli.show import summary_lines
from nmf_zoo.results.component_order import component_order
from nmf_zoo.results.components import activations_and_totals, component_shares

X = pd.DataFrame(
    np.random.default_rng(1).poisson(20.0 * np.kron(np.eye(2), np.ones((2, 3))) + 1),
    index=["a, b", "c", "d", "é"],
    columns=pd.date_range("2024-01-01", periods=6, freq="D"),
)
STATS = ["mean", "sd", "q05", "q50", "q95", "r_hat", "ess"]


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, 2, alpha_w=0.5)


@pytest.fixture(scope="module")
def idata(model):
    return nz.sample(40, tune=60, chains=2, random_seed=1, quiet=True, model=model)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(draws):
    """The columns of draws (chain, draw)."""
    flat = draws.ravel()
    found = [flat.mean(), flat.std(ddof=1), *np.quantile(flat, (0.05, 0.5, 0.95))]
    dataset = xr.Dataset({"x": (("chain", "draw"), draws)})
    return [*found, rhat(dataset)["x"].item(), ess(dataset, "bulk")["x"].item()]


def test_every_cell_of_every_table(here, idata):
    folder = nz.export(idata, "tables")
    names = ["H.csv", "README.md", "W.csv", "components.csv", "exposures.csv", "shares.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names
    order = component_order(idata)["order"].to_numpy()
    posterior = _compat.group(idata, "posterior")
    W = np.take_along_axis(posterior["W"].to_numpy(), order[:, :, None], -1)
    H = np.take_along_axis(posterior["H"].to_numpy(), order[..., None], -2)
    sums = W.sum(axis=2)
    sizes = sums * H.sum(axis=-1)
    draws = {
        "W": W.swapaxes(-1, -2),
        "H": H,
        "shares": (W / sums[:, :, None]).swapaxes(-1, -2),
        "exposures": H * sums[..., None],
        "components": (sizes / sizes.sum(axis=-1, keepdims=True))[..., None],
    }
    for name, array in draws.items():
        table = pd.read_csv(folder / f"{name}.csv")
        cells = array.reshape(*array.shape[:2], -1)
        assert len(table) == cells.shape[-1]
        for cell, row in enumerate(table[STATS].to_numpy()):
            np.testing.assert_allclose(row, expected(cells[..., cell]), rtol=1e-9)
        assert table["component"].to_list() == np.repeat([0, 1], array.shape[-1]).tolist()
    assert pd.read_csv(folder / "W.csv")["feature"].to_list() == [*X.index] * 2
    dates = pd.read_csv(folder / "H.csv", parse_dates=["sample"])["sample"]
    assert dates.to_list() == [*X.columns] * 2
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in STATS)
    assert "all 2 chains: 80 draws" in text


DEPTHS, LENGTHS = np.linspace(0.5, 2.0, 6), np.linspace(1.0, 4.0, 4)[:, None]
EXPOSURES = {
    "a number": 3.0,
    "samples": DEPTHS,
    "features": LENGTHS,
    "both": (LENGTHS, DEPTHS),
    "cells": LENGTHS + DEPTHS,
}


@pytest.mark.parametrize("name", EXPOSURES)
def test_exposures_in_units_of_the_data(here, name):
    """With the model what components add to a sample sums up to its means, whatever the model's exposure."""
    exposure = EXPOSURES[name]
    model = nz.gamma_nmf(X, 2, alpha_w=0.5, exposure=exposure)
    fitted = nz.fit(model=model, engine="vb", draws=5, max_iter=30, search=None, random_seed=1, quiet=True)
    with pytest.warns(nz.NmfZooWarning, match="not in units of the data: give the model") as said:
        nz.export(fitted, "plain")
    assert said[0].filename == __file__
    assert "where the exposure is 1" in Path("plain/README.md").read_text(encoding="utf-8")
    nz.export(fitted, "tables", model=model)
    assert "where the exposure is 1" not in Path("tables/README.md").read_text(encoding="utf-8")
    W, H = (_compat.group(fitted, "posterior")[one].to_numpy()[0] for one in ("W", "H"))
    whole = exposure[0] * exposure[1] if name == "both" else exposure
    table = pd.read_csv("tables/exposures.csv", parse_dates=["sample"])
    found = table.groupby("sample")["mean"].sum()
    np.testing.assert_allclose(found, (whole * (W @ H)).sum(axis=1).mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize(("name", "reference"), [(None, None), ("both", "late"), ("cells", None)])
def test_exposures_of_batches_in_units_of_the_data(here, name, reference):
    """The multipliers of a sample's batch are in what components add to it."""
    exposure, batch = EXPOSURES.get(name), ["late", "early", "late", "early", "early", "late"]
    batches = nz.Batches(labels=batch, reference=reference, shape=2.0)
    model = nz.gamma_nmf(X, 2, alpha_w=0.5, exposure=exposure, batch=batches)
    fitted = nz.fit(model=model, engine="vb", draws=5, max_iter=30, search=None, random_seed=1, quiet=True)
    said = "where the multipliers of batches are 1" if name is None else "where the exposure and the multipliers of"
    with pytest.warns(nz.NmfZooWarning, match=f"{said}.* not in units of the data: give the model"):
        nz.export(fitted, "plain")
    assert said in Path("plain/README.md").read_text(encoding="utf-8")
    nz.export(fitted, "tables", model=model)
    posterior = _compat.group(fitted, "posterior").isel(chain=0)
    means = exposure[0] * exposure[1] if name == "both" else 1.0 if name is None else exposure
    means = means * (posterior["W"].to_numpy() @ posterior["H"].to_numpy())
    M = posterior["M"]
    labels = M[M.dims[2]].to_numpy().tolist()
    for sample, label in enumerate(batch):
        means[:, :, sample] *= M.to_numpy()[..., labels.index(label)] if label in labels else 1.0
    found = pd.read_csv("tables/exposures.csv", parse_dates=["sample"]).groupby("sample")["mean"].sum()
    np.testing.assert_allclose(found, means.sum(axis=1).mean(axis=0), rtol=1e-9)


def test_a_model_without_what_the_result_had_is_said(here):
    fitted = nz.fit(model=nz.gamma_nmf(X, 2, exposure=3.0), engine="em", max_iter=3, search=None, quiet=True)
    with pytest.warns(nz.NmfZooWarning, match="where the exposure is 1"):
        nz.export(fitted, "tables", model=nz.gamma_nmf(X, 2))
    with pytest.raises(nz.InputError, match="idata: got labels of 'obs' that differ from the model's"):
        nz.export(fitted, "turned", model=nz.gamma_nmf(X.iloc[:, ::-1], 2, exposure=3.0))
    title = nz.plot_activations(fitted).get_suptitle()
    assert title.startswith("What each component adds to a sample where the exposure is 1: ")


@pytest.mark.parametrize("name", ["a number", "both", "cells"])
def test_exposures_of_samples_in_rows(here, name):
    """A model of X with samples in its rows, whose second factor has the weights."""
    given = np.multiply(*EXPOSURES[name]) if name == "both" else np.asarray(EXPOSURES[name])
    counts, exposure = X.to_numpy().T, np.broadcast_to(given, X.shape).T
    with pm.Model(coords={"doc": range(6), "topic": range(2), "word": range(4)}) as model:
        usage = pm.Gamma("usage", 1.0, 1.0, dims=("doc", "topic"))
        topics = pm.Gamma("topics", 1.0, 1.0, dims=("topic", "word"))
        pm.Poisson("X", exposure * (usage @ topics), observed=counts)
    fitted = nz.fit(model=model, engine="vb", draws=5, max_iter=30, search=None, random_seed=1, quiet=True)
    nz.export(fitted, "tables", model=model, weights="topics", activations="usage")
    found = pd.read_csv("tables/exposures.csv").groupby("sample")["mean"].sum()
    draws = _compat.group(fitted, "posterior").isel(chain=0)
    means = exposure * (draws["usage"].to_numpy() @ draws["topics"].to_numpy())
    np.testing.assert_allclose(found, means.sum(axis=2).mean(axis=0), rtol=1e-9)


def test_the_model_of_exposures_is_the_results(here, idata):
    other = nz.gamma_nmf(X.iloc[:, :3], 2)
    with pytest.raises(nz.InputError, match=r"idata: got H of shape \(2, 6\); expected \(2, 3\), as in the model"):
        nz.export(idata, "tables", model=other)
    listed = nz.gamma_nmf(sp.csr_array(X), 2, observed="stored", exposure=sp.csr_array(2.0 * X))
    with pytest.raises(nz.InputError, match="model: got an exposure of listed cells alone"):
        nz.export(idata, "tables", model=listed)
    with pytest.raises(nz.InputError, match="model: got one whose factors are W and H; expected A and H"):
        nz.export(
            _compat.inference_data({"posterior": _compat.group(idata, "posterior").rename(W="A")}, {}),
            "tables",
            weights="A",
            model=other,
        )


def test_one_chain_and_parquet(here, idata):
    pytest.importorskip("pyarrow")
    nz.export(idata, "one", chain=1)
    nz.export(idata, "columns", format="parquet", chain=1, diagnostics=False)
    text, columns = pd.read_csv("one/shares.csv"), pd.read_parquet("columns/shares.parquet")
    pd.testing.assert_frame_equal(text[STATS[:5]], columns[STATS[:5]])
    assert columns[["r_hat", "ess"]].isna().all(axis=None)
    assert "chain 1: 40 draws" in Path("one/README.md").read_text(encoding="utf-8")


def test_a_point_estimate_has_means_alone(here):
    nz.export(nz.fit(nz.poisson_nmf(X, 2), engine="em", max_iter=20, random_seed=1, quiet=True), "tables")
    table = pd.read_csv("tables/W.csv")
    assert np.all(np.isfinite(table["mean"]))
    assert table[STATS[1:]].isna().all(axis=None)


def test_means_of_chains_are_no_draws(here, model):
    """How the means of two chains differ is not what is unknown of a cell."""
    kept = nz.sample(20, tune=20, chains=2, keep="moments", random_seed=1, quiet=True, model=model)
    nz.export(kept, "tables")
    for name in ("W", "shares", "exposures", "components"):
        table = pd.read_csv(f"tables/{name}.csv")
        assert np.all(np.isfinite(table["mean"]))
        assert table[STATS[1:]].isna().all(axis=None)
    assert "all 2 chains: means" in Path("tables/README.md").read_text(encoding="utf-8")
    top = nz.top_features(kept, 2)
    assert top[["share_low", "share_high"]].isna().all(axis=None)
    assert component_shares(kept).sizes["draw"] == 1
    np.testing.assert_allclose(component_shares(kept)[0, 0].max(), top["share"][0], rtol=0.02)


def test_new_samples_of_known_components(here, idata, model):
    """No chain can have them in another order: all are told of, and by all that tells of components."""
    new = nz.project(idata, X.iloc[:, :2], model=model, draws=20, tune=20, chains=2, random_seed=1, quiet=True)
    nz.export(new, "tables")
    exposures, W = pd.read_csv("tables/exposures.csv"), pd.read_csv("tables/W.csv")
    assert len(exposures) == 4
    assert np.all(W["sd"] < 1e-12)
    assert "of all 2 chains: 40 draws" in Path("tables/README.md").read_text()
    assert exposures["r_hat"].notna().all()
    H, totals = activations_and_totals(new)
    assert H.sizes["draw"] == 40
    share = H.sum("obs").to_numpy() * totals
    share = (share / share.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(pd.read_csv("tables/components.csv")["mean"], share, rtol=1e-9)

    named = nz.name_components(new, ["day", "night"])
    top = nz.top_features(named, 1)
    assert list(top["component"]) == ["day", "night"]
    np.testing.assert_allclose(top["share"], top["share_low"])
    lines = [line.split()[:2] for line in summary_lines(named, 1)][-2:]
    assert lines == [["day", f"{share[0]:.1%}"], ["night", f"{share[1]:.1%}"]]


def test_many_cells_are_not_judged_unasked(here, idata, monkeypatch):
    monkeypatch.setattr(module, "MOST_JUDGED", 3)
    with pytest.warns(nz.NmfZooWarning, match="40 cells are many to judge one by one") as said:
        nz.export(idata, "tables")
    assert said[0].filename == __file__
    assert pd.read_csv("tables/W.csv")["ess"].isna().all()
    nz.export(idata, "judged", diagnostics=True)
    assert np.all(pd.read_csv("judged/W.csv")["ess"] > 0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"format": "xlsx"}, r"format: got 'xlsx'; expected one of \['csv', 'parquet'\]"),
        ({"chain": 7}, r"chain: got 7; expected one of \[0, 1\]"),
        ({"folder": "full"}, "folder: got 'full', which exists; expected a new name; or overwrite=True"),
        ({"folder": "full", "overwrite": True}, "folder: got 'full', a folder with 'mine.txt' in it"),
        ({"weights": "A"}, "idata: got a result without A"),
    ],
)
def test_refusals(here, idata, how, said):
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    with pytest.raises(nz.InputError, match=said):
        nz.export(idata, **{"folder": "tables", **how})
    assert not Path("tables").exists()
    assert Path("full/mine.txt").read_text() == "mine"


def test_the_shell_writes_what_python_does(here, idata, capsys):
    nz.save(idata, "x.nc")
    nz.export(idata, "python")
    assert main(["export", "x.nc", "-o", "shell"]) == 0
    assert "wrote shell: H.csv, README.md, W.csv" in capsys.readouterr().out
    for path in Path("python").iterdir():
        assert path.read_bytes() == (Path("shell") / path.name).read_bytes()
    assert main(["export", "x.nc", "-o", "shell"]) == 2
    assert "or --force" in capsys.readouterr().err
    assert main(["export", "x.nc", "-o", "shell", "--force", "--chain", "0"]) == 0
    assert main(["export", "x.nc", "-o", "shell", "--force", "--exposure", "2"]) == 2
    assert "--exposure: got an option of the model; expected --data FILE beside it" in capsys.readouterr().err
    X.to_csv("x.csv")
    assert main(["export", "x.nc", "-o", "twice", "--data", "x.csv", "--exposure", "2"]) == 0
    once, twice = (pd.read_csv(f"{folder}/exposures.csv")["mean"] for folder in ("python", "twice"))
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-9)


def test_tables_under_the_names_of_cnmf(here, idata):
    """Wide tables of the same means; an export with them is replaced as any other."""
    folder = nz.export(idata, "tables", cnmf="run-1")
    names = [
        "run-1.gene_spectra_tpm.k_2.dt_2_0.txt",
        "run-1.spectra.k_2.dt_2_0.consensus.txt",
        "run-1.usages.k_2.dt_2_0.consensus.txt",
    ]
    assert sorted(path.name for path in folder.glob("*.txt")) == names
    tpm, spectra, usages = (pd.read_csv(folder / name, sep="\t", index_col=0) for name in names)
    tidy = {name: pd.read_csv(folder / f"{name}.csv") for name in ("shares", "exposures")}
    wide = tidy["shares"].pivot(index="component", columns="feature", values="mean")[list(X.index)]
    np.testing.assert_allclose(spectra[list(X.index)], wide, rtol=1e-9)
    np.testing.assert_allclose(tpm, 1e6 * spectra, rtol=1e-9)
    np.testing.assert_allclose(usages.sum(axis=1), tidy["exposures"].groupby("sample")["mean"].sum(), rtol=1e-9)
    assert list(map(str, usages.index)) == list(dict.fromkeys(tidy["exposures"]["sample"]))
    nz.export(idata, "tables", overwrite=True)
    assert not list(folder.glob("*.txt"))
    for name in ("", "a b", "../x", 3):
        with pytest.raises(nz.InputError, match=r"cnmf: got .*; expected a name of letters"):
            nz.export(idata, "other", cnmf=name)


def test_names_of_cnmf_from_the_shell(here, idata, capsys):
    nz.save(idata, "x.nc")
    assert main(["export", "x.nc", "-o", "tables", "--cnmf", "run"]) == 0
    assert "run.usages.k_2.dt_2_0.consensus.txt" in capsys.readouterr().out
    assert main(["export", "x.nc", "-o", "other", "--cnmf", "a/b"]) == 2
    assert "--cnmf: got 'a/b'" in capsys.readouterr().err


# -- what else is unknown --------------------------------------------------------------------------------------------

LETTERS = ["a, b", "c", "d", "\u00e9"]
AGES = pd.DataFrame({"age": [0.0, 1.0, -1.0, 2.0, 0.5, -0.5]}, index=X.columns)


def in_batches():
    """Unknown multipliers and relevances; every variable that a label can belong to."""
    return nz.gamma_nmf(X, 2, batch=nz.Batches(labels=[1, 2, 3] * 2, reference=2), prior="ard")


def test_every_other_unknown_is_exported_with_its_labels(here):
    model = in_batches()
    found = nz.sample(10, tune=10, chains=2, start="random", random_seed=1, quiet=True, model=model)
    folder = nz.export(found, "tables", model=model)
    table = pd.read_csv(folder / "parameters.csv")
    shown = component_order(found)["shown"].to_numpy()
    M = _compat.group(found, "posterior")["M"].to_numpy()[shown]
    own = table[table["parameter"] == "M"]
    assert own["feature"].tolist() == [letter for letter in LETTERS for _ in range(2)]
    assert own["other_batch"].tolist() == [1.0, 3.0] * 4
    assert own["component"].isna().all()
    for row, column in np.ndindex(4, 2):
        np.testing.assert_allclose(own[STATS].to_numpy()[2 * row + column], expected(M[..., row, column]), rtol=1e-9)
    relevance = table[table["parameter"] == "relevance"]
    assert relevance["component"].tolist() == [0, 1]
    order = component_order(found)["order"].to_numpy()[shown]
    whole = np.take_along_axis(_compat.group(found, "posterior")["relevance"].to_numpy()[shown], order, -1)
    np.testing.assert_allclose(relevance["mean"], whole.mean(axis=(0, 1)))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "| other_batch | label along this dim of the model |" in readme
    assert ",1," in (folder / "parameters.csv").read_text(encoding="utf-8")  # and not 1.0
    nz.export(found, "tables", model=model, overwrite=True)


OTHERS = {
    "dispersion": (lambda: nz.negative_binomial_nmf(X, 2), set()),
    "hpf": (lambda: nz.gamma_nmf(X, 2, prior="hpf"), {"feature", "sample"}),
    "slopes": (lambda: nz.gamma_nmf(X, 2, design=AGES), {"component", "covariate"}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_of_every_kind(here, name):
    make, columns = OTHERS[name]
    how = {"chains": 1, "start": "random", "random_seed": 1, "quiet": True}
    found = nz.sample(5, tune=5, model=make(), **how)
    table = pd.read_csv(nz.export(found, "tables") / "parameters.csv")
    posterior = _compat.group(found, "posterior").drop_vars(["W", "H"])
    assert set(table["parameter"]) == set(posterior.data_vars)
    assert len(table) == sum(array[0, 0].size for array in posterior.data_vars.values())
    assert set(table) - {"parameter", *STATS} == columns


def test_a_point_has_parameters_and_imputed_cells_have_none(here):
    holes = X.where(X.iloc[0, 0] != X)
    found = nz.fit(nz.negative_binomial_nmf(holes, 2), engine="em", max_iter=3, search=None, random_seed=1, quiet=True)
    table = pd.read_csv(nz.export(found, "tables") / "parameters.csv")
    assert table["mean"].notna().all()
    assert table["sd"].isna().all()
    drawn = nz.sample(4, tune=4, chains=1, start="random", random_seed=1, quiet=True, model=nz.gamma_nmf(holes, 2))
    group = _compat.group(drawn, "posterior")
    more = group.assign(X_unobserved=group["W"].sum(["feature", "component"]), mean_of_X=group["W"] @ group["H"])
    folder = nz.export(_compat.inference_data({"posterior": more}, {}), "others")
    assert not (folder / "parameters.csv").exists()


def test_a_table_of_parameters_is_read_back_from_parquet(here):
    pytest.importorskip("pyarrow")
    how = {"engine": "em", "max_iter": 3, "search": None, "random_seed": 1, "quiet": True}
    model = nz.gamma_nmf(X, 2, batch=["x", "y", "z"] * 2)
    folder = nz.export(nz.fit(model, **how), "tables", format="parquet", model=model)
    table = pd.read_parquet(folder / "parameters.parquet")
    assert table["batch"].tolist() == ["x", "y", "z"] * 4
