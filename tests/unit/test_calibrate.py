"""Simulation-based calibration as users call it: exact engines pass, an approximate one is named, runs resume."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pymc as pm
import pytest
import scipy.sparse
from pymc.exceptions import ImputationWarning

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.reading import read
from nmf_zoo.runtime.run_fingerprint import function_fact
from nmf_zoo.workbench import calibrate
from nmf_zoo.workbench.calibrate import judge_ranks
from tests.sizes import at_full_size

SHORT = {"simulations": 20, "draws": 9, "thin": 1, "tune": 10, "random_seed": 1, "progressbar": False}


def declare():
    return nz.gamma_nmf(None, rank=2, shape=(3, 4))


def total(structure, values):
    return {"total": float(np.sum(values["W"]) + np.sum(values["H"]))}


def test_ranks_are_of_quantities_that_ignore_labels():
    found = nz.calibrate(declare, **SHORT)
    assert found["rank"].sizes == {"simulation": 20, "quantity": 15}
    assert list(found["quantity"].to_numpy()[:3]) == ["lp", "sum W", "sum H"]
    assert found["rank"].min() >= 0
    assert found["rank"].max() <= 9
    assert found.attrs["engine"] == "gibbs"


def test_ranks_do_not_depend_on_the_cores():
    one, two = (nz.calibrate(declare, cores=cores, **SHORT)["rank"] for cores in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_ranks_do_not_depend_on_where_they_are_made():
    """Processes that begin anew know nothing but what they are sent."""
    here = nz.calibrate(declare, "vb", **SHORT)
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        there = nz.calibrate(declare, "vb", executor=executor, **SHORT)
        np.testing.assert_array_equal(here["rank"], there["rank"])
        with pytest.raises(InputError, match="executor: got ProcessPoolExecutor with nuts; expected None"):
            nz.calibrate(declare, "nuts", executor=executor, **SHORT)


def test_more_simulations_begin_with_the_same_ones_and_go_on_from_a_checkpoint(tmp_path):
    whole = nz.calibrate(declare, **{**SHORT, "simulations": 30})
    nz.calibrate(declare, **SHORT, checkpoint=tmp_path / "run")
    asked = []

    def counted(structure, values):
        asked.append(values)
        return total(structure, values)

    more = nz.calibrate(declare, **{**SHORT, "simulations": 30}, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(more["rank"], whole["rank"])
    with pytest.raises(InputError, match="of another run: quantities was 'default', now 'own,"):
        nz.calibrate(declare, **SHORT, quantities=counted, checkpoint=tmp_path / "run")
    assert not asked


def test_a_checkpoint_is_of_quantities_as_they_were_written(tmp_path):
    """Ranks of an earlier wording would stand beside those of the next."""

    few = {**SHORT, "checkpoint": tmp_path / "run"}
    begun = nz.calibrate(declare, **few, quantities=total)
    again = nz.calibrate(declare, **few, quantities=total)
    np.testing.assert_array_equal(again["rank"], begun["rank"])
    with pytest.raises(InputError, match="of another run: quantities was 'own, of code"):
        nz.calibrate(declare, **few, quantities=lambda structure, values: {"total": float(np.sum(values["W"]))})


def test_what_a_function_does_is_told_alike_by_every_process():
    """Sets of words have an order that differs between processes."""
    one, two = (eval(f"lambda name: name in {{{words}}}") for words in ("'a', 'b'", "'b', 'a'"))
    assert function_fact(one) == function_fact(two) != function_fact(lambda name: name in {"a", "c"})
    assert function_fact(max) == "own"


def test_own_quantities():
    found = nz.calibrate(declare, **SHORT, quantities=total)
    assert list(found["quantity"].to_numpy()) == ["total"]


def test_observed_data_are_replaced_and_their_mask_is_kept():
    X = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert nz.calibrate(lambda: nz.gamma_nmf(X, rank=1), **SHORT)["rank"].sizes["simulation"] == 20


def test_masked_cells_say_nothing():
    """As where a declaration is read: engines take the 0 of a masked cell for no count."""
    structure = read(nz.gamma_nmf(np.ones((2, 2)), rank=1, mask=[[True, False], [True, True]]))
    data = calibrate._with_data(structure, np.full((2, 2), 5))
    np.testing.assert_array_equal(data.data.values, [[5.0, 0.0], [5.0, 5.0]])
    np.testing.assert_array_equal(data.data.mask, structure.data.mask)


@pytest.mark.parametrize("observed", [None, "stored"])
def test_cells_that_sparse_counts_do_not_list_are_zeros_or_missing(observed):
    X = scipy.sparse.csr_matrix([[1, 2], [3, 0]])
    data = calibrate._with_data(read(nz.gamma_nmf(X, rank=1, observed=observed)), np.full((2, 2), 5)).data
    np.testing.assert_array_equal(data.values, [[5.0, 5.0], [5.0, 5.0 if observed is None else 0.0]])
    assert data.mask is None if observed is None else data.mask.tolist() == [[True, True], [True, False]]


def declare_with_imputed_cells():
    X = np.ma.masked_array([[1, 2], [3, 0]], mask=[[False, False], [False, True]])
    with pm.Model() as model:
        W, H = pm.Gamma("W", 2.0, 1.0, shape=(2, 1)), pm.Gamma("H", 2.0, 1.0, shape=(1, 2))
        with pytest.warns(ImputationWarning):
            pm.Poisson("X", W @ H, observed=X)
    return model


def test_imputed_cells_are_ranked():
    found = nz.calibrate(declare_with_imputed_cells, **SHORT)
    assert "sum X_unobserved" in found["quantity"]
    structure = read(declare_with_imputed_cells())
    truth = calibrate._with_imputed(structure, {"W": np.ones((2, 1))}, np.array([[5, 6], [7, 8]]))
    assert truth["X_unobserved"].tolist() == [8]


def with_scales(templates):
    """GaP with a rate for each component; the templates, if given, say which is which."""
    with pm.Model():
        rates = pm.Gamma("r", 6.0, 4.0, shape=(2, 1))
        free = nz.gamma_nmf(None, 2, beta_h=rates, shape=(3, 4))
    return free if templates is None else pm.do(free, {"W": templates})


@pytest.mark.parametrize("templates", [None, np.array([[0.8, 1.9], [1.4, 0.3], [0.2, 1.1]])], ids=["free", "known"])
def test_hyperparameters_are_in_order_of_size_unless_components_are_known(templates):
    structure = read(with_scales(templates))
    values = {"r": np.array([[3.0], [1.0]]), "W": np.ones((3, 2)), "H": np.ones((2, 4))}
    found = calibrate.invariants(calibrate._with_data(structure, np.ones((3, 4))), values)
    assert [found["r[0]"], found["r[1]"]] == ([1.0, 3.0] if templates is None else [3.0, 1.0])
    assert ("sum W" in found) == (templates is None)


def test_ranks_are_judged_in_words():
    rng, n, draws = np.random.default_rng(0), 400, 31
    uniform = rng.integers(0, draws + 1, n)
    columns = {
        "fine": uniform,
        "narrow": np.round(draws * rng.beta(0.5, 0.5, n)).astype(int),
        "wide": np.round(draws * rng.beta(2.0, 2.0, n)).astype(int),
        "high": np.round(draws * rng.beta(1.0, 1.6, n)).astype(int),
        "low": np.round(draws * rng.beta(1.6, 1.0, n)).astype(int),
    }
    found = judge_ranks(np.stack(list(columns.values()), axis=1), list(columns), draws, {})
    assert list(found["verdict"].to_numpy()) == ["calibrated", "too narrow", "too wide", "too high", "too low"]
    assert found.attrs["verdict"].startswith("4 of 5 quantities are off: narrow too narrow")


def test_a_smaller_alarm_says_less():
    rng, draws = np.random.default_rng(0), 31
    ranks = np.round(draws * rng.beta(1.0, 1.35, 400)).astype(int)[:, None]
    p_value = judge_ranks(ranks, ["high"], draws, {})["p_value"].item()
    assert 1e-12 < p_value < 0.01
    assert judge_ranks(ranks, ["high"], draws, {}, alarm=p_value / 2)["verdict"].item() == "calibrated"


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("engine", "is_calibrated"),
    [("gibbs", True), pytest.param(nz.Gibbs(moves=()), True, marks=at_full_size), ("vb", False)],
    ids=str,
)
def test_exact_engines_pass_and_the_narrow_posterior_of_vb_is_seen(engine, is_calibrated):
    """Ranks of Gibbs are uniform, and those of VB are not. Long: a run for each simulation."""
    found = nz.calibrate(declare, engine, simulations=200, random_seed=1, progressbar=False, cores=2)
    assert found.attrs["verdict"].startswith("no sign") == is_calibrated, found.attrs["verdict"]
    if not is_calibrated:
        assert found["verdict"].sel(quantity="sum W").item() == "too narrow"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"declare": 3}, InputError, "declare: got int; expected a function that returns a pm.Model"),
        ({"declare": lambda: 3}, InputError, "declare: got a function that returns int; expected one that returns"),
        ({"declare": lambda: nz.gap(None, rank=1, shape=(2, 2))}, InputError, "W: got a flat density"),
        ({"engine": "hmc"}, InputError, "engine: got 'hmc'; expected one of"),
        ({"engine": "em"}, InputError, "engine: got 'em'; expected one that draws from a posterior"),
        ({"engine": "mcem"}, UnsupportedModel, "engine 'mcem' can't run this model"),
        ({"engine": "nuts", "declare": lambda: nz.gamma_nmf([[1]], rank=1)}, InputError, "one without, for nuts"),
        ({"alarm": 1.0}, InputError, "alarm: got 1.0; expected a number between 0 and 1"),
        ({"simulations": 5}, InputError, "simulations: got 5; expected an integer >= 20"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        nz.calibrate(**{"declare": declare, **SHORT, **arguments})


@pytest.mark.statistical
@pytest.mark.rest
def test_nuts_by_nutpie_compiles_once(monkeypatch):
    """Long: compiling once is what it is about."""
    nutpie = pytest.importorskip("nutpie")
    compiled, compile_model = [], nutpie.compile_pymc_model
    monkeypatch.setattr(nutpie, "compile_pymc_model", lambda model: compiled.append(model) or compile_model(model))
    long = {"simulations": 100, "draws": 31, "thin": 4, "tune": 300, "random_seed": 1, "progressbar": False}
    found = nz.calibrate(
        lambda: nz.gamma_nmf(None, rank=1, alpha_w=2.0, shape=(2, 2)), nz.NUTS(sampler="nutpie"), **long
    )
    assert len(compiled) == 1
    assert (found["verdict"] == "calibrated").all(), found.attrs["verdict"]


@pytest.mark.statistical
def test_nuts_by_pymc_can_be_calibrated(monkeypatch):
    monkeypatch.setattr(calibrate, "FEWEST", 1)  # every simulation compiles
    sampler = nz.NUTS(sampler="pymc")
    found = nz.calibrate(lambda: nz.gamma_nmf(None, rank=1, shape=(2, 2)), sampler, **{**SHORT, "simulations": 2})
    assert found["rank"].sizes["simulation"] == 2
