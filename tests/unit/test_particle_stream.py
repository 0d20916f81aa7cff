"""Online EM by particles through nz.stream: in any cut, saved and resumed, with missing cells, interrupted, refused."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel
from nmf_zoo.inference.hmm import particle_online
from tests.naive.hmm import basis_chain as naive_chains

F, K, T = 4, 2, 60
RNG = np.random.default_rng(5)
W0 = RNG.gamma(1.0, 3.0, (F, K))
X = RNG.poisson(W0 @ RNG.random((K, T)) + 0.2).astype(float)
GAPS = np.where(RNG.random(X.shape) < 0.9, X, np.nan)
GAPS[:, :7], GAPS[:, 20] = X[:, :7], np.nan
EXPOSURE = RNG.uniform(0.5, 2.0, (F, 1))
UNIT = nz.UnitChain(nz.free(tie="obs"))
LOG_NORMAL = nz.LogNormalAR(0.0, nz.free(), nz.free(), "stationary")
CHAINS = {"basis": nz.BasisChain(nz.free(), 0.7, nz.free()), "unit": UNIT, "log-normal": LOG_NORMAL}


def declare(chain=UNIT, **arguments):
    given = {"exposure": EXPOSURE, "background": 0.2, "shape": (F, 1)} | arguments
    return nz.hmm_nmf(None, K, chain=chain, **given)


def begin(chain=UNIT, start=W0, seed=1, model=None, **options):
    options = {"particles": 30, "burn_in": 5} | options
    initvals = {} if start is None else {"W": start}
    engine = nz.ParticleOnlineEM(**options)
    return nz.stream(model or declare(chain), engine=engine, random_seed=seed, initvals=initvals)


def follow(x, cuts=(), **arguments):
    stream = begin(**arguments)
    for part in np.split(x, cuts, axis=1):
        stream.update(part)
    return stream


def numbers_of(stream):
    """All that was estimated."""
    posterior = stream.result().posterior
    return np.concatenate(
        [np.ravel(posterior[name]) for name in sorted(posterior)] + [np.ravel(stream.filtered["H_sd"])]
    )


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("smoother", ["path", "backward", "forward"])
@pytest.mark.parametrize("x", [X, GAPS], ids=["complete", "missing"])
def test_blocks_batches_and_a_stop_change_nothing(chain, smoother, x, tmp_path):
    arguments = {"chain": CHAINS[chain], "smoother": smoother}
    whole, cut = follow(x, **arguments), follow(x[:, :31], cuts=(1, 8, 9), batch=3, **arguments)
    cut.save(tmp_path / "stream")
    resumed = nz.resume_stream(tmp_path / "stream")
    resumed.update(x[:, 31:])
    assert resumed.columns_seen == T
    np.testing.assert_array_equal(numbers_of(resumed), numbers_of(whole))
    assert np.all(np.isfinite(numbers_of(whole)))


def test_seeds_and_memory():
    stream = follow(X)
    assert not np.array_equal(stream.W, follow(X, seed=2).W)
    np.testing.assert_array_equal(stream.W, follow(X).W)
    shapes = [array.shape for array in arrays_of(stream._state)]
    stream.update(X)
    assert [array.shape for array in arrays_of(stream._state)] == shapes


def arrays_of(tree):
    if isinstance(tree, np.ndarray):
        return [tree]
    return [array for part in tree for array in arrays_of(part)] if isinstance(tree, tuple) else []


def test_the_result_has_the_models_names():
    result = follow(X, chain=CHAINS["basis"]).result()
    assert set(result.posterior) == {"W", "p", "initial"}
    assert result.posterior["initial"].item() == 0.5
    assert result.posterior["W"].dims == ("chain", "draw", "feature", "component")
    assert follow(X).result().posterior["alpha"].shape == (1, 1, K)


def test_a_random_start_is_at_the_scale_of_the_data():
    stream = begin(start=None, chain=LOG_NORMAL, burn_in=100)
    stream.update(X)
    mean = (EXPOSURE * stream.W.to_numpy()).sum() * np.exp(0.0) + 0.2 * F
    assert 0.3 < mean / X.sum(axis=0).mean() < 3.0


def test_priors_hold_the_parameters_back():
    flat, held = (follow(X, model=declare(**prior)) for prior in ({}, {"alpha_w": 50.0, "mean_w": 1.0}))
    assert abs(float(held.W.mean()) - 1.0) < abs(float(flat.W.mean()) - 1.0)


def test_a_known_factor_and_a_known_chain():
    model = pm.do(declare(nz.UnitChain(0.9)), {"W": W0})
    stream = follow(GAPS, model=model, start=None)
    assert len(stream._state.carried.table) == 0
    assert 0 < float(stream.filtered["H_mean"][0, 0]) < 1
    np.testing.assert_array_equal(stream.W, W0)
    np.testing.assert_allclose(stream.norms, W0.sum(axis=0))
    assert stream.norms.dims == ("component",)


@pytest.mark.parametrize("W", [None, W0], ids=["free", "constant"])
def test_a_model_without_dims(W):
    """Numbers of columns and components are where the model's own dims are."""
    with pm.Model() as model:
        H = nz.UnitChain("H", pm.Uniform("alpha", 0, 1), shape=(K, 1))
        pm.Poisson("X", (pm.HalfFlat("W", shape=(F, K)) if W is None else W) @ H + 0.2, shape=(F, 1))
    stream = begin(model=model, start=None)
    stream.update(X[:, :9])
    assert (stream.W.dims, stream.norms.dims) == (("W_dim_0", "W_dim_1"), ("W_dim_1",))
    assert stream.filtered["H_dim_1"].item() == 8
    assert stream.filtered["H_mean"].dims == ("H_dim_0", "H_dim_1")
    assert set(stream.filtered.dims) == {"H_dim_0", "H_dim_1"}


