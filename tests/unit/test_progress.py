"""The progress bars: whole numbers on terminals of any width."""

from __future__ import annotations

import pytest

from nmf_zoo.inference.progress import _columns


@pytest.mark.parametrize("width", [80, 120])
def test_long_notes_leave_the_numbers_whole(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    bars = _columns()
    for restart, done in enumerate((60, 2000)):
        note = "max_iter: objective 1.67089e+06, residual 7.7"
        bars.add_task(f"restart {restart}", total=2000, completed=done, note=note)
    with bars.console.capture() as capture:
        bars.console.print(bars.make_tasks_table(bars.tasks))
    lines = capture.get().splitlines()
    assert len(lines) == 2
    for line, numbers in zip(lines, ("  60/2000", "2000/2000"), strict=True):
        assert numbers in line
        assert "left" in line
        assert "max_iter: objective 1.67" in line
        assert len(line.rstrip()) <= width
