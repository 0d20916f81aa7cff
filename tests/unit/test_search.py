"""The search for the best mode: its moves, its record, and that the seed alone decides."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import verdict_on
from nmf_zoo.errors import InputError
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.reading import read
from nmf_zoo.runtime.driver import FitRun, Fitted
from nmf_zoo.runtime.stopping import BY_ON_STEP, OUT_OF_TIME
from nmf_zoo.search import options, proposals
from nmf_zoo.search.components import SearchComponents, likeness, merged, paired, pooled
from nmf_zoo.search.optima import Optima, Optimum, dataset_of
from nmf_zoo.search.proposals import PARENTS
from nmf_zoo.search.race import EVERY, RECENT, TELLING, Race
from nmf_zoo.search.run import Local, _fill
from nmf_zoo.verbs import starts
from tests.sizes import size

RUN = {"random_seed": 3, "quiet": True}


@pytest.fixture(scope="module")
def counts():
    """Five sharp components in 30 x 24 counts: enough optima for a search to have something to do."""
    rng = np.random.default_rng(1)
    W, H = rng.gamma(0.2, size=(30, 5)), rng.gamma(0.3, size=(5, 24))
    return rng.poisson(40 * W @ H + 0.3)


@pytest.fixture(scope="module")
def model(counts):
    return nz.gamma_nmf(counts, 5, alpha_w=1.0, alpha_h=1.0)


def random_components(seed, K, F=7, N=9):
    rng = np.random.default_rng(seed)
    return SearchComponents(rng.gamma(0.5, size=(F, K)), rng.gamma(0.5, size=(N, K)))


def product(components):
    return components.W @ components.Ht.T


# -- components --------------------------------------------------------------------------------------------------


def test_paired_undoes_a_permutation_and_scales():
    one, order = random_components(1, 6), np.random.default_rng(2).permutation(6)
    other = SearchComponents(3.0 * one.W[:, order], one.Ht[:, order] / 7.0)
    again = paired(one, other)
    np.testing.assert_allclose(again.W, 3.0 * one.W)
    np.testing.assert_allclose(np.diag(likeness(one, again)), 1.0)


def test_pooled_has_the_total_of_one():
    parts = [random_components(seed, 3) for seed in range(3)]
    np.testing.assert_allclose(product(pooled(parts)), np.mean([product(part) for part in parts], axis=0))


def test_what_is_merged_keeps_the_margins_of_its_sum():
    """The total of every feature and of every sample: of rank one matrices that is the best there is."""
    parts = random_components(3, 5)
    for rank in (1, 2, 4):
        both = merged(parts, rank)
        assert both.W.shape == (7, rank)
        np.testing.assert_allclose(product(both).sum(axis=1), product(parts).sum(axis=1))
        np.testing.assert_allclose(product(both).sum(axis=0), product(parts).sum(axis=0))


def test_copies_are_merged_first():
    one = random_components(4, 4)
    twice = merged(pooled([one, one.take(np.array([2, 0, 3, 1]))]), 4)
    np.testing.assert_allclose(product(twice), product(one))
    again = paired(one, twice)
    np.testing.assert_allclose(np.diag(likeness(one, again)), 1.0)


def hellinger(p, q):
    return np.sum((np.sqrt(p) - np.sqrt(q)) ** 2)


def test_the_cheapest_pair_is_merged():
    found = random_components(5, 4)
    P, Q, sizes = found.W / found.W.sum(axis=0), found.Ht / found.Ht.sum(axis=0), found.sizes

    def cost(i, j):
        apart = hellinger(P[:, i], P[:, j]) + hellinger(Q[:, i], Q[:, j])
        return sizes[i] * sizes[j] / (sizes[i] + sizes[j]) * apart

    i, j = min(itertools.combinations(range(4), 2), key=lambda pair: cost(*pair))
    left = merged(found, 3)
    others = [k for k in range(4) if k not in (i, j)]
    alike = likeness(found.take(np.array(others)), left).max(axis=1)
    np.testing.assert_allclose(alike, 1.0)
    assert likeness(found.take(np.array([i, j])), left).max() < 1.0


def test_components_without_mass_are_merged_without_a_warning():
    nothing = SearchComponents(np.zeros((4, 3)), np.zeros((5, 3)))
    assert np.all(product(merged(nothing, 1)) == 0.0)


# -- proposals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", proposals.PROPOSALS)
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_proposal_is_a_positive_point_of_its_stream(way, rank, counts):
    structure = nz.read(nz.gamma_nmf(counts, rank))
    best = [random_components(seed, rank, *counts.shape) for seed in range(4)]
    made = proposals.PROPOSALS[way](structure, best, seed_key(1))
    again = proposals.PROPOSALS[way](structure, best, seed_key(1))
    assert made.W.shape == (30, rank)
    assert made.Ht.shape == (24, rank)
    for array, same in zip(made, again, strict=True):
        assert np.all(np.isfinite(array) & (array >= 0.0))
        np.testing.assert_array_equal(array, same)
    if rank == 5:
        other = proposals.PROPOSALS[way](structure, best, seed_key(2))
        assert not np.array_equal(made.W, other.W)


def test_exchange_takes_whole_components_into_their_places(counts):
    structure = nz.read(nz.gamma_nmf(counts, 5))
    one = random_components(1, 5, *counts.shape)
    other = one.take(np.array([3, 1, 0, 4, 2]))
    made = proposals.exchange(structure, [one, other], seed_key(1))
    np.testing.assert_allclose(product(made), product(one))  # the same solution in another order


def test_a_split_keeps_what_it_does_not_touch(counts):
    structure = nz.read(nz.gamma_nmf(counts, 5))
    one = random_components(1, 5, *counts.shape)
    made = proposals.split(structure, [one], seed_key(1))
    untouched = np.all(made.W == one.W, axis=0)
    assert 2 <= untouched.sum() <= 3
    np.testing.assert_allclose(made.Ht[:, untouched], one.Ht[:, untouched])


# -- the record --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [-400, 400])
def test_merging_does_not_depend_on_the_unit(power):
    """Sizes whose product is beyond all numbers, or below."""
    components, unit = random_components(1, 5), 2.0**power
    plain, scaled = merged(components, 3), merged(SearchComponents(components.W * unit, components.Ht * unit), 3)
    np.testing.assert_array_equal(plain.W * unit, scaled.W)
    np.testing.assert_array_equal(plain.Ht * unit, scaled.Ht)


def test_optima_are_counted_by_place_and_objective():
    found = Optima(maximise=True)
    one, other = random_components(1, 3), random_components(2, 3)
    for number, (objective, components) in enumerate([(-9.0, one), (-5.0, other), (-5.00001, other), (-5.0, one)]):
        found.add(Optimum(objective, {}, components, "random", number), None, 2)
    table = dataset_of(found.table(), **found.work)
    assert table["found"].values.tolist() == [2, 1, 1]
    assert table["objective"].values.tolist() == [-5.0, -5.0, -9.0]
    assert table["likeness"].values[0] == pytest.approx(1.0)
    assert (found.best.source, found.fits, found.iterations) == (1, 4, 8)


def test_optima_near_the_best_are_kept_whole():
    """Of a bound, whose differences are nats: what is far below holds no part of the posterior."""
    for maximise, kept in ((True, ["b", "c"]), (False, ["b"])):
        found = Optima(maximise=maximise)
        for number, (objective, fitted) in enumerate([(-19.0, "a"), (-5.0, "b"), (-7.0, "c"), (-99.0, "d")]):
            objective = objective if maximise else -objective
            found.add(Optimum(objective, {}, random_components(number, 3), "random", number), fitted, 2)
        near = [one.fitted for one in found.near()]
        assert near == kept
        assert sum(one.fitted is not None for one in found.found) == len(near)


def test_a_round_that_the_time_cuts_short_is_left_out(model, monkeypatch):
    """No clock would cut it at the same iterations: without it the same search is one of fewer fits."""

    def cut(status, done):
        def make(round_):
            whole = round_.numbers[0] < done
            fits = {n: Fitted([float(n)], 0.0, "converged" if whole else status, None) for n in round_.numbers}
            found = {n: Local(float(n), 1, {"W": np.ones((30, 5)), "H": np.ones((5, 24))}, fits[n]) for n in fits}
            return found, "" if whole else status

        optima = Optima(maximise=True)
        run = FitRun(max_iter=5, tol=0.0, draws=1, cores=1, progressbar=False)
        early = _fill(optima, nz.read(model), run, nz.Search(fits=30), lambda number: child(seed_key(1), number), make)
        return early, optima.fits, optima.replay

    assert cut(OUT_OF_TIME, 8) == (OUT_OF_TIME, 8, nz.Search(fits=8, starts=8))
    assert cut(OUT_OF_TIME, 12) == (OUT_OF_TIME, 12, nz.Search(fits=12, starts=12))
    assert cut(OUT_OF_TIME, 0) == (OUT_OF_TIME, 4, None)  # something must come of it
    assert cut(BY_ON_STEP, 8) == (BY_ON_STEP, 12, None)
    assert cut(OUT_OF_TIME, 30) == ("", 30, nz.Search(fits=30))


# -- the race ------------------------------------------------------------------------------------------------------


def falling(end, far, iterations=200, pace=0.95):
    """Losses of a fit that comes nearer its end by the same part of the way in each iteration."""
    return list(end + far * pace ** np.arange(1.0, iterations + 1.0))


def looks(race, losses, anew=True):
    """The iterations after which a fit would be left, had it not been before."""
    found, seen = [], 0
    while seen := race.left_after(anew, losses, seen):
        found.append(seen)
    return found


def raced(fits, maximise=False):
    race = Race(maximise)
    for losses in fits:
        race.add(True, [-loss for loss in losses] if maximise else losses)
    return race


ENDS = 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 30.0


def test_no_fit_is_left_before_others_tell_of_it():
    few = raced([falling(end, 1000.0) for end in ENDS[: PARENTS - 1]])
    assert looks(few, falling(500.0, 1000.0)) == []
    short = raced([falling(end, 1000.0, iterations=RECENT) for end in ENDS])
    assert looks(short, falling(500.0, 1000.0)) == []


def test_a_fit_that_would_stay_behind_is_left_at_the_first_look():
    race = raced([falling(end, 1000.0) for end in ENDS])
    assert looks(race, falling(600.0, 1000.0))[0] == RECENT + EVERY
    assert all(at % EVERY == 0 for at in looks(race, falling(600.0, 1000.0)))


def test_a_fit_like_those_before_it_goes_on():
    """Also one that has farther to go, and goes faster: the last place among the best is what it needs."""
    race = raced([falling(end, 1000.0) for end in ENDS])
    assert looks(race, falling(ENDS[PARENTS - 1], 1000.0)) == []
    assert looks(race, falling(10.0, 5000.0)) == []


def test_a_fit_that_stands_still_is_left_unless_one_before_it_did_so():
    """None but a plateau tells that one may end."""
    plateau = [100.0] * 60 + falling(10.0, 90.0, iterations=140)
    assert looks(raced([falling(end, 1000.0) for end in ENDS]), plateau)[0] < 60
    assert looks(raced([falling(end, 1000.0) for end in ENDS] + [plateau]), plateau) == []


def test_a_fit_that_ends_near_the_best_is_not_left():
    """Modes whose bounds are near hold a part of the posterior."""
    fits, second = [falling(10.0, 1000.0) for _ in range(6)], falling(14.0, 1000.0)
    assert looks(raced(fits), second) != []
    near = Race(False, near=5.0)
    for losses in fits:
        near.add(True, losses)
    assert looks(near, second) == []


def test_fits_that_begin_at_others_are_not_judged_by_those_that_begin_anew():
    """They begin slowly, near where they end; once two of them have ended they tell of those that stand still."""
    race = raced([falling(end, 1000.0) for end in ENDS])
    slow, still = falling(9.0, 20.0, pace=0.99), [40.0] * 200
    assert looks(race, slow)[0] == looks(race, still)[0] == RECENT + EVERY  # as if they had begun anew
    assert looks(race, slow, anew=False) == looks(race, still, anew=False) == []
    for _ in range(TELLING):
        race.add(False, slow)
    assert looks(race, slow, anew=False) == []
    assert looks(race, still, anew=False)[0] == RECENT + EVERY


def test_a_bound_is_a_loss_with_the_other_sign():
    fits, one = [falling(end, 1000.0) for end in ENDS], falling(600.0, 1000.0)
    assert looks(raced(fits, maximise=True), [-loss for loss in one]) == looks(raced(fits), one)


def test_fits_that_fall_behind_are_left_and_counted(counts):
    """They are not among the optima, and a search that goes on from a checkpoint leaves the same."""
    declared = nz.gamma_nmf(counts, 5, alpha_w=0.3, alpha_h=0.3)
    how = {"engine": "vb", "model": declared, "search": nz.Search(fits=24), **RUN}
    table = search_of(nz.fit(**how))
    assert 0 < table.attrs["left"] < 24 - PARENTS
    assert int(table["found"].sum()) == 24 - table.attrs["left"]


def test_a_search_ends_where_all_optima_were_found():
    """None is found once, so that a fit begun anew would hardly come to another."""
    found = Optima(maximise=True)
    for number, objective in enumerate([-5.0, -5.0, -9.0, -5.0]):
        found.add(Optimum(objective, {}, random_components(7, 3), "random", number), None, 2)
    assert not found.found_all(3)  # -9 was found once
    found.add(Optimum(-9.0, {}, random_components(7, 3), "random", 4), None, 2)
    assert [found.found_all(enough) for enough in (3, 4, None)] == [True, False, False]


def test_samples_far_apart_go_on_where_they_led_to_the_best(counts):
    structure = nz.read(nz.gamma_nmf(counts, 5))
    ways = [proposals.fresh_start(structure, number, seed_key(number), {"random"})[0] for number in range(40)]
    assert [ways.count(way) for way in ("nndsvd", "kmeans++")] == [1, proposals.TRIED // 4]
    ways = [proposals.fresh_start(structure, number, seed_key(number), {"kmeans++"})[0] for number in range(40)]
    assert [ways.count(way) for way in ("nndsvd", "kmeans++")] == [1, 10]


# -- runs --------------------------------------------------------------------------------------------------------


def search_of(idata):
    return _compat.group(idata, "search")


def last(idata):
    return float(_compat.group(idata, "fit")["objective"].isel(chain=0).dropna("iteration")[-1])


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_the_threads_decide_nothing(engine, model):
    one, three = (nz.fit(engine=engine, search=nz.Search(fits=11), cores=cores, model=model, **RUN) for cores in (1, 3))
    for name in ("posterior", "search", "fit"):
        xr.testing.assert_equal(_compat.group(one, name), _compat.group(three, name))
    table = search_of(one)
    assert int(table["found"].sum()) == 11 - table.attrs["left"]
    assert table.attrs["fits"] == 11
    assert set(table["way"].values) <= {*proposals.FRESH, *proposals.PROPOSALS}


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_the_first_fit_is_the_plain_one(engine, model):
    """So that no search ends below the fit of the same seed."""
    plain = nz.fit(engine=engine, search=None, model=model, **RUN)
    first = nz.fit(engine=engine, search=nz.Search(fits=1), model=model, **RUN)
    xr.testing.assert_equal(_compat.group(plain, "posterior"), _compat.group(first, "posterior"))
    xr.testing.assert_equal(_compat.group(plain, "fit"), _compat.group(first, "fit"))


def test_a_search_finds_more_than_as_many_starts(counts):
    """Over some seeds: 20 fits of which 5 begin anew against 20 that all do (of ten all gained 0.5 to 9.6 nats).

    Long: enough starts for shares that differ.
    """
    seeds = size(3, 10)
    gained, model = 0, nz.gamma_nmf(counts, 8, alpha_w=0.3, alpha_h=0.3)
    for seed in range(seeds):
        run = {"engine": "vb", "model": model, "random_seed": seed, "quiet": True}
        starts, found = (nz.fit(search=nz.Search(fits=20, starts=starts), **run) for starts in (20, 5))
        gained += last(found) > last(starts) + 1e-3
    assert gained >= 0.8 * seeds


def test_few_starts(model):
    """Fewer than a round has fits: the first round has nothing else to begin at."""
    found = nz.fit(engine="vb", search=nz.Search(fits=6, starts=1), max_iter=3, tol=0, model=model, **RUN)
    assert int(search_of(found)["found"].sum()) == 6


@pytest.mark.filterwarnings("ignore:X. .*no positive observed cell")
@pytest.mark.parametrize("engine", ["em", "vb", "mcem"])
def test_a_table_of_one_count_is_searched(engine):
    """Most rows and columns are empty; of none at all a model can't be declared."""
    counts = np.zeros((3, 4), dtype=int)
    counts[1, 2] = 1
    with pytest.warns(nz.NmfZooWarning, match="no positive observed cell"):
        model = nz.gap(counts, 2) if engine == "mcem" else nz.gamma_nmf(counts, 2)
    found = nz.fit(engine=engine, search=nz.Search(fits=9), max_iter=5, tol=0, model=model, **RUN)
    assert np.all(np.isfinite(search_of(found)["objective"]))


