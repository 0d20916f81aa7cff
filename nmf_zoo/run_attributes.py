"""What every result says of the run that made it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nmf_zoo import __version__


def run_attributes(engine: str, options: Any, entropy: Any, seconds: float, status: str) -> dict[str, Any]:
    """Attributes of a result."""
    return {
        "inference_library": "nmf_zoo",
        "inference_library_version": __version__,
        "engine": engine,
        "options": json.dumps(asdict(options), default=_as_number),
        "random_seed": str(entropy),
        "seconds": seconds,
        "status": status,
    }


def _as_number(value: Any) -> Any:
    """NumPy's numbers as Python's, which are all that JSON knows."""
    return value.item()
