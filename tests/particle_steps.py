"""Steps of a particle filter in Python, of its compiled pieces.

Engines compile whole passes; steps that look ahead, which only tests call one by one, would compile for ten seconds
each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from nmf_zoo.kernels.hmm.particles import filter as steps
from nmf_zoo.kernels.random.keyed_rng import fold


def _fold(key: np.uint64, number: int) -> np.uint64:
    """A compiled key comes back as Python's integer, which no other kernel would take."""
    return np.uint64(fold(key, number))


def _in_python(step: Any) -> Callable:
    @wraps(step.py_func)
    def call(*arguments):
        with patch.object(steps, "fold", _fold):
            return step.py_func(*arguments)

    return call


begin, advance = _in_python(steps.begin), _in_python(steps.advance)