def test_powers_and_chains_are_searched():
    rng = np.random.default_rng(1)
    powers = nz.fit(engine="em", search="auto", model=nz.is_nmf(rng.gamma(1.0, size=(8, 12)), 2), **RUN)
    assert search_of(powers).attrs["fits"] == nz.Search().fits
    chains = nz.hmm_nmf(rng.poisson(3.0, (6, 20)), 2)
    found = nz.fit(engine="hmm_exact", search=nz.Search(fits=7), model=chains, **RUN)
    assert search_of(found).attrs["fits"] == 7


def test_a_search_goes_on_from_its_checkpoint(model, tmp_path):
    run = {"engine": "vb", "search": nz.Search(fits=9), "model": model, **RUN}
    whole, steps = nz.fit(**run), []

    def stop(step):
        steps.append(step.number)
        return len(steps) > 300

    early = nz.fit(checkpoint=tmp_path / "c", on_step=stop, **run)
    assert str(early.attrs["status"]).startswith("stopped by on_step")
    again = nz.fit(checkpoint=tmp_path / "c", **run)
    for name in ("posterior", "search"):
        xr.testing.assert_equal(_compat.group(whole, name), _compat.group(again, name))
    with pytest.raises(InputError, match=r"search\.fits was 9, now 10"):
        nz.fit(**run | {"checkpoint": tmp_path / "c", "search": nz.Search(fits=10)})


