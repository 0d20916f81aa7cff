"""Test set-up: PyTensor's numba backend (no C compiler needed), one BLAS thread, no plots on a screen, Ctrl-C heard,
engines and likelihoods that a test registers forgotten.
"""

import os
import signal
from contextlib import ExitStack
from unittest.mock import patch

import pytest

os.environ["PYTENSOR_FLAGS"] = "cxx=,mode=NUMBA," + os.environ.get("PYTENSOR_FLAGS", "")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored


@pytest.fixture(autouse=True)
def engines_as_before():
    """Engines and likelihoods that a test, a page or a notebook registers are forgotten after it."""
    from nmf_zoo.inference import registry

    with ExitStack() as stack:
        stack.enter_context(patch.dict(registry.LIKELIHOODS))
        before = list(registry.REGISTRY)
        yield
        registry.REGISTRY[:] = before