def test_what_is_done_to_a_result_stays_out_of_the_stream():
    stream, other = follow(X[:, :30]), follow(X[:, :30])
    for array in (stream.W, stream.result().posterior["W"], stream.result().posterior["alpha"]):
        array.values[:] = 0.7
    for one in (stream, other):
        one.update(X[:, 30:])
    np.testing.assert_array_equal(numbers_of(stream), numbers_of(other))


@pytest.mark.parametrize(
    ("chain", "arguments", "known", "expected"),
    [
        (nz.LogNormalAR(0.0, 0.9, 0.3), {}, None, 1),
        (nz.LogNormalAR(nz.free(), 0.9, 0.3), {}, None, 0),
        (nz.LogNormalAR(0.0, 0.9, 0.3), {"alpha_w": 2.0, "mean_w": 1.0}, None, 0),
        (nz.LogNormalAR(0.0, 0.9, 0.3), {}, W0, 0),
        (UNIT, {}, None, 0),
    ],
    ids=["flat W", "free mean", "gamma W", "known W", "unit"],
)
def test_the_mean_is_put_back_only_where_w_is_free_to_follow(chain, arguments, known, expected):
    model = declare(chain, **arguments)
    stream = begin(model=model if known is None else pm.do(model, {"W": known}), start=None)
    assert stream._problem.updates.recentres == expected


def test_options_in_numpys_numbers():
    stream = follow(X, particles=np.int64(30), exponent=np.float32(0.75))
    np.testing.assert_array_equal(numbers_of(stream), numbers_of(follow(X, exponent=0.75)))
    assert '"particles": 30' in stream.result().attrs["options"]


def test_particles_that_all_lost_their_weight():
    model = pm.do(declare(nz.UnitChain(0.9), background=None), {"W": np.zeros((F, K))})
    stream = begin(model=model, start=None)
    stream.update(np.zeros((F, 3)))
    message = "column 4: give the model a background, .* more than particles=30"
    with pytest.raises(RunFailed, match=message) as error:
        stream.update(np.array([[0.0, 1.0, 0.0]] * F))
    assert "\n" not in str(error.value)
    assert stream.columns_seen == 3
    stream.update(np.zeros((F, 1)))
    with pytest.raises(RunFailed, match=r"activations: .* column 7"):
        stream.activations(np.array([[0.0, 0.0, 1.0]] * F), first=5)


