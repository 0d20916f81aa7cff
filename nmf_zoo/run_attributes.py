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
        "options": json.dumps(asdict(options)),
        "random_seed": str(entropy),
        "seconds": seconds,
        "status": status,
    }