def test_a_longer_search_goes_on_from_the_checkpoint_of_a_shorter_one(model, tmp_path):
    """Some of its fits then begin elsewhere than they did in the shorter one."""
    run = {"engine": "vb", "search": nz.Search(fits=9), "tol": 0, "model": model, **RUN}
    nz.fit(checkpoint=tmp_path / "c", max_iter=5, **run)
    longer, whole = nz.fit(checkpoint=tmp_path / "c", max_iter=30, **run), nz.fit(max_iter=30, **run)
    for name in ("posterior", "search", "fit"):
        xr.testing.assert_equal(_compat.group(whole, name), _compat.group(longer, name))


@pytest.mark.parametrize(("most", "done"), [(1, 4), (7, 4), (25, 24), (79, 76), (80, 80), (159, 80), (200, 160)])
def test_iterations_are_a_budget(most, done, model):
    """Rounds of four fits of 20, too short to be left: none is begun that could not be finished.

    Each fit of the first makes a step all the same.
    """
    found = nz.fit(engine="vb", search=nz.Search(iterations=most), tol=0, max_iter=20, model=model, **RUN)
    assert search_of(found).attrs["iterations"] == done


def test_time_that_is_over_ends_the_search(model):
    found = nz.fit(engine="vb", search=nz.Search(fits=10**6), max_seconds=0.5, model=model, **RUN)
    assert 0 < search_of(found).attrs["fits"] < 10**6
    assert str(found.attrs["status"]).startswith("max_seconds")


