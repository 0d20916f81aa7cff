"""What a report says first: of every finding what it means, and what to do next."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import longer, of_fit, of_sampler, verdict_on
from nmf_zoo.diagnostics.invariants import Advice, run_size
from nmf_zoo.reports.convergence import check_convergence
from nmf_zoo.reports.source import Source
from tests.unit.test_convergence import draws_of, packed

GOOD = Advice("", False, "chains")


@pytest.mark.parametrize(
    ("advice", "text", "do"),
    [
        ([GOOD, Advice("", False, "components")], "agree on the reconstruction W H and on every component", "look at"),
        ([GOOD], "agree on the reconstruction W H.", "look at"),
        ([Advice("", True, "draws")], "too short", "run again for longer (draws=8)"),
        ([Advice("", True, "chains"), Advice("", True, "components")], "Do not rely on these results", "longer"),
        ([Advice("", True, "nearly")], "nearly agree", "longer"),
        ([Advice("", True, "effective")], "too few independent draws", "longer"),
        ([Advice("", True, "one chain")], "One chain alone", "run four chains"),
        ([Advice("", True, "divergences"), GOOD], "results may be off", "raise target_accept"),
        ([Advice("", True, "divergences"), Advice("", True, "chains")], "Do not rely on these results", "longer"),
        ([Advice("", True, "depth"), GOOD], "moved slowly", "another engine"),
        ([GOOD, Advice("", True, "lost components")], "explain the data by different ones", "smaller rank"),
        ([GOOD, Advice("", True, "components")], "single components are not settled", "before reading components"),
    ],
)
def test_samplers(advice, text, do):
    verdict = of_sampler(advice, " for longer (draws=8)")
    assert text in verdict.text
    assert do in verdict.do
    assert verdict.is_warning == any(one.is_warning for one in advice)


@pytest.mark.parametrize(
    ("about", "text"),
    [("iterations", "stopped before"), ("restarts", "different places"), ("one restart", "may not be the best")],
)
def test_fits(about, text):
    assert text in of_fit([Advice("", True, about)]).text
    assert "restarts agree" in of_fit([Advice("", False, "iterations")]).text


@pytest.mark.parametrize(("swapped", "is_warning"), [("chains", False), ("one chain after alignment", True)])
def test_from_draws(swapped, is_warning):
    idata = draws_of(swapped)
    found = check_convergence(Source(idata, None, None, "W", "H", None))
    assert found.verdict is not None
    assert found.verdict.is_warning == is_warning


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({}, "draws=1000"),
        ({"tune": 800, "thin": 1}, "draws=1000, tune=1600"),
        ({"tune": 1000, "thin": 4}, "draws=4000, tune=2000, thin=4"),
        ({"tune": 1000, "thin": 4, "discarded": 2000}, "draws=4000, tune=3000, thin=4"),
    ],
)
def test_what_to_ask_for(attrs, words):
    """Twice the sweeps, of which as few are kept as before."""
    assert longer(attrs, 500) == f" for longer ({words})"


@pytest.mark.parametrize("followed", ["lp", "mean"])
def test_few_draws_of_factors_beside_all_statistics(followed):
    """As the demo stores them: followed cells say whether the run was long enough, draws of W what components are."""
    idata = draws_of("chains")
    shape = _compat.group(idata, "posterior")["W"].shape[:2]
    values = np.random.default_rng(5).normal(size=shape)
    stats = {"mean": values[..., None]} if followed == "mean" else {"lp": values}
    posterior = _compat.group(idata, "posterior").isel(draw=slice(None, None, 10))
    W, H = (posterior[name].to_numpy() for name in ("W", "H"))
    of_all = _compat.group(packed(*(np.repeat(factor, 10, axis=1) for factor in (W, H)), **stats), "sample_stats")
    kept = _compat.with_groups(idata, {"posterior": posterior, "sample_stats": of_all})
    assert run_size(kept) == shape
    # lp says nothing of W H, which is then judged by the draws of the factors
    expected = "agree on the reconstruction W H." if followed == "mean" else "too short"
    assert expected in verdict_on(kept).text
