"""EM of exponential data: options, verdicts, zeros, missing cells, threads, starts, and runs through the verbs."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import em as em_of_counts
from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.powers import em
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.inference.shared.start import start_factors
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime import checkpoint as files
from nmf_zoo.runtime.checkpoint import open_checkpoint
from nmf_zoo.runtime.driver import FitRun, run_restarts
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Cells, Imputed
from tests.registered import STARTS
from tests.runs import fit, largest_loss
from tests.structures import gamma, inverse_gamma, model, unknown

RNG = np.random.default_rng(6)
F, N, K = 9, 12, 2
X = RNG.exponential(RNG.gamma(1.0, 1.0, (F, K)) @ RNG.gamma(1.0, 1.0, (K, N)))
MASK = RNG.random((F, N)) < 0.75
H_PRIOR = inverse_gamma(1.0, 1.0)
RULES = ("monotone", "heuristic", "sage")


def powers(x=X, prior_w=None, prior_h=None, rank=K, **rest):
    return model(x, rank, prior_w, prior_h, kind="exponential", **rest)


def test_the_engine_of_exponential_data_is_found_by_its_name():
    assert resolve_engine("em", "fit", powers())[0] is em.ENGINE
    assert resolve_engine("em", "fit", model(X, K, None, None))[0] is not em.ENGINE


def test_the_option_is_checked():
    with pytest.raises(ValueError, match=r"update: got 'fast'; expected one of \['auto', 'monotone'"):
        EM(update="fast")


def test_other_likelihoods_take_no_update():
    assert em_of_counts.supports(model(X, K, None, None), EM())
    assert (
        "update='sage' is for exponential data"
        in em_of_counts.supports(model(X, K, None, None), EM(update="sage")).reason
    )
    assert "an inverse-gamma prior" in em_of_counts.supports(model(X, K, None, H_PRIOR), EM()).reason


FREE = unknown("b", "flat")
NOTHING_AT_1 = np.where(np.arange(F)[:, None] == 1, 0.0, np.ones((F, K)))
REFUSED = {
    "no data": (dataclasses.replace(powers(), data=None), EM(), "nothing is observed"),
    "counts": (model(X, K, None, None), EM(), "X is poisson"),
    "free scale": (powers(prior_h=inverse_gamma(1.0, FREE)), EM(), "b is unknown.*no maximum"),
    "frozen": (powers(), EM(inner=2), "inner="),
    "single precision": (powers(), EM(precision="float32"), "precision="),
    "gamma below 1": (powers(prior_h=gamma(0.5, 1.0)), EM(), r'shape 0.5 < 1.*mode="log"'),
    "runaway": (powers(prior_h=gamma(1.0, 1.0)), EM(), "W has no prior, so it can grow while H shrinks"),
    "runaway of H": (powers(prior_w=gamma(1.0, 1.0)), EM(), "H has no prior, so it can grow while W shrinks"),
    "silence": (powers(np.zeros((F, N)), prior_h=H_PRIOR), EM(), "all power is 0, and W has no prior"),
    "too small": (powers(1e-300 * X), EM(), r"largest X is .*e-\d+, and EM takes 1e-120 to 1e\+120: change its unit"),
    "too large": (powers(1e300 * X), EM(), "the largest X is .*, and EM takes"),
    "known zeros": (powers(prior_w=NOTHING_AT_1, prior_h=H_PRIOR), EM(), "W is all 0 at feature 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case):
    structure, options, message = REFUSED[case]
    verdict = em.supports(structure, options)
    assert not verdict
    assert re.search(message, verdict.reason)
    assert "\n" not in verdict.reason


HIDDEN = np.arange(F)[:, None] != np.ones((1, N))
ACCEPTED = {
    "free": (powers(), EM()),
    "refreshed": (powers(), EM(inner=None)),
    "inverse gammas": (powers(prior_w=inverse_gamma(0.1, 1.0), prior_h=H_PRIOR), EM(update="sage")),
    "gamma": (powers(prior_h=gamma(2.0, 1.0)), EM()),
    "exponential priors": (powers(prior_w=gamma(1.0, 1.0), prior_h=gamma(1.0, 1.0)), EM()),
    "gamma below 1, logarithms": (powers(prior_h=gamma(0.5, 1.0)), EM(mode="log")),
    "silence with priors": (powers(np.zeros((F, N)), inverse_gamma(1.0, 1.0), H_PRIOR), EM()),
    "silence over a background": (powers(np.zeros((F, N)), background=np.ones((F, 1))), EM()),
    "known zeros, not observed": (powers(prior_w=NOTHING_AT_1, prior_h=H_PRIOR, mask=HIDDEN), EM()),
    "known zeros over a background": (powers(prior_w=NOTHING_AT_1, background=np.ones((F, 1))), EM()),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted_and_run(case):
    structure, options = ACCEPTED[case]
    assert em.supports(structure, options)
    _, state, info, objective = fit(em.ENGINE, structure, options, 30)
    assert np.all(np.isfinite(objective))
    assert largest_loss(objective, maximise=False) <= 1e-12
    assert np.isfinite(info.residual)
    np.testing.assert_allclose(-objective[-1], _log_density(structure, state, options), rtol=1e-9)


def _log_density(structure, state, options):
    factors = (structure.W, state.Wt), (structure.H, state.Ht)
    in_logs = options.mode == "log"
    logs = sum(np.log(array).sum() for factor, array in factors if in_logs and hasattr(factor.prior, "shape"))
    with np.errstate(all="ignore"):  # a mean of 0 where nothing was observed
        return structure.log_joint({"W": state.Wt.T, "H": state.Ht.T}) + logs


@pytest.mark.parametrize("rule", RULES)
def test_zeros_are_floored_where_a_factor_is_free(rule):
    """Isolated zeros, a silent frame and a silent frequency: the objective is that of the floored powers."""
    x = X.copy()
    x[3, 4], x[:, 5], x[2] = 0.0, 0.0, 0.0
    _, state, _, objective = fit(em.ENGINE, powers(x), EM(update=rule), 200)
    assert np.all(np.isfinite(objective))
    assert largest_loss(objective, maximise=False) <= 1e-12
    raised = powers(np.maximum(x, em.POWER_FLOOR * x.mean()))
    np.testing.assert_allclose(-objective[-1], raised.log_joint({"W": state.Wt.T, "H": state.Ht.T}), rtol=1e-9)


def test_zeros_stay_zeros_where_the_density_is_bounded():
    x = X.copy()
    x[2], x[:, 5] = 0.0, 0.0
    for structure in (powers(x, inverse_gamma(1.0, 1.0), H_PRIOR), powers(x, background=np.ones((F, N)))):
        _, state, _, objective = fit(em.ENGINE, structure, EM(), 100)
        np.testing.assert_allclose(-objective[-1], structure.log_joint({"W": state.Wt.T, "H": state.Ht.T}), rtol=1e-9)
    silent = np.where(np.arange(N) == 5, 0.0, 1.0) * np.ones((F, N))  # a background but in one frame
    problem = em.prepare(powers(x, background=silent), EM(), Workers())
    assert problem.spectra.power[5].min() > 0.0
    assert problem.spectra.power[6, 2] == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_missing_cells_count_for_nothing(rule):
    """A mask, a list of cells and other numbers under the mask are one; a full mask is none."""
    options = EM(update=rule)
    rows, cols = np.nonzero(MASK)
    listed = Cells(rows=rows, cols=cols, values=X[MASK], shape=(F, N), is_complete=False)
    runs = [powers(mask=MASK, prior_h=H_PRIOR), powers(data=listed, prior_h=H_PRIOR)]
    runs.append(powers(np.where(MASK, X, 77.0), mask=MASK, prior_h=H_PRIOR))
    first, *others = [fit(em.ENGINE, structure, options, 20)[3] for structure in runs]
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-12)
    whole = [
        fit(em.ENGINE, powers(mask=mask, prior_h=H_PRIOR), options, 20)[3] for mask in (None, np.ones((F, N), bool))
    ]
    np.testing.assert_allclose(whole[0], whole[1], rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_an_unseen_frame_has_the_mode_of_its_prior_and_a_free_profile_stays(rule):
    mask = MASK.copy()
    mask[:, 3], mask[4] = False, False
    structure = powers(mask=mask, prior_h=inverse_gamma(3.0, 2.0))
    start = {"W": RNG.random((F, K)) + 0.5, "H": RNG.random((K, N)) + 0.5}
    _, state, _, _ = fit(em.ENGINE, structure, EM(update=rule, accelerate=None), 400, start=start)
    np.testing.assert_allclose(state.Ht[3], 2.0 / 4.0, rtol=1e-6)
    np.testing.assert_array_equal(state.Wt[:, 4], start["W"][4])


@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e12])
@pytest.mark.parametrize("method", STARTS)
def test_starts_have_the_scale_of_the_powers_and_the_fit_does_not_depend_on_it(method, scale):
    structure = powers(scale * X, mask=MASK)
    W, Ht = start_factors(structure, seed_key(0), {}, method)
    ratio = weigh(structure).total(W, Ht) / structure.data.observed_values.sum()
    assert ratio == pytest.approx(1.0) if method != "random" else 0.2 < ratio < 5.0
    *_, objective = fit(em.ENGINE, structure, EM(start=method), 20)
    *_, plain = fit(em.ENGINE, powers(X, mask=MASK), EM(start=method), 20)
    np.testing.assert_allclose(objective - MASK.sum() * np.log(scale), plain, rtol=1e-6)


class InPieces(Workers):
    """Chunks in any order."""

    def map(self, work, *items):
        tasks = list(zip(*items, strict=False))
        found = {task: work(*tasks[task]) for task in reversed(range(len(tasks)))}
        return [found[task] for task in range(len(tasks))]


LONG = np.tile(MASK, 7)  # more than a few blocks of frames
REST = {"mask": LONG, "background": np.full(LONG.shape, 0.1)}


@pytest.mark.parametrize("rest", [{}, REST], ids=["plain", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_the_bits_do_not_depend_on_the_threads(rule, rest, monkeypatch):
    monkeypatch.setattr(em, "CHUNK_CELLS", 32)
    structure = powers(np.tile(X, 7), inverse_gamma(1.0, 0.1), H_PRIOR, **rest)
    options = EM(update=rule)
    runs = [fit(em.ENGINE, structure, options, 12, workers=workers) for workers in (Workers(), Workers(3), InPieces())]
    assert len(runs[0][0].bounds) > 3
    for problem, state, _, objective in runs[1:]:
        np.testing.assert_array_equal(objective, runs[0][3])
        np.testing.assert_array_equal(state.Wt, runs[0][1].Wt)
        np.testing.assert_array_equal(state.Ht, runs[0][1].Ht)
        problem.workers.close()


@pytest.mark.parametrize(("n_frames", "n_frequencies"), [(0, 5), (1, 1), (3, 9), (4, 9), (4001, 513), (30, 1 << 20)])
def test_chunks_cover_all_frames_once(n_frames, n_frequencies):
    bounds = em.chunk_bounds(n_frames, n_frequencies)
    assert bounds[0] == 0
    assert bounds[-1] == n_frames
    assert np.all(np.diff(bounds) >= (n_frames > 0))


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_is_the_same_run(rule, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "EVERY", 0.0)
    structure, options = powers(prior_h=H_PRIOR), EM(update=rule)

    def run(length, checkpoint=None):
        asked = FitRun(max_iter=length, tol=0.0, draws=1, cores=1, progressbar=False)
        return run_restarts(em.ENGINE, structure, options, asked, seed_key(2), [{}, {}], checkpoint)[0]

    for length in (4, 11):
        saved = open_checkpoint(tmp_path / "run", {"model": "powers"}, 2, True)
        resumed = run(length, saved)
        saved.close()
    for one, other in zip(resumed, run(11), strict=True):
        np.testing.assert_array_equal(one.objective, other.objective)
        np.testing.assert_array_equal(one.values["W"], other.values["W"])


def test_finish_gives_the_models_variables_in_its_orientation_and_missing_cells_their_mean():
    structure = powers(mask=MASK, prior_h=H_PRIOR)
    rows, cols = np.nonzero(~MASK)
    turned = dataclasses.replace(
        structure,
        H=dataclasses.replace(structure.H, transposed=True),
        imputed=Imputed(name="X_unobserved", rows=rows, cols=cols),
    )
    problem, state, _, _ = fit(em.ENGINE, turned, EM(), 5)
    values, parameters = em.finish(problem, state, seed_key(0), 1)
    assert parameters == {}
    assert values["W"].shape == (1, F, K)
    assert values["H"].shape == (1, N, K)
    np.testing.assert_allclose(values["X_unobserved"][0], (values["W"][0] @ values["H"][0].T)[~MASK])


@pytest.mark.parametrize("rule", ["auto", *RULES])
def test_from_a_table_to_a_fit_with_its_labels(rule):
    frequencies, times = 31.25 * np.arange(F), 0.016 * np.arange(N)
    table = pd.DataFrame(X, index=frequencies, columns=times)
    declared = nz.is_nmf(table, K)
    idata = nz.fit(
        model=declared, engine=nz.EM(update=rule), max_iter=500, tol=1e-3, restarts=2, random_seed=1, quiet=True
    )
    posterior, found = (_compat.group(idata, name) for name in ("posterior", "fit"))
    np.testing.assert_array_equal(posterior["W"].coords["feature"], frequencies)
    np.testing.assert_array_equal(posterior["H"].coords["obs"], times)
    factors = {name: posterior[name].values[0, 0] for name in ("W", "H")}
    log_density = declared.compile_logp(jacobian=False, mode="FAST_COMPILE")
    values = {name + "_log__": np.log(array) for name, array in factors.items()}
    np.testing.assert_allclose(-np.nanmin(found["objective"].values[0]), log_density(values), rtol=1e-9)
    assert found["objective"].values[0, 0] > np.nanmin(found["objective"].values[0])


def test_wrong_options_are_refused_by_the_verb_in_one_line():
    with pytest.raises(Exception, match="precision= is for Poisson data") as caught:
        nz.fit(model=nz.is_nmf(X, K), engine=nz.EM(precision="float32"), quiet=True)
    assert "\n" not in str(caught.value)