# -- the best goes on ------------------------------------------------------------------------------------------------

SHORT = {"engine": "em", "max_iter": 12, "tol": 1e-8}


def objective(found):
    return _compat.group(found, "fit")["objective"].isel(chain=0).to_numpy()


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_the_best_goes_on_where_it_stopped_at_its_last_iteration(engine, model):
    """As the same fit with a larger max_iter; not where it had converged, was to make all iterations, or may not."""
    run = {"model": model, **RUN, **SHORT, "engine": engine}
    ended, found = (nz.fit(search=nz.Search(fits=5, goes_on=is_to), **run) for is_to in (False, True))
    assert len(objective(ended)) == 12
    assert len(objective(found)) == 24
    np.testing.assert_array_equal(objective(found)[:12], objective(ended))
    gained = objective(found)[-1] - objective(ended)[-1]
    assert gained > 0 if engine == "vb" else gained < 0
    best, before = (search_of(one) for one in (found, ended))
    assert best["objective"][0] == objective(found)[-1]
    xr.testing.assert_equal(best["found"], before["found"])
    assert best.attrs["iterations"] == before.attrs["iterations"] + 12
    assert best.attrs["fits"] == before.attrs["fits"] == 5
    whole = nz.fit(search=nz.Search(fits=1, goes_on=False), **run | {"max_iter": 24})
    once = nz.fit(search=nz.Search(fits=1), **run)
    for name in ("posterior", "fit"):
        xr.testing.assert_equal(_compat.group(once, name), _compat.group(whole, name))
    for other in ({"tol": 1e3}, {"tol": 0}):
        assert len(objective(nz.fit(search=nz.Search(fits=5), **run | other))) <= 12


