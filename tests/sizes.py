"""How large the statistical tests are: reduced in ``make test``, full in ``make test-full``."""

import os

FULL = os.environ.get("NMF_ZOO_TEST_SIZE", "reduced") == "full"


def size(reduced: int, full: int) -> int:
    """``full`` under ``make test-full``, else ``reduced``."""
    return full if FULL else reduced
