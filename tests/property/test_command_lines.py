"""A hundred bad command lines; ``python -m tests.property.command_lines`` tries more."""

from __future__ import annotations

import pytest

from tests.property.command_lines import campaign, commands

pytest.importorskip("h5py")


def test_every_command_is_tried():
    assert {"fit", "rank", "summary", "plot", "report", "compare", "simulate", "separate", "demo"} <= set(commands())


@pytest.mark.campaign
def test_bad_command_lines_are_refused_in_one_line():
    """Long: several hundred commands."""
    outcomes = campaign(n_cases=100, seed=1)
    failed = [outcome for outcome in outcomes if outcome.kind not in ("refused", "ran")]
    assert not failed, failed
    assert sum(outcome.kind == "refused" for outcome in outcomes) > 80
