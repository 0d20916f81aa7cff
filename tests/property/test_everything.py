"""Data, models, hyperparameters, engines and what follows at random: a finite result, or one line of ours.

``make fuzz`` runs them by the thousand (:mod:`tests.property.fuzz`).
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property import fuzz
from tests.property.everything.cases import IMPORTS
from tests.property.everything.picks import Picks, random_picks, replayed, simplest
from tests.property.everything.setting import ENGINES, NEWER, Case, case_of, run
from tests.sizes import size

LONG = {"derandomize": True, "database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}


@st.composite
def cases(draw, **of_families):
    return case_of(Picks(lambda size: draw(st.integers(0, size - 1))), **of_families)


@pytest.mark.campaign
@settings(
    max_examples=size(60, 1000),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_a_case_gives_a_finite_result_or_one_line(case):
    """Long: sixty models, each read and run anew."""
    outcome = run(case)
    assert outcome.word != "failed", f"{outcome.place}: {outcome.reason}\n\n{case.source}"


@pytest.mark.campaign
@settings(
    max_examples=size(40, 500), derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(cases(families=NEWER))
def test_so_does_a_case_of_the_newer_models(case):
    """Long: forty models, each read and run anew."""
    outcome = run(case)
    assert outcome.word != "failed", f"{outcome.place}: {outcome.reason}\n\n{case.source}"


def test_earlier_seeds_draw_what_they_drew():
    """The digest was taken before the campaign knew the newer models; of projections, the check has changed since."""
    drawn = "".join(case_of(random_picks(11, number)).source for number in range(2000))
    assert hashlib.sha256(drawn.encode()).hexdigest()[:16] == "21fc62640ab501d0"


def test_a_case_is_a_function_of_its_seed():
    assert case_of(random_picks(3, 17)) == case_of(random_picks(3, 17))
    assert len({case_of(random_picks(3, number)).lines for number in range(50)}) == 50
    assert {case_of(random_picks(3, number)).engine for number in range(600)} == set(ENGINES)


def test_choices_are_replayed_and_made_simpler():
    picks = random_picks(3, 17)
    case = case_of(picks)
    assert case_of(replayed(picks.made)) == case

    def chooses_a_large_one(pick):
        return any(pick(range(10)) > 6 for _ in range(5))

    tried = [3, 9, 1, 8, 2]
    assert simplest(tried, chooses_a_large_one) == [7]


PLANTED = {
    "an error of another kind": ("1 / 0", "ZeroDivisionError"),
    "a warning of another library": ("np.log(np.zeros(2))", "RuntimeWarning"),
    "an error of two lines": ("raise nz.RunFailed('a\\nb')", "more than a line"),
    "a result that is not finite": ("check.finite(xr.DataArray([np.nan], name='W'))", "not finite"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted):
    line, said = PLANTED[planted]
    outcome = run(Case("em", (line,)))
    assert outcome.word == "failed"
    assert said in outcome.reason


def test_what_is_illegal_must_be_refused():
    assert run(Case("em", ("raise nz.InputError('rank', '0', 'more')",), "rank=0")).word == "refused"
    assert run(Case("em", ("rank = 0",), "rank=0")).word == "failed"


@pytest.mark.parametrize(
    ("line", "said"), [("import os; os._exit(9)", "crash"), ("import time; time.sleep(60)", "hang")]
)
def test_crashes_and_hangs_are_cases_that_failed(line, said, monkeypatch, tmp_path, capsys):
    def planted(pick, **_):
        return Case("em", (line if pick(range(5)) == 0 else "pass",))

    monkeypatch.setattr(fuzz, "case_of", planted)
    monkeypatch.setattr(fuzz, "LONGEST", 1.5)
    monkeypatch.setattr(fuzz, "WARM", 0)
    progress = tmp_path / "progress"
    assert fuzz.main(["--cases", "8", "--seed", "1", "--resume", str(progress)]) == 1
    found = fuzz.read_progress(progress)
    failed = [number for number in range(8) if random_picks(1, number)(range(5)) == 0]
    assert failed
    assert [number for number in range(8) if found[number].word == "failed"] == failed
    assert all(said in found[number].reason for number in failed)
    shown = capsys.readouterr().out
    assert IMPORTS in shown
    assert f"| em | {8 - len(failed)} | 0 | {len(failed)} |" in shown
    assert fuzz.main(["--cases", "8", "--seed", "1", "--resume", str(progress)]) == 1
    assert len(progress.read_text().splitlines()) == 8
