"""EM and VB of powers over blocks: with one block the iterates in memory, with many the same sums in another order."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.inference.evidence.contract import EvidenceRun
from nmf_zoo.inference.powers import vb_blocks
from nmf_zoo.inference.shared import sample_blocks
from nmf_zoo.kernels.numerics.gig_moments import Orders, fill_gig_moments
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime import checkpoint as checkpoints
from nmf_zoo.verbs.block_source import CutArray
from nmf_zoo.workbench import holdout
from nmf_zoo.workbench.rank_blocks import TrainingBlocks
from tests.at_once import AtOnce
from tests.cut_samples import CutSamples
from tests.statistical.gates import check_means

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.exponential((1.0 / RNG.gamma(2.0, 1.0, (F, K))) @ (1.0 / RNG.gamma(2.0, 1.0, (K, N))))
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
SILENT = X.copy()
SILENT[:, :9] = 0.0  # the first of blocks of seven, and a part of the next
ZEROS = X.copy()
ZEROS[0, ::7] = 0.0  # one in each of these blocks
OF_SAMPLES = RNG.gamma(5.0, 0.2, N)
OF_FEATURES = RNG.gamma(5.0, 0.2, (F, 1))
KNOWN = RNG.gamma(2.0, 1.0, (F, 1))
RUN = {"max_iter": 25, "tol": 0, "random_seed": 1, "quiet": True, "cores": 1}
ENGINES = {
    "em": nz.EM(),
    "em, plain": nz.EM(accelerate=None),
    "em, monotone, log": nz.EM(update="monotone", mode="log"),
    "vb": nz.VB(),
    "vb, plain": nz.VB(accelerate=None),
}


def proper(X, **more):
    return nz.is_nmf(X, K, **{"alpha_w": 2.0, "beta_w": [[0.8, 1.0, 1.2]], "alpha_h": 1.5, "beta_h": 0.4} | more)


def flat(X, **more):
    return nz.is_nmf(X, K, **more)


def both_gamma(X, **more):
    """A model of one's own: W and H have gamma priors."""
    with pm.Model() as model:
        W = pm.Gamma("W", 1.4, 0.7, shape=(F, K))
        H = pm.Gamma("H", 1.2, 0.5, shape=(K, 1 if X is None else X.shape[1]))
        pm.Exponential("X", scale=W @ H, observed=X, shape=None if X is not None else (F, 1))
    return model


def in_memory(X, engine, make=proper, **more):
    return nz.fit(model=make(X, **more), engine=engine, search=None, draws=1, **RUN)


def over(data, engine, model=None, **more):
    return nz.fit(model=model or proper(None, shape=(F, 1)), data=data, engine=engine, **RUN | more)


def weights(idata):
    """EM's point, or the mean of q, without what is known."""
    fit, posterior = group(idata, "fit"), group(idata, "posterior")
    name = "W_new" if "W_new" in posterior else "W"
    return (fit[f"{name}_mean"] if f"{name}_mean" in fit else posterior[name][:, 0]).to_numpy()[0]


def objective(idata):
    return group(idata, "fit")["objective"].to_numpy()[0]


def assert_same(found, expected):
    for name in ("posterior", "fit", "sample_stats", "components"):
        assert set(group(found, name).data_vars) == set(group(expected, name).data_vars)
        for variable, array in group(expected, name).data_vars.items():
            np.testing.assert_array_equal(group(found, name)[variable], array, err_msg=variable)


class Counted(CutArray):
    """Counts its readings."""

    count = 0

    def read(self, number):
        self.count += 1
        return super().read(number)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_one_block_is_the_run_in_memory(engine, monkeypatch):
    """As long as it takes momentum to lose, and the pass to be made again."""
    run, source, passes = {**RUN, "max_iter": 100}, Counted(X, N), []
    make = sample_blocks.sums_of_shards
    monkeypatch.setattr(sample_blocks, "sums_of_shards", lambda *how: passes.append(how[1]) or make(*how))
    whole = nz.fit(model=proper(X), engine=engine, search=None, draws=1, **run)
    one = over(source, engine, **run)
    again = len(passes) - (run["max_iter"] + 2)  # beside iterations one pass before them and one after
    assert again > 0 if engine.accelerate else again == 0
    np.testing.assert_array_equal(weights(one), weights(whole))
    np.testing.assert_array_equal(objective(one), objective(whole))
    np.testing.assert_array_equal(group(one, "fit")["residual"], group(whole, "fit")["residual"])