def test_with_iterations_it_has_those_that_are_left(model):
    run = {"model": model, **RUN, **SHORT}
    for iterations, length in ((48, 12), (53, 12), (60, 24), (65, 24)):
        found = nz.fit(search=nz.Search(fits=4, iterations=iterations), **run)
        assert len(objective(found)) == length


def test_it_goes_on_from_a_checkpoint(model, tmp_path):
    run = {"model": model, "search": nz.Search(fits=5), **RUN, **SHORT}
    whole = nz.fit(**run)
    early = nz.fit(checkpoint=tmp_path / "c", on_step=lambda step: step.number > 15, **run)
    assert early.attrs["status"].startswith(BY_ON_STEP)
    assert len(objective(early)) == 16
    np.testing.assert_array_equal(objective(early), objective(whole)[:16])
    assert search_of(early).attrs["replay"] == ""
    again = nz.fit(checkpoint=tmp_path / "c", **run)
    for name in ("posterior", "search", "fit"):
        xr.testing.assert_equal(_compat.group(again, name), _compat.group(whole, name))


def test_the_time_that_is_over_leaves_it_out(model):
    """And the search that does the same work leaves it out as well."""
    run = {"model": model, **RUN, **SHORT}
    ended = nz.fit(search=nz.Search(fits=5, goes_on=False), **run)

    def wait(step):
        if step.number > 12:
            time.sleep(2.5)

    cut = nz.fit(search=nz.Search(fits=5), max_seconds=2.0, on_step=wait, **run)
    assert cut.attrs["status"] == OUT_OF_TIME
    assert (
        search_of(cut).attrs["replay"] == "nz.Search(fits=5, starts=None, iterations=None, enough=None, goes_on=False)"
    )
    for name in ("posterior", "search"):
        xr.testing.assert_equal(_compat.group(cut, name), _compat.group(ended, name))


def test_what_was_done_can_be_given_again(model):
    run = {"engine": "vb", "model": model, **RUN}
    found = nz.fit(search=nz.Search(fits=9, starts=3), **run)
    assert search_of(found).attrs["replay"] == f"nz.{nz.Search(fits=9, starts=3)}"
    whole = search_of(nz.fit(search=nz.Search(fits=40, iterations=1_000), **run))
    again = search_of(nz.fit(search=eval(whole.attrs["replay"], {"nz": nz}), **run))
    xr.testing.assert_equal(again, whole)
    assert again.attrs["iterations"] == whole.attrs["iterations"]
    assert again.attrs["fits"] < 40


def test_the_group_is_saved(model, tmp_path):
    found = nz.fit(engine="vb", search=nz.Search(fits=5), model=model, **RUN)
    for name in ("x.nc", "x.zarr"):
        if name.endswith("zarr"):
            pytest.importorskip("zarr")
        nz.save(found, tmp_path / name)
        xr.testing.assert_equal(search_of(nz.load(tmp_path / name)), search_of(found))


def test_restarts_are_the_starts_of_a_search(model):
    found = nz.fit(engine="vb", restarts=7, search="auto", model=model, **RUN)
    assert search_of(found).attrs["fits"] == 21


def test_nothing_is_searched_where_nothing_is_left_to_choose(model):
    known = pm.do(model, {"W": np.ones((30, 5))})
    for asked in (
        {"model": known},
        {"model": model, "engine": nz.EM(start="nndsvd")},
        {"model": model, "initvals": {}},
    ):
        found = nz.fit(search="auto", max_iter=5, **asked, **RUN)
        assert "search" not in _compat.group_names(found)


