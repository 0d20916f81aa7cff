"""Streams with exposures: of features in the model, of columns with the columns."""

from __future__ import annotations

import collections

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.sparse as sp
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import online_em
from nmf_zoo.kernels.counts import column_sweeps
from nmf_zoo.runtime.state_io import write_tree
from nmf_zoo.streaming.stream import OWNER, tree_of

F, K, N = 6, 3, 60
RNG = np.random.default_rng(8)
TRUE = RNG.gamma(1.0, size=(F, K))
PER_FEATURE, PER_COLUMN = RNG.uniform(0.2, 5.0, (F, 1)), RNG.uniform(0.2, 5.0, N)
X = RNG.poisson(TRUE @ RNG.gamma(1.0, size=(K, N)) * PER_COLUMN)
X[0] += X.sum(axis=0) == 0
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
START = TRUE + 0.1
OPTIONS = {
    "auto": {},
    "CH": {"complete": "CH"},
    "averaged": {"average_after": 10},
    "batches": {"batch": 7, "average_after": 10},
}


def begun(exposure=None, W=None, data=None, cores=1, seed=1, beta=1.3, **options):
    model = nz.gap(data, K, shape=None if data is not None else (F, F), alpha_h=0.8, beta_h=beta, exposure=exposure)
    engine, start = nz.OnlineEM(**{"start_columns": 5, **options}), None if W is None else {"W": W}
    return nz.stream(model, engine=engine, initvals=start, random_seed=seed, cores=cores)


def fed(data=X, own=None, size=N, stream=None, **arguments):
    stream = begun(**arguments) if stream is None else stream
    for n in range(0, N, size):
        more = {} if own is None else {"exposure": np.broadcast_to(own, N)[n : n + size]}
        stream.update(data[:, n : n + size], **more)
    return stream


def assert_same(one, other):
    np.testing.assert_array_equal(one.W.values, other.W.values)
    np.testing.assert_array_equal(one.norms.values, other.norms.values)
    assert one.columns_seen == other.columns_seen


# -- what they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [X, HOLES], ids=["complete", "holes"])
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("start", [None, START], ids=["random", "given"])
def test_an_exposure_of_features_multiplies_w(case, data, start):
    """The same draws: W times the exposure is the W of a model without."""
    exposed = fed(data, exposure=PER_FEATURE, W=start, **OPTIONS[case])
    plain = fed(data, W=None if start is None else START * PER_FEATURE, **OPTIONS[case])
    np.testing.assert_allclose(exposed.W.values * PER_FEATURE, plain.W.values, rtol=1e-11)
    fit = _compat.group(exposed.result(), "fit")
    if "average_after" not in OPTIONS[case]:
        np.testing.assert_allclose(fit["column_norm"][0, -1], exposed.norms, rtol=1e-12)
    found, expected = (stream.activations(X[:, :9]) for stream in (exposed, plain))
    xr.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("data", [X, HOLES], ids=["complete", "holes"])
@pytest.mark.parametrize("case", OPTIONS)
def test_one_exposure_of_all_columns_multiplies_h(data, case):
    """E[4 h] is that of a gamma variable of a quarter of the rate: to the bit."""
    options = {**OPTIONS[case], "W": START}
    exposed, plain = fed(data, own=4.0, beta=1.2, **options), fed(data, beta=0.3, **options)
    assert_same(exposed, plain)
    found, expected = exposed.activations(X[:, :9], exposure=4.0), plain.activations(X[:, :9])
    np.testing.assert_array_equal(4.0 * found["H_mean"], expected["H_mean"])


def test_exposures_of_one_are_none():
    assert_same(fed(own=1.0), fed())
    assert not fed(own=1.0)._state.running.unexposed.size


