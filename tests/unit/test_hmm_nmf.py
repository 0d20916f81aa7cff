"""The declaration hmm_nmf: what it takes, how it is read, described and simulated, and who refuses it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import nmf_zoo as nz
from nmf_zoo.errors import InputError, UnreadableModel, UnsupportedModel
from nmf_zoo.inference.registry import verdict
from nmf_zoo.interfaces.cli import main
from nmf_zoo.reading import check, describe, read
from nmf_zoo.structure import BasisChainPrior, Fixed, LogNormalARPrior, UnitChainPrior
from tests.registered import OF_CHAINS, OURS

F, K, T = 4, 2, 9
RNG = np.random.default_rng(8)
X = RNG.poisson(3.0, (F, T)) + 1
GAPS = np.where(RNG.random((F, T)) < 0.8, X, np.nan)
GAPS[:, 3] = np.nan  # a missing time
TABLES = {
    "dense": {"X": X},
    "missing": {"X": GAPS},
    "sparse": {"X": scipy.sparse.csr_array(X), "background": None},
    "offsets": {"X": X, "exposure": RNG.uniform(0.5, 2.0, T)},
    "one time": {"X": X[:, :1]},
    "nothing": {"X": None, "shape": (F, T)},
}
CHAINS = {
    "basis": "basis",
    "unit": "unit",
    "log-normal": "log-normal",
    "basis, known": nz.BasisChain(0.9, 0.8, 0.2),
    "basis, stationary": nz.BasisChain(0.9, nz.free(), "stationary"),
    "basis, per component": nz.BasisChain(np.array([0.9, 0.7]), nz.free(tie="obs")),
    "unit, per component": nz.UnitChain([0.9, 0.8]),
    "log-normal, known": nz.LogNormalAR(0.0, 0.5, 1.0, initial=(0.3, 2.0)),
    "log-normal, per component": nz.LogNormalAR(nz.free(tie="obs"), 0.5, np.ones(K), initial="stationary"),
}


def declare(chain="basis", **arguments):
    return nz.hmm_nmf(**{"X": X, "rank": K, "chain": chain, "background": 0.1, **arguments})


@pytest.mark.filterwarnings("ignore:rank. got 2")  # above the one sample of "one time"
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["basis", "log-normal, known", "unit"])
def test_every_table_is_read_as_it_was_declared(name, table):
    check(declare(CHAINS[name], **TABLES[table]))


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_is_read_as_it_was_declared(name):
    model = declare(CHAINS[name], alpha_w=1.5, mean_w=2.0)
    check(model)
    structure = read(model)
    kind = {"basis": BasisChainPrior, "unit": UnitChainPrior}.get(name.split(",")[0], LogNormalARPrior)
    assert isinstance(structure.H.prior, kind)
    free = {rv.name for rv in model.free_RVs} - {"W", "H"}
    assert structure.unknowns.keys() == free


def test_the_check_is_not_one_of_impossible_points():
    """Random points must have a density, or every structure would pass."""
    model = declare("basis", background=None)
    structure = read(model)
    wrong = read(declare(nz.BasisChain(0.9, 0.8), background=None))
    with pytest.raises(AssertionError, match="log joint"):
        check(declare(nz.BasisChain(0.8, 0.8), background=None), structure=wrong)
    check(model, structure=structure, n=10)


def test_parameters_can_be_variables_of_the_model():
    with pm.Model() as model:
        p = pm.Beta("stay", 2.0, 3.0, shape=K)
        nz.hmm_nmf(X, K, chain=nz.BasisChain(p, pm.Uniform("q", 0.2, 0.9)), background=0.1, alpha_w=2.0)
    check(model)
    prior = read(model).H.prior
    assert (prior.p.name, prior.p.shape, prior.p.prior.kind) == ("stay", (K, 1), "beta")
    assert prior.q.shape == ()
    with pm.Model() as model:
        mean = pm.Normal("m", 0.0, 2.0, shape=K)
        nz.hmm_nmf(X, K, chain=nz.LogNormalAR(mean, pm.Uniform("f", -0.5, 0.5), pm.HalfNormal("s", 1.0)), alpha_w=2.0)
    check(model)


def test_a_model_of_ones_own():
    coords = {"gene": range(F), "part": range(K), "day": range(T)}
    with pm.Model(coords=coords) as model:
        W = pm.Gamma("A", np.float64(2.0), np.float64(1.0), dims=("gene", "part"))
        H = nz.UnitChain("on", np.float64(0.9), dims=("part", "day"))
        pm.Poisson("counts", mu=pm.math.dot(W, H) + np.float64(0.1), observed=X, dims=("gene", "day"))
    check(model)
    assert read(model).H.name == "on"


def test_known_activations_are_no_chain():
    model = pm.do(declare(nz.BasisChain(0.9, 0.8)), {"H": np.ones((K, T), dtype=int)})
    assert isinstance(read(model).H.prior, Fixed)


def test_description():
    assert "H: 2 x 9, BasisChain(p=0.9, q=q, initial=stationary)" in describe(declare(CHAINS["basis, stationary"]))
    assert "H: 2 x 9, UnitChain(alpha=[0.9, 0.8])" in describe(declare(CHAINS["unit, per component"]))
    text = describe(declare(CHAINS["log-normal, known"]))
    assert "LogNormalAR(mean=0, persistence=0.5, scale=1, initial_mean=0.3, initial_scale=2)" in text


@pytest.mark.parametrize("name", ["basis, stationary", "unit", "log-normal, known"])
def test_simulation(name):
    model = declare(CHAINS[name], X=None, shape=(F, 500), alpha_w=2.0)
    drawn = nz.simulate(model, random_seed=2)
    assert dict(drawn["H"].sizes) == {"component": K, "obs": 500}
    mean = (drawn["W"].to_numpy() @ drawn["H"].to_numpy() + 0.1).mean()
    assert drawn["X"].to_numpy().mean() == pytest.approx(mean, abs=5 * np.sqrt(mean / (500 * F)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chain": "markov"}, "chain: got 'markov'; expected a chain such as"),
        ({"chain": nz.BasisChain(1.0, 0.5)}, r"p: got values from 1.0 to 1.0; expected numbers inside \(0, 1\)"),
        ({"chain": nz.BasisChain(0.5, 0.0)}, "q: got values from 0.0"),
        ({"chain": nz.BasisChain(0.5, 0.5, 1.5)}, "initial: got values from 1.5"),
        ({"chain": nz.BasisChain([0.5, 0.5, 0.5], 0.5)}, r"p: got shape \(3,\); expected \(\) or \(2,\)"),
        ({"chain": nz.BasisChain(np.full((2, 1), 0.5), 0.5)}, r"p: got shape \(2, 1\)"),
        ({"chain": nz.UnitChain(np.nan)}, "alpha: got values that are NaN"),
        ({"chain": nz.LogNormalAR(0.0, 1.0, 1.0)}, r"persistence: got values from 1.0 to 1.0; expected .* \(-1, 1\)"),
        ({"chain": nz.LogNormalAR(0.0, 0.5, -1.0)}, r"scale: got values from -1.0 .* inside \(0, inf\)"),
        ({"chain": nz.LogNormalAR(0.0, 0.5, 1.0, (0.0, 0.0))}, "initial_scale: got values from 0.0"),
        ({"chain": nz.BasisChain(nz.free(tie="component"), 0.5)}, "p: got free"),
        ({"chain": nz.BasisChain(p="often", q=0.5)}, "p: got 'often'"),
        ({"chain": nz.BasisChain(0.5, 0.5, "steady")}, "initial: got 'steady'"),
        ({"chain": nz.BasisChain(None, 0.5)}, "p: got None"),
        ({"beta_w": 2.0}, "beta_w: got a value without a shape"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        declare(**arguments)


def test_unreadable_chains():
    with pm.Model() as model:
        W, H = pm.HalfFlat("W", shape=(T, K)), nz.UnitChain("H", 0.9, shape=(F, K))
        pm.Poisson("X", mu=(H @ W.T), observed=X)
    with pytest.raises(UnreadableModel, match="a chain on the left"):
        read(model)
    with pm.Model() as model:
        W, H = pm.HalfFlat("W", shape=(F, K)), nz.UnitChain("H", 0.9, shape=(T, K))
        pm.Poisson("X", mu=(W @ H.T), observed=X)
    with pytest.raises(UnreadableModel, match="a transposed chain"):
        read(model)
    with pm.Model() as model:
        W, p = pm.HalfFlat("W", shape=(F, K)), pm.Uniform("p", 0.1, 0.9)
        pm.Poisson("X", mu=W @ nz.BasisChain("H", p**2, 0.5, shape=(K, T)), observed=X)
    with pytest.raises(UnreadableModel, match=r"H: found p = "):
        read(model)
    with pm.Model() as model:
        W = pm.HalfFlat("W", shape=(F, K))
        pm.Poisson("X", mu=W @ nz.BasisChain("H", 1.5, 0.5, shape=(K, T)), observed=X)
    with pytest.raises(UnreadableModel, match=r"p from 1\.5 to 1\.5 in its chain"):
        read(model)


@pytest.mark.parametrize("engine", [name for name in OURS if name not in OF_CHAINS])
def test_engines_for_independent_columns_refuse_chains(engine):
    for chain in ("basis", "unit", "log-normal"):
        assert "Markov chain" in verdict(read(declare(chain)), engine).reason


def test_other_refusals():
    basis, unit = read(declare("basis")), read(declare("unit"))
    assert "discrete" in verdict(basis, "nuts").reason
    assert "jumps" in verdict(unit, "nuts").reason
    for prior in ({"alpha_w": 2.0}, {}):
        assert verdict(read(declare(CHAINS["log-normal, known"], **prior)), "nuts")
    assert "free" in verdict(read(declare("log-normal", alpha_w=2.0)), "nuts").reason
    with pytest.raises(UnsupportedModel, match="chain"):
        nz.marginal_log_likelihood(declare(nz.BasisChain(0.9, 0.8)), np.ones((F, K)))
    with pytest.raises(UnsupportedModel, match="can't stream"):
        nz.stream(declare("unit"), engine=nz.ChainOnlineEM())
    with pytest.raises(UnsupportedModel, match="columns of H are a Markov chain"):
        nz.evidence(declare(nz.BasisChain(0.9, 0.8), alpha_w=2.0))


def test_fit_and_projection():
    """New samples are smoothed under the W, p and q that were found; a stream's result projects as well."""
    model = declare(CHAINS["basis, per component"])
    fitted = nz.fit(model=model, engine="hmm_exact", max_iter=20, draws=3, random_seed=1, quiet=True)
    assert fitted.posterior["H"].dims == ("chain", "draw", "component", "obs")
    assert set(fitted.posterior["H"].to_numpy().ravel()) <= {0, 1}
    assert np.all((fitted.fit["H_mean"] >= 0) & (fitted.fit["H_mean"] <= 1))
    assert np.all(np.diff(fitted.fit["objective"]) > -1e-9)
    again = nz.project(fitted, X, model=model, max_iter=1, draws=2, random_seed=1, quiet=True)
    np.testing.assert_allclose(again.fit["H_mean"], fitted.fit["H_mean"], rtol=1e-6)
    stream = nz.stream(model, random_seed=1)
    new = nz.project(stream.result(), X[:, :4], model=model, draws=2, random_seed=1, quiet=True)
    assert new.posterior["H"].shape == (1, 2, K, 4)
    for name in ("unit", "log-normal, known"):
        nz.projection_model(fitted, X, model=pm.do(declare(CHAINS[name]), {"alpha": 0.9} if name == "unit" else {}))


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    """Bit for bit as one that was not stopped, on any number of cores."""
    run = {"model": declare(X=GAPS), "engine": "hmm_exact", "tol": 0, "restarts": 2, "search": None, "draws": 3}
    run |= {"random_seed": 1, "quiet": True}
    whole = nz.fit(**run, max_iter=9, cores=2)
    for length in (4, 9):
        stopped = nz.fit(**run, max_iter=length, cores=1, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(stopped.fit["objective"], whole.fit["objective"])
    for name in ("W", "H", "p"):
        np.testing.assert_array_equal(stopped.posterior[name], whole.posterior[name])


def test_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ["--model", "hmm-nmf", "--rank", "2"]
    simulate = ["simulate", *model, "--chain", "basis:p=0.9,q=0.8", "--alpha-w", "2", "--shape", "6x50", "-o", "x.csv"]
    assert main([*simulate, "--random-seed", "3"]) == 0
    fit = ["fit", "x.csv", *model, "--engine", "hmm_exact", "--quiet", "--max-iter", "5", "-o", "fit.nc"]
    assert main([*fit, "--chain", "basis:initial=stationary", "--force"]) == 0
    for chain, expected in (("wavy", "basis, unit, log-normal"), ("unit:p=1", "parameters of unit: alpha")):
        assert main([*fit, "--chain", chain, "--force"]) == 2
        assert expected in capsys.readouterr().err
