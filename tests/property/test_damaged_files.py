"""Damaged files: a value that is in the file or one line, for every reader; and the campaign sees what is wrong.

More cases: ``python -m tests.property.files --cases 500 --seed 1``.
"""

import os

import pytest

from tests.property.files import run
from tests.property.files.readers import READERS

CASES = int(os.environ.get("NMF_ZOO_FILE_CASES", "60"))


@pytest.mark.campaign
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_read_as_it_is_or_refused_in_one_line(reader):
    """The campaign of damaged files at its small size. Long: each case writes and reads a file."""
    if reader == "parquet":
        pytest.importorskip("pyarrow")
    report = run(reader, CASES)
    assert not report.failures, report.smallest()
    assert report.tried == CASES
    assert report.read
    assert report.refused


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ("crash", "SIGSEGV"),
        ("hang", "no end within"),
        ("eat", "MemoryError"),
        ("stumble", "KeyError"),
        ("speak", "RuntimeWarning"),
        ("invent", "an invented value"),
        ("ramble", "several lines"),
    ],
)
def test_the_campaign_sees_a_reader_that_is_wrong(planted, words):
    report = run(f"planted {planted}", 2, seconds=2.0)
    assert [failure.case for failure in report.failures] == [0, 1]
    assert words in report.smallest()


def test_the_same_seed_damages_alike():
    first, again, other = run("csv", 40, seed=3), run("csv", 40, seed=3), run("csv", 40, seed=4)
    assert (first.read, first.refused) == (again.read, again.refused)
    assert first.read != other.read or first.refused != other.refused
