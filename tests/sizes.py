"""How large the statistical tests are: reduced in ``make test``, full in ``make test-full``, where the slowest run."""

import os

import pytest

FULL = os.environ.get("NMF_ZOO_TEST_SIZE", "reduced") == "full"
at_full_size = pytest.mark.skipif(not FULL, reason="at full size alone: make test-full")


def size(reduced: int, full: int) -> int:
    """``full`` under ``make test-full``, else ``reduced``."""
    return full if FULL else reduced
