"""Projections and streams over blocks of samples: what they give of the same samples in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError
from nmf_zoo.verbs.block_source import CutArray
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 3
X = RNG.poisson(RNG.gamma(0.5, 1.0, (F, K)) @ RNG.gamma(0.5, 4.0, (K, N))).astype(float)
X[0] += 1.0  # no sample and no feature is empty
X[:, 0] += 1.0
EXPOSURE = RNG.gamma(5.0, 0.2, N)
MASK = RNG.random((F, N)) < 0.8
MASK[0] = True
PAIR = tuple(np.random.default_rng(2).gamma(2.0, 0.5, shape) for shape in ((F, 1), (1, N)))
QUIET = {"random_seed": 1, "quiet": True, "cores": 1}
RUN = {**QUIET, "max_iter": 200, "tol": 0}
EM = nz.EM(accelerate="momentum")


def activations(idata):
    return group(idata, "posterior")["H"].to_numpy()[0, 0]


# -- labels ----------------------------------------------------------------------------------------------------------

GENES, OTHER = [f"g{row}" for row in range(F)], np.arange(F)[::-1]
NAMED = pd.DataFrame(X, GENES)
FEW = {**QUIET, "engine": "vb", "max_iter": 3, "tol": 0}
DIFFER = "labels of 'feature' that differ from the model's"


class Tables(CutSamples):
    """Blocks that have the labels, of a source that has none."""

    def __init__(self, table, block=7):
        super().__init__(table, block)
        self.table, self.coords = table, None

    def read(self, number):
        return self.table.iloc[:, self.bounds[number] : self.bounds[number + 1]]


def unlabelled(**more):
    return nz.gamma_nmf(None, K, shape=(F, 1), **more)


@pytest.fixture(scope="module")
def of_genes():
    """A fit over blocks, which have the labels that its model has not."""
    return nz.fit(model=unlabelled(), data=CutArray(NAMED, 7), **FEW)


def test_labels_of_blocks_are_those_of_the_result(of_genes):
    found = nz.fit(model=unlabelled(), data=Tables(NAMED), **FEW)
    for idata in (of_genes, found):
        assert list(group(idata, "posterior")["feature"].to_numpy()) == GENES
    np.testing.assert_array_equal(activations(found), activations(of_genes))


def test_blocks_whose_features_have_another_order_are_refused(of_genes, tmp_path):
    turned, first = NAMED.iloc[OTHER], unlabelled(coords={"feature": GENES})
    known = unlabelled(known=NAMED[[0, 1]] + 1.0)
    for model, data in (
        (first, Tables(turned)),
        (first, CutArray(turned)),
        (known, CutArray(turned)),
        (unlabelled(known=of_genes), Tables(turned)),
        (unlabelled(exposure=pd.DataFrame(np.arange(1.0, F + 1.0), GENES)), CutArray(turned)),
    ):
        with pytest.raises(InputError, match=DIFFER):
            nz.fit(model=model, data=data, **FEW)
    mixed = Tables(NAMED)
    mixed.read = lambda number: Tables(turned if number == 2 else NAMED).read(number)
    with pytest.raises(InputError, match=rf"data\.read\(2\): got {DIFFER}"):
        nz.fit(model=unlabelled(), data=mixed, **FEW)
    with pytest.raises(InputError, match=rf"data\.read\(2\): got {DIFFER}"):
        nz.write_blocks(tmp_path / "x.zarr", mixed)
    with pytest.raises(InputError, match=DIFFER):
        nz.select_rank(lambda rank: first, [K], data=Tables(turned), method=nz.Holdout(engine="vb"), quiet=True)
    with pytest.raises(InputError, match="alpha_w: got labels of 'feature'; expected none"):
        unlabelled(alpha_w=pd.DataFrame(np.ones((F, 1)), GENES))


def test_values_to_begin_with_go_by_the_labels_of_blocks(of_genes):
    turned = CutArray(NAMED.iloc[OTHER])
    for start in (of_genes, {"W": group(of_genes, "posterior")["W"][0, 0]}):
        with pytest.raises(InputError, match=rf"initvals(\['W'\])?: got {DIFFER}"):
            nz.fit(model=unlabelled(), data=turned, initvals=start, **FEW)
    with pytest.raises(InputError, match=rf"initvals(\['W'\])?: got {DIFFER}"):
        nz.fit(model=nz.gamma_nmf(NAMED.iloc[OTHER], K), initvals=of_genes, **FEW)
    model = nz.gap(None, K, shape=(F, 1), coords={"feature": GENES[::-1]})
    with pytest.raises(InputError, match=rf"initvals(\['W'\])?: got {DIFFER}"):
        nz.stream(model, initvals={"W": group(of_genes, "posterior")["W"][0, 0]})


def test_new_samples_go_by_the_labels_of_the_result(of_genes):
    run = {**FEW, "max_iter": 20}
    expected = nz.project(of_genes, X[:, :5], model=unlabelled(), **run)
    found = nz.project(of_genes, NAMED.iloc[OTHER, :5], model=unlabelled(), **run)
    np.testing.assert_array_equal(activations(found), activations(expected))
    for data in (CutArray(NAMED.iloc[OTHER]), Tables(NAMED.iloc[OTHER])):
        with pytest.raises(InputError, match=DIFFER):
            nz.project(of_genes, model=unlabelled(), data=data, **run)


@pytest.mark.parametrize("source", [CutArray, Tables])
def test_a_stream_has_the_labels_of_its_first_blocks(source):
    stream = nz.stream(nz.gap(None, K, shape=(F, 1)), data=source(NAMED, 7), random_seed=1)
    assert list(stream.W["feature"].to_numpy()) == GENES
    for use in (stream.update, stream.activations):
        with pytest.raises(InputError, match=DIFFER):
            use(NAMED.iloc[OTHER, :3])


# -- projections -----------------------------------------------------------------------------------------------------

OLD = X[:, :40]


@pytest.fixture(scope="module")
def fitted():
    model = nz.gamma_nmf(OLD, K)
    return model, nz.fit(model=model, engine="em", max_iter=100, tol=0, search=None, **QUIET)


PROJECTED = {
    "dense": (X, {}, {}),
    "sparse": (sp.csc_array(X), {}, {}),
    "mask": (X, {"mask": MASK}, {"mask": MASK}),
    "exposure": (X, {"exposure": EXPOSURE}, {"exposure": EXPOSURE[None]}),
    "background": (sp.csc_array(X), {"background": PAIR}, {"background": PAIR}),
    "table of backgrounds": (X, {"background": PAIR[0] * PAIR[1]}, {"background": PAIR[0] * PAIR[1]}),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_samples_in_blocks_have_the_activations_that_they_have_in_memory(name, fitted):
    """While an iteration changes the objective by more than rounding does, which says whether momentum begins again."""
    table, of_blocks, whole = PROJECTED[name]
    model, idata = fitted
    run = {**RUN, "max_iter": 80}
    expected = nz.project(idata, table, model=model, engine=EM, **run, **whole)
    found = nz.project(idata, model=model, data=CutSamples(table, **of_blocks), **run)
    np.testing.assert_allclose(activations(found), activations(expected), rtol=1e-10, atol=1e-99)
    np.testing.assert_array_equal(group(found, "constant_data")["W"], group(expected, "constant_data")["W"])


def test_one_block_is_the_projection_in_memory(fitted):
    model, idata = fitted
    run = {**QUIET, "max_iter": 40, "tol": 0}
    expected = nz.project(idata, X, model=model, engine=EM, search=None, **run)
    found = nz.project(idata, model=model, data=CutSamples(X, N), **run)
    np.testing.assert_array_equal(activations(found), activations(expected))


def test_results_of_blocks_are_projected_from_blocks_to_a_store(tmp_path):
    """The model has no data, neither then nor now."""
    model = nz.gamma_nmf(None, K, shape=(F, 1))
    labels = {"obs": [f"s{n}" for n in range(N)]}
    idata = nz.fit(model=model, data=CutArray(OLD, 9), engine="vb", store=tmp_path / "fit.zarr", **QUIET)
    run = {"engine": "vb", "max_iter": 30, "tol": 0, **QUIET}
    found = nz.project(idata, model=model, data=CutSamples(X, coords=labels), store=tmp_path / "new.zarr", **run)
    expected = nz.project(idata, model=model, data=CutSamples(X), **run)
    assert group(found, "posterior")["H"].sel(obs="s41").shape == (1, 1, K)
    np.testing.assert_array_equal(activations(found), activations(expected))


def test_shapes_below_one_leave_vb():
    model = nz.gamma_nmf(OLD, K, alpha_w=0.4, alpha_h=0.4)
    idata = nz.fit(model=model, engine="vb", max_iter=20, tol=0, search=None, **QUIET)
    assert nz.project(idata, model=model, data=CutArray(X, 7), **QUIET).attrs["engine"] == "vb"
    with pytest.raises(InputError, match="got 5 features; expected 12"):
        nz.project(idata, model=model, data=X[:5], **QUIET)


@pytest.mark.parametrize("name", ["exposure", "background"])
def test_what_differs_between_samples_must_come_with_the_blocks(name):
    of_blocks = EXPOSURE if name == "exposure" else EXPOSURE[None]
    model = nz.gamma_nmf(OLD, K, **{name: EXPOSURE[None, :40]})
    idata = nz.fit(model=model, engine="em", max_iter=20, tol=0, search=None, **QUIET)
    with pytest.raises(InputError, match=f"data: got no {name}s; expected those of the samples"):
        nz.project(idata, model=model, data=CutArray(X, 7), **QUIET)
    found = nz.project(idata, model=model, data=CutSamples(X, **{name: of_blocks}), **RUN)
    expected = nz.project(idata, X, model=model, **{name: EXPOSURE[None]}, engine=EM, **RUN)
    np.testing.assert_allclose(activations(found), activations(expected), rtol=1e-5, atol=1e-6)


REFUSED = {
    "none": ({}, InputError, "neither X_new nor data"),
    "both": ({"X_new": X, "data": X}, InputError, "X_new and data"),
    "mask": ({"data": X, "mask": MASK}, InputError, "mask: got a value with data="),
    "exposure": ({"data": X, "exposure": EXPOSURE}, InputError, "exposure: got a value with data="),
    "background": ({"data": X, "background": PAIR}, InputError, "background: got a value with data="),
    "path": ({"data": "x.zarr"}, InputError, "nz.open_blocks"),
    "features": ({"data": X[:5]}, InputError, "got 5 features; expected 12"),
    "engine": ({"data": X, "engine": "gibbs"}, InputError, "gibbs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_projections_refuse(name, fitted):
    arguments, kind, words = REFUSED[name]
    model, idata = fitted
    with pytest.raises(kind) as caught:
        nz.project(idata, model=model, **arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# -- streams ---------------------------------------------------------------------------------------------------------

STREAMS = {
    "dense": {},
    "mask": {"mask": MASK},
    "exposure": {"exposure": EXPOSURE},
}


def columns(stream):
    return stream.W.to_numpy()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_blocks_is_that_of_updates(name):
    more = STREAMS[name]
    model = nz.gap(None, K, shape=(F, 1))
    found = nz.stream(model, data=CutSamples(X, 10, **more), random_seed=1, cores=1)
    expected = nz.stream(model, random_seed=1, cores=1)
    for first in range(0, N, 10):
        at = slice(first, first + 10)
        own = {key: value[:, at] if value.ndim == 2 else value[at] for key, value in more.items()}
        expected.update(X[:, at], **own)
    assert found.columns_seen == N
    np.testing.assert_array_equal(columns(found), columns(expected))


def test_a_stream_does_not_depend_on_where_whole_mini_batches_are_cut():
    model, options = nz.gap(None, K, shape=(F, 1)), nz.OnlineEM(batch=5)
    whole, parts = (
        nz.stream(model, data=CutArray(sp.csc_array(X), size), engine=options, random_seed=1, cores=1)
        for size in (N, 10)
    )
    np.testing.assert_array_equal(columns(parts), columns(whole))


def given(stream, monkeypatch):
    """What its updates are given: tables and exposures."""
    seen = []
    monkeypatch.setattr(type(stream), "update", lambda self, X, exposure, **_: seen.append((X, exposure)))
    return seen


@pytest.mark.parametrize("form", [np.asarray, sp.csc_array])
def test_passes_take_every_sample_in_orders_of_their_own(form, monkeypatch):
    model, numbers = nz.gap(None, K, shape=(F, 1)), np.arange(1.0, N + 1)
    seen = given(nz.stream(model), monkeypatch)
    table = np.broadcast_to(numbers, (F, N))
    for seed in (1, 1, 2):
        nz.stream(model, data=CutSamples(form(table), 25, exposure=numbers), passes=2, random_seed=seed)
    blocks = [np.asarray(X.todense() if sp.issparse(X) else X)[0] for X, _ in seen]
    for block, (_, exposure) in zip(blocks, seen, strict=True):
        np.testing.assert_array_equal(block, exposure)
    passes = [np.concatenate(blocks[first : first + 3]) for first in range(0, 18, 3)]
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), numbers)
    assert [np.array_equal(passes[0], other) for other in passes] == [True, False, True, False, False, False]
    assert not any(np.all(np.diff(block) == 1) for block in blocks)


@pytest.mark.parametrize("passes", [None, 2])
def test_a_stream_refuses_a_background_of_samples(passes):
    source = CutSamples(X, background=PAIR)
    with pytest.raises(InputError, match="data: got a background of samples, with 'online_em'; expected none"):
        nz.stream(nz.gap(None, K, shape=(F, 1)), data=source, passes=passes, random_seed=1)


def test_a_stream_learns_in_passes():
    found = nz.stream(nz.gap(None, K, shape=(F, 1)), data=CutArray(X, 25), passes=3, random_seed=1, cores=1)
    assert found.columns_seen == 3 * N
    np.testing.assert_allclose(found.W.sum().item(), X.sum() / N, rtol=0.05)


def test_a_stream_goes_on_after_the_data_of_its_model():
    model = nz.gap(OLD, K)
    found = nz.stream(model, data=CutArray(X[:, 40:], 7), random_seed=1)
    expected = nz.stream(model, random_seed=1)
    for first in range(40, N, 7):
        expected.update(X[:, first : first + 7])
    np.testing.assert_array_equal(columns(found), columns(expected))


def test_what_streams_refuse():
    model = nz.gap(None, K, shape=(F, 1), coords={"feature": [f"f{n}" for n in range(F)]})
    with pytest.raises(InputError, match="labels of 'feature' that differ from the model's"):
        nz.stream(model, data=CutSamples(X, coords={"feature": [f"g{n}" for n in range(F)]}))
    with pytest.raises(InputError, match="got 5 features; expected 12"):
        nz.stream(model, data=X[:5])
    with pytest.raises(InputError, match=r"nz\.open_blocks"):
        nz.stream(model, data="x.zarr")
    with pytest.raises(InputError, match="negative"):
        nz.stream(model, data=-X)
    with pytest.raises(InputError, match="passes: got 0; expected an integer >= 1"):
        nz.stream(model, data=X, passes=0)
    with pytest.raises(InputError, match="None without data="):
        nz.stream(model, passes=2)
    with pytest.raises(InputError, match="a chain in time"):
        nz.stream(nz.hmm_nmf(None, 2, shape=(F, 1)), data=X, passes=2)
