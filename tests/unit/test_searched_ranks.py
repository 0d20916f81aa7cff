"""The search for the best mode where ranks are judged: by the bound, the evidence's bound and held-out data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo._compat import group
from nmf_zoo.errors import InputError, NmfZooWarning, RunFailed
from nmf_zoo.inference.counts import vb
from nmf_zoo.workbench import bounds, holdout, rank_search
from nmf_zoo.workbench.rank_search import LEFT_OUT
from nmf_zoo.workbench.ranking import rank_table

RNG = np.random.default_rng(6)
X = RNG.poisson(RNG.gamma(0.5, 2.0, size=(12, 4)) @ RNG.gamma(0.5, 2.0, size=(4, 15)) * 3.0)
FEW = nz.Search(fits=6)
RUN = {"random_seed": 3, "quiet": True, "cores": 1}
RANKS = [2, 4]


def declare(rank, x=X, **options):
    return nz.gamma_nmf(x, rank, **{"alpha_w": 0.5, "alpha_h": 0.5, **options})


def select(search=FEW, declare=declare, ranks=RANKS, **options):
    return nz.select_rank(declare, ranks, search=search, **RUN | options)


@pytest.fixture(scope="module")
def found():
    return select()


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_the_table_has_the_fits_of_the_search(found):
    assert dict(found.sizes) == {"rank": 2, "restart": 6}
    assert "Search(fits=6" in found.attrs["search"]
    assert set(found["status"].values.ravel()) == {"converged"}
    np.testing.assert_allclose(found["combined"], found["estimate"].max("restart"))
    falling = -np.sort(-found["estimate"].values, axis=1)
    np.testing.assert_allclose(found["combined_error"], falling[:, 0] - falling[:, 1])


def test_the_first_fit_is_the_first_restart_so_that_none_ends_below(found):
    plain = select(search=None, restarts=1)
    np.testing.assert_array_equal(found["bound"][:, 0], plain["bound"][:, 0])


def test_later_fits_are_no_restarts(found):
    plain = select(search=None, restarts=6)["bound"].values
    assert not np.any(np.isin(found["bound"].values[1, 3:], plain[1]))


def test_bounds_are_those_of_the_engine_where_the_fits_end(found):
    """By the engine's own iterations, which are as good as the compiled loop of small tables."""
    by_engine = select(declare=lambda rank: declare(rank, sp.csr_array(X)))
    np.testing.assert_allclose(by_engine["bound"][0], found["bound"][0], rtol=1e-4)
    fitted = nz.fit(engine="vb", model=declare(2), tol=1e-6, max_iter=10_000, search=FEW, random_seed=3, quiet=True)
    best = float(group(fitted, "fit")["objective"].dropna("iteration")[0, -1])
    assert float(found["bound"].sel(rank=2).max()) == pytest.approx(best, rel=1e-4)


def test_auto_is_the_default_and_what_restarts_are():
    quick = nz.RankBound(max_iter=50)
    run = {"ranks": [2], "method": quick}
    assert nz.select_rank(declare, [2], method=quick, **RUN).sizes["restart"] == nz.Search().fits
    assert select("auto", restarts=2, **run).attrs["search"] == repr(nz.Search(fits=16, starts=2))
    assert select(None, **run).sizes["restart"] == 10
    learned = select("auto", declare=lambda rank: declare(rank, alpha_h=nz.free("all")), **run)
    assert learned.sizes["restart"] == 16  # free hyperparameters go along
    told = nz.RankBound(vb=nz.VB(start="nndsvd"), max_iter=50)
    assert select("auto", ranks=[2], method=told).attrs["search"] == ""


def test_threads_do_not_matter(found):
    again = select(cores=3)
    for name in ("bound", "estimate", "combined", "combined_error"):
        np.testing.assert_array_equal(again[name], found[name])


def test_a_search_that_was_killed_goes_on(tmp_path, found, monkeypatch):
    folder, judged, inner = tmp_path / "search", [], rank_search.RankSearch.judge
    nz.select_rank(declare, [2], search=FEW, checkpoint=folder, **RUN)
    monkeypatch.setattr(
        rank_search.RankSearch, "judge", lambda self, item, job: judged.append(item) or inner(self, item, job)
    )
    table = select(checkpoint=folder)
    assert judged == [(4, 0)]
    np.testing.assert_array_equal(table["estimate"], found["estimate"])
    with pytest.raises(InputError, match=r"checkpoint: got .*search was"):
        select(nz.Search(fits=5), checkpoint=folder)


def test_a_budget_that_ends_leaves_fits_out():
    table = select(nz.Search(fits=12, iterations=60), method=nz.RankBound(max_iter=30))
    left = table["status"].values == LEFT_OUT
    assert left[:, -1].all()
    assert not left[:, :4].any()
    assert np.isnan(table["bound"].values[left]).all()
    assert "gave no finite number" not in table.attrs["answer"]


def test_a_rank_that_fails_is_said_once(monkeypatch):
    inner = vb.prepare

    def prepare(structure, options, workers):
        if structure.rank == 4:
            raise RunFailed("no luck")
        return inner(structure, options, workers)

    monkeypatch.setattr(bounds, "engine_of", lambda structure: replace(vb.ENGINE, prepare=prepare))
    with pytest.warns(NmfZooWarning, match="1 of 12 runs failed; the first, restart 0 of rank 4: failed: no luck"):
        table = select(quiet=False, progressbar=False)
    assert table.attrs["best"] == 2
    assert "1 of 7 runs gave no finite number" in table.attrs["answer"]