def partly_known(counts, **options):
    """Two components that the simulation had, of W or of H, beside three that are unknown."""
    rng = np.random.default_rng(5)
    known = rng.gamma(1.0, size=(len(counts), 2))
    return known, nz.gamma_nmf(counts, 5, known=known, **options)


def test_known_components_stay_where_they_are_and_others_are_searched(counts):
    known, model = partly_known(counts)
    structure = nz.read(model)
    best = []
    for seed in range(4):
        one = random_components(seed, 5, *counts.shape)
        best.append(
            proposals.point_of(structure, one.replaced(np.arange(2), SearchComponents(known, one.Ht[:, :2])), {})
        )
    for number in range(len(proposals.PROPOSALS)):
        way, start = proposals.next_start(structure, best, number, seed_key(3))
        np.testing.assert_array_equal(start["W"][:, :2], known, err_msg=way)
        np.testing.assert_array_equal(start["H"][:2], best[0]["H"][:2], err_msg=way)
        assert not np.array_equal(start["W"][:, 2:], best[0]["W"][:, 2:]), way
    found = nz.fit(engine="vb", search=nz.Search(fits=9), model=model, **RUN)
    assert set(search_of(found)["way"].to_numpy()) <= {"random", *proposals.PROPOSALS}
    alone = nz.fit(engine="vb", search=None, model=model, **RUN)
    assert _compat.group(found, "fit")["objective"].max() >= _compat.group(alone, "fit")["objective"].max()
    np.testing.assert_array_equal(_compat.group(found, "posterior")["W"][0, 0, :, :2], known)


def test_chains_beside_known_components_begin_where_a_search_ends(counts):
    known, model = partly_known(counts)
    run = {"draws": 2, "tune": 10, "chains": 2, "engine": "gibbs", "model": model}
    found = nz.sample(**run, **RUN)
    assert search_of(found).attrs["engine"] == "vb"
    np.testing.assert_array_equal(_compat.group(found, "posterior")["W"][0, 0, :, :2], known)


REFITS = {
    "sparse activations": lambda x, W: nz.gamma_nmf(x, 2, known=W, alpha_h=0.3),
    "powers": lambda x, W: nz.is_nmf(x + 0.5, 2, known=W),
}


@pytest.mark.parametrize("name", REFITS)
def test_activations_with_more_than_one_optimum_are_fitted_from_several_starts(name, counts):
    known, _ = partly_known(counts)
    model = REFITS[name](counts, known)
    engine = {"engine": nz.EM(mode="density") if name == "powers" else nz.VB()}
    found = nz.fit(model=model, **engine, **RUN)
    assert search_of(found).attrs["fits"] == options.REFITS
    assert set(search_of(found)["way"].to_numpy()) == {"random"}
    assert "search" not in _compat.group_names(nz.fit(model=model, restarts=2, **engine, **RUN))


def test_which_objectives_have_one_optimum(counts):
    known = np.random.default_rng(5).gamma(1.0, size=(len(counts), 2))
    H = np.random.default_rng(6).gamma(1.0, size=(3, counts.shape[1]))

    def linear(x):
        """Component 0 is known in W, component 1 in H."""
        with pm.Model() as model:
            W = pm.Deterministic("W", pt.concatenate([known[:, :1], pm.HalfFlat("V", shape=(len(x), 1))], axis=1))
            U = pm.Deterministic("U", pt.concatenate([pm.HalfFlat("G", shape=(1, x.shape[1])), H[:1]], axis=0))
            pm.Poisson("X", W @ U, observed=x)
        return model

    told = {
        "flat": (nz.poisson_nmf(counts, 2, known=known), "density", True),
        "exponential": (nz.gamma_nmf(counts, 2, known=known), "density", True),
        "sparse": (nz.gamma_nmf(counts, 2, known=known, alpha_h=0.3), "density", False),
        "their logarithms": (nz.gamma_nmf(counts, 2, known=known, alpha_h=0.3), "log", True),
        "normal": (nz.normal_nmf(counts, 2, known=known), "density", True),
        "unknown shape": (nz.gamma_nmf(counts, 2, known=known, alpha_h=nz.free()), "density", False),
        "powers": (nz.is_nmf(counts + 0.5, 2, known=known), "density", False),
        "beside new ones": (nz.gamma_nmf(counts, 3, known=known), "density", False),
        "each known in one": (linear(counts), "density", True),
    }
    assert {name: options.is_told(nz.read(model), mode) for name, (model, mode, _) in told.items()} == {
        name: expected for name, (*_, expected) in told.items()
    }


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"search": "x"}, r"search: got 'x'; expected None, 'auto' or nz.Search\(...\)"),
        ({"search": nz.Search(), "initvals": {}}, "initvals say where the fit begins"),
        ({"search": nz.Search(), "engine": nz.VB(start="kmeans++")}, "start='kmeans\\+\\+' says where"),
        ({"search": nz.Search(), "restarts": 3}, r"restarts: got 3 with Search\(.*expected 1"),
    ],
)
def test_what_a_fit_refuses(asked, text, model):
    with pytest.raises(InputError, match=text):
        nz.fit(model=model, **asked, **RUN)