@pytest.mark.parametrize("case", OPTIONS)
def test_exposures_may_come_late(case):
    """What is gathered for them was the same before: as if it had been gathered from the first column on."""
    late = np.where(np.arange(N) >= 21, PER_COLUMN, 1.0)
    whole = fed(own=late, **OPTIONS[case])
    assert_same(fed(own=late, size=7, **OPTIONS[case]), whole)
    begun_with = begun(**OPTIONS[case])
    begun_with.update(X[:, :7], exposure=late[:7])
    begun_with._state = online_em.with_exposures(begun_with._state)
    begun_with.update(X[:, 7:], exposure=late[7:])
    assert_same(begun_with, whole)


def test_with_c_the_mean_is_that_of_the_columns_over_their_exposures():
    """As eq. 49, K = 1: after an expanded step (alpha / beta) w_f T / mean(h) is the mean of x_f."""
    model = nz.gap(None, 1, shape=(F, 1), alpha_h=0.8, beta_h=1.3)
    stream = nz.stream(model, engine=nz.OnlineEM(batch=N, exponent=1.0, start_columns=0), random_seed=1)
    stream.update(X, exposure=PER_COLUMN)
    W, running = stream.W.values[:, 0], stream._state.running
    ratio = running.everywhere / running.unexposed
    np.testing.assert_allclose(W * ratio * 0.8 / 1.3, X.mean(axis=1), rtol=1e-12)
    H = stream.activations(X, exposure=PER_COLUMN)["H_mean"].values[0]
    assert H.mean() == pytest.approx(0.8 / 1.3, rel=0.05)  # the scale is found in one step, whatever the counts


def test_the_first_columns_are_those_of_the_declaration():
    for own in (PER_COLUMN[None], (PER_FEATURE, PER_COLUMN[None])):
        of_features = PER_FEATURE if isinstance(own, tuple) else None
        for data in (X, sp.csr_array(X)):
            whole = begun(data=data, exposure=own, W=START)
            assert_same(whole, fed(own=PER_COLUMN, exposure=of_features, W=START))
            with pytest.raises(nz.InputError, match="exposure: got None"):
                whole.update(X[:, 0])


def test_the_start_knows_exposures():
    """A random W is of the size of the counts over the exposures."""
    sizes = [fed(own=own, batch=N, start_columns=N + 1).norms.values for own in (1.0, 8.0)]
    np.testing.assert_allclose(sizes[0], 8 * sizes[1], rtol=1e-12)


