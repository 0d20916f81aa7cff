"""What every result says of the run that made it, and of the model that it is of."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nmf_zoo import __version__
from nmf_zoo.reading import describe
from nmf_zoo.reading.drawing import graph_to_text, make_graph
from nmf_zoo.structure import Factorisation

MODEL, GRAPH = "model", "model_graph"
MOST_TEXT = 8000  # characters of an attribute on the model: files hold attributes of up to 64 kB


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


def model_attributes(structure: Factorisation) -> dict[str, str]:
    """The declaration as :func:`~nmf_zoo.describe` tells it, and its graph as JSON; none that is very long."""
    texts = {MODEL: describe(structure), GRAPH: graph_to_text(make_graph(structure))}
    return {name: text for name, text in texts.items() if len(text) <= MOST_TEXT}


def _as_number(value: Any) -> Any:
    """NumPy's numbers as Python's, which are all that JSON knows."""
    return value.item()
