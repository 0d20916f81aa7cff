"""``restarts=`` and ``search=`` of fits over blocks: in memory on the samples of some blocks, and then over all."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.registry import over_blocks
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime import checkpoint as checkpoints
from nmf_zoo.verbs.block_source import CutArray
from nmf_zoo.verbs.fit_blocks import surveyed
from nmf_zoo.verbs.search_blocks import choose
from tests.cut_samples import CutSamples

RNG = np.random.default_rng(1)
F, N, K = 12, 60, 4
X = RNG.poisson(RNG.gamma(0.3, 1.0, (F, K)) @ RNG.gamma(0.3, 8.0, (K, N))).astype(float)
X[0] += 1.0
EXPOSURE = RNG.gamma(5.0, 0.2, N)
RUN = {"max_iter": 400, "random_seed": 1, "quiet": True, "cores": 1}
SEARCH = nz.Search(fits=6)


def declared(X=None, **more):
    more |= {"shape": (F, 1)} if X is None else {}
    return nz.gamma_nmf(X, K, alpha_w=1.2, alpha_h=1.2, **more)


def over(data=None, engine="vb", **more):
    return nz.fit(model=declared(), data=CutArray(X, 17) if data is None else data, engine=engine, **RUN | more)


def end_of(idata):
    return float(group(idata, "fit")["objective"][0, int(group(idata, "fit")["iterations"][0]) - 1])


@pytest.mark.parametrize("engine", ["vb", "em"])
@pytest.mark.parametrize("form", [np.asarray, sp.csc_array], ids=["dense", "sparse"])
def test_with_one_block_it_is_the_search_in_memory(form, engine):
    """The fit over all samples begins at the optimum that is there, and ends at it or above."""
    whole = nz.fit(model=declared(form(X)), engine=engine, search=SEARCH, **RUN)
    found = over(CutArray(form(X), N), engine, search=SEARCH, tol=1e-6)
    sign = 1.0 if engine == "vb" else -1.0
    assert sign * (end_of(found) - end_of(whole)) > -1e-4 * abs(end_of(whole))
    assert found.attrs["searched"] == "the best of 6 fits to 60 samples in 1 block"


def test_restarts_are_fits_of_the_same_samples():
    found = over(restarts=3, search=None)
    assert found.attrs["searched"] == "the best of 3 fits to 60 samples in 4 blocks"
    plain = over(search=None)
    assert "searched" not in plain.attrs
    assert not np.array_equal(group(found, "posterior")["W"], group(plain, "posterior")["W"])
    np.testing.assert_array_equal(group(over(), "posterior")["W"], group(plain, "posterior")["W"])  # "auto" is none


def test_the_mode_of_all_samples_is_better_where_single_starts_fail():
    """Over ten seeds a search never ends far below the best that single starts reach, and these do."""
    ends = np.array([[end_of(over(random_seed=s, search=how)) for how in (None, SEARCH)] for s in range(10)])
    assert ends[:, 1].min() > ends[:, 0].min()
    assert ends[:, 1].mean() > ends[:, 0].mean()


def structure_of(source):
    return surveyed(nz.read(declared()), source, over_blocks(vb.ENGINE, nz.VB()), nz.VB())[0]


@pytest.mark.parametrize("form", [np.asarray, sp.csc_array], ids=["dense", "sparse"])
def test_chosen_blocks_are_side_by_side(form):
    structure = structure_of(CutSamples(form(X), 7, EXPOSURE))
    chosen = choose(structure, seed_key(1), most=3 * 7 * F)
    assert 2 < chosen.n_blocks < 9
    rows, cols, values = chosen.structure.observed_cells()
    table = np.zeros(chosen.structure.shape)
    table[rows, cols] = values
    places = [EXPOSURE.tolist().index(own) for own in chosen.structure.likelihood.exposure[0]]
    assert places == sorted(set(places))  # in their order, each once
    np.testing.assert_array_equal(table, X[:, places])


def test_backgrounds_of_chosen_blocks_are_side_by_side():
    """Without a table where none was given: blocks whose backgrounds would need one are left."""
    of_features = np.arange(1.0, F + 1.0)[:, None]
    table = EXPOSURE * of_features
    listed = sp.csc_array(np.where(X > 1, table, 0.0))
    for cells, background, observed in (
        (X, table, None),
        (sp.csc_array(X), (of_features, EXPOSURE[None]), None),
        (sp.csc_array(np.where(X > 1, X, 0.0)), listed, "stored"),
    ):
        source = CutSamples(cells, 7, EXPOSURE, observed=observed, background=background)
        chosen = choose(structure_of(source), seed_key(1), most=20 * F).structure
        rows, cols, _ = chosen.observed_cells()
        places = np.array([EXPOSURE.tolist().index(own) for own in chosen.likelihood.exposure[0]])
        assert len(places) > 7
        np.testing.assert_array_equal(chosen.background_at(rows, cols), table[rows, places[cols]])
    source = CutSamples(sp.csc_array(X), 7)
    read = source.read
    source.read = lambda n: read(n)._replace(background=(of_features**n, np.ones(len(read(n).X.toarray()[0]))))
    assert choose(structure_of(source), seed_key(1)).n_blocks == 1


def test_the_seed_chooses_blocks_up_to_so_many_cells():
    structure = structure_of(CutArray(X, 7))
    one = [choose(structure, seed_key(seed), most=1) for seed in range(20)]
    assert {chosen.n_blocks for chosen in one} == {1}
    assert len({chosen.structure.data.values.tobytes() for chosen in one}) > 5
    assert choose(structure, seed_key(1)).structure.shape == (F, N)
    assert choose(structure, seed_key(1), most=2 * 7 * F).structure.shape[1] <= 14


def test_missing_cells_stay_missing():
    mask = RNG.random((F, N)) < 0.8
    chosen = choose(structure_of(CutSamples(X, 7, mask=mask)), seed_key(1))
    np.testing.assert_array_equal(chosen.structure.data.mask, mask)


def test_results_do_not_depend_on_the_threads():
    one, two = (over(search=SEARCH, cores=cores) for cores in (1, 2))
    np.testing.assert_array_equal(group(one, "posterior")["W"], group(two, "posterior")["W"])


def test_a_killed_run_does_not_search_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    path, run = tmp_path / "run", {"search": SEARCH, "max_iter": 12, "tol": 0}
    over(checkpoint=path, on_step=lambda step: step.number == 4, **run)
    expected = over(**run)

    def refuses(*_, **__):
        raise AssertionError("searched again")

    monkeypatch.setattr("nmf_zoo.verbs.search_blocks.run_search", refuses)
    found = over(checkpoint=path, **run)
    np.testing.assert_array_equal(group(found, "posterior")["H"], group(expected, "posterior")["H"])
    assert found.attrs["searched"] == expected.attrs["searched"]
    shutil.rmtree(path)
    with pytest.raises(AssertionError, match="searched again"):
        over(checkpoint=path, **run)