FORMS = {
    "list": lambda g: g.tolist(),
    "row": lambda g: g[None],
    "series": lambda g: pd.Series(g, index=[f"t{n}" for n in range(len(g))]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_exposures(form):
    named = pd.DataFrame(X, columns=[f"t{n}" for n in range(N)])
    stream = begun()
    stream.update(named, exposure=FORMS[form](PER_COLUMN))
    assert_same(stream, fed(own=PER_COLUMN))
    sparse = begun()
    sparse.update(sp.csc_array(X), exposure=FORMS[form](PER_COLUMN))
    assert_same(sparse, stream)


@pytest.mark.parametrize("case", OPTIONS)
def test_blocks_threads_and_files_do_not_matter(case, tmp_path, monkeypatch):
    arguments = {"own": PER_COLUMN, "exposure": PER_FEATURE, **OPTIONS[case]}
    whole = fed(HOLES, **arguments)
    assert_same(fed(HOLES, size=OPTIONS[case].get("batch", 1) * 4, **arguments), whole)
    half, path = OPTIONS[case].get("batch", 1) * 4, tmp_path / "s"
    stream = begun(exposure=PER_FEATURE, **OPTIONS[case])
    stream.update(HOLES[:, :half], exposure=PER_COLUMN[:half])
    stream.save(path)
    stream = nz.resume_stream(path, cores=2)
    with pytest.raises(nz.InputError, match="exposure: got None; expected a number, or one per column, since columns"):
        stream.update(HOLES[:, half:])
    stream.update(HOLES[:, half:], exposure=PER_COLUMN[half:])
    assert_same(stream, whole)


def test_a_second_pass_does_not_depend_on_blocks():
    stream = fed(own=PER_COLUMN)
    whole = stream.activations(X, exposure=PER_COLUMN)["H_mean"]
    parts = [
        stream.activations(X[:, n : n + 20], first=n, exposure=PER_COLUMN[n : n + 20])["H_mean"] for n in (0, 20, 40)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_files_of_the_time_before_exposures(tmp_path, monkeypatch):
    stream = fed(average_after=10)
    tree = tree_of(stream)
    del tree["has_exposures"]
    former = collections.namedtuple("Running", column_sweeps.Running._fields[:-2], module=column_sweeps.__name__)
    state = tree["state"]._replace(running=former(*tree["state"].running[:-2]))
    with open(tmp_path / "s", "wb") as file, monkeypatch.context() as before:
        before.setattr(column_sweeps, "Running", former)
        write_tree(file, {**tree, "state": state}, OWNER)
    found = nz.resume_stream(tmp_path / "s")
    assert_same(found, stream)
    assert_same(fed(stream=found, own=PER_COLUMN), fed(stream=stream, own=PER_COLUMN))


# -- other engines -----------------------------------------------------------------------------------------------------

COLUMNS = RNG.poisson(2.0, (F, 25)).astype(float)
EXPOSURES = RNG.uniform(0.3, 3.0, 25)
GAPS = np.where(RNG.random(COLUMNS.shape) < 0.1, np.nan, COLUMNS)
CHAINS = {
    "exact": (nz.ChainOnlineEM(burn_in=5), nz.BasisChain(0.9, 0.6)),
    "particles": (nz.ParticleOnlineEM(particles=60, burn_in=5), nz.UnitChain(0.6)),
    "log-normal": (
        nz.ParticleOnlineEM(particles=60, burn_in=5, proposal="auxiliary", smoother="backward"),
        nz.LogNormalAR(0.2, 0.6, 0.7),
    ),
}


def of_chain(name, W, **arguments):
    engine, chain = CHAINS[name]
    return nz.stream(
        nz.hmm_nmf(None, K, chain=chain, shape=(F, 1), **arguments), engine=engine, initvals={"W": W}, random_seed=2
    )


@pytest.mark.parametrize("name", CHAINS)
def test_one_exposure_of_all_columns_of_a_chain_multiplies_w(name):
    """With missing cells from the middle on: they change what is gathered."""
    exposed, plain = of_chain(name, START), of_chain(name, 4.0 * START)
    for data in (COLUMNS, GAPS):
        exposed.update(data, exposure=4.0)
        plain.update(data)
    np.testing.assert_allclose(4.0 * exposed.W.values, plain.W.values, rtol=1e-12)
    found, expected = exposed.activations(COLUMNS, exposure=4.0), plain.activations(COLUMNS)
    xr.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("data", [COLUMNS, GAPS], ids=["complete", "holes"])
def test_activations_of_a_binary_chain_are_those_of_the_batch(data):
    """W known, and each sample with an exposure of its own: the smoothed probabilities of exact EM."""
    chain, of_features = nz.BasisChain(0.9, 0.6, initial=0.5), PER_FEATURE
    free = nz.hmm_nmf(None, K, chain=chain, shape=(F, 1), exposure=of_features)
    stream = nz.stream(pm.do(free, {"W": START}), engine=nz.ChainOnlineEM(), random_seed=1)
    stream.update(data, exposure=EXPOSURES)
    found = stream.activations(data, exposure=EXPOSURES)["H_mean"]
    whole = nz.hmm_nmf(data, K, chain=chain, exposure=(of_features, EXPOSURES[None]))
    model = pm.do(whole, {"W": START})
    expected = nz.fit(engine="hmm_exact", model=model, max_iter=1, draws=4000, random_seed=1, quiet=True, search=None)
    probabilities = expected.fit["H_mean"].values[0]
    np.testing.assert_allclose(found, probabilities, rtol=1e-10, atol=1e-12)
    last = stream.filtered["H_mean"].values[:, 0]
    np.testing.assert_allclose(last, probabilities[:, -1], rtol=1e-10)


def test_powers_are_divided():
    powers = RNG.gamma(1.0, size=(F, 20))
    doubling = 2.0 ** RNG.integers(-3, 4, 20)
    exposed, plain = (nz.stream(nz.is_nmf(None, 2, shape=(F, 1)), random_seed=3) for _ in range(2))
    exposed.update(doubling * powers, exposure=doubling)
    plain.update(powers)
    assert_same(exposed, plain)
    found = exposed.activations(doubling * powers, exposure=doubling, shares=True)
    xr.testing.assert_equal(found, plain.activations(powers, shares=True))


# -- what is refused ---------------------------------------------------------------------------------------------------

BAD = {
    "zero": (0.0, r"^exposure: got values from 0.0 to 0.0; expected finite numbers > 0"),
    "NaN": ([1.0, np.nan], r"^exposure: got values that are NaN or infinite \(1 of them\)"),
    "text": ("2", r"^exposure: got str '2'; expected a number or an array of numbers"),
    "length": ([1.0, 2.0, 3.0], r"^exposure: got shape \(3,\); expected a shape that broadcasts to \(6, 2\)"),
    "features": (PER_FEATURE, r"^exposure: got shape \(6, 1\); expected a number, or one per column, 2; declare"),
    "cells": (np.ones((F, 2)), r"^exposure: got shape \(6, 2\); expected a number, or one per column, 2; declare"),
    "pair": ((PER_FEATURE, np.ones((1, 2))), r"^exposure: got a pair; expected a number, or one per column, 2; decl"),
    "unit": ([1.0, 1e-200], r"^exposure: got values from 1e-200 to 1.0; expected numbers from 1e-120 to 1e\+120; cha"),
    "labels": (pd.Series([1.0, 2.0], index=["v", "u"]), r"^exposure: got labels of 'obs' that differ from X's"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_exposures_change_nothing(case):
    given, message = BAD[case]
    stream, block = begun(), pd.DataFrame(X[:, :2], columns=["u", "v"])
    with pytest.raises(nz.InputError, match=message) as refusal:
        stream.update(block, exposure=given)
    assert "\n" not in str(refusal.value)
    assert_same(fed(stream=stream), fed())


def test_exposures_that_a_model_can_not_have():
    with pytest.raises(
        nz.InputError, match=r"^model: got an exposure for each sample of X, which holds none; .*update"
    ):
        nz.stream(nz.gap(None, K, shape=(F, N), exposure=PER_COLUMN[None]))
    with pytest.raises(
        nz.UnsupportedModel, match="can't stream this model: X has an exposure of its own for every cell"
    ):
        nz.stream(nz.gap(X, K, exposure=RNG.uniform(0.5, 2.0, X.shape)))
    with pytest.raises(nz.UnsupportedModel, match="can't stream this model: X has a background;"):
        nz.stream(nz.gap(X, K, exposure=PER_COLUMN[None], background=0.1))
    with pytest.raises(nz.UnsupportedModel, match=r"an exposure is 1e-200, and a stream takes 1e-120 to 1e\+120"):
        nz.stream(nz.gap(X, K, exposure=1e-200))


def test_exposures_beside_a_background():
    """Of powers and chains: all columns share one ratio of the two."""
    reason = "X has a background, which a stream takes only where all columns have one exposure"
    for model in (
        nz.is_nmf(None, 2, shape=(F, 1), background=0.1),
        nz.hmm_nmf(None, 2, chain="basis", shape=(F, 1), background=0.1),
        nz.hmm_nmf(None, 2, chain="unit", shape=(F, 1), background=0.1),
    ):
        with pytest.raises(nz.InputError, match=f"^exposure: got exposures of columns; expected None; {reason}$"):
            nz.stream(model).update(COLUMNS, exposure=EXPOSURES)
    with pytest.raises(nz.UnsupportedModel, match=f"^engine 'online_em' can't stream this model: {reason}$"):
        nz.stream(nz.hmm_nmf(COLUMNS, 2, chain="basis", exposure=EXPOSURES[None], background=0.1))
