"""Checks of the options that engines in steps share: step sizes, sweeps, sizes of blocks."""

from __future__ import annotations

import numbers
from dataclasses import fields
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.options import check_least

LEAST = {  # of options that are whole numbers
    "batch": 1,
    "batch_size": 1,
    "inner": 1,
    "sweeps": 1,
    "keep": 1,
    "burn_in": 1,
    "leaps": 0,
    "start_columns": 0,
    "first_frames": 0,
    "average_after": 0,
}


def check_steps(options: Any) -> None:
    """Whatever a dataclass of options has of ``exponent``, ``offset``, ``keep`` and the names in ``LEAST``."""
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    if "exponent" in given and not 0.5 < given["exponent"] <= 1.0:
        raise InputError("exponent", repr(given["exponent"]), "a number in (1/2, 1]")
    if "offset" in given and not 0.0 <= given["offset"] < np.inf:
        raise InputError("offset", repr(given["offset"]), "a finite number >= 0")
    check_least(options, **{name: least for name, least in LEAST.items() if name in given})
    if "keep" in given and given["keep"] > given["sweeps"]:
        raise InputError("keep", repr(given["keep"]), f"at most sweeps={given['sweeps']}")


def is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
