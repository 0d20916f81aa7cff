"""Every engine: ``on_step`` and ``max_seconds`` end a run, which says so, is a result, and goes on to the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.diagnostics.convergence import verdict_on
from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.runtime.driver import STATUS
from nmf_zoo.runtime.stopping import BY_ON_STEP, OUT_OF_TIME
from tests.contract.test_engines import MAKERS, assert_same, posterior, run, suited
from tests.registered import OURS

ENDLESS = {"sample": {"draws": 100_000, "tune": 2}, "fit": {"max_iter": 100_000, "tol": 0}}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MAKERS.items()}


def endless(engine, models, **arguments):
    return run(engine, models[suited("gamma_nmf", engine)], **{**ENDLESS[OURS[engine]], **arguments})


@pytest.mark.parametrize("engine", OURS)
def test_on_step_ends_a_run(engine, models):
    """After the first draw, or the third iteration, of any chain."""
    seen = []

    def on_step(step):
        seen.append(step)
        return not step.is_warmup and step.number >= 3

    result = endless(engine, models, on_step=on_step)
    check_result(result, engine, BY_ON_STEP)
    assert seen[-1].number >= 3
    assert {step.chain for step in seen} <= {0, 1}
    assert {step.total for step in seen} == {100_002 if OURS[engine] == "sample" else 100_000}
    for step in seen:
        assert np.isfinite(step.info["lp" if OURS[engine] == "sample" else "objective"])
        assert step.seconds > 0.0


@pytest.mark.parametrize("engine", OURS)
def test_max_seconds_end_a_run(engine, models):
    """Also when they are over before anything is compiled.

    Long: every engine is prepared, and runs for its half second.
    """
    at_once = {"tune": 0} if OURS[engine] == "sample" else {}
    check_result(endless(engine, models, max_seconds=0.5, **at_once), engine, OUT_OF_TIME)


def check_result(result, engine, status):
    assert result.attrs["status"] == status
    draws = posterior(result)
    assert np.all(np.isfinite(draws["W"]))
    stats = _compat.group(result, "sample_stats")
    assert stats["lp"].shape == (draws.sizes["chain"], draws.sizes["draw"])
    if OURS[engine] == "fit":
        fit = _compat.group(result, "fit")
        assert set(fit["status"].to_numpy()) == {status}
        assert set(fit["reason"].to_numpy()) == {STATUS[status]}
        assert not np.any(fit["converged"])
    elif draws.sizes["draw"] < 4:
        return  # too few to be judged
    assert verdict_on(result).text.startswith(f"The run ended early ({status}). ")


@pytest.mark.parametrize("engine", OURS)
def test_runs_that_were_ended_go_on_to_the_same_bits(engine, models, tmp_path):
    model, calls = models[suited("gamma_nmf", engine)], []

    def on_step(step):
        calls.append(step)
        return len(calls) == 4

    length = {"draws": 40} if OURS[engine] == "sample" else {"max_iter": 9, "tol": 0}
    asked = {"checkpoint": tmp_path / "run", **length}
    try:
        early = run(engine, model, on_step=on_step, **asked)
    except RunFailed as error:
        status = str(error).partition("; ")[2]
    else:
        status = early.attrs["status"]
    assert status == f"{BY_ON_STEP}: the same call goes on from {asked['checkpoint']}"
    again = run(engine, model, on_step=lambda step: None, max_seconds=600, **asked)
    whole = run(engine, model, **length)
    assert again.attrs["status"] == whole.attrs["status"]
    assert_same(again, whole)


# -- the verbs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"on_step": lambda step: True}, {"max_seconds": 1e-9}])
def test_no_draws_are_no_result(arguments, models):
    reason = BY_ON_STEP if "on_step" in arguments else OUT_OF_TIME
    with pytest.raises(RunFailed, match=rf"no draw was made: .* warm-up \(tune\); {reason}"):
        run("gibbs", models["gamma_nmf"], tune=50, **arguments)


@pytest.mark.parametrize("verb", ["sample", "fit"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_step": True}, "on_step: got True; expected a function of a Step, or None"),
        ({"max_seconds": 0}, "max_seconds: got 0; expected a number > 0, or None"),
        ({"max_seconds": -1.5}, "max_seconds: got -1.5"),
        ({"max_seconds": float("nan")}, "max_seconds: got nan"),
        ({"max_seconds": True}, "max_seconds: got True"),
        ({"max_seconds": "60"}, "max_seconds: got '60'"),
    ],
)
def test_refusals(verb, arguments, message, models):
    with pytest.raises(InputError, match=message):
        run("gibbs" if verb == "sample" else "em", models["gamma_nmf"], **arguments)


@pytest.mark.parametrize("engine", ["nuts", "smc"])
@pytest.mark.parametrize("arguments", [{"on_step": print}, {"max_seconds": 60}])
def test_what_makes_its_draws_at_once_runs_to_its_end(engine, arguments, models):
    name = next(iter(arguments))
    with pytest.raises(InputError, match=rf"{name}: got .* with {engine}; expected None: it runs to its end"):
        nz.sample(10, engine=engine, model=models["gamma_nmf"], **arguments)


def test_a_step_explains_itself():
    seen = []
    nz.fit(model=nz.poisson_nmf(np.eye(3, dtype=int) + 1, 1), max_iter=1, tol=0, quiet=True, on_step=seen.append)
    assert all(isinstance(step, nz.Step) for step in seen)
    step = min(seen, key=lambda step: step.chain)  # restarts run side by side: any may be told of first
    assert (step.chain, step.number, step.total, step.is_warmup) == (0, 1, 1, False)
    assert sorted(step.info) == ["objective", "residual"]