@pytest.mark.parametrize(
    ("asked", "text"),
    [({"fits": 0}, "fits: got 0"), ({"fits": 2, "starts": 3}, "starts: got 3"), ({"fits": 1.5}, "fits: got 1.5")],
)
def test_what_a_search_refuses(asked, text):
    with pytest.raises(InputError, match=text):
        nz.Search(**asked)


# -- what is said of it ------------------------------------------------------------------------------------------


def table_of(found, objective):
    each = {"found": ("optimum", found), "objective": ("optimum", objective)}
    return xr.Dataset(each, attrs={"fits": sum(found)})


@pytest.mark.parametrize(
    ("found", "objective", "text", "is_warning"),
    [
        ([5, 11], [-3.0, -143.0], "found by 5 of 16 fits; the next best objective is 140 worse", False),
        ([16], [-3.0], "found by 16 of 16 fits.", False),
        ([1, 15], [-3.0, -143.0], "only one fit of the search came to its optimum", True),
    ],
)
def test_the_verdict_on_a_fit(found, objective, text, is_warning, model):
    result = nz.fit(engine="vb", model=model, **RUN)
    searched = _compat.with_groups(result, {"search": table_of(found, objective)})
    verdict = verdict_on(searched)
    assert text in verdict.text
    assert verdict.is_warning == is_warning


def test_the_verdict_on_chains(model):
    """Chains that began together agree within the mode that they began in: the verdict says what else was found."""
    result = nz.sample(400, tune=200, chains=2, start=nz.Search(fits=6), model=model, **RUN)
    assert result.attrs["start"] == "search"
    searched = _compat.with_groups(result, {"search": table_of([5, 11], [-3.0, -143.0])})
    verdict = verdict_on(searched)
    assert "the mode that the search found 5 of 16 times; the next best lies 140 nats below." in verdict.text


# -- chains ------------------------------------------------------------------------------------------------------


def test_chains_start_around_the_best_optimum(model):
    """In one mode: before any warm-up the chains agree better than those from random starts."""
    run = {"draws": 50, "tune": 0, "chains": 4, "model": model, **RUN}
    apart = nz.sample(start="random", **run)
    near = nz.sample(start=nz.Search(fits=6), **run)
    table = search_of(near)
    assert (table.attrs["engine"], table.attrs["fits"]) == ("vb", 6)
    firsts = [_compat.group(idata, "sample_stats")["lp"].isel(draw=0).to_numpy() for idata in (near, apart)]
    assert np.ptp(firsts[0]) < np.ptp(firsts[1])
    assert len(np.unique(firsts[0])) == 4  # dispersed, not one point
    again = nz.sample(start=nz.Search(fits=6), cores=1, **run)
    xr.testing.assert_equal(_compat.group(near, "posterior"), _compat.group(again, "posterior"))


def test_a_store_holds_the_search(model, tmp_path):
    pytest.importorskip("zarr")
    found = nz.sample(10, tune=5, chains=2, start=nz.Search(fits=4), store=tmp_path / "x.zarr", model=model, **RUN)
    xr.testing.assert_equal(search_of(nz.load(tmp_path / "x.zarr")), search_of(found))


def test_a_run_with_a_search_goes_on_from_its_checkpoint(model, tmp_path):
    run = {"tune": 10, "chains": 2, "start": nz.Search(fits=4), "model": model, **RUN}
    nz.sample(10, checkpoint=tmp_path / "c", **run)
    longer = nz.sample(20, checkpoint=tmp_path / "c", **run)
    xr.testing.assert_equal(_compat.group(longer, "posterior"), _compat.group(nz.sample(20, **run), "posterior"))
    with pytest.raises(InputError, match="search"):
        nz.sample(20, checkpoint=tmp_path / "c", **run | {"start": "random"})


def test_a_run_that_goes_on_does_not_search_again(model, tmp_path, monkeypatch):
    run = {"tune": 10, "chains": 3, "model": model, **RUN}
    once = nz.sample(10, checkpoint=tmp_path / "c", **run)
    monkeypatch.delattr(starts, "run_search")
    again = nz.sample(10, checkpoint=tmp_path / "c", **run)
    xr.testing.assert_equal(_compat.group(once, "posterior"), _compat.group(again, "posterior"))
    xr.testing.assert_equal(search_of(once), search_of(again))
    assert search_of(again).attrs["engine"] == search_of(once).attrs["engine"] == "vb"


@pytest.mark.parametrize("asked", [None, "auto"])
def test_ctrl_c_before_the_first_iteration(asked, model, monkeypatch):
    """It found no fit to go on with: the call ends as it does wherever nothing is done yet."""

    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("nmf_zoo.search.run.fit_once", stopped)
    monkeypatch.setattr("nmf_zoo.runtime.driver.fit_once", stopped)
    with pytest.raises(KeyboardInterrupt, match="stopped before the first iteration"):
        nz.fit(search=asked, model=model, **RUN)
    if asked:
        with pytest.raises(KeyboardInterrupt, match="stopped before the first iteration"):
            nz.sample(2, tune=2, chains=1, model=model, **RUN)


