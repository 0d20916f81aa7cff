"""Streams of power spectrograms: what they take and refuse, eq. 9, and that nothing but the frames decides the bits."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
from scipy.optimize import minimize

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.powers import online_em
from nmf_zoo.kernels.powers import frame_gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.naive.powers.frame_gibbs import stream_weights
from tests.runs import assert_same_stream, feed

F, K, N = 7, 2, 40
HERTZ = np.arange(F) * 62.5
RNG = np.random.default_rng(5)
TRUE = RNG.gamma(0.7, size=(F, K)) + 0.01
POWER = RNG.exponential(size=(F, N)) * (TRUE @ (1 / RNG.gamma(1.0, size=(K, N))))
HOLES = np.where(np.random.default_rng(2).random(POWER.shape) < 0.2, np.nan, POWER)
OPTIONS = {"sweeps": 12, "keep": 4, "leaps": 0, "expand": False, "first_frames": 0}


def declared(**arguments):
    return nz.is_nmf(None, K, shape=(F, 1), coords={"feature": HERTZ, "component": ["hum", "drum"]}, **arguments)


def begun(seed=1, model=None, cores=1, initvals=None, **options):
    engine = nz.SimulatedOnlineEM(**{**OPTIONS, **options})
    model = declared() if model is None else model
    return nz.stream(model, engine=engine, random_seed=seed, cores=cores, initvals=initvals)


def fed(blocks, **options):
    return feed(begun(**options), blocks)


# -- what it takes -------------------------------------------------------------------------------------------------

FORMS = {
    "list": lambda x: x.tolist(),
    "fortran": np.asfortranarray,
    "frame": lambda x: pd.DataFrame(x, index=HERTZ),
    "turned": lambda x: xr.DataArray(x.T, dims=("obs", "feature"), coords={"feature": HERTZ}),
    "csc": sp.csc_array,
    "masked": lambda x: np.ma.masked_array(x, np.zeros_like(x, dtype=bool)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_frames_is_the_same(form):
    assert_same_stream(fed([FORMS[form](POWER)]), fed([POWER]))


def test_frames_one_by_one_are_a_block():
    assert_same_stream(fed(POWER.T), fed([POWER]))


def test_missing_cells_in_every_form():
    seen = ~np.isnan(HOLES)
    listed = sp.csc_array(np.where(seen, POWER, 0.0))
    whole = fed([HOLES])
    masked, stored = begun(), begun()
    masked.update(POWER, mask=seen)
    stored.update(listed, observed="stored")
    for stream in (masked, stored, fed([np.ma.masked_array(POWER, ~seen)])):
        assert_same_stream(stream, whole)


def test_a_declaration_with_data_begins_with_them():
    for data in (POWER, HOLES):
        stream = begun(model=nz.is_nmf(data[:, :25], K))
        assert stream.columns_seen == 25
        stream.update(data[:, 25:])
        np.testing.assert_array_equal(stream.W.values, fed([data]).W.values)


def test_the_name_chooses_by_the_likelihood():
    stream = nz.stream(declared(), engine="online_em", random_seed=1)
    stream.update(POWER)
    assert repr(stream) == "<Stream of online_em: 7 features, 2 components, 40 columns seen>"


def test_exposure_divides_and_background_is_a_component_that_is_known():
    exposure, noise = np.linspace(0.5, 2.0, F)[:, None], np.full((F, 1), 0.3)
    plain, scaled = (
        fed([POWER], model=declared(background=noise)),
        fed([POWER * exposure], model=declared(background=noise * exposure, exposure=exposure)),
    )
    np.testing.assert_allclose(scaled.W.values, plain.W.values, rtol=1e-10)
    assert np.any(plain.W.values != fed([POWER]).W.values)


# -- the algorithm ---------------------------------------------------------------------------------------------------


START = np.full((F, K), 1.0) + np.arange(K) * np.linspace(0, 1, F)[:, None]
CASES = {
    "maximum likelihood": ({}, {}, POWER, 0.0, 0.0),
    "smoothing": ({"smoothing": (1.0, 0.2)}, {}, POWER, 1.0, 0.2),
    "prior": ({}, {"alpha_w": 2.0, "beta_w": 0.3}, POWER, 3.0, 0.3),
    "missing": ({}, {}, HOLES, 0.0, 0.0),
    "missing, prior": ({}, {"alpha_w": 2.0, "beta_w": 0.3}, HOLES, 3.0, 0.3),
    "offset": ({"offset": 3.0, "exponent": 0.9}, {}, POWER, 0.0, 0.0),
    "plain": ({"statistic": "plain"}, {}, POWER, 0.0, 0.0),
    "batches": ({"batch": 6}, {"alpha_w": 0.5, "beta_w": 2.0}, HOLES, 1.5, 2.0),
    "expanded": ({"expand": True}, {"alpha_h": 2.0, "beta_h": 5.0}, HOLES, 0.0, 0.0),
    "expanded, batches": ({"expand": True, "batch": 6, "smoothing": (1.0, 0.2)}, {}, HOLES, 1.0, 0.2),
    "expanded, offset": ({"expand": True, "offset": 3.0}, {}, POWER, 0.0, 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_w_follows_eq_9(case):
    options, prior, data, a, b = CASES[case]
    model = declared(**prior)
    batch = options.get("batch", 1)
    key = child(seed_key(1), 1)
    of_h = [np.full(K, prior.get(name, 1.0)) for name in ("alpha_h", "beta_h")]
    plan = frame_gibbs.FramePlan(*of_h, np.empty(0), 12, 4, options.get("statistic") == "plain")
    workspace, statistics, counts, inverses, path = frame_gibbs.make_workspace(F, K), [], [], [], []
    stream = begun(model=model, initvals={"W": START}, **options)
    for first in range(0, N, batch):
        block = data[:, first : first + batch].T
        Wt = np.array((START if stream._state is None else stream.W.values).T, order="C")
        s, m, v, seen = np.zeros((K, F)), np.zeros(F), np.zeros(K), np.ascontiguousarray(~np.isnan(block))
        part = frame_gibbs.Frames(np.ascontiguousarray(np.where(seen, block, 0.0)), seen, first)
        frame_gibbs.expect_frames(frame_gibbs.FrameStatistics(s, m, v), part, Wt, plan, workspace, key)
        stream.update(block.T)
        for found, new in ((statistics, s.T), (counts, m), (inverses, v), (path, stream.W.values)):
            found.append(new)
    sizes = (np.arange(1, len(path) + 1) + options.get("offset", 0.0)) ** -options.get("exponent", 0.6)
    batches = [min(batch, N - first) for first in range(0, N, batch)]
    of_scale = {"inverses": inverses, "mean": of_h[0] / of_h[1]} if options.get("expand") else {}
    expected = stream_weights(np.array(statistics), np.array(counts), sizes, START, a, b, batches, **of_scale)
    np.testing.assert_allclose(path, expected, rtol=1e-10)


def test_a_prior_per_cell_is_smoothing_per_cell():
    shape, scale = np.linspace(0.5, 3.0, F)[:, None], np.array([[0.1, 2.0]])
    W = fed([POWER], model=declared(alpha_w=shape, beta_w=scale)).W.values
    for f, k in ((0, 0), (6, 1), (3, 1)):
        alone = fed([POWER], model=declared(alpha_w=shape[f, 0], beta_w=scale[0, k])).W.values
        assert np.isclose(W[f, k], alone[f, k], rtol=0.5)
    strong = fed([POWER], model=declared(alpha_w=1e7, beta_w=1e7 * TRUE)).W.values
    np.testing.assert_allclose(strong, TRUE, rtol=1e-3)


def test_smoothing_is_the_prior_with_one_less():
    assert_same_stream(fed([POWER], smoothing=(3.0, 0.3)), fed([POWER], model=declared(alpha_w=2.0, beta_w=0.3)))


def test_where_nothing_was_observed_w_is_the_start():
    unseen = POWER.copy()
    unseen[3] = np.nan
    stream = fed([unseen], initvals={"W": START})
    np.testing.assert_array_equal(stream.W.values[3], START[3])
    stream.update(np.full(F, np.nan))
    assert stream.columns_seen == N + 1
    before = fed([unseen], initvals={"W": START}).W.values
    np.testing.assert_allclose(stream.W.values, before, rtol=1e-12)


def test_silence():
    """One component: its statistic is 0, and W falls by 1 - g_n; to the floor, if nothing came before."""
    one = nz.is_nmf(None, 1, shape=(F, 1))
    stream = fed([POWER], model=one)
    before = stream.W.values
    stream.update(np.zeros(F))
    np.testing.assert_allclose(stream.W.values, (1 - 41**-0.6) * before, rtol=1e-12)
    begun_silent = fed([np.zeros((F, 3))], model=one)
    np.testing.assert_array_equal(begun_silent.W.values, online_em.LEAST)
    begun_silent.update(POWER)  # the scale stays low, which H makes up for; the profile is learnt
    profiles = [np.log(one.W.values[:, 0]) for one in (begun_silent, fed([POWER], model=one))]
    assert np.corrcoef(*profiles)[0, 1] > 0.9
    mean = begun_silent.W.values @ begun_silent.activations(POWER)["H_mean"].values
    assert 0.5 < np.mean(POWER / mean) < 2.0
    both = fed([np.zeros((F, 60)), POWER])
    assert np.all(np.isfinite(both.W.values))
    assert np.all(both.W.values > 0)


@pytest.mark.parametrize("expand", [False, True])
def test_averages_are_those_of_the_statistics(expand):
    plain = begun(initvals={"W": START}, expand=expand)
    kept = []
    for n in range(N):
        plain.update(POWER[:, n])
        kept.append(plain._state.statistics.T)
    averaged = fed([POWER], initvals={"W": START}, average_after=10, expand=expand)
    np.testing.assert_allclose(averaged.W.values, np.mean(kept[10:], axis=0), rtol=1e-10)
    np.testing.assert_array_equal(averaged._state.Wt, plain._state.Wt)


def test_expansion_settles_the_scale():
    """From any scale of the start to the one that the prior of H gives; without, it has hardly moved."""
    rng = np.random.default_rng(0)
    W, H = rng.gamma(1.0, size=(64, 3)) + 0.01, 1.0 / rng.gamma(1.0, size=(3, 600))
    X, model, found = rng.exponential(size=(64, 600)) * (W @ H), nz.is_nmf(None, 3, shape=(64, 1)), {}
    for expand in (True, False):
        for factor in (0.01, 1.0, 100.0):
            start, options = {"W": factor * W}, {"leaps": 2, "expand": expand, "average_after": 100}
            norms = fed([X], model=model, initvals=start, **options).norms.values
            found[expand, factor] = norms / W.sum(axis=0) * (1.0 / H).mean(axis=1)
    print(found)
    for factor in (0.01, 1.0, 100.0):
        np.testing.assert_allclose(found[True, factor], 1.0, atol=0.25)
    np.testing.assert_allclose(found[True, 100.0], found[True, 1.0], rtol=0.1)
    np.testing.assert_allclose(found[True, 0.01], found[True, 1.0], rtol=0.1)
    assert np.all(found[False, 0.01] < 0.1)
    assert np.all(found[False, 100.0] > 3.0)


def test_expansion_takes_empty_frames():
    stream = fed([POWER], expand=True, initvals={"W": START})
    before = stream.W.values
    stream.update(np.full(F, np.nan))
    np.testing.assert_allclose(stream._state.inverse, 1.0, rtol=1e-12)  # alpha / beta
    np.testing.assert_allclose(stream.W.values, before, rtol=1e-12)


# -- the start -------------------------------------------------------------------------------------------------------


def test_the_first_frames_wait_for_a_start():
    """Steps from the fitted W are those of a stream that is given it."""
    waiting = begun(first_frames=15)
    for n in range(14):
        waiting.update(HOLES[:, n])
        assert waiting.columns_seen == n + 1
        assert waiting._state.steps == 0
    fitted = waiting._state
    waiting.update(HOLES[:, 14])
    assert waiting._state.steps == 15
    given = fed([HOLES[:, :15]], initvals={"W": waiting._state.start[0].T}, first_frames=15)
    assert_same_stream(waiting, given)
    assert len(fitted.start) == 4
    waiting.update(HOLES[:, 15:])
    given.update(HOLES[:, 15:])
    assert_same_stream(waiting, given)


def test_a_waiting_stream_has_a_fitted_w():
    stream = fed([POWER[:, :20]], first_frames=30)
    power = POWER[:, :20]
    found = stream.activations(power)
    mean = stream.W.values @ found["H_mean"].values
    np.testing.assert_allclose(stream.norms, stream.W.sum("feature"))
    assert 0.6 < np.mean(power / mean) < 1.5
    assert stream.result().attrs["status"] == "stream"


def test_the_best_start_is_taken():
    stream = fed([HOLES[:, :20]], first_frames=30)
    problem, state = stream._problem, stream._state
    power, seen = state.waiting, state.waiting_seen
    found = [online_em.fit(problem, Wt, power, seen) for Wt in state.start]
    costs = [online_em.cost(problem, *both, power, seen) for both in found]
    assert max(costs) > min(costs)
    np.testing.assert_array_equal(stream.W.values, found[int(np.argmin(costs))][0].T)


PRIORS = {
    "free": {},
    "prior": {"alpha_w": 2.0, "beta_w": 0.3},
    "background": {"background": np.full((F, 1), 0.3), "exposure": np.linspace(0.5, 2.0, F)[:, None]},
}


@pytest.mark.parametrize("case", PRIORS)
def test_the_start_maximises_the_joint_density(case, monkeypatch):
    """The gradient vanishes at its W, under the activations that are best for it; updates never go down."""
    problem = begun(model=declared(alpha_h=2.0, beta_h=3.0, **PRIORS[case]))._problem
    a, b = (3.0, 0.3) if case == "prior" else (0.0, 0.0)
    power, seen = np.where(np.isnan(HOLES), 0.0, HOLES).T, ~np.isnan(HOLES).T
    background = problem.chain.background if case == "background" else 0.0

    def height(x):
        W, H = np.exp(x[: F * K]).reshape(K, F), np.exp(x[F * K :]).reshape(N, K)
        mean = H @ W + background
        of_priors = (2.0 * np.log(H) + 3.0 / H).sum() + (a * np.log(W) + b / W).sum()
        return (np.log(mean) + power / mean)[seen].sum() + of_priors

    heights, rng = [], np.random.default_rng(0)
    begin = rng.gamma(1.0, size=(K, F)) + 0.1
    for updates in (1, 2, 5, 10, 100, 1000, 4000):
        monkeypatch.setattr(online_em, "UPDATES", updates)
        W, H = online_em.fit(problem, begin, power, seen)
        heights.append(height(np.log(np.concatenate([W.ravel(), H.ravel()]))))
        np.testing.assert_allclose(online_em.cost(problem, W, H, power, seen), heights[-1], rtol=1e-10)
    assert np.all(np.diff(heights) <= 1e-9)
    best = minimize(height, np.log(np.concatenate([W.ravel(), H.ravel()])), method="L-BFGS-B")
    assert heights[-1] - best.fun < 0.02, (heights, best.fun)


def test_silence_at_the_start():
    for quiet in (np.zeros((F, 20)), np.full((F, 20), np.nan)):
        stream = fed([quiet, POWER], first_frames=20)
        assert np.all(np.isfinite(stream.W.values))
        assert np.all(stream.W.values > 0)


def test_the_random_start_has_the_size_of_the_first_frame():
    sizes = [fed([POWER[:, :1] * scale], first_frames=0).W.values.mean() for scale in (1.0, 1e6)]
    np.testing.assert_allclose(sizes[1] / sizes[0], 1e6, rtol=1e-9)
    assert np.any(fed([POWER], seed=2).W.values != fed([POWER]).W.values)


# -- what it gives -------------------------------------------------------------------------------------------------


def test_result():
    stream = fed([POWER])
    result = stream.result()
    W = _compat.group(result, "posterior")["W"]
    assert W.dims == ("chain", "draw", "feature", "component")
    np.testing.assert_array_equal(W["feature"], HERTZ)
    np.testing.assert_array_equal(W[0, 0], stream.W)
    fit = _compat.group(result, "fit")
    np.testing.assert_allclose(fit["column_norm"][0, -1], stream.norms, rtol=1e-12)
    assert int(fit["columns"][0]) == N
    assert result.attrs["engine"] == "online_em"


def test_activations():
    stream = fed([POWER], sweeps=40, keep=20)
    before = stream.W.values
    found = stream.activations(pd.DataFrame(POWER, index=HERTZ, columns=np.arange(N) * 0.016), shares=True)
    assert found["H_mean"].dims == found["H_sd"].dims == ("component", "obs")
    assert found["share"].dims == ("component", "feature", "obs")
    assert list(found["component"].values) == ["hum", "drum"]
    np.testing.assert_array_equal(found["feature"], HERTZ)
    np.testing.assert_array_equal(found["obs"], np.arange(N) * 0.016)
    np.testing.assert_allclose(found["share"].sum("component"), 1.0, rtol=1e-12)
    assert np.all(found["H_sd"] > 0)
    assert np.all(found["H_mean"] > 0)
    np.testing.assert_array_equal(stream.W.values, before)
    louder = stream.activations(POWER * 1e4)
    assert np.all(louder["H_mean"].sum("component") > found["H_mean"].sum("component"))


def test_activations_do_not_depend_on_blocks_nor_threads(monkeypatch):
    stream = fed([HOLES])
    whole = stream.activations(HOLES, first=100, shares=True)
    parts = [stream.activations(HOLES[:, n : n + 9], first=100 + n, shares=True) for n in range(0, N, 9)]
    xr.testing.assert_identical(xr.concat(parts, "obs").transpose("component", "feature", "obs"), whole)
    monkeypatch.setattr(online_em, "CHUNK_WORK", 1)
    xr.testing.assert_identical(fed([HOLES], cores=4).activations(HOLES, first=100, shares=True), whole)
    assert np.all(stream.activations(HOLES)["H_mean"] != whole["H_mean"])


def test_activations_of_missing_frames_are_the_prior():
    model = nz.is_nmf(None, K, shape=(F, 1), alpha_h=3.0, beta_h=5.0)
    stream = fed([POWER], model=model)
    found = stream.activations(np.full(F, np.nan), shares=True)
    np.testing.assert_allclose(found["H_mean"], 5.0 / 2.0)
    np.testing.assert_allclose(found["H_sd"], 5.0 / 2.0, rtol=1e-12)
    np.testing.assert_array_equal(found["share"], 0.0)
    heavy = fed([POWER]).activations(np.full(F, np.nan))
    assert np.all(np.isinf(heavy["H_mean"]) & np.isinf(heavy["H_sd"]))


def test_activations_of_counts():
    counts = np.random.default_rng(1).poisson(3.0, size=(F, N))
    stream = nz.stream(nz.gap(None, K, shape=(F, 1)), random_seed=1)
    stream.update(counts)
    whole = stream.activations(counts)
    assert set(whole) == {"H_mean"}
    parts = [stream.activations(counts[:, n : n + 11], first=n) for n in range(0, N, 11)]
    np.testing.assert_array_equal(np.concatenate([part["H_mean"] for part in parts], 1), whole["H_mean"])
    total = (stream.W.values @ whole["H_mean"].values).sum()
    assert abs(total / counts.sum() - 1) < 0.1
    with pytest.raises(
        nz.InputError, match=r"^shares: got True; expected False; the columns of this stream are poisson"
    ):
        stream.activations(counts, shares=True)


# -- the same bits -------------------------------------------------------------------------------------------------

STREAMS = {
    "one by one": ({}, POWER),
    "holes": ({}, HOLES),
    "averaged": ({"average_after": 10, "first_frames": 12}, HOLES),
    "batches": ({"batch": 4, "average_after": 10}, HOLES),
    "moves": ({"leaps": 2, "batch": 4}, HOLES),
    "a start": ({"first_frames": 24, "batch": 4, "expand": True}, HOLES),
    "expanded": ({"leaps": 2, "batch": 4, "expand": True, "average_after": 10}, HOLES),
    "plain, smoothing": ({"statistic": "plain", "smoothing": (1.0, 0.1)}, POWER),
}


@pytest.mark.parametrize("case", STREAMS)
def test_blocks_do_not_matter(case):
    options, data = STREAMS[case]
    whole = fed([data], **options)
    for size in (4, 8, 20):
        assert_same_stream(fed([data[:, n : n + size] for n in range(0, N, size)], **options), whole)


def test_threads_do_not_matter(monkeypatch):
    monkeypatch.setattr(online_em, "CHUNK_WORK", 3 * F * K * OPTIONS["sweeps"])
    whole = fed([HOLES], batch=20)
    for cores in (2, 4):
        assert_same_stream(fed([HOLES], cores=cores, batch=20), whole)


@pytest.mark.parametrize("case", STREAMS)
def test_going_on_from_a_file_is_going_on(case, tmp_path):
    options, data = STREAMS[case]
    whole, path, size = fed([data], **options), tmp_path / "run.stream", options.get("batch", 1)
    stream, seen = begun(**options), 0
    while seen < N:
        last = min(N, seen + size * random.randrange(1, 9))
        stream.update(data[:, seen:last])
        seen = last
        stream.save(path)
        stream = nz.resume_stream(path, cores=1)
        assert stream.columns_seen == seen
    assert_same_stream(stream, whole)
    found, expected = (_compat.group(one.result(), "fit") for one in (stream, whole))
    xr.testing.assert_equal(found, expected)
    xr.testing.assert_identical(stream.activations(data), whole.activations(data))


@pytest.mark.parametrize("moment", [1, 2, 5, 9])
def test_interruptions_leave_whole_steps(moment, monkeypatch):
    options = {"average_after": 10, "batch": 10}
    monkeypatch.setattr(online_em, "CHUNK_WORK", 4 * F * K * OPTIONS["sweeps"])
    expected, stream, calls, kernel = fed([HOLES], **options), begun(**options), 0, online_em.expect_frames

    def interrupting(*arguments):
        nonlocal calls
        calls += 1
        if calls == moment:
            raise KeyboardInterrupt
        return kernel(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(online_em, "expect_frames", interrupting)
        with pytest.raises(KeyboardInterrupt):
            stream.update(HOLES)
    assert stream.columns_seen == (moment - 1) // 3 * 10
    stream.update(HOLES[:, stream.columns_seen :])
    assert_same_stream(stream, expected)


def test_memory_does_not_grow():
    stream, sizes = fed([POWER] * 20), []
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(20):
                stream.update(POWER)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) - min(sizes) < 100_000, sizes
    assert sum(np.asarray(part).nbytes for part in stream._state) < 4 * F * K * 8 + 2 * F * 8 + 100
    assert len(stream._problem.workspaces) == 1


# -- what it refuses -----------------------------------------------------------------------------------------------

BAD = {
    "negative": (
        np.where(POWER.max() == POWER, -1.0, POWER),
        r"^x: got the negative cell -1\.0 at feature \S+, obs \d+; expected numbers >= 0; mark",
    ),
    "infinite": (np.where(POWER.max() == POWER, np.inf, POWER), r"^x: got the infinite cell inf at feature "),
    "complex": (POWER[:, :2] + 1j, r"^x: got the non-numeric cell .*; expected numbers"),
    "other features": (POWER[:4], r"^x: got 4 features; expected 7, as the model has"),
    "turned": (POWER[:, :5].T, r"^x: got 5 features; expected 7, as the model has; transpose it"),
    "nothing": (np.empty((F, 0)), r"^x: got shape \(7, 0\); expected at least one feature and one sample"),
    "sparse, negative": (sp.csc_array(-POWER), r"^x: got the negative cell "),
    "order": (pd.DataFrame(POWER, index=HERTZ[::-1]), r"^x: got labels of 'feature' that differ"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_frames_change_nothing(case):
    x, message = BAD[case]
    stream = fed([POWER[:, :10]])
    for call in (stream.update, stream.activations):
        with pytest.raises(nz.InputError, match=message) as refusal:
            call(x)
        assert "\n" not in str(refusal.value)
    stream.update(POWER[:, 10:])
    assert_same_stream(stream, fed([POWER]))


def test_activations_need_a_stream_that_has_begun():
    with pytest.raises(nz.InputError, match=r"^stream: got no column yet; expected at least one; call update first"):
        begun().activations(POWER)
    with pytest.raises(nz.InputError, match=r"^first: got -1"):
        fed([POWER]).activations(POWER, first=-1)


UNSUPPORTED = {
    "counts": (lambda: nz.gap(None, K, shape=(F, 1)), {}, "X is poisson, and its updates are for exponential data"),
    "two priors": (
        lambda: declared(alpha_w=2.0),
        {"smoothing": (1.0, 0.1)},
        r"smoothing= is the prior of a free W; here it has one",
    ),
    "unknown": (lambda: declared(beta_h=nz.free()), {}, "hyperparameters are unknown: beta"),
    "untied": (
        lambda: nz.is_nmf(POWER, K, alpha_h=np.linspace(1, 2, N)),
        {},
        "the hyperparameters of H differ between samples",
    ),
    "background": (
        lambda: nz.is_nmf(POWER, K, background=np.linspace(0, 1, N)[None]),
        {},
        "the background differs between samples",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_models_that_can_not_be_streamed(name):
    make, options, message = UNSUPPORTED[name]
    with pytest.raises(nz.UnsupportedModel, match=f"^engine 'online_em' can't stream this model: {message}"):
        begun(model=make(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exponent": 0.5}, "exponent: got 0.5; expected a number in"),
        ({"offset": -1.0}, "offset: got -1.0; expected a finite number >= 0"),
        ({"sweeps": 5, "keep": 6}, "keep: got 6; expected at most sweeps=5"),
        ({"statistic": "best"}, r"statistic: got 'best'; expected one of \['rao_blackwell', 'plain'\]"),
        ({"smoothing": 1.0}, r"smoothing: got 1.0; expected None or two finite numbers >= 0, \(a, b\)"),
        ({"smoothing": (1.0, -1.0)}, "smoothing: got"),
        ({"leaps": -1}, "leaps: got -1; expected an integer >= 0"),
        ({"batch": 0}, "batch: got 0; expected an integer >= 1"),
        ({"first_frames": True}, "first_frames: got True"),
        ({"average_after": -1}, "average_after: got -1"),
        ({"expand": 1}, "expand: got 1; expected True or False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        nz.SimulatedOnlineEM(**options)


@pytest.mark.parametrize("power", [5e-324, 1e-300, 1e-200])
def test_powers_next_to_0_start_as_0_does(power):
    stream = nz.stream(nz.is_nmf(None, 2, shape=(2, 1), alpha_h=0.01), random_seed=1)
    stream.update(np.full((2, 3), power))
    assert np.all(np.isfinite(stream.W))


def test_powers_whose_squares_are_beyond_all_numbers():
    """W near 1e-9 makes H as large as 1e155 in the fit to the first frames."""
    rng = np.random.default_rng(543)
    X = rng.choice([0.0, 1e-300, 1.0, 1e150], (2, 3))
    model = nz.is_nmf(X, 1, alpha_w=rng.choice([1e3, 1e12], ()), beta_w=1e3)
    stream = nz.stream(model, engine=nz.SimulatedOnlineEM(sweeps=10, keep=1, first_frames=5), random_seed=0)
    stream.update(rng.gamma(0.05, 1e12, (2, 2)))
    assert np.all(np.isfinite(_compat.group(stream.result(), "posterior")["W"]))