def test_blocks_that_are_in_memory_together_are_read_once_for_all_passes(monkeypatch):
    """Two at the most, and with the bits of those that are read again."""
    monkeypatch.setattr(sample_blocks, "ThreadPoolExecutor", AtOnce)
    sources = [Counted(X, -(-N // blocks)) for blocks in (1, 2, 3)]
    found = [over(source, "em", max_iter=5) for source in sources]
    # beside iterations: a look and a pass before them, a pass and a look after them, which see to their own; and the
    # first block once more, in advance of passes that do not follow
    assert [source.count for source in sources] == [4, 2 * 4, 3 * (5 + 4) + 2]
    monkeypatch.setattr(sample_blocks, "AT_A_TIME", 0)
    for one, source in zip(found[:2], sources, strict=False):
        assert_same(over(source, "em", max_iter=5), one)
    assert [source.count for source in sources[:2]] == [4 + 9 + 2, 2 * (4 + 9) + 2]
    assert pickle.loads(pickle.dumps(sample_blocks.BlockReader())).held == {}  # another process reads its own


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_many_blocks_add_up(engine):
    whole, many = in_memory(X, engine), over(CutArray(X, 7), engine)
    np.testing.assert_allclose(weights(many), weights(whole), rtol=1e-9)
    np.testing.assert_allclose(group(many, "fit")["residual"], group(whole, "fit")["residual"], rtol=1e-6)
    gains = np.diff(objective(many)) * (1 if isinstance(engine, nz.VB) else -1)
    assert gains.min() >= -1e-12 * abs(objective(many)[-1])
    point = group(many, "posterior")
    assert point["H"].shape == (1, 1, K, N)
    values = {name: point[name].to_numpy()[0, 0] for name in ("W", "H")}
    lp = nz.read(proper(X)).log_joint(values)
    np.testing.assert_allclose(group(many, "sample_stats")["lp"].to_numpy(), lp, rtol=1e-12)


MODELS = {
    "exposure of samples": (CutSamples(X, exposure=OF_SAMPLES), proper, {"exposure": OF_SAMPLES[None]}, {}),
    "exposure of features": (CutSamples(X), proper, {"exposure": OF_FEATURES}, {"exposure": OF_FEATURES}),
    "background": (CutSamples(SILENT), proper, {"background": OF_FEATURES}, {"background": OF_FEATURES}),
    "background of samples": (
        CutSamples(SILENT, exposure=OF_SAMPLES, background=OF_FEATURES * OF_SAMPLES),
        proper,
        {"exposure": OF_SAMPLES[None], "background": OF_FEATURES * OF_SAMPLES},
        {},
    ),
    "flat W, background, pair": (
        CutSamples(SILENT, background=(OF_FEATURES, OF_SAMPLES[None])),
        flat,
        {"background": (OF_FEATURES, OF_SAMPLES[None])},
        {},
    ),
    "mask": (CutSamples(X, mask=MASK), proper, {"mask": MASK}, {}),
    "NaN": (CutSamples(np.where(MASK, X, np.nan)), proper, {"mask": MASK}, {}),
    "known component": (CutSamples(X), proper, *2 * [{"known": KNOWN, "beta_w": [[0.8, 1.2]]}]),
    "sparse": (CutSamples(sp.csc_array(X)), proper, {}, {}),
    "silence": (CutSamples(SILENT), proper, {}, {}),
    "gamma": (CutSamples(X), both_gamma, {}, {}),
    "flat W": (CutSamples(X), flat, {}, {}),
    "flat W, silence, exposure": (
        CutSamples(SILENT, exposure=OF_SAMPLES, mask=MASK),
        flat,
        {"exposure": OF_SAMPLES[None], "mask": MASK},
        {},
    ),
}


@pytest.mark.filterwarnings("ignore:X. 9 samples have no positive observed cell")
@pytest.mark.parametrize("engine", ["em", "vb"])
@pytest.mark.parametrize("name", MODELS)
def test_what_models_and_data_may_have(name, engine):
    data, make, whole, apart = MODELS[name]
    if engine == "vb" and name == "flat W, silence, exposure":
        pytest.skip("no posterior is known to exist")
    declared = make(None, **({} if make is both_gamma else {"shape": (F, 1)}), **apart)
    table = SILENT if data.X is SILENT else X
    expected, found = in_memory(table, engine, make, **whole), over(data, engine, declared)
    np.testing.assert_allclose(weights(found), weights(expected), rtol=1e-8)
    np.testing.assert_allclose(objective(found), objective(expected), rtol=1e-11)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_samples_are_folded_in_where_w_is_known(engine):
    model = proper(X[:, :30])
    old = nz.fit(model=model, engine="em", search=None, **RUN)
    whole = nz.project(old, X, model=model, engine=engine, search=None, **RUN)
    found = nz.project(old, model=model, data=CutArray(X, 7), engine=engine, **RUN)
    of_H = ("posterior", "H") if engine == "em" else ("fit", "H_mean")
    expected = group(whole, of_H[0])[of_H[1]].to_numpy().reshape(K, N)
    np.testing.assert_allclose(group(found, "posterior")["H"].to_numpy()[0, 0], expected, rtol=1e-9)
    assert nz.project(old, model=model, data=CutArray(X, 7), **RUN).attrs["engine"] == "em"


class Sends:
    """A client whose pieces come and go as bytes."""

    __module__ = "distributed"
    status = "running"

    def scheduler_info(self):
        return {"address": "nowhere"}

    def submit(self, function, *given, pure):
        given = [own.result() if isinstance(own, SimpleNamespace) else pickle.loads(pickle.dumps(own)) for own in given]
        found = pickle.loads(pickle.dumps(function(*given)))
        return SimpleNamespace(result=lambda: found)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_where_blocks_and_h_lie_who_works_on_them_and_threads_make_no_difference(engine, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    monkeypatch.setattr("nmf_zoo.runtime.cluster.has_room", lambda: True)
    np.save(tmp_path / "x.npy", X)
    mapped = nz.open_blocks(tmp_path / "x.npy", block=7)
    expected = over(CutArray(X, 7), engine, cores=2)
    assert_same(over(mapped, engine, executor=Sends(), store=tmp_path / "r.zarr"), expected)
    assert_same(nz.load(tmp_path / "r.zarr"), expected)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_a_run_that_ended_early_goes_on_to_the_same_bits(engine, tmp_path, monkeypatch):
    """Here from the middle of its momentum; W of the first is free, so that a floor is made again."""
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    model = {"em": flat, "vb": proper}[engine](None, shape=(F, 1))
    run = {"checkpoint": tmp_path / "run", "model": model, "max_iter": 14}
    begun = over(CutArray(X, 17), engine, on_step=lambda step: step.number == 12, **run)
    assert len(objective(begun)) == 12
    steps = []
    found = over(CutArray(X, 17), engine, on_step=lambda step: steps.append(step.number), **run)
    assert steps == [13, 14]
    assert_same(found, over(CutArray(X, 17), engine, model, max_iter=14))
    other = X.copy()
    other[3, 40] *= 2.0
    with pytest.raises(InputError, match=r"data\.blocks has other cells"):
        over(CutArray(other, 17), engine, **run)


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_a_search_is_made_on_some_blocks(engine):
    found = over(CutArray(X, 17), engine, search=nz.Search(fits=3))
    assert found.attrs["searched"] == "the best of 3 fits to 60 samples in 4 blocks"
    start = {"W": weights(in_memory(X, engine))}
    again = over(CutArray(X, 17), engine, initvals=start, max_iter=3)
    worse = over(CutArray(X, 17), engine, max_iter=3)
    sign = 1.0 if engine == "vb" else -1.0
    assert sign * objective(again)[-1] > sign * objective(worse)[-1]


def test_held_out_cells_are_scored_as_in_memory():
    """The fit and the cells are the same, draws of q are others."""

    def declare(rank):
        return nz.is_nmf(None, rank, alpha_w=2.0, shape=(F, 1))

    options = nz.Holdout(share=0.2, engine="vb", max_iter=40, tol=0, draws=400)
    run = {"method": options, "restarts": 1, "random_seed": 1, "quiet": True, "cores": 1}
    found = float(nz.select_rank(declare, [2], data=CutArray(X, N), **run)["estimate"][0, 0])
    key = child(seed_key(1), 0)
    split = TrainingBlocks(nz.read(declare(2)), CutArray(X, N), 0.2, child(key, holdout.SPLIT)).split(0)

    def score(job):
        return holdout.cell_scores(split, holdout.fitted_draws(split.training, options, None, replace(job, key=key)))

    (expected,) = EvidenceRun(chains=1, key=key).each(score, total=1)
    assert found == pytest.approx(expected.sum(), abs=1.5)
    point = nz.select_rank(declare, [2], data=CutArray(X, N), **run | {"method": replace(options, engine="em")})
    assert found > float(point["estimate"][0, 0]) + 5.0
    with pytest.raises(InputError, match="counts, which are split"):
        nz.select_rank(declare, [2], data=CutArray(sp.csc_array(np.ceil(X)), 17), **run)


def test_predictions_and_coverage_come_from_q():
    found = over(CutArray(X, 7), "vb")
    told = json.loads(found.attrs["coverage"])
    whole = json.loads(nz.fit(model=proper(X), engine="vb", search=None, **RUN).attrs["coverage"])
    assert told["cells"] == whole["cells"] == F * N
    assert told["inside"] == pytest.approx(whole["inside"], abs=0.03)
    assert told["expected"] == pytest.approx(whole["expected"], abs=0.03)
    drawn = nz.predict(found, proper(None, shape=(F, 1)), random_seed=1)
    parts = nz.predict_blocks(found, proper(None, shape=(F, 1)), width=11, random_seed=1)
    np.testing.assert_array_equal(np.concatenate(list(parts), axis=-1), drawn)


def check_draws(draw):
    """Means of draws of cells and of their inverses are those by which the bound goes."""
    order, rho, tau = np.array([[-1.5, 0.7, 1.4]]), np.array([[0.8, 3.0, 0.2]]), np.array([[2.0, 0.3, 0.01]])
    mean, harmonic = np.empty((1, 3)), np.empty((1, 3))
    fill_gig_moments(mean, harmonic, rho, tau, Orders(order, np.full((1, 3), -1), np.empty((0, 0, 0))), 0, 1)
    generator = np.random.default_rng(3)
    draws = np.concatenate([draw(order, rho, tau, generator) for _ in range(2000)])
    check_means(list("abcdef"), np.hstack([draws, 1.0 / draws]), np.hstack([mean[0], 1.0 / harmonic[0]]))


def test_draws_from_q_have_its_means():
    check_draws(vb_blocks.draw_gig)
    for wrong in (
        lambda order, rho, tau, generator: vb_blocks.draw_gig(order, tau, rho, generator),
        lambda order, rho, tau, generator: vb_blocks.draw_gig(order + 0.5, rho, tau, generator),
    ):
        with pytest.raises(AssertionError, match="gate 2"):
            check_draws(wrong)


def gamma_W(X, **more):
    with pm.Model() as model:
        W = pm.Gamma("W", 1.4, 0.7, shape=(F, K))
        H = pm.InverseGamma("H", 1.2, 0.5, shape=(K, 1))
        pm.Exponential("X", scale=W @ H, shape=(F, 1))
    return model


REFUSED = {
    "sage": (lambda: over(X, nz.EM(update="sage")), "update='sage' takes more than one pass"),
    "start": (lambda: over(X, nz.EM(start="nndsvd")), "start='nndsvd' takes more than one pass"),
    "start of VB": (lambda: over(X, nz.VB(start="kmeans++")), "start='kmeans++' takes more than one pass"),
    "order": (lambda: over(X, nz.VB(order="paisley")), "is for counts: leave it out"),
    "precision": (lambda: over(X, nz.EM(precision="float32")), "leave it out"),
    "few samples": (
        lambda: over(CutArray(X[:, :3], 2), "vb", flat(None, shape=(F, 1))),
        "more than 3 observed cells, the rank; the least number is 3",
    ),
    "zeros": (lambda: over(CutArray(ZEROS, 7), "vb", flat(None, shape=(F, 1))), "hold too many zeros (up to 9)"),
    "zeros, gamma": (
        lambda: over(CutArray(ZEROS, 7), "vb", gamma_W(None)),
        "over data=: W has a gamma prior, and X holds too many zeros",
    ),
    "unknown": (lambda: over(X, "vb", proper(None, beta_h=nz.free("all"), shape=(F, 1))), "is unknown"),
    "chain": (
        lambda: over(X, "em", nz.is_nmf(None, K, chain="gamma", shape=(F, 1))),
        "the columns of H are a Markov chain",
    ),
    "engine": (
        lambda: nz.fit(model=nz.negative_binomial_nmf(None, K, shape=(F, 1)), data=X, engine="em", **RUN),
        "holds all of X in memory: data= is for nz.fit(engine='em') of poisson or exponential data or "
        "nz.fit(engine='vb') of poisson or exponential data",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, words = REFUSED[name]
    with pytest.raises(UnsupportedModel) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_silence_is_refused_when_there_is_nothing_else():
    with pytest.raises(InputError, match="no positive cell"):
        over(CutArray(0 * X, 7), "em")