def test_the_words_are_of_fits():
    def outcome(value):
        return rank_search.Outcome(value, 0.0, np.nan, 1.0, "converged")

    outcomes = {(rank, fit): outcome(-100.0 + rank - 9.0 * fit) for rank in (1, 2) for fit in (0, 1)}
    method = bounds.METHOD
    said = rank_table(outcomes, method, [1, 2], 2, True).attrs["answer"]
    assert "Only one fit of 2 came so high, 9.0 nats above the next: search longer." in said
    assert "Only one restart of 2" in rank_table(outcomes, method, [1, 2], 2).attrs["answer"]


# -- held-out data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [X, sp.csr_array(X)], ids=["cells", "thinned"])
@pytest.mark.parametrize("engine", ["vb", "em"])
def test_held_out_data_are_fitted_by_the_best_mode(engine, x, monkeypatch):
    """The objective of what draws are taken from is the best of all fits, whose first is the one without a search."""
    fits, inner = [], holdout._optimise
    monkeypatch.setattr(holdout, "_optimise", lambda *given: fits.append(inner(*given)) or fits[-1])
    taken, drawn = [], holdout._drawn
    monkeypatch.setattr(holdout, "_drawn", lambda *given: taken.append(given[3]) or drawn(*given))
    run = {"method": nz.Holdout(engine=engine, max_iter=40, draws=5), "restarts": 1}
    table = nz.select_rank(lambda rank: declare(rank, x, alpha_w=1.5, alpha_h=1.5), [3], search=FEW, **RUN | run)
    objectives = [fit.objective for fit in fits]
    best = int(np.argmax(objectives) if engine == "vb" else np.argmin(objectives))
    assert len(fits) == 6
    assert taken == [fits[best].fitted]
    fits.clear()
    plain = nz.select_rank(lambda rank: declare(rank, x, alpha_w=1.5, alpha_h=1.5), [3], search=None, **RUN | run)
    assert [fit.objective for fit in fits] == objectives[:1]
    assert dict(table.sizes) == dict(plain.sizes) == {"rank": 1, "restart": 1}


def test_samplers_of_held_out_data_have_no_search():
    run = {"method": nz.Holdout(engine="gibbs", draws=5, tune=5), "restarts": 1}
    assert select("auto", **run).attrs["search"] == ""
    with pytest.raises(InputError, match=r"^search: got Search\(.*; expected none, since 'gibbs' draws; leave it out$"):
        select(**run)


# -- the evidence ------------------------------------------------------------------------------------------------------


def test_the_bound_of_the_evidence_is_that_of_the_best_optimum():
    model = declare(4)
    found = nz.evidence(model, nz.Bound(search=FEW, draws=7), **RUN)
    plain = nz.evidence(model, nz.Bound(search=None, restarts=1), **RUN)
    assert found.attrs["log_evidence"] >= plain.attrs["log_evidence"]
    optima = group(found, "search")
    assert found.attrs["log_evidence"] == float(optima["objective"].max())
    assert optima.attrs["fits"] == 6
    assert group(found, "posterior")["W"].sizes["draw"] == 7
    fitted = nz.fit(engine="vb", model=model, max_iter=10_000, search=FEW, **RUN)
    assert found.attrs["log_evidence"] == float(group(fitted, "search")["objective"].max())
    assert "bound_of_restart" in group(plain, "sample_stats")


def test_the_bound_is_never_above_the_evidence():
    """By enumeration; however many optima were tried."""
    model = nz.gamma_nmf([[1, 0, 2], [2, 1, 0]], 2)
    exact = nz.evidence(model, "enumeration", **RUN).attrs["log_evidence"]
    assert nz.evidence(model, nz.Bound(search=nz.Search(fits=24)), **RUN).attrs["log_evidence"] < exact


def test_by_default_sixteen_fits():
    found, plain = (nz.evidence(declare(2), method, **RUN) for method in ("bound", nz.Bound(search=None)))
    assert group(found, "search").attrs["fits"] == 16
    assert group(plain, "sample_stats").sizes["restart"] == 10


# -- what is refused ---------------------------------------------------------------------------------------------------

BAD = {
    "word": (lambda: select("all"), r"^search: got 'all'; expected None, 'auto' or nz.Search"),
    "number": (lambda: select(16), r"^search: got 16; expected None, 'auto' or nz.Search"),
    "word of another method": (lambda: select("all", method="smc"), r"^search: got 'all'; expected None, 'auto' or nz"),
    "both": (lambda: select(restarts=3), r"^restarts: got 3 with Search.*; expected 1; say how many begin anew"),
    "method": (
        lambda: select(method="smc"),
        r"^search: got Search.*; expected none, since method 'smc' looks for",
    ),
    "start": (
        lambda: select(method=nz.RankBound(vb=nz.VB(start="nndsvd"))),
        r"^search: got Search.*; expected none, since start='nndsvd' says where the fit begins",
    ),
    "evidence": (
        lambda: nz.evidence(declare(2), nz.Bound(search="all"), **RUN),
        r"^search: got 'all'; expected None, 'auto' or nz.Search",
    ),
    "evidence, both": (
        lambda: nz.evidence(declare(2), nz.Bound(search=FEW, restarts=3), **RUN),
        r"^restarts: got 3 with Search",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case):
    call, message = BAD[case]
    with pytest.raises(InputError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)