# -- by default --------------------------------------------------------------------------------------------------


def known(model):
    return pm.do(model, {"W": np.ones((30, 5))})


def searches(call, **arguments):
    return "search" in _compat.group_names(call(**{**RUN, **arguments}))


@pytest.mark.parametrize("engine", ["em", "vb"])
def test_a_fit_searches(engine, model):
    assert searches(nz.fit, engine=engine, max_iter=2, model=model)
    assert not searches(nz.fit, engine=engine, max_iter=2, search=None, model=model)
    assert not searches(nz.fit, engine=engine, max_iter=2, initvals={"W": np.ones((30, 5))}, model=model)
    assert not searches(nz.fit, engine=engine, max_iter=2, model=known(model))


def test_a_noisy_objective_is_searched_when_told_to(counts):
    run = {"engine": "mcem", "max_iter": 2, "model": nz.gap(counts, 2)}
    assert not searches(nz.fit, **run)
    assert searches(nz.fit, search=nz.Search(fits=2), **run)


def test_chains_begin_where_a_search_ends(model):
    """Long: it searches."""
    run = {"draws": 2, "chains": 2, "model": model}
    assert searches(nz.sample, tune=2, **run)
    assert not searches(nz.sample, tune=0, **run)
    assert not searches(nz.sample, tune=2, start="random", **run)
    assert not searches(nz.sample, tune=2, initvals={"W": np.ones((30, 5))}, **run)
    assert not searches(nz.sample, tune=2, **run | {"model": known(model)})
    assert not searches(nz.sample, engine=nz.SMC(particles=10), **run)


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("asked", [{}, {"start": "search"}])
def test_nuts_begins_there_when_told_to(asked):
    run = {"engine": nz.NUTS(sampler="pymc"), "draws": 4, "tune": 4, "chains": 1}
    assert searches(nz.sample, model=nz.gamma_nmf([[1, 2], [3, 4]], 1), **run, **asked) == bool(asked)


@pytest.mark.parametrize(("declare", "most"), [(None, 300), (nz.negative_binomial_nmf, 50)])
def test_the_search_is_no_longer_than_its_budget(declare, most, model):
    """So many for 50 sweeps of warm-up: fewer where a sweep is short beside them, as with an unknown alpha."""
    declared = model if declare is None else declare(np.random.default_rng(1).poisson(3.0, (8, 12)), 2)
    found = nz.sample(2, tune=50, chains=1, model=declared, **RUN)
    assert most / 2 < search_of(found).attrs["iterations"] <= most


@pytest.mark.parametrize(
    ("declare", "shape", "rank", "iterations", "fits"),
    [
        (nz.gamma_nmf, (6, 8), 2, 6, 16),
        (nz.gamma_nmf, (600, 700), 1, 27, 256),
        (nz.gamma_nmf, (2048, 1024), 2, 65, 256),
        (nz.is_nmf, (6, 8), 2, 6, 16),
        (nz.is_nmf, (600, 700), 2, 16, 256),
    ],
    ids=["small", "large", "large, dense, with more products", "small powers", "large powers"],
)
def test_the_budget_by_the_size_of_the_table(declare, shape, rank, iterations, fits):
    """Of many dense counts an iteration is matrix products, and a sweep goes cell by cell."""
    structure = read(declare(np.ones(shape), rank))
    engine, _ = resolve_engine("gibbs", "sample", structure)
    assert starts.chain_search("auto", None, engine, structure, 100) == nz.Search(
        fits=fits, iterations=100 * iterations, enough=starts.ENOUGH
    )


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"start": "nndsvd"}, r"start: got 'nndsvd'; expected 'auto', 'random', 'search' or nz.Search\(...\)"),
        ({"start": np.ones(2)}, r"start: got array\(\[1., 1.\]\); expected 'auto', 'random', 'search' or nz.Search"),
        (
            {"start": np.ones(2), "engine": "smc"},
            r"start: got array\(\[1., 1.\]\) with smc; expected 'auto' or 'random'",
        ),
        ({"start": "search", "initvals": {}}, "start: got .*initvals say where"),
    ],
)
def test_what_a_sampler_refuses(asked, text, model):
    with pytest.raises(InputError, match=text):
        nz.sample(model=model, **asked, **RUN)


@pytest.mark.filterwarnings("ignore:(rank. got 2, above|X. 2 features have no)")
def test_a_search_among_draws_that_are_nearly_infinite():
    """Inverse-gamma draws of shape 1e-3 reach 1e300: their means, totals and products are made without a warning."""
    rng = np.random.default_rng(793)
    X, mask = rng.gamma(1.0, 1.0, (15, 1)), rng.random((15, 1)) >= 0.2
    model = nz.is_nmf(X, 2, mask=mask, alpha_w=1e-3, beta_w=1.0)
    engine = nz.VB(accelerate=None)
    found = nz.fit(engine=engine, model=model, max_iter=2, tol=1e-9, restarts=3, draws=1, random_seed=30, quiet=True)
    assert np.isfinite(_compat.group(found, "fit")["objective"]).all()