def test_ctrl_c_leaves_the_batches_that_were_done(monkeypatch):
    stream, learn, calls = begin(batch=10), particle_online.learn, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return learn(*arguments)

    monkeypatch.setattr(particle_online, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.update(X)
    assert stream.columns_seen == 20
    stream.update(X[:, 20:])
    np.testing.assert_array_equal(numbers_of(stream), numbers_of(follow(X)))


def test_activations_are_those_of_a_series():
    """Of binary chains, where sums over all paths are at hand; by 400 draws, 5 standard errors."""
    model = pm.do(declare(nz.BasisChain(0.8, 0.7, 0.4)), {"W": W0})
    stream = begin(model=model, start=None, particles=2000)
    stream.update(X[:, :1])
    for first, initial in ((0, 0.4), (9, 0.2 / 0.5)):
        found = stream.activations(GAPS[:, 16:22], first=first)
        law = np.full(K, 0.8), np.full(K, 0.7), np.full(K, initial)
        weight = EXPOSURE * ~np.isnan(GAPS[:, 16:22])
        x, background = np.nan_to_num(GAPS[:, 16:22]), np.full((F, 6), 0.2)
        expected = naive_chains.smooth(x, weight, background, W0, *law)[1].T
        error = np.sqrt(expected * (1 - expected) / 400) + 0.01
        assert np.all(np.abs(found["H_mean"] - expected) < 5 * error)
        assert found["H_sd"].dims == ("component", "obs")
    again = stream.activations(GAPS[:, 16:22], first=9)
    np.testing.assert_array_equal(again["H_mean"], found["H_mean"])


def test_the_last_column():
    """With one particle's worth of doubt: the filter of a long known chain agrees with exact sums."""
    model = pm.do(declare(nz.BasisChain(0.8, 0.7, 0.4)), {"W": W0})
    ours, exact = begin(model=model, start=None, particles=20_000), nz.stream(model, engine=nz.ChainOnlineEM())
    for stream in (ours, exact):
        stream.update(GAPS[:, :22])
    np.testing.assert_allclose(ours.filtered["H_mean"], exact.filtered["H_mean"], atol=0.03)
    np.testing.assert_allclose(ours.filtered["H_sd"], exact.filtered["H_sd"], atol=0.03)
    assert ours.filtered["obs"].item() == 21
    with pytest.raises(InputError, match="no column yet"):
        _ = begin().filtered


def test_the_name_takes_what_suits():
    assert isinstance(nz.stream(declare())._options, nz.ParticleOnlineEM)
    assert isinstance(nz.stream(declare(CHAINS["basis"]))._options, nz.ChainOnlineEM)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nz.gap(None, rank=2, shape=(F, 1)), "no chain in time"),
        (lambda: declare(shape=(F, 2), exposure=1.0 + np.arange(2 * F).reshape(F, 2)), "differs between samples"),
        (lambda: with_prior(pm.Gamma, alpha=2.0, beta=3.0), "alpha has a gamma prior"),
    ],
)
def test_what_it_cannot_run(model, message):
    with pytest.raises(UnsupportedModel, match=message):
        nz.stream(model(), engine=nz.ParticleOnlineEM())
    with pytest.raises(UnsupportedModel, match=r"would take .* GB"):
        nz.stream(nz.hmm_nmf(None, 50, chain="unit", shape=(5000, 1)), engine=nz.ParticleOnlineEM(particles=10**5))


def with_prior(distribution, **parameters):
    with pm.Model() as model:
        alpha = distribution("alpha", **parameters)
        H = nz.UnitChain("H", alpha, shape=(K, 1))
        pm.Poisson("X", pm.HalfFlat("W", shape=(F, K)) @ H, shape=(F, 1))
    return model


@pytest.mark.parametrize(
    "option", [{"exponent": 0.5}, {"burn_in": 0}, {"batch": 0}, {"particles": 1}, {"smoother": "both"}, {"ess": 2.0}]
)
def test_options(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        nz.ParticleOnlineEM(**option)
